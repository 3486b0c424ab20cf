"""A type for what may be None where those who read it know from elsewhere that it is there.

`Tensor | None` has type checkers ask every reader for a test, which is right where any caller may have left it out.
`Maybe[Tensor]` asks for none: a field that only some calls have is read by what runs in those calls alone.
"""

from typing import Any, TypeVar, Union

T = TypeVar('T')

Maybe = Union[T, Any]  # noqa: UP007  an alias with a parameter

"""Base classes of patterns: checks, combinations, and their form in a config."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from torch import Tensor

from x_transformers.flags.checks import ConfigError, format_value, is_int
from x_transformers.flags.resolved import did_you_mean
from x_transformers.patterns.branches import Branch, common
from x_transformers.patterns.drawing import draw

# every kind of pattern by its name in a config, and what texts are short for
PATTERNS: dict[str, type[Pattern]] = {}
NAMED: dict[str, Pattern] = {}

Kind = TypeVar('Kind', bound='type[Pattern]')


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Tell type checkers alone that `pattern` makes dataclasses; Python 3.10 has no such decorator."""
        return lambda function: function


@dataclass_transform(frozen_default=True, eq_default=False)
def pattern(name: str) -> Callable[[Kind], Kind]:
    """Makes a class a frozen dataclass, and the pattern of that name."""

    def of(cls: Kind) -> Kind:
        made = dataclass(frozen=True, eq=False)(cls)
        made.name = name
        PATTERNS[name] = made
        return made

    return of


class Pattern:
    """Which key a query sees. The docstring of `x_transformers.patterns` says what a pattern defines."""

    name: ClassVar[str] = ''
    looks_ahead: ClassVar[str] = ''
    cannot_cache: ClassVar[str] = ''
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # `pattern` makes each of them a dataclass

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, hashable(getattr(self, field.name)))
        self.check()

    def _compared(self) -> tuple[Any, ...]:
        """What makes it the same as another one; lengths of rows, a tensor, are the same if they are that tensor."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self) if field.compare]
        return type(self), *[id(value) if isinstance(value, Tensor) else value for value in values]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Pattern) and self._compared() == other._compared())

    def __hash__(self) -> int:
        return hash(self._compared())

    # what it means

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        """Return True if the query at i sees the key at j. `marks` says of positions which are marked.

        A pattern whose heads differ gives one more axis in front, of `heads` heads, by `for_heads`.
        """
        raise NotImplementedError

    def keys_bound(self, n: int, causal: bool) -> int:
        """Return how many of n keys a query sees at most."""
        raise NotImplementedError

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        """Return how it is computed for n positions."""
        raise NotImplementedError

    @property
    def period(self) -> int | None:
        return None

    @property
    def reach(self) -> int | None:
        return None

    @property
    def size(self) -> int | None:
        return None

    @property
    def marked(self) -> bool:
        return False

    @property
    def of_differences(self) -> bool:
        """Return True if it knows nothing of where a sequence begins, so that documents may stand side by side."""
        return self.period == 1

    def check(self) -> None:
        """Refuse what fields must not be."""

    def of_head(self, head: int, heads: int) -> Pattern:
        """That of one head."""
        return self

    def for_heads(self, heads: int) -> tuple[Pattern, ...]:
        return tuple([self.of_head(head, heads) for head in range(heads)])

    def of_layer(self, layer: int) -> Pattern:
        """That of a layer, of those of self-attention the n-th."""
        return self

    def of_length(self, n: int) -> Pattern:
        """That of a call of n positions."""
        return self

    @property
    def depends_on_length(self) -> bool:
        """Return True if `of_length` gives other patterns for other lengths."""
        return type(self).of_length is not Pattern.of_length

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        """Return the pattern of rows of these lengths (b), at most n; positions then have rows as their first axis.

        Raises:
            ConfigError: If the pattern is defined for one length at a time.
        """
        if not self.depends_on_length:
            return self
        kind = type(self).__name__
        raise ConfigError(
            f'`mask` and `seq_start_pos` do not go with {kind}: rows have several lengths, and it has no `of_lengths`'
        )

    # those that are drawn, and stored with the weights

    def any_head(self) -> Pattern:
        """What heads have in common that are computed together."""
        return self

    def joined(self, patterns: Sequence[Any]) -> Pattern:
        """One for all of these heads, which are the second axis of what it is asked then."""
        return self

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        """What decides `visible` beside positions in a layer, and is stored."""
        return None

    def stored(self, table: Tensor) -> Pattern:
        """The same with what was stored."""
        return self

    @staticmethod
    def share(patterns: Sequence[Any], heads: int) -> tuple[int, ...] | None:
        """Return how many heads each of some patterns of this kind gets, if it is not as many each."""
        return None

    # what it is made of

    def __or__(self, other: Any) -> Pattern:
        return Union((self, as_pattern(other)))

    def __ror__(self, other: Any) -> Pattern:
        return Union((as_pattern(other), self))

    def __and__(self, other: Any) -> Pattern:
        return Intersection((self, as_pattern(other)))

    def __rand__(self, other: Any) -> Pattern:
        return Intersection((as_pattern(other), self))

    def parts(self) -> tuple[Pattern, ...]:
        """The patterns that it is made of."""
        return ()

    def as_config(self) -> dict[str, Any]:
        """As data that JSON can hold; `as_pattern` is the way back."""
        given = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                given[field.name] = to_data(value)
        return {'pattern': self.name, **given}

    def draw(self, n: int, causal: bool = False, path: Any = None, heads: int = 1, marks: Any = None) -> str:
        """A picture of who sees whom, of n tokens: as text, and as a PNG file at `path` if it is given."""
        for name, value, least in (('n', n, 0), ('heads', heads, 1)):
            if not is_int(value) or value < least:
                raise ConfigError(f'`{name}` got {format_value(value)}, it must be an integer of at least {least}')
        return draw(self.of_length(n).for_heads(heads), n, causal, path, marks)

    # refusals

    def refuse(self, field: str, must_be: str) -> NoReturn:
        got = format_value(getattr(self, field))
        raise ConfigError(f'`{field}` of {type(self).__name__} got {got}, it must be {must_be}')

    def size_of(self, *fields: str, least: int = 1) -> None:
        """Refuse what is no integer of at least so much."""
        for field in fields:
            value = getattr(self, field)
            if not is_int(value) or value < least:
                self.refuse(field, f'an integer of at least {least}')


def hashable(value: Any) -> Any:
    """A config holds lists, and calculations give integers that JSON does not know."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    return int(value) if is_int(value) else value


def to_data(value: Any) -> Any:
    if isinstance(value, Pattern):
        return value.as_config()
    return [to_data(one) for one in value] if isinstance(value, (tuple, list)) else value


# several in one


@dataclass(frozen=True, eq=False, repr=False)
class Several(Pattern):
    patterns: tuple[Pattern, ...]
    sign: ClassVar[str] = ''

    def check(self) -> None:
        flat: list[Pattern] = []
        for one in self.patterns:
            own = as_pattern(one)
            flat += own.patterns if type(own) is type(self) else [own]
        for one in flat:
            if isinstance(one, Mix):
                raise ConfigError(f'`{self.sign}` got {format_value(one)}: a Mix is of whole patterns, not part of one')
        if not flat:
            raise ConfigError(f'`{self.name}` got no patterns, there must be at least one')
        check_sizes(flat)
        object.__setattr__(self, 'patterns', tuple(flat))

    def __repr__(self) -> str:
        return '(' + f' {self.sign} '.join(map(repr, self.patterns)) + ')'

    def parts(self) -> tuple[Pattern, ...]:
        return self.patterns

    def as_config(self) -> dict[str, Any]:
        return {self.name: to_data(self.patterns)}

    def of_head(self, head: int, heads: int) -> Pattern:
        return type(self)(tuple([one.of_head(head, heads) for one in self.patterns]))

    def of_layer(self, layer: int) -> Pattern:
        return type(self)(tuple([one.of_layer(layer) for one in self.patterns]))

    def of_length(self, n: int) -> Pattern:
        return type(self)(tuple([one.of_length(n) for one in self.patterns]))

    @property
    def depends_on_length(self) -> bool:
        return any(one.depends_on_length for one in self.patterns)

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return type(self)(tuple([one.of_lengths(lengths, n) for one in self.patterns]))

    def any_head(self) -> Pattern:
        return type(self)(tuple([one.any_head() for one in self.patterns]))

    def joined(self, patterns: Sequence[Any]) -> Pattern:
        parts = zip(*(one.patterns for one in patterns), strict=True)
        return type(self)(tuple([own[0].joined(own) for own in parts]))

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        return only_pattern(self.patterns, [one.drawn(heads, layer) for one in self.patterns])

    def stored(self, table: Tensor) -> Pattern:
        return type(self)(tuple([one.stored(table) for one in self.patterns]))

    @property
    def looks_ahead(self) -> str:
        return next(filter(None, (one.looks_ahead for one in self.patterns)), '')

    @property
    def cannot_cache(self) -> str:
        return next(filter(None, (one.cannot_cache for one in self.patterns)), '')

    @property
    def period(self) -> int | None:
        return common(*(one.period for one in self.patterns))

    @property
    def size(self) -> int | None:
        return next((one.size for one in self.patterns if one.size is not None), None)

    @property
    def marked(self) -> bool:
        return any(one.marked for one in self.patterns)

    @property
    def of_differences(self) -> bool:
        return all(one.of_differences for one in self.patterns)


class Union(Several):
    """What any of some patterns sees:  p | q"""

    name, sign = 'union', '|'

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return functools.reduce(Tensor.__or__, [one.visible(i, j, marks) for one in self.patterns])

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, sum(one.keys_bound(n, causal) for one in self.patterns))

    @property
    def reach(self) -> int | None:
        known = [one.reach for one in self.patterns]
        return None if None in known else max(r for r in known if r is not None)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        found: list[Branch] = []
        for at, one in enumerate(self.patterns):
            found += [branch.without(self.patterns[:at]) for branch in one.branches(n, causal)]
        return tuple(found)


class Intersection(Several):
    """What all of some patterns see:  p & q"""

    name, sign = 'intersection', '&'

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return functools.reduce(Tensor.__and__, [one.visible(i, j, marks) for one in self.patterns])

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(one.keys_bound(n, causal) for one in self.patterns)

    @property
    def reach(self) -> int | None:
        return min((one.reach for one in self.patterns if one.reach is not None), default=None)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        least = min(self.patterns, key=lambda one: one.keys_bound(n, causal))
        others = [one for one in self.patterns if one is not least]
        return tuple([branch.within(others) for branch in least.branches(n, causal)])


@pattern('mix')
class Mix(Pattern):
    """Several patterns in one stack.  Child et al. 2019, arXiv:1904.10509

    how    heads         heads share them, `heads` says how many each gets; None: as many each, the first ones more
           interleave    the n-th layer of self-attention has pattern n mod p
           merge         each head sees what any of them sees
    """

    patterns: tuple[Pattern, ...]
    how: str = 'heads'
    heads: tuple[int, ...] | None = None

    def check(self) -> None:
        if not isinstance(self.patterns, (tuple, list)) or not self.patterns:
            self.refuse('patterns', 'a tuple of patterns')
        object.__setattr__(self, 'patterns', tuple(map(as_pattern, self.patterns)))
        if any(isinstance(one, Mix) for one in self.patterns):
            self.refuse('patterns', 'patterns that are no Mix')
        check_sizes(self.patterns)
        if self.how not in ('heads', 'interleave', 'merge'):
            self.refuse('how', "one of 'heads', 'interleave', 'merge'")
        counts = self.heads
        if counts is None:
            return
        if self.how != 'heads':
            raise ConfigError(f"`heads` of Mix got {format_value(counts)}, it needs `how='heads'`")
        whole = isinstance(counts, tuple) and all(is_int(one) and one > 0 for one in counts)
        if not whole or len(counts) != len(self.patterns):
            self.refuse('heads', f'a number of heads for each of its {len(self.patterns)} patterns')

    def parts(self) -> tuple[Pattern, ...]:
        return self.patterns

    @property
    def whole(self) -> Pattern:
        """What any of them sees."""
        return self.patterns[0] if len(self.patterns) == 1 else Union(self.patterns)

    def of_layer(self, layer: int) -> Pattern:
        if self.how == 'interleave':
            return self.patterns[layer % len(self.patterns)].of_layer(layer)
        own = replace(self, patterns=tuple([one.of_layer(layer) for one in self.patterns]))
        return own if self.how == 'heads' else own.whole

    def of_length(self, n: int) -> Pattern:
        return replace(self, patterns=tuple([one.of_length(n) for one in self.patterns]))

    @property
    def depends_on_length(self) -> bool:
        return any(one.depends_on_length for one in self.patterns)

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return replace(self, patterns=tuple([one.of_lengths(lengths, n) for one in self.patterns]))

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        shares = self.shares(heads) if self.how == 'heads' else (heads,) * len(self.patterns)
        return only_pattern(
            self.patterns, [one.drawn(own, layer) for one, own in zip(self.patterns, shares, strict=True)]
        )

    def stored(self, table: Tensor) -> Pattern:
        return replace(self, patterns=tuple([one.stored(table) for one in self.patterns]))

    def shares(self, heads: int) -> tuple[int, ...]:
        """Return how many heads each pattern gets."""
        p = len(self.patterns)
        if self.heads is not None:
            if sum(self.heads) != heads:
                self.refuse('heads', f'numbers whose sum is that of the heads, {heads}')
            return self.heads
        kind = type(self.patterns[0])
        own = kind.share(self.patterns, heads) if all(type(one) is kind for one in self.patterns) else None
        if own is not None:
            return own
        if heads < p:
            raise ConfigError(f'`patterns` of Mix got {p}, they must be no more than the heads, {heads}')
        return tuple([heads // p + (at < heads % p) for at in range(p)])

    def of_head(self, head: int, heads: int) -> Pattern:
        if self.how != 'heads':
            return self.of_layer(0).of_head(head, heads)
        for one, count in zip(self.patterns, self.shares(heads), strict=True):
            if head < count:
                return one.of_head(head, count)
            head -= count
        raise AssertionError('shares are those of all heads')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.whole.visible(i, j, marks)

    def keys_bound(self, n: int, causal: bool) -> int:
        bounds = [one.keys_bound(n, causal) for one in self.patterns]
        return max(bounds) if self.how != 'merge' else min(n, sum(bounds))

    @property
    def looks_ahead(self) -> str:
        return self.whole.looks_ahead

    @property
    def cannot_cache(self) -> str:
        return self.whole.cannot_cache

    @property
    def period(self) -> int | None:
        return self.whole.period

    @property
    def reach(self) -> int | None:
        known = [one.reach for one in self.patterns]
        return None if None in known else max(r for r in known if r is not None)

    @property
    def size(self) -> int | None:
        return self.whole.size

    @property
    def marked(self) -> bool:
        return self.whole.marked

    @property
    def of_differences(self) -> bool:
        return all(one.of_differences for one in self.patterns)


def check_sizes(patterns: Sequence[Pattern]) -> None:
    """Refuse patterns that need sequences of different lengths."""
    sizes = sorted({one.size for one in patterns if one.size is not None})
    if len(sizes) > 1:
        raise ConfigError(f'`image` got {" and ".join(map(str, sizes))} pixels in patterns of one sequence')


def only_pattern(patterns: Sequence[Pattern], tables: Sequence[Tensor | None]) -> Tensor | None:
    """What one of them has drawn."""
    known = [table for table in tables if table is not None]
    if len(known) > 1:
        kinds = [type(one).__name__ for one, table in zip(patterns, tables, strict=True) if table is not None]
        raise ConfigError(f'`sparse_pattern` got {" and ".join(kinds)}: one pattern at random is stored, not more')
    return known[0] if known else None


# forms


def is_pattern(value: Any) -> bool:
    """Return True if it may be one: a pattern, its form in a config, or the name of one."""
    return isinstance(value, (Pattern, str, Mapping))


def as_pattern(value: Any, flag: str = 'sparse_pattern') -> Pattern:
    """A pattern, from itself, its form in a config, or a name with its defaults; `flag` is what it was given as.

    {'pattern': 'sliding', 'window': 256},  {'union': [..]},  {'intersection': [..]},  'sliding'
    """
    if isinstance(value, Pattern):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            known = ', '.join(map(repr, NAMED))
            hint = did_you_mean(value, NAMED) or f', it must be one of {known}, or a pattern'
            raise ConfigError(f'`{flag}` got {value!r}, which is no pattern{hint}')
        return NAMED[value]
    if not isinstance(value, Mapping):
        raise ConfigError(f'`{flag}` got {format_value(value)}, it must be a pattern, its dict, or a name')
    rest = {str(name): one for name, one in value.items()}
    for several in (Union, Intersection):
        if rest.keys() == {several.name} and isinstance(rest[several.name], (list, tuple)):
            return several(tuple(map(as_pattern, rest[several.name])))
    name = rest.pop('pattern', None)
    if not isinstance(name, str) or name not in PATTERNS:
        hint = did_you_mean(str(name), PATTERNS) or f', it must be one of {", ".join(map(repr, PATTERNS))}'
        raise ConfigError(f'`pattern` got {name!r}, which is no pattern{hint}')
    kind = PATTERNS[name]
    fields = [field.name for field in dataclasses.fields(kind)]
    unknown = next((one for one in rest if one not in fields), None)
    if unknown is not None:
        raise ConfigError(f'unknown field `{unknown}` of {kind.__name__}{did_you_mean(unknown, fields)}')
    try:
        return kind(**rest)
    except TypeError:
        missing = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
        raise ConfigError(f'{kind.__name__} got {format_value(rest)}, it needs {", ".join(missing)}') from None


def check_known(pattern: Pattern, flag: str = 'sparse_pattern') -> None:
    """Refuse what a config could not bring back: a class that has no name of its own there."""
    for one in pattern.parts():
        check_known(one, flag)
    kind = type(pattern)
    if kind not in (Union, Intersection) and PATTERNS.get(kind.name) is not kind:
        raise ConfigError(
            f'`{flag}` got {kind.__name__}, which no config could bring back: decorate it with `@pattern(name)`'
        )


def divide_exactly(n: int, size: int) -> int:
    """Return how many of a size it takes for n."""
    return -(-n // size) if n else 0


def least_common(*sizes: int) -> int:
    return math.lcm(*sizes)

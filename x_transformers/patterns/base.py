"""Base classes of patterns: checks, combinations, and their form in a config."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from torch import Tensor

from x_transformers.flags.checks import ConfigError, format_value, is_int
from x_transformers.flags.resolved import did_you_mean
from x_transformers.patterns.branches import Branch, common
from x_transformers.patterns.drawing import draw

# Classes of patterns by their name in a config, and patterns by a name that stands for them.
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
    """Make a class a frozen dataclass, and the pattern of that name in configs."""

    def decorate(cls: Kind) -> Kind:
        made = dataclass(frozen=True, eq=False)(cls)
        made.name = name
        PATTERNS[name] = made
        return made

    return decorate


class Pattern:
    """Sparse attention pattern. The docstring of `x_transformers.patterns` lists what a subclass defines."""

    name: ClassVar[str] = ''
    period: ClassVar[int | None] = None
    reach: ClassVar[int | None] = None
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]  # `pattern` makes each of them a dataclass

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, hashable(getattr(self, field.name)))
        self.check()

    def _compared(self) -> tuple[Any, ...]:
        """Return the values by which patterns are compared, with tensors (lengths of sequences) by identity."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self) if field.compare]
        return type(self), *[id(value) if isinstance(value, Tensor) else value for value in values]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Pattern) and self._compared() == other._compared())

    def __hash__(self) -> int:
        return hash(self._compared())

    # What a pattern defines.

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        """Return True where the query at i attends to the key at j. `marks` returns which positions are marked."""
        raise NotImplementedError

    def keys_bound(self, n: int, causal: bool) -> int:
        """Return the largest number of n keys that a query attends to."""
        raise NotImplementedError

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        """Return the branches that compute it for n positions."""
        raise NotImplementedError

    @property
    def of_differences(self) -> bool:
        """Return True if only differences of positions matter, so that documents may be packed into a sequence."""
        return self.period == 1

    def check(self) -> None:
        """Raise ConfigError for invalid fields."""

    # Patterns that it is made of. By default it has the properties of its parts, and changes with them.

    def parts(self) -> tuple[Pattern, ...]:
        """Return the patterns that it is made of."""
        return ()

    def map_parts(self, function: Callable[[Any], Pattern]) -> Pattern:
        """Return the pattern with each part replaced by `function(part)`."""
        return self

    if TYPE_CHECKING:
        # Patterns without parts set them as class attributes.
        looks_ahead: ClassVar[str]
        cannot_cache: ClassVar[str]
    else:

        @property
        def looks_ahead(self) -> str:
            return next(filter(None, (one.looks_ahead for one in self.parts())), '')

        @property
        def cannot_cache(self) -> str:
            return next(filter(None, (one.cannot_cache for one in self.parts())), '')

    @property
    def size(self) -> int | None:
        return next((one.size for one in self.parts() if one.size is not None), None)

    @property
    def marked(self) -> bool:
        return any(one.marked for one in self.parts())

    def of_head(self, head: int, heads: int) -> Pattern:
        """Return the pattern of one head."""
        return self.map_parts(lambda one: one.of_head(head, heads))

    def for_heads(self, heads: int) -> tuple[Pattern, ...]:
        return tuple([self.of_head(head, heads) for head in range(heads)])

    def of_layer(self, layer: int) -> Pattern:
        """Return the pattern of the n-th layer of self-attention."""
        return self.map_parts(lambda one: one.of_layer(layer))

    def of_length(self, n: int) -> Pattern:
        """Return the pattern of a call of n positions."""
        return self.map_parts(lambda one: one.of_length(n))

    @property
    def depends_on_length(self) -> bool:
        """Return True if `of_length` returns other patterns for other lengths."""
        parts = self.parts()
        return any(one.depends_on_length for one in parts) if parts else type(self).of_length is not Pattern.of_length

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        """Return the pattern of sequences of lengths (b,), at most n. Positions then have a batch axis in front.

        Raises:
            ConfigError: If the pattern is defined for one length at a time.
        """
        if self.depends_on_length and not self.parts():
            kind = type(self).__name__
            raise ConfigError(
                f'`mask` and `seq_start_pos` cannot be combined with {kind}: sequences have several lengths, '
                'and it has no `of_lengths`'
            )
        return self.map_parts(lambda one: one.of_lengths(lengths, n))

    # Patterns that are drawn at random, and stored with the weights.

    def any_head(self) -> Pattern:
        """Return the pattern without its head: heads for which it is equal are computed together."""
        return self.map_parts(lambda one: one.any_head())

    def joined(self, patterns: Sequence[Any]) -> Pattern:
        """Return one pattern for the heads that have these; heads are then the second axis of positions."""
        parts = zip(*(one.parts() for one in patterns), strict=True)
        return self.map_parts(lambda one: one.joined(next(parts)))

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        """Draw the table (h, ...) that decides `visible` in a layer beside positions, to be stored."""
        return None

    def stored(self, table: Tensor) -> Pattern:
        """Return the pattern with a stored table."""
        return self.map_parts(lambda one: one.stored(table))

    @staticmethod
    def share(patterns: Sequence[Any], heads: int) -> tuple[int, ...] | None:
        """Return the number of heads for each of some patterns of this class; None for equal numbers."""
        return None

    # Combinations and forms.

    def __or__(self, other: Any) -> Pattern:
        return Union((self, as_pattern(other)))

    def __ror__(self, other: Any) -> Pattern:
        return Union((as_pattern(other), self))

    def __and__(self, other: Any) -> Pattern:
        return Intersection((self, as_pattern(other)))

    def __rand__(self, other: Any) -> Pattern:
        return Intersection((as_pattern(other), self))

    def as_config(self) -> dict[str, Any]:
        """Return the pattern as data that JSON can hold, from which `as_pattern` makes it again."""
        given = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                given[field.name] = to_data(value)
        return {'pattern': self.name, **given}

    def draw(self, n: int, causal: bool = False, path: Any = None, heads: int = 1, marks: Any = None) -> str:
        """Draw which of n tokens attend to which: return it as text, and write a PNG file to `path` if given."""
        for name, value, least in (('n', n, 0), ('heads', heads, 1)):
            if not is_int(value) or value < least:
                raise ConfigError(f'`{name}` must be an integer of at least {least}, got {format_value(value)}')
        return draw(self.of_length(n).for_heads(heads), n, causal, path, marks)

    def refuse(self, field: str, must_be: str) -> NoReturn:
        """Raise ConfigError for the value of a field."""
        got = format_value(getattr(self, field))
        raise ConfigError(f'`{field}` of {type(self).__name__} must be {must_be}, got {got}')

    def size_of(self, *fields: str, least: int = 1) -> None:
        """Check that fields are integers of at least `least`."""
        for field in fields:
            value = getattr(self, field)
            if not is_int(value) or value < least:
                self.refuse(field, f'an integer of at least {least}')


def hashable(value: Any) -> Any:
    """Return a field with tuples for the lists of a config, and with Python's integers, which JSON can hold."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    return int(value) if is_int(value) else value


def to_data(value: Any) -> Any:
    if isinstance(value, Pattern):
        return value.as_config()
    return [to_data(one) for one in value] if isinstance(value, (tuple, list)) else value


# Combinations.


class Composite(Pattern):
    """Base of patterns that combine several, `patterns`."""

    patterns: tuple[Pattern, ...]

    def parts(self) -> tuple[Pattern, ...]:
        return self.patterns

    def map_parts(self, function: Callable[[Any], Pattern]) -> Pattern:
        return replace(self, patterns=tuple(map(function, self.patterns)))

    @property
    def period(self) -> int | None:
        return common(*(one.period for one in self.patterns))

    @property
    def reach(self) -> int | None:
        known = [one.reach for one in self.patterns]
        return None if None in known else max(r for r in known if r is not None)

    @property
    def of_differences(self) -> bool:
        return all(one.of_differences for one in self.patterns)


@dataclass(frozen=True, eq=False, repr=False)
class Several(Composite):
    """Base of unions and intersections, whose heads all have the same combination."""

    patterns: tuple[Pattern, ...]
    sign: ClassVar[str] = ''

    def check(self) -> None:
        flat: list[Pattern] = []
        for one in self.patterns:
            own = as_pattern(one)
            flat += own.patterns if type(own) is type(self) else [own]
        for one in flat:
            if isinstance(one, Mix):
                raise ConfigError(f'`{self.sign}` must combine patterns other than Mix, got {format_value(one)}')
        if not flat:
            raise ConfigError(f'`{self.name}` must have at least one pattern, got none')
        check_sizes(flat)
        object.__setattr__(self, 'patterns', tuple(flat))

    def __repr__(self) -> str:
        return '(' + f' {self.sign} '.join(map(repr, self.patterns)) + ')'

    def as_config(self) -> dict[str, Any]:
        return {self.name: to_data(self.patterns)}

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        return only_table(self.patterns, [one.drawn(heads, layer) for one in self.patterns])


class Union(Several):
    """Union of patterns:  p | q"""

    name, sign = 'union', '|'

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return functools.reduce(Tensor.__or__, [one.visible(i, j, marks) for one in self.patterns])

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, sum(one.keys_bound(n, causal) for one in self.patterns))

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        found: list[Branch] = []
        for at, one in enumerate(self.patterns):
            found += [branch.without(self.patterns[:at]) for branch in one.branches(n, causal)]
        return tuple(found)


class Intersection(Several):
    """Intersection of patterns:  p & q"""

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
class Mix(Composite):
    """Several patterns in one stack.  Child et al. 2019, arXiv:1904.10509

    how    heads         each pattern has the number of heads in `heads`; None: equal numbers, the first more
           interleave    the n-th layer of self-attention has pattern n mod p
           merge         each head has the union
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
            raise ConfigError(f"`heads` of Mix needs `how='heads'`, got heads={format_value(counts)}")
        whole = isinstance(counts, tuple) and all(is_int(one) and one > 0 for one in counts)
        if not whole or len(counts) != len(self.patterns):
            self.refuse('heads', f'a number of heads for each of its {len(self.patterns)} patterns')

    @property
    def whole(self) -> Pattern:
        """Return the union of the patterns."""
        return self.patterns[0] if len(self.patterns) == 1 else Union(self.patterns)

    def of_layer(self, layer: int) -> Pattern:
        if self.how == 'interleave':
            return self.patterns[layer % len(self.patterns)].of_layer(layer)
        own: Any = super().of_layer(layer)
        return own if self.how == 'heads' else own.whole

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        shares = self.shares(heads) if self.how == 'heads' else (heads,) * len(self.patterns)
        tables = [one.drawn(own, layer) for one, own in zip(self.patterns, shares, strict=True)]
        return only_table(self.patterns, tables)

    def shares(self, heads: int) -> tuple[int, ...]:
        """Return the number of heads of each pattern."""
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
            raise ConfigError(f'`patterns` of Mix must be no more than the {heads} heads, got {p}')
        return tuple([heads // p + (at < heads % p) for at in range(p)])

    def of_head(self, head: int, heads: int) -> Pattern:
        if self.how != 'heads':
            return self.of_layer(0).of_head(head, heads)
        for one, count in zip(self.patterns, self.shares(heads), strict=True):
            if head < count:
                return one.of_head(head, count)
            head -= count
        raise AssertionError('the sum of the shares is the number of heads')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.whole.visible(i, j, marks)

    def keys_bound(self, n: int, causal: bool) -> int:
        bounds = [one.keys_bound(n, causal) for one in self.patterns]
        return max(bounds) if self.how != 'merge' else min(n, sum(bounds))


def check_sizes(patterns: Sequence[Pattern]) -> None:
    """Raise ConfigError if patterns need sequences of different lengths."""
    sizes = sorted({one.size for one in patterns if one.size is not None})
    if len(sizes) > 1:
        raise ConfigError(f'`image` got {" and ".join(map(str, sizes))} pixels in patterns of one sequence')


def only_table(patterns: Sequence[Pattern], tables: Sequence[Tensor | None]) -> Tensor | None:
    """Return the table that one of the patterns has drawn."""
    known = [table for table in tables if table is not None]
    if len(known) > 1:
        kinds = [type(one).__name__ for one, table in zip(patterns, tables, strict=True) if table is not None]
        raise ConfigError(f'`sparse_pattern` got {" and ".join(kinds)}: one pattern at random is stored, not more')
    return known[0] if known else None


# Forms of a pattern.


def is_pattern(value: Any) -> bool:
    """Return True for a pattern, a dict or a name, which `as_pattern` accepts."""
    return isinstance(value, (Pattern, str, Mapping))


def as_pattern(value: Any, flag: str = 'sparse_pattern') -> Pattern:
    """Return a pattern from itself, its form in a config, or a name. `flag` is the keyword, for errors.

    {'pattern': 'sliding', 'window': 256},  {'union': [..]},  {'intersection': [..]},  'sliding'
    """
    if isinstance(value, Pattern):
        return value
    if isinstance(value, str):
        if value not in NAMED:
            known = ', '.join(map(repr, NAMED))
            hint = did_you_mean(value, NAMED) or f': its names are {known}'
            raise ConfigError(f'`{flag}` must be a pattern, got {value!r}{hint}')
        return NAMED[value]
    if not isinstance(value, Mapping):
        raise ConfigError(f'`{flag}` must be a pattern, its dict, or a name, got {format_value(value)}')
    rest = {str(name): one for name, one in value.items()}
    for several in (Union, Intersection):
        if rest.keys() == {several.name} and isinstance(rest[several.name], (list, tuple)):
            return several(tuple(map(as_pattern, rest[several.name])))
    name = rest.pop('pattern', None)
    if not isinstance(name, str) or name not in PATTERNS:
        hint = did_you_mean(str(name), PATTERNS) or f': there are {", ".join(map(repr, PATTERNS))}'
        raise ConfigError(f'`pattern` must be the name of a pattern, got {name!r}{hint}')
    kind = PATTERNS[name]
    fields = [field.name for field in dataclasses.fields(kind)]
    unknown = next((one for one in rest if one not in fields), None)
    if unknown is not None:
        raise ConfigError(f'unknown field `{unknown}` of {kind.__name__}{did_you_mean(unknown, fields)}')
    try:
        return kind(**rest)
    except TypeError:
        missing = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
        raise ConfigError(f'{kind.__name__} must have {", ".join(missing)}, got {format_value(rest)}') from None


def check_known(pattern: Pattern, flag: str = 'sparse_pattern') -> None:
    """Raise ConfigError for a pattern that a config cannot hold: its class has no name there."""
    for one in pattern.parts():
        check_known(one, flag)
    kind = type(pattern)
    if kind not in (Union, Intersection) and PATTERNS.get(kind.name) is not kind:
        raise ConfigError(
            f'`{flag}` must be of a class with a name in configs, got {kind.__name__}: '
            f'decorate it with `@pattern(name)`'
        )


def ceil_div(n: int, size: int) -> int:
    """Return n / size, rounded up."""
    return -(-n // size)

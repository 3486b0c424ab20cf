"""States that features keep of earlier tokens besides keys and values, and how a call passes them on.

    class Mean(AttentionFeature):
        states = {'sums': RecurrentState()}

        def layer_output(self, out, call):
            state = call.state('sums')
            ...  state.value, None at the beginning;  state.keep(new)

The kinds are declared in `flags/declared.py`. Vectors of all tokens are a `Buffer`; the other states are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from x_transformers.core.buffers import Buffer, CachedState, Derived
from x_transformers.core.files import is_count
from x_transformers.flags.checks import Maybe
from x_transformers.flags.declared import Noted, OfContext, PerToken, RecurrentState, Remembered, Ring
from x_transformers.flags.renamed import HasOldNames
from x_transformers.flags.resolved import did_you_mean


class RecurrentValue(CachedState):
    """Tree of tensors after `length` tokens, and the one before the last call, as `(value, length)`, if known."""

    __slots__ = ('batch_first', 'before', 'length', 'value')
    kind = 'running'

    def __init__(
        self, value: Any, length: int, before: Maybe[tuple[Any, int]] = None, batch_first: bool = True
    ) -> None:
        self.value, self.length, self.before, self.batch_first = value, length, before, batch_first

    @property
    def batch(self) -> int | None:
        tensors = _get_tensors(self.value) if self.batch_first else []
        return tensors[0].shape[0] if tensors else None

    def cannot(self, operation: str, count: int = 0) -> str | None:
        known = [*(() if self.before is None else (self.before[1],)), self.length]
        if operation == 'crop' and 0 < self.length - count and self.length - count not in known:
            return f'which is known after {" and ".join(map(str, known))} tokens only'
        if operation == 'keep_last' and count < self.length:
            return 'which has summed up the tokens that leave'
        if operation in ('reorder', 'expand') and not self.batch_first:
            return 'which has no batch dimension'
        if operation in ('caught_up', 'shift'):
            return 'which cannot take over tokens that it has not read'
        return None

    def map(self, function: Callable[[Tensor], Tensor]) -> RecurrentValue:
        before = None if self.before is None else (map_tensors(function, self.before[0]), self.before[1])
        return RecurrentValue(map_tensors(function, self.value), self.length, before, self.batch_first)

    def crop(self, count: int) -> RecurrentValue:
        left = max(self.length - count, 0)
        if left == self.length:
            return self
        return RecurrentValue(None if left == 0 else self.before[0], left, None, self.batch_first)

    def keep_last(self, count: int) -> RecurrentValue:
        return self

    def content(self) -> dict[str, Any]:
        held = {'value': self.value, 'length': self.length, 'batch_first': self.batch_first}
        return {'kind': self.kind, **held, 'before': None if self.before is None else list(self.before)}


class RecentVectors(CachedState):
    """Vectors of the last `width` tokens of `length`, and of as many before, so that tokens can be removed."""

    __slots__ = ('held', 'length', 'width')
    kind = 'ring'

    def __init__(self, held: Buffer, width: int, length: int) -> None:
        self.held, self.width, self.length = held, width, length

    @property
    def batch(self) -> int:
        return self.held.batch

    @property
    def vectors(self) -> Tensor:
        return self.held.keep_last(self.width).tensor

    def cannot(self, operation: str, count: int = 0) -> str | None:
        left = self.length - count
        if operation == 'crop' and self.held.length - count < min(left, self.width):
            return (
                f'which holds {self.held.length} of {self.length} tokens, of which the last {self.width} must be left'
            )
        if operation == 'keep_last' and count < min(self.width, self.length):
            return f'of which the last {min(self.width, self.length)} tokens must stay'
        return 'whose rows stay where they are' if operation == 'shift' else None

    def map(self, function: Callable[[Tensor], Tensor]) -> RecentVectors:
        return RecentVectors(self.held.map(function), self.width, self.length)

    def append(self, new: Tensor) -> RecentVectors:
        count, most = new.shape[-2], 2 * self.width
        whole = Buffer(new[..., -most:, :].clone()) if count >= most else self.held.append(new).keep_last(most)
        return RecentVectors(whole, self.width, self.length + count)

    def crop(self, count: int) -> RecentVectors:
        return RecentVectors(self.held.crop(count), self.width, max(self.length - count, 0))

    def keep_last(self, count: int) -> RecentVectors:
        return RecentVectors(self.held.keep_last(count), self.width, min(self.length, count))

    def append_from(self, other: RecentVectors, new: int) -> RecentVectors:
        return self.append(other.held.keep_last(new).tensor)

    def buffers(self) -> tuple[Buffer, ...]:
        return (self.held,)

    def content(self) -> dict[str, Any]:
        rows = self.held.tensor.contiguous()
        return {'kind': self.kind, 'rows': rows, 'width': self.width, 'length': self.length}


class NoteValue(CachedState):
    """Tree of tensors without axes of batch and tokens."""

    __slots__ = ('value',)
    kind = 'noted'
    length, batch = 0, None

    def __init__(self, value: Any) -> None:
        self.value = value

    def keep_unchanged(self, *_: Any, **__: Any) -> NoteValue:
        return self

    map = each = crop = keep_last = append_from = keep_unchanged

    def content(self) -> dict[str, Any]:
        return {'kind': self.kind, 'value': self.value}


class ContextValue(NoteValue):
    """Tree of tensors, batch first, without an axis of tokens."""

    __slots__ = ()
    kind = 'context'

    @property
    def batch(self) -> int:
        return _get_tensors(self.value)[0].shape[0]

    def map(self, function: Callable[[Tensor], Tensor]) -> ContextValue:
        return ContextValue(map_tensors(function, self.value))


def _get_tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return tree_map_only(Tensor, function, tree)


# Files.


def is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3


def _is_before(value: Any) -> bool:
    return value is None or (isinstance(value, list) and len(value) == 2 and is_count(value[1]))


def _has_entries(value: Any) -> bool:
    return True


FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    'rows': {'rows': is_rows},
    'ring': {'rows': is_rows, 'width': lambda width: is_count(width) and width > 0, 'length': is_count},
    'running': {
        'value': _has_entries,
        'length': is_count,
        'before': _is_before,
        'batch_first': lambda b: type(b) is bool,
    },
    'noted': {'value': _has_entries},
    'context': {'value': lambda value: len(_get_tensors(value)) > 0},
}


def is_content(value: Any) -> bool:
    """Return True if a value has the form of `CachedState.content`."""
    kind = value.get('kind') if isinstance(value, dict) else None
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    return fields is not None and {*value} == {'kind', *fields} and all(test(value[n]) for n, test in fields.items())


def get_state(content: dict[str, Any]) -> CachedState:
    """Return the state with a content of `CachedState.content`."""
    kind, held = content['kind'], {name: value for name, value in content.items() if name != 'kind'}
    if kind == 'rows':
        return Buffer(held['rows'])
    if kind == 'ring':
        return RecentVectors(Buffer(held['rows']), held['width'], held['length'])
    if kind == 'running':
        return RecurrentValue(**{**held, 'before': None if held['before'] is None else tuple(held['before'])})
    return (ContextValue if kind == 'context' else NoteValue)(**held)


# Handles of features.


class Handle(HasOldNames):
    """State of a feature in one call: that of the past, and the new one."""

    old_names: ClassVar[dict[str, str]] = {
        'known': 'checked_past',
        'put': 'store',
        'rows': 'vectors',
    }

    __slots__ = ('call', 'declared', 'key', 'past')

    def __init__(self, call: HasStates, declared: Any, key: str, past: Any) -> None:
        self.call, self.declared, self.key, self.past = call, declared, key, past

    @property
    def checked_past(self) -> Any:
        """Return the state; None at the beginning.  Raises ValueError if it must be there, and is not."""
        past, batch = self.past, self.call.batch
        if past is None and self.call.continues:
            raise ValueError(f'`cache` holds no {self.key}: it is of another model, or its keys were cut by hand')
        own = None if past is None or batch is None else past.batch
        if own is not None and own != batch:
            raise ValueError(f'`cache` holds {own} rows of {self.key}, the input has {batch}')
        return past

    def store(self, state: Any) -> Any:
        """Store a state for the next call."""
        self.call.new_states[self.key] = state
        return state


class TokenHandle(Handle):
    """Handle of a `PerToken` state."""

    __slots__ = ()

    @property
    def vectors(self) -> Tensor | None:
        """Return the vectors of earlier tokens, None if there are none."""
        known = self.checked_past
        return None if known is None or known.length == 0 else known.tensor

    def begin(self, rows: Tensor) -> Buffer:
        """Store vectors in place of those of earlier tokens."""
        held = Derived(rows) if self.declared.derived else Buffer(rows)
        self.call.new_states[self.key] = held
        return held

    def append(self, rows: Tensor) -> Tensor:
        """Append vectors of new tokens, (b, ..., n, d), after those of memories, and return those of all tokens."""
        front, known = self.call.num_memories, self.checked_past
        new = rows if front == 0 else rows[..., front:, :]
        if known is None:
            held = self.begin(new)
        else:
            held = self.call.new_states[self.key] = known.append(new)
        return held.tensor if front == 0 else torch.cat((rows[..., :front, :], held.tensor), dim=-2)


class RingHandle(Handle):
    """Handle of a `Ring` state."""

    __slots__ = ()

    @property
    def vectors(self) -> Tensor | None:
        """Return the vectors of the last tokens, at most `width`; None if there are none."""
        known = self.checked_past
        return None if known is None or known.length == 0 else known.vectors

    def append(self, rows: Tensor) -> Tensor:
        """Append vectors of new tokens, after those of memories, and return these and the last `width` before them."""
        front, known, width = self.call.num_memories, self.vectors, self.declared.width
        new = rows if front == 0 else rows[..., front:, :]
        past = RecentVectors(Buffer(new[..., :0, :]), width, 0) if known is None else self.past
        self.call.new_states[self.key] = past.append(new)
        if known is not None:
            rows = torch.cat((*([rows[..., :front, :]] if front else []), known, new), dim=-2)
        return rows[..., -(width + new.shape[-2]) :, :]


class RecurrentHandle(Handle):
    """Handle of a `RecurrentState`."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """Return the state, None at the beginning. Do not change it in place: other sequences may continue from it."""
        known = self.checked_past
        return None if known is None else known.value

    def check(self, tree: Any, batch_first: bool = True) -> None:
        tensors, batch = _get_tensors(tree), self.call.batch
        if batch is None and tensors and tensors[0].ndim:
            batch = tensors[0].shape[0]
        if not tensors or (batch_first and any(t.ndim == 0 or t.shape[0] != batch for t in tensors)):
            shapes = ', '.join(str(tuple(t.shape)) for t in tensors) or type(tree).__name__
            rows = 'with the batch first' if batch is None else f'whose first axis is the batch, {batch}'
            raise ValueError(f'`{self.key}` must be tensors {rows}, got {shapes}')

    def keep(self, tree: Any) -> None:
        """Store a tree of tensors for the next call."""
        self.check(tree, self.declared.batch_first)
        past = self.checked_past
        length = 0 if past is None else past.length
        before = (None if past is None else past.value, length)
        self.store(RecurrentValue(tree, length + self.call.count, before, self.declared.batch_first))


class ContextHandle(RecurrentHandle):
    """Handle of an `OfContext` state."""

    __slots__ = ()

    def keep(self, tree: Any) -> None:
        self.check(tree)
        self.store(ContextValue(tree))


class NoteHandle(Handle):
    """Handle of a `Noted` state."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        return None if self.past is None else self.past.value

    def keep(self, tree: Any) -> None:
        self.store(NoteValue(tree))


HANDLES: dict[type[Remembered], type[Handle]] = {
    PerToken: TokenHandle,
    Ring: RingHandle,
    RecurrentState: RecurrentHandle,
    Noted: NoteHandle,
    OfContext: ContextHandle,
}


class HasStates:
    """Mixin of the calls of every level, for features with a state.

    `declared` are the kinds of the states of its module, by name, `count` the number of new tokens, `num_memories` the
    number of memories before them, and `batch` the batch size, if it is known. `scope` separates the states of modules
    in one table.
    """

    num_memories: ClassVar[int] = 0
    batch: Any = None
    scope: Any = ''

    if TYPE_CHECKING:
        declared: Mapping[str, Remembered]
        old_states: Mapping[str, CachedState] | None
        new_states: dict[str, CachedState]
        continues: bool
        count: int

    def state(self, name: str, at: int | None = None) -> Any:
        """Return the state that a feature of this module has declared under `name`.

        `at` is a number that separates several of them, such as the step of a layer.
        """
        declared = self.declared.get(name)
        if declared is None:
            raise ValueError(
                f'`state` must be a name in `states` of a feature of this module, got {name!r}'
                f'{did_you_mean(name, self.declared)}'
            )
        key = self.scope + (name if at is None else f'{at}.{name}')
        old = self.old_states
        return HANDLES[type(declared)](self, declared, key, None if old is None else old.get(key))

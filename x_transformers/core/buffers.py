"""Buffers that grow with the tokens: keys, values and states of features of earlier calls.

Appending writes into memory allocated ahead, without a copy of the past. Buffers are values: two continuations of one
buffer are independent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from x_transformers.core.modes import is_exporting
from x_transformers.core.window import AttentionWindow
from x_transformers.flags.checks import Maybe

CLAIMING = threading.Lock()


class Storage:
    """Memory shared by buffers that continue one another, written up to `filled`."""

    __slots__ = ('filled', 'tensor')

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor, self.filled = tensor, filled

    def claim_tokens(self, start: int, count: int) -> bool:
        """Return True if `count` tokens may be written from `start` on: for one caller only, also among threads."""
        if torch.compiler.is_compiling():
            return self.claim(start, start + count)
        with CLAIMING:
            return self.claim(start, start + count)

    def claim(self, start: int, end: int) -> bool:
        free = self.filled == start and end <= self.tensor.shape[-2] and not _is_frozen(self.tensor)
        if free:
            self.filled = end
        return free


class CachedState:
    """Named state in a cache. Immutable: each operation returns a new one.

    length   number of its tokens
    batch    batch size, None if it is not known
    kind     name in messages and files
    """

    __slots__ = ()
    kind: ClassVar[str] = ''
    length: int
    batch: int | None

    def cannot(self, operation: str, count: int = 0) -> str | None:
        """Return the reason why an operation of the cache would not be exact, or None if it is."""
        return None

    def map(self, function: Callable[[Tensor], Tensor]) -> CachedState:
        """Apply `function` to all tensors, batch first."""
        raise NotImplementedError

    def each(self, function: Callable[[Buffer], Buffer]) -> CachedState:
        """Apply `function` to the buffer of vectors of tokens, if there is one."""
        raise NotImplementedError

    def crop(self, count: int) -> CachedState:
        """Return the state without the last `count` tokens."""
        raise NotImplementedError

    def keep_last(self, count: int) -> CachedState:
        """Return the state with the last `count` tokens only."""
        raise NotImplementedError

    def append_from(self, other: CachedState, new: int) -> CachedState:
        """Return the state followed by the last `new` tokens of another."""
        raise NotImplementedError

    def buffers(self) -> tuple[Buffer, ...]:
        return ()

    def content(self) -> dict[str, Any]:
        """Return the state in plain containers, for a file."""
        raise NotImplementedError


class Buffer(CachedState):
    """Vectors of tokens, (..., n, d), that grow at the end, from `start` of the storage on."""

    __slots__ = ('length', 'start', 'storage')
    kind = 'rows'
    num_evicted: int = 0  # First tokens whose vectors were dropped.

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.start, self.length = Storage(tensor, tensor.shape[-2]), 0, tensor.shape[-2]

    @property
    def tensor(self) -> Tensor:
        return self.storage.tensor.narrow(-2, self.start, self.length)

    def part(self, start: int, length: int) -> Buffer:
        """Return a range of tokens in the same memory."""
        new = object.__new__(type(self))
        new.storage, new.start, new.length = self.storage, self.start + start, length
        return new

    def append(self, new: Tensor) -> Buffer:
        """Return this buffer followed by `new` (..., m, d), in the same memory if no other buffer has continued it."""
        old, count = self.storage.tensor, new.shape[-2]
        if count == 0:
            return self
        if is_exporting() or (torch.is_grad_enabled() and (new.requires_grad or old.requires_grad)):
            return self.like(torch.cat((self.tensor, new), dim=-2))
        fits = self.storage.claim_tokens(self.start + self.length, count)
        grown = self.part(0, self.length) if fits else self.copy_to_memory(2 * (self.length + count))
        end = grown.start + grown.length
        grown.storage.tensor.narrow(-2, end, count).copy_(new)
        grown.storage.filled = end + count
        grown.length += count
        return grown

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes without tokens, (..., d)."""
        *leading, _, width = self.storage.tensor.shape
        return (*leading, width)

    @property
    def batch(self) -> int:
        return self.storage.tensor.shape[0]

    def like(self, tensor: Tensor) -> Buffer:
        """Return a buffer of this kind with other vectors."""
        return type(self)(tensor)

    def copy_to_memory(self, capacity: int) -> Buffer:
        """Return a copy in new memory for `capacity` tokens."""
        *leading, _, width = self.storage.tensor.shape
        new = self.like(self.storage.tensor.new_empty(*leading, capacity, width))
        new.tensor.narrow(-2, 0, self.length).copy_(self.tensor)
        new.storage.filled = new.length = self.length
        return new

    def map(self, function: Callable[[Tensor], Tensor]) -> Buffer:
        return self.like(function(self.tensor))

    def each(self, function: Callable[[Buffer], Buffer]) -> Buffer:
        return function(self)

    def crop(self, count: int) -> Buffer:
        return self.part(0, max(self.length - count, 0))

    def keep_last(self, count: int) -> Buffer:
        kept = min(count, self.length)
        return self.part(self.length - kept, kept)

    def skip_first(self, count: int) -> Buffer:
        """Return the buffer without the first `count` tokens, from which the others then count."""
        return self.part(count, self.length - count)

    def evict_first(self, count: int) -> Buffer:
        """Drop the first `count` vectors, if earlier ones were dropped."""
        return self

    def append_from(self, other: Buffer, new: int) -> Buffer:
        return self.append(other.tensor[..., other.length - new :, :])

    def buffers(self) -> tuple[Buffer, ...]:
        return (self,)

    def content(self) -> dict[str, Any]:
        return {'kind': self.kind, 'rows': self.tensor.contiguous()}


class Derived(Buffer):
    """Vectors computed from other states: they are left out in files, and if those change."""

    __slots__ = ()


class EvictingBuffer(Buffer):
    """Vectors of which later queries need only a `window`: those of the first `num_evicted` tokens were dropped."""

    __slots__ = ('num_evicted', 'window')

    def __init__(self, tensor: Tensor, num_evicted: int, window: AttentionWindow) -> None:
        super().__init__(tensor)
        self.num_evicted, self.window = num_evicted, window

    @classmethod
    def of(cls, rows: Buffer, num_evicted: int, window: AttentionWindow) -> EvictingBuffer:
        """Return a buffer on the same memory."""
        new = object.__new__(cls)
        new.storage, new.start, new.length = rows.storage, rows.start, rows.length
        new.num_evicted, new.window = num_evicted, window
        return new

    def like(self, tensor: Tensor) -> EvictingBuffer:
        return EvictingBuffer(tensor, self.num_evicted, self.window)

    def part(self, start: int, length: int) -> Any:
        new: Any = super().part(start, length)
        new.num_evicted, new.window = self.num_evicted, self.window
        return new

    def trim(self) -> EvictingBuffer:
        """Drop vectors beyond the window, except some that are kept so that tokens can be removed."""
        left = self.length - self.window.kept
        if left <= 0:
            return self
        kept = self.drop_first(left)
        held = kept.storage.tensor
        if torch.compiler.is_compiling() or held.requires_grad or held.shape[-2] <= 4 * kept.length:
            return kept
        return cast('EvictingBuffer', kept.copy_to_memory(2 * kept.length))  # This frees the larger memory.

    def drop_first(self, count: int) -> EvictingBuffer:
        new = self.part(count, self.length - count)
        new.num_evicted += count
        return new

    def evict_first(self, count: int) -> EvictingBuffer:
        return self.drop_first(count) if self.num_evicted else self

    def skip_first(self, count: int) -> EvictingBuffer:
        skipped = max(count - self.num_evicted, 0)
        new = self.part(skipped, self.length - skipped)
        new.num_evicted = max(self.num_evicted - count, 0)
        return new

    def cannot(self, operation: str, count: int = 0) -> str | None:
        tokens = self.num_evicted + self.length - (count if operation == 'crop' else 0)
        if operation not in ('crop', 'shift') or self.num_evicted == 0 or tokens == 0:
            return None
        if self.length - count >= min(tokens, self.window.size):
            return None
        return (
            f'of which `{self.window.name}` has left the last {self.length} of {self.num_evicted + self.length} '
            f'tokens: {min(tokens, self.window.size)} must stay for those that follow'
        )

    def crop(self, count: int) -> EvictingBuffer:
        new = self.part(0, max(self.length - count, 0))
        new.num_evicted = self.num_evicted if count < self.num_evicted + self.length else 0
        return new

    def keep_last(self, count: int) -> EvictingBuffer:
        kept = min(count, self.length)
        new = self.part(self.length - kept, kept)
        new.num_evicted = min(count, self.num_evicted + self.length) - kept
        return new


def _is_frozen(t: Tensor) -> bool:
    """Return True if a tensor cannot be written to: it was made in inference mode, which is off now."""
    return not torch.compiler.is_compiling() and t.is_inference() and not torch.is_inference_mode_enabled()


class KeysValues:
    """Past of an attention layer: keys and values of all tokens (values may be None), and `states` of its features.

    The keys may be stored with a change by the feature `changed_by`, which `changed_by.restored(keys, states)` undoes.
    """

    __slots__ = ('buffers', 'changed_by', 'states')

    def __init__(
        self, buffers: tuple[Maybe[Buffer], ...], states: dict[str, CachedState] | None = None, changed_by: Any = None
    ) -> None:
        self.buffers, self.states, self.changed_by = buffers, states or {}, changed_by

    def __reduce__(self) -> Any:
        own = self.plain()  # The feature would keep its layer alive.
        return KeysValues, (own.buffers, own.states)

    @classmethod
    def of(cls, pair: Any) -> KeysValues | None:
        """Return the past with a pair of tensors of the user."""
        if pair is None or isinstance(pair, KeysValues):
            return pair
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f'`cached_kv` must be a pair of tensors (b k n d), got {type(pair).__name__}')
        return cls(tuple(None if t is None else Buffer(t) for t in pair))

    @property
    def pair(self) -> tuple[Maybe[Tensor], ...]:
        k, v = self.buffers
        return None if k is None else k.tensor, None if v is None else v.tensor

    @property
    def length(self) -> int:
        return self.buffers[0].length + self.buffers[0].num_evicted

    @property
    def num_evicted(self) -> int:
        """Return the number of tokens whose keys and values were dropped."""
        return self.buffers[0].num_evicted

    def limit_window(self, window: AttentionWindow | None) -> KeysValues:
        """Set the window beyond which keys and values may be dropped; None for no limit."""
        if window is None and not isinstance(self.buffers[0], EvictingBuffer):
            return self
        if window is None:
            buffers = tuple(None if b is None else Buffer.part(b, 0, b.length) for b in self.buffers)
        else:
            buffers = tuple(None if b is None else EvictingBuffer.of(b, b.num_evicted, window) for b in self.buffers)
        return KeysValues(buffers, self.states, self.changed_by)

    def trim(self) -> KeysValues:
        """Drop keys and values beyond the window."""
        if not isinstance(self.buffers[0], EvictingBuffer):
            return self
        buffers = tuple(b.trim() if isinstance(b, EvictingBuffer) else b for b in self.buffers)
        return KeysValues(buffers, self.states, self.changed_by)

    def append(self, k: Maybe[Tensor], v: Maybe[Tensor]) -> KeysValues:
        old_k, old_v = self.buffers
        buffers = None if old_k is None else old_k.append(k), None if old_v is None else old_v.append(v)
        return KeysValues(buffers, changed_by=self.changed_by)

    def each(self, function: Callable[[Any], Any], keys: bool = True) -> KeysValues:
        """Apply `function` to all states, and to keys and values if `keys` is True."""
        states = {name: function(state) for name, state in self.states.items()}
        buffers = tuple(None if b is None else function(b) for b in self.buffers) if keys else self.buffers
        return KeysValues(buffers, states, self.changed_by)

    def plain(self) -> KeysValues:
        """Return the past with the keys before a feature changed them."""
        if self.changed_by is None:
            return self
        k = self.changed_by.restored(self.buffers[0].tensor, self.states)
        return KeysValues((self.buffers[0].like(k), *self.buffers[1:]), drop_derived(self.states))


def drop_derived(states: Mapping[str, CachedState]) -> dict[str, CachedState]:
    """Return the states without derived ones."""
    return {name: state for name, state in states.items() if not isinstance(state, Derived)}

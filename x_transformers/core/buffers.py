"""Buffers that grow with the tokens: keys, values and states of features of earlier calls.

Appending writes into memory allocated ahead, so a token costs no copy of its past. Buffers are values: continuing
twice from the same one gives two independent continuations.
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
    """Memory shared by all buffers that continue one another; `filled` tells how far it has been written."""

    __slots__ = ('filled', 'tensor')

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor, self.filled = tensor, filled

    def takes(self, start: int, count: int) -> bool:
        """Return True if `count` tokens may be written from `start` on: by one caller only, also among threads."""
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
    """One named state in a cache. Immutable: each operation returns a new one.

    length   the tokens that it has seen
    batch    its rows, None if it does not know them
    kind     what it is called in messages and files
    """

    __slots__ = ()
    kind: ClassVar[str] = ''
    length: int
    batch: int | None

    def cannot(self, operation: str, count: int = 0) -> str | None:
        """Why an operation of the cache would not be exact, or None if it is."""
        return None

    def map(self, function: Callable[[Tensor], Tensor]) -> CachedState:
        """With `function` applied to all tensors, whose first axis is the batch."""
        raise NotImplementedError

    def each(self, function: Callable[[Buffer], Buffer]) -> CachedState:
        """With `function` applied to its rows, for what has a row for each token."""
        raise NotImplementedError

    def crop(self, count: int) -> CachedState:
        """Without the last `count` tokens."""
        raise NotImplementedError

    def keep_last(self, count: int) -> CachedState:
        """With the last `count` tokens alone."""
        raise NotImplementedError

    def append_from(self, other: CachedState, new: int) -> CachedState:
        """Followed by the last `new` tokens of another."""
        raise NotImplementedError

    def buffers(self) -> tuple[Buffer, ...]:
        return ()

    def content(self) -> dict[str, Any]:
        """In plain containers, for a file."""
        raise NotImplementedError


class Buffer(CachedState):
    """Rows of tokens, (..., n, d), that grow at the end. The tokens start at `start` of the storage."""

    __slots__ = ('length', 'start', 'storage')
    kind = 'rows'
    num_evicted: int = 0  # tokens in front whose rows have left

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.start, self.length = Storage(tensor, tensor.shape[-2]), 0, tensor.shape[-2]

    @property
    def tensor(self) -> Tensor:
        return self.storage.tensor.narrow(-2, self.start, self.length)

    def part(self, start: int, length: int) -> Buffer:
        """A window on the same memory."""
        new = object.__new__(Buffer)
        new.storage, new.start, new.length = self.storage, self.start + start, length
        return new

    def append(self, new: Tensor) -> Buffer:
        """This buffer followed by `new` (..., m, d), in place where nobody else has continued it."""
        old, count = self.storage.tensor, new.shape[-2]
        if count == 0:
            return self
        if is_exporting() or (torch.is_grad_enabled() and (new.requires_grad or old.requires_grad)):
            return self.like(torch.cat((self.tensor, new), dim=-2))
        fits = self.storage.takes(self.start + self.length, count)
        grown = self.part(0, self.length) if fits else self.copy_to_memory(2 * (self.length + count))
        end = grown.start + grown.length
        grown.storage.tensor.narrow(-2, end, count).copy_(new)
        grown.storage.filled = end + count
        grown.length += count
        return grown

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of a row, (... d)."""
        *leading, _, width = self.storage.tensor.shape
        return (*leading, width)

    @property
    def batch(self) -> int:
        return self.storage.tensor.shape[0]

    def like(self, tensor: Tensor) -> Buffer:
        """Other rows of this kind."""
        return Buffer(tensor)

    def copy_to_memory(self, capacity: int) -> Buffer:
        """A copy in memory of its own, with room for `capacity` tokens."""
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
        """Without the first `count` tokens, so that the others are counted from there."""
        return self.part(count, self.length - count)

    def evict_first(self, count: int) -> Buffer:
        """Where the first rows have left, without the first `count` of those that are held."""
        return self

    def append_from(self, other: Buffer, new: int) -> Buffer:
        return self.append(other.tensor[..., other.length - new :, :])

    def buffers(self) -> tuple[Buffer, ...]:
        return (self,)

    def content(self) -> dict[str, Any]:
        return {'kind': self.kind, 'rows': self.tensor.contiguous()}


class Derived(Buffer):
    """Rows that follow from what else is held: they are left out where that changes, and in files."""

    __slots__ = ()

    def like(self, tensor: Tensor) -> Derived:
        return Derived(tensor)

    def part(self, start: int, length: int) -> Derived:
        new = object.__new__(Derived)
        new.storage, new.start, new.length = self.storage, self.start + start, length
        return new


class EvictingBuffer(Buffer):
    """Rows of which later queries see none but the last ones, `sight`: the first `gone` tokens have left theirs."""

    __slots__ = ('num_evicted', 'window')

    def __init__(self, tensor: Tensor, num_evicted: int, window: AttentionWindow) -> None:
        super().__init__(tensor)
        self.num_evicted, self.window = num_evicted, window

    @classmethod
    def of(cls, rows: Buffer, num_evicted: int, window: AttentionWindow) -> EvictingBuffer:
        """On the same memory."""
        new = object.__new__(cls)
        new.storage, new.start, new.length, new.num_evicted, new.window = (
            rows.storage,
            rows.start,
            rows.length,
            num_evicted,
            window,
        )
        return new

    def like(self, tensor: Tensor) -> EvictingBuffer:
        return EvictingBuffer(tensor, self.num_evicted, self.window)

    def part(self, start: int, length: int) -> EvictingBuffer:
        return EvictingBuffer.of(super().part(start, length), self.num_evicted, self.window)

    def trimmed(self) -> EvictingBuffer:
        """Without what cannot be seen, but for some rows, so that tokens can be taken back."""
        left = self.length - self.window.kept
        if left <= 0:
            return self
        kept = self.drop_first(left)
        held = kept.storage.tensor
        if torch.compiler.is_compiling() or held.requires_grad or held.shape[-2] <= 4 * kept.length:
            return kept
        return cast('EvictingBuffer', kept.copy_to_memory(2 * kept.length))  # lets go of memory that holds much else

    def drop_first(self, count: int) -> EvictingBuffer:
        new = self.part(count, self.length - count)
        new.num_evicted += count
        return new

    def evict_first(self, count: int) -> EvictingBuffer:
        return self.drop_first(count) if self.num_evicted else self

    def skip_first(self, count: int) -> EvictingBuffer:
        new = self.part(max(count - self.num_evicted, 0), self.length - max(count - self.num_evicted, 0))
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
            'tokens: '
            f'{min(tokens, self.window.size)} must stay for those that follow'
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
    """Return True if a tensor cannot be written to, made in inference mode and met outside of it."""
    return not torch.compiler.is_compiling() and t.is_inference() and not torch.is_inference_mode_enabled()


class KeysValues:
    """The past of one attention layer, for all tokens so far: its keys and values, of which the latter may be absent
    (None), and the `states` that its features remember beside them, by name.

    The keys may be kept as the kernel multiplies them. Then `changed_by` is the feature that has changed them, and
    `changed_by.restored(keys, states)` gives them as they were.
    """

    __slots__ = ('buffers', 'changed_by', 'states')

    def __init__(
        self, buffers: tuple[Maybe[Buffer], ...], states: dict[str, CachedState] | None = None, changed_by: Any = None
    ) -> None:
        self.buffers, self.states, self.changed_by = buffers, states or {}, changed_by

    def __reduce__(self) -> Any:
        own = self.plain()  # without the feature, which holds its layer
        return KeysValues, (own.buffers, own.states)

    @classmethod
    def of(cls, pair: Any) -> KeysValues | None:
        """From a pair of tensors, as users hold it."""
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
        """Of how many tokens keys and values have left."""
        return self.buffers[0].num_evicted

    def limit_window(self, window: AttentionWindow | None) -> KeysValues:
        """With keys and values that may leave where later queries have no more than this in sight."""
        if window is None and not isinstance(self.buffers[0], EvictingBuffer):
            return self
        if window is None:
            buffers = tuple(None if b is None else Buffer.part(b, 0, b.length) for b in self.buffers)
        else:
            buffers = tuple(None if b is None else EvictingBuffer.of(b, b.num_evicted, window) for b in self.buffers)
        return KeysValues(buffers, self.states, self.changed_by)

    def trimmed(self) -> KeysValues:
        """Without what cannot be seen any more."""
        if not isinstance(self.buffers[0], EvictingBuffer):
            return self
        buffers = tuple(b.trimmed() if isinstance(b, EvictingBuffer) else b for b in self.buffers)
        return KeysValues(buffers, self.states, self.changed_by)

    def append(self, k: Maybe[Tensor], v: Maybe[Tensor]) -> KeysValues:
        old_k, old_v = self.buffers
        buffers = None if old_k is None else old_k.append(k), None if old_v is None else old_v.append(v)
        return KeysValues(buffers, changed_by=self.changed_by)

    def each(self, function: Callable[[Any], Any], keys: bool = True) -> KeysValues:
        """With `function` applied to every state, and to what is in `buffers` unless `keys` says no."""
        states = {name: function(state) for name, state in self.states.items()}
        buffers = tuple(None if b is None else function(b) for b in self.buffers) if keys else self.buffers
        return KeysValues(buffers, states, self.changed_by)

    def plain(self) -> KeysValues:
        """With the keys as they were before a feature changed them."""
        if self.changed_by is None:
            return self
        k = self.changed_by.restored(self.buffers[0].tensor, self.states)
        return KeysValues((self.buffers[0].like(k), *self.buffers[1:]), drop_derived(self.states))


def drop_derived(states: Mapping[str, CachedState]) -> dict[str, CachedState]:
    """Without those that are derived."""
    return {name: state for name, state in states.items() if not isinstance(state, Derived)}

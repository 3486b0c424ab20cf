"""The engine of generation: a reader that keeps the cache of one net, and the states that grow sequences with it.

Wrappers around models of tokens, of vectors and of several streams all read through `Reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from x_transformers.flags import warn_once
from x_transformers.sampling import accurate, contrastive_decode_fn


@contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Without gradients and in eval mode inside; afterwards each module has its own training flag back."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


# reading


def rows_of(inputs: Any, rows: Tensor, b: int) -> Any:
    """Take the given rows of every tensor, in containers too, whose first axis is the batch of size `b`."""
    if torch.is_tensor(inputs):
        return inputs[rows] if inputs.ndim > 0 and inputs.shape[0] == b else inputs
    if isinstance(inputs, dict):
        return {name: rows_of(value, rows, b) for name, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(rows_of(value, rows, b) for value in inputs)
    return inputs


class Reader:
    """One net that reads a sequence as it grows.

    With a cache, only what is new enters the net. Past `max_seq_len` the window slides: the oldest tokens leave the
    cache; where that would change what the rest means, the cache is given up and the window read again each time.

        inputs     keywords of every call of the net; a `mask` (b t) is continued with True
        cache_kv   use the cache, if the net can
        restrict   never read more than the last `max_seq_len` tokens
    """

    def __init__(self, net: nn.Module, inputs: dict[str, Any], *, cache_kv: bool = True, restrict: bool = True) -> None:
        limit = net.max_seq_len
        self.net, self.inputs = net, inputs
        self.window = limit if restrict and limit is not None and limit > 0 else None
        self.caching = cache_kv and bool(getattr(net, 'can_cache_kv', False))
        self.cache: Any = None
        self.intermediates: Any = None
        self.seen = 0

    def read(self, sequence: Tensor, pads: Tensor | None = None) -> Tensor:
        """What the net gives at the last place of `sequence` (b n ...), of which `pads` (b) places are padding."""
        length = sequence.shape[1]
        start = 0 if self.window is None else max(length - self.window, 0)
        if start > 0 and self.caching and (reason := self.cannot_slide()):
            warn_once(f'generation went past `max_seq_len`, and now reads its window again for every token: {reason}')
            self.caching, self.cache, self.intermediates = False, None, None

        inputs = self.inputs_at(length, start, pads)
        if not self.caching:
            return self.last(self.net(sequence[:, start:], **inputs))
        cache = self.remembered(length, start)
        if cache is not None:
            start = self.seen
            inputs |= dict(cache=cache, input_not_include_cache=True)
        # let go of the last ones, whose memory the next pass may need
        self.intermediates = None
        out, self.intermediates = self.net(sequence[:, start:], return_intermediates=True, **inputs)
        self.cache, self.seen = self.intermediates.cache, length
        return self.last(out)

    def cannot_slide(self) -> str | None:
        """Why the oldest keys cannot just leave the cache, or None if they can."""
        if not getattr(self.net, 'can_cache_kv_outside_max_seq_len', False):
            return 'absolute positions change as the window slides'
        if self.cache is not None and self.cache.leading > 0:
            return 'what stands in front of the tokens stays while they leave'
        return None

    def inputs_at(self, length: int, start: int, pads: Tensor | None) -> dict[str, Any]:
        """The keywords of a call that reads the places `start` to `length`."""
        inputs = dict(self.inputs)
        if inputs.get('mask') is not None:
            mask = inputs['mask']
            inputs['mask'] = F.pad(mask, (0, length - mask.shape[1]), value=True)[:, start:]
        if pads is not None:
            inputs['seq_start_pos'] = (pads - start).clamp(min=0)
        return inputs

    def remembered(self, length: int, start: int) -> Any:
        """The cache of what was read before, without what has left the window. None if that is nothing."""
        kept = None if start == 0 else self.window - (length - self.seen)
        if self.cache is None or kept is None:
            return self.cache
        if kept <= 0:
            return None
        return self.cache.keep_last(min(kept, self.cache.length))

    @staticmethod
    def last(out: Any) -> Tensor:
        # of several heads, which all learn the same, the first speaks
        return (out[0] if isinstance(out, tuple) else out)[..., -1, :]

    def select(self, rows: Tensor, b: int) -> None:
        """Go on with the given rows of the batch of size `b`; they may repeat."""
        if len(rows) != b:
            self.inputs = rows_of(self.inputs, rows, b)
        if self.cache is not None:
            self.cache, self.intermediates = self.cache.reorder(rows), None


# generation


@dataclass
class Decoding:
    """The state of a generation. `step` adds one token to every row.

    ids       b t      the prompts, padded on the left, then room for what is generated
    pads      b        number of paddings, if any
    length             places of `ids` that are filled
    finished  b        rows that have said `eos_token`; only padding follows
    """

    expert: Reader
    amateurs: list[tuple[Reader, dict[str, float]]]
    choose: Callable[[Tensor], Tensor]
    modules: list[nn.Module]
    ids: Tensor
    pads: Tensor | None
    length: int
    leading: torch.Size
    pad_value: int
    eos_token: int | None = None
    finished: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.finished = torch.zeros(self.ids.shape[0], dtype=torch.bool, device=self.ids.device)

    def next_logits(self) -> Tensor:
        """Logits (b l) of the next token, contrasted with those of the amateurs."""
        sequence = self.ids[:, : self.length]
        logits = self.expert.read(sequence, self.pads)
        for amateur, weights in self.amateurs:
            logits = contrastive_decode_fn(logits, amateur.read(sequence, self.pads), **weights)
        return logits

    def step(self) -> Tensor:
        """Choose the next token of every row, and return them (b)."""
        with evaluating(self.modules):
            tokens = self.choose(self.next_logits())
        if self.eos_token is not None:
            tokens = tokens.masked_fill(self.finished, self.pad_value)
            self.finished = self.finished | (tokens == self.eos_token)
        self.ids[:, self.length] = tokens
        self.length += 1
        return tokens

    def run(self, seq_len: int) -> Iterator[Tensor]:
        """At most `seq_len` steps, until every row is finished. Gives tokens in the leading axes of the prompts."""
        for _ in range(seq_len):
            if self.eos_token is not None and self.finished.all():
                return
            yield self.step().reshape(self.leading)


@dataclass
class Beams:
    """The hypotheses of a beam search, best first.

    ids      b h t    the prompts, padded on the left, then room for what is generated
    scores   b h      summed log probabilities, in nats
    rank              from logits (.. l) to what the candidates of one hypothesis are picked by
    """

    reader: Reader
    rank: Callable[[Tensor], Tensor]
    beams: int
    ids: Tensor
    pads: Tensor | None
    length: int
    scores: Tensor

    def step(self) -> None:
        """Continue each hypothesis with its best tokens, and keep the best of all continuations."""
        b, h, _ = self.ids.shape
        pads = None if self.pads is None else repeat(self.pads, 'b -> (b h)', h=h)
        logits = self.reader.read(rearrange(self.ids[..., : self.length], 'b h t -> (b h) t'), pads)
        ranks, tokens = self.rank(logits).topk(min(self.beams, logits.shape[-1]), dim=-1)
        # what a filter left out must not come back where too few tokens remain
        gains = accurate(logits).log_softmax(dim=-1).gather(-1, tokens).masked_fill(ranks.isneginf(), -torch.inf)

        count = tokens.shape[-1]
        totals = rearrange(self.scores, 'b h -> b h 1') + rearrange(gains, '(b h) k -> b h k', h=h)
        totals, tokens = totals.flatten(1), rearrange(tokens, '(b h) k -> b (h k)', h=h)
        self.scores, best = totals.topk(min(self.beams, h * count), dim=-1)

        parents = torch.div(best, count, rounding_mode='floor')
        batch = torch.arange(b, device=best.device)[:, None]
        self.ids = self.ids[batch, parents]
        self.ids[..., self.length] = tokens.gather(1, best)
        self.length += 1
        self.reader.select((batch * h + parents).flatten(), b * h)

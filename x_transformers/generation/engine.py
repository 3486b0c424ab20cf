"""`IncrementalModel`, the forward passes of one net with its cache, and the states that grow sequences with it.

Wrappers around models of tokens, of vectors and of several streams all read through `IncrementalModel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from x_transformers.core.own_modules import gets_whole_input, has_own_forward
from x_transformers.flags import warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.generation.choice import REASONS, TokenSampler
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.rules import GenerationHistory
from x_transformers.generation.sampling import to_float
from x_transformers.generation.step import Step

# modules that were training, and in how many places, threads among them, they are held in eval mode
HELD: dict[nn.Module, int] = {}
COUNTING = threading.Lock()


@contextmanager
def eval_modules(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Without gradients and in eval mode inside."""
    with run_in_eval_mode(modules), torch.no_grad():
        yield


@contextmanager
def run_in_eval_mode(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Each module that was training is so again when the last of those who hold it in eval mode, in any thread, has
    left."""
    with COUNTING:
        own = [module for module in modules if module.training or (HELD and module in HELD)]
        for module in own:
            HELD[module] = HELD.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with COUNTING:
            for module in own:
                HELD[module] -= 1
                if not HELD[module]:
                    del HELD[module]
                    module.training = True


# reading


def get_rows(inputs: Any, rows: Tensor, b: int) -> Any:
    """Take the given rows of every tensor, in containers too, whose first axis is the batch of size `b`."""
    if torch.is_tensor(inputs):
        return inputs[rows] if inputs.ndim > 0 and inputs.shape[0] == b else inputs
    if isinstance(inputs, dict):
        return {name: get_rows(value, rows, b) for name, value in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(get_rows(value, rows, b) for value in inputs)
    return inputs


class IncrementalModel:
    """One net that reads a sequence as it grows.

    With a cache, only what is new enters the net. Past `max_seq_len` the oldest tokens leave the cache, and the net
    reads as if all of its attention had a window, `attn_max_attend_past`. Where that would not hold, or is not wanted,
    the cache is given up and the window of the last tokens read again each time.

        inputs     keywords of every call of the net; a `mask` (b t) is continued with True, a `pos` by counting on
        cache_kv   use the KV cache, if the model supports it
        restrict   never read more than the last `max_seq_len` tokens
        slides     past that, keep the cache of the last ones, if the net can
        step       what reads new tokens beside a cache, if it is not the net itself: the net compiled, for one
        keeps      'past': the intermediates hold what the cache needs; 'all': hidden states and attention maps too
        pending    what a reading of so many tokens would give, where that is known already

    Whether the net has a `Step` is asked once, before the first token that is read beside a cache.
    """

    def __init__(
        self,
        net: Any,
        inputs: dict[str, Any],
        *,
        cache_kv: bool = True,
        restrict: bool = True,
        slides: bool = True,
        step: Callable[..., Any] | None = None,
        keeps: str = 'past',
    ) -> None:
        limit: Any = net.max_seq_len
        self.net, self.inputs, self.step = net, inputs, net if step is None else step
        self.window: Any = limit if restrict and limit is not None and limit > 0 else None
        self.caching, self.slides = cache_kv and bool(getattr(net, 'can_cache_kv', False)), slides
        self.cache: Any = None
        self.intermediates: Any = None
        self.seen = 0
        self.keeps, self.gives_whole = keeps, gets_whole_input(net)
        self.follows_length, self.written_out = bool(getattr(net, 'follows_length', False)), False
        self.fast: Step | None = None
        self.pending: tuple[int, Tensor] | None = None

    def read(self, sequence: Tensor, pads: Tensor | None = None, count: int | None = None) -> Tensor:
        """Return the outputs at the last token of `sequence`, (b, n, ...), with `pads`, (b,), tokens of padding.

        With `count`, what it gives at the last places, so many, none of which it has read before:  b count ...
        """
        length = sequence.shape[1]
        if self.pending is not None and self.pending[0] == length:
            return self.pending[1]
        self.pending = None
        start = 0 if self.window is None else max(length - self.window, 0)
        if start > 0 and self.caching and (reason := self.cannot_slide()):
            if self.slides:
                warn_once(f'generation exceeded `max_seq_len`, and now recomputes its window at each step: {reason}')
            self.caching, self.cache, self.intermediates = False, None, None
        cache = self.remembered(length, start) if self.caching else None
        if cache is not None and pads is None and length - self.seen == 1 and self.takes_step(sequence, cache):
            self.intermediates, self.seen = None, length
            out, self.cache = cast('Step', self.fast)(sequence[:, -1:], cache)
            return self.last(out, count)

        inputs = self.inputs_at(length, start, pads)
        new, left_pad = length - self.seen, inputs.get('seq_start_pos')
        if cache is not None and self.follows_length and self.net.starts_over(cache, new, left_pad):
            self.forget()  # Tokens that were read must be read again, now that there are more.
            cache = None
        if cache is None and getattr(self.net, 'can_keep_logits', False):
            inputs['logits_to_keep'] = count or 1
        if not self.caching:
            return self.recomputed(sequence[:, start:], inputs, count)
        if cache is not None:
            start = start if self.gives_whole else self.seen
            inputs |= dict(cache=cache, input_not_include_cache=not self.gives_whole)
        # let go of the last ones, whose memory the next pass may need
        self.intermediates = None
        read = self.net if cache is None else self.step
        # Modules of users know True alone.
        wanted = True if self.keeps == 'all' or has_own_forward(self.net) else 'past'
        out, self.intermediates = read(sequence[:, start:], return_intermediates=wanted, **inputs)
        self.cache, self.seen = self.intermediates.cache, length
        return self.last(out, count)

    def takes_step(self, sequence: Tensor, cache: Any) -> bool:
        """Return True if the last token (b, n) can be read by the `Step` of the net."""
        if not self.written_out:  # Hooks and modules that are replaced from now on count in the next generation.
            self.written_out = True
            if self.keeps == 'past' and self.step is self.net:
                self.fast = Step.of(self.net, self.inputs)
        return self.fast is not None and self.fast.takes(sequence[:, -1:], cache)

    def recomputed(self, sequence: Tensor, inputs: dict[str, Any], count: int | None) -> Tensor:
        """Return the outputs without a cache. Rows with different padding run apart if the net takes none."""
        pads = inputs.get('seq_start_pos')
        if pads is None or getattr(self.net, 'can_pad_left', True):
            return self.last(self.net(sequence, **inputs), count)
        inputs, b = {name: value for name, value in inputs.items() if name != 'seq_start_pos'}, len(sequence)
        kinds, parts = pads.unique().tolist(), []
        for pad in kinds:
            rows = (pads == pad).nonzero().squeeze(-1)
            own = get_rows(inputs, rows, b)
            own |= {name: own[name][:, pad:] for name in ('mask', 'pos') if own.get(name) is not None}
            parts.append(self.last(self.net(sequence[rows, pad:], **own), count))
        order = torch.cat([(pads == pad).nonzero().squeeze(-1) for pad in kinds]).argsort()
        axis = -2 if count is None else -3  # a net may put others before that of the batch
        return torch.cat(parts, dim=axis).index_select(axis, order)

    def cannot_slide(self) -> str | None:
        """Why the oldest keys cannot just leave the cache, or None if they can."""
        if not self.slides:
            return 'that was asked for'
        if not getattr(self.net, 'can_cache_kv_outside_max_seq_len', False):
            return 'absolute positions change as the window slides'
        if getattr(self.cache, 'num_prefix_tokens', 0) > 0:
            return 'what stands in front of the tokens stays while they leave'
        if self.follows_length:
            return 'rotary scaling may have tokens read again, of which some have left by then'
        return self.cache_cannot('keep_last')

    def cache_cannot(self, operation: str, count: int = 0) -> str | None:
        """Return why the cache cannot do an operation, or None. A cache of the user may not say."""
        cannot = getattr(self.cache, 'cannot', None)
        return None if cannot is None else cannot(operation, count)

    def inputs_at(self, length: int, start: int, pads: Tensor | None) -> dict[str, Any]:
        """The keywords of a call that reads the places `start` to `length`."""
        inputs = dict(self.inputs)
        if inputs.get('mask') is not None:
            mask = inputs['mask']
            inputs['mask'] = F.pad(mask, (0, length - mask.shape[1]), value=True)[:, start:]
        pos = inputs.get('pos')
        if torch.is_tensor(pos) and 0 < pos.ndim and 0 < pos.shape[-1] < length:  # what is none, the net refuses
            more = torch.arange(1, length - pos.shape[-1] + 1, device=pos.device)
            inputs['pos'] = torch.cat((pos, pos[..., -1:] + more), dim=-1)
        if torch.is_tensor(pos) and start > 0:
            inputs['pos'] = inputs['pos'][..., start:]
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
    def last(out: Any, count: int | None = None) -> Tensor:
        # of several heads, which all learn the same, the first speaks
        out = out[0] if isinstance(out, tuple) else out
        return out[..., -1, :] if count is None else out[..., out.shape[-2] - count :, :]

    def forget(self) -> None:
        """Give up what was read; the next reading starts from the first token."""
        self.cache, self.intermediates, self.pending, self.seen = None, None, None, 0

    def select(self, rows: Tensor, b: int) -> None:
        """Go on with the given rows of the batch of size `b`; they may repeat."""
        if len(rows) != b:
            self.inputs = get_rows(self.inputs, rows, b)
        reason = self.cache_cannot('reorder')
        if reason is not None:
            warn_once(f'the cache cannot be reordered, so that all tokens are recomputed: it holds {reason}')
            self.forget()
        elif self.cache is not None:
            self.cache, self.intermediates = self.cache.reorder(rows), None
        if self.pending is not None:
            self.pending = (self.pending[0], self.pending[1][rows])

    def fork(self, sequence: Tensor, pads: Tensor | None, rows: Tensor) -> None:
        """Read `sequence` (b n ...), and go on with the given rows of it."""
        self.pending = (sequence.shape[1], self.read(sequence, pads))
        self.select(rows, len(sequence))


# generation


class Generated(NamedTuple):
    """Result of `generate` if more than tokens was requested. Fields that were not requested are None.

    tokens           ... s   the new tokens
    log_probs        ... s   their log probabilities in nats, 0 after the end of a row
    finish_reasons   ...     'eos', 'stop' or 'length', in lists with the leading axes
    intermediates            the last ones of the net
    """

    tokens: Tensor
    log_probs: Maybe[Tensor] = None
    finish_reasons: Any = None
    intermediates: Any = None


def get_reasons(codes: Tensor) -> Any:
    """The words for places in `REASONS`, in nested lists."""
    return REASONS[int(codes)] if codes.ndim == 0 else [get_reasons(one) for one in codes]


@dataclass
class AuxiliaryLogits:
    """A second reading of every step: of a weak model to contrast with, or of the same without what it is to follow.

    mixed         (logits, those of this reading) -> logits
    prompts  b n  what is read in place of the prompts, if it is something else
    """

    reader: IncrementalModel
    mixed: Callable[[Tensor, Tensor], Tensor]
    prompts: Maybe[Tensor] = None

    def seen(self, sequence: Tensor) -> Tensor:
        if self.prompts is None:
            return sequence
        return torch.cat((self.prompts, sequence[:, self.prompts.shape[1] :]), dim=1)

    def added_to(self, logits: Tensor, sequence: Tensor, pads: Tensor | None) -> Tensor:
        return self.mixed(logits, self.reader.read(self.seen(sequence), pads))

    def fork(self, sequence: Tensor, pads: Tensor | None, rows: Tensor) -> None:
        self.reader.fork(self.seen(sequence), pads, rows)
        self.prompts = None if self.prompts is None else self.prompts[rows]

    def select(self, rows: Tensor, b: int) -> None:
        """Go on with the given rows of the batch of size `b`; they may repeat."""
        self.reader.select(rows, b)
        self.prompts = None if self.prompts is None else self.prompts[rows]


@dataclass
class Decoding:
    """The state of a generation. `step` adds one token to every row.

    ids        b t     the prompts, padded on the left, then room for what is generated
    pads       b       number of paddings, if any
    length             places of `ids` that are filled
    samples            how often each prompt is continued; its reading is shared
    beside             further readings of each step, which change its logits
    choice             how tokens are chosen from logits (b l), and where rows end
    text_start         places in front that hold no tokens of the vocabulary which is chosen from
    log_probs  b s     those of the generated tokens under the expert alone, if wanted
    ends       b       why each row has ended, as a place in `REASONS`; 0 while it goes on. Only padding follows
    """

    expert: Any  # a `IncrementalModel`, or what reads like one
    choice: TokenSampler
    modules: list[nn.Module]
    ids: Tensor
    pads: Maybe[Tensor]
    length: int
    leading: torch.Size
    pad_value: int
    beside: Sequence[AuxiliaryLogits] = ()
    text_start: int = 0
    samples: int = 1
    callback: Maybe[Callable[[Tensor], Any]] = None
    wants_log_probs: bool = False

    def __post_init__(self) -> None:
        self.failed = FailedRows(self.leading)
        self.log_probs: Tensor | None = None
        self.weigh = self.choice.process_logits if self.choice.steps else None
        self.endings = self.choice.endings.to(self.ids.device)
        self.ends = torch.zeros(self.ids.shape[0], dtype=torch.long, device=self.ids.device)
        self.start, self.has_ends = self.length, bool(self.endings)

    @classmethod
    def from_prompts(
        cls,
        expert: Any,
        choice: TokenSampler,
        modules: list[nn.Module],
        ids: Tensor,
        leading: torch.Size,
        num_new: int,
        pad_value: int = 0,
        pads: Tensor | None = None,
        **options: Any,
    ) -> Decoding:
        """Return the state of a generation of `num_new` tokens after prompts (b, n). `options` are further fields."""
        room = F.pad(ids, (0, num_new), value=pad_value)
        return cls(expert, choice, modules, room, pads, ids.shape[1], leading, pad_value, **options)

    def fork(self) -> None:
        """Read the prompts, and from then on continue each of them `samples` times."""
        sequence, pads = self.ids[:, : self.length], self.pads
        rows = torch.arange(len(sequence), device=sequence.device).repeat_interleave(self.samples)
        with eval_modules(self.modules):
            for reader in (self.expert, *self.beside):
                reader.fork(sequence, pads, rows)
        self.ids, self.ends, self.pads = self.ids[rows], self.ends[rows], None if pads is None else pads[rows]

    def step(self) -> Tensor:
        """Choose the next token of every row, and return them (b). The modules must be in eval mode."""
        sequence = self.ids[:, : self.length]
        logits = expert = self.expert.read(sequence, self.pads)
        for other in self.beside:
            logits = other.added_to(logits, sequence, self.pads)
        if self.weigh is not None:
            logits = self.weigh(logits, self.history(sequence))
        tokens, largest = self.choice.draw(logits)
        ended = self.ends > 0 if self.has_ends else None
        self.failed.add(largest, ended)
        if self.wants_log_probs:
            self.note(expert, tokens)
        if ended is not None:
            tokens = tokens.masked_fill(ended, self.pad_value)
        self.ids[:, self.length] = tokens
        self.length += 1
        if self.has_ends:
            tail = self.ids[:, max(self.start, self.length - self.endings.width) : self.length]
            reasons = self.endings.reasons(tail, self.length - self.start)
            self.ends = torch.where(self.ends > 0, self.ends, reasons)
        return tokens

    def history(self, sequence: Tensor) -> GenerationHistory:
        """Return which of the tokens so far are real, and how many are to come."""
        left_pad = self.text_start or None if self.pads is None else self.pads
        mask = self.expert.inputs.get('mask')
        return GenerationHistory(sequence, self.start, left_pad, mask, self.max_new_tokens)

    def note(self, logits: Tensor, tokens: Tensor) -> None:
        """Keep the log probabilities of the tokens chosen."""
        new = to_float(logits).log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        if self.log_probs is None:
            self.log_probs = new.new_zeros(len(new), self.max_new_tokens)
        self.log_probs[:, self.length - self.start] = new.masked_fill(self.ends > 0, 0.0)

    @property
    def max_new_tokens(self) -> int:
        """Number of tokens that there is room for."""
        return self.ids.shape[1] - self.start

    def run(self, modules: Sequence[nn.Module] | None = None) -> Iterator[Tensor]:
        """Generate until there is no room left or every row has ended; yield tokens in the axes of the prompts.

        Each step runs without gradients, and with `modules`, by default those of the generation, in eval mode.
        """
        modules = self.modules if modules is None else modules
        if self.samples != 1 and self.max_new_tokens > 0:
            self.fork()
        for _ in range(self.max_new_tokens):
            if self.has_ends and self.failed.read((self.ends > 0).all()):
                return
            with eval_modules(modules):
                tokens = self.step()
            tokens = tokens.reshape(self.leading)
            if self.callback is not None:
                self.callback(tokens)
            yield tokens
        self.failed.raise_first()

    def finish(self) -> None:
        """The steps of `run`, without gradients and in eval mode."""
        with eval_modules(self.modules):
            for _ in self.run(()):
                pass

    def generated(self, t: Tensor) -> Tensor:
        """The part (b s) of the new tokens, in the leading axes."""
        new = t[:, : self.length - self.start]
        return new.reshape(*self.leading, new.shape[-1])

    def result(self, reasons: bool, intermediates: bool) -> Generated:
        """All that was generated."""
        probs = None
        if self.wants_log_probs:
            probs = self.ids.new_zeros(len(self.ids), 0).float() if self.log_probs is None else self.log_probs
            probs = self.generated(probs)
        return Generated(
            self.generated(self.ids[:, self.start :]),
            probs,
            get_reasons(self.ends.reshape(self.leading).cpu()) if reasons else None,
            self.expert.intermediates if intermediates else None,
        )


@dataclass
class Beams:
    """The hypotheses of a beam search, best first, and those that have ended.

        score = log p / length ** length_penalty        length: the number of generated tokens, the last one included

    state                that of a generation, before its first step
    rank                 from logits (.. l) to what the candidates of one hypothesis are picked by, and the largest
                         logit that may be chosen (..); None where this is the logits themselves
    ids          b h t   the prompts, padded on the left, then room for what is generated
    scores       b h     summed log probabilities, in nats
    done         b h t   hypotheses that have ended, the best by `done_scores` (b h)
    """

    state: Decoding
    beams: int
    length_penalty: float = 0.0
    rank: Maybe[Callable[[Tensor], tuple[Tensor, Tensor]]] = None

    def __post_init__(self) -> None:
        state, self.failed = self.state, FailedRows()
        self.ids, self.pads, self.length = rearrange(state.ids, 'b t -> b 1 t'), state.pads, state.length
        self.scores = torch.zeros((len(state.ids), 1), dtype=torch.float32, device=state.ids.device)
        self.reader, self.beside, self.weigh, self.endings = state.expert, state.beside, state.weigh, state.endings
        self.start, self.done, self.done_scores = self.length, self.ids[:, :0], self.scores[:, :0]

    def score(self, totals: Tensor, tokens: int) -> Tensor:
        """Sums of log probabilities (...) of so many tokens, set right for their number."""
        return totals / max(tokens, 1) ** self.length_penalty

    def step(self) -> None:
        """Continue each hypothesis with its best tokens, and keep the best of all continuations."""
        b, h, _ = self.ids.shape
        pads = None if self.pads is None else repeat(self.pads, 'b -> (b h)', h=h)
        sequence = rearrange(self.ids[..., : self.length], 'b h t -> (b h) t')
        logits = self.reader.read(sequence, pads)
        for other in self.beside:
            logits = other.added_to(logits, sequence, pads)
        if self.weigh is not None:
            room, mask = self.ids.shape[-1] - self.start, self.reader.inputs.get('mask')
            logits = self.weigh(logits, GenerationHistory(sequence, self.start, pads, mask, room))
        wanted = self.beams + self.endings.num_last_tokens
        ranks, largest = (logits, None) if self.rank is None else self.rank(logits)
        ranks, tokens = ranks.topk(min(wanted, logits.shape[-1]), dim=-1)
        dead = rearrange(self.scores.isneginf(), 'b h -> (b h)')
        largest = (ranks[:, 0] if largest is None else largest).masked_fill(dead, -torch.inf)
        self.note_failed(rearrange(largest, '(b h) -> b h', h=h))
        # What a filter left out must not come back where too few tokens remain.
        left_out = ranks.isneginf() | rearrange(dead, 'r -> r 1')
        gains = to_float(logits).log_softmax(dim=-1).gather(-1, tokens).masked_fill(left_out, -torch.inf)

        count = tokens.shape[-1]
        totals = rearrange(self.scores, 'b h -> b h 1') + rearrange(gains, '(b h) k -> b h k', h=h)
        totals, tokens = rearrange(totals, 'b h k -> b (h k)'), rearrange(tokens, '(b h) k -> b (h k)', h=h)
        if self.endings:
            ended = self.find_ended(tokens, count)
            if self.beams == 1:  # One beam is greedy: it ends where the end is the most probable token, and only there.
                others = totals < totals.amax(dim=-1, keepdim=True)
                totals, ended = totals.masked_fill(others, -torch.inf), ended & ~others
            self.finish(totals.masked_fill(~ended, -torch.inf), tokens, count)
            totals = totals.masked_fill(ended, -torch.inf)
        self.scores, best = totals.topk(min(self.beams, h * count), dim=-1)
        self.ids, parents = self.continued(tokens, best, count)
        self.length += 1
        rows = rearrange(rearrange(torch.arange(b, device=best.device) * h, 'b -> b 1') + parents, 'b k -> (b k)')
        for reader in (self.reader, *self.beside):
            reader.select(rows, b * h)

    def find_ended(self, tokens: Tensor, count: int) -> Tensor:
        """Return True for tokens (b, h * count) with which a hypothesis ends, `count` of each."""
        made = self.length - self.start
        width = min(self.endings.width - 1, made)
        tail = repeat(self.ids[..., self.length - width : self.length], 'b h w -> (b h k) w', k=count)
        tail = torch.cat((tail, tokens.reshape(-1, 1)), dim=1)
        return (self.endings.reasons(tail, made + 1) > 0).view_as(tokens)

    def note_failed(self, largest: Tensor) -> None:
        """Note rows with logits that are NaN, or of which no hypothesis goes on or has ended, from the largest logits
        (b, h) of hypotheses."""
        ended = ~self.done_scores.isneginf().all(dim=-1) if self.done_scores.shape[1] else None
        largest = largest.amax(dim=1)
        self.failed.add(largest, None if ended is None else ended & largest.isneginf())

    def continued(self, tokens: Tensor, best: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The hypotheses (b k t) at the places `best` (b k) of all continuations, and which ones they continue."""
        parents = torch.div(best, count, rounding_mode='floor')
        ids = self.ids[torch.arange(len(best), device=best.device)[:, None], parents]
        ids[..., self.length] = tokens.gather(1, best)
        return ids, parents

    def finish(self, totals: Tensor, tokens: Tensor, count: int) -> None:
        """Keep the best of the hypotheses that have ended before and now."""
        totals, best = totals.topk(min(self.beams, totals.shape[-1]), dim=-1)
        self.keep(self.continued(tokens, best, count)[0], self.score(totals, self.length + 1 - self.start))

    def keep(self, ids: Tensor, scores: Tensor) -> None:
        """Add hypotheses (b k t) to those that have ended, as far as they are better."""
        ids, scores = torch.cat((self.done, ids), dim=1), torch.cat((self.done_scores, scores), dim=1)
        self.done_scores, best = scores.topk(min(self.beams, scores.shape[1]), dim=-1)
        self.done = ids[torch.arange(len(best), device=best.device)[:, None], best]

    def run(self, seq_len: int) -> tuple[Tensor, Tensor]:
        """At most `seq_len` steps, until nothing can become better. Gives new tokens (b h s) and scores (b h)."""
        for _ in range(seq_len):
            if self.endings and self.settled(seq_len):
                break
            self.step()
        self.failed.raise_first()
        made = self.length - self.start
        if not self.endings:
            self.done, self.done_scores = self.ids, self.score(self.scores, made)
        else:
            live = self.scores if made == seq_len else torch.full_like(self.scores, -torch.inf)
            self.keep(self.ids, self.score(live, made))
            token_mask = ~self.done_scores.isneginf().all(dim=0)
            token_mask[:1] = True
            self.done, self.done_scores = self.done[:, token_mask], self.done_scores[:, token_mask]
        return self.done[..., self.start : self.length], self.done_scores

    def settled(self, seq_len: int) -> bool:
        """Return True if no hypothesis that goes on can be better than those that have ended: its sum can only fall."""
        if self.done_scores.shape[1] < self.beams:
            return self.failed.read(self.scores.isneginf().all()) and self.length > self.start
        tokens = seq_len if self.length_penalty > 0 else self.length + 1 - self.start
        hope = self.score(self.scores.amax(dim=1), tokens)
        return self.failed.read((self.done_scores[:, -1] >= hope).all())

"""Speculative decoding: draft some tokens, check them in one forward pass, and keep those that the model accepts.

    guesses x_1 .. x_k from a draft with probabilities q_i, the model's own being p_i
    x_i is accepted with probability min(1, p_i(x_i) / q_i(x_i)), as long as all before it were
    after the last accepted one, a token from max(0, p - q), normalised; from p if all were accepted

So every token has the model's distribution, and at temperature 0 the tokens are those of `generate`.

Leviathan et al. 2022, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318. Without a draft model, the guess is what
followed the last few tokens where they stood before in the row (prompt look-up): q is 1 for it.

Rows accept different numbers of tokens. They stay aligned on the right: what a row rejected leaves its end, and the row
moves up to the others, with padding in front, in its ids and in all that its cache holds. Where nothing is cached, each
row keeps as many tokens as the one with the fewest. Their distribution is the same: rows do not know each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.cache import Cache
from x_transformers.core.buffers import Buffer
from x_transformers.core.checks import as_number, mask_from_lengths
from x_transformers.core.nets import SET_BY_GENERATION, check_net, counts_tokens, refuse_own
from x_transformers.core.own_modules import gets_whole_input
from x_transformers.flags import is_int, warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.generation.choice import NO_TOKEN, GenerationHistory, StoppingCriteria, TokenSampler, get_vocabulary
from x_transformers.generation.engine import IncrementalModel
from x_transformers.generation.exits import check_looped_exits
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.guidance import Guidance
from x_transformers.generation.sampling import draw, new_tokens_of, require, shift_right


class SpeculativeStats(NamedTuple):
    """How well the guessing went, over all rows.

    rounds     how often the model read
    guessed    tokens guessed for rows that went on
    accepted   how many of them were kept
    """

    rounds: int = 0
    guessed: int = 0
    accepted: int = 0


# a cache whose rows move


ROOM = 32  # tokens that fit behind rows that have moved


def _rewind_cache(cache: Cache, count: int) -> Cache:
    """The cache without its last `count` tokens, whose place in memory is used again: it must have no other user."""

    def cut(buffer: Buffer) -> Buffer:
        part = buffer.part(0, max(buffer.length - count, 0))
        part.storage.filled = part.start + part.length
        return part

    kept = cache.each_own(cut)
    kept.num_seen_tokens = cache.num_seen_tokens - count
    return kept


def shift_cache(cache: Cache, places: Tensor, most: int) -> Cache:
    """The rows of the cache moved to the right by so many `places` (b), at most `most`, with zeros in front."""

    def shift(buffer: Buffer) -> Buffer:
        whole, length = buffer.storage.tensor, buffer.length
        if length == 0:
            return buffer
        *leading, capacity, width = whole.shape
        place = torch.arange(length + ROOM, device=whole.device)  # with room, so that the next tokens cost no copy
        source = (place - places[:, None]).clamp(min=0, max=length - 1) + buffer.start
        first = torch.arange(math.prod(leading), device=whole.device).reshape(len(places), -1, 1) * capacity
        rows = (first + source[:, None]).flatten()
        moved = buffer.like(whole.reshape(-1, width).index_select(0, rows).reshape(*leading, length + ROOM, width))
        moved.storage.filled, front = length, min(most, length)
        empty = (place[:front] < places[:, None]).reshape(len(places), *[1] * (len(leading) - 1), front, 1)
        moved.storage.tensor.narrow(-2, 0, front).masked_fill_(empty, 0)
        return moved.part(0, length).evict_first(most)

    moved = cache.each_own(shift)
    moved.num_seen_tokens, moved.num_prefix_tokens = cache.num_seen_tokens, cache.num_prefix_tokens
    return moved


def drop_prefix(cache: Cache, count: int) -> Cache:
    """The cache without its first `count` places, which are padding in every row."""
    kept = cache.each_own(lambda buffer: buffer.skip_first(count))
    kept.num_seen_tokens = cache.num_seen_tokens - count
    return kept


class Rewinder(IncrementalModel):
    """A reader that takes tokens back. If its net cannot, it reads everything each time, and says so once."""

    reason = 'too few tokens'  # why it reads everything each time

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.caching and kwargs.get('cache_kv', True):
            self.warn('it cannot cache')

    def warn(self, reason: str) -> None:
        name = type(self.net).__name__
        warn_once(f'speculative decoding recomputes all tokens of a {name} at each step: {reason}')

    def read(self, sequence: Tensor, pads: Tensor | None = None, count: int | None = None) -> Tensor:
        out = super().read(sequence, pads, count)
        reason = self.cache_cannot('shift')
        if reason is not None:
            self.warn(f'its cache holds {reason}')
            self.caching, self.reason = False, reason
            self.forget()
        return out

    def back_to(self, length: int) -> None:
        """Keep what was read of the first `length` tokens."""
        if self.cache is not None and self.cache_cannot('crop', self.seen - length):
            self.forget()  # more than was kept for this
        if self.cache is not None and length < self.seen:
            self.cache, self.seen, self.intermediates = _rewind_cache(self.cache, self.seen - length), length, None

    def shift(self, places: Tensor, most: int, length: int) -> None:
        """Move the rows of a sequence of `length` to the right by so many places, at most `most`."""
        if self.cache is not None and self.cache_cannot('shift', most):
            self.forget()
        if self.cache is not None:
            self.cache, self.intermediates = shift_cache(self.cache, places, most), None
        if self.inputs.get('mask') is not None:
            mask = F.pad(self.inputs['mask'], (0, length - self.inputs['mask'].shape[1]), value=True)
            self.inputs = {**self.inputs, 'mask': shift_right(mask, places, False)}

    def follow(self, length: int, places: Tensor, most: int, drop: int) -> None:
        """Keep the first `length` places, move the rows by their `places`, at most `most`, and drop those in front."""
        self.back_to(length)
        if most:
            self.shift(places, most, length)
        if drop:
            self.drop(drop)

    def drop(self, count: int) -> None:
        """Let the first `count` places go, which are padding in every row."""
        if self.cache is not None:
            self.cache, self.seen, self.intermediates = drop_prefix(self.cache, count), self.seen - count, None
        if self.inputs.get('mask') is not None:
            self.inputs = {**self.inputs, 'mask': self.inputs['mask'][:, count:]}


# guesses


def find_match(ids: Tensor, pads: Tensor | None, count: int, longest: int) -> tuple[Tensor, Tensor]:
    """Return the tokens that followed the last ones of each row earlier: guesses (b, k), and how many are real (b).

    The longest of the last `longest` tokens that stand somewhere before, and the latest such place, count.
    """
    b, t = ids.shape
    place = torch.arange(t, device=ids.device)
    begun = place >= (0 if pads is None else pads.unsqueeze(-1))
    start = torch.full((b,), -1, device=ids.device)
    for size in range(1, min(longest, t - 1) + 1):
        # the places (b p) at which a run of this size begins, and the token after it is there
        same = ids.unfold(1, size, 1)[:, : t - size] == ids[:, t - size :].unsqueeze(1)
        found = same.all(dim=-1) & begun.expand(b, t)[:, : t - size]
        after = torch.where(found, place[: t - size] + size, -1).amax(dim=-1)
        start = torch.where(after >= 0, after, start)
    token_mask = torch.where(start >= 0, (t - start).clamp(max=count), 0)
    source = (start.clamp(min=0).unsqueeze(-1) + torch.arange(count, device=ids.device)).clamp(max=t - 1)
    return ids.gather(1, source), token_mask


class LookUp:
    """Guesses from the row itself."""

    reader = None

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def guess(self, state: Speculation, count: int) -> tuple[Tensor, Tensor, None]:
        guesses, token_mask = find_match(state.ids, state.pads, count, self.longest)
        most = int(token_mask.masked_fill(state.done, 0).max())
        return guesses[:, :most], token_mask, None


class Draft:
    """Guesses of a smaller model, drawn as the tokens are."""

    def __init__(self, reader: Rewinder | PredictionModules) -> None:
        self.reader: Any = reader

    def guess(self, state: Speculation, count: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Tokens (b k), how many are real (b), and what they were drawn from (b k l), at temperature 0 None."""
        reader, ids, probs = self.reader, state.ids, []
        if reader.window is not None and reader.caching and ids.shape[1] + count > reader.window:
            reader.caching = False  # it reads its window again, since a window that has slid cannot go back
            reader.forget()
        for _ in range(count):
            logits = state.weighed(ids, reader.read(ids, state.pads))
            if state.choice.temperature == 0:
                token = logits.argmax(dim=-1)
            else:
                probs.append(state.choice.probabilities(logits)[0])
                token = draw(probs[-1], state.choice.generator)
            ids = torch.cat((ids, token.unsqueeze(-1)), dim=1)
        token_mask = torch.full((len(ids),), count, device=ids.device)
        return ids[:, state.ids.shape[1] :], token_mask, torch.stack(probs, dim=1) if probs else None


class ModuleReader(Rewinder):
    """Module k of multi-token prediction with its cache. Its first k indices are padding."""

    def __init__(self, feature: Any, k: int, inputs: dict[str, Any]) -> None:
        own = {name: F.pad(inputs[name], (k, 0)) for name in ('mask', 'pos') if inputs.get(name) is not None}
        super().__init__(feature.owner, {**inputs, **own}, restrict=False)
        self.feature, self.k = feature, k

    def run(self, ids: Tensor, hidden: Tensor, pads: Tensor | None, token_mask: Maybe[Tensor] = None) -> Tensor:
        """Return the stream (b, n, d), given the next tokens (b, n) and the hidden states (b, n, d) before it."""
        length = self.seen + ids.shape[1]
        pads = pads if self.k == 0 else self.k + (ids.new_zeros(len(ids)) if pads is None else pads)
        inputs = self.inputs_at(length, 0, pads)
        inputs |= {name: inputs[name][..., :length] for name in ('mask', 'pos') if inputs.get(name) is not None}
        out, intermediates = self.feature.step(self.k, ids, hidden, token_mask, {**inputs, 'cache': self.cache})
        self.cache, self.seen = intermediates.cache, length
        return out


class PredictionModules:
    """The modules of multi-token prediction of a net as a draft model, with a cache for each.

    At index r, all modules get the embedding of token r + 1 and predict token r + 2. Module k, from 0 on, gets the
    hidden states of the module before it (of the stack, if k = 0) at index r - k: all caches have the same length.
    Draft j + 1 is of module j; after the last module, that one continues with its own output.
    """

    caching, window, ready = False, None, False

    def __init__(self, net: Any, inputs: dict[str, Any], cache_kv: bool) -> None:
        features = getattr(getattr(net, 'features', None), 'active', ())
        feature: Any = next((f for f in features if 'mtp_depth' in f.flags), None)
        if feature is None:
            raise ValueError("`draft='mtp'` needs a model with `mtp_depth`")
        if not (cache_kv and net.can_cache_kv):
            raise ValueError("`draft='mtp'` needs a cache: the modules get the hidden states of new tokens")
        self.feature, self.seen = feature, 0
        self.readers = [ModuleReader(feature, k, inputs) for k in range(len(feature.steps))]
        self.last: list[Tensor] = []  # streams (b, 1, d) of the modules at the last accepted token
        self.out: Any = None

    def learn(self, reader: Rewinder, pads: Tensor | None, longer: Tensor, count: int, accepted: Tensor) -> None:
        """Run the modules on the tokens that the net has read last, all of `longer` (b, t) but one.

        The last `count` tokens of a row are drafts, of which it has `accepted` (b), and one token that follows these.
        """
        if not reader.caching:
            raise ValueError(f"`draft='mtp'` needs a cache that can go back, that of this model holds {reader.reason}")
        hidden, total = reader.intermediates.mtp_hidden, longer.shape[1] - 1
        start, mask = total - hidden.shape[1], reader.inputs.get('mask')
        for one in self.readers:
            one.back_to(start)
        self.ready = all(one.seen == start for one in self.readers)
        if not self.ready:  # Keys of a window are gone: the net and the modules run on all tokens in the next step.
            for one in (reader, *self.readers):
                one.forget()
            return
        if mask is not None:
            mask = F.pad(mask, (0, longer.shape[1] - mask.shape[1]), value=True)[:, start + 1 :]
        rows, last = torch.arange(len(longer), device=longer.device), []
        for one in self.readers:
            if one.k:  # The states of the module before, one index later.
                first = self.last[one.k - 1] if start else torch.zeros_like(hidden[:, :1])
                hidden = torch.cat((first, hidden[:, :-1]), dim=1)
            hidden = one.run(longer[:, start + 1 :], hidden, pads, mask)
            last.append(hidden[rows, hidden.shape[1] - count + accepted].unsqueeze(1))
        self.last, self.seen = last, total

    def read(self, ids: Tensor, pads: Tensor | None) -> Tensor:
        """Return the logits (b, l) of the next draft. `ids` (b, t) ends with the drafts so far."""
        made, modules = ids.shape[1] - self.seen - 1, len(self.readers)
        if made == 0:
            self.out = self.last[0][:, :0]
            return self.feature.logits_of(0, self.last[0][:, -1])
        k = min(made, modules - 1)
        if made < modules:
            hidden, new = torch.cat((self.last[k - 1], self.out), dim=1), ids[:, self.seen + 1 :]
        else:
            hidden, new = self.out[:, -1:] if made > 1 else self.last[k], ids[:, -1:]
        self.out = self.readers[k].run(new, hidden, pads)
        return self.feature.logits_of(k, self.out[:, -1])

    def follow(self, length: int, places: Tensor, most: int, drop: int) -> None:
        """Keep the first `length` tokens, move the rows by their `places`, at most `most`, and drop those in front."""
        for one in self.readers:
            one.follow(length, places, most, drop)
        self.seen = length - drop


# the state


@dataclass
class Speculation:
    """The state of a speculative generation.

    ids    b t   tokens so far, padded on the left; the last one has not been read
    pads   b     number of paddings, if any
    start  b     place of the first generated token
    made   b     number of generated tokens
    out    b s   these, from the left; behind `front` places in which stop sequences never match
    done   b     rows that go no further
    counted      tokens guessed, and accepted
    """

    reader: Rewinder
    guesser: LookUp | Draft
    choice: TokenSampler
    endings: StoppingCriteria
    modules: list[nn.Module]
    ids: Tensor
    pads: Maybe[Tensor]
    leading: torch.Size
    pad_value: int
    seq_len: int
    guesses: int

    def __post_init__(self) -> None:
        b, t = self.ids.shape
        self.failed, self.rounds = FailedRows(self.leading), 0
        self.made = self.ids.new_zeros(b)
        self.start, self.done = self.made + t, torch.zeros(b, dtype=torch.bool, device=self.ids.device)
        room = self.endings.width + self.seq_len + self.guesses + 1
        self.counted = self.ids.new_zeros(2)
        self.out = torch.full((b, room), NO_TOKEN, dtype=torch.long, device=self.ids.device)

    def run(self) -> Tensor:
        """Generate, and give the new tokens in the leading axes of the prompts."""
        left = self.seq_len if len(self.ids) else 0
        while left > 0:
            count = min(self.guesses, left - 1, self.room())
            self.round(max(count, 0))
            # what the row furthest from its end still needs
            left = self.failed.read(torch.where(self.done, 0, self.seq_len - self.made).max())
        front = self.endings.width
        length = int(self.made.max()) if len(self.made) else 0
        new = self.out[:, front : front + length]
        place = torch.arange(length, device=new.device)
        return new.masked_fill(place >= self.made.unsqueeze(-1), self.pad_value).reshape(*self.leading, length)

    @property
    def stats(self) -> SpeculativeStats:
        return SpeculativeStats(self.rounds, *self.counted.tolist())

    def room(self) -> int:
        """Return how many tokens can be guessed before the window would have to slide, one token at a time."""
        window: Any = self.reader.window
        return self.guesses if window is None else window - self.ids.shape[1]

    def weighed(self, ids: Tensor, logits: Tensor) -> Tensor:
        """The logits (b l) after `ids` with all that is switched on before the filters."""
        if not self.choice.steps:
            return logits
        mask = self.reader.inputs.get('mask')
        return self.choice.process_logits(logits, GenerationHistory(ids, self.start, self.pads, mask, self.seq_len))

    def round(self, count: int) -> None:
        """Guess so many tokens, and add to each row those accepted, and one more."""
        t = self.ids.shape[1]
        modules = self.guesser.reader if isinstance(self.guesser.reader, PredictionModules) else None
        none = self.ids[:, :0], self.made, None
        guesses, token_mask, q = (
            self.guesser.guess(self, count) if count and (modules is None or modules.ready) else none
        )
        count = guesses.shape[1]
        longer = torch.cat((self.ids, guesses), dim=1)
        logits = self.reader.read(longer, self.pads, count + 1)
        if q is not None and q.shape[-1] != logits.shape[-1]:
            raise ValueError(f'`draft` must give {logits.shape[-1]}, as the model does, got {q.shape[-1]} logits')
        if self.choice.steps:
            each = [self.weighed(longer[:, : t + i], logits[:, i]) for i in range(count + 1)]
            logits = torch.stack(each, dim=1)
        # A row may hold ids that the model reads and cannot say.
        known = mask_from_lengths(token_mask, count) & (guesses < logits.shape[-1])
        accepted, token, largest = self.judged(guesses.clamp(max=logits.shape[-1] - 1), known, q, logits)
        self.rounds += 1
        self.counted = self.counted + torch.stack((known.sum(dim=1), accepted)).masked_fill(self.done, 0).sum(dim=1)
        token, place = rearrange(token, 'b -> b 1'), rearrange(accepted, 'b -> b 1')
        block = torch.cat((guesses, token), dim=1).scatter(1, place, token)
        if not self.reader.caching:  # rows that are read again each time stay together, without padding in front
            accepted = accepted.clamp(max=torch.where(self.done, count, accepted).min())
        before = self.made
        self.write(block, accepted + 1)
        self.failed.add(largest.mT, ignored=~mask_from_lengths(self.made - before, count + 1).mT)
        longer = torch.cat((self.ids, block), dim=1)
        if modules is not None:
            modules.learn(self.reader, self.pads, longer, count + 1, accepted)
        self.align(longer, t, accepted)

    def judged(self, guesses: Tensor, known: Tensor, q: Tensor | None, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Judge guesses (b, k) by logits (b, k + 1, l): return how many of them each row accepts, the token (b) that
        follows them, and the largest logits (b, k + 1)."""
        rows = torch.arange(len(guesses), device=guesses.device)
        if self.choice.temperature == 0:
            largest, best = logits.max(dim=-1)
            accepted = ((guesses == best[:, :-1]) & known).cumprod(dim=1).sum(dim=1)
            return accepted, best[rows, accepted], largest
        (p, largest), generator = self.choice.probabilities(logits), self.choice.generator
        q = F.one_hot(guesses, p.shape[-1]).to(p.dtype) if q is None else q.to(p.dtype)
        q = F.pad(q * rearrange(known, 'b k -> b k 1'), (0, 0, 0, 1))
        chance = torch.rand(guesses.shape, dtype=p.dtype, device=p.device, generator=generator)
        wanted, offered = (probs[:, :-1].gather(-1, guesses.unsqueeze(-1)).squeeze(-1) for probs in (p, q))
        accepted = ((chance * offered < wanted) & known).cumprod(dim=1).sum(dim=1)
        own = p[rows, accepted]
        rest = (own - q[rows, accepted]).clamp(min=0)
        # nothing is left where both agree up to rounding: then a rejection has no weight either
        rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, own)
        return accepted, draw(rest, generator), largest

    def write(self, block: Tensor, count: Tensor) -> None:
        """Add the first `count` (b) tokens of a block (b k) to what rows that go on have made, up to their end."""
        width, size = self.endings.width, block.shape[1]
        place = torch.arange(size, device=block.device)
        # at most what is still wanted, nothing of rows that are done
        count = torch.where(self.done, 0, torch.minimum(count, self.seq_len - self.made))
        at = rearrange(self.made, 'b -> b 1') + place + width
        new = mask_from_lengths(count, size)
        at = torch.where(new, at, self.out.shape[1] - 1)
        self.out = self.out.scatter(1, at, block)  # the last place takes what nobody reads
        if self.endings:
            back = torch.arange(1 - width, 1, device=at.device)
            tails = [self.out.gather(1, end + back) for end in at.split(1, dim=1)]
            ends = [self.endings.reasons(tail, self.made + i) > 0 for i, tail in enumerate(tails, start=1)]
            ends = torch.stack(ends, dim=1) & new
            ended = ends.any(dim=1)
            count = torch.where(ended, ends.int().argmax(dim=1) + 1, count)
            self.done = self.done | ended
        self.made = self.made + count
        self.done = self.done | (self.made >= self.seq_len)

    def align(self, longer: Tensor, t: int, accepted: Tensor) -> None:
        """Keep what is accepted: take back what no row accepts, and move rows that accept less to the right."""
        if longer.shape[1] == t + 1:
            self.ids = longer
            return
        # rows that are done go with the furthest; what they hold does not matter any more
        furthest = torch.where(self.done, 0, accepted).max()
        places = torch.where(self.done, 0, furthest - accepted)
        most, ragged = torch.stack((furthest, places.max())).tolist()
        self.ids = longer[:, : t + most + 1]
        drop = 0
        if ragged:
            self.ids = shift_right(self.ids, places, self.pad_value)
            self.pads = places if self.pads is None else self.pads + places
            self.start = self.start + places
            drop = int(self.pads.min())
        for reader in filter(None, (self.reader, self.guesser.reader)):
            reader.follow(t + most, places, ragged, drop)
        if drop:
            self.ids, self.pads, self.start = self.ids[:, drop:], self.pads - drop, self.start - drop


def limit_drafts(net: Any, inputs: dict[str, Any], batch_size: int, cache_kv: bool, num_draft_tokens: int) -> int:
    """Return the number of tokens to draft: 0, with a warning, where drafts would change what the model computes."""
    check_looped_exits(net, inputs, batch_size, cache_kv)
    reasons = []
    uncached = counts_tokens(net) and not getattr(net, 'can_cache_kv', True)
    if uncached or getattr(net, 'follows_length', False):
        reasons.append(': in this model, earlier tokens depend on the number of later ones')
    if gets_whole_input(net) and hasattr(net, 'attn_layers') and batch_size > 1:
        reasons.append(' for batches of models with custom code, which may not ignore padding')
    if inputs.get('looped_inference'):
        reasons.append(' with `looped_inference`, which decides at each token when to exit')
    for reason in reasons:
        warn_once(f'speculative decoding drafts no tokens{reason}')
    return 0 if reasons else num_draft_tokens


def speculation(
    wrapper: Any,
    prompts: Any,
    seq_len: int,
    draft: Any,
    num_draft_tokens: int,
    max_ngram: int,
    draft_kwargs: dict[str, Any] | None,
    options: dict[str, Any],
    exits: dict[str, Any] | None = None,
) -> Speculation:
    """The state of a speculative generation before its first step, with all that is checked before. A net that drafts
    for itself is called with `exits` too."""
    for name, value in (('num_draft_tokens', num_draft_tokens), ('max_ngram', max_ngram)):
        require(is_int(value) and value >= 1, name, value, 'an integer of at least 1')
    vocabulary, inputs = get_vocabulary(wrapper.net), dict(options)
    choice = TokenSampler.for_wrapper(wrapper, inputs)
    reading = dict(cache_kv=inputs.pop('cache_kv', True), restrict=inputs.pop('restrict_to_max_seq_len', True))
    reading['slides'] = inputs.pop('slide_cache', True)
    prompt_lens = inputs.pop('prompt_lens', None)
    refuse_own(inputs, 'speculative', SET_BY_GENERATION)
    Guidance.refuse(inputs, 'speculative decoding')
    alone = 'amateur_model', 'contrastive_decode_kwargs', 'num_samples', 'callback', 'prompt_cache', 'kv_storage'
    for name in alone:
        if inputs.pop(name, None) is not None:
            raise ValueError(f'`{name}` cannot be combined with speculative decoding, give it to `generate`')
    if inputs.pop('compile', False):
        raise ValueError('`compile` cannot be combined with speculative decoding, give it to `generate`')
    seq_len = as_number(seq_len)
    ids, pads, leading = wrapper.opening(prompts, prompt_lens, seq_len, inputs)
    seq_len = new_tokens_of(seq_len, ids.shape[1])
    modules = list(wrapper.modules())
    if draft is None and draft_kwargs is not None:
        raise ValueError('`draft_kwargs` needs a `draft`')
    guesser: LookUp | Draft = LookUp(max_ngram)
    if isinstance(draft, str):
        guesser = Draft(PredictionModules(wrapper.net, inputs, reading['cache_kv']))
        inputs = {**inputs, 'return_mtp': 'hidden'}
    elif draft is not None:
        draft = draft.net if hasattr(draft, 'net') else draft
        check_net(draft)
        others = get_vocabulary(draft)
        same = None in (others, vocabulary) or others == vocabulary
        require(same, 'draft', f'{others} tokens', f'a model of {vocabulary} tokens')
        modules += list(draft.modules())
        of_draft = inputs if draft_kwargs is None else draft_kwargs
        guesser = Draft(Rewinder(draft, {**of_draft, **(exits or {})}, **reading))
    num_draft_tokens = limit_drafts(wrapper.net, inputs, len(ids), reading['cache_kv'], num_draft_tokens)
    return Speculation(
        reader=Rewinder(wrapper.net, inputs, **reading),
        guesser=guesser,
        choice=choice,
        endings=choice.endings.to(ids.device),
        modules=modules,
        ids=ids,
        pads=pads,
        leading=leading,
        pad_value=wrapper.pad_value,
        seq_len=seq_len,
        guesses=num_draft_tokens,
    )

"""Continuous batching: requests of different lengths join and leave between steps, and share a pool of memory."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from x_transformers.cache import Cache
from x_transformers.core.checks import as_number, check_ids, find_weights, values_of
from x_transformers.core.own_modules import gets_whole_input, has_own_forward, known_stack
from x_transformers.flags import ConfigError, advice, count, is_int, none, size
from x_transformers.flags.checks import Maybe
from x_transformers.flags.unexpected import answering
from x_transformers.generation.cached_step import each_rows, get_form, named_rows
from x_transformers.generation.choice import ENDS, NO_TOKEN, REASONS, GenerationHistory, TokenSampler
from x_transformers.generation.engine import Generated, IncrementalModel, eval_modules, get_reasons
from x_transformers.generation.failures import no_token_error
from x_transformers.generation.guidance import Guidance
from x_transformers.generation.paged import BlockPool, PagedStep, PoolIsFull, Table
from x_transformers.generation.sampling import new_tokens_of, require

__all__ = ['Completion', 'Paged', 'PagedEngine', 'PoolIsFull']

PADDED = 1.25  # prompts are read together as long as no more than this times their tokens are


class Completion(NamedTuple):
    """How a request has ended.

    tokens          s   the new ones
    finish_reason       'eos', 'stop' or 'length', 'cancelled', or 'error'
    error               what was raised when its tokens were chosen
    shared              tokens of the prompt that others had read before
    """

    tokens: Tensor
    finish_reason: str
    error: Maybe[Exception] = None
    shared: int = 0


@dataclass(eq=False)
class Request:
    """A sequence that grows: `ids` of which the first `start` are the prompt, and `stop` the most that there may be."""

    number: int
    ids: list[int]
    start: int
    stop: int
    choice: TokenSampler
    table: Table
    shared: int = 0
    error: Exception | None = field(default=None, repr=False)

    @functools.cached_property
    def ends(self) -> tuple[frozenset[int], list[list[int]]]:
        """End tokens and stop sequences."""
        endings = self.choice.endings
        eos = frozenset() if endings.eos is None else frozenset(endings.eos.tolist())
        stops = [] if endings.stops is None else [[t for t in row if t >= 0] for row in endings.stops.tolist()]
        return eos, stops

    def reason(self) -> int:
        """Why it has ended, as a place in `REASONS`; -1 while it goes on."""
        eos, stops = self.ends
        if self.ids[-1] in eos:
            return 1
        made = len(self.ids) - self.start
        stops = stops if made >= self.choice.min_new_tokens else ()
        if any(len(one) <= made and self.ids[-len(one) :] == one for one in stops):
            return 2
        return 0 if len(self.ids) >= self.stop else -1


class PagedEngine:
    """Continuous batching: generate for many requests, with the same tokens as `AutoregressiveWrapper.generate`.

        engine = PagedEngine(wrapper, num_blocks=512)
        number = engine.add(prompt, 64, temperature=0.)
        while engine.busy:
            engine.step()                         request number -> its new token
        engine.results()[number].tokens

    The cache is stored in blocks of one pool, so that requests allocate memory only as needed. Full blocks of equal
    prefixes are shared. Each step admits waiting requests, in order, as long as there are free blocks, and generates
    the next token of every running one. If the pool is full, the last request is preempted: its blocks are freed, and
    it is recomputed later.

    num_blocks   number of blocks in the pool; a block holds `block_size` tokens of a sequence, in all layers
    max_batch    maximum number of running requests
    max_waiting  maximum number of waiting requests; None for no limit
    compile      True, or a backend of torch.compile, to compile the steps
    raises       ConfigError for models whose past is not one entry per token, or that cannot be padded on the left

    The model may be cast or moved while no request runs: the pool is then allocated again.

    Kwon et al. 2023, arXiv:2309.06180; Yu et al. 2022, Orca: batches that change between steps
    """

    @answering
    def __init__(
        self,
        wrapper: Any,
        num_blocks: int,
        block_size: int = 16,
        max_batch: int = 64,
        max_waiting: int | None = None,
        compile: bool | str = False,
    ) -> None:
        for name, value, check in (
            ('num_blocks', num_blocks, size),
            ('block_size', block_size, size),
            ('max_batch', max_batch, size),
            ('max_waiting', max_waiting, count | none),
        ):
            require(check.test(value), name, value, check.words)
        net = getattr(wrapper, 'net', None)
        if net is None or not hasattr(wrapper, 'generate') or not hasattr(net, 'can_cache_kv'):
            raise ConfigError(f'`wrapper` must be an AutoregressiveWrapper, got {type(wrapper).__name__}')
        self.wrapper, self.net = wrapper, net
        self.refuse_net()
        self.pool, self.max_batch, self.max_waiting = BlockPool(num_blocks, block_size), max_batch, max_waiting
        self.call = wrapper.compiled_net(compile) if compile else net
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.ended: dict[int, Completion] = {}
        self.numbers, self.called = itertools.count(), 'request'
        self.fast: PagedStep | None = None  # since requests joined last
        self.lock, self.modules = threading.RLock(), list(wrapper.modules())
        self.precision, self.kind = self.precision_of_net(), self.kind_now()
        with eval_modules(self.modules):
            self.form = self.form_of_net()

    def precision_of_net(self) -> set[Any]:
        """Return where the net computes and in which types, which those of its cache follow."""
        kinds: set[Any] = {(one.device, one.dtype) for one in find_weights(self.net)}
        for device in {device.type for device, _ in kinds}:
            if torch.is_autocast_enabled(device):
                kinds.add(torch.get_autocast_dtype(device))
        return kinds

    def kind_now(self) -> tuple[Any, ...]:
        """Return the device and dtype of a weight of the net, and that of autocast there."""
        weight = next(self.net.parameters())
        autocast = torch.is_autocast_enabled(weight.device.type) and torch.get_autocast_dtype(weight.device.type)
        return weight.device, weight.dtype, autocast

    def check_precision(self) -> None:
        """Drop the memory of the pool if the net computes elsewhere, or in other types, than before; raise a ValueError
        if requests run, whose tokens are cached there."""
        new = self.precision_of_net()
        if new == self.precision:
            return
        if self.running:
            old, kinds = (', '.join(sorted(map(str, one))) for one in (self.precision, new))
            raise ValueError(
                f'the net was cast or moved while {len(self.running)} requests run: their tokens are cached as {old}, '
                f'and it computes in {kinds} now. Cast it back, or `cancel` them'
            )
        self.pool.forget()
        self.precision, self.kind, self.form = new, self.kind_now(), self.form_of_net()

    def refuse_net(self) -> None:
        net = self.net
        reason = None
        if not net.can_cache_kv:
            reason = 'cannot cache: later tokens change what earlier ones were'
        elif not getattr(net, 'can_pad_left', True):
            reason = 'cannot be padded on the left, as sequences of unequal length side by side must be'
        elif getattr(net, 'follows_length', False):
            reason = 'reads a token again when the sequence grows'
        elif known_stack(net.attn_layers).cross_attend:
            reason = 'reads a context beside its tokens'
        elif gets_whole_input(net) and has_own_forward(net):
            reason = 'has code of others that may need all tokens of a sequence (set `reads_whole = False` if not)'
        if reason is not None:
            raise ConfigError(f'`wrapper` has a net that {reason}: use `generate`')

    # requests

    @answering
    def add(
        self,
        prompt: Tensor | Sequence[int],
        seq_len: int,
        eos_token: Any = None,
        stop_sequences: Any = None,
        **options: Any,
    ) -> int:
        """Add a request for `seq_len` tokens after a prompt, and return its number.

        prompt     n      ids, at least one
        seq_len           number of tokens; fewer if the text ends before
        eos_token, stop_sequences   stopping criteria, as in `generate`
        options           sampling options, as in `generate`: `temperature`, `filter_logits_fn`, `generator`, ...
        raises            ValueError or TypeError if it can never be fulfilled: too long for the net or the pool, ids of
                          no token; PoolIsFull if `max_waiting` others wait. The others go on in any case
        """
        ids = self.prompt_of(prompt)
        seq_len = new_tokens_of(as_number(seq_len), len(ids))
        require(is_int(seq_len) and seq_len >= 1, 'seq_len', seq_len, 'an integer of at least 1')
        choice = self.choice_of({'eos_token': eos_token, 'stop_sequences': stop_sequences, **options})
        self.check_length(len(ids), seq_len)
        with self.lock:
            if self.max_waiting is not None and len(self.waiting) >= self.max_waiting:
                raise PoolIsFull(f'{len(self.waiting)} requests wait already, which is `max_waiting`')
            own = Request(next(self.numbers), ids, len(ids), len(ids) + seq_len, choice, Table(self.pool))
            self.waiting.append(own)
            return own.number

    def choice_of(self, options: dict[str, Any]) -> TokenSampler:
        """Return the choice of a request.  Raises TypeError for other keywords."""
        choice = TokenSampler.for_wrapper(self.wrapper, options)
        for name, value in options.items():
            hint = advice(name, [*TokenSampler.own_names(), 'seq_len', 'prompt'], value, type(self), 'add')
            raise TypeError(f'`{name}` is no keyword of a single request{hint}')
        return choice

    def prompt_of(self, prompt: Any) -> list[int]:
        given = values_of(prompt, 'prompt')
        if given.ndim != 1:
            raise ValueError(f'`prompt` must be ids (n), got shape {tuple(given.shape)}')
        given = given.long() if given.numel() == 0 and not torch.is_tensor(prompt) else given
        limit = getattr(self.net, 'num_tokens', None)
        return check_ids(given.unsqueeze(0), 'prompt', least=1, num_tokens=limit)[0].tolist()

    def check_length(self, prompt: int, seq_len: int) -> None:
        longest, total = getattr(self.net, 'max_seq_len', 0) or 0, prompt + seq_len
        if longest and total > longest:
            raise ValueError(
                f'`seq_len` got {seq_len} behind a prompt of {prompt} tokens, '
                f'more than the `max_seq_len` of the net, {longest}'
            )
        room = self.pool.num_blocks * self.pool.block_size
        if total - 1 > room:  # the last one is not read
            raise ValueError(
                f'`seq_len` got {seq_len} behind a prompt of {prompt} tokens, more than the pool can ever hold, {room}'
            )

    def find(self, number: int) -> Request:
        for one in (*self.running, *self.waiting):
            if one.number == number:
                return one
        raise KeyError(f'there is no request {number!r} that waits or runs')

    def cancel(self, number: int) -> None:
        """Cancel a request and keep its tokens so far.  Raises KeyError if none of this number waits or runs."""
        with self.lock:
            self.end(self.find(number), 'cancelled')

    def fork(self, number: int, **options: Any) -> int:
        """Another request that goes on from where a running one is, and shares what was read; its number. It waits if
        `max_batch` run already.

        options   how its tokens are chosen, as in `add`; as before if there are none
        raises    KeyError if none of this number runs
        """
        with self.lock:
            old = self.find(number)
            if old not in self.running:
                raise KeyError(f'request {number} waits, only those that run can be continued twice')
            ends = {name: getattr(old.choice, name) for name in ENDS}
            choice = self.choice_of(ends | options) if options else old.choice
            full = len(self.running) >= self.max_batch
            table = Table(self.pool) if full else old.table.fork()
            own = replace(old, number=next(self.numbers), ids=list(old.ids), choice=choice, table=table)
            (self.waiting if full else self.running).append(own)
            return own.number

    def end(self, one: Request, reason: str) -> None:
        one.table.clear()
        if one in self.running:
            self.running.remove(one)
        elif one in self.waiting:
            self.waiting.remove(one)
        self.ended[one.number] = Completion(torch.tensor(one.ids[one.start :]), reason, one.error, one.shared)

    @property
    def busy(self) -> bool:
        """Return True if anything waits or runs."""
        return bool(self.waiting or self.running)

    def results(self) -> dict[int, Completion]:
        """Return the requests that have ended since the last call, by number."""
        with self.lock:
            ended, self.ended = self.ended, {}
            return ended

    def run(self) -> dict[int, Completion]:
        """Run steps until all requests have ended, and return the results."""
        while self.busy:
            self.step()
        return self.results()

    @property
    def waste(self) -> float:
        """The part of the blocks in use that holds no token."""
        filled: dict[int, int] = {}
        for one in self.running:
            for at, block in enumerate(one.table.blocks):
                held = min(max(one.table.length - at * self.pool.block_size, 0), self.pool.block_size)
                filled[block] = max(filled.get(block, 0), held)
        return 1 - sum(filled.values()) / (len(filled) * self.pool.block_size) if filled else 0.0

    # steps

    def step(self) -> dict[int, int]:
        """Generate the next token of every running request, by number, after admitting waiting requests."""
        with self.lock, eval_modules(self.modules):
            # To look at all weights takes a fifth of a step of a small model: while requests run, one tells.
            if not self.running or self.kind_now() != self.kind:
                self.check_precision()
            before = list(self.running)
            if got := self.admit():  # A step that is written out holds until other requests join.
                self.fast = None if self.call is not self.net else PagedStep.of(self.net, {})
                if self.fast is not None and not self.fast.takes(torch.zeros(1, 1, dtype=torch.long), self.form):
                    self.fast = None
            before = [one for one in before if one in self.running]
            return got | self.continued(before)

    def admit(self) -> dict[int, int]:
        """Read the prompts of requests that may run from now on, and give them their first tokens."""
        new: list[tuple[Request, list[int]]] = []
        while self.waiting and len(self.running) + len(new) < self.max_batch:
            one = self.waiting[0]
            one.table.share(one.ids, len(one.ids) - 1)
            # those that run need a block each now and then
            spare = 0 if not (self.running or new) else min(len(self.running), self.pool.num_blocks // 16)
            if one.table.missing(len(one.ids) - one.table.length) + spare > len(self.pool.free):
                one.table.clear()
                break
            one.shared = max(one.shared, one.table.length)
            new.append((one, one.table.reserve(len(one.ids) - one.table.length)))
            self.waiting.popleft()
            if one.table.length or self.would_share(one):
                break  # what it shares, or others will, is read by then
        got: dict[int, int] = {}
        try:
            for group in self.groups(new):
                logits = self.read_prompts([one for one, _ in group], [slots for _, slots in group])
                self.running += [one for one, _ in group]
                got |= self.choose([one for one, _ in group], logits)
        finally:
            for one, _ in reversed(new):
                if one not in self.running and one.number not in self.ended:
                    one.table.clear()
                    self.waiting.appendleft(one)
        return got

    def would_share(self, one: Request) -> bool:
        """Return True if the next request begins as this one does."""
        if not self.waiting:
            return False
        first, other = one.ids[: self.pool.block_size], self.waiting[0].ids
        return len(first) == self.pool.block_size < len(other) and other[: self.pool.block_size] == first

    @staticmethod
    def groups(new: list[tuple[Request, list[int]]]) -> list[list[tuple[Request, list[int]]]]:
        """Those that are read together: of not too different lengths, and none that goes on from a shared beginning."""
        groups: list[list[tuple[Request, list[int]]]] = []
        total = 0
        for pair in sorted(new, key=lambda pair: (pair[0].table.length > 0, len(pair[1]))):
            alone = pair[0].table.length > 0 or (groups and groups[-1][0][0].table.length > 0)
            longest = len(pair[1])
            if not groups or alone or longest * (len(groups[-1]) + 1) > PADDED * (total + longest):
                groups.append([])
                total = 0
            groups[-1].append(pair)
            total += longest
        return groups

    def read_prompts(self, ones: list[Request], slots: list[list[int]]) -> Tensor:
        """Read what is not read of prompts into slots that are reserved. The logits behind them:  b l"""
        device = self.device
        news = [one.ids[one.table.length :] for one in ones]
        width = max(map(len, news))
        pads = torch.tensor([width - len(new) for new in news])
        ids = torch.tensor([[0] * int(pad) + new for pad, new in zip(pads, news, strict=True)], device=device)
        inputs: dict[str, Any] = {'seq_start_pos': pads.to(device)} if bool(pads.any()) else {}
        if getattr(self.net, 'can_keep_logits', False):
            inputs['logits_to_keep'] = 1
        if ones[0].table.length:
            index = ones[0].table.slots().to(device).unsqueeze(0)
            inputs |= dict(cache=self.cache_of(index), input_not_include_cache=True)
        out, left = self.call(ids, return_intermediates=True, **inputs)
        everything = left.everything
        rows = named_rows(everything)
        for at, (one, own) in enumerate(zip(ones, slots, strict=True)):
            where = torch.tensor(own, device=device)
            for name, buffer in rows.items():
                self.pool.write(name, where, _select_sequence(buffer.tensor, at, len(own)))
            one.table.fill(one.ids)
        return IncrementalModel.last(out)

    def form_of_net(self) -> Cache:
        """Return the form of the states of a token, without its vectors."""
        _, left = self.net(torch.zeros(1, 1, dtype=torch.long, device=self.device), return_intermediates=True)
        try:
            form = get_form(left.everything)
        except ValueError as error:
            raise ConfigError(f'`wrapper` has a net whose past cannot stand in blocks: {error}') from None
        if form.num_prefix_tokens:
            raise ConfigError('`wrapper` has a net that puts tokens in front of the sequence: use `generate`')
        return form

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    def cache_of(self, index: Tensor) -> Cache:
        """Return the cache of sequences whose tokens are in slots (b, n)."""

        def rows(name: str, form: Any) -> Any:
            held = self.pool.read(name, index)
            *lead, width = form.sizes[1:]
            return form.like(held.unflatten(-1, (*lead, width)).movedim(1, -2))

        cache = each_rows(self.form, rows)
        return replace(cache, num_seen_tokens=cache.length)

    def continued(self, ones: list[Request]) -> dict[int, int]:
        """Read the last token of each, and choose the next one."""
        slots: dict[int, int] = {}
        for one in ones:
            while one in self.running and one.number not in slots:
                try:
                    slots[one.number] = one.table.reserve(1)[0]
                except PoolIsFull:
                    slots.pop(self.give_way().number, None)
        ones = [one for one in ones if one.number in slots]
        if not ones:
            return {}
        logits = self.read_tokens(ones, [slots[one.number] for one in ones])
        for one in ones:
            one.table.fill(one.ids)
        return self.choose(ones, logits)

    def give_way(self) -> Request:
        """The request that came last gives its blocks back, and waits."""
        last = max(self.running, key=lambda one: one.number)
        last.table.clear()
        self.running.remove(last)
        self.waiting.appendleft(last)
        return last

    def read_tokens(self, ones: list[Request], new: list[int]) -> Tensor:
        index = self.index(ones, new)
        ids = torch.tensor([one.ids[-1] for one in ones], device=self.device)
        places = torch.tensor([one.table.length for one in ones], device=self.device)
        if self.fast is not None:
            return self.fast(ids, places, index, self.pool)
        pads = (index == self.pool.blank).sum(dim=-1)
        inputs = {'seq_start_pos': pads} if bool(pads.any()) else {}
        cache = self.cache_of(index[:, :-1])
        out, left = self.call(
            ids.unsqueeze(-1), return_intermediates=True, cache=cache, input_not_include_cache=True, **inputs
        )
        for name, buffer in named_rows(left.everything).items():
            self.pool.write(name, index[:, -1], buffer.tensor[..., -1, :])
        return IncrementalModel.last(out)

    def index(self, ones: list[Request], new: list[int]) -> Tensor:
        """Slots of all tokens (b n), the new ones last, with blanks in front of shorter sequences."""
        size = self.pool.block_size
        lengths = torch.tensor([one.table.length + 1 for one in ones])
        width = max(len(one.table.blocks) for one in ones)
        blocks = torch.tensor([one.table.blocks + [0] * (width - len(one.table.blocks)) for one in ones])
        most = int(lengths.max())
        place = torch.arange(most) + (lengths - most).unsqueeze(-1)
        slots = blocks.gather(1, place.clamp(min=0) // size) * size + place % size
        return slots.masked_fill(place < 0, self.pool.blank).to(self.device)

    def choose(self, ones: list[Request], logits: Tensor) -> dict[int, int]:
        """Give each its next token, from logits (b l), and end those that are done."""
        largest, best = logits.max(dim=-1)
        greedy = best.masked_fill(~largest.isfinite(), NO_TOKEN).tolist()
        got = {}
        for at, one in enumerate(ones):
            try:
                if one.choice.temperature or one.choice.steps:
                    token = self.drawn(one, logits[at : at + 1])
                elif (token := greedy[at]) == NO_TOKEN:
                    raise no_token_error(largest[at].item(), f'{self.called} {one.number}')
            except Exception as error:  # of a processor or a filter of the user's: the others go on
                one.error = error
                self.end(one, 'error')
                continue
            one.ids.append(token)
            got[one.number] = token
            reason = one.reason()
            if reason >= 0:
                self.end(one, REASONS[reason])
        return got

    def drawn(self, one: Request, logits: Tensor) -> int:
        if one.choice.steps:
            ids = torch.tensor([one.ids], device=logits.device)
            logits = one.choice.process_logits(
                logits, GenerationHistory(ids, one.start, max_new_tokens=one.stop - one.start)
            )
        tokens, largest = one.choice.draw(logits)
        token = int(tokens.masked_fill(~largest.isfinite(), NO_TOKEN))
        if token == NO_TOKEN:
            raise no_token_error(largest.item(), f'{self.called} {one.number}')
        return token


@dataclass(frozen=True)
class Paged:
    """Where `generate(..., kv_storage=Paged(num_blocks))` keeps what it remembers: see `PagedEngine`."""

    num_blocks: int
    block_size: int = 16


NOT_BY_ROWS = (
    'amateur_model', 'contrastive_decode_kwargs', 'return_intermediates', 'return_log_probs', 'prompt_cache',
)  # fmt: skip


class Requests:
    """The rows of `generate(..., kv_storage=...)` as requests of an engine of their own.

    `options` are keywords of `generate`. Those that need all rows side by side are refused.
    """

    def __init__(self, wrapper: Any, storage: Any, prompts: Any, seq_len: Any, options: dict[str, Any]) -> None:
        require(isinstance(storage, Paged), 'kv_storage', storage, '`Paged(num_blocks, block_size)`, or None')
        own = dict(options)
        for name in NOT_BY_ROWS:
            if own.pop(name, None) not in (None, False):
                raise ValueError(f'`{name}` cannot be combined with `kv_storage`: rows are generated one by one')
        for name in ('cache_kv', 'restrict_to_max_seq_len'):
            if not own.pop(name, True):
                raise ValueError(f'`{name}=False` cannot be combined with `kv_storage`: rows are generated one by one')
        own.pop('slide_cache', None)  # No row is longer than `max_seq_len`.
        Guidance.refuse(own, '`kv_storage`')
        several, callback, compiled = own.pop('num_samples', None), own.pop('callback', None), own.pop('compile', False)
        several = as_number(several)
        counted = several is None or (is_int(several) and several >= 1)
        require(counted, 'num_samples', several, 'an integer of at least 1')
        require(callback is None or callable(callback), 'callback', callback, 'a callable, or None')
        prompt_lens, inputs = own.pop('prompt_lens', None), {'mask': own.pop('mask', None)}
        ids, pads, leading = wrapper.opening(prompts, prompt_lens, as_number(seq_len), inputs)
        if inputs.get('mask') is not None:
            raise ValueError(
                '`mask` cannot be combined with `kv_storage` if it has holes: rows are generated without padding'
            )
        seq_len = new_tokens_of(as_number(seq_len), ids.shape[1])
        starts = [0] * len(ids) if pads is None else pads.tolist()
        rows = [row[start:] for row, start in zip(ids, starts, strict=True) for _ in range(several or 1)]
        most = max(len(rows), 1)
        self.engine = PagedEngine(wrapper, storage.num_blocks, storage.block_size, max_batch=most, compile=compiled)
        self.engine.called = 'row'  # The numbers of its requests are those of the rows.
        self.numbers = [self.engine.add(row, seq_len, **own) for row in rows] if seq_len else []
        self.rows, self.ids, self.callback, self.pad_value = len(rows), ids, callback, wrapper.pad_value
        self.ended: dict[int, Completion] = {}
        self.shape = leading if several is None else torch.Size((*leading, several))

    def stream(self) -> Iterator[Tensor]:
        """Yield the tokens of each step, with the leading axes of the prompts; `pad_value` behind the end of a row.

        Raises:
            Exception: That of a row whose next token cannot be chosen.
        """
        made: dict[int, list[int]] = {number: [] for number in self.numbers}
        ended: set[int] = set()
        at = 0
        while self.numbers:
            while all(len(row) > at or number in ended for number, row in made.items()):
                if not any(len(row) > at for row in made.values()):
                    return
                step = [row[at] if len(row) > at else self.pad_value for row in made.values()]
                tokens, at = self.ids.new_tensor(step).reshape(self.shape), at + 1
                if self.callback is not None:
                    self.callback(tokens)
                yield tokens
            for number, token in self.engine.step().items():
                made[number].append(token)
            for number, one in self.engine.results().items():
                if one.error is not None:
                    raise one.error
                ended.add(number)
                self.ended[number] = one

    def finish(self) -> Generated:
        """Generate all tokens, and return them with the reasons why rows have ended."""
        if self.callback is not None:
            for _ in self.stream():
                pass
        found = self.ended | self.engine.run()
        ended = [found[number] for number in self.numbers]
        ended = ended or [Completion(self.ids.new_zeros(0), 'length')] * self.rows
        for error in (one.error for one in ended if one.error is not None):
            raise error
        longest = max((len(one.tokens) for one in ended), default=0)
        tokens = self.ids.new_full((len(ended), longest), self.pad_value)
        for row, one in zip(tokens, ended, strict=True):
            row[: len(one.tokens)] = one.tokens
        codes = torch.tensor([REASONS.index(one.finish_reason) for one in ended], dtype=torch.long)
        reasons = get_reasons(codes.reshape(self.shape))
        return Generated(tokens.reshape(*self.shape, longest), finish_reasons=reasons)


def _select_sequence(rows: Tensor, at: int, count: int) -> Tensor:
    """The last rows of one of a batch, (b ... n d) -> n (... d)."""
    own = rows[at if rows.shape[0] > 1 else 0]
    return own[..., own.shape[-2] - count :, :].movedim(-2, 0)

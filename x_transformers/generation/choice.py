"""How a token is chosen from the logits of a net, and where a row of tokens ends.

What belongs here: `Choice`, which puts together what is switched on, once, before a generation starts, and `Endings`.
The single steps are pure functions of `sampling.py`. No models.

    logits -> repetition, presence and frequency penalties -> bias -> banned and allowed tokens -> processors
           -> filters -> temperature -> draw
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from x_transformers.compat.helpers import identity
from x_transformers.flags import is_int, is_number
from x_transformers.generation.sampling import (
    FILTER_LOGITS_FN,
    accurate,
    counts,
    filter_named,
    filter_with,
    repetition,
    require,
    sample,
    top_k,
)

Processor = Callable[[Tensor, Tensor], Tensor]


def vocabulary_of(net: Any) -> int | None:
    """The number of tokens that the net can say, if it tells."""
    sizes = [getattr(net, name, None) for name in ('num_tokens', 'logits_dim')]
    return max((size for size in sizes if is_int(size)), default=None)


def check_token(token: Any, name: str, vocabulary: int | None) -> None:
    """Refuse what is no token of the vocabulary."""
    end = '' if vocabulary is None else f' below {vocabulary}, the size of the vocabulary'
    allowed = is_int(token) and token >= 0 and (vocabulary is None or token < vocabulary)
    require(allowed, name, token, f'a token id, an integer of at least 0{end}')


def tokens_of(ids: Any, name: str, vocabulary: int | None) -> list[int]:
    """Token ids from a tensor or another collection of them, checked."""
    ids = ids.tolist() if torch.is_tensor(ids) else ids
    if isinstance(ids, (str, bytes)) or not hasattr(ids, '__iter__'):
        require(False, name, ids, 'a sequence of token ids')
    tokens = list(ids)
    for token in tokens:
        check_token(token, name, vocabulary)
    return tokens


@dataclass
class Choice:
    """What is done to the logits (b l) of the next token before one is drawn. All but the draw is off by default.

    temperature          0 ..     0 takes the most probable token, without a filter
    filter_logits_fn              a filter, by name or a callable, or several in order
    filter_kwargs                 a dict for one filter, a sequence of dicts for several
    repetition_penalty   more than 0   logits of tokens in the row, the prompt included, are divided by it where they
                                  are positive and multiplied where negative, arXiv:1909.05858
    presence_penalty              is taken from the logits of tokens that were generated
    frequency_penalty             is taken once for each time that they were
    logit_bias                    token -> number that is added to its logit
    banned_tokens                 tokens that are never chosen
    allowed_tokens                the only tokens that are
    logits_processor              (ids (b t), logits (b l)) -> logits, one or several, last before the filters; ids are
                                  all tokens so far, padded on the left where prompts are
    generator                     source of the draws, on the device of the logits
    vocabulary                    number of tokens, where it is known before the first logits
    """

    temperature: float = 1.0
    filter_logits_fn: Any = top_k
    filter_kwargs: Any = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    banned_tokens: Sequence[int] | Tensor | None = None
    allowed_tokens: Sequence[int] | Tensor | None = None
    logits_processor: Processor | Sequence[Processor] | None = None
    generator: Generator | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        number = is_number(self.temperature) and self.temperature >= 0
        require(number, 'temperature', self.temperature, 'a number of at least 0')
        positive = is_number(self.repetition_penalty) and self.repetition_penalty > 0
        require(positive, 'repetition_penalty', self.repetition_penalty, 'a number of more than 0')
        for name in ('presence_penalty', 'frequency_penalty'):
            require(is_number(getattr(self, name)), name, getattr(self, name), 'a number')
        keep = filter_with(self.filter_logits_fn, self.filter_kwargs)
        # the most probable token is in every filter's choice
        self.keep = identity if self.temperature == 0 else keep
        self.steps = self.composed()

    @property
    def is_ours(self) -> bool:
        """Whether choosing runs no code of others."""
        chosen = self.filter_logits_fn
        filters = chosen if isinstance(chosen, (list, tuple)) else (chosen,)
        known = self.temperature == 0 or all(filter_named(one) in FILTER_LOGITS_FN.values() for one in filters)
        return known and self.logits_processor is None

    @classmethod
    def taken_from(cls, options: dict[str, Any], **settled: Any) -> Choice:
        """From the keywords among `options` that are those of a choice, which are taken out."""
        own = {field.name for field in fields(cls)} - {'vocabulary'}
        return cls(**{name: options.pop(name) for name in list(options) if name in own}, **settled)

    def composed(self) -> list[Callable[[Tensor, Tensor, Past], Tensor]]:
        """The steps that are switched on, in order."""
        steps: list[Any] = []
        if self.repetition_penalty != 1:
            steps.append(self.penalise_repetition)
        if self.presence_penalty or self.frequency_penalty:
            steps.append(self.penalise_generated)
        if self.logit_bias is not None or self.banned_tokens is not None or self.allowed_tokens is not None:
            self.shift = functools.cache(self.shift_for(self.vocabulary))
            steps.append(lambda ids, logits, past: logits + self.shift(logits.shape[-1], logits.dtype, logits.device))
        wanted = self.logits_processor
        wanted = () if wanted is None else wanted if isinstance(wanted, (list, tuple)) else (wanted,)
        for processor in wanted:
            words = 'a callable (ids, logits) -> logits, or several'
            require(callable(processor), 'logits_processor', self.logits_processor, words)
            steps.append(functools.partial(processed, processor))
        return steps

    def shift_for(self, vocabulary: int | None) -> Callable[..., Tensor]:
        """A function that makes what is added to the logits, from their number, type and device."""
        bias = {} if self.logit_bias is None else self.logit_bias
        require(isinstance(bias, Mapping), 'logit_bias', bias, 'a dict from token ids to numbers')
        bias, banned, allowed = dict(bias), self.banned_tokens, self.allowed_tokens
        for token, value in bias.items():
            require(is_number(value), 'logit_bias', value, f'a number for each token, also for {token!r}')

        def check(size: int | None) -> None:
            for name, ids in (('logit_bias', bias), ('banned_tokens', banned), ('allowed_tokens', allowed)):
                tokens_of(() if ids is None else ids, name, size)

        def shift(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            check(size)
            made = torch.zeros(size, dtype=torch.float64, device='cpu')
            for token, value in bias.items():
                made[token] += value
            if allowed is not None:
                kept = torch.zeros(size, dtype=torch.bool, device='cpu')
                kept[torch.tensor(tokens_of(allowed, 'allowed_tokens', size), dtype=torch.long)] = True
                made = made.masked_fill(~kept, -torch.inf)
            if banned is not None:
                made[torch.tensor(tokens_of(banned, 'banned_tokens', size), dtype=torch.long)] = -torch.inf
            name = 'banned_tokens' if banned is not None else 'allowed_tokens'
            if made.isneginf().all():
                raise ValueError(f'`{name}` got {getattr(self, name)!r}, it must leave a token that can be chosen')
            return made.to(dtype=dtype, device=device)

        check(vocabulary)
        if vocabulary is not None:
            shift(vocabulary, torch.float32, torch.device('cpu'))
        return shift

    def penalise_repetition(self, ids: Tensor, logits: Tensor, past: Past) -> Tensor:
        return repetition(logits, counts(ids, past.real(ids), logits.shape[-1]) > 0, self.repetition_penalty)

    def penalise_generated(self, ids: Tensor, logits: Tensor, past: Past) -> Tensor:
        often = counts(ids, past.generated(ids), logits.shape[-1]).to(logits.dtype)
        return logits - self.frequency_penalty * often - self.presence_penalty * (often > 0)

    def weigh(self, ids: Tensor, logits: Tensor, past: Past) -> Tensor:
        """The logits (b l) after the tokens `ids` (b t) with all that is switched on before the filters."""
        logits = accurate(logits) if self.steps else logits  # biases and penalties may be beyond the range of float16
        for step in self.steps:
            logits = step(ids, logits, past)
        return logits

    def draw(self, logits: Tensor) -> Tensor:
        """Choose tokens (...) from weighed logits (... l)."""
        return sample(self.keep(logits), self.temperature, self.generator)

    def probabilities(self, logits: Tensor) -> Tensor:
        """What `draw` draws from, in float32 at least; not for temperature 0."""
        logits = accurate(self.keep(logits))
        return ((logits - logits.amax(dim=-1, keepdim=True)) / self.temperature).softmax(dim=-1)


def processed(processor: Processor, ids: Tensor, logits: Tensor, past: Past) -> Tensor:
    new = processor(ids, logits)
    if not torch.is_tensor(new) or new.shape != logits.shape:
        got = tuple(new.shape) if torch.is_tensor(new) else type(new).__name__
        raise ValueError(f'`logits_processor` gave {got}, it must give logits of the shape {tuple(logits.shape)}')
    return new


@dataclass
class Past:
    """Which of the tokens so far count for penalties.

    start   place of the first generated token, one or (b)
    pads    b      paddings in front of each row, if any
    mask    b t    of the first tokens, if any
    """

    start: int | Tensor
    pads: Tensor | None = None
    mask: Tensor | None = None

    def generated(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        start = self.start.unsqueeze(-1) if torch.is_tensor(self.start) else self.start
        return (place >= start).expand(ids.shape)

    def real(self, ids: Tensor) -> Tensor | None:
        real = None
        if self.pads is not None:
            real = torch.arange(ids.shape[1], device=ids.device) >= self.pads.unsqueeze(-1)
        if self.mask is not None:
            mask = F.pad(self.mask, (0, ids.shape[1] - self.mask.shape[1]), value=True)
            real = mask if real is None else real & mask
        return real


# ends


NO_TOKEN, ANY_TOKEN = -2, -1
REASONS = ('length', 'eos', 'stop')


class Endings:
    """Where rows end: at a token, or when a sequence of tokens is complete. Only generated tokens count.

    eos_token        a token, several, or None
    stop_sequences   sequences of tokens
    """

    def __init__(self, eos_token: Any = None, stop_sequences: Any = None, vocabulary: int | None = None) -> None:
        self.eos = self.ids_of(eos_token, vocabulary)
        stops = () if stop_sequences is None else stop_sequences
        words = 'sequences of token ids, one at least in each'
        iterates = hasattr(stops, '__iter__') and not isinstance(stops, (str, bytes))
        require(iterates, 'stop_sequences', stop_sequences, words)
        for one in stops:
            filled = hasattr(one, '__len__') and not isinstance(one, (str, bytes)) and len(one) > 0
            require(filled, 'stop_sequences', stop_sequences, words)
        rows = [tokens_of(one, 'stop_sequences', vocabulary) for one in stops]
        self.width = max((len(row) for row in rows), default=1)
        self.stops = torch.tensor([[ANY_TOKEN] * (self.width - len(row)) + row for row in rows]) if rows else None

    @staticmethod
    def ids_of(eos_token: Any, vocabulary: int | None) -> Tensor | None:
        if eos_token is None:
            return None
        if is_int(eos_token):
            check_token(eos_token, 'eos_token', vocabulary)
            return torch.tensor([eos_token])
        several = torch.is_tensor(eos_token) or isinstance(eos_token, (list, tuple, set, frozenset, range))
        require(several, 'eos_token', eos_token, 'a token id or None, or a sequence of token ids')
        eos_token = eos_token.flatten() if torch.is_tensor(eos_token) else eos_token
        return torch.tensor(tokens_of(eos_token, 'eos_token', vocabulary), dtype=torch.long)

    def __bool__(self) -> bool:
        return self.eos is not None or self.stops is not None

    def to(self, device: torch.device) -> Endings:
        self.eos = None if self.eos is None else self.eos.to(device)
        self.stops = None if self.stops is None else self.stops.to(device)
        return self

    def is_eos(self, tokens: Tensor) -> Tensor:
        """Which tokens (...) end a row."""
        return (tokens.unsqueeze(-1) == self.eos).any(dim=-1)

    def reasons(self, tail: Tensor) -> Tensor:
        """Places in `REASONS` (b), 0 where a row goes on, from its last generated tokens (b w)."""
        found = torch.zeros(len(tail), dtype=torch.long, device=tail.device)
        if self.stops is not None:
            tail = F.pad(tail, (self.width - tail.shape[1], 0), value=NO_TOKEN)
            same = (tail.unsqueeze(1) == self.stops) | (self.stops == ANY_TOKEN)
            found = found.masked_fill(same.all(dim=-1).any(dim=-1), 2)
        return found if self.eos is None else found.masked_fill(self.is_eos(tail[:, -1]), 1)

"""`TokenSampler`, the pipeline from logits to a token, and `StoppingCriteria`, which ends sequences.

What is switched on is put together once, before a generation starts, from the pure functions of `sampling.py`.

    logits -> repetition, presence and frequency penalties -> bias -> banned and allowed tokens -> processors
           -> filters -> temperature -> draw

No repeated n-grams and no end before `min_new_tokens` are bans, too, and come before the processors.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from x_transformers.core.checks import as_number
from x_transformers.flags import did_you_mean, is_int, is_number
from x_transformers.flags.checks import Maybe
from x_transformers.generation.rules import GenerationHistory as GenerationHistory, NoEndBefore, NoRepeat
from x_transformers.generation.sampling import (
    check_in_range,
    check_logits,
    check_temperature,
    counts,
    entmax,
    filter_with,
    gumbel_noise,
    probabilities_with_max,
    repetition,
    require,
    sample_with_max,
    to_float,
    top_k,
)

Processor = Callable[..., Tensor]
SETTLED = {'vocabulary', 'num_logits', 'never_chosen'}  # what wrappers set, and users do not
ENDS = ('eos_token', 'stop_sequences', 'min_new_tokens')  # options of `TokenSampler` that say where a row ends
NUMBERS = (
    'temperature', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'no_repeat_ngram_size',
    'min_new_tokens',
)  # fmt: skip


def get_vocabulary(net: Any) -> int | None:
    """The number of tokens that the net can say, if it tells."""
    sizes = [getattr(net, name, None) for name in ('num_tokens', 'logits_dim')]
    return max((size for size in sizes if is_int(size)), default=None)


def _ids_below(size: int, ids: Any) -> list[int]:
    """Return those ids of a collection that are less than `size`; of None, none."""
    return [] if ids is None else [token for token in _tokens_of(ids, 'ids', None) if token < size]


def _check_token(token: Any, name: str, vocabulary: int | None) -> None:
    """Refuse what is no token of the vocabulary."""
    end = '' if vocabulary is None else f' below {vocabulary}, the size of the vocabulary'
    allowed = is_int(token) and token >= 0 and (vocabulary is None or token < vocabulary)
    require(allowed, name, token, f'a token id, an integer of at least 0{end}')


def _tokens_of(ids: Any, name: str, vocabulary: int | None) -> list[int]:
    """Token ids from a tensor, an array or another collection of them, checked."""
    ids = ids.tolist() if isinstance(ids, (Tensor, np.ndarray)) else ids
    if isinstance(ids, (str, bytes)) or not hasattr(ids, '__iter__'):
        require(False, name, ids, 'a sequence of token ids')
    tokens: Any = [as_number(token) for token in ids]
    for token in tokens:
        _check_token(token, name, vocabulary)
    return tokens


def refuse_ends(options: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option that ends rows, where all rows have as many tokens as an image."""
    for name in ENDS:
        if name in options and not (options[name] is None or (name == 'min_new_tokens' and options[name] == 0)):
            raise ValueError(f'`{name}` cannot be given here: each row is an image, which has a fixed number of tokens')


@dataclass
class TokenSampler:
    """The options of choosing a token from its logits (b, l) and of ending a row. All but the draw is off by default.

    temperature          0 ..     0 selects the most probable token, without a filter
    filter_logits_fn              a filter, by name or a callable, or several in order
    filter_kwargs                 a dict for one filter, a sequence of dicts for several
    repetition_penalty   more than 0   logits of tokens in the row, the prompt included, are divided by it where they
                                  are positive and multiplied where negative, arXiv:1909.05858
    presence_penalty              is taken from the logits of tokens that were generated
    frequency_penalty             is taken once for each time that they were
    logit_bias                    token -> number that is added to its logit
    banned_tokens                 tokens that are never chosen
    allowed_tokens                the only tokens that are
    no_repeat_ngram_size          no sequence of so many tokens twice in a row, its prompt included; 0 for no such rule
    min_new_tokens                number of new tokens before a row may end: no `eos_token` is chosen, and no stop
                                  sequence counts
    logits_processor              (ids (b t), logits (b l)) -> logits, one or several, last before the filters; ids are
                                  all tokens so far, padded on the left where prompts are. One with a parameter
                                  `history` is given a `GenerationHistory` by that name, which tells what is padding
    generator                     random number generator, on the device of the logits
    eos_token                     a token, or several, that ends a row
    stop_sequences                sequences of tokens that do
    vocabulary                    number of tokens, where it is known before the first logits
    num_logits                    number of those that have a logit, where it is known
    never_chosen                  ids that stand for something else than a token, such as padding
    """

    temperature: float = 1.0
    filter_logits_fn: Any = top_k
    filter_kwargs: Any = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Maybe[Mapping[int, float]] = None
    banned_tokens: Sequence[int] | Tensor | None = None
    allowed_tokens: Sequence[int] | Tensor | None = None
    logits_processor: Processor | Sequence[Processor] | None = None
    generator: Maybe[Generator] = None
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    eos_token: int | Sequence[int] | Tensor | None = None
    stop_sequences: Sequence[Sequence[int]] | None = None
    vocabulary: int | None = None
    num_logits: int | None = None
    never_chosen: Sequence[int] = ()

    def __post_init__(self) -> None:
        for name in NUMBERS:
            setattr(self, name, as_number(getattr(self, name)))
        check_temperature(self.temperature)
        positive = check_in_range(self.repetition_penalty, 0.0) and self.repetition_penalty > 0
        require(positive, 'repetition_penalty', self.repetition_penalty, 'a number of more than 0, not infinite')
        for name in ('presence_penalty', 'frequency_penalty'):
            finite = is_number(getattr(self, name)) and math.isfinite(getattr(self, name))
            require(finite, name, getattr(self, name), 'a number, not NaN or infinite')
        for name in ('no_repeat_ngram_size', 'min_new_tokens'):
            known = is_int(getattr(self, name)) and getattr(self, name) >= 0
            require(known, name, getattr(self, name), 'an integer of at least 0')
        self.endings = StoppingCriteria(self.eos_token, self.stop_sequences, self.vocabulary, self.min_new_tokens)
        self._hand_temperature_to_entmax()
        keep = filter_with(self.filter_logits_fn, self.filter_kwargs)
        # the most probable token is in every filter's choice
        self.keep = None if self.temperature == 0 else keep
        self.steps = self.compose_steps()

    @property
    def places_of_entmax(self) -> list[int]:
        """Return which of the filters are `entmax`."""
        filters = self.filter_logits_fn
        filters = filters if isinstance(filters, (list, tuple)) else (filters,)
        return [at for at, one in enumerate(filters) if one is entmax or one == 'entmax']

    def _hand_temperature_to_entmax(self) -> None:
        """Divide the logits in the filter 'entmax' and not after it: softmax(log p / T) is not entmax(z / T)."""
        found = self.places_of_entmax
        if self.temperature in (0, 1) or not found:
            return
        filter_with(self.filter_logits_fn, self.filter_kwargs)  # refuses keywords of another form
        count = len(self.filter_logits_fn) if isinstance(self.filter_logits_fn, (list, tuple)) else 1
        own: Any = self.filter_kwargs or [{}] * count
        own = [own] if isinstance(own, dict) else list(own)
        if 'temperature' in own[found[0]]:
            raise ValueError("`temperature` cannot be combined with a `temperature` of the filter 'entmax'")
        own[found[0]] = {**own[found[0]], 'temperature': self.temperature}
        self.filter_kwargs, self.temperature = own if count > 1 else own[0], 1.0

    @classmethod
    def taken_from(cls, options: dict[str, Any], **settled: Any) -> TokenSampler:
        """From the keywords among `options` that are those of a choice, which are taken out."""
        own = cls.own_names()
        return cls(**{name: options.pop(name) for name in list(options) if name in own}, **settled)

    @classmethod
    def from_all(cls, options: dict[str, Any], where: str, **settled: Any) -> TokenSampler:
        """Make a choice from options that all must be its own.  Raises TypeError for another one."""
        choice = cls.taken_from(options, **settled)
        for name in options:
            raise TypeError(f'`{name}` is no option of {where}{did_you_mean(name, cls.own_names())}')
        return choice

    @classmethod
    def own_names(cls) -> set[str]:
        """Return the keywords by which users choose."""
        return {field.name for field in fields(cls)} - SETTLED

    @classmethod
    def for_wrapper(cls, wrapper: Any, options: dict[str, Any]) -> TokenSampler:
        """Make the choice of a wrapper around a model of tokens, from `options`, of which its keywords are taken out.

        What marks a place without a target, `ignore_index`, is never chosen, if it is an id of the vocabulary.
        """
        net = wrapper.net
        never = [id for id in (getattr(wrapper, 'ignore_index', None),) if is_int(id) and id >= 0]
        sizes = (getattr(net, name, None) for name in ('logits_dim', 'num_tokens'))
        logits = next((size for size in sizes if is_int(size)), None)
        return cls.taken_from(options, never_chosen=tuple(never), vocabulary=get_vocabulary(net), num_logits=logits)

    def compose_steps(self) -> list[Callable[[Tensor, GenerationHistory], Tensor]]:
        """The steps that are switched on, in order."""
        steps: list[Any] = []
        if self.repetition_penalty != 1:
            steps.append(self.penalise_repetition)
        if self.presence_penalty or self.frequency_penalty:
            steps.append(self.penalise_generated)
        given = (self.logit_bias, self.banned_tokens, self.allowed_tokens)
        if self.never_chosen or any(one is not None for one in given):
            self.shift = functools.cache(self.shift_for(self.vocabulary))
            steps.append(lambda logits, _: logits + self.shift(logits.shape[-1], logits.dtype, logits.device))
        rules: list[Any] = [NoRepeat(self.no_repeat_ngram_size)] if self.no_repeat_ngram_size else []
        if self.min_new_tokens and self.endings.eos is not None:
            rules.append(NoEndBefore(tuple(self.endings.eos.tolist()), new=self.min_new_tokens))
        steps += [functools.partial(_run_processors, rule, True) for rule in rules]
        wanted: Any = self.logits_processor
        wanted = () if wanted is None else wanted if isinstance(wanted, (list, tuple)) else (wanted,)
        for processor in wanted:
            words = 'a callable (ids, logits) -> logits, or several'
            require(callable(processor), 'logits_processor', self.logits_processor, words)
            steps.append(functools.partial(_run_processors, processor, _takes_history(processor)))
        return steps

    def shift_for(self, vocabulary: int | None) -> Callable[..., Tensor]:
        """A function that makes what is added to the logits, from their number, type and device."""
        bias = {} if self.logit_bias is None else self.logit_bias
        require(isinstance(bias, Mapping), 'logit_bias', bias, 'a dict from token ids to numbers')
        bias = {as_number(token): as_number(value) for token, value in bias.items()}
        banned, allowed = self.banned_tokens, self.allowed_tokens
        for token, value in bias.items():
            known = is_number(value) and value < math.inf  # -inf bans a token
            require(known, 'logit_bias', value, f'a number below inf for each token, also for {token!r}')

        def check(size: int | None) -> None:
            for name, ids in (('logit_bias', bias), ('banned_tokens', banned), ('allowed_tokens', allowed)):
                _tokens_of(() if ids is None else ids, name, size)

        def shift(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            check(max(size, vocabulary or 0))
            # A model may read more tokens than it has logits for. These cannot be chosen anyway.
            made = [0.0 if allowed is None else -math.inf] * size
            for token in _ids_below(size, allowed):
                made[token] = 0.0
            for token in filter(size.__gt__, bias):
                made[token] += bias[token]
            for ids in (banned, self.never_chosen):
                for token in _ids_below(size, ids):
                    made[token] = -math.inf
            name = next((n for n in ('banned_tokens', 'allowed_tokens') if getattr(self, n) is not None), 'logit_bias')
            if all(value == -math.inf for value in made):
                raise ValueError(f'`{name}` must leave a token that can be chosen, got {getattr(self, name)!r}')
            return torch.tensor(made, dtype=dtype, device=device)

        check(vocabulary)
        if vocabulary is not None:
            shift(self.num_logits or vocabulary, torch.float32, torch.device('cpu'))
        return shift

    def penalise_repetition(self, logits: Tensor, history: GenerationHistory) -> Tensor:
        seen = counts(history.ids, history.padding_mask, logits.shape[-1]) > 0
        return repetition(logits, seen, self.repetition_penalty)

    def penalise_generated(self, logits: Tensor, history: GenerationHistory) -> Tensor:
        often = counts(history.ids, history.generated_mask, logits.shape[-1]).to(logits.dtype)
        return logits - self.frequency_penalty * often - self.presence_penalty * (often > 0)

    def process_logits(self, logits: Tensor, history: GenerationHistory) -> Tensor:
        """Apply all that is switched on before the filters to the logits (b, l) of the next tokens."""
        logits = to_float(logits) if self.steps else logits  # biases and penalties may be beyond the range of float16
        for step in self.steps:
            logits = step(logits, history)
        return logits

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose tokens (...) from weighed logits (..., l), and return them with the largest logits (...), which are
        not finite where nothing can be chosen: see `FailedRows`."""
        logits = self.kept(logits)
        if self.temperature == 0:
            largest, tokens = logits.max(dim=-1)
            return tokens, largest
        return sample_with_max(logits, self.temperature, self.generator)

    def probabilities(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities that `draw` draws from, in float32 at least, and the largest logits; not for
        temperature 0."""
        return probabilities_with_max(self.kept(logits), self.temperature)

    def perturbed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the largest k tokens are drawn by, without replacement, and the largest logits.

            log p_i + Gumbel noise                      p the probabilities that `draw` draws from, not at temperature 0

        Kool et al. 2019, arXiv:1903.06059
        """
        kept = to_float(self.kept(logits))
        largest = kept.amax(dim=-1, keepdim=True)
        ranks = (kept - largest) / self.temperature + gumbel_noise(kept, self.generator)
        return ranks.masked_fill(kept.isneginf(), -torch.inf), largest.squeeze(-1)

    def kept(self, logits: Tensor) -> Tensor:
        """Return the logits after the filters."""
        kept = logits if self.keep is None else self.keep(logits)
        if kept.__class__ is not Tensor or not kept.is_floating_point() or not kept.numel():
            check_logits(kept)
        return kept


def _takes_history(processor: Processor) -> bool:
    """Return True if a processor has a parameter `history`."""
    called = processor.forward if isinstance(processor, nn.Module) else processor
    try:
        found = inspect.signature(called).parameters.get('history')
    except (TypeError, ValueError):  # Some built-in callables have no signature.
        return False
    return found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)


def _run_processors(processor: Processor, wants_history: bool, logits: Tensor, history: GenerationHistory) -> Tensor:
    new = processor(history.ids, logits, history=history) if wants_history else processor(history.ids, logits)
    if not torch.is_tensor(new) or new.shape != logits.shape:
        got = tuple(new.shape) if torch.is_tensor(new) else type(new).__name__
        raise ValueError(f'`logits_processor` gave {got}, it must give logits of the shape {tuple(logits.shape)}')
    return new


# ends


NO_TOKEN, ANY_TOKEN = -2, -1
REASONS = ('length', 'eos', 'stop')


class StoppingCriteria:
    """Where rows end: at a token, or when a sequence of tokens is complete. Only generated tokens count.

    eos_token        a token, several, or None
    stop_sequences   sequences of tokens
    min_new_tokens   number of generated tokens before which sequences do not count, the last one included
    """

    def __init__(
        self,
        eos_token: Any = None,
        stop_sequences: Any = None,
        vocabulary: int | None = None,
        min_new_tokens: int = 0,
    ) -> None:
        self.eos, self.min_new_tokens = self.ids_of(eos_token, vocabulary), min_new_tokens
        stops: Any = () if stop_sequences is None else stop_sequences
        words = 'sequences of token ids, one at least in each'
        iterates = hasattr(stops, '__iter__') and not isinstance(stops, (str, bytes))
        require(iterates, 'stop_sequences', stop_sequences, words)
        for one in stops:
            sized: Any = one
            filled = hasattr(one, '__len__') and not isinstance(one, (str, bytes)) and len(sized) > 0
            require(filled, 'stop_sequences', stop_sequences, words)
        rows = [_tokens_of(one, 'stop_sequences', vocabulary) for one in stops]
        self.width = max((len(row) for row in rows), default=1)
        self.stops = torch.tensor([[ANY_TOKEN] * (self.width - len(row)) + row for row in rows]) if rows else None

    @staticmethod
    def ids_of(eos_token: Any, vocabulary: int | None) -> Tensor | None:
        if eos_token is None:
            return None
        eos_token = torch.as_tensor(eos_token) if isinstance(eos_token, np.ndarray) else eos_token
        if is_int(eos_token):
            _check_token(eos_token, 'eos_token', vocabulary)
            return torch.tensor([eos_token])
        several = torch.is_tensor(eos_token) or isinstance(eos_token, (list, tuple, set, frozenset, range))
        require(several, 'eos_token', eos_token, 'a token id or None, or a sequence of token ids')
        eos_token = eos_token.flatten() if torch.is_tensor(eos_token) else eos_token
        return torch.tensor(_tokens_of(eos_token, 'eos_token', vocabulary), dtype=torch.long)

    def __bool__(self) -> bool:
        return self.eos is not None or self.stops is not None

    def to(self, device: torch.device) -> StoppingCriteria:
        self.eos = None if self.eos is None else self.eos.to(device)
        self.stops = None if self.stops is None else self.stops.to(device)
        return self

    def is_eos(self, tokens: Tensor) -> Tensor:
        """Return which tokens (...) end a row."""
        return (tokens.unsqueeze(-1) == self.eos).any(dim=-1)

    @property
    def num_last_tokens(self) -> int:
        """Return how many tokens may end a row at a place, at most."""
        return sum(0 if one is None else len(one) for one in (self.eos, self.stops))

    def reasons(self, tail: Tensor, made: int | Tensor | None = None) -> Tensor:
        """Return indices into `REASONS` (b), 0 where a row goes on, from its last generated tokens, `tail` (b, w), and
        their number, an integer or one per row (b); by default enough to end.
        """
        found = torch.zeros(len(tail), dtype=torch.long, device=tail.device)
        if self.stops is not None:
            tail = F.pad(tail, (self.width - tail.shape[1], 0), value=NO_TOKEN)
            same = (tail.unsqueeze(1) == self.stops) | (self.stops == ANY_TOKEN)
            stopped = same.all(dim=-1).any(dim=-1)
            if self.min_new_tokens and made is not None:
                stopped = stopped & (made >= self.min_new_tokens)
            found = found.masked_fill(stopped, 2)
        return found if self.eos is None else found.masked_fill(self.is_eos(tail[:, -1]), 1)

"""Sampling functions: filters and penalties of logits, the draw, and the padding of prompts.

Logits have the shape `(..., l)`, with any leading axes and `l` the vocabulary. A filter sets what it leaves out to -inf
and keeps the other logits as they are, but for `entmax`. It never changes its input.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from x_transformers.core.checks import as_number, check_ids, values_of
from x_transformers.core.modes import clamp_to_dtype, to_float
from x_transformers.flags import did_you_mean, format_value, is_int, is_number, warn_once
from x_transformers.generation.failures import FailedRows
from x_transformers.kernels.entmax import entmax_weights

# below this, the argument of a logarithm is taken for this
TINY = 1e-20


def require(allowed: bool, name: str, value: Any, words: str) -> None:
    """Raise the ValueError of an argument out of range."""
    if not allowed:
        raise ValueError(f'`{name}` must be {words}, got {value!r}')


def check_in_range(value: Any, low: float, high: float = math.inf) -> bool:
    """Return True for a finite number from `low` to `high`."""
    return is_number(value) and low <= value <= high and value < math.inf


def check_temperature(temperature: Any, name: str = 'temperature') -> None:
    require(check_in_range(temperature, 0.0), name, temperature, 'a number of at least 0, not infinite')


def check_logits(logits: Tensor, name: str = 'logits') -> None:
    if not torch.is_tensor(logits) or not logits.is_floating_point():
        raise TypeError(
            f'`{name}` must be a floating point tensor, got {getattr(logits, "dtype", type(logits).__name__)}'
        )
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f'`{name}` got the shape {tuple(logits.shape)}, the last axis must be a vocabulary')


def probabilities(logits: Tensor) -> Tensor:
    return to_float(logits).softmax(dim=-1)


# filters


def top_k(logits: Tensor, frac_num_tokens: float = 0.1, k: int | None = None, *, thres: float | None = None) -> Tensor:
    """Keep the `k` largest logits.

        logits           ... l     unnormalised log probabilities, in nats
        frac_num_tokens  (0, 1]    kept part of the vocabulary, rounded up, where `k` is not given
        k                1 ..      number of tokens to keep; more than the vocabulary keeps all
        thres            [0, 1)    old spelling: the part to leave out
        returns          ... l     exactly `k` of the logits, the rest at -inf; ties are broken as `torch.topk` does
        raises           ValueError for an argument out of range

    >>> top_k(torch.tensor([1., 3., 2., 0.]), k = 2)
    tensor([-inf, 3., 2., -inf])

    Fan et al. 2018, arXiv:1805.04833
    """
    check_logits(logits)
    if thres is not None:
        warn_once('`thres` of top_k is now `frac_num_tokens`, the part to keep: 1 - thres. The old name will go')
        require(check_in_range(thres, 0.0, 1.0) and thres < 1, 'thres', thres, 'at least 0 and less than 1')
        frac_num_tokens = 1 - thres
    if k is None:
        kept = check_in_range(frac_num_tokens, 0.0, 1.0) and frac_num_tokens > 0
        require(kept, 'frac_num_tokens', frac_num_tokens, 'more than 0 and at most 1')
        k = math.ceil(frac_num_tokens * logits.shape[-1])
    require(is_int(k) and k >= 1, 'k', k, 'an integer of at least 1')
    values, indices = logits.topk(min(k, logits.shape[-1]), dim=-1)
    return torch.full_like(logits, -math.inf).scatter(-1, indices, values)


def top_p(logits: Tensor, thres: float = 0.9) -> Tensor:
    """Nucleus sampling: keep the smallest set of most probable tokens whose probability exceeds `thres`.

    A token stays if those more probable than it have no more than `thres` together. So the token that crosses the
    threshold is kept, and the most probable one always.

        logits   ... l     unnormalised log probabilities, in nats
        thres    [0, 1]    probability to keep; 0 leaves the most probable token, 1 leaves all
        returns  ... l     logits, with -inf for the tokens left out
        raises   ValueError if `thres` is out of range

    >>> top_p(torch.tensor([0., 0., -9.]), thres = 0.9).isinf().tolist()
    [False, False, True]

    Holtzman et al. 2019, arXiv:1904.09751
    """
    check_logits(logits)
    require(check_in_range(thres, 0.0, 1.0), 'thres', thres, 'a probability from 0 to 1')
    ordered, indices = logits.sort(dim=-1, descending=True)
    # rounding must not carry the sum past 1, or `thres = 1` would leave tokens out
    before = F.pad(probabilities(ordered).cumsum(dim=-1).clamp(max=1.0), (1, -1))
    return torch.empty_like(logits).scatter(-1, indices, ordered.masked_fill(before > thres, -math.inf))


def top_a(logits: Tensor, min_p_pow: float = 2.0, min_p_ratio: float = 0.02) -> Tensor:
    """Keep tokens at least as probable as `min_p_ratio * largest ** min_p_pow`: the surer the model, the fewer.

        logits       ... l     unnormalised log probabilities, in nats
        min_p_pow    [0, inf)  power of the largest probability
        min_p_ratio  [0, 1]    factor
        returns      ... l     logits, with -inf for the tokens left out; the most probable one always stays
        raises       ValueError for an argument out of range

    >>> top_a(torch.tensor([0.8, 0.19, 0.01]).log()).isinf().tolist()
    [False, False, True]

    As in github.com/BlinkDL/RWKV-LM (top-a)
    """
    check_logits(logits)
    require(check_in_range(min_p_pow, 0.0), 'min_p_pow', min_p_pow, 'a number of at least 0')
    require(check_in_range(min_p_ratio, 0.0, 1.0), 'min_p_ratio', min_p_ratio, 'a number from 0 to 1')
    probs = probabilities(logits)
    largest = probs.amax(dim=-1, keepdim=True)
    # a small power of a small probability can exceed the probability itself
    limit = torch.minimum(min_p_ratio * largest**min_p_pow, largest)
    return logits.masked_fill(probs < limit, -math.inf)


def min_p(logits: Tensor, min_p: float = 0.1) -> Tensor:
    """Keep tokens with at least `min_p` times the probability of the most probable one.

        logits   ... l     unnormalised log probabilities, in nats
        min_p    [0, 1]    part of the largest probability; 0 leaves all, 1 leaves the most probable token
        returns  ... l     logits, with -inf for the tokens left out
        raises   ValueError if `min_p` is out of range

    >>> min_p(torch.tensor([0.7, 0.25, 0.05]).log()).isinf().tolist()
    [False, False, True]

    Nguyen et al. 2024, arXiv:2407.01082
    """
    check_logits(logits)
    require(check_in_range(min_p, 0.0, 1.0), 'min_p', min_p, 'a number from 0 to 1')
    probs = probabilities(logits)
    return logits.masked_fill(probs < min_p * probs.amax(dim=-1, keepdim=True), -math.inf)


def typical(logits: Tensor, mass: float = 0.9) -> Tensor:
    """Keep the tokens whose surprise `-log p` is nearest to the entropy, the smallest set that exceeds `mass`.

    A token stays if those before it, in order of `|-log p - entropy|`, have no more than `mass` together.

        logits   ... l     unnormalised log probabilities, in nats
        mass     [0, 1]    probability to keep; 0 leaves the most typical token, 1 leaves all
        returns  ... l     logits, with -inf for the tokens left out
        raises   ValueError if `mass` is out of range

    >>> typical(torch.tensor([0.6, 0.2, 0.1, 0.1]).log(), mass = 0.5).isinf().tolist()
    [False, False, True, True]

    Meister et al. 2022, arXiv:2202.00666
    """
    check_logits(logits)
    require(check_in_range(mass, 0.0, 1.0), 'mass', mass, 'a probability from 0 to 1')
    log_probs = to_float(logits).log_softmax(dim=-1)
    probs = log_probs.exp()
    entropy = torch.special.entr(probs).sum(dim=-1, keepdim=True)
    order = (log_probs + entropy).abs().argsort(dim=-1, stable=True)
    before = F.pad(probs.gather(-1, order).cumsum(dim=-1).clamp(max=1.0), (1, -1))
    return logits.masked_fill(torch.empty_like(before > mass).scatter(-1, order, before > mass), -math.inf)


def epsilon(logits: Tensor, thres: float = 3e-4) -> Tensor:
    """Keep tokens with a probability of at least `thres`, and the most probable one always.

        logits   ... l     unnormalised log probabilities, in nats
        thres    [0, 1]    least probability; 0 leaves all
        returns  ... l     logits, with -inf for the tokens left out
        raises   ValueError if `thres` is out of range

    >>> epsilon(torch.tensor([0.7, 0.25, 0.05]).log(), thres = 0.1).isinf().tolist()
    [False, False, True]

    Hewitt et al. 2022, arXiv:2210.15191
    """
    check_logits(logits)
    require(check_in_range(thres, 0.0, 1.0), 'thres', thres, 'a probability from 0 to 1')
    probs = probabilities(logits)
    return logits.masked_fill((probs < thres) & (probs < probs.amax(dim=-1, keepdim=True)), -math.inf)


def entmax(logits: Tensor, alpha: float = 1.5, temperature: float = 1.0) -> Tensor:
    """Return log p of  p = alpha-entmax(logits / temperature),  so that the draw is from p, which has zeros itself.

        logits       ... l       of a model trained with `entmax_loss_alpha`
        alpha        [1, 2]      1 is the softmax, 2 the sparsemax
        temperature  (0, inf)    that of a generation acts here
        returns      ... l       log probabilities, -inf where p is 0

    >>> entmax(torch.tensor([2., 0., -2.])).isinf().tolist()
    [False, True, True]

    Martins et al. 2020, arXiv:2004.02644
    """
    check_logits(logits)
    require(check_in_range(alpha, 1.0, 2.0), 'alpha', alpha, 'a number from 1 to 2')
    require(check_in_range(temperature, 0.0) and temperature > 0, 'temperature', temperature, 'more than 0')
    return entmax_weights(to_float(logits) / temperature, alpha).log()


Filter = Callable[..., Tensor]
FILTER_LOGITS_FN: dict[str, Filter] = dict(
    top_p=top_p, top_k=top_k, top_a=top_a, min_p=min_p, typical=typical, epsilon=epsilon, entmax=entmax
)


def filter_named(filter_logits_fn: str | Filter) -> Filter:
    """The filter itself, from its name in `FILTER_LOGITS_FN` or as given."""
    if callable(filter_logits_fn):
        return filter_logits_fn
    if not isinstance(filter_logits_fn, str) or filter_logits_fn not in FILTER_LOGITS_FN:
        known = ', '.join(f"'{name}'" for name in FILTER_LOGITS_FN)
        hint = did_you_mean(str(filter_logits_fn), FILTER_LOGITS_FN)
        raise ValueError(f'`filter_logits_fn` must be a callable or one of {known}{hint}, got {filter_logits_fn!r}')
    return FILTER_LOGITS_FN[filter_logits_fn]


def filter_with(filter_logits_fn: Any, filter_kwargs: Any = None, name: str = 'filter_kwargs') -> Filter:
    """One function of logits, from a filter or a sequence of them, each with its keywords bound and checked.

        filter_logits_fn   a name, a callable, or a sequence of these, run in order
        filter_kwargs      a dict for one filter, a sequence of dicts for several; None for no keywords
        raises             ValueError for a filter or a keyword that there is not, or a value out of range

    >>> filter_with(['top_k', 'min_p'], [dict(k = 2), {}])(torch.tensor([3., 2., 1.])).isinf().tolist()
    [False, False, True]
    """
    chained = isinstance(filter_logits_fn, (list, tuple))
    filters = [filter_named(one) for one in (filter_logits_fn if chained else (filter_logits_fn,))]
    options = filter_kwargs
    if options is None or isinstance(options, dict):
        options = [options or {}] * (1 if options else len(filters))
    fits = isinstance(options, (list, tuple)) and len(options) == len(filters)
    if not fits or not all(isinstance(one, dict) for one in options):
        words = f'a dict for each of the {len(filters)} filters' if chained else 'a dict'
        raise ValueError(f'`{name}` must be {words}, got {filter_kwargs!r}')
    bound = [bind(one, keywords) for one, keywords in zip(filters, options, strict=True)]
    return bound[0] if len(bound) == 1 else lambda logits: functools.reduce(lambda z, keep: keep(z), bound, logits)


def bind(keep: Filter, keywords: dict[str, Any]) -> Filter:
    """A filter with its keywords, refused if it does not take them. One of ours is tried on two equal logits."""
    name = getattr(keep, '__name__', type(keep).__name__)
    try:
        taken = list(inspect.signature(keep).parameters.values())[1:]
    except (TypeError, ValueError):
        return functools.partial(keep, **keywords)
    known = [p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in taken)
    for keyword in keywords:
        if keyword not in known and not open_ended:
            takes = ', '.join(f'`{one}`' for one in known) or 'none'
            hint = did_you_mean(keyword, known)
            raise ValueError(f'`filter_kwargs` got {keyword!r}, the keywords of `{name}` are {takes}{hint}')
    bound = functools.partial(keep, **{keyword: as_number(value) for keyword, value in keywords.items()})
    if keep in FILTER_LOGITS_FN.values():
        bound(torch.zeros(2, dtype=torch.float32, device='cpu'))
    return bound


def mask_token(logits: Tensor, token: int) -> Tensor:
    """Return logits (..., l) with -inf for a token, if it is one of them."""
    if not 0 <= token < logits.shape[-1]:
        return logits
    return logits.masked_fill(torch.arange(logits.shape[-1], device=logits.device) == token, -math.inf)


# what the tokens before say about the next one


def repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide the positive and multiply the negative logits of the tokens seen (b l) by `penalty`.  arXiv:1909.05858"""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def counts(ids: Tensor, counted: Tensor | None, size: int) -> Tensor:
    """Count how often each of the first `size` tokens occurs in each row of ids (b, t), where `counted` (b, t) is True.

    Ids that have no logit, since a model reads more tokens than it can say, do not count.

    Returns:
        Counts (b, size), float32 under any default dtype.
    """
    ones = torch.ones_like(ids, dtype=torch.float32) if counted is None else counted.float()
    found = torch.zeros(len(ids), size + 1, dtype=torch.float32, device=ids.device)
    return found.scatter_add_(1, ids.clamp(max=size), ones)[:, :size]


# draws


def sample(logits: Tensor, temperature: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Draw one token from `softmax(logits / temperature)`, or take the largest logit at temperature 0.

        logits       ... l      unnormalised log probabilities, in nats
        temperature  [0, inf)   below 1 sharpens, above 1 flattens
        generator               random number generator, on the device of the logits; torch's own by default
        returns      ...        int64 tokens
        raises       ValueError if `temperature` is out of range, or a row allows no token: all of it is -inf, or
                     some of it NaN

    >>> sample(torch.tensor([[0., 2., 1.]]), temperature = 0.)
    tensor([1])
    """
    check_logits(logits)
    check_temperature(temperature)
    tokens, largest = sample_with_max(logits, temperature, generator)
    failed = FailedRows(largest.shape)
    failed.add(largest.flatten())
    if temperature > 0:
        failed.raise_first()
    return tokens


def sample_with_max(logits: Tensor, temperature: float, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Draw one token per row as `sample` does, without its checks: return tokens (...) and the largest logits (...).

    A row that allows no choice gets some token; its largest logit is not finite.
    """
    if temperature == 0:
        largest, tokens = logits.max(dim=-1)
        return tokens, largest
    probs, largest = probabilities_with_max(logits, temperature)
    return draw(probs, generator), largest


def probabilities_with_max(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return `softmax(logits / temperature)` (..., l), in float32 at least, and the largest logits (...)."""
    # The largest logit becomes 0 first: divided by a very small temperature, it would overflow.
    logits = to_float(logits)
    largest = logits.amax(dim=-1, keepdim=True)
    return ((logits - largest) / temperature).softmax(dim=-1), largest.squeeze(-1)


def draw(probs: Tensor, generator: Generator | None = None) -> Tensor:
    """Draw one index from each row of probabilities (..., l).

        argmax_i p_i / e_i                                  e_i exponentially distributed

    These are the draws of `torch.multinomial`, which waits for the device to check its input.
    """
    return (probs / torch.empty_like(probs).exponential_(1, generator=generator)).argmax(dim=-1)


def gumbel_noise(t: Tensor, generator: Generator | None = None) -> Tensor:
    """Noise of the shape of `t` with the standard Gumbel distribution: `-log(-log(u))`, u uniform on [0, 1).

    The token with the largest sum of logit and noise is a draw from the softmax of the logits.

    Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030
    """
    uniform = torch.zeros_like(to_float(t)).uniform_(0, 1, generator=generator)
    return -(-uniform.clamp(min=TINY).log()).clamp(min=TINY).log()


def gumbel_sample(
    logits: Tensor, temperature: float = 1.0, eps: float = 1e-6, *, generator: Generator | None = None
) -> Tensor:  # fmt: skip
    """Draw one token as `argmax(logits / temperature + noise)`, without a softmax.

        logits       ... l      unnormalised log probabilities, in nats
        temperature  [0, inf)   taken for `eps` where it is less
        returns      ...        int64 tokens
        raises       ValueError if `temperature` is out of range, or on the CPU if a row allows no token

    Maddison et al. 2014, arXiv:1411.0030
    """
    check_logits(logits)
    check_temperature(temperature)
    largest, tokens = (to_float(logits) / max(temperature, eps) + gumbel_noise(logits, generator)).max(dim=-1)
    FailedRows(largest.shape).add(largest.flatten())
    return tokens


# two models


def contrastive_decode_fn(
    expert_logits: Tensor, amateur_logits: Tensor, alpha: float = 0.1, beta: float = 0.5
) -> Tensor:
    """Contrastive decoding: prefer what a strong model finds more probable than a weak one does.

        out = (1 + beta) expert - beta amateur        where expert >= max(expert) + log(alpha)

        expert_logits, amateur_logits  ... l     logits of the strong and of the weak model
        alpha                          (0, 1]    kept are tokens with this part of the largest probability
        beta                           [0, inf)  weight of the contrast; 0 leaves the expert as it is
        returns                        ... l     logits; the lowest finite number for the tokens left out
        raises                         ValueError for an argument out of range or shapes that differ

    >>> contrastive_decode_fn(torch.tensor([2., 2., -9.]), torch.tensor([0., 2., 0.]))[:2]
    tensor([3., 2.])

    O'Brien and Lewis 2023, arXiv:2309.09117
    """
    check_logits(expert_logits, 'expert_logits')
    check_logits(amateur_logits, 'amateur_logits')
    if expert_logits.shape != amateur_logits.shape:
        expert, amateur = tuple(expert_logits.shape), tuple(amateur_logits.shape)
        raise ValueError(
            f'expert and amateur need the same vocabulary: their logits have the shapes {expert} and {amateur}'
        )
    require(check_in_range(alpha, 0.0, 1.0) and alpha > 0, 'alpha', alpha, 'more than 0 and at most 1')
    require(check_in_range(beta, 0.0), 'beta', beta, 'a number of at least 0')
    expert, amateur = to_float(expert_logits), to_float(amateur_logits)
    cutoff = expert.amax(dim=-1, keepdim=True) + math.log(alpha)
    contrasted = clamp_to_dtype((1 + beta) * expert - beta * amateur, expert_logits.dtype)
    return contrasted.masked_fill(expert < cutoff, -torch.finfo(contrasted.dtype).max)


def guide_logits(logits: Tensor, without: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance:  u + scale (c - u), of logits c and those without the condition, u

    1 leaves the logits as they are, 0 gives the others.  Ho and Salimans 2022, arXiv:2207.12598
    """
    logits, without = to_float(logits), to_float(without)
    return without + scale * (logits - without)


# sequences


def align_right(t: Tensor, lens: Tensor, pad_id: float = 0) -> Tensor:
    """Shift each row to the right, so that its first `lens` entries end at the last place.

        t        b n ...   sequences, padded on the right
        lens     b         how many entries of each row are real, 0 .. n
        returns  b n ...   the same entries, `pad_id` before them
        raises   ValueError if there is not one length per row, or a length exceeds n

    >>> align_right(torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([2, 3])).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    b, n = t.shape[:2]
    if lens.shape != (b,):
        raise ValueError(f'`lens` must hold one length for each of the {b} rows, got the shape {tuple(lens.shape)}')
    if b > 0 and not 0 <= int(lens.min()) <= int(lens.max()) <= n:
        raise ValueError(f'`lens` got {lens.tolist()}, every length must be from 0 to {n}')
    return shift_right(t, n - lens, pad_id)


def shift_right(t: Tensor, places: Tensor, pad_id: float = 0) -> Tensor:
    """Move each row of `t` (b n ...) to the right by its number of `places` (b). What passes the end is lost."""
    source = torch.arange(t.shape[1], device=t.device) - rearrange(places.to(t.device), 'b -> b 1')
    source = source.reshape(*source.shape, *[1] * (t.ndim - 2))
    return t.gather(1, source.clamp(min=0).expand_as(t)).masked_fill(source < 0, pad_id)


# lengths and prompts


class TotalLength(int):
    """A number of new tokens that is counted with the prompt, as `max_length` of a generation_config.json is.

    `TotalLength(9)` is the integer 8, the new tokens behind a start of one. Given as `seq_len`, it makes 9 - n of them
    behind a prompt of n tokens, padding included.
    """

    def __new__(cls, total: int) -> TotalLength:
        return super().__new__(cls, total - 1)

    @property
    def total(self) -> int:
        return int(self) + 1

    def __getnewargs__(self) -> tuple[int]:
        return (self.total,)


def new_tokens_of(seq_len: Any, prompt: int) -> Any:
    """Return the number of new tokens behind so many tokens of prompts.

    Raises:
        ValueError: If a `TotalLength` leaves none.
    """
    if not isinstance(seq_len, TotalLength):
        return seq_len
    if seq_len.total <= prompt:
        raise ValueError(
            f'`seq_len` must leave a token to generate, got {seq_len.total} tokens in all (`max_length`) '
            f'and prompts of {prompt}'
        )
    return seq_len.total - prompt


def _is_listed(value: Any) -> bool:
    """Return True for what holds entries of its own: a list, a tuple, a range, or an array of objects."""
    return isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.dtype == object)


def get_ids(value: Any, name: str = 'prompts', device: torch.device | None = None) -> Any:
    """Return a tensor, an array, or nested lists of ids, tensors or arrays, as a tensor of ids, or as a list of 1-D
    tensors of unequal length. Ids that are on no device go to `device`.
    """
    if torch.is_tensor(value) or not (_is_listed(value) or isinstance(value, np.ndarray)):
        return value
    if not _is_listed(value):
        return _as_ids(value, name, device)
    parts = [get_ids(one, name, device) if _is_listed(one) or isinstance(one, np.ndarray) else one for one in value]
    whole = [one for one in parts if torch.is_tensor(one) and one.ndim > 0]
    if not whole and not any(isinstance(one, list) for one in parts):
        if not parts:
            return []
        return _as_ids([as_number(one) for one in parts], name, device)
    if len(whole) < len(parts):
        raise ValueError(f'`{name}` got {format_value(value)}: its entries must be ids, or all of them rows of ids')
    even = len({one.shape for one in whole}) == 1 and not any(map(torch.is_tensor, value))
    return torch.stack(whole) if even else whole


def given_ids(value: Any, name: str, device: torch.device | None) -> Tensor | list[Tensor]:
    """Return what `get_ids` does.  Raises TypeError for what are no ids."""
    ids = get_ids(value, name, device)
    if not torch.is_tensor(ids) and not isinstance(ids, list):
        raise TypeError(f'`{name}` must be ids, got {type(ids).__name__}: a tensor, an array, or lists of them')
    return ids


def _as_ids(value: Any, name: str, device: torch.device | None) -> Tensor:
    """Return a tensor of whole numbers from an array or a list of numbers."""
    try:
        ids = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f'`{name}` must be ids, got {format_value(value)}: a tensor, an array, or lists of them'
        ) from None
    return ids.long().to(device) if ids.numel() == 0 and isinstance(value, list) else ids.to(device)


def padded_rows(value: Any, name: str, pad_value: int, device: torch.device | None) -> tuple[Any, Tensor | None]:
    """Return ids padded on the right (b, n) and True for the real ones (b, n), if these are lists of unequal length."""
    ids = given_ids(value, name, device)
    if not isinstance(ids, list):
        return ids, None
    if not ids or any(one.ndim != 1 for one in ids):
        raise ValueError(f'`{name}` got {format_value(value)}: rows of unequal length must have one axis')
    lens = torch.tensor([len(one) for one in ids], device=ids[0].device)
    padded = pad_sequence(ids, batch_first=True, padding_value=pad_value)
    if bool((lens == padded.shape[1]).all()):
        return padded, None
    return padded, torch.arange(padded.shape[1], device=padded.device) < lens.unsqueeze(-1)


def even_prompts(prompts: Any, name: str, pad_value: int, device: torch.device | None) -> tuple[Tensor, torch.Size]:
    """Return prompts of equal length as ids (b, n), and their leading axes, for models that read no padding."""
    given = given_ids(prompts, name, device)
    if isinstance(given, list) and len({len(one) for one in given}) > 1:
        raise ValueError(f'`{name}` must be of one length here, got rows of {[len(one) for one in given]} ids')
    ids, _, leading = padded_prompts(given, None, pad_value, device)
    return ids, leading


def padded_prompts(
    prompts: Any, prompt_lens: Any, pad_value: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor | None, torch.Size]:
    """The prompts as ids (b t) padded on the left, the number of paddings (b) if any, and the leading axes."""
    prompts = get_ids(prompts, 'prompts', device)
    if isinstance(prompts, list):
        if prompt_lens is not None:
            raise ValueError('`prompt_lens` cannot be given with a list of prompts, which have their own lengths')
        if not prompts or not all(p.ndim == 1 for p in prompts):
            got = [tuple(p.shape) for p in prompts]
            raise ValueError(f'a list of `prompts` must hold one 1-D tensor or more, got {got}')
        prompt_lens = torch.tensor([len(p) for p in prompts])
        prompts = pad_sequence(prompts, batch_first=True, padding_value=pad_value)
    if not torch.is_tensor(prompts) or prompts.ndim == 0:
        raise TypeError(
            f'`prompts` must be a tensor with at least one axis, an array, or lists of ids, got {format_value(prompts)}'
        )

    leading = prompts.shape[:-1]
    ids = prompts.reshape(leading.numel(), prompts.shape[-1])
    ids = check_ids(ids, 'prompts', 1)
    if prompt_lens is None:
        return ids, None, leading

    lens = values_of(prompt_lens, 'prompt_lens').to(ids.device).flatten()
    b, t = ids.shape
    counts = not lens.is_floating_point() and lens.dtype != torch.bool
    if lens.shape != (b,) or not counts or not (1 <= int(lens.min()) <= int(lens.max()) <= t):
        raise ValueError(
            f'`prompt_lens` must hold {b} integers from 1 to {t}, one for each prompt, got {lens.tolist()}'
        )
    longest, pads = int(lens.max()), int(lens.max()) - lens
    if not pads.any():
        return ids[:, :longest], None, leading
    return align_right(ids[:, :longest], lens, pad_value), pads, leading


def read_prompts(
    prompts: Any, prompt_lens: Any, pad_value: int, inputs: dict[str, Any], device: torch.device | None = None
) -> tuple[Tensor, Tensor | None, torch.Size]:
    """Return what `padded_prompts` does, for keywords of a net among which a `mask` may say what is padding."""
    prompts = get_ids(prompts, 'prompts', device)
    prompt_lens, left_pad = take_padding(prompts, prompt_lens, inputs)
    ids, pads, leading = padded_prompts(prompts, prompt_lens, pad_value, device)
    if inputs.get('pos') is not None:
        width = ids.shape[1] if isinstance(prompts, list) else prompts.shape[-1]
        inputs['pos'] = _place_tokens(inputs['pos'], width, ids, pads)
    return ids, pads if left_pad is None else left_pad, leading


def _place_tokens(pos: Any, width: int, ids: Tensor, pads: Tensor | None) -> Tensor:
    """Return the positions of prompts, (n) or (b n) of the `width` that they came with, where their ids (b t) stand."""
    b, t = ids.shape
    known = torch.is_tensor(pos) and not pos.is_floating_point() and pos.dtype != torch.bool
    if not known or tuple(pos.shape) not in ((width,), (1, width), (b, width)):
        got = f'{pos.dtype} of shape {tuple(pos.shape)}' if torch.is_tensor(pos) else format_value(pos)
        raise ValueError(
            f'`pos` of prompts must be whole numbers, ({width},) or ({b}, {width}), got {got}: new tokens are '
            'counted on from the last one'
        )
    pos = pos[..., :t].expand(b, t)
    return pos if pads is None else shift_right(pos, pads)


def take_padding(prompts: Any, prompt_lens: Any, inputs: dict[str, Any]) -> tuple[Any, Tensor | None]:
    """Return the lengths of prompts (b) with padding behind them, and the numbers of paddings (b) in front of them.

    A `mask` (b, t) in `inputs`, the keywords of the net, says either, and is then taken out. One with holes stays.

    Raises:
        ValueError: The mask hides a last token, from which generation goes on, and others before it or all of them.
    """
    mask = inputs.get('mask')
    if mask is None:
        return prompt_lens, None
    if not torch.is_tensor(prompts) or prompts.ndim == 0:
        _check_mask(mask, prompts, alone=not isinstance(prompts, list))
        return prompt_lens, None
    ids = prompts.reshape(prompts.shape[:-1].numel(), prompts.shape[-1])
    mask = mask if torch.is_tensor(mask) else values_of(mask, 'mask').to(ids.device)
    _check_mask(mask, ids, alone=prompt_lens is None)
    token_mask = mask.bool()
    lens = lens_of_real(token_mask)
    if lens is not None:
        del inputs['mask']
        return lens.reshape(prompts.shape[:-1]), None
    first = token_mask.byte().argmax(dim=-1)
    inputs['mask'] = mask
    if bool((torch.arange(token_mask.shape[1], device=token_mask.device) >= first.unsqueeze(-1)).eq(token_mask).all()):
        del inputs['mask']  # There are no holes.
    return None, first if bool(first.any()) else None


def lens_of_real(real: Tensor | None) -> Tensor | None:
    """Return how many tokens of each row are real, (b), by a mask (b, n), where rows end with padding; None if none
    does.

    Raises:
        ValueError: A row ends with padding, and rows have other padding too, or nothing else.
    """
    if real is None or bool(real[:, -1:].all()):
        return None
    lens = real.sum(dim=-1)
    wrong = (torch.arange(real.shape[1], device=real.device) < lens.unsqueeze(-1)).ne(real).any(dim=-1) | (lens == 0)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        hidden = real[row].logical_not().nonzero().flatten().tolist()
        raise ValueError(
            f'`mask` hides {hidden} of row {row}, and generation goes on from the last token: prompts '
            'of a batch must all be padded on the left, or all on the right'
        )
    return lens


def _check_mask(mask: Tensor, ids: Tensor, alone: bool) -> None:
    """A mask (b t) of the prompts, where no lengths say already what is real."""
    if not alone:
        raise ValueError(
            '`mask` cannot be given with prompts of unequal length: `prompt_lens` already determines the padding'
        )
    if not torch.is_tensor(mask) or mask.is_floating_point() or mask.is_complex():
        got = mask.dtype if torch.is_tensor(mask) else format_value(mask)
        raise TypeError(f'`mask` must be a boolean tensor, got {got}: True is a real token')
    if mask.shape != ids.shape:
        raise ValueError(f'`mask` must have shape {tuple(ids.shape)}, one entry per token, got {tuple(mask.shape)}')

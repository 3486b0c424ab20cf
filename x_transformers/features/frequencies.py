"""Frequencies of rotary positions, and their scaling for longer contexts.

    theta_i = theta ** (-2 i / r)        i = 0 .. r / 2 - 1, radians per token; in float32, like in checkpoints

Values of `rotary_scaling`, by `kind`; `length` is the context length that the model was trained with before:

    linear      factor                                  theta_i / factor.  arXiv:2306.15595
    dynamic     factor, length                          for n > length tokens, theta is multiplied by
                                                        (factor n / length - factor + 1) ** (r / (r - 2))
    yarn        factor, length, [beta_fast, beta_slow,  fast pairs unchanged, slow pairs divided by the factor, a ramp
                truncate, mscale, mscale_all_dim,       in between; cos and sin times `attention_factor`.
                attention_factor]                       arXiv:2309.00071
    longrope    short_factor, long_factor, length,      theta_i / short_i up to `length` tokens, theta_i / long_i for
                [factor, attention_factor]              more; cos and sin times `attention_factor`.  arXiv:2402.13753
    llama3      factor, low, high, length               frequencies with wavelengths above length / low are divided by
                                                        the factor, below length / high unchanged.  arXiv:2407.21783
    proportional  partial                               theta_i of the first int(partial r / 2) pairs, 0 of the others:
                                                        they are not rotated.  Gemma 4
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from x_transformers.features.positions import constant
from x_transformers.flags import (
    Check,
    ConfigError,
    at_least,
    boolean,
    format_value,
    is_number,
    none,
    number,
    one_of,
    positive,
    size,
)

above_one = Check('a number of at least 1', lambda value: is_number(value) and value >= 1, 'float')
divisors = Check(
    'a list of numbers greater than 0, one for each pair of channels',
    lambda value: isinstance(value, (tuple, list)) and all(map(positive.test, value)),
)
NEEDED: dict[str, dict[str, Check]] = {
    'linear': dict(factor=positive),
    'dynamic': dict(factor=above_one, length=size),
    'yarn': dict(factor=positive, length=size),
    'longrope': dict(short_factor=divisors, long_factor=divisors, length=at_least(2)),
    'llama3': dict(factor=positive, low=positive, high=positive, length=size),
    'proportional': dict(
        partial=Check('a number from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1, 'float')
    ),
}
MORE: dict[str, dict[str, Check]] = {
    'yarn': {
        **dict.fromkeys(('beta_fast', 'beta_slow'), positive),
        **dict.fromkeys(('mscale', 'mscale_all_dim'), number | none),
        'truncate': boolean,
        'attention_factor': positive | none,
    },
    'longrope': dict(factor=positive | none, attention_factor=positive | none),
}
WORDS = ', '.join(f'{kind} ({", ".join(needed)})' for kind, needed in NEEDED.items())
a_scaling = Check(
    f'a dict with a `kind` and its parameters: {WORDS}',
    lambda value: isinstance(value, Mapping) and isinstance(value.get('kind'), str) and value['kind'] in NEEDED,
    'Mapping[str, Any]',
)


def check_scaling(name: str, scaling: Mapping[str, Any], dim: int) -> None:
    """Refuse what is missing in a `rotary_scaling`, unknown, or out of range."""
    if not a_scaling.test(scaling):
        raise ConfigError(f'`{name}` must be {a_scaling.words}, got {format_value(scaling)}')
    kind = scaling['kind']
    needed, known = NEEDED[kind], {'kind': one_of(kind), **NEEDED[kind], **MORE.get(kind, {})}
    for key in (*needed, *scaling):
        if key not in scaling:
            raise ConfigError(f'`{name}` of kind {kind!r} needs `{key}`, {needed[key].words}')
        if key not in known:
            raise ConfigError(f'`{name}` of kind {kind!r} got `{key}`, it may have {", ".join(known)}')
        if not known[key].test(scaling[key]):
            raise ConfigError(f'`{key}` of `{name}` must be {known[key].words}, got {format_value(scaling[key])}')
    pairs = (dim + 1) // 2
    for key in ('short_factor', 'long_factor') if kind == 'longrope' else ():
        if len(scaling[key]) != pairs:
            raise ConfigError(f'`{key}` of `{name}` must have {pairs} numbers, one per pair, got {len(scaling[key])}')
    if kind == 'llama3' and scaling['low'] >= scaling['high']:
        raise ConfigError(f'`low` of `{name}` must be less than `high`, {scaling["high"]}, got {scaling["low"]}')


# what frequencies are computed in that depend on the length, by whether the model is in float64
LATER = torch.float32, torch.float64


def get_numbers(make: Callable[[], Tensor]) -> tuple[float, ...]:
    """Return the numbers of a tensor that `make` creates, where tensors have no values (`FakeTensorMode`) too."""
    with _disable_current_modes():
        return tuple(make().tolist())


class Frequencies:
    """Frequencies of the pairs among `dim` features, by the base `theta` and a `rotary_scaling`.

    factor         of cos and sin, and so of queries and keys
    longest        up to so many tokens in the sequence the frequencies are the first ones; None for any number
    keeps_turned   past that, tokens that were read before stay as they are; else they are to be read again
    """

    def __init__(
        self, dim: int, theta: float = 10000.0, scaling: Mapping[str, Any] | None = None, name: str = 'rotary_scaling'
    ) -> None:
        if scaling is not None:
            check_scaling(name, scaling, dim)
        self.dim, self.theta, self.scaling = dim, theta, dict(scaling or {})
        kind = self.kind = self.scaling.get('kind')
        self.longest: int | None = self.scaling['length'] if kind in ('dynamic', 'longrope') else None
        self.keeps_turned, self.factor = kind == 'dynamic', self.compute_factor()
        self.first: tuple[float, ...] = ()
        # those of long sequences, for a model in float64 and for all others
        kinds = LATER if kind == 'longrope' else ()
        self.later = {t: get_numbers(functools.partial(self.divide_by, 'long_factor', 'cpu', t)) for t in kinds}

    def __eq__(self, other: Any) -> bool:
        own = (self.dim, self.theta, self.scaling)
        return isinstance(other, Frequencies) and own == (other.dim, other.theta, other.scaling)

    __hash__: Any = None

    def without_table(self) -> Frequencies:
        """Return these frequencies with their numbers, where no module holds their table."""
        self.first = get_numbers(lambda: self.table('cpu'))
        return self

    def table(self, device: Any = None) -> Tensor:
        """Return the frequencies (r / 2), in float32."""
        device = torch.get_default_device() if device is None else torch.device(device)
        if device.type == 'meta':  # where arithmetic first imports the compiler of PyTorch, which takes seconds
            return torch.empty(len(range(0, self.dim, 2)), device=device, dtype=torch.float32)
        if self.kind == 'longrope':
            return self.divide_by('short_factor', device, torch.float32)
        pairs = torch.arange(0, self.dim, 2, device=device).float()
        plain = 1.0 / self.theta ** (pairs / self.dim)  # to the bit as others compute it
        if self.kind == 'linear':
            return plain / self.scaling['factor']
        if self.kind == 'yarn':
            return self.by_ramp(plain, pairs / 2)
        if self.kind == 'proportional':
            return plain.where(pairs < 2 * int(self.scaling['partial'] * self.dim / 2), 0.0)
        return self.by_waves(plain) if self.kind == 'llama3' else plain

    def divide_by(self, divisors: str, device: Any, dtype: torch.dtype) -> Tensor:
        pairs = torch.arange(0, self.dim, 2, device=device).to(dtype)
        by = torch.tensor(tuple(self.scaling[divisors]), dtype=torch.float32, device=device)
        return 1.0 / (by * self.theta ** (pairs / self.dim))

    def by_ramp(self, plain: Tensor, pair: Tensor) -> Tensor:
        own, length = self.scaling, self.scaling['length']

        def find_pair(times: float) -> float:
            """The pair that turns so many times over the trained length."""
            return self.dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = find_pair(own.get('beta_fast', 32)), find_pair(own.get('beta_slow', 1))
        if own.get('truncate', True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        kept = 1 - ((pair - low) / ((high if high != low else high + 0.001) - low)).clamp(0, 1)
        return plain / own['factor'] * (1 - kept) + plain * kept

    def by_waves(self, plain: Tensor) -> Tensor:
        factor, low, high, length = (self.scaling[key] for key in ('factor', 'low', 'high', 'length'))
        wave = 2 * math.pi / plain
        share = ((length / wave - low) / (high - low)).clamp(0, 1)
        return torch.where(wave > length / low, plain / factor, (1 - share) * plain / factor + share * plain)

    def compute_factor(self) -> float:
        own = self.scaling
        if self.kind not in ('yarn', 'longrope'):
            return 1.0
        if own.get('attention_factor') is not None:
            return float(own['attention_factor'])
        factor = own.get('factor') or 1.0
        if factor <= 1:
            return 1.0
        if self.kind == 'longrope':
            return math.sqrt(1 + math.log(factor) / math.log(own['length']))

        def scale(times: float) -> float:
            return 0.1 * times * math.log(factor) + 1.0

        both = own.get('mscale') and own.get('mscale_all_dim')
        return scale(own['mscale']) / scale(own['mscale_all_dim']) if both else scale(1.0)

    def of_rows(self, first: Tensor | None, lengths: Tensor | None, like: Tensor) -> Tensor:
        """Return the frequencies of rows, (r / 2) or (1 or b, 1, r / 2), or of documents, (1 or b, n, r / 2).

        Args:
            first: Those of short rows; None: as they are configured, with the device and dtype of `like`.
            lengths: How many tokens a row has, (1 or b), or the document of each token, (1 or b, n).
        """
        first = constant(self.first, like.device, like.dtype) if first is None else first
        if self.longest is None or lengths is None:
            return first
        lengths = (lengths if lengths.ndim == 2 else lengths.unsqueeze(-1)).unsqueeze(-1)  # (b, 1 or n, 1)
        dtype = LATER[like.dtype == torch.float64]
        if self.kind == 'longrope':
            later = torch.tensor(self.later[dtype], device=like.device, dtype=dtype).to(like.dtype)
        else:
            factor, pairs = self.scaling['factor'], torch.arange(0, self.dim, 2, device=like.device).to(dtype)
            grown = factor * lengths.clamp(min=self.longest).float() / self.longest - (factor - 1)
            theta = self.theta * grown ** (self.dim / max(self.dim - 2, 1))
            later = (1.0 / theta ** (pairs / self.dim)).to(like.dtype)
        return torch.where(lengths > self.longest, later, first)

"""Universal Transformers: position and step signals before every run of a block, and convolutions as transition.

`weight_tie_layers` makes one block run several times, `act_halting` lets each token decide how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.branches import KINDS, Kind
from x_transformers.core.modes import at_least_float
from x_transformers.features.levels import StackFeature
from x_transformers.features.positions import sinusoids
from x_transformers.flags import Check, ConfigError, Ring, flag, one_of


class CoordinatePositions(StackFeature):
    """Add sinusoids of the position i and of the step t to the tokens, before every run of a block (t = 1, 2, ...).

        x <- x + [sin i w + sin t w | cos i w + cos t w]          w_k = 10000 ** (-2 k / d)

    The paper interleaves sines and cosines, which is a permutation of these channels. With 'learned', a learned vector
    per step replaces the sinusoids of t. Tokens that have halted keep their state; the keys that others compute from it
    include the signal of the current step.
    """

    paper = 'Universal Transformers, arXiv:1807.03819'
    coord_pos_emb = flag(
        False,
        "add sinusoids of position and step before every run of a block; 'learned': a learned vector per step",
        Check("True, False or 'learned'", lambda v: isinstance(v, bool) or v == 'learned', "bool | Literal['learned']"),
        example='learned',
    )
    stored_as = {'table': 'step_emb'}
    gives_positions, counts_from = True, 'segment'
    clashes = {
        'reversible': 'it changes the residual stream between layers, which the backward pass cannot invert',
        'per_layer_abs_pos_emb': 'both add positions before every block',
    }

    refuses = {'some tokens': 'it changes every token before each block'}

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[CoordinatePositions]:
        return CoordinatesWhereTokensHalt if values.get('act_halting') else cls

    def setup(self, owner: Any) -> None:
        if owner.dim % 2:
            raise ConfigError(f'`coord_pos_emb` needs an even width for sines and cosines, got {owner.dim}')
        runs = self.runs = len(owner.layers_execute_order) // owner.len_default_block
        if self.coord_pos_emb == 'learned':
            self.table = nn.Parameter(torch.randn(runs, owner.dim) * 0.02)

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        run, inside = divmod(call.step, self.owner.len_default_block)
        return x if inside else self.signalled(x, call, run + 1)

    def signalled(self, x: Tensor, call: Any, run: int) -> Tensor:
        """The stream with the signal of a run, which counts from 1."""
        own, dim = call.ctx(self), self.owner.dim
        if not hasattr(own, 'places'):
            pos = call.key_positions(x)[..., -call.new_len :]
            own.places = sinusoids(pos, dim, 10000.0, 'd', at_least_float(x.dtype)).to(x.dtype)
        places = own.places
        if places.ndim == 3 and places.shape[0] not in (1, x.shape[0]):  # streams stand in the batch of x
            places = places.repeat_interleave(x.shape[0] // places.shape[0], dim=0)
        if self.coord_pos_emb != 'learned':
            step = torch.tensor(run, device=x.device)
            return x + (places + sinusoids(step, dim, 10000.0, 'd', at_least_float(x.dtype)).to(x.dtype))
        runs: Any = self.runs
        if run > runs:
            raise ValueError(f"`coord_pos_emb='learned'` has vectors for {self.runs} runs of a block, not for {run}")
        return x + (places + self.table[run - 1].to(x.dtype))


class CoordinatesWhereTokensHalt(CoordinatePositions):
    """The same where another feature runs blocks, and asks for `signalled` before each."""

    refuses = {'some tokens': ''}
    layer_input: Any = None


class Depthwise(nn.Module):
    """A kernel of 3 tokens for each feature:  b (n + 2) d -> b n d"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, 1, 3).uniform_(-(3**-0.5), 3**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        n, kernel = x.shape[-2] - 2, self.weight[:, 0]
        return x[:, :n] * kernel[:, 0] + x[:, 1 : n + 1] * kernel[:, 1] + x[:, 2:] * kernel[:, 2]


class SeparableConv(nn.Module):
    """Over the sequence, a kernel of 3 tokens for each feature, then a matrix for each token.  arXiv:1706.03059"""

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.depthwise = Depthwise(dim)
        self.pointwise = nn.Linear(dim, dim)

    def forward(self, x: Tensor, recall: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """b n d. `recall` puts those before x in front; outside of the sequence there are zeros."""
        known = x if recall is None else recall(x)
        missing = x.shape[-2] + 2 - known.shape[-2]
        padded = F.pad(known, (0, 0, missing, 0) if self.causal else (0, 0, 1, 1))
        return self.pointwise(self.depthwise(padded))


class SepConvTransition(nn.Module):
    """Twice a separable convolution with a ReLU behind it, to the past in causal stacks:  b n d -> b n d"""

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        self.conv = nn.ModuleList(SeparableConv(dim, causal) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None, recalls: Any = (None, None)) -> Tensor:
        """mask    b n, which tokens are real: others are zeros for their neighbours"""
        for conv, recall in zip(self.conv, recalls, strict=True):
            x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)
            x = conv(x, recall).relu()
        return x


def sepconv_inputs(call: Any) -> dict[str, Any]:
    mask = call.token_mask
    given: dict[str, Any] = {'mask': None if mask is None else mask[:, mask.shape[1] - call.new_len :]}
    if call.keeps or call.cache is not None:
        given['recalls'] = tuple(call.state(f'sepconv_{at}', call.step).append for at in (0, 1))
    return given


KINDS['sepconv'] = Kind(
    lambda stack, index: SepConvTransition(stack.dim, not stack.sees_future),
    inputs=sepconv_inputs,
    remembers={'sepconv_0': Ring(2), 'sepconv_1': Ring(2)},
)


class UniversalTransition(StackFeature):
    """Separable convolutions along the sequence instead of feedforwards, as layers of kind 'sepconv'."""

    paper = CoordinatePositions.paper
    refuses = {'documents': 'its convolutions run across documents'}
    ut_transition = flag(
        'ff',
        "second branch of each block: 'ff' (feedforward) or 'sepconv' (separable convolutions)",
        one_of('ff', 'sepconv'),
        example='sepconv',
    )
    sets_on_module = ('layer_types',)

    def setup(self, owner: Any) -> None:
        if 'f' not in owner.layer_types:
            raise ConfigError(f'`ut_transition={self.ut_transition!r}` replaces feedforwards: this stack has none')
        owner.layer_types = tuple(['sepconv' if kind == 'f' else kind for kind in owner.layer_types])

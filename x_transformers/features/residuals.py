"""Residual connections: how branch outputs are added to the residual stream, token shift, and layer dropout.

A residual module has `prepare(x) -> (branch input, tensor to add to, extra keywords)`. It is called with the branch
output, the last two of these values, and the `StackCall`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, draw_number
from x_transformers.core.own_modules import filter_inputs
from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import RMSNorm, Scale
from x_transformers.flags import (
    Check,
    ConfigError,
    PerToken,
    boolean,
    count,
    each,
    flag,
    is_number,
    none,
    number,
    one_of,
    probability,
    size,
    warn_once,
)

BOTH_STREAMS = 'it adds the unchanged branch output to both of its streams'


class Residual(nn.Module):
    """branch + residual, the residual times an optional learned factor per channel and a constant."""

    def __init__(
        self,
        dim: int,
        scale_residual: bool | float = False,
        scale_residual_constant: float = 1.0,
        *,
        layer_index: int = 0,
    ) -> None:
        super().__init__()
        self.residual_scale = nn.Parameter(torch.ones(dim)) if scale_residual else None
        self.scale_residual_constant = scale_residual_constant

    def prepare(self, residual: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        return residual, residual, {}

    def scaled(self, residual: Tensor) -> Tensor:
        return residual if self.residual_scale is None else residual * self.residual_scale

    def forward(self, x: Tensor, residual: Tensor, **_: Any) -> Tensor:
        if self.residual_scale is not None:
            residual = self.scaled(residual)
        return x + (residual if self.scale_residual_constant == 1 else residual * self.scale_residual_constant)


def orthog_project(x: Tensor, y: Tensor) -> Tensor:
    """The part of each vector of `x` that is orthogonal to that of `y`, over the last axis."""
    precise = at_least_float(x.dtype)
    along = F.normalize(y.to(precise), dim=-1)
    x, dtype = x.to(precise), x.dtype
    return (x - (x * along).sum(dim=-1, keepdim=True) * along).to(dtype)


class OrthogonalResidualUpdate(Residual):
    """Add the component of the branch output that is orthogonal to the residual, per token or over the whole sequence.

    arXiv:2505.11881
    """

    def __init__(
        self, dim: int, scale_residual: bool | float = False, *, layer_index: int = 0, over_sequence: bool = False
    ) -> None:
        super().__init__(dim, scale_residual, layer_index=layer_index)
        self.over_sequence = over_sequence

    def forward(self, x: Tensor, residual: Tensor, call: Any = None, **_: Any) -> Tensor:
        residual = self.scaled(residual)
        if not self.over_sequence:
            return residual + orthog_project(x, residual)
        along = residual
        if call is not None and call.token_mask is not None:
            x, along = (t.masked_fill(~call.token_mask.unsqueeze(-1), 0.0) for t in (x, residual))
        return residual + orthog_project(x.flatten(1), along.flatten(1)).view_as(x)


class MVSplitResidualUpdate(nn.Module):
    """r + (o - mean o) beta + (mean o - mean r) alpha,  the means over tokens except padding.  arXiv:2605.06169

    With `causal`, the means are over the tokens up to each token, and the cache stores the sums. With `learned`, alpha
    and beta are computed from the mean of the branch output.
    """

    def __init__(
        self,
        dim: int,
        init_alpha: float = 0.0,
        init_beta: float = 0.03,
        learned: bool = False,
        *,
        layer_index: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.learned, self.causal = learned, causal
        if not learned:
            self.alpha = nn.Parameter(torch.full((dim,), float(init_alpha)))
            self.beta = nn.Parameter(torch.full((dim,), float(init_beta)))
            return
        self.to_alpha, self.to_beta = nn.Linear(dim, dim), nn.Linear(dim, dim)
        for linear, value in ((self.to_alpha, init_alpha), (self.to_beta, init_beta)):
            nn.init.zeros_(linear.weight)
            nn.init.constant_(linear.bias, value)

    prepare = Residual.prepare

    def means(self, t: Tensor, mask: Tensor | None, call: Any) -> Tensor:
        """Over the sequence (b n d), of real tokens:  b 1 d, or b n d if causal."""
        mask = mask if call is None or call.token_mask is None else call.token_mask[:, -t.shape[1] :]
        token_mask = t.new_ones(*t.shape[:2], 1) if mask is None else mask.unsqueeze(-1)
        # counts stand beside the sums
        sums = torch.cat((t.masked_fill(~token_mask.bool(), 0.0), token_mask.to(t.dtype)), dim=-1)
        sums = sums if t.dtype == torch.float64 else sums.float()
        sums = self.running(sums, call) if self.causal else sums.sum(dim=1, keepdim=True)
        return (sums[..., :-1] / sums[..., -1:].clamp(min=1e-5)).to(t.dtype)

    @staticmethod
    def running(t: Tensor, call: Any) -> Tensor:
        """Sums up to each token, those of the cache included."""
        sums = t.cumsum(dim=1)
        if call is None:
            return sums
        state = call.state('sums', call.step)
        sums = sums if state.vectors is None else sums + state.vectors[:, -1:]
        return state.append(sums)[:, -t.shape[1] :]

    def forward(self, x: Tensor, residual: Tensor, mask: Tensor | None = None, call: Any = None, **_: Any) -> Tensor:
        mean_out, mean_residual = self.means(torch.cat((x, residual), dim=-1), mask, call).chunk(2, dim=-1)
        alpha, beta = (self.to_alpha(mean_out), self.to_beta(mean_out)) if self.learned else (self.alpha, self.beta)
        return residual + (x - mean_out) * beta + (mean_out - mean_residual) * alpha


class LaurelResidual(Residual):
    """Residual with a low-rank path from the branch input, which `Laurel` keeps in the call."""

    def __init__(self, dim: int, *args: Any, rank: int, kind: str, **options: Any) -> None:
        super().__init__(dim, *args, **options)
        self.kind = kind
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)
        self.norm = RMSNorm(dim, eps=1e-6)
        nn.init.zeros_(self.norm.g)
        self.factors = nn.Parameter(torch.ones(2)) if kind == 'weighted' else None

    def forward(self, x: Tensor, residual: Tensor, *, call: Any, **extra: Any) -> Tensor:
        branch_input = call.ctx(Laurel).branch_input
        low = self.norm(self.up(self.down(branch_input)))
        if self.kind == 'gemma3n':
            return (super().forward(x, residual) + branch_input + low) * 0.5**0.5
        if self.factors is None:
            return super().forward(x + low, residual)
        return super().forward(self.factors[0] * x + self.factors[1] * low, self.factors[1] * residual)


def shift(t: Tensor, amount: int, mask: Tensor | None = None) -> Tensor:
    """Move tokens (b n d) `amount` places later (earlier if negative), zeros coming in; masked ones move as zeros."""
    if amount == 0:
        return t
    if mask is not None:
        t = t.masked_fill(~mask.unsqueeze(-1), 0.0)
    amount = max(-t.shape[-2], min(amount, t.shape[-2]))
    return F.pad(t, (0, 0, amount, -amount))


class ShiftTokens(nn.Module):
    """Shift equal parts of the channels along the sequence, each part by one of `shifts`, then apply `fn`.

    `recall`, if passed, takes the new tokens and returns them with all earlier ones prepended. Channels are not
    shifted across the documents of `shift_within` (b, n).
    """

    def __init__(self, shifts: tuple[int, ...], fn: nn.Module) -> None:
        super().__init__()
        self.fn, self.shifts = fn, tuple(shifts)

    def forward(
        self,
        x: Tensor,
        *,
        shift_mask: Tensor | None = None,
        recall: Callable[[Tensor], Tensor] | None = None,
        shift_within: Tensor | None = None,
        **inputs: Any,
    ) -> Any:
        rows, width = x.shape[-2], x.shape[-1] // len(self.shifts)
        if shift_mask is None and inputs.get('mask') is not None:  # outside of a stack
            shift_mask = inputs['mask']
        if recall is not None:  # of three views, the batch stands first in what is remembered
            known = recall(x) if x.ndim == 3 else recall(x.transpose(0, 1)).transpose(0, 1)
            x = known[..., -(rows + max(self.shifts)) :, :]
        mask = None if shift_mask is None else shift_mask[:, -x.shape[-2] :]
        parts = x.split((*[width] * len(self.shifts), x.shape[-1] - width * len(self.shifts)), dim=-1)
        moved = [shift(part, amount, mask) for part, amount in zip(parts[:-1], self.shifts, strict=True)]
        if shift_within is not None:
            others = ((shift_within.roll(amount, dims=-1) != shift_within).unsqueeze(-1) for amount in self.shifts)
            moved = [part.masked_fill(other, 0.0) for part, other in zip(moved, others, strict=True)]
        return self.fn(torch.cat((*moved, parts[-1]), dim=-1)[..., -rows:, :], **filter_inputs(self.fn, inputs))


def per_layer(value: Any, layers: int, name: str) -> tuple[Any, ...]:
    """One value per layer, from one value for all or from a sequence of that length."""
    if not isinstance(value, (tuple, list)):
        return (value,) * layers
    if len(value) != layers:
        raise ConfigError(f'`{name}` must have one per layer, {layers}, got {len(value)} values')
    return tuple(value)


def drop_scales(flag_name: str, options: dict[str, Any], *scales: str) -> dict[str, Any]:
    """The options of a residual that has no such scales. Who asked for one is warned."""
    for name in scales:
        if options.get(name) not in (None, False, 1.0):
            warn_once(f'`{name}` has no effect with `{flag_name}`')
    return {name: value for name, value in options.items() if name not in scales}


# the features


class TokenShift(StackFeature):
    """Token shift: shift part of the channels of each branch input by one or more tokens.

    Each branch then also receives channels of previous tokens (and, if not causal, of later ones).
    """

    paper = 'RWKV, github.com/BlinkDL/RWKV-LM (token shift)'
    refuses = {'some tokens': 'each branch input contains channels of neighboring tokens'}
    shift_tokens = flag(0, 'maximum shift, in tokens, or one value per layer', count | each(count), example=1)
    states = {'shift': PerToken()}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        value = values['shift_tokens']
        return any(value) if isinstance(value, (tuple, list)) else value > 0

    def setup(self, owner: Any) -> None:
        if owner.sees_future:
            self.refuse({'causal': 'channels of later tokens are shifted back'})
        self.amounts = per_layer(self.shift_tokens, len(owner.layer_types), 'shift_tokens')

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        amount = self.amounts[index]
        if amount == 0:
            return branch
        return ShiftTokens(tuple(range(-amount if self.owner.sees_future else 0, amount + 1)), branch)

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if self.amounts[layer.index] == 0:
            return inputs
        recall = call.state('shift', call.step).append if self.owner.causal else None
        inputs = {**inputs, 'shift_mask': call.token_mask, 'recall': recall}
        documents = call.inputs.get('document_ids')
        return inputs if documents is None else {**inputs, 'shift_within': documents}


class ResidualScale(StackFeature):
    """Scale the residual, the branch outputs, or their initial weights."""

    paper = 'NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838'
    scale_residual = flag(
        False,
        'learn a factor per channel of the residual; a number is also a constant factor of every branch output',
        boolean | number,
        example=True,
    )
    scale_residual_constant = flag(1.0, 'constant factor of the residual', number, example=0.5)
    depth_scale_residual = flag(
        False,
        'True: smaller initial output weights in deeper layers; a number: constant factor of every branch output',
        Check(
            'True, False or a number other than 0',
            lambda v: isinstance(v, bool) or (is_number(v) and v != 0),
            'bool | float',
        ),
        example=True,
    )
    switches = ('scale_residual', 'scale_residual_constant', 'depth_scale_residual')
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        scales = values['scale_residual'] or values['depth_scale_residual']
        return bool(scales) or values['scale_residual_constant'] != 1

    def setup(self, owner: Any) -> None:
        wishes = (self.depth_scale_residual, self.scale_residual)
        self.factor = next((wish for wish in wishes if is_number(wish) and wish), 1)
        if any('attn_aggregated_residuals' in feature.flags for feature in owner.features.active):
            if self.depth_scale_residual:
                warn_once('`depth_scale_residual` has no effect beside `attn_aggregated_residuals`')
            self.factor, self.depth_scale_residual = 1, False
        owner.residual_options['scale_residual'] = bool(self.scale_residual)
        owner.residual_options['scale_residual_constant'] = self.scale_residual_constant

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        if self.depth_scale_residual is not True:
            return flags
        index = [i for i, other in enumerate(self.owner.layer_types) if other == kind][number]
        return {'output_proj_depth': index // self.owner.len_default_block + 1, **flags}

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return branch if self.factor == 1 else Scale(self.factor, branch)


class Laurel(StackFeature):
    """Learned augmented residuals (LAuReL): a path of low rank beside each branch, from its input y.

    low = norm(W_up W_down y)                     the weight of the norm is 0 at first
    low_rank    x + out + low
    weighted    a out + b (x + low)               a and b learned, 1 at first
    gemma3n     (x + out + y + low) / sqrt(2)     in self-attention layers only
    """

    paper = 'LAuReL, arXiv:2411.07501'
    laurel_rank = flag(None, 'rank of a learned path beside each branch', size | none, example=3)
    laurel_kind = flag(
        'low_rank',
        "how the path is added: 'low_rank', 'weighted' with learned factors, or 'gemma3n'",
        one_of('low_rank', 'weighted', 'gemma3n'),
        example='weighted',
    )
    requires_flag = {'laurel_kind': 'laurel_rank'}
    clashes = {'qkv_receive_diff_residuals': 'a branch has several inputs'}
    refuses = {'some tokens': 'residuals add the branch inputs of all tokens'}

    def residual(self, *args: Any, layer_index: int, **options: Any) -> nn.Module:
        if self.laurel_kind == 'gemma3n' and self.owner.layer_types[layer_index] != 'a':
            return Residual(*args, layer_index=layer_index, **options)
        own: dict[str, Any] = dict(rank=self.laurel_rank, kind=self.laurel_kind)
        return LaurelResidual(*args, layer_index=layer_index, **own, **options)

    def keep_branch_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        call.ctx(self).branch_input = x
        return x

    normed = keep_branch_input


class OrthogResidual(StackFeature):
    """Add only the component of the branch output that is orthogonal to the residual stream of the token."""

    paper = 'Revisiting Residual Connections, arXiv:2505.11881'
    orthog_residual = flag(False, 'add only the component of the branch output that is orthogonal to the residual')
    orthog_residual_over_sequence = flag(False, 'treat all tokens as one vector, for weights of x-transformers 2.31')

    def residual(self, *args: Any, **options: Any) -> nn.Module:
        options = drop_scales('orthog_residual', options, 'scale_residual_constant')
        if self.orthog_residual_over_sequence and not self.owner.sees_future:
            raise ConfigError(
                '`orthog_residual_over_sequence` cannot be combined with a causal stack: it sees later tokens'
            )
        return OrthogonalResidualUpdate(*args, over_sequence=self.orthog_residual_over_sequence, **options)

    def setup(self, owner: Any) -> None:
        if self.orthog_residual_over_sequence:
            self.refuse(dict.fromkeys(('documents', 'some tokens'), 'it treats all tokens of a sequence as one vector'))


class MVSplitResidual(StackFeature):
    """Separate factors for the mean of the branch output over tokens, and for the deviation from this mean.

    r + (o - mean o) beta + (mean o - mean r) alpha          r: residual, o: branch output
    """

    paper = 'arXiv:2605.06169'
    refuses = {'documents': 'its means run across documents', 'some tokens': 'its means are over all tokens'}
    mv_split_residual = flag(False, 'scale the mean over tokens and the deviation from it by separate factors')
    states = {'sums': PerToken()}

    def residual(self, *args: Any, **options: Any) -> nn.Module:
        options = drop_scales('mv_split_residual', options, 'scale_residual', 'scale_residual_constant')
        return MVSplitResidualUpdate(*args, causal=not self.owner.sees_future, **options)


class LayerDropout(StackFeature):
    """Stochastic depth: skip whole layers at random in training."""

    paper = 'Deep Networks with Stochastic Depth, arXiv:1603.09382'
    layer_dropout = flag(
        0.0,
        'probability of skipping a layer in training, or a tuple with one value per layer',
        probability | each(Check('a number from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1, 'float')),
        example=0.5,
    )
    sets_on_module = ('layer_dropouts',)
    training_only = True
    refuses = {'cache in training': 'layers that are skipped at random keep no past'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        value = values['layer_dropout']
        return any(value) if isinstance(value, (tuple, list)) else value > 0

    def setup(self, owner: Any) -> None:
        owner.layer_dropouts = per_layer(self.layer_dropout, len(owner.layer_types), 'layer_dropout')

    def should_skip(self, layer: Any, call: Any) -> bool | None:
        rates = self.owner.layer_dropouts
        if layer.index >= len(rates):
            raise ConfigError(f'`layer_dropouts` has {len(rates)} entries, there is a layer {layer.index}')
        rate = rates[layer.index]
        return True if self.owner.training and rate > 0 and draw_number() < rate else None


class TwoStreamResidual(Residual):
    """Residual of ResiDual, which also adds the branch output to the second stream, kept in the call."""

    def __init__(self, *args: Any, stream_scale: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stream_scale = stream_scale

    def forward(self, x: Tensor, residual: Tensor, *, call: Any, **extra: Any) -> Tensor:
        own = call.ctx(ResiDual)
        own.stream = own.stream + x * self.stream_scale
        return super().forward(x, residual, call=call, **extra)


class ResiDual(StackFeature):
    """ResiDual: post-norm layers, and a second residual stream without norms. The output is the sum of both.

    r starts as c x;  after each branch  r += c out,  x = norm(x + out);  output  x + norm(r).
    """

    paper = 'ResiDual, arXiv:2304.14802'
    refuses = {'some tokens': 'its second stream is updated for every token in each layer'}
    resi_dual = flag(False, 'post-norm layers plus a second, unnormalized residual stream')
    resi_dual_scale = flag(
        1.0,
        'factor c of the second stream, against overflow in half precision',
        Check('a number above 0, up to 1', lambda v: is_number(v) and 0 < v <= 1, 'float'),
        example=0.5,
    )
    requires_flag = {'resi_dual_scale': 'resi_dual'}
    sets_on_module = ('pre_norm', 'norm_before', 'norm_outside', 'norm_at_end')
    clashes = {
        **dict.fromkeys(('gate_residual', 'orthog_residual', 'mv_split_residual'), BOTH_STREAMS),
        **dict.fromkeys(('gated_multi_residual', 'num_residual_streams'), BOTH_STREAMS),
    }

    def setup(self, owner: Any) -> None:
        owner.pre_norm = owner.norm_before = False
        owner.norm_outside = owner.norm_at_end = True

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.ctx(self).stream = x * self.resi_dual_scale
        return x

    def residual(self, *args: Any, **options: Any) -> nn.Module:
        return TwoStreamResidual(*args, stream_scale=self.resi_dual_scale, **options)

    def finish(self, x: Tensor, call: Any) -> Tensor:
        return x + call.norm(self.owner.final_norm, call.ctx(self).stream)


class ZeroInitBranches(StackFeature):
    """Initialize the last projection of every branch with zeros, so that the stack starts as the identity."""

    zero_init_branch_output = flag(False, 'initialize the output projection of every branch with zeros')
    training_only = True
    tp_shards = {}

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {'zero_init_output': True, **flags}


class SoftclampOutput(StackFeature):
    """Soft-clamp the residual stream before the final norm:  c tanh(x / c)."""

    paper = 'Gemma 2, arXiv:2408.00118'
    softclamp_output = flag(False, 'soft-clamp the output of the last layer with tanh')
    softclamp_output_value = flag(
        30.0,
        'bound c of this output',
        Check('a positive number', lambda v: is_number(v) and 0 < v < math.inf, 'float'),
        example=2.0,
    )
    tp_shards = {}

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        return (x / self.softclamp_output_value).tanh() * self.softclamp_output_value

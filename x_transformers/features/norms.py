"""Norms of the residual stream, and scales of branch outputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.branches import is_attention
from x_transformers.core.checks import check_digits
from x_transformers.core.modes import HALF
from x_transformers.features.levels import StackFeature
from x_transformers.flags import ConfigError, Input, at_least, flag, none, number, positive, size
from x_transformers.flags.checks import Maybe, per_row_or_token
from x_transformers.flags.unexpected import answering


def l2norm(t: Tensor, groups: int = 1) -> Tensor:
    """Divide each of `groups` equal parts of the last axis by its 2-norm, which is taken in float32 at least."""
    if groups > 1:
        return l2norm(t.unflatten(-1, (groups, -1))).flatten(-2)
    if t.dtype in HALF:  # squares of 256 are infinite in float16, and 1e-12 is zero
        norm = torch.linalg.vector_norm(t, dim=-1, keepdim=True, dtype=torch.float32)
        return (t / norm.masked_fill(norm == 0, 1.0)).to(t.dtype)  # zeros have zeros, and a gradient that is finite
    # `F.normalize`, without what it asks before
    return t / torch.linalg.vector_norm(t, dim=-1, keepdim=True).clamp_min(1e-12)


def rms_normed(t: Tensor, eps: float) -> Tensor:
    """t / sqrt(mean(t^2) + eps)  over the last axis; of half precision in float32."""
    return F.rms_norm(t, t.shape[-1:], eps=eps)


def per_token(condition: Tensor) -> Tensor:
    """A condition per row (b d) as one per token (b 1 d)."""
    return condition.unsqueeze(1) if condition.ndim == 2 else condition


class LayerNorm(nn.Module):
    """Layer norm without bias. With `unit_offset` the weight is stored as `weight - 1`; it may be None.

    Ba et al. 2016, arXiv:1607.06450
    """

    eps = 1e-5

    def __init__(self, dim: int, unit_offset: bool = False, eps: float | None = None) -> None:
        super().__init__()
        self.dim, self.unit_offset, self.eps = dim, float(unit_offset), type(self).eps if eps is None else eps
        self.gamma = nn.Parameter(torch.full((dim,), 1.0 - self.unit_offset))

    def forward(self, x: Tensor) -> Tensor:
        gamma = self.gamma
        if gamma is None:
            return torch.layer_norm(x, (self.dim,), eps=self.eps)
        return torch.layer_norm(x, gamma.shape, gamma + self.unit_offset if self.unit_offset else gamma, eps=self.eps)


class BiasedLayerNorm(LayerNorm):
    """Layer norm with a bias."""

    def __init__(self, dim: int, unit_offset: bool = False, eps: float | None = None) -> None:
        super().__init__(dim, unit_offset, eps)
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        gamma = self.gamma + self.unit_offset if self.unit_offset else self.gamma
        return torch.layer_norm(x, gamma.shape, gamma, self.beta, self.eps)


class RMSNorm(nn.Module):
    """x / |x| * sqrt(dim) * weight, or with `eps` x / sqrt(mean(x^2) + eps) * weight. The weight may be None.

    Zhang & Sennrich 2019, arXiv:1910.07467
    """

    eps: float | None = None

    @answering
    def __init__(self, dim: int, unit_offset: bool = False, eps: float | None = None) -> None:
        super().__init__()
        self.unit_offset, self.scale, self.eps = float(unit_offset), dim**0.5, eps
        self.g = nn.Parameter(torch.full((dim,), 1.0 - self.unit_offset))

    def forward(self, x: Tensor) -> Tensor:
        g, eps = self.g, self.eps
        if eps is None:
            return l2norm(x) * (self.scale if g is None else self.scale * (g + self.unit_offset))
        x = rms_normed(x, eps)
        return x if g is None else x * (g + self.unit_offset if self.unit_offset else g)


class ScaleNorm(RMSNorm):
    """RMSNorm with one weight for all channels.  Nguyen & Salazar 2019, arXiv:1910.05895"""

    def __init__(self, dim: int, unit_offset: bool = False, eps: float | None = None) -> None:
        super().__init__(dim, unit_offset, eps)
        self.g = nn.Parameter(torch.full((1,), 1.0 - self.unit_offset))


class SimpleRMSNorm(nn.Module):
    """RMSNorm without a weight.  Qin et al. 2023, arXiv:2307.14995"""

    eps: float | None = None

    def __init__(self, dim: int, unit_offset: bool = False, eps: float | None = None) -> None:
        super().__init__()
        self.scale, self.eps = dim**0.5, eps

    def forward(self, x: Tensor) -> Tensor:
        return l2norm(x) * self.scale if self.eps is None else rms_normed(x, self.eps)


class DynamicTanh(nn.Module):
    """Dynamic tanh:  tanh(x a) weight + bias,  with one learned a.  Zhu et al. 2025, arXiv:2503.10622"""

    def __init__(
        self, dim: int, init_alpha: float = 1.0, gamma: float = 1.0, beta: float = 0.0, unit_offset: bool = False
    ) -> None:
        super().__init__()
        self.unit_offset = float(unit_offset)
        self.pre_tanh_scale_offset = float(init_alpha) if unit_offset else 0.0
        self.pre_tanh_scale = nn.Parameter(torch.tensor(float(init_alpha) - self.pre_tanh_scale_offset))
        self.gamma = nn.Parameter(torch.full((dim,), gamma - self.unit_offset))
        self.beta = nn.Parameter(torch.full((dim,), float(beta)))

    def forward(self, x: Tensor) -> Tensor:
        bounded = (x * (self.pre_tanh_scale + self.pre_tanh_scale_offset)).tanh()
        return bounded * (self.gamma + self.unit_offset) + self.beta


class Derf(nn.Module):
    """Derf:  erf(x a + s) weight + bias,  with one learned a and s.  arXiv:2512.10938"""

    def __init__(self, dim: int, init_alpha: float = 0.5, init_bias: float = 0.0, unit_offset: bool = False) -> None:
        super().__init__()
        self.unit_offset = float(unit_offset)
        self.alpha = nn.Parameter(torch.tensor(float(init_alpha) - self.unit_offset))
        self.s = nn.Parameter(torch.tensor(float(init_bias)))
        self.gamma = nn.Parameter(torch.full((dim,), 1.0 - self.unit_offset))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        bounded = (x * (self.alpha + self.unit_offset) + self.s).erf()
        return bounded * (self.gamma + self.unit_offset) + self.beta


class MultiheadRMSNorm(nn.Module):
    """RMSNorm of each head, with separate weights:  (b, h, n, d) -> (b, h, n, d)."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.scale = dim**0.5
        self.gamma = nn.Parameter(torch.zeros(heads, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        return l2norm(x) * (self.scale * (self.gamma + 1.0))


class AdaptiveLayerNorm(nn.Module):
    """Layer norm with weights computed from a condition, (b, d) or (b, n, d).  Peebles & Xie 2022, arXiv:2212.09748"""

    eps: Maybe[float] = 1e-5

    def __init__(self, dim: int, dim_condition: int | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.to_gamma = nn.Linear(dim_condition or dim, dim, bias=False)
        nn.init.zeros_(self.to_gamma.weight)

    def normed(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.dim,), eps=self.eps)

    def forward(self, x: Tensor, *, condition: Tensor) -> Tensor:
        return self.normed(x) * (self.to_gamma(per_token(condition)) + 1.0)


class AdaptiveRMSNorm(AdaptiveLayerNorm):
    """RMSNorm with weights computed from a condition, (b, d) or (b, n, d)."""

    eps: float | None = None

    def normed(self, x: Tensor) -> Tensor:
        return l2norm(x) * self.dim**0.5 if self.eps is None else rms_normed(x, self.eps)


class Identity(nn.Identity):
    """Return the first argument; other arguments are ignored."""

    def forward(self, t: Any, *args: Any, **kwargs: Any) -> Any:
        return t


class Scale(nn.Module):
    """Multiply the output of a branch by a constant; of a tuple, only the first entry."""

    def __init__(self, scale: float, fn: nn.Module | None = None) -> None:
        super().__init__()
        self.scale, self.fn = scale, Identity() if fn is None else fn

    def forward(self, x: Tensor, **inputs: Any) -> Any:
        return norm_first(self.fn(x, **inputs), lambda out: out * self.scale)


class LayerScale(nn.Module):
    """Multiply the output of a branch by a learned factor per channel.  Touvron et al. 2021, arXiv:2103.17239"""

    def __init__(self, fn: nn.Module, dim: int, init_value: float = 0.0, unit_offset: bool = False) -> None:
        super().__init__()
        self.fn, self.unit_offset = fn, float(unit_offset)
        self.gamma = nn.Parameter(torch.full((dim,), init_value - self.unit_offset))

    def forward(self, x: Tensor, **inputs: Any) -> Any:
        return norm_first(self.fn(x, **inputs), lambda out: out * (self.gamma + self.unit_offset))


class ReZero(nn.Module):
    """Multiply the output of a branch by one learned factor, first zero.  Bachlechner et al. 2020, arXiv:2003.04887"""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn
        self.g = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, **inputs: Any) -> Any:
        return norm_first(self.fn(x, **inputs), lambda out: out * self.g)


class AdaptiveLayerScale(nn.Module):
    """Multiply the output of a branch by a gate computed from a condition, almost closed at first.

    Peebles & Xie 2022, arXiv:2212.09748
    """

    def __init__(
        self, fn: nn.Module, dim: int, dim_condition: int | None = None, init_bias_value: float = -2.0
    ) -> None:
        super().__init__()
        self.fn = fn
        self.to_gamma = nn.Linear(dim_condition or dim, dim)
        nn.init.zeros_(self.to_gamma.weight)
        nn.init.constant_(self.to_gamma.bias, init_bias_value)

    def forward(self, x: Tensor, *, condition: Tensor, **inputs: Any) -> Any:
        gate = self.to_gamma(per_token(condition)).sigmoid()
        return norm_first(self.fn(x, **inputs), lambda out: out * gate)


class AdaLNZero(nn.Module):
    """Shift and scale the input of a branch and gate its output, by a condition; all initialized with zeros.

        shift, scale, gate = W silu(condition) + b;  x -> gate branch((1 + scale) x + shift)

    Peebles & Xie 2022, arXiv:2212.09748
    """

    def __init__(self, fn: nn.Module, dim: int, dim_condition: int) -> None:
        super().__init__()
        self.fn = fn
        self.adaln = nn.Linear(dim_condition, 3 * dim)
        nn.init.zeros_(self.adaln.weight)
        nn.init.zeros_(self.adaln.bias)

    def forward(self, x: Tensor, *, condition: Tensor, **inputs: Any) -> Any:
        shift, scale, gate = self.adaln(F.silu(per_token(condition))).chunk(3, dim=-1)
        if inputs.get('mem') is not None:  # of which keys are made as of tokens; then the condition is that of the row
            inputs['mem'] = inputs['mem'] * (1 + scale) + shift
        return norm_first(self.fn(x * (1 + scale) + shift, **inputs), lambda out: out * gate)


def norm_first(value: Any, function: Any) -> Any:
    """Apply `function` to a tensor, or to the first entry of a tuple."""
    return (function(value[0]), *value[1:]) if isinstance(value, tuple) else function(value)


# the features


class UseScaleNorm(StackFeature):
    """ScaleNorm: RMSNorm with one learned weight for all channels."""

    paper = 'Transformers without Tears, arXiv:1910.05895'
    use_scalenorm = flag(False, 'ScaleNorm instead of LayerNorm')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return ScaleNorm(self.owner.dim, self.owner.norm_add_unit_offset)


class UseRMSNorm(StackFeature):
    """RMSNorm: divide by the root mean square, without subtracting the mean."""

    paper = 'Root Mean Square Layer Normalization, arXiv:1910.07467'
    use_rmsnorm = flag(False, 'RMSNorm instead of LayerNorm')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return RMSNorm(self.owner.dim, self.owner.norm_add_unit_offset)


class UseSimpleRMSNorm(StackFeature):
    """RMSNorm without learned weights."""

    paper = 'TransNormer, arXiv:2307.14995'
    use_simple_rmsnorm = flag(False, 'RMSNorm without learned weights, instead of LayerNorm')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return SimpleRMSNorm(self.owner.dim)


class UseDynamicTanh(StackFeature):
    """Dynamic tanh (DyT) instead of norms:  tanh(x a) weight + bias,  with one learned factor a."""

    paper = 'Transformers without Normalization, arXiv:2503.10622'
    use_dynamic_tanh = flag(False, 'dynamic tanh instead of LayerNorm')
    dynamic_tanh_init_alpha = flag(1.0, 'initial value of the factor a', number, example=0.5)
    clashes = dict.fromkeys(
        ('gated_multi_residual', 'resi_dual'), 'its branches have no norm before them that could be replaced'
    )
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`use_dynamic_tanh` needs `pre_norm`: after the residual it would bound the stream')

    def norm(self) -> nn.Module:
        return DynamicTanh(self.owner.dim, self.dynamic_tanh_init_alpha, unit_offset=self.owner.norm_add_unit_offset)


class UseDerf(StackFeature):
    """Derf, the error function, instead of norms:  erf(x a + s) weight + bias,  with one learned a and s."""

    paper = 'Stronger Normalization-Free Transformers, arXiv:2512.10938'
    use_derf = flag(False, 'Derf (error function) instead of LayerNorm')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return Derf(self.owner.dim, unit_offset=self.owner.norm_add_unit_offset)


class Condition(StackFeature):
    """The input `condition`, (b, d) or (b, n, d), of adaptive norms and scales."""

    dim_condition = flag(None, 'width of the condition, `dim` if None', size | none, example=12)
    adaptive_condition_mlp = flag(False, 'first expand the condition with a linear layer and SiLU')
    adaptive_condition_mlp_expansion = flag(4, 'expansion factor of this layer', at_least(1), example=2)
    call_inputs = {'condition': Input('b d | b n d', per_row_or_token)}
    switches = ('use_adaptive_layernorm', 'use_adaptive_rmsnorm', 'use_adaptive_layerscale', 'use_adaln_zero')
    requires_flag = {'adaptive_condition_mlp_expansion': 'adaptive_condition_mlp'}
    stored_as = {'mlp': 'adaptive_mlp'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return any(values.get(name) for name in cls.switches)

    def setup(self, owner: Any) -> None:
        self.given_width = self.width = self.dim_condition or owner.dim
        if self.adaptive_condition_mlp:
            self.width *= self.adaptive_condition_mlp_expansion
            self.mlp = nn.Sequential(nn.Linear(self.given_width, self.width, bias=False), nn.SiLU())

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        condition = call.inputs.get('condition')
        if condition is None:
            raise ValueError('`condition` is missing: adaptive norms and scales need it, (b d) or (b n d)')
        wrong_width = condition.ndim not in (2, 3) or condition.shape[-1] != self.given_width
        if wrong_width or condition.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f'`condition` must be ({x.shape[0]}, {self.given_width}) or '
                f'({x.shape[0]}, n, {self.given_width}), got shape {tuple(condition.shape)}'
            )
        check_digits(condition, 'condition', x)
        if torch.promote_types(condition.dtype, x.dtype) == x.dtype:
            condition = condition.to(x.dtype)
        condition = call.select_new(per_token(condition), 'condition')
        if call.memories and condition.shape[1] != 1:
            raise ValueError('`condition` got one row per token, but `mems` have no conditions: give one per sequence')
        call.condition = self.owner.adaptive_mlp(condition)
        return x


class UseAdaptiveLayerNorm(StackFeature):
    """Adaptive layer norm: the norm weights are computed from `condition`."""

    paper = 'Scalable Diffusion Models with Transformers, arXiv:2212.09748'
    use_adaptive_layernorm = flag(False, 'layer norm with weights computed from `condition`')

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.norm_inputs = {'condition': call.condition}
        return x

    def norm(self) -> nn.Module:
        return AdaptiveLayerNorm(self.owner.dim, self.owner.features.find(Condition).width)


class UseAdaptiveRMSNorm(StackFeature):
    """Adaptive RMSNorm: the norm weights are computed from `condition`."""

    use_adaptive_rmsnorm = flag(False, 'RMSNorm with weights computed from `condition`')
    stack_input = UseAdaptiveLayerNorm.stack_input

    def norm(self) -> nn.Module:
        return AdaptiveRMSNorm(self.owner.dim, self.owner.features.find(Condition).width)


class UseLayerScale(StackFeature):
    """LayerScale: a learned factor per channel on the output of each branch."""

    paper = 'Going deeper with Image Transformers, arXiv:2103.17239'
    use_layerscale = flag(False, 'scale the output of every branch by a learned factor per channel')
    layerscale_init_value = flag(0.0, 'initial value of this factor', number, example=0.5)
    clashes = {'use_adaptive_layerscale': 'both scale the branch output'}
    tp_shards = {}

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return LayerScale(branch, self.owner.dim, self.layerscale_init_value, self.owner.norm_add_unit_offset)


class UseAdaptiveLayerScale(StackFeature):
    """A gate on the output of each branch, computed from `condition` and almost closed at first."""

    paper = 'Scalable Diffusion Models with Transformers, arXiv:2212.09748'
    use_adaptive_layerscale = flag(False, 'gate the output of every branch by a sigmoid of `condition`')

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return AdaptiveLayerScale(branch, self.owner.dim, self.owner.features.find(Condition).width)

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        return {**inputs, 'condition': call.condition}


class UseAdaLNZero(StackFeature):
    """adaLN-Zero: shift, scale and gate of each branch, computed from `condition`; all are initialized with zeros.

        shift, scale, gate = W silu(condition) + b;  x -> gate branch((1 + scale) x + shift)

    At first every branch outputs zero, so that the blocks are the identity.
    """

    paper = UseAdaptiveLayerScale.paper
    use_adaln_zero = flag(
        False, 'shift, scale and gate every branch by `condition` (adaLN-Zero), initialized with zeros'
    )
    needs = {'dim_condition': 'it is the width of the condition'}
    clashes = {
        **dict.fromkeys(('use_adaptive_layernorm', 'use_adaptive_rmsnorm'), 'both scale the branch input'),
        **dict.fromkeys(('use_adaptive_layerscale', 'use_layerscale', 'use_rezero'), 'both scale the branch output'),
        'zero_init_branch_output': 'with both at zero, neither would get a gradient',
    }
    refuses = {'some tokens': 'it shifts and scales the branch input of all tokens'}
    inputs = UseAdaptiveLayerScale.inputs

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`use_adaln_zero` needs `pre_norm`: a norm behind the branch would undo its gate')

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return AdaLNZero(branch, self.owner.dim, self.owner.features.find(Condition).width)


class UseReZero(StackFeature):
    """ReZero: no norms, and a learned factor on each branch that is initialized with zero."""

    paper = 'ReZero is All You Need, arXiv:2003.04887'
    use_rezero = flag(False, 'scale every branch by a learned factor, instead of norms')
    clashes = dict.fromkeys(('sandwich_norm', 'pre_and_post_norm'), 'it removes all norms')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return nn.Identity()

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return ReZero(branch)


NO_NORMS = {
    **dict.fromkeys(('use_dynamic_tanh', 'use_derf'), 'it replaces the norms by a function without division'),
    'use_rezero': 'it removes all norms',
}


class NormBias(StackFeature):
    """Layer norms with a bias, as in most other implementations."""

    paper = 'Layer Normalization, arXiv:1607.06450'
    norm_bias = flag(False, 'learn a bias in the layer norms (also for weights of releases before 1.27)')
    tp_shards = {}

    def norm(self) -> nn.Module:
        return BiasedLayerNorm(self.owner.dim, self.owner.norm_add_unit_offset)


class NormEps(StackFeature):
    """The eps of the norms, added to the mean square or variance:  x / sqrt(mean(x^2) + eps) * weight."""

    paper = 'Layer Normalization, arXiv:1607.06450'
    norm_eps = flag(
        None, 'eps of every norm; None: 1e-5 in layer norms, no eps in others (x / |x|)', positive | none, example=0.1
    )
    clashes = NO_NORMS
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        owner.norm_changes += (self.change,)

    def change(self, norm: Any) -> nn.Module:
        if not hasattr(norm, 'eps'):
            raise ConfigError(f'`norm_eps` cannot be combined with {type(norm).__name__}, which has no `eps`')
        norm.eps = float(self.norm_eps)
        return norm


class NormAffine(StackFeature):
    """Learned weights of the norms. With False, norms have no parameters."""

    paper = 'OLMo, arXiv:2402.00838'
    norm_affine = flag(True, 'learn weights in the norms')
    clashes = {
        **NO_NORMS,
        'norm_bias': 'norms without weights have no bias either',
        'use_scalenorm': 'its single weight is its only parameter',
        'use_simple_rmsnorm': 'it never has weights',
        'use_adaptive_layernorm': 'its weights are computed from the condition',
        'use_adaptive_rmsnorm': 'its weights are computed from the condition',
    }
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return not values['norm_affine']

    setup = NormEps.setup

    def change(self, norm: Any) -> nn.Module:
        if type(norm) not in (LayerNorm, RMSNorm):
            raise ConfigError(
                f'`norm_affine=False` cannot be combined with {type(norm).__name__}: its gains are its own'
            )
        for name in list(norm._parameters):
            setattr(norm, name, None)
        return norm


class BranchPostNorm(StackFeature):
    """Normalize the output of each branch instead of its input:  x + norm(f(x)). The final norm remains."""

    paper = 'OLMo 2, arXiv:2501.00656'
    branch_post_norm = flag(False, 'normalize the output of every branch instead of its input')
    sets_on_module = ('norm_before',)
    clashes = {
        **dict.fromkeys(
            ('pre_and_post_norm', 'resi_dual', 'gated_multi_residual', 'sandwich_norm'),
            'both set the positions of the norms',
        ),
        'use_rezero': 'it removes all norms',
        'use_dynamic_tanh': 'it needs dynamic tanh before each branch',
    }
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`branch_post_norm` needs `pre_norm`: after the residual there is no other norm')
        owner.norm_before = False

    def norms(self, norms: tuple[Any, ...], kind: str, index: int) -> tuple[Any, ...]:
        return norms if kind == 'end' else (norms[0], self.owner.new_norm(), norms[2])


class FirstAttentionNorm(StackFeature):
    """The norm before the first attention layer. Set to False for embeddings that are already normalized."""

    paper = 'ModernBERT, arXiv:2412.13663'
    first_attn_norm = flag(True, 'use a norm before the first attention layer')
    clashes = {
        **dict.fromkeys(('branch_post_norm', 'resi_dual', 'gated_multi_residual'), 'there is no norm before a branch'),
        'use_rezero': 'it removes all norms',
        'use_dynamic_tanh': 'it needs dynamic tanh before each branch',
        'weight_tie_layers': 'all attention layers are the first one',
    }
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return not values['first_attn_norm']

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`first_attn_norm=False` needs `pre_norm`: there is no norm before a branch')
        order = owner.layers_execute_order
        self.first = next((index for index in order if is_attention(owner.layer_types[index])), None)
        if order.count(self.first) > 1:
            raise ConfigError(
                f'`first_attn_norm=False` cannot be combined with this `layers_execute_order`: '
                f'layer {self.first}, the first attention, runs again'
            )

    def norms(self, norms: tuple[Any, ...], kind: str, index: int) -> tuple[Any, ...]:
        return (None, *norms[1:]) if index == self.first else norms


class PreAndPostNorm(StackFeature):
    """Normalize the input of every branch, and the residual stream after it. There is no final norm."""

    pre_and_post_norm = flag(False, 'use a norm before every branch and another after its residual')
    clashes = dict.fromkeys(('gated_multi_residual', 'resi_dual'), 'it has norms after the residual only')
    sets_on_module = ('norm_outside', 'norm_at_end')
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`pre_and_post_norm` needs `pre_norm`: it norms before a branch as well')
        owner.norm_outside, owner.norm_at_end = True, False


class SandwichNorm(StackFeature):
    """Sandwich norm: a second norm, on the output of each branch."""

    paper = 'CogView, arXiv:2105.13290'
    sandwich_norm = flag(False, 'also normalize the output of every branch')
    clashes = dict.fromkeys(('gated_multi_residual', 'resi_dual'), 'its branches have no norm before them')
    tp_shards = {}
    norms = BranchPostNorm.norms

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`sandwich_norm` needs `pre_norm`: it norms a branch on both sides')

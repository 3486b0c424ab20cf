"""Branch inputs computed from the inputs of all earlier branches, also separately for queries, keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float
from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import RMSNorm
from x_transformers.flags import ConfigError, flag, is_int, mapping, none

MIXES = 'each branch uses the inputs of all branches before it'


class LoRALinear(nn.Module):
    """up(activation(down(x))) through `dim` features, or without a rank W x; zero at first.  arXiv:2106.09685"""

    def __init__(
        self, dim_in: int, dim_out: int | None = None, dim: int | None = None, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        dim_out = dim_out or dim_in
        self.activation = activation
        if dim is None:
            self.weight = nn.Parameter(torch.zeros(dim_out, dim_in))
            return
        if dim >= max(dim_in, dim_out):
            raise ConfigError(f'`lora_rank` must be below {max(dim_in, dim_out)}, the width, got {dim}')
        self.down, self.up = nn.Linear(dim_in, dim, bias=False), nn.Linear(dim, dim_out, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, 'down'):
            return nn.functional.linear(x, self.weight)
        hidden = self.down(x)
        return self.up(hidden if self.activation is None else self.activation(hidden))


class DynamicLIMe(nn.Module):
    """A mix of the inputs of all branches so far, with weights from the latest one.

    Gerasimov et al. 2025, arXiv:2502.09245

    x          b n d                  the latest
    hiddens    num_layers times b n d, or stacked; the latest included
    returns    b n d, or with several views v b n d
    """

    def __init__(
        self, dim: int, num_layers: int, num_views: int = 1, norm: bool = True, use_softmax: bool = True
    ) -> None:
        super().__init__()
        self.num_layers, self.num_views, self.use_softmax = num_layers, num_views, use_softmax
        linear = nn.Linear(dim, num_views * num_layers)
        self.to_weights = nn.Sequential(RMSNorm(dim), linear) if norm else nn.Sequential(linear)

    def forward(self, x: Tensor, hiddens: Sequence[Tensor] | Tensor) -> Tensor:
        if len(hiddens) != self.num_layers:
            raise ValueError(f'`hiddens` must have {self.num_layers} layers, got {len(hiddens)}')
        weights = rearrange(self.to_weights(x), 'b n (v l) -> b n v l', v=self.num_views)
        weights = weights.softmax(dim=-1) if self.use_softmax else weights.relu()
        return mix_views(weights, hiddens)


class AttentionResidual(nn.Module):
    """The latest branch input attends, per token, to the inputs of all branches so far.  arXiv:2601.21582, 2603.15031

    q = norm(y + up(act(down(norm_q(y))))),  y the latest;  keys norm_k(Y);  values the inputs Y as they are
    """

    def __init__(
        self, dim: int, num_views: int = 1, lora_rank: int | None = None, lora_activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        if lora_rank is None:
            lora_rank = 64 if dim > 64 else max(dim // 2, 1)
        if not is_int(lora_rank) or not 0 < lora_rank < max(dim, 2):
            raise ConfigError(f'`lora_rank` must be an integer from 1 to {max(dim - 1, 1)}, got {lora_rank!r}')
        eps = torch.finfo(torch.float32).eps
        self.num_views, self.scale = num_views, dim**-0.5
        self.to_keys = nn.RMSNorm(dim, eps=eps)
        self.to_query = nn.Sequential(
            nn.RMSNorm(dim, eps=eps), LoRALinear(dim, num_views * dim, lora_rank, lora_activation)
        )
        self.norm = nn.RMSNorm(dim, eps=eps)

    def forward(
        self, x: Tensor | Sequence[Tensor] | None = None, hiddens: Sequence[Tensor] | Tensor | None = None
    ) -> Tensor:
        """(hiddens), (x, hiddens) or (hiddens=...);  `x` is the latest of them anyway."""
        stacked: Any = x if hiddens is None else hiddens
        stacked = stacked if torch.is_tensor(stacked) else torch.stack(tuple(stacked))
        latest = stacked[-1]
        queries = rearrange(latest, 'b n d -> b n 1 d')
        queries = queries + rearrange(self.to_query(latest), 'b n (v d) -> b n v d', v=self.num_views)
        logits = einsum(self.norm(queries), self.to_keys(stacked), 'b n v d, l b n d -> b n v l') * self.scale
        return mix_views(logits.softmax(dim=-1, dtype=at_least_float(logits.dtype)).to(stacked.dtype), stacked)


def mix_views(weights: Tensor, hiddens: Sequence[Tensor] | Tensor) -> Tensor:
    """Sums of l hidden states (b n d) with weights (b n v l):  v b n d, or b n d for one view."""
    hiddens = hiddens if torch.is_tensor(hiddens) else torch.stack(tuple(hiddens))
    out = einsum(weights, hiddens, 'b n v l, l b n d -> v b n d')
    return out[0] if weights.shape[-2] == 1 else out


# the features


class Integrator(StackFeature):
    """One module per layer that computes the branch input from the inputs of all branches so far."""

    stored_as: ClassVar[dict[str, str]] = {'integrators': 'layer_integrators'}

    def build(self, index: int) -> nn.Module:
        raise NotImplementedError

    def views(self, index: int) -> int:
        return 3 if ReceiveViews.wants_views(self.owner, index) else 1

    def setup(self, owner: Any) -> None:
        self.integrators = nn.ModuleList(self.build(index) for index in range(len(owner.layer_types)))

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.ctx(self).inputs = []
        return x

    def branch_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        inputs = call.ctx(self).inputs
        inputs.append(x)
        integrate = self.integrators[layer.index]
        return x if integrate is None else integrate(x, inputs)


class IntegrateLayers(Integrator):
    """LIMe: the input of every branch is a learned mix of all branch inputs so far, separate for q, k and v."""

    paper = 'LIMe, arXiv:2502.09245'
    refuses = {'some tokens': MIXES}
    integrate_layers = flag(False, 'use a learned mix of all previous branch inputs as the input of each branch')
    layer_integrate_use_softmax = flag(True, 'normalize the weights of the mix by softmax, otherwise apply ReLU')
    clashes = {
        'weight_tie_layers': 'each layer has mixing weights for the layers before it and may run only once',
        'layers_execute_order': 'each layer has mixing weights for the layers before it in the default order',
    }

    def build(self, index: int) -> nn.Module:
        return DynamicLIMe(
            self.owner.dim, index + 1, self.views(index), use_softmax=bool(self.layer_integrate_use_softmax)
        )

    def views(self, index: int) -> int:
        return 3 if self.owner.layer_types[index] == 'a' and 'a' in self.owner.layer_types[:index] else 1

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {**flags, 'qkv_receive_diff_residuals': True} if kind == 'a' and number > 0 else flags

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if tuple(call.order) != tuple(range(len(call.order))):
            raise ValueError(
                '`integrate_layers` cannot be combined with `repeat_blocks` or `layers_execute_order`: '
                'each layer has weights for exactly those before it, in their order'
            )
        return super().stack_input(x, call)

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        if call.left_out:
            call.ctx(self).inputs.append(layer[2].prepare(x)[0])
        return x


class AggregatedResiduals(Integrator):
    """Attention residuals: each branch input attends, per token, to the inputs of all previous branches."""

    paper = 'arXiv:2601.21582, arXiv:2603.15031'
    refuses = {'some tokens': MIXES}
    attn_aggregated_residuals = flag(False, 'let each branch input attend to the inputs of all previous branches')
    overridden_by = ('integrate_layers',)
    attn_aggregated_residual_kwargs = flag(
        None, '`lora_rank` (default 64) and `lora_activation` of the queries', mapping | none, example={'lora_rank': 3}
    )
    clashes = {
        name: 'both compute the branch input'
        for name in ('gate_residual', 'orthog_residual', 'mv_split_residual', 'gated_multi_residual')
    }

    def build(self, index: int) -> nn.Module:
        options = self.attn_aggregated_residual_kwargs or {}
        try:
            return AttentionResidual(self.owner.dim, self.views(index), **options)
        except TypeError as error:
            raise ConfigError(f'`attn_aggregated_residual_kwargs` got {options}: {error}') from None


class ReceiveViews(StackFeature):
    """Compute the inputs of queries, keys and values of self-attention by three separate mixes.

    Needs a feature that mixes: residual streams, `integrate_layers` or `attn_aggregated_residuals`.
    """

    paper = 'Hyper-Connections, arXiv:2409.19606'
    refuses = {'some tokens': MIXES}
    qkv_receive_diff_residuals = flag(False, 'use separate inputs for queries, keys and values')
    sources = ('num_residual_streams', 'gated_multi_residual', 'integrate_layers', 'attn_aggregated_residuals')

    def setup(self, owner: Any) -> None:
        if not any(set(self.sources) & set(feature.flags) for feature in owner.features.active):
            wanted = ', '.join(f'`{name}`' for name in self.sources)
            raise ConfigError(f'`qkv_receive_diff_residuals` needs one of {wanted}: they make the separate inputs')

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        lime = self.owner.features.find(IntegrateLayers)
        return {**flags, 'qkv_receive_diff_residuals': True} if kind == 'a' and lime is None else flags

    @classmethod
    def wants_views(cls, owner: Any, index: int) -> bool:
        """Return True if a layer wants three views."""
        return owner.layer_types[index] == 'a' and owner.features.find(cls) is not None

    @classmethod
    def views_of_residual(cls, owner: Any, index: int) -> int:
        """Return how many inputs the residual of a layer makes for its branch: one, where an integrator makes them."""
        return 3 if cls.wants_views(owner, index) and owner.features.find(Integrator) is None else 1

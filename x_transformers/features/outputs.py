"""Gates and scales of the attention output, and the output projection.

The last three features are computations of early releases, for weights that were trained with them, see
`x_transformers.checkpoint.upgrade`. They are not recommended for new models.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn

from x_transformers.core.modes import widen_dtype
from x_transformers.features.heads import HeadNorm
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, flag, none, one_of, positive, probability, size, warn_once
from x_transformers.kernels.dense import tile_heads


def split_into_heads(t: Tensor, heads: int) -> Tensor:
    """b i (h d) -> b i h d"""
    return rearrange(t, 'b i (h d) -> b i h d', h=heads)


class HeadScale(AttentionFeature):
    """A learned factor of the output of each head."""

    per_head = True
    paper = 'NormFormer, arXiv:2110.09456'
    head_scale = flag(False, 'scale the output of each head by a learned factor')
    stored_as = {'scale': 'head_scale_params'}
    tp_shards = {'scale': (1, 'heads')}

    def setup(self, owner: Any) -> None:
        self.scale = nn.Parameter(torch.ones(1, owner.shape.heads, 1, 1))

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        return out * self.scale


class ValueScale(AttentionFeature):
    """Multiply the weighted values by a fixed factor."""

    paper = 'MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash'
    value_scale = flag(None, 'factor of the weighted values', positive | none, example=0.7)
    tp_shards = {}

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        return out * self.value_scale


class GateValueHeads(AttentionFeature):
    """A sigmoid gate on the output of each head, computed from the input. Initialized open."""

    per_head = True
    paper = 'Quantizable Transformers, arXiv:2306.12929'
    gate_value_heads = flag(False, 'gate the output of each head by a sigmoid of the input')
    stored_as = {'to_gate': 'to_v_head_gate'}
    tp_shards = {'to_gate.weight': (0, 'heads'), 'to_gate.bias': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        self.to_gate = nn.Linear(owner.dim, owner.shape.heads)
        nn.init.zeros_(self.to_gate.weight)
        nn.init.constant_(self.to_gate.bias, 10.0)

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        return out * rearrange(self.to_gate(call.x).sigmoid(), 'b i h -> b h i 1')


class GateValues(AttentionFeature):
    """A gate on the attention output o, computed from the input x, from o itself, or from the sum of both.

        o act(W x + U o)        act is the sigmoid, SiLU or softplus; W and U may be of low rank, or give one logit
                                per head

    W and U are initialized with zeros: at first the sigmoid gate is 1/2, the SiLU gate 0, the softplus gate log 2.
    arXiv:2608.11805
    """

    paper = 'AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805'
    gate_values = flag(False, 'gate the attention output, with a gate computed from the input')
    gate_values_rank = flag(None, 'rank of this gate, full if None', size | none, example=2)
    gate_values_headwise = flag(False, 'compute one gate per head instead of one per channel')
    output_gate = flag(False, 'gate the attention output, with a gate computed from the output itself')
    output_gate_rank = flag(None, 'rank of this gate, full if None', size | none, example=2)
    output_gate_headwise = flag(False, 'compute one such gate per head instead of one per channel')
    swiglu_values = flag(False, 'SiLU instead of sigmoid in these gates')
    gate_values_activation = flag(
        'sigmoid', "activation of these gates: 'sigmoid' or 'softplus'", one_of('sigmoid', 'softplus'),
        example='softplus',
    )  # fmt: skip
    low_rank_silu_gates = flag(True, 'SiLU between the two projections of a low-rank gate')
    switches = ('gate_values', 'output_gate')
    requires_flag = {
        'gate_values_rank': 'gate_values',
        'gate_values_headwise': 'gate_values',
        'output_gate_rank': 'output_gate',
        'output_gate_headwise': 'output_gate',
    }
    stored_as = {'from_input': 'to_v_gate', 'from_values': 'to_output_gate'}
    sets_on_module = ('to_v_gate_activation',)

    def setup(self, owner: Any) -> None:
        if self.swiglu_values and self.gate_values_activation != 'sigmoid':
            raise ConfigError('`gate_values_activation` cannot be combined with `swiglu_values`, which is SiLU')
        activation = F.softplus if self.gate_values_activation == 'softplus' else F.sigmoid
        owner.to_v_gate_activation = F.silu if self.swiglu_values else activation
        if self.gate_values:
            self.from_input = self.gate('gate_values', owner.dim)
        if self.output_gate:
            self.refuse({'several devices': 'its gates depend on all heads'})
            self.from_values = self.gate('output_gate', owner.shape.dim_inner)
        if not self.low_rank_silu_gates and not (self.gate_values_rank or self.output_gate_rank):
            warn_once('`low_rank_silu_gates` has no effect unless `gate_values_rank` or `output_gate_rank` is set')

    def gate(self, name: str, dim: int) -> nn.Module:
        rank, headwise = getattr(self, f'{name}_rank'), getattr(self, f'{name}_headwise')
        shape = self.owner.shape
        if rank is None:
            linear = nn.Linear(dim, shape.heads if headwise else shape.dim_inner, bias=False)
            nn.init.zeros_(linear.weight)
            return linear
        if headwise:
            raise ConfigError(
                f'`{name}_rank` cannot be combined with `{name}_headwise`: one logit per head is no full gate'
            )
        if rank >= max(dim, shape.dim_inner):
            raise ConfigError(f'`{name}_rank` must be less than {max(dim, shape.dim_inner)}, got {rank}')
        activation = nn.SiLU() if self.low_rank_silu_gates else nn.Identity()
        down, up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, shape.dim_inner, bias=False)
        nn.init.zeros_(up.weight)
        return nn.Sequential(OrderedDict(down=down, activation=activation, up=up))

    @property
    def tp_shards(self) -> dict[str, tuple[int, str]]:
        names = ('from_input.weight', 'from_input.bias') if self.gate_values_rank is None else ('from_input.up.weight',)
        return dict.fromkeys(names, (0, 'heads'))

    def merged_heads(self, out: Tensor, call: Any) -> Tensor:
        heads, logits = self.owner.shape.heads, []
        if self.gate_values:
            logits.append(self.from_input(call.x))
        if self.output_gate:
            logits.append(self.from_values(out))
        logits = [split_into_heads(logit, heads) for logit in logits]
        logit = sum(logits[1:], logits[0])
        gate = self.owner.to_v_gate_activation(logit)
        return rearrange(split_into_heads(out, heads) * gate, 'b i h d -> b i (h d)')


class OrthogonalValues(AttentionFeature):
    """Remove from the output of each token the component along the token's own value:  o - (o u) u,  u = v / |v|.

    For all heads as one vector, for each head separately, or both, concatenated.
    """

    paper = 'Belief attention, openreview.net/forum?id=Ard2QzPAUK'
    orthog_projected_values = flag(False, "remove the component along the token's own value, of all heads together")
    orthog_projected_values_per_head = flag(False, "remove the component along the token's own value in each head")
    orthog_projected_values_over_sequence = flag(False, 'treat all tokens as one vector, as x-transformers 2.31 does')
    switches = ('orthog_projected_values', 'orthog_projected_values_per_head')
    refuses = {'cross-attention': 'in cross-attention the tokens have no values'}
    sets_on_module = ('dim_merged',)

    def setup(self, owner: Any) -> None:
        if self.orthog_projected_values and self.orthog_projected_values_per_head:
            owner.dim_merged *= 2
        if self.orthog_projected_values_over_sequence:
            name = 'orthog_projected_values_over_sequence'
            if owner.causal:
                raise ConfigError(f'`{name}` cannot be combined with `causal`: a token would see later ones')
            one = 'it treats all tokens of a sequence as one vector'
            self.refuse(dict.fromkeys(('documents', 'some tokens', 'causal'), one))

    def merged_heads(self, out: Tensor, call: Any) -> Tensor:
        self.refuse_context(call)
        heads = self.owner.shape.heads
        own = rearrange(call.of_queries(tile_heads(call.values, heads), -2), 'b h i d -> b i (h d)')
        if self.orthog_projected_values_over_sequence:
            call.check_no_token_idx('orthog_projected_values_over_sequence', 'it projects the sequence as one vector')
            if call.causal:
                raise ValueError('`causal=True` cannot be combined with `orthog_projected_values_over_sequence`')
            both = out, own
            if call.key_mask is not None:
                both = (t.masked_fill(~call.key_mask[:, -t.shape[1] :].unsqueeze(-1), 0.0) for t in both)
            whole = self.without(*(t.flatten(1) for t in both)).view_as(out)
            has_visible_key = call.has_visible_in_last(call.total_keys)
            if has_visible_key is not None:  # what sees nothing gives nothing
                blind = ~rearrange(has_visible_key, 'b h i 1 -> b i h 1')
                whole = rearrange(split_into_heads(whole, heads).masked_fill(blind, 0.0), 'b i h d -> b i (h d)')
            times = self.orthog_projected_values + self.orthog_projected_values_per_head
            return repeat(whole, 'b i d -> b i (times d)', times=times)
        parts = [self.without(out, own)] if self.orthog_projected_values else []
        if self.orthog_projected_values_per_head:
            per_head = self.without(split_into_heads(out, heads), split_into_heads(own, heads))
            parts.append(rearrange(per_head, 'b i h d -> b i (h d)'))
        return torch.cat(parts, dim=-1)

    @staticmethod
    def without(t: Tensor, direction: Tensor) -> Tensor:
        """Return the part of `t`, (..., d), orthogonal to a direction (..., d), in double precision if possible."""
        exact, unit = widen_dtype(t), F.normalize(widen_dtype(direction), dim=-1)
        return (exact - (exact * unit).sum(dim=-1, keepdim=True) * unit).to(t.dtype)


class NormBeforeOutput(AttentionFeature):
    """RMS norm of the merged heads, before the output projection:  W_out norm(out)."""

    paper = 'BitNet b1.58 2B4T, arXiv:2504.12285'
    inner_norm = flag(None, "norm before the output projection: 'rms'", one_of('rms') | none, example='rms')
    inner_norm_eps = flag(1e-5, 'epsilon of this norm', positive, example=0.1)
    requires_flag = {'inner_norm_eps': 'inner_norm'}
    stored_as = {'norm': 'inner_norm'}
    refuses = {'several devices': 'it normalizes all heads together'}

    def setup(self, owner: Any) -> None:
        self.norm = HeadNorm('rms', (owner.dim_merged,), self.inner_norm_eps)

    def merged_heads(self, out: Tensor, call: Any) -> Tensor:
        return self.norm(out)


class AttentionOnAttention(AttentionFeature):
    """Attention on attention: a gated linear unit as the output projection."""

    paper = 'Attention on Attention, arXiv:1908.06954'
    on_attn = flag(False, 'use a gated linear unit as the output projection')
    sets_on_module = ('to_out',)
    refuses = {'several devices': 'it gates the sum over all heads'}

    def initialize(self) -> None:
        owner = self.owner
        owner.to_out = nn.Sequential(nn.Linear(owner.dim_merged, 2 * owner.shape.dim_out, bias=False), nn.GLU())


class DropOutput(AttentionFeature):
    """Dropout on the output of attention."""

    sublayer_dropout = flag(0.0, 'dropout probability after the output projection', probability, example=0.2)
    training_only = True
    tp_shards = {}

    def layer_output(self, out: Tensor, call: Any) -> Tensor:
        return F.dropout(out, self.sublayer_dropout, self.owner.training)


class OutputProjDepth(AttentionFeature):
    """Initialize the output projection with smaller weights in deeper layers:  N(0, 1 / (2 dim depth))."""

    paper = 'OLMo, arXiv:2402.00838'
    output_proj_depth = flag(
        None,
        'depth of the layer, from 1: the variance of the initial output weights is divided by it',
        size | none,
        example=3,
    )
    requires_flag = {'output_proj_depth': 'not zero_init_output'}
    tp_shards = {}

    def initialize(self) -> None:
        for module in self.owner.to_out.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=(2 * module.in_features * self.output_proj_depth) ** -0.5)


class ZeroInitOutput(AttentionFeature):
    """Initialize the output projection with zeros, so that the branch outputs zero at first."""

    zero_init_output = flag(False, 'initialize the output projection with zeros')
    training_only = True
    tp_shards = {}

    def initialize(self) -> None:
        for module in self.owner.to_out.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)


class OutputBias(AttentionFeature):
    """A bias of the output projection of attention, as in releases before 0.26."""

    paper = 'Attention Is All You Need, arXiv:1706.03762'
    out_bias = flag(False, 'bias of the output projection (for weights of releases before 0.26)')
    tp_shards = {}

    def initialize(self) -> None:
        """Give the projection a bias, under the name that the bias of such a projection has."""
        projections = [module for module in self.owner.to_out.modules() if isinstance(module, nn.Linear)]
        if not projections:
            raise ConfigError('`out_bias` needs a projection out, set `project_out=True`')
        for module in projections:
            module.bias = nn.Parameter(module.weight.new_zeros(module.out_features))


class GateValuesBias(AttentionFeature):
    """A bias of the gate of `gate_values`, as in releases before 2.26:  sigmoid(x W + b),  b initialized with 10."""

    gate_values_bias = flag(
        False, 'bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26)'
    )
    needs = {'gate_values': 'it is the bias of that gate'}
    tp_shards = {}  # as `gate_values` says

    def setup(self, owner: Any) -> None:
        if not hasattr(owner, 'to_v_gate'):  # `output_gate` alone
            raise ConfigError(f'`gate_values_bias` needs `gate_values`: {self.needs["gate_values"]}')
        if not isinstance(owner.to_v_gate, nn.Linear):
            raise ConfigError(
                '`gate_values_bias` cannot be combined with `gate_values_rank`: the early gate was of full rank'
            )
        owner.to_v_gate.bias = nn.Parameter(torch.full((owner.to_v_gate.out_features,), 10.0))


class RotateValues(AttentionFeature):
    """Also rotate the values by their rotary positions, as in releases 0.15 to 1.19:  v_j -> R(p_j) v_j.

    The output then depends on absolute positions, not only on distances.
    """

    paper = 'RoFormer, arXiv:2104.09864'
    rotate_values = flag(False, 'also rotate the values by their positions (for weights of releases 0.15 to 1.19)')
    keeps_unrotated_keys = True
    tp_shards = {}

    def pre_attention(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        own = call.inputs.get('rotary_pos_emb') if call.context is None else call.inputs.get('context_rotary_pos_emb')
        if own is None:
            return qkv
        q, k, v = qkv
        added = v.shape[-2] - call.keys
        turned = self.owner._rotate(v[..., added:, :], own[0], 1.0)
        return q, k, torch.cat((v[..., :added, :], turned), dim=-2)

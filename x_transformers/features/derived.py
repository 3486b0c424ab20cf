"""Attributes of a stack that code of others reads and assigns: what flags come to, under the names of the original.

A feature that holds a thing keeps it under the same name; where it is off there is `None`, or a module that does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from x_transformers.features.norms import Identity
from x_transformers.features.residuals import LayerDropout, ResidualScale
from x_transformers.flags import ConfigError, is_number, shown

# names under which the original keeps modules and parameters, None where their feature is off
OF_ATTENTION = (
    'data_dependent_alibi', 'hybrid_mix', 'hybrid_module', 'hybrid_norms', 'k_rmsnorm', 'q_rmsnorm',
    'rel_proj_pos_bias', 'to_latent_kv', 'to_latent_q', 'to_output_gate', 'to_rotateable_k', 'to_v_gate',
    'to_v_head_gate', 'value_rmsnorm',
)  # fmt: skip
OF_STACK = (
    'learned_reinject_input_gate', 'polar_pos_emb', 'reinject_input_proj', 'rel_pos', 'rotary_pos_emb', 'stream_emb',
)  # fmt: skip
# keywords in the order in which the original takes them by position, behind those that the classes take that way
ORDER_OF_ATTENTION = (
    'pre_talking_heads', 'post_talking_heads', 'pre_scale_post_talking_heads', 'head_scale', 'sparse_topk',
    'sparse_topk_straight_through', 'num_mem_kv', 'dropout', 'sublayer_dropout', 'on_attn',
)  # fmt: skip
ORDER_OF_FEEDFORWARD = (
    'glu', 'glu_mult_bias', 'swish', 'relu_squared', 'solu', 'custom_activation', 'post_act_ln', 'dropout',
    'sublayer_dropout', 'no_bias', 'zero_init_output', 'output_proj_depth', 'softclamp_value',
)  # fmt: skip
ORDER_OF_STACK = ('cross_attend', 'only_cross', 'only_attn', 'use_scalenorm', 'use_rmsnorm')
OF_MODEL = (
    'attn_pool', 'cls_token', 'combine_mixture', 'embeds', 'exit_gate', 'ff_deep_embed', 'recycled_proj', 'to_mixture',
)  # fmt: skip

# modules for each layer, and the flag without which nothing runs them
FOR_EACH_LAYER = {'skip_combines': '`unet_skips`', 'layer_integrators': '`integrate_layers`'}

# Parameters, then submodules, in the order of the original, whatever order they are made in: optimizers,
# `parameters_to_vector` and EMA go by it.
MEMBERS_OF_ATTENTION = (
    'qk_norm_q_scale', 'qk_norm_k_scale', 'head_scale_params', 'mem_k', 'mem_v',
    'to_latent_q', 'to_latent_kv', 'to_rotateable_k', 'to_q', 'to_k', 'to_v', 'to_v_gate', 'to_output_gate',
    'to_v_head_gate', 'q_rmsnorm', 'k_rmsnorm', 'value_rmsnorm', 'data_dependent_alibi', 'rel_proj_pos_bias', 'attend',
    'to_value_residual_mix', 'hybrid_module', 'hybrid_norms', 'hybrid_mix', 'to_out',
)  # fmt: skip
MEMBERS_OF_ATTEND = ('pre_softmax_talking_heads', 'post_softmax_talking_heads', 'pre_scale_post_talking_heads')
MEMBERS_OF_STACK = (
    'layers', 'layer_integrators', 'rotary_pos_emb', 'polar_pos_emb', 'rel_pos', 'adaptive_mlp', 'final_norm',
    'skip_combines', 'reinject_input_proj', 'learned_reinject_input_gate',
)  # fmt: skip
MEMBERS_OF_MODEL = (
    'ff_deep_embed', 'cls_token', 'memory_tokens',
    'token_emb', 'pos_emb', 'embeds', 'post_emb_norm', 'emb_dropout', 'project_emb', 'attn_layers', 'project_in',
    'project_out', 'attn_pool', 'recycled_proj', 'to_mixture', 'combine_mixture', 'exit_gate', 'to_logits',
    'to_next_embed_pred', 'to_numerical_output',
)  # fmt: skip


def sort_members(module: nn.Module, names: tuple[str, ...]) -> None:
    """Sort the parameters, buffers and submodules of a module by `names`. Others follow in the order they were set."""
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module._modules)
    for held in tables:
        known = [name for name in names if name in held]
        if known != list(held)[: len(known)]:
            sorted_first: dict[str, Any] = {name: held.pop(name) for name in known}
            others: dict[str, Any] = dict(held)
            held.clear()
            held.update(sorted_first)
            held.update(others)


def keep_none(host: Any, names: Sequence[str]) -> None:
    """Set the attributes of these names that nothing has set to None."""
    for name in names:
        if not hasattr(host, name):
            setattr(host, name, None)


class DerivedAttributes:
    """What a stack keeps for classes that derive from it and for code that edits it.

    `layer_dropouts` may be assigned, and so may modules where a feature runs them; the rest is there to be read.

    need_condition, norm_need_condition, post_branch_fn_needs_condition   whether its norms, or what stands behind its
                     branches, read a `condition`
    dim_condition    width of this condition
    adaptive_mlp     what it goes through first
    residual_scale   constant factor of all branches; None for 1
    layer_dropouts   how likely each layer is left out in training
    skip_combines, layer_integrators   one module or None for each layer
    """

    read_at_call = ('layers_execute_order',)
    features: Any
    layer_types: Sequence[str]
    dim: int
    depth: Any  # a number of layers, once they are laid out

    def keep_derived(self) -> None:
        """Settle these attributes, once the features of the stack are set up."""
        keep_none(self, OF_STACK)
        norms = ('use_adaptive_layernorm', 'use_adaptive_rmsnorm')
        behind = ('use_adaptive_layerscale', 'use_adaln_zero')
        self.norm_need_condition, self.post_branch_fn_needs_condition = map(self.is_any_set, (norms, behind))
        self.need_condition = self.norm_need_condition or self.post_branch_fn_needs_condition
        self.dim_condition = getattr(self, 'dim_condition', None) or self.dim
        if getattr(self, 'adaptive_mlp', None) is None:
            self.adaptive_mlp = Identity()
        scales = self.features.find(ResidualScale)
        self.residual_scale = None if scales is None or scales.factor == 1 else scales.factor
        if self.residual_scale is None and self.is_any_set(['attn_aggregated_residuals']):
            self.residual_scale = 1.0
        self.depth = 1 if self.is_any_set(['weight_tie_layers']) else self.depth
        self.depth_scale_residual = getattr(self, 'depth_scale_residual', False) is True
        for name in FOR_EACH_LAYER:
            if getattr(self, name, None) is None:
                each: Any = [None] * len(self.layer_types)
                setattr(self, name, nn.ModuleList(each))

    def is_any_set(self, names: Sequence[str]) -> bool:
        return any(getattr(self, name, False) for name in names)

    def check_assigned(self) -> None:
        """Refuse modules that no feature of the stack would run."""
        given = []
        for name in OF_STACK:
            if getattr(self, name) is not None:
                given.append(name)
        for name in FOR_EACH_LAYER:
            modules = list(getattr(self, name))
            if modules.count(None) < len(modules):
                given.append(name)
        for name in given:
            if not any(name in feature.stored_as.values() for feature in self.features.active):
                flag = FOR_EACH_LAYER.get(name, 'its flag')
                raise ConfigError(f'`{name}` got what nothing runs: the stack was built without {flag}')

    @property
    def layer_dropouts(self) -> tuple[float, ...]:
        """The probability of leaving out each layer in training. A sequence that is assigned holds from then on."""
        return vars(self).get('rates_of_layers') or (0.0,) * len(self.layer_types)

    @layer_dropouts.setter
    def layer_dropouts(self, rates: Any) -> None:
        known = isinstance(rates, Sequence) and all(is_number(rate) and 0 <= rate <= 1 for rate in rates)
        if not known or len(rates) != len(self.layer_types):
            wanted = f'{len(self.layer_types)} numbers from 0 to 1, one per layer'
            raise ConfigError(f'`layer_dropouts` got {shown(rates)}, it must be {wanted}')
        for feature in self.features.active if any(rates) else ():
            if reason := feature.clashes.get('layer_dropout'):
                raise ConfigError(f'`layer_dropouts` does not go with `{feature.title}`: {reason}')
        vars(self)['rates_of_layers'] = tuple(rates)
        if any(rates) and self.features.find(LayerDropout) is None:
            stack: Any = self
            self.features = self.features.joined_by(LayerDropout(stack, {'layer_dropout': 0.0}))
            self.can_cache_kv_in_training = False


# attention layers


class MadeWhenRead:
    """A submodule without parameters that a layer makes when somebody asks for it, and runs from then on."""

    def __init__(self, make: Callable[[Any], nn.Module]) -> None:
        self.make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        held = instance._modules
        if held.get(self.name) is None:
            held[self.name] = self.make(instance)
        return held[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        # Modules do not come here: `nn.Module` keeps them itself.
        raise TypeError(f'`{self.name}` got {shown(value)}, it must be a module')


def half(x: Tensor) -> float:
    """Stand in for a learned mix of value residuals: it is one half."""
    return 0.5


class DerivedHeads:
    """What an attention layer keeps for classes that derive from it, and for hooks that look at its heads.

    split_q_heads, split_k_heads, split_v_heads   b n (h d) -> b h n d
    merge_heads                                   b h n d -> b n (h d)
    """

    attend: Any
    dim_key: int
    shape: Any
    _modules: dict[str, Any]
    read_at_call = ('kernel',)  # the function that is chosen; a flag of linear attention has the same name
    split_q_heads = MadeWhenRead(lambda own: Rearrange('b n (h d) -> b h n d', d=own.dim_key))
    split_k_heads = MadeWhenRead(lambda own: Rearrange('b n (h d) -> b h n d', d=own.dim_key))
    split_v_heads = MadeWhenRead(lambda own: Rearrange('b n (h d) -> b h n d', d=own.shape.dim_value))
    merge_heads = MadeWhenRead(lambda own: Rearrange('b h n d -> b n (h d)'))

    def keep_derived(self) -> None:
        """Settle further attributes, once the features of the layer are set up."""
        keep_none(self, OF_ATTENTION)
        keep_none(self.attend, ['head_attn_sink'])
        self.attn_on_attn = bool(getattr(self, 'on_attn', False))
        self.sublayer_dropout = getattr(self, 'sublayer_dropout', None) or None
        if getattr(self, 'to_v_gate_activation', None) is None:
            self.to_v_gate_activation = F.sigmoid
        for name, value in (('qk_norm_q_scale', 1), ('qk_norm_k_scale', 1), ('to_value_residual_mix', half)):
            if getattr(self, name, None) is None:
                setattr(self, name, value)

    def _split_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split heads, b n (h d) -> b h n d, by the modules that somebody has asked for or replaced."""
        own, width, wide = self._modules, self.dim_key, self.shape.dim_value
        to_q, to_k, to_v = own.get('split_q_heads'), own.get('split_k_heads'), own.get('split_v_heads')
        return (
            q.view(*q.shape[:2], q.shape[-1] // width, width).transpose(1, 2) if to_q is None else to_q(q),
            k.view(*k.shape[:2], k.shape[-1] // width, width).transpose(1, 2) if to_k is None else to_k(k),
            v.view(*v.shape[:2], v.shape[-1] // wide, wide).transpose(1, 2) if to_v is None else to_v(v),
        )

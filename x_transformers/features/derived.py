"""Attributes of a stack that code of others reads and assigns: what flags come to, under the names of the original.

A feature that holds a thing keeps it under the same name; where it is off there is `None`, or a module that does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.branches import KINDS, collect_states, is_attention
from x_transformers.core.checks import (
    boolean_mask,
    check_ids,
    check_tensor,
    check_weight,
    first_tensor,
    input_names,
    input_width,
)
from x_transformers.core.intermediates import Intermediates
from x_transformers.core.rows import to_4d
from x_transformers.core.token_subset import check_kind_for_subset, check_no_subset
from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.features.layouts import checked_order, repeat_layers
from x_transformers.features.norms import Identity
from x_transformers.features.positions import no_positions
from x_transformers.features.residuals import LayerDropout, ResidualScale
from x_transformers.flags import ConfigError, Features, format_value, is_int, is_number
from x_transformers.training.optim import get_weights, largest_logits, muon_parameters, qk_clip_, stack_qk_clip_

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

# keywords of old versions of the original, and what to write in their place
REMOVED_FROM_STACK = {
    'dropout': 'write `attn_dropout`, `ff_dropout` or `layer_dropout`',
    'flash_attn': 'write `attn_flash`',
    'norm_type': 'write `use_rmsnorm=True`, `use_scalenorm=True`, ..., one flag for each norm',
    'has_pos_emb': 'write `disable_abs_pos_emb`, which says the opposite',
    'use_pos_emb': 'it belongs to the wrapper, TransformerWrapper(use_abs_pos_emb=...)',
}

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


def keep_none(owner: Any, names: Sequence[str]) -> None:
    """Set the attributes of these names that nothing has set to None."""
    for name in names:
        if not hasattr(owner, name):
            setattr(owner, name, None)


class ModuleMixin:
    """Base of classes that read attributes of the module that derives from them."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class DerivedAttributes(ModuleMixin):
    """Attributes of a stack for subclasses and for code that edits it.

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

    def keep_abilities(self, attention: Sequence[Any]) -> None:
        """Set what layers and features together allow: caches, inputs and states; and the flags they were made with."""
        features = self.features
        self.remembers = collect_states(features, self.layer_types, self)
        refused = any(f.reason('cache') for f in features.active) or not all(layer.can_cache_kv for layer in attention)
        self.can_cache_kv = all(KINDS[kind].recalls for kind in self.layer_types) and not refused
        refused = any(f.reason('cache in training') for f in features.active)
        self.can_cache_kv_in_training = self.can_cache_kv and not refused
        self.input_names = input_names(self)
        of_attention = (name for layer in attention for name in layer.features.list_switched('attn_'))
        self.built_with_flags = sorted({*features.list_switched(), *of_attention})

    def is_any_set(self, names: Sequence[str]) -> bool:
        return any(getattr(self, name, False) for name in names)

    def check_assigned(self) -> None:
        """Raise ConfigError for modules that no feature of the stack would run."""
        given = [name for name in OF_STACK if getattr(self, name) is not None]
        given += [name for name in FOR_EACH_LAYER if list(getattr(self, name)) != [None] * len(getattr(self, name))]
        if given:
            self.check_are_run(given)

    def check_are_run(self, names: Sequence[str]) -> None:
        """Raise ConfigError if no feature runs the modules of these names."""
        run = {name for feature in self.features.active for name in feature.stored_as.values()}
        for name in names:
            if name not in run:
                flag = FOR_EACH_LAYER.get(name, 'its flag')
                raise ConfigError(f'`{name}` must be None, since the stack was built without {flag}')

    @property
    def layer_dropouts(self) -> tuple[float, ...]:
        """Return the probability of leaving out each layer in training; a sequence that is assigned holds."""
        return vars(self).get('rates_of_layers') or (0.0,) * len(self.layer_types)

    @layer_dropouts.setter
    def layer_dropouts(self, rates: Any) -> None:
        known = isinstance(rates, Sequence) and all(is_number(rate) and 0 <= rate <= 1 for rate in rates)
        if not known or len(rates) != len(self.layer_types):
            wanted = f'{len(self.layer_types)} numbers from 0 to 1, one per layer'
            raise ConfigError(f'`layer_dropouts` must be {wanted}, got {format_value(rates)}')
        for feature in self.features.active if any(rates) else ():
            if reason := feature.clashes.get('layer_dropout'):
                raise ConfigError(f'`layer_dropouts` cannot be combined with `{feature.display_name}`: {reason}')
        vars(self)['rates_of_layers'] = tuple(rates)
        if any(rates) and self.features.find(LayerDropout) is None:
            stack: Any = self
            self.features = self.features.add_feature(LayerDropout(stack, {'layer_dropout': 0.0}))
            self.can_cache_kv_in_training = False

    @property
    def sees_future(self) -> bool:
        """Return True if a token may depend on any later one."""
        return not self.causal

    def describe(self) -> dict[str, str]:
        order = ' '.join(f'{index}{self.layer_types[index]}' for index in self.layers_execute_order)
        order += ''.join(
            f', {kind} is {type(self.layers[self.layer_types.index(kind)][1]).__name__}'
            for kind in dict.fromkeys(self.layer_types)
            if kind not in self.branches
        )
        place = 'before each branch' if self.norm_before else 'after each branch'
        norm = 'after each residual' if self.norm_outside and not self.norm_before else place
        return {'order': f'layers {order}', 'norm': f'{type(self.new_norm()).__name__} {norm}'}

    @property
    def dim_context(self) -> int:
        return self.branch_flags['c'].get('dim_context') or self.dim

    @property
    def attn_dim_head(self) -> int:
        width = self.branch_flags['a'].get('dim_head', 64)
        if not isinstance(width, int):
            raise ConfigError(f'`attn_dim_head` must be one width for all layers, got {width!r}: they share positions')
        return width

    def muon_parameters(self: Any, queries_and_keys: bool = False) -> list[nn.Parameter]:
        return muon_parameters(self, queries_and_keys)

    def attn_qk_clip_(self: Any, intermediates: LayerIntermediates, tau: float = 100.0) -> None:
        """Apply `qk_clip_` to every attention layer, with the intermediates of a forward pass."""
        stack_qk_clip_(self, intermediates, tau)

    def order_of(self, given: Any, repeats: Any) -> tuple[int, ...]:
        """Return the indices of the layers of this call, in the order in which they run."""
        if repeats is not None and given is not None:
            raise ValueError(
                '`repeat_blocks` cannot be combined with `layers_execute_order`: both say which layers run'
            )
        if repeats is not None:
            if self.has_custom_layer_types:
                raise ValueError('`repeat_blocks` needs the ordinary order of layers, this stack has another order')
            return repeat_layers(repeats, len(self.layers) // self.len_default_block, self.len_default_block)
        return checked_order(given, len(self.layers))


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
        raise TypeError(f'`{self.name}` must be a module, got {format_value(value)}')


def half(x: Tensor) -> float:
    """Stand in for a learned mix of value residuals: it is one half."""
    return 0.5


def count_kv_heads(heads: int, kv_heads: int | None, one_kv_head: bool) -> int:
    """Return the number of key heads that the flags of a layer ask for."""
    if one_kv_head and kv_heads is not None:
        raise ConfigError('`one_kv_head` and `kv_heads` both set the number of key heads, set only one')
    kv_heads = 1 if one_kv_head else kv_heads or heads
    if heads % kv_heads:
        raise ConfigError(f'`kv_heads` must divide the number of heads, {heads}, got {kv_heads}')
    return kv_heads


class DerivedHeads(ModuleMixin):
    """Attributes of an attention layer for subclasses, and for hooks on its heads.

    split_q_heads, split_k_heads, split_v_heads   b n (h d) -> b h n d
    merge_heads                                   b h n d -> b n (h d)
    """

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

    @property
    def groups(self) -> int:
        """Return how many query heads share a key head."""
        return self.heads // self.kv_heads

    @property
    def can_cache_kv(self) -> bool:
        return not any(feature.reason('cache') for feature in self.features.active)

    def describe(self) -> dict[str, str]:
        s = self.shape
        keys = f'k (b {s.kv_heads} j {s.dim_head}), v (b {s.kv_heads} j {s.dim_value})'
        return {
            'qkv_heads': f'x (b n {self.dim}) -> q (b {s.heads} n {s.dim_head}), {keys}',
            'rotate': 'new keys and values are appended to those of the cache',
            'pre_attention': 'causal: queries attend to themselves and earlier tokens'
            if self.causal
            else 'queries attend to all keys',
            'attend': f'{self.kernel_words}; scores times {self.logit_scale:.4g}',
            'layer_output': f'(b n {self.dim_merged}) -> (b n {s.dim_out}), {type(self.to_out).__name__}',
        }

    def muon_parameters(self, queries_and_keys: bool = False) -> list[nn.Parameter]:
        """Return the matrices that values and outputs are made with, and queries and keys if asked for."""
        return get_weights((*((self.to_q, self.to_k) if queries_and_keys else ()), self.to_v, self.to_out))

    def qk_clip_(self: Any, pre_softmax_attn: Tensor | Intermediates, tau: float = 100) -> None:
        """QK-clip: shrink queries and keys of heads with logits above `tau`, in place.  arXiv:2507.20534"""
        qk_clip_(self, largest_logits(pre_softmax_attn), tau)

    @staticmethod
    def own_mask(attn_mask: Tensor) -> Tensor:
        """Return the caller's `attn_mask`, boolean and with all four axes."""
        if not 2 <= check_tensor(attn_mask, 'attn_mask').ndim <= 4:
            raise ValueError(
                f'`attn_mask` must have shape (i, j), (h, i, j) or (b, h, i, j), got {tuple(attn_mask.shape)}'
            )
        return to_4d(boolean_mask(attn_mask, 'attn_mask'))

    @property
    def projects(self) -> bool:
        """Return True if there is a projection out: always, but for one head as wide as the input."""
        shape = self.shape
        if self.project is not None:
            return self.project
        return self.settles_projection or shape.heads > 1 or not self.dim == shape.dim_out == self.dim_merged

    def _build_projection(self) -> nn.Module:
        return nn.Linear(self.dim_merged, self.shape.dim_out, bias=False)


class DerivedLinears(ModuleMixin):
    """Attributes of a feedforward for optimizers and for code that edits its projections."""

    def describe(self) -> dict[str, str]:
        return {'up_proj': f'(b n {self.dim}) -> (b n {self.dim_inner}), back to (b n {self.dim_out})'}

    @property
    def output_layer(self) -> nn.Module:
        """Return the projection back; of experts, all of theirs."""
        return self.output_layers[0]

    @property
    def output_layers(self) -> list[nn.Module]:
        """Return all projections back."""
        for module in self.children():
            if outputs := getattr(module, 'output_layers', None):
                return outputs
        return [next(module for module in reversed(self.ff) if not isinstance(module, nn.Dropout))]

    def muon_parameters(self: Any, queries_and_keys: bool = False) -> list[nn.Parameter]:
        return get_weights((self,))

    def check_input(self, x: Tensor) -> None:
        if x.ndim == 0 or (x.shape[-1] != self.dim and x.shape[-1] != input_width(x, self.dim, self.ff)):
            raise ValueError(f'`x` got shape {tuple(x.shape)}, its last axis must be {self.dim}')
        if not x.is_floating_point():
            raise TypeError(f'`x` must be floating point, got {x.dtype}')
        check_weight(x, first_tensor(self.ff.parameters()))


class RunsSubset(ModuleMixin):
    """How a layer runs for some of the tokens of a stream."""

    def change(self, x: Tensor, call: Any, features: Features) -> Tensor:
        """Run for the tokens of `call.of_tokens` alone. Attention reads the keys of all."""
        parts: Any = self
        norms, branch, residual = parts
        for own in (features, *(m.features for m in branch.modules() if isinstance(m, DerivedLinears))):
            check_no_subset(own)
        check_kind_for_subset(self.kind)
        among, old = call.subset_call(), call.gather(x)
        read, skip, extra = residual.prepare(x)
        call.keep('hiddens', read, self.kind == 'a')
        call.keep('layer_hiddens', read)
        own, skip, extra = residual.prepare(old)
        out = self.branch(read, call, features) if self.kind == 'a' else self.branch(own, among, features)
        call.attended += self.kind == 'c'
        return call.scatter(x, old, among.norm(norms[2], residual(out, skip, call=among, **extra)))

    def fill(self, x: Tensor, call: Any, features: Features) -> None:
        """Write keys and values to the cache without changing the hidden states."""
        if is_attention(self.kind):
            none = call.of_tokens(torch.zeros(x.shape[0], 0, dtype=torch.long, device=x.device))
            self.change(x, none, features)
            call.merge_from(none)  # The next layer finds its own past.


class ReadsTokens(ModuleMixin):
    """Checks of the ids that a model is called with, and of the logits that are requested."""

    @property
    def can_keep_logits(self) -> bool:
        """Return True if logits of the last tokens alone can be asked for, as `logits_to_keep`."""
        return not self.features.by_stage.get('pool')

    def _check_ids(self, x: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
        """Check ids; None stands for no tokens after prepended embeddings."""
        if x is None:
            return make_empty_ids(kwargs.get('prepend_embeds'))
        if isinstance(self.token_emb, TokenEmbedding):
            # A table that replaces the one of the model, such as one with an adapter, may not have a length.
            x = check_ids(x, num_tokens=getattr(self.token_emb.emb, 'num_embeddings', self.num_tokens))
        return x

    def check_requested_logits(
        self, embeddings: bool, both: bool, entropies: bool, readout: bool, logits_to_keep: int | None
    ) -> None:
        """Raise ValueError if the model cannot return the logits that are requested."""
        if embeddings and both:
            raise ValueError('`return_embeddings` and `return_logits_and_embeddings` were both given, set only one')
        if readout and entropies:
            raise ValueError('`return_readout` cannot be combined with `return_logit_entropies`: there are no logits')
        if logits_to_keep is not None and not (is_int(logits_to_keep) and logits_to_keep >= 1):
            raise ValueError(f'`logits_to_keep` must be an integer of at least 1, got {format_value(logits_to_keep)}')
        if logits_to_keep is not None and not self.can_keep_logits:
            raise ValueError('`logits_to_keep` cannot be combined with a model that pools its tokens')
        if (both or entropies) and self.to_logits is None:
            raise ValueError(
                'logits were asked for, but the model has no head: it was built with `return_only_embed=True`'
            )

    def describe(self) -> dict[str, str]:
        none = self.pos_emb in (None, no_positions)
        places = 'no absolute positions' if none else type(self.pos_emb).__name__
        head = 'embeddings' if self.to_logits is None else f'logits, {type(self.to_logits).__name__}'
        return {'embed': f'ids (b n) -> (b n {self.emb_dim}), {places}', 'readout': f'(b n {self.dim}) -> {head}'}


def make_empty_ids(prefix: Tensor | None) -> Tensor:
    """Return ids of no tokens, (b, 0), for a call with `prepend_embeds` alone."""
    if prefix is None:
        raise ValueError('`x` got None: without tokens there must be `prepend_embeds`')
    return prefix.new_empty(prefix.shape[0], 0, dtype=torch.long)

"""Attention, feedforward, a layer, the stack, and the models around it, from top to bottom.

Axis letters, here and in the whole package: b batch, n i j positions, h heads, k key heads, d channels, l logits.
Masks are boolean, True means attend. Each paper is a feature that plugs in at a stage, in the order of
`features/catalogue.py`. `features/levels.py` lists the stages; `model.explain()` shows the features of a model.

A module stores its features as `features`; `features.active_for(inputs)` are those active in a pass. Each stage is an
attribute of these: a tuple of functions, empty where no feature acts, or one function that overrides the module's own.
`apply(stage, value, call)` runs a stage in one line; `collect` gathers terms, `select` a choice.
A stack checks the inputs of its layers once and resolves their masks; it passes itself on as `stack_call`.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.nn import ModuleList
from torch.utils._pytree import tree_map_only

from x_transformers import keywords as kw
from x_transformers.attend import Attend as Attend, ChoosesKernel, attend_with, resolve_terms
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper as AutoregressiveWrapper
from x_transformers.cache import Cache, LayerIntermediates as LayerIntermediates, cache_of
from x_transformers.compat.names import *  # noqa: F403  names that other code imports from here
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.branches import (
    KINDS,
    Kind,
    Shape,
    Widths,
    check_branch,
    check_kinds,
    check_memories_allowed,
    collect_states,
    is_attention,
)
from x_transformers.core.buffers import Buffer
from x_transformers.core.calls import Call, Views, check_attention_inputs, prefix_mask, select_query_mask, select_views
from x_transformers.core.checks import (
    as_mask,
    boolean_mask,
    check_digits,
    check_given,
    check_ids,
    check_inputs,
    check_list,
    check_model_inputs,
    check_prefix,
    check_range,
    check_tensor,
    check_vectors,
    check_weight,
    checked,
    first_tensor,
    input_names,
    input_width,
    match_precision,
    parts_kept,
    zero_masked,
)
from x_transformers.core.feedforward_calls import FeedForwardCall
from x_transformers.core.intermediates import Intermediates as Intermediates
from x_transformers.core.model_calls import ModelCall, OutputRequest, open_model
from x_transformers.core.modes import are_maps_apart, is_hooked, is_watched, maps_apart
from x_transformers.core.own_modules import (
    LayerSlots,
    a_stack,
    check_places,
    filter_inputs,
    get_layers,
    is_of_others,
    known_stack,
    reads_whole,
    refuse_own_stack,
    run_stack,
)
from x_transformers.core.routing import (
    FlagRouting,
    flags_of_strangers,
    hidden_targets,
    model_flags,
    renamed_mask,
    split_model_flags,
)
from x_transformers.core.rows import gather_along, to_4d
from x_transformers.core.stack_calls import StackCall, check_cache, check_context, check_stack_inputs, open_stack
from x_transformers.core.token_subset import check_kind_for_subset, check_no_subset
from x_transformers.core.window import WindowLimits
from x_transformers.features.abilities import Abilities, GivesOutputs
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.derived import (
    MEMBERS_OF_ATTEND,
    MEMBERS_OF_ATTENTION,
    MEMBERS_OF_MODEL,
    MEMBERS_OF_STACK,
    OF_MODEL,
    ORDER_OF_ATTENTION,
    ORDER_OF_FEEDFORWARD,
    ORDER_OF_STACK,
    REMOVED_FROM_STACK,
    DerivedAttributes,
    DerivedHeads,
    DerivedLinears,
    ReadsTokens,
    RunsSubset,
    count_kv_heads,
    keep_none,
    sort_members,
)
from x_transformers.features.embeddings import TokenEmbedding as TokenEmbedding, build_token_embedding, get_projection
from x_transformers.features.feedforward import ACTIVATIONS
from x_transformers.features.heads import refuse_other_heads
from x_transformers.features.layouts import checked_order, repeat_layers, transform_layer
from x_transformers.features.levels import IN_FEEDFORWARD
from x_transformers.features.norms import Identity as Identity, LayerNorm as LayerNorm
from x_transformers.features.pooling import Pool
from x_transformers.features.positions import no_positions
from x_transformers.features.readouts import build_head, linear_head, retie
from x_transformers.features.residuals import Residual as Residual
from x_transformers.flags import (
    ConfigError,
    Configurable,
    Feature,
    Features,
    boolean,
    building_twins,
    catalogue_for,
    count,
    did_you_mean,
    format_value,
    get_flags,
    instance_of,
    integer,
    is_int,
    mapping,
    naming,
    none,
    number,
    one_of,
    positive,
    probability,
    size,
    warn_once,
)
from x_transformers.flags.checks import Maybe
from x_transformers.generation.engine import eval_modules
from x_transformers.kernels.visibility import shared_visibility
from x_transformers.training.losses import attn_z_loss, dropout_seq as dropout_seq, each_head, entropy
from x_transformers.training.optim import (
    UpdatesStack,
    get_weights,
    largest_logits,
    muon_parameters,
    qk_clip_,
    stack_qk_clip_,
)
from x_transformers.training.token_loss import get_readout, may_read_later

# attention


class Attention(DerivedHeads, Configurable, ChoosesKernel):
    """Multi-head self- or cross-attention.  Vaswani et al. 2017, arXiv:1706.03762

    x          (b, n, dim)
    context    (b, j, dim_context), for cross-attention
    returns    (b, n, dim_out), or with `return_intermediates` a pair of this and its `Intermediates`
    """

    catalogue = ATTENTION
    own_inputs = ('keep_maps', 'index', 'clean', 'at')
    positional = ORDER_OF_ATTENTION
    layer_number = 0  # which of the layers of its kind it is, as its stack says

    def __init__(
        self,
        dim: Annotated[int, 'width of the input', size],
        dim_head: Annotated[int, 'width of each query and key head', size] = 64,
        dim_context: Annotated[int | None, 'width of the context, `dim` if None', size | none] = None,
        heads: Annotated[int, 'number of query heads', size] = 8,
        causal: Annotated[
            bool, 'causal attention: tokens attend only to themselves and earlier tokens', boolean
        ] = False,
        flash: Annotated[
            bool | None,
            'attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both',
            boolean | none,
        ] = None,
        *,
        kv_heads: Annotated[
            int | None, 'number of key/value heads (grouped-query attention); `heads` if None', size | none
        ] = None,
        one_kv_head: Annotated[
            bool, 'use one key/value head for all query heads (multi-query attention)', boolean
        ] = False,
        value_dim_head: Annotated[int | None, 'width of each value head, `dim_head` if None', size | none] = None,
        dim_out: Annotated[int | None, 'width of the output, `dim` if None', size | none] = None,
        project_out: Annotated[
            bool | None,
            'use an output projection; None: yes, unless there is one head of the output width',
            boolean | none,
        ] = None,
        features: Sequence[type[Feature]] | None = None,
        **flags: kw.Unpack[kw.AttentionKeywords],
    ) -> None:
        super().__init__()
        kv_heads = count_kv_heads(heads, kv_heads, one_kv_head)
        self.shape = Shape(heads, kv_heads, dim_head, value_dim_head or dim_head, dim_out or dim)
        self.dim, self.dim_kv_in = dim, dim_context or dim
        self.heads, self.kv_heads, self.causal, self.flash = heads, kv_heads, bool(causal), flash
        self.scale = self.logit_scale = dim_head**-0.5  # features change the latter, which the kernels get
        self.max_attend_past, self.sdp_backends = None, None
        self.dim_merged, self.project = self.shape.dim_inner, project_out
        self.features = self._compose(features, flags)
        self.input_names = frozenset((*self.own_inputs, *self.features.call_inputs))
        widths = self.features.apply('resolve_sizes', Widths(dim, self.dim_kv_in, heads, kv_heads, dim_head))
        refuse_other_heads(self.features, widths.query_heads, heads)
        # projections may give fewer: one for all heads, or some from elsewhere
        self.query_heads, self.key_heads = max(widths.query_heads, heads), max(widths.key_heads, kv_heads)
        self.dim_key = widths.dim_key
        self.to_q = nn.Linear(widths.q, widths.query_heads * self.dim_key, bias=False)
        self.to_k = nn.Linear(widths.kv, widths.key_heads * (self.dim_key - widths.elsewhere), bias=False)
        self.to_v = nn.Linear(widths.kv, kv_heads * self.shape.dim_value, bias=False)
        self.attend = Attend.of(self)
        self.features.setup()
        self.keep_derived()
        self.limits = WindowLimits.from_features(self.features.active)
        if not self.settles_projection:
            self.to_out = self._build_projection() if self.projects else nn.Identity()
        for feature in self.features.by_stage.get('initialize', ()):
            feature.initialize()
        sort_members(self, MEMBERS_OF_ATTENTION)
        sort_members(self.attend, MEMBERS_OF_ATTEND)
        self.choose_kernel()

    @property
    def settles_projection(self) -> bool:
        """Return True if a feature builds `to_out`, at `initialize`."""
        return any('to_out' in feature.sets_on_module for feature in self.features.active)

    if TYPE_CHECKING:
        __call__: kw.AttentionCall

    @checked
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *,
        causal: bool | None = None,
        cache: Intermediates | None = None,
        return_intermediates: bool = False,
        stack_call: 'StackCall | None' = None,
        **inputs: Any,
    ) -> Tensor | tuple[Tensor, Intermediates]:
        """Attend to x, or to a context.

        x               b n d                   input of the queries
        context         b j d                   input of keys and values, x if None
        mask            b n                     True except for padding of x
        context_mask    b j                     True except for padding of the context
        attn_mask       n j | h n j | b h n j   True where a query may attend to a key
        causal                                  overrides the argument of the layer
        cache                                   intermediates of an earlier call; x has the new tokens
        return_intermediates                    return (output, `Intermediates`)
        stack_call                              the call of the stack around, which has checked all inputs
        **inputs                                inputs of features; `explain(inputs=True)` lists them
        returns         b n d
        """
        features = self.features.active_for(inputs)
        views, token_idx = (x, x, x), None
        if features.select_inputs is not None or 'at' in inputs:
            views, token_idx = select_views(x, features, inputs.get('at'))
        call = self.open_call(views, token_idx, context, mask, causal, cache, inputs, stack_call)
        views = views if context is None else (views[0], context, context)
        attn_mask = None if attn_mask is None else self.own_mask(attn_mask)
        call.keeps, call.unmasked = parts_kept(return_intermediates), mask is context_mask is attn_mask is None
        if not call.unmasked and not inputs.get('clean'):
            views = call.zero_hidden_inputs(views, mask if context_mask is context is None else context_mask, attn_mask)
        for transform in features.qkv_inputs:
            views = transform(views, call)
        modules = self._modules  # without the search that an attribute of a module takes
        q, k, v = modules['to_q'](views[0]), modules['to_k'](views[1]), modules['to_v'](views[2])
        for transform in features.projected:
            q, k, v = transform((q, k, v), call)
        q, k, v = self._split_heads(q, k, v)
        call.values = v
        for transform in features.qkv_heads:
            q, k, v = transform((q, k, v), call)
        for transform in features.rotate_new:
            q, k = transform((q, k), call)
        if features.update_cache is not None:
            k, v = features.update_cache(k, v, call)
        elif call.past is not None or return_intermediates:
            k, v = call.append_past(k, v)
        for transform in features.rotate:
            q, k = transform((q, k), call)
        q, k, v = resolve_terms(features, call, (q, k, v), (mask, context_mask, attn_mask), stack_call)
        out = attend_with(self, q, k, v, call, features)
        for transform in features.post_attention:
            out = transform(out, call)
        for transform in features.head_outputs:
            out = transform(out, call)
        merge = modules.get('merge_heads')  # if somebody has asked for it or replaced it
        out = out.transpose(1, 2).flatten(2) if merge is None else merge(out)
        for transform in features.merged_heads:
            out = transform(out, call)
        out = modules['to_out'](out)
        for transform in features.layer_output:
            out = transform(out, call)
        if call.token_mask is not None:
            out = out.masked_fill(~call.token_mask[:, -call.q_len :, None], 0.0)
        return (out, call.finish()) if return_intermediates else out

    def open_call(
        self,
        views: Views,
        token_idx: Tensor | None,
        context: Tensor | None,
        mask: Tensor | None,
        causal: bool | None,
        cache: Any,
        inputs: dict[str, Any],
        stack_call: 'StackCall | None' = None,
    ) -> Call:
        """Open the call that the stages share. Outside of a stack, check what came in."""
        if stack_call is None:
            check_inputs(inputs, self.features, self.own_inputs, self)
            self.refuse_unfused(inputs)
            token_mask = check_attention_inputs(self, views, token_idx, context, mask, cache)
        else:
            checked_before = stack_call.checked
            for name, value in inputs.items():
                if name not in self.input_names or checked_before.get(name) is not value:
                    self.check_inputs_once(inputs, checked_before)
                    break
            token_mask = mask if token_idx is None else select_query_mask(mask, token_idx, views[1].shape[1])
        x, causal = views[0], self.causal if causal is None else causal
        call = Call(x, self.query_heads, context, token_mask, causal, self.logit_scale, inputs)
        call.batch, call.q_len, call.tokens = x.shape[0], x.shape[1], views[1]
        call.token_idx = token_idx if context is None else None
        call.backends, call.training, call.maps = self.sdp_backends, self.training, self.query_heads // self.heads
        call.declared = self.features.states
        if cache is not None:
            call.past, call.old_states = cache.past, cache.states
        if self.limits is not None:
            call.window = self.limits.window(call)
        return call

    def check_inputs_once(self, inputs: dict[str, Any], checked: dict[str, Any]) -> None:
        """Check those inputs that no other layer of the stack was given before."""
        if not inputs.keys() <= self.input_names:
            check_inputs(inputs, self.features, self.own_inputs, self)
        if not torch.compiler.is_compiling():
            check_given(
                {name: value for name, value in inputs.items() if checked.get(name) is not value}, self.features
            )
            checked.update(inputs)

    def _rotate(self, t: Tensor, angles: Tensor, scale: Tensor | float | None) -> Tensor:
        """Rotate queries or keys with the function of this module, which users may replace."""
        return apply_rotary_pos_emb(t, angles, scale)  # noqa: F405


# feedforward


class FeedForward(DerivedLinears, Configurable):
    """Two linear layers with an activation in between:  (b, n, dim) -> (b, n, dim_out).  arXiv:1706.03762"""

    catalogue = FEEDFORWARD
    _modules: dict[str, Any]
    own_inputs = ('mask', 'layer', 'kind', 'stack')
    positional = ORDER_OF_FEEDFORWARD

    def __init__(
        self,
        dim: Annotated[int, 'width of the input', size],
        dim_out: Annotated[int | None, 'width of the output, `dim` if None', size | none] = None,
        mult: Annotated[float, 'inner width as a multiple of `dim`', positive] = 4,
        *,
        dim_inner: Annotated[int | None, 'inner width, instead of `mult`', size | none] = None,
        activation: Annotated[str | None, 'name of the activation; GELU if None', one_of(*ACTIVATIONS) | none] = None,
        no_bias: Annotated[bool, 'use linear layers without bias; a gated linear unit keeps its bias', boolean] = False,
        dropout: Annotated[float, 'dropout probability before the output projection', probability] = 0.0,
        features: Sequence[type[Feature]] | None = None,
        **flags: kw.Unpack[kw.FeedForwardKeywords],
    ) -> None:
        super().__init__()
        self.dim, self.dim_out, self.dim_inner = dim, dim_out or dim, dim_inner or int(dim * mult)
        if self.dim_inner < 1:
            raise ConfigError(f'`mult` got {mult}, which leaves no inner features of {dim}')
        if dim_inner is not None and mult != 4:
            warn_once('`mult` has no effect beside `dim_inner`')
        self.no_bias, self.dropout, self.activation = bool(no_bias), dropout, activation
        active = self.features = self._compose(features, flags)
        active.setup()
        if activation is not None and (chosen := active.by_stage.get('activation')):
            other = chosen[0].display_name
            raise ConfigError(f'`activation` cannot be combined with `{other}`: both choose the activation')
        self.ff = nn.Sequential(*active.apply('layers', self.build_layers()))
        for feature in active.by_stage.get('initialize', ()):
            feature.initialize()
        # whether features act at each call, beyond what they have built
        self.acts = any(not feature.waits for stage in IN_FEEDFORWARD for feature in active.by_stage.get(stage, ()))

    def build_layers(self) -> list[nn.Module]:
        """Build the modules in running order: up projection with its activation, dropout, output projection."""
        features = self.features
        widened = features.select('up_proj', self._widen)(
            features.select('activation', ACTIVATIONS[self.activation or 'gelu'])()
        )
        output = nn.Linear(self.dim_inner, self.dim_out, bias=not self.no_bias)
        return [widened, nn.Dropout(self.dropout), output]

    def _widen(self, activation: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(self.dim, self.dim_inner, bias=not self.no_bias), activation)

    @checked
    def forward(
        self, x: Tensor, deep_embed: Tensor | None = None, *, stack_call: 'StackCall | None' = None, **inputs: Any
    ) -> Tensor:
        """Run the feedforward. The output is multiplied by `deep_embed`, broadcasting to (b, n, dim_out), if passed.

        If a feature needs them, the stack also passes `mask` (True except for padding), `layer` and `kind`. With
        `stack_call`, the call of the stack around, all inputs have been checked.
        """
        if stack_call is None:
            self.check_input(x)
        if deep_embed is not None:
            inputs['deep_embed'] = deep_embed
        if not (inputs or self.acts):
            return self._modules['ff'](x)
        return self.in_stages(x, inputs)

    def in_stages(self, x: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Run the feedforward with its features."""
        check_inputs(inputs, self.features, self.own_inputs, self)
        features, call = self.features.active_for(inputs), FeedForwardCall.of(x, inputs, self.training)
        call.declared = self.features.states
        x = features.apply('ff_input', x, call)
        out = features.select('run', lambda x, call: call.in_slices(self.ff)(x))(x, call)
        return features.apply('layer_output', out, call)


# a layer

# what a stack calls with inputs that it has checked itself; a `forward` of a subclass is given plain keywords
CHECKED_BY_STACK = {Attention.forward, FeedForward.forward}
NOTHING: dict[str, Any] = {}


class Layer(RunsSubset, ModuleList):
    """One branch with its norms and its residual. Unpacks as (norms, branch, residual), each of which can be replaced.

    The norms are those before the branch, after the branch, and after the residual; an absent one is None.
    """

    if TYPE_CHECKING:
        # norms, branch and residual: a list, and two modules that may be a user's
        _modules: dict[str, Any]

        def __iter__(self) -> Iterator[Any]: ...

        def __getitem__(self, at: int) -> Any: ...

    def __init__(self, kind: str, index: int, norms: Sequence[Any], branch: nn.Module, residual: nn.Module) -> None:
        super().__init__([ModuleList(norms), branch, residual])
        self.kind, self.index = kind, index

    def forward(self, x: Tensor, call: 'StackCall', features: Features) -> Tensor:
        if call.subset_idx is not None:
            return self.change(x, call, features)
        norms, _, residual = self._modules.values()
        skip, extra = x, NOTHING
        if getattr(type(residual), 'prepare', None) is not Residual.prepare:  # which changes nothing
            x, skip, extra = residual.prepare(x)
        if call.keeps == 'all':
            call.keep('hiddens', x if x.ndim == 3 else x[1], self.kind == 'a')  # of three views, that of the keys
            call.keep('layer_hiddens', x)
        out = residual(self.branch(x, call, features), skip, call=call, **extra)
        *_, outside = norms._modules.values()
        return out if outside is None else call.norm(outside, out)

    def branch(self, x: Tensor, call: 'StackCall', features: Features) -> Tensor:
        """Return the output of the layer for `x`, with its norms, without the residual.

        call, features   the call at the layer's step, and the features of the stack, `stack.features`
        """
        norms, branch, _ = self._modules.values()
        before, after, _ = norms._modules.values()
        for transform in features.branch_input:
            x = transform(x, self, call)
        if before is not None:
            x = call.norm(before, x) if call.norm_inputs else before(x)
        for transform in features.normed:
            x = transform(x, self, call)
        inputs = call.branch_inputs(self, before)
        given = call if call.subset_idx is None else call.subset_call()  # attention reads all tokens, and gives some
        for transform in features.inputs:
            inputs = transform(inputs, self, given)
        ours = getattr(type(branch), 'forward', None) in CHECKED_BY_STACK and 'forward' not in branch.__dict__
        inputs = {'stack_call': call, **inputs} if ours else filter_inputs(branch, inputs)
        if KINDS[self.kind].attends:
            out = self.attention(branch, x, inputs, call, features)
        else:
            out = branch(x, **inputs)
        if type(out) is tuple:  # of a branch of others, which gives its intermediates unasked
            out = out[0]
        if after is not None:
            out = given.norm(after, out)
        return out

    def attention(self, branch: Any, x: Tensor, inputs: dict[str, Any], call: 'StackCall', features: Features) -> Any:
        """Call a branch that attends, and keep its intermediates if they are requested or a hook reads them."""
        ours = 'stack_call' in inputs
        wanted = call.keeps == 'all' or (is_hooked(branch) if ours else is_watched(branch, Attention))
        if not (wanted or call.keeps or features.on_attention):
            return branch(x, **inputs)
        return self.attention_with_intermediates(branch, x, inputs, call, features, wanted)

    def attention_with_intermediates(
        self, branch: Any, x: Tensor, inputs: dict[str, Any], call: 'StackCall', features: Features, wanted: bool
    ) -> Any:
        """Call a branch that attends. The call keeps its intermediates, complete ones if they are `wanted`."""
        ours = 'stack_call' in inputs
        users = wanted or features.on_attention or not ours or branch.features.has_user_features
        if (call.maps_apart or not wanted) and (ours or not is_of_others(branch)):
            inputs = {'keep_maps': False, **inputs}  # nobody reads the maps
        out, intermediates = branch(x, return_intermediates=True if users else 'past', **inputs)
        intermediates = Intermediates() if intermediates is None else intermediates
        intermediates.layer_type, intermediates.layer_index = self.kind, self.index
        call.keep('attn_intermediates', intermediates)
        for notify in features.on_attention:
            notify(self, intermediates, call)
        return out


class LayerParts(RunsSubset, LayerSlots):
    """A layer that a user has put into a stack as a plain list of its parts."""

    forward = __call__ = Layer.forward
    branch, attention, attention_with_intermediates = Layer.branch, Layer.attention, Layer.attention_with_intermediates


# the stack


class AttentionLayers(DerivedAttributes, FlagRouting):
    """A stack of attention and feedforward layers:  (b, n, dim) -> (b, n, dim).

    Keywords with the prefix `attn_` go to all attention layers, with `cross_attn_` to cross-attention (overriding
    `attn_`), and with `ff_` to feedforwards. A tuple gives one value per layer of that kind.
    """

    catalogue = STACK
    branches = {'a': Attention, 'c': Attention, 'f': FeedForward}  # noqa: RUF012
    positional, removed = ORDER_OF_STACK, REMOVED_FROM_STACK
    layers: Any  # a `ModuleList` of `Layer`, or what a user has put in its place

    def __init__(
        self,
        dim: Annotated[int, 'width of the residual stream', size],
        depth: Annotated[int | None, 'number of blocks', size | none] = None,
        heads: Annotated[int, 'number of attention heads in every layer', size] = 8,
        causal: Annotated[
            bool, 'causal attention: tokens attend only to themselves and earlier tokens', boolean
        ] = False,
        *,
        cross_attend: Annotated[bool, 'add cross-attention to a context to every block', boolean] = False,
        only_cross: Annotated[bool, 'use cross-attention only, without self-attention', boolean] = False,
        pre_norm: Annotated[
            bool,
            'normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm)',
            boolean,
        ] = True,
        pre_norm_has_final_norm: Annotated[bool, 'use a final norm in pre-norm stacks', boolean] = True,
        norm_add_unit_offset: Annotated[bool, 'store norm weights as `weight - 1`', boolean] = True,
        disable_abs_pos_emb: Annotated[
            bool | None,
            'disable the absolute positions of the model; None: disable them if the stack has another position scheme',
            boolean | none,
        ] = None,
        rel_pos_kwargs: Annotated[dict | None, 'additional arguments of the position bias', mapping | none] = None,
        residual_fn_kwargs: Annotated[
            dict | None, 'additional arguments of the residual connections', mapping | none
        ] = None,
        verbose: Annotated[bool, 'warn about settings that are known to perform poorly', boolean] = True,
        features: Sequence[type[Feature]] | None = None,
        **flags: kw.Unpack[kw.AttentionLayersKeywords],
    ) -> None:
        super().__init__()
        self.dim, self.depth, self.attn_heads, self.causal = dim, depth, heads, bool(causal)
        self.cross_attend, self.pre_norm = cross_attend, bool(pre_norm)
        self.norm_add_unit_offset = bool(norm_add_unit_offset)
        self.rel_pos_kwargs, self.residual_fn_kwargs = rel_pos_kwargs or {}, residual_fn_kwargs or {}
        self.verbose, self.given_features = verbose, features
        self.norm_before, self.norm_outside = bool(pre_norm), not pre_norm
        self.norm_at_end = bool(pre_norm and pre_norm_has_final_norm)
        # Features may change these in `setup`: functions of each new norm, and arguments of the residuals.
        self.norm_changes, self.residual_options = (), dict(self.residual_fn_kwargs)
        own, self.branch_flags = self._route(flags)
        active = self.features = self._compose(features, own)
        self.lay_out(cross_attend, only_cross, depth)
        active.setup()
        self.depth = len(self.layers_execute_order) if depth is None else self.depth
        self.num_attn_layers, self.num_cross_attn_layers, self.num_ff_layers = map(self.layer_types.count, 'acf')
        if self.rel_pos_kwargs and getattr(self, 'rel_pos', None) is None:
            warn_once('`rel_pos_kwargs` has no effect unless a position bias is set')
        positions = {f.gives_positions for f in active.active}  # None: by the vectors of the model
        own_positions = True in positions and None not in positions
        self.disable_abs_pos_emb = own_positions if disable_abs_pos_emb is None else disable_abs_pos_emb
        with building_twins():
            self.layers = ModuleList(self.build_layer(index, kind) for index, kind in enumerate(self.layer_types))
        self.final_norm = Identity()
        if self.norm_at_end:
            *_, self.final_norm = active.apply('norms', (None, None, self.new_norm()), 'end', len(self.layers))
        self.keep_derived()
        sort_members(self, MEMBERS_OF_STACK)
        self.keep_abilities([module for module in self.modules() if isinstance(module, Attention)])

    # whether each call has a mask of pairs of tokens
    masks_pairs = False

    # construction

    def lay_out(self, cross_attend: bool, only_cross: bool, depth: int | None) -> None:
        """Settle which kind of branch stands where, and in which order the layers run."""
        features = self.features
        if only_cross and not cross_attend:
            warn_once('`only_cross` has no effect unless `cross_attend` is set')
        block = [*('a' if not (only_cross and cross_attend) else ''), *('c' if cross_attend else ''), 'f']
        block = features.apply('block', block)
        if depth is None and not any(getattr(f, 'keeps_blocks', True) is None for f in features.active):
            raise ConfigError('`depth` is missing: it must be the number of blocks')
        kinds = features.select('layout', lambda block, depth: block * depth)(block, depth)
        check_kinds(kinds)
        self.has_custom_layer_types = any(not f.keeps_blocks for f in features.active)
        self.len_default_block = 1 if self.has_custom_layer_types else len(block)
        if 'c' in kinds and not cross_attend:
            raise ConfigError("`custom_layers` has cross-attention ('c'), which needs `cross_attend=True`")
        self.layer_types = tuple(kinds)
        self.layers_execute_order = tuple(range(len(kinds)))
        self.depth = depth or len(kinds)

    def new_norm(self) -> nn.Module:
        norm = self.features.select('norm', lambda: LayerNorm(self.dim, self.norm_add_unit_offset))()
        for change in self.norm_changes:
            norm = change(norm)
        return norm

    def build_layer(self, index: int, kind: str) -> Layer:
        features = self.features
        branch = features.apply('wrap', KINDS[kind].build(self, index), kind, index)
        build = features.select('residual', Residual)
        try:
            residual = build(self.dim, layer_index=index, **self.residual_options)
        except TypeError as error:
            raise ConfigError(f'`residual_fn_kwargs` got {format_value(self.residual_fn_kwargs)}: {error}') from None
        before = self.new_norm() if self.norm_before else None
        outside = self.new_norm() if self.norm_outside else None
        norms = features.apply('norms', (before, None, outside), kind, index)
        return Layer(kind, index, norms, branch, residual)

    def build_branch(self, index: int) -> Attention | FeedForward:
        """Build the branch of a layer, of a kind of the library."""
        kind, number = self.layer_types[index], self.layer_types[:index].count(self.layer_types[index])
        with naming(functools.partial(self.all_written, kind)):
            flags = self.features.apply('branch_flags', self.flags_for(kind, number), kind, number)
            if kind == 'f':
                return FeedForward(self.dim, features=self.given_features, **flags)
            causal = self.causal and kind == 'a'
            branch = Attention(self.dim, heads=self.attn_heads, causal=causal, features=self.given_features, **flags)
            branch.layer_number = number
        check_branch(self, branch, kind)
        return branch

    # running

    if TYPE_CHECKING:
        __call__: kw.AttentionLayersCall

    @checked
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        self_attn_kv_mask: Tensor | None = None,
        mems: Sequence[Tensor | None] | None = None,
        mem_masks: Sequence[Tensor | None] | None = None,
        seq_start_pos: Tensor | None = None,
        seq_pos_offset: int | Tensor | None = None,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool = False,
        cache_age: int | None = None,
        return_hiddens: bool = False,
        *,
        return_gumbel_log_probs: bool = False,
        causal: bool | None = None,
        layers_execute_order: Sequence[int] | None = None,
        repeat_blocks: Any = None,
        transform_block_inputs: Any = None,
        **inputs: Any,
    ) -> Tensor | tuple[Tensor, LayerIntermediates]:
        """Run the layers.

        x                    b n d                 hidden states
        context              b m d                 input of keys and values of cross-attention
        mask                 b n                   True except for padding
        context_mask         b m                   True except for padding of the context
        attn_mask            n n | h n n | b h n n   True where a query may attend to a key
        self_attn_kv_mask    b n                   mask of the keys of self-attention, instead of `mask`
        mems, mem_masks                            memories, (b, m, d) per self-attention layer, and their masks (b, m)
        seq_start_pos        b                     number of padding tokens on the left
        seq_pos_offset                             position of the first token
        cache                                      intermediates or cache of an earlier call. x has all tokens, or with
                                                   `input_not_include_cache` the new ones
        return_hiddens                             return (output, `LayerIntermediates`); with 'past' only what the
                                                   cache needs is in it
        **inputs                                   inputs of features; `explain(inputs=True)` lists them
        returns              b n d
        raises                                     ValueError or TypeError for inputs of another shape or kind
        """
        features = self.features.active_for(inputs)
        x = check_stack_inputs(self, x, inputs)
        if context is not None or context_mask is not None or self.cross_attend:
            context, context_mask = check_context(self, x, context, context_mask)
        if cache is not None:
            check_cache(self, attn_mask)
        call = open_stack(x, cache, input_not_include_cache, cache_age, seq_pos_offset, (mems, mem_masks), inputs)
        call.keeps = 'all' if return_gumbel_log_probs else parts_kept(return_hiddens)
        call.intermediates.built_with_flags = self.built_with_flags
        call.training, call.declared, call.maps_apart = self.training, self.remembers, are_maps_apart()
        if inputs or not mask is context is attn_mask is self_attn_kv_mask is seq_start_pos is causal is None:
            call.share_masks(x, mask, context_mask, attn_mask, self_attn_kv_mask, seq_start_pos, causal)
        if context is not None:
            call.context_length = context.shape[1]
            call.shared['c']['context'] = zero_masked(context, context_mask) if call.cache is None else context[:, :0]
        order = self.layers_execute_order
        if layers_execute_order is not None or repeat_blocks is not None:
            order = self.order_of(layers_execute_order, repeat_blocks)
        if order and max(order) >= len(self.layers):
            check_places(order, len(self.layers), len(self.layer_types))
        call.order, call.kinds = order, [self.layer_types[index] for index in order]
        if call.token_mask is not None or call.new_len != x.shape[1]:
            x = call.select_new(x, 'x')
        if not cache is mems is mem_masks is None:
            call.check_past(x)
        if not call.keeps:
            return self.run_stages(features, transform_block_inputs, x, call)
        with AuxLosses(joins=True) as losses:
            x = self.run_stages(features, transform_block_inputs, x, call)
        call.intermediates.aux_losses = losses.by_name
        return x, call.finish(x, return_gumbel_log_probs)

    def run_stages(self, features: Features, transform: Any, x: Tensor, call: StackCall) -> Tensor:
        """Run the layers and the final norm, with what features do around them."""
        run = functools.partial(self.run_steps, features, transform)
        for open_stream in features.stack_input:
            x = open_stream(x, call)
        steps = range(len(call.order))
        x = run(x, call, steps) if features.execute_layers is None else features.execute_layers(run, x, call)
        if call.keeps == 'all':
            call.keep('layer_hiddens', x)
        for close_stream in features.stack_output:
            x = close_stream(x, call)
        if features.finish is not None:
            return features.finish(x, call)
        return call.norm(self.final_norm, x) if call.norm_inputs else self.final_norm(x)

    def run_steps(self, features: Features, transform: Any, x: Tensor, call: StackCall, steps: Sequence[int]) -> Tensor:
        """Run the layers at the given steps of the execution order."""
        layers, block = self.current_layers(), self.len_default_block
        if call.shared['a']:
            call.visibility = shared_visibility(x, call, [layers[call.order[step]] for step in steps])
        for call.step in steps:
            layer = layers[call.order[call.step]]
            if transform is not None and call.step and call.step % block == 0:
                x = transform_layer(transform, call.step // block + 1, x)
            call.left_out = bool(features.should_skip and features.collect('should_skip', layer, call))
            for arrive in features.layer_input:
                x = arrive(x, layer, call)
            if call.left_out:
                call.skip_layer(layer, x)
            else:
                x = layer(x, call, features)
            if call.keeps == 'all' and ((call.step + 1) % block == 0 or call.step + 1 == len(layers)):
                call.keep('block_hiddens', x)
        return x

    def current_layers(self) -> tuple[Any, ...]:
        """Return what runs at each place of `layers`, which others may have replaced or assigned."""
        self.check_assigned()
        return get_layers(self.layers, self.layer_types, Layer, LayerParts)


KINDS.update(dict.fromkeys('ac', Kind(AttentionLayers.build_branch, attends=True)))
KINDS['f'] = Kind(AttentionLayers.build_branch, remembers={})


class Encoder(AttentionLayers):
    """A stack in which all tokens attend to each other (bidirectional)."""

    def __init__(self, **kwargs: kw.Unpack[kw.EncoderKeywords]) -> None:
        super().__init__(**kwargs)

    @classmethod
    def settled(cls) -> dict[str, Any]:
        return {'causal': False}


class Decoder(AttentionLayers):
    """A causal stack: tokens attend only to themselves and earlier tokens."""

    def __init__(self, **kwargs: kw.Unpack[kw.DecoderKeywords]) -> None:
        super().__init__(causal=True, **kwargs)

    @classmethod
    def settled(cls) -> dict[str, Any]:
        return {'causal': True}


class PrefixDecoder(AttentionLayers):
    """A causal stack whose first `prefix_attn_len` tokens attend to each other; one number, or one per sequence."""

    masks_pairs = True

    @property
    def sees_future(self) -> bool:
        return False

    def __init__(self, **kwargs: kw.Unpack[kw.PrefixDecoderKeywords]) -> None:
        super().__init__(**kwargs)

    @classmethod
    def settled(cls) -> dict[str, Any]:
        return {'causal': False}

    if TYPE_CHECKING:
        __call__: kw.PrefixDecoderCall

    @checked
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        *args: Any,
        prefix_attn_len: int | Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        check_vectors(x, 'x', 'b', 'n', self.dim)
        if prefix_attn_len is not None:
            check_prefix(prefix_attn_len, 'prefix_attn_len', x.shape[0], x.shape[1])
        attn_mask = None if attn_mask is None else Attention.own_mask(attn_mask)
        seen = prefix_mask(x, prefix_attn_len, attn_mask)
        return super().forward(x, context, mask, context_mask, seen, *args, **kwargs)


class CrossAttender(AttentionLayers):
    """A stack with cross-attention to a context, without self-attention."""

    def __init__(self, **kwargs: kw.Unpack[kw.CrossAttenderKeywords]) -> None:
        super().__init__(cross_attend=True, only_cross=True, **kwargs)

    @classmethod
    def settled(cls) -> dict[str, Any]:
        return {'cross_attend': True, 'only_cross': True}


class TransformerBlock(AttentionLayers):
    """One or a few blocks without a final norm, as a part of custom models."""

    def __init__(
        self,
        dim: Annotated[int, 'width of the residual stream', size],
        *,
        depth: Annotated[int, 'number of blocks', size] = 1,
        pre_norm_has_final_norm: Annotated[bool, 'use a final norm in pre-norm stacks', boolean] = False,
        **kwargs: kw.Unpack[kw.TransformerBlockKeywords],
    ) -> None:
        super().__init__(dim, depth, pre_norm_has_final_norm=pre_norm_has_final_norm, **kwargs)


# the model around a stack


class AttentionPool(Pool):
    __doc__ = Pool.__doc__
    attention, blocks = Attention, CrossAttender


class Wrapper(Abilities, GivesOutputs, UpdatesStack, Configurable):
    """Base class of models around a stack: prefix tokens, Transformer-XL memories and return values."""

    catalogue = MODEL
    own_states = ('real',)  # which of the cached tokens are real
    logits_bias = False
    dim_readout: int | None = None  # width of what heads read, if it is not that of the stack
    shift_mem_down = 0
    attention_pool = AttentionPool

    def _compose(self, features: Sequence[type[Feature]] | None, flags: Mapping[str, Any]) -> Features:
        active = super()._compose(features, flags)
        if getattr(self, 'max_mem_len', 0):
            refuse_own_stack(self.attn_layers, 'max_mem_len', 'which of its hidden states are memories is not known')
        self.num_memory_tokens = next((f.num_memory_tokens for f in active.active if 'num_memory_tokens' in f.flags), 0)
        return active

    def run_stack(
        self, x: Tensor, call: ModelCall, mask: Tensor | None, mems: Any, keeps: str | None, kwargs: dict[str, Any]
    ) -> Tensor:
        """Prepend the prefix tokens, run the stack, and remove the prefix.

        `keeps` says what the call's trace holds of what the layers leave behind: 'all', which takes memory, 'past' for
        the cache, or None.
        """
        features, token_mask, start = call.features, None, call.inputs.get('seq_start_pos')
        if kwargs or not call.cache is mems is start is None:
            call.check_inputs(self, mems, kwargs, keeps)
        keeps = call.keeps = 'all' if is_hooked(self.attn_layers) else call.keeps or keeps
        for transform in features.prepend_prefix:
            x = transform(x, call)
        if call.cache is not None:
            call.check_front(self)
        if mask is not None or call.prefix_parts or call.cache is not None:
            call.mask = call.make_full_mask(mask, x.shape[0], x.device)
            token_mask = call.select_key_mask(mask)
        if call.num_prefix_tokens or call.inputs.get('pos') is not None:
            kwargs = call.extend_inputs(self, kwargs, token_mask)
        kwargs = {**kwargs, 'mems': mems}
        for transform in features.stack_inputs:
            kwargs = transform(kwargs, call)

        def run(x: Tensor, cache: Any = call.cache) -> Any:
            options = dict(mask=token_mask, cache=cache, input_not_include_cache=call.before is None)
            x = x if call.before is None else torch.cat((call.before, x), dim=1)
            if not keeps:
                return run_stack(self.attn_layers, x, None, {**options, **kwargs})
            with call.losses, maps_apart(call.maps_apart):
                return run_stack(self.attn_layers, x, keeps, {**options, **kwargs})

        # Prefix tokens come after left padding.
        moves = call.num_prefix_tokens > 0 and start is not None and not call.continues
        x = call.move_after_padding(x) if moves else x
        x, intermediates = run(x) if features.execute_stack is None else features.execute_stack(run, x, call)
        intermediates.aux_losses = call.losses.by_name
        if token_mask is not None:
            call.new_states['real'] = Buffer(token_mask.unsqueeze(-1))
        intermediates.model_states = call.new_states
        intermediates.num_prefix_tokens = call.num_prefix_tokens
        intermediates.initial_embeds, call.intermediates = call.intermediates.initial_embeds, intermediates
        x = call.move_before_padding(x) if moves else x
        for transform in features.strip_prefix:
            x = transform(x, call)
        intermediates.last_layer_hiddens = x
        return x


class TransformerWrapper(ReadsTokens, Wrapper):
    """A model of tokens around a stack: embeddings, stack and output head.  ids (b, n) -> logits (b, n, l)."""

    renamed = {'use_pos_emb': 'use_abs_pos_emb'}  # noqa: RUF012

    def __init__(
        self,
        *,
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        max_seq_len: Annotated[
            int | None,
            'maximum length with absolute positions; 0, -1 or None to use no absolute positions',
            integer | none,
        ],
        attn_layers: Annotated[
            AttentionLayers | nn.Module,
            'stack of attention and feedforward layers, such as `Decoder` or `Encoder`',
            a_stack,
        ],
        emb_dim: Annotated[int | None, 'width of the embeddings, that of the stack if None', size | none] = None,
        emb_dropout: Annotated[float, 'dropout probability of the embeddings', probability] = 0.0,
        l2norm_embed: Annotated[bool, 'L2-normalize the embeddings', boolean] = False,
        project_emb: Annotated[
            bool | None,
            'project the embeddings to the width of the stack; None: only if the widths differ',
            boolean | none,
        ] = None,
        project_emb_bias: Annotated[bool, 'use a bias in this projection', boolean] = True,
        post_emb_norm_at: Annotated[
            str,
            "position of `post_emb_norm`: before ('embedding') or after ('stream') this projection",
            one_of('embedding', 'stream'),
        ] = 'embedding',
        logits_dim: Annotated[int | None, 'width of the logits, `num_tokens` if None', size | none] = None,
        logits_bias: Annotated[bool, 'add a bias to the logits, also with `tie_embedding`', boolean] = False,
        return_only_embed: Annotated[bool, 'return embeddings, without an output head', boolean] = False,
        token_emb: Annotated[nn.Module | None, 'custom token embedding', instance_of(nn.Module) | none] = None,
        to_logits: Annotated[nn.Module | None, 'custom output head', instance_of(nn.Module) | none] = None,
        max_mem_len: Annotated[int, 'number of hidden states returned as memories (Transformer-XL)', count] = 0,
        shift_mem_down: Annotated[int, 'number n of layers: layer i gets the memories of layer i + n', count] = 0,
        attn_z_loss_weight: Annotated[float, 'weight of the z-loss of the attention logits', number] = 1e-4,
        input_not_include_cache: Annotated[bool, 'calls with a cache pass only the new tokens', boolean] = False,
        features: Sequence[type[Feature]] | None = None,
        **flags: kw.Unpack[kw.TransformerWrapperKeywords],
    ) -> None:
        super().__init__()
        self.num_tokens, self.max_seq_len = num_tokens, max(max_seq_len or 0, 0)
        self.dim, self.emb_dim = known_stack(attn_layers).dim, emb_dim or known_stack(attn_layers).dim
        self.l2norm_embed, self.logits_dim, self.return_only_embed = bool(l2norm_embed), logits_dim, return_only_embed
        self.logits_bias, self.post_emb_norm_at = bool(logits_bias), post_emb_norm_at
        self.max_mem_len, self.shift_mem_down, self.attn_z_loss_weight = max_mem_len, shift_mem_down, attn_z_loss_weight
        self.input_not_include_cache, self.attn_layers = input_not_include_cache, attn_layers
        self.token_emb = build_token_embedding(self, token_emb)
        self.check_no_stack_flags(flags)
        self.features = self._compose(features, flags).setup()
        keep_none(self, OF_MODEL)
        self.emb_dropout, self.project_emb = (
            nn.Dropout(emb_dropout),
            get_projection(self, project_emb, project_emb_bias),
        )
        self.to_logits: Any = build_head(self, to_logits)
        sort_members(self, MEMBERS_OF_MODEL)
        if type(self).init_ is not TransformerWrapper.init_:
            self.init_()  # of a subclass; our tables are drawn when they are made

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get('_modules', {}).get(name)
        super().__setattr__(name, value)
        if before is not None:
            retie(self, name, before)

    def init_(self) -> None:
        """Initialize the token table, and with `l2norm_embed` the position table. Called at the end of `__init__`."""
        if isinstance(self.token_emb, TokenEmbedding):
            self.token_emb.init_()
        if self.l2norm_embed and isinstance(self.pos_emb, AbsolutePositionalEmbedding):  # noqa: F405
            nn.init.normal_(self.pos_emb.emb.weight, std=1e-5)

    # whether the logits are log probabilities already, which objectives ask; a feature says so
    output_is_log_prob = False

    def _new_head(self) -> nn.Module:
        return linear_head(self.dim_readout or self.dim, self.logits_dim or self.num_tokens, self.logits_bias)

    if TYPE_CHECKING:
        __call__: kw.TransformerWrapperCall

    @checked
    def forward(
        self,
        x: Tensor | None,
        return_embeddings: bool = False,
        return_logits_and_embeddings: bool = False,
        return_intermediates: bool = False,
        return_embeddings_and_intermediates: bool = False,
        return_logit_entropies: bool = False,
        *,
        mask: Tensor | None = None,
        return_mems: bool = False,
        return_attn: bool = False,
        mems: Sequence[Tensor | None] | None = None,
        detach_mems: bool = True,
        return_attn_z_loss: bool = False,
        attn_z_loss_weight: float | None = None,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool | None = None,
        excise_prepend_embeds: bool = False,
        token_emb_kwargs: dict[str, Any] | None = None,
        to_logits_kwargs: dict[str, Any] | None = None,
        logits_to_keep: int | None = None,
        return_readout: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return logits, or the outputs that are requested by `return_` arguments.

        x                 b n    ids, or None for none
        mask              b n    True except for padding
        mems                     memories of the previous segment, (b, m, d) per self-attention layer
        cache                    intermediates or cache of an earlier call. x has all tokens, or with
                                 `input_not_include_cache` the new ones; the outputs are those of the new tokens
        **kwargs                 inputs of the stack and of features: `context`, `context_mask`, `attn_mask`, `pos`,
                                 `prepend_embeds`, ...; `explain(inputs=True)` lists them
        excise_prepend_embeds    exclude `prepend_embeds` from the output
        logits_to_keep           compute only the logits of the last tokens
        token_emb_kwargs, to_logits_kwargs   passed to a custom token embedding and output head

        returns                                logits (b, n, l); a tuple of them with several output heads
            return_embeddings                  hidden states (b, n, d) instead of logits
            return_logits_and_embeddings       (logits, hidden states) as the output
            return_intermediates               (output, `LayerIntermediates`), with attention maps and the cache; with
                                               'past' only with the cache
            return_embeddings_and_intermediates    (hidden states, `LayerIntermediates`)
            return_logit_entropies, return_attn_z_loss   (output, `LayerIntermediates`), which contain these
            return_mems                        (output, memories), without gradient unless `detach_mems=False`
            return_attn                        (output, attention maps), one (b, h, i, j) per attention layer
            return_readout                     a `Readout` instead of logits, which computes them or their loss later
        raises                                 ValueError or TypeError for inputs of another shape or kind
        """
        only_new = self.input_not_include_cache if input_not_include_cache is None else input_not_include_cache
        wanted = return_logits_and_embeddings, return_logit_entropies, return_readout, logits_to_keep
        if wanted != (False, False, False, None):
            self.check_requested_logits(return_embeddings, *wanted)
        x = self._check_ids(x, kwargs)
        intermediates = return_intermediates or return_embeddings_and_intermediates
        asked = (return_logit_entropies, return_attn_z_loss, attn_z_loss_weight)
        request = OutputRequest(intermediates, return_mems, return_attn, detach_mems, *asked)
        # The output of a user's embedding determines the number of tokens.
        others = type(self.token_emb) is not TokenEmbedding and is_of_others(self.token_emb)
        embeds = self.token_emb(x, **(token_emb_kwargs or {})) if others else x
        call = open_model(self, embeds, mask, cache, only_new, kwargs)
        call.ids, call.returns_readout = x if others else None, return_readout
        options = {} if others else token_emb_kwargs or {}
        x = call.embed_tokens(self, embeds, functools.partial(self._embed, call=call, token_emb_kwargs=options))
        call.maps_apart, mems = request.mems_alone, None if mems is None else self.shifted(mems)
        x = self.run_stack(x, call, mask, mems, request.keeps, kwargs)
        hidden: Any = x
        for transform in call.features.pool:
            hidden = transform(hidden, call)
        if excise_prepend_embeds and hidden is x:  # Features that pool tokens return no prefix.
            hidden = x[:, call.num_prepended :]
        only_embed = return_embeddings or return_embeddings_and_intermediates or self.return_only_embed
        logits = None
        if not only_embed or return_logits_and_embeddings:
            kept = hidden if logits_to_keep is None else hidden[:, -logits_to_keep:]
            logits = self.read_later(kept, call, to_logits_kwargs or {})
        call.intermediates.logits = None if return_readout else logits
        out = (logits, hidden) if return_logits_and_embeddings else hidden if only_embed else logits
        plain = not request.keeps and len(call.features.model_output) == 0
        return out if plain else self.returned(out, request, call, mems, logits, hidden)

    def read_later(self, x: Tensor, call: ModelCall, to_logits_kwargs: dict[str, Any]) -> Any:
        """Return the logits, or with `return_readout` a `Readout` that computes them or their loss."""
        return (get_readout if call.returns_readout else type(self).read_out)(self, x, call, to_logits_kwargs)

    def read_out(self, x: Tensor, call: ModelCall, to_logits_kwargs: dict[str, Any]) -> Any:
        """Compute logits (..., l) of hidden states (..., d), a tuple with several heads."""
        for transform in call.features.head_input:
            x = transform(x, call)
        logits = self.to_logits(x, **to_logits_kwargs)
        for transform in call.features.logits:
            logits = each_head(lambda one, transform=transform: transform(one, call), logits)
        return logits

    @property
    def can_return_readout(self) -> bool:
        return may_read_later(self, TransformerWrapper)

    def _embed(self, ids: Tensor, call: ModelCall, token_emb_kwargs: dict[str, Any]) -> Tensor:
        """Sum the embeddings of ids, positions and further inputs, and bring them to the width of the stack."""
        codes = call.ids is not None and call.ids.shape != ids.shape[:2]
        call.like_tokens = ids if codes or call.ids is None else call.ids
        embeds = ids if call.ids is not None else self.token_emb(ids, **token_emb_kwargs)
        for transform in call.features.token_embeds:
            embeds = transform(embeds, call)
        x: Any = embeds
        for term in call.features.embed:
            added = term(call)
            x = x if added is None else x + added
        x = call.zero_hidden_tokens(x) if call.hides else x
        for transform in call.features.embedded:
            x = transform(x, call)
        call.intermediates.initial_embeds = x
        return self.project_emb(self.emb_dropout(x))

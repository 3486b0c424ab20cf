"""`Step`, one decode step written out: from the last token of each sequence and the cache to logits and the next
cache.

In a small model most of the time of a step goes into calling modules and asking stages. For models that consist of
known parts alone, a step is the few functions below, with the same cache and the same numbers as the ordinary forward
pass. `Step.of` checks once, when a generation begins, that a model is one of those. It returns None for all others,
which run the ordinary forward pass. A step lives as long as the generation, and is stored on no module: hooks and
modules that are replaced later count from the next generation on. Parameters are read at each token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules

from x_transformers.attend import Attend
from x_transformers.cache import Cache
from x_transformers.core.modes import is_transformed, to_float
from x_transformers.features import biases, embeddings, feedforward, heads, norms, positions, readouts, rotary
from x_transformers.features.layer_positions import LayerPositionsInModel
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.patterns import PatternsInModel
from x_transformers.features.positions import angles_at
from x_transformers.features.residuals import Residual
from x_transformers.features.untied import UntiedPositionsInModel
from x_transformers.flags import Feature
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import run_eager, run_fused

__all__ = ['Step']

CORE = f'{__name__.partition(".")[0]}.x_transformers'  # This module imports the present one, so it is looked up.
OF_CORE = {'TransformerWrapper', 'AttentionLayers', 'Encoder', 'Decoder', 'TransformerBlock', 'Layer', 'Attention',
           'FeedForward'}  # fmt: skip
# Further modules of which a model may consist. Those without a function in `FUNCTIONS` are called.
MODULES = {
    Attend, Residual, norms.Identity, norms.SimpleRMSNorm, norms.DynamicTanh, norms.Derf, norms.MultiheadRMSNorm,
    feedforward.ReluSquared, feedforward.SoLU, feedforward.Softclamp, feedforward.QuickGELU,
    feedforward.BoundedSwiGLU, biases.AlibiPositionalBias, biases.RelativePositionBias, biases.DynamicPositionBias,
    rotary.RotaryEmbedding, positions.AbsolutePositionalEmbedding, positions.ScaledSinusoidalEmbedding,
    embeddings.TokenEmbedding, readouts.TiedReadout, readouts.Heads, nn.ModuleList, nn.Sequential,
    nn.Dropout, nn.Identity, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Sigmoid, nn.ELU, nn.GLU, nn.LeakyReLU, nn.ReLU6,
    nn.Mish, nn.Softplus, nn.Hardswish,
}  # fmt: skip
# Features that may act in a step: it does what they do, or calls them. Others may act at construction alone.
FEATURES = {
    heads.QKNorm, heads.QKRMSNorm, heads.KeyRMSNorm, heads.ValueRMSNorm, heads.ValueHeadNorm, heads.QKHeadNorm,
    rotary.Rotary, biases.RelativeBias, biases.Alibi, biases.T5Bias, biases.DynamicBias, ParallelBlock,
    rotary.RotaryPositions, rotary.RotaryLayers, embeddings.EmbScale, embeddings.AbsolutePositions,
    embeddings.PostEmbNorm, LayerPositionsInModel, PatternsInModel, UntiedPositionsInModel, readouts.HeadTransform,
    readouts.LogitsScale, readouts.LogitsSoftclamp,
}  # fmt: skip
CHOSEN_AT_CONSTRUCTION = {'activation', 'up_proj', 'layout', 'norm', 'residual', 'readout'}
# The inputs that a stack gives to its attention layers in a step.
INPUTS = {'rotary_pos_emb': True, 'rel_pos': True}

Function = Callable[[Tensor], Tensor]


# functions of modules, of tokens (b, d)


def linear(module: nn.Linear) -> Function:
    own: Any = module._parameters  # without the search that an attribute of a module takes
    return lambda x: F.linear(x, own['weight'], own['bias'])


def layer_norm(module: norms.LayerNorm) -> Function:
    own: Any = module._parameters
    offset, eps = module.unit_offset, module.eps

    def norm(x: Tensor) -> Tensor:
        gain, bias = own['gamma'], own.get('beta')
        if gain is None:
            return torch.layer_norm(x, x.shape[-1:], eps=eps)
        return torch.layer_norm(x, gain.shape, gain + offset if offset else gain, bias, eps)

    return norm


def rms_norm(module: norms.RMSNorm) -> Function:
    own: Any = module._parameters
    offset, scale, eps = module.unit_offset, module.scale, module.eps

    def norm(x: Tensor) -> Tensor:
        gain = own['g']
        gain = 1.0 if gain is None else gain + offset if offset else gain
        if eps is None:
            return norms.l2norm(x) * (scale * gain)
        return F.rms_norm(x, x.shape[-1:], eps=eps) * gain

    return norm


def _head_norm(module: heads.HeadNorm) -> Function:
    if module.kind != 'rms' or module.beta is not None or module.gamma is None:
        return module
    own: Any = module._parameters
    offset, eps = module.unit_offset, module.eps

    def norm(x: Tensor) -> Tensor:
        gain = own['gamma'] + offset if offset else own['gamma']
        return (F.rms_norm(to_float(x), x.shape[-1:], eps=eps) * gain).to(x.dtype)

    return norm


def _gated_unit(module: feedforward.GLU) -> Function:
    if module.softclamps is not None:
        return module
    project, activate, own = _function_of(module.proj), _function_of(module.act), module._parameters

    def gated(x: Tensor) -> Tensor:
        value, gate = project(x).chunk(2, dim=-1)
        out, gain = value * activate(gate), own.get('mult_bias')
        return out if gain is None else out * gain

    return gated


FUNCTIONS: dict[type, Callable[[Any], Function]] = {
    nn.Linear: linear,
    norms.LayerNorm: layer_norm,
    norms.BiasedLayerNorm: layer_norm,
    norms.RMSNorm: rms_norm,
    norms.ScaleNorm: rms_norm,
    heads.HeadNorm: _head_norm,
    feedforward.GLU: _gated_unit,
    nn.GELU: lambda module: lambda x: F.gelu(x, approximate=module.approximate),
    nn.SiLU: lambda module: F.silu,
    nn.ReLU: lambda module: F.relu,
    nn.Tanh: lambda module: torch.tanh,
}
# Parameters that are read where their modules keep them.
PARAMETERS: dict[type, set[str]] = {
    nn.Linear: {'weight', 'bias'},
    nn.Embedding: {'weight'},
    norms.LayerNorm: {'gamma'},
    norms.BiasedLayerNorm: {'gamma', 'beta'},
    norms.RMSNorm: {'g'},
    norms.ScaleNorm: {'g'},
    heads.HeadNorm: {'gamma'},
}


def _function_of(module: Any) -> Any:
    """Return the function of a module without the overhead of its call, or the module itself if that is unknown."""
    return FUNCTIONS.get(type(module), lambda module: module)(module)


def _on_heads(transform: Callable[..., Any], attn: Any) -> Callable[..., Any]:
    """Return the transform of heads (q, k, v), with the norms of queries and keys as functions."""
    feature = attn.features.find(heads.QKHeadNorm)
    if feature is None or transform != feature.qkv_heads:
        return transform
    q_norm, k_norm = _function_of(feature.q_norm), _function_of(feature.k_norm)
    return lambda qkv, call: (q_norm(qkv[0]), k_norm(qkv[1]), qkv[2])


# layers


class BranchStep:
    """A branch with its norms and its residual, on tokens (b, d)."""

    # With `parallel_block`: True if its block begins here; True if it shares the normed input of the branch before it.
    opens, borrows = True, False

    def __init__(self, layer: Any) -> None:
        around, self.branch, _ = layer
        self.before, self.after, self.outside = map(_function_of, around)

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        """Add the output of the branch to the residual stream."""
        x = (out if self.after is None else self.after(out)) + x
        return x if self.outside is None else self.outside(x)


class FeedForwardStep(BranchStep):
    """The modules of a feedforward, one after the other."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.functions = [_function_of(module) for module in _leaves_of(self.branch.ff)]

    def __call__(self, x: Tensor) -> Tensor:
        for function in self.functions:
            x = function(x)
        return x


def _leaves_of(modules: Any) -> Iterator[nn.Module]:
    """Yield the modules of nested sequences, in order, without dropout, which does nothing here."""
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _leaves_of(module)
        elif type(module) is not nn.Dropout:
            yield module


class AttentionStep(BranchStep):
    """Attention of one new token per sequence to the tokens of its past and itself."""

    def __init__(self, layer: Any, angles: int | None) -> None:
        super().__init__(layer)
        attn, self.angles = self.branch, angles
        self.to_q, self.to_k, self.to_v, self.to_out = map(_function_of, (attn.to_q, attn.to_k, attn.to_v, attn.to_out))
        self.heads, self.kv_heads = attn.shape.heads, attn.shape.kv_heads
        self.dim_head, self.dim_value = attn.shape.dim_head, attn.shape.dim_value
        self.groups = self.heads // self.kv_heads
        self.scale = attn.logit_scale
        self.normed = [_on_heads(transform, attn) for transform in attn.features.active_for(INPUTS).qkv_heads]
        self.still = attn.heads - attn.rotate_num_heads  # number of first heads that are not rotated
        self.factor = attn.features.find(rotary.Rotary).rotary_factor

    def __call__(self, x: Tensor, past: Any, angles: Maybe[Tensor], bias: Maybe[Tensor]) -> tuple[Tensor, Any]:
        """Return the output (b, d) of tokens (b, d), and the past with their keys and values."""
        b, heads, kv_heads = x.shape[0], self.heads, self.kv_heads
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x).view(b, kv_heads, 1, self.dim_value)
        if self.normed or angles is None or self.still:
            q, k = q.view(b, heads, 1, self.dim_head), k.view(b, kv_heads, 1, self.dim_head)
            for transform in self.normed:
                q, k, v = transform((q, k, v), None)
        if angles is not None and self.still:
            q, k = self.rotate_some(q, angles), self.rotate_some(k, angles)
        elif angles is not None:
            qk = torch.cat((q, k), dim=1).view(b, heads + kv_heads, 1, self.dim_head)
            qk = rotary.apply_rotary_pos_emb(qk, angles, self.factor)
            q, k = qk.split_with_sizes((heads, kv_heads), dim=1)
        past = past.append(k, v)
        k, v = past.pair
        if self.groups > 1:  # The query heads of a key head become its queries, so that no key is copied.
            q = q.view(b, self.groups, kv_heads, self.dim_head).transpose(1, 2)  # (b, k, g, d)
            if bias is not None and bias.shape[1] > 1:
                bias = bias.view(-1, self.groups, kv_heads, bias.shape[-1]).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        out = out.transpose(1, 2) if self.groups > 1 else out
        return self.to_out(out.reshape(b, heads * self.dim_value)), past

    def rotate_some(self, t: Tensor, angles: Tensor) -> Tensor:
        return torch.cat((t[:, : self.still], rotary.apply_rotary_pos_emb(t[:, self.still :], angles, self.factor)), 1)


class EmbeddingStep:
    """Input of the layers (b, d) from ids (b, 1), at one index for all sequences or one for each (b)."""

    def __init__(self, net: Any) -> None:
        features = net.features
        self.net, self.scale, norm = net, features.find(embeddings.EmbScale), features.find(embeddings.PostEmbNorm)
        self.table = None if net.pos_emb is positions.no_positions else net.pos_emb
        function = None if norm is None or type(norm.norm) is norms.Identity else _function_of(norm.norm)
        project = None if type(net.project_emb) in (nn.Identity, norms.Identity) else _function_of(net.project_emb)
        ordered = (project, function) if norm is not None and norm.late else (function, project)
        self.functions = [one for one in ordered if one is not None]
        kinds = ((net.token_emb, embeddings.TokenEmbedding), (self.table, positions.AbsolutePositionalEmbedding))
        known = [type(m) is kind and not m.l2norm_embed and type(m.emb) is nn.Embedding and m.emb.max_norm is None
                 for m, kind in kinds if m is not None]  # fmt: skip
        self.tables = [m.emb._parameters for m, _ in kinds if m is not None] if all(known) else None

    def __call__(self, ids: Tensor, at: int | Tensor) -> Tensor:
        x = self.sum_embeddings(ids, at)
        for function in self.functions:
            x = function(x)
        return x

    def sum_embeddings(self, ids: Tensor, at: Any) -> Tensor:
        """Sum the embeddings of the tokens and of their positions."""
        several, scale, table = torch.is_tensor(at), self.scale, self.table
        if self.tables is None or several or at >= self.net.max_seq_len > 0:  # which the table refuses
            x = self.net.token_emb(ids)
            x = x if scale is None else scale.token_embeds(x, None)
            where = {'pos': at.unsqueeze(-1)} if several else {'offset': at}
            return (x if table is None else x + table(ids, **where)).squeeze(1)
        x = F.embedding(ids.squeeze(1), self.tables[0]['weight'])
        x = x if scale is None else scale.token_embeds(x, None)
        return x if table is None else torch.add(x, self.tables[1]['weight'][at], alpha=table.scale)


# the model


class Step:
    """A decode step of one model:  ids (b, 1), cache -> logits (b, 1, l), cache."""

    def __init__(self, net: Any) -> None:
        stack = net.attn_layers
        self.net, self.head, self.features = net, net.to_logits, net.features.active_for({})
        self.rotary, own = stack.features.find(rotary.RotaryPositions), stack.features.find(rotary.RotaryLayers)
        self.bias = getattr(stack, 'rel_pos', None)
        # Each attention rotates by one of the sets of angles, or by none.
        first = None if self.rotary is None else 0
        self.names = [f'{at}.angles' if at else 'angles' for at in range(len(self.rotary.sets) if self.rotary else 0)]
        self.frequencies: list[Tensor] = []
        if self.rotary is not None:
            table, self.interpolation = self.rotary.angles.inv_freq, self.rotary.angles.interpolation_factor
            self.frequencies = [table, *(one.of_rows(None, None, table) for one in self.rotary.sets[1:])]
        layers = [stack.layers[index] for index in stack.layers_execute_order]
        self.layers: list[Any] = [
            FeedForwardStep(one) if one.kind == 'f'
            else AttentionStep(one, first if own is None else own.set_of[one.index])
            for one in layers
        ]  # fmt: skip
        self.attention = [layer for layer in self.layers if type(layer) is AttentionStep]
        if (parallel := stack.features.find(ParallelBlock)) is not None:
            for step, layer in zip(self.layers, layers, strict=True):
                step.opens = parallel.begins(layer.index)
                step.borrows = parallel.shares and not step.opens
        self.embed, self.norm = EmbeddingStep(net), _function_of(stack.final_norm)
        self.norm = None if type(stack.final_norm) is norms.Identity else self.norm
        self.readout = _function_of(self.head) if type(self.head) is nn.Linear else None

    @classmethod
    def of(cls, net: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the step of a net that is called with further `inputs`, or None if it needs the ordinary pass."""
        if any(value is not None for value in inputs.values()) or not _is_known_net(net) or _is_in_mode(net):
            return None
        return cls(net)

    def takes(self, ids: Tensor, cache: Any) -> bool:
        """Return True if the step can continue this cache by these new tokens (b, n)."""
        if ids.shape[1] != 1 or ids.shape[0] == 0:
            return False
        if type(cache) is not Cache or cache.num_prefix_tokens or cache.model_states:
            return False
        known = {'positions', *self.names} if self.rotary is not None else set()
        if cache.states.keys() != known or len(cache.layers) != len(self.attention):
            return False
        for layer, past in zip(self.attention, cache.layers, strict=True):
            if past is None or past.num_evicted or (past.changed_by is None) != (layer.angles is None):
                return False
        return True

    def __call__(self, ids: Tensor, cache: Cache) -> tuple[Any, Cache]:
        with torch.inference_mode():  # Small operations take a little less time.
            x, cache = self.run(ids, cache)
        return self.read_out(x), cache

    def angles_of(self, pos: Tensor) -> list[Tensor]:
        """Return the angles (b, 1, r) of each set at positions (b, 1)."""
        pos = pos.unsqueeze(-1)
        each = [angles_at(pos, one, one.dtype, self.interpolation) for one in self.frequencies]
        return [angles.repeat_interleave(2, dim=-1) for angles in each]

    def run(self, ids: Tensor, cache: Any) -> tuple[Tensor, Cache]:
        """Return the hidden states (b, d) of the new tokens, and the cache with them."""
        x, states, shared = self.embed(ids, cache.num_seen_tokens), {}, []
        if self.rotary is not None:
            past = cache.states['positions']
            pos = past.tensor[:, -1:, 0] + 1
            states['positions'] = past.append(pos.unsqueeze(-1))
            for name, angles in zip(self.names, self.angles_of(pos), strict=True):
                states[name] = cache.states[name].append(angles)
                shared.append(rotary.make_pass_cache(angles))
        bias = None if self.bias is None else self.bias(1, cache.length + 1).unsqueeze(0).to(x.dtype)
        x, pasts = self.through(x, iter(cache.layers), shared, bias)
        for layer, past in zip(self.attention, pasts, strict=True):
            past.states = {} if layer.angles is None else {'angles': states[self.names[layer.angles]]}
        flags = cache.built_with_flags
        return x, Cache(pasts, list(cache.kinds), states, cache.num_seen_tokens + 1, built_with_flags=flags)

    def through(
        self, x: Tensor, pasts: Iterator[Any], angles: list[Tensor], bias: Maybe[Tensor]
    ) -> tuple[Tensor, list[Any]]:
        """Run the layers and the final norm on tokens (b, d); return also the continued pasts."""
        stream, read, new = x, x, []
        for layer in self.layers:
            if layer.opens:
                stream = x
            if not layer.borrows:
                read = stream if layer.before is None else layer.before(stream)
            if type(layer) is AttentionStep:
                own = None if layer.angles is None else angles[layer.angles]
                out, past = layer(read, next(pasts), own, bias)
                new.append(past)
            else:
                out = layer(read)
            x = layer.join(out, x)
        return (x if self.norm is None else self.norm(x)), new

    def read_out(self, x: Tensor) -> Any:
        """Return the logits (b, 1, l) of hidden states (b, d), a tuple of them with several heads."""
        for transform in self.features.head_input:
            x = transform(x, None)
        x = x.unsqueeze(1)
        logits: Any = self.head(x) if self.readout is None else self.readout(x)
        for transform in self.features.logits:
            several = isinstance(logits, tuple)
            logits = tuple(transform(one, None) for one in logits) if several else transform(logits, None)
        return logits


# which models


def _is_in_mode(net: nn.Module) -> bool:
    """Return True if a mode, transform, autocast or compilation would change what the ordinary way computes."""
    if torch.compiler.is_compiling() or is_transformed():
        return True
    if any(torch.is_autocast_enabled(kind) for kind in {p.device.type for p in net.parameters()} - {'meta'}):
        return True
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')


def _are_plain_modules(modules: Iterable[nn.Module]) -> bool:
    """Return True if modules are of known classes and run their code alone, in evaluation, on ordinary tensors."""
    core = vars(sys.modules[CORE])
    known = {*MODULES, *FUNCTIONS, *(core[name] for name in OF_CORE)}
    if any(getattr(of_all_modules, f'_global{name}') for name in HOOKS):
        return False
    methods: dict[type, set[str]] = {}
    for module in modules:
        kind, own = type(module), vars(module)
        if kind not in known or module.training or any(own[name] for name in HOOKS):
            return False
        if kind not in methods:
            methods[kind] = {n for base in kind.__mro__ for n, value in vars(base).items() if callable(value)}
        if own.get('_compiled_call_impl') is not None or methods[kind] & own.keys():
            return False
        if not own['_parameters'].keys() >= PARAMETERS.get(kind, set()):
            return False
        tensors = (*own['_parameters'].values(), *own['_buffers'].values())
        if not all(t is None or type(t) in (Tensor, nn.Parameter) for t in tensors):
            return False
    return True


def _act_in_known_ways(features: Iterable[Feature]) -> bool:
    """Return True if the features of a module act in a step as it is written out, or at construction alone."""
    for feature in features:
        if (feature.training_only and not feature.is_user_defined) or type(feature) in FEATURES:
            continue
        if any(feature.stages[stage] != 'build' for stage in {*feature.runs_at()} - CHOSEN_AT_CONSTRUCTION):
            return False
    return True


def _is_known_layer(layer: Any, kind: str, index: int, stack: Any) -> bool:
    """Return True if a layer consists of known parts in their ordinary places."""
    core: Any = sys.modules[CORE]
    if type(layer) is not core.Layer or (layer.kind, layer.index) != (kind, index) or len(layer) != 3:
        return False
    around, branch, residual = layer
    if len(around) != 3 or type(residual) is not Residual:
        return False
    if residual.residual_scale is not None or residual.scale_residual_constant != 1:
        return False
    if not _act_in_known_ways(branch.features.active_for(INPUTS).active if hasattr(branch, 'features') else ()):
        return False
    if kind == 'f':
        return type(branch) is core.FeedForward and type(branch.ff) is nn.Sequential and branch.dim == stack.dim
    if kind != 'a' or type(branch) is not core.Attention:
        return False
    if branch.sdp_backends is not None or branch.limits is not None or branch.kernel not in (run_fused, run_eager):
        return False
    if not (branch.causal and branch.can_cache_kv and branch.features.find(rotary.Rotary)):
        return False
    if type(branch.attend) is not Attend or branch.attend.layer is not branch or not branch.attend.is_as_built:
        return False
    sizes = branch.dim, branch.dim_kv_in, branch.dim_key, branch.query_heads, branch.key_heads
    return sizes == (stack.dim, stack.dim, branch.shape.dim_head, branch.heads, branch.kv_heads)


def _is_known_net(net: Any) -> bool:
    """Return True if a net consists of known modules, and its features act in known ways in a step."""
    core = sys.modules.get(CORE)
    stack: Any = getattr(net, 'attn_layers', None)
    if core is None or type(net) is not core.TransformerWrapper or not _are_plain_modules(net.modules()):
        return False
    if not hasattr(stack, 'layers_execute_order') or core.apply_rotary_pos_emb is not rotary.apply_rotary_pos_emb:
        return False
    if net.to_logits is None or net.return_only_embed or type(net.emb_dropout) is not nn.Dropout:
        return False
    acting = stack.features.active_for({}).active
    if not _act_in_known_ways((*net.features.active_for({}).active, *acting)):
        return False
    if any(feature.follows_length or getattr(feature, 'rotary_xpos', False) for feature in acting):
        return False
    stack.check_assigned()
    kinds = stack.layer_types
    if not stack.causal or len(kinds) != len(stack.layers):
        return False
    for index, (layer, kind) in enumerate(zip(stack.layers, kinds, strict=True)):
        if not _is_known_layer(layer, kind, index, stack):
            return False
    parallel = stack.features.find(ParallelBlock)
    if parallel is None or not parallel.shares:
        return True
    # A user may give a layer a norm of its own besides that of its block.
    return all(layer[0][0] is None for layer in stack.layers if not parallel.begins(layer.index))

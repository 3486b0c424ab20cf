"""Plans: the style of each part of a model, and the flags that prevent sharding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from x_transformers.core.branches import KINDS
from x_transformers.features.biases import PositionBias
from x_transformers.features.embeddings import DeepEmbeds, TokenEmbedding
from x_transformers.features.readouts import Heads as SeveralHeads, TiedReadout
from x_transformers.flags import ConfigError, Feature, format_value
from x_transformers.flags.declared import PACKAGE
from x_transformers.parallel.styles import (
    Alike,
    BiasOfHeads,
    Logits,
    Sequence,
    ShardedFeedForward,
    ShardedHeads,
    Vocabulary,
    get_shards,
)
from x_transformers.parallel.views import WHOLE, Lane
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward, TransformerWrapper

UNKNOWN = 'its class must declare `tp_shards`'
NOT_ALONE = 'its class must declare that it processes each token separately'
BRANCHES = (Attention, FeedForward)
# Modules of torch that are elementwise, or process each token separately.
MIXES_CHANNELS = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d, nn.GLU, nn.MultiheadAttention, nn.PReLU)
ELEMENTWISE = tuple(
    kind for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind not in (nn.Module, *MIXES_CHANNELS)
)  # fmt: skip
BY_NUMBER = (*ELEMENTWISE, nn.Linear, nn.Identity, nn.Dropout, nn.Sequential, nn.ModuleList)
BY_TOKEN = (*BY_NUMBER, *MIXES_CHANNELS[:3], nn.GLU, nn.LayerNorm, nn.RMSNorm, nn.Embedding, nn.ParameterList)
BY_TOKEN += (nn.ModuleDict,)


def plan(model: nn.Module, sequence: bool = False) -> dict[str, ParallelStyle]:
    """Return the plan for `torch.distributed.tensor.parallel.parallelize_module`: a style for each sharded part of a
    model, by its path. Parts without a style are replicated.

    Attention is sharded by heads, feedforwards by inner channels (value and gate separately), token table and head by
    tokens of the vocabulary. The devices need equal batches, and equal seeds.

    Args:
        model: The model.
        sequence: True to shard the residual stream, norms included, along the sequence between branches.

    Raises:
        ConfigError: A flag cannot be sharded; the error names it.
        ValueError: The model is sharded already.
    """
    if any('parallel_views' in vars(module) for module in model.modules()):
        raise ValueError('`model` must not be shared by several devices already')
    check_parameters(model)
    styles: dict[str, ParallelStyle] = {}
    stacks = dict(find_modules(model, AttentionLayers))
    lanes = {name: Lane() if sequence else WHOLE for name in stacks}
    lane_of = {id(m): lanes[name] for name, stack in stacks.items() for m in stack.layers.modules()}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            check_attention(module)
            styles[name] = ShardedHeads(lane_of.get(id(module), WHOLE))
        elif isinstance(module, FeedForward):
            check_feedforward(module)
            styles[name] = ShardedFeedForward(lane_of.get(id(module), WHOLE))
        elif isinstance(module, TransformerWrapper):
            if sequence and module.features.find(DeepEmbeds) is not None:
                raise ConfigError('`ff_deep_embed` cannot be combined with `sequence`: each token has its own scale')
            styles |= add_prefix(name, shard_vocabulary(module))
        elif isinstance(module, AttentionLayers):
            check_features(module.features.active, 'stack', sequence)
            if sequence:
                check_stream(module)
            styles |= add_prefix(name, shard_bias(module))
    styles |= shard_tied(model, styles)
    if sequence:
        styles |= {name: Sequence(lane) for name, lane in lanes.items()}
    own: Any = styles.pop('', None)
    return {**styles, '': Alike(own)}


def add_prefix(prefix: str, styles: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    return {f'{prefix}.{path}' if prefix else path: style for path, style in styles.items()}


def find_modules(model: nn.Module, kind: type) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def parallelize(model: nn.Module, mesh: DeviceMesh, sequence: bool = False) -> nn.Module:
    """Shard a model over the devices of a mesh: `parallelize_module` by `plan`, in place.

    Args:
        model: The model.
        mesh: A mesh with one axis, such as `mesh['heads']`.
        sequence: As in `plan`.

    Raises:
        TypeError, ValueError: The mesh has another type or several axes. Further errors as in `plan`.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f'`mesh` must be a DeviceMesh, got {format_value(mesh)}')
    if mesh.ndim != 1:
        axes = ', '.join(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
        raise ValueError(f'`mesh` must have one axis, got {mesh.ndim}, {axes}: give one of them, `mesh[name]`')
    return parallelize_module(model, mesh, plan(model, sequence))


# checks


def check_parameters(model: nn.Module) -> None:
    """Raise ConfigError for a parameter that is registered twice, since sharding would make two of it."""
    owners = Counter(id(t) for m in model.modules() for t in m._parameters.values() if t is not None)
    for name, parameter in model.named_parameters():
        if owners[id(parameter)] > 1:
            raise ConfigError(f'`{name}` must not be a parameter of several modules; `tie_embedding` ties tables')


def check_features(features: Any, level: str, sequence: bool = False) -> None:
    """Raise ConfigError for features that prevent sharding of heads, inner channels or tokens."""
    prefix = {'attention': 'attn_', 'feedforward': 'ff_', 'stack': ''}[level]
    for feature in features:
        on = [prefix + name for name, flag in feature.flags.items() if getattr(feature, name) != flag.default]
        if not (on or feature.is_user_defined) and (feature.flags or level == 'stack'):
            continue  # It is off, or only passes on inputs of the caller.
        reason = feature.reason('several devices') or (
            '' if get_shards(feature) is not None else explain_unknown(feature, level, sequence)
        )
        if reason:
            name = next(iter((*on, type(feature).__name__)))
            raise ConfigError(f'`{name}` cannot be shared by several devices: {reason}')


def explain_unknown(feature: Feature, level: str, sequence: bool) -> str:
    """Return why a feature without a sharding declaration is refused, or '' if it is not."""
    if level != 'stack':
        return UNKNOWN
    if feature.is_user_defined and 'on_attention' in feature.runs_at():
        return f'it uses the intermediates of attention, of which each device has some heads; {UNKNOWN}'
    if not sequence:  # It acts on the stream, which all devices have.
        return ''
    return f'with `sequence`, {feature.reason("documents") or NOT_ALONE}'


def is_known(module: nn.Module) -> bool:
    """Return True if the class of a module belongs to the library, or declares how it is sharded."""
    kind = type(module)
    return kind.__module__.partition('.')[0] == PACKAGE or bool({'tp_shards', 'cuts'} & vars(kind).keys())


def check_modules(modules: Iterable[nn.Module], known: tuple[type[nn.Module], ...], reason: str) -> None:
    """Raise ConfigError for modules of the user, and for those of torch that are not `known`."""
    for module in modules:
        if type(module) not in known and not is_known(module):
            raise ConfigError(f'`{type(module).__name__}` cannot be shared by several devices: {reason}')


def check_stream(stack: Any) -> None:
    """Raise ConfigError for modules in layers, except attention and feedforwards, that may mix tokens."""
    inside = {m for branch in stack.layers.modules() if isinstance(branch, BRANCHES) for m in branch.modules()}
    for layer in stack.layers:
        mixes = KINDS[layer.kind].joins_tokens
        if mixes:
            raise ConfigError(f'a layer of kind {layer.kind!r} cannot be sharded along the sequence: {mixes}')
        if layer.kind not in stack.branches:
            inside |= {*layer[1].modules()}  # Its kind declares that it processes each token separately.
    check_modules((m for m in stack.layers.modules() if m not in inside), BY_TOKEN, f'with `sequence`, {NOT_ALONE}')


def check_attention(attn: Any) -> None:
    check_modules([attn, attn.attend], (), UNKNOWN)
    check_features(attn.features.active, 'attention')
    check_modules([attn.to_q, attn.to_k, attn.to_v], (nn.Linear, nn.Identity), UNKNOWN)
    if type(attn.to_out) is not nn.Linear:
        raise ConfigError('`heads` must be more than 1 without an output projection: one head cannot be sharded')
    if not attn.query_heads == attn.heads or not attn.key_heads == attn.kv_heads:
        raise ConfigError('the number of query and key heads must be `heads` and `kv_heads` to be sharded')
    if attn.rotate_num_heads != attn.heads:
        raise ConfigError('`rotate_num_heads` cannot be shared by several devices: the heads must be alike')


def check_feedforward(ff: Any) -> None:
    check_modules([ff], (), UNKNOWN)
    check_features(ff.features.active, 'feedforward')
    check_modules(ff.ff.modules(), BY_NUMBER, UNKNOWN)
    known = type(ff.ff) is nn.Sequential and type(ff.output_layer) is nn.Linear
    if not known or len(list(ff.output_layers)) != 1:
        raise ConfigError('a feedforward that is not two linear maps cannot be shared by several devices')


# styles of parts


def shard_vocabulary(net: TransformerWrapper) -> dict[str, ParallelStyle]:
    """Return the styles of the token table and the head, if they are classes of the library or PyTorch."""
    styles: dict[str, ParallelStyle] = {}
    table = net.token_emb.emb if type(net.token_emb) is TokenEmbedding else None
    is_basic = type(table) is nn.Embedding and table.max_norm is None and table.padding_idx is None and not table.sparse
    if is_basic:
        styles['token_emb.emb'] = Vocabulary()
    heads = {'to_logits': net.to_logits}
    if type(net.to_logits) is SeveralHeads:
        heads = {f'to_logits.{name}': head for name, head in net.to_logits.named_children()}
    for name, head in heads.items():
        if type(head) is nn.Linear or (type(head) is TiedReadout and is_basic):
            styles[name] = Logits()
    return styles


def shard_tied(model: nn.Module, styles: dict[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return the styles of heads anywhere that are tied to a sharded table."""
    sharded = {id(module) for name, module in model.named_modules() if isinstance(styles.get(name), Vocabulary)}
    tied = ((name, module) for name, module in find_modules(model, TiedReadout) if name not in styles)
    return {name: Logits() for name, module in tied if id(getattr(module.shared[0], 'emb', None)) in sharded}


def shard_bias(stack: Any) -> dict[str, ParallelStyle]:
    """Return the style of the position bias shared by all self-attention layers."""
    bias = getattr(stack, 'rel_pos', None)
    if bias is None:
        return {}
    if not isinstance(bias, PositionBias):
        raise ConfigError(f'`{type(bias).__name__}`, the position bias, cannot be shared by several devices: {UNKNOWN}')
    own = (
        m for layer in stack.current_layers() if layer.kind == 'a' for m in layer.modules() if isinstance(m, Attention)
    )
    sizes = {(attn.heads, attn.kv_heads) for attn in own}
    if len(sizes) > 1:
        raise ConfigError('`attn_kv_heads` must be equal in layers that share a sharded position bias')
    return {'rel_pos': BiasOfHeads(*sizes.pop())}


# FSDP


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """Apply `fully_shard` (FSDP2) to each branch of each layer and to the rest of the model, in place.

    Tables and norms outside of branches are gathered with the model around the stack, so that tied weights are one.
    `generate` works as before: it calls the model, which gathers.

    Args:
        model: The model.
        mesh: As in `fully_shard`.
        **options: Those of `fully_shard`. With a `mp_policy` only the outermost modules cast their inputs: angles and
            positions, which layers get besides the stream, stay precise. `reshard_after_forward` is True, so that an
            optimizer made after a first forward gets the shards too.

    Raises:
        ConfigError: A parameter is a scalar, which torch cannot shard.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ConfigError(f'`{name}` is a scalar, which torch cannot shard: leave out its flag')
    options.setdefault('reshard_after_forward', True)
    inner = dict(options)
    if isinstance(options.get('mp_policy'), MixedPrecisionPolicy):
        inner['mp_policy'] = replace(options['mp_policy'], cast_forward_inputs=False)
    branches = dict.fromkeys(layer[1] for _, stack in find_modules(model, AttentionLayers) for layer in stack.layers)
    for branch in branches:
        fully_shard(branch, mesh=mesh, **inner)
    around = (m for m in model.modules() if isinstance(getattr(m, 'attn_layers', None), AttentionLayers))
    nets = dict.fromkeys(m for m in around if m is not model)
    if len({p for net in nets for p in net.parameters()}) < sum(len(list(net.parameters())) for net in nets):
        nets = {}  # They share tables.
    held = {p for m in (*branches, *nets) for p in m.parameters()}
    more = any(p not in held for p in model.parameters())
    for net in nets:
        fully_shard(net, mesh=mesh, **options)
    if more:
        fully_shard(model, mesh=mesh, **options)
        if hasattr(model, 'generate'):
            register_fsdp_forward_method(model, 'generate')
    return model

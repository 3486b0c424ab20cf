"""Plans: the style of each part of a model, and the flags that prevent sharding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
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
    get_cuts,
)
from x_transformers.parallel.views import WHOLE, Lane
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward, TransformerWrapper

UNKNOWN = 'nobody has said how it is cut: a feature, or a module, declares `tp_shards`'
NOT_ALONE = 'nobody has said that it looks at each token alone'
BRANCHES = (Attention, FeedForward)
# modules of torch that do the same with a number whichever others there are, and with a token
JOINS_NUMBERS = (nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d, nn.GLU, nn.MultiheadAttention, nn.PReLU)
ELEMENTWISE = tuple(
    kind for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind not in (nn.Module, *JOINS_NUMBERS)
)  # fmt: skip
BY_NUMBER = (*ELEMENTWISE, nn.Linear, nn.Identity, nn.Dropout, nn.Sequential, nn.ModuleList)
BY_TOKEN = (*BY_NUMBER, *JOINS_NUMBERS[:3], nn.GLU, nn.LayerNorm, nn.Embedding, nn.ParameterList, nn.ModuleDict)
BY_TOKEN += (nn.RMSNorm,) if hasattr(nn, 'RMSNorm') else ()


def plan(model: nn.Module, sequence: bool = False) -> dict[str, ParallelStyle]:
    """Return the plan for `torch.distributed.tensor.parallel.parallelize_module`: a style for each sharded part of a
    model, by its path. Parts without a style are replicated.

    sequence   cut the stream between branches along the sequence: norms and residuals are shared too

    Attention is dealt out by heads, feedforwards by inner features (of a gated unit value and gate each by itself),
    token table and head by tokens of the vocabulary. The devices need equal batches, and equal seeds.

    raises   ConfigError for a flag that cannot be cut, by name; ValueError for a model that is cut already
    """
    if any('parallel_views' in vars(module) for module in model.modules()):
        raise ValueError('`model` is shared by several devices already')
    refuse_shared(model)
    styles: dict[str, ParallelStyle] = {}
    lanes = {name: Lane() if sequence else WHOLE for name, m in name_plan(model, AttentionLayers)}
    lane_of = {id(m): lanes[name] for name, stack in name_plan(model, AttentionLayers) for m in stack.layers.modules()}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            check_attention(module)
            styles[name] = ShardedHeads(lane_of.get(id(module), WHOLE))
        elif isinstance(module, FeedForward):
            check_feedforward(module)
            styles[name] = ShardedFeedForward(lane_of.get(id(module), WHOLE))
        elif isinstance(module, TransformerWrapper):
            if sequence and module.features.find(DeepEmbeds) is not None:
                raise ConfigError('`ff_deep_embed` does not go with `sequence`: each token has a separate scale')
            styles |= {f'{name}.{path}' if name else path: style for path, style in shard_vocabulary(module).items()}
        elif isinstance(module, AttentionLayers):
            check(module.features.active, 'stack', sequence)
            if sequence:
                check_stream(module)
            styles |= {f'{name}.{path}' if name else path: style for path, style in shard_bias(module).items()}
    styles |= shard_tied(model, styles)
    if sequence:
        styles |= {name: Sequence(lane) for name, lane in lanes.items()}
    own: Any = styles.pop('', None)
    return {**styles, '': Alike(own)}


def name_plan(model: nn.Module, kind: type) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def parallelize(model: nn.Module, mesh: DeviceMesh, sequence: bool = False) -> nn.Module:
    """Shard a model over the devices of a mesh: `parallelize_module` by `plan`, in place.

    mesh     of one axis, such as `mesh['heads']`

    raises   what `plan` raises; TypeError or ValueError for another mesh
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f'`mesh` got {format_value(mesh)}, it must be a DeviceMesh')
    if mesh.ndim != 1:
        axes = ', '.join(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
        raise ValueError(f'`mesh` got {mesh.ndim} axes, {axes}: give one of them, `mesh[name]`')
    return parallelize_module(model, mesh, plan(model, sequence))


# what cannot be cut


def refuse_shared(model: nn.Module) -> None:
    """Refuse a parameter that is registered twice, since sharding would make two of it."""
    owners = Counter(id(t) for m in model.modules() for t in m._parameters.values() if t is not None)
    for name, parameter in model.named_parameters():
        if owners[id(parameter)] > 1:
            raise ConfigError(f'`{name}` is a parameter of several modules, which cannot be cut; `tie_embedding` ties')


def check(features: Any, level: str, sequence: bool = False) -> None:
    """Refuse features that heads, inner features or tokens cannot be cut with."""
    prefix = {'attention': 'attn_', 'feedforward': 'ff_', 'stack': ''}[level]
    for feature in features:
        on = [prefix + name for name, flag in feature.flags.items() if getattr(feature, name) != flag.default]
        if not (on or feature.is_user_defined) and (feature.flags or level == 'stack'):
            continue  # off, or what only hands on what the caller gives
        reason = feature.reason('several devices') or (
            '' if get_cuts(feature) is not None else unknown(feature, level, sequence)
        )
        if reason:
            name = next(iter((*on, type(feature).__name__)))
            raise ConfigError(f'`{name}` cannot be shared by several devices: {reason}')


def unknown(feature: Feature, level: str, sequence: bool) -> str:
    """Return why a feature without a sharding declaration is refused, or '' if it is not."""
    if level != 'stack':
        return UNKNOWN
    if feature.is_user_defined and 'on_attention' in feature.runs_at():
        return f'it reads what attention leaves, of which each device has some heads; {UNKNOWN}'
    if not sequence:  # it acts on the stream, that all devices have
        return ''
    return f'with `sequence`, {feature.reason("documents") or NOT_ALONE}'


def is_known(module: nn.Module) -> bool:
    """Return True if the class of a module belongs to the library, or declares how it is sharded."""
    kind = type(module)
    return kind.__module__.partition('.')[0] == PACKAGE or bool({'tp_shards', 'cuts'} & vars(kind).keys())


def refuse_unknown(modules: Iterable[nn.Module], known: tuple[type[nn.Module], ...], reason: str) -> None:
    """Refuse modules of the user's own; those of torch unless they are `known` to act on each number alone."""
    for module in modules:
        if type(module) not in known and not is_known(module):
            raise ConfigError(f'`{type(module).__name__}` cannot be shared by several devices: {reason}')


def check_stream(stack: Any) -> None:
    """Refuse what stands beside attention and feedforwards in layers, and may look at several tokens."""
    inside = {m for branch in stack.layers.modules() if isinstance(branch, BRANCHES) for m in branch.modules()}
    for layer in stack.layers:
        joins = KINDS[layer.kind].joins_tokens
        if joins:
            raise ConfigError(f'a layer of kind {layer.kind!r} cannot be cut along the sequence: {joins}')
        if layer.kind not in stack.branches:
            inside |= {*layer[1].modules()}  # which says that it looks at each token alone
    refuse_unknown((m for m in stack.layers.modules() if m not in inside), BY_TOKEN, f'with `sequence`, {NOT_ALONE}')


def check_attention(attn: Any) -> None:
    refuse_unknown([attn, attn.attend], (), UNKNOWN)
    check(attn.features.active, 'attention')
    refuse_unknown([attn.to_q, attn.to_k, attn.to_v], (nn.Linear, nn.Identity), UNKNOWN)
    if type(attn.to_out) is not nn.Linear:
        raise ConfigError('`heads` got 1, without a projection of the output: one head cannot be cut')
    if not attn.query_heads == attn.heads or not attn.key_heads == attn.kv_heads:
        raise ConfigError('the number of query or key heads is not `heads` or `kv_heads`, which cannot be dealt out')
    if attn.rotate_num_heads != attn.heads:
        raise ConfigError(
            '`rotate_num_heads` cannot be shared by several devices: the first heads are not like the others'
        )


def check_feedforward(ff: Any) -> None:
    refuse_unknown([ff], (), UNKNOWN)
    check(ff.features.active, 'feedforward')
    refuse_unknown(ff.ff.modules(), BY_NUMBER, UNKNOWN)
    known = type(ff.ff) is nn.Sequential and type(ff.output_layer) is nn.Linear
    if not known or len(list(ff.output_layers)) != 1:
        raise ConfigError('a feedforward that is not two linear maps cannot be shared by several devices')


# the parts


def shard_vocabulary(net: TransformerWrapper) -> dict[str, ParallelStyle]:
    """Return the styles of the token table and the head, if they are classes of the library or PyTorch."""
    styles: dict[str, ParallelStyle] = {}
    table = net.token_emb.emb if type(net.token_emb) is TokenEmbedding else None
    plain = type(table) is nn.Embedding and table.max_norm is None and table.padding_idx is None and not table.sparse
    if plain:
        styles['token_emb.emb'] = Vocabulary()
    heads = {'to_logits': net.to_logits}
    if type(net.to_logits) is SeveralHeads:
        heads = {f'to_logits.{name}': head for name, head in net.to_logits.named_children()}
    for name, head in heads.items():
        if type(head) is nn.Linear or (type(head) is TiedReadout and plain):
            styles[name] = Logits()
    return styles


def shard_tied(model: nn.Module, styles: dict[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return the styles of heads that read a sharded table, wherever they are."""
    cut = {id(module) for name, module in model.named_modules() if isinstance(styles.get(name), Vocabulary)}
    tied = ((name, module) for name, module in name_plan(model, TiedReadout) if name not in styles)
    return {name: Logits() for name, module in tied if id(getattr(module.shared[0], 'emb', None)) in cut}


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
        raise ConfigError('`attn_kv_heads` differs between layers that share a position bias, which cannot be cut')
    return {'rel_pos': BiasOfHeads(*sizes.pop())}


# parameters of a model, sharded


def shard(model: nn.Module, mesh: DeviceMesh | None = None, **options: Any) -> nn.Module:
    """Apply `fully_shard` (FSDP2) to each branch of each layer and to the rest of the model, in place.

    options   those of `fully_shard`. Of a `mp_policy` only the outermost modules cast what they get: angles and
              positions, which layers get beside the stream, stay precise. `reshard_after_forward` is True, so that an
              optimizer that is made after a first pass gets the shards too

    Tables and norms outside of branches are gathered with the model around the stack, so that tied weights are one.
    `generate` works as before: it calls the model, which gathers.

    raises   ConfigError for a parameter that is a single number, which torch cannot shard
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ConfigError(
                f'`{name}` is a single number, which torch cannot shard; its flag does not go with `shard`'
            )
    options.setdefault('reshard_after_forward', True)
    inner = dict(options)
    if isinstance(options.get('mp_policy'), MixedPrecisionPolicy):
        inner['mp_policy'] = replace(options['mp_policy'], cast_forward_inputs=False)
    branches = dict.fromkeys(layer[1] for _, stack in name_plan(model, AttentionLayers) for layer in stack.layers)
    for branch in branches:
        fully_shard(branch, mesh=mesh, **inner)
    around = (m for m in model.modules() if isinstance(getattr(m, 'attn_layers', None), AttentionLayers))
    nets = dict.fromkeys(m for m in around if m is not model)
    if len({p for net in nets for p in net.parameters()}) < sum(len(list(net.parameters())) for net in nets):
        nets = {}  # which have tables in common
    held = {p for m in (*branches, *nets) for p in m.parameters()}
    more = any(p not in held for p in model.parameters())
    for net in nets:
        fully_shard(net, mesh=mesh, **options)
    if more:
        fully_shard(model, mesh=mesh, **options)
        if hasattr(model, 'generate'):
            register_fsdp_forward_method(model, 'generate')
    return model

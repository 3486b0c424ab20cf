"""Layouts of a stack: the kinds and the order of its layers, and connections between distant layers.

'a' is self-attention, 'c' cross-attention, 'f' feedforward. More kinds can be added to `KINDS` (`core/branches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.branches import a_kind
from x_transformers.core.checks import check_digits
from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import BranchPostNorm, FirstAttentionNorm, Scale
from x_transformers.flags import (
    Check,
    ConfigError,
    Input,
    a_callable,
    at_least,
    count,
    each,
    flag,
    format_value,
    is_int,
    none,
    probability,
    warn_once,
)
from x_transformers.flags.checks import get_pair, per_row_or_token
from x_transformers.training.losses import kept_tokens


class Macaron(StackFeature):
    """Macaron layout: a second feedforward before each block, and a factor of 1/2 on all feedforwards."""

    paper = 'Macaron Net, arXiv:1906.02762'
    macaron = flag(False, 'use a feedforward before and after attention, each times one half')
    tp_shards = {}

    def block(self, block: list[str]) -> list[str]:
        return ['f', *block]

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return Scale(0.5, branch) if kind == 'f' else branch


class OnlyAttention(StackFeature):
    """A stack without feedforwards."""

    paper = 'arXiv:2607.18363'
    only_attn = flag(False, 'remove all feedforwards')
    clashes = {
        'macaron': 'it adds feedforwards',
        'layers_execute_order': 'its indices include the feedforwards',
        'unet_skips': 'it needs blocks of attention and feedforward',
    }
    tp_shards = {}

    def block(self, block: list[str]) -> list[str]:
        return [kind for kind in block if kind != 'f']

    def setup(self, owner: Any) -> None:
        if 'f' in (getattr(owner.features.find(CustomLayers), 'custom_layers', None) or ()):
            raise ConfigError("`only_attn` cannot be combined with `custom_layers` that have feedforwards ('f')")
        if 'f' in owner.layer_types:  # of a layout that adds its own
            owner.layer_types = tuple(kind for kind in owner.layer_types if kind != 'f')
            owner.layers_execute_order = tuple(range(len(owner.layer_types)))


class CustomLayers(StackFeature):
    """A custom sequence of layers, by their kinds."""

    custom_layers = flag(
        None,
        "kinds of all layers, such as ('a', 'f', 'a', 'f'); possible kinds are the keys of `KINDS`",
        each(a_kind) | none,
        example=('a', 'f', 'a', 'f'),
    )

    keeps_blocks = None
    tp_shards = {}

    def layout(self, block: list[str], depth: int | None) -> list[str]:
        return list(self.custom_layers)


class ParRatio(StackFeature):
    """PAR layout: attention mostly in early layers, only feedforwards in the last third."""

    paper = 'PAR Transformer, arXiv:2009.04534'
    par_ratio = flag(None, 'number of layers per attention layer', at_least(2) | none, example=3)

    keeps_blocks = False
    tp_shards = {}

    def layout(self, block: list[str], depth: int) -> list[str]:
        total = depth * len(block)
        if self.par_ratio > total:
            raise ConfigError(f'`par_ratio` must be at most the number of layers, {total}, got {self.par_ratio}')
        attention = [kind for kind in block if kind != 'f']
        groups, cut = total // self.par_ratio, total * 2 // 3
        width = (cut + cut // groups) // groups
        if len(attention) > width:
            raise ConfigError(f'`par_ratio` got {self.par_ratio}, which leaves no room for feedforwards')
        head = [*attention, *['f'] * (width - len(attention))] * groups
        return head + ['f'] * (total - len(head))


class SandwichCoef(StackFeature):
    """Sandwich layout: first attention layers, then ordinary blocks, and last feedforwards."""

    paper = 'Sandwich Transformers, arXiv:1911.03864'
    sandwich_coef = flag(
        None, 'number of attention layers at the start, and of feedforwards at the end', at_least(1) | none, example=1
    )

    keeps_blocks = False
    tp_shards = {}

    def layout(self, block: list[str], depth: int) -> list[str]:
        coef = self.sandwich_coef
        if coef > depth:
            raise ConfigError(f'`sandwich_coef` must be at most `depth`, {depth}, got {coef}')
        return ['a'] * coef + block * (depth - coef) + ['f'] * coef


class WeightTying(StackFeature):
    """Share the weights of all blocks: a single block runs `depth` times."""

    paper = 'ALBERT, arXiv:1909.11942'
    weight_tie_layers = flag(False, 'share the weights of one block between all depths')
    clashes = {'layers_execute_order': 'both choose the order of layers'}
    tp_shards = {}

    def layout(self, block: list[str], depth: int) -> list[str]:
        return block

    def setup(self, owner: Any) -> None:
        owner.layers_execute_order *= owner.depth


class ExecuteOrder(StackFeature):
    """The order in which layers run. Layers may run several times."""

    layers_execute_order = flag(
        None, 'layer indices in the order of execution, with repeats allowed', each(count) | none, example=(0, 1, 0, 1)
    )
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        owner.layers_execute_order = checked_order(self.layers_execute_order, len(owner.layer_types))


class ConcatCombine(nn.Module):
    """W [skip, x]

    prev_layers      the inputs of the layers so far, of which the one at `prev_layer_ind` is the skip
    """

    def __init__(self, dim: int, prev_layer_ind: int) -> None:
        super().__init__()
        self.prev_layer_ind = prev_layer_ind
        self.combine = nn.Linear(dim * 2, dim, bias=False)

    def forward(self, x: Tensor, prev_layers: Sequence[Tensor]) -> Tensor:
        return self.combine(torch.cat((prev_layers[self.prev_layer_ind], x), dim=-1))


class UnetSkips(StackFeature):
    """U-Net skip connections: each block of the second half also gets the input of the mirrored block."""

    paper = 'U-ViT, arXiv:2209.12152'
    unet_skips = flag(False, 'concatenate and project the inputs of mirrored blocks (U-Net skips)')
    clashes = {
        'weight_tie_layers': 'all blocks are the same one',
        'layers_execute_order': 'blocks are no longer in mirrored order',
    }
    refuses = {'some tokens': 'it changes the residual stream of every token between layers'}
    stored_as = {'combines': 'skip_combines'}

    def setup(self, owner: Any) -> None:
        length, layers = owner.len_default_block, len(owner.layer_types)
        blocks = layers // length
        if blocks < 2:
            raise ConfigError('`unet_skips` needs a `depth` of at least 2: it joins two blocks')
        self.mirror = {block * length: (blocks - 1 - block) * length for block in range(math.ceil(blocks / 2), blocks)}
        skips = (self.mirror.get(index) for index in range(layers))
        each: Any = [None if skip is None else ConcatCombine(owner.dim, skip) for skip in skips]
        self.combines = nn.ModuleList(each)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.ctx(self).skips = {}
        return x

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        skips = call.ctx(self).skips
        skips[layer.index] = x
        combine, mirrored = self.combines[layer.index], self.mirror.get(layer.index)
        if combine is None:
            return x
        if mirrored is not None and mirrored not in skips:
            raise ValueError(
                f'`unet_skips` joins layer {layer.index} to the input of layer {mirrored}, which has not run: '
                '`layers_execute_order` and `repeat_blocks` must keep it in front'
            )
        return combine(x, [skips.get(index) for index in range(len(self.combines))])


TORN = 'the layers of a block run together, in their order'


class ParallelBlock(StackFeature):
    """Parallel branches: attention and feedforward of a block have the same input.

        x + attention(norm_1(x)) + feedforward(norm_2(x))

    With 'shared', norm_2 is norm_1, which is stored once, in the first layer of the block.
    """

    paper = 'PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745'
    parallel_block = flag(
        False,
        "run the branches of a block in parallel, with a separate norm each (True) or one norm for all ('shared')",
        Check("True, False or 'shared'", lambda v: isinstance(v, bool) or v == 'shared', "bool | Literal['shared']"),
        example=True,
    )
    refuses = {'some tokens': 'branches use the residual stream from before their block'}
    clashes = {
        'only_attn': 'blocks have a single branch',
        'macaron': 'it needs feedforwards before and after attention',
        **dict.fromkeys(('custom_layers', 'par_ratio', 'sandwich_coef'), 'layers no longer form equal blocks'),
        **dict.fromkeys(('pre_and_post_norm', 'resi_dual'), 'it normalizes the residual stream inside blocks'),
        **dict.fromkeys(
            ('integrate_layers', 'attn_aggregated_residuals', 'num_residual_streams', 'gated_multi_residual'),
            'both compute the branch input',
        ),
        'reversible': 'each branch needs the output of the other',
    }
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        self.length, self.shares = owner.len_default_block, self.parallel_block == 'shared'
        if not owner.pre_norm:
            raise ConfigError('`parallel_block` needs `pre_norm`: after the residual it would norm the stream')
        if owner.has_custom_layer_types:
            raise ConfigError('`parallel_block` needs the ordinary order of layers, this stack has another order')
        bare = [f.display_name for f in owner.features.active if isinstance(f, (BranchPostNorm, FirstAttentionNorm))]
        if self.shares and bare:
            raise ConfigError(
                f"`parallel_block='shared'` cannot be combined with `{bare[0]}`: there is no norm to share"
            )
        if not self.is_whole(owner.layers_execute_order):
            raise ConfigError(f'`parallel_block` cannot be combined with this `layers_execute_order`: {TORN}')

    def is_whole(self, order: Sequence[int]) -> bool:
        """Return True if the layers of an order come in whole blocks."""
        blocks = [tuple(order[at : at + self.length]) for at in range(0, len(order), self.length)]
        return all(self.begins(b[0]) and b == tuple(range(b[0], b[0] + self.length)) for b in blocks)

    def begins(self, index: int) -> bool:
        """Return True if a layer is the first one of its block."""
        return index == self.first(index)

    def first(self, index: int) -> int:
        """Return the first layer of the block of a layer."""
        return index - index % self.length

    def norms(self, norms: tuple[Any, ...], kind: str, index: int) -> tuple[Any, ...]:
        return (None, *norms[1:]) if self.shares and not self.begins(index) else norms

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if not self.is_whole(call.order):
            raise ValueError(f'`layers_execute_order` cannot be combined with `parallel_block`: {TORN}')
        return x

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        if self.begins(layer.index):
            call.ctx(self).stream = x
        return x

    def branch_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        return call.ctx(self).stream

    def normed(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        if not self.shares or self.begins(layer.index):
            return x
        return call.norm(self.owner.layers[self.first(layer.index)][0][0], x)


# what reaches every branch


class ReinjectInput(StackFeature):
    """Add a projection of the stack's input, or a condition passed as `in_attn_cond`, to the input of every branch.

    `in_attn_cond` has shape (b, d) or (b, n, d).
    """

    paper = 'Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090'
    reinject_input = flag(False, "add a projection of the stack's input to the input of every branch")
    learned_reinject_input_gate = flag(False, 'gate this projection, or `in_attn_cond`, per token')
    call_inputs = {'in_attn_cond': Input('b d | b n d', per_row_or_token)}
    stored_as = {'project': 'reinject_input_proj', 'gate': 'learned_reinject_input_gate'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    @property
    def always(self) -> bool:
        """Return False if the feature does nothing without `in_attn_cond`."""
        return bool(self.reinject_input)

    def setup(self, owner: Any) -> None:
        if self.reinject_input:
            self.project = nn.Linear(owner.dim, owner.dim, bias=False)
        if self.learned_reinject_input_gate:
            self.gate = nn.Linear(owner.dim, 1, bias=False)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        injected = call.inputs.get('in_attn_cond')
        if injected is not None:
            if self.reinject_input:
                raise ValueError(
                    '`in_attn_cond` cannot be combined with `reinject_input`: both join the input of branches'
                )
            injected = injected.unsqueeze(1) if injected.ndim == 2 else injected
            if injected.ndim != 3 or injected.shape[-1] != x.shape[-1] or injected.shape[0] not in (1, x.shape[0]):
                shape = tuple(call.inputs['in_attn_cond'].shape)
                wanted = f'({x.shape[0]}, {x.shape[-1]}) or ({x.shape[0]}, n, {x.shape[-1]})'
                raise ValueError(f'`in_attn_cond` must have shape {wanted}, got {shape}')
            check_digits(injected, 'in_attn_cond', x)
            injected = call.select_new(injected, 'in_attn_cond')
        elif self.reinject_input:
            injected = self.project(x)
        if injected is not None:
            if self.learned_reinject_input_gate:
                injected = injected * self.gate(x).sigmoid()
            call.ctx(self).injected = injected
        return x

    def branch_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        injected = getattr(call.ctx(self), 'injected', None)
        return x if injected is None else x + injected


class TransformReads(StackFeature):
    """A function passed by the caller and applied to the input of self-attention layers, before anything is added.

    The residual connection is not changed.
    """

    call_inputs = {
        'transform_attn_inputs': Input('f(layer, x) of the input of each self-attention, counted from 0', a_callable),
    }

    def branch_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        own = call.inputs.get('transform_attn_inputs')
        return x if own is None or layer.kind != 'a' else own(call.count_layers('a', call.step), x)


class KeptRead(StackFeature):
    """Return the input of one feedforward, after its norm, as the key of a token for a datastore."""

    paper = 'kNN-LM, arXiv:1911.00172'
    call_inputs = {
        'ff_input_of': Input(
            '(list, index of a feedforward in the order of execution): its input is appended to the list',
            get_pair('(a list, an integer)', lambda value: isinstance(value, list), is_int),
        ),
    }

    def normed(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        given = call.inputs.get('ff_input_of')
        if given is not None and layer.kind == 'f':
            kept, wanted = given
            if call.count_layers('f', call.step) == wanted % max(call.count_layers('f'), 1):
                kept.append(x)
        return x


class ScaledByDeepEmbeds(StackFeature):
    """Multiply the output of each feedforward by an embedding of the token id, with one table per feedforward."""

    paper = 'RWKV-8, github.com/BlinkDL/RWKV-LM (DeepEmbed)'
    call_inputs = {
        'deep_embeds_and_ids': Input(
            '(num_tokens f d, ids b n)', get_pair('(embeddings, ids), tensors', torch.is_tensor, torch.is_tensor)
        ),
    }

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        given = call.inputs.get('deep_embeds_and_ids')
        if given is None:
            return x
        tables, ids = given
        if tables.ndim != 3 or tables.shape[-1] != x.shape[-1]:
            raise ValueError(
                f'`deep_embeds_and_ids` got embeddings of shape {tuple(tables.shape)}, '
                f'they must be (num_tokens, f, {x.shape[-1]}), one table for each of the first f feedforwards'
            )
        if ids.ndim != 2 or ids.is_floating_point() or ids.shape[0] != x.shape[0]:
            raise ValueError(f'`deep_embeds_and_ids` must be ({x.shape[0]}, n), got ids of shape {tuple(ids.shape)}')
        ids = call.select_new(ids.unsqueeze(-1), 'deep_embeds_and_ids').squeeze(-1)
        call.ctx(self).embeds = tables[ids].unbind(dim=-2)
        return x

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        embeds = getattr(call.ctx(self), 'embeds', None)
        number = call.count_layers('f', call.step)
        if embeds is None or layer.kind != 'f' or number >= len(embeds):
            return inputs
        return {**inputs, 'deep_embed': embeds[number]}


class DropContextTokens(StackFeature):
    """Drop random tokens of the context in training, independently in each cross-attention layer."""

    paper = 'Perceiver AR, arXiv:2202.07765'
    cross_attn_tokens_dropout = flag(
        0.0, 'fraction of context tokens that each cross-attention layer drops in training', probability, example=0.5
    )
    clashes = {
        'cross_residual_attn': 'the logits of the previous layer belong to other tokens',
        'add_value_residual': 'the values of the first layer belong to other tokens',
    }
    training_only = True

    def setup(self, owner: Any) -> None:
        if not owner.cross_attend:
            warn_once('`cross_attn_tokens_dropout` has no effect unless `cross_attend` is set')

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if layer.kind != 'c' or not self.owner.training or call.cache is not None:
            return inputs
        context, mask = inputs['context'], inputs.get('context_mask')
        kept, mask = kept_tokens(context, mask, self.cross_attn_tokens_dropout)
        inputs = {**inputs, 'context': take_layers(context, kept)}
        if mask is not None:
            inputs['context_mask'] = mask
        angles = inputs.get('context_rotary_pos_emb')
        if angles is not None:
            inputs['context_rotary_pos_emb'] = tuple(take_layers(t, kept) if torch.is_tensor(t) else t for t in angles)
        return inputs


def take_layers(t: Tensor, index: Tensor) -> Tensor:
    """Select tokens (b k) of each row of `t` (b n d), or of the one row that all share (1 n d | n d)."""
    t = (t if t.ndim == 3 else t.unsqueeze(0)).expand(index.shape[0], -1, -1)
    return t.gather(1, index.unsqueeze(-1).expand(-1, -1, t.shape[-1]))


def layer_schedule(
    start: float, end: float, depth: int, schedule: str | Callable[[float, float, float], Any] = 'cosine'
) -> tuple[Any, ...]:
    """Return one value per layer, from `start` to `end`: for flags that take a tuple, such as `ff_mult`.

    `schedule` is 'cosine', 'linear', or a function of start, end, and a time from 0 to 1.
    """
    if not is_int(depth) or depth < 2:
        raise ConfigError(f'`depth` must be an integer of at least 2, got {format_value(depth)}')
    if schedule not in ('cosine', 'linear') and not callable(schedule):
        raise ConfigError(f"`schedule` must be 'cosine', 'linear' or a callable, got {format_value(schedule)}")
    times = [layer / (depth - 1) for layer in range(depth)]
    if callable(schedule):
        return tuple(schedule(start, end, t) for t in times)
    shares = times if schedule == 'linear' else [0.5 * (1 - math.cos(math.pi * t)) for t in times]
    return tuple(start + (end - start) * share for share in shares)


def checked_order(order: Any, layers: int) -> tuple[int, ...]:
    """Return an execution order as a tuple.  Raises ConfigError for an index without a layer."""
    if not isinstance(order, Sequence) or isinstance(order, str):
        raise ConfigError(f'`layers_execute_order` must be a tuple of indices, got {format_value(order)}')
    if not all(is_int(index) and 0 <= index < layers for index in order):
        raise ConfigError(f'`layers_execute_order` got {tuple(order)!r}, its indices must be from 0 to {layers - 1}')
    return tuple(order)


def repeat_layers(repeat_blocks: Any, num_blocks: int, len_default_block: int) -> tuple[int, ...]:
    """Return the execution order of `num_blocks` blocks of `len_default_block` layers, some repeated.

    A spec is (block, times) or ((first, last), times), in numbers of blocks; or a tuple of such specs. Blocks without
    one run once; a group runs as a whole.
    """
    spec, blocks, length = repeat_blocks, num_blocks, len_default_block
    specs = (spec,) if isinstance(spec, (tuple, list)) and len(spec) == 2 and is_int(spec[1]) else spec
    groups: dict[int, tuple[int, int]] = {}
    for one in specs if isinstance(specs, (tuple, list)) else (specs,):
        at = one[0] if isinstance(one, (tuple, list)) and len(one) == 2 else None
        pair: Any = (at, at) if is_int(at) else at if isinstance(at, (tuple, list)) and len(at) == 2 else (-1, -1)
        first, last = pair
        if not (is_int(first) and is_int(last) and 0 <= first <= last < blocks and is_int(one[1]) and one[1] >= 0):
            raise ConfigError(
                f'`repeat_blocks` must be (block, times) or ((first, last), times), '
                f'of blocks from 0 to {blocks - 1}, got {format_value(one)}'
            )
        if any(first <= f + k and f <= last for f, (k, _) in groups.items()):
            raise ConfigError(f'`repeat_blocks` got block {first} to {last} twice, groups must not overlap')
        groups[first] = (last - first, one[1])
    order, block = [], 0
    while block < blocks:
        more, times = groups.get(block, (0, 1))
        order += list(range(block, block + more + 1)) * times
        block += more + 1
    return tuple(block * length + at for block in order for at in range(length))


def transform_layer(functions: Any, block: int, x: Tensor) -> Tensor:
    """Change the input of a block by a function of the user: {block: f(x)}, or f(block, x). Blocks count from 1."""
    if functions is None:
        return x
    if callable(functions):
        function: Any = functions
        return function(block, x)
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        wanted = 'it must be a function (block, x), or a dict from blocks to functions of x'
        raise TypeError(f'`transform_block_inputs` got {format_value(functions)}, {wanted}')
    return functions[block](x) if block in functions else x

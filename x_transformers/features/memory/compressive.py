"""Compressive Transformer: the oldest memories are compressed into fewer instead of being dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_vectors
from x_transformers.core.modes import to_float
from x_transformers.core.own_modules import known_stack
from x_transformers.features.heads import (
    KeyRMSNorm,
    ProjectionClip,
    ProjectionNorm,
    QKHeadNorm,
    QKNorm,
    QKRMSNorm,
    ValueHeadNorm,
    ValueRMSNorm,
)
from x_transformers.features.levels import ModelFeature
from x_transformers.features.memory.compression import LEARNED, POOLS, Compression
from x_transformers.features.memory.kept import Fixed, Memories, Pair, Stored, real_rows
from x_transformers.features.norms import UseAdaptiveLayerNorm, UseAdaptiveRMSNorm
from x_transformers.features.recompute import Reversible
from x_transformers.features.residuals import LayerDropout
from x_transformers.features.windows import Window
from x_transformers.flags import (
    ConfigError,
    RecurrentState,
    count,
    flag,
    format_value,
    none,
    not_negative,
    one_of,
    size,
    warn_once,
)
from x_transformers.kernels.dense import differentiable_sdpa, split_heads, tile_heads
from x_transformers.training.losses import mean_or_zero

# what a layer does to queries, keys and values wherever they stand
OF_CONTENT = (ProjectionClip, ProjectionNorm, QKNorm, QKRMSNorm, QKHeadNorm, KeyRMSNorm, ValueRMSNorm, ValueHeadNorm)


class CompressiveMemory(ModelFeature):
    """Compressed memories: entries that are pushed out of the memories are compressed and stored in a second memory.

        attended keys       cmem, mem, x                    oldest first, consecutive positions
        old, mem <- mem x   mem keeps the last `max_mem_len` entries, old are the others
        new = f(old)        (b, n, d) -> (b, ceil(n / c), d)
        cmem <- cmem new    cmem keeps the last `cmem_len` entries

    The memories of a call are pairs (mem, cmem). f is a convolution of `cmem_ratio` = c entries, pooling, dilated
    convolutions, or keeps the entries that the segment has attended to most. In training it is trained by a separate
    loss, `cmem`, summed over layers:

        attn    mean (attention(x, old) - attention(x, new))^2      by content alone, with the projections of the layer
        ae      mean (old - g(new))^2                               g: transposed convolution, or repetition for pooling

    in which all but f and g is constant. The loss of later segments reaches f if memories keep their gradients. If
    there are masks, the intermediates contain masks of the new memories, `mem_masks`, for the next call.
    """

    paper = 'Compressive Transformer, arXiv:1911.05507'
    cmem_len = flag(0, 'compressed memories per self-attention layer, in addition to `max_mem_len`', count, example=3)
    cmem_ratio = flag(4, 'compression ratio: number of memories that are compressed to one', size, example=2)
    cmem_fn = flag(
        'conv',
        "compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'",
        one_of(*LEARNED, *POOLS),
        example='mean',
    )
    cmem_loss = flag(
        'attn',
        "loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None",
        one_of('attn', 'ae') | none,
        example='ae',
    )
    cmem_loss_weight = flag(1.0, 'weight of this loss', not_negative, example=0.5)
    cmem_init = flag(
        None,
        "initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default",
        one_of('mean') | none,
        example='mean',
    )
    clashes = {'mem_same_length': 'compressed memories are outside the window of the queries'}
    stored_as = {'each': 'attn_layers.cmem'}
    refuses = {'documents': 'its compressed memories combine several tokens', 'some tokens': ''}

    def setup(self, owner: Any) -> None:
        stack, learns = known_stack(owner.attn_layers), self.cmem_fn in LEARNED
        if not owner.max_mem_len:
            raise ConfigError('`cmem_len` needs `max_mem_len`: memories are compressed when they are pushed out of it')
        if learns and self.cmem_ratio < 2:
            raise ConfigError(f'`cmem_ratio` must be at least 2 with `cmem_fn={self.cmem_fn!r}`, got 1')
        if self.cmem_fn == 'most_used' and self.cmem_loss == 'ae':
            raise ConfigError("`cmem_loss='ae'` cannot be combined with `cmem_fn='most_used'`: there is no way back")
        if self.cmem_init and not learns:
            warn_once(f'`cmem_init` has no effect with `cmem_fn={self.cmem_fn!r}`')
        self.order = [at for at in stack.layers_execute_order if stack.layer_types[at] == 'a']
        owners = list(dict.fromkeys(self.order))
        self.numbers = [owners.index(at) for at in self.order]
        if self.cmem_fn == 'most_used':
            self.check_counted(stack)
            self.states = {'mem_use': RecurrentState()}
        if self.cmem_loss == 'attn':
            self.check_content(stack)
        self.each = nn.ModuleList(self.new(stack.dim) for _ in owners)

    def new(self, dim: int) -> Compression:
        if self.cmem_fn in POOLS:
            return POOLS[self.cmem_fn](self.cmem_ratio)
        return LEARNED[self.cmem_fn](self.cmem_ratio, dim, self.cmem_loss == 'ae', self.cmem_init == 'mean')

    def check_counted(self, stack: Any) -> None:
        """Refuse layers that do not tell what they have attended to."""
        name = "`cmem_fn='most_used'`"
        if stack.features.find(LayerDropout):
            raise ConfigError(f'{name} cannot be combined with `layer_dropout`: a layer left out attends to nothing')
        for layer in (get_attention(stack.layers[at]) for at in self.order):
            if layer.flash:
                raise ConfigError(
                    f'{name} cannot be combined with `attn_flash=True`: the fused kernel forms no weights'
                )
            if layer.features.by_stage.get('attend') or layer.features.find(Window):
                owner = next(iter((*layer.features.by_stage.get('attend', ()), layer.features.find(Window))))
                raise ConfigError(
                    f'{name} cannot be combined with `attn_{owner.display_name}`: it needs weights of all keys'
                )

    def check_content(self, stack: Any) -> None:
        """Refuse layers whose queries and keys are made of more than the stream."""
        name, ways = "`cmem_len` with `cmem_loss='attn'`", "write `cmem_loss='ae'` or None"
        for kind in (UseAdaptiveLayerNorm, UseAdaptiveRMSNorm):
            if own := stack.features.find(kind):
                raise ConfigError(
                    f'{name} cannot be combined with `{own.display_name}`: memories have no conditions; {ways}'
                )
        for at in self.order:
            layer = get_attention(stack.layers[at])
            if any(getattr(to, 'in_features', None) != stack.dim for to in (layer.to_q, layer.to_k, layer.to_v)):
                raise ConfigError(f'{name} needs queries, keys and values made of the stream itself; {ways}')

    # in a call

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        """Pairs of memories and of masks as one of each, for the stack."""
        pairs, masks = self.checked(inputs.get('mems'), call), inputs.get('mem_masks')
        call.ctx(self).kept = kept = [Stored(*map(Memories, pair)) for pair in pairs]
        if not pairs:
            return inputs
        inputs = {**inputs, 'mems': [own.whole.rows for own in kept]}
        if masks is None:
            return inputs
        if not isinstance(masks, (list, tuple)) or len(masks) != len(kept):
            raise ValueError(f'`mem_masks` must be a list with one for each of `mems`, got {format_value(masks)}')
        for at, (own, mask) in enumerate(zip(kept, self.owner.shifted(masks), strict=True)):
            own.hide(mask, f'mem_masks[{at}]')
        return {**inputs, 'mem_masks': [own.whole.real for own in kept]}

    def checked(self, mems: Any, call: Any) -> list[Pair]:
        """Pairs of memories, of which each may be absent. Those of a model that compresses nothing are taken too."""
        if mems is None or not isinstance(mems, (list, tuple)):
            return []  # what is no list is refused by the stack
        batch, dim = call.like_tokens.shape[0], known_stack(self.owner.attn_layers).dim
        pairs: list[Pair] = []
        for at, mem in enumerate(mems):
            pair = (mem, None) if mem is None or torch.is_tensor(mem) else mem
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ValueError(f'`mems[{at}]` must be a pair of memories, (mem, cmem), got {type(mem).__name__}')
            for part, name in zip(pair, ('0', '1'), strict=True):
                if part is not None:
                    check_vectors(part, f'mems[{at}][{name}]', batch, 'l', dim)
            pairs.append((pair[0], pair[1]))
        return pairs

    def strip_prefix(self, x: Tensor, call: Any) -> Tensor:
        """Count how much of all attention each memory gets, of the queries of the segment so far."""
        kept = call.ctx(self).kept
        if self.cmem_fn != 'most_used' or not call.keeps or not kept or kept[0].whole.rows is None:
            return x
        held, tokens = kept[0].whole.count, call.num_prefix_tokens + call.tokens
        use, token_mask = [], get_real(call, tokens)
        with torch.no_grad():
            for own in call.intermediates.attn_intermediates:
                if own.layer_type == 'a':
                    first = own.post_softmax_attn.shape[-1] - tokens - held
                    weights = to_float(own.post_softmax_attn[..., first : first + held]).mean(dim=1)  # b i l
                    if token_mask is not None:
                        weights = weights.masked_fill(~token_mask[:, -weights.shape[1] :, None], 0.0)
                    use.append(weights.sum(dim=1))
            state, total = call.state('mem_use'), torch.stack(use, dim=1)
            state.keep(total if state.value is None else total + state.value)
        return x

    def update_memories(self, mems: Any, hiddens: Sequence[Tensor], call: Any) -> list[tuple[Tensor, Tensor]]:
        self.check_segment(hiddens, call)
        known, use = getattr(call.ctx(self), 'kept', None), call.new_states.get('mem_use')
        if known is None:  # read in several calls
            known = [Stored(*map(Memories, pair)) for pair in mems or ()]
        known = known or [Stored(Memories(), Memories()) for _ in hiddens]
        token_mask = get_real(call, hiddens[0].shape[1])
        kept, losses = [], []
        for at, (own, h) in enumerate(zip(known, hiddens, strict=True)):
            old, mem = own.mem.concat(Memories(h, token_mask)).split(self.owner.max_mem_len)
            new, first = Stored(mem, own.cmem), own.cmem.count
            if old.count:
                of_old = None if use is None else use.value[:, at, first : first + old.count]
                compressed = self.compressed(at, old, of_old)
                if call.training and self.cmem_loss is not None:
                    losses.append(self.loss(at, old, compressed, Memories(h, token_mask)))
                new.take(compressed, self.cmem_len)
            kept.append(new)
        if losses:
            call.add_loss('cmem', sum(losses[1:], losses[0]) * self.cmem_loss_weight)
        masks = [(own.mem.real, own.cmem.real) for own in kept]
        call.intermediates.mem_masks = masks if any(mask is not None for pair in masks for mask in pair) else None
        return [own.pair(h) for own, h in zip(kept, hiddens, strict=True)]

    def check_segment(self, hiddens: Sequence[Tensor], call: Any) -> None:
        most = self.owner.max_mem_len
        if hiddens and (n := hiddens[0].shape[1]) > most:
            reason = f'got {most}: there are {n} tokens'
            raise ValueError(f'`max_mem_len` must be at least the length of a segment with `cmem_len`, {reason}')
        if len(hiddens) != len(self.numbers):
            ran = f'{len(hiddens)} self-attentions have run, not {len(self.numbers)}'
            raise ValueError(f'`cmem_len` needs the ordinary order of layers: {ran}')
        if call.inputs.get('document_ids') is not None:
            raise ValueError('`document_ids` cannot be combined with `cmem_len`: documents are whole')
        if call.training and known_stack(self.owner.attn_layers).features.find(Reversible):
            raise ValueError(
                '`reversible` cannot be combined with `cmem_len` while training: memories are '
                'hidden states of all layers, which it is there to let go'
            )

    def compressed(self, at: int, old: Memories, use: Tensor | None) -> Memories:
        function: Any = self.each[self.numbers[at]]
        if use is not None:
            return Memories(*function.kept(old.rows, old.real, use))
        if function.by_use:
            raise ValueError("`cmem_fn='most_used'` needs what layers have attended to: the call kept nothing of it")
        return Memories(*function(old.rows, old.real))

    # what it learns by

    def loss(self, at: int, old: Memories, new: Memories, own: Memories) -> Tensor:
        """Return the loss of one layer, whose input was `own`."""
        if old.rows.requires_grad:  # no part of the graph of this loss
            old = Memories(old.rows.detach(), old.real)
            new = self.compressed(at, old, None) if self.cmem_fn in LEARNED else Memories(new.rows.detach(), new.real)
        if self.cmem_loss == 'ae':
            function: Any = self.each[self.numbers[at]]
            back = function.expanded(new.rows, old.count)
            return mean_square(old.rows - back, old.real)
        layer = known_stack(self.owner.attn_layers).current_layers()[self.order[at]]
        found = attend_by_content(layer, Memories(own.rows.detach(), own.real), (old, new))
        return mean_square(found[0] - found[1], own.real)


def attend_by_content(layer: Any, own: Memories, memories: Sequence[Memories]) -> list[Tensor]:
    """Return a layer's attention to each of several memories, by content alone, (b, n, h, d); weights are constants.

    A query that finds nothing real gets zeros.
    """
    attention = get_attention(layer)
    norm, fixed = layer[0][0], Fixed(attention)
    features = attention.features.rebind(fixed)
    acting = [feature for feature in features.active if isinstance(feature, OF_CONTENT)]
    widths = (attention.dim_key, attention.dim_key, attention.shape.dim_value)

    def heads(rows: Tensor) -> Any:
        x = rows if norm is None else Fixed(norm)(rows)
        qkv: Any = fixed.to_q(x), fixed.to_k(x), fixed.to_v(x)
        for feature in acting:
            qkv = feature.projected(qkv, None) if 'projected' in feature.runs_at() else qkv
        qkv = tuple(split_heads(t, width) for t, width in zip(qkv, widths, strict=True))
        for feature in acting:
            qkv = feature.qkv_heads(qkv, None) if 'qkv_heads' in feature.runs_at() else qkv
        return qkv

    q, found = heads(own.rows)[0], []
    for memory in memories:
        _, k, v = heads(memory.rows)
        k, v = tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1])
        seen = None if memory.real is None else memory.real[:, None, None]
        sighted: Any = None if seen is None else seen.any(dim=-1, keepdim=True)
        mask = None if seen is None else seen | ~sighted
        out = differentiable_sdpa(q, k, v, attn_mask=mask, scale=float(attention.logit_scale))
        out = out if sighted is None else out.masked_fill(~sighted, 0.0)
        found.append(out.transpose(1, 2))
    return found


def mean_square(t: Tensor, token_mask: Tensor | None) -> Tensor:
    """Return the mean square of all numbers of real tokens of (b, n, ...), in float32 at least."""
    t = to_float(t.flatten(2))
    if token_mask is None:
        return mean_or_zero(t.square())
    return t.masked_fill(~token_mask.unsqueeze(-1), 0.0).square().mean(dim=-1).sum() / token_mask.sum().clamp(min=1)


def get_real(call: Any, tokens: int) -> Tensor | None:
    return real_rows(call.new_states, call.inputs.get('seq_start_pos'), tokens)


def get_attention(layer: Any) -> Any:
    """The attention of a layer, whatever is around it."""
    return next(module for module in layer[1].modules() if hasattr(module, 'to_q'))

"""Linformer: queries attend to a fixed number of slots, each a weighted sum of all keys or values."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, is_exporting, is_plainly, to_float
from x_transformers.core.own_modules import is_of_others
from x_transformers.core.rows import gather_along
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.linear.kernel import split_chunks
from x_transformers.flags import ConfigError, Input, OfContext, flag, none, one_of, size, warn_once
from x_transformers.kernels.dense import differentiable_sdpa, tile_heads

OF_ALL = 'its slots are sums over all tokens'
NOT_ADDED = 'its scores are those of slots, which have no position'
TURNED = 'its slots are sums of keys at many positions'


class Slots(AttentionFeature):
    """Linformer: project keys and values along the sequence to k slots, to which the queries attend.

        head_h = softmax(scale Q_h (E_h^T K_h)^T) F_h^T V_h             E, F: (n, k)

        linear   E and F are learned, with a row for each position
        mean     adaptive mean pooling of the tokens up to the last one that is not padding
        max      adaptive max pooling
        conv     learned depthwise convolution with kernel size and stride ceil(`linformer_max_len` / k); slots beyond
                 the last token are masked

    The matrices are separate for each head, or shared by heads, also by keys and values, or also by all layers of a
    stack. Positions count from the first token after left padding. Time and memory are linear in the length.
    """

    paper = 'Linformer, arXiv:2006.04768'
    linformer_k = flag(None, 'number k of slots that replace keys and values (Linformer)', size | none, example=8)
    linformer_max_len = flag(None, 'maximum length of the sequence, in tokens', size | none, example=24)
    linformer_share = flag(
        'none',
        "sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers)",
        one_of('none', 'headwise', 'kv', 'layerwise'),
        example='kv',
    )
    linformer_proj = flag(
        'linear', "projection to the slots: 'linear', 'mean', 'max' or 'conv'", one_of('linear', 'mean', 'max', 'conv'),
        example='conv',
    )  # fmt: skip
    call_inputs = {'linformer_table': Input('n k, the matrix shared by all layers')}
    stored_as = {'of_keys': 'lin_k', 'of_values': 'lin_v'}
    states = {'slots': OfContext()}
    handles = ('padding', 'past', 'context', 'elsewhere', 'dropout', 'groups')
    clashes = {
        'laser': 'sums of exponentials of values may be negative',
        'collab_heads': 'its slots are computed per head, but all heads share one key projection',
        'l2_distance': NOT_ADDED,
        **dict.fromkeys(('max_attend_past', 'max_attend_future', 'flash_pack_seq'), OF_ALL),
        **dict.fromkeys(('num_mem_kv', 'add_zero_kv'), 'its keys must be the tokens'),
        **dict.fromkeys(('shaw_rel_pos', 'disentangled', 'data_dependent_alibi', 'use_rel_proj_pos_bias'), NOT_ADDED),
    }
    refuses = {
        'documents': 'its slots are sums over all tokens of a sequence',
        'some tokens': '',
        **dict.fromkeys(('rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb'), TURNED),
        **dict.fromkeys(
            ('alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias', 'shaw_rel_pos', 'xl_rel_pos'), NOT_ADDED
        ),
        'residual_attn': 'it forms no scores for the next layer',
        'cross_residual_attn': 'it forms no scores for the next layer',
    }

    def setup(self, owner: Any) -> None:
        if owner.causal:
            raise ConfigError(
                f'`linformer_k` cannot be combined with `causal`: {OF_ALL}. In '
                'cross-attention alone it is written `cross_attn_linformer_k`'
            )
        if self.linformer_max_len is None:
            raise ConfigError('`linformer_k` needs `linformer_max_len`: a slot is a sum over places')
        k, most = self.linformer_k, self.linformer_max_len
        if k > most:
            raise ConfigError(f'`linformer_k` must be at most `linformer_max_len`, {most}, got {k}')
        self.learns, self.stride = self.linformer_proj in ('linear', 'conv'), math.ceil(most / k)
        share, shape = self.linformer_share, owner.shape
        if share != 'none' and not self.learns:
            warn_once(f'`linformer_share` has no effect with `linformer_proj={self.linformer_proj!r}`')
        if share == 'layerwise' or not self.learns:
            return
        heads = shape.kv_heads if share == 'none' else 1
        self.of_keys = self.new(heads, owner.dim_key)
        if share == 'kv' and self.linformer_proj == 'conv' and owner.dim_key != shape.dim_value:
            raise ConfigError(SAME_WIDTH)
        if share != 'kv':
            self.of_values = self.new(heads, shape.dim_value)

    def new(self, heads: int, width: int) -> nn.Module | nn.Parameter:
        if self.linformer_proj == 'linear':
            return matrix(heads, self.linformer_max_len, self.linformer_k)
        return convolution(heads * width, self.stride)

    def unsupported(self, call: Any) -> str | None:
        for name in ('rotary_pos_emb', 'polar_pos_emb'):
            if call.inputs.get(name) is not None:
                return f'`{name}`: {TURNED}'
        if call.memories or (call.past is not None and call.context is None):
            return ('`mems`' if call.memories else '`cache`') + f': {OF_ALL}'
        return super().unsupported(call)

    def qkv_inputs(self, views: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Sum what keys and values are projected from to slots, where that is less work:  E^T (x W) = (E^T x) W"""
        call.ctx(self).ready = ready = self.commutes(views, call)
        if not ready:
            return views
        of_keys, of_values = (own.reshape(own.shape[-2:]) for own in self.matrices(call))
        return views[0], sum_slots(views[1], of_keys), sum_slots(views[2], of_values)

    def commutes(self, views: tuple[Tensor, Tensor, Tensor], call: Any) -> bool:
        """Return True if nobody but this feature sees keys and values between the projections and the slots."""
        owner, (_, n, width), k = self.owner, views[1].shape, self.linformer_k
        one_matrix = self.linformer_proj == 'linear' and (self.linformer_share != 'none' or owner.kv_heads == 1)
        ends = not call.keeps and call.past is None and call.unmasked and not is_exporting()
        plainly = all(is_plainly(to, nn.Linear) and to.bias is None for to in (owner.to_k, owner.to_v))
        if not (one_matrix and ends and plainly and views[1].shape == views[2].shape) or self.others(call):
            return False
        made = owner.to_k.out_features + owner.to_v.out_features
        pays = n * k * 2 * width + k * width * made < n * width * made + n * k * made
        return pays and n <= self.linformer_max_len and not is_of_others(owner)

    def others(self, call: Any) -> bool:
        """Return True if other features of the attention act in a call."""
        given = [name for name, value in call.inputs.items() if value is not None]
        features = [feature for feature in self.owner.features.active if feature is not self]
        return any(not feature.waits or any(name in feature.call_inputs for name in given) for feature in features)

    def update_cache(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values; of a context only the number of tokens, as vectors of no width, beside its slots."""
        if call.context is None:
            return call.append_past(k, v)
        rows, _ = call.append_past(k[..., :0], None)
        return (k, v) if call.past is None else (rows, rows)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        across, held = call.context is not None, None
        if across and call.past is not None:
            held = call.state('slots').value
        if call.ctx(self).ready:
            held = k, v, torch.ones(k.shape[0], 1, 1, k.shape[2], dtype=torch.bool, device=k.device)
        k, v, seen = self.slots(k, v, call) if held is None else held
        if across and (call.keeps or call.past is not None):
            call.state('slots').keep([k, v, seen])
        k, v = (tile_heads(t, q.shape[1]) for t in (k, v))
        any_seen = seen.any(dim=-1, keepdim=True)
        # With a learned matrix and without masks, each slot holds a token.
        filled = not call.masks and self.linformer_proj == 'linear' and call.keys > 0
        mask = None if filled else seen | ~any_seen
        width = q.shape[-1], v.shape[-1]
        q, k, v = (F.pad(t, (0, max(width) - t.shape[-1])) for t in (q, k, v)) if width[0] != width[1] else (q, k, v)
        out = differentiable_sdpa(q, k, v, attn_mask=mask, dropout_p=call.dropout, scale=float(call.scale))
        out = out[..., : width[1]]
        return (out if mask is None else out.masked_fill(~any_seen, 0.0)), None

    def slots(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slots of keys and values (b h n d), and which of them hold a token (b 1 1 k)."""
        n = k.shape[-2]
        if n > self.linformer_max_len:
            raise ValueError(f'`linformer_max_len={self.linformer_max_len}`: there are {n} keys')
        masks = [call.expand_term(term, True) for term in call.masks if term.of_keys]
        seen = functools.reduce(torch.logical_and, masks).mT if masks else None  # b 1 n 1
        if seen is not None and n > 0:
            # places count from the first real token
            first = seen.to(torch.uint8).argmax(dim=-2).flatten(1)
            order = (torch.arange(n, device=k.device) + first) % n
            order = order.expand(k.shape[0], -1)
            k, v, seen = (gather_along(t, order, -2) for t in (k, v, seen.expand(k.shape[0], -1, -1, -1)))
        kept = torch.ones(k.shape[0], 1, n, 1, dtype=torch.bool, device=k.device) if seen is None else seen
        if not self.learns:
            known = seen is None or n == 0
            return self.pool_slots(k, v, kept, n if known else n - kept.flip(-2).to(torch.uint8).argmax(dim=-2))
        of_keys, of_values = self.matrices(call)
        if self.linformer_proj == 'linear':
            there = kept.any(dim=-2, keepdim=True).expand(-1, -1, -1, self.linformer_k)
        else:
            there = split_chunks(kept.float(), self.stride).amax(dim=-2).mT > 0  # n may be 0
        k, v = (self.projected_rows(t, seen, own) for t, own in ((k, of_keys), (v, of_values)))
        return k, v, there

    def pool_slots(self, k: Tensor, v: Tensor, seen: Tensor, lengths: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return means or largest numbers (b h k d) of the shares of rows, up to a length or one of each (b 1 1)."""
        n, slots = k.shape[-2], self.linformer_k
        number = torch.arange(slots, device=k.device)
        start, stop = number * lengths // slots, -((number + 1) * -lengths // slots)  # rounded down, and up
        at = start.unsqueeze(-1) + torch.arange((n + slots - 1) // slots + 1, device=k.device)
        at = torch.where(at < stop.unsqueeze(-1), at, n)  # a filler behind all places
        at = at if at.ndim == 2 else at.squeeze(1)
        low = torch.finfo(k.dtype).min if self.linformer_proj == 'max' else 0.0

        def shares(t: Tensor, filler: float) -> Tensor:
            t = F.pad(t, (0, 0, 0, 1), value=filler)
            return gather_along(t, at.flatten(-2), -2).unflatten(-2, at.shape[-2:])  # b h k places d

        count = shares(seen.to(at_least_float(k.dtype)), 0.0).sum(dim=-2)
        k, v = (shares(t.masked_fill(~seen, low), low) for t in (k, v))
        if self.linformer_proj == 'max':
            k, v = (t.amax(dim=-2).masked_fill(count == 0, 0.0) for t in (k, v))
        else:
            k, v = ((to_float(t).sum(dim=-2) / count.clamp(min=1)).to(t.dtype) for t in (k, v))
        return k, v, count.mT > 0

    def matrices(self, call: Any) -> tuple[Tensor, Tensor]:
        if self.linformer_share == 'layerwise':
            table = call.inputs.get('linformer_table')
            if table is None:
                raise ValueError('`linformer_table` is missing: a stack gives it, a layer alone needs a matrix')
            return table, table
        both: Any = self.of_keys, self.of_keys if self.linformer_share == 'kv' else self.of_values
        of_keys, of_values = both if self.linformer_proj == 'linear' else (conv.weight.squeeze(1) for conv in both)
        return of_keys, of_values

    def projected_rows(self, t: Tensor, seen: Tensor | None, own: Tensor) -> Tensor:
        """Project rows b h n d to slots b h k d."""
        t = t if seen is None else t.masked_fill(~seen, 0.0)
        if self.linformer_proj == 'linear':
            # A part of a tensor is in one piece or not, which an exported program would ask.
            n = t.shape[-2]
            own = own.index_select(-2, torch.arange(n, device=own.device)) if is_exporting() else own[..., :n, :]
            if own.ndim == 3 and len(own) > 1:
                return torch.einsum('hnk,bhnd->bhkd', own, t)
            rows = sum_slots(t.transpose(1, 2).flatten(2), own.reshape(own.shape[-2:]))
            return rows.unflatten(-1, (t.shape[1], -1)).transpose(1, 2)
        weights = own.unflatten(0, (-1, t.shape[-1])).mT  # of heads, or one for all: h stride d
        return (split_chunks(t, self.stride) * weights.unsqueeze(1)).sum(dim=-2)


def sum_slots(rows: Tensor, own: Tensor) -> Tensor:
    """Sum rows (b n d) to slots (b k d), by the first rows of a matrix (n k)."""
    return torch.einsum('nk,bnd->bkd', own[: rows.shape[1]], rows)


SAME_WIDTH = '`linformer_share` of keys and values needs `value_dim_head` to be the width of keys: they share weights'


def matrix(*shape: int) -> nn.Parameter:
    """Draw matrices (... n k) of variance 1 / n, so that slots have the variance of the tokens."""
    return nn.Parameter(torch.randn(shape) * shape[-2] ** -0.5)


def convolution(channels: int, stride: int) -> nn.Conv1d:
    """Build a depthwise convolution whose kernel is as long as its stride."""
    conv = nn.Conv1d(channels, channels, stride, stride, groups=channels, bias=False)
    nn.init.normal_(conv.weight, std=stride**-0.5)
    return conv


class SlotsOfLayers(StackFeature):
    """The projection to slots that all layers of a kind share."""

    paper = Slots.paper
    stored_as = {'of_a': 'lin_k', 'of_c': 'cross_lin_k'}
    enabled_by = ('linformer_share',)

    def setup(self, owner: Any) -> None:
        self.kinds: list[str] = []
        for kind in 'ac':
            layers = [owner.flags_for(kind, number) for number in range(owner.layer_types.count(kind))]
            names = ('linformer_k', 'linformer_max_len', 'linformer_share', 'linformer_proj')
            own = {tuple(layer.get(name) for name in names) for layer in layers}
            shared = [
                one for one in own if one[0] is not None and one[2] == 'layerwise' and one[3] not in ('mean', 'max')
            ]
            if not shared:
                continue
            if len(own) > 1:
                raise ConfigError("`linformer_share='layerwise'` got other values for some layers: all share a matrix")
            k, most, _, proj = shared[0]
            if most is None:
                continue  # the layers refuse it
            self.kinds.append(kind)
            width = layers[0].get('dim_head', 64)
            if proj == 'conv' and (layers[0].get('value_dim_head') or width) != width:
                raise ConfigError(SAME_WIDTH)
            made = matrix(most, k) if proj != 'conv' else convolution(width, math.ceil(most / k))
            setattr(self, f'of_{kind}', made)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        for kind in self.kinds:
            own = getattr(self, f'of_{kind}')
            call.shared[kind]['linformer_table'] = own if isinstance(own, Tensor) else own.weight.squeeze(1)
        return x

"""Reading attention: where each head looks, what reaches a token through all layers, and pictures of both.

from x_transformers import attention_maps

report = attention_maps.head_report(net, ids, separator=2)
print(report)                                     # a row for each head
attention_maps.rollout(net, ids)                  # b n n
attention_maps.picture(net, ids).savefig('heads.png')
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_ids
from x_transformers.core.files import import_optional
from x_transformers.core.modes import promote_dtypes, widen_dtype
from x_transformers.flags import format_value, is_int
from x_transformers.generation.engine import eval_modules

__all__ = ['HeadReport', 'head_report', 'maps_of', 'picture', 'rollout']

MEASURES = ('distance', 'previous', 'following', 'itself', 'first', 'separator', 'front', 'entropy')
OF_ONE_SEQUENCE = ('distance', 'previous', 'following', 'itself')


@dataclass(frozen=True)
class HeadReport:
    """Of each head of each attention, in the order in which these run, a mean over all real tokens (l h):

    kinds       'a' for self-attention, 'c' for cross-attention
    distance    tokens between a query and what it sees
    previous, following, itself   weight on that token, over queries that have one
    first       weight on the first token
    separator   weight on tokens of that id, over rows that have one
    front       weight on keys in front of the sequence, such as memory tokens
    entropy     of the weights, in nats

    What has no meaning, as distances to a context, is nan.
    """

    kinds: tuple[str, ...]
    distance: Tensor
    previous: Tensor
    following: Tensor
    itself: Tensor
    first: Tensor
    separator: Tensor
    front: Tensor
    entropy: Tensor

    def __str__(self) -> str:
        lines = [' '.join(['layer', 'head', 'kind', *(f'{name:>9}' for name in MEASURES)])]
        for at, kind in enumerate(self.kinds):
            for head in range(self.entropy.shape[1]):
                cells = (f'{getattr(self, name)[at, head].item():9.3f}' for name in MEASURES)
                lines.append(' '.join([f'{at:5}', f'{head:4}', f'{kind:>4}', *cells]))
        return '\n'.join(lines)


def maps_of(net: nn.Module, ids: Tensor, **inputs: Any) -> Iterator[tuple[str, Tensor]]:
    """Return the kind of each attention of a net, and its weights (b h i j), computed one layer at a time.

    raises   ValueError for attention that forms no weights
    """
    with eval_modules(list(net.modules())):
        _, trace = net(ids, return_intermediates=True, **inputs)
        for attention in trace.attn_intermediates:
            yield attention.layer_type, attention.post_softmax_attn
            attention.maps = [None, None, None]  # let go of them


def mean_over(values: Tensor, which: Tensor) -> Tensor:
    """Return the mean of values (b h i) over the queries that are named (b i); nan without any:  h"""
    which = which.unsqueeze(1).to(values.dtype)
    return (values * which).sum(dim=(0, 2)) / which.sum()


def head_report(
    net: nn.Module, ids: Tensor, separator: int | None = None, mask: Tensor | None = None, **inputs: Any
) -> HeadReport:
    """Measure where the heads of a net attend, over a batch of ids (b n).

    separator   id of a token that heads may wait at
    mask        b n   True for real tokens; others count nowhere
    inputs            further ones of the net
    raises            ValueError or TypeError for attention without weights, or inputs of another kind
    """
    ids = check_ids(ids, 'ids', least=1)
    if separator is not None and not is_int(separator):
        raise TypeError(f'`separator` must be a token id or None, got {format_value(separator)}')
    token_mask = as_mask(mask, 'mask', *ids.shape, like=ids)
    given = {} if token_mask is None else {'mask': token_mask}
    token_mask = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
    kinds, rows = [], []
    for kind, weights in maps_of(net, ids, **given, **inputs):
        kinds.append(kind)
        rows.append(measure_heads(weights, kind, ids, token_mask, separator))
    tables = {name: torch.stack([row[name] for row in rows]) for name in MEASURES}
    return HeadReport(tuple(kinds), **tables)


def measure_heads(weights: Tensor, kind: str, ids: Tensor, real: Tensor, separator: int | None) -> dict[str, Tensor]:
    """Return the measures of one attention, each (h)."""
    n = ids.shape[1]
    weights = widen_dtype(weights[..., weights.shape[-2] - n :, :])
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1)
    found = {'entropy': mean_over(entropy, real)}
    nothing = torch.full_like(found['entropy'], torch.nan)
    found |= dict.fromkeys((*OF_ONE_SEQUENCE, 'first', 'separator', 'front'), nothing)
    if kind != 'a':
        return found
    ahead = weights.shape[-1] - n
    own = weights[..., ahead:]
    place = torch.arange(n, device=ids.device)
    apart = (place.unsqueeze(-1) - place).abs().to(own.dtype)
    found['front'] = mean_over(weights[..., :ahead].sum(dim=-1), real)
    found['distance'] = mean_over((own * apart).sum(dim=-1), real)
    found['itself'] = mean_over(own.diagonal(dim1=-2, dim2=-1), real)
    first = real & (real.long().cumsum(dim=-1) == 1)  # the first real token of each sequence
    found['first'] = mean_over((own * first.unsqueeze(1).unsqueeze(1)).sum(dim=-1), real)
    neighbours = real[:, 1:] & real[:, :-1]
    if n > 1:
        found['previous'] = mean_over(own.diagonal(-1, -2, -1), neighbours)
        found['following'] = mean_over(own.diagonal(1, -2, -1), neighbours)
    if separator is not None:
        marked = (ids == separator) & real
        at = (own * marked.unsqueeze(1).unsqueeze(1)).sum(dim=-1)
        found['separator'] = mean_over(at, real & marked.any(dim=-1, keepdim=True))
    return found


def rollout(net: nn.Module, ids: Tensor, mask: Tensor | None = None, **inputs: Any) -> Tensor:
    """Return how much of each token reaches another one through all layers:  b n n, rows sum to 1

        prod of (A_l + I) / 2, from the first layer to the last, A_l the mean over heads

    What heads see in front of the sequence is left out, and rows summed to 1 again; rows and columns of tokens that
    `mask` hides are 0.

    raises   ValueError for a net with cross-attention, or attention without weights

    Abnar & Zuidema 2020, arXiv:2005.00928
    """
    ids = check_ids(ids, 'ids', least=1)
    token_mask = as_mask(mask, 'mask', *ids.shape, like=ids)
    given = {} if token_mask is None else {'mask': token_mask}
    n = ids.shape[1]
    total = torch.eye(n, device=ids.device, dtype=promote_dtypes(ids.device)).expand(ids.shape[0], -1, -1)
    shown_of = total if token_mask is None else total * token_mask.unsqueeze(-1)
    total = shown_of
    for kind, weights in maps_of(net, ids, **given, **inputs):
        if kind != 'a':
            raise ValueError('`rollout` is of one sequence, the net has cross-attention')
        mean = widen_dtype(weights).mean(dim=1)[:, -n:, -n:]
        if token_mask is not None:
            mean = mean * (token_mask.unsqueeze(-1) & token_mask.unsqueeze(-2))
        step = mean / mean.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
        # a query that sees nothing of the sequence keeps what it has
        step = torch.where(mean.sum(dim=-1, keepdim=True) > 0, (step + shown_of) / 2, shown_of)
        total = step @ total
    return total


def picture(
    net: nn.Module, ids: Tensor, words: Sequence[str] | None = None, row: int = 0, rolled: bool = False, **inputs: Any
) -> Any:
    """Draw a figure of matplotlib: the weights of every head for one row of ids (b n), or the rollout of all layers.

    words    what stands at the axes, one for each token; none if None
    rolled   the rollout instead
    raises   ImportError without matplotlib, ValueError for a row that is not there
    """
    ids = check_ids(ids, 'ids', least=1)
    if not is_int(row) or not 0 <= row < len(ids):
        raise ValueError(f'`row` must be one of the {len(ids)} rows, got {format_value(row)}')
    if words is not None and len(words) != ids.shape[1]:
        raise ValueError(f'`words` got {len(words)}, there are {ids.shape[1]} tokens')
    figure_of = import_optional('matplotlib.figure', 'a picture of attention', 'plot').Figure
    several = [('all layers', [rollout(net, ids, **inputs)[row]])] if rolled else [
        (f'{kind} {at}', [*weights[row]]) for at, (kind, weights) in enumerate(maps_of(net, ids, **inputs))
    ]  # fmt: skip
    columns = max(len(maps) for _, maps in several)
    figure = figure_of(figsize=(1.6 * columns + 0.6, 1.6 * len(several) + 0.4), layout='constrained')
    axes = figure.subplots(len(several), columns, squeeze=False)
    for line, (title, maps) in zip(axes, several, strict=True):
        for at, axis in enumerate(line):
            axis.set_visible(at < len(maps))
            if at >= len(maps):
                continue
            axis.imshow(maps[at].cpu().float().numpy(), vmin=0.0, vmax=1.0, cmap='viridis', aspect='auto')
            axis.set_title(title if rolled else f'{title}, head {at}', fontsize=7)
            label_axes(axis, words, maps[at].shape)
    return figure


def label_axes(axis: Any, words: Sequence[str] | None, shape: Sequence[int]) -> None:
    if words is None or shape[0] != len(words):
        axis.set_xticks([])
        axis.set_yticks([])
        return
    axis.set_yticks(range(len(words)), words, fontsize=5)
    ahead = [''] * (shape[1] - len(words))
    if shape[1] >= len(words):
        axis.set_xticks(range(shape[1]), [*ahead, *words], fontsize=5, rotation=90)

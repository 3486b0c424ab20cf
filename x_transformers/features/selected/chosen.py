"""Base class of attention to chosen keys: positions, queries in parts, and block summaries in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core import rows as blocks
from x_transformers.core.modes import is_transformed, to_float
from x_transformers.core.recompute import ModuleSnapshot, identity, recompute
from x_transformers.features.documents import TellsDocuments, positions_within
from x_transformers.features.levels import AttentionFeature, visible_keys
from x_transformers.features.selected.kernel import BlockGrid
from x_transformers.flags import ConfigError
from x_transformers.kernels.dense import dot_product, lowest_value, softmax
from x_transformers.patterns.base import ceil_div
from x_transformers.patterns.engine.attention import FEW_QUERIES, get_scores, skip_queries
from x_transformers.patterns.engine.placement import Placement

NO_SCORES = 'it computes no scores of all keys for the next layer'
Run = Callable[..., tuple[Tensor, ...]]


class ChosenKeys(AttentionFeature):
    """Causal attention in which each query chooses the keys that it attends to, by their content.

    Blocks are counted from the first token after left padding, and in each of several documents from its first token.
    """

    refuses = {
        'cross-attention': 'queries choose among the tokens before them',
        **dict.fromkeys(('residual_attn', 'cross_residual_attn'), NO_SCORES),
        'two_stream': 'queries choose among the tokens before them, also those that are still to be predicted',
    }
    handles = ('causal', 'masks', 'padding', 'documents', 'biases', 'keys', 'past', 'elsewhere', 'dropout')
    no_memories: ClassVar[str] = 'its blocks are counted from where a sequence begins'
    clashes: ClassVar[dict[str, str]] = {'flash_pack_seq': 'use `document_ids` instead'}

    def setup(self, owner: Any) -> None:
        if not owner.causal:
            raise ConfigError(f'`{self.display_name}` needs `causal`: {self.reason("cross-attention")}')

    def unsupported(self, call: Any) -> str | None:
        if call.context is not None or not call.causal:
            return f'{"`causal=False`" if call.context is None else "`context`"}: {self.reason("cross-attention")}'
        if call.memories:
            return f'`mems`: {self.no_memories}'
        return super().unsupported(call)

    # positions

    @staticmethod
    def find_begins(call: Any) -> Tensor:
        """Return the index of the first token of each sequence, (b|1, 1), or of the document of each key, (b|1, j)."""
        ids = getattr(call.ctx(TellsDocuments), 'ids', None)
        if ids is not None:
            ids = ids if ids.ndim == 2 else ids[None]
            return torch.arange(call.keys, device=ids.device) - positions_within(ids)
        index = call.inputs.get('index')
        pads = None if index is None else -index[:, 0]
        offset = Placement.among(call.keys, None, pads, call.token_mask, call.summed).offset
        return torch.zeros(1, 1, dtype=torch.long, device=call.x.device) if offset is None else offset.unsqueeze(-1)

    @staticmethod
    def find_queries(begin: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """Return the index of each query among the keys, and that of the first token of its sequence: (b|1, i)."""
        at = call.of_queries(torch.arange(call.keys, device=begin.device))
        begin = begin if begin.shape[-1] == 1 else call.of_queries(begin)
        at, begin = torch.broadcast_tensors(at if at.ndim == 2 else at[None], begin)
        return at, begin

    @staticmethod
    def takes_each(call: Any) -> bool:
        """Return True if each query gathers its own keys: there are few, or they are not the last tokens."""
        few = not torch.compiler.is_compiling() and call.q_len <= FEW_QUERIES
        return call.q_len == 1 or few or call.token_idx is not None

    # parts

    @staticmethod
    def run_in_parts(
        run: Run, call: Any, width: int, rows: Sequence[Tensor], keys: Sequence[Tensor], by_head: bool = True
    ) -> list[Tensor]:
        """Run a function on some queries at a time, and some heads if `by_head`, with `width` scores per query.

        Args:
            run: Function of the tensors of a part, its queries `at` and scores `own`. It returns (b, h, i, d) each.
            rows: Tensors (b, h, i, d), the queries first.
            keys: Tensors (b, h, j, d). One head stands for all.

        Each part is computed again in the backward pass.
        """
        q, own = rows[0], get_scores(call, call.masks)
        width = max(q.shape[0] * width, 1)
        (_, heads, count), most = q.shape[:3], 2 * blocks.LARGE.get(q.device.type, blocks.LARGE['cuda'])
        some = max(min(most // max(count * width, 1), heads), 1) if by_head else heads
        height = max(blocks.block_size(q, width), most // width)
        if torch.compiler.is_compiling():
            some, height = heads, blocks.block_size(q, 1)
        if ceil_div(heads, some) * ceil_div(count, height) == 1 or is_transformed():
            return list(run(*rows, *keys, at=slice(0, count), own=own))

        def step(_: Any, start: int, first: int, *tensors: Tensor) -> tuple[Tensor, ...]:
            at = slice(start, start + tensors[0].shape[2])
            numbers = torch.arange(first, first + tensors[0].shape[1], device=q.device)
            part = dataclasses.replace(skip_queries(own, start, 0), heads=numbers)
            return run(*tensors, at=at, own=part)

        kept = None if torch.compiler.is_compiling() else ModuleSnapshot()
        outs = []
        for first in range(0, heads, some):
            own_heads = [t if t.shape[1] == 1 or not by_head else t[:, first : first + some] for t in (*rows, *keys)]
            found, start = [], 0
            for parts in zip(*(t.split(height, dim=2) for t in own_heads[: len(rows)]), strict=True):
                tensors = (*parts, *own_heads[len(rows) :])
                if torch.is_grad_enabled():
                    found.append(recompute(step, start, first, *tensors, kept=kept, reads=call.reads()))
                else:
                    found.append(step(identity, start, first, *tensors))
                start += height
            outs.append([torch.cat(each, dim=2) for each in zip(*found, strict=True)])
        return [torch.cat(each, dim=1) for each in zip(*outs, strict=True)]

    # summaries of blocks

    def summarize(
        self, name: str, grid: BlockGrid, begin: Tensor, call: Any, vectors: Tensor, make: Callable[..., Tensor]
    ) -> Tensor:
        """Return one vector per block, (b h m d), made from the vectors (b h j d) of its keys.

        With a cache, only blocks of new keys are computed. The vectors of earlier blocks are in the state `name`: a
        token stores a share of 1 / stride of the vector of the block that was complete when its own stride began.
        """
        if not (call.keeps or call.past is not None) or any(f.keeps_unrotated_keys for f in self.owner.features.active):
            return make(grid.gather(vectors), gather_key_mask(grid, call, vectors.shape[2]))
        handle, (size, stride), keys = call.state(name), grid[:2], vectors.shape[2]
        held = None if handle.past is None else handle.vectors
        new = keys if held is None else keys - held.shape[2]
        tail = min(keys, new + size + stride)
        recent = BlockGrid.of(begin - (keys - tail), tail, size, stride)
        made = make(recent.gather(vectors[:, :, keys - tail :]), gather_key_mask(recent, call, tail))
        width, dim = ceil_div(made.shape[-1], stride), made.shape[-1]
        place = torch.arange(keys - new, keys, device=begin.device) - begin[:, :1]  # (b|1, n), in its sequence
        if recent.last.shape[-1]:
            index = place // stride - size // stride - recent.number[:, :1]
            known = (place >= size) & (index >= 0) & (index < recent.last.shape[-1])
            index = index.clamp(0, recent.last.shape[-1] - 1) * stride + place % stride
            shares = F.pad(made, (0, stride * width - dim)).unflatten(-1, (stride, width)).flatten(2, 3)
            shares = gather_along_tokens(shares, index).masked_fill(~known[:, None, :, None], 0.0)
        else:
            shares = made.new_zeros(*made.shape[:2], new, width)
        if held is None:
            handle.begin(shares)
            return made
        shares = handle.append(shares)
        behind = grid.last.unsqueeze(-1) + torch.arange(1, stride + 1, device=begin.device)  # (b|1, m, stride)
        found = gather_along_tokens(shares, behind.clamp(max=keys - 1).flatten(1))
        found = found.unflatten(2, (-1, stride)).flatten(3)[..., :dim]
        index = torch.where(recent.last < tail, recent.number, grid.last.shape[-1])[:, None, :, None]
        found = F.pad(found, (0, 0, 0, 1)).scatter(2, index.expand(*made.shape[:2], -1, dim), made)
        return found[:, :, :-1]

    # attention maps

    def maps(self, q: Tensor, k: Tensor, call: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, logits and weights of all pairs, as other features return them."""
        added = call.total_keys - call.keys
        seen = F.pad(self.find_visible(q, k[:, :, added:], call), (added, 0), value=True)
        call = call.combine()
        sim = to_float(dot_product(q, k, call))
        logits = sim if call.bias is None else sim + call.bias.to(sim.dtype)
        visible = call.visible()
        seen = seen if visible is None else seen & visible
        logits = logits.masked_fill(~seen, lowest_value(logits))
        return sim, logits, softmax(logits).to(q.dtype).masked_fill(~seen, 0.0)

    def find_visible(self, q: Tensor, k: Tensor, call: Any) -> Tensor:
        """Return which keys each query has chosen, (b|1, h|1, i, j)."""
        raise NotImplementedError


def gather_along_tokens(t: Tensor, index: Tensor) -> Tensor:
    """Gather vectors (b h j d) at (b|1, n)."""
    if len(index) == 1:
        return t.index_select(2, index[0])
    return t.gather(2, index[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))


def gather_key_mask(grid: BlockGrid, call: Any, keys: int) -> Tensor | None:
    """Return which keys of each block, among the last `keys`, are real tokens: (b, 1, m, s, 1). None if all are."""
    seen = visible_keys(call)
    return None if seen is None else grid.gather(seen[..., seen.shape[-1] - keys :].mT)


def find_attended(choice: Tensor, grid: BlockGrid, keys: int) -> Tensor:
    """Return which keys are in the chosen blocks (b h i c):  b h i j."""
    blocks = grid.last.shape[-1]
    chosen = torch.zeros(*choice.shape[:3], blocks + 1, dtype=torch.bool, device=choice.device)
    chosen = chosen.scatter(-1, torch.where(choice < 0, blocks, choice), True)[..., :blocks]
    place = torch.arange(keys, device=choice.device)
    inside = (grid.first.unsqueeze(-1) <= place) & (place <= grid.last.unsqueeze(-1))  # (b|1, m, j)
    return (chosen.float() @ inside.unsqueeze(1).float()) > 0

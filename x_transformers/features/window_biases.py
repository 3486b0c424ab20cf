"""Bias of the distance between two pixels, by a small network (Swin Transformer V2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import Check, ConfigError, flag, is_int, size
from x_transformers.patterns import Windows2D, as_pattern

a_window = Check(
    'a pair of integers of at least 2',
    lambda v: isinstance(v, (tuple, list)) and len(v) == 2 and all(is_int(side) and side >= 2 for side in v),
    'tuple[int, int]',
)


class LogContinuousBias(AttentionFeature):
    """Add a bias that a small network computes from the distance of two pixels in rows and columns, on a log scale.

        B = 16 sigmoid(W_2 relu(W_1 t + b_1)),   t = sign(D) log2(1 + |D|) / log2(8),   D = 8 (query - key) / (m - 1)

    Tokens are the pixels of an image in raster order: that of the pattern `Windows2D`, if there is one, otherwise a
    window of `log_cpb_window`. A model trained at windows m and used at larger ones keeps this m. Pixels farther apart
    than two of a window have the bias of the largest distance.
    """

    paper = 'Swin Transformer V2, arXiv:2111.09883'
    log_cpb = flag(False, 'add a bias computed from the distance of pixels in rows and columns, on a log scale')
    log_cpb_window = flag((8, 8), 'rows and columns m of a window in training', a_window, example=(3, 2))
    log_cpb_hidden = flag(512, 'inner width of its network', size, example=6)
    stored_as = {'net': 'log_cpb'}
    tp_shards = {'net.2.weight': (0, 'heads')}
    refuses = {
        'cross-attention': 'its positions are those of one image',
        'documents': 'a row is one image',
        'cache': 'an image is whole',
        'causal': 'it is for images, whose pixels attend to each other',
    }

    net: Any

    def setup(self, owner: Any) -> None:
        self.net = nn.Sequential(
            nn.Linear(2, self.log_cpb_hidden), nn.ReLU(), nn.Linear(self.log_cpb_hidden, owner.query_heads, bias=False)
        )
        for linear in (self.net[0], self.net[2]):
            nn.init.normal_(linear.weight, std=0.02)
        found = next((f.sparse_pattern for f in owner.features.active if 'sparse_pattern' in f.flags), None)
        pattern: Any = None if found is None else as_pattern(found)
        if pattern is not None and not isinstance(pattern, Windows2D):
            raise ConfigError(f'`log_cpb` cannot be combined with {pattern}: it needs windows of an image, Windows2D')
        self.sides = tuple(self.log_cpb_window) if pattern is None else (pattern.window, pattern.window)
        self.width = self.log_cpb_window[1] if pattern is None else pattern.image[1]

    def table(self, device: torch.device) -> Tensor:
        """Return the bias of all distances of windows with these sides, (h, (2 rows - 1) (2 columns - 1))."""
        axes = [torch.arange(1 - side, side, device=device, dtype=torch.float32) for side in self.sides]
        apart = [8 * axis / (m - 1) for axis, m in zip(axes, self.log_cpb_window, strict=True)]
        t = torch.stack(torch.meshgrid(*apart, indexing='ij'), dim=-1).to(to_float(self.net[0].weight).dtype)
        t = t.sign() * torch.log2(1 + t.abs()) / math.log2(8)
        return 16 * to_float(self.net(t.to(self.net[0].weight.dtype))).sigmoid().flatten(0, 1).T

    def find(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the index into the table of queries and keys at these places, which broadcast."""
        (rows, columns), width = self.sides, self.width
        row, column = q // width - k // width, q % width - k % width
        row, column = row.clamp(1 - rows, rows - 1), column.clamp(1 - columns, columns - 1)
        return (row + rows - 1) * (2 * columns - 1) + column + columns - 1

    def bias(self, call: Any) -> BlockwiseTerm:
        self.refuse_context(call)
        table, q_at, k_at = self.table(call.x.device), call.q_at, call.k_at

        def of(rows: slice, keys: slice) -> Tensor:
            found = table[:, self.find(q_at[..., rows].unsqueeze(-1), k_at[..., keys].unsqueeze(-2))]
            return found if found.ndim == 3 else found.transpose(0, 1)

        def entry() -> Pointwise:
            q, k = make_axis_lookup(q_at), make_axis_lookup(k_at)
            return lambda b, h, i, j: table[h, self.find(q(b, i), k(b, j))]

        return BlockwiseTerm(of, learns=True, entry=entry)

"""Windows that masks make, `attn_max_attend_past` and `_future`: a branch of neighbours, without a pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.rows import Rows
from x_transformers.kernels.patterns.engine import FEW, of_branches, scores_of
from x_transformers.kernels.patterns.flash import takes
from x_transformers.kernels.patterns.layouts import Grid
from x_transformers.patterns.branches import Branch, Span
from x_transformers.patterns.local import CHUNK

# Scores of a call, in numbers of chunks, from which on it pays to read the keys near each query alone.
LEAST = 2**20
# How many scores take the time of reading a key, where there are few queries to share it.
READS = 32


def band_of(call: Call) -> tuple[int, int, list[Rows]] | None:
    """How far back and ahead queries see, and the masks that say something else; None if there is no such limit."""
    bands = [mask for mask in call.masks if mask.band]
    past = [mask.reach for mask in bands if mask.reach is not None]
    ahead = [mask.reach_ahead for mask in bands if mask.reach_ahead is not None]
    if not past or not (ahead or call.causal):
        return None
    return min(past), 0 if call.causal else min(ahead), [mask for mask in call.masks if not mask.band]


def not_banded(call: Call) -> str | None:
    """What keeps a call from being computed this way."""
    found = band_of(call)
    if found is None or call.places is not None or call.context is not None:
        return 'its queries may see any key'
    if call.x.device.type != 'cpu' or torch.compiler.is_compiling():
        return 'it is for a CPU, and for no graph'
    if not all(term.by_entry for term in (*call.masks, *call.biases)):
        return 'a mask or bias without a form for one query and one key'
    scores = call.batch * call.heads * call.rows * call.keys
    reach, least = found[0] + found[1], LEAST // READS if call.rows <= FEW else LEAST
    return 'its keys are few' if call.keys < max(reach, reach // 2 + CHUNK) or scores < least else None


def in_band(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | None:
    """The output b h i d; None if this is not for its precision, or its dropout."""
    if not takes(q, k, v, call):
        return None
    band: Any = band_of(call)
    past, ahead, masks = band

    def near(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return (i - j <= past) & (j - i <= ahead)

    grid = Grid(call.keys, call.keys - call.rows, q.device)
    branch = Branch(Span(CHUNK, past, ahead), near, 1)
    return of_branches(q, k, v, call, (branch,), grid, scores_of(call, masks))[0]

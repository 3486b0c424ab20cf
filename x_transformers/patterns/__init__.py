"""Sparse attention patterns: the keys that each query attends to, as values of a config.

    Decoder(dim=512, depth=6, attn_sparse_pattern=Sliding(256) | Global(first=4))

    Sliding(window, dilation=1)            neighbors, with a dilation every d-th token
    BlockLocal(block)                      the query's block
    Local1D(query_block, memory)           the query's block, and some tokens before it (and after it)
    Strided(stride)                        tokens a multiple of the stride away
    Summary(stride, c, per_head=False)     the last c of every `stride` tokens, and the query
    Global(first=0, positions=(), mask)    tokens that attend to all and all attend to; Global('mask'): by `global_mask`
    Row(width), Column(width)              earlier pixels of the row or column, of an image in raster order
    Local2D(image, query_block, flange)    the query's tile of an image, and a flange around it
    Conv2D(image, kernel=11)               earlier pixels in a square around the query, in raster order
    Windows2D(image, window=8, shift=0)    the query's window of an image in raster order (Swin Transformer)
    BlockPermutation(blocks, shift)        the block that is `shift` blocks later, cyclically
    RandomBlocks(block, k, seed)           random blocks, for each block of queries
    BigBird(block, window_blocks, ...)     neighboring blocks, global blocks, random blocks
    p | q,  p & q                          union, intersection
    Behind(of, first)                      a pattern for the tokens from `first` on, such as an image after a text
    Mix(patterns, how, heads)              several in one layer: for some heads each, layer by layer, or their union

Positions are indices in the sequence, counted from its first real token. A causal stack also hides later keys. In
cross-attention only Global is supported, by `first` and `positions`.

Patterns are frozen dataclasses: functions of positions without parameters. A new one derives from `Pattern`, is
decorated with `@pattern`, and imported below. It defines

    visible(i, j, marks=None)   True where the query at i attends to the key at j, from two tensors of positions that
                            broadcast: the definition, with which all else must agree
    keys_bound(n, causal)   the largest number of n keys that a query attends to
    branches(n, causal)     how it is computed: `Branch`es (`branches.py`) with disjoint pairs of query and key, in
                            all the visible ones (that are not later, if causal); invisible pairs are hidden anyway
    period                  visible(i + period, j + period) = visible(i, j); 1 for differences, None if there is none

and if needed

    check()                 checks of its fields: `size_of`, `refuse`
    reach                   distance of the earliest key that a query attends to, None if it grows with the length
    of_length(n)            the pattern of a call of n positions, if it depends on the length
    of_layer(layer)         the pattern of the n-th layer of self-attention, if layers differ
    of_head(head, heads)    the pattern of one head, if heads differ
    size                    the length that it needs; of a causal stack the longest one
    looks_ahead             the reason why it cannot be used in a causal stack
    cannot_cache            the reason why it cannot be cached: it depends on the length of a call
    marked                  True if it needs `marks`, a function of positions: the tokens that `global_mask` marks
    drawn(heads, layer)     a table (h, ...) that `visible` depends on: it is stored with the weights and restored by
                            `stored(table)`; heads with one `any_head` are computed together, by `joined`

`tests/test_patterns.py` compares each with `visible`, by a line in its table. Names of patterns are in `NAMED`.
"""

from __future__ import annotations

from x_transformers.patterns.base import (
    NAMED,
    PATTERNS,
    Intersection,
    Mix,
    Pattern,
    Union,
    as_pattern,
    check_known,
    is_pattern,
    pattern,
)
from x_transformers.patterns.behind import Behind
from x_transformers.patterns.blocks import BigBird, BlockPermutation, RandomBlocks
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Listed, Reach
from x_transformers.patterns.images import Conv2D, Local2D, Windows2D, block_raster_order
from x_transformers.patterns.local import BlockLocal, Local1D, Row, Sliding
from x_transformers.patterns.strided import Column, Strided, Summary
from x_transformers.patterns.tokens import Global

# Names of these layouts in earlier releases.
Rows, Span = GatherRows, Reach

NAMED.update(
    sliding=Sliding(256),
    block_local=BlockLocal(128),
    local1d=Local1D(),
    strided=Strided(128),
    summary=Summary(128, 8),
    sparse_strided=Mix((Sliding(128), Strided(128))),
    sparse_fixed=Mix((BlockLocal(128), Summary(128, 8))),
    bigbird=BigBird(),
    blockwise=Mix((BlockPermutation(2, 0), BlockPermutation(2, 1))),
    longformer=Sliding(256) | Global('mask'),
)

__all__ = [
    'NAMED',
    'PATTERNS',
    'Behind',
    'BigBird',
    'BlockLocal',
    'BlockPermutation',
    'Branch',
    'Column',
    'Columns',
    'Conv2D',
    'GatherRows',
    'Global',
    'Intersection',
    'Listed',
    'Local1D',
    'Local2D',
    'Mix',
    'Pattern',
    'RandomBlocks',
    'Reach',
    'Row',
    'Rows',
    'Sliding',
    'Span',
    'Strided',
    'Summary',
    'Union',
    'Windows2D',
    'as_pattern',
    'block_raster_order',
    'check_known',
    'is_pattern',
    'pattern',
]

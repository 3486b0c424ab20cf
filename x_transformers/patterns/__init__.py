"""Sparse attention patterns: which keys each query attends to, as a value of a config.

    Decoder(dim=512, depth=6, attn_sparse_pattern=Sliding(256) | Global(first=4))

    Sliding(window, dilation=1)            neighbours; with a dilation every so many tokens
    BlockLocal(block)                      the own block
    Local1D(query_block, memory)           the own block, and so many tokens before it (and after it)
    Strided(stride)                        tokens a multiple of the stride away
    Summary(stride, c, per_head=False)     the last c of every `stride` tokens, and itself
    Global(first=0, positions=(), mask)    tokens that see all, and that all see; Global('mask'): as `global_mask` says
    Row(width), Column(width)              of an image in raster order, what came before in the own row or column
    Local2D(image, query_block, flange)    the own tile of an image, and a flange around it
    Conv2D(image, kernel=11)               what came before in a square around a pixel, in raster order
    BlockPermutation(blocks, shift)        of so many blocks that which is `shift` further on, around
    RandomBlocks(block, k, seed)           blocks at random, for each block of queries
    BigBird(block, window_blocks, ...)     neighbouring blocks, blocks that see all, blocks at random
    p | q,  p & q                          what either sees, what both see
    Behind(of, first)                      that of what stands behind the first tokens, such as an image behind a text
    Mix(patterns, how, heads)              several in one layer: for some heads each, layer by layer, or together

Positions are places in the sequence, counted from its first real token. A causal stack leaves out what is ahead. In
cross-attention, where queries and keys are of two sequences, Global alone has a meaning, by `first` and `positions`.

What belongs here: patterns as frozen dataclasses, functions of positions without parameters. A new one derives from
`Pattern`, is decorated with `@pattern`, stands in a file of its kind, and is imported below. It defines

    visible(i, j, marks=None)   whether the query at i sees the key at j: a bool tensor, from two tensors of positions
                            that broadcast. This is what it means; all else has to agree with it
    keys_bound(n, causal)   how many of n keys a query sees at most
    branches(n, causal)     how it is computed: `Branch`es (`branches.py`), which are given different pairs of query and
                            key, and together all that are visible (and not ahead, if causal); others are hidden anyway
    period                  visible(i + period, j + period) = visible(i, j); 1 for differences, None if there is none

and if it is so

    check()                 refuses values of fields: `size_of`, `refuse`
    reach                   how far back the first key is that it sees, None if that grows with the length
    of_length(n)            the pattern of a call of n positions, where its length counts
    of_layer(layer)         that of the n-th layer of self-attention, where they differ
    of_head(head, heads)    the pattern of one head, where they differ
    size                    the length that it needs, if it needs one; of a causal stack the longest one
    looks_ahead             why it is not for a causal stack, if it is not
    cannot_cache            why it is not for a cache, if it is not: the length of a call is part of it
    marked                  whether it asks for `marks`, a function of positions: which tokens `global_mask` marks
    drawn(heads, layer)     what decides `visible` beside positions, h ...: it is stored with the weights, and comes
                            back by `stored(table)`; `any_head` and `joined` say how heads are computed together

`tests/test_patterns.py` holds each to `visible`, by a line in its table. Strings stand for patterns in `NAMED`.
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
from x_transformers.patterns.images import Conv2D, Local2D, block_raster_order
from x_transformers.patterns.local import BlockLocal, Local1D, Row, Sliding
from x_transformers.patterns.strided import Column, Strided, Summary
from x_transformers.patterns.tokens import Global

# the names of these layouts in earlier releases
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
    'as_pattern',
    'block_raster_order',
    'check_known',
    'is_pattern',
    'pattern',
]

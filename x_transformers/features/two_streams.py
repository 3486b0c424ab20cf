"""Two-stream attention (XLNet): predict tokens in any order, with content and query streams."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import check_range, check_tensor
from x_transformers.core.own_modules import known_stack
from x_transformers.core.rows import BlockwiseTerm, Pointwise, gather_along, make_axis_lookup
from x_transformers.features.documents import DocumentsInStack, joined_by, refuse_joined
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.flags import ConfigError, Input, flag
from x_transformers.flags.checks import Maybe, get_tensor

PAPER = 'XLNet, arXiv:1906.08237'
INDICES = get_tensor('b n', floats=False)
AT = 'b k, indices of the tokens to predict; the last k entries of x are their queries'


class InOrder(AttentionFeature):
    """A query with rank i attends to keys whose rank is at most i. Memories are visible to all queries."""

    paper = PAPER
    call_inputs = dict.fromkeys(('order_of_queries', 'order_of_keys'), Input('b n, ranks', INDICES))
    tp_shards = {}

    def mask(self, call: Any) -> BlockwiseTerm | None:
        keys, own = (call.inputs.get(name) for name in ('order_of_keys', 'order_of_queries'))
        if keys is None and own is None:
            return None
        if keys is None or own is None:
            missing = 'order_of_keys' if keys is None else 'order_of_queries'
            raise ValueError(f'`{missing}` is missing: an order is that of queries and that of keys')
        if call.context is not None or call.past is not None:
            raise ValueError('`order_of_keys` cannot be combined with a context or a cache')
        lowest = torch.iinfo(torch.int64).min
        keys = F.pad(keys.long(), (call.keys - keys.shape[1], 0), value=lowest)
        own = call.of_queries(F.pad(own.long(), (call.keys - own.shape[1], 0), value=lowest))

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(own), make_axis_lookup(keys)
            return lambda b, h, i, j: of_key(b, j) <= of_query(b, i)

        def of(rows: slice, cols: slice) -> Tensor:
            return (keys[:, cols].unsqueeze(-2) <= own[:, rows].unsqueeze(-1)).unsqueeze(1)

        return BlockwiseTerm(of, entry=entry, made_of=(keys, own))


class TwoStreams(StackFeature):
    """Two-stream attention: tokens are predicted in a given order, by queries that do not attend to themselves.

        h = layer(h, keys and values of h, rank_j <= rank_i)          h: tokens
        g = layer(g, keys and values of h, rank_j <  rank_i)          g: one learned vector w, and a position

    Content h_i attends to tokens up to its own rank, query g_i only to earlier ones. Both run through the same layers
    in one pass: the queries are appended to x, and no token attends to them. Tokens with rank -1 are visible to all. A
    call without an order runs the contents alone, with full attention.
    """

    paper = PAPER
    two_stream = flag(False, 'add a query stream that predicts tokens in a given order (XLNet)')
    call_inputs = {
        'stream_ranks': Input('b n, the rank of each token in the order, -1 for known tokens', INDICES),
        'stream_at': Input(AT, INDICES),
    }
    stored_as = {'query': 'two_stream_w'}
    clashes = {'shift_tokens': 'the queries have no preceding token'}

    def setup(self, owner: Any) -> None:
        if owner.causal or owner.cross_attend:
            beside = '`cross_attend`' if owner.cross_attend else 'a causal stack'
            raise ConfigError(f'`two_stream` cannot be combined with {beside}: use an Encoder that reads one sequence')
        self.query = nn.Parameter(torch.randn(owner.dim) * 0.02)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        ranks, at, features = call.inputs.get('stream_ranks'), call.inputs.get('stream_at'), self.owner.features
        if ranks is None and at is None:
            return x
        joined = {**joined_by(features.active, call.inputs), **features.find(DocumentsInStack).joined}
        refuse_joined(joined, 'stream_ranks')
        self.check(ranks, at, x)
        if call.left_pad is not None:
            raise ValueError('`stream_ranks` cannot be combined with `seq_start_pos`: pad rows on the right, by `mask`')
        ranked: Any = ranks
        count, own = at.shape[1], ranked.long().gather(1, at)
        contents = x.shape[1] - count
        # a content sees itself, a query only what is earlier; no number is as high as that of a query's own key
        last = torch.full_like(own, torch.iinfo(torch.int64).max)
        shared = call.shared['a']
        shared['order_of_queries'] = torch.cat((2 * ranked.long(), 2 * own - 1), dim=1)
        shared['order_of_keys'] = torch.cat((2 * ranked.long(), last), dim=1)
        places = torch.arange(-call.memories, contents, device=x.device).expand(x.shape[0], -1)
        shared['index'] = torch.cat((places, at), dim=1)
        call.intermediates.whole = 'it holds tokens in an order of prediction, which are whole'
        return torch.cat((x[:, :contents], x[:, contents:] + self.query.to(x.dtype)), dim=1)

    def check(self, ranks: Maybe[Tensor], at: Maybe[Tensor], x: Tensor) -> None:
        for name, given in (('stream_ranks', ranks), ('stream_at', at)):
            if given is None:
                raise ValueError(f'`{name}` is missing: an order of prediction is both `stream_ranks` and `stream_at`')
            if check_tensor(given, name).ndim != 2 or given.shape[0] != x.shape[0]:
                raise ValueError(f'`{name}` must have {x.shape[0]} rows, got shape {tuple(given.shape)}')
        contents = x.shape[1] - at.shape[1]
        if ranks.shape[1] != contents:
            raise ValueError(
                f'`stream_ranks` got {ranks.shape[1]} tokens and `stream_at` {at.shape[1]}, '
                f'together they must be the {x.shape[1]} of x'
            )
        check_range(ranks, 'stream_ranks', -1, None, 'ranks')
        check_range(at, 'stream_at', 0, contents - 1, 'places')

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        if call.inputs.get('stream_at') is not None:
            # what is kept of a segment is what its tokens were
            contents = x.shape[1] - call.inputs['stream_at'].shape[1]
            call.intermediates.hiddens[:] = [h[:, :contents] for h in call.intermediates.hiddens]
        return x


class TwoStreamsInModel(ModelFeature):
    """Pass the order of prediction to a stack with two streams. The last ids, those of the queries, are ignored."""

    paper = PAPER
    call_inputs = TwoStreams.call_inputs

    def setup(self, owner: Any) -> None:
        self.known = known_stack(owner.attn_layers).features.find(TwoStreams) is not None

    def token_embeds(self, x: Tensor, call: Any) -> Tensor:
        at, ranks = call.inputs.get('stream_at'), call.inputs.get('stream_ranks')
        if at is None or ranks is None:
            return x
        if not self.known:
            raise ValueError('`stream_at` was given, but the stack of the model has no `two_stream`')
        if self.owner.features.by_stage.get('pool'):
            raise ValueError('`stream_at` cannot be combined with a model that pools its tokens')
        contents = x.shape[1] - at.shape[1]
        if call.inputs.get('pos') is None:
            place = torch.arange(contents, device=x.device).expand(x.shape[0], -1)
            call.inputs['pos'] = torch.cat((place, at), dim=1)
        return F.pad(x[:, :contents], (0, 0, 0, at.shape[1]))

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        at, ranks = call.inputs.get('stream_at'), call.inputs.get('stream_ranks')
        if at is None and ranks is None:
            return inputs
        if call.num_prefix_tokens and ranks is not None:
            ranks = F.pad(ranks, (call.num_prefix_tokens, 0), value=-1)
        at = at if at is None else at + call.num_prefix_tokens
        return {**inputs, 'stream_ranks': ranks, 'stream_at': at}


class SegmentTerm(AttentionFeature):
    """Relative segments: a term of the scores that depends on whether two tokens belong to the same segment.

        sim_ij = scale (... + (q_i + s) c)      c: one learned vector per head for the same, another for other segments

    Prepended tokens belong to segment 0.
    """

    paper = PAPER
    xl_rel_segments = flag(False, 'add a term to the scores that depends on whether two tokens share a segment')
    call_inputs = {'segment_ids': Input('b n, segment of each token', INDICES)}
    stored_as = {'query': 'xl_s', 'table': 'xl_segments'}
    refuses = {'cross-attention': 'its segments belong to one sequence'}

    def setup(self, owner: Any) -> None:
        heads, width = owner.shape.heads, owner.dim_key
        self.query = nn.Parameter(torch.randn(heads, width) * 0.02)
        self.table = nn.Parameter(torch.randn(2, heads, width) * 0.02)

    def bias(self, call: Any) -> BlockwiseTerm | None:
        ids = call.inputs.get('segment_ids')
        if ids is None:
            return None
        if call.context is not None or call.past is not None:
            raise ValueError('`segment_ids` cannot be combined with a context or a cache')
        if ids.shape != (wanted := (call.batch, call.count)):
            raise ValueError(f'`segment_ids` must have shape {wanted}, got {tuple(ids.shape)}')
        keys = F.pad(ids, (call.keys - ids.shape[1], 0))
        queries, own = call.of_queries(keys), call.ctx(self)

        def of(rows: slice, cols: slice) -> Tensor:
            same = queries[:, None, rows, None] == keys[:, None, None, cols]
            return torch.where(same, own.same[..., rows, :], own.other[..., rows, :])

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(queries), make_axis_lookup(keys)
            same, other = own.same[..., 0], own.other[..., 0]
            return lambda b, h, i, j: torch.where(of_query(b, i) == of_key(b, j), same[b, h, i], other[b, h, i])

        return BlockwiseTerm(of, learns=True, entry=entry)

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        if call.inputs.get('segment_ids') is not None:
            q, own = qk[0], call.ctx(self)
            times = q.shape[1] // len(self.query)
            q = (q + self.query.to(q.dtype).repeat(times, 1).unsqueeze(-2)) * call.scale
            table = self.table.to(q.dtype).repeat(1, times, 1)
            own.same, own.other = (torch.einsum('bhie,he->bhi', q, t).unsqueeze(-1) for t in table)
        return qk


class SegmentsInStack(StackFeature):
    """Relative segments in all self-attention layers: a score term for tokens of the same segment, and one for others.

    In an order of prediction, the query of a token belongs to the segment of the token.
    """

    paper = PAPER
    xl_rel_segments = SegmentTerm.flags['xl_rel_segments']
    call_inputs = SegmentTerm.call_inputs

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {'xl_rel_segments': True, **flags} if kind == 'a' else flags

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        ids, at = call.inputs.get('segment_ids'), call.inputs.get('stream_at')
        if ids is None:
            return x
        if call.cache is not None:
            raise ValueError('`segment_ids` cannot be combined with a cache')
        if ids.ndim == 2 and at is not None and ids.shape[1] + at.shape[1] == x.shape[1]:
            ids = torch.cat((ids, gather_along(ids, at, -1)), dim=1)
        call.shared['a']['segment_ids'] = ids
        return x


class SegmentsInModel(ModelFeature):
    """Pass `segment_ids` to the stack; prepended tokens belong to segment 0."""

    paper = PAPER
    call_inputs = SegmentTerm.call_inputs

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        ids = call.inputs.get('segment_ids')
        if ids is None:
            return inputs
        if known_stack(self.owner.attn_layers).features.find(SegmentsInStack) is None:
            raise ValueError('`segment_ids` was given, but the stack of the model has no `xl_rel_segments`')
        ids = call.move_after_padding(F.pad(ids, (call.num_prefix_tokens, 0)))
        return {**inputs, 'segment_ids': ids if call.spread is None else call.spread(ids, 0)}

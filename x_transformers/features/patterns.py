"""Sparse attention: queries attend only to the keys of a pattern (`x_transformers.patterns`)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import as_mask
from x_transformers.core.modes import to_float
from x_transformers.core.own_modules import known_stack
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.documents import positions_within
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.flags import ConfigError, Input, PerToken, boolean, flag, none, warn_once
from x_transformers.flags.checks import Check, Maybe, is_int
from x_transformers.kernels.dense import dot_product, lowest_value, softmax, split_heads, tile_heads
from x_transformers.kernels.flex import run_flex_pattern
from x_transformers.patterns import BlockLocal, Global, Mix, Pattern, Sliding, as_pattern, check_known, is_pattern
from x_transformers.patterns.engine.attention import attend_context, attend_patterns
from x_transformers.patterns.engine.formula import mark_none
from x_transformers.patterns.engine.placement import Placement
from x_transformers.patterns.tokens import MarkedQueries, drop_marked_queries

OUTSIDE = {
    'outside_pattern': Input(
        'tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, '
        'and they attend to all',
        Check(
            'a number of tokens, or a tensor of indices (p)',
            lambda value: (is_int(value) and value >= 0) or (torch.is_tensor(value) and value.ndim == 1),
        ),
    )
}
a_pattern = Check("a pattern, its dict, or a name such as 'sliding'", is_pattern, 'str | Mapping[str, Any] | Pattern')


class HoldsPattern:
    """Mixin of attention features in which all or some heads attend according to a pattern.

    pattern         a subclass calls `hold` where it is set up
    random_blocks   what is drawn for the pattern, if anything is, a buffer: `stored_as` must name it
    """

    owner: Any
    random_blocks: Tensor
    pattern: Maybe[Pattern] = None
    is_drawn = False

    def hold(self, given: Any, name: str, heads: int) -> None:
        """Store the pattern of the flag `name` for a number of heads."""
        self.pattern = as_pattern(given, name)
        check_known(self.pattern, name)
        self.name = given if isinstance(given, str) else repr(self.pattern)
        if self.owner.causal and self.pattern.looks_ahead:
            raise ConfigError(f'`{name}` got {self.name}, not for a causal stack: {self.pattern.looks_ahead}')
        self.heads_of_pattern = heads
        self.pattern.for_heads(heads)
        table = self.pattern.drawn(heads, 0)
        self.is_drawn = table is not None
        if table is not None:
            self.random_blocks = table

    @property
    def counts_tokens(self) -> bool:
        return self.pattern is not None and self.pattern.depends_on_length

    @property
    def not_by_differences(self) -> str:
        """Why its documents cannot be told apart, if they cannot."""
        return '' if self.pattern.of_differences else 'its blocks are counted from where a row begins'

    def draw(self, layer: int) -> None:
        """Blocks at random are those of the layer."""
        if self.is_drawn:
            drawn: Any = self.pattern.drawn(self.heads_of_pattern, layer)
            self.random_blocks.copy_(drawn)

    @property
    def layer_pattern(self) -> Pattern:
        """The pattern of this layer; those of other layers may differ."""
        return self.pattern.of_layer(getattr(self.owner, 'layer_number', 0))

    def of_heads(self, heads: int, call: Any) -> tuple[Pattern, ...]:
        """The patterns of all heads in a call, of the length of each row where that counts."""
        own = self.layer_pattern
        if own.depends_on_length:
            place = Placement.of(call, own)
            n = call.keys - place.count
            own = own.of_length(n) if place.lengths is None else own.of_lengths(place.lengths, n)
        own = own.stored(self.random_blocks) if self.is_drawn else own
        return own.for_heads(heads)

    def wrong_call(self, call: Any) -> str | None:
        """Why a call has too many or too few tokens, or tokens outside of the pattern that it cannot have."""
        size, outside = self.pattern.size, call.inputs.get('outside_pattern')
        if call.memories and torch.is_tensor(outside):
            return '`mems` and tokens outside of the pattern between the others'
        count = 0 if outside is None else len(outside) if torch.is_tensor(outside) else outside
        n = call.keys - (0 if self.pattern.of_differences else count)
        if size is not None and (n > size or (n < size and not call.causal)):
            return f'{n} tokens: its pattern is of {size}'
        return None


Views = tuple[Tensor, Tensor, Tensor]
MARKED_ACROSS = '`global_mask` marks tokens of the sequence, none of a context; `first` and `positions` count in both'


class Apart:
    """Queries, keys and values of global tokens, from projections of their own, which all that acts on the others acts
    on too.

    refuses    features that make them in another way
    """

    def __init__(self, owner: Any) -> None:
        for stage in ('select_inputs', 'update_cache'):
            for other in owner.features.by_stage.get(stage, ()):
                name = other.display_name
                raise ConfigError(f'`global_separate_qkv` cannot be combined with `{name}`: it acts at `{stage}`')

    def projected(self, feature: Any, call: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the call, and all keys and values, with those in front."""
        owner, features = feature.owner, feature.owner.features
        inputs = call.ctx(feature).sources
        parts = (feature.to_q_global, feature.to_k_global, feature.to_v_global)
        own = tuple([to(t) for to, t in zip(parts, inputs, strict=True)])
        q, own_k, own_v = features.apply('projected', own, call)
        q, own_k = split_heads(q, owner.dim_key), split_heads(own_k, owner.dim_key)
        q, own_k, own_v = features.apply('qkv_heads', (q, own_k, split_heads(own_v, owner.shape.dim_value)), call)
        q, own_k = features.apply('rotate_new', (q, own_k), call)
        if call.keeps or call.past is not None:
            own_k, own_v = call.state('global keys').append(own_k), call.state('global values').append(own_v)
        q, own_k = features.apply('rotate', (q, own_k), call)
        added, heads = call.total_keys - call.keys, k.shape[1]
        q, own_k, own_v = features.apply('pre_attention', (q, own_k, own_v), call)
        own_k, own_v = tile_heads(own_k, heads), tile_heads(own_v, heads)
        own_k = torch.cat((k[:, :, :added], own_k), dim=2)
        q, own_k = features.apply('pre_kernel', (q, own_k), call)
        call.ctx(feature).apart = q, own_k, torch.cat((v[:, :, :added], own_v), dim=2)
        return call.ctx(feature).apart


class SparsePattern(HoldsPattern, AttentionFeature):
    """Sparse attention: queries attend only to the keys of a pattern, and no other scores are computed.

    The patterns are in `x_transformers.patterns`. They use token indices, counted from the first token after left
    padding, or of the document (`BlockLocal`), not `pos`; the length is that of each sequence. Memory tokens and
    prefixes are outside of patterns that depend on more than distances: all tokens attend to them, and they attend to
    all. Time and memory are proportional to the number of keys per query.
    """

    paper = 'Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150'
    sparse_pattern = flag(
        None,
        'sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name',
        none | a_pattern,
        example={'pattern': 'sliding', 'window': 3},
    )
    global_separate_qkv = flag(
        None,
        "use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask')",
        boolean | none,
        example=False,
    )
    call_inputs = {
        'global_mask': Input(
            "b n, True for global tokens, which attend to all and to which all attend, for Global('mask')"
        ),
        **OUTSIDE,
    }
    refuses = {
        'cross-attention': 'its positions are those of one sequence',
        **dict.fromkeys(
            ('residual_attn', 'cross_residual_attn'), 'it computes no scores of all keys for the next layer'
        ),
    }
    handles = ('causal', 'masks', 'padding', 'documents', 'biases', 'keys', 'past', 'context', 'elsewhere', 'dropout')
    stored_as = {'random_blocks': 'random_blocks'}
    allows_eviction = limits_window = True
    brings = ('to_q_global', 'to_k_global', 'to_v_global', 'random_blocks')  # what a layer has for a pattern alone
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        heads = owner.query_heads if hasattr(owner, 'query_heads') else owner.shape.heads
        self.hold(self.sparse_pattern, 'sparse_pattern', heads)
        if self.pattern.cannot_cache:
            self.refuse({'cache': self.pattern.cannot_cache})
        if self.not_by_differences and not isinstance(self.pattern, BlockLocal):
            self.refuse({'documents': self.not_by_differences})
        if isinstance(self.pattern, Global):
            self.refuse({'cross-attention': MARKED_ACROSS if self.pattern.mask else ''})
        marked, wanted = self.pattern.marked, self.global_separate_qkv
        if wanted and not marked:
            raise ConfigError(f"`global_separate_qkv` needs a `sparse_pattern` with Global('mask'), it got {self.name}")
        self.apart = Apart(owner) if marked and (wanted is None or wanted) else None
        names = ['global tokens'] if marked else [] if self.reason('cross-attention') else ['queries']
        names += ['global keys', 'global values'] if self.apart is not None else []
        self.states = {name: PerToken() for name in names}
        if self.apart is not None:
            for name in ('to_q', 'to_k', 'to_v'):
                setattr(self, f'{name}_global', copy.deepcopy(getattr(owner, name)))

    def active_stages(self) -> tuple[str, ...]:
        stages, in_blocks = self.runs_at(), isinstance(as_pattern(self.sparse_pattern, 'sparse_pattern'), BlockLocal)
        return stages if in_blocks else tuple([stage for stage in stages if stage != 'mask'])

    def mask(self, call: Any) -> BlockwiseTerm | None:
        """Return which keys are in the block of each query, where blocks are counted from the start of documents."""
        ids = call.inputs.get('document_ids')
        if ids is None:
            return None
        blocks: Any = self.pattern
        keys = positions_within(ids) // blocks.block
        queries, reach = call.of_queries(keys), blocks.reach if call.token_idx is None else None

        def of(rows: slice, columns: slice) -> Tensor:
            return (queries[:, rows].unsqueeze(-1) == keys[:, columns].unsqueeze(-2)).unsqueeze(1)

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(queries), make_axis_lookup(keys)
            return lambda b, h, i, j: of_query(b, i) == of_key(b, j)

        return BlockwiseTerm(of, reach=reach, entry=entry, made_of=(keys, queries))

    def of_heads(self, heads: int, call: Any) -> tuple[Pattern, ...]:
        own = self.pattern
        if isinstance(own, BlockLocal) and call.inputs.get('document_ids') is not None:
            return (Sliding(own.reach),) * heads  # in which the blocks of documents lie: see `mask`
        return super().of_heads(heads, call)

    def reach_and_step(self, call: Any) -> Any:
        own = self.layer_pattern
        known = own.reach is not None and own.period is not None and own.size is None and not own.marked
        outside = call.inputs.get('outside_pattern')
        if torch.is_tensor(outside) or (outside and not own.of_differences):
            return None  # all later tokens attend to those outside
        return (own.reach, own.period) if known else None

    def unsupported(self, call: Any) -> str | None:
        across = self.reason('cross-attention')
        if call.context is not None and (call.causal or across):
            return f'a context: {across or "where it is causal, its keys are those of its queries"}'
        if call.memories and self.not_by_differences:
            return f'`mems`: {self.not_by_differences}'
        if call.memories and call.inputs.get('index') is not None:
            return '`mems` and padding on the left: memories stand next to the first token'
        return (self.wrong_call(call) if call.context is None else None) or super().unsupported(call)

    def qkv_inputs(self, inputs: Views, call: Any) -> Views:
        if self.apart is not None:
            call.ctx(self).sources = inputs
        return inputs

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor | None]:
        marks, new = self.marks(call), call.inputs.get('global_mask') is not None
        if call.context is not None:
            call.ctx(self).places = at = self.stand(call)
            marked: Any = self.pattern
            return attend_context(q, k, v, call, marked, at)
        call.ctx(self).marks, patterns = marks, self.of_heads(q.shape[1], call)
        if self.apart is None:
            return self.run(q, k, v, call, patterns, marks)
        qkv = self.apart.projected(self, call, k, v) if new or call.keeps or call.past is not None else ()
        out, _ = self.run(q, k, v, call, [drop_marked_queries(one) for one in patterns], marks)
        if not new:
            return out, None
        own, _ = attend_patterns(*qkv, call=call, patterns=[MarkedQueries()] * q.shape[1], marks=marks)
        return torch.where(self.chosen(call.of_queries(marks), patterns), own, out), None

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, call: Any, patterns: Sequence[Pattern], marks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Attend by FlexAttention where that is for the call, else by what `patterns.engine` gathers."""
        found = run_flex_pattern(q, k, v, call, patterns, marks, self.owner.features)
        return attend_patterns(q, k, v, call, patterns, marks) if found is None else (found, None)

    def stand(self, call: Any) -> Tensor:
        """Where queries that read a context stand, from their own beginning:  i, or b i."""
        known, new = call.inputs.get('index'), call.count
        if known is not None:
            return known
        if call.token_mask is not None and call.past is None:
            return Placement.among(new, None, None, call.token_mask).positions(new, call.x.device)
        seen = new
        if call.keeps or call.past is not None:
            # rows of no width: a layer alone counts by them
            seen = call.state('queries').append(call.x.new_zeros(call.batch, new, 0)).shape[-2]
        return torch.arange(seen - new, seen, device=call.x.device)

    @staticmethod
    def chosen(marks: Tensor, patterns: Sequence[Pattern]) -> Tensor:
        """Return which queries of which heads are global, of those that are marked:  b h i 1."""
        heads = torch.tensor([one.marked for one in patterns], device=marks.device)
        return (marks[:, None] & heads[:, None]).unsqueeze(-1)

    def marks(self, call: Any) -> Tensor | None:
        """Return which keys are marked, b j; None for none."""
        given = call.inputs.get('global_mask')
        if not self.pattern.marked:
            if given is not None:
                raise ValueError(
                    f"`global_mask` was given, but `sparse_pattern` is {self.name}, without Global('mask')"
                )
            return None
        if given is not None:
            given = as_mask(given, 'global_mask', call.batch, call.count, like=call.x)
        elif call.keeps or call.past is not None:
            given = torch.zeros(call.batch, call.count, dtype=torch.bool, device=call.x.device)
        if given is None:
            return None
        given = F.pad(given, (call.memories, 0))  # of an earlier segment none is
        if not (call.keeps or call.past is not None):
            return given
        return call.state('global tokens').append(given.unsqueeze(-1)).squeeze(-1)

    def maps(self, q: Tensor, k: Tensor, call: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The dense twin."""
        call, across = call.combine(), call.context is not None
        marks = None if across else call.ctx(self).marks
        sim = to_float(dot_product(q, k, call))
        patterns = (self.pattern,) * q.shape[1] if across else self.of_heads(q.shape[1], call)
        if self.apart is not None and marks is not None and call.inputs.get('global_mask') is not None:
            own_q, own_k, _ = call.ctx(self).apart
            own = to_float(dot_product(own_q, own_k, call))
            sim = torch.where(self.chosen(call.of_queries(marks), patterns), own, sim)
        logits = sim if call.bias is None else sim + call.bias.to(sim.dtype)
        shown = [self.shown_across(call) if across else self.shown(one, marks, call) for one in patterns]
        size = torch.broadcast_shapes(*(one.shape for one in shown))
        seen = torch.stack([one.expand(size) for one in shown], dim=-3)
        seen = seen if seen.ndim == 4 else seen[None]
        seen = F.pad(seen, (call.total_keys - call.keys, 0), value=True)
        visible = call.visible()
        seen = seen if visible is None else seen & visible
        logits = logits.masked_fill(~seen, lowest_value(logits))
        return sim, logits, softmax(logits).to(q.dtype).masked_fill(~seen, 0.0)

    @staticmethod
    def shown(pattern: Pattern, marks: Maybe[Tensor], call: Any) -> Tensor:
        """Return which keys a pattern shows each query:  b|1 i j."""
        place, device = Placement.of(call, pattern), call.x.device
        own = place.positions(call.keys, device)
        own = own if own.ndim == 2 else own[None]
        i, j = call.of_queries(own).unsqueeze(-1), own.unsqueeze(-2)

        def known(at: Tensor) -> Tensor:
            return call.of_queries(marks).unsqueeze(-1) if at is i else marks.unsqueeze(-2)

        seen = pattern.visible(i, j, mark_none if marks is None else known)
        if not place.count:
            return seen
        outside = place.is_outside(call.keys, device)
        return seen | outside.unsqueeze(-2) | call.of_queries(outside).unsqueeze(-1)

    def shown_across(self, call: Any) -> Tensor:
        """Return which keys of a context the pattern shows each query:  b|1 i j."""
        queries = call.ctx(self).places
        keys = Placement.among(call.keys, None, None, call.key_mask).positions(call.keys, call.x.device)
        queries, keys = (t if t.ndim == 2 else t[None] for t in (queries, keys))
        return self.pattern.visible(queries.unsqueeze(-1), keys.unsqueeze(-2))


class PatternsInStack(StackFeature):
    """Pass left padding and tokens outside of the pattern to layers with a pattern, and indices of the queries to
    cross-attention."""

    enabled_by = ('sparse_pattern', 'local_pattern', 'moba_block', 'indexer')
    call_inputs = OUTSIDE
    always = True

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if call.left_pad is not None:
            call.shared['a'].setdefault('index', call.left_padded_positions())
        if any(find_pattern(layer, 'c', SparsePattern) for layer in self.owner.current_layers()):
            if call.memories:
                reason = 'its queries are counted from where a row begins'
                raise ValueError(f'`cross_attn_sparse_pattern` cannot be combined with `mems`: {reason}')
            places = self.places(x, call)[:, call.cache_len :]
            call.ctx(self).places = places.unsqueeze(-1)  # rows of tokens, of which a pass may pick some
        return x

    def places(self, x: Tensor, call: Any) -> Tensor:
        """Return the place of each token in its row, or in its document:  b|1 n"""
        documents = call.inputs.get('document_ids')
        if documents is not None:
            return positions_within(documents if documents.ndim == 2 else documents[None])
        place = Placement.among(call.tokens, call.inputs.get('outside_pattern'), call.left_pad, call.token_mask)
        found = place.positions(call.tokens, x.device)
        return found if found.ndim == 2 else found[None]

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        places, outside = getattr(call.ctx(self), 'places', None), call.inputs.get('outside_pattern')
        if places is not None and find_pattern(layer, 'c', SparsePattern):
            return {**inputs, 'index': places.squeeze(-1)}
        holds = outside is not None and find_pattern(layer, 'a', HoldsPattern)
        return {**inputs, 'outside_pattern': outside} if holds else inputs


class PatternsInModel(ModelFeature):
    """Pass the indices of tokens outside of patterns to a stack: those that the model prepends or inserts."""

    enabled_by = ('sparse_pattern', 'local_pattern')

    def active_stages(self) -> tuple[str, ...]:
        return self.runs_at() if has_patterns(self.owner.attn_layers) else ()

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        if not (call.num_prefix_tokens or call.spread):
            return inputs
        if call.spread is None:
            return {**inputs, 'outside_pattern': call.num_prefix_tokens}
        text = torch.ones(1, call.num_prefix_tokens + call.tokens, dtype=torch.long, device=call.like_tokens.device)
        text[:, : call.num_prefix_tokens] = 0
        text = call.spread(text, 0)[0]
        # What fills up the last chunk is among the others, behind all tokens.
        return {**inputs, 'outside_pattern': text.argsort(stable=True)[: text.shape[0] - call.tokens]}


def has_patterns(stack: Any) -> bool:
    """Return True if layers of a stack have a pattern."""
    return known_stack(stack).features.find(PatternsInStack) is not None


def find_pattern(layer: Any, kind: str, feature: type) -> Any:
    """Return the feature of a layer of this kind that has its pattern, or None."""
    features = getattr(layer[1], 'features', None) if layer.kind == kind else None
    return None if features is None else features.find(feature)


class GlobalTokensInStack(StackFeature):
    """Pass `global_mask` to layers whose pattern has Global('mask')."""

    enabled_by = ('sparse_pattern',)
    call_inputs = {'global_mask': Input('b n, True for tokens that see all and that all see; False beyond its end')}

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        marks = call.inputs.get('global_mask')
        if marks is None:
            return x
        if not any(map(reads_marks, self.owner.current_layers())):
            raise ValueError("`global_mask` was given, but no `attn_sparse_pattern` has Global('mask')")
        marks = as_mask(marks, 'global_mask', x.shape[0], None, like=x)
        if marks.shape[1] > call.tokens:
            raise ValueError(f'`global_mask` got {marks.shape[1]} tokens, there are {call.tokens}')
        call.ctx(self).marks = F.pad(marks, (0, call.tokens - marks.shape[1]))[:, call.cache_len :]
        return x

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        marks = getattr(call.ctx(self), 'marks', None)
        return inputs if marks is None or not reads_marks(layer) else {**inputs, 'global_mask': marks}


def reads_marks(layer: Any) -> bool:
    """Return True if a layer has a pattern with Global('mask')."""
    found = find_pattern(layer, 'a', SparsePattern)
    return found is not None and found.pattern.of_layer(layer[1].layer_number).marked


class GlobalTokensInModel(ModelFeature):
    """Pass `global_mask` to the stack. Prepended tokens are not global."""

    call_inputs = GlobalTokensInStack.call_inputs

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        marks = call.inputs.get('global_mask')
        if marks is None:
            return inputs
        if call.spread is not None or (call.num_prefix_tokens and call.inputs.get('seq_start_pos') is not None):
            raise ValueError('`global_mask` cannot be combined with tokens that stand between those of the sequence')
        marks = as_mask(marks, 'global_mask', call.like_tokens.shape[0], None, like=call.like_tokens)
        return {**inputs, 'global_mask': F.pad(marks, (call.num_prefix_tokens, 0))}


class DrawnInStack(StackFeature):
    """Draw different random blocks in each layer; check that there are enough layers for alternating patterns."""

    enabled_by = ('sparse_pattern', 'local_pattern')

    def wrap(self, branch: nn.Module, kind: Any, index: int) -> nn.Module:
        for module in branch.modules():
            found = getattr(module, 'features', None)
            feature = None if found is None else found.find(HoldsPattern)
            if feature is not None:
                feature.draw(module.layer_number)
                pattern, layers = feature.pattern, self.owner.layer_types.count('a')
                if isinstance(pattern, Mix) and pattern.how == 'interleave' and layers < len(pattern.patterns):
                    warn_once(
                        f"a pattern has {len(pattern.patterns)} patterns by how='interleave', for {layers} layers "
                        'of self-attention: the last ones are never used'
                    )
        return branch

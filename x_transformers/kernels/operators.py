"""Operators that compute attention, in order of preference, each with the calls that it cannot compute.

    Own             a feature at the stage `attend`, instead of all others
    Banded          torch's fused kernel on a CPU, on the keys near each query
    Fused           torch's fused kernel, on all rows at once
    Flex            torch's FlexAttention, for large calls on a GPU
    FusedInBlocks   what is fused, a block of queries at a time
    EagerInBlocks   the formula, a block of queries at a time
    Eager           the formula, on all rows at once; it takes everything

The first of `OPERATORS` that supports a call runs it. The reasons of the others are shown by `explain()`, and are the
error if one is required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call, is_large
from x_transformers.core.rows import BlockwiseTerm
from x_transformers.flags import Feature, Features
from x_transformers.kernels.dense import (
    EAGER_STAGES,
    run_eager,
    run_eager_in_blocks,
    run_fused,
    run_fused_in_blocks,
    select_working,
    tile_heads,
)
from x_transformers.kernels.flex import fits, has_form, match_dtypes, try_flex
from x_transformers.patterns.branches import Branch, Reach
from x_transformers.patterns.engine.attention import FEW_QUERIES, attend_branches, get_scores
from x_transformers.patterns.engine.flash import takes
from x_transformers.patterns.engine.layouts import Grid
from x_transformers.patterns.local import CHUNK

# Scores of a call, in numbers of chunks, from which on it pays to read the keys near each query alone.
LEAST = 2**20
# How many scores take the time of reading a key, where there are few queries to share it.
READS = 32


def _get_band(call: Call) -> tuple[int, int, list[BlockwiseTerm]] | None:
    """Return how far back and ahead queries see, and the other masks; None if there is no such limit."""
    bands = [mask for mask in call.masks if mask.band]
    past = [mask.reach for mask in bands if mask.reach is not None]
    ahead = [mask.reach_ahead for mask in bands if mask.reach_ahead is not None]
    if not past or not (ahead or call.causal):
        return None
    return min(past), 0 if call.causal else min(ahead), [mask for mask in call.masks if not mask.band]


def _not_banded(call: Call) -> str | None:
    """Return the reason why a call cannot be computed this way, or None."""
    found = _get_band(call)
    if found is None or call.token_idx is not None or call.context is not None:
        return 'its queries may see any key'
    if call.x.device.type != 'cpu' or torch.compiler.is_compiling():
        return 'it is for a CPU, and for no graph'
    if not all(term.by_entry for term in (*call.masks, *call.biases)):
        return 'a mask or bias without a form for one query and one key'
    scores = call.batch * call.heads * call.q_len * call.keys
    reach, least = found[0] + found[1], LEAST // READS if call.q_len <= FEW_QUERIES else LEAST
    return 'its keys are few' if call.keys < max(reach, reach // 2 + CHUNK) or scores < least else None


def attend_in_band(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor | None:
    """Compute the output, b h i d; None if its dtypes or dropout are not supported."""
    if not takes(q, k, v, call):
        return None
    band: Any = _get_band(call)
    past, ahead, masks = band

    def near(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return (i - j <= past) & (j - i <= ahead)

    grid = Grid(call.keys, call.keys - call.q_len, q.device)
    branch = Branch(Reach(CHUNK, past, ahead), near, 1)
    return attend_branches(q, k, v, call, (branch,), grid, get_scores(call, masks))[0]


FEW = 'its scores are few enough to be held at once'
MANY = 'its scores are many'
MAPS = '`keep_maps`: the scores of all rows are kept'


def stages_of_scores(call: Call | None, features: Features) -> list[Feature]:
    """Return the features that need the scores of a call; for None, of all calls."""
    if not features.scores_needed:
        return []
    if call is not None:
        return [f for f in select_working(call, features) if not f.runs_fused]
    return [f for f in list_score_stages(features) if not f.runs_fused and (f.flags or not f.call_inputs)]


def list_score_stages(features: Features) -> list[Feature]:
    """Return the features at stages of scores, in their order."""
    found = {feature for stage in EAGER_STAGES for feature in features.by_stage.get(stage, ())}
    return [feature for feature in features.active if feature in found] if found else []


def _forms_no_scores(call: Call | None, features: Features) -> str | None:
    found = stages_of_scores(call, features)
    return f'`{found[0].display_name}`: the fused kernel forms no scores' if found else None


def _needs_all_rows(features: Features) -> str | None:
    found = [f for f in list_score_stages(features) if not f.row_wise]
    return f'`{found[0].display_name}`: it does not say `row_wise`' if found else None


class Operator:
    """Implementation of attention.

    unsupported(call, features)      the reason why it cannot run a call, or any call with these features for None
    run(q, k, v, call, features)     the output b h i d, or None if it cannot run after all: then the next one runs

    `by_formula`: True if it computes the formula, as `flash=False` requires.
    """

    by_formula = False
    run: Callable[[Tensor, Tensor, Tensor, Call, Features], Tensor | None]

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__name__


# What a feature at `attend` may list in `handles`.
HANDLED = {
    'causal': 'causal masks',
    'masks': 'masks of keys, by `call.mask_entry()`',
    'padding': 'masks that are equal for all heads and queries; included in `masks`',
    'documents': 'masks of documents, by `document_ids`; included in `masks`',
    'biases': 'biases of scores, by `call.bias_entry()`',
    'rows': 'masks and biases that are only available per block, by `of(rows, keys)`',
    'keys': 'prepended keys that every query attends to, the first `call.total_keys - call.keys` ones',
    'past': 'more keys than queries, which are the last tokens: a cache or memories',
    'context': 'keys of a context (cross-attention)',
    'elsewhere': 'queries at the indices `call.token_idx`',
    'dropout': 'dropout of weights, with probability `call.dropout`',
    'groups': 'fewer key heads than query heads: query head h uses key head h mod k; otherwise they are repeated',
}


def list_call_needs(call: Any, feature: Any) -> Iterator[tuple[str, str]]:
    """Yield what a call needs from a feature at `attend`, each with the words of a refusal."""
    if call.causal:
        yield 'causal', '`causal`: its queries see later keys'
    for term in call.masks:
        kind = 'padding' if term.of_keys else 'documents' if term.name == 'document_ids' else 'masks'
        if kind != 'masks' and kind in feature.handles:
            continue
        alike = ' but from all queries alike' if 'padding' in feature.handles else ''
        given = 'mask' if term.of_keys else 'attn_mask'
        yield 'masks', f'`{term.name or given}`: it hides no keys{alike}'
        if not term.by_entry:
            yield 'rows', f'`{term.name}`, which has no form for one query and one key'
    for term in call.biases:
        yield 'biases', f'`{term.name or "attn_bias"}`: it forms no scores to add to'
        if not term.by_entry:
            yield 'rows', f'`{term.name}`, which has no form for one query and one key'
    if call.total_keys is not call.keys and call.total_keys != call.keys:
        yield 'keys', 'keys that other flags put in front'
    if call.past is not None or call.memories:
        yield 'past', '`mems`: its keys are those of its queries' if call.past is None else '`cache`'
    if call.context is not None:
        yield 'context', '`context`: its keys are those of its queries'
    if call.token_idx is not None:
        yield 'elsewhere', 'queries that `select_inputs` puts elsewhere'
    if call.dropout:
        yield 'dropout', '`dropout`: it forms no attention weights'
    if call.inputs.get('keep_maps') and feature.maps is None:
        yield 'maps', '`return_attn` or others that ask for its scores: it keeps none'


class Own(Operator):
    by_formula = True

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        return None if 'attend' in features.by_stage else 'no feature attends in its own way'

    def run(self, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
        (feature,) = features.by_stage['attend']
        acting = stages_of_scores(call, features)
        reason = f'`{acting[0].display_name}`, which needs the scores' if acting else feature.unsupported(call)
        if reason is not None:
            raise ValueError(f'`{feature.display_name}` cannot be combined with {reason}')
        if 'groups' not in feature.handles:
            k, v = tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1])
        if call.inputs.get('keep_maps'):
            call.keep_maps(feature.maps(q, k, call))
        out, _ = features.select('attend', feature.attend)(q, k, v, call)
        return out


class Banded(Operator):
    def unsupported(self, call: Call | None, features: Features) -> str | None:
        if call is None:
            return (
                _forms_no_scores(None, features)
                if any(f.is_window for f in features.active)
                else 'no window hides far keys'
            )
        if call.inputs.get('keep_maps'):
            return MAPS
        return _forms_no_scores(call, features) or _not_banded(call)

    def run(self, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor | None:
        return attend_in_band(q, tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1]), call)


class Fused(Operator):
    run = staticmethod(run_fused)

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        if call is not None and call.is_large:
            return MANY
        if call is not None and call.inputs.get('keep_maps'):
            return MAPS
        if call is not None:
            return _forms_no_scores(call, features) if features.scores_needed else None
        own = [f for f in features.by_stage.get('attend', ()) if f.flags or not f.call_inputs]
        return f'`{own[0].display_name}`: it attends in its own way' if own else _forms_no_scores(call, features)


class Flex(Operator):
    def unsupported(self, call: Call | None, features: Features) -> str | None:
        if call is not None and not call.is_large:
            return FEW
        acting = stages_of_scores(call, features)
        if call is not None and (torch.compiler.is_compiling() or not fits(call, features)):
            return 'FlexAttention has no form for it, is no faster, or not for this device'
        without = [f for f in acting if not has_form(type(f))]
        if without:
            return f'`{without[0].display_name}`: it has no form for FlexAttention'
        return _needs_all_rows(features) if acting else None

    def run(self, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor | None:
        return try_flex(*match_dtypes(q, k, v), call=call, features=features)


class FusedInBlocks(Operator):
    run = staticmethod(run_fused_in_blocks)

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        return FEW if call is not None and not call.is_large else _forms_no_scores(call, features)


class EagerInBlocks(Operator):
    by_formula = True
    run = staticmethod(run_eager_in_blocks)

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        return FEW if call is not None and not call.is_large else _needs_all_rows(features)


class Eager(Operator):
    by_formula = True

    def unsupported(self, call: Call | None, features: Features) -> str | None:
        return None

    def run(self, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
        return run_eager(q, k, v, call if call.visibility is not None else call.combine(), features)


FUSED = Fused()
OPERATORS: tuple[Operator, ...] = (Own(), Banded(), FUSED, Flex(), FusedInBlocks(), EagerInBlocks(), Eager())


def _operators_for(owner: Any, features: Features) -> tuple[Any, tuple[Operator, ...]]:
    """Return the operators of a layer, and those that may run with these features."""
    if torch.compiler.is_compiling():
        return owner.operators, owner.operators
    found = tuple([o for o in owner.operators if type(o) is not Banded or o.unsupported(None, features) is None])
    features.operators = (owner.operators, found)
    return features.operators


def attend_by(owner: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Compute attention by the first operator of a layer that supports the call."""
    sizes = call.batch, call.heads, call.q_len, call.total_keys
    call.is_large = not call.inputs.get('keep_maps') and is_large(call.x, *sizes)
    known = features.operators
    if known is None or known[0] is not owner.operators:
        known = _operators_for(owner, features)
    for operator in known[1]:
        if operator.unsupported(call, features) is None:
            out = operator.run(q, k, v, call, features)
            if out is not None:
                return out
    raise AssertionError('the formula supports all calls')

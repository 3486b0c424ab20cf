"""The ways to compute attention as operators that say themselves what they cannot take, in order of preference.

    Own             a feature at the stage `attend`, in place of all others
    Banded          torch's fused kernel on a CPU, on the keys near each query
    Fused           torch's fused kernel, on all rows at once
    Flex            torch's FlexAttention, for large calls on a GPU
    FusedInBlocks   what is fused, a block of queries at a time
    EagerInBlocks   the formula, a block of queries at a time
    Eager           the formula, on all rows at once; it takes everything

What belongs here: the choice between kernels. `OPERATORS` is asked from the front, and the first that has nothing
against a call runs it; what it says against one is the refusal where it is demanded, and is shown by `explain()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call, is_large
from x_transformers.core.rows import Rows
from x_transformers.flags import Feature, Features
from x_transformers.kernels.dense import (
    EAGER_STAGES,
    at_work,
    eager,
    eager_by_rows,
    fused,
    fused_by_rows,
    tile_heads,
)
from x_transformers.kernels.flex import attempted, fits, has_form, in_one_dtype
from x_transformers.patterns.branches import Branch, Reach
from x_transformers.patterns.engine.attention import FEW_QUERIES, of_branches, scores_of
from x_transformers.patterns.engine.flash import takes
from x_transformers.patterns.engine.layouts import Grid
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
    reach, least = found[0] + found[1], LEAST // READS if call.rows <= FEW_QUERIES else LEAST
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
    branch = Branch(Reach(CHUNK, past, ahead), near, 1)
    return of_branches(q, k, v, call, (branch,), grid, scores_of(call, masks))[0]


FEW = 'its scores are few enough to be held at once'
MANY = 'its scores are many'
MAPS = '`keep_maps`: the scores of all rows are kept'


def on_scores(call: Call | None, on: Features) -> list[Feature]:
    """The features that need the scores of a call; of every call, if it is None."""
    if not on.scores_needed:
        return []
    if call is not None:
        return [f for f in at_work(call, on) if not f.fuses]
    return [f for f in scoring(on) if not f.fuses and (f.flags or not f.takes)]


def scoring(on: Features) -> list[Feature]:
    """The features at stages of scores, in their order."""
    found = {feature for stage in EAGER_STAGES for feature in on.at.get(stage, ())}
    return [feature for feature in on.active if feature in found] if found else []


def forms_no_scores(call: Call | None, on: Features) -> str | None:
    found = on_scores(call, on)
    return f'`{found[0].title}`: the fused kernel forms no scores' if found else None


def needs_all_rows(on: Features) -> str | None:
    found = [f for f in scoring(on) if not f.row_wise]
    return f'`{found[0].title}`: it does not say `row_wise`' if found else None


class Operator:
    """A way to compute attention.

    unsupported(call, on)      what keeps it from a call, or from every call of these features if `call` is None
    (q, k, v, call, on)        the output b h i d, or None if it turns out that it cannot; then the next one is asked

    `by_formula`: whether it does what is written down, and nothing faster, as `flash=False` wants it.
    """

    by_formula = False

    def unsupported(self, call: Call | None, on: Features) -> str | None:
        raise NotImplementedError

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor | None:
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
    'elsewhere': 'queries at the indices `call.places`',
    'dropout': 'dropout of weights, with probability `call.dropout`',
    'groups': 'fewer key heads than query heads: query head h uses key head h mod k; otherwise they are repeated',
}


def needs_of(call: Any, feature: Any) -> Iterator[tuple[str, str]]:
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
    if call.places is not None:
        yield 'elsewhere', 'queries that `views` puts elsewhere'
    if call.dropout:
        yield 'dropout', '`dropout`: it forms no attention weights'
    if call.inputs.get('keep_maps') and feature.maps is None:
        yield 'maps', '`return_attn` or others that ask for its scores: it keeps none'


class Own(Operator):
    by_formula = True

    def unsupported(self, call: Call | None, on: Features) -> str | None:
        return None if 'attend' in on.at else 'no feature attends in its own way'

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
        (feature,) = on.at['attend']
        acting = on_scores(call, on)
        reason = f'`{acting[0].title}`, which needs the scores' if acting else feature.unsupported(call)
        if reason is not None:
            raise ValueError(f'`{feature.title}` does not go with {reason}')
        if 'groups' not in feature.handles:
            k, v = tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1])
        if call.inputs.get('keep_maps'):
            call.keep_maps(feature.maps(q, k, call))
        out, _ = on.pick('attend', feature.attend)(q, k, v, call)
        return out


class Banded(Operator):
    def unsupported(self, call: Call | None, on: Features) -> str | None:
        if call is None:
            return forms_no_scores(None, on) if any(f.is_band for f in on.active) else 'no window hides far keys'
        if call.inputs.get('keep_maps'):
            return MAPS
        return forms_no_scores(call, on) or not_banded(call)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor | None:
        return in_band(q, tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1]), call)


class Fused(Operator):
    def unsupported(self, call: Call | None, on: Features) -> str | None:
        if call is not None and call.many:
            return MANY
        if call is not None:
            return MAPS if call.inputs.get('keep_maps') else forms_no_scores(call, on) if on.scores_needed else None
        own = [f for f in on.at.get('attend', ()) if f.flags or not f.takes]
        return f'`{own[0].title}`: it attends in its own way' if own else forms_no_scores(call, on)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
        return fused(q, k, v, call, on)


class Flex(Operator):
    def unsupported(self, call: Call | None, on: Features) -> str | None:
        if call is not None and not call.many:
            return FEW
        acting = on_scores(call, on)
        if call is not None and (torch.compiler.is_compiling() or not fits(call, on)):
            return 'FlexAttention has no form for it, is no faster, or not for this device'
        without = [f for f in acting if not has_form(type(f))]
        if without:
            return f'`{without[0].title}`: it has no form for FlexAttention'
        return needs_all_rows(on) if acting else None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor | None:
        return attempted(*in_one_dtype(q, k, v), call=call, on=on)


class FusedInBlocks(Operator):
    def unsupported(self, call: Call | None, on: Features) -> str | None:
        return FEW if call is not None and not call.many else forms_no_scores(call, on)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
        return fused_by_rows(q, k, v, call, on)


class EagerInBlocks(Operator):
    by_formula = True

    def unsupported(self, call: Call | None, on: Features) -> str | None:
        return FEW if call is not None and not call.many else needs_all_rows(on)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
        return eager_by_rows(q, k, v, call, on)


class Eager(Operator):
    by_formula = True

    def unsupported(self, call: Call | None, on: Features) -> str | None:
        return None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
        return eager(q, k, v, call if call.visibility is not None else call.combine(), on)


FUSED = Fused()
OPERATORS: tuple[Operator, ...] = (Own(), Banded(), FUSED, Flex(), FusedInBlocks(), EagerInBlocks(), Eager())


def operators_for(host: Any, on: Features) -> tuple[Any, tuple[Operator, ...]]:
    """The operators of a layer, and which of them may run where these features act: bands if one of them is there."""
    if torch.compiler.is_compiling():
        return host.operators, host.operators
    found = tuple([o for o in host.operators if type(o) is not Banded or o.unsupported(None, on) is None])
    on.operators = (host.operators, found)
    return on.operators


def attend_by(host: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
    """Attention by the first of the operators of a layer that takes the call."""
    call.many = not call.inputs.get('keep_maps') and is_large(
        call.x, call.batch, call.heads, call.rows, call.total_keys
    )
    known = on.operators
    if known is None or known[0] is not host.operators:
        known = operators_for(host, on)
    for operator in known[1]:
        if operator.unsupported(call, on) is None:
            out = operator(q, k, v, call, on)
            if out is not None:
                return out
    raise AssertionError('the formula takes everything')

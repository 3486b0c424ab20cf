"""Attention by torch's FlexAttention: one compiled kernel that makes masks, biases and other changes of scores as it
goes, and keeps none of them for all queries and keys.

What belongs here: which calls it fits, what it is handed for them, and the way back where it does not run. It takes
the place of blocks (`blocks.py`) for large calls on a GPU, outside of compiled graphs. Masks and biases say by
`BlockwiseTerm.entry` what they are for one query and one key, features by `score_mod` or `rescale` what they do
(`features/levels.py`).
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.checks import is_overridden_together
from x_transformers.core.modes import widen_dtype
from x_transformers.core.rows import BlockwiseTerm, Pointwise, slice_keys, split_queries, to_4d
from x_transformers.flags import Feature, Features, warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import EAGER_STAGES, needs_no_mask, run_eager, select_working, tile_heads
from x_transformers.patterns import Pattern
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Reach
from x_transformers.patterns.engine.placement import Placement

# Where calls come here by themselves: on a CPU FlexAttention has no backward pass. Empty, it is never used.
DEVICES: tuple[str, ...] = ('cuda',)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Whether masks and biases that learn go there too: their gradient is added up once per score, in atomic steps, which
# may take longer than blocks.
LEARNED = False
CHECKED_ROWS = 64  # of which a few spans are compared with the formula, before a kind of call is trusted
# how far its numbers may be off, of the largest one: it rounds logits and weights, on a GPU to 10 bits in float32 too
ROUNDING = {torch.float32: 2e-2, torch.float16: 2e-2, torch.bfloat16: 0.1}
LEAST_WIDTH = 16  # its matrix products have at least so many features
MOST_ENTRIES = 2**31  # it counts the entries of a tensor in 32 bits
KEPT_MASKS, KEPT_BYTES = 4, 2**22  # how many masks are kept, made of tensors of how many bytes
STOPS = getattr(torch.utils.checkpoint, '_StopRecomputationError', ())  # a checkpoint has seen enough: no failure

Kernel = Callable[..., Tensor]
compiled_functions: dict[Hashable, Callable[..., Any]] = {}
known_masks: dict[Hashable, tuple[Any, Any]] = {}
kinds: dict[Hashable, int] = {}
first_sizes: dict[Hashable, Hashable] = {}
works: dict[Hashable, bool] = {}  # kind of call and sizes -> whether it runs, if that was tried


@functools.cache
def load_flex() -> types.ModuleType | None:
    """Import FlexAttention, and sympy with it. None before torch 2.9, which asks masks about keys beyond the last."""
    try:
        from torch.nn.attention import flex_attention
    except ImportError:
        return None
    return flex_attention if hasattr(flex_attention, 'AuxRequest') else None


# Choice.


def fits(call: Call, features: Features) -> bool:
    """Return True if all that acts on the scores of a call has a form for FlexAttention, and no kernel is better."""
    if call.x.device.type not in DEVICES or call.dropout or call.backends is not None or load_flex() is None:
        return False
    if torch.are_deterministic_algorithms_enabled():  # the gradient of a table is summed up in any order
        return False
    if not LEARNED and torch.is_grad_enabled() and any(t.learns for t in (*call.masks, *call.biases)):
        return False
    acting = [feature for feature in select_working(call, features) if not feature.runs_fused]
    if not acting and needs_no_mask(call):
        return False
    return all(has_form(type(feature)) for feature in acting) and all(t.by_entry for t in (*call.masks, *call.biases))


def has_form(feature: type[Feature]) -> bool:
    """Return True if a feature says for all of its stages of scores what it does there."""
    stages = set(EAGER_STAGES) & set(feature.runs_at())
    one, late = (
        stages & {'scores', 'logits'},
        stages & {'masked_scores', 'normalizer', 'wrap_normalizer', 'weights', 'mixed_weights'},
    )
    said = len(one) < 2 and stages == one | late
    for form, steps in (('score_mod', one), ('rescale', late)):
        said = said and (not steps or is_overridden_together(feature, form, *steps))
    return said


def match_dtypes(*qkv: Tensor) -> tuple[Tensor, ...]:
    """Cast q, k and v to the dtype of autocast, if it is on."""
    device = qkv[0].device.type
    if not torch.is_autocast_enabled(device):
        return qkv
    return tuple(t.to(torch.get_autocast_dtype(device)) for t in qkv)


def try_flex(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor | None:
    """Run `run_flex`; return None if FlexAttention cannot run, with a warning unless sizes are the reason."""
    if q.dtype not in DTYPES or not q.dtype == k.dtype == v.dtype or min(q.shape[-1], v.shape[-1]) < LEAST_WIDTH:
        return None
    program = None
    try:
        forms = Forms.of(call, features)
        program = forms.program(q, k, v)
        if not works.get(program, True) or any(t.numel() >= MOST_ENTRIES for t in forms.tensors()):
            return None
        if program not in works:
            differs = try_out(forms, q, k, v, call, features)
            works[program] = differs is None
            if differs is not None:
                warn_once(f'FlexAttention gives other numbers here, blocks take its place: {differs}')
                return None
        return run_flex(q, k, v, call, features, forms)
    except STOPS:
        raise
    except torch.OutOfMemoryError:  # blocks need less
        return None
    except Exception as error:
        works[program] = False
        reason = str(error).strip().partition('\n')[0]
        warn_once(f'FlexAttention does not run here, blocks take its place: {type(error).__name__}: {reason}')
        return None


def try_out(forms: Forms, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> str | None:
    """Run forwards and backwards once, while another kernel can still take over, and compare with the formula for some
    rows: the first ones, some in the middle, the last ones. Gives what differs, or None."""
    own = [t.detach().requires_grad_(t.requires_grad and torch.is_grad_enabled()) for t in (q, k, v)]
    learned = [t for t in own if t.requires_grad]
    spans = split_queries(call, CHECKED_ROWS)
    spans = [spans[at] for at in sorted({0, len(spans) // 2, len(spans) - 1})]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # a checkpoint around counts what is saved
        whole = run_flex(own[0], own[1], own[2], call, features, forms)
        found = torch.cat([whole[..., span.queries, :] for span in spans], dim=-2)
        q, k, v = own
        parts = [
            run_eager(
                q[..., s.queries, :],
                *(slice_keys(t, s.keys, call.keys, -2) for t in (k, v)),
                call=call.block(s),
                features=features,
            )
            for s in spans
        ]
        wanted = torch.cat(parts, dim=-2)
        words = difference('outputs', found, wanted)
        further = [t for t in forms.tensors() if t.requires_grad] if torch.is_grad_enabled() else []
        if words is not None or not (learned or further):
            return words
        steps = torch.linspace(0, 7 * found.numel(), found.numel(), dtype=torch.float32, device=q.device)
        upstream = steps.sin().view_as(found)
        upstream = upstream.to(found.dtype)
        grads = torch.autograd.grad(found, [*learned, *further], upstream, allow_unused=True)
        others = torch.autograd.grad(wanted, learned, upstream, allow_unused=True) if learned else ()
    pairs = zip(grads, others, strict=False)
    said = (difference('gradients', one, other) for one, other in pairs if one is not None and other is not None)
    return next((words for words in said if words is not None), None)


def difference(name: str, found: Tensor, wanted: Tensor) -> str | None:
    """Describe the largest difference of two tensors, if it is more than rounding."""
    if found.numel() == 0:
        return None
    bound = ROUNDING.get(found.dtype, 1e-6)
    found, wanted = widen_dtype(found.detach().flatten()), widen_dtype(wanted.detach().flatten())
    error = (found - wanted).abs().nan_to_num(nan=torch.inf)
    if error.max() <= bound * wanted.abs().max().clamp(min=1e-3):
        return None
    at = error.argmax()
    return f'among its {name} is {found[at].item():.4g}, by the formula {wanted[at].item():.4g}'


# Kernel.


def run_flex(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features, forms: Forms | None = None) -> Tensor:
    """Compute attention by FlexAttention. All masks, biases and features of scores must have a form for it."""
    forms = Forms.of(call, features) if forms is None else forms
    heads, key_heads = q.shape[1], max(k.shape[1], v.shape[1])
    program, groups = forms.program(q, k, v), heads // key_heads
    k, v = tile_heads(k, key_heads), tile_heads(v, key_heads)
    if groups > 1:  # to FlexAttention, neighbours share a key head
        q = swap_arguments(q, groups)
    if 1 < key_heads < heads:
        forms = forms.of_heads(
            swap_arguments(torch.arange(heads, device=q.device)[None, :, None, None], groups).flatten()
        )
    mask = None if forms.mask_mod is None else block_mask(call, forms.mask_mod, groups)
    attend = compile_flex(attention, *program, fullgraph=True)  # in parts it would form the scores
    with torch.autocast(q.device.type, enabled=False):
        out, lse = attend(q * call.scale, k, v, forms.score_mod, mask, groups > 1, bool(forms.rescaling))
    out = swap_arguments(out, key_heads)
    for feature in forms.rescaling:
        out = feature.rescale(out, swap_arguments(lse.unsqueeze(-1), key_heads), call)
    return out


def swap_arguments(t: Tensor, groups: int) -> Tensor:
    """Reorder heads:  b (g k) i d -> b (k g) i d; with the number of key heads, undo it."""
    return t if groups in (1, t.shape[1]) else t.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def attention(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, mask: Any, grouped: bool, sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the output, b h i d, and the log-sum-exps, b h i, if `sums` is set."""
    from torch.nn.attention import flex_attention as flex  # a statement that the compiler can follow

    options = {'score_mod': score_mod, 'block_mask': mask, 'scale': 1.0, 'enable_gqa': grouped}
    if not sums:
        return flex.flex_attention(q, k, v, **options), None
    out, more = flex.flex_attention(q, k, v, **options, return_aux=flex.AuxRequest(lse=True))
    return out, more.lse


def count_visible_blocks(mask_mod: Any, batch: int, heads: int, rows: int, keys: int, device: torch.device) -> Any:
    from torch.nn.attention import flex_attention as flex

    return flex.create_block_mask(mask_mod, batch, heads, rows, keys, device=device)


def compile_flex(function: types.FunctionType, kind: Hashable, sizes: Hashable = None, **options: Any) -> Kernel:
    """A function, compiled for a kind of call, and for its first sizes or all others.

    Each has code of its own: a limit counts what is compiled for one code, and where two programs fit, a checkpoint
    might recompute by the other. By the name torch knows the sizes that came before, and lets those vary that did.
    """
    if (function, kind, sizes) not in compiled_functions:
        number = kinds.setdefault((function, kind), len(kinds))
        code = function.__code__.replace(co_name=f'{function.__name__}_{number}')
        own = types.FunctionType(code, function.__globals__)
        compiled_functions[function, kind, sizes] = torch.compile(own, **options)
    return compiled_functions[function, kind, sizes]


# Forms of masks, biases and features.


@dataclass
class Forms:
    """What acts on scores, (score, b, h, i, j) -> score; (b, h, i, j) -> whether i sees j; what acts on outputs."""

    score_mod: Maybe[Callable[..., Tensor]]
    mask_mod: Maybe[Callable[..., Tensor]]
    rescaling: list[Feature]

    @classmethod
    def of(cls, call: Call, features: Features) -> Forms:
        """Return the forms of a call, in the order of the formula."""
        added = call.total_keys - call.keys
        steps = [f.score_mod(call) for f in select_working(call, features, ('scores',))]
        steps += [add_bias(bias.pointwise(added, 0.0)) for bias in call.biases]
        steps += [f.score_mod(call) for f in select_working(call, features, ('logits',))]
        rescaling = [f for f in dict.fromkeys(select_working(call, features)) if f.rescale is not None]
        return cls(compose(tuple(steps)) if steps else None, call.mask_entry(), rescaling)

    def of_heads(self, order: Tensor) -> Forms:
        """Return the forms for heads in another order."""
        score_mod, mask_mod = self.score_mod, self.mask_mod
        score = None if score_mod is None else lambda score, b, h, i, j: score_mod(score, b, order[h], i, j)
        return Forms(
            score, None if mask_mod is None else lambda b, h, i, j: mask_mod(b, order[h], i, j), self.rescaling
        )

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in leaves((self.score_mod, self.mask_mod)) if torch.is_tensor(leaf)]

    def program(self, *qkv: Tensor) -> tuple[Hashable, Hashable]:
        """Return its key: the kind of the call, all but lengths and numbers in tensors; and the sizes, if they
        are the first of the kind that came."""
        own = tuple((t.dtype, t.device, t.shape[1], t.shape[-1], t.requires_grad, len(t) == 1) for t in qkv)
        kind = _kind_of((self.score_mod, self.mask_mod)), bool(self.rescaling), own, torch.is_grad_enabled()
        sizes = tuple(t.shape for t in qkv)
        return kind, sizes if first_sizes.setdefault(kind, sizes) == sizes else None


def compose(steps: tuple[Callable[..., Tensor], ...]) -> Callable[..., Tensor]:
    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for step in steps:
            score = step(score, b, h, i, j)
        return score

    return score_mod


def add_bias(bias: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda score, b, h, i, j: score + bias(b, h, i, j).to(score.dtype)


def leaves(form: Any) -> Iterator[Any]:
    """Yield the code, numbers and tensors that a function consists of."""
    if isinstance(form, types.FunctionType):
        yield form.__code__
        for cell in form.__closure__ or ():
            yield from leaves(cell.cell_contents)
    elif isinstance(form, tuple):
        yield len(form)
        for part in form:
            yield from leaves(part)
    else:
        yield form


def _kind_of(form: Any) -> Hashable:
    return tuple((t.dtype, t.ndim, t.requires_grad) if torch.is_tensor(t) else t for t in leaves(form))


# Visible blocks of keys for each block of queries.


def block_mask(call: Call, mask_mod: Callable[..., Tensor], groups: int) -> Any:
    """Return the `BlockMask` of a call. The last few are cached, for later layers and calls."""
    made_of: Any = [mask.made_of for mask in call.masks]
    key = (call.x.device, call.batch, call.q_len, call.keys, call.total_keys, groups, torch.is_inference_mode_enabled())
    keeps = all(parts is not None and all(map(_can_keep_mask, parts)) for parts in made_of)
    key = (*key, _kind_of(mask_mod), tuple(map(identity, sum(made_of, ())))) if keeps else None
    if key in known_masks:
        return known_masks[key][0]
    sizes = [to_4d(mask.of(slice(0, 1), slice(0, 1))).shape for mask in call.masks]
    batch, heads = (max((size[axis] for size in sizes), default=1) for axis in (0, 1))
    build = compile_flex(count_visible_blocks, _kind_of((mask_mod, call.x.device)))
    found = build(mask_mod, batch, heads, call.q_len, call.total_keys, call.x.device)
    if keeps:
        while len(known_masks) >= KEPT_MASKS:
            known_masks.pop(next(iter(known_masks)), None)
        known_masks[key] = found, made_of  # what is kept keeps its address
    return found


def _can_keep_mask(part: Any) -> bool:
    return not torch.is_tensor(part) or (not part.is_inference() and part.untyped_storage().nbytes() <= KEPT_BYTES)


def identity(part: Any) -> Hashable:
    if not torch.is_tensor(part):
        return part
    return part.data_ptr(), part._version, part.dtype, part.shape, part.stride()


# Patterns.


def run_flex_pattern(
    q: Tensor, k: Tensor, v: Tensor, call: Call, patterns: Sequence[Pattern], marks: Tensor | None, features: Features
) -> Tensor | None:  # fmt: skip
    """Attention of b h i e to b h j e, whose heads have these patterns; None where the gathered keys are fewer, or for
    calls that FlexAttention does not take: it leaves out blocks of keys that no query of a block sees."""
    if not call.is_large or call.token_idx is not None or torch.compiler.is_compiling():
        return None
    kinds = tuple(dict.fromkeys(patterns))
    if not all(_pad_to_blocks(one, call) for one in kinds):
        return None
    places = tuple([Placement.of(call, one) for one in kinds])
    if any(place.table is not None or place.lengths is not None for place in places):
        return None
    own: Any = copy.copy(call)
    own.masks = [*call.masks, VisibleKeys(kinds, [kinds.index(one) for one in patterns], call, marks, places)]
    return try_flex(*match_dtypes(q, k, v), call=own, features=features) if fits(own, features) else None


def _pad_to_blocks(pattern: Pattern, call: Call) -> bool:
    """Return True if a kernel that computes whole blocks computes little that is hidden: for neighbours, and for keys
    and queries that all meet. A dilation or a stride spreads few keys over all blocks."""
    return not pattern.cannot_cache and all(neighbours(one) for one in pattern.branches(call.keys, call.causal))


def neighbours(branch: Branch) -> bool:
    layout = branch.layout
    return layout.stride == 1 if isinstance(layout, Reach) else isinstance(layout, (Columns, GatherRows))


def _get_bounds(place: Placement, batch: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return where the counted tokens of each row begin (b), and where the keys outside begin and end (b 2); None for
    the first key, and for none."""
    start = place.offset
    if place.count == 0:
        return start, None
    first = place.outside_keys(device)[:, :1].expand(batch, 1)
    start = torch.full((batch,), place.count, device=device) if start is None else start
    return start, torch.cat((first, first + place.count), dim=1)


class VisibleKeys(BlockwiseTerm):
    """The visibility of the patterns of heads, as a mask of a call.

    kinds, of_head    the patterns, and which of them each head has
    places            where the tokens stand that each pattern counts
    """

    def __init__(
        self, kinds: tuple[Pattern, ...], of_head: list[int], call: Call, marks: Tensor | None,
        places: tuple[Placement, ...],
    ) -> None:  # fmt: skip
        device = call.x.device
        self.kinds = kinds
        self.marks: Any = marks
        self.starts, self.fronts = zip(*(_get_bounds(place, call.batch, device) for place in places), strict=True)
        self.of_head = torch.tensor(of_head, device=device) if len(kinds) > 1 else None
        self.behind = torch.full((), call.keys - call.q_len, device=device)
        super().__init__(None, entry=self.function, made_of=(kinds, tuple(of_head), marks, *self.starts, *self.fronts))

    def of(self, rows: slice, keys: slice) -> Tensor:
        device, batch = self.behind.device, [t for t in (self.marks, *self.starts) if t is not None]
        sizes = len(batch[0]) if batch else 1, 1 if self.of_head is None else len(self.of_head)
        b, h, i, j = (torch.arange(at.start, at.stop, device=device) for at in (*map(slice, [0, 0], sizes), rows, keys))
        return self.function()(b[:, None, None, None], h[:, None, None], i[:, None], j)

    def function(self) -> Pointwise:
        """Return a function that holds only patterns and tensors, by which equal calls are found."""
        kinds, starts, of_head, behind, marks = self.kinds, self.starts, self.of_head, self.behind, self.marks
        fronts = self.fronts

        def one_of(at: int, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            start, front = starts[at], fronts[at]
            if start is None:
                return kinds[at].visible(i, j, None if marks is None else lambda place: marks[b, place])
            known = None if marks is None else lambda place: marks[b, place + start[b]]
            seen = kinds[at].visible(i - start[b], j - start[b], known)
            if front is None:
                return seen
            first, last = front[b, 0], front[b, 1]
            return seen | ((i >= first) & (i < last)) | ((j >= first) & (j < last))

        def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i = i + behind
            seen = one_of(0, b, i, j)
            if of_head is not None:
                for at in range(1, len(kinds)):
                    seen = torch.where(of_head[h] == at, one_of(at, b, i, j), seen)
            return seen

        return entry

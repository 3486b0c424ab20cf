"""The levels of a transformer and their stages. A feature derives from the class of its level.

A stage is a `ring` (a transform of a value, applied by all features in the order of the catalogue, `ring out` in
reverse order), a `term` (contributions collected from all features), a `choice` (an override by one feature), or a
`build` step (runs at construction).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from x_transformers.flags import Feature, Features
from x_transformers.kernels.dense import EAGER_STAGES
from x_transformers.kernels.operators import HANDLED, list_call_needs

Level = TypeVar('Level', bound=type[Feature])


class Stage(NamedTuple):
    """A point where features of a level plug in: `takes` is the value of a ring, or a signature."""

    name: str
    kind: str
    takes: str
    does: str

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes of the value of a ring, of each tensor if there are several."""
        found = re.fullmatch(r'(?:\([\w, ]+\), )?(b (?:\w|\([a-z ]+\)| )+)', self.takes)
        return tuple(re.findall(r'\w|\([^)]+\)', found[1])) if found and self.kind.startswith('ring') else ()

    @property
    def signature(self) -> str:
        """Return the signature of its method."""
        if '->' in self.takes:
            return self.takes
        several = self.takes.partition(')')[0] + ')' if self.takes.startswith('(') else ''
        value, rest = several or 'value', self.takes.removeprefix(several).lstrip(', ')
        return f'({value}, call) -> {value}' + (f', {rest}' if rest else '')


def level(
    *stages: Stage, removed: Mapping[str, str] | None = None, renamed: Mapping[str, str] | None = None
) -> Callable[[Level], Level]:
    """Set the stages of a level, in running order, and the names of earlier ones.

    `removed` says what to use instead. `renamed` has the new names; features of users may use the old ones for one
    minor version. `{stages}` in the docstring of the class becomes their table, `{handled}` that of HANDLED.
    """

    def of(kind: Level) -> Level:
        widths = [max(map(len, column)) for column in zip(*stages, strict=True)]
        rows = (zip(stage, widths, strict=True) for stage in stages)
        table = ['   '.join(text.ljust(width) for text, width in row).rstrip() for row in rows]
        lines = '\n    '.join(table)
        handled = '\n    '.join(f'    {name}: {what}' for name, what in HANDLED.items())
        kind.__doc__ = kind.__doc__ and kind.__doc__.replace('{stages}', lines).replace('{handled}', handled)
        kind.stages = {stage.name: stage.kind.partition(' ')[0] for stage in stages}
        kind.reversed_stages = frozenset(stage.name for stage in stages if stage.kind == 'ring out')
        for name, of_stage in kind.stages.items():  # If no feature acts there.
            setattr(Features, name, None if of_stage == 'choice' else ())
        Features.stage_names |= kind.stages.keys()
        kind.gives = {stage.name: gives for stage in stages if (gives := stage.takes.partition(' -> ')[2])}
        kind.axes = {stage.name: axes for stage in stages if (axes := stage.axes)}
        kind.signatures = {stage.name: stage.signature for stage in stages}
        kind.removed_stages = dict(removed or {})
        kind.renamed_stages = dict(renamed or {})
        return kind

    return of


@level(
    Stage('resolve_sizes', 'build', '(widths) -> Widths', 'sizes of queries and keys, before projections are built'),
    Stage('select_inputs', 'choice', '(x) -> (x_q, x_k, x_v[, token_idx])', 'inputs of q, k, v; x_q for all others'),
    Stage('qkv_inputs', 'ring', '(q_in, k_in, v_in), b n d', 'inputs of the projections'),
    Stage('projected', 'ring', '(q, k, v), b n (h d)', 'after the projections'),
    Stage('qkv_heads', 'ring', '(q, k, v), b h n d', 'split into heads, before the cache'),
    Stage('rotate_new', 'ring', '(q, k), b h n d', 'rotations of new tokens, if the cache stores rotated keys'),
    Stage('update_cache', 'choice', '(k, v, call) -> (k, v)', 'append keys and values to the cache'),
    Stage('extra_keys', 'ring', 'k', 'keys without a token (memory key/values), transformed like others'),
    Stage('rotate', 'ring', '(q, k), b h n d', 'after the cache: rotations'),
    Stage('mask', 'term', '(call) -> bool, to b h i j', 'combined by AND, True means attend; or `BlockwiseTerm`'),
    Stage('bias', 'term', '(call) -> float, to b h i j', 'summed; or `BlockwiseTerm`'),
    Stage('prepend_kv', 'term', '(call) -> (k, v)', 'prepended, always visible; `BareKeys(k, v)` skip `pre_attention`'),
    Stage('pre_attention', 'ring', '(q, k, v), b h n d', 'before the kernel'),
    Stage('pre_kernel', 'ring', '(q, k), b h n d', 'q and k as passed to the kernel'),
    Stage('attend', 'choice', '(q, k, v, call) -> (out, lse | None)', 'replaces all stages up to `weighted_values`'),
    Stage('scores', 'ring', 'b h i j', 'before the bias'),
    Stage('logits', 'ring', 'b h i j', 'after the bias, before the mask'),
    Stage('score_mask', 'choice', '(call) -> bool, to b h i j | None', 'mask of the logits, True means attend'),
    Stage('masked_scores', 'ring', 'b h i j', 'after the mask, with the lowest finite number where masked'),
    Stage('normalizer', 'choice', '(logits, call) -> weights', 'normalization over the last axis, by default softmax'),
    Stage('wrap_normalizer', 'ring', '(function) -> function', 'wraps the normalizer'),
    Stage('weights', 'ring out', 'b h i j', 'attention weights; returned maps are those after this stage'),
    Stage('mixed_weights', 'ring out', 'b h i j', 'dropout and mixing, not in returned maps'),
    Stage('weighted_values', 'ring', '(out, weights, call) -> out', 'weighted sum of values, and weights, per block'),
    Stage('post_attention', 'ring out', 'b h i d', 'after the kernel'),
    Stage('head_outputs', 'ring', 'b h i d', 'outputs of the heads'),
    Stage('merged_heads', 'ring', 'b i (h d)', 'merged heads, before the output projection'),
    Stage('layer_output', 'ring', 'b i d', 'output of the layer'),
    Stage('initialize', 'build', '() -> None', 'change initial values, after everything is built; or build `to_out`'),
    removed={
        'similarity': '`attend`, which computes the output from q, k and v',
        'prior': '`scores`, which gets the scores and returns the sum',
        'bare_keys': '`prepend_kv`, which returns `BareKeys(k, v)`',
        'project_out': "`initialize`, which sets `owner.to_out`, and `sets_on_module = ('to_out',)`",
    },
    renamed={
        'widths': 'resolve_sizes',
        'views': 'select_inputs',
        'sources': 'qkv_inputs',
        'heads': 'qkv_heads',
        'turn': 'rotate_new',
        'past': 'update_cache',
        'place': 'rotate',
        'stored_keys': 'extra_keys',
        'keys': 'prepend_kv',
        'enter': 'pre_attention',
        'meet': 'pre_kernel',
        'sight': 'score_mask',
        'rows': 'masked_scores',
        'normaliser': 'normalizer',
        'normalising': 'wrap_normalizer',
        'mix': 'mixed_weights',
        'gathered': 'weighted_values',
        'leave': 'post_attention',
        'attended': 'head_outputs',
        'output': 'merged_heads',
        'result': 'layer_output',
        'initialise': 'initialize',
    },
)
class AttentionFeature(Feature):
    """A feature of one attention layer. Its stages, in running order:

    {stages}

    With an arrow, the third column is the signature of the method. Otherwise it is the value of a ring, whose method
    is (value, call) -> value, with one tuple for several tensors; the lengths of b, n and i must not change. All
    features at a ring are applied, in the order of the catalogue, at `ring out` in reverse order. A term is collected
    from all features, None for no contribution. A choice is made by one feature and replaces the default. A build step
    runs at construction.

    The call has the input of the queries `x` (b, i, d), the numbers `heads`, `q_len` (queries), `keys`, and
    `total_keys` (prepended keys included), `scale`, `training`, the `inputs` of features, `key_mask` (b, j), True for
    keys that are not padding (None for all), and `query_mask` (b, i), the same for queries. From `scores` to
    `weighted_values`, `call.visible()` is the mask of all keys that each query attends to, including causality: bool,
    broadcasting to (b, h, i, j), or None for all.

    The cache stores the states declared in `states`, per layer: `call.state(name)`. Their length is that of the
    sequence, in cross-attention too. Features at stages that run in blocks (below) must read states before these
    stages, at `bias` or earlier, or after them, at `post_attention` or later.

    Queries can be other tokens than those of x in order: then `select_inputs` returns `token_idx`, (i) or (b, i), the
    index in x of each query. Masks, biases and rotations follow; features that cannot raise an error. Features that
    depend on positions must use only differences of `call.q_pos` and `call.k_pos`, the positions of queries, (i) or
    (b, i), and of keys, (j) or (b, j), without prepended keys, or of `call.q_at` and `call.k_at`, their indices in the
    sequence, which do not depend on `pos` of the caller. `call.of_queries(t)` selects the entries of the queries in a
    tensor over keys.

    `owner.shape` has the sizes `heads`, `kv_heads`, `dim_head` and `dim_value`. `resolve_sizes` gets and returns a
    dataclass with the widths of the inputs, `q` and `kv`, and `query_heads`, `key_heads` and `dim_key`; some channels
    of a key head can come from another projection (`elsewhere`). Flags that differ between layers are passed to the
    stack as a tuple, with one value per layer. In a call, `owner.layer_number` is the index among layers of one kind.

    From `scores` to `weighted_values`, the call may be that of a block of queries (`blocks.py`), so that memory does
    not grow quadratically with the length. If a feature at these stages does not support blocks, all queries are
    computed at once.

    row_wise                the result for a query does not depend on other queries: it uses only the given scores, and
                            values of the whole call by `call.cut`, `cut_rows`, `cut_keys`
    needs_masked_keys       it needs the columns of masked keys
    carries                 names of tensors in `call.carried`, which later blocks of queries read
    keeps_unrotated_keys    the cache must store unrotated keys
    allows_eviction         its result does not change if keys that no query attends to are evicted from the cache
    limits_window           queries attend only to the last keys: `reach_and_step(call)` returns the distance to the
                            first one, and the multiple in which keys may be evicted; None if there is no limit
    is_window               its mask only hides keys beyond a distance, which need not be computed
    per_head                it has parameters or values per head, so that the number of query heads must not change

    A feature at the stages of scores can also run in FlexAttention (`flex.py`), if it defines one of these:

    score_mod(call)   -> a function (score, b, h, i, j) -> score, equivalent to `scores` or `logits` for one score;
                      it may hold tensors and numbers, but none that changes with the lengths
    rescale(out, lse, call)   -> out, equivalent to `masked_scores` and later stages, from the output (b, h, i, d) and
                      the logarithm of the softmax denominator (b, h, i, 1)

    A feature at `attend` replaces the kernels. It returns the output, (b, h, i, d), zeros for queries whose keys are
    all masked, and if available the logarithms of the softmax denominators, (b, h, i), so that outputs can be merged
    over disjoint keys (`kernels/merging.py`). It gets masks and biases from `call.mask_entry()` and
    `call.bias_entry()`, for one query and one key at a time, or from `of(rows, keys)` of `call.masks` and
    `call.biases`. Inputs that it does not list in `handles` raise an error.

    handles              names of this table, which its `attend` supports

    {handled}

    unsupported(call)    -> the reason why it does not support a call, or None; called before each call
    maps(q, k, call)     -> scores, logits and weights, each (b, h, i, j), if attention maps are returned
    """

    replaces = {'attend': EAGER_STAGES}
    handles: Collection[str] = ()
    maps: ClassVar[Any] = None

    row_wise: ClassVar[bool] = False
    needs_masked_keys: ClassVar[bool] = False
    carries: ClassVar[tuple[str, ...]] = ()
    keeps_unrotated_keys: ClassVar[bool] = False
    allows_eviction: ClassVar[bool] = False
    limits_window: ClassVar[bool] = False
    is_window: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    score_mod: ClassVar[Any] = None
    rescale: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        unknown = [name for name in cls.handles if name not in HANDLED]
        if unknown:
            raise TypeError(f'`handles` of {cls.__name__} must be some of {", ".join(HANDLED)}, got {unknown[0]!r}')

    def refuse_context(self, call: Any) -> None:
        """Raise ValueError if the keys are those of a context."""
        if call.context is not None:
            raise ValueError(
                f'`{self.display_name}` cannot be combined with a context: {self.reason("cross-attention")}'
            )

    def unsupported(self, call: Any) -> str | None:
        """Return what of a call its `attend` cannot take into account, or None."""
        return next((words for need, words in list_call_needs(call, self) if need not in self.handles), None)


@level(
    Stage('activation', 'choice', '() -> Module', 'activation instead of GELU'),
    Stage('up_proj', 'choice', '(activation) -> Module', 'up projection, from dim to the inner width, with activation'),
    Stage('layers', 'build', '(modules) -> list of Module', 'change the modules: up projection, dropout, projection'),
    Stage('initialize', 'build', '() -> None', 'change initial values, after everything is built'),
    Stage('ff_input', 'ring', 'b n d', 'input of a call'),
    Stage('run', 'choice', '(x, call) -> out', 'replaces `owner.ff(x)`'),
    Stage('layer_output', 'ring', 'b n d', 'output of the feedforward'),
    removed={
        'inner': '`layers`, which gets the list of modules and returns it with the new one',
        'behind': '`layers`, which gets the list of modules and returns it with the new one',
        'outputs': 'an attribute `output_layers` of the module that the feature adds',
        'around': '`ff_input`, which sets `call.slices`',
    },
    renamed={'widen': 'up_proj', 'enter': 'ff_input', 'result': 'layer_output', 'initialise': 'initialize'},
)
class FeedForwardFeature(Feature):
    """A feature of a feedforward. Its stages: those up to `initialize` build it, the others run in each call.

    {stages}

    They are called as described in `AttentionFeature`. A feature at `layers` gets the list of modules and returns it
    changed. `owner.output_layers` are the output projections, by default the last module that is no dropout; a module
    of the feature with an attribute `output_layers` replaces them.

    The call has the input `x`, the `inputs` of features, and in a stack the `mask` (b, n), True for tokens that are not
    padding, or None, the index `layer` and the `kind` of the layer. Losses must ignore padding: `call.real(t)` removes
    it. The stack stores the states in `states` per layer; a feedforward without a stack has no past.

    `in_slices`: a feature at `run` passes its function of tokens through `call.in_slices(function)`.
    """

    in_slices: ClassVar[bool] = False


# the stages of a feedforward that run at each call
IN_FEEDFORWARD = ('ff_input', 'run', 'layer_output')


@level(
    Stage('block', 'build', '(kinds) -> list of kinds', 'kinds of the repeated block'),
    Stage('layout', 'choice', '(block, depth) -> list of kinds', 'kinds of all layers'),
    Stage('norm', 'choice', '() -> Module', 'a norm of the residual stream'),
    Stage('norms', 'build', '(norms, kind, index) -> norms', 'before a branch, after it, after the residual; or None'),
    Stage('branch_flags', 'build', '(flags, kind, number) -> flags', 'keywords of the n-th branch of a kind'),
    Stage('wrap', 'build', '(branch, kind, index) -> Module', 'wrap a branch, first feature innermost'),
    Stage('residual', 'choice', '(dim, layer_index, ...) -> Module', 'the residual; it gets the output and the call'),
    Stage('stack_input', 'ring', 'x', 'before the first layer; may set values of the call'),
    Stage('execute_layers', 'choice', '(run, x, call) -> x', 'execute the layers: `run` runs given steps'),
    Stage('should_skip', 'term', '(layer, call) -> bool', 'True to skip this layer in this call'),
    Stage('layer_input', 'ring', '(x, layer, call) -> x', 'residual stream before a layer; skipped if `call.left_out`'),
    Stage('branch_input', 'ring', '(x, layer, call) -> x', 'input of a branch, before its norm'),
    Stage('normed', 'ring', '(x, layer, call) -> x', 'input of a branch, after its norm'),
    Stage('inputs', 'ring', '(keywords, layer, call) -> keywords', 'keyword arguments of the branch'),
    Stage('on_attention', 'term', '(layer, intermediates, call) -> None', 'called after an attention layer'),
    Stage('stack_output', 'ring out', 'x', 'after the last layer'),
    Stage('finish', 'choice', '(x, call) -> x', 'replaces the final norm'),
    removed={
        'kinds': '`setup`, which may replace `owner.layer_types`, or `block`',
        'order': '`setup`, which may replace `owner.layers_execute_order`',
        'each_norm': '`setup`, which may add a function to `owner.norm_changes`',
        'norm_at_end': "`norms`, which is called for the final norm too, with the kind 'end'",
        'norm_branch': '`norms`, which returns the norms before a branch, after it, and after the residual',
        'residual_options': '`setup`, which may change `owner.residual_options`',
        'skipped': '`layer_input`, where `call.left_out` is True for skipped layers',
        'joined': '`residual`, a module that is called with the branch output and the call',
    },
    renamed={
        'through': 'execute_layers',
        'arrive': 'layer_input',
        'skips': 'should_skip',
        'read': 'branch_input',
        'attended': 'on_attention',
        'open': 'stack_input',
        'close': 'stack_output',
    },
)
class StackFeature(Feature):
    """A feature of a stack of layers. Its stages, in running order:

    {stages}

    They are called as described in `AttentionFeature`.

    `setup` runs when the kinds of all layers are known: it may replace `owner.layer_types` and
    `owner.layers_execute_order`, extend `owner.norm_changes`, functions that change each new norm, and change
    `owner.residual_options`, arguments of the residuals. `norms` is also called for the final norm, with the kind
    'end': (None, None, norm). A residual is called as `residual(out, skip, call=call)`.

    At `execute_layers`, `run(x, call, steps)` runs some of the steps `range(len(call.order))`; the layer of a step is
    `owner.layers[call.order[step]]`. Code that runs layers by `layer.branch(x, call, owner.features)` must set
    `call.step` before each; to run one again, `call.at_step(step)` is the call as it was. Losses added under
    `torch.no_grad` have no gradient: collect them with `AuxLosses`, and pass their gradients on. Several residual
    streams are part of the batch axis of x, (b s, n, d).

    A state in `states` belongs to the whole stack; `call.state(name, call.step)` is a separate one per layer.
    `gives_positions`: True if models add no absolute positions, None if they pass theirs as `pos_vectors` instead.
    `counts_from`: 'call' if its result for a token depends on the index after the first token of the call, or the first
    memory; 'segment' if on the index in the segment, independent of memories.
    `per_head`: it passes values per head to the layers.
    `keeps_blocks`: False if layers no longer form equal blocks, None if the feature also sets their number.
    `follows_length`: its result for a token depends on the number of tokens in the call, which excludes drafted tokens.
    `starts_over(cache, count, pads)`: True if cached tokens must be recomputed once there are `count` more tokens.
    """

    gives_positions: ClassVar[bool | None] = False
    counts_from: ClassVar[str | None] = None
    per_head: ClassVar[bool] = False
    keeps_blocks: ClassVar[bool | None] = True
    follows_length: ClassVar[bool] = False
    starts_over: ClassVar[Any] = None


@level(
    Stage('token_embeds', 'ring', 'b n e', 'token embeddings'),
    Stage('embed', 'term', '(call) -> b n e', 'added to the token embeddings'),
    Stage('embedded', 'ring', 'x', 'the summed embeddings, b n e: norms, prefixes, gradients'),
    Stage('prepend_prefix', 'ring', 'x', 'prepend tokens to b n d'),
    Stage('stack_inputs', 'ring', 'keywords', 'keyword arguments of the stack'),
    Stage('execute_stack', 'choice', '(run, x, call) -> (x, trace)', 'run the stack, once or several times'),
    Stage('strip_prefix', 'ring out', 'x', 'remove prepended tokens'),
    Stage('pool', 'ring', 'x', 'pool the hidden states, b n d'),
    Stage('readout', 'choice', '() -> Module', 'the output head, from hidden states to logits'),
    Stage('head_input', 'ring', 'x', 'input of the output head'),
    Stage('logits', 'ring', 'b n l', 'the logits'),
    Stage('update_memories', 'choice', '(mems, hiddens, call) -> mems', 'memories for the next segment'),
    Stage('model_output', 'ring', '(out, x, call) -> out', 'the returned output'),
    Stage('next_segment_inputs', 'term', '(trace) -> keywords', 'keyword arguments of the call for the next segment'),
    renamed={
        'lengthen': 'prepend_prefix',
        'shorten': 'strip_prefix',
        'spread': 'head_input',
        'remember': 'update_memories',
        'answer': 'model_output',
        'carry': 'next_segment_inputs',
        'passes': 'execute_stack',
    },
)
class ModelFeature(Feature):
    """A feature of a model around a stack. Its stages, in running order:

    {stages}

    They are called as described in `AttentionFeature`.

    `update_memories` returns memories (b, m, d) per self-attention layer, computed from the memories of earlier
    segments (None if there are none) and the inputs of these layers in this one. If generation ran a segment in several
    calls, `call` has only their `trace` and `new_states`, and no inputs.

    `by_token`: losses may be computed for some tokens at a time: `head_input` and `logits` treat each token separately,
    and `model_output` returns the output unchanged.
    `counts_from`: 'segment' if positions have a maximum, so that each segment begins at the first one.
    """

    counts_from: str | None = None
    by_token: ClassVar[bool] = False


def uses(stack: Any, name: str) -> bool:
    """Return True if any self-attention of a stack has a flag on."""
    value = stack.branch_flags['a'].get(name)
    return any(value) if isinstance(value, tuple) else bool(value)


def visible_keys(call: Any) -> Tensor | None:
    """Return which keys the masks of a call show to all of its queries, b 1 1 j; None for all."""
    masks = [call.expand_term(term, True) for term in call.masks if term.of_keys]
    return functools.reduce(torch.logical_and, masks) if masks else None

"""The levels of a transformer and their stages. A feature derives from the level that it plugs into.

A stage is a `ring` (value in, value out, in the order of the catalogue, or in reverse where it says `out`), a `term`
(gathered from all features), a `choice` (replaces the one way), or a `build` step (runs at construction).

What a stage takes is the signature of its method if it has an arrow; else the value of a ring, whose method is
(value, call) -> value, with one tuple for several, and its axes, of which b, n and i stay as long as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar, NamedTuple, TypeVar

from x_transformers.flags import Feature
from x_transformers.kernels.dense import EAGER_STAGES

Level = TypeVar('Level', bound=type[Feature])


class Stage(NamedTuple):
    """A place where features of a level plug in: `takes` is the value of a ring, or a signature."""

    name: str
    kind: str
    takes: str
    does: str

    @property
    def axes(self) -> tuple[str, ...]:
        """Those of the value of a ring, of each if there are several."""
        found = re.fullmatch(r'(?:\([\w, ]+\), )?(b (?:\w|\([a-z ]+\)| )+)', self.takes)
        return tuple(re.findall(r'\w|\([^)]+\)', found[1])) if found and self.kind.startswith('ring') else ()

    @property
    def signature(self) -> str:
        """What its method is called with, and what it gives."""
        if '->' in self.takes:
            return self.takes
        several = self.takes.partition(')')[0] + ')' if self.takes.startswith('(') else ''
        value, rest = several or 'value', self.takes.removeprefix(several).lstrip(', ')
        return f'({value}, call) -> {value}' + (f', {rest}' if rest else '')


def level(*stages: Stage) -> Callable[[Level], Level]:
    """The stages of a level, in running order; `{stages}` in its docstring becomes their table, `{handled}` HANDLED."""

    def of(kind: Level) -> Level:
        widths = [max(map(len, column)) for column in zip(*stages, strict=True)]
        rows = (zip(stage, widths, strict=True) for stage in stages)
        table = ['   '.join(text.ljust(width) for text, width in row).rstrip() for row in rows]
        lines = '\n    '.join(table)
        kind.__doc__ = kind.__doc__ and kind.__doc__.replace('{stages}', lines).replace('{handled}', lines_of_handled())
        kind.stages = {stage.name: stage.kind.partition(' ')[0] for stage in stages}
        kind.gives = {stage.name: gives for stage in stages if (gives := stage.takes.partition(' -> ')[2])}
        kind.axes = {stage.name: axes for stage in stages if (axes := stage.axes)}
        kind.signatures = {stage.name: stage.signature for stage in stages}
        return kind

    return of


# what a feature at `attend` may say that it handles
HANDLED = {
    'causal': 'a query sees no later key',
    'masks': 'keys are hidden, as `call.mask_entry()` says',
    'padding': 'masks that are the same for all heads and queries; whoever handles masks handles them',
    'documents': 'a query sees its document, one of those of `document_ids`; whoever handles masks handles them',
    'biases': 'numbers are added to scores, as `call.bias_entry()` says',
    'rows': 'masks and biases without a form for one query and one key; they have `of(rows, keys)`',
    'keys': 'keys in front that every query sees, the first `call.total_keys - call.keys` ones',
    'past': 'there are more keys than queries, which are the last ones: a cache, memories',
    'context': 'keys are those of a context',
    'elsewhere': 'queries stand at `call.places`',
    'dropout': 'weights are dropped, a share `call.dropout` of them',
    'groups': 'there are fewer key heads than query heads: query head h reads key head h mod k; else they are repeated',
}


def needs_of(call: Any, feature: Any) -> Iterator[tuple[str, str]]:
    """What a call asks of what attends, and in which words it would be refused."""
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
        yield 'biases', f'`{term.name or "attn_bias"}`: nothing is added to its scores'
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
        yield 'dropout', '`dropout`: it has no weights to drop'
    if call.inputs.get('keep_maps') and feature.maps is None:
        yield 'maps', '`return_attn` or others that ask for its scores: it keeps none'


def lines_of_handled() -> str:
    return '\n    '.join(f'    {name}: {what}' for name, what in HANDLED.items())


@level(
    Stage('widths', 'build', '(widths) -> Widths', 'what queries and keys are made from, before they are built'),
    Stage('views', 'choice', '(x) -> (x_q, x_k, x_v[, places])', 'of which x_q is the input, for everything else'),
    Stage('sources', 'ring', '(q_in, k_in, v_in), b n d', 'before projection'),
    Stage('projected', 'ring', '(q, k, v), b n (h d)', 'as projected'),
    Stage('heads', 'ring', '(q, k, v), b h n d', 'before the cache'),
    Stage('turn', 'ring', '(q, k), b h n d', 'of the new tokens: what the cache keeps turned'),
    Stage('past', 'choice', '(k, v, call) -> (k, v)', 'appended to those of the cache'),
    Stage('stored_keys', 'ring', 'k', 'keys that no token gave, treated like real ones'),
    Stage('place', 'ring', '(q, k), b h n d', 'after the cache: rotations'),
    Stage('mask', 'term', '(call) -> bool, to b h i j', 'ANDed, True may be attended; or `Rows`, in blocks'),
    Stage('bias', 'term', '(call) -> float, to b h i j', 'summed; or `Rows`'),
    Stage('keys', 'term', '(call) -> (k, v)', 'prepended, always visible'),
    Stage('enter', 'ring', '(q, k, v), b h n d', 'before the kernel'),
    Stage('bare_keys', 'term', '(k, v, call) -> (k, v)', 'prepended after `enter`'),
    Stage('meet', 'ring', '(q, k), b h n d', 'the last word on what the kernel multiplies'),
    Stage('attend', 'choice', '(q, k, v, call) -> (out, log_sums | None)', 'in place of all stages up to `gathered`'),
    Stage('similarity', 'choice', '(q, k, call) -> b h i j', 'scaled; k may have fewer heads: h reads h mod k'),
    Stage('prior', 'term', '(call) -> b h i j', 'logits from elsewhere'),
    Stage('scores', 'ring', 'b h i j', 'before the bias'),
    Stage('logits', 'ring', 'b h i j', 'after the bias, before the mask'),
    Stage('sight', 'choice', '(call) -> bool, to b h i j | None', 'which logits the mask leaves'),
    Stage('rows', 'ring', 'b h i j', 'after the mask, which leaves the lowest finite number'),
    Stage('normaliser', 'choice', '(logits, call) -> weights', 'over the last axis'),
    Stage('normalising', 'ring', '(function) -> function', 'around the normaliser'),
    Stage('weights', 'ring out', 'b h i j', 'recorded after this'),
    Stage('mix', 'ring out', 'b h i j', 'dropout and mixing, not recorded'),
    Stage('gathered', 'ring', '(out, weights, call) -> out', 'what the weights gathered, with them, in blocks too'),
    Stage('leave', 'ring out', 'b h i d', 'after the kernel'),
    Stage('attended', 'ring', 'b h i d', 'per-head outputs'),
    Stage('output', 'ring', 'b i (h d)', 'merged heads, before the projection'),
    Stage('project_out', 'choice', '() -> Module', "the projection, given by the host's sizes"),
    Stage('result', 'ring', 'b i d', 'what the layer gives'),
    Stage('initialise', 'build', '() -> None', 'last word on initial values'),
)
class AttentionFeature(Feature):
    """A feature of one attention layer. Its stages, in running order:

    {stages}

    Where there is an arrow it is the signature of the method; else the value of a ring: (value, call) -> value, with
    one tuple for several tensors; its axes b, n and i stay as long as they are. All features at a ring act, in the
    order of the catalogue, in reverse at `ring out`.
    A term is gathered from all of them, None for none; a choice is made by one, in place of the library's own way; a
    build step runs at construction.

    The call holds the input of the queries `x` (b i d), counts of `heads`, `rows` (queries), `keys`, and `total_keys`
    with those that features put in front, `scale`, `training`, the `inputs` that features take, and `real`, which of
    the keys are real tokens (b j), None for all; of the queries `real_queries` says it (b i). From `similarity` to
    `gathered` `call.visible()` says which keys each query sees, by masks and causality together: bool, to b h i j, None
    for all.

    What it declares in `remembers` is kept by the cache, layer by layer: `call.state(name)`. It counts the tokens of
    the sequence, in cross-attention too. Stages that run in blocks (below) read states before that, at `bias` or
    earlier, or at `leave` or later.

    Queries need not be the tokens in their order: then `views` says by `places`, (i) or (b i), at which tokens of x
    they stand. Masks, biases and rotations follow; what cannot is refused by name. What depends on place reads
    nothing but the differences of `call.q_pos` and `call.k_pos`, the positions of queries, (i) or (b i), and keys, (j)
    or (b j), without those that features put in front; or of `call.q_at` and `call.k_at`, where they stand in their
    sequence whatever positions the caller gives. `call.of_queries(t)` gives what belongs to queries in a tensor that
    counts keys.

    `host.shape` has the sizes `heads`, `kv_heads`, `dim_head` and `dim_value`. `widths` gets and gives a dataclass, of
    the widths of the inputs, `q` and `kv`, and `query_heads`, `key_heads` and `dim_key`; of the features of a key head
    some may come from `elsewhere`. A layer does not know its number: a flag that differs from layer to layer is written
    as a tuple, one value for each.

    From `similarity` to `gathered` the call may be one of a block of queries (`blocks.py`), so that memory does not
    grow with the square of the length. Where a feature at these stages knows nothing of blocks, all rows come at once.

    row_wise            it gives a row the same whichever others are there: reads the scores it is handed, and what it
                        kept of the whole call by `call.cut`, `cut_rows`, `cut_keys`
    counts_hidden       it needs the columns of keys that the mask hides
    carries             names of tensors in `call.carried`, where rows read what earlier ones left
    keeps_plain_keys    the cache must hold keys that are not turned by their positions
    keys_may_leave      it does the same where keys that no query sees have left the cache
    limits_sight        queries see none but the last keys: `reach_and_step(call)` says how far back the first one is,
                        and by multiples of what keys may leave; None if there is no such limit
    is_band             its mask hides keys that are far away, and no others: they need not be read
    per_head            it holds numbers for each of the layer's heads, so another count of query heads is not for it

    A feature at the stages of scores may run in FlexAttention too (`flex.py`), if it says by one of these what it does:

    score_mod(call)   -> a function (score, b, h, i, j) -> score that does for one score what `scores` or `logits` does;
                      it holds tensors and numbers, but none that changes with the lengths
    rescale(out, log_sums, call)   -> out    what it does at `rows` and later, from the output b h i d, and
                      the logarithm of what the softmax divides by, b h i 1

    A feature at `attend` takes the place of the kernels. It gives the output, b h i d, zeros for a query that sees no
    key, and where it has them the logarithms of what its softmax divides by, b h i, so that outputs of disjoint keys
    can be put together (`kernels/merging.py`). Masks and biases it reads by `call.mask_entry()` and
    `call.bias_entry()`, for one query and one key at a time, or by the `of(rows, keys)` of `call.masks` and
    `call.biases`. What it does not say to handle is refused by name.

    handles              some of what follows, which its `attend` takes into account

    {handled}

    unsupported(call)    -> what it does not go with, or None; asked before each call
    maps(q, k, call)     -> similarities, logits and weights, each b h i j, for whoever asks for them
    """

    replaces = {'attend': EAGER_STAGES}
    handles: Collection[str] = ()
    maps: ClassVar[Any] = None

    row_wise: ClassVar[bool] = False
    counts_hidden: ClassVar[bool] = False
    carries: ClassVar[tuple[str, ...]] = ()
    keeps_plain_keys: ClassVar[bool] = False
    keys_may_leave: ClassVar[bool] = False
    limits_sight: ClassVar[bool] = False
    is_band: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    score_mod: ClassVar[Any] = None
    rescale: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        unknown = [name for name in cls.handles if name not in HANDLED]
        if unknown:
            raise TypeError(f'`handles` of {cls.__name__} got {unknown[0]!r}, it must be some of {", ".join(HANDLED)}')

    def unsupported(self, call: Any) -> str | None:
        """What of a call its `attend` cannot take into account, or None."""
        return next((words for need, words in needs_of(call, self) if need not in self.handles), None)


@level(
    Stage('activation', 'choice', '() -> Module', 'replaces GELU'),
    Stage('widen', 'choice', '(activation) -> Module', 'dim -> inner width, activation included'),
    Stage('inner', 'build', '() -> Module', 'modules between the activation and the dropout'),
    Stage('behind', 'build', '() -> Module', 'modules behind the output projection'),
    Stage('layers', 'choice', '() -> Module', 'all of these, built once; by default one after the other'),
    Stage('outputs', 'choice', '() -> list of Module', 'projections back, with `weight`, `bias`, `in_features`'),
    Stage('initialise', 'build', '() -> None', 'last word on initial values'),
    Stage('enter', 'ring', 'b n d', 'what comes in, at each call'),
    Stage('run', 'choice', '(x, call) -> out', "in place of the host's `ff(x)`"),
    Stage('around', 'ring', '(function, call) -> function', 'around what runs, from tokens to what counts them'),
    Stage('result', 'ring', 'b n d', 'what the feedforward gives'),
)
class FeedForwardFeature(Feature):
    """A feature of a feedforward. Its stages: those up to `initialise` build it, the others run at each call.

    {stages}

    They are called as `AttentionFeature` says. A feature at `layers` has what the other flags say by
    `host.build_layers()`; if it does not ask, they do nothing, and it should refuse them by `clashes`.

    The call holds the input `x`, the `inputs` that features take, and in a stack the `mask` of real tokens (b n) or
    None, the index `layer` and the `kind` of the layer. Tokens of padding count for no loss: `call.real(t)` leaves out
    their rows. What it `remembers` the stack keeps for each layer; a feedforward alone has no past.

    `in_slices`: a feature at `run` hands what it computes for each token to `host.features.chain('around', ..., call)`.
    """

    in_slices: ClassVar[bool] = False


# the stages of a feedforward that run at each call
IN_FEEDFORWARD = ('enter', 'run', 'around', 'result')


@level(
    Stage('block', 'build', '(kinds) -> list of kinds', 'the repeated block'),
    Stage('layout', 'choice', '(block, depth) -> list of kinds', 'which branch stands where'),
    Stage('kinds', 'build', '(kinds) -> list of kinds', 'the last word on that'),
    Stage('order', 'choice', '(layers, depth) -> tuple of layer indices', 'in which order they run'),
    Stage('norm', 'choice', '() -> Module', 'a norm of the stream'),
    Stage('each_norm', 'build', '(norm) -> norm', 'the last word on each of these'),
    Stage('norm_at_end', 'choice', '() -> Module', 'the final norm, built once'),
    Stage('norm_branch', 'choice', '() -> Module', 'a norm of what a branch gives'),
    Stage('norms', 'build', '(norms, kind, index) -> norms', 'before a branch, after it, after the residual; or None'),
    Stage('branch_flags', 'build', '(flags, kind, number) -> flags', 'keywords of the n-th branch of a kind'),
    Stage('wrap', 'build', '(branch, kind, index) -> Module', 'around a branch, first feature innermost'),
    Stage('residual_options', 'build', '(options) -> dict', 'arguments of the residual'),
    Stage('residual', 'choice', '(dim, layer_index, ...) -> Module', 'how a branch joins the stream'),
    Stage('open', 'ring', 'x', 'before the first layer; may fill the call'),
    Stage('through', 'choice', '(run, x, call) -> x', 'how the layers run: `run` takes their steps'),
    Stage('arrive', 'ring', '(x, layer, call) -> x', 'the stream before a layer, left out or not'),
    Stage('skips', 'term', '(layer, call) -> bool', 'leave this layer out, this time'),
    Stage('skipped', 'term', '(x, layer, call) -> None', 'it was left out'),
    Stage('read', 'ring', '(x, layer, call) -> x', 'the input of a branch, before its norm'),
    Stage('normed', 'ring', '(x, layer, call) -> x', 'the same, after its norm'),
    Stage('inputs', 'ring', '(keywords, layer, call) -> keywords', 'what the branch is called with'),
    Stage('attended', 'term', '(layer, intermediates, call) -> None', 'after an attention layer has run'),
    Stage('joined', 'term', '(layer, out, call) -> None', 'what a branch gives to the stream'),
    Stage('close', 'ring out', 'x', 'after the last layer'),
    Stage('finish', 'choice', '(x, call) -> x', 'in place of the final norm'),
)
class StackFeature(Feature):
    """A feature of a stack of layers. Its stages, in running order:

    {stages}

    They are called as `AttentionFeature` says.

    At `through`, `run(x, call, steps)` runs some of the steps `range(len(call.order))`; the layer of one is
    `host.layers[call.order[step]]`. Who runs layers by `layer.branch(x, call, host.features)` sets `call.step` before
    each; to run one again, `call.at_step(step)` is the call as it was. Losses that it adds under `torch.no_grad` teach
    nothing: gather them with `AuxLosses`, and hand their gradients on. Residual streams stand in the batch of x there,
    (b s) n d.

    A state that it `remembers` is one for the stack; `call.state(name, call.step)` gives each layer one of its own.
    `gives_positions`: wrappers add no absolute positions. `reads_positions`: they hand over their vectors instead, as
    `pos_vectors`. `needs_no_depth`: the feature says how many layers there are.
    `from_first`: what it gives a token follows from its place behind the first token that is read, or the first memory;
    `begins_anew`: from its place in the segment, whatever memories there are.
    `per_head`: it gives layers numbers for each head.
    `keeps_blocks`: False if layers no longer come in equal blocks.
    `follows_length`: what it gives a token depends on how many are read with it, so that several may not be guessed.
    `starts_over(cache, count, pads)`: whether tokens of a cache must be read again, once there are `count` more.
    """

    gives_positions: ClassVar[bool] = False
    reads_positions: ClassVar[bool] = False
    from_first: ClassVar[bool] = False
    begins_anew: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    needs_no_depth: ClassVar[bool] = False
    keeps_blocks: ClassVar[bool] = True
    follows_length: ClassVar[bool] = False
    starts_over: ClassVar[Any] = None


@level(
    Stage('token_embeds', 'ring', 'b n e', 'the embeddings of the tokens'),
    Stage('embed', 'term', '(call) -> b n e', 'added to them'),
    Stage('embedded', 'ring', 'x', 'the sum, b n e: norms, prefixes, gradients'),
    Stage('lengthen', 'ring', 'x', 'tokens in front of b n d'),
    Stage('stack_inputs', 'ring', 'keywords', 'what the stack is called with'),
    Stage('passes', 'choice', '(run, x, call) -> (x, trace)', 'how often the stack runs'),
    Stage('shorten', 'ring out', 'x', 'takes tokens in front off again'),
    Stage('pool', 'ring', 'x', 'from tokens, b n d, to what is read'),
    Stage('readout', 'choice', '() -> Module', 'built once: hidden -> logits'),
    Stage('spread', 'ring', 'x', 'what the readout gets'),
    Stage('logits', 'ring', 'b n l', 'the logits'),
    Stage('remember', 'choice', '(mems, hiddens, call) -> mems', 'what is kept of a segment for the next one'),
    Stage('answer', 'ring', '(out, x, call) -> out', 'what is returned'),
    Stage('carry', 'term', '(trace) -> keywords', 'what the call that reads the next segment is given'),
)
class ModelFeature(Feature):
    """A feature of a model around a stack. Its stages, in running order:

    {stages}

    They are called as `AttentionFeature` says.

    `remember` gives memories (b m d) of each self-attention layer, from those of the segments before, None if there are
    none, and what these layers have read in this one. Where generation has read a segment in several calls, `call` has
    what they left behind, its `trace` and `new_states`, and no inputs.

    `gives_log_probs`: the logits are log probabilities.
    `by_token`: a loss may read a few tokens at a time: `spread` and `logits` look at each token alone, and `answer`
    hands on the output as it is.
    `bounded`: it has no positions beyond a certain one.
    """

    bounded: bool = False
    gives_log_probs: ClassVar[bool] = False
    by_token: ClassVar[bool] = False


def uses(stack: Any, name: str) -> bool:
    """Whether any self-attention of a stack has a flag on."""
    value = stack.branch_flags['a'].get(name)
    return any(value) if isinstance(value, tuple) else bool(value)

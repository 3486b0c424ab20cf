"""The levels of a transformer and their stages. A feature derives from the level that it plugs into.

A stage is a `ring` (value in, value out, in the order of the catalogue, or in reverse on the way `out`), a `term`
(gathered from all features), a `choice` (replaces the one way), or a `build` step (runs at construction).
"""

from __future__ import annotations

from typing import Any, ClassVar

from x_transformers.flags import Feature


class AttentionFeature(Feature):
    """A feature of one attention layer. Its stages, in running order:

    widths        build    Widths -> Widths                   what queries and keys are made from, before they are built
    views         choice   x -> (x_q, x_k, x_v[, places])     of which x_q is the input, for everything else
    sources       ring     (q_in, k_in, v_in)                 b n d, before projection
    projected     ring     (q, k, v)                          b n (h d)
    heads         ring     (q, k, v)                          b h n d, before the cache
    turn          ring     (q, k)                             of the new tokens: what the cache keeps turned
    past          choice   (k, v, call) -> (k, v)             appended to those of the cache
    stored_keys   ring     k                                  keys that no token gave, treated like real ones
    place         ring     (q, k)                             after the cache: rotations
    mask          term     () -> bool, broadcasts to b h i j  ANDed; True may be attended; or `Rows`, in blocks
    bias          term     () -> float, to b h i j            summed; or `Rows`
    keys          term     () -> (k, v)                       prepended, always visible
    enter, leave  ring     (q, k, v), then out                around the kernel; `leave` runs in reverse order
    bare_keys     term     (k, v) -> (k, v)                   prepended after `enter`
    meet          ring     (q, k)                             the last word on what the kernel multiplies
    similarity    choice   (q, k, call) -> b h i j            scaled
    prior         term     () -> b h i j                      logits from elsewhere
    scores        ring     b h i j                            before the bias
    logits        ring     b h i j                            after the bias, before the mask
    sight         choice   (call) -> bool, to b h i j | None  which logits the mask leaves
    rows          ring     b h i j                            after the mask
    normaliser    choice   (logits, call) -> weights          over the last axis
    normalising   ring     function -> function               around the normaliser
    weights       ring out b h i j                            recorded after this
    mix           ring out b h i j                            dropout and mixing, not recorded
    attended      ring     b h i d                            per-head outputs
    output        ring     b i (h d)                          merged heads, before the projection
    project_out   choice   () -> Module                       the projection, given by the host's sizes
    result        ring     b i d                              what the layer gives
    initialise    build    () -> None                         last word on initial values

    Queries need not be the tokens in their order: then `views` says by `places`, (i) or (b i), at which tokens of x
    they stand. Masks, biases and rotations follow; what cannot is refused by name. A feature of your own asks
    `call.of_queries(t)` for what belongs to queries in a tensor that counts keys.

    From `similarity` to `mix` the call may be one of a block of queries (`blocks.py`), so that memory does not grow
    with the square of the length. Where a feature at these stages does not know about blocks, all rows come at once.

    row_wise            it gives a row the same whichever others are there: reads the scores it is handed, and what it
                        kept of the whole call by `call.cut`, `cut_rows`, `cut_keys`
    counts_hidden       it needs the columns of keys that the mask hides
    carries             rows read what earlier ones left in `call.carried`, a tensor by name
    keeps_plain_keys    the cache must hold keys that are not turned by their positions
    per_head            it holds numbers for each of the layer's heads, so another count of query heads is not for it

    A feature at the stages of scores may run in FlexAttention too (`flex.py`), if it says by one of these what it does:

    score_mod(call)   -> a function (score, b, h, i, j) -> score that does for one score what `scores` or `logits` does;
                      it holds tensors and numbers, but none that changes with the lengths
    rescale(out, log_sums, call)   -> out    what it does at `rows` and later, from the output b h i d, and
                      the logarithm of what the softmax divides by, b h i 1
    """

    row_wise: ClassVar[bool] = False
    counts_hidden: ClassVar[bool] = False
    carries: ClassVar[bool] = False
    keeps_plain_keys: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    score_mod: ClassVar[Any] = None
    rescale: ClassVar[Any] = None

    stages: ClassVar[dict[str, str]] = {
        'widths': 'build',
        'views': 'choice',
        'sources': 'ring',
        'projected': 'ring',
        'heads': 'ring',
        'turn': 'ring',
        'past': 'choice',
        'stored_keys': 'ring',
        'place': 'ring',
        'mask': 'term',
        'bias': 'term',
        'keys': 'term',
        'enter': 'ring',
        'bare_keys': 'term',
        'meet': 'ring',
        'similarity': 'choice',
        'prior': 'term',
        'scores': 'ring',
        'logits': 'ring',
        'sight': 'choice',
        'rows': 'ring',
        'normaliser': 'choice',
        'normalising': 'ring',
        'weights': 'ring',
        'mix': 'ring',
        'leave': 'ring',
        'attended': 'ring',
        'output': 'ring',
        'project_out': 'choice',
        'result': 'ring',
        'initialise': 'build',
    }


class FeedForwardFeature(Feature):
    """A feature of a feedforward. Its stages:

    activation   choice   () -> Module        replaces GELU
    widen        choice   (activation) -> Module   dim -> inner width, activation included
    inner        build    () -> Module        modules between the activation and the dropout
    behind       build    () -> Module        modules behind the output projection
    initialise   build    () -> None          last word on initial values
    """

    stages: ClassVar[dict[str, str]] = {
        'activation': 'choice',
        'widen': 'choice',
        'inner': 'build',
        'behind': 'build',
        'initialise': 'build',
    }


class StackFeature(Feature):
    """A feature of a stack of layers. Its stages, in running order:

        block            build    list of kinds -> list of kinds           the repeated block
        layout           choice   (block, depth) -> list of kinds          which branch stands where
        kinds            build    list of kinds -> list of kinds           the last word on that
        order            choice   () -> tuple of layer indices             in which order they run
        norm             choice   () -> Module                             a norm of the stream
        norm_branch      choice   () -> Module                             a norm of what a branch gives
        branch_flags     build    (flags, kind, number) -> flags           keywords of the n-th branch of a kind
        wrap             build    (branch, kind, index) -> Module          around a branch, first feature innermost
        residual_options build    dict -> dict                             arguments of the residual
        residual         choice   (dim, layer_index, ...) -> Module        how a branch joins the stream
        open             ring     x                                        before the first layer; may fill the call
        through          choice   (run, x, call) -> x                      how the layers run: `run` takes their steps
        arrive           ring     (x, layer)                               the stream before a layer, left out or not
        skips            term     (layer) -> bool                          leave this layer out, this time
        skipped          term     (x, layer) -> None                       it was left out
        read             ring     (x, layer)                               the input of a branch, before its norm
        inputs           ring     (keywords, layer)                        what the branch is called with
        attended         term     (layer, intermediates) -> None           after an attention layer has run
        joined           term     (layer, out) -> None                     what a branch gives to the stream
        close            ring out x                                        after the last layer
        finish           choice   (x) -> x                                 in place of the final norm

    `gives_positions`: wrappers add no absolute positions. `needs_no_depth`: the feature says how many layers there are.
    `per_head`: it gives layers numbers for each head.
    `keeps_blocks`: False if layers no longer come in equal blocks.
    """

    gives_positions: ClassVar[bool] = False
    per_head: ClassVar[bool] = False
    needs_no_depth: ClassVar[bool] = False
    keeps_blocks: ClassVar[bool] = True

    stages: ClassVar[dict[str, str]] = {
        'block': 'build',
        'layout': 'choice',
        'kinds': 'build',
        'order': 'choice',
        'norm': 'choice',
        'norm_branch': 'choice',
        'branch_flags': 'build',
        'wrap': 'build',
        'residual_options': 'build',
        'residual': 'choice',
        'open': 'ring',
        'through': 'choice',
        'arrive': 'ring',
        'skips': 'term',
        'skipped': 'term',
        'read': 'ring',
        'inputs': 'ring',
        'attended': 'term',
        'joined': 'term',
        'close': 'ring',
        'finish': 'choice',
    }


class ModelFeature(Feature):
    """A feature of a model around a stack. Its stages, in running order:

    token_embeds   ring     b n e              the embeddings of the tokens
    embed          term     () -> b n e        added to them
    embedded       ring     b n e              the sum: norms, prefixes, gradients
    lengthen       ring     b n d              tokens in front
    stack_inputs   ring     keywords           what the stack is called with
    passes         choice   (run, x, call) -> (x, trace)   how often the stack runs
    shorten        ring out b n d              takes tokens in front off again
    pool           ring     b n d              from tokens to what is read
    readout        choice   () -> Module       built once: hidden -> logits
    spread         ring     b n d              what the readout gets
    logits         ring     b n l
    answer         ring     (out, x)           what is returned

    `gives_log_probs`: the logits are log probabilities.
    `by_token`: a loss may read a few tokens at a time: `spread` and `logits` look at each token alone, and `answer`
    hands on the output as it is.
    """

    gives_log_probs: ClassVar[bool] = False
    by_token: ClassVar[bool] = False

    stages: ClassVar[dict[str, str]] = {
        'token_embeds': 'ring',
        'embed': 'term',
        'embedded': 'ring',
        'lengthen': 'ring',
        'stack_inputs': 'ring',
        'passes': 'choice',
        'shorten': 'ring',
        'pool': 'ring',
        'readout': 'choice',
        'spread': 'ring',
        'logits': 'ring',
        'answer': 'ring',
    }

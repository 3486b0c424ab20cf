"""Language models whose tokens leave the stack when they are sure: training, generation, and how sure they must be.

What belongs here: `EarlyExitWrapper`, and what its classifiers are taught. The rules by which tokens leave stand in
`generation/exits.py`, `grid_search_exit` and `calibrate_exit`, which find a threshold on data, in
`generation/calibration.py`.

Elbayad et al. 2019, arXiv:1910.10073; Schuster et al. 2022, arXiv:2207.07061
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_documents, check_ids, checked
from x_transformers.core.model_calls import make_model_call
from x_transformers.core.modes import at_least_float, to_float
from x_transformers.core.nets import SET_BY_LOSS, refuse_own
from x_transformers.core.own_modules import known_stack
from x_transformers.features.embeddings import MemoryTokens, mean_of_real
from x_transformers.features.exits import AllStates, Exits, ExitsInStack
from x_transformers.features.readouts import OutputHeads, linear_head
from x_transformers.features.resizing import grow
from x_transformers.flags import (
    Check,
    ConfigError,
    boolean,
    instance_of,
    integer,
    is_int,
    is_number,
    none,
    not_negative,
    one_of,
    positive,
    size,
    warn_once,
)
from x_transformers.generation.calibration import (
    calibrate_exit,
    exit_p_value,
    grid_search_exit,
    learn_then_test,
    token_f1_distance,
)
from x_transformers.generation.engine import Decoding
from x_transformers.generation.exits import (
    ByConfidence,
    ByDepth,
    ByEachState,
    ByFirstState,
    BySequence,
    ExitStats,
    Watched,
    blocks_of_draft,
    check_threshold,
    confidence_by,
    first_blocks,
    get_blocks,
)
from x_transformers.generation.sampling import require
from x_transformers.training.items import share_of_items
from x_transformers.training.layer_losses import Targets
from x_transformers.training.token_loss import Terms, read_logits_later, single_losses

__all__ = [
    'EarlyExitWrapper',
    'ExitStats',
    'calibrate_exit',
    'exit_oracle',
    'exit_p_value',
    'grid_search_exit',
    'learn_then_test',
    'token_f1_distance',
]

weights_of_blocks = Check(
    'numbers of at least 0, one for each block',
    lambda v: isinstance(v, (list, tuple)) and all(is_number(w) and w >= 0 for w in v) and sum(v) > 0,
)

# what classifiers are taught


def exit_oracle(
    scores: Tensor,
    real: Tensor | None = None,
    *,
    penalty: float = 0.0,
    sigma: float | None = None,
    sequence: bool = False,
    document_ids: Tensor | None = None,
) -> Tensor:
    """Return the best block to exit from, by the scores of the blocks:  the first argmax over blocks n.

    token        sum_t' exp(-(t - t')^2 / sigma) score_n(t') - penalty n
    sequence     sum_t' score_n(t') - penalty n

    scores   b n N   log likelihoods of the targets, or 1 where the target is the most probable token
    real     b n     which tokens have a target; others count for none
    sigma            how far neighbours count; None for not at all
    document_ids     neighbours count within their document
    returns  b n     numbers of blocks from 1, or (b) of rows
    """
    n, blocks = scores.shape[1:]
    if real is not None:
        scores = scores.masked_fill(~real.unsqueeze(-1), 0.0)
    cost = penalty * torch.arange(1, blocks + 1, device=scores.device, dtype=scores.dtype)
    if sequence:
        return (scores.sum(dim=1) - cost).argmax(dim=-1) + 1
    if sigma is not None:
        place = torch.arange(n, device=scores.device, dtype=scores.dtype)
        near = (-(place.unsqueeze(-1) - place).square() / sigma).exp()
        if document_ids is not None:
            near = near * (document_ids.unsqueeze(-1) == document_ids.unsqueeze(-2))
        scores = near @ scores
    return (scores - cost).argmax(dim=-1) + 1


def stick_breaking(logits: Tensor) -> Tensor:
    """Return log probabilities (..., N) of an exit at n, from logits (..., N - 1) of an exit given none before.

    q_n = s(z_n) prod_{k<n} s(-z_k),  q_N = prod_k s(-z_k)
    """
    stays = F.pad(F.logsigmoid(-logits).cumsum(dim=-1), (1, 0))
    return stays + F.pad(F.logsigmoid(logits), (0, 1))


def balance_targets(losses: Tensor, positive: Tensor, real: Tensor) -> Tensor:
    """Return the mean over the present classes of their mean losses (b n)."""
    means, there = [], []
    for own in (real & positive, real & ~positive):
        count = own.sum()
        means.append((losses * own).sum() / count.clamp(min=1))
        there.append((count > 0).to(losses.dtype))
    return torch.stack(means).sum() / torch.stack(there).sum().clamp(min=1)


# what the wrapper is built of


def normalize_block_weights(weights: str | Sequence[float], blocks: int) -> list[float]:
    """Return the loss weights of the blocks, with a sum of 1, from their values or their name."""
    named = {'uniform': [1.0] * blocks, 'linear': [float(n) for n in range(1, blocks + 1)]}
    values = named[weights] if isinstance(weights, str) else weights
    if len(values) != blocks:
        raise ConfigError(f'`layer_loss_weights` must have {blocks} numbers, one per block, got {len(values)}')
    return [weight / sum(values) for weight in values]


def build_zero_linear(dim: int, dim_out: int, bias: float = 0.0) -> nn.Linear:
    """Build a linear layer that returns `bias` for every input at first."""
    linear = nn.Linear(dim, dim_out)
    nn.init.zeros_(linear.weight)
    nn.init.constant_(linear.bias, bias)
    return linear


def build_classifier(kind: str, stack: Any, blocks: int) -> nn.Linear:
    """Build the classifier of exits, which gives every block the same probability at first."""
    if kind == 'geometric':
        return build_zero_linear(stack.dim, blocks - 1, -math.log(blocks - 1))
    return build_zero_linear(stack.dim_context if kind == 'sequence' else stack.dim, blocks)


# the wrapper


class EarlyExitWrapper(AutoregressiveWrapper):
    """Early exits: each token leaves the stack after the block that suffices for it.  ids (b, n) -> loss; generation.

    All N blocks are trained to predict the next token, by separate output heads or by that of the model.

        aligned    sum_n w_n loss_n / sum_n w_n           w_n = 1 or n
        mixed      the loss if each token exits after a random block; later blocks copy its state

    A classifier can be trained to decide when to exit, from the loss at each exit (`exit_oracle`):

        sequence      q = softmax(W mean(context) + b)               one depth per sequence
        multinomial   q_t = softmax(W h_1 + b)                       known after the first block
        geometric     q_t(n) = s(w_n h_n + b_n) prod_{k<n} (1 - s(w_k h_k + b_k))

        loss + exit_loss_weight mean(-log q(oracle))

    `generate` takes the criterion as `exit`. In speculative decoding, the model drafts by itself if `draft` is a number
    of blocks, or 'exit' together with `exit` and `exit_threshold`.

    h_n is the hidden state after block n, with the final norm applied. Losses are sums over targets divided by their
    number. Parameters of the model are stored under `net.`.
    """

    max_seq_len: Any
    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        exit_heads: Annotated[str, 'one shared head, or one per block', one_of('shared', 'per_layer')] = 'shared',
        exit_train: Annotated[
            str, 'training: all tokens run all blocks, or exit after random blocks', one_of('aligned', 'mixed')
        ] = 'aligned',
        mixed_samples: Annotated[int, 'number of sampled exit patterns per training step', size] = 1,
        layer_loss_weights: Annotated[
            str | Sequence[float], 'weights w_n of aligned training', one_of('uniform', 'linear') | weights_of_blocks
        ] = 'uniform',
        exit_classifier: Annotated[
            str | None, 'classifier that learns when to exit', one_of('sequence', 'multinomial', 'geometric') | none
        ] = None,
        exit_oracle: Annotated[
            str,
            "score by which the oracle compares exits: the 'likelihood' or the 'correctness' of the prediction",
            one_of('likelihood', 'correctness'),
        ] = 'likelihood',
        exit_penalty: Annotated[float, 'cost per block', not_negative] = 0.0,
        exit_rbf_sigma: Annotated[
            float | None, 'width, in tokens, of the smoothing over neighboring tokens for the oracle', positive | none
        ] = None,
        exit_loss_weight: Annotated[float, 'weight of the loss of the classifier', not_negative] = 1.0,
        exit_detach: Annotated[bool, 'stop the gradient of this loss into the model', boolean] = False,
        exit_confidence: Annotated[
            str,
            "confidence measure of `exit='confidence'`: p_(1) - p_(2), p_(1), cos(h_n, h_(n-1)), or a "
            'classifier trained by `confidence_loss`',
            one_of('softmax', 'max_prob', 'state', 'classifier'),
        ] = 'softmax',
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'padding id, used before shorter prompts and after a sequence ends', integer] = 0,
    ) -> None:
        super().__init__(net, ignore_index, pad_value)
        self.blocks = blocks = self.checked_blocks(net, exit_heads)
        stack = known_stack(net.attn_layers)
        self.layer_weights = normalize_block_weights(layer_loss_weights, blocks)
        if exit_classifier == 'sequence' and not stack.cross_attend:
            raise ConfigError("`exit_classifier='sequence'` needs `cross_attend` of the stack: it reads the context")
        if mixed_samples != 1 and exit_train != 'mixed':
            warn_once("`mixed_samples` has no effect unless `exit_train='mixed'`")
        self.mixed, self.mixed_samples = exit_train == 'mixed', mixed_samples
        self.kind, self.confidence, self.oracle_of = exit_classifier, exit_confidence, exit_oracle
        self.exit_penalty, self.exit_rbf_sigma = exit_penalty, exit_rbf_sigma
        self.exit_loss_weight, self.exit_detach = exit_loss_weight, bool(exit_detach)
        self.exit_heads = None
        if exit_heads == 'per_layer':  # The last block has the head of the model.
            sizes = self.net.dim, self.net.logits_dim or self.net.num_tokens
            self.exit_heads = nn.ModuleList(linear_head(*sizes, False) for _ in range(blocks - 1))
        self.exit_classifier: Any = None
        if exit_classifier is not None:
            self.exit_classifier = build_classifier(exit_classifier, stack, blocks)
        self.exit_confidence = build_zero_linear(stack.dim, 1) if exit_confidence == 'classifier' else None

    @classmethod
    def settled(cls) -> dict[str, Any]:
        names = (
            'mask_prob', 'add_attn_z_loss', 'next_embed_loss_weight', 'looped_loss_threshold_exit',
            'looped_loss_slope', 'looped_exit_loss_weight', 'label_smoothing', 'z_loss_weight',
            'intermediate_layer_loss', 'future_target_weights', 'last_position_only', 'entmax_loss_alpha',
        )  # fmt: skip
        return dict.fromkeys(names)

    @staticmethod
    def checked_blocks(net: Any, exit_heads: str) -> int:
        """Return how many blocks a net has, of which tokens may leave each; or a refusal."""
        try:
            blocks = get_blocks(net)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if blocks < 2:
            raise ConfigError(f'`net` must have at least 2 blocks for an early exit, got {blocks}')
        feature = known_stack(net.attn_layers).features.find(ExitsInStack)
        if feature is None or (reason := feature.refusal()):
            why = '`features`, which leaves out ExitsInStack' if feature is None else reason
            raise ConfigError(f'early exits cannot be combined with {why}')
        if net.features.by_stage.get('head_input') and exit_heads == 'per_layer':
            name = net.features.by_stage['head_input'][0].display_name
            raise ConfigError(f"`exit_heads='per_layer'` cannot be combined with `{name}`, which belongs to the head")
        if net.features.find(OutputHeads) is not None:
            raise ConfigError('early exits cannot be combined with `num_output_heads`: one head must give each token')
        memory = net.features.find(MemoryTokens)
        if memory is not None and memory.every:
            raise ConfigError('early exits cannot be combined with `memory_tokens_interspersed_every`: positions vary')
        return blocks

    def resize_own_tokens(self, old: int, new: int) -> None:
        heads: Any = self.exit_heads or ()
        for head in heads:
            if head.out_features == old:
                grow(head, linear_head(head.in_features, new, False))

    # reading

    def logits_of(self, state: Tensor, block: int) -> Tensor:
        """Return the logits (..., l) of states (..., d) after a block."""
        return self.reading(state.unsqueeze(0), block, later=False).squeeze(0)

    def reading(self, state: Tensor, block: int, later: bool = True) -> Any:
        """Return the logits of states (b, n, d) after a block, or a `Readout` to compute the loss with."""
        call = make_model_call(self.net, {}, state.shape[-2], None, False)
        if self.exit_heads is not None and block < self.blocks:
            return call.features.apply('logits', self.exit_heads[block - 1](state), call)
        call.returns_readout = later and bool(getattr(self.net, 'can_return_readout', False))
        return self.net.read_later(state, call, {}) if later else self.net.read_out(state, call, {})

    def exit_inputs(
        self, exit: Any = None, threshold: Any = 0.9, tau: float | None = None, log: list[Tensor] | None = None
    ) -> dict[str, Any]:
        """Return the keywords of the net that make tokens exit, from those of `generate`."""
        allowed = exit is None or exit in ('classifier', 'confidence') if not is_int(exit) else 1 <= exit <= self.blocks
        words = f"None, 'classifier', 'confidence', or a number of blocks from 1 to {self.blocks}"
        require(allowed, 'exit', exit, words)
        check_threshold(threshold, self.blocks)
        if tau is not None:
            require(is_number(tau) and tau >= 0, 'exit_decay_tau', tau, 'a number of at least 0, or None')
            if exit != 'confidence':
                raise ValueError(f"`exit_decay_tau` needs `exit='confidence'`, it got {exit!r}: no threshold falls")
        if exit is None or (is_int(exit) and exit == self.blocks):
            return {}
        if is_int(exit):
            rule = None if self.exit_heads is None else Exits()
        elif exit == 'confidence':
            rule = ByConfidence(confidence_by(self.confidence, self.logits_of, self.exit_confidence), threshold, tau)
        elif self.kind is None:
            raise ValueError("`exit='classifier'` needs an `exit_classifier`")
        elif self.kind == 'geometric':
            rule = ByEachState(self.exit_classifier, threshold)
        else:
            rule = {'sequence': BySequence, 'multinomial': ByFirstState}[self.kind](self.exit_classifier)
        if rule is not None:
            rule.heads, rule.log = self.exit_heads, log
        return {**(first_blocks(self.net, exit) if is_int(exit) else {}), **({} if rule is None else {'exits': rule})}

    # training

    @checked
    def forward(
        self,
        x: Tensor,
        return_outputs: bool = False,
        prepend_embeds: Tensor | None = None,
        lens: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of all blocks, and of the classifier, in nats.

        x               b n     ids, as of `AutoregressiveWrapper`, like the keywords that are not named here
        return_outputs          also return `(logits, intermediates)`, those of all blocks
        num_items_in_batch      divide the sum of the losses of targets by this number, so that batches add up
        returns                 scalar
        raises                  ValueError or TypeError for inputs of another shape or kind
        """
        x = check_ids(x, 'x', 2)
        refuse_own({n: v for n, v in kwargs.items() if n != 'document_ids'}, 'the loss', SET_BY_EXITS)
        ids, tokens, token_mask = self._split(x, self.targets_of(x, labels), lens, kwargs)
        kwargs |= {} if prepend_embeds is None else {'prepend_embeds': prepend_embeds}
        targets = Targets(tokens, self.ignore_index, token_mask).of()
        aligned = not self.mixed or self.kind is not None or return_outputs
        out: Any = None
        aux = AuxLosses()
        if aligned:
            with AuxLosses() as aux:
                states, out = self.states_of(ids, kwargs, return_outputs)
        with AuxLosses() as drawn:
            loss = self.mixed_loss(ids, targets, kwargs) if self.mixed else self.aligned_loss(states, targets)
        loss = drawn.added_to(loss, 1 / self.mixed_samples) if self.mixed else aux.added_to(loss)
        if self.kind is not None:
            loss = loss + self.exit_loss_weight * self.classifier_loss(states, targets, kwargs)
        loss = loss * share_of_items(targets != self.ignore_index, num_items_in_batch)  # all are means over targets
        if not return_outputs:
            return loss
        logits, trace = out
        lead = logits.shape[1] - ids.shape[1]
        return loss, (logits[:, lead:-1], trace)

    def states_of(self, ids: Tensor, inputs: dict[str, Any], whole: bool = False) -> tuple[list[Tensor], Any]:
        """Return the states (b, n, d) after each block, and the output of the net if `whole`."""
        exits = AllStates()
        asked = {'return_intermediates': True} if whole else {'return_embeddings': True}
        out = self.net(ids, exits=exits, **asked, **inputs)
        return [state[:, state.shape[1] - ids.shape[1] :] for state in exits.states], out

    def losses_of(self, states: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
        """Return the loss of each target (b, n) after each block."""
        terms = Terms(self.ignore_index, is_log_prob=bool(getattr(self.net, 'output_is_log_prob', False)))
        return [single_losses(self.reading(state, n), targets, terms) for n, state in enumerate(states, 1)]

    def aligned_loss(self, states: Sequence[Tensor], targets: Tensor) -> Tensor:
        count = (targets != self.ignore_index).sum().clamp(min=1)
        losses = zip(self.layer_weights, self.losses_of(states, targets), strict=True)
        return sum(weight * loss.sum() for weight, loss in losses) / count

    def mixed_loss(self, ids: Tensor, targets: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the mean loss with a random exit for each token."""
        terms, total = Terms(self.ignore_index, is_log_prob=bool(self.net.output_is_log_prob)), 0.0
        count = (targets != self.ignore_index).sum().clamp(min=1)
        asked = read_logits_later(self.net) if self.exit_heads is None else {}
        for _ in range(self.mixed_samples):
            exits = ByDepth(torch.randint(1, self.blocks + 1, ids.shape, device=ids.device))
            exits.heads = self.exit_heads
            out = self.net(ids, exits=exits, **asked, **inputs)
            own = F.pad(targets, (out.shape[1] - targets.shape[1], 0), value=self.ignore_index)
            total = total + single_losses(out, own, terms).sum() / count
        mean: Any = total / self.mixed_samples
        return mean

    def classifier_loss(self, states: Sequence[Tensor], targets: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Return the summed negative log probability of the block of the oracle, per target."""
        token_mask = targets != self.ignore_index
        with torch.no_grad():
            scores = self.scores_of(states, targets)
            documents = inputs.get('document_ids')
            documents = None if documents is None else check_documents(documents, targets)
            options: Any = dict(penalty=self.exit_penalty, sigma=self.exit_rbf_sigma, sequence=self.kind == 'sequence')
            best = exit_oracle(scores, token_mask, **options, document_ids=documents)
        log_q = self.exit_log_probs(states, inputs)
        losses = -log_q.gather(-1, (best - 1).unsqueeze(-1)).squeeze(-1)
        counts = token_mask.any(dim=1) if self.kind == 'sequence' else token_mask
        return (losses * counts).sum() / token_mask.sum().clamp(min=1)

    def scores_of(self, states: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Return a score per block (b, n, N): the log likelihood of targets, or 1 where they are the first choice."""
        if self.oracle_of == 'likelihood':
            return -torch.stack(self.losses_of(states, targets), dim=-1)
        found = [self.reading(s, n, later=False).argmax(dim=-1) == targets for n, s in enumerate(states, 1)]
        return torch.stack(found, dim=-1).to(at_least_float(states[0].dtype))

    def exit_log_probs(self, states: Sequence[Tensor], inputs: dict[str, Any]) -> Tensor:
        """Return log probabilities of an exit after each block, (b, n, N), or (b, N) for a classifier of sequences."""
        if self.kind == 'sequence':
            context = inputs['context']
            context = context.detach() if self.exit_detach else context
            mean = mean_of_real(context, inputs.get('context_mask'))
            return to_float(self.exit_classifier(mean)).log_softmax(dim=-1)
        if self.exit_detach:
            states = [state.detach() for state in states]
        if self.kind == 'multinomial':
            return to_float(self.exit_classifier(states[0])).log_softmax(dim=-1)
        rows = zip(states[:-1], self.exit_classifier.weight, self.exit_classifier.bias, strict=True)
        logits = [F.linear(state, weight[None], bias[None])[..., 0] for state, weight, bias in rows]
        return stick_breaking(to_float(torch.stack(logits, dim=-1)))

    @checked
    def confidence_loss(self, x: Tensor, lens: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return the loss of the classifier of `exit_confidence='classifier'`: does a block agree with the last one?

            c_n = s(w h_n + b),   target 1 where the most probable tokens are the same, for n < N

        The mean over blocks of the binary cross entropy, in which both answers weigh the same. The net does not learn.

        x         b n   ids, as of `forward`, like the other keywords
        returns         scalar
        """
        if self.exit_confidence is None:
            raise ValueError("`confidence_loss` needs `exit_confidence='classifier'`")
        x = check_ids(x, 'x', 2)
        refuse_own({n: v for n, v in kwargs.items() if n != 'document_ids'}, 'the loss', SET_BY_EXITS)
        ids, tokens, _ = self._split(x, x, lens, kwargs)
        token_mask = tokens != self.ignore_index
        with torch.no_grad():
            states, _ = self.states_of(ids, kwargs)
            said = [self.reading(s, n, later=False).argmax(dim=-1) for n, s in enumerate(states, 1)]
        losses = []
        for state, token in zip(states[:-1], said[:-1], strict=True):
            same = token == said[-1]
            logits = to_float(self.exit_confidence(state)[..., 0])
            each = F.binary_cross_entropy_with_logits(logits, same.to(logits.dtype), reduction='none')
            losses.append(balance_targets(each, same, token_mask))
        return torch.stack(losses).mean()

    # generation

    @checked
    def generate(self, prompts: Any, seq_len: int, *args: Any, return_stats: bool = False, **options: Any) -> Any:
        """Continue the prompts, as `AutoregressiveWrapper.generate` does, with these further keywords:

        exit               None: all blocks; a number of blocks; or 'classifier' or 'confidence', by which each token,
                           also of the prompt, exits
        exit_threshold     0 .. 1    required confidence, or one value for each block except the last; at 1 none exits
        exit_decay_tau     decay of the threshold from 0.9 threshold + 0.1, faster for larger values; None for none.
                           The paper uses 4
        return_stats       return `(output, ExitStats)`
        """
        if not return_stats:
            return super().generate(prompts, seq_len, *args, **options)
        watched = Watched(self.blocks)
        made = super().generate(prompts, seq_len, *args, **{**options, 'exit_watched': watched})
        return made, watched.stats()

    def decoding(
        self, prompts: Any, seq_len: int, *, exit: Any = None, exit_threshold: Any = 0.9,
        exit_decay_tau: float | None = None, exit_watched: Watched | None = None, **options: Any,
    ) -> Decoding:  # fmt: skip
        calls = None if exit_watched is None else exit_watched.calls
        own = self.exit_inputs(exit, exit_threshold, exit_decay_tau, calls)
        if own and options.get('amateur_model') is not None:
            raise ValueError('`amateur_model` cannot be combined with `exit`: amateurs run all of their blocks')
        if options.get('compile') and exit in ('classifier', 'confidence'):
            raise ValueError(
                f'`compile` cannot be combined with `exit={exit!r}`: a graph runs all blocks; a fixed exit does'
            )
        prompt_cache, rule = options.get('prompt_cache'), own.get('exits')
        if prompt_cache is not None:
            inputs = getattr(prompt_cache, 'inputs', {})
            same = inputs.get('layers_execute_order') == own.get('layers_execute_order')
            if not same or ('exits' in inputs) != ('exits' in own):
                raise ValueError('`prompt_cache` was read with another `exit`: give `read_prompt` the same')
        state = super().decoding(prompts, seq_len, **own, **options)
        log = None if rule is None else rule.log
        if log is not None and prompt_cache is not None and prompt_cache.length == state.length:
            log.append(prompt_cache.cache.states['exit_depth'].tensor[..., 0])  # of the first token, read before
        if isinstance(rule, ByConfidence):
            rule.start, rule.most = state.length - 1, seq_len
        if exit_decay_tau is not None and state.expert.window is not None and state.length + seq_len > self.max_seq_len:
            raise ValueError(
                f'`exit_decay_tau` counts tokens, but {state.length + seq_len} do not fit into `max_seq_len` '
                f'{self.max_seq_len}: places begin anew there'
            )
        if exit_watched is not None:
            exit_watched.state, exit_watched.fixed = state, exit if is_int(exit) else None if own else self.blocks
        return state

    @checked
    def read_prompt(
        self, prompts: Any, prompt_lens: Any = None, *, exit: Any = None, exit_threshold: Any = 0.9, **kwargs: Any
    ) -> Any:
        """Read a prompt as `AutoregressiveWrapper.read_prompt`; `exit` and `exit_threshold` are those of `generate`."""
        return super().read_prompt(prompts, prompt_lens, **self.exit_inputs(exit, exit_threshold), **kwargs)

    @checked
    def beam_search(
        self, prompts: Any, seq_len: int, *args: Any, exit: Any = None, exit_threshold: Any = 0.9, **options: Any
    ) -> Any:
        """Search as `AutoregressiveWrapper.beam_search`; `exit` and `exit_threshold` are those of `generate`."""
        return super().beam_search(prompts, seq_len, *args, **self.exit_inputs(exit, exit_threshold), **options)

    def exits_of_draft(self, draft: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords by which the net drafts for itself: `draft='exit'` uses `exit` and `exit_threshold`,
        which `speculative` takes beside it, by the classifier or else by confidence if `exit` is None."""
        exit, threshold = options.pop('exit', None), options.pop('exit_threshold', 0.9)
        if draft == 'exit':
            otherwise = 'confidence' if self.kind is None else 'classifier'
            return self.exit_inputs(otherwise if exit is None else exit, threshold)
        if exit is not None:
            raise ValueError(f"`exit` needs `draft='exit'`, which it belongs to; `draft` got {draft!r}")
        blocks_of_draft(self.net, draft)
        return self.exit_inputs(draft)


SET_BY_EXITS = {**SET_BY_LOSS, 'exits': ': the loss says when tokens leave',
                'mems': ': memories are of all layers',
                'layers_execute_order': ': all blocks learn'}  # fmt: skip

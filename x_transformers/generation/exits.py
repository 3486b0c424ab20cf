"""When tokens leave a stack early: after a fixed block, by a classifier, or once a confidence is high enough.

How a stack runs without the tokens that have left is in `features/exits.py`, what learns to leave in `early_exit.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import widen_dtype
from x_transformers.core.own_modules import known_stack
from x_transformers.features.embeddings import mean_of_real
from x_transformers.features.exits import Exits, Tokens
from x_transformers.flags import is_int, is_number
from x_transformers.flags.checks import Maybe
from x_transformers.generation.choice import StoppingCriteria
from x_transformers.generation.sampling import require, to_float

# fixed exits


def get_blocks(net: Any) -> int:
    """After how many blocks a token may leave a net, the last one included.  Raises ValueError if it has no blocks."""
    stack: Any = getattr(net, 'attn_layers', None)
    if not hasattr(stack, 'layers_execute_order') or not hasattr(stack, 'len_default_block'):
        raise ValueError(f'`net` must be a model around a stack, as TransformerWrapper, got a {type(net).__name__}')
    if stack.has_custom_layer_types or len(stack.layers_execute_order) % stack.len_default_block:
        raise ValueError('`net` must have a stack of equal blocks, after each of which tokens may leave')
    for name in ('looped', 'recycling'):
        if getattr(net, name, False):
            raise ValueError(f'`net` runs its stack several times (`{name}` is set), tokens cannot leave after a block')
    return len(stack.layers_execute_order) // stack.len_default_block


def first_blocks(net: Any, count: int) -> dict[str, Any]:
    """The keywords of a call of the net that runs its first blocks alone; none for all of them."""
    stack = known_stack(net.attn_layers)
    order = stack.layers_execute_order[: count * stack.len_default_block]
    return {} if len(order) == len(stack.layers_execute_order) else {'layers_execute_order': tuple(order)}


def blocks_of_draft(net: Any, draft: Any) -> dict[str, Any]:
    """The keywords by which a net drafts for itself, with its first blocks."""
    words = 'a model, None, or a number of blocks of the net itself'
    require(is_int(draft), 'draft', draft, words)
    most = get_blocks(net) - 1
    require(1 <= draft <= most, 'draft', draft, f'{words}, from 1 to {most}')
    return first_blocks(net, draft)


def check_looped_exits(net: Any, inputs: dict[str, Any], rows: int, cache_kv: bool) -> None:
    """Refuse exits of a looped net, which `looped_inference` among its `inputs` asks for, where they would depend on
    what is generated beside a row, or on the cache.
    """
    if not inputs.get('looped_inference'):
        if inputs.get('looped_exit_prob_threshold') is not None:
            raise ValueError('`looped_exit_prob_threshold` needs `looped_inference=True`, or no pass is left out')
        return
    if rows != 1:
        raise ValueError(
            f'`looped_inference` must be False for {rows} rows: each token of a single row decides when it has run '
            'enough passes'
        )
    if not (cache_kv and getattr(net, 'can_cache_kv', False)):
        raise ValueError('`looped_inference` needs the cache: without it earlier tokens are recomputed with all passes')


# rules


class ByDepth(Exits):
    """Tokens leave after blocks that are known:  depths (b n) of a whole sequence."""

    def __init__(self, depths: Tensor) -> None:
        self.depths = depths

    def leaves(self, tokens: Tokens) -> Tensor:
        return self.depths[tokens.row, tokens.place] <= tokens.block


class BySequence(Exits):
    """One depth for all tokens of a row, from the mean of what the row attends to:  argmax_n softmax(W mean(c) + b)."""

    depths: Any

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier, self.depths = classifier, None

    def bound(self, inputs: dict[str, Any], leading: int, front: Tensor | None) -> Exits:
        new = copy.copy(self)
        new.leading, new.front = leading, front
        mean = mean_of_real(inputs['context'], inputs.get('context_mask'))
        new.depths = self.classifier(mean).argmax(dim=-1) + 1
        return new

    def leaves(self, tokens: Tokens) -> Tensor:
        depths: Any = self.depths.expand(int(tokens.row.max()) + 1) if len(self.depths) == 1 else self.depths
        return depths[tokens.row] <= tokens.block


class ByFirstState(Exits):
    """Each token knows after the first block when it leaves:  argmax_n softmax(W h_1 + b)."""

    def __init__(self, classifier: nn.Module) -> None:
        self.classifier = classifier

    def leaves(self, tokens: Tokens) -> Tensor:
        return self.classifier(tokens.first).argmax(dim=-1) + 1 <= tokens.block


class ByEachState(Exits):
    """Each token is asked behind each block:  it leaves at the first n with  s(w_n h_n + b_n) > threshold."""

    def __init__(self, classifier: nn.Linear, threshold: Any) -> None:
        self.classifier, self.threshold = classifier, threshold

    def leaves(self, tokens: Tokens) -> Tensor:
        weight, bias = self.classifier.weight[tokens.block - 1], self.classifier.bias[tokens.block - 1]
        return F.linear(tokens.state, weight[None], bias[None])[:, 0].sigmoid() > _select_block(
            self.threshold, tokens.block
        )


class ByConfidence(Exits):
    """A token leaves at the first block whose confidence c is high enough:  c >= threshold, which may fall.

        threshold_t = clip(0.9 threshold + 0.1 exp(-tau t / T), 0, 1)

    t counts the generated tokens: that which is read from place `start` is the first, T of them are wanted. What holds
    for the first holds for tokens of the prompt. Where the threshold is 1 nobody leaves.

    Schuster et al. 2022, arXiv:2207.07061
    """

    def __init__(self, confidence: Callable[[Tokens], Tensor], threshold: Any, tau: float | None = None) -> None:
        self.confidence, self.threshold, self.tau = confidence, threshold, tau
        self.start, self.most = 0, 1

    def leaves(self, tokens: Tokens) -> Tensor:
        threshold = _select_block(self.threshold, tokens.block)
        if threshold >= 1:
            return torch.zeros_like(tokens.row, dtype=torch.bool)
        c = self.confidence(tokens)
        if self.tau is None:
            return c >= threshold
        return c >= decay_threshold(threshold, tokens.place - self.start, self.most, self.tau).to(c.dtype)


def _select_block(threshold: Any, block: int) -> float:
    """The threshold behind a block: one for all, or one for each but the last."""
    return threshold[block - 1] if isinstance(threshold, (list, tuple)) else threshold


def decay_threshold(threshold: float, t: Tensor, most: int, tau: float) -> Tensor:
    """The threshold of the t-th generated token, of `most`."""
    return (0.9 * threshold + 0.1 * (-tau * widen_dtype(t.clamp(min=0)) / max(most, 1)).exp()).clamp(0, 1)


# confidences, of tokens (m)


def get_gap(logits: Tensor) -> Tensor:
    """Return how far the most probable token is ahead of the next:  p_(1) - p_(2)"""
    best = to_float(logits).softmax(dim=-1).topk(min(2, logits.shape[-1]), dim=-1).values
    return best[..., 0] - best[..., 1:].sum(dim=-1)


def saturation(tokens: Tokens) -> Tensor:
    """Return True if the state has settled:  cos(h_n, h_{n-1}), 0 behind the first block."""
    if tokens.block == 1:
        return torch.zeros_like(tokens.stream[:, 0])
    return F.cosine_similarity(tokens.stream, tokens.before, dim=-1)


def confidence_by(
    kind: str, logits: Callable[[Tensor, int], Tensor], classifier: Maybe[nn.Module]
) -> Callable[[Tokens], Tensor]:
    """The measure of a name; `logits` gives those of states (m d) behind a block."""
    if kind == 'softmax':
        return lambda tokens: get_gap(logits(tokens.state, tokens.block))
    if kind == 'max_prob':
        return lambda tokens: to_float(logits(tokens.state, tokens.block)).softmax(dim=-1).amax(dim=-1)
    if kind == 'state':
        return saturation
    return lambda tokens: classifier(tokens.state)[:, 0].sigmoid()


def check_threshold(threshold: Any, blocks: int, name: str = 'exit_threshold') -> None:
    several = isinstance(threshold, (list, tuple))
    values = list(threshold) if several else [threshold]
    right = all(is_number(value) and 0 <= value <= 1 for value in values) and (not several or len(values) == blocks - 1)
    require(right, name, threshold, f'a number from 0 to 1, or {blocks - 1} of them, one for each block but the last')


# what a generation reports


class ExitStats(NamedTuple):
    """How deep a generation went.

    mean_depth        blocks that the places had run from which tokens were read, the mean over new tokens
    blocks            those of the net
    depths     ... s  of each new token, 0 after the end of a row
    """

    mean_depth: float
    blocks: int
    depths: Tensor

    @property
    def saving(self) -> float:
        """Blocks of the net for each block that was run: how many times fewer there were."""
        return self.blocks / self.mean_depth if self.mean_depth else 1.0


@dataclass
class Watched:
    """A generation that is looked at: its state, and the blocks (b n) that the tokens of each call have run."""

    blocks: int
    fixed: int | None = None
    calls: list[Tensor] = field(default_factory=list)
    state: Any = None

    def stats(self) -> ExitStats:
        state, b = self.state, len(self.state.ids)
        made = state.length - state.start
        depths = state.ids.new_full((b, made), self.blocks if self.fixed is None else self.fixed)
        if self.fixed is None and made:
            each = [depth[:, -1] for depth in self.calls[:made]]
            if len(each) < made or any(b % max(len(depth), 1) for depth in each):
                raise ValueError('`return_stats` needs each step to be one call: rows with padding were read apart')
            depths = torch.stack([depth.repeat_interleave(b // max(len(depth), 1)) for depth in each], dim=1)
        token_mask = is_unfinished(state.ids[:, state.start : state.length], state.endings)
        mean = float(widen_dtype(depths[token_mask]).mean()) if bool(token_mask.any()) else math.nan
        return ExitStats(mean, self.blocks, state.generated(depths.masked_fill(~token_mask, 0)))


def is_unfinished(new: Tensor, endings: StoppingCriteria) -> Tensor:
    """Return which new tokens (b s) do not stand behind the end of their row."""
    token_mask = torch.ones_like(new, dtype=torch.bool)
    for at in range(1, new.shape[1]) if endings else ():
        token_mask[:, at] = token_mask[:, at - 1] & (endings.reasons(new[:, max(at - endings.width, 0) : at], at) == 0)
    return token_mask

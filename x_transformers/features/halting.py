"""Adaptive computation time: each token decides after how many runs of a block it halts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from x_transformers.core.branches import KINDS
from x_transformers.core.modes import is_transformed
from x_transformers.features.levels import StackFeature
from x_transformers.features.recompute import CheckpointLayers
from x_transformers.features.universal import CoordinatePositions
from x_transformers.flags import Check, ConfigError, flag, is_number, none, not_negative, size

Run = Callable[[Tensor, Any, Sequence[int]], Tensor]
UNLESS = '. With `act_dense` it does'
# features that need all tokens, and keep nothing of a token beside the stream
WITH_ALL = ('shift_tokens', 'mv_split_residual', 'orthog_residual', 'per_layer_abs_pos_emb')


class Halting:
    """State of halting: which tokens (b n) go on, and the outputs of those that have halted.

        N = the first step at which  p_1 + ... + p_N >= 1 - eps,  or the last one
        R = 1 - (p_1 + ... + p_(N-1))
        output = p_1 s_1 + ... + p_(N-1) s_(N-1) + R s_N       ponder = N + R

    Tokens that are not real halt before the first step: they keep their state, and ponder nothing.
    """

    def __init__(self, x: Tensor, token_mask: Tensor | None, eps: float) -> None:
        self.real = x.new_ones(x.shape[:-1], dtype=torch.bool) if token_mask is None else token_mask
        self.going, self.eps = self.real, eps
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        self.spent = x.new_zeros(x.shape[:-1], dtype=wide)
        self.ponder = torch.zeros_like(self.spent)
        self.out = torch.zeros_like(x)

    def step(self, x: Tensor, p: Tensor, number: int, is_last: bool) -> None:
        """Take the states after a step, which counts from 1, and what each token says then (b n)."""
        ends = self.going if is_last else self.going & (self.spent + p >= 1 - self.eps)
        left = 1 - self.spent
        share = torch.where(ends, left, p).masked_fill(~self.going, 0.0)
        self.out = self.out + share.unsqueeze(-1).to(x.dtype) * x
        self.ponder = self.ponder + torch.where(ends, number + left, 0.0)
        self.going = self.going & ~ends
        self.spent = self.spent + torch.where(self.going, p, 0.0)

    def result(self, x: Tensor) -> Tensor:
        return torch.where(self.real.unsqueeze(-1), self.out, x)

    def mean_ponder(self) -> Tensor:
        """Return the mean number of runs of a real token, its remainder included."""
        return self.ponder.sum() / self.real.sum().clamp(min=1)


class TokensHalt(StackFeature):
    """Adaptive computation time: one block runs up to `depth` times, and each token decides after each run if it halts.

        p_n = s(W x_n + b)    after the n-th block; s the logistic function
        output = p_1 x_1 + ... + p_(N-1) x_(N-1) + R x_N

    N is the first run at which the sum of the p_n reaches 1 - eps, or the last one that `act_max_steps` allows; R is 1
    minus the sum before it. A token that has halted keeps its state, from which keys and values for the others are
    computed; layers run on the other tokens only. In training, the mean of N + R over all tokens except padding, times
    a weight, is added to the loss as `ponder`. Padding is never computed.

    Compiled graphs, transforms of `torch.func` and traces compute all tokens in each run, as with `act_dense`; the
    result is the same.
    """

    paper = 'Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819'
    act_halting = flag(False, 'let each token decide after each run of the block whether it needs another one')
    act_eps = flag(
        0.01,
        'eps: a token halts when its halting probabilities sum to 1 - eps',
        Check('a number between 0 and 0.5', lambda v: is_number(v) and 0 < v < 0.5, 'float'),
        example=0.4,
    )
    act_ponder_weight = flag(0.01, 'weight of the ponder loss, which penalizes many runs', not_negative, example=0.5)
    act_dense = flag(False, 'compute all tokens in every run, also those that have halted')
    act_max_steps = flag(None, 'maximum number of runs; `depth` if None', size | none, example=2)
    needs = {'weight_tie_layers': 'a single block runs repeatedly'}
    clashes = {
        'reversible': 'both control how layers run',
        'layer_dropout': 'a skipped block would count as a run',
    }
    sets_on_module = ('layers_execute_order',)
    counts_tokens = True

    @property
    def leaves_out_tokens(self) -> bool:
        return not self.act_dense

    requires_flag = dict.fromkeys(('act_eps', 'act_ponder_weight', 'act_dense', 'act_max_steps'), 'act_halting')

    def setup(self, owner: Any) -> None:
        for feature in owner.features.active:
            reason = feature.reason('some tokens')
            if reason and not (self.act_dense and feature.display_name in WITH_ALL):
                unless = UNLESS if feature.display_name in WITH_ALL else ''
                raise ConfigError(f'`act_halting` cannot be combined with `{feature.display_name}`: {reason}{unless}')
        if not self.act_dense and any(isinstance(feature, CheckpointLayers) for feature in owner.features.active):
            reason = 'which tokens run is found out once'
            raise ConfigError(f'`act_halting` cannot be combined with `checkpoint_layers`: {reason}{UNLESS}')
        runs = len(owner.layers_execute_order) // owner.len_default_block
        if self.act_max_steps is not None and self.act_max_steps > runs:
            raise ConfigError(f'`act_max_steps` got {self.act_max_steps}, the block runs {runs} times: raise `depth`')
        if self.act_max_steps is not None:
            owner.layers_execute_order = owner.layers_execute_order[: self.act_max_steps * owner.len_default_block]
        self.halt = nn.Linear(owner.dim, 1)
        nn.init.zeros_(self.halt.weight)
        nn.init.ones_(self.halt.bias)

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        if not self.act_dense and (reason := KINDS[kind].joins_tokens):
            raise ConfigError(f'`act_halting` cannot be combined with layers of kind {kind!r}: {reason}{UNLESS}')
        for module in branch.modules() if not self.act_dense else ():
            for feature in getattr(getattr(module, 'features', None), 'active', ()):
                if reason := feature.reason('some tokens'):
                    name = f'{"ff" if kind == "f" else "attn"}_{feature.display_name}'
                    raise ConfigError(f'`act_halting` cannot be combined with `{name}`: {reason}{UNLESS}')
        return branch

    def execute_layers(self, run: Run, x: Tensor, call: Any) -> Tensor:
        self.check(run, call)
        length, order = self.owner.len_default_block, call.order
        blocks = [range(start, start + length) for start in range(0, len(order), length)]
        tracing = torch.compiler.is_compiling() or is_tracing() or is_transformed()
        whole = self.act_dense or tracing or type(x) is not Tensor or x.is_meta  # how many go on is not known there
        token_mask = None if call.token_mask is None else call.token_mask[:, -x.shape[1] :]
        halting = Halting(x, token_mask, self.act_eps)
        kept = self.owner.features.find(CheckpointLayers)
        again = run if kept is None else functools.partial(kept.segments, run)
        for number, steps in enumerate(blocks, 1):
            given = self.with_signal(x, call, number)
            if whole:
                new = all_tokens(again, given, call, steps, halting.going)
            elif bool(halting.going.any()):
                new = those_that_go_on(run, given, call, steps, halting.going)
            else:
                self.leave_keys(run, x, call, blocks[number - 1 :], number)
                break
            x = new if given is x else torch.where(halting.going.unsqueeze(-1), new, x)
            p = self.halt(x).squeeze(-1).to(halting.spent.dtype).sigmoid()
            halting.step(x, p, number, number == len(blocks))
        call.add_loss('ponder', halting.mean_ponder() * self.act_ponder_weight)
        return halting.result(x)

    def check(self, run: Run, call: Any) -> None:
        if run.args[1] is not None:
            raise ValueError(
                '`transform_block_inputs` cannot be combined with `act_halting`: halted tokens keep their state'
            )
        block = tuple(range(self.owner.len_default_block))
        if self.act_max_steps is not None and len(call.order) > self.act_max_steps * len(block):
            runs = len(call.order) // len(block)
            raise ValueError(f'`repeat_blocks` got {runs} runs, more than `act_max_steps={self.act_max_steps}`')
        if tuple(call.order) != block * (len(call.order) // len(block)):
            raise ValueError('`layers_execute_order` cannot be combined with `act_halting`: whole blocks run in turn')

    def with_signal(self, x: Tensor, call: Any, number: int) -> Tensor:
        """Return the input of a run of the block: the states, with a signal of which run it is, if there is one."""
        signal = self.owner.features.find(CoordinatePositions)
        return x if signal is None else signal.signalled(x, call, number)

    def leave_keys(self, run: Run, x: Tensor, call: Any, blocks: Sequence[Sequence[int]], number: int) -> None:
        """Write keys and values of the states that were kept, for a later token that goes on longer."""
        layers = self.owner.current_layers()
        for at, steps in enumerate(blocks if call.keeps else (), number):
            given = self.with_signal(x, call, at)
            for call.step in steps:
                layers[call.order[call.step]].fill(given, call, run.args[0])


def all_tokens(run: Run, x: Tensor, call: Any, steps: Sequence[int], going: Tensor) -> Tensor:
    for step in steps:
        x = torch.where(going.unsqueeze(-1), run(x, call, (step,)), x)
    return x


def those_that_go_on(run: Run, x: Tensor, call: Any, steps: Sequence[int], going: Tensor) -> Tensor:
    if bool(going.all()):
        return run(x, call, steps)
    some = call.of_tokens(going)
    x = run(x, some, steps)
    call.merge_from(some)
    return x

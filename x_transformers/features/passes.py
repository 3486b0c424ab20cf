"""Models that run their stack several times: recycling, and looped models with an exit gate.

A feature here overrides the `execute_stack` stage: it gets a function that runs the stack once, the hidden states, and
the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.own_modules import known_stack
from x_transformers.features.levels import ModelFeature
from x_transformers.flags import ConfigError, Input, Noted, flag, format_value, is_int, number, size
from x_transformers.flags.checks import a_switch

Run = Callable[..., tuple[Tensor, LayerIntermediates]]


def get_steps(call: Any, name: str, otherwise: int) -> int:
    """Return how many passes the caller wants."""
    given = call.inputs.get(name)
    if given is None:
        return otherwise
    if not is_int(given) or given < 1:
        raise ValueError(f'`{name}` must be an integer of at least 1, got {format_value(given)}')
    return given


class Recycling(ModelFeature):
    """Run the stack several times, each time on the input plus a linear projection of the previous output.

        h_1 = A(x),  h_{k+1} = A(x + W h_k)          A: the stack

    Only the last pass is differentiated.
    """

    paper = 'AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10'
    recycling = flag(False, 'run the stack several times, on the input plus a projection of the previous output')
    train_max_recycle_steps = flag(4, 'passes in evaluation; in training 1 to this number, at random', size, example=2)
    call_inputs = {'recycle_steps': Input('number of passes; default `train_max_recycle_steps`, random in training')}
    stored_as = {'project': 'recycled_proj'}
    refuses = {'cache': 'each pass reads all tokens again'}

    def setup(self, owner: Any) -> None:
        self.project = nn.Linear(owner.dim, owner.dim, bias=False)

    def execute_stack(self, run: Run, x: Tensor, call: Any) -> tuple[Tensor, LayerIntermediates]:
        most, training = self.train_max_recycle_steps, self.owner.training
        steps, drawn = get_steps(call, 'recycle_steps', most), None
        if training and torch.compiler.is_compiling() and call.inputs.get('recycle_steps') is None:
            drawn = torch.randint(most, (), device=x.device)  # one graph for all: passes beyond it change nothing
        elif training:
            steps = get_steps(call, 'recycle_steps', int(torch.randint(1, most + 1, ())))
        recycled: Tensor | float = 0.0
        for step in range(steps - 1):
            with torch.no_grad(), AuxLosses() as losses:
                again = run(x + recycled)[0]
            if drawn is not None:
                losses.by_name = {name: value * (step < drawn) for name, value in losses.by_name.items()}
            losses.hand_on()
            again = self.project(again)
            recycled = again if drawn is None else torch.where(step < drawn, again, recycled)
        return run(x + recycled)


class Looped(ModelFeature):
    """Run the stack repeatedly on its own output. In generation, a learned gate may exit before the last pass.

        h_0 = x,  h_{i+1} = A(h_i)                   A: the stack
        exit after step i with probability  s(g_i) prod_{j<i} s(-g_j),  g the gate, s the logistic function

    Each pass has a separate cache of keys and values. If a token exits early, the remaining passes cache the keys and
    values of its last pass.
    """

    paper = 'Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741'
    looped = flag(False, 'run the stack several times, each time on the previous output')
    max_looped_steps = flag(4, 'number of passes', size, example=2)
    clashes = {'recycling': 'both set the number of passes through the stack'}
    call_inputs = {
        'looped_steps': Input('exact number of passes, without early exit'),
        'max_looped_steps': Input('maximum number of passes, overrides the flag'),
        'looped_pred_all_logits': Input('return the logits of every pass; the default is True in training', a_switch),
        'looped_inference': Input('let the gate exit early; needs a batch of 1, token by token', a_switch),
        'looped_exit_prob_threshold': Input(
            'exit once the cumulative exit probability reaches this, 0.9 by default', number
        ),
    }
    stored_as = {'gate': 'exit_gate'}
    states = {'exits': Noted()}  # the last pass of each call so far, (1, calls)

    def setup(self, owner: Any) -> None:
        stack = known_stack(owner.attn_layers)
        if not (stack.norm_before and stack.norm_outside):
            raise ConfigError('`looped` needs `pre_and_post_norm` of the stack: its output is its next input')
        self.gate = nn.Linear(owner.dim, 1, bias=False)

    def execute_stack(self, run: Run, x: Tensor, call: Any) -> tuple[Tensor, LayerIntermediates]:
        most = get_steps(call, 'looped_steps', get_steps(call, 'max_looped_steps', self.max_looped_steps))
        exits = bool(call.inputs.get('looped_inference')) and call.inputs.get('looped_steps') is None
        wants_logits = call.inputs.get('looped_pred_all_logits')
        wants_logits = self.owner.training if wants_logits is None else wants_logits
        early = exits and self.may_exit(x, call)
        caches: Any = [None] * most if call.cache is None else call.cache.split(most)
        traces, gates, logits = [], [], []
        left, spent = x.new_zeros(x.shape[0], 1, 1, dtype=torch.float32), 0.0
        for step in range(most):
            x, trace = run(x, cache=caches[step])
            traces.append(trace)
            ordered = x if call.continues else call.move_before_padding(x)
            tokens = ordered[:, ordered.shape[1] - call.new_len :]
            if not exits or (early and step + 1 < most):
                gates.append(self.gate(tokens))
            if wants_logits and self.owner.to_logits is not None:
                logits.append(self.owner.read_later(tokens, call, {}))
            if early and step + 1 < most:
                spent += (left + F.logsigmoid(gates[-1].float())).exp()
                left = left + F.logsigmoid(-gates[-1].float())
                if bool((spent >= call.inputs.get('looped_exit_prob_threshold', 0.9)).all()):
                    break
        return x, self.joined(traces, caches, gates, logits, call)

    def may_exit(self, x: Tensor, call: Any) -> bool:
        """Return True if this call generates a token, for which the passes may end early; a prompt runs all."""
        if x.shape[0] != 1 or (call.cache is not None and call.new_len != 1):
            got = f'{x.shape[0]} rows and {call.new_len} new tokens'
            raise ValueError(f'`looped_inference` must be 1 row, token by token, got {got}')
        if call.cache is not None and (reason := call.cache.cannot('caught_up')):
            raise ValueError(f'`looped_inference` cannot be combined with {reason}')
        return call.cache is not None or call.new_len == 1

    def joined(
        self, traces: list[Any], caches: list[Cache | None], gates: list[Tensor], logits: list[Tensor], call: Any
    ) -> LayerIntermediates:
        """The trace of the last pass, with the caches of all passes."""
        last, executed = traces[-1], len(traces)
        if last.attn_intermediates:
            own = [trace.of_last_pass for trace in traces]
            own += [own[-1] if one is None else one.append_from(own[-1], call.new_len) for one in caches[executed:]]
            last.passes = own if len(own) > 1 else None
        last.exit_logits, last.all_pred_logits = gates or None, logits or None
        index = torch.full((1, 1), executed - 1, dtype=torch.long)
        exits = call.state('exits')
        last.exit_indices = index if exits.value is None else torch.cat((exits.value, index), dim=1)
        exits.keep(last.exit_indices)
        return last

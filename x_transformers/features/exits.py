"""Early exits: tokens leave a stack after one of its blocks, as decided by the input `exits`; outputs of each block.

This module runs the stack on the remaining tokens. The exit criteria are in `generation/exits.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from x_transformers.core.branches import KINDS
from x_transformers.core.modes import is_transformed
from x_transformers.features.halting import all_tokens, those_that_go_on
from x_transformers.features.levels import ModelFeature, StackFeature
from x_transformers.flags import Check, Input, PerToken
from x_transformers.flags.checks import Maybe, a_switch
from x_transformers.training.token_loss import Readout, read_out_later

Run = Callable[[Tensor, Any, Sequence[int]], Tensor]


@dataclass
class Tokens:
    """Those that may leave after a block.

    block   number of the block that they have run, from 1
    state   m d    what a head would read of them: the stream, closed and normed as at the end of the stack
    first   m d    the same behind the first block
    stream  m d    the stream behind the block, and `before` it
    row     m      which row of the batch each is of
    place   m      where it stands in its row, tokens in front not counted
    """

    block: int
    state: Tensor
    first: Tensor
    stream: Tensor
    before: Tensor
    row: Tensor
    place: Tensor


class Exits:
    """Says after which block each token leaves; this one lets none leave. A net takes it as `exits`.

    heads     what reads tokens that leave after block 1, 2, ... but the last; None for the head of the net
    leading   tokens in front of the sequence; those of this call are `front` (b n), and never leave
    depth     b n    blocks that each token of the call has run, once it has
    log       gets these of each call, if it is a list
    """

    heads: Maybe[Sequence[nn.Module]] = None
    leading: int = 0
    front: Maybe[Tensor] = None
    depth: Maybe[Tensor] = None
    log: list[Tensor] | None = None

    def leaves(self, tokens: Tokens) -> Tensor:
        """Return which tokens (m) leave now."""
        return torch.zeros_like(tokens.row, dtype=torch.bool)

    def bound(self, inputs: dict[str, Any], leading: int, front: Tensor | None) -> Exits:
        """Return a copy for one call of a stack, with these inputs."""
        new = copy.copy(self)
        new.leading, new.front = leading, front
        return new


class AllStates(Exits):
    """Nobody leaves; `states` (b n d) gets what a head would read behind each block."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []


an_exit = Check('what says when tokens leave', lambda value: isinstance(value, Exits))


def close_stream(stack: Any, x: Tensor, call: Any) -> Tensor:
    """Return a residual stream as it would leave the stack, streams merged and the final norm applied."""
    features = stack.features.active_for(call.inputs)
    x = features.apply('stack_output', x, call)
    return features.select('finish', lambda x, call: call.norm(stack.final_norm, x))(x, call)


class ExitsInStack(StackFeature):
    """Run the blocks only for tokens that have not exited yet.

    A token that has exited keeps its state: the output, and its keys and values in later layers, are computed from it.
    Batch entries without remaining tokens are not computed, nor is padding.

    Compiled graphs, transforms of `torch.func` and traces compute all tokens in each block; the result is the same.
    """

    paper = 'Depth-Adaptive Transformer, arXiv:1910.10073'
    call_inputs = {'exits': Input('an `Exits`, which decides after which block each token exits', an_exit)}
    states = {'exit_depth': PerToken()}

    def setup(self, owner: Any) -> None:
        self.refused = {f'`{feature.display_name}`': reason for feature in owner.features.active
                        if (reason := feature.reason('some tokens'))}  # fmt: skip

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        if joins := KINDS[kind].joins_tokens:
            self.refused[f'layers of kind {kind!r}'] = joins
        for module in branch.modules():
            for feature in getattr(getattr(module, 'features', None), 'active', ()):
                if reason := feature.reason('some tokens'):
                    self.refused[f'`{self.owner.written(kind, feature.display_name)}`'] = reason
        return branch

    def refusal(self) -> str | None:
        """Return what of the stack cannot be combined with tokens that leave, and why; or None."""
        running = self.owner.features.by_stage.get('execute_layers', ())
        others = {f'`{feature.display_name}`': 'both say how layers run' for feature in running if feature is not self}
        return next((f'{name}: {reason}' for name, reason in {**others, **self.refused}.items()), None)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if call.inputs.get('exits') is None:
            return x
        if reason := self.refusal():
            raise ValueError(f'`exits` cannot be combined with {reason}')
        if call.memories:
            raise ValueError('`exits` cannot be combined with `mems`: memories are of all layers')
        if len(call.order) % self.owner.len_default_block:
            raise ValueError('`exits` cannot be combined with `layers_execute_order` that ends inside of a block')
        return x

    def execute_layers(self, run: Run, x: Tensor, call: Any) -> Tensor:
        exits, length = call.inputs.get('exits'), self.owner.len_default_block
        if exits is None:
            return run(x, call, range(len(call.order)))
        if run.args[1] is not None:
            raise ValueError(
                '`transform_block_inputs` cannot be combined with `exits`: a token that leaves keeps its state'
            )
        blocks = [range(start, start + length) for start in range(0, len(call.order), length)]
        if not isinstance(exits, AllStates):
            return self.run_exiting(run, x, call, blocks, exits)
        for steps in blocks:
            x = run(x, call, steps)
            exits.states.append(close_stream(self.owner, x, call))
        return x

    def run_exiting(self, run: Run, x: Tensor, call: Any, blocks: Sequence[range], exits: Exits) -> Tensor:
        tracing = torch.compiler.is_compiling() or is_tracing() or is_transformed()
        whole = tracing or type(x) is not Tensor or x.is_meta  # how many go on is not known there
        token_mask = None if call.token_mask is None else call.token_mask[:, call.token_mask.shape[1] - x.shape[1] :]
        going = x.new_ones(x.shape[:2], dtype=torch.bool) if token_mask is None else token_mask
        depth, first = torch.zeros_like(going, dtype=torch.long), x
        for number, steps in enumerate(blocks, 1):
            before = x
            if whole:
                x = all_tokens(run, x, call, steps, going)
            elif bool(going.any()):
                x = self.going_on(run, x, call, steps, going)
            else:
                self.leave_keys(run, x, call, range(steps[0], len(call.order)))
                break
            depth = depth + going
            if number < len(blocks):
                state = close_stream(self.owner, x, call)
                first = state if number == 1 else first
                those = None if whole else going
                going = going & ~self.leaves(exits, number, (state, first, x, before), call, those)
        call.state('exit_depth').append(depth.unsqueeze(-1))
        exits.depth = depth
        if exits.log is not None:
            exits.log.append(depth)
        return x

    def leaves(self, exits: Exits, number: int, states: tuple[Tensor, ...], call: Any, going: Tensor | None) -> Tensor:
        """Return which of the tokens (b n) leave after a block: of those that are `going`, or of all."""
        b, n, _ = states[0].shape
        place = torch.arange(n, device=states[0].device) + (call.past_len - exits.leading)
        if going is None:
            row = torch.arange(b, device=place.device).repeat_interleave(n)
            found = exits.leaves(Tokens(number, *(t.flatten(0, 1) for t in states), row=row, place=place.repeat(b)))
            found = found.reshape(b, n)
        else:
            row, at = going.nonzero(as_tuple=True)
            found = torch.zeros_like(going)
            found[row, at] = exits.leaves(Tokens(number, *(t[row, at] for t in states), row=row, place=place[at]))
        return found if exits.front is None else found & ~exits.front

    def going_on(self, run: Run, x: Tensor, call: Any, steps: Sequence[int], going: Tensor) -> Tensor:
        """Run layers for the tokens that are `going`, without the rows of which none is."""
        rows = going.any(dim=1)
        if bool(rows.all()):
            return those_that_go_on(run, x, call, steps, going)
        rows = rows.nonzero().squeeze(-1)
        part, own, features, layers = call.for_batch_idx(rows), going[rows], run.args[0], self.owner.current_layers()
        for step in steps:
            layer, call.step = layers[call.order[step]], step
            if call.keeps:
                layer.fill(x, call, features)
            new = those_that_go_on(run, x[rows], part, (step,), own)
            x = x.index_copy(0, rows, new.to(x.dtype))
        call.step, call.attended, call.self_attended = part.step, part.attended, part.self_attended
        call.keep('block_hiddens', x)
        return x

    def leave_keys(self, run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> None:
        """Write keys and values of the states that were kept, for a later token that goes on longer."""
        layers = self.owner.current_layers()
        steps = steps if call.keeps else ()
        for call.step in steps:
            layers[call.order[call.step]].fill(x, call, run.args[0])


class ExitsInModel(ModelFeature):
    """Pass `exits` to the stack, and apply the output heads of the exits, if there are any, to tokens that exited."""

    paper = 'Depth-Adaptive Transformer, arXiv:1910.10073'
    call_inputs = {'exits': Input('an `Exits`, which decides after which block each token exits', an_exit)}
    by_token = True  # in a call without `exits`

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        exits, front = call.inputs.get('exits'), None
        if exits is None:
            return inputs
        if call.spread is not None:
            raise ValueError(
                '`exits` cannot be combined with `memory_tokens_interspersed_every`: tokens have no places there'
            )
        if call.num_prefix_tokens and not call.continues:
            new = torch.zeros(len(call.like_tokens), call.new_len, dtype=torch.bool, device=call.like_tokens.device)
            front = call.move_after_padding(F.pad(new, (call.num_prefix_tokens, 0), value=True))
        call.ctx(self).exits = bound = exits.bound(inputs, call.num_prefix_tokens, front)
        return {**inputs, 'exits': bound}

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        exits = None if call.inputs.get('exits') is None else call.ctx(self).exits
        if exits is None or exits.depth is None or not exits.heads or out is x or not torch.is_tensor(out):
            return out
        count = min(out.shape[1], call.new_len)  # tokens in front are read by the head of the net
        depth = exits.depth.unsqueeze(-1)
        depth = depth if call.continues else call.move_before_padding(depth)
        front, out = out.split((out.shape[1] - count, count), dim=1)
        x, depth = x[:, x.shape[1] - count :], depth[:, depth.shape[1] - count :]
        for block, head in enumerate(exits.heads, 1):
            own = call.features.apply('logits', head(x), call)
            out = torch.where(depth == block, own.to(out.dtype), out)
        out = call.intermediates.logits = torch.cat((front, out), dim=1)
        return out


class BlockOutputs(StackFeature):
    """Store the output of the stack after each block: residual streams merged, and the final norm applied."""

    call_inputs = {
        'return_block_outputs': Input('store in `block_outputs` the output after each block except the last', a_switch),
        'return_stream': Input('store in `stream` the residual stream before the final norm', a_switch),
    }

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        own = call.ctx(self)
        if getattr(own, 'closing', False):
            return x
        call.intermediates.stream = x if call.inputs.get('return_stream') else None
        if not call.inputs.get('return_block_outputs'):
            return x
        own.closing = True
        hiddens = call.intermediates.block_hiddens[:-1]
        call.intermediates.block_outputs = [close_stream(self.owner, hidden, call) for hidden in hiddens]
        return x


class BlockReadouts(ModelFeature):
    """Store the logits of the model after each block except the last, as lazy readouts."""

    call_inputs = {
        'return_block_readouts': Input('store in `block_readouts` the logits of each block except the last', a_switch),
    }
    by_token = True

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        return {**inputs, 'return_block_outputs': True} if call.inputs.get('return_block_readouts') else inputs

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        if not call.inputs.get('return_block_readouts') or call.intermediates.block_outputs is None:
            return out  # without intermediates there is nowhere to keep them
        taken, memories = call.num_removed, call.intermediates.memory_tokens
        hiddens = call.intermediates.block_outputs
        call.intermediates.block_readouts = [self.logits_of(hidden, call) for hidden in hiddens]
        call.num_removed, call.intermediates.memory_tokens = taken, memories
        return out

    def logits_of(self, hidden: Tensor, call: Any) -> Readout:
        call.num_removed, owner = 0, self.owner
        hidden = hidden if call.continues else call.move_before_padding(hidden)
        hidden = call.features.apply('strip_prefix', hidden, call)
        return read_out_later(owner, hidden, call)

"""Outputs of a model after each of its blocks, for losses of intermediate layers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from x_transformers.features.levels import ModelFeature, StackFeature
from x_transformers.flags import Input
from x_transformers.flags.checks import a_switch
from x_transformers.training.token_loss import Readout, readout_of


class BlockOutputs(StackFeature):
    """Store the output of the stack after each block: residual streams merged, and the final norm applied."""

    takes = {
        'return_block_outputs': Input(
            'store in `block_outputs` the output of the stack after each block except the last', a_switch
        ),
    }

    def close(self, x: Tensor, call: Any) -> Tensor:
        own = call.own(self)
        if not call.inputs.get('return_block_outputs') or getattr(own, 'closing', False):
            return x
        own.closing = True
        on, norm = self.host.features.acting(call.inputs), self.host.final_norm
        finish = on.pick('finish', lambda x, call: call.norm(norm, x))
        hiddens = call.trace.block_hiddens[:-1]
        call.trace.block_outputs = [finish(on.unwind('close', hidden, call), call) for hidden in hiddens]
        return x


class BlockReadouts(ModelFeature):
    """Store the logits of the model after each block except the last, as lazy readouts."""

    takes = {
        'return_block_readouts': Input(
            'store in `block_readouts` the logits after each block except the last', a_switch
        ),
    }
    by_token = True

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        return {**inputs, 'return_block_outputs': True} if call.inputs.get('return_block_readouts') else inputs

    def answer(self, out: Any, x: Tensor, call: Any) -> Any:
        if not call.inputs.get('return_block_readouts') or call.trace.block_outputs is None:
            return out  # without intermediates there is nowhere to keep them
        taken, memories = call.taken, call.trace.memory_tokens
        call.trace.block_readouts = [self.logits_of(hidden, call) for hidden in call.trace.block_outputs]
        call.taken, call.trace.memory_tokens = taken, memories
        return out

    def logits_of(self, hidden: Tensor, call: Any) -> Readout:
        call.taken, host = 0, self.host
        hidden = hidden if call.continues else call.before_padding(hidden)
        hidden = call.on.unwind('shorten', hidden, call)
        if host.can_return_readout:
            return readout_of(host, hidden, call, {})
        classes = host.logits_dim or host.num_tokens
        return Readout(hidden, lambda now, x: host.read_out(x, call, {}), None, classes, whole=True)

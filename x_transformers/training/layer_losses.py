"""Auxiliary losses: later tokens, and predictions of intermediate layers.

    sum_l w_l(progress) sum_s c_s mean_t CE(logits_s(h^l_t), y_{t+s}),      c_0 = 1, w_N = 1

Al-Rfou et al. 2018, arXiv:1808.04444
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.own_modules import known_stack, refuse_own_stack
from x_transformers.flags import Check, ConfigError, format_value, is_number, one_of
from x_transformers.flags.checks import Maybe
from x_transformers.training.items import scale_of_fewer
from x_transformers.training.losses import predictable
from x_transformers.training.token_loss import Readout, Terms, mean_token_loss

a_schedule = one_of(False, 'step', 'linear')
weights = Check(
    'numbers of at least 0',
    lambda value: isinstance(value, (tuple, list)) and all(is_number(one) and one >= 0 for one in value),
)


def layer_weights(schedule: str, progress: float, layers: int) -> list[float]:
    """Return the weight of each layer but the last, the lowest first. It reaches zero at l / 2N of the training: at
    once for 'step', linearly for 'linear'.

        step      1 if progress < l / 2N
        linear    max(0, 1 - 2N progress / l)
    """
    if schedule == 'step':
        return [float(2 * layers * progress < layer) for layer in range(1, layers)]
    return [max(0.0, 1 - 2 * layers * progress / layer) for layer in range(1, layers)]


class Targets(NamedTuple):
    """Targets of each output head: head s predicts the token s positions after the next one.

    tokens      b n    the sequence, `ignore_index` for what is no target
    ignore_index
    real        b n    which tokens are real, None for all: what is not is no target, and nothing is predicted from it
    documents   b n    which document each token is of; None if there is one
    lead               how many tokens stand in front of the sequence, for which there are logits too
    """

    tokens: Tensor
    ignore_index: int
    real: Maybe[Tensor] = None
    documents: Maybe[Tensor] = None
    lead: int = 0

    def of(self, head: int = 0, last_only: bool = False) -> Tensor:
        """The targets of a head, b (lead + n); of each row the last one alone, if wanted."""
        ahead = 1 + head
        targets = self.tokens[:, ahead:]
        if self.real is not None:
            targets = targets.masked_fill(~predictable(self.real, ahead), self.ignore_index)
        if self.documents is not None:
            same = self.documents[:, ahead:] == self.documents[:, : targets.shape[1]]
            targets = targets.masked_fill(~same, self.ignore_index)
        if last_only:
            known = targets != self.ignore_index
            to_come = known.flip(-1).cumsum(dim=-1).flip(-1)
            targets = targets.masked_fill(to_come != 1, self.ignore_index)
        return F.pad(targets, (self.lead, ahead), value=self.ignore_index)

    def of_module(self, number: int, last_only: bool = False) -> Tensor:
        """Return the targets (b, n) of a module of multi-token prediction, which gets the tokens in between."""
        own = self._replace(lead=0)
        if self.real is not None and self.real.shape[1] > number + 1:
            known = self.real.unfold(1, number + 2, 1).all(dim=-1)
            hidden = ~F.pad(known, (number + 1, 0), value=False)
            own = own._replace(tokens=self.tokens.masked_fill(hidden, self.ignore_index))
        return own.of(number, last_only)


class Objective(NamedTuple):
    """Return the losses of one call: of which layers but the last, with their weights, and of which heads.

    heads       c_s of each head; () for the mean over all, of the next token
    mtp_weight  weight of the mean over the modules of multi-token prediction
    """

    layers: tuple[int, ...]
    layer_weights: Maybe[Tensor]
    heads: tuple[float, ...]
    last_only: bool
    mtp_weight: float = 0.0

    def loss(self, logits: Any, targets: Targets, terms: Terms, intermediates: Any) -> Tensor:
        """Return the sum of all losses. `intermediates` has what the model gives after each layer and module."""
        longest = targets.tokens.shape[1]
        if len(self.heads) >= longest:
            raise ValueError(
                f'`future_target_weights` has {len(self.heads) - 1} entries, so that heads look {len(self.heads)} '
                f'tokens ahead: `x` must have more, it has {longest}'
            )
        total = self.of_heads(logits, targets, terms)
        for layer in self.layers:
            own = self.of_heads(intermediates.block_readouts[layer], targets, terms)
            total = total + own * self.layer_weights[layer].to(own)
        return total + self.of_modules(intermediates.mtp_readouts, targets, terms) if self.mtp_weight else total

    def of_modules(self, readouts: Sequence[Any], targets: Targets, terms: Terms) -> Tensor:
        """Return the weighted mean of the losses of the modules of multi-token prediction."""
        n = targets.tokens.shape[1]
        total: Any = 0.0
        for number, readout in enumerate(readouts, start=1):
            loss = mean_token_loss(readout, targets.of_module(number, self.last_only), terms)
            scaled = terms.num_items is not None and not self.last_only
            total = total + loss * (scale_of_fewer(n - 1, number) if scaled else 1.0)
        return self.mtp_weight / len(readouts) * total

    def of_heads(self, logits: Any, targets: Targets, terms: Terms) -> Tensor:
        if not self.heads:
            return mean_token_loss(logits, targets.of(0, self.last_only), terms)
        n = targets.tokens.shape[1]
        losses = [
            weight
            * mean_token_loss(select_head(logits, head), targets.of(head, self.last_only), terms)
            * (1.0 if terms.num_items is None or self.last_only else scale_of_fewer(n - 1, head))
            for head, weight in enumerate(self.heads)
        ]
        return sum(losses[1:], losses[0])


def select_head(logits: Any, head: int) -> Any:
    """Return the logits of one of several heads, from a tuple of them or a `Readout`."""
    if not isinstance(logits, Readout):
        return logits[head]
    if logits.linears is not None:
        return Readout.linear(logits.hidden, (logits.linears[head],))

    def read(now: Any, x: Tensor) -> Tensor:
        return logits.read(now, x)[head]

    return Readout(logits.hidden, read, None, logits.classes, logits.whole, logits.modules, logits.without)


class AuxiliaryLosses(nn.Module):
    """Schedule of the losses added to that of the next token during training. It has no parameters.

    net         whose blocks and heads they are of
    schedule    False, 'step' or 'linear': how the layers between fade
    weights     c_1, c_2, ... of the further heads
    last_only   the last target of each row alone
    """

    def __init__(self, net: nn.Module, schedule: bool | str, weights: Sequence[float], last_only: bool) -> None:
        super().__init__()
        self.schedule, self.weights, self.last_only = schedule, tuple(map(float, weights)), bool(last_only)
        refuse_net(net, self)
        stack = known_stack(net.attn_layers)
        self.layers = len(stack.layers_execute_order) // stack.len_default_block if schedule else 1
        self.active: tuple[int, ...] | None = None
        # no buffer: a model in half precision has them whole
        self.layer_weights = torch.zeros(self.layers - 1, dtype=torch.float64, device='cpu')

    def update_schedules(self, progress: float) -> None:
        if self.schedule:
            self.active, new = self.at(progress)
            self.layer_weights.copy_(new)

    def at(self, progress: float) -> tuple[tuple[int, ...], Tensor]:
        """Return the layers that learn at a point of the training, with their weights."""
        found = layer_weights(str(self.schedule), progress, self.layers)
        active = tuple(at for at, weight in enumerate(found) if weight > 0)
        return active, torch.tensor(found, dtype=torch.float64, device='cpu')

    def now(self, training: bool, progress: float | None, mtp_weight: float = 0.0) -> Objective | None:
        """Return the losses of a call; None for that of the next token alone."""
        if progress is not None and not (is_number(progress) and 0 <= progress <= 1):
            raise ValueError(f'`progress` must be a number from 0 to 1, got {format_value(progress)}')
        if progress is not None and not self.schedule:
            raise ValueError('`progress` needs `intermediate_layer_loss`: nothing else changes with it')
        if not training:
            return Objective((), None, (1.0,), False) if self.weights else None
        active, own = self.active, self.layer_weights
        if self.schedule and progress is not None:
            active, own = self.at(progress)
        if self.schedule and active is None:
            raise ValueError(
                '`intermediate_layer_loss` follows the training: call `on_step_end(0.0)` before its first step and '
                '`on_step_end(step / steps)` after each, or give `progress`'
            )
        if not (active or self.weights or self.last_only or mtp_weight):
            return None
        return Objective(active or (), own, (1.0, *self.weights) if self.weights else (), self.last_only, mtp_weight)


def refuse_net(net: nn.Module, losses: AuxiliaryLosses) -> None:
    """Refuse a net whose blocks or heads are not those that the losses are of."""
    given = (losses.schedule, 'intermediate_layer_loss'), (losses.weights, 'future_target_weights')
    name = next((name for value, name in given if value), 'last_position_only')
    features = getattr(net, 'features', None)
    if getattr(net, 'looped', False):
        raise ConfigError(f'`{name}` cannot be combined with `looped`, whose passes have separate losses')
    if losses.weights:
        heads = next((f.num_output_heads for f in getattr(features, 'active', ()) if 'num_output_heads' in f.flags), 1)
        for flag in ('tie_embedding', 'mixture_of_softmax'):
            if any(flag in f.flags for f in getattr(features, 'active', ())):
                raise ConfigError(f'`future_target_weights` cannot be combined with `{flag}`: there is one head')
        if heads != 1 + len(losses.weights):
            raise ConfigError(
                f'`future_target_weights` has {len(losses.weights)} entries, it needs `num_output_heads='
                f'{1 + len(losses.weights)}` of the net, which has {heads}'
            )
    if not losses.schedule:
        return
    if 'return_block_readouts' not in getattr(features, 'call_inputs', ()):
        raise ConfigError(
            f'`intermediate_layer_loss` needs a net that gives its logits after each block, as TransformerWrapper: '
            f'`net` is {type(net).__name__}'
        )
    refuse_own_stack(net.attn_layers, 'intermediate_layer_loss', 'it does not tell what its blocks give')
    for feature in known_stack(net.attn_layers).features.active:
        idle = feature.training_only or feature.waits
        if not idle and {'finish', 'execute_layers'} & {*feature.runs_at()}:
            raise ConfigError(
                '`intermediate_layer_loss` cannot be combined with '
                f'`{feature.display_name}`: its blocks give no outputs'
            )

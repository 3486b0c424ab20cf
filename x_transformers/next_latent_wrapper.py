"""Language models whose hidden states foretell one another: an auxiliary loss of latent dynamics.

What belongs here: `NextLatentWrapper`, the dynamics that it may use, and SIGReg.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from torch import Tensor, nn
from torch.func import functional_call

from x_transformers.compat.helpers import masked_mean as masked_mean
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, checked
from x_transformers.core.model_calls import make_model_call
from x_transformers.core.modes import to_float
from x_transformers.core.nets import SET_BY_LOSS, check_net, refuse_own
from x_transformers.core.own_modules import known_stack
from x_transformers.core.recompute import ModuleSnapshot, identity
from x_transformers.features.readouts import TiedReadout
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    each,
    instance_of,
    integer,
    mapping,
    none,
    not_negative,
    number,
    one_of,
    size,
)
from x_transformers.training.items import mean_of_items, scale_of_fewer, share_of_items
from x_transformers.training.layer_losses import Targets
from x_transformers.training.losses import each_head, mask_before_padding, readable, real_tokens, tell_padding
from x_transformers.training.token_loss import Terms, mean_token_loss, read_logits_later, reads_whole, sum_by_chunks

__all__ = ['Losses', 'MSECosineSimLoss', 'NextLatentWrapper', 'ResidualDynamics', 'RolloutGRU', 'sigreg_loss']


class NextLatentLosses(NamedTuple):
    """The parts of the loss, before their weights."""

    ce: Tensor
    next_latent: Tensor
    kl: Tensor
    sigreg: Tensor


Losses = NextLatentLosses  # The name in the original.


# losses


class MSECosineSimLoss(nn.Module):
    """(1 - w) (x - y)^2 + w (1 - cos(x, y)) for every entry:  ... d, ... d -> ... d"""

    def __init__(self, weight: float = 0.9) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        pred, target = to_float(pred), to_float(target)
        turned = 1 - F.cosine_similarity(pred, target, dim=-1).unsqueeze(-1)
        return (1 - self.weight) * (pred - target).square() + self.weight * turned


def sigreg_loss(
    x: Tensor,
    num_slices: int = 1024,
    domain: tuple[float, float] = (-5, 5),
    num_knots: int = 17,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Return how far vectors (... d) are from a standard normal distribution, seen along random directions a.

        mean_a  int |E exp(i t <a, x>) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt        by the trapezoid rule

        mask     ...      True for the vectors that count; 0 if none does
        returns  scalar   0 for a standard normal distribution

    Balestriero and LeCun 2025, arXiv:2511.08544
    """
    x = rearrange(to_float(x), '... d -> (...) d')
    directions = F.normalize(torch.randn(x.shape[-1], num_slices, device=x.device, dtype=x.dtype), dim=0)
    t = torch.linspace(*domain, num_knots, device=x.device, dtype=x.dtype)
    normal = (-t.square() / 2).exp()
    counts = x.new_ones(x.shape[0]) if mask is None else rearrange(mask, '... -> (...)').to(x.dtype)
    counts = counts / counts.sum().clamp(min=1)
    projected = x.masked_fill(rearrange(counts == 0, 'n -> n 1'), 0.0) @ directions
    # one knot at a time: a tensor of all vectors, directions and knots would be large
    apart = [
        (counts @ (projected * at).cos() - value).square() + (counts @ (projected * at).sin()).square()
        for at, value in zip(t, normal, strict=True)
    ]
    loss = torch.trapezoid(torch.stack(apart, dim=-1) * normal, t, dim=-1).mean()
    return loss * counts.sum()


# dynamics: the tokens that follow (r b n e), and the states now (b n d), to the states then (r b n d)


class ResidualDynamics(nn.Module):
    """z_r = z_{r-1} + net([z_{r-1} ; a_r])"""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, rollout_next_token_embeds: Tensor, curr_latent: Tensor) -> Tensor:
        states = [curr_latent]
        for action in rollout_next_token_embeds:
            states.append(states[-1] + self.net(torch.cat((states[-1], action), dim=-1)))
        return torch.stack(states[1:])


class RolloutGRU(nn.Module):
    """z_r = GRU(a_r, z_{r-1})"""

    def __init__(self, dim: int, dim_action: int | None = None) -> None:
        super().__init__()
        self.gru = nn.GRU(dim_action or dim, dim)

    def forward(self, rollout_next_token_embeds: Tensor, curr_latent: Tensor) -> Tensor:
        tokens, first = rollout_next_token_embeds, curr_latent
        states, _ = self.gru(rearrange(tokens, 'r b n e -> r (b n) e'), rearrange(first, 'b n d -> 1 (b n) d'))
        return rearrange(states, 'r (b n) d -> r b n d', b=len(first))


def residual_mlp(dim: int, dim_action: int, dim_hidden: int, num_layers: int) -> nn.Module:
    """Build a norm and a perceptron whose output is 0 at first:  ... d + a -> ... d"""
    widths = [dim + dim_action, *[dim_hidden] * (num_layers - 1), dim]
    layers: list[Any] = []
    for at in range(num_layers):
        layers += [nn.Linear(widths[at], widths[at + 1]), nn.GELU()]
    nn.init.zeros_(layers[-2].weight)
    nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(nn.LayerNorm(dim + dim_action), nn.Sequential(*layers[:-1]))


def frozen_logits(net: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Return the logits of each head of a model from its hidden states, which learn from them alone."""
    head: Any = net.to_logits
    if not torch.compiler.is_compiling():
        logits = ModuleSnapshot(head, detached=True).restored(head)(x)
    elif isinstance(head, TiedReadout):
        bias = None if head.bias is None else head.bias.detach()
        logits = F.linear(x, head.table(x.device).detach() * head.scale, bias)
    else:
        logits = functional_call(head, {name: p.detach() for name, p in head.named_parameters()}, (x,))
    call = replace(make_model_call(net, {}, x.shape[-2], None, False), training=False)
    logits = each_head(lambda one: call.features.apply('logits', one, call), logits)
    return logits if isinstance(logits, tuple) else (logits,)


def normalize_weights(name: str, given: Sequence[float] | None, num_rollouts: int) -> tuple[float, ...]:
    """Return the loss weights of the predicted steps, with a sum of 1: those given as `name`, or equal ones."""
    weights = (1.0,) * num_rollouts if given is None else tuple(given)
    if len(weights) != num_rollouts or sum(weights) <= 0:
        raise ConfigError(f'`{name}` must be {num_rollouts} numbers, not all of them 0, got {weights}')
    return tuple(weight / sum(weights) for weight in weights)


# the wrapper


class NextLatentWrapper(Configurable):
    """A language model whose hidden states also predict the next hidden states:  ids (b, n) -> loss.

        z_0 = h_t;  z_r = dynamics(z_{r-1}, token t + r)                  for r = 1 .. R
        loss = next token + sum_r w_r (distance(z_r, h_{t+r}) + KL(head(h_{t+r}) || head(z_r))) + SIGReg(h)

    Targets, token embeddings and the head get no gradient from these losses. The weights w_r, which sum to 1, can be
    reduced by the losses of earlier steps, by exp(-decay sum_{s<r} distance_s).  Teoh et al. 2025, arXiv:2511.05963
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        *,
        dim: Annotated[int, 'width of the hidden states', size],
        num_rollouts: Annotated[int, 'number of predicted steps', size] = 1,
        loss_type: Annotated[
            str | nn.Module, 'distance of latents; a module maps (prediction, target) to one loss per entry',
            one_of('smooth_l1', 'mse', 'mse_and_cosine_sim') | instance_of(nn.Module),
        ] = 'smooth_l1',
        dynamics_type: Annotated[
            str, "dynamics: a residual network, a GRU, or `dynamics_network`", one_of('residual', 'gru', 'custom')
        ] = 'residual',
        dynamics_network: Annotated[
            nn.Module | None,
            'custom dynamics network; residual: from [state ; token] to the change of the state; custom: '
            'from the tokens (r, b, n, e) and the states (b, n, d) to the states (r, b, n, d)',
            instance_of(nn.Module) | none,
        ] = None,
        dynamics_hidden_dim: Annotated[int | None, 'inner width, `dim` if None', size | none] = None,
        dynamics_num_layers: Annotated[int, 'number of linear layers of the residual network', size] = 3,
        next_latent_loss_weight: Annotated[float, 'weight of the latent distance in the loss', not_negative] = 1.0,
        kl_loss_weight: Annotated[float, 'weight of the KL divergence', not_negative] = 1.0,
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'input id that replaces `ignore_index`', integer] = 0,
        rollout_weights: Annotated[
            Sequence[float] | None, 'loss weights of the steps; equal if None', each(not_negative) | none
        ] = None,
        sigreg_loss_weight: Annotated[float, 'weight of SIGReg, the distance from a Gaussian', not_negative] = 0.0,
        sigreg_loss_kwargs: Annotated[dict | None, 'keywords of `sigreg_loss`', mapping | none] = None,
        dynamic_rollout_loss_weight: Annotated[bool, 'weight later steps less after large losses', boolean] = True,
        dynamic_loss_decay: Annotated[float, 'strength of this reduction', number] = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_net(net)
        width = known_stack(net.attn_layers).dim
        if dim != width:
            raise ConfigError(f'`dim` got {dim}, the hidden states of `net` have width {width}')
        self.rollout_loss_weights = normalize_weights('rollout_weights', rollout_weights, num_rollouts)
        if kl_loss_weight > 0 and getattr(net, 'output_is_log_prob', False):
            raise ConfigError('`kl_loss_weight` must be 0 with `mixture_of_softmax`: its mixture is not in the head')
        if kl_loss_weight > 0 and getattr(net, 'dim_readout', None) is not None:
            raise ConfigError('`kl_loss_weight` must be 0 with `head_transform`: it is not part of the head')
        self.net, self.num_rollouts = net, num_rollouts
        self.token_emb: Any = net.token_emb
        self.dynamics_model = self.dynamics(
            dynamics_type, dynamics_network, dim, self.net.emb_dim, dynamics_hidden_dim or dim, dynamics_num_layers
        )
        self.loss_fn = self.distance(loss_type)
        self.next_latent_loss_weight, self.kl_loss_weight = next_latent_loss_weight, kl_loss_weight
        self.ignore_index, self.pad_value = ignore_index, pad_value
        self.sigreg_loss_weight, self.sigreg_loss_kwargs = sigreg_loss_weight, dict(sigreg_loss_kwargs or {})
        self.dynamic_rollout_loss_weight, self.dynamic_loss_decay = dynamic_rollout_loss_weight, dynamic_loss_decay

    @staticmethod
    def dynamics(
        kind: str, network: nn.Module | None, dim: int, dim_action: int, dim_hidden: int, num_layers: int
    ) -> nn.Module:
        if kind == 'custom':
            if network is None:
                raise ConfigError("`dynamics_network` is missing: `dynamics_type='custom'` needs it")
            return network
        if kind == 'gru':
            if network is not None:
                raise ConfigError(
                    "`dynamics_network` cannot be combined with `dynamics_type='gru'`, which brings its own"
                )
            return RolloutGRU(dim, dim_action)
        return ResidualDynamics(residual_mlp(dim, dim_action, dim_hidden, num_layers) if network is None else network)

    @staticmethod
    def distance(kind: str | nn.Module) -> nn.Module:
        if isinstance(kind, nn.Module):
            return kind
        if kind == 'mse_and_cosine_sim':
            return MSECosineSimLoss()
        return nn.SmoothL1Loss(reduction='none') if kind == 'smooth_l1' else nn.MSELoss(reduction='none')

    @checked
    def forward(
        self,
        x: Tensor,
        return_loss_breakdown: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of tokens and of hidden states.

        x                      b n   ids, n of at least `num_rollouts` + 2; `ignore_index` where there is no target
        return_loss_breakdown        also return the `NextLatentLosses`, before their weights
        num_items_in_batch           divide the sums of the losses of tokens and states by this number, so that batches
                                     add up; SIGReg counts by the share of the targets
        **kwargs                     passed to the model: `context`, ..., and `mask` (b n), True except for
                                     padding, which is neither a target nor used for predictions
        """
        x = check_ids(x, 'x', self.num_rollouts + 2)
        refuse_own(kwargs, 'the loss', SET_BY_LOSS | {'prepend_embeds': ': the states of all tokens are foretold'})
        token_mask = real_tokens(x, kwargs.get('mask'), start=kwargs.get('seq_start_pos'))
        x = x if token_mask is None else x.masked_fill(~token_mask, self.ignore_index)
        tell_padding(self.net, kwargs, lambda: mask_before_padding(x, self.ignore_index))
        ids, to_come = readable(x, self.ignore_index, self.pad_value), Targets(x, self.ignore_index, token_mask)
        with AuxLosses() as aux:
            logits, hidden = self.net(ids, return_logits_and_embeddings=True, **kwargs, **read_logits_later(self.net))
        share = share_of_items(to_come.of() != self.ignore_index, num_items_in_batch)
        ce = self.token_loss(logits, to_come, num_items_in_batch)
        of_states = self.latent_losses(hidden, to_come, ids, num_items_in_batch)
        losses = NextLatentLosses(ce, *of_states, self.normality(hidden, to_come) * share)
        weights = (1.0, self.next_latent_loss_weight, self.kl_loss_weight, self.sigreg_loss_weight)
        weighted: Any = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        total = aux.added_to(weighted, share)
        return (total, losses) if return_loss_breakdown else total

    def token_loss(self, logits: Any, to_come: Targets, num_items: Any = None) -> Tensor:
        is_log_prob = bool(getattr(self.net, 'output_is_log_prob', False))
        terms = Terms(self.ignore_index, is_log_prob=is_log_prob, num_items=num_items)
        logits = each_head(lambda one: one[:, :-1], logits)
        return mean_token_loss(logits, to_come.of()[:, :-1], terms)

    def latent_losses(self, hidden: Tensor, to_come: Targets, ids: Tensor, num_items: Any) -> tuple[Tensor, Tensor]:
        """Return the distance and the divergence of all steps."""
        zero = to_float(hidden).new_zeros(())
        if self.next_latent_loss_weight == 0 and self.kl_loss_weight == 0:
            return zero, zero
        steps = range(1, self.num_rollouts + 1)
        tokens = self.token_emb(ids).detach()
        # behind the end of the sequence there is nothing to foretell: zeros, which are masked
        actions = torch.stack([F.pad(tokens[:, step:], (0, 0, 0, step - 1)) for step in steps])
        valid = torch.stack([to_come.of(step - 1)[:, :-1] != self.ignore_index for step in steps])
        targets = torch.stack([F.pad(hidden.detach()[:, step:], (0, 0, 0, step - 1)) for step in steps])
        states = self.dynamics_model(actions, hidden[:, :-1])
        if states.shape != targets.shape:
            raise ValueError(f'`dynamics_network` must give shape {tuple(targets.shape)}, got {tuple(states.shape)}')
        distances = self.loss_fn(to_float(states), to_float(targets))
        if distances.shape[:3] != valid.shape:
            raise ValueError(f'`loss_type` must not reduce {tuple(states.shape)}, got losses {tuple(distances.shape)}')
        distances = reduce(distances, 'r b n ... -> r b n', 'mean') if distances.ndim > 3 else distances
        weights = self.weights(distances)
        mean: Any = masked_mean
        if num_items is not None:
            mean = functools.partial(mean_of_items, num_items=num_items)
            places = valid.shape[-1]
            weights = weights * weights.new_tensor([scale_of_fewer(places, step - 1) for step in steps]).view(-1, 1, 1)
        distance: Any = zero
        divergence: Any = zero
        if self.next_latent_loss_weight > 0:
            distance = sum(map(mean, weights * distances, valid))
        if self.kl_loss_weight > 0:
            divergence = sum(map(mean, weights * self.divergences(states, targets), valid))
        return distance, divergence

    def weights(self, distances: Tensor) -> Tensor:
        """Return the weight (r, b, n) of each step at each token, from the distances (r, b, n)."""
        weights = rearrange(distances.new_tensor(self.rollout_loss_weights), 'r -> r 1 1')
        if not self.dynamic_rollout_loss_weight:
            return weights.expand_as(distances)
        distances = distances.detach()
        before = distances.cumsum(dim=0) - distances
        return weights * (-self.dynamic_loss_decay * before).exp()

    sigreg_loss = staticmethod(sigreg_loss)

    def divergences(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return KL(head(target) || head(state)) of each step at each token, in nats."""

        def of(now: Any, states: Tensor, targets: Tensor) -> tuple[Tensor]:
            found, net = [], now(self.net)
            with torch.no_grad():
                wanted = [to_float(logits).log_softmax(dim=-1) for logits in frozen_logits(net, targets)]
            for logits, goal in zip(frozen_logits(net, states), wanted, strict=True):
                found.append((goal.exp() * (goal - to_float(logits).log_softmax(dim=-1))).sum(dim=-1))
            total: Any = sum(found)
            return (total / len(found),)

        if not read_logits_later(self.net) or reads_whole(self.net.to_logits):
            return of(identity, states, targets)[0]
        classes, net = 4 * (self.net.logits_dim or self.net.num_tokens), self.net
        flat = rearrange(states, 'r b n d -> (r b n) d'), rearrange(targets, 'r b n d -> (r b n) d')
        return sum_by_chunks(of, flat, classes, (net,), (net.attn_layers,))[0].view(states.shape[:-1])

    def normality(self, hidden: Tensor, to_come: Targets) -> Tensor:
        """Return SIGReg of the states that have a target."""
        if self.sigreg_loss_weight == 0:
            return to_float(hidden).new_zeros(())
        return sigreg_loss(hidden[:, :-1], mask=to_come.of()[:, :-1] != self.ignore_index, **self.sigreg_loss_kwargs)

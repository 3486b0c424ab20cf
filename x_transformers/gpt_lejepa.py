"""A language model that learns in the space of its latents; tokens are read off by a probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.compat.helpers import masked_mean as masked_mean
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, checked
from x_transformers.core.model_calls import make_model_call
from x_transformers.core.modes import to_float
from x_transformers.core.nets import SET_BY_LOSS, check_net, refuse_own
from x_transformers.features.norms import RMSNorm as RMSNorm
from x_transformers.features.resizing import grow
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    each,
    instance_of,
    integer,
    is_number,
    mapping,
    none,
    not_negative,
    size,
)
from x_transformers.next_latent_wrapper import normalize_weights, sigreg_loss
from x_transformers.training.items import mean_of_items, scale_of_fewer, share_of_items
from x_transformers.training.layer_losses import Targets
from x_transformers.training.losses import each_head, mask_before_padding, readable, real_tokens, tell_padding
from x_transformers.training.token_loss import Terms, get_readout, mean_token_loss, read_logits_later

__all__ = ['LatentAutoregressive', 'Losses']

SLICES = {'num_slices': 1024, 'domain': (-5, 5), 'num_knots': 17}

fraction = Check('a number from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1)


class LeJEPALosses(NamedTuple):
    """The parts of the loss, before their weights."""

    ce: Tensor
    l2: Tensor
    l2_no_action: Tensor
    sigreg: Tensor


Losses = LeJEPALosses  # The name in earlier versions.


def scale_grad(t: Tensor, scale: float) -> Tensor:
    """Return `t` with a scaled gradient."""
    return t.detach() if scale == 0 else t * scale + t.detach() * (1 - scale)


def perceptron(dim: int, dim_out: int) -> nn.Sequential:
    """Build a perceptron, ... d -> ... dim_out, with two hidden layers of twice that width."""
    wide = 2 * dim_out
    first, second, last = nn.Linear(dim, wide), nn.Linear(wide, wide), nn.Linear(wide, dim_out)
    return nn.Sequential(RMSNorm(dim), first, nn.LeakyReLU(), second, nn.LeakyReLU(), last)


def check_probed_net(net: Any, dim: int, predicts: bool) -> None:
    """Raise if the latents have another width, are not predicted, or are not all that the head of `net` reads."""
    if dim != net.attn_layers.dim:
        raise ConfigError(f'`dim` must be the width of the latents of `net`, {net.attn_layers.dim}, got {dim}')
    if getattr(net, 'output_is_log_prob', False):
        raise ConfigError('`mixture_of_softmax` is set: its mixture is not part of the head, which the probe needs')
    if not predicts:
        raise ConfigError(
            '`predict_next_embed_with_action` and `predict_next_embed_no_action` are both off: nothing is foretold'
        )
    if getattr(net, 'dim_readout', None) is not None:
        raise ConfigError('`head_transform` is set: it is not part of the head, which the probe needs')


def check_hiddens_index(net: Any, index: int | None) -> None:
    """Raise if a layer does not exist, or its input has other states than those of tokens."""
    layers = net.attn_layers.layer_types.count('a')
    if index is not None and not -layers <= index < layers:
        raise ConfigError(
            f'`predictor_input_hiddens_index` must be below {layers}, the self-attention layers of `net`, got {index}'
        )
    if index is not None and getattr(net, 'memory_tokens_interspersed_every', None):
        raise ConfigError(
            '`predictor_input_hiddens_index` must be None with `memory_tokens_interspersed_every`: between the '
            'states of tokens are others'
        )


class LatentAutoregressive(Configurable):
    """A language model that also learns to predict its future latents:  ids (b, n) -> loss.

        z_0 = s_t;  z_r = predictor([z_{r-1} ; action t + r])             s: the input of a layer, h: the output
        loss = CE(probe(h)) + (1 - l) w sum_r w_r mean (z_r / |z_r| - h_{t+r} / |h_{t+r}|)^2
             + l (SIGReg(h) + SIGReg(s)) / 2

    The probe, an MLP before the head, is trained by the token loss; the fraction `frac_gradient` of its gradient
    reaches the model. The weights w_r sum to 1.
    Balestriero and LeCun 2025, arXiv:2511.08544; Huang et al. 2025, arXiv:2509.14252
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        *,
        dim: Annotated[int, 'width of the latents', size],
        sigreg_loss_weight: Annotated[float, 'weight l of SIGReg, the distance to a Gaussian', fraction] = 0.05,
        l2_loss_weight: Annotated[float, 'weight w of the distance of predicted latents', not_negative] = 1.0,
        num_rollouts: Annotated[int, 'number of predicted steps', size] = 1,
        rollout_loss_weights: Annotated[
            Sequence[float] | None, 'loss weights of the steps; equal if None', each(not_negative) | none
        ] = None,
        sigreg_loss_kwargs: Annotated[dict, '`num_slices`, `domain`, `num_knots` of `sigreg_loss`', mapping] = SLICES,
        frac_gradient: Annotated[float, 'fraction of the token loss gradient that reaches the model', fraction] = 0.0,
        predict_next_cosine_sim: Annotated[bool, 'compare L2-normalized latents (cosine similarity)', boolean] = True,
        predictor_input_hiddens_index: Annotated[
            int | None,
            'index of the self-attention layer whose input is used for prediction; None: the output of the model',
            integer | none
        ] = -1,
        predict_next_embed_with_action: Annotated[bool, 'predict latents given the next tokens', boolean] = True,
        predict_next_embed_no_action: Annotated[
            bool, 'predict latents without the next tokens, with a separate predictor', boolean
        ] = False,
        detach_target: Annotated[bool, 'stop the gradient into the predicted targets', boolean] = True,
        ce_probe_module: Annotated[nn.Module | None, 'module before the probe', instance_of(nn.Module) | none] = None,
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'input id that replaces `ignore_index`', integer] = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_net(net)
        with_action, alone = predict_next_embed_with_action, predict_next_embed_no_action
        check_probed_net(net, dim, bool(with_action or alone))
        check_hiddens_index(net, predictor_input_hiddens_index)
        self.rollout_loss_weights = normalize_weights('rollout_loss_weights', rollout_loss_weights, num_rollouts)
        probe = () if ce_probe_module is None else (ce_probe_module,)
        model: Any = net
        model.to_logits = nn.Sequential(*probe, *perceptron(dim, dim), model.to_logits)
        self.net, self.num_rollouts = net, num_rollouts
        self.action_emb: Any = nn.Embedding(model.num_tokens, dim) if with_action else None
        self.to_next_embed_pred = perceptron(2 * dim, dim) if with_action else None
        self.to_next_embed_no_action_pred = perceptron(dim, dim) if alone else None
        self.ignore_index, self.pad_value, self.frac_gradient = ignore_index, pad_value, frac_gradient
        self.sigreg_loss_weight, self.l2_loss_weight = sigreg_loss_weight, l2_loss_weight
        self.sigreg_loss_kwargs, self.detach_target = dict(sigreg_loss_kwargs), detach_target
        self.predict_next_cosine_sim = predict_next_cosine_sim
        self.predictor_input_hiddens_index = predictor_input_hiddens_index

    sigreg_loss = staticmethod(sigreg_loss)

    def resize_own_tokens(self, old: int, new: int) -> None:
        if self.action_emb is not None:
            grow(self.action_emb, nn.Embedding(new, self.action_emb.embedding_dim))

    @checked
    def forward(
        self,
        x: Tensor,
        return_loss_breakdown: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of latents, and of the tokens read off them.

        x                      b n   ids, n of at least `num_rollouts` + 1; `ignore_index` where there is no target
        return_loss_breakdown        also return the `LeJEPALosses`, before their weights
        num_items_in_batch           divide the sums of the losses of tokens and latents by this number, so that
                                     batches add up; SIGReg counts by the share of the targets
        **kwargs                     passed to the model: `context`, ..., and `mask` (b n), True except for
                                     padding, which is neither a target nor used for predictions
        """
        x = check_ids(x, 'x', self.num_rollouts + 1)
        refuse_own(kwargs, 'the loss', SET_BY_LOSS | {'prepend_embeds': ': the latents of all tokens are foretold'})
        token_mask = real_tokens(x, kwargs.get('mask'), start=kwargs.get('seq_start_pos'))
        x = x if token_mask is None else x.masked_fill(~token_mask, self.ignore_index)
        tell_padding(self.net, kwargs, lambda: mask_before_padding(x, self.ignore_index))
        ids, to_come = readable(x, self.ignore_index, self.pad_value), Targets(x, self.ignore_index, token_mask)
        with AuxLosses() as aux:
            hidden, trace = self.net(ids, return_embeddings_and_intermediates=True, **kwargs)
        index = self.predictor_input_hiddens_index
        source = hidden if index is None else trace.hiddens[index][:, -x.shape[1] :]  # memory tokens stand in front
        target = hidden.detach() if self.detach_target else hidden
        zero = to_float(hidden).new_zeros(())
        l2 = l2_no_action = sigreg = zero
        share = share_of_items(to_come.of() != self.ignore_index, num_items_in_batch)
        states = source, target, to_come, num_items_in_batch
        if self.to_next_embed_pred is not None:
            l2 = self.distance(self.to_next_embed_pred, self.action_emb(ids), *states)
        if self.to_next_embed_no_action_pred is not None:
            l2_no_action = self.distance(self.to_next_embed_no_action_pred, None, *states)
        if self.sigreg_loss_weight > 0:
            sigreg = self.normality(hidden, source, to_come) * share
        with aux:
            losses = LeJEPALosses(self.token_loss(hidden, to_come, num_items_in_batch), l2, l2_no_action, sigreg)
        weight = self.sigreg_loss_weight
        total = losses.ce + (1 - weight) * (l2 + l2_no_action) * self.l2_loss_weight + weight * sigreg
        total = aux.added_to(total, share)
        return (total, losses) if return_loss_breakdown else total

    def token_loss(self, hidden: Tensor, to_come: Targets, num_items: Any = None) -> Tensor:
        """Return the cross entropy of the probe."""
        hidden = scale_grad(hidden[:, :-1], self.frac_gradient)
        call = make_model_call(self.net, {}, hidden.shape[1], None, False)
        if read_logits_later(self.net):
            logits = get_readout(self.net, hidden, call, {})
        else:
            logits = each_head(lambda z: call.features.apply('logits', z, call), self.net.to_logits(hidden))
        terms = Terms(self.ignore_index, num_items=num_items)
        return mean_token_loss(logits, to_come.of()[:, :-1], terms)

    def distance(
        self,
        predictor: nn.Module,
        actions: Tensor | None,
        source: Tensor,
        target: Tensor,
        to_come: Targets,
        num_items: Any,
    ) -> Tensor:
        """Return the weighted distance of all steps, from the states `source` to the states `target` (b n d)."""
        total, state = to_float(source).new_zeros(()), source
        for step, weight in enumerate(self.rollout_loss_weights, start=1):
            state = state[:, :-1]
            state = predictor(state if actions is None else torch.cat((state, actions[:, step:]), dim=-1))
            found, wanted = to_float(state), to_float(target[:, step:])
            if self.predict_next_cosine_sim:
                found, wanted = F.normalize(found, dim=-1, eps=1e-6), F.normalize(wanted, dim=-1, eps=1e-6)
            errors = (found - wanted).square().mean(dim=-1)
            valid = to_come.of(step - 1)[:, :-step] != self.ignore_index
            if num_items is None:
                mean = masked_mean(errors, valid)
            else:
                mean = mean_of_items(errors, valid, num_items) * scale_of_fewer(source.shape[1] - 1, step - 1)
            total = total + weight * mean
        return total

    def normality(self, hidden: Tensor, source: Tensor, to_come: Targets) -> Tensor:
        """Return the mean SIGReg of outputs and predictor inputs that have a target."""
        token_mask = to_come.of()[:, :-1] != self.ignore_index
        sets = (hidden,) if source is hidden else (hidden, source)
        total: Any = sum(self.sigreg_loss(t[:, :-1], mask=token_mask, **self.sigreg_loss_kwargs) for t in sets)
        return total / len(sets)

"""Language models: the next-token loss, and generation.

What belongs here: `AutoregressiveWrapper` and its loss. Its generation stands in the room `generation`, its methods in
`generation/methods.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from einops import pack, unpack
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.compat.helpers import (
    cast_tuple as cast_tuple,
    default as default,
    exists as exists,
    identity as identity,
    join as join,
)
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import (
    can_read_values,
    check_documents,
    check_ids,
    check_lengths,
    check_prefix,
    checked,
    mask_from_lengths,
)
from x_transformers.core.modes import maps_apart
from x_transformers.core.nets import SET_BY_LOSS, check_net, is_prefix, refuse_own
from x_transformers.features.documents import begins
from x_transformers.flags import (
    ConfigError,
    Configurable,
    between,
    boolean,
    instance_of,
    integer,
    none,
    not_negative,
    number,
    positive,
    probability,
)
from x_transformers.generation.choice import get_vocabulary
from x_transformers.generation.engine import Generated
from x_transformers.generation.methods import GeneratesText
from x_transformers.generation.prompt_cache import PromptCache
from x_transformers.generation.sampling import (
    FILTER_LOGITS_FN,
    align_right,
    contrastive_decode_fn,
    gumbel_noise as gumbel_noise,
    gumbel_sample as gumbel_sample,
    min_p,
    to_float,
    top_a,
    top_k,
    top_p,
)
from x_transformers.generation.speculative import SpeculativeStats
from x_transformers.keywords import AutoregressiveWrapperCall
from x_transformers.training.items import count_items, share_of_items
from x_transformers.training.layer_losses import AuxiliaryLosses, Targets, a_schedule, weights
from x_transformers.training.losses import mask_before_padding, readable, real_tokens, tell_padding
from x_transformers.training.token_loss import Terms, mean_token_loss, next_token_loss, read_logits_later, token_losses

__all__ = [
    'FILTER_LOGITS_FN',
    'AutoregressiveWrapper',
    'Generated',
    'PromptCache',
    'SpeculativeStats',
    'align_right',
    'cast_tuple',
    'contrastive_decode_fn',
    'default',
    'eval_decorator',
    'exists',
    'identity',
    'join',
    'min_p',
    'next_token_loss',
    'pack',
    'top_a',
    'top_k',
    'top_p',
    'unpack',
]


def eval_decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Run a method in eval mode, and restore each module's training flag. Gradients are kept."""

    @functools.wraps(fn)
    def inner(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            return fn(self, *args, **kwargs)
        finally:
            for module in training:
                module.training = True

    return inner


# loss


FILLS_INTERMEDIATES = ('return_mems', 'return_logit_entropies', 'return_attn_z_loss')


def next_embed_loss(pred: Tensor, embeds: Tensor, real: Tensor, num_items: Any = None) -> Tensor:
    """Return the mean absolute error of predicted embeddings of the next tokens (b n e), where those are real (b n)."""
    real = real[:, :-1]
    # What does not count is left out before it is subtracted, so that its gradient is 0, and not 0 times NaN.
    errors = (to_float(pred[:, :-1]) - to_float(embeds[:, 1:].detach())).masked_fill(~real.unsqueeze(-1), 0.0)
    return errors.abs().mean(dim=-1).sum() / count_items(real, num_items)


def hidden_keys(x: Tensor, mask_prob: float) -> Tensor:
    """Return True (b, n) for the keys that stay: `mask_prob` of each sequence is hidden, never the first.

    Liu et al. 2022, arXiv:2210.13432
    """
    b, n = x.shape
    chance = torch.randn((b, n), dtype=torch.float32, device=x.device)
    chance[:, 0] = -torch.finfo(chance.dtype).max
    hidden = chance.topk(min(int(n * mask_prob), n - 1), dim=-1).indices
    return torch.ones_like(x, dtype=torch.bool).scatter(1, hidden, False)


def check_loss_inputs(kwargs: dict[str, Any], return_outputs: bool) -> None:
    """Raise if a keyword for the model cannot be combined with the loss."""
    filling = {name for name in FILLS_INTERMEDIATES if kwargs.get(name)}
    if filling and not return_outputs:
        raise ValueError(f'`{min(filling)}` needs `return_outputs=True`: what it gives comes with the intermediates')
    allowed = {*filling, 'document_ids'}
    refuse_own({name: v for name, v in kwargs.items() if name not in allowed}, 'the loss', SET_BY_LOSS)


# the wrapper


class AutoregressiveWrapper(GeneratesText, Configurable):
    """A language model with its next-token loss, and generation.

        forward   ids (b, n) -> the mean cross entropy of each token given the tokens before it

    The wrapper has no parameters; those of the model are stored under `net.`.
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[
            int,
            'padding id, used as input for `ignore_index`, before shorter prompts, and after the end of a sequence',
            integer,
        ] = 0,
        mask_prob: Annotated[float, 'fraction of keys masked in training, arXiv:2210.13432', probability] = 0.0,
        add_attn_z_loss: Annotated[bool, 'add the z-loss of the attention logits to the loss', boolean] = False,
        next_embed_loss_weight: Annotated[float, 'weight of the loss of the predicted next embeddings', number] = 0.1,
        looped_loss_threshold_exit: Annotated[
            float, 'improvement of the loss, in nats, that justifies another pass of a looped model', number
        ] = 0.05,
        looped_loss_slope: Annotated[float, 'slope of the target of the exit gate of a looped model', positive] = 50.0,
        looped_exit_loss_weight: Annotated[float, 'weight of the loss of the exit gate of looped models', number] = 1.0,
        label_smoothing: Annotated[
            float, 'label smoothing: 1 - e for the target, e spread over all tokens, arXiv:1512.00567', probability
        ] = 0.0,
        z_loss_weight: Annotated[
            float, 'weight of the squared log-sum-exp of the logits, arXiv:2204.02311', not_negative
        ] = 0.0,
        intermediate_layer_loss: Annotated[
            bool | str,
            "in training, add losses of intermediate layers, which are switched off in turn ('step') or "
            "gradually ('linear')",
            a_schedule,
        ] = False,
        future_target_weights: Annotated[
            Sequence[float], 'in training, one loss weight per further output head, for later tokens', weights
        ] = (),
        last_position_only: Annotated[bool, 'in training, use only the last target of each sequence', boolean] = False,
        entmax_loss_alpha: Annotated[
            float | None,
            "use the entmax loss with this alpha from 1 to 2; sample with the filter 'entmax'; arXiv:1905.05702",
            between(1, 2) | none,
        ] = None,
    ) -> None:
        super().__init__()
        check_net(net)
        self.net = net
        self.max_seq_len = net.max_seq_len
        self.add_continuous_pred_head = bool(getattr(net, 'add_continuous_pred_head', False))
        self.ignore_index = ignore_index
        self.pad_value = pad_value
        self.mask_prob = mask_prob
        self.add_attn_z_loss = add_attn_z_loss
        self.next_embed_loss_weight = next_embed_loss_weight
        self.looped_loss_threshold_exit, self.looped_loss_slope = looped_loss_threshold_exit, looped_loss_slope
        self.looped_exit_loss_weight = looped_exit_loss_weight
        if z_loss_weight and getattr(net, 'output_is_log_prob', False):
            raise ConfigError('`z_loss_weight` must be 0 with `mixture_of_softmax`: its output is normalised already')
        self.label_smoothing, self.z_loss_weight = label_smoothing, z_loss_weight
        self.entmax_loss_alpha = entmax_loss_alpha
        self._check_entmax()
        given = intermediate_layer_loss, future_target_weights, last_position_only
        self.auxiliary = AuxiliaryLosses(net, *given) if any(given) or getattr(net, 'mtp_depth', 0) else None

    def _check_entmax(self) -> None:
        if self.entmax_loss_alpha is None:
            return
        if getattr(self.net, 'output_is_log_prob', False):
            raise ConfigError('`entmax_loss_alpha` cannot be combined with `mixture_of_softmax`: it needs logits')
        for name in ('label_smoothing', 'z_loss_weight'):
            if getattr(self, name):
                raise ConfigError(f'`entmax_loss_alpha` cannot be combined with `{name}`: it is of the softmax')

    def update_schedules(self, progress: float) -> None:
        if self.auxiliary is not None:
            self.auxiliary.update_schedules(progress)

    if TYPE_CHECKING:
        __call__: AutoregressiveWrapperCall

    @checked
    def forward(
        self,
        x: Tensor,
        return_outputs: bool = False,
        prepend_embeds: Tensor | None = None,
        lens: Tensor | None = None,
        labels: Tensor | None = None,
        progress: float | None = None,
        prefix_attn_len: int | Tensor | str | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the mean loss of predicting each token of `x` from the tokens before it, in nats.

        x               b n     ids, n of at least 2; `ignore_index` where there is no target
        return_outputs          also return `(logits, intermediates)`, the logits being (b, n - 1, l)
        prepend_embeds  b p e   vectors that are prepended to the tokens, without targets
        lens            b       number of tokens of each sequence; the tokens after it are padding
        labels          b n     targets, if they are not `x`: the tokens of an answer, and `ignore_index` for those of
                                its question, which are input only
        progress        0 to 1  fraction of the training that is done, for `intermediate_layer_loss`; by default that of
                                `on_step_end`
        prefix_attn_len (b)     for a `PrefixDecoder`: number of first tokens that attend to each other; the loss is
                                that of the others, arXiv:1910.10683; 'random' samples it per sequence, from 1 on
        num_items_in_batch      divide the sum of the losses of all targets by this number, that of the targets of
                                several batches, so that their losses add up; see docs/training-loops.md
        **kwargs                passed to the model: `context`, `mems`, `document_ids` (b n), ..., and `mask` (b n),
                                True except for padding, which is neither a target nor used for predictions
        returns                 scalar; 0 if there is no target; the mean over heads if there are several
        raises                  ValueError or TypeError for inputs of another shape or kind
        """
        x = check_ids(x, 'x', 2)
        check_loss_inputs(kwargs, return_outputs)
        targets = self.targets_of(x, labels)
        if prefix_attn_len is not None:
            targets = self.suffix_of(x, targets, lens, prefix_attn_len, kwargs)
        ids, tokens, token_mask = self._split(x, targets, lens, kwargs)
        if prepend_embeds is not None:
            kwargs['prepend_embeds'] = prepend_embeds
        looped, predicts = (getattr(self.net, name, False) for name in ('looped', 'add_continuous_pred_head'))
        of_modules = self.net.mtp_loss_weight if getattr(self.net, 'mtp_depth', 0) else 0.0
        extra = None if self.auxiliary is None else self.auxiliary.now(self.training, progress, of_modules)
        layers, mtp = bool(extra and extra.layers), bool(extra and extra.mtp_weight)
        wanted = return_outputs or self.add_attn_z_loss or looped or layers or ('past' if mtp else False)
        asked = dict(return_attn_z_loss=self.add_attn_z_loss, looped_pred_all_logits=looped)
        asked |= dict(return_next_embed_pred=predicts, return_block_readouts=layers, return_mtp=mtp)
        kwargs.update({name: True for name, ask in asked.items() if ask})
        kwargs.update({} if return_outputs else read_logits_later(self.net))
        with AuxLosses() as aux, maps_apart(not (return_outputs or self.add_attn_z_loss)):
            out, predicted, intermediates = self._run_net(ids, predicts, wanted, kwargs)

        heads = out if isinstance(out, tuple) else (out,)
        lead = heads[0].shape[1] - ids.shape[1]
        targets = Targets(tokens, self.ignore_index, token_mask, lead=lead).of()
        terms = self._terms(num_items_in_batch)
        if extra is not None:
            documents = kwargs.get('document_ids')
            documents = None if documents is None else begins(documents).cumsum(dim=-1)
            to_come = Targets(tokens, self.ignore_index, token_mask, documents, lead)
            loss = extra.loss(out, to_come, terms, intermediates)
        elif not looped:
            loss = mean_token_loss(out, targets, terms)
        else:
            loss = self.loss_of_passes(intermediates, targets[:, lead:], terms)
        if predicts:
            found = next_embed_loss(*predicted, real=targets != self.ignore_index, num_items=num_items_in_batch)
            loss = loss + self.next_embed_loss_weight * found
        share: Any = 1
        if num_items_in_batch is not None:
            counted = to_come.of(0, True) if extra is not None and extra.last_only else targets
            share = share_of_items(counted != self.ignore_index, num_items_in_batch)
        if self.add_attn_z_loss:
            loss = loss + intermediates.attn_z_loss * share
        loss = aux.added_to(loss, share)
        if not return_outputs:
            return loss
        logits = tuple(head[:, lead:-1] for head in heads)
        return loss, (logits if isinstance(out, tuple) else logits[0], intermediates)

    def _terms(self, num_items: Any) -> Terms:
        is_log_prob = bool(getattr(self.net, 'output_is_log_prob', False))
        own = self.label_smoothing, self.z_loss_weight, is_log_prob, num_items, self.entmax_loss_alpha
        return Terms(self.ignore_index, *own)

    def _run_net(self, ids: Tensor, predicts: bool, wanted: bool | str, kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return the logits, the predicted next embeddings and the intermediates; None for those not asked for."""
        out = self.net(ids, return_intermediates=wanted, **kwargs)
        out, intermediates = out if wanted else (out, None)
        out, predicted = out if predicts else (out, None)
        return out, predicted, intermediates

    def targets_of(self, x: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None:
            return x
        labels = check_ids(labels, 'labels', 2, get_vocabulary(self.net), besides=self.ignore_index)
        if labels.shape != x.shape:
            raise ValueError(f'`labels` must have the shape of `x`, {tuple(x.shape)}, got {tuple(labels.shape)}')
        return labels

    def suffix_of(
        self, x: Tensor, targets: Tensor, lens: Tensor | None, prefix: int | Tensor | str, kwargs: dict[str, Any]
    ) -> Tensor:
        """Return targets (b, n) without the prefix, and add its length to the keywords of the net."""
        (b, n), stack = x.shape, getattr(self.net, 'attn_layers', None)
        if not is_prefix(stack):
            raise ValueError(f'`prefix_attn_len` needs a PrefixDecoder, the stack of the net is {type(stack).__name__}')
        for name in ('document_ids', 'prepend_embeds'):
            if kwargs.get(name) is not None:
                raise ValueError(
                    f'`prefix_attn_len` cannot be combined with `{name}`: each row has one prefix, of its tokens'
                )
        if lens is not None:
            check_lengths(lens, 'lens', b, n)
        ends = torch.full((b,), n, device=x.device) if lens is None else lens
        if isinstance(prefix, str):
            if prefix != 'random':
                raise ValueError(f"`prefix_attn_len` must be an integer, one per row, or 'random', got {prefix!r}")
            prefix = 1 + (torch.rand(b, dtype=torch.float32, device=x.device) * (ends - 1)).long()
        check_prefix(prefix, 'prefix_attn_len', b, n)
        own = torch.as_tensor(prefix, device=x.device).expand(b)
        if can_read_values(own) and bool((own >= ends).any()):
            raise ValueError('`prefix_attn_len` leaves a row without a token behind the prefix, there is no loss of it')
        kwargs['prefix_attn_len'] = own
        return targets.masked_fill(mask_from_lengths(own, n), self.ignore_index)

    def _split(
        self, x: Tensor, targets: Tensor, lens: Tensor | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the ids that the net reads, what it shall predict, and which tokens are real (None: all), each (b, n).

        Forgetful masks join `kwargs`, and one of padding where it changes what the net gives.
        """
        token_mask = real_tokens(x, kwargs.get('mask'), lens, kwargs.get('seq_start_pos'))
        if token_mask is not None:
            x, targets = (t.masked_fill(~token_mask, self.ignore_index) for t in (x, targets))
        if lens is not None and kwargs.get('mask') is not None:
            kwargs['mask'] = token_mask
        tell_padding(self.net, kwargs, lambda: mask_before_padding(x, self.ignore_index), self.add_attn_z_loss)
        ids = readable(x, self.ignore_index, self.pad_value)
        documents = kwargs.get('document_ids')
        first = None if documents is None else begins(check_documents(documents, x))
        if first is not None:  # no document says how the next one begins
            targets = targets.masked_fill(first, self.ignore_index)
        if self.training and self.mask_prob > 0.0:
            kept, own = hidden_keys(x, self.mask_prob), kwargs.get('self_attn_kv_mask')
            kept = kept if first is None else kept | first
            kwargs['self_attn_kv_mask'] = kept if own is None else kept & own
        return ids, targets, token_mask

    def loss_of_passes(self, intermediates: LayerIntermediates, targets: Tensor, terms: Terms) -> Tensor:
        """Return the loss of a looped net, the mean over its heads."""
        passes = [token_losses(z, targets, terms) for z in intermediates.all_pred_logits]
        gates, heads = intermediates.exit_logits, zip(*passes, strict=True)
        total: Any = sum(self.looped_loss(torch.stack(own), gates, targets, terms.num_items) for own in heads)
        return total / len(passes[0])

    def looped_loss(self, losses: Tensor, gates: Sequence[Tensor], targets: Tensor, num_items: Any) -> Tensor:
        """Return the loss of a looped stack, weighted by the exit probabilities, plus that of the exit gate.

        losses   i b n            c_i
        gates    b n 1 per pass   stop after pass i with probability w_i = s(g_i) prod_{j<i} s(-g_j), the last the rest

            sum_i w_i c_i / passes  +  weight BCE(g_i, s(slope (c_{i+1} - c_i + threshold)))

        Both are means over targets that are not ignored.  arXiv:2510.25741
        """
        gate = to_float(torch.cat(list(gates), dim=-1)).movedim(-1, 0)
        valid = (targets != self.ignore_index).to(losses.dtype)
        count = count_items(valid, num_items)
        stay = F.logsigmoid(-gate[:-1]).cumsum(dim=0)
        stay = F.pad(stay, (0, 0, 0, 0, 1, 0))
        weights = torch.cat((stay[:-1] + F.logsigmoid(gate[:-1]), stay[-1:])).exp().detach()
        expected = (weights * losses * valid).sum() / (count * losses.shape[0])
        if losses.shape[0] == 1:
            return expected
        worth = self.looped_loss_slope * (losses[1:] - losses[:-1] + self.looped_loss_threshold_exit)
        exits = F.binary_cross_entropy_with_logits(gate[:-1], worth.sigmoid().detach(), reduction='none')
        return expected + self.looped_exit_loss_weight * (exits * valid).sum() / (count * exits.shape[0])

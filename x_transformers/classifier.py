"""Classes of sequences, or of their tokens: any backbone with a head for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_tensor, checked
from x_transformers.features.embeddings import mean_of_real
from x_transformers.features.readouts import get_place, get_token, linear_head, transform_options, transform_to
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    instance_of,
    integer,
    none,
    one_of,
    probability,
    size,
    warn_once,
)
from x_transformers.training.label_losses import (
    PROBLEMS,
    OfClasses,
    a_weight_each,
    check_items_of_labels,
    check_one_class,
    check_terms,
    label_loss,
    loss_with_share,
    span_loss,
)
from x_transformers.training.losses import real_tokens

TOKENS = ('first', 'last', 'eos', 'last_eos', 'mean', 'all', 'span')


class Classifier(Configurable):
    """Classify sequences or tokens by the hidden states of a model:  ids (b, n) -> logits (b, c) or (b, n, c).

        x = hidden states of one token, of all, or their mean
        logits = W dropout(norm(act(D x + d))) + w              without `head_transform`: W dropout(x) + w

    With labels it returns the loss: cross entropy of classes, the mean square of numbers (one class, or
    `problem_type='regression'`), or the binary cross entropy of several labels each; of `token='span'` the mean of the
    cross entropies of the start and of the end, each over all real places. The model may also be one of
    vectors, or an encoder-decoder, whose decoder gets the sequence after `start_id`.

    BERT, arXiv:1810.04805; of decoders: GPT, Radford et al. 2018; of encoder-decoders: BART, arXiv:1910.13461
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'model with hidden states, such as TransformerWrapper', instance_of(nn.Module)],
        *,
        num_classes: Annotated[int, 'number of classes', size],
        token: Annotated[
            str | None,
            "token whose hidden state is classified; 'all': classify every token; 'span': find where a span starts and "
            "ends; None: 'first', or 'last' in causal models",
            one_of(*TOKENS) | none,
        ] = None,
        pad_id: Annotated[int | None, 'id of the padding token, if no mask is passed', integer | none] = None,
        eos_id: Annotated[int | None, "id of the token for 'eos' and 'last_eos'", integer | none] = None,
        start_id: Annotated[int | None, 'start token of the decoder of an encoder-decoder', integer | none] = None,
        head_transform: Annotated[
            Mapping[str, Any] | None, 'layer before the classes, like `head_transform` of models', transform_options
        ] = None,
        bias: Annotated[bool, 'use a bias for the classes', boolean] = True,
        dropout: Annotated[float, 'dropout probability before the classes', probability] = 0.0,
        problem_type: Annotated[
            str | None,
            "loss of the labels; None: 'regression' for one class, else by the labels: whole numbers are classes, "
            'others say of each class how far it holds',
            one_of(*PROBLEMS) | none,
        ] = None,
        label_smoothing: Annotated[float, 'label smoothing: 1 - e for the label, e spread over all', probability] = 0.0,
        class_weights: Annotated[
            Sequence[float] | None, 'weight of each class, as in cross_entropy', a_weight_each | none
        ] = None,
    ) -> None:
        super().__init__()
        self.terms = OfClasses(label_smoothing, class_weights)
        check_terms(problem_type, num_classes, self.terms, token)
        if token == 'span' and (num_classes != 2 or problem_type is not None):
            got = f'num_classes={num_classes} and problem_type={problem_type!r}'
            raise ConfigError(f"`token='span'` needs `num_classes=2`, start and end, and no `problem_type`, got {got}")
        if eos_id is None and token in ('eos', 'last_eos'):
            raise ConfigError(f'`token={token!r}` needs `eos_id`')
        if eos_id is not None and token not in ('eos', 'last_eos'):
            warn_once("`eos_id` has no effect unless `token` is 'eos' or 'last_eos'")
        inner = net if start_id is None else getattr(getattr(net, 'decoder', None), 'net', None)
        stack = getattr(inner, 'attn_layers', None)
        if stack is None:
            kind = 'a model with a stack' if start_id is None else 'an encoder-decoder, as `start_id` is set'
            raise ConfigError(f'`net` must be {kind}, got {type(net).__name__}')
        self.net, self.num_classes, self.problem_type = net, num_classes, problem_type
        # The decoder of an encoder-decoder has seen the whole sequence, as its context, at its first token.
        self.token, self.instead = get_token(token, stack) if start_id is None else (token or 'first', 'first')
        self.pad_id, self.eos_id, self.start_id = pad_id, eos_id, start_id
        own = None if head_transform is None else dict(head_transform)
        self.head_transform = nn.Identity() if own is None else transform_to(stack.dim, own)
        width = stack.dim if own is None else own.get('dim') or stack.dim
        self.dropout = nn.Dropout(dropout)
        self.to_classes = linear_head(width, num_classes, bool(bias))

    @checked
    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Return logits, or with labels their loss.

        x         b n        input of the model, ids or vectors
        labels    b | b n    classes, -100 where there is no loss; real numbers if there is one class; with an axis of
                             classes behind for a number of each; b 2 of 'span', the places of start and end
        mask      b n        True except for padding; computed from `pad_id` if None
        num_items_in_batch   divide the sum of the losses of labels by this number, so that batches add up
        **inputs             to the model
        returns   b c, or b n c of 'all' and 'span'
        raises    ValueError or TypeError for inputs of another shape or kind, and labels that are no classes
        """
        check_items_of_labels(labels, num_items_in_batch)
        mask = real_tokens(check_tensor(x, 'x'), self.real_of(x, mask), start=inputs.get('seq_start_pos'))
        with AuxLosses() as aux:
            hidden = self.hidden(x, mask, inputs)
        logits = self.to_classes(self.dropout(self.head_transform(self.read(hidden, x, mask))))
        if labels is None:
            return logits
        return aux.added_to(*loss_with_share(self.loss, logits, labels, mask, num_items_in_batch))

    def real_of(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return which tokens are real, (b, n), None if all are."""
        if x.ndim > 2 and ((mask is None and self.pad_id is not None) or self.eos_id is not None):
            raise ValueError(f'`x` must be ids (b, n) with `pad_id` or `eos_id`, got shape {tuple(x.shape)}')
        return x != self.pad_id if mask is None and self.pad_id is not None else mask

    def hidden(self, x: Tensor, mask: Tensor | None, inputs: dict[str, Any]) -> Tensor:
        """Return hidden states of the model, (b, n, d)."""
        masked = inputs if mask is None else {**inputs, 'mask': mask}
        if self.start_id is None:
            return self.net(x, return_embeddings=True, **masked)
        context, key_mask = self.net.encode(x, mask, **inputs)
        shifted, given = F.pad(x[:, :-1], (1, 0), value=self.start_id), {}
        if mask is not None:  # A row begins at its first real token.
            shifted, given = shifted.scatter(1, mask.byte().argmax(dim=1, keepdim=True), self.start_id), {'mask': mask}
        return self.net.decoder.net(shifted, context=context, context_mask=key_mask, return_embeddings=True, **given)

    def read(self, hidden: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the states for the classifier: (b, d), or all."""
        if hidden.shape[:2] != x.shape[:2]:
            raise ValueError(f'`net` gave hidden states of shape {tuple(hidden.shape)} for `x` of {tuple(x.shape)}')
        if self.token in ('all', 'span'):
            return hidden
        if self.token == 'mean':
            return mean_of_real(hidden, mask)
        place = get_place(self.token, x, mask, self.eos_id, self.instead)  # (b,)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), place]

    def loss(
        self, logits: Tensor, labels: Tensor, mask: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the mean loss of logits (b, c) of labels (b,), or (b, n, c) of (b, n); 0 if none counts.

        Labels of padding, and of rows of padding alone, given the `mask` (b, n), do not count.
        """
        if self.token == 'span':
            return span_loss(logits, labels, mask, num_items_in_batch)
        token_mask = mask if mask is None or logits.ndim == 3 else mask.any(dim=-1)
        check_one_class(self.problem_type, self.num_classes, 'num_classes')
        return label_loss(logits, labels, token_mask, self.problem_type, num_items_in_batch, 'classes', self.terms)

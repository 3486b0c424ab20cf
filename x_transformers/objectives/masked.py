"""Masked language modeling: some tokens are hidden, and an encoder predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import can_read_values, check_documents, check_ids, checked
from x_transformers.core.nets import check_every_place, check_sees_both_sides, refuse_own
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    count,
    instance_of,
    is_int,
    is_number,
    none,
    size,
    warn_once,
)
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import real_tokens
from x_transformers.training.masking import IGNORED, chosen_spans, chosen_tokens, chosen_words, draw_mask, get_share
from x_transformers.training.token_loss import Terms, mean_token_loss, read_logits_later

__all__ = ['HiddenTokens', 'MLMWrapper']


share = Check('a number above 0, up to 1', lambda value: is_number(value) and 0 < value <= 1)
ratio = Check('a number from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1)
several_ids = Check(
    'token ids, a tuple of integers of at least 0',
    lambda value: isinstance(value, (tuple, list)) and all(is_int(one) and one >= 0 for one in value),
)


class HiddenTokens(NamedTuple):
    """Sequences with some tokens hidden.

    ids      b n   as the net reads them
    chosen   b n   True for tokens that are to be found
    places   b k   where these stand, in order; k is as many as there may be, others follow
    labels   b k   what they were, -100 for those that follow
    """

    ids: Tensor
    chosen: Tensor
    places: Tensor
    labels: Tensor

    def of(self, outputs: Any) -> Any:
        """Return the outputs (b, n, ...) of a model at `places`: logits, a tuple of them, or a `Readout`."""
        if isinstance(outputs, tuple):
            return tuple(map(self.of, outputs))
        return outputs[torch.arange(len(self.places), device=self.places.device).unsqueeze(-1), self.places]


SET_BY_LOSS = {
    'prepend_embeds': ': places are those of tokens',
    'cache': ': every token sees all others',
    'input_not_include_cache': ': every token sees all others',
}


@dataclass(frozen=True)
class Hiding:
    """Choice of the tokens to hide, and of their replacements, as in `MLMWrapper`.  `vocabulary`: ids of the net"""

    mask_token_id: int
    pad_token_id: int | None
    mask_prob: float
    replace_prob: float
    random_token_prob: float
    ignore_token_ids: tuple[int, ...]
    num_tokens: int | None
    max_span: int
    span_stop_prob: float
    vocabulary: int | None

    def hide(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        word_ids: Tensor | None = None,
        generator: Generator | None = None,
        inputs: dict[str, Any] | None = None,
    ) -> tuple[HiddenTokens, dict[str, Any]]:
        """Hide tokens of `x` (b n); also what the net is called with beside them."""
        x = check_ids(x, num_tokens=self.vocabulary)
        read = dict(inputs or {})
        documents = read.pop('document_ids', None)
        refuse_own(read, 'the loss', SET_BY_LOSS)
        token_mask = real_tokens(x, mask, start=read.get('seq_start_pos'))
        if self.pad_token_id is not None:
            token_mask = x != self.pad_token_id if token_mask is None else token_mask & (x != self.pad_token_id)
        read |= {} if token_mask is None else {'mask': token_mask}
        read |= {} if documents is None else {'document_ids': check_documents(documents, x)}
        maskable = torch.ones_like(x, dtype=torch.bool) if token_mask is None else token_mask
        for one in self.ignore_token_ids:
            maskable = maskable & (x != one)
        if can_read_values(maskable) and not bool(maskable.any(dim=-1).all()):
            warn_once('a row has no token that may be hidden, it is left out of the loss of masked tokens')
        chosen = self.choose(maskable, word_ids, documents, generator)
        places = (~chosen).byte().argsort(dim=-1, stable=True)[:, : get_share(x.shape[1], self.mask_prob)]
        labels = x.gather(1, places).masked_fill(~chosen.gather(1, places), IGNORED)
        return HiddenTokens(self.corrupted(x, chosen, generator), chosen, places, labels), read

    def choose(
        self, maskable: Tensor, word_ids: Tensor | None, documents: Tensor | None, generator: Generator | None
    ) -> Tensor:
        if word_ids is not None:
            if self.max_span > 1:
                raise ValueError(
                    '`word_ids` cannot be combined with `max_span` above 1: both '
                    'determine which tokens are masked together'
                )
            if word_ids.shape != maskable.shape:
                shape = tuple(maskable.shape)
                raise ValueError(f'`word_ids` must have the shape of `x`, {shape}, got {tuple(word_ids.shape)}')
            return chosen_words(maskable, word_ids, self.mask_prob, generator)
        if self.max_span > 1:
            return chosen_spans(maskable, self.mask_prob, self.max_span, self.span_stop_prob, documents, generator)
        return chosen_tokens(maskable, self.mask_prob, generator)

    def corrupted(self, x: Tensor, chosen: Tensor, generator: Generator | None) -> Tensor:
        """Return `x` with the chosen tokens replaced."""
        kind = draw_mask(x, generator)
        if self.random_token_prob > 0:
            classes: Any = self.num_tokens
            others = torch.randint(0, classes, x.shape, device=x.device, generator=generator)
            x = torch.where(chosen & (kind >= 1 - self.random_token_prob), others, x)
        return x.masked_fill(chosen & (kind < self.replace_prob), self.mask_token_id)


def resize_head(hiding: Hiding, old: int, new: int) -> Hiding:
    """Return how tokens are hidden in a vocabulary of another size, which random tokens are drawn from."""
    drawn_from = new if hiding.num_tokens in (None, old) else min(hiding.num_tokens, new)
    return replace(hiding, vocabulary=new, num_tokens=drawn_from)


class MLMWrapper(Configurable):
    """Masked language model (BERT), with the loss of the masked tokens:  ids (b, n) -> loss.

        of the v tokens of a sequence that may be masked, ceil(mask_prob v) are chosen
        a chosen token is replaced by [MASK] (replace_prob) or a random token (random_token_prob), or kept
        loss = mean over all chosen tokens of  -ln p(x_t | the changed input)

    `max_span` above 1 chooses spans; `word_ids` in the call chooses whole words, as many as fit into the fraction.
    Random tokens are uniform over the vocabulary. Logits are computed for chosen tokens only.

    Devlin et al. 2018, arXiv:1810.04805; spans: Joshi et al. 2019, arXiv:1907.10529
    """

    def __init__(
        self,
        net: Annotated[
            nn.Module, 'model of tokens, such as TransformerWrapper around an Encoder', instance_of(nn.Module)
        ],
        mask_token_id: Annotated[int, 'id of the mask token, in the vocabulary', count],
        pad_token_id: Annotated[int | None, 'id of the padding token, which is never masked', count | none],
        mask_prob: Annotated[float, 'fraction of the tokens of a sequence that are chosen', share] = 0.15,
        replace_prob: Annotated[
            float, 'fraction of the chosen tokens that are replaced by `mask_token_id`', ratio
        ] = 0.8,
        random_token_prob: Annotated[
            float, 'fraction of the chosen tokens that are replaced by a random token', ratio
        ] = 0.1,
        ignore_token_ids: Annotated[
            Sequence[int], 'ids that are never masked, such as [CLS] and [SEP]', several_ids
        ] = (),
        num_tokens: Annotated[
            int | None, 'random tokens are below this id; `num_tokens` of `net` if None', size | none
        ] = None,
        max_span: Annotated[int, 'maximum length of the chosen spans, in tokens; 1 for single tokens', size] = 1,
        span_stop_prob: Annotated[float, 'probability that a span ends after each of its tokens', share] = 0.2,
    ) -> None:
        super().__init__()
        check_every_place(net)
        check_sees_both_sides(net)
        known = getattr(net, 'num_tokens', None)
        if num_tokens is None and known is None and random_token_prob > 0:
            raise ConfigError('`num_tokens` is missing: `random_token_prob` draws from them, and `net` does not say')
        for name, value in (('mask_token_id', mask_token_id), ('pad_token_id', pad_token_id)):
            if value is not None and known is not None and value >= known:
                raise ConfigError(f'`{name}` must be less than the `num_tokens` of the net, {known}, got {value}')
        if num_tokens is not None and known is not None and num_tokens > known:
            raise ConfigError(f'`num_tokens` must be at most that of the net, {known}, got {num_tokens}')
        if replace_prob + random_token_prob > 1:
            raise ConfigError(
                f'`replace_prob` got {replace_prob} and `random_token_prob` {random_token_prob}, '
                'their sum must be at most 1'
            )
        if max_span == 1 and span_stop_prob != 0.2:
            warn_once('`span_stop_prob` has no effect unless `max_span` is above 1')
        self.net = net
        self.hiding = Hiding(
            mask_token_id, pad_token_id, mask_prob, replace_prob, random_token_prob, tuple(ignore_token_ids),
            known if num_tokens is None else num_tokens, max_span, span_stop_prob, known,
        )  # fmt: skip

    @checked
    def forward(
        self,
        x: Tensor,
        return_outputs: bool = False,
        mask: Tensor | None = None,
        word_ids: Tensor | None = None,
        generator: Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the mean loss of hidden tokens, in nats.

        x               b n   ids
        return_outputs        also return `(logits, hidden)`: logits (b k l) at `places` of the `HiddenTokens`
        mask            b n   True for real tokens; `pad_token_id` is none in any case
        word_ids        b n   neighboring tokens with the same number are a word, which is masked as a whole
        generator             random number generator, on the device of `x`
        num_items_in_batch    divide the sum of the losses of hidden tokens by this number, so that batches add up
        **kwargs              passed to the model: `document_ids` (b n), `embed_ids`, ...
        returns               scalar; 0 if there is nothing to hide
        raises                ValueError or TypeError for inputs of another shape or kind
        """
        hidden, read = self.hide(x, mask, word_ids, generator, kwargs)
        with AuxLosses() as aux:
            outputs = self.net(hidden.ids, **read, **({} if return_outputs else read_logits_later(self.net)))
        outputs = hidden.of(outputs)
        share = share_of_items(hidden.labels != IGNORED, num_items_in_batch)
        of_items = {} if num_items_in_batch is None else {'num_items': num_items_in_batch}
        loss = aux.added_to(self.loss(outputs, hidden, **of_items), share)
        return (loss, (outputs, hidden)) if return_outputs else loss

    def resize_own_tokens(self, old: int, new: int) -> None:
        self.hiding = resize_head(self.hiding, old, new)

    def hide(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[HiddenTokens, dict[str, Any]]:
        """Hide tokens of `x` (b n); also what the net is called with beside them."""
        return self.hiding.hide(x, *args, **kwargs)

    def loss(self, outputs: Any, hidden: HiddenTokens, num_items: Tensor | int | None = None) -> Tensor:
        """Return the mean loss of the chosen tokens, given logits (b k l) at their places, or their `Readout`; or the
        sum of their losses over `num_items`."""
        return loss_of_labels(self.net, outputs, hidden.labels, num_items)


def loss_of_labels(net: nn.Module, outputs: Any, labels: Tensor, num_items: Any = None) -> Tensor:
    is_log_prob = bool(getattr(net, 'output_is_log_prob', False))
    return mean_token_loss(outputs, labels, Terms(IGNORED, is_log_prob=is_log_prob, num_items=num_items))

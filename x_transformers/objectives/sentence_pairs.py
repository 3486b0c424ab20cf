"""Pairs of sentences: next-sentence and sentence-order prediction, and the pretraining of BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import can_read_values, check_range, checked
from x_transformers.features.readouts import get_place
from x_transformers.flags import ConfigError, Configurable, boolean, format_value, instance_of, is_int, mapping
from x_transformers.objectives.masked import MLMWrapper, loss_of_labels, resize_head
from x_transformers.training.items import share_of_items
from x_transformers.training.masking import IGNORED
from x_transformers.training.token_loss import next_token_loss, read_logits_later

__all__ = ['BertPretrainWrapper', 'PairBatch', 'SentencePair', 'make_nsp_pairs', 'make_sop_pairs', 'pack_pairs']

Documents = Sequence[Sequence[Sequence[int]]]
TRIES = 32  # draws of another sentence before all of them are looked through


class SentencePair(NamedTuple):
    """Ids of two sentences. `label` is 0 if the second follows the first in its document, else 1."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    label: int


class PairBatch(NamedTuple):
    """Batch of pairs as a model reads them:  [CLS] first [SEP] second [SEP], and padding.

    ids           b n
    token_types   b n   0 up to the first [SEP], then 1; padding has 0
    mask          b n   True for real tokens
    labels        b     of the pairs
    """

    ids: Tensor
    token_types: Tensor
    mask: Tensor
    labels: Tensor


def usable(docs: Documents) -> list[list[tuple[int, ...]]]:
    """Return the documents of at least two sentences."""
    found = [[tuple(sentence) for sentence in doc] for doc in docs]
    found = [doc for doc in found if len(doc) >= 2]
    if not found:
        raise ValueError('`docs` got no document of two sentences or more')
    return found


def make_nsp_pairs(docs: Documents, rng: Random) -> list[SentencePair]:
    """Yield every sentence with the next one, or, every second time, with one of another document.

        docs      documents, as lists of sentences, as lists of ids; those with less than two sentences are passed over
        returns   one pair for each sentence that has a next one
        raises    ValueError if there is no such document, or every other sentence is the next one

    With a single document, the other sentence is from elsewhere in it. It is never the next one, nor equal to it.
    Devlin et al. 2018, arXiv:1810.04805
    """
    docs = usable(docs)
    pairs = []
    for number, doc in enumerate(docs):
        for first, following in pairwise(doc):
            is_next = rng.random() < 0.5
            second = following if is_next else another(docs, number, following, rng)
            pairs.append(SentencePair(first, second, int(not is_next)))
    return pairs


def another(docs: list[list[tuple[int, ...]]], number: int, but: tuple[int, ...], rng: Random) -> tuple[int, ...]:
    """Return a sentence of another document, if there are several, that differs from `but`."""
    others = [at for at in range(len(docs)) if at != number] or [number]
    for _ in range(TRIES):
        found = rng.choice(docs[rng.choice(others)])
        if found != but:
            return found
    rest = [sentence for at in others for sentence in docs[at] if sentence != but]
    if not rest:
        raise ValueError('`docs` got no sentence that differs from the next one: there is no wrong pair')
    return rng.choice(rest)


def make_sop_pairs(docs: Documents, rng: Random) -> list[SentencePair]:
    """Yield every sentence with the next one, swapped every second time: `label` is then 1.

    Two equal sentences have no order, and are passed over. ALBERT: Lan et al. 2019, arXiv:1909.11942
    """
    pairs = []
    for doc in usable(docs):
        for first, following in pairwise(doc):
            if first != following:
                in_order = rng.random() < 0.5
                pairs.append(SentencePair(first, following, 0) if in_order else SentencePair(following, first, 1))
    return pairs


def pack_pairs(
    pairs: Sequence[SentencePair], cls_id: int, sep_id: int, pad_id: int, max_len: int | None = None
) -> PairBatch:
    """Return pairs as sequences of equal length. If a pair is too long, its longer sentence is cut at the end.

    raises   ValueError without pairs, or if `max_len` has no room for a token of each sentence
    """
    if not pairs:
        raise ValueError('`pairs` got none, there must be one at least')
    if max_len is not None and not (is_int(max_len) and max_len >= 5):
        raise ValueError(f'`max_len` must be an integer of at least 5, got {format_value(max_len)}')
    ids, types = [], []
    for first, second, _ in pairs:
        first, second = cut_pair(first, second, None if max_len is None else max_len - 3)
        ids.append([cls_id, *first, sep_id, *second, sep_id])
        types.append([0] * (len(first) + 2) + [1] * (len(second) + 1))
    n = max(map(len, ids))
    lengths = torch.tensor([len(row) for row in ids])
    padded = torch.tensor([row + [pad_id] * (n - len(row)) for row in ids])
    kinds = torch.tensor([row + [0] * (n - len(row)) for row in types])
    mask = torch.arange(n) < lengths.unsqueeze(-1)
    return PairBatch(padded, kinds, mask, torch.tensor([pair.label for pair in pairs]))


def cut_pair(first: Sequence[int], second: Sequence[int], room: int | None) -> tuple[Sequence[int], Sequence[int]]:
    """Return two sentences, with the longer one cut until both fit; the first, if they are equally long."""
    over = 0 if room is None else max(len(first) + len(second) - room, 0)
    for _ in range(over):
        if len(first) >= len(second):
            first = first[:-1]
        else:
            second = second[:-1]
    return first, second


class BertPretrainWrapper(Configurable):
    """The two losses of BERT: masked tokens, and next sentence prediction:  ids (b, n) -> loss.

        loss = masked tokens  +  cross entropy of  W tanh(W_p h_CLS + b_p) + b

    h_CLS is the hidden state of the first token. `W_p` is the `pooler` of the model if it has one, otherwise a
    layer of the wrapper. If the model has `embed_num_tokens`, sentence ids are passed as `embed_ids`.

    Devlin et al. 2018, arXiv:1810.04805; the order of sentences: Lan et al. 2019, arXiv:1909.11942
    """

    def __init__(
        self,
        net: Annotated[
            nn.Module, 'model of tokens, such as TransformerWrapper around an Encoder', instance_of(nn.Module)
        ],
        mlm: Annotated[Mapping[str, Any], 'keyword arguments of `MLMWrapper`', mapping],
        nsp: Annotated[bool, 'also train next sentence prediction', boolean] = True,
    ) -> None:
        super().__init__()
        if 'net' in mlm:
            raise ConfigError('`mlm` got `net`, which it must not have: it is that of the wrapper')
        self.hiding = MLMWrapper(net, **mlm).hiding
        self.net, self.nsp = net, bool(nsp)
        features = getattr(getattr(net, 'features', None), 'active', ())
        self.net_pools = any('pooler' in feature.flags for feature in features)
        if nsp:
            dim: Any = getattr(getattr(net, 'pooler', None), 'out_features', net.dim) if self.net_pools else net.dim
            model: Any = net
            self.pooler: Any = None if self.net_pools else nn.Linear(model.dim, model.dim)
            self.to_nsp = nn.Linear(dim, 2)
            for linear in filter(None, (self.pooler, self.to_nsp)):
                nn.init.normal_(linear.weight, std=0.02)
                nn.init.zeros_(linear.bias)

    @checked
    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        return_outputs: bool = False,
        mask: Tensor | None = None,
        word_ids: Tensor | None = None,
        generator: Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the sum of both losses.

        x               b n   ids,  [CLS] A [SEP] B [SEP]
        labels          b     0 if B follows A, 1 if not, -100 if unknown; None without `nsp`
        return_outputs        also return `(logits, pair_logits, hidden)`, (b k l) at the places of hidden tokens, (b 2)
                              or None, and `HiddenTokens`
        mask, word_ids, generator   as `MLMWrapper` takes them
        num_items_in_batch    divide the sum of the losses of hidden tokens by this number, so that batches add up; the
                              mean over pairs counts by their share
        **kwargs              passed to the model: `embed_ids={'token_type': ...}` (b n), ...
        raises                ValueError or TypeError for inputs of another shape or kind
        """
        if kwargs.pop('document_ids', None) is not None:
            raise ValueError('`document_ids` cannot be given to the loss: a row is one pair')
        hidden, read = self.hiding.hide(x, mask, word_ids, generator, kwargs)
        if (labels is not None) != self.nsp:
            raise ValueError(f'`labels` {"are missing" if self.nsp else "were given"}, `nsp` is {self.nsp}')
        asked = {} if return_outputs else read_logits_later(self.net)
        if self.nsp:
            asked['return_pooled' if self.net_pools else 'return_logits_and_embeddings'] = True
        with AuxLosses() as aux:
            outputs = self.net(hidden.ids, **read, **asked)
        outputs, beside = outputs if self.nsp else (outputs, None)
        outputs = hidden.of(outputs)
        share = share_of_items(hidden.labels != IGNORED, num_items_in_batch)
        loss = loss_of_labels(self.net, outputs, hidden.labels, num_items_in_batch)
        pair_logits: Any = self.pair_logits(beside, hidden.ids, read.get('mask')) if self.nsp else None
        if self.nsp:
            loss = loss + pair_loss(pair_logits, labels, read.get('mask')) * share
        loss = aux.added_to(loss, share)
        return (loss, (outputs, pair_logits, hidden)) if return_outputs else loss

    def resize_own_tokens(self, old: int, new: int) -> None:
        self.hiding = resize_head(self.hiding, old, new)

    def pair_logits(self, beside: Any, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return logits (b, 2) from the further output of the net: pooled vectors (b, d) or hidden states (b, n, d)."""
        if not self.net_pools:
            first = get_place('first', ids, mask, None)
            beside = self.pooler(beside[torch.arange(len(first), device=first.device), first]).tanh()
        return self.to_nsp(beside)


def pair_loss(logits: Tensor, labels: Any, mask: Tensor | None = None) -> Tensor:
    """Return the mean cross entropy of labels (b) that are not -100, 0 if there is none. Rows of padding have none."""
    if labels.shape != logits.shape[:1]:
        raise ValueError(f'`labels` must have shape {tuple(logits.shape[:1])}, got {tuple(labels.shape)}')
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f'`labels` must be whole numbers, got {labels.dtype}')
    check_range(labels[labels != IGNORED] if can_read_values(labels) else labels, 'labels', 0, 1, 'labels')
    known = labels if mask is None else labels.masked_fill(~mask.any(dim=-1), IGNORED)
    return next_token_loss(logits, known.long(), ignore_index=IGNORED)

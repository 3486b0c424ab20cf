"""Several documents packed into one sequence: `document_ids` tells to which document each token belongs.

Tokens attend only to tokens with the same id, and positions restart where the id changes. Features that mix tokens in
other ways declare it in `refuses`, and raise an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from x_transformers.core.branches import KINDS
from x_transformers.core.checks import check_documents
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.flags import Feature, Features, Input


def begins(ids: Tensor) -> Tensor:
    """Return where documents begin, in rows of ids (... n):  0 0 4 4 4 -> 1 0 1 0 0"""
    return F.pad(ids[..., 1:] != ids[..., :-1], (1, 0), value=True)[..., : ids.shape[-1]]  # there may be none


def positions_within(ids: Tensor) -> Tensor:
    """Return the position of each token in its document (... n):  0 0 4 4 4 -> 0 1 0 1 2"""
    place = torch.arange(ids.shape[-1], device=ids.device)
    return place - torch.where(begins(ids), place, 0).cummax(dim=-1).values


def lengths_of_documents(positions: Tensor, ids: Tensor, token_mask: Tensor | None = None) -> Tensor:
    """Return how many positions the real tokens of each token's document cover, from the first one to the last.

    Args:
        positions: (1 or b, n) or (n).
        ids: Documents, (1 or b, n); equal ones of a row are one document, wherever they stand.
        token_mask: (b, n), True for real tokens; None if all are.

    Returns:
        (1 or b, n), 0 for documents of padding alone.
    """
    known, order = ids.sort(dim=-1, stable=True)
    number = torch.zeros_like(order).scatter(-1, order, begins(known).cumsum(dim=-1) - 1)
    shape = ids.shape if token_mask is None else token_mask.shape
    shape = torch.broadcast_shapes(shape, positions.reshape(-1, positions.shape[-1]).shape)
    number, positions = number.expand(shape), positions.expand(shape)
    first, last = (positions.amin(dim=-1, keepdim=True), positions.amax(dim=-1, keepdim=True))
    outside = (last + 1, first - 1)  # of a document without real tokens, so that its length is below 1
    ends = []
    for fill, how in zip(outside, ('amin', 'amax'), strict=True):
        counted = positions if token_mask is None else positions.where(token_mask, fill)
        found = fill.expand(shape).scatter_reduce(-1, number, counted, how)
        ends.append(found.gather(-1, number))
    return (ends[1] - ends[0] + 1).clamp(min=0)


def joined_by(features: Iterable[Feature], inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags and inputs of a call that join the tokens of a row, each with how."""
    found = {}
    for feature in features:
        if not (reason := feature.reason('documents')):
            continue
        switches = feature.switches or tuple(feature.flags)[:1]
        names = switches or feature.call_inputs
        active = [name for name in names if (getattr(feature, name) if switches else inputs.get(name) is not None)]
        if active or not names:
            found[active[0] if active else feature.display_name] = reason
    return found


def refuse_joined(found: Mapping[str, str], given: str = 'document_ids') -> None:
    for name, reason in found.items():
        raise ValueError(f'`{given}` cannot be combined with `{name}`: {reason}')


class TellsDocuments(AttentionFeature):
    """A feature that notes in `ids` which document each query is of, (n) or (b n)."""


class Documents(TellsDocuments):
    """Queries attend only to keys of the same document."""

    call_inputs = {'document_ids': Input('b n, document of each token')}
    tp_shards = {}

    def mask(self, call: Any) -> BlockwiseTerm | None:
        ids = call.inputs.get('document_ids')
        if ids is None:
            return None
        if call.context is not None or call.past is not None or call.memories:
            raise ValueError(
                '`document_ids` cannot be combined with a context, a cache or memories: documents are whole'
            )
        check_documents(ids, call.source)
        refuse_joined(joined_by(self.owner.features.active, call.inputs))
        call.ctx(self).ids, own = ids, ids if call.token_idx is None else call.of_queries(ids)

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(own), make_axis_lookup(ids)
            return lambda b, h, i, j: of_query(b, i) == of_key(b, j)

        return BlockwiseTerm(
            lambda rows, keys: (own[:, rows].unsqueeze(-1) == ids[:, keys].unsqueeze(-2)).unsqueeze(1),
            entry=entry,
            made_of=(ids, own),
        )


class DocumentsInStack(StackFeature):
    """Pass `document_ids` to the self-attention layers; positions restart in each document."""

    call_inputs = {'document_ids': Input('b n, document of each token')}

    def setup(self, owner: Any) -> None:
        self.joined: dict[str, str] = {}

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        features = getattr(branch, 'features', None) if kind != 'c' else None
        found = joined_by(features.active, {}) if isinstance(features, Features) else {}
        self.joined |= {self.owner.written(kind, name): reason for name, reason in found.items()}
        joins = '' if KINDS[kind].cuts_documents else KINDS[kind].joins_tokens
        self.joined |= {kind: joins} if joins else {}
        return branch

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        ids = call.inputs.get('document_ids')
        if ids is None:
            return x
        if call.cache is not None or call.memories:
            raise ValueError('`document_ids` cannot be combined with a cache or memories: documents are whole')
        if call.left_pad is not None:
            raise ValueError('`document_ids` cannot be combined with `seq_start_pos`: use a separate id for padding')
        check_documents(ids, x)
        refuse_joined({**joined_by(self.owner.features.active, call.inputs), **self.joined})
        call.shared['a']['document_ids'] = call.documents = ids
        call.intermediates.whole = 'it holds packed documents, which are whole'
        call.shared['a'].setdefault('pos', positions_within(ids))
        return x


class DocumentsInModel(ModelFeature):
    """Pass `document_ids` to the stack, and restart absolute positions in each document."""

    call_inputs = {'document_ids': Input('b n, document of each token')}

    def embed(self, call: Any) -> None:
        ids = call.inputs.get('document_ids')
        if ids is None:
            return
        if call.cache is not None:
            raise ValueError('`document_ids` cannot be combined with a cache or memories: documents are whole')
        check_documents(ids, call.like_tokens)
        refuse_joined(joined_by(self.owner.features.active, call.inputs))
        if call.inputs.get('pos') is None:
            call.inputs['pos'] = positions_within(ids)

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        ids = call.inputs.get('document_ids')
        return inputs if ids is None else {**inputs, 'document_ids': ids}

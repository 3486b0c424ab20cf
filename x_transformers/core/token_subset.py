"""Layers on a subset of the tokens: only these change, with the keys of all tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from x_transformers.core.branches import KINDS
from x_transformers.core.checks import check_range, check_tensor
from x_transformers.core.rows import gather_along, to_4d
from x_transformers.flags import Features
from x_transformers.flags.checks import Maybe


def check_kind_for_subset(kind: str) -> None:
    """Raise ValueError for a kind of layer that mixes tokens other than by attention."""
    if KINDS[kind].joins_tokens or (KINDS[kind].attends and kind not in ('a', 'c')):
        raise ValueError(f'layers of kind {kind!r} cannot be combined with `of_tokens`: they read all tokens')


def check_no_subset(features: Features) -> None:
    """Raise ValueError if a feature needs all tokens."""
    for feature in features.active:
        if reason := feature.reason('some tokens'):
            raise ValueError(f'`{feature.display_name}` cannot be combined with `of_tokens`: {reason}')


class SelectedLayers(list):
    """Pasts of attention layers for some batch entries, copied when they are read."""

    def __init__(self, layers: list[Any], batch_idx: Tensor) -> None:
        super().__init__(layers)
        self.rows = batch_idx

    def __getitem__(self, at: Any) -> Any:
        layer = super().__getitem__(at)
        return layer and layer.each(lambda state: state.map(lambda t: t.index_select(0, self.rows)))


if TYPE_CHECKING:

    class StackCallFields:
        """Fields of the call that `TokenSubset` reads. (In that class they would become dataclass fields.)"""

        batch: int | None
        left_pad: Tensor | None
        cache: Any
        intermediates: Any
        inputs: dict[str, Any]
        norm_inputs: dict[str, Tensor]
        condition: Tensor | None
        new_len: int
        token_mask: Tensor | None
        shared: dict[str, dict[str, Any]]
        contexts: dict[type, Any]
else:
    StackCallFields = object


@dataclass(kw_only=True)
class TokenSubset(StackCallFields):
    """Mixin of the call of a stack that runs for a subset of the tokens.

    Layers change all new tokens, or `subset_idx` some of them (b k), of which `runs` says which are meant (b k), if not
    all. A call of those alone, by `subset_call`, knows that of the `whole` stream, to whose tokens the keys belong.
    """

    subset_idx: Maybe[Tensor] = None
    runs: Tensor | None = None
    whole: Any = None

    def of_tokens(self, index: Tensor) -> Any:
        """Return this call for layers that change only some of the new tokens. The keys of all stay visible.

        index    b k    whole numbers, none of them twice in a row; or a mask b n, True for those that layers change

        Layers take and give the whole stream. Go on with this call, or let the other one `adopt` it.
        """
        runs, found = None, check_tensor(index, 'index')
        if index.dtype == torch.bool and index.ndim == 2 and index.shape[1] == self.new_len:
            counts = index.sum(dim=-1, keepdim=True)
            runs = torch.arange(int(counts.max()), device=index.device) < counts
            found = index.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)[:, : runs.shape[1]]
        if found.dtype not in (torch.int32, torch.int64) or found.ndim != 2 or found.shape[1] > self.new_len:
            got = f'{index.dtype} of shape {tuple(index.shape)}'
            raise ValueError(f'`index` must be whole numbers (b k), or a mask (b {self.new_len}), got {got}')
        check_range(found, 'index', 0, self.new_len - 1, 'places')
        return self.with_values(subset_idx=found.long(), runs=None if runs is None or bool(runs.all()) else runs)

    def with_values(self, **values: Any) -> Any:
        """Return a copy of the call with other values."""
        new = copy.copy(self)
        for name, value in values.items():
            setattr(new, name, value)
        return new

    def gather(self, t: Tensor) -> Tensor:
        """The tokens (b k d) of `of_tokens`, of the stream or of what counts its tokens (b n d), or one for all."""
        return (
            t
            if t.shape[1] != self.new_len
            else gather_along(t.expand(self.subset_idx.shape[0], -1, -1), self.subset_idx, -2)
        )

    def scatter(self, x: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """Return the stream with other values of these tokens."""
        new = new if self.runs is None else torch.where(self.runs.unsqueeze(-1), new, old)
        return x.scatter(1, self.subset_idx.unsqueeze(-1).expand_as(new), new.to(x.dtype))

    def subset_call(self) -> Any:
        """A call whose stream are the tokens of `of_tokens` alone: for what looks at each token by itself."""

        def each(t: Any) -> Any:
            return (
                self.gather(t) if torch.is_tensor(t) and t.ndim == 3 and t.shape[0] in (1, len(self.subset_idx)) else t
            )

        def of_rows(t: Any) -> Any:
            return each(t.unsqueeze(-1)).squeeze(-1) if torch.is_tensor(t) and t.ndim == 2 else each(t)

        own = {n: tree_map(each, getattr(self, n)) for n in ('norm_inputs', 'condition')}
        own['contexts'] = {kind: notes.map_leaves(each) for kind, notes in self.contexts.items()}
        across = dict(self.shared['c'])
        if 'mask' in across:
            across['mask'] = of_rows(across['mask'][:, -self.new_len :])
        if 'rotary_pos_emb' in across:
            across['rotary_pos_emb'] = tree_map(self.gather_rotations, across['rotary_pos_emb'])
        token_mask = None if self.token_mask is None else of_rows(self.token_mask[:, -self.new_len :])
        if self.runs is not None:
            token_mask = self.runs if token_mask is None else token_mask & self.runs
        own['new_len'] = self.subset_idx.shape[1]
        own |= dict(subset_idx=None, runs=None, whole=self, token_mask=token_mask, shared={**self.shared, 'c': across})
        return self.with_values(**own)

    def for_batch_idx(self, batch_idx: Tensor) -> Any:
        """Return a call for some batch entries (k). Results of its layers are not part of this call."""
        batch = self.batch

        def each(t: Any, name: str = '') -> Any:
            if hasattr(t, 'replace_side_inputs'):
                return t.replace_side_inputs({id(own): each(own, name) for own in t.side_inputs()})
            if not torch.is_tensor(t) or t.ndim < 2 or t.shape[0] != batch or isinstance(t, torch.nn.Parameter):
                return t
            of_pairs = name in ('attn_mask', 'attn_bias')
            counts = t.ndim == 4 if of_pairs else t.ndim > 2 or name == 'pos' or not t.is_floating_point()
            return t.index_select(0, batch_idx) if counts else t

        def named(table: dict[str, Any]) -> dict[str, Any]:
            return {name: tree_map(partial(each, name=name), value) for name, value in table.items()}

        own: dict[str, Any] = {name: named(getattr(self, name)) for name in ('inputs', 'norm_inputs')}
        own['shared'] = {kind: named(table) for kind, table in self.shared.items()}
        own['condition'], own['token_mask'] = each(self.condition), each(self.token_mask)
        own['left_pad'] = None if self.left_pad is None else self.left_pad.index_select(0, batch_idx)
        own['contexts'] = {kind: notes.map_leaves(each) for kind, notes in self.contexts.items()}
        if self.cache is not None:
            states = {
                name: state.map(lambda t: t.index_select(0, batch_idx)) for name, state in self.cache.states.items()
            }
            own['cache'] = replace(self.cache, layers=SelectedLayers(self.cache.layers, batch_idx), states=states)
        return self.with_values(intermediates=self.intermediates.fork(), keeps=False, batch=len(batch_idx), **own)

    def gather_rotations(self, t: Any) -> Any:
        """Select angles or scales of tokens (... n d) for those of `of_tokens`."""
        if not torch.is_tensor(t) or t.ndim < 2:
            return t
        t = t[..., t.shape[-2] - self.new_len :, :]
        return self.gather(t if t.ndim == 3 else t.unsqueeze(0))

    def gather_masks(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of self-attention for these queries: their indices and masks."""
        scores = (n for n in ('attn_mask', 'attn_bias') if torch.is_tensor(inputs.get(n)) and inputs[n].ndim > 1)
        batch_idx = {n: to_4d(inputs[n]) for n in scores}
        batch_idx = {
            n: gather_along(t, self.subset_idx, -2) if t.shape[-2] == self.new_len else t for n, t in batch_idx.items()
        }
        return {'at': self.subset_idx, **batch_idx}

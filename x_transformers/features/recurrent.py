"""Recurrent layers (kind 'r') instead of attention."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.branches import KINDS, Kind
from x_transformers.features.levels import StackFeature
from x_transformers.flags import ConfigError, Running, an_instance, flag, none, one_of, shown, warn_once
from x_transformers.recurrent import DiagonalSSM, RWKVTimeMix

MADE = {'rwkv': RWKVTimeMix, 'ssm': DiagonalSSM}


class RecurrentModule(StackFeature):
    """Recurrent layers, of kind 'r' in `custom_layers`: the output of a token depends on it and a state of fixed size.

    A custom module maps x, (b, n, dim), and a state, None at first, to a pair of its output and the new state, a tree
    of tensors with the batch axis first. If there is padding, it also gets `mask`, (b, n), True for tokens that are not
    padding.
    """

    paper = 'RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343'
    recurrent_module = flag(
        None,
        "module of the layers of kind 'r': 'rwkv', 'ssm', or a custom module, of which each layer gets a copy",
        one_of(*MADE) | an_instance(nn.Module) | none,
        example='rwkv',
    )

    def setup(self, host: Any) -> None:
        if 'r' not in host.layer_types:
            warn_once("`recurrent_module` has no effect without layers of kind 'r' in `custom_layers`")


class RecurrentLayer(nn.Module):
    """A recurrent module as the branch of a layer."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, x: Tensor, held: Any = None, mask: Tensor | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        """held: the state of the layer, as the call keeps it; None if nothing is to be kept."""
        further = {name: t for name, t in (('mask', mask), ('document_ids', document_ids)) if t is not None}
        if document_ids is not None and not getattr(self.module, 'cuts_documents', False):
            raise ValueError(
                '`document_ids` does not go with `recurrent_module`: a module of your own says by '
                '`cuts_documents = True` that it takes them'
            )
        given = self.module(x, None if held is None else held.value, **further)
        pair = isinstance(given, (tuple, list)) and len(given) == 2  # a tensor of two rows has two parts, too
        if not pair or not torch.is_tensor(given[0]) or given[0].shape != x.shape:
            first = given[0] if pair else given
            found = f'shape {tuple(first.shape)}' if torch.is_tensor(first) else shown(first)
            raise ValueError(
                f'`recurrent_module` gave {found}{"" if pair else " and no state"}, it must be a pair of '
                f'{tuple(x.shape)} and what it knows of these tokens'
            )
        if held is not None:
            held.keep(given[1])
        return given[0]


def build(stack: Any, index: int) -> RecurrentLayer:
    own = stack.features.find(RecurrentModule)
    chosen = None if own is None else own.recurrent_module
    if chosen is None:
        raise ConfigError("`custom_layers` has recurrent layers ('r'), which need `recurrent_module`")
    if not stack.causal:
        raise ConfigError('`recurrent_module` needs a causal stack: its state depends on earlier tokens')
    return RecurrentLayer(MADE[chosen](stack.dim) if isinstance(chosen, str) else copy.deepcopy(chosen))


def inputs(call: Any) -> dict[str, Any]:
    real = call.real
    given = {'mask': None if real is None else real[:, real.shape[1] - call.new :]}
    given['document_ids'] = call.inputs.get('document_ids')
    if call.keeps or call.cache is not None:
        given['held'] = call.state('recurrent', call.step)
    return given


KINDS['r'] = Kind(build, inputs=inputs, remembers={'recurrent': Running()}, cuts_documents=True)

"""Base of models with a datastore: ownership of the keys, and the search for each token."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.modes import eager_only
from x_transformers.flags import ConfigError, Configurable
from x_transformers.generation.prompt_cache import fingerprint
from x_transformers.memory.datastore import KNNDatastore
from x_transformers.memory.keys import KeyReader
from x_transformers.memory.search import Neighbours

# of the net: what says how generation may read it
ASKED = ('max_seq_len', 'num_tokens', 'logits_dim', 'can_cache_kv', 'can_cache_kv_outside_max_seq_len', 'max_mem_len',
         'can_pad_left', 'can_keep_logits', 'follows_length', 'starts_over', 'input_not_include_cache',
         'can_cache_kv_in_training', 'attn_layers', 'num_memory_tokens')  # fmt: skip


def open_datastore(datastore: Any) -> KNNDatastore:
    """Return a datastore, or open that of a folder."""
    if isinstance(datastore, (str, os.PathLike)):
        return KNNDatastore.open(datastore)
    return datastore


def get_state(net: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return a cheap fingerprint that changes when weights are replaced or written to."""
    tensors = [t for t in (*net.parameters(), *net.buffers()) if t is not None]
    return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)


class WithDatastore(Configurable):
    """Wrapper of a token model that looks up its hidden states in a datastore, and is called like the model."""

    def attach(self, net: nn.Module, datastore: Any, k: int, key_layer: int, key_at: str) -> None:
        """Store the parts, after checking that they fit."""
        store = open_datastore(datastore)
        if not len(store):
            raise ConfigError('`datastore` holds no entries: build it first')
        if k > len(store):
            raise ConfigError(f'`k` must be at most the number of entries of `datastore`, {len(store)}, got {k}')
        self.net, self.datastore, self.k = net, store, k
        self.reader_options = key_layer, key_at
        reader = KeyReader(self.owner_net, key_layer, key_at)
        if reader.dim != store.dim:
            raise ConfigError(f'`datastore` holds keys of width {store.dim}, those of the net have {reader.dim}')
        self.check_owner(self.owner_net)

    @property
    def owner_net(self) -> nn.Module:
        """Return the model whose hidden states are the keys."""
        return self.net

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in ASKED:
                raise
            return getattr(self.net, name)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call `AutoregressiveWrapper.generate` on this model."""
        return AutoregressiveWrapper(self).generate(*args, **kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Tensor]:
        """Call `AutoregressiveWrapper.stream` on this model."""
        return AutoregressiveWrapper(self).stream(*args, **kwargs)

    def beam_search(self, *args: Any, **kwargs: Any) -> Any:
        """Call `AutoregressiveWrapper.beam_search` on this model."""
        return AutoregressiveWrapper(self).beam_search(*args, **kwargs)

    def score(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call `AutoregressiveWrapper.score` on this model."""
        return AutoregressiveWrapper(self).score(*args, **kwargs)

    @eager_only
    def check_owner(self, net: nn.Module) -> None:
        """Refuse a net whose hidden states are not the keys of the store; costs next to nothing if it is as it was."""
        state = get_state(net)
        if self.__dict__.get('known_state') == state:
            return
        owner = self.datastore.owner
        if owner['fingerprint'] is None:
            raise ConfigError('`datastore` does not say whose keys it holds: fill it by `build(net, loader)`')
        if owner['fingerprint'] != fingerprint(net):
            raise ConfigError(
                '`datastore` holds keys of another model, or of this one with other weights: build it again'
            )
        for name, value in zip(('key_layer', 'key_at'), self.reader_options, strict=True):
            if owner[name] != value:
                raise ConfigError(f'`{name}` got {value!r}, `datastore` was built with {owner[name]!r}')
        self.__dict__['known_state'] = state

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and deepcopy, which store the weights elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name != 'known_state'}

    @eager_only
    def look_up(self, hidden: Tensor, real: Tensor, exclude: Tensor | None) -> Neighbours:
        """Return the neighbors of hidden states (b, n, d), none for padding (b, n)."""
        found = self.datastore.search(hidden[real], self.k, None if exclude is None else exclude[real])
        blank = (torch.inf, 0, -1)
        full = [t.new_full((*real.shape, self.k), fill) for t, fill in zip(found, blank, strict=True)]
        for whole, part in zip(full, found, strict=True):
            whole[real] = part
        return Neighbours(*full)


def tokens_read(x: Tensor, out: Tensor, hidden: Tensor, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return hidden states, and a mask of real tokens, for the last tokens with an output (b, m, ...)."""
    count, mask, start = hidden.shape[1], kwargs.get('mask'), kwargs.get('seq_start_pos')
    token_mask = torch.ones(x.shape[0], count, dtype=torch.bool, device=x.device)
    if mask is not None:
        mask = mask.bool()[:, -count:]
        token_mask[:, count - mask.shape[1] :] &= mask
    if start is not None and kwargs.get('cache') is None:
        token_mask &= torch.arange(count, device=x.device) >= start.to(x.device).unsqueeze(-1)
    return hidden[:, -out.shape[1] :], token_mask[:, -out.shape[1] :]


def refuse_returns(kwargs: dict[str, Any]) -> None:
    """Refuse what a net returns of itself alone; memories are the same."""
    for name in [name for name in kwargs if name.startswith('return_') and name != 'return_mems']:
        if kwargs.pop(name):
            raise ValueError(f'`{name}` cannot be combined with `datastore`: it would be of the net alone')


def answer(out: Tensor, intermediates: Any, wanted: bool, kwargs: dict[str, Any]) -> Any:
    """Return the output, with the requested extras."""
    if wanted:
        return out, intermediates
    return (out, intermediates.mems) if kwargs.get('return_mems') else out

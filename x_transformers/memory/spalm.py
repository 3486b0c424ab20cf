"""SPALM: language models with a learned gate between their output and a datastore."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import check_ids, check_tensor, checked
from x_transformers.core.modes import eager_only, to_float
from x_transformers.features.readouts import TiedReadout
from x_transformers.flags import ConfigError, boolean, instance_of, none, number, size
from x_transformers.generation.engine import eval_modules
from x_transformers.memory.keys import KeyReader
from x_transformers.memory.knn_lm import a_store
from x_transformers.memory.retrieval import WithDatastore, answer, open_datastore, refuse_returns, tokens_read

__all__ = ['SPALMWrapper']


class SPALMWrapper(WithDatastore):
    """SPALM: mix the output of a model with tokens of a datastore by a learned gate:  (b, n) -> (b, n, l).

        m_t = sum_i softmax_i(y_i h_t) y_i          y_i  embeddings of the tokens of the k neighbors
        g_t = sigmoid(w h_t + b)                    h_t  output of the model
        z_t = (1 - g_t) m_t + g_t h_t,   p = softmax(z_t W^T)

    Distances are used only for retrieval. Keys are computed by a frozen model: `key_net`, or the model itself as long
    as its weights do not change. For training, `retrieve` finds all tokens once, for `forward(..., neighbours=...)`.

    The wrapper is called like the model, so that it can be passed to `AutoregressiveWrapper` and
    `XLAutoregressiveWrapper`. Padding is not looked up. With a `key_net` there is no cache: generation recomputes all
    tokens in each step.  arXiv:2102.02557
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'model with `tie_embedding` and `max_mem_len`', instance_of(nn.Module)],
        datastore: Annotated[Any, 'KNNDatastore filled by `build`, or its path', a_store],
        k: Annotated[int, 'number of retrieved neighbors per token', size] = 4,
        gate_init: Annotated[
            float, 'initial bias of the gate: 0 means one half, large values the model alone', number
        ] = 0.0,
        need_memory: Annotated[bool, 'raise an error for models without memories', boolean] = True,
        key_net: Annotated[
            nn.Module | None, 'frozen model that was used to build the datastore, if it is not `net`',
            instance_of(nn.Module) | none,
        ] = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if type(getattr(net, 'to_logits', None)) is not TiedReadout:
            raise ConfigError(
                '`net` must have `tie_embedding=True`: what is found joins its output as token embeddings'
            )
        model: Any = net
        for stage in ('head_input', 'logits'):
            for feature in model.features.by_stage.get(stage, ()):
                raise ConfigError(
                    f'`net` has `{next(iter(feature.flags))}`, which stands between the output and the table'
                )
        if need_memory and not model.max_mem_len:
            raise ConfigError('`net` must have memories, `max_mem_len`, unless `need_memory=False`')
        store = open_datastore(datastore)
        key_layer, key_at = store.owner['key_layer'], store.owner['key_at']
        if key_at is None:
            raise ConfigError('`datastore` does not say whose keys it holds: fill it by `build(net, loader)`')
        self.key_net = key_net
        self.attach(net, store, k, key_layer, key_at)
        like = model.to_logits.table()
        self.gate = nn.Linear(model.dim, 1, device=like.device, dtype=like.dtype)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, gate_init)

    @property
    def owner_net(self) -> nn.Module:
        return self.net if self.key_net is None else self.key_net

    @property
    def can_cache_kv(self) -> bool:
        return self.key_net is None and self.net.can_cache_kv

    @checked
    @eager_only(recursive=False)  # the net is a graph of its own, between what is none
    def forward(
        self,
        x: Tensor,
        neighbours: Tensor | None = None,
        exclude: Tensor | None = None,
        return_intermediates: bool = False,
        logits_to_keep: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return logits, (b, n, l).

        x            b n
        neighbours   b n k   result of `retrieve`, -1 for none; None to look them up
        exclude      b n e   entries of the datastore that are excluded per token, as in `KNNLMWrapper`
        **kwargs             passed to the model: `mask`, `cache`, `mems`, ...; `document_ids` are not supported
        """
        if kwargs.get('document_ids') is not None:
            raise ValueError('`document_ids` cannot be combined with `datastore`: keys were read without')
        refuse_returns(kwargs)
        if neighbours is None and self.key_net is not None:
            neighbours = self.retrieve(x, exclude, **kwargs)
        elif neighbours is None:
            self.check_owner(self.net)
        reader = KeyReader(self.net, *self.reader_options)
        h, intermediates, hidden = reader(x, headless=True, **kwargs)
        if logits_to_keep is not None:
            h = h[:, -logits_to_keep:]
        if neighbours is None:
            hidden, real = tokens_read(x, h, hidden, kwargs)
            found = self.look_up(hidden, real, self.of_last(exclude, x, 'exclude', real.shape[1]))
            neighbours = torch.where(found.index < 0, -1, found.values)
        else:
            neighbours = self.of_last(neighbours, x, 'neighbours', h.shape[1])
        return answer(self.net.to_logits(self.joined(h, neighbours)), intermediates, return_intermediates, kwargs)

    @staticmethod
    def of_last(t: Tensor | None, x: Tensor, name: str, count: int) -> Tensor | None:
        """Return the part of a tensor (b, n, ...) for the last tokens."""
        if t is None:
            return None
        if check_tensor(t, name).ndim != 3 or t.shape[:2] != x.shape or t.is_floating_point():
            raise ValueError(
                f'`{name}` must be whole numbers {(*x.shape, "k")}, got {t.dtype} of shape {tuple(t.shape)}'
            )
        return t[:, -count:]

    def joined(self, h: Tensor, neighbours: Any) -> Tensor:
        """Return z (b, n, d) from the output of the net, and the retrieved tokens (b, m, k) of the last m tokens."""
        head: Any = self.net.to_logits
        if neighbours.shape[1] < h.shape[1]:  # what stands in front of the tokens has none
            neighbours = F.pad(neighbours, (0, 0, h.shape[1] - neighbours.shape[1], 0), value=-1)
        there = neighbours >= 0
        y = F.embedding(neighbours.clamp(min=0), head.table(h.device))
        scores = torch.einsum('b n d, b n k d -> b n k', to_float(h) * head.scale, to_float(y))
        none = ~there.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~there & ~none, -torch.inf)
        m = torch.einsum('b n k, b n k d -> b n d', to_float(scores).softmax(dim=-1).to(y.dtype), y)
        gate = self.gate(h).sigmoid()
        return torch.where(none, h, (1 - gate) * m + gate * h)

    def retrieve(self, x: Tensor, exclude: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return the tokens of the neighbors of each token (b, n, k), -1 for none, by the frozen model.

        **kwargs   to that model; of those for the net, what concerns its own past is left out
        """
        x, owner = check_ids(x, 'x', 1), self.owner_net
        self.check_owner(owner)
        own = {name: value for name, value in kwargs.items() if name in ('mask', 'seq_start_pos')}
        with eval_modules(list(owner.modules())):
            out, _, hidden = KeyReader(owner, *self.reader_options)(x, headless=True, **own)
        hidden, real = tokens_read(x, out, hidden, own)
        found = self.look_up(hidden, real, self.of_last(exclude, x, 'exclude', real.shape[1]))
        return torch.where(found.index < 0, -1, found.values)

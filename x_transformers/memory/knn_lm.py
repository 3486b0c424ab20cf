"""kNN-LM: language models that interpolate with tokens that followed similar contexts in a datastore."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_ids, checked
from x_transformers.core.modes import eager_only, to_float
from x_transformers.flags import Check, ConfigError, instance_of, integer, is_number, one_of, positive, size
from x_transformers.generation.engine import eval_modules
from x_transformers.memory.datastore import KNNDatastore
from x_transformers.memory.keys import KEYS, KeyReader, get_entries
from x_transformers.memory.retrieval import WithDatastore, answer, refuse_returns, tokens_read
from x_transformers.memory.search import Neighbours

a_store = Check('a KNNDatastore, or the path of one', lambda value: isinstance(value, (KNNDatastore, str, os.PathLike)))
a_share = Check('a number from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1)

GOLDEN = (math.sqrt(5) - 1) / 2


def log_share(share: float) -> float:
    return math.log(share) if share > 0 else -math.inf


def kernel_log_probs(found: Neighbours, temperature: float, vocabulary: int) -> Tensor:
    """Return log p(y) of the tokens of neighbors (..., k) by their distances, (..., V); -inf for all other tokens.

        p(y)  ~  sum over neighbours of y  exp(-distance / temperature)

    Without any neighbour, all are -inf.
    """
    weights = -found.distances / temperature
    total = weights.logsumexp(dim=-1, keepdim=True)
    weights = torch.where(total.isneginf(), -torch.inf, weights - total)
    shape = (*weights.shape[:-1], vocabulary)
    # sums of each token relative to its largest term, which no distance makes zero
    largest = weights.new_full(shape, -torch.inf).scatter_reduce(-1, found.values, weights, 'amax')
    own = largest.gather(-1, found.values)
    terms = torch.where(weights.isneginf(), 0.0, (weights - own.clamp(min=-1e30)).exp())
    return largest + weights.new_zeros(shape).scatter_add(-1, found.values, terms).log()


def mix_log_probs(log_knn: Tensor, log_lm: Tensor, lam: float) -> Tensor:
    """Return log(lam p_knn + (1 - lam) p_lm), or log p_lm where there is no p_knn."""
    if lam == 0:
        return log_lm
    return torch.logaddexp(log_share(lam) + log_knn, log_share(1 - lam) + log_lm)


def golden_section(loss: Callable[[float], float], tolerance: float = 1e-4) -> float:
    """Return the minimizer in [0, 1] of a unimodal loss."""
    low, high = 0.0, 1.0
    left, right = 1 - GOLDEN, GOLDEN
    at_left, at_right = loss(left), loss(right)
    while high - low > tolerance:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = loss(right)
    return min((0.0, (low + high) / 2, 1.0), key=loss)


class Tuned(NamedTuple):
    """Best share, and the mean loss in nats with it and of the net alone."""

    lam: float
    mixed: float
    alone: float


class KNNLMWrapper(WithDatastore):
    """kNN-LM: interpolate a language model with the nearest contexts in a datastore:  (b, n) -> (b, n, l).

        p(y | c)     = lam p_knn(y | c) + (1 - lam) p_net(y | c)
        p_knn(y | c) ~ sum over the k nearest (key, y) of  exp(-|f(c) - key|^2 / temperature)

    f(c) is the input of the last feedforward, after its norm. Nothing is trained. The wrapper is called like the model
    and returns log probabilities instead of logits, so that it can be passed to `AutoregressiveWrapper` for generation.
    Padding is not looked up.  arXiv:1911.00172
    """

    net: Any

    output_is_log_prob = True

    def __init__(
        self,
        net: Annotated[nn.Module, 'model whose hidden states are the keys', instance_of(nn.Module)],
        datastore: Annotated[Any, 'KNNDatastore filled by `build`, or its path', a_store],
        k: Annotated[int, 'number of retrieved neighbors per token', size] = 1024,
        lam: Annotated[float, 'interpolation weight lam of the neighbors; see `tune_lambda`', a_share] = 0.25,
        temperature: Annotated[float, 'temperature of the squared distances', positive] = 1.0,
        key_layer: Annotated[int, 'index of the feedforward, as used to build the datastore', integer] = -1,
        key_at: Annotated[str, "'ff_input' or 'output', as used to build the datastore", one_of(*KEYS)] = 'ff_input',
    ) -> None:
        super().__init__()
        if isinstance(getattr(net, 'to_logits', None), nn.ModuleList):
            raise ConfigError('`net` must have one head, whose distribution is mixed: it has `num_output_heads`')
        self.attach(net, datastore, k, key_layer, key_at)
        self.lam, self.temperature, self.key_layer, self.key_at = float(lam), float(temperature), key_layer, key_at

    @checked
    def forward(
        self,
        x: Tensor,
        exclude: Tensor | None = None,
        return_intermediates: bool = False,
        logits_to_keep: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return log probabilities of the next tokens, (b, n, l).

        x                b n
        exclude          b n e   entries of the datastore that are excluded per token, -1 for none: for texts from which
                                 the datastore was built, their own entries
        logits_to_keep           compute and look up only the last ones
        **kwargs                 passed to the model: `mask`, `cache`, `mems`, ...
        """
        lm, knn, intermediates = self.both(x, exclude, logits_to_keep, kwargs)
        out = (
            lm
            if knn is None
            else torch.where(knn.isneginf().all(dim=-1, keepdim=True), lm, mix_log_probs(knn, lm, self.lam))
        )
        return answer(out, intermediates, return_intermediates, kwargs)

    @eager_only(recursive=False)  # the net is a graph of its own, between what is none
    def both(
        self, x: Tensor, exclude: Tensor | None, keep: int | None, kwargs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None, Any]:
        """Return log probabilities (b, n, l) of the net and of neighbors, and intermediates. A weight of 0 skips the
        search.
        """
        refuse_returns(kwargs)
        self.check_owner(self.net)
        kept = {} if keep is None else {'logits_to_keep': keep}
        logits, intermediates, hidden = KeyReader(self.net, self.key_layer, self.key_at)(x, **kept, **kwargs)
        lm = to_float(logits).log_softmax(dim=-1)
        if lm.shape[1] > hidden.shape[1]:  # what stands in front of the tokens has no neighbours
            lm = lm[:, lm.shape[1] - hidden.shape[1] :]
        hidden, real = tokens_read(x, lm, hidden, kwargs)
        if self.lam == 0:
            return lm, None, intermediates
        if exclude is not None:
            if exclude.ndim != 3 or exclude.shape[:2] != x.shape:
                raise ValueError(f'`exclude` must have shape {(*x.shape, "e")}, got {tuple(exclude.shape)}')
            exclude = exclude[:, -lm.shape[1] :]
        found = self.look_up(hidden, real, exclude)
        return lm, kernel_log_probs(found, self.temperature, lm.shape[-1]).to(lm.dtype), intermediates

    def log_probs(self, x: Tensor, exclude: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return log probabilities of the next tokens (b, n, l), in eval mode and without gradients. See `forward`."""
        with eval_modules(list(self.modules())):
            return self(check_ids(x, 'x', 1, self.net.num_tokens), exclude, **kwargs)

    def tune_lambda(self, loader: Iterable[Tensor | Mapping[str, Any]], *, ignore_index: int = -100) -> float:
        """Set `lam` to maximize the probability of a held-out text, by golden-section search, and return it.

        loader   batches as for `KNNDatastore.build`, of text that neither the net nor the datastore knows
        """
        return self.tuned(loader, ignore_index=ignore_index).lam

    def tuned(self, loader: Iterable[Tensor | Mapping[str, Any]], *, ignore_index: int = -100) -> Tuned:
        """Run `tune_lambda` and return its mean loss too."""
        before, self.lam = self.lam, 0.5  # look up, whatever it was
        try:
            pairs = [self.of_targets(batch, ignore_index) for batch in loader]
        finally:
            self.lam = before
        knn, lm = (torch.cat([pair[at] for pair in pairs] or [torch.zeros(0, device='cpu')]).double() for at in (0, 1))
        if not len(lm):
            raise ValueError('`loader` gave no tokens to tune `lam` with')

        def loss(lam: float) -> float:
            return -mix_log_probs(knn, lm, lam).mean().item()

        self.lam = golden_section(loss)
        return Tuned(self.lam, loss(self.lam), loss(0.0))

    def of_targets(self, batch: Tensor | Mapping[str, Any], ignore_index: int) -> tuple[Tensor, Tensor]:
        """Return log probabilities of neighbors and of the net for the targets, each (e,)."""
        entries = get_entries(batch, ignore_index)
        with eval_modules(list(self.modules())):
            place = next(self.net.parameters()).device
            inputs = {name: t.to(place) if torch.is_tensor(t) else t for name, t in entries.inputs.items()}
            lm, knn, _ = self.both(inputs.pop('x'), inputs.pop('exclude', None), None, inputs)
        at = entries.rows, entries.places, entries.values
        return knn[at].cpu(), lm[at].cpu()

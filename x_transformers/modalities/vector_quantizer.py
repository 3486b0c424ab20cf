"""Vector quantization: vectors as ids of a learned codebook, such as tokens of an image."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import is_in_backward
from x_transformers.core.checks import as_mask, check_range, check_vectors, checked, match_precision
from x_transformers.core.modes import to_float
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    at_least,
    boolean,
    is_number,
    none,
    not_negative,
    positive,
    size,
)
from x_transformers.training.losses import mean_or_zero

__all__ = ['Quantized', 'VectorQuantizer']

BLOCK = 2**24  # distances that are held at once

a_decay = Check('a number of at least 0 and below 1', lambda v: is_number(v) and 0 <= v < 1)


class Quantized(NamedTuple):
    """Codes (..., d), their ids (...), and the loss, a scalar."""

    codes: Tensor
    ids: Tensor
    loss: Tensor


class VectorQuantizer(Configurable):
    """Codebook that replaces each vector by the nearest of its codes:  (..., d) -> codes (..., d), ids (...), loss

        id    = argmin_k |z - e_k|^2
        codes = z + sg(e_id - z)                                      sg: without gradient
        loss  = mean (sg(z) - e_id)^2 + commitment_weight mean (z - sg(e_id))^2

    The gradient of the codes is passed on to z. With `decay`, codes are moving averages of the vectors nearest to them,
    and the loss has the second term only. With n_k vectors nearest to code k, which sum up to s_k, each forward pass in
    training updates

        count_k = decay count_k + (1 - decay) n_k
        total_k = decay total_k + (1 - decay) s_k
        e_k     = total_k / count'_k        count'_k = (count_k + eps) / (sum count + K eps) sum count

    The first one starts from random vectors of its batch, and takes n and s as they are: a step of k-means. The codes
    of several processes are not merged: DistributedDataParallel copies those of the first one.

    van den Oord et al. 2017, arXiv:1711.00937; as a tokenizer of images: Esser et al. 2020, arXiv:2012.09841; `norm`:
    Yu et al. 2021, arXiv:2110.04627
    """

    codebook: Tensor
    before: Tensor
    count: Tensor
    total: Tensor

    def __init__(
        self,
        dim: Annotated[int, 'width of vectors and codes', size],
        codebook_size: Annotated[int, 'number of codes', at_least(2)],
        commitment_weight: Annotated[float, 'weight of the second term of the loss', not_negative] = 0.25,
        decay: Annotated[
            float | None, 'decay of moving averages; None: learn codes by gradient', a_decay | none
        ] = None,
        eps: Annotated[float, 'smoothing of the counts of `decay`', positive] = 1e-5,
        norm: Annotated[bool, 'compare vectors and codes of length 1', boolean] = False,
        revive_below: Annotated[float, 'replace codes whose count is below by random vectors', not_negative] = 0.0,
    ) -> None:
        super().__init__()
        if revive_below and decay is None:
            raise ConfigError('`revive_below` needs `decay`: only moving averages count how often a code is used')
        self.dim, self.codebook_size, self.commitment_weight = dim, codebook_size, commitment_weight
        self.decay, self.eps, self.norm, self.revive_below = decay, eps, bool(norm), revive_below
        codebook = torch.empty(codebook_size, dim).uniform_(-1 / codebook_size, 1 / codebook_size)
        if decay is None:
            self.codebook = nn.Parameter(codebook)
        else:
            self.codebook = nn.Buffer(codebook)
            # A checkpoint computes again with the codes before their last update.
            self.before = nn.Buffer(codebook.clone(), persistent=False)
            self.count, self.total = nn.Buffer(torch.zeros(codebook_size)), nn.Buffer(torch.zeros(codebook_size, dim))

    def describe(self) -> dict[str, str]:
        return {'codes': f'(... {self.dim}) -> ids of {self.codebook_size} codes'}

    @checked
    def forward(self, z: Tensor, mask: Tensor | None = None) -> Quantized:
        """Return codes, their ids and the loss of vectors.

        z      ... d    vectors
        mask   ...      True except for padding, which changes neither loss nor codes
        raises          ValueError or TypeError for inputs of another shape or kind
        """
        check_vectors(z, 'z', *['b'] * max(z.ndim - 1, 0), self.dim)
        mask = as_mask(mask, 'mask', *z.shape[:-1], like=z)
        z = match_precision(z, self, 'z')
        if mask is not None:  # 0 times NaN is NaN
            z = z.masked_fill(~(mask.unsqueeze(-1) | z.isfinite()), 0.0)
        z = self._unit(z)
        moves, again = self.training and self.decay is not None, is_in_backward()
        if moves and not again:
            self._begin(z, mask)
        table = self._unit(self.before if moves and again else self.codebook)
        ids = find_nearest(z.detach().reshape(-1, self.dim), table.detach()).view(z.shape[:-1])
        code = F.embedding(ids, table).to(z.dtype)
        losses = self.commitment_weight * (to_float(z) - to_float(code.detach())).square()
        if self.decay is None:
            losses = losses + (to_float(z.detach()) - to_float(code)).square()
        found = Quantized(z + (code - z).detach(), ids, mean_or_zero(losses.mean(dim=-1), mask))
        if moves and not again:
            self._update(z, ids, mask)
        return found

    @checked
    def codes(self, ids: Tensor) -> Tensor:
        """Return the codes (..., d) of ids (...)."""
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise TypeError(f'`ids` must be whole numbers, got {ids.dtype}')
        check_range(ids, 'ids', 0, self.codebook_size - 1, 'codes')
        return F.embedding(ids, self._unit(self.codebook))

    def _unit(self, vectors: Any) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.norm else vectors

    def _draw(self, z: Tensor, mask: Tensor | None) -> Tensor:
        """Return a random vector of the batch for each code, (K, d), each once if there are enough."""
        keys = torch.rand(z.shape[:-1], dtype=torch.float32, device=z.device).flatten()
        real: Any = len(keys)
        if mask is not None:
            keys, real = keys.masked_fill(~mask.flatten(), 2.0), mask.sum().clamp(min=1)
        at = torch.arange(self.codebook_size, device=z.device) % real
        return z.detach().reshape(-1, self.dim)[keys.argsort()[at]]

    @torch.no_grad()
    def _begin(self, z: Tensor, mask: Tensor | None) -> None:
        """Start the codes of moving averages from vectors of the first batch."""
        first = self.count.sum() == 0 if mask is None else (self.count.sum() == 0) & mask.any()
        self.codebook.copy_(torch.where(first, self._draw(z, mask), self.codebook))

    @torch.no_grad()
    def _update(self, z: Tensor, ids: Tensor, mask: Tensor | None) -> None:
        """Update counts, sums and codes of moving averages, and replace the codes that are hardly used."""
        vectors, ids = to_float(z).reshape(-1, self.dim), ids.flatten()
        weights = vectors.new_ones(len(ids)) if mask is None else mask.flatten().to(vectors.dtype)
        count, total = to_float(self.count), to_float(self.total)
        decay: Any = self.decay
        keep = decay * (count.sum() > 0).to(count.dtype)
        count = keep * count + (1 - keep) * torch.zeros_like(count).index_add(0, ids, weights)
        total = keep * total + (1 - keep) * torch.zeros_like(total).index_add(0, ids, weights.unsqueeze(-1) * vectors)
        whole = count.sum()
        smooth = (count + self.eps) / (whole + self.codebook_size * self.eps) * whole
        used = (count > 0).unsqueeze(-1)
        table = torch.where(used, total / smooth.clamp(min=torch.finfo(smooth.dtype).tiny).unsqueeze(-1), self.codebook)
        if self.revive_below:
            dead = (count < self.revive_below) & (weights.sum() > 0)
            drawn = to_float(self._draw(z, mask))
            table = torch.where(dead.unsqueeze(-1), drawn, table)
            total = torch.where(dead.unsqueeze(-1), drawn * self.revive_below, total)
            count = count.masked_fill(dead, self.revive_below)
        self.before.copy_(self.codebook)
        for buffer, value in ((self.codebook, table), (self.count, count), (self.total, total)):
            buffer.copy_(value)


def find_nearest(vectors: Tensor, table: Tensor) -> Tensor:
    """Return the index of the row of `table` (k, d) nearest to each vector (n, d), in blocks of vectors."""
    vectors, table = to_float(vectors), to_float(table)
    half = table.square().sum(dim=-1) / 2
    blocks = vectors.split(max(BLOCK // len(table), 1))
    return torch.cat([(half - block @ table.mT).argmin(dim=-1) for block in blocks])

"""Segmentation of sequences by how hard a model finds it to guess what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.checks import check_ids, check_lengths, checked, mask_from_lengths
from x_transformers.core.modes import promote_dtypes
from x_transformers.core.nets import check_net, refuse_own
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    instance_of,
    none,
    number,
    positive,
    size,
    warn_once,
)
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.sampling import to_float
from x_transformers.training.losses import entropy, tell_padding

__all__ = ['EntropyBasedTokenizer']


class EntropyBasedTokenizer(Configurable):
    """Split a sequence after every position where the entropy of the next token is high.

        h_i = -sum p_i log p_i        p_i = softmax of the logits at i
        a token ends at i             if h_i >= threshold; or, with `accumulate_entropy`, if the sum of h since the
                                      last end is

    The end of a sequence is the end of a token.  Pagnoni et al. 2024, arXiv:2412.09871
    """

    def __init__(
        self,
        decoder: Annotated[nn.Module, 'causal model of the ids, such as TransformerWrapper', instance_of(nn.Module)],
        entropy_threshold: Annotated[float, 'entropy threshold that ends a token, in nats', positive],
        accumulate_entropy: Annotated[bool, 'compare the entropy sum of a token with the threshold', boolean] = False,
        ignore_entropy_below: Annotated[float, 'treat entropies below this as 0 in the sum', number] = 0.0,
        max_token_size: Annotated[int | None, 'maximum token length: longer tokens are split', size | none] = None,
    ) -> None:
        super().__init__()
        if isinstance(decoder, AutoregressiveWrapper):
            raise ValueError('`decoder` must return logits, got an AutoregressiveWrapper: pass its `net`')
        check_net(decoder)
        if ignore_entropy_below > entropy_threshold:
            raise ConfigError(
                f'`ignore_entropy_below` got {ignore_entropy_below}, '
                f'it must be at most `entropy_threshold`, {entropy_threshold}'
            )
        if ignore_entropy_below and not accumulate_entropy:
            warn_once('`ignore_entropy_below` has no effect unless `accumulate_entropy` is set')
        self.decoder = decoder
        self.entropy_threshold, self.accumulate_entropy = entropy_threshold, bool(accumulate_entropy)
        self.ignore_entropy_below, self.max_token_size = ignore_entropy_below, max_token_size

    @checked
    def forward(
        self,
        seq: Tensor,
        lens: Tensor | None = None,
        return_segmented_seq: bool = False,
        decoder_forward_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the lengths of the tokens of each sequence. Without gradients, with the decoder in eval mode.

        seq                     [b] n   ids
        lens                    b       number of real ids of each row
        return_segmented_seq            give the pieces of each row instead: a tuple of ids, or a list of such tuples
        decoder_forward_kwargs          to the decoder
        returns                 [b] t   lengths, followed by zeros in rows of fewer tokens
        raises                          ValueError or TypeError for inputs of another shape or kind
        """
        alone = torch.is_tensor(seq) and seq.ndim == 1
        rows = rearrange(seq, 'n -> 1 n') if alone else seq
        ids = check_ids(rows, 'seq', 1)
        if lens is not None:
            if alone:
                raise ValueError('`lens` goes with a batch, `seq` got one row')
            check_lengths(lens, 'lens', *rows.shape)
        inputs = dict(decoder_forward_kwargs or {})
        refuse_own(inputs, 'the tokenizer', {})
        if lens is not None:
            counts: Tensor = lens
            tell_padding(self.decoder, inputs, lambda: mask_from_lengths(counts, rows.shape[1]))
        with eval_modules(list(self.decoder.modules())):
            entropies = entropy(to_float(self.decoder(ids, **inputs)))
        place = torch.arange(rows.shape[1], device=rows.device)
        lens = rows.new_full((len(rows),), rows.shape[1], dtype=torch.long) if lens is None else lens.to(rows.device)
        token_mask, last = mask_from_lengths(lens, rows.shape[1]), rearrange(lens - 1, 'b -> b 1')
        ends = self.ends(entropies) & token_mask | (place == last)
        if self.max_token_size is not None:
            ends = (ends | ((place - get_start(ends) + 1) % self.max_token_size == 0)) & token_mask
        sizes = (place - get_start(ends) + 1).masked_fill(~ends, 0)
        # ends in front, in order
        order = (~ends).int().argsort(dim=-1, stable=True)
        longest = int(ends.sum(dim=-1).max()) if len(rows) else 0
        lengths = sizes.gather(1, order)[:, :longest]
        if return_segmented_seq:
            pieces = [row[: sum(n)].split([k for k in n if k]) for row, n in zip(rows, lengths.tolist(), strict=True)]
            return pieces[0] if alone else pieces
        return lengths[0] if alone else lengths

    def ends(self, entropies: Tensor) -> Tensor:
        """Return where tokens end by their entropy (b, n), at any length."""
        if not self.accumulate_entropy:
            return entropies >= self.entropy_threshold
        return get_accumulated_threshold_mask(entropies, self.entropy_threshold, self.ignore_entropy_below)


def get_start(ends: Tensor) -> Tensor:
    """Return the start of the token of each entry (b, n), from the last entries of tokens, `ends` (b, n)."""
    after = F.pad(ends, (1, -1), value=True)
    place = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    return place.masked_fill(~after, 0).cummax(dim=-1).values


def get_accumulated_threshold_mask(entropies: Tensor, threshold: float, ignore_entropy_below: float = 0.0) -> Tensor:
    """Return where a running sum of entropies (b, n) reaches `threshold`; it is reset after each.

    In log n steps: `follows[i]` is where the segment behind one that starts at i starts, and of all starts those are
    kept that are reached from 0.
    """
    n = entropies.shape[1]
    counted = entropies.masked_fill(entropies < ignore_entropy_below, 0.0)
    total = F.pad(counted.cumsum(dim=-1, dtype=promote_dtypes(counted.device)), (1, 0))
    follows = torch.searchsorted(total, total + threshold).clamp(max=n + 1)  # n + 1: never
    jump = F.pad(follows, (0, 1), value=n + 1)
    starts = torch.zeros_like(jump, dtype=torch.bool)
    starts[:, 0] = True
    for _ in range(max(n, 1).bit_length()):
        reached = torch.zeros_like(jump).scatter_add(1, jump, starts.to(jump.dtype))
        starts = starts | (reached > 0)
        jump = jump.gather(1, jump)
    return starts[:, 1 : n + 1]

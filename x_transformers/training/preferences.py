"""Pairs of answers to a prompt, one preferred to the other, and their log probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_device, check_ids
from x_transformers.training.losses import read_of
from x_transformers.training.token_loss import Terms, read_logits_later, single_losses

__all__ = ['Pairs', 'read_pairs']

NAMES = ('preferred_seq', 'unpreferred_seq')


class Pairs(NamedTuple):
    """Preferred sequences, then the others, in one batch.

    seq      2b n   ids
    mask     2b n   True for real tokens; None if all are
    answer   2b n   True for real tokens that are not of the prompt
    """

    seq: Tensor
    mask: Tensor | None
    answer: Tensor

    @property
    def predicted(self) -> Tensor:
        """Return which tokens behind the first are of the answer, and predicted from a real one, (2b, n - 1)."""
        return self.answer[:, 1:] if self.mask is None else self.answer[:, 1:] & self.mask[:, :-1]

    @property
    def counts(self) -> Tensor:
        """Return which pairs have a token of an answer (b): of others there is nothing to prefer."""
        return self.predicted.any(dim=-1).view(2, -1).any(dim=0)

    def log_probs(self, model: nn.Module, total: bool = False) -> Tensor:
        """Return the log probability (2b) of each answer: the mean over its tokens, or their sum."""
        # what is not real may be any number
        seq = self.seq if self.mask is None else self.seq.masked_fill(~self.mask, 0)
        inputs: dict[str, Any] = {} if self.mask is None else {'mask': read_of(self.mask)}
        logits = model(seq[:, :-1], **inputs, **read_logits_later(model))
        log_probs = -single_losses(logits, seq[:, 1:], Terms(), 'model')
        # the token at i + 1 is predicted at i
        counts = self.predicted
        found = log_probs.masked_fill(~counts, 0.0).sum(dim=-1)
        return found if total else found / counts.sum(dim=-1).clamp(min=1)


def read_pairs(
    preferred_seq: Tensor,
    unpreferred_seq: Tensor,
    prompt_mask: Tensor,
    preferred_seq_mask: Tensor | None,
    unpreferred_seq_mask: Tensor | None,
    pad_id: int | None,
) -> Pairs:
    """Check the inputs of a loss of preferences; masks that are missing are computed from `pad_id`."""
    preferred_seq, unpreferred_seq = (
        check_ids(seq, name, 2) for name, seq in zip(NAMES, (preferred_seq, unpreferred_seq), strict=True)
    )
    check_device(unpreferred_seq, 'unpreferred_seq', preferred_seq)
    shape, other = tuple(preferred_seq.shape), tuple(unpreferred_seq.shape)
    if shape != other:
        raise ValueError(f'`unpreferred_seq` must have the shape of `preferred_seq`, {shape}, got {other}')
    prompt = as_mask(prompt_mask, 'prompt_mask', *preferred_seq.shape, like=preferred_seq)
    if prompt is None:
        raise ValueError('`prompt_mask` must say which tokens are the prompt, got None')
    given = zip(NAMES, (preferred_seq_mask, unpreferred_seq_mask), (preferred_seq, unpreferred_seq), strict=True)
    masks = [real_tokens(mask, f'{name}_mask', seq, pad_id) for name, mask, seq in given]
    prompts, seq = torch.cat((prompt, prompt)), torch.cat((preferred_seq, unpreferred_seq))
    if all(mask is None for mask in masks):
        return Pairs(seq, None, ~prompts)
    mask = torch.cat([torch.ones_like(prompt) if one is None else one for one in masks])
    return Pairs(seq, mask, ~prompts & mask)


def real_tokens(mask: Tensor | None, name: str, seq: Tensor, pad_id: int | None) -> Tensor | None:
    if mask is None:
        return None if pad_id is None else seq != pad_id
    return as_mask(mask, name, *seq.shape, like=seq)

"""Training on preferences: which of two answers to a prompt is the better one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, check_device, check_ids, checked
from x_transformers.core.nets import check_net
from x_transformers.features.resizing import is_by_tokens
from x_transformers.flags import Configurable, boolean, instance_of, integer, none, positive
from x_transformers.training.items import mean_of_items, share_of_items
from x_transformers.training.losses import read_of
from x_transformers.training.token_loss import Terms, read_logits_later, single_losses

__all__ = ['DPO']


class DPO(Configurable):
    """Direct preference optimization (DPO): raise the odds of the preferred answer, relative to a frozen reference.

        loss = -log sigmoid(beta ((s(w) - s'(w)) - (s(l) - s'(l))))       mean over the batch

    w and l are the preferred and the other sequence. s is the log probability of an answer under the trained model and
    s' under its frozen copy: the mean over the tokens of the answer, or their sum, as in the paper.

    The copy is stored under `ref_model.`, so that training can be resumed; `parameters()` returns only those of the
    trained model.

    Rafailov et al. 2023, arXiv:2305.18290
    """

    def __init__(
        self,
        model: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        *,
        beta: Annotated[float, 'beta: strength of the penalty for deviations from the frozen copy', positive] = 0.1,
        pad_id: Annotated[int | None, 'id of padding, from which missing masks are computed', integer | none] = None,
        sum_log_probs: Annotated[bool, 'sum the log probabilities of an answer, instead of the mean', boolean] = False,
    ) -> None:
        super().__init__()
        if isinstance(model, AutoregressiveWrapper):
            raise ValueError('`model` got an AutoregressiveWrapper, which gives a loss: pass its `net`')
        check_net(model)
        self.policy_model = model
        self.ref_model = copy.deepcopy(model).requires_grad_(False).eval()
        self.beta, self.pad_id, self.sum_log_probs = beta, pad_id, bool(sum_log_probs)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Return the parameters of the trained model, without those of the frozen copy."""
        return self.policy_model.parameters() if recurse else super().parameters(recurse=False)

    def train(self, mode: bool = True) -> DPO:
        """Set the training mode, except that of the frozen copy."""
        super().train(mode)
        self.ref_model.eval()
        return self

    @checked
    def forward(
        self,
        preferred_seq: Tensor,
        unpreferred_seq: Tensor,
        *,
        prompt_mask: Tensor,
        preferred_seq_mask: Tensor | None = None,
        unpreferred_seq_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of a batch of pairs.

        preferred_seq, unpreferred_seq   b n   prompt and answer, ids
        prompt_mask                      b n   True for the tokens of the prompt, which both have in common
        ..._mask                         b n   True except for padding; computed from `pad_id` by default
        num_items_in_batch                     divide the sum of the losses of pairs by this number, so that batches
                                               add up
        returns                          scalar
        raises                           ValueError or TypeError for inputs of another shape or kind
        """
        names = ('preferred_seq', 'unpreferred_seq')
        preferred_seq, unpreferred_seq = (
            check_ids(seq, name, 2) for name, seq in zip(names, (preferred_seq, unpreferred_seq), strict=True)
        )
        check_device(unpreferred_seq, 'unpreferred_seq', preferred_seq)
        shape, other = tuple(preferred_seq.shape), tuple(unpreferred_seq.shape)
        if shape != other:
            raise ValueError(f'`unpreferred_seq` must have the shape of `preferred_seq`, {shape}, got {other}')
        prompt = as_mask(prompt_mask, 'prompt_mask', *preferred_seq.shape, like=preferred_seq)
        if prompt is None:
            raise ValueError('`prompt_mask` must say which tokens are the prompt, got None')
        # both in one pass
        seq = torch.cat((preferred_seq, unpreferred_seq))
        masks = zip(names, (preferred_seq_mask, unpreferred_seq_mask), (preferred_seq, unpreferred_seq), strict=True)
        token_mask = [self.real_tokens(mask, f'{name}_mask', seq) for name, mask, seq in masks]
        if all(mask is None for mask in token_mask):
            mask = None
        else:
            mask = torch.cat([torch.ones_like(prompt) if m is None else m for m in token_mask])
        answer = ~torch.cat((prompt, prompt)) if mask is None else ~torch.cat((prompt, prompt)) & mask
        with torch.no_grad():
            before = self.scores(self.ref_model, seq, mask, answer)
        with AuxLosses() as aux:
            gain = self.scores(self.policy_model, seq, mask, answer) - before
        preferred, unpreferred = gain.chunk(2)
        each = -F.logsigmoid(self.beta * (preferred - unpreferred))
        # Of a pair without any token of an answer there is nothing to prefer.
        counts = self.predicted(answer, mask).any(dim=-1).view(2, -1).any(dim=0)
        share = share_of_items(counts, num_items_in_batch)
        return aux.added_to(mean_of_items(each, counts, num_items_in_batch), share)

    @staticmethod
    def predicted(answer: Tensor, mask: Tensor | None) -> Tensor:
        """Return which tokens behind the first are of the answer, and predicted from a real one, (b, n - 1)."""
        return answer[:, 1:] if mask is None else answer[:, 1:] & mask[:, :-1]

    def real_tokens(self, mask: Tensor | None, name: str, seq: Tensor) -> Tensor | None:
        if mask is None:
            return None if self.pad_id is None else seq != self.pad_id
        return as_mask(mask, name, *seq.shape, like=seq)

    def resize_own_tokens(self, old: int, new: int) -> None:
        """Give the reference the new rows of the policy."""
        if self.ref_model.num_tokens != self.policy_model.num_tokens:
            return  # one of both was first
        for (_, ours), (_, theirs) in zip(is_by_tokens(self.ref_model), is_by_tokens(self.policy_model), strict=True):
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                one.data[old:] = other.data[old:]

    def scores(self, model: nn.Module, seq: Tensor, mask: Tensor | None, answer: Tensor) -> Tensor:
        """Return the log probability (b) of the tokens of `answer` (b n), each given those before it."""
        # what is not real may be any number
        seq = seq if mask is None else seq.masked_fill(~mask, 0)
        inputs: dict[str, Any] = {} if mask is None else {'mask': read_of(mask)}
        logits = model(seq[:, :-1], **inputs, **read_logits_later(model))
        log_probs = -single_losses(logits, seq[:, 1:], Terms(), 'model')
        # the token at i + 1 is predicted at i
        counts = self.predicted(answer, mask)
        total = log_probs.masked_fill(~counts, 0.0).sum(dim=-1)
        return total if self.sum_log_probs else total / counts.sum(dim=-1).clamp(min=1)

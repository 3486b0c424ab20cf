"""Training on preferences: which of two answers to a prompt is the better one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import checked
from x_transformers.core.nets import check_net
from x_transformers.features.resizing import is_by_tokens
from x_transformers.flags import Configurable, boolean, instance_of, integer, none, positive
from x_transformers.training.items import mean_of_items, share_of_items
from x_transformers.training.preferences import read_pairs

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
        pairs = read_pairs(
            preferred_seq, unpreferred_seq, prompt_mask, preferred_seq_mask, unpreferred_seq_mask, self.pad_id
        )
        with torch.no_grad():
            before = pairs.log_probs(self.ref_model, self.sum_log_probs)
        with AuxLosses() as aux:
            gain = pairs.log_probs(self.policy_model, self.sum_log_probs) - before
        preferred, unpreferred = gain.chunk(2)
        each = -F.logsigmoid(self.beta * (preferred - unpreferred))
        share = share_of_items(pairs.counts, num_items_in_batch)
        return aux.added_to(mean_of_items(each, pairs.counts, num_items_in_batch), share)

    def resize_own_tokens(self, old: int, new: int) -> None:
        """Give the reference the new rows of the policy."""
        if self.ref_model.num_tokens != self.policy_model.num_tokens:
            return  # one of both was first
        for (_, ours), (_, theirs) in zip(is_by_tokens(self.ref_model), is_by_tokens(self.policy_model), strict=True):
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                one.data[old:] = other.data[old:]

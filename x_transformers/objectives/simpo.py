"""Training on preferences without a reference model."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import checked
from x_transformers.core.nets import check_net
from x_transformers.flags import Check, Configurable, instance_of, integer, is_number, none, positive
from x_transformers.training.items import mean_of_items, share_of_items
from x_transformers.training.preferences import read_pairs

__all__ = ['SimPO']

not_negative = Check('a number of at least 0', lambda value: is_number(value) and value >= 0, 'float')


class SimPO(Configurable):
    """Simple preference optimization (SimPO): the preferred answer is more probable per token, by a margin.

        loss = -log sigmoid(beta (s(w) - s(l)) - margin)       mean over the batch

    w and l are the preferred and the other sequence. s is the mean log probability of the tokens of an answer. Unlike
    `DPO` it needs no frozen copy of the model.

    Meng et al. 2024, arXiv:2405.14734; there, margin is gamma
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        *,
        beta: Annotated[float, 'beta: factor of the difference of log probabilities', positive] = 2.0,
        margin: Annotated[
            float, 'by how much beta times the preferred one must be ahead of beta times the other', not_negative
        ] = 1.0,
        pad_id: Annotated[
            int | None, 'id of the padding token, from which missing masks are computed', integer | none
        ] = None,
    ) -> None:
        super().__init__()
        if isinstance(net, AutoregressiveWrapper):
            raise ValueError('`net` got an AutoregressiveWrapper, which gives a loss: pass its `net`')
        check_net(net)
        self.net = net
        self.beta, self.margin, self.pad_id = beta, margin, pad_id

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
        with AuxLosses() as aux:
            preferred, unpreferred = pairs.log_probs(self.net).chunk(2)
        each = -F.logsigmoid(self.beta * (preferred - unpreferred) - self.margin)
        share = share_of_items(pairs.counts, num_items_in_batch)
        return aux.added_to(mean_of_items(each, pairs.counts, num_items_in_batch), share)

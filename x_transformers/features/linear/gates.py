"""Gates of what a token writes: how much of the state it leaves, and how strongly it is written."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.features.linear.kernel import Tokens

# the share of the state that a gate leaves at first: sigmoid(2) = 0.88
FADES = 2.0


def write_gate(update: str, dim: int, heads: int) -> nn.Linear:
    """A logit for each key head, b n d -> b n k. The delta rule starts with half of each correction."""
    gate = nn.Linear(dim, heads)
    if update == 'delta':
        nn.init.zeros_(gate.weight)
    nn.init.constant_(gate.bias, FADES if update == 'gate' else 0.0)
    return gate


def written(update: str, tokens: Tokens, logits: Tensor) -> Tokens:
    """Tokens with what gates say of them, by logits b k n 1. What is hidden changes nothing.

    gate     g = sigmoid(logit) of the state is left, and the token is written by 1 - g
    delta    sigmoid(logit) of the error is corrected
    """
    if update == 'delta':
        return tokens._replace(rate=logits.sigmoid())
    fade = F.logsigmoid(logits)
    fade = fade if tokens.seen is None else fade.masked_fill(~tokens.seen, 0.0)
    return tokens._replace(rate=(-logits).sigmoid(), fade=fade)

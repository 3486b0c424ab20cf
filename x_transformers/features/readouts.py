"""From hidden states to logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.features.levels import ModelFeature
from x_transformers.flags import ConfigError, at_least, flag, none, number


class TiedReadout(nn.Module):
    """Logits from the token table:  x T^t * scale.  It owns no parameters, the table stays the embedding's."""

    def __init__(self, embedding: TokenEmbedding, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.shared = (embedding,)  # in a tuple, so that the module is not registered twice

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.shared[0].table * self.scale).t()


class Heads(nn.ModuleList):
    """Several readouts of the same hidden states; gives a tuple of logits."""

    def forward(self, x: Tensor, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(head(x, **kwargs) for head in self)


class TieEmbedding(ModelFeature):
    """Logits from the table of token embeddings."""

    paper = 'Using the Output Embedding to Improve Language Models, arXiv:1608.05859'
    tie_embedding = flag(False, 'logits from the token table')
    tie_embedding_scale = flag(None, 'factor of tied logits, dim ** -0.5 if None', number | none, example=0.3)
    clashes = {'num_output_heads': 'there is one token table'}

    def readout(self) -> nn.Module:
        host = self.host
        if not isinstance(host.token_emb, TokenEmbedding):
            raise ConfigError(
                f'`tie_embedding` needs a TokenEmbedding, `token_emb` is a {type(host.token_emb).__name__}'
            )
        if host.emb_dim != host.dim:
            raise ConfigError(
                f'`tie_embedding` needs embeddings as wide as the stack: '
                f'`emb_dim` is {host.emb_dim}, the stack has {host.dim}'
            )
        if host.logits_dim not in (None, host.num_tokens):
            raise ConfigError(
                f'`logits_dim` got {host.logits_dim}, with `tie_embedding` it is `num_tokens`, {host.num_tokens}'
            )
        scale = host.dim**-0.5 if self.tie_embedding_scale is None else self.tie_embedding_scale
        return TiedReadout(host.token_emb, scale)


class OutputHeads(ModelFeature):
    """Several heads on the same hidden states."""

    num_output_heads = flag(1, 'how many heads; the logits become a tuple', at_least(1), example=2)

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['num_output_heads'] > 1

    def readout(self) -> nn.Module:
        host = self.host
        width = host.logits_dim or host.num_tokens
        return Heads(nn.Linear(host.dim, width, bias=False) for _ in range(self.num_output_heads))

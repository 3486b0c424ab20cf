"""Rules on the next token that depend on earlier tokens, and the history that they get.

A rule is a function (ids (b, t), logits (b, l), history) -> logits, which may be a `logits_processor`. The options of
`TokenSampler` and those of a generation_config.json use the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.flags.checks import Maybe

BANNED = -torch.inf


@dataclass
class GenerationHistory:
    """The tokens before a generated one, as `ids` of the prompts and what was generated, and which of them are real.

    Args:
        ids: All tokens so far, (b, t).
        start: Index of the first generated token, an integer or one per row (b).
        left_pad: Number of tokens in front that are no text, an integer or one per row (b); None for none.
        mask: True for the real ones of the first tokens, (b, n) with n <= t; None if all are.
        max_new_tokens: Number of tokens to generate, unless a row ends before.
    """

    ids: Tensor
    start: int | Tensor
    left_pad: int | Tensor | None = None
    mask: Maybe[Tensor] = None
    max_new_tokens: int | None = None

    @property
    def token_mask(self) -> Tensor:
        """True for real tokens, False for padding, (b, t)."""
        token_mask = self.padding_mask
        return torch.ones_like(self.ids, dtype=torch.bool) if token_mask is None else token_mask

    @property
    def padding_mask(self) -> Tensor | None:
        """`token_mask`, or None if all tokens are real."""
        token_mask = None
        if self.left_pad is not None:
            token_mask = self._from(self.left_pad)
        if self.mask is not None:
            mask = F.pad(self.mask.bool(), (0, self.ids.shape[1] - self.mask.shape[1]), value=True)
            token_mask = mask if token_mask is None else token_mask & mask
        return token_mask

    @property
    def generated_mask(self) -> Tensor:
        """True for generated tokens, False for those of the prompt, (b, t)."""
        return self._from(self.start)

    @property
    def num_generated(self) -> int | Tensor:
        """Number of generated tokens: an integer, or one per row (b) if rows are ahead of one another."""
        return self.ids.shape[1] - self.start

    @property
    def num_prompt_tokens(self) -> int | Tensor:
        """Number of real tokens of the prompts: an integer, or one per row (b)."""
        if self.mask is not None:
            return self.token_mask.sum(dim=-1) - self.num_generated
        return self.start - (0 if self.left_pad is None else self.left_pad)

    def left_padded(self) -> tuple[Tensor, Tensor | None]:
        """Return `ids` and `padding_mask`, (b, t) both, with what is not real moved to the front of each row."""
        token_mask = self.padding_mask
        if self.mask is None or token_mask is None:
            return self.ids, token_mask
        order = token_mask.byte().argsort(dim=-1, stable=True)
        return self.ids.gather(1, order), token_mask.gather(1, order)

    def _from(self, first: int | Tensor) -> Tensor:
        first = first.unsqueeze(-1) if torch.is_tensor(first) else first
        return (torch.arange(self.ids.shape[1], device=self.ids.device) >= first).expand(self.ids.shape)


def mask_tokens(logits: Tensor, banned: Tensor, where: bool | Tensor = True) -> Tensor:
    """Return logits (b, l) with -inf for banned tokens (l) or (b, l), in the rows (b) of `where` if it is a tensor."""
    if torch.is_tensor(where):
        return logits.masked_fill(where.unsqueeze(-1) & banned, BANNED)
    return logits.masked_fill(banned, BANNED) if where else logits


def get_mask(tokens: tuple[int, ...], logits: Tensor) -> Tensor:
    """Return True (l) for some tokens, of which those without a logit are left out."""
    named = torch.zeros(logits.shape[-1], dtype=torch.bool, device='cpu')
    named[[token for token in tokens if token < len(named)]] = True
    return named.to(logits.device)


def history_of(ids: Tensor, history: GenerationHistory | None) -> GenerationHistory:
    """Return the history, by default that of a prompt without padding."""
    return GenerationHistory(ids, ids.shape[1]) if history is None else history


@dataclass(frozen=True)
class NoRepeat:
    """No sequence of n tokens twice, arXiv:1705.04304, section 2.5. Padding is no token."""

    n: int

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        ids, token_mask = history_of(ids, history).left_padded()
        first = ids.shape[1] - self.n + 1  # where the last n - 1 tokens begin
        if first < 1:
            return logits
        seen = ids.unfold(1, self.n, 1)  # (b, m, n)
        again = (seen[..., :-1] == ids[:, None, first:]).all(dim=-1)
        if token_mask is not None:  # Padding stands in front: a sequence is real if its first token is.
            again = again & token_mask[:, :first] & token_mask[:, min(first, ids.shape[1] - 1), None]
        # Tokens without a logit go to one place more, which is cut off.
        size = logits.shape[-1]
        banned = torch.zeros(len(ids), size + 1, dtype=torch.long, device=ids.device)
        banned = banned.scatter_add(1, seen[..., -1].clamp(max=size), again.long())
        return mask_tokens(logits, banned[:, :size] > 0)


@dataclass(frozen=True)
class NoEndBefore:
    """No end token before a row has `total` tokens, its prompt included, and `new` ones are generated."""

    tokens: tuple[int, ...]
    total: int = 0
    new: int = 0

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        history = history_of(ids, history)
        made = history.num_generated
        short = made < self.new
        if self.total:
            short = short | (history.num_prompt_tokens + made < self.total)
        return logits if short is False else mask_tokens(logits, get_mask(self.tokens, logits), short)

"""Pretraining of the extended transformer construction: masked tokens, and segments that are foretold."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import can_read_values, check_ids, checked
from x_transformers.core.modes import to_float
from x_transformers.etc import CPCLoss, ETCEncoder, ETCInputs, make_etc_inputs
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    count,
    instance_of,
    number,
    size,
    warn_once,
)
from x_transformers.objectives.masked import HiddenTokens, Hiding, ratio
from x_transformers.training.losses import mean_or_zero
from x_transformers.training.masking import IGNORED, get_share, random_rank

__all__ = ['ETCLosses', 'ETCPretrainWrapper']


class ETCLosses(NamedTuple):
    """The loss to minimise, and its parts before they are weighted."""

    loss: Tensor
    mlm: Tensor
    cpc: Tensor


class ETCPretrainWrapper(Configurable):
    """Pretraining of ETC: masked tokens, and hidden segments that their global tokens foretell.  ids (b, n) -> loss

        of the segments of a row, ceil(cpc_prob s) are hidden: their long tokens are `mask_id`
        of the tokens of the others, ceil(mlm_prob v) are masked as in `MLMWrapper`
        loss = mlm + cpc_weight cpc      `CPCLoss`, with targets of a pass in which each segment sees itself alone

    The published .8 mlm + .2 cpc is the same up to the learning rate. At least one segment is shown; a row with one
    segment has no hidden one. The head is tied to the table of tokens.

    Ainslie et al. 2020, arXiv:2004.08483
    """

    keeps_tokens = 'its head and its masks are those of its table'

    def __init__(
        self,
        encoder: Annotated[Any, 'ETCEncoder', instance_of(ETCEncoder)],
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        mask_id: Annotated[int, 'id of the mask token, in the vocabulary', count],
        mlm_prob: Annotated[float, 'fraction of the shown tokens that are masked', ratio] = 0.15,
        cpc_prob: Annotated[float, 'fraction of the segments that are hidden; 0: masked tokens alone', ratio] = 0.1,
        cpc_weight: Annotated[float, 'weight of the loss of hidden segments', number] = 0.2,
        *,
        replace_prob: Annotated[float, 'fraction of masked tokens that become `mask_id`', ratio] = 0.8,
        random_token_prob: Annotated[float, 'fraction of masked tokens that become random', ratio] = 0.1,
        cls: Annotated[bool, 'use one more global token, of no segment', boolean] = False,
        one_sided: Annotated[bool, 'label segments before and behind differently', boolean] = False,
    ) -> None:
        super().__init__()
        if mask_id >= num_tokens:
            raise ConfigError(f'`mask_id` must be less than `num_tokens`, {num_tokens}, got {mask_id}')
        needed = 2 * encoder.rel_max_distance + 3 + bool(one_sided)
        if encoder.num_rel_ids < needed:
            raise ConfigError(f'`encoder` must have at least {needed} labels, `num_rel_ids`, got {encoder.num_rel_ids}')
        if replace_prob + random_token_prob > 1:
            raise ConfigError(f'`random_token_prob` must be at most 1 - `replace_prob`, got {random_token_prob}')
        self.encoder, self.num_tokens, self.mask_id = encoder, num_tokens, mask_id
        self.cpc_prob, self.cpc_weight = cpc_prob, cpc_weight
        self.cls, self.one_sided = bool(cls), bool(one_sided)
        self.hiding = Hiding(
            mask_id, None, mlm_prob, replace_prob, random_token_prob, (mask_id,), num_tokens, 1, 0.2, num_tokens
        )
        self.token_emb, self.global_emb = nn.Embedding(num_tokens, encoder.dim), nn.Embedding(1 + cls, encoder.dim)
        for table in (self.token_emb, self.global_emb):
            nn.init.normal_(table.weight, std=0.02)
        self.to_logits = nn.Linear(encoder.dim, num_tokens)
        self.to_logits.weight = self.token_emb.weight
        nn.init.zeros_(self.to_logits.bias)
        self.cpc = CPCLoss(weight=1.0)

    @checked
    def forward(
        self,
        tokens: Tensor,
        segment_ids: Tensor,
        return_outputs: bool = False,
        *,
        word_ids: Tensor | None = None,
        num_segments: int | None = None,
    ) -> Any:
        """Return the loss, or `ETCLosses`.

        tokens           b n   ids other than `mask_id`
        segment_ids      b n   0 .. num_segments - 1, -1 for padding
        return_outputs         return the parts too
        word_ids         b n   neighbours with one number are masked together
        num_segments           as in `make_etc_inputs`
        """
        tokens = check_ids(tokens, 'tokens', num_tokens=self.num_tokens)
        seen: Any = dict(num_segments=num_segments, rel_max_distance=self.encoder.rel_max_distance, cls=self.cls)
        made = make_etc_inputs(tokens, segment_ids, **seen, one_sided=self.one_sided)
        self.check_data(tokens, segment_ids, made)
        segments = made.options['mask_global'][:, int(self.cls) :]
        hidden = self.hide_segments(segments)  # (b, s)
        gone = F.pad(hidden, (0, 1)).gather(1, segment_ids % (hidden.shape[1] + 1))  # (b, n); padding is in none
        masked, _ = self.hiding.hide(tokens, (segment_ids >= 0) & ~gone, word_ids)
        with AuxLosses() as aux:
            long, glob = self.encode(masked.ids.masked_fill(gone, self.mask_id), made)
        mlm = self.token_loss(long, masked)
        radius = self.encoder.local_radius
        with torch.no_grad():
            alone = make_etc_inputs(
                tokens, segment_ids, **seen, one_sided=self.one_sided, alone=True, local_radius=radius
            )
            target = self.encode(tokens, alone)[1]
        cpc = self.cpc(glob, target, F.pad(hidden, (int(self.cls), 0)))
        loss = aux.added_to(mlm + self.cpc_weight * cpc)
        return ETCLosses(loss, mlm, cpc) if return_outputs else loss

    def encode(self, ids: Tensor, made: ETCInputs) -> tuple[Tensor, Tensor]:
        kinds = made.global_ids if self.cls else made.global_ids - 1
        return self.encoder(self.token_emb(ids), self.global_emb(kinds), **made.options)

    def hide_segments(self, segments: Tensor) -> Tensor:
        """Draw the hidden ones of the segments (b, s) that there are. One is left at least."""
        count = segments.sum(dim=-1, keepdim=True)
        most = torch.minimum(count * 0 + get_share(count, self.cpc_prob), count - 1)
        return segments & (random_rank(segments) < most)

    def token_loss(self, long: Tensor, masked: HiddenTokens) -> Tensor:
        logits = to_float(self.to_logits(masked.of(long)))
        losses = F.cross_entropy(logits.mT, masked.labels, ignore_index=IGNORED, reduction='none')
        return mean_or_zero(losses, masked.labels != IGNORED)

    def check_data(self, tokens: Tensor, segment_ids: Tensor, made: ETCInputs) -> None:
        """Raise if data has `mask_id` among its real tokens, and warn if no segment can be hidden."""
        if not can_read_values(tokens):
            return
        if bool(((tokens == self.mask_id) & (segment_ids >= 0)).any()):
            raise ValueError(f'`tokens` must not hold `mask_id`, {self.mask_id}, outside of padding')
        if self.cpc_prob and bool((made.options['mask_global'].sum(dim=-1) < 2 + self.cls).all()):
            warn_once('no row of a batch has two segments, so that none is hidden: the loss is that of masked tokens')

"""Classifier-free guidance: a second forward pass without the condition, and the weight of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.checks import as_number, check_tensor
from x_transformers.flags import warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.generation.sampling import check_in_range, get_ids, guide_logits, padded_prompts, require


def is_unlearned(scale: float, what: str) -> str:
    """Why there is nothing to lead away from."""
    how = f'set `cond_drop_prob`, or give `negative_{what}`'
    return f'`cond_scale` got {scale}, but the model has not learned without a {what}: {how}'


@dataclass
class Guidance:
    """Logits u + scale (c - u), with those of another reading, u.  Ho and Salimans 2022, arXiv:2207.12598

    cond_scale        0 ..    1 for none
    negative_prompts  ... n   ids in place of the prompts, of the same lengths: padded as these are, or a list
    negative_context  b m d   vectors in place of the context; all of them are read
    """

    cond_scale: float = 1.0
    negative_prompts: Tensor | Sequence[Tensor] | None = None
    negative_context: Maybe[Tensor] = None

    def __post_init__(self) -> None:
        self.cond_scale = as_number(self.cond_scale)
        require(check_in_range(self.cond_scale, 0.0), 'cond_scale', self.cond_scale, 'a number of at least 0')
        given = [name for name in ('negative_prompts', 'negative_context') if getattr(self, name) is not None]
        if self.cond_scale == 1 and given:
            warn_once(f'`{given[0]}` has no effect with a `cond_scale` of 1')
        if self.cond_scale != 1 and not given:
            raise ValueError(
                f'`cond_scale` got {self.cond_scale}, which needs something to lead away from: give `negative_prompts` '
                'or `negative_context`'
            )

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Guidance:
        """From the keywords among `options` that are its own, which are taken out."""
        own = [field.name for field in fields(cls)]
        return cls(**{name: options.pop(name) for name in own if name in options})

    @classmethod
    def refuse(cls, options: dict[str, Any], where: str) -> None:
        """Take out what says that there is no guidance, and refuse the rest."""
        for field in fields(cls):
            given = options.pop(field.name, field.default)
            if given is not field.default and given != field.default:
                raise ValueError(f'`{field.name}` cannot be combined with {where}')

    @property
    def is_on(self) -> bool:
        return self.cond_scale != 1

    def guided(self, logits: Tensor, without: Tensor) -> Tensor:
        return guide_logits(logits, without, self.cond_scale)

    def against(
        self, inputs: dict[str, Any], ids: Tensor, pads: Tensor | None, leading: torch.Size, prompt_lens: Any
    ) -> tuple[dict[str, Any], Tensor | None]:
        """The keywords of the net in the other reading, and the ids (b n) that it begins with, if they are others."""
        opening = None if self.negative_prompts is None else self.opening(ids, pads, leading, prompt_lens)
        if self.negative_context is None:
            return inputs, opening
        own, context = check_tensor(self.negative_context, 'negative_context'), inputs.get('context')
        if context is None:
            raise ValueError('`negative_context` was given, but no `context` that it could stand for')
        if own.ndim != 3 or own.shape[0] not in (1, len(ids)) or own.shape[2] != context.shape[2]:
            wanted = f'(b m d), of {len(ids)} rows and {context.shape[2]} features'
            raise ValueError(f'`negative_context` must have shape {wanted}, got {tuple(own.shape)}')
        kept = {name: value for name, value in inputs.items() if name != 'context_mask'}
        return {**kept, 'context': own.expand(len(ids), -1, -1)}, opening

    def opening(self, ids: Tensor, pads: Tensor | None, leading: torch.Size, prompt_lens: Any) -> Tensor:
        """The other prompts, with the padding (b) of the prompts (b n) on the left."""
        given = get_ids(self.negative_prompts, 'negative_prompts', ids.device)
        if isinstance(given, list) or prompt_lens is not None:
            given, own, found = padded_prompts(given, prompt_lens, 0)
            none = torch.zeros(len(given), dtype=torch.long, device=given.device)
            same = torch.equal(none if own is None else own, none if pads is None else pads.to(none))
            if found != leading or given.shape != ids.shape or not same:
                raise ValueError('`negative_prompts` must be the same, got other lengths than the prompts have')
            return given.to(ids)
        given, wanted = check_tensor(given, 'negative_prompts'), (*leading, ids.shape[1])
        if given.shape != wanted or given.is_floating_point():
            got = f'{given.dtype} of shape {tuple(given.shape)}'
            raise ValueError(f'`negative_prompts` must be ids {wanted}, as the prompts, got {got}')
        return given.reshape(ids.shape).to(ids)

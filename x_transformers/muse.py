"""Images from texts by tokens that are all guessed at once: a model of few tokens, and one that makes many of them."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from x_transformers.core.checks import as_mask, check_ids, check_vectors, checked
from x_transformers.flags import ConfigError, Configurable, instance_of, none
from x_transformers.flags.checks import Maybe
from x_transformers.nonautoregressive_wrapper import NonAutoregressiveWrapper

__all__ = ['Muse', 'MuseLosses']


class MuseLosses(NamedTuple):
    """The sum, and the losses of the two models; None without one of many tokens."""

    loss: Tensor
    base: Tensor
    superres: Maybe[Tensor]


class Muse(Configurable):
    """Text to image in two stages: tokens of a small image, then of a large one given the small one (Muse).

        small = base(text);  large = superres([text | embeddings of small])

    Both are `NonAutoregressiveWrapper` around an `Encoder(cross_attend=True)` that attends to text
    vectors. The second embeds the small image with its own token table, which must have the width of its context. Both
    are trained on real images.

    Chang et al. 2023, arXiv:2301.00704
    """

    base: Any
    superres: Any

    def __init__(
        self,
        base: Annotated[nn.Module, 'model of the small image', instance_of(NonAutoregressiveWrapper)],
        superres: Annotated[nn.Module | None, 'large-image model', instance_of(NonAutoregressiveWrapper) | none] = None,
    ) -> None:
        super().__init__()
        self.base, self.superres = base, superres
        models: dict[str, Any] = dict(base=base, superres=superres)
        for name, model in models.items():
            if model is not None and not model.net.attn_layers.cross_attend:
                raise ConfigError(f'`{name}` must read a text: its stack needs `cross_attend=True`')
        if superres is not None:
            width, context = self.superres.net.emb_dim, self.superres.net.attn_layers.dim_context
            if width != context:
                raise ConfigError(f'`superres` embeds tokens with a width of {width}, its context has {context}')
            classes, fewest = self.superres.net.num_tokens, self.base.net.num_tokens
            if classes < fewest:
                raise ConfigError(f'`superres` knows {classes} tokens, fewer than `base`, {fewest}')

    def joined(self, text: Tensor, text_mask: Tensor | None, small: Tensor) -> dict[str, Tensor]:
        """Concatenate the text and the small image, the context of the second model."""
        embedded = self.superres.net.token_emb(small).to(text.dtype)
        found = {'context': torch.cat((text, embedded), dim=1)}
        if text_mask is not None:
            found['context_mask'] = torch.cat((text_mask, torch.ones_like(small, dtype=torch.bool)), dim=1)
        return found

    def text_of(self, text: Tensor, text_mask: Tensor | None) -> Tensor | None:
        check_vectors(text, 'text', 'b', 'm', self.base.net.attn_layers.dim_context)
        return as_mask(text_mask, 'text_mask', *text.shape[:2], like=text)

    @checked
    def forward(
        self,
        small: Tensor,
        text: Tensor,
        large: Tensor | None = None,
        text_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MuseLosses:
        """Return the losses of images and their texts.

        small      b n     ids of the small images
        text       b m d   vectors of the texts
        large      b n'    ids of the large images, for `superres`
        text_mask  b m     True for real tokens
        num_items_in_batch divide the sum of the losses of masked tokens of each model by this number, so that batches
                           add up
        raises             ValueError for inputs of another shape, and large images without `superres` or the reverse
        """
        text_mask = self.text_of(text, text_mask)
        if (large is None) != (self.superres is None):
            given, wanted = ('is missing', 'has') if large is None else ('was given', 'has no')
            raise ValueError(f'`large` {given}, and the model {wanted} `superres`')
        mask = {} if text_mask is None else {'context_mask': text_mask}
        items: Any = {'num_items_in_batch': num_items_in_batch}
        base = self.base(small, context=text, **mask, **items).loss
        if large is None:
            return MuseLosses(base, base, None)
        small = check_ids(small, 'small', num_tokens=self.base.net.num_tokens)
        superres = self.superres(large, **self.joined(text, text_mask, small), **items).loss
        return MuseLosses(base + superres, base, superres)

    @checked
    def generate(
        self,
        text: Tensor,
        text_mask: Tensor | None = None,
        cond_scale: float = 1.0,
        *,
        generator: Generator | None = None,
        superres_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Tensor:
        """Generate ids of images, those of `superres` if it is set.

        text              b m d   vectors of the texts
        cond_scale                guidance of both models, 1 for no guidance
        options, superres_kwargs  options of `NonAutoregressiveWrapper.generate`, for the first and second model
        returns           b n
        """
        text_mask = self.text_of(text, text_mask)
        mask = {} if text_mask is None else {'context_mask': text_mask}
        own = dict(cond_scale=cond_scale, generator=generator)
        small = self.base.generate(len(text), context=text, **mask, **own, **options)
        if self.superres is None:
            return small
        with torch.no_grad():
            joined = self.joined(text, text_mask, small)
        return self.superres.generate(len(text), **joined, **own, **(superres_kwargs or {}))

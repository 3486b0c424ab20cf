"""Images and texts in one space: two models whose vectors are compared."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import checked
from x_transformers.core.modes import to_float
from x_transformers.features.embeddings import mean_of_real
from x_transformers.features.norms import l2norm
from x_transformers.features.readouts import get_place, get_token
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    instance_of,
    integer,
    none,
    number,
    one_of,
    positive,
    size,
    warn_once,
)
from x_transformers.training.losses import real_tokens
from x_transformers.training.masking import IGNORED
from x_transformers.training.token_loss import next_token_loss

POOLS = ('first', 'last', 'eos', 'mean')
# Largest factor of the softmax loss. Published models have learned its logarithm in float16, which keeps its digits.
MOST, ROUNDED = 100.0, 4.60546875


class TwoTowers(Configurable):
    """Contrastive training of an image model and a text model (CLIP, SigLIP): pairs get similar vectors.

        u, v = images and texts, pooled, projected, L2-normalized                  (b, d)
        logits = exp(logit_scale) u v^T + logit_bias                               (images, texts)

        softmax   the mean of the cross entropies of the text of each image and of the image of each text;
                  the factor is clamped to 100, with the gradient that it has there
        sigmoid   -sum log sigmoid(+logit of a pair, -logit of any other two), for each image

    Radford et al. 2021, arXiv:2103.00020 (CLIP); sigmoid: Zhai et al. 2023, arXiv:2303.15343 (SigLIP)
    """

    def __init__(
        self,
        image: Annotated[
            nn.Module, 'model from images to vectors (b, d), such as ViTransformerWrapper', instance_of(nn.Module)
        ],
        text: Annotated[
            nn.Module, 'model from ids to vectors (b, d), or (b, n, d) with `text_pool`', instance_of(nn.Module)
        ],
        *,
        text_pool: Annotated[
            str | None, 'pooling of the text: one token or the mean; None if the model pools', one_of(*POOLS) | none
        ] = None,
        eos_id: Annotated[
            int | None, "id of the token for 'eos', of which the first is used; None for the largest id", integer | none
        ] = None,
        dim_shared: Annotated[int | None, 'width of the shared space; None for no projections', size | none] = None,
        project_image: Annotated[bool, 'project image vectors, if `dim_shared` is set', boolean] = True,
        project_text: Annotated[bool, 'project text vectors, if `dim_shared` is set', boolean] = True,
        project_bias: Annotated[bool, 'use a bias in the projections', boolean] = False,
        dim_image: Annotated[
            int | None, 'width of the image vectors; that of the image stack if None', size | none
        ] = None,
        dim_text: Annotated[
            int | None, 'width of the text vectors; that of the text stack if None', size | none
        ] = None,
        loss: Annotated[
            str, "contrastive loss: 'softmax' (CLIP) or 'sigmoid' (SigLIP)", one_of('softmax', 'sigmoid')
        ] = 'softmax',
        logit_scale: Annotated[float, 'initial factor of the similarities; its logarithm is learned', positive] = 1
        / 0.07,
        logit_bias: Annotated[
            float | None, 'initial value of the learned bias of the logits; None for no bias', number | none
        ] = None,
    ) -> None:
        super().__init__()
        if loss == 'softmax' and math.log(logit_scale) > ROUNDED:
            raise ConfigError(f"`logit_scale` must be at most {MOST:g} with `loss='softmax'`, got {logit_scale}")
        if eos_id is not None and text_pool != 'eos':
            warn_once("`eos_id` has no effect unless `text_pool='eos'`")
        if dim_shared is None and project_bias:
            warn_once('`project_bias` has no effect unless `dim_shared` is set')
        self.image, self.text, self.text_pool, self.eos_id, self.loss = image, text, text_pool, eos_id, loss
        pools = text_pool in ('first', 'eos') and hasattr(text, 'attn_layers')
        self.instead = get_token(text_pool, text.attn_layers, "`text_pool='first'`")[1] if pools else 'first'

        def projection(tower: nn.Module, projects: bool, name: str, width: int | None) -> nn.Module:
            if dim_shared is None or not projects:
                return nn.Identity()
            width = width or getattr(getattr(tower, 'attn_layers', None), 'dim', None)
            if width is None:
                raise ConfigError(f'`{name}` is missing: the model has no stack that says how wide its vectors are')
            return nn.Linear(width, dim_shared, bias=bool(project_bias))

        self.to_image = projection(image, project_image, 'dim_image', dim_image)
        self.to_text = projection(text, project_text, 'dim_text', dim_text)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.logit_bias = None if logit_bias is None else nn.Parameter(torch.tensor(float(logit_bias)))

    @checked
    def of_images(self, images: Tensor, **inputs: Any) -> Tensor:
        """Return vectors of length 1, (b, d)."""
        return l2norm(self.to_image(pool_tokens(self.image(images, **inputs), 'image')))

    @checked
    def of_texts(self, texts: Tensor, mask: Tensor | None = None, **inputs: Any) -> Tensor:
        """Return vectors of length 1, (b, d). `mask` (b, n) is True for real tokens."""
        real = real_tokens(texts, mask, start=inputs.get('seq_start_pos'))
        inputs = inputs if real is None else {**inputs, 'mask': real}
        x = self.text(texts, **inputs)
        return l2norm(self.to_text(pool_tokens(self.token_of(x, texts, real), 'text')))

    def token_of(self, x: Tensor, texts: Tensor, mask: Tensor | None) -> Tensor:
        """Return the pooled vector of each text: one token, their mean, or the pooler of the model, (b, n, d) -> (b,
        d).
        """
        if self.text_pool is None:
            return x
        if x.ndim != 3:
            raise ValueError(f'`text` gave vectors of shape {tuple(x.shape)}, `text_pool` needs b n d')
        if self.text_pool == 'mean':
            return mean_of_real(x, mask)
        places = get_place(self.text_pool, texts, mask, self.eos_id, self.instead)
        return x[torch.arange(x.shape[0], device=x.device), places]

    def factor(self) -> Tensor:
        """Return the learned factor of similarities, bounded in the loss."""
        scale = self.logit_scale
        if self.loss != 'softmax':
            return scale.exp()
        bounded = MOST * (scale - scale.detach() + 1)  # still learns
        over = scale > ROUNDED
        return torch.where(over, bounded, scale.masked_fill(over, 0.0).exp())

    @checked
    def forward(self, images: Tensor, texts: Tensor, mask: Tensor | None = None, return_logits: bool = False) -> Tensor:
        """Return the loss of pairs of images and texts (b n), or with `return_logits` the logits, images texts."""
        real = real_tokens(texts, mask)
        with AuxLosses() as aux:
            u, v = self.of_images(images), self.of_texts(texts, real)
        if u.shape[-1] != v.shape[-1]:
            raise ValueError(
                f'images have vectors of width {u.shape[-1]}, texts of width {v.shape[-1]}: set `dim_shared`'
            )
        logits = self.factor() * u @ v.transpose(0, 1)
        logits = logits if self.logit_bias is None else logits + self.logit_bias
        if return_logits:
            return logits
        if u.shape[0] != v.shape[0]:
            raise ValueError(f'`texts` got {v.shape[0]} texts for {u.shape[0]} images: the loss is one of pairs')
        there = None if real is None else real.any(dim=-1)
        return aux.added_to(LOSSES[self.loss](to_float(logits), there))


def pool_tokens(x: Tensor, name: str) -> Tensor:
    if x.ndim != 2:
        raise ValueError(f'`{name}` gave vectors of shape {tuple(x.shape)}, it must pool them to b d')
    return x


# losses of pairs, from logits (b, b), over the pairs that are `there`, (b,): a text of padding alone is none


def softmax_loss(logits: Tensor, there: Tensor | None = None) -> Tensor:
    right = torch.arange(logits.shape[0], device=logits.device)
    if there is not None:
        right = right.masked_fill(~there, IGNORED)
        logits = logits.masked_fill(~there, -torch.inf).masked_fill(~there.unsqueeze(-1), -torch.inf)
        logits = logits.where(there | there.unsqueeze(-1), 0.0)  # rows without any other would give NaN
    sides = (next_token_loss(one, right, ignore_index=IGNORED) for one in (logits, logits.mT))
    total: Any = sum(sides)
    return total / 2


def sigmoid_loss(logits: Tensor, there: Tensor | None = None) -> Tensor:
    signs = 2 * torch.eye(logits.shape[0], dtype=logits.dtype, device=logits.device) - 1
    each = -F.logsigmoid(signs * logits)
    if there is None:
        return each.sum() / max(logits.shape[0], 1)
    return each.masked_fill(~(there & there.unsqueeze(-1)), 0.0).sum() / there.sum().clamp(min=1)


LOSSES = {'softmax': softmax_loss, 'sigmoid': sigmoid_loss}

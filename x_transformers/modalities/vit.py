"""Images in front of a stack: patches as tokens."""

from typing import Annotated, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.arguments import checked
from x_transformers.core.checks import as_precise
from x_transformers.features.norms import LayerNorm
from x_transformers.flags import ConfigError, Configurable, an_instance, boolean, count, none, probability, size
from x_transformers.x_transformers import AttentionLayers


class ViTransformerWrapper(Configurable):
    """Images in, classes or patch embeddings out:  b c height width -> b classes.

    Dosovitskiy et al. 2020, arXiv:2010.11929; mean pooling: arXiv:2205.01580; registers: arXiv:2309.16588
    """

    def __init__(
        self,
        *,
        image_size: Annotated[int, 'height and width of an image, in pixels', size],
        patch_size: Annotated[int, 'height and width of a patch, in pixels', size],
        attn_layers: Annotated[AttentionLayers, 'the stack', an_instance(AttentionLayers)],
        channels: Annotated[int, 'channels of an image', size] = 3,
        num_classes: Annotated[int | None, 'width of the head; None for the mean embedding', size | none] = None,
        post_emb_norm: Annotated[bool, 'layer norm after the positions are added', boolean] = False,
        num_register_tokens: Annotated[int, 'learned tokens beside the patches', count] = 0,
        emb_dropout: Annotated[float, 'dropout on the embeddings', probability] = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise ConfigError(f'`patch_size` got {patch_size}, it must divide `image_size`, {image_size}')
        dim, dim_patch = attn_layers.dim, channels * patch_size**2
        self.patch_size, self.channels, self.image_size = patch_size, channels, image_size
        self.pos_embedding = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2, dim))
        self.register_tokens = nn.Parameter(torch.randn(num_register_tokens, dim)) if num_register_tokens else None
        self.patch_to_embedding = nn.Sequential(LayerNorm(dim_patch), nn.Linear(dim_patch, dim), LayerNorm(dim))
        self.post_emb_norm = LayerNorm(dim) if post_emb_norm else nn.Identity()
        self.dropout = nn.Dropout(emb_dropout)
        self.attn_layers = attn_layers
        self.mlp_head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    @checked
    def forward(self, img: Tensor, return_embeddings: bool = False, return_logits_and_embeddings: bool = False) -> Any:
        """Logits; or patch embeddings b n d; or both."""
        if return_embeddings and return_logits_and_embeddings:
            raise ValueError('`return_embeddings` and `return_logits_and_embeddings` were both given, set only one')
        if not img.is_floating_point():
            raise TypeError(f'`img` got {img.dtype}, it must be floating point')
        height, width = img.shape[-2:] if img.ndim == 4 else (1, 1)
        if img.ndim != 4 or img.shape[1] != self.channels or height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f'`img` got shape {tuple(img.shape)}, '
                f'it must be (b, {self.channels}, height, width) in multiples of {self.patch_size} pixels'
            )
        if height * width > self.image_size**2:
            raise ValueError(
                f'`img` got {height} x {width} pixels, at most {self.image_size} x {self.image_size} have positions'
            )
        side = self.patch_size
        patches = rearrange(as_precise(img, self, 'img'), 'b c (h p1) (w p2) -> b (h w) (p1 p2 c)', p1=side, p2=side)
        x = self.patch_to_embedding(patches)
        x = self.dropout(self.post_emb_norm(x + self.pos_embedding[:, : x.shape[1]]))
        count = x.shape[1]
        if self.register_tokens is not None:
            x = torch.cat((x, self.register_tokens.expand(x.shape[0], -1, -1)), dim=1)
        embeddings = self.attn_layers(x)[:, :count]
        if return_embeddings:
            return embeddings
        logits = self.mlp_head(embeddings.mean(dim=1))
        return (logits, embeddings) if return_logits_and_embeddings else logits

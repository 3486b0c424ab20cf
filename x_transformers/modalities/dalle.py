"""DALL-E: one causal model of a text and the tokens of an image."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, check_ids, checked
from x_transformers.core.nets import check_sizes_or_stack
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    instance_of,
    is_int,
    none,
    not_negative,
    one_of,
    probability,
    size,
)
from x_transformers.generation.choice import TokenSampler, refuse_ends
from x_transformers.generation.engine import AuxiliaryLogits, Decoding, IncrementalModel, eval_modules
from x_transformers.generation.guidance import Guidance, is_unlearned
from x_transformers.generation.sampling import require
from x_transformers.patterns import Behind, Column, Conv2D, Global, Pattern, Row
from x_transformers.training.items import share_of_items
from x_transformers.training.masking import IGNORED
from x_transformers.training.token_loss import next_token_loss
from x_transformers.x_transformers import AttentionLayers, Decoder

__all__ = ['DALLE', 'DALLELosses', 'ImageTokenizer', 'dalle_patterns', 'get_best']


class ImageTokenizer(Protocol):
    """Tokenizer of images:  (b, c, h, w) -> (b, n),  (b, n) -> (b, c, h, w)"""

    def encode(self, images: Tensor) -> Tensor: ...

    def decode(self, ids: Tensor) -> Tensor: ...


a_tokenizer = Check(
    'a module with `encode` and `decode`',
    lambda v: (
        isinstance(v, nn.Module) and callable(getattr(v, 'encode', None)) and callable(getattr(v, 'decode', None))
    ),
)


class DALLELosses(NamedTuple):
    """Weighted mean, and the mean cross entropies of words and of image tokens."""

    loss: Tensor
    text: Tensor
    image: Tensor


def dalle_patterns(depth: int, text_seq_len: int, grid: int, kernel: int = 11) -> tuple[Pattern, ...]:
    """Who sees whom in each layer: all see the text; of the image a row or, in each fourth layer from the second on, a
    column, and in the last layer a square of `kernel` around the own place."""
    first = text_seq_len + 1
    kinds: list[Pattern] = [Column(grid) if layer % 4 == 1 else Row(grid) for layer in range(depth - 1)]
    kinds.append(Conv2D((grid, grid), kernel))
    return tuple([Global(first) | Behind(kind, first) for kind in kinds])


def get_best(images: Tensor, rerank: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Return the image with the largest score of several for each text (b, k, n). `rerank` returns scores (b, k)."""
    if rerank is None:
        return images
    scores = rerank(images)
    if not torch.is_tensor(scores) or scores.shape != images.shape[:2]:
        got = tuple(scores.shape) if torch.is_tensor(scores) else type(scores).__name__
        raise ValueError(f'`rerank` gave {got}, it must give one score for each image, {tuple(images.shape[:2])}')
    return images[torch.arange(len(images), device=images.device), scores.argmax(dim=1)]


def check_samples(num_samples: Any, rerank: Any) -> None:
    known = num_samples is None or (is_int(num_samples) and num_samples >= 1)
    require(known, 'num_samples', num_samples, 'an integer of at least 1, or None')
    if rerank is not None and num_samples is None:
        raise ValueError('`rerank` needs `num_samples`: it chooses among several images')


def checked_prime(prime: Tensor | None, batch: int, most: int, num_tokens: int, device: torch.device) -> Tensor:
    """Return the tokens (b, k) that an image begins with, perhaps none."""
    if prime is None:
        return torch.zeros(batch, 0, dtype=torch.long, device=device)
    prime = check_ids(prime, 'prime', 0, num_tokens).to(device)
    if prime.shape[0] != batch or prime.shape[1] > most:
        raise ValueError(f'`prime` must have {batch} rows of at most {most} tokens, got shape {tuple(prime.shape)}')
    return prime.long()


class Painter:
    """The model as one of images whose prompt is a text, for `IncrementalModel`:  b n -> logits of the next tokens, b n
    i

    The first ids of a row are those of the text, all others tokens of the image.
    """

    max_seq_len, can_cache_kv_outside_max_seq_len, can_pad_left = 0, False, False

    def __init__(self, model: DALLE) -> None:
        self.model, self.can_cache_kv = model, model.attn_layers.can_cache_kv

    def __call__(
        self,
        ids: Tensor,
        return_intermediates: bool = False,
        cache: Any = None,
        input_not_include_cache: bool = False,
    ) -> Any:
        given = {} if cache is None else dict(cache=cache, input_not_include_cache=True)
        x = self.model.embedded(ids, 0 if cache is None else cache.length)
        out, left = self.model.attn_layers(x, return_hiddens=True, **given)
        logits = self.model.to_logits(out)[..., self.model.text_ids :]
        return (logits, left) if return_intermediates else logits


class DALLE(Configurable):
    """Language model of a text followed by the tokens of an image, with the loss of both; generates images from texts.

        sequence    start token, text (`text_seq_len`), image (`image_grid` rows and columns)
        loss        (CE of the text + w CE of the image) / (1 + w)                     w = `image_loss_weight`

    Text and image tokens have separate embedding tables and output logits: at text positions only text tokens can be
    predicted, at image positions only image tokens. Shorter texts are padded with a separate padding id per position.
    Text positions have one learned vector each, image positions one per row and one per column.

    Ramesh et al. 2021, arXiv:2102.12092
    """

    def __init__(
        self,
        dim: Annotated[int | None, 'width of the stack; that of `attn_layers` if it is passed', size | none] = None,
        depth: Annotated[int | None, 'number of blocks', size | none] = None,
        *,
        num_text_tokens: Annotated[int, 'number of text tokens in the vocabulary', size] = 16384,
        text_seq_len: Annotated[int, 'maximum number of text tokens', size] = 256,
        num_image_tokens: Annotated[int, 'number of image tokens in the vocabulary', size] = 8192,
        image_grid: Annotated[int, 'number of rows and columns of the image, in tokens', size] = 32,
        image_loss_weight: Annotated[float, 'weight of the image loss; that of the text is 1', not_negative] = 7,
        attn: Annotated[
            str,
            "attention: 'dalle' for sparse patterns of rows, columns and squares (`dalle_patterns`)",
            one_of('full', 'dalle'),
        ] = 'full',
        cond_drop_prob: Annotated[
            float, 'probability, in training, of dropping the text (classifier-free guidance)', probability
        ] = 0.0,
        heads: Annotated[int | None, 'number of attention heads; 8 by default', size | none] = None,
        attn_layers: Annotated[AttentionLayers | None, 'custom Decoder', instance_of(AttentionLayers) | none] = None,
        tokenizer: Annotated[
            nn.Module | None, 'frozen image tokenizer, between images and ids', a_tokenizer | none
        ] = None,
    ) -> None:
        super().__init__()
        check_sizes_or_stack(attn_layers, dict(dim=dim, depth=depth), () if heads is None else ('heads',))
        if attn_layers is None:
            sizes: dict[str, Any] = dict(dim=dim, depth=depth, heads=heads or 8)
            pattern = dalle_patterns(sizes['depth'], text_seq_len, image_grid) if attn == 'dalle' else None
            width = max(sizes['dim'] // sizes['heads'], 1)
            attn_layers = Decoder(**sizes, attn_dim_head=width, attn_sparse_pattern=pattern)
        elif attn == 'dalle':
            raise ConfigError(
                "`attn='dalle'` cannot be combined with `attn_layers`: give it "
                '`attn_sparse_pattern=dalle_patterns(...)`'
            )
        if not attn_layers.causal or attn_layers.cross_attend:
            raise ConfigError(f'`attn_layers` must be a Decoder without a context, got {type(attn_layers).__name__}')
        self.attn_layers, dim = attn_layers, attn_layers.dim
        self.num_text_tokens, self.text_seq_len = num_text_tokens, text_seq_len
        self.num_image_tokens, self.image_grid = num_image_tokens, image_grid
        self.image_loss_weight, self.cond_drop_prob = float(image_loss_weight), cond_drop_prob
        self.text_ids = num_text_tokens + text_seq_len  # words, and what fills each place
        self.text_emb = nn.Embedding(self.text_ids + 1, dim)  # the last one begins
        self.image_emb = nn.Embedding(num_image_tokens, dim)
        self.text_pos = nn.Embedding(text_seq_len + 1, dim)
        self.image_row_pos, self.image_col_pos = nn.Embedding(image_grid, dim), nn.Embedding(image_grid, dim)
        self.to_logits = nn.Linear(dim, self.text_ids + num_image_tokens)
        children: Any = self.named_children()
        for name, module in children:
            if name != 'attn_layers':
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.to_logits.bias)
        self.tokenizer: Any = tokenizer

    @property
    def image_len(self) -> int:
        return self.image_grid**2

    # what it reads

    def padded(self, text: Tensor, text_mask: Tensor | None = None) -> Tensor:
        """Return ids of a text (b, m) with padding, after the start token:  (b, 1 + text_seq_len)"""
        text = check_ids(text, 'text', 0, self.num_text_tokens).long()
        b, m = text.shape
        if m > self.text_seq_len:
            raise ValueError(f'`text` got {m} tokens, more than `text_seq_len`, {self.text_seq_len}')
        text_mask = as_mask(text_mask, 'text_mask', b, m, like=text)
        fill = torch.arange(self.num_text_tokens, self.text_ids, device=text.device).expand(b, -1)
        own = fill[:, :m]
        text = text if text_mask is None else torch.where(text_mask, text, own)
        return F.pad(torch.cat((text, fill[:, m:]), dim=1), (1, 0), value=self.text_ids)

    def no_text(self, b: int, device: torch.device) -> Tensor:
        """Return an empty text, as `padded` does."""
        return self.padded(torch.zeros(b, 0, dtype=torch.long, device=device))

    def image_ids(self, image: Tensor) -> Tensor:
        """Return tokens (b, n) of images, given as such or, with a tokenizer, as pixels (b, c, h, w)."""
        if torch.is_tensor(image) and image.is_floating_point():
            if self.tokenizer is None:
                raise ValueError('`image` got floating point numbers, and the model has no `tokenizer`: give ids')
            with torch.no_grad():
                image = self.tokenizer.encode(image)
        image = image.flatten(1) if torch.is_tensor(image) and image.ndim == 3 else image
        image = check_ids(image, 'image', 0, self.num_image_tokens).long()
        if image.shape[1] != self.image_len:
            wanted = f'{self.image_len}, those of a grid of {self.image_grid}'
            raise ValueError(f'`image` must have {wanted} tokens, got {image.shape[1]}')
        return image

    def embedded(self, ids: Tensor, start: int = 0) -> Tensor:
        """Return embeddings of the ids (b, n) of positions from `start` on: first text, then image."""
        first = self.text_seq_len + 1
        stop = start + ids.shape[1]
        parts = []
        if start < first:
            own = ids[:, : first - start]
            parts.append(self.text_emb(own) + self.text_pos.weight[start : start + own.shape[1]])
        if stop > first:
            place = torch.arange(max(start - first, 0), stop - first, device=ids.device)
            at = self.image_row_pos(place // self.image_grid) + self.image_col_pos(place % self.image_grid)
            parts.append(self.image_emb(ids[:, max(first - start, 0) :]) + at)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    keeps_tokens = 'words, what fills up texts, and tokens of images stand in two tables one behind another'

    # what it is called with

    def scores(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of words (b, t, w) and of image tokens (b, n, i), of a text from `padded`."""
        x = self.embedded(torch.cat((text, image[:, :-1]), dim=1))
        logits = self.to_logits(self.attn_layers(x))
        return logits[:, : self.text_seq_len, : self.text_ids], logits[:, self.text_seq_len :, self.text_ids :]

    @checked
    def forward(
        self,
        text: Tensor,
        image: Tensor,
        text_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> DALLELosses:
        """Return the losses of texts and their images.

        text       b m   ids, at most `text_seq_len` of them
        image      b n   ids, row by row; or images (b c h w), if there is a `tokenizer`
        text_mask  b m   True for words, False for what is to be filled up
        num_items_in_batch   weight the losses by the number of tokens of texts and images, fillers among them, over
                         this number, so that batches add up
        raises           ValueError for texts that are too long, other grids, and ids out of range
        """
        text, image = self.padded(text, text_mask), self.image_ids(image)
        if len(text) != len(image):
            raise ValueError(f'`image` got {len(image)} rows, `text` has {len(text)}')
        if self.training and self.cond_drop_prob > 0:
            gone = torch.rand(len(text), 1, dtype=torch.float32, device=text.device) < self.cond_drop_prob
            text = torch.where(gone, self.no_text(len(text), text.device), text)
        with AuxLosses() as aux:
            words, tokens = self.scores(text, image)
        share = share_of_items(torch.cat((text[:, 1:], image), dim=1) >= 0, num_items_in_batch)
        of_text = next_token_loss(words, text[:, 1:], ignore_index=IGNORED) * share
        of_image = next_token_loss(tokens, image, ignore_index=IGNORED) * share
        weight = self.image_loss_weight
        return DALLELosses(aux.added_to((of_text + weight * of_image) / (1 + weight), share), of_text, of_image)

    @checked
    def logits(self, text: Tensor, image: Tensor, text_mask: Tensor | None = None) -> Tensor:
        """Return next-token logits of each position, -inf for impossible ones:  (b, t + n) (words, padding, tokens)"""
        words, tokens = self.scores(self.padded(text, text_mask), self.image_ids(image))
        never = -torch.inf
        words = F.pad(words, (0, self.num_image_tokens), value=never)
        return torch.cat((words, F.pad(tokens, (self.text_ids, 0), value=never)), dim=1)

    @checked
    def generate(
        self,
        text: Tensor,
        text_mask: Tensor | None = None,
        cond_scale: float = 1.0,
        *,
        negative_text: Tensor | None = None,
        prime: Tensor | None = None,
        num_samples: int | None = None,
        rerank: Callable[[Tensor], Tensor] | None = None,
        cache_kv: bool = True,
        **options: Any,
    ) -> Tensor:
        """Generate image tokens from texts. Without gradients, in eval mode.

        text           b m   ids, as in `forward`, with `text_mask`
        cond_scale     0 ..  guidance: logits u + scale (c - u), u those without text, or with `negative_text` (b m)
        prime          b k   first tokens of the images
        num_samples          number of images per text, in a separate axis
        rerank               function from images (b k n) to scores (b k), such as CLIP; only the best image is kept
        cache_kv             use the cache
        options              `temperature`, `filter_logits_fn`, `filter_kwargs`, `generator` and other options for
                             logits of `AutoregressiveWrapper.generate`
        returns        b n   ids, row by row; `decode` turns them into images
        """
        check_samples(num_samples, rerank)
        sizes = dict(vocabulary=self.num_image_tokens, num_logits=self.num_image_tokens)
        refuse_ends(options)
        choice = TokenSampler.taken_from(options, **sizes)
        if options:
            raise ValueError(f'`{next(iter(options))}` is no option of `generate`')
        opening = self.padded(text, text_mask)
        b, device = len(opening), opening.device
        begun = checked_prime(prime, b, self.image_len, self.num_image_tokens, device)
        against = self.against(cond_scale, negative_text, b, device)
        reader = functools.partial(IncrementalModel, Painter(self), {}, cache_kv=cache_kv)
        modules = list(self.modules())
        beside = []
        if against is not None:
            guidance = Guidance(cond_scale, negative_prompts=against)
            beside = [AuxiliaryLogits(reader(), guidance.guided, torch.cat((against, begun), dim=1))]
        count, ids = self.image_len - begun.shape[1], torch.cat((opening, begun), dim=1)
        leading = torch.Size((b,) if num_samples is None else (b, num_samples))
        # Words are no tokens of the image: `text_start`.
        decoding = Decoding.from_prompts(
            reader(), choice, modules, ids, leading, count,
            beside=beside, text_start=opening.shape[1], samples=num_samples or 1,
        )  # fmt: skip
        with eval_modules(modules):
            decoding.finish()
            images = decoding.ids[:, opening.shape[1] :]
            if num_samples is None:
                return images
            return get_best(images.view(b, -1, self.image_len), rerank)

    def against(self, scale: float, negative: Tensor | None, b: int, device: torch.device) -> Tensor | None:
        """Return the text that guidance leads away from, or None without guidance."""
        if negative is not None:
            negative = self.padded(negative)
            if len(negative) != b:
                raise ValueError(f'`negative_text` got {len(negative)} rows, `text` has {b}')
        if scale == 1:
            return None
        if negative is None and self.cond_drop_prob == 0:
            raise ValueError(is_unlearned(scale, 'text'))
        return self.no_text(b, device) if negative is None else negative

    @torch.no_grad()
    def decode(self, ids: Tensor) -> Tensor:
        """Return images (b, c, h, w) for their tokens (b, n), by the tokenizer."""
        if self.tokenizer is None:
            raise ValueError('`decode` needs a model with a `tokenizer`')
        return self.tokenizer.decode(self.image_ids(ids))

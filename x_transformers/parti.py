"""Images as a foreign language: an encoder of texts, and a decoder that writes tokens of images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, as_number, check_ids, checked
from x_transformers.encoder_decoder import XTransformer, refuse_context
from x_transformers.flags import ConfigError, Configurable, not_negative, probability, size
from x_transformers.generation.choice import refuse_ends
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.guidance import is_unlearned
from x_transformers.keywords import PartiKeywords, Unpack
from x_transformers.modalities.dalle import check_samples, checked_prime, get_best
from x_transformers.training.items import share_of_items
from x_transformers.training.token_loss import Terms, mean_token_loss

__all__ = ['Parti']


class Parti(Configurable):
    """Parti: text to image tokens, with classifier-free guidance:  ids (b, m), ids (b, n) -> loss

    An `XTransformer` whose decoder generates an image row by row. In training, the text of some images is dropped:
    their context is the learned `null_text` instead of the encoder output.

    Yu et al. 2022, arXiv:2206.10789
    """

    def __init__(
        self,
        dim: Annotated[int, 'width of both stacks', size],
        enc_depth: Annotated[int, 'number of blocks of the encoder', size],
        dec_depth: Annotated[int, 'number of blocks of the decoder', size],
        text_tokens: Annotated[int, 'number of text tokens in the vocabulary', size],
        text_len: Annotated[int, 'maximum number of text tokens', size] = 128,
        image_tokens: Annotated[int, 'number of image tokens in the vocabulary', size] = 8192,
        grid: Annotated[int, 'number of rows and columns of the image, in tokens', size] = 32,
        cond_drop_prob: Annotated[float, 'probability of dropping the text in training (guidance)', probability] = 0.1,
        guidance: Annotated[float, 'default `cond_scale` of `generate` (guidance strength)', not_negative] = 1.0,
        **flags: Unpack[PartiKeywords],
    ) -> None:
        """`flags` begin with `enc_` or `dec_`, as those of XTransformer."""
        super().__init__()
        if cond_drop_prob == 0 and guidance != 1:
            raise ConfigError(f'`guidance` must be 1 with a `cond_drop_prob` of 0, got {guidance}')
        more: dict[str, Any] = {'dec_axial_abs_pos_emb': (grid, grid), **flags}
        model = XTransformer(
            dim=dim, enc_depth=enc_depth, enc_num_tokens=text_tokens, enc_max_seq_len=text_len, dec_depth=dec_depth,
            dec_num_tokens=image_tokens + 1, dec_logits_dim=image_tokens, dec_max_seq_len=grid**2, **more,
        )  # fmt: skip
        self.encoder, self.decoder = model.encoder, model.decoder
        self.text_len, self.image_tokens, self.grid = text_len, image_tokens, grid
        self.cond_drop_prob, self.guidance = cond_drop_prob, float(guidance)
        self.null_text = nn.Parameter(torch.randn(text_len, self.encoder.dim) * 0.02)

    keeps_tokens = 'the last token of its decoder begins images'

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        return {**XTransformer.accepted(), **cls.arguments()}

    @property
    def image_len(self) -> int:
        return self.grid**2

    def words(self, text: Tensor, name: str) -> Tensor:
        """Return the ids of a text, checked."""
        text = check_ids(text, name, 1, self.encoder.num_tokens)
        if text.shape[1] > self.text_len:
            raise ValueError(f'`{name}` got {text.shape[1]} tokens, more than `text_len`, {self.text_len}')
        return text

    def encode(self, text: Tensor, text_mask: Tensor | None) -> dict[str, Tensor]:
        """Return the context of the decoder, as long as the longest text."""
        b, m = self.words(text, 'text').shape
        text_mask = as_mask(text_mask, 'text_mask', b, m, like=text)
        context = F.pad(self.encoder(text, mask=text_mask), (0, 0, 0, self.text_len - m))
        token_mask = torch.ones(b, m, dtype=torch.bool, device=text.device) if text_mask is None else text_mask
        return dict(context=context, context_mask=F.pad(token_mask, (0, self.text_len - m), value=False))

    @checked
    def forward(
        self,
        text: Tensor,
        image: Tensor,
        text_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean cross entropy of images, given their texts.

        text       b m   ids, at most `text_len` of them
        image      b n   ids, row by row
        text_mask  b m   True except for padding
        num_items_in_batch   divide the sum of the losses by this number, so that batches add up
        raises           ValueError for texts that are too long, other grids, and ids out of range
        """
        image = image.flatten(1) if torch.is_tensor(image) and image.ndim == 3 else image
        image = check_ids(image, 'image', 0, self.image_tokens).long()
        if image.shape[1] != self.image_len:
            raise ValueError(f'`image` must have {self.image_len} tokens, got {image.shape[1]}')
        if len(image) != len(text):
            raise ValueError(f'`image` got {len(image)} rows, `text` has {len(text)}')
        with AuxLosses() as aux:
            given = self.encode(text, text_mask)
            logits = self.decoder.net(F.pad(image[:, :-1], (1, 0), value=self.image_tokens), **self.dropped(given))
        terms = Terms(label_smoothing=self.decoder.label_smoothing, num_items=num_items_in_batch)
        share = share_of_items(image >= 0, num_items_in_batch)
        return aux.added_to(mean_token_loss(logits, image, terms), share)

    def dropped(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace the context of some sequences by `null_text`, in training."""
        if not self.training or self.cond_drop_prob == 0:
            return given
        context = given['context']
        gone = torch.rand(len(context), 1, dtype=torch.float32, device=context.device) < self.cond_drop_prob
        context = torch.where(gone.unsqueeze(-1), self.null_text.to(context.dtype), context)
        return dict(context=context, context_mask=given['context_mask'] | gone)

    @checked
    def generate(
        self,
        text: Tensor,
        text_mask: Tensor | None = None,
        cond_scale: float | None = None,
        *,
        negative_text: Tensor | None = None,
        prime: Tensor | None = None,
        num_samples: int | None = None,
        rerank: Callable[[Tensor], Tensor] | None = None,
        **options: Any,
    ) -> Tensor:
        """Generate tokens of images from texts. Without gradients, in eval mode. The encoder runs once.

        text           b m   ids, as in `forward`, with `text_mask`
        cond_scale     0 ..  guidance: logits u + scale (c - u), u those of `null_text`, or of `negative_text` (b m);
                             that of the model if None
        prime          b k   tokens that the images begin with
        num_samples          so many images of each text, in an axis of their own
        rerank               from them (b k n) to scores (b k), and only the best ones are kept
        options              those of `AutoregressiveWrapper.generate`
        returns        b n   ids, row after row
        """
        check_samples(num_samples, rerank)
        begun, start, count = self.read_text(text, text_mask, cond_scale, negative_text, prime, options)
        made = self.decoder.generate(start, count, num_samples=num_samples, **options)
        if num_samples is None:
            return torch.cat((begun, made), dim=1)
        whole = torch.cat((begun.unsqueeze(1).expand(-1, num_samples, -1), made), dim=-1)
        return get_best(whole, rerank)

    @checked
    def stream(
        self,
        text: Tensor,
        text_mask: Tensor | None = None,
        cond_scale: float | None = None,
        *,
        negative_text: Tensor | None = None,
        prime: Tensor | None = None,
        **options: Any,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate` behind `prime`, with the same arguments, one step at a time."""
        _, start, count = self.read_text(text, text_mask, cond_scale, negative_text, prime, options)
        return self.decoder.stream(start, count, **options)

    @checked
    def beam_search(
        self,
        text: Tensor,
        beams: int = 4,
        text_mask: Tensor | None = None,
        cond_scale: float | None = None,
        *,
        negative_text: Tensor | None = None,
        prime: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Search for the most probable images of texts, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`; the tokens are those behind `prime` if all beams are returned."""
        begun, start, count = self.read_text(text, text_mask, cond_scale, negative_text, prime, options)
        made = self.decoder.beam_search(start, count, beams, **options)
        return torch.cat((begun, made), dim=1) if torch.is_tensor(made) else made

    def read_text(
        self, text: Tensor, text_mask: Any, cond_scale: Any, negative: Any, prime: Any, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor, int]:
        """Return the first tokens of the images, the prompts of the decoder, and the number of new tokens. What the
        decoder reads beside them joins `options`."""
        refuse_context(options)
        refuse_ends(options)
        scale = self.guidance if cond_scale is None else as_number(cond_scale)
        with eval_modules(list(self.modules())):
            options |= self.encode(text, text_mask)
            b, device = len(options['context']), options['context'].device
            begun = checked_prime(prime, b, self.image_len, self.image_tokens, device)
            if scale != 1:
                options |= dict(cond_scale=scale, negative_context=self.against(scale, negative))
        return begun, F.pad(begun, (1, 0), value=self.image_tokens), self.image_len - begun.shape[1]

    def against(self, scale: float, negative: Tensor | None) -> Tensor:
        if negative is not None:
            return self.encoder(self.words(negative, 'negative_text'))
        if self.cond_drop_prob == 0:
            raise ValueError(is_unlearned(scale, 'text'))
        return self.null_text.unsqueeze(0)

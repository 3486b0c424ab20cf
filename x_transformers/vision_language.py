"""Images in the place of words: features of an image model, projected to the width of the words of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.checks import as_mask, as_number, check_ids, checked, mask_from_lengths
from x_transformers.core.nets import refuse_own
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    count,
    format_value,
    instance_of,
    integer,
    is_int,
    none,
    one_of,
)
from x_transformers.flags.checks import Maybe
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import new_tokens_of, padded_rows, shift_right

__all__ = ['Spliced', 'VisionLanguageWrapper']

frozen = Check(
    "some of 'vision' and 'decoder'",
    lambda value: isinstance(value, (tuple, list)) and all(one in ('vision', 'decoder') for one in value),
)
SET_BY_WRAPPER = {
    'transform_token_embeds': ': images are put there',
    'prepend_embeds': ': put a placeholder in front',
    'labels': ', give them by name',
    'prompt_lens': ', give prompts as a list',
}


class Spliced(NamedTuple):
    """Rows of ids with as many placeholders as their images have vectors.

    ids       b n     padded on the right
    mask      b n     which are real
    images    b n     which are placeholders
    vectors   b n d   what stands there, 0 elsewhere
    labels    b n     of the ids that came, `ignore_index` of the decoder for placeholders and padding
    """

    ids: Tensor
    mask: Tensor
    images: Tensor
    vectors: Tensor
    labels: Tensor


class VisionLanguageWrapper(Configurable):
    """Vision-language model (LLaVA): image vectors replace placeholders in the text of a language model.

        v = projector(hidden state of the image model, of each patch)          p vectors per image
        each id `image_token_id` becomes p positions with these vectors as embeddings; the loss is that of the text

    At first only the projector is trained; `unfreeze` makes the other parts trainable.

    Liu et al. 2023, arXiv:2304.08485 (LLaVA); two layers: arXiv:2310.03744
    """

    decoder: Any

    def __init__(
        self,
        vision: Annotated[nn.Module, 'ViTransformerWrapper, or images to vectors (b, p, d)', instance_of(nn.Module)],
        decoder: Annotated[nn.Module, 'AutoregressiveWrapper of a language model', instance_of(AutoregressiveWrapper)],
        image_token_id: Annotated[int, 'id of the image placeholder', count],
        projector: Annotated[
            str | None, 'projector of image vectors: a layer, two with a GELU, or none', one_of('linear', 'mlp') | none
        ] = 'linear',
        feature_layer: Annotated[
            int | None, 'index of the image block to use, -1 for the last; None: the output of `vision`', integer | none
        ] = -2,
        drop_prefix: Annotated[bool, 'remove class tokens', boolean] = True,
        freeze: Annotated[Sequence[str], 'parts that are frozen', frozen] = ('vision', 'decoder'),
    ) -> None:
        super().__init__()
        net: Any = decoder.net
        if image_token_id >= net.num_tokens:
            raise ConfigError(f'`image_token_id` must be less than {net.num_tokens}, got {image_token_id}')
        stack: Any = getattr(vision, 'attn_layers', None)
        if feature_layer is not None:
            if not hasattr(vision, 'num_prefix'):
                raise ConfigError(f'`feature_layer` needs a ViTransformerWrapper, `vision` is {type(vision).__name__}')
            blocks = len(stack.layers_execute_order) // stack.len_default_block
            if not -blocks - 1 <= feature_layer <= blocks:
                raise ConfigError(f'`feature_layer` got {feature_layer}, there are {blocks} blocks')
        width, wanted = getattr(stack, 'dim', None), net.emb_dim
        if width is None:
            raise ConfigError(f'`vision` must have a stack, `attn_layers`, got {type(vision).__name__}')
        if projector is None and width != wanted:
            raise ConfigError(f'`projector` got None, but images have {width} features and words {wanted}')
        self.vision, self.decoder, self.image_token_id = vision, decoder, image_token_id
        self.feature_layer, self.drop_prefix = feature_layer, bool(drop_prefix)
        linear = nn.Linear(width, wanted)
        layers = {'linear': lambda: linear, 'mlp': lambda: nn.Sequential(linear, nn.GELU(), nn.Linear(wanted, wanted))}
        self.projector = nn.Identity() if projector is None else layers[projector]()
        for module in self.projector.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        for name in freeze:
            getattr(self, name).requires_grad_(False)

    def unfreeze(self, *names: str) -> VisionLanguageWrapper:
        """Let 'vision', 'decoder' or both learn.  Raises ValueError for another name."""
        for name in names:
            if name not in ('vision', 'decoder'):
                raise ValueError(f"`names` must be 'vision' or 'decoder', got {format_value(name)}")
            getattr(self, name).requires_grad_(True)
        return self

    def features(self, images: Any) -> Tensor:
        """Map images (k, c, h, w) to vectors in the width of words, (k, p, d)."""
        if self.feature_layer is None:
            found = self.vision(images, return_embeddings=True)
        else:
            found = self.vision(images, return_hiddens=True)[self.feature_layer]
        if self.drop_prefix:
            found = found[:, getattr(self.vision, 'num_prefix', 0) :]
        return self.projector(found)

    def splice(
        self, ids: Tensor, images: Maybe[Tensor], mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Spliced:
        """Combine ids with their images (k, c, h, w), in the order of the placeholders, sequence by sequence.

        raises   ValueError if there are not as many images as placeholders
        """
        ids = check_ids(ids, num_tokens=self.decoder.net.num_tokens, least=1)
        token_mask = as_mask(mask, 'mask', *ids.shape, like=ids)
        token_mask = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        if labels is not None and labels.shape != ids.shape:
            raise ValueError(f'`labels` must have shape {tuple(ids.shape)}, got {tuple(labels.shape)}')
        wanted = ids if labels is None else labels
        here = (ids == self.image_token_id) & token_mask
        given = 0 if images is None else len(images)
        if int(here.sum()) != given:
            raise ValueError(f'`images` got {given}, there are {int(here.sum())} placeholders ({self.image_token_id})')
        width: Any = self.decoder.net.emb_dim
        found = self.features(images) if given else self.decoder.net.token_emb(ids[:1, :1]).new_zeros(0, 1, width)
        times = torch.where(here, found.shape[1], 1) * token_mask
        lengths = times.sum(dim=-1)
        real = mask_from_lengths(lengths, int(lengths.max()) if len(ids) else ids.shape[1])

        def repeat_entries(t: Tensor, fill: int) -> Tensor:
            """Repeat each entry (b, n) as many times as its token, and pad the rows on the right."""
            return t.new_full(real.shape, fill).masked_scatter(real, t.flatten().repeat_interleave(times.flatten()))

        ignored: Any = self.decoder.ignore_index
        at = repeat_entries(here, False)
        labels = repeat_entries(wanted.to(ids.dtype), ignored).masked_fill(at, ignored)
        vectors = found.new_zeros(*at.shape, width).masked_scatter(at.unsqueeze(-1), found.flatten(0, 1))
        return Spliced(repeat_entries(ids, 0), real, at, vectors, labels)

    @checked
    def forward(
        self,
        ids: Tensor,
        images: Tensor | None = None,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        return_outputs: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the mean loss of the text, in nats.

        ids      b n       with `image_token_id` as placeholders of images
        images   k c h w   in the order of the placeholders, sequence after sequence
        labels   b n       targets, if not `ids`; -100 where there is none, such as in questions
        mask     b n       True except for padding
        kwargs             to the decoder
        returns            scalar; with `return_outputs` also its outputs
        raises             ValueError for another number of images, or inputs of another shape
        """
        refuse_own(kwargs, 'the loss', SET_BY_WRAPPER)
        made = self.splice(ids, images, mask, labels)
        spliced = self.spliced(made.images, made.vectors, whole=True)
        return self.decoder(
            made.ids, return_outputs, labels=made.labels, mask=made.mask, transform_token_embeds=spliced, **kwargs
        )

    @staticmethod
    def spliced(images: Tensor, vectors: Tensor, whole: bool) -> Callable[[Tensor], Tensor]:
        """Return a function that puts vectors into embeddings (b, m, d) of the first tokens. A single later token is
        unchanged, unless it is the `whole` sequence or its beginning."""

        def put(x: Tensor) -> Tensor:
            n = images.shape[1]
            if not whole and x.shape[1] < n:
                return x
            m, times = min(x.shape[1], n), max(len(x) // max(len(images), 1), 1)  # Each prompt may stand in many rows.
            at, own = (t[:, :m].repeat_interleave(times, dim=0) if times > 1 else t[:, :m] for t in (images, vectors))
            new = torch.where(at.unsqueeze(-1), own.to(x.dtype), x[:, :m])
            return new if x.shape[1] == m else torch.cat((new, x[:, m:]), dim=1)

        return put

    @checked
    def generate(
        self, prompts: Prompts, seq_len: int, images: Tensor | None = None, mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Continue prompts with images by `seq_len` tokens, with the options of `AutoregressiveWrapper.generate`.

        prompts   b n       with `image_token_id` as placeholders of images, padded on the right, with `mask`, or
                            lists of unequal length
        images    k c h w
        returns   b s       without `image_token_id`
        raises    ValueError also if prompt and answer are longer than `max_seq_len`
        """
        return self.decoder.generate(*self.read_images(prompts, seq_len, images, mask, options), **options)

    @checked
    def stream(
        self, prompts: Prompts, seq_len: int, images: Tensor | None = None, mask: Tensor | None = None, **options: Any
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same arguments, one step at a time."""
        return self.decoder.stream(*self.read_images(prompts, seq_len, images, mask, options), **options)

    @checked
    def beam_search(
        self,
        prompts: Prompts,
        seq_len: int,
        beams: int = 4,
        images: Tensor | None = None,
        mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Continue prompts with images with beam search, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        rows, seq_len = self.read_images(prompts, seq_len, images, mask, options)
        return self.decoder.beam_search(rows, seq_len, beams, **options)

    def read_images(
        self, prompts: Any, seq_len: Any, images: Tensor | None, mask: Any, options: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Return prompts with a place for each vector of their images, and the number of new tokens. What puts the
        vectors there joins `options`."""
        refuse_own({name: options[name] for name in options if name in SET_BY_WRAPPER}, 'generate', SET_BY_WRAPPER)
        prompts, token_mask = padded_rows(prompts, 'prompts', self.decoder.pad_value, next(self.parameters()).device)
        mask, seq_len = token_mask if mask is None else mask, as_number(seq_len)
        with torch.no_grad():
            made = self.splice(prompts, images, mask)
        n, longest = made.ids.shape[1], self.decoder.net.max_seq_len
        seq_len = new_tokens_of(seq_len, n)
        if longest and is_int(seq_len) and n + seq_len > longest:
            raise ValueError(
                f'`seq_len` got {seq_len} behind {n} places of prompts with images, more than `max_seq_len`, {longest}'
            )
        if n == 1 and bool(made.images.any()):
            raise ValueError('`prompts` got one place, an image: put a token in front')
        lengths = made.mask.sum(dim=-1)
        rows = [row[:length] for row, length in zip(made.ids, lengths.tolist(), strict=True)]
        # Generation pads on the left.
        put = self.spliced(*(shift_right(t, n - lengths) for t in (made.images, made.vectors)), whole=False)
        banned = options.pop('banned_tokens', None)
        banned = [self.image_token_id, *(() if banned is None else torch.as_tensor(banned).flatten().tolist())]
        options |= dict(transform_token_embeds=put, banned_tokens=banned)
        return rows or made.ids, seq_len

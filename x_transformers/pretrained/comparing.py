"""The same inputs for a model of `transformers` and for ours, drawn at random, and what both say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.modalities.vit import sides

LENGTH = 16  # of texts
SAID = ('logits_per_image', 'logits', 'image_embeds', 'text_embeds', 'pooler_output', 'last_hidden_state')


class Draw:
    """Inputs that are the same in every run."""

    def __init__(self, eos: int | None) -> None:
        self.generator, self.eos = torch.Generator().manual_seed(0), eos

    def ids(self, net: Any) -> Tensor:
        """Of a model, b n; the last one ends a text."""
        length = min(LENGTH, net.max_seq_len or LENGTH)
        ids = torch.randint(3, net.num_tokens, (2, length), generator=self.generator)
        if self.eos is not None and self.eos < net.num_tokens:  # by default it may be that of a larger vocabulary
            ids = ids.masked_fill(ids == self.eos, 3)
            ids[:, -1] = self.eos
        return ids

    def real(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def images(self, net: Any) -> Tensor:
        return self.real(2, net.channels, *sides(net.image_size))


def said_by(out: Any, has_pooler: bool) -> tuple[str, Tensor]:
    """The first of their outputs that says most; a pooler that the file does not have says nothing."""
    names = [name for name in SAID if name != 'pooler_output' or has_pooler]
    name = next(name for name in names if out.get(name) is not None)
    return name, out[name]


def of_towers(ours: Any, theirs: nn.Module, draw: Draw, has_pooler: bool) -> tuple[Tensor, Tensor]:
    images, ids = draw.images(ours.image), draw.ids(ours.text)
    return theirs(pixel_values=images, input_ids=ids).logits_per_image, ours(images, ids, return_logits=True)


def of_images(ours: nn.Module, theirs: nn.Module, draw: Draw, has_pooler: bool) -> tuple[Tensor, Tensor]:
    images = draw.images(ours)
    name, wanted = said_by(theirs(pixel_values=images), has_pooler)
    return wanted, ours(images, return_embeddings=name == 'last_hidden_state')


def of_pairs(ours: Any, theirs: Any, draw: Draw, has_pooler: bool) -> tuple[Tensor, Tensor]:
    """Of texts that are made from texts, or from sound."""
    net: Any = ours.decoder.net
    if hasattr(ours.encoder, 'num_tokens'):
        source = draw.ids(ours.encoder)
        given = dict(input_ids=source)
    else:
        source = draw.real(2, 2 * ours.encoder.max_seq_len, theirs.config.num_mel_bins)
        given = dict(input_features=source.mT)
    target = draw.ids(net)
    return theirs(**given, decoder_input_ids=target).logits, net(target, context=ours.encoder(source))


def of_texts(ours: nn.Module, theirs: nn.Module, draw: Draw, has_pooler: bool) -> tuple[Tensor, Tensor]:
    inner = getattr(ours, 'net', ours)
    ids = draw.ids(getattr(inner, 'encoder', inner))
    name, wanted = said_by(theirs(input_ids=ids), has_pooler)
    pooled = name in ('text_embeds', 'pooler_output')
    return wanted, ours(ids, return_pooled=True)[1] if pooled else ours(ids)


KINDS: dict[str, Callable[[nn.Module, nn.Module, Draw, bool], tuple[Tensor, Tensor]]] = {
    'TwoTowers': of_towers,
    'ViTransformerWrapper': of_images,
    'XTransformer': of_pairs,
    'EncoderDecoder': of_pairs,
}


@torch.no_grad()
def compared(ours: nn.Module, theirs: Any) -> tuple[float, float]:
    """The largest difference between what both say of the same inputs, and the size of what they say."""
    eos = getattr(theirs.config.get_text_config(), 'eos_token_id', None)
    eos = next(iter(eos)) if isinstance(eos, Iterable) else eos
    has_pooler = getattr(ours.pretrained, 'found', {}).get('has_pooler', True)
    wanted, found = KINDS.get(type(ours).__name__, of_texts)(ours, theirs, Draw(eos), has_pooler)
    return float((wanted - found).abs().max()), float(wanted.abs().max())

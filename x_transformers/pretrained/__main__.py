"""python -m x_transformers.pretrained convert | inspect | check | supported"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers import pretrained
from x_transformers.core.files import import_optional
from x_transformers.flags import ConfigError
from x_transformers.modalities.vit import sides
from x_transformers.pretrained.engine import build
from x_transformers.pretrained.folders import locate, read_config, resolve
from x_transformers.pretrained.specs import OWN

BAR = 1e-3  # Limit of the largest difference in float32, relative to the size of the outputs.


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m x_transformers.pretrained', description='Weights in and out',
        epilog='exit codes: 0, done; 1, `check` found a difference; 2, an error',
    )  # fmt: skip
    commands = parser.add_subparsers(dest='command', required=True)
    convert = commands.add_parser('convert', help='read a model, and write it in another form')
    convert.add_argument('source', help='a folder or a repository id')
    convert.add_argument('target', type=Path)
    convert.add_argument('--format', choices=('own', 'hf'), default='own')
    convert.add_argument('--type', help='model_type to write with --format hf, of a model that was not read as one')
    convert.add_argument('--dtype', default='auto', help='float32, bfloat16, ...; by default that of the config')
    convert.add_argument('--shard', default='5GB', help='largest size of a file')
    for name, what in (
        ('inspect', 'type and keywords of a model, and what of it is refused; reads no weights'),
        ('check', 'compare logits with those of `transformers`; exit code 1 if they differ'),
    ):
        commands.add_parser(name, help=what).add_argument('source', help='a folder or a repository id')
    commands.add_parser('supported', help='types that can be read')
    return parser


def convert(options: argparse.Namespace) -> int:
    model, info = pretrained.load(options.source, dtype=options.dtype, return_info=True)
    source = locate(resolve(options.source)).folder
    pretrained.save(
        model, options.target, format=options.format, hf_type=options.type, max_shard_size=options.shard,
        tokenizer_from=source,
    )  # fmt: skip
    print(f'{info.type}, {sum(p.numel() for p in model.parameters()):,} parameters -> {options.target}')
    return 0


def inspect(options: argparse.Namespace) -> int:
    config = read_config(locate(resolve(options.source)).folder)
    print(f'type {config.get("model_type")}')
    call = pretrained.keywords(config)
    print(json.dumps(call, indent=2))
    build(call)  # Building checks the values of the fields.
    return 0


def check(options: argparse.Namespace) -> int:
    transformers = import_optional('transformers', 'to compare with it', 'test-pretrained')
    folder = locate(resolve(options.source)).folder
    ours, info = pretrained.load(folder, dtype=torch.float32, return_info=True)
    architecture = (info.config.get('architectures') or ['AutoModel'])[0]
    kind = getattr(transformers, architecture, None)
    if info.type == OWN or kind is None:
        raise ConfigError(f'a {info.type} checkpoint of `architectures` {architecture} is none of `transformers`')
    worst, size = compare_outputs(ours, kind.from_pretrained(folder, dtype=torch.float32).eval())
    print(f'{info.type}: outputs of size {size:.3g}, largest difference {worst:.2g}')
    return int(not worst <= BAR * max(size, 1.0))  # NaN counts as a difference.


def list_supported(options: argparse.Namespace) -> int:
    for spec in pretrained.supported():
        print(f'{spec.type:24}{spec.wrapper:24}{", ".join(spec.architectures)}')
    return 0


def main(given: list[str] | None = None) -> int:
    options = build_parser().parse_args(given)
    run: Any = {'convert': convert, 'inspect': inspect, 'check': check, 'supported': list_supported}[options.command]
    try:
        return run(options)
    except (OSError, ValueError, ImportError) as error:
        print(f'error: {error}', file=sys.stderr)
    except Exception:  # Python would exit with 1, which means a difference.
        traceback.print_exc()
    return 2


LENGTH = 16  # Length of texts.
SAID = ('logits_per_image', 'logits', 'image_embeds', 'text_embeds', 'pooler_output', 'last_hidden_state')


class InputSampler:
    """Random inputs that are equal in every run."""

    def __init__(self, eos: int | None) -> None:
        self.generator, self.eos = torch.Generator().manual_seed(0), eos

    def ids(self, net: Any) -> Tensor:
        """Return token ids (b, n) for a model. The last one ends a text."""
        length = min(LENGTH, net.max_seq_len or LENGTH)
        ids = torch.randint(3, net.num_tokens, (2, length), generator=self.generator)
        if self.eos is not None and self.eos < net.num_tokens:  # The default may belong to a larger vocabulary.
            ids = ids.masked_fill(ids == self.eos, 3)
            ids[:, -1] = self.eos
        return ids

    def draw_normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def images(self, net: Any) -> Tensor:
        return self.draw_normal(2, net.channels, *sides(net.image_size))


def select_output(out: Any, has_pooler: bool) -> tuple[str, Tensor]:
    """Return the name and the tensor of the output to compare. A pooler without weights in the file is skipped."""
    names = [name for name in SAID if name != 'pooler_output' or has_pooler]
    name = next(name for name in names if out.get(name) is not None)
    return name, out[name]


def run_towers(ours: Any, theirs: nn.Module, draw: InputSampler, has_pooler: bool) -> tuple[Tensor, Tensor]:
    images, ids = draw.images(ours.image), draw.ids(ours.text)
    return theirs(pixel_values=images, input_ids=ids).logits_per_image, ours(images, ids, return_logits=True)


def run_images(ours: nn.Module, theirs: nn.Module, draw: InputSampler, has_pooler: bool) -> tuple[Tensor, Tensor]:
    images = draw.images(ours)
    name, wanted = select_output(theirs(pixel_values=images), has_pooler)
    return wanted, ours(images, return_embeddings=name == 'last_hidden_state')


def run_encoder_decoder(ours: Any, theirs: Any, draw: InputSampler, has_pooler: bool) -> tuple[Tensor, Tensor]:
    """Compare logits of models whose source is a text or a sound."""
    net: Any = ours.decoder.net
    if hasattr(ours.encoder, 'num_tokens'):
        source = draw.ids(ours.encoder)
        given = dict(input_ids=source)
    else:
        source = draw.draw_normal(2, 2 * ours.encoder.max_seq_len, theirs.config.num_mel_bins)
        given = dict(input_features=source.mT)
    target = draw.ids(net)
    return theirs(**given, decoder_input_ids=target).logits, net(target, context=ours.encoder(source))


def run_texts(ours: nn.Module, theirs: nn.Module, draw: InputSampler, has_pooler: bool) -> tuple[Tensor, Tensor]:
    inner = getattr(ours, 'net', ours)
    ids = draw.ids(getattr(inner, 'encoder', inner))
    name, wanted = select_output(theirs(input_ids=ids), has_pooler)
    pooled = name in ('text_embeds', 'pooler_output')
    return wanted, ours(ids, return_pooled=True)[1] if pooled else ours(ids)


KINDS: dict[str, Callable[[nn.Module, nn.Module, InputSampler, bool], tuple[Tensor, Tensor]]] = {
    'TwoTowers': run_towers,
    'ViTransformerWrapper': run_images,
    'XTransformer': run_encoder_decoder,
    'EncoderDecoder': run_encoder_decoder,
}


@torch.no_grad()
def compare_outputs(ours: nn.Module, theirs: Any) -> tuple[float, float]:
    """Return the largest difference between the outputs of both models, and the size of the outputs."""
    eos = getattr(theirs.config.get_text_config(), 'eos_token_id', None)
    eos = next(iter(eos)) if isinstance(eos, Iterable) else eos
    has_pooler = getattr(ours.pretrained, 'found', {}).get('has_pooler', True)
    wanted, found = KINDS.get(type(ours).__name__, run_texts)(ours, theirs, InputSampler(eos), has_pooler)
    return float((wanted - found).abs().max()), float(wanted.abs().max())


if __name__ == '__main__':
    sys.exit(main())

"""python -m x_transformers.pretrained convert | inspect | check | supported"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from x_transformers import pretrained
from x_transformers.core.optional import needed
from x_transformers.flags import ConfigError
from x_transformers.pretrained.comparing import compared
from x_transformers.pretrained.engine import made
from x_transformers.pretrained.folders import locate, read_config, resolve
from x_transformers.pretrained.rows import OWN

BAR = 1e-3  # of the largest difference in float32, of logits whose size is about one


def arguments() -> argparse.ArgumentParser:
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
    made(call)  # which refuses what the fields hold, where they are known
    return 0


def check(options: argparse.Namespace) -> int:
    transformers = needed('transformers', 'to compare with it', 'test-pretrained')
    folder = locate(resolve(options.source)).folder
    ours, info = pretrained.load(folder, dtype=torch.float32, return_info=True)
    architecture = (info.config.get('architectures') or ['AutoModel'])[0]
    kind = getattr(transformers, architecture, None)
    if info.type == OWN or kind is None:
        raise ConfigError(f'a {info.type} checkpoint of `architectures` {architecture} is none of `transformers`')
    worst, size = compared(ours, kind.from_pretrained(folder, dtype=torch.float32).eval())
    print(f'{info.type}: outputs of size {size:.3g}, largest difference {worst:.2g}')
    return int(not worst <= BAR * max(size, 1.0))  # NaN is a difference


def supported(options: argparse.Namespace) -> int:
    for row in pretrained.supported():
        print(f'{row.type:24}{row.wrapper:24}{", ".join(row.architectures)}')
    return 0


def main(given: list[str] | None = None) -> int:
    options = arguments().parse_args(given)
    run: Any = {'convert': convert, 'inspect': inspect, 'check': check, 'supported': supported}[options.command]
    try:
        return run(options)
    except (OSError, ValueError, ImportError) as error:
        print(f'error: {error}', file=sys.stderr)
    except Exception:  # 1, with which Python would end, is a difference
        traceback.print_exc()
    return 2


if __name__ == '__main__':
    sys.exit(main())

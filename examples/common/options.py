"""Options of a command line that are fields of a configuration, and how a script ends."""

from __future__ import annotations

import argparse
import ast
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

PRECISIONS = ('auto', 'float32', 'bfloat16', 'float16')


class Stop(Exception):
    """End the script with a message and an exit code, by default the one for wishes that cannot be met."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def bounded(kind: type, low: float, high: float = sys.float_info.max, above: bool = False) -> Callable[[str], Any]:
    """A parser of numbers from `low` (left out with `above`) up to `high`."""
    words = f'{"an integer" if kind is int else "a number"} {"above" if above else "of at least"} {low}'
    words += f' and at most {high}' if high < sys.float_info.max else ''

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high or (above and value == low):
            raise argparse.ArgumentTypeError(f'got {text!r}, it must be {words}')
        return value

    return parse


def some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError('is empty')
    return text


def option(default: Any, kind: Callable[[str], Any], text: str, **more: Any) -> Any:
    """A field of Config that is an option of the command line as well; of kind `bool`, one without a value."""
    more |= dict(action='store_true') if kind is bool else dict(type=kind)
    return field(default=default, metadata=dict(help=f'{text} ({default})' if default else text, **more))


size, positive, not_negative = bounded(int, 1), bounded(float, 0, above=True), bounded(float, 0)
seed = bounded(int, 0, 2**63 - 1)


@dataclass(frozen=True)
class Config:
    """All that decides the numbers of a run. A checkpoint is resumed with the same values."""

    seed: int = option(0, seed, 'of weights, batches and samples (0)')
    steps: int = option(1500, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(4, size, 'sequences per step')
    lr: float = option(2e-3, positive, 'highest learning rate')
    weight_decay: float = option(0.1, not_negative, 'of matrices')
    clip: float = option(1.0, positive, 'largest norm of the gradient')
    precision: str = option('auto', str, 'bfloat16 on CUDA devices that have it, else float32', choices=PRECISIONS)
    flags: dict[str, str] = field(default_factory=dict)

    # what --resume may be given anew: the data itself is compared
    compared_by_content = ('data', 'max_bytes', 'tokenizer')


def run_parser(name: str, text: str, config: type[Config], interval: int, sets: bool = True) -> argparse.ArgumentParser:
    """A parser with the options of a Config and those of every run; with `sets`, of --set as well."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    for f in fields(config):
        if f.metadata:
            # without a default, so that --resume knows what was said
            add(f'--{f.name.replace("_", "-")}', default=argparse.SUPPRESS, **f.metadata)
    if sets:
        help_of_set = 'a flag of the model, as often as needed; python -m x_transformers.flags lists them'
        add('--set', dest='flags', action='append', default=[], metavar='NAME=VALUE', help=help_of_set)
    add('--out', type=some_text, metavar='DIR', help=f'folder of the run (runs/{name}-001, or the next free number)')
    add('--resume', action='store_true', help='go on from the newest checkpoint in --out')
    add('--interval', type=size, default=interval, help=f'validate and save every so many steps ({interval})')
    add('--save-minutes', type=positive, default=5.0, help='save if that long ago, between intervals too (5.0)')
    add('--tensorboard', action='store_true', help='write the curves for TensorBoard too, to tensorboard/ in --out')
    add('--device', default='auto', help='cpu, cuda, cuda:1, mps .. (cuda if there is one, else cpu)')
    return parser


def parse(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    args = parser.parse_args(argv)
    if wrong := [text for text in getattr(args, 'flags', []) if '=' not in text]:
        parser.error(f'--set got {wrong[0]!r}, it must be NAME=VALUE')
    if args.resume and args.out is None:
        parser.error('--resume needs --out, the folder of the run')
    return args


def route_flags(flags: dict[str, str], models: tuple[type, ...], own: set[str]) -> tuple[dict[str, Any], ...]:
    """What --set gave, as keywords of each of `models`, by the flag table. `own` are set by the script."""
    routed: tuple[dict[str, Any], ...] = tuple({} for _ in models)
    if not flags:
        return routed
    try:
        from x_transformers.flags import accepted_keywords, did_you_mean
    except ModuleNotFoundError:
        raise Stop('--set needs the flag table, x_transformers.flags, which this installation lacks') from None
    tables = [accepted_keywords(model) for model in models]
    for name, text in flags.items():
        if name in own:
            raise Stop(f'--set {name}: this is not set by flag, see --help')
        takers = [keywords for keywords, table in zip(routed, tables, strict=True) if name in table]
        if not takers:
            known = [known for table in tables for known in table]
            raise Stop(f'--set {name}: there is no such flag{did_you_mean(name, known)}')
        try:
            takers[0][name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            takers[0][name] = text
    return routed


def width_of_heads(dim: int, heads: int) -> int:
    """What each head has of the width of a model.  Raises Stop where some would be left."""
    if dim % heads:
        raise Stop(f'--dim {dim} cannot be divided among {heads} --heads')
    return dim // heads


def choose_machine(device: str, precision: str) -> tuple[torch.device, str]:
    """What `auto` stands for here. Raises Stop for what this machine does not have."""
    try:
        chosen = torch.device(('cuda' if torch.cuda.is_available() else 'cpu') if device == 'auto' else device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError) as error:
        raise Stop(f'--device {device} cannot be used: {str(error).splitlines()[0].split(". ")[0]}') from None
    on_cuda = chosen.type == 'cuda'
    has_bfloat16 = not on_cuda or torch.cuda.is_bf16_supported(including_emulation=False)
    if (precision == 'float16' and not on_cuda) or (precision == 'bfloat16' and not has_bfloat16):
        raise Stop(f'--precision {precision} does not work on {chosen}; float32 always does')
    if precision == 'auto':
        precision = 'bfloat16' if on_cuda and has_bfloat16 else 'float32'
    return chosen, precision


def exit_code(script: str, work: Callable[[], None]) -> int:
    """Do the work of a script, and say in one line why it ended where it did not reach the end.

    0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted with
    Ctrl-C (143 with SIGTERM), after saving.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors='replace')
    try:
        work()
    except (Stop, OSError) as error:
        code = getattr(error, 'code', 2)
        if code != 2 or os.environ.get('RANK', '0') == '0':  # what is refused is refused by all processes
            print(f'{script}: {error}', file=sys.stderr)
        return code
    except RuntimeError as error:
        if 'memory' not in str(error):
            raise
        print(f'{script}: a smaller model or batch may fit: {str(error).splitlines()[0]}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'{script}: interrupted', file=sys.stderr)
        return 130
    return 0

"""python -m x_transformers.memory build | tune | inspect | verify"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from x_transformers.core.files import StampedFile
from x_transformers.memory.datastore import BACKENDS, DTYPES, KNNDatastore
from x_transformers.memory.keys import KEYS
from x_transformers.memory.knn_lm import KNNLMWrapper
from x_transformers.memory.search import METRICS
from x_transformers.memory.texts import batches, get_tokenizer, lines, windows
from x_transformers.x_transformers import TransformerWrapper


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m x_transformers.memory', description='Datastores of what a model reads in a text',
        epilog='An interrupted `build` goes on when it is called again. Exit codes: 0, done; 2, an error.',
    )  # fmt: skip
    commands = parser.add_subparsers(dest='command', required=True)
    build = commands.add_parser('build', help='read a text, and write a datastore to a folder')
    tune = commands.add_parser('tune', help='find the share of the neighbours that fits a held-out text')
    for command in (build, tune):
        command.add_argument('checkpoint', type=Path, help='a folder, or a run of examples/train_lm.py')
        command.add_argument('store', type=Path)
        command.add_argument('--text', type=Path, nargs='+', required=True, help='files')
        command.add_argument('--length', type=int, help='tokens that are read at once; `max_seq_len` if not given')
        command.add_argument('--overlap', type=int, help='of these, known from the row before; half if not given')
        command.add_argument('--batch', type=int, default=16, help='rows at once')
        command.add_argument('--backend', choices=BACKENDS, default='exact')
        command.add_argument('--device', default='cpu')
    build.add_argument('--size', type=int, default=10**9, help='entries at most')
    build.add_argument('--dtype', choices=tuple(DTYPES), default='float16')
    build.add_argument('--metric', choices=METRICS, default='l2', help='of distances')
    build.add_argument('--block', type=int, default=2**16, help='entries of a file')
    build.add_argument('--key-layer', type=int, default=-1)
    build.add_argument('--key-at', choices=KEYS, default='ff_input')
    build.add_argument('--recall', type=float, default=0.95, help='of an index, share of the nearest that it finds')
    tune.add_argument('--k', type=int, default=1024, help='neighbours')
    tune.add_argument('--temperature', type=float, default=1.0)
    for name, what in (('inspect', 'what a datastore holds'), ('verify', 'compare all files with their checksums')):
        commands.add_parser(name, help=what).add_argument('store', type=Path)
    return parser


def checkpoint_in(folder: Path) -> Path:
    """Return a folder with a model, or the newest one in the folder of a run."""
    steps = {path.parent for path in folder.glob('step_*/config.json') if path.parent.name[5:].isdigit()}
    if (StampedFile(folder) / 'config.json').is_file() or not steps:
        return folder
    return max(steps, key=lambda path: int(path.name[5:]))


def load_model(options: argparse.Namespace) -> tuple[TransformerWrapper, Iterator[dict[str, torch.Tensor]]]:
    """Return the model, and the text as its token ids."""
    folder = checkpoint_in(options.checkpoint)
    net = TransformerWrapper.from_pretrained(folder).to(options.device).eval()
    length = options.length or net.max_seq_len
    overlap = length // 2 if options.overlap is None else options.overlap
    if not length or length < 2:
        raise ValueError(
            f'`--length` must be at least 2, and given for models without `max_seq_len`, got {options.length}'
        )
    if not 0 < overlap < length:
        raise ValueError(f'`--overlap` must be from 1 to {length - 1}, got {overlap}')
    if options.batch < 1:
        raise ValueError(f'`--batch` must be at least 1, got {options.batch}')
    encode = get_tokenizer(folder, net.num_tokens)
    rows = windows(map(encode, lines(options.text)), length, overlap)
    return net, batches(rows, options.batch)


def build(options: argparse.Namespace) -> None:
    net, loader = load_model(options)
    sizes = dict(size=options.size, dtype=options.dtype, block=options.block, metric=options.metric)
    store = KNNDatastore(net.attn_layers.dim, path=options.store, backend='exact', **sizes)
    if len(store):
        print(f'{len(store):,} entries are there, going on after them', flush=True)
    began, known = time.monotonic(), len(store)

    def told() -> Iterator[dict[str, torch.Tensor]]:
        shown = began
        for batch in loader:
            yield batch
            if time.monotonic() > shown + 10:
                shown = time.monotonic()
                print(f'{len(store):,} entries, {(len(store) - known) / (shown - began):,.0f} per second', flush=True)

    store.build(net, told(), key_layer=options.key_layer, key_at=options.key_at)
    print(f'{len(store):,} entries in {options.store}')
    if options.backend != 'exact':
        recall = KNNDatastore.open(options.store, options.backend).build_index(options.recall)
        print(f'index: recall {recall:.3f}')


def tune(options: argparse.Namespace) -> None:
    net, loader = load_model(options)
    store = KNNDatastore.open(options.store, options.backend)
    model = KNNLMWrapper(
        net, store, k=min(options.k, len(store)), temperature=options.temperature,
        key_layer=store.owner['key_layer'], key_at=store.owner['key_at'],
    )  # fmt: skip
    report = model.tuned(loader)
    print(f'lambda {report.lam:.4f}: {report.mixed:.4f} nats per token, {report.alone:.4f} without the datastore')


def inspect(options: argparse.Namespace) -> None:
    store = KNNDatastore.open(options.store)
    about = dict(
        entries=len(store), size=store.size, dim=store.dim, dtype=store.dtype, block=store.block, **store.owner
    )
    for name, value in about.items():
        print(f'{name:12}{value:,}' if isinstance(value, int) else f'{name:12}{value}')


def verify(options: argparse.Namespace) -> None:
    store = KNNDatastore.open(options.store)
    store.verify()
    print(f'{len(store):,} entries, none damaged')


def main(given: list[str] | None = None) -> int:
    options = arguments().parse_args(given)
    try:
        dict(build=build, tune=tune, inspect=inspect, verify=verify)[options.command](options)
    except (OSError, ValueError, ImportError, TypeError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())

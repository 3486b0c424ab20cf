"""A datastore of many keys: how long building and searching take, in how much memory, and what the index finds.

    python benchmarks/datastore.py [--entries 10000000] [--dim 64] [--data latent|normal] [--threads 2] [--folder DIR]

Every stage is a process of its own, whose memory is the highest that the system has seen (resident, pages of mapped
files included): keys are written; the index is built; 100 queries that are no keys are searched by all keys, and by the
index, whose recall is the share of the exact neighbours that it finds. `latent` keys are a smooth function of 16
numbers with some noise, as hidden states lie near a surface; `normal` ones fill the space, the worst case for an index.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from x_transformers import KNNDatastore

QUERIES, PART = 100, 2**17
STAGES = ('write', 'index', 'exact', 'approximate')


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--entries', type=int, default=10_000_000)
    parser.add_argument('--dim', type=int, default=64)
    parser.add_argument('--k', type=int, default=1024)
    parser.add_argument('--recall', type=float, default=0.95, help='that the index is built for')
    parser.add_argument('--data', choices=('latent', 'normal'), default='latent')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--folder', type=Path, help='for the store, which is deleted; a temporary one if not given')
    parser.add_argument('--backends', default='exact,faiss', help='with commas')
    parser.add_argument('--stage', choices=STAGES, help=argparse.SUPPRESS)
    return parser


def source(data: str, dim: int) -> Callable[[int, int], Tensor]:
    """From a count and a seed to keys (count dim)."""
    fixed = torch.Generator().manual_seed(0)
    first, second = (torch.randn(a, b, generator=fixed) / a**0.5 for a, b in ((16, 4 * dim), (4 * dim, dim)))

    def drawn(count: int, seed: int) -> Tensor:
        draws = torch.Generator().manual_seed(seed)
        if data == 'normal':
            return torch.randn(count, dim, generator=draws)
        latent = torch.randn(count, 16, generator=draws)
        return (2 * latent @ first).tanh() @ second + 0.03 * torch.randn(count, dim, generator=draws)

    return drawn


def work(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One stage, in this process."""
    torch.set_num_threads(options.threads)
    drawn = source(options.data, options.dim)
    began, told = time.monotonic(), {}
    if options.stage == 'write':
        store = KNNDatastore(options.dim, options.entries, folder / 'store')
        for start in range(0, options.entries, PART):
            count = min(PART, options.entries - start)
            store.add(drawn(count, 1 + start), torch.arange(start, start + count) % 50_000)
        store.flush()
    else:
        approximate = options.stage != 'exact'
        store = KNNDatastore.open(folder / 'store', 'faiss' if approximate else 'exact')
        if options.stage == 'index':
            told['recall of keys'] = store.build_index(options.recall, options.k)
            told['probes'], told['clusters'] = store.index.notes['probes'], store.index.clusters
        else:
            queries = drawn(QUERIES, 10**9)
            asked = time.monotonic()
            found = store.search(queries, options.k)
            told['ms per query'] = 1000 * (time.monotonic() - asked) / QUERIES
            if approximate and (folder / 'exact.pt').exists():
                expected = torch.load(folder / 'exact.pt')
                shared = [len(set(a) & set(b)) for a, b in zip(found.index.tolist(), expected.tolist(), strict=True)]
                told['recall'] = sum(shared) / expected.numel()
                asked = time.monotonic()
                store.search(queries[:1], options.k)
                told['ms of one alone'] = 1000 * (time.monotonic() - asked)
            elif not approximate:
                torch.save(found.index, folder / 'exact.pt')
    told['seconds'] = time.monotonic() - began
    told['MB'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)
    return told


def measure(options: argparse.Namespace, given: list[str]) -> dict[str, dict[str, float]]:
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    stages = [stage for stage in STAGES if 'faiss' in options.backends or stage in ('write', 'exact')]
    found = {}
    try:
        for stage in stages:
            command = [sys.executable, __file__, *given, '--stage', stage, '--folder', str(folder)]
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                raise RuntimeError(f'{stage}: {made.stderr}')
            found[stage] = json.loads(made.stdout.splitlines()[-1])
            print(f'{stage:12}' + ', '.join(f'{name} {value:,.3g}' if value < 1000 else f'{name} {value:,.0f}'
                                           for name, value in found[stage].items()), flush=True)  # fmt: skip
        files = sum(path.stat().st_size for path in (folder / 'store').rglob('*'))
        print(f'{"disk":12}MB {files / 2**20:,.0f}')
    finally:
        shutil.rmtree(folder)
    return found


def main(given: list[str] | None = None) -> dict[str, dict[str, float]]:
    given = sys.argv[1:] if given is None else given
    options = parser().parse_args(given)
    if options.stage:
        told = work(options, options.folder)
        print(json.dumps(told))
        return {options.stage: told}
    return measure(options, given)


if __name__ == '__main__':
    main()

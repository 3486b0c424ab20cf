"""Tables of `gpu.py`, from the rows in `results/gpu/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpu_rows import RESULTS, Row, latest, read
from measure import ROOT, markdown

PLACES = (ROOT / 'docs' / 'kernels.md', ROOT / 'benchmarks' / 'README.md')
TITLES = {
    'training': 'Training: tokens per second (MFU), peak GiB',
    'decoding': 'Decoding: tokens per second (share of the bandwidth roofline)',
    'features': 'Attention with one flag, forward and backward: milliseconds (GiB)',
    'serving': 'Serving: tokens per second (latency p50, p99 in seconds)',
}


def cell(row: Row | None) -> str:
    """What a table shows of a row."""
    if row is None:
        return '-'
    if row.value is None:
        return 'refused'
    text = f'{row.value:.0f}' if row.value >= 100 else f'{row.value:.3g}'
    if row.bound:
        text += f' ({row.value / row.bound:.0%})'
    if row.p50 is not None:
        text += f' ({row.p50:.2f}, {row.p99:.2f})'
    if row.stage in ('training', 'features') and row.memory is not None:
        text += f', {row.memory / 1024:.1f}' if row.bound else f' ({row.memory / 1024:.2f})'
    return text


def table(rows: Sequence[Row]) -> str:
    """A table for each stage and device, with the versions that were measured."""
    parts, shown = [], latest([row for row in rows if row.device != 'cpu'])
    for device in dict.fromkeys(row.device for row in shown.values()):
        own = [row for row in shown.values() if row.device == device]
        versions = ', '.join(dict.fromkeys(f'torch {row.torch} at {row.commit}' for row in own))
        parts.append(f'{device}; {versions}.')
        tests = [row for row in own if row.stage == 'correct']
        if tests:
            passed = sum(row.note == 'passed' for row in tests)
            parts.append(f'Tests on the device: {passed} of the {len(tests)} that have run passed.')
        for stage, title in TITLES.items():
            measured = [row for row in own if row.stage == stage]
            if not measured:
                continue
            columns = list(dict.fromkeys(row.column for row in measured))
            by = {(row.work, row.column): row for row in measured}
            lines = [[w, *(cell(by.get((w, c))) for c in columns)] for w in dict.fromkeys(row.work for row in measured)]
            parts.append(f'{title}:\n\n{markdown(["work", *columns], lines)}')
    return '\n\n'.join(parts) or 'Nothing has been measured on a GPU yet.'


def summary(rows: Sequence[Row]) -> str:
    """One sentence for the front page."""
    trained = [row for row in latest(rows).values() if row.stage == 'training' and row.device != 'cpu']
    best = [row for row in trained if row.column == 'ours compiled' and row.value and row.bound]
    if not best:
        return 'It is tested on a CPU, and not yet timed on a GPU.'
    told = ', '.join(f'{row.value / row.bound:.0%} at {row.work.split(",")[0]}' for row in best)
    return f'A compiled training step reaches an MFU of {told} on one {best[0].device}.'


def with_block(text: str, name: str, content: str) -> str:
    """The text with what stands between the markers `<!-- NAME -->` and `<!-- /NAME -->` replaced."""
    found, count = re.subn(
        rf'(<!-- {name} -->\n).*?(\n<!-- /{name} -->)', lambda m: m[1] + content + m[2], text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f'the text must have one block {name!r}, it has {count}')
    return found


def blocks(rows: Sequence[Row]) -> dict[Path, str]:
    """The text of each page with its block as the rows have it."""
    contents = zip(PLACES, ('gpu summary', 'gpu table'), (summary(rows), table(rows)), strict=True)
    return {path: with_block(path.read_text(encoding='utf-8'), name, content) for path, name, content in contents}


def write() -> None:
    """Bring the pages up to date."""
    for path, text in blocks(read(RESULTS)).items():
        path.write_text(text, encoding='utf-8')

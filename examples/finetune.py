"""Make a classifier of text out of a language model: which package of the standard library is a function from?

    python examples/finetune.py                                  on top of the newest run of train_lm.py
    python examples/finetune.py --backbone path/to/bert          or of a model as transformers writes it to a folder
    python examples/finetune.py --train head                     only the new head learns
    python examples/finetune.py --train lora                     the head, and small matrices beside all others (PEFT)
    python examples/finetune.py --train scratch                  to compare: all learns, from new weights
    python examples/finetune.py --data my_texts/                 a folder with a folder of texts for each class
    python examples/finetune.py --out runs/finetune-001 --resume         go on after an interruption

What the model says of each token is averaged, and a linear head takes it from there. Files are split, not functions:
one in six is kept for the test at the end, one in ten for validation. A run writes checkpoints as it goes, which
--resume goes on from, and at the end loss.png and confusion.png (which class was taken for which).

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common import models, runs
    from common.folders import saved
    from common.options import Stop, bounded, exit_code, option, parse, positive, run_parser, size, some_text
    from common.pictures import confusion, curves
    from common.texts import SKIPPED, files_below, read_texts
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pad_sequence

    from x_transformers import TransformerWrapper

# what learns, and how fast
RATES = dict(full=1e-3, head=1e-2, lora=3e-3, scratch=1e-3)
SHORTEST = 100  # bytes of a function that says enough
FEWEST = 10  # files of a package, so that some can be kept for the test


@dataclass(frozen=True)
class Config(runs.Config):
    steps: int = option(200, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(8, size, 'texts per step')
    lr: float | None = option(None, positive, f'highest learning rate (by --train: {RATES})')
    backbone: str | None = option(
        None, some_text, 'run or folder of a model (the newest runs/train_lm-*)', metavar='PATH'
    )
    train: str = option('full', str, 'what learns', choices=tuple(RATES))
    rank: int | None = option(None, size, 'of the matrices that --train lora adds (8)')
    data: str | None = option(None, some_text, "folder of folders (Python's standard library)", metavar='PATH')
    classes: int = option(8, bounded(int, 2), 'tell so many apart, those with most texts')
    per_class: int = option(300, size, 'take no more texts of each')
    seq_len: int = option(128, bounded(int, 2), 'read so many tokens of a text')

    compared_by_content = ('data', 'backbone')


# data


def functions_in(source: str) -> Iterator[str]:
    """The text of each function, methods too, that is not very short."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            text = '\n'.join(lines[node.lineno - 1 : node.end_lineno])
            if len(text) >= SHORTEST:
                yield text


def functions_below(root: Path) -> dict[str, dict[Path, list[str]]]:
    """The functions of each file of each package."""
    found: dict[str, dict[Path, list[str]]] = defaultdict(dict)
    for path in files_below(root, '.py', SKIPPED)[0]:
        package, *inner = path.relative_to(root).parts
        if inner:
            try:
                with warnings.catch_warnings():  # of old files, while they are parsed
                    warnings.simplefilter('ignore')
                    found[package][path] = list(functions_in(path.read_text(encoding='utf-8')))
            except (SyntaxError, ValueError):
                continue  # templates, and files on purpose in another encoding
    return {package: files for package, files in found.items() if len(files) >= FEWEST}


def texts_below(root: Path) -> dict[str, dict[Path, list[str]]]:
    """The text of each file of each folder in `root`."""
    found: dict[str, dict[Path, list[str]]] = defaultdict(dict)
    for path in files_below(root, '', set())[0]:
        name, *inner = path.relative_to(root).parts
        if inner:
            texts, _ = read_texts(root, [path], 1_000_000)
            found[name][path] = [text.decode('utf-8', errors='replace') for text in texts]
    return {name: files for name, files in found.items() if len(files) >= 3}


def read_classes(config: Config) -> tuple[list[str], dict[str, list[tuple[str, int]]]]:
    """The names of the classes, and texts with their class, to train on, to validate on and to test on.

    Raises Stop for a path that cannot be read, or fewer than two classes.
    """
    root = Path(config.data or sysconfig.get_paths()['stdlib'])
    if not root.is_dir():
        raise Stop(f'--data {root} {"is no folder" if root.exists() else "does not exist"}')
    found = texts_below(root) if config.data else functions_below(root)
    most = sorted(found, key=lambda name: (-sum(map(len, found[name].values())), name))[: config.classes]
    if len(most) < 2:
        raise Stop(f'{root} has {len(most)} folder(s) with three or more texts; a classifier needs two')
    generator = torch.Generator().manual_seed(config.seed)
    parts: dict[str, list[tuple[str, int]]] = dict(train=[], validate=[], test=[])
    known: set[str] = set()
    for label, name in enumerate(sorted(most)):
        files = sorted(found[name])
        order = torch.randperm(len(files), generator=generator).tolist()
        wanted = dict(test=config.per_class // 6 or 1, validate=config.per_class // 10 or 1, train=config.per_class)
        tests, validates = max(1, len(files) // 6), max(1, len(files) // 10)
        part_of = ['test'] * tests + ['validate'] * validates + ['train'] * (len(files) - tests - validates)
        for part, chosen in zip(part_of, order, strict=True):
            texts = [text for text in dict.fromkeys(found[name][files[chosen]]) if text not in known][: wanted[part]]
            known.update(texts)
            wanted[part] -= len(texts)
            parts[part] += [(text, label) for text in texts]
    if few := [part for part, some in parts.items() if len({label for _, label in some}) < len(most)]:
        raise Stop(f'{root} has too few different texts: some class has none to {few[0]}')
    print(f'data: {len(most)} classes, ' + ', '.join(f'{len(some):,} texts to {part}' for part, some in parts.items()))
    return sorted(most), parts


# model


class Classifier(nn.Module):
    """Texts to classes:  ids b n -> b classes, from the mean of what a backbone says of each token."""

    def __init__(self, backbone: nn.Module, dim: int, num_classes: int) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(dim, num_classes)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        embeddings = self.backbone(ids, mask=mask, return_embeddings=True)
        real = mask.unsqueeze(-1).to(embeddings.dtype)
        return self.head((embeddings * real).sum(1) / real.sum(1).clamp(min=1))


def with_lora(backbone: TransformerWrapper, rank: int) -> nn.Module:
    """The backbone, frozen, with two small matrices beside each linear layer of its stack."""
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise Stop('--train lora needs a package that is not installed: pip install peft') from None
    layers = [name for name, part in backbone.named_modules() if isinstance(part, nn.Linear) and 'attn_layers' in name]
    return get_peft_model(backbone, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=layers))


class Run(runs.Run):
    """A classifier in training."""

    config: Config
    model: Classifier

    def __init__(self, config: Config, device: torch.device) -> None:
        if config.rank is not None and config.train != 'lora':
            raise Stop('--rank is for --train lora')
        folder = models.find(config.backbone, '--backbone')
        rate = RATES[config.train] if config.lr is None else config.lr
        super().__init__(replace(config, backbone=str(folder), lr=rate), device)
        backbone, self.codec = models.read_model(folder, '--backbone', dtype='float32')
        self.longest = min(config.seq_len, backbone.max_seq_len or config.seq_len)
        self.built = json.loads(json.dumps(backbone.config))
        self.classes, parts = read_classes(config)
        self.digest = hashlib.sha256(repr((self.classes, parts)).encode(errors='replace')).hexdigest()
        self.parts = {
            part: ([self.ids(text) for text, _ in some], [c for _, c in some]) for part, some in parts.items()
        }
        self.set_model(self.classifier(backbone))

    def classifier(self, backbone: TransformerWrapper) -> Classifier:
        torch.manual_seed(self.config.seed)
        dim = backbone.attn_layers.dim
        if self.config.train == 'scratch':
            backbone = TransformerWrapper.from_config(self.built)
        elif self.config.train == 'head':
            backbone.requires_grad_(False)
        elif self.config.train == 'lora':
            backbone = with_lora(backbone, self.config.rank or 8)
        return Classifier(backbone, dim, len(self.classes)).train()

    def ids(self, text: str) -> Tensor:
        return torch.tensor(self.codec.encode(text, self.longest))

    def description(self) -> dict[str, Any]:
        return dict(backbone=self.built, train=self.config.train, classes=self.classes)

    def logits(self, rows: list[Tensor]) -> Tensor:
        mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
        return self.model(pad_sequence(rows, batch_first=True).to(self.device), mask.to(self.device))

    def batch_loss(self) -> Tensor:
        rows, labels = self.parts['train']
        drawn = torch.randint(len(rows), (self.config.batch_size,), generator=self.draws).tolist()
        wanted = torch.tensor([labels[i] for i in drawn], device=self.device)
        return F.cross_entropy(self.logits([rows[i] for i in drawn]), wanted)

    def on_step_end(self, progress: float) -> None:
        if self.config.train in ('full', 'scratch'):
            self.model.backbone.on_step_end(progress)

    @torch.no_grad()
    def answers(self, part: str) -> Tensor:
        """The class that the model gives each text of a part."""
        self.model.eval()
        rows = self.parts[part][0]
        with self.autocast():
            found = [self.logits(rows[i : i + 32]).argmax(-1).cpu() for i in range(0, len(rows), 32)]
        self.model.train()
        return torch.cat(found)

    def score(self) -> float:
        return (self.answers('validate') == torch.tensor(self.parts['validate'][1])).float().mean().item()

    def said(self, score: float) -> str:
        return f'{score:.1%} right'


# results


def finish(run: Run, out: Path) -> None:
    answers, labels = run.answers('test'), torch.tensor(run.parts['test'][1])
    count = len(run.classes)
    curves(run, out / 'loss.png', f'Which class is a text of? ({run.config.train})', 'nats', score='share right')
    table = torch.bincount(count * labels + answers, minlength=count**2).view(count, count)
    confusion(table, run.classes, out / 'confusion.png')
    print(f'pictures: loss.png and confusion.png in {out}, {saved(out)}\n')
    right, most = (answers == labels).float().mean(), table.sum(1).max() / len(labels)
    learned = sum(weight.numel() for weight in run.model.parameters() if weight.requires_grad)
    print(f'{run.config.train}, {learned:,} weights learned in {run.step:,} steps')
    print(f'test accuracy: {right:.1%} of {len(labels)} (the largest class has {most:.1%})')


def work(args: argparse.Namespace) -> None:
    runs.conduct('finetune', args, Config, Run, finish)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = run_parser('finetune', __doc__, Config, interval=50, sets=False)
    return exit_code('finetune.py', lambda: work(parse(parser, argv)))


if __name__ == '__main__':
    sys.exit(main())

"""The text that benchmarks train on: the source of Python's standard library, of the interpreter that runs them."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from hashlib import sha256
from types import SimpleNamespace

import torch
from measure import ROOT
from torch import Tensor

sys.path[:0] = [str(ROOT), str(ROOT / 'examples')]


class Corpus:
    """Bytes, of which every tenth file is held out.

    length     bytes of a sequence
    batch      sequences that are drawn at once
    most       bytes that are read at most
    data       a file or folder, if not the standard library
    """

    def __init__(self, length: int, batch: int, most: int, data: str | None = None) -> None:
        from common.texts import read_corpus

        self.length, self.batch, self.most, self.data = length, batch, most, data
        with redirect_stdout(io.StringIO()):
            self.train, self.valid = read_corpus(self.wishes(length, 1))

    @property
    def hash(self) -> str:
        """By which texts are told apart."""
        return sha256(self.train.numpy().tobytes()).hexdigest()[:8]

    def wishes(self, length: int, held_out: int) -> SimpleNamespace:
        """What `common.texts` asks of a configuration."""
        sizes = dict(seq_len=length, batch_size=self.batch, val_windows=held_out)
        return SimpleNamespace(data=self.data, max_bytes=self.most, **sizes)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Sequences from random places:  b n"""
        from common.texts import random_crops

        return random_crops(self.train, self.wishes(self.length, 1), generator)

    def held_out(self, count: int, length: int | None = None) -> Tensor:
        """So many sequences that nothing trains on:  k n"""
        from common.texts import fixed_windows

        return fixed_windows(self.valid, self.wishes(length or self.length, count))

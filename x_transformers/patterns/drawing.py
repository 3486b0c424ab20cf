"""Pictures of patterns: as text, and as PNG files written by hand, without any further library."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SEEN, AHEAD, HIDDEN = (38, 70, 140), (205, 205, 205), (245, 245, 245)
PIXELS = 512  # Approximate size of a picture.


def dense(patterns: Sequence[Any], n: int, causal: bool, marks: Any = None) -> Tensor:
    """Return the mask of n tokens, (h, n, n)."""
    pos = torch.arange(n)
    seen = torch.stack([one.visible(pos.unsqueeze(-1), pos, marks).expand(n, n) for one in patterns])
    return seen.tril() if causal else seen


def as_text(seen: Tensor) -> str:
    return '\n'.join(''.join('#' if one else '.' for one in row) for row in seen.tolist())


def png(pixels: Tensor) -> bytes:
    """Return a PNG file of pixels (height, width, 3) of dtype uint8."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack('>I', len(content)) + kind + content + struct.pack('>I', zlib.crc32(kind + content))

    height, width = pixels.shape[:2]
    rows = torch.cat((pixels.new_zeros(height, 1), pixels.flatten(1)), dim=1)
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(bytes(rows.flatten().tolist()), 9)
    return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + chunk(b'IDAT', content) + chunk(b'IEND', b'')


def draw(patterns: Sequence[Any], n: int, causal: bool, path: Any, marks: Any) -> str:
    seen = dense(patterns, n, causal, marks)
    if path is not None:
        side = max(PIXELS // max(n, 1), 1)
        ahead = torch.full((n, n), causal).triu(1)
        colours = torch.tensor([HIDDEN, AHEAD, SEEN], dtype=torch.uint8)
        index = torch.where(seen, 2, ahead.long())  # h n n
        wide = index.repeat_interleave(side, 1).repeat_interleave(side, 2)
        gap = torch.zeros(wide.shape[1], max(side, 4), dtype=torch.long)
        parts = [part for one in wide for part in (one, gap)][:-1]
        Path(path).write_bytes(png(colours[torch.cat(parts, dim=1)]))
    return '\n\n'.join(map(as_text, seen))

"""`PromptCache`, the cache of a prompt for many continuations, in memory and on disk.

    cache = model.read_prompt(prompt)                        the net reads the prompt
    model.generate(None, 16, prompt_cache = cache)           continue it
    model.generate(longer, 16, prompt_cache = cache)         prompts (b n) that begin with it; one row serves all
    cache.save(path);  PromptCache.load(path)

A prompt's cache belongs to one model, with the weights it had: every continuation compares its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from x_transformers.cache import Cache
from x_transformers.core.checks import mask_from_lengths
from x_transformers.core.files import check_fields, is_count, read_content, write_content
from x_transformers.flags.checks import Maybe
from x_transformers.generation.engine import IncrementalModel, eval_modules, get_rows

FORMAT = 'x-transformers prompt 4'
REMEDY = 'Read the prompt again with `read_prompt`, and save its cache'


def checksum(t: Tensor) -> list[Tensor]:
    """Two numbers that change with any number of a tensor, and with their order; formed where the tensor is."""
    t = torch.view_as_real(t) if t.is_complex() else t
    bits = t.detach().flatten().view(torch.uint8)
    words = F.pad(bits, (0, -len(bits) % 8)).view(torch.long) if len(bits) % 8 else bits.view(torch.long)
    # high bits reach low ones: numbers of few digits differ in the former alone, which a sum may lose
    words = (words ^ ((words >> 32) & 0xFFFFFFFF)) * 0x1E3779B97F4A7C15
    side = math.isqrt(len(words)) + 1
    square = F.pad(words, (0, side * side - len(words))).view(side, side)
    places = 2 * torch.arange(side, device=t.device) + 1  # odd: modulo 2**64 no change is lost
    return [(square.sum(axis) * places).sum() for axis in (0, 1)]


def fingerprint(net: nn.Module) -> str:
    """A text that differs between models: of config, and of names, shapes, types and numbers of the weights."""
    named = [(name, t) for name, t in sorted(net.state_dict().items()) if isinstance(t, Tensor)]
    shapes = [[name, list(t.shape), str(t.dtype)] for name, t in named]
    sums = [one for _, t in named for one in checksum(t)]
    numbers = torch.stack([one.to(sums[0].device) for one in sums]).tolist() if sums else []
    try:
        config = getattr(net, 'config', None)
    except ValueError:  # it holds modules or functions of the user's own
        config = None
    described = json.dumps([type(net).__name__, config, shapes, numbers], sort_keys=True, default=repr)
    return hashlib.sha256(described.encode()).hexdigest()


@dataclass
class PromptCache:
    """Cache of prompts: the states of a net after them, and its outputs at their last tokens.

    ids          b t    the prompts, padded on the left
    pads         b      number of paddings, if any
    leading             axes of the prompts before the last
    logits       b l    of the next token
    inputs              keywords that the net was called with, and will be
    fingerprint         of the net
    """

    ids: Tensor
    pads: Maybe[Tensor]
    leading: tuple[int, ...]
    logits: Tensor
    cache: Cache
    inputs: dict[str, Any]
    fingerprint: str

    @classmethod
    def of(cls, wrapper: Any, prompts: Any, prompt_lens: Any, inputs: dict[str, Any]) -> PromptCache:
        """Read prompts."""
        mask = inputs.get('mask')
        ids, pads, leading = wrapper.opening(prompts, prompt_lens, 0, inputs)
        if mask is not None and pads is not None and ids.shape[1] == mask.shape[1] and bool(mask[:, -1:].all()):
            inputs['mask'] = mask  # Padding in front that a mask says, which continuations do not say again.
        reader = IncrementalModel(wrapper.net, inputs, restrict=False)
        if not reader.caching:
            raise ValueError(
                '`read_prompt` needs a model that can cache: in this one, later tokens change earlier results'
            )
        with eval_modules(list(wrapper.modules())):
            logits = reader.read(ids, pads)
        return cls(ids, pads, tuple(leading), logits, reader.cache, inputs, fingerprint(wrapper.net))

    @property
    def length(self) -> int:
        """The tokens of a prompt, padding included."""
        return self.ids.shape[1]

    def pads_of(self, ids: Tensor) -> Tensor | None:
        """Return the numbers of paddings (b) in prompts (b, n) whose mask was given when they were read."""
        if self.pads is None or 'mask' not in self.inputs or len(self.pads) not in (1, len(ids)):
            return None
        return self.pads.to(ids.device).expand(len(ids))

    def inputs_for(
        self, wrapper: Any, ids: Tensor, pads: Tensor | None, inputs: dict[str, Any], cache_kv: bool
    ) -> dict[str, Any]:
        """The keywords of a continuation with the prompts `ids` (b n), once it is sure that it continues this."""
        if not cache_kv:
            raise ValueError('`prompt_cache` cannot be combined with `cache_kv=False`')
        if fingerprint(wrapper.net) != self.fingerprint:
            raise ValueError('`prompt_cache` is of another model, or its weights have changed: read the prompt again')
        if 'mask' in inputs:
            raise ValueError(
                '`mask` cannot be combined with `prompt_cache`: pass it to '
                '`read_prompt`; the tokens after it are not padding'
            )
        rows, b = len(self.ids), len(ids)
        if rows not in (1, b):
            raise ValueError(f'`prompt_cache` holds {rows} prompts, there are {b}: it must hold one, or as many')
        same = (pads is None) == (self.pads is None) and (pads is None or torch.equal(pads, self.pads.expand(b)))
        mine = self.ids.to(ids.device)
        hidden = None if pads is None else mask_from_lengths(pads, self.length)
        given = ids[:, : self.length] if hidden is None else ids[:, : self.length].masked_fill(hidden, 0)
        mine = mine if hidden is None else mine.masked_fill(hidden, 0)
        if not same or ids.shape[1] < self.length or not (given == mine).all():
            raise ValueError(
                f'`prompts` must begin with the {self.length} tokens of `prompt_cache`, '
                'and be longer by the same number in each row'
            )
        known = self.inputs if rows == b else get_rows(self.inputs, torch.zeros(b, dtype=torch.long), rows)
        return {**known, **inputs}

    def resume(self, reader: IncrementalModel, b: int) -> None:
        """Let a reader go on from here, with `b` rows."""
        if reader.window is not None and self.length > reader.window:
            raise ValueError(
                f'`prompt_cache` holds {self.length} tokens, more than `max_seq_len` {reader.window}: '
                f'they can only be continued with `restrict_to_max_seq_len=False`'
            )
        # a value of its own: the reader may cut it
        reader.cache, reader.seen = replace(self.cache), self.length
        reader.pending = (self.length, self.logits)
        if b != len(self.ids):
            inputs = reader.inputs
            reader.select(torch.zeros(b, dtype=torch.long, device=self.ids.device), len(self.ids))
            reader.inputs = inputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a file, atomically.  Raises ValueError if a keyword of the net is no plain value."""
        for name, value in self.inputs.items():
            if not all(one is None or isinstance(one, (Tensor, bool, int, float, str)) for one in tree_leaves(value)):
                raise ValueError(f'`{name}` got {type(value).__name__}, which cannot be saved: tensors and numbers can')
        content = dict(fingerprint=self.fingerprint, ids=self.ids, pads=self.pads, inputs=self.inputs)
        content |= dict(leading=list(self.leading), logits=self.logits.contiguous(), cache=self.cache.content())
        write_content(content, path, FORMAT)

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> PromptCache:
        """Build it from the content that `save` has written.  Raises ValueError that names a wrong field."""
        check_fields(content, CONTENT, 'prompt cache')
        b, prompts = len(content['ids']), math.prod(content['leading'])
        rows = {'leading': prompts, 'logits': len(content['logits'])}
        rows |= {} if content['pads'] is None else {'pads': len(content['pads'])}
        for name, count in rows.items():
            if count != b:
                raise ValueError(f'`{name}` of the prompt cache is of {count} prompts, `ids` of {b}')
        return cls(**{**content, 'leading': tuple(content['leading']), 'cache': Cache.of_content(content['cache'])})

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str | None = None) -> PromptCache:
        """Read from a file.  Raises ValueError if it is not of this kind, or damaged."""
        return read_content(path, device, FORMAT, 'prompt cache', cls.of_content, REMEDY)


def is_tensor(axes: int, whole: bool) -> Callable[[Any], bool]:
    """A test of tensors with so many axes, of whole numbers or of others."""
    return lambda t: isinstance(t, Tensor) and t.ndim == axes and t.is_floating_point() is not whole


CONTENT: dict[str, Callable[[Any], bool]] = {
    'ids': is_tensor(2, whole=True),
    'pads': lambda pads: pads is None or is_tensor(1, whole=True)(pads),
    'leading': lambda leading: isinstance(leading, list) and all(map(is_count, leading)),
    'logits': is_tensor(2, whole=False),
    'inputs': lambda inputs: isinstance(inputs, dict) and all(isinstance(name, str) for name in inputs),
    'fingerprint': lambda text: isinstance(text, str),
    'cache': lambda cache: isinstance(cache, dict),
}

"""A prompt that was read once: for many continuations, and on disk.

    cache = model.read_prompt(prompt)                        the net reads the prompt
    model.generate(None, 16, prompt_cache = cache)           continue it
    model.generate(longer, 16, prompt_cache = cache)         prompts (b n) that begin with it; one row serves all
    cache.save(path);  PromptCache.load(path)

A prompt's cache belongs to one model, with the weights it had: every continuation compares its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from x_transformers.cache import Cache, read_content, write_content
from x_transformers.generation import Reader, evaluating, rows_of

FORMAT = 'x-transformers prompt 1'


def fingerprint(net: nn.Module) -> str:
    """A text that differs between models: of config, and of names, shapes, types and some numbers of the weights."""
    named = list(net.state_dict().items())
    shapes = [[name, list(t.shape), str(t.dtype)] for name, t in named]
    # the first, middle and last number of each tensor, exactly; one transfer from the device
    places = [t.detach().flatten()[[0, t.numel() // 2, -1]].double() for _, t in named if t.numel()]
    numbers = torch.stack(places).cpu().numpy().tobytes() if places else b''
    try:
        config = getattr(net, 'config', None)
    except ValueError:  # it holds modules or functions of the user's own
        config = None
    described = json.dumps([type(net).__name__, config, shapes], sort_keys=True, default=repr)
    return hashlib.sha256(described.encode() + numbers).hexdigest()


@dataclass
class PromptCache:
    """What a net remembers of its prompts, and what it says after them.

    ids          b t    the prompts, padded on the left
    pads         b      number of paddings, if any
    leading             axes of the prompts before the last
    logits       b l    of the next token
    inputs              keywords that the net was called with, and will be
    fingerprint         of the net
    """

    ids: Tensor
    pads: Tensor | None
    leading: tuple[int, ...]
    logits: Tensor
    cache: Cache
    inputs: dict[str, Any]
    fingerprint: str

    @classmethod
    def of(cls, wrapper: Any, prompts: Any, prompt_lens: Any, inputs: dict[str, Any]) -> PromptCache:
        """Read prompts."""
        ids, pads, leading = wrapper.opening(prompts, prompt_lens, 0, inputs.get('mask'))
        reader = Reader(wrapper.net, inputs, restrict=False)
        if not reader.caching:
            raise ValueError('`read_prompt` needs a net that can cache: later tokens change what this one computed')
        with evaluating(list(wrapper.modules())):
            logits = reader.read(ids, pads)
        return cls(ids, pads, tuple(leading), logits, reader.cache, inputs, fingerprint(wrapper.net))

    @property
    def length(self) -> int:
        """The tokens of a prompt, padding included."""
        return self.ids.shape[1]

    def inputs_for(
        self, wrapper: Any, ids: Tensor, pads: Tensor | None, inputs: dict[str, Any], cache_kv: bool
    ) -> dict[str, Any]:
        """The keywords of a continuation with the prompts `ids` (b n), once it is sure that it continues this."""
        if not cache_kv:
            raise ValueError('`prompt_cache` does not go with `cache_kv=False`')
        if fingerprint(wrapper.net) != self.fingerprint:
            raise ValueError('`prompt_cache` is of another model, or its weights have changed: read the prompt again')
        if 'mask' in inputs:
            raise ValueError('`mask` does not go with `prompt_cache`: give it to `read_prompt`, what follows is real')
        rows, b = len(self.ids), len(ids)
        if rows not in (1, b):
            raise ValueError(f'`prompt_cache` holds {rows} prompts, there are {b}: it must hold one, or as many')
        same = (pads is None) == (self.pads is None) and (pads is None or torch.equal(pads, self.pads.expand(b)))
        mine = self.ids.to(ids.device)
        if not same or ids.shape[1] < self.length or not (ids[:, : self.length] == mine).all():
            raise ValueError(
                f'`prompts` must begin with the {self.length} tokens of `prompt_cache`, '
                'and be longer by the same number in each row'
            )
        known = self.inputs if rows == b else rows_of(self.inputs, torch.zeros(b, dtype=torch.long), rows)
        return {**known, **inputs}

    def resume(self, reader: Reader, b: int) -> None:
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
        content = dict(format=FORMAT, fingerprint=self.fingerprint, ids=self.ids, pads=self.pads, inputs=self.inputs)
        content |= dict(leading=list(self.leading), logits=self.logits.contiguous(), cache=self.cache.content())
        write_content(content, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str | None = None) -> PromptCache:
        """Read from a file.  Raises ValueError if it is not of this kind, or damaged."""
        content = read_content(path, device, FORMAT, 'prompt cache')
        try:
            names = ('ids', 'pads', 'logits', 'inputs', 'fingerprint')
            own = {name: content[name] for name in names}
            return cls(leading=tuple(content['leading']), cache=Cache.of_content(content['cache']), **own)
        except (KeyError, TypeError) as error:
            raise ValueError(f'`{path}` cannot be read as a prompt cache, a part is missing: {error}') from error

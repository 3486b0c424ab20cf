"""Language models for the EleutherAI evaluation harness (`lm-eval`). Requires that package."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM  # pyright: ignore[reportMissingImports]  an optional extra
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # pyright: ignore[reportMissingImports]  an optional extra
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.modes import to_float
from x_transformers.flags import format_value
from x_transformers.generation.engine import eval_modules

LENGTHS = ('max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')
NEWLINE = 10

Scored = tuple[float, bool]


class Bytes:
    """Tokenizer with one token per byte."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode('utf-8'))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode('utf-8', errors='replace')


class LM(TemplateLM):
    """Language model with its tokenizer for `lm_eval.simple_evaluate(model=LM(...), tasks=[...])`.

    model        `AutoregressiveWrapper`, or a model that it takes
    tokenizer    with `encode(text)` and `decode(ids)`, of `tokenizers`, `transformers` or sentencepiece; None for bytes
    end          id that ends a text, or None
    start        id in front of a text that has no context: `end`, of bytes a newline, if None
    batch_size   rows that are read at once
    max_length   most tokens that are read at once: `max_seq_len` of the model, 2,048 where it has none, if None
    max_gen_toks most tokens to generate, where a task does not say
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        end: int | None = None,
        start: int | None = None,
        batch_size: int = 8,
        max_length: int | None = None,
        max_gen_toks: int = 256,
    ) -> None:
        super().__init__()
        start = NEWLINE if start is None and tokenizer is None else end if start is None else start
        if start is None:
            raise ValueError('`start` or `end` must be given with a `tokenizer`: an id to stand in front of a text')
        self.model = model if isinstance(model, AutoregressiveWrapper) else AutoregressiveWrapper(model)
        self.net, self.tokenizer = self.model.net, Bytes() if tokenizer is None else tokenizer
        self.end, self.start, self.batch_size, self.max_gen_toks = end, start, batch_size, max_gen_toks
        self.max_length = max_length or getattr(self.net, 'max_seq_len', 0) or 2048
        self._device = next((p.device for p in model.parameters()), torch.device('cpu'))

    @property
    def eot_token_id(self) -> int | None:
        return self.end

    @property
    def prefix_token_id(self) -> int:
        return self.start

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the ids of a text, without special tokens."""
        tokenizer: Any = self.tokenizer
        try:
            found = tokenizer.encode(string, add_special_tokens=False)
        except TypeError:  # of sentencepiece, and bytes
            found = self.tokenizer.encode(string)
        return list(getattr(found, 'ids', found))

    # scores

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[Scored]:
        """Return for each continuation its log probability, and whether greedy decoding gives it."""
        for _, context, continuation in requests:
            if len(continuation) > self.max_length or not context:
                what = f'{len(continuation)} tokens after {len(context)}'
                raise ValueError(f'a continuation of {what} cannot be scored: at most {self.max_length} after one')
        found: dict[int, Scored] = {}
        longest = sorted(range(len(requests)), key=lambda at: -len(requests[at][1]) - len(requests[at][2]))
        with tqdm(total=len(requests), desc='log-likelihoods', disable=disable_tqdm) as bar:
            for batch in batches(longest, self.batch_size):
                pairs = [requests[at][1:] for at in batch]
                for at, score in zip(batch, self.scores(pairs), strict=True):
                    found[at] = score
                    if requests[at][0] is not None:
                        self.cache_hook.add_partial('loglikelihood', requests[at][0], score)
                bar.update(len(batch))
        return [found[at] for at in range(len(requests))]

    @torch.no_grad()
    def scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[Scored]:
        """Return log probabilities for a batch of contexts and continuations. Long contexts lose their beginning."""
        rows = [torch.tensor((context + more)[-self.max_length - 1 :]) for context, more in pairs]
        lengths = torch.tensor([len(row) - 1 for row in rows])
        ids = pad_sequence([row[:-1] for row in rows], batch_first=True).to(self._device)
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        inputs: dict[str, Any] = {} if real.all() else {'mask': real.to(self._device)}
        # the logits that count, from the first one of any row on
        starts = [len(row) - 1 - len(more) for row, (_, more) in zip(rows, pairs, strict=True)]
        first = min(starts) if getattr(self.net, 'can_keep_logits', False) and min(starts) < ids.shape[1] else 0
        inputs |= {'logits_to_keep': ids.shape[1] - first} if first else {}
        with eval_modules(list(self.net.modules())):
            logits = self.net(ids, **inputs)
        for row, start, (_, more) in zip(logits, starts, pairs, strict=True):
            log_probs = to_float(row[start - first : start - first + len(more)]).log_softmax(dim=-1)
            wanted = torch.tensor(more, device=log_probs.device, dtype=torch.long)
            each = log_probs.gather(-1, wanted[:, None])
            yield each.sum().item(), bool((log_probs.argmax(dim=-1) == wanted).all())

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log probability of each whole text, in windows of `max_length` tokens."""
        windows = [self.windows(request.args[0]) for request in requests]
        pairs = [(None, *pair) for window in windows for pair in window]
        scores = iter(self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm))
        sums = [sum(score for score, _ in itertools.islice(scores, len(window))) for window in windows]
        for request, score in zip(requests, sums, strict=True):
            self.cache_hook.add_partial('loglikelihood_rolling', request.args, score)
        return sums

    def windows(self, text: str) -> list[tuple[list[int], list[int]]]:
        """Return a text as contexts and continuations, so that every token is predicted once."""
        rolled = get_rolling_token_windows(self.tok_encode(text), self.start, self.max_length, 1)
        return [make_disjoint_window(pair) for pair in rolled]

    # text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the continuation of each context, up to the first of the texts that end it."""
        found: dict[int, str] = {}
        alike: dict[str, list[int]] = {}
        for at, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(at)
        size = self.batch_size if getattr(self.net, 'can_pad_left', True) else 1
        with tqdm(total=len(requests), desc='texts', disable=disable_tqdm) as bar:
            for batch in itertools.chain.from_iterable(batches(group, size) for group in alike.values()):
                contexts, wishes = [requests[at].args[0] for at in batch], requests[batch[0]].args[1]
                for at, text in zip(batch, self.continued(contexts, dict(wishes)), strict=True):
                    found[at] = text
                    self.cache_hook.add_partial('generate_until', requests[at].args, text)
                bar.update(len(batch))
        return [found[at] for at in range(len(requests))]

    @torch.no_grad()
    def continued(self, contexts: Sequence[str], wishes: dict[str, Any]) -> list[str]:
        until, length, options = self.options(wishes)
        room = self.max_length - length
        if room < 1:
            raise ValueError(f'{length} tokens cannot be generated after one: the model reads {self.max_length}')
        prompts = [torch.tensor((self.tok_encode(text) or [self.start])[-room:]) for text in contexts]
        made: list[list[int]] = [[] for _ in prompts]
        texts: dict[int, str] = {}
        for tokens in self.model.stream([p.to(self._device) for p in prompts], length, **options):
            for at, token in enumerate(tokens.tolist()):
                if at in texts:
                    continue
                made[at] += [] if token == self.end else [token]
                text = self.tokenizer.decode(made[at])
                if token == self.end or any(stop in text for stop in until):
                    texts[at] = text
            if len(texts) == len(prompts):
                break
        whole = (texts.get(at, self.tokenizer.decode(ids)) for at, ids in enumerate(made))
        return [text[: min((text.find(stop) for stop in until if stop in text), default=len(text))] for text in whole]

    def options(self, wishes: dict[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
        """Return the settings of a task for generation: texts that end it, a length, and keywords of `generate`."""
        until = wishes.pop('until', None) or []
        until = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        lengths = [wishes.pop(name, None) for name in LENGTHS]
        length = next((length for length in lengths if length is not None), self.max_gen_toks)
        temperature = wishes.pop('temperature', None)
        samples = wishes.pop('do_sample', bool(temperature))
        options: dict[str, Any] = {'temperature': (1.0 if temperature is None else temperature) if samples else 0.0}
        # keywords of ours, and what keeps all
        filters = {'top_p': ('thres', (None,)), 'top_k': ('k', (None, 0))}
        kept = {name: value for name, (_, all_) in filters.items() if (value := wishes.pop(name, None)) not in all_}
        kept = kept if samples else {}
        options['filter_logits_fn'] = list(kept)
        options['filter_kwargs'] = [{filters[name][0]: value} for name, value in kept.items()]
        if wishes:
            raise ValueError(
                f'`{min(wishes)}` got {format_value(wishes[min(wishes)])}: generation has no such option here'
            )
        return until, int(length), options


def batches(items: Sequence[int], size: int) -> Iterator[list[int]]:
    for at in range(0, len(items), size):
        yield list(items[at : at + size])

"""Keywords of `generate` from a generation_config.json: `model.generate(prompts, **model.generation_defaults)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from x_transformers.flags.checks import warn_once
from x_transformers.generation.sampling import min_p, top_k, top_p

BANNED = -torch.inf
TOP_K = 50  # what `transformers` keeps where it samples and the file does not say

# what says nothing of how tokens are chosen, or is for others to use
FREE = {
    'transformers_version', '_from_model_config', 'use_cache', 'cache_implementation', 'cache_config', 'do_sample',
    'return_dict_in_generate', 'output_scores', 'output_logits', 'output_attentions', 'output_hidden_states',
    'bos_token_id', 'pad_token_id', 'decoder_start_token_id', 'decoder_bos_token_id', 'num_return_sequences',
    'early_stopping', 'renormalize_logits', 'remove_invalid_values', 'low_memory', 'compile_config', 'is_assistant',
    'num_assistant_tokens', 'num_assistant_tokens_schedule', 'assistant_confidence_threshold', 'generation_kwargs',
    'trust_remote_code', 'disable_compile', 'chat_format', 'max_window_size', 'assistant_lookbehind',
    'target_lookbehind', 'alignment_heads', 'lang_to_id', 'task_to_id', 'is_multilingual', 'no_timestamps_token_id',
    'max_initial_timestamp_index', 'prev_sot_token_id', 'return_timestamps', 'median_filter_width',
}  # fmt: skip
# values of keys that change nothing
IDLE = {
    'temperature': 1.0, 'top_p': 1.0, 'repetition_penalty': 1.0, 'no_repeat_ngram_size': 0, 'num_beams': 1,
    'length_penalty': 1.0, 'typical_p': 1.0, 'epsilon_cutoff': 0.0, 'eta_cutoff': 0.0, 'num_beam_groups': 1,
    'diversity_penalty': 0.0, 'encoder_repetition_penalty': 1.0, 'encoder_no_repeat_ngram_size': 0, 'min_length': 0,
    'min_p': 0.0,
}  # fmt: skip
SAMPLING = ('temperature', 'top_k', 'top_p', 'min_p', 'typical_p', 'epsilon_cutoff', 'eta_cutoff')


def ban(logits: Tensor, banned: Tensor) -> Tensor:
    return logits.masked_fill(banned, BANNED)


@dataclass(frozen=True)
class Cooled:
    """Logits over the temperature, before the filters, where `generate` of this library divides after them."""

    temperature: float

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class NoRepeat:
    """No sequence of n tokens twice, arXiv:1705.04304, section 2.5."""

    n: int

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        if ids.shape[1] < self.n:
            return logits
        seen = ids.unfold(1, self.n, 1)  # b m n
        last = ids[:, ids.shape[1] - self.n + 1 :]
        again = (seen[..., :-1] == last[:, None]).all(dim=-1)
        banned = torch.zeros_like(logits, dtype=torch.bool)
        rows, places = again.nonzero(as_tuple=True)
        banned[rows, seen[rows, places, -1]] = True
        return ban(logits, banned)


@dataclass(frozen=True)
class BadWords:
    """None of some sequences of tokens."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        logits = logits.clone()
        for word in self.words:
            begun = len(word) - 1
            if ids.shape[1] < begun:
                continue
            said = (ids[:, ids.shape[1] - begun :] == ids.new_tensor(word[:-1])).all(dim=-1)
            logits[:, word[-1]] = logits[:, word[-1]].masked_fill(said, BANNED)
        return logits


@dataclass(frozen=True)
class At:
    """At one length of all tokens so far, only some tokens, or none of them."""

    length: int
    tokens: tuple[int, ...]
    only: bool

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        if ids.shape[1] != self.length:
            return logits
        named = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        named[list(self.tokens)] = True
        return ban(logits, ~named if self.only else named)


def listed(tokens: Any) -> tuple[int, ...]:
    return tuple(tokens) if isinstance(tokens, (list, tuple)) else (tokens,)


def generation_keywords(said: Mapping[str, Any], kind: str = '', has_source: bool = False) -> dict[str, Any]:
    """What a generation_config.json says, as keywords of `generate`. Warns once of what has no counterpart.

    `has_source`: it is of an encoder-decoder, whose tokens begin with one that is given.
    """
    set_ = {n: v for n, v in said.items() if v is not None and n not in FREE and v != IDLE.get(n, None)}
    samples = bool(said.get('do_sample', False)) and said.get('temperature') != 0
    found: dict[str, Any] = {}
    take = set_.pop
    if not said:
        return found
    steps: list[Callable[[Tensor, Tensor], Tensor]] = []
    if 'eos_token_id' in set_:
        eos = take('eos_token_id')
        found['eos_token'] = tuple(eos) if isinstance(eos, (list, tuple)) else eos
    longest(found, set_, has_source)
    if 'repetition_penalty' in set_:
        found['repetition_penalty'] = take('repetition_penalty')
    if 'suppress_tokens' in set_:
        found['banned_tokens'] = listed(take('suppress_tokens'))
    if 'no_repeat_ngram_size' in set_:
        steps.append(NoRepeat(take('no_repeat_ngram_size')))
    if 'bad_words_ids' in set_:
        steps.append(BadWords(tuple(map(tuple, take('bad_words_ids')))))
    if has_source:
        steps += at_places(found, set_)
    if samples:
        sampling(found, set_, steps)
    else:
        found['temperature'] = 0.0
        for name in SAMPLING:
            set_.pop(name, None)
    if steps:
        found['logits_processor'] = tuple(steps)
    if set_:
        warn_once(
            f'generation_config.json of this {kind} checkpoint sets {", ".join(f"`{n}`" for n in sorted(set_))}, which '
            f'`generate` has no keywords for: they are left out'
            + (f'; `beam_search(..., beams={set_["num_beams"]})` searches with beams' if 'num_beams' in set_ else '')
        )
    return found


def longest(found: dict[str, Any], set_: dict[str, Any], has_source: bool) -> None:
    """How many tokens."""
    if 'max_new_tokens' in set_:
        found['seq_len'] = set_.pop('max_new_tokens')
        set_.pop('max_length', None)
    elif 'max_length' in set_ and has_source:
        found['seq_len'] = set_.pop('max_length') - 1


def at_places(found: dict[str, Any], set_: dict[str, Any]) -> list[At]:
    """Tokens that are forced, or banned, at the first or the last place."""
    steps = []
    if 'forced_bos_token_id' in set_:
        steps.append(At(1, listed(set_.pop('forced_bos_token_id')), only=True))
    if 'forced_eos_token_id' in set_ and 'seq_len' in found:
        steps.append(At(found['seq_len'], listed(set_.pop('forced_eos_token_id')), only=True))
    if 'begin_suppress_tokens' in set_:
        steps.append(
            At(2 if steps and steps[0].length == 1 else 1, listed(set_.pop('begin_suppress_tokens')), only=False)
        )
    return steps


def sampling(found: dict[str, Any], set_: dict[str, Any], steps: list[Any]) -> None:
    """Temperature, and the filters after it."""
    heat, most = set_.pop('temperature', 1.0), set_.pop('top_k', TOP_K)
    filters: list[tuple[Any, dict[str, Any]]] = []
    if most:  # 0 keeps all
        filters.append((top_k, {'k': most}))
    if 'top_p' in set_:
        filters.append((top_p, {'thres': set_.pop('top_p')}))
    if 'min_p' in set_:
        filters.append((min_p, {'min_p': set_.pop('min_p')}))
    if heat != 1:
        steps.append(Cooled(heat))
    found['temperature'] = 1.0
    found['filter_logits_fn'] = tuple(one for one, _ in filters)
    found['filter_kwargs'] = tuple(keywords for _, keywords in filters)


__all__ = ['generation_keywords']

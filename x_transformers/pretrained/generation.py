"""Keywords of `generate` from a generation_config.json: `model.generate(prompts, **model.generation_defaults)`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from x_transformers.flags.checks import warn_once
from x_transformers.generation.rules import (
    BANNED,
    GenerationHistory,
    NoEndBefore,
    NoRepeat,
    get_mask,
    history_of,
    mask_tokens,
)
from x_transformers.generation.sampling import TotalLength, min_p, top_k, top_p

TOP_K = 50  # Default of `transformers` for sampling.

# Settings that do not affect which tokens are chosen, or that other tools use.
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
# Values of settings that change nothing.
IDLE = {
    'temperature': 1.0, 'top_p': 1.0, 'repetition_penalty': 1.0, 'no_repeat_ngram_size': 0, 'num_beams': 1,
    'length_penalty': 1.0, 'typical_p': 1.0, 'epsilon_cutoff': 0.0, 'eta_cutoff': 0.0, 'num_beam_groups': 1,
    'diversity_penalty': 0.0, 'encoder_repetition_penalty': 1.0, 'encoder_no_repeat_ngram_size': 0, 'min_length': 0,
    'min_p': 0.0,
}  # fmt: skip
TOKENS = (
    'eos_token_id', 'suppress_tokens', 'begin_suppress_tokens', 'forced_bos_token_id', 'forced_eos_token_id',
    'bad_words_ids',
)  # fmt: skip
SAMPLING = ('temperature', 'top_k', 'top_p', 'min_p', 'typical_p', 'epsilon_cutoff', 'eta_cutoff')


def force_tokens(logits: Tensor, named: Tensor, where: bool | Tensor) -> Tensor:
    """Return logits (b, l) that allow only the named tokens (l), even if they were banned, where `where` is True."""
    forced = torch.zeros_like(logits).masked_fill(~named, BANNED)
    if torch.is_tensor(where):
        return torch.where(where.unsqueeze(-1), forced, logits)
    return forced if where else logits


@dataclass(frozen=True)
class DivideByTemperature:
    """Logits processor that divides by the temperature before the filters. `generate` divides after them."""

    temperature: float

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        return logits / self.temperature


@dataclass(frozen=True)
class BadWords:
    """Logits processor that bans sequences of tokens. Padding never matches."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        ids, real = history_of(ids, history).left_padded()
        length = ids.shape[1]
        for word in self.words:
            last = get_mask(word[-1:], logits)
            if len(word) == 1:
                logits = mask_tokens(logits, last)
            elif len(word) <= length:
                said = (ids[:, length - len(word) + 1 :] == ids.new_tensor(word[:-1])).all(dim=-1)
                logits = mask_tokens(logits, last, said if real is None else said & real[:, length - len(word)])
        return logits


@dataclass(frozen=True)
class ForcedFirstToken:
    """Logits processor that allows only some tokens after the first token of a decoder."""

    tokens: tuple[int, ...]

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        history = history_of(ids, history)
        alone = history.num_prompt_tokens + history.num_generated == 1
        return force_tokens(logits, get_mask(self.tokens, logits), alone)


@dataclass(frozen=True)
class ForcedLastToken:
    """Logits processor that allows only some tokens as the last of `max_new_tokens`."""

    tokens: tuple[int, ...]

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        history = history_of(ids, history)
        if history.max_new_tokens is None:
            return logits
        return force_tokens(logits, get_mask(self.tokens, logits), history.num_generated == history.max_new_tokens - 1)


@dataclass(frozen=True)
class SuppressedAtBegin:
    """Logits processor that bans tokens as the first generated one, or the next if `ForcedFirstToken` applies."""

    tokens: tuple[int, ...]
    after_forced: bool = False

    def __call__(self, ids: Tensor, logits: Tensor, history: GenerationHistory | None = None) -> Tensor:
        history = history_of(ids, history)
        begin: Any = 0
        if self.after_forced:
            alone = history.num_prompt_tokens == 1
            begin = alone.long() if torch.is_tensor(alone) else int(alone)
        return mask_tokens(logits, get_mask(self.tokens, logits), history.num_generated == begin)


def extract_generation_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of generation in a config.json, for models without generation_config.json."""
    known = {*TOKENS, *IDLE, *SAMPLING, 'do_sample', 'max_length', 'max_new_tokens', 'min_new_tokens'}
    found = {name: config[name] for name in sorted(known & config.keys()) if config[name] is not None}
    ends = [end for end in to_tuple(found.pop('eos_token_id', ())) if end < config.get('vocab_size', math.inf)]
    if ends:  # Ids outside the vocabulary, such as defaults of the class of a small model, are dropped.
        found['eos_token_id'] = ends if len(ends) > 1 else ends[0]
    return {'do_sample': False, **found}


def to_tuple(tokens: Any) -> tuple[int, ...]:
    return tuple(tokens) if isinstance(tokens, (list, tuple)) else (tokens,)


def generation_keywords(said: Mapping[str, Any], kind: str = '', has_source: bool = False) -> dict[str, Any]:
    """Return the keywords of `generate` for a generation_config.json, with a warning of settings without a counterpart.

    Sequences of a model that `has_source`, an encoder-decoder, begin with a given token.
    """
    set_ = {n: v for n, v in said.items() if v is not None and n not in FREE and v != IDLE.get(n, None)}
    samples = bool(said.get('do_sample', False)) and said.get('temperature') != 0
    found: dict[str, Any] = {}
    take = set_.pop
    if not said:
        return found
    steps: list[Any] = []
    if 'eos_token_id' in set_:
        eos = take('eos_token_id')
        found['eos_token'] = tuple(eos) if isinstance(eos, (list, tuple)) else eos
    set_max_length(found, set_, has_source)
    if 'repetition_penalty' in set_:
        found['repetition_penalty'] = take('repetition_penalty')
    if 'suppress_tokens' in set_:
        found['banned_tokens'] = to_tuple(take('suppress_tokens'))
    if 'no_repeat_ngram_size' in set_:
        steps.append(NoRepeat(take('no_repeat_ngram_size')))
    if 'bad_words_ids' in set_:
        ends = [(token,) for token in to_tuple(found.get('eos_token', ()))]
        words = tuple(word for word in map(tuple, take('bad_words_ids')) if word not in ends)
        steps += [BadWords(words)] if words else []
    steps += make_position_processors(found, set_)
    if samples:
        set_sampling(found, set_, steps)
    else:
        found['temperature'] = 0.0
        for name in SAMPLING:
            set_.pop(name, None)
    if steps:
        found['logits_processor'] = tuple(steps)
    if set_:
        warn_once(
            f'generation of this {kind} checkpoint has the settings {", ".join(f"`{n}`" for n in sorted(set_))}, which '
            f'`generate` has no keywords for: they are left out'
            + (f'; `beam_search(..., beams={set_["num_beams"]})` searches with beams' if 'num_beams' in set_ else '')
        )
    return found


def set_max_length(found: dict[str, Any], set_: dict[str, Any], has_source: bool) -> None:
    """Set the number of tokens. `max_length` includes the tokens that a decoder begins with."""
    if 'max_new_tokens' in set_:
        found['seq_len'] = set_.pop('max_new_tokens')
        set_.pop('max_length', None)
    elif 'max_length' in set_ and has_source:
        found['seq_len'] = TotalLength(set_.pop('max_length'))


def make_position_processors(found: dict[str, Any], set_: dict[str, Any]) -> list[Any]:
    """Return processors that force or ban tokens at the first or last positions, in the order of transformers."""
    steps: list[Any] = []
    total, new = set_.pop('min_length', 0), set_.pop('min_new_tokens', 0)
    total = 0 if new else total  # transformers ignores it then.
    if 'eos_token' in found and (total or new):
        steps.append(NoEndBefore(to_tuple(found['eos_token']), total, new))
    first = 'forced_bos_token_id' in set_
    if first:
        steps.append(ForcedFirstToken(to_tuple(set_.pop('forced_bos_token_id'))))
    if 'forced_eos_token_id' in set_:
        steps.append(ForcedLastToken(to_tuple(set_.pop('forced_eos_token_id'))))
    if 'begin_suppress_tokens' in set_:
        steps.append(SuppressedAtBegin(to_tuple(set_.pop('begin_suppress_tokens')), first))
    return steps


def set_sampling(found: dict[str, Any], set_: dict[str, Any], steps: list[Any]) -> None:
    """Set the temperature and the filters that follow it."""
    heat, most = set_.pop('temperature', 1.0), set_.pop('top_k', TOP_K)
    filters: list[tuple[Any, dict[str, Any]]] = []
    if most:  # 0 keeps all tokens.
        filters.append((top_k, {'k': most}))
    if 'top_p' in set_:
        filters.append((top_p, {'thres': set_.pop('top_p')}))
    if 'min_p' in set_:
        filters.append((min_p, {'min_p': set_.pop('min_p')}))
    if heat != 1:
        steps.append(DivideByTemperature(heat))
    found['temperature'] = 1.0
    found['filter_logits_fn'] = tuple(one for one, _ in filters)
    found['filter_kwargs'] = tuple(keywords for _, keywords in filters)


__all__ = ['generation_keywords']

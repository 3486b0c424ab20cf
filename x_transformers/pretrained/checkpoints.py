"""Checkpoints whose names differ from the table: wrappers add prefixes, and composites hold a text model."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from x_transformers.flags import ConfigError, warn_once
from x_transformers.pretrained.engine import canonical_name
from x_transformers.pretrained.files import Weights
from x_transformers.pretrained.specs import SPECS, ModelSpec

# Prefixes of `torch.compile`, FSDP, activation checkpointing and DeepSpeed.
WRAPPERS = re.compile(r'(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.')

AVERAGED = 'n_averaged'  # `torch.optim.swa_utils.AveragedModel` stores this count next to `module.`.


def mask_numbers(name: str) -> str:
    return re.sub(r'\d+|\{[^}]*\}', '#', name)


def collect_names(spec: ModelSpec) -> set[str]:
    """Return the names of all tensors of a spec, with `#` for numbers."""
    own = {mask_numbers(name) for one in spec.links for name in one.theirs}
    return own.union(*(collect_names(SPECS[kind]) for _, kind, _ in spec.parts.values()))


def make_matcher(spec: ModelSpec) -> Callable[[str], int]:
    """Return a function that scores a name in a file: 2 for a name of the spec, 1 if the prefix differs, else 0."""
    known = collect_names(spec)

    def fit(name: str) -> int:
        new = canonical_name(spec, name)
        if mask_numbers(new) in known:
            return 2
        return int(any(mask_numbers(n) in known for n in (spec.base + new, new.removeprefix(spec.base))))

    return fit


def describe_names(spec: ModelSpec, names: Collection[str]) -> str | None:
    """Return a sentence that names the type with the names in a file, or None if half of them are in the spec."""
    other = [name for name in names if not make_matcher(spec)(name)]
    if 2 * len(other) <= len(names):
        return None
    fits = {kind: sum(map(make_matcher(one), names)) for kind, one in SPECS.items()}
    best = max(fits, key=lambda kind: fits[kind])
    said = f'those of a {SPECS[best].type}, not' if fits[best] > fits.get(spec.type, 0) else 'not those'
    return f'Its names, such as `{min(other)}`, are {said} of a {spec.type}'


def find_common_prefixes(names: Collection[str]) -> list[str]:
    """Return '' and the prefixes, up to a dot, that all names share, the shortest first."""
    first, last = (name.split('.')[:-1] for name in (min(names), max(names)))
    same = [a == b for a, b in zip(first, last, strict=False)]
    count = [*same, False].index(False)
    return [''.join(f'{part}.' for part in first[:i]) for i in range(count + 1)]


def strip_prefixes(weights: Weights, fit: Callable[[str], int]) -> str:
    """Remove, and return, a prefix that all names in a file share and the table does not have, with a warning."""
    others = weights.files.keys() - {AVERAGED}
    if AVERAGED in weights and all(name.startswith('module.') for name in others):
        del weights.files[AVERAGED]
    names = {name: WRAPPERS.sub('', name) for name in weights.files}
    prefixes = find_common_prefixes([*names.values()]) if names else ['']
    fits = [sum(fit(name.removeprefix(p)) for name in names.values()) if prefixes[1:] else 0 for p in prefixes]
    prefix = prefixes[fits.index(max(fits))]
    names = {name: new.removeprefix(prefix) for name, new in names.items()}
    if all(name == new for name, new in names.items()):
        return ''
    if len(set(names.values())) < len(names):
        raise ConfigError(f'names of the file, such as `{next(iter(names))}`, must differ in more than their wrappers')
    name, new = next((name, new) for name, new in names.items() if name != new)
    warn_once(f'names of tensors are read without the wrappers around their modules: `{name}` as `{new}`')
    weights.rename(names)
    return name.removesuffix(new) if name.endswith(new) else prefix


QWEN2_VL = dict(
    vocab_size=152064, hidden_size=8192, intermediate_size=29568, num_hidden_layers=80, num_attention_heads=64,
    num_key_value_heads=8, rms_norm_eps=1e-5, sliding_window=None, max_window_layers=80,
)  # fmt: skip
QWEN3_VL = dict(
    vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=32, head_dim=128, max_position_embeddings=128000, rms_norm_eps=1e-6, rope_theta=500000.0,
)  # fmt: skip
# Types of composites -> the type of their text model, if the config does not name it.
COMPOSITES = {
    'gemma3': 'gemma3_text', 'llava': 'llama', 'llava_next': 'llama', 'llava_next_video': 'llama',
    'llava_onevision': 'qwen2', 'vipllava': 'llama', 'video_llava': 'llama', 'mistral3': 'mistral',
    'aya_vision': 'cohere2', 'idefics3': 'llama', 'smolvlm': 'llama', 'internvl': 'qwen2', 'got_ocr2': 'qwen2',
    'qwen2_audio': 'qwen2', 'voxtral': 'llama', 'qwen2_vl': 'qwen2_vl_text', 'qwen2_5_vl': 'qwen2_5_vl_text',
    'qwen3_vl': 'qwen3_vl_text',
}  # fmt: skip
# Types of text models that are another type with other defaults. Positions of mrope are equal for text alone.
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    'qwen2_vl_text': ('qwen2', QWEN2_VL), 'qwen2_5_vl_text': ('qwen2', QWEN2_VL), 'qwen3_vl_text': ('qwen3', QWEN3_VL),
}  # fmt: skip
TEXT_NAMES = (
    r'language_model\.|model\.language_model\.|model\.text_model\.|lm_head\.|model\.(embed_tokens|layers|norm)\.'
)
OUTSIDE_PREFIX = 'outside.'
COMPOSITE_FIELDS = ('dtype', 'torch_dtype', 'tie_word_embeddings')
# Fields of the logits that text models apply and composites do not.
PLAIN_HEAD = {'logit_scale': 1.0, 'logits_scaling': 1.0, 'final_logit_softcapping': None}
SPECIAL = ('bos_token_id', 'eos_token_id', 'pad_token_id')


def is_composite(config: Mapping[str, Any]) -> bool:
    """Return True for the config of a checkpoint with a text model and others."""
    return str(config.get('model_type')).replace('-', '_') in COMPOSITES


def drop_mrope_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a text model without the sections for positions of images."""
    found = dict(config)
    for name in ('rope_parameters', 'rope_scaling'):
        if isinstance(found.get(name), Mapping):
            rope = {k: v for k, v in found[name].items() if k not in ('mrope_section', 'mrope_interleaved')}
            if 'mrope' in (rope.get('rope_type'), rope.get('type')):
                rope = {**{k: v for k, v in rope.items() if k != 'type'}, 'rope_type': 'default'}
            found[name] = rope
    return found


def extract_text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the text part of a composite, as that of a separate model.

    Raises:
        ConfigError: The type of the text model is not supported.
    """
    whole = str(config.get('model_type')).replace('-', '_')
    inner = config.get('text_config')
    given = dict(inner) if isinstance(inner, Mapping) else {
        name: value for name, value in config.items() if name not in ('vision_config', 'model_type', 'architectures')
        and not name.startswith(('image_', 'video_', 'vision_'))
    }  # fmt: skip
    said = str(given.get('model_type') or COMPOSITES[whole]).replace('-', '_')
    if said not in SPECS and said not in TEXTS:
        said = COMPOSITES[whole] if said == whole else said
    kind, defaults = TEXTS.get(said, (said, {}))
    if kind not in SPECS:
        raise ConfigError(f'`text_config` of this {whole} checkpoint must have a supported type, got {said!r}')
    spec = SPECS[kind]
    outer = {name: config[name] for name in COMPOSITE_FIELDS if name in config}
    special = {name: config[name] for name in SPECIAL if name in config and given.get(name) is None}
    given = {name: value for name, value in given.items() if name not in ('tie_word_embeddings', 'architectures')}
    plain = {name: value for name, value in PLAIN_HEAD.items() if name in spec.defaults}
    found = {**defaults, **given, **special, **outer, **plain}
    if said in TEXTS:
        found = drop_mrope_sections(found)
    return {**found, 'model_type': spec.spelled or spec.type, 'architectures': [spec.architectures[0]]}


def adapt_to_composite(spec: ModelSpec) -> ModelSpec:
    """Return the spec of a text part for the names of the composite. Tensors of other parts are left out."""
    renames = (
        (rf'^(?!{TEXT_NAMES})', OUTSIDE_PREFIX),
        (r'^(language_model\.lm_head|lm_head)\.', 'lm_head.'),
        (r'^(language_model\.model|model\.language_model|model\.text_model|language_model)\.', spec.base),
    )
    return replace(spec, renames=(*renames, *spec.renames), outside=OUTSIDE_PREFIX)

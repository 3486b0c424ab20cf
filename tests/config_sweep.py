"""Configs of models of `transformers`, each with some fields that say something else, for the same weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from pretrained_cases import Case

from x_transformers.pretrained.specs import SPECS, ModelSpec

GONE = object()  # a field that the config leaves out
Change = dict[str, Any]

ACTIVATIONS = ('relu', 'gelu', 'gelu_new', 'silu')
# what says nothing about numbers, or what the shapes of weights settle
LEFT = {
    'dtype',
    'torch_dtype',
    'transformers_version',
    'model_type',
    'architectures',
    'quantization_config',
    'vocab_size',
}
# fields of rotary positions, of windows, and what each may say beside the others
LINEAR, YARN = {'rope_type': 'linear', 'factor': 4.0}, {'rope_type': 'yarn', 'factor': 4.0}
ROPES: list[Change] = [
    dict(rope_parameters=GONE),
    dict(rope_parameters=None),
    dict(rope_parameters={}),
    dict(rope_parameters=GONE, rope_theta=500.0),
    dict(rope_parameters=GONE, rope_theta=500),
    dict(rope_parameters=GONE, rope_theta=None),
    dict(rope_theta=500.0),
    dict(rope_parameters={'rope_type': 'default', 'rope_theta': 500.0}),
    dict(rope_parameters={'rope_type': 'default', 'rope_theta': 500.0}, rope_theta=300.0),
    dict(rope_parameters={'rope_type': 'default'}, rope_theta=300.0),
    dict(rope_parameters={'rope_theta': 300.0}),
    dict(rope_parameters={'rope_type': None, 'rope_theta': 300.0}),
    dict(rope_parameters={'rope_type': 'default', 'rope_theta': None}, rope_theta=300.0),
    dict(rope_parameters=GONE, rope_scaling=LINEAR),
    dict(rope_parameters=GONE, rope_scaling=LINEAR, rope_theta=500.0),
    dict(rope_parameters=GONE, rope_scaling={'type': 'linear', 'factor': 4.0}, rope_theta=500.0),
    dict(rope_parameters=GONE, rope_scaling={'type': 'linear', 'factor': 4}),
    dict(rope_parameters=GONE, rope_scaling={'type': 'linear', 'factor': None}),
    dict(rope_parameters=GONE, rope_scaling={'type': 'linear'}),
    dict(rope_parameters=GONE, rope_scaling={'factor': 4.0}),
    dict(rope_parameters=GONE, rope_scaling={'rope_type': 'linear', 'type': 'dynamic', 'factor': 4.0}),
    dict(rope_parameters=GONE, rope_scaling={'rope_type': None, 'type': 'linear', 'factor': 4.0}),
    dict(rope_parameters={'type': 'linear', 'factor': 4.0, 'rope_theta': 500.0}),
    dict(rope_scaling=LINEAR),
    dict(rope_scaling={**LINEAR, 'rope_theta': 700.0}),
    dict(rope_scaling={}),
    dict(rope_scaling=None),
    dict(rope_scaling=LINEAR, rope_theta=500.0),
    dict(rope_scaling=LINEAR, rope_parameters={**YARN, 'rope_theta': 500.0, 'original_max_position_embeddings': 8}),
    dict(rope_scaling=None, rope_parameters={**YARN, 'rope_theta': 500.0, 'original_max_position_embeddings': 8}),
    *({'rope_parameters': GONE, **one} for one in (
        dict(partial_rotary_factor=0.5), dict(partial_rotary_factor=0.5, rope_scaling=LINEAR),
        dict(partial_rotary_factor=1.0), dict(partial_rotary_factor=None), dict(partial_rotary_factor=1),
        dict(partial_rotary_factor=0.5, rope_scaling={**LINEAR, 'partial_rotary_factor': 1.0}),
        dict(rope_scaling={**LINEAR, 'partial_rotary_factor': 0.5}),
        dict(rope_scaling={'rope_type': 'default', 'partial_rotary_factor': 0.5}),
        dict(rope_scaling=YARN), dict(rope_scaling={**YARN, 'factor': 4}), dict(rope_scaling={'rope_type': 'yarn'}),
        dict(rope_scaling=YARN, original_max_position_embeddings=8),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8}, original_max_position_embeddings=16),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'attention_factor': 1.5}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'attention_factor': None}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'mscale': 0.7}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'mscale': 0.7, 'mscale_all_dim': 0.5}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'mscale_all_dim': 0.5}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'mscale': 0, 'mscale_all_dim': 0}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'beta_fast': 4, 'beta_slow': 2}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'beta_fast': None, 'beta_slow': None}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'truncate': False}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'finetuned': True}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'factor': 0.5}),
        dict(rope_scaling={**YARN, 'original_max_position_embeddings': 8, 'factor': 1.0}),
        dict(rope_scaling={'rope_type': 'dynamic', 'factor': 4.0}),
        dict(rope_scaling={'rope_type': 'dynamic', 'factor': 4.0}, max_position_embeddings=8),
        dict(rope_scaling={'rope_type': 'dynamic', 'factor': 4.0, 'alpha': 100.0}, max_position_embeddings=8),
        dict(rope_scaling={'rope_type': 'dynamic', 'factor': 4.0, 'original_max_position_embeddings': 8}),
        dict(rope_scaling={'rope_type': 'dynamic', 'factor': 4.0}, original_max_position_embeddings=8),
        dict(rope_scaling={'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
                           'original_max_position_embeddings': 32}),
        dict(rope_scaling={'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4,
                           'original_max_position_embeddings': 32}, original_max_position_embeddings=16),
        dict(rope_scaling={'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0}),
        dict(rope_scaling={'rope_type': 'llama3', 'factor': 8.0, 'original_max_position_embeddings': 32}),
        dict(rope_scaling={'rope_type': 'llama3', 'low_freq_factor': 1.0, 'high_freq_factor': 4.0,
                           'original_max_position_embeddings': 32}),
        dict(rope_scaling={'rope_type': 'mrope', 'mrope_section': [1, 1, 2]}),
        dict(rope_scaling={'type': 'default', 'mrope_section': [1, 1, 2]}),
        dict(rope_scaling={'rope_type': 'proportional', 'factor': 4.0}),
        dict(rope_scaling={'rope_type': 'proportional', 'partial_rotary_factor': 0.5}),
        dict(rope_scaling={'rope_type': 'ntk', 'factor': 4.0}),
        dict(rope_scaling={'rope_type': 'default', 'factor': 4.0}),
    )),
    dict(rope_parameters={'rope_theta': 500.0, 'rope_type': 'default', 'partial_rotary_factor': 0.5}),
    dict(rope_parameters={'rope_theta': 500.0, 'rope_type': 'default', 'partial_rotary_factor': 0.5},
         partial_rotary_factor=1.0),
    dict(rope_parameters={'rope_theta': 500.0, 'rope_type': 'default'}, partial_rotary_factor=0.5),
    dict(rope_parameters={'rope_theta': 500.0, **LINEAR}, partial_rotary_factor=0.5),
    dict(rope_parameters={'full_attention': {**LINEAR, 'rope_theta': 500.0},
                          'sliding_attention': {'rope_type': 'default', 'rope_theta': 300.0}}),
    dict(rope_parameters={'full_attention': {**LINEAR, 'rope_theta': 500.0}}),
    dict(rope_parameters={'sliding_attention': {**LINEAR, 'rope_theta': 500.0}}),
    dict(rope_parameters={'full_attention': LINEAR, 'sliding_attention': {'rope_type': 'default'}}, rope_theta=300.0),
    dict(rope_parameters={'full_attention': LINEAR, 'sliding_attention': {'rope_type': 'default'}},
         rope_local_base_freq=300.0, local_rope_theta=200.0, global_rope_theta=400.0),
    dict(rope_parameters={'full_attention': {'rope_type': 'default', 'rope_theta': 500.0},
                          'sliding_attention': {'rope_type': 'default', 'rope_theta': 300.0}},
         rope_theta=700.0, rope_local_base_freq=800.0, local_rope_theta=200.0, global_rope_theta=400.0),
    dict(rope_parameters={'full_attention': {'rope_type': 'default', 'rope_theta': 500.0},
                          'sliding_attention': {'rope_type': 'default', 'rope_theta': 300.0}}, rope_scaling=LINEAR),
    dict(rope_parameters={'full_attention': {'type': 'linear', 'factor': 4.0, 'rope_theta': 500.0},
                          'sliding_attention': {'type': 'default', 'rope_theta': 300.0}}),
    dict(rope_parameters=GONE, rope_local_base_freq=300.0),
    dict(rope_parameters=GONE, local_rope_theta=300.0, global_rope_theta=500.0),
    dict(rope_parameters=GONE, local_rope_theta=None, global_rope_theta=500.0),
    dict(rope_parameters=GONE, rotary_emb_base=300.0, rotary_pct=0.5),
    dict(rope_parameters=GONE, rotary_emb_base=300, rotary_pct=1.0),
    dict(rope_parameters=GONE, rotary_emb_base=300.0, rope_theta=500.0),
    dict(rope_parameters=GONE, rotary_pct=0.5, partial_rotary_factor=1.0),
    dict(rotary_emb_base=300.0, rotary_pct=1.0),
    dict(original_max_position_embeddings=16),
    dict(original_max_position_embeddings=None),
]  # fmt: skip
for _n in (2, 3, 4, 6):
    _long = {'rope_type': 'longrope', 'short_factor': [1.0 + 0.1 * i for i in range(_n)],
             'long_factor': [1.0 + i for i in range(_n)]}  # fmt: skip
    ROPES += [
        dict(rope_parameters=GONE, rope_scaling={**_long, 'type': 'su', 'rope_type': GONE}),
        dict(rope_parameters=GONE, rope_scaling=_long),
        dict(rope_parameters=GONE, rope_scaling=_long, original_max_position_embeddings=8),
        dict(rope_parameters=GONE, rope_scaling=_long, original_max_position_embeddings=32),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 8}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 8, 'factor': 4.0}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'factor': 4.0}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'factor': 4.0}, original_max_position_embeddings=8),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 8,
                                                 'attention_factor': 1.5}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 8, 'short_mscale': 1.2,
                                                 'long_mscale': 1.3}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 64}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'type': 'yarn', 'rope_type': GONE}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'rope_type': 'yarn'}),
        dict(rope_parameters=GONE, rope_scaling={**_long, 'original_max_position_embeddings': 8},
             partial_rotary_factor=0.5),
        dict(rope_parameters={**_long, 'rope_theta': 500.0, 'original_max_position_embeddings': 8,
                              'partial_rotary_factor': 0.5}),
    ]  # fmt: skip


def without_gone(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_gone(v) for name, v in value.items() if v is not GONE}
    return value


FULL, SLIDES = 'full_attention', 'sliding_attention'


def windows(layers: int) -> Iterator[Change]:
    """Two or three fields of windows at once."""
    mixed = [FULL, SLIDES] * layers
    said: dict[str, list[Any]] = {
        'sliding_window': [4, 1, None, GONE],
        'use_sliding_window': [True, False, GONE],
        'max_window_layers': [0, 1, 99],
        'layer_types': [
            GONE, None, mixed[:layers], mixed[1 : layers + 1], [FULL] * layers, [SLIDES] * layers, [SLIDES],
            ['chunked_attention'] * layers,
        ],
        'sliding_window_pattern': [2, 1, None, 'LLLG', GONE],
        '_sliding_window_pattern': [2, 1, GONE],
        'local_attention': [4, 5, 1, 0, GONE],
        'global_attn_every_n_layers': [1, 2, GONE, 99],
        'no_rope_layers': [[0, 1] * layers, [1] * layers, [0] * layers, [1], None],
        'no_rope_layer_interval': [1, 2, GONE],
        'use_bidirectional_attention': [True, False, None],
    }  # fmt: skip
    said['no_rope_layers'] = [v[:layers] if isinstance(v, list) else v for v in said['no_rope_layers']]
    for (a, own), (b, others) in itertools.combinations(said.items(), 2):
        yield from ({a: x, b: y} for x in own for y in others)
    for x, y, z in itertools.product([4, None], [True, False], said['layer_types'][2:6]):
        yield {'sliding_window': x, 'use_sliding_window': y, 'layer_types': z}


def altered(name: str, value: Any) -> list[Any]:
    """Other values of one kind."""
    if ('act' in name and isinstance(value, str)) or value in ACTIVATIONS:
        return [act for act in (*ACTIVATIONS, 'quick_gelu', 'gelu_fast', 'gelu_python', 'mish') if act != value]
    if isinstance(value, bool):
        return [not value, int(not value), int(value)]
    if isinstance(value, float):
        return [value * 1.7 if value else 0.3, 0.0, 0, 1, *([int(value)] if value.is_integer() else [])]
    if isinstance(value, int):
        return [value + 1, float(value), 0, -1, 1, 2 * value]
    if value is None:
        return [True, False, 0, 1, 0.5, 3]
    return [[]] if isinstance(value, list) else []


def names_of(row: ModelSpec) -> list[str]:
    known = [*row.defaults, *row.names, *row.aliases, *row.fixed, *row.free, 'tie_word_embeddings']
    return [name for name in dict.fromkeys(known) if not callable(row.defaults.get(name)) and name not in LEFT]


def changes_of(case: Case, config: dict[str, Any], attribute_map: dict[str, str]) -> Iterator[Change]:
    """Each field alone; beside its other words, in either order; those of positions and windows together."""
    row = SPECS[case.type.replace('-', '_')]
    aliases = {**row.aliases, **row.names, **attribute_map}
    for name in dict.fromkeys((*config, *names_of(row), *attribute_map)):
        if name in LEFT or name.startswith('rope_'):
            continue
        value = config.get(name, config.get(aliases.get(name, ''), row.defaults.get(name)))
        value = None if callable(value) else value
        yield from ({name: one} for one in (GONE, None, value, *altered(name, value)))
        if isinstance(value, int) and not isinstance(value, bool) and 'rang' not in name:
            yield {name: '4'}
    for name, field in aliases.items():
        for old, new in ((name, field), (field, name)):
            value = config.get(new, config.get(old, row.defaults.get(field)))
            for one in altered(field, value)[:2]:
                yield {old: value, new: one}
                yield {new: GONE, old: one}
                yield {new: GONE, old: value}
                yield {new: None, old: value}
    if 'rope_parameters' in row.defaults:
        yield from map(without_inner, ROPES)
    if 'layer_types' in row.defaults or 'sliding_window' in row.defaults:
        known = {*names_of(row), *config}
        seen = set()
        for one in windows(config['num_hidden_layers']):
            if known >= one.keys() or ('layer_types' in one and known & one.keys() == one.keys() - {'layer_types'}):
                key = repr(sorted(one.items(), key=str))
                if key not in seen:
                    seen.add(key)
                    yield one


def without_inner(change: Change) -> Change:
    return {name: value if value is GONE else without_gone(value) for name, value in change.items()}


def said_with(config: dict[str, Any], change: Change) -> str:
    """The config with the change, those fields last; as JSON."""
    return json.dumps({
        **{name: value for name, value in config.items() if name not in change},
        **{name: value for name, value in change.items() if value is not GONE},
    })  # fmt: skip

"""Conversion of config fields to keywords of this library. Each function takes the `Fields` of a config.

`@set_way_back(...)` adds an inverse: the fields for a value of the keyword, for models that were never loaded. Its
arguments are the value, and the keywords of the stack and the wrapper together. The config found in this way is only a
proposal, which must give the same keywords.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from x_transformers.flags import ConfigError, is_int, warn_once
from x_transformers.flags.config import KINDS
from x_transformers.pretrained.mappings import order_heads
from x_transformers.pretrained.specs import Const, Fields, ModuleSpec, Value

ACTIVATIONS = {
    'gelu': 'gelu', 'gelu_python': 'gelu', 'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh', 'gelu_accurate': 'gelu_tanh', 'gelu_python_tanh': 'gelu_tanh', 'quick_gelu': 'quick_gelu',
    'relu': 'relu', 'relu2': 'relu2', 'silu': 'silu', 'swish': 'silu', 'tanh': 'tanh',
}  # fmt: skip


Back = Callable[[Any, dict[str, Any]], dict[str, Any]]


def set_way_back(
    *fields: str | Back, inverse: Callable[[Any], Any] = lambda v: v, if_set: bool = False
) -> Callable[[Any], Any]:
    """Mark a function from fields to a keyword with its inverse, for configs of models that were never loaded.

    `fields` are the names that `inverse` of the keyword is written to, or one function from the value and all keywords
    to a dict of fields. With `if_set` None writes nothing.
    """
    names: Any = fields

    def each(value: Any, keywords: dict[str, Any]) -> dict[str, Any]:
        return {} if if_set and value is None else {name: inverse(value) for name in names}

    def mark(function: Any) -> Any:
        function.back = fields[0] if callable(fields[0]) else each
        return function

    return mark


def add_defaults(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a call together with the defaults of its class."""
    return {**{name: flag.default for name, flag in KINDS[call['class']].accepted().items()}, **call}


def invert_keywords(values: Mapping[str, Value], given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the given keywords are computed from."""
    found: dict[str, Any] = {}
    for keyword, value in values.items():
        found.update(invert_value(value, given.get(keyword), given))
    return found


def invert_value(value: Value, now: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that one keyword is computed from; `value` is its entry in the table."""
    if isinstance(value, str):
        return {value: now}
    way = getattr(value, 'back', None)
    try:
        if isinstance(value, ModuleSpec):
            return invert_keywords(value.keywords, add_defaults(now))
        return {} if way is None or isinstance(value, Const) else way(now, given)
    except (TypeError, KeyError, ZeroDivisionError, OverflowError):
        return {}  # The type has no such value.


def activation(name: str) -> Callable[[Fields], str]:
    """Return a function to the activation that a field names."""

    @set_way_back(name, inverse=invert_activation)
    def read(c: Fields) -> str:
        value = getattr(c, name)
        if value not in ACTIVATIONS:
            raise c.spec.error(name, f'must be one of {", ".join(ACTIVATIONS)}', value)
        return ACTIVATIONS[value]

    return read


def invert_activation(name: str) -> str:
    return next((theirs for theirs, ours in ACTIVATIONS.items() if ours == name), name)


def negate(name: str) -> Callable[[Fields], bool]:
    return set_way_back(name, inverse=operator.not_)(lambda c: not getattr(c, name))


def is_not(condition: Callable[[Fields], bool]) -> Callable[[Fields], bool]:
    return lambda c: not condition(c)


def power(name: str, exponent: float) -> Callable[[Fields], float]:
    way = set_way_back(name, inverse=lambda v: round_if_whole(v ** (1 / exponent)))
    return way(lambda c: getattr(c, name) ** exponent)


def emb_scale(name: str) -> Callable[[Fields], float]:
    """Return a function to the square root of a width, rounded to float32 unless the checkpoint is float64."""

    def read(c: Fields) -> float:
        said = c.config.get('dtype', c.config.get('torch_dtype'))
        dtype = torch.float64 if said == 'float64' else torch.float32
        return float(torch.tensor(getattr(c, name) ** 0.5, dtype=dtype, device='cpu'))

    return read


def token_id(name: str, default: int | None = None) -> Callable[[Fields], int | None]:
    """Return a function to the id of a special token. Most specs have no field for it."""
    return set_way_back(name)(lambda c: c.values.get(name, default))


def one_over(name: str) -> Callable[[Fields], float]:
    return set_way_back(name, inverse=lambda v: round_if_whole(1 / v))(lambda c: 1 / getattr(c, name))


def round_if_whole(number: float) -> float:
    """Return the nearest integer if the number is one up to rounding, else the number."""
    return round(number) if math.isclose(number, round(number), rel_tol=1e-9) else number


def when(condition: Value, value: Any = None) -> Callable[[Fields], Any]:
    """Return a function to a value where a condition holds, by default that of the condition, and to None elsewhere."""

    def read(c: Fields) -> Any:
        found = c.value(condition)
        return (found if value is None else c.value(value)) if found else None

    return read


def unless(condition: Value, value: Value) -> Callable[[Fields], Any]:
    """Return a function to a value where a condition does not hold, and to None elsewhere."""
    return lambda c: None if c.value(condition) else c.value(value)


def divide(width: str, heads: str) -> Callable[[Fields], int]:
    return lambda c: getattr(c, width) // getattr(c, heads)


def inner_width(c: Fields) -> int:
    return c.intermediate_size or 4 * c.hidden_size


def is_set(value: Any) -> bool:
    return value is not None


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def list_if_pair(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def list_per_layer(value: Any, keywords: Mapping[str, Any]) -> Any:
    """Return the values of a keyword for all layers, which may be one value."""
    return value if isinstance(value, (list, tuple)) else [value] * keywords['depth']


equal_width = divide('hidden_size', 'num_attention_heads')
# Sizes of models with one key head per query head.
MULTI_HEAD: dict[str, Value] = dict(
    heads='num_attention_heads', kv_heads='num_attention_heads', dim_head=equal_width, dim_value=equal_width
)
# Keywords of stacks like that of BERT, of the usual fields.
ENCODER_LAYERS: dict[str, Value] = dict(
    dim='hidden_size', depth='num_hidden_layers', heads='num_attention_heads', attn_dim_head=equal_width,
    norm_bias=True, norm_add_unit_offset=False, norm_eps='layer_norm_eps', attn_qkv_bias=True, attn_out_bias=True,
    ff_dim_inner='intermediate_size', ff_activation=activation('hidden_act'), verbose=False,
)  # fmt: skip


def drop_branches(field: str) -> dict[str, Value]:
    """Return the keywords of a dropout after both attention and feedforward."""
    return dict(attn_sublayer_dropout=field, ff_sublayer_dropout=field)


# images and classes


def area(name: str) -> Callable[[Fields], Any]:
    """Return a function to a size: one number if height and width are equal, else both."""

    @set_way_back(name, inverse=list_if_pair)
    def read(c: Fields) -> Any:
        value = getattr(c, name)
        pair = value if isinstance(value, (list, tuple)) else (value, value)
        return pair[0] if len(set(pair)) == 1 else tuple(pair)

    return read


def invert_classes(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    names = {str(i): f'LABEL_{i}' for i in range(v)}
    return {'id2label': names, 'label2id': {name: int(i) for i, name in names.items()}}


@set_way_back(invert_classes)
def classes(c: Fields) -> int:
    """Return the number of classes of a head."""
    labels = c.values.get('id2label')
    return len(labels) if labels is not None else c.values.get('num_labels', c.values.get('_num_labels', 2))


# heads


@set_way_back('head_dim')
def head_width(c: Fields) -> int:
    return c.values.get('head_dim') or c.hidden_size // c.num_attention_heads


@set_way_back('num_key_value_heads')
def kv_heads(c: Fields) -> int:
    return c.num_key_value_heads or c.num_attention_heads


# layers with an attention window


def sliding_where(rule: Callable[[Fields, int], Any]) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a function to True for the layers that a rule selects, if the config has a window and uses it."""

    def read(c: Fields) -> tuple[bool, ...]:
        slides = c.sliding_window is not None and c.values.get('use_sliding_window', True)
        return tuple(bool(slides and rule(c, i)) for i in range(c.num_hidden_layers))

    return read


sliding_everywhere = sliding_where(lambda c, i: True)
sliding_late = sliding_where(lambda c, i: i >= c.max_window_layers)
sliding_unrotated = sliding_where(lambda c, i: not rotating_as_listed(c)[i])


def sliding_but_every(pattern: str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a function to True for all layers but every n-th."""
    return sliding_where(lambda c, i: (i + 1) % getattr(c, pattern))


def sliding_unless_listed(c: Fields) -> tuple[bool, ...]:
    """Return True for all layers if there is a window. A list with full attention is refused as ambiguous."""
    if c.sliding_window is not None and 'full_attention' in (c.values.get('layer_types') or ()):
        raise ConfigError(
            f"`layer_types` of this {c.spec.type} checkpoint cannot combine 'full_attention' with `sliding_window`: "
            f'its class ignores the list, and `AutoModel` uses the class of ministral. Leave out `layer_types`, or '
            f"set `model_type` to 'ministral'"
        )
    return sliding_everywhere(c)


def window_both(c: Fields) -> Any:
    """Return the number of tokens on each side that each layer attends to."""
    return merge_equal([c.local_attention // 2 if slide else None for slide in list_windowed(c)])


def list_windowed(c: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it has a window: as listed, else by the rule of the type."""
    if 'layer_types' not in c.spec.defaults or c.layer_types is None:
        return c.sliding(c)
    known = {'full_attention': False, 'sliding_attention': True}
    wrong = next((kind for kind in c.layer_types if kind not in known), None)
    if wrong is not None or len(c.layer_types) != c.num_hidden_layers:
        must = f'must be {c.num_hidden_layers} of {", ".join(known)}'
        raise c.spec.error('layer_types', must, wrong or len(c.layer_types))
    slides = c.values.get('sliding_window', 0) is not None
    if c.values.get('lists_if_used'):
        slides = slides and bool(c.values.get('use_sliding_window', True))
    return tuple(known[kind] and slides for kind in c.layer_types)


def invert_window(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {'sliding_window': None, 'layer_types': ['full_attention'] * k['depth']}
    slides = list_per_layer(v, k)
    kinds = ['full_attention' if one is None else 'sliding_attention' for one in slides]
    longest = max(one for one in slides if one is not None)
    return {'sliding_window': longest + 1, 'use_sliding_window': True, 'layer_types': kinds}


@set_way_back(invert_window)
def window(c: Fields) -> Any:
    """Return the number of previous tokens that each layer attends to. transformers counts the token itself too."""
    slides = list_windowed(c)
    if not any(slides):
        return None
    return c.sliding_window - 1 if all(slides) else tuple(c.sliding_window - 1 if slide else None for slide in slides)


# rotary positions


def read_rope(c: Fields, kind: str | None = None) -> dict[str, Any]:
    """Return the rotary parameters of a config, for layers of one kind.

    `rope_scaling`, the older field, takes precedence over `rope_parameters`, as in `transformers`. A base or a rotated
    part in a field of its own is used if neither of them has one.
    """
    said = read_rope_of_kind(c, kind) if kind else {**(c.rope_scaling or get_rope_parameters(c))}
    if any(isinstance(value, dict) for value in said.values()):
        said = {}  # They are for kinds of layers, which this type does not have.
    if kind is None:
        said.setdefault('rope_theta', c.rope_theta)
        if c.values.get('partial_rotary_factor') is not None:
            said.setdefault('partial_rotary_factor', c.partial_rotary_factor)
    name = said.pop('rope_type', said.get('type', 'default'))
    said.pop('type', None)
    if name == 'default' and not c.values.get('rotates_part'):
        said['partial_rotary_factor'] = 1.0  # Most types read it only together with a scaling.
    return {'partial_rotary_factor': 1.0, **said, 'kind': c.values.get('older_kinds', {}).get(name, name)}


def get_rope_parameters(c: Fields) -> dict[str, Any]:
    given = c.rope_parameters
    return (c.spec.defaults['rope_parameters'] if given is None else given) or {}


def read_rope_of_kind(c: Fields, kind: str) -> dict[str, Any]:
    """Return the rotary parameters for one kind of layer. Older configs scale only those in `scaled_kinds`."""
    given = get_rope_parameters(c)
    if given.get('partial_rotary_factor', 1) != 1:  # It stands outside of the kinds of layers.
        raise ConfigError(
            f'`partial_rotary_factor` of this {c.spec.type} checkpoint cannot be combined with kinds of layers in '
            f'`rope_parameters`, it must be in those of {kind}'
        )
    said = dict(given.get(kind) or {'rope_type': 'default'})
    if c.rope_scaling is not None and kind in c.scaled_kinds:
        said.update(c.rope_scaling)
    said.setdefault('rope_theta', c.full_theta if kind == 'full_attention' else c.local_theta)
    return said


@set_way_back(lambda v, k: {'partial_rotary_factor': v / k['attn_dim_head']})
def rotated_channels(c: Fields) -> int:
    part = read_rope(c)['partial_rotary_factor']
    width = int(head_width(c) * part)
    if width % 2:
        must = f'must select an even number of the {head_width(c)} channels of a head, which are rotated in pairs'
        raise c.spec.error('partial_rotary_factor', must, part)
    return width


@set_way_back('qk_rope_head_dim')
def rotated_latents(c: Fields) -> int:
    """Return the number of rotated channels of a latent head."""
    width = c.config.get('head_dim')
    part, rotated = read_rope(c)['partial_rotary_factor'], c.qk_rope_head_dim
    for name, value, wanted in (('partial_rotary_factor', part, 1), ('head_dim', width or rotated, rotated)):
        if value != wanted:
            raise c.spec.error(name, f'must be {wanted}, since `qk_rope_head_dim` channels are rotated', value)
    return rotated


@set_way_back('rope_theta')
def theta(c: Fields) -> float:
    return float(read_rope(c)['rope_theta'])


def get_trained_length(c: Fields, said: dict[str, Any], kind: str | None) -> int:
    name = 'original_max_position_embeddings'
    of_all = None if kind else c.values.get(name)  # It takes precedence, except for kinds of layers.
    if of_all is not None and not (is_int(of_all) and of_all > 0):
        raise c.spec.error(name, 'must be a number of tokens', of_all)
    return of_all or said.get(name) or c.max_position_embeddings


def invert_scaling(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {'rope_parameters': {'rope_type': 'default', 'rope_theta': k['rotary_theta'] or 10000.0}}
    said = {key: list(value) if isinstance(value, tuple) else value for key, value in v.items()}
    kind, length = said.pop('kind'), said.pop('length', None)
    for ours, theirs in (('low', 'low_freq_factor'), ('high', 'high_freq_factor')):
        if ours in said:
            said[theirs] = said.pop(ours)
    if kind == 'dynamic':
        return {'rope_parameters': {'rope_type': kind, **said}, 'max_position_embeddings': length}
    if length is not None:
        said['original_max_position_embeddings'] = length
    return {'rope_parameters': {'rope_type': kind, 'rope_theta': k['rotary_theta'] or 10000.0, **said}}


@set_way_back(invert_scaling)
def read_scaling(c: Fields, kind: str | None = None) -> dict[str, Any] | None:
    """Return the rotary scaling as a value of `rotary_scaling`."""
    said = read_rope(c, kind)
    name = said['kind']
    if name == 'default':
        return None
    if name not in ('linear', 'dynamic', 'yarn', 'longrope', 'llama3'):
        raise c.spec.error('rope_type', 'must be default, linear, dynamic, yarn, longrope or llama3', name)
    length, factor = get_trained_length(c, said, kind), said.get('factor')
    if name == 'linear':
        return {'kind': name, 'factor': factor}
    if name == 'dynamic':
        return {'kind': name, 'factor': factor, 'length': c.max_position_embeddings}
    if name == 'llama3':
        low, high = said['low_freq_factor'], said['high_freq_factor']
        return {'kind': name, 'factor': factor, 'low': low, 'high': high, 'length': length}
    factor = factor or c.max_position_embeddings / length
    found = {'kind': name, 'length': length, 'factor': factor, 'attention_factor': said.get('attention_factor')}
    if name == 'yarn':
        names = ('beta_fast', 'beta_slow', 'truncate', 'mscale', 'mscale_all_dim')
        found.update({key: said.get(key) for key in names})
    else:
        found.update(short_factor=tuple(said['short_factor']), long_factor=tuple(said['long_factor']))
    return drop_none(found)


def rotating_as_listed(c: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it is rotated: as listed, else all but every n-th."""
    listed = c.no_rope_layers
    if listed is None:
        return tuple(bool((i + 1) % c.no_rope_layer_interval) for i in range(c.num_hidden_layers))
    return tuple(map(bool, listed))


def none_if_all(layers: tuple[Any, ...]) -> Any:
    return None if all(layer is True for layer in layers) else layers


def rotating_windows(c: Fields) -> Any:
    """Return the rotary layers if only layers with a window are rotated."""
    return none_if_all(list_windowed(c))


def invert_rotating_by_kind(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for one, own in zip(list_per_layer(k['attn_max_attend_past'], k), v, strict=True):
        kind = 'full_attention' if one is None else 'sliding_attention'
        found[kind] = invert_scaling(own.get('scaling'), {'rotary_theta': own['theta']})['rope_parameters']
    return {'rope_parameters': found}


@set_way_back(invert_rotating_by_kind)
def rotating_by_kind(c: Fields) -> Any:
    """Return the rotary base and scaling of each layer, which differ for full attention."""
    local, full = read_own_rope(c, 'sliding_attention'), read_own_rope(c, 'full_attention')
    return tuple(local if slide else full for slide in list_windowed(c))


def read_own_rope(c: Fields, kind: str) -> dict[str, Any]:
    said = read_rope(c, kind)
    part = said['partial_rotary_factor']
    # If a scaling is given for all kinds at once, transformers reads only the part.
    if get_rope_parameters(c).get('rope_type', 'default') != 'default':
        part = c.values.get('partial_rotary_factor') or part
    if part != 1:
        raise c.spec.error('partial_rotary_factor', f'must be 1 for {kind}', part)
    return drop_none({'theta': float(said['rope_theta']), 'scaling': read_scaling(c, kind)})


# softmax and ALiBi


def gpt2_scale(c: Fields) -> Any:
    """Return the softmax scale, which a config can make 1 or decrease with depth."""
    base = (c.hidden_size // c.num_attention_heads) ** -0.5 if c.scale_attn_weights else 1.0
    if c.scale_attn_by_inverse_layer_idx:
        return tuple(base / (i + 1) for i in range(c.num_hidden_layers))
    return None if c.scale_attn_weights else base


def make_slopes(heads: int) -> list[float]:
    """Return 2 ** (-8 k / n) for n heads, a power of two."""
    return [2.0 ** (-8 * k / heads) for k in range(1, heads + 1)]


def mpt_slopes(c: Fields) -> dict[str, Any]:
    """Return ALiBi slopes of the next power of two: first every other one, then those between."""
    heads = c.num_attention_heads
    found = make_slopes(1 << (heads - 1).bit_length())
    return {'slopes': [*found[1::2], *found[::2]][:heads] if len(found) != heads else found}


def falcon_slopes(c: Fields) -> dict[str, Any]:
    """Return ALiBi slopes of BLOOM in bfloat16, times the softmax scale, in the order of heads of this library."""
    rounded = torch.tensor(bloom_slopes(c), device='cpu').bfloat16().double()
    if any(math.frexp(slope)[0] != 0.5 for slope in rounded.tolist()):  # Some slope is not a power of two.
        warn_once(
            f'`alibi` of this {c.spec.type} checkpoint: `transformers` rounds the products of slopes and positions to '
            f'bfloat16, here they are exact'
        )
    order = order_heads(c.sizes(), len(rounded))
    return {'slopes': (rounded[order] * head_width(c) ** -0.5).tolist()}


def bloom_slopes(c: Fields) -> list[float]:
    """Return ALiBi slopes of the power of two below, then every other one of the next power."""
    heads = c.num_attention_heads
    below = 1 << (heads.bit_length() - 1)
    return [*make_slopes(below), *make_slopes(2 * below)[::2][: heads - below]]


# falcon and mpt


def has_two_norms(c: Fields) -> bool:
    """Return True if both branches of a parallel block have their own norm."""
    return c.new_decoder_architecture and c.num_ln_in_parallel_attn in (None, 2)


def invert_falcon(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    grouped, heads = k['attn_kv_heads'], k['heads']
    return {
        'new_decoder_architecture': v is True or 1 < grouped < heads, 'multi_query': grouped == 1,
        'parallel_attn': v is not None, 'num_kv_heads': grouped,
        'num_ln_in_parallel_attn': {True: 2, 'shared': 1}.get(v),
    }  # fmt: skip


@set_way_back(invert_falcon)
def falcon_block(c: Fields) -> Any:
    """Return the kind of parallel block: two norms, a shared one, or None for sequential branches."""
    return True if has_two_norms(c) else 'shared' if c.new_decoder_architecture or c.parallel_attn else None


def falcon_kv_heads(c: Fields) -> int:
    if c.new_decoder_architecture:
        return c.num_kv_heads or c.num_attention_heads
    return 1 if c.multi_query else c.num_attention_heads


def is_grouped(c: Fields) -> bool:
    """Return True if files store the queries of each key next to it."""
    return bool(c.new_decoder_architecture or c.multi_query)


ALLOWED = {'alibi': (True,), 'qk_ln': (False,), 'prefix_lm': (False,),
           'attn_uses_sequence_id': (False,), 'attn_type': ('multihead_attention',)}  # fmt: skip


def mpt_attention(c: Fields) -> dict[str, Any]:
    """Return the fields of `attn_config`."""
    given = dict(c.attn_config or {})
    for name, value in given.items():
        if value not in ALLOWED.get(name, (value,)):
            raise c.spec.error(f'attn_config.{name}', f'must be {ALLOWED[name][0]!r}', value)
    return given


@set_way_back(lambda v, k: {'attn_config': drop_none({'clip_qkv': v, 'softmax_scale': k['attn_softmax_scale']})})
def mpt_clip(c: Fields) -> Any:
    return mpt_attention(c).get('clip_qkv')


# experts


def invert_qwen_experts(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    experts = list_per_layer(v, k)
    dense = [i for i, count in enumerate(experts) if count is None]
    return {'num_local_experts': max(x or 0 for x in experts), 'mlp_only_layers': dense}


@set_way_back(invert_qwen_experts)
def qwen_experts(c: Fields) -> Any:
    """Return the number of experts of each layer, None for a dense one."""
    sparse = (i not in c.mlp_only_layers and (i + 1) % c.decoder_sparse_step == 0 for i in range(c.num_hidden_layers))
    return merge_equal([c.num_local_experts or None if is_sparse else None for is_sparse in sparse])


def invert_deepseek_experts(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    experts = list_per_layer(v, k)
    return {'n_routed_experts': max(x or 0 for x in experts), 'first_k_dense_replace': experts.count(None)}


@set_way_back(lambda v, k: {'qk_nope_head_dim': v - (k['attn_dim_latent_rope'] or 0)})
def latent_head_width(c: Fields) -> int:
    return c.qk_nope_head_dim + c.qk_rope_head_dim


def is_extra_layer(c: Fields, name: str) -> bool:
    """Return True for weights of layers after the last one, which predict further tokens."""
    match = re.match(r'model\.layers\.(\d+)\.', name)
    return match is not None and int(match[1]) >= c.num_hidden_layers


@set_way_back(invert_deepseek_experts)
def deepseek_experts(c: Fields) -> Any:
    dense = c.first_k_dense_replace
    return merge_equal([None if i < dense else c.n_routed_experts for i in range(c.num_hidden_layers)])


def merge_equal(values: list[Any]) -> Any:
    """Return the only value if all layers share it, else the tuple of all."""
    return values[0] if all(value == values[0] for value in values) else tuple(values)


def deepseek_scale(c: Fields) -> float | None:
    """Return the softmax scale, which Yarn with `mscale_all_dim` increases, or None."""
    said = read_rope(c)
    extra, factor = said.get('mscale_all_dim'), said.get('factor', 1.0)
    if not extra or said['kind'] == 'default' or factor <= 1:
        return None
    return latent_head_width(c) ** -0.5 * (0.1 * extra * math.log(factor) + 1) ** 2

"""Inference of a transformers config for models that were never loaded: proposed from the table, then verified."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from x_transformers.flags import ConfigError, did_you_mean, format_value
from x_transformers.flags.config import KINDS, encode
from x_transformers.pretrained.fields import ACTIVATIONS, add_defaults, invert_keywords, round_if_whole
from x_transformers.pretrained.specs import SPECS, Fields, ModelSpec, rename_fields

# Keywords that do not affect the outputs.
EXECUTION = {'crop_to_patches', 'verbose', 'flash', 'attn_flash', 'checkpoint_layers', 'attend_sdp_kwargs', 'onnxable'}
SIDES = ('', 'enc_', 'dec_')  # Prefixes of the keywords of a stack.


def get_call(model: nn.Module) -> dict[str, Any]:
    """Return the config of a model as in a file. Classes of the user are replaced by their base classes here."""
    return use_library_classes(encode(model, type(model).__name__))


def use_library_classes(call: Mapping[str, Any]) -> dict[str, Any]:
    ours = (kind for kind in KINDS[call['class']].__mro__ if kind.__module__.startswith('x_transformers.'))
    kind = next(kind.__name__ for kind in ours if KINDS.get(kind.__name__) is kind)
    inner = {k: use_library_classes(v) for k, v in call.items() if isinstance(v, Mapping) and v.get('class') in KINDS}
    return {**call, **inner, 'class': kind}


def canonicalize(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of a call in one form: equivalent keywords unified, defaults left out."""
    kind = KINDS[call['class']]
    known = kind.accepted()
    found = {
        name: canonicalize(v) if isinstance(v, Mapping) and 'class' in v else convert_tuples(v)
        for name, v in call.items()
    }
    for side in SIDES:
        if {f'{side}depth', f'{side}attn_kv_heads'} <= known.keys():
            own = {n: found.get(n, convert_tuples(known[n].default)) for n in known if n.startswith(side)}
            own = {'dim': found.get('dim'), **{name.removeprefix(side): value for name, value in own.items()}}
            found.update({side + name: value for name, value in fill_implied(own).items()})
        stack = found.get('attn_layers', found)
        places = any(stack.get(side + name) for name in ('rotary_pos_emb', 'alibi_pos_bias', 'rel_pos_bias'))
        table, length = f'{side}use_abs_pos_emb', f'{side}max_seq_len'
        if length in found and (found.get(table) is False or (places and found[length] == 0)):
            found[length] = 0  # There is no table of positions.
            found.pop(table, None)
    if found.get('interpolate_pos_emb') == 'bicubic':
        found.pop('interpolate_pos_emb')  # transformers interpolates on request.
    return {
        name: value
        for name, value in found.items()
        if 'dropout' not in name
        and not any(name.removeprefix(side) in EXECUTION for side in SIDES)
        and not (name in known and is_close(value, convert_tuples(known[name].default)))
    }


def fill_implied(k: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a stack with the values that follow from other keywords."""
    heads = k['heads']
    found = {'attn_kv_heads': k['attn_kv_heads'] or heads, 'attn_dim_head': k['attn_dim_head'] or 64}
    if k['attn_one_kv_head']:
        found.update(attn_kv_heads=1, attn_one_kv_head=False)
    if k['ff_activation'] is None and k['ff_custom_activation'] is None:
        found['ff_activation'] = 'silu' if k['ff_swish'] else 'relu2' if k['ff_relu_squared'] else 'gelu'
        found.update(ff_swish=False, ff_relu_squared=False)
    if k['ff_dim_inner'] is None:
        found.update(ff_dim_inner=int(k['dim'] * k['ff_mult']), ff_mult=k['ff_mult'])
    found['ff_mult'] = 4
    if k['rotary_pos_emb'] and k['rotary_emb_dim'] is None:
        found['rotary_emb_dim'] = max(found['attn_dim_head'] // 2, 32)
    if k['ff_glu'] and k['ff_glu_bias'] is None:
        found['ff_glu_bias'] = True
    return found


def convert_tuples(value: Any) -> Any:
    return [convert_tuples(v) for v in value] if isinstance(value, (tuple, list)) else value


def is_close(a: Any, b: Any) -> bool:
    """Return True for values that are equal, or numbers that are equal up to rounding."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if numbers:
        return math.isclose(a, b, rel_tol=1e-6)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(is_close, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(is_close(a.get(name), b.get(name)) for name in {**a, **b})
    return type(a) is type(b) and a == b


Path = tuple[Any, ...]
Differences = dict[Path, tuple[Any, Any]]  # Values here and in the config, by path.


def find_differences(now: Any, said: Any, at: Path = ()) -> Differences:
    """Return the paths at which two canonical calls differ, with both values."""
    if isinstance(now, Mapping) and isinstance(said, Mapping):
        found: Differences = {}
        for name in sorted({**now, **said}):
            found.update(find_differences(now.get(name), said.get(name), (*at, name)))
        return found
    return {} if is_close(now, said) else {at: (now, said)}


def get_keyword(path: Path) -> str:
    return next(name for name in path if name not in ('net', 'attn_layers'))


def check_keywords(model: nn.Module, fields: Fields) -> None:
    """Raise ConfigError for a model whose keywords differ from those of its config."""
    for path, (own, other) in find_differences(canonicalize(get_call(model)), canonicalize(fields.keywords())).items():
        must = f'must be {format_value(other)}, as in its {fields.spec.type} config, got {format_value(own)}'
        raise ConfigError(f'`{get_keyword(path)}` of the model {must}')


# a config from keywords


def describe_classes(call: Mapping[str, Any]) -> str:
    """Return the names of the classes that a call builds."""
    inner = call.get('net', call.get('attn_layers'))
    return call['class'] + (f'({describe_classes(inner)})' if inner else '')


def describe_classes_of_spec(spec: ModelSpec) -> str:
    """Return the names of the classes that the models of a spec are built from."""
    own = spec.wrapper + (f'({spec.stack})' if spec.stack else '')
    return own if spec.around is None else f'Classifier({own})'


def propose_config(
    spec: ModelSpec, call: Mapping[str, Any], tied: bool, longest: int, architecture: str
) -> dict[str, Any]:
    """Return a config of a type that may stand for a call, as the given class of transformers would write it."""
    net = call if spec.around is None else call['net']
    stack = net.get('attn_layers')
    given = add_defaults({k: v for k, v in net.items() if k != 'attn_layers'}) | (add_defaults(stack) if stack else {})
    fields = invert_keywords({**spec.model, **spec.layers}, given)
    if spec.around is not None:
        fields.update(invert_keywords(spec.around, add_defaults(call)))
    if spec.tied is not None:
        fields['tie_word_embeddings'] = tied
    if longest:
        fields['max_position_embeddings'] = longest
    rotated = fields.get('partial_rotary_factor', 1.0)
    if spec.defaults.get('partial_rotary_factor', 1.0) != 1 or rotated != 1:  # Some types read it only here.
        fields.get('rope_parameters', {})['partial_rotary_factor'] = rotated
    for part, (name, kind, own) in spec.parts.items():
        inner = propose_config(SPECS[kind], net[part], False, net[part].get('max_seq_len', 0), own)
        fields[name] = {**inner, 'architectures': None, **fields.get(name, {})}
    known = {*spec.defaults, *LABELS, *TOKENS}
    own_fields = {name: value for name, value in fields.items() if name in known}
    return {'model_type': spec.type, 'architectures': [architecture], **own_fields}


LABELS = ('id2label', 'label2id', 'problem_type')
SPECIAL = ('pad_token_id', 'bos_token_id', 'eos_token_id')
TOKENS = (*SPECIAL, 'decoder_start_token_id')
NEAREST = 3  # Number of types that an error describes.
FAR = 8  # With more differing keywords it is another type.
WRONG = (ConfigError, TypeError, KeyError, ValueError, AttributeError, ZeroDivisionError, IndexError)


def find_misread(spec: ModelSpec, config: Mapping[str, Any], tied: bool, now: Mapping[str, Any]) -> Differences:
    """Return the differences between a call and the one that a config gives."""
    return find_differences(now, canonicalize(Fields(spec, rename_fields(spec, config), tied).keywords()))


def generate_guesses(value: Any) -> Iterator[Any]:
    """Yield candidate values of the field that a keyword was computed from."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from generate_guesses(one)
    elif isinstance(value, (list, tuple)):
        yield value
        for one in value:
            yield from generate_guesses(one)
    elif isinstance(value, str):
        yield value
        yield from (theirs for theirs, ours in ACTIVATIONS.items() if ours == value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
        yield from (2 * value, value + 1, value + 2)
        if value:
            yield round_if_whole(1 / value)


def fits(guess: Any, default: Any) -> bool:
    """Return True if a field with this default can hold the value."""
    kinds = ((list, tuple), str, (int, float))
    return default is None or any(isinstance(guess, kind) and isinstance(default, kind) for kind in kinds)


def improve(
    spec: ModelSpec, config: dict[str, Any], tied: bool, now: Mapping[str, Any], wrong: Differences
) -> tuple[dict[str, Any], Differences] | None:
    """Return a config with one field changed that differs from the call in fewer keywords, or None."""
    tried = [guess for own, _ in wrong.values() for guess in generate_guesses(own)]
    for name, default in spec.defaults.items():
        if callable(default):
            continue
        held = config.get(name, default)
        for guess in (not held,) if isinstance(held, bool) else [g for g in tried if fits(g, default)]:
            try:
                left = find_misread(spec, {**config, name: guess}, tied, now)
            except WRONG:
                continue
            if len(left) < len(wrong):
                return {**config, name: guess}, left
    return None


def list_written_classes(spec: ModelSpec) -> list[str]:
    """Return the classes of transformers to try: the first, or all if their files differ."""
    if not spec.bare:
        return [next(iter(spec.architectures), '')]
    inside = {other.architectures[0] for other in SPECS.values() if other.parts}  # Their parts are models of the type.
    return [name for name in spec.architectures if name not in inside or spec.parts]


@dataclass(frozen=True)
class ConfigMatch:
    """Config of a type for a call; or the reason why the type has none, and the number of keywords that differ."""

    config: dict[str, Any] | None
    reason: str = ''
    wrong: float = 0


def match_type(spec: ModelSpec, call: Mapping[str, Any], tied: bool, longest: int) -> ConfigMatch:
    """Find the config of a type, with its own head or another of its heads."""
    specs = [spec, *(head.of(spec, kind) for kind, head in spec.heads.items())]
    fitting = [one for one in specs if describe_classes_of_spec(one) == describe_classes(call)]
    if not fitting:
        shapes = dict.fromkeys(map(describe_classes_of_spec, specs))
        return ConfigMatch(None, f'would be {" or ".join(shapes)}, here it is {describe_classes(call)}', math.inf)
    tried = []
    for one in fitting:
        for name in list_written_classes(one):
            found = match_class(one, call, tied, longest, name)
            if found.config is not None:
                break
        if found.config is not None and one is spec:
            return found
        tried.append(found)
    whole = [found.config['architectures'][0] for found in tried if found.config is not None]
    if len(whole) > 1:
        return ConfigMatch(None, f'{" and ".join(whole)} say the same')
    return min(tried, key=lambda found: found.wrong)


def match_class(spec: ModelSpec, call: Mapping[str, Any], tied: bool, longest: int, architecture: str) -> ConfigMatch:
    """Find the config that one class of transformers would write."""
    try:
        config = propose_config(spec, call, tied, longest, architecture)
        wrong = find_misread(spec, config, tied, call)
    except WRONG as error:
        return ConfigMatch(None, str(error), math.inf)
    while wrong:
        better = improve(spec, config, tied, call, wrong) if len(wrong) <= FAR else None
        if better is None:
            path, (own, other) = next(iter(wrong.items()))
            reason = f'`{get_keyword(path)}` would be {format_value(other)}, here it is {format_value(own)}'
            return ConfigMatch(None, reason, len(wrong))
        config, wrong = better
    pad, sizes = config.get('pad_token_id'), [v for name, v in config.items() if name.endswith('vocab_size') and v]
    if pad is not None and not 0 <= pad < min(sizes, default=math.inf):
        return ConfigMatch(None, f'`pad_token_id` would be {pad}, which is no token of the vocabulary', 1)
    return ConfigMatch(config)


def write_fields(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config by the names that transformers reads. Ids of special tokens outside the vocabulary are None."""
    found = rename_fields(spec, config)
    words = config.get('vocab_size', 0)
    unknown = [name for name in SPECIAL if words and not spec.defaults.get(name, math.inf) < words]
    return {**dict.fromkeys(unknown), **found, 'model_type': spec.spelled or spec.type}


def infer_config(model: nn.Module, tied: bool, hf_type: str | None) -> dict[str, Any]:
    """Return the config of a model that was never loaded: of `hf_type`, or of the only type that it can be saved as.

    Raises:
        ConfigError: No type, or several, can be used; the error names a keyword that differs for each type.
    """
    hf_type = hf_type and str(hf_type).replace('-', '_')
    if hf_type is not None and hf_type not in SPECS:
        raise ConfigError(f'`hf_type` must be a supported type, got {hf_type!r}{did_you_mean(hf_type, SPECS)}')
    call = get_call(model)
    now, longest = canonicalize(call), call.get('net', call).get('max_seq_len', 0)
    tried = {kind: match_type(spec, now, tied, longest) for kind, spec in SPECS.items() if hf_type in (None, kind)}
    found = {kind: one.config for kind, one in tried.items() if one.config is not None}
    if len(found) == 1:
        kind, config = next(iter(found.items()))
        return write_fields(SPECS[kind], config)
    if found:
        raise ConfigError(f'`hf_type` must be one of {", ".join(found)}, got None')
    nearest = sorted(tried, key=lambda kind: tried[kind].wrong)
    said = '; '.join(f'{kind}: {tried[kind].reason}' for kind in nearest[:NEAREST])
    more = f'; and {len(nearest) - NEAREST} other types, of which `hf_type` names one' if nearest[NEAREST:] else ''
    raise ConfigError(f'the model cannot be written in the format of `transformers`: {said}{more}')

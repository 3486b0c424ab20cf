"""Configs of theirs for models that were never loaded: proposed from the table of types, and read again to be sure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from x_transformers.flags import ConfigError, did_you_mean, shown
from x_transformers.flags.config import KINDS, encode
from x_transformers.pretrained.fields import ACTIVATIONS, whole
from x_transformers.pretrained.rows import ROWS, Const, Fields, Row, Value

# keywords that change how something is computed, not what
HOW = {'crop_to_patches', 'verbose', 'flash', 'attn_flash', 'checkpoint_layers', 'attend_sdp_kwargs', 'onnxable'}


def call_of(model: nn.Module) -> dict[str, Any]:
    """Its config, as a file would hold it, of the class of this library that a user's own is derived from."""
    ours = (kind for kind in type(model).__mro__ if kind.__module__.startswith('x_transformers.'))
    kind = next(kind.__name__ for kind in ours if KINDS.get(kind.__name__) is kind)
    return {**encode(model, type(model).__name__), 'class': kind}


def canonical(call: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call, with those that come to the same in one form, and no defaults."""
    kind = KINDS[call['class']]
    known = kind.accepted()
    found = {name: canonical(v) if isinstance(v, Mapping) and 'class' in v else plain(v) for name, v in call.items()}
    if 'depth' in known and 'attn_kv_heads' in known:
        found.update(whole_stack({name: found.get(name, plain(known[name].default)) for name in known}))
    stack = found.get('attn_layers', {})
    places = stack.get('rotary_pos_emb') or stack.get('alibi_pos_bias') or stack.get('rel_pos_bias')
    if 'max_seq_len' in found and (found.get('use_abs_pos_emb') is False or (places and found['max_seq_len'] == 0)):
        found['max_seq_len'] = 0  # no table of positions
        found.pop('use_abs_pos_emb', None)
    if found.get('interpolate_pos_emb') == 'bicubic':
        found.pop('interpolate_pos_emb')  # which theirs do if they are asked to
    return {
        name: value
        for name, value in found.items()
        if name not in HOW and 'dropout' not in name and not (name in known and same(value, plain(known[name].default)))
    }


def whole_stack(k: dict[str, Any]) -> dict[str, Any]:
    """What follows from other keywords, written out."""
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


def plain(value: Any) -> Any:
    return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def same(a: Any, b: Any) -> bool:
    """Equal, or numbers that differ in their rounding."""
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if numbers:
        return math.isclose(a, b, rel_tol=1e-6)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(same(a.get(name), b.get(name)) for name in {**a, **b})
    return type(a) is type(b) and a == b


Path = tuple[Any, ...]


def differences(now: Any, said: Any, at: Path = ()) -> dict[Path, tuple[Any, Any]]:
    """Where two canonical calls differ, and the values there."""
    if isinstance(now, Mapping) and isinstance(said, Mapping):
        found: dict[Path, tuple[Any, Any]] = {}
        for name in sorted({**now, **said}):
            found.update(differences(now.get(name), said.get(name), (*at, name)))
        return found
    return {} if same(now, said) else {at: (now, said)}


def keyword(path: Path) -> str:
    return next(name for name in path if name not in ('net', 'attn_layers'))


def check_keywords(model: nn.Module, fields: Fields) -> None:
    """Refuse a model that was built in another way than its config says."""
    for path, (own, other) in differences(canonical(call_of(model)), canonical(fields.keywords())).items():
        raise ConfigError(
            f'`{keyword(path)}` of the model is {shown(own)}, which its {fields.row.type} config does not say: it '
            f'would be read as {shown(other)}'
        )


# a config from keywords


def proposed(row: Row, call: Mapping[str, Any], tied: bool, architecture: str) -> dict[str, Any]:
    """The config of a type whose keywords may be those of a call, as a class of theirs would write it."""
    config: dict[str, Any] = {'model_type': row.type, 'architectures': [architecture]}
    wrapper, stack = {k: v for k, v in call.items() if k != 'attn_layers'}, call.get('attn_layers', {})
    given = {**filled(wrapper), **filled(stack)} if stack else filled(wrapper)
    fields: dict[str, Any] = {}
    for keyword, value in {**row.model, **row.layers}.items():
        fields.update(fields_of(value, given.get(keyword), given))
    if row.tied is not None:
        fields['tie_word_embeddings'] = tied
    if longest := call.get('max_seq_len'):
        fields['max_position_embeddings'] = longest
    rotated = fields.get('partial_rotary_factor', 1.0)
    if row.defaults.get('partial_rotary_factor', 1.0) != 1 or rotated != 1:  # some types look nowhere else
        fields.get('rope_parameters', {})['partial_rotary_factor'] = rotated
    for part, (name, kind, own) in row.parts.items():
        inner = proposed(ROWS[kind], call[part], False, own)
        fields[name] = {**inner, 'architectures': None, **fields.get(name, {})}
    return {**config, **{name: v for name, v in fields.items() if name in row.defaults or name in LABELS}}


def filled(call: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a call with its defaults."""
    return {**{name: flag.default for name, flag in KINDS[call['class']].accepted().items()}, **call}


def fields_of(value: Value, now: Any, given: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        return {value: now}
    way = getattr(value, 'back', None)
    if way is None or isinstance(value, Const):
        return {}
    try:
        return way(now, given)
    except (TypeError, KeyError, ZeroDivisionError, OverflowError):
        return {}  # a value that the type does not have


LABELS = ('id2label', 'label2id')
FAR = 8  # keywords that differ: another type
WRONG = (ConfigError, TypeError, KeyError, ValueError, AttributeError, ZeroDivisionError, IndexError)


def misread(row: Row, config: Mapping[str, Any], tied: bool, now: Mapping[str, Any]) -> dict[Path, tuple[Any, Any]]:
    """Where a config says something else than a call."""
    return differences(now, canonical(Fields(row, config, tied).keywords()))


def guesses(value: Any) -> Iterator[Any]:
    """What the field that a keyword comes from may hold."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from guesses(one)
    elif isinstance(value, (list, tuple)):
        yield value
        for one in value:
            yield from guesses(one)
    elif isinstance(value, str):
        yield value
        yield from (theirs for theirs, ours in ACTIVATIONS.items() if ours == value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
        yield from (2 * value, value + 1, value + 2)
        if value:
            yield whole(1 / value)


def fits(guess: Any, default: Any) -> bool:
    """Whether a field may hold this."""
    kinds = ((list, tuple), str, (int, float))
    return default is None or any(isinstance(guess, kind) and isinstance(default, kind) for kind in kinds)


def nearer(
    row: Row, config: dict[str, Any], tied: bool, now: Mapping[str, Any], wrong: dict[Path, tuple[Any, Any]]
) -> tuple[dict[str, Any], dict[Path, tuple[Any, Any]]] | None:
    """A config with one field changed that says less that is wrong."""
    tried = [guess for own, _ in wrong.values() for guess in guesses(own)]
    for name, default in row.defaults.items():
        if callable(default):
            continue
        held = config.get(name, default)
        for guess in (not held,) if isinstance(held, bool) else [g for g in tried if fits(g, default)]:
            try:
                left = misread(row, {**config, name: guess}, tied, now)
            except WRONG:
                continue
            if len(left) < len(wrong):
                return {**config, name: guess}, left
    return None


def written_as(row: Row) -> list[str]:
    """The classes of theirs that models of a type are written as: the first, or all that differ in their files."""
    inside = {other.architectures[0] for other in ROWS.values() if other.parts}  # whose parts are models of the type
    return [name for name in row.architectures if name not in inside or row.parts] if row.bare else ['']


def found_for(row: Row, call: Mapping[str, Any], tied: bool, longest: int) -> tuple[dict[str, Any] | None, str]:
    """A config of this type that says what a call says, or what it cannot say."""
    if row.wrapper != call['class'] or (row.stack is not None and row.stack != call['attn_layers']['class']):
        return None, f'is a {row.wrapper}' + (f' with {row.stack}' if row.stack else '')
    for name in written_as(row):
        config, reason = found_as(row, call, tied, longest, name or next(iter(row.architectures), ''))
        if config is not None:
            break
    return config, reason


def found_as(
    row: Row, call: Mapping[str, Any], tied: bool, longest: int, architecture: str
) -> tuple[dict[str, Any] | None, str]:
    """The same, as a class of theirs would write it."""
    try:
        config = proposed(row, {**call, 'max_seq_len': longest}, tied, architecture)
        wrong = misread(row, config, tied, call)
    except WRONG as error:
        return None, str(error)
    while wrong:
        better = nearer(row, config, tied, call, wrong) if len(wrong) <= FAR else None
        if better is None:
            path, (own, other) = next(iter(wrong.items()))
            return None, f'`{keyword(path)}` would be {shown(other)}, here it is {shown(own)}'
        config, wrong = better
    return config, ''


TOKENS = ('pad_token_id', 'bos_token_id', 'eos_token_id')


def written(row: Row, config: Mapping[str, Any]) -> dict[str, Any]:
    """A config by the names that classes of theirs read. Which tokens are special nobody knows."""
    theirs = {field: name for name, field in row.names.items()}
    found = {theirs.get(name, name): value for name, value in config.items()}
    used = {name for name in TOKENS if row.defaults.get(name, math.inf) < config.get('vocab_size', 0)}
    unknown = [name for name in TOKENS if row.wrapper == 'TransformerWrapper' and name not in used]
    return {**found, **{name: None for name in unknown if name not in found}, 'model_type': row.spelled or row.type}


def described(model: nn.Module, tied: bool, hf_type: str | None) -> dict[str, Any]:
    """The config of the one type that a model can be written as, or of that which is asked for.

    Raises ConfigError, which says what of the model each type does not have.
    """
    hf_type = hf_type and str(hf_type).replace('-', '_')
    if hf_type is not None and hf_type not in ROWS:
        raise ConfigError(f'`hf_type` got {shown(hf_type)}, which is not supported{did_you_mean(hf_type, ROWS)}')
    call = call_of(model)
    now, longest = canonical(call), call.get('max_seq_len', 0)
    tried = {kind: found_for(row, now, tied, longest) for kind, row in ROWS.items() if hf_type in (None, kind)}
    found = {kind: config for kind, (config, _) in tried.items() if config is not None}
    if len(found) == 1:
        kind, config = next(iter(found.items()))
        return written(ROWS[kind], config)
    if found:
        raise ConfigError(f'`hf_type` is missing: the model can be written as {", ".join(found)}')
    said = '; '.join(f'{kind}: {reason}' for kind, (_, reason) in tried.items())
    raise ConfigError(f'the model cannot be written in the format of `transformers`: {said}')

"""Hints for keywords of other libraries: the keyword to use here, and the function that takes it.

The words are in `foreign_words`. This module is only imported for an error.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from x_transformers.flags.foreign_words import BUILD, CALL, GENERATE, LOAD, SAVE, WORDS, Word

SIDE = re.compile(r'(?:(?<=_)|^)(encoder|enc|src|source|decoder|dec|tgt|target)_')
LEVEL = re.compile(r'^(cross_attn|attn|ff)_')
PREFIXES = ('attn_', 'ff_', 'cross_attn_', 'enc_', 'dec_')
KEYWORD = re.compile(r'(?:^|, )(\w+)=')
# Methods that generate, besides `generate...`, and functions that load and save.
WAYS = ('stream', 'beam_search', 'speculative', 'infill', 'decoding', 'add')
FILES = {'load': LOAD, 'from_pretrained': LOAD, 'save': SAVE, 'save_pretrained': SAVE}
FUNCTIONS = ('finetune', 'build', 'freeze_pretrained_', 'sparsify_', 'initialise_')
# Order of the rows for a word: those of the kind of the called function first.
ORDERS = {
    BUILD: (BUILD, CALL, GENERATE, LOAD, SAVE),
    CALL: (CALL, GENERATE, BUILD, LOAD, SAVE),
    GENERATE: (GENERATE, CALL, BUILD, LOAD, SAVE),
    LOAD: (LOAD, BUILD, GENERATE, CALL, SAVE),
    SAVE: (SAVE, LOAD, BUILD, CALL, GENERATE),
}
BUILDERS = ('TransformerWrapper', 'AutoregressiveWrapper', 'Attention', 'FeedForward', 'ViTransformerWrapper',
            'ContinuousTransformerWrapper', 'SpeechEncoder', 'MLMWrapper', 'Classifier', 'XTransformer',
            'Perceiver', 'TwoTowers')  # fmt: skip
OF_ENCODERS = ('ViTransformerWrapper', 'MLMWrapper', 'BertPretrainWrapper', 'PermutationLMWrapper', 'TwoTowers',
               'NonAutoregressiveWrapper', 'FactorizedVideoEncoder', 'Muse')  # fmt: skip
OF_SOURCE = ('context', 'context_mask')
# Inputs of a stack that models around it pass on.
OF_STACK = ('attn_mask', 'pos', 'attn_bias', 'document_ids')
# Keywords that a class rejects, although it passes keywords on to modules that take them.
REFUSED_BY = {
    'XLAutoregressiveWrapper': ('mask', 'pos', 'attn_mask', 'attn_bias'),
    'Recirculation': ('pos', 'attn_mask', 'attn_bias'),
    'PermutationLMWrapper': ('attn_mask',),
    'VisionLanguageWrapper': ('prompt_lens',),
    'XTransformer': OF_SOURCE,
    'EncoderDecoder': OF_SOURCE,
    'Parti': (*OF_SOURCE, 'eos_token', 'min_new_tokens', 'stop_sequences'),
}
# Inputs of a model that wrappers set or reject.
REFUSED = {'cache', 'input_not_include_cache', 'seq_start_pos', 'self_attn_kv_mask', 'logits_to_keep', 'document_ids'}


class Callee(NamedTuple):
    """Function that got an unknown keyword.

    Attributes:
        owner: The class that is built, or whose method is called; None for a function of a module.
        method: The name of the method or function; '' if a class is built.
        names: All keywords that it takes.
        module: The module whose method is called.
        kinds: The classes of the library by name.
    """

    owner: type | None
    method: str
    names: Collection[str]
    module: Any = None
    kinds: Mapping[str, Any] = {}

    @property
    def kind(self) -> str:
        if not self.method or self.method in FUNCTIONS:
            return BUILD
        if self.method in FILES:
            return FILES[self.method]
        return GENERATE if self.method in WAYS or 'generate' in self.method else CALL

    def is_called(self, name: str) -> bool:
        """Return True if this is the class or function of that name."""
        classes = () if self.owner is None else self.owner.__mro__
        return name == self.method or any(name == cls.__name__ for cls in classes)


class Place(NamedTuple):
    """Another function that takes a keyword: in words, as code around keywords, and all of its keywords."""

    words: str
    code: str
    names: Collection[str]


def answer(name: str, value: Any, callee: Callee) -> str:
    """Return the hint for a keyword of another library, as the end of an error message, or ''."""
    rows, side = rows_for(name, callee.kind)
    if not rows:
        meant = '' if (found := find_owner_hint(name, value, callee)) else _likely_word(name, callee)
        return f', did you mean `{meant}`{answer(meant, value, callee)}' if meant else found
    for row in rows:
        for alternative in alternatives(row, value):
            if found := find_callee_words(row, alternative, name, value, side, callee):
                return found
    for row in rows if callee.method else ():
        refused = next((one for one in alternatives(row, value) if one in refused_by(callee)), None)
        if refused is not None:
            return f': here it is called `{refused}`, which is not taken'
    for row in rows:
        for alternative in alternatives(row, value):
            if found := elsewhere(row, alternative, name, value, callee):
                return found
    return ''


def refused_by(callee: Callee) -> set[str]:
    """Return the keywords that the called object, or the model in it, refuses."""
    classes = [cls.__name__ for cls in getattr(callee.owner, '__mro__', ())]
    classes.append(type(getattr(callee.module, 'net', None)).__name__)
    return {name for cls in classes for name in REFUSED_BY.get(cls, ())}


def rows_for(name: str, kind: str) -> tuple[list[Word], str]:
    """Return the rows of a word, those of `kind` first, and the side of an encoder-decoder that it names."""
    side, tried = '', [(name, '')]
    if found := SIDE.search(name):
        side = 'enc_' if found[1] in ('encoder', 'enc', 'src', 'source') else 'dec_'
        tried.append((name.replace(found[0], '', 1), side))
    tried += [(LEVEL.sub('', word), own) for word, own in tried if LEVEL.match(word)]
    for word, own in tried:
        if rows := rows_by_word().get(word):
            return sorted(rows, key=lambda row: ORDERS[kind].index(row.kind)), own
    return [], ''


@functools.cache
def rows_by_word() -> dict[str, list[Word]]:
    """Return the rows of each word."""
    found: dict[str, list[Word]] = {}
    for row in WORDS:
        for word in dict.fromkeys(row.theirs.split()):
            found.setdefault(word, []).append(row)
    return found


def _likely_word(name: str, callee: Callee) -> str:
    """Return the word of the table closest to a misspelt keyword, or '' if a keyword is closer, or none is close."""
    if any(prefix + name in callee.names for prefix in PREFIXES):
        return ''
    plain = {word.replace('_', ''): word for word in rows_by_word()}
    spelt = name.replace('_', '').lower()
    close = [spelt] if spelt in plain else difflib.get_close_matches(spelt, plain, n=1, cutoff=0.9)
    close = [word for word in close if abs(len(word) - len(spelt)) < 2]
    own = difflib.get_close_matches(spelt, {one.replace('_', '') for one in callee.names}, n=1, cutoff=0.75)
    likeness = [difflib.SequenceMatcher(None, one, spelt).ratio() for one in (*close, *own)]
    return plain[close[0]] if close and likeness[0] > max(likeness[1:], default=0.0) else ''


def alternatives(row: Word, value: Any) -> list[str]:
    """Return the alternatives of a row for a value. Functions, classes and modules count by their name."""
    key = getattr(value, 'func', value)  # The function of a partial.
    if callable(key):
        key = getattr(key, '__name__', type(key).__name__)
        key = next((one for one in (key, key.lower()) if one in row.values), key)
    known = isinstance(key, (str, int, float, bool, type(None))) and key in row.values
    if value is None and not known and re.search(r'{(value|less|root|not)}', row.ours):
        return [': leave it out']
    return [part.strip() for part in (row.values[key] if known else row.ours).split(' | ')]


def find_callee_words(row: Word, alternative: str, name: str, value: Any, side: str, callee: Callee) -> str:
    """Return the hint for the same call, or '' if it does not take the keywords of an alternative."""
    if alternative.startswith('@'):
        owner, _, alternative = alternative[1:].partition(' ')
        if not callee.is_called(owner):
            return ''
        if alternative.startswith(':'):
            return _fill_template(alternative, name, value)
    if alternative.startswith(':'):
        return ''
    exact = alternative.startswith('!')
    code = format_call(alternative.lstrip('!'), name, value)
    changed = [code]
    if not exact:
        changed.append(re.sub(r'(^|, )(?:cross_attn|attn|ff)_(?=\w+=)', r'\1', code))
        sides = (side,) if side else ('enc_', 'dec_')
        changed.append(', '.join(KEYWORD.sub(lambda m, p=p: m[0].replace(m[1], p + m[1]), code) for p in sides))
    for code in changed:
        keywords = KEYWORD.findall(code)
        taken = callee.names if not callee.method else set(callee.names) - refused_by(callee)
        if name not in keywords and len({*keywords}) == len(keywords) and all(keyword in taken for keyword in keywords):
            flags = {} if callee.method or callee.owner is None else get_flags(callee.owner)
            if demand := demands(alternative, keywords, value, flags):
                return f': here it is {_join_words(keywords)}{demand}'
            plain = alternative.isidentifier() and not row.values
            return (
                f': here it is {_join_words(keywords)}{"" if plain else f", write `{code}`"}{remark(row, name, value)}'
            )
    return ''


def elsewhere(row: Word, alternative: str, name: str, value: Any, callee: Callee) -> str:
    """Return the hint for another function that takes the keywords of an alternative, or its sentence."""
    if alternative.startswith(':'):
        return _fill_template(alternative, name, value)
    if alternative.startswith('!'):
        return ''
    places = list(_homes(row.kind, callee))
    if row.kind in (LOAD, SAVE):
        code = f'pretrained.{row.kind}({"folder" if row.kind == LOAD else "model, folder"}, {{}})'
        places = [Place(f'of `pretrained.{row.kind}`', code, KEYWORD.findall(format_call(alternative, name, value)))]
    if alternative.startswith('@'):
        owner, _, alternative = alternative[1:].partition(' ')
        if alternative.startswith(':') or (callee.is_called(owner) and not callee.method):
            return ''
        places = [get_place(owner, callee.kinds)] if owner in callee.kinds else []
        if owner in FUNCTIONS:
            places = [
                Place(f'of `{owner}`', f'{owner}(net, {{}})', KEYWORD.findall(format_call(alternative, name, value)))
            ]
    code = format_call(alternative, name, value)
    keywords = KEYWORD.findall(code)
    place = next((place for place in places if all(keyword in place.names for keyword in keywords)), None)
    if place is None:
        return ''
    cls = callee.kinds.get(place.code.split('(')[0])
    if demand := demands(alternative, keywords, value, get_flags(cls)):
        return f': here it is {_join_words(keywords)} {place.words}{demand}'
    return f': here it is {_join_words(keywords)} {place.words}, `{place.code.format(code)}`{remark(row, name, value)}'


@functools.lru_cache(maxsize=256)
def get_flags(cls: Any) -> Mapping[str, Any]:
    """Return the declarations of the keywords of a class, by name."""
    return cls.accepted() if hasattr(cls, 'accepted') else {}


def demands(alternative: str, keywords: list[str], value: Any, flags: Mapping[str, Any]) -> str:
    """Return the requirement of a keyword, as the end of a sentence, if its check rejects the value."""
    given = keywords if alternative.lstrip('!').isidentifier() else re.findall(r'(\w+)={value}', alternative)
    handed = [one for one in keywords if one in flags and any(one.endswith(g) or g.endswith(one) for g in given)]
    refusing = [one for one in handed if flags[one].refusal(value)]
    return f', which must be {flags[refusing[0]].check.words}' if given and refusing else ''


def find_owner_hint(name: str, value: Any, callee: Callee) -> str:
    """Return the hint for a keyword of this library that another function takes."""
    if any(prefix + name in callee.names for prefix in PREFIXES):
        return ''  # Only its prefix is missing.
    for kind in ORDERS[callee.kind]:
        for place in _homes(kind, callee):
            if name in place.names:
                return f': it is a keyword {place.words}, `{place.code.format(f"{name}={format_short(value)}")}`'
    return ''


# Texts.


def format_short(value: Any) -> str:
    """Return a value as code, or '...' if it is long."""
    text = repr(value) if isinstance(value, (bool, int, float, str, type(None), tuple, list)) else '...'
    return text if len(text) <= 30 else '...'


def _fill_template(text: str, name: str, value: Any) -> str:
    """Return a text of the table with the value and the word filled in."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fields = {
        'name': name,
        'value': format_short(value),
        'less': less(value),
        'root': f'{value} ** -0.5' if number else '...',
        'not': str(not value) if isinstance(value, (bool, int, type(None))) else '...',
    }
    return text.format(**fields)


def less(value: Any) -> str:
    """Return the number of tokens of a window before the query: the size minus one, or the first of a pair."""
    if isinstance(value, tuple) and len(value) == 2:
        return format_short(value[0])
    return str(value - 1) if isinstance(value, int) and not isinstance(value, bool) else '...'


def format_call(alternative: str, name: str, value: Any) -> str:
    """Return the code of an alternative, with the given value for a bare keyword."""
    return _fill_template(f'{alternative}={{value}}' if alternative.isidentifier() else alternative, name, value)


def _join_words(keywords: Iterable[str]) -> str:
    return ' and '.join(f'`{keyword}`' for keyword in keywords)


def remark(row: Word, name: str, value: Any) -> str:
    needless = (value is False or value is None) and value in row.values
    return f'; {_fill_template(row.note, name, value)}' if row.note and not needless else ''


# Other functions.


def _homes(kind: str, callee: Callee) -> Iterator[Place]:
    """Yield functions of a kind: first those of the same object, then those of the library."""
    owner, kinds = callee.owner, callee.kinds
    if kind == BUILD:
        if owner is not None and callee.method and owner.__name__ in kinds:
            yield get_place(owner.__name__, kinds)
        stack = _get_stack(callee)
        if stack in kinds:
            yield get_place(stack, kinds)._replace(words='of the stack')
        yield from (get_place(name, kinds) for name in BUILDERS if name in kinds)
    if kind not in (CALL, GENERATE) or 'AutoregressiveWrapper' not in kinds:
        return
    own = callee.module if callee.module is not None else owner
    wrapper, net = kinds['AutoregressiveWrapper'], kinds['TransformerWrapper']
    if kind == CALL:
        if own is not None and callee.method != 'forward' and callee.owner not in (wrapper, None):
            yield Place('of a call', 'model(..., {})', get_keywords(own, 'forward'))
        names = get_keywords(net, 'forward') - {'x'} | {*OF_SOURCE, *OF_STACK}
        yield Place('of the call of the model', 'net(ids, {})', names)
        yield Place('of the call of AutoregressiveWrapper', 'AutoregressiveWrapper(net)(ids, {})',
                    get_keywords(wrapper, 'forward') - {'x'})  # fmt: skip
        return
    for method in ('generate', 'beam_search', 'speculative'):
        if own is not None and method != callee.method and hasattr(own, method):
            yield Place(f'of `{method}`', f'{method}(..., {{}})', get_keywords(own, method))
    for method in ('generate', 'beam_search', 'speculative'):
        code = f'AutoregressiveWrapper(net).{method}(prompts, {{}})'
        yield Place(f'of `{method}`', code, get_keywords(wrapper, method))


def get_place(name: str, kinds: Mapping[str, Any]) -> Place:
    names = get_flags(kinds[name])
    return Place(f'of {name}', f'{name}(net, {{}})' if 'net' in names else f'{name}({{}})', names)


def _get_stack(callee: Callee) -> str:
    """Return the name of the class of stack that a model has, or usually has."""
    module = callee.module
    stack = getattr(module, 'attn_layers', None) or getattr(getattr(module, 'net', None), 'attn_layers', None)
    if stack is not None and type(stack).__name__ in callee.kinds:
        return type(stack).__name__
    return 'Encoder' if any(callee.is_called(name) for name in OF_ENCODERS) else 'Decoder'


def get_keywords(target: Any, method: str) -> set[str]:
    """Return the keywords of a method of a module or class, with those that it passes on."""
    cls = target if isinstance(target, type) else type(target)
    names: set[str] = set()
    passes_on = False
    for base in cls.__mro__:
        function = vars(base).get(method)
        if not callable(function) or not base.__module__.startswith(__name__.partition('.')[0]):
            continue
        parameters = list(inspect.signature(function).parameters.values())[1:]
        names |= {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not passes_on:
            break
    if passes_on:
        names |= _passed_on(target, method)
    return names


def _passed_on(target: Any, method: str) -> set[str]:
    """Return the keywords that a method passes on to modules inside as `**kwargs`."""
    options = getattr(target, 'option_names', None)
    names = set() if options is None else set(options(method))
    if isinstance(target, type):
        return names
    names |= set(getattr(getattr(target, 'features', None), 'call_inputs', ()))
    stack = getattr(target, 'attn_layers', None)
    if stack is not None or hasattr(target, 'input_names'):
        return names | set(getattr(target if stack is None else stack, 'input_names', ()))
    children = getattr(target, 'children', tuple)
    for child in children():
        inner = method if method != 'forward' and hasattr(child, method) else 'forward'
        if hasattr(child, 'attn_layers') or hasattr(child, 'net') or inner != 'forward':
            found = get_keywords(child, inner) - _list_required(child, inner)
            names |= {one for one in found - REFUSED if inner != 'forward' or not one.startswith('return_')}
    return names


def _list_required(module: Any, method: str) -> set[str]:
    """Return the arguments without a default, which are given by position."""
    parameters = inspect.signature(getattr(module, method)).parameters.values()
    return {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}

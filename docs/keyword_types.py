"""Write `keywords.pyi`: the types of all keywords, derived from the declarations, for editors and type checkers.

`XKeywords` are the keywords that a class X takes as `**flags`, `XInputs` the keywords of its forward call, `XCall` the
call itself, where an option changes what it returns. `python docs/generate.py` writes the file.
"""

from __future__ import annotations

import collections.abc
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

import x_transformers
from x_transformers.core.nets import SET_BY_GENERATION
from x_transformers.flags.configurable import Configurable, type_hints
from x_transformers.flags.declared import REQUIRED, Flag
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.guidance import Guidance

PACKAGE = x_transformers.__name__
STUB = Path(x_transformers.__file__).with_name('keywords.pyi')
HEAD = '''"""Written by `python docs/generate.py` from the declarations of the flags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, overload

from torch import Tensor, nn
from typing_extensions import Required
from typing_extensions import Unpack as Unpack
'''
KNOWN = {'Callable', 'Mapping', 'Sequence', 'Any', 'Literal', 'Tensor'}
PREFIXES = ('cross_attn_', 'attn_', 'ff_')  # Of the flags of branches, as keywords of a stack.

# Arguments that only a stack passes to its layers.
INTERNAL = ('stack_call',)
# Options of a forward call that change what it returns, and the types.
TRACED, LISTED = 'tuple[Tensor, LayerIntermediates]', 'tuple[Tensor, list[Tensor]]'
MODEL = {'return_intermediates': TRACED, 'return_mems': LISTED, 'return_attn': LISTED}
FEATURES = {'return_pooled': 'tuple[Tensor, Tensor]', 'return_knn_mems': 'Any', 'return_next_embed_pred': 'Any'}
STACK = {'return_hiddens': TRACED, 'return_gumbel_log_probs': TRACED}
RESULTS: dict[str, dict[str, str]] = {
    'Attention': {'return_intermediates': 'tuple[Tensor, Intermediates]'},
    'AttentionLayers': STACK,
    'PrefixDecoder': STACK,
    'TransformerWrapper': {
        **MODEL,
        'return_logits_and_embeddings': 'tuple[Tensor, Tensor]',
        'return_embeddings_and_intermediates': TRACED,
        'return_readout': 'Any',
        **FEATURES,
    },
    'ContinuousTransformerWrapper': {**MODEL, 'return_knn_mems': 'Any'},
    'ViTransformerWrapper': {'return_logits_and_embeddings': 'tuple[Tensor, Tensor]', 'return_hiddens': LISTED},
    'AutoregressiveWrapper': {'return_outputs': 'tuple[Tensor, tuple[Tensor, LayerIntermediates]]'},
}
FROM = {
    'LayerIntermediates': 'x_transformers.cache',
    'Intermediates': 'x_transformers.core.intermediates',
    'PerLayer': 'x_transformers.flags',
    'Pattern': 'x_transformers.patterns.base',
}
# Bases of the keywords of several classes.
SHARED = {
    'StackKeywords': ('AttentionLayers', 'ContinuousTransformerAutoencoder', 'GPTVAE'),
    'TwoStacksKeywords': ('XTransformer', 'Parti'),
}
# Classes that pass keywords on to a module inside of them.
PASSED_ON = {'AutoregressiveWrapper': 'TransformerWrapper'}


class Writer:
    """Writer of types as source text, with the imports that the text needs."""

    def __init__(self) -> None:
        self.imports: set[tuple[str, str]] = set()

    def import_name(self, kind: type) -> str:
        if kind.__module__ == 'builtins':
            return kind.__name__
        if getattr(nn, kind.__name__, None) is kind:
            return f'nn.{kind.__name__}'
        if kind.__name__ not in KNOWN:
            self.imports.add((kind.__module__, kind.__name__))
        return kind.__name__

    def render_type(self, hint: Any) -> str:
        """Return a type as source text. Without a hint it is Any."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint is None or hint is type(None):
            return 'None'
        if hint is Any or hint is inspect.Parameter.empty or isinstance(hint, (str, typing.TypeVar)):
            return 'Any'
        if hint is ...:
            return '...'
        if origin is typing.Annotated:
            return self.render_type(inner[0])
        if origin in (typing.Union, types.UnionType):
            kinds = dict.fromkeys(map(self.render_type, inner))
            if 'Any' in kinds:
                kinds.pop('None', None)  # Python 3.10 adds it if the default is None.
            # `typing` caches equal unions in another order.
            return ' | '.join(sorted(kinds, key=lambda kind: (kind == 'None', kind)))
        if origin is typing.Literal:
            return f'Literal[{", ".join(map(repr, inner))}]'
        if origin is collections.abc.Callable:
            arguments = '...' if inner[0] is ... else f'[{", ".join(map(self.render_type, inner[0]))}]'
            return f'Callable[{arguments}, {self.render_type(inner[1])}]'
        if origin is not None:
            return f'{self.import_name(origin)}[{", ".join(map(self.render_type, inner))}]'
        return self.import_name(hint) if isinstance(hint, type) else 'Any'

    def import_names(self, text: str) -> str:
        """Import the names in types that are source text, and return the text."""
        for name, module in FROM.items():
            if name in text.replace('[', ' ').replace(']', ' ').replace(',', ' ').split():
                self.imports.add((module, name))
        return text

    def render_flag(self, name: str, declared: Flag) -> str:
        """Return the type of a keyword; on a stack a flag of its branches takes one value per layer, too."""
        if declared.feature is None:
            text = self.render_type(declared.annotation)
        else:
            text = 'bool' if declared.check is None else declared.check.type
        bare = name.removeprefix('enc_').removeprefix('dec_')
        if bare != declared.name and bare.startswith(PREFIXES) and 'Any' != text:
            text += f' | tuple[{text}, ...] | PerLayer'
        if declared.default is None and declared.refusal(None) is None and 'None' not in text and text != 'Any':
            text += ' | None'
        return self.import_names(text)


def make_docstring(declared: Flag) -> str:
    """Return the docstring of a keyword: meaning, default and paper."""
    words = [declared.doc.rstrip('.').replace('\\', '\\\\').replace('"""', "'''") + '.' if declared.doc else '']
    if declared.default is not REQUIRED:
        words.append(f'Default: {declared.default!r}.')
    if declared.feature is not None and declared.feature.paper:
        words.append(declared.feature.paper.rstrip('.') + '.')
    text = ' '.join(filter(None, words))
    return f'"""{text[:1].upper()}{text[1:]}"""' if text else ''


Fields = dict[str, tuple[str, str]]  # name -> type, docstring


def collect_keywords(cls: type[Configurable], writer: Writer) -> Fields:
    """Return the keywords that a class takes besides the parameters of its `__init__`."""
    named = inspect.signature(inspect.unwrap(cls.__init__)).parameters
    found: Fields = {}
    for name, declared in cls.accepted().items():
        if name not in named:
            kind = writer.render_flag(name, declared)
            is_required = declared.default is REQUIRED
            found[name] = (f'Required[{kind}]' if is_required else kind, make_docstring(declared))
    if issubclass(cls, Configurable.kinds['AttentionLayers']) and 'features' not in named:
        found['features'] = (
            writer.render_type(get_hints(Configurable.kinds['AttentionLayers'].__init__)['features']),
            '',
        )
    return found


def get_hints(function: Any) -> dict[str, Any]:
    return type_hints(inspect.unwrap(function), include_extras=False)


def list_parameters(function: Any) -> list[tuple[inspect.Parameter, Any]]:
    """Return the parameters of a method after `self` with their types."""
    function = inspect.unwrap(function)
    hints = get_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return [(p, hints.get(p.name, Any)) for p in parameters if p.name not in INTERNAL]


def collect_inputs(cls: type[Configurable], writer: Writer) -> Fields:
    """Return the keywords of a forward call: parameters of `forward` that do not change the type of the result, and
    inputs of features."""
    name = cls.__name__
    found: Fields = {}
    for parameter, hint in list_parameters(cls.forward)[1:]:
        is_keyword = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if is_keyword and parameter.name not in RESULTS.get(name, {}):
            found[parameter.name] = (writer.render_type(hint), '')
    levels = [cls.catalogue] if cls.catalogue else []
    inside = Configurable.kinds[PASSED_ON[name]] if name in PASSED_ON else None
    if inside is not None:
        found = {**collect_inputs(inside, writer), **dict.fromkeys(RESULTS[inside.__name__], ('bool', '')), **found}
    stack, branches = Configurable.kinds['AttentionLayers'], ('Attention', 'FeedForward')
    if issubclass(cls, Configurable.kinds['Wrapper']):
        found = {**collect_inputs(stack, writer), **found}
    elif issubclass(cls, stack):
        levels += [Configurable.kinds[branch].catalogue for branch in branches]
    for feature in (feature for level in levels for feature in level):
        for one, taken in feature.call_inputs.items():
            if one in RESULTS.get(name, {}):
                continue
            kind = guess_input_type(taken.axes) if taken.check is None else writer.import_names(taken.check.type)
            words = ' '.join(taken.axes.split()).replace('\\', '\\\\')
            found.setdefault(one, (kind if 'None' in kind or kind == 'Any' else f'{kind} | None', f'"""{words}"""'))
    return found


def collect_generation_inputs(writer: Writer) -> dict[str, Fields]:
    """Return the keywords of `stream`, and those of `generate` and `beam_search` after their parameters."""
    wrapper: Any = Configurable.kinds['AutoregressiveWrapper']
    net = collect_inputs(Configurable.kinds['TransformerWrapper'], writer)
    found = {name: field for name, field in net.items() if name not in SET_BY_GENERATION}
    for method in (wrapper.decoding, wrapper.generate):
        for parameter, hint in list_parameters(method)[2:]:
            if parameter.kind is not parameter.VAR_KEYWORD and not parameter.name.startswith('return_'):
                found[parameter.name] = (writer.render_type(hint), '')
    for kind, own in ((TokenSampler, sorted(TokenSampler.own_names())), (Guidance, typing.get_type_hints(Guidance))):
        hints = typing.get_type_hints(kind)
        found |= {name: (writer.render_type(hints[name]), '') for name in own if name not in found}
    searched, streamed = (
        {parameter.name for parameter, _ in list_parameters(method)} for method in (wrapper.beam_search, wrapper.stream)
    )
    named = {'StreamInputs': streamed, 'GenerateInputs': {'eos_token', 'temperature'}, 'BeamSearchInputs': searched}
    return {name: {one: field for one, field in found.items() if one not in own} for name, own in named.items()}


def guess_input_type(words: str) -> str:
    """Return the type of an input without a check: a tensor if its description begins with a shape."""
    if re.match(r'(broadcasts to )?[a-z]( [a-z])+\b(,|;| \||$)', words):
        return 'Tensor'
    return 'int' if words.startswith('number of') else 'Any'


def render_typed_dict(name: str, fields: Fields, earlier: Mapping[str, Fields]) -> Iterator[str]:
    """Yield a TypedDict, derived from the longest earlier one of whose fields it has all."""
    fitting = [one for one, known in earlier.items() if known and known.items() <= fields.items()]
    base = max(fitting, key=lambda one: len(earlier[one]), default='')
    yield f'class {name}({base or "TypedDict"}, total=False):'
    inherited = earlier[base] if base else {}
    own = {field: one for field, one in fields.items() if field not in inherited}
    for field, (kind, text) in own.items():
        yield f'    {field}: {kind}'
        if text:
            yield f'    {text}'
    if not own:
        yield '    pass'
    yield ''


def render_call(cls: type[Configurable], writer: Writer) -> Iterator[str]:
    """Yield the protocol of a forward call with options that change the type of the result."""
    name = cls.__name__
    options = RESULTS[name]
    (first, hint), *others = list_parameters(cls.forward)
    lead = f'{first.name}: {writer.render_type(hint)}'
    rest = f'**inputs: Unpack[{name}Inputs]'

    off = {option: f'{option}: Literal[False] = ...' for option in options}
    either = [f'{option}: bool = ...' for option in options]

    def overload(returned: str, *arguments: str) -> str:
        given = ', '.join(('self', *arguments, rest))
        return f'    @overload\n    def __call__({given}) -> {writer.import_names(returned)}: ...'

    yield f'class {name}Call(Protocol):'
    yield overload('Tensor', lead, '*', *off.values())
    for option, returned in options.items():
        if returned != 'Any':
            yield overload(returned, lead, '*', f'{option}: Literal[True]', *(off[one] for one in off if one != option))
    yield overload('Any', lead, '*', *either)
    positional = [f'_{p.name}: {writer.render_type(hint)}' for p, hint in others if p.kind is p.POSITIONAL_OR_KEYWORD]
    if positional:
        yield overload('Any', f'_{lead}', *(f'{one} = ...' for one in positional), '/', '*', *either)
    yield ''


def find_classes() -> Iterator[type[Configurable]]:
    """Yield the classes of the library whose `__init__` takes `**flags`, bases first."""
    folder = STUB.parent
    for path in sorted(folder.rglob('*.py')):
        if 'Keywords' in path.read_text(encoding='utf-8') and path.stem != 'keywords':
            importlib.import_module('.'.join((PACKAGE, *path.relative_to(folder).with_suffix('').parts)))
    first = ('Attention', 'FeedForward', 'Attend', 'TransformerWrapper', 'AttentionLayers', 'XTransformer')
    known = [Configurable.kinds[name] for name in first]
    others = sorted((cls for cls in Configurable.kinds.values() if cls not in known), key=lambda cls: cls.__name__)
    for cls in (*known, *others):
        init = vars(cls).get('__init__')
        if init is None or not cls.__module__.startswith(f'{PACKAGE}.'):
            continue
        parameters = inspect.signature(inspect.unwrap(init)).parameters
        takes_flags = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if takes_flags and not cls.accepted().keys() <= parameters.keys():
            yield cls


def render_imports(names: Iterable[tuple[str, str]]) -> list[str]:
    own = {PACKAGE: sorted({name for module, name in names if module == PACKAGE})}
    for module, name in sorted(names):
        own.setdefault(module, []).append(name)
    return [f'from {module} import {", ".join(sorted(set(found)))}' for module, found in own.items() if found]


def render_stub() -> str:
    """Return the text of `keywords.pyi`."""
    writer = Writer()
    dicts: dict[str, Fields] = {}
    body: list[str] = []
    each = {f'{cls.__name__}Keywords': collect_keywords(cls, writer) for cls in find_classes()}
    for name, owners in SHARED.items():
        first, *others = (each[f'{owner}Keywords'] for owner in owners)
        each[name] = {field: one for field, one in first.items() if all(own.get(field) == one for own in others)}
    for name in dict.fromkeys((*SHARED, *each)):
        body += render_typed_dict(name, each[name], dicts)
        dicts[name] = each[name]
    inputs: dict[str, Fields] = {}
    for name in RESULTS:
        cls = Configurable.kinds[name]
        fields = collect_inputs(cls, writer)
        body += render_typed_dict(f'{name}Inputs', fields, inputs)
        inputs[f'{name}Inputs'] = fields
        body += render_call(cls, writer)
    for name, fields in collect_generation_inputs(writer).items():
        body += render_typed_dict(name, fields, {})
    return '\n'.join([HEAD.rstrip(), *render_imports(writer.imports), '', *body]).rstrip() + '\n'

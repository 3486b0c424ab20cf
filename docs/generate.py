"""Write what is made of the code: every flag by topic and the options of generation, `docs/flags/*.md`, keywords of
other libraries, `docs/from-other-libraries.md`, the flags that exclude each other, `docs/combinations.md`, the tables
of packages and modules in `docs/contributing.md`, and the types of all keywords, `x_transformers/keywords.pyi`.

python docs/generate.py    # after a change to a flag, a docstring of a module, or a table; a test compares the files
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import keyword_types

import x_transformers.flags.explain as results
from x_transformers import Attention, AttentionLayers, FeedForward, TransformerWrapper
from x_transformers.flags import Configurable, Feature
from x_transformers.flags.__main__ import refusals
from x_transformers.flags.foreign_words import BUILD, CALL, GENERATE, LOAD, SAVE, WORDS, Word
from x_transformers.generation.choice import ENDS, TokenSampler
from x_transformers.nonautoregressive_wrapper import MASKED_OPTIONS
from x_transformers.objectives.permutation import CHOOSING

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FOLDER = Path(__file__).parent / 'flags'
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / 'x_transformers'
CONTRIBUTING, COMBINATIONS = ROOT / 'docs' / 'contributing.md', ROOT / 'docs' / 'combinations.md'
# Packages whose modules the page lists: those of a forward pass and of generation.
LISTED = ('core', 'kernels', 'patterns/engine', 'generation')
OF_WORDS = Path(__file__).parent / 'from-other-libraries.md'
OWNERS: dict[type[Configurable], str] = {
    Attention: 'attn_',
    FeedForward: 'ff_',
    AttentionLayers: '',
    TransformerWrapper: '',
}
# page -> title, and the modules of `x_transformers.features` whose flags are on it
TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    'rotary': ('Rotary and polar positions', ('rotary', 'polar')),
    'positions': (
        'Position biases and relative positions',
        (
            'biases', 'window_biases', 'data_positions', 'relative', 'untied', 'disentangled', 'layer_positions',
            'contextual',
        ),
    ),
    'queries-keys-values': (
        'Attention: queries, keys and values',
        ('sources', 'latents', 'shared_keys', 'two_streams'),
    ),
    'heads': ('Attention: heads', ('heads', 'head_dims', 'operands')),
    'scores': ('Attention: scores', ('scores', 'windows', 'temperature')),
    'outputs': ('Attention: outputs', ('outputs', 'hybrid', 'convolutions')),
    'sub-quadratic': (
        'Sub-quadratic attention and recurrent layers',
        (
            'clusters.clusters', 'clusters.lsh', 'selected.moba', 'selected.indexer', 'linear.attention',
            'linear.aft', 'patterns', 'linformer', 'spans',
        ),
    ),
    'feedforwards': ('Feedforwards', ('feedforward', 'experts')),
    'norms': ('Norms', ('norms',)),
    'residuals': ('Residuals', ('residuals', 'gates', 'streams', 'integrators', 'per_layer_embeddings')),
    'layouts': ('Layouts and depth', ('layouts', 'universal', 'halting', 'recompute', 'exits')),
    'embeddings': ('Embeddings and passes of models', ('embeddings', 'passes')),
    'models': ('Memories and heads of models', ('documents', 'memory.compressive', 'memory.knn', 'readouts', 'mtp')),
}  # fmt: skip
LEVELS = {
    Attention: 'Attention layers. On a stack, the prefix `attn_` sets a flag for all attention layers, '
    '`cross_attn_` for cross-attention only.',
    FeedForward: 'Feedforward layers. On a stack, the prefix `ff_` sets a flag for all feedforwards.',
    AttentionLayers: 'Stacks: `Encoder`, `Decoder`, `PrefixDecoder`, `CrossAttender`, `AttentionLayers`.',
    TransformerWrapper: 'Models: `TransformerWrapper`, and other wrappers that have the flag.',
}


def topic_of(feature: type[Feature]) -> str:
    """Return the page that a feature belongs on. A file without a topic raises KeyError."""
    file = feature.__module__.partition('.features.')[2]
    return {module: topic for topic, (_, modules) in TOPICS.items() for module in modules}[file]


def linked(paper: str) -> str:
    """Return a citation with links to arXiv."""
    return re.sub(r'arXiv:(\d{4}\.\d{4,5})', r'[arXiv:\1](https://arxiv.org/abs/\1)', paper)


def cell(text: object) -> str:
    return str(text).replace('|', r'\|').replace('\n', ' ')


def described(owner: type[Configurable], prefix: str, feature: type[Feature]) -> Iterator[str]:
    """Yield the lines of one feature: its formula, flags, paper, figures, and what it cannot be combined with."""
    switch = next((name for name in feature.switches if name in feature.flags), next(iter(feature.flags)))
    yield from (f'### `{prefix}{switch}`', '', *inspect.cleandoc(feature.__doc__ or '').splitlines(), '')
    if switch not in feature.switches and feature.switches:
        yield from (f'Used with {", ".join(f"`{prefix}{name}`" for name in feature.switches)}.', '')
    yield from ('| keyword | default | meaning |', '|---|---|---|')
    for name, declared in feature.flags.items():
        yield f'| `{prefix}{name}` | `{cell(repr(declared.default))}` | {cell(declared.doc)} |'
    yield ''
    if feature.paper:
        yield from (f'Paper: {linked(feature.paper)}.', '')
    for one in results.measured({cls.__name__ for cls in owner.__mro__}, switch):
        yield from (f'Measured (`{one.as_given()}`): {one}.', '')
    for title, pairs in (('Needs', feature.needs), ('Cannot be combined with', feature.clashes)):
        if pairs:
            yield from (f'{title}:', '', *(f'- `{prefix}{name}`: {cell(reason)}' for name, reason in pairs.items()), '')


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    parts: dict[str, list[str]] = {}
    for topic, (title, _) in TOPICS.items():
        parts[topic] = [
            f'# {title}', '',
            '<!-- written by docs/generate.py -->', '',
            'All flags of this topic, with formulas, papers, measured effects and restrictions. "Measured" gives the '
            'change of the loss on held-out text against a baseline, in bits per byte (negative is better), after '
            'equal training steps and after equal training time, and the ratios of step time and memory; see '
            '[measured effects](../measured.md).', '',
        ]  # fmt: skip
        for owner, prefix in OWNERS.items():
            own = [cls for cls in owner.catalogue if cls.flags and topic_of(cls) == topic]
            if own:
                parts[topic] += [f'## {LEVELS[owner].partition(":")[0].partition(".")[0]}', '', LEVELS[owner], '']
            for feature in own:
                parts[topic] += described(owner, prefix, feature)
    found = {f'{topic}.md': '\n'.join(lines).rstrip() + '\n' for topic, lines in parts.items()}
    return {**found, 'generation.md': options_page()}


# wrappers, and why they refuse options of choosing a token and of ending a row
IMAGES = 'each row is an image, with a fixed number of tokens'
ORDER = 'tokens are filled in at any place'
GENERATORS: dict[str, tuple[str, dict[str, str]]] = {
    '`AutoregressiveWrapper`: `generate`, `stream`, `speculative`, `beam_search`, `kv_storage=Paged(n)`': ('', {}),
    '`XTransformer`, `EncoderDecoder`, `VisionLanguageWrapper`, `EarlyExitWrapper`, `KNNLMWrapper`, `SPALMWrapper`': (
        'as `AutoregressiveWrapper`', {},
    ),
    '`GPTVAE`, `XMLatentDecoder`, `FullBandwidth`': ('as `AutoregressiveWrapper`', {}),
    '`XLAutoregressiveWrapper`, `XValAutoregressiveWrapper`': ('', {}),
    '`MultiInputAutoregressiveWrapper`': ('each option for all streams, or as a dict by stream', {}),
    '`BeliefStateWrapper`, `FreeTransformer`, `SyntheticDataGenerator`': ('prompts of one length', {}),
    '`Parti`, `DALLE`': ('', dict.fromkeys(ENDS, IMAGES)),
    '`PermutationLMWrapper.infill`': ('', {n: ORDER for n in TokenSampler.own_names() - {*CHOOSING, 'generator'}}),
    '`NonAutoregressiveWrapper`, `Muse`': (
        'for the temperature and the filter there are `start_temperature` and `filter_thres`',
        {n: ORDER for n in TokenSampler.own_names() - {*MASKED_OPTIONS, 'generator'}},
    ),
}  # fmt: skip
MEANINGS = {
    'temperature': 'divides the logits; 0 selects the most probable token',
    'filter_logits_fn': 'which tokens may be drawn: `top_k`, `top_p`, `min_p` and others, or several in order',
    'filter_kwargs': 'keywords of the filter',
    'repetition_penalty': 'divides positive logits of all earlier tokens, multiplies negative ones',
    'presence_penalty': 'subtracted from the logit of each token that was generated',
    'frequency_penalty': 'subtracted once for each time the token was generated',
    'logit_bias': 'a dict of token ids and numbers that are added to their logits',
    'banned_tokens': 'ids that are never chosen',
    'allowed_tokens': 'the only ids that may be chosen',
    'no_repeat_ngram_size': 'no sequence of so many tokens twice, the prompt included; padding is no token',
    'min_new_tokens': 'so many new tokens before a row may end',
    'eos_token': 'id that ends a row, or several',
    'stop_sequences': 'sequences of ids; a row ends when it has generated one',
    'logits_processor': 'function of the ids and the logits, one or several',
    'generator': 'random number generator',
}


def options_page() -> str:
    """Return the page of the options of generation, by wrapper."""
    assert set(MEANINGS) == TokenSampler.own_names(), 'a new option of generation needs its meaning'
    lines = [
        '# Options of generation', '', '<!-- written by docs/generate.py -->', '',
        'The options that choose a token and that end a row are the same in every wrapper that draws tokens. '
        'Where one cannot be, an error names it.', '',
        '| option | meaning |', '|---|---|', *(f'| `{name}` | {cell(text)} |' for name, text in MEANINGS.items()), '',
        '| wrapper | all of them, but for | remark |', '|---|---|---|',
    ]  # fmt: skip
    for wrapper, (remark, refused) in GENERATORS.items():
        names = ', '.join(f'`{name}`' for name in MEANINGS if name in refused)
        reasons = '; '.join(filter(None, (remark, *dict.fromkeys(refused.values()))))
        lines.append(f'| {wrapper} | {names} | {reasons} |')
    return '\n'.join([*lines, '', EXAMPLE]).rstrip() + '\n'


EXAMPLE = """## Examples

```python
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

net = TransformerWrapper(num_tokens=32, max_seq_len=64, attn_layers=Decoder(dim=32, depth=1, heads=2))
model = AutoregressiveWrapper(net)

# Prompts are tensors, arrays, or lists of ids, also of unequal length.
tokens = model.generate([[1, 2, 3], [4, 5]], 8, no_repeat_ngram_size=2)  # (2, 8)

# At least five tokens, in every way to generate.
options = dict(eos_token=0, min_new_tokens=5)
for step in model.stream([1, 2, 3], 8, temperature=0.0, **options):
    pass
best = model.beam_search([1, 2, 3], 8, beams=1, **options)  # One beam is greedy generation.
assert best.equal(model.generate([1, 2, 3], 8, temperature=0.0, **options))

# Log probabilities of a given text: those of each token after the first.
scores = model.score([[1, 2, 3], [4, 5]])  # (2, 2)
assert scores[1, 1] == 0  # padding
```

With an encoder, `generate`, `stream`, `beam_search` and `score` take the source first:

```python
from x_transformers import XTransformer

sizes = dict(num_tokens=32, max_seq_len=16, depth=1, heads=2)
sizes = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
model = XTransformer(dim=32, **sizes)
best = model.beam_search([[3, 1, 4], [1, 5]], [[0], [0]], 6, beams=2)  # (2, 6)
```
"""


KINDS = {
    BUILD: 'Building models',
    CALL: 'Calls',
    GENERATE: 'Generation',
    LOAD: '`pretrained.load` and `from_pretrained`',
    SAVE: '`pretrained.save` and `save_pretrained`',
}
INTRODUCTION = """# Coming from other libraries

<!-- written by docs/generate.py -->

A keyword of another library raises an error that names the keyword of this one, and where it belongs if the called
function has none. Nothing is renamed silently.

```python
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

try:
    Decoder(dim=64, depth=2, num_heads=4)
except ValueError as error:
    print(error)  # unknown keyword `num_heads` of Decoder: here it is `heads`

net = TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=Decoder(dim=64, depth=2, heads=4))
try:
    AutoregressiveWrapper(net).generate(torch.zeros(1, 4).long(), 8, do_sample=False)
except TypeError as error:
    print(error)  # ... `do_sample`: here it is `temperature`, write `temperature=0.0`
```

These are the words that are known, with what to write instead. `...` is the value that was given. Keywords of layers
are those of a stack; `Attention` and `FeedForward` take them without `attn_` and `ff_`, `XTransformer` with `enc_`,
`dec_` in front. See also [Coming from transformers](from-transformers.md) and [Coming from nanoGPT](from-nanogpt.md).
"""


def instead(row: Word) -> str:
    """Return what to write for the words of a row: all alternatives, those for single values, and the remark."""
    parts = [alternatives(row.ours)]
    parts += [f'{cell(value)}: {alternatives(ours)}' for value, ours in row.values.items()]
    return '; '.join([*parts, *([filled(row.note)] if row.note else [])])


def alternatives(ours: str) -> str:
    """Return alternatives of the table for readers."""
    parts = []
    for one in ours.split(' | '):
        owner, text = re.fullmatch(r'(?:@(\w+) )?[! ]*(.*)', one.strip()).groups()
        text = filled(text[1:].strip()) if text.startswith(':') else f'`{filled(text)}`'
        parts.append(f'{text} (`{owner}`)' if owner else text)
    return ' or '.join(parts)


def filled(text: str) -> str:
    """Return a text of the table with `...` for what a caller gives."""
    return cell(text.format(**dict.fromkeys(('value', 'less', 'root', 'not', 'name'), '...')))


def page_of_words() -> str:
    """Return the text of the page of keywords of other libraries."""
    lines = [INTRODUCTION]
    for kind, title in KINDS.items():
        lines += [f'## {title}', '', '| there | library | here |', '|---|---|---|']
        for row in (row for row in WORDS if row.kind == kind):
            words = ', '.join(f'`{word}`' for word in row.theirs.split())
            lines.append(f'| {words} | {row.libraries} | {instead(row)} |')
        lines.append('')
    return '\n'.join(lines).rstrip() + '\n'


def purpose(file: Path) -> str:
    """Return the first sentence of the docstring of a module, without the period."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding='utf-8'))) or ''
    return re.split(r'\.(?:\s|$)', text.split('\n\n')[0].replace('\n', ' '))[0]


def contract() -> tuple[list[list[str]], list[str]]:
    """Return the layers of packages and modules in pyproject.toml, the highest first, and the exceptions."""
    tools = tomllib.loads((ROOT / 'pyproject.toml').read_text(encoding='utf-8'))['tool']
    (found,) = (one for one in tools['importlinter']['contracts'] if one['type'] == 'layers')
    return [re.findall(r'\w+', layer) for layer in found['layers']], found['ignore_imports']


def named(names: list[str]) -> str:
    """Return names of packages and modules; a layer of many modules is named by its first and last one."""
    found = [f'`{name}/`' if (PACKAGE / name).is_dir() else f'`{name}.py`' for name in names]
    return ', '.join(found) if len(found) < 6 else f'{found[0]} ... {found[-1]}'


def table_of_packages() -> str:
    """Return the table of packages and top modules: their purposes, and what the contract lets them import."""
    layers, exceptions = contract()
    lines = ['| package or module | contains | may import |', '|---|---|---|']
    for place, layer in enumerate(layers):
        below = ', '.join(map(named, layers[place + 1 :]))
        if len(layers) - place > 5:
            below = f'{named(layers[place + 1])}, and all below'
        if len(layer) >= 6:
            lines.append(f'| {named(layer)} | models, wrappers, losses and tools that users import | {below} |')
            continue
        for name in layer:
            file = PACKAGE / name / '__init__.py' if (PACKAGE / name).is_dir() else PACKAGE / f'{name}.py'
            beside = named([other for other in layer if other != name])
            allowed = ', '.join(filter(None, (beside, below))) or 'no other'
            lines.append(f'| {named([name])} | {cell(purpose(file))} | {allowed} |')
    lines += [
        '',
        'Exceptions, for the command line, and names in annotations:',
        '',
        *(f'- `{one}`' for one in exceptions),
        '',
    ]
    return '\n'.join(lines)


def tables_of_modules() -> str:
    """Return a table of the modules of each listed package, with their purposes."""
    lines = []
    for package in LISTED:
        lines += [f'| `{package}/` | contains |', '|---|---|']
        files = (file for file in sorted((PACKAGE / package).glob('*.py')) if file.stem != '__init__')
        lines += [*(f'| `{file.name}` | {cell(purpose(file))} |' for file in files), '']
    return '\n'.join(lines)


def page_for_contributors() -> str:
    """Return docs/contributing.md with its tables of packages and modules as the code has them."""
    text = CONTRIBUTING.read_text(encoding='utf-8')
    for mark, table in (('packages', table_of_packages()), ('modules', tables_of_modules())):
        text = fill(text, mark, f'\n{table}\n')
    return text


def page_of_refusals() -> str:
    """Return docs/combinations.md with the table of flags that exclude each other."""
    lines = ['| flag | cannot be combined with |', '|---|---|']
    for flag, others in refusals():
        first = flag if flag == 'one of' else f'`{flag}`'
        lines.append(f'| {first} | {", ".join(f"`{name}`" for name in others)} |')
    return fill(COMBINATIONS.read_text(encoding='utf-8'), 'refusals', '\n'.join(lines) + '\n')


def fill(text: str, mark: str, content: str) -> str:
    """Return a page with other content between two marks."""
    begin, end = f'<!-- {mark} -->\n', f'<!-- end of {mark} -->'
    before, rest = text.split(begin)
    return f'{before}{begin}{content}{end}{rest.partition(end)[2]}'


if __name__ == '__main__':
    FOLDER.mkdir(exist_ok=True)
    written = {keyword_types.STUB: keyword_types.render_stub(), CONTRIBUTING: page_for_contributors()}
    written |= {COMBINATIONS: page_of_refusals(), OF_WORDS: page_of_words()}
    written |= {FOLDER / name: text for name, text in pages().items()}
    for path, text in written.items():
        if not path.exists() or path.read_text(encoding='utf-8') != text:
            path.write_text(text, encoding='utf-8')
            print(f'{path} has changed')

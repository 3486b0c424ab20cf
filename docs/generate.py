"""Write the pages that list every flag by topic, `docs/flags/*.md`, from the declarations of the flags, and the page of
keywords of other libraries, `docs/from-other-libraries.md`, from their table.

python docs/generate.py    # after a change to a flag or the table; a test compares the pages with both
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import x_transformers.flags.measured as results
from x_transformers import Attention, AttentionLayers, FeedForward, TransformerWrapper
from x_transformers.flags import Configurable, Feature
from x_transformers.flags.foreign_words import BUILD, CALL, GENERATE, LOAD, SAVE, WORDS, Word

FOLDER = Path(__file__).parent / 'flags'
OF_WORDS = Path(__file__).parent / 'from-other-libraries.md'
HOSTS: dict[type[Configurable], str] = {
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
            'biases', 'data_positions', 'relative', 'xl', 'untied', 'disentangled', 'rescaled', 'layer_positions',
            'contextual',
        ),
    ),
    'queries-keys-values': (
        'Attention: queries, keys and values',
        ('sources', 'latents', 'projections', 'early', 'two_streams'),
    ),
    'heads': ('Attention: heads', ('heads', 'head_dims', 'operands')),
    'scores': ('Attention: scores', ('scores', 'differential', 'positions')),
    'outputs': ('Attention: outputs', ('outputs', 'hybrid')),
    'sub-quadratic': (
        'Sub-quadratic attention and recurrent layers',
        (
            'clusters.clusters', 'clusters.lsh', 'linear.attention', 'sparse.pattern', 'aft', 'linformer', 'spans',
            'recurrent',
        ),
    ),
    'feedforwards': ('Feedforwards', ('feedforward', 'experts', 'chunks')),
    'norms': ('Norms', ('norms',)),
    'residuals': ('Residuals', ('residuals', 'gates', 'streams', 'integrators')),
    'layouts': ('Layouts and depth', ('layouts', 'convolutions', 'universal', 'halting', 'recompute', 'reversible')),
    'embeddings': ('Embeddings and passes of models', ('embeddings', 'passes')),
    'models': ('Memories and heads of models', ('segments', 'memory.compressive', 'memory.knn', 'readouts')),
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


def described(host: type[Configurable], prefix: str, feature: type[Feature]) -> Iterator[str]:
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
    for one in results.measured({cls.__name__ for cls in host.__mro__}, switch):
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
        for host, prefix in HOSTS.items():
            own = [cls for cls in host.catalogue if cls.flags and topic_of(cls) == topic]
            if own:
                parts[topic] += [f'## {LEVELS[host].partition(":")[0].partition(".")[0]}', '', LEVELS[host], '']
            for feature in own:
                parts[topic] += described(host, prefix, feature)
    return {f'{topic}.md': '\n'.join(lines).rstrip() + '\n' for topic, lines in parts.items()}


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


if __name__ == '__main__':
    OF_WORDS.write_text(page_of_words(), encoding='utf-8')
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding='utf-8')
        print(f'{name}: {len(text.splitlines())} lines')

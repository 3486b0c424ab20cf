"""Names and docstrings of the package follow its rules of words: numbers of today, which may only become fewer."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / 'x_transformers'
BAD_START = re.compile(r'(What|Whether|Which|Of|How|The same)\b')
# Functions named by one participle, such as `cleared`, and irregular ones; a word ending so that is no participle.
PARTICIPLE = re.compile(r'[a-z]{2,}(ed|ing)$')
IRREGULAR = {
    'built', 'chosen', 'cut', 'done', 'drawn', 'dealt', 'found', 'given', 'gone', 'held', 'hidden', 'kept', 'known',
    'left', 'made', 'meant', 'put', 'said', 'seen', 'sent', 'shown', 'sorted', 'spread', 'taken', 'told', 'written',
}  # fmt: skip
NO_PARTICIPLE = {'embed', 'everything', 'feed', 'need', 'read', 'ring', 'seed', 'set', 'speed', 'string', 'unsupported'}
# Private words with a word of the field in their place.
GLOSSARY = {
    'acting', 'again', 'among', 'anew', 'arrive', 'awaited', 'behind', 'beside', 'blind', 'brief', 'chain', 'crooked',
    'front', 'gain', 'gains', 'gone', 'hear', 'heard', 'house', 'judges', 'late', 'lengthen', 'links', 'log_sums',
    'meet', 'outline', 'plain', 'real', 'remember', 'remembers', 'room', 'shorten', 'shown', 'sight', 'sighted',
    'stand',
    'tell', 'told', 'trace', 'triangle', 'turn', 'turned', 'turns', 'uncut', 'unseen', 'unwind', 'untouched',
    'waits',
    'weigh',
}  # fmt: skip


def package_of(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else 'top'


TREES = {path: ast.parse(path.read_text(encoding='utf-8')) for path in sorted(ROOT.rglob('*.py'))}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINED = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
CLASSES = [(path, node) for path, tree in TREES.items() for node in tree.body if isinstance(node, ast.ClassDef)]


def is_participle(name):
    return name not in NO_PARTICIPLE and (name in IRREGULAR or PARTICIPLE.match(name) is not None)


def check(found, most):
    """Compare the number of places with `most`."""
    counts = Counter(package_of(path) for path, _ in found)
    places = '\n'.join(f'{path.relative_to(ROOT.parent)}: {name}' for path, name in found)
    assert len(found) <= most, f'{len(found)} places, at most {most}: {dict(counts)}\n{places}'


def class_names_twice():
    places = defaultdict(list)
    for path, node in CLASSES:
        places[node.name].append(path)
    return [(path, name) for name, paths in places.items() if len(paths) > 1 for path in paths]


def bad_beginnings():
    texts = [(path, node.name, ast.get_docstring(node)) for path, node in DEFINED]
    return [(path, name) for path, name, text in texts if text and BAD_START.match(text)]


def participles():
    return [(path, node.name) for path, node in DEFINED if is_participle(node.name)]


def glossary_words():
    """Functions, classes and modules whose name has such a word, `in_front` for example, or is one."""
    named = [(path, node.name) for path, node in (*DEFINED, *CLASSES)] + [(path, path.stem) for path in TREES]
    words = [(path, name, {word.lower() for word in re.findall('[A-Z]?[a-z]+', name)}) for path, name in named]
    return [(path, name) for path, name, own in words if own & GLOSSARY or name in GLOSSARY]


LAWS = {law.__name__: law for law in (class_names_twice, bad_beginnings, participles, glossary_words)}
# The numbers of today, which may only become fewer: `python tests/test_words.py` prints them.
MOST = {'class_names_twice': 0, 'bad_beginnings': 0, 'participles': 186, 'glossary_words': 54}


@pytest.mark.whole
@pytest.mark.parametrize('law', LAWS)
def test_words(law):
    check(LAWS[law](), MOST[law])


if __name__ == '__main__':
    print({name: len(law()) for name, law in LAWS.items()})

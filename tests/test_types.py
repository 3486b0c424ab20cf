"""What editors and type checkers see: keywords, calls and results have types, and mistakes are found before a run."""

import ast
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import x_transformers
from x_transformers.flags import Configurable

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / 'x_transformers'
CLIENTS = Path(__file__).with_name('typed')
MISTAKES = {
    number for number, line in enumerate((CLIENTS / 'mistakes.py').read_text().splitlines(), 1) if '# mistake' in line
}


def test_the_stub_is_what_the_declarations_say():
    """`python docs/generate.py` writes it again."""
    types = runpy.run_path(str(ROOT / 'docs' / 'keyword_types.py'))
    assert (PACKAGE / 'keywords.pyi').read_text(encoding='utf-8') == types['render_stub']()


def test_every_class_with_flags_has_its_types():
    """Each `__init__` with `**flags` names the keywords of its own class, which the stub has, with every keyword."""
    declared = {
        node.name: {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)} | inherited(node)
        for node in ast.parse((PACKAGE / 'keywords.pyi').read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    found = 0
    for name in x_transformers.__all__:
        cls = getattr(x_transformers, name)
        if not (isinstance(cls, type) and issubclass(cls, Configurable)) or '__init__' not in vars(cls):
            continue
        init = vars(cls)['__init__'].__wrapped__
        arguments = {*init.__code__.co_varnames[: init.__code__.co_argcount + init.__code__.co_kwonlyargcount]}
        missing = cls.accepted().keys() - arguments
        if not init.__code__.co_flags & 0x08 or not missing:  # which takes no **flags
            continue
        assert missing <= fields_of(f'{name}Keywords', declared), name
        assert f'Unpack[{name}Keywords]' in source_of(cls).replace('kw.', ''), name
        found += 1
    assert found > 10


def inherited(node):
    return {f'<{base.id}>' for base in node.bases if isinstance(base, ast.Name)}


def fields_of(name, declared):
    own = declared.get(name, set())
    return own.union(*(fields_of(base[1:-1], declared) for base in own if base.startswith('<')))


def source_of(cls):
    return Path(sys.modules[cls.__module__].__file__).read_text(encoding='utf-8')


def original_names():
    """Yield the modules of the original with the names in them."""
    text = (Path(__file__).parent / 'data' / 'original_names.txt').read_text(encoding='utf-8')
    for module, names in re.findall(r'^(\w+):\n((?:    .*\n?)+)', text, re.MULTILINE):
        yield module, set(names.split())


def test_names_of_the_original_are_no_private_imports():
    """Type checkers refuse what a module imports for itself alone: `import name as name` is for users, too."""
    found = 0
    for module, names in original_names():
        path = PACKAGE / f'{module}.py'
        listed = getattr(importlib.import_module(f'x_transformers.{module}'), '__all__', ()) if path.exists() else ()
        for node in ast.parse(path.read_text(encoding='utf-8')).body if path.exists() else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith('x_transformers'):
                private = [one.name for one in node.names if one.name in names - {*listed} and one.asname is None]
                assert not private, f'{module}: import {private[0]} as {private[0]}'
                found += sum(one.asname in names for one in node.names)
    assert found > 40


def test_types_cost_nothing_at_run_time():
    """No name is evaluated, each is a TypedDict that a user's may extend, and unknown ones do not exist."""
    from x_transformers import keywords

    assert keywords.DecoderKeywords is keywords.DecoderKeywords
    assert keywords.DecoderKeywords(dim=3) == {'dim': 3} and keywords.Unpack[keywords.DecoderKeywords] is not None
    with pytest.raises(AttributeError, match='has no attribute'):
        keywords.Decoder  # noqa: B018


def test_right_code_runs():
    torch.manual_seed(0)
    made = runpy.run_path(str(CLIENTS / 'right.py'))
    assert made['tokens'].shape == (2, 4) and made['loss'].ndim == 0


def run_checker(tool, *arguments):
    """Run a type checker of this environment; skip if it is not installed."""
    pytest.importorskip(tool, reason=f'pip install {tool}')
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'MYPYPATH': str(ROOT)}
    command = [sys.executable, '-m', tool, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=CLIENTS, env=environment, timeout=600).stdout


@pytest.mark.slow
def test_pyright_finds_mistakes_alone(tmp_path):
    shutil.copytree(CLIENTS, tmp_path / 'clients')
    config = {'include': ['clients'], 'extraPaths': [str(ROOT)], 'typeCheckingMode': 'strict'}
    (tmp_path / 'pyrightconfig.json').write_text(json.dumps(config))
    said = json.loads(run_checker('pyright', '-p', tmp_path, '--pythonpath', sys.executable, '--outputjson'))
    assert said['summary']['filesAnalyzed'] == len(list(CLIENTS.glob('*.py')))
    errors = [one for one in said['generalDiagnostics'] if one['severity'] == 'error']
    found = {(Path(one['file']).name, one['range']['start']['line'] + 1): one['message'] for one in errors}
    assert found.keys() == {('mistakes.py', line) for line in MISTAKES}, found


@pytest.mark.slow
def test_mypy_finds_mistakes_alone(tmp_path):
    options = ('--strict', '--follow-imports=silent', '--no-error-summary', '--cache-dir', tmp_path)
    said = run_checker('mypy', *options, 'right.py', 'mistakes.py')
    found = {(name, int(line)) for name, line in re.findall(r'^(\w+\.py):(\d+): error', said, re.MULTILINE)}
    assert found == {('mistakes.py', line) for line in MISTAKES}, said


class LanguageServer:
    """As much of the protocol of language servers as an editor needs to show a text and to complete it."""

    def __init__(self, folder):
        command = [sys.executable, '-m', 'pyright.langserver', '--stdio']
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.count, self.uri = 0, (folder / 'client.py').as_uri()
        folders = [{'uri': folder.as_uri(), 'name': 'client'}]
        self.ask('initialize', processId=None, rootUri=folder.as_uri(), capabilities={}, workspaceFolders=folders)
        self.tell('initialized')

    def send(self, **message):
        text = json.dumps({'jsonrpc': '2.0', **message}).encode()
        self.process.stdin.write(b'Content-Length: %d\r\n\r\n%s' % (len(text), text))
        self.process.stdin.flush()

    def tell(self, method, **parameters):
        self.send(method=method, params=parameters)

    def read(self):
        length = 0
        while (line := self.process.stdout.readline().strip()) or not length:
            assert line or self.process.poll() is None
            if line.lower().startswith(b'content-length:'):
                length = int(line.split(b':')[1])
        return json.loads(self.process.stdout.read(length))

    def ask(self, method, **parameters):
        self.count += 1
        self.send(id=self.count, method=method, params=parameters)
        while (message := self.read()).get('id') != self.count or 'method' in message:
            if 'id' in message:  # a question to the editor, such as for its settings
                asked = message.get('params', {}).get('items', [])
                self.send(id=message['id'], result=[{} for _ in asked] if asked else None)
        return message['result']

    def close(self):
        self.process.kill()
        self.process.communicate()  # which closes the pipes, too

    def open(self, text):
        document = {'uri': self.uri, 'languageId': 'python', 'version': 1, 'text': text}
        self.tell('textDocument/didOpen', textDocument=document)

    def at(self, method, line, character):
        position = {'line': line, 'character': character}
        return self.ask(f'textDocument/{method}', textDocument={'uri': self.uri}, position=position)


@pytest.mark.slow
def test_editors_complete_and_explain_flags(tmp_path):
    pytest.importorskip('pyright', reason='pip install pyright')
    (tmp_path / 'pyrightconfig.json').write_text(json.dumps({'extraPaths': [str(ROOT)]}))
    lines = [
        'from x_transformers import Decoder, TransformerWrapper',
        'stack = Decoder(dim=64, depth=2, rotary_pos_emb=True)',
        'Decoder(dim=64, depth=2, attn_kv_)',
        'model = TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=stack)',
        'model(None, return_log)',
    ]
    server = LanguageServer(tmp_path)
    try:
        server.open('\n'.join(lines))
        hover = server.at('hover', 1, lines[1].index('rotary') + 3)['contents']['value']
        assert 'bool' in hover and '2104.09864' in hover, hover
        flags = {item['label'] for item in server.at('completion', 2, len(lines[2]) - 1)['items']}
        assert 'attn_kv_heads=' in flags, flags
        options = {item['label'] for item in server.at('completion', 4, len(lines[4]) - 1)['items']}
        assert 'return_logits_and_embeddings=' in options, options
    finally:
        server.close()

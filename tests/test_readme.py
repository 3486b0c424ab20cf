"""README and documentation keep their word: snippets run, shapes are true, keywords, commands and links exist."""

import ast
import importlib
import importlib.util
import inspect
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
import torch

import x_transformers
from x_transformers.flags import accepted_keywords

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same parser
    import tomli as tomllib

pytestmark = pytest.mark.whole
ROOT = Path(__file__).parent.parent
README = (ROOT / 'README.md').read_text(encoding='utf-8')
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]
TEXT = '\n'.join(page.read_text(encoding='utf-8') for page in PAGES)
# what other libraries warn of is theirs
WITH_OTHERS = (pytest.mark.slow, pytest.mark.filterwarnings('default'))
SHAPE = re.compile(r'#\s*\(((?:\d+(?:, ?\d+)*,?)?)\)\s*$')


def snippets():
    """Every block of Python in README and documentation: its source, page and first line, and the packages it needs.

    Its id is its page, its heading, and its number below that. A block "python needs peft torch>=2.6" is slow, and
    "python torchrun" runs in tests/ecosystem.
    """
    return [found for page in PAGES for found in snippets_of(page)]


def snippets_of(page):
    lines = page.read_text(encoding='utf-8').splitlines()
    heading, count, start, needs, found = '', 0, None, (), []
    for number, line in enumerate(lines, 1):
        if start is not None and line == '```':
            name = f'{page.stem}-{heading}-{count}'
            marks = WITH_OTHERS if needs else ()
            found.append(pytest.param('\n'.join(lines[start : number - 1]), page, start, needs, id=name, marks=marks))
            start, count = None, count + 1
        elif re.fullmatch(r'```python( needs .+)?', line):
            start, needs = number, tuple(line.split()[2:])
        elif line.startswith('#') and start is None:
            heading, count = re.sub(r'\W+', '-', line.strip('# ').lower()), 0
    return found


def promised_shapes(source):
    """`{line: shape}` of the comments that consist of a shape, such as `# (2, 64)`."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = ((token.start[0], SHAPE.match(token.string)) for token in tokens if token.type == tokenize.COMMENT)
    return {line: tuple(map(int, re.findall(r'\d+', match[1]))) for line, match in comments if match}


class HoldShapes(ast.NodeTransformer):
    """Behind each assignment whose last line promises a shape, put a check of the first name assigned."""

    def __init__(self, promises, first_line):
        self.promises, self.first_line = promises, first_line

    def visit_Assign(self, statement):
        shape = self.promises.pop(statement.end_lineno, None)
        if shape is None:
            return statement
        target = statement.targets[0]
        target = target.elts[0] if isinstance(target, ast.Tuple) else target
        line = statement.end_lineno + self.first_line
        check = ast.parse(f'_expect({ast.unparse(target)}, {shape}, {line})').body[0]
        return [statement, ast.increment_lineno(check, statement.end_lineno - 1)]


def expect(value, shape, line):
    assert tuple(value.shape) == shape, f'line {line} promises {shape}, got {tuple(value.shape)}'


def run(source, first_line=0, page=ROOT / 'README.md'):
    """Execute a snippet, holding every promised shape against the tensor assigned on that line."""
    promises = promised_shapes(source)
    tree = HoldShapes(promises, first_line).visit(ast.parse(source))
    assert not promises, f'shapes promised where no assignment ends, lines {sorted(promises)} of the snippet'
    exec(compile(ast.increment_lineno(tree, first_line), page, 'exec'), {'_expect': expect})


@pytest.mark.parametrize(('source', 'page', 'line', 'needs'), snippets())
def test_snippet(source, page, line, needs, tmp_path, monkeypatch):
    for need in needs:
        name, _, least = need.partition('>=')
        pytest.importorskip(name, minversion=least or None, reason="pip install -e '.[ecosystem]'")
    monkeypatch.chdir(tmp_path)
    run(source, line, page)


def test_a_wrong_shape_is_found():
    run('import torch\nfor n in (3,):\n    x = torch.zeros(2, n)  # (2, 3)\ny, _ = x.sum(), 1  # ()')
    with pytest.raises(AssertionError, match=r'line 12 promises \(3, 2\), got \(2, 3\)'):
        run('import torch\nx = torch.zeros(2, 3)  # (3, 2)', first_line=10)
    with pytest.raises(AssertionError, match=r'no assignment ends, lines \[1\]'):
        run('print(1)  # (3, 2)')


def command(name):
    """The one command line that README marks with this name."""
    (block,) = re.findall(rf'<!-- command: {name} -->\n```bash\n(.*?)```', README, re.DOTALL)
    (line,) = block.splitlines()
    return line


def test_ci_runs_the_readme_command():
    printed = subprocess.run(
        ['bash', ROOT / '.ci' / 'run', '--print'], capture_output=True, text=True, check=True, cwd='/'
    )
    assert printed.stdout == command('test') + '\n'


def test_environments_are_those_of_ci():
    """The table of what is tested is that which CI reads; lowest versions are those of pyproject.toml."""
    script = [sys.executable, ROOT / '.ci' / 'environments.py']
    table, lowest = (
        subprocess.run([*script, what], capture_output=True, text=True, check=True).stdout.strip()
        for what in ('table', 'lowest')
    )
    assert f'<!-- environments -->\n{table}\n<!-- /environments -->' in README
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    promised = {re.sub('>=', '==', name) for name in project['dependencies']}
    assert promised <= set(lowest.split())
    assert '| 3.11 | the newest | the newest | the test command, and half of the further cases |' in table


def test_commands_install_extras_and_run_files_that_exist():
    extras = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['optional-dependencies']
    for name in ('run', 'test'):
        (wanted,) = re.findall(r"pip install -e '\.\[(.*?)\]'", command(name))
        assert set(wanted.split(',')) <= set(extras)
    (script,) = re.findall(r'python (\S+\.py)', command('run'))
    assert (ROOT / script).is_file()


def tables():
    """Every table as `(header cells, rows of cells)`."""
    for block in re.findall(r'(?:^\|.*\|\n)+', TEXT, re.MULTILINE):
        rows = [[cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]] for line in block.splitlines()]
        yield rows[0], rows[2:]


def column(header):
    """The cells of every column whose title matches `header`, with the match."""
    for titles, rows in tables():
        for index, title in enumerate(titles):
            if match := re.fullmatch(header, title):
                yield match, [row[index] for row in rows]


def names(cell):
    """The identifiers in backticks; what follows them, such as `=True` or a call's brackets, is left out."""
    return re.findall(r'`([A-Za-z_][\w.]*)[^`]*`', cell)


def test_tables_are_rectangular():
    found = list(tables())
    assert len(found) > 5
    for titles, rows in found:
        assert rows and all(len(row) == len(titles) for row in rows), titles


def test_tables_name_keywords_that_exist():
    checked = 0
    for match, cells in column(r'`(\w+)` keywords?'):
        known = accepted_keywords(getattr(x_transformers, match[1]))
        for name in (name for cell in cells for name in names(cell)):
            assert name in known, f'{match[1]} takes no {name}'
            checked += 1
    assert checked > 20


def test_tables_name_classes_that_exist():
    cells = [cell for _, column_cells in column('class') for cell in column_cells]
    classes = [name for cell in cells for name in names(cell)]
    assert len(classes) > len(cells) > 1
    assert all(isinstance(getattr(x_transformers, name), type) for name in classes)


def test_table_of_returns_names_keywords_that_exist():
    (calls,) = (cells for _, cells in column('call'))
    keywords = set(re.findall(r'return_\w+', ' '.join(calls)))
    functions = (
        x_transformers.AttentionLayers.forward,
        x_transformers.TransformerWrapper.forward,
        x_transformers.AutoregressiveWrapper.forward,
        x_transformers.AutoregressiveWrapper.beam_search,
    )
    assert len(keywords) > 5
    assert keywords <= {name for function in functions for name in inspect.signature(function).parameters}


# the shapes of the table for b = h = 2, n = 5, m = p = 3
MASKS = {
    'mask': [(2, 5)],
    'self_attn_kv_mask': [(2, 5)],
    'context_mask': [(2, 3)],
    'attn_mask': [(5, 5), (2, 5, 5), (2, 1, 5, 5), (2, 2, 5, 5)],
    'prepend_mask': [(2, 3)],
    'mem_masks': [(2, 3)],
}


def test_table_of_masks_names_them_all():
    (cells,) = (cells for _, cells in column('mask'))
    assert [names(cell) for cell in cells] == [[name] for name in MASKS]


@pytest.mark.parametrize(('name', 'shape'), [(name, shape) for name, shapes in MASKS.items() for shape in shapes])
def test_masks_have_the_shape_and_the_sense_of_the_table(name, shape):
    stack = x_transformers.Encoder(dim=8, depth=1, heads=2, cross_attend=name == 'context_mask')
    model = x_transformers.TransformerWrapper(num_tokens=9, max_seq_len=5, attn_layers=stack).eval()
    inputs = {
        'context_mask': {'context': torch.randn(2, 3, 8)},
        'prepend_mask': {'prepend_embeds': torch.randn(2, 3, 8)},
        'mem_masks': {'mems': [torch.randn(2, 3, 8)]},
    }.get(name, {})
    ids, real = torch.randint(0, 9, (2, 5)), torch.ones(shape, dtype=torch.bool)
    hidden = real.clone()
    hidden[..., 1] = False

    def last(mask):
        return model(ids, **inputs, **{name: [mask] if name == 'mem_masks' else mask})[:, -1]

    assert torch.allclose(last(real), model(ids, **inputs)[:, -1], atol=1e-6)
    assert (last(hidden) - last(real)).abs().max() > 1e-4


def anchors(text):
    """The names by which headings of a file are linked to."""
    headings = re.findall(r'^#+ (.+)$', re.sub(r'(?ms)^```.*?^```', '', text), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-') for heading in headings}


LINKED = [*PAGES, ROOT / 'benchmarks' / 'README.md', ROOT / 'benchmarks' / 'results' / 'README.md']


@pytest.mark.parametrize('file', LINKED, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file):
    text = re.sub(r'(?ms)^```.*?^```', '', file.read_text(encoding='utf-8'))
    links = [link for link in re.findall(r'\]\(([^)]+)\)', text) if not link.startswith(('http://', 'https://'))]
    for path, _, anchor in (link.partition('#') for link in links):
        target = file.parent / path if path else file
        assert target.exists(), path
        assert not anchor or anchor in anchors(target.read_text(encoding='utf-8')), f'{path}#{anchor}'


def test_speed_is_that_of_the_benchmarks():
    """The short table of the documentation has the numbers of benchmarks/README.md, from which its picture is drawn."""
    pytest.importorskip('matplotlib', reason='pip install matplotlib')
    sys.path.append(str(ROOT / 'images'))
    import draw_measured

    found = draw_measured.speeds((ROOT / 'benchmarks' / 'README.md').read_text(encoding='utf-8'))
    assert list(found) == list(draw_measured.SPEED)
    short = re.findall(r'(?ms)^# Benchmarks$.*?(?=^Every model)', TEXT)[0]
    rows = [line.strip('|').split('|') for line in short.splitlines() if line.startswith('|')][2:]
    order = list(dict.fromkeys(draw_measured.COLUMNS.values()))
    for (_, *cells), (row, numbers) in zip(rows, found.items(), strict=True):
        told = {name: float(cell) for name, cell in zip(order, cells, strict=True) if cell.strip() != '-'}
        assert told == pytest.approx(numbers, rel=0.01), row


def test_version_is_the_one_of_the_package():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    assert x_transformers.__version__ == project['version']
    assert f'## [{project["version"]}]' in (ROOT / 'CHANGELOG.md').read_text()


def test_sizes_of_pages():
    """A README that one reads, and pages that one reads to the end."""
    assert len(README.splitlines()) <= 700
    assert len(PAGES) > 15
    for page in PAGES[1:]:
        assert len(page.read_text(encoding='utf-8').splitlines()) <= 400, page


def test_pages_of_flags_are_those_of_the_declarations(monkeypatch):
    """`python docs/generate.py` has nothing to write."""
    monkeypatch.syspath_prepend(ROOT / 'docs')
    spec = importlib.util.spec_from_file_location('generate', ROOT / 'docs' / 'generate.py')
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = generate.pages()
    assert sorted(pages) == sorted(page.name for page in (ROOT / 'docs' / 'flags').glob('*.md'))
    for name, text in pages.items():
        assert (ROOT / 'docs' / 'flags' / name).read_text(encoding='utf-8') == text, 'run docs/generate.py'
    assert generate.OF_WORDS.read_text(encoding='utf-8') == generate.page_of_words(), 'run docs/generate.py'
    page = generate.CONTRIBUTING.read_text(encoding='utf-8')
    assert page == generate.page_for_contributors(), 'run docs/generate.py'
    page = generate.COMBINATIONS.read_text(encoding='utf-8')
    assert page == generate.page_of_refusals(), 'run docs/generate.py'


PACKAGE = ROOT / 'x_transformers'
PACKAGES = '|'.join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != '__pycache__'))


@pytest.mark.parametrize('file', LINKED, ids=lambda file: str(file.relative_to(ROOT)))
def test_modules_that_pages_name_exist(file):
    """Paths of files and packages, and dotted names in and below `x_transformers`."""
    text = re.sub(r'https?://\S+', '', file.read_text(encoding='utf-8'))
    folders = f'{PACKAGES}|x_transformers|tests|docs|examples|benchmarks'
    for path in re.findall(rf'(?<![\w/.-])(?:(?:{folders})/)[\w/-]*(?:\.\w+)?', text):
        assert any((folder / path).exists() for folder in (ROOT, PACKAGE, file.parent)), path
    for name in re.findall(r'\bx_transformers(?:\.[a-z_]\w*)+', text):
        if name != 'x_transformers.py':
            find_name(name)
    for name in re.findall(rf'(?<=`)(?:{PACKAGES})(?:\.\w+)+(?=[`(])', text):
        if not re.search(rf'(?m)^{name.partition(".")[0]} = ', text):  # a variable of the page
            find_name(f'x_transformers.{name}')


def find_name(name):
    """Import the longest module of a dotted name, and look up the rest."""
    parts, found = name.split('.'), x_transformers
    for number, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module('.'.join(parts[:number]))
            except ModuleNotFoundError as error:
                if error.name.startswith('x_transformers'):
                    raise
                return  # It needs an optional package.
        found = getattr(found, part)

"""Scripts beside the package import in one direction, and tests import internal modules only with a reason."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ('benchmarks', 'examples', 'images', 'tests')
# Which of the other folders the scripts of a folder may import: `import-linter` knows packages only.
MAY_IMPORT = {
    'benchmarks': {'examples', 'images'},
    'examples': set(),
    'images': set(),
    'tests': {'benchmarks', 'examples', 'images'},
}


def modules_of(folder):
    """Return the modules of a folder by the name that scripts import them with."""
    paths = (path for path in (ROOT / folder).rglob('*.py') if '__pycache__' not in path.parts)
    names = {path: [part for part in path.relative_to(ROOT / folder).with_suffix('').parts] for path in paths}
    return {'.'.join(p for p in parts if p != '__init__'): path for path, parts in names.items()}


def imports_of(path, name):
    """Yield every module that a file imports, inside of functions too, and every name that may be a module."""
    package = name.split('.') if path.name == '__init__.py' else name.split('.')[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = '.'.join([*above, *filter(None, [node.module])])
            yield from (base, *(f'{base}.{alias.name}' for alias in node.names))


MODULES = {folder: modules_of(folder) for folder in FOLDERS}
IMPORTS = {folder: {name: set(imports_of(path, name)) for name, path in own.items()} for folder, own in MODULES.items()}


@pytest.mark.parametrize('folder', FOLDERS)
def test_no_circles(folder):
    """Modules without imports are taken away until none is left: what stays imports itself."""
    own = IMPORTS[folder]
    left = {name: (others & own.keys()) - {name} for name, others in own.items()}
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left


@pytest.mark.parametrize('folder', FOLDERS)
def test_folders_import_downwards(folder):
    own, wanted = MODULES[folder], set().union(*IMPORTS[folder].values())
    found = {other for other in FOLDERS if other != folder and (wanted - own.keys()) & MODULES[other].keys()}
    assert found <= MAY_IMPORT[folder]


def test_the_package_imports_no_script():
    names = {name.partition('.')[0] for folder in FOLDERS for name in MODULES[folder]} | set(FOLDERS)
    for path in (ROOT / 'x_transformers').rglob('*.py'):
        name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
        assert not {other.partition('.')[0] for other in imports_of(path, name)} & names, path


# Internal packages that tests import from: how many imports (file and module) there are, which may only become fewer,
# and why no public name will do. Modules at the top of x_transformers and those that documentation imports are public.
INTERNAL = {
    'compat': (3, 'compatibility has tests of the names that published code imports'),
    'core': (36, 'blocks of a small model need other limits, and what a call keeps is in no output'),
    'features': (50, 'parts of a feature are compared with their formula, before a flag puts them into a layer'),
    'flags': (9, 'command line and foreign words are compared with the declarations that they are made from'),
    'generation': (26, 'filters, pools of blocks and stop rules are tested without a model'),
    'kernels': (15, 'each kernel is compared with the formula, also where a model would choose another one'),
    'memory': (6, 'search, mixing and command lines of datastores are tested without a model'),
    'modalities': (3, 'tables and helpers of a front end are compared with their formula'),
    'objectives': (1, 'parts of a loss are compared with their formula'),
    'parallel': (3, 'the split of a tensor is compared without several processes'),
    'patterns': (5, 'pieces of a pattern are compared with its mask'),
    'pretrained': (23, 'tables of model types and conversions are checked row by row'),
    'training': (8, 'parts of a loss are compared with their formula'),
}
DOCUMENTED = {
    'core.files', 'core.plain_text', 'features.gates', 'generation.cached_step', 'integrations.lm_eval',
    'integrations.float8', 'integrations.trainer', 'kernels.merging', 'modalities.decision',
    'objectives.sentence_pairs',
}  # fmt: skip


def test_internal_imports_have_a_reason():
    root, found = ROOT / 'x_transformers', Counter()
    for imported in IMPORTS['tests'].values():
        for module in {name.removeprefix('x_transformers.') for name in imported} - DOCUMENTED:
            package, _, rest = module.partition('.')
            path = root / module.replace('.', '/')
            if rest and (root / package).is_dir() and (path.is_dir() or path.with_suffix('.py').exists()):
                found[package] += 1
    assert found.keys() <= INTERNAL.keys()
    grown = {package: count for package, count in found.items() if count > INTERNAL[package][0]}
    assert not grown, f'more internal imports than before: {grown}; a public name is better'

"""Hooks of mkdocs: pages are written for GitHub, and this makes them pages of the site.

Files outside of `docs/` that pages link to (pictures, results of benchmarks, the changelog) become files of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r'(!?\[[^\]]*\]\()\.\./([^)#]+)(#[^)]*)?\)')
NEEDS = re.compile(r'^```python needs (.+)$', re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the files that pages link to with `../`, and those that these link to."""
    pages = [(Path(file.abs_src_path), '') for file in files.documentation_pages() if file.abs_src_path]
    for page, _ in pages:
        for _, target, _ in LINK.findall(page.read_text(encoding='utf-8')):
            add(files, config, ROOT / target)
    return files


def add(files: Files, config: Any, path: Path) -> None:
    """Add one file of the repository, and the pictures and tables that it links to."""
    if path.resolve() == ROOT / 'README.md':  # the site has `index.md`
        return
    name = path.resolve().relative_to(ROOT).as_posix()
    if files.get_file_from_path(name) or not path.is_file():
        return
    if path.suffix != '.md':
        files.append(File.generated(config, name, abs_src_path=str(path)))
        return
    text = path.read_text(encoding='utf-8')
    files.append(File.generated(config, name, content=text))
    for target in re.findall(r'\]\(([^)#:]+)', text):
        found = (path.parent / target).resolve()
        if found.suffix in ('.md', '.png') and found.is_relative_to(ROOT) and not found.is_relative_to(ROOT / 'docs'):
            add(files, config, found)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite what only GitHub understands."""

    def linked(match: re.Match[str]) -> str:
        start, target, anchor = match[1], match[2], match[3] or ''
        if target == 'README.md':
            return f'{start}index.md)'
        if files.get_file_from_path(target):
            up = '../' * page.file.src_uri.count('/')
            return f'{start}{up}{target}{anchor})'
        return match[0]

    if page.file.generated_by:
        markdown = re.sub(r'(\]\((?:\.\./)+)docs/', r'\1', markdown)
    else:
        markdown = LINK.sub(linked, markdown)
    markdown = NEEDS.sub(lambda match: f'```python title="needs {match[1]}"', markdown)
    markdown = markdown.replace('```python torchrun', '```python title="torchrun --nproc-per-node 2 train.py"')
    return markdown.replace('<details>', '<details markdown="1">')

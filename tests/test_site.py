"""The documentation as a site: built strictly, and opened in a browser, where people search for what they need.

Needs `pip install -e '.[docs]'` and a Chromium. `SCREENSHOTS=folder` keeps pictures of pages, to be looked at.
"""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
# what people search for, and the page that should be among the first three results
SEARCHES = {
    'sliding window': 'long-context',
    'kv cache': 'generation',
    'gradient checkpointing': 'training',
    'flash attention': 'kernels',
    'weight decay': 'training',
    'lora': 'fine-tuning',
    'onnx': 'export',
    'grouped-query attention': 'flags',
    'padding mask': 'concepts',
    'fsdp': 'distributed',
}
SIZES = {'desktop': (1280, 900), 'phone': (390, 844)}


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    pytest.importorskip('mkdocs', reason="pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp('site')
    command = [sys.executable, '-m', 'mkdocs', 'build', '--strict', '--site-dir', str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'}
    )
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope='module')
def address(site):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_address[1]}'
    server.shutdown()
    server.server_close()


@pytest.fixture(scope='module')
def browser():
    sync_api = pytest.importorskip('playwright.sync_api', reason="pip install -e '.[docs]'")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip('no Chromium is installed')
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=['--no-sandbox'])
        yield running
        running.close()


@pytest.fixture
def page(browser):
    """A page that collects what goes wrong on it."""
    context = browser.new_context()
    opened = context.new_page()
    opened.wrong = []
    opened.on('console', lambda message: opened.wrong.append(message.text) if message.type == 'error' else None)
    opened.on('pageerror', lambda error: opened.wrong.append(str(error)))
    # What was still on its way when the next page was opened is no failure.
    failed = lambda request: None if 'ERR_ABORTED' in (request.failure or '') else f'failed: {request.url}'  # noqa: E731
    opened.on('requestfailed', lambda request: opened.wrong.extend(filter(None, [failed(request)])))
    opened.on('request', lambda request: None if '127.0.0.1' in request.url else opened.wrong.append(request.url))
    yield opened
    context.close()


def test_every_page_is_in_the_navigation(site):
    written = {path.relative_to(ROOT / 'docs').with_suffix('.html').as_posix() for path in ROOT.glob('docs/**/*.md')}
    assert len(written) > 15
    text = (site / 'index.html').read_text(encoding='utf-8')
    assert not [name for name in written if f'href="{name}"' not in text and name != 'index.html']


@pytest.mark.parametrize('words', SEARCHES)
def test_search_finds_the_page(page, address, words):
    page.goto(f'{address}/index.html')
    page.locator('input.md-search__input').fill(words)
    page.wait_for_selector('.md-search-result__item a', timeout=20000)
    results = page.locator('.md-search-result__item > a').evaluate_all('links => links.map(link => link.href)')
    found = list(dict.fromkeys(link.partition('.html')[0].rpartition('/')[2] for link in results))
    assert SEARCHES[words] in found[:3], found
    page.goto(results[0])
    assert page.locator('h1').first.is_visible()
    assert page.wrong == []


def test_pages_open_without_errors_and_links_lead_somewhere(page, address, site):
    seen, missing = set(), []
    for path in sorted(site.rglob('*.html')):
        page.goto(f'{address}/{path.relative_to(site).as_posix()}')
        links = page.locator('article a[href], article img[src]').evaluate_all('all => all.map(a => a.href || a.src)')
        for link in set(links) - seen:
            seen.add(link)
            target, _, anchor = link.removeprefix(address).lstrip('/').partition('#')
            if not link.startswith(address):
                continue
            file = site / (target or 'index.html')
            if not file.is_file() or (anchor and f'id="{anchor}"' not in file.read_text(encoding='utf-8')):
                missing.append(f'{path.name}: {link.removeprefix(address)}')
    assert not missing
    assert page.wrong == []


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_pages_fit_their_window(browser, address, size, scheme):
    """Nothing but code and tables is wider than the window, on a phone either."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={'width': width, 'height': height}, color_scheme=scheme)
    page = context.new_page()
    for name in ('index', 'generation', 'flags/norms', 'api/stacks'):
        page.goto(f'{address}/{name}.html')
        assert page.evaluate('document.documentElement.scrollWidth') <= width + 1, name
        if folder := os.environ.get('SCREENSHOTS'):
            page.screenshot(path=f'{folder}/{name.replace("/", "-")}-{size}-{scheme}.png')
    context.close()

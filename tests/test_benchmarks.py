"""The benchmarks: every script runs with tiny sizes, the peers compute the same, and the harness measures right."""

import importlib
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.costly
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / 'benchmarks'


@pytest.fixture
def scripts(monkeypatch):
    """Imports a script of the folder by its name, and forgets it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], '__file__', None) and Path(sys.modules[name].__file__).parent == FOLDER:
            del sys.modules[name]


def run(script, *arguments):
    """The standard output of a script."""
    command = [sys.executable, str(FOLDER / f'{script}.py'), '--tiny', *map(str, arguments)]
    environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table_in(text):
    """The last table: {first cell: {heading: cell}}."""
    lines = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith('|')]
    start = max(index for index, cells in enumerate(lines) if set(cells) == {'---'}) - 1
    return {cells[0]: dict(zip(lines[start][1:], cells[1:], strict=True)) for cells in lines[start + 2 :]}


def measured(scripts, script, *arguments):
    """The rows of a script, and its table, without a process for the script itself."""
    module, measure = scripts(script), scripts('measure')
    rows = module.rows(measure.options_of(module.parser(), ['--tiny', *map(str, arguments)]))
    return [asdict(row) for row in rows], module.show(rows)


def check(script, columns, rows, kept, text):
    """Every row of the table is filled with numbers, for every column that was asked for."""
    table = table_in(text)
    assert len(table) == rows
    for work, cells in table.items():
        # of what is not written by hand there is no ratio without the original
        assert (script == 'generate' and 'like' in work) or float(cells['ours'].split()[0]) != 0
    assert len(kept) == rows
    if script == 'loss':  # logits and their gradient
        assert kept[1]['values']['plain'][0] > 1.9
    asked = set(columns.split(','))
    # the floor has no memory, a chunked loss is for two rows, by hand there is nothing to import
    less = {'training': {'floor', 'minimal chunked'}, 'overhead': {'minimal'}, 'loss': {'floor'}}.get(script, set())
    for row in kept:
        by_hand = asked - {'ours'} if 'like' in row['work'] or script == 'overhead' else set()
        assert set(row['refused']) <= by_hand, row['refused']
        assert asked - less - by_hand <= set(row['values']) <= asked
        # a slope of two tiny times may come out below zero
        assert 'overhead' in row['work'] or all(v > 0 for values in row['values'].values() for v in values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('script', 'columns', 'rows'),
    [
        ('training', 'floor,minimal,minimal chunked,ours', 6),
        ('generate', 'floor,minimal,packed,ours', 11),
        ('lengths', 'minimal,ours', 8),
    ],
)
def test_script(scripts, script, columns, rows):
    rounds = 2 if script == 'training' else 1
    check(script, columns, rows, *measured(scripts, script, '--columns', columns, '--rounds', rounds))


@pytest.mark.slow
def test_models_of_another_library(scripts):
    """Both compute the same, which the script checks, and each has its numbers."""
    pytest.importorskip('transformers', reason='pip install -e .[test-pretrained]')
    kept, text = measured(scripts, 'pretrained', '--rounds', 1, '--models', 'Llama,ViT')
    table = table_in(text)
    assert len(table) == len(kept) == 10
    for row in kept:
        assert set(row['values']) >= {'huggingface', 'ours'}, row['refused']


@pytest.mark.slow
def test_script_as_a_program(tmp_path):
    file, columns = tmp_path / 'rows.json', 'floor,plain,chunked,ours'
    text = run('loss', '--columns', columns, '--rounds', 1, '--json', file)
    check('loss', columns, 2, json.loads(file.read_text()), text)


@pytest.fixture
def gpu_options(scripts, tmp_path):
    """The options of `gpu.py` for a rehearsal on a CPU."""
    gpu, measure = scripts('gpu'), scripts('measure')

    def options(stage, *arguments):
        arguments = [stage, '--tiny', '--rounds', '1', '--into', str(tmp_path), *arguments]
        return measure.options_of(gpu.parser(), arguments)

    return options


@pytest.mark.slow
def test_gpu_stages_go_on_where_they_stopped(scripts, gpu_options, tmp_path):
    """Rows of training, decoding and serving; what has its row is not measured again."""
    gpu = scripts('gpu')
    for stage, columns in (('training', 'ours,minimal'), ('decoding', 'ours,minimal compiled'), ('serving', 'ours')):
        options = gpu_options(stage, '--columns', columns)
        gpu.measure(stage, options, gpu.Clock(5))
        rows = gpu.read(tmp_path, [stage])
        assert [row.column for row in rows] == columns.split(',') and not any(row.note for row in rows)
        assert all(row.value > 0 and row.prepared > 0 for row in rows)
        assert all((row.memory or 0) > 0 for row in rows if stage != 'serving')
        gpu.measure(stage, options, gpu.Clock(5))
        assert gpu.read(tmp_path, [stage]) == rows
    assert rows[0].p99 >= rows[0].p50 > 0
    with pytest.raises(TimeoutError):
        gpu.measure('training', gpu_options('training', '--again'), gpu.Clock(0))


@pytest.mark.slow
def test_gpu_features(scripts, gpu_options, tmp_path):
    """A kernel that does not run is refused, with the reason; the other column has its number."""
    gpu = scripts('gpu')
    gpu.measure('features', gpu_options('features', '--only', 'learned sink'), gpu.Clock(5))
    flex, blocks = gpu.read(tmp_path, ['features'])
    assert flex.value is None and 'does not run' in flex.note  # no sums on a CPU
    assert blocks.value > 0 and not blocks.note


def test_gpu_rows_as_a_table(scripts, tmp_path):
    """Rows survive their file; the last of each kind is shown, with its share of the bound."""
    gpu, report = scripts('gpu'), scripts('gpu_report')
    start = ('training', 'NVIDIA H100', '2.13.0')
    old = gpu.Row(*start, 'abc', '350M, batch 16', 'ours compiled', 'tokens/s', 500.0, bound=1000.0, memory=2048.0)
    new = gpu.Row(*start, 'def', '350M, batch 16', 'ours compiled', 'tokens/s', 600.0, bound=1000.0, memory=1024.0)
    other = gpu.Row(*start, 'def', '350M, batch 16', 'minimal compiled', 'tokens/s', note='out of memory')
    served = gpu.Row('serving', *start[1:], 'def', '350M', 'ours', 'tokens/s', 99.5, p50=0.5, p99=2.0)
    for row in (old, new, other, served):
        gpu.append(tmp_path, row)
    rows = gpu.read(tmp_path)
    assert rows == [old, new, other, served]
    text = report.table(rows)
    assert '| 350M, batch 16 | 600 (60%), 1.0 | refused |' in text and '| 350M | 99.5 (0.50, 2.00) |' in text
    assert 'an MFU of 60% at 350M on one NVIDIA H100' in report.summary(rows)
    assert report.with_block('a\n<!-- x -->\nold\n<!-- /x -->\nb', 'x', 'new') == 'a\n<!-- x -->\nnew\n<!-- /x -->\nb'
    with pytest.raises(ValueError, match='one block'):
        report.with_block('nothing', 'x', 'new')


def test_readme_has_the_rows_of_gpus(scripts):
    gpu, report = scripts('gpu'), scripts('gpu_report')
    for path, text in report.blocks(gpu.read(gpu.RESULTS)).items():
        assert path.read_text(encoding='utf-8') == text, f'{path.name}: python benchmarks/gpu.py write'


@pytest.mark.slow
def test_score_flags(scripts):
    """What would pass a limit is left out."""
    options = ('--columns', 'ours', '--flags', 'padding mask,top-k', '--limit-gib', 1e-3)
    _, text = measured(scripts, 'score_flags', *options)
    lines = [line.strip('| ').split(' | ') for line in text.splitlines() if line.startswith('| ')][2:]
    assert [line[:4] for line in lines] == [[f, n, '-', '-'] for f in ('padding mask', 'top-k') for n in ('32', '64')]
    assert lines[1][4:] == lines[3][4:] == ['left out', 'left out', '-', '-']
    assert all(float(cell) > 0 for line in lines[::2] for cell in line[4:6])


@pytest.mark.slow
def test_depths(scripts):
    """Memory of ordinary layers grows with their number, that of reversible ones far less."""
    kept, text = measured(scripts, 'depths', '--rounds', 1)
    taken = [{n: v[0] - kept[i + 1]['values'][n][0] for n, v in kept[i]['values'].items()} for i in (1, 4)]
    grown = {name: taken[1][name] / taken[0][name] for name in taken[0]}
    assert grown['reversible'] < 0.75 * grown['ordinary'] and grown['checkpoints'] < 0.75 * grown['ordinary']
    table = table_in(text)
    assert table['depth 3']['reversible: MiB'].endswith(f'({grown["reversible"]:.2f})')
    assert float(table['depth 1']['checkpoints: ms'].split('(')[1].rstrip(')')) > 0


@pytest.mark.slow
def test_adaptive(scripts, capsys):
    """Every way, and the answer that the questions have."""
    adaptive = scripts('adaptive')
    for x, answer, often in zip(*adaptive.questions(40), strict=True):
        entries = dict(divmod(entry.item() - 6, 4) for entry in x[1:5])
        once = entries[x[5].item() - 2]
        assert answer == (entries[once] if often else once) and x[0] == often
    table = table_in(adaptive.main(['--tiny']))
    assert [*table] == ['spans', 'halting', 'exits']
    for row in table.values():
        assert float(row['time over the whole']) > 0
    assert len(set(table['halting']['right, whole / less'].split(' / '))) == 1
    with pytest.raises(SystemExit):
        adaptive.main(['--ways', 'magic'])
    assert "'magic' is none of spans; halting; exits" in capsys.readouterr().err


@pytest.mark.slow
def test_spans(scripts):
    """Spans of a third more than a share at most; each time over that of full ones."""
    spans = scripts('spans')
    assert spans.spans_of(1.0, 4).tolist() == [1.0] * 4
    some = spans.spans_of(0.3, 4)
    assert some.mean().item() == pytest.approx(0.3) and some.max().item() == pytest.approx(0.4)
    kept, text = measured(scripts, 'spans', '--rounds', 1)
    full, quarter = (row['values']['spans'][0] for row in kept)
    assert table_in(text)['256 tokens, 0.25']['spans: ms'].endswith(f'({quarter / full:.2f})')


def test_serving(scripts):
    """All requests get the same tokens; the waste of padded batches by hand."""
    serving = scripts('serving')
    asked = [(torch.zeros(3), 4), (torch.zeros(1), 6), (torch.zeros(2), 2)]
    assert serving.waste_of_batches(asked, 2) == pytest.approx(1 - 18 / (2 * (3 + 6) + (2 + 2)))
    table = table_in(serving.main(['--tiny']))
    assert [*table] == ['batches', 'engine']
    assert [row['with the same tokens'] for row in table.values()] == ['6', '6']


def test_growth_from_length_to_length(scripts):
    """And what would pass a limit, with the reason."""
    flags, measure = scripts('score_flags'), scripts('measure')
    made = [
        measure.Row(f'x, {n}', 'MiB', values={'ours': [2.0 * n], 'original': [float(n**2)]})
        for n in (10, 20)
        for _ in 'ab'
    ]
    assert flags.show(made).splitlines()[2:] == [
        '| x | 10 | 100 | 100 | 20 | 20 | 5.00 | 5.00 |',
        '| x | 20 | 400 (4.0) | 400 (4.0) | 40 (2.0) | 40 (2.0) | 10.00 | 10.00 |',
    ]
    assert flags.too_much('ours', [], 0) is None
    assert [flags.too_much('original', made[::2], limit) is None for limit in (1601, 1599)] == [True, False]
    assert [flags.too_much('ours', made[:1], limit) is None for limit in (81, 79)] == [
        True,
        False,
    ]  # four times as much


# ways of attention that are not there yet
MISSING = (
    'cluster',
    'linformer_k',
    'kernel',
    'kernel_update',
    'aft',
    'recurrent',
    'Local2D',
    'BigBird',
    'longformer',
    'global_mask',
)


def test_ways_of_attention_run(scripts):
    """Each layer reads and learns; `ways` says the flags of no other release."""
    efficient, measure = scripts('efficient'), scripts('measure')
    sizes, names = asdict(scripts('ways').Sizes(16, 2, 16)), scripts('ways').WAYS
    for name, way in names.items():
        if way.depth > 1:  # their flags are not of attention
            continue
        case = {'way': name, 'causal': way.causal, 'depth': way.depth, 'sizes': sizes, 'length': 64}
        try:
            efficient.work('ours', {**case, 'what': efficient.TIME}, measure.Settings())()
        except (ValueError, TypeError, ImportError, AttributeError) as error:
            assert any(f'`{word}`' in str(error) or f"'{word}'" in str(error) for word in MISSING), name


def test_tables_of_ways(scripts, tmp_path):
    """Ratios at the lengths of both, and where a way overtakes dense attention: half-way between logs."""
    efficient, row = scripts('efficient'), scripts('measure').Row
    made = [row(f'dense; {n}', 'ms', {'ours flash': [n**2 / 100]}) for n in (100, 400, 1600)]
    made += [row(f'linear; {n}', 'ms', {'ours': [2.0 * n], 'peer': [3.0 * n]}) for n in (100, 400, 1600, 6400)]
    made[-1].values.pop('peer')
    made += [row('Linformer, k 256; 100', 'ms', {'ours': [1.0]}, {'peer': "No module named 'linformer'"})]
    made += [row('BigBird; 100', 'ms', {'ours': [2e6]}, {'peer': 'left out, it would take long'})]
    made += [row(f'linear, causal; {n}', 'ms a token', {'ours': [2.0], 'ours flash': [n / 10]}) for n in (10, 80)]
    made += [row('LSH; 100', 'ms', {}, {'ours': 'ConfigError: unknown'})]
    text = efficient.show(made)
    lines = {line.split(' | ')[0].strip('| '): line for line in text.splitlines()}
    cells = '200 | 800 | 3200 | 12800 | linear-attention-transformer | 300 | 1200 | 4800 | - | 1.5 / 1.5 / 1.5 | 200'
    assert lines['linear'] == f'| linear | {cells} |'
    assert lines['Linformer, k 256'].endswith('| - | < 100 |') and lines['BigBird'].endswith('| - | > 100 |')
    assert lines['linear, causal'] == '| linear, causal | 2 | 2 | 1 | 8 | 0.5 / 4 | 1.00 |'
    assert lines['dense (ours, flash)'].startswith('| dense (ours, flash) | 100 | 1600 | 25600 | - |')
    short = {line.split(' | ')[0].strip('| '): line for line in efficient.summary(made).splitlines()}
    cells = '200 / 800 / 3200 / 12800 | 200 | linear-attention-transformer | 1.5 / 1.5 / 1.5 | - | -'
    assert short['linear'] == f'| linear | {cells} |'
    assert short['dense'] == '| dense | 100 / 1600 / 25600 | - | - | - | - | 1 / 8 |'
    left = ["- linformer: No module named 'linformer'", '- LSH: ConfigError: unknown']
    assert text.splitlines()[-2:] == left


def test_long_text(scripts, monkeypatch):
    """Models train for their time and are evaluated four times; a table has the best first, and says what it lacks."""
    long_text = scripts('long_text')
    ticks = itertools.count()
    clock = SimpleNamespace(process_time=lambda: next(ticks) / 128)  # how many steps fit is not up to the machine
    monkeypatch.setattr(long_text, 'time', clock)
    options = long_text.parser().parse_args(['--tiny', '--ways', 'dense;window 256;Transformer-XL', '--seeds', '1'])
    made = list(long_text.runs(options, long_text.settings_of(options), []))
    assert [(run.model, len(run.bits)) for run in made] == [('dense', 4), ('window 256', 4), ('Transformer-XL', 4)]
    assert [run.steps for run in made] == [8, 8, 8]
    assert all(4 < run.bits[-1] < 12 and 4 < run.late < 12 for run in made)
    assert list(long_text.runs(options, made[0].settings, made)) == []
    own = {**made[0].settings, 'minutes': 2, 'context': 1000}
    runs = [long_text.Run('dense', seed, own, 100, [5.0, 4.0, 3.0, 2.0 + seed], 3.0, 2.0) for seed in range(2)]
    runs += [
        long_text.Run('LSH', 0, own, 200, [5.0, 4.0, 3.0, 2.25], 3.0, 2.0),
        long_text.Run('x', 0, own, refused='y'),
    ]
    lines = long_text.show(runs).splitlines()
    assert lines[2:] == [
        '| LSH | 2.250 | 5.000 | 4.000 | 3.000 | 3.000 | 2.000 | 0.2 | 600 |',
        '| dense | 2.500 ± 0.707 | 5.000 | 4.000 | 3.000 | 3.000 ± 0.000 | 2.000 ± 0.000 | 0.1 | 1200 |',
        '',
        'Left out:',
        '- x: y',
    ]


def rows_of_two(Row):
    """A baseline of three seeds at 100, 200 and 400 steps, two variants of it, and what these cost."""
    rows = [Row('single', 'plain', '', seed, 100, 1e-3, 3.0 + seed) for seed in range(3)]
    rows += [Row('baselines', 'plain', '', seed, 400, 1e-3, 2.0 + seed) for seed in range(3)]
    for name, gains, step in (('use_rezero', (-0.5, -0.6, -0.7), 2.0), ('macaron', (0.0, 0.3, -0.3), 1.0)):
        rows += [Row('single', 'plain', name, s, 100, 1e-3, 3.0 + s + gain) for s, gain in enumerate(gains)]
        rows += [Row('costs', 'plain', name, step=step, memory=1.5, token=1.0)]
    return rows


def test_effects_of_flags(scripts):
    """Paired differences, and what the baseline reaches in the same time."""
    pytest.importorskip('scipy', reason='pip install scipy')
    effects, Row = scripts('flag_statistics'), scripts('flag_rows').Row
    rows = rows_of_two(Row)
    found = effects.effects(rows, 'plain')
    one, other = found['use_rezero'], found['macaron']
    # in twice the steps the baseline is halfway, by logarithms, to what it reaches in four times as many
    assert one.mean == pytest.approx(-0.6) and one.equal_time == pytest.approx(-0.1)
    assert one.half == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4) and one.p == pytest.approx(0.0091, rel=1e-2)
    assert one.shown and not other.shown and other.p == pytest.approx(1.0) and one.memory == 1.5
    assert effects.effects(rows, 'modern') == {}
    # a run at another rate, of another length, or without its baseline is no part of an effect
    rows += [Row('second', 'plain', 'macaron', 0, 100, 2e-3, 9.0), Row('single', 'plain', 'macaron', 7, 100, 1e-3, 9.0)]
    rows += [Row('single', 'plain', 'macaron', 0, 100, 1e-3, 9.0, length=512)]
    assert effects.effects(rows, 'plain')['macaron'] == other
    # four times as long: the variant gains, and costs nothing that was measured
    rows += [Row('final', 'plain', 'resi_dual', seed, 400, 1e-3, 1.9 + seed) for seed in range(2)]
    last = effects.effects(rows, 'plain', times=4.0)['resi_dual']
    assert last.mean == pytest.approx(-0.1) and last.half == pytest.approx(0.0, abs=1e-9) and last.seeds == 2
    assert last.cell_equal_time == '-'
    # one run of a baseline says nothing about other times than its own
    assert math.isnan(effects.between({100: 3.0}, 140.0)) and effects.between({100: 3.0}, 100.0) == 3.0


def test_how_many_effects_hold(scripts):
    """On each baseline, and on how many of those that hold on both the two agree."""
    pytest.importorskip('scipy', reason='pip install scipy')
    Row = scripts('flag_rows').Row
    gains = {
        'plain': {'': 0.0, 'use_rezero': -0.5, 'block_norm': -0.1},
        'modern': {'': 0.0, 'use_rezero': 0.2, 'block_norm': -0.2},
    }
    rows = [
        Row('single', baseline, name, seed, 100, 1e-3, 3.0 + gain + (0.001 * seed if name else 0.0))
        for baseline, own in gains.items()
        for name, gain in own.items()
        for seed in range(3)
    ]
    for seed, gain in enumerate((0.3, -0.3, 0.1)):
        rows.append(Row('single', 'modern', 'macaron', seed, 100, 1e-3, 3.0 + gain))
    assert scripts('flag_effects').count_of_effects(rows) == (
        'Of 2 variants of the plain baseline 2 hold, of which 2 help; of 3 variants of the modern baseline 2 hold, of '
        'which 1 help. Of the 2 that hold on both, 1 help one and harm the other.'
    )


def test_what_is_left_in_larger_models(scripts):
    """Variants with an interval, as small and as large models; of one seed there is none."""
    pytest.importorskip('scipy', reason='pip install scipy')
    Row = scripts('flag_rows').Row
    small = rows_of_two(Row)
    large = [Row('single', 'plain', name, 0, 50, 1e-3, 2.0 + gain) for name, gain in (('', 0.0), ('macaron', 0.1))]
    large += [Row('costs', 'plain', name, step=1.0, memory=2.0, token=1.0) for name in ('use_rezero', 'resi_dual')]
    for name, gain in (('', 0.0), ('use_rezero', 0.2), ('resi_dual', 0.3)):
        large += [Row('single', 'plain', name, seed, 50, 1e-3, 2.0 + seed + gain) for seed in (1, 2)]
    lines = scripts('flag_effects').table_of_sizes(small, large, 'plain').splitlines()
    assert lines[2:] == ['| use_rezero | -0.600 ± 0.248 | +0.200 ± 0.000 | +0.200 ± 0.000 | 1.00 | 2.00 |']


def test_which_flags_go_together(scripts):
    """Greedy selection takes what gains most in equal time; pairs are compared with the sum of their parts."""
    pytest.importorskip('scipy', reason='pip install scipy')
    effects, Row = scripts('flag_statistics'), scripts('flag_rows').Row
    rows = [row for row in rows_of_two(Row) if row.variant != 'macaron' or row.stage == 'costs']
    rows += [Row('single', 'plain', 'macaron', 0, 100, 1e-3, 2.9)]
    best = ['use_rezero', 'macaron']
    assert not effects.forward(rows, 'plain', best, 2).ended  # of a round some runs are missing
    # alone macaron gains .1 in equal time, and use_rezero nothing; together they gain .2
    path = effects.forward(rows, 'plain', best, 1)
    assert path.names == ['macaron'] and path.tried == ['macaron', 'macaron + use_rezero'] and not path.sets
    rows += [Row('forward', 'plain', 'macaron + use_rezero', 0, 100, 1e-3, 2.3)]
    path = effects.forward(rows, 'plain', best, 1)
    assert path.ended and path.sets == ['macaron', 'macaron + use_rezero']
    assert effects.recipe(rows, 'plain', path, 1) == path.sets[1]
    # it goes on for some rounds even where nothing helps, and the best set is kept
    rows[-1].bits = 2.45
    assert effects.forward(rows, 'plain', best, 1) == path and effects.recipe(rows, 'plain', path, 1) == 'macaron'
    # where none of the best is left, the next ones are tried, those of them that go with what was chosen
    effects.NEXT = 2
    others = ['hyper connections 2', 'macaron', 'hyper connections 4', 'resi_dual']
    more = effects.forward(rows, 'plain', best, 1, others)
    sets = [f'macaron + use_rezero + hyper connections {streams}' for streams in (2, 4)]
    assert more.names == ['macaron', 'use_rezero'] and more.tried == ['macaron + use_rezero', *sets]
    rows += [Row('forward', 'plain', sets[0], 0, 100, 1e-3, 2.6), Row('forward', 'plain', sets[1], refused='no')]
    more = effects.forward(rows, 'plain', best, 1, others)
    assert more.tried == ['macaron + use_rezero', sets[0], 'macaron + use_rezero + resi_dual']
    effects.ROUNDS = 1
    assert effects.forward(rows, 'plain', best, 1).sets == ['macaron']
    # what a set costs is measured, where it can be
    rows += [Row('costs', 'plain', 'macaron + use_rezero', step=0.5, memory=1.0, token=1.0)]
    assert effects.recipe(rows, 'plain', path, 1) == path.sets[1]
    ((pair, (mean, _)),) = effects.interactions(rows, 'plain').items()
    assert pair == ('macaron', 'use_rezero') and mean == pytest.approx(2.45 - 2.9 - 2.5 + 3.0)


def test_intervals_of_pairs(scripts):
    """Few seeds of many pairs: all of them say together how far seeds lie apart."""
    pytest.importorskip('scipy', reason='pip install scipy')
    effects, Row = scripts('flag_statistics'), scripts('flag_rows').Row
    names = ('macaron', 'use_rezero', 'resi_dual')
    rows = [Row('single', 'plain', name, seed, 100, 1e-3, 3.0) for name in ('', *names) for seed in range(2)]
    for pair, bits in (('macaron + use_rezero', (2.9, 3.1)), ('macaron + resi_dual', (2.5, 2.7))):
        rows += [Row('pairs', 'plain', pair, seed, 100, 1e-3, value) for seed, value in enumerate(bits)]
    found = effects.interactions(rows, 'plain')
    # the variance is .02 in both, with two degrees of freedom, and each mean is of two
    assert found['macaron', 'use_rezero'] == pytest.approx((0.0, 4.3027 * 0.02**0.5 / 2**0.5), rel=1e-4)
    assert found['macaron', 'resi_dual'][0] == pytest.approx(-0.4)
    text = scripts('flag_effects').table_of_pairs(rows, 'plain')
    assert 'resi_dual' not in text  # .4 is within .43
    said = 'Of {} pairs {} gain less than the sum of their parts, beyond the interval, and {} gain more.'
    assert text.startswith(said.format(2, 0, 0))
    rows += [Row('pairs', 'plain', 'use_rezero + resi_dual', seed, 100, 1e-3, 2.0) for seed in range(2)]
    text = scripts('flag_effects').table_of_pairs(rows, 'plain')
    assert '| use_rezero + resi_dual | +0.000 | -1.000 ± 0.' in text
    assert text.startswith(said.format(3, 0, 2))
    rows += [Row('pairs', 'plain', 'use_layerscale + resi_dual', seed, 100, 1e-3, 4.0) for seed in range(2)]
    rows += [Row('single', 'plain', 'use_layerscale', seed, 100, 1e-3, 3.0) for seed in range(2)]
    assert scripts('flag_effects').table_of_pairs(rows, 'plain').startswith(said.format(4, 1, 2))


def test_flags_at_half_the_rate(scripts):
    """What a variant gives with another rate, less what its baseline gives with the one that was tuned."""
    pytest.importorskip('scipy', reason='pip install scipy')
    Row = scripts('flag_rows').Row
    rows = rows_of_two(Row)
    rows += [Row('second', 'plain', 'use_rezero', seed, 100, 5e-4, 2.9 + seed) for seed in range(3)]
    rows += [Row('rates', 'plain', '', seed, 100, 5e-4, 3.1 + seed) for seed in range(2)]
    lines = scripts('flag_effects').table_of_rates(rows, 'plain').splitlines()
    assert lines[2:] == [
        '| use_rezero | -0.600 ± 0.248 | -0.100 ± 0.000 |',
        '| baseline | 0 | +0.100 ± 0.000 |',
    ]


def test_variants_that_go_together(scripts):
    """No keyword has two values, none is a part of the other, and families of alternatives have one."""
    go_together = scripts('flag_variants').go_together
    assert go_together('shift_tokens 1', 'add_value_residual')
    assert go_together('attn_talking_heads', 'attn_pre_talking_heads') and go_together('rwkv', 'ff_mult 2')
    for one, other in (
        ('shift_tokens 1', 'shift_tokens 2'),
        ('alibi_pos_bias', 'xl_rel_pos'),
        ('rotary_pos_emb', 'rwkv'),
        ('attn_gate_values', 'attn_swiglu_values'),
        ('GELU', 'GELU'),
        # a stack of which the layers are named has no attention that these would change
        ('rwkv', 'attn_selective'),
        ('ssm', 'dynamic_pos_bias'),
        ('rwkv', 'conv_module'),
    ):
        assert not go_together(one, other) and not go_together(other, one)


def test_what_is_written_of_flags(scripts, tmp_path):
    """One command makes tables, pictures and what the library says of its flags."""
    pytest.importorskip('scipy', reason='pip install scipy')
    pytest.importorskip('matplotlib', reason='pip install matplotlib')
    script, runner = scripts('flag_effects'), scripts('which_flag_helps')
    rows = rows_of_two(runner.Row)
    for baseline in runner.BASELINES:
        more = [('', 0.0), ('attn_qk_norm', -0.2), ('alibi_pos_bias', -0.1), ('attn_kv_heads 1', 0.2)]
        for seed in range(2):
            rows += [runner.Row('single', 'modern', name, seed, 10, 1e-3, 3 + seed + gain) for name, gain in more]
        rows += [runner.Row('single', baseline, 'alibi_pos_bias', 0, 10, 1e-3, 3.5, length) for length in (512, 1024)]
    rows += [runner.Row('costs', 'modern', name, step=1.5, memory=1.0, token=1.0) for name, _ in more[2:]]
    rows += [runner.Row('pairs', 'modern', 'attn_qk_norm + alibi_pos_bias', 0, 10, 1e-3, 2.5)]
    for row in rows:
        runner.append(tmp_path / 'rows', row)
    marks = {
        'docs/measured.md': ('flags that help', 'flags in larger models'),
        'benchmarks/results/README.md': ('small',),
    }
    for file, own in marks.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        parts = (f'<!-- {mark} -->\nold\n<!-- end of {mark} -->\n' for mark in own)
        (tmp_path / file).write_text(f'before\n{"".join(parts)}behind\n')
    (tmp_path / 'x_transformers' / 'flags').mkdir(parents=True)
    script.main(['--results', str(tmp_path / 'rows'), '--write', '--into', str(tmp_path)])
    text = (tmp_path / 'benchmarks' / 'results' / 'README.md').read_text()
    assert text.startswith('before') and text.endswith('behind\n') and 'old' not in text
    assert '| **use_rezero** | -0.600 ± 0.248 | -0.100 ± 0.248 | 2.00 | 1.50 | 1.00 | 3 |' in text
    assert '| attn_qk_norm | -0.200 ± 0.000 | - | - | - | - | 2 |' in text.replace('**', '')
    kept = json.loads((tmp_path / 'x_transformers' / 'flags' / 'measured.json').read_text())
    assert [*kept['about']] == ['small models', '50M parameters']
    keywords = {(row[0], row[2]): tuple(row[3:6]) for row in kept['rows'] if row[1] == 'small models'}
    assert keywords['use_rezero', 'plain'] == ('use_rezero', 'AttentionLayers', True)
    assert keywords['alibi_pos_bias', 'modern'] == ('alibi_pos_bias', 'AttentionLayers', True)
    assert ('attn_qk_norm', 'modern') not in keywords  # of which no costs are known
    assert keywords['attn_kv_heads 1', 'modern'] == ('kv_heads', 'Attention', 1)
    assert {path.name for path in (tmp_path / 'images').iterdir()} == {
        'flag_effects.png', 'flag_costs.png', 'flag_lengths.png',
    }  # fmt: skip


def test_tables_of_flags_are_those_of_the_rows(scripts):
    """Documentation, results and library say of flags what the rows of the repository give today."""
    pytest.importorskip('scipy', reason='pip install scipy')
    effects, runner = scripts('flag_effects'), scripts('which_flag_helps')

    def between(file, mark):
        text = (ROOT / file).read_text(encoding='utf-8')
        return text.split(f'<!-- {mark} -->\n')[1].split(f'<!-- end of {mark} -->')[0].strip()

    for sizes in ('small', '4M', '50M'):
        rows = runner.read(runner.RESULTS / sizes)
        assert between('benchmarks/results/README.md', sizes) == effects.report(rows, runner.SIZES[sizes])
    rows = runner.read(runner.RESULTS / 'small')
    assert between('docs/measured.md', 'flags that help') == effects.short(rows)
    large = runner.read(runner.RESULTS / '50M')
    assert between('docs/measured.md', 'flags in larger models') == effects.table_of_sizes(rows, large)
    kept = json.loads((ROOT / 'x_transformers' / 'flags' / 'measured.json').read_text(encoding='utf-8'))
    assert kept == json.loads(json.dumps(effects.records({'small': rows, '50M': large})))


@pytest.mark.slow
def test_which_flag_helps(scripts, tmp_path, monkeypatch):
    """Every stage runs, writes rows, and does nothing twice."""
    pytest.importorskip('scipy', reason='pip install scipy')
    script = scripts('which_flag_helps')
    few = [script.BY_NAME[name] for name in ('alibi_pos_bias', 'macaron', 'attn_qk_norm')]
    monkeypatch.setattr(script, 'VARIANTS', few)
    monkeypatch.setattr(script, 'BY_NAME', {variant.name: variant for variant in few})
    arguments = ['--sizes', 'tiny', '--jobs', '1', '--seeds', '0,1', '--results', str(tmp_path)]
    script.main([*arguments, '--variants', 'alibi_pos_bias,macaron,attn_qk_norm'])
    rows = script.read(tmp_path)
    assert {row.stage for row in rows} >= {'rates', 'costs', 'baselines', 'single', 'second', 'pairs'}
    assert not any(row.refused for row in rows)
    of_256 = [row for row in rows if row.stage == 'single' and row.length == script.SEQ_LEN]
    assert len({row.text for row in rows}) == 1
    ran = {(row.baseline, row.variant, row.seed) for row in rows if row.length == script.SEQ_LEN}
    assert {(baseline, v.name, seed) for baseline in script.BASELINES for v in few for seed in (0, 1)} <= ran
    assert len(of_256) == 2 * 2 * 4
    for name in ('', 'alibi_pos_bias'):
        own = {row.length for row in rows if row.stage == 'single' and row.variant == name}
        assert own == set(script.LENGTHS)
    script.main([*arguments, '--variants', 'alibi_pos_bias,macaron,attn_qk_norm'])
    assert len(script.read(tmp_path)) == len(rows)
    with pytest.raises(SystemExit, match="--stages: 'x' is none of"):
        script.main([*arguments, '--stages', 'x'])


def test_rows_after_an_interruption(scripts, tmp_path):
    """A line that was cut off is no row, and the next one begins on a line of its own."""
    script = scripts('which_flag_helps')
    for seed in range(2):
        script.append(tmp_path, script.Row('single', 'plain', 'macaron', seed, 4, 1e-3, 3.5))
    file = tmp_path / 'single.csv'
    file.write_text(file.read_text()[:-40])
    assert [row.seed for row in script.read(tmp_path)] == [0]
    script.append(tmp_path, script.Row('single', 'plain', 'macaron', 1, 4, 1e-3, 3.5))
    assert [(row.seed, row.bits, row.rate) for row in script.read(tmp_path)] == [(0, 3.5, 1e-3), (1, 3.5, 1e-3)]


def test_a_run_ends_in_time(scripts, tmp_path):
    """What begins too late is not run, nor is it written."""
    script = scripts('which_flag_helps')
    row = script.Row('single', 'plain', '', 0, 4, 1e-3)
    assert script.work((row, script.SIZES['tiny'], 0.0)) == []


@pytest.mark.slow
def test_every_variant_is_a_model(scripts):
    script = scripts('which_flag_helps')
    sizes, ids = script.Sizes(), torch.zeros(1, 33, dtype=torch.long)
    for baseline in script.BASELINES:
        for name in script.BY_NAME:
            model = script.model_of(script.keywords_of(baseline, name, sizes), sizes)
            model(ids)
            assert 0 < script.bits_of(model, ids) < 40, name


@pytest.mark.slow
def test_long_text_as_a_program(tmp_path):
    """Runs add up in a file."""
    file, written = tmp_path / 'runs.json', tmp_path / 'table.md'
    for ways in ('dense', 'dense;Performer'):
        text = run('long_text', '--ways', ways, '--seeds', 1, '--results', file, '--markdown', written)
        assert written.read_text() in text
    assert [kept['model'] for kept in json.loads(file.read_text())] == ['dense', 'Performer']
    assert {'dense', 'Performer'} == set(table_in(run('long_text', '--show', '--results', file)))


@pytest.mark.nightly
def test_ways_as_a_program(tmp_path):
    """Rows add up in a file; what a package or a folder lacks is named, the tables are printed."""
    file, absent = tmp_path / 'rows.json', tmp_path / 'empty'
    absent.mkdir()
    file.write_text(json.dumps([{'work': 'reversible, depth 8; 64', 'unit': 'MiB', 'values': {'ours': [2.0]}}]))
    options = ('--rounds', 1, '--results', file, '--peers', absent, '--ways', 'linear; linear, causal')
    text = run('efficient', *options, '--markdown', tmp_path / 'tables.md')
    tables = (tmp_path / 'tables.md').read_text()
    assert tables in text and 'linear-attention-transformer: No module named' in tables
    for name in ('linear, causal', 'linear', 'reversible, depth 8', 'decoding, ms a token'):
        assert f'| {name} |' in tables, name
    assert run('efficient', '--show', '--results', file) == tables


@pytest.mark.nightly
def test_table_adds_up(scripts, tmp_path, monkeypatch, capsys):
    """`table.py` measures the groups that are asked for, and prints those that were measured before, too."""
    results = tmp_path / 'results.json'
    shared = ('--columns', 'minimal,ours', '--rounds', '1', '--results', str(results))
    first = run('table', '--groups', 'overhead', *shared)
    assert first.count('\n| --- |') == 1
    check('overhead', 'minimal,ours', 9, json.loads(results.read_text())['overhead'], first)
    monkeypatch.setattr(sys, 'argv', ['table.py', '--tiny', '--groups', 'biases', *shared])
    scripts('table').main()
    second = capsys.readouterr().out
    assert second.count('\n| --- |') == 2
    kept = json.loads(results.read_text())
    assert set(kept) == {'overhead', 'biases'}
    check('biases', 'minimal,ours', 6, kept['biases'], second)


@pytest.mark.slow
def test_absent_original(tmp_path):
    """A folder that is none is refused; an original that cannot be imported is a column without numbers."""
    command = [sys.executable, str(FOLDER / 'training.py'), '--tiny', '--original']
    done = subprocess.run([*command, str(tmp_path / 'none')], capture_output=True, text=True)
    assert done.returncode == 2 and 'is no folder' in done.stderr


def copy_into(gpt, model):
    """The weights of our model in the model by hand."""

    def gain(norm):
        return norm.gamma + norm.unit_offset

    net, state = model.net, {}
    stack = net.attn_layers
    state['token.weight'] = net.token_emb.emb.weight
    if gpt.bias is not None:
        values = dict(zip(gpt.bias.state_dict(), stack.rel_pos.state_dict().values(), strict=True))
        state |= {f'bias.{name}': value for name, value in values.items()}
    if hasattr(net.pos_emb, 'emb'):
        state['place.weight'] = net.pos_emb.emb.weight * net.pos_emb.scale
    state['norm.weight'] = gain(stack.final_norm)
    state['logits.weight'] = net.to_logits.weight
    for index, block in enumerate(gpt.blocks):
        (norm1, attend, *_), (norm2, feed, *_) = stack.layers[2 * index], stack.layers[2 * index + 1]
        parts = {
            'norm1.weight': gain(norm1[0]),
            'qkv.weight': torch.cat((attend.to_q.weight, attend.to_k.weight, attend.to_v.weight)),
            'out.weight': attend.to_out.weight,
            'norm2.weight': gain(norm2[0]),
            'widen.weight': feed.ff[0][0].weight,
            'widen.bias': feed.ff[0][0].bias,
            'narrow.weight': feed.ff[2].weight,
            'narrow.bias': feed.ff[2].bias,
        }
        state |= {f'blocks.{index}.{name}': value for name, value in parts.items()}
        assert isinstance(block, nn.Module)
    gpt.load_state_dict(state, strict=True)


@pytest.mark.parametrize(
    'places', [{}, {'rotary': True}, {'bias': 'T5'}, {'bias': 'dynamic', 'head': 48}, {'bias': 'ALiBi'}]
)
def test_peers_compute_the_same(scripts, places):
    """Minimal and packed, with our weights, give our logits, our loss and our greedy tokens."""
    peers = scripts('peers')
    sizes = peers.Sizes(tokens=50, length=24, dim=128, depth=2, heads=2, **places)
    ours, minimal = peers.build('ours', sizes, dtype='float64'), peers.build('minimal', sizes, dtype='float64')
    for weight in ours.module.parameters():  # gains and biases, too
        nn.init.normal_(weight, std=0.2)
    copy_into(minimal.module, ours.module)
    packed = peers.build('packed', sizes, dtype='float64')
    linear = {f'{name}.weight' for name, m in minimal.module.named_modules() if isinstance(m, nn.Linear)}
    weights = minimal.module.state_dict()
    packed.module.load_state_dict({name: w.t() if name in linear else w for name, w in weights.items()})

    exact = 1e-4 if sizes.rotary or sizes.bias else 1e-9  # by hand, rotations and slopes are float32
    ids = torch.randint(0, 50, (3, 16))
    for peer in (ours, minimal, packed):
        peer.module.eval()
    expected = ours.logits(ids)
    assert expected.std() > 0.1
    for peer in (minimal, packed):
        torch.testing.assert_close(peer.logits(ids), expected, atol=exact, rtol=0)
        torch.testing.assert_close(peer.loss(ids), ours.loss(ids), atol=exact, rtol=0)
        assert peer.generate(ids, 8).equal(ours.generate(ids, 8))


def copy_into_llama(llama, model):
    """The weights of our model like Llama, with one head for keys, in that by hand, which splits a head in halves."""
    net, dim = model.net, llama.sizes.dim_head
    halves = torch.cat((torch.arange(0, dim, 2), torch.arange(1, dim, 2)))

    def rotated(weight):
        return weight.unflatten(0, (-1, dim))[:, halves].flatten(0, 1)

    state = {'token.weight': net.token_emb.emb.weight, 'logits.weight': net.to_logits.weight}
    state['norm.weight'] = net.attn_layers.final_norm.g + 1
    for index in range(len(llama.blocks)):
        (norm1, attend, *_), (norm2, feed, *_) = net.attn_layers.layers[2 * index : 2 * index + 2]
        gate = feed.ff[0].proj.weight.chunk(2)[::-1]
        parts = {
            'norm1.weight': norm1[0].g + 1,
            'qkv.weight': torch.cat((rotated(attend.to_q.weight), rotated(attend.to_k.weight), attend.to_v.weight)),
            'out.weight': attend.to_out.weight,
            'norm2.weight': norm2[0].g + 1,
            'widen.weight': torch.cat(gate),
            'narrow.weight': feed.ff[2].weight,
        }
        state |= {f'blocks.{index}.{name}': value for name, value in parts.items()}
    llama.load_state_dict(state, strict=True)


def test_llama_by_hand_computes_the_same(scripts):
    """Our logits, loss and greedy tokens, eagerly and by the step that is compiled."""
    peers = scripts('peers')
    sizes = peers.Sizes(tokens=50, length=24, dim=64, depth=2, heads=2, inner=96, like='Llama', turned=32)
    ours, minimal = (peers.build(name, sizes, dtype='float64') for name in ('ours', 'minimal'))
    for weight in ours.module.parameters():
        nn.init.normal_(weight, std=0.2)
    for block in ours.module.net.attn_layers.layers[1::2]:
        nn.init.zeros_(block[1].ff[0].proj.bias)  # a gate of ours has one, also without biases elsewhere
    copy_into_llama(minimal.module, ours.module)
    ids = torch.randint(0, 50, (3, 16))
    for peer in (ours, minimal):
        peer.module.eval()
    expected = ours.logits(ids)
    assert expected.std() > 0.1
    torch.testing.assert_close(minimal.logits(ids), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(minimal.loss(ids), ours.loss(ids), atol=1e-3, rtol=0)
    assert minimal.generate(ids, 8).equal(ours.generate(ids, 8))


def test_chunked_loss(scripts):
    """The minimal model's loss in chunks: its value and all gradients are those of the plain one."""
    peers = scripts('peers')
    sizes = peers.Sizes(tokens=50, length=200, dim=64, depth=1, heads=1)
    plain, chunked = (peers.build(name, sizes, dtype='float64') for name in ('minimal', 'minimal chunked'))
    chunked.module.load_state_dict(plain.module.state_dict())
    ids = torch.randint(0, 50, (2, 200))
    losses = plain.loss(ids), chunked.loss(ids)
    torch.testing.assert_close(*losses)
    for loss in losses:
        (3 * loss).backward()
    for a, b in zip(plain.module.parameters(), chunked.module.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_floor_has_the_products_of_the_minimal_model(scripts):
    """Flops, as torch counts them: linear maps as in the model, attention causal up to blocks."""
    from torch.utils.flop_counter import FlopCounterMode

    peers = scripts('peers')
    sizes = peers.Sizes(tokens=96, length=512, dim=64, depth=2, heads=2)
    floor = peers.build('floor', sizes)
    ids = torch.zeros(2, 512, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        floor.logits(ids)
    linear = 2 * ids.numel() * (2 * 12 * 64 * 64 + 64 * 96)
    blocks = 512 // floor.rows
    attention = 2 * 2 * 2 * 512 * 512 * 64 * 2 * (blocks + 1) / (2 * blocks)  # layers, products, batch; 2 per multiply
    assert forward.get_total_flops() == linear + attention
    with FlopCounterMode(display=False) as step:
        floor.step(ids, torch.optim.AdamW(floor.module.parameters()))
    assert step.get_total_flops() == 3 * (linear + attention)


def test_memory_of_a_known_case(scripts):
    """Two of 4 MiB, one given back, one of 8 MiB: 12 at most, each time."""
    measure = scripts('measure')

    def work():
        a, b = torch.empty(2**20), torch.empty(2**20)
        del a
        return torch.empty(2**21), b

    assert [measure.bytes_of(work, measure.Settings()) for _ in range(2)] == [12 * 2**20] * 2


def test_ratios(scripts):
    """Ratios are taken within rounds, costs and speeds the two ways around; a table shows their medians."""
    measure = scripts('measure')
    row = measure.Row('w', 'ms', values={'base': [1.0, 2.0, 4.0], 'ours': [2.0, 2.0, 2.0]}, base='base', goal='<= 1')
    assert row.ratios('ours') == [2.0, 1.0, 0.5]
    assert measure.quartiles(row.ratios('ours')) == (0.75, 1.0, 1.5)
    assert measure.table([row], {'A': 'base', 'B': 'none', 'C': 'ours'}, 'x').splitlines()[-1] == (
        '| w | 1.00 | 1.00 (<= 1) |'
    )
    row.faster = True
    assert row.ratios('ours') == [0.5, 1.0, 2.0]
    row.refused['other'] = 'ValueError: no'
    assert row.cell('other') == 'refused' and row.cell('unknown') == '-'


@pytest.mark.slow
def test_early_exits(scripts, capsys):
    scripts('early_exit').main(['--tiny', '--bytes', '100000'])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(' | ')[0] for line in lines[-4:]] == ['| delta', '| ---', '| 0.5', '| speculative, draft=1']
    scripts('early_exit').main(['--simulate', '20'])


@pytest.mark.slow
def test_datastore(scripts, capsys):
    """What is written is found, and the index finds what it was built for."""
    script = scripts('datastore')
    backends = 'exact' if importlib.util.find_spec('faiss') is None else 'exact,faiss'
    found = script.main(f'--entries 3000 --dim 8 --k 10 --backends {backends} --threads 1'.split())
    assert set(found) == ({'write', 'exact'} if backends == 'exact' else set(script.STAGES))
    assert all(told['MB'] > 50 and told['seconds'] > 0 for told in found.values())
    assert backends == 'exact' or found['approximate']['recall'] >= 0.9
    assert 'MB' in capsys.readouterr().out

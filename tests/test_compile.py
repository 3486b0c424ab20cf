"""What compiles to one graph, for all lengths, in a training step and in decoding: every flag, case by case.

`tests/data/compile_status.txt` holds the status of every case; `python tests/test_compile.py` writes it anew, and with
names of cases, such as that of a new flag, their rows alone. It also writes the numbers in `docs/benchmarks.md`.
"""

import copy
import functools
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    FLAG_CASES,
    INPUT_CASES,
    Case,
    as_one,
    build,
    each_tensor,
    inputs_for,
    model_of,
    one_of_each,
    per_token,
    run,
    shallow,
    tokens,
    weighted,
)
from oracles import assert_close

from x_transformers import Decoder

pytestmark = pytest.mark.costly
HERE = Path(__file__).parent
STATUS, PAGE = HERE / 'data' / 'compile_status.txt', HERE.parent / 'docs' / 'benchmarks.md'
CASES = (*FLAG_CASES, *ARGUMENT_CASES, *INPUT_CASES)
ONE, AGAIN, NO_CACHE = 'one graph', 'recompiles', 'no cache'
# what draws which layers run cannot be one graph
BREAKS = {name: 'breaks: the layers that run are drawn anew in each call' for name in ('layer_dropout',)}
RANDOM = ('dropout', 'gumbel', 'recycl', 'attn_cluster', 'lsh')
HEADER = '# case | training step of any length | decoding, token by token\n'


def compile_errors():
    return (torch._dynamo.exc.TorchDynamoException, torch.fx.experimental.symbolic_shapes.ConstraintViolationError)


def any_length(inputs, length):
    """The inputs, every axis of that length declared dynamic."""

    def marked(t):
        for axis, size in enumerate(t.shape):
            if size == length:
                torch._dynamo.mark_dynamic(t, axis)
        return t

    return {name: each_tensor(marked, value) for name, value in inputs.items()}


def training_status(case, backend='aot_eager'):
    """Forward and backward through one graph, in training mode; further lengths are not compiled for."""
    torch._dynamo.reset()
    net = copy.deepcopy(model_of(case)).train()
    parameters = list(net.parameters())
    lengths = (7, 6) if 'pos' in case.inputs else (11, 13, 19)  # given positions stay below `max_seq_len`
    graph = torch.compile(net, fullgraph=True, backend=backend)

    def step(length):
        inputs = any_length(inputs_for(net, case, length=length), length)
        out = as_one(net, graph(**inputs))
        grads = torch.autograd.grad(weighted(out), parameters, allow_unused=True)
        if any(word in case.name for word in RANDOM):
            return
        wanted = run(net, inputs)
        assert_close(out, wanted)
        plain = torch.autograd.grad(weighted(wanted), parameters, allow_unused=True)
        for grad, other in zip(grads, plain, strict=True):
            if other is not None:
                assert_close(grad, other, 'gradient')

    try:
        step(lengths[0])
    except compile_errors() as error:
        return BREAKS.get(case.flag, f'breaks: {error}'.split('\n')[0])
    with torch.compiler.set_stance('fail_on_recompile'):
        try:
            for length in lengths[1:]:
                step(length)
        except RuntimeError as error:
            if 'recompile' not in str(error):
                raise
            return AGAIN
    return ONE


@torch.inference_mode()
@torch.fx.experimental._config.patch(use_duck_shape=False)  # sizes that are equal by chance stay apart
def decoding_status(case, prompt=5, total=8):
    """One graph for every step that finds room in the memory of the cache, however much it holds."""
    torch._dynamo.reset()
    case = shallow(case)
    net = model_of(case)
    if not net.can_cache_kv:
        return NO_CACHE
    inputs, trace = inputs_for(net, case, length=total), None
    compiled = torch.compile(copy.deepcopy(net), fullgraph=True, dynamic=True, backend='eager')
    whole = per_token(net, inputs)
    for start, stop in ((0, prompt), *((place, place + 1) for place in range(prompt, total))):
        step = compiled if start > prompt else net  # the second step makes room
        part = each_tensor(lambda t: t.clone(memory_format=torch.contiguous_format), tokens(inputs, start, stop, True))
        try:
            with torch.compiler.set_stance('fail_on_recompile' if start > prompt + 1 else 'default'):
                out, trace = step(**part, cache=trace, return_intermediates=True, input_not_include_cache=True)
        except compile_errors() as error:
            return f'breaks: {error}'.split('\n')[0]
        except RuntimeError as error:
            if 'recompile' not in str(error):
                raise
            return AGAIN
        assert_close(as_one(net, out)[:, -1:], whole[:, stop - 1 : stop])
    return ONE


# the table


def written():
    """The statuses in the file:  name -> (training step, decoding)."""
    lines = [line for line in STATUS.read_text().splitlines() if not line.startswith('#')]
    return {name: (training, decoding) for name, training, decoding in (line.split(' | ') for line in lines)}


def summary(table):
    """The table in a few words, for the documentation."""
    flags = {case.flag for case in FLAG_CASES if case.flag and case.name in table}
    statuses = {flag: [table[c.name] for c in FLAG_CASES if c.flag == flag and c.name in table] for flag in flags}
    trains = [flag for flag in flags if all(training == ONE for training, _ in statuses[flag])]
    decodes = [flag for flag in flags if all(decoding == ONE for _, decoding in statuses[flag])]
    caches = [flag for flag in flags if all(decoding != NO_CACHE for _, decoding in statuses[flag])]
    others = sorted(f'`{flag}`' for flag in flags if flag not in trains)
    behind = sorted(f'`{flag}`' for flag in caches if flag not in decodes)
    words = f'{len(trains)} of {len(flags)} flags train in one graph for every length'
    words += f' (not {", ".join(others)})' if others else ''
    words += f'; {len(decodes)} of the {len(caches)} that keep a cache decode in one'
    return words + (f' (not {", ".join(behind)})' if behind else '')


def test_every_case_has_a_status():
    table = written()
    assert list(table) == [case.name for case in CASES]
    assert {training for training, _ in table.values()} <= {ONE, *BREAKS.values()}
    assert {decoding for _, decoding in table.values()} <= {ONE, NO_CACHE}


@pytest.mark.parametrize(
    'cases', [one_of_each(CASES), pytest.param(CASES, marks=pytest.mark.nightly)], ids=['one of each', 'all']
)
def test_who_keeps_no_cache(cases):
    table = written()
    for case in cases:
        assert (table[case.name][1] == NO_CACHE) == (not build(case).can_cache_kv), case.name


def test_the_documentation_tells_them():
    text = re.sub(r'\s+', ' ', PAGE.read_text(encoding='utf-8'))
    assert summary(written()) in text, summary(written())


# the cases

OFTEN = pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning', 'ignore::UserWarning')


def seldom(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


def one_block(name):
    """A case with a single block: what takes time is to compile."""
    return BY_NAME[name].with_keywords(depth=1)


@OFTEN
@pytest.mark.parametrize('name', ['plain', *seldom('rotary_pos_emb', 'shift_tokens')])
def test_some_training_steps(name):
    assert training_status(one_block(name)) == written()[name][0]


@OFTEN
@pytest.mark.parametrize('name', ['plain', *seldom('num_memory_tokens')])
def test_some_decoding(name):
    assert decoding_status(one_block(name)) == written()[name][1]


# every case takes half an hour: one of each feature by default, all of them on request
ALL = os.environ.get('COMPILE_STATUS') == 'all'
ONE_EACH = CASES if ALL else one_of_each(CASES)


@OFTEN
@pytest.mark.nightly
@pytest.mark.parametrize('case', ONE_EACH, ids=str)
def test_training_step(case):
    assert training_status(case) == written()[case.name][0]


@OFTEN
@pytest.mark.nightly
@pytest.mark.parametrize('case', ONE_EACH, ids=str)
def test_decoding(case):
    assert decoding_status(case) == written()[case.name][1]


@OFTEN
@pytest.mark.skipif(shutil.which('g++') is None, reason='generated code needs a C++ compiler')
@pytest.mark.parametrize(
    'names',
    [
        *seldom('plain', 'alibi_pos_bias ff_glu attn_talking_heads'),
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ('alibi_pos_bias', 'ff_glu', 'num_residual_streams')),
    ],
)
def test_generated_code_for_any_length(names):
    case = functools.reduce(Case.together, map(one_block, names.split()))
    assert training_status(case, 'inductor') == ONE


if __name__ == '__main__':
    table = written()
    for case in [BY_NAME[name] for name in sys.argv[1:]] or CASES:
        table[case.name] = training_status(case), decoding_status(case)
    rows = [' | '.join((case.name, *table[case.name])) + '\n' for case in CASES if case.name in table]
    STATUS.write_text(HEADER + ''.join(rows))
    page = PAGE.read_text(encoding='utf-8')
    for numbers in (r'\d+ of \d+ flags train', r'\d+ of the \d+ that keep'):
        page = re.sub(numbers.replace(' ', r'\s+'), re.search(numbers, summary(table))[0], page)
    PAGE.write_text(page, encoding='utf-8')
    print(summary(table))


# blocks of rows


@pytest.mark.parametrize(
    ('flags', 'height'),
    [
        pytest.param(dict(attn_max_attend_past=5), 16, marks=pytest.mark.slow),
        *(
            pytest.param(flags, height, marks=pytest.mark.slow)
            for flags, height in (
                (dict(attn_pre_talking_heads=True, alibi_pos_bias=True), 16),
                (dict(attn_sparse_topk=3, attn_shaw_rel_pos=True), 16),
                (dict(attn_use_cope=True), 16),
                (dict(attn_selective=True), 16),
            )
        ),
        pytest.param(dict(attn_max_attend_past=5, rel_pos_bias=True), 8, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_graphs_are_cut_into_blocks_of_rows(flags, height, monkeypatch):
    """One graph for all lengths between a power of two and the next, without a value for all scores."""
    monkeypatch.setattr('x_transformers.core.rows.LARGE', {'cpu': 64, 'cuda': 64})
    monkeypatch.setattr('x_transformers.core.rows.COMPILED_ROWS', height)
    torch._dynamo.reset()
    sizes = []

    def backend(graph, _):
        for module in graph.modules():
            nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
            values = [node.meta.get('example_value') for node in nodes]
            sizes.extend(t.shape[-2:] for t in values if torch.is_tensor(t) and t.is_floating_point() and t.ndim == 4)
        return graph

    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, **flags).double()
    graph = torch.compile(net, fullgraph=True, backend=backend)
    for length in (30, 31):
        x = torch.randn(1, length, 16, dtype=torch.double, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 1)
        with torch.compiler.set_stance('default' if length == 30 else 'fail_on_recompile'):
            out = graph(x)
        wanted = net(x)
        assert_close(out, wanted)
        assert_close(*(torch.autograd.grad(weighted(t), x)[0] for t in (out, wanted)), 'gradient')
    assert sizes and not any(int(i) == int(j) == 30 for i, j in sizes)

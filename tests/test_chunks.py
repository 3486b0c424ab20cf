"""The chunked engine of recurrent layers: beside a loop over the tokens, in parts, of documents, of any decay."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from costs import grows
from oracles import assert_close, matrix_recurrence, randn
from torch import Tensor

from x_transformers.kernels.chunks import run_chunks

B, HEADS, D, E = 2, 4, 6, 5
DECAYS = {'none': 0, 'head': 1, 'channel': D}
RULES = ('sum', 'groups', 'delta', 'two keys')
CASES = list(product(DECAYS, RULES))
EACH = pytest.mark.parametrize(('decay', 'rule'), CASES)


def inputs(decay: str, rule: str, n: int, b: int = B) -> dict[str, Tensor]:
    """Keys of length one, and decays of 0, of about 1, and of 20, which leave next to nothing."""
    groups = 2 if rule == 'groups' else HEADS
    made = {name: F.normalize(randn(b, groups, n, D, seed=at), dim=-1) for at, name in enumerate('qk')}
    made |= {'v': randn(b, HEADS, n, E, seed=2), 'state': randn(b, HEADS, D, E, seed=3)}
    if rule in ('delta', 'two keys'):
        beta = randn(b, HEADS, n, 1, seed=4).sigmoid()
        made |= {'k': beta * made['k'], 'erase': made['k']}
    if rule == 'two keys':
        made['write'] = 0.3 * randn(b, HEADS, n, D, seed=5)
    if DECAYS[decay]:
        level = torch.tensor([0.0, 1.0, 20.0])[torch.arange(n) * 7 % 5 % 3]
        made['decay'] = -level[:, None] * randn(b, HEADS, n, DECAYS[decay], seed=6).sigmoid()
    return {name: t.requires_grad_() for name, t in made.items()}


@EACH
@pytest.mark.parametrize('graph', [False, True])
def test_token_by_token(decay, rule, graph, monkeypatch):
    """Outputs, the last state and all gradients, for one token, a chunk, and some chunks of which the last is short."""
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: graph)
    for n in (1, 5, 43):
        given = inputs(decay, rule, n)
        results = []
        for run in (lambda **given: run_chunks(**given, chunk=8), matrix_recurrence):
            out, state = run(**given)
            results.append([out, state, *torch.autograd.grad(out.sin().sum() + state.cos().sum(), [*given.values()])])
        for name, one, other in zip(['out', 'state', *given], *results, strict=True):
            assert_close(one, other, f'{name} of {n}', tolerance=1e-11)


@EACH
def test_parts_and_chunks_of_any_size(decay, rule):
    given = inputs(decay, rule, 21)
    whole, last = run_chunks(**given)
    start = given.pop('state')
    for chunk, sizes in ((1, [21]), (4, [1, 3, 17]), (64, [4, 1, 16])):
        state, outs = start, []
        for part in zip(*(t.split(sizes, dim=2) for t in given.values()), strict=True):
            out, state = run_chunks(**dict(zip(given, part, strict=True)), state=state, chunk=chunk)
            outs.append(out)
        assert_close(torch.cat(outs, dim=2), whole, tolerance=1e-12)
        assert_close(state, last, tolerance=1e-12)


@EACH
def test_documents_and_padding(decay, rule):
    """Each document is as if it stood alone, and what stands behind it leaves its state as it is."""
    given = inputs(decay, rule, 30)
    given.pop('state')
    starts, count = (0, 7, 8, 17, 28), torch.tensor([25, 30])
    begins = torch.zeros(B, 30).bool()
    begins[:, list(starts)] = True
    out, state = run_chunks(**given, begins=begins, count=count, chunk=8)
    for row, end in enumerate(count.tolist()):
        for start, stop in zip(starts, (*starts[1:], 30), strict=True):
            stop = min(stop, end)
            if start >= stop:
                continue
            own, last = matrix_recurrence(**{name: t[row : row + 1, :, start:stop] for name, t in given.items()})
            assert_close(out[row, :, start:stop], own[0], tolerance=1e-12)
        assert_close(state[row], last[0], tolerance=1e-12)


@pytest.mark.parametrize('rule', RULES)
@pytest.mark.parametrize('width', [1, D])
def test_decays_of_any_size(rule, width):
    """Half of them leave nothing at all: an output depends on one token, no number is NaN, and float32 has its digits
    even among thousands that have faded."""
    given = inputs('none', rule, 40)
    decay = torch.full((B, HEADS, 40, width), -torch.inf).requires_grad_()
    out, state = run_chunks(**given, decay=decay, chunk=8)
    grads = torch.autograd.grad(out.sin().sum() + state.sum(), [decay, *given.values()])
    assert all(t.isfinite().all() for t in (out, state, *grads))
    q, k = (given[name].repeat_interleave(HEADS // given[name].shape[1], dim=1) for name in 'qk')
    assert_close(out, (q * k).sum(dim=-1, keepdim=True) * given['v'], tolerance=1e-12)
    decay = torch.where(torch.arange(40) % 3 == 0, -1e4, -0.01)[:, None].expand(B, HEADS, 40, width)
    half = {name: t.detach().float() for name, t in given.items()}
    out, _ = run_chunks(**half, decay=decay.float(), chunk=16)
    assert out.dtype == torch.float32
    wide = {name: t.double() for name, t in half.items()}
    assert_close(out.double(), run_chunks(**wide, decay=decay.float().double())[0], tolerance=1e-6)


def test_recall():
    """Keys of length one at right angles, written with the delta rule, give their values back, the newest one."""
    k = torch.eye(D, dtype=torch.float64).repeat(2, 1)[None, None]
    v = randn(1, 1, 2 * D, E)
    _, state = run_chunks(k, k, v, erase=k, chunk=4)
    assert_close(state[0, 0], v[0, 0, D:], tolerance=1e-12)


@EACH
def test_half_precision_and_autocast(decay, rule):
    """In float32 inside: as good as float32 of the rounded numbers."""
    given = {name: t.detach().bfloat16() for name, t in inputs(decay, rule, 20).items()}
    wanted = run_chunks(**{name: t.float() for name, t in given.items()}, chunk=8)
    with torch.autocast('cpu', torch.bfloat16):
        found = run_chunks(**given, chunk=8)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32 and torch.equal(one, other)


@EACH
def test_derivatives_of_derivatives_and_transforms(decay, rule):
    given = inputs(decay, rule, 6, b=1)
    names = list(given)

    def run(*tensors):
        return run_chunks(**dict(zip(names, tensors, strict=True)), chunk=2)

    assert torch.autograd.gradgradcheck(run, tuple(given.values()), fast_mode=True)
    rows = {name: t.detach() for name, t in inputs(decay, rule, 6).items()}
    each = torch.func.vmap(lambda *row: run(*(t.unsqueeze(0) for t in row))[0][0])(*rows.values())
    assert_close(each, run(*rows.values())[0], tolerance=1e-12)


@pytest.mark.parametrize(('decay', 'rule'), [('head', 'groups'), ('channel', 'two keys')])
@pytest.mark.slow
def test_one_graph(decay, rule):
    """For all lengths."""
    compiled = torch.compile(run_chunks, fullgraph=True, dynamic=True, backend='aot_eager')
    for n in (70, 150):
        given = inputs(decay, rule, n)
        found, wanted = compiled(**given), run_chunks(**given)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, tolerance=1e-11)
        grads = [torch.autograd.grad(t[0].sin().sum(), [*given.values()]) for t in (found, wanted)]
        for one, other in zip(*grads, strict=True):
            assert_close(one, other, 'gradient', tolerance=1e-10)


@EACH
def test_costs(decay, rule):
    grows(lambda n: run_chunks(**inputs(decay, rule, n, b=1), chunk=16)[0], 256)

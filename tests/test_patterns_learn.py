"""What patterns let a net learn, and what not: what lies in reach of one layer, or of two."""

import pytest
import torch
from torch import nn
from toy_tasks import IGNORED, SEEDS, far, learned, marked_class, markov, net_for, shift

from x_transformers import Decoder, Encoder, sparsify_
from x_transformers.patterns import BigBird, BlockLocal, Global, Mix, Sliding, Strided


def score(task, pattern, steps, seed=0, b=64, kind=Decoder, around=nn.Sequential, **flags):
    torch.manual_seed(seed)
    return learned(around(net_for(task, kind, attn_sparse_pattern=pattern, **flags)), task, steps, b)


@pytest.mark.slow
@SEEDS
def test_a_window_reaches_so_far(seed):
    flags = dict(depth=1, rotary_pos_emb=True)
    assert score(shift(4), Sliding(4), seed=seed, steps=200, **flags) > 0.99
    assert score(shift(5), Sliding(4), seed=seed, steps=200, **flags) < 0.1


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('how', [pytest.param('merge', marks=pytest.mark.nightly), 'interleave'])
def test_two_hops_reach_far(how, seed):
    """A needle that is far away, through a window and strides."""
    task = far(n=96)
    assert score(task, Mix((Sliding(10), Strided(10)), how=how), seed=seed, b=32, steps=250) > 0.9


@pytest.mark.slow
def test_a_window_alone_does_not():
    assert score(far(n=96), Sliding(10), b=32, steps=120) < 0.3


class FirstIsGlobal(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x, global_mask=(torch.arange(x.shape[1]) == 0).expand(len(x), -1))


@pytest.mark.nightly
@SEEDS
def test_a_global_token_counts_what_no_window_shows_it(seed):
    task, window = marked_class(256, apart=20), Sliding(4)
    flags = dict(seed=seed, b=16, kind=Encoder)
    assert score(task, window | Global('mask'), 200, around=FirstIsGlobal, **flags) > 0.9
    assert score(task, window, 60, **flags) < 0.65


@pytest.mark.nightly
@SEEDS
def test_blocks_of_bigbird_bring_a_needle_near(seed):
    task, flags = far(n=128), dict(seed=seed, b=32, kind=Encoder)
    assert score(task, BigBird(8, max_len=128), 250, **flags) > 0.9
    assert score(task, BlockLocal(8), 60, **flags) < 0.3


@pytest.mark.slow
def test_a_dense_model_goes_on_with_a_window():
    """A language whose next token depends on the last two; of one alone it can say less."""
    torch.manual_seed(0)
    task = markov(64)
    net = net_for(task, Decoder, rotary_pos_emb=True)
    learned(net, task, steps=150)
    x, y = task.draw(200)
    losses = {}
    for window in (None, 64, 16, 0):
        sparsify_(net, None if window is None else Sliding(window))
        with torch.no_grad():
            found = nn.functional.cross_entropy(net.eval()(x).transpose(1, 2), y, ignore_index=IGNORED)
        losses[window] = found.item()
    assert losses[64] == pytest.approx(losses[None], rel=1e-5)
    assert losses[16] < 1.05 * losses[None] and losses[0] > 1.5 * losses[None]

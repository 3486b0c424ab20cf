"""What patterns let a net learn, and what not: what lies in reach of one layer, or of two."""

import pytest
import torch
from toy_tasks import SEEDS, far, learned, net_for, shift

from x_transformers import Decoder
from x_transformers.patterns import Mix, Sliding, Strided


def score(task, pattern, steps, seed=0, b=64, **flags):
    torch.manual_seed(seed)
    return learned(net_for(task, Decoder, attn_sparse_pattern=pattern, **flags), task, steps, b)


@pytest.mark.slow
@SEEDS
def test_a_window_reaches_so_far(seed):
    flags = dict(depth=1, rotary_pos_emb=True)
    assert score(shift(4), Sliding(4), seed=seed, steps=200, **flags) > 0.99
    assert score(shift(5), Sliding(4), seed=seed, steps=200, **flags) < 0.1


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('how', ['merge', 'interleave'])
def test_two_hops_reach_far(how, seed):
    """A needle that is far away, through a window and strides."""
    task = far(n=96)
    assert score(task, Mix((Sliding(10), Strided(10)), how=how), seed=seed, b=32, steps=250) > 0.9


@pytest.mark.slow
def test_a_window_alone_does_not():
    assert score(far(n=96), Sliding(10), b=32, steps=120) < 0.3

"""Reading attention: heads with weights by hand get the known numbers; a rollout against loops; a head that shifts."""

import math

import pytest
import torch
from building import nets
from oracles import assert_close, bools, randomised
from torch import nn
from toy_tasks import learned, net_for, shift

from x_transformers import Decoder, Encoder, attention_maps
from x_transformers.attention_maps import head_report, maps_of, picture, rollout
from x_transformers.flags import ConfigError

N, V = 6, 9
IDS = torch.tensor([[3, 2, 5, 2, 7, 1], [4, 5, 6, 7, 8, 3]])


net = nets(V, N, Encoder, randomised, dim=16, depth=2, heads=3, attn_dim_head=8)


class Given(nn.Module):
    """A net whose attention is given."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = layers

    def forward(self, ids, return_intermediates=False, mask=None):
        made = [type('One', (), {'layer_type': kind, 'post_softmax_attn': maps})() for kind, maps in self.layers]
        return None, type('Trace', (), {'attn_intermediates': made})()


def made_by_hand():
    eye, uniform = torch.eye(N).double(), torch.full((N, N), 1 / N, dtype=torch.float64)
    shifted = eye.roll(-1, dims=1)  # row i looks at i - 1, the first one at the last
    return torch.stack((eye, shifted, uniform, shifted.T)).expand(2, -1, -1, -1)


def test_heads_by_hand():
    report = head_report(Given(('a', made_by_hand())), IDS, separator=2)
    one = lambda name: [round(x, 9) for x in getattr(report, name)[0].tolist()]  # noqa: E731
    apart = sum(abs(i - j) for i in range(N) for j in range(N)) / N**2
    assert report.kinds == ('a',)
    assert one('itself') == [1, 0, round(1 / 6, 9), 0]
    assert one('previous') == [0, 1, round(1 / 6, 9), 0] and one('following') == [0, 0, round(1 / 6, 9), 1]
    assert one('distance') == [0, round((5 * 1 + 5) / 6, 9), round(apart, 9), round((5 * 1 + 5) / 6, 9)]
    assert one('first') == [round(1 / 6, 9)] * 4
    assert one('separator') == [round(2 / 6, 9)] * 4  # of the one row that has it
    assert one('entropy') == [0, 0, round(math.log(6), 9), 0] and one('front') == [0] * 4
    assert 'previous' in str(report) and len(str(report).splitlines()) == 5


def test_padding_counts_nowhere():
    """A row with padding is measured as if it ended before; what stands behind says nothing."""
    made, short = net(), IDS[:, :4]
    mask = torch.arange(N).expand(2, -1) < 4
    found, wanted = head_report(made, IDS, 2, mask=mask), head_report(made, short, 2)
    for name in attention_maps.MEASURES:
        assert_close(getattr(found, name), getattr(wanted, name))
    left = head_report(made, IDS.flip(1), mask=mask.flip(1))
    by_hand = head_report(Given(('a', torch.eye(N).roll(1, 1).expand(2, 3, -1, -1))), IDS, mask=mask.flip(1))
    eye = head_report(Given(('a', torch.eye(N).expand(2, 3, -1, -1))), IDS, mask=mask.flip(1))
    assert eye.first.tolist() == [[0.25] * 3]
    assert left.first.isfinite().all() and by_hand.following.tolist() == [[1.0] * 3]


def test_in_front_and_across():
    made = net(Decoder, dict(num_memory_tokens=2), attn_num_mem_kv=3)
    maps = [weights for _, weights in maps_of(made, IDS)]
    report = head_report(made, IDS)
    for at, weights in enumerate(maps):
        assert weights.shape == (2, 3, N + 2, N + 5)
        assert_close(report.front[at], weights[:, :, 2:, :5].sum(dim=-1).mean(dim=(0, 2)))
        own = weights[:, :, 2:, 5:]
        wanted = torch.stack([own[..., i, i - 1] for i in range(1, N)]).mean(dim=(0, 1))
        assert_close(report.previous[at], wanted)
        assert (report.following[at] == 0).all()
    across = head_report(net(Decoder, cross_attend=True), IDS, context=torch.randn(2, 4, 16).double())
    assert (
        across.kinds == ('a', 'c', 'a', 'c') and across.distance[1].isnan().all() and across.entropy[1].isfinite().all()
    )
    assert head_report(made, IDS[:, :1]).previous.isnan().all()


def test_rollout_against_loops():
    made, mask = net(), bools(2, N, keep=0.8)
    mask[:, 0] = True
    for real in (None, mask):
        found = rollout(made, IDS, mask=real)
        total = [torch.eye(N).double() for _ in range(2)]
        given = {} if real is None else {'mask': real}
        for _, weights in maps_of(made, IDS, **given):
            for row in range(2):
                mean = sum(weights[row]) / 3
                step = torch.zeros(N, N).double()
                for i in range(N):
                    if real is None or real[row, i]:
                        step[i] = mean[i] / mean[i].sum() / 2
                        step[i, i] += 0.5
                total[row] = step @ total[row]
        total = torch.stack(total)
        if real is None:
            assert_close(found.sum(dim=-1), torch.ones(2, N).double(), tolerance=1e-12)
        else:
            assert (found[~real] == 0).all() and (found.mT[~real] == 0).all()
            assert_close(found[real].sum(dim=-1), torch.ones(int(real.sum())).double(), tolerance=1e-12)
        assert_close(found, total, tolerance=1e-12)


def test_rollout_leaves_out_what_stands_in_front():
    found = rollout(net(Decoder, attn_num_mem_kv=3), IDS)
    assert_close(found.sum(dim=-1), torch.ones(2, N).double(), tolerance=1e-12)
    assert (found.triu(1) == 0).all()


@pytest.mark.slow
def test_a_head_that_looks_at_the_token_before():
    torch.manual_seed(0)
    task = shift(1, n=16)
    made = net_for(task, Decoder, depth=1, heads=2, attn_dim_head=24, rotary_pos_emb=True)
    assert learned(made, task, 400, lr=5e-3) > 0.95
    assert head_report(made, task.draw(50)[0]).previous.max() >= 0.9


def test_pictures(tmp_path):
    pytest.importorskip('matplotlib')
    for options in ({}, dict(words=[*'abcdef']), dict(rolled=True)):
        figure = picture(net(), IDS, **options)
        figure.savefig(tmp_path / 'heads.png')
        assert len(figure.axes) == (1 if options.get('rolled') else 6)
        assert (tmp_path / 'heads.png').stat().st_size > 1000
    shown = picture(net(), IDS, row=1).axes[1].images[0].get_array()
    weights = next(maps_of(net(), IDS))[1]
    assert_close(torch.as_tensor(shown.data), weights[1, 1].float(), tolerance=1e-6)


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: head_report(net(Decoder, attn_kernel='elu'), IDS), 'kernel'),
        (lambda: rollout(net(Decoder, cross_attend=True), IDS, context=torch.randn(2, 4, 16).double()), 'is of one'),
        (lambda: head_report(net(), IDS + 0.5), r'`ids` must .*got torch.float32'),
        (lambda: head_report(net(), IDS, separator=1.5), r'`separator` must .*got 1.5'),
        (lambda: head_report(net(), IDS, mask=IDS[:, 1:] > 2), '`mask` must '),
        (lambda: picture(net(), IDS, row=2), '`row` must be one of the 2 rows, got 2'),
        (lambda: picture(net(), IDS, words=['a']), '`words` got 1, there are 6 tokens'),
    ],
)
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()

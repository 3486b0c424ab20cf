"""Perceivers: positions by their formula, transformers' own, what an answer depends on, costs, and a class of bytes."""

import pytest
import torch
from oracles import assert_close, bools, randn, randomised
from torch import nn
from toy_tasks import IGNORED, marked_class, taught

from x_transformers import Perceiver, PerceiverIO
from x_transformers.flags import ConfigError
from x_transformers.modalities.perceiver import fourier_positions

SIZES = dict(num_latents=4, dim=16, heads=2, dim_head=8, cross_dim_head=8, num_freq_bands=3, max_freq=6.0)


def perceiver(channels=3, axes=2, depth=2, **options):
    return randomised(Perceiver(channels, axes, **{**SIZES, 'depth': depth, **options}))


def perceiver_io(channels=3, axes=2, depth=2, **options):
    return randomised(PerceiverIO(channels, axes, **{**SIZES, 'depth': depth, 'queries_dim': 6, **options}))


def test_positions_by_their_formula():
    """Frequencies 1, 2, 3 for bands 3 and a largest of 6: at -1, 0 and 1 sines vanish, cosines are signs."""
    found = fourier_positions((3, 2), 3, 6.0, dtype=torch.float64)
    assert found.shape == (3, 2, 2 * 7)
    for i, j in ((i, j) for i in range(3) for j in range(2)):
        for axis, x in enumerate((i - 1.0, 2.0 * j - 1.0)):
            wanted = [0.0, 0.0, 0.0, *((-1.0) ** (f * x) for f in (1, 2, 3)), x]
            assert_close(found[i, j, 7 * axis : 7 * axis + 7], torch.tensor(wanted).double(), tolerance=1e-12)
    x = torch.linspace(-1, 1, 5).double()
    wanted = torch.stack([(torch.pi * f * x).sin() for f in (1, 3, 5)] + [(torch.pi * f * x).cos() for f in (1, 3, 5)])
    assert_close(fourier_positions((5,), 3, 10.0, dtype=torch.float64)[:, :6], wanted.mT, tolerance=1e-12)
    assert fourier_positions((1,), 2, 4.0).tolist() == [[0.0, 0.0, 1.0, 1.0, 0.0]]


def copied(reading, layer):
    """Give a block the weights of one of transformers; both read by the same formula."""
    own = layer.attention.self
    attn, ff = reading.layers
    pairs = [(attn[0][0], own.layernorm1), (ff[0][0], layer.layernorm)]
    for mine, theirs in pairs:
        mine.gamma.copy_(theirs.weight - mine.unit_offset), mine.beta.copy_(theirs.bias)
    linears = [(attn[1].to_q, own.query), (attn[1].to_k, own.key), (attn[1].to_v, own.value)]
    linears += [(attn[1].to_out, layer.attention.output.dense)]
    linears += [(ff[1].ff[0][0], layer.mlp.dense1), (ff[1].output_layer, layer.mlp.dense2)]
    for mine, theirs in linears:
        mine.weight.copy_(theirs.weight)
        if mine.bias is not None:
            mine.bias.copy_(theirs.bias)


@torch.no_grad()
def test_transformers_perceiver():
    """Latents of an array with a mask: one reading, two runs of a tied stack of two blocks."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    config = transformers.PerceiverConfig(
        num_latents=6, d_latents=16, d_model=10, num_blocks=2, num_self_attends_per_block=2,
        num_self_attention_heads=2, num_cross_attention_heads=2,
    )  # fmt: skip
    theirs = randomised(transformers.PerceiverModel(config))
    norms = dict(norm_bias=True, ff_mult=1)
    made = PerceiverIO(
        10, 1, 6, 16, 2, queries_dim=5, num_freq_bands=None, cross_heads=2, cross_dim_head=5, heads=2, dim_head=8,
        self_per_cross=2, weight_tie_layers=True,
        cross_kwargs=dict(**norms, cross_attn_qkv_bias=True, cross_attn_out_bias=True, cross_attn_project_out=True),
        self_kwargs=dict(**norms, attn_qkv_bias=True, attn_out_bias=True),
    ).double().eval()  # fmt: skip
    made.latents.copy_(theirs.embeddings.latents)
    encoder, reading = theirs.encoder, made.cross[0]
    theirs_norm = encoder.cross_attention.attention.self.layernorm2
    reading.norm.gamma.copy_(theirs_norm.weight), reading.norm.beta.copy_(theirs_norm.bias)
    copied(reading.block, encoder.cross_attention)
    for at, layer in enumerate(encoder.self_attends):
        block = made.self[0].layers[2 * at : 2 * at + 2]
        copied(type('Block', (), {'layers': block}), layer)
    x, mask = randn(3, 7, 10), bools(3, 7)
    assert mask.any(dim=1).all()
    assert_close(made(x, mask=mask), theirs(x, attention_mask=mask.double()).last_hidden_state, tolerance=1e-10)
    assert_close(made(x), theirs(x).last_hidden_state, tolerance=1e-10)


def test_rounds_by_hand():
    """Each reading and stack called one after another, tied and not; the mean of the latents and a head."""
    for tied, cross, selves in ((False, [0, 1, 2], [0, 1, 2]), (True, [0, 1, 1], [0, 0, 0])):
        made, x = perceiver(depth=3, weight_tie_layers=tied, num_classes=5), randn(2, 4, 3, 3)
        rows = torch.cat((x, fourier_positions((4, 3), 3, 6.0, dtype=x.dtype).expand(2, -1, -1, -1)), dim=-1)
        z = made.latents.expand(2, -1, -1)
        for c, s in zip(cross, selves, strict=True):
            z = made.cross[c].block(z, context=made.cross[c].norm(rows.flatten(1, 2)))
            z = made.self[s](z)
        assert_close(made(x, return_embeddings=True), z, tolerance=1e-12)
        assert_close(made(x), made.to_logits(z.mean(dim=1)), tolerance=1e-12)
        assert len(made.cross) == max(cross) + 1 and len(made.self) == max(selves) + 1


def test_entries_have_no_order_but_their_positions():
    """Without positions entries may change places; with them in the entries too."""
    made, x = perceiver(axes=1, num_freq_bands=None), randn(2, 9, 3)
    order = torch.randperm(9)
    assert_close(made(x[:, order]), made(x))
    here = perceiver(axes=1, num_classes=3)
    assert not torch.allclose(here(x[:, order]), here(x))
    carried = torch.cat((x, fourier_positions((9,), 3, 6.0, dtype=x.dtype).expand(2, -1, -1)), dim=-1)
    there = perceiver(carried.shape[-1], axes=1, num_freq_bands=None, num_classes=3)
    there.load_state_dict(here.state_dict())
    assert_close(there(carried[:, order]), here(x))


@pytest.mark.parametrize('build', [perceiver, perceiver_io])
def test_masked_entries_do_not_count(build):
    made, x, mask = build(), randn(2, 4, 3, 3), bools(2, 4, 3)
    other = x.masked_fill(~mask.unsqueeze(-1), float('nan'))
    assert_close(made(other, mask=mask), made(x, mask=mask))
    assert not torch.allclose(made(x), made(x, mask=mask))


def test_an_answer_depends_on_its_query_alone():
    made, x, queries = perceiver_io(logits_dim=3), randn(2, 4, 3, 3), randn(2, 8, 6, seed=1)
    out = made(x, queries)
    assert out.shape == (2, 8, 3)
    order = torch.randperm(8)
    assert_close(made(x, queries[:, order]), out[:, order])
    assert_close(made(x, queries[:, 3:4]), out[:, 3:4])
    assert_close(made(x, queries[0])[0], out[0]), assert_close(made(x)[0], made(x[:1])[0])
    z = made(x)
    wanted = made.to_logits(made.decoder.block(queries, context=made.decoder.norm(z)))
    assert_close(out, wanted, tolerance=1e-12)


def test_the_array_is_read_in_linear_memory():
    """Nothing as large as entries times entries is formed: the largest tensor grows with the array."""
    largest = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            largest[-1] = max(
                [largest[-1], *(t.numel() for t in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(t))]
            )
            return out

    made = perceiver(axes=1)
    for n in (256, 512, 1024):
        largest.append(0)
        with Largest(), torch.no_grad():
            made(randn(1, n, 3))
    assert largest[1] <= 2.1 * largest[0] and largest[2] <= 2.1 * largest[1]


@pytest.mark.nightly
def test_it_tells_the_class_of_bytes():
    """Of which kind most of nine marked bytes of 512 are, by 16 latents."""
    torch.manual_seed(0)
    task = marked_class(512)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(task.tokens, 16)
            sizes = dict(heads=2, dim_head=16, cross_dim_head=16, num_freq_bands=8, max_freq=64.0)
            self.reader = Perceiver(16, 1, 16, 32, 2, cross_heads=2, num_classes=2, **sizes)

        def forward(self, x):
            return self.reader(self.table(x))

    def loss():
        x, y = task.draw(64)
        return nn.functional.cross_entropy(net(x), y[y != IGNORED])

    net = Net()
    taught(net, loss, 300)
    x, y = task.draw(400)
    assert (net(x).argmax(dim=-1) == y[y != IGNORED]).double().mean() >= 0.95


def test_it_comes_back_from_its_config():
    for made in (perceiver(num_classes=3, weight_tie_layers=True), perceiver_io(self_kwargs=dict(ff_glu=True))):
        again = type(made).from_config(made.config).double().eval()
        again.load_state_dict(made.state_dict())
        x = randn(2, 4, 3, 3)
        assert torch.equal(again(x), made(x))


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: perceiver()(randn(2, 4, 3)), r'`x` must be \(b, n1, n2, 3\), got \(2, 4, 3\)'),
        (lambda: perceiver()(randn(2, 4, 3, 2)), r'`x` must .*got \(2, 4, 3, 2\)'),
        (lambda: perceiver()(torch.ones(2, 4, 3, 3, dtype=torch.long)), r'`x` must be floating.*got torch.int64'),
        (lambda: perceiver()(randn(2, 4, 3, 3), mask=bools(2, 4)), r'`mask` must .*got torch.bool of shape'),
        (lambda: perceiver()(randn(2, 4, 3, 3), mask=randn(2, 4, 3)), r'`mask` must .*got torch.float64'),
        (lambda: perceiver_io()(randn(2, 4, 3, 3), randn(2, 4, 5)), '`queries` must '),
        (lambda: perceiver_io()(randn(2, 4, 3, 3), randn(3, 4, 6)), '`queries` got 3 rows, `x` has 2'),
        (lambda: perceiver(num_latents=0), '`num_latents` must be an integer of at least 1, got 0'),
        (lambda: perceiver(max_freq=0), '`max_freq` must be a positive number, got 0'),
        (lambda: perceiver(self_kwargs=dict(dpth=3)), 'unknown keyword `dpth`'),
        (lambda: perceiver(self_kwargs=dict(causal=True)), '`causal`'),
    ],
)
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_a_tie_of_one_says_so(logged):
    perceiver(depth=1, weight_tie_layers=True)
    assert any('`weight_tie_layers` has no effect with a `depth` of 1' in line for line in logged)

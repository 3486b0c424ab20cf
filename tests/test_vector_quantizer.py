"""Vectors as codes: ids, losses and gradients by formula, moving averages by hand, and what checkpoints change."""

import pytest
import torch
from oracles import assert_close, randn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from x_transformers import VectorQuantizer
from x_transformers.flags import ConfigError

DIM, SIZE = 3, 5


def quantizer(**flags):
    torch.manual_seed(0)
    made = VectorQuantizer(DIM, SIZE, **flags).double()
    with torch.no_grad():
        made.codebook.copy_(randn(SIZE, DIM))
        if made.decay is not None:
            made.count.copy_(torch.arange(1.0, SIZE + 1))
            made.total.copy_(made.codebook * made.count.unsqueeze(-1))
    return made


def unit(vector):
    return vector / (vector * vector).sum() ** 0.5


def by_hand(made, z, real):
    """Codes, ids and the loss, one number after the other."""
    table = [unit(code) if made.norm else code for code in made.codebook]
    codes, ids, losses = [], [], []
    for vector in z.flatten(0, -2):
        vector = unit(vector) if made.norm else vector
        distances = [sum((a - b) ** 2 for a, b in zip(vector.tolist(), code.tolist(), strict=True)) for code in table]
        nearest = min(range(len(table)), key=distances.__getitem__)
        first = 0 if made.decay is not None else (vector.detach() - table[nearest]).square().mean()
        losses.append(first + made.commitment_weight * (vector - table[nearest].detach()).square().mean())
        codes.append(table[nearest])
        ids.append(nearest)
    losses = torch.stack(losses)[real.flatten()]
    shape = z.shape[:-1]
    return torch.stack(codes).view(z.shape), torch.tensor(ids).view(shape), losses.sum() / max(len(losses), 1)


@pytest.mark.parametrize('norm', [False, True])
@pytest.mark.parametrize('decay', [None, 0.9])
def test_codes_ids_and_loss_by_their_formula(norm, decay):
    made, real = quantizer(norm=norm, decay=decay, commitment_weight=0.7).eval(), torch.arange(8).view(2, 4) % 3 > 0
    z, around = randn(2, 4, DIM).requires_grad_(), randn(2, 4, DIM)
    found, wanted = made(z, real), by_hand(made, z, real)
    assert torch.equal(found.ids, wanted[1]) and torch.equal(
        made.codes(found.ids), made._unit(made.codebook)[found.ids]
    )
    assert_close(found.codes, wanted[0], tolerance=1e-12)
    assert_close(found.loss, wanted[2], tolerance=1e-12)
    # the gradient of the codes is that of the vectors
    inputs = [z, made.codebook] if decay is None else [z]
    got = torch.autograd.grad((found.codes * around).sum() + 3 * found.loss, inputs)
    units = torch.nn.functional.normalize(z, dim=-1) if norm else z
    by_formula = torch.autograd.grad((units * around).sum() + 3 * wanted[2], inputs)
    for one, other in zip(got, by_formula, strict=True):
        assert_close(one, other, tolerance=1e-12)
    if not norm and decay is None:
        assert_close(
            got[0], around + real.unsqueeze(-1) * (4.2 * (z - wanted[0]) / (real.sum() * DIM)), tolerance=1e-12
        )


def test_a_code_is_its_own_nearest_and_blocks_change_nothing(monkeypatch):
    made = quantizer().eval()
    assert made(made.codebook.detach()).ids.tolist() == [*range(SIZE)]
    z = randn(7, DIM)
    wanted = made(z).ids
    monkeypatch.setattr('x_transformers.modalities.vector_quantizer.BLOCK', 2 * SIZE)
    assert torch.equal(made(z).ids, wanted)


@pytest.mark.parametrize('decay', [0.0, 0.9])
def test_moving_averages_by_hand(decay):
    """Of 0 they are the means of k-means, but for the smoothing; padding counts nothing."""
    made, real = quantizer(decay=decay, eps=1e-3), torch.arange(12).view(3, 4) % 5 > 0
    count, total, before = made.count.clone(), made.total.clone(), made.codebook.clone()
    z = randn(3, 4, DIM)
    ids, codes = made(z, real).ids, made.eval()(z, real).ids
    for k in range(SIZE):
        near = z[(ids == k) & real]
        count[k] = decay * count[k] + (1 - decay) * len(near)
        total[k] = decay * total[k] + (1 - decay) * near.sum(dim=0)
    smooth = (count + 1e-3) / (count.sum() + SIZE * 1e-3) * count.sum()
    wanted = torch.where(count.unsqueeze(-1) > 0, total / smooth.unsqueeze(-1), before)
    for found, expected in ((made.count, count), (made.total, total), (made.codebook, wanted)):
        assert_close(found, expected, tolerance=1e-12)
    if decay == 0:
        means = torch.stack([z[(ids == k) & real].mean(dim=0) for k in ids[real].unique()])
        assert_close(made.codebook[ids[real].unique()], means, tolerance=0.02)
    state = {name: t.clone() for name, t in made.state_dict().items()}
    made(z + 1)
    assert codes.shape == ids.shape and all(torch.equal(t, made.state_dict()[name]) for name, t in state.items())


def test_the_first_batch_gives_the_codes():
    """They are means of its vectors, each counted once; also where padding and few vectors are."""
    torch.manual_seed(0)
    made, z = VectorQuantizer(DIM, SIZE, decay=0.9).double(), randn(2, 8, DIM)
    real = torch.arange(16).view(2, 8) % 2 > 0
    made(z, torch.zeros_like(real))
    assert not made.count.any() and made.codebook.abs().max() <= 1 / SIZE
    ids = made(z, real).ids
    assert made.count.tolist() == [((ids == k) & real).sum() for k in range(SIZE)] and made.count.min() > 0
    for k in range(SIZE):
        assert_close(made.codebook[k], z[(ids == k) & real].mean(dim=0), tolerance=1e-4)
    few = VectorQuantizer(DIM, SIZE, decay=0.9).double()
    few(z[0, :2])
    assert sorted(few.count.tolist()) == [0, 0, 0, 1, 1]


def test_codes_that_are_hardly_used_are_replaced():
    made, real = quantizer(decay=0.5, revive_below=2.0), torch.arange(12) < 9
    made.count.copy_(torch.tensor([0.1, 30.0, 0.1, 30.0, 30.0]))
    made.total.copy_(made.codebook * made.count.unsqueeze(-1))
    z = (made.codebook[[1, 3, 4]] + 0.01 * randn(4, 3, DIM)).flatten(0, 1)
    twin = quantizer(decay=0.5)
    twin.load_state_dict(made.state_dict())
    made(z, real), twin(z, real)
    fresh = [any(torch.equal(code, vector) for vector in z[:9]) for code in made.codebook]
    assert fresh == [True, False, True, False, False] and made.count[fresh].tolist() == [2.0, 2.0]
    kept = [1, 3, 4]
    assert torch.equal(made.codebook[kept], twin.codebook[kept]) and torch.equal(made.count[kept], twin.count[kept])
    assert_close(made.total[fresh], 2 * made.codebook[fresh], tolerance=1e-12)
    before = made.codebook.clone()
    made(z, torch.zeros_like(real))
    assert not any(torch.equal(code, vector) for code, was in zip(made.codebook, before, strict=True)
                   if not torch.equal(code, was) for vector in z)  # fmt: skip


def test_what_is_computed_again_changes_nothing():
    """A checkpoint runs the module twice: codes move once, and the gradient is that of the codes before they moved."""
    found = []
    for again in (False, True):
        made, z = quantizer(decay=0.5), randn(4, DIM, seed=3).requires_grad_()
        run = lambda z, made=made: sum(t.sum() for t in made(z)[::2])  # noqa: E731
        with set_checkpoint_early_stop(False):
            loss = checkpoint(run, z, use_reentrant=False) if again else run(z)
        loss.backward()
        found.append((z.grad, made.codebook, made.count, made.total))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_refused_quantizers():
    made = quantizer()
    for call, error, words in (
        (lambda: made(randn(2, 4)), ValueError, r'`z` must have shape \(b, 3\), got \(2, 4\)'),
        (lambda: made(randn(2, 3), torch.ones(3) > 0), ValueError, '`mask` must have shape'),
        (lambda: made.codes(torch.tensor([5])), ValueError, '`ids` must be from 0 to 4, got codes from 5 to 5'),
        (lambda: made.codes(randn(2)), TypeError, '`ids` must be whole numbers, got torch.float64'),
        (lambda: VectorQuantizer(3, 5, revive_below=1.0), ConfigError, '`revive_below` needs `decay`'),
        (lambda: VectorQuantizer(3, 5, decay=1.0), ConfigError, '`decay` must be a number of at least 0 and below 1'),
        (lambda: VectorQuantizer(3, 1), ConfigError, '`codebook_size` must be .* at least 2, got 1'),
    ):
        with pytest.raises(error, match=words):
            call()


def test_in_training_it_is_one_graph():
    made = quantizer(decay=0.5, revive_below=1.5)
    twin = quantizer(decay=0.5, revive_below=1.5)
    z = randn(6, DIM)
    torch.manual_seed(0)
    wanted = twin(z)
    torch.manual_seed(0)
    torch.compiler.reset()
    found = torch.compile(made, backend='eager', fullgraph=True)(z)
    for one, other in zip((*found, *made.buffers()), (*wanted, *twin.buffers()), strict=True):
        assert torch.equal(one, other)

"""Pretraining on what random networks make of noise: the sequences, the generator, and the buffer."""

import copy

import pytest
import torch
from oracles import assert_close
from torch import nn
from training_laws import fit

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.up_wrapper import SyntheticDataGenerator, UniversalPretrainWrapper, random_sequences

VOCAB = 11


def net_of(max_seq_len=12):
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=max_seq_len, attn_layers=stack)


def build(generator=None, **options):
    sizes = dict(buffer_size=20, num_reset=4, batch_size=3, seq_len=8, seed_length=5)
    return UniversalPretrainWrapper(net_of(), generator, **{**sizes, **options})


class Sevens(nn.Module):
    """A generator of rows of 7, that remembers what it was given."""

    def __init__(self, length=8):
        super().__init__()
        self.length, self.given, self.resets = length, [], 0

    def generate(self, length, seed, condition):
        self.given.append((length, seed.clone(), condition.clone()))
        return torch.full((len(seed), self.length), 7)

    def reset_(self):
        self.resets += 1


def test_random_and_constant_rows():
    rows = random_sequences(VOCAB, 50, 3, 4, shuffle=False)
    assert rows.shape == (7, 50) and rows.min() >= 0 and rows.max() < VOCAB
    assert all(len(row.unique()) > 3 for row in rows[:3])
    assert len(rows[3:].unique()) == 1
    shuffled = random_sequences(VOCAB, 50, 30, 30)
    constant = (shuffled == shuffled[:, :1]).all(dim=1)
    assert constant.sum() == 30 and not constant[30:].all()


@pytest.mark.parametrize(
    'options',
    [{}, dict(use_gru=True), dict(hidden_size=7), dict(network_klass=lambda d, h: nn.RNN(d, h, batch_first=True))],
    ids=['lstm', 'gru', 'b11 another width', 'own'],
)
def test_the_generator_continues_what_it_was_given(options):
    model = SyntheticDataGenerator(16, VOCAB, max_seq_len=9, **options)
    seed, condition = torch.randint(0, VOCAB, (2, 3)), torch.randint(0, VOCAB, (2, 4))
    ids = torch.cat((seed, condition), dim=1)
    for _ in range(5):
        ids = torch.cat((ids, model(ids)[0][:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(model.generate(5, seed=seed, condition=condition), ids[:, -9:])
    assert model.generate(2, seed=seed).shape == (2, 5)
    drawn = model.generate(200, seed=seed, temperature=1e4)
    assert drawn.shape == (2, 9) and len(drawn.unique()) > 5


def test_b11_every_weight_matrix_is_scaled():
    largest = {'net.weight_ih_l0': [], 'net.weight_hh_l0': [], 'to_logits.weight': []}
    for _ in range(200):
        model = SyntheticDataGenerator(16, VOCAB)
        for name, found in largest.items():
            # entries are from U(-1/4, 1/4) before they are scaled, the largest of many is close to the end
            found.append(4 * model.get_parameter(name).abs().max().item())
    for name, found in largest.items():
        assert 0.4 < sum(found) / 200 < 0.65 and min(found) < 0.1 and 1.0 < max(found) < 1.1, name
    before = copy.deepcopy(model.state_dict())
    model.reset_()
    assert all((model.state_dict()[name] != t).any() for name, t in before.items())


def test_b10_the_buffer_is_renewed():
    generator = Sevens()
    model = build(generator)
    before = model.synth_data_buffer.clone()
    kept = AutoregressiveWrapper(model.model)
    trained = []
    model.ar_wrapped.forward = lambda x: trained.append(x) or kept(x)
    rows = map(torch.tensor, ([3, 4, 5], [6, 7, 8], [4, 9, 10, 11], [5, 4, 0]))
    model.random_rows = lambda size: next(rows)
    loss = model()
    after = model.synth_data_buffer
    (length, seeds, conditions), (batch,) = generator.given[0], trained
    assert length == 8 and seeds.shape == (3, 5) and conditions.shape == (3, 8)
    assert torch.equal(conditions, before[3:6]) and torch.equal(seeds, before[6:9, :5])
    # what was made stands in the place of the conditions; rows are reset after that
    assert (after[[3, 5]] == 7).all()
    others = [0, 1, 2, 6, 7, 8, *range(12, 20)]
    assert torch.equal(after[others], before[others])
    assert torch.equal(batch, after[[5, 4, 0]])
    assert_close(loss, kept(batch))


def test_half_of_the_reset_rows_repeat_one_id():
    model = build(Sevens(), num_reset=8)
    rows = map(torch.tensor, ([0, 1, 2], [3, 4, 5], [*range(8, 16)], [6, 7, 16]))
    model.random_rows = lambda size: next(rows)
    model()
    made = model.synth_data_buffer[8:16]
    constant = (made == made[:, :1]).all(dim=1)
    assert constant.sum() == 4 and len(made[constant].unique()) == 1
    assert all(len(row.unique()) > 2 for row in made[~constant])


def test_the_generator_is_drawn_anew_now_and_then():
    generator = Sevens()
    model = build(generator, reset_turing_machine_every=2)
    for _ in range(5):
        model()
    assert generator.resets == 2 and model.step == 5


def test_names():
    model = build()
    assert model.synth_data_buffer.shape == (20, 8) and model.step.shape == ()
    names = set(model.state_dict())
    assert {'synth_data_buffer', 'step', 'model.to_logits.weight', 'ar_wrapped.net.to_logits.weight'} <= names
    assert {'data_generator.embed.weight', 'data_generator.net.weight_hh_l0'} <= names
    constant = (model.synth_data_buffer == model.synth_data_buffer[:, :1]).all(dim=1)
    assert constant.sum() == 10


def test_the_buffer_may_stay_on_the_cpu():
    for stays in (False, True):
        model = build(keep_buffer_on_cpu=stays).to('meta')
        assert model.synth_data_buffer.device.type == ('cpu' if stays else 'meta')
        assert model.device.type == 'meta'


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(num_reset=3), '`num_reset` must be an even integer of at least 2, got 3'),
        (lambda: build(num_reset=30), '`num_reset` got 30, the buffer has 20'),
        (lambda: build(batch_size=30), '`batch_size` got 30'),
        (lambda: build(seq_len=30), '`seq_len` must be .*got 30'),
        (lambda: build(nn.Linear(2, 2), reset_turing_machine_every=1), '`reset_`'),
        (lambda: build(Sevens(9))(), '`data_generator` gave'),
        (lambda: SyntheticDataGenerator(4, 5, use_gru=True, network_klass=nn.RNN), '`use_gru`'),
        (lambda: SyntheticDataGenerator(4, 5).generate(3), '`seed`'),
        (lambda: SyntheticDataGenerator(4, 5).generate(-1, seed=torch.zeros(1, 1).long()), '`length`'),
        (
            lambda: SyntheticDataGenerator(4, 5).generate(1, torch.zeros(1, 1).long(), torch.zeros(2, 1).long()),
            '`condition` must ',
        ),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


@pytest.mark.slow
def test_it_learns_what_it_will_meet():
    """After training on synthetic rows alone, constant and periodic ones are foretold."""
    torch.manual_seed(0)
    model = build(buffer_size=64, num_reset=8, batch_size=16, seq_len=12)
    first = sum(model().item() for _ in range(10)) / 10
    fit(model.model, model, 300)
    last = sum(model().item() for _ in range(10)) / 10
    assert last < 0.6 * first
    ids = torch.arange(VOCAB)[:, None].expand(-1, 12)
    found = model.model(ids)[:, 4:-1].argmax(dim=-1)
    assert (found == ids[:, 5:]).float().mean() > 0.9

"""Recurrent models and the first attention: one step by hand, torch's own cells, and degenerate cases."""

import math

import example_scripts
import pytest
import torch
from oracles import assert_close, randn
from torch import nn

from x_transformers import Encoder, TransformerWrapper


@pytest.fixture(scope='module')
def old():
    with example_scripts.script('predecessors') as module:
        yield module


@pytest.fixture(autouse=True)
def _in_float64():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def softmaxed(scores):
    exps = [math.exp(float(torch.as_tensor(score).detach())) for score in scores]
    return [value / sum(exps) for value in exps]


def test_one_step_of_attention(old):
    s, h = randn(1, 3), randn(1, 4, 2)
    additive = old.AdditiveAttention(3, 2)
    w, u, v = additive.of_state.weight, additive.of_source.weight, additive.score.weight[0]
    by_hand = {'additive': [v @ torch.tanh(w @ s[0] + u @ at) for at in h[0]]}
    modules = {'additive': additive}
    for kind in ('general', 'concat', 'local'):
        modules[kind] = old.LuongAttention(3, 2, kind)
    for kind in ('general', 'local'):
        by_hand[kind] = [s[0] @ modules[kind].of_source.weight @ at for at in h[0]]
    concat = modules['concat']
    by_hand['concat'] = [
        concat.score.weight[0] @ torch.tanh(concat.joined.weight @ torch.cat((s[0], at))) for at in h[0]
    ]
    for kind, module in modules.items():
        weights = softmaxed(by_hand[kind])
        if kind == 'local':
            p = 4 * torch.sigmoid(module.place.weight[0] @ torch.tanh(module.of_place.weight @ s[0]))
            weights = [weight * torch.exp(-((j - p) ** 2) / (2 * 5.0**2)) for j, weight in enumerate(weights)]
        attended, got = module(s, h)
        assert_close(got[0], torch.stack([torch.as_tensor(weight) for weight in weights]), 1e-12)
        assert_close(attended[0], sum(weight * at for weight, at in zip(weights, h[0], strict=True)), 1e-12)
    dot = old.LuongAttention(2, 2, 'dot')
    assert_close(dot(h[:, 0], h)[1][0], torch.tensor(softmaxed([h[0, 0] @ at for at in h[0]])), 1e-12)


def test_a_wide_window_is_no_window(old):
    s, h, mask = randn(2, 4), randn(2, 6, 4), torch.arange(6) < torch.tensor([[6], [3]])
    local = old.LuongAttention(4, 4, 'local', window=1e9)
    plain = old.LuongAttention(4, 4, 'general')
    plain.of_source = local.of_source
    for given in (None, mask):
        for got, wanted in zip(local(s, h, given), plain(s, h, given), strict=True):
            assert_close(got, wanted, 1e-12)
    narrow = old.LuongAttention(4, 4, 'local', window=1.0)
    nn.init.zeros_(narrow.place.weight)  # the middle: at 3 of 6, at 1.5 of 3
    weights = narrow(s, h, mask)[1]
    assert (weights[0] > 0).tolist() == [False, False, True, True, True, False]
    assert (weights[1] > 0).tolist() == [False, True, True, False, False, False]


def test_the_cell_of_elman_is_torchs(old):
    cell, twin = old.ElmanCell(3, 5), nn.RNNCell(3, 5)
    names = dict(of_input='ih', of_state='hh')
    twin.load_state_dict(
        {
            f'{kind}_{names[layer]}': value
            for (layer, kind), value in ((key.split('.'), value) for key, value in cell.state_dict().items())
        }
    )
    x, h = randn(2, 3), randn(2, 5)
    assert_close(cell(x, h), twin(x, h), 1e-14)


@pytest.mark.parametrize('kind', ['elman', 'lstm', 'gru'])
def test_a_decoder_without_attention_is_the_layer_of_torch(old, kind):
    model = old.Seq2Seq(7, 6, kind)
    layer = old.KINDS[kind][0](6, 6, batch_first=True)
    cell = model.cells[0]
    if kind == 'elman':
        values = [cell.of_input.weight, cell.of_state.weight, cell.of_input.bias, cell.of_state.bias]
    else:
        values = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    with torch.no_grad():
        for weight, value in zip(layer.parameters(), values, strict=True):
            weight.copy_(value)
    src, tgt = torch.randint(0, 7, (2, 4)), torch.randint(0, 7, (2, 5))
    first = model.first(model.encoder(src)[:, -1]).tanh().unsqueeze(0)
    state = (first, torch.zeros_like(first)) if kind == 'lstm' else first
    assert_close(model(src, tgt), model.to_logits(layer(model.embed(tgt), state)[0]), 1e-12)


@pytest.mark.parametrize('attention', [None, 'additive', 'dot', 'general', 'concat', 'local'])
@pytest.mark.parametrize('rnn', ['elman', 'lstm', 'gru'])
def test_padding_and_steps(old, rnn, attention):
    """What was generated is what the teacher-forced model finds most probable; padding changes nothing."""
    for depth, both, reverse in ((1, False, True), (3, True, False)):
        model = old.Seq2Seq(7, 6, rnn, reverse, both, attention, depth)
        src, start = torch.randint(0, 7, (3, 5)), torch.tensor([1, 2, 3])
        mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
        made = model.generate(src, start, 4, mask)
        read = torch.cat((start[:, None], made[:, :-1]), dim=1)
        logits = model(src, read, mask)
        assert (logits.argmax(dim=-1) == made).all()
        for row, length in enumerate((5, 3, 1)):
            alone = model(src[row : row + 1, :length], read[row : row + 1])
            assert_close(logits[row : row + 1], alone, 1e-12)
        logits.square().sum().backward()
        assert all(weight.grad is not None for name, weight in model.named_parameters())


def test_attention_of_bahdanau_looks_with_the_state_before(old):
    model = old.Seq2Seq(7, 4, 'gru', attention='additive')
    src, token = torch.randint(0, 7, (2, 5)), torch.tensor([1, 2])
    h, state = model.begin(src)
    attended = model.attend(state[0][0], h)[0]
    s = model.cells[0](torch.cat((model.embed(token), attended), dim=-1), state[0][0])
    wanted = model.to_logits(model.merge(torch.cat((attended, s), dim=-1)).tanh())
    assert_close(model.step(token, h, None, state)[0], wanted, 1e-12)


def test_any_encoder(old):
    """The model of 2020 of Google Translate: a transformer reads, a recurrent network writes."""
    stack = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    encoder = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack, return_only_embed=True)
    model = old.RNNDecoderWrapper(encoder, num_tokens=7, dim=12, dim_source=16, attention='concat', depth=2)
    src, tgt = torch.randint(0, 9, (2, 8)), torch.randint(0, 7, (2, 3))
    mask = torch.arange(8) < torch.tensor([[8], [5]])
    assert_close(model(src, tgt, mask)[1:], model(src[1:, :5], tgt[1:]), 1e-10)


def test_one_step_of_lstmn(old):
    cell = old.LSTMNCell(3, 2)
    x, h, c, summary = randn(1, 3), randn(1, 4, 2), randn(1, 4, 2), randn(1, 2)
    scores = [
        cell.score.weight[0]
        @ torch.tanh(cell.of_past.weight @ at + cell.of_input.weight @ x[0] + cell.of_summary.weight @ summary[0])
        for at in h[0]
    ]
    weights = softmaxed(scores)
    mean_h, mean_c = (sum(weight * at for weight, at in zip(weights, past[0], strict=True)) for past in (h, c))
    i, f, o, new = (cell.gates.weight @ torch.cat((mean_h, x[0])) + cell.gates.bias).chunk(4)
    memory = f.sigmoid() * mean_c + i.sigmoid() * new.tanh()
    for got, wanted in zip(cell(x, h, c, summary), (o.sigmoid() * memory.tanh(), memory, mean_h), strict=True):
        assert_close(got[0], wanted, 1e-12)


def test_decomposable_attention(old):
    model = old.DecomposableAttention(4, 6, 3)
    a, b = randn(2, 5, 4), randn(2, 3, 4)
    order, other = torch.randperm(5), torch.randperm(3)
    assert_close(model(a[:, order], b[:, other]), model(a, b), 1e-12)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    assert_close(model(a, b, mask)[1:], model(a[1:, :2], b[1:]), 1e-12)
    assert_close(model(b, a, None, mask)[1:], model(b[1:], a[1:, :2]), 1e-12)
    f, g = model.attend(a[0]), model.attend(b[0])
    compared = torch.zeros(6)
    for i in range(5):
        aligned = sum(weight * at for weight, at in zip(softmaxed([f[i] @ g[j] for j in range(3)]), b[0], strict=True))
        compared = compared + model.compare(torch.cat((a[0, i], aligned)))
    back = torch.zeros(6)
    for j in range(3):
        aligned = sum(weight * at for weight, at in zip(softmaxed([f[i] @ g[j] for i in range(5)]), a[0], strict=True))
        back = back + model.compare(torch.cat((b[0, j], aligned)))
    assert_close(model(a, b)[0], model.aggregate(torch.cat((compared, back))), 1e-12)


def test_mixes_and_products(old):
    mix, layers = old.ScalarMix(3), [randn(2, 4) for _ in range(3)]
    with torch.no_grad():
        mix.gamma.fill_(2.5)
    assert_close(mix(layers), 2.5 * sum(layers) / 3, 1e-12)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 40.0, 0.0]))
    assert_close(mix(layers), 2.5 * layers[1], 1e-12)
    unit, x, y = old.MultiplicativeUnit(3, 4, 5), randn(2, 3), randn(2, 4)
    assert_close(unit(2 * x, y), 2 * unit(x, y), 1e-12)
    assert_close(unit(x, y), (x @ unit.left.weight.T) * (y @ unit.right.weight.T), 1e-12)


def test_elmo_reads_in_both_directions(old):
    elmo = old.ELMo(7, 4)
    ids, mask = torch.randint(0, 7, (2, 6)), torch.arange(6) < torch.tensor([[6], [4]])
    assert_close(elmo(ids, mask)[1:, :4], elmo(ids[1:, :4]), 1e-12)
    changed = ids.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 7
    for before, after in zip(elmo.layers(ids)[1:], elmo.layers(changed)[1:], strict=True):
        left, right = (
            (before - after).abs().amax(dim=(0, 2)) > 0
            for before, after in zip(before.chunk(2, -1), after.chunk(2, -1), strict=True)
        )
        assert left.tolist() == [False] * 3 + [True] * 3 and right.tolist() == [True] * 4 + [False] * 2
    last = elmo.layers(ids)[-1]
    loss = 0.0
    for row in range(2):
        for at in range(5):
            loss -= elmo.to_logits(last[row, at, :4]).log_softmax(-1)[ids[row, at + 1]] / 10
            loss -= elmo.to_logits(last[row, at + 1, 4:]).log_softmax(-1)[ids[row, at]] / 10
    assert_close(elmo.loss(ids), loss, 1e-12)


def test_what_cannot_be(old):
    s, h = randn(2, 4), randn(2, 5, 4)
    local, model = old.LuongAttention(4, 4, 'local'), old.Seq2Seq(7, 4, attention='dot')
    ids = torch.randint(0, 7, (2, 5))
    for call, message in (
        (lambda: local(s, h[:, :0]), 'the source has no tokens'),
        (lambda: local(s, h, torch.ones(2, 4, dtype=torch.bool)), r'`mask` got .* shape \(2, 4\), it must be bool'),
        (lambda: local(s, h, torch.zeros(2, 5, dtype=torch.bool)), 'first tokens of each row, one at least'),
        (lambda: model(ids, ids, torch.tensor([[True] * 5, [False] + [True] * 4])), 'padding behind them'),
        (lambda: old.LuongAttention(4, 4, 'cosine'), "`score` got 'cosine', it must be one of 'dot', 'general'"),
        (lambda: old.LuongAttention(4, 5, 'dot'), 'needs equal widths, it got 4 and 5'),
        (lambda: old.Seq2Seq(7, 4, 'rwkv'), "`rnn` got 'rwkv', it must be one of 'elman'"),
        (lambda: old.Seq2Seq(7, 4, attention='soft'), "`attention` got 'soft'"),
        (lambda: old.Seq2Seq(7, 5, bidirectional=True), '`dim` got 5, it must be even'),
        (lambda: old.ScalarMix(3)([s]), '`layers` got 1, it must be 3'),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_attention_writes_long_strings_backwards(old, capsys):
    torch.set_default_dtype(torch.float32)

    def share(*argv):
        args = old.read_arguments([*argv])
        return old.right(old.train(args), args)

    assert share() >= 0.95
    assert share('--attention', 'none', '--length', '4') >= 0.8 and share('--attention', 'none') <= 0.6
    copy = ('--attention', 'none', '--task', 'copy')
    assert share(*copy, '--reverse-source') > 0.15 + share(*copy)
    assert old.main(['--steps', '2', '--length', '3', '--dim', '8']) == 0
    assert 'of the letters of new strings are right' in capsys.readouterr().out

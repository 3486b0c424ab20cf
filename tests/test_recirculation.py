"""Reading every token twice, against a plain stack that keeps its keys and values in lists."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from training_laws import DIM, VOCAB, fit, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.recirculation import Recirculation, RecirculationMixer, norm_matched

DEPTH = 3


def deep_net(kind=Decoder, model=None, **stack):
    return net_of(kind, {'depth': DEPTH, 'rotary_pos_emb': False, **stack}, max_seq_len=16, **(model or {}))


def model_of(source=2, destination=0, net=None, **options):
    return randomised(Recirculation(deep_net(**(net or {})), source, destination, **options), scale=0.4)


def by_hand(model, row, pairs=((2, 0),), alphas=(0.15,), betas=(None,), ramp=10, learned=False):
    """The logits of one row, token by token."""
    net, stack = model.net, model.net.attn_layers
    blocks = list(zip(stack.layers[::2], stack.layers[1::2], strict=True))
    past = [([], []) for _ in blocks]
    found = []

    def read(x, mixed, keep):
        entered = []
        for number, ((norms, attn, _), (ff_norms, ff, _)) in enumerate(blocks):
            entered.append(x)
            told = norms[0](mixed.get(number, x))
            q, k, v = (to(told).view(2, 8) for to in (attn.to_q, attn.to_k, attn.to_v))
            keys, values = torch.stack([*past[number][0], k]), torch.stack([*past[number][1], v])
            weights = torch.einsum('hd,nhd->hn', q, keys).div(8**0.5).softmax(dim=-1)
            x = x + attn.to_out(torch.einsum('hn,nhd->hd', weights, values).flatten())
            x = x + ff(ff_norms[0](x)[None, None])[0, 0]
            if keep:
                past[number][0].append(k)
                past[number][1].append(v)
        return net.to_logits(stack.final_norm(x)), entered

    for at, token in enumerate(row):
        x = net.token_emb(token) + net.pos_emb.emb.weight[at] * DIM**-0.5
        logits, z = read(x, {}, False)
        mixed = {}
        for number, ((src, dst), alpha, beta) in enumerate(zip(pairs, alphas, betas, strict=True)):
            weight = alpha * (1.0 if ramp == 0 else min(at / ramp, 1.0))
            rest = 1 - weight if beta is None else beta
            if learned:
                weight, rest = model.learned_mixers[number](z[src], z[dst])
            mixed[dst] = weight * z[src] * z[dst].norm() / z[src].norm() + rest * z[dst]
        read(x, mixed, True)
        found.append(logits)
    return torch.stack(found)


@pytest.mark.parametrize(
    'given, plain',
    [
        ({}, {}),
        (dict(alpha=0.5, ramp_steps=3), dict(alphas=(0.5,), ramp=3)),
        (dict(alpha=0.5, ramp_steps=0, beta=0.7), dict(alphas=(0.5,), ramp=0, betas=(0.7,))),
        (
            dict(source=(2, 1), destination=(1, 0), alpha=(0.3, 0.6), beta=(0.5, 0.9), ramp_steps=2),
            dict(pairs=((2, 1), (1, 0)), alphas=(0.3, 0.6), betas=(0.5, 0.9), ramp=2),
        ),
        (dict(source=2, destination=1, use_learned=True), dict(pairs=((2, 1),), learned=True)),
    ],
    ids=['as is', 'ramp', 'no ramp', 'two pairs', 'learned'],
)
def test_the_logits(given, plain):
    model, ids = model_of(**given), ids_of(2, 7)
    wanted = torch.stack([by_hand(model, row, **plain) for row in ids])
    assert_close(model(ids), wanted)
    assert (wanted - model.net(ids)).abs().max() > 1e-3


STACKS = {
    'absolute': {},
    'rotary': dict(rotary_pos_emb=True),
    'alibi': dict(alibi_pos_bias=True),
    'post-norm': dict(pre_norm=False),
    'one key head': dict(rotary_pos_emb=True, attn_one_kv_head=True),
    'streams': dict(num_residual_streams=2),
    'memory tokens': dict(rotary_pos_emb=True, model=dict(num_memory_tokens=2)),
    'memory keys': dict(rotary_pos_emb=True, attn_num_mem_kv=2),
    'shifted tokens': dict(rotary_pos_emb=True, shift_tokens=1),
    'input joins again': dict(reinject_input=True),
    'layers integrated': dict(integrate_layers=True),
    'three views of streams': dict(num_residual_streams=2, qkv_receive_diff_residuals=True),
}


@pytest.mark.parametrize('kind', STACKS)
def test_without_weight_it_is_the_net(kind):
    model, ids = model_of(net=STACKS[kind], alpha=0.0), ids_of(2, 7)
    assert_close(model(ids), model.net(ids))


def test_a_pass_in_the_middle_of_another():
    """As another thread may run one: nothing of a reading lies in the modules that both use."""
    model, ids, other = model_of(alpha=0.5, ramp_steps=0), ids_of(2, 4), ids_of(3, 5, seed=1)
    wanted, plain, twice = model(ids), model.net(other), model(other)
    between = []

    def interrupt(*_):
        handle.remove()
        between.extend((model.net(other), model(other)))

    handle = model.net.attn_layers.layers[2][1].register_forward_hook(interrupt)
    assert_close(model(ids), wanted)
    assert_close(between[0], plain)
    assert_close(between[1], twice)


@pytest.mark.parametrize('kind', STACKS)
def test_in_pieces_as_at_once(kind):
    model, ids = model_of(net=STACKS[kind], alpha=0.5, ramp_steps=2), ids_of(2, 7)
    whole = model(ids)
    with torch.no_grad():
        first, cache = model(ids[:, :3], return_intermediates=True)
        # twice from the same cache: the first continuation leaves no trace
        other, _ = model(ids_of(2, 7, seed=1), cache=cache, return_intermediates=True)
        second, cache = model(ids[:, :5], cache=cache, return_intermediates=True)
        third = model(ids[:, 5:], cache=cache, input_not_include_cache=True)
    assert other.shape == (2, 4, VOCAB)
    assert_close(torch.cat((first, second, third), dim=1), whole)
    assert_close(cache.logits, second)


def test_the_first_reading_leaves_its_room_to_the_second():
    """Only the keys of the second stay, in the memory that was allocated for them."""
    model, ids = model_of(), ids_of(2, 9)
    with torch.no_grad():
        _, trace = model(ids[:, :5], return_intermediates=True)
        storages = [layer.buffers[0].storage for layer in trace.cache.layers]
        filled = storages[0].filled
        assert storages[0].tensor.shape[-2] > filled  # there is room
        _, after = model(ids[:, :6], cache=trace.cache, return_intermediates=True)
    assert all(layer.buffers[0].storage is own for layer, own in zip(after.cache.layers, storages, strict=True))
    assert storages[0].filled == filled + 1


@pytest.mark.parametrize('kind', ['absolute', 'rotary', 'streams'])
@pytest.mark.parametrize('alpha', [0.5, 0.0])
def test_rows_padded_on_the_left_are_as_alone(kind, alpha):
    model, ids = model_of(net=STACKS[kind], alpha=alpha, ramp_steps=3), ids_of(2, 7)
    pads = torch.tensor([0, 3])
    out = model(ids, seq_start_pos=pads)
    assert_close(out[0], model(ids[:1])[0])
    assert_close(out[1, 3:], model(ids[1:, 3:])[0])


def test_masked_tokens_do_not_matter():
    model, ids = model_of(alpha=0.5, ramp_steps=0), ids_of(2, 7)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 2] = mask[1, 5:] = False
    changed = ids.masked_fill(~mask, 3)
    one, other = model(ids, mask=mask), model(changed, mask=mask)
    assert_close(one[mask], other[mask])
    assert (one - model(ids))[0, 3:].abs().max() > 1e-4


@pytest.mark.costly
@pytest.mark.parametrize('kind', ['absolute', 'rotary', 'memory tokens'])
def test_it_takes_the_place_of_a_net(kind):
    model, prompts = model_of(net=STACKS[kind], alpha=0.5, ramp_steps=2), ids_of(2, 3)
    wrapper = AutoregressiveWrapper(model)
    ids = prompts
    for _ in range(5):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(dim=-1)), dim=1)
    for cache_kv in (True, False):
        found = wrapper.generate(prompts, 5, temperature=0.0, cache_kv=cache_kv)
        assert torch.equal(found, ids[:, 3:]) and len(found.unique()) > 2
    loss = wrapper(ids)
    assert_close(loss, F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    if kind == 'memory tokens':
        return
    unequal = wrapper.generate([prompts[0], prompts[1, 1:]], 4, temperature=0.0)
    assert torch.equal(unequal[1], wrapper.generate(prompts[1, 1:], 4, temperature=0.0))


def test_weights_of_a_new_mixer():
    mixer = RecirculationMixer(DIM, 5)
    alpha, beta = mixer(torch.randn(400, DIM), torch.randn(400, DIM))
    assert (alpha - 0.1).abs().max() < 0.1 and (beta - 0.9).abs().max() < 0.1
    assert mixer.mlp[0].weight.shape == (5, 2 * DIM) and mixer.mlp[4].weight.shape == (2 * DIM, 5)
    assert_close(norm_matched(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])), torch.tensor([1.2, 1.6]))
    assert norm_matched(torch.zeros(2), torch.ones(2)).isfinite().all()


@pytest.mark.parametrize('token', [0, 1])
def test_b14_learning_counts_every_token(token):
    """Targets with id 0 are targets too."""
    model = model_of(use_learned=True)
    before = {name: p.clone() for name, p in model.named_parameters()}
    ids = torch.full((4, 5), token)
    loss = model.loss(ids)
    assert_close(loss, F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
    model.train()
    last = model.learn_parameters(ids, steps=3, batch_size=2, optimizer_kwargs=dict(lr=0.01))
    assert isinstance(last, float) and last > 0 and model.training
    for name, parameter in model.named_parameters():
        assert (parameter != before[name]).any() == name.startswith('learned_mixers'), name
        assert parameter.grad is None


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: model_of(net=dict(kind=Encoder)), 'causal'),
        (lambda: model_of(1, 2), r'`destination_layer` must .*got 2'),
        (lambda: model_of(1, 1), r'`destination_layer` must .*got 1'),
        (lambda: model_of(3, 1), '`source_layer` got 3'),
        (
            lambda: model_of(-1, 0),
            '`source_layer` must be an integer of at least 0 or a tuple',
        ),
        (lambda: model_of((2, 1), 0), 'one layer per `source_layer`, 2, got 1'),
        (lambda: model_of((2, 1), (0, 0)), 'once'),
        (lambda: model_of(2, 0, alpha=(0.1, 0.2)), '`alpha`'),
        (lambda: model_of(2, 0, net=dict(attn_selective=True)), 'must be able to cache keys'),
        (lambda: model_of(2, 0, net=dict(weight_tie_layers=True)), 'must run each layer once'),
        (lambda: model_of()(ids_of(2, 3), prepend_embeds=torch.zeros(2, 1, DIM)), '`prepend_embeds`'),
        (lambda: model_of()(ids_of(2, 3), mask=torch.ones(2, 2).bool()), '`mask`'),
        (lambda: model_of()(torch.randn(2, 3)), '`x`'),
        (
            lambda: model_of(net=STACKS['memory tokens'])(ids_of(2, 3), seq_start_pos=torch.tensor([0, 2])),
            '`num_memory_tokens`',
        ),
        (lambda: model_of().learn_parameters(ids_of(2, 3)), '`use_learned=True`'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_names():
    names = set(model_of(use_learned=True, learned_hidden=5).state_dict())
    assert {'net.to_logits.weight', 'attn_layers.layers.0.1.to_q.weight', 'learned_mixers.0.mlp.4.bias'} <= names


@pytest.mark.slow
def test_mixers_learn_for_a_net_that_stays_as_it_is():
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(1, 4, (b, 1))
        return (start + step * torch.arange(8)) % VOCAB

    model = Recirculation(deep_net(rotary_pos_emb=True), 2, 0, use_learned=True)
    plain = AutoregressiveWrapper(model.net)
    fit(plain, lambda: plain(rows(32)), 250)
    ids = rows(64)
    first = model.loss(ids).item()
    model.learn_parameters(rows(128), steps=40, batch_size=16, optimizer_kwargs=dict(lr=0.01))
    assert model.loss(ids) < first
    out = AutoregressiveWrapper(model).generate(ids[:, :2], 6, temperature=0.0)
    assert (out == ids[:, 2:]).float().mean() > 0.9

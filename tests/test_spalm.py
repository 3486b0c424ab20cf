"""SPALM: tokens that a datastore has found join the output of a net through a gate."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
from oracles import assert_close
from torch import nn
from training_laws import DIM, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Decoder, KNNDatastore, SPALMWrapper, XLAutoregressiveWrapper
from x_transformers.flags import ConfigError


def built(k=4, net=None, key_at='ff_input', model=None, **options):
    """A model with a gate that has learned something, and its datastore."""
    net = net_of(tie_embedding=True, max_mem_len=6, **options).double().eval() if net is None else net
    store = KNNDatastore(DIM, 1000, dtype='float32', block=7)
    store.build(net, [ids_of(2, 9, seed=seed) for seed in range(3)], key_at=key_at)
    made = SPALMWrapper(net, store, k, **(model or {})).eval()
    with torch.no_grad():
        made.gate.weight.copy_(torch.randn(1, DIM, generator=torch.Generator().manual_seed(5)))
    return made


def formula(model, x, k):
    """The paper's formula, for one token after the other."""
    net, store, seen = model.net, model.datastore, []
    handle = net.attn_layers.layers[-1][1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    h = net(x, return_embeddings=True)
    handle.remove()
    keys, values = store.read(torch.arange(len(store)))
    table, scale = net.token_emb.emb.weight, net.to_logits.scale
    rows = []
    for row in range(x.shape[0]):
        for place in range(x.shape[1]):
            distances = (keys.double() - seen[0][row, place]).square().sum(-1)
            tokens = values[distances.argsort()[:k]]
            own = h[row, place]
            weights = torch.stack([scale * table[token] @ own for token in tokens]).softmax(0)
            m = sum(weight * table[token] for weight, token in zip(weights, tokens, strict=True))
            g = (model.gate.weight[0] @ own + model.gate.bias[0]).sigmoid()
            rows.append(scale * table @ ((1 - g) * m + g * own))
    return torch.stack(rows).view(*x.shape, -1)


@pytest.mark.parametrize('scale', [None, 0.7])
@pytest.mark.parametrize('k', [1, 4, 48])
def test_logits_are_those_of_the_formula(k, scale):
    model, x = built(k, tie_embedding_scale=scale), ids_of(2, 6, seed=9)
    assert_close(model(x), formula(model, x, k))


def test_an_open_gate_is_the_net_and_a_closed_one_the_only_neighbour():
    model, x = built(1), ids_of(2, 6, seed=9)
    nn.init.zeros_(model.gate.weight)
    model.gate.bias.data.fill_(40.0)
    assert_close(model(x), model.net(x))
    model.gate.bias.data.fill_(-40.0)
    token = model.retrieve(x)[..., 0]
    assert_close(model(x), model.net.to_logits(model.net.token_emb.emb(token)))


def test_the_gate_is_half_open_at_first_and_names_are_its_own():
    net = built().net
    store = KNNDatastore(DIM, 100, dtype='float32').build(net, [ids_of(2, 9)])
    for start, gate in ((0.0, 0.5), (2.0, torch.tensor(2.0).sigmoid().item())):
        model = SPALMWrapper(net, store, gate_init=start)
        assert model.gate.weight.count_nonzero() == 0 and model.gate.bias.sigmoid().item() == pytest.approx(gate)
    names = {'gate.weight': (1, DIM), 'gate.bias': (1,)}
    own = {name: tuple(t.shape) for name, t in model.state_dict().items() if not name.startswith('net.')}
    assert own == names and model.k == 4


def test_gradients_reach_the_table_through_what_was_found():
    model, x = built(), ids_of(2, 6, seed=9)
    before = model.datastore.read(torch.arange(48))[0]
    tokens = model.retrieve(x)
    h = model.net(x, return_embeddings=True).detach()
    z = model.joined(h, tokens)
    z.sum().backward()
    table = model.net.token_emb.emb.weight
    rows = table.grad.abs().sum(-1)
    assert set(rows.nonzero().flatten().tolist()) == set(tokens.unique().tolist())  # of the others, none
    model.zero_grad()
    AutoregressiveWrapper(model)(x).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert torch.equal(model.datastore.read(torch.arange(48))[0], before)


def test_derivatives():
    model, x = built(), ids_of(1, 4, seed=9)
    tokens = model.retrieve(x)
    h = model.net(x, return_embeddings=True).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda h: model.joined(h, tokens), h)


# as a net


@pytest.mark.parametrize('key_at', ['ff_input', 'output'])
def test_generation_with_a_cache_is_that_without(key_at):
    model, prompts = built(key_at=key_at), ids_of(3, 4, seed=5)
    ids = prompts
    for _ in range(5):
        with torch.no_grad():
            ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    for options in ({}, dict(cache_kv=False)):
        assert torch.equal(model.generate(prompts, 5, temperature=0.0, **options), ids[:, 4:])
    lens = torch.tensor([2, 4, 3])
    found = model.generate(prompts, 3, temperature=0.0, prompt_lens=lens)
    for row, length in enumerate(lens.tolist()):
        assert torch.equal(found[row : row + 1], model.generate(prompts[row : row + 1, :length], 3, temperature=0.0))
    _, intermediates = model(ids[:, :6], return_intermediates=True)
    assert_close(model(ids[:, 6:], cache=intermediates, input_not_include_cache=True), model(ids)[:, 6:])
    assert_close(model(ids, logits_to_keep=2), model(ids)[:, -2:])


@pytest.mark.parametrize('options', [{}, dict(num_memory_tokens=3)], ids=str)
def test_padding_on_either_side_changes_nothing_and_is_not_looked_up(options, monkeypatch):
    model, x = built(**options), ids_of(2, 9, seed=4)
    expected, looked_up = model(x[:, :6]), []
    search = KNNDatastore.search
    monkeypatch.setattr(
        KNNDatastore, 'search', lambda self, q, *rest: looked_up.append(len(q)) or search(self, q, *rest)
    )
    mask = (torch.arange(9) < 6).expand(2, -1)
    assert_close(model(x, mask=mask)[:, :6], expected)
    left = torch.cat((ids_of(2, 3, seed=8), x[:, :6]), dim=1)
    assert_close(model(left, seq_start_pos=torch.tensor([3, 3]))[:, 3:], expected)
    assert looked_up == [12, 12] and (model.retrieve(x, mask=mask)[:, 6:] == -1).all()
    assert_close(model(x[1:, :6]), expected[1:])


def test_what_was_found_before_is_as_good(monkeypatch):
    model, x = built(), ids_of(2, 6, seed=9)
    expected, tokens = model(x), model.retrieve(x)
    monkeypatch.setattr(KNNDatastore, 'search', None)
    assert_close(model(x, neighbours=tokens), expected)
    assert_close(model(x, neighbours=tokens, logits_to_keep=2), expected[:, -2:])
    assert_close(model(x, neighbours=torch.full_like(tokens, -1)), model.net(x))  # none


def test_own_entries_are_left_out():
    model, x = built(1), ids_of(2, 9)  # the first batch of the store
    own = (8 * torch.arange(2)[:, None] + torch.arange(9)).masked_fill(torch.arange(9) == 8, -1).unsqueeze(-1)
    assert torch.equal(model.retrieve(x)[:, :-1, 0], x[:, 1:])
    assert not torch.equal(model.retrieve(x, own)[:, :-1, 0], x[:, 1:])
    assert_close(model(x, exclude=own), model(x, neighbours=model.retrieve(x, own)))


def test_a_frozen_model_finds_for_one_that_learns():
    model, x = built(), ids_of(2, 9, seed=7)
    frozen = copy.deepcopy(model.net)
    two = SPALMWrapper(model.net, model.datastore, key_net=frozen)
    two.gate.load_state_dict(model.gate.state_dict())
    assert_close(two(x), model(x))
    tokens = two.retrieve(x)
    optimizer = torch.optim.Adam(two.parameters(), 1e-2)
    AutoregressiveWrapper(two)(x).backward()
    optimizer.step()
    assert all(p.grad is None for p in frozen.parameters())
    assert torch.equal(two.retrieve(x), tokens)
    model.gate.load_state_dict(two.gate.state_dict())
    assert_close(two(x), model(x, neighbours=tokens))  # of which the net is a part, and was trained
    greedy = two.generate(x[:, :4], 4, temperature=0.0)
    ids = x[:, :4]
    for _ in range(4):
        ids = torch.cat((ids, two(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(greedy, ids[:, 4:])
    with pytest.raises(ConfigError, match='`datastore` holds keys of another model'):
        model(x)


def test_segments_with_memories():
    model, x = built(), ids_of(2, 12, seed=3)
    first, mems = model(x[:, :6], return_mems=True)
    # the memory holds all of the past, and neighbours are looked up by what is read with it
    assert_close(torch.cat((first, model(x[:, 6:], mems=mems)), dim=1), model(x))
    assert XLAutoregressiveWrapper(model)(x).isfinite()


def test_copies_and_half_precision():
    model, x = built(), ids_of(2, 6, seed=9)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
    net = net_of(tie_embedding=True, max_mem_len=6).bfloat16().eval()
    half = built(net=net)
    assert half.gate.weight.dtype == half(x).dtype == torch.bfloat16 and half(x).isfinite().all()


@pytest.mark.slow
def test_the_net_and_the_gate_are_graphs():
    model, x = built(), ids_of(2, 6, seed=9)
    h, tokens = model.net(x, return_embeddings=True).detach(), model.retrieve(x)
    torch._dynamo.reset()
    with torch.no_grad():
        joined = torch.compile(model.joined, fullgraph=True, backend='eager')
        assert_close(joined(h, tokens), model.joined(h, tokens))
        assert_close(torch.compile(model, backend='eager')(x), model(x))


# refusals


def test_what_does_not_fit_is_refused():
    model = built()
    net, store = model.net, model.datastore
    for wanted, options in {
        '`net` must have `tie_embedding=True`': dict(net=net_of(max_mem_len=6)),
        '`net` must have memories, `max_mem_len`, unless `need_memory=False`': dict(net=net_of(tie_embedding=True)),
        '`net` has `logits_softclamp`': dict(net=net_of(tie_embedding=True, max_mem_len=6, logits_softclamp=9.0)),
        '`datastore` holds keys of another model': dict(net=net_of(tie_embedding=True, max_mem_len=6)),
        '`datastore` does not say whose keys': dict(datastore=KNNDatastore(DIM, 9)),
        '`k` must be at most the number of entries of `datastore`, 48, got 49': dict(k=49),
        '`k` must be an integer of at least 1, got 0': dict(k=0),
        '`gate_init` must be a number, got .a.': dict(gate_init='a'),
    }.items():
        with pytest.raises(ConfigError, match=wanted):
            SPALMWrapper(**dict(net=net, datastore=store) | options)
    x = ids_of(2, 6)
    for wanted, options in {
        '`document_ids` cannot be combined with `datastore`': dict(document_ids=torch.zeros(2, 6).long()),
        r'`neighbours` must be .*got torch.int64 of shape \(2, 6\)': dict(neighbours=torch.zeros(2, 6).long()),
        r'`neighbours` must be .*got torch.float32 of shape \(2, 6, 4\)': dict(neighbours=torch.zeros(2, 6, 4)),
        r'`exclude` must be .*got torch.int64 of shape \(1, 6, 1\)': dict(exclude=torch.zeros(1, 6, 1).long()),
        '`return_attn` cannot be combined with `datastore`': dict(return_attn=True),
    }.items():
        with pytest.raises(ValueError, match=wanted):
            model(x, **options)
    plain = net_of(tie_embedding=True).double()
    store = KNNDatastore(DIM, 99).build(plain, [ids_of(2, 9)])
    assert SPALMWrapper(plain, store, need_memory=False)(x).shape == (2, 6, 11)


@pytest.mark.slow
def test_a_text_that_was_never_learned_is_known_from_the_datastore():
    """A model of one chain; only the datastore knows the other, and only the gate learns how far to trust it."""
    torch.manual_seed(0)
    tasks = [toy_tasks.markov(n=32, which=which) for which in (0, 1)]
    around = dict(tie_embedding=True, logits_dim=None, max_mem_len=32)
    net = toy_tasks.net_for(tasks[0], Decoder, around, rotary_pos_emb=True, verbose=False)
    toy_tasks.learned(net, tasks[0], steps=150)
    net.eval().requires_grad_(False)
    store = KNNDatastore(48, 60_000, dtype='float32').build(net, (tasks[1].draw(64)[0] for _ in range(10)))
    model = SPALMWrapper(net, store, k=8)
    held_out = tasks[1].draw(32)[0]

    def loss(one):
        with torch.no_grad():
            return AutoregressiveWrapper(one)(held_out).item()

    base = loss(net)
    optimizer = torch.optim.Adam(model.gate.parameters(), 3e-2)
    for _ in range(20):
        optimizer.zero_grad()
        AutoregressiveWrapper(model)(tasks[1].draw(32)[0]).backward()
        optimizer.step()
    assert loss(model) < 0.95 * base
    assert F.sigmoid(model.gate.bias).item() < 0.5

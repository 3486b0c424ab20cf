"""kNN-LM: its distribution is that of the paper's formula, it generates as models do, and knows whose store it has."""

import copy
import json
import math
import pickle

import pytest
import torch
import toy_tasks
from oracles import assert_close, randn
from training_laws import DIM, VOCAB, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, KNNDatastore, KNNLMWrapper
from x_transformers.flags import ConfigError
from x_transformers.memory.knn_lm import golden_section, kernel_log_probs, mix_log_probs
from x_transformers.memory.search import Neighbours


def built(net=None, path=None, dtype='float32', seeds=(0, 1, 2), **options):
    net = net_of().double().eval() if net is None else net
    store = KNNDatastore(DIM, 1000, path, dtype, block=7)
    return net, store.build(net, [ids_of(2, 9, seed=seed) for seed in seeds], **options)


def formula(net, store, x, k, lam, temperature, exclude=None):
    """The paper's formula, for one token after the other."""
    seen = []
    handle = net.attn_layers.layers[-1][1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    lm = net(x).softmax(-1)
    handle.remove()
    keys, values = store.read(torch.arange(len(store)))
    out = torch.zeros_like(lm)
    for row in range(x.shape[0]):
        for place in range(x.shape[1]):
            left_out = () if exclude is None else exclude[row, place].tolist()
            entries = [
                ((seen[0][row, place] - keys[at].double()).square().sum().item(), values[at].item())
                for at in range(len(store))
                if at not in left_out
            ]
            nearest = sorted(entries)[:k]
            total = sum(math.exp(-distance / temperature) for distance, _ in nearest)
            out[row, place] = (1 - lam) * lm[row, place]
            for distance, value in nearest:
                out[row, place, value] += lam * math.exp(-distance / temperature) / total
    return out


def test_kernel_by_hand():
    """Three keys in the plane: distances 1, 4 and 9 from the query, tokens 2, 0 and 2."""
    store = KNNDatastore(2, 3, dtype='float32')
    store.add(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]), torch.tensor([2, 0, 2]))
    for temperature in (1.0, 2.0):
        a, b, c = (math.exp(-d / temperature) for d in (1, 4, 9))
        found = store.search(torch.zeros(2).double(), 3)
        expected = torch.tensor([b, 0, a + c, 0], dtype=torch.double) / (a + b + c)
        assert_close(kernel_log_probs(found, temperature, 4).exp(), expected)
        assert kernel_log_probs(found, temperature, 4)[1].isneginf()
        first = store.search(torch.zeros(2).double(), 2)
        assert_close(kernel_log_probs(first, temperature, 4).exp()[2], torch.tensor(a / (a + b), dtype=torch.double))


@pytest.mark.parametrize('k, temperature', [(1, 1.0), (5, 0.3), (20, 7.0), (48, 2.0)])
def test_probabilities_are_those_of_the_formula(k, temperature):
    net, store = built()
    x = ids_of(2, 6, seed=9)
    for lam in (0.0, 0.25, 1.0):
        found = KNNLMWrapper(net, store, k, lam, temperature).log_probs(x)
        assert_close(found.exp(), formula(net, store, x, k, lam, temperature))
        assert_close(found.exp().sum(-1), torch.ones(2, 6).double())
    if k < len(store):  # what lies farther counts, too
        assert not torch.allclose(KNNLMWrapper(net, store, 48, 1.0, temperature).log_probs(x), found)


def test_no_share_is_the_net_and_looks_nothing_up(monkeypatch):
    net, store = built()
    monkeypatch.setattr(KNNDatastore, 'search', None)
    x = ids_of(2, 6)
    assert torch.equal(KNNLMWrapper(net, store, 3, 0.0).log_probs(x), net(x).log_softmax(-1).detach())


def test_equal_keys_count_as_often_as_they_are_there():
    net, once = built(seeds=(0,))
    _, twice = built(net, seeds=(0, 1, 0))
    x = ids_of(2, 9)
    expected = formula(net, twice, x, 48, 1.0, 1.0)
    assert_close(KNNLMWrapper(net, twice, 48, 1.0).log_probs(x).exp(), expected)
    weights = Neighbours(torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([[3, 3, 1]]), torch.arange(3)[None])
    e = math.exp(-1)
    assert_close(
        kernel_log_probs(weights, 1.0, 4).exp(), torch.tensor([[0, e / (2 + e), 0, 2 / (2 + e)]]), tolerance=1e-6
    )
    assert len(once) == 16


def test_a_text_that_was_stored_is_scored_without_its_own_entries():
    net, store = built()
    x = ids_of(2, 9)  # the first batch of the store: entry 8 row + place
    own = (8 * torch.arange(2)[:, None] + torch.arange(9)).masked_fill(torch.arange(9) == 8, -1).unsqueeze(-1)
    model = KNNLMWrapper(net, store, 3, 1.0)
    found = model.log_probs(x, exclude=own)
    assert_close(found.exp(), formula(net, store, x, 3, 1.0, 1.0, own))
    told = model.log_probs(x)[:, :-1].gather(-1, x[:, 1:, None])
    assert told.mean() > found[:, :-1].gather(-1, x[:, 1:, None]).clamp(min=-30).mean()
    everything = torch.arange(48).expand(2, 9, 48)
    assert_close(model.log_probs(x, exclude=everything), net(x).log_softmax(-1))  # nothing is found


def test_far_neighbours_lose_no_probability():
    """exp(-distance) of all of them is 0 in single precision."""
    found = Neighbours(torch.tensor([[500.0, 501.0, 9000.0]]), torch.tensor([[0, 1, 2]]), torch.arange(3)[None])
    got = kernel_log_probs(found, 1.0, 3)
    assert_close(got, torch.tensor([[0.0, -1.0, -8500.0]]) - math.log1p(math.exp(-1)), tolerance=1e-5)


# as a net


@pytest.mark.parametrize('options', [{}, dict(num_memory_tokens=3), dict(stack=dict(shift_tokens=1))], ids=str)
def test_padding_on_either_side_changes_nothing(options):
    net, store = built(net_of(**options).double().eval())
    model, x = KNNLMWrapper(net, store, 5), ids_of(2, 9, seed=4)
    expected = model.log_probs(x[:, :6])
    right = torch.cat((x[:, :6], ids_of(2, 3, seed=8)), dim=1)
    mask = (torch.arange(9) < 6).expand(2, -1)
    assert_close(model.log_probs(right, mask=mask)[:, :6], expected)
    left = torch.cat((ids_of(2, 3, seed=8), x[:, :6]), dim=1)
    assert_close(model.log_probs(left, seq_start_pos=torch.tensor([3, 3]))[:, 3:], expected)
    assert_close(model.log_probs(x[1:, :6]), expected[1:])


@pytest.mark.parametrize('key_at', ['ff_input', 'output'])
def test_generation_with_a_cache_is_that_without(key_at):
    net, store = built(key_at=key_at)
    model, prompts = KNNLMWrapper(net, store, 5, 0.6, key_at=key_at), ids_of(3, 4, seed=5)
    ids = prompts
    for _ in range(5):
        ids = torch.cat((ids, model.log_probs(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    for options in ({}, dict(cache_kv=False)):
        assert torch.equal(model.generate(prompts, 5, temperature=0.0, **options), ids[:, 4:])
    alone = AutoregressiveWrapper(net).generate(prompts, 5, temperature=0.0)
    assert not torch.equal(alone, ids[:, 4:])
    wrapper, whole = AutoregressiveWrapper(model), model.log_probs(ids)
    assert torch.equal(wrapper.beam_search(prompts, 5, beams=1), ids[:, 4:])
    assert torch.equal(wrapper.speculative(prompts, 5, temperature=0.0), ids[:, 4:])
    lens = torch.tensor([2, 4, 3])
    found = wrapper.generate(prompts, 3, temperature=0.0, prompt_lens=lens)
    for row, length in enumerate(lens.tolist()):
        assert torch.equal(found[row : row + 1], model.generate(prompts[row : row + 1, :length], 3, temperature=0.0))
    _, intermediates = model(ids[:, :6], return_intermediates=True)
    for more in (dict(x=ids[:, 6:], input_not_include_cache=True), dict(x=ids)):
        assert_close(model(cache=intermediates, **more)[:, -3:], whole[:, -3:])


def test_the_loss_is_that_of_the_mixture():
    net, store = built()
    model, x = KNNLMWrapper(net, store, 5), ids_of(2, 9, seed=4)
    expected = -formula(net, store, x, 5, 0.25, 1.0)[:, :-1].gather(-1, x[:, 1:, None]).log().mean()
    assert_close(AutoregressiveWrapper(model)(x), expected)


def test_memories_and_documents_go_to_the_net():
    net, store = built(net_of(max_mem_len=6).double().eval())
    model, x = KNNLMWrapper(net, store, 5, 0.5), ids_of(2, 10, seed=4)
    _, mems = model(x[:, :5], return_mems=True)
    assert_close(model(x[:, 5:], mems=mems), model(x)[:, 5:])
    documents = torch.tensor([0] * 4 + [1] * 6).expand(2, -1)
    assert_close(model(x, document_ids=documents)[:, 4:], model(x[:, 4:]))


def test_half_precision():
    net, store = built(net_of().bfloat16().eval())
    found = KNNLMWrapper(net, store, 5).log_probs(ids_of(2, 6))
    assert found.dtype == torch.float32
    assert_close(found.exp().sum(-1), torch.ones(2, 6), tolerance=1e-5)


@pytest.mark.slow
def test_the_net_is_one_graph_and_the_search_stays_outside():
    net, store = built()
    x = ids_of(2, 6, seed=4)
    model = KNNLMWrapper(net, store, 5)
    expected, hidden = model.log_probs(x), []
    net(x, ff_input_of=(hidden, -1))
    torch._dynamo.reset()
    found = []
    with torch.no_grad():
        out = torch.compile(net, fullgraph=True, backend='eager')(x, ff_input_of=(found, -1))
        assert_close(out, net(x))
        assert_close(found[0], hidden[0])
        assert len(found) == 1
        assert_close(torch.compile(model, backend='eager')(x), expected)
    greedy = model.generate(x, 4, temperature=0.0)
    assert torch.equal(model.generate(x, 4, temperature=0.0, compile='eager'), greedy)


def test_copies_compute_the_same(tmp_path):
    net, _ = built(path=tmp_path / 'store')
    model, x = KNNLMWrapper(net, str(tmp_path / 'store'), 5, 0.3, key_layer=-1), ids_of(2, 6, seed=4)
    expected = model.log_probs(x)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.log_probs(x), expected)
    assert list(model.state_dict()) == [f'net.{name}' for name in net.state_dict()]
    config = json.loads(json.dumps(model.config))
    assert config['datastore'] == str(tmp_path / 'store') and config['lam'] == 0.3
    # a fresh net has other weights
    with pytest.raises(ConfigError, match='`datastore` holds keys of another model'):
        KNNLMWrapper.from_config(config)


# the share


def test_golden_section_finds_the_least():
    for least in (0.0, 0.2, 0.7123, 1.0):
        assert golden_section(lambda x, least=least: (x - least) ** 2) == pytest.approx(least, abs=2e-4)


@pytest.mark.costly
def test_tuned_share_is_the_best_of_a_grid():
    net, store = built()
    model = KNNLMWrapper(net, store, 8, temperature=5.0)
    held_out = [ids_of(2, 9, seed=7), dict(x=ids_of(2, 9, seed=1), mask=torch.arange(9).expand(2, -1) < 7)]
    lam = model.tune_lambda(held_out)
    assert model.lam == lam

    def loss(lam):
        model.lam = lam
        logs = [model.log_probs(held_out[0])[:, :-1].gather(-1, held_out[0][:, 1:, None]).flatten()]
        x = held_out[1]['x'][:, :7]
        logs.append(model.log_probs(x)[:, :-1].gather(-1, x[:, 1:, None]).flatten())
        return -torch.cat(logs).mean().item()

    grid = {at / 50: loss(at / 50) for at in range(51)}
    assert loss(lam) <= min(grid.values()) + 1e-9 and 0 < lam < 1
    report = model.tuned(held_out)
    assert report.mixed == pytest.approx(loss(lam), abs=1e-6) and report.alone == pytest.approx(grid[0.0], abs=1e-9)
    with pytest.raises(ValueError, match='`loader` gave no tokens to tune `lam` with'):
        model.tune_lambda([])


# refusals


def test_what_does_not_fit_is_refused(tmp_path):
    net, store = built()
    for wanted, options in {
        '`lam` must be a number from 0 to 1, got 1.1': dict(lam=1.1),
        '`lam` must be a number from 0 to 1, got -0.1': dict(lam=-0.1),
        '`temperature` must be a positive number, got 0': dict(temperature=0),
        '`k` must be an integer of at least 1, got 0': dict(k=0),
        '`k` must be at most the number of entries of `datastore`, 48, got 1024': {},
        "`key_at` must be one of 'ff_input', 'output', got 'other'": dict(key_at='other'),
        "`key_at` got 'output', `datastore` was built with 'ff_input'": dict(key_at='output', k=2),
        '`key_layer` got 0, `datastore` was built with -1': dict(key_layer=0, k=2),
        '`key_layer` must be one of the 2 feedforwards': dict(key_layer=2, k=2),
        '`datastore` must be a KNNDatastore, or the path of one, got 3': dict(datastore=3),
        '`datastore` holds no entries': dict(datastore=KNNDatastore(DIM, 9)),
    }.items():
        with pytest.raises(ConfigError, match=wanted):
            KNNLMWrapper(**dict(net=net, datastore=store) | options)
    narrow = KNNDatastore(4, 9)
    narrow.add(randn(3, 4), torch.arange(3))
    with pytest.raises(ConfigError, match='`datastore` holds keys of width 4, those of the net have 16'):
        KNNLMWrapper(net, narrow, 2)
    nobodys = KNNDatastore(DIM, 9)
    nobodys.add(randn(3, DIM), torch.arange(3))
    with pytest.raises(ConfigError, match='`datastore` does not say whose keys it holds'):
        KNNLMWrapper(net, nobodys, 2)
    with pytest.raises(ConfigError, match='`net` must have one head'):
        KNNLMWrapper(net_of(num_output_heads=2), store, 2)
    with pytest.raises(ValueError, match='`net` must be causal'):
        KNNLMWrapper(net_of(Encoder, dict(rotary_pos_emb=False)), store, 2)
    with pytest.raises(ValueError, match='no datastore'):
        KNNLMWrapper(net, tmp_path, 2)
    model = KNNLMWrapper(net, store, 2)
    for wanted, options in {
        r'`exclude` must have shape .*got \(2, 6\)': dict(exclude=torch.zeros(2, 6).long()),
        '`return_embeddings` cannot be combined with `datastore`': dict(return_embeddings=True),
    }.items():
        with pytest.raises(ValueError, match=wanted):
            model(ids_of(2, 6), **options)


def test_weights_that_change_later_are_noticed():
    net, store = built()
    with pytest.raises(ConfigError, match='`datastore` holds keys of another model, or of this one with other weights'):
        KNNLMWrapper(copy.deepcopy(net).float(), store, 2)
    model = KNNLMWrapper(net, store, 2)
    model.log_probs(ids_of(2, 6))
    with torch.no_grad():
        net.token_emb.emb.weight[3, 3] += 1e-6
    with pytest.raises(ConfigError, match='holds keys of another model'):
        model.log_probs(ids_of(2, 6))


@pytest.mark.slow
def test_a_text_that_was_never_learned_is_known_from_the_datastore():
    """A model of one chain; the datastore holds another: the loss falls there, where neighbours get a larger share."""
    torch.manual_seed(0)
    tasks = [toy_tasks.markov(n=32, which=which) for which in (0, 1)]
    net = toy_tasks.net_for(tasks[0], Decoder, rotary_pos_emb=True, verbose=False)
    toy_tasks.learned(net, tasks[0], steps=150)
    net.eval()
    store = KNNDatastore(48, 60_000, dtype='float32').build(net, (tasks[1].draw(64)[0] for _ in range(10)))
    model = KNNLMWrapper(net, store, k=64, temperature=3.0)
    reports = [model.tuned([task.draw(16)[0]]) for task in tasks]
    assert reports[1].mixed <= 0.8 * reports[1].alone
    assert reports[1].lam > reports[0].lam


def test_mixture_at_the_ends():
    knn, lm = torch.tensor([0.5, 0.5, 0.0]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    assert torch.equal(mix_log_probs(knn, lm, 0.0), lm) and torch.equal(mix_log_probs(knn, lm, 1.0), knn)
    assert_close(mix_log_probs(knn, lm, 0.25).exp(), torch.tensor([0.275, 0.35, 0.375]), tolerance=1e-6)
    assert VOCAB == 11

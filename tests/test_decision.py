"""Decision Transformers: what an action may know of, loss and returns by hand, acting step by step, and learning."""

import copy

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from toy_tasks import Chain, taught
from training_laws import ids_of

from x_transformers import DecisionTransformer, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.modalities.decision import Episode, returns_to_go

B, K, S, A = 2, 5, 3, 4


def built(discrete=False, **options):
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False)
    options = {'context_len': 6, 'max_ep_len': 30, **options}
    return randomised(DecisionTransformer(S, A, stack, discrete=discrete, **options)).double().eval()


def given(discrete=False, k=K, seed=0):
    actions = ids_of(B, k, seed=seed) % A if discrete else randn(B, k, A, seed=seed + 1)
    times = torch.arange(k).expand(B, -1) + torch.tensor([[3], [20]])
    return dict(states=randn(B, k, S, seed=seed), actions=actions, rtg=randn(B, k, seed=seed + 2), timesteps=times)


@pytest.mark.parametrize('discrete', [False, True])
def test_what_an_action_may_know(discrete):
    """Returns and states up to its step, and actions before it: each of these matters, and nothing else."""
    net, inputs = built(discrete), given(discrete)
    before = net(**inputs)
    assert before.shape == (B, K, A)
    for name in ('states', 'actions', 'rtg'):
        for step in range(K):
            other = {**inputs, name: inputs[name].clone()}
            other[name][:, step] = (other[name][:, step] + 1) % A if name == 'actions' and discrete else 2.0
            changed = (net(**other) - before).abs().amax(dim=(0, 2)) > 1e-9
            first = step + (name == 'actions')
            assert changed.tolist() == [at >= first for at in range(K)]


@pytest.mark.parametrize('discrete', [False, True])
def test_written_out(discrete):
    """Three tokens a step through the stack, with the same vector of their time, and the norm of their sum."""
    net, inputs = built(discrete, return_scale=5.0), given(discrete)
    rows = []
    for t in range(K):
        time = net.embed_timestep.weight[inputs['timesteps'][:, t]]
        of_return = (inputs['rtg'][:, t, None] / 5.0) @ net.embed_return.weight.T + net.embed_return.bias
        of_state = inputs['states'][:, t] @ net.embed_state.weight.T + net.embed_state.bias
        action = inputs['actions'][:, t]
        of_action = (
            net.embed_action.weight[action] if discrete else action @ net.embed_action.weight.T + net.embed_action.bias
        )
        for one in (of_return, of_state, of_action):
            rows.append(F.layer_norm(one + time, (16,), net.embed_norm.weight, net.embed_norm.bias))
    out = net.attn_layers(torch.stack(rows, dim=1))[:, 1::3] @ net.to_action.weight.T + net.to_action.bias
    assert_close(net(**inputs), out if discrete else out.tanh())
    found = net(**inputs)
    if discrete:
        wanted = F.cross_entropy(found.flatten(0, 1), inputs['actions'].flatten())
    else:
        wanted = (found - inputs['actions']).square().mean()
    assert_close(net.loss(inputs), wanted)


def test_returns_by_hand():
    rewards = torch.tensor([[1.0, 0.0, -2.0, 4.0], [9.0, 1.0, 1.0, 1.0]])
    assert returns_to_go(rewards).tolist() == [[3, 2, 2, 4], [12, 3, 2, 1]]
    mask = torch.tensor([[True] * 4, [False] + [True] * 3])
    assert returns_to_go(rewards, mask).tolist() == [[3, 2, 2, 4], [3, 3, 2, 1]]
    net, inputs = built(), given(k=4)
    rewards = rewards.double()
    whole = {**inputs, 'rewards': rewards}
    del whole['rtg']
    assert_close(net.loss(whole), net.loss({**inputs, 'rtg': returns_to_go(rewards)}))


@pytest.mark.parametrize('discrete', [False, True])
def test_padding_on_the_left_does_nothing(discrete):
    net, inputs = built(discrete), given(discrete)
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    found = net(**inputs, mask=mask)
    assert_close(found[1:], net(**{name: t[1:] for name, t in inputs.items()}))
    assert_close(found[:1, 2:], net(**{name: t[:1, 2:] for name, t in inputs.items()}))
    spoiled = {name: t.masked_fill(~mask.view(B, K, *[1] * (t.ndim - 2)), 3) for name, t in inputs.items()}
    assert_close(net(**spoiled, mask=mask)[mask], found[mask])
    each = net.loss({**inputs, 'mask': mask})
    if not discrete:
        assert_close(each, (found - inputs['actions']).square().mean(dim=-1)[mask].mean())
    else:
        assert_close(each, F.cross_entropy(found[mask], inputs['actions'][mask]))


@pytest.mark.parametrize('discrete', [False, True])
def test_acting_is_the_last_prediction(discrete):
    """Step by step with what was kept, beyond the context too: as all steps at once, with returns that fall."""
    net, target = built(discrete), torch.tensor([2.0, -1.0])
    states, rewards = randn(B, 9, S), randn(B, 9, seed=4).float()
    episode, kept = Episode(), []
    for t in range(9):
        action = net.act(episode.observe(states[:, t]), target)
        kept.append(episode.cache.cache_length)
        first = max(0, t - 5)
        left = target.unsqueeze(1) - torch.cat((torch.zeros(B, 1), rewards[:, :t].double().cumsum(dim=1)), dim=1)
        actions = torch.stack([*episode.actions[first:t], torch.zeros_like(action)], dim=1)
        times = torch.arange(first, t + 1).expand(B, -1)
        out = net(states[:, first : t + 1], actions, left[:, first:], times)[:, -1]
        assert torch.equal(action, out.argmax(dim=-1)) if discrete else not assert_close(action, out)
        episode.receive(rewards[:, t])
    assert kept == [2, 5, 8, 11, 14, 17, 17, 17, 17]


def test_images_as_states():
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
    net = DecisionTransformer((3, 9, 6), 2, stack, discrete=True)
    inputs = dict(actions=torch.zeros(B, K, dtype=torch.long), rtg=torch.zeros(B, K), timesteps=torch.arange(K))
    assert net(torch.randn(B, K, 3, 9, 6), **inputs).shape == (B, K, 2)
    assert net.act(Episode().observe(torch.randn(B, 3, 9, 6)), 1.0, temperature=1.0).shape == (B,)


def test_it_is_that_of_transformers():
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    config = transformers.DecisionTransformerConfig(
        state_dim=S, act_dim=A, hidden_size=16, max_ep_len=30, n_layer=2, n_head=2, n_inner=64,
        activation_function='relu', resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    theirs = transformers.DecisionTransformerModel(config).double().eval()
    flags = dict(attn_qkv_bias=True, attn_out_bias=True, norm_bias=True, norm_add_unit_offset=False, norm_eps=1e-5)
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, ff_activation='relu', verbose=False, **flags)
    net = DecisionTransformer(S, A, stack, max_ep_len=30).double().eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(std=0.3)
        theirs.encoder.wpe.weight.zero_()  # of position 0, which it adds to all tokens
        pairs = [
            (net.embed_return, theirs.embed_return),
            (net.embed_state, theirs.embed_state),
            (net.embed_action, theirs.embed_action),
            (net.embed_timestep, theirs.embed_timestep),
            (net.embed_norm, theirs.embed_ln),
            (net.to_action, theirs.predict_action[0]),
        ]
        for own, other in pairs:
            own.load_state_dict(other.state_dict())
        norms = [(stack.final_norm, theirs.encoder.ln_f)]
        for at, block in enumerate(theirs.encoder.h):
            attention, feedforward = stack.layers[2 * at], stack.layers[2 * at + 1]
            norms += [(attention[0][0], block.ln_1), (feedforward[0][0], block.ln_2)]
            weights = block.attn.c_attn.weight.chunk(3, dim=1), block.attn.c_attn.bias.chunk(3)
            for linear, weight, bias in zip(
                (attention[1].to_q, attention[1].to_k, attention[1].to_v), *weights, strict=True
            ):
                linear.weight.copy_(weight.T), linear.bias.copy_(bias)
            for linear, conv in (
                (attention[1].to_out, block.attn.c_proj),
                (feedforward[1].ff[0][0], block.mlp.c_fc),
                (feedforward[1].output_layer, block.mlp.c_proj),
            ):
                linear.weight.copy_(conv.weight.T), linear.bias.copy_(conv.bias)
        for own, other in norms:
            own.gamma.copy_(other.weight), own.beta.copy_(other.bias)
    inputs = given()
    mask = torch.tensor([[False, False, True, True, True], [True] * 5])
    for hidden in (torch.ones_like(mask), mask):
        with torch.no_grad():
            found = theirs(
                states=inputs['states'],
                actions=inputs['actions'],
                returns_to_go=inputs['rtg'].unsqueeze(-1),
                timesteps=inputs['timesteps'],
                attention_mask=hidden.long(),
            )
            assert_close(net(**inputs, mask=hidden)[hidden], found.action_preds[hidden], tolerance=1e-10)


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: built()(**given(k=7)), '`states` got 7 steps, more than `context_len`, 6'),
        (lambda: built(max_ep_len=20)(**given()), '`timesteps` must '),
        (lambda: built()(**{**given(), 'states': randn(B, K, S + 1)}), r'`states` must '),
        (lambda: built()(**{**given(), 'actions': randn(B, K)}), r'`actions` must '),
        (lambda: built(True)(**{**given(True), 'actions': torch.full((B, K), A)}), '`actions` must '),
        (lambda: built()(**{**given(), 'rtg': randn(B, K + 1)}), r'`rtg` must '),
        (lambda: built()(**{**given(), 'timesteps': randn(B, K)}), r'`timesteps` must .*got torch.float64'),
        (lambda: built()(**given(), mask=torch.tensor([[True] * 4 + [False]] * B)), '`mask` got holes'),
        (lambda: built().loss({'states': randn(B, K, S)}), '`batch` got states: it must have `actions`, `timesteps`'),
        (lambda: built().loss({n: t for n, t in given().items() if n != 'rtg'}), 'either `rtg` or `rewards`'),
        (lambda: built(discrete=True, action_tanh=True), '`action_tanh` cannot be combined with `discrete`'),
        (lambda: DecisionTransformer(S, A, Encoder(dim=8, depth=1, heads=1)), '`attn_layers` must be a Decoder'),
        (lambda: DecisionTransformer((3, 4), A, Decoder(dim=8, depth=1, heads=1)), r'must be .*got \(3, 4\)'),
        (lambda: built().act(Episode(), 1.0), '`history` got 0 states'),
        (lambda: built().act(Episode().observe(randn(B, S)), 1.0, temperature=1.0), r'`temperature` must .*got 1.0'),
        (lambda: Episode().observe(randn(B, S)).observe(randn(B, S)), '`observe` got state 2, an action'),
        (lambda: Episode().receive(torch.zeros(B)), '`receive` got reward 1, there are 0 actions'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        call()


# learning from random walks


@pytest.mark.nightly
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_a_chain_from_random_walks(seed):
    """Asked for the most, it walks the best way; asked for less, about that far; a copy of the walks is no better
    than they are."""
    torch.manual_seed(seed)
    chain, found = Chain(), {}
    for asks in (True, False):
        stack = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, verbose=False)
        net = DecisionTransformer(
            chain.states, 2, stack, discrete=True, context_len=chain.steps, max_ep_len=chain.steps
        )
        states, actions, rewards = chain.walk(2000)

        def batch(asks=asks, states=states, actions=actions, rewards=rewards):
            rows = torch.randint(0, len(states), (64,))
            rtg = returns_to_go(rewards[rows]) * asks
            one_hot = F.one_hot(states[rows], chain.states).float()
            return dict(states=one_hot, actions=actions[rows], rtg=rtg, timesteps=torch.arange(chain.steps))

        taught(net, lambda net=net, batch=batch: net.loss(batch()), 300)

        def reached(target, b=200, net=net, asks=asks):
            episode, state = Episode(), chain.start(b)
            for step in range(chain.steps):
                seen = F.one_hot(state, chain.states).float()
                action = net.act(episode.observe(seen), target * asks, temperature=1.0)
                state = chain.step(state, action)
                episode.receive(chain.reward(state) * asks * (step == chain.steps - 1))
            return chain.reward(state)

        found[asks] = reached(1.0).mean().item()
        if asks:
            targets = torch.rand(200)
            together = torch.stack((targets, reached(targets)))
            assert torch.corrcoef(together)[0, 1] > 0.7
    assert found[True] > 0.9 and found[False] < 0.6, found


@pytest.mark.parametrize('discrete', [False, True])
def test_a_number_is_the_reward_of_all_rows(discrete):
    """As a number, of a list, of integers, or of another dtype; what is neither is refused where it is given."""
    net = built(discrete)
    states = randn(2, B, S)
    actions = []
    for reward in (2, 2.0, torch.tensor(2), torch.full((B,), 2.0), [2.0] * B, torch.full((B,), 2, dtype=torch.float64)):
        episode = Episode()
        net.act(episode.observe(states[0]), 3.0)
        episode.receive(reward)
        actions.append(net.act(episode.observe(states[1]), 3.0))
    assert all(torch.equal(action, actions[0]) for action in actions)
    episode = Episode()
    net.act(episode.observe(states[0]), 3.0)
    for reward in (torch.zeros(B + 1), torch.zeros(B, 1), torch.zeros(1, B), [[1.0]], 'good'):
        with pytest.raises((ValueError, TypeError), match='reward'):
            episode.receive(reward)
    with pytest.raises((ValueError, TypeError), match='target_return'):
        net.act(Episode().observe(states[0]), torch.zeros(B + 1))
    assert len(episode.rewards) == 0
    episode.receive(1.0)
    with pytest.raises(ValueError, match='state'):
        episode.observe(randn(B + 1, S))


@pytest.mark.parametrize('discrete', [False, True])
def test_an_episode_goes_on_in_another_precision(discrete):
    """What was kept in one dtype is computed anew in another: as if all had been read in it."""
    net, states = built(discrete), randn(3, B, S)

    def acted(casts):
        own, episode = copy.deepcopy(net), Episode()
        for state, cast in zip(states, casts, strict=True):
            own.to(cast)
            action = own.act(episode.observe(state.to(cast)), 2.0)
            assert episode.precision[1] == cast
            if not discrete:
                episode.actions[-1] = torch.zeros_like(action)
            else:
                episode.actions[-1] = torch.ones_like(action)
            episode.receive(0.5)
        return action

    wanted = acted([torch.float64] * 3)
    found = acted([torch.float64, torch.float32, torch.float32])
    assert torch.equal(found, wanted) if discrete else (found - wanted).abs().max() < 1e-4
    half = acted([torch.float64, torch.bfloat16, torch.bfloat16])
    assert half.shape == wanted.shape and (discrete or (half.double() - wanted).abs().max() < 0.1)


def test_returns_beyond_the_range_of_half_precision():
    """They are divided before they are cast, in losses of rewards and while it acts."""
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
    net = DecisionTransformer(S, A, stack, return_scale=1e5).half().eval()
    whole = copy.deepcopy(net).float()
    states, rewards = randn(B, 3, S), torch.full((B, 3), 6e4)
    walk = dict(states=states.half(), actions=randn(B, 3, A).half(), rewards=rewards, timesteps=torch.arange(3))
    loss = net.loss(walk)
    wide = whole.loss({**walk, 'states': walk['states'].float(), 'actions': walk['actions'].float()})
    assert loss.isfinite() and (loss - wide).abs() < 0.01
    action = net.act(Episode().observe(states[:, 0].half()), 1.5e5)
    assert (action.float() - whole.act(Episode().observe(states[:, 0].half().float()), 1.5e5)).abs().max() < 0.01

"""What features of one's own remember, at every level: of each token, of the last ones, and sums that run along."""

import pytest
import torch
from law_cases import Case, inputs_for, model_of, rows
from oracles import assert_close
from test_laws import all_laws, cache_law, steps

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.cache import Buffer, Cache
from x_transformers.core.state import RecentVectors
from x_transformers.features import (
    AttentionFeature,
    FeedForwardFeature,
    ModelFeature,
    PerToken,
    RecurrentState,
    Ring,
    StackFeature,
    flag,
)
from x_transformers.flags import ConfigError


def averaged(x, decay, state, real=None):
    """m_t = decay m_{t-1} + (1 - decay) x_t over real tokens, of all new ones at once."""
    real = x.new_ones(x.shape[:2]) if real is None else real[:, -x.shape[1] :].to(x.dtype)
    count = real.cumsum(1)  # real tokens up to each
    weights = (decay ** (count[:, :, None] - count[:, None])).tril() * real[:, None] * (1 - decay)
    past = x.new_zeros(len(x), x.shape[-1]) if state.value is None else state.value['mean'][0]
    mean = weights @ x + decay ** count[..., None] * past[:, None]
    state.keep({'mean': [mean[:, -1]]})
    return mean


class Averaged(AttentionFeature):
    """The moving average of the tokens, beside what attention gives."""

    averaged = flag(0.0, 'how much of it stays with each token', example=0.8)
    states = {'mean': RecurrentState()}  # noqa: RUF012

    def layer_output(self, out, call):
        return out + averaged(call.x, self.averaged, call.state('mean'), call.key_mask)


class AveragedStack(StackFeature):
    averaged_stack = flag(0.0, 'the same for what the layers read', example=0.8)
    states = {'mean': RecurrentState()}  # noqa: RUF012

    def branch_input(self, x, layer, call):
        real = None if call.token_mask is None else call.token_mask[:, -x.shape[1] :]
        x = x if real is None else x.masked_fill(~real.unsqueeze(-1), 0.0)
        return x + averaged(x, self.averaged_stack, call.state('mean', call.step), real)


class AveragedModel(ModelFeature):
    averaged_model = flag(0.0, 'the same for what the stack gives', example=0.8)
    states = {'mean': RecurrentState()}  # noqa: RUF012

    def strip_prefix(self, x, call):
        return x + averaged(x, self.averaged_model, call.state('mean'), call.make_token_mask(x))


class Recent(AttentionFeature):
    """The sum of the last tokens, itself included."""

    recent = flag(0, 'how many', example=3)

    def setup(self, owner):
        self.states = {'recent': Ring(self.recent - 1)}

    def layer_output(self, out, call):
        real = None if call.key_mask is None else call.key_mask[:, -call.q_len :, None]
        x = call.x if real is None else call.x.masked_fill(~real, 0.0)
        rows = call.state('recent').append(x)
        rows = torch.nn.functional.pad(rows, (0, 0, call.q_len + self.recent - 1 - rows.shape[1], 0))
        return out + rows.unfold(1, self.recent, 1).sum(-1)


class AveragedHidden(FeedForwardFeature):
    averaged_hidden = flag(0.0, 'the same for what the feedforward reads', example=0.8)
    states = {'mean': RecurrentState()}  # noqa: RUF012

    def layer_output(self, out, call):
        return out + averaged(call.zero_padding(call.x), self.averaged_hidden, call.state('mean'), call.mask)


class Counted(StackFeature):
    counted = flag(False, 'how many tokens there were, as all of them tell')
    states = {'ones': PerToken()}  # noqa: RUF012

    def stack_output(self, x, call):
        ones = call.state('ones').append(torch.ones_like(x[..., :1])).cumsum(1)
        return x + ones[:, -x.shape[1] :]


CASES = {
    'running': Case('running', stack=dict(features=(Averaged,), averaged=0.8, rotary_pos_emb=True)),
    'of a stack': Case('of a stack', stack=dict(features=(AveragedStack,), averaged_stack=0.8)),
    'of a model': Case('of a model', model=dict(features=(AveragedModel,), averaged_model=0.8)),
    'of a feedforward': Case('of a feedforward', stack=dict(features=(AveragedHidden,), ff_averaged_hidden=0.8)),
    'a ring': Case('a ring', stack=dict(features=(Recent,), recent=3)),
    'all': Case(
        'all',
        stack=dict(features=(Averaged, Recent, AveragedStack), averaged=0.5, recent=4, averaged_stack=0.7,
                   attn_data_dependent_alibi=True, shift_tokens=1),
        model=dict(features=(AveragedModel,), averaged_model=0.8, num_memory_tokens=2),
    ),
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.parametrize('name', CASES)
def test_states_keep_the_laws(name, tmp_path):
    all_laws(CASES[name])
    cache_law(CASES[name], tmp_path)


def stack_of(*features, **flags):
    torch.manual_seed(0)
    options = dict(dim=8, depth=1, heads=2, attn_dim_head=4, verbose=False, features=features, **flags)
    return Decoder(**options).double().eval()


def test_an_average_in_chunks_is_that_of_a_loop():
    net, plain = stack_of(Averaged, averaged=0.8), stack_of()
    net.load_state_dict(plain.state_dict())
    x, means, mean = torch.randn(2, 7, 8).double(), [], torch.zeros(2, 8).double()
    attn, of_attn = net.layers[0][1], plain.layers[0][1]
    for t in range(7):
        mean = 0.8 * mean + 0.2 * x[:, t]
        means.append(mean)
    wanted = of_attn(x) + torch.stack(means, dim=1)
    outs, cache = [], None
    for part in x.split((3, 1, 2, 1), dim=1):
        out, cache = attn(part, cache=cache, return_intermediates=True)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), wanted)
    assert_close(attn(x), wanted)


@pytest.mark.parametrize('width', [1, 2, 4])
def test_a_ring_holds_the_last_rows(width):
    """Whatever comes at once, and is taken back: as far as it still holds what must be left."""
    x = torch.arange(1.0, 41.0).view(1, 40, 1)
    for sizes in ((1,) * 20, (3, 2, 1, 9, 5), (40,), (11, 1, 1, 1)):
        ring, seen = RecentVectors(Buffer(x[:, :0]), width, 0), 0
        for size in sizes:
            ring, seen = ring.append(x[:, seen : seen + size]), seen + size
            assert torch.equal(ring.vectors, x[:, max(seen - width, 0) : seen])
            assert ring.held.length <= 2 * width and ring.held.storage.tensor.shape[-2] <= 8 * width
            for back in range(seen + 1):
                left = seen - back
                exact = ring.held.length - back >= min(left, width)
                assert exact == (ring.cannot('crop', back) is None) and (exact or back > min(width, seen))
                if exact:
                    cropped, end = ring.crop(back).append(x[:, left : left + 2]), min(left + 2, 40)
                    assert torch.equal(cropped.vectors, x[:, max(end - width, 0) : end])


def test_a_value_is_known_where_calls_have_ended():
    case = CASES['running']
    net, inputs = model_of(case), inputs_for(model_of(case), case)
    _, trace = steps(net, inputs, (3, 1, 2))
    assert [trace.cache.cannot('crop', back) is None for back in range(7)] == [True, False, True, *[False] * 3, True]
    with pytest.raises(ValueError, match=r'`crop` got a cache with the running state `mean`, .* after 4 and 6 tokens'):
        trace.cache.crop(5)
    with pytest.raises(ValueError, match='`keep_last` got a cache with the running state `mean`'):
        trace.cache.keep_last(5)
    whole = net(**inputs)
    for length in (0, 4, 6):
        cropped = trace.cache.crop(length)
        out, _ = steps(net, inputs, (7 - length,), cache=cropped, start=length, only_new=True)
        assert_close(out, whole[:, length:])
        back, index = trace.cache.reorder(torch.tensor([2, 0])).crop(length), [2, 0]
        out, _ = steps(net, rows(inputs, index), (7 - length,), cache=back, start=length, only_new=True)
        assert_close(out, whole[index, length:])


def test_what_is_derived_is_in_no_file():
    net, x = stack_of(rotary_pos_emb=True), torch.randn(2, 3, 8).double()
    cache = net(x, return_hiddens=True)[1].cache
    assert {*cache.states} == {'positions', 'angles'} and {*cache.layers[0].states} == {'angles'}
    for other in (Cache.of_content(cache.content()), cache.keep_last(2), cache.to('cpu')):
        assert other.states == other.layers[0].states == {}


@pytest.mark.parametrize('name', CASES)
def test_generation_asks_what_the_cache_can(name):
    """Rows change places; what cannot is read again: tokens are those without a cache."""
    net = model_of(CASES[name])
    model = AutoregressiveWrapper(net)
    prompts = torch.randint(1, 60, (2, 4), generator=torch.Generator().manual_seed(1))
    wanted = model.generate(prompts, 5, temperature=0.0, cache_kv=False)
    assert torch.equal(model.generate(prompts, 5, temperature=0.0), wanted)
    assert torch.equal(model.speculative(prompts, 5, temperature=0.0), wanted)
    beams = [model.beam_search(prompts, 4, beams=3, cache_kv=cached) for cached in (True, False)]
    assert torch.equal(*beams)


# refusals


class Twice(AttentionFeature):
    twice = flag(False, 'another one')
    states = {'mean': PerToken()}  # noqa: RUF012


class Wishes(AttentionFeature):
    """Does with a state what it is told."""

    wishes = flag(None, 'a function of the call')
    states = {'sums': RecurrentState(), 'ring': Ring(2)}  # noqa: RUF012

    def layer_output(self, out, call):
        self.wishes(call)
        return out


def test_two_features_do_not_write_one_state():
    with pytest.raises(ConfigError, match='`attn_averaged` and `attn_twice` must not both have a state `mean`: rename'):
        stack_of(Averaged, Twice, averaged=0.5, twice=True)
    stack_of(Averaged, Twice, averaged=0.5)  # one is off

    class Real(ModelFeature):
        real = flag(False, 'takes the name of what the model remembers')
        states = {'real': PerToken()}  # noqa: RUF012

    with pytest.raises(ConfigError, match='`real` and its owner must not both have a state `real`'):
        TransformerWrapper(num_tokens=5, max_seq_len=5, attn_layers=stack_of(), features=(Real,), real=True)


@pytest.mark.parametrize(
    'remembers', [*({name: RecurrentState()} for name in ('a.b', 'a: b', 1)), {'a': 3}, 'a', ['a']]
)
def test_declarations_that_mean_nothing(remembers):
    with pytest.raises(ConfigError, match='`states` of Mine must map names, without dots and colons, to PerToken'):
        type('Mine', (AttentionFeature,), {'remembers': remembers})


@pytest.mark.parametrize('width', [0, -1, 1.5, True])
def test_widths_of_a_ring(width):
    with pytest.raises(ConfigError, match='`width` of a Ring must be an integer'):
        Ring(width)


@pytest.mark.parametrize(
    'wish, words',
    [
        (lambda call: call.state('sum'), "`state` must be a name in `states` .*got 'sum', did you mean `sums`"),
        (lambda call: call.state('sums').keep(None), '`sums` must be tensors .*got NoneType'),
        (lambda call: call.state('sums').keep(call.x[:1]), r'`sums` must be tensors .* the batch, 2, got \(1, 3, 8\)'),
        (
            lambda call: call.state('sums').keep([call.x, torch.zeros(())]),
            r'`sums` must be tensors .*, got \(2, 3, 8\), \(\)',
        ),
    ],
)
def test_what_a_feature_may_not_do(wish, words):
    with pytest.raises(ValueError, match=words):
        stack_of(Wishes, wishes=wish)(torch.randn(2, 3, 8).double())


def test_a_state_that_is_missing_is_no_beginning():
    net, x = stack_of(Averaged, averaged=0.5), torch.randn(2, 3, 8).double()
    cache = net(x, return_hiddens=True)[1].cache
    mean = cache.layers[0].states.pop('mean')
    with pytest.raises(ValueError, match='`cache` holds no mean: it is of another model'):
        net(x[:, :1], cache=cache, input_not_include_cache=True)
    cache.layers[0].states['mean'] = mean.map(lambda t: t[:1])
    with pytest.raises(ValueError, match='`cache` holds 1 rows of mean, the input has 2'):
        net(x[:, :1], cache=cache, input_not_include_cache=True)


def test_states_of_passes_that_did_not_run():
    """A sum cannot take over a token from another pass; rows can."""
    ids = torch.randint(0, 5, (1, 4), generator=torch.Generator().manual_seed(0))

    def looped(*features, **flags):
        stack = stack_of(*features, pre_and_post_norm=True, **flags)
        net = TransformerWrapper(num_tokens=5, max_seq_len=0, attn_layers=stack, looped=True, max_looped_steps=2)
        return net.double().eval()

    early = dict(looped_inference=True, looped_exit_prob_threshold=0.0, return_intermediates=True)
    for net in (looped(Recent, recent=2), looped(Counted, counted=True)):
        _, trace = net(ids, **early)
        _, trace = net(ids[:, :1], cache=trace, input_not_include_cache=True, **early)
        assert trace.exit_indices.tolist() == [[1, 0]]
        held = [state.length for _, state in trace.cache.named() if state.kind != 'noted']
        assert held == [5] * 2
    net = looped(Averaged, averaged=0.5)
    _, trace = net(ids, **early)
    with pytest.raises(ValueError, match='`looped_inference` cannot be combined with the running state `mean`'):
        net(ids[:, :1], cache=trace, input_not_include_cache=True, **early)
    assert isinstance(trace.cache, Cache)

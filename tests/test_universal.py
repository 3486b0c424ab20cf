"""Universal transformers: signals of place and run, convolutions between attentions, tokens that halt; written out."""

import math
from itertools import pairwise

import pytest
import torch
from law_cases import randomise
from oracles import assert_close, randn

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features.universal import CoordinatePositions, SepConvTransition
from x_transformers.flags import ConfigError

DIM, T, N, B = 16, 4, 6, 2
SIZES = dict(dim=DIM, depth=T, heads=2, attn_dim_head=8, weight_tie_layers=True, verbose=False)
MASK = torch.tensor([[True] * N, [True] * 4 + [False] * 2])


def built(kind=Decoder, bias=0.0, **flags):
    torch.manual_seed(0)
    stack = randomise(kind(**{**SIZES, **flags}).double()).eval()
    if flags.get('act_halting'):
        with torch.no_grad():
            stack.halt.bias.fill_(bias), stack.halt.weight.mul_(0.2)
    return stack


def signal(stack, i, t):
    """[sin i w + sin t w | cos i w + cos t w], number by number."""
    w = [10000 ** (-2 * k / DIM) for k in range(DIM // 2)]
    place = [math.sin(i * f) for f in w] + [math.cos(i * f) for f in w]
    if getattr(stack, 'step_emb', None) is not None:
        return torch.tensor(place, dtype=torch.float64) + stack.step_emb[t - 1]
    step = [math.sin(t * f) for f in w] + [math.cos(t * f) for f in w]
    return torch.tensor(place, dtype=torch.float64) + torch.tensor(step, dtype=torch.float64)


def convolved(branch, x, real, causal):
    """Twice: three neighbours, weighed for each feature, a matrix, and what is positive."""
    for conv in branch.conv:
        kernel, out = conv.depthwise.weight[:, 0], torch.zeros_like(x)
        for b in range(len(x)):
            for i in range(x.shape[1]):
                for k, j in enumerate(range(i - 2, i + 1) if causal else range(i - 1, i + 2)):
                    if 0 <= j < x.shape[1] and real[b, j]:
                        out[b, i] = out[b, i] + kernel[:, k] * x[b, j]
        x = (out @ conv.pointwise.weight.T + conv.pointwise.bias).clamp(min=0)
    return x


def written_out(stack, x, mask=None, pos=None, eps=0.1):
    """The output, and the runs at which tokens end: each for all, and those that have halted go back to their state."""
    real = torch.ones(B, N, dtype=torch.bool) if mask is None else mask
    pos = torch.arange(N).expand(B, -1) if pos is None else pos
    going, spent, total, last = real.clone(), torch.zeros(B, N).double(), torch.zeros_like(x), x
    halts, ended = getattr(stack, 'halt', None) is not None, set()
    for t in range(1, T + 1):
        signals = torch.stack([torch.stack([signal(stack, p, t) for p in row]) for row in pos.tolist()])
        given = state = last + signals
        for layer in stack.layers:
            (before, _, outside), branch, _ = layer
            read = state if before is None else before(state)
            if layer.kind == 'sepconv':
                out = convolved(branch, read, real, stack.causal)
            else:
                out = branch(read, mask=mask) if layer.kind == 'a' else branch(read)
            new = state + out
            new = new if outside is None else outside(new)
            state = torch.where(going.unsqueeze(-1), new, given) if halts else new
        if not halts:
            last = state
            continue
        last = torch.where(going.unsqueeze(-1), state, last)
        p = stack.halt(last).squeeze(-1).sigmoid()
        ends = going & ((spent + p >= 1 - eps) | (t == T))
        total = total + torch.where(going, torch.where(ends, 1 - spent, p), 0.0).unsqueeze(-1) * last
        spent, going = spent + torch.where(going & ~ends, p, 0.0), going & ~ends
        ended |= {t} if ends.any() else set()
    last = torch.where(real.unsqueeze(-1), total, last) if halts else last
    return stack.final_norm(last), ended


@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('coord', [True, 'learned'])
@pytest.mark.parametrize(
    'flags',
    [
        {},
        dict(pre_norm=False),
        dict(ut_transition='sepconv'),
        dict(act_halting=True, act_eps=0.1),
        dict(act_halting=True, act_eps=0.1, act_dense=True),
        dict(act_halting=True, act_eps=0.1, act_dense=True, ut_transition='sepconv', pre_norm=False),
        dict(act_halting=True, act_eps=0.1, macaron=True),
        dict(act_halting=True, act_eps=0.1, macaron=True, act_dense=True),
    ],
    ids=str,
)
def test_the_formula(kind, coord, flags):
    stack = built(kind, coord_pos_emb=coord, **flags)
    x = (4 * randn(B, N, DIM)).requires_grad_()
    for inputs in ({}, dict(mask=MASK), dict(pos=torch.tensor([[0, 1, 2, 3, 4, 5], [3, 9, 4, 1, 700, 2]]))):
        real = inputs.get('mask', torch.ones(B, N, dtype=torch.bool))
        ours, (theirs, ends) = stack(x, **inputs), written_out(stack, x, **inputs)
        assert len(ends) > 1 or 'act_halting' not in flags
        assert_close(ours[real], theirs[real])
        leaves = [x, *(p for p in stack.parameters() if p.requires_grad)]
        weights = randn(*ours.shape, seed=5)
        grads = [torch.autograd.grad((out * weights)[real].sum(), leaves, allow_unused=True) for out in (ours, theirs)]
        for grad, other in zip(*grads, strict=True):
            assert (grad is None) == (other is None)
            if grad is not None:
                assert_close(grad, other, 'gradient')


def test_as_a_stack_of_as_many_blocks():
    """Tied and untied with copied weights; of any other number of runs too."""
    for coord in (True, 'learned'):
        tied = built(coord_pos_emb=coord)
        untied = Decoder(**{**SIZES, 'weight_tie_layers': False}, coord_pos_emb=coord).double().eval()
        state = tied.state_dict()
        copies = {
            f'layers.{2 * block + int(name.split(".")[1])}.{name.split(".", 2)[2]}': value
            for name, value in state.items()
            if name.startswith('layers.')
            for block in range(T)
        }
        untied.load_state_dict({**{n: v for n, v in state.items() if not n.startswith('layers.')}, **copies})
        x = randn(B, N, DIM)
        assert_close(tied(x), untied(x))
    assert_close(built(coord_pos_emb=True)(x, repeat_blocks=(0, T)), built(coord_pos_emb=True)(x))


@pytest.mark.parametrize('bias', [-30.0, 30.0])
def test_never_and_at_once(bias):
    halts = built(coord_pos_emb=True, act_halting=True)
    plain = built(coord_pos_emb=True)
    plain.load_state_dict({n: v for n, v in halts.state_dict().items() if not n.startswith('halt')})
    with torch.no_grad():
        halts.halt.weight.zero_(), halts.halt.bias.fill_(bias)
    x, once = randn(B, N, DIM), dict(repeat_blocks=(0, 1))
    assert_close(halts(x), plain(x, **(once if bias > 0 else {})))


def test_a_token_that_has_halted_keeps_its_state():
    """Whatever the runs after it add: what stands in the stream before each run, of all tokens."""
    for dense in (False, True):
        stack = built(coord_pos_emb=True, act_halting=True, act_eps=0.1, act_dense=dense)
        x, seen = 4 * randn(B, N, DIM), []
        feature = stack.features.find(CoordinatePositions)
        feature.signalled = watched(feature.signalled, seen)
        stack(x)
        assert len(seen) == T
        moved = [(after - before).abs().amax(dim=-1) > 0 for before, after in pairwise(seen)]
        assert moved[0].any() and not moved[-1].all()
        assert not any((later & ~earlier).any() for earlier, later in pairwise(moved))


def test_a_prompt_that_halts_at_once_leaves_keys_of_all_runs():
    """Later tokens run on, and read what earlier ones would say with the signal of each run."""
    stack = built(coord_pos_emb=True, act_halting=True, act_eps=0.1)
    with torch.no_grad():
        stack.halt.weight.fill_(5.0), stack.halt.bias.zero_()
    x = randn(B, N, DIM).abs() + 9  # the stream says who halts
    x[:, 3:] *= -1
    whole, ends = written_out(stack, x)
    assert ends == {1, T}
    prompt, trace = stack(x[:, :3], return_hiddens=True)
    rest, _ = stack(x, cache=trace, return_hiddens=True)
    assert_close(torch.cat((prompt, rest), dim=1), whole)


def watched(way, seen):
    return lambda x, call, run: seen.append(x) or way(x, call, run)


def test_positions_where_padding_and_a_cache_are():
    net = TransformerWrapper(num_tokens=9, max_seq_len=0, attn_layers=Decoder(**SIZES, coord_pos_emb=True))
    net = randomise(net.double()).eval()
    ids = torch.randint(0, 9, (1, N))
    assert net.pos_emb(ids) == 0
    padded = net(torch.cat((ids[:, :3], ids), dim=1), seq_start_pos=torch.tensor([3]))
    assert_close(padded[:, 3:], net(ids))
    packed = net(torch.cat((ids, ids), dim=1), document_ids=torch.tensor([[0] * N + [1] * N]))
    assert_close(packed[:, N:], net(ids))


@pytest.mark.parametrize('flag', ['coord_pos_emb', 'position_infused_attn', 'rotary_pos_emb'])
def test_beyond_the_longest_sequence_a_cache_changes_nothing(flag):
    """Where positions count from the first token, it is read again once that has left the window."""
    stack = Decoder(**SIZES, attn_max_attend_past=3, **{flag: True})
    net = randomise(TransformerWrapper(num_tokens=30, max_seq_len=8, attn_layers=stack).double()).eval()
    assert net.can_cache_kv_outside_max_seq_len == (flag == 'rotary_pos_emb')
    model, prompts = AutoregressiveWrapper(net), torch.randint(0, 30, (2, 6))
    found = [model.generate(prompts, 14, temperature=0.0, cache_kv=cache) for cache in (True, False)]
    assert torch.equal(*found)


def test_segments_begin_anew_with_a_warning(logged):
    stack = Decoder(**SIZES, coord_pos_emb=True)
    net = TransformerWrapper(num_tokens=9, max_seq_len=0, max_mem_len=4, attn_layers=stack)
    _, mems = net(torch.randint(0, 9, (1, 4)), return_mems=True)
    net(torch.randint(0, 9, (1, 4)), mems=mems)
    assert any('`mems` with absolute positions' in message for message in logged)


def test_a_causal_convolution_reads_two_tokens_back():
    for causal, reach in ((True, range(4)), (False, range(-2, 3))):
        transition = SepConvTransition(3, causal).double()
        with torch.no_grad():
            for conv in transition.conv:
                conv.depthwise.weight.fill_(1.0), conv.pointwise.weight.copy_(torch.eye(3)), conv.pointwise.bias.zero_()
        x = torch.zeros(1, 12, 3, dtype=torch.float64)
        x[0, 6] = 1
        reached = [i - 6 for i in range(12) if transition(x)[0, i].any()]
        assert reached == (list(range(5)) if causal else list(reach))


def test_names():
    stack = Decoder(**SIZES, coord_pos_emb='learned', ut_transition='sepconv', act_halting=True, act_dense=True)
    own = {n: tuple(p.shape) for n, p in stack.named_parameters() if 'conv' in n or 'step' in n or 'halt' in n}
    one = {'depthwise.weight': (16, 1, 3), 'pointwise.weight': (16, 16), 'pointwise.bias': (16,)}
    convs = {f'layers.1.1.conv.{at}.{name}': shape for at in (0, 1) for name, shape in one.items()}
    assert own == {**convs, 'step_emb': (T, 16), 'halt.weight': (1, 16), 'halt.bias': (1,)}
    assert 0.01 < stack.step_emb.std() < 0.03


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: built(coord_pos_emb='learnt'), "`coord_pos_emb` must be True, False or 'learned', got 'learnt'"),
        (lambda: Decoder(dim=15, depth=1, heads=3, coord_pos_emb=True), '`coord_pos_emb` needs an even width'),
        (lambda: built(coord_pos_emb=True, reversible=True), '`coord_pos_emb` cannot be combined with `reversible`'),
        (lambda: built(ut_transition='conv'), '`ut_transition` must be'),
        (
            lambda: built(ut_transition='sepconv', only_attn=True),
            "`ut_transition='sepconv'` replaces feedforwards",
        ),
        (
            lambda: built(ut_transition='sepconv')(randn(1, 4, 16), document_ids=torch.zeros(1, 4).long()),
            '`document_ids` cannot be combined with `ut_transition`: its convolutions run',
        ),
        (
            lambda: built(coord_pos_emb='learned')(randn(1, 4, 16), repeat_blocks=(0, T + 1)),
            "`coord_pos_emb='learned'` has vectors for 4 runs of a block, not for 5",
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        call()

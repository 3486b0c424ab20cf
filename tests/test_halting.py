"""Tokens that halt by themselves: Graves' formula, token by token and step by step; some tokens computed, or all."""

import copy

import pytest
import torch
from law_cases import CASES, CROSS_CASES, inputs_for, model_of, randomise, weighted
from oracles import assert_close, randn
from refusals import unless_refused
from torch.utils.flop_counter import FlopCounterMode

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features.halting import Halting
from x_transformers.flags import ConfigError

SIZES = dict(dim=16, depth=5, heads=2, attn_dim_head=8, weight_tie_layers=True, act_halting=True, verbose=False)


def undecided(net, bias=-0.5):
    """Tokens that halt after 1 to 5 steps."""
    stack = getattr(net, 'attn_layers', net)
    with torch.no_grad():
        stack.halt.bias.fill_(bias)
        stack.halt.weight.mul_(0.4)
    return net


def built(kind=Decoder, **flags):
    torch.manual_seed(0)
    return undecided(randomise(kind(**{**SIZES, **flags}).double())).eval()


def by_graves(net, x, eps, mask=None, context=None):
    """The state, the weights and the halting of each token by itself."""
    batch, length = x.shape[:2]
    real = torch.ones(batch, length, dtype=torch.bool) if mask is None else mask
    total, ponder = [[0.0] * length for _ in range(batch)], torch.zeros(())
    spent, steps = [[0.0] * length for _ in range(batch)], [[0] * length for _ in range(batch)]
    going = {(b, i) for b in range(batch) for i in range(length) if real[b, i]}
    runs = len(net.layers_execute_order) // len(net.layers)
    for number in range(1, runs + 1):
        for layer in net.layers:
            (before, after, outside), branch, _ = layer
            own = {'f': {}, 'c': dict(context=context), 'a': dict(mask=mask)}[layer.kind]
            out = branch(x if before is None else before(x), **own)
            new = x + (out if after is None else after(out))
            new = new if outside is None else outside(new)
            x = torch.stack([torch.stack([(new if (b, i) in going else x)[b, i] for i in range(length)])
                             for b in range(batch)])  # fmt: skip
        for b, i in sorted(going):
            p = net.halt(x[b, i]).sigmoid().squeeze()
            if number == runs or spent[b][i] + p >= 1 - eps:
                total[b][i] = total[b][i] + (1 - spent[b][i]) * x[b, i]
                ponder = ponder + number + 1 - spent[b][i]
                going, steps[b][i] = going - {(b, i)}, number
            else:
                total[b][i], spent[b][i] = total[b][i] + p * x[b, i], spent[b][i] + p
    out = torch.stack(
        [torch.stack([total[b][i] if real[b, i] else x[b, i] for i in range(length)]) for b in range(batch)]
    )
    return net.final_norm(out), ponder / real.sum(), steps


MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


@pytest.mark.parametrize('dense', [False, True])
@pytest.mark.parametrize(
    'flags',
    [{}, dict(kind=Encoder), dict(pre_norm=False), dict(cross_attend=True), dict(sandwich_norm=True)],
    ids=str,
)
def test_the_formula(flags, dense):
    net = built(act_dense=dense, act_eps=0.1, act_ponder_weight=0.5, **flags).train()
    x, context = randn(2, 6, 16).requires_grad_(), randn(2, 3, 16).requires_grad_()
    mask, given = (MASK, context) if 'cross_attend' in flags else (MASK, None)
    out, trace = net(x, mask=mask, context=given, return_hiddens=True)
    wanted, ponder, steps = by_graves(net, x, 0.1, mask, given)
    assert len({n for row in steps for n in row if n}) > 2
    assert_close(out[mask], wanted[mask])
    assert_close(trace.aux_losses['ponder'], 0.5 * ponder)
    leaves = [x, context, *net.parameters()]
    grads = [
        torch.autograd.grad(t[mask].sin().sum() + loss, leaves, allow_unused=True)
        for t, loss in ((out, trace.aux_losses['ponder']), (wanted, 0.5 * ponder))
    ]
    for grad, other in zip(*grads, strict=True):
        assert (grad is None) == (other is None)
        if grad is not None:
            assert_close(grad, other, 'gradient')


QUICK = {
    'plain',
    'cross_attend',
    'context_mask',
    'rotary_pos_emb',
    'rel_pos_bias',
    'alibi_pos_bias',
    'pos',
    'attn_bias',
}
QUICK |= {'use_adaptive_layernorm', 'reinject_input', 'deep_embeds_and_ids', 'attn_num_mem_kv', 'add_value_residual'}
QUICK |= {'gate_residual', 'attn_max_attend_past', 'num_memory_tokens', 'prefix_decoder', 'use_adaptive_layerscale'}
NEED_ALL = ('attn_selective', 'attn_inverted', 'attn_hybrid', 'attn_orthog_projected_values_over_sequence')
HALTS = dict(act_halting=True, weight_tie_layers=True, depth=5, act_eps=0.1)
SOME = [
    pytest.param(case, marks=() if case.name in QUICK else pytest.mark.nightly)
    for case in (*CASES, *CROSS_CASES)
    if case.flag not in ('act_dense', 'ut_transition')
    and not any(n in case.name for n in NEED_ALL)
    and 'attn_kernel' not in case.stack  # whose sums are those of all tokens
]


@pytest.mark.parametrize('case', SOME, ids=str)
def test_those_that_go_on_and_all(case):
    """To compute those that go on gives what all together give, and the same gradients, whatever else is on."""
    unless_refused(case.with_keywords(**HALTS))
    found = []
    for dense in (False, True):
        net = undecided(copy.deepcopy(model_of(case.with_keywords(**HALTS, act_dense=dense))))
        inputs = inputs_for(net, case)
        torch.manual_seed(0)
        out = net(**inputs)
        loss = sum(weighted(t) for t in (out if isinstance(out, tuple) else (out,)))
        found.append((loss, torch.autograd.grad(loss, [*net.parameters()], allow_unused=True)))
    (some, grads), (whole, others) = found
    assert_close(some, whole)
    for grad, other in zip(grads, others, strict=True):
        assert (grad is None) == (other is None)
        if grad is not None:
            assert_close(grad, other, 'gradient')


@pytest.mark.parametrize('name', (*NEED_ALL, 'attn_kernel'))
def test_who_needs_all_tokens(name):
    flags = {next(c.flag for c in CASES if c.name.startswith(name)): True}
    if name == 'attn_hybrid':
        flags = dict(attn_hybrid_module=torch.nn.Linear(16, 16).double())
    if 'values' in name:
        flags |= dict(attn_orthog_projected_values=True)
    if name == 'attn_kernel':
        flags = dict(attn_kernel='elu')
    kind = Decoder if name in ('attn_selective', 'attn_kernel') else Encoder
    with pytest.raises(
        ConfigError, match=f'`act_halting` cannot be combined with `{name[:15]}.*`: .* With `act_dense` it does'
    ):
        built(kind, act_eps=0.1, **flags)
    assert built(kind, act_eps=0.1, act_dense=True, **flags)(randn(2, 6, 16)).isfinite().all()


def continued(net, x, start, **options):
    """The output of a sequence, of which the first tokens are read at once, the others one by one with a cache."""
    out, trace = net(x[:, :start], **options)
    outs = [out]
    for place in range(start, x.shape[1]):
        out, trace = net(x[:, : place + 1], cache=trace, **options)
        outs.append(out)
    return torch.cat(outs, dim=1)


@pytest.mark.costly
def test_a_token_that_goes_on_reads_what_others_kept():
    """Token by token with a cache, where some halt after one step and later ones after five; and from a cut cache."""
    for bias, dense in ((-0.5, False), (1.5, False), (-0.5, True)):
        torch.manual_seed(0)
        stack = Decoder(**{**SIZES, 'act_dense': dense}, act_eps=0.1, rotary_pos_emb=True)
        net = TransformerWrapper(num_tokens=20, max_seq_len=12, attn_layers=stack).double()
        net = undecided(randomise(net), bias).eval()
        ids = torch.randint(0, 20, (2, 9))
        for rows in (ids, ids[:1]):  # of one row all tokens may have halted long before the last step
            assert_close(continued(net, rows, 4, return_intermediates=True), net(rows))


def test_later_tokens_read_the_keys_of_a_prompt_that_halted_at_once():
    """The first tokens halt after one step, the others run all: their keys of later steps are of the kept states."""
    stack = built(act_eps=0.1)
    with torch.no_grad():
        stack.halt.weight.zero_().add_(5.0)
        stack.halt.bias.zero_()
    x = randn(2, 6, 16)
    x[:, :3], x[:, 3:] = x[:, :3].abs() + 9, -x[:, 3:].abs() - 9  # the stream says who halts
    assert_close(continued(stack, x, 3, return_hiddens=True), stack(x))
    assert_close(stack(x), by_graves(stack, x, 0.1)[0])
    assert {n for row in by_graves(stack, x, 0.1)[2] for n in row} == {1, 5}


def test_weights_and_ponder():
    """Weights sum to one; a step more costs one, and what is left counts once."""
    for logits in (torch.randn(2, 7, 6), torch.full((2, 7, 6), -40.0), torch.full((2, 7, 6), 40.0)):
        p = logits.double().sigmoid().requires_grad_()
        halting = Halting(torch.zeros(2, 7, 1, dtype=torch.float64), None, 0.01)
        for step in range(6):
            halting.step(torch.ones(2, 7, 1, dtype=torch.float64), p[..., step], step + 1, step == 5)
        assert_close(halting.out, torch.ones(2, 7, 1, dtype=torch.float64))
        assert not halting.going.any()
        (grad,) = torch.autograd.grad(halting.ponder.sum(), p)
        ends = (p.cumsum(-1) >= 0.99).long().argmax(-1).masked_fill(~(p.cumsum(-1) >= 0.99).any(-1), 5)
        assert_close(grad, -(torch.arange(6) < ends.unsqueeze(-1)).double())
    exact = Halting(torch.zeros(1, 1, 1), None, 0.25)
    exact.step(torch.ones(1, 1, 1), torch.full((1, 1), 0.75), 1, False)
    assert not exact.going.any() and exact.ponder == 2  # a sum of exactly 1 - eps is enough


@pytest.mark.parametrize('bias', [-30.0, 30.0])
def test_never_and_at_once(bias):
    net = built()
    plain = Decoder(**{n: v for n, v in SIZES.items() if n != 'act_halting'}).double().eval()
    plain.load_state_dict({n: t for n, t in net.state_dict().items() if not n.startswith('halt')})
    with torch.no_grad():
        net.halt.weight.zero_()
        net.halt.bias.fill_(bias)
    x, once = randn(2, 5, 16), dict(repeat_blocks=(0, 1))
    assert_close(net(x), plain(x, **(once if bias > 0 else {})))


@pytest.mark.parametrize('dense', [False, True])
def test_at_most_so_many_steps(dense):
    """As a stack of that depth, with a cache too, also where all halt before or none does."""
    for bias in (-9.0, -0.5, 9.0):
        net, less = (
            undecided(built(act_eps=0.1, act_dense=dense, **flags), bias).train()
            for flags in (dict(act_max_steps=3), dict(depth=3))
        )
        less.load_state_dict(net.state_dict())
        x = randn(2, 6, 16)
        (out, trace), (wanted, other) = (t(x, return_hiddens=True) for t in (net, less))
        assert_close(out, wanted)
        assert_close(trace.aux_losses['ponder'], other.aux_losses['ponder'])
        assert_close(continued(net.eval(), x, 2, return_hiddens=True), wanted)


@pytest.mark.costly
def test_padding_ponders_nothing_and_halting_saves_work():
    net, x = built(Encoder, act_eps=0.1).train(), randn(2, 6, 16)
    losses = [
        net(t, mask=MASK, return_hiddens=True)[1].aux_losses['ponder']
        for t in (x, x.masked_fill(~MASK[..., None], 9.0))
    ]
    assert_close(*losses)
    work = []
    for bias in (-9.0, 3.0):
        with torch.no_grad():
            net.halt.bias.fill_(bias)
            net.halt.weight.zero_()
        with FlopCounterMode(display=False) as counter:
            net(x)
        work.append(counter.get_total_flops())
    assert 4.5 < work[0] / work[1] < 5.5
    net = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=built(act_ponder_weight=5.0))
    )
    ids = torch.randint(0, 9, (2, 8))
    assert net.double().train()(ids) > net.eval()(ids) + 5


@pytest.mark.parametrize(
    'flags',
    [
        dict(shift_tokens=1),
        dict(mv_split_residual=True),
        dict(per_layer_abs_pos_emb=9),
        dict(checkpoint_layers=True),
        dict(checkpoint_layers=2, coord_pos_emb=True),
        dict(ut_transition='sepconv', coord_pos_emb='learned'),
        dict(ut_transition='sepconv', pre_norm=False),
    ],
    ids=str,
)
def test_what_needs_all_tokens_goes_with_dense_ones(flags):
    """A token that has halted keeps its state, with a cache as without; recomputed layers give the same gradients."""
    net, x = built(act_dense=True, act_eps=0.1, **flags), randn(2, 6, 16)
    out, trace = net(x, return_hiddens=True)
    assert_close(continued(net, x, 3, return_hiddens=True), out)
    streams = [hidden for hidden in trace.layer_hiddens]
    assert len(streams) == 11
    if 'checkpoint_layers' not in flags:
        return
    grads = []
    for stack in (net, built(act_dense=True, act_eps=0.1, **{**flags, 'checkpoint_layers': False})):
        out, trace = stack.train()(x, return_hiddens=True)
        loss = out.sin().sum() + trace.aux_losses['ponder']
        grads.append(torch.autograd.grad(loss, [*stack.parameters()]))
    for grad, other in zip(*grads, strict=True):
        assert_close(grad, other)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (
            dict(ut_transition='sepconv'),
            "`act_halting` cannot be combined with layers of kind 'sepconv': .*With `act_dense`",
        ),
        (dict(act_dense=True, num_residual_streams=2), '`act_halting` cannot be combined with `num_residual_streams`'),
        (dict(act_dense=True, resi_dual=True), '`act_halting` cannot be combined with `resi_dual`'),
        (dict(weight_tie_layers=False), '`act_halting` needs `weight_tie_layers`'),
        (dict(act_eps=0.5), '`act_eps` must be a number between 0 and 0.5, got 0.5'),
        (dict(act_max_steps=0), '`act_max_steps` must be an integer of at least 1 or None, got 0'),
        (dict(act_max_steps=6), '`act_max_steps` got 6, the block runs 5 times: raise `depth`'),
        (dict(act_ponder_weight=-1), '`act_ponder_weight` must be a number of at least 0, got -1'),
        (dict(checkpoint_layers=True), '`act_halting` cannot be combined with `checkpoint_layers`'),
        (dict(reversible=True), '`act_halting` cannot be combined with `reversible`'),
        (dict(layer_dropout=0.1), '`act_halting` cannot be combined with `layer_dropout`'),
        (dict(shift_tokens=1), '`act_halting` cannot be combined with `shift_tokens`: each branch input contains'),
        (dict(num_residual_streams=2), '`act_halting` cannot be combined with `num_residual_streams`'),
    ],
    ids=str,
)
def test_refusals(flags, message):
    with pytest.raises(ConfigError, match=message):
        Decoder(**{**SIZES, **flags})


def test_refusals_of_calls():
    net, x = built(), randn(1, 3, 16)
    with pytest.raises(ValueError, match='`repeat_blocks` got 3 runs, more than `act_max_steps=2`'):
        built(act_max_steps=2)(x, repeat_blocks=(0, 3))
    with pytest.raises(ValueError, match='`transform_block_inputs` cannot be combined with `act_halting`'):
        net(x, transform_block_inputs=lambda block, x: x)
    with pytest.raises(ValueError, match='`layers_execute_order` cannot be combined with `act_halting`'):
        net(x, layers_execute_order=(0, 0, 1))

"""What is hidden may be anything, NaN and infinity included: it reaches no real token, and no parameter's gradient."""

import pytest
import torch
from law_cases import CASES, CROSS_CASES, each_of, inputs_for, is_per_token, model_of, per_token, refused, weighted
from oracles import assert_close
from toy_nets import vectors_of as vectors

from x_transformers import (
    Attention,
    AttentionPool,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)

REAL = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)
STRAYS = (float('nan'), float('inf'), float('-inf'))
SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8)


def with_strays(t, real, fill=None):
    """Rows (b n ...) with NaN and infinity where they are hidden, or 0; a row of a batch may hold all three."""
    stray = torch.tensor(STRAYS, dtype=t.dtype)[torch.arange(t.shape[1]) % 3].view(1, -1, *[1] * (t.ndim - 2))
    hidden = ~real.view(*real.shape, *[1] * (t.ndim - 2))
    return torch.where(hidden, stray if fill is None else torch.full_like(stray, fill), t)


def outputs_and_gradients(module, function):
    """What a function gives, and the gradient of a sum of it for every parameter."""
    out = function()
    names, parameters = zip(*module.named_parameters(), strict=True)
    grads = torch.autograd.grad(weighted(out), parameters, allow_unused=True)
    return out, dict(zip(names, grads, strict=True))


def check(module, function, real=None, exact=True):
    """`function(fill)` gives the same for any fill of what is hidden, None being NaN, to the last digit.

    Not `exact`: products of several tokens at once, of which some are hidden, round otherwise.
    """

    def same(one, other):
        return torch.equal(one, other) if exact else torch.allclose(one, other, rtol=1e-10, atol=1e-12)

    def shown(fill):
        out = function(fill)
        return out if real is None else out[real]

    (expected, wanted), (found, grads) = (outputs_and_gradients(module, lambda f=f: shown(f)) for f in (0.0, None))
    assert expected.isfinite().all()
    assert same(found, expected)
    for name, grad in grads.items():
        assert (grad is None) == (wanted[name] is None), name
        assert grad is None or (same(grad, wanted[name]) and grad.isfinite().all()), name
    for fill in (1.5, 1e300):  # what is finite does not matter either
        assert_close(shown(fill), expected)


NAMED = {str(case): case for case in (*CASES, *CROSS_CASES)}
NOT_HIDDEN = ('attn_bias', 'pos', 'rotary_pos_emb')  # these count no tokens that a mask could hide


def strays_law(case, kind):
    """Tokens that a mask hides, in every input that has one row for each."""
    case = case.of_kind(kind if issubclass(case.kind, (Decoder, Encoder)) else case.kind)
    if refused(case):
        assert 'causal' in refused(case)
        return
    net = model_of(case)
    inputs = inputs_for(net, case)
    if isinstance(net, TransformerWrapper):
        inputs['sum_embeds'] = vectors(3, 7, net.emb_dim)

    def filled(fill):
        def stray(t):
            return with_strays(t, REAL, fill) if t.is_floating_point() and t.shape[:2] == REAL.shape else t

        new = {
            name: each_of(name, stray, value) if is_per_token(name, value) and name not in NOT_HIDDEN else value
            for name, value in inputs.items()
        }
        for name, mask in (('context', 'context_mask'), ('prepend_embeds', 'prepend_mask')):
            if mask in inputs:
                new[name] = with_strays(inputs[name], inputs[mask], fill)
        return per_token(net, new, mask=REAL)

    check(net, filled, REAL, exact='ff_moe_experts' not in case.stack)


SOME = (
    'attn_qk_norm', 'attn_kv_heads', 'attn_data_dependent_alibi', 'attn_use_latent_kv', 'attn_hybrid_module',
    'attn_use_cope', 'attn_sigmoid', 'attn_use_entmax15', 'attn_learned_value_residual_mix', 'attn_head_learned_sink',
    'rotary_pos_emb', 'rel_pos_bias', 'shift_tokens', 'num_residual_streams', 'mv_split_residual', 'reinject_input',
    'use_adaptive_layernorm', 'post_emb_norm', 'average_pool_embed', 'num_memory_tokens', 'context_mask',
    'prepend_mask', 'self_attn_kv_residuals', 'in_attn_cond', 'continuous.sum_embeds',
)  # fmt: skip


@pytest.mark.parametrize('name', [name for name in SOME if name in NAMED])
def test_strays_of_some_flags(name):
    strays_law(NAMED[name], Decoder)


@pytest.mark.nightly
@pytest.mark.parametrize('name', NAMED)
@pytest.mark.parametrize('kind', [Decoder, Encoder])
def test_strays_of_every_flag(name, kind):
    strays_law(NAMED[name], kind)


# a layer alone


LAYERS = {
    'plain': {},
    'the formula': dict(flash=False),
    'rows that see nothing': dict(flash=False, qk_norm=True),
    'value residual': dict(learned_value_residual_mix=True),
    'memories': dict(num_mem_kv=2),
}


def layer(causal=False, **flags):
    return Attention(dim=16, heads=2, dim_head=8, causal=causal, **flags).double()


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('flags', LAYERS.values(), ids=LAYERS)
def test_strays_of_a_layer(flags, causal):
    net, x = layer(causal, **flags), vectors(3, 7, 16)
    given = {}
    if 'learned_value_residual_mix' in flags:
        given['value_residual'] = vectors(3, 2, 7, 8)

    def filled(fill):
        own = {n: with_strays(t.transpose(1, 2), REAL, fill).transpose(1, 2) for n, t in given.items()}
        return net(with_strays(x, REAL, fill), mask=REAL, **own)

    check(net, filled)


INPUTS = ('q_delta', 'k_delta', 'v_delta', 'o_delta', 'kv_input_residual')


@pytest.mark.parametrize('name', INPUTS)
def test_strays_of_what_is_added_to_tokens(name):
    net, x, given = layer(), vectors(3, 7, 16), vectors(3, 7, 16, seed=1)
    check(net, lambda fill: net(x, mask=REAL, **{name: with_strays(given, REAL, fill)}))


@pytest.mark.parametrize('flash', [None, False])
def test_strays_of_a_context(flash):
    net, x, context = layer(flash=flash), vectors(3, 4, 16), vectors(3, 7, 16, seed=1)
    check(net, lambda fill: net(x, context=with_strays(context, REAL, fill), context_mask=REAL))


@pytest.mark.parametrize('shape', ['b 1 1 j', 'i j'])
def test_strays_that_no_query_sees(shape):
    """A mask of scores that hides whole keys is one of padding; their own rows are nobody's output."""
    net, x, real = layer(flash=False), vectors(3, 7, 16), REAL[0].expand(3, -1)
    mask = real[:, None, None] if shape != 'i j' else REAL[0].expand(7, -1)
    check(net, lambda fill: net(x, context=with_strays(x, real, fill), attn_mask=mask))
    out = net(with_strays(x, real), attn_mask=mask)
    assert torch.equal(out[real], net(with_strays(x, real, 0.0), attn_mask=mask)[real])


def test_strays_of_memories_of_a_layer():
    net, x, mem = layer(), vectors(3, 4, 16), vectors(3, 7, 16, seed=1)
    check(net, lambda fill: net(x, mem=with_strays(mem, REAL, fill), mem_mask=REAL))


def test_strays_of_keys_of_the_caller():
    net, x, pair = layer(), vectors(3, 4, 16), (vectors(3, 7, 2, 8), vectors(3, 7, 2, 8, seed=1))

    def filled(fill):
        k, v = (with_strays(t, REAL, fill).transpose(1, 2) for t in pair)
        return net(x, additional_key_values=(k, v), additional_key_value_mask=REAL)

    check(net, filled)


# stacks and models


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(use_adaptive_rmsnorm=True)], ids=str)
def test_strays_of_memories(flags):
    net, x, mems = Decoder(**SIZES, **flags).double(), vectors(3, 4, 16), [vectors(3, 7, 16, seed=s) for s in (1, 2)]
    given = dict(condition=vectors(3, 16)) if 'use_adaptive_rmsnorm' in flags else {}
    masks = [REAL, REAL]
    check(net, lambda fill: net(x, mems=[with_strays(m, REAL, fill) for m in mems], mem_masks=masks, **given))


def test_strays_hidden_as_keys_alone():
    """The token itself is real, and its own output is NaN; nobody else sees it."""
    net, x = Encoder(**SIZES).double(), vectors(3, 7, 16)
    found, expected = (net(with_strays(x, REAL, fill), self_attn_kv_mask=REAL) for fill in (None, 0.0))
    assert torch.equal(found[REAL], expected[REAL]) and not found[~REAL].isfinite().any()


STARTS = torch.tensor([0, 2, 5])
BEGUN = torch.arange(7) >= STARTS[:, None]


@pytest.mark.parametrize(
    'around', [{}, dict(num_memory_tokens=2), dict(post_emb_norm=True), dict(probabilistic=True)], ids=str
)
@pytest.mark.parametrize('stack', [{}, dict(rotary_pos_emb=True), dict(shift_tokens=1)], ids=str)
def test_strays_on_the_left(stack, around):
    net = ContinuousTransformerWrapper(
        dim_in=5, dim_out=5, max_seq_len=9, attn_layers=Decoder(**SIZES, verbose=False, **stack), **around
    ).double()
    x = vectors(3, 7, 5)
    check(net, lambda fill: net(with_strays(x, BEGUN, fill), seq_start_pos=STARTS)[..., BEGUN, :])
    wrapped = ContinuousAutoregressiveWrapper(net)
    for cache_kv in (True, False):
        found, expected = (
            wrapped.generate(with_strays(x, BEGUN, f), 4, temperature=0.0, seq_start_pos=STARTS, cache_kv=cache_kv)
            for f in (None, 0.0)
        )
        assert torch.equal(found, expected) and found.isfinite().all()


def test_strays_beside_the_cache():
    """New tokens that are hidden, among them some, with what came before in the cache."""
    net, x = Decoder(**SIZES, rotary_pos_emb=True, verbose=False).double(), vectors(3, 7, 16)
    for fill in (None, 0.0):
        given, outs, cache = with_strays(x, REAL, fill), [], None
        for stop in (3, 4, 7):
            out, cache = net(given[:, :stop], mask=REAL[:, :stop], cache=cache, return_hiddens=True)
            outs.append(out)
        expected = net(with_strays(x, REAL, 0.0), mask=REAL)
        assert_close(torch.cat(outs, dim=1)[REAL], expected[REAL])


LENS = torch.tensor([7, 4, 2])
WITHIN = torch.arange(7) < LENS[:, None]


@pytest.mark.parametrize('loss', [{}, dict(equal_loss_weight_batch=True), dict(use_l1_loss=True)], ids=str)
@pytest.mark.parametrize(
    'given', [dict(lens=LENS), dict(mask=WITHIN), dict(lens=LENS, rollout_steps=2)], ids=lambda g: ' '.join(g)
)
@pytest.mark.parametrize('probabilistic', [False, True])
def test_strays_of_a_loss_of_vectors(loss, given, probabilistic):
    net = ContinuousTransformerWrapper(
        dim_in=5, dim_out=5, probabilistic=probabilistic, attn_layers=Decoder(**SIZES)
    ).double()
    model, x = (
        ContinuousAutoregressiveWrapper(net, **({} if probabilistic and 'use_l1_loss' in loss else loss)),
        vectors(3, 7, 5),
    )

    def filled(fill):
        torch.manual_seed(0)
        return model(with_strays(x, WITHIN, fill), **given)

    check(model, filled)


@pytest.mark.parametrize('emb_dim', [None, 6])
def test_strays_among_numbers(emb_dim):
    layers = Decoder(**SIZES)
    net = XValTransformerWrapper(num_tokens=7, numerical_token_id=3, max_seq_len=9, emb_dim=emb_dim, attn_layers=layers)
    model, ids = XValAutoregressiveWrapper(net).double(), torch.full((3, 7), 3)
    check(net, lambda fill: net(ids, with_strays(vectors(3, 7), REAL, fill), mask=REAL)[0], REAL)
    check(model, lambda fill: model(ids, with_strays(vectors(3, 7), WITHIN, fill), mask=WITHIN))


@pytest.mark.parametrize('depth', [1, 2])
def test_strays_of_a_pool(depth):
    pool, context = AttentionPool(dim=16, heads=2, dim_head=8, depth=depth).double(), vectors(3, 7, 16)
    check(pool, lambda fill: pool(with_strays(context, REAL, fill), mask=REAL))


def test_strays_of_a_cross_attender():
    net = CrossAttender(**SIZES, cross_attn_dim_context=12).double()
    x, context = vectors(3, 7, 16), vectors(3, 7, 12, seed=1)

    def filled(fill):
        given = dict(context=with_strays(context, REAL, fill), context_mask=REAL)
        return net(with_strays(x, REAL, fill), mask=REAL, **given)

    check(net, filled, REAL)


def test_strays_of_streams():
    streams = dict(note=7, length=5)
    net = MultiInputTransformerWrapper(
        num_tokens=streams, max_seq_len=9, emb_dim=6, attn_layers=Decoder(**SIZES)
    ).double()
    ids = {name: torch.arange(21).view(3, 7) % n for name, n in streams.items()}
    prefix, mask = vectors(3, 7, 6), REAL
    check(net, lambda fill: net(ids, prepend_embeds=with_strays(prefix, mask, fill), prepend_mask=mask)['note'][:, 7:])

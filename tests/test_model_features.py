"""What a token model can do beyond embedding, stack and head: each against its formula, and defects by number."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from building import vectors
from law_cases import randomise
from oracles import assert_close
from torch import nn
from torch.utils._pytree import tree_leaves

from x_transformers import (
    AttentionPool,
    AutoregressiveWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.core.notes import HasContexts
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import TokenEmbedding, calc_z_loss

SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False)
TOKENS, LONGEST = 11, 12


def model(stack=None, kind=Decoder, **flags):
    torch.manual_seed(0)
    flags = {'num_tokens': TOKENS, 'max_seq_len': LONGEST, **flags}
    net = TransformerWrapper(attn_layers=kind(**{**SIZES, **(stack or {})}), **flags)
    return randomise(net.double())


def ids(batch=2, length=7, seed=0):
    return torch.randint(0, TOKENS, (batch, length), generator=torch.Generator().manual_seed(seed))


MASK = torch.arange(7) < torch.tensor([[4], [7]])


# logits


def test_sigsoftmax_adds_the_log_of_a_sigmoid():
    net = model(sigsoftmax_logits=True)
    net.to_logits.weight.data *= 100  # T16: a sigmoid that underflows has a finite logarithm
    hidden = net(ids(), return_embeddings=True)
    raw = net.to_logits(hidden)
    logits = net(ids())
    assert logits.isfinite().all() and raw.min() < -40
    moderate = raw > -30
    assert_close(logits[moderate], (raw + raw.sigmoid().log())[moderate])


@pytest.mark.parametrize('sig', [False, True])
def test_mixture_of_softmax(sig):
    net = model(mixture_of_softmax=True, mixture_of_softmax_k=3, sigsoftmax_logits=sig)
    hidden = net(ids(), return_embeddings=True)  # T1: embeddings alone need no logits
    share = (hidden @ net.combine_mixture.weight.T).softmax(dim=-1)
    parts = (hidden @ net.to_mixture[0].weight.T).unflatten(-1, (3, 16)) @ net.to_logits.weight.T
    parts = parts + F.logsigmoid(parts) if sig else parts
    expected = (share.unsqueeze(-1) * parts.softmax(dim=-1)).sum(dim=-2).log()
    log_probs, embeddings = net(ids(), return_logits_and_embeddings=True)
    assert_close(log_probs, expected, tolerance=1e-6)
    assert_close(embeddings, hidden)  # T26: those before the mixture
    assert net.output_is_log_prob
    assert_close(log_probs.exp().sum(dim=-1), torch.ones(2, 7, dtype=torch.float64), tolerance=1e-6)


def test_no_class_of_a_mixture_is_impossible():
    net = model(mixture_of_softmax=True)
    with torch.no_grad():
        net.to_logits.weight.mul_(1e4)
    assert net(ids()).min().item() == pytest.approx(math.log(1e-20))


def test_loss_of_a_mixture_is_the_likelihood():
    net = model(mixture_of_softmax=True)
    loss = AutoregressiveWrapper(net)(ids())
    expected = F.nll_loss(net(ids())[:, :-1].flatten(0, 1), ids()[:, 1:].flatten())
    assert_close(loss, expected, tolerance=1e-6)


def test_a_single_logit_without_its_axis():
    net = model(logits_dim=1, squeeze_out_last_dim=True)
    out, hidden = net(ids(), return_logits_and_embeddings=True)
    assert_close(out, (hidden @ net.to_logits.weight.T).squeeze(-1))
    assert net(ids(), return_embeddings=True).shape == (2, 7, 16)  # T1
    assert model(squeeze_out_last_dim=True)(ids()).shape == (2, 7, TOKENS)


@pytest.mark.parametrize('flags', [dict(sigsoftmax_logits=True), {}], ids=str)
def test_t17_several_heads(flags):
    """Entropies and what changes logits work on every head."""
    net = model(num_output_heads=2, **flags)
    logits, inter = net(ids(), return_logit_entropies=True)
    for one, entropy in zip(logits, inter.logit_entropies, strict=True):
        p = one.softmax(dim=-1)
        assert_close(entropy, -(p * p.log()).sum(dim=-1))


# passes


def test_recycling_is_the_stack_again_on_its_own_output():
    net = model(recycling=True, train_max_recycle_steps=3)
    x = net.attn_layers
    seen = []
    x.register_forward_hook(
        lambda module, args, out: seen.append((args[0].detach(), out[0] if isinstance(out, tuple) else out))
    )
    net(ids(), recycle_steps=3)
    assert len(seen) == 3
    for (_, before), (now, _) in itertools.pairwise(seen):
        assert_close(now, seen[0][0] + before @ net.recycled_proj.weight.T)
    assert_close(net(ids()), net(ids(), recycle_steps=3))  # G18: in evaluation, as many as in training at most
    assert not torch.allclose(net(ids(), recycle_steps=1), net(ids(), recycle_steps=2))
    assert not net.can_cache_kv


def test_only_the_last_recycling_pass_has_a_gradient():
    net = model(recycling=True)
    twice, once = (net(ids(), recycle_steps=n).square().sum() for n in (2, 1))
    assert torch.autograd.grad(once, net.recycled_proj.weight, allow_unused=True)[0] is None
    grad = torch.autograd.grad(twice, net.recycled_proj.weight, retain_graph=True)[0]
    assert grad.abs().max() > 0
    # by hand: what the first pass gave is a number
    x = net.token_emb(ids()) + net.pos_emb(ids())
    with torch.no_grad():
        first = net.attn_layers(x)
    by_hand = net.to_logits(net.attn_layers(x + net.recycled_proj(first))).square().sum()
    assert_close(by_hand, twice)
    for name, parameter in net.attn_layers.named_parameters():
        assert_close(*(torch.autograd.grad(z, parameter, retain_graph=True)[0] for z in (twice, by_hand)), what=name)
    with pytest.raises(ValueError, match='`recycle_steps` must be an integer of at least 1, got 0'):
        net(ids(), recycle_steps=0)


def test_t18_recycling_steps_need_recycling():
    with pytest.raises(TypeError, match='unexpected input `recycle_steps`'):
        model()(ids(), recycle_steps=2)


LOOP = dict(stack=dict(pre_and_post_norm=True), looped=True, max_looped_steps=3)


def test_a_looped_model_runs_its_stack_on_its_output():
    net = model(**LOOP)
    x = net.project_emb(net(ids(), return_intermediates=True)[1].initial_embeds)
    states = []
    for _ in range(3):
        x = net.attn_layers(x)
        states.append(x)
    logits, inter = net(ids(), return_intermediates=True, looped_pred_all_logits=True)
    assert_close(logits, net.to_logits(states[-1]))
    for step, state in enumerate(states):
        assert_close(inter.exit_logits[step], state @ net.exit_gate.weight.T)
        assert_close(inter.all_pred_logits[step], net.to_logits(state))
    assert_close(net(ids(), looped_steps=1), net.to_logits(states[0]))
    assert_close(net(ids(), max_looped_steps=2), net.to_logits(states[1]))
    with pytest.raises(ConfigError, match='pre_and_post_norm'):
        model(looped=True)


@pytest.mark.parametrize(
    'flags', [{}, dict(rotary_pos_emb=True), dict(shift_tokens=1), dict(cross_attend=True)], ids=str
)
def test_every_pass_of_a_loop_has_a_cache_of_its_own(flags):
    net = model(**{**LOOP, 'stack': {**LOOP['stack'], **flags}})
    extra = dict(context=vectors(2, 3, 16)) if 'cross_attend' in flags else {}
    whole, cache, outs = net(ids(), **extra), None, []
    for stop in (3, 4, 6, 7):
        out, cache = net(ids()[:, :stop], cache=cache, return_intermediates=True, **extra)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole)
    cropped = cache.cache.crop(4)
    for one in (cache.cache, cropped, cache.cache.detach()):
        assert torch.equal(one.model_states['exits'].value, torch.full((1, 4), 2))
    assert_close(net(ids(), cache=cropped, return_intermediates=True, **extra)[0], whole[:, 4:])


def test_a_gate_may_end_a_loop_early():
    """The probability to have stopped, by the formula; passes that did not run get the keys of the last that did."""
    net = model(**LOOP)
    x = ids(1, 6)
    prompt, cache = net(x[:, :5], return_intermediates=True, looped_inference=True)
    assert_close(prompt, net(x[:, :5]))  # a prompt runs all passes
    _, full = net(x, cache=cache, return_intermediates=True, looped_steps=3, looped_pred_all_logits=True)
    gates = [float(g.detach()) for g in full.exit_logits]
    stay, spent, chosen = 1.0, 0.0, 2
    for step in range(2):
        p = torch.tensor(gates[step]).sigmoid().item()
        spent, stay = spent + stay * p, stay * (1 - p)
        if spent >= 0.3:
            chosen = step
            break
    out, early = net(x, cache=cache, return_intermediates=True, looped_inference=True, looped_exit_prob_threshold=0.3)
    assert early.exit_indices.tolist() == [[2, chosen]]  # of the prompt, and of this call
    assert_close(out, full.all_pred_logits[chosen])
    at_once, first = net(
        x, cache=cache, return_intermediates=True, looped_inference=True, looped_exit_prob_threshold=0.0
    )
    assert first.exit_indices.tolist() == [[2, 0]] and first.cache.length == 6
    parts = first.cache.split(3)
    for part in parts[1:]:
        for own, of_first in zip(part.layers, parts[0].layers, strict=True):
            assert_close(own.pair[0][..., -1:, :], of_first.pair[0][..., -1:, :])
    assert at_once.shape == (1, 1, TOKENS)
    with pytest.raises(ValueError, match='looped_inference'):
        net(ids(2), looped_inference=True)


def test_what_gates_of_all_passes_say_adds_up():
    """Neither gate alone reaches the threshold, both together do."""
    net = model(**LOOP)
    x = ids(1, 6)
    _, cache = net(x[:, :5], return_intermediates=True, looped_inference=True)
    gates = net(x, cache=cache, return_intermediates=True, looped_steps=3)[1].exit_logits
    first, second = (float(gate.detach().sigmoid()) for gate in gates[:2])
    both = first + (1 - first) * second
    assert max(first, (1 - first) * second) < 0.9 * both
    for share, chosen in ((0.95, 1), (1.01, 2)):
        options = dict(looped_inference=True, looped_exit_prob_threshold=share * both)
        trace = net(x, cache=cache, return_intermediates=True, **options)[1]
        assert trace.exit_indices.tolist() == [[2, chosen]]


# pooling


@pytest.mark.parametrize('depth', [1, 2])
def test_pooling_by_attention(depth):
    net = model(kind=Encoder, attn_pool=True, num_pooled_tokens=3, attn_pool_depth=depth, dim_pooled_tokens=12)
    pooled, inter = net(ids(), return_intermediates=True)
    hidden = net(ids(), return_embeddings=True)
    assert pooled.shape == (2, 3, 12)
    assert_close(pooled, net.attn_pool(hidden))
    assert_close(inter.attn_pooled_tokens, pooled)
    assert_close(inter.logits, net.to_logits(hidden))
    causal = model(attn_pool=True)  # the output of a decoder stays its logits
    logits, inter = causal(ids(), return_intermediates=True)
    assert logits.shape == (2, 7, TOKENS) and inter.attn_pooled_tokens.shape == (2, 1, 16)


def test_attention_pool_is_attention_of_its_queries():
    torch.manual_seed(0)
    pool = randomise(AttentionPool(dim=16, num_pooled_tokens=2, dim_context=6, heads=2, dim_head=8).double())
    context = vectors(2, 7, 6)
    q, k, v = (
        to(t).unflatten(-1, (2, 8)).transpose(1, 2)
        for to, t in (
            (pool.pooler.to_q, pool.queries.expand(2, -1, -1)),
            (pool.pooler.to_k, context),
            (pool.pooler.to_v, context),
        )
    )
    scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~MASK[:, None, None], -torch.inf)
    expected = pool.pooler.to_out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
    assert_close(pool(context, mask=MASK), expected)
    with_residual = AttentionPool(dim=16, num_pooled_tokens=2, dim_context=6, heads=2, dim_head=8, add_residual=True)
    with_residual.double().load_state_dict(pool.state_dict())
    assert_close(with_residual(context, mask=MASK), expected + pool.queries)
    own = vectors(2, 3, 16, seed=4)
    bare = AttentionPool(dim=16, num_pooled_tokens=0, dim_context=6, heads=2, dim_head=8).double()
    bare.load_state_dict({n: t for n, t in pool.state_dict().items() if n != 'queries'}, strict=True)
    assert bare(context, queries=own).shape == (2, 3, 16)
    with pytest.raises(ValueError, match=r'queries. is missing'):
        bare(context)
    assert AttentionPool(dim=16, squeeze_output=True)(torch.randn(2, 5, 16)).shape == (2, 16)


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(num_pooled_tokens=2, squeeze_output=True), 'squeeze_output'),
        (dict(depth=2, use_transformer_blocks=False), 'use_transformer_blocks'),
        (dict(depth=2, add_residual=True), 'add_residual'),
        (dict(depht=2), 'did you mean `depth`'),
    ],
)
def test_refusals_of_the_pool(flags, words):
    with pytest.raises(ConfigError, match=words):
        AttentionPool(dim=16, **flags)


def test_t24_keywords_of_the_attention_reach_the_blocks():
    pool = AttentionPool(dim=16, depth=2, attn_kwargs=dict(num_mem_kv=3))
    assert [name for name, _ in pool.named_parameters() if 'mem_k' in name]


def test_t5_average_pool_with_mask_and_prefix():
    net = model(kind=Encoder, average_pool_embed=True)
    prefix = vectors(2, 2, 16)
    out = net(ids(), mask=MASK, prepend_embeds=prefix)
    alone = net(ids()[:1, :4], prepend_embeds=prefix[:1])
    assert_close(out[:1], alone)


def test_t6_one_way_to_pool():
    for other in ('average_pool_embed', 'use_cls_token'):
        with pytest.raises(ConfigError, match='attn_pool'):
            model(kind=Encoder, attn_pool=True, **{other: True})


def test_t7_pool_with_memory_tokens_and_mask():
    net = model(kind=Encoder, attn_pool=True, num_memory_tokens=3)
    assert_close(net(ids(), mask=MASK)[:1], net(ids()[:1, :4]))


# memory tokens in front of every chunk


@pytest.mark.parametrize('extra', ['none', 'mask', 'prefix', 'cls'])
def test_t8_interspersed_memory_tokens(extra):
    """By hand: the sequence that the stack sees, and what is read from it."""
    flags = dict(use_cls_token=True) if extra == 'cls' else {}
    net = model(num_memory_tokens=2, memory_tokens_interspersed_every=3, **flags)
    plain = model(**flags)
    x, mask = ids(), MASK if extra == 'mask' else None
    prefix = vectors(2, 2, 16) if extra == 'prefix' else None
    out, inter = net(x, mask=mask, prepend_embeds=prefix, return_intermediates=True)
    tokens = inter.initial_embeds
    if extra == 'cls':
        tokens = torch.cat((net.cls_token.expand(2, -1, -1), tokens), dim=1)
    length = tokens.shape[1]
    chunks = -(-length // 3)
    filled = F.pad(tokens, (0, 0, 0, 3 * chunks - length)).unflatten(1, (chunks, 3))
    stacked = torch.cat((net.memory_tokens.expand(2, chunks, -1, -1), filled), dim=2).flatten(1, 2)
    real = None
    if mask is not None:
        real = F.pad(F.pad(mask, (0, 3 * chunks - length)).unflatten(1, (chunks, 3)), (2, 0), value=True).flatten(1, 2)
    hidden = net.attn_layers(stacked, mask=real).unflatten(1, (chunks, 5))
    tokens = hidden[:, :, 2:].flatten(1, 2)[:, :length]
    assert_close(inter.memory_tokens, hidden[:, :, :2].flatten(0, 1))
    expected = net.to_logits(tokens[:, 0] if extra == 'cls' else tokens)
    seen = mask if mask is not None else slice(None)
    assert_close(out[seen], expected[seen])
    assert not net.can_cache_kv and plain.can_cache_kv == (extra != 'cls')
    with pytest.raises(ConfigError, match='causal'):
        model(kind=Encoder, num_memory_tokens=2, memory_tokens_interspersed_every=3)


# per-token scales of the feedforwards


@pytest.mark.parametrize('extra', ['none', 'prefix', 'memory', 'cls'])
def test_t9_deep_embeds(extra):
    """A token's vectors multiply what feedforwards give; tokens without an id are left alone."""
    flags = dict(memory=dict(num_memory_tokens=2), cls=dict(use_cls_token=True)).get(extra, {})
    net = model(kind=Encoder if extra == 'cls' else Decoder, ff_deep_embed=True, **flags)
    inputs = dict(prepend_embeds=vectors(2, 2, 16)) if extra == 'prefix' else {}
    leading = dict(none=0, prefix=2, memory=2, cls=1)[extra]
    seen = []
    for layer in net.attn_layers.layers:
        if layer.kind == 'f':
            layer[1].register_forward_pre_hook(
                lambda module, args, kwargs: seen.append(kwargs['deep_embed']), with_kwargs=True
            )
    net(ids(), **inputs)
    for number, scale in enumerate(seen):
        assert_close(scale[:, leading:], net.ff_deep_embed[ids(), number])
        assert (scale[:, :leading] == 1).all()
    assert len(seen) == 2


def test_deep_embeds_beside_interspersed_memory_tokens():
    """Tokens keep their scales, whatever stands between them."""
    net = model(ff_deep_embed=True, num_memory_tokens=2, memory_tokens_interspersed_every=3)
    seen = []
    for layer in net.attn_layers.layers:
        if layer.kind == 'f':
            layer[1].register_forward_pre_hook(
                lambda module, args, kwargs: seen.append(kwargs['deep_embed']), with_kwargs=True
            )
    net(ids(), prepend_embeds=vectors(2, 1, 16))
    assert len(seen) == 2
    for number, scale in enumerate(seen):
        chunks = scale.unflatten(1, (3, 5))
        assert (chunks[:, :, :2] == 1).all()
        tokens = chunks[:, :, 2:].flatten(1, 2)
        assert (tokens[:, :1] == 1).all()
        assert_close(tokens[:, 1:8], net.ff_deep_embed[ids(), number])


# the next embedding


@pytest.mark.parametrize('emb_dim', [16, 10])
def test_g9_continuous_prediction_head(emb_dim):
    net = model(add_continuous_pred_head=True, emb_dim=emb_dim)
    out, (pred, embeds) = net(ids(), return_next_embed_pred=True)
    hidden = net(ids(), return_embeddings=True)
    head = net.to_next_embed_pred
    assert_close(pred, F.silu(hidden @ head[0].weight.T) @ head[2].weight.T)
    assert pred.shape == embeds.shape == (2, 7, emb_dim)
    assert_close(out, net(ids()))
    with pytest.raises(TypeError, match='return_next_embed_pred'):
        model()(ids(), return_next_embed_pred=True)


# functions of the caller's


def test_functions_on_token_embeddings_and_blocks():
    net = model(max_seq_len=0)
    doubled = net(ids(), transform_token_embeds=lambda t: 2 * t)
    by_hand = model(max_seq_len=0)
    by_hand.token_emb.emb.weight.data *= 2
    assert_close(doubled, by_hand(ids()))
    assert_close(net(ids(), transform_block_inputs={1: lambda t: 2 * t}), doubled)
    calls = []

    def record(block, t):
        calls.append((block, tuple(t.shape)))
        return t

    assert_close(net(ids(), transform_block_inputs=record), net(ids()))
    assert calls == [(1, (2, 7, 16)), (2, (2, 7, 16))]


# the remaining defects of the model


def test_t2_logits_of_a_model_without_head():
    net = model(return_only_embed=True)
    for name in ('return_logits_and_embeddings', 'return_logit_entropies'):
        with pytest.raises(ValueError, match='has no head'):
            net(ids(), **{name: True})
    with pytest.raises(ValueError, match='set only one'):
        model()(ids(), return_embeddings=True, return_logits_and_embeddings=True)


@pytest.mark.parametrize('flags', [{}, dict(num_output_heads=2)], ids=str)
def test_t3_prepended_embeddings_are_excised(flags):
    net, prefix = model(**flags), vectors(2, 3, 16)
    for name in ('return_embeddings', 'return_logits_and_embeddings', None):
        options = {} if name is None else {name: True}
        out = net(ids(), prepend_embeds=prefix, excise_prepend_embeds=True, **options)
        whole = net(ids(), prepend_embeds=prefix, **options)
        for cut, full in zip(tree_leaves(out), tree_leaves(whole), strict=True):
            assert_close(cut, full[:, 3:])


def test_t4_nothing_is_excised_of_a_pooled_output():
    net = model(kind=Encoder, average_pool_embed=True)
    out = net(ids(), prepend_embeds=vectors(2, 3, 16), excise_prepend_embeds=True)
    assert out.shape == (2, TOKENS)


def test_t10_t11_sinusoids():
    net = model(scaled_sinu_pos_emb=True, l2norm_embed=True)
    alone = net(ids()[1:, :4])
    padded = torch.cat((ids()[:, :3], ids()[:, :4]), dim=1)
    out = net(padded, seq_start_pos=torch.tensor([0, 3]))
    assert_close(out[1:, 3:], alone)
    rows = torch.stack((torch.arange(7), torch.arange(7) + 2))
    assert_close(net(ids(), pos=rows)[:1], net(ids()[:1]))


def test_t12_positions_as_vectors_beside_rotary():
    net = model(stack=dict(rotary_pos_emb=True))
    out = net(ids(), pos=vectors(7, 16))
    assert_close(out, net(ids(), sum_embeds=vectors(7, 16).expand(2, -1, -1)))


def test_t13_the_weight_of_the_z_loss_is_that_of_the_model():
    light, heavy = (model(attn_z_loss_weight=w) for w in (1e-4, 1e-2))
    a, b = (net(ids(), return_attn_z_loss=True)[1].attn_z_loss for net in (light, heavy))
    assert_close(b, 100 * a)
    assert_close(light(ids(), return_attn_z_loss=True, attn_z_loss_weight=1e-2)[1].attn_z_loss, b)


def test_t14_an_embedding_of_the_users_keeps_its_weights():
    own = TokenEmbedding(16, TOKENS)
    before = own.emb.weight.clone()
    TransformerWrapper(num_tokens=TOKENS, max_seq_len=8, token_emb=own, attn_layers=Decoder(**SIZES))
    assert torch.equal(own.emb.weight, before)


def test_t15_tied_embeddings_are_validated():
    for flags in (dict(emb_dim=10), dict(num_output_heads=2), dict(logits_dim=5)):
        with pytest.raises(ConfigError, match='tie_embedding'):
            model(tie_embedding=True, **flags)
    net = model(tie_embedding=True, l2norm_embed=True)
    hidden = net(ids(), return_embeddings=True)
    table = F.normalize(net.token_emb.emb.weight, dim=-1)
    assert_close(net(ids()), hidden @ table.T * 16**-0.5)


def test_tied_logits_follow_another_table():
    """One put in the place of the first; a model that shares the head keeps its own."""
    net, other = model(tie_embedding=True), model()
    other.to_logits = net.to_logits
    wanted, old = other(ids()), net.to_logits
    net.token_emb = TokenEmbedding(16, 2 * TOKENS).double()
    hidden = net(ids(), return_embeddings=True)
    assert_close(net(ids()), hidden @ net.token_emb.emb.weight.T * 16**-0.5)
    assert net(ids()).shape[-1] == 2 * TOKENS and other.to_logits is old
    assert_close(other(ids()), wanted)


def test_t19_memories_may_be_any_sequence():
    net = model(max_mem_len=4)
    mems = [vectors(2, 3, 16, seed=i) for i in range(2)]
    assert_close(net(ids(), mems=tuple(mems)), net(ids(), mems=mems))


def test_t20_several_new_tokens():
    net = model(input_not_include_cache=True)
    _, cache = net(ids()[:, :3], return_intermediates=True)
    assert_close(net(ids()[:, 3:], cache=cache), net(ids())[:, 3:])


def test_t22_what_cannot_be_cached_says_so():
    for flags, kind in ((dict(use_cls_token=True), Decoder), (dict(average_pool_embed=True), Decoder), ({}, Encoder)):
        assert not model(kind=kind, **flags).can_cache_kv


@pytest.mark.parametrize('flash', [True, None, False])
def test_t23_maps_and_losses_of_logits_on_every_kernel(flash):
    net = model(stack=dict(attn_flash=flash))
    plain = model(stack=dict(attn_flash=False))
    for ours, theirs in zip(net(ids(), return_attn=True)[1], plain(ids(), return_attn=True)[1], strict=True):
        assert_close(ours, theirs)
    losses = [m(ids(), return_attn_z_loss=True)[1].attn_z_loss for m in (net, plain)]
    assert_close(*losses)


def test_t25_a_pooled_token_keeps_its_axis():
    net = model(kind=Encoder, attn_pool=True)
    assert net(ids()).shape == (2, 1, 16)
    out, maps = net(ids(), return_attn=True)
    assert out.shape == (2, 1, 16) and len(maps) == 2


def test_heads_of_the_users():
    head = nn.Linear(16, 5).double()
    net = TransformerWrapper(num_tokens=TOKENS, max_seq_len=8, to_logits=head, attn_layers=Decoder(**SIZES)).double()
    assert net(ids()).shape == (2, 7, 5)


# losses of the autoregressive wrapper


def test_loss_of_a_looped_net():
    """Losses of all passes by the probability to stop there, and the gate learns where another pass is worth it."""
    net = model(**LOOP)
    x = ids(2, 7)
    x[0, 5:] = -100
    wrapper = AutoregressiveWrapper(
        net, looped_loss_threshold_exit=0.1, looped_loss_slope=3.0, looped_exit_loss_weight=0.5
    )
    _, inter = net(x.clamp(min=0), return_intermediates=True, looped_pred_all_logits=True)
    total, gate_total, count = 0.0, 0.0, 0
    for b in range(2):
        for i in range(6):
            if x[b, i + 1] == -100:
                continue
            losses = [-z[b, i].log_softmax(dim=-1)[x[b, i + 1]] for z in inter.all_pred_logits]
            stops = [g[b, i, 0].sigmoid() for g in inter.exit_logits]
            weights = [stops[0], (1 - stops[0]) * stops[1], (1 - stops[0]) * (1 - stops[1])]
            total += sum(w * c for w, c in zip(weights, losses, strict=True))
            for step in range(2):
                worth = torch.sigmoid(3.0 * (losses[step + 1] - losses[step] + 0.1))
                gate_total += -(worth * stops[step].log() + (1 - worth) * (1 - stops[step]).log())
            count += 1
    expected = total / (3 * count) + 0.5 * gate_total / (2 * count)
    loss = wrapper(x)
    assert_close(loss, expected.detach())
    loss.backward()
    assert net.exit_gate.weight.grad.abs().max() > 0


@pytest.mark.parametrize('flags', [dict(mixture_of_softmax=True), dict(num_output_heads=2)], ids=str)
def test_loss_of_a_looped_net_with_other_heads(flags):
    """The logits of every pass are read out as the last ones are; of several heads, the mean counts."""
    net = model(**LOOP, **flags)
    logits, inter = net(ids(), return_intermediates=True, looped_pred_all_logits=True)
    for own, last in zip(tree_leaves(inter.all_pred_logits[-1]), tree_leaves(logits), strict=True):
        assert_close(own, last)
    once = model(**{**LOOP, 'max_looped_steps': 1}, **flags)
    plain = [F.cross_entropy(z[:, :-1].transpose(1, 2), ids()[:, 1:]) for z in tree_leaves(once(ids()))]
    assert_close(AutoregressiveWrapper(once)(ids()), sum(plain).detach() / len(plain), tolerance=1e-6)


def test_exits_are_counted_call_by_call():
    net, cache = model(**LOOP), None
    for stop in (4, 5, 6):
        _, cache = net(ids(1)[:, :stop], cache=cache, return_intermediates=True, looped_inference=True)
    assert cache.exit_indices.shape == (1, 3) and cache.exit_indices[0, 0] == 2


@pytest.mark.parametrize('prefix', [False, True])
def test_forgetful_masks_beside_interspersed_memory_tokens(prefix):
    net = model(num_memory_tokens=2, memory_tokens_interspersed_every=3)
    inputs = dict(prepend_embeds=vectors(2, 2, 16)) if prefix else {}
    losses = [AutoregressiveWrapper(net, mask_prob=p)(ids(), **inputs) for p in (0.0, 0.4)]
    assert losses[1].isfinite() and not torch.allclose(*losses)


def test_a_net_of_one_logit_is_no_language_model():
    with pytest.raises(ValueError, match='logits_dim=1'):
        AutoregressiveWrapper(model(logits_dim=1))


def test_g10_loss_of_a_looped_net_with_a_prefix():
    net = model(**LOOP)
    loss, (logits, _) = AutoregressiveWrapper(net)(ids(), prepend_embeds=vectors(2, 3, 16), return_outputs=True)
    assert logits.shape == (2, 6, TOKENS) and loss.isfinite()


@pytest.mark.parametrize('prefix', [False, True])
def test_g9_loss_of_the_next_embedding(prefix):
    net = model(add_continuous_pred_head=True, emb_dim=10)
    x = ids()
    x[1, 4:] = -100
    inputs = dict(prepend_embeds=vectors(2, 2, 10)) if prefix else {}
    loss = AutoregressiveWrapper(net, next_embed_loss_weight=0.7)(x, **inputs)
    out, (pred, embeds) = net(x.clamp(min=0), return_next_embed_pred=True, **inputs)
    lead = 2 if prefix else 0
    out, pred, embeds = out[:, lead:], pred[:, lead:], embeds[:, lead:]
    targets = x[:, 1:]
    token_loss = F.cross_entropy(out[:, :-1].transpose(1, 2), targets, ignore_index=-100)
    errors = (pred[:, :-1] - embeds[:, 1:]).abs()[targets != -100].mean()
    assert_close(loss, (token_loss + 0.7 * errors).detach())
    # what is predicted does not learn from its prediction
    errors = (pred[:, :-1] - embeds[:, 1:].detach()).abs()[targets != -100].mean()
    grads = [torch.autograd.grad(z, net.token_emb.emb.weight)[0] for z in (loss, token_loss + 0.7 * errors)]
    assert_close(*grads)


def test_a_looped_net_generates():
    net = model(**LOOP).eval()
    wrapper = AutoregressiveWrapper(net)
    prompt = ids(2, 3)
    cached = wrapper.generate(prompt, 5, temperature=0.0)
    assert torch.equal(cached, wrapper.generate(prompt, 5, temperature=0.0, cache_kv=False))
    tokens = prompt
    for _ in range(5):
        tokens = torch.cat((tokens, net(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(cached, tokens[:, 3:])
    assert wrapper.generate(prompt[:1], 5, temperature=0.0).shape == (1, 5)  # one row may stop early


# the z-loss


def z_loss_by_hand(maps, counted):
    """Mean over queries of sum over heads of (sum over layers of log sum exp)^2, as loops."""
    total, queries = 0.0, 0
    batch, heads, rows, _ = maps[0].shape
    for b in range(batch):
        for i in range(rows):
            known = [z[b, :, i] for z, seen in zip(maps, counted, strict=True) if seen[b, i].any()]
            queries += bool(known)
            for h in range(heads):
                total += sum(z[h][torch.isfinite(z[h]) & (z[h] > -1e30)].exp().sum().log().item() for z in known) ** 2
    return total / max(queries, 1)


@pytest.mark.parametrize('hidden', [-torch.inf, 'lowest'])
def test_queries_that_see_nothing_have_no_z_loss(hidden):
    dtype = torch.float64
    hidden = torch.finfo(dtype).min if hidden == 'lowest' else hidden
    maps = [torch.randn(2, 3, 4, 5, dtype=dtype) for _ in range(2)]
    seen = [torch.rand(2, 4, 5) < 0.6 for _ in maps]
    for one in seen:
        one[:, :, 0], one[0, 1] = True, False
    seen[1][1, 2] = False  # in one layer only
    maps = [z.masked_fill(~s[:, None], hidden).requires_grad_() for z, s in zip(maps, seen, strict=True)]
    loss = calc_z_loss(maps)
    assert loss.item() == pytest.approx(z_loss_by_hand(maps, seen), rel=1e-12)
    loss.backward()
    assert all(z.grad.isfinite().all() and (z.grad[0, :, 1] == 0).all() for z in maps)
    mask = torch.tensor([[True, True, False, False], [True, False, False, True]])
    seen = [one & mask.unsqueeze(-1) for one in seen]
    maps = [z.detach() for z in maps]
    assert calc_z_loss(maps, mask=mask, weight=0.5).item() == pytest.approx(0.5 * z_loss_by_hand(maps, seen), rel=1e-12)
    assert calc_z_loss([torch.full((1, 2, 3, 3), hidden, dtype=dtype)]).item() == 0.0


@pytest.mark.parametrize('flash', [None, False])
def test_the_z_loss_of_a_model_with_blind_rows_or_without_attention(flash):
    net = model(stack=dict(layer_dropout=0.999, attn_flash=flash)).train()
    out, trace = net(ids(), return_attn_z_loss=True)
    assert trace.attn_intermediates == [] and trace.attn_z_loss.item() == 0 and trace.attn_z_loss.dtype == out.dtype
    loss, _ = AutoregressiveWrapper(net, add_attn_z_loss=True)(ids(), return_outputs=True)
    assert loss.isfinite()
    net.eval()
    seen = torch.ones(2, 7, 7, dtype=torch.bool).tril()
    seen[:, 3] = False
    z = net(ids(), return_attn_z_loss=True, attn_mask=seen[:, None])[1].attn_z_loss
    z.backward()
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    assert z.isfinite() and z > 0 and grads and all(grad.isfinite().all() for grad in grads)


# encoder and decoder


def translator(**options):
    sizes = dict(num_tokens=TOKENS, max_seq_len=LONGEST, depth=1, heads=2, attn_dim_head=8)
    both = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    torch.manual_seed(0)
    return randomise(XTransformer(dim=16, **both, **options).double())


def test_a_prefix_of_the_source_is_seen_beside_its_mask():
    net, src, tgt, prefix = translator(), ids(), ids(seed=1), vectors(2, 3, 16)
    context = net.encoder(src, mask=MASK, prepend_embeds=prefix)
    seen = torch.cat((torch.ones(2, 3, dtype=torch.bool), MASK), dim=1)
    given = dict(mask=MASK, src_prepend_embeds=prefix)
    assert_close(net(src, tgt, **given), net.decoder(tgt, context=context, context_mask=seen))
    made = net.decoder.generate(tgt[:, :1], 5, context=context, context_mask=seen, temperature=0.0)
    assert torch.equal(net.generate(src, tgt[:, :1], 5, temperature=0.0, **given), made)
    without = net.decoder(tgt, context=context, context_mask=torch.cat((~seen[:, :3], MASK), dim=1))
    assert (net(src, tgt, **given) - without).abs() > 1e-3


def test_tokens_of_the_source_are_dropped_in_training_only():
    net, src, tgt = translator(cross_attn_tokens_dropout=0.5), ids(), ids(seed=1)
    assert_close(net(src, tgt), net.decoder(tgt, context=net.encoder(src)))
    assert (net.train()(src, tgt) - net(src, tgt)).abs() > 1e-6


def test_registers_of_an_image_model_are_no_patches():
    layers = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    net = ViTransformerWrapper(
        image_size=8, patch_size=4, channels=1, num_classes=3, num_register_tokens=2, attn_layers=layers
    )
    net, seen = randomise(net.double()), []
    net.attn_layers.register_forward_hook(lambda module, args, out: seen.append(out))
    logits, patches = net(vectors(2, 1, 8, 8), return_logits_and_embeddings=True)
    assert seen[0].shape == (2, 6, 16) and torch.equal(patches, seen[0][:, :4])
    assert_close(logits, net.mlp_head(patches.mean(dim=1)))


def test_class_and_memory_tokens_are_taken_off():
    net = model(kind=Encoder, use_cls_token=True, num_cls_tokens=2, num_memory_tokens=3)
    seen = []
    net.attn_layers.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    out, trace = net(ids(), return_intermediates=True)
    (whole,) = seen
    in_front = whole[:, :-7]
    assert in_front.shape == (2, 5, 16)
    assert_close(trace.last_layer_hiddens, whole[:, 5:])
    both = torch.cat((trace.memory_tokens, trace.memory_tokens), dim=1)[:, :3]
    assert any(torch.equal(both, in_front[:, at : at + 3]) for at in (0, 2))
    cls = next(
        part for at, part in ((0, in_front[:, 3:]), (2, in_front[:, :2])) if torch.equal(both, in_front[:, at : at + 3])
    )
    assert_close(out, net.to_logits(cls))


def test_a_mixture_has_the_digits_of_single_precision():
    net = model(mixture_of_softmax=True, mixture_of_softmax_k=2).bfloat16()
    (feature,) = net.features.by_stage['head_input']
    call = HasContexts()
    call.ctx(feature).mixture = vectors(2, 3, 2).float().log_softmax(dim=-1)
    logits = (8 * vectors(2, 3, 2, 500, seed=2)).bfloat16()
    wanted = (call.ctx(feature).mixture.unsqueeze(-1) + logits.float().log_softmax(dim=-1)).logsumexp(dim=-2)
    assert torch.equal(feature.logits(logits, call), wanted.clamp(min=math.log(1e-20)).bfloat16())

"""Half precision is float32 up to its digits: sums, norms, scores and losses are formed in float32, what is hidden
weighs nothing, and no number leaves the range of float16 on the way to one that is inside of it.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from x_transformers import (
    AdaptiveRMSNorm,
    Attention,
    AutoregressiveWrapper,
    Classifier,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    RMSNorm,
    TransformerWrapper,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.attend import Attend
from x_transformers.autoregressive_wrapper import contrastive_decode_fn
from x_transformers.compat import helpers
from x_transformers.continuous_autoencoder import ContinuousTransformerAutoencoder, gaussian_divergence
from x_transformers.core import rows as blocks
from x_transformers.core.modes import clamp_to_dtype, precise_matmul
from x_transformers.discover_wrapper import TPREncoder
from x_transformers.features.contextual import HeadMixer
from x_transformers.features.convolutions import BatchNorm
from x_transformers.features.embeddings import mean_of_real
from x_transformers.features.memory.compression import Mean
from x_transformers.generation.sampling import guide_logits
from x_transformers.modalities.decision import DecisionTransformer, returns_to_go
from x_transformers.next_latent_wrapper import MSECosineSimLoss
from x_transformers.objectives.test_time_training import newtonschulz5
from x_transformers.patterns import BlockLocal
from x_transformers.recirculation import norm_matched
from x_transformers.training import AuxLosses
from x_transformers.x_transformers import (
    MultiheadRMSNorm,
    ScaleNorm,
    SimpleRMSNorm,
    TokenEmbedding,
    calc_z_loss,
    entropy,
    l2norm,
)

SMALL = dict(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
HALF = [torch.float16, torch.bfloat16]
FLASH = [None, False, True]


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near(half, single, tolerance=4e-3):
    assert half.isfinite().all() and single.isfinite().all()
    assert (half.float() - single.float()).abs().max() <= tolerance * (single.abs().max() + 1e-3)


def built(make, dtype=torch.float16):
    """A module, and the same in half precision."""
    torch.manual_seed(0)
    module = make().eval()
    return module, copy.deepcopy(module).to(dtype)


def ways(module, half, *inputs, **options):
    """What a module gives in half precision, cast and under autocast."""
    cast = [t.half() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
    with torch.autocast('cpu', dtype=torch.float16):
        under_autocast = module(*inputs, **options)
    return half(*cast, **options), under_autocast


# norms

NORMS = {
    'RMSNorm': lambda: RMSNorm(512),
    'ScaleNorm': lambda: ScaleNorm(512),
    'SimpleRMSNorm': lambda: SimpleRMSNorm(512),
    'MultiheadRMSNorm': lambda: MultiheadRMSNorm(512, 1),
    'AdaptiveRMSNorm': lambda: AdaptiveRMSNorm(512, 3),
    'l2norm': nn.Identity,
    'groups': nn.Identity,
}


@pytest.mark.parametrize('name', NORMS)
@pytest.mark.parametrize('dtype', HALF)
def test_norms_of_all_sizes(name, dtype):
    """Squares of 60,000 are beyond float16, those of 1e-7 below it, and zeros give zeros, with finite gradients."""
    norm, half = built(NORMS[name], dtype)
    x = torch.tensor([0.0, 1e-7, 3e-3, 4000.0, 60000.0])[:, None] * drawn(1, 512).sign()
    x = x.to(dtype)
    call = {
        'l2norm': lambda m, x: l2norm(x),
        'groups': lambda m, x: l2norm(x, 4),
        'AdaptiveRMSNorm': lambda m, x: m(x[None], condition=torch.zeros(1, 3, dtype=x.dtype))[0],
        'MultiheadRMSNorm': lambda m, x: m(x[None])[0],
    }.get(name, lambda m, x: m(x))
    found = call(half, x)
    assert found.dtype == dtype
    assert (found[0] == 0).all()
    near(found, call(norm, x.float()), 1e-2 if dtype == torch.bfloat16 else 2e-3)
    leaf = torch.zeros(2, 512, dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(call(half, leaf).float().sum(), leaf)
    assert grad.isfinite().all()


def test_embeddings_of_unit_length():
    for value in (0.0, 1e-5, 40000.0):
        table = TokenEmbedding(64, 3, l2norm_embed=True)
        table.emb.weight.data[:] = value
        half = copy.deepcopy(table).half()
        near(half(torch.arange(3)), table(torch.arange(3)))
        near(half.table(), table.table())


def test_zeros_in_padding_reach_no_real_token():
    x = drawn(1, 6, 16)
    x[:, 4:] = 0
    hidden = torch.arange(6)[None] < 4
    for flags in (
        dict(use_rmsnorm=True),
        dict(use_scalenorm=True),
        dict(attn_qk_norm=True),
        dict(attn_qk_rmsnorm=True),
    ):
        stack, half = built(lambda flags=flags: Encoder(**SMALL, **flags))
        wanted = stack(x[:, :4])
        for found in ways(stack, half, x, mask=hidden):
            near(found[:, :4], wanted, 1e-2)


# what is hidden


@pytest.mark.parametrize('flash', FLASH)
@pytest.mark.parametrize('many', [False, True])
def test_shared_queries_and_keys_see_nothing_later(flash, many, monkeypatch):
    """The first token sees itself alone, however unwelcome it is to itself."""
    if many:
        monkeypatch.setitem(blocks.LARGE, 'cpu', 8)
        monkeypatch.setattr(blocks, 'FEWEST_ROWS', 2)
    x = 4 * drawn(2, 6, 16)
    later = x.clone()
    later[:, -1] = drawn(2, 16, seed=1)
    stack, half = built(lambda: Decoder(**SMALL, attn_shared_qk=True, attn_flash=flash))
    for found, other in zip(ways(stack, half, x), ways(stack, half, later), strict=True):
        assert torch.equal(found[:, :-1], other[:, :-1])
        near(found, stack(x), 1e-2)


@pytest.mark.parametrize('flash', FLASH)
@pytest.mark.parametrize('low', [-33000.0, -60000.0, -1e6])
def test_hidden_keys_weigh_nothing_whatever_is_added_to_the_others(flash, low):
    q, k, v = (drawn(1, 2, 5, 8, seed=seed).half() for seed in range(3))
    bias = torch.zeros(1, 1, 5, 5)
    bias[..., 1] = low
    mask = torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    mask[..., 1] = True  # the one key that is seen
    attend = Attend(flash=flash)
    near(attend(q, k, v, mask=mask, attn_bias=bias)[0], v[:, :, 1:2].expand(-1, -1, 5, -1))
    mask[..., 2] = True
    near(attend(q, k, v, mask=mask, attn_bias=bias)[0], v[:, :, 2:3].expand(-1, -1, 5, -1))
    with torch.autocast('cpu', dtype=torch.float16):
        mask[..., 2] = False
        near(attend(q.float(), k.float(), v.float(), mask=mask, attn_bias=bias)[0], v[:, :, 1:2].expand(-1, -1, 5, -1))


@pytest.mark.parametrize('causal', [False, True])
def test_hidden_keys_weigh_nothing_among_low_scores(causal, monkeypatch):
    """Whole keys that are hidden are a feature of what torch's kernel multiplies, where there are many."""
    monkeypatch.setitem(blocks.LARGE, 'cpu', 8)
    q, k, v = 150 * torch.ones(1, 1, 6, 8).half(), -150 * torch.ones(1, 1, 6, 8).half(), drawn(1, 1, 6, 4).half()
    k[:, :, 1] = 0  # their scores are 60,000 above those of the others
    mask = torch.tensor([[True, False, True, True, False, True]])
    attend = Attend(causal=causal)
    k[:, :, 4] = 0
    found = attend(q, k, v, mask=mask)[0]
    near(found, attend(q.float(), k.float(), v.float(), mask=mask)[0], 2e-3)
    other = torch.where(mask[:, None, :, None], v, 100.0)
    assert torch.equal(attend(q, k, other, mask=mask)[0], found)


def test_biases_beyond_the_range_are_cut():
    found = clamp_to_dtype(torch.tensor([1e6, -1e6, -torch.inf, 3.0]), torch.float16)
    assert found.tolist() == [65504.0, -65504.0, -torch.inf, 3.0]


# scores


@pytest.mark.parametrize(
    'flag', ['', 'talking_heads', 'pre_talking_heads', 'l2_distance', 'shaw_rel_pos', 'sparse_pattern']
)
def test_scores_beyond_the_range(flag):
    """Of queries and keys that are inside of it, by the formula."""
    flags = {flag: BlockLocal(3) if flag == 'sparse_pattern' else True} if flag else {}
    attention, half = built(lambda: Attention(dim=8, dim_head=8, heads=2, flash=False, **flags))
    with torch.no_grad():
        for net in (attention, half):
            net.to_q.weight.fill_(40.0)
            net.to_k.weight.fill_(40.0)
    x = drawn(1, 5, 8).abs() + 1
    x[0, 2] *= -1
    wanted = attention(x.half().float())
    for found in ways(attention, half, x.half().float()):
        near(found, wanted, 2e-2)


def test_products_that_float16_does_not_hold():
    one = torch.full((2, 4), 300.0)
    assert precise_matmul(one.half(), one.half().mT).dtype == torch.float32
    near(precise_matmul(one.half(), one.half().mT), one @ one.mT)
    assert precise_matmul(one.bfloat16(), one.bfloat16().mT).dtype == torch.bfloat16
    with torch.autocast('cpu', dtype=torch.float16):
        assert torch.equal(precise_matmul(one, one.mT), torch.full((2, 2), 36e4))


def test_mixed_heads_stay_what_they_are():
    mixer = HeadMixer(2).half()
    scores = torch.full((1, 2, 3, 3), 1e5)
    assert mixer(scores).dtype == torch.float32 and mixer(scores).isfinite().all()
    assert mixer(scores[..., :0, :].half()).dtype == mixer(torch.ones(1, 2, 3, 3).half()).dtype == torch.float16


# choosing tokens


def language(kind=Decoder):
    return TransformerWrapper(num_tokens=12, max_seq_len=16, attn_layers=kind(**SMALL))


@pytest.mark.parametrize('options', [
    dict(logit_bias={3: 1e5}), dict(logit_bias={3: -1e5, 4: 1e6}), dict(repetition_penalty=1e5),
    dict(frequency_penalty=5e4, presence_penalty=5e4), dict(temperature=0.0, logit_bias={3: 7e4}),
])  # fmt: skip
def test_options_of_choosing_beyond_the_range(options):
    _, half = built(lambda: AutoregressiveWrapper(language()))
    ids = torch.arange(1, 7).view(2, 3)
    torch.manual_seed(1)
    found = half.generate(ids, 2, **options)
    torch.manual_seed(1)
    wanted = copy.deepcopy(half).float().generate(ids, 2, **options)
    assert torch.equal(found, wanted)


def test_guidance_and_contrast_beyond_the_range():
    logits, others = torch.tensor([40000.0, -40000.0, 1.0]), torch.tensor([-40000.0, 40000.0, 2.0])
    near(guide_logits(logits.half(), others.half(), 3.0), guide_logits(logits, others, 3.0))
    found = contrastive_decode_fn(logits.half(), others.half(), beta=2.0)
    assert found.dtype == torch.float16 and found.isfinite().all() and found.argmax() == 0


# losses of numbers


def vectors(**options):
    stack = Decoder(**SMALL)
    net = ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=16, attn_layers=stack, **options.pop('net', {}))
    return ContinuousAutoregressiveWrapper(net, **options)


def encoded(**options):
    sizes = dict(dim=16, enc_depth=1, dec_depth=1, max_seq_len=9, dim_input=4, heads=2, attn_dim_head=8)
    return ContinuousTransformerAutoencoder(**sizes, latents_dropout_prob=0.0, **options)


def amounts():
    net = XValTransformerWrapper(num_tokens=9, max_seq_len=9, numerical_token_id=3, attn_layers=Decoder(**SMALL))
    return XValAutoregressiveWrapper(net)


def decisions(**options):
    stack = Decoder(**SMALL)
    return DecisionTransformer(5, 3, stack, max_ep_len=64, context_len=20, **options)


WALK = dict(states=drawn(2, 6, 5), timesteps=torch.arange(6))
OFTEN = torch.tensor([[1, 3, 3, 2, 3, 3]])
LOSSES = {
    'squares': (vectors, lambda m, x: m(x), 400 * drawn(2, 8, 4)),
    'rolled out': (vectors, lambda m, x: m(x, rollout_steps=1, lens=torch.tensor([8, 5])), 400 * drawn(2, 8, 4)),
    'fourth powers': (lambda: vectors(loss_fn=lambda p, t: (p - t) ** 4), lambda m, x: m(x), 40 * drawn(2, 8, 4)),
    'likelihood': (lambda: vectors(net=dict(probabilistic=True)), lambda m, x: m(x), 400 * drawn(2, 8, 4)),
    'autoencoder': (encoded, lambda m, x: m(x), 400 * drawn(2, 8, 4)),
    'autoencoder, rows': (encoded, lambda m, x: m(x, return_unreduced_loss=True), 400 * drawn(2, 8, 4)),
    'numbers': (amounts, lambda m, x: m(OFTEN, x), 4000 * drawn(1, 6)),
    'one number': (
        lambda: Classifier(language(Encoder), num_classes=1),
        lambda m, x: m(OFTEN.expand(2, -1), torch.tensor([70000.0, 1.0])), torch.zeros(1)),
    'actions': (decisions, lambda m, x: m.loss(dict(WALK, states=WALK['states'].to(x.dtype), actions=x, rtg=x[..., 0])),
                3000 * drawn(2, 6, 3)),
    'rewards': (
        lambda: decisions(return_scale=5e4),
        lambda m, x: m.loss(dict(WALK, states=WALK['states'].to(x.dtype), actions=x / 1e5, rewards=x[..., 0].abs())),
        15000 * drawn(2, 6, 3)),
}  # fmt: skip


@pytest.mark.parametrize('name', LOSSES)
def test_losses_of_numbers(name):
    make, call, x = LOSSES[name]
    model, half = built(make)
    x = x.half()
    wanted = call(model, x.float())
    assert wanted.isfinite().all()
    for cast in (True, False):
        with torch.autocast('cpu', dtype=torch.float16, enabled=not cast):
            found = call(half if cast else model, x if cast else x.float())
        assert found.dtype == torch.float32
        near(found, wanted, 2e-2)


def test_variances_that_float16_does_not_hold():
    net, half = built(lambda: ContinuousTransformerWrapper(
        dim_in=4, dim_out=4, max_seq_len=9, attn_layers=Decoder(**SMALL), probabilistic=True))  # fmt: skip
    for model in (net, half):
        model.project_out.weight.data.mul_(60.0)
    x = drawn(1, 5, 4)
    found = half(x.half())
    assert found.dtype == torch.float16 and found.isfinite().all() and net(x)[1].max() > 7e4


def test_losses_of_features_are_single():
    with AuxLosses() as aux:
        aux.add('one', torch.tensor(60000.0).half())
        aux.add('one', torch.tensor(60000.0).half())
    total = aux.added_to(torch.tensor(1.0).half())
    assert total.dtype == torch.float32 and total == 120001.0


def test_log_sums_are_squared_in_float32():
    """300 squared is beyond the range of float16."""
    logits = torch.full((1, 1, 2, 2), 300.0)
    assert calc_z_loss([logits.half()]).item() == pytest.approx(calc_z_loss([logits]).item(), rel=1e-5)


def test_entropies_of_many_tokens():
    assert entropy(torch.zeros(50000).half()).item() == pytest.approx(math.log(50000), abs=1e-4)


def test_returns_are_sums_of_rewards():
    rewards = torch.full((2, 200), 1000.0).half()
    found = returns_to_go(rewards)
    assert found.dtype == torch.float32
    near(found, returns_to_go(rewards.float()), 0)
    model, half = built(lambda: decisions(return_scale=1e5))
    rtg = torch.full((2, 6), 2e5)
    options = dict(actions=drawn(2, 6, 3), timesteps=torch.arange(6))
    wanted = model(WALK['states'], rtg=rtg, **options)
    near(half(WALK['states'].half(), rtg=rtg, **dict(options, actions=options['actions'].half())), wanted, 1e-2)
    large = copy.deepcopy(half)
    large.return_scale = 1.0  # what is beyond the range is at its end
    options['actions'] = options['actions'].half()
    assert large(WALK['states'].half(), rtg=rtg, **options).isfinite().all()


def test_numbers_of_words_beyond_the_range():
    net, half = built(lambda: amounts().net)
    half.token_emb.emb.weight.data.mul_(0.01)
    net.token_emb.emb.weight.data.mul_(0.01)
    near(half._embed(OFTEN, torch.full(OFTEN.shape, 2e5)), net._embed(OFTEN, torch.full(OFTEN.shape, 2e5)))


def test_bindings_are_fitted_in_float32():
    torch.manual_seed(0)
    model = TPREncoder(dim=8, num_fillers=4, num_roles=3).half()
    tokens = torch.zeros(2, 3, dtype=torch.long)
    loss = model.fit(tokens, tokens, torch.full((2, 8), 400.0).half(), steps=1)
    assert 1e5 < loss < 3e5


# sums and means

LONG = torch.full((1, 100, 4), 3000.0).half()
REAL = torch.arange(100)[None] < 90
SUMS = {
    'mean of real tokens': lambda x: mean_of_real(x, REAL),
    'mean of memories': lambda x: Mean(50).joined(x, REAL.unflatten(1, (2, 50))),
    'batch norm': lambda x: BatchNorm(4).to(x.dtype).train()(x * torch.linspace(-1, 1, 100)[:, None].to(x.dtype)),
    'masked mean': lambda x: helpers.masked_mean(x, REAL),
    'logarithm': lambda x: helpers.log(torch.zeros(3, dtype=x.dtype)),
    'matched norms': lambda x: norm_matched(x, x / 2),
    'matched norms of zeros': lambda x: norm_matched(x * 0, x),
    'squares and angles': lambda x: MSECosineSimLoss()(x, -x),
    'divergence': lambda x: gaussian_divergence(x / 4, x / 3000),
    'entropy of logits': lambda x: entropy(x / 3000),
    'orthogonal': lambda x: newtonschulz5(x)[0],
}  # fmt: skip


@pytest.mark.parametrize('name', SUMS)
def test_sums(name):
    torch.manual_seed(0)
    near(SUMS[name](LONG), SUMS[name](LONG.float()), 5e-3)


@pytest.mark.parametrize('proj', ['mean', 'max'])
def test_slots_of_many_keys(proj):
    layer, half = built(lambda: Attention(
        dim=8, dim_head=8, heads=1, linformer_k=2, linformer_max_len=200, linformer_proj=proj))  # fmt: skip
    x = drawn(1, 160, 8) + 1
    with torch.no_grad():
        for net in (layer, half):
            net.to_v.weight.mul_(1000.0)
    for found in ways(layer, half, x, mask=torch.arange(160)[None] < 150):
        near(found, layer(x, mask=torch.arange(160)[None] < 150), 1e-2)
    assert F.relu(layer.to_v(x)).sum() > 65504

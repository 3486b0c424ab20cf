"""Linear attention: its formula as a matrix of weights, chunks, a state of fixed size, and random features."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from building import vectors
from law_cases import randomise
from oracles import assert_close
from test_toy_tasks import taught
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.features.linear.kernel import CHUNKS
from x_transformers.features.linear.maps import favor, orthogonal_normals, relu_features
from x_transformers.flags import ConfigError

N, TIGHT = 13, 1e-12
KERNELS = {
    'elu': dict(kernel='elu'),
    'relu': dict(kernel='relu', kernel_features=10),
    'favor': dict(kernel='favor', kernel_features=10),
    'pairs': dict(kernel='favor', kernel_features=10, kernel_hyperbolic=True),
}
EACH = pytest.mark.parametrize('kernel', KERNELS.values(), ids=KERNELS.keys())
HOLES = torch.tensor(
    [[0, 0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0]], dtype=torch.bool
)
DOCUMENTS = torch.tensor([[0] * 5 + [7] * 7 + [3], [2, 2, 5, 5, 5, 2, 2, 1, 1, 5, 5, 2, 2]])


def layer(causal=True, scale=0.4, **flags):
    torch.manual_seed(0)
    sizes = dict(heads=4, dim_head=6, value_dim_head=5, kv_heads=2, causal=causal)
    return randomise(Attention(16, **sizes, **flags).double(), scale=scale)


def features_of(attn, t, root):
    if attn.kernel_features is None and not hasattr(attn, 'features_w'):
        return F.elu(t * root) + 1
    feature = attn.features.by_stage['attend'][0]
    if feature.kernel == 'relu':
        return relu_features(t * root, attn.features_w)
    return exponentials(t * root, attn.features_w, feature.kernel_hyperbolic)


def exponentials(x, w, pairs=False):
    features, level = favor(x, w, pairs)
    return features * level.exp()


def dense(attn, x, seen, front=0):
    """All weights at once:  w_ts = phi(q_t) . phi(k_s), where a query sees a key."""
    q, k, v = (t(x).unflatten(-1, (-1, w)).transpose(1, 2) for t, w in ((attn.to_q, 6), (attn.to_k, 6), (attn.to_v, 5)))
    if front:
        k, v = (torch.cat((m.expand(len(x), -1, -1, -1), t), dim=2) for m, t in ((attn.mem_k, k), (attn.mem_v, v)))
    q, k = (features_of(attn, t, 6**-0.25) for t in (q, k))
    weights = (q @ k.repeat(1, 2, 1, 1).mT) * seen  # query head h reads key head h mod 2
    sums, eps = weights.sum(dim=-1, keepdim=True), 0.0 if hasattr(attn, 'features_w') else 1e-6
    out = (weights @ v.repeat(1, 2, 1, 1)) / (sums + eps).clamp(min=1e-300)
    return attn.to_out(out.transpose(1, 2).flatten(2))


def sight(causal, mask=None, ids=None):
    """Which keys each query sees, b 1 n n."""
    seen = torch.ones(2, 1, N, N, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    seen = seen if mask is None else seen & mask[:, None, None]
    return seen if ids is None else seen & (ids[:, None, :, None] == ids[:, None, None])


CALLS = {
    'plain': {},
    'padding': dict(mask=HOLES),
    'documents': dict(document_ids=DOCUMENTS),
    'both': dict(document_ids=DOCUMENTS, mask=HOLES),
}


EVERY_CHUNK = ((0, 1), (0, 7), (2, 3), (2, 64), (0, N))


@pytest.mark.parametrize(
    'chunks', [((0, 7), (2, 3)), pytest.param(EVERY_CHUNK, marks=pytest.mark.nightly)], ids=['some', 'all']
)
@EACH
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('inputs', CALLS.values(), ids=CALLS.keys())
def test_the_dense_twin_in_chunks_of_any_length(kernel, causal, inputs, chunks):
    x, mask = vectors(2, N, 16).requires_grad_(), inputs.get('mask')
    for front, chunk in chunks:
        attn = layer(causal, kernel_chunk=chunk, num_mem_kv=front, **kernel)
        seen = torch.nn.functional.pad(sight(causal, mask, inputs.get('document_ids')), (front, 0), value=True)
        wanted, out = dense(attn, x, seen, front), attn(x, **inputs)
        wanted = wanted if mask is None else wanted * mask[..., None]
        assert_close(out, wanted, tolerance=TIGHT)
        params = [x, *attn.parameters()]
        found, grads = (torch.autograd.grad(t.sin().sum(), params) for t in (out, wanted))
        for one, other in zip(found, grads, strict=True):
            assert_close(one, other, 'gradient', tolerance=1e-10)


@EACH
def test_a_context(kernel):
    torch.manual_seed(0)
    attn = randomise(Attention(16, heads=4, dim_head=6, value_dim_head=5, kv_heads=2, **kernel).double())
    x, context, real = vectors(2, 3, 16), vectors(2, N, 16, seed=2), HOLES
    q, k, v = attn.to_q(x), attn.to_k(context), attn.to_v(context)
    q, k, v = (t.unflatten(-1, (-1, w)).transpose(1, 2) for t, w in ((q, 6), (k, 6), (v, 5)))
    q, k = (features_of(attn, t, 6**-0.25) for t in (q, k.repeat(1, 2, 1, 1)))
    weights = (q @ k.mT) * real[:, None, None]
    weights = weights / (weights.sum(dim=-1, keepdim=True) + (0.0 if hasattr(attn, 'features_w') else 1e-6))
    wanted = attn.to_out((weights @ v.repeat(1, 2, 1, 1)).transpose(1, 2).flatten(2))
    assert_close(attn(x, context=context, context_mask=real), wanted, tolerance=TIGHT)


@EACH
@pytest.mark.parametrize('update', ['sum', 'gate', 'delta'])
def test_nothing_at_all(kernel, update):
    """No tokens, or no rows, with all that may be said of them."""
    for b, n in ((2, 0), (0, 5)):
        for causal in (True, False) if update == 'sum' else (True,):
            attn = layer(causal, kernel_update=update, **kernel)
            for inputs in ({}, dict(mask=torch.ones(b, n).bool()), dict(document_ids=torch.zeros(b, n).long())):
                x = vectors(b, n, 16).requires_grad_()
                out = attn(x, **inputs)
                assert out.shape == torch.autograd.grad(out.sum(), x)[0].shape == x.shape


@EACH
def test_many_spans(kernel, monkeypatch):
    """Of more chunks than are computed at once."""
    attn, x = layer(kernel_chunk=2, num_mem_kv=2, **kernel), vectors(2, N, 16)
    for inputs in CALLS.values():
        for causal in (True, False):
            wanted = attn(x, causal=causal, **inputs)
            monkeypatch.setattr('x_transformers.features.linear.kernel.CHUNKS', 2)
            assert_close(attn(x, causal=causal, **inputs), wanted, tolerance=TIGHT)
            monkeypatch.setattr('x_transformers.features.linear.kernel.CHUNKS', CHUNKS)


@EACH
@pytest.mark.parametrize('size', [1.0, 50.0])
def test_no_look_ahead(kernel, size):
    """Other content behind a token changes nothing, however large; nor does it have a gradient."""
    attn, x = layer(kernel_chunk=4, **kernel), vectors(1, N, 16).requires_grad_()
    for t in (0, 2, 6):
        later = torch.cat((x[:, : t + 1], vectors(1, N - t - 1, 16, seed=3) * size), dim=1)
        assert_close(attn(later)[:, : t + 1], attn(x)[:, : t + 1], tolerance=TIGHT)
        assert_close(attn(x[:, : t + 1]), attn(x)[:, : t + 1], tolerance=TIGHT)
        (grad,) = torch.autograd.grad(attn(x)[:, t].sum(), x)
        assert (grad[:, t + 1 :] == 0).all() and (grad[:, : t + 1].abs().amax(dim=-1) > 0).all()


@EACH
@pytest.mark.parametrize('causal', [True, False])
def test_outputs_lie_between_values(kernel, causal):
    attn, x = layer(causal, kernel_chunk=4, **kernel), vectors(2, N, 16) * 3
    heads = []
    attn.to_out.register_forward_pre_hook(lambda module, args: heads.append(args[0].unflatten(-1, (4, 5))))
    _, trace = attn(x, return_intermediates=True)
    values = trace.values.repeat(1, 2, 1, 1).transpose(1, 2)  # b n h d
    least = values.cummin(dim=1).values if causal else values.amin(dim=1, keepdim=True)
    most = values.cummax(dim=1).values if causal else values.amax(dim=1, keepdim=True)
    slack = 1e-9 if hasattr(attn, 'features_w') else 1e-3  # that of 1e-6 in the denominator
    assert (heads[0] >= least - slack * least.abs()).all() and (heads[0] <= most + slack * most.abs()).all()


@EACH
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_large_logits_are_finite(kernel, causal, dtype):
    """Fifty times those that are usual, with huge keys behind small ones and before them."""
    attn = layer(causal, kernel_chunk=4, **kernel).to(dtype)
    x = (vectors(2, 40, 16) * 7 * torch.linspace(0.1, 2, 40, dtype=torch.float64)[:, None]).to(dtype)
    for given in (x, x.flip(1)):
        given = given.detach().requires_grad_()
        out = attn(given)
        grads = torch.autograd.grad(out.float().sum(), [given, *attn.parameters()])
        assert out.isfinite().all()
        assert dtype == torch.float16 or all(grad.isfinite().all() for grad in grads)  # a gradient may be too large


# the state


def stack(kind=Decoder, **flags):
    torch.manual_seed(0)
    return randomise(kind(dim=16, depth=2, heads=4, attn_dim_head=6, verbose=False, **flags).double())


def in_stack(kernel):
    return {f'attn_{name}': value for name, value in kernel.items()}


@EACH
def test_a_prompt_of_any_length_and_what_follows(kernel):
    net, x = stack(attn_kernel_chunk=4, **in_stack(kernel)), vectors(2, N, 16)
    whole = net(x)
    for prompt in (1, 3, 4, 5, 8, 12):
        outs, cache = [], None
        for start, stop in itertools.pairwise((0, prompt, *range(prompt + 1, N), N)):
            out, cache = net(x[:, start:stop], cache=cache, return_hiddens=True, input_not_include_cache=True)
            outs.append(out)
        assert_close(torch.cat(outs, dim=1), whole)


def held(cache):
    return sum(t.numel() for t in tree_leaves(cache.content()) if torch.is_tensor(t))


@EACH
def test_the_cache_does_not_grow(kernel):
    """It holds m (e + 1) numbers per key head and their level, here and before the last call: no keys, no values."""
    net, x, sizes = stack(attn_kv_heads=2, **in_stack(kernel)), vectors(2, 80, 16), []
    for length in (2, 20, 79):
        _, trace = net(x[:, :length], return_hiddens=True)
        _, trace = net(x[:, : length + 1], cache=trace, return_hiddens=True)
        assert trace.cache.length == length + 1
        sizes.append(held(trace.cache))
    features = 6 if kernel['kernel'] == 'elu' else 10
    assert sizes == [2 * 2 * 2 * 2 * (features * 7 + (kernel['kernel'] == 'favor'))] * 3


@pytest.mark.parametrize('kernel', ['elu', 'favor'])
def test_generation(kernel):
    stack = Decoder(dim=16, depth=2, heads=2, attn_kernel=kernel, verbose=False)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=20, max_seq_len=40, attn_layers=stack).double())
    prompts = [torch.randint(0, 20, (n,)) for n in (3, 7)]
    wanted = model.generate(prompts, 12, temperature=0.0, cache_kv=False)
    assert torch.equal(model.generate(prompts, 12, temperature=0.0), wanted)
    assert torch.equal(model.speculative(prompts[1], 12, temperature=0.0), wanted[1])
    assert model.beam_search(prompts[1], 5, beams=3).shape == (5,)


@pytest.mark.parametrize('cast', [False, True])
def test_sums_of_half_precision_are_float32(cast):
    attn = Attention(16, heads=2, dim_head=6, causal=True, kernel='favor')
    attn, x = (attn.bfloat16(), vectors(2, N, 16).bfloat16()) if cast else (attn, vectors(2, N, 16).float())
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=not cast):
        _, trace = attn(x, return_intermediates=True)
    assert all(t.dtype == torch.float32 for t in trace.states['key sums'].value)


def test_masks_beside_a_cache():
    attn, x, real = layer(kernel='elu'), vectors(2, N, 16), HOLES.clone()
    real[:, 0] = False
    wanted = attn(x, context_mask=real)  # of keys: a query that sees none gives nothing
    assert (wanted[0, :5] == 0).all() and (wanted[0, 5:].abs().amax(dim=-1) > 0).all()
    _, trace = attn(x[:, :9], context_mask=real[:, :9], return_intermediates=True)
    assert_close(attn(x[:, 9:], context_mask=real, cache=trace), wanted[:, 9:])
    mem, mem_mask = vectors(2, 3, 16, seed=4), torch.tensor([[True, False, True], [False, True, True]])
    inputs = dict(mem=mem, mem_mask=mem_mask)
    wanted = attn(x, mask=HOLES, **inputs)
    assert_close(attn(torch.cat((mem, x), dim=1), mask=torch.cat((mem_mask, HOLES), dim=1))[:, 3:], wanted)
    _, trace = attn(x[:, :9], mask=HOLES[:, :9], return_intermediates=True, **inputs)
    assert_close(attn(x[:, 9:], mask=HOLES, cache=trace, **inputs), wanted[:, 9:])
    assert_close(attn(x[:, 9:], cache=trace, **inputs), attn(x, mask=HOLES | (torch.arange(N) > 8), **inputs)[:, 9:])
    with pytest.raises(ValueError, match=r'`mask` got shape \(2, 15\): with a cache it must cover all 16 keys'):
        attn(x[:, 9:], mask=HOLES[:, :12], cache=trace, **inputs)


class Largest(TorchDispatchMode):
    """The largest tensor that an operation gives, in numbers."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        found = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(out) if torch.is_tensor(t)]
        self.numbers = max([self.numbers, *found])
        return out


def half(*cross):
    """Of all with all, every other one; the rest by night."""
    for places in itertools.product(*map(enumerate, cross)):
        odd = sum(place for place, _ in places) % 2
        yield pytest.param(*(value for _, value in places), marks=pytest.mark.nightly if odd else ())


@pytest.mark.parametrize('name, causal, documents', [*half(KERNELS, (True, False), (False, True))])
def test_memory_grows_with_the_length(name, causal, documents):
    attn, sizes = layer(causal, **KERNELS[name]), []
    for n in (2048, 4096):
        with Largest() as largest:
            attn(vectors(1, n, 16), **({'document_ids': torch.arange(n)[None] // 300} if documents else {}))
        sizes.append(largest.numbers)
    assert sizes[1] <= 2.3 * sizes[0] and sizes[1] < 4096**2 / 16


@EACH
def test_documents_know_nothing_of_one_another(kernel):
    """However large the numbers of the others are."""
    attn, x = layer(kernel_chunk=4, **kernel), vectors(1, N, 16)
    x[:, :6] *= 60
    ids = torch.tensor([[1] * 6 + [0] * 7])
    for causal in (True, False):
        out = attn(x, document_ids=ids, causal=causal)
        assert_close(out[:, 6:], attn(x[:, 6:], causal=causal), tolerance=TIGHT)
        assert_close(out[:, :6], attn(x[:, :6], causal=causal), tolerance=TIGHT)


@pytest.mark.parametrize('fast', [True, pytest.param(False, marks=pytest.mark.nightly)], ids=['projected', 'all'])
@EACH
def test_derivatives_of_derivatives(kernel, fast):
    """Along one way, and by night each entry."""
    attn = layer(kernel_chunk=2, **kernel)
    attn.requires_grad_(False)
    x = (vectors(1, 5, 16) * 0.5).requires_grad_()
    assert torch.autograd.gradcheck(attn, x, fast_mode=fast) and torch.autograd.gradgradcheck(attn, x, fast_mode=fast)


# random features


def test_positive_features_are_unbiased():
    """The mean over draws is the exponential of the product; that of columns without their signs is not."""
    torch.manual_seed(0)
    x, y = (0.5 * torch.randn(4, dtype=torch.float64) for _ in 'xy')
    blocks = orthogonal_normals(4 * 40_000, 4).double().unflatten(0, (-1, 4))
    for pairs in (False, True):
        found = (exponentials(x[None], blocks, pairs) * exponentials(y[None], blocks, pairs)).sum(dim=(-2, -1))
        error = found.std() / len(found) ** 0.5
        assert abs(found.mean() - (x @ y).exp()) < 4 * error
        drawn = torch.randn(blocks.shape, dtype=torch.float64)
        of_either = ((exponentials(t * 0.6, w, pairs) for t in (x[None], y[None])) for w in (blocks, drawn))
        orthogonal, free = (math.prod(pair).sum(dim=(-2, -1)).var() for pair in of_either)
        assert orthogonal < free
    square = blocks[0] @ blocks[0].mT
    assert_close(square - square.diagonal().diag(), torch.zeros(4, 4, dtype=torch.float64), tolerance=1e-5)


def test_vectors_in_orthogonal_blocks():
    torch.manual_seed(0)
    w = orthogonal_normals(3 * 8 + 5, 8)
    assert w.shape == (29, 8)
    for block in w.split(8):
        square = block @ block.mT
        assert (square - square.diagonal().diag()).abs().max() < 1e-4
    lengths = orthogonal_normals(8000, 8).square().sum(dim=-1)
    assert abs(lengths.mean() - 8) < 0.2 and abs(lengths.var() - 16) < 2  # those of normal vectors


def test_more_features_come_closer_to_the_softmax():
    torch.manual_seed(0)
    q, k, v = (0.5 * torch.randn(64, 16, dtype=torch.float64) for _ in 'qkv')
    q, k = q / 2, k / 2  # 16 ** 0.25
    wanted, errors = (q @ k.mT).softmax(dim=-1) @ v, []
    for features in (16, 1024):
        draws = (orthogonal_normals(features, 16).double() for _ in range(5))
        weights = [exponentials(q, w) @ exponentials(k, w).mT for w in draws]
        found = [w / w.sum(dim=-1, keepdim=True) @ v for w in weights]
        errors.append(sum((t - wanted).norm() / wanted.norm() for t in found))
    assert errors[1] < errors[0] / 3


def test_features_are_drawn_anew_in_training_alone():
    torch.manual_seed(0)
    net = TransformerWrapper(
        num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, attn_kernel='favor', attn_kernel_redraw=3)
    )
    attn, ids = net.attn_layers.layers[0][1], torch.arange(8)[None]
    other, before, drawn = copy.deepcopy(net), net(ids), attn.features_w.clone()
    for step in range(1, 6):
        net(ids).sum().backward()
        net.on_step_end(step / 5)
        assert int(attn.features_age) == step and torch.equal(attn.features_w, drawn) == (step < 3)
    assert not torch.allclose(net(ids), before) and torch.equal(other(ids), before)
    other.load_state_dict(net.state_dict())  # the features are part of the function, and so is their age
    assert torch.equal(other(ids), net(ids))
    other.on_step_end(1.0)
    assert not torch.equal(other.attn_layers.layers[0][1].features_w, attn.features_w)
    fixed = Attention(16, kernel='relu', kernel_redraw=0)
    drawn = fixed.features_w.clone()
    for _ in range(3):
        fixed.on_step_end(1.0)
    assert torch.equal(fixed.features_w, drawn)


def test_how_many_features():
    assert Attention(16, dim_head=10, kernel='favor').features_w.shape == (24, 10)  # 10 log 10 = 23.03
    assert Attention(16, dim_head=64, kernel='relu').features_w.shape == (math.ceil(64 * math.log(64)), 64)
    assert Attention(16, dim_head=10, kernel='favor', kernel_hyperbolic=True).features_w.shape == (12, 10)
    assert Attention(16, dim_head=10, kernel='favor', kernel_features=7).features_w.shape == (7, 10)
    assert not hasattr(Attention(16, kernel='elu'), 'features_w')
    free = Attention(16, dim_head=4, kernel='favor', kernel_orthogonal=False).features_w[:4]
    assert ((free @ free.mT).triu(1).abs() > 1e-3).any()


# refusals

WORDS = {
    'rotary_pos_emb': '`attn_kernel` cannot be .*with `rotary_pos_emb`: its feature maps do not apply to rotated keys',
    'rotary_xpos': '`attn_kernel` cannot be combined with `rotary_xpos`: its feature maps do not apply to rotated keys',
    'polar_pos_emb': '`attn_kernel` cannot be .*with `polar_pos_emb`: its feature maps do not apply to rotated keys',
    'alibi_pos_bias': '`attn_kernel` cannot be combined with `alibi_pos_bias`: it forms no scores to add to',
    'residual_attn': '`attn_kernel` cannot be combined with `residual_attn`: it forms no scores for the next layer',
    'attn_dropout': '`attn_kernel` cannot be combined with `attn_dropout`: it forms no attention weights',
    'attn_max_attend_past': '`attn_kernel` cannot be combined with `attn_max_attend_past`: it sums up all earlier keys',
    'attn_flash': '`attn_flash=True` cannot be combined with `attn_kernel`: it attends in its own way',
}


@pytest.mark.parametrize('name', WORDS)
def test_flags_that_it_cannot_be_combined_with(name):
    value = {'attn_dropout': 0.1, 'attn_max_attend_past': 3}.get(name, True)
    with pytest.raises(ConfigError, match=f'^{WORDS[name]}'):
        Decoder(dim=16, depth=1, attn_kernel='elu', **{name: value})


def test_values_that_there_are_not():
    with pytest.raises(ConfigError, match=r"`attn_kernel` must be None or one of 'elu', .*got 'exp'"):
        Decoder(dim=16, depth=1, attn_kernel='exp')
    with pytest.raises(ConfigError, match="`attn_kernel_update` must be one of 'sum', 'gate', 'delta', got 'mean'"):
        Decoder(dim=16, depth=1, attn_kernel='elu', attn_kernel_update='mean')
    with pytest.raises(ConfigError, match='`kernel_features` must be even'):
        Attention(16, kernel='favor', kernel_features=7, kernel_hyperbolic=True)
    with pytest.raises(ConfigError, match='`attn_kernel` needs a stack that is causal or bidirectional'):
        PrefixDecoder(dim=16, depth=1, attn_kernel='elu')
    Decoder(dim=16, depth=1, cross_attend=True, cross_attn_kernel='elu', rotary_pos_emb=True, verbose=False)


CALL_WORDS = {
    'attn_mask': (dict(attn_mask=torch.ones(N, N, dtype=torch.bool)), 'it hides no keys but from all queries alike'),
    'attn_bias': (dict(attn_bias=torch.zeros(N, N)), 'it hides no keys but from all queries alike'),
    'rotary_pos_emb': (
        dict(rotary_pos_emb=(torch.zeros(1, N, 4), 1.0)),
        'its feature maps do not apply to rotated keys',
    ),
    'return_attn': (dict(keep_maps=True), 'it keeps none'),
    'a context': (dict(context=torch.zeros(2, 3, 16)), 'where it is causal, its keys are those of its queries'),
    'queries': (dict(at=torch.tensor([[0], [1]])), 'its sums are those of the tokens in their order'),
}


@pytest.mark.parametrize('name', CALL_WORDS)
def test_calls_that_it_does_not_go_with(name):
    inputs, words = CALL_WORDS[name]
    with pytest.raises(ValueError, match=f'`kernel` cannot be combined with .*: {words}'):
        Attention(16, kernel='elu', causal=True)(torch.zeros(2, N, 16), **inputs)


def test_some_queries_and_no_maps():
    attn, x = layer(False, kernel='elu'), vectors(2, N, 16)
    places = torch.tensor([[5, 1], [0, 12]])
    wanted = attn(x)[torch.arange(2)[:, None], places]
    assert_close(attn(x, at=places), wanted)  # where all see all, queries may be any
    _, trace = attn(x, return_intermediates=True)
    with pytest.raises(ValueError, match='`kernel` keeps no maps of its scores'):
        trace.post_softmax_attn  # noqa: B018


@EACH
@pytest.mark.parametrize('causal', [True, False])
def test_hidden_keys_set_no_level(kernel, causal):
    """Where those that are seen are all tiny beside what hidden ones would be."""
    attn, x = layer(causal, kernel_chunk=4, **kernel), vectors(2, N, 16) * 60
    other = torch.where(HOLES[..., None], x, x / 1000)
    assert_close(attn(other, mask=HOLES), attn(x, mask=HOLES), tolerance=TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize('kernel', ['elu', 'favor', 'relu'])
def test_a_majority_in_a_long_noisy_sequence(kernel):
    def task(rows):
        noise, bits = torch.randint(4, 12, (rows, 64)), torch.randint(0, 2, (rows, 64))
        marked = torch.rand(rows, 64) < 0.3
        more = torch.where(marked, 2 * bits - 1, 0).sum(dim=1)
        clear = more.abs() > 1
        return torch.where(marked, bits, noise)[clear], (more > 0).long()[clear]

    torch.manual_seed(0)
    stack = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, attn_kernel=kernel)
    net = TransformerWrapper(num_tokens=12, max_seq_len=64, use_cls_token=True, logits_dim=2, attn_layers=stack)

    def loss():
        ids, wanted = task(64)
        return torch.nn.functional.cross_entropy(net(ids), wanted)

    taught(net, loss, steps=150)
    ids, wanted = task(1000)
    assert (net(ids).argmax(dim=-1) == wanted).float().mean() > 0.95


@pytest.mark.parametrize(
    'flags', [dict(kernel='identity'), dict(kernel='rff'), dict(kernel='elu', kernel_update='delta')]
)
def test_exponentials_of_values_have_no_negative_sums(flags):
    with pytest.raises(ConfigError, match='cannot be combined with `laser`: sums of exponentials'):
        Attention(16, heads=2, causal=True, laser=True, **flags)
    assert Attention(16, heads=2, causal=True, laser=True, kernel='elu')(torch.randn(1, 5, 16)).isfinite().all()

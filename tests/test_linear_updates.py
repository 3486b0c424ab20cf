"""Feature maps and gates of linear attention: token by token, by hand, and what random features estimate."""

import itertools

import pytest
import torch
from building import vectors
from costs import costs_of, grows
from law_cases import randomise
from oracles import assert_close, map_features, state_recurrence
from test_linear_attention import DOCUMENTS, HOLES, TIGHT, N
from torch.nn import functional as F
from toy_tasks import SEEDS, latest, learned, net_for, overwrite, recall

from x_transformers import Attention, Decoder, Encoder
from x_transformers.features.linear.delta import correct_values
from x_transformers.features.linear.kernel import FeatureMap, LinearTokens, causal
from x_transformers.features.linear.maps import dpfp, orthogonal_normals, scale_to_unit_length, waves
from x_transformers.flags import ConfigError

UPDATES = ('sum', 'gate', 'delta')
MAPS = ('elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos')
OPTIONS = {
    'plain': {},
    'undivided': dict(kernel_normalize=False),
    'key norm': dict(kernel_key_norm='l2'),
    'other length': dict(kernel_l2norm=True),
    'fixed': dict(rff_sigma=0.9),
    'nu': dict(dpfp_nu=2),
}
CALLS = {
    'plain': {},
    'padding': dict(mask=HOLES),
    'documents': dict(document_ids=DOCUMENTS),
    'both': dict(document_ids=DOCUMENTS, mask=HOLES),
}


def layer(chunk=4, **flags):
    torch.manual_seed(0)
    sizes = dict(heads=4, dim_head=6, value_dim_head=5, kv_heads=2, causal=True, kernel_chunk=chunk)
    return randomise(Attention(16, **sizes, **flags).double(), scale=0.4)


def features_of(attn, x, head, root):
    """Of the vectors of a head, (n e)."""
    feature, w = attn.features.by_stage['attend'][0], getattr(attn, 'features_w', None)
    kernel = feature.kernel
    w = w[head % 2].mT if w is not None and w.ndim == 3 else w
    length = kernel in ('rff', 'arccos') if feature.kernel_l2norm is None else feature.kernel_l2norm
    sigma = feature.rff_sigma if attn.rff_sigma is None else F.softplus(attn.rff_sigma)
    found = []
    for one in x:
        one = (one / one.norm() if length else one) * (root if kernel in ('elu', 'favor', 'relu') else 1.0)
        phi = map_features(one, kernel, w, sigma, feature.dpfp_nu)
        if kernel == 'rff' and not length:
            phi = phi * ((one / sigma).square().sum() / 2).exp()
        delta = feature.kernel_update == 'delta' and feature.kernel_key_norm is None
        norm = ('l2' if kernel in ('identity', 'rff') else 'sum') if delta else feature.kernel_key_norm
        size = phi.sum() if norm == 'sum' else phi.norm() if norm == 'l2' else torch.ones(())
        found.append(phi / size.clamp(min=1e-6))
    return torch.stack(found)


def token_by_token(attn, x, mask=None, document_ids=None):
    feature = attn.features.by_stage['attend'][0]
    q, k, v = (t(x).unflatten(-1, (-1, w)).transpose(1, 2) for t, w in ((attn.to_q, 6), (attn.to_k, 6), (attn.to_v, 5)))
    gates = attn.write_gate(x).sigmoid() if hasattr(attn, 'write_gate') else None
    heads = torch.zeros(*q.shape[:3], 5, dtype=x.dtype)
    for row, head in itertools.product(range(len(x)), range(4)):
        key = head % 2  # query head h reads key head h mod 2, and its gate
        phis = [features_of(attn, t, head, 6**-0.25) for t in (q[row, head], k[row, key])]
        own = None if gates is None else gates[row, :, key]
        of_row = [None if t is None else t[row] for t in (mask, document_ids)]
        found, sums = state_recurrence(*phis, v[row, key], feature.kernel_update, own, *of_row)
        if feature.kernel_normalize is None and feature.kernel_update != 'delta':
            least = {'elu': 0.0, 'identity': 1e-4, 'rff': 1e-4}.get(feature.kernel, 1e-12)
            sums = sums + 1e-6 if feature.kernel == 'elu' else sums
            found = found / torch.where(sums < 0, sums.clamp(max=-least), sums.clamp(min=least))[:, None]
        heads[row, head] = found
    out = attn.to_out(heads.transpose(1, 2).flatten(2))
    return out if mask is None else out * mask[..., None]


def most_nightly(keep):
    """Each map, each update and each option once; all of them with each other by night."""
    for kernel, update, option in itertools.product(MAPS, UPDATES, OPTIONS):
        now = (kernel, update, option) in keep
        yield pytest.param(kernel, update, option, marks=() if now else pytest.mark.nightly)


NOW = {
    ('elu', 'gate', 'plain'), ('favor', 'gate', 'undivided'), ('favor', 'delta', 'plain'),
    ('identity', 'sum', 'undivided'), ('identity', 'delta', 'plain'), ('dpfp', 'delta', 'nu'),
    ('rff', 'sum', 'fixed'), ('rff', 'gate', 'plain'), ('arccos', 'sum', 'plain'),
    ('relu', 'gate', 'key norm'), ('elu', 'delta', 'other length'),
}  # fmt: skip


@pytest.mark.parametrize(('kernel', 'update', 'option'), [*most_nightly(NOW)])
def test_token_by_token(kernel, update, option):
    """In chunks of any length, with padding and documents."""
    x, flags = vectors(2, N, 16), dict(kernel=kernel, kernel_update=update, **OPTIONS[option])
    for inputs in CALLS.values():
        wanted = token_by_token(layer(**flags), x, **inputs)
        for chunk in (1, 4, 64):
            out = layer(chunk, **flags)(x, **inputs)
            # signed sums of weights may be small
            assert_close(out, wanted, f'{inputs.keys()} {chunk}', 1e-11 if kernel in ('identity', 'rff') else TIGHT)


def features(t):
    return scale_to_unit_length(F.elu(t) + 1), None


@pytest.mark.parametrize('update', ['gate', 'delta'])
def test_gradients_are_those_of_the_recurrence(update, monkeypatch):
    """Of one document and of some, in one span, and where spans are forgotten."""
    q, k, v = (vectors(1, 2, N, 4, seed=seed).requires_grad_() for seed in range(3))
    logits = vectors(1, 2, N, 1, seed=4).requires_grad_()
    phi = FeatureMap(lambda q: features(q)[0], features, weighs=False)

    ids = torch.tensor([[0] * 5 + [1] * 6 + [2] * 2])

    def chunked(chunk, document):
        rate = logits.sigmoid()
        tokens = LinearTokens(k, v, rate=rate, document=document)
        tokens = tokens._replace(rate=1 - rate, fade=rate.log()) if update == 'gate' else tokens
        run = causal if update == 'gate' else correct_values
        return run(q.unsqueeze(2), tokens, phi, chunk)[0].value[:, :, 0]

    for document in (None, ids):
        phis = (
            [features(t[0, h])[0] for t in (q, k)] + [v[0, h], update, logits[0, h, :, 0].sigmoid()] for h in (0, 1)
        )
        of_row = None if document is None else document[0]
        wanted = torch.stack([state_recurrence(*own, ids=of_row)[0] for own in phis])[None]
        wanted_grads = torch.autograd.grad(wanted.sin().sum(), (q, k, v, logits))
        for chunk, spans in ((3, 16), (64, 16), (2, 1)):
            monkeypatch.setattr('x_transformers.features.linear.kernel.CHUNKS', spans)
            out = chunked(chunk, document)
            assert_close(out, wanted, tolerance=TIGHT)
            for one, other in zip(torch.autograd.grad(out.sin().sum(), (q, k, v, logits)), wanted_grads, strict=True):
                assert_close(one, other, 'gradient', tolerance=1e-10)


def test_what_is_forgotten_gives_the_same_gradients(monkeypatch):
    """Of many spans, in both directions, and twice."""
    x = vectors(1, N, 16).requires_grad_()
    delta = dict(kernel='dpfp', kernel_update='delta')
    for in_order, flags in ((True, dict(kernel='favor')), (True, delta), (False, dict(kernel='rff'))):
        attn = randomise(Attention(16, heads=2, dim_head=4, causal=in_order, kernel_chunk=2, **flags).double())
        (wanted,) = torch.autograd.grad(attn(x).sin().sum(), x)
        monkeypatch.setattr('x_transformers.features.linear.kernel.CHUNKS', 1)
        (found,) = torch.autograd.grad(attn(x).sin().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(found.sin().sum(), x)
        monkeypatch.undo()
        assert_close(found, wanted, tolerance=1e-10)
        (first,) = torch.autograd.grad(attn(x).sin().sum(), x, create_graph=True)
        assert_close(again, torch.autograd.grad(first.sin().sum(), x)[0], tolerance=1e-9)


# by hand


def recurrent(update, k, v, rate):
    """One head whose queries are its keys, (n m) and (n d), with gates (n 1): what is read, and the last state."""
    phi = FeatureMap(lambda t: t, lambda t: (t, None), weighs=False)
    k, v, rate = (t[None, None] for t in (k, v, rate))
    if update == 'delta':
        out, state = correct_values(k.unsqueeze(2), LinearTokens(k, v, rate=rate), phi, 2)
        return out.value[0, 0, 0], state.value[0, 0]
    tokens = LinearTokens(k, v, rate=1 - rate, fade=rate.log().clamp(min=-1e9))
    out, state = causal(k.unsqueeze(2), tokens, phi, 2)
    return out.value[0, 0, 0], state.value[0, 0]


def test_gates_by_hand():
    """A gate of 0 leaves the present alone; one of 1 / 2 halves what was there each time."""
    k, v = torch.ones(4, 1), torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    found, _ = recurrent('gate', k, v, torch.zeros(4, 1))
    assert_close(found, v)
    found, state = recurrent('gate', k, v, torch.full((4, 1), 0.5))
    assert_close(found[:, 0], torch.tensor([0.5, 1.25, 2.625, 5.3125]))
    assert_close(state, torch.tensor([[5.3125]]))


def test_writing_twice():
    """With orthonormal keys and whole corrections the second value stands there; a sum holds both. None: nothing."""
    k = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    v, ones = vectors(6, 5), torch.ones(6, 1, dtype=torch.float64)
    _, state = recurrent('delta', k, v, ones)
    assert_close(state, v[3:])
    _, total = recurrent('gate', k, v, ones / 2)
    assert_close(total, torch.stack([v[i] / 2 ** (6 - i) + v[i + 3] / 2 ** (3 - i) for i in range(3)]))
    out, state = recurrent('delta', k, v, 0 * ones)
    assert (out == 0).all() and (state == 0).all()


def test_dpfp_by_hand():
    """Vectors of no common sign have features of no common place, and so have those of other neighbours."""
    x = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [0.0, 3.0], [3.0, 0.0]])
    found = dpfp(x, 1)  # r = 1 2 0 0,  0 0 1 2,  0 3 0 0,  3 0 0 0
    assert_close(found, torch.tensor([[0.0, 2, 0, 0], [0, 0, 0, 2.0], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert_close(dpfp(x, 3)[0], torch.tensor([0.0, 2, 0, 0, 0, 0, 0, 0, 2.0, 0, 0, 0]))
    wide = dpfp(torch.cat((x, -x)), 3)
    assert ((wide @ wide.mT) != 0).any() and dpfp(x, 3).shape == (4, 12)
    assert dpfp(x, 3)[0] @ dpfp(x, 3)[1] == 0


# random features


@pytest.mark.parametrize('sigma', [0.7, 1.5])
def test_waves_are_unbiased(sigma):
    """E phi(x) . phi(y) = exp(-|x - y|^2 / 2 sigma^2): vectors of deviation 1 / sigma, not sigma."""
    torch.manual_seed(0)
    x, y = (0.8 * torch.randn(3, dtype=torch.float64) for _ in 'xy')
    w = torch.randn(200_000, 3, dtype=torch.float64)
    wanted = (-(x - y).square().sum() / sigma**2 / 2).exp()
    for scale, right in ((1 / sigma, True), (sigma, False)):
        found = (w @ (x - y) * scale).cos()  # of each vector alone
        assert (abs(found.mean() - wanted) < 4 * found.std() / len(w) ** 0.5) == right
    one, _ = waves(x[None, None, None] / sigma, w[:64].mT[None], unit=True)
    other, _ = waves(y[None, None, None] / sigma, w[:64].mT[None], unit=True)
    assert_close((one * other).sum(), (w[:64] @ (x - y) / sigma).cos().mean())


def test_more_waves_come_closer_to_the_softmax():
    """As the root of their number; and with levels, to that of vectors of any length."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(48, 16, dtype=torch.float64) for _ in 'qkv')
    for unit, sigma in ((True, 1.0), (False, 16**0.25)):
        one, other = (t / t.norm(dim=-1, keepdim=True) if unit else 0.5 * t for t in (q, k))
        wanted, errors = ((one @ other.mT) / sigma**2).softmax(dim=-1) @ v, []
        for number in (64, 4096):
            squares = []
            for _ in range(6):
                w = torch.randn(1, 16, number, dtype=torch.float64)
                (fq, _), (fk, up) = (waves(t[None, None] / sigma, w, unit) for t in (one, other))
                weights = (fq @ (fk if unit else fk * up.exp()).mT)[0, 0]
                squares.append((weights / weights.sum(dim=-1, keepdim=True) @ v - wanted).square().sum())
            errors.append((sum(squares) / 6) ** 0.5 / wanted.norm())
        assert 8 * 0.7 < errors[0] / errors[1] < 8 * 1.3, errors


def test_what_is_drawn_and_learned():
    waves_of = Attention(16, heads=4, dim_head=6, kv_heads=2, kernel='rff', kernel_features=5)
    names = {name: tuple(t.shape) for name, t in waves_of.state_dict().items() if 'to_' not in name}
    assert names == {'features_w': (2, 6, 5), 'features_age': (), 'rff_sigma': (6,)}
    assert_close(F.softplus(waves_of.rff_sigma), torch.ones(6), tolerance=1e-6)
    fixed = Attention(16, dim_head=6, kernel='rff', rff_sigma=0.5, kernel_orthogonal=True)
    assert fixed.features_w.shape == (8, 6, 6) and fixed.rff_sigma is None
    square = fixed.features_w.mT @ fixed.features_w
    assert (square - torch.diag_embed(square.diagonal(dim1=1, dim2=2))).abs().max() < 1e-4
    drawn = fixed.features_w.clone()
    for _ in range(3):
        fixed.on_step_end(1.0)
    assert torch.equal(fixed.features_w, drawn)  # unless `kernel_redraw` says so
    for update, bias in (('gate', 2.0), ('delta', 0.0)):
        gated = Attention(16, heads=4, kv_heads=2, causal=True, kernel='elu', kernel_update=update)
        assert gated.write_gate.weight.shape == (2, 16) and (gated.write_gate.bias == bias).all()
    assert (gated.write_gate.weight == 0).all()
    assert orthogonal_normals(6, 6).shape == (6, 6)


# the state


STATES = {
    'rff gate': dict(attn_kernel='rff', attn_kernel_update='gate'),
    'favor gate': dict(attn_kernel='favor', attn_kernel_update='gate', attn_num_mem_kv=2),
    'dpfp delta': dict(attn_kernel='dpfp', attn_kernel_update='delta', attn_num_mem_kv=2),
}


def stack(**flags):
    torch.manual_seed(0)
    sizes = dict(dim=16, depth=2, heads=4, attn_kv_heads=2, attn_dim_head=6, attn_kernel_chunk=4, verbose=False)
    return randomise(Decoder(**sizes, **flags).double())


@pytest.mark.parametrize('flags', STATES.values(), ids=STATES.keys())
def test_segments_are_one_long_forward(flags):
    """The state of a segment starts the next, token by token, and detached in training; it can be taken back."""
    net, x = stack(**flags), vectors(2, N, 16)
    whole, cache = net(x), None
    for start, stop in ((0, 6), (6, 10), (10, 11), (11, 12), (12, N)):
        before = cache
        out, cache = net.train()(x[:, start:stop], cache=cache, return_hiddens=True, input_not_include_cache=True)
        assert_close(out, whole[:, start:stop])
        cache = cache.cache.detach()
    with pytest.raises(ValueError, match='which is known after 12 and 13 tokens only'):
        cache.crop(5)
    assert_close(net(x[:, 12:], cache=cache.crop(12), input_not_include_cache=True), whole[:, 12:])
    assert before.length == 12


def test_memories_come_first():
    """Their keys are written before those of the tokens, by their own gates; a cache goes on from there."""
    for flags in STATES.values():
        own = {name.removeprefix('attn_'): value for name, value in flags.items() if 'mem_kv' not in name}
        attn, x, mem = layer(**own), vectors(2, N, 16), vectors(2, 3, 16, seed=4)
        wanted = attn(torch.cat((mem, x), dim=1))[:, 3:]
        assert_close(attn(x, mem=mem), wanted)
        _, trace = attn(x[:, :9], mem=mem, return_intermediates=True)
        assert_close(attn(x[:, 9:], mem=mem, cache=trace), wanted[:, 9:])


def test_decoding_does_not_depend_on_what_was_read():
    """As many products, and as much is written, after 40 tokens as after 10."""
    for flags in STATES.values():
        net, found = stack(**flags).eval(), []
        for read in (10, 40):
            with torch.no_grad():
                _, cache = net(vectors(1, read, 16), return_hiddens=True)
                _, cache = net(vectors(1, read + 1, 16), cache=cache, return_hiddens=True)
                given = dict(cache=cache, input_not_include_cache=True)
                costs = costs_of(lambda n, net=net, given=given: net(vectors(1, n, 16), **given), 1)
            found.append((costs.largest, costs.flops))
        assert found[0] == found[1]


@pytest.mark.costly
@pytest.mark.parametrize('update', UPDATES)
def test_costs_grow_with_the_length(update):
    attn = layer(2, kernel='elu' if update != 'delta' else 'dpfp', kernel_update=update, dpfp_nu=1)
    grows(lambda n: attn(vectors(1, n, 16).requires_grad_()), 160)


# refusals


def test_what_does_not_go_together():
    def refused(words, kind=Decoder, **flags):
        with pytest.raises(ConfigError, match=words):
            kind(dim=16, depth=1, verbose=False, **flags)

    for update in ('gate', 'delta'):
        both = dict(attn_kernel='elu', attn_kernel_update=update)
        refused(f'`attn_kernel_update={update!r}` needs `causal`: it reads the keys in their order', Encoder, **both)
        refused("In cross-attention write `cross_attn_kernel_update='sum'`", cross_attend=True, **both)
        Decoder(dim=16, depth=1, cross_attend=True, cross_attn_kernel_update='sum', verbose=False, **both)
    refused('`attn_kernel_normalize` cannot be combined with `attn_kernel_update=.delta.`', attn_kernel='elu',
            attn_kernel_update='delta', attn_kernel_normalize=True)  # fmt: skip
    refused(
        '`attn_kernel_key_norm=.sum.` cannot be combined with `attn_kernel=.rff.`',
        attn_kernel='rff',
        attn_kernel_key_norm='sum',
    )
    refused('`attn_kernel_l2norm` cannot be .*with `attn_qk_norm`, which norms .*: set `attn_kernel_l2norm=False`',
            attn_kernel='rff', attn_qk_norm=True)  # fmt: skip
    refused('`attn_kernel` got .dpfp., which has no scale', attn_kernel='dpfp', attn_softmax_scale=0.5)
    attn = Attention(16, causal=True, kernel='elu', kernel_update='gate')
    with pytest.raises(ValueError, match=r'`causal=False`: .* reads the keys in their order'):
        attn(torch.zeros(1, 3, 16), causal=False)
    with pytest.raises(ValueError, match='keeps no maps'):
        attn(torch.zeros(1, 3, 16), return_intermediates=True)[1].post_softmax_attn  # noqa: B018


# toy tasks


@pytest.mark.nightly
@SEEDS
def test_the_latest_mark(seed):
    """T-latest: sums that fade tell the latest from those before, sums that do not barely."""
    torch.manual_seed(seed)
    task, found = latest(n=48), {}
    for update in ('gate', 'sum'):
        net = net_for(task, Decoder, attn_kernel='rff', attn_kernel_update=update, verbose=False)
        found[update] = learned(net, task, steps=300)
    assert found['gate'] > 0.95 and found['gate'] > found['sum'] + 0.03, found


@pytest.mark.nightly
@SEEDS
def test_values_that_are_overwritten(seed):
    """T-overwrite, in one layer of one head: the delta rule takes off what a key had, a sum keeps all."""
    torch.manual_seed(seed)
    task, found = overwrite(), {}
    for update in ('delta', 'sum'):
        own = dict(attn_kernel_update=update, attn_kernel_key_norm='l2' if update == 'delta' else None)
        net = net_for(task, Decoder, dim=32, depth=1, heads=1, attn_dim_head=32, attn_kernel='elu', **own)
        found[update] = learned(net, task, steps=500)
    assert found['delta'] > found['sum'] + 0.15, found


@pytest.mark.slow
@SEEDS
def test_values_that_are_recalled(seed):
    """T-recall: 64 random features tell eight keys apart."""
    torch.manual_seed(seed)
    task = recall()
    net = net_for(task, Decoder, attn_kernel='favor', attn_kernel_features=64, verbose=False)
    assert learned(net, task, steps=400) > 0.8

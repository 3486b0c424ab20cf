"""Attention to chosen keys: plain loops, exact limits, what a cache holds, and what it costs."""

import math

import pytest
import torch
from building import vectors
from costs import Costs, grows
from law_cases import randomise
from oracles import assert_close as assert_near

from x_transformers import Attention, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.training import AuxLosses

N = 23
SIZES = dict(heads=4, dim_head=6, kv_heads=2, causal=True)
BLOCK = 4


def assert_close(ours, theirs):
    assert_near(ours, theirs, tolerance=1e-10)


def layer(**flags):
    return randomise(Attention(16, **{**SIZES, **flags}).double())


def qkv_of(attn, x):
    """Queries, keys and values of all heads, b h n d, without rotation."""
    q, k, v = attn.to_q(x), attn.to_k(x), attn.to_v(x)
    q, k, v = (t.unflatten(-1, (-1, 6)).transpose(1, 2) for t in (q, k, v))
    return q, *(t.repeat(1, attn.heads // attn.kv_heads, 1, 1) for t in (k, v))


def over(q, keys, values, scale):
    return ((keys @ q) * scale).softmax(dim=0) @ values


def moba_by_hand(q, k, v, block, topk, scale):
    """One query of one head at a time:  n d."""
    rows = []
    for t in range(len(q)):
        own = t // block
        means = {j: float(q[t].detach() @ k.detach()[j * block : (j + 1) * block].mean(dim=0)) for j in range(own)}
        best = sorted(means, key=means.__getitem__, reverse=True)[: topk - 1]
        seen = [i for j in sorted(best) for i in range(j * block, (j + 1) * block)] + [*range(own * block, t + 1)]
        rows.append(over(q[t], k[seen], v[seen], scale))
    return torch.stack(rows)


def by_hand(attn, x, formula, *args):
    q, k, v = qkv_of(attn, x)
    out = torch.stack(
        [
            torch.stack([formula(q[b, h], k[b, h], v[b, h], *args, 6**-0.5) for h in range(attn.heads)], dim=1)
            for b in range(len(x))
        ]
    )
    return attn.to_out(out.flatten(2))


@pytest.mark.parametrize('topk', [1, 2, 3])
def test_moba_is_its_formula_and_so_are_its_gradients(topk):
    attn, x = layer(moba_block=BLOCK, moba_topk=topk), vectors(2, N, 16).requires_grad_()
    out, want = attn(x), by_hand(attn, x, moba_by_hand, BLOCK, topk)
    assert_close(out, want)
    wanted = [x, *attn.parameters()]
    grads = (torch.autograd.grad(t.square().sum(), wanted) for t in (out, want))
    for own, other in zip(*grads, strict=True):
        assert_close(own, other)


INDEXER = dict(indexer=True, indexer_heads=2, indexer_dim=8)
TURNED = 4


def turn(x, kind):
    """Rotate vectors (n d) of tokens 0, 1, ... in their first channels, one pair of channels at a time."""
    x = x.detach().clone()
    for token in range(len(x)):
        for pair in range(TURNED // 2):
            a, b = (2 * pair, 2 * pair + 1) if kind == 'pairs' else (pair, pair + TURNED // 2)
            angle = token * 10000 ** (-2 * pair / TURNED)
            turned = complex(float(x[token, a]), float(x[token, b])) * complex(math.cos(angle), math.sin(angle))
            x[token, a], x[token, b] = turned.real, turned.imag
    return x


def indexer_by_hand(attn, x, topk, dense, kind=None):
    """The output and the loss of the indexer, one query at a time."""
    (q, k, v), x = qkv_of(attn, x), x.detach()
    if kind is not None:
        q, k = (torch.stack([torch.stack([turn(h, 'pairs') for h in row]) for row in t.detach()]) for t in (q, k))
    outs, total = [], 0.0
    for b in range(len(x)):
        own_k, own_q = attn.index_norm(attn.to_index_k(x[b])), attn.to_index_q(x[b]).unflatten(-1, (2, 8))
        weights = attn.to_index_weights(x[b])
        if kind is not None:
            own_k, own_q = turn(own_k, kind), torch.stack([turn(own_q[:, h], kind) for h in range(2)], dim=1)
        for t in range(N):
            index = (weights[t] @ (own_q[t] @ own_k[: t + 1].T).relu()) * (2 * 8) ** -0.5
            best = sorted(range(t + 1), key=lambda s: (-float(index[s].detach()), s))
            best = sorted(best[: t + 1 if dense else topk])
            maps = [((k[b, h, best] @ q[b, h, t]) * 6**-0.5).softmax(dim=0) for h in range(4)]
            outs.append(torch.cat([maps[h] @ v[b, h, best] for h in range(4)]))
            p = sum(maps).detach() / 4
            total = total + (p * (p.log() - index[best].log_softmax(dim=0))).sum()
    return attn.to_out(torch.stack(outs).unflatten(0, (len(x), N))), total / (len(x) * N)


@pytest.mark.parametrize('topk, warmup', [(1, False), (3, False), (14, False), (3, True), (40, False)])
def test_the_indexer_is_its_formula_and_learns_from_its_loss_alone(topk, warmup):
    attn, x = layer(**INDEXER, indexer_topk=topk, indexer_warmup=warmup).train(), vectors(2, N, 16).requires_grad_()
    with AuxLosses() as aux:
        out = attn(x)
    want, loss = indexer_by_hand(attn, x, topk, warmup)
    assert_close(out, want)
    assert_close(aux.by_name['indexer'], loss)
    wanted = [x, *attn.parameters()]
    grads = (
        torch.autograd.grad(t.square().sum() + own, wanted) for t, own in ((out, aux.by_name['indexer']), (want, loss))
    )
    for own, other in zip(*grads, strict=True):
        assert_close(own, other)
    learned = [name for name, _ in attn.named_parameters() if 'index' in name]
    of_loss = torch.autograd.grad(indexer_loss(attn, x), wanted, allow_unused=True)
    names = ['x', *(name for name, _ in attn.named_parameters())]
    assert {name for name, grad in zip(names, of_loss, strict=True) if grad is not None} == set(learned)
    with AuxLosses() as aux:
        attn.eval()(x)
    assert not aux.by_name


def indexer_loss(attn, x):
    with AuxLosses() as aux:
        attn(x)
    return aux.by_name['indexer']


@pytest.mark.parametrize('kind', ['half', 'pairs'])
def test_the_indexer_turns_its_first_channels(kind):
    attn, x = layer(**INDEXER, indexer_topk=4, indexer_rotary=kind), vectors(2, N, 16)
    rates = 10000 ** (-2 * torch.arange(TURNED // 2, dtype=torch.float64) / TURNED)
    angles = (torch.arange(N).unsqueeze(-1) * rates).repeat_interleave(2, dim=-1)[None]
    assert_close(attn(x, rotary_pos_emb=(angles, 1.0)), indexer_by_hand(attn, x, 4, False, kind)[0])


def test_padding_has_no_part_in_the_loss_of_the_indexer():
    attn, x = layer(**INDEXER, indexer_topk=3).train(), vectors(2, N, 16)
    losses = []
    for given in (dict(x=x, mask=torch.arange(N).expand(2, -1) >= 7), dict(x=x[:, 7:])):
        with AuxLosses() as aux:
            attn(**given)
        losses.append(aux.by_name['indexer'])
    assert_close(*losses)


def test_the_indexer_holds_no_scores_of_all_heads_and_keys():
    attn, n = Attention(16, heads=8, dim_head=4, causal=True, **INDEXER, indexer_topk=16).train(), 512
    with Costs() as costs, pytest.MonkeyPatch.context() as patch:
        patch.setattr('x_transformers.core.rows.LARGE', {'cpu': 2**12, 'cuda': 2**12})
        patch.setattr('x_transformers.core.rows.BLOCK', {'cpu': 2**12, 'cuda': 2**12})
        patch.setattr('x_transformers.core.rows.FEWEST_ROWS', 8)
        attn(torch.randn(1, n, 16)).sum().backward()
    assert costs.largest < n * n / 4


FAR = dict(
    indexer=dict(**INDEXER, indexer_topk=N),
    moba_block=dict(moba_block=BLOCK, moba_topk=9),
    one_block=dict(moba_block=50, moba_topk=1),
)


@pytest.mark.parametrize('name', FAR)
def test_with_all_keys_chosen_it_is_dense(name):
    dense, x = layer(), vectors(2, N, 16)
    chosen = layer(**FAR[name])
    chosen.load_state_dict(dense.state_dict(), strict=False)
    assert_close(chosen(x), dense(x))
    bias = vectors(4, N, N)
    assert_close(chosen(x, attn_bias=bias), dense(x, attn_bias=bias))
    mask = torch.rand(2, N, N, generator=torch.Generator().manual_seed(0)) < 0.7
    mask = mask[:, None] | torch.eye(N, dtype=torch.bool)
    assert_close(chosen(x, attn_mask=mask.expand(2, 4, N, N)), dense(x, attn_mask=mask.expand(2, 4, N, N)))


INDEXED = {f'attn_{name}': value for name, value in INDEXER.items()} | dict(attn_indexer_topk=3)
LATENTS = dict(attn_use_latent_q=True, attn_dim_latent_q=6, attn_use_latent_kv=True, attn_dim_latent_kv=6)
KINDS = {
    'moba': dict(attn_moba_block=BLOCK, attn_moba_topk=2),
    'indexer': INDEXED,
    'latents': dict(**INDEXED, **LATENTS, attn_dim_latent_rope=4, attn_kv_heads=4),
    'latents, absorbed': dict(**INDEXED, **LATENTS, attn_dim_latent_rope=4, attn_kv_heads=4, attn_latent_absorb=True),
}


def stack(name, **flags):
    return (
        randomise(
            Decoder(
                dim=16, depth=2, heads=4, attn_dim_head=6, verbose=False, **{'attn_kv_heads': 2, **KINDS[name], **flags}
            )
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize('rotary', [False, True])
def test_a_padded_row_and_a_document_are_what_they_are_alone(name, rotary):
    net, x = stack(name, rotary_pos_emb=rotary), vectors(2, N, 16)
    mask = torch.arange(N) >= torch.tensor([[3], [9]])
    left, right = net(x, mask=mask), net(x, mask=mask.flip(-1))
    for row, pads in enumerate((3, 9)):
        assert_close(left[row, pads:], net(x[row : row + 1, pads:])[0])
        assert_close(right[row, : N - pads], net(x[row : row + 1, : N - pads])[0])
    ids = torch.tensor([[0] * 5 + [1] * 11 + [2] * 7, [4] * 13 + [2] * 2 + [7] * 8])
    packed = net(x, document_ids=ids)
    for row in range(2):
        for one in ids[row].unique():
            own = ids[row] == one
            assert_close(packed[row, own], net(x[row : row + 1, own])[0])


@pytest.mark.parametrize('name', KINDS)
def test_what_padding_inside_of_a_row_holds_does_not_matter(name):
    net, x = stack(name), vectors(2, N, 16)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[:, [2, 5, 6, 13]] = False
    other = torch.where(mask.unsqueeze(-1), x, 5.0)
    assert_close(net(other, mask=mask)[mask], net(x, mask=mask)[mask])


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize('pieces', [(1,) * N, (5, 1, 1, 9, 1, 6), (12, 11)])
def test_pieces_with_a_cache_are_the_whole(name, pieces):
    net, x = stack(name, rotary_pos_emb=True), vectors(2, N, 16)
    mask = torch.arange(N) >= torch.tensor([[2], [6]])
    want, cache, outs, at = net(x, mask=mask), None, [], 0
    for count in pieces:
        known = {} if cache is None else dict(cache=cache, input_not_include_cache=True)
        out, cache = net(x[:, at : at + count], mask=mask[:, : at + count], return_hiddens=True, **known)
        outs.append(out)
        at += count
    assert_close(torch.cat(outs, dim=1)[mask], want[mask])


@pytest.mark.parametrize('name', ['moba', 'indexer'])
def test_its_maps_are_its_weights(name):
    net, x = stack(name), vectors(2, N, 16)
    attn = net.layers[0][1]
    out, inter = attn(x, return_intermediates=True, keep_maps=True)
    *_, v = qkv_of(attn, x)
    assert_close(attn.to_out((inter.post_softmax_attn @ v).transpose(1, 2).flatten(2)), out)


def test_parts_of_heads_and_queries_are_the_whole(monkeypatch):
    x, bias = vectors(2, N, 16).requires_grad_(), vectors(4, N, N)
    net = layer(moba_block=BLOCK, moba_topk=3, num_mem_kv=1)
    want = net(x, attn_bias=bias)
    wanted = torch.autograd.grad(want.square().sum(), [x, *net.parameters()])
    monkeypatch.setattr('x_transformers.core.rows.LARGE', {'cpu': 150, 'cuda': 150})
    monkeypatch.setattr('x_transformers.core.rows.block_size', lambda q, width: 5)
    out = net(x, attn_bias=bias)
    assert_close(out, want)
    for own, other in zip(torch.autograd.grad(out.square().sum(), [x, *net.parameters()]), wanted, strict=True):
        assert_close(own, other)


def test_a_step_of_moba_costs_what_it_chooses_and_the_cache_a_share_of_the_keys():
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=32, attn_moba_block=16, attn_moba_topk=2).eval()
    found = []
    for n in (128, 1024):
        _, cache = net(torch.randn(1, n, 16), return_hiddens=True)
        held = cache.attn_intermediates[0].past.states['block means'].tensor
        assert held.numel() == n * 2 * 2  # 32 channels by 16 tokens
        with Costs() as costs, torch.no_grad():
            net(torch.randn(1, 1, 16), cache=cache, input_not_include_cache=True)
        found.append(costs.flops)
    assert found[1] - found[0] == 2 * 2 * 32 * (1024 - 128) // 16


@pytest.mark.parametrize('backward', [False, True])
def test_moba_grows_with_the_length(backward):
    attn = Attention(4, heads=1, dim_head=4, causal=True, moba_block=64, moba_topk=2)

    def run(n):
        out = attn(torch.randn(1, n, 4, requires_grad=backward))
        if backward:
            out.sum().backward()

    grows(run, 1024, 2.2)


@pytest.mark.parametrize(
    'make, text',
    [
        (lambda: Encoder(dim=8, depth=1, attn_moba_block=4), '`attn_moba_block` needs `causal`'),
        (lambda: Attention(8, causal=True, moba_block=0), '`moba_block`'),
        (lambda: Attention(8, causal=True, moba_block=4, moba_topk=0), '`moba_topk`'),
        (lambda: Attention(8, causal=True, moba_block=4, sparse_pattern='sliding'), 'both choose'),
        (lambda: Attention(8, causal=True, moba_block=4, talking_heads=True), 'cannot be combined'),
        (lambda: Attention(8, causal=True, moba_block=4, flash=True), 'cannot be combined'),
        (lambda: Attention(8, indexer=True), '`indexer` needs `causal`'),
        (lambda: Attention(8, causal=True, indexer=True, indexer_dim=7), '`indexer_dim` must be even'),
        (lambda: Attention(8, causal=True, indexer=True, indexer_rotary='rows'), '`indexer_rotary`'),
        (lambda: Attention(8, causal=True, indexer=True, indexer_loss_weight=-1), '`indexer_loss_weight`'),
        (lambda: Attention(8, causal=True, indexer=True, moba_block=4), 'both choose'),
    ],
)
def test_what_cannot_be_is_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.slow
@pytest.mark.parametrize('kind, rotary', [('deepseek_v32', 'half'), ('glm_moe_dsa', 'pairs')])
def test_the_indexer_is_that_of_transformers(kind, rotary):
    """The attention layer of a small model: its full pass, whose angles and softmax are in float32."""
    transformers = pytest.importorskip('transformers', minversion='5.24')
    sizes = dict(hidden_size=32, intermediate_size=40, moe_intermediate_size=16, n_routed_experts=4, n_group=1)
    sizes |= dict(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, num_experts_per_tok=2)
    sizes |= dict(q_lora_rank=12, kv_lora_rank=10, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, topk_group=1)
    sizes |= dict(index_n_heads=16, index_head_dim=8, index_topk=5, first_k_dense_replace=1, vocab_size=50)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    theirs, seen = model.model.layers[0].self_attn, {}
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    def keep(module, args, kwargs, out):
        seen.update(x=args[0] if args else kwargs['hidden_states'], out=out[0])

    theirs.register_forward_hook(keep, with_kwargs=True)
    model(torch.randint(0, 50, (2, 20)))
    ours = Attention(
        32, heads=4, dim_head=10, value_dim_head=5, causal=True, use_latent_q=True, dim_latent_q=12, use_latent_kv=True,
        dim_latent_kv=10, dim_latent_rope=4, latent_norm=True, indexer=True, indexer_heads=16, indexer_dim=8,
        indexer_topk=5, indexer_rotary=rotary,
    ).double().eval()  # fmt: skip
    own, of_q = dict(theirs.named_parameters()), theirs.q_b_proj.weight.unflatten(0, (4, 10))
    of_kv = own['kv_b_proj.weight'].unflatten(0, (4, 11))
    weights = {
        'to_latent_q.weight': own['q_a_proj.weight'],
        'q_latent_norm.gamma': own['q_a_layernorm.weight'],
        'to_q.weight': torch.cat((of_q[:, 6:], of_q[:, :6]), dim=1).flatten(0, 1),
        'to_latent_kv.weight': own['kv_a_proj_with_mqa.weight'][:10],
        'to_rotated_k.weight': own['kv_a_proj_with_mqa.weight'][10:],
        'kv_latent_norm.gamma': own['kv_a_layernorm.weight'],
        'to_k.weight': of_kv[:, :6].flatten(0, 1),
        'to_v.weight': of_kv[:, 6:].flatten(0, 1),
        'to_out.weight': own['o_proj.weight'],
        'to_index_q.weight': own['indexer.wq_b.weight'],
        'to_index_k.weight': own['indexer.wk.weight'],
        'index_norm.weight': own['indexer.k_norm.weight'],
        'index_norm.bias': own['indexer.k_norm.bias'],
        'to_index_weights.weight': own['indexer.weights_proj.weight'],
    }
    shapes = {name: t.shape for name, t in ours.state_dict().items()}
    ours.load_state_dict({name: t.view(shapes[name]) for name, t in weights.items()})
    rates = 10000 ** (-torch.arange(0, 4, 2, dtype=torch.float64) / 4)
    angles = (torch.arange(20).unsqueeze(-1) * rates).repeat_interleave(2, dim=-1)[None]
    assert_near(ours(seen['x'], rotary_pos_emb=(angles, 1.0)), seen['out'], tolerance=1e-6)

"""What stands around a stack in other models: scales of embeddings and logits, norms, projections, poolers."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from building import models
from oracles import assert_close, randomised
from torch import nn

from x_transformers import AutoregressiveWrapper, ContinuousTransformerWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.gpt_lejepa import LatentAutoregressive
from x_transformers.next_latent_wrapper import NextLatentWrapper
from x_transformers.training.token_loss import Readout
from x_transformers.x_transformers import XTransformer

IDS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]])
STACK = dict(dim=8, depth=1, heads=2, attn_dim_head=4, verbose=False)


model = models(7, 9, finish=randomised, **STACK)


def entered(net, *args, **kwargs):
    """What enters the stack."""
    seen = []
    with net.attn_layers.register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        net(*args, **kwargs)
    return seen[0]


def normed(x, norm, eps):
    x = x - x.mean(dim=-1, keepdim=True)
    x = x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * norm.gamma
    return x + norm.beta if hasattr(norm, 'beta') else x


class Adapted(nn.Module):
    """A table with an adapter, as fine-tuning libraries put it in place of one."""

    def __init__(self, table):
        super().__init__()
        self.base, self.more = table, nn.Embedding.from_pretrained(torch.randn_like(table.weight), freeze=False)

    @property
    def weight(self):
        return self.base.weight

    def forward(self, ids):
        return self.base(ids) + self.more(ids)


class Kept(nn.Module):
    """A module that keeps another, trains a copy of it, and goes for that copy."""

    def __init__(self, module):
        super().__init__()
        self.first, self.second = module, copy.deepcopy(module)
        randomised(self.second)

    def __getattr__(self, name):
        own = self.__dict__['_modules']
        return own[name] if name in own else getattr(own['second'], name)

    def forward(self, ids):
        return self.second(ids)


# embeddings


@pytest.mark.parametrize('flags', [{}, {'tie_embedding': True}, {'tie_embedding': True, 'l2norm_embed': True}])
def test_a_table_with_an_adapter_is_read_and_tied_as_a_whole(flags):
    net = model(**flags)
    net.token_emb.emb = table = Adapted(net.token_emb.emb)
    found, loss = net(IDS), AutoregressiveWrapper(net)(IDS)
    with pytest.raises(ValueError, match='token ids from'):
        net(IDS + 7)
    net.token_emb.emb = nn.Embedding.from_pretrained((table.weight + table.more.weight).detach())
    assert_close(found, net(IDS))
    assert_close(loss, AutoregressiveWrapper(net)(IDS))


def test_a_tied_head_asks_for_vectors_that_live_elsewhere():
    net = model(tie_embedding=True)
    found, loss = net(IDS), AutoregressiveWrapper(net)(IDS)
    away, table = net.token_emb.emb.weight.detach(), net.token_emb.emb
    table.forward = lambda ids: F.embedding(ids, away)  # as offloading puts it there
    table.weight = nn.Parameter(table.weight.to('meta'))
    assert_close(found, net(IDS))
    assert_close(loss, AutoregressiveWrapper(net)(IDS))


def test_a_head_follows_a_table_that_another_module_keeps():
    net = model(tie_embedding=True)
    net.token_emb = kept = Kept(net.token_emb)
    found = net(IDS)
    net.token_emb = kept.second
    assert_close(found, net(IDS))
    other = model(tie_embedding=True)
    other.load_state_dict(net.state_dict())
    assert_close(found, other(IDS))


@pytest.mark.parametrize('at', ['embedding', 'stream'])
@pytest.mark.parametrize('wide', [True, False])
def test_embeddings(at, wide):
    """Scaled tokens, places and types, summed, normed, projected; or normed behind the projection."""
    net = model(
        emb_scale=2.5, abs_pos_emb_scale=0.3, embed_num_tokens=dict(kind=3, more=4), embed_default_ids=dict(kind=2),
        post_emb_norm=True, post_emb_norm_bias=True, post_emb_norm_eps=0.2, post_emb_norm_at=at,
        emb_dim=8 if wide else 6, project_emb=True, project_emb_bias=wide,
    )  # fmt: skip
    more = torch.tensor([[0, 3, 1, 2, 2]]).expand(2, -1)
    kinds, mores = net.embeds['kind_embed'].weight, net.embeds['more_embed'].weight
    x = net.token_emb.emb.weight[IDS] * 2.5 + net.pos_emb.emb.weight[:5] * 0.3 + kinds[2] + mores[more]
    x = normed(x, net.post_emb_norm, 0.2) if at == 'embedding' else x
    x = x @ net.project_emb.weight.t() + (net.project_emb.bias if wide else 0)
    x = x if at == 'embedding' else normed(x, net.post_emb_norm, 0.2)
    assert (net.project_emb.bias is not None) == wide
    assert_close(entered(net, IDS, embed_ids=dict(more=more)), x, tolerance=1e-12)
    given = dict(more=more, kind=torch.full_like(IDS, 2))
    assert torch.equal(net(IDS, embed_ids=given), net(IDS, embed_ids=dict(more=more)))
    with pytest.raises(ValueError, match=r"`embed_ids` must .*got names \['kind'\]"):
        net(IDS, embed_ids=dict(kind=IDS % 3))


def test_places_along_axes_are_summed():
    """Rows, columns and channels, the last one fastest; in place of a table, whatever is cached, padded or given."""
    net = model(axial_abs_pos_emb=(2, 3, 2), max_seq_len=12)
    assert (
        net.pos_emb(IDS) == 0
        and not net.can_cache_kv_outside_max_seq_len
        and [tuple(t.shape) for t in net.axial_pos] == [(2, 8), (3, 8), (2, 8)]
    )
    stack = Decoder(**STACK)
    built = TransformerWrapper(num_tokens=7, max_seq_len=9, attn_layers=stack, axial_abs_pos_emb=(40, 40))
    assert 0.015 < torch.cat([t.flatten() for t in built.axial_pos]).std() < 0.025
    rows, columns, channels = net.axial_pos

    def vector(p):
        return rows[p // 6] + columns[p // 2 % 3] + channels[p % 2]

    ids, words = torch.arange(12)[None] % 7, net.token_emb.emb.weight
    places = torch.stack([vector(p) for p in range(12)])
    assert_close(entered(net, ids), words[ids] + places, tolerance=1e-12)
    pos = torch.tensor([[5, 11, 0]])
    assert_close(entered(net, ids[:, :3], pos=pos), words[ids[:, :3]] + places[pos], tolerance=1e-12)
    given = torch.ones(3, 8).double()
    assert_close(entered(net, ids[:, :3], pos=given), words[ids[:, :3]] + given, tolerance=1e-12)
    late = entered(net, ids[:, :4], seq_start_pos=torch.tensor([2]))
    assert_close(late[:, 2:], words[ids[:, 2:4]] + places[:2], tolerance=1e-12)
    for words, call in (
        ('the sequence has 13 tokens', lambda: model(axial_abs_pos_emb=(3, 4), max_seq_len=0)(ids.new_zeros(1, 13))),
        ('`pos` must .*got positions from 12 to 12', lambda: net(ids[:, :1], pos=torch.tensor([12]))),
        ('which are 12 places, fewer than `max_seq_len`, 13', lambda: model(axial_abs_pos_emb=(3, 4), max_seq_len=13)),
        ('`axial_abs_pos_emb` must be a tuple of two or more integers', lambda: model(axial_abs_pos_emb=(3,))),
        ('`axial_abs_pos_emb`', lambda: model(axial_abs_pos_emb=(3, 4), scaled_sinu_pos_emb=True)),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_a_scale_of_embeddings_is_rounded_as_their_table_is(dtype):
    for scale in (8**0.5, 3072**0.5, 1152**0.5, 257 / 256, 259 / 256, -1.1):
        net = model(emb_scale=scale, max_seq_len=0).to(dtype)
        wanted = net.token_emb.emb.weight[IDS] * torch.tensor(scale, dtype=dtype)
        assert torch.equal(entered(net, IDS), wanted), scale


def test_tokens_in_front_are_no_embeddings_of_ids():
    """Prefixes and memory tokens are not normed; a tied head reads the table as it is."""
    prefix = torch.ones(2, 3, 6, dtype=torch.double)
    net = model(emb_dim=6, post_emb_norm=True, post_emb_norm_at='stream', num_memory_tokens=2)
    x = entered(net, IDS, prepend_embeds=prefix)
    assert_close(x[:, :2], net.memory_tokens.expand(2, -1, -1))
    assert_close(x[:, 2:5], net.project_emb(prefix))
    assert_close((x[:, 5:] / net.post_emb_norm.gamma).mean(dim=-1), torch.zeros(2, 5).double(), tolerance=1e-12)
    tied = model(tie_embedding=True, tie_embedding_scale=1.0, emb_scale=3.0)
    out, hidden = tied(IDS, return_logits_and_embeddings=True)
    assert_close(out, hidden @ tied.token_emb.emb.weight.t(), tolerance=1e-12)


def test_vectors_have_the_same_places_and_norms():
    stack = Encoder(**STACK)
    flags = dict(abs_pos_emb_scale=1.0, post_emb_norm=True, post_emb_norm_bias=True, post_emb_norm_eps=0.2)
    net, x = randomised(ContinuousTransformerWrapper(attn_layers=stack, max_seq_len=9, **flags)), torch.rand(2, 5, 8)
    wanted = normed(x.double() + net.pos_emb.emb.weight[:5], net.post_emb_norm, 0.2)
    assert_close(entered(net, x.double()), wanted, tolerance=1e-12)


# heads

HEADS = {
    'scaled': dict(logits_scale=0.3),
    'clamped': dict(logits_softclamp=2.0, logits_scale=1.7, logits_bias=True),
    'biased': dict(logits_bias=True),
    'tied': dict(tie_embedding=True, tie_embedding_scale=0.7, logits_bias=True, logits_softclamp=1.5),
    'tied, no more': dict(tie_embedding=True, tie_embedding_scale=0.7, logits_bias=True),
    'several': dict(num_output_heads=2, logits_bias=True, logits_scale=0.5),
    'transformed': dict(head_transform=dict(eps=0.2)),
    'transformed, tied, narrow': dict(
        emb_dim=6, tie_embedding=True, tie_embedding_scale=1.0, logits_bias=True,
        head_transform=dict(dim=6, activation='tanh', bias=False, norm_bias=False),
    ),
    'transformed by scale': dict(head_transform=dict(dim=5, activation='relu', norm='rms', eps=0.1)),
    'transformed, no norm': dict(head_transform=dict(dim=5, norm=None), logits_dim=4),
}  # fmt: skip


def read_out(net, h, flags):
    """The logits of hidden states, or a tuple of them, in the order in which the words say it."""
    own = flags.get('head_transform')
    if own is not None:
        dense, norm = net.head_transform.dense, net.head_transform.norm
        h = h @ dense.weight.t() + (dense.bias if own.get('bias', True) else 0)
        h = {'gelu': lambda t: t * (1 + torch.erf(t / math.sqrt(2))) / 2, 'tanh': torch.tanh, 'relu': torch.relu}[
            own.get('activation', 'gelu')
        ](h)
        if own.get('norm', 'layer') == 'layer':
            assert hasattr(norm, 'beta') == own.get('norm_bias', True)
            h = normed(h, norm, own.get('eps', 1e-5))
        elif own['norm'] == 'rms':
            h = h / (h.square().mean(dim=-1, keepdim=True) + own['eps']).sqrt() * norm.g

    def one(head):
        tied = flags.get('tie_embedding')
        z = h @ (net.token_emb.emb.weight * flags['tie_embedding_scale'] if tied else head.weight).t()
        z = (z + head.bias if flags.get('logits_bias') else z) * flags.get('logits_scale', 1)
        c = flags.get('logits_softclamp')
        return z if c is None else c * torch.tanh(z / c)

    return tuple(map(one, net.to_logits)) if 'num_output_heads' in flags else one(net.to_logits)


@pytest.mark.parametrize('flags', HEADS.values(), ids=HEADS)
def test_heads(flags, monkeypatch):
    net = model(**flags)
    logits, hidden = net(IDS, return_logits_and_embeddings=True)
    wanted, several = read_out(net, hidden, flags), 'num_output_heads' in flags
    for own, one in zip(*((t if several else (t,)) for t in (logits, wanted)), strict=True):
        assert_close(own, one, tolerance=1e-12)
    last = net(IDS, logits_to_keep=2)
    assert_close(last[0] if several else last, (logits[0] if several else logits)[:, -2:], tolerance=1e-12)
    # a loss that reads the head a few tokens at a time
    monkeypatch.setattr('x_transformers.training.token_loss.CHUNK_BYTES', {'cpu': 1})
    monkeypatch.setattr('x_transformers.training.token_loss.FEWEST_TOKENS', 3)
    targets = IDS % 4
    assert isinstance(net(IDS, return_readout=True), Readout)
    loss, parameters = AutoregressiveWrapper(net)(targets), list(net.parameters())
    own = net(targets[:, :-1])
    each = [F.cross_entropy(t.flatten(0, 1), targets[:, 1:].flatten()) for t in (own if several else [own])]
    assert_close(loss, sum(each) / len(each), tolerance=1e-12)
    for grad, other in zip(
        torch.autograd.grad(loss, parameters, allow_unused=True),
        torch.autograd.grad(sum(each) / len(each), parameters, allow_unused=True),
        strict=True,
    ):
        assert (grad is None) == (other is None)
        assert grad is None or torch.allclose(grad, other, rtol=1e-9, atol=1e-12)


def test_losses_of_a_head_alone_refuse_what_stands_in_front_of_it():
    net = model(head_transform={})
    with pytest.raises(ValueError, match='`kl_loss_weight` must be 0 with `head_transform`'):
        NextLatentWrapper(net, dim=8)
    with pytest.raises(ValueError, match='`head_transform` is set'):
        LatentAutoregressive(net, dim=8)


def test_names_in_checkpoints():
    def around(net):
        return {name for name in net.state_dict() if not name.startswith(('attn_layers', 'pos_emb'))}

    net = model(
        emb_dim=6, tie_embedding=True, logits_bias=True, head_transform=dict(dim=6), pooler=dict(token='last', dim=8),
        post_emb_norm=True, post_emb_norm_bias=True, emb_scale=2.0, logits_softclamp=3.0, embed_num_tokens=dict(kind=2),
        embed_default_ids=dict(kind=1),
    )  # fmt: skip
    assert around(net) == {
        'token_emb.emb.weight', 'embeds.kind_embed.weight', 'post_emb_norm.gamma', 'post_emb_norm.beta',
        'project_emb.weight', 'project_emb.bias', 'head_transform.dense.weight', 'head_transform.dense.bias',
        'head_transform.norm.gamma', 'head_transform.norm.beta', 'to_logits.bias', 'pooler.weight', 'pooler.bias',
    }  # fmt: skip
    assert around(model(logits_bias=True)) == {'token_emb.emb.weight', 'to_logits.weight', 'to_logits.bias'}
    assert around(model(logits_bias=True, num_output_heads=2)) >= {'to_logits.0.bias', 'to_logits.1.bias'}
    fresh = TransformerWrapper(num_tokens=7, max_seq_len=9, attn_layers=Decoder(**STACK), logits_bias=True)
    assert not fresh.to_logits.bias.any()
    again = TransformerWrapper.from_config(net.config)
    again.double().eval().load_state_dict(net.state_dict())
    assert torch.equal(again(IDS), net(IDS))


def test_encoder_and_decoder_take_them_too():
    net = XTransformer(
        dim=8, enc_num_tokens=7, enc_depth=1, enc_heads=2, enc_max_seq_len=9, dec_num_tokens=7, dec_depth=1,
        dec_heads=2, dec_max_seq_len=9, enc_emb_scale=2.0, dec_emb_scale=3.0, dec_logits_bias=True, tie_token_emb=True,
        dec_tie_embedding=True, dec_logits_softclamp=2.0, enc_abs_pos_emb_scale=1.0, dec_rotary_pos_emb=True,
        dec_rotary_theta=100.0, enc_pooler=dict(token='mean'), enc_post_emb_norm=True, enc_post_emb_norm_bias=True,
    )  # fmt: skip
    net = randomised(net)
    assert 'decoder.net.to_logits.bias' in net.state_dict()
    assert (net.encoder.emb_scale, net.decoder.net.emb_scale) == (2.0, 3.0)
    net(IDS, IDS).backward()
    assert net.decoder.net.to_logits.bias.grad.abs().sum() > 0
    tokens = net.generate(IDS, IDS[:, :1], 4, temperature=0.0)
    assert torch.equal(tokens, net.generate(IDS, IDS[:, :1], 4, temperature=0.0, cache_kv=False))


# poolers

MASK = torch.tensor([[False, True, True, True, True], [True, True, True, False, False]])
# ids of the rows are 3 1 4 1 5 and 2 6 5 3 5; which places are pooled, with and without a mask
POOLED = {
    'first': (dict(token='first'), [0, 0], [1, 0]),
    'last': (dict(token='last'), [4, 4], [4, 2]),
    'eos': (dict(token='eos', eos=5), [4, 2], [4, 2]),
    'eos that only one row has': (dict(token='eos', eos=6), [0, 1], [1, 1]),
    'eos that is hidden': (dict(token='eos', eos=3), [0, 3], [1, 0]),
    'largest id': (dict(token='eos'), [4, 1], [4, 1]),
}


@pytest.mark.parametrize(('own', 'places', 'masked'), POOLED.values(), ids=POOLED)
def test_poolers(own, places, masked):
    net = model(Encoder, pooler=dict(dim=6, activation='tanh', **own))
    for options, at in (({}, places), (dict(mask=MASK), masked)):
        hidden, pooled = net(IDS, return_embeddings=True, return_pooled=True, **options)
        wanted = (hidden[torch.arange(2), torch.tensor(at)] @ net.pooler.weight.t() + net.pooler.bias).tanh()
        assert_close(pooled, wanted, tolerance=1e-12)
        assert torch.equal(net(IDS, return_embeddings=True, **options), hidden)
        assert torch.autograd.grad(pooled.sum(), net.pooler.weight)[0].abs().sum() > 0


def test_poolers_beside_other_outputs():
    net = model(pooler=dict(token='mean', dim=6, bias=False))
    (logits, hidden), pooled = net(IDS, return_logits_and_embeddings=True, return_pooled=True, mask=MASK)
    mean = (hidden * MASK.unsqueeze(-1)).sum(dim=1) / MASK.sum(dim=1, keepdim=True)
    assert_close(pooled, mean @ net.pooler.weight.t(), tolerance=1e-12)
    (out, again), trace = net(IDS, return_intermediates=True, return_pooled=True, mask=MASK)
    assert_close(out, logits, tolerance=1e-12)
    assert_close(again, pooled, tolerance=1e-12)
    bare = model(pooler=dict(token='last'), num_memory_tokens=2)
    prefix = torch.ones(2, 3, 8, dtype=torch.double)
    hidden, pooled = bare(IDS, return_embeddings=True, return_pooled=True, prepend_embeds=prefix)
    assert torch.equal(pooled, hidden[:, -1])
    with pytest.raises(ValueError, match='`return_pooled` cannot be combined with `cache`'):
        net(IDS, return_pooled=True, cache=trace)
    assert isinstance(model(pooler=dict(token='last')).pooler, nn.Identity)

"""Weights that were trained where the original is wrong: keywords give back what they computed, and loading says so."""

import pytest
import torch
import torch.nn.functional as F

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.checkpoint import upgrade
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import HyperConnection, OrthogonalResidualUpdate


def randomised(module):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module.double().eval()


def test_streams_mixed_by_ones():
    """Every stream becomes the sum of all, whatever the weights of the mix."""
    connection = randomised(HyperConnection(6, 1, streams=3, mixes_ones=True))
    x = torch.randn(2 * 3, 5, 6, dtype=torch.double)
    streams = x.view(2, 3, 5, 6).transpose(1, 2)
    normed = F.layer_norm(streams, (6,), connection.norm.weight)
    alpha = normed @ connection.dynamic_alpha_fn * connection.dynamic_alpha_scale + connection.static_alpha
    beta = 2 * (normed @ connection.dynamic_beta_fn).sigmoid() * connection.dynamic_beta_scale + connection.static_beta
    read, kept, more = connection.prepare(x)
    torch.testing.assert_close(read, (alpha[..., :1].sigmoid() * streams).sum(dim=2))
    torch.testing.assert_close(kept, streams.sum(dim=2, keepdim=True).expand_as(streams))
    new = connection(read, kept, **more)
    wanted = kept + 2 * beta.sigmoid().unsqueeze(-1) * read.unsqueeze(2)
    torch.testing.assert_close(new, wanted.transpose(1, 2).reshape(x.shape))
    connection.mixes_ones = False
    assert not torch.allclose(connection.prepare(x)[1], kept)


def test_tied_logits_of_a_table_that_is_stored_without_its_norm():
    flags = dict(num_tokens=7, max_seq_len=8, tie_embedding=True, l2norm_embed=True)
    net, plain = (
        randomised(TransformerWrapper(**flags, **own, attn_layers=Decoder(dim=16, depth=1, heads=2)))
        for own in (dict(tie_embedding_normed=False), {})
    )
    plain.load_state_dict(net.state_dict())
    ids = torch.arange(6).unsqueeze(0)
    hidden, table = net(ids, return_embeddings=True), net.token_emb.emb.weight
    torch.testing.assert_close(net(ids), hidden @ table.t() / 4)
    torch.testing.assert_close(plain(ids), hidden @ F.normalize(table, dim=-1).t() / 4)
    losses = [F.cross_entropy(one(ids)[:, :-1].transpose(1, 2), ids[:, 1:]) for one in (net, plain)]
    torch.testing.assert_close([AutoregressiveWrapper(one)(ids) for one in (net, plain)], losses)


def streams(**flags):
    return Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, num_residual_streams=3, **flags)


def test_the_keyword_reaches_every_layer():
    net, x = randomised(streams(hyper_conn_residual_mix='ones')), torch.randn(1, 4, 16, dtype=torch.double)
    assert [layer[2].mixes_ones for layer in net.layers] == [True] * 4
    plain = streams().double().eval()
    plain.load_state_dict(net.state_dict())
    assert not torch.allclose(net(x), plain(x))
    assert type(net).from_config(net.config).layers[0][2].mixes_ones
    with pytest.raises(ConfigError, match=r"`hyper_conn_residual_mix` must .*got 'one'"):
        streams(hyper_conn_residual_mix='one')


def learned(mixes):
    """Weights after some training, in which the mix had a gradient or not."""
    state = streams().state_dict()
    for name, t in state.items():
        if name.endswith(('dynamic_alpha_fn', 'static_alpha')) and not mixes:
            t[:, :1] += 0.1
        elif 'stream' not in name:
            t += 0.1
    return state


def test_loading_says_that_the_weights_were_mixed_by_ones(logged):
    quiet = streams(hyper_conn_residual_mix='ones')
    quiet.load_state_dict(learned(mixes=False))
    for state in (learned(mixes=True), streams().state_dict()):
        streams().load_state_dict(state)
    assert not [line for line in logged if 'matrix of ones' in line]
    streams().load_state_dict(learned(mixes=False))
    assert len([line for line in logged if "`hyper_conn_residual_mix='ones'`" in line]) == 1


@pytest.mark.parametrize('version', ['2.14.0', '2.31.10'])
def test_upgrade_asks_which_mix_is_meant(version):
    state = learned(mixes=False)
    with pytest.raises(ValueError, match=r"dynamic_alpha_fn.*`hyper_conn_residual_mix='ones'`"):
        upgrade(state, version, heads=2)
    for mix in ('ones', 'sinkhorn'):
        new = upgrade(state, version, heads=2, hyper_conn_residual_mix=mix)
        streams(hyper_conn_residual_mix=mix).load_state_dict(new)
    with pytest.raises(ValueError, match=r"`hyper_conn_residual_mix` must .*got 'two'"):
        upgrade(state, version, heads=2, hyper_conn_residual_mix='two')


def orthogonal(x, y):
    """What of each row of x, all tokens as one vector, is orthogonal to that of y."""
    x, y = (t.reshape(len(t), -1) for t in (x, y))
    return x - (x * y).sum(dim=-1, keepdim=True) / y.square().sum(dim=-1, keepdim=True) * y


def test_residuals_orthogonal_over_the_sequence():
    out, residual = torch.randn(2, 2, 5, 6, dtype=torch.double)
    update = OrthogonalResidualUpdate(6, over_sequence=True)
    torch.testing.assert_close(update(out, residual), residual + orthogonal(out, residual).view_as(out))
    net = randomised(Encoder(dim=16, depth=1, heads=2, orthog_residual=True, orthog_residual_over_sequence=True))
    assert [layer[2].over_sequence for layer in net.layers] == [True] * 2
    check_padding(net)
    with pytest.raises(ConfigError, match='`orthog_residual_over_sequence` cannot be combined with a causal stack'):
        Decoder(dim=16, depth=1, orthog_residual=True, orthog_residual_over_sequence=True)


def check_padding(net):
    """What a padded token holds does not matter."""
    x, mask = torch.randn(2, 5, 16, dtype=torch.double), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    wanted = net(x, mask=mask)
    torch.testing.assert_close(wanted[1, :3], net(x[1:, :3])[0])


@pytest.mark.parametrize('which', ['orthog_projected_values', 'orthog_projected_values_per_head', 'both'])
def test_values_orthogonal_over_the_sequence(which):
    names = ['orthog_projected_values', 'orthog_projected_values_per_head']
    flags = dict.fromkeys(names if which == 'both' else [which], True)
    layer = randomised(Attention(16, heads=2, dim_head=8, **flags, orthog_projected_values_over_sequence=True))
    x = torch.randn(2, 5, 16, dtype=torch.double)
    q, k, v = (to(x).view(2, 5, 2, 8).transpose(1, 2) for to in (layer.to_q, layer.to_k, layer.to_v))
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    part = orthogonal(out, layer.to_v(x)).view_as(out)
    torch.testing.assert_close(layer(x), layer.to_out(part if which != 'both' else torch.cat((part, part), dim=-1)))
    prefixed = {f'attn_{name}': True for name in flags} | {'attn_orthog_projected_values_over_sequence': True}
    check_padding(randomised(Encoder(dim=16, depth=1, heads=2, **prefixed)))
    with pytest.raises(ConfigError, match='over_sequence` cannot be combined with'):
        Decoder(dim=16, depth=1, **prefixed)
    with pytest.raises(ValueError, match='`causal=True` cannot be combined with'):
        layer(x, causal=True)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with'):
        Encoder(dim=16, depth=1, heads=2, **prefixed)(x.float(), document_ids=torch.zeros(2, 5).long())

"""Models by name, against torch's own and by counting, and the values that models start from."""

import json

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from torch import nn
from toy_tasks import taught
from training_laws import ids_of

from x_transformers import Decoder, TransformerWrapper, XTransformer, presets
from x_transformers.flags import ConfigError

DIM, HEADS, DEPTH, VOCAB = 16, 2, 2, 11
SMALL = {
    'dim': DIM,
    **{f'{side}_{name}': value for side in ('enc', 'dec') for name, value in (('depth', DEPTH), ('heads', HEADS))},
    **dict(enc_num_tokens=VOCAB, dec_num_tokens=VOCAB),
}
LENS = torch.tensor([5, 3])


def small(**overrides):
    return presets.build(presets.vaswani_base(**SMALL, **overrides))


def put(theirs, attn, norm, own):
    """Weights of one of our branches, with its norm, in the parts of torch's layer."""
    theirs.in_proj_weight.copy_(torch.cat((attn.to_q.weight, attn.to_k.weight, attn.to_v.weight)))
    theirs.in_proj_bias.zero_()
    theirs.out_proj.weight.copy_(attn.to_out.weight)
    theirs.out_proj.bias.zero_()
    put_norm(norm, own)


def put_norm(theirs, own):
    theirs.weight.copy_(own.gamma + own.unit_offset)
    theirs.bias.copy_(own.beta)


@torch.no_grad()
def as_torch(model, pre_norm):
    """torch's encoder and decoder with the weights of ours."""
    sizes = dict(d_model=DIM, nhead=HEADS, dim_feedforward=4 * DIM, batch_first=True, norm_first=pre_norm, dropout=0.1)
    at = 0 if pre_norm else 2

    def final():
        return nn.LayerNorm(DIM) if pre_norm else None

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**sizes), DEPTH, final(), enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**sizes), DEPTH, final())
    encoder, decoder = encoder.double().eval(), decoder.double().eval()
    for theirs, stack, width in (
        (encoder, model.encoder.attn_layers, 2),
        (decoder, model.decoder.net.attn_layers, 3),
    ):
        for number, layer in enumerate(theirs.layers):
            own = stack.layers[number * width : (number + 1) * width]
            put(layer.self_attn, own[0][1], layer.norm1, own[0][0][at])
            if width == 3:
                put(layer.multihead_attn, own[1][1], layer.norm2, own[1][0][at])
            put_norm(layer.norm3 if width == 3 else layer.norm2, own[-1][0][at])
            first, last = own[-1][1].ff[0][0], own[-1][1].output_layer
            for theirs_linear, linear in ((layer.linear1, first), (layer.linear2, last)):
                theirs_linear.load_state_dict(linear.state_dict())
        if pre_norm:
            put_norm(theirs.norm, stack.final_norm)
    return encoder, decoder


def positions(n):
    angles = torch.arange(n).double()[:, None] * 10000 ** (-torch.arange(0, DIM, 2).double() / DIM)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


@pytest.mark.parametrize('pre_norm', [False, True])
def test_it_is_the_transformer_of_torch(pre_norm):
    """Padding of the source, causality of the target, tied tables, and the loss with smoothed targets."""
    model = randomised(small(enc_pre_norm=pre_norm, dec_pre_norm=pre_norm), scale=0.3)
    encoder, decoder = as_torch(model, pre_norm)
    src, tgt = ids_of(2, 5), ids_of(2, 7, seed=1)
    table, real = model.encoder.token_emb.emb.weight, torch.arange(5) < LENS[:, None]
    context = encoder(table[src] * DIM**0.5 + positions(5), src_key_padding_mask=~real)
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    read = table[tgt[:, :-1]] * DIM**0.5 + positions(6)
    logits = decoder(read, context, tgt_mask=causal, memory_key_padding_mask=~real) @ table.T
    ours, mask = model.encode(src, mask=real)
    for row, length in enumerate(LENS):
        assert_close(ours[row, :length], context[row, :length])
    assert_close(model.decoder.net(tgt[:, :-1], context=ours, context_mask=mask), logits)
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), label_smoothing=0.1)
    assert_close(model(src, tgt, mask=real), loss)
    plain = XTransformer.from_config({**model.config, 'label_smoothing': 0.0}).double().eval()
    plain.load_state_dict(model.state_dict())
    assert_close(plain(src, tgt, mask=real), F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten()))


@pytest.mark.parametrize(('name', 'd', 'heads', 'dropout'), [('base', 512, 8, 0.1), ('big', 1024, 16, 0.3)])
def test_sizes(name, d, heads, dropout):
    keywords = getattr(presets, f'vaswani_{name}')()
    with torch.device('meta'):
        model = presets.build(keywords)
    attention, feedforward, norm = 4 * d * d, 2 * d * 4 * d + 4 * d + d, 2 * d
    layers = 6 * (attention + feedforward + 2 * norm) + 6 * (2 * attention + feedforward + 3 * norm)
    assert sum(p.numel() for p in model.parameters()) == 37000 * d + layers
    for side in (model.encoder, model.decoder.net):
        drops = {module.p for module in side.modules() if isinstance(module, nn.Dropout)} - {0.0}
        assert drops == {dropout} and side.attn_layers.attn_heads == heads
    assert model.decoder.label_smoothing == 0.1


def test_one_table_has_three_uses():
    model = small()
    tables = [model.encoder.token_emb.emb.weight, model.decoder.net.token_emb.emb.weight]
    assert tables[0] is tables[1]
    assert len([p for p in model.parameters() if p.shape == (VOCAB, DIM)]) == 1
    x, before = torch.randn(1, 2, DIM), model.decoder.net.to_logits(torch.ones(1, 1, DIM))
    assert torch.allclose(model.decoder.net.to_logits(x), x @ tables[0].T)
    with torch.no_grad():
        tables[0].add_(1.0)
    assert not torch.equal(model.decoder.net.to_logits(torch.ones(1, 1, DIM)), before)


def test_first_values():
    torch.manual_seed(0)
    model = presets.build(
        presets.vaswani_base(dim=256, enc_depth=1, dec_depth=1, enc_num_tokens=500, dec_num_tokens=500)
    )
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == 4 + 8 + 4
    for module in linear:
        bound = (6 / (module.in_features + module.out_features)) ** 0.5
        assert 0.98 * bound < module.weight.abs().max() <= bound
        assert abs(module.weight.std() / (bound / 3**0.5) - 1) < 0.02
        assert module.bias is None or (module.bias == 0).all()
    table = model.encoder.token_emb.emb.weight
    assert abs(table.std() * 16 - 1) < 0.02
    again = json.loads(json.dumps(presets.vaswani_base(**SMALL)))
    assert again == presets.vaswani_base(**SMALL) and presets.build(again).config == small().config
    assert json.loads(json.dumps(small().config)) == small().config


def test_what_users_say_counts():
    keywords = presets.vaswani_base(
        dim=64, enc_heads=4, dec_ff_dim_inner=96, label_smoothing=0.0, enc_rotary_pos_emb=True
    )
    assert keywords['enc_attn_dim_head'] == 16 and keywords['dec_attn_dim_head'] == 8
    assert keywords['enc_emb_scale'] == 8 and keywords['enc_ff_dim_inner'] == 256 and keywords['dec_ff_dim_inner'] == 96
    assert keywords['label_smoothing'] == 0 and keywords['enc_rotary_pos_emb']


# initial values of any model


def net_of(**stack):
    layers = Decoder(**{**dict(dim=64, depth=3, heads=4, norm_bias=True), **stack})
    return TransformerWrapper(num_tokens=300, max_seq_len=40, logits_bias=True, attn_layers=layers)


@pytest.mark.parametrize('offset', [True, False])
def test_matrices_are_normal_and_all_else_is_neutral(offset):
    net = randomised(net_of(norm_add_unit_offset=offset), scale=3.0)
    assert presets.initialise_(net, std=0.05) is net
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert abs(module.weight.std() / 0.05 - 1) < 0.06
        if getattr(module, 'bias', None) is not None:
            assert (module.bias == 0).all()
    for layer in net.attn_layers.layers:
        assert (layer[0][0].gamma == 1 - offset).all() and (layer[0][0].beta == 0).all()


def test_the_deeper_the_smaller_what_joins_the_stream():
    net = presets.initialise_(net_of(dim=128), residual='depth')
    ends = [w for a in net.attn_layers.layers for w in ([a[1].to_out] if a.kind == 'a' else [a[1].output_layer])]
    for module in net.modules():
        if isinstance(module, nn.Linear):
            shrunk = 6**-0.5 if any(module is end for end in ends) else 1.0
            assert abs(module.weight.std() / (0.02 * shrunk) - 1) < 0.06


def test_what_papers_set_stays():
    """Gates, halting, and branches that start silent."""
    flags = dict(weight_tie_layers=True, act_halting=True, attn_gate_values=True, zero_init_branch_output=True)
    net = net_of(**flags)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    presets.initialise_(net)
    after = net.state_dict()
    for name in ('act.halt.weight', 'to_v_gate', 'ff.2.weight', 'to_out.weight', '.halt'):
        for full in (n for n in before if name in n):
            assert torch.equal(before[full], after[full]), full
    same = {n for n in before if torch.equal(before[n], after[n])}
    assert {'attn_layers.layers.0.1.to_out.weight', 'attn_layers.layers.1.1.ff.2.weight'} <= same
    assert any('gate' in n for n in same) and any('halt' in n for n in same)
    assert not {'token_emb.emb.weight', 'attn_layers.layers.0.1.to_q.weight'} & same


# refusals


@pytest.mark.parametrize(
    ('call', 'kind', 'words'),
    [
        (lambda: presets.vaswani_bse, AttributeError, '`presets` has no .vaswani_bse., did you mean `vaswani_base`'),
        (lambda: presets.vaswani_base(enc_dpth=2), ConfigError, 'unknown keyword `enc_dpth` of XTransformer, did you'),
        (lambda: presets.vaswani_big(num_tokens=2), ConfigError, 'unknown keyword `num_tokens` of XTransformer'),
        (lambda: presets.vaswani_big(dim='wide'), ConfigError, "`dim` must be an integer of at least 1, got 'wide'"),
        (
            lambda: presets.build({'dim': 3}),
            ConfigError,
            '`keywords` must be a dict with the name of a class',
        ),
        (lambda: presets.initialise_(small(), std=0.0), ValueError, '`std` must be a positive number, got 0.0'),
        (
            lambda: presets.initialise_(small(), residual='d'),
            ValueError,
            "`residual` must be one of None, 'depth', got 'd'",
        ),
        (lambda: small(label_smoothing=1.5), ConfigError, '`label_smoothing` must be'),
        (lambda: small()(ids_of(2, 4), ids_of(3, 4)), ValueError, '`context` must '),
        (
            lambda: presets.build(presets.vaswani_base(**{**SMALL, 'enc_num_tokens': 5})),
            ConfigError,
            '`tie_token_emb` needs',
        ),
    ],
)
def test_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_weights_from_a_file_are_not_lost(tmp_path):
    from x_transformers import pretrained

    pretrained.save(small(), tmp_path, format='own')
    model = pretrained.load(tmp_path)
    with pytest.raises(ValueError, match='`model` has weights from a file, which would be lost: `force=True`'):
        presets.initialise_(model)
    before = model.encoder.token_emb.emb.weight.clone()
    assert not torch.equal(presets.initialise_(model, force=True).encoder.token_emb.emb.weight, before)


@pytest.mark.nightly
def test_it_learns_to_reverse():
    """Sixteen letters, in order and back: at least 99 % without any mistake."""
    torch.manual_seed(0)
    sizes = dict(dim=64, enc_depth=2, dec_depth=2, enc_heads=4, dec_heads=4, enc_num_tokens=9, dec_num_tokens=9)
    none = {
        f'{side}_{n}': 0.0
        for side in ('enc', 'dec')
        for n in ('emb_dropout', 'attn_sublayer_dropout', 'ff_sublayer_dropout')
    }
    model = presets.build(presets.vaswani_base(**sizes, **none))

    def pair(b):
        x = torch.randint(0, 8, (b, 16))
        return x, F.pad(x.flip(1), (1, 0), value=8)

    taught(model, lambda: model(*pair(64)), 400)
    x, y = pair(200)
    found = model.generate(x, y[:, :1], 16, temperature=0.0)
    assert (found == y[:, 1:]).all(dim=-1).float().mean() >= 0.99

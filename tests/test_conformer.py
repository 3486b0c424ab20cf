"""Convolution modules and conformers: by loops, torch's batch norm, transformers' block, lengths, tones in order."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, bools, randn, randomised
from torch import nn
from toy_tasks import taught

from x_transformers import ConformerEncoder, Decoder, Encoder, PrefixDecoder
from x_transformers.features.convolutions import BatchNorm, Convolution
from x_transformers.flags import ConfigError

SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8)


@pytest.mark.parametrize('norm', ['batch', 'layer', 'group'])
@pytest.mark.parametrize(('kernel', 'causal'), [(5, False), (1, False), (4, True), (7, True)])
def test_the_module_by_loops(norm, kernel, causal):
    made, x = randomised(Convolution(16, kernel, causal, norm)), randn(2, 6, 16)
    if norm == 'batch':
        made.batch_norm.running_mean += 0.3
        made.batch_norm.running_var *= 2.5
    gated = made.pointwise_in(made.norm(x))
    h = gated[..., :16] * gated[..., 16:].sigmoid()
    out = torch.zeros_like(h)
    first = kernel - 1 if causal else (kernel - 1) // 2
    for t in range(6):
        for k in range(kernel):
            if 0 <= t - first + k < 6:
                out[:, t] += h[:, t - first + k] * made.depthwise.weight[:, 0, k]
    own = made.batch_norm
    if norm == 'batch':
        out = (out - own.running_mean) / (own.running_var + 1e-5).sqrt()
    else:
        groups = 1 if norm == 'layer' else 8
        out = F.group_norm(out.flatten(0, 1), groups).view_as(out)
    out = out * own.weight + own.bias
    assert_close(made(x), made.pointwise_out(out * out.sigmoid()), tolerance=1e-10)


def test_batch_norm_is_torchs_of_real_tokens():
    """The same output, gradients and running statistics as on the real tokens alone; padding has no say."""
    ours, theirs = randomised(BatchNorm(5)).train(), nn.BatchNorm1d(5).double()
    theirs.load_state_dict({**theirs.state_dict(), **ours.state_dict()})
    mask = bools(3, 7)
    for _ in range(3):
        x = randn(3, 7, 5).requires_grad_()
        found, wanted = ours(x, mask)[mask], theirs(x[mask])
        assert_close(found, wanted, tolerance=1e-10)
        mine, other = (torch.autograd.grad((out * out.detach().cos()).sum(), x)[0] for out in (found, wanted))
        assert_close(mine, other, tolerance=1e-10)
    for name in ('running_mean', 'running_var'):
        assert_close(getattr(ours, name), getattr(theirs, name), tolerance=1e-10)
    assert_close(ours.eval()(x), theirs.eval()(x.flatten(0, 1)).view_as(x), tolerance=1e-10)
    assert_close(BatchNorm(5).double()(x), F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x))


def test_blocks():
    """Where the module stands, beside a second feedforward and cross-attention; the norm behind each block."""
    kinds = lambda **flags: ''.join(Encoder(**SIZES, conv_module=True, **flags).layer_types)  # noqa: E731
    assert kinds() == 'avf' * 2 and kinds(macaron=True) == 'favf' * 2 and kinds(cross_attend=True) == 'acvf' * 2
    stack = Encoder(**SIZES, conv_module=True, macaron=True, block_norm=True)
    assert [layer[0][2] is not None for layer in stack.layers] == [False, False, False, True] * 2
    assert stack.final_norm is None or not list(stack.final_norm.parameters())
    assert [layer[0][0] is None for layer in stack.layers] == [False, False, True, False] * 2
    names = {n.partition('.1.conv.')[2] for n, _ in stack.layers[2].named_parameters(prefix='layers.2')}
    assert names == {
        'norm.gamma', 'norm.beta', 'pointwise_in.weight', 'depthwise.weight', 'batch_norm.weight', 'batch_norm.bias',
        'pointwise_out.weight',
    }  # fmt: skip


@torch.no_grad()
def test_transformers_conformer_block():
    """A block of wav2vec2-conformer without positions, in evaluation."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerEncoderLayer

    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=16, num_attention_heads=2, intermediate_size=32, conv_depthwise_kernel_size=5,
        position_embeddings_type=None, hidden_act='swish',
    )  # fmt: skip
    theirs = randomised(Wav2Vec2ConformerEncoderLayer(config))
    theirs.conv_module.batch_norm.running_mean += 0.2
    theirs.conv_module.batch_norm.running_var *= 1.7
    made = Encoder(
        dim=16, depth=1, heads=2, attn_dim_head=8, macaron=True, conv_module=True, conv_kernel_size=5, block_norm=True,
        norm_bias=True, attn_qkv_bias=True, attn_out_bias=True, ff_mult=2, ff_swish=True,
    ).double().eval()  # fmt: skip
    first, attn, conv, last = made.layers

    def norm(ours, own):
        ours.gamma.copy_(own.weight - ours.unit_offset), ours.beta.copy_(own.bias)

    for layer, own, ln in ((first, theirs.ffn1, theirs.ffn1_layer_norm), (last, theirs.ffn2, theirs.ffn2_layer_norm)):
        norm(layer[0][0], ln)
        ff = next(m for m in layer[1].modules() if hasattr(m, 'ff'))
        ff.ff[0][0].load_state_dict(own.intermediate_dense.state_dict())
        ff.output_layer.load_state_dict(own.output_dense.state_dict())
    norm(attn[0][0], theirs.self_attn_layer_norm)
    for ours, own in zip(('to_q', 'to_k', 'to_v', 'to_out'), ('q', 'k', 'v', 'out'), strict=True):
        getattr(attn[1], ours).load_state_dict(getattr(theirs.self_attn, f'linear_{own}').state_dict())
    own, module = theirs.conv_module, conv[1].conv
    norm(module.norm, own.layer_norm)
    module.pointwise_in.weight.copy_(own.pointwise_conv1.weight[..., 0])
    module.depthwise.weight.copy_(own.depthwise_conv.weight)
    module.pointwise_out.weight.copy_(own.pointwise_conv2.weight[..., 0])
    for name in ('weight', 'bias', 'running_mean', 'running_var'):
        getattr(module.batch_norm, name).copy_(getattr(own.batch_norm, name))
    norm(last[0][2], theirs.final_layer_norm)
    x = randn(2, 9, 16)
    outputs = theirs(x)
    assert_close(made(x), outputs[0] if isinstance(outputs, tuple) else outputs, tolerance=1e-10)


def test_padding_has_no_neighbours():
    """In training too, a row with padding is what it is alone, and statistics are those of real tokens."""
    made = randomised(Encoder(**SIZES, conv_module=True, conv_kernel_size=5)).train()
    x, mask = randn(3, 8, 16), torch.arange(8).expand(3, -1) < torch.tensor([8, 5, 3])[:, None]
    other = x.masked_fill(~mask.unsqueeze(-1), 7.0)
    assert_close(made(other, mask=mask)[mask], made(x, mask=mask)[mask])
    layers = randomised(Encoder(**SIZES, conv_module=True, conv_kernel_size=5, conv_norm='layer'))
    assert_close(layers(x, mask=mask)[1, :5], layers(x[1:2, :5])[0])


@pytest.mark.parametrize('frames', [7, 8, 11, 20, 33])
def test_lengths(frames):
    """A quarter of the frames, by the formula; a row with padding is as alone."""
    made = randomised(
        ConformerEncoder(16, 1, input_dim=11, heads=2, attn_dim_head=8, conv_kernel_size=3, conv_norm='layer')
    )
    x = randn(2, frames, 11)
    n = ((frames - 1) // 2 - 1) // 2
    assert made(x).shape == (2, n, 16)
    longer, mask = F.pad(x, (0, 0, 0, 9), value=3.0), torch.arange(frames + 9).expand(2, -1) < frames
    found, real = made(longer, mask=mask, return_mask=True)
    assert real.sum(dim=1).tolist() == [n, n]
    assert_close(found[real].view(2, n, 16), made(x))
    made(longer.masked_fill(~mask.unsqueeze(-1), float('nan')), mask=mask).sum().backward()
    assert made.subsample[0].weight.grad.isfinite().all()
    kept = made.subsample
    h = F.conv2d(x[:, None], kept[0].weight, kept[0].bias, stride=2).relu()
    h = F.conv2d(h, kept[1].weight, kept[1].bias, stride=2).relu()
    assert_close(made(x), made.attn_layers(made.to_embed(h.transpose(1, 2).flatten(2))))


def test_every_frame():
    made = randomised(ConformerEncoder(16, 1, input_dim=11, subsample=1, heads=2, attn_dim_head=8))
    x = randn(2, 9, 11)
    assert_close(made(x), made.attn_layers(made.to_embed(x)))
    again = ConformerEncoder.from_config(made.config).double().eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(x), made(x))


@pytest.mark.nightly
def test_it_tells_the_order_of_tones():
    """Whether the pitch rises or falls, in spectrograms of noise with one band that moves."""
    torch.manual_seed(0)

    def drawn(b):
        rises, start = torch.randint(0, 2, (b,)), torch.randint(6, 10, (b,))
        t = torch.arange(32)
        pitch = start[:, None] + (2 * rises[:, None] - 1) * (t // 8)
        x = 0.3 * torch.randn(b, 32, 16)
        return x.scatter_add(2, pitch[..., None], torch.ones(b, 32, 1)), rises

    encoder = ConformerEncoder(32, 1, input_dim=16, heads=2, attn_dim_head=16, conv_kernel_size=5)
    model = nn.ModuleList((encoder, nn.Linear(32, 2)))

    def logits(x):
        return model[1](encoder(x).mean(dim=1))

    def loss():
        x, y = drawn(64)
        return F.cross_entropy(logits(x), y)

    taught(model, loss, 200)
    x, y = drawn(400)
    assert (logits(x).argmax(dim=-1) == y).double().mean() >= 0.95


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: Decoder(**SIZES, conv_module=True), '`conv_module` cannot be combined with a causal stack'),
        (lambda: PrefixDecoder(**SIZES, conv_module=True), '`conv_module` cannot be combined with a causal stack'),
        (lambda: Encoder(**SIZES, conv_module=True, conv_kernel_size=4), '`conv_kernel_size` must be odd, got 4'),
        (lambda: Encoder(**{**SIZES, 'dim': 12}, conv_module=True, conv_norm='group'), 'a width that 8 groups divide'),
        (lambda: Encoder(**SIZES, conv_module=True, shift_tokens=1), '`conv_module` cannot be .*with `shift_tokens`'),
        (lambda: Encoder(**SIZES, conv_module=True, checkpoint_layers=True), "`conv_norm='batch'` cannot be combined"),
        (lambda: Encoder(**SIZES, conv_norm='x', conv_module=True), "`conv_norm` must be one of 'batch', 'layer'"),
        (lambda: Encoder(**SIZES, custom_layers=('a', 'v', 'f')), 'which need `conv_module`'),
        (lambda: Encoder(**SIZES, block_norm=True, pre_norm=False), '`block_norm` needs `pre_norm`'),
        (lambda: Encoder(**SIZES, conv_module=True)(randn(1, 4, 16).float(), document_ids=torch.zeros(1, 4).long()),
         '`document_ids` cannot be combined with `conv_module`'),
        (lambda: Encoder(**SIZES, conv_module=True).train()(randn(1, 1, 16).float()), 'needs two tokens at least in'),
        (lambda: ConformerEncoder(16), '`depth` is missing'),
        (lambda: ConformerEncoder(16, 1, input_dim=5), '`input_dim` got 5, of which two convolutions leave nothing'),
        (lambda: ConformerEncoder(16, 1, subsample=2), '`subsample` must be 4 or 1, got 2'),
        (lambda: ConformerEncoder(16, attn_layers=Encoder(**SIZES)), '`dim` cannot be combined with `attn_layers`'),
        (lambda: ConformerEncoder(attn_layers=Decoder(**SIZES)), '`attn_layers` must be an Encoder, got Decoder'),
        (lambda: ConformerEncoder(16, 1)(torch.zeros(1, 6, 80)), '`x` must '),
        (lambda: ConformerEncoder(16, 1)(torch.zeros(1, 30, 8)), '`x` must '),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()

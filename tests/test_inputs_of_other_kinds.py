"""Inputs of other dtypes and shapes that mean the same as the usual ones, and give the same."""

import pytest
import torch
from oracles import assert_close, randn

from x_transformers import (
    DPO,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    EarlyExitWrapper,
    Encoder,
    EntropyBasedTokenizer,
    MultiInputTransformerWrapper,
    NonAutoregressiveWrapper,
    SimPO,
    TransformerWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.belief_state_wrapper import BeliefStateWrapper
from x_transformers.free_transformer import FreeTransformer
from x_transformers.gpt_vae import GPTVAE
from x_transformers.next_latent_wrapper import NextLatentWrapper

SIZES = dict(dim=8, depth=1, heads=2, attn_dim_head=4)
IDS = torch.tensor([[3, 7, 1, 4, 9, 2], [5, 2, 8, 8, 6, 1]])
OTHER = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.uint8]


def net(kind=Decoder, length=8, **flags):
    return TransformerWrapper(num_tokens=11, max_seq_len=length, attn_layers=kind(**{**SIZES, **flags}))


def xval():
    return XValTransformerWrapper(num_tokens=11, numerical_token_id=3, max_seq_len=8, attn_layers=Decoder(**SIZES))


def streams():
    return MultiInputTransformerWrapper(num_tokens=dict(a=11), max_seq_len=8, attn_layers=Decoder(**SIZES))


def both():
    sizes = {
        f'{side}_{k}': v for side in ('enc', 'dec') for k, v in dict(num_tokens=11, depth=1, max_seq_len=8).items()
    }
    return XTransformer(dim=8, **sizes)


NUMBERS = torch.linspace(-1, 1, 12).view(2, 6)
PROMPT = torch.arange(6).expand(2, -1) < 2
GREEDY = dict(temperature=0.0)
READ = {
    'model': (net, lambda m, t: m(t)),
    'further ids': (
        lambda: TransformerWrapper(
            num_tokens=11, max_seq_len=8, embed_num_tokens=dict(more=11), attn_layers=Decoder(**SIZES)
        ),
        lambda m, t: m(IDS, embed_ids=dict(more=t)),
    ),
    'streams': (streams, lambda m, t: m(dict(a=t))['a']),
    'numbers': (xval, lambda m, t: m(t, NUMBERS)[0]),
    'loss': (lambda: AutoregressiveWrapper(net()), lambda m, t: m(t)),
    'generate': (lambda: AutoregressiveWrapper(net()), lambda m, t: m.generate(t, 2, **GREEDY)),
    'one prompt': (lambda: AutoregressiveWrapper(net()), lambda m, t: m.generate(t[0], 2, **GREEDY)),
    'list': (lambda: AutoregressiveWrapper(net()), lambda m, t: m.generate([t[0], t[1, :4]], 2, **GREEDY)),
    'beams': (lambda: AutoregressiveWrapper(net()), lambda m, t: m.beam_search(t, 2, beams=2)),
    'early exits': (lambda: EarlyExitWrapper(net(depth=2)), lambda m, t: m(t)),
    'segments': (lambda: XLAutoregressiveWrapper(net(length=3, rel_pos_bias=True)), lambda m, t: m(t)),
    'masked': (lambda: NonAutoregressiveWrapper(net(Encoder, length=6), mask_id=10), lambda m, t: m(t).loss),
    'belief': (lambda: BeliefStateWrapper(net(), net()), lambda m, t: m(t)),
    'source': (both, lambda m, t: m(t, IDS)),
    'target': (both, lambda m, t: m(IDS, t)),
    'translated': (both, lambda m, t: m.generate(t, t[:, :2], 2, **GREEDY)),
    'loss of numbers': (lambda: XValAutoregressiveWrapper(xval()), lambda m, t: m(t, NUMBERS)),
    'pairs': (lambda: DPO(net()), lambda m, t: m(t, t.flip(0), prompt_mask=PROMPT)),
    'pairs, by a margin': (lambda: SimPO(net()), lambda m, t: m(t, t.flip(0), prompt_mask=PROMPT)),
    'codes': (
        lambda: FreeTransformer(num_tokens=11, dim=8, dec_head_depth=1, dec_tail_depth=1, max_seq_len=8, latent_bits=2),
        lambda m, t: m(t, seq_for_latents=t.flip(1)),
    ),
    'latents': (
        lambda: GPTVAE(num_tokens=11, dim=8, depth=1, enc_depth=1, max_seq_len=8),
        lambda m, t: m(t, seq_for_latents=t.flip(1)),
    ),
    'next latents': (lambda: NextLatentWrapper(net(), dim=8), lambda m, t: m(t)),
    'pieces': (lambda: EntropyBasedTokenizer(net(), 2.3), lambda m, t: m(t)),
}


def seeded(run, *args):
    torch.manual_seed(0)
    return run(*args)


@pytest.mark.parametrize('name', READ)
def test_ids_of_every_dtype(name):
    build, run = READ[name]
    model = seeded(build).eval()
    wanted = seeded(run, model, IDS)
    assert wanted.is_floating_point() or wanted.dtype == torch.int64
    for dtype in OTHER:
        out = seeded(run, model, IDS.to(dtype))
        assert out.dtype == wanted.dtype and torch.equal(out, wanted), dtype


@pytest.mark.parametrize('name', READ)
def test_other_numbers_are_no_ids(name):
    build, run = READ[name]
    model = build().eval()
    for wrong in (IDS + 0.5, IDS.double() * torch.inf, IDS > 3, IDS.to(torch.complex64)):
        with pytest.raises(TypeError, match=f'must hold integer token ids, got {wrong.dtype}'):
            run(model, wrong)


def test_pieces_are_of_the_kind_given():
    model = seeded(lambda: EntropyBasedTokenizer(net(), 2.3)).eval()
    for dtype in OTHER:
        pieces = [piece for row in model(IDS.to(dtype), return_segmented_seq=True) for piece in row]
        assert torch.equal(torch.cat(pieces), IDS.to(dtype).flatten()) and pieces[0].dtype == dtype


@pytest.mark.parametrize('dtype', [torch.int64, torch.int32])
def test_whole_numbers_beside_tokens(dtype):
    model, whole = seeded(lambda: XValAutoregressiveWrapper(xval())).eval(), IDS.to(dtype)
    assert torch.equal(model(IDS, whole), model(IDS, whole.float()))
    assert torch.equal(model.net(IDS, whole)[1], model.net(IDS, whole.float())[1])
    wanted = model.generate(IDS, whole.float(), 2, **GREEDY)
    torch.testing.assert_close(model.generate(IDS, whole, 2, **GREEDY), wanted, atol=0, rtol=0, equal_nan=True)


POSITIONS = dict(
    rotary=dict(rotary_pos_emb=True),
    xpos=dict(rotary_xpos=True, rotary_xpos_scale_base=8),
    polar=dict(polar_pos_emb=True),
    alibi=dict(alibi_pos_bias=True),
    dynamic=dict(dynamic_pos_bias=True),
)


@pytest.mark.parametrize('name', POSITIONS)
def test_places_between_whole_numbers(name):
    """Only distances count: a shift changes nothing, other distances do."""
    stack = seeded(lambda: Decoder(**SIZES, **POSITIONS[name])).double().eval()
    x, places = torch.randn(2, 6, 8, dtype=torch.float64), torch.tensor([0, 1, 3, 4, 6, 9])
    wanted = stack(x, pos=places)
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int16, torch.bfloat16):
        torch.testing.assert_close(stack(x, pos=places.to(dtype)), wanted, atol=1e-6, rtol=0)
    between = places + 0.25 * torch.arange(6)
    out = stack(x, pos=between)
    assert (out - wanted).abs().max() > 1e-4
    torch.testing.assert_close(stack(x, pos=between + 0.5), out, atol=1e-5, rtol=0)
    rows = torch.stack((between, places.double()))
    torch.testing.assert_close(stack(x, pos=rows), torch.stack((out[0], wanted[1])), atol=1e-6, rtol=0)
    torch.testing.assert_close(stack(x, pos=rows[:, None]), stack(x, pos=rows), atol=0, rtol=0)


def test_slopes_times_distances_between_whole_numbers():
    bias = Decoder(**SIZES, alibi_pos_bias=True).rel_pos
    places = torch.tensor([0.0, 0.5, 2.25], dtype=torch.float64)
    exact = -torch.tensor([2.0**-4, 2.0**-8])[:, None, None] * (places[:, None] - places).abs()
    assert torch.equal(bias.at(places, places), exact.float())


def test_buckets_need_whole_numbers():
    stack = Decoder(**SIZES, rel_pos_bias=True)
    with pytest.raises(ValueError, match=r'`pos` must be whole numbers, got torch\.float32: distances'):
        stack(torch.randn(2, 6, 8), pos=torch.rand(6))


def test_short_integers_of_a_table():
    model = net().eval()
    places = torch.tensor([0, 2, 1, 5, 4, 3])
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert torch.equal(model(IDS, pos=places.to(dtype)), model(IDS, pos=places))


def test_one_context_for_all_rows():
    stack = seeded(lambda: Decoder(**SIZES, cross_attend=True))
    model = TransformerWrapper(num_tokens=11, max_seq_len=8, attn_layers=stack).eval()
    context, real = torch.randn(1, 3, 8), torch.tensor([[True, False, True]])
    twice = dict(context=context.repeat(2, 1, 1), context_mask=real.repeat(2, 1))
    wanted = model(IDS, **twice)
    for mask in (real, twice['context_mask']):
        torch.testing.assert_close(model(IDS, context=context, context_mask=mask), wanted)
    ar = AutoregressiveWrapper(model)
    out = ar.generate(IDS, 2, context=context, context_mask=real, **GREEDY)
    assert torch.equal(out, ar.generate(IDS, 2, **twice, **GREEDY))
    assert torch.equal(
        ar.beam_search(IDS, 2, beams=2, context=context, context_mask=real), ar.beam_search(IDS, 2, beams=2, **twice)
    )


def test_vectors_for_all_rows_or_tokens():
    model, vectors = net().eval(), torch.randn(6, 8)
    assert torch.equal(model(IDS, sum_embeds=vectors), model(IDS, sum_embeds=vectors.expand(2, -1, -1)))
    assert torch.equal(model(IDS, sum_embeds=vectors[0]), model(IDS, sum_embeds=vectors[0].expand(2, 6, -1)))


def patches():
    return ViTransformerWrapper(image_size=4, patch_size=2, num_classes=3, attn_layers=Encoder(**SIZES))


def vectors_in():
    return ContinuousTransformerWrapper(dim_in=8, dim_out=3, max_seq_len=8, attn_layers=Decoder(**SIZES))


@pytest.mark.parametrize('build, shape', [(lambda: Decoder(**SIZES), (2, 6, 8)), (vectors_in, (2, 6, 8)),
                                          (patches, (2, 3, 4, 4))])  # fmt: skip
def test_inputs_of_fewer_digits_than_the_weights(build, shape):
    model, x = seeded(build).eval(), torch.randn(shape)
    for digits, weights in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float64),
        (torch.float32, torch.float64),
    ):
        model.to(weights)
        assert torch.equal(model(x.to(digits)), model(x.to(digits).to(weights)))
    model.to(torch.float32)
    with pytest.raises(ValueError, match=r'`(x|img)` must be torch.float32, as the weights are, got torch.float64'):
        model(x.double())
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r'`(x|img)` must be torch.bfloat16, as the weights are, got torch.float16'):
        model(x.half())


@pytest.mark.parametrize('flags', [dict(use_adaptive_layernorm=True), dict(use_adaptive_rmsnorm=True)])
def test_conditions_of_fewer_digits(flags):
    stack = seeded(lambda: Decoder(**SIZES, **flags, dim_condition=4))
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter)
    x, condition = torch.randn(2, 6, 8), torch.randn(2, 4)
    for dtype in (torch.bfloat16, torch.float16):
        given = condition.to(dtype)
        assert torch.equal(stack(x, condition=given), stack(x, condition=given.float()))


@pytest.mark.parametrize('shape', [(4,), (6, 4)], ids=['sequence', 'tokens'])
def test_one_condition_for_all_rows(shape):
    stack = seeded(lambda: Decoder(**SIZES, use_adaptive_layernorm=True, use_adaptive_layerscale=True, dim_condition=4))
    for parameter in stack.double().parameters():
        torch.nn.init.normal_(parameter)
    x, condition = randn(2, 6, 8), randn(1, *shape, seed=1)
    out = stack(x, condition=condition)
    assert_close(out, stack(x, condition=condition.expand(2, *shape)))
    assert not torch.allclose(out, stack(x, condition=condition + 1))


def test_memories_of_more_digits_are_refused():
    model, memory = net().eval(), torch.randn(2, 3, 8)
    half = memory.half()
    torch.testing.assert_close(model(IDS, mems=[half]), model(IDS, mems=[half.float()]), atol=0.01, rtol=0)
    with pytest.raises(ValueError, match=r'`mems\[0\]` got torch.float64, the input is torch.float32'):
        model(IDS, mems=[memory.double()])

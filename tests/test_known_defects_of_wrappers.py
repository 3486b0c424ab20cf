"""Where a reference implementation of the models around a stack goes wrong: one case per number, showing what is right.

T the model of tokens, C vectors, V numbers beside tokens, M several streams, E encoders and decoders, ViT images. Where
an oddity is kept, so that checkpoints and numbers agree with it, the case says why.
"""

import pytest
import torch
from defects import IDS, LONGEST, SIZES, TOKENS, Known, model, refused, twin
from oracles import assert_close, randn, randomised

from x_transformers import (
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    XValTransformerWrapper,
)

known = Known()
NUMBER = 3
MASK = torch.arange(7) < torch.tensor([[4], [7]])
START = torch.tensor([3, 3])
PREFIX = randn(2, 3, 16)
VECTORS = randn(2, 7, 5)
ROTARY = dict(stack=dict(rotary_pos_emb=True))


def continuous(kind=Decoder, stack=None, **flags):
    flags = {'dim_in': 5, 'dim_out': 5, 'max_seq_len': LONGEST, **flags}
    return randomised(ContinuousTransformerWrapper(attn_layers=kind(**{**SIZES, **(stack or {})}), **flags))


def xval(stack=None, **flags):
    flags = {'num_tokens': TOKENS, 'max_seq_len': LONGEST, 'numerical_token_id': NUMBER, **flags}
    return randomised(XValTransformerWrapper(attn_layers=Decoder(**{**SIZES, **(stack or {})}), **flags))


def streams(stack=None, **flags):
    flags = {'num_tokens': dict(pitch=TOKENS, length=5), 'max_seq_len': LONGEST, **flags}
    return randomised(MultiInputTransformerWrapper(attn_layers=Decoder(**{**SIZES, **(stack or {})}), **flags))


def rolled_out(net, x, steps, window=LONGEST):
    """The vectors that follow, the whole window read anew for each."""
    known = x.shape[1]
    for _ in range(steps):
        x = torch.cat((x, net(x[:, -window:])[:, -1:]), dim=1)
    return x[:, known:]


# 7.1 the model of tokens


@known('T19')
def memories_may_be_any_sequence():
    net, mems = model(max_mem_len=4), [randn(2, 3, 16, seed=i) for i in range(2)]
    assert_close(net(IDS, mems=tuple(mems)), net(IDS, mems=mems))
    for net, inputs in ((continuous(max_mem_len=4), (VECTORS,)), (xval(max_mem_len=4), (IDS, randn(2, 7)))):
        _, mems = net(*inputs, return_mems=True)
        assert_close(*(net(*inputs, mems=kind(mems), return_embeddings=True) for kind in (tuple, list)))


# 7.5 vectors


@known('C1')
def a_prefix_stands_before_memory_tokens():
    for build, inputs in ((continuous, (VECTORS,)), (xval, (IDS, randn(2, 7)))):
        net = build(num_memory_tokens=2)
        front = torch.cat((PREFIX, net.memory_tokens.expand(2, -1, -1)), dim=1)
        wanted = twin(net, build())(*inputs, prepend_embeds=front, return_embeddings=True)
        found = net(*inputs, prepend_embeds=PREFIX, return_embeddings=True)
        assert_close(found, torch.cat((wanted[:, :3], wanted[:, 5:]), dim=1))


@known('C2')
def vectors_behind_memory_tokens_are_generated():
    net = continuous(num_memory_tokens=2)
    out = ContinuousAutoregressiveWrapper(net).generate(VECTORS[:, :3], 4)
    assert_close(out, rolled_out(net, VECTORS[:, :3], 4))


@known('C3')
def a_window_of_vectors_slides():
    rotary, alibi = dict(rotary_pos_emb=True, depth=1), dict(alibi_pos_bias=True)
    for flags in ({}, alibi, rotary):
        net = continuous(stack=flags, max_seq_len=4)
        out = ContinuousAutoregressiveWrapper(net).generate(VECTORS[:, :3], 5)
        assert_close(out, rolled_out(net, VECTORS[:, :3], 5, window=4))


@known('C4')
def padding_before_vectors_is_not_seen():
    padded = torch.cat((VECTORS[:, 4:], VECTORS[:, :4]), dim=1)
    for places in ({}, ROTARY):
        net = continuous(**places)
        assert_close(net(padded, seq_start_pos=START)[:, 3:], net(VECTORS[:, :4]))


@known('C5')
def padding_is_no_target():
    net = continuous()
    missed = (net(VECTORS[:, :-1], mask=MASK[:, :-1]) - VECTORS[:, 1:]).square()
    for given in (dict(mask=MASK), dict(lens=torch.tensor([4, 7]))):
        assert_close(ContinuousAutoregressiveWrapper(net)(VECTORS, **given), missed[MASK[:, 1:]].mean())


@known('C6')
def an_average_counts_real_vectors():
    net = continuous(Encoder, average_pool_embed=True)
    out = net(VECTORS, lens=torch.tensor([4, 7]))
    assert_close(out, net(VECTORS, mask=MASK))
    assert_close(out[:1], net(VECTORS[:1, :4]))


@known('C7')
def rows_count_alike_and_features_too():
    net, lens = continuous(), torch.tensor([4, 7])
    missed = (net(VECTORS[:, :-1], mask=MASK[:, :-1]) - VECTORS[:, 1:]).square()
    wanted = (missed[0, :3].mean() + missed[1].mean()) / 2
    loss = ContinuousAutoregressiveWrapper(net, equal_loss_weight_batch=True)(VECTORS, lens=lens)
    assert_close(loss, wanted)


@known('C8')
def memories_of_vectors_add_up():
    net = continuous(max_seq_len=None, max_mem_len=8)
    _, mems = net(VECTORS[:, :2], return_mems=True)
    _, mems = net(VECTORS[:, 2:5], mems=mems, return_mems=True)
    assert [t.shape for t in mems] == [(2, 5, 16)] * 2
    assert_close(net(VECTORS[:, 5:], mems=mems), net(VECTORS)[:, 5:])


@known('C9')
def a_roll_out_reads_all_that_came_before():
    for flags in ({}, dict(probabilistic=True)):
        net = continuous(**flags)
        wrapper, x, count = ContinuousAutoregressiveWrapper(net), VECTORS[:, :1], 6  # there is one place to start
        losses = []
        for step in range(count):
            out = net(x)[..., -1:, :]
            mean = out[0] if flags else out
            missed = (mean - VECTORS[:, step + 1 : step + 2]).square()
            losses.append((out[1].log() + missed / out[1]) / 2 if flags else missed)
            x = torch.cat((x, mean), dim=1)
        assert_close(wrapper(VECTORS, rollout_steps=count), torch.cat(losses, dim=1).mean())
        # a row that is too short counts for nothing
        short = wrapper(VECTORS, rollout_steps=count, lens=torch.tensor([7, 5]))
        assert_close(short, wrapper(VECTORS[:1], rollout_steps=count))


# 7.6 numbers, streams, encoders and decoders


@known('V1')
def embeddings_beside_numbers_have_a_width_of_their_own():
    net, numbers = xval(emb_dim=10), randn(2, 7)
    logits, predicted = net(IDS, numbers)
    assert logits.shape == (2, 7, TOKENS) and predicted.shape == (2, 7)
    assert_close(net(IDS[:, :4], numbers[:, :4])[1], predicted[:, :4])


SIDES = {side + name: value for side in ('enc_', 'dec_') for name, value in SIZES.items() if name != 'dim'}
SIDES |= dict(dim=16, enc_num_tokens=TOKENS, dec_num_tokens=TOKENS, enc_max_seq_len=LONGEST, dec_max_seq_len=LONGEST)


@known('E2')
def generation_drops_nothing_in_the_encoder():
    net = randomised(XTransformer(**SIDES, enc_emb_dropout=0.5, enc_attn_dropout=0.5), scale=1.0)
    wanted = net.generate(IDS, IDS[:, :1], 6, temperature=0.0)
    for _ in range(5):
        assert torch.equal(net.train().generate(IDS, IDS[:, :1], 6, temperature=0.0), wanted)
    assert net.training and net.encoder.training


@known('E3')
def keywords_without_a_side_are_refused():
    refused(lambda: XTransformer(**SIDES, num_tokens=5), 'num_tokens')


@known('E4')
def tied_tables_have_one_vocabulary():
    refused(lambda: XTransformer(**{**SIDES, 'dec_num_tokens': 5}, tie_token_emb=True), 'tie_token_emb')


@known('E5')
def options_of_the_models_reach_both_sides():
    flags = dict(dec_num_memory_tokens=2, enc_post_emb_norm=True, dec_l2norm_embed=True, dec_tie_embedding=True)
    net = XTransformer(**SIDES, **flags)
    names = set(net.state_dict())
    assert {'decoder.net.memory_tokens', 'encoder.post_emb_norm.gamma'} <= names
    assert 'decoder.net.to_logits.weight' not in names
    assert net.decoder.net.token_emb.emb.weight.abs().max() < 1e-3
    assert net(IDS, IDS).isfinite()


@known('ViT-W1')
def an_image_without_classes_gives_its_mean():
    # kept, and said in the documentation: embeddings are asked for
    net = randomised(ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(**SIZES)))
    image = randn(2, 3, 8, 8)
    assert_close(net(image), net(image, return_embeddings=True).mean(dim=1))


@pytest.mark.parametrize('number', known)
def test_known_defect_of_wrappers(number):
    known[number]()


# Held by laws (`law_cases.py` has their rows) and by tests of the feature.
ELSEWHERE = (
    'E1 M1 M2 M3 T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11 T12 T13 T14 T15 T16 T17 T18 T20 T21 T22 T23 T24 T25 T26 V2 V3 V4'
).split()


def test_no_number_is_missing():
    last = {'T': 26, 'C': 9, 'V': 4, 'M': 3, 'E': 5, 'ViT-W': 1}
    assert {*known, *ELSEWHERE} == {
        f'{letter}{number}' for letter, count in last.items() for number in range(1, count + 1)
    }

"""Where a reference implementation of the models around a stack goes wrong: one case per number, showing what is right.

T the model of tokens, C vectors, V numbers beside tokens, M several streams, E encoders and decoders, ViT images. Where
an oddity is kept, so that checkpoints and numbers agree with it, the case says why.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from defects import IDS, LONGEST, SIZES, TOKENS, Known, loss_of, model, refused, twin, without
from oracles import assert_close, randn, randomised, sinusoid

from x_transformers import (
    AttentionPool,
    AutoregressiveWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    NeoMLP,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)

known = Known()
NUMBER = 3
MASK = torch.arange(7) < torch.tensor([[4], [7]])
PADDED = torch.cat((IDS[:, 4:], IDS[:, :4]), dim=1)  # three paddings that look like tokens, before four tokens
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


BOTH = dict(pitch=IDS, length=IDS % 5)


def rolled_out(net, x, steps, window=LONGEST):
    """The vectors that follow, the whole window read anew for each."""
    known = x.shape[1]
    for _ in range(steps):
        x = torch.cat((x, net(x[:, -window:])[:, -1:]), dim=1)
    return x[:, known:]


def step_by_step(net, **inputs):
    """The logits of tokens that come one by one behind the first three, with the cache."""
    out, cache = net(IDS[:, :3], return_intermediates=True, **inputs)
    outs = [out]
    for stop in range(4, 8):
        out, cache = net(IDS[:, :stop], cache=cache, return_intermediates=True, **inputs)
        outs.append(out)
    return torch.cat(outs, dim=1)


# 7.1 the model of tokens


@known('T1')
def embeddings_need_no_logits():
    mixture, single = dict(mixture_of_softmax=True), dict(logits_dim=1, squeeze_out_last_dim=True)
    for flags in (mixture, single, dict(sigsoftmax_logits=True)):
        net = model(**flags)
        hidden = twin(net, model(return_only_embed=True))(IDS)
        assert_close(net(IDS, return_embeddings=True), hidden)
        assert_close(net(IDS, return_embeddings_and_intermediates=True)[0], hidden)


@known('T2')
def logits_need_a_head():
    net = model(return_only_embed=True)
    refused(lambda: net(IDS, return_logits_and_embeddings=True), 'return_only_embed')
    refused(lambda: net(IDS, return_logit_entropies=True), 'return_only_embed')
    refused(lambda: model()(IDS, return_embeddings=True, return_logits_and_embeddings=True), 'return_embeddings')


@known('T3')
def all_that_is_returned_is_excised():
    for flags in ({}, dict(num_output_heads=2)):
        for asked in ({}, dict(return_embeddings=True), dict(return_logits_and_embeddings=True)):
            net = model(**flags)
            whole = net(IDS, prepend_embeds=PREFIX, **asked)
            cut = net(IDS, prepend_embeds=PREFIX, excise_prepend_embeds=True, **asked)
            pairs = zip(*(torch.utils._pytree.tree_leaves(out) for out in (cut, whole)), strict=True)
            for short, full in pairs:
                assert_close(short, full[:, 3:])


@known('T4')
def features_are_not_excised():
    for flags in (dict(average_pool_embed=True), dict(use_cls_token=True), dict(attn_pool=True)):
        net = model(Encoder, **flags)
        out = net(IDS, prepend_embeds=PREFIX)
        assert_close(net(IDS, prepend_embeds=PREFIX, excise_prepend_embeds=True), out)


@known('T5')
def an_average_counts_what_is_prepended():
    net = model(Encoder, average_pool_embed=True)
    out = net(IDS, mask=MASK, prepend_embeds=PREFIX)
    assert_close(out[:1], net(IDS[:1, :4], prepend_embeds=PREFIX[:1]))


@known('T6')
def a_model_pools_in_one_way():
    refused(lambda: model(Encoder, average_pool_embed=True, attn_pool=True), 'attn_pool', 'average_pool_embed')


@known('T7')
def a_pool_does_not_see_memory_tokens():
    net = model(Encoder, attn_pool=True, num_memory_tokens=2)
    assert_close(net(IDS, mask=MASK)[:1], net(IDS[:1, :4]))


@known('T8')
def memory_tokens_between_chunks_go_with_masks_and_what_stands_in_front():
    memory = dict(num_memory_tokens=2, memory_tokens_interspersed_every=3, max_seq_len=0)
    net = model(**memory)
    assert_close(net(IDS, mask=MASK)[:1, :4], net(IDS[:1, :4]))
    assert_close(net(IDS[:, 2:], prepend_embeds=net.token_emb(IDS[:, :2])), net(IDS))
    net = model(use_cls_token=True, **memory)
    first = net(IDS)
    assert_close(first[0], first[1])  # the token in front is causal, and sees none of the others
    with torch.no_grad():
        net.memory_tokens += randn(2, 16, seed=4)
    assert (net(IDS) - first).abs().max() > 1e-3


@known('T9')
def what_is_no_token_has_no_deep_embedding():
    net = model(ff_deep_embed=True, max_seq_len=0)
    with torch.no_grad():
        net.ff_deep_embed[IDS[:, :2].flatten()] = 1.0
    assert_close(net(IDS[:, 2:], prepend_embeds=net.token_emb(IDS[:, :2])), net(IDS))
    for flags in (dict(num_memory_tokens=2), dict(use_cls_token=True)):
        net = model(Encoder, ff_deep_embed=True, **flags)
        with torch.no_grad():
            net.ff_deep_embed[:] = 1.0
        assert_close(net(IDS), twin(net, model(Encoder, **flags))(IDS))


@known('T10')
def sinusoids_go_with_embeddings_of_unit_length():
    net = model(scaled_sinu_pos_emb=True, l2norm_embed=True)
    found = net(IDS, return_intermediates=True)[1].initial_embeds
    waves = net.pos_emb.scale * sinusoid({'scale': torch.ones(1).double()}, torch.arange(7), 16)
    assert_close(found, F.normalize(net.token_emb.emb.weight, dim=-1)[IDS] + waves)


@known('T11')
def sinusoids_take_positions_of_their_own_for_each_row():
    net = model(scaled_sinu_pos_emb=True)
    assert_close(net(PADDED, seq_start_pos=START)[:, 3:], net(IDS[:, :4]))
    rows = torch.stack((torch.arange(7), 2 * torch.arange(7)))
    assert_close(net(IDS, pos=rows)[1:], net(IDS[1:], pos=rows[1]))


@known('T12')
def positions_that_are_vectors_do_not_rotate():
    net, places = model(**ROTARY), randn(7, 16)
    assert_close(net(IDS, pos=places), net(IDS, sum_embeds=places.expand(2, -1, -1)))


@known('T13')
def the_weight_of_the_z_loss_is_that_of_the_model():
    net = model(attn_z_loss_weight=0.5)
    wanted = net(IDS, return_attn_z_loss=True, attn_z_loss_weight=0.5)[1].attn_z_loss
    assert_close(net(IDS, return_attn_z_loss=True)[1].attn_z_loss, wanted)
    assert_close(AutoregressiveWrapper(net, add_attn_z_loss=True)(IDS), loss_of(net(IDS), IDS) + wanted)
    net = streams(attn_z_loss_weight=0.5)
    wanted = net(BOTH, return_attn_z_loss=True, attn_z_loss_weight=0.5)[1].attn_z_loss
    assert_close(net(BOTH, return_attn_z_loss=True)[1].attn_z_loss, wanted)


@known('T14')
def an_embedding_of_the_users_is_left_alone():
    own = model().token_emb
    before = own.emb.weight.clone()
    TransformerWrapper(num_tokens=TOKENS, max_seq_len=LONGEST, token_emb=own, attn_layers=Decoder(**SIZES))
    assert torch.equal(own.emb.weight, before)


@known('T15')
def tied_embeddings_fit_or_are_refused():
    for flags in (dict(emb_dim=10), dict(num_output_heads=2), dict(logits_dim=5)):
        refused(functools.partial(model, tie_embedding=True, **flags), 'tie_embedding')
    net = model(tie_embedding=True, l2norm_embed=True)
    table = F.normalize(net.token_emb.emb.weight, dim=-1)
    assert_close(net(IDS), net(IDS, return_embeddings=True) @ table.T / 4)


@known('T16')
def a_sigmoid_that_underflows_has_a_logarithm():
    net = model(sigsoftmax_logits=True)
    with torch.no_grad():
        net.to_logits.weight *= 1000
    raw = twin(net, model())(IDS)
    assert raw.min() < -1000
    assert_close(net(IDS), raw - F.softplus(-raw))


@known('T17')
def several_heads_are_treated_alike():
    net, plain = model(num_output_heads=2, sigsoftmax_logits=True), model(num_output_heads=2)
    for ours, raw in zip(net(IDS), plain(IDS), strict=True):
        assert_close(ours, raw + raw.sigmoid().log())
    logits, trace = plain(IDS, return_logit_entropies=True)
    for one, found in zip(logits, trace.logit_entropies, strict=True):
        assert_close(found, torch.distributions.Categorical(logits=one).entropy())


@known('T18')
def recycling_steps_need_a_model_that_recycles():
    refused(lambda: model()(IDS, recycle_steps=2), 'recycle_steps')


@known('T19')
def memories_may_be_any_sequence():
    net, mems = model(max_mem_len=4), [randn(2, 3, 16, seed=i) for i in range(2)]
    assert_close(net(IDS, mems=tuple(mems)), net(IDS, mems=mems))
    for net, inputs in ((continuous(max_mem_len=4), (VECTORS,)), (xval(max_mem_len=4), (IDS, randn(2, 7)))):
        _, mems = net(*inputs, return_mems=True)
        assert_close(*(net(*inputs, mems=kind(mems), return_embeddings=True) for kind in (tuple, list)))


@known('T20')
def several_new_tokens_are_all_read():
    net = model(input_not_include_cache=True)
    cache = net(IDS[:, :3], return_intermediates=True)[1]
    assert_close(net(IDS[:, 3:], cache=cache), net(IDS)[:, 3:])


@known('T21')
def padding_starts_behind_what_stands_in_front():
    for flags in ({}, dict(num_memory_tokens=2)):
        for inputs in ({}, dict(prepend_embeds=PREFIX)):
            for places in ({}, ROTARY):
                net = model(**flags, **places)
                assert_close(net(PADDED, seq_start_pos=START, **inputs)[:, -4:], net(IDS[:, :4], **inputs)[:, -4:])


@known('T22')
def what_says_it_can_be_cached_can():
    stateful = 'attn_data_dependent_alibi', 'attn_orthog_projected_values', 'attn_selective', 'residual_attn'
    for flags in (dict(shift_tokens=1), *({flag: True} for flag in stateful)):
        net = model(stack=flags)
        if net.can_cache_kv:
            assert_close(step_by_step(net), net(IDS))
    for kind, flags in ((Decoder, dict(use_cls_token=True)), (Decoder, dict(average_pool_embed=True)), (Encoder, {})):
        assert not model(kind, **flags).can_cache_kv


@known('T23')
def maps_do_not_depend_on_the_kernel():
    fused, plain = (model(stack=dict(attn_flash=flash)) for flash in (True, False))
    for ours, theirs in zip(fused(IDS, return_attn=True)[1], plain(IDS, return_attn=True)[1], strict=True):
        assert_close(ours, theirs)
    assert_close(*(net(IDS, return_attn_z_loss=True)[1].attn_z_loss for net in (fused, plain)))


@known('T24')
def a_pool_of_blocks_takes_options_of_attention():
    pool = AttentionPool(dim=16, depth=2, attn_kwargs=dict(num_mem_kv=3))
    assert sum('mem_k' in name for name in pool.state_dict()) == 2


@known('T25')
def pooled_tokens_are_the_output_of_an_encoder():
    # kept: one pooled token keeps its axis, so that the shape does not depend on their number
    net = model(Encoder, attn_pool=True)
    out, trace = net(IDS, return_intermediates=True)
    assert out.shape == (2, 1, 16)
    assert_close(out, net.attn_pool(net(IDS, return_embeddings=True)))
    assert trace.logits.shape == (2, 7, TOKENS)


@known('T26')
def embeddings_of_a_mixture_are_those_before_it():
    net = model(mixture_of_softmax=True)
    hidden = twin(net, model(return_only_embed=True))(IDS)
    assert_close(net(IDS, return_logits_and_embeddings=True)[1], hidden)


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


@known('V2')
def what_is_no_target_is_padding_in_the_input():
    net, x, numbers = xval(), without(IDS, 2, 3), randn(2, 7)
    logits, predicted = net(x.masked_fill(x == -100, 5)[:, :-1], numbers[:, :-1])
    targets, counts = x[:, 1:], x[:, 1:] != -100
    squares = (predicted - numbers[:, 1:]).square() * (targets == NUMBER)
    tokens = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100)
    assert_close(XValAutoregressiveWrapper(net, pad_value=5)(x, numbers), tokens + squares[counts].mean())


@known('V3')
def masks_beside_numbers_are_extended_over_a_prefix():
    net, numbers = xval(), randn(2, 7)
    out = net(IDS, numbers, mask=MASK, prepend_embeds=PREFIX, return_embeddings=True)
    alone = net(IDS[:1, :4], numbers[:1, :4], prepend_embeds=PREFIX[:1], return_embeddings=True)
    assert_close(out[:1, :7], alone)


@known('V4')
def tables_beside_numbers_and_of_streams_start_wide():
    # kept: a number of size 1 weighs as much as a position, and models were trained so
    sizes = dict(max_seq_len=LONGEST, attn_layers=Decoder(**SIZES))
    alone = XValTransformerWrapper(num_tokens=999, numerical_token_id=NUMBER, **sizes).token_emb.emb.weight
    several = MultiInputTransformerWrapper(num_tokens=dict(pitch=999), **sizes).embeds['pitch_embed'].weight
    for table in (alone, several):
        assert abs(table.std() - 1) < 0.05


@known('M1')
def streams_behind_a_prefix_and_memory_tokens_are_all_there():
    net = streams(num_memory_tokens=2, max_seq_len=0)
    front, rest = ({name: ids[:, part] for name, ids in BOTH.items()} for part in (slice(3), slice(3, None)))
    prefix = sum(net.embeds[f'{name}_embed'](ids) for name, ids in front.items())
    found, wanted = net(rest, prepend_embeds=prefix), net(BOTH)
    for name in BOTH:
        assert_close(found[name], wanted[name])


@known('M2')
def streams_rotate_by_their_positions_and_say_what_can_be_cached():
    net, places = streams(**ROTARY), torch.arange(7)
    first, moved, spread = (net(BOTH, pos=pos)['pitch'] for pos in (places, places + 5, 2 * places))
    assert_close(first, moved)
    assert (first - spread).abs().max() > 1e-3
    net = streams(stack=dict(attn_selective=True))
    if net.can_cache_kv:
        cut = {name: ids[:, :6] for name, ids in BOTH.items()}
        cache = net(cut, return_intermediates=True)[1]
        assert_close(net(BOTH, cache=cache)['pitch'], net(BOTH)['pitch'][:, 6:])


@known('M3')
def streams_can_be_learned_and_generated():
    from x_transformers import MultiInputAutoregressiveWrapper

    net = streams()
    wrapper = MultiInputAutoregressiveWrapper(net)
    assert_close(wrapper(BOTH), sum(loss_of(logits, BOTH[name]) for name, logits in net(BOTH).items()))
    new = wrapper.generate(BOTH, 3, temperature=0.0)
    assert_close(new['length'][:, 0], net(BOTH)['length'][:, -1].argmax(dim=-1))


@known('E1')
def one_input_has_embeddings_without_a_batch():
    net, x = randomised(NeoMLP(dim_in=2, dim_hidden=3, dim_out=4, dim_model=16, depth=1)), randn(2)
    out, embeds = net(x, return_embeds=True)
    batched, in_batch = net(x[None], return_embeds=True)
    assert_close(out, batched[0])
    for ours, theirs in zip(embeds, in_batch, strict=True):
        assert_close(ours, theirs[0])


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


def test_no_number_is_missing():
    last = {'T': 26, 'C': 9, 'V': 4, 'M': 3, 'E': 5, 'ViT-W': 1}
    assert set(known) == {f'{letter}{number}' for letter, count in last.items() for number in range(1, count + 1)}

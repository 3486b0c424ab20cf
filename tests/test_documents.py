"""Documents packed into one row know nothing of one another: the row equals the separate rows."""

import copy

import pytest
import torch
from law_cases import (
    BY_NAME,
    CASES,
    TABLES,
    Case,
    each_of,
    inputs_for,
    is_per_token,
    is_pooled,
    model_of,
    others_nightly,
    per_token,
    refused,
    rows,
    shallow,
    tokens,
    weighted,
)
from oracles import assert_close, randn, randomised
from sweeps import crossed, is_late, nightly

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features.documents import begins, lengths_of_documents, positions_within
from x_transformers.next_latent_wrapper import NextLatentWrapper

# documents of each row: which of the separate rows, and how many of its tokens
PACKED = [[(0, 5), (1, 3), (2, 6)], [(2, 6), (0, 5), (1, 3)]]
IDS = torch.tensor([[0] * 5 + [1] * 3 + [2] * 6, [7] * 6 + [2] * 5 + [7 - 9] * 3])
LENGTH = 14


def separate(case, net):
    """The inputs of three documents, alike in what they have per row."""
    inputs = inputs_for(net, case, batch=3, length=6)
    alike = {name for name, value in inputs.items() if not (is_per_token(name, value) or name in ('pos', 'attn_bias'))}
    first = rows({name: inputs[name] for name in alike}, [0, 0, 0])
    return {name: first.get(name, value) for name, value in inputs.items()}


def packed(inputs):
    """The same documents in rows of several."""
    made = {}
    for name, value in inputs.items():
        if name == 'attn_bias':
            blocks = [[value[i, :, :n, :n] for i, n in row] for row in PACKED]
            heads = [[torch.block_diag(*(b[h] for b in row)) for h in range(value.shape[1])] for row in blocks]
            made[name] = torch.stack([torch.stack(row) for row in heads])
        elif name in TABLES:
            made[name] = each_of(name, lambda t: torch.stack([cut(t.expand(3, -1, -1), row) for row in PACKED]), value)
        elif is_per_token(name, value) or name == 'pos':
            made[name] = each_of(name, lambda t: torch.stack([cut(t, row) for row in PACKED]), value)
        else:
            made |= rows({name: value}, [0, 0])
    return {**made, 'document_ids': IDS}


def cut(t, row):
    """The tokens of the documents of a row (n ...), out of rows of one document (b n ...)."""
    return torch.cat([t[i, :n] for i, n in row])


def outputs(net, inputs, **options):
    """What each document gives in a row of several, and by itself."""
    together = per_token(net, packed(inputs), **options)
    for row, out in zip(PACKED, together, strict=True):
        start = 0
        for i, n in row:
            alone = per_token(net, tokens(rows(inputs, [i]), 0, n), **options)
            yield out[start : start + n], alone[0]
            start += n


def law(case):
    """Equal to the separate rows, or refused by the name of what joins them."""
    case = shallow(case) if case.flag else case
    net = model_of(case)
    inputs = separate(case, net)
    try:
        pairs = list(outputs(net, inputs))
    except ValueError as error:
        assert '`document_ids` cannot be combined with `' in str(error), error
        named = str(error).split('`')[3]
        assert named in case.keywords or is_pooled(net), error
        return str(error)
    for out, alone in pairs:
        assert_close(out, alone)
    return None


CHECKED = [case for case in CASES if 'flash_pack_seq' not in case.name]  # another way to say the same


def half_nightly(cases):
    """Of the first cases of features, too, one half is for the suite, with one that has found something."""
    known = zip(cases, others_nightly(cases), strict=True)
    also = ('shift_tokens',)
    return [nightly(case) if is_late(2, 'documents', case) and case.name not in also else one for case, one in known]


@pytest.mark.parametrize('case', half_nightly(CHECKED), ids=str)
def test_a_packed_row_is_the_separate_rows(case):
    law(case)


@pytest.mark.nightly
@pytest.mark.parametrize('case', [case for case in CHECKED if case.kind is Decoder], ids=str)
def test_so_it_is_where_tokens_see_the_future(case):
    case = case.of_kind(Encoder)
    if not refused(case):
        law(case)


@pytest.mark.parametrize('name', ['num_memory_tokens', 'attn_hybrid_module', 'mv_split_residual', 'attn_pool'])
def test_what_joins_tokens_is_refused(name):
    assert f'`{name}`' in law(BY_NAME[name])


POSITIONS = (
    {},
    dict(rotary_pos_emb=True),
    dict(rotary_xpos=True),
    dict(alibi_pos_bias=True),
    dict(rel_pos_bias=True),
    dict(dynamic_pos_bias=True),
    dict(polar_pos_emb=True),
    dict(attn_max_attend_past=2, rotary_pos_emb=True),
    dict(attn_kv_heads=2, attn_num_mem_kv=2, alibi_pos_bias=True),
)


@pytest.mark.parametrize(('stack', 'flash'), crossed(POSITIONS, [False, None, True, None]))
def test_every_kernel_and_every_position(stack, flash):
    """Outputs and gradients, beside padding inside documents."""
    case = Case('on kernels', stack=dict(stack, attn_flash=flash))
    net = model_of(case)
    inputs = separate(case, net)
    together, alone = zip(*outputs(net, inputs), strict=True)
    assert_close(torch.cat(together), torch.cat(alone))
    parameters = list(net.parameters())
    grads = [
        torch.autograd.grad(weighted(torch.cat(outs)), parameters, allow_unused=True) for outs in (together, alone)
    ]
    for grad, wanted in zip(*grads, strict=True):
        if wanted is not None:
            assert_close(grad, wanted, 'gradient')
    real = torch.ones(3, 6, dtype=torch.bool)
    real[0, 1] = real[0, 4] = real[2, 0] = False
    row = net(**packed(inputs), mask=torch.stack([cut(real, row) for row in PACKED]))
    for i, n, at in ((0, 5, 0), (1, 3, 5), (2, 6, 8)):
        one = net(**tokens(rows(inputs, [i]), 0, n), mask=real[[i], :n])
        assert_close(row[0, at : at + n][real[i, :n]], one[0][real[i, :n]])


@pytest.mark.parametrize('name', ['attn_selective', 'shift_tokens', 'attn_use_cope', 'attn_data_dependent_alibi'])
def test_padding_beside_what_counts_tokens(name):
    net = model_of(BY_NAME[name])
    inputs = separate(BY_NAME[name], net)
    real = torch.tensor([[0, 1, 0, 1, 1, 1]] * 3, dtype=torch.bool)
    row = net(**packed(inputs), mask=torch.stack([cut(real, row) for row in PACKED]))
    one = net(**tokens(rows(inputs, [2]), 0, 6), mask=real[[2]])
    assert_close(row[0, 8:][real[2]], one[0][real[2]])


def language_model(**stack):
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False, **stack)
    return TransformerWrapper(num_tokens=30, max_seq_len=14, attn_layers=stack).double()


def test_equal_ids_see_one_another():
    """Wherever they stand; positions begin where the id changes."""
    net, x = language_model(), torch.randint(0, 30, (1, 6), generator=torch.Generator().manual_seed(0))
    other = torch.cat((x[:, :2], x[:, 2:4].flip(1), x[:, 4:]), dim=1)
    ids = torch.tensor([[3, 3, 1, 1, 3, 3]])
    before, after = net(x, document_ids=ids)[0], net(other, document_ids=ids)[0]
    assert_close(after[[0, 1, 4, 5]], before[[0, 1, 4, 5]])
    assert (before[4:] - net(x[:, 4:])[0]).abs().max() > 1e-3  # the last two see the first two
    assert positions_within(ids).tolist() == [[0, 1, 0, 1, 0, 1]]
    assert begins(ids).tolist() == [[True, False, True, False, True, False]]


@pytest.mark.parametrize('flags', [{}, dict(rel_pos_bias=True), dict(attn_rotate_values=True)], ids=str)
def test_positions_begin_anew_in_every_run_of_an_id(flags):
    """As with positions and a mask given by hand; where an id comes again, distances are between the new positions."""
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False, **flags)
    stack, x, ids = randomised(stack), randn(1, 6, 16), torch.tensor([[3, 3, 1, 1, 3, 3]])
    seen = (ids[0][:, None] == ids[0]) & torch.ones(6, 6, dtype=torch.bool).tril()
    wanted = stack(x, pos=torch.tensor([0, 1, 0, 1, 0, 1]), attn_mask=seen)
    assert_close(stack(x, document_ids=ids), wanted)
    assert (wanted - stack(x, attn_mask=seen)).abs().max() > 1e-3


@pytest.mark.parametrize('hides', [True, False])
def test_lengths_of_documents_against_loops(hides):
    """From the first real position to the last, also where a document comes again; none where none is real."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 3, (8, 9), generator=generator)
    real = torch.rand(8, 9, generator=generator) < 0.5 if hides else torch.ones(8, 9, dtype=torch.bool)
    positions = positions_within(ids) + 4
    found = lengths_of_documents(positions, ids, real if hides else None)
    for row in range(8):
        for at in range(9):
            own = positions[row][(ids[row] == ids[row, at]) & real[row]].tolist()
            assert found[row, at] == (max(own) - min(own) + 1 if own else 0)


def test_positions_begin_anew_behind_every_boundary():
    """What depends on the place of a token itself shows it."""
    flags = dict(rotary_pos_emb=True, attn_flash_pack_seq=True, attn_rotate_values=True, verbose=False)
    stack, x = randomised(Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **flags)), randn(1, 7, 16)
    bounds = torch.tensor([0, 3, 7])
    packed = stack(x, flash_pack_seq_kwargs=dict(cu_seqlens_q=bounds, cu_seqlens_k=bounds))
    assert_close(packed, torch.cat((stack(x[:, :3]), stack(x[:, 3:])), dim=1))


def test_a_single_layer_and_a_bare_stack():
    x, ids = randn(1, 7, 16), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    for flash in (False, None, True):
        layer = Attention(dim=16, heads=2, dim_head=8, causal=True, flash=flash).double()
        apart = torch.cat((layer(x[:, :3]), layer(x[:, 3:])), dim=1)
        assert_close(layer(x, document_ids=ids), apart)
    stack = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, alibi_pos_bias=True).double()
    assert_close(stack(x, document_ids=ids), torch.cat((stack(x[:, :3]), stack(x[:, 3:])), dim=1))
    with pytest.raises(ValueError, match='`hybrid_module`'):
        beside = torch.nn.Linear(16, 16)
        Attention(dim=16, heads=2, dim_head=8, hybrid_module=beside).double()(x, document_ids=ids)


def test_boundaries_say_the_same():
    """`flash_pack_seq_kwargs` describes one row by where its documents begin."""
    net = language_model(rotary_pos_emb=True, attn_flash_pack_seq=True)
    x = torch.randint(0, 30, (1, 7))
    bounds = torch.tensor([0, 3, 7])
    packs = dict(cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=4, max_seqlen_k=4)
    assert_close(net(x, document_ids=torch.tensor([[0] * 3 + [1] * 4])), net(x, flash_pack_seq_kwargs=packs))


# learning


@pytest.mark.parametrize('model', [{}, dict(num_output_heads=2)], ids=str)
def test_the_loss_is_that_of_the_separate_rows(model):
    """No document says how the next one begins."""
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False)
    net = TransformerWrapper(num_tokens=30, max_seq_len=14, attn_layers=stack, **model)
    lm = AutoregressiveWrapper(net).double()
    x = torch.randint(0, 30, (3, 6))
    row = torch.stack([cut(x, row) for row in PACKED])
    alone = {i: lm(x[[i], :n]) * (n - 1) for i, n in PACKED[0]}
    wanted = sum(alone.values()) / (LENGTH - 3)
    loss, (logits, _) = lm(row, document_ids=IDS, return_outputs=True)
    assert_close(loss, wanted)
    assert (logits[0] if model else logits).shape[1] == LENGTH - 1
    assert_close(lm(row[:1], document_ids=IDS[:1]), wanted)


def test_forgetful_masking_keeps_the_first_token_of_each_document():
    lm = AutoregressiveWrapper(language_model(), mask_prob=0.9)
    seen = []
    lm.net.register_forward_pre_hook(lambda _, args, inputs: seen.append(inputs['self_attn_kv_mask']), with_kwargs=True)
    for _ in range(5):
        lm(torch.randint(0, 30, (2, LENGTH)), document_ids=IDS)
    assert all(kept[begins(IDS)].all() and not kept.all() for kept in seen)


# refused


def test_refusals():
    net, x, ids = language_model(), torch.randint(0, 30, (2, 6)), torch.tensor([[0, 0, 0, 1, 1, 1]]).repeat(2, 1)
    with pytest.raises(ValueError, match=r'`document_ids` must .*got torch\.int64 of shape \(2, 5\)'):
        net(x, document_ids=ids[:, 1:])
    with pytest.raises(ValueError, match=r'`document_ids` must .*got torch\.float32'):
        net(x, document_ids=ids.float())
    with pytest.raises(TypeError, match='`document_ids` must '):
        net(x, document_ids=[0] * 6)
    _, trace = net(x, return_intermediates=True)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with a cache'):
        net(x, document_ids=ids, cache=trace)
    _, trace = net(x, document_ids=ids, return_intermediates=True)
    with pytest.raises(ValueError, match='`cache` cannot be continued: it holds packed documents'):
        net(x[:, :1], cache=trace, input_not_include_cache=True)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with a cache or memories'):
        net(x, document_ids=ids, mems=[randn(2, 3, 16)] * 2)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with `seq_start_pos`'):
        net(x, document_ids=ids, seq_start_pos=torch.tensor([0, 1]))
    lm = AutoregressiveWrapper(net)
    with pytest.raises(ValueError, match='`document_ids` must '):
        lm(x, document_ids=ids[:1])
    for generate in (lm.generate, lm.beam_search, lm.speculative):
        with pytest.raises(ValueError, match='`document_ids` cannot be given'):
            generate(x, 3, document_ids=ids)
    with pytest.raises(ValueError, match='`document_ids` cannot be given to the loss: it knows one document per row'):
        NextLatentWrapper(net, dim=16)(x, document_ids=ids)


# compiled


@pytest.mark.slow
@pytest.mark.parametrize('stack', POSITIONS, ids=lambda stack: ' '.join(stack) or 'plain')
def test_compiled_in_one_graph(stack):
    torch._dynamo.reset()
    net = copy.deepcopy(model_of(Case('compiled', stack=stack)))
    inputs = packed(separate(Case('compiled', stack=stack), net))
    graph = torch.compile(net, fullgraph=True, backend='aot_eager')
    assert_close(graph(**inputs), net(**inputs))

"""A table of positions for every layer, against stacks whose blocks get the same vectors from outside."""

import functools

import pytest
import torch
from oracles import assert_close, randomised
from toy_tasks import SEEDS, learned, net_for, shift
from training_laws import ids_of

from x_transformers import ContinuousTransformerWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError

N, MOST, DIM = 7, 12, 16
SIZES = dict(dim=DIM, depth=3, heads=2, attn_dim_head=8, ff_mult=1)
MEMORIES = 2


def pair(kind=Decoder, stack=None, around=None, **other):
    """A model with tables, their values, and the same model without them; `other` are flags of its stack."""
    around = {'num_tokens': 11, 'max_seq_len': MOST, **(around or {})}
    sizes = {**SIZES, **(stack or {})}
    net = randomised(TransformerWrapper(attn_layers=kind(**sizes, per_layer_abs_pos_emb=MOST), **around), scale=0.4)
    bare = TransformerWrapper(attn_layers=kind(**sizes, **other), **around, use_abs_pos_emb=False).double().eval()
    weights = net.state_dict()
    tables = weights.pop('attn_layers.per_layer_pos')
    bare.load_state_dict(weights)
    return net, tables, bare


def by_blocks(bare, tables, x, index, **inputs):
    """Each block gets the vectors at `index` added to what the one before has given."""

    def plus(block, x):
        vectors = tables[block - 1][index]
        return x + (vectors if vectors.ndim == 2 else vectors.repeat_interleave(len(x) // len(vectors), dim=0))

    inner = {block: functools.partial(plus, block) for block in range(1, len(tables) + 1)}
    return bare(x, transform_block_inputs=inner, **inputs)


@pytest.mark.parametrize('kind', [Decoder, Encoder])
@pytest.mark.parametrize(
    'stack',
    [
        {},
        dict(weight_tie_layers=True),
        dict(macaron=True),
        dict(pre_norm=False),
        dict(layers_execute_order=(0, 1, 0, 1, 2, 3, 4, 5)),
        dict(num_residual_streams=2),
    ],
    ids=str,
)
def test_every_run_of_a_block_adds_its_own_vectors(kind, stack):
    net, tables, bare = pair(kind, stack)
    x, pos = ids_of(2, N), torch.tensor([[0, 1, 2, 3, 4, 5, 6], [4, 3, 9, 0, 0, 11, 1]])
    assert len(tables) == (4 if 'layers_execute_order' in stack else 3)
    assert_close(net(x), by_blocks(bare, tables, x, torch.arange(N)))
    assert_close(net(x, pos=pos), by_blocks(bare, tables, x, pos))


def test_one_table_alone_is_that_of_the_embeddings():
    net, tables, bare = pair()
    tables[1:] = 0.0
    net.attn_layers.load_state_dict({'per_layer_pos': tables}, strict=False)
    around = dict(num_tokens=11, max_seq_len=MOST, abs_pos_emb_scale=1.0)
    first = TransformerWrapper(attn_layers=Decoder(**SIZES), **around).double().eval()
    first.load_state_dict({**bare.state_dict(), 'pos_emb.emb.weight': tables[0]})
    x = ids_of(2, N)
    assert torch.equal(net(x), first(x))


def test_a_gradient_reaches_what_was_read_and_nothing_else():
    net = pair()[0]
    net(ids_of(2, N)).square().sum().backward()
    sizes = net.attn_layers.per_layer_pos.grad.abs().amax(dim=-1)
    assert sizes.shape == (3, MOST) and (sizes[:, :N] > 0).all() and (sizes[:, N:] == 0).all()


def test_initial_values_and_their_name():
    torch.manual_seed(0)
    stack = Decoder(dim=64, depth=2, per_layer_abs_pos_emb=200)
    table = stack.state_dict()['per_layer_pos']
    assert table.shape == (2, 200, 64) and abs(table.std() - 0.02) < 1e-3 and table.mean().abs() < 1e-3
    assert TransformerWrapper(num_tokens=9, max_seq_len=4, attn_layers=stack).pos_emb(table) == 0


@pytest.mark.parametrize('every', [None, 3])
@pytest.mark.parametrize('prefix', [0, 1])
def test_tokens_in_front_have_no_position(every, prefix):
    around = dict(num_memory_tokens=MEMORIES, memory_tokens_interspersed_every=every)
    net, tables, bare = pair(around=around)
    x = ids_of(2, N)
    inputs = dict(prepend_embeds=torch.ones(2, prefix, DIM, dtype=torch.float64)) if prefix else {}
    places = [-1] * prefix + [*range(N)]
    if every:
        places += [0] * (-len(places) % every)  # which are no tokens
        chunks = [[-1] * MEMORIES + places[start : start + every] for start in range(0, len(places), every)]
        places = [place for chunk in chunks for place in chunk]
    else:
        places = [-1] * MEMORIES + places
    index = torch.tensor(places)
    calls = []
    body = bare.attn_layers.forward

    # block 1 gets token embeddings, without what is in front: here all blocks get their input within the stack
    def forward(x, **kwargs):
        first = tables[0][index.clamp(min=0)] * (index >= 0)[:, None]
        calls.append(x.shape[1])
        return body(x + first, **kwargs)

    bare.attn_layers.forward = forward
    later = tables.clone()
    later[0] = 0.0
    blocks = {b: (lambda x, b=b: x + later[b - 1][index.clamp(min=0)] * (index >= 0)[:, None]) for b in (2, 3)}
    assert_close(net(x, **inputs), bare(x, transform_block_inputs=blocks, **inputs))
    assert calls == [len(places)]


@pytest.mark.parametrize('memories', [None, MEMORIES])
def test_padding_on_the_left_has_no_position(memories):
    net, _, _ = pair(around=dict(num_memory_tokens=memories))
    x, start = ids_of(3, N), torch.tensor([0, 2, 5])
    out = net(x, seq_start_pos=start)
    for row, begin in enumerate(start):
        assert_close(out[row, begin:], net(x[row, begin:][None])[0])


@pytest.mark.parametrize('memories', [None, MEMORIES])
def test_a_cache_goes_on_counting(memories):
    net, x = pair(around=dict(num_memory_tokens=memories))[0], ids_of(2, N)
    first, trace = net(x[:, :3], return_intermediates=True)
    assert_close(torch.cat((first, net(x, cache=trace.cache)), dim=1), net(x))


def test_documents_begin_anew_and_rows_at_their_first_token():
    net, x = pair()[0], ids_of(2, N)
    ids = torch.tensor([[0, 0, 0, 5, 5, 5, 5]] * 2)
    late = net(x, pos=torch.arange(2, 2 + N), seq_start_pos=torch.tensor([2, 2]))  # which the model counts from there
    assert_close(late[:, 2:], net(x[:, 2:], pos=torch.arange(2, N)))
    assert_close(net(x, document_ids=ids)[:, 3:], net(x[:, 3:]))


def test_a_stack_alone_counts_by_itself():
    stack, x = pair(stack=dict(depth=1))[0].attn_layers, torch.ones(2, N, DIM, dtype=torch.float64)
    out = stack(x, seq_start_pos=torch.tensor([0, 3]))
    shifted = stack(x, token_pos=torch.tensor([[*range(N)], [-1, -1, -1, 0, 1, 2, 3]]), mask=None)
    assert_close(out[0], shifted[0])
    assert_close(out[1, 3:], stack(x[:1, 3:])[0])
    assert_close(stack(x, pos=torch.arange(2, 2 + N)), stack(x, token_pos=torch.arange(2, 2 + N)))


def test_a_call_may_choose_layers_where_each_runs_once():
    net, tables, bare = pair()
    x = ids_of(2, N)
    order = (2, 3, 4, 5)
    expected = by_blocks(bare, tables[1:], x, torch.arange(N), layers_execute_order=order)
    assert_close(net(x, layers_execute_order=order), expected)
    twice = by_blocks(bare, tables[[0, 1, 1, 2]], x, torch.arange(N), repeat_blocks=(1, 2))
    assert_close(net(x, repeat_blocks=(1, 2)), twice)
    tied = pair(stack=dict(weight_tie_layers=True))[0]
    with pytest.raises(
        ValueError, match='`per_layer_abs_pos_emb` has a table for each run of a layer that runs several'
    ):
        tied(x, layers_execute_order=(0, 1))


def test_layers_that_are_no_blocks_have_a_table_each():
    stack = dict(custom_layers=('a', 'f', 'f'), depth=1)
    net, tables, bare = pair(stack=stack)
    x = ids_of(2, N)
    assert len(tables) == 3
    assert_close(net(x), by_blocks(bare, tables, x, torch.arange(N)))


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: pair(around=dict(max_mem_len=3)), '`per_layer_abs_pos_emb` cannot be combined with `max_mem_len`'),
        (
            lambda: ContinuousTransformerWrapper(
                attn_layers=Decoder(**SIZES, per_layer_abs_pos_emb=4), dim_in=3, max_mem_len=3
            ),
            '`per_layer_abs_pos_emb` cannot be combined with `max_mem_len`',
        ),
        (lambda: pair(stack=dict(reversible=True)), '`per_layer_abs_pos_emb` cannot be combined with `reversible`'),
        (lambda: Decoder(**SIZES, per_layer_abs_pos_emb=0), '`per_layer_abs_pos_emb` must be'),
        (
            lambda: Decoder(**SIZES, per_layer_abs_pos_emb=9, weight_tie_layers=True, act_halting=True),
            '`act_halting` cannot be combined with `per_layer_abs_pos_emb`',
        ),
    ],
)
def test_refused_at_construction(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize('memories', [None, MEMORIES])
def test_refused_in_a_call(memories):
    net = pair(around=dict(num_memory_tokens=memories, max_seq_len=0))[0]
    words = f'the sequence has {MOST + 1} tokens, more than `per_layer_abs_pos_emb={MOST}`'
    with pytest.raises(ValueError, match=words):
        net(ids_of(1, MOST + 1))
    trace = net(ids_of(1, MOST), return_intermediates=True)[1]
    with pytest.raises(ValueError, match=words):
        net(ids_of(1, MOST + 1), cache=trace.cache)
    x = ids_of(1, 3)
    with pytest.raises(ValueError, match=f'`pos` must be from 0 to {MOST - 1}, got positions from 3 to {MOST}'):
        net(x, pos=torch.tensor([3, 4, MOST]))
    with pytest.raises(ValueError, match=r'`pos` must be whole numbers, got torch\.float32'):
        net(x, pos=torch.zeros(3, DIM))
    stack, wrong = net.attn_layers, r'`token_pos` must '
    with pytest.raises(ValueError, match=wrong):
        stack(torch.zeros(1, 3, DIM).double(), token_pos=torch.arange(4))
    with pytest.raises(ValueError, match='`per_layer_abs_pos_emb` cannot be combined with `mems`'):
        net(x, mems=[torch.zeros(1, 2, DIM).double()] * 3)


@pytest.mark.slow
@SEEDS
def test_it_learns_to_look_one_place_back(seed):
    torch.manual_seed(seed)
    task = shift(1)
    net = net_for(task, Decoder, depth=4, per_layer_abs_pos_emb=task.n)
    assert learned(net, task, steps=120) >= 0.99

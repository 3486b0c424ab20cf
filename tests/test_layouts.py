"""Which layers run, in which order, and what reaches them past the layers between: against plain loops."""

from itertools import product

import pytest
import torch
from oracles import assert_close, randn, randomised

import x_transformers
from x_transformers import CrossAttender, Decoder, Encoder, TransformerBlock, layer_schedule
from x_transformers.flags import ConfigError
from x_transformers.training.losses import dropout_seq, kept_tokens
from x_transformers.x_transformers import AttentionLayers, ConcatCombine, calc_z_loss, repeat_layers

SIZES = dict(dim=6, depth=3, heads=2, attn_dim_head=4, ff_mult=1)


def built(kind=Decoder, seed=0, **flags):
    return randomised(kind(**{**SIZES, **flags}), seed)


def branch(net, index, x, context=None):
    """What a layer adds to the stream, on plain vectors."""
    (norm, _, _), fn, _ = net.layers[index]
    return fn(norm(x)) if context is None or net.layer_types[index] != 'c' else fn(norm(x), context=context)


# layouts


@pytest.mark.parametrize(
    ('flags', 'types', 'block'),
    [
        (dict(only_attn=True), 'aaa', 1),
        (dict(only_attn=True, cross_attend=True), 'acacac', 2),
        (dict(only_attn=True, sandwich_coef=1), 'aaa', 1),
        (dict(only_attn=True, par_ratio=3), 'a', 1),
        (dict(only_attn=True, custom_layers=('a', 'a')), 'aa', 1),
        (dict(only_attn=True, weight_tie_layers=True), 'a', 1),
    ],
    ids=str,
)
def test_only_attention(flags, types, block):
    net = Encoder(**SIZES, **flags)
    assert ''.join(net.layer_types) == types and net.len_default_block == block and net.num_ff_layers == 0
    given = [torch.randn(2, 5, 6)] + [torch.randn(2, 3, 6)] * ('cross_attend' in flags)
    assert net(*given).isfinite().all()


@pytest.mark.parametrize(
    'flags',
    [
        dict(layers_execute_order=(0, 1)),
        dict(unet_skips=True),
        dict(macaron=True),
        dict(custom_layers=('a', 'f')),
    ],
    ids=str,
)
def test_only_attention_refuses(flags):
    with pytest.raises(ConfigError, match=f'only_attn.*{next(iter(flags))}'):
        Encoder(**SIZES, only_attn=True, **flags)


def test_cross_attention_needs_its_flag():
    """W9."""
    with pytest.raises(ConfigError, match='cross_attend'):
        Decoder(**SIZES, custom_layers=('a', 'c', 'f'))


# skips


UNETS = {
    'two': (dict(depth=6), {6: 4, 8: 2, 10: 0}),
    'odd': (dict(depth=7), {8: 4, 10: 2, 12: 0}),
    'macaron': (dict(depth=4, macaron=True), {6: 3, 9: 0}),
    'macaron odd': (dict(depth=3, macaron=True), {6: 0}),
    'cross': (dict(depth=5, cross_attend=True), {9: 3, 12: 0}),
    'custom': (dict(custom_layers=('a', 'f', 'f', 'a', 'f')), {3: 1, 4: 0}),
    'sandwich': (dict(depth=3, sandwich_coef=1), {3: 2, 4: 1, 5: 0}),
    'par': (dict(depth=3, par_ratio=3), {3: 2, 4: 1, 5: 0}),
}


@pytest.mark.parametrize('name', UNETS)
def test_unet_skips(name):
    """F11: block b of n gets the input of block n - 1 - b, whatever a block is."""
    flags, mirror = UNETS[name]
    net, x = built(unet_skips=True, **flags), randn(2, 5, 6)
    assert {n for n in net.state_dict() if 'skip' in n} == {f'skip_combines.{i}.combine.weight' for i in mirror}
    context = randn(2, 3, 6) if net.cross_attend else None
    arrived, wanted = [], x
    for index in range(len(net.layers)):
        arrived.append(wanted)
        if index in mirror:
            w = net.skip_combines[index].combine.weight
            wanted = arrived[mirror[index]] @ w[:, :6].T + wanted @ w[:, 6:].T
        wanted = wanted + branch(net, index, wanted, context)
    assert_close(net(x) if context is None else net(x, context), net.final_norm(wanted))


def test_unet_skips_join_even_a_layer_that_is_left_out():
    net, x = built(unet_skips=True, depth=2, layer_dropout=(0, 0, 0.99, 0)).train(), randn(2, 5, 6)
    torch.manual_seed(1)
    out = net(x)
    wanted = x
    for index in (0, 1):
        wanted = wanted + branch(net, index, wanted)
    wanted = net.skip_combines[2](wanted, [x])
    assert_close(out, net.final_norm(wanted + branch(net, 3, wanted)))


def test_concat_combine():
    module, x, skip = randomised(ConcatCombine(4, 1)), randn(2, 4), randn(2, 4, seed=1)
    assert_close(module(x, [x, skip]), torch.cat((skip, x), dim=-1) @ module.combine.weight.T)


@pytest.mark.parametrize('flags', [dict(depth=1), dict(weight_tie_layers=True), dict(layers_execute_order=(0, 1))])
def test_unet_skips_refuse(flags):
    with pytest.raises(ConfigError, match='unet_skips'):
        Encoder(**{**SIZES, 'unet_skips': True, **flags})


def test_unet_skips_need_the_mirrored_block():
    net, x = built(unet_skips=True), randn(2, 5, 6)
    with pytest.raises(ValueError, match=r'unet_skips.*layers_execute_order'):
        net(x, layers_execute_order=(2, 3, 4, 5))
    with pytest.raises(ValueError, match=r'unet_skips.*repeat_blocks'):
        net(x, repeat_blocks=(0, 0))
    assert net(x, repeat_blocks=(1, 2)).isfinite().all()


# repeats and changes of whole blocks


@pytest.mark.parametrize(
    ('spec', 'blocks'),
    [
        ((1, 3), (0, 1, 1, 1, 2, 3)),
        (((0, 1), 2), (0, 1, 0, 1, 2, 3)),
        ((((0, 1), 2), (3, 2)), (0, 1, 0, 1, 2, 3, 3)),
        ([(2, 0)], (0, 1, 3)),
        (((1, 2), 0), (0, 3)),
        (((0, 3), 1), (0, 1, 2, 3)),
    ],
)
def test_repeated_blocks(spec, blocks):
    wanted = tuple(2 * block + at for block in blocks for at in range(2))
    assert repeat_layers(spec, 4, 2) == wanted
    net, x = built(depth=4), randn(2, 5, 6)
    assert torch.equal(net(x, repeat_blocks=spec), net(x, layers_execute_order=wanted))


@pytest.mark.parametrize(
    'spec', [(4, 2), (-1, 2), ((1, 4), 2), ((2, 1), 2), (0, -1), 3, ((0, 2), (0, 3)), (((0, 1), 2), (1, 2)), (0, 1.5)]
)
def test_repeats_that_are_none(spec):
    with pytest.raises(ConfigError, match='repeat_blocks'):
        built(depth=4)(randn(2, 5, 6), repeat_blocks=spec)


def test_repeats_need_the_ordinary_order():
    x = randn(2, 5, 6)
    for flags in (dict(sandwich_coef=1), dict(par_ratio=2), dict(custom_layers=('a', 'f'))):
        with pytest.raises(ValueError, match='repeat_blocks'):
            built(**flags)(x, repeat_blocks=(0, 2))
    with pytest.raises(ValueError, match=r'repeat_blocks.*layers_execute_order'):
        built()(x, repeat_blocks=(0, 2), layers_execute_order=(0, 1))


def test_changed_inputs_of_blocks():
    net, x = built(), randn(2, 5, 6)
    wanted = x
    for index in range(6):
        wanted = wanted * {2: 2.0, 4: -3.0}.get(index, 1.0)
        wanted = wanted + branch(net, index, wanted)
    factors = {2: 2.0, 3: -3.0}
    for functions in (
        {block: lambda t, f=f: t * f for block, f in factors.items()},
        lambda block, t: t * factors[block],
    ):
        assert_close(net(x, transform_block_inputs=functions), net.final_norm(wanted))
    assert_close(net(x, transform_block_inputs={1: torch.zeros_like}), net(x))


def test_changed_reads_of_attention():
    net, x = built(), randn(2, 5, 6)
    wanted, seen = x, []
    for index in range(6):
        read = wanted * {0: 2.0, 4: -3.0}.get(index, 1.0)
        wanted = wanted + branch(net, index, read)

    def read_by(layer, t):
        seen.append(layer)
        return t * {0: 2.0, 2: -3.0}.get(layer, 1.0)

    assert_close(net(x, transform_attn_inputs=read_by), net.final_norm(wanted))
    assert seen == [0, 1, 2]
    with pytest.raises(TypeError, match='transform_attn_inputs'):
        net(x, transform_attn_inputs=3)


@pytest.mark.parametrize('flags', [{}, dict(macaron=True), dict(num_residual_streams=2), dict(only_attn=True)], ids=str)
def test_block_hiddens(flags):
    """The stream behind each block, the last one as it is returned; also where the last layers are left out."""
    net, x = built(**flags), randn(2, 5, 6)
    out, trace = net(x, return_hiddens=True)
    assert len(trace.block_hiddens) == 3
    assert torch.equal(trace.block_hiddens[-1], out)
    cut, inner = net(x, layers_execute_order=range(net.len_default_block), return_hiddens=True)
    if not net.num_ff_layers or 'num_residual_streams' not in flags:
        assert_close(net.final_norm(trace.block_hiddens[0]), cut)
    assert torch.equal(inner.block_hiddens[-1], cut)
    net = built(layer_dropout=(0, 0, 0, 0, 0, 0.999), **flags).train() if not flags else net
    torch.manual_seed(0)
    out, trace = net(x, return_hiddens=True)
    assert len(trace.block_hiddens) == 3 and torch.equal(trace.block_hiddens[-1], out)


# context tokens


def test_kept_tokens():
    seq, mask = randn(3, 8, 4), torch.arange(8) < torch.tensor([[8], [5], [1]])
    torch.manual_seed(0)
    index, real = kept_tokens(seq, mask, 0.5)
    torch.manual_seed(0)
    kept, again = dropout_seq(seq, mask, 0.5)
    assert index.shape == (3, 4) and torch.equal(real, again) and real.sum(dim=1).tolist() == [4, 3, 1]
    for row in range(3):
        assert_close(kept[row], seq[row][index[row]])
        assert len(set(index[row].tolist())) == 4
        assert mask[row][index[row]][real[row]].all()
    assert kept_tokens(seq, None, 0.99)[0].shape == (3, 1)


@pytest.mark.parametrize('masked', [False, True])
def test_context_tokens_are_dropped_anew_in_each_layer(masked):
    """W6: half of sixteen are eight in every layer, from the whole context. W7: each keeps its position."""
    flags = dict(cross_attn_tokens_dropout=0.5, rotary_pos_emb=True, verbose=False)
    net, x, context = built(CrossAttender, **flags), randn(2, 5, 6), randn(2, 16, 6, seed=1)
    call = dict(context_pos=torch.randint(0, 40, (2, 16), generator=torch.Generator().manual_seed(0)))
    if masked:
        call['context_mask'] = torch.arange(16) < torch.tensor([[12], [7]])
    plain = built(CrossAttender, rotary_pos_emb=True, verbose=False)
    assert_close(net(x, context, **call), plain(x, context, **call))

    given = []
    for layer in net.layers[::2]:
        layer[1].register_forward_pre_hook(lambda _, args, kwargs: given.append((args[0], kwargs)), with_kwargs=True)
    net.train()
    torch.manual_seed(3)
    net(x, context, **call)
    torch.manual_seed(3)
    indices = [kept_tokens(context, call.get('context_mask'), 0.5) for _ in range(3)]
    assert not torch.equal(indices[0][0], indices[1][0])
    angles = net.rotary_pos_emb(call['context_pos'])[0]
    for (_, kwargs), (index, real) in zip(given, indices, strict=True):
        rows = torch.arange(2)[:, None]
        assert_close(kwargs['context'], context[rows, index])
        assert_close(kwargs['context_rotary_pos_emb'][0].double(), angles[rows, index].double())
        assert real is None or torch.equal(kwargs['context_mask'], real)
    # a layer that sees all tokens but the dropped ones
    fn, (inner, kwargs), (index, real) = net.layers[0][1], given[0], indices[0]
    chosen = torch.zeros(2, 16).bool()
    chosen[torch.arange(2)[:, None], index] = True if real is None else real
    every = {**kwargs, 'context': context, 'context_mask': chosen}
    every['context_rotary_pos_emb'] = (angles, *kwargs['context_rotary_pos_emb'][1:])
    assert_close(fn(inner, **kwargs), fn(inner, **every))


@pytest.mark.parametrize('other', ['cross_residual_attn', 'add_value_residual'])
def test_dropped_context_tokens_refuse_what_is_handed_on(other):
    with pytest.raises(ConfigError, match=f'cross_attn_tokens_dropout.*{other}'):
        Decoder(**SIZES, cross_attend=True, cross_attn_tokens_dropout=0.5, **{other: True})


# inputs of every branch


@pytest.mark.parametrize('gate', [False, True])
@pytest.mark.parametrize('own', ['reinject_input', 'rows', 'tokens'])
def test_reinjected_input(own, gate):
    flags = dict(learned_reinject_input_gate=gate) | (dict(reinject_input=True) if own == 'reinject_input' else {})
    net, x = built(**flags), randn(2, 5, 6)
    given = {'rows': randn(2, 6, seed=1), 'tokens': randn(2, 5, 6, seed=1)}.get(own)
    joined = x @ net.reinject_input_proj.weight.T if given is None else given if given.ndim == 3 else given[:, None]
    if gate:
        joined = joined * torch.sigmoid(x @ net.learned_reinject_input_gate.weight.T)
    wanted = x
    for index in range(6):
        wanted = wanted + branch(net, index, wanted + joined)
    assert_close(net(x, in_attn_cond=given) if given is not None else net(x), net.final_norm(wanted))


def test_conditions_of_the_branches_that_are_refused():
    x = randn(2, 5, 6)
    with pytest.raises(ValueError, match=r'in_attn_cond.*reinject_input'):
        built(reinject_input=True)(x, in_attn_cond=x)
    for wrong in (randn(2, 5), randn(2, 4, 6), randn(3, 6), randn(6)):
        with pytest.raises(ValueError, match='in_attn_cond'):
            built()(x, in_attn_cond=wrong)


@pytest.mark.parametrize('flags', [{}, dict(macaron=True), dict(weight_tie_layers=True), dict(shift_tokens=1)], ids=str)
def test_deep_embeds(flags):
    net, x, ids = built(**flags), randn(2, 5, 6), torch.tensor([[1, 0, 3, 3, 2], [2, 2, 1, 0, 0]])
    kinds = [net.layer_types[i] for i in net.layers_execute_order]
    tables = randn(4, kinds.count('f'), 6, seed=2)
    out = net(x, deep_embeds_and_ids=(tables, ids))
    if not flags:
        wanted = x
        for index in range(6):
            scale = tables[ids][:, :, index // 2] if index % 2 else 1
            wanted = wanted + branch(net, index, wanted) * scale
        assert_close(out, net.final_norm(wanted))
    assert_close(net(x, deep_embeds_and_ids=(torch.ones_like(tables), ids)), net(x))
    _, cache = net(x[:, :3], deep_embeds_and_ids=(tables, ids[:, :3]), return_hiddens=True)
    assert_close(net(x, deep_embeds_and_ids=(tables, ids), cache=cache), out[:, 3:])
    first = torch.cat((tables[:, :1], torch.ones_like(tables[:, 1:])), dim=1)
    assert_close(net(x, deep_embeds_and_ids=(tables[:, :1], ids)), net(x, deep_embeds_and_ids=(first, ids)))
    for wrong in ((tables[:, :, None], ids), (tables, ids[:, :4]), (tables, ids[:1]), (tables[..., :5], ids)):
        with pytest.raises(ValueError, match='deep_embeds_and_ids'):
            net(x, deep_embeds_and_ids=wrong)


def test_left_out_layers_keep_the_counts_of_the_others():
    """W8: what belongs to a layer stays with it: its memory, its deep embedding, its place in `hiddens`."""
    net, x = built(layer_dropout=(0.9999, 0.9999, 0, 0, 0, 0)).train(), randn(2, 5, 6)
    mems, tables = [randn(2, 2, 6, seed=i) for i in range(3)], randn(4, 3, 6, seed=7)
    ids = torch.tensor([[1, 0, 3, 3, 2], [2, 2, 1, 0, 0]])
    torch.manual_seed(0)
    out, trace = net(x, mems=mems, deep_embeds_and_ids=(tables, ids), return_hiddens=True)
    assert len(trace.hiddens) == 3 and torch.equal(trace.hiddens[0], x)
    rest = net.eval()(
        x,
        mems=mems[1:],
        deep_embeds_and_ids=(tables[:, 1:], ids),
        layers_execute_order=(2, 3, 4, 5),
    )
    assert_close(out, rest)


# per-layer values


@pytest.mark.parametrize(('flag', 'on'), [('shift_tokens', 1), ('layer_dropout', 0.5)])
def test_one_value_per_layer(flag, on):
    """F23."""
    with pytest.raises(ConfigError, match=f'{flag}.*6'):
        Decoder(**SIZES, **{flag: (0, on, 0)})
    assert Decoder(**SIZES, **{flag: [0, 0, 0, 0, 0, on]})


@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_shifts_longer_than_the_sequence(kind):
    """F22: of the shifted parts nothing is left."""
    net = built(kind, shift_tokens=2)
    for n in (1, 2):
        assert net(randn(2, n, 6)).shape == (2, n, 6)


def test_layer_schedule():
    assert layer_schedule(4, 1, 4) == pytest.approx((4, 3.25, 1.75, 1))
    assert layer_schedule(4, 1, 4, 'linear') == pytest.approx((4, 3, 2, 1))
    assert layer_schedule(1, 3, 3, lambda start, end, t: (start, end, t)) == ((1, 3, 0), (1, 3, 0.5), (1, 3, 1))
    assert layer_schedule(2, 5, 7)[3] == pytest.approx(3.5)
    for wrong in (dict(depth=1), dict(depth=3, schedule='steps'), dict(depth=2.0)):
        with pytest.raises(ConfigError):
            layer_schedule(1, 2, **wrong)
    net = Decoder(**{**SIZES, 'ff_mult': layer_schedule(4, 1, 3, 'linear')})
    assert [net.layers[i][1].dim_inner for i in (1, 3, 5)] == [24, 15, 6]


# blocks


def test_transformer_block():
    block = randomised(TransformerBlock(6, heads=2, attn_dim_head=4, ff_mult=1))
    x = randn(2, 5, 6)
    assert block.layer_types == ('a', 'f') and isinstance(block.final_norm, torch.nn.Identity) and not block.causal
    assert_close(block(x), x + branch(block, 0, x) + branch(block, 1, x + branch(block, 0, x)))
    named = TransformerBlock(dim=6, depth=3, heads=2, causal=True, pre_norm_has_final_norm=True)
    assert isinstance(named, AttentionLayers) and len(named.layers) == 6
    assert not isinstance(named.final_norm, torch.nn.Identity)
    again = TransformerBlock.from_config(named.config)
    assert again.config == named.config
    with pytest.raises(TypeError):
        TransformerBlock(6, 2)
    assert {'TransformerBlock', 'layer_schedule'} <= set(x_transformers.__all__)
    across = TransformerBlock(6, cross_attend=True)
    assert across(torch.randn(1, 2, 6), torch.randn(1, 3, 6)).isfinite().all()


# memories and caches


def test_memories_as_a_tuple():
    """F31."""
    net, x, mems = built(), randn(2, 5, 6), [randn(2, 2, 6, seed=i) for i in range(3)]
    assert torch.equal(net(x, mems=tuple(mems)), net(x, mems=mems))


@pytest.mark.parametrize('weight', [1.0, 0.3])
def test_the_z_loss_is_a_mean_over_real_queries(weight):
    """Of the squared sum over layers of log-sum-exps, summed over heads."""
    layers, mask = [randn(2, 3, 5, 4, seed=seed) for seed in range(2)], torch.arange(5) < torch.tensor([[5], [2]])
    sums = sum(logits.exp().sum(dim=-1).log() for logits in layers)
    each = (sums**2).sum(dim=1)
    assert_close(calc_z_loss(layers, weight=weight), weight * each.mean())
    assert_close(calc_z_loss(layers, mask, weight), weight * each[mask].mean())
    assert calc_z_loss(layers, torch.zeros_like(mask), weight) == 0


def test_a_feedforward_that_is_left_out_is_no_attention():
    """What is given for each cross-attention reaches it, as without the feedforwards that are left out."""
    net, x = built(Decoder, depth=2, cross_attend=True, layer_dropout=0.5).train(), randn(2, 5, 6)
    net.layer_dropouts = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    silent = built(Decoder, depth=2, cross_attend=True)
    with torch.no_grad():
        for parameter in silent.layers[2][1].ff[-1].parameters():
            parameter.zero_()
    given = dict(context=randn(2, 4, 6, seed=1), cross_attn_kv_residuals=randn(2, 2, 4, 6, seed=2))
    assert_close(net(x, **given), silent(x, **given))
    first = given | dict(cross_attn_kv_residuals=given['cross_attn_kv_residuals'][0])
    assert (silent(x, **given) - silent(x, **first)).abs().max() > 1e-3


# windows that grow with depth


@pytest.mark.parametrize('kind', [Decoder, Encoder])
@pytest.mark.parametrize('past, growth', [(1, 1), (2, 1.5), (1, 3)])
def test_windows_grow_with_depth(kind, past, growth):
    """Maps of layers against their windows counted by hand, and an output like that of windows given one by one."""
    sizes, widths, width = dict(dim=16, depth=3, heads=2, attn_dim_head=8, verbose=False), [], float(past)
    for _ in range(3):
        widths.append(int(width))
        width *= growth
    net = randomised(kind(**sizes, attn_max_attend_past=past, window_growth=growth))
    x = randn(2, 12, 16)
    out, inter = net(x, return_hiddens=True)
    for window, layer in zip(widths, inter.attn_intermediates, strict=True):
        for i, j in product(range(12), range(12)):
            seen = i - j <= window and (kind is Encoder or j <= i)
            assert (layer.post_softmax_attn[:, :, i, j] > 0).all() == seen
    other = kind(**sizes, attn_max_attend_past=tuple(widths)).double().eval()
    other.load_state_dict(net.state_dict())
    assert_close(other(x), out)


@pytest.mark.parametrize(
    'flags, words',
    [
        (dict(window_growth=2), r'needs `attn_max_attend_past`.*got None'),
        (dict(window_growth=2, attn_max_attend_past=(1, 2)), r'as one number, got \(1, 2\)'),
        (dict(window_growth=0.5, attn_max_attend_past=4), r'`window_growth` must be a number from 1 to 100.*got 0.5'),
        (dict(window_growth=2, attn_max_attend_past=4, weight_tie_layers=True), r'have one window'),
    ],
)
def test_windows_that_cannot_grow(flags, words):
    with pytest.raises(ConfigError, match=words):
        Decoder(dim=16, depth=2, heads=2, **flags)

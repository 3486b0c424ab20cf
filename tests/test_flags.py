"""What is derived from the table of flags: refusals word for word, help, explanations, and features of one's own."""

import ast
import copy
import inspect
import json
import pickle
import pydoc
import runpy
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from building import stacks
from law_cases import ALL_FLAGS, FLAG_CASES, build
from loguru import logger
from oracles import assert_close, randn, randomised
from torch import nn

import x_transformers
from x_transformers import (
    Attention,
    AttentionLayers,
    AutoregressiveWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    PrefixDecoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.features import (
    ATTENTION,
    FEEDFORWARD,
    MODEL,
    STACK,
    AttentionFeature,
    FeedForwardFeature,
    ModelFeature,
    StackFeature,
)
from x_transformers.features.heads import QKNorm
from x_transformers.flags import (
    REQUIRED,
    ConfigError,
    Configurable,
    Feature,
    accepted_keywords,
    did_you_mean,
    explain,
    flag,
    get_flags,
    positive,
    warn_once,
)
from x_transformers.flags.__main__ import OWNERS, main, refusals, table
from x_transformers.flags.explain import Measured

ROOT = Path(__file__).parent.parent
FEATURES = (*ATTENTION, *FEEDFORWARD, *STACK, *MODEL)


@pytest.fixture
def warnings():
    """What is logged, each text once, as in a fresh process."""
    warn_once.cache_clear()
    found = []
    sink = logger.add(lambda message: found.append(message.record['message']), level='WARNING')
    yield found
    logger.remove(sink)
    warn_once.cache_clear()


def attention(**flags):
    return Attention(**{'dim': 16, 'heads': 4, 'dim_head': 8, **flags})


def feedforward(**flags):
    return FeedForward(**{'dim': 16, **flags})


stack = stacks(dim=16, depth=2, heads=4, attn_dim_head=8, verbose=False)


def model(layers=None, **flags):
    layers = stack() if layers is None else layers
    return TransformerWrapper(**{'num_tokens': 7, 'max_seq_len': 8, 'attn_layers': layers, **flags})


def vit(**flags):
    return ViTransformerWrapper(**{'image_size': 8, 'patch_size': 4, 'attn_layers': stack(Encoder), **flags})


def both(**flags):
    sizes = {p + n: v for p in ('enc_', 'dec_') for n, v in dict(num_tokens=7, max_seq_len=8, depth=1).items()}
    return XTransformer(**{'dim': 16, **sizes, **flags})


# refusals, word for word

UNKNOWN = [
    (attention, dict(qk_nrom=True), '`qk_nrom` of Attention, did you mean `qk_norm`?'),
    (attention, dict(zzz=1), '`zzz` of Attention'),
    (attention, dict(head=8), '`head` of Attention, did you mean `heads`?'),
    (feedforward, dict(gluu=True), '`gluu` of FeedForward, did you mean `glu`?'),
    (feedforward, dict(no_bais=True), '`no_bais` of FeedForward, did you mean `no_bias`?'),
    (stack, dict(attn_qk_nrom=True), '`attn_qk_nrom` of Decoder, did you mean `attn_qk_norm`?'),
    (stack, dict(ff_glux=True), '`ff_glux` of Decoder, did you mean `ff_glu`?'),
    (stack, dict(sandwich_nrom=True), '`sandwich_nrom` of Decoder, did you mean `sandwich_norm`?'),
    (
        stack,
        dict(dim_head=8),
        '`dim_head` of Decoder, did you mean `attn_dim_head`? Flags of a branch take its prefix',
    ),
    (stack, dict(dropout=0.1), '`dropout` of Decoder: write `attn_dropout`, `ff_dropout` or `layer_dropout`'),
    (stack, dict(no_bias=True), '`no_bias` of Decoder, did you mean `ff_no_bias`? Flags of a branch take its prefix'),
    (stack, dict(glu=True), '`glu` of Decoder, did you mean `ff_glu`? Flags of a branch take its prefix'),
    (stack, dict(flash=True), '`flash` of Decoder, did you mean `attn_flash`? Flags of a branch take its prefix'),
    (model, dict(post_emb_nrom=True), '`post_emb_nrom` of TransformerWrapper, did you mean `post_emb_norm`?'),
    (model, dict(num_token=3), '`num_token` of TransformerWrapper, did you mean `num_tokens`?'),
    (vit, dict(image_sizes=4), '`image_sizes` of ViTransformerWrapper, did you mean `image_size`?'),
    (both, dict(depth=1), '`depth` of XTransformer, did you mean `enc_depth`?'),
    (both, dict(enc_ff_glux=True), '`enc_ff_glux` of XTransformer, did you mean `enc_ff_glu`?'),
]


@pytest.mark.parametrize(('build', 'flags', 'words'), UNKNOWN, ids=[next(iter(f)) for _, f, _ in UNKNOWN])
def test_unknown_keyword(build, flags, words):
    with pytest.raises(ConfigError) as error:
        build(**flags)
    assert str(error.value) == f'unknown keyword {words}'


BAD_VALUES = [
    (attention, dict(heads=0), 'Attention: `heads` must be an integer of at least 1, got 0'),
    (attention, dict(heads='4'), "Attention: `heads` must be an integer of at least 1, got '4'"),
    (attention, dict(heads=True), 'Attention: `heads` must be an integer of at least 1, got True'),
    (attention, dict(causal='yes'), "Attention: `causal` must be True or False, got 'yes'"),
    (attention, dict(qk_norm='yes'), "`qk_norm` must be True or False, got 'yes'"),
    (attention, dict(qk_norm_scale=-1), "`qk_norm_scale` must be a positive number or one of 'learned', got -1"),
    (attention, dict(dropout=1.0), '`dropout` must be a probability from 0 up to, but not including, 1, got 1.0'),
    (attention, dict(sparse_topk=0), '`sparse_topk` must be an integer of at least 1 or None, got 0'),
    (attention, dict(custom_attn_fn=3), '`custom_attn_fn` must be a callable or None, got 3'),
    (attention, dict(kv_heads=3), '`kv_heads` must divide the number of heads, 4, got 3'),
    (stack, dict(attn_qk_norm='yes'), "`attn_qk_norm` must be True or False, got 'yes'"),
    (stack, dict(attn_kv_heads=3), '`attn_kv_heads` must divide the number of heads, 4, got 3'),
    (stack, dict(attn_dim_head=0), 'Attention: `attn_dim_head` must be an integer of at least 1, got 0'),
    (
        stack,
        dict(ff_dropout=2.0),
        'FeedForward: `ff_dropout` must be a probability from 0 up to, but not including, 1, got 2.0',
    ),
    (
        stack,
        dict(cross_attend=True, cross_attn_sparse_topk=0),
        '`cross_attn_sparse_topk` must be an integer of at least 1 or None, got 0',
    ),
    (stack, dict(par_ratio=9), '`par_ratio` must be at most the number of layers, 4, got 9'),
    (stack, dict(sandwich_coef=3), '`sandwich_coef` must be at most `depth`, 2, got 3'),
    (stack, dict(layers_execute_order=(0, 9)), '`layers_execute_order` got (0, 9), its indices must be from 0 to 3'),
    (stack, dict(depth=None), '`depth` is missing: it must be the number of blocks'),
    (stack, dict(rel_pos_kwargs=3), 'Decoder: `rel_pos_kwargs` must be a dict or None, got 3'),
    (
        stack,
        dict(custom_layers=('a', 'x')),
        "`custom_layers` must have layers of kind 'a', 'c', 'f', or of one added to `KINDS`, got 'x'",
    ),
    (
        model,
        dict(attn_layers=3),
        'TransformerWrapper: `attn_layers` must be an instance of AttentionLayers, '
        'or a module with a width `dim` that maps b n dim to b n dim, got 3',
    ),
    (model, dict(emb_frac_gradient=0), '`emb_frac_gradient` must be a number in (0, 1], got 0'),
    (vit, dict(patch_size=3), '`patch_size` must divide `image_size`, 8, got 3'),
    (both, dict(enc_depth=0), 'Encoder: `depth` must be an integer of at least 1 or None, got 0'),
]


@pytest.mark.parametrize(('build', 'flags', 'words'), BAD_VALUES, ids=[str(f) for _, f, _ in BAD_VALUES])
def test_bad_value(build, flags, words):
    with pytest.raises(ConfigError) as error:
        build(**flags)
    assert str(error.value) == words


TOGETHER = [
    (
        attention,
        dict(one_kv_head=True, kv_heads=2),
        '`one_kv_head` and `kv_heads` both set the number of key heads, set only one',
    ),
    (
        attention,
        dict(sigmoid=True, sparse_topk=2),
        '`sparse_topk` and `sigmoid` both choose the normalizer, set only one',
    ),
    (
        stack,
        dict(attn_sigmoid=True, attn_sparse_topk=2),
        '`attn_sparse_topk` and `attn_sigmoid` both choose the normalizer, set only one',
    ),
    (
        stack,
        dict(cross_attend=True, cross_attn_sparse_topk=2, attn_sigmoid=True),
        '`cross_attn_sparse_topk` and `attn_sigmoid` both choose the normalizer, set only one',
    ),
    (
        stack,
        dict(use_rmsnorm=True, use_scalenorm=True),
        '`use_scalenorm` and `use_rmsnorm` both choose the norm, set only one',
    ),
    (
        stack,
        dict(weight_tie_layers=True, layers_execute_order=(0, 1)),
        '`weight_tie_layers` cannot be combined with `layers_execute_order`: both choose the order of layers',
    ),
    (
        stack,
        dict(alibi_pos_bias=True, rel_pos_bias=True),
        '`alibi_pos_bias` cannot be combined with `rel_pos_bias`: one position bias at a time',
    ),
    (
        model,
        dict(use_cls_token=True, average_pool_embed=True),
        '`average_pool_embed` cannot be combined with `use_cls_token`: both determine how the output is pooled',
    ),
    (
        model,
        dict(num_output_heads=2, tie_embedding=True),
        '`tie_embedding` cannot be combined with `num_output_heads`: there is only one table of token embeddings',
    ),
    (
        attention,
        dict(flash=True, sigmoid=True),
        '`flash=True` cannot be combined with `sigmoid`: the fused kernel forms no scores',
    ),
    (
        stack,
        dict(attn_flash=True, attn_sigmoid=True),
        '`attn_flash=True` cannot be combined with `attn_sigmoid`: the fused kernel forms no scores',
    ),
    (
        stack,
        dict(attn_flash=True, residual_attn=True),
        '`residual_attn` cannot be combined with `attn_flash=True`: the fused kernel forms no logits',
    ),
    (
        stack,
        dict(sandwich_norm=True, pre_norm=False),
        '`sandwich_norm` needs `pre_norm`: it norms a branch on both sides',
    ),
    (
        stack,
        dict(cross_attend=True, attn_max_attend_past=2),
        '`attn_max_attend_past` cannot be combined with `cross_attend`: its distances are between tokens of one '
        'sequence. Set `cross_attn_max_attend_past=None`',
    ),
    (
        both,
        dict(tie_token_emb=True, enc_num_tokens=5),
        '`tie_token_emb` needs equal `enc_num_tokens` and `dec_num_tokens`: there is one table',
    ),
]


@pytest.mark.parametrize(('build', 'flags', 'words'), TOGETHER, ids=[' '.join(f) for _, f, _ in TOGETHER])
def test_flags_that_do_not_go_together(build, flags, words):
    with pytest.raises(ConfigError) as error:
        build(**flags)
    assert str(error.value) == words


@pytest.mark.parametrize(
    ('kind', 'flags', 'words'),
    [
        (Decoder, dict(causal=True), '`causal` of Decoder cannot be set, got True: it is True'),
        (Decoder, dict(causal=False), '`causal` of Decoder cannot be set, got False: it is True'),
        (Encoder, dict(causal=True), '`causal` of Encoder cannot be set, got True: it is False'),
        (PrefixDecoder, dict(causal=True), '`causal` of PrefixDecoder cannot be set, got True: it is False'),
        (CrossAttender, dict(cross_attend=True), '`cross_attend` of CrossAttender cannot be set, got True: it is True'),
        (CrossAttender, dict(only_cross=True), '`only_cross` of CrossAttender cannot be set, got True: it is True'),
    ],
)
def test_settled_arguments(kind, flags, words):
    with pytest.raises(ConfigError) as error:
        stack(kind, **flags)
    assert str(error.value) == words


@pytest.mark.parametrize(
    'name', ['attn_dim', 'attn_heads', 'attn_causal', 'ff_dim', 'attn_dim_context', 'attn_dim_out']
)
def test_arguments_that_a_stack_settles_for_its_branches(name):
    with pytest.raises(ConfigError, match=f'unknown keyword `{name}` of Decoder'):
        stack(**{name: 4})


def test_flags_that_a_stack_settles_for_its_branches():
    """`add_value_residual` switches it on, where there are values to mix in."""
    with pytest.raises(ConfigError, match='attn_learned_value_residual_mix'):
        stack(attn_learned_value_residual_mix=True)


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(layer_dropout=(0.1, 0.2)), '`layer_dropout` must have one per layer, 4, got 2 values'),
        (dict(shift_tokens=(1,)), '`shift_tokens` must have one per layer, 4, got 1 values'),
        (dict(attn_dropout=(0.1, 0.2, 0.3)), '`attn_dropout` must have one value, or one for each of 2 layers, got 3'),
        (dict(attn_qk_norm=(True,)), '`attn_qk_norm` must have one value, or one for each of 2 layers, got 1'),
        (dict(ff_mult=(1, 2, 3)), '`ff_mult` must have one value, or one for each of 2 layers, got 3'),
    ],
)
def test_per_layer_values_of_the_wrong_number(flags, words):
    with pytest.raises(ConfigError) as error:
        stack(**flags)
    assert str(error.value).startswith(words)


def test_per_layer_values():
    net = stack(attn_num_mem_kv=(1, 3), attn_qk_norm=(True, False), ff_mult=(1, 2), layer_dropout=(0.0, 0.1, 0.0, 0.2))
    assert [layer[1].mem_k.shape[1] for layer in net.layers if layer.kind == 'a'] == [1, 3]
    assert [layer[1].logit_scale for layer in net.layers if layer.kind == 'a'] == [10, 8**-0.5]
    assert [layer[1].dim_inner for layer in net.layers if layer.kind == 'f'] == [16, 32]


@pytest.mark.parametrize(
    ('build', 'flags', 'name'),
    [
        (model, dict(max_seq_len='8'), 'max_seq_len'),
        (model, dict(max_seq_len=2.5), 'max_seq_len'),
        (model, dict(token_emb=3), 'token_emb'),
        (model, dict(token_emb=nn.Embedding(7, 4)), 'token_emb'),
        (model, dict(to_logits=3), 'to_logits'),
        (model, dict(embed_num_tokens={'a': 'b'}), 'embed_num_tokens'),
        (stack, dict(rel_pos_kwargs=dict(zz=3), alibi_pos_bias=True), 'rel_pos_kwargs'),
        (stack, dict(rel_pos_kwargs=dict(slopes=[1.0]), alibi_pos_bias=True), 'rel_pos_kwargs'),
        (stack, dict(residual_fn_kwargs=dict(zz=3)), 'residual_fn_kwargs'),
        (stack, dict(features=3), 'features'),
        (stack, dict(features=(3,)), 'features'),
        (attention, dict(features=(3,)), 'features'),
    ],
)
def test_bad_values_are_named_before_any_computing(build, flags, name):
    with pytest.raises((ConfigError, TypeError)) as error:
        build(**flags)
    assert f'`{name}' in str(error.value)


def test_missing_argument():
    with pytest.raises(TypeError, match=r'^Decoder: `dim` is missing$'):
        Decoder(depth=1)
    with pytest.raises(ConfigError, match=r'^`enc_num_tokens` is missing$'):
        XTransformer(dim=8)


class Needy(AttentionFeature):
    """Needs, and excludes."""

    needy = flag(False, 'needs another')
    needs = {'qk_norm': 'it reads cosines'}  # noqa: RUF012
    clashes = {'gate_values': 'both gate'}  # noqa: RUF012

    def head_outputs(self, out, call):
        return out * 2


@pytest.mark.parametrize('build', [attention, stack])
def test_needs_and_clashes(build):
    prefix = 'attn_' if build is stack else ''
    own = {'features': (*ATTENTION, Needy), f'{prefix}needy': True}
    with pytest.raises(ConfigError) as error:
        build(**own)
    assert str(error.value) == f'`{prefix}needy` needs `{prefix}qk_norm`: it reads cosines'
    with pytest.raises(ConfigError) as error:
        build(**own, **{f'{prefix}qk_norm': True, f'{prefix}gate_values': True})
    assert str(error.value) == f'`{prefix}needy` cannot be combined with `{prefix}gate_values`: both gate'
    assert build(**own, **{f'{prefix}qk_norm': True})


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('qk_nrom', ', did you mean `qk_norm`?'),
        ('qknorm', ', did you mean `qk_norm`?'),
        ('norm', ', did you mean `qk_norm`?'),
        ('unlike', ''),
    ],
)
def test_did_you_mean(name, words):
    assert did_you_mean(name, ['qk_norm', 'glu', 'sparse_topk']) == words


def test_unexpected_input():
    with pytest.raises(TypeError, match='`foo`'):
        model()(torch.zeros(1, 2).long(), foo=1)
    with pytest.raises(TypeError, match='`maks`, did you mean `mask`'):
        model()(torch.zeros(1, 2).long(), maks=1)
    with pytest.raises(TypeError, match='Attention got an unexpected input `memm`, did you mean `mem'):
        attention()(torch.zeros(1, 2, 16), memm=1)


# warnings


def idle_options():
    """Options that do nothing by themselves, with their level's prefix and the class that takes them."""
    for prefix, name, cls in ALL_FLAGS:
        values = {**{n: f.default for n, f in get_flags(FEATURES).items()}, name: cls.flags[name].example}
        if name != next(iter(cls.flags)) and not cls.is_on(values):
            yield pytest.param(prefix, name, cls, id=prefix + name)


@pytest.mark.parametrize(('prefix', 'name', 'cls'), list(idle_options()))
def test_an_option_without_its_switch_warns_once(prefix, name, cls, warnings):
    written = prefix + name
    for _ in range(2):
        build = model if cls in MODEL else stack
        build(**{written: cls.flags[name].example})
    assert len(warnings) == 1
    said, switch = warnings[0].split(' has no effect unless ')
    assert said == f'`{written}`'
    switches = [f'`{prefix}{n}`' for n, f in get_flags(FEATURES).items() if switches_on(cls, n, f)]
    assert any(name in switch for name in switches), warnings


def switches_on(cls, name, declared):
    values = {n: f.default for n, f in get_flags(FEATURES).items()}
    return cls.is_on({**values, name: declared.example})


@pytest.mark.parametrize('case', FLAG_CASES, ids=str)
def test_flags_with_their_switch_warn_of_nothing_and_are_explained(case, warnings):
    """Each under its bare name, with its value; layouts and norms by what they make of it."""
    built = build(case)
    assert not warnings
    if case.flag:
        bare = case.flag.removeprefix('attn_').removeprefix('ff_')
        assert f'{bare}=' in built.explain()


@pytest.mark.parametrize(
    ('build', 'flags', 'words'),
    [
        (feedforward, dict(swish=True, relu_squared=True), '`swish` has no effect beside `relu_squared`'),
        (stack, dict(ff_swish=True, ff_relu_squared=True), '`ff_swish` has no effect beside `ff_relu_squared`'),
        (stack, dict(only_cross=True), '`only_cross` has no effect unless `cross_attend` is set'),
        (stack, dict(verbose=True, rotary_pos_emb=True), 'rotary positions rotate 4 channels per head'),
        (stack, dict(dim_condition=4), '`dim_condition` has no effect unless'),
        (stack, dict(rotary_pos_emb=True, rotary_xpos_scale_base=64), '`rotary_xpos_scale_base` has no effect unless'),
        (stack, dict(cross_attn_num_mem_kv=2), '`cross_attn_num_mem_kv` has no effect unless `cross_attend` is set'),
        (stack, dict(rel_pos_kwargs=dict(slopes=[1.0])), '`rel_pos_kwargs` has no effect unless'),
        (model, dict(return_only_embed=True, tie_embedding=True), '`tie_embedding`'),
        (model, dict(return_only_embed=True, num_output_heads=2), '`num_output_heads`'),
        (model, dict(l2norm_embed=True, token_emb=nn.Embedding(7, 16)), '`l2norm_embed`'),
        (model, dict(use_abs_pos_emb=False, scaled_sinu_pos_emb=True), '`scaled_sinu_pos_emb`'),
        (model, dict(post_emb_norm_at='stream', emb_dim=8), '`post_emb_norm_at` has no effect unless `post_emb_norm`'),
        (model, dict(post_emb_norm_at='stream', post_emb_norm=True), '`post_emb_norm_at` has no effect unless `proj'),
        (attention, dict(qk_norm=True, qk_norm_dim_scale=True, qk_norm_scale=3), '`qk_norm_scale`'),
    ],
    ids=lambda value: ' '.join(value) if isinstance(value, dict) else '',
)
def test_no_wish_is_dropped_in_silence(build, flags, words, warnings):
    """What has no effect is warned of, once."""
    build(**flags)
    build(**flags)
    assert len(warnings) == 1
    assert warnings[0].startswith(words)


@pytest.mark.parametrize('flags', [dict(tie_embedding=True), dict(num_output_heads=2)], ids=str)
def test_two_heads_are_refused(flags):
    with pytest.raises(ConfigError, match=f'`to_logits` and `{next(iter(flags))}` both make the head, set only one'):
        model(to_logits=nn.Linear(16, 7), **flags)


def test_verbose_settles_advice_only(warnings):
    stack(rotary_pos_emb=True, verbose=False)
    assert not warnings


# the table: help, signatures, the command

PUBLIC = [
    getattr(x_transformers, name)
    for name in x_transformers.__all__
    if isinstance(getattr(x_transformers, name), type) and issubclass(getattr(x_transformers, name), Configurable)
]


@pytest.mark.parametrize('cls', PUBLIC, ids=lambda cls: cls.__name__)
def test_signature_and_help_hold_every_flag(cls):
    signature = inspect.signature(cls)
    known = accepted_keywords(cls)
    assert set(known) <= set(signature.parameters)
    helped = pydoc.render_doc(cls, renderer=pydoc.plaintext)
    for name, declared in known.items():
        assert signature.parameters[name].default is declared.default or (
            signature.parameters[name].default == declared.default
        )
        assert name in helped


def test_stacks_accept_the_flags_of_their_branches():
    known = accepted_keywords(Decoder)
    assert {'attn_qk_norm', 'cross_attn_qk_norm', 'ff_glu', 'rotary_pos_emb', 'attn_dim_head', 'ff_mult'} <= set(known)
    assert {'causal', 'attn_heads', 'qk_norm', 'glu', 'attn_dim_context', 'ff_dim_out'}.isdisjoint(known)
    assert 'cross_attn_dim_context' in known
    assert known['attn_qk_norm'] is accepted_keywords(Attention)['qk_norm']


@pytest.mark.parametrize('where', dict.fromkeys(where for where, _, _ in table()))
def test_declarations_are_complete(where):
    for name, declared in ((name, declared) for place, name, declared in table() if place == where):
        assert declared.doc and declared.doc == declared.doc.strip() and not declared.doc.endswith('.'), name
        if declared.feature is None:
            continue
        assert declared.name == name
        assert declared.refusal(declared.default) is None, name
        assert declared.example is not None and declared.example != declared.default, name
        assert declared.refusal(declared.example) is None, name


@pytest.mark.parametrize('cls', FEATURES, ids=lambda cls: cls.__name__)
def test_features_are_documented_and_plug_in_somewhere(cls):
    assert inspect.getdoc(cls) and inspect.getdoc(cls) != inspect.getdoc(Feature)
    assert cls.runs_at() or cls.setup is not Feature.setup
    assert cls.flags or cls.call_inputs or cls.enabled_by, 'nothing switches it on'
    known = get_flags(FEATURES)
    assert set(cls.needs) | set(cls.clashes) | set(cls.overridden_by) <= set(known)


def test_no_two_features_of_a_level_share_a_flag():
    for level in (ATTENTION, FEEDFORWARD, STACK, MODEL):
        names = [name for cls in level for name in cls.flags]
        assert len(names) == len(set(names))


def test_command_prints_the_table(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert err == ''
    lines = out.splitlines()
    assert len(lines) == len(table())
    assert [line.split()[:2] for line in lines] == [[where, name] for where, name, _ in table()]


def test_command_ends_with_the_status(capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['flags', 'zzzzz'])
    monkeypatch.delitem(sys.modules, 'x_transformers.flags.__main__')  # as in a new program
    with pytest.raises(SystemExit) as ended:
        runpy.run_module('x_transformers.flags', run_name='__main__')
    assert ended.value.code == 2
    assert capsys.readouterr() == ('', 'unknown flag `zzzzz`\n')


def test_command_explains_flags(capsys):
    assert main(['rotary']) == 0
    out = capsys.readouterr().out
    for name in ('rotary_pos_emb', 'rotary_emb_dim', 'rotary_xpos'):
        assert f'{name}  (AttentionLayers, default' in out
    assert 'arXiv:2104.09864' in out and 'must be' in out and 'for example' in out

    assert main(['attn_softclamp_logits']) == 0
    out = capsys.readouterr().out
    assert out.startswith('softclamp_logits  (Attention, default False)')
    assert 'c tanh(sim / c)' in out and 'paper: Gemma 2' in out

    assert main(['average_pool_embed']) == 0
    assert 'not with `use_cls_token`: both determine how the output is pooled' in capsys.readouterr().out


MEASURED = (
    Measured(
        'attn_qk_norm',
        *('tiny', 'modern'),
        *('qk_norm', 'Attention', True, {}),
        *(-0.03, 0.01, -0.02, 0.011, 1.1, 1.05, 1.2, 5, True),
    ),
    Measured(
        'attn_kv_heads 2',
        *('tiny', 'modern'),
        *('kv_heads', 'Attention', 2, {}),
        *(0.01, 0.02, 0.0, 0.02, 0.9, 1.0, 1.0, 5, False),
    ),
    Measured('no positions', 'tiny', 'modern', *(None,) * 4, *(0.5, 0.1, 0.5, 0.1, 1.0, 1.0, 1.0, 5, True)),
    Measured('no positions', 'huge', 'modern', *(None,) * 4, *(-0.5, 0.1, 0.5, 0.1, 1.0, 1.0, 1.0, 5, False)),
)
QK_NORM = '-0.030 ± 0.010 bits per byte in equal steps, -0.020 ± 0.011 in equal time; 1.10 x step time'


def test_measured_effects_are_told(capsys, monkeypatch):
    monkeypatch.setattr(explain, 'table', lambda: MEASURED)
    assert main(['attn_qk_norm']) == 0
    assert f'    measured: attn_qk_norm: {QK_NORM}' in capsys.readouterr().out
    assert main(['attn_kv_heads']) == 0
    assert 'measured: attn_kv_heads 2 (kv_heads=2): +0.010 ± 0.020' in capsys.readouterr().out
    assert main(['ff_dropout']) == 0 and 'measured' not in capsys.readouterr().out
    # a flag of the same name elsewhere
    monkeypatch.setattr(explain, 'table', lambda: (replace(MEASURED[0], flag='dropout', value=0.1),))
    assert main(['ff_dropout']) == 0
    told = capsys.readouterr().out
    assert told.count('measured') == 1
    assert told.index('(Attention') < told.index('measured') < told.index('(FeedForward')
    monkeypatch.setattr(explain, 'table', lambda: MEASURED)

    assert main(['--helps']) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line.split('  ')[-1] for line in lines if '±' in line]
    assert told == ['attn_qk_norm', 'attn_kv_heads 2', 'no positions', 'no positions']
    heads = [line.split(';')[0] for line in lines if '* holds' in line]
    assert heads == ['tiny, modern baseline', 'huge, modern baseline']
    assert [line[0] for line in lines if '±' in line] == ['*', ' ', '*', ' ']

    monkeypatch.setattr(explain, 'WIDTH', 1000)  # A line for each.
    told = [line.strip() for line in stack(attn_qk_norm=True, attn_kv_heads=2).explain(measured=True).splitlines()]
    told = [line for line in told if line.startswith('measured')]
    qk_norm = f'attn_qk_norm [{QKNorm.paper}]: {QK_NORM}, 1.05 x memory (modern baseline, tiny, 5 seeds)'
    assert sorted(told) == [f'measured     {text}' for text in (f'attn_kv_heads 2: {MEASURED[1]}', qk_norm)]
    assert 'measured' not in stack(attn_qk_norm=False, attn_kv_heads=1).explain(measured=True)

    # a variant of several keywords is told where all of them hold, and of several classes nowhere
    with_others = [replace(MEASURED[0], others=others) for others in ({'kv_heads': 2}, {'qk_norm_scale': 10}, None)]
    monkeypatch.setattr(explain, 'table', lambda: with_others)
    assert stack(attn_qk_norm=True).explain(measured=True).count('measured') == 1
    assert stack(attn_qk_norm=True, attn_kv_heads=2).explain(measured=True).count('measured') == 2
    assert stack(attn_qk_norm=True, attn_qk_norm_scale=8).explain(measured=True).count('measured') == 0


def test_what_is_measured_exists():
    """Every flag that the file of measured effects names is one of its class, which has the value."""
    owners = (*OWNERS, AutoregressiveWrapper)
    known = {(cls.__name__, n): f for cls in owners for n, f in {**cls.arguments(), **get_flags(cls.catalogue)}.items()}
    for one in explain.table():
        for name, value in {one.flag: one.value, **(one.others or {})}.items() if one.flag else ():
            assert known[one.owner, name].refusal(value) is None, one
    assert {one.models for one in explain.table()} == {*explain.about()} == {'small models', '50M parameters'}


@pytest.mark.costly
def test_refusals_are_told(capsys):
    assert main(['--refusals']) == 0
    assert 'attn_cluster                   attn_max_attend_future, ' in capsys.readouterr().out
    pairs = [pair for flag, others in refusals() if flag == 'one of' for pair in combinations(others, 2)]
    pairs += [(flag, other) for flag, others in refusals() if flag != 'one of' for other in others]
    cases = {case.flag: case for case in reversed(FLAG_CASES) if case.flag}
    del cases['attn_shaw_rel_values']  # whose case switches it off
    known = [(cases[one], cases[other]) for one, other in pairs if one in cases and other in cases]
    assert len(known) > 200
    for one, other in known:
        with pytest.raises(ValueError, match='`'):
            build(one.together(other))


def test_command_refuses_unknown_flags(capsys):
    assert main(['qk_nrom']) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ('', 'unknown flag `qk_nrom`, did you mean `qk_norm`?\n')


# explanations


def test_explain_follows_the_running_order(monkeypatch):
    monkeypatch.setattr(explain, 'WIDTH', 1000)  # A stage begins each line.
    flags = dict(attn_softclamp_logits=True, attn_pre_talking_heads=True, attn_head_scale=True, attn_qk_norm=True)
    text = model(stack(**flags, macaron=True), num_memory_tokens=2).explain()
    order = ['MemoryTokens', 'Macaron', 'QKNorm', 'PreTalkingHeads', 'SoftclampLogits', 'HeadScale']
    places = [text.index(name) for name in order]
    assert places == sorted(places)
    first_words = [line.split()[0] for line in text.splitlines()]
    stages = [word for word in first_words if word in ('qkv_heads', 'scores', 'logits', 'head_outputs', 'layer_output')]
    assert stages == ['qkv_heads', 'qkv_heads', 'scores', 'logits', 'head_outputs', 'layer_output']
    assert 'softclamp_logits=True' in text and 'num_memory_tokens=2' in text
    assert text.startswith('TransformerWrapper num_tokens=7') and 'attn_layers: Decoder dim=16' in text


def test_explain_fits_on_a_screen():
    """Equal layers are one entry; inputs of the call and measured effects are listed only when they are asked for."""
    flags = dict(attn_kv_heads=1, rotary_pos_emb=True, use_rmsnorm=True, ff_swish=True, ff_glu=True, ff_no_bias=True)
    net = model(Decoder(dim=16, depth=12, heads=2, attn_flash=True, **flags))

    def shown(**options):
        lines = net.explain(**options).splitlines()
        assert max(map(len, lines)) <= 100
        return lines, [word for line in lines for word in line.split()[:1] if word in ('inputs', 'measured')]

    lines, extra = shown()
    assert len(lines) <= 40 and not extra
    assert sum('(12 equal modules)' in line for line in lines) == 2
    lines, extra = shown(inputs=True)
    assert {*extra} == {'inputs'} and any('prepend_embeds' in line for line in lines)
    lines, extra = shown(measured=True)
    assert {*extra} == {'measured'} and any('bits per byte' in line for line in lines)
    assert {*shown(inputs=True, measured=True)[1]} == {'inputs', 'measured'}


def test_explain_says_what_is_there_by_default():
    text = model().explain()
    assert 'AbsolutePositionalEmbedding' in text and 'LayerNorm before each branch' in text
    assert 'layers 0a 1f 2a 3f' in text


# the core knows no paper

# flags that the core names all the same, and why
KNOWN_TO_THE_CORE = {
    'dropout': 'also an argument of feedforwards, and a state of the call that the fused kernel needs',
    'layers_execute_order': 'an attribute, and an argument of forward',
    'num_memory_tokens': 'an attribute that other libraries read',
    'max_attend_past': 'an attribute that other libraries read',
    'use_abs_pos_emb': 'the answer to an old spelling',
}


def test_core_names_no_flag_of_a_paper():
    tree = ast.parse((ROOT / 'x_transformers' / 'x_transformers.py').read_text(encoding='utf-8'))
    flags, classes = set(get_flags(FEATURES)), {cls.__name__ for cls in FEATURES}
    found = {}
    for node in ast.walk(tree):
        said = {
            ast.Name: lambda n: n.id,
            ast.Attribute: lambda n: n.attr,
            ast.keyword: lambda n: n.arg,
            ast.arg: lambda n: n.arg,
            ast.Constant: lambda n: n.value if isinstance(n.value, str) else None,
        }.get(type(node), lambda n: None)(node)
        if said in flags | classes:
            found.setdefault(said, []).append(node.lineno)
    assert set(found) == set(KNOWN_TO_THE_CORE), found


# a feature of a user's own


class Damped(AttentionFeature):
    """Values fade with a learned rate per head, and the more so the later the token.

    v -> v exp(-rate p)
    """

    paper = 'a test'
    damped = flag(False, 'fade values by their position')
    damping = flag(0.1, 'the rate at first', positive, example=0.5)
    stored_as = {'rate': 'damping_rate'}  # noqa: RUF012

    def setup(self, owner):
        self.rate = nn.Parameter(torch.full((owner.shape.kv_heads, 1, 1), float(self.damping)))

    def head_outputs(self, out, call):
        return out * torch.exp(-self.rate)


class Clipped(FeedForwardFeature):
    """An activation that is clipped."""

    clipped = flag(False, 'clip the activation')

    def activation(self):
        return nn.Hardtanh()


class Squared(StackFeature):
    """The stream is squared before the final norm."""

    squared = flag(False, 'square the stream')

    def stack_output(self, x, call):
        return x.square()


class Shifted(ModelFeature):
    """Logits are shifted."""

    shifted = flag(0.0, 'by how much', example=1.5)

    def logits(self, logits, call):
        return logits + self.shifted


def test_own_feature_on_attention():
    net = randomised(attention(features=(*ATTENTION, Damped), damped=True, damping=0.5))
    assert net.damping_rate.shape == (4, 1, 1)
    plain = randomised(attention())
    plain.load_state_dict({n: t for n, t in net.state_dict().items() if n != 'damping_rate'}, strict=True)
    x = randn(2, 5, 16)
    net.to_out = plain.to_out = nn.Identity()
    fade = (-net.damping_rate).exp().expand(4, 1, 8).transpose(0, 1).reshape(-1)
    assert_close(net(x), plain(x) * fade)
    (grad,) = torch.autograd.grad(net(x).sum(), net.damping_rate)
    assert grad.abs().min() > 0


@pytest.mark.parametrize(
    ('name', 'value', 'words'),
    [
        ('damping', -1, '`damping` must be a positive number, got -1'),
        ('damped', 'x', "`damped` must be True or False, got 'x'"),
        ('dampd', 1, 'unknown keyword `dampd` of Attention, did you mean `damped`?'),
    ],
)
def test_own_feature_is_checked(name, value, words):
    with pytest.raises(ConfigError) as error:
        attention(**{'features': (*ATTENTION, Damped), 'damped': True, name: value})
    assert str(error.value) == words


def test_own_feature_must_be_given():
    with pytest.raises(ConfigError, match='unknown keyword `damped` of Attention'):
        attention(damped=True)
    with pytest.raises(ConfigError, match='unknown keyword `damped` of Decoder'):
        stack(damped=True)


@pytest.mark.parametrize('name', ['damped', 'attn_damped'])
def test_own_feature_on_a_stack(name, tmp_path):
    def own():
        return model(stack(features=(*ATTENTION, Damped), **{name: True}, use_rmsnorm=True))

    net, plain = randomised(own()), randomised(model(stack(use_rmsnorm=True)))
    ids = torch.tensor([[1, 2, 3, 4, 5], [6, 5, 4, 3, 0]])
    out = net(ids)
    assert not torch.allclose(out, plain(ids))
    # kept in checkpoints under its name
    added = set(net.state_dict()) - set(plain.state_dict())
    assert added == {'attn_layers.layers.0.1.damping_rate', 'attn_layers.layers.2.1.damping_rate'}
    again = own().double().eval()
    torch.save(net.state_dict(), tmp_path / 'weights')
    again.load_state_dict(torch.load(tmp_path / 'weights', weights_only=True), strict=True)
    assert torch.equal(again(ids), out)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(ids), out)
    # explained, cached, and named in JSON
    assert 'Damped (damped=True): Values fade with a learned rate per head' in ' '.join(net.explain().split())
    _, trace = net(ids[:, :3], return_intermediates=True)
    assert net.can_cache_kv
    assert_close(net(ids, cache=trace), out[:, 3:])
    assert TransformerWrapper.from_config(json.dumps(net.config)).attn_layers.given_features == (*ATTENTION, Damped)


def test_own_feature_that_cannot_be_cached():
    class Forgetful(Damped):
        """Cannot be cached."""

        refuses = {'cache': 'its past is forgotten'}  # noqa: RUF012

    net = model(stack(features=(*ATTENTION, Forgetful), damped=True))
    ids = torch.tensor([[1, 2, 3]])
    assert not net.can_cache_kv
    _, trace = net(ids, return_intermediates=True)
    with pytest.raises(ValueError, match='cannot be cached'):
        net(torch.cat((ids, ids), dim=1), cache=trace)


def test_own_features_of_every_level():
    features = (*ATTENTION, Damped, *FEEDFORWARD, Clipped, *STACK, Squared)
    layers = stack(features=features, damped=True, ff_clipped=True, squared=True)
    assert isinstance(layers.layers[1][1].ff[0][1], nn.Hardtanh)
    net = randomised(model(layers, features=(*MODEL, Shifted), shifted=1.5))
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    bare = randomised(model(layers))
    assert_close(net(ids), bare(ids) + 1.5)
    text = net.explain()
    for name in ('Damped', 'Clipped', 'Squared', 'Shifted'):
        assert name in text


def test_own_feature_of_a_stack():
    layers = randomised(stack(features=(*STACK, Squared), squared=True, pre_norm_has_final_norm=False))
    plain = randomised(stack(pre_norm_has_final_norm=False))
    x = randn(2, 5, 16)
    assert_close(layers(x), plain(x).square())


def test_own_choice_takes_part_in_computed_conflicts():
    class Uniform(AttentionFeature):
        """Every visible key counts alike."""

        uniform = flag(False, 'equal weights')

        def normalizer(self, sim, call):
            seen = (sim > torch.finfo(sim.dtype).min).to(sim.dtype)
            return seen / seen.sum(dim=-1, keepdim=True)

    own = dict(features=(*ATTENTION, Uniform), uniform=True)
    net = randomised(attention(**own, causal=True))
    x = randn(1, 4, 16)
    _, trace = net(x, return_intermediates=True)
    assert_close(trace.post_softmax_attn[0, 0, 2], torch.tensor([1.0, 1.0, 1.0, 0.0]).double() / 3)
    with pytest.raises(ConfigError, match='`sigmoid` and `uniform` both choose the normalizer, set only one'):
        attention(**own, sigmoid=True)
    with pytest.raises(ConfigError, match='`flash=True` cannot be combined with `uniform`'):
        attention(**own, flash=True)


# configs


def test_config_holds_what_differs_from_the_defaults():
    net = model(stack(Encoder, rotary_pos_emb=True, ff_glu=False, attn_qk_norm=True, custom_layers=('a', 'f')))
    assert net.config == {
        'class': 'TransformerWrapper',
        'num_tokens': 7,
        'max_seq_len': 8,
        'attn_layers': {
            'class': 'Encoder',
            'dim': 16,
            'depth': 2,
            'heads': 4,
            'attn_dim_head': 8,
            'verbose': False,
            'rotary_pos_emb': True,
            'attn_qk_norm': True,
            'custom_layers': ['a', 'f'],
        },
    }


def test_config_of_positional_arguments():
    assert Attention(16, 8, heads=2).config == {'class': 'Attention', 'dim': 16, 'dim_head': 8, 'heads': 2}
    assert FeedForward(16, 8, 2).config == {'class': 'FeedForward', 'dim': 16, 'dim_out': 8, 'mult': 2}


@pytest.mark.parametrize('names', [{'class': 3}, {'extra': 3}])
def test_config_of_names_that_users_choose(names):
    net = model(embed_num_tokens=names)
    again = TransformerWrapper.from_config(net.config)
    assert again.state_dict().keys() == net.state_dict().keys()


def test_config_keeps_what_overrides_an_inherited_value():
    net = stack(cross_attend=True, attn_kv_heads=2, cross_attn_kv_heads=None)
    again = Decoder.from_config(net.config)
    assert {n: t.shape for n, t in again.state_dict().items()} == {n: t.shape for n, t in net.state_dict().items()}


def test_config_of_an_encoder_and_decoder():
    net = both(tie_token_emb=True, dec_ff_glu=True)
    assert XTransformer.from_config(net.config).state_dict().keys() == net.state_dict().keys()


@pytest.mark.parametrize(
    ('cls', 'config', 'words'),
    [
        (
            TransformerWrapper,
            {'class': 'Nope'},
            "`class` must be TransformerWrapper or one of its subclasses, got 'Nope'",
        ),
        (
            Decoder,
            {'class': 'Encoder', 'dim': 8, 'depth': 1},
            "`class` must be Decoder or one of its subclasses, got 'Encoder'",
        ),
        (Decoder, {'dim': 8, 'depth': 1, 'gluu': True}, 'unknown keyword `gluu` of Decoder'),
    ],
)
def test_configs_are_checked(cls, config, words):
    with pytest.raises(ConfigError) as error:
        cls.from_config(config)
    assert str(error.value).startswith(words)


def test_config_of_a_subclass_names_it():
    net = AttentionLayers.from_config({'class': 'Encoder', 'dim': 8, 'depth': 1})
    assert type(net) is Encoder


def test_every_default_is_allowed():
    for cls in PUBLIC:
        for name, declared in cls.arguments().items():
            if declared.default is not REQUIRED and declared.default is not None:
                assert declared.refusal(declared.default) is None, (cls, name)


def test_a_feature_that_waits_is_left_out_of_calls_without_its_inputs():
    """Input-only features do nothing unless one of their inputs is given, so calls without them skip them."""
    attn = Attention(16, heads=2, dim_head=8)
    waiting = [feature for feature in attn.features.active if feature.waits]
    assert waiting and not any(feature in attn.features.active_for({}).active for feature in waiting)
    found = attn.features.active_for({'attn_bias': torch.zeros(1), 'mem': None})
    assert [type(f).__name__ for f in found.active if f.waits] == ['AttnBias']
    assert found is attn.features.active_for({'attn_bias': torch.ones(1)})


def test_features_without_flags_wait_for_their_inputs():
    quiet = [cls for cls in (*ATTENTION, *STACK, *MODEL) if cls.call_inputs and not (cls.flags or cls.enabled_by)]
    assert len(quiet) > 10 and all(cls.waits for cls in quiet)


def test_layers_of_a_stack_are_what_they_are_alone():
    """Flags of layers that are alike are checked once; what each is made of is its own."""
    stack = Decoder(
        dim=16, depth=4, heads=2, attn_dim_head=8, attn_qk_norm=(True, False, True, True),
        attn_qk_norm_scale=(4, 10, 4.0, 8), attn_num_mem_kv=1, rotary_pos_emb=True, ff_glu=(True, False, True, True),
        attn_dropout=(0.5, 0.0, 0.5, 0.0), verbose=False,
    )  # fmt: skip
    for index, layer in enumerate(stack.layers):
        branch, flags = layer[1], stack.flags_for(layer.kind, index // 2)
        causal = {'causal': True, 'heads': 2} if layer.kind == 'a' else {}
        alone = type(branch)(16, **causal, **flags)
        on, twin = branch.features, alone.features
        assert {s: [type(f) for f in at] for s, at in on.by_stage.items()} == {
            s: [type(f) for f in at] for s, at in twin.by_stage.items()
        }
        assert all(f.owner is branch and f in on.active for at in on.by_stage.values() for f in at)
        assert (on.call_inputs, on.optional_inputs, [*on.input_checkers]) == (
            twin.call_inputs,
            twin.optional_inputs,
            [*twin.input_checkers],
        )
        assert all(f.owner is branch for f in on.input_checkers.values())
        plain = {k: v for k, v in vars(alone).items() if isinstance(v, (bool, int, float, str))}
        assert {k: (type(vars(branch)[k]), vars(branch)[k]) for k in plain} == {
            k: (type(v), v) for k, v in plain.items() if k != 'layer_number'
        } | {k: (int, index // 2) for k in plain if k == 'layer_number'}


def test_a_replica_reads_its_own_parameters():
    """As `nn.DataParallel` makes them: copies of the modules, with parameters of another device."""
    layer, x = Attention(16, heads=2, dim_head=8, num_mem_kv=2, head_learned_sink=True).eval(), torch.randn(2, 5, 16)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.5)
    replica = layer._replicate_for_data_parallel()
    replica._parameters, replica._modules = dict(other._parameters), dict(other._modules)
    assert torch.equal(replica(x), other(x)) and not torch.equal(replica(x), layer(x))

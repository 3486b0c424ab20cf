"""What the laws are checked on: a case per flag, per argument and per input, the small model of each, and its inputs.

The cases of flags come from the catalogue, so that a new feature has its cases the moment it exists. Written by hand
is only what a declaration cannot say: which other flags an option needs (SETTINGS), and cases of arguments and inputs.
"""

from __future__ import annotations

import copy
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from oracles import assert_close
from torch import Tensor, nn

from x_transformers import (
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    PrefixDecoder,
    TransformerWrapper,
)
from x_transformers.continuous import CONTINUOUS
from x_transformers.features import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.gates import GATES
from x_transformers.flags import ConfigError, Feature, PerLayer
from x_transformers.x_transformers import Attention, AttentionLayers, RotaryEmbedding, Wrapper, no_positions

STACK_SIZES = dict(dim=16, depth=2, heads=4, attn_dim_head=8, ff_mult=2, verbose=False)
TOKENS, LONGEST, CONTEXT, PREFIX = 60, 24, 5, 2
MODEL_SIZES = {
    TransformerWrapper: dict(num_tokens=TOKENS, max_seq_len=LONGEST),
    ContinuousTransformerWrapper: dict(dim_in=5, dim_out=7, max_seq_len=LONGEST),
}

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A model that differs from the plain one in `flag`, and in what that needs.

    flag      the keyword on trial, or '' where the case is about an input
    stack     keywords of the stack
    model     keywords of the model around it
    inputs    further inputs that its forward calls get
    default   what `flag` is when it is not given
    """

    name: str
    flag: str = ''
    stack: Values = field(default_factory=dict)
    model: Values = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    kind: type[AttentionLayers] = Decoder
    wrapper: type[Wrapper] = TransformerWrapper
    default: Any = None
    feature: type[Feature] | None = None

    @property
    def keywords(self) -> list[str]:
        """Every keyword that the case gives, at construction or in a call."""
        return [*self.stack, *self.model, *self.inputs]

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def of_kind(self, kind: type[AttentionLayers]) -> Case:
        return self if self.kind is kind else with_kind(self, kind)

    def with_keywords(self, **keywords: Any) -> Case:
        """The same with further keywords of the stack."""
        return with_keywords(self, **keywords)

    def switched(self, to_default: bool) -> Case:
        """The same with the flag on trial at its default, or not given at all."""
        parts = {}
        for place in ('stack', 'model'):
            gone = (self.flag, *ONLY_WITH.get(self.flag, ()))
            rest = {name: value for name, value in getattr(self, place).items() if name not in gone}
            given = self.flag in getattr(self, place)
            parts[place] = {**rest, self.flag: self.default} if to_default and given else rest
        return replace(self, **parts)

    def together(self, other: Case) -> Case:
        """Both cases in one model; where they set the same keyword, the later one counts."""
        kind = other.kind if self.kind is Decoder else self.kind
        return Case(
            f'{self} + {other}',
            stack={**self.stack, **other.stack},
            model={**self.model, **other.model},
            inputs=tuple(dict.fromkeys((*self.inputs, *other.inputs))),
            kind=kind,
            wrapper=self.wrapper,
        )


@functools.cache
def with_kind(case: Case, kind: type[AttentionLayers]) -> Case:
    return replace(case, kind=kind)


@functools.cache
def with_keywords(case: Case, **keywords: Any) -> Case:
    return replace(case, stack={**case.stack, **keywords})


class Neighbours(nn.Module):
    """A module beside attention: every token and the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(16, 32)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.widen(x)
        x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)
        return x + nn.functional.pad(x, (0, 0, 1, -1)) / 2


# cases of flags, from the catalogue

INDEXER = dict(attn_indexer=True, attn_indexer_heads=2, attn_indexer_dim=8, attn_indexer_topk=3)
INDEXER_FLAGS = ('indexer', *(f'indexer_{name}' for name in 'heads dim topk rotary loss_weight warmup'.split()))
HYBRID = dict(attn_hybrid_module=Neighbours())
LSH = dict(attn_cluster='lsh', attn_cluster_size=2, attn_lsh_buckets=4)
ROUTING = dict(attn_cluster='routing', attn_num_clusters=2, attn_cluster_size=2)
ROUTING_FLAGS = ('num_clusters', 'local_heads', 'local_pattern', 'routing_decay', 'routing_balanced')
EXPERTS = dict(ff_moe_experts=4, ff_glu=True, ff_swish=True, ff_no_bias=True)
LATENT_KV = dict(attn_use_latent_kv=True, attn_dim_latent_kv=6)
GLOBAL = {'pattern': 'global', 'first': 2, 'positions': (4,)}
MARKED = {'pattern': 'global', 'mask': True}
SINKHORN = dict(attn_cluster='sinkhorn', attn_cluster_size=2, attn_sinkhorn_gumbel=False)
SORTING_NET = dict(**SINKHORN, attn_sinkhorn_sort='net', attn_cluster_blocks=16)
# what a flag needs beyond the switch of its own feature
SETTINGS: dict[str, Values] = {
    'post_emb_norm_bias': dict(post_emb_norm=True),
    'post_emb_norm_eps': dict(post_emb_norm=True),
    'squeeze_out_last_dim': dict(logits_dim=1),
    'mem_same_length': dict(max_mem_len=3),
    **{f'cmem_{name}': dict(max_mem_len=LONGEST) for name in ('len', 'ratio', 'fn', 'loss', 'loss_weight', 'init')},
    'tie_embedding_normed': dict(l2norm_embed=True),
    'dim_condition': dict(use_adaptive_layernorm=True),
    'adaptive_condition_mlp': dict(use_adaptive_layernorm=True),
    'adaptive_condition_mlp_expansion': dict(use_adaptive_layernorm=True, adaptive_condition_mlp=True),
    'rotary_xpos_scale_base': dict(rotary_xpos=True),
    'rotary_layers': dict(rotary_pos_emb=True),
    'window_growth': dict(attn_max_attend_past=2),
    'cross_residual_attn': dict(cross_attend=True),
    'tupe_pos': dict(tupe_cls_first=True),  # who else has no position stands in front
    'act_max_steps': dict(weight_tie_layers=True, depth=4),
    **{f'act_{name}': dict(weight_tie_layers=True) for name in ('halting', 'eps', 'ponder_weight', 'dense')},
    'layers_execute_order': dict(depth=1),
    'custom_layers': dict(depth=1),
    'recurrent_module': dict(depth=1, custom_layers=('a', 'r', 'f')),
    'recurrent_kwargs': dict(depth=1, custom_layers=('a', 'r', 'f'), recurrent_module='ssm'),
    'conv_module': dict(conv_norm='layer', conv_causal=True, conv_kernel_size=4),
    'conv_kernel_size': dict(conv_norm='layer', conv_causal=True),
    'use_adaln_zero': dict(dim_condition=12),
    'conv_norm': dict(conv_causal=True),
    'conv_causal': dict(conv_norm='group'),
    'rotary_emb_dim': dict(attn_dim_head=16),
    'ff_glu_gate_softclamp_value': dict(ff_glu_softclamp=True),
    'ff_glu_up_softclamp_value': dict(ff_glu_softclamp=True),
    'ff_swiglu_alpha': dict(ff_swiglu_limit=0.5),
    'ff_moe_groups': dict(ff_moe_kind='sigmoid'),
    'ff_moe_top_groups': dict(ff_moe_kind='sigmoid', ff_moe_groups=2),
    'ff_moe_score_bias': dict(ff_moe_kind='sigmoid'),
    'ff_moe_group_score': dict(ff_moe_groups=2),
    **{f'ff_moe_{name}': dict(ff_moe_shared=1) for name in ('dim_shared', 'shared_gate')},
    'ff_moe_balance_per_sequence': dict(ff_moe_balance_loss=0.1),
    'ff_moe_balance_rate': dict(ff_moe_balance='bias'),
    'altup': dict(num_residual_streams=3),
    'hyper_conn_sinkhorn_iters': dict(num_residual_streams=2),
    'hyper_conn_residual_mix': dict(num_residual_streams=2),
    'gated_multi_residual': dict(num_residual_streams=2, residual_fn_kwargs=dict(read_gate_rank=3)),
    'qkv_receive_diff_residuals': dict(num_residual_streams=2),
    'cross_attn_tokens_dropout': dict(cross_attend=True),
    'learned_reinject_input_gate': dict(reinject_input=True),
    'attn_flash_pack_seq': dict(rotary_pos_emb=True),
    'attn_log_cpb': dict(attn_log_cpb_hidden=16),
    'attn_gate_values_bias': dict(attn_gate_values=True),
    'attn_rotate_values': dict(rotary_pos_emb=True),
    'attn_qk_head_norm_at': dict(rotary_pos_emb=True),
    'attn_output_gate_rank': dict(attn_output_gate=True),
    'attn_output_gate_headwise': dict(attn_output_gate=True),
    'attn_low_rank_silu_gates': dict(attn_gate_values_rank=2),
    'attn_use_latent_q': dict(attn_dim_latent_q=6),
    'attn_use_latent_kv': LATENT_KV,
    'attn_latent_rope_subheads': dict(**LATENT_KV, rotary_pos_emb=True),
    'attn_dim_latent_rope': dict(**LATENT_KV, rotary_pos_emb=True),
    'attn_latent_norm': LATENT_KV,
    'attn_latent_absorb': LATENT_KV,
    'attn_latent_bias': LATENT_KV,
    'attn_adaptive_span': dict(attn_max_span=20),  # else the spans of dynamic ones hold all keys
    **{f'attn_{name}': dict(attn_adaptive_span='static') for name in ('max_span', 'span_ramp', 'span_init')},
    'attn_span_loss_weight': dict(attn_adaptive_span='static', attn_span_init=0.3),
    'attn_data_dependent_alibi_per_row_dim_head': dict(attn_data_dependent_alibi_per_row=True),
    # what rules out the fused kernel is said by its name
    **{key: dict(attn_shaw_rel_values=True) for key in ('attn_shaw_rel_pos', 'attn_shaw_max_distance')},
    **{key: dict(shaw_rel_values=True) for key in ('shaw_rel_pos', 'shaw_max_distance')},
    'attn_shaw_rel_values': dict(attn_shaw_rel_pos=True),
    'shaw_rel_values': dict(shaw_rel_pos=True),
    # random features are drawn for some maps only
    **{f'attn_kernel_{name}': dict(attn_kernel='favor') for name in ('features', 'orthogonal', 'redraw', 'hyperbolic')},
    # the number of buckets must not change with the length
    **{f'attn_{name}': LSH for name in ('cluster', 'cluster_size', 'lsh_rounds', 'lsh_chunks', 'lsh_scale')},
    **{f'attn_{name}': ROUTING for name in ROUTING_FLAGS},
    'attn_cluster_size': dict(attn_cluster='lsh', attn_lsh_buckets=4),
    'attn_lsh_buckets': dict(attn_cluster='lsh', attn_cluster_size=2),
    'attn_lsh_across_buckets': dict(**LSH, attn_lsh_chunks='sorted'),
    **{f'attn_linformer_{name}': dict(attn_linformer_max_len=24) for name in ('k', 'share')},
    'attn_linformer_proj': dict(attn_linformer_k=12, attn_linformer_max_len=24),
    # places have vectors for two of them
    'attn_aft': dict(attn_aft_max_len=40),
    'attn_aft_rank': dict(attn_aft_max_len=40),
    'attn_aft_window': dict(attn_aft_max_len=40),
    'attn_global_separate_qkv': dict(attn_sparse_pattern={'union': [{'pattern': 'sliding', 'window': 3}, MARKED]}),
    **{f'attn_{name}': SINKHORN for name in ('sinkhorn_iters', 'sinkhorn_temp', 'sinkhorn_gumbel', 'sortcut')},
    **{f'attn_{name}': SORTING_NET for name in ('sinkhorn_sort', 'cluster_blocks')},
    'attn_moba_topk': dict(attn_moba_block=2),
    **{f'attn_{name}': INDEXER for name in INDEXER_FLAGS},
    'attn_indexer_rotary': dict(**INDEXER, rotary_pos_emb=True),
    'attn_dpfp_nu': dict(attn_kernel='dpfp'),
    'attn_rff_sigma': dict(attn_kernel='rff'),
    'attn_hybrid_module': HYBRID,
    'attn_hybrid_mask_kwarg': HYBRID,
    'attn_hybrid_fold_axial_dim': HYBRID,
    'attn_hybrid_learned_mix': HYBRID,
    'attn_hybrid_kwargs': dict(attn_hybrid_module='ssm'),
    'attn_hybrid_merge': dict(attn_hybrid_module='ssm'),
    'attn_hybrid_factors': dict(attn_hybrid_module='ssm', attn_hybrid_merge='sum'),
}
POOLED = (
    'use_cls_token',
    'num_cls_tokens',
    'attn_pool',
    'num_pooled_tokens',
    'attn_pool_depth',
    'dim_pooled_tokens',
)
KINDS: dict[str, type[AttentionLayers]] = {
    **dict.fromkeys(('xl_rel_segments', 'attn_xl_rel_segments'), Encoder),
    **dict.fromkeys(POOLED, Encoder),
    # chunks of all tokens
    **dict.fromkeys(('attn_lsh_chunks', 'attn_lsh_across_buckets', 'attn_routing_balanced'), Encoder),
    # sorted blocks hold later tokens
    'attn_sortcut': Encoder,
    **{f'attn_log_cpb{name}': Encoder for name in ('', '_window', '_hidden')},  # images
    'alibi_bidirectional': Encoder,  # half of the heads look ahead
    # in a causal stack, tokens in front see nothing of what follows
    'attn_max_attend_future': Encoder,
    # a softmax over queries sees later ones
    'attn_inverted_attention': Encoder,
    # and so does a projection of all tokens as one
    'attn_orthog_projected_values_over_sequence': Encoder,
    **{f'attn_linformer_{name}': Encoder for name in ('k', 'max_len', 'share', 'proj')},
    'orthog_residual_over_sequence': Encoder,
    'two_stream': Encoder,
    'conv_causal': Encoder,  # without it a causal stack is refused
}
# what a flag of the model needs of the stack
OF_THE_STACK: dict[str, Values] = {name: dict(pre_and_post_norm=True) for name in ('looped', 'max_looped_steps')}
OF_THE_STACK['per_layer_emb'] = dict(per_layer_emb_dim=4)
# what is refused without the flag
ONLY_WITH = {'gated_multi_residual': ('residual_fn_kwargs',), 'attn_aft': ('attn_aft_max_len',)}
ONLY_WITH |= {'attn_aft_max_len': ('attn_aft',), 'attn_num_clusters': ('attn_cluster', 'attn_cluster_size')}
ONLY_WITH |= {'attn_linformer_max_len': ('attn_linformer_k',), 'attn_linformer_k': ('attn_linformer_max_len',)}
ONLY_WITH['attn_adaptive_span'] = ('attn_max_span',)
ONLY_WITH |= {name: ('custom_layers',) for name in ('recurrent_module', 'recurrent_kwargs')}
ONLY_WITH |= {'attn_cluster_blocks': ('attn_sinkhorn_sort',)}
# settled by the stack: how it is switched on there
THROUGH_THE_STACK: dict[str, Values] = {
    'attn_learned_value_residual_mix': dict(add_value_residual=True),
    'attn_xl_rel_pos_untied': dict(xl_rel_pos=True),
    'attn_tupe_pos': dict(tupe_pos=True, tupe_cls_first=True),
    'attn_xl_rel_segments': dict(xl_rel_segments=True),
    'attn_rotate_num_heads': dict(rotary_pos_emb=True, rotate_num_heads=2),
    'attn_knn_mem': dict(knn_mem_layers=(0, 1), knn_mem_size=6, knn_mem_topk=2),
    'attn_rotary_factor': dict(rotary_pos_emb=True, rotary_scaling=dict(kind='yarn', factor=4.0, length=8)),
    'attn_qkv_receive_diff_residuals': dict(num_residual_streams=2, qkv_receive_diff_residuals=True),
    'attn_kv_from': dict(attn_kv_from=(None, 0)),
    'attn_head_dims': dict(attn_head_dims=PerLayer((8, 8, 8, 8), (5, 3, 4, 9))),
    # sizes that a switch cannot do without
    'attn_dim_latent_q': dict(attn_use_latent_q=True, attn_dim_latent_q=5),
    'attn_dim_latent_kv': dict(attn_use_latent_kv=True, attn_dim_latent_kv=5),
}
# a second value worth a case of its own
FURTHER_EXAMPLES: dict[str, tuple[Any, ...]] = {
    'attn_kv_heads': (1,),
    'attn_entmax_alpha': (1.3,),
    'attn_hybrid_module': ('ssm',),
    'attn_dconv_kernel_size': (1, 4),
    'attn_aft': ('full', 'simple', 'conv'),
    'attn_linformer_share': ('headwise', 'layerwise'),
    'attn_linformer_proj': ('mean', 'max'),
    'attn_kernel': ('favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'),
    'attn_kernel_update': ('delta',),
    'scale_residual': (0.5,),
    'laurel_kind': ('gemma3n',),
    'hyper_conn_residual_mix': ('mhc',),
    'per_layer_emb': (True,),
    'depth_scale_residual': (0.5,),
    'num_residual_streams': (3,),
    'shift_tokens': (2, (1, 0, 0, 2)),
    'layer_dropout': ((0.0, 0.5, 0.0, 0.5),),
    'attn_max_attend_past': (0, (2, 4)),
    'attn_adaptive_span': ('dynamic',),
    'attn_max_attend_future': ((0, 2),),
    'attn_disentangled': (dict(span=4, max_distance=6, terms=['c2p'], share=False, norm=False),),
    'attn_qkv_bias': ('qv',),
    'attn_softmax_scale': ((0.4, 2.0),),
    'attn_qk_head_norm': ('layer',),
    'attn_qk_norm_scale': ('learned',),
    'attn_value_head_norm': ('layer',),
    'attn_query_temperature': ((None, dict(scale=0.5, floor=3, offset=0)),),
    'attn_sparse_topk': (1, 50),
    'attn_num_mem_kv': ((1, 3),),
    'attn_moba_block': (1,),
    'attn_moba_topk': (1, 50),
    'ff_moe_kind': ('topk_softmax', 'sqrtsoftplus'),
    'sandwich_coef': (2,),
    'recurrent_module': (
        'ssm',
        'short_conv',
        'gated_delta',
        'kda',
        'gla',
        'lightning',
        'mamba2',
        'mamba',
        'rg_lru',
        'mlstm',
    ),
    'parallel_block': ('shared',),
    'layers_execute_order': ((0, 1, 1, 0),),
    'rotary_scaling': (dict(kind='linear', factor=4.0), dict(kind='proportional', partial=0.5)),
    'rotary_interpolation_factor': (-1.0,),
    'attn_differential': ('v2',),
    'rotary_layers': ((dict(theta=50.0, scaling=dict(kind='yarn', factor=4.0, length=8)), True),),
}


def needed(cls: type[Feature], name: str) -> Values:
    """The flag with its example, and the other flags of its level that it needs."""
    flag = cls.flags[name]
    values = {**{n: f.default for n, f in cls.flags.items()}, name: flag.example}
    switch = next(iter(cls.flags))
    is_on = name == switch or cls.is_on({**SETTINGS.get(name, {}), **values})
    by_switch = {} if is_on else {switch: cls.flags[switch].example}
    return {**by_switch, name: flag.example}


def flag_cases(catalogue: Iterable[type[Feature]], prefix: str, place: str, **rest: Any) -> Iterator[Case]:
    mark = 'continuous.' if rest.get('wrapper') is ContinuousTransformerWrapper else ''
    for cls in catalogue:
        for bare, flag in cls.flags.items():
            name = prefix + bare
            kind = KINDS.get(name, Decoder)
            base = Case(mark + name, name, kind=kind, default=flag.default, feature=cls, **rest)
            base = replace(base, stack=OF_THE_STACK.get(name, {}))
            if name in THROUGH_THE_STACK:
                yield replace(base, flag='', stack=THROUGH_THE_STACK[name])
                continue
            keywords = {**{prefix + n: v for n, v in needed(cls, bare).items()}, **SETTINGS.get(name, {})}
            keywords[name] = flag.example
            yield replace(base, **{place: keywords})
            for value in FURTHER_EXAMPLES.get(name, ()):
                text = str(value).replace(' ', '')
                yield replace(base, name=f'{mark}{name}={text}', **{place: {**keywords, name: value}})


# every flag of the token model and its stack, by the prefix that addresses it
LEVELS = ((ATTENTION, 'attn_'), (FEEDFORWARD, 'ff_'), (STACK, ''), (MODEL, ''))
ALL_FLAGS = [(prefix, name, cls) for level, prefix in LEVELS for cls in level for name in cls.flags]

FLAG_CASES = (
    *flag_cases(ATTENTION, 'attn_', 'stack'),
    *flag_cases(FEEDFORWARD, 'ff_', 'stack'),
    *flag_cases(STACK, '', 'stack'),
    *flag_cases(MODEL, '', 'model'),
    *flag_cases(CONTINUOUS, '', 'model', wrapper=ContinuousTransformerWrapper),
)


# cases of arguments: what a class declares itself


class Doubled(nn.Embedding):
    """A token embedding of a user's own."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * 2


def argument(name: str, value: Any, default: Any, place: str = 'stack', id: str = '', **rest: Any) -> Case:
    """A case of one argument; `stack`, `kind` and the like in `rest` is what it needs."""
    keywords = {**rest.pop(place, {}), name: value}
    return Case(id or f'{name}={value}', name, **{place: keywords}, default=default, **rest)


def of_model(name: str, value: Any, default: Any, **rest: Any) -> Case:
    return argument(name, value, default, place='model', **rest)


def of_vectors(name: str, value: Any, default: Any, **model: Any) -> Case:
    return of_model(name, value, default, id=f'continuous.{name}', wrapper=ContinuousTransformerWrapper, model=model)


CROSS, GATED = dict(cross_attend=True), dict(gate_residual=True)
ARGUMENT_CASES = (
    Case('plain'),
    Case('encoder', kind=Encoder),
    Case('prefix_decoder', kind=PrefixDecoder),
    Case('cross_attender', kind=CrossAttender),
    Case('causal', 'causal', dict(causal=True), kind=AttentionLayers, default=False),
    argument('cross_attend', True, False),
    argument('only_cross', True, False, stack=CROSS),
    argument('cross_attn_dim_context', 10, None, stack=CROSS),
    argument('cross_attn_num_mem_kv', 2, 0, stack=CROSS),
    argument('cross_attn_kv_heads', 1, None, stack=CROSS),
    argument('attn_dim_head', 6, 64),
    argument('heads', 2, 8),
    argument('attn_kv_heads', 2, None),
    argument('attn_one_kv_head', True, False),
    argument('attn_value_dim_head', 5, None),
    argument('attn_project_out', True, None, stack=dict(heads=1, attn_dim_head=16)),
    argument('attn_flash', True, None),
    argument('attn_flash', False, None),
    argument('ff_mult', 1.5, 4),
    argument('ff_dim_inner', 20, None),
    argument('ff_activation', 'relu2', None),
    argument('ff_activation', 'xielu', None),
    argument('ff_no_bias', True, False),
    argument('ff_dropout', 0.2, 0.0),
    argument('pre_norm', False, True),
    argument('pre_norm_has_final_norm', False, True),
    argument('norm_add_unit_offset', False, True),
    argument('disable_abs_pos_emb', True, None),
    argument('rel_pos_kwargs', dict(slopes=[0.5, 1.0, 1.5, 2.0]), None, stack=dict(alibi_pos_bias=True)),
    argument('residual_fn_kwargs', dict(scale_residual=True), None),
    *(
        argument('residual_fn_kwargs', dict(gate=name, pre_relu=True), None, stack=GATED, id=f'gate.{name}')
        for name in GATES
    ),
    of_model('emb_dim', 10, None),
    of_model('emb_dropout', 0.2, 0.0),
    of_model('l2norm_embed', True, False),
    of_model('project_emb', True, None),
    of_model('project_emb_bias', False, True, model=dict(emb_dim=10)),
    of_model('post_emb_norm_at', 'stream', 'embedding', model=dict(emb_dim=10, post_emb_norm=True)),
    of_model('logits_dim', 9, None),
    of_model('logits_bias', True, False),
    of_model('return_only_embed', True, False),
    of_model('token_emb', Doubled(TOKENS, 16), None, id='token_emb'),
    of_model('to_logits', nn.Linear(16, TOKENS), None, id='to_logits'),
    of_model('max_mem_len', 4, 0),
    of_model('shift_mem_down', 1, 0, model=dict(max_mem_len=4)),
    of_model('attn_z_loss_weight', 0.5, 1e-4),
    of_model('input_not_include_cache', True, False),
    of_model('max_seq_len', 0, LONGEST),
    Case('continuous', wrapper=ContinuousTransformerWrapper),
    Case('continuous.encoder', kind=Encoder, wrapper=ContinuousTransformerWrapper),
    of_vectors('dim_in', 16, None),
    of_vectors('dim_out', 3, None),
    of_vectors('project_in', nn.Linear(5, 16), None, dim_in=None),
    of_vectors('project_out', nn.Linear(16, 3), None, dim_out=None),
    of_vectors('max_mem_len', 4, 0),
    of_vectors('probabilistic', True, False),
    of_vectors('use_identity_if_same_dim', True, False, dim_in=16),
    of_vectors('max_seq_len', None, LONGEST),
)

# arguments without a case, and why
WITHOUT_CASE = {
    'dim': 'a size: every case has one',
    'depth': 'a size: every case has one',
    'num_tokens': 'a size: every case has one',
    'attn_layers': 'the stack: every case has one',
    'verbose': 'only about warnings: see test_flags',
    'attn_heads': 'settled by the stack: see `heads`',
    'attn_causal': 'settled by the stack: see `causal`',
    'attn_dim': 'settled by the stack',
    'attn_dim_context': 'settled by the stack: see `cross_attn_dim_context`',
    'ff_dim': 'settled by the stack',
    'ff_dim_out': 'settled by the stack',
    'attn_dim_out': 'a branch gives back the width of the stream',
    'conv_stem': 'there are fewer tokens than vectors: see test_continuous_wrapper and `frames` of test_wrapper_laws',
}

# cases of inputs

TURNING = dict(
    **LATENT_KV,
    **dict(attn_use_latent_q=True, attn_dim_latent_q=5, attn_dim_latent_rope=4, attn_latent_norm=True),
    **dict(attn_latent_bias=True, attn_kv_heads=2, attn_value_dim_head=5, rotary_pos_emb=True),
)
SHAW = dict(shaw_rel_pos=True, shaw_rel_values=True)
CHUNKS = dict(
    attn_sparse_pattern=({'pattern': 'block_local', 'block': 4}, None),
    attn_query_temperature=(None, dict(scale=0.5, floor=2)),
)
LINEAR = dict(attn_kernel='elu', attn_kernel_chunk=3)
INPUT_CASES = (
    Case('condition per row', stack=dict(use_adaptive_rmsnorm=True), inputs=('condition_per_row',)),
    Case('condition with layerscale', stack=dict(use_adaptive_rmsnorm=True, use_adaptive_layerscale=True)),
    Case('pos', inputs=('pos',)),
    Case('pos, rotary', stack=dict(rotary_pos_emb=True), inputs=('pos',)),
    Case('pos, xpos', stack=dict(rotary_xpos=True), inputs=('pos',)),
    Case('pos, layers turn otherwise', stack=dict(rotary_pos_emb=True, rotary_layers=(True, False)), inputs=('pos',)),
    Case('pos, alibi', stack=dict(alibi_pos_bias=True), model=dict(max_seq_len=0), inputs=('pos',)),
    Case('pos, T5', stack=dict(rel_pos_bias=True), inputs=('pos',)),
    Case('differential, alibi', stack=dict(attn_differential=True, alibi_pos_bias=True, attn_talking_heads=True)),
    Case('differential, key heads', stack=dict(attn_differential=True, attn_kv_heads=2, rotary_pos_emb=True)),
    Case('differential, sinks', stack=dict(attn_differential=True, attn_head_learned_sink=True, attn_num_mem_kv=2)),
    Case('pos, shaw', stack=SHAW, inputs=('pos',)),
    Case('shaw, further keys', stack=dict(**SHAW, attn_num_mem_kv=2, attn_head_learned_sink=True)),
    Case('shaw, key heads', stack=dict(**SHAW, attn_kv_heads=2, attn_value_dim_head=5)),
    Case('latents, absorbed', stack={**TURNING, 'attn_latent_bias': False, 'attn_latent_absorb': True}),
    Case('chunks, temperatures', stack=dict(**CHUNKS, rotary_pos_emb=True, rotary_layers=(True, False))),
    Case('pos, temperatures', stack=dict(**CHUNKS, rotary_pos_emb=True), inputs=('pos',)),
    Case('routing, rotary', stack=dict(**ROUTING, rotary_pos_emb=True)),
    Case('routing, balanced', stack=dict(**ROUTING, alibi_pos_bias=True), kind=Encoder),
    Case('linear, key heads', stack=dict(**LINEAR, attn_kv_heads=2, attn_value_dim_head=5)),
    Case(
        'linear, further keys', stack={**LINEAR, 'attn_kernel': 'favor', 'attn_num_mem_kv': 2, 'attn_add_zero_kv': True}
    ),
    Case(
        'linear, gates',  # so wide that sums of few waves are not near 0
        stack={**LINEAR, 'attn_kernel': 'rff', 'attn_rff_sigma': 2.0, 'attn_kernel_update': 'gate', 'attn_kv_heads': 2},
    ),
    Case('linear, delta', stack={**LINEAR, 'attn_kernel': 'dpfp', 'attn_kernel_update': 'delta', 'attn_num_mem_kv': 2}),
    Case('linear, normed', stack=dict(attn_kernel='favor', attn_qk_norm=True, attn_gate_values=True)),
    Case('linear, infused', stack=dict(**LINEAR, position_infused_attn=True), inputs=('pos',)),
    Case('linear, memory tokens', stack=LINEAR, model=dict(num_memory_tokens=2), inputs=('prepend_embeds',)),
    Case('linear, dense layers between', stack=dict(depth=3, attn_kernel=('elu', None, 'favor'))),
    Case(
        'slots of a context',
        stack=dict(**CROSS, cross_attn_linformer_k=3, cross_attn_linformer_max_len=11, cross_attn_kv_heads=2),
        inputs=('context_mask',),
    ),
    Case('free of attention, near', stack=dict(attn_aft='conv', attn_aft_window=2, attn_gate_values=True)),
    Case('global tokens, across', stack=dict(**CROSS, cross_attn_sparse_pattern=GLOBAL), inputs=('context_mask',)),
    Case('free of attention, across', stack=dict(**CROSS, cross_attn_aft='simple'), inputs=('context_mask',)),
    Case(
        'free of attention, memory tokens',
        stack=dict(attn_aft='local', attn_aft_max_len=40, attn_aft_window=2),
        model=dict(num_memory_tokens=2),
        inputs=('prepend_embeds',),
    ),
    Case('sinkhorn, key heads', stack=dict(**SINKHORN, attn_kv_heads=2, attn_value_dim_head=5, rotary_pos_emb=True)),
    Case('sinkhorn, memory tokens', stack=SORTING_NET, model=dict(num_memory_tokens=2), inputs=('prepend_embeds',)),
    Case('sinkhorn, both ways', stack=SINKHORN, kind=Encoder),
    Case('pos, dynamic bias', stack=dict(dynamic_pos_bias=True), model=dict(max_seq_len=0), inputs=('pos',)),
    Case('pos, memory tokens', stack=dict(rotary_pos_emb=True), model=dict(num_memory_tokens=2), inputs=('pos',)),
    Case('sum_embeds', inputs=('sum_embeds',)),
    Case('prepend_embeds', inputs=('prepend_embeds',)),
    Case('prepend_mask', inputs=('prepend_embeds', 'prepend_mask')),
    Case('prepend_embeds, rotary', stack=dict(rotary_pos_emb=True), inputs=('prepend_embeds',)),
    Case('prepend_embeds, shift_tokens', stack=dict(shift_tokens=1), inputs=('prepend_embeds',)),
    Case('prepend_embeds, memory tokens', model=dict(num_memory_tokens=2), inputs=('prepend_embeds',)),
    Case('continuous.prepend_embeds', inputs=('prepend_embeds',), wrapper=ContinuousTransformerWrapper),
    Case('continuous.sum_embeds', inputs=('sum_embeds',), wrapper=ContinuousTransformerWrapper),
    Case('context_mask', stack=CROSS, inputs=('context_mask',)),
    Case('context_pos', stack=dict(cross_attend=True, rotary_pos_emb=True), inputs=('context_pos',)),
    Case('attn_bias', inputs=('attn_bias',)),
    Case('attn_bias, alibi', stack=dict(alibi_pos_bias=True), inputs=('attn_bias',)),
    Case('in_attn_cond', inputs=('in_attn_cond',)),
    Case('in_attn_cond per row', inputs=('in_attn_cond_per_row',), stack=dict(learned_reinject_input_gate=True)),
    Case('in_attn_cond, streams', inputs=('in_attn_cond',), stack=dict(num_residual_streams=2)),
    Case('condition, streams', stack=dict(use_adaptive_layernorm=True, num_residual_streams=2, pre_norm=False)),
    Case('deep_embeds_and_ids', inputs=('deep_embeds_and_ids',)),
    Case('deep_embeds_and_ids, tied', inputs=('deep_embeds_and_ids',), stack=dict(weight_tie_layers=True)),
    Case('rotary_pos_emb, given', stack=dict(rotary_pos_emb=True), inputs=('rotary_pos_emb',)),
    Case('polar_pos_emb, given', stack=dict(polar_pos_emb=True), inputs=('polar_pos_emb',)),
    Case('pos, polar', stack=dict(polar_pos_emb=True), inputs=('pos',)),
    Case('pos, infused', stack=dict(position_infused_attn=True), inputs=('pos',)),
    Case('rotary, alibi', stack=dict(rotary_pos_emb=True, alibi_pos_bias=True)),
    Case('rotary, T5', stack=dict(rotary_pos_emb=True, rel_pos_bias=True)),
    Case('polar, dynamic bias', stack=dict(polar_pos_emb=True, dynamic_pos_bias=True)),
    Case('polar, further keys', stack=dict(polar_pos_emb=True, attn_num_mem_kv=2, attn_kv_heads=2)),
    Case('experts, sigmoid, shared', stack=dict(**EXPERTS, ff_moe_kind='sigmoid', ff_moe_groups=2, ff_moe_shared=1)),
    Case('experts, softmax of the best', stack=dict(**EXPERTS, ff_moe_kind='topk_softmax', ff_moe_router_bias=True)),
    Case('experts, plain layers between', stack=dict(depth=3, ff_moe_experts=(None, 3, None), ff_moe_shared=1)),
    Case('experts, bounded', stack=dict(ff_moe_experts=4, ff_glu=True, ff_swiglu_limit=0.5, ff_moe_bias=True)),
    Case('eps, rms', stack=dict(norm_eps=0.1, use_rmsnorm=True, branch_post_norm=True)),
    Case('side by side, cross', stack=dict(**CROSS, parallel_block='shared', norm_bias=True, norm_eps=0.1)),
    Case('pos, disentangled', stack=dict(attn_disentangled=dict(span=3, share=False)), inputs=('pos',)),
    Case(
        'disentangled, further keys',
        stack=dict(attn_disentangled=dict(span=3), attn_num_mem_kv=2, attn_kv_heads=2),
        kind=Encoder,
    ),
    Case('window on both sides', stack=dict(attn_max_attend_past=2, attn_max_attend_future=1), kind=Encoder),
    Case(
        'norms of heads, each',
        stack=dict(
            attn_qk_head_norm='layer', attn_qk_head_norm_shared=False, attn_qk_head_norm_bias=True, attn_kv_heads=2
        ),
    ),
    Case(
        'projections, further keys',
        stack=dict(attn_qkv_bias=True, attn_qk_proj_norm=True, attn_qkv_clip=1.0, attn_num_mem_kv=2, attn_kv_heads=2),
    ),
    Case('latents, turning', stack=TURNING),
    Case('latents, value residual', stack=dict(**LATENT_KV, add_value_residual=True)),
    Case('self_attn_kv_residuals', inputs=('self_attn_kv_residuals',)),
    Case('cross_attn_kv_residuals', stack=CROSS, inputs=('cross_attn_kv_residuals',)),
    Case('rotary_pos_emb, of a stack without any', inputs=('rotary_pos_emb',)),
    Case('self_attn_additional_kv', inputs=('self_attn_additional_kv',)),
    Case('additional_kv_mask', inputs=('self_attn_additional_kv', 'additional_kv_mask')),
    Case('detach_additional_kv', inputs=('self_attn_additional_kv', 'detach_additional_kv')),
    Case('additional kv, bottom', inputs=('self_attn_additional_kv', 'route_additional_kv_to_top')),
    Case(
        'additional kv, grouped', stack=dict(attn_kv_heads=2, alibi_pos_bias=True), inputs=('self_attn_additional_kv',)
    ),
)

# Combinations in which something failed once, with the number of the defect or the regression.
DEFECT_CASES = (
    Case('one head of another width', stack=dict(heads=1)),  # 23, F3
    Case('rotary, dynamic bias', stack=dict(rotary_pos_emb=True, dynamic_pos_bias=True)),  # 43, F5
    Case('polar, alibi', stack=dict(polar_pos_emb=True, alibi_pos_bias=True)),  # 43
    Case('polar, T5', stack=dict(polar_pos_emb=True, rel_pos_bias=True)),  # 43, F5
    Case('polar, key heads', stack=dict(polar_pos_emb=True, attn_kv_heads=2)),  # F2
    *(
        Case(f'rotary, heads of width {width}', stack=dict(rotary_pos_emb=True, attn_dim_head=width))  # F8, F9
        for width in (4, 5, 6)
    ),
    Case(
        'rotary, narrow heads and another base',  # F8
        stack=dict(rotary_pos_emb=True, attn_dim_head=5, rotary_base_rescale_factor=2.0),
    ),
    *(
        Case(f'views, {name}', stack=dict(num_residual_streams=2, qkv_receive_diff_residuals=True, **flags))
        for name, flags in {
            'shift_tokens': dict(shift_tokens=2),  # W14
            'further keys': dict(attn_num_mem_kv=2),  # F17
            'gates': dict(attn_gate_values=True),  # F17
            'gates of heads': dict(attn_gate_value_heads=True),  # F17
            'forget gates': dict(attn_data_dependent_alibi=True),  # F17
            'low rank': dict(attn_aggregated_residuals=True, attn_aggregated_residual_kwargs=dict(lora_rank=3)),  # F16
        }.items()
    ),
    Case(
        'streams of Gemma 3n',
        stack=dict(per_layer_emb_dim=3, num_residual_streams=3, altup=True, laurel_rank=2, laurel_kind='gemma3n'),
        model=dict(per_layer_emb=True, num_memory_tokens=1),
    ),
    Case('streams, reinjected', stack=dict(num_residual_streams=3, reinject_input=True)),  # F14
    Case('streams, condition', stack=dict(num_residual_streams=3, pre_norm=False, use_adaptive_rmsnorm=True)),  # F15
    Case('value residual, key heads', stack=dict(add_value_residual=True, attn_kv_heads=2)),  # F18, 20
    Case('value residual, one key head', stack=dict(add_value_residual=True, attn_one_kv_head=True)),  # F18
    Case('value residual, halves', stack=dict(add_value_residual=True, learned_value_residual_mix=False)),  # 12, 20
    Case('value residual, window', stack=dict(add_value_residual=True, attn_max_attend_past=2)),  # 15
    Case('further keys, rotary', stack=dict(attn_num_mem_kv=2, rotary_pos_emb=True)),  # 15
    Case('further keys, alibi', stack=dict(attn_num_mem_kv=2, alibi_pos_bias=True)),  # 15
    Case('zero key, one key head', stack=dict(attn_add_zero_kv=True, attn_one_kv_head=True)),  # 12
    Case('zero key, shift_tokens', stack=dict(attn_add_zero_kv=True, shift_tokens=2)),  # 15
    Case('shift_tokens, rotary', stack=dict(shift_tokens=2, rotary_pos_emb=True)),  # 12
    Case('rms of heads, rotary', stack=dict(attn_qk_rmsnorm=True, rotary_pos_emb=True)),  # 12
    Case(
        'cross, all residuals', stack=dict(**CROSS, shift_tokens=1, cross_residual_attn=True, residual_attn=True)
    ),  # 12
    Case('cross, value residual', stack=dict(**CROSS, cross_attn_num_mem_kv=1, add_value_residual=True)),  # 21
    Case('gated residual, post norm', stack=dict(gate_residual=True, pre_norm=False, scale_residual=True)),  # 12, 21
    Case(
        'mixed heads',  # 12, 21
        stack=dict(
            **dict(attn_pre_talking_heads=True, attn_post_talking_heads=True, attn_pre_scale_post_talking_heads=True),
            attn_head_scale=True,
        ),
    ),
    Case(
        'gates of every kind',  # 12
        stack=dict(attn_gate_values=True, attn_gate_value_heads=True, attn_head_scale=True, attn_on_attn=True),
    ),
    Case(
        'like PaLM, with further keys',  # 21
        stack=dict(
            **dict(rotary_pos_emb=True, attn_num_mem_kv=2, attn_qk_norm=True, attn_qk_norm_dim_scale=True),
            **dict(attn_gate_values=True),
        ),
    ),
    Case(
        'macaron, sandwich_norm',  # 12, 21
        stack=dict(macaron=True, sandwich_norm=True, use_layerscale=True, attn_on_attn=True, shift_tokens=1),
    ),
    Case(
        'conditioned by a network',  # 21
        stack=dict(
            **dict(use_adaptive_layernorm=True, use_adaptive_layerscale=True, dim_condition=5),
            **dict(adaptive_condition_mlp=True),
        ),
    ),
    Case('tied, shift_tokens', stack=dict(weight_tie_layers=True, shift_tokens=1, residual_attn=True)),  # 25
)

# inputs of single layers, which the stack gives them
GIVEN_BY_THE_STACK = {
    'deep_embed',
    'prev_attn',
    'value_residual',
    'rel_pos',
    'mem',
    'mem_mask',
    'context_rotary_pos_emb',
    'linformer_table',
}
GIVEN_BY_THE_STACK |= {'kept_angles', 'disentangled_table', 'xl_vectors', 'untied_scores'}
# inputs that go with a single layer, or a single row: see test_scores
GIVEN_BY_THE_STACK |= {'kv_input_residual', 'additional_key_values', 'additional_key_value_mask', 'infused_positions'}
GIVEN_BY_THE_STACK |= {'q_delta', 'k_delta', 'v_delta', 'o_delta'}
GIVEN_BY_THE_STACK |= {'attn_delta', 'flash_pack_seq_kwargs', 'flash_pack_seq_context_kwargs'}
# how far back queries see in segments: see test_segments
GIVEN_BY_THE_STACK |= {'mem_same_length'}
# what the model tells its stack: see test_layer_positions
GIVEN_BY_THE_STACK |= {'token_pos'}
# what a loss asks for: see test_layer_losses
GIVEN_BY_THE_STACK |= {'return_block_outputs', 'return_block_readouts'}
# of a single layer: see test_head_dims
GIVEN_BY_THE_STACK |= {'value_context'}
# in which order tokens are told: see test_permutation
GIVEN_BY_THE_STACK |= {'order_of_queries', 'order_of_keys', 'stream_ranks', 'stream_at'}
# which tokens no pattern counts: see test_patterns_of_rows
GIVEN_BY_THE_STACK |= {'outside_pattern'}
# several documents in a row: see test_documents
GIVEN_BY_THE_STACK |= {'document_ids'}
# what datastores keep: see test_datastore
GIVEN_BY_THE_STACK |= {'ff_input_of'}
# who leaves early: see test_exits
GIVEN_BY_THE_STACK |= {'exits'}
# what a layer gets of the stores of earlier segments, and what a call does with them: see test_knn_memory
GIVEN_BY_THE_STACK |= {'knn_store', 'knn_reset', 'return_knn_mems'}
# what a call of a model does, rather than what it reads: see test_model_features
GIVEN_BY_THE_STACK |= {'recycle_steps', 'looped_steps', 'max_looped_steps', 'looped_pred_all_logits'}
GIVEN_BY_THE_STACK |= {'looped_inference', 'looped_exit_prob_threshold', 'return_next_embed_pred', 'return_pooled'}
GIVEN_BY_THE_STACK |= {'return_stream', 'return_mtp'}  # see test_mtp
GIVEN_BY_THE_STACK |= {'transform_token_embeds', 'transform_block_inputs', 'transform_attn_inputs'}


def in_cross_attention(case: Case) -> Case:
    on = dict.fromkeys((case.feature, *(cls for prefix, name, cls in ALL_FLAGS if prefix + name in case.stack)))
    gone = [cls for cls in on if cls.refuses.get('cross-attention') and cls in ATTENTION]
    own = {f'cross_attn_{n}': cls.flags[n].default for cls in gone for n in cls.switches or tuple(cls.flags)[:1]}
    own |= {'cross_attn_kernel_update': 'sum'} if 'attn_kernel_update' in case.stack else {}  # the others have an order
    return replace(case, name=f'cross, {case}', stack={**case.stack, **CROSS, **own}, inputs=('context_mask',))


CASES = (*ARGUMENT_CASES, *INPUT_CASES, *DEFECT_CASES, *FLAG_CASES)
CROSS_CASES = tuple(in_cross_attention(case) for case in FLAG_CASES if case.flag.startswith('attn_'))
BY_NAME = {case.name: case for case in (*CASES, *CROSS_CASES)}


# models


def build(case: Case, seed: int = 0) -> Wrapper:
    """The model of a case with the values it starts from, in float32."""
    torch.default_generator.manual_seed(seed)
    stack = case.kind(**{**STACK_SIZES, **case.stack})
    return case.wrapper(attn_layers=stack, **{**MODEL_SIZES[case.wrapper], **copy.deepcopy(case.model)})


def randomise(net: nn.Module, seed: int = 0, scale: float = 0.4) -> nn.Module:
    """In evaluation mode, with every parameter drawn anew by its name: zeros, ones and identities hide mistakes."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
    return net.eval()


@functools.cache
def model_of(case: Case) -> Wrapper:
    """The randomised model of a case, in float64. Shared between tests: copy it before changing it.

    The first of them may ask in inference mode, whose tensors would lose gradients and tangents in the others.
    """
    with torch.inference_mode(False):
        return randomise(build(case).double())


def replica_of(net: nn.Module, factor: float) -> nn.Module:
    """As `nn.DataParallel` makes one for a device: without parameters, with tensors made from them in their place."""
    copies = {module: module._replicate_for_data_parallel() for module in net.modules()}
    tensors = {t: t * factor for t in net.parameters()} | {t: t.clone() for t in net.buffers()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            if child is not None:
                setattr(replica, name, copies[child])
        replica._parameters = {n: None for n, t in module._parameters.items() if t is None}
        replica._former_parameters = {n: tensors[t] for n, t in module._parameters.items() if t is not None}
        own = {n: tensors[t] for n, t in module._buffers.items() if t is not None}
        for name, t in {**replica._former_parameters, **own}.items():
            setattr(replica, name, t)
    return copies[net]


def one_of_each(cases):
    """The first case of every feature, and every case of no feature."""
    return list({case.feature or case.name: case for case in reversed([*cases])}.values())[::-1]


FIRST = {case.name for case in one_of_each(CASES)}


def others_nightly(cases, inputs_once=False):
    """As parameters of a test: other arguments of a feature, and its part in cross attention, are for the night.

    `inputs_once`: and so are inputs that came before, beside other flags.
    """
    cases = list(cases)
    first = {case.inputs: case.name for case in reversed(cases) if case in INPUT_CASES}
    again = {case.name for case in INPUT_CASES} - {*first.values()} if inputs_once else ()
    now = [case.name in FIRST and case.name not in again for case in cases]
    return [c if own else pytest.param(c, marks=pytest.mark.nightly) for c, own in zip(cases, now, strict=True)]


@functools.cache
def refused(case: Case) -> str | None:
    """The words with which a case is refused, or None."""
    try:
        model_of(case)
    except ConfigError as error:
        return str(error)
    return None


def shallow(case: Case) -> Case:
    """The same in one block, where what is on trial is inside of a branch."""
    one = case.with_keywords(depth=1)
    return one if case.name.startswith(('attn_', 'ff_')) and refused(one) is None else case


# inputs


def ids(batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Ids from the first half of the vocabulary. No two in a row are equal: ties are broken by rounding."""
    drawn = [torch.randperm(TOKENS // 2, generator=generator)[:length] for _ in range(batch)]
    return torch.stack(drawn)


def inputs_for(net: Wrapper, case: Case, batch: int = 3, length: int = 7, seed: int = 0) -> Values:
    """The inputs of a forward call, `x` and those that the model or the case asks for."""
    generator = torch.Generator().manual_seed(seed)
    stack = net.attn_layers

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    vectors = not isinstance(net, TransformerWrapper)
    width_in = getattr(getattr(net, 'project_in', None), 'in_features', stack.dim)
    inputs = {'x': normal(batch, length, width_in) if vectors else ids(batch, length, generator)}
    takes = {name for owner in (net, stack) for feature in owner.features.active for name in feature.call_inputs}
    width = case.stack.get('cross_attn_dim_context') or stack.dim
    builders: dict[str, Callable[[], Any]] = {
        'condition': lambda: normal(batch, length, case.stack.get('dim_condition', stack.dim)),
        'condition_per_row': lambda: normal(batch, case.stack.get('dim_condition', stack.dim)),
        'embed_ids': lambda: {
            name: torch.randint(0, size, (batch, length), generator=generator)
            for name, size in case.model.get('embed_num_tokens', {}).items()
        },
        'sum_embeds': lambda: normal(batch, length, net.emb_dim),
        'segment_ids': lambda: torch.randint(0, 2, (batch, length), generator=generator),
        'pos': lambda: torch.randint(1, 4, (batch, length), generator=generator).cumsum(dim=-1),
        'prepend_embeds': lambda: normal(batch, PREFIX, net.emb_dim),
        'prepend_mask': lambda: torch.tensor([False, True]).repeat(batch, 1),
        'context': lambda: normal(batch, CONTEXT, width),
        'context_mask': lambda: torch.arange(CONTEXT) < torch.arange(1, batch + 1)[:, None],
        'context_pos': lambda: torch.randint(0, 9, (batch, CONTEXT), generator=generator),
        'attn_bias': lambda: normal(batch, stack.attn_heads, length, length),
        'rotary_pos_emb': lambda: (stack.rotary_pos_emb or RotaryEmbedding(8))(torch.arange(length) * 3),
    }
    shape = next((m.shape for m in stack.modules() if isinstance(m, Attention)), None)
    builders |= {
        'polar_pos_emb': lambda: (stack.polar_pos_emb(torch.arange(length) * 3)[0], stack.polar_pos_emb.learned_bias),
        'self_attn_kv_residuals': lambda: normal(batch, length, stack.dim),
        'cross_attn_kv_residuals': lambda: normal(batch, CONTEXT, width),
        'self_attn_additional_kv': lambda: (
            (normal(batch, shape.heads, 2, shape.dim_head), normal(batch, shape.heads, 2, shape.dim_value)),
        ),
        'additional_kv_mask': lambda: torch.arange(2) < torch.arange(batch)[:, None],
        'detach_additional_kv': lambda: True,
        'route_additional_kv_to_top': lambda: False,
    }
    builders |= {
        'in_attn_cond': lambda: normal(batch, length, stack.dim),
        'in_attn_cond_per_row': lambda: normal(batch, stack.dim),
        'deep_embeds_and_ids': lambda: (
            normal(9, [stack.layer_types[i] for i in stack.layers_execute_order].count('f'), stack.dim),
            torch.randint(0, 9, (batch, length), generator=generator),
        ),
    }
    stores = next((f for f in stack.features.active if 'knn_mems' in f.call_inputs), None)
    counts = torch.tensor([6, 0, 4]).repeat(batch)[:batch]
    builders['knn_mems'] = lambda: tuple(
        (normal(batch, shape.kv_heads, 6, shape.dim_head), normal(batch, shape.kv_heads, 6, shape.dim_value), counts)
        for _ in (at for at in stack.layers_execute_order if at in stores.at)
    )
    wanted = [name for name in ('condition', 'embed_ids') if name in takes]
    wanted += ['knn_mems'] if stores is not None else []
    wanted += ['segment_ids'] if 'xl_rel_segments' in case.keywords or 'attn_xl_rel_segments' in case.keywords else []
    in_front = {'num_memory_tokens', 'use_cls_token', 'prepend_embeds'} & set(case.keywords)
    if 'condition' in takes and (in_front or 'condition_per_row' in case.inputs):
        wanted[0] = 'condition_per_row'
    wanted += ['context'] if stack.cross_attend else []
    wanted += [name for name in case.inputs if name in builders and name not in wanted]
    inputs |= {name.removesuffix('_per_row'): builders[name]() for name in wanted}
    return inputs


# how inputs are cut; ids and vectors count tokens along axis 1
PER_TOKEN = (
    'pos_vectors',
    'segment_ids',
    'x',
    'sum_embeds',
    'embed_ids',
    'deep_embeds_and_ids',
    'self_attn_kv_residuals',
)
# tables over the keys, the same for all rows
TABLES = ('rotary_pos_emb', 'polar_pos_emb')


def each_of(name: str, function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`function` of every tensor of an input that has rows; tables have none."""
    if name == 'deep_embeds_and_ids':
        return value[0], function(value[1])
    if name == 'polar_pos_emb':
        return function(value[0]), value[1]
    return each_tensor(function, value)


def each_tensor(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, dict):
        return {name: each_tensor(function, v) for name, v in value.items()}
    if isinstance(value, tuple):
        return tuple(each_tensor(function, v) for v in value)
    return function(value) if torch.is_tensor(value) else value


def is_per_token(name: str, value: Any) -> bool:
    return name in PER_TOKEN or (name in ('condition', 'in_attn_cond') and value.ndim == 3)


def tokens(inputs: Values, start: int, stop: int, only_new: bool = False) -> Values:
    """The inputs of a call whose new tokens are `start` to `stop`; those before come again unless `only_new`."""
    cut = {}
    for name, value in inputs.items():
        if is_per_token(name, value):
            value = each_of(name, lambda t: t[:, start if only_new else 0 : stop], value)
        elif name in ('pos', 'mask'):
            value = value[:, :stop]
        elif name == 'attn_bias':
            value = value[..., start:stop, :stop]
        elif name in TABLES:
            value = each_of(name, lambda t: t[:, :stop], value)
        cut[name] = value
    return cut


def rows(inputs: Values, index: Any) -> Values:
    """The inputs of some rows of the batch."""
    index = torch.as_tensor(index)
    return {
        name: value if name in TABLES else each_of(name, lambda t: t[index], value) for name, value in inputs.items()
    }


def changed(inputs: Values, where: Tensor, seed: int = 99) -> Values:
    """Other content for the tokens marked in `where` (b n)."""
    generator = torch.Generator().manual_seed(seed)

    def other(t: Tensor, step: int) -> Tensor:
        if t.is_floating_point():
            return torch.randn(t.shape, generator=generator, dtype=t.dtype)
        return t + step if step > 1 else (t + 1) % (int(t.max()) + 1)

    def replaced(name: str, value: Any) -> Any:
        step = TOKENS // 2 if name == 'x' else 1
        return each_of(
            name, lambda t: torch.where(where if t.ndim == 2 else where.unsqueeze(-1), other(t, step), t), value
        )

    return {n: replaced(n, v) if is_per_token(n, v) else v for n, v in inputs.items()}


def padded(net: Wrapper, inputs: Values, left: int, right: int, seed: int = 5) -> Values:
    """The inputs with tokens of arbitrary content on both sides."""
    generator = torch.Generator().manual_seed(seed)

    def filled(t: Tensor) -> Tensor:
        def side(count: int) -> Tensor:
            shape = (t.shape[0], count, *t.shape[2:])
            if t.is_floating_point():
                return torch.randn(shape, generator=generator, dtype=t.dtype)
            return t[:, :count] if t.max() < TOKENS // 4 else t[:, :count] + TOKENS // 2

        return torch.cat((side(left), t, side(right)), dim=1)

    wider = {n: each_of(n, filled, v) if is_per_token(n, v) else v for n, v in inputs.items()}
    if 'pos' in inputs:
        pos = inputs['pos']
        wider['pos'] = torch.cat((pos[:, :1].expand(-1, left), pos, pos[:, -1:].expand(-1, right)), dim=1)
        tables = 'axial_abs_pos_emb', 'per_layer_abs_pos_emb'
        counts = net.pos_emb is not no_positions or any(
            flags.get(name) for flags in (net.config, net.attn_layers.config) for name in tables
        )
        wider['pos'] += left if counts else 0  # a table counts from the first real token
    for name in set(TABLES) & set(inputs):
        wider[name] = each_of(
            name,
            lambda t: torch.cat((t[:, :1].expand(-1, left, -1), t, t[:, :1].expand(-1, right, -1)), dim=1),
            inputs[name],
        )
    if 'attn_bias' in inputs:
        wider['attn_bias'] = nn.functional.pad(inputs['attn_bias'], (left, right, left, right), value=0.3)
    return wider


# runs


def is_pooled(net: Wrapper) -> bool:
    """Whether the output is read from the whole sequence, and has no axis of tokens."""
    pools = net.features.by_stage.get('pool', ())
    by_attention = net.attn_layers.sees_future and getattr(net, 'to_logits', None) is not None  # else beside the output
    return any(by_attention or 'attn_pool' not in feature.flags for feature in pools)


def as_one(net: Wrapper, out: Any) -> Tensor:
    """An output as one tensor, batch first: several heads, or mean and variance, stand last."""
    if isinstance(out, tuple):
        return torch.stack(out, dim=-1)
    return out.movedim(0, -1) if getattr(net, 'probabilistic', False) else out


def run(net: Wrapper, inputs: Values, **options: Any) -> Any:
    """The output as one tensor; with `return_intermediates` also those."""
    out = net(**inputs, **options)
    if options.get('return_intermediates'):
        return as_one(net, out[0]), out[1]
    return as_one(net, out)


def per_token(net: Wrapper, inputs: Values, **options: Any) -> Tensor:
    """An output per token, without prepended ones; of a model that pools them, what it pools."""
    out, trace = run(net, inputs, return_intermediates=True, **options)
    out = trace.last_layer_hiddens if is_pooled(net) else out
    return out[:, out.shape[1] - inputs['x'].shape[1] :]


def weighted(out: Tensor) -> Tensor:
    """A scalar of an output with a gradient for each entry, different in sign and size."""
    return (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype, device=out.device).view_as(out).sin()).sum()


def compiled_step_law(case: Case) -> None:
    """A training step is one compiled graph, with the gradients of the step that is not compiled."""
    torch._dynamo.reset()
    net = copy.deepcopy(model_of(case)).train()
    inputs, parameters = inputs_for(net, case), list(net.parameters())
    wanted = torch.autograd.grad(weighted(net(**inputs)), parameters, allow_unused=True)
    graph = torch.compile(net, fullgraph=True, backend='aot_eager')
    found = torch.autograd.grad(weighted(graph(**inputs)), parameters, allow_unused=True)
    assert any(grad is not None for grad in wanted)
    for grad, other in zip(wanted, found, strict=True):
        if grad is not None:
            assert_close(other, grad, 'gradient')


def gradients(net: Wrapper, inputs: Values, **options: Any) -> dict[str, Tensor | None]:
    """The gradient of every parameter, None where there is none."""
    names, parameters = zip(*net.named_parameters(), strict=True)
    loss = weighted(run(net, inputs, **options))
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def sweep(check, cases):
    """All cases, or those named on the command line: what fails, in a line each."""
    failed = []
    for case in [BY_NAME[name] for name in sys.argv[1:]] or cases:
        try:
            check(case)
        except Exception as error:
            failed.append(case.name)
            print(case.name, str(error).split('\n')[:3], sep=' | ')
    print(f'{len(failed)} fail: {failed}')

"""Inputs and backends of the attention kernel: L2 distances, LASER, collaborating heads, packed documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import can_read_values
from x_transformers.core.modes import at_least_float, dtype_of_products, to_float
from x_transformers.core.rows import BlockwiseTerm
from x_transformers.features.documents import TellsDocuments
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.residuals import TokenShift
from x_transformers.features.rotary import RotaryPositions
from x_transformers.features.scores import softclamp
from x_transformers.flags import Check, ConfigError, Input, flag, format_value, positive, warn_once

Heads = tuple[Tensor, Tensor, Tensor]
ONE_KEY = 'all heads share one key projection'


class L2Distance(AttentionFeature):
    """Use the negative squared L2 distance between query and key as score, instead of their dot product.

    -|q - k|^2 = [2q, |q|^2, -1] . [k, -1, |k|^2]          a dot product, so that every kernel can be used
    """

    paper = 'The Lipschitz Constant of Self-Attention, arXiv:2006.04710'
    l2_distance = flag(False, 'use negative squared L2 distances as scores')
    tp_shards = {}

    def pre_kernel(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        q, k = qk
        part = 256.0 if dtype_of_products(q) == torch.float16 else 1.0  # squares may be beyond the range of float16
        q_norm, k_norm = ((to_float(t).square().sum(-1, keepdim=True) / part).to(t.dtype) for t in qk)
        q = torch.cat((2 * q, q_norm, torch.full_like(q_norm, -part)), dim=-1)
        return q, torch.cat((k, torch.full_like(k_norm, -part), k_norm), dim=-1)


class Laser(AttentionFeature):
    """LASER: attend to exponentials of the values:  log(A exp(s tanh(v / s))).

    Computed in float32 if the values are in half precision. A query whose keys are all masked gets zeros.
    """

    paper = 'LASER: Attention with Exponential Transformation, arXiv:2411.03493'
    laser = flag(False, 'attend to exponentials of the values (LASER)')
    laser_softclamp_value = flag(15.0, 'soft bound s of the values, before the exponential', positive, example=2.0)
    tp_shards = {}

    def pre_attention(self, qkv: Heads, call: Any) -> Heads:
        own = call.ctx(self)
        own.dtype, own.keys = qkv[2].dtype, qkv[2].shape[-2]
        dtype = at_least_float(qkv[2].dtype)
        call.full_precision = dtype != qkv[2].dtype
        q, k, v = (t.to(dtype) for t in qkv)
        return q, k, softclamp(v, self.laser_softclamp_value).exp()

    def post_attention(self, out: Tensor, call: Any) -> Tensor:
        out = out.clamp(min=1e-20).log().to(call.ctx(self).dtype)
        # a zero key that joined behind the exponential is nothing to see
        has_visible_key = call.has_visible_in_last(call.ctx(self).keys)
        return out if has_visible_key is None else out.masked_fill(~has_visible_key, 0.0)


class CollabHeads(AttentionFeature):
    """All heads share one query and one key projection, whose channels each head reweights:  q_h = (x Wq) * mixing_h"""

    paper = 'Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362'
    collab_heads = flag(False, 'share one query and one key projection between heads, with channel weights per head')
    collab_compression = flag(
        0.3, 'width of the shared projection, as a fraction of heads * dim_head', positive, example=0.5
    )
    stored_as = {'mixing': 'collab_mixing'}
    clashes = {
        **dict.fromkeys(('num_mem_kv', 'qk_norm', 'qk_rmsnorm', 'k_rmsnorm', 'qk_head_norm'), ONE_KEY),
        **dict.fromkeys(('latent_rope_subheads', 'dim_latent_rope'), ONE_KEY),
    }
    refuses = {'several devices': 'heads share one projection'}

    def resolve_sizes(self, widths: Any) -> Any:
        shape = self.owner.shape
        widths.query_heads = widths.key_heads = 1
        widths.dim_key = int(self.collab_compression * shape.heads * shape.dim_head)
        if widths.dim_key < 1:
            raise ConfigError(
                f'`collab_compression` got {self.collab_compression}, '
                f'which leaves nothing of {shape.heads * shape.dim_head} features'
            )
        return widths

    def setup(self, owner: Any) -> None:
        if getattr(owner, 'rotate_num_heads', None) not in (None, owner.shape.heads):
            raise ConfigError('`collab_heads` cannot be combined with `rotate_num_heads`: all heads share one key')
        self.mixing = nn.Parameter(torch.randn(owner.shape.heads, owner.dim_key))

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        for name in ('polar_pos_emb', 'additional_key_values', 'rotary_pos_emb'):
            given = call.inputs.get(name)
            turns = name == 'rotary_pos_emb' and given is not None and given[0].shape[-1] <= self.owner.dim_key
            if given is not None and not turns:
                raise ValueError(
                    f'`collab_heads` cannot be combined with this `{name}`: its queries and keys have '
                    f'{self.owner.dim_key} features, which `collab_compression` settles'
                )
        return q * self.mixing.unsqueeze(1), k, v


# kernels

BACKENDS = {
    'enable_flash': 'FLASH_ATTENTION',
    'enable_math': 'MATH',
    'enable_mem_efficient': 'EFFICIENT_ATTENTION',
    'enable_cudnn': 'CUDNN_ATTENTION',
}
ALL_BACKENDS = dict(enable_flash=True, enable_math=True, enable_mem_efficient=True)
a_choice_of_backends = Check(
    f'a dict of {", ".join(BACKENDS)}, at least one of them True',
    lambda value: isinstance(value, Mapping) and value.keys() <= BACKENDS.keys() and any(value.values()),
    'Mapping[str, bool]',
)


class SDPKwargs(AttentionFeature):
    """Backends of `torch.nn.functional.scaled_dot_product_attention` that the fused kernel may use."""

    attend_sdp_kwargs = flag(
        ALL_BACKENDS, 'allowed backends of the fused kernel', a_choice_of_backends, example=dict(enable_math=True)
    )
    sets_on_module = ('sdp_backends',)
    training_only = True
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if owner.flash is False:
            warn_once('`attend_sdp_kwargs` has no effect with `flash=False`: the eager kernel has no backends')
        owner.sdp_backends = tuple(BACKENDS[name] for name, wanted in self.attend_sdp_kwargs.items() if wanted)


class Onnxable(AttentionFeature):
    """Accepted without effect: the causal mask is always computed by comparing positions, which ONNX supports."""

    onnxable = flag(False, 'accepted without effect: the causal mask can always be exported')
    sets_on_module = ('onnxable',)
    training_only = True
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        owner.onnxable = True


# packed documents

PACKED = ('cu_seqlens_q', 'cu_seqlens_k', 'max_seqlen_q', 'max_seqlen_k')


def document_ids(boundaries: Tensor, length: int) -> Tensor:
    """Return which document each token is of, (n,), from where they begin and end:  [0, 3, 7] -> 0 0 0 1 1 1 1"""
    return torch.bucketize(torch.arange(length, device=boundaries.device), boundaries, right=True)


def check_packed(packed: Any, name: str, rows: int, keys: int, batch: int) -> None:
    """Refuse what does not describe one row of documents."""
    if not isinstance(packed, Mapping) or not packed.keys() <= set(PACKED):
        raise TypeError(f'`{name}` must be a dict of {", ".join(PACKED)}, got {format_value(packed)}')
    both: Any = [packed.get('cu_seqlens_q'), packed.get('cu_seqlens_k')]
    if not all(torch.is_tensor(t) and t.ndim == 1 and not t.is_floating_point() for t in both):
        raise ValueError(f'`{name}` needs `cu_seqlens_q` and `cu_seqlens_k`, where documents begin and end: [0, 3, 7]')
    if both[0].shape != both[1].shape:
        raise ValueError(
            f'`{name}` got {both[0].numel() - 1} documents of queries and {both[1].numel() - 1} of keys, '
            f'they must be equally many'
        )
    if batch != 1:
        raise ValueError(f'`{name}` describes one row of packed documents, the batch has {batch}')
    if not all(map(can_read_values, both)):
        return
    for t, length, words in ((both[0], rows, 'queries'), (both[1], keys, 'keys')):
        if int(t[0]) != 0 or int(t[-1]) != length or bool((t[1:] < t[:-1]).any()):
            raise ValueError(
                f'`{name}` must rise from 0 to {length}, '
                f'with all that stands in front of the sequence, got boundaries {format_value(t.tolist())} of {words}'
            )


class PackedDocuments(TellsDocuments):
    """Several documents packed into one sequence, which do not attend to each other. Works on all devices and kernels.

    `flash_pack_seq_kwargs` of a call gives the boundaries.
    """

    flash_pack_seq = flag(False, 'accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call')
    call_inputs = {'flash_pack_seq_kwargs': Input(f'dict of {", ".join(PACKED)}')}
    clashes = {
        'inverted_attention': 'its softmax over queries would span all documents',
        'hybrid_module': 'it would run across documents',
    }
    training_only = True

    def setup(self, owner: Any) -> None:
        if owner.flash is False:
            raise ConfigError('`flash_pack_seq` cannot be combined with `flash=False`: it packs for the fused kernel')

    def mask(self, call: Any) -> BlockwiseTerm | None:
        packed = call.inputs.get('flash_pack_seq_kwargs')
        if packed is None:
            return None
        if call.past is not None or call.memories:
            raise ValueError('`flash_pack_seq_kwargs` cannot be combined with a cache or memories: documents are whole')
        call.check_no_token_idx('flash_pack_seq_kwargs', 'they count queries in the order of the keys')
        check_packed(packed, 'flash_pack_seq_kwargs', call.q_len, call.keys, call.batch)
        if call.causal and call.q_len != call.keys:
            raise ValueError(f'`flash_pack_seq_kwargs` got {call.q_len} queries and {call.keys} keys of a causal layer')
        boundaries = (packed[f'cu_seqlens_{name}'].to(call.x.device) for name in 'qk')
        q, k = (document_ids(t, n) for t, n in zip(boundaries, (call.q_len, call.keys), strict=True))
        call.ctx(self).ids = q
        return BlockwiseTerm(
            lambda rows, keys: q[rows].unsqueeze(-1) == k[keys],
            entry=lambda: lambda b, h, i, j: q[i] == k[j],
            made_of=(packed['cu_seqlens_q'], packed['cu_seqlens_k']),
        )


class PackedInStack(StackFeature):
    """Pass the boundaries of packed documents to the attention layers; positions restart in each document."""

    call_inputs = {
        'flash_pack_seq_kwargs': Input(f'dict of {", ".join(PACKED)}, for the sequence'),
        'flash_pack_seq_context_kwargs': Input('dict of the same entries, with the keys of the context'),
    }
    training_only = True

    def setup(self, owner: Any) -> None:
        kinds = owner.layer_types
        packs = {
            kind: [bool(owner.flags_for(kind, n).get('flash_pack_seq')) for n in range(kinds.count(kind))]
            for kind in 'ac'
        }
        self.packs = {kind: any(each) for kind, each in packs.items()}
        if self.packs['a'] and not owner.features.find(RotaryPositions):
            raise ConfigError('`attn_flash_pack_seq` needs `rotary_pos_emb`: other positions run on across documents')
        if self.packs['a'] and owner.features.find(TokenShift):
            raise ConfigError('`attn_flash_pack_seq` cannot be combined with `shift_tokens`: it runs across documents')
        for kind, each in packs.items():
            if any(each) and not all(each):
                raise ConfigError(f'`{owner.written(kind, "flash_pack_seq")}` got {tuple(each)}, all layers must pack')

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        own, across = (call.inputs.get(name) for name in self.call_inputs)
        for kind, packed, name in (('a', own, 'flash_pack_seq_kwargs'), ('c', across, 'flash_pack_seq_context_kwargs')):
            if packed is None:
                continue
            if not self.packs[kind]:
                flags = ('attn_flash_pack_seq', 'cross_attend' if kind == 'c' else '')
                raise ValueError(f'`{name}` needs a stack with {" and ".join(f"`{f}=True`" for f in flags if f)}')
            if call.cache is not None or call.memories:
                raise ValueError(f'`{name}` cannot be combined with a cache or memories: documents are whole')
            hidden = [n for n in ('attn_mask', 'mask', 'context_mask') if n in call.shared[kind]]
            hidden = [n for n in hidden if kind == 'a' or n == 'context_mask']
            if hidden:
                raise ValueError(
                    f'`{name}` cannot be combined with `{hidden[0]}`: documents are packed without padding'
                )
            call.shared[kind]['flash_pack_seq_kwargs'] = packed
        if own is not None:
            check_packed(own, 'flash_pack_seq_kwargs', call.new_len, call.new_len, x.shape[0])
            begin = own['cu_seqlens_q'].to(x.device)
            number = document_ids(begin, call.new_len)
            starts, call.documents = begin[number - 1], number.unsqueeze(0)
            call.shared['a'].setdefault('pos', torch.arange(call.new_len, device=x.device) - starts)
        return x

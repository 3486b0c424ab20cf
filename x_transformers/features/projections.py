"""Projections of queries, keys and values: biases, clipping, norms, and the softmax scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.heads import HeadNorm
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import Check, boolean, flag, none, positive

Projected = tuple[Tensor, Tensor, Tensor]


def names_projections(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) == len(set(value)) and set(value) <= set('qkv')


class ProjectionBias(AttentionFeature):
    """Biases of all or some of the query, key and value projections. Initialized with zeros."""

    paper = 'BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356'
    qkv_bias = flag(
        False,
        "biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'",
        boolean | Check("some of the letters 'qkv'", names_projections, 'str'),
        example=True,
    )
    cuts = {}

    def setup(self, host: Any) -> None:
        for letter in self.qkv_bias if isinstance(self.qkv_bias, str) else 'qkv':
            projection = getattr(host, f'to_{letter}')
            projection.bias = nn.Parameter(torch.zeros(projection.out_features))


class ProjectionClip(AttentionFeature):
    """Clip the projected queries, keys and values:  min(max(x, -c), c)."""

    paper = 'MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838'
    qkv_clip = flag(None, 'bound c of the projected queries, keys and values', positive | none, example=0.5)
    cuts = {}

    def projected(self, qkv: Projected, call: Any) -> Projected:
        q, k, v = (t.clamp(-self.qkv_clip, self.qkv_clip) for t in qkv)
        return q, k, v


class ProjectionNorm(AttentionFeature):
    """RMS norm of queries and of keys over the channels of all heads together, before they are split into heads."""

    paper = '2 OLMo 2 Furious, arXiv:2501.00656'
    qk_proj_norm = flag(False, 'RMS norm of queries and keys, over all heads together')
    qk_proj_norm_eps = flag(
        None, 'eps of this norm; None: `norm_eps` of the stack, otherwise 1e-6', positive | none, example=0.5
    )
    qk_proj_norm_unit_offset = flag(
        None, 'store the norm weights as weight - 1; None: same as the stack', boolean | none, example=False
    )
    clashes = {'latent_rope_subheads': 'some of its key heads come from another projection'}
    stored_as = {'q_norm': 'q_proj_norm', 'k_norm': 'k_proj_norm'}
    uncut = 'it normalizes all heads together'

    def setup(self, host: Any) -> None:
        options = dict(eps=self.qk_proj_norm_eps, unit_offset=self.qk_proj_norm_unit_offset)
        self.q_norm = HeadNorm('rms', (host.to_q.out_features,), **options)
        self.k_norm = HeadNorm('rms', (host.to_k.out_features,), **options)

    def projected(self, qkv: Projected, call: Any) -> Projected:
        q, k, v = qkv
        return self.q_norm(q), self.k_norm(k), v


class SoftmaxScale(AttentionFeature):
    """Scale of the scores, instead of  dim_head ** -0.5."""

    paper = 'Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762'
    softmax_scale = flag(
        None, 'factor of the dot products of queries and keys; dim_head ** -0.5 if None', positive | none, example=0.5
    )
    settles = ('logit_scale',)
    cuts = {}

    def setup(self, host: Any) -> None:
        host.logit_scale = self.softmax_scale

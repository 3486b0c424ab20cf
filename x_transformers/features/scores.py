"""From logits to weights. Everything here needs the eager kernel, apart from dropout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.attend import lowest, softmax
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import ConfigError, a_callable, flag, none, positive, probability, size


def softclamp(t: Tensor, value: float) -> Tensor:
    """Bound smoothly:  c tanh(t / c)."""
    return (t / value).tanh() * value


def head_mixer(heads: int) -> nn.Conv2d:
    """A learned mix over heads, the identity at first."""
    mixer = nn.Conv2d(heads, heads, 1, bias=False)
    nn.init.dirac_(mixer.weight)
    return mixer


class ResidualScores(AttentionFeature):
    """Logits of the layer before, added to the similarities."""

    paper = 'RealFormer, arXiv:2012.11747'
    takes = {'prev_attn': 'broadcasts to b h i j'}

    def prior(self, call: Any) -> Tensor | None:
        prev = call.inputs.get('prev_attn')
        if prev is not None and prev.shape[-1] not in (1, call.total_keys):
            raise ValueError(
                f'`prev_attn` got logits for {prev.shape[-1]} keys, the layer has {call.total_keys}: '
                f'with `residual_attn` all layers need equally many, `num_mem_kv` included'
            )
        return prev


class PreScalePostTalkingHeads(AttentionFeature):
    """Weights times a mix over heads of the similarities, taken before biases and masks."""

    pre_scale_post_talking_heads = flag(False, 'multiply the weights by mixed similarities')
    stored_as = {'mixer': 'attend.pre_scale_post_talking_heads'}

    def setup(self, host: Any) -> None:
        self.mixer = head_mixer(host.shape.heads)

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        known = sim
        if call.inputs.get('prev_attn') is not None:  # where the layer before hid a key, its logit is no similarity
            known = sim.masked_fill(sim <= lowest(sim) / 2, 0.0)
        call.notes['mixed similarities'] = self.mixer(known)
        return sim

    def mix(self, attn: Tensor, call: Any) -> Tensor:
        return attn * call.notes['mixed similarities']


class PreTalkingHeads(AttentionFeature):
    """Heads exchange logits before the softmax:  sim + W sim, W mixing heads."""

    paper = 'Talking-Heads Attention, arXiv:2003.02436'
    pre_talking_heads = flag(False, 'mix logits over heads')
    stored_as = {'mixer': 'attend.pre_softmax_talking_heads'}

    def setup(self, host: Any) -> None:
        self.mixer = head_mixer(host.shape.heads)

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        return sim + self.mixer(sim)


class PostTalkingHeads(AttentionFeature):
    """Heads exchange weights after the softmax."""

    paper = 'Talking-Heads Attention, arXiv:2003.02436'
    post_talking_heads = flag(False, 'mix weights over heads')
    stored_as = {'mixer': 'attend.post_softmax_talking_heads'}

    def setup(self, host: Any) -> None:
        self.mixer = head_mixer(host.shape.heads)

    def mix(self, attn: Tensor, call: Any) -> Tensor:
        return self.mixer(attn)


class AttentionDropout(AttentionFeature):
    """Drop attention weights in training."""

    paper = 'arXiv:1706.03762'
    fuses = True
    dropout = flag(0.0, 'probability of dropping an attention weight', probability, example=0.2)

    def setup(self, host: Any) -> None:
        host.dropout = self.dropout

    def mix(self, attn: Tensor, call: Any) -> Tensor:
        return F.dropout(attn, call.dropout)


class SoftclampLogits(AttentionFeature):
    """Bound every attention logit, so that no single pair can saturate the softmax:  c tanh(sim / c)."""

    paper = 'Gemma 2, arXiv:2408.00118, section 2'
    softclamp_logits = flag(False, 'bound the attention logits smoothly')
    logit_softclamp_value = flag(50.0, 'the bound c, in logits', positive, example=2.0)

    def logits(self, sim: Tensor, call: Any) -> Tensor:
        return softclamp(sim, self.logit_softclamp_value)


class SparseTopk(AttentionFeature):
    """Softmax over the k largest logits of each row; ties with the k-th stay."""

    paper = 'Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074'
    sparse_topk = flag(None, 'how many keys a query keeps', size | none, example=3)
    sparse_topk_straight_through = flag(False, 'with the gradient of the full softmax')

    def normaliser(self, sim: Tensor, call: Any) -> Tensor:
        kth = sim.topk(min(self.sparse_topk, sim.shape[-1]), dim=-1).values[..., -1:]
        kept = softmax(sim.masked_fill((sim < kth) | (sim <= lowest(sim)), lowest(sim)))
        if not self.sparse_topk_straight_through:
            return kept
        full = softmax(sim)
        return full + (kept - full).detach()


class SigmoidAttention(AttentionFeature):
    """Each weight on its own, not normalised over keys."""

    paper = 'Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431'
    sigmoid = flag(False, 'sigmoid in place of softmax')

    def normaliser(self, sim: Tensor, call: Any) -> Tensor:
        return sim.sigmoid()


class CustomNormaliser(AttentionFeature):
    """A function of your own from logits to weights; hidden logits hold the lowest finite number."""

    custom_attn_fn = flag(None, 'callable, logits b h i j -> weights', a_callable | none, example=torch.sigmoid)

    def normaliser(self, sim: Tensor, call: Any) -> Tensor:
        return self.custom_attn_fn(sim)


# features of a stack


class ResidualAttention(StackFeature):
    """The logits of each self-attention layer join those of the next."""

    paper = 'RealFormer, arXiv:2012.11747'
    residual_attn = flag(False, 'add the logits of the self-attention before')
    kind = 'a'

    def setup(self, host: Any) -> None:
        if host.flags_for(self.kind, 0).get('flash') is True:
            raise ConfigError(
                f'`{next(iter(self.flags))}` does not go with `attn_flash=True`: the fused kernel forms no logits'
            )

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if layer.kind != self.kind:
            return inputs
        return {**inputs, 'prev_attn': call.notes.get(f'logits {self.kind}'), 'keep_maps': True}

    def attended(self, layer: Any, intermediates: Any, call: Any) -> None:
        if layer.kind == self.kind:
            logits = intermediates.pre_softmax_attn
            # a hidden key hands on no logit: the lowest number, added up and mixed over heads, would overflow
            call.notes[f'logits {self.kind}'] = logits.masked_fill(logits <= lowest(logits), 0.0)


class CrossResidualAttention(ResidualAttention):
    """The logits of each cross-attention layer join those of the next."""

    cross_residual_attn = flag(False, 'add the logits of the cross-attention before')
    kind = 'c'

"""From attention logits to attention weights. Everything here except dropout needs the eager kernel.

A feature that adds columns (a sink) prepends them at stage `masked_scores` and removes them at stage `mixed_weights`.
Between these, logits and weights have shape (b, h, i, 1 + j).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import check_scores
from x_transformers.core.modes import at_least_float, disable_autocast, to_float
from x_transformers.core.rows import noise_state, replay_noise, to_4d
from x_transformers.features.contextual import HeadMixer
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import (
    ConfigError,
    Input,
    a_callable,
    between,
    boolean,
    flag,
    none,
    number,
    one_of,
    positive,
    probability,
    size,
    warn_once,
)
from x_transformers.flags.checks import floating
from x_transformers.kernels.dense import lowest_value, softmax, tile_heads
from x_transformers.kernels.entmax import entmax_weights

# how far apart two logits of equal keys may be: products round by the size of their batch
TIE = {torch.float32: 1e-6, torch.float64: 1e-14}


def softclamp(t: Tensor, value: float) -> Tensor:
    """Bound smoothly:  c tanh(t / c)."""
    return (t / value).tanh() * value


def straight_through(attn: Tensor) -> Tensor:
    """One-hot at the largest weight of each row, with the gradient of the weights."""
    if attn.shape[-1] == 0:
        return attn
    chosen = torch.zeros_like(attn).scatter(-1, attn.argmax(dim=-1, keepdim=True), 1.0)
    return chosen + (attn - attn.detach())


class ResidualScores(AttentionFeature):
    """Logits of the previous layer, added to the scores."""

    paper = 'RealFormer, arXiv:2012.11747'
    row_wise = True
    call_inputs = {'prev_attn': Input('broadcasts to b h i j', floating)}
    tp_shards = {}
    tp_input_shards = {'prev_attn': '... h i j'}

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        prev, keys = call.inputs.get('prev_attn'), call.whole.total_keys
        if prev is None:
            return sim
        if prev.ndim < 1:
            raise ValueError(f'`prev_attn` must broadcast to (b, h, i, j), got shape {tuple(prev.shape)}')
        if prev.shape[-1] not in (1, keys):
            raise ValueError(
                f'`prev_attn` got logits for {prev.shape[-1]} keys, the layer has {keys}: '
                f'with `residual_attn` all layers need equally many, `num_mem_kv` included'
            )
        if not torch.compiler.is_compiling():
            check_scores(to_4d(prev), 'prev_attn', call.batch, call.heads, call.whole.q_len)
        call.similarities = call.cut(prev) + sim
        return call.similarities


class PreScalePostTalkingHeads(AttentionFeature):
    """Multiply the attention weights by the scores, mixed over heads, from before biases and masks."""

    per_head = True
    row_wise = True
    pre_scale_post_talking_heads = flag(False, 'multiply the attention weights by scores that are mixed over heads')
    stored_as = {'mixer': 'attend.pre_scale_post_talking_heads'}
    refuses = {'several devices': 'it mixes heads'}

    def setup(self, owner: Any) -> None:
        self.mixer = HeadMixer(owner.query_heads)
        nn.init.dirac_(self.mixer.weight)  # the identity at first

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        known = sim
        if call.inputs.get('prev_attn') is not None:  # where the layer before hid a key, its logit is no similarity
            known = sim.masked_fill(sim <= lowest_value(sim) / 2, 0.0)
        call.ctx(self).mixed = self.mixer(known)
        return sim

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        return (attn * call.ctx(self).mixed).to(attn.dtype)


class PreTalkingHeads(AttentionFeature):
    """Talking heads before the softmax: add logits that are mixed over heads,  sim + W sim."""

    paper = 'Talking-Heads Attention, arXiv:2003.02436'
    row_wise = True
    pre_talking_heads = flag(False, 'add logits mixed over heads, before the softmax')
    stored_as = {'mixer': 'attend.pre_softmax_talking_heads'}
    refuses = {'several devices': 'it mixes heads'}
    setup = PreScalePostTalkingHeads.setup

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        return sim + self.mixer(sim)


class PostTalkingHeads(AttentionFeature):
    """Talking heads after the softmax: mix the attention weights over heads."""

    per_head = True
    paper = 'Talking-Heads Attention, arXiv:2003.02436'
    row_wise = True
    post_talking_heads = flag(False, 'mix attention weights over heads, after the softmax')
    stored_as = {'mixer': 'attend.post_softmax_talking_heads'}
    refuses = {'several devices': 'it mixes heads'}
    setup = PreScalePostTalkingHeads.setup

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        return self.mixer(attn)


class TalkingHeads(AttentionFeature):
    """Talking heads: mix logits over heads before the softmax, and weights after the dropout.

        sim_k = sum_h sim_h Pre_hk          likewise the weights, with Post

    The logits are mixed before biases and masks. `residual_attn` uses the logits from before the mix.
    """

    per_head = True
    paper = 'Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library'
    row_wise = True
    talking_heads = flag(False, 'replace attention logits and weights by learned mixes over heads')
    stored_as = {'pre': 'pre_softmax_proj', 'post': 'post_softmax_proj'}
    refuses = {'several devices': 'it mixes heads'}

    def setup(self, owner: Any) -> None:
        heads = owner.query_heads
        self.pre, self.post = nn.Parameter(torch.randn(heads, heads)), nn.Parameter(torch.randn(heads, heads))

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        with disable_autocast(sim):
            return torch.einsum('b h i j, h k -> b k i j', sim, self.pre.to(sim.dtype))

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        return torch.einsum('b h i j, h k -> b k i j', attn, self.post.to(attn.dtype))


class ScalableSoftmax(AttentionFeature):
    """Scalable-Softmax (SSMax): multiply the scores of a query that sees n keys by s log n.

        sim_ij = s_h log(n_i) q_i k_j / sqrt(e),      s_h = 1 at first

    So attention does not fade with the length. Masked keys do not count in n, prepended keys do. A query that sees
    one key has scores of zero.
    """

    paper = 'Scalable-Softmax Is Superior for Attention, arXiv:2501.19399'
    allows_eviction = True
    row_wise = True
    scalable_softmax = flag(
        False, 'multiply scores by a learned factor per head and the logarithm of the number of keys'
    )
    stored_as = {'factor': 'scalable_softmax'}
    tp_shards = {'factor': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        self.factor = nn.Parameter(torch.ones(owner.query_heads))

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        factor, seen = to_float(rearrange(self.factor, 'h -> h 1 1')), call.visible()
        seen = seen if seen is not None else torch.ones_like(sim[:1, :1, :1], dtype=torch.bool)
        count = seen.expand(*seen.shape[:-1], sim.shape[-1]).sum(dim=-1, keepdim=True)
        return sim * (factor * count.clamp(min=1).to(factor.dtype).log()).to(sim.dtype)


class AttentionDropout(AttentionFeature):
    """Dropout of attention weights."""

    paper = 'arXiv:1706.03762'
    row_wise = True
    runs_fused = True
    dropout = flag(0.0, 'dropout probability of the attention weights', probability, example=0.2)
    sets_on_module = ('dropout',)
    training_only = True
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        owner.dropout = self.dropout

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        return F.dropout(attn, call.dropout) if call.drop is None else call.drop(attn)


class SoftclampLogits(AttentionFeature):
    """Soft-clamp the attention logits, so that no single pair can saturate the softmax:  c tanh(sim / c)."""

    paper = 'Gemma 2, arXiv:2408.00118, section 2'
    allows_eviction = True
    row_wise = True
    softclamp_logits = flag(False, 'soft-clamp the attention logits with tanh')
    logit_softclamp_value = flag(50.0, 'bound c of the attention logits', positive, example=2.0)
    tp_shards = {}

    def logits(self, sim: Tensor, call: Any) -> Tensor:
        return softclamp(sim, self.logit_softclamp_value) if self.softclamp_logits else sim

    def score_mod(self, call: Any) -> Callable[..., Tensor]:
        bound = self.logit_softclamp_value
        if not self.softclamp_logits:
            return lambda score, b, h, i, j: score
        return lambda score, b, h, i, j: softclamp(score, bound)


class SparseTopk(AttentionFeature):
    """Softmax over the k largest logits of each query. Logits equal to the k-th, up to rounding, are also kept."""

    paper = 'Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074'
    row_wise = True
    sparse_topk = flag(None, 'number of keys k that each query attends to', size | none, example=3)
    sparse_topk_straight_through = flag(False, 'use the gradient of the full softmax (straight-through)')
    tp_shards = {}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        k, keys = self.sparse_topk, sim.shape[-1]
        if isinstance(keys, int):
            kth = sim.topk(min(k, keys), dim=-1).values[..., -1:]
        else:  # of any length, in a traced program
            kth = F.pad(sim, (0, k), value=lowest_value(sim)).topk(k, dim=-1).values[..., -1:]
        kth = kth - TIE.get(sim.dtype, 0.0) * (1 + kth.abs())
        kept = softmax(sim.masked_fill((sim < kth) | (sim <= lowest_value(sim)), lowest_value(sim)))
        if not self.sparse_topk_straight_through:
            return kept
        full = softmax(sim)
        return full + (kept - full).detach()


class SigmoidAttention(AttentionFeature):
    """Sigmoid attention: a sigmoid of each logit, without normalization over the keys."""

    paper = 'Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431'
    row_wise = True
    sigmoid = flag(False, 'sigmoid instead of softmax')
    tp_shards = {}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        return sim.sigmoid()


class HardAttention(AttentionFeature):
    """Hard attention: weight 1 on the key with the largest logit, with the gradient of the softmax."""

    paper = 'straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104'
    row_wise = True
    hard = flag(False, 'attend only to the key with the largest logit')
    tp_shards = {}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        return straight_through(softmax(sim))


class GumbelSoftmax(AttentionFeature):
    """Gumbel softmax:  softmax((sim + g) / temp),  with Gumbel noise g in training only."""

    paper = 'Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144'
    row_wise = True
    gumbel_softmax = flag(False, 'add Gumbel noise to the logits in training (Gumbel softmax)')
    gumbel_softmax_temp = flag(1.0, 'temperature of the Gumbel softmax', positive, example=0.5)
    gumbel_softmax_hard = flag(True, 'attend only to the key with the largest noisy logit (straight-through)')
    refuses = {'several devices': 'every head draws separate noise'}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        noise = self.noise(sim, call)
        noisy = (sim if noise is None else sim + noise) / self.gumbel_softmax_temp
        # hidden logits divided by less than one overflow
        attn = softmax(noisy.masked_fill(sim <= lowest_value(sim), lowest_value(sim)))
        return straight_through(attn) if self.gumbel_softmax_hard else attn

    def noise(self, sim: Tensor, call: Any) -> Tensor | None:
        """Drawn once: the maps are read later, and must show it. Blocks only note from which state they drew."""
        if call.span is not None:
            if not self.owner.training:
                return None
            whole = call.whole.ctx(self)
            whole.blocks = getattr(whole, 'blocks', {})
            size = (*sim.shape[:-1], sim.shape[-1] + call.whole.total_keys - call.total_keys)
            whole.blocks[call.span.queries.start] = noise_state(sim.device), size
            return call.cut_keys(gumbel_noise(sim, size))
        own = call.ctx(self)
        if not hasattr(own, 'noise'):
            own.noise = self.all_noise(sim, getattr(own, 'blocks', None)) if self.owner.training else None
        return own.noise

    @staticmethod
    def all_noise(sim: Tensor, blocks: dict[int, Any] | None) -> Tensor:
        if blocks is None:
            return gumbel_noise(sim, sim.shape)
        drawn = []
        for state, drawn_size in blocks.values():
            with replay_noise(state, sim.device):
                drawn.append(gumbel_noise(sim, drawn_size))
        return torch.cat(drawn, dim=-2)


def gumbel_noise(like: Tensor, size: Sequence[int]) -> Tensor:
    return -like.new_empty(size).exponential_().log()


class Entmax15(AttentionFeature):
    """1.5-entmax, which gives low logits a weight of zero:  max(sim / 2 - t, 0)^2,  t such that they sum to 1."""

    paper = 'Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015'
    row_wise = True
    use_entmax15 = flag(False, '1.5-entmax instead of softmax')
    tp_shards = {}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        return entmax_weights(sim, 1.5)


class EntmaxAlpha(AttentionFeature):
    """Entmax with another alpha than 1.5, or one per head that is learned.

        w = alpha-entmax(sim),      alpha_h = 1 + sigmoid(a_h),  a_h = 0 at first

    1 is the softmax, 2 the sparsemax. The more a head gains from weights of zero, the nearer its alpha comes to 2. A
    learned alpha is 1.01 at least, where its gradient is accurate.
    """

    paper = 'Adaptively Sparse Transformers, arXiv:1909.00015'
    row_wise = True
    entmax_alpha = flag(
        None,
        "alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head",
        one_of('learned') | between(1, 2) | none,
        example='learned',
    )
    stored_as = {'logit': 'entmax_alpha'}
    tp_shards = {'logit': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        if self.entmax_alpha == 'learned':
            self.logit = nn.Parameter(torch.zeros(owner.query_heads))

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        if self.entmax_alpha != 'learned':
            return entmax_weights(sim, self.entmax_alpha)
        alpha = (1 + to_float(self.logit).sigmoid()).clamp(min=1.01)
        return entmax_weights(sim, rearrange(alpha, 'h -> h 1 1'))


class CustomNormaliser(AttentionFeature):
    """A custom function from logits to attention weights. Masked logits hold the lowest finite number of the dtype."""

    row_wise = True
    needs_masked_keys = True
    custom_attn_fn = flag(
        None,
        'callable from logits (b, h, i, j) to attention weights, instead of softmax',
        a_callable | none,
        example=torch.sigmoid,
    )
    refuses = {'several devices': 'a custom function may combine all heads'}

    def normalizer(self, sim: Tensor, call: Any) -> Tensor:
        return self.custom_attn_fn(sim)


class LearnedSink(AttentionFeature):
    """Attention sink: a learned logit s per head in the softmax, so that a head can attend to nothing.

        e^sim / (e^s + sum e^sim)

    Returned attention maps have the sink as their first column.
    """

    paper = 'gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453'
    allows_eviction = True
    row_wise = True
    head_learned_sink = flag(False, 'add a learned sink logit per head to the softmax')
    stored_as = {'sink': 'attend.head_attn_sink'}
    requires_flag = {'head_learned_sink': 'not sigmoid'}
    tp_shards = {'sink': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        self.sink = nn.Parameter(torch.zeros(owner.query_heads))

    def masked_scores(self, sim: Tensor, call: Any) -> Tensor:
        sink = rearrange(self.sink.to(sim.dtype), 'h -> h 1 1').expand(*sim.shape[:-1], 1)
        return torch.cat((sink, sim), dim=-1)

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        return attn[..., 1:]

    def rescale(self, out: Tensor, lse: Tensor, call: Any) -> Tensor:
        share = (lse - rearrange(self.sink.to(lse.dtype), 'h -> h 1 1')).sigmoid()
        return out * share.to(out.dtype)


class CogSigned(AttentionFeature):
    """Signed attention weights (Cog Attention):  sign(sim) softmax(|sim|)"""

    paper = 'More Expressive Attention with Negative Weights, arXiv:2411.07176'
    row_wise = True
    cog_signed = flag(False, 'give each attention weight the sign of its logit')
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if getattr(owner, 'laser', False):
            warn_once('`cog_signed` with `laser`: the logarithm of negative sums of exponentials is clamped')

    def logits(self, sim: Tensor, call: Any) -> Tensor:
        call.ctx(self).signs = sim.sign()
        return sim.abs()

    def masked_scores(self, sim: Tensor, call: Any) -> Tensor:
        own = call.ctx(self)
        signs = own.signs
        added, rest = sim.split((sim.shape[-1] - signs.shape[-1], signs.shape[-1]), dim=-1)  # a sink has a sign too
        own.signs = torch.cat((added.sign(), signs), dim=-1)
        return torch.cat((added.abs(), rest), dim=-1)

    def weights(self, attn: Tensor, call: Any) -> Tensor:
        return attn * call.ctx(self).signs.to(attn.dtype)


class AttnDelta(AttentionFeature):
    """Attention weights passed by the caller, added to those of the softmax, also for masked keys."""

    paper = 'OpenReview uomCTwGflg'
    row_wise = True
    needs_masked_keys = True
    call_inputs = {
        'attn_delta': Input(
            'broadcasts to b h i j; prepended keys get 0, unless its last axis includes them', floating
        ),
    }
    tp_shards = {}
    tp_input_shards = {'attn_delta': '... h i j'}
    runs_fused = None

    def weights(self, attn: Tensor, call: Any) -> Tensor:
        delta, whole = call.inputs.get('attn_delta'), call.whole
        if delta is None:
            return attn
        sinks = attn.shape[-1] - call.total_keys
        if delta.ndim < 1:
            raise ValueError(f'`attn_delta` must broadcast to (b, h, i, j), got shape {tuple(delta.shape)}')
        if delta.shape[-1] not in (1, whole.keys, whole.total_keys, whole.total_keys + sinks):
            raise ValueError(
                f'`attn_delta` got shape {tuple(delta.shape)}, its last axis must be {whole.keys}, the number of keys'
            )
        if not torch.compiler.is_compiling():
            check_scores(to_4d(delta), 'attn_delta', call.batch, call.heads, whole.q_len)
        delta = call.cut(delta)
        delta = delta if delta.shape[-1] == 1 else F.pad(delta, (attn.shape[-1] - delta.shape[-1], 0))
        return attn + delta.to(attn.dtype)


class InvertedAttention(AttentionFeature):
    """Inverted attention: softmax over the queries, then normalize the weights over the keys.

        A / max(sum_j |A|, 1e-8)    with A = softmax_i(sim), masked keys at zero

    Padding is excluded from the softmax over queries. Every query depends on all others, so that attention cannot be
    causal.
    """

    paper = 'Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055'
    refuses = {
        'documents': 'its softmax over queries would span all documents',
        'some tokens': 'its softmax is over all queries',
        'cache': 'later queries change the weights of earlier ones',
        'causal': 'its softmax over queries includes later ones',
    }
    inverted_attention = flag(False, 'softmax over the queries instead of the keys')
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if owner.causal:
            raise ConfigError(
                '`inverted_attention` cannot be combined with `causal`: the softmax over queries sees later ones. '
                'For cross-attention alone write `cross_attn_inverted_attention`'
            )

    def score_mask(self, call: Any) -> Tensor | None:
        if call.causal:
            raise ValueError(
                '`causal=True` cannot be combined with `inverted_attention`: its softmax sees later queries'
            )
        real = call.query_mask
        return None if real is None else rearrange(real, 'b i -> b 1 i 1')

    def wrap_normalizer(self, normalise: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def over_queries(sim: Tensor, call: Any) -> Tensor:
            real = call.query_mask
            if real is not None:  # padding does not compete for a sink either, which joined behind the mask
                sim = sim.masked_fill(~rearrange(real, 'b i -> b 1 i 1'), lowest_value(sim))
            return normalise(sim.mT, call).mT

        return over_queries

    def weights(self, attn: Tensor, call: Any) -> Tensor:
        seen = call.visible()
        if seen is not None:
            if seen.shape[-1] > 1:  # a sink is always seen
                seen = F.pad(seen, (attn.shape[-1] - seen.shape[-1], 0), value=True)
            attn = attn.masked_fill(~seen, 0.0)
        total = attn.abs().sum(dim=-1, keepdim=True, dtype=at_least_float(attn.dtype))
        return (attn / total.clamp(min=1e-8)).to(attn.dtype)


# features of a stack


class ResidualAttention(StackFeature):
    """Residual attention (RealFormer): add the logits of each self-attention layer to those of the next."""

    paper = 'RealFormer, arXiv:2012.11747'
    refuses = {'some tokens': 'the next layer needs the logits of every query'}
    residual_attn = flag(False, 'add the logits of the previous self-attention layer')
    kind = 'a'

    def setup(self, owner: Any) -> None:
        if owner.flags_for(self.kind, 0).get('flash') is True:
            raise ConfigError(
                f'`{next(iter(self.flags))}` cannot be combined with '
                '`attn_flash=True`: the fused kernel forms no logits'
            )
        kinds = owner.layer_types
        self.unmixed = tuple(
            index
            for index, kind in enumerate(kinds)
            if kind == self.kind and owner.flags_for(kind, kinds[:index].count(kind)).get('talking_heads')
        )

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if layer.kind != self.kind:
            return inputs
        return {**inputs, 'prev_attn': getattr(call.ctx(self), 'logits', None), 'keep_maps': True}

    def on_attention(self, layer: Any, intermediates: Any, call: Any) -> None:
        if layer.kind == self.kind and self.kind in call.kinds[call.step + 1 :]:
            similarities = intermediates.qk_similarities
            logits = intermediates.pre_softmax_attn[..., -similarities.shape[-1] :]  # without a sink
            if layer.index in self.unmixed:
                logits = similarities
            # a hidden key hands on no logit: the lowest number, added up and mixed over heads, would overflow
            call.ctx(self).logits = logits.masked_fill(logits <= lowest_value(logits), 0.0)


class CrossResidualAttention(ResidualAttention):
    """Residual attention (RealFormer): add the logits of each cross-attention layer to those of the next."""

    cross_residual_attn = flag(False, 'add the logits of the previous cross-attention layer')
    kind = 'c'


class Differential(AttentionFeature):
    """Each head subtracts a second attention map from its first, which cancels noise that both have in common.

        out_h = (1 - l0) RMSNorm((softmax(q1 k1^T) - l softmax(q2 k2^T)) v)
        l = exp(a1 b1) - exp(a2 b2) + l0,   l0 = 0.8 - 0.6 exp(-0.3 n)   in the n-th layer, counted from 0

    With h heads, query heads 0 to h - 1 form the first maps, and the next h form the second maps. Other features that
    change scores act on both. The second version has twice the query heads, but no more keys, no norm and no l0; both
    of a pair share a key head, and its fused kernel runs:

        out_h = softmax(q1 k^T) v - sigmoid(x W)_h softmax(q2 k^T) v                       W: (dim, heads)
    """

    paper = 'Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)'
    differential = flag(
        False, "use the difference of two attention maps per head; 'v2': of two outputs", boolean | one_of('v2'),
        example=True,
    )  # fmt: skip
    differential_init = flag(
        None, 'initial factor l0 of the second map; None: computed from the layer index', number | none, example=0.5
    )
    stored_as = {'vectors': 'differential_lambda', 'gain': 'differential_norm'}
    clashes = {
        'laser': 'a difference of sums of exponentials can be negative and has no logarithm',
        'collab_heads': 'all heads share one key projection',
        'rotate_num_heads': 'both maps of a head need the same rotation',
        'latent_rope_subheads': 'both maps of a head need the same rotation',
    }
    row_wise = True
    refuses = {'several devices': 'it has two query heads for each head'}

    def resolve_sizes(self, widths: Any) -> Any:
        widths.query_heads *= 2
        widths.key_heads *= 2
        return widths

    def setup(self, owner: Any) -> None:
        self.vectors = nn.Parameter(torch.randn(4, owner.shape.dim_head) * 0.1)
        self.gain = nn.Parameter(torch.ones(owner.shape.dim_value))

    @property
    def least(self) -> float:
        """l0"""
        by_layer = 0.8 - 0.6 * math.exp(-0.3 * self.owner.layer_number)
        return by_layer if self.differential_init is None else self.differential_init

    def qkv_heads(self, qkv: tuple[Tensor, ...], call: Any) -> tuple[Tensor, ...]:
        if call.inputs.get('polar_pos_emb') is not None:
            raise ValueError(
                '`differential` cannot be combined with `polar_pos_emb`: its keys have a shift for each head'
            )
        return qkv

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        """Key heads that are shared: of each map, those of all its query heads."""
        q, k = qk
        if k.shape[1] < q.shape[1]:
            k = torch.cat([tile_heads(t, q.shape[1] // 2) for t in k.chunk(2, dim=1)], dim=1)
        return q, k

    def mixed_weights(self, attn: Tensor, call: Any) -> Tensor:
        a1, b1, a2, b2 = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        factor = (a1 @ b1).exp() - (a2 @ b2).exp() + self.least
        first, second = attn.chunk(2, dim=1)
        return first - factor.to(attn.dtype) * second

    def post_attention(self, out: Tensor, call: Any) -> Tensor:
        return F.rms_norm(out, out.shape[-1:], self.gain.to(out.dtype), 1e-5) * (1 - self.least)

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[Differential]:
        return DifferentialV2 if values['differential'] == 'v2' else cls


class DifferentialV2(Differential):
    """The second version: each head subtracts the gated output of a second query head, which reads the same keys."""

    stored_as = {'to_factor': 'differential_gate'}
    mixed_weights: Any = None
    rotate: Any = None

    def resolve_sizes(self, widths: Any) -> Any:
        widths.query_heads *= 2
        return widths

    def setup(self, owner: Any) -> None:
        if self.differential_init is not None:
            raise ConfigError(
                "`differential_init` cannot be combined with `differential='v2'`, which has no such factor"
            )
        self.to_factor = nn.Linear(owner.dim, owner.shape.heads, bias=False)

    def post_attention(self, out: Tensor, call: Any) -> Tensor:
        first, second = out.chunk(2, dim=1)
        factor = self.to_factor(call.x).sigmoid().transpose(1, 2).unsqueeze(-1)
        return first - factor * second

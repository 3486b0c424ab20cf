"""Linear attention: dot products of feature maps instead of a softmax, so that the past is a state of fixed size."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.modes import clamp_to_dtype, to_float
from x_transformers.core.rows import gather_along
from x_transformers.features.documents import TellsDocuments, begins
from x_transformers.features.levels import AttentionFeature, visible_keys
from x_transformers.features.linear.delta import correct_values
from x_transformers.features.linear.kernel import (
    FeatureMap,
    LinearTokens,
    Scaled,
    causal,
    read,
    sum_chunks,
    sum_in_documents,
)
from x_transformers.features.linear.maps import (
    Phi,
    dpfp,
    elu_features,
    favor,
    half_waves,
    orthogonal_normals,
    relu_features,
    scale_to_unit_length,
    scale_to_unit_sum,
    waves,
)
from x_transformers.flags import (
    ConfigError,
    RecurrentState,
    boolean,
    count,
    flag,
    none,
    one_of,
    positive,
    size,
    warn_once,
)


def write_gate(update: str, dim: int, heads: int) -> nn.Linear:
    """A logit for each key head, b n d -> b n k. The delta rule starts with half of each correction."""
    gate = nn.Linear(dim, heads)
    if update == 'delta':
        nn.init.zeros_(gate.weight)
    nn.init.constant_(gate.bias, 2.0 if update == 'gate' else 0.0)  # sigmoid(2) = 0.88 of the state is left
    return gate


def written(update: str, tokens: LinearTokens, logits: Tensor) -> LinearTokens:
    """Tokens with what gates say of them, by logits b k n 1. What is hidden changes nothing.

    gate     g = sigmoid(logit) of the state is left, and the token is written by 1 - g
    delta    sigmoid(logit) of the error is corrected
    """
    if update == 'delta':
        return tokens._replace(rate=logits.sigmoid())
    fade = F.logsigmoid(logits)
    fade = fade if tokens.seen is None else fade.masked_fill(~tokens.seen, 0.0)
    return tokens._replace(rate=(-logits).sigmoid(), fade=fade)


# the maps that draw vectors, those that draw them for each head, and those that may be negative
RANDOM, OF_HEADS, SIGNED = ('favor', 'relu', 'rff', 'arccos'), ('rff', 'arccos'), ('identity', 'rff')
NO_SCORES = 'it forms no scores to add to'
OF_SCALE = ('elu', 'favor', 'relu')  # for the others only directions count, or they have a width of their own
# what has an effect with some maps only
ONLY_WITH = {
    **dict.fromkeys(('kernel_features', 'kernel_orthogonal', 'kernel_redraw'), RANDOM),
    'kernel_hyperbolic': ('favor',),
    'dpfp_nu': ('dpfp',),
    'rff_sigma': ('rff',),
}


class LinearAttention(AttentionFeature):
    """Linear attention: dot products of feature maps instead of a softmax:  w_ts = phi(q_t) . phi(k_s)

        elu        phi(x) = elu(x) + 1
        favor      phi(x) = m^-1/2 exp(w x - |x|^2 / 2), w from N(0, I) in orthogonal blocks:  E w_ts = exp(x . y)
        relu       phi(x) = m^-1/2 relu(w x) + 0.001
        rff        phi(x) = m^-1/2 (sin(w x / sigma), cos(w x / sigma)), x of unit length:  ~ exp(x . y / sigma^2)
        arccos     phi(x) = m^-1/2 relu(w x), x of unit length
        dpfp       products of the channels of (relu(x), relu(-x)) with those up to nu channels before
        identity   x

    For the first three maps, x is q or k times the square root of the scale. Keys and values are summed up: time and
    memory are linear in the length, and the cache holds m (e + 1) numbers per key head instead of keys and values.
    Updates of the state in causal attention, with g_t = sigmoid(w x_t + b) per key head:

        sum        S_t = S_t-1 + phi(k_t) v_t
        gate       S_t = g_t S_t-1 + (1 - g_t) phi(k_t) v_t, and so the sum of weights
        delta      S_t = S_t-1 + g_t phi(k_t) (v_t - phi(k_t) S_t-1), without a sum of weights

    Prepended keys are summed separately, and added. Random features are sampled again in training, by `on_step_end`.
    """

    paper = (
        'Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, '
        'arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174'
    )
    kernel = flag(
        None,
        'feature map of linear attention, which replaces softmax attention',
        none | one_of('elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'),
        example='elu',
    )
    kernel_update = flag(
        'sum',
        "update of the state by each token: 'sum', 'gate' or 'delta'",
        one_of('sum', 'gate', 'delta'),
        example='gate',
    )
    kernel_normalize = flag(None, 'divide by the sum of weights; None: if no delta rule', none | boolean, example=False)
    kernel_l2norm = flag(None, "L2-normalize queries and keys; None: for 'rff', 'arccos'", none | boolean, example=True)
    kernel_key_norm = flag(
        None,
        "normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features "
        'may be negative',
        none | one_of('sum', 'l2'),
        example='l2',
    )
    kernel_features = flag(
        None, "number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'", size | none, example=6
    )
    kernel_orthogonal = flag(None, "orthogonal random vectors; None: of 'favor', 'relu'", boolean, example=False)
    kernel_redraw = flag(
        None,
        'number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for '
        "'rff' and 'arccos'",
        count | none,
        example=2,
    )
    kernel_hyperbolic = flag(False, 'use random vectors in pairs w, -w')
    kernel_chunk = flag(64, 'chunk size, in tokens: within a chunk, causal scores are computed', size, example=3)
    dpfp_nu = flag(3, "number nu of shifts of 'dpfp'", size, example=2)
    rff_sigma = flag(
        'learned',
        "width sigma of 'rff': a number, or 'learned' per channel and head",
        one_of('learned') | positive,
        example=0.8,
    )
    stored_as = {'w': 'features_w', 'age': 'features_age', 'sigma': 'rff_sigma', 'gate': 'write_gate'}
    states = {'key sums': RecurrentState()}
    refuses = {
        'documents': '',
        **dict.fromkeys(
            ('rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb'), 'its feature maps do not apply to rotated keys'
        ),
        **dict.fromkeys(
            ('alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias', 'shaw_rel_pos', 'xl_rel_pos'), NO_SCORES
        ),
        **dict.fromkeys(('residual_attn', 'cross_residual_attn'), 'it forms no scores for the next layer'),
    }
    handles = ('causal', 'padding', 'documents', 'keys', 'past', 'context', 'elsewhere', 'groups')
    clashes = {
        'dropout': 'it forms no attention weights',
        'collab_heads': 'features are computed per head, but all heads share one key projection',
        **dict.fromkeys(('max_attend_future', 'max_attend_past'), 'it sums up all earlier keys'),
        'flash_pack_seq': 'use `document_ids` instead',
        'l2_distance': 'scores are dot products of feature maps',
        **dict.fromkeys(('shaw_rel_pos', 'xl_rel_pos', 'shared_qk', 'disentangled'), NO_SCORES),
        **dict.fromkeys(('data_dependent_alibi', 'use_rel_proj_pos_bias'), NO_SCORES),
    }

    def setup(self, owner: Any) -> None:
        self.refuse({'some tokens': 'its sums are those of the tokens in their order' if owner.causal else ''})
        if self.kernel in OF_HEADS:
            self.refuse({'several devices': 'heads have random vectors of their own, which are no parameters'})
        update, delta = self.kernel_update, self.kernel_update == 'delta'
        if update != 'sum' and not owner.causal:
            raise ConfigError(
                f'`kernel_update={update!r}` needs `causal`: it reads the keys in their order. '
                f"In cross-attention write `cross_attn_kernel_update='sum'`"
            )
        if delta and self.kernel_normalize:
            raise ConfigError(
                "`kernel_normalize` cannot be combined with `kernel_update='delta'`: it has no sum of weights"
            )
        if self.kernel_key_norm == 'sum' and self.kernel in SIGNED:
            raise ConfigError(
                f"`kernel_key_norm='sum'` cannot be combined with `kernel={self.kernel!r}`: sums may be 0"
            )
        self.divides = not delta if self.kernel_normalize is None else bool(self.kernel_normalize)
        self.unit = self.kernel in OF_HEADS if self.kernel_l2norm is None else bool(self.kernel_l2norm)
        self.norm = self.kernel_key_norm or (None if not delta else 'l2' if self.kernel in SIGNED else 'sum')
        for name, maps in ONLY_WITH.items():
            if getattr(self, name) != self.flags[name].default and self.kernel not in maps:
                warn_once(f'`{name}` has no effect with `kernel={self.kernel!r}`')
        if self.kernel in RANDOM:
            self.key_heads, self.width = owner.key_heads, owner.dim_key
            self.w, self.age = self.draw().to(torch.get_default_dtype()), torch.zeros((), dtype=torch.long)
        if self.kernel == 'rff' and self.rff_sigma == 'learned':
            self.sigma = nn.Parameter(torch.full((owner.dim_key,), math.log(math.e - 1)))  # softplus makes it 1
        if self.kernel_update != 'sum':
            self.gate = write_gate(self.kernel_update, owner.dim, owner.key_heads)

    def initialize(self) -> None:
        features = {feature.display_name for feature in self.owner.features.active}
        if self.unit and 'qk_norm' in features:
            way = '' if self.kernel_l2norm else f': set `kernel_l2norm=False`, it is on with `kernel={self.kernel!r}`'
            raise ConfigError(
                f'`kernel_l2norm` cannot be combined with `qk_norm`, which norms queries and keys already{way}'
            )
        signed = 'kernel_update' if self.kernel_update == 'delta' else 'kernel' if self.kernel in SIGNED else ''
        if signed and 'laser' in features:
            reason = 'sums of exponentials of values may be negative'
            raise ConfigError(f'`{signed}={getattr(self, signed)!r}` cannot be combined with `laser`: {reason}')
        if self.kernel not in OF_SCALE and 'softmax_scale' in features:
            raise ConfigError(
                f'`kernel` got {self.kernel!r}, which has no scale: it cannot be combined with `softmax_scale`'
            )

    @property
    def tp_shards(self) -> dict[str, tuple[int, str]]:
        return dict.fromkeys(['gate.weight', 'gate.bias'] if self.gated else [], (0, 'kv_heads'))

    @property
    def gated(self) -> bool:
        return self.kernel_update != 'sum'

    def draw(self, like: Tensor | None = None) -> Tensor:
        """Random vectors, (m e) or (k e m), in float32."""
        where: dict[str, Any] = dict(dtype=torch.float32, device=None if like is None else like.device)
        width, of_heads = self.width, self.kernel in OF_HEADS
        wanted = self.kernel_features or (width if of_heads else math.ceil(width * math.log(max(width, 2))))
        if self.kernel == 'favor' and self.kernel_hyperbolic:
            if self.kernel_features and wanted % 2:
                raise ConfigError(f'`kernel_features` must be even with `kernel_hyperbolic`, got {wanted}')
            wanted = -(-wanted // 2)
        orthogonal = not of_heads if self.kernel_orthogonal is None else self.kernel_orthogonal
        if not of_heads:
            return orthogonal_normals(wanted, width, like) if orthogonal else torch.randn(wanted, width, **where)
        if not orthogonal:
            return torch.randn(self.key_heads, width, wanted, **where)
        return torch.stack([orthogonal_normals(wanted, width, like).mT for _ in range(self.key_heads)]).contiguous()

    def on_step_end(self, progress: float) -> None:
        every = (0 if self.kernel in OF_HEADS else 1000) if self.kernel_redraw is None else self.kernel_redraw
        if self.kernel in RANDOM:
            self.age.add_(1)
            if every and int(self.age) % every == 0:
                self.w.copy_(self.draw(self.w))

    def unsupported(self, call: Any) -> str | None:
        for name in ('rotary_pos_emb', 'polar_pos_emb'):
            if call.inputs.get(name) is not None:
                return f'`{name}`: {self.reason(name)}'
        if self.gated and not call.causal:
            return f'`causal=False`: `kernel_update={self.kernel_update!r}` reads the keys in their order'
        if call.causal and (call.token_idx is not None or call.context is not None):
            where = 'a context' if call.token_idx is None else 'queries that `select_inputs` puts elsewhere'
            return f'{where}: where it is causal, its keys are those of its queries'
        if call.token_idx is not None and call.inputs.get('document_ids') is not None:
            return 'queries that `select_inputs` puts elsewhere: its documents are those of its queries'
        return super().unsupported(call)

    def update_cache(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """The keys of a context are cached; of a sequence the cache counts the tokens alone, in rows of no width."""
        call.full_precision = True
        if call.context is not None:
            return call.append_past(k, v)
        call.summed = 0 if call.past is None else call.past.length
        call.append_past(k[..., :0], None)
        if self.gated:  # here, where autocast still is at work
            mem = call.inputs.get('mem')
            x = call.x if mem is None else torch.cat((mem, call.x), dim=1)
            call.ctx(self).gate = rearrange(self.gate(x), 'b n k -> b k n 1')
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        # query head h reads key head h mod k
        heads, seen = rearrange(to_float(q), 'b (g k) n e -> b k g n e', k=k.shape[1]), visible_keys(call)
        keys = LinearTokens(to_float(k), to_float(v), None if seen is None else seen.mT)
        found = self.found(heads, keys, self.features_of(heads, call.scale), call)
        return clamp_to_dtype(rearrange(self.quotient(found.value), 'b k g n d -> b (g k) n d'), v.dtype), None

    def found(self, q: Tensor, keys: LinearTokens, features: FeatureMap, call: Any) -> Scaled:
        """Return the sums for the queries, (b, k, g, n, e + 1)."""
        chunk, past = self.kernel_chunk, self.remembered(call)
        documents = getattr(call.ctx(TellsDocuments), 'ids', None)
        # what stands in front of the tokens
        tokens = 0 if call.context is not None else call.q_len if call.tokens is None else call.count
        added = keys.k.shape[-2] - tokens
        mems = call.memories if self.gated else 0  # without an order they may stand anywhere
        front = sum_chunks(keys.part(0, added - mems), features, chunk) if added > mems else None
        own = keys.part(added - mems, keys.k.shape[-2])
        if self.gated:
            own = written(self.kernel_update, own, to_float(call.ctx(self).gate))
        if mems:  # what the cache holds has begun with them
            before, own = own.part(0, mems), own.part(mems, own.k.shape[-2])
            past = past or self.in_order(before.k.unsqueeze(2), before, features)[1]
        if documents is not None:
            found = self.per_document(q, own, features, call, documents)
        elif call.needs_causal_mask or self.gated:
            found, total = self.in_order(q, own, features, past)
            self.remember(call, total)
        else:
            total = sum_chunks(own, features, chunk).plus(past)
            self.remember(call, total)
            return read(q, total.plus(front), features, chunk)
        return found if front is None else found.plus(read(q, front, features, chunk))

    def per_document(self, q: Tensor, keys: LinearTokens, features: FeatureMap, call: Any, ids: Tensor) -> Scaled:
        """Return the sums for queries that see only their document, whose tokens need not be contiguous."""
        order = ids.argsort(dim=-1, stable=True)
        sorted_keys = LinearTokens(*keys.each(lambda t, axis: gather_along(t, order, axis)))
        sorted_keys = sorted_keys._replace(document=begins(gather_along(ids, order, -1)).cumsum(dim=-1))
        q = gather_along(q, order, -2)
        if call.needs_causal_mask or self.gated:
            found, _ = self.in_order(q, sorted_keys, features)
        else:
            found = sum_in_documents(q, sorted_keys, features, self.kernel_chunk)
        back = order.argsort(dim=-1)
        return found.map(lambda t: gather_along(t, back, -2))

    def in_order(
        self, q: Tensor, keys: LinearTokens, features: FeatureMap, past: Scaled | None = None
    ) -> tuple[Scaled, Scaled]:
        """Return the sums of the past and the keys up to each query, and the new state."""
        run = correct_values if self.kernel_update == 'delta' else causal
        return run(q, keys, features, self.kernel_chunk, past)

    def phi(self, like: Tensor, scale: Any) -> Phi:
        """Return the feature map of vectors."""
        root = scale**0.5
        w: Any = self.w.to(like.dtype) if self.kernel in RANDOM else None
        if self.kernel == 'elu':
            return lambda x, _: (elu_features(x, root), None)
        if self.kernel == 'favor':
            return lambda x, leveled: favor(x, w, bool(self.kernel_hyperbolic), scale, leveled)
        if self.kernel == 'relu':
            return lambda x, _: (relu_features(x * root, w), None)
        if self.kernel == 'dpfp':
            return lambda x, _: (dpfp(x, self.dpfp_nu), None)
        if self.kernel == 'arccos':
            return lambda x, _: (half_waves(x, w), None)
        if self.kernel == 'rff':
            sigma = F.softplus(self.sigma).to(like.dtype) if self.rff_sigma == 'learned' else self.rff_sigma
            return lambda x, leveled: waves(x / sigma, w, self.unit or not leveled)
        return lambda x, _: (x, None)

    def features_of(self, q: Tensor, scale: Any) -> FeatureMap:
        """Return the feature maps of queries like `q`, and of keys."""
        phi, unit, norm, divides = self.phi(q, scale), self.unit, self.norm, self.divides

        def features(x: Tensor, leveled: bool) -> tuple[Tensor, Tensor | None]:
            if not torch.compiler.is_compiling():  # else each product of the engine copies its features
                x = x.contiguous()
            found, up = phi(scale_to_unit_length(x) if unit else x, leveled and norm is None)
            if norm is not None:
                return scale_to_unit_sum(found) if norm == 'sum' else scale_to_unit_length(found), None
            return (found, up) if up is None or divides else (found * up.exp(), None)

        reads = [getattr(self, name) for name in ('w', 'sigma') if name in self.owned]
        # levels of queries divide out
        return FeatureMap(lambda q: features(q, not divides)[0], lambda k: features(k, True), divides, tuple(reads))

    def quotient(self, found: Tensor) -> Tensor:
        """The sums of values by those of weights; nothing of no key."""
        if not self.divides:
            return found
        sums, weights = found.split([found.shape[-1] - 1, 1], dim=-1)
        if self.kernel == 'elu':
            weights = weights + 1e-6
        elif self.kernel in SIGNED:
            weights = torch.where(weights < 0, weights.clamp(max=-1e-4), weights.clamp(min=1e-4))
        else:
            # what weighs nothing learns nothing
            weights = weights.clamp(min=1e-12).masked_fill(weights == 0, torch.inf)
        return sums * weights.reciprocal()

    @staticmethod
    def keeps_sums(call: Any) -> bool:
        return call.context is None and 'key sums' in call.declared

    def remembered(self, call: Any) -> Scaled | None:
        value = call.state('key sums').value if self.keeps_sums(call) else None
        return None if value is None else Scaled(*value)

    def remember(self, call: Any, total: Scaled) -> None:
        if self.keeps_sums(call) and (call.keeps or call.past is not None):
            call.state('key sums').keep([t for t in total if t is not None])

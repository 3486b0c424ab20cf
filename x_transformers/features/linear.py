"""Linear attention: queries and keys meet by products of features, so that the past is a sum of fixed size."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from x_transformers.core.precision import accurate
from x_transformers.core.rows import taken
from x_transformers.features.documents import TellsDocuments, begins
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, Running, boolean, count, flag, none, one_of, size, warn_once
from x_transformers.kernels.linear import (
    FeatureMap,
    Scaled,
    Tokens,
    causal,
    in_documents,
    read,
    summed,
    with_one,
)

# feature maps


def orthogonal_normals(count: int, width: int, like: Tensor | None = None) -> Tensor:
    """Vectors (m e), each drawn from N(0, I), of which those of a block of e are orthogonal to each other."""
    where = None if like is None else like.device
    square, upper = torch.linalg.qr(torch.randn(-(-count // width), width, width, device=where))
    # without the signs the directions are not uniform, and the estimate is biased
    square = square * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(count, width, device=where).norm(dim=-1, keepdim=True)
    return square.mT.flatten(0, 1)[:count] * lengths


def favor(x: Tensor, w: Tensor, hyperbolic: bool = False) -> Tensor:
    """Logarithms of positive features, (... e) -> (... m):  E sum_m exp(f_m(x) + f_m(y)) = exp(x . y)

    f(x) = w x - |x|^2 / 2 - log(m) / 2;  hyperbolic: for w and -w
    """
    along = x @ w.mT
    along = torch.cat((along, -along), dim=-1) if hyperbolic else along
    return along - x.square().sum(dim=-1, keepdim=True) / 2 - math.log(along.shape[-1]) / 2


def relu_features(x: Tensor, w: Tensor) -> Tensor:
    """(... e) -> (... m):  m^-1/2 relu(w x) + 0.001"""
    return (x @ w.mT).relu() * len(w) ** -0.5 + 1e-3


def elu_features(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def largest(t: Tensor) -> Tensor:
    """The largest of each row, as what it does not matter by how much it is."""
    return t.detach().amax(dim=-1, keepdim=True)


# the feature


class LinearAttention(AttentionFeature):
    """Queries and keys meet by products of features, in place of a softmax:  w_ts = phi(q_t) . phi(k_s)

        elu     phi(x) = elu(x) + 1
        favor   phi(x) = m^-1/2 exp(w x - |x|^2 / 2), w from N(0, I) in orthogonal blocks:  E w_ts = exp(x . y)
        relu    phi(x) = m^-1/2 relu(w x) + 0.001

    of q and k, each times the root of the scale. Keys are summed up: time and memory grow with the length, and the
    cache holds m (e + 1) numbers per key head in place of keys and values. Keys that other features put in front are
    part of the sum. Random features are drawn anew in training, by `stepped`.
    """

    paper = 'Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794'
    kernel = flag(None, 'feature map of linear attention', none | one_of('elu', 'favor', 'relu'), example='elu')
    kernel_features = flag(None, 'random features of a head, e log(e) if None', size | none, example=6)
    kernel_orthogonal = flag(None, 'random features orthogonal in blocks; None: yes', boolean, example=False)
    kernel_redraw = flag(
        None, 'draw them anew after so many steps of training, 0 never; None: 1000', count | none, example=2
    )
    kernel_hyperbolic = flag(False, 'random features in pairs w, -w')
    kernel_chunk = flag(64, 'tokens of a chunk, inside of which causal queries meet keys one by one', size, example=3)
    stored_as = {'w': 'features_w', 'age': 'features_age'}
    remembers = {'key sums': Running()}
    joins_tokens = ''  # its sums end with a document
    handles = ('causal', 'padding', 'documents', 'keys', 'past', 'context', 'elsewhere', 'groups')
    clashes = {
        'dropout': 'it has no weights to drop',
        'collab_heads': 'features are those of a head, there is one shared key',
        **dict.fromkeys(('max_attend_future', 'max_attend_past'), 'its past is one sum'),
        'flash_pack_seq': 'its past is one sum; `document_ids` says the same',
        'l2_distance': 'queries meet keys by products',
        'shaw_rel_pos': 'nothing is added to its scores',
        'disentangled': 'nothing is added to its scores',
        'data_dependent_alibi': 'nothing is added to its scores',
        'use_rel_proj_pos_bias': 'nothing is added to its scores',
    }
    not_in_stack = {
        **dict.fromkeys(('rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb'), 'its features are not of turned keys'),
        **dict.fromkeys(('alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias'), 'nothing is added to its scores'),
        'shaw_rel_pos': 'nothing is added to its scores',
        'residual_attn': 'it has no scores to hand on',
        'cross_residual_attn': 'it has no scores to hand on',
    }
    cuts = {}

    def setup(self, host: Any) -> None:
        self.is_random, self.floor = self.kernel in ('favor', 'relu'), 1e-12
        self.needs_all = 'its sums are those of the tokens in their order' if host.causal else ''
        for name in ('features', 'orthogonal', 'redraw', 'hyperbolic'):
            own = getattr(self, f'kernel_{name}')
            if own != self.flags[f'kernel_{name}'].default and not self.is_random:
                warn_once(f'`kernel_{name}` has no effect with `kernel={self.kernel!r}`, which draws no features')
        if self.is_random:
            self.width, pairs = host.dim_key, self.kernel_hyperbolic
            wanted = self.kernel_features or math.ceil(self.width * math.log(max(self.width, 2)))
            if pairs and self.kernel_features and wanted % 2:
                raise ConfigError(f'`kernel_features` got {wanted}, with `kernel_hyperbolic` it must be even')
            self.drawn = -(-wanted // 2) if pairs else wanted
            self.w, self.age = self.draw(), torch.zeros((), dtype=torch.long)

    def draw(self, like: Tensor | None = None) -> Tensor:
        if self.kernel_orthogonal is None or self.kernel_orthogonal:
            return orthogonal_normals(self.drawn, self.width, like)
        return torch.randn(self.drawn, self.width, device=None if like is None else like.device)

    def stepped(self, progress: float) -> None:
        every = 1000 if self.kernel_redraw is None else self.kernel_redraw
        if self.is_random:
            self.age.add_(1)
            if every and int(self.age) % every == 0:
                self.w.copy_(self.draw(self.w))

    def unsupported(self, call: Any) -> str | None:
        for name in ('rotary_pos_emb', 'polar_pos_emb'):
            if call.inputs.get(name) is not None:
                return f'`{name}`: {self.not_in_stack[name]}'
        if call.causal and (call.places is not None or call.context is not None):
            where = 'a context' if call.places is None else 'queries that `views` puts elsewhere'
            return f'{where}: where it is causal, its keys are those of its queries'
        if call.places is not None and call.inputs.get('document_ids') is not None:
            return 'queries that `views` puts elsewhere: its documents are those of its queries'
        return super().unsupported(call)

    def past(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """The keys of a context are cached; of a sequence the cache counts the tokens alone, in rows of no width."""
        call.full_precision = True
        if call.context is not None:
            return call.with_past(k, v)
        call.summed = 0 if call.past is None else call.past.length
        call.with_past(k[..., :0], None)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        # query head h reads key head h mod k
        heads = rearrange(accurate(q), 'b (g k) n e -> b k g n e', k=k.shape[1])
        keys = Tokens(accurate(k), with_one(accurate(v)), self.seen(call))
        found = self.found(heads, keys, self.features_of(heads, call.scale), call)
        return rearrange(self.quotient(found.value), 'b k g n d -> b (g k) n d').to(v.dtype), None

    def found(self, q: Tensor, keys: Tokens, features: FeatureMap, call: Any) -> Scaled:
        """What the queries find, b k g n (e + 1)."""
        chunk, past = self.kernel_chunk, self.remembered(call)
        documents = getattr(call.own(TellsDocuments), 'ids', None)
        # what stands in front of the tokens
        added = keys.k.shape[-2] - (0 if call.context is not None else call.rows if call.tokens is None else call.count)
        front = summed(keys.part(0, added), features, chunk) if added else None
        own = keys.part(added, keys.k.shape[-2])
        if documents is not None:
            found = self.per_document(q, own, features, call, documents)
        elif call.triangle:
            found, total = causal(q, own, features, chunk, past)
            self.remember(call, total)
        else:
            total = summed(own, features, chunk).plus(past)
            self.remember(call, total)
            return read(q, total.plus(front), features, chunk)
        return found if front is None else found.plus(read(q, front, features, chunk))

    def per_document(self, q: Tensor, keys: Tokens, features: FeatureMap, call: Any, ids: Tensor) -> Scaled:
        """The same, where a query sees the tokens of its document alone, which need not stand side by side."""
        order = ids.argsort(dim=-1, stable=True)
        k, v, seen = (t if t is None else taken(t, order, -2) for t in keys[:3])
        sorted_keys = Tokens(k, v, seen, begins(taken(ids, order, -1)).cumsum(dim=-1))
        q, chunk = taken(q, order, -2), self.kernel_chunk
        if call.triangle:
            found, _ = causal(q, sorted_keys, features, chunk)
        else:
            found = in_documents(q, sorted_keys, features, chunk)
        back = order.argsort(dim=-1)
        return Scaled(*(taken(t, back, -2) for t in found))

    def features_of(self, q: Tensor, scale: Any) -> FeatureMap:
        """What makes features of queries like `q`, and of keys, each times the root of the scale."""
        root = scale**0.5
        if not self.is_random:
            return FeatureMap(lambda q: elu_features(q * root), lambda k: (elu_features(k * root), None))
        w, pairs = self.w.to(q.dtype), bool(self.kernel_hyperbolic)
        if self.kernel == 'relu':
            return FeatureMap(lambda q: relu_features(q * root, w), lambda k: (relu_features(k * root, w), None))

        def of_queries(q: Tensor) -> Tensor:
            logs = favor(q * root, w, pairs)
            return (logs - largest(logs)).exp()  # it divides out

        def of_keys(k: Tensor) -> tuple[Tensor, Tensor]:
            logs = favor(k * root, w, pairs)
            return (logs - largest(logs)).exp(), largest(logs)

        return FeatureMap(of_queries, of_keys)

    def quotient(self, found: Tensor) -> Tensor:
        """The sums of values by those of weights, which are positive; nothing of no key."""
        sums, weights = found[..., :-1], found[..., -1:]
        return sums / (weights.clamp(min=self.floor) if self.is_random else weights + 1e-6)

    @staticmethod
    def seen(call: Any) -> Tensor | None:
        """Which keys are visible, b 1 j 1, None for all."""
        masks = [call.widened(term, True) for term in call.masks if term.of_keys]
        return functools.reduce(torch.logical_and, masks).mT if masks else None

    @staticmethod
    def keeps_sums(call: Any) -> bool:
        return call.context is None and 'key sums' in call.declared

    def remembered(self, call: Any) -> Scaled | None:
        value = call.state('key sums').value if self.keeps_sums(call) else None
        return None if value is None else Scaled(*value)

    def remember(self, call: Any, total: Scaled) -> None:
        if self.keeps_sums(call) and (call.keeps or call.past is not None):
            call.state('key sums').keep([t for t in total if t is not None])

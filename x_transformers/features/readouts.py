"""Output heads: from hidden states to logits, pooled vectors and predicted embeddings."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float
from x_transformers.core.nets import attends_to_later, check_reads_front
from x_transformers.core.own_modules import known_stack
from x_transformers.features.embeddings import TokenEmbedding, mean_of_real
from x_transformers.features.feedforward import ACTIVATIONS
from x_transformers.features.levels import ModelFeature
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm, RMSNorm
from x_transformers.features.scores import softclamp
from x_transformers.flags import (
    ConfigError,
    Input,
    at_least,
    boolean,
    count,
    flag,
    mapping_with_keys,
    none,
    number,
    one_of,
    positive,
    size,
    warn_once,
)
from x_transformers.training.token_loss import BY_TOKEN, LINEAR_HEADS, Linear, SplitHead, split_head

an_activation = one_of(*ACTIVATIONS)
transform_options = mapping_with_keys(
    dim=size | none, activation=an_activation, bias=boolean, norm=one_of('layer', 'rms', None), norm_bias=boolean,
    eps=positive | none,
) | none  # fmt: skip


def linear_head(dim: int, classes: int, bias: bool) -> nn.Linear:
    """From hidden states to logits, a bias zero at first."""
    head = nn.Linear(dim, classes, bias=bias)
    if bias:
        nn.init.zeros_(head.bias)
    return head


def build_head(model: Any, given: nn.Module | None) -> nn.Module | None:
    """Return the output head of a model, from hidden states to logits, or None for a model of embeddings."""
    own = (('to_logits', given), ('logits_dim', model.logits_dim), ('logits_bias', model.logits_bias or None))
    requested = [name for name, value in own if value is not None]
    requested += [next(iter(feature.flags)) for feature in model.features.by_stage.get('readout', ())]
    if model.return_only_embed:
        if requested:
            warn_once(f'`{requested[0]}` has no effect beside `return_only_embed`: there is no head')
        return None
    if given is not None and len(requested) > 1:
        raise ConfigError(f'`to_logits` and `{requested[1]}` both make the head, set only one')
    if given is not None:
        return given
    return model.features.select('readout', model._new_head)()


class TiedReadout(nn.Module):
    """Logits from the token table:  x T^t * scale + bias.  The table stays the embedding's."""

    def __init__(self, embedding: TokenEmbedding, scale: float, normed: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.scale, self.normed = scale, normed
        weight = embedding.emb.weight
        self.bias = nn.Parameter(weight.detach().new_zeros(weight.shape[0])) if bias else None
        self.shared = (embedding,)  # in a tuple, so that the module is not registered twice

    def table(self, device: torch.device | None = None) -> Tensor:
        embedding = self.shared[0]
        return embedding.table(device) if self.normed else embedding.rows(device)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.table(x.device), self.bias)


def retie(net: nn.Module, name: str, before: nn.Module | None) -> None:
    """Logits from the token table come from the one that a model has now.

    `before` stood in the place that was given another module: by hand, or with the modules of a replica, which
    `nn.DataParallel` puts there one by one. The model that the replica is of keeps its own.
    """
    head, table = net._modules.get('to_logits'), net._modules.get('token_emb')
    if type(head) is not TiedReadout:
        return
    # A module that keeps several tables goes for one.
    is_table = isinstance(table, TokenEmbedding) or all(hasattr(table, part) for part in ('table', 'rows'))
    if name == 'token_emb' and head.shared[0] is before and is_table:
        net._modules['to_logits'] = head = copy.copy(head)
        head.shared = (cast('TokenEmbedding', table),)
    elif name == 'to_logits' and getattr(head, '_is_replica', False) and type(before) is TiedReadout:
        head.shared = before.shared


class Heads(nn.ModuleList):
    """Several readouts of the same hidden states; gives a tuple of logits."""

    def forward(self, x: Tensor, **kwargs: Any) -> tuple[Tensor, ...]:
        return tuple(head(x, **kwargs) for head in self)


def split_tied(head: TiedReadout) -> SplitHead | None:
    table = head.table()
    return None if table.is_meta else SplitHead((), (Linear(table, head.bias, head.scale),))


def split_heads(heads: Heads) -> SplitHead | None:
    found: list[Any] = [split_head(head) for head in heads]
    if any(split is None or split.before for split in found):
        return None
    return SplitHead((), tuple(linear for split in found for linear in split.linears))


LINEAR_HEADS |= {TiedReadout: split_tied, Heads: split_heads}
BY_TOKEN |= {TiedReadout, Heads, LayerNorm, BiasedLayerNorm, RMSNorm}


class TieEmbedding(ModelFeature):
    """Tied embeddings: the output head uses the table of token embeddings."""

    paper = 'Using the Output Embedding to Improve Language Models, arXiv:1608.05859'
    tie_embedding = flag(False, 'use the table of token embeddings as the output head (weight tying)')
    tie_embedding_scale = flag(None, 'factor of tied logits, dim ** -0.5 if None', number | none, example=0.3)
    tie_embedding_normed = flag(
        True,
        'with `l2norm_embed`, use the normalized table for the logits; False, as in the original: the stored one',
    )
    clashes = {'num_output_heads': 'there is only one table of token embeddings'}
    sets_on_module = ('tie_embedding_scale',)

    def readout(self) -> nn.Module:
        owner, kind = self.owner, type(self.owner.token_emb)
        if not issubclass(kind, TokenEmbedding):
            raise ConfigError(f'`tie_embedding` needs a TokenEmbedding, `token_emb` is a {kind.__name__}')
        dim = owner.dim_readout or owner.dim
        if owner.emb_dim != dim:
            reads = 'the stack has' if owner.dim_readout is None else '`head_transform` gives'
            raise ConfigError(
                f'`tie_embedding` needs embeddings as wide as the stack: `emb_dim` is {owner.emb_dim}, {reads} {dim}'
            )
        if owner.logits_dim not in (None, owner.num_tokens):
            raise ConfigError(
                f'`logits_dim` got {owner.logits_dim}, with `tie_embedding` it is `num_tokens`, {owner.num_tokens}'
            )
        scale = dim**-0.5 if self.tie_embedding_scale is None else self.tie_embedding_scale
        owner.tie_embedding_scale = scale
        if not (self.tie_embedding_normed or owner.l2norm_embed):
            warn_once('`tie_embedding_normed` has no effect unless `l2norm_embed` is set')
        return TiedReadout(owner.token_emb, scale, bool(self.tie_embedding_normed), owner.logits_bias)


class OutputHeads(ModelFeature):
    """Several output heads on the same hidden states."""

    num_output_heads = flag(
        1, 'number of output heads; with several, the model returns a tuple of logits', at_least(1), example=2
    )

    def readout(self) -> nn.Module:
        owner = self.owner
        sizes = owner.dim_readout or owner.dim, owner.logits_dim or owner.num_tokens, owner.logits_bias
        return Heads(linear_head(*sizes) for _ in range(self.num_output_heads))


class HeadTransform(ModelFeature):
    """A linear layer, an activation and a norm before the output head:  norm(act(W x + b)).

        head_transform=dict(dim=, activation='gelu', bias=True, norm='layer', norm_bias=True, eps=)

    `dim` is the output width of the linear layer, by default that of the stack; `norm` is 'layer', 'rms' or None.
    """

    paper = 'BERT, arXiv:1810.04805'
    head_transform = flag(
        None, 'a dict that describes a linear layer, activation and norm before the output head', transform_options,
        example=dict(activation='tanh'),
    )  # fmt: skip
    stored_as = {'module': 'head_transform'}
    sets_on_module = ('dim_readout',)
    by_token = True

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['head_transform'] is not None

    def setup(self, owner: Any) -> None:
        owner.dim_readout = self.head_transform.get('dim') or owner.dim
        self.module = transform_to(owner.dim, self.head_transform)

    def head_input(self, x: Tensor, call: Any) -> Tensor:
        return self.module(x)


def transform_to(width: int, own: Mapping[str, Any]) -> nn.Sequential:
    """Make the `head_transform` for hidden states of a width."""
    dim, kind, eps = own.get('dim') or width, own.get('norm', 'layer'), own.get('eps')
    if kind is None:
        norm = nn.Identity()
    elif kind == 'rms':
        norm = RMSNorm(dim, eps=eps)
    else:
        norm = (BiasedLayerNorm if own.get('norm_bias', True) else LayerNorm)(dim, eps=eps)
    dense = nn.Linear(width, dim, bias=bool(own.get('bias', True)))
    activation = ACTIVATIONS[own.get('activation', 'gelu')]()
    return nn.Sequential(OrderedDict(dense=dense, activation=activation, norm=norm))


class LogitsScale(ModelFeature):
    """Multiply the logits by a constant."""

    paper = 'Tensor Programs V, arXiv:2203.03466'
    logits_scale = flag(1.0, 'factor of the logits', number, example=0.3)
    clashes = {'tie_embedding': 'use `tie_embedding_scale` to scale tied logits'}
    by_token = True

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['logits_scale'] != 1

    def logits(self, logits: Tensor, call: Any) -> Tensor:
        return logits * self.logits_scale


class LogitsSoftclamp(ModelFeature):
    """Soft-clamp the logits:  c tanh(z / c)."""

    paper = 'Gemma 2, arXiv:2408.00118, section 2'
    logits_softclamp = flag(None, 'bound c of the logits, soft-clamped with tanh', positive | none, example=2.0)
    by_token = True

    def logits(self, logits: Tensor, call: Any) -> Tensor:
        return softclamp(logits, self.logits_softclamp)


class SigSoftmax(ModelFeature):
    """Sigsoftmax: add the log sigmoid of the logits,  z + log s(z),  which raises the possible rank of the softmax."""

    paper = 'Sigsoftmax, arXiv:1805.10829'
    sigsoftmax_logits = flag(False, 'add the log sigmoid of the logits to the logits (sigsoftmax)')
    by_token = True

    def logits(self, logits: Tensor, call: Any) -> Tensor:
        return logits + F.logsigmoid(logits)


class MixtureOfSoftmax(ModelFeature):
    """A mixture of k softmaxes. The model returns log probabilities:  log sum_k pi_k softmax(W h_k)."""

    paper = 'Breaking the Softmax Bottleneck, arXiv:1711.03953'
    mixture_of_softmax = flag(False, 'return log probabilities of a mixture of softmaxes instead of logits')
    mixture_of_softmax_k = flag(4, 'number k of softmaxes', size, example=2)
    clashes = {'num_output_heads': 'a mixture needs a single output head'}
    stored_as = {'expand': 'to_mixture', 'combine': 'combine_mixture'}
    sets_on_module = ('output_is_log_prob',)
    by_token = True

    def setup(self, owner: Any) -> None:
        if owner.logits_dim == 1:
            raise ConfigError(
                '`mixture_of_softmax` cannot be combined with `logits_dim` of 1: one class is always certain'
            )
        owner.output_is_log_prob = True
        dim = owner.dim_readout or owner.dim
        self.expand = nn.Sequential(
            nn.Linear(dim, dim * self.mixture_of_softmax_k, bias=False),
            nn.Unflatten(-1, (self.mixture_of_softmax_k, dim)),
        )
        self.combine = nn.Linear(dim, self.mixture_of_softmax_k, bias=False)

    def head_input(self, x: Tensor, call: Any) -> Tensor:
        combined = self.combine(x)
        call.ctx(self).mixture = combined.to(at_least_float(combined.dtype)).log_softmax(dim=-1)
        return self.expand(x)

    def logits(self, logits: Tensor, call: Any) -> Tensor:
        mixture = call.ctx(self).mixture.unsqueeze(-1)
        mixed = mixture + logits.to(mixture.dtype).log_softmax(dim=-1)
        return mixed.logsumexp(dim=-2).clamp(min=math.log(1e-20)).to(logits.dtype)


class SqueezeLogits(ModelFeature):
    """Remove the last axis of logits with a single class."""

    squeeze_out_last_dim = flag(False, 'remove the last axis of the logits if it has size 1')
    by_token = True

    def logits(self, logits: Tensor, call: Any) -> Tensor:
        return logits.squeeze(-1) if logits.shape[-1] == 1 else logits


class PoolByAttention(ModelFeature):
    """Attention pooling: learned queries attend to the final embeddings.

    In models that are not causal, the pooled tokens are the output.
    """

    refuses = {'documents': 'it pools all documents at once', 'cache': 'it pools all tokens of a call'}
    attn_pool = flag(False, 'pool the final embeddings by attention of learned queries')
    num_pooled_tokens = flag(1, 'number of queries', size, example=2)
    attn_pool_depth = flag(1, 'number of cross-attention blocks', size, example=2)
    dim_pooled_tokens = flag(None, 'width of the pooled tokens, that of the stack if None', size | none, example=12)
    clashes = dict.fromkeys(('use_cls_token', 'average_pool_embed'), 'both determine how the output is pooled')
    stored_as = {'module': 'attn_pool'}

    def setup(self, owner: Any) -> None:
        stack = known_stack(owner.attn_layers)
        self.module = owner.attention_pool(
            dim=self.dim_pooled_tokens or owner.dim,
            num_pooled_tokens=self.num_pooled_tokens,
            dim_context=owner.dim,
            depth=self.attn_pool_depth,
            heads=stack.attn_heads,
            dim_head=stack.attn_dim_head,
        )

    def pool(self, x: Tensor, call: Any) -> Tensor:
        if known_stack(self.owner.attn_layers).sees_future or call.keeps:
            call.intermediates.attn_pooled_tokens = self.module(x, mask=call.make_token_mask(x))
        return x

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        is_logits = out is not None and out is call.intermediates.logits
        replaces = is_logits and known_stack(self.owner.attn_layers).sees_future
        return call.intermediates.attn_pooled_tokens if replaces else out


class NextEmbedHead(ModelFeature):
    """An additional head that predicts the embedding of the next token."""

    add_continuous_pred_head = flag(False, 'add a head that predicts the embedding of the next token')
    call_inputs = {'return_next_embed_pred': Input('True to return (output, (predicted embeddings, embeddings))')}
    stored_as = {'predict': 'to_next_embed_pred'}
    by_token = True

    def setup(self, owner: Any) -> None:
        self.predict = nn.Sequential(
            nn.Linear(owner.dim, owner.dim, bias=False), nn.SiLU(), nn.Linear(owner.dim, owner.emb_dim, bias=False)
        )

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        if not call.inputs.get('return_next_embed_pred'):
            return out
        return out, (self.predict(x), call.intermediates.initial_embeds)


class Pooler(ModelFeature):
    """Also return one vector per sequence: the hidden state of one token, or the mean, after an optional linear layer.

        pooler=dict(token='first', dim=None, activation=None, bias=True, eos=None)
        out, pooled = model(ids, return_embeddings=True, return_pooled=True)        pooled (b, dim)

    `token` is 'first', 'last', 'mean' (padding excluded by a mask), or 'eos': the first token with the id `eos` (with
    the largest id of the sequence, if that is None; without such a token, that of `instead`, 'first' or 'last'). The
    default of both is the first token, or the last one in causal models. Without `dim` there is no linear layer.
    """

    paper = 'BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020'
    refuses = {'documents': 'it pools all documents at once'}
    pooler = flag(
        None, 'a dict that describes how `return_pooled` computes one vector per sequence',
        mapping_with_keys(
            token=one_of('first', 'last', 'eos', 'mean'), dim=size | none, activation=an_activation | none,
            bias=boolean, eos=count | none, instead=one_of('first', 'last'),
        ) | none,
        example=dict(token='last', dim=6, activation='tanh'),
    )  # fmt: skip
    always = False
    call_inputs = {'return_pooled': Input('True to return (output, pooled b d)')}
    clashes = dict.fromkeys(
        ('use_cls_token', 'average_pool_embed'), 'the output no longer contains the tokens of the sequence'
    )
    stored_as = {'linear': 'pooler', 'activation': 'pooler_activation'}
    by_token = True

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['pooler'] is not None

    def setup(self, owner: Any) -> None:
        own, self.linear = self.pooler, nn.Identity()
        self.token, self.instead = get_token(own.get('token'), owner.attn_layers, "`token='first'` of `pooler`")
        self.instead = own.get('instead', self.instead)
        if own.get('dim') is not None:
            self.linear = nn.Linear(owner.dim, own['dim'], bias=bool(own.get('bias', True)))
        name = own.get('activation')
        self.activation = nn.Identity() if name is None else ACTIVATIONS[name]()

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        if not call.inputs.get('return_pooled'):
            return out
        if call.continues:
            raise ValueError('`return_pooled` cannot be combined with `cache`: it pools all tokens')
        x = x[:, x.shape[1] - call.new_len :]
        return out, self.activation(self.linear(self.pooled(x, call)))

    def pooled(self, x: Tensor, call: Any) -> Tensor:
        """From hidden states (b n d) to one (b d)."""
        token_mask = call.make_token_mask(x)
        if self.token == 'mean':
            return mean_of_real(x, token_mask)
        at = get_place(self.token, call.like_tokens, token_mask, self.pooler.get('eos'), self.instead)
        return x[torch.arange(x.shape[0], device=x.device), at]


def get_token(token: str | None, stack: Any, written: str = "`token='first'`") -> tuple[str, str]:
    """Return which token a sequence is read from, and which one where a row lacks it.

    None is the first one, or the last one where tokens only attend to earlier ones. The first one, `written` so by the
    user, raises ConfigError where it has attended to nothing.
    """
    front = 'first' if attends_to_later(stack) else 'last'
    if token == 'first':
        check_reads_front(stack, written, "take 'last', 'mean', or an Encoder")
    return token or front, front


def get_place(token: str, ids: Tensor, token_mask: Tensor | None, eos: int | None, instead: str = 'first') -> Tensor:
    """Return the index of the token 'first', 'last', 'eos' or 'last_eos' in each row of ids (b, n, ...), (b).

    `eos` of None is the largest id. A row without 'eos' is read at `instead`, one without 'last_eos' at the last token.
    """
    shown = torch.ones(ids.shape[:2], dtype=torch.bool, device=ids.device) if token_mask is None else token_mask
    if token == 'first':
        return shown.byte().argmax(dim=1)
    if token == 'last':
        return ids.shape[1] - 1 - shown.flip(1).byte().argmax(dim=1)
    if eos is None:
        return ids.masked_fill(~shown, -1).argmax(dim=1)
    ends = (ids == eos) & shown
    has = ends.any(dim=1, keepdim=True)
    found = get_place('first' if token == 'eos' else 'last', ids, torch.where(has, ends, shown), None)
    if token == 'last_eos' or instead == 'first':
        return found
    return torch.where(has.squeeze(1), found, get_place(instead, ids, shown, None))

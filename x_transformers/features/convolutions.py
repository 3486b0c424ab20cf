"""Convolutions along the sequence: the module of Conformers with the norm of their blocks, and kernels of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.branches import KINDS, Kind
from x_transformers.core.modes import to_float
from x_transformers.features.heads import names_projections
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.norms import BiasedLayerNorm
from x_transformers.flags import Check, ConfigError, Input, Ring, flag, none, one_of, size
from x_transformers.flags.checks import get_tensor
from x_transformers.patterns import Pattern, as_pattern

GROUPS = 8
PAPER = 'Conformer, arXiv:2005.08100'


class BatchNorm(nn.Module):
    """Each feature by its mean and variance over all real tokens of a batch; in evaluation by running ones:  b n d"""

    running_mean: Any
    running_var: Any

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer('running_mean', torch.zeros(dim))
        self.register_buffer('running_var', torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training:
            scale = (to_float(self.running_var) + self.eps).rsqrt() * self.weight
            return ((x - self.running_mean) * scale + self.bias).to(x.dtype)
        if x.shape[0] * x.shape[1] < 2:
            raise ValueError("`conv_norm='batch'` needs two tokens at least in training: their variance is asked for")
        x, dtype = to_float(x), x.dtype
        token_mask = x.new_ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        count = token_mask.sum().clamp(min=1)
        share = (token_mask / count).unsqueeze(-1)
        mean = (x * share).sum(dim=(0, 1))
        apart = x - mean
        var = (apart.square() * share).sum(dim=(0, 1))
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (apart * (var + self.eps).rsqrt() * self.weight + self.bias).to(dtype)


class TokenNorm(nn.Module):
    """Each token by itself, in groups of features; one group is a layer norm:  b n d"""

    def __init__(self, dim: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        grouped = x.unflatten(-1, (self.groups, -1))
        return F.layer_norm(grouped, grouped.shape[-1:]).flatten(-2) * self.weight + self.bias


class Convolution(nn.Module):
    """Norm, a gated matrix to d features, a kernel for each feature, a norm, SiLU, a matrix:  b n d -> b n d"""

    def __init__(self, dim: int, kernel: int, causal: bool, norm: str) -> None:
        super().__init__()
        self.kernel, self.causal = kernel, causal
        self.norm = BiasedLayerNorm(dim)
        self.pointwise_in = nn.Linear(dim, 2 * dim, bias=False)
        self.depthwise = nn.Conv1d(dim, dim, kernel, groups=dim, bias=False)
        self.batch_norm = BatchNorm(dim) if norm == 'batch' else TokenNorm(dim, 1 if norm == 'layer' else GROUPS)
        self.pointwise_out = nn.Linear(dim, dim, bias=False)
        for linear in (self.pointwise_in, self.pointwise_out):
            nn.init.kaiming_normal_(linear.weight)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, recall: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        if x.shape[-2] == 0:
            return x
        x = F.glu(self.pointwise_in(self.norm(x)), dim=-1)
        x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)
        known, rest = x if recall is None else recall(x), (self.kernel - 1) // 2
        known = F.pad(known, (0, 0, self.kernel - 1, 0) if self.causal else (0, 0, rest, rest))
        if self.causal and recall is not None:
            wanted = x.shape[-2] + self.kernel - 1
            known = known.narrow(-2, known.shape[-2] - wanted, wanted)
        x = self.depthwise(known.mT).mT
        return self.pointwise_out(F.silu(self.batch_norm(x, mask)))


class ConvBranch(nn.Module):
    """A convolution module as the branch of a layer, which has a norm of its own."""

    def __init__(self, conv: Convolution) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        return self.conv(x, **given)


def conv_inputs(call: Any) -> dict[str, Any]:
    mask = call.token_mask
    given: dict[str, Any] = {'mask': None if mask is None else mask[:, mask.shape[1] - call.new_len :]}
    if call.keeps or call.cache is not None:
        given['recall'] = call.state('conv', call.step).append
    return given


def build(stack: Any, index: int) -> ConvBranch:
    own = stack.features.find(ConvModule)
    if own is None:
        raise ConfigError("`custom_layers` has convolutions ('v'), which need `conv_module`")
    return ConvBranch(Convolution(stack.dim, own.conv_kernel_size, own.conv_causal, own.conv_norm))


def last_inputs(stack: Any) -> dict[str, Ring]:
    own = stack.features.find(ConvModule)
    return {} if own is None else {'conv': Ring(max(own.conv_kernel_size - 1, 1))}


KINDS['v'] = Kind(build, inputs=conv_inputs, remembers=last_inputs)


class ConvModule(StackFeature):
    """Conformer convolution module after each attention layer, as layers of kind 'v'.

        x + W_out silu(norm(depthwise(glu(W_in LN(x)))))          W_in: (2d, d), depthwise kernels of k tokens

    Padding is set to zero, and excluded from the statistics of norms. With `macaron` and `block_norm` the block is that
    of a Conformer.
    """

    paper = PAPER
    refuses = {'documents': 'its convolutions run across documents'}
    conv_module = flag(False, 'add a convolution module along the sequence after each attention layer')
    conv_kernel_size = flag(31, 'kernel size in tokens; odd, unless `conv_causal` is set', size, example=3)
    conv_causal = flag(False, 'use a causal convolution', example=True)
    conv_norm = flag(
        'batch', "norm of the module: 'batch', or per token 'layer' or 'group'", one_of('batch', 'layer', 'group'),
        example='layer',
    )  # fmt: skip
    clashes = {
        'shift_tokens': 'both mix neighboring tokens',
        'act_halting': 'neighboring tokens that have halted are not updated',
    }

    @property
    def looks_back(self) -> bool:
        return bool(self.conv_causal)

    @property
    def counts_tokens(self) -> bool:
        return self.conv_norm == 'batch'

    def setup(self, owner: Any) -> None:
        if not owner.sees_future and not self.conv_causal:
            raise ConfigError('`conv_module` cannot be combined with a causal stack: set `conv_causal`')
        if not self.conv_causal and self.conv_kernel_size % 2 == 0:
            raise ConfigError(f'`conv_kernel_size` must be odd, got {self.conv_kernel_size}: as much on both sides')
        if self.conv_norm == 'group' and owner.dim % GROUPS:
            raise ConfigError(f"`conv_norm='group'` needs a width that {GROUPS} groups divide, got {owner.dim}")
        for name in ('checkpoint_layers', 'reversible'):
            if self.conv_norm == 'batch' and getattr(owner, name, None):
                raise ConfigError(
                    f"`conv_norm='batch'` cannot be combined with `{name}`: they "
                    "would count twice, use 'layer' or 'group'"
                )

    def block(self, block: list[str]) -> list[str]:
        at = max((i for i, kind in enumerate(block) if kind in ('a', 'c')), default=len(block) - 1)
        return [*block[: at + 1], 'v', *block[at + 1 :]]

    def norms(self, norms: Any, kind: str, index: int) -> Any:
        return norms if kind != 'v' else (None, *norms[1:])


class BlockNorm(StackFeature):
    """A norm of the residual stream after each block, instead of the final norm."""

    paper = PAPER
    block_norm = flag(False, 'normalize the residual stream after each block')
    sets_on_module = ('norm_at_end',)
    clashes = {
        'pre_and_post_norm': 'it normalizes the residual stream after every branch',
        'gated_multi_residual': 'it normalizes the residual streams after every branch',
        'resi_dual': 'it normalizes the residual stream after every branch',
        'reversible': 'it changes the residual stream after a block, which the backward pass cannot invert',
    }

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`block_norm` needs `pre_norm`: else the stream is normed behind every branch')
        owner.norm_at_end = False

    def norms(self, norms: Any, kind: str, index: int) -> Any:
        last = (index + 1) % self.owner.len_default_block == 0
        return (*norms[:2], self.owner.new_norm()) if last and kind != 'end' else norms


def has_image(pattern: Pattern) -> bool:
    """Return True for a pattern of pixels, or one with such a part."""
    return hasattr(pattern, 'image') or any(map(has_image, pattern.parts()))


class HeadConvolutions(AttentionFeature):
    """Convolve queries, keys and values along the sequence, with a kernel per channel (multi-DConv-head attention).

        q_t <- sum_i w_i q_{t - i},   i = 0 ... s - 1        likewise k and v, with kernels of their own

    The kernels act on the projections, before norms and positions. They begin with 1/2 for the token itself, the last
    tap, and the rest in equal parts for those before it. Padding and what precedes a document count as zeros. In a
    stack that is not causal the kernels are centered.
    """

    paper = 'Primer, arXiv:2109.08668'
    dconv_kernel_size = flag(
        None, 'size of a convolution of queries, keys and values along the sequence, in tokens', size | none, example=3
    )
    dconv_on = flag(
        'qkv',
        "which of queries, keys and values are convolved: some of the letters 'qkv'",
        Check("some of the letters 'qkv'", names_projections, 'str'),
        example='kv',
    )
    call_inputs = {'dconv_mask': Input('b n, True except for padding', get_tensor('b n'))}
    always = True
    stored_as = {'q': 'q_dconv', 'k': 'k_dconv', 'v': 'v_dconv'}
    clashes = {'shared_qk': 'its keys are queries that have been convolved already'}
    refuses = {
        'documents': '',
        'some tokens': 'its kernels reach neighboring tokens',
        'cross-attention': 'the layer does not know whether later tokens may be used there',
        'two_stream': 'its kernels reach tokens that are still to be predicted',
    }

    def setup(self, owner: Any) -> None:
        kernel = self.dconv_kernel_size
        if not owner.causal:
            self.refuse({'causal': 'its kernels are centered', 'cache': 'its kernels reach later tokens'})
            if kernel % 2 == 0:
                raise ConfigError(f'`dconv_kernel_size` must be odd unless attention is causal, got {kernel}')
        self.states = {'dconv': Ring(max(kernel - 1, 1))} if owner.causal else {}
        pattern = next((f.sparse_pattern for f in owner.features.active if 'sparse_pattern' in f.flags), None)
        if pattern is not None and has_image(as_pattern(pattern)):
            raise ConfigError(f'`dconv_kernel_size` cannot be combined with {pattern}: its order is not that of pixels')
        for letter in self.dconv_on:
            start = torch.full((getattr(owner, f'to_{letter}').out_features, 1, kernel), 0.5 / max(kernel - 1, 1))
            start[..., -1 if owner.causal else kernel // 2] = 0.5 if kernel > 1 else 1.0
            setattr(self, letter, nn.Parameter(start))

    @property
    def tp_shards(self) -> dict[str, tuple[int, str]]:
        return {letter: (0, 'heads' if letter == 'q' else 'kv_heads') for letter in self.dconv_on}

    def qkv_inputs(self, qkv: tuple[Tensor, ...], call: Any) -> tuple[Tensor, ...]:
        self.refuse_context(call)
        if call.token_idx is not None:
            raise ValueError('`dconv_kernel_size` cannot be combined with queries of some tokens: it needs all')
        q, k, v = qkv  # the first queries need those of memories
        return (torch.cat((k[:, : call.num_memories], q), dim=1), k, v) if call.num_memories else qkv

    def projected(self, qkv: tuple[Tensor, ...], call: Any) -> tuple[Tensor, ...]:
        front, names = call.num_memories, [name for name in 'qkv' if name in self.dconv_on]
        chosen = [t for name, t in zip('qkv', qkv, strict=True) if name in names]
        x, kernel = torch.cat(chosen, dim=-1), torch.cat([getattr(self, name) for name in names])[:, 0]
        ids, n = call.inputs.get('document_ids'), x.shape[1] - front
        token_mask = self.make_token_mask(x, n, call)
        x = x if token_mask is None else x.masked_fill(~token_mask.unsqueeze(-1), 0.0)
        if not self.states:
            x = self.convolve(x, kernel, front + n, (kernel.shape[-1] - 1) // 2, ids)
        else:
            new = self.convolve(call.state('dconv').append(x), kernel, n, 0, ids)
            x = torch.cat((self.convolve(x[:, :front], kernel, front, 0, None), new), dim=1) if front else new
        parts = dict(zip(names, x.split([t.shape[-1] for t in chosen], dim=-1), strict=True))
        q, k, v = (parts.get(name, t) for name, t in zip('qkv', qkv, strict=True))
        return q[:, front:], k, v

    @staticmethod
    def make_token_mask(x: Tensor, n: int, call: Any) -> Tensor | None:
        """Return which memories and new tokens are real, (b, n) of x, or None for all."""
        mask = call.inputs.get('dconv_mask', call.token_mask)
        masks = call.inputs.get('mem_mask'), None if mask is None else mask[:, -n:]
        if masks == (None, None):
            return None
        sizes = (x.shape[1] - n, n)
        whole = (x.new_ones(x.shape[0], size, dtype=torch.bool) for size in sizes)
        return torch.cat([one if mask is None else mask for mask, one in zip(masks, whole, strict=True)], dim=1)

    @staticmethod
    def convolve(x: Tensor, kernel: Tensor, count: int, ahead: int, ids: Tensor | None) -> Tensor:
        """Return the last `count` tokens of x (b, n, c) convolved by kernels (c, s) that reach `ahead` tokens further.

        With `ids` (b, n), tokens of other documents count as zeros.
        """
        before = kernel.shape[-1] - 1 - ahead
        x = F.pad(x, (0, 0, before, ahead))
        x = x[:, x.shape[1] - count - before - ahead :]
        out: Any = 0.0
        for tap in range(kernel.shape[-1]):
            part = x[:, tap : tap + count]
            if ids is not None and tap != before:
                part = part.masked_fill((F.pad(ids, (before, ahead))[:, tap : tap + count] != ids).unsqueeze(-1), 0.0)
            out = out + part * kernel[:, tap]
        return out


class HeadConvolutionsInStack(StackFeature):
    """Pass the mask of tokens to layers with convolutions: left padding is otherwise known as a mask of keys alone."""

    enabled_by = ('dconv_kernel_size',)
    tp_shards = {}

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        features = getattr(layer[1], 'features', None)
        acts = layer.kind == 'a' and features is not None and features.find(HeadConvolutions) is not None
        return {**inputs, 'dconv_mask': call.token_mask} if acts and call.token_mask is not None else inputs

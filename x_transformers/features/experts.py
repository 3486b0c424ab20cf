"""Mixture of experts: a router sends each token to a few of many feedforwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import can_read_values, check_weight
from x_transformers.core.modes import at_least_float, disable_autocast
from x_transformers.features.levels import FeedForwardFeature
from x_transformers.flags import ConfigError, boolean, flag, none, not_negative, number, one_of, size

Net = Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer, or one for each block of rows:  (... m d), (... l d), (... l) -> (... m l)."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    out = x @ weight.transpose(-2, -1)
    return out if bias is None else out + bias.unsqueeze(-2)


# `run_in_slices` and `run_in_blocks` apply to each token its experts:  (n, d), chosen (n, k) -> (n, k, l).
# `net(rows, *weights)` is an expert, or several in blocks, with its weights; those of all are stacked in `weights`.


def sort(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of all choices by expert, and the index in it of each choice."""
    order = chosen.flatten().argsort(stable=True)
    return order, torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))


def run_in_slices(x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None]) -> Tensor:
    """Multiply once for each expert that has any tokens, where values can be looked at: nothing is padded or copied.

    `torch._grouped_mm` would be no faster on a CPU, has no float64, and refuses expanded gradients.
    """
    order, places = sort(chosen)
    counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
    parts = x.index_select(0, order // chosen.shape[1]).split(counts)
    # of a stack taken apart the gradient is one stack, of parts picked from it one for each
    own = zip(*(itertools.repeat(None) if t is None else t.unbind() for t in weights), strict=False)
    out = torch.cat([net(part, *of_one) for part, of_one in zip(parts, own, strict=False) if part.shape[0]])
    return out.index_select(0, places).unflatten(0, chosen.shape)


def run_in_blocks(x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None]) -> Tensor:
    """Multiply once for blocks of one expert each, of equal heights, two per expert at most; no shape depends on data.

    The batched product does up to twice the work and gathers up to twice the weights. Padding is never read.
    """
    (order, places), flat = sort(chosen), chosen.flatten()
    count, picks = flat.shape[0], chosen.shape[1]
    height, many = count // experts + 1, torch.sym_min(count, 2 * experts)
    sizes = torch.zeros(experts, dtype=flat.dtype, device=x.device).scatter_add(0, flat, torch.ones_like(flat))
    first, blocks = sizes.cumsum(0) - sizes, (sizes + height - 1) // height
    ends = blocks.cumsum(0)
    starts, at = ends - blocks, torch.arange(many, device=x.device)
    owner = (at.unsqueeze(-1) >= ends).sum(dim=-1).clamp(max=experts - 1)
    rows = (first[owner] + (at - starts[owner]) * height).unsqueeze(-1) + torch.arange(height, device=x.device)
    rows = order[rows.clamp(max=count - 1)] // picks
    out = net(x[rows], *(None if t is None else t[owner] for t in weights))
    return out.flatten(0, 1)[starts[flat] * height + places - first[flat]].unflatten(0, chosen.shape)


class LinearWeights(nn.Module):
    """Weight and bias of linear layers, (..., l, d) and (..., l), with the initial values of `nn.Linear`."""

    def __init__(self, *shape: int, bias: bool) -> None:
        super().__init__()
        self.in_features = shape[-1]
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[:-1])) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.in_features**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)


class Stacked(LinearWeights):
    """The weights of one linear layer for every expert, and its biases."""

    matrices = True


class Router(LinearWeights):
    """Router: how well each expert fits a token,  n d -> n x, in float32 at least, whatever runs around it."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = at_least_float(x.dtype)
        with disable_autocast(x):
            return F.linear(x.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))


class Experts(nn.Module):
    """Experts, and what chooses between them.

    n d -> n d, with x experts of inner width f, of which each token gets k. `between` is what stands between the two
    products of an expert; it has no weights. `shared` runs for every token.
    """

    up: Stacked
    up_gate: Stacked
    score_bias: Tensor | None

    def __init__(self, of: MixtureOfExperts, up: nn.Linear, between: nn.Module, down: nn.Linear, shared: Any) -> None:
        super().__init__()
        experts = of.moe_experts
        self.kind, self.top_k, self.renormalise = of.moe_kind, of.moe_top_k, bool(of.moe_renormalise)
        self.groups, self.top_groups, self.scale = of.moe_groups, of.moe_top_groups, of.moe_scale
        self.router = Router(experts, up.in_features, bias=bool(of.moe_router_bias))
        self.register_buffer('score_bias', torch.zeros(experts) if of.moe_score_bias else None)
        widened = Stacked(experts, up.out_features, up.in_features, bias=up.bias is not None)
        self.gated = up.out_features == 2 * down.in_features
        self.add_module('up_gate' if self.gated else 'up', widened)
        self.down = Stacked(experts, down.out_features, down.in_features, bias=down.bias is not None)
        self.between, self.shared = between, shared

    @property
    def output_layers(self) -> list[nn.Module]:
        """The output projections, of all experts together and of the shared one."""
        return [self.down] if self.shared is None else [self.down, self.shared[-1]]

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return which experts a token gets, with which weights, and all probabilities:  n x -> n k, n k, n x."""
        if self.kind == 'sigmoid':
            scores = logits.sigmoid()
            chosen = self.mask_groups(scores).topk(self.top_k, dim=-1).indices
            shares = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
        else:
            scores = shares = logits.softmax(dim=-1)
            chosen = logits.topk(self.top_k, dim=-1).indices
        if self.kind == 'topk_softmax':
            weights = logits.gather(-1, chosen).softmax(dim=-1)
        else:
            weights = scores.gather(-1, chosen)
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) if self.renormalise else weights
        return chosen, weights * self.scale, shares

    def mask_groups(self, scores: Tensor) -> Tensor:
        """Return scores with their bias, those outside of the best groups lowest of all."""
        scores = scores if self.score_bias is None else scores + self.score_bias.to(scores.dtype)
        if self.groups == self.top_groups:
            return scores
        parts = rearrange(scores, 'n (g x) -> n g x', g=self.groups)
        best = parts.topk(min(2, parts.shape[-1]), dim=-1).values.sum(dim=-1).topk(self.top_groups, dim=-1).indices
        stays = torch.zeros_like(parts[..., 0], dtype=torch.bool).scatter(-1, best, True)
        return rearrange(parts.masked_fill(~stays.unsqueeze(-1), -math.inf), 'n g x -> n (g x)')

    def expert(self, x: Tensor, up: Tensor, up_bias: Any, down: Tensor, down_bias: Any) -> Tensor:
        return linear(self.between(linear(x, up, up_bias)), down, down_bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output of the experts, which were chosen, and the probability of each."""
        up, down, rows = self.up_gate if self.gated else self.up, self.down, x.reshape(-1, x.shape[-1])
        chosen, weights, shares = self.choose(self.router(rows))
        run_experts = run_in_slices if can_read_values(chosen) else run_in_blocks
        out = run_experts(rows, chosen, len(up.weight), self.expert, (up.weight, up.bias, down.weight, down.bias))
        out = (out * weights.unsqueeze(-1).to(out.dtype)).sum(dim=-2)
        out, chosen, shares = (t.reshape(x.shape[:-1] + t.shape[-1:]) for t in (out, chosen, shares))
        return out if self.shared is None else out + self.shared(x), chosen, shares


class MixtureOfExperts(FeedForwardFeature):
    """Mixture of experts (MoE): a router sends each token to k of x feedforwards. No token is dropped.

        z = W x (+ b),  in float32                                             (n, x)
        softmax        p = softmax(z), T = top_k(p), w = p[T]
        sigmoid        s = sigmoid(z), c = s + score_bias, T = top_k(c in the best groups), w = s[T]
        topk_softmax   T = top_k(z), w = softmax(z[T])
        out = sum over T of w expert(x), + shared(x)

    `moe_renormalise` divides w by its sum, `moe_scale` multiplies it. The score of a group of experts is the sum of its
    two largest c. Experts have the activation, gates, dropout and biases of the feedforward; `shared` is a separate
    feedforward. In training, the balance loss is `moe_balance_loss` times x sum_e f_e p_e: f_e is the fraction of all
    choices that are expert e, p_e its mean probability. It is 1 for a uniform distribution; padding is excluded.
    """

    paper = (
        'arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; '
        'DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437'
    )
    moe_experts = flag(None, 'number of experts; None for an ordinary feedforward', size | none, example=4)
    moe_top_k = flag(2, 'number of experts per token', size, example=3)
    moe_dim_inner = flag(None, 'inner width of each expert; that of the feedforward if None', size | none, example=12)
    moe_kind = flag(
        'softmax',
        "router scores: 'softmax', 'sigmoid', or 'topk_softmax' (softmax over the chosen experts)",
        one_of('softmax', 'sigmoid', 'topk_softmax'),
        example='sigmoid',
    )
    moe_renormalise = flag(True, 'normalize the weights of the chosen experts to sum 1')
    moe_groups = flag(1, 'number of equal groups; experts are chosen from the best groups only', size, example=2)
    moe_top_groups = flag(1, 'number of best groups from which experts are chosen', size, example=2)
    moe_scale = flag(1.0, 'factor of the expert weights', number, example=2.5)
    moe_score_bias = flag(False, 'add a buffer to the scores for choosing experts, not for weighting them')
    moe_shared = flag(
        None, 'number of shared experts, which process every token as one feedforward of that many inner widths',
        size | none, example=1,
    )  # fmt: skip
    moe_router_bias = flag(False, 'learn a bias of the router')
    moe_bias = flag(None, 'biases in all experts; None: yes, unless `no_bias` is set', boolean | none, example=False)
    moe_balance_loss = flag(0.0, 'weight of the load balancing loss, in training', not_negative, example=0.1)
    clashes = {
        'solu': 'its norm has weights, which each expert would need separately',
        'post_act_ln': 'the norm has weights, which each expert would need separately',
        'inner_norm': 'the norm has weights, which each expert would need separately',
        'glu_mult_bias': 'each expert would need separate factors',
    }
    sets_on_module = ('dim_inner', 'no_bias')

    @property
    def counts_tokens(self) -> bool:
        return self.moe_balance_loss > 0

    in_slices = True
    refuses = {'several devices': 'experts are not sharded by channels'}

    def setup(self, owner: Any) -> None:
        experts, sigmoid = self.moe_experts, self.moe_kind == 'sigmoid'
        for name in ('moe_groups', 'moe_score_bias') if not sigmoid else ():
            if getattr(self, name) != self.flags[name].default:
                raise ConfigError(f"`{name}` needs `moe_kind='sigmoid'`, it got {self.moe_kind!r}")
        if self.moe_top_k > experts:
            raise ConfigError(f'`moe_top_k` must be at most `moe_experts`, {experts}, got {self.moe_top_k}')
        if experts % self.moe_groups:
            raise ConfigError(f'`moe_groups` must divide `moe_experts`, {experts}, got {self.moe_groups}')
        if self.moe_top_groups > self.moe_groups:
            got = f'`moe_top_groups` got {self.moe_top_groups}'
            raise ConfigError(f'{got}, it must be at most `moe_groups`, {self.moe_groups}')
        left = experts // self.moe_groups * self.moe_top_groups
        if self.moe_top_k > left:
            raise ConfigError(
                f'`moe_top_k` got {self.moe_top_k}, the best {self.moe_top_groups} of `moe_groups` hold {left}'
            )
        self.given = owner.no_bias  # until the layers are built
        owner.no_bias = owner.no_bias if self.moe_bias is None else not self.moe_bias
        width, self.before = self.moe_dim_inner or owner.dim_inner, []
        if self.moe_shared:
            owner.dim_inner = width * self.moe_shared
            self.before = self.without_biases(owner.build_layers())
        owner.dim_inner = width

    def layers(self, modules: list[nn.Module]) -> list[nn.Module]:
        """Build the experts from a feedforward of their width. Modules of later features follow the experts."""
        *between, down = self.without_biases(modules)
        between, shared = nn.Sequential(*between), nn.Sequential(*self.before) if self.before else None
        self.owner.no_bias, self.before = self.given, []
        inside = [(name, m) for name, m in between.named_modules() if isinstance(m, nn.Linear)]
        if len(inside) != 1 or len([*between.parameters()]) != len([*inside[0][1].parameters()]):
            raise ConfigError(
                '`moe_experts` cannot be combined with an activation or with other layers that have weights: '
                'each expert would need its own'
            )
        name, up = inside[0]
        if self.moe_bias and up.bias is None:
            raise ConfigError('`moe_bias` cannot be combined with `glu_bias=False`: it is about all biases of experts')
        around, _, name = name.rpartition('.')
        setattr(between.get_submodule(around), name, nn.Identity())
        self.moe = Experts(self, up, between, down, shared)
        return []

    def without_biases(self, modules: list[nn.Module]) -> list[Any]:
        """Remove the biases of linear layers, of a gated unit too, if experts have none."""
        for module in nn.ModuleList(modules).modules() if self.owner.no_bias else ():
            if isinstance(module, nn.Linear):
                module.register_parameter('bias', None)
        return modules

    def run(self, x: Tensor, call: Any) -> Tensor:
        moe = self.moe
        check_weight(x, moe.down.weight)
        out, chosen, shares = call.in_slices(moe)(x)
        if self.moe_balance_loss and call.training:
            call.add_loss('moe_balance', self.moe_balance_loss * balance(chosen, shares, call))
        return self.owner.ff(out)


def balance(chosen: Tensor, shares: Tensor, call: Any) -> Tensor:
    """Return the number of experts times the sum of share times probability of each, over real tokens."""
    experts, tokens = shares.shape[-1], torch.ones_like(shares[..., :1])
    picked = torch.zeros_like(shares).scatter(-1, chosen, 1.0)
    picked, shares, tokens = (
        call.zero_padding(t).reshape(-1, t.shape[-1]).sum(dim=0) for t in (picked, shares, tokens)
    )
    return experts * (picked * shares).sum() / (chosen.shape[-1] * tokens.clamp(min=1).square().sum())

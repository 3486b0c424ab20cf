"""Mixture of experts: a router sends each token to a few of many feedforwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, distributed, nn

from x_transformers.core.checks import can_read_values, check_weight
from x_transformers.core.modes import WITHOUT_FLOAT64, at_least_float, disable_autocast, is_transformed
from x_transformers.features.levels import FeedForwardFeature
from x_transformers.flags import ConfigError, boolean, count, flag, none, not_negative, number, one_of, positive, size

Net = Callable[..., Tensor]
SPARSEMIXER_EPS = 0.01  # as in the published models


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer, or one for each block of rows:  (... m d), (... l d), (... l) -> (... m l)."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    out = x @ weight.transpose(-2, -1)
    return out if bias is None else out + bias.unsqueeze(-2)


# `run_in_slices` and `run_in_blocks` apply to each token its experts:  (n, d), chosen (n, k) -> (n, k, l).
# `net(rows, *weights)` is an expert, or several in blocks, with its weights; those of all are stacked in `weights`.
# `scale` (n, k) are factors of the inputs, or None. Experts whose index has no weights return their input.


def sort(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of all choices by expert, and the index in it of each choice."""
    order = chosen.flatten().argsort(stable=True)
    return order, torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))


def gather_rows(x: Tensor, index: Tensor, picks: int, scale: Tensor | None) -> Tensor:
    """Return the inputs of choices, flat indices (...) of (n, k):  (..., d), times their factors."""
    rows = x.index_select(0, (index // picks).flatten()).unflatten(0, index.shape)
    return rows if scale is None else rows * scale.flatten()[index].unsqueeze(-1).to(rows.dtype)


def run_in_slices(
    x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None], scale: Tensor | None = None
) -> Tensor:
    """Multiply once for each expert that has any tokens, where values can be looked at: nothing is padded or copied.

    `torch._grouped_mm` would be no faster on a CPU, has no float64, and refuses expanded gradients.
    """
    order, places = sort(chosen)
    counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
    parts = gather_rows(x, order, chosen.shape[1], scale).split(counts)
    # of a stack taken apart the gradient is one stack, of parts picked from it one for each
    own = zip(*(itertools.repeat(None) if t is None else t.unbind() for t in weights), strict=False)
    out = [net(part, *of_one) for part, of_one in zip(parts, own, strict=False) if part.shape[0]]
    out = torch.cat([*out, *parts[experts:]])
    return out.index_select(0, places).unflatten(0, chosen.shape)


def run_in_blocks(
    x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None], scale: Tensor | None = None
) -> Tensor:
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
    out = net(
        gather_rows(x, order[rows.clamp(max=count - 1)], picks, scale),
        *(None if t is None else t[owner] for t in weights),
    )
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
    """Linear layer whose outputs are logits of a choice:  n d -> n x, in float32 at least, whatever runs around it."""

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
        experts, self.zero_experts = of.moe_experts, of.moe_zero_experts
        self.kind, self.top_k, self.renormalise = of.moe_kind, of.moe_top_k, bool(of.moe_renormalise)
        self.groups, self.top_groups, self.scale = of.moe_groups, of.moe_top_groups, of.moe_scale
        self.group_score, self.weights_input = of.moe_group_score, of.moe_weight_at == 'input'
        choices = experts + self.zero_experts
        self.router = Router(choices, up.in_features, bias=bool(of.moe_router_bias))
        has_bias = of.moe_score_bias or of.moe_balance is not None
        self.register_buffer('score_bias', torch.zeros(choices) if has_bias else None)
        self.shared_gate = Router(1, up.in_features, bias=False) if of.moe_shared_gate else None
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
        if self.kind == 'sparsemixer':
            return self.choose_sparsemixer(logits)
        if self.kind in ('sigmoid', 'sqrtsoftplus'):
            # Without the bound the square root of what underflows has no finite gradient.
            tiny = torch.finfo(logits.dtype).tiny
            scores = logits.sigmoid() if self.kind == 'sigmoid' else F.softplus(logits).clamp(min=tiny).sqrt()
            shares = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
        else:
            scores = shares = logits.softmax(dim=-1)
        # Logits are in the order of probabilities, and still differ where probabilities underflow.
        alike = shares is scores and self.score_bias is None and self.groups == self.top_groups
        chosen = (logits if alike else self.mask_groups(scores)).topk(self.top_k, dim=-1).indices
        if self.kind == 'topk_softmax':
            weights = logits.gather(-1, chosen).softmax(dim=-1)
        else:
            weights = scores.gather(-1, chosen)
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) if self.renormalise else weights
        return chosen, weights * self.scale, shares

    def choose_sparsemixer(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same for `sparsemixer`: each softmax is over experts close to the best one that is left."""
        left, chosen, weights = logits, [], []
        for _ in range(self.top_k):
            best, index = left.max(dim=-1, keepdim=True)
            far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * SPARSEMIXER_EPS
            weights.append(left.masked_fill(far, -math.inf).softmax(dim=-1).gather(-1, index))
            chosen.append(index)
            left = left.scatter(-1, index, -math.inf)
        return torch.cat(chosen, dim=-1), torch.cat(weights, dim=-1) * self.scale, logits.softmax(dim=-1)

    def mask_groups(self, scores: Tensor) -> Tensor:
        """Return scores with their bias, those outside of the best groups lowest of all."""
        scores = scores if self.score_bias is None else scores + self.score_bias.to(scores.dtype)
        if self.groups == self.top_groups:
            return scores
        parts = rearrange(scores, 'n (g x) -> n g x', g=self.groups)
        of_group = 1 if self.group_score == 'max' else min(2, parts.shape[-1])
        best = parts.topk(of_group, dim=-1).values.sum(dim=-1).topk(self.top_groups, dim=-1).indices
        stays = torch.zeros_like(parts[..., 0], dtype=torch.bool).scatter(-1, best, True)
        return rearrange(parts.masked_fill(~stays.unsqueeze(-1), -math.inf), 'n g x -> n (g x)')

    def expert(self, x: Tensor, up: Tensor, up_bias: Any, down: Tensor, down_bias: Any) -> Tensor:
        return linear(self.between(linear(x, up, up_bias)), down, down_bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output of the experts, which were chosen, and the probability of each."""
        up, down, rows = self.up_gate if self.gated else self.up, self.down, x.reshape(-1, x.shape[-1])
        chosen, weights, shares = self.choose(self.router(rows))
        tensors, scale = (up.weight, up.bias, down.weight, down.bias), weights if self.weights_input else None
        if can_read_values(chosen):
            out = run_in_slices(rows, chosen, len(up.weight), self.expert, tensors, scale)
        else:
            out = self.run_without_values(rows, chosen, tensors, scale)
        out = out if self.weights_input else out * weights.unsqueeze(-1).to(out.dtype)
        out = out.sum(dim=-2)
        out, chosen, shares = (t.reshape(x.shape[:-1] + t.shape[-1:]) for t in (out, chosen, shares))
        if self.shared is not None:
            shared = self.shared(x)
            gate = None if self.shared_gate is None else self.shared_gate(x).sigmoid().to(shared.dtype)
            out = out + (shared if gate is None else shared * gate)
        return out, chosen, shares

    def run_without_values(
        self, x: Tensor, chosen: Tensor, weights: Sequence[Tensor | None], scale: Tensor | None
    ) -> Tensor:
        """Run the experts in blocks. The tokens of zero experts go through the last one, whose output is not used."""
        experts = self.router.weight.shape[0] - self.zero_experts
        bounded = chosen.clamp(max=experts - 1) if self.zero_experts else chosen
        out = run_in_blocks(x, bounded, experts, self.expert, weights, scale)
        if not self.zero_experts:
            return out
        own = x.unsqueeze(1) if scale is None else x.unsqueeze(1) * scale.unsqueeze(-1).to(x.dtype)
        return torch.where((chosen >= experts).unsqueeze(-1), own, out)


class MixtureOfExperts(FeedForwardFeature):
    """Mixture of experts (MoE): a router sends each token to k of x feedforwards. No token is dropped.

        z = W x (+ b),  in float32                                             (n, x)
        softmax        p = softmax(z), T = top_k(p), w = p[T]
        sigmoid        s = sigmoid(z), c = s + score_bias, T = top_k(c in the best groups), w = s[T]
        sqrtsoftplus   the same with s = sqrt(softplus(z)); with a bias or groups, the softmax too, with s = p
        topk_softmax   T = top_k(z), w = softmax(z[T])
        sparsemixer    k times:  m = max of the z left,  w = softmax(z left where m - z <= 0.02 max(|z|, m))[argmax]
        out = sum over T of w expert(x), + shared(x)

    `moe_renormalise` divides w by its sum, except in `sparsemixer`, `moe_scale` multiplies it. The score of a group of
    experts is the sum of its two largest c, or the largest. Experts have the activation, gates, dropout and biases of
    the feedforward; `shared` is a separate feedforward. In training, the balance loss is `moe_balance_loss` times
    x sum_e f_e p_e: f_e is the fraction of all choices that are expert e, p_e its mean probability. It is 1 for a
    uniform distribution; padding is excluded. With `moe_balance_per_sequence` it is the mean of this over sequences.
    `moe_balance='bias'` balances without a loss: after each optimizer step, `on_step_end` adds to the score bias
    `moe_balance_rate` times the sign of  mean load - load,  the tokens of each expert since the last step, on all
    devices of a process group.
    """

    paper = (
        'arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; '
        'DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; '
        'sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322'
    )
    moe_experts = flag(None, 'number of experts; None for an ordinary feedforward', size | none, example=4)
    moe_top_k = flag(2, 'number of experts per token', size, example=3)
    moe_dim_inner = flag(None, 'inner width of each expert; that of the feedforward if None', size | none, example=12)
    moe_kind = flag(
        'softmax',
        "router scores: 'softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax' (softmax over the chosen experts), or "
        "'sparsemixer', which cannot be trained",
        one_of('softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'),
        example='sigmoid',
    )
    moe_renormalise = flag(True, 'normalize the weights of the chosen experts to sum 1')
    moe_groups = flag(1, 'number of equal groups; experts are chosen from the best groups only', size, example=2)
    moe_top_groups = flag(1, 'number of best groups from which experts are chosen', size, example=2)
    moe_group_score = flag(
        'top2', "score of a group: the sum of its two largest scores ('top2') or the largest ('max')",
        one_of('top2', 'max'), example='max',
    )  # fmt: skip
    moe_scale = flag(1.0, 'factor of the expert weights', number, example=2.5)
    moe_score_bias = flag(False, 'add a buffer to the scores for choosing experts, not for weighting them')
    moe_shared = flag(
        None, 'number of shared experts, which process every token as one feedforward of that many inner widths',
        size | none, example=1,
    )  # fmt: skip
    moe_dim_shared = flag(None, 'inner width of the shared feedforward, instead of that', size | none, example=5)
    moe_shared_gate = flag(False, 'scale the shared feedforward by a sigmoid gate, one number per token')
    moe_weight_at = flag(
        'output', "weights scale the 'output' or the 'input' of experts", one_of('output', 'input'), example='input'
    )
    moe_zero_experts = flag(0, 'number of further experts that return their input', count, example=2)
    moe_router_bias = flag(False, 'learn a bias of the router')
    moe_bias = flag(None, 'biases in all experts; None: yes, unless `no_bias` is set', boolean | none, example=False)
    moe_balance_loss = flag(0.0, 'weight of the load balancing loss, in training', not_negative, example=0.1)
    moe_balance_per_sequence = flag(False, 'compute this loss for each sequence by itself')
    moe_balance = flag(None, "'bias': balance by the score bias, without a loss", one_of('bias') | none, example='bias')
    moe_balance_rate = flag(1e-3, 'step of the score bias at each optimizer step', positive, example=0.01)
    requires_flag = {
        'moe_group_score': 'moe_groups',
        'moe_dim_shared': 'moe_shared',
        'moe_shared_gate': 'moe_shared',
        'moe_balance_per_sequence': 'moe_balance_loss',
        'moe_balance_rate': 'moe_balance',
    }
    clashes = {
        'solu': 'its norm has weights, which each expert would need separately',
        'post_act_ln': 'the norm has weights, which each expert would need separately',
        'inner_norm': 'the norm has weights, which each expert would need separately',
        'glu_mult_bias': 'each expert would need separate factors',
    }
    sets_on_module = ('dim_inner', 'no_bias')

    @property
    def counts_tokens(self) -> bool:
        return self.moe_balance_loss > 0 or self.moe_balance is not None

    in_slices = True
    refuses = {'several devices': 'experts are not sharded by channels'}

    def setup(self, owner: Any) -> None:
        experts = self.moe_experts
        self.check_router(owner)
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
        # How many tokens chose each expert since the last optimizer step: no buffer, which replicas would share.
        self.tally = [torch.zeros(experts + self.moe_zero_experts, dtype=torch.long)]
        self.given = owner.no_bias  # until the layers are built
        owner.no_bias = owner.no_bias if self.moe_bias is None else not self.moe_bias
        width, self.before = self.moe_dim_inner or owner.dim_inner, []
        if self.moe_shared:
            owner.dim_inner = self.moe_dim_shared or width * self.moe_shared
            self.before = self.without_biases(owner.build_layers())
        owner.dim_inner = width

    def check_router(self, owner: Any) -> None:
        """Raise ConfigError for flags of the router that do not go together."""
        names = [name for name in ('moe_groups', 'moe_score_bias', 'moe_balance', 'moe_zero_experts')
                 if getattr(self, name) != self.flags[name].default]  # fmt: skip
        if names and self.moe_kind in ('topk_softmax', 'sparsemixer'):
            reason = 'its experts are chosen by logits'
            raise ConfigError(f'`{names[0]}` cannot be combined with `moe_kind={self.moe_kind!r}`: {reason}')
        if self.moe_zero_experts and self.moe_groups > 1:
            raise ConfigError('`moe_zero_experts` cannot be combined with `moe_groups`: they belong to no group')
        if self.moe_zero_experts and owner.dim_out != owner.dim:
            got = f'got dim={owner.dim} and dim_out={owner.dim_out}'
            raise ConfigError(f'`moe_zero_experts` returns its input, so `dim_out` must be `dim`, {got}')

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
        if self.moe_kind == 'sparsemixer' and call.training:
            raise ValueError(
                "`moe_kind='sparsemixer'` cannot be combined with training: its estimator of gradients, with sampled "
                'experts, is not part of the library; call `eval()`'
            )
        out, chosen, shares = call.in_slices(moe)(x)
        if self.moe_balance_loss and call.training:
            loss = balance(chosen, shares, call, bool(self.moe_balance_per_sequence))
            call.add_loss('moe_balance', self.moe_balance_loss * loss)
        if self.moe_balance and call.training and not is_transformed():
            self.count_choices(chosen, call)
        return self.owner.ff(out)

    @torch.no_grad()
    def count_choices(self, chosen: Tensor, call: Any) -> None:
        """Add the choices of a pass in training to the tally, without those of padding."""
        self.tally[0] = self.tally[0].to(chosen.device)
        ones = call.zero_padding(torch.ones_like(chosen))
        self.tally[0].scatter_add_(0, chosen.flatten(), ones.flatten())

    def on_step_end(self, progress: float) -> None:
        if self.moe_balance is None:
            return
        bias: Any = self.moe.score_bias
        (tally,) = self.tally = [self.tally[0].to(bias.device)]
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(tally)
        load = tally.double() if tally.device.type not in WITHOUT_FLOAT64 else tally.float()
        bias.add_((self.moe_balance_rate * (load.mean() - load).sign()).to(bias.dtype))
        tally.zero_()


def balance(chosen: Tensor, shares: Tensor, call: Any, per_sequence: bool) -> Tensor:
    """Return the number of experts times the sum of share times probability of each, over real tokens.

    With `per_sequence`, the mean of this over the sequences that have any.
    """
    experts, tokens = shares.shape[-1], torch.ones_like(shares[..., :1])
    picked = torch.zeros_like(shares).scatter(-1, chosen, 1.0)
    rows = shares.shape[-2] if per_sequence and shares.ndim > 1 else -1
    picked, shares, tokens = (
        call.zero_padding(t).reshape(-1 if rows > 0 else 1, rows, t.shape[-1]).sum(dim=1)
        for t in (picked, shares, tokens)
    )
    sums = experts * (picked * shares).sum(dim=-1) / (chosen.shape[-1] * tokens.clamp(min=1).square().sum(dim=-1))
    return sums.sum() / (tokens > 0).sum().clamp(min=1)

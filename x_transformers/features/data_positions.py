"""Position biases that depend on the tokens: forget gates, and biases over the distance that the query computes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.core.recompute import COPIED, ModuleSnapshot
from x_transformers.core.rows import BlockwiseTerm, Pointwise, gather_along
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, PerToken, flag, format_value, mapping, none, size


def split_heads(t: Tensor, heads: int) -> Tensor:
    """b n (h d) -> b h n d"""
    return rearrange(t, 'b n (h d) -> b h n d', h=heads)


class DataDependentAlibi(nn.Module):
    """Forget gates: the bias of a key is the sum of the log gates of all later tokens up to the query.

        f_t = a log sigmoid(W x_t + c)      b h t, the gate of token t
        C_i = f_1 + ... + f_i
        bias_ij = C_i - C_j                 = f_(j+1) + ... + f_i for earlier keys

    With `causal=False`, later keys have separate gates.  Forgetting Transformer, arXiv:2503.02130
    """

    def __init__(
        self, dim: int, heads: int, causal: bool = True, bias_init: float = 5.0, post_log_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.post_log_scale = heads, causal, post_log_scale
        linear = nn.Linear(dim, heads if causal else 2 * heads)
        self.to_forget_gates = nn.Sequential(linear)
        nn.init.constant_(linear.bias, bias_init)

    def compute_state(self, x: Tensor) -> Tensor:
        """Return the log gates of tokens:  b n d -> b h n 1, or b h n 2 for both directions."""
        gates = F.logsigmoid(to_float(self.to_forget_gates(x))) * self.post_log_scale
        return rearrange(gates, 'b n (directions h) -> b h n directions', h=self.heads)

    def between(self, x: Tensor, gates: Tensor, real: Tensor | None, at: Tensor | None = None) -> BlockwiseTerm:
        """Return the bias of the queries x, at keys `at`, (i) or (b i), or the last ones, for all keys:  b h i j."""
        if real is not None:
            gates = gates.masked_fill(~rearrange(real, 'b n -> b 1 n 1'), 0.0)
        sums = to_float(gates).cumsum(dim=-2).unbind(dim=-1)
        first = gates.shape[-2] - x.shape[1]
        place = torch.arange(gates.shape[-2], device=x.device)
        own = place[first:] if at is None else at
        of_queries = [t[..., first:] if at is None else gather_along(t, at, -1) for t in sums]

        def of(rows: slice, keys: slice) -> Tensor:
            past, *future = (q[..., rows, None] - t[..., None, keys] for q, t in zip(of_queries, sums, strict=True))
            if not future:
                return past
            behind = place[keys] <= own[..., rows, None]
            return torch.where(behind if behind.ndim == 2 else behind.unsqueeze(1), past, -future[0])

        entry = (lambda: between_sums(first, *sums)) if at is None else None
        return BlockwiseTerm(of, learns=gates.requires_grad, entry=entry)

    def forward(self, x: Tensor) -> Tensor:
        return self.between(x, self.compute_state(x), None).of(slice(None), slice(None))


def between_sums(first: int, past: Tensor, future: Tensor | None = None) -> Pointwise:
    """Return the bias of one query and one key, from the sums b h n; the queries are those from the `first` on."""
    # copies, since FlexAttention reads a tensor in one place only if it has a gradient
    q_past, k_past = past[..., first:].clone(), past.clone()
    if future is None:
        return lambda b, h, i, j: q_past[b, h, i] - k_past[b, h, j]
    q_future, k_future = future[..., first:].clone(), future.clone()
    behind = torch.full((), first, device=past.device)
    return lambda b, h, i, j: torch.where(
        j <= i + behind, q_past[b, h, i] - k_past[b, h, j], k_future[b, h, j] - q_future[b, h, i]
    )


class PerRowDataDependentAlibi(nn.Module):
    """Forget gates that depend on query and key.

        f_ij = a log sigmoid(q_i k_j / sqrt(d))     for earlier keys j < i, from small queries and keys
        bias_ij = f_ij + ... + f_i(i-1)

    Forgetting Transformer, arXiv:2503.02130
    """

    def __init__(
        self, dim: int, heads: int, causal: bool = True, dim_head: int = 8, post_log_scale: float = 1.0
    ) -> None:
        super().__init__()
        if not causal:
            raise ConfigError('`data_dependent_alibi_per_row` needs `causal`: its gates look backwards only')
        self.heads, self.scale, self.post_log_scale = heads, dim_head**-0.5, post_log_scale
        self.to_forget_gates = nn.Sequential(nn.Linear(dim, 2 * heads * dim_head, bias=False))

    def small(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute small queries and keys:  b n d -> two of b h n d."""
        q, k = self.to_forget_gates(x).chunk(2, dim=-1)
        return split_heads(q, self.heads), split_heads(k, self.heads)

    def compute_state(self, x: Tensor) -> Tensor:
        return self.small(x)[1]

    def between(self, x: Tensor, keys: Tensor, real: Tensor | None, at: Tensor | None = None) -> BlockwiseTerm:
        """Return the bias of the queries x, at the last of the keys if not `at` others:  b h i j."""
        small, all_keys = self.small(x)[0], keys
        place, scale, post = torch.arange(keys.shape[-2], device=x.device), self.scale, self.post_log_scale
        own = place[keys.shape[-2] - x.shape[1] :] if at is None else at

        def of(rows: slice, keys: slice) -> Tensor:
            logits = small[..., rows, :] @ all_keys[..., keys, :].mT * scale
            counts = place[keys] < own[..., rows, None]
            counts = counts if counts.ndim == 2 else counts.unsqueeze(1)
            if real is not None:
                counts = counts & rearrange(real[:, keys], 'b j -> b 1 1 j')
            gates = (F.logsigmoid(to_float(logits)) * post).masked_fill(~counts, 0.0)
            return gates.flip(-1).cumsum(dim=-1).flip(-1)

        return BlockwiseTerm(of, learns=small.requires_grad)

    def forward(self, x: Tensor) -> Tensor:
        return self.between(x, self.compute_state(x), None).of(slice(None), slice(None))


class RelativeProjPositionalBias(nn.Module):
    """A bias over the distance, which every query mixes from learned curves that heads share.

    w_i = W x_i + c                         b h i m, the mix of the curves
    bias_ij = sum_m w_im E_m(i - j)         0 for later keys, and from `max_dist` on
    """

    def __init__(self, dim: int, heads: int, num_distance_basis: int = 16, max_dist: int = 1024) -> None:
        super().__init__()
        self.heads, self.max_dist = heads, max_dist
        self.to_distance_weights = nn.Sequential(nn.Linear(dim, heads * num_distance_basis))
        self.distance_bank = nn.Parameter(torch.randn(num_distance_basis, max_dist) * 0.02)

    def read(self, weights: Tensor, distance: Tensor) -> Tensor:
        """Return the bias (b h i j) of the weights of the curves (b h i m) at distances (i j), or with rows (b i j)."""
        # without gaps between positions, no key lies further back than there are keys, where their number is known
        keys = distance.shape[-1]
        reach = min(self.max_dist, keys) if distance.ndim == 2 and isinstance(keys, int) else self.max_dist
        curves = weights @ self.distance_bank[:, :reach]
        known = (distance >= 0) & (distance < reach)
        index = distance.clamp(0, reach - 1)
        if distance.ndim == 3:
            known, index = (rearrange(t, 'b i j -> b 1 i j') for t in (known, index))
        bias = curves.gather(-1, index.expand(*curves.shape[:-1], -1))
        return bias.masked_fill(~known, 0.0)

    def forward(self, x: Tensor, seq_len_k: int | None = None) -> Tensor:
        """Return the bias of the last queries of `seq_len_k` keys, as many as queries if None."""
        place = torch.arange(seq_len_k or x.shape[1], device=x.device)
        weights = split_heads(self.to_distance_weights(x), self.heads)
        return self.read(weights, distances(place[-x.shape[1] :], place))


class DataDependentBias(AttentionFeature):
    """Forget gates: bias_ij is the sum of the log forget gates of the tokens between key j and query i."""

    paper = 'Forgetting Transformer, arXiv:2503.02130'
    data_dependent_alibi = flag(False, 'add to the scores the summed log forget gates of the tokens in between')
    data_dependent_alibi_per_row = flag(False, 'compute these gates from query and key, not from the token alone')
    data_dependent_alibi_per_row_dim_head = flag(8, 'width of the queries and keys for these gates', size, example=3)
    data_dependent_alibi_kwargs = flag(
        None, 'additional arguments of the bias module', mapping | none, example={'post_log_scale': 0.5}
    )
    requires_flag = {'data_dependent_alibi_per_row_dim_head': 'data_dependent_alibi_per_row'}
    stored_as = {'module': 'data_dependent_alibi'}
    states = {'forget gates': PerToken()}
    refuses = {
        'cross-attention': 'it counts gates between two tokens of the same sequence',
        'two_stream': 'its gates depend on all tokens in between, also on those that are still to be predicted',
    }

    def setup(self, owner: Any) -> None:
        own = {'dim': owner.dim, 'heads': owner.heads, 'causal': owner.causal}
        kind: type[nn.Module] = DataDependentAlibi
        if self.data_dependent_alibi_per_row:
            kind, own['dim_head'] = PerRowDataDependentAlibi, self.data_dependent_alibi_per_row_dim_head
        extra = self.data_dependent_alibi_kwargs or {}
        try:
            self.module = kind(**own, **extra)
        except TypeError as error:
            raise ConfigError(f'`data_dependent_alibi_kwargs` got {format_value(extra)}: {error}') from None

    def bias(self, call: Any) -> BlockwiseTerm:
        if call.context is not None:
            raise ValueError(
                f'`data_dependent_alibi` cannot be combined with a context: {self.reason("cross-attention")}'
            )
        mem = call.inputs.get('mem')
        tokens = call.source if mem is None else torch.cat((mem, call.source), dim=1)
        kept = call.state('forget gates').append(self.module.compute_state(tokens))
        at = None if call.token_idx is None else call.of_queries(torch.arange(kept.shape[-2], device=kept.device))
        return self.module.between(call.x, kept, call.key_mask, at)


class RelativeProjectedBias(AttentionFeature):
    """A bias over the distance that each query computes, per head, as a mix of learned curves.

    w_i = W x_i + c,   bias_ij = sum_m w_im E_m(i - j)
    """

    use_rel_proj_pos_bias = flag(False, 'add a bias over the distance that each query mixes from learned curves')
    rel_proj_num_distance_basis = flag(16, 'number of learned curves', size, example=3)
    rel_proj_max_dist = flag(1024, 'length of the curves, in tokens; beyond it the bias is 0', size, example=4)
    stored_as = {'module': 'rel_proj_pos_bias'}
    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}

    def setup(self, owner: Any) -> None:
        self.module = RelativeProjPositionalBias(
            owner.dim, owner.heads, self.rel_proj_num_distance_basis, self.rel_proj_max_dist
        )

    def bias(self, call: Any) -> BlockwiseTerm:
        if call.context is not None:
            raise ValueError(
                f'`use_rel_proj_pos_bias` cannot be combined with a context: {self.reason("cross-attention")}'
            )
        index, own, module = call.k_at, call.q_at, self.module
        weights = split_heads(module.to_distance_weights(call.x), module.heads)
        kept = None if torch.compiler.is_compiling() else ModuleSnapshot(module, copied=COPIED)

        def of(rows: slice, keys: slice) -> Tensor:
            then = module if kept is None else kept.restored(module)
            return then.read(weights[..., rows, :], distances(own[..., rows], index[..., keys]))

        return BlockwiseTerm(of, learns=weights.requires_grad or module.distance_bank.requires_grad)

"""Several parallel residual streams, and how layers combine and update them.

The streams are part of the batch axis, (b s, n, d) with s fastest, from before the first layer to after the last one.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, rearrange, reduce
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, disable_autocast
from x_transformers.features.integrators import ReceiveViews
from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import RMSNorm, rms_normed
from x_transformers.features.residuals import drop_scales
from x_transformers.flags import ConfigError, count, flag, is_int, one_of, size, warn_once

MHC_EPS = 1e-6


def sinkhorn(t: Tensor, iters: int = 20) -> Tensor:
    """Matrices (... s t) made nearly doubly stochastic, by normalising columns and rows in turn."""
    dtype = t.dtype
    t = (t if dtype == torch.float64 else t.float()).softmax(dim=-2)
    for _ in range(iters):
        t = t / t.sum(dim=-1, keepdim=True)
        t = t / t.sum(dim=-2, keepdim=True)
    return t.to(dtype)


class Streams(nn.Module):
    """What residuals of several streams share. `views` says how many inputs a branch gets."""

    def __init__(self, streams: int, views: int) -> None:
        super().__init__()
        self.streams, self.views = self.num_residual_streams, self.num_input_views = streams, views

    def forward(self, out: Tensor, residual: Tensor, beta: Tensor, **_: Any) -> Tensor:
        """Write the branch (b n d) to the streams (b n s d) with weights beta (b n s):  (b s) n d."""
        written = rearrange(beta, 'b n s -> b n s 1') * rearrange(out, 'b n d -> b n 1 d')
        return rearrange(residual + written, 'b n s d -> (b s) n d')


class HyperConnection(Streams):
    """Each token mixes its streams: what the branch reads, what stays, and where the branch is written.

        n      = norm(R)                                             R, the streams: b n s d
        A      = (n @ dynamic_alpha_fn) scale + static_alpha         b n s (v + s)
        read   = sum over s of sigmoid(A[..., :v]) R                 (v) b n d
        R'     = sum over s of sinkhorn(A[..., v:])[s, t] R[s]       doubly stochastic: nothing grows with depth
        R new  = R' + beta out,   beta = 2 sigmoid(2 sigmoid(n @ dynamic_beta_fn) scale + static_beta)

    With `mixes_ones` every stream becomes the sum of all instead:  R'[t] = sum over s of R[s].

    Zhu et al. 2024, arXiv:2409.19606; Xie et al. 2025, arXiv:2512.24880
    """

    def __init__(
        self,
        dim: int,
        layer_index: int = 0,
        *,
        streams: int | None = None,
        views: int = 1,
        num_residual_streams: int | None = None,
        num_input_views: int | None = None,
        sinkhorn_iters: int = 5,
        mixes_ones: bool = False,
    ) -> None:
        streams = num_residual_streams if streams is None else streams
        views = views if num_input_views is None else num_input_views
        if streams is None:
            raise TypeError('HyperConnection: `num_residual_streams` is missing')
        super().__init__(streams, views)
        self.sinkhorn_iters, self.mixes_ones = sinkhorn_iters, mixes_ones
        self.norm = nn.LayerNorm(dim, bias=False)
        own = torch.zeros(streams, views)
        own[layer_index % streams] = 1.0
        self.static_beta = nn.Parameter(torch.ones(streams))
        self.static_alpha = nn.Parameter(torch.cat((own, torch.eye(streams)), dim=1))
        self.dynamic_alpha_fn = nn.Parameter(torch.zeros(dim, views + streams))
        self.dynamic_alpha_scale = nn.Parameter(torch.tensor(1e-2))
        self.dynamic_beta_fn = nn.Parameter(torch.zeros(dim))
        self.dynamic_beta_scale = nn.Parameter(torch.tensor(1e-2))

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        streams = rearrange(x, '(b s) n d -> b n s d', s=self.streams)
        normed = self.norm(streams)
        alpha = (normed @ self.dynamic_alpha_fn) * self.dynamic_alpha_scale + self.static_alpha
        read = alpha[..., : self.views].sigmoid()
        beta = 2 * (normed @ self.dynamic_beta_fn).sigmoid() * self.dynamic_beta_scale + self.static_beta
        branch = einsum(read, streams, 'b n s v, b n s d -> v b n d')
        if self.mixes_ones:
            kept = streams.sum(dim=-2, keepdim=True).expand_as(streams)
        else:
            mix = sinkhorn(alpha[..., self.views :], self.sinkhorn_iters)
            kept = einsum(mix, streams, 'b n s t, b n s d -> b n t d')
        return branch[0] if self.views == 1 else branch, kept, {'beta': 2 * beta.sigmoid()}

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not self.mixes_ones and learned_beside_ones(state_dict, prefix, self.views):
            warn_once(
                'these weights of residual streams were trained with a mixing matrix of ones, as in '
                "x-transformers 2.14 to 2.31: set `hyper_conn_residual_mix='ones'` for the same results"
            )


def normalized_streams(streams: Tensor) -> Tensor:
    """Return the streams of a token (b n s d) as one vector (b n sd) of mean square 1, in float32 at least."""
    return rms_normed(streams.flatten(-2).to(at_least_float(streams.dtype)), MHC_EPS)


class ManifoldHyperConnection(Streams):
    """Hyper-connection whose mixing matrix, doubly stochastic, follows from all streams of a token together.

        u = flat(R) / rms(R);  a (s), p (s), m (s, s) = u fn^T
        read   = sum over s of (sigmoid(scale_0 a + base) + eps) R[s]
        M      = softmax of each row of  scale_2 m + base,  + eps;  its columns, then rows and columns in turn, are
                 divided by their sums + eps
        R new  = sum over s of M[s, t] R[s] + beta out,   beta = 2 sigmoid(scale_1 p + base)

    Xie et al. 2025, arXiv:2512.24880
    """

    def __init__(self, dim: int, layer_index: int = 0, *, streams: int, views: int, sinkhorn_iters: int) -> None:
        super().__init__(streams, views)
        if views > 1:
            raise ConfigError(
                "`hyper_conn_residual_mix='mhc'` cannot be combined with `qkv_receive_diff_residuals`: a branch has "
                'one input'
            )
        self.iters, count = sinkhorn_iters, 2 * streams + streams**2
        self.fn = nn.Parameter(torch.randn(count, streams * dim) * 0.02)
        self.base, self.scale = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(3))

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        streams, s = rearrange(x, '(b s) n d -> b n s d', s=self.streams), self.streams
        u = normalized_streams(streams)
        with disable_autocast(x):
            logits = nn.functional.linear(u, self.fn.to(u.dtype)).split((s, s, s * s), dim=-1)
            read, beta, mix = (
                t * scale + base
                for t, scale, base in zip(logits, self.scale, self.base.split((s, s, s * s)), strict=True)
            )
            mix = mix.unflatten(-1, (s, s)).softmax(dim=-1) + MHC_EPS
            for step in range(2 * self.iters - 1):  # columns first, and last
                mix = mix / (mix.sum(dim=-1 if step % 2 else -2, keepdim=True) + MHC_EPS)
        branch = einsum((read.sigmoid() + MHC_EPS).to(x.dtype), streams, 'b n s, b n s d -> b n d')
        kept = einsum(mix.to(x.dtype), streams, 'b n s t, b n s d -> b n t d')
        return branch, kept, {'beta': 2 * beta.sigmoid().to(x.dtype)}


class StreamReadout(nn.Module):
    """The sum of the streams (b s) n d with weights  sigmoid(scale u fn^T + base) + eps,  as in the layers."""

    def __init__(self, dim: int, streams: int) -> None:
        super().__init__()
        self.fn = nn.Parameter(torch.randn(streams, streams * dim) * 0.02)
        self.base, self.scale = nn.Parameter(torch.zeros(streams)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        streams = rearrange(x, '(b s) n d -> b n s d', s=len(self.base))
        u = normalized_streams(streams)
        with disable_autocast(x):
            weights = (nn.functional.linear(u, self.fn.to(u.dtype)) * self.scale + self.base).sigmoid() + MHC_EPS
        return einsum(weights.to(x.dtype), streams, 'b n s, b n s d -> b n d')


def learned_beside_ones(state: dict[str, Tensor], prefix: str, views: int) -> bool:
    """Return True if a hyper-connection has learned, but not how to mix: a matrix of ones gives that no gradient."""
    names = ('dynamic_alpha_fn', 'dynamic_beta_fn', 'static_alpha')
    alpha, beta, own = (state.get(prefix + name) for name in names)
    if alpha is None or beta is None or own is None or alpha.is_meta or alpha.ndim != 2:
        return False
    mix = own[:, views:]
    still = not alpha[:, views:].any() and not (mix - mix.diagonal().diag()).any()
    return bool(still and (beta.any() or alpha[:, :views].any()))


class GatedMultiResidual(Streams):
    """Gates from all streams together say what a branch reads of each feature, and how much each stream takes up.

    n      = R / rms(R) read_gain                                R, the streams: b n s d
    g      = silu(W n / s) scale                                 b n r
    read   = 1 / s  sum over s of sigmoid(W_read g + static_read_logit) n        (v) b n d
    R new  = R + beta out,   beta = 2 sigmoid(W_write g + static_write_logit)    b n s
    """

    def __init__(
        self, dim: int, layer_index: int = 0, *, streams: int = 1, views: int = 1, read_gate_rank: int = 0
    ) -> None:
        super().__init__(streams, views)
        if not is_int(read_gate_rank) or read_gate_rank < 1:
            raise ConfigError(
                '`gated_multi_residual` needs `residual_fn_kwargs` with `read_gate_rank`, '
                f'an integer of at least 1, got {read_gate_rank!r}'
            )
        self.read_gain = nn.Parameter(torch.ones(streams, dim))
        logits = torch.zeros(views, streams, dim)
        logits[:, layer_index % streams] = 1.0
        self.static_read_logit = nn.Parameter(logits)
        self.static_write_logit = nn.Parameter(torch.zeros(streams))
        self.to_bottleneck = nn.Linear(streams * dim, read_gate_rank, bias=False)
        self.to_read_gate = nn.Linear(read_gate_rank, views * streams * dim, bias=False)
        self.to_write_gate = nn.Linear(read_gate_rank, streams, bias=False)
        nn.init.zeros_(self.to_read_gate.weight)
        nn.init.zeros_(self.to_write_gate.weight)
        self.dynamic_gate_scale = nn.Parameter(torch.tensor(1e-2))

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        streams = rearrange(x, '(b s) n d -> b n s d', s=self.streams)
        eps = torch.finfo(torch.float32).eps
        power = (streams if x.dtype == torch.float64 else streams.float()).square().mean(dim=-1, keepdim=True)
        normed = (streams * (power + eps).rsqrt()).to(x.dtype) * self.read_gain
        together = rearrange(normed, 'b n s d -> b n (s d)') / self.streams
        gates = nn.functional.silu(self.to_bottleneck(together)) * self.dynamic_gate_scale
        dynamic = rearrange(self.to_read_gate(gates), 'b n (v s d) -> b n v s d', v=self.views, s=self.streams)
        read = (dynamic + self.static_read_logit).sigmoid() * rearrange(normed, 'b n s d -> b n 1 s d')
        branch = reduce(read, 'b n v s d -> v b n d', 'sum') / self.streams
        beta = 2 * (self.to_write_gate(gates) + self.static_write_logit).sigmoid()
        return branch[0] if self.views == 1 else branch, streams, {'beta': beta}


# the features


class ResidualStreams(StackFeature):
    """Several residual streams: copies of the input, each plus a learned embedding. The output is their sum."""

    paper = 'Hyper-Connections, arXiv:2409.19606'
    refuses = {'some tokens': 'the streams are part of the batch axis'}
    num_residual_streams = flag(1, 'number of residual streams', size, example=2)
    altup = flag(False, 'AltUp: blocks compute one of the streams, the others are predicted and corrected')
    requires_flag = {'altup': 'num_residual_streams'}
    clashes = dict.fromkeys(
        ('gate_residual', 'orthog_residual', 'mv_split_residual'), 'it supports a single residual stream'
    )
    stored_as = {'embedding': 'stream_emb'}

    @classmethod
    def variant(cls, values: Any) -> type[ResidualStreams]:
        return AltUp if values['altup'] else cls

    def setup(self, owner: Any) -> None:
        self.embedding = nn.Parameter(torch.zeros(self.num_residual_streams, owner.dim))

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        streams = rearrange(x, 'b n d -> b 1 n d') + rearrange(self.embedding, 's d -> s 1 d')
        return rearrange(streams, 'b s n d -> (b s) n d')

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        if getattr(self.owner, 'stream_readout', None) is not None:
            return self.owner.stream_readout(x)
        return reduce(x, '(b s) n d -> b n d', 'sum', s=self.num_residual_streams)


class AltUpBlock(nn.Module):
    """Predict and correct the streams (s b n d) around a block, see `AltUp`."""

    def __init__(self, dim: int, streams: int) -> None:
        super().__init__()
        self.norm, self.router = RMSNorm(dim, eps=1e-6), nn.Linear(dim, streams, bias=False)
        self.to_prediction = nn.Linear(streams, streams * streams, bias=False)
        self.to_correction = nn.Linear(streams, streams, bias=False)
        for linear in (self.to_prediction, self.to_correction):
            nn.init.zeros_(linear.weight)

    def route(self, x: Tensor) -> Tensor:
        return (self.router(self.norm(x) / x.shape[-1])).tanh()

    def predict(self, streams: Tensor) -> Tensor:
        mix = rearrange(self.to_prediction(self.route(streams[0])), 'b n (t s) -> b n t s', s=len(streams))
        return streams + einsum(mix, streams, 'b n t s, s b n d -> t b n d')

    def correct(self, x: Tensor, predicted: Tensor) -> Tensor:
        factors = rearrange(self.to_correction(self.route(x)) + 1, 'b n s -> s b n 1')
        return predicted + (x - predicted[0]) * factors


class AltUpSide(nn.Module):
    """Add the output of a per-layer embedding to all streams but the one that blocks compute."""

    def __init__(self, dim: int, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.scale = branch, nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor, *, altup: Any, **inputs: Any) -> Tensor:
        streams = altup.streams
        altup.streams = torch.cat((streams[:1], streams[1:] + self.branch(x * self.scale, **inputs)))
        return torch.zeros_like(x)


def match_power(t: Tensor, like: Tensor) -> Tensor:
    """Scale vectors so that their mean square is that of others, except where it is below 1e-5."""
    power, own = (v.to(at_least_float(v.dtype)).square().mean(dim=-1, keepdim=True) for v in (like, t))
    return (t * (power.sqrt() * own.clamp(min=1e-5).rsqrt())).to(t.dtype)


class AltUp(ResidualStreams):
    """AltUp: s streams, of which each block computes the first; the others are predicted and corrected.

        X_0 = x,  X_i = U_i x                           at first, of the mean square of x
        X  = X + A(X_0) X                               before a block, A (s, s) per token
        z  = block(X_0)
        X  = X + (z - X_0) (c(z) + 1)                   after it, c (s) per token
        out = mean over streams of X_0 and V_i X_i      V_i X_i of the mean square of X_0

    A and c are linear in m(t) = tanh(W_r norm(t) / d), and 0 at first. Between the stages of a block the residual
    stream is the first stream; per-layer embeddings are added to the others.
    """

    paper = 'AltUp, arXiv:2301.13310; Gemma 3n'
    refuses = {'some tokens': 'it changes all streams of every token around blocks'}
    stored_as = {'blocks': 'altup_blocks', 'ups': 'altup_ups', 'unembeds': 'altup_unembeds'}

    def setup(self, owner: Any) -> None:
        if owner.features.find(UseGatedMultiResidual) is not None:
            raise ConfigError('`altup` cannot be combined with `gated_multi_residual`: both define the streams')
        if owner.features.find(ReceiveViews) is not None:
            raise ConfigError('`altup` cannot be combined with `qkv_receive_diff_residuals`: branches have one input')
        streams, self.length = self.num_residual_streams, owner.len_default_block
        blocks = (len(owner.layer_types) + self.length - 1) // self.length
        self.blocks: Any = nn.ModuleList(AltUpBlock(owner.dim, streams) for _ in range(blocks))
        self.ups, self.unembeds = (
            nn.ModuleList(nn.Linear(owner.dim, owner.dim, bias=False) for _ in range(streams - 1)) for _ in range(2)
        )

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return AltUpSide(self.owner.dim, branch) if kind == 'p' else branch

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        return {**inputs, 'altup': call.ctx(self)} if layer.kind == 'p' else inputs

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.ctx(self).streams = torch.stack([x, *(match_power(up(x), x) for up in self.ups)])
        call.ctx(self).block = None
        return x

    def correct(self, x: Tensor, call: Any) -> Tensor:
        """Correct the streams after the block that has run, if any."""
        own = call.ctx(self)
        if own.block is None:
            return x
        own.streams, own.block = self.blocks[own.block].correct(x, own.streams), None
        return own.streams[0]

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        own, begins = call.ctx(self), layer.index % self.length == 0
        if begins or layer.kind == 'p':
            x = self.correct(x, call)
        if not begins or layer.kind == 'p':
            return x
        own.block = layer.index // self.length
        own.streams = self.blocks[own.block].predict(torch.cat((x.unsqueeze(0), own.streams[1:])))
        return own.streams[0]

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        x = self.correct(x, call)
        others = zip(self.unembeds, call.ctx(self).streams[1:], strict=True)
        return torch.stack([x, *(match_power(unembed(t), x) for unembed, t in others)]).mean(dim=0)


class HyperConnections(StackFeature):
    """Hyper-connections: each layer mixes the residual streams by a doubly stochastic matrix."""

    paper = 'Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880'
    hyper_conn_sinkhorn_iters = flag(5, 'number of Sinkhorn iterations for the mixing matrix', count, example=1)
    hyper_conn_residual_mix = flag(
        'sinkhorn',
        "mixing matrix of the streams: 'sinkhorn' (doubly stochastic), 'mhc' (from all streams of a token, with a "
        "learned readout; 20 iterations in the paper), or 'ones' for weights of x-transformers 2.31",
        one_of('sinkhorn', 'mhc', 'ones'),
        example='ones',
    )
    switches = ('num_residual_streams',)
    stored_as = {'readout': 'stream_readout'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['num_residual_streams'] > 1 and not (values.get('gated_multi_residual') or values.get('altup'))

    def setup(self, owner: Any) -> None:
        if self.hyper_conn_residual_mix == 'mhc':
            if self.hyper_conn_sinkhorn_iters < 1:
                raise ConfigError(
                    "`hyper_conn_sinkhorn_iters` must be at least 1 with `hyper_conn_residual_mix='mhc'`, got 0"
                )
            self.readout = StreamReadout(owner.dim, owner.num_residual_streams)

    def residual(self, *args: Any, layer_index: int, **options: Any) -> nn.Module:
        options = drop_scales('num_residual_streams', options, 'scale_residual', 'scale_residual_constant')
        views = ReceiveViews.views_of_residual(self.owner, layer_index)
        own: dict[str, Any] = dict(streams=self.owner.num_residual_streams, views=views, layer_index=layer_index)
        if self.hyper_conn_residual_mix == 'mhc':
            own |= dict(sinkhorn_iters=self.hyper_conn_sinkhorn_iters)
            return ManifoldHyperConnection(*args, **{**own, **options})
        own |= dict(mixes_ones=self.hyper_conn_residual_mix == 'ones', sinkhorn_iters=self.hyper_conn_sinkhorn_iters)
        return HyperConnection(*args, **{**own, **options})


class UseGatedMultiResidual(StackFeature):
    """Gated residual streams: gates combine the streams to the branch input, and scale how much each is updated.

    The branch input is normalized, and so are the streams after each residual.
    """

    gated_multi_residual = flag(False, 'mix the streams by gates; needs `residual_fn_kwargs=dict(read_gate_rank=...)`')
    sets_on_module = ('norm_before', 'norm_outside', 'norm_at_end')

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            warn_once('`pre_norm` has no effect beside `gated_multi_residual`, which sets the positions of the norms')
        owner.norm_before, owner.norm_outside, owner.norm_at_end = False, True, True

    def residual(self, *args: Any, layer_index: int, **options: Any) -> nn.Module:
        options = drop_scales('gated_multi_residual', options, 'scale_residual', 'scale_residual_constant')
        found = self.owner.features.find(ResidualStreams)
        own = dict(streams=1 if found is None else found.num_residual_streams)
        own['views'] = ReceiveViews.views_of_residual(self.owner, layer_index)
        return GatedMultiResidual(*args, layer_index=layer_index, **own, **options)

"""Feature maps: what makes features of queries and keys, and the random vectors that some are made with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# of vectors (... e), and whether levels are wanted: features (... m), and levels (... 1) or None, as in `FeatureMap`
Phi = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]


def orthogonal_normals(count: int, width: int, like: Tensor | None = None) -> Tensor:
    """Vectors (m e), each drawn from N(0, I), of which those of a block of e are orthogonal to each other."""
    where: dict[str, Any] = dict(dtype=torch.float32, device=None if like is None else like.device)
    square, upper = torch.linalg.qr(torch.randn(-(-count // width), width, width, **where))
    # without the signs the directions are not uniform, and the estimate is biased
    square = square * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(count, width, **where).norm(dim=-1, keepdim=True)
    return square.mT.flatten(0, 1)[:count] * lengths


def favor(
    x: Tensor, w: Tensor, hyperbolic: bool = False, scale: float = 1.0, leveled: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Positive features (... e) -> (... m), at most 1, and logarithms (... 1) of what they are to be multiplied with,
    if these are wanted:

    E sum_m exp(f_m(x) + f_m(y)) = exp(scale x . y),   f(x) = r w x - |r x|^2 / 2 - log(m) / 2,  r = scale^1/2;
    hyperbolic: for w and -w
    """
    along = x @ (w * scale**0.5).mT
    along = torch.cat((along, -along), dim=-1) if hyperbolic else along
    top = along.detach().amax(dim=-1, keepdim=True)  # what it does not matter by how much it is
    features = along.sub_(top).exp_()
    if not leveled:
        return features, None
    squares = x.square().sum(dim=-1, keepdim=True) * scale
    return features, top - (squares + math.log(features.shape[-1])) / 2


def dpfp(x: Tensor, nu: int) -> Tensor:
    """Deterministic products of what is positive (... e) -> (... 2 e nu):  r_i r_i-1, ..., r_i r_i-nu,
    r = (relu(x), relu(-x))"""
    r = torch.cat((x.relu(), (-x).relu()), dim=-1)
    return torch.cat([r * r.roll(by, -1) for by in range(1, nu + 1)], dim=-1)


def map_head(x: Tensor, w: Tensor) -> Tensor:
    """Products with the vectors of each head.  x: b k n e, or with groups b k g n e;  w: k e m"""
    return x @ (w if x.ndim == 4 else w.unsqueeze(1))


def waves(x: Tensor, w: Tensor, unit: bool) -> tuple[Tensor, Tensor | None]:
    """Sines and cosines (... e) -> (... 2 m), and the logarithms (... 1) of what they are to be multiplied with:

    E phi(x) . phi(y) = exp(x . y),  where vectors are of one length (`unit`) times a number, and has no level
    """
    along = map_head(x, w)
    features = torch.cat((along.sin(), along.cos()), dim=-1) * w.shape[-1] ** -0.5
    return features, None if unit else x.square().sum(dim=-1, keepdim=True) / 2


def half_waves(x: Tensor, w: Tensor) -> Tensor:
    """(... e) -> (... m):  m^-1/2 relu(w x), whose products depend on the angle of two vectors."""
    return map_head(x, w).relu() * w.shape[-1] ** -0.5


def scale_to_unit_length(x: Tensor) -> Tensor:
    return x * x.square().sum(dim=-1, keepdim=True).clamp(min=1e-12).rsqrt()


def scale_to_unit_sum(x: Tensor) -> Tensor:
    return x / x.sum(dim=-1, keepdim=True).clamp(min=1e-6)


def relu_features(x: Tensor, w: Tensor) -> Tensor:
    """(... e) -> (... m):  m^-1/2 relu(w x) + 0.001"""
    return (x @ w.mT).relu() * len(w) ** -0.5 + 1e-3


def elu_features(x: Tensor, root: Any) -> Tensor:
    """elu(root x) + 1"""
    # a compiled graph takes the strides of x to be those of its gradient, which they are not in general
    x = x.contiguous() if torch.compiler.is_compiling() else x
    if isinstance(root, Tensor):
        return F.elu(x * root).add_(1)
    return torch.ops.aten.elu(x, 1 / root, root, root).add_(1)  # alpha, factor of all, factor inside of exp

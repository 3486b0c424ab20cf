"""Cross entropy of tokens over a large vocabulary, without a tensor of all logits.

Losses of tokens, given their logits or the hidden states that a head reads. The path of a loss, fastest first:

    fused     a plain linear head: a few tokens at a time; logits turn into their gradient in place, in the forward pass
    chunks    another head: a few tokens at a time, computed again in the backward pass
    whole     all logits: they are there already, or somebody listens to the head
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, dtype_of_products, is_transformed
from x_transformers.core.recompute import ModuleSnapshot, differentiate_formula, identity, is_batched_grad, recompute
from x_transformers.flags import format_value, is_int, is_number
from x_transformers.flags.checks import Maybe
from x_transformers.training.entmax import entmax_losses
from x_transformers.training.items import count_items

__all__ = ['Readout', 'linear_cross_entropy', 'next_token_loss', 'token_losses', 'weighted_token_loss']

# The logits of one chunk. On a CPU they shall stay in the cache between the passes over them, but the gradient of the
# weights is read and written once per chunk, so that there are not too few tokens; a GPU wants large products.
CHUNK_BYTES = {'cpu': 2**23}
CHUNK_BYTES_ELSEWHERE = 2**28
FEWEST_TOKENS, TILE = 128, 64
# Of them, on a CPU, as many rows at a time as stay in the nearer cache from their maximum to their sum.
ROW_BYTES = 2**20


Now = Callable[[Any], Any]  # a module -> what stands for it when its part of the loss is computed, now or later


class Terms(NamedTuple):
    """Terms of the loss of a token, with logits z, target t, smoothing e and weight w:

    lse(z) - (1 - e) z_t - e mean(z) + w lse(z)^2        0 if the target is ignored

    `num_items`, if there is one, divides the sum of the losses, in place of the number of targets. With `entmax_alpha`
    the loss is `entmax_loss`.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    z_loss_weight: float = 0.0
    is_log_prob: bool = False
    num_items: Maybe[Tensor | int] = None
    entmax_alpha: Maybe[float] = None

    @property
    def can_fuse(self) -> bool:
        """Return True for the cross entropy of logits, which a linear head and the loss compute together."""
        return not self.is_log_prob and self.entmax_alpha is None


def tokens_at_a_time(classes: int, like: Tensor) -> int:
    """Return the number of tokens whose logits are computed together."""
    wanted = CHUNK_BYTES.get(like.device.type, CHUNK_BYTES_ELSEWHERE)
    tokens = wanted // (classes * at_least_float(like.dtype).itemsize)
    return max(tokens - tokens % TILE, FEWEST_TOKENS)


def cross_entropies(logits: Tensor, targets: Tensor, terms: Terms) -> Tensor:
    """Return the loss of each target (...) under logits (... l), in float32 at least; the plain formula."""
    shape, logits = targets.shape, logits.flatten(0, -2)
    targets = targets.flatten()
    ignored = targets == terms.ignore_index
    if terms.entmax_alpha is not None:
        losses = entmax_losses(logits, targets.masked_fill(ignored, 0), terms.entmax_alpha)
        return losses.masked_fill(ignored, 0.0).view(shape)
    log_probs = logits if terms.is_log_prob else logits.log_softmax(dim=-1, dtype=at_least_float(logits.dtype))
    losses = F.nll_loss(log_probs, targets, ignore_index=terms.ignore_index, reduction='none')
    losses = losses.to(at_least_float(losses.dtype))
    if terms.label_smoothing:
        even = -log_probs.mean(dim=-1).masked_fill(ignored, 0.0)
        losses = losses.lerp(even.to(losses.dtype), terms.label_smoothing)
    if terms.z_loss_weight:
        lse = logits.to(losses.dtype).logsumexp(dim=-1)
        losses = losses + terms.z_loss_weight * lse.square().masked_fill(ignored, 0.0)
    return losses.view(shape)


def share_weight(losses: Tensor, shares: Tensor) -> Tensor:
    """Return the sum of shares times losses. Losses with a share of zero may be NaN."""
    return (losses * shares).masked_fill(shares == 0, 0.0).sum()


def mean_shares(valid: Tensor, like: Tensor, num_items: Any = None) -> Tensor:
    """Return the share of each target in the mean over valid ones, or in a sum divided by `num_items`."""
    return valid.to(at_least_float(like.dtype)) / count_items(valid, num_items)


# the fused loss of a linear head


class Gradients(NamedTuple):
    """Gradients of hidden states, weights and bias, in float32 at least; None if not required."""

    hidden: Maybe[Tensor]
    weight: Maybe[Tensor]
    bias: Maybe[Tensor]


def run(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    shares: Maybe[Tensor],
    terms: Terms,
    dtype: torch.dtype,
    forms: tuple[bool, bool, bool] = (False, False, False),
) -> tuple[Tensor, Gradients]:
    """Return the loss of each token (n), and the gradients of the sum of all `shares` (n) times losses.

    hidden   n d     weight   l d     bias   l     targets   n
    dtype            of the matrix products
    forms            of which of the first three to form the gradient

    The logits z of a chunk become s (softmax(z) (1 + 2 w lse) - target), s = sum exp(z - max z), in one buffer; the
    division by s is that of rows of the hidden states, which are shorter.
    """
    if hidden.device.type != 'meta' and torch.is_autocast_enabled(hidden.device.type):
        with torch.autocast(hidden.device.type, enabled=False):
            return run(hidden, weight, bias, targets, shares, terms, dtype, forms)
    (n, classes), exact = (hidden.shape[0], weight.shape[0]), at_least_float(hidden.dtype)
    size = max(min(n, tokens_at_a_time(classes, hidden)), 1)
    losses = hidden.new_empty(n, dtype=exact)
    ignored = targets == terms.ignore_index
    targets = targets.masked_fill(ignored, 0)
    shares = None if shares is None else shares.to(exact).masked_fill(ignored, 0.0)
    # half precision is for numbers near one
    unit: Any = None if shares is None or n == 0 or dtype == exact else shares.abs().amax().clamp(min=1e-30)
    shares = shares if shares is None or unit is None else shares / unit
    table, offset = weight.to(dtype), None if bias is None else bias.to(dtype)
    buffer = hidden.new_empty(size, classes, dtype=exact)
    lower = buffer if dtype == exact else hidden.new_empty(size, classes, dtype=dtype)
    grads = Gradients(
        hidden.new_empty(hidden.shape, dtype=exact) if forms[0] else None,
        (weight.new_empty if n else weight.new_zeros)(weight.shape, dtype=exact) if forms[1] else None,
        weight.new_zeros(classes, dtype=exact) if forms[2] else None,
    )
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        x, target = hidden[rows].to(dtype), targets[rows].unsqueeze(-1)
        z = lower[: x.shape[0]]
        torch.mm(x, table.t(), out=z) if offset is None else torch.addmm(offset, x, table.t(), out=z)
        z = z if lower is buffer else buffer[: x.shape[0]].copy_(z)
        losses[rows], lse, total = into_exponentials(z, target, terms)
        if any(forms):
            into_slopes(z, target, lse, total, terms)
            share = shares[rows].unsqueeze(-1)
            if grads.bias is not None:
                grads.bias.addmv_(z.t(), (share / total).squeeze(-1))
            if lower is buffer:
                share = share / total
            else:
                z = torch.mul(z, total.reciprocal(), out=lower[: x.shape[0]])
            accumulate(grads, z, x, share, table, rows)
    if unit is not None:
        for grad in grads:
            None if grad is None else grad.mul_(unit)
    return losses.masked_fill_(ignored, 0.0), grads


def into_exponentials(z: Tensor, target: Tensor, terms: Terms) -> tuple[Tensor, Tensor, Tensor]:
    """Turn logits (c, l) into exp(z - max z), in place. Returns the loss (c,), log-sum-exp (c, 1) and sum (c, 1)."""
    at_target = z.gather(1, target)
    even = z.mean(dim=-1, keepdim=True) if terms.label_smoothing else None
    rows = max(ROW_BYTES // (z.shape[-1] * z.itemsize), 1) if z.device.type == 'cpu' else z.shape[0]
    top, total = (torch.cat(parts) for parts in zip(*map(exponentials, z.split(rows)), strict=True))
    lse = top + total.log()
    loss = lse - at_target
    if even is not None:
        loss = loss.lerp(lse - even, terms.label_smoothing)
    if terms.z_loss_weight:
        loss = loss + terms.z_loss_weight * lse.square()
    return loss.squeeze(-1), lse, total


def exponentials(z: Tensor) -> tuple[Tensor, Tensor]:
    top = z.amax(dim=-1, keepdim=True)
    return top, z.sub_(top).exp_().sum(dim=-1, keepdim=True)


def into_slopes(z: Tensor, target: Tensor, lse: Tensor, total: Tensor, terms: Terms) -> None:
    """Turn exp(z - max z) (c, l) into the gradient of the loss by the logits, times their sum, in place."""
    if terms.z_loss_weight:
        z.mul_(1 + 2 * terms.z_loss_weight * lse)
    if terms.label_smoothing:
        z.sub_(total * (terms.label_smoothing / z.shape[-1]))
    z.scatter_(1, target, z.gather(1, target) - (1 - terms.label_smoothing) * total)


def accumulate(grads: Gradients, slopes: Tensor, x: Tensor, share: Tensor, table: Tensor, rows: slice) -> None:
    """Add the gradients of a chunk, from slopes (c, l), hidden states (c, d) and the share of each token (c, 1)."""
    if grads.hidden is not None:
        if slopes.dtype == grads.hidden.dtype:
            torch.mm(slopes, table, out=grads.hidden[rows])
        else:
            grads.hidden[rows] = torch.mm(slopes, table).to(grads.hidden.dtype)
        grads.hidden[rows] *= share
    if grads.weight is None:
        return
    weighted, first = (x * share).to(x.dtype), rows.start == 0
    if slopes.dtype != grads.weight.dtype:
        part = torch.mm(slopes.t(), weighted)
        grads.weight.copy_(part) if first else grads.weight.add_(part)
    elif first:
        torch.mm(slopes.t(), weighted, out=grads.weight)
    else:
        grads.weight.addmm_(slopes.t(), weighted)


class FusedLoss(torch.autograd.Function):
    """Sum of shares (n,) times losses, or without shares the loss of each token (n,).

    The gradients of the sum are computed in the forward pass, and backward scales them; those of single losses in the
    backward pass, where the share of each is known. A second backward pass over the same graph forms them again; one
    with `create_graph` takes the plain formula.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        targets, shares, ctx.terms, ctx.dtype = rest
        ctx.save_for_backward(hidden, weight, bias, targets, shares)
        ctx.dtypes = get_dtypes(hidden, weight, bias)
        forms: Any = (False,) * 3 if shares is None else ctx.needs_input_grad[:3]
        losses, grads = run(hidden, weight, bias, targets, shares, ctx.terms, ctx.dtype, forms)
        ctx.grads = None if shares is None else grads
        return losses if shares is None else share_weight(losses, shares)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, shares = ctx.saved_tensors
        inputs = (hidden, weight, bias)
        forms = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or is_transformed() or is_batched_grad(grad):
            plain: Any = functools.partial(plain_loss, targets=targets, terms=ctx.terms, dtype=ctx.dtype)
            formula = plain if shares is None else lambda *t: share_weight(plain(*t), shares)
            return *differentiate_formula(formula, inputs, forms, grad), *NONE
        shares, factor = (grad, None) if shares is None else (shares, grad)
        grads, ctx.grads = ctx.grads, None  # given away: those of the weights need not be copied
        if grads is None:
            _, grads = run(*inputs, targets, shares, ctx.terms, ctx.dtype, forms)
        return *scale_gradients(grads, factor, ctx.dtypes), *NONE


NONE = (None,) * 4


def get_dtypes(*inputs: Tensor | None) -> list[torch.dtype | None]:
    return [None if t is None else t.dtype for t in inputs]


def scale_gradients(grads: Gradients, grad: Any, dtypes: list[torch.dtype | None]) -> list[Tensor | None]:
    """Return gradients multiplied by that of the loss, in place, in the dtypes of their inputs."""
    pairs = zip(grads, dtypes, strict=True)
    known = type(grad) is Tensor and grad.device.type == 'cpu' and not torch.compiler.is_compiling()
    itself = grad is None or (known and bool(grad == 1))  # a pass over the weights less
    factor: Any = grad
    return [None if g is None else (g if itself else g.mul_(factor)).to(dtype) for g, dtype in pairs]


def plain_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    terms: Terms,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the losses (n,) from all logits at once, with the matmul in `dtype` if given."""
    inputs: Any = (hidden, weight, bias)
    if dtype is not None:
        inputs = (None if t is None else t.to(dtype) for t in inputs)
    return cross_entropies(F.linear(*inputs), targets, terms)


# in a compiled graph: one opaque operation, as the function above is one node of the eager graph


@torch.library.custom_op(
    'x_transformers::linear_cross_entropy',
    mutates_args=(),
    schema='(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, Tensor shares, int ignore_index, '
    'float label_smoothing, float z_loss_weight, ScalarType dtype, bool[] forms) -> (Tensor, Tensor, Tensor, Tensor)',
)
def weighted_loss_op(hidden, weight, bias, targets, shares, ignore_index, smoothing, z_weight, dtype, forms):
    terms = Terms(ignore_index, smoothing, z_weight)
    losses, grads = run(hidden, weight, bias, targets, shares, terms, dtype, tuple(forms))
    return share_weight(losses, shares), *(losses.new_empty(0) if grad is None else grad for grad in grads)


@weighted_loss_op.register_fake
def _(hidden, weight, bias, targets, shares, ignore_index, smoothing, z_weight, dtype, forms):
    exact = at_least_float(hidden.dtype)
    shapes = (hidden.shape, weight.shape, weight.shape[:1])
    grads = (hidden.new_empty(shape if form else 0, dtype=exact) for shape, form in zip(shapes, forms, strict=True))
    return hidden.new_empty((), dtype=exact), *grads


def keep_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.forms, ctx.dtypes = inputs[-1], get_dtypes(*inputs[:3])


def scale_formed(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    formed = zip(ctx.saved_tensors, ctx.forms, ctx.dtypes, strict=True)
    return *((g * grad).to(dtype) if form else None for g, form, dtype in formed), *(None,) * 7


weighted_loss_op.register_autograd(scale_formed, setup_context=keep_for_backward)


# the choice


def is_plain(t: Tensor | None) -> bool:
    """Return True for a tensor that is no shard, not quantized, and no other subclass."""
    return t is None or type(t) in (Tensor, nn.Parameter)


def fused_losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, shares: Maybe[Tensor], terms: Terms
) -> Tensor:
    """Return the losses (n,) of tokens, or with shares (n,) the sum of their products."""
    compiling = torch.compiler.is_compiling()
    plain = not compiling and not (is_plain(hidden) and is_plain(weight) and is_plain(bias))
    if plain or is_transformed() or (compiling and shares is None):
        losses = plain_loss(hidden, weight, bias, targets, terms)
        return losses if shares is None else share_weight(losses, shares)
    dtype, inputs = dtype_of_products(hidden), (hidden, weight, bias)
    needs = tuple(t is not None and t.requires_grad and torch.is_grad_enabled() for t in inputs)
    if compiling:
        shares = shares.to(at_least_float(hidden.dtype))
        return weighted_loss_op(*inputs, targets, shares, *terms[:3], dtype, list(needs))[0]
    if hidden.device.type == 'cpu':
        wrong = ((targets < 0) | (targets >= weight.shape[0])) & (targets != terms.ignore_index)
        if wrong.any():
            raise IndexError(f'Target {int(targets[wrong][0])} is out of bounds: there are {weight.shape[0]} classes')
    if shares is not None:
        shares = shares.detach().to(at_least_float(hidden.dtype))
    if any(needs):
        return FusedLoss.apply(*inputs, targets, shares, terms, dtype)
    with torch.no_grad():
        losses, _ = run(*inputs, targets=targets, shares=None, terms=terms, dtype=dtype)
        return losses if shares is None else share_weight(losses, shares)


def check_linear(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, weights: Tensor | None) -> None:
    """Refuse what are no tensors, or of shapes that do not fit."""
    for name, t in (('hidden', hidden), ('weight', weight), ('targets', targets), ('bias', bias), ('weights', weights)):
        if not (torch.is_tensor(t) or (t is None and name in ('bias', 'weights'))):
            raise TypeError(f'`{name}` must be a tensor, got {format_value(t)}')
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:] or targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f'`hidden` got the shape {tuple(hidden.shape)}, `weight` {tuple(weight.shape)}, `targets` '
            f'{tuple(targets.shape)}, they must be (... d), (l d) and (...)'
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f'`bias` must have shape ({weight.shape[0]},), got {tuple(bias.shape)}')


def check_options(ignore_index: Any, label_smoothing: Any, z_loss_weight: Any) -> None:
    for name, value in (('label_smoothing', label_smoothing), ('z_loss_weight', z_loss_weight)):
        if not is_number(value):
            raise TypeError(f'`{name}` must be a number, got {format_value(value)}')
    if not is_int(ignore_index):
        raise TypeError(f'`ignore_index` must be an integer, got {format_value(ignore_index)}')
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f'`label_smoothing` must be a number from 0 to 1, got {label_smoothing}')
    if not z_loss_weight >= 0:
        raise ValueError(f'`z_loss_weight` must be a number of at least 0, got {z_loss_weight}')


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss_weight: float = 0.0,
    reduction: str = 'mean',
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy of `targets` under the logits  z = hidden weight^T + bias,  a few tokens at a time.

        loss = lse(z) - (1 - e) z_t - e mean(z) + w lse(z)^2        e label_smoothing, w z_loss_weight

    hidden      ... d
    weight      l d
    targets     ...     ids from 0 to l - 1, or `ignore_index`, whose loss is 0
    bias        l
    reduction           'mean' over the targets that are not ignored, 0 if there is none; 'sum'; 'none'
    weights     ...     with 'sum': of the loss of each token; without a gradient
    returns             scalar, or (...) with 'none'; in float32 at least
    raises              ValueError for shapes or options out of range, IndexError for a target out of range (CPU)

    Memory beside the gradients is a chunk of logits. For a sum or mean, the gradients are formed in the forward pass,
    three matrix products in all; for 'none' in the backward pass, with a fourth one. A second backward pass over the
    same graph forms them again; derivatives of higher order, torch.func and tensors of other kinds take the plain
    formula, and its memory.

    Label smoothing: Szegedy et al. 2016, arXiv:1512.00567; z-loss: Chowdhery et al. 2022, arXiv:2204.02311
    """
    check_linear(hidden, weight, targets, bias, weights)
    check_options(ignore_index, label_smoothing, z_loss_weight)
    if reduction not in ('mean', 'sum', 'none'):
        raise ValueError(f"`reduction` must be 'mean', 'sum' or 'none', got {reduction!r}")
    if weights is not None and (reduction != 'sum' or weights.shape != targets.shape or weights.requires_grad):
        raise ValueError(
            f"`weights` must have shape {tuple(targets.shape)} and no gradient, with `reduction='sum'`, got "
            f'{tuple(weights.shape)}, requires_grad={weights.requires_grad} and reduction={reduction!r}'
        )
    terms = Terms(ignore_index, label_smoothing, z_loss_weight)
    flat = rearrange(targets, '... -> (...)')
    valid = flat != ignore_index
    shares = {'none': None, 'sum': valid, 'mean': mean_shares(valid, hidden)}[reduction]
    shares = shares if weights is None else rearrange(weights, '... -> (...)')
    loss = fused_losses(rearrange(hidden, '... d -> (...) d'), weight, bias, flat, shares, terms)
    return loss.view(targets.shape) if reduction == 'none' else loss


# hidden states with the head that reads them


class Linear(NamedTuple):
    """A linear head:  z = s W x + b"""

    weight: Tensor
    bias: Maybe[Tensor] = None
    scale: float = 1.0


class SplitHead(NamedTuple):
    """Head as the modules that precede its last linear layers, and those layers, one for each tuple of logits."""

    before: tuple[nn.Module, ...]
    linears: tuple[Linear, ...]


# what the heads of each exact class are; a class of the user's, or a subclass, is called as it is
LINEAR_HEADS: dict[type[nn.Module], Callable[[Any], SplitHead | None]] = {
    nn.Linear: lambda head: SplitHead((), (Linear(head.weight, head.bias),))
}


def overheard(module: nn.Module) -> bool:
    """Return True if a call of the module does more than its class: hooks, or its own `forward`."""
    names = ('forward_hooks', 'forward_pre_hooks', 'backward_hooks', 'backward_pre_hooks')
    listens = any(getattr(module, f'_{name}') or getattr(nn.modules.module, f'_global_{name}') for name in names)
    return listens or 'forward' in module.__dict__


def split_head(head: Any) -> SplitHead | None:
    """Return the parts of a head that ends in unmodified linear layers, or None."""
    if overheard(head):
        return None
    if type(head) is nn.Sequential and len(head):
        *front, end = head
        last = split_head(end)
        return None if last is None else SplitHead((*front, *last.before), last.linears)
    split = LINEAR_HEADS.get(type(head))
    return None if split is None else split(head)


# modules of torch that look at each token alone
BY_TOKEN: set[type[nn.Module]] = {
    nn.Linear, nn.Sequential, nn.ModuleList, nn.Identity, nn.Dropout, nn.GELU, nn.SiLU, nn.ReLU, nn.ReLU6, nn.LeakyReLU,
    nn.ELU, nn.SELU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish,
}  # fmt: skip


def loss_by_token(module: Any) -> bool:
    """Return True if a module is known to process each token alone: by its exact class, or by declaration."""
    if getattr(module, 'by_token', False):
        return True
    norm = type(module) in (nn.LayerNorm, nn.RMSNorm) and len(module.normalized_shape) == 1
    return (norm or type(module) in BY_TOKEN) and all(map(loss_by_token, module.children()))


def reads_whole(head: nn.Module) -> bool:
    """Return True if a non-linear head needs all tokens at once: it may mix them, a graph is traced, or there are
    hooks.
    """
    listened = torch.compiler.is_compiling() or is_transformed() or any(map(overheard, head.modules()))
    return listened or not loss_by_token(head)


@dataclass(frozen=True)
class Readout:
    """Logits that are not computed yet: hidden states, and the head that reads them.

    hidden    b n d   or any other leading axes
    read              (now, hidden states) -> logits, or a tuple of them; each token alone
    linears           the head as linear maps, if it is no more than that
    classes           width of the logits, about
    whole             read all tokens at once
    modules           what `read` computes with, as `now(module)`; nothing below those in `without`
    """

    hidden: Tensor
    read: Callable[[Now, Tensor], Any]
    linears: tuple[Linear, ...] | None = None
    classes: int = 0
    whole: bool = False
    modules: tuple[nn.Module, ...] = ()
    without: tuple[nn.Module, ...] = ()

    @classmethod
    def through(cls, hidden: Tensor, head: nn.Module, classes: int = 0) -> Readout:
        """Return the outputs of a head, by its linear layers if it ends in them."""
        split = split_head(head)
        if split is None:
            return cls(hidden, lambda now, x: now(head)(x), None, classes, reads_whole(head), (head,))
        for module in split.before:
            hidden = module(hidden)
        return cls.linear(hidden, split.linears)

    @classmethod
    def linear(cls, hidden: Tensor, linears: tuple[Linear, ...]) -> Readout:
        def read(now: Now, x: Tensor) -> Any:
            logits = [F.linear(x * one.scale, one.weight, one.bias) for one in linears]
            return tuple(logits) if len(logits) > 1 else logits[0]

        return cls(hidden, read, linears)

    @property
    def shape(self) -> torch.Size:
        """Shape of the tokens."""
        return self.hidden.shape[:-1]

    def of(self, hidden: Tensor) -> Readout:
        """The readout of other hidden states."""
        return replace(self, hidden=hidden)

    def __getitem__(self, at: Any) -> Readout:
        """Return the readout of a subset of the tokens."""
        return self.of(self.hidden[at])

    @property
    def logits(self) -> Any:
        """Return all logits."""
        return self.read(identity, self.hidden)

    def losses(self, targets: Tensor, terms: Terms) -> tuple[Tensor, ...]:
        """Return the loss of each target, for each head."""
        hidden, flat = self.hidden.flatten(0, -2), targets.flatten()
        if self.linears is not None and terms.can_fuse:
            heads = self.linears
            found = [fused_losses(scaled_by(hidden, h), h.weight, h.bias, flat, None, terms) for h in heads]
        elif self.whole:
            return token_losses(self.logits, targets, terms)
        else:

            def of(now: Now, x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
                return tuple(one[0] for one in token_losses(self.read(now, x[None]), t[None], terms))

            found = sum_by_chunks(of, (hidden, flat), self.classes, self.modules, self.without)
        return tuple(one.view(targets.shape) for one in found)

    def loss(self, targets: Tensor, shares: Tensor, terms: Terms) -> Tensor:
        """Return the sum of all losses times `shares`, shaped like the targets; the mean over heads."""
        if self.linears is None or not terms.can_fuse or shares.requires_grad:
            found = [share_weight(losses, shares) for losses in self.losses(targets, terms)]
        else:
            rest = targets.flatten(), shares.flatten(), terms
            hidden = self.hidden.flatten(0, -2)
            found = [fused_losses(scaled_by(hidden, one), one.weight, one.bias, *rest) for one in self.linears]
        return sum(found[1:], found[0]) / len(found) if len(found) > 1 else found[0]


def scaled_by(hidden: Tensor, linear: Linear) -> Tensor:
    return hidden if linear.scale == 1 else hidden * linear.scale


def sum_by_chunks(
    function: Callable[..., tuple[Tensor, ...]],
    tensors: tuple[Tensor, ...],
    classes: int,
    modules: tuple[nn.Module, ...],
    without: tuple[nn.Module, ...] = (),
) -> tuple[Tensor, ...]:
    """Apply a function (now, ...) of tokens to all of them (n, ...), a few at a time, with recomputation in the
    backward pass. It computes with `modules`, as `now(module)`, and nothing below those in `without`.
    """
    size = tokens_at_a_time(max(classes, 1), tensors[0])
    run: Callable[..., tuple[Tensor, ...]] = functools.partial(function, identity)
    if torch.is_grad_enabled() and tensors[0].shape[0] > size:
        run = functools.partial(recompute, function, kept=ModuleSnapshot(*modules, without=without))
    parts = [run(*chunk) for chunk in zip(*(t.split(size) for t in tensors), strict=True)]
    return tuple(torch.cat(one) for one in zip(*parts, strict=True))


# models that leave their logits to the loss


def get_readout(model: Any, x: Tensor, call: Any, to_logits_kwargs: dict[str, Any]) -> Readout:
    """Return the output of a model's `read_out` for hidden states (b, n, d), not computed yet."""
    classes = model.logits_dim or model.num_tokens
    if not (to_logits_kwargs or model.features.by_stage.get('head_input') or model.features.by_stage.get('logits')):
        return Readout.through(x, model.to_logits, classes)
    part = None if call is None else call.with_values(in_part=True)

    def read(now: Now, x: Tensor) -> Any:
        own = None if part is None else part.with_values(features=now(part.features))
        return now(model).read_out(x, call=own, to_logits_kwargs=to_logits_kwargs)

    whole = bool(to_logits_kwargs) or reads_whole(model.to_logits)
    # what is spread may be several times as wide
    return Readout(x, read, None, 4 * classes, whole, (model,), (model.attn_layers,))


def read_out_later(model: Any, x: Tensor, call: Any) -> Readout:
    """Return `get_readout`, or if a loss may not read hidden states itself, one that calls `model.read_out`."""
    if model.can_return_readout:
        return get_readout(model, x, call, {})
    classes = model.logits_dim or model.num_tokens
    return Readout(x, lambda now, x: model.read_out(x, call, {}), None, classes, whole=True)


def may_read_later(model: Any, cls: type) -> bool:
    """Return True if a loss may read the hidden states of a model itself: no hook or override sees its output."""
    own = type(model).forward is cls.forward and type(model).read_out is cls.read_out
    stages = ('head_input', 'logits', 'model_output')
    acting = [feature for stage in stages for feature in model.features.by_stage.get(stage, ())]
    return own and model.to_logits is not None and not overheard(model) and all(f.by_token for f in acting)


def read_logits_later(net: Any) -> dict[str, Any]:
    """Return the keyword that makes a net leave its logits to the loss, if it can. Other nets compute them."""
    return {'return_readout': True} if hasattr(type(net), 'can_return_readout') and net.can_return_readout else {}


# losses of logits, or of a readout


def token_losses(logits: Any, targets: Tensor, terms: Terms) -> tuple[Tensor, ...]:
    """Return the loss of each target (b n), for each head; logits (b n l), a tuple of them, or a `Readout`."""
    if isinstance(logits, Readout):
        return logits.losses(targets, terms)
    heads = logits if isinstance(logits, tuple) else (logits,)
    return tuple(cross_entropies(head, targets, terms) for head in heads)


def weighted_token_loss(logits: Any, targets: Tensor, weights: Tensor, terms: Terms) -> Tensor:
    """Return the sum of `weights` (b, n) times losses, the mean over heads. Logits as in `token_losses`."""
    if isinstance(logits, Readout):
        return logits.loss(targets, weights, terms)
    losses = token_losses(logits, targets, terms)
    total: Any = sum(share_weight(one, weights) for one in losses)
    return total / len(losses)


def single_losses(logits: Any, targets: Tensor, terms: Terms, name: str = 'net') -> Tensor:
    """Return the loss of each target (b n), under the one head of a model."""
    first, *others = token_losses(logits, targets, terms)
    if others:
        raise ValueError(f'`{name}` must have one head, it gives several')
    return first


def mean_token_loss(logits: Any, targets: Tensor, terms: Terms) -> Tensor:
    """Return the mean over targets that are not ignored (0 if there is none), and over heads."""
    valid = targets != terms.ignore_index
    like = logits.hidden if isinstance(logits, Readout) else logits[0] if isinstance(logits, tuple) else logits
    return weighted_token_loss(logits, targets, mean_shares(valid, like, terms.num_items), terms)


def next_token_loss(
    logits: Any, targets: Tensor, *, ignore_index: int, is_log_prob: bool = False, num_items: Any = None
) -> Tensor:
    """Return the mean cross entropy of `targets` (b, n) under `logits` (b, n, l), in nats, over targets that are not
    ignored.

    Zero, and still joined to the graph, if all are ignored. In float32 at least. Logits may be a tuple of several
    heads, whose mean it is, or a `Readout`. With `num_items`, the sum divided by that.
    """
    return mean_token_loss(logits, targets, Terms(ignore_index, is_log_prob=is_log_prob, num_items=num_items))

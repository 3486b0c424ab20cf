"""Functions of logits and hidden states that models and wrappers share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor

from x_transformers.core.checks import as_mask, check_lengths, expand_batch, mask_from_lengths
from x_transformers.core.modes import to_float
from x_transformers.core.nets import counts_tokens


def each_head(function: Callable[[Tensor], Tensor], logits: Any) -> Any:
    """Apply `function` to logits, or to those of every head in a tuple or by name."""
    if isinstance(logits, dict):
        return {name: function(one) for name, one in logits.items()}
    return tuple(map(function, logits)) if isinstance(logits, tuple) else function(logits)


def readable(ids: Tensor, ignore_index: int, pad_value: int = 0) -> Tensor:
    """Return token ids as a net reads them, with the value for "no target" replaced by a token."""
    return ids.masked_fill(ids == ignore_index, pad_value)


def real_tokens(
    x: Tensor, mask: Tensor | None = None, lens: Tensor | None = None, start: Tensor | None = None
) -> Tensor | None:
    """Return which of the tokens `x` (b, n, ...) are real, (b, n), or None if all are: those of the `mask` (b, n), of
    the first `lens` (b,) of each row, and after the first `start` (b,), which are padding.

    Raises:
        ValueError or TypeError for another shape or kind.
    """
    b, n = x.shape[:2]
    found = [] if mask is None else [as_mask(expand_batch(mask, b), 'mask', b, n, like=x)]
    for name, value in (('lens', lens), ('seq_start_pos', start)):
        if value is not None:
            check_lengths(value, name, b, n)
            found.append(mask_from_lengths(value, n) if name == 'lens' else ~mask_from_lengths(value, n))
    return functools.reduce(torch.logical_and, found) if found else None


def predictable(real: Tensor, ahead: int = 1) -> Tensor:
    """Return which of the tokens from `ahead` on count as targets, (b, n - ahead), given which are real, (b, n).

    A prediction counts if both its target and the token `ahead` places before, which it is made from, are real.
    """
    return real[:, ahead:] & real[:, : max(real.shape[1] - ahead, 0)]


def mean_or_zero(t: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of all entries, or of those where `mask` is True; 0, joined to the graph, if there are none."""
    if mask is not None:
        return t.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)
    if torch.compiler.is_compiling():  # how many there are may depend on data
        count: Any = t.numel()  # of which an older torch only takes the maximum as that of a plain number
        return t.sum() / (max(count, 1) if isinstance(count, int) else torch.sym_max(count, 1))
    return t.mean() if t.numel() else t.sum()


def mean_of_rows(losses: Tensor, real: Tensor | None) -> Tensor:
    """Return the mean of the losses of rows, (b,), over those with a real token, given (b, n); 0 if there are none."""
    return mean_or_zero(losses, None if real is None else real.any(dim=-1))


def mask_before_padding(ids: Tensor, ignore_index: int) -> Tensor:
    """Return which ids (b, n) do not belong to the padding at the end of their row, where all are `ignore_index`."""
    return not_last(ids != ignore_index) | (ids != ignore_index)


def not_last(real: Tensor) -> Tensor:
    """Return which entries of rows (b, n) have a real one somewhere behind them."""
    return F.pad(real[:, 1:], (0, 1), value=False).flip(-1).cumsum(dim=-1).flip(-1) > 0


def read_of(mask: Tensor) -> Tensor:
    """Return which tokens a net reads to predict those behind them, (b, n - 1), of a mask of both, (b, n).

    The last real token of a row is a target alone, as it is where the row has no padding.
    """
    return (mask & not_last(mask))[:, :-1]


def tell_padding(net: Any, inputs: dict[str, Any], real: Callable[[], Tensor], counts: bool = False) -> None:
    """Add the mask that `real` gives to the inputs of a causal net, in place, if there is none and padding would change
    the output: a net that counts no tokens gives real ones the same, and is faster without. `counts` says that what is
    asked of the net counts tokens, whatever its features.
    """
    if inputs.get('mask') is None and (counts or counts_tokens(net)):
        inputs['mask'] = real()


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution over the last axis, in nats, in float32 at least."""
    log_probs = to_float(logits).log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def calc_z_loss(pre_softmax_attns: Sequence[Tensor], mask: Tensor | None = None, weight: float = 1.0) -> Tensor:
    """Weighted mean over queries of the squared log-sum-exps of attention logits, summed over layers, then heads.

        pre_softmax_attns    one b h i j per layer; 0 without any
        mask                 b i

    A query without any visible key counts for nothing.  Zoph et al. 2022, arXiv:2202.08906
    """
    if not pre_softmax_attns:
        return torch.zeros((), dtype=torch.float32, device=None if mask is None else mask.device)
    dtypes = [z.dtype for z in pre_softmax_attns]
    pre_softmax_attns = [to_float(z) for z in pre_softmax_attns]
    # hidden logits are -inf, or the lowest finite number
    seen = [(z > torch.finfo(dtype).min / 2).any(dim=-1) for z, dtype in zip(pre_softmax_attns, dtypes, strict=True)]
    total: Any = sum(
        z.masked_fill(~rearrange(some, 'b h i -> b h i 1'), 0.0).logsumexp(dim=-1).masked_fill(~some, 0.0)
        for z, some in zip(pre_softmax_attns, seen, strict=True)
    )
    counts = functools.reduce(torch.logical_or, seen).any(dim=1)
    counts = counts if mask is None else counts & mask.bool()
    loss = total.square().sum(dim=1).masked_fill(~counts, 0.0)
    return loss.sum() / counts.sum().clamp(min=1) * weight


def attn_z_loss(trace: Any, weight: float, x: Tensor, call: Any, stack: Any = None) -> Tensor:
    """Return `calc_z_loss` of the real queries of a model's call, of which every attention may have been left out.

    Raises:
        ValueError: The stack computes a part of the tokens alone, so that maps have no row for each.
    """
    for feature in getattr(getattr(stack, 'features', None), 'active', ()):
        if getattr(feature, 'leaves_out_tokens', False):
            raise ValueError(
                f'the z-loss of attention needs maps of all tokens, `{feature.display_name}` leaves some out'
            )
    maps = [inter.pre_softmax_attn for inter in trace.attn_intermediates]
    if not maps:
        return x.new_zeros(())
    token_mask, start = call.select_key_mask(call.token_mask), call.inputs.get('seq_start_pos')
    if start is not None:  # in the order of the stack padding is in front of all
        begun = ~mask_from_lengths(start, call.num_prefix_tokens + call.tokens)
        token_mask = begun if token_mask is None else begun & token_mask
    return calc_z_loss(maps, None if token_mask is None else token_mask[:, -maps[0].shape[-2] :], weight)


def kept_tokens(seq: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor | None]:
    """Draw the tokens of each row (b, n, d) to keep, (b, m), real ones first, and a mask of the real ones.

    With a mask, a row keeps that fraction of its real tokens.
    """
    batch, length = seq.shape[:2]
    scores = torch.randn(batch, length, dtype=torch.float32, device=seq.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    keep = max(1, int((1 - dropout) * length))
    chosen = scores.topk(keep, dim=1).indices
    if mask is None:
        return chosen, None
    counts = ((1 - dropout) * mask.sum(dim=1, keepdim=True)).ceil()
    return chosen, torch.arange(keep, device=seq.device) < counts


def dropout_seq(seq: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor | None]:
    """Keep a random subset of the tokens of each row, real ones first:  (b, n, d) -> (b, m, d)."""
    chosen, mask = kept_tokens(seq, mask, dropout)
    return seq.gather(1, repeat(chosen, 'b m -> b m d', d=seq.shape[-1])), mask

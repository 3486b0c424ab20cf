"""The chunked engine: recurrences of matrices along the tokens, as products of matrices inside of chunks.

    S <- diag(exp(decay_t)) S;   S <- S - write_t (erase_t^T S)^T + k_t v_t^T;   out_t = S^T q_t        S (d, e)

`run_chunks` computes it with any of these parts left out: sums of keys and values, decays per head or per channel, the
delta rule. Chunks of C tokens cost n C (d + e) for the pairs inside, and n d e for the states between.

Axes: b batch, h heads, n tokens, d channels of keys, e channels of values, N chunks, C tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.modes import disable_autocast, is_exporting, is_transformed, to_float

# Tokens of a chunk, a power of two: measured by benchmarks/recurrent_layers.py.
CHUNK = 64

# The engine.


def run_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    write: Tensor | None = None,
    state: Tensor | None = None,
    begins: Tensor | None = None,
    count: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a recurrence of matrices over all tokens:

        S <- diag(exp(decay)) S;   S <- S - write (erase^T S)^T + k v^T;   out = S^T q

    A token is read after it is written. It is computed in float32 at least, whatever the dtypes and autocast. Decays
    are only added, never subtracted, and no exponential exceeds 1: any decay of at most 0 is exact, -inf too.
    With `erase=k` and keys times beta this is the delta rule:  run_chunks(q, beta * k, v, decay, erase=k).

    Args:
        q: queries (b, g, n, d) of g groups; head i of h belongs to group i // (h / g)
        k: keys (b, g, n, d) that values are written at
        v: values (b, h, n, e)
        decay: logarithms of at most 0, (b, h, n, 1) per head or (b, h, n, d) per channel, where b and h may be 1; None
            for 0
        erase: keys (b, h, n, d) that the decayed state is read at before each write; None to erase nothing
        write: keys (b, h, n, d) that what was read is subtracted at, `k` if None
        state: S before the first token, (b, h, d, e), zeros if None
        begins: where a document begins, (b, n): the state is emptied before that token; None if nowhere
        count: number of tokens of each row that are real, (b): those after them leave the state as it is; None for all
        chunk: tokens of a chunk, a power of two

    Returns:
        Outputs (b, h, n, e), and S after the last token, (b, h, d, e): in float32, or float64 if v is.
    """
    with disable_autocast(v):
        q, k, v = to_float(q), to_float(k), to_float(v)
        decay, erase, write, state = (None if t is None else to_float(t) for t in (decay, erase, write, state))
        n = v.shape[2]
        if state is None:
            state = v.new_zeros(len(v), v.shape[1], k.shape[-1], v.shape[-1])
        if begins is not None:
            decay = v.new_zeros(1, 1, n, 1) if decay is None else decay
            decay = decay.masked_fill(begins[:, None, :, None], -torch.inf)
        if count is not None:
            padding = (torch.arange(n, device=v.device) >= count.unsqueeze(-1))[:, None, :, None]
            k = k.masked_fill(padding, 0.0)
            write = None if write is None else write.masked_fill(padding, 0.0)
            decay = None if decay is None else decay.masked_fill(padding, 0.0)
        if v.shape[1] != k.shape[1] and (n == 1 or erase is not None or (decay is not None and decay.shape[-1] > 1)):
            q, k = (t.repeat_interleave(v.shape[1] // k.shape[1], dim=1) for t in (q, k))
        if n == 1:
            return run_step(q, k, v, decay, erase, write, state)
        size = CHUNK if chunk is None else chunk
        size = size if torch.compiler.is_compiling() else min(size, 1 << (n - 1).bit_length())
        q, k, v = (split_chunks(t, size) for t in (q, k, v))
        decay, erase, write = (None if t is None else split_chunks(t, size) for t in (decay, erase, write))
        weights = ChunkWeights(decay)
        if erase is not None:
            out, state = correct_in_chunks(q, k, v, weights, erase, write, state)
        elif v.shape[1] == k.shape[1]:
            out, state = add_in_chunks(q, k, v, weights, state)
        else:
            out, state = add_in_groups(q, k, v, weights, state)
        return first_token(out.flatten(2, 3), n), state


def run_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, erase: Tensor | None, write: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one token."""
    state = state if decay is None else state * decay.exp().mT
    if erase is not None:
        state = state - (k if write is None else write).mT * (erase @ state)
    state = state + k.mT * v
    return q @ state, state


class ChunkWeights:
    """Factors that are left of what a token of a chunk writes.

    through    (b h N C x): from the start of the chunk through each token; None for 1
    after      (b h N C x): after each token to the end of the chunk; None for 1
    total      (b h N 1 x): of all tokens of the chunk; None for 1
    """

    def __init__(self, decay: Tensor | None) -> None:
        """decay: b h N C x"""
        self.through = self.after = self.total = self.near = None
        self.levels: list[tuple[Tensor, Tensor]] = []
        if decay is None:
            return
        through, after = decay.unsqueeze(-2), torch.zeros_like(decay).unsqueeze(-2)  # b h N blocks m x
        while through.shape[-3] > 1:
            pairs = (through.shape[-3] // 2, 2)
            (first, second), (early, late) = (t.unflatten(-3, pairs).unbind(-3) for t in (through, after))
            self.levels.append((second, early))
            through = torch.cat((first, second + first[..., -1:, :]), dim=-2)
            after = torch.cat((early + second[..., -1:, :], late), dim=-2)
        self.through, self.after = (t.squeeze(-3).exp() for t in (through, after))
        self.total = self.through[..., -1:, :]
        if decay.shape[-1] == 1:
            near = decay.new_zeros(*decay.shape[:-1], 1, 1)
            for later, earlier in self.levels:
                near = join_halves(near, later + earlier.mT, -torch.inf)
            self.near = near.squeeze(-3).exp()  # b h N C C
        else:
            self.levels = [(later.exp(), earlier.exp()) for later, earlier in self.levels]

    def products(self, q: Tensor, k: Tensor) -> Tensor:
        """Return products of queries and earlier keys, times what is left of these: two of (b h N C d) -> b h N C C.

        Where each channel has a decay of its own, a chunk is halved again and again: pairs of the halves meet in the
        middle, each side with factors of at most 1.
        """
        if self.through is None:
            return (q @ k.mT).tril()
        if self.near is not None:
            return (q @ k.mT) * self.near
        near = (q * k).sum(dim=-1)[..., None, None]  # b h N blocks m m
        for later, earlier in self.levels:
            halves = (later.shape[-3], 2, later.shape[-2])
            own, past = q.unflatten(-2, halves)[..., 1, :, :], k.unflatten(-2, halves)[..., 0, :, :]
            near = join_halves(near, (own * later) @ (past * earlier).mT, 0.0)
        return near.squeeze(-3)

    def carry(self, state: Tensor, own: Tensor) -> Tensor:
        """Return the states before each chunk and after the last, b h 1+N d e, by what chunks add, b h N d e."""
        none = own[..., :0]
        return carry_state(state, None if self.total is None else self.total.mT, none.mT, none, own[..., :0, :], own)[0]


def join_halves(blocks: Tensor, cross: Tensor, above: float) -> Tensor:
    """Join pairs of lower triangles to ones of twice the size:  ... 2B m m, ... B m m -> ... B 2m 2m"""
    first, second = blocks.unflatten(-3, (cross.shape[-3], 2)).unbind(-3)
    upper = F.pad(first, (0, first.shape[-1]), value=above)
    return torch.cat((upper, torch.cat((cross, second), dim=-1)), dim=-2)


def scale_by(t: Tensor, factor: Tensor | None) -> Tensor:
    return t if factor is None else t * factor


def add_in_chunks(q: Tensor, k: Tensor, v: Tensor, weights: ChunkWeights, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run chunks (b h N C ...) that write values as they are."""
    states = weights.carry(state, scale_by(k, weights.after).mT @ v)
    out = weights.products(q, k) @ v
    return out + scale_by(q, weights.through) @ states[:, :, :-1], states[:, :, -1].clone()


def add_in_groups(q: Tensor, k: Tensor, v: Tensor, weights: ChunkWeights, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run chunks of queries and keys (b g N C d) that heads of a group share: their values and states side by side."""
    groups, (heads, width) = k.shape[1], (v.shape[1], v.shape[-1])

    def merge(t: Tensor) -> Tensor:  # b h N c e -> b g N c (r e)
        return t.unflatten(1, (groups, -1)).movedim(2, -2).flatten(-2)

    def split(t: Tensor) -> Tensor:
        return t.unflatten(-1, (-1, width)).movedim(-2, 2).flatten(1, 2)

    states = weights.carry(state, split(k.mT @ merge(scale_by(v, weights.after))))
    near = (q @ k.mT).unsqueeze(2)  # b g 1 N C C
    if weights.near is None:
        near = near.tril().expand(-1, -1, heads // groups, -1, -1, -1)
    else:
        near = near * weights.near.expand(-1, heads, -1, -1, -1).unflatten(1, (groups, -1))
    earlier = split(q @ merge(states[:, :, :-1]))
    return near.flatten(1, 2) @ v + scale_by(earlier, weights.through), states[:, :, -1].clone()


def correct_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: ChunkWeights,
    erase: Tensor,
    write: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run chunks (b h N C ...) that erase. What is written instead of what was read solves a triangular system:

    (1 + tril(erase write^T, -1)) U = V - (erase exp(G)) S,   or  -tril(erase k^T, -1) V - ...  if `write` is not k
    """
    key = k if write is None else write
    pairs = weights.products(erase, key)  # of which the solution reads what is below the diagonal
    one = torch.eye(pairs.shape[-1], dtype=k.dtype, device=k.device).expand_as(pairs)
    solved = torch.linalg.solve_triangular(pairs, one, upper=False, unitriangular=True)
    target, adds = v, None
    if write is not None:
        target = -(weights.products(erase, k).tril(-1) @ v)
        adds = scale_by(k, weights.after).mT @ v
    reading = -(solved @ scale_by(erase, weights.through))
    total = None if weights.total is None else weights.total.mT
    writing = scale_by(key, weights.after).mT
    states, found = carry_state(state, total, reading, writing, solved @ target, adds)
    out = weights.products(q, key) @ found + scale_by(q, weights.through) @ states[:, :, :-1]
    if write is not None:
        out = out + weights.products(q, k) @ v
    return out, states[:, :, -1].clone()


# Chunks.


def split_chunks(t: Tensor, chunk: int, filler: float = 0.0) -> Tensor:
    """... n d -> ... N c d"""
    n = t.shape[-2]
    if is_exporting():  # a program for all lengths cannot know that n fits, nor have one chunk for some
        return F.pad(t, (0, 0, 0, (n // chunk + 2) * chunk - n), value=filler).unfold(-2, chunk, chunk).mT
    # a graph for all lengths cannot ask whether one fits
    chunks = n // chunk + 1 if torch.compiler.is_compiling() else -(-n // chunk)
    short = chunks * chunk - n
    return (F.pad(t, (0, 0, 0, short), value=filler) if short else t).unflatten(-2, (chunks, chunk))


def first_token(t: Tensor, n: int) -> Tensor:
    """... m d -> ... n d. That n is at most m, a graph for all lengths cannot know."""
    if not torch.compiler.is_compiling() and n == t.shape[-2]:
        return t
    return t.index_select(-2, torch.arange(n, device=t.device)) if is_exporting() else t.narrow(-2, 0, n)


# States from chunk to chunk.


@torch.library.custom_op(
    'x_transformers::carried_states',
    mutates_args=(),
    schema='(Tensor start, Tensor? stays, Tensor reading, Tensor writing, Tensor target, Tensor? adds, bool back) '
    '-> (Tensor, Tensor)',
)
def carried_states(start, stays, reading, writing, target, adds, back):
    """S_0 = start,  U_i = target_i + reading_i S_i,  S_i+1 = stays_i S_i + writing_i U_i + adds_i; or `back` from the
    last one:  S_N = start,  U_i = target_i + reading_i S_i+1,  S_i = stays_i S_i+1 + writing_i U_i + adds_i.

    start    b k m d
    stays    b or 1, k or 1, N, m or 1, 1       None for 1
    reading  b k N c m
    writing  b k N m c
    target   b k N c d
    adds     b k N m d          None for 0
    returns  S b k 1+N m d, U b k N c d
    """
    n, width = target.shape[2:4]
    states = target.new_empty(*start.shape[:2], n + 1, *start.shape[2:])
    found = target.new_empty(target.shape)
    state, told, rows = start.flatten(0, 1), found.flatten(0, 1), states.flatten(0, 1)
    reading, writing, target = (t.flatten(0, 1).unbind(1) for t in (reading, writing, target))
    adds = None if adds is None else adds.flatten(0, 1).unbind(1)
    if stays is not None:
        stays = stays.expand(*start.shape[:2], *stays.shape[2:]).flatten(0, 1).unbind(1)
    rows[:, n if back else 0] = state
    for at in reversed(range(n)) if back else range(n):
        kept = state if stays is None else state * stays[at]
        kept = kept if adds is None else kept + adds[at]
        if width:
            told[:, at] = u = torch.baddbmm(target[at], reading[at], state)
            kept = torch.baddbmm(kept, writing[at], u)
        rows[:, at if back else at + 1] = state = kept
    return states, found


@carried_states.register_fake
def _(start, stays, reading, writing, target, adds, back):
    states = target.new_empty(*start.shape[:2], target.shape[2] + 1, *start.shape[2:])
    return states, target.new_empty(target.shape)


def keep_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    _, stays, reading, writing, _, adds, ctx.back = inputs
    ctx.save_for_backward(stays, reading, writing, *output)
    ctx.added = adds is not None


def carry_gradients(ctx: Any, grad: Tensor, of_found: Tensor) -> tuple[Tensor | None, ...]:
    """Carry gradients backwards through the spans."""
    stays, reading, writing, states, found = ctx.saved_tensors
    n = found.shape[2]
    end, others, read, written = (0, 1, 1, 0) if ctx.back else (n, 0, 0, 1)  # where each of N stands among 1+N
    last, adds = grad.select(2, end), grad.narrow(2, others, n)
    grads, errors = carried_states(last, stays, writing.mT, reading.mT, of_found, adds, not ctx.back)
    after, before = grads.narrow(2, written, n), states.narrow(2, read, n)
    of_stays = (after * before).sum_to_size(stays.shape) if ctx.needs_input_grad[1] else None
    of_reading, of_writing = errors @ before.mT, after @ found.mT
    return grads.select(2, n - end), of_stays, of_reading, of_writing, errors, after if ctx.added else None, None


carried_states.register_autograd(carry_gradients, setup_context=keep_for_backward)


def carry_state(
    start: Tensor, stays: Tensor | None, reading: Tensor, writing: Tensor, target: Tensor, adds: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`carried_states` from the first to the last: in transforms of `torch.func`, which do not know the operation, and
    in programs of one length step by step."""
    n = target.shape[2]
    if not is_transformed() and not (is_exporting() and type(n) is int):
        return carried_states(start, stays, reading, writing, target, adds, False)
    states, found = [start], []
    for at in range(n):
        found.append(target[:, :, at] + reading[:, :, at] @ states[-1])
        kept = states[-1] if stays is None else states[-1] * stays[:, :, at]
        kept = kept if adds is None else kept + adds[:, :, at]
        states.append(kept + writing[:, :, at] @ found[-1])
    return torch.stack(states, dim=2), torch.stack(found, dim=2)

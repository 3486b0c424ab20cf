"""What came before transformers, one small module each: recurrent models of sequences, and the first attention.

    python examples/predecessors.py                                                    strings written backwards
    python examples/predecessors.py --attention none --length 4                        without attention: short ones
    python examples/predecessors.py --attention none --task copy --reverse-source      a source that is read backwards

    ElmanCell                 h = tanh(W x + U h)                                            Elman 1990
    Seq2Seq                   a recurrent encoder and a recurrent decoder                    1409.3215, 1406.1078
    AdditiveAttention         v tanh(W s + U h)                                              1409.0473
    LuongAttention            s h,  s W h,  v tanh(W [s h]),  or near a place that is foretold  1508.04025
    RNNDecoderWrapper         a recurrent decoder that attends to any encoder                1609.08144
    LSTMNCell                 an LSTM that attends to its own past                           1601.06733
    DecomposableAttention     two texts, compared word by word                               1606.01933
    MultiplicativeUnit        (W x) * (U y)
    ScalarMix, ELMo           layers of two language models, one in each direction, mixed    1802.05365

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.options import bounded, exit_code, positive, seed, size
    from torch import Tensor, nn
    from tqdm import trange

# attention


def uniform_(module: nn.Module, hidden: int) -> None:
    """As the cells of torch: all weights from -1 / sqrt(hidden) to as much above 0."""
    for weight in module.parameters():
        nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)


def check_source(h: Tensor, mask: Tensor | None) -> None:
    """Vectors (b m e) of a source with tokens in every row, and which of them are real."""
    if h.shape[1] == 0:
        raise ValueError('the source has no tokens')
    if mask is not None and (mask.shape != h.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(f'`mask` got {mask.dtype} of shape {tuple(mask.shape)}, it must be bool {tuple(h.shape[:2])}')
    if mask is not None and not (mask[:, 0].all() and (mask[:, 1:] <= mask[:, :-1]).all()):
        raise ValueError('`mask` must name the first tokens of each row, one at least, padding behind them')


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Weights of what is real (b m)."""
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(dim=-1)


class AdditiveAttention(nn.Module):
    """e_j = v tanh(W s + U h_j):  s b d, h b m e -> the weighted mean of h b e, weights b m"""

    def __init__(self, dim: int, dim_source: int) -> None:
        super().__init__()
        self.of_state, self.of_source = nn.Linear(dim, dim, bias=False), nn.Linear(dim_source, dim, bias=False)
        self.score = nn.Linear(dim, 1, bias=False)
        uniform_(self, dim)

    def scores(self, s: Tensor, h: Tensor) -> Tensor:
        return self.score((self.of_state(s).unsqueeze(1) + self.of_source(h)).tanh()).squeeze(-1)

    def forward(self, s: Tensor, h: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        check_source(h, mask)
        weights = softmax(self.scores(s, h), mask)
        return torch.einsum('b m, b m e -> b e', weights, h), weights


SCORES = ('dot', 'general', 'concat', 'local')


class LuongAttention(AdditiveAttention):
    """As the additive one, with another score; 'local' weighs what stands near a place that is foretold:

        p = S sigmoid(v tanh(W s)),  weights * exp(-(j - p)^2 / (2 sigma^2)),  sigma = window / 2,  |j - p| <= window

    S is the number of real tokens. Luong et al. 2015, arXiv:1508.04025
    """

    def __init__(self, dim: int, dim_source: int, score: str = 'general', window: float = 10.0) -> None:
        nn.Module.__init__(self)
        if score not in SCORES:
            raise ValueError(f'`score` got {score!r}, it must be one of {", ".join(map(repr, SCORES))}')
        if score == 'dot' and dim != dim_source:
            raise ValueError(f"`score='dot'` needs equal widths, it got {dim} and {dim_source}")
        self.kind, self.window = score, window
        if score in ('general', 'local'):
            self.of_source = nn.Linear(dim_source, dim, bias=False)
        if score == 'concat':
            self.joined, self.score = nn.Linear(dim + dim_source, dim, bias=False), nn.Linear(dim, 1, bias=False)
        if score == 'local':
            self.of_place, self.place = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 1, bias=False)
        uniform_(self, dim)

    def scores(self, s: Tensor, h: Tensor) -> Tensor:
        if self.kind == 'concat':
            both = torch.cat((s.unsqueeze(1).expand(-1, h.shape[1], -1), h), dim=-1)
            return self.score(self.joined(both).tanh()).squeeze(-1)
        return torch.einsum('b d, b m d -> b m', s, h if self.kind == 'dot' else self.of_source(h))

    def forward(self, s: Tensor, h: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        check_source(h, mask)
        weights = softmax(self.scores(s, h), mask)
        if self.kind == 'local':
            real = torch.ones(h.shape[:2], device=h.device) if mask is None else mask
            p = real.sum(dim=1, keepdim=True) * self.place(self.of_place(s).tanh()).sigmoid()
            away = torch.arange(h.shape[1], device=h.device) - p
            near = torch.exp(-away.square() / (2 * (self.window / 2) ** 2))
            weights = weights * near.masked_fill(away.abs() > self.window, 0.0)
        return torch.einsum('b m, b m e -> b e', weights, h), weights


# recurrent models


class ElmanCell(nn.Module):
    """h = tanh(W x + b + U h + c):  x b d, h b e -> h b e"""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(dim, hidden), nn.Linear(hidden, hidden)
        uniform_(self, hidden)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return (self.of_input(x) + self.of_state(h)).tanh()


KINDS = {'elman': (nn.RNN, ElmanCell), 'lstm': (nn.LSTM, nn.LSTMCell), 'gru': (nn.GRU, nn.GRUCell)}


def reversed_rows(x: Tensor, mask: Tensor | None) -> Tensor:
    """The real tokens of each row (b n ...) in the other direction, what is padding where it was."""
    if mask is None:
        return x.flip(1)
    place = torch.arange(x.shape[1], device=x.device)
    order = torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - place, place)
    return x[torch.arange(len(x), device=x.device).unsqueeze(1), order]


class RNNDecoderWrapper(nn.Module):
    """A recurrent decoder of tokens, that attends to what an encoder makes of a source.

        additive      a_t = attended by s_{t-1},  s_t = rnn(s_{t-1}, [embedding of token t, a_t])
        the others    s_t = rnn(s_{t-1}, [embedding of token t, o_{t-1}]),  a_t = attended by s_t       input feeding

        o_t = tanh(W [a_t, s_t]),  logits = V o_t

    encoder     ids b m (and `mask=`) -> vectors b m e, such as TransformerWrapper(return_only_embed=True)
    attention   None: the summary of the source is the first state, and that is all there is of it
    depth       cells on top of each other; from the second on, each adds to what it reads (1609.08144)
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_tokens: int,
        dim: int,
        dim_source: int,
        rnn: str = 'lstm',
        attention: str | None = 'additive',
        depth: int = 1,
    ) -> None:
        super().__init__()
        if rnn not in KINDS:
            raise ValueError(f'`rnn` got {rnn!r}, it must be one of {", ".join(map(repr, KINDS))}')
        if attention not in (None, 'additive', *SCORES):
            raise ValueError(f'`attention` got {attention!r}, it must be None, additive or one of {SCORES}')
        self.encoder, self.num_tokens, self.dim, self.kind, self.looks_first = encoder, num_tokens, dim, rnn, False
        self.embed, self.first = nn.Embedding(num_tokens, dim), nn.Linear(dim_source, dim)
        self.attend, fed = None, 0
        if attention is not None:
            self.looks_first = attention == 'additive'
            own = AdditiveAttention if self.looks_first else LuongAttention
            self.attend = own(dim, dim_source, **({} if self.looks_first else dict(score=attention)))
            self.merge, fed = nn.Linear(dim + dim_source, dim), dim_source if self.looks_first else dim
        self.cells = nn.ModuleList(KINDS[rnn][1](dim if layer else dim + fed, dim) for layer in range(depth))
        self.to_logits = nn.Linear(dim, num_tokens)

    def summary(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """One vector of a source (b m e): that of its last real token."""
        return h[:, -1] if mask is None else h[torch.arange(len(h), device=h.device), mask.sum(dim=1) - 1]

    def begin(self, src: Tensor, mask: Tensor | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Vectors of a source (b m e), and the state (states and cells of all layers, o) before the first token."""
        check_source(src, mask)
        h = self.encoder(src) if mask is None else self.encoder(src, mask=mask)
        first = self.first(self.summary(h, mask)).tanh()
        states = first.expand(len(self.cells), *first.shape)
        return h, (states, torch.zeros_like(states), torch.zeros_like(first))

    def step(self, token: Tensor, h: Tensor, mask: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, Any]:
        """Logits (b l) of what follows a token (b), and the state behind it."""
        before, memory, out = state
        x = self.embed(token)
        if self.looks_first:
            attended = self.attend(before[-1], h, mask)[0]
            x = torch.cat((x, attended), dim=-1)
        elif self.attend is not None:
            x = torch.cat((x, out), dim=-1)
        states, memories = [], list(memory)
        for layer, cell in enumerate(self.cells):
            if self.kind == 'lstm':
                s, memories[layer] = cell(x, (before[layer], memory[layer]))
            else:
                s = cell(x, before[layer])
            states.append(s)
            x = s + x if layer else s
        if self.attend is not None:
            attended = attended if self.looks_first else self.attend(x, h, mask)[0]
            x = out = self.merge(torch.cat((attended, x), dim=-1)).tanh()
        return self.to_logits(x), (torch.stack(states), torch.stack(memories), out)

    def forward(self, src: Tensor, tgt: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (b n l) of what follows each token of a target (b n)."""
        h, state = self.begin(src, mask)
        found = []
        for token in tgt.unbind(dim=1):
            logits, state = self.step(token, h, mask, state)
            found.append(logits)
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def generate(self, src: Tensor, start: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
        """The most probable next tokens (b count) behind `start` (b)."""
        (h, state), token, found = self.begin(src, mask), start, []
        for _ in range(count):
            logits, state = self.step(token, h, mask, state)
            token = logits.argmax(dim=-1)
            found.append(token)
        return torch.stack(found, dim=1)


class RNNEncoder(nn.Module):
    """ids b m -> vectors b m e, of one direction or both, of the source as it is or backwards.

    Of more layers the first one alone reads both directions, and those from the second on add to what they read.
    """

    def __init__(self, num_tokens: int, dim: int, rnn: str, reverse: bool, both: bool, depth: int = 1) -> None:
        super().__init__()
        if both and dim % 2:
            raise ValueError(f'`dim` got {dim}, it must be even for both directions')
        self.embed, self.reverse, self.both = nn.Embedding(num_tokens, dim), reverse, both
        make = KINDS[rnn][0]
        self.bottom = nn.ModuleList(make(dim, dim // (1 + both), batch_first=True) for _ in range(1 + both))
        self.above = nn.ModuleList(make(dim, dim, batch_first=True) for _ in range(depth - 1))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        x = reversed_rows(x, mask) if self.reverse else x
        h = self.bottom[0](x)[0]
        if self.both:
            back = reversed_rows(self.bottom[1](reversed_rows(x, mask))[0], mask)
            h = torch.cat((h, back), dim=-1)
        for layer in self.above:
            h = h + layer(h)[0]
        return h


class Seq2Seq(RNNDecoderWrapper):
    """Both recurrent. The source may be read backwards, so that its beginning is fresh (1409.3215)."""

    def __init__(
        self,
        num_tokens: int,
        dim: int,
        rnn: str = 'lstm',
        reverse_source: bool = False,
        bidirectional: bool = False,
        attention: str | None = None,
        depth: int = 1,
    ) -> None:
        if rnn not in KINDS:
            raise ValueError(f'`rnn` got {rnn!r}, it must be one of {", ".join(map(repr, KINDS))}')
        encoder = RNNEncoder(num_tokens, dim, rnn, reverse_source, bidirectional, depth)
        super().__init__(encoder, num_tokens, dim, dim, rnn, attention, depth)

    def summary(self, h: Tensor, mask: Tensor | None) -> Tensor:
        last = super().summary(h, mask)
        if not self.encoder.both:
            return last
        half = self.dim // 2  # what reads backwards has read all of it at the first token
        return torch.cat((last[:, :half], h[:, 0, half:]), dim=-1)


class LSTMNCell(nn.Module):
    """a_i = v tanh(W h_i + U x + V g), (g, c) = sum_i softmax(a)_i (h_i, c_i); then the gates of an LSTM from [g, x]:

    c_t = f * c + i * new,  h_t = o * tanh(c_t)          x b d, past of h and c, each b t e -> h, c, g
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.of_past, self.of_input = nn.Linear(hidden, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.of_summary, self.score = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, 1, bias=False)
        self.gates = nn.Linear(hidden + dim, 4 * hidden)
        uniform_(self, hidden)

    def forward(self, x: Tensor, past_h: Tensor, past_c: Tensor, summary: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = (self.of_past(past_h) + (self.of_input(x) + self.of_summary(summary)).unsqueeze(1)).tanh()
        weights = self.score(seen).squeeze(-1).softmax(dim=-1)
        g, c = (torch.einsum('b t, b t e -> b e', weights, past) for past in (past_h, past_c))
        i, f, o, new = self.gates(torch.cat((g, x), dim=-1)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * new.tanh()
        return o.sigmoid() * c.tanh(), c, g


def two_layers(dim: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, out))


class DecomposableAttention(nn.Module):
    """Attend, compare, aggregate:  a b n d, b b m d -> logits b classes

    e_ij = F(a_i) F(b_j),  b'_i = sum_j softmax_j(e_ij) b_j,  a'_j = sum_i softmax_i(e_ij) a_i
    H([sum_i G([a_i, b'_i]), sum_j G([b_j, a'_j])])
    """

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.attend, self.compare = two_layers(dim, hidden, hidden), two_layers(2 * dim, hidden, hidden)
        self.aggregate = two_layers(2 * hidden, hidden, classes)

    def forward(self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None) -> Tensor:
        check_source(a, mask_a)
        check_source(b, mask_b)
        e = self.attend(a) @ self.attend(b).mT
        of_b = softmax(e, None if mask_b is None else mask_b.unsqueeze(1)) @ b
        of_a = softmax(e.mT, None if mask_a is None else mask_a.unsqueeze(1)) @ a
        parts = []
        for own, other, mask in ((a, of_b, mask_a), (b, of_a, mask_b)):
            found = self.compare(torch.cat((own, other), dim=-1))
            parts.append((found if mask is None else found * mask.unsqueeze(-1)).sum(dim=1))
        return self.aggregate(torch.cat(parts, dim=-1))


class MultiplicativeUnit(nn.Module):
    """(W x) * (U y)"""

    def __init__(self, dim: int, dim_other: int, hidden: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(dim, hidden, bias=False), nn.Linear(dim_other, hidden, bias=False)
        uniform_(self, hidden)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.left(x) * self.right(y)


class ScalarMix(nn.Module):
    """gamma sum_k softmax(w)_k h_k, of layers h_k of equal shape."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights, self.gamma = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(()))

    def forward(self, layers: list[Tensor]) -> Tensor:
        if len(layers) != len(self.weights):
            raise ValueError(f'`layers` got {len(layers)}, it must be {len(self.weights)}')
        return self.gamma * torch.einsum('k, k ... -> ...', self.weights.softmax(dim=0), torch.stack(layers))


class ELMo(nn.Module):
    """Two language models of LSTMs, one in each direction, and a mix of their layers:  ids b n -> b n 2d

    h_0 = [x, x],  h_k = [k-th layer from the left, k-th layer from the right],  ScalarMix(h_0, ..., h_L)
    """

    def __init__(self, num_tokens: int, dim: int, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(num_tokens, dim), ScalarMix(depth + 1)
        stack = lambda: nn.ModuleList(nn.LSTM(dim, dim, batch_first=True) for _ in range(depth))  # noqa: E731
        self.left, self.right, self.to_logits = stack(), stack(), nn.Linear(dim, num_tokens)

    def layers(self, ids: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """All h_k (b n 2d)."""
        left, right = self.embed(ids), reversed_rows(self.embed(ids), mask)
        found = [torch.cat((left, left), dim=-1)]
        for there, back in zip(self.left, self.right, strict=True):
            left, right = there(left)[0], back(right)[0]
            found.append(torch.cat((left, reversed_rows(right, mask)), dim=-1))
        return found

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        check_source(ids, mask)
        return self.mix(self.layers(ids, mask))

    def loss(self, ids: Tensor) -> Tensor:
        """How badly each token is foretold by those before it, and by those behind it."""
        left, right = self.layers(ids)[-1].chunk(2, dim=-1)
        ahead = F.cross_entropy(self.to_logits(left[:, :-1]).transpose(1, 2), ids[:, 1:])
        return ahead + F.cross_entropy(self.to_logits(right[:, 1:]).transpose(1, 2), ids[:, :-1])


# strings, copied or written backwards

LETTERS = 8


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--task', default='reverse', choices=('reverse', 'copy'), help='write strings backwards, or again')
    add('--length', type=size, default=12, help='of the strings (12)')
    add('--attention', default='additive', choices=('none', 'additive', *SCORES), help='of the decoder (additive)')
    add('--rnn', default='lstm', choices=tuple(KINDS), help='cells of both (lstm)')
    add('--reverse-source', action='store_true', help='the encoder reads backwards')
    add('--bidirectional', action='store_true', help='the encoder reads in both directions')
    add('--steps', type=size, default=600, help='of training (600)')
    add('--batch-size', type=size, default=64, help='strings of a step (64)')
    add('--dim', type=bounded(int, 2), default=64, help='width of the model (64)')
    add('--depth', type=size, default=1, help='layers of each (1)')
    add('--lr', type=positive, default=5e-3, help='learning rate of the first step, 0 in the last (0.005)')
    add('--seed', type=seed, default=0, help='of weights and strings (0)')
    args = parser.parse_args(argv)
    if args.bidirectional and args.dim % 2:
        parser.error(f'--dim {args.dim} cannot be divided among two directions')
    return args


def strings(args: argparse.Namespace, count: int) -> tuple[Tensor, Tensor]:
    src = torch.randint(0, LETTERS, (count, args.length))
    return src, src.flip(1) if args.task == 'reverse' else src


def train(args: argparse.Namespace) -> Seq2Seq:
    torch.manual_seed(args.seed)
    attention = None if args.attention == 'none' else args.attention
    ways = (args.rnn, args.reverse_source, args.bidirectional, attention, args.depth)
    model = Seq2Seq(LETTERS + 1, args.dim, *ways)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in trange(args.steps, dynamic_ncols=True):
        optimizer.param_groups[0]['lr'] = args.lr * (1 - step / args.steps)
        src, tgt = strings(args, args.batch_size)
        read = F.pad(tgt[:, :-1], (1, 0), value=LETTERS)
        F.cross_entropy(model(src, read).transpose(1, 2), tgt).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def right(model: Seq2Seq, args: argparse.Namespace, count: int = 500) -> float:
    """Share of letters of new strings that are written as they should be."""
    src, tgt = strings(args, count)
    return (model.generate(src, torch.full((count,), LETTERS), args.length) == tgt).float().mean().item()


def work(args: argparse.Namespace) -> None:
    print(f'{right(train(args), args):.1%} of the letters of new strings are right')


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('predecessors.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())

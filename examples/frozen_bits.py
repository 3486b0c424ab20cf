"""What is in a body that does not learn? Bits are computed by a frozen transformer, one that learns, and an LSTM.

    python examples/frozen_bits.py

*XOR*: two strings of 5 bits, one a token, then the exclusive or of both. *Memory*: five strings of 40 bits, 10 a token,
then one of them with half of its bits hidden: all bits of it. Of the frozen body only norms, input, output and
positions learn, `freeze_pretrained_`; it is pretrained on texts of a Markov chain, or random.

Lu et al. 2021, arXiv:2103.05247
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.toys import Score, fit, heads, run
    from torch import Tensor, nn

    from x_transformers import (
        AutoregressiveWrapper,
        ContinuousTransformerWrapper,
        Decoder,
        TransformerWrapper,
        freeze_pretrained_,
    )

XOR, STRINGS, BITS, PER_TOKEN = 5, 5, 40, 10
WIDTH, DEPTH = 64, 3
KINDS = ('pretrained', 'random', 'full', 'lstm')


def xor(batch: int) -> tuple[Tensor, Tensor]:
    """Bits (b 10 1), and the exclusive or (b 5 1) that the last five tokens are to say."""
    bits = torch.randint(0, 2, (batch, 2 * XOR, 1)).float()
    return bits * 2 - 1, (bits[:, :XOR] - bits[:, XOR:]).abs()


def memory(batch: int) -> tuple[Tensor, Tensor]:
    """Tokens (b 24 20): bits of the strings, then of one of them, 0 where hidden; and its bits (b 4 10).

    The second half of a token says which of its bits are shown.
    """
    n = BITS // PER_TOKEN
    strings = torch.randint(0, 2, (batch, STRINGS, BITS)).float()
    asked = strings[torch.arange(batch), torch.randint(0, STRINGS, (batch,))]
    shown = torch.rand(asked.shape) < 0.5
    bits = torch.cat((strings.flatten(1) * 2 - 1, (asked * 2 - 1) * shown), dim=1)
    known = torch.cat((torch.ones(batch, STRINGS * BITS), shown.float()), dim=1)
    tokens = torch.cat([t.unflatten(1, (-1, PER_TOKEN)) for t in (bits, known)], dim=-1)
    return tokens, asked.unflatten(1, (n, PER_TOKEN))


TASKS = {'xor': (xor, 1, 1), 'memory': (memory, 2 * PER_TOKEN, PER_TOKEN)}


class Recurrent(nn.Module):
    """An LSTM of the same depth, whose rate and size are those of the transformers."""

    def __init__(self, dim_in: int, dim_out: int) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(dim_in, WIDTH, DEPTH, batch_first=True), nn.Linear(WIDTH, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])


def body() -> Decoder:
    return Decoder(**heads(WIDTH), depth=DEPTH)


def pretrained_body(args: argparse.Namespace) -> Decoder:
    """The stack of a language model of a Markov chain."""
    chain = (torch.randn(20, 20) * 2).softmax(dim=-1)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=20, max_seq_len=32, attn_layers=body()))

    def loss() -> Tensor:
        ids = [torch.randint(0, 20, (args.batch_size,))]
        for _ in range(24):
            ids.append(chain[ids[-1]].multinomial(1).squeeze(1))
        return model(torch.stack(ids, dim=1))

    return fit(model, loss, args).train().net.attn_layers


def made(kind: str, task: str, args: argparse.Namespace) -> tuple[nn.Module, list[str]]:
    """A model, and the names of what learns."""
    _, dim_in, dim_out = TASKS[task]
    if kind == 'lstm':
        net: nn.Module = Recurrent(dim_in, dim_out)
    else:
        stack = pretrained_body(args) if kind == 'pretrained' else body()
        net = ContinuousTransformerWrapper(dim_in=dim_in, dim_out=dim_out, max_seq_len=32, attn_layers=stack)
    return net, freeze_pretrained_(net) if kind in KINDS[:2] else [name for name, _ in net.named_parameters()]


def right(kind: str, task: str, args: argparse.Namespace) -> tuple[float, float]:
    """Share of the bits of 1,000 new rows that are right, and the share of parameters that learn."""
    net, names = made(kind, task, args)
    draw = TASKS[task][0]
    before = {name: p.detach().clone() for name, p in net.named_parameters() if name not in names}

    def loss() -> Tensor:
        x, wanted = draw(args.batch_size)
        return F.binary_cross_entropy_with_logits(net(x)[:, -wanted.shape[1] :], wanted)

    rate = args.lr * (5 if kind in KINDS[:2] else 1)  # what is frozen learns by few weights, and takes larger steps
    fit(net, loss, argparse.Namespace(steps=args.steps, lr=rate))
    weights = dict(net.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in before.items()), 'a frozen weight has changed'
    x, wanted = draw(1000)
    with torch.no_grad():
        score = ((net(x)[:, -wanted.shape[1] :] > 0) == (wanted > 0.5)).float().mean().item()
    share = sum(weights[name].numel() for name in names) / sum(p.numel() for p in weights.values())
    print(f'{task}, {kind}: {score:.3f} right, {share:.2%} of the parameters learn', flush=True)
    return score, share


def task(args: argparse.Namespace) -> list[Score]:
    found = {name: {kind: right(kind, name, args)[0] for kind in KINDS} for name in TASKS}
    scores = [Score(f'XOR, {kind} body', found['xor'][kind], 0.95) for kind in KINDS[:2]]
    ahead = found['memory']['random'] - found['memory']['lstm']
    return [*scores, Score('memory: the frozen random body is ahead of the LSTM', ahead, 0.0)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('frozen_bits.py', __doc__, task, argv, steps=800)


if __name__ == '__main__':
    sys.exit(main())

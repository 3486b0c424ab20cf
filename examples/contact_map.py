"""Protein folding in small: which links of a chain on a lattice touch, from its letters and a noisy sign for each pair.

    python examples/contact_map.py

A chain walks on a square lattice and never meets itself; a letter says, mostly, whether a link lies within. Related
chains give a number for each pair, as of letters that changed together: 1 or 0 for touching or not, and much noise. An
`Encoder` reads the letters, the numbers are a bias of its attention, and a head for pairs, which does not know their
order, answers.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor, nn
    from torch.nn.functional import binary_cross_entropy_with_logits

    from x_transformers import Encoder, TransformerWrapper

LENGTH, HEADS, NOISE, NEAR = 24, 4, 0.45, 3
STEPS = torch.tensor([(0, 1), (0, -1), (1, 0), (-1, 0)])


def chain() -> Tensor:
    """Places (n 2) of a chain that never meets itself."""
    while True:
        places = [(0, 0)]
        while len(places) < LENGTH:
            free = [(places[-1][0] + dx, places[-1][1] + dy) for dx, dy in STEPS.tolist()]
            free = [place for place in free if place not in places]
            if not free:
                break
            free.sort(key=lambda place: abs(place[0]) + abs(place[1]))  # it rather stays near its beginning
            pick = 0 if torch.rand(()) < 0.7 else torch.randint(0, len(free), ()).item()
            places.append(free[pick])
        else:
            return torch.tensor(places)


def touching(places: Tensor) -> Tensor:
    """Which links (b n n) are at most two steps apart, and not neighbours in the chain."""
    apart = (places.unsqueeze(-2) - places.unsqueeze(-3)).abs().sum(dim=-1)
    along = torch.arange(LENGTH)
    return (apart <= 2) & ((along.unsqueeze(1) - along).abs() >= NEAR)


def chains(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Letters (b n), signs of pairs (b n n), and which pairs touch."""
    contacts = touching(torch.stack([chain() for _ in range(count)]))
    within = contacts.sum(dim=-1) >= 3
    letters = torch.where(torch.rand(within.shape) < 0.1, ~within, within).long()
    noise = NOISE * torch.randn(contacts.shape)
    return letters, contacts.float() + (noise + noise.mT) / 2**0.5, contacts


class Folder(nn.Module):
    """Logits (b n n) of pairs that touch, the same in both orders."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        stack = Encoder(**heads(dim, HEADS), depth=3)
        self.net = TransformerWrapper(num_tokens=2, max_seq_len=LENGTH, attn_layers=stack)
        self.bias, self.one, self.pair = nn.Linear(1, HEADS), nn.Linear(dim, dim), nn.Linear(2 * dim + 9, dim)
        self.answer = nn.Linear(dim, 1)

    def forward(self, letters: Tensor, signs: Tensor) -> Tensor:
        bias = self.bias(signs.unsqueeze(-1)).permute(0, 3, 1, 2)
        x = self.one(self.net(letters, attn_bias=bias, return_embeddings=True))
        around = torch.nn.functional.unfold(signs.unsqueeze(1), 3, padding=1).unflatten(2, signs.shape[1:])
        around = around.permute(0, 2, 3, 1)  # signs of the pairs of neighbours
        around = around + around.transpose(1, 2)
        a, b = x.unsqueeze(2), x.unsqueeze(1)
        both = torch.cat((a + b, a * b, around), dim=-1)
        logits = self.answer(self.pair(both).relu()).squeeze(-1)
        return (logits + logits.mT) / 2


def precision(logits: Tensor, contacts: Tensor) -> float:
    """Of as many pairs as the chain has links, or as touch if those are fewer, the likeliest: how many do touch?

    Chains of which nothing touches are left out.
    """
    upper, shares = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(NEAR), []
    for ours, true in zip(logits, contacts, strict=True):
        ours, true = ours[upper], true[upper]
        if count := min(LENGTH, true.sum().item()):
            shares.append(true[ours.topk(count).indices].float().mean())
    return torch.stack(shares).mean().item()


def task(args: argparse.Namespace) -> list[Score]:
    model, many = Folder(64), chains(2000)
    upper = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(NEAR)

    def loss() -> Tensor:
        rows = torch.randint(0, len(many[0]), (args.batch_size,))
        letters, signs, contacts = (part[rows] for part in many)
        signs = signs + 0.1 * torch.randn(signs.shape)
        signs = (signs + signs.mT) / 2
        return binary_cross_entropy_with_logits(model(letters, signs)[:, upper], contacts[:, upper].float())

    fit(model, loss, args)
    letters, signs, contacts = chains(200)
    with torch.no_grad():
        logits = model(letters, signs)
    return [
        Score('pairs that touch, of those said to', precision(logits, contacts), 0.9),
        Score('what the order of a pair changes', (logits - logits.mT).abs().max().item(), 0.0, at_most=True),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('contact_map.py', __doc__, task, argv, steps=900, batch=32)


if __name__ == '__main__':
    sys.exit(main())

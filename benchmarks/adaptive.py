"""What it saves to compute less for what is easy: adaptive spans, halting and early exits on toy tasks.

    python benchmarks/adaptive.py [--ways spans;halting;exits] [--rounds 7] [--seed 0]

Each model learns a toy task in a minute or two, and then runs on new data, in turns with the whole one, which computes
all: time is that of the processor on one thread, for each token, and right the part of the answers.

    spans      which token came three before, read in sequences of 2,048; the whole model is one without spans
    halting    what stands in a table behind one look-up or two; the block runs up to four times, here for all tokens
    exits      the same; the answer is generated, behind one block or up to three, here behind all of them
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from measure import ROOT, markdown
from torch import Tensor, nn

sys.path[:0] = [str(ROOT)]


class Pair(NamedTuple):
    """What the whole model runs and the other one, for how many tokens; what each gets right; and what is left out."""

    whole: Callable[[], Any]
    less: Callable[[], Any]
    tokens: int
    right: tuple[float, float]
    words: str


def taught(net: nn.Module, loss: Callable[[], Tensor], steps: int, rate: float = 3e-3) -> None:
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]['lr'] = rate * min(1.0, (step + 1) / 20) * (1 - step / steps)
        loss().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    net.eval()


def share(found: Tensor, wanted: Tensor) -> float:
    return (found == wanted).float().mean().item()


SHAW = {'shaw_rel_pos': True, 'shaw_rel_values': False, 'shaw_max_distance': 8}


def spans(options: argparse.Namespace) -> Pair:
    from x_transformers import Decoder, TransformerWrapper
    from x_transformers.training import AuxLosses

    tokens, n = 16, 64 if options.tiny else 2048
    nets = []
    for flags in ({}, {'attn_adaptive_span': 'static', 'attn_max_span': n, 'attn_span_init': 0.1}):
        torch.manual_seed(options.seed)
        stack = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **SHAW, **flags)
        net = TransformerWrapper(num_tokens=tokens, max_seq_len=0, attn_layers=stack)

        def loss(net: nn.Module = net) -> Tensor:
            x = torch.randint(0, tokens, (32, 64))
            with AuxLosses() as aux:
                found = F.cross_entropy(net(x)[:, 3:].flatten(0, 1), x[:, :-3].flatten())
            return aux.added_to(found)

        taught(net, loss, 2 if options.tiny else 400)
        nets.append(net)
    x = torch.randint(0, tokens, (1, n))
    right = [share(net(x)[:, 3:].argmax(dim=-1), x[:, :-3]) for net in nets]
    mean = statistics.fmean((n * layer[1].span.clamp(0, 1)).mean().item() for layer in nets[1].attn_layers.layers[::2])
    return Pair(lambda: nets[0](x), lambda: nets[1](x), n, (right[0], right[1]), f'mean span {mean:.1f} of {n}')


def questions(count: int, values: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """A table in any order, asked for one look-up or two: ids (b n), answers (b), and how many (b)."""
    often, start = torch.randint(0, 2, (count,)), torch.randint(0, values, (count,))
    table, order = torch.rand(count, values).argsort(dim=-1), torch.rand(count, values).argsort(dim=-1)
    entries = 2 + values * (1 + order) + table.gather(1, order)
    once = table.gather(1, start[:, None])[:, 0]
    answer = torch.where(often > 0, table.gather(1, once[:, None])[:, 0], once)
    return torch.cat((often[:, None], entries, 2 + start[:, None]), dim=1), answer, often


VOCABULARY = 2 + 4 * 5


def halting(options: argparse.Namespace) -> Pair:
    from x_transformers import Encoder, TransformerWrapper
    from x_transformers.training import AuxLosses

    torch.manual_seed(options.seed)
    nets = []
    for dense in (True, False):
        flags = {'weight_tie_layers': True, 'act_halting': True, 'act_ponder_weight': 0.05, 'act_dense': dense}
        stack = Encoder(dim=64, depth=4, heads=4, attn_dim_head=16, coord_pos_emb=True, act_eps=0.05, **flags)
        nets.append(TransformerWrapper(num_tokens=VOCABULARY, logits_dim=4, max_seq_len=0, attn_layers=stack))

    def loss() -> Tensor:
        x, answer, _ = questions(128)
        with AuxLosses() as aux:
            found = F.cross_entropy(nets[0](x)[:, -1], answer)
        return aux.added_to(found)

    taught(nets[0], loss, 2 if options.tiny else 800)
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1].eval()
    x, answer, _ = questions(256)
    right = [share(net(x)[:, -1].argmax(dim=-1), answer) for net in nets]
    _, trace = nets[1].train()(x, return_intermediates=True)
    runs = trace.aux_losses['ponder'].item() / 0.05
    nets[1].eval()
    words = f'{runs:.1f} runs and what is left of the last, of 4'
    return Pair(lambda: nets[0](x), lambda: nets[1](x), x.numel(), (right[0], right[1]), words)


def exits(options: argparse.Namespace) -> Pair:
    from x_transformers import Decoder, EarlyExitWrapper, TransformerWrapper

    torch.manual_seed(options.seed)
    stack = Decoder(dim=48, depth=3, heads=4, attn_dim_head=12, ff_mult=2)
    net = TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=7, attn_layers=stack)
    model = EarlyExitWrapper(net, exit_classifier='geometric', exit_penalty=0.03, layer_loss_weights='linear')

    def loss() -> Tensor:
        x, answer, _ = questions(128)
        row = torch.cat((x, 2 + answer[:, None]), dim=1)
        return model(row, labels=row.index_fill(1, torch.arange(row.shape[1] - 1), -100))

    taught(model, loss, 2 if options.tiny else 500)
    x, (many, answers, _) = questions(1)[0], questions(500)
    early = {'temperature': 0.0, 'exit': 'classifier', 'exit_threshold': 0.5}
    right = []
    for flags in ({'temperature': 0.0}, early):
        right.append(share(model.generate(many, 1, **flags)[:, 0], 2 + answers))
    _, stats = model.generate(many, 1, return_stats=True, **early)
    words = f'{stats.depths.double().mean():.2f} blocks of 3'
    return Pair(
        lambda: model.generate(x, 1, temperature=0.0),
        lambda: model.generate(x, 1, **early),
        1,
        (right[0], right[1]),
        words,
    )


WAYS: dict[str, Callable[[argparse.Namespace], Pair]] = {'spans': spans, 'halting': halting, 'exits': exits}


def measured(pair: Pair, rounds: int) -> tuple[float, float, float]:
    """Microseconds of a token, of the whole model and of the other one, and the median of their ratios."""
    found: list[tuple[float, float]] = []
    with torch.no_grad():
        for number in range(rounds + 1):
            both = []
            for run in (pair.whole, pair.less):
                began, count = time.process_time(), 0
                while count == 0 or (time.process_time() - began < 0.2 and number):
                    run()
                    count += 1
                both.append((time.process_time() - began) / count / pair.tokens * 1e6)
            found += [(both[0], both[1])] if number else []  # the first warms up
    whole, less = (statistics.median(one[at] for one in found) for at in (0, 1))
    return whole, less, statistics.median(one[1] / one[0] for one in found)


def main(given: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ways', default=';'.join(WAYS), help='with semicolons')
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--tiny', action='store_true', help='tiny sizes: whether it runs, not what is saved')
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    lines = []
    for name in options.ways.split(';'):
        if name not in WAYS:
            parser.error(f'--ways: {name!r} is none of {"; ".join(WAYS)}')
        pair = WAYS[name](options)
        whole, less, ratio = measured(pair, 1 if options.tiny else options.rounds)
        right = ' / '.join(f'{100 * one:.1f} %' for one in pair.right)
        lines.append([name, pair.words, right, f'{whole:.1f} / {less:.1f}', f'{ratio:.2f}'])
    head = ['toy task', 'what is computed', 'right, whole / less', 'microseconds a token', 'time over the whole']
    text = markdown(head, lines)
    print(text)
    return text


if __name__ == '__main__':
    main()

"""Train on short texts, read longer ones: which positions still work at two, four and eight times the length?

    python examples/length_extrapolation.py                           a table of all positions and lengths
    python examples/length_extrapolation.py --schemes alibi rotary    some of them

Each model learns bytes of Python's standard library, or of --data, in windows of --length, and then reads the same held
out text in windows of that length and of multiples. A loss that grows says that a model does not understand positions
it has not met; one that falls, that it makes use of more context. After Press et al. 2021 (arXiv:2108.12409).

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace

from common import packages

with packages():
    import torch
    from common.options import bounded, exit_code, positive, seed, size, some_text
    from common.texts import check_enough, fixed_windows, random_crops, read_corpus
    from torch import Tensor
    from torch.nn.utils import clip_grad_norm_
    from tqdm import trange

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

HEADS = 4
NO_TABLE = dict(use_abs_pos_emb=False)
# flags of TransformerWrapper, and of Decoder
SCHEMES: dict[str, tuple[dict, dict]] = {
    'sinusoids': (dict(sinu_pos_emb=True), {}),
    'rotary': (NO_TABLE, dict(rotary_pos_emb=True)),
    'none': (NO_TABLE, {}),
    't5': (NO_TABLE, dict(rel_pos_bias=True)),
    'dynamic': (NO_TABLE, dict(dynamic_pos_bias=True)),
    'dynamic_log': (NO_TABLE, dict(dynamic_pos_bias=True, dynamic_pos_bias_log_distance=True)),
    'alibi': (NO_TABLE, dict(alibi_pos_bias=True)),
    'learned': ({}, {}),
}


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    known = [name for name in SCHEMES if name != 'learned']
    add('--schemes', nargs='+', choices=tuple(SCHEMES), default=known, help='of positions (all without a table)')
    add('--length', type=bounded(int, 2), default=32, help='of the windows to learn from (32)')
    add('--times', type=size, nargs='+', default=[1, 2, 4, 8], help='as long are the windows to read (1 2 4 8)')
    add('--steps', type=size, default=500, help='of training (500)')
    add('--batch-size', type=size, default=32, help='windows of a step (32)')
    add('--dim', type=bounded(int, HEADS), default=128, help='width of the model (128)')
    add('--depth', type=size, default=4, help='its blocks (4)')
    add('--data', type=some_text, metavar='PATH', help="text file or folder (Python's standard library)")
    add('--max-bytes', type=size, default=20_000_000, help='read no more of it (20000000)')
    add('--val-windows', type=size, default=64, help='of the longest windows to read at the end (64)')
    add('--lr', type=positive, default=2e-3, help='highest learning rate (0.002)')
    add('--seed', type=seed, default=0, help='of weights and batches (0)')
    args = parser.parse_args(argv)
    if args.dim % HEADS:
        parser.error(f'--dim {args.dim} cannot be divided by {HEADS}')
    if 'learned' in args.schemes and max(args.times) > 1:
        longest = args.length * max(args.times)
        parser.error(f'--schemes learned has a table for windows of {args.length}, it cannot read those of {longest}')
    return args


def build_model(scheme: str, args: argparse.Namespace) -> AutoregressiveWrapper:
    of_wrapper, of_stack = SCHEMES[scheme]
    sizes = dict(dim=args.dim, depth=args.depth, heads=HEADS, attn_dim_head=args.dim // HEADS)
    return AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=256, max_seq_len=args.length + 1, attn_layers=Decoder(**sizes, **of_stack), **of_wrapper
        )
    )


@torch.no_grad()
def loss_at(model: AutoregressiveWrapper, text: Tensor, length: int) -> float:
    """Nats per byte of texts (b n), read in windows of `length`, each byte but the first ones foretold once."""
    windows = text.unfold(1, length + 1, length).flatten(0, 1)
    some = windows.split(max(4096 // length, 1))
    return sum(model(part).item() * len(part) for part in some) / len(windows)


def losses(args: argparse.Namespace) -> Iterator[tuple[str, list[float]]]:
    """Of each scheme, the losses at all lengths."""
    draws = SimpleNamespace(**vars(args), seq_len=args.length + 1)
    whole = SimpleNamespace(**vars(args), seq_len=args.length * math.lcm(*args.times) + 1)
    corpus = read_corpus(whole)
    check_enough(corpus, whole, 'bytes')
    text = fixed_windows(corpus[1], whole)
    for scheme in args.schemes:
        torch.manual_seed(args.seed)
        model, crops = build_model(scheme, args), torch.Generator().manual_seed(args.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
        for step in trange(args.steps, desc=scheme, dynamic_ncols=True):
            warm_up = min(1.0, (step + 1) / max(1, args.steps // 20))
            optimizer.param_groups[0]['lr'] = args.lr * warm_up * (1 - step / args.steps)
            model(random_crops(corpus[0], draws, crops)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield scheme, [loss_at(model.eval(), text, args.length * times) for times in args.times]


def work(args: argparse.Namespace) -> None:
    print(f'nats per byte, trained at {args.length}, seed {args.seed}; of the loss at the first length')
    print(f'{"":12}' + ''.join(f'{args.length * times:>16}' for times in args.times), flush=True)
    for scheme, found in losses(args):
        print(f'{scheme:12}' + ''.join(f'{loss:9.3f} ({loss / found[0]:.2f})' for loss in found), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('length_extrapolation.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())

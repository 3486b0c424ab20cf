"""What tokens that leave early save: a byte model of `train_lm.py`, calibrated, and then measured on other text.

    python examples/train_lm.py --set shift_tokens=0      whose branches read one token alone
    python benchmarks/early_exit.py runs/train_lm-001/step_001500 [--steps 400] [--deltas 0.1,0.2,0.3]

All blocks of the model learn to say the next byte (CALM, arXiv:2207.07061). Thresholds are calibrated on some prompts
of held-out text so that the risk, the mean distance of greedy texts to those of all blocks (1 - F1 of bytes), is at
most delta with a probability of 0.95. On other prompts stand, for each: the risk, the mean depth, and the processor
time of `generate` as the full model's over that with exits, in turns, median of the rounds; likewise of `speculative`,
which guesses by early exits and gives the text of the full model. `--simulate` draws risks and counts how often
calibration breaks its promise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from corpus import Corpus
from measure import ROOT, markdown
from torch import Tensor, nn

sys.path[:0] = [str(ROOT), str(ROOT / 'examples')]


def model_of(folder: str | None, seq_len: int) -> nn.Module:
    """The trained net, or a small one that knows nothing, as a model whose tokens may leave early."""
    from x_transformers import Decoder, EarlyExitWrapper, TransformerWrapper

    if folder is None:
        stack = Decoder(dim=32, depth=3, heads=2, attn_dim_head=16, rotary_pos_emb=True)
        net = TransformerWrapper(num_tokens=256, max_seq_len=seq_len, attn_layers=stack)
    else:
        net = TransformerWrapper.from_pretrained(folder)
    return EarlyExitWrapper(net, layer_loss_weights='linear')


def teach(model: nn.Module, draw: Callable[[torch.Generator], Tensor], steps: int) -> None:
    """Train all blocks to say the next byte."""
    optimiser, generator = torch.optim.AdamW(model.parameters(), lr=5e-4), torch.Generator().manual_seed(0)
    for step in range(steps):
        optimiser.param_groups[0]['lr'] = 5e-4 * min(1.0, (step + 1) / 20) * (1 - step / steps)
        model(draw(generator)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()


@torch.no_grad()
def bits_of_blocks(model: nn.Module, held_out: Tensor) -> list[float]:
    """Bits per byte behind each block."""
    model.eval()
    losses = []
    for rows in held_out.split(8):
        states, _ = model.states_of(rows[:, :-1], {})
        losses.append([loss.mean().item() for loss in model.losses_of(states, rows[:, 1:])])
    return [statistics.fmean(each) / math.log(2) for each in zip(*losses, strict=True)]


def seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def speed(fast: Callable[[], Any], slow: Callable[[], Any], rounds: int) -> float:
    """How many times as fast one is as the other, in turns."""
    fast(), slow()
    return statistics.median(1 / (seconds(fast) / seconds(slow)) for _ in range(rounds))


def risk_of(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    from x_transformers.early_exit import token_f1_distance

    return statistics.fmean(token_f1_distance(*pair) for pair in zip(made, wanted, strict=True))


def rows_of(model: nn.Module, prompts: Tensor, options: argparse.Namespace) -> list[list[str]]:
    """A line for each delta."""
    from x_transformers.early_exit import calibrate_exit

    calibration, others = prompts.chunk(2)
    greedy = dict(temperature=0.0)
    full = model.generate(others, options.new, **greedy)
    lines = []
    for delta in options.deltas:
        threshold = calibrate_exit(model, calibration, options.new, delta=delta, eps=0.05)
        exits = dict(greedy, exit='confidence', exit_threshold=threshold)
        made, stats = model.generate(others, options.new, return_stats=True, **exits)
        found = [f'{delta:g}', f'{threshold:.2f}', f'{risk_of(made, full):.3f}']
        found.append(f'{stats.mean_depth:.2f} of {stats.blocks}')
        for rows in (others[:1], others[:8]):
            ways = [partial(model.generate, rows, options.new, **own) for own in (exits, greedy)]
            found.append(f'{speed(*ways, options.rounds):.2f}')
        lines.append(found)
    one = others[:1]
    faster = speed(
        lambda: model.speculative(one, options.new, draft=1, temperature=0.0),
        lambda: model.generate(one, options.new, **greedy),
        options.rounds,
    )
    return [*lines, ['speculative, draft=1', '-', '0', '-', f'{faster:.2f}', '-']]


def broken_promises(draws: int, bound: str, count: int = 200, delta: float = 0.2, eps: float = 0.05) -> float:
    """The part of simulated calibrations whose threshold has a true risk above delta. An example is lost or not, and is
    lost for all lower thresholds too, so that no losses of these means are further apart."""
    from x_transformers.early_exit import learn_then_test

    generator, true, broken = torch.Generator().manual_seed(0), torch.linspace(0.0, 0.4, 401).double(), 0
    for _ in range(draws):
        each = torch.rand(count, generator=generator, dtype=torch.double)
        risks = (each < true.unsqueeze(-1)).double().mean(dim=1)
        at = learn_then_test(risks.tolist(), count, delta=delta, eps=eps, bound=bound)
        broken += at is not None and true[at].item() > delta
    return broken / draws


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('checkpoint', nargs='?', help='a folder of train_lm.py; none: a net that knows nothing')
    parser.add_argument('--steps', type=int, default=400, help='training steps of all blocks')
    parser.add_argument('--prompts', type=int, default=200, help='half of them to calibrate, half to measure')
    parser.add_argument('--length', type=int, default=64, help='bytes of a prompt')
    parser.add_argument('--new', type=int, default=64, help='bytes that are generated')
    parser.add_argument(
        '--deltas', type=lambda text: [float(each) for each in text.split(',')], default=[0.2, 0.3, 0.4]
    )
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--bytes', type=int, default=10**8, help='of text that is read at most')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--simulate', type=int, metavar='DRAWS', help='only count broken promises')
    parser.add_argument('--tiny', action='store_true', help='tiny sizes: whether it runs')
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if options.simulate:
        for bound in ('hoeffding', 'hoeffding_bentkus'):
            part = 100 * broken_promises(options.simulate, bound)
            print(f'{bound}: {part:.1f} % of {options.simulate} calibrations break their promise')
        return
    if options.tiny:
        vars(options).update(steps=2, prompts=64, length=8, new=8, deltas=[0.5], rounds=1, bytes=10**5)
    model = model_of(options.checkpoint, 128)
    text = Corpus(model.net.max_seq_len, 8, options.bytes)
    held_out = text.held_out(2 * options.prompts)
    teach(model, text.draw, options.steps)
    print('bits per byte behind each block:', ', '.join(f'{bits:.3f}' for bits in bits_of_blocks(model, held_out[:64])))
    prompts = held_out[: options.prompts, : options.length]
    head = ['delta', 'threshold', 'risk on other text', 'mean depth', 'times as fast, one row', 'eight rows']
    print(markdown(head, rows_of(model.eval(), prompts, options)))


if __name__ == '__main__':
    main()

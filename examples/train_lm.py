"""Train a small language model on real text.

    python examples/train_lm.py                                        the source files of Python's standard library
    python examples/train_lm.py --data my_texts/ --steps 2000          a text file, or a folder of them
    python examples/train_lm.py --train-tokenizer 8192                 tokens of several bytes, learned from the text
    python examples/train_lm.py --set attn_kv_heads=1 --set attn_qk_norm=True        any flag of the model
    python examples/train_lm.py --out runs/train_lm-001 --resume       go on after an interruption
    python examples/train_lm.py --out runs/train_lm-001 --resume --steps 3000        or after the end
    torchrun --nproc-per-node 2 examples/train_lm.py --parallel ddp    several processes, or fsdp, or fsdp+tp

A byte is a token, so any text will do and nothing has to be tokenized; `--tokenizer` takes a tokenizer.json, or a
model of sentencepiece, and `--train-tokenizer` makes one, which every checkpoint holds.

A run writes to a folder of its own: every `--interval` steps, and every `--save-minutes`, a checkpoint, at the end
loss.png. A checkpoint holds the weights in model.safetensors, how the model is built in config.json, optimizer, random
state and history beside them. It appears as a whole or not at all, and a resumed run gives the same numbers as one that
never stopped (on the same CPU, with the same number of threads). What every example does, and how a run is saved,
stands in common/; the story of this one starts at `main`, at the end.

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common import packages

with packages():
    import torch
    from common import runs
    from common.folders import checkpoints, saved
    from common.options import (
        Stop,
        bounded,
        exit_code,
        not_negative,
        option,
        parse,
        route_flags,
        run_parser,
        size,
        some_text,
        width_of_heads,
    )
    from common.pictures import curves
    from common.ranks import ALONE, Ranks, add_options
    from common.texts import check_enough, fixed_windows, printable, random_crops, read_corpus
    from common.tokens import Bytes, Codec, Pieces, encoded, read_tokenizer, tokenizer_in
    from torch import Tensor
    from tqdm import tqdm

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

# flags that help a small decoder on little text; --set overrides each
STACK = dict(rotary_pos_emb=True, shift_tokens=2, use_rmsnorm=True, zero_init_branch_output=True)
STACK |= dict(ff_glu=True, ff_swish=True, ff_no_bias=True, add_value_residual=True)
OWN_OPTION = {'dim', 'depth', 'heads', 'num_tokens', 'max_seq_len', 'attn_layers'}


# options


@dataclass(frozen=True)
class Config(runs.Config):
    data: str | None = option(None, some_text, "text file or folder (Python's standard library)", metavar='PATH')
    max_bytes: int = option(200_000_000, size, 'read no more of it')
    tokenizer: str | None = option(None, some_text, 'a tokenizer.json, or a model of sentencepiece', metavar='PATH')
    train_tokenizer: int | None = option(None, bounded(int, 257), 'learn so many tokens from the text', metavar='SIZE')
    seq_len: int = option(256, bounded(int, 2), 'tokens per sequence')
    dim: int = option(128, size, 'width of the model')
    depth: int = option(4, size, 'number of layers')
    heads: int = option(2, size, 'attention heads')
    val_windows: int = option(256, size, 'sequences to validate on')


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = run_parser('train_lm', __doc__, Config, interval=250)
    add = parser.add_argument
    add('--compile', action='store_true', help='use torch.compile')
    add_options(parser)
    add('--prompt', type=some_text, default='def ', help='what the sample at the end starts with ("def ")')
    add('--sample-bytes', type=size, default=300, help='length of the sample (300)')
    add('--temperature', type=not_negative, default=0.7, help='of the sample; 0 takes the likeliest byte (0.7)')
    return parse(parser, argv)


# model


def build_model(config: Config, num_tokens: int = 256) -> AutoregressiveWrapper:
    width = width_of_heads(config.dim, config.heads)
    decoder, wrapper = route_flags(config.flags, (Decoder, TransformerWrapper), OWN_OPTION)
    decoder = {**STACK, 'attn_dim_head': width, **decoder}
    try:
        layers = Decoder(dim=config.dim, depth=config.depth, heads=config.heads, **decoder)
        net = TransformerWrapper(num_tokens=num_tokens, max_seq_len=config.seq_len, attn_layers=layers, **wrapper)
        json.dumps(net.config)  # which a checkpoint will need
        return AutoregressiveWrapper(net)
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None


# a run


class Run(runs.Run):
    """A language model in training."""

    config: Config
    model: AutoregressiveWrapper
    unit = 'bits per byte'

    def __init__(
        self,
        config: Config,
        corpus: tuple[Tensor, Tensor],
        device: torch.device,
        codec: Codec,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(config, device, ranks)
        train, valid = (encoded(part, codec) for part in corpus)
        self.codec, self.train, self.windows = codec, train, fixed_windows(valid, config)
        # of the text to train on, and that to validate on
        self.bytes_per_token = len(corpus[0]) / max(1, len(train)), len(corpus[1]) / max(1, len(valid))
        if not isinstance(codec, Bytes):
            kinds, per_token = f'{codec.size:,} kinds', f'{self.bytes_per_token[0]:.2f} bytes each'
            print(f'tokens: {len(train):,} to train on, {len(valid):,} to validate, of {kinds}, {per_token}')
        check_enough((train, valid), config, codec.unit)
        self.digest = hashlib.sha256(b'%d' % len(train) + torch.cat((train, valid)).numpy().data).hexdigest()
        self.set_model(build_model(config, codec.size))
        self.loss_of: Callable[[Tensor], Tensor] = ranks.called(self.model)

    @property
    def net(self) -> TransformerWrapper:
        return self.model.net

    def other_data(self) -> str:
        return f'other text than {self.config.data or "this Python has"}' + ', or other tokens' * bool(
            self.config.tokenizer
        )

    def write_more(self, folder: Path) -> None:
        self.codec.save(folder)

    def told(self, loss: float, steps_per_second: float) -> str:
        speed = steps_per_second * self.config.batch_size * self.config.seq_len
        bits = loss / math.log(2) / self.bytes_per_token[0]
        return f'loss {loss:.3f}, bits/byte {bits:.3f}, {speed:,.0f} tokens/s'

    def batch_loss(self) -> Tensor:
        batch = random_crops(self.train, self.config, self.draws)
        return self.loss_of(self.ranks.own(batch).to(self.device))

    def score(self) -> float:
        return validate(self, self.windows)


def try_out(run: Run, compile: bool) -> None:
    """Run the model once: a flag may ask for inputs that plain text does not have, and --compile for a compiler."""
    tried = 'a language model with these flags'
    try:
        validate(run, run.windows[:1])
        sample(run, '\n', 1, temperature=0.0)
        if compile:
            tried = '--compile'
            run.loss_of = torch.compile(run.model)
            with run.autocast():
                loss = run.loss_of(random_crops(run.train, run.config, torch.Generator()).to(run.device))
            loss.backward()
            run.model.zero_grad(set_to_none=True)
    except Exception as error:
        if tried != '--compile' and not run.config.flags:
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Stop(f'{tried} does not work here: {reason}') from error


@torch.no_grad()
def validate(run: Run, windows: Tensor) -> float:
    """Bits per byte over the windows."""
    run.model.eval()
    with run.autocast():
        quiet = len(windows) <= 32 or not run.ranks.leads
        parts = tqdm(windows.split(32), 'validation', leave=False, dynamic_ncols=True, disable=quiet)
        total = sum(run.model(part.to(run.device)).item() * len(part) for part in parts)
    run.model.train()
    return total / len(windows) / math.log(2) / run.bytes_per_token[1]


# results


def sample(run: Run, prompt: str, length: int, temperature: float) -> str:
    """The prompt and about `length` bytes that the model adds to it."""
    limit, ids = run.config.seq_len, run.codec.encode(prompt) or run.train[:1].tolist()
    if len(ids) > limit:
        print(f'note: of the {len(ids)} {run.codec.unit} of the prompt, the model sees the last {limit}')
    start, count = torch.tensor(ids[-limit:], device=run.device), math.ceil(length / run.bytes_per_token[0])
    torch.manual_seed(run.config.seed)
    with run.autocast():
        added = run.model.generate(start, count, temperature=temperature)
    return printable(run.codec.decode(ids + added.tolist()))


# the whole


def codec_of(config: Config, args: argparse.Namespace, train: Tensor) -> Codec:
    """The tokenizer of a run: that of its checkpoint, a file, or what is learned from the text; else bytes."""
    if config.tokenizer and config.train_tokenizer:
        raise Stop('--tokenizer and --train-tokenizer both say what a token is, give only one')
    if args.resume and not hasattr(args, 'tokenizer'):
        return tokenizer_in(checkpoints(Path(args.out))[-1])
    if config.tokenizer:
        return read_tokenizer(Path(config.tokenizer))
    if config.train_tokenizer:
        print(f'tokens: learning {config.train_tokenizer:,} of them from the text', flush=True)
        return Pieces.learn(train.numpy().tobytes().decode('utf-8', errors='replace'), config.train_tokenizer)
    return Bytes()


def work(args: argparse.Namespace) -> None:
    def build(config: Config, device: torch.device) -> Run:
        out = Path(args.out or 'runs')
        if config.data and out.resolve().is_relative_to(Path(config.data).resolve()):
            raise Stop(f'--out {out} lies in --data {config.data}, it would be read as text; choose another folder')
        ranks.check(config, args.compile)
        corpus = read_corpus(config)
        run = Run(config, corpus, device, codec_of(config, args, corpus[0]), ranks)
        try_out(run, args.compile)
        return run

    def finish(run: Run, out: Path) -> None:
        if ranks.leads:
            scale = 1 / math.log(2) / run.bytes_per_token[0]
            curves(run, out / 'loss.png', f'Language model of {run.codec.unit}', 'bits per byte', scale=scale)
        print(f'loss curve in {out / "loss.png"}, {saved(out)}\n')
        print(sample(run, args.prompt, args.sample_bytes, args.temperature))
        print(f'\nval bits per byte: {run.validations[-1][1]:.3f}')

    with Ranks.started(args).meeting() as ranks:
        runs.conduct('train_lm', args, Config, build, finish, ranks)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return exit_code('train_lm.py', lambda: work(read_arguments(argv)))


if __name__ == '__main__':
    sys.exit(main())

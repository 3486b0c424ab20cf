"""Teach an encoder and a decoder the names of countries, languages and currencies in another language.

    python examples/translate.py                                from English to Spanish
    python examples/translate.py --source de --target fr        any two languages of the CLDR
    python examples/translate.py --set dec_attn_qk_norm=True    any flag of the encoder (enc_) or the decoder (dec_)
    python examples/translate.py --out runs/translate-001 --resume        go on after an interruption

The names come from the Common Locale Data Repository, through the package Babel. A name is its bytes in UTF-8, so any
two languages will do; one more in front says whether it names a country, a language or a currency. Since a thousand
names are few, half of a batch are words without a meaning, which teach to copy letters. A tenth of the names is kept
for the test at the end and a tenth for validation, where only a translation that is right to the last letter counts. A
run writes checkpoints as it goes, which --resume goes on from, and at the end loss.png, attention.png (where the
decoder looks while it writes) and translations.txt.

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common import packages

with packages():
    import torch
    from common import runs
    from common.folders import saved
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
    from common.pictures import cells, curves, write_figure
    from common.texts import printable
    from matplotlib.figure import Figure
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence

    from x_transformers import XTransformer

PAD, START, END, NUM_TOKENS = 0, 1, 2, 256  # control characters, which no name has
# what a name is one of, and the control character in front of it that says so
KINDS = dict(territories='\3', languages='\4', currencies='\5')
INVENTED = '\6'  # the same for a word without a meaning, which stays as it is
IGNORED = -100  # what is no target
# flags that help small stacks, on either side; --set overrides each
STACK = dict(scaled_sinu_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True)
OWN_OPTION = {'dim', 'tie_token_emb', 'pad_value', 'ignore_index'}
OWN_OPTION |= {f'{side}_{name}' for side in ('enc', 'dec') for name in ('num_tokens', 'max_seq_len', 'depth', 'heads')}

Pair = tuple[str, str]


@dataclass(frozen=True)
class Config(runs.Config):
    steps: int = option(1500, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(32, size, 'names per step')
    source: str = option('en', some_text, 'language to translate from, by its code', metavar='CODE')
    target: str = option('es', some_text, 'language to translate into, by its code', metavar='CODE')
    invented: float = option(0.5, bounded(float, 0, 1), 'share of words without a meaning, to learn to copy letters')
    longest: int = option(24, bounded(int, 8), 'leave out names of more bytes')
    dim: int = option(64, size, 'width of both stacks')
    depth: int = option(2, size, 'number of layers of each stack')
    heads: int = option(2, size, 'attention heads')
    dropout: float = option(0.2, not_negative, 'in attention and feedforwards')


# data


def names_of(code: str, option: str) -> dict[tuple[str, str], str]:
    """The names of a language, by kind and code of what they name."""
    with packages():
        from babel import Locale, UnknownLocaleError
    try:
        locale = Locale.parse(code, sep='-' if '-' in code else '_')
    except (UnknownLocaleError, ValueError) as error:
        raise Stop(f'{option} {code}: {str(error).rstrip(".")}') from None
    return {(kind, key): name for kind in KINDS for key, name in getattr(locale, kind).items()}


def read_names(config: Config) -> dict[str, list[Pair]]:
    """Pairs of names to train on, to validate on and to test on; a control character in front of a source says of which
    kind it is. No source is in two parts."""
    sources, targets = names_of(config.source, '--source'), names_of(config.target, '--target')
    pairs = {KINDS[key[0]] + sources[key]: targets[key] for key in sorted(sources.keys() & targets.keys())}
    short = {name: right for name, right in pairs.items() if max(map(bytes_of, (name, right))) <= config.longest}
    names = sorted({name[1:] for name in short})  # one that is of two kinds is in one part
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(config.seed)).tolist()
    tenth = len(names) // 10
    if not tenth:
        raise Stop(f'there are {len(names)} such names in {config.source} and {config.target}, too few to learn from')
    parts = dict(test=order[:tenth], validate=order[tenth : 2 * tenth], train=order[2 * tenth :])
    found: dict[str, list[Pair]] = {}
    for part, chosen in parts.items():
        both = (kind + names[i] for i in chosen for kind in KINDS.values())
        found[part] = [(name, short[name]) for name in both if name in short]
    print('data: names, ' + ', '.join(f'{len(some):,} to {part}' for part, some in found.items()))
    return found


def invented(letters: list[str], generator: torch.Generator) -> str:
    """A word of 3 to 8 of these letters."""
    length = int(torch.randint(3, 9, (), generator=generator))
    return ''.join(letters[i] for i in torch.randint(len(letters), (length,), generator=generator)).capitalize()


def bytes_of(name: str) -> int:
    return len(name.encode())


def ids_of(names: Sequence[str], start: bool = False) -> Tensor:
    """Names as bytes, with an end, padded on the right: (names, longest)."""
    return pad_sequence([torch.tensor([*[START] * start, *name.encode(), END]) for name in names], True, PAD)


def text_of(ids: list[int]) -> str:
    """What a row of ids says up to its end."""
    ids = ids[: ids.index(END)] if END in ids else ids
    return bytes(ids).decode(errors='replace')


# model


def build_model(config: Config) -> XTransformer:
    width = width_of_heads(config.dim, config.heads)
    (given,) = route_flags(config.flags, (XTransformer,), OWN_OPTION)
    stack = dict(STACK, num_tokens=NUM_TOKENS, max_seq_len=config.longest + 2, depth=config.depth, heads=config.heads)
    stack |= dict(attn_dim_head=width, attn_dropout=config.dropout, ff_dropout=config.dropout)
    both = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in stack.items()}
    try:
        net = XTransformer(dim=config.dim, tie_token_emb=True, pad_value=PAD, ignore_index=IGNORED, **{**both, **given})
        ids = ids_of(['a name'], start=True)
        net(ids, ids, mask=ids != PAD)
        return net
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None


class Run(runs.Run):
    """An encoder and a decoder in training."""

    config: Config
    model: XTransformer

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self.set_model(build_model(config))
        self.parts = read_names(config)
        everything = [pair for part in self.parts.values() for pair in part]
        self.digest = hashlib.sha256(repr(everything).encode()).hexdigest()
        self.letters = [letter for name, _ in self.parts['train'] for letter in name[1:].lower() if letter.isalpha()]

    def batch_loss(self) -> Tensor:
        pairs, count = self.parts['train'], self.config.batch_size
        words = [invented(self.letters, self.draws) for _ in range(int(count * self.config.invented))]
        drawn = torch.randint(len(pairs), (count - len(words),), generator=self.draws).tolist()
        both = [*(pairs[i] for i in drawn), *((INVENTED + word, word) for word in words)]
        sources, targets = zip(*both, strict=True)
        source, target = ids_of(sources).to(self.device), ids_of(targets, start=True).to(self.device)
        return self.model(source, target.masked_fill(target == PAD, IGNORED), mask=source != PAD)

    def translations(self, names: Sequence[str]) -> list[str]:
        """What the model makes of names, each time the likeliest byte."""
        written = []
        for some in (names[i : i + 64] for i in range(0, len(names), 64)):
            source = ids_of(some).to(self.device)
            start = torch.full((len(some), 1), START, device=self.device)
            with self.autocast():
                ids = self.model.generate(
                    source, start, self.config.longest + 1, mask=source != PAD, eos_token=END, temperature=0.0
                )
            written += [text_of(row) for row in ids.tolist()]
        return written

    def score(self) -> float:
        sources, targets = zip(*self.parts['validate'], strict=True)
        return share(self.translations(sources), targets)

    def said(self, score: float) -> str:
        return f'{score:.1%} right to the last letter'


def share(written: Sequence[str], wanted: Sequence[str]) -> float:
    """How many names agree."""
    return sum(a == b for a, b in zip(written, wanted, strict=True)) / len(wanted)


# results


@torch.no_grad()
def looks(run: Run, source: str, written: str) -> Tensor:
    """How much each byte that is written, the end included, looks at each byte of the source: the mean over the heads
    of the decoder's last layer."""
    run.model.eval()
    given, target = ids_of([source]).to(run.device), ids_of([written], start=True).to(run.device)
    context, mask = run.model.encode(given, given != PAD, None, None)
    net = run.model.decoder.net
    _, seen = net(target[:, :-1], context=context, context_mask=mask, return_intermediates=True)
    run.model.train()
    crossing = [one for one in seen.attn_intermediates if one.layer_type == 'c']
    return crossing[-1].post_softmax_attn[0].mean(0).float().cpu()


def draw_looks(run: Run, pairs: list[Pair], path: Path) -> None:
    """One map of attention for each pair of a source and what the model writes."""
    figure = Figure(figsize=(5 * len(pairs), 5), layout='constrained')
    for place, (source, written) in enumerate(pairs, start=1):
        axes = figure.add_subplot(1, len(pairs), place)
        axes.set(title=f'{source[1:]}\n{written}', xlabel='read', ylabel='written')
        cells(axes, looks(run, source, written)[:, 1:], spelled(written), spelled(source[1:]))
    write_figure(figure, path, 'the picture of attention')


def spelled(name: str) -> list[str]:
    """A name letter by letter, as long as its bytes, and a sign for the end."""
    return [part for letter in name for part in (printable(letter), *[''] * (bytes_of(letter) - 1))] + ['∎']


def finish(run: Run, out: Path) -> None:
    sources, targets = zip(*run.parts['test'], strict=True)
    written = run.translations(sources)
    rows = list(zip(sources, targets, written, strict=True))
    table = [f'{"right" if made == right else "wrong"}\t{name[1:]}\t{made}\t{right}' for name, right, made in rows]
    (out / 'translations.txt').write_text('\n'.join(['\tname\twritten\tright', *table, '']), encoding='utf-8')
    curves(run, out / 'loss.png', 'Names in another language', 'nats per byte', score='share of right names')
    shown = [row for row in rows if row[1] == row[2] != row[0][1:]] or rows
    draw_looks(run, [(name, made) for name, _, made in shown[:3]], out / 'attention.png')
    print(f'pictures: loss.png and attention.png, all of the test: translations.txt, in {out}, {saved(out)}\n')
    for name, right, made in rows[:12]:
        print(f'{name[1:]} -> {made}' + ('' if made == right else f'   ({right})'))
    right, same = share(written, targets), share([name[1:] for name in sources], targets)
    print(f'\ntest, right to the last letter: {right:.1%} of {len(rows)} (copied names would give {same:.1%})')


def work(args: argparse.Namespace) -> None:
    runs.conduct('translate', args, Config, Run, finish)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = run_parser('translate', __doc__, Config, interval=125)
    return exit_code('translate.py', lambda: work(parse(parser, argv)))


if __name__ == '__main__':
    sys.exit(main())

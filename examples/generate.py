"""Let a language model go on with a text.

    python examples/generate.py --prompt 'def main('             the newest run of train_lm.py
    python examples/generate.py --model path/to/gpt2 --prompt 'Once upon a time'       as transformers writes it
    python examples/generate.py --prompt-file notes.txt --tokens 500 --temperature 0.9 --top-p 0.95 --stream
    python examples/generate.py --samples 4                      several ways to go on
    python examples/generate.py --beams 5                        the most probable text that a search finds
    python examples/generate.py --speculative                    several bytes at a time, guessed from the text so far
    python examples/generate.py --speculative --draft runs/train_lm-002        or by a smaller model
    python examples/generate.py --prompt-file long.txt --cache long.cache      read the prompt once, keep it on disk

What it is asked for goes to standard output, how fast it went to the other one. With the same --seed, on the same
machine, it says the same.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import packages

with packages():
    import torch
    from common import models
    from common.options import Stop, bounded, choose_machine, exit_code, not_negative, positive, seed, size, some_text
    from common.texts import printable

    from x_transformers import AutoregressiveWrapper
    from x_transformers.autoregressive_wrapper import PromptCache

share = bounded(float, 0, 1, above=True)
FILTERS = dict(top_k='k', top_p='thres', min_p='min_p')
# pairs of wishes that exclude each other
APART = [
    ('beams', 'speculative'),
    ('beams', 'stream'),
    ('beams', 'samples'),
    ('beams', 'cache'),
    ('beams', 'stop'),
    ('beams', 'top_k'),
    ('beams', 'top_p'),
    ('beams', 'min_p'),
    ('beams', 'repetition_penalty'),
    ('speculative', 'stream'),
    ('speculative', 'samples'),
    ('speculative', 'cache'),
    ('samples', 'stream'),
    ('prompt', 'prompt_file'),
]


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--model', type=some_text, metavar='PATH', help='run or folder of a model (newest run of train_lm)')
    add('--prompt', type=some_text, help='what to go on with ("def ")')
    add('--prompt-file', type=some_text, metavar='PATH', help='the same, from a file')
    add('--tokens', type=size, default=200, help='how many to add (200)')
    add('--temperature', type=not_negative, default=0.7, help='0 takes the likeliest each time (0.7)')
    add('--top-k', type=size, metavar='N', help='draw from the N likeliest')
    add('--top-p', type=share, metavar='P', help='draw from the likeliest that have probability P together')
    add('--min-p', type=share, metavar='P', help='draw from those at least P times as likely as the likeliest')
    add('--repetition-penalty', type=positive, metavar='X', help='above 1, what was said is said less often again')
    add('--stop', type=some_text, action='append', metavar='TEXT', help='end after this; may be given several times')
    add('--samples', type=size, metavar='N', help='go on in N ways')
    add('--stream', action='store_true', help='print as it comes')
    add('--beams', type=size, metavar='N', help='search with N hypotheses')
    add('--speculative', action='store_true', help='guess several tokens, and read them at once')
    add('--draft', type=some_text, metavar='PATH', help='a smaller model that guesses, for --speculative')
    add('--cache', type=some_text, metavar='FILE', help='where what was read of the prompt is kept')
    add('--seed', type=seed, default=0, help='of what is drawn (0)')
    add('--device', default='auto', help='cpu, cuda, cuda:1, mps .. (cuda if there is one, else cpu)')
    args = parser.parse_args(argv)
    for one, other in APART:
        if getattr(args, one) and getattr(args, other):
            parser.error(f'--{one.replace("_", "-")} cannot be combined with --{other.replace("_", "-")}')
    if args.draft and not args.speculative:
        parser.error('--draft needs --speculative')
    return args


def read_prompt(args: argparse.Namespace) -> str:
    if not args.prompt_file:
        return args.prompt or 'def '
    try:
        text = Path(args.prompt_file).read_text(encoding='utf-8', errors='surrogateescape')
    except OSError as error:
        raise Stop(f'--prompt-file {args.prompt_file} cannot be read: {error.strerror}') from None
    if not text:
        raise Stop(f'--prompt-file {args.prompt_file} is empty')
    return text


def filters(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `generate` for the filters that were asked for; without one, all tokens may be drawn."""
    given = {name: getattr(args, name) for name in FILTERS if getattr(args, name) is not None}
    if not given:
        return dict(filter_logits_fn=lambda logits: logits)
    return dict(filter_logits_fn=tuple(given), filter_kwargs=[{FILTERS[name]: value} for name, value in given.items()])


class Speaker:
    """A model, a prompt, and the ways to go on."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.text = args, read_prompt(args)
        self.device, _ = choose_machine(args.device, 'auto')
        net, self.codec = models.read_model(models.find(args.model, '--model'), '--model')
        if not net.attn_layers.causal:
            raise Stop('--model: an encoder does not go on with a text')
        self.model = AutoregressiveWrapper(net.to(self.device))
        ids = self.codec.encode(self.text)
        while ids and ids[-1] in self.codec.ends:  # a text that has ended does not go on
            del ids[-1]
        limit = net.max_seq_len or len(ids)
        if len(ids) > limit:
            print(f'note: of the {len(ids)} tokens of the prompt, the model sees the last {limit}', file=sys.stderr)
        self.ids = torch.tensor(ids[-limit:], device=self.device)
        self.options: dict[str, Any] = dict(eos_token=self.codec.ends) if self.codec.ends else {}

    def drawing(self) -> dict[str, Any]:
        """Keywords of everything that draws."""
        args, more = self.args, dict(self.options)
        if args.repetition_penalty:
            more['repetition_penalty'] = args.repetition_penalty
        if args.stop:
            more['stop_sequences'] = [self.codec.encode_part(text) for text in args.stop]
        return dict(more, temperature=args.temperature, **filters(args))

    def draft(self) -> AutoregressiveWrapper | None:
        if not self.args.draft:
            return None
        net, _ = models.read_model(models.find(self.args.draft, '--draft'), '--draft')
        if net.num_tokens != self.model.net.num_tokens:
            counts = f'{net.num_tokens:,} ids, the model has {self.model.net.num_tokens:,}'
            raise Stop(f'--draft {self.args.draft} has {counts}')
        return AutoregressiveWrapper(net.to(self.device))

    def cached(self) -> dict[str, Any]:
        """The prompt as it was read: now, or by an earlier call."""
        if not self.args.cache:
            return {}
        path = Path(self.args.cache)
        try:
            if path.exists():
                cache = PromptCache.load(path, self.device)
                print(f'note: {cache.length:,} tokens of the prompt come from {path}', file=sys.stderr)
            else:
                cache = self.model.read_prompt(self.ids.unsqueeze(0))
                cache.save(path)
        except OSError as error:
            raise Stop(f'--cache {path} cannot be used: {error.strerror}') from None
        return dict(prompt_cache=cache)

    def said(self) -> Iterator[list[int]]:
        """What is added to the prompt, one continuation after the other, most probable first."""
        args, prompts = self.args, self.ids.unsqueeze(0)
        if args.beams:
            yield self.model.beam_search(prompts, args.tokens, args.beams, **self.options)[0].tolist()
        elif args.speculative:
            drawn = dict(self.drawing(), return_stats=True)
            tokens, stats = self.model.speculative(prompts, args.tokens, self.draft(), **drawn)
            kept = f'{stats.accepted} of {stats.guessed} guesses kept, {stats.rounds} rounds'
            print(f'note: {kept}', file=sys.stderr)
            yield tokens[0].tolist()
        else:
            more = dict(self.drawing(), **self.cached())
            yield from self.model.generate(prompts, args.tokens, num_samples=args.samples or 1, **more)[0].tolist()

    def streamed(self) -> int:
        """Print what is added as it comes. Returns the number of tokens."""
        ids: list[int] = []
        shown = ''
        print(printable(self.text), end='', flush=True)
        for token in self.model.stream(self.ids.unsqueeze(0), self.args.tokens, **self.drawing(), **self.cached()):
            ids.append(token.item())
            text = self.added(ids)
            if not text.endswith('\N{REPLACEMENT CHARACTER}'):  # a letter may need several tokens
                print(printable(text[len(shown) :]), end='', flush=True)
                shown = text
        print(printable(self.added(ids)[len(shown) :]))
        return len(ids)

    def added(self, ids: list[int]) -> str:
        """What ids say behind the prompt, without the sign of the end, and what fills the row behind it."""
        ids = ids[: min((ids.index(end) for end in self.codec.ends if end in ids), default=len(ids))]
        before = self.ids.tolist()
        start, whole = self.codec.decode(before), self.codec.decode(before + ids)
        # together, since pieces join: there may be a space between
        return whole[len(start) :] if whole.startswith(start) else self.codec.decode(ids)


def speak(args: argparse.Namespace) -> None:
    try:
        speaker = Speaker(args)
        torch.manual_seed(args.seed)
        began = time.perf_counter()
        if args.stream:
            count = speaker.streamed()
        else:
            rows = list(speaker.said())
            count = sum(map(len, rows))
            for place, row in enumerate(rows):
                print('-' * 20 + '\n' if place else '', end='')
                print(printable(speaker.text + speaker.added(row)))
    except (ValueError, TypeError) as error:  # the library says what does not go together
        raise Stop(str(error)) from None
    seconds = time.perf_counter() - began
    print(f'\n{count:,} tokens in {seconds:.1f} s, {count / seconds:,.0f} per second', file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return exit_code('generate.py', lambda: speak(read_arguments(argv)))


if __name__ == '__main__':
    sys.exit(main())

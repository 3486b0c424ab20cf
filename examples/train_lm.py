"""Train a small byte-level language model on real text.

    python examples/train_lm.py                                        the source files of Python's standard library
    python examples/train_lm.py --data my_texts/ --steps 2000          a text file, or a folder of them
    python examples/train_lm.py --set attn_kv_heads=1 --set attn_qk_norm=True        any flag of the model
    python examples/train_lm.py --out runs/train_lm-001 --resume       go on after an interruption
    python examples/train_lm.py --out runs/train_lm-001 --resume --steps 3000        or after the end

A byte is a token, so any text will do and nothing has to be tokenized. A run writes to a folder of its own: every
`--interval` steps, and every `--save-minutes`, a checkpoint, at the end loss.png. A checkpoint holds the weights in
model.safetensors, how the model is built in config.json, optimizer, random state and history beside them. It appears
as a whole or not at all, and a resumed run gives the same numbers as one that never stopped (on the same CPU, with
the same number of threads). The story starts at `main`, at the end.

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

# threads that wait must not spin: beside other work on the same cores, that made training 20 times slower
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
# what the examples share, and a checkout that is not installed
sys.path[:] = [str(Path(__file__).resolve().parent), *sys.path, str(Path(__file__).resolve().parents[1])]

try:
    import torch
    from common.folders import check_out, checkpoints, claimed, flush, new_folder, saved
    from common.options import Stop, bounded, not_negative, option, positive, size, some_text
    from common.texts import fixed_windows, random_crops, read_corpus
    from matplotlib.figure import Figure
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file
    from torch import Tensor
    from torch.nn.utils import clip_grad_norm_
    from tqdm import tqdm

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
except ModuleNotFoundError as missing:
    print(f'{missing.name} is not installed: pip install "x-transformers[examples]"', file=sys.stderr)
    raise SystemExit(2) from None

# flags that help a small decoder on little text; --set overrides each
STACK = dict(rotary_pos_emb=True, shift_tokens=2, use_rmsnorm=True, zero_init_branch_output=True)
STACK |= dict(ff_glu=True, ff_swish=True, ff_no_bias=True, add_value_residual=True)
OWN_OPTION = {'dim', 'depth', 'heads', 'num_tokens', 'max_seq_len', 'attn_layers'}
PRECISIONS = ('auto', 'float32', 'bfloat16', 'float16')


# options


@dataclass(frozen=True)
class Config:
    """All that decides the numbers of a run. A checkpoint is resumed with the same values."""

    data: str | None = option(None, some_text, "text file or folder (Python's standard library)", metavar='PATH')
    max_bytes: int = option(200_000_000, size, 'read no more of it')
    seed: int = option(0, bounded(int, 0, 2**63), 'of weights, crops and sample (0)')
    steps: int = option(1500, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(4, size, 'sequences per step')
    seq_len: int = option(256, bounded(int, 2), 'bytes per sequence')
    dim: int = option(128, size, 'width of the model')
    depth: int = option(4, size, 'number of layers')
    heads: int = option(2, size, 'attention heads')
    lr: float = option(2e-3, positive, 'highest learning rate')
    weight_decay: float = option(0.1, not_negative, 'of matrices')
    clip: float = option(1.0, positive, 'largest norm of the gradient')
    val_windows: int = option(256, size, 'sequences to validate on')
    precision: str = option('auto', str, 'bfloat16 on CUDA devices that have it, else float32', choices=PRECISIONS)
    flags: dict[str, str] = field(default_factory=dict)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    for f in fields(Config):
        if f.metadata:
            # without a default, so that --resume knows what was said
            add(f'--{f.name.replace("_", "-")}', default=argparse.SUPPRESS, **f.metadata)
    help_of_set = 'a flag of the model, as often as needed; python -m x_transformers.flags lists them'
    add('--set', dest='flags', action='append', default=[], metavar='NAME=VALUE', help=help_of_set)
    add('--out', type=some_text, metavar='DIR', help='folder of the run (runs/train_lm-001, or the next free number)')
    add('--resume', action='store_true', help='go on from the newest checkpoint in --out')
    add('--interval', type=size, default=250, help='validate and save every so many steps (250)')
    add('--save-minutes', type=positive, default=5.0, help='save if that long ago, between intervals too (5.0)')
    add('--device', default='auto', help='cpu, cuda, cuda:1, mps .. (cuda if there is one, else cpu)')
    add('--compile', action='store_true', help='use torch.compile')
    add('--prompt', type=some_text, default='def ', help='what the sample at the end starts with ("def ")')
    add('--sample-bytes', type=size, default=300, help='length of the sample (300)')
    add('--temperature', type=not_negative, default=0.7, help='of the sample; 0 takes the likeliest byte (0.7)')
    args = parser.parse_args(argv)
    if wrong := [text for text in args.flags if '=' not in text]:
        parser.error(f'--set got {wrong[0]!r}, it must be NAME=VALUE')
    if args.resume and args.out is None:
        parser.error('--resume needs --out, the folder of the run')
    return args


# machine and model


def choose_machine(device: str, precision: str) -> tuple[torch.device, str]:
    """What `auto` stands for here. Raises Stop for what this machine does not have."""
    try:
        chosen = torch.device(('cuda' if torch.cuda.is_available() else 'cpu') if device == 'auto' else device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError) as error:
        raise Stop(f'--device {device} cannot be used: {str(error).splitlines()[0]}') from None
    on_cuda = chosen.type == 'cuda'
    has_bfloat16 = not on_cuda or torch.cuda.is_bf16_supported(including_emulation=False)
    if (precision == 'float16' and not on_cuda) or (precision == 'bfloat16' and not has_bfloat16):
        raise Stop(f'--precision {precision} does not work on {chosen}; float32 always does')
    if precision == 'auto':
        precision = 'bfloat16' if on_cuda and has_bfloat16 else 'float32'
    return chosen, precision


def route_flags(flags: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What --set gave, as keywords of the decoder and of the wrapper around it. The flag table says which is whose."""
    if not flags:
        return {}, {}
    try:
        from x_transformers.flags import accepted, did_you_mean
    except ModuleNotFoundError:
        raise Stop('--set needs the flag table, x_transformers.flags, which this installation lacks') from None
    of_decoder, of_wrapper = accepted(Decoder), accepted(TransformerWrapper)
    routed: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, text in flags.items():
        if name in OWN_OPTION:
            raise Stop(f'--set {name}: this is not set by flag, see --help')
        if name not in of_decoder and name not in of_wrapper:
            raise Stop(f'--set {name}: there is no such flag{did_you_mean(name, [*of_decoder, *of_wrapper])}')
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        routed[name not in of_decoder][name] = value
    return routed


def build_model(config: Config) -> AutoregressiveWrapper:
    if config.dim % config.heads:
        raise Stop(f'--dim {config.dim} cannot be divided among {config.heads} --heads')
    decoder, wrapper = route_flags(config.flags)
    decoder = {**STACK, 'attn_dim_head': config.dim // config.heads, **decoder}
    try:
        layers = Decoder(dim=config.dim, depth=config.depth, heads=config.heads, **decoder)
        net = TransformerWrapper(num_tokens=256, max_seq_len=config.seq_len, attn_layers=layers, **wrapper)
        description_of(net)  # which a checkpoint will need
        return AutoregressiveWrapper(net)
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None


def description_of(net: TransformerWrapper) -> dict[str, Any]:
    """How a model is built, as JSON brings it back: what `TransformerWrapper.from_config` takes."""
    return json.loads(json.dumps(net.config))


# a run


class Run:
    """A training in progress: model, optimizer, random state and history."""

    def __init__(self, config: Config, corpus: tuple[Tensor, Tensor], device: torch.device) -> None:
        self.config, self.device = config, device
        self.train, self.windows = corpus[0], fixed_windows(corpus[1], config)
        self.text_digest = hashlib.sha256(b'%d' % len(corpus[0]) + torch.cat(corpus).numpy().data).hexdigest()
        torch.manual_seed(config.seed)
        random.seed(config.seed)
        self.crops = torch.Generator().manual_seed(config.seed)
        self.model = build_model(config).to(device)
        self.loss_of: Callable[[Tensor], Tensor] = self.model
        matrices = [weight for weight in self.model.parameters() if weight.ndim >= 2]
        vectors = [weight for weight in self.model.parameters() if weight.ndim < 2]
        groups = [dict(params=matrices, weight_decay=config.weight_decay), dict(params=vectors, weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=True)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.precision == 'float16')
        self.losses: list[float] = []  # of each step, in nats per byte
        self.validations: list[tuple[int, float]] = []  # step, bits per byte

    @property
    def step(self) -> int:
        return len(self.losses)

    def autocast(self) -> torch.autocast:
        dtype = getattr(torch, self.config.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)


def try_out(run: Run, compile: bool) -> None:
    """Run the model once: a flag may ask for inputs that plain text does not have, and --compile for a compiler."""
    tried = 'a language model with these flags'
    try:
        validate(run, run.windows[:1])
        sample(run, b'\n', 1, temperature=0.0)
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


# checkpoints


def save(run: Run, out: Path) -> None:
    """Write a checkpoint: a whole folder under another name, flushed, then renamed. The latest two are kept."""
    folder = out / f'step_{run.step:06d}'
    if folder.exists():
        return
    for left in out.glob('step_*.tmp'):
        shutil.rmtree(left)
    unfinished = folder.with_suffix('.tmp')
    try:
        unfinished.mkdir()
        write(run, unfinished)
        for path in (*unfinished.iterdir(), unfinished):
            flush(path)
        unfinished.rename(folder)
        flush(out)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        words = f'step {run.step} cannot be saved in {out}: {error}; {saved(out)}'
        raise Stop(f'{words}, to go on from it once there is room: --resume --out {out}', 1) from error
    for old in checkpoints(out)[:-2]:
        # renamed first: half a folder must not look like a checkpoint
        shutil.rmtree(old.rename(old.with_suffix('.tmp')))


def write(run: Run, folder: Path) -> None:
    """Write the files of a checkpoint."""
    tensors = {'losses': torch.tensor(run.losses, dtype=torch.float64)}
    tensors |= {'random.torch': torch.get_rng_state(), 'random.crops': run.crops.get_state()}
    if run.device.type == 'cuda':
        tensors['random.cuda'] = torch.cuda.get_rng_state(run.device)
    for index, moments in run.optimizer.state_dict()['state'].items():
        tensors |= {f'optimizer.{index}.{name}': tensor for name, tensor in moments.items()}
    state = dict(config=asdict(run.config), text_digest=run.text_digest, validations=run.validations)
    state |= dict(scaler=run.scaler.state_dict(), python_random=random.getstate())
    (folder / 'state.json').write_text(json.dumps(state), encoding='utf-8')
    (folder / 'config.json').write_text(json.dumps(description_of(run.model.net), indent=2), encoding='utf-8')
    # cloned, since safetensors refuses weights that share memory
    weights = {name: tensor.clone() for name, tensor in run.model.net.state_dict().items()}
    for name, content in (('model', weights), ('training', tensors)):
        save_file(content, folder / f'{name}.safetensors')
        shutil.copymode(folder / 'state.json', folder / f'{name}.safetensors')  # not for the owner alone


def load(run: Run, folder: Path, state: dict[str, Any]) -> None:
    """Put the run into the state of a checkpoint."""
    if state['text_digest'] != run.text_digest:
        raise Stop(f'cannot resume {folder}: it was trained on other text than {run.config.data or "this Python has"}')
    try:
        here, there = description_of(run.model.net), described(folder)
        if there not in (None, here):
            raise ValueError(f'its config.json says {there}, the model here is {here}')
        run.model.net.load_state_dict(load_file(folder / 'model.safetensors'))
        tensors = load_file(folder / 'training.safetensors')
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith('optimizer.'):
                _, index, kind = name.split('.')
                moments.setdefault(int(index), {})[kind] = tensor
        run.optimizer.load_state_dict({**run.optimizer.state_dict(), 'state': moments})
        run.scaler.load_state_dict(state['scaler'])
        run.losses = tensors['losses'].tolist()
        run.validations = [(step, bits) for step, bits in state['validations']]
        version, numbers, gauss = state['python_random']
        random.setstate((version, tuple(numbers), gauss))
        torch.set_rng_state(tensors['random.torch'])
        run.crops.set_state(tensors['random.crops'])
        if run.device.type == 'cuda' and 'random.cuda' in tensors:
            torch.cuda.set_rng_state(tensors['random.cuda'], run.device)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise Stop(f'{folder} is damaged or of another model: {error}') from None


def described(folder: Path) -> dict[str, Any] | None:
    """How the model of a checkpoint is built; None in a checkpoint of the first version of this script."""
    path = folder / 'config.json'
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def resume(out: Path, given: dict[str, Any]) -> tuple[Config, Path, dict[str, Any]]:
    """The newest checkpoint in `out`. What the command line says again has to agree, but for more steps; text is
    compared by content."""
    if not checkpoints(out):
        raise Stop(f'--resume: there is no checkpoint in {out}; leave out --resume to start there')
    folder = checkpoints(out)[-1]
    try:
        state = json.loads((folder / 'state.json').read_text(encoding='utf-8'))
        stored = Config(**state['config'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(f'{folder} is damaged ({error}); remove it to resume from the one before') from None
    new = {name: given.pop(name) for name in ('data', 'max_bytes') if name in given}
    if given.get('steps', 0) > stored.steps:
        new['steps'] = given.pop('steps')
    flags = given.pop('flags') or stored.flags
    if given.get('precision') == 'auto':
        del given['precision']
    pairs = [(f'--{name.replace("_", "-")}', value, getattr(stored, name)) for name, value in given.items()]
    for name in sorted({*flags, *stored.flags}):
        pairs.append((f'--set {name}', flags.get(name, 'not set'), stored.flags.get(name, 'not set')))
    different = [f'{option} is {here} here and {there} there' for option, here, there in pairs if here != there]
    if different:
        why = '; steps may be raised, not taken back' if '--steps' in ' '.join(different) else ''
        raise Stop(f'cannot resume {folder} in another configuration: {", ".join(different)}{why}')
    return replace(stored, **new), folder, state


# training


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up over the first twentieth, then half a cosine down to a fiftieth."""
    warm_up = min(1.0, (step + 1) / max(1, config.steps // 20))
    return config.lr * warm_up * (0.51 + 0.49 * math.cos(math.pi * step / config.steps))


def train_step(run: Run) -> float:
    """One step of the optimizer. Returns the loss in nats per byte, or nan if the gradient is not finite."""
    for group in run.optimizer.param_groups:
        group['lr'] = learning_rate(run.step, run.config)
    with run.autocast():
        loss = run.loss_of(random_crops(run.train, run.config, run.crops).to(run.device))
    run.scaler.scale(loss).backward()
    run.scaler.unscale_(run.optimizer)
    norm = clip_grad_norm_(run.model.parameters(), run.config.clip)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad(set_to_none=True)
    run.model.stepped(min(1.0, (run.step + 1) / run.config.steps))  # for features that change in the course of training
    # a scaler meets infinite gradients by leaving out the step
    return loss.item() if run.scaler.is_enabled() or norm.isfinite() else math.nan


@torch.no_grad()
def validate(run: Run, windows: Tensor) -> float:
    """Bits per byte over the windows."""
    run.model.eval()
    with run.autocast():
        parts = tqdm(windows.split(32), 'validation', leave=False, dynamic_ncols=True, disable=len(windows) <= 32)
        total = sum(run.model(part.to(run.device)).item() * len(part) for part in parts)
    run.model.train()
    return total / len(windows) / math.log(2)


def is_finite(run: Run) -> bool:
    return all(bool(weight.isfinite().all()) for weight in run.model.parameters())


def train(run: Run, out: Path, interval: int, save_minutes: float) -> None:
    """Train to the last step. Validate and save every `interval` steps and at the end; save when asked to stop, and
    when the last checkpoint is older than `save_minutes`."""
    config, start, seconds, saved_at = run.config, run.step, 0.0, time.monotonic()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    asked_to_stop: list[int] = []

    def stop_after_step(number: int, frame: object) -> None:
        asked_to_stop.append(number)
        # a second signal does not wait
        signal.signal(number, usual[number])

    for number in usual:
        signal.signal(number, stop_after_step)
    with tqdm(total=config.steps, initial=start, unit='step', dynamic_ncols=True) as bar:
        while run.step < config.steps and not asked_to_stop:
            began = time.perf_counter()
            loss = train_step(run)
            seconds += time.perf_counter() - began
            run.losses.append(loss)
            speed = (run.step - start) * config.batch_size * config.seq_len / seconds
            bar.set_postfix_str(f'loss {loss:.3f}, bits/byte {loss / math.log(2):.3f}, {speed:,.0f} tokens/s', False)
            bar.update()
            at_interval = run.step % interval == 0 or run.step == config.steps
            bits = validate(run, run.windows) if at_interval and math.isfinite(loss) else 0.0
            saves = at_interval or bool(asked_to_stop) or time.monotonic() - saved_at >= 60 * save_minutes
            if not math.isfinite(loss + bits) or (saves and not is_finite(run)):
                raise Stop(f'step {run.step}: the loss is no longer finite, a lower --lr may help; {saved(out)}', 1)
            if at_interval:
                run.validations.append((run.step, bits))
                bar.write(f'step {run.step:,}: {bits:.3f} bits per byte in validation')
            if saves:
                save(run, out)
                saved_at = time.monotonic()
    for number, handler in usual.items():
        signal.signal(number, handler)
    if run.step < config.steps:
        save(run, out)  # where the signal came between two steps
        raise Stop(f'interrupted; {saved(out)}, to go on from it: --resume --out {out}', 128 + asked_to_stop[0])


# results


def plot(run: Run, path: Path) -> None:
    """Write the loss curve, under another name first."""
    bits = torch.tensor(run.losses) / math.log(2)
    width = max(1, len(bits) // 25)
    axes = Figure(figsize=(8, 5), layout='constrained').add_subplot()
    axes.set(title='Byte-level language model', xlabel='step', ylabel='bits per byte')
    axes.plot(range(1, len(bits) + 1), bits, color='tab:blue', alpha=0.25)
    axes.plot(range(width, len(bits) + 1), bits.unfold(0, width, 1).mean(-1), label='training, smoothed')
    axes.plot(*zip(*run.validations, strict=True), 'o-', label='validation')
    axes.set_ylim(0, min(9, bits.max().item() * 1.05))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        axes.figure.savefig(path.with_suffix('.tmp'), format='png', dpi=120)
        path.with_suffix('.tmp').replace(path)
    except OSError as error:
        path.with_suffix('.tmp').unlink(missing_ok=True)
        raise Stop(f'the loss curve cannot be written: {error}; {saved(path.parent)}', 1) from error


def sample(run: Run, prompt: bytes, count: int, temperature: float) -> str:
    """The prompt and `count` bytes that the model adds to it."""
    limit = run.config.seq_len
    if len(prompt) > limit:
        print(f'note: of the {len(prompt)} bytes of the prompt, the model sees the last {limit}')
    start = torch.tensor(list(prompt[-limit:]), device=run.device)
    torch.manual_seed(run.config.seed)
    # past the limit a window slides; with a table of positions, what is cached would then be out of place
    cache_kv = len(start) + count <= limit or run.model.net.can_cache_kv_outside_max_seq_len
    with run.autocast():
        added = run.model.generate(start, count, temperature=temperature, cache_kv=cache_kv)
    text = (prompt + bytes(added.tolist())).decode('utf-8', errors='replace')
    return ''.join(c if c.isprintable() or c in '\n\t' else '\N{REPLACEMENT CHARACTER}' for c in text)


# the whole


def prepare(args: argparse.Namespace, out: Path) -> Run:
    """The run as it starts. All that can be refused is refused here, before anything is written."""
    given = {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}
    given['flags'] = dict(text.split('=', 1) for text in args.flags)
    if args.resume:
        config, folder, state = resume(out, given)
    else:
        if args.out:
            check_out(out)
        config = Config(**given)
    if config.data and out.resolve().is_relative_to(Path(config.data).resolve()):
        raise Stop(f'--out {out} lies in --data {config.data}, it would be read as text; choose another folder')
    device, precision = choose_machine(args.device, config.precision)
    config = replace(config, precision=precision)
    run = Run(config, read_corpus(config), device)
    try_out(run, args.compile)
    if args.resume:
        load(run, folder, state)
    return run


def work(args: argparse.Namespace) -> None:
    if args.resume and checkpoints(Path(args.out)):
        with claimed(Path(args.out)) as out:
            run_in(out, prepare(args, out), args)
    else:
        run = prepare(args, Path(args.out or 'runs'))
        with new_folder(args.out) as out:
            run_in(out, run, args)


def run_in(out: Path, run: Run, args: argparse.Namespace) -> None:
    """Train, and show what came of it."""
    count = sum(weight.numel() for weight in run.model.parameters())
    print(f'model: {count:,} parameters, {run.config.precision} on {run.device}')
    print(f'folder: {out}' + (f', resumed at step {run.step:,}' if args.resume else ''), flush=True)
    train(run, out, args.interval, args.save_minutes)
    plot(run, out / 'loss.png')
    print(f'loss curve in {out / "loss.png"}, {saved(out)}\n')
    print(sample(run, os.fsencode(args.prompt), args.sample_bytes, args.temperature))
    print(f'\nval bits per byte: {run.validations[-1][1]:.3f}')


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors='replace')
    try:
        work(read_arguments(argv))
    except (Stop, OSError) as error:
        print(f'train_lm.py: {error}', file=sys.stderr)
        return getattr(error, 'code', 2)
    except KeyboardInterrupt:
        print('train_lm.py: interrupted', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())

"""Training that may be stopped at any moment: a run, its checkpoints, and the way from its arguments to its end.

An example describes its `Config` (what decides the numbers) and its `Run` (model, data, loss and score), and calls
`conduct`. A run writes to a folder of its own: every `--interval` steps, and every `--save-minutes`, a checkpoint. It
holds the weights in model.safetensors, how the model is built in config.json, optimizer, random state and history
beside them. It appears as a whole or not at all, and a resumed run gives the same numbers as one that never stopped
(on the same CPU, with the same number of threads).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from common.folders import check_out, checkpoints, claimed, described, flush, new_folder, saved
from common.logs import check_tensorboard, tensorboard
from common.options import Config, Stop, choose_machine
from common.ranks import ALONE, Ranks, local, whole


class Run:
    """A training in progress: model, optimizer, random state and history. An example says what stands at the end."""

    config: Config
    model: nn.Module
    digest: str  # of the data: a run is resumed with the same
    unit = 'nats'  # of the score
    log: Callable[[int, dict[str, float]], None] = staticmethod(lambda step, values: None)

    def __init__(self, config: Config, device: torch.device, ranks: Ranks = ALONE) -> None:
        self.config, self.device, self.ranks = config, device, ranks
        torch.manual_seed(config.seed)
        random.seed(config.seed)
        self.draws = torch.Generator().manual_seed(config.seed)  # of batches
        self.losses: list[float] = []  # of each step, in nats
        self.validations: list[tuple[int, float]] = []  # step, score

    def set_model(self, model: nn.Module) -> None:
        """The model, on its device, with an optimizer for what of it is trained."""
        learns = [(name, w.ndim >= 2) for name, w in model.named_parameters() if w.requires_grad]
        self.names = [name for wide in (True, False) for name, is_wide in learns if is_wide == wide]
        self.model = self.ranks.laid_out(model.to(self.device), self.device)
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        matrices, vectors = ([w for w in learned if (w.ndim >= 2) == wide] for wide in (True, False))
        groups = [dict(params=matrices, weight_decay=self.config.weight_decay), dict(params=vectors, weight_decay=0.0)]
        self.optimizer = torch.optim.AdamW(groups, lr=self.config.lr, betas=(0.9, 0.95), fused=True)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.config.precision == 'float16')

    @property
    def step(self) -> int:
        return len(self.losses)

    def autocast(self) -> torch.autocast:
        dtype = getattr(torch, self.config.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)

    def train_step(self) -> float:
        """One step of the optimizer. Returns the loss in nats, or nan if the gradient is not finite."""
        for group in self.optimizer.param_groups:
            group['lr'] = learning_rate(self.step, self.config)
        with self.autocast():
            loss = self.batch_loss()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = whole(clip_grad_norm_(self.model.parameters(), self.config.clip))
        loss = self.ranks.mean(loss)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.on_step_end(min(1.0, (self.step + 1) / self.config.steps))
        # a scaler meets infinite gradients by leaving out the step
        return loss.item() if self.scaler.is_enabled() or norm.isfinite() else math.nan

    def on_step_end(self, progress: float) -> None:
        """Tell features that change in the course of training how far it is."""
        if hasattr(self.model, 'on_step_end'):
            self.model.on_step_end(progress)

    def is_finite(self) -> bool:
        finite = all(bool(local(weight).isfinite().all()) for weight in self.model.parameters())
        return not self.ranks.any(not finite)[0]

    def contents(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights of `net`, and the moments of the optimizer by index; every process has to ask."""
        state = self.ranks.state(self.model, self.optimizer)
        if state is None:
            # cloned, since safetensors refuses weights that share memory
            weights = {name: tensor.clone() for name, tensor in self.net.state_dict().items()}
            moments = self.optimizer.state_dict()['state'].items()
            return weights, {f'{index}.{name}': tensor for index, own in moments for name, tensor in own.items()}
        found = state.whole()
        weights = {name.removeprefix(self.path): t for name, t in found['model'].items() if name.startswith(self.path)}
        kinds = ('step', 'exp_avg', 'exp_avg_sq')
        pairs = ((f'{index}.{kind}', f'state.{name}.{kind}') for index, name in enumerate(self.names) for kind in kinds)
        return weights, {short: found['optimizer'][long] for short, long in pairs if long in found['optimizer']}

    def take(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Go on from what `contents` gave, here or on another number of processes."""
        state, own = self.ranks.state(self.model, self.optimizer), {}
        for name, tensor in moments.items():
            index, kind = name.split('.')
            own.setdefault(int(index), {})[kind] = tensor
        if state is None:
            self.net.load_state_dict(weights)
            self.optimizer.load_state_dict({**self.optimizer.state_dict(), 'state': own})
            return
        long = {f'state.{self.names[index]}.{kind}': t for index, each in own.items() for kind, t in each.items()}
        state.put({'model': {self.path + name: t for name, t in weights.items()}, 'optimizer': long})

    @property
    def path(self) -> str:
        """Where `net` stands in the model, as its parameters begin."""
        return next((f'{name}.' for name, module in self.model.named_modules() if module is self.net and name), '')

    @property
    def net(self) -> nn.Module:
        """What of the model is written to checkpoints."""
        return self.model

    def description(self) -> dict[str, Any]:
        """How `net` is built, as JSON brings it back."""
        return json.loads(json.dumps(self.net.config))

    def told(self, loss: float, steps_per_second: float) -> str:
        """What stands behind the progress bar."""
        return f'loss {loss:.3f}, {steps_per_second * self.config.batch_size:,.0f} examples/s'

    def write_more(self, folder: Path) -> None:
        """Write what else a checkpoint needs."""

    def batch_loss(self) -> Tensor:
        """The loss of the next batch, in nats."""
        raise NotImplementedError

    def score(self) -> float:
        """What validation gives."""
        raise NotImplementedError

    def said(self, score: float) -> str:
        return f'{score:.3f} {self.unit}'

    def other_data(self) -> str:
        """Ends the sentence that the checkpoint was trained on ..."""
        return 'other data than there is here'


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up over the first twentieth, then half a cosine down to a fiftieth."""
    warm_up = min(1.0, (step + 1) / max(1, config.steps // 20))
    return config.lr * warm_up * (0.51 + 0.49 * math.cos(math.pi * step / config.steps))


# checkpoints


def save(run: Run, out: Path) -> None:
    """Write a checkpoint: a whole folder under another name, flushed, then renamed. The latest two are kept."""
    folder, (weights, moments) = out / f'step_{run.step:06d}', run.contents()
    if folder.exists() or not run.ranks.leads:
        return
    for left in out.glob('step_*.tmp'):
        shutil.rmtree(left)
    unfinished = folder.with_suffix('.tmp')
    try:
        unfinished.mkdir()
        write(run, unfinished, weights, moments)
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


def write(run: Run, folder: Path, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
    """Write the files of a checkpoint."""
    tensors = {'losses': torch.tensor(run.losses, dtype=torch.float64)}
    tensors |= {'random.torch': torch.get_rng_state(), 'random.crops': run.draws.get_state()}
    if run.device.type == 'cuda':
        tensors['random.cuda'] = torch.cuda.get_rng_state(run.device)
    tensors |= {f'optimizer.{name}': tensor for name, tensor in moments.items()}
    state = dict(config=asdict(run.config), text_digest=run.digest, validations=run.validations)
    state |= dict(scaler=run.scaler.state_dict(), python_random=random.getstate())
    (folder / 'state.json').write_text(json.dumps(state), encoding='utf-8')
    (folder / 'config.json').write_text(json.dumps(run.description(), indent=2), encoding='utf-8')
    run.write_more(folder)
    for name, content in (('model', weights), ('training', tensors)):
        save_file(content, folder / f'{name}.safetensors')
        shutil.copymode(folder / 'state.json', folder / f'{name}.safetensors')  # not for the owner alone


def load(run: Run, folder: Path, state: dict[str, Any]) -> None:
    """Put the run into the state of a checkpoint."""
    if state['text_digest'] != run.digest:
        raise Stop(f'cannot resume {folder}: it was trained on {run.other_data()}')
    try:
        here, there = run.description(), described(folder)
        if there not in (None, here):
            raise ValueError(f'its config.json says {there}, the model here is {here}')
        weights, tensors = (load_file(folder / f'{name}.safetensors') for name in ('model', 'training'))
        lead = 'optimizer.'
        run.take(weights, {name.removeprefix(lead): t for name, t in tensors.items() if name.startswith(lead)})
        run.scaler.load_state_dict(state['scaler'])
        run.losses = tensors['losses'].tolist()
        run.validations = [(step, score) for step, score in state['validations']]
        version, numbers, gauss = state['python_random']
        random.setstate((version, tuple(numbers), gauss))
        torch.set_rng_state(tensors['random.torch'])
        run.draws.set_state(tensors['random.crops'])
        if run.device.type == 'cuda' and 'random.cuda' in tensors:
            torch.cuda.set_rng_state(tensors['random.cuda'], run.device)
    except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
        raise Stop(f'{folder} is damaged or of another model: {error}') from None


def resume(out: Path, given: dict[str, Any], kind: type[Config]) -> tuple[Config, Path, dict[str, Any]]:
    """The newest checkpoint in `out`. What the command line says again has to agree, but for more steps; data is
    compared by content."""
    if not checkpoints(out):
        raise Stop(f'--resume: there is no checkpoint in {out}; leave out --resume to start there')
    folder = checkpoints(out)[-1]
    try:
        state = json.loads((folder / 'state.json').read_text(encoding='utf-8'))
        if others := sorted(state['config'].keys() - {f.name for f in fields(kind)}):
            raise Stop(f'cannot resume {folder}: it is of another script, which knows `{others[0]}`')
        stored = kind(**state['config'])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(f'{folder} is damaged ({error}); remove it to resume from the one before') from None
    new = {name: given.pop(name) for name in kind.compared_by_content if name in given}
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


def train(run: Run, out: Path, interval: int, save_minutes: float) -> None:
    """Train to the last step. Validate and save every `interval` steps and at the end; save when asked to stop, and
    when the last checkpoint is older than `save_minutes`."""
    config, start, seconds, saved_at = run.config, run.step, 0.0, time.monotonic()
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    asked_to_stop: list[int] = []
    stopping = False  # which all processes say at once

    def stop_after_step(number: int, frame: object) -> None:
        asked_to_stop.append(number)
        # a second signal does not wait
        signal.signal(number, usual[number])

    for number in usual:
        signal.signal(number, stop_after_step)
    quiet = not run.ranks.leads
    with tqdm(total=config.steps, initial=start, unit='step', dynamic_ncols=True, disable=quiet) as bar:
        while run.step < config.steps and not (stopping or (asked_to_stop and run.ranks.count == 1)):
            began = time.perf_counter()
            loss = run.train_step()
            seconds += time.perf_counter() - began
            run.losses.append(loss)
            bar.set_postfix_str(run.told(loss, (run.step - start) / seconds), False)
            bar.update()
            rate = run.optimizer.param_groups[0]['lr']
            speed = (run.step - start) / seconds
            run.log(run.step, {'train/loss': loss, 'train/learning_rate': rate, 'train/steps_per_second': speed})
            at_interval = run.step % interval == 0 or run.step == config.steps
            score = run.score() if at_interval and math.isfinite(loss) else 0.0
            late = time.monotonic() - saved_at >= 60 * save_minutes
            stopping, late = run.ranks.any(bool(asked_to_stop), late)
            saves = at_interval or stopping or late
            if not math.isfinite(loss + score) or (saves and not run.is_finite()):
                raise Stop(f'step {run.step}: the loss is no longer finite, a lower --lr may help; {saved(out)}', 1)
            if at_interval:
                run.validations.append((run.step, score))
                run.log(run.step, {f'validation/{run.unit.replace(" ", "_")}': score})
                bar.write(f'step {run.step:,}: {run.said(score)} in validation')
            if saves:
                save(run, out)
                saved_at = time.monotonic()
    for number, handler in usual.items():
        signal.signal(number, handler)
    if run.step < config.steps:
        save(run, out)  # where the signal came between two steps
        raise Stop(f'interrupted; {saved(out)}, to go on from it: --resume --out {out}', 128 + [*asked_to_stop, 15][0])


# the whole


def conduct(
    name: str,
    args: argparse.Namespace,
    kind: type[Config],
    build: Callable[[Config, torch.device], Run],
    finish: Callable[[Run, Path], None],
    ranks: Ranks = ALONE,
) -> None:
    """A run from its arguments to its end: `build` makes it and refuses all that can be refused, before anything is
    written; `finish` shows what came of it."""

    def prepared(out: Path) -> Run:
        if args.tensorboard:
            check_tensorboard()
        given = {f.name: getattr(args, f.name) for f in fields(kind) if hasattr(args, f.name)}
        given['flags'] = dict(text.split('=', 1) for text in getattr(args, 'flags', []))
        if args.resume:
            config, folder, state = resume(out, given, kind)
        else:
            if args.out:
                check_out(out)
            config = kind(**given)
        device, precision = choose_machine(ranks.machine(args.device), config.precision)
        run = build(replace(config, precision=precision), device)
        if args.resume:
            load(run, folder, state)
        return run

    def followed(run: Run, out: Path) -> None:
        count = sum(weight.numel() for weight in run.model.parameters())
        print(f'model: {count:,} parameters, {run.config.precision} on {run.device}')
        print(f'folder: {out}' + (f', resumed at step {run.step:,}' if args.resume else ''), flush=True)
        with tensorboard(out, run.step) if args.tensorboard and ranks.leads else nullcontext(run.log) as run.log:
            train(run, out, args.interval, args.save_minutes)
        finish(run, out)

    if args.resume and checkpoints(Path(args.out)):
        with ranks.first(claimed(Path(args.out))) as out:
            followed(prepared(out), out)
    else:
        run = prepared(Path(args.out or 'runs'))
        with ranks.first(new_folder(args.out, name)) as out:
            followed(run, out)

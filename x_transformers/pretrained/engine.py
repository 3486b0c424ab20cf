"""Conversion of weights by the table of model types, in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from x_transformers.flags import ConfigError
from x_transformers.flags.config import KINDS, decode
from x_transformers.pretrained.mappings import ModelSizes, WeightMapping, WeightTransform
from x_transformers.pretrained.specs import Fields, ModelSpec

IN_LAYER = re.compile(r'\{(\d*)i(?:\+(\d+))?\}')


@dataclass(frozen=True)
class ConversionStep:
    """Conversion of tensors of transformers to tensors of this library, and back."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    change: WeightTransform
    sizes: ModelSizes

    def read(self, load: Callable[[str], Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.ours, self.change.ours(tuple(map(load, self.theirs)), self.sizes), strict=True))

    def write(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        given = tuple(state[name] for name in self.ours)
        return dict(zip(self.theirs, self.change.theirs(given, self.sizes), strict=True))


def deduplicate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict with only the first name of each tensor. Tied layers have several."""
    found: dict[int, str] = {}
    for name, t in state.items():
        found.setdefault(id(t), name)
    return {name: state[name] for name in found.values()}


def is_derived(name: str) -> bool:
    """Return True for a tensor of this library that follows from the config."""
    return name.endswith('rotary_pos_emb.inv_freq')


def list_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model without tensors that follow from the config."""
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if not is_derived(name)}


def list_saved(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that a file must hold, each once."""
    return deduplicate(list_tensors(model))


def strip_wrappers(name: str) -> str:
    """Return a name without the wrappers that flags add around a branch."""
    return re.sub(r'(layers\.\d+\.1)(\.fn)+\.', r'\1.', name)


def fill_pattern(pattern: str, i: int) -> str:
    """Return a pattern with the number of a block, or of one of its layers, filled in."""
    return IN_LAYER.sub(lambda m: str(int(m[1] or 1) * i + int(m[2] or 0)), pattern)


def expand_names(names: Collection[str], sizes: ModelSizes) -> tuple[str, ...]:
    """Return names with `{x}` expanded for all experts, and `{j}` or `{k}` for all heads."""
    found: list[str] = []
    for name in names:
        if '{x}' in name:
            found += [name.replace('{x}', str(x)) for x in range(sizes.experts)]
        elif '{j}' in name or '{k}' in name:
            count = sizes.heads if '{j}' in name else sizes.kv_heads
            found += [name.replace('{j}', str(j)).replace('{k}', str(j)) for j in range(count)]
        else:
            found.append(name)
    return tuple(found)


def make_steps(spec: ModelSpec, fields: Fields, names: Collection[str]) -> list[ConversionStep]:
    """Return the steps that convert each tensor once.  Raises LookupError for a name that the spec lacks."""
    found, names = make_part_steps(fields, names)
    around = '' if spec.around is None else 'net.'
    actual = {strip_wrappers(name).removeprefix(around): name for name in names}
    sizes, prefix = fields.sizes(), spec.base if fields.architecture in spec.bare else ''
    if len(actual) != len(names):
        raise LookupError(f'the table entry of {spec.type} has two layers of one name')
    layers = [int(m[1]) for name in actual for m in re.finditer(r'layers\.(\d+)\.', name)]
    made: dict[str, WeightMapping] = {}
    for one in spec.links:
        if one.when is not None and not one.when(fields):
            continue
        in_blocks = any('i' in pattern for pattern in map(str, one.ours) if IN_LAYER.search(pattern))
        for i in range(max(layers, default=0) + 1) if in_blocks else (0,):
            ours = tuple(fill_pattern(name, i) for name in one.ours)
            there = [name in actual for name in ours]
            if not all(there):
                if any(there):
                    missing = ours[there.index(False)]
                    raise LookupError(f'the table entry of {spec.type} gives `{missing}`, which the model lacks')
                continue
            twice = next((name for name in ours if name in made), None)
            if twice is not None:
                raise LookupError(f'the table entry of {spec.type} gives `{twice}` twice')
            made.update(dict.fromkeys(ours, one))
            theirs = expand_names([fill_pattern(name, i).removeprefix(prefix) for name in one.theirs], sizes)
            found.append(ConversionStep(theirs, tuple(actual[name] for name in ours), one.change, sizes))
    if rest := actual.keys() - made.keys():
        raise LookupError(f'the table entry of {spec.type} does not give `{actual[min(rest)]}`')
    return found


def make_part_steps(fields: Fields, names: Collection[str]) -> tuple[list[ConversionStep], list[str]]:
    """Return the steps of models within the model, which have their own specs, and the names that belong to none."""
    found, rest = [], list(names)
    for part, own in fields.parts.items():
        inside = [name.removeprefix(f'{part}.') for name in rest if name.startswith(f'{part}.')]
        rest = [name for name in rest if not name.startswith(f'{part}.')]
        for step in make_steps(own.spec, own, inside):
            found.append(replace(step, ours=tuple(f'{part}.{name}' for name in step.ours)))
    return found, rest


FILLS = {
    'normal_', 'uniform_', 'trunc_normal_', 'kaiming_uniform_', 'kaiming_normal_', 'xavier_uniform_', 'xavier_normal_',
    'zeros_', 'ones_', 'constant_', 'orthogonal_', 'fill_', 'zero_', 'mul_', 'add_', 'div_', 'copy_', 'clamp_',
}  # fmt: skip
SCALES = {'mul', '__mul__', '__rmul__', 'div', '__truediv__', 'truediv'}


class SkipInitialization(TorchFunctionMode):
    """Mode that skips initialization of meta tensors, which have no values.

    The first such call on the meta device imports the compiler of PyTorch, which takes seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, '__name__', '')
        t = next(filter(torch.is_tensor, args), kwargs.get('tensor'))
        if torch.is_tensor(t) and t.is_meta:
            if name in FILLS:
                return t
            if name in SCALES and sum(map(torch.is_tensor, args)) == 1:
                return torch.empty(t.shape, dtype=torch.result_type(*args))
        return torch.empty(*args, **kwargs) if name in ('randn', 'rand') else func(*args, **kwargs)


def build(call: Mapping[str, Any], device: str = 'meta') -> nn.Module:
    """Build the model of a call, by default without weights.  `class` is the name of a class, or a class."""
    call = dict(call)
    kind = call.pop('class')
    with torch.device(device), SkipInitialization() if device == 'meta' else nullcontext():
        rest = {name: decode(value) for name, value in call.items()}
        return (KINDS[kind] if isinstance(kind, str) else kind)(**rest)


def make_plan(config: Mapping[str, Any], spec: ModelSpec, tied: bool | None = None) -> list[ConversionStep]:
    fields = Fields(spec, config, tied)
    return make_steps(spec, fields, list_saved(build(fields.keywords())))


# Names in files.


def canonical_name(spec: ModelSpec, name: str) -> str:
    """Return the name in the spec for a name in a file, except for the prefix of the base model."""
    name = name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta', 'LayerNorm.bias')
    for pattern, replacement in spec.renames:
        name = re.sub(pattern, replacement, name)
    return name


def match_names(spec: ModelSpec, names: Collection[str], expected: Collection[str]) -> dict[str, str]:
    """Map the names of a spec to the names in a file, which may be older or lack a prefix."""
    found: dict[str, str] = {}
    for name in names:
        new = canonical_name(spec, name)
        if new not in expected:
            new = next((n for n in (spec.base + new, new.removeprefix(spec.base)) if n in expected), new)
        if new in found:
            raise ConfigError(f'the file has `{name}` and `{found[new]}`, which are one tensor of {spec.type}')
        found[new] = name
    return found


def is_spare(spec: ModelSpec, name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in spec.spare)


def is_ignored(spec: ModelSpec, name: str) -> bool:
    patterns = (*spec.ignored, r'.*position_ids', r'.*rotary_emb\.inv_freq')
    return is_spare(spec, name) or any(re.fullmatch(pattern, name) for pattern in patterns)


def check_names(spec: ModelSpec, found: Mapping[str, str], steps: list[ConversionStep]) -> None:
    """Raise ConfigError if a file lacks a tensor of the model, or has an unknown one."""
    needed = {name for step in steps for name in step.theirs}
    if missing := needed - found.keys():
        raise ConfigError(f'the file has no `{min(missing)}`, which a {spec.type} of this config has')
    more = sorted(name for name in found.keys() - needed if not is_ignored(spec, name))
    if more:
        raise ConfigError(f'the file has `{found[more[0]]}`, which a {spec.type} of this config does not have')


def check_shapes(
    steps: list[ConversionStep], ours: Mapping[str, Tensor], shape_of: Callable[[str], tuple[int, ...]]
) -> None:
    """Raise ConfigError for a tensor of another shape than in the model. No weights are loaded."""
    for step in steps:
        empty = {name: torch.empty(ours[name].shape, device='meta') for name in step.ours}
        for name, t in step.write(empty).items():
            if shape_of(name) != tuple(t.shape):
                must = f'must have shape {tuple(t.shape)} with this config'
                raise ConfigError(f'`{name}` of the file {must}, got {shape_of(name)}')

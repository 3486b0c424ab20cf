"""Training with products of matrices in eight bits (FP8), by `torchao`. Requires that package, extra `float8`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from x_transformers.core.files import import_optional
from x_transformers.flags import ConfigError, format_value, instance_of, one_of, warn_once

__all__ = ['float8_']

MULTIPLE = 16  # of both sizes of a matrix, for the kernels
SMALLEST = 64  # outputs: smaller projections, such as one number per head, gain nothing
LEAST_CAPABILITY = (8, 9)
KEPT = ('to_logits', 'gate', 'router')  # parts of names


def float8_(
    model: nn.Module,
    filter: Callable[[str, nn.Linear], bool] | None = None,
    recipe: str = 'tensorwise',
    *,
    emulate: bool = False,
) -> nn.Module:
    """Replace linear layers of a model by those of torchao that multiply in eight bits, in place.

        y = cast(x) cast(W)^T + b       cast(t) = e4m3(s t) / s,  s = 448 / max |t|;  gradients in e5m2

    Weights stay in their precision, and the state dict keeps its names. Output heads, shared tables, gates, routers,
    layers with fewer than 64 outputs, and sizes that are no multiple of 16 are not replaced. The layers are faster than
    those of bfloat16 only if the model is compiled.

    Micikevicius et al. 2022, arXiv:2209.05433

    Args:
        model: The model, on a CUDA device of compute capability 8.9 or more.
        filter: Function of the name and the layer: False keeps the layer as it is.
        recipe: 'tensorwise' for one scale per tensor, 'rowwise' for one per row, a power of two.
        emulate: True to compute the same rounding in single precision, on any device.

    Returns:
        The model.

    Raises:
        ImportError: torchao is not installed.
        ConfigError: The device has no such products, the weights are quantized, or no layer can be replaced.
    """
    instance_of(nn.Module).require('model', model, TypeError)
    one_of('tensorwise', 'rowwise').require('recipe', recipe, ConfigError)
    if filter is not None and not callable(filter):
        raise TypeError(f'`filter` must be a function of a name and a layer, or None, got {format_value(filter)}')
    names = list_layers(model)
    chosen = {name for name, layer in names.items() if filter is None or filter(name, layer)}
    if not chosen:
        raise ConfigError('`model` has no linear layer that can be replaced: see `float8_` for those that are kept')
    if not emulate:
        check_device(next(model.parameters()).device)
    package = import_optional('torchao.float8', '`float8_`', 'float8')
    config = package.Float8LinearConfig.from_recipe_name(recipe)
    config = dataclasses.replace(config, emulate=bool(emulate))
    package.convert_to_float8_training(model, module_filter_fn=lambda _, name: name in chosen, config=config)
    warn_once('a model with `float8_` layers is slow until it is compiled, by `torch.compile(model)`')
    return model


def list_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that can be replaced, by name.  Raises ConfigError for quantized weights."""
    shared = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    found: dict[str, nn.Linear] = {}
    for name, module in model.named_modules():
        if type(module) is not nn.Linear:
            continue
        weight: Any = module.weight
        if is_traceable_wrapper_subclass(weight) or is_traceable_wrapper_subclass(weight.data):
            raise ConfigError(f'`float8_` cannot be combined with quantized weights, `{name}.weight` is {type(weight)}')
        rest = module.in_features % MULTIPLE or module.out_features % MULTIPLE
        if rest or module.out_features < SMALLEST or shared[id(weight)] > 1 or any(part in name for part in KEPT):
            continue
        found[name] = module
    return found


def check_device(device: torch.device) -> None:
    """Raise ConfigError if a device cannot multiply numbers of eight bits."""
    if device.type != 'cuda':
        raise ConfigError(f'`float8_` needs a model on a CUDA device, got {device}: `emulate=True` runs everywhere')
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        needed, own = ('.'.join(map(str, one)) for one in (LEAST_CAPABILITY, capability))
        raise ConfigError(f'`float8_` needs compute capability {needed}, this device has {own}')

"""Saving of models as folders, in the format of transformers or of this library."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.files import renew_folder, write_json
from x_transformers.features.rotary import RotaryEmbedding
from x_transformers.finetuning import FineTuned
from x_transformers.flags import ConfigError, format_value
from x_transformers.flags.config import is_configured
from x_transformers.flags.unexpected import answering
from x_transformers.pretrained import engine
from x_transformers.pretrained.described import canonicalize, check_keywords, find_differences, get_call, infer_config
from x_transformers.pretrained.files import GENERATION, OF_MODEL, Get, copy_tokenizer, count_bytes, write_weights
from x_transformers.pretrained.heads import NOT_THERE, find_spec, is_head_weight, list_heads, resolve_head
from x_transformers.pretrained.loading import Info, rebuild_buffers
from x_transformers.pretrained.options import VOCABULARIES
from x_transformers.pretrained.specs import OWN, SPECS, Fields, ModelSpec, ModuleSpec, Value, get_spec


@answering
def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: str = 'hf',
    hf_type: str | None = None,
    max_shard_size: int | str = '5GB',
    generation: Mapping[str, Any] | None = None,
    tokenizer_from: str | os.PathLike[str] | None = None,
) -> None:
    """Save config.json and the weights of a model to a folder.

    New files replace existing ones only after all of them are written: a killed process, or a full disk, leaves the
    previous model intact.

    Args:
        model: A model of this library. Wrappers of PyTorch and of training are removed.
        path: The folder.
        format: 'hf' for that of `transformers`; 'own' for the config and the names of this library.
        hf_type: The `model_type` for models that were not loaded in this format.
        max_shard_size: Maximum size of a file, in bytes or such as '5GB'.
        generation: Content of generation_config.json; that of the loaded model if None.
        tokenizer_from: Folder from which tokenizer files are copied.

    Raises:
        ConfigError: The type has no fields for the model, or config and weights do not describe it; the error names
            the keyword.
        OSError: The folder cannot be written.
    """
    if format not in ('hf', 'own'):
        raise ValueError(f"`format` must be 'hf' or 'own', got {format_value(format)}")
    model = unwrap(model)
    if not is_configured(model):
        raise TypeError(f'`model` must be a model of this library, got a {type(model).__name__}')
    apart = next((name for name, t in model.state_dict(keep_vars=True).items() if hasattr(t, 'full_tensor')), None)
    if apart is not None:
        raise ValueError(
            f'`{apart}` of the model must not be distributed over several devices: put `State(model).whole()` of '
            f'x_transformers.parallel into the `State` of a model on one device, and save that'
        )
    if not isinstance(generation, Mapping | None):
        raise TypeError(f'`generation` must be a dict or None, got {format_value(generation)}')
    if tokenizer_from is not None and not Path(tokenizer_from).is_dir():
        raise NotADirectoryError(f'`tokenizer_from` must be a folder, got {str(tokenizer_from)!r}')
    folder, most = Path(path), count_bytes(max_shard_size)
    if format == 'own':
        info = getattr(model, 'pretrained', None)
        config, get, sizes = prepare_own_files(model)
    else:
        model = find_writable(model)
        info = getattr(model, 'pretrained', None)
        config, get, sizes = prepare_hf_files(model, info, hf_type)
    generation = getattr(info, 'generation', None) if generation is None else generation
    with renew_folder(folder, OF_MODEL) as new:
        if tokenizer_from is not None:
            copy_tokenizer(Path(tokenizer_from), new)
        write_json(config, new / 'config.json')
        write_weights(new, sizes, get, most)
        if generation:
            write_json(generation, new / GENERATION)


def copy_to_cpu(t: Tensor) -> Tensor:
    return t.detach().to('cpu').contiguous()


def prepare_own_files(model: Any) -> tuple[dict[str, Any], Get, dict[str, int]]:
    """Return the config in the format of this library, a function from names to tensors, and their sizes in bytes."""
    from x_transformers import __version__

    config = {'model_type': OWN, 'x_transformers_version': __version__, 'config': model.config}
    state = model.state_dict(keep_vars=True)
    check_tensors(state)
    ties = check_described(model, state, rebuild(model.config))
    if ties:
        config['tied'] = ties
    # In a file each tensor begins at a multiple of the size of its dtype.
    state = dict(sorted(engine.deduplicate(state).items(), key=lambda item: -item[1].itemsize))
    sizes = {name: t.nbytes for name, t in state.items()}
    return config, lambda names: {name: copy_to_cpu(state[name]) for name in names}, sizes


def prepare_hf_files(
    model: nn.Module, info: Info | None, hf_type: str | None
) -> tuple[dict[str, Any], Get, dict[str, int]]:
    """Return the config in the format of transformers, a function from names to tensors, and their sizes in bytes."""
    whole, state = engine.list_tensors(model), engine.list_saved(model)
    check_tensors(whole)
    config, fields = make_config(model, info, hf_type, whole)
    if fields.spec.type in NOT_THERE.get(fields.spec.head, ()):
        raise ConfigError(f'`transformers` has no {fields.spec.architectures[0]}: {OWN_FORMAT}')
    check_keywords(model, fields)
    fresh = rebuild(fields.keywords())
    wanted = engine.list_saved(fresh)
    # A tensor that the user tied is saved under each name.
    state |= {name: whole[name] for name in whole.keys() & wanted.keys()}
    check_weights(state, wanted, fields.spec.type)
    check_described(model, whole, fresh, names_classes=False)
    check_frequencies(model, fields.spec.type)
    steps = engine.make_steps(fields.spec, fields, state)
    steps.sort(key=lambda step: -max(state[name].itemsize for name in step.ours))
    of = {name: step for step in steps for name in step.theirs}
    empty = {name: torch.empty_like(t, device='meta') for name, t in state.items()}
    nbytes = {name: t.nbytes for step in steps for name, t in step.write(empty).items()}
    as_read = info if info is not None and info.type == fields.spec.type else None
    kept = as_read.kept if as_read else {}
    # transformers ties no tables if the head is not tied, and reads each name.
    names = as_read.copies if as_read else fields.spec.copies if fields.spec.tied and not fields.tied else {}
    copies = {copy: of_it for copy, of_it in names.items() if of_it in nbytes and copy not in nbytes}
    nbytes |= {copy: nbytes[of_it] for copy, of_it in copies.items()}
    nbytes |= {name: t.nbytes for name, t in kept.items() if name not in nbytes}

    def get(names: Iterable[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in (copies.get(name, name) for name in names):
            if name in of and name not in found:
                found.update(of[name].write({ours: copy_to_cpu(state[ours]) for ours in of[name].ours}))
        return {name: replace_first_rows(found.get(copies.get(name, name)), kept.get(name)) for name in names}

    return config, get, nbytes


def replace_first_rows(t: Tensor | None, first: Tensor | None) -> Tensor:
    """Return a tensor with its first rows replaced."""
    like: Any = first if t is None else t  # One of the two is given.
    found = like.contiguous().clone()
    if first is not None:
        found[: len(first)] = first
    return found


def make_config(
    model: nn.Module, info: Info | None, hf_type: str | None, state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Fields]:
    """Return the config to write for a model with these weights, and its fields."""
    has_head = any(name.endswith('to_logits.weight') for name in state)
    spec, config = choose_spec(model, info, hf_type, not has_head)
    config |= get_current_sizes(get_call(model), spec, config)
    found = {name: config.pop(name) for name in spec.presence if name in config} | (info.found if info else {})
    tied = spec.tied is not None and not has_head
    says = config.get('tie_word_embeddings', spec.defaults.get('tie_word_embeddings'))
    # A file with its own head was loaded as untied whatever its config says. The config is then kept.
    untied_as_read = info is not None and not info.tied and not tied and says
    if spec.tied is not None and says != tied and not untied_as_read:
        config['tie_word_embeddings'] = tied
    config.pop('torch_dtype', None)
    dtypes = {t.dtype for t in state.values() if t.is_floating_point()} or {torch.float32}
    widest = functools.reduce(torch.promote_types, dtypes)  # A model of several dtypes is loaded in this one.
    config['dtype'] = str(widest).removeprefix('torch.')
    return config, Fields(spec, config, tied, found)


def check_weights(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], kind: str) -> None:
    """Raise ConfigError if weights are missing, unknown, or have another shape than in a model of the config."""
    has, needs = ({engine.strip_wrappers(name): t.shape for name, t in own.items()} for own in (state, wanted))
    for name in (*has, *needs):
        if has.get(name) != needs.get(name):
            here, there = (f'has shape {tuple(own[name])}' if name in own else 'is missing' for own in (has, needs))
            raise ConfigError(f'`{name}` of the model {here}, in a {kind} of its config it {there}')


def rebuild(call: Mapping[str, Any]) -> nn.Module:
    """Build the model of a call as `load` will, without weights and without using the random generator."""
    with torch.random.fork_rng(devices=[]):
        return engine.build(call)


def check_tensors(state: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for tensors that a file cannot hold."""
    for name, t in state.items():
        kind = type(t)
        if not torch.is_tensor(t) or kind not in (Tensor, nn.Parameter):
            raise ConfigError(f'`{name}` of the model must be a plain tensor to be saved, got a {kind.__name__}')
        if t.is_meta:
            raise ConfigError(f'`{name}` of the model must have values to be saved, got a tensor on the meta device')
        if t.layout is not torch.strided or t.is_quantized:
            raise ConfigError(f'`{name}` of the model must be dense to be saved, got {t.layout} in {t.dtype}')


CHANGED = 'it was changed after it was built. `state_dict` holds its weights; adapters and the like can be merged first'
DROPS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def check_described(
    model: nn.Module, state: Mapping[str, Tensor], fresh: nn.Module, names_classes: bool = True
) -> dict[str, str]:
    """Raise ConfigError if a model differs from a `fresh` one of its config. `names_classes`: subclasses differ too.

    Returns the further names of tensors that are tied here and not in the new model, each with the first name.
    """
    check_modules(model, fresh, names_classes)
    wanted = {engine.strip_wrappers(name): t for name, t in fresh.state_dict(keep_vars=True).items()}
    own = {engine.strip_wrappers(name): name for name in state}
    for path in (*own, *(path for path in wanted if not engine.is_derived(path))):
        here, there = state.get(own.get(path, '')), wanted.get(path)
        if here is None or there is None or here.shape != there.shape:
            has, needs = ('is missing' if t is None else f'has shape {tuple(t.shape)}' for t in (here, there))
            name = own.get(path, path)
            raise ConfigError(f'`{name}` of the model {has}, in a model of its config it {needs}: {CHANGED}')
    first_here: dict[int, str] = {}
    first_there: dict[int, str] = {}
    ties: dict[str, str] = {}
    for path, name in own.items():
        here, there = first_here.setdefault(id(state[name]), name), first_there.setdefault(id(wanted[path]), name)
        if here == name != there and not torch.equal(state[name], state[there]):
            raise ConfigError(f'`{name}` and `{there}` of the model differ, in one of its config they are one tensor')
        if here != name == there:
            ties[name] = here
    return ties


def check_modules(model: nn.Module, fresh: nn.Module, names_classes: bool) -> None:
    """Raise ConfigError for modules that differ from those of a new model of the config."""
    # Names without the wrappers that flags add. The innermost module comes last.
    modules = ([*one.named_modules(remove_duplicate=False)] for one in (model, fresh))
    own, wanted = ({engine.strip_wrappers(f'{name}.')[:-1]: (name, m) for name, m in each} for each in modules)
    for path, (name, module) in own.items():
        (_, other), (_, parent) = (wanted.get(at, ('', None)) for at in (path, path.rpartition('.')[0]))
        if not names_classes and 'layers.' not in path and is_configured(module) and isinstance(module, type(other)):
            continue
        if name and not is_equivalent(module, other, parent, name.rpartition('.')[2]):
            here, there = ('nothing' if one is None else f'a {type(one).__name__}' for one in (module, other))
            raise ConfigError(f'`{name}` of the model is {here}, in a model of its config it is {there}: {CHANGED}')


def check_frequencies(model: nn.Module, kind: str) -> None:
    """Raise ConfigError for rotary frequencies that differ from those of the config."""
    for name, module in model.named_modules():
        if isinstance(module, RotaryEmbedding):
            own, said = module.inv_freq, module.frequencies.table(module.inv_freq.device)
            if not torch.allclose(own.cpu().double(), said.cpu().double(), rtol=1e-5, atol=0.0):
                raise ConfigError(f'`{name}.inv_freq` of the model must be that of its {kind} config: {CHANGED}')


def is_equivalent(module: nn.Module, other: nn.Module | None, parent: nn.Module | None, name: str) -> bool:
    """Return True if a module computes the same in evaluation as that of a new model. A module that its parent does not
    use computes nothing.
    """
    kind = vars(module).get('_built_as', type(module))
    if issubclass(kind, DROPS) and isinstance(other, (type(None), nn.Identity, *DROPS)):
        return True
    if other is None:
        return not hasattr(parent, name) and not isinstance(parent, (nn.Sequential, nn.ModuleList))
    wanted = vars(other).get('_built_as', type(other))
    # Loading sets `padding_idx`, which changes no output.
    free = not kind.__module__.startswith('torch.nn') or kind is nn.Embedding
    return kind is wanted and (free or module.extra_repr() == other.extra_repr())


def choose_spec(
    model: nn.Module, info: Info | None, hf_type: str | None, tied: bool
) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the type to write, with the config that the model was loaded with, or an inferred one."""
    inner = get_info(getattr(model, 'net', model))  # There may be a new head around a model that was loaded.
    if info is not None and info.type != OWN and hf_type in (None, info.type):
        return find_spec(info.config), dict(info.config)
    if inner is not None and hf_type in (None, inner.type):
        found, hf_type = find_head_config(model, inner), inner.type
        if found is not None:
            return found
    config = infer_config(model, tied, hf_type)
    return find_spec(config), config


OWN_FORMAT = "`format='own'` saves it as it is"
KINDS = {'tokens': 'tokens', 'span': 'span', 'class': 'classify'}  # Heads of `FineTuned` -> names in the table.


def unwrap(model: Any) -> Any:
    """Return a model without the wrappers of `torch.compile`, DDP and the like."""
    while isinstance(model, nn.Module) and not is_configured(model):
        children = dict(model.named_children())
        inner = next((children[name] for name in ('module', '_orig_mod', '_forward_module') if name in children), None)
        if inner is None:
            break
        model = inner
    return model


def get_info(model: nn.Module) -> Info | None:
    """Return the `Info` of a model that was loaded in the format of `transformers`, else None."""
    info = getattr(model, 'pretrained', None)
    return info if isinstance(info, Info) and info.type != OWN else None


def is_writable(model: nn.Module) -> bool:
    """Return True for a class that models of `transformers` can be loaded as."""
    written = {spec.wrapper for spec in SPECS.values()} | {'Classifier'}
    return not written.isdisjoint(kind.__name__ for kind in type(model).__mro__)


def find_writable(model: nn.Module) -> nn.Module:
    """Return the model in a wrapper of training, which adds no weights, or with a head of `finetune`.

    Raises:
        ConfigError: No class of `transformers` is like the module; the error names what to save instead.
    """
    while get_info(model) is None and not is_writable(model):
        if isinstance(model, FineTuned):
            return convert_finetuned(model)
        children = {name: child for name, child in model.named_children() if is_configured(child)}
        names = [*model.state_dict()]
        inner = next((n for n in children if all(name.startswith(f'{n}.') for name in names)), None)
        if inner is None:
            inside = [name for name, child in children.items() if is_writable(child)]
            way = f'save its `{inside[0]}`, or ' if inside else ''
            raise ConfigError(f'a {type(model).__name__} has no class in `transformers`: {way}{OWN_FORMAT}')
        model = children[inner]
    return model


def convert_finetuned(model: FineTuned) -> nn.Module:
    """Return a `FineTuned` as the classifier of the table that computes the same, with the same tensors."""
    info, kind = get_info(model.net), KINDS[model.kind]
    start = f'a FineTuned of `head={model.kind!r}` cannot be written in the format of `transformers`'
    if info is None:
        raise ConfigError(f'{start}, since its model was not loaded in that format: {OWN_FORMAT}')
    way = f'train `pretrained.load(source, head={kind!r}, num_classes={model.num_labels})`, or {OWN_FORMAT}'
    if kind not in list_heads(get_spec(info.config)):
        raise ConfigError(f'{start}: a {info.type} has no such head there. {OWN_FORMAT}')
    spec, config = resolve_head(info.config, kind, None if kind == 'span' else model.num_labels)
    fields = Fields(spec, config, info.tied, {**dict.fromkeys(spec.presence, False), **info.found})
    view: Any = engine.build(fields.keywords())
    body = {f'net.{name}': t for name, t in engine.list_saved(model.net).items() if not is_head_weight(name)}
    state = {**body, **{f'to_classes.{name}': t for name, t in model.head.named_parameters()}}
    wanted = engine.list_saved(view)
    other = next((name for name in (*wanted, *state) if (name in wanted) != (name in state)), None)
    reads = 'span' if kind == 'span' else model.read or 'all'
    if other is not None or getattr(view, 'token', 'all') != reads:
        why = f'reads the {getattr(view, "token", "all")} token' if other is None else f'differs in `{other}`'
        raise ConfigError(f'{start}: a {spec.architectures[0]} {why}. Instead, {way}')
    view.load_state_dict(state, assign=True, strict=False)
    rebuild_buffers(view, info)
    found = {name: fields.values[name] for name in spec.presence}
    kept = {name: t for name, t in info.kept.items() if not engine.is_spare(spec, name)}
    view.pretrained = replace(info, config=config, keywords=fields.keywords(), found=found, kept=kept)
    return view.train(model.training)


def find_head_config(model: nn.Module, info: Info) -> tuple[ModelSpec, dict[str, Any]] | None:
    """Return the spec and the config of a new head around a loaded model, or None if no head of the type equals it."""
    now, classes = canonicalize(get_call(model)), getattr(model, 'num_classes', None)
    for kind in list_heads(get_spec(info.config)):
        try:
            spec, config = resolve_head(info.config, kind, classes if kind in ('classify', 'tokens') else None)
            said = canonicalize(Fields(spec, config, info.tied, info.found).keywords())
        except ConfigError:
            continue
        if not find_differences(now, said):
            return spec, config
    return None


def iterate_vocabularies(values: Mapping[str, Value], call: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the fields of a spec that are sizes of vocabularies, each with its value in a call."""
    for name, value in values.items():
        if isinstance(value, ModuleSpec) and isinstance(call.get(name), Mapping):
            yield from iterate_vocabularies(value.keywords, call[name])
        elif name in VOCABULARIES and isinstance(value, str) and name in call:
            yield value, call[name]


def get_current_sizes(call: Mapping[str, Any], spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config with the sizes of vocabularies, which may have changed since it was read."""
    call = call['net'] if call['class'] == 'Classifier' else call
    found: dict[str, Any] = dict(iterate_vocabularies(spec.model, call))
    for part, (field, kind, _) in spec.parts.items():
        held = config.get(f'{field}_dict') or config.get(field) or {}
        inner = get_current_sizes(call[part], SPECS[kind], held)
        if any(held.get(name, SPECS[kind].defaults.get(name)) != size for name, size in inner.items()):
            found[field] = {**held, **inner}
            found |= {f'{field}_dict': None} if f'{field}_dict' in config else {}
    return found

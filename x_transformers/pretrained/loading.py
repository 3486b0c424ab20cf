"""Loading of models from folders in the format of transformers, or of this library."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.files import StampedFile
from x_transformers.core.modes import at_least_float
from x_transformers.features.positions import ScaledSinusoidalEmbedding
from x_transformers.features.rotary import RotaryEmbedding
from x_transformers.flags import ConfigError, format_value
from x_transformers.flags.checks import warn_once
from x_transformers.flags.config import KINDS
from x_transformers.flags.unexpected import answering
from x_transformers.pretrained import engine, options
from x_transformers.pretrained.adapters import Adapter
from x_transformers.pretrained.checkpoints import (
    adapt_to_composite,
    describe_names,
    extract_text_config,
    is_composite,
    make_matcher,
    strip_prefixes,
)
from x_transformers.pretrained.files import GENERATION, Weights, compact
from x_transformers.pretrained.folders import locate, read_config, read_json, resolve
from x_transformers.pretrained.foreign import NoModelError, describe_tensors
from x_transformers.pretrained.generation import extract_generation_config, generation_keywords
from x_transformers.pretrained.heads import (
    find_new_steps,
    find_other_heads,
    initialize_weights,
    is_head_weight,
    resolve_head,
)
from x_transformers.pretrained.specs import OWN, Fields, ModelSpec, drop_unknown, get_spec, read_own_call

DECODER = KINDS['Decoder']


@dataclass
class Info:
    """Information about a loaded model: type, config, keywords that built it, and unused or new parameters.

    Attributes:
        ignored: Names in the file that are not needed.
        left: Names in the file that the library does not use.
        new: Parameters that the file lacks, which were initialized.
        tied: True if the head is tied to the token embeddings.
        generation: Content of generation_config.json.
        kept: Leading rows of tables without a position, and unused tensors, for saving.
        found: Fields of the config that were inferred from the tensors.
        copies: Names in the file of tensors that it also has under another name, for saving.
        files: Files that the weights were read from.
        prefix: Beginning of all names in the file that was removed.
        passed: Fields of the config that `unknown` ignored.
        merged: Names of the tensors that an adapter changed.
    """

    type: str
    config: dict[str, Any]
    keywords: dict[str, Any]
    source: str
    revision: str | None = None
    tied: bool = False
    ignored: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)
    found: dict[str, bool] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    prefix: str = ''
    passed: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)


def are_equal(weights: Weights, a: str, b: str) -> bool:
    """Return True if a file has equal tensors under two names."""
    return weights.shape(a) == weights.shape(b) and torch.equal(weights.load(a), weights.load(b))


def is_head_tied(spec: ModelSpec, config: Mapping[str, Any], weights: Weights, found: Mapping[str, bool]) -> bool:
    """Return True if the head is the embedding: the file has no other tensor for it, whatever the config says."""
    if spec.tied is None:
        return False
    head, table = spec.tied
    names = engine.match_names(spec, weights.files, spec.tied)
    if table in names and any(found[name] for name in spec.differs):
        return False  # It is one of several tables, and the model has the others.
    is_untied = config.get('tie_word_embeddings') is False and not spec.always_ties(config)
    if head not in names:
        if is_untied:
            raise ConfigError(f'the file has no `{head}`, but `tie_word_embeddings` of its config is False')
        return True
    if table not in names:
        return not is_untied and table not in spec.copies.values()  # The head holds the embeddings too.
    return are_equal(weights, names[head], names[table])


def detect_presence(spec: ModelSpec, weights: Weights) -> dict[str, bool]:
    """Return the fields that follow from the presence of tensors, or from whether possible copies are equal."""
    names = engine.match_names(spec, weights.files, {*spec.presence.values(), *spec.copies, *spec.copies.values()})
    found = {field: name in names for field, name in spec.presence.items()}
    for differs, copies in spec.differs.items():
        first, *rest = [names[name] for name in (spec.copies[copies[0]], *copies) if name in names] or ['']
        found[differs] = not all(are_equal(weights, first, other) for other in rest)
    return found


def resolve_copies(
    spec: ModelSpec, fields: Fields, names: dict[str, str], needed: set[str], weights: Weights, info: Info
) -> None:
    """Resolve tensors that may be copies: drop equal ones, and let others replace the tensor they were copied from."""
    sources = dict(spec.copies)
    if spec.tied is not None and (info.tied or any(info.found[name] for name in spec.differs)):
        sources[spec.tied[0]] = spec.tied[1]
    for copy, source in sources.items():
        if copy in needed:  # The config or the file says that the model has its own tensor for it.
            others = (other for other in sources if sources[other] == source and other != copy)
            if copy not in names and source in names and any(other in names for other in others):
                names[copy] = names[source]
        elif copy in names and source not in names:
            names[source] = names.pop(copy)
        elif copy in names:
            if not are_equal(weights, names[copy], names[source]):
                if source not in needed:
                    raise ConfigError(f'`{names[copy]}` of the file must be equal to `{names[source]}`')
                info.kept[source] = compact(weights.load(names[source]))
                names[source], names[copy] = names[copy], names[source]
            if copy in spec.copies:  # A tied head is saved once.
                info.copies[copy] = source
            info.ignored.append(names.pop(copy))
    unread = {source for copy, source in sources.items() if copy in needed and source not in needed}
    for name in unread & names.keys():
        info.kept[name] = compact(weights.load(names[name]))
        info.ignored.append(names.pop(name))
    for name, values in spec.settled.items():
        if name in names and not are_close(weights.load(names[name]), values(fields)):
            raise ConfigError(f'`{names[name]}` of the file must have the values that a {spec.type} computes')


def are_close(a: Tensor, b: Tensor) -> bool:
    """Return True if tensors are equal up to the rounding of their dtype."""
    rounding = 1e-5 if a.dtype.itemsize >= 4 else 1e-2
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0.0, atol=rounding)


@answering
def load(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: Any = 'auto',
    device_map: Any = None,
    head: Any = 'auto',
    num_classes: int | None = None,
    dropout: float | None = None,
    num_tokens: int | None = None,
    trainable: str | Collection[str] = 'all',
    freeze_pad: bool = False,
    strict: bool = True,
    allow_pickle: bool = False,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    base: str | os.PathLike[str] | None = None,
    unknown: str | Collection[str] = 'error',
    return_info: bool = False,
    cls: type[nn.Module] | None = None,
    **keywords: Any,
) -> Any:
    """Load a pretrained model in eval mode, with the same logits as in `transformers`.

    `model.pretrained` is the `Info`. `model.generation_defaults` are keywords of `generate` from
    generation_config.json, or from config.json. They are not applied automatically.

    Args:
        source: A folder; a file of weights or an index in it; an adapter of PEFT; or a repository id.
        revision: As in `huggingface_hub.snapshot_download`.
        cache_dir: As there.
        token: As there.
        local_files_only: As there.
        dtype: 'auto' for that of the config, or a dtype.
        device_map: A device, or a dict from prefixes of modules to devices.
        head: 'auto' for that of the file, 'lm', 'mlm', 'classify', 'tokens', 'span', 'embed', or a module on hidden
            states. Parameters that the file lacks are initialized and listed in `info.new`.
        num_classes: Number of classes of a new head.
        dropout: One probability in place of all those of the config.
        num_tokens: Size of a larger vocabulary. New embeddings are the mean of the table.
        trainable: 'all', 'head', or prefixes of the names of trainable parameters.
        freeze_pad: True to exclude the embedding of `pad_token_id` from gradients.
        strict: False to let keywords add parameters, which are initialized and listed in `info.new`.
        allow_pickle: True to load `.bin`, `.pt` and `.pth` files too.
        base: The base of an adapter, if it is not where the adapter says.
        unknown: Fields of the config that the library does not know: 'error', their names to ignore them, or 'ignore'
            for all. `info.passed` lists the ignored ones.
        return_info: True to return (model, `Info`).
        cls: Required wrapper class, or a subclass of it to build.
        **keywords: Further keywords of the stack, including `features`, or of the wrapper.

    Returns:
        The model, or (model, `Info`) with `return_info`.

    Raises:
        ConfigError: The model is not supported; the error names the field or the tensor.
        ValueError, TypeError: An argument is out of range, or a file cannot be read.
    """
    hub = dict(revision=revision, cache_dir=cache_dir, token=token, local_files_only=local_files_only)
    location, place, adapter = locate(resolve(source, allow_pickle, **hub)), options.make_placement(device_map), None
    if location.is_adapter:
        adapter = Adapter.from_location(location, allow_pickle)
        location = adapter.find_base(base, hub)
    elif base is not None:
        raise ValueError(f'`base` must be None, since `{location.folder}` is no adapter, got {format_value(base)}')
    at = StampedFile(location.folder)
    config = read_config(location.folder)
    wanted = LoadOptions(dropout, num_tokens, strict, cls, keywords, head, num_classes, unknown)
    with Weights(location.folder, allow_pickle, location.file) as weights:
        model, info = load_model(config, weights, wanted, dtype, place, adapter)
        info.files = weights.read_from
    info.source, info.revision = str(source), revision
    if (at / GENERATION).is_file():
        info.generation = read_json(at / GENERATION)
    rebuild_buffers(model, info)
    options.freeze(model, trainable)
    if freeze_pad:
        options.freeze_padding(model, info.config)
    model.eval()
    noted: Any = model
    noted.pretrained = info
    said, stack = info.generation, getattr(model, 'attn_layers', None)
    if not said and info.type != OWN and (hasattr(model, 'decoder') or isinstance(stack, DECODER)):
        said = extract_generation_config(info.config)
    noted.generation_defaults = generation_keywords(said, info.type, hasattr(model, 'decoder'))
    return (model, info) if return_info else model


def load_model(
    config: dict[str, Any],
    weights: Weights,
    wanted: LoadOptions,
    dtype: Any,
    place: Any,
    adapter: Adapter | None = None,
) -> tuple[nn.Module, Info]:
    """Load the model of a config with its weights, in either format. `model.config` alone is accepted too."""
    if 'class' in config:
        config = {'model_type': OWN, 'config': config}
    if config.get('model_type') == OWN:
        chosen = options.resolve_dtype(None if dtype == 'auto' else dtype, {})
        return load_own(config, weights, wanted, chosen, place, adapter)
    num_classes = wanted.num_classes
    if adapter is not None and wanted.head == 'auto' and num_classes is None:
        head, num_classes = adapter.get_head()
        wanted = replace(wanted, head=head)
    is_part = is_composite(config)
    config = extract_text_config(config) if is_part else config
    config, passed = drop_unknown(get_spec(config), config, wanted.unknown)
    spec, config = resolve_head(config, wanted.head, num_classes)
    spec = adapt_to_composite(spec) if is_part else spec
    prefix = strip_prefixes(weights, make_matcher(spec))
    if adapter is not None:
        config = adapter.apply(weights, spec, config)
    try:
        model, info, steps, names = prepare_model(spec, config, weights, wanted)
    except ConfigError as error:
        said = describe_tensors(weights.files) or describe_names(spec, weights.files)
        if said is None:
            raise
        raise NoModelError(f'{error}. {said}') from error
    info.passed, info.prefix, info.merged = passed, prefix, [] if adapter is None else sorted(weights.changes)
    fill_weights(model, steps, names, weights, options.resolve_dtype(dtype, config), place, info)
    return model, info


@dataclass(frozen=True)
class LoadOptions:
    """Options of `load` that change the model described by its config."""

    dropout: float | None = None
    num_tokens: int | None = None
    strict: bool = True
    cls: type[nn.Module] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    head: Any = 'auto'
    num_classes: int | None = None
    unknown: str | Collection[str] = 'error'

    @property
    def is_other_head(self) -> bool:
        """Return True if the head may differ from the one in the file."""
        return self.head != 'auto' or self.num_classes is not None

    def change_call(self, call: dict[str, Any], source: str) -> dict[str, Any]:
        """Return the call that builds the model, of the requested class."""
        call = options.set_dropout(call, self.dropout)
        call = options.add_keywords(call, self.keywords, inspect.signature(load).parameters)
        kind = KINDS[call['class']]
        if self.cls is None or issubclass(kind, self.cls):
            return call
        if not issubclass(self.cls, kind):
            raise TypeError(
                f'a {source} checkpoint is a {kind.__name__}, not a {self.cls.__name__}: '
                f'use `{kind.__name__}.from_pretrained`, or `pretrained.load` for any type'
            )
        return {**call, 'class': self.cls}


def prepare_model(
    spec: ModelSpec, config: dict[str, Any], weights: Weights, wanted: LoadOptions
) -> tuple[nn.Module, Info, list[engine.ConversionStep], dict[str, str]]:
    """Build the model of a config without weights, and find where its weights are."""
    found = detect_presence(spec, weights)
    tied = is_head_tied(spec, config, weights, found)
    fields = Fields(spec, config, tied, found)
    call = wanted.change_call(fields.keywords(), spec.type)
    try:
        model = engine.build(call)
    except ConfigError as error:
        raise ConfigError(f'{error}{"" if wanted.keywords else fields.describe_sources(str(error))}') from error
    # The head of a user has its weights already.
    ours = {name: t for name, t in engine.list_saved(model).items() if t.is_meta}
    steps, new = split_new_parameters(spec, fields, ours, wanted)
    needed = {name for step in steps for name in step.theirs}
    known = {*spec.copies, *spec.copies.values(), *(spec.tied or ()), *spec.settled}
    names = engine.match_names(spec, weights.files, needed | known)
    info = Info(spec.type, config, call, '', tied=tied, found=found, new=new)
    resolve_copies(spec, fields, names, needed, weights, info)
    for name in [name for name in names if name not in needed and 0 in weights.shape(names[name])]:
        info.kept[name] = weights.load(names[name])  # An empty tensor has no values to read.
        info.ignored.append(names.pop(name))
    info.left = drop_left_out(spec, fields, names)
    if wanted.is_other_head:
        own = find_new_steps(spec, steps, names, wanted.num_classes)
        info.new += [name for step in own for name in step.ours]
        steps = [step for step in steps if step not in own]
        needed = {name for step in steps for name in step.theirs}
        info.ignored += [names.pop(name) for name in find_other_heads(spec, names, needed)]
    engine.check_names(spec, names, steps)
    info.ignored += [names[name] for name in names if name not in needed and engine.is_ignored(spec, name)]
    if not wanted.is_other_head:
        spare = [names[name] for name in names if name not in needed and engine.is_spare(spec, name)]
        info.kept |= {name: compact(weights.load(name)) for name in spare}
    engine.check_shapes(steps, ours, lambda name: weights.shape(names[name]))
    if wanted.num_tokens is not None:
        info.keywords = options.set_num_tokens(call, wanted.num_tokens)
        model = engine.build(info.keywords)
    return model, info, steps, names


def drop_left_out(spec: ModelSpec, fields: Fields, names: dict[str, str]) -> list[str]:
    """Remove the tensors that a type leaves out, with a warning, and those of other models in the file."""
    left = [] if spec.left is None else sorted(name for name in names if spec.left(fields, name))
    if left:
        warn_once(f'{len(left)} tensors of this {spec.type} checkpoint are left out, such as `{names[left[0]]}`')
    outside = sorted(name for name in names if spec.outside and name.startswith(spec.outside))
    return [names.pop(name) for name in (*left, *outside)]


def split_new_parameters(
    spec: ModelSpec, fields: Fields, ours: Mapping[str, Tensor], wanted: LoadOptions
) -> tuple[list[engine.ConversionStep], list[str]]:
    """Return the steps that fill a model, and the names of parameters that keywords have added."""
    if not wanted.keywords:
        return engine.make_steps(spec, fields, ours), []
    plain = set(map(engine.strip_wrappers, engine.list_saved(engine.build(fields.keywords()))))
    new = sorted(name for name in ours if engine.strip_wrappers(name) not in plain)
    if new and wanted.strict:
        raise ConfigError(
            f'{", ".join(f"`{k}`" for k in wanted.keywords)} add `{new[0]}`, which a {spec.type} checkpoint does not '
            f'have: with `strict=False` it has its initial values'
        )
    return engine.make_steps(spec, fields, [name for name in ours if engine.strip_wrappers(name) in plain]), new


def rebuild_buffers(model: nn.Module, info: Info) -> None:
    """Compute the tables that follow from the config, and other buffers that no checkpoint holds."""
    like = next(model.parameters(), torch.empty(0))
    device = like.device
    for module in model.modules():
        if isinstance(module, ScaledSinusoidalEmbedding) and module.like.is_meta:
            module.kind = like.new_empty(0)
        if isinstance(module, RotaryEmbedding) and module.inv_freq.is_meta:
            module.inv_freq = module.frequencies.table(device).to(at_least_float(like.dtype))
    left = [name for name, t in model.named_buffers() if t.is_meta and device.type != 'meta']
    if left:  # Only features of the user can compute their buffers.
        fresh = engine.build(info.keywords, 'cpu')
        for name in left:
            owner, _, last = name.rpartition('.')
            setattr(model.get_submodule(owner), last, fresh.get_buffer(name).to(device))


def fill_weights(
    model: nn.Module,
    steps: list[engine.ConversionStep],
    names: Mapping[str, str],
    weights: Weights,
    dtype: Any,
    place: Any,
    info: Info,
) -> None:
    """Load the weights of a model, one step at a time."""
    shapes, state = engine.list_saved(model), initialize_new(info, dtype, place)
    for step in steps:
        like = shapes[step.ours[0]]
        for name, t in step.read(lambda name, like=like: check_dtype(name, weights.load(names[name]), like)).items():
            t = options.grow_table(t, shapes[name])
            state[name] = compact(t.to(dtype=dtype if t.is_floating_point() else None, device=place(name)))
        if step.change.cuts:
            info.kept[step.theirs[0]] = compact(weights.load(names[step.theirs[0]])[: step.sizes.cut])
        weights.release()
    model.load_state_dict(add_tied_names(model, state), assign=True, strict=False)


def check_dtype(name: str, t: Tensor, like: Tensor) -> Tensor:
    """Return a tensor of a file.  Raises NoModelError for integers instead of floats."""
    if like.is_floating_point() and not t.is_floating_point():
        raise NoModelError(f'`{name}` of the file must be floating-point, got {t.dtype}: use the unquantized model')
    return t


def add_tied_names(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict with all names of tied tensors."""
    first: dict[int, str] = {}
    for name, t in model.state_dict(keep_vars=True).items():
        of = first.setdefault(id(t), name)
        if of in state:
            state[name] = state[of]
    return state


def initialize_new(info: Info, dtype: Any, place: Any) -> dict[str, Tensor]:
    """Return initial values of parameters that keywords or another head have added."""
    heads = [] if info.type == OWN else [name for name in info.new if is_head_weight(name)]
    if not info.new:
        return {}
    found = initialize_weights(heads, engine.list_saved(engine.build(info.keywords)), info.config)
    if len(heads) < len(info.new):
        fresh = engine.list_saved(engine.build(info.keywords, 'cpu'))
        found.update({name: fresh[name].detach() for name in info.new if name not in heads})
    return {name: t.to(dtype=dtype, device=place(name)).clone() for name, t in found.items()}


def load_own(
    config: dict[str, Any],
    weights: Weights,
    wanted: LoadOptions,
    dtype: Any,
    place: Any,
    adapter: Adapter | None = None,
) -> tuple[nn.Module, Info]:
    """Load a model in the format of this library."""
    if wanted.is_other_head:
        raise ValueError('`head` and `num_classes` cannot be combined with a checkpoint of this library')
    call = wanted.change_call(read_own_call(config), OWN)
    if wanted.num_tokens is not None:
        call = options.set_num_tokens(call, wanted.num_tokens)
    model = engine.build(call)
    shapes, info = model.state_dict(keep_vars=True), Info(OWN, config, call, '')
    info.prefix = strip_prefixes(weights, shapes.__contains__)
    if adapter is not None:
        adapter.apply(weights, None, config)
        info.merged = sorted(weights.changes)
    state: dict[str, Tensor] = {}
    for name in weights.files:
        if name not in shapes:
            raise ConfigError(f'the file has `{name}`, which a model of this config does not have')
        t = weights.load(name)
        t = options.grow_table(t, shapes[name]) if wanted.num_tokens is not None else t
        if t.shape != shapes[name].shape:
            must = f'must have shape {tuple(shapes[name].shape)} with this config'
            raise ConfigError(f'`{name}` of the file {must}, got {tuple(t.shape)}')
        t = check_dtype(name, t, shapes[name])
        floating = t.is_floating_point() and not engine.is_derived(name)
        state[name] = compact(t.to(dtype=dtype if floating else None, device=place(name)))
        weights.release()
    ties = read_ties(config, shapes)
    state |= {other: state[first] for other, first in ties.items() if first in state}
    state = add_tied_names(model, state)
    info.new = sorted(name for name in shapes if name not in state)
    if info.new and wanted.strict:
        raise ConfigError(f'the file has no `{info.new[0]}`: with `strict=False` it has its initial values')
    model.load_state_dict({**initialize_new(info, dtype, place), **state}, assign=True)
    for other, first in ties.items():
        tie(model, other, first)
    return model, info


def read_ties(config: Mapping[str, Any], shapes: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names of tensors that the user tied, each with the name in the file."""
    ties = config.get('tied', {})
    if not isinstance(ties, Mapping) or not {*ties, *ties.values()} <= shapes.keys():
        raise ConfigError(f'`tied` of this {OWN} checkpoint must be names of its tensors, got {format_value(ties)}')
    return dict(ties)


def tie(model: nn.Module, other: str, first: str) -> None:
    """Tie two names of a model to one tensor."""
    owner, _, name = other.rpartition('.')
    into = model.get_submodule(owner)
    if name in into._parameters:
        into._parameters[name] = model.get_parameter(first)
    else:
        into._buffers[name] = model.get_buffer(first)


__all__ = ['Info', 'load']

"""Modules built from flags: signatures, configs as JSON and `explain()`, all derived from the declarations."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import os
import typing
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, overload

import torch
from torch import nn

from x_transformers.flags.checks import (
    Check,
    ConfigError,
    format_value,
    is_number,
    warn_once,
)
from x_transformers.flags.config import KINDS, decode, encode, is_same_value
from x_transformers.flags.declared import Feature, Features, Flag, class_names
from x_transformers.flags.explain import explain_module
from x_transformers.flags.resolved import advice, catalogue_for, get_flags, known_flags, resolve
from x_transformers.flags.unexpected import answering

# Resolved flags of the layers of a stack that is being built, by the given flags; None outside of that.
TWINS: ContextVar[dict[Any, Any] | None] = ContextVar('twins', default=None)
LIBRARY = f'{__name__.partition(".")[0]}.'
# Modules of upper layers, imported when they are needed.
PRETRAINED = 'x_transformers.pretrained'
RESIZING = 'x_transformers.features.resizing'
Own = TypeVar('Own', bound='Configurable')
if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    Inputs = ParamSpec('Inputs')
    Output = TypeVar('Output', covariant=True)

    class HasForward(Protocol[Inputs, Output]):
        """Type of a module, whose call has the arguments and the result of its `forward`."""

        def forward(self, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Output: ...


PLAIN_VALUES = (bool, int, float, str, type(None))


@contextmanager
def building_twins() -> Iterator[None]:
    """Check flags once for all equal modules that are built in a `with` block, in a fourth of the time."""
    before = TWINS.set({})
    try:
        yield
    finally:
        TWINS.reset(before)


def _twin_key(kind: type, catalogue: tuple[type[Feature], ...], flags: Mapping[str, Any]) -> Any:
    """Return a key that modules with equal flags have in common, or None if flags cannot be compared."""
    of_user = any([cls.is_user_defined for cls in catalogue])
    if of_user or any([type(value) not in PLAIN_VALUES for value in flags.values()]):
        return None
    return kind, catalogue, tuple([(name, type(value), value) for name, value in flags.items()])


class DerivedSignature:
    """Signature of a class, derived from its flags when it is read."""

    def __get__(self, instance: Any, cls: type[Configurable]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError('__signature__')
        return get_signature(cls)


class Config(dict):
    """Configuration of a model: a dict whose entries are also attributes, as trainers of other libraries expect."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f'the configuration has no entry {name!r}') from None

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(dict(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle it as an ordinary dict, which `torch.load` accepts with `weights_only=True`, its default."""
        return OrderedDict, (), None, None, iter(self.items())

    def __copy__(self) -> Config:
        return Config(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        return Config(copy.deepcopy(dict(self), memo))

    def to_json_string(self) -> str:
        return json.dumps(self, indent=2, sort_keys=True) + '\n'


class DerivedConfig:
    """Keywords that differ from the defaults, as data for JSON; `from_config` builds the model again.

    Raises ValueError for a value that JSON cannot hold, such as a function. A subclass may set another `config`.
    """

    def __get__(self, instance: Configurable | None, cls: type[Configurable]) -> Any:
        return self if instance is None else Config(encode(instance, cls.__name__))


class Configurable(nn.Module):
    """Module built from keywords, which are checked, documented, and stored for `config`.

    A subclass declares its arguments in the signature of `__init__`, as `Annotated[type, doc, check]`, and its features
    in `catalogue`.
    """

    catalogue: ClassVar[tuple[type[Feature], ...]] = ()
    stores: ClassVar[tuple[str, ...]] = ('',)  # Prefixes of `stored_as` that lead to this module.
    kinds: ClassVar[dict[str, type[Configurable]]] = KINDS
    positional: ClassVar[tuple[str, ...]] = ()  # Keywords that may be given by position, after the arguments.
    read_at_call: ClassVar[tuple[str, ...]] = ()  # Flags that may be assigned to a built module.
    renamed: ClassVar[dict[str, str]] = {}
    removed: ClassVar[dict[str, str]] = {}
    __signature__ = DerivedSignature()

    if TYPE_CHECKING:

        def __call__(self: HasForward[Inputs, Output], *args: Inputs.args, **kwargs: Inputs.kwargs) -> Output: ...

        # Attributes are flags and parts of features, not only the tensors and modules of `nn.Module`.
        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = Configurable.kinds.get(cls.__name__)
        if known is None or not known.__module__.startswith('x_transformers.'):
            Configurable.kinds[cls.__name__] = cls  # A user may define a class again, but not replace the library's.
        if '__init__' in vars(cls):
            cls.__init__ = record_arguments(cls.__init__, vars(cls).get('positional', ()))

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module) or type(value) is nn.Parameter:
            self._check_module_name(name)
        elif '_is_built' in self.__dict__ and name in self.__dict__:
            self._check_flag(name, value)
        if name == 'features' and isinstance(self.__dict__.get(name), Features) and not isinstance(value, Features):
            kind, got = type(self).__name__, format_value(value)
            raise TypeError(f'`features` of {kind} must be its Features, got {got}: use another name for the attribute')
        super().__setattr__(name, value)  # pyright: ignore[reportArgumentType]  modules accept any value

    def _check_module_name(self, name: str) -> None:
        """Raise AttributeError for a module or parameter that an attribute of the class would hide."""
        owner = next((base for base in type(self).__mro__ if name in vars(base)), None)
        if owner is None or not owner.__module__.startswith(LIBRARY):
            return
        held = vars(owner)[name]
        assigned = held.fset is not None if isinstance(held, property) else hasattr(type(held), '__set__')
        if not assigned:
            raise AttributeError(f'`{name}` is an attribute of {owner.__name__}: use another name for the module')

    def _check_flag(self, name: str, value: Any) -> None:
        """Raise AttributeError for another value of a flag that is only read at construction."""
        held = self.__dict__[name]
        if name in self.read_at_call or name not in known_flags(type(self).catalogue) or is_same_value(value, held):
            return
        kind = type(self).__name__
        raise AttributeError(
            f'`{name}` must be set at construction, got {format_value(value)} instead of {format_value(held)}: '
            f'build {kind}(..., {name}={format_value(value)}), and load the weights'
        )

    @classmethod
    def arguments(cls) -> dict[str, Flag]:
        """Return the arguments that the class declares, without flags of features."""
        hidden = cls.settled()
        kinds = [base for base in reversed(cls.__mro__) if issubclass(base, Configurable) and base is not Configurable]
        declared = _merge_declared(tuple(vars(kind)['__init__'] for kind in kinds if '__init__' in vars(kind)))
        return {name: flag for name, flag in declared.items() if name not in hidden}

    @classmethod
    def settled(cls) -> dict[str, Any]:
        """Return the arguments that a subclass fixes, and does not accept."""
        return {}

    @classmethod
    def accepted(cls) -> dict[str, Flag]:
        """Return all keywords of the class: its arguments, then the flags of its features."""
        settled = cls.settled()
        return {**cls.arguments(), **{n: flag for n, flag in get_flags(cls.catalogue).items() if n not in settled}}

    @classmethod
    def translate(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Rename keywords of earlier versions, with a warning. Raises ConfigError for removed ones."""
        for old, new in cls.renamed.items():
            if old in given:
                warn_once(f'`{old}` is now `{new}`, the old name will be removed')
                given[new] = given.pop(old)
        for old, instead in cls.removed.items():
            if old in given and old not in cls.accepted():
                raise ConfigError(f'unknown keyword `{old}` of {cls.__name__}: {instead}')
        return given

    def _compose(self, features: Sequence[type[Feature]] | None, flags: Mapping[str, Any]) -> Features:
        """Return the features that `flags` switch on, from the user's or the library's catalogue, not yet set up."""
        catalogue = catalogue_for(type(self).catalogue, features)
        twins = TWINS.get()
        key = None if twins is None else _twin_key(type(self), catalogue, flags)
        if twins is not None and key is not None and key in twins:
            values, active, attributes, twin = twins[key]
            self.__dict__.update(attributes)
            return Features(self, catalogue, active, values, twin)
        values, active = resolve(catalogue, flags, type(self).__name__, type(self).accepted, type(self))
        attributes = self.readable(get_flags(catalogue), values)
        self.__dict__.update(attributes)
        made = Features(self, catalogue, active, values)
        if twins is not None and key is not None:
            twins[key] = values, active, attributes, made
        return made

    def readable(self, flags: Mapping[str, Flag], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flags that become attributes: those whose name the module does not use otherwise."""
        own, found = self.__dict__, {}
        held = class_names(type(self)).union(own, own['_modules'], own['_parameters'], own['_buffers'])
        for name, declared in flags.items():
            value, feature = values[name], declared.feature
            if feature is not None and feature.stored_as:
                stored = feature.stored_as.values()
                if any([p + name in stored for p in self.stores]):
                    value = None  # The feature will store its module there.
            if not (name in held or isinstance(value, (nn.Module, torch.Tensor))):
                found[name] = value
        return found

    config = DerivedConfig()

    @classmethod
    def from_config(cls: type[Own], config: Mapping[str, Any] | str) -> Own:
        """Build a module from its `config`, as a dict or a JSON text, with newly initialized weights."""
        given: dict[str, Any] = json.loads(config) if isinstance(config, str) else dict(config)
        kind = cls.kinds.get(given.get('class', cls.__name__))
        if kind is None or not issubclass(kind, cls):
            raise ConfigError(f'`class` must be {cls.__name__} or one of its subclasses, got {given.get("class")!r}')
        return decode({**given, 'class': kind.__name__})

    @overload
    @classmethod
    def from_pretrained(
        cls: type[Own], source: str | os.PathLike[str], *, return_info: Literal[True], **options: Any
    ) -> tuple[Own, Any]: ...
    @overload
    @classmethod
    def from_pretrained(cls: type[Own], source: str | os.PathLike[str], **options: Any) -> Own: ...

    @classmethod
    @answering
    def from_pretrained(cls, source: str | os.PathLike[str], **options: Any) -> Any:
        """Load a model from a folder in the format of this library or of `transformers`: see `pretrained.load`.

        Raises TypeError if the folder contains another class of model.
        """
        other = getattr(super(), 'from_pretrained', None)  # Of another base, such as the mixins of model hubs.
        if other is not None:
            return other(source, **options)
        return importlib.import_module(PRETRAINED).load(source, cls=cls, **options)

    @answering
    def save_pretrained(self, path: str | os.PathLike[str], format: str = 'own', **options: Any) -> Any:
        """Write the config and the weights to a folder, in the format of this library, or of `transformers` ('hf'): see
        `pretrained.save`."""
        other = getattr(super(), 'save_pretrained', None)
        if other is not None:
            return other(path, **options)
        return importlib.import_module(PRETRAINED).save(self, path, format=format, **options)

    def describe(self) -> dict[str, str]:
        """Return the steps of the module itself for `explain`: a stage or another name, and a text."""
        return {}

    def _replicate_for_data_parallel(self) -> Configurable:
        """Return a replica whose features read its own parameters."""
        replica = super()._replicate_for_data_parallel()
        if isinstance(getattr(self, 'features', None), Features):
            replica.__dict__['features'] = self.features.rebind(replica)
        return replica

    @torch.no_grad()
    def on_step_end(self, progress: float) -> None:
        """Update schedules and averages of features. Call it after each optimizer step.

        Args:
            progress: The fraction of the training that is done, 0 to 1.
        """
        if not is_number(progress):
            raise TypeError(f'`progress` must be a number from 0 to 1, got {format_value(progress)}')
        if not 0 <= progress <= 1:
            raise ValueError(f'`progress`, the part of the training that is done, must be from 0 to 1, got {progress}')
        for module in self.modules():
            features = vars(module).get('features')
            for feature in features.active if isinstance(features, Features) else ():
                if feature.on_step_end is not None:
                    feature.on_step_end(float(progress))
            if isinstance(module, Configurable):
                module.update_schedules(float(progress))

    def stepped(self, progress: float) -> None:
        """Call `on_step_end`, the name of today, with one warning."""
        warn_once('`stepped(progress)` of a model is now `on_step_end(progress)`')
        self.on_step_end(progress)

    def given_now(self) -> dict[str, Any]:
        """Return the keywords that the module was built with, for its config; those that have changed since as now."""
        return self._given

    def update_schedules(self, progress: float) -> None:
        """Update the schedules of the module itself at the end of a training step."""

    def muon_parameters(self, queries_and_keys: bool = False) -> list[nn.Parameter]:
        """Return the matrices of hidden layers, for Muon, each once: those of values, outputs and feedforwards.

        Embeddings, output heads, norms and biases are excluded, and so are queries and keys by default: their logits
        grow under Muon, which `attn_qk_clip_` bounds. The matrices of experts have three axes.
        """
        return muon_parameters_inside(*self.children(), queries_and_keys=queries_and_keys)

    def resize_token_embeddings(self: Own, num_tokens: int | Mapping[str, int]) -> Own:
        """Change the number of tokens, in place: tables of tokens, output heads, and what the config says.

        Rows of tokens that there were stay, new ones are drawn as in a new model, and what is shared stays shared. Call
        it on the outermost module, before an optimizer is made, which would have the state of the old rows.

        Args:
            num_tokens: The new number; fewer cut the last rows off. Of several models with unequal numbers a dict by
                their names, as `{'encoder': 100}` of an XTransformer; of several streams a dict by theirs.

        Returns:
            This module.

        Raises:
            TypeError: `num_tokens` is no integer, and no dict of them.
            ValueError: There is no table of tokens, or it does not say which of several; or an id that is needed would
                be cut off.
            ConfigError: A table or head is not the library's, is quantized, sharded, or has an adapter.
        """
        importlib.import_module(RESIZING).resize(self, num_tokens)
        return self

    def explain(self, *, inputs: bool = False, measured: bool = False) -> str:
        """List what runs in this model, stage by stage; equal layers are one entry.

        Args:
            inputs: Also list the inputs of `forward` that each module and its features take.
            measured: Also list the effects of the flags on loss, time and memory in our benchmarks.

        Returns:
            A text, one line for each stage and feature, wrapped at 100 characters.
        """
        return explain_module(self, inputs, measured)


def muon_parameters_inside(*modules: nn.Module, queries_and_keys: bool = False) -> list[nn.Parameter]:
    """Return the matrices for Muon of modules and those inside of them, each once."""
    found: dict[nn.Parameter, None] = {}
    options = {'queries_and_keys': True} if queries_and_keys else {}
    for module in modules:
        own = getattr(module, 'muon_parameters', None)
        inside = own or functools.partial(muon_parameters_inside, *module.children())
        found.update(dict.fromkeys(inside(**options)))
    return list(found)


def type_hints(init: Callable[..., Any], include_extras: bool = True) -> dict[str, Any]:
    """Return the annotations of a function; {} if a user's subclass has some that do not exist at run time."""
    try:
        hints = typing.get_type_hints(init, include_extras=include_extras)
        return {name: _strip_implicit_optional(hint) for name, hint in hints.items()}
    except (NameError, TypeError):
        if (init.__module__ or '').startswith('x_transformers.'):
            raise  # Otherwise a check of the library would be lost.
        return {}


def _strip_implicit_optional(hint: Any) -> Any:
    """Return `Annotated[...]` of `Optional[Annotated[...]]`, which Python 3.10 makes of a default of None."""
    inner = typing.get_args(hint)[:1]
    return inner[0] if typing.get_origin(hint) is typing.Union and hasattr(inner[0], '__metadata__') else hint


@functools.cache
def _merge_declared(inits: tuple[Callable[..., Any], ...]) -> dict[str, Flag]:
    """Return the `Annotated` parameters of several `__init__`, those of the last one first."""
    found: dict[str, Flag] = {}
    for init in inits:
        declared = declared_arguments(inspect.unwrap(init))
        found = {**declared, **{n: f for n, f in found.items() if n not in declared}}
    return found


@functools.cache
def declared_arguments(init: Callable[..., Any]) -> dict[str, Flag]:
    """Return the `Annotated` parameters of an `__init__`, as flags."""
    hints = type_hints(init)
    found = {}
    for name, parameter in list(inspect.signature(init).parameters.items())[1:]:
        hint = hints.get(name)
        notes = getattr(hint, '__metadata__', ())
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or name == 'features':
            continue
        doc = next((note for note in notes if isinstance(note, str)), '')
        check = next((note for note in notes if isinstance(note, Check)), None)
        kind = getattr(hint, '__origin__', None) if notes else hint
        found[name] = Flag(parameter.default, doc, check, name, annotation=kind)
    return found


def get_signature(cls: type[Configurable]) -> inspect.Signature:
    """Return the signature for `help()`: the declared arguments, then every flag as a keyword."""
    init = inspect.unwrap(cls.__init__)
    types = type_hints(init, include_extras=False)
    own = [p.replace(annotation=types.get(p.name, p.empty)) for p in inspect.signature(init).parameters.values()][1:]
    var_keyword = [p for p in own if p.kind is p.VAR_KEYWORD]
    named = [p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if var_keyword:
        names = {p.name for p in named}
        extra = [(n, f) for n, f in cls.accepted().items() if n not in names]
        named += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=f.default) for n, f in extra]
    return inspect.Signature(named)


def record_arguments(init: Callable[..., None], positional: tuple[str, ...] = ()) -> Callable[..., None]:
    """Wrap an `__init__`: check the declared arguments, and store those that were given for `config`.

    More positional arguments than it has are the keywords `positional`.
    """
    shape = inspect.signature(init)
    by_position = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in shape.parameters.values())
    arguments: dict[str, Flag] = {}

    @functools.wraps(init)
    def wrapper(self: Configurable, *args: Any, **kwargs: Any) -> None:
        if by_position <= len(args) < by_position + len(positional):
            behind = dict(zip(positional, args[by_position - 1 :], strict=False))
            if twice := [name for name in behind if name in kwargs]:
                raise TypeError(f'{type(self).__name__} got `{twice[0]}` by position and as a keyword')
            args, kwargs = args[: by_position - 1], {**behind, **kwargs}
        outermost = '_given' not in self.__dict__
        if outermost:
            kwargs = type(self).translate(kwargs)
            for name, value in type(self).settled().items():
                if name in kwargs:
                    got = format_value(kwargs[name])
                    raise ConfigError(f'`{name}` of {type(self).__name__} cannot be set, got {got}: it is {value!r}')
        try:
            bound = shape.bind(self, *args, **kwargs)
        except TypeError as error:
            raise unbind_method(type(self), shape, args, kwargs, error) from None
        given = dict(list(bound.arguments.items())[1:])
        for name, parameter in shape.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(name, {})
            if parameter.kind is parameter.VAR_POSITIONAL and not given.get(name):
                given.pop(name, None)
        if outermost:
            self.__dict__.update(_given=dict(given), _built_as=type(self))
        if not arguments:
            arguments.update(declared_arguments(init))
        for name, value in given.items():
            if name in arguments and value is not arguments[name].default:
                if reason := arguments[name].refusal(value):
                    raise ConfigError(f'{type(self).__name__}: {reason}')
        init(self, *args, **kwargs)
        if outermost:
            self.__dict__['_is_built'] = True

    return wrapper


def unbind_method(
    cls: type[Configurable], shape: inspect.Signature, args: tuple, kwargs: dict[str, Any], error: TypeError
) -> Exception:
    """Return the error for arguments that do not fit a signature, with a suggestion for a misspelt one."""
    known = cls.accepted()
    for name in kwargs:
        if name not in known and name not in shape.parameters:
            return ConfigError(f'unknown keyword `{name}` of {cls.__name__}{advice(name, known, kwargs[name], cls)}')
    positional = [p for p in shape.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]
    if len(args) > len(positional):
        names = ', '.join(f'`{p.name}`' for p in positional)
        only = f'only {names} by position' if names else 'keywords only'
        return TypeError(f'{cls.__name__} takes {only}, got {len(args)} positional arguments')
    missing = [n for n, p in shape.parameters.items() if p.default is p.empty and n not in kwargs]
    missing = [n for n in missing[1 + len(args) :] if shape.parameters[n].kind.name[:4] != 'VAR_']
    return TypeError(f'{cls.__name__}: {f"`{missing[0]}` is missing" if missing else error}')


def accepted_keywords(cls: type[Configurable]) -> dict[str, Flag]:
    """Return all keywords that `cls` accepts, with their declarations."""
    return cls.accepted()

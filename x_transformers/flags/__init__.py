"""Flags: every keyword of the library is declared once, in the feature that it switches.

What belongs here: `flag`, `Feature` (one paper), `Features` (the features of one module, resolved to a tuple per
stage) and `Configurable` (a module built from flags). Signatures, `help()`, checks, refusals, suggestions, the config
as JSON and `explain()` are all derived from the declarations. No tensors.

    python -m x_transformers.flags             the table of all flags
    python -m x_transformers.flags rotary      what one flag, or every flag like it, does
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import inspect
import json
import numbers
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import nn

REQUIRED = inspect.Parameter.empty


class ConfigError(ValueError):
    """Flags that are unknown, out of range, or do not go together. The message names them."""


@functools.cache
def log_once(message: str) -> None:
    from loguru import logger

    logger.warning(message)


def warn_once(message: str) -> None:
    """Log `message` as a warning, the first time only. A compiled graph keeps silent: a log is no part of it."""
    if torch.compiler.is_compiling():
        return
    for rename in reversed(renamings):
        message = rename(message)
    log_once(message)


warn_once.cache_clear = log_once.cache_clear

renamings: list[Callable[[str], str]] = []


@contextlib.contextmanager
def naming(written: Mapping[str, str]) -> Iterator[None]:
    """Let refusals and warnings inside name keywords as the user wrote them, who gave them to something around."""

    def rename(text: str) -> str:
        return re.sub(r'`(\w+)(?=[`=])', lambda found: f'`{written.get(found[1], found[1])}', text)

    renamings.append(rename)
    try:
        yield
    except ConfigError as error:
        raise ConfigError(rename(str(error))) from None
    finally:
        renamings.pop()


# checks: what a value must be, in words and as a test


@dataclass(frozen=True)
class Check:
    """A test of a flag's value, with the words for what is allowed."""

    words: str
    test: Callable[[Any], bool]

    def __or__(self, other: Check) -> Check:
        return Check(f'{self.words} or {other.words}', lambda value: self.test(value) or other.test(value))


def is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def at_least(least: int) -> Check:
    return Check(f'an integer of at least {least}', lambda value: is_int(value) and value >= least)


def one_of(*allowed: Any) -> Check:
    return Check(
        'one of ' + ', '.join(map(repr, allowed)), lambda value: any(value is a or value == a for a in allowed)
    )


def each(check: Check) -> Check:
    """A list or tuple whose entries all pass `check`."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and len(value) > 0 and all(map(check.test, value))

    return Check(f'a tuple with one entry per layer, each {check.words}', test)


def an_instance(*kinds: type) -> Check:
    return Check('an instance of ' + ' or '.join(k.__name__ for k in kinds), lambda value: isinstance(value, kinds))


none = Check('None', lambda value: value is None)
boolean = Check('True or False', lambda value: value is None or isinstance(value, bool) or value in (0, 1))
integer = Check('an integer', is_int)
size = at_least(1)
count = at_least(0)
number = Check('a number', is_number)
positive = Check('a positive number', lambda value: is_number(value) and value > 0)
not_negative = Check('a number of at least 0', lambda value: is_number(value) and value >= 0)
probability = Check(
    'a probability from 0 up to, but not including, 1', lambda value: is_number(value) and 0 <= value < 1
)
a_callable = Check('a callable', callable)
a_mapping = Check('a dict', lambda value: isinstance(value, Mapping))


# declarations


@dataclass(frozen=True)
class Flag:
    """A keyword: its default, what it does, and what its value must be."""

    default: Any
    doc: str
    check: Check | None = None
    name: str = ''
    feature: type[Feature] | None = None
    example: Any = None

    def refusal(self, value: Any, name: str = '') -> str | None:
        """The reason why `value` is not allowed, or None."""
        if isinstance(value, PerLayer):
            return f'`{name or self.name}` got {shown(value)}: only a stack shares values out, to its branches'
        if self.check is None or self.check.test(value):
            return None
        return f'`{name or self.name}` got {shown(value)}, it must be {self.check.words}'


def shown(value: Any) -> str:
    """`value` for a message: a tensor by its shape, anything long cut."""
    if torch.is_tensor(value):
        return f'a tensor of shape {tuple(value.shape)}'
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


def flag(default: Any, doc: str, check: Check | None = None, example: Any = None) -> Any:
    """Declare a flag in the body of a feature.

    `example` is a value that switches it on in a small model: documentation and tests use it. It may be left out for
    a flag that is True or False, and so may its check.
    """
    if isinstance(default, bool):
        check, example = check or boolean, not default if example is None else example
    return Flag(default, doc, check, example=example)


class PerLayer:
    """One value for each layer of a kind, where a tuple might mean one value:  attn_pair=PerLayer((8, 8), (4, 4))"""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f'PerLayer{self.values!r}'

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, PerLayer) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


class Feature:
    """One paper: its flags, its parameters and its formula, plugged in at the stages of one level.

    The first flag is the switch. `setup` creates what the feature owns: a parameter, buffer or module assigned to
    `self` is kept by the host module under the name that `stored_as` gives (dots lead into submodules), so that
    checkpoints keep the names they always had. A method named after a stage of its level runs at that stage.

        needs      flag -> reason: a flag of the same level that must be on
        clashes    flag -> reason: a flag of the same level that must be off
        yields_to  flags of the same level that take over if they are set too, with a warning
        switches   flags that switch the feature on, if that is not the first one alone
        options    flag -> flag: the first does nothing unless the second is set
        idle_beside   flag -> flag: the first does nothing if the second is set
        not_across    the reason why the feature has no meaning in cross-attention, if it has none
        looks_ahead   how a token comes to depend on later ones, if it does: not for a causal stack
        joins_tokens   how the tokens of a row meet other than by attention, if they do: not beside packed documents
        takes      name -> shape: inputs of the forward call that the feature reads
        must_be    name -> Check: what such an input must be (`flags.inputs` has some)
        waits      True if the feature does nothing in a call without any of these inputs
        fuses      True if the fused kernel does the feature's work itself
        falls_back   for a feature without flags: with its inputs the formula runs even where `flash=True`
        can_cache  False if a later token changes what was computed for earlier ones, or the past cannot be kept
        can_cache_in_training   False if it may not be cached only while training, where it draws
        can_pad_left   False if rows cannot have padding on the left
        only_trains   True if it changes nothing in evaluation but speed and initial values
        plain      True if it does nothing in a pass of evaluation but by what it has built, or if short cuts know what
                   it does. It holds for exactly the class that says so; all others take the ordinary way

    In training a stage may add to the loss of the wrapper around the model, by `call.add_loss(name, value)`.
    """

    stages: ClassVar[dict[str, str]] = {}
    paper: ClassVar[str] = ''
    flags: ClassVar[dict[str, Flag]] = {}
    needs: ClassVar[dict[str, str]] = {}
    clashes: ClassVar[dict[str, str]] = {}
    yields_to: ClassVar[tuple[str, ...]] = ()
    switches: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[dict[str, str]] = {}
    idle_beside: ClassVar[dict[str, str]] = {}
    not_across: ClassVar[str] = ''
    looks_ahead: ClassVar[str] = ''
    joins_tokens: ClassVar[str] = ''
    takes: ClassVar[dict[str, str]] = {}
    must_be: ClassVar[dict[str, Check]] = {}
    waits: ClassVar[bool] = False
    stored_as: ClassVar[dict[str, str]] = {}
    fuses: ClassVar[bool] = False
    falls_back: ClassVar[bool] = False
    can_cache: ClassVar[bool] = True
    can_cache_in_training: ClassVar[bool] = True
    can_pad_left: ClassVar[bool] = True
    only_trains: ClassVar[bool] = False
    plain: ClassVar[Any] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = cls.__doc__ or ''  # that of its base class is no description of it
        own = {n: replace(f, name=n, feature=cls) for n, f in vars(cls).items() if isinstance(f, Flag)}
        cls.flags = own or cls.flags
        for name in own:
            delattr(cls, name)
        cls.refuse_misspelt_stages()

    @classmethod
    def refuse_misspelt_stages(cls) -> None:
        """A method that is almost named after a stage would never run."""
        methods = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
        for name in methods:
            if name in cls.stages or any(hasattr(base, name) for base in cls.__mro__[1:]):
                continue
            if close := difflib.get_close_matches(name, cls.stages, n=1, cutoff=0.85):
                raise TypeError(f'{cls.__name__} has `{name}`, which is no stage, did you mean `{close[0]}`?')

    def __init__(self, host: nn.Module, values: Mapping[str, Any]) -> None:
        owned: dict[str, tuple[str, ...]] = {}
        self.__dict__.update(host=host, owned=owned, **{name: values[name] for name in self.flags})

    def setup(self, host: Any) -> None:
        """Create parameters and modules, and check sizes against those of the host."""

    @classmethod
    def is_on(cls, values: Mapping[str, Any]) -> bool:
        """Whether the switch is on. A feature without flags answers to its inputs, and is always there."""
        if not cls.flags:
            return True
        switch, declared = next(iter(cls.flags.items()))
        return bool(values[switch]) and values[switch] != declared.default

    @classmethod
    def overruled_by(cls, values: Mapping[str, Any]) -> str | None:
        """The flag that takes over from this feature, if any."""
        return next((other for other in cls.yields_to if values.get(other)), None)

    @classmethod
    def runs(cls, values: Mapping[str, Any]) -> bool:
        """Whether the feature is switched on and no other takes over."""
        return cls.is_on(values) and cls.overruled_by(values) is None

    @classmethod
    def runs_at(cls) -> tuple[str, ...]:
        return tuple(stage for stage in cls.stages if getattr(cls, stage, None) is not None)

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, (torch.Tensor, nn.Module)):
            self.__dict__[name] = value
            return
        *path, last = self.stored_as.get(name, name).split('.')
        keeper = functools.reduce(getattr, path, self.host)
        if getattr(keeper, last, None) is not None and name not in self.owned:
            raise ConfigError(
                f'{type(self).__name__} would overwrite `{last}` of {type(keeper).__name__}: '
                f'give `{name}` another name in `stored_as`'
            )
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            keeper.register_buffer(last, value, persistent=name in self.stored_as)
        else:
            setattr(keeper, last, value)
        self.owned[name] = (*path, last)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or name in ('owned', 'host') or name not in self.owned:
            raise AttributeError(f'{type(self).__name__} has no attribute {name!r}')
        found = self.host
        for part in self.owned[name]:
            found = getattr(found, part)
        return found


class Features:
    """The features of one module that are switched on, as a tuple per stage, in running order."""

    def __init__(self, host: nn.Module, catalogue: Iterable[type[Feature]], values: Mapping[str, Any]) -> None:
        self.catalogue = tuple(catalogue)
        self.active = tuple(cls(host, values) for cls in self.catalogue if cls.runs(values))
        self.arrange()

    def arrange(self) -> None:
        """Settle which feature runs at which stage."""
        at: dict[str, list[Feature]] = {}
        for feature in self.active:
            for stage in feature.runs_at():
                at.setdefault(stage, []).append(feature)
        self.at = {stage: tuple(features) for stage, features in at.items()}
        self.takes = frozenset(name for feature in self.active for name in feature.takes)
        self.judges = {name: feature for feature in self.active for name in feature.must_be}
        self.awaited = frozenset(name for feature in self.active if feature.waits for name in feature.takes)
        self.known_calls: dict[tuple[str, ...], Features] = {}

    def switched(self, prefix: str = '') -> list[str]:
        """The flags, as written with a prefix, by which those features are on that change what is computed."""
        found = []
        for feature in self.active:
            switches = () if feature.only_trains else feature.switches or tuple(feature.flags)[:1]
            found += [
                prefix + n for n in switches if n in feature.flags and getattr(feature, n) != feature.flags[n].default
            ]
        return found

    def given(self, inputs: Mapping[str, Any]) -> Features:
        """The features that act in a call with these inputs: without those that wait for others."""
        if not self.awaited or torch.compiler.is_compiling():
            return self
        names = tuple([name for name, value in inputs.items() if value is not None and name in self.awaited])
        acting = self.known_calls.get(names)
        if acting is None:
            acting = self.known_calls[names] = copy.copy(self)
            acting.active = tuple(f for f in self.active if not f.waits or not f.takes.keys().isdisjoint(names))
            acting.arrange()
        return acting

    def setup(self) -> Features:
        """Let every feature create what it owns."""
        for feature in self.active:
            feature.setup(feature.host)
        return self

    def rebound(self, host: nn.Module, values: Mapping[Feature, dict[str, Any]] | None = None) -> Features:
        """The same features, reading the parameters of another host; with other attributes, if given."""
        new = copy.copy(self)
        moved = {}
        for feature in self.active:
            moved[feature] = object.__new__(type(feature))
            moved[feature].__dict__.update((values or {}).get(feature, feature.__dict__), host=host)
        new.active = tuple(moved[feature] for feature in self.active)
        new.arrange()
        return new

    def down(self, stage: str, value: Any, *call: Any) -> Any:
        """Pass `value` through the rings of a stage, the first feature first."""
        for feature in self.at.get(stage, ()):
            value = getattr(feature, stage)(value, *call)
        return value

    def up(self, stage: str, value: Any, *call: Any) -> Any:
        """Pass `value` through the rings of a stage on the way out, the last feature first."""
        for feature in reversed(self.at.get(stage, ())):
            value = getattr(feature, stage)(value, *call)
        return value

    def gather(self, stage: str, *call: Any) -> list[Any]:
        """The terms of a stage, without the absent ones."""
        terms = [getattr(feature, stage)(*call) for feature in self.at.get(stage, ())]
        return [term for term in terms if term is not None] if terms else terms

    def choose(self, stage: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """The one way of a stage: a feature's, or the default."""
        chosen = self.at.get(stage, ())
        return getattr(chosen[0], stage) if chosen else default

    def find(self, kind: type[Feature]) -> Any:
        """The active feature of this kind, or None."""
        return next((feature for feature in self.active if isinstance(feature, kind)), None)


# resolution: from the keywords that were given to the values of all flags


def flags_of(catalogue: Iterable[type[Feature]]) -> dict[str, Flag]:
    """The flags of a catalogue, by name."""
    return {name: flag for cls in catalogue for name, flag in cls.flags.items()}


def known_features(features: Any) -> tuple[type[Feature], ...]:
    """What a user gave as `features`, checked; () for None."""
    known = isinstance(features, Sequence) and all(isinstance(f, type) and issubclass(f, Feature) for f in features)
    if features is not None and not known:
        raise ConfigError(f'`features` got {shown(features)}, it must be a tuple of Feature classes')
    return tuple(features or ())


def extend(
    level: Sequence[type[Feature]],
    *mine: type[Feature],
    before: type[Feature] | None = None,
    after: type[Feature] | None = None,
) -> tuple[type[Feature], ...]:
    """The features of a level, such as ATTENTION, with others of one's own, for `features=extend(ATTENTION, Mine)`.

    They run behind the others, or `before` or `after` one of them. One that is derived from a feature of the level, and
    declares no flags of its own, takes its place.

    raises   ConfigError for what is no feature of this level
    """
    level = known_features(level)
    place = next((at for at, cls in enumerate(level) if cls in (before, after)), None)
    if before is not None and after is not None:
        raise ConfigError('`before` and `after` were both given, give one of them')
    if place is None and (before or after) is not None:
        name = 'before' if before is not None else 'after'
        raise ConfigError(f'`{name}` got {shown(before or after)}, which is no feature of this level')
    for cls in known_features(mine):
        if level and cls.stages is not level[0].stages:
            raise ConfigError(f'{cls.__name__} is a feature of another level than {level[0].__name__}')
    heirs = {base: cls for cls in mine for base in level if issubclass(cls, base) and cls.flags == base.flags}
    added = tuple(cls for cls in mine if cls not in (*heirs.values(), *level))
    start = len(level) if place is None else place + (after is not None)
    parts = (level[:start], level[start:])
    front, behind = (tuple(heirs.get(cls, cls) for cls in part) for part in parts)
    return (*front, *added, *behind)


def catalogue_for(
    level: tuple[type[Feature], ...], features: Sequence[type[Feature]] | None
) -> tuple[type[Feature], ...]:
    """The features of a level: the user's list for it, the library's, or the user's own added to the library's."""
    own = tuple(feature for feature in known_features(features) if feature.stages is level[0].stages)
    if own and not set(own) & set(level):
        own = extend(level, *own)
    declared: dict[str, str] = {}
    for feature in own:
        for name in feature.flags:
            if declared.setdefault(name, feature.__name__) != feature.__name__:
                raise ConfigError(f'`features` got {declared[name]} and {feature.__name__}, both declare `{name}`')
    return own or level


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """', did you mean `...`?' with the names closest to a misspelt one, or an empty string."""
    known = list(names)
    joined = {known_name.replace('_', ''): known_name for known_name in known}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    likeness = [difflib.SequenceMatcher(None, c, name).ratio() for c in close]
    close = [c for c, ratio in zip(close, likeness, strict=True) if ratio > max(likeness) - 0.08]
    close += [joined[c] for c in difflib.get_close_matches(name.replace('_', ''), joined, n=1, cutoff=0.75)]
    ending = [k for k in known if k.endswith(f'_{name}') or k.startswith(f'{name}_')]
    found = list(dict.fromkeys(ending[:3] if ending and not close else close))
    found = [known_name for known_name in found if known_name.split('_')[0] == name.split('_')[0]] or found
    return f', did you mean {" or ".join(f"`{c}`" for c in found)}?' if found else ''


def left_out_or_meant(name: str, names: Mapping[str, Any], known: Mapping[str, Flag]) -> str:
    """Why a keyword is unknown: `features` leaves out the one that declares it, or it is misspelt."""
    left_out = getattr(names[name], 'feature', None) if name in names else None
    if left_out is None:
        return did_you_mean(name, dict.fromkeys((*names, *known)))
    return f': `features` leaves out {left_out.__name__}, write `features=extend(...)` to add to the features there are'


def resolve(
    catalogue: Iterable[type[Feature]], given: Mapping[str, Any], where: str, names: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The value of every flag of `catalogue`, with all refusals checked.

    `where` names what is being built; `names` are further keywords that it takes, to suggest for a misspelt one.
    Raises ConfigError for an unknown flag, a value out of range, flags that clash, or a missing need.
    """
    catalogue = tuple(catalogue)
    known = flags_of(catalogue)
    for name, value in given.items():
        if name not in known:
            raise ConfigError(f'unknown keyword `{name}` of {where}{left_out_or_meant(name, names or {}, known)}')
        if reason := known[name].refusal(value):
            raise ConfigError(reason)
    values = {name: given.get(name, flag.default) for name, flag in known.items()}
    on = [cls for cls in catalogue if cls.flags and cls.runs(values)]
    refuse_clashes(on, known, values)
    for cls in catalogue:
        warn_of_idle(cls, cls in on, values, given)
    return values


def switch_of(cls: type[Feature], values: Mapping[str, Any]) -> str:
    """The flag that switched the feature on."""
    return next(
        (name for name in cls.flags if values[name] and values[name] != cls.flags[name].default),
        next(iter(cls.flags), ''),
    )


def refuse_clashes(on: Iterable[type[Feature]], known: Mapping[str, Flag], values: Mapping[str, Any]) -> None:
    """Refuse features whose needs are off, whose clashes are on, or of which two make the same choice."""
    chosen: dict[str, str] = {}
    for cls in on:
        name = switch_of(cls, values)
        for need, reason in cls.needs.items():
            if need in known and not is_set(known, values, need):
                raise ConfigError(f'`{name}` needs `{need}`: {reason}')
        for other, reason in cls.clashes.items():
            if other in known and is_set(known, values, other):
                raise ConfigError(f'`{name}` does not go with `{other}`: {reason}')
        for stage in cls.runs_at():
            if cls.stages[stage] != 'choice':
                continue
            if stage in chosen:
                raise ConfigError(f'`{chosen[stage]}` and `{name}` both choose the {stage}, set only one')
            chosen[stage] = name


def warn_of_idle(cls: type[Feature], runs: bool, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Warn of flags that were given, but do nothing as the others are."""
    switches = cls.switches or tuple(cls.flags)[:1]
    wished = [name for name in cls.flags if name in given and given[name] != cls.flags[name].default]
    if not runs and wished and (overruling := cls.overruled_by(values)) is not None:
        return warn_once(f'`{wished[0]}` has no effect beside `{overruling}`, which takes over')
    for name in wished:
        if not runs and name not in switches:
            warn_once(f'`{name}` has no effect unless {" or ".join(f"`{s}`" for s in switches)} is set')
        elif name in cls.options and not values[cls.options[name]]:
            warn_once(f'`{name}` has no effect unless `{cls.options[name]}` is set')
        elif name in cls.idle_beside and values[cls.idle_beside[name]]:
            warn_once(f'`{name}` has no effect beside `{cls.idle_beside[name]}`')
    return None


def is_set(known: Mapping[str, Flag], values: Mapping[str, Any], name: str) -> bool:
    """Whether a flag is on: its feature is, if the flag is the switch, else it differs from its default."""
    owner = known[name].feature
    if owner is not None and name == next(iter(owner.flags)):
        always = owner.is_on({**values, **{n: flag.default for n, flag in owner.flags.items()}})
        if not always:
            return owner.is_on(values)
    return values[name] != known[name].default


# modules built from flags


class DerivedSignature:
    """The signature of a class, derived from its flags when somebody asks."""

    def __get__(self, instance: Any, cls: type[Configurable]) -> inspect.Signature:
        if instance is not None:
            raise AttributeError('__signature__')
        return signature_of(cls)


class Config(dict):
    """A model's configuration: a dict whose entries are attributes too, as trainers of other libraries expect."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f'the configuration has no entry {name!r}') from None

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(dict(self))

    def to_json_string(self) -> str:
        return json.dumps(self, indent=2, sort_keys=True) + '\n'


class DerivedConfig:
    """The keywords that differ from the defaults, ready for JSON; `from_config` builds the model again.

    Raises ValueError for a value that JSON cannot hold, such as a function. A subclass may keep a `config` of its own.
    """

    def __get__(self, instance: Configurable | None, cls: type[Configurable]) -> Any:
        from x_transformers.flags.config import encode

        return self if instance is None else Config(encode(instance, cls.__name__))


class Configurable(nn.Module):
    """A module built from keywords: checked, documented, and able to say how it was built.

    A subclass declares its own arguments in the signature of `__init__`, as `Annotated[type, doc, check]`, and the
    features it is composed of in `catalogue`.
    """

    catalogue: ClassVar[tuple[type[Feature], ...]] = ()
    kinds: ClassVar[dict[str, type[Configurable]]] = {}
    renamed: ClassVar[dict[str, str]] = {}
    removed: ClassVar[dict[str, str]] = {}
    __signature__ = DerivedSignature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = Configurable.kinds.get(cls.__name__)
        if known is None or not known.__module__.startswith('x_transformers.'):
            Configurable.kinds[cls.__name__] = cls  # a class of the user's may be defined again, ours keep their names
        if '__init__' in vars(cls):
            cls.__init__ = remembering(cls.__init__)

    @classmethod
    def arguments(cls) -> dict[str, Flag]:
        """The arguments that the class declares itself, outside of features."""
        found: dict[str, Flag] = {}
        for base in reversed(cls.__mro__):
            init = vars(base).get('__init__')
            if init is None or not issubclass(base, Configurable) or base is Configurable:
                continue
            declared = declared_arguments(inspect.unwrap(init))
            found = {**declared, **{n: f for n, f in found.items() if n not in declared}}
        hidden = cls.settled()
        return {name: flag for name, flag in found.items() if name not in hidden}

    @classmethod
    def settled(cls) -> dict[str, Any]:
        """Arguments that a subclass has settled, and no longer accepts."""
        return {}

    @classmethod
    def accepted(cls) -> dict[str, Flag]:
        """Every keyword of the class: its own arguments, then the flags of its features."""
        return {**cls.arguments(), **flags_of(cls.catalogue)}

    @classmethod
    def translate(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Renamed keywords under their present names, with a warning; removed ones are refused with what to write."""
        for old, new in cls.renamed.items():
            if old in given:
                warn_once(f'`{old}` is now `{new}`, the old name will go')
                given[new] = given.pop(old)
        for old, advice in cls.removed.items():
            if old in given and old not in cls.accepted():
                raise ConfigError(f'unknown keyword `{old}` of {cls.__name__}: {advice}')
        return given

    def compose(self, features: Sequence[type[Feature]] | None, flags: Mapping[str, Any]) -> Features:
        """The features that `flags` switch on, from the user's or the library's catalogue, not yet set up."""
        catalogue = catalogue_for(type(self).catalogue, features)
        values = resolve(catalogue, flags, type(self).__name__, type(self).accepted())
        for name, declared in flags_of(catalogue).items():
            self.remember_flag(name, values[name], declared.feature)
        return Features(self, catalogue, values)

    def remember_flag(self, name: str, value: Any, feature: type[Feature] | None) -> None:
        """Let a flag be read as an attribute, unless the module has one of that name, or will have."""
        if feature is not None and name in feature.stored_as.values():
            value = None  # until the feature stores its module there
        if not (hasattr(self, name) or isinstance(value, (nn.Module, torch.Tensor))):
            self.__dict__[name] = value

    config = DerivedConfig()

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str) -> Configurable:
        """Build a module from its `config`, as a dict or a JSON text. The weights are fresh."""
        from x_transformers.flags.config import decode

        config = json.loads(config) if isinstance(config, str) else dict(config)
        kind = cls.kinds.get(config.get('class', cls.__name__))
        if kind is None or not issubclass(kind, cls):
            raise ConfigError(
                f'`class` got {config.get("class")!r}, it must be {cls.__name__} or one of its subclasses'
            )
        return decode({**config, 'class': kind.__name__})

    def outline(self) -> dict[str, str]:
        """The module's own steps, for `explain`: a stage, or a name of its own, and what happens there."""
        return {}

    def _replicate_for_data_parallel(self) -> Configurable:
        """A replica whose features read its own parameters."""
        replica = super()._replicate_for_data_parallel()
        if isinstance(getattr(self, 'features', None), Features):
            replica.__dict__['features'] = self.features.rebound(replica)
        return replica

    def explain(self) -> str:
        """What runs in this model, stage by stage, in order, with the inputs that it takes."""
        from x_transformers.flags.explain import explained

        return '\n'.join(explained(self))


def type_hints(init: Callable[..., Any], include_extras: bool = True) -> dict[str, Any]:
    """The annotations of a function; none, if a user's subclass has some that do not exist at run time."""
    try:
        return typing.get_type_hints(init, include_extras=include_extras)
    except (NameError, TypeError):
        if (init.__module__ or '').startswith('x_transformers.'):
            raise  # a check of ours would go lost
        return {}


@functools.cache
def declared_arguments(init: Callable[..., Any]) -> dict[str, Flag]:
    """The `Annotated` parameters of an `__init__`, as flags."""
    hints = type_hints(init)
    found = {}
    for name, parameter in list(inspect.signature(init).parameters.items())[1:]:
        notes = getattr(hints.get(name), '__metadata__', ())
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or name == 'features':
            continue
        doc = next((note for note in notes if isinstance(note, str)), '')
        check = next((note for note in notes if isinstance(note, Check)), None)
        found[name] = Flag(parameter.default, doc, check, name)
    return found


def signature_of(cls: type[Configurable]) -> inspect.Signature:
    """The signature for `help()`: the declared arguments, then every flag as a keyword."""
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


def remembering(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap an `__init__`: check the declared arguments, and keep what was given for `config`."""
    shape = inspect.signature(init)
    arguments: dict[str, Flag] = {}

    @functools.wraps(init)
    def wrapped(self: Configurable, *args: Any, **kwargs: Any) -> None:
        outermost = '_given' not in self.__dict__
        if outermost:
            kwargs = type(self).translate(kwargs)
            for name, value in type(self).settled().items():
                if name in kwargs:
                    raise ConfigError(
                        f'`{name}` got {shown(kwargs[name])}, but {type(self).__name__} settles it: it is {value!r}'
                    )
        try:
            bound = shape.bind(self, *args, **kwargs)
        except TypeError as error:
            raise unbound(type(self), shape, args, kwargs, error) from None
        given = dict(list(bound.arguments.items())[1:])
        for name, parameter in shape.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(name, {})
            if parameter.kind is parameter.VAR_POSITIONAL and not given.get(name):
                given.pop(name, None)
        if outermost:
            self.__dict__['_given'] = dict(given)
        if not arguments:
            arguments.update(declared_arguments(init))
        for name, value in given.items():
            if name in arguments and value is not arguments[name].default:
                if reason := arguments[name].refusal(value):
                    raise ConfigError(f'{type(self).__name__}: {reason}')
        init(self, *args, **kwargs)

    return wrapped


def unbound(
    cls: type[Configurable], shape: inspect.Signature, args: tuple, kwargs: dict[str, Any], error: TypeError
) -> Exception:
    """The error for arguments that do not fit a signature, with a suggestion for a misspelt one."""
    known = cls.accepted()
    for name in kwargs:
        if name not in known and name not in shape.parameters:
            return ConfigError(f'unknown keyword `{name}` of {cls.__name__}{did_you_mean(name, known)}')
    positional = [p for p in shape.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][1:]
    if len(args) > len(positional):
        names = ', '.join(f'`{p.name}`' for p in positional)
        return TypeError(
            f'{cls.__name__} got {len(args)} positional arguments, '
            f'it takes {f"only {names} that way" if names else "keywords only"}'
        )
    missing = [n for n, p in shape.parameters.items() if p.default is p.empty and n not in kwargs]
    missing = [n for n in missing[1 + len(args) :] if shape.parameters[n].kind.name[:4] != 'VAR_']
    return TypeError(f'{cls.__name__}: {f"`{missing[0]}` is missing" if missing else error}')


def accepted(cls: type[Configurable]) -> dict[str, Flag]:
    """Every keyword that `cls` accepts, with its declaration."""
    return cls.accepted()

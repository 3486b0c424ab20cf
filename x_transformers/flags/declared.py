"""Declarations: a keyword (`flag`), a feature with its flags (`Feature`), and the features of a module (`Features`)."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from x_transformers.flags.checks import (
    Check,
    ConfigError,
    Input,
    boolean,
    format_value,
    is_int,
)
from x_transformers.flags.contracts import (
    number_of_arguments,
    run_override,
    run_transform,
    takes_arguments,
)
from x_transformers.flags.renamed import (
    OLD_DECLARATIONS,
    RENAMED,
    HasOldNames,
    translate_declarations,
    translate_of_instance,
)

PACKAGE = __name__.partition('.')[0]
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Flag:
    """A keyword: its default, its documentation, and a check of its value."""

    default: Any
    doc: str
    check: Check | None = None
    name: str = ''
    feature: type[Feature] | None = None
    example: Any = None
    annotation: Any = None  # Type of an argument of `__init__`; that of a feature's flag follows from its check.

    def refusal(self, value: Any, name: str = '') -> str | None:
        """Return the error for a value, or None if it is allowed."""
        if isinstance(value, PerLayer):
            only = 'only a stack has several layers'
            return f'`{name or self.name}` must have one value here, got {format_value(value)}: {only}'
        if self.check is None or self.check.test(value):
            return None
        return f'`{name or self.name}` must be {self.check.words}, got {format_value(value)}'


def flag(default: Any, doc: str, check: Check | None = None, example: Any = None) -> Any:
    """Declare a flag in the body of a feature.

    `example` is a value that switches the flag on in a small model, for documentation and tests. `check` and `example`
    can be omitted for flags that are True or False.
    """
    if isinstance(default, bool):
        check, example = check or boolean, not default if example is None else example
    return Flag(default, doc, check, example=example)


class PerLayer:
    """Values for the layers of a kind, for flags whose value may be a tuple:  attn_pair=PerLayer((8, 8), (4, 4))"""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f'PerLayer{self.values!r}'

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, PerLayer) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


class Remembered:
    """Kind of state of earlier tokens, declared by a feature in its `states`, by name."""


@dataclass(frozen=True)
class PerToken(Remembered):
    """Vectors of all tokens, (b, ..., n, d):  `call.state(name).append(new)` returns those of all tokens so far.

    `derived`: they follow from other states, and are left out of files, and where positions change.
    """

    derived: bool = False


@dataclass(frozen=True)
class RecurrentState(Remembered):
    """Tree of tensors, batch first, that summarizes the past:  `.value`, None at the beginning, and `.keep(tree)`.

    `batch_first=False` is for a user's module: such a state cannot be reordered.
    """

    batch_first: bool = True


@dataclass(frozen=True)
class Ring(Remembered):
    """Vectors (b, ..., n, d) of the last `width` tokens:  `.vectors`, and `.append(new)` returns these and the new."""

    width: int

    def __post_init__(self) -> None:
        if not is_int(self.width) or self.width < 1:
            raise ConfigError(f'`width` of a Ring must be an integer of at least 1, got {format_value(self.width)}')


@dataclass(frozen=True)
class Noted(Remembered):
    """Tree of tensors without axes of batch or tokens, such as a count of calls:  `.value`, `.keep(tree)`"""


@dataclass(frozen=True)
class OfContext(Remembered):
    """Tree of tensors, batch first, computed from a context, without an axis of tokens:  `.value`, `.keep(tree)`"""


def _mixes_by_state(states: Mapping[str, Remembered]) -> str:
    """Return the reason that a state mixes the tokens of a sequence, or '' if none does."""
    name = next((name for name, kind in states.items() if isinstance(kind, (RecurrentState, Ring))), None)
    return f'it keeps `{name}` of the tokens before' if name else ''


class Feature:
    """A feature, usually one paper: its flags, parameters and formula, plugged in at the stages of one level.

    The first flag is the switch. `setup` creates the parameters of the feature: a parameter, buffer or module assigned
    to `self` is stored in the owner module, under the name given by `stored_as` (dots lead into submodules), so that
    names in checkpoints do not change. A tensor is part of checkpoints if `stored_as` names it, or as
    `nn.Buffer(tensor)`. A method named after a stage of the level runs at that stage.

        needs            flag -> reason: a flag of the same level that must be on. Arguments of the owner, such as
                         `causal`, are not flags: check `owner.causal` in `setup(owner)`
        clashes          flag -> reason: a flag of the same level that must be off
        overridden_by    flags of the same level that override this feature if they are also set, with a warning
        switches         flags that switch the feature on, if not only the first one
        sets_on_module   attributes of the owner that `setup` writes; no two features may write the same one
        requires_flag    flag -> flag: the first has no effect unless the second is set; or if it is set, as 'not flag'
        enabled_by       flags of branches, any of which enables this feature of a stack, which has no flags itself
        refuses          situation -> reason: where the feature raises an error. `setup` may add some by `self.refuse`:
                         'cache': later tokens change earlier results, or the past cannot be stored; 'cache in
                         training'; 'left padding'; 'cross-attention'; 'causal': tokens depend on later ones, or a pair
                         of the reason and the flag that causes it; 'documents': tokens are mixed other than by
                         attention; 'some tokens': layers must run on all tokens. A `RecurrentState` or `Ring` has these
                         two, unless they are ''; 'several devices': it cannot be sharded (`parallel`). In features of
                         attention also a flag of the stack
        counts_tokens    True if the result for a token, or a loss, depends on the number of tokens that are not
                         padding, later ones included: then losses pass the padding to the model
        call_inputs      name -> Input(axes, check): inputs of the forward call that the feature uses (`flags.checks`
                         has some checks). Features without flags act only in calls with one of them
        always           True if such a feature acts in all calls; False if a feature with flags also needs an input
        runs_fused       True if the fused kernel implements the feature; None, for features without flags, if with its
                         inputs the eager kernel is used even if `flash=True`
        states           name -> PerToken(), RecurrentState(), Ring(w): states that the cache stores, accessed by
                         `call.state(name)`; an instance may set its own in `setup`. See subclasses of `Remembered`
        training_only    True if in evaluation it changes only speed and initial values
        tp_shards        how its tensors are sharded if several devices share the owner (`parallel`), by heads, inner
                         channels or tokens: name -> (axis, 'heads' | 'kv_heads'); {} if no tensor is sharded. None,
                         the default, is an error there
        tp_input_shards  name -> axes, such as '... h i j' or 'b n (h d)': inputs of which each device uses the part of
                         its heads (h) or key heads (k); a tuple for a pair; '' for an input that is already sharded by
                         heads. All others are equal on all devices
        same_in_layers   True if its masks and biases follow from its inputs alone, so that a stack computes them once

    To pass a value to a later stage of the same call, set it as an attribute of `call.ctx(self)`, never on `self`.
    Values that change during training (schedules, averages) are updated in `on_step_end(progress)`: training loops call
    `model.on_step_end(step / steps)` after each optimizer step. A forward pass may be computed twice.
    In training, a stage may add to the loss of the wrapper around the model by `call.add_loss(name, value)`.
    """

    stages: ClassVar[dict[str, str]] = {}
    reversed_stages: ClassVar[frozenset[str]] = frozenset()
    renamed_stages: ClassVar[dict[str, str]] = {}  # Names of earlier versions -> those of today.
    removed_stages: ClassVar[dict[str, str]] = {}  # Names of earlier stages -> replacements, in words.
    axes: ClassVar[dict[str, tuple[str, ...]]] = {}  # Axes of the value of a ring.
    gives: ClassVar[dict[str, str]] = {}  # Results of terms and choices.
    is_user_defined: ClassVar[bool] = False
    signatures: ClassVar[dict[str, str]] = {}  # Stage -> signature of its method.
    replaces: ClassVar[dict[str, Collection[str]]] = {}  # Stage -> stages that do not run if a feature is at it.
    paper: ClassVar[str] = ''
    flags: ClassVar[dict[str, Flag]] = {}
    needs: ClassVar[dict[str, str]] = {}
    clashes: ClassVar[dict[str, str]] = {}
    overridden_by: ClassVar[tuple[str, ...]] = ()
    switches: ClassVar[tuple[str, ...]] = ()
    sets_on_module: ClassVar[tuple[str, ...]] = ()
    requires_flag: ClassVar[dict[str, str]] = {}
    enabled_by: ClassVar[tuple[str, ...]] = ()
    refuses: dict[str, str | tuple[str, str]] = {}  # noqa: RUF012  an instance may set others
    counts_tokens: ClassVar[bool] = False
    call_inputs: ClassVar[dict[str, Input]] = {}
    always: ClassVar[bool | None] = None
    stored_as: ClassVar[dict[str, str]] = {}
    runs_fused: ClassVar[bool | None] = False
    states: dict[str, Remembered] = {}  # noqa: RUF012  an instance may set others
    training_only: ClassVar[bool] = False
    tp_shards: ClassVar[dict[str, tuple[int, str]] | None] = None
    tp_input_shards: ClassVar[dict[str, str | tuple[str | None, ...]]] = {}
    same_in_layers: ClassVar[bool] = False
    on_step_end: ClassVar[Callable[..., None] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.is_user_defined = not cls.__module__.startswith(f'{PACKAGE}.')
        translate_declarations(cls)
        cls.__doc__ = cls.__doc__ or ''  # The docstring of its base class does not describe it.
        own = {n: replace(f, name=n, feature=cls) for n, f in vars(cls).items() if isinstance(f, Flag)}
        cls.flags = own or cls.flags
        for name in own:
            delattr(cls, name)
        cls.refuse_misspelt_stages()
        cls.refuse_other_signatures()
        check_states(cls.__name__, cls.states)

    @classmethod
    def refuse_misspelt_stages(cls) -> None:
        """Raise TypeError for a method named almost like a stage, which would never run."""
        methods = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
        for name in methods:
            if instead := cls.removed_stages.get(name):
                raise TypeError(f'{cls.__name__} has `{name}`, which is no stage any more: use {instead}')
            if name in cls.stages or any(hasattr(base, name) for base in cls.__mro__[1:]):
                continue
            if close := difflib.get_close_matches(name, cls.stages, n=1, cutoff=0.85):
                raise TypeError(f'{cls.__name__} has `{name}`, which is no stage, did you mean `{close[0]}`?')

    @classmethod
    def refuse_other_signatures(cls) -> None:
        """Raise TypeError for a method that cannot be called with the arguments of its stage."""
        for base in cls.__mro__:
            for stage in () if base is not cls and issubclass(base, Feature) else vars(base).keys() & cls.stages.keys():
                method, signature = vars(base)[stage], cls.signatures[stage]
                if not takes_arguments(method, number_of_arguments(signature)):
                    own = inspect.signature(getattr(cls, stage))
                    raise TypeError(f'{cls.__name__} has `{stage}{own}`, which its stage calls as {signature}')

    def __init__(self, owner: nn.Module, values: Mapping[str, Any]) -> None:
        owned: dict[str, tuple[str, ...]] = {}
        self.__dict__.update(owner=owner, owned=owned, **{name: values[name] for name in self.flags})

    def setup(self, owner: Any) -> None:
        """Create parameters and modules, and check sizes against those of the owner."""

    @classmethod
    def is_on(cls, values: Mapping[str, Any]) -> bool:
        """Return True if a switch is on; always, for a feature without flags."""
        if not cls.flags:
            return True
        switches = cls.switches or [next(iter(cls.flags))]
        return any(values[name] and values[name] != cls.flags[name].default for name in switches)

    @classmethod
    def overruled_by(cls, values: Mapping[str, Any]) -> str | None:
        """Return the flag that overrides this feature, or None."""
        return next((other for other in cls.overridden_by if values.get(other)), None)

    @classmethod
    def runs(cls, values: Mapping[str, Any]) -> bool:
        """Return True if the feature is switched on and not overridden."""
        return cls.is_on(values) and cls.overruled_by(values) is None

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[Feature]:
        """Return the class that is built: a subclass, if a flag chooses between several."""
        return cls

    @property
    def display_name(self) -> str:
        """Return the keyword that enables it: its switch, or its first input."""
        return next(iter((*self.flags, *self.call_inputs, type(self).__name__)))

    @property
    def waits(self) -> bool:
        """Return True if the feature has no effect in a call without any of its inputs."""
        return bool(self.call_inputs) and not (self.flags if self.always is None else self.always)

    def refuse(self, reasons: Mapping[str, str | tuple[str, str]]) -> None:
        """Add situations and reasons to `refuses` of this instance; '' removes a reason."""
        self.refuses = {**self.refuses, **reasons}

    def reason(self, situation: str) -> str:
        """Return why the feature cannot be used in a situation of `refuses`, or ''."""
        found = self.refuses.get(situation)
        if found is None:
            return _mixes_by_state(self.states) if situation in ('documents', 'some tokens') else ''
        return found if isinstance(found, str) else found[0]

    @classmethod
    def runs_at(cls) -> tuple[str, ...]:
        """Return the stages at which the class has methods."""
        names = class_names(cls)
        return tuple([stage for stage in cls.stages if stage in names and getattr(cls, stage) is not None])

    def active_stages(self) -> tuple[str, ...]:
        """Return the stages at which this feature runs in its module, some of `runs_at`."""
        return self.runs_at()

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_user_defined:
            name = RENAMED.get(name, name)
            if name in OLD_DECLARATIONS:
                translate_of_instance(self, name, value)
                return
        if not isinstance(value, (torch.Tensor, nn.Module)):
            self.__dict__[name] = value
            return
        *path, last = self.stored_as.get(name, name).split('.')
        keeper = functools.reduce(getattr, path, self.owner)
        if _has_attribute(keeper, last) and name not in self.owned:
            raise ConfigError(
                f'{type(self).__name__} would overwrite `{last}` of {type(keeper).__name__}: '
                f'give `{name}` another name in `stored_as`'
            )
        if isinstance(value, nn.Parameter | nn.Module) or name in self.owned:
            setattr(keeper, last, value)
        else:
            if keeper.__dict__.get(last, self) is None:  # Set by a feature that is off.
                del keeper.__dict__[last]
            saved = name in self.stored_as or (isinstance(value, nn.Buffer) and value.persistent)
            keeper.register_buffer(last, value, persistent=saved)
        self.owned[name] = (*path, last)

    def __getattr__(self, name: str) -> Any:
        if name in RENAMED and self.is_user_defined:
            return getattr(self, RENAMED[name])
        if name.startswith('__') or name in ('owned', 'owner') or name not in self.owned:
            raise AttributeError(f'{type(self).__name__} has no attribute {name!r}')
        found = self.owner
        for part in self.owned[name]:
            found = getattr(found, part)
        return found


# Names by class, with the numbers of names in it and its bases then: more may be added later.
NAMES: WeakKeyDictionary[type, tuple[list[int], frozenset[str]]] = WeakKeyDictionary()


def _has_attribute(keeper: Any, name: str) -> bool:
    """Return True if an object has an attribute without its `__getattr__`."""
    own = {**vars(keeper), **getattr(keeper, '_parameters', {}), **getattr(keeper, '_buffers', {})}
    own |= getattr(keeper, '_modules', {})
    return own[name] is not None if name in own else getattr(type(keeper), name, None) is not None


def class_names(cls: type) -> frozenset[str]:
    """Return the names in a class and its bases. Asking each class for each name would take ten times as long."""
    sizes = [len(vars(base)) for base in cls.__mro__]
    known = NAMES.get(cls)
    if known is None or known[0] != sizes:
        known = NAMES[cls] = sizes, frozenset().union(*(vars(base) for base in cls.__mro__))
    return known[1]


def check_states(name: str, states: Any, argument: str = 'states') -> None:
    """Raise ConfigError for declarations of states that the cache cannot store under their names."""
    for key, kind in states.items() if isinstance(states, Mapping) else [(None, states)]:
        if not isinstance(key, str) or not key or {'.', ':'} & {*key} or not isinstance(kind, Remembered):
            raise ConfigError(
                f'`{argument}` of {name} must map names, without dots and colons, to PerToken(), RecurrentState() or '
                f'Ring(w), got {format_value(states)}'
            )


def _collect_states(features: Iterable[Feature]) -> dict[str, Remembered]:
    """Return the states of the features of one module, by name.  Raises ConfigError for a name used twice."""
    owners: dict[str, Feature] = {}
    for feature in features:
        check_states(type(feature).__name__, feature.states)
        for name in feature.states:
            other = owners.setdefault(name, feature)
            if other is not feature or name in getattr(feature.owner, 'own_states', ()):
                sides = [next(iter(one.flags), type(one).__name__) for one in (other, feature)]
                rival = f'`{sides[1]}`' if other is not feature else 'its owner'
                reason = f'must not both have a state `{name}`: rename it in `states`'
                raise ConfigError(f'`{sides[0]}` and {rival} {reason}')
    return {name: feature.states[name] for name, feature in owners.items()}


# Stages of attention that decide which keys are visible, and stages that the fused kernel does not run.
SETTLING = ('prepend_kv', 'mask', 'bias', 'pre_attention')
EAGER_STAGES = (
    'scores', 'logits', 'score_mask', 'masked_scores', 'normalizer', 'wrap_normalizer', 'weights', 'mixed_weights',
    'weighted_values',
)  # fmt: skip


def _bind_stage(feature: Feature, stage: str, kind: str) -> Callable[..., Any]:
    """Return the method of a feature at a stage, wrapped in its contract if the feature is a user's."""
    if not feature.is_user_defined:
        return getattr(feature, stage)
    return functools.partial(run_transform if kind in ('ring', 'build') else run_override, feature, stage)


class Features(HasOldNames):
    """Active features of one module.

    Each stage of their level is an attribute, bound when the features are arranged. A ring is a tuple of transforms in
    running order, so that `for transform in features.qkv_heads` runs it, and a term a tuple of functions; both are
    empty if no feature acts there. A choice is one function, or None.
    """

    old_names: ClassVar[dict[str, str]] = {
        'acting': 'active_for',
        'at': 'by_stage',
        'chain': 'apply',
        'only': 'filter',
        'pick': 'select',
        'apply_reversed': 'apply',
        'unwind': 'apply',
    }

    stage_names: ClassVar[frozenset[str]] = frozenset()  # Stages of all levels.
    operators: Any = None  # Operators of the layer, and those that support these features, after its first call.

    if TYPE_CHECKING:
        # Stages of the level.
        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        owner: nn.Module,
        catalogue: Iterable[type[Feature]],
        features: Iterable[type[Feature]],
        values: Mapping[str, Any],
        twin: Features | None = None,
    ) -> None:
        """Create the features. `twin` are those of another module, of the same classes."""
        self.catalogue = tuple(catalogue)
        self.active = tuple([cls(owner, values) for cls in features])
        self.states: dict[str, Remembered] = {}
        self.known_calls: dict[tuple[str, ...], Features] = {}
        if twin is None:
            self.arrange()
        else:
            self.copy_arrangement(twin)

    def arrange(self) -> None:
        """Collect the features of each stage, and the inputs of all."""
        at: dict[str, list[Feature]] = {}
        for feature in self.active:
            for stage in feature.active_stages():
                at.setdefault(stage, []).append(feature)
        self.by_stage = {stage: tuple(features) for stage, features in at.items()}
        self.bind()
        self.call_inputs = frozenset(name for feature in self.active for name in feature.call_inputs)
        self.input_checkers = {
            n: feature for feature in self.active for n, of in feature.call_inputs.items() if of.check is not None
        }
        self.optional_inputs = frozenset(
            name for feature in self.active if feature.waits for name in feature.call_inputs
        )
        self.known_calls = {}

    def bind(self) -> None:
        """Set the attributes of the stages at which features act."""
        own = vars(self)
        for name in own.keys() & self.stage_names:
            del own[name]
        for stage, features in self.by_stage.items():
            kind = features[0].stages[stage]
            in_order = features[::-1] if stage in features[0].reversed_stages else features
            bound = tuple([_bind_stage(feature, stage, kind) for feature in in_order])
            own[stage] = bound[0] if kind == 'choice' else bound

        settling = [feature for stage in SETTLING for feature in self.by_stage.get(stage, ())]
        self.settles, self.scores_needed = bool(settling), not self.by_stage.keys().isdisjoint(EAGER_STAGES)
        self.operators, self.has_user_features = None, any([feature.is_user_defined for feature in self.active])
        self.settles_alike = all([feature.same_in_layers for feature in settling])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickle without bound methods: they bind their own."""
        return {name: value for name, value in vars(self).items() if name not in {*self.stage_names, 'operators'}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.bind()

    def copy_arrangement(self, twin: Features) -> None:
        """Arrange the features like those of a twin, which is faster than asking their classes."""
        own = dict(zip(twin.active, self.active, strict=True))
        self.by_stage = {
            stage: tuple([own[feature] for feature in features]) for stage, features in twin.by_stage.items()
        }
        self.bind()
        self.input_checkers = {name: own[feature] for name, feature in twin.input_checkers.items()}
        self.call_inputs, self.optional_inputs = twin.call_inputs, twin.optional_inputs

    def list_switched(self, prefix: str = '') -> list[str]:
        """Return the switches of features that change the result, with a prefix."""
        found = []
        for feature in self.active:
            switches = () if feature.training_only else feature.switches or tuple(feature.flags)[:1]
            found += [
                prefix + n for n in switches if n in feature.flags and getattr(feature, n) != feature.flags[n].default
            ]
        return found

    def active_for(self, inputs: Mapping[str, Any]) -> Features:
        """Return the features that act in a call with these inputs."""
        if not self.optional_inputs or torch.compiler.is_compiling():
            return self
        names: tuple[str, ...] = ()
        for name, value in inputs.items():
            if value is not None and name in self.optional_inputs:
                names = (*names, name)
        return self.known_calls.get(names) or self._find_active(names)

    def _find_active(self, names: tuple[str, ...]) -> Features:
        """Find the features that act with the inputs of these names, and keep them for later calls."""
        acting = self.filter(lambda feature: not feature.waits or not feature.call_inputs.keys().isdisjoint(names))
        self.known_calls[names] = acting
        return acting

    def filter(self, wanted: Callable[[Feature], bool]) -> Features:
        """Return the features for which `wanted` is True."""
        new = copy.copy(self)
        new.active = tuple([feature for feature in self.active if wanted(feature)])
        new.arrange()
        return new

    def add_feature(self, feature: Feature) -> Features:
        """Return the features and another one that has been set up, in the order of the catalogue."""
        place = {cls: at for at, cls in enumerate(self.catalogue)}
        new = copy.copy(self)
        order = ((next((place[cls] for cls in type(f).__mro__ if cls in place), len(place)), f)
                 for f in (*self.active, feature))  # fmt: skip
        new.active = tuple(f for _, f in sorted(order, key=lambda one: one[0]))
        new.arrange()
        return new

    def setup(self) -> Features:
        """Set up all features, which creates their parameters."""
        for feature in self.active:
            feature.setup(feature.owner)
        self.states = _collect_states(self.active)
        return self

    def rebind(self, owner: Any, values: Mapping[Feature, dict[str, Any]] | None = None) -> Features:
        """Return copies of the features with another owner, and with other attributes, if given."""
        new = copy.copy(self)
        moved = {}
        for feature in self.active:
            moved[feature] = object.__new__(type(feature))
            moved[feature].__dict__.update((values or {}).get(feature, feature.__dict__), owner=owner)
        new.active = tuple(moved[feature] for feature in self.active)
        new.arrange()
        return new

    def apply(self, stage: str, value: Any, *call: Any) -> Any:
        """Return a value transformed by all features at a ring, in running order."""
        for transform in getattr(self, stage):
            value = transform(value, *call)
        return value

    def terms(self, stage: str, *call: Any) -> list[tuple[Feature, Any]]:
        """Return the features at a stage with their terms, without None."""
        pairs = zip(self.by_stage.get(stage, ()), getattr(self, stage), strict=True)
        return [(feature, term) for feature, make in pairs if (term := make(*call)) is not None]

    def collect(self, stage: str, *call: Any) -> list[Any]:
        """Return the terms of a stage, without None."""
        return [term for make in getattr(self, stage) if (term := make(*call)) is not None]

    def select(self, stage: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """Return the choice of a feature at a stage, or the default."""
        return getattr(self, stage) or default

    def find(self, kind: type[Feature]) -> Any:
        """Return the active feature of a class, or None."""
        return next((feature for feature in self.active if isinstance(feature, kind)), None)

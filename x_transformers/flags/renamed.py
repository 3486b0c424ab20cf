"""Names that declarations of features had in earlier versions. Features of users may use them for one minor version."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from x_transformers.flags.checks import Input, warn_once


def situation(name: str) -> Callable[[Any], tuple[str, dict[str, Any]]]:
    """Return a translation of a reason: an entry of `refuses`."""
    return lambda value: (f"`refuses = {{'{name}': reason}}`", {} if value is None else {name: value})


def _ability(name: str, reason: str) -> Callable[[Any], tuple[str, dict[str, Any]]]:
    """Return a translation of an ability that is False: an entry of `refuses` with a general reason."""
    return lambda value: (f"`refuses = {{'{name}': reason}}`", {name: '' if value else reason})


# Old name -> a function of its value: the new spelling, and entries of `refuses`.
IN_REFUSES: dict[str, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    'not_across': situation('cross-attention'),
    'looks_ahead': situation('causal'),
    'joins_tokens': situation('documents'),
    'needs_all': situation('some tokens'),
    'uncut': situation('several devices'),
    'can_cache': _ability('cache', 'it cannot be cached'),
    'can_cache_in_training': _ability('cache in training', 'it cannot be cached in training'),
    'can_pad_left': _ability('left padding', 'its sequences cannot be padded on the left'),
    'not_in_stack': lambda value: ('`refuses = {flag: reason}`', dict(value)),
}
# Old name -> a declaration of today, and its value where the old one was True.
AS_VALUES: dict[str, tuple[str, Any]] = {
    'begins_anew': ('counts_from', 'segment'),
    'bounded': ('counts_from', 'segment'),
    'falls_back': ('runs_fused', None),
    'from_first': ('counts_from', 'call'),
    'needs_no_depth': ('keeps_blocks', None),
    'reads_positions': ('gives_positions', None),
}
# Old name -> new name, of declarations whose values are the same.
RENAMED: dict[str, str] = {
    'serves': 'enabled_by',
    'yields_to': 'overridden_by',
    'options': 'requires_flag',
    'only_trains': 'training_only',
    'fuses': 'runs_fused',
    'keys_may_leave': 'allows_eviction',
    'limits_sight': 'limits_window',
    'is_band': 'is_window',
    'counts_hidden': 'needs_masked_keys',
    'settles': 'sets_on_module',
    'keeps_plain_keys': 'keeps_unrotated_keys',
    'takes': 'call_inputs',
    'cuts': 'tp_shards',
    'input_cuts': 'tp_input_shards',
    'remembers': 'states',
    'host': 'owner',
    'stepped': 'on_step_end',
}
OLD_DECLARATIONS = {*IN_REFUSES, *AS_VALUES, 'idle_beside', 'must_be', 'waits', 'looks_ahead_by'}


def translate_declarations(cls: Any) -> None:
    """Translate the declarations of earlier versions in a user's class, with one warning.

    Raises TypeError for a property of such a name, which cannot be translated.
    """
    if not cls.is_user_defined:
        return
    _rename_members(cls)
    own = vars(cls)
    old = [name for name in own if name in OLD_DECLARATIONS and not callable(own[name])]
    spelled = [_translate_one(cls, name) for name in old if name in IN_REFUSES]
    _translate_inputs(cls, old, spelled)
    for name in old:
        if name in AS_VALUES and own[name] is True:
            new, value = AS_VALUES[name]
            setattr(cls, new, value)
            spelled.append(f'`{name}`, which is now `{new} = {value!r}`')
    if others := own.get('idle_beside'):
        cls.requires_flag = {**cls.requires_flag, **{name: f'not {other}' for name, other in others.items()}}
        spelled.append("`idle_beside`, which is now `requires_flag = {flag: 'not other'}`")
    if by := own.get('looks_ahead_by'):
        cls.refuses = {**cls.refuses, 'causal': (cls.refuses.get('causal', ''), by)}
    for name in old:
        delattr(cls, name)
    if spelled:
        warn_once(f'{cls.__name__} declares {", ".join(spelled)}')


def _rename_members(cls: Any) -> None:
    """Rename the stages and declarations of earlier versions, with one warning."""
    own = dict(vars(cls))
    for base in cls.__mro__[1:]:  # Mixins.
        own = own if hasattr(base, 'renamed_stages') else {**vars(base), **own}
    stages = {old: new for old, new in cls.renamed_stages.items() if callable(getattr(cls, old, None)) and old in own}
    found = stages | {old: new for old, new in RENAMED.items() if old in vars(cls)}
    for old, new in found.items():
        setattr(cls, new, own[old])
        if old in vars(cls):
            delattr(cls, old)
    if found:
        warn_once(f'{cls.__name__} has {", ".join(f"`{old}`, which is now `{new}`" for old, new in found.items())}')


def _translate_one(cls: Any, name: str) -> str:
    """Move the value of an earlier declaration to `refuses`, and return the part of the warning."""
    value = vars(cls)[name]
    if isinstance(value, property):
        spelling = IN_REFUSES[name]({} if name == 'not_in_stack' else None)[0]
        raise TypeError(
            f'{cls.__name__} has a property `{name}`, which is now {spelling}: call `self.refuse` in `setup`'
        )
    spelling, reasons = IN_REFUSES[name](value)
    cls.refuses = {**cls.refuses, **reasons}
    return f'`{name}`, which is now {spelling}'


def _translate_inputs(cls: Any, old: list[str], spelled: list[str]) -> None:
    """Join texts in `takes`, checks in `must_be`, and `waits`, in `call_inputs` and `always`."""
    own = vars(cls)
    checks, waits = own.get('must_be', {}), own.get('waits')
    takes = cls.call_inputs
    if not (any(isinstance(value, str) for value in takes.values()) or 'must_be' in old or 'waits' in old):
        return
    if isinstance(waits, property):
        raise TypeError(f'{cls.__name__} has a property `waits`, which is now a property `always`, its opposite')
    known = {name: Input(value) if isinstance(value, str) else value for name, value in takes.items()}
    cls.call_inputs = {name: Input(own.axes, checks.get(name, own.check)) for name, own in known.items()}
    cls.always = not waits
    spelled.append('`takes` of texts, which is now `call_inputs = {name: Input(axes, check)}`, and `always`')


def translate_of_instance(feature: Any, name: str, value: Any) -> None:
    """Translate a declaration of an earlier version that a feature sets in `setup`."""
    if name in AS_VALUES:
        new, renamed = AS_VALUES[name]
        warn_once(f'{type(feature).__name__} sets `{name}`, which is now `{new} = {renamed!r}`')
        if value:
            setattr(feature, new, renamed)
        return
    if name not in IN_REFUSES:
        raise TypeError(
            f'{type(feature).__name__} sets `{name}` in `setup`: declare `call_inputs` and `always` in the class'
        )
    spelling, reasons = IN_REFUSES[name](value)
    warn_once(f'{type(feature).__name__} sets `{name}`, which is now {spelling}: call `self.refuse` in `setup`')
    feature.refuse(reasons)


class HasOldNames:
    """Base of classes whose attributes can be read by names of earlier versions, for one minor version."""

    old_names: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            new = type(self).old_names.get(name)
            if new is None:
                raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
            warn_once(f'`{name}` of a {type(self).__name__} is now `{new}`')
            return getattr(self, new)


def old_functions(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module that finds its functions by names of earlier versions."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f'module {module!r} has no attribute {name!r}')
        warn_once(f'`{module}.{name}` is now `{names[name]}`')
        return getattr(sys.modules[module], names[name])

    return find

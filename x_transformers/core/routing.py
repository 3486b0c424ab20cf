"""Keywords with a prefix: from the call that builds a stack to the branches that they address.

`ff_` addresses every feedforward, `attn_` every self-attention and, as defaults, every cross-attention, which
`cross_attn_` addresses alone. `PerLayer(...)`, with one value per layer of a kind, gives each layer its own; so does a
tuple, where the flag itself takes no tuple. Values of the layers of self-attention are no defaults for those of
cross-attention, unless there are no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from x_transformers.core.checks import as_mask
from x_transformers.flags import (
    ConfigError,
    Configurable,
    Feature,
    Features,
    Flag,
    PerLayer,
    advice,
    catalogue_for,
    get_flags,
    known_features,
    warn_once,
)

# arguments of a branch that the stack settles itself
SETTLED = {
    'f': ('dim', 'dim_out'),
    'c': (
        'dim', 'dim_out', 'heads', 'causal', 'learned_value_residual_mix', 'rotate_num_heads', 'rotary_factor',
        'qkv_receive_diff_residuals',
    ),
}  # fmt: skip
SETTLED['a'] = (*SETTLED['c'], 'dim_context')
PREFIXES = {'ff_': 'f', 'cross_attn_': 'c', 'attn_': 'a'}


class FlagRouting(Configurable):
    """A stack whose keywords reach its branches by their prefix. `branches` names the class of each kind."""

    branches: ClassVar[dict[str, type[Configurable]]]

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        routed = {}
        for prefix, kind in PREFIXES.items():
            flags = cls.branches[kind].accepted()
            routed |= {prefix + name: flag for name, flag in flags.items() if name not in SETTLED[kind]}
        return {**super().accepted(), **routed}

    def _compose(self, features: Sequence[type[Feature]] | None, flags: Mapping[str, Any]) -> Features:
        """Return the features, without those whose flags no branch has."""
        active = super()._compose(features, flags)
        served = {name for feature in active.active for name in feature.enabled_by}
        given = [(name, value) for own in self.branch_flags.values() for name, value in own.items() if name in served]
        each = [(name, value if isinstance(value, tuple) else (value,)) for name, value in given]
        wished = {name for name, values in each if any(one is not None and one is not False for one in values)}
        return active.filter(lambda feature: not feature.enabled_by or not wished.isdisjoint(feature.enabled_by))

    def _route(self, flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Split keywords into those of the stack, and those of its branches by kind."""
        own: dict[str, Any] = {}
        branch: dict[str, dict[str, Any]] = {'a': {}, 'c': {}, 'f': {}}
        accepted, stack_flags = self.accepted(), get_flags(catalogue_for(self.catalogue, self.given_features))
        strangers = {kind: self._strangers(cls.catalogue) for kind, cls in self.branches.items()}
        for name, value in flags.items():
            prefix = next((p for p in PREFIXES if name.startswith(p)), '')
            kind, bare = PREFIXES.get(prefix), name.removeprefix(prefix)
            if name in stack_flags:
                own[name] = value
            elif kind is not None and (name in accepted or bare in strangers[kind]):
                branch[kind][bare] = value
            elif name in strangers['a'] or name in strangers['f']:
                branch['a' if name in strangers['a'] else 'f'][name] = value
            else:
                raise ConfigError(f'unknown keyword `{name}` of {type(self).__name__}{self._hint(name, value)}')
        if branch['c'] and not self.cross_attend:
            warn_once(f'`cross_attn_{next(iter(branch["c"]))}` has no effect unless `cross_attend` is set')
        return own, branch

    def _strangers(self, level: tuple[type[Feature], ...]) -> set[str]:
        """Return the flags of a user's features of a level; on a stack they need no prefix."""
        return set(get_flags(catalogue_for(level, self.given_features))) - set(get_flags(level))

    def _hint(self, name: str, value: Any) -> str:
        """Return a hint about an unknown keyword."""
        if name in Configurable.kinds['TransformerWrapper'].accepted():
            return f': it belongs to the wrapper, TransformerWrapper({name}=...)'
        known = {**self.accepted(), **get_flags(self.given_features or ())}
        prefixed = [p + name for p in ('attn_', 'ff_') if p + name in known]
        if prefixed:
            return f', did you mean {" or ".join(f"`{p}`" for p in prefixed)}? Flags of a branch take its prefix'
        return advice(name, known, value, type(self))

    def flags_for(self, kind: str, number: int) -> dict[str, Any]:
        """Return the keywords of the n-th branch of a kind, with its own of values per layer."""
        layers = self.layer_types.count(kind)
        flags = self.branch_flags[kind]
        if not flags and kind != 'c':
            return {}
        level = self.branches[kind].catalogue
        declared = {**self.branches[kind].accepted(), **get_flags(catalogue_for(level, self.given_features))}
        if kind == 'c':
            own, alone = self.branch_flags['a'].items(), 'a' not in self.layer_types
            flags = {**{n: v for n, v in own if alone or per_layer(v, declared.get(n)) is None}, **flags}
        values = {}
        for name, value in flags.items():
            shares = per_layer(value, declared.get(name))
            if shares is not None and len(shares) != layers:
                title = self.written(kind, name)
                raise ConfigError(
                    f'`{title}` must have one value, or one for each of {layers} layers, got {len(shares)}'
                )
            values[name] = value if shares is None else shares[number]
        shared_out = {name for name, value in flags.items() if per_layer(value, declared.get(name)) is not None}
        return {
            n: v
            for n, v in values.items()
            if n in shared_out or not _warn_of_idle_flags(declared.get(n), values, shared_out)
        }

    def written(self, kind: str, name: str) -> str:
        """Return a keyword of a branch as the user wrote it on the stack."""
        if name in SETTLED[kind]:
            return name
        if kind == 'f':
            return f'ff_{name}'
        return f'cross_attn_{name}' if kind == 'c' and name in self.branch_flags['c'] else f'attn_{name}'

    def all_written(self, kind: str) -> Iterator[tuple[str, str]]:
        """Return all keywords of a branch with their form on the stack."""
        level = self.branches[kind].catalogue
        names = {**self.branches[kind].arguments(), **get_flags((*level, *(self.given_features or ())))}
        return ((name, self.written(kind, name)) for name in names)


def per_layer(value: Any, declared: Flag | None) -> tuple[Any, ...] | None:
    """Return values per layer, if `value` is `PerLayer`, or a tuple that the flag itself does not accept."""
    if isinstance(value, PerLayer):
        return value.values
    takes_it = declared is None or declared.check is None or declared.check.test(value)
    return value if isinstance(value, tuple) and not takes_it else None


def _warn_of_idle_flags(declared: Flag | None, values: Mapping[str, Any], shared_out: set[str]) -> bool:
    """Return True if a flag needs no warning: its feature is off in this layer alone, by a tuple."""
    feature = None if declared is None else declared.feature
    if feature is None or next(iter(feature.flags)) not in shared_out:
        return False
    return not feature.is_on({**{name: flag.default for name, flag in feature.flags.items()}, **values})


# encoder and decoder in one model


def model_flags(stack: type[FlagRouting], wrapper: type[Configurable]) -> dict[str, Any]:
    """Return the keywords of a token model around a kind of stack, without those that it fixes."""
    settled = ('attn_layers', 'dim', 'cross_attend', 'only_cross', 'return_only_embed')
    both = {**stack.accepted(), **wrapper.accepted()}
    return {name: flag for name, flag in both.items() if name not in settled}


def split_model_flags(flags: dict[str, Any], wrapper: type[Configurable]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the keywords of a model into those of the wrapper and those of its stack; both get `features`."""
    features = flags.get('features')
    known = {**wrapper.accepted(), **get_flags(catalogue_for(wrapper.catalogue, features))}
    both = {} if features is None else {'features': features}
    return (
        {**{n: v for n, v in flags.items() if n in known}, **both},
        {**{n: v for n, v in flags.items() if n not in known}, **both},
    )


def flags_of_strangers(features: Sequence[type[Feature]] | None) -> set[str]:
    """Return how the flags of a user's features may be written on a model: bare, or with the prefix of a branch."""
    names = get_flags(known_features(features))
    return {prefix + name for prefix in ('', *PREFIXES) for name in names}


def renamed_mask(mask: Any, src_mask: Any) -> Any:
    """Return the mask of the source, by its present or its old name."""
    if src_mask is None:
        return mask
    if mask is not None:
        raise ValueError('`mask` and `src_mask` were both given: `src_mask` is the old name of `mask`')
    warn_once('`src_mask` is now `mask`, the old name will be removed')
    return src_mask


def hidden_targets(tgt: Tensor, tgt_mask: Any, ignore_index: int) -> tuple[Tensor, dict[str, Any]]:
    """Return the target (b m) without a loss where its old mask (b m) is False, and the mask for the decoder."""
    if tgt_mask is None:
        return tgt, {}
    warn_once('`tgt_mask` will be removed: set `tgt` to `ignore_index` where there is no target')
    mask = as_mask(tgt_mask, 'tgt_mask', *tgt.shape, like=tgt)
    return tgt.long().masked_fill(~mask, ignore_index), {'mask': mask}

"""Modules of users in places where the library has its own, stacks included.

A stack of a user's is any module with a width `dim` that is called with x (b, n, dim). Wrappers read sizes and flags of
their stack: `OwnStack` gives what the module does not have the value of a plain stack of one layer that is not causal
and has no cache.

Layers of a stack of ours may be replaced by plain lists of three parts, (norms, branch, residual), more of them
inserted, or the whole list assigned, at any time between two calls: `get_layers` returns the layers that run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.routing import FlagRouting
from x_transformers.flags import Check, ConfigError, Features, format_value, is_int

OWN = __name__.partition('.')[0]
KNOWN = (OWN, 'torch')
# what brings the input of a wrapper to its stack, under the names of all wrappers
EMBEDS = ('token_emb', 'embeds', 'project_in', 'pos_emb', 'post_emb_norm', 'emb_dropout', 'project_emb')


def is_of_others(module: Any) -> bool:
    """Return True if a module, or one inside of it, runs code that is neither of this library nor of torch."""
    if not isinstance(module, nn.Module):
        return False
    package = type(module).__module__.partition('.')[0]
    if package not in KNOWN or 'forward' in module.__dict__:
        return True
    return package != OWN and any(map(is_of_others, module._modules.values()))  # a class of ours knows what it calls


def embeds_with_others(model: nn.Module) -> bool:
    """Return True if what a token becomes may follow from those around it, since modules of others embed it.

    They are given all tokens that the caller gave, cached ones too, of which the last are kept: they need not know of
    a cache.
    """
    own = model._modules
    return any(is_of_others(own[name]) for name in EMBEDS if own.get(name) is not None)


# keywords by which branches of the library are told what those of others cannot know
OURS = frozenset({'clean', 'index', 'at', 'keep_maps', 'kept_angles', 'shift_mask', 'shift_within', 'recall', 'layer',
                  'kind', 'stack'})  # fmt: skip


def filter_inputs(branch: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for a branch: for a user's, without those of the library that it does not take."""
    if not is_of_others(branch):
        return inputs
    known = _keywords_of_module(branch)
    if known is None:
        return inputs
    return {name: value for name, value in inputs.items() if name in known or name not in OURS}


def _keywords_of_module(module: nn.Module) -> frozenset[str] | None:
    """Return the names that the `forward` of a module takes by keyword, its own or that of its class; None for any."""
    own = module.__dict__.get('forward')
    return _get_keywords(type(module).forward if own is None else own)


def _get_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names that a function takes by keyword; None for any."""
    # The compiler of torch warns of `functools.cache`, and traces into what it wraps.
    if function in KEYWORDS:
        return KEYWORDS[function]
    found = _read_keywords(function)
    with contextlib.suppress(TypeError):  # of what takes no weak reference, such as a builtin
        KEYWORDS[function] = found
    return found


KEYWORDS: WeakKeyDictionary[Callable[..., Any], frozenset[str] | None] = WeakKeyDictionary()


def _read_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return what `_get_keywords` keeps, from the signature."""
    known = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in known):
        return None
    return frozenset(p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def inputs_taken_by(module: nn.Module, inputs: dict[str, Any], idle: Iterable[Any] = (None,)) -> dict[str, Any]:
    """Return the keywords for a module of a user's: without those that say nothing, if its `forward` lacks them."""
    known = _keywords_of_module(module)
    if known is None:
        return inputs
    idle = tuple(idle)
    return {name: value for name, value in inputs.items() if name in known or not any(value is one for one in idle)}


PLAIN = dict(
    depth=1, causal=False, cross_attend=False, disable_abs_pos_emb=False, attn_heads=1, attn_dim_head=64,
    layer_types=(), layers_execute_order=(), len_default_block=1, has_custom_layer_types=True, masks_pairs=False,
    weight_tie_layers=False,
)  # fmt: skip


class AcceptsAnything:
    """Set of all names: the inputs of a module that takes any keyword."""

    def __contains__(self, name: str) -> bool:
        return True


class LacksLayers(ConfigError, AttributeError):
    """Error for an attribute that only stacks of the library have. It counts as a missing attribute too."""


class OwnStack:
    """View of a module of a user's, as wrappers read their stack.

    A module that does nothing but call one stack of ours, as a checkpoint does, is what that stack is.
    """

    can_cache_kv = can_cache_kv_in_training = False

    def __init__(self, module: nn.Module) -> None:
        self.module, self.features = module, Features(module, (), (), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        if hasattr(self.module, name):
            return getattr(self.module, name)
        if name == 'dim_context':
            return self.dim
        if name in PLAIN:
            return PLAIN[name]
        raise LacksLayers(
            f'`attn_layers` is {type(self.module).__name__}, a stack of your own, which has no `{name}`: what was '
            'asked for needs a stack of the library'
        )

    @property
    def sees_future(self) -> bool:
        return not self.causal

    @property
    def input_names(self) -> Any:
        names = _keywords_of_module(self.module)
        return AcceptsAnything() if names is None else names

    def accepted(self) -> dict[str, Any]:
        return {}


def inner_stack(module: Any) -> FlagRouting | None:
    """Return the stack of ours that a module only calls, None if it has other children or parameters."""
    if isinstance(module, FlagRouting):
        return module
    if not isinstance(module, nn.Module) or module._parameters or len(module._modules) != 1:
        return None
    return inner_stack(next(iter(module._modules.values())))


def known_stack(module: Any) -> Any:
    """Return a stack with all that wrappers read of it: itself, the one that it calls, or a view of a user's."""
    return inner_stack(module) or OwnStack(module)


def overrides_forward(module: Any) -> bool:
    """Return True if a class of a user's derives from a stack of ours and has a `forward` of its own."""
    stack = inner_stack(module)
    return stack is not None and has_own_forward(stack)


def has_own_forward(module: Any) -> bool:
    """Return True if the `forward` of a module is a user's."""
    forward = getattr(type(module), 'forward', None)
    if forward is None or type(module).__module__.startswith('torch.'):  # as what torch compiles
        return False
    return 'forward' in module.__dict__ or forward.__module__.partition('.')[0] != OWN


def reads_whole(model: Any) -> bool:
    """Return True if code of others embeds tokens or runs the layers, and is given all tokens beside a cache."""
    return embeds_with_others(model) or overrides_forward(model.attn_layers)


def gets_whole_input(net: Any) -> bool:
    """Return True if a net is called with all tokens beside a cache, as code of others in it may need.

    A net may say so itself by an attribute `reads_whole`, or take `input_not_include_cache` by name.
    """
    if hasattr(type(net), 'reads_whole') or 'reads_whole' in net.__dict__:
        return net.reads_whole is True
    if has_own_forward(net):
        return 'input_not_include_cache' not in (_keywords_of_module(net) or ())
    return getattr(net, 'reads_whole', False) is True


def is_own(module: Any) -> bool:
    return inner_stack(module) is None


def refuse_own_stack(module: Any, name: str, reason: str) -> None:
    """Refuse what a wrapper can do with a stack of ours only.  Raises ConfigError."""
    if is_own(module):
        kind = type(module).__name__
        raise ConfigError(f'`{name}` cannot be combined with {kind}, a stack of your own, as `attn_layers`: {reason}')


def run_stack(
    module: Any, x: Tensor, keeps: str | None, inputs: Mapping[str, Any]
) -> tuple[Tensor, LayerIntermediates]:
    """Call a stack. Return its output, and what its layers leave behind: 'all', what a cache needs with 'past', or
    empty intermediates."""
    if isinstance(module, FlagRouting):
        asked = 'past' if keeps == 'past' and not has_own_forward(module) else bool(keeps)
        out = module(x, return_hiddens=asked, **inputs)
        return out if keeps else (out, LayerIntermediates())
    return _run_other_stack(module, x, keeps, inputs)


def _run_other_stack(
    module: Any, x: Tensor, keeps: str | None, inputs: Mapping[str, Any]
) -> tuple[Tensor, LayerIntermediates]:
    """Call a stack that is no `AttentionLayers`, with those keywords that it takes."""
    inputs = {**inputs, 'return_hiddens': bool(keeps)}
    if is_own(module):
        inputs |= dict(cache=None, input_not_include_cache=False)
    out: Any = module(x, **_accepted_by(module, inputs))
    intermediates: Any
    out, intermediates = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    if intermediates is not None and not isinstance(intermediates, LayerIntermediates):
        raise TypeError(
            f'`attn_layers` gave {format_value(intermediates)} beside its output, it must be LayerIntermediates'
        )
    if intermediates is None:
        intermediates = LayerIntermediates(hiddens=[], last_hidden=out, attn_intermediates=[], layer_hiddens=[])
    return out, intermediates


def _accepted_by(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a call, without those that say nothing and that the module does not take."""
    names = _keywords_of_module(module)
    if names is None:
        return inputs
    idle = [name for name, value in inputs.items() if name not in names and (value is None or value is False)]
    idle += ['return_hiddens'] if 'return_hiddens' not in names else []
    return {name: value for name, value in inputs.items() if name not in idle}


def _is_stack(value: Any) -> bool:
    return isinstance(value, nn.Module) and is_int(getattr(known_stack(value), 'dim', None))


a_stack = Check(
    'an instance of AttentionLayers, or a module with a width `dim` that maps b n dim to b n dim', _is_stack
)


# Layers.


class LayerSlots(tuple):
    """Layer that was given as three parts:  (norms, branch, residual).

    A subclass adds the methods by which a layer runs. It is no module: the parts belong to the list of the user.
    """

    kind: str
    index: int
    _forward_hooks = _forward_pre_hooks = _backward_hooks = _backward_pre_hooks = ()

    @property
    def _modules(self) -> dict[int, Any]:
        """Return the parts as a `ModuleList` has them."""
        return dict(enumerate(self))

    def modules(self) -> Iterator[nn.Module]:
        norms, *others = self
        for part in (*norms, *others):
            if isinstance(part, nn.Module):
                yield from part.modules()

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(dict.fromkeys(p for module in self.modules() for p in module._parameters.values() if p is not None))


def _is_list(value: Any) -> bool:
    return isinstance(value, (tuple, list, nn.ModuleList))


def _get_parts(value: Any, index: int) -> tuple[Any, Any, Any]:
    """Return the norms, the branch and the residual of what is in the place of a layer.

    raises   ConfigError for anything but three parts, the first of them three norms, each callable or None
    """
    parts = tuple(value)
    norms = tuple(parts[0]) if len(parts) == 3 and _is_list(parts[0]) else ()
    known = len(norms) == 3 and all(norm is None or callable(norm) for norm in norms)
    if not known or not all(map(callable, parts[1:])):
        raise ConfigError(
            f'`layers[{index}]` must be (norms, branch, residual), where the norms are three, each a module or None: '
            f'before the branch, after it and after the residual; got {format_value(value)}'
        )
    return norms, *parts[1:]


def get_layers(given: Sequence[Any], kinds: Sequence[str], layer: type, parts: type[LayerSlots]) -> tuple[Any, ...]:
    """Return the layers that run: the `layer`s of a stack as they are, and plain lists as `parts`.

    Index and kind follow the lists that were assigned: a layer that was moved becomes one of its new index. A module
    that wraps a whole layer stays as it is.
    """
    if len(given) != len(kinds):
        check_places((), len(given), len(kinds))
    return tuple([
        one
        if (isinstance(one, layer) and one.kind == kind and one.index == index) or not _is_list(one)
        else _rebuild_layer(one, kind, index, layer, parts)
        for index, (one, kind) in enumerate(zip(given, kinds, strict=False))
    ])  # fmt: skip


def _rebuild_layer(one: Any, kind: str, index: int, layer: type, parts: type[LayerSlots]) -> Any:
    if isinstance(one, layer):  # with its hooks
        own: Any = type(one)
        new = own.__new__(own)
        new.__dict__.update(one.__dict__)
    else:
        norms, *others = _get_parts(one, index)
        new = parts((LayerSlots(norms), *others))
    new.__dict__.update(kind=kind, index=index)
    return new


def check_places(order: Sequence[int], layers: int, kinds: int) -> None:
    """Refuse layers of which some have been taken out or put in while their kinds or their order say otherwise.

    Raises:
        ConfigError: There are other numbers of layers and of kinds, or the order names a layer that is not there.
    """
    if layers != kinds or (order and max(order) >= layers):
        raise ConfigError(
            f'`layers_execute_order` runs layer {max(order, default=0)}, but there are {layers} `layers` and {kinds} '
            '`layer_types`: whoever assigns one of them must assign the others too'
        )

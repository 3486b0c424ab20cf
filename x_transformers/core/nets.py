"""Checks of the nets that wrappers train, and of the keywords that wrappers set themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from x_transformers.core.branches import KINDS
from x_transformers.core.own_modules import inner_stack
from x_transformers.flags import ConfigError, warn_once
from x_transformers.flags.unexpected import is_foreign, naming_keyword


def check_net(net: nn.Module) -> None:
    """Refuse what cannot learn the next token: models that see it, or give no output for each place."""
    name = type(net).__name__
    if not hasattr(net, 'max_seq_len'):
        raise ValueError(f'`net` must be a whole model with `max_seq_len`, such as TransformerWrapper, got {name}')
    stack = getattr(net, 'attn_layers', None)
    inner = inner_stack(stack) or stack  # a stack of a user's that says nothing is taken at its word
    if not getattr(inner, 'causal', True) and not is_prefix(inner):
        raise ValueError(
            f'`net` must be causal, or the loss would see the answer: its stack is {type(stack).__name__}, use Decoder'
        )
    if getattr(net, 'logits_dim', None) == 1:
        raise ValueError('`net` must give logits of a vocabulary, it has `logits_dim=1`')
    check_every_place(net)


def check_every_place(net: nn.Module) -> None:
    """Refuse what does not give logits of a vocabulary for every place."""
    _check_head(net)
    features = getattr(getattr(net, 'features', None), 'active', ())
    switched_on = {next(iter(feature.flags)) for feature in features if feature.flags}
    for flag, reason in HEADLESS.items():
        if flag in switched_on or getattr(net, flag, False) is True:
            raise ValueError(f'`net` must give an output for every place, but {reason} (`{flag}` is set)')


def is_prefix(stack: Any) -> bool:
    """Return True if a stack is that of a prefix language model: not causal itself, it makes a mask that is."""
    return any(kind.__name__ == 'PrefixDecoder' for kind in type(stack).__mro__)


def check_sees_both_sides(net: nn.Module) -> None:
    """Refuse causal models, which could say nothing about a token from those behind it."""
    stack = getattr(net, 'attn_layers', None)
    stack = inner_stack(stack) or stack
    if stack is not None and not attends_to_later(stack):
        alone = '' if getattr(stack, 'causal', False) or is_prefix(stack) else ', whose layers look back alone'
        raise ConfigError(
            f'`net` must see both sides of a token: its stack is {type(stack).__name__}{alone}, use Encoder'
        )


def counts_tokens(net: nn.Module) -> bool:
    """Return whether padding behind the tokens of a row changes what a causal net gives for them, or its losses."""
    stack = getattr(net, 'attn_layers', None)
    modules = () if stack is None else (net, *stack.modules())
    return any(f.counts_tokens for m in modules for f in getattr(getattr(m, 'features', None), 'active', ()))


def attends_to_later(stack: Any) -> bool:
    """Return whether a token of a stack can depend on those behind it. One that does not say so is no causal one."""
    stack = inner_stack(stack) or stack
    if getattr(stack, 'causal', False) or is_prefix(stack):
        return False
    if not hasattr(stack, 'layer_types') or any(map(has_later_prefix, stack.features.active)):
        return True
    return any(looks_ahead(layer.kind, layer[1]) for layer in stack.layers)


def has_later_prefix(feature: Any) -> bool:
    """Return whether a feature of a stack lets tokens depend on those behind them."""
    joins = feature.reason('documents') and not getattr(feature, 'looks_back', False)
    return bool(feature.reason('causal') or joins)


def looks_ahead(kind: str, branch: nn.Module) -> bool:
    """Return whether nothing keeps a branch of a kind from later tokens of the sequence."""
    if kind == 'c':
        return False
    if not KINDS[kind].attends:
        back = any(getattr(module, 'causal', False) for module in branch.modules())
        return bool(KINDS[kind].joins_tokens) and not back
    layer = next((module for module in branch.modules() if hasattr(module, 'to_q')), branch)
    features = getattr(getattr(layer, 'features', None), 'active', ())
    if any(feature.reason('causal') for feature in features):
        return True
    windows = [feature.max_attend_future for feature in features if 'max_attend_future' in feature.flags]
    ahead = [window for each in windows for window in (each if isinstance(each, tuple) else (each,))]
    return not ahead or any(window != 0 for window in ahead)


def check_reads_front(stack: Any, written: str, advice: str, refuses: bool = True) -> None:
    """Refuse to read a sequence from its front where tokens look back alone: what is read there has seen nothing. Where
    they see a context, or a prefix, it may be meant so: there it is a warning.

    Args:
        stack: The stack that is read.
        written: The option, as the user would write it.
        advice: What to do.
        refuses: False for a warning in any case, where the original has the option.
    """
    stack = inner_stack(stack) or stack
    if attends_to_later(stack):
        return
    words = f'{written} reads tokens in front, which see nothing behind them in {type(stack).__name__}: {advice}'
    if not refuses or getattr(stack, 'cross_attend', False) or is_prefix(stack):
        warn_once(words)
    else:
        raise ConfigError(words)


def _check_head(net: nn.Module) -> None:
    """Refuse a head that says by `instead_of_logits` that it gives something else."""
    head = getattr(net, 'to_logits', None)
    if gives := getattr(head, 'instead_of_logits', ''):
        raise ValueError(f'`net` must give logits of a vocabulary, its {type(head).__name__} gives {gives}')


HEADLESS = {
    'return_only_embed': 'it has no head',
    'average_pool_embed': 'it gives one vector for the whole sequence',
    'use_cls_token': 'it reads its output from the cls tokens',
    'attn_pool': 'it pools its output',
}


def check_sizes_or_stack(stack: nn.Module | None, sizes: dict[str, Any], flags: Iterable[str] = ()) -> None:
    """Refuse a stack beside sizes or flags of one that is to be built, and neither of them."""
    given = [*flags, *(name for name, value in sizes.items() if value is not None)]
    missing = next((name for name, value in sizes.items() if value is None), None)
    if stack is None and missing:
        raise ConfigError(f'`{missing}` is missing: it must be an integer, or give a stack as `attn_layers`')
    if stack is not None and given:
        raise ConfigError(f'`{given[0]}` cannot be combined with `attn_layers`: that has its own')


def refuse_own(inputs: dict[str, Any], where: str, own: dict[str, str]) -> None:
    """Refuse keywords of the net that only the wrapper can set, or that it knows nothing of; None is taken out."""
    own = ONE_DOCUMENT | own
    for name in [name for name in inputs if name in own or name.startswith('return_')]:
        if inputs.pop(name) is not None:
            if name not in own and is_foreign(name):
                raise naming_keyword(TypeError(f'{where} got an unexpected input `{name}`'), name)
            raise ValueError(f'`{name}` cannot be given to {where}{own.get(name, ", it decides what the net returns")}')


SET_BY_LOSS = {'cache': ': a cache is for generation', 'input_not_include_cache': ': a cache is for generation'}
ONE_DOCUMENT = {'document_ids': ': it knows one document per row'}
SET_BY_GENERATION = {
    'cache': ', it keeps its own: see `cache_kv`',
    'input_not_include_cache': ', it keeps its own cache: see `cache_kv`',
    'seq_start_pos': ', give `prompt_lens` or a list of prompts',
    'self_attn_kv_mask': ', give `mask`',
    'logits_to_keep': ', it reads those that it needs',
}

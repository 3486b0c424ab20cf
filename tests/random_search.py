"""Search for what breaks a law: random flags with random values, masks, dtypes and lengths. What it finds joins laws.

    python tests/random_search.py --count 300 --seed 1 [--minutes 10]
    python tests/random_search.py --wrappers --count 300      # wrappers, around stacks with further flags
    python tests/random_search.py --seed 1 --at 17            # one of them again, with its traceback

A configuration is one to four flags of the catalogue with what they need. Half of their values are drawn anew among all
that their check accepts: every word of a choice, sizes at their bounds, numbers, None. It is built or refused in words
that name one of its keywords; then it is run in a dtype, with a number of rows, a length, a mask, and perhaps on a
device without float64, and the laws of `test_laws` hold.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import random
import re
import time
import traceback
import warnings
from collections import Counter

import test_wrapper_laws as wrapper_laws
import torch
from law_cases import (
    ALL_FLAGS,
    CASES,
    Case,
    changed,
    gradients,
    inputs_for,
    is_pooled,
    model_of,
    per_token,
    refused,
    rows,
    run,
    tokens,
)
from oracles import assert_close
from refusals import names_a_flag

from x_transformers import Decoder, Encoder, PrefixDecoder
from x_transformers.core import modes
from x_transformers.features import ATTENTION, FEEDFORWARD, STACK
from x_transformers.x_transformers import AttentionLayers, TransformerWrapper

FLAGS = {prefix + name: cls.flags[name] for prefix, name, cls in ALL_FLAGS}
NUMBERS = (0, 1, 2, 3, 4, 5, 7, 8, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, -1, -0.5, 1e-3)
OTHERS = (None, True, False, (1, 2), (0, 1), (True, False), (2, 0, 1), [0.5, 1.0])
PLAIN = (int, float, str, bool, tuple, list, dict, type(None))
BASES = [case for case in CASES if case.wrapper is TransformerWrapper and case.kind is not AttentionLayers]
DTYPES = {torch.float64: 1e-7, torch.float32: 2e-3, torch.bfloat16: None, torch.float16: None}


def values_of(flag):
    """All values that the check of a flag accepts among words of its description, numbers and the like."""
    if flag.check is None:
        return [flag.example, flag.default]
    words = re.findall(r"'([^']+)'", f'{flag.doc} {flag.check.words}')
    pool = [*dict.fromkeys(words), *NUMBERS, *OTHERS, flag.default, flag.example]
    found = []
    for value in pool:
        try:
            accepted = flag.check.test(value)
        except (TypeError, ValueError):
            accepted = False
        if accepted and repr(value) not in map(repr, found):
            found.append(value)
    return found or [flag.example]


VALUES = {name: values_of(flag) for name, flag in FLAGS.items()}
OF_A_FEATURE = [
    {prefix + name for name in cls.flags}
    for level, prefix in ((ATTENTION, 'attn_'), (FEEDFORWARD, 'ff_'), (STACK, ''))
    for cls in level
    if len(cls.flags) > 1
]


def shown(values):
    """Flags without what has no short form, such as modules."""
    return {name: value if isinstance(value, PLAIN) else type(value).__name__ for name, value in values.items()}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a configuration is run."""

    dtype: torch.dtype
    batch: int
    length: int
    mask: str
    without_float64: bool


def drawn(seed, number):
    """The configuration of a number, the same each time."""
    draw = random.Random(f'{seed} {number}')
    case = Case('plain').of_kind(draw.choice([Decoder, Decoder, Encoder, PrefixDecoder]))
    kind = case.kind
    for base in draw.sample(BASES, draw.choice([1, 1, 2, 2, 3, 4])):
        case = case.together(base).of_kind(kind if base.kind is Decoder else base.kind)
    places = {}
    for place in ('stack', 'model'):
        given = dict(getattr(case, place))
        for name in [name for name in given if name in VALUES and name not in case.inputs and draw.random() < 0.5]:
            given[name] = draw.choice(VALUES[name])
        places[place] = given
    # an option beside the flags that are there, of the same features
    there = set(places['stack'])
    beside = set().union(*(names for names in OF_A_FEATURE if names & there)) & set(VALUES)
    if beside and draw.random() < 0.4:
        name = draw.choice(sorted(beside))
        places['stack'][name] = draw.choice(VALUES[name])
    texts = shown(places['stack'] | places['model'])
    case = dataclasses.replace(case, name=f'{kind.__name__} {texts} {case.inputs}', flag='', **places)
    dtype = draw.choice([torch.float64, torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16])
    setting = Setting(
        dtype,
        draw.choice([1, 2, 2, 3, 3, 0]),
        draw.choice([1, 2, 3, 5, 7, 11, 13]),
        draw.choice(['none', 'right', 'left', 'holes', 'hidden row']),
        dtype != torch.float64 and draw.random() < 0.3,
    )
    return case, setting


def mask_of(setting):
    """True for real tokens."""
    mask = torch.ones(setting.batch, setting.length, dtype=torch.bool)
    for row in range(setting.batch):
        hidden = min((row + 1) % 3, setting.length - 1)
        if setting.mask == 'right' and hidden:
            mask[row, -hidden:] = False
        elif setting.mask == 'left':
            mask[row, :hidden] = False
        elif setting.mask == 'holes' and setting.length > 2:
            mask[row, 1 : 1 + hidden] = False
            mask[row, -1] = True
        elif setting.mask == 'hidden row' and row == setting.batch - 1:
            mask[row] = False
    return mask


def as_dtype(value, dtype):
    if isinstance(value, dict):
        return {n: as_dtype(v, dtype) for n, v in value.items()}
    if isinstance(value, tuple):
        return tuple(as_dtype(v, dtype) for v in value)
    return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value


class Refused(Exception):
    """The configuration is refused in known words."""


def refusing(case, function, *args, **kwargs):
    """Call; a ValueError that names a keyword is a refusal."""
    try:
        return function(*args, **kwargs)
    except (ValueError, NotImplementedError) as error:
        if names_a_flag(str(error), [*case.keywords, 'mask', 'x', 'cache', 'custom_layers', 'depth']):
            raise Refused(str(error)) from error
        raise
    except TypeError as error:  # the flag that takes an input is drawn as off
        if any(f'unexpected input `{name}`' in str(error) for name in case.inputs):
            raise Refused(str(error)) from error
        raise


def hold(case, setting):
    """Raise what breaks a law, or `Refused`."""
    with on_device(setting):
        hold_laws(case, setting)


def hold_laws(case, setting):
    words = refused(case)
    if words is not None:
        if not names_a_flag(words, case.keywords):
            raise AssertionError(f'a refusal names no keyword: {words}')
        raise Refused(words)
    net, exact = model_of(case), setting.dtype == torch.float64
    given = inputs_for(net, case, batch=max(setting.batch, 1), length=setting.length)
    net = copy.deepcopy(net).to(setting.dtype)
    given = as_dtype(given, setting.dtype)
    if setting.batch == 0:
        given = rows(given, torch.zeros(0, dtype=torch.long))
    mask = None if setting.mask == 'none' else mask_of(setting)
    if mask is not None and 'pos' in given:
        mask = None
    masked = {} if mask is None else {'mask': mask}
    real = torch.ones(setting.batch, setting.length, dtype=torch.bool) if mask is None else mask

    out = refusing(case, run, net, given, **masked)
    kept = real.any(dim=-1)
    if not out[kept].isfinite().all() and not is_pooled(net):
        at = out[kept].reshape(int(kept.sum()), -1)
        if exact or setting.dtype == torch.float32 or at.isnan().any():
            raise AssertionError(f'the output is not finite: {at}')
    grads = refusing(case, gradients, net, given, **masked)
    bad = [name for name, g in grads.items() if g is not None and not g.isfinite().all()]
    if bad and setting.dtype not in (torch.float16,):
        raise AssertionError(f'gradients of {bad} are not finite')
    if setting.batch == 0:
        return
    tolerance = DTYPES[setting.dtype]
    with torch.no_grad():
        known = refusing(case, per_token, net, given, **masked)
        close = lambda a, b, what: assert_close(a.double(), b.double(), what, tolerance or 0.05)  # noqa: E731
        if mask is not None:  # padding
            other = per_token(net, changed(given, ~real), **masked)
            close(other[real], known[real], 'beside other padding')
        if not net.attn_layers.sees_future and setting.length > 2 and tolerance:
            later = torch.arange(setting.length).expand(setting.batch, -1) >= setting.length - 1
            other = per_token(net, changed(given, later), **masked)
            early = real & ~later
            close(other[early], known[early], 'beside another last token')
        if setting.batch > 1 and tolerance:
            alone = refusing(case, per_token, net, rows(given, [0]), **{n: t[:1] for n, t in masked.items()})
            close(alone[real[:1]], known[:1][real[:1]], 'without other rows')
        if exact and not masked and setting.length > 2 and net.can_cache_kv and not net.attn_layers.sees_future:
            cut = setting.length // 2
            _, cache = refusing(case, run, net, tokens(given, 0, cut), return_intermediates=True)
            new = refusing(case, per_token, net, tokens(given, cut, setting.length), cache=cache)
            close(new[:, -1], known[:, -1], 'from a cache')
    if exact:
        config = refusing(case, getattr, net, 'config')
        again = type(net).from_config(config).double().eval()
        again.load_state_dict(net.state_dict())
        close(run(again, given, **masked)[kept], out[kept], 'built again')


# wrappers, around stacks with further flags

WRAPPER_LAWS = {
    'rows and padding': wrapper_laws.test_a_row_is_as_alone_and_padding_changes_nothing,
    'half precision': wrapper_laws.test_half_precision,
    'gradients': lambda name: finite_gradients(name),
}


def finite_gradients(name):
    model, call = wrapper_laws.made(name)
    loss = call(model.train())
    if loss.requires_grad:
        loss.double().sum().backward()
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    if bad:
        raise AssertionError(f'gradients of {bad} are not finite')


# flags that need nothing that a wrapper's call does not give, and that a config holds
AROUND = [
    base
    for base in BASES
    if base.stack and not (base.model or base.inputs or set(base.stack) & {'cross_attend', 'custom_layers'})
    and not any('adaptive' in name or 'adaln' in name or 'condition' in name for name in base.stack)
    and all(isinstance(v, PLAIN) for v in base.stack.values())
]  # fmt: skip
# what builders of wrappers give, which a refusal may name
OF_BUILDERS = ('attn_layers', 'net', 'mask', 'cache', 'mems', 'decoder', 'encoder', 'ttt_module_paths', 'recirc_pairs')
CHOOSY = ('ff_moe_experts', 'attn_cluster', 'attn_cog_signed')


def drawn_wrapper(seed, number):
    draw = random.Random(f'{seed} wrapper {number}')
    extra = {}
    for base in draw.sample(AROUND, draw.choice([1, 1, 2])):
        extra |= {n: v for n, v in base.stack.items() if n not in ('dim', 'depth', 'heads')}
    for name in [name for name in extra if name in VALUES and draw.random() < 0.4]:
        extra[name] = draw.choice(VALUES[name])
    laws = sorted(law for law in WRAPPER_LAWS if law != 'half precision' or not set(extra) & set(CHOOSY))
    return draw.choice(sorted(wrapper_laws.SUBJECTS)), extra, draw.choice(laws)


@contextlib.contextmanager
def with_flags(extra):
    """All stacks that are built have further flags, where their builder does not say otherwise."""
    before = {kind: kind.__init__ for kind in (Decoder, Encoder, PrefixDecoder)}

    def init_of(init):
        return lambda self, **kwargs: init(self, **{**extra, **kwargs})

    try:
        for kind, init in before.items():
            kind.__init__ = init_of(init)
        yield
    finally:
        for kind, init in before.items():
            kind.__init__ = init


def try_wrapper(seed, number):
    """'ok', 'refused', or the words of what failed; the configuration; the error."""
    name, extra, law = drawn_wrapper(seed, number)
    words = f'{name}: {law} {shown(extra)}'
    try:
        with warnings.catch_warnings(), with_flags(extra):
            warnings.simplefilter('ignore')
            try:
                model, call = wrapper_laws.made(name)
                call(model)
            except (ValueError, NotImplementedError) as error:
                if names_a_flag(str(error), [*extra, *OF_BUILDERS]):
                    return 'refused', words, error
                raise
            try:
                WRAPPER_LAWS[law](name)
            except NotImplementedError as error:
                return 'refused', words, error
            except ValueError as error:
                if names_a_flag(str(error), [*extra, *OF_BUILDERS]):
                    return 'refused', words, error
                raise
    except Exception as error:
        return first_line(error), words, error
    return 'ok', words, None


def try_one(seed, number):
    """'ok', 'refused', or the words of what failed; the configuration; how it was run."""
    case, setting = drawn(seed, number)
    try:
        hold(case, setting)
    except Refused:
        return 'refused', case, setting
    except Exception as error:
        return first_line(error), case, setting
    return 'ok', case, setting


def first_line(error):
    return f'{type(error).__name__}: {(str(error).splitlines() or [""])[0][:300]}'


@contextlib.contextmanager
def on_device(setting):
    """The CPU is a device without float64, if the setting says so."""
    before = modes.WITHOUT_FLOAT64
    modes.WITHOUT_FLOAT64 = {'cpu'} if setting.without_float64 else before
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        modes.WITHOUT_FLOAT64 = before


def search_wrappers(options):
    counts, end = Counter(), time.monotonic() + 60 * options.minutes
    for number in range(options.count) if options.at is None else [options.at]:
        if time.monotonic() > end:
            break
        words, what, error = try_wrapper(options.seed, number)
        counts[words if words in ('ok', 'refused') else 'failed'] += 1
        if words not in ('ok', 'refused'):
            print(f'--wrappers --seed {options.seed} --at {number}: {words}\n    {what}', flush=True)
        if options.at is not None and error is not None:
            traceback.print_exception(error)
    print(dict(counts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--at', type=int)
    parser.add_argument('--wrappers', action='store_true')
    parser.add_argument('--minutes', type=float, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.at is not None and not options.wrappers:
        case, setting = drawn(options.seed, options.at)
        print(case, setting, sep='\n')
        try:
            hold(case, setting)
        except Refused as error:
            print('refused:', error)
        except BaseException:
            traceback.print_exc()
        return
    if options.wrappers:
        return search_wrappers(options)
    counts, end = Counter(), time.monotonic() + 60 * options.minutes
    for number in range(options.count):
        if time.monotonic() > end:
            break
        words, case, setting = try_one(options.seed, number)
        model_of.cache_clear(), refused.cache_clear()
        counts[words if words in ('ok', 'refused') else 'failed'] += 1
        if words not in ('ok', 'refused'):
            print(f'--seed {options.seed} --at {number}: {words}\n    {case}\n    {setting}', flush=True)
    print(dict(counts))


if __name__ == '__main__':
    main()

"""What the tests of known defects share: a table of cases by number, small models, and laws to check on them.

Cases use public names only, so that they run against other implementations as well.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loguru import logger
from oracles import assert_close, randn, randomised
from torch import Tensor

from x_transformers import Attention, Decoder

X = randn(2, 6, 24)
HOLES = torch.tensor([[True] * 6, [True, True, False, True, True, False]])
LEFT = torch.tensor([[False, False, True, True, True, True], [True] * 6])  # two rows that see nothing, if causal


class Known(dict):
    """Cases by number. `@known('12')` adds one."""

    def __call__(self, number: str) -> Callable:
        assert number not in self, number

        def add(case: Callable) -> Callable:
            self[number] = case
            return case

        return add


# models, in float64 with random parameters


def attention(**flags: Any) -> Attention:
    return randomised(Attention(**{**dict(dim=24, heads=4, dim_head=8), **flags}))


def stack(kind: Any = Decoder, **flags: Any) -> Any:
    sizes = dict(dim=24, depth=2, heads=4, attn_dim_head=8, ff_mult=1, verbose=False)
    return randomised(kind(**{**sizes, **flags}))


def like(layer: Attention, **flags: Any) -> Attention:
    """Another layer with the same weights, as far as it has them."""
    other = attention(**flags)
    other.load_state_dict(layer.state_dict(), strict=False)
    return other


# laws


def check_causal(net: Any, **inputs: Any) -> None:
    other = torch.cat((X[:, :-1], randn(2, 1, 24, seed=1)), dim=1)
    assert_close(net(X, **inputs)[:, :-1], net(other, **inputs)[:, :-1])


def check_padding(net: Any, **inputs: Any) -> None:
    """What stands in masked tokens does not reach the others."""
    other = torch.where(HOLES.unsqueeze(-1), X, randn(2, 6, 24, seed=2))
    assert_close(net(X, mask=HOLES, **inputs)[HOLES], net(other, mask=HOLES, **inputs)[HOLES])


def check_rows(net: Any, **inputs: Any) -> None:
    """A row of the batch gives the same alone."""
    alone = {name: t[1:] if torch.is_tensor(t) else t for name, t in inputs.items()}
    assert_close(net(X, **inputs)[1:], net(X[1:], **alone))


def decoded(net: Any, counts: tuple[int, ...] = (3, 1, 2), **inputs: Any) -> Tensor:
    """The outputs of tokens that come in steps, with the cache. An input may be a function of the length so far."""
    outs, cache, start = [], None, 0
    for count in counts:
        stop = start + count
        given = {name: value(stop) if callable(value) else value for name, value in inputs.items()}
        if isinstance(net, Attention):
            out, cache = net(X[:, start:stop], cache=cache, return_intermediates=True, **given)
        else:
            given |= {} if cache is None else dict(cache_age=count)
            out, cache = net(X[:, :stop], cache=cache, return_hiddens=True, **given)
        outs.append(out)
        start = stop
    return torch.cat(outs, dim=1)


def check_decoding(net: Any, **inputs: Any) -> None:
    assert net.can_cache_kv
    given = {name: value(6) if callable(value) else value for name, value in inputs.items()}
    assert_close(decoded(net, **inputs), net(X, **given))


def check_segments(net: Any, **inputs: Any) -> None:
    """Memories of the first half stand in for it."""
    _, trace = net(X[:, :3], return_hiddens=True)
    assert_close(net(X[:, 3:], mems=trace.hiddens, **inputs), net(X)[:, 3:])


def refused(call: Callable, *words: str) -> None:
    """With an error that names what is wrong."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def warned(call: Callable, *words: str) -> None:
    """With a line in the log that says what has no effect."""
    from x_transformers.flags import warn_once

    warn_once.cache_clear()
    said: list[str] = []
    sink = logger.add(said.append, format='{message}', level='WARNING')
    try:
        call()
    finally:
        logger.remove(sink)
    assert any(all(word in line for word in words) for line in said), said


def check_finite_gradients(net: Any, out: Tensor) -> None:
    parameters = [p for p in net.parameters() if p.requires_grad]
    assert torch.isfinite(out).all()
    for grad in torch.autograd.grad(out.square().sum(), parameters, allow_unused=True):
        assert grad is None or torch.isfinite(grad).all()

"""What the tests of known defects share: a table of cases by number, small models, and laws to check on them.

Cases use public names only, so that they run against other implementations as well.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loguru import logger
from oracles import assert_close, randn, randomised
from torch import Tensor

from x_transformers import Attention, Decoder, TransformerWrapper

X = randn(2, 6, 24)
HOLES = torch.tensor([[True] * 6, [True, True, False, True, True, False]])
LEFT = torch.tensor([[False, False, True, True, True, True], [True] * 6])  # two rows that see nothing, if causal

# of models around a stack
SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8, ff_mult=1, verbose=False)
TOKENS, LONGEST = 11, 12
IDS = torch.randint(0, TOKENS, (2, 7), generator=torch.Generator().manual_seed(0))


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


def model(kind: Any = Decoder, stack: dict[str, Any] | None = None, scale: float = 0.5, **flags: Any) -> Any:
    """A model of tokens, whose stack has the flags of `stack`. With a large scale its choices differ more."""
    flags = {'num_tokens': TOKENS, 'max_seq_len': LONGEST, **flags}
    return randomised(TransformerWrapper(attn_layers=kind(**{**SIZES, **(stack or {})}), **flags), scale=scale)


def twin(net: Any, other: Any) -> Any:
    """Another net with the same weights, as far as it has them."""
    other.load_state_dict({name: t for name, t in net.state_dict().items() if name in other.state_dict()}, strict=False)
    return other


# losses of tokens


def without(x: Tensor, *places: int) -> Tensor:
    """Ids that are no targets at some places of the first row."""
    x = x.clone()
    x[0, list(places)] = -100
    return x


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The next-token loss of logits (b n l) for tokens (b n), which may be -100."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets[:, 1:], ignore_index=-100)


# laws


def check_causal(net: Any, **inputs: Any) -> None:
    other = torch.cat((X[:, :-1], randn(2, 1, 24, seed=1)), dim=1)
    assert_close(net(X, **inputs)[:, :-1], net(other, **inputs)[:, :-1])


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

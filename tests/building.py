"""Small inputs and models that many test files need: `nets` and `stacks` make the builder of a file."""

from functools import partial

import torch

from x_transformers import Decoder, TransformerWrapper


def vectors(*shape, seed=1):
    """Draw float64 vectors that depend on the shape and the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids_from(low, high, *shape, seed=0):
    """Draw ids of `low` to `high - 1` that depend on the shape and the seed alone."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def ids_below(high, seed=0):
    """Return a function of a shape that draws ids below `high`."""
    return partial(ids_from, 0, high, seed=seed)


def unchanged(module):
    return module


def nets(num_tokens, max_seq_len, default=Decoder, finish=unchanged, **sizes):
    """Return a builder of token models: flags are those of the stack, `around` has those of the model.

    Args:
        default: The kind of stack, which a call may choose otherwise.
        finish: What is done to the model, such as `randomised`.
        sizes: Keywords of the stack, which a call may override.
    """

    def net(kind=default, around=(), **flags):
        layers = kind(**{**sizes, **flags})
        known = dict(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=layers)
        return finish(TransformerWrapper(**{**known, **dict(around or {})}))

    return net


def models(num_tokens, max_seq_len, default=Decoder, finish=unchanged, cls=TransformerWrapper, options=(), **sizes):
    """Return a builder of token models: flags are those of the model, `stack` has those of the stack."""

    def model(kind=default, stack=(), **flags):
        known = dict(num_tokens=num_tokens, max_seq_len=max_seq_len, **dict(options))
        return finish(cls(**{**known, **flags, 'attn_layers': kind(**{**sizes, **dict(stack or {})})}))

    return model


def stacks(default=Decoder, finish=unchanged, **sizes):
    """Return a builder of stacks."""

    def stack(kind=default, **flags):
        return finish(kind(**{**sizes, **flags}))

    return stack

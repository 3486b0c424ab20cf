"""What every wrapper with a loss owes its users, and the small language model that it is tried on.

A law gets the wrapper, and `call`, which gives what the wrapper computes: `lambda model: model(ids)`.
"""

import copy
import json
import pickle
import random
from functools import partial

import numpy as np
import torch
import toy_nets
from oracles import assert_close

from x_transformers import Decoder, TransformerWrapper

VOCAB, DIM, LIMIT = 11, 16, 12

ids_of = partial(toy_nets.ids_of, vocab=VOCAB)


def holes(b, n):
    """Ids of which some are no targets."""
    ids = ids_of(b, n)
    ids[0, -2:] = ids[-1, 3] = -100
    return ids


def net_of(kind=Decoder, stack=None, **model):
    """A model of `VOCAB` tokens around a stack of two blocks."""
    sizes = dict(dim=DIM, depth=2, heads=2, attn_dim_head=8, ff_mult=1, rotary_pos_emb=True, verbose=False)
    layers = kind(**{**sizes, **(stack or {})})
    return TransformerWrapper(**{'num_tokens': VOCAB, 'max_seq_len': LIMIT, 'attn_layers': layers, **model})


def states_of_others():
    """The states of Python's and NumPy's generators: of the latter the numbers, and how many of them were used."""
    kind, numbers, *used = np.random.get_state()
    return random.getstate(), kind, numbers.tolist(), used


def seeded(call, model, seed=1):
    """What is computed with the noise of a seed: torch's, and no other."""
    torch.manual_seed(seed)
    others = states_of_others()
    found = call(model)
    assert states_of_others() == others
    return found


def check_copies(model, call):
    """A model made from its configuration as JSON, and the pickle of a copy, compute the same and share the same parts.

    A call may change a model: all of them are called once, and given back.
    """
    again = type(model).from_config(json.loads(json.dumps(model.config))).double().train(model.training)
    again.load_state_dict(model.state_dict())
    others = [again, pickle.loads(pickle.dumps(copy.deepcopy(model)))]
    expected = seeded(call, model)
    for other in others:
        assert_close(seeded(call, other), expected)
        assert other.config == model.config and shared(other) == shared(model)
    return others


def shared(model):
    """The names of each module and parameter that stands at several places."""
    names = {}
    for of in (model.named_modules, model.named_parameters):
        for name, part in of(remove_duplicate=False):
            names.setdefault(part, []).append(name)
    return [several for several in names.values() if len(several) > 1]


def check_half_precision(model, call, tolerance=0.02):
    """Under autocast, and with weights in bfloat16, a loss is that of single precision but for rounding."""
    model = copy.deepcopy(model).float()
    expected = seeded(call, model)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert_close(seeded(call, model).float(), expected, 'autocast', tolerance)
    assert_close(seeded(call, model.bfloat16()).float(), expected, 'bfloat16', tolerance)


def check_one_graph(model, call, backend='aot_eager'):
    """The compiled model is one graph, and computes the same."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_close(seeded(call, compiled), seeded(call, model))


def check_gradients(model, call, silent=()):
    """A gradient reaches every parameter, is finite, and is 0 for those in `silent` alone."""
    call(model).backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert (parameter.grad.abs().max() == 0) == (name in silent), name


def fit(model, loss, steps, lr=3e-3, falls=False):
    """Train a model on what `loss()` gives, anew in each step; the rate may fall to nothing."""
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - falls * step / steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        rate.step()

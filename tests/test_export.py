"""What exports to one program for every batch and every length, with the same numbers: default models, every flag.

All cases do, but those in the table below. `python tests/test_export.py` tries all, or those that it is given by name;
the tests try a few.
"""

import copy
import random

import pytest
import torch
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    FLAG_CASES,
    INPUT_CASES,
    as_one,
    inputs_for,
    model_of,
    refused,
    run,
    shallow,
    sweep,
)
from oracles import assert_close
from packaging.version import Version
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_map

from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.cache import LayerIntermediates
from x_transformers.core.traces import Intermediates

pytestmark = [
    pytest.mark.costly,
    pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning', 'ignore::UserWarning'),  # its own
    pytest.mark.skipif(Version(torch.__version__).release < (2, 6), reason='before, torch exports no model of ours'),
]
CASES = (*FLAG_CASES, *ARGUMENT_CASES, *INPUT_CASES)
# these fill up the length to a multiple, and export where it is declared as one, `3 * Dim('chunks')`
IN_MULTIPLES = {
    'attn_hybrid_fold_axial_dim': 2,
    'memory_tokens_interspersed_every': 3,
    'continuous.memory_tokens_interspersed_every': 3,
}


class Named(nn.Module):
    """A model called with all its inputs as one argument, by name."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs):
        return self.net(**inputs)


def exported(net, inputs, sizes, **options):
    """The program of a model; axes of these sizes, {size: Dim}, are dynamic."""

    def axes(t):
        return {at: sizes[size] for at, size in enumerate(t.shape) if size in sizes} if torch.is_tensor(t) else None

    shapes = tree_map(axes, inputs)
    return export(Named(net), (inputs,), dynamic_shapes=(shapes,), **{'strict': False, **options}).module()


def check(case):
    """One program, and its numbers for other sizes."""
    step = IN_MULTIPLES.get(case.name, 1)
    case = shallow(case)
    net, batch = copy.deepcopy(model_of(case)), Dim('batch', min=2, max=64)
    length = Dim('length', min=2, max=24) if step == 1 else step * Dim('chunks', min=2, max=24 // step)
    few, many = (7, 8 if 'pos' in case.inputs else 12) if step == 1 else (3 * step, 5 * step)
    program = exported(net, inputs_for(net, case, 3, few), {3: batch, few: length})
    inputs = inputs_for(net, case, 4, many)
    assert_close(as_one(net, program(inputs)), run(net, inputs), case.name)


def test_one():
    check(BY_NAME['attn_sparse_topk'])


@pytest.mark.slow
@pytest.mark.parametrize('part', range(4))
def test_some_others(part):
    for case in random.Random(part).sample([*FLAG_CASES, *ARGUMENT_CASES, *INPUT_CASES], 5):
        if not refused(case):
            check(case)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*IN_MULTIPLES, 'attn_rel_proj_max_dist', 'deep_embeds_and_ids', 'context_mask'])
def test_where_sizes_matter(name):
    check(BY_NAME[name])


# default models, with all that they are given; losses are of two targets at least

SIZES = dict(dim=16, depth=1, heads=2, attn_dim_head=8)
FEW, MANY = (3, 7, 5), (4, 12, 9)
DIMS = {size: Dim(name, min=3, max=24) for size, name in zip(FEW, ('batch', 'length', 'context'), strict=True)}


def on_tokens(kind=Decoder, wrapper=TransformerWrapper, stack=None, **options):
    sizes = dict(num_tokens=20, max_seq_len=24) if wrapper is TransformerWrapper else dict(dim_in=6, max_seq_len=24)
    return wrapper(**{**sizes, **options}, attn_layers=kind(**SIZES, **(stack or {})))


def streams():
    return MultiInputTransformerWrapper(num_tokens=dict(a=20, b=20), max_seq_len=24, attn_layers=Decoder(**SIZES))


def encoded():
    sides = {f'{side}_{n}': v for side in ('enc', 'dec') for n, v in dict(num_tokens=20, max_seq_len=24).items()}
    return XTransformer(dim=16, **sides, enc_depth=1, enc_heads=2, dec_depth=1, dec_heads=2)


def ids(b, n):
    return torch.randint(0, 20, (b, n))


def mask(b, n):
    return torch.rand(b, n).argsort(dim=-1) > 0


CROSS, ROTARY = dict(cross_attend=True), dict(rotary_pos_emb=True)
MODELS = {
    'decoder': (lambda: Decoder(**SIZES, **CROSS), lambda b, n, c: dict(
        x=torch.randn(b, n, 16), mask=mask(b, n), context=torch.randn(b, c, 16), context_mask=mask(b, c))),
    'encoder': (lambda: Encoder(**SIZES), lambda b, n, c: dict(
        x=torch.randn(b, n, 16), mask=mask(b, n), attn_mask=torch.rand(n, n) > 0.2)),
    'cross-attender': (lambda: CrossAttender(**SIZES), lambda b, n, c: dict(
        x=torch.randn(b, n, 16), context=torch.randn(b, c, 16))),
    'tokens': (on_tokens, lambda b, n, c: dict(x=ids(b, n), mask=mask(b, n))),
    'padding on the left': (lambda: on_tokens(stack=ROTARY), lambda b, n, c: dict(
        x=ids(b, n), seq_start_pos=torch.arange(b))),
    'memories': (lambda: on_tokens(stack=ROTARY, max_mem_len=4), lambda b, n, c: dict(
        x=ids(b, n), mems=(torch.randn(b, c, 16),))),
    'documents': (lambda: on_tokens(stack=ROTARY), lambda b, n, c: dict(
        x=ids(b, n), document_ids=torch.arange(n).expand(b, -1) // 3)),
    'continuous': (lambda: on_tokens(Encoder, ContinuousTransformerWrapper), lambda b, n, c: dict(
        x=torch.randn(b, n, 6), lens=torch.arange(1, b + 1))),
    'images': (lambda: ViTransformerWrapper(image_size=32, patch_size=4, num_classes=3, attn_layers=Encoder(**SIZES)),
               lambda b, n, c: dict(img=torch.randn(c, 3, *[4 * min(c, 8)] * 2))),
    'encoded': (encoded, lambda b, n, c: dict(src=ids(b, c), tgt=ids(b, n), mask=mask(b, c))),
    'language': (lambda: AutoregressiveWrapper(on_tokens()), lambda b, n, c: dict(x=ids(b, n))),
    'streams': (streams, lambda b, n, c: dict(x=dict(a=ids(b, n), b=ids(b, n)))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('name', MODELS)
def test_default_models(name):
    torch.manual_seed(0)
    build, of = MODELS[name]
    net, inputs = build().eval(), of(*MANY)
    sizes = {5: DIMS[5], 20: 4 * Dim('patches', min=2, max=8)} if name == 'images' else DIMS
    program = exported(net, of(*FEW), sizes)
    torch.testing.assert_close(program(inputs), net(**inputs))


@pytest.mark.slow
def test_strict_export():
    net, inputs = on_tokens(stack=ROTARY).eval(), dict(x=ids(4, 12), mask=mask(4, 12))
    program = exported(net, dict(x=ids(3, 7), mask=mask(3, 7)), DIMS, strict=True)
    torch.testing.assert_close(program(inputs), net(**inputs))


class Step(nn.Module):
    """New tokens behind cached ones, whose keys and values go in and out as tensors."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs):
        layers = [Intermediates(cached_kv=pair, layer_type='a') for pair in inputs['past']]
        held = LayerIntermediates(attn_intermediates=layers, cache_length=inputs['past'][0][0].shape[-2])
        options = dict(cache=held, return_intermediates=True, input_not_include_cache=True)
        logits, left = self.net(inputs['x'], **options)
        return logits, [layer.cached_kv for layer in left.attn_intermediates]


@pytest.mark.parametrize('stack', [pytest.param({}, marks=pytest.mark.slow), ROTARY], ids=str)
def test_decoding_with_a_cache(stack):
    torch.manual_seed(0)
    net = on_tokens(stack=stack).eval()

    def of(b, n):
        tokens = ids(b, n + 2)
        left = net(tokens[:, :n], return_intermediates=True)[1]
        past = [layer.cached_kv for layer in left.attn_intermediates]
        return dict(x=tokens[:, n : n + 1], past=past), tokens[:, n + 1 :], net(tokens)[:, n:]

    held = Dim('held', min=2, max=23)  # and one more is at most `max_seq_len`
    shapes = dict(x={0: DIMS[3]}, past=[({0: DIMS[3], 2: held}, {0: DIMS[3], 2: held})])
    program = export(Step(net), (of(3, 7)[0],), dynamic_shapes=(shapes,), strict=False).module()
    inputs, further, wanted = of(4, 11)
    first, past = program(inputs)
    second, _ = program(dict(x=further, past=past))
    torch.testing.assert_close(torch.cat((first, second), dim=1), wanted)


if __name__ == '__main__':
    sweep(check, CASES)

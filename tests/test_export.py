"""What exports to one program for every batch and every length, with the same numbers: default models, every flag.

All cases do, but those in the table below. `python tests/test_export.py` tries all, or those that it is given by name;
the tests try a few.
"""

import copy
import random
from contextlib import nullcontext

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
from sweeps import naming
from torch import nn
from torch.export import Dim, export
from torch.utils._pytree import tree_map

from x_transformers import (
    AutoregressiveWrapper,
    Classifier,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    TwoTowers,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.flags import ConfigError
from x_transformers.generation.cached_step import CachedStep

pytestmark = [
    pytest.mark.costly,
    pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning', 'ignore::UserWarning'),  # its own
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
    length = (
        Dim('length', min=3 if 'attn_cluster' in case.stack else 2, max=24)
        if step == 1
        else step * Dim('chunks', min=2, max=24 // step)
    )
    few, many = (7, 8 if 'pos' in case.inputs else 12) if step == 1 else (3 * step, 5 * step)
    program = exported(net, inputs_for(net, case, 3, few), {3: batch, few: length})
    inputs = inputs_for(net, case, 4, many)
    assert_close(as_one(net, program(inputs)), run(net, inputs), case.name)


def test_one():
    check(BY_NAME['attn_sparse_topk'])


# programs for one size of the batch alone, or for one length: Sinkhorn sorts a number of blocks that belongs to it
ONE_SIZE = {'slots of a context', *(case.name for case in CASES if case.stack.get('attn_cluster') == 'sinkhorn')}


@pytest.mark.slow
@pytest.mark.parametrize('part', range(4))
def test_some_others(part):
    for case in random.Random(part).sample([*FLAG_CASES, *ARGUMENT_CASES, *INPUT_CASES], 5):
        if not refused(case) and case.name not in ONE_SIZE:
            check(case)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*IN_MULTIPLES, 'attn_rel_proj_max_dist', 'deep_embeds_and_ids', 'context_mask'])
def test_where_sizes_matter(name):
    check(BY_NAME[name])


# default models, with all that they are given, in float64; losses are of two targets at least

SIZES = dict(dim=16, depth=1, heads=2, attn_dim_head=8)
FEW, MANY = (3, 7, 5), ((4, 12, 9), (2, 24, 1), (1, 1, 17))
DIMS = {size: Dim(name, max=24) for size, name in zip(FEW, ('batch', 'length', 'context'), strict=True)}
LONGER = {**DIMS, 7: Dim('length', min=3, max=24)}
OTHER_DIMS = {
    'images': {5: DIMS[5], 20: 4 * Dim('patches', min=2, max=8)},
    **dict.fromkeys(('documents', 'encoded', 'language'), LONGER),
}


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


def pictures(num_classes=3, **options):
    sizes = dict(image_size=32, patch_size=4, channels=1, num_classes=num_classes)
    return ViTransformerWrapper(**sizes, **options, attn_layers=Encoder(**SIZES))


def towers():
    text = on_tokens(return_only_embed=True)
    return TwoTowers(pictures(None), text, text_pool='eos', dim_shared=8, loss='sigmoid')


CROSS, ROTARY = dict(cross_attend=True), dict(rotary_pos_emb=True)
LLAMA = dict(rotary_pos_emb=True, attn_kv_heads=1, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True)
BESIDE = dict(prefix_tokens=2, num_register_tokens=1)
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
    'decoder of today': (lambda: on_tokens(stack=LLAMA), lambda b, n, c: dict(x=ids(b, n))),
    'encoder of today': (lambda: on_tokens(Encoder, stack=LLAMA), lambda b, n, c: dict(x=ids(b, n), mask=mask(b, n))),
    'images': (pictures, lambda b, n, c: dict(img=torch.randn(c, 1, *[4 * max(2, min(c, 8))] * 2))),
    'attention as pool': (lambda: pictures(pool='attention', mask_token=True, **BESIDE), lambda b, n, c: dict(
        img=torch.randn(c, 1, 16, 16), hidden_patches=torch.rand(c, 16) > 0.5)),
    'pairs': (towers, lambda b, n, c: dict(images=torch.randn(b, 1, 16, 16), texts=ids(b, n))),
    'classes': (lambda: Classifier(on_tokens(), num_classes=3, token='last', pad_id=0), lambda b, n, c: dict(
        x=ids(b, n))),
    'encoded': (encoded, lambda b, n, c: dict(src=ids(b, c), tgt=ids(b, n), mask=mask(b, c))),
    'language': (lambda: AutoregressiveWrapper(on_tokens()), lambda b, n, c: dict(x=ids(b, n))),
    'streams': (streams, lambda b, n, c: dict(x=dict(a=ids(b, n), b=ids(b, n)))),
}  # fmt: skip


def others_slow(names, first):
    return [name if name == first else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize('name', others_slow(MODELS, 'attention as pool'))
def test_default_models(name):
    torch.set_default_dtype(torch.float64)
    build, of = MODELS[name]
    net = build().eval()
    dims = OTHER_DIMS.get(name, DIMS)
    program = exported(net, of(*FEW), dims)
    for b, n, c in MANY:
        inputs = of(b, max(n, dims[7].min) if 7 in dims else n, c)
        torch.testing.assert_close(program(inputs), net(**inputs), atol=1e-10, rtol=1e-10)


@pytest.mark.slow
def test_strict_export():
    net, inputs = on_tokens(stack=ROTARY).eval(), dict(x=ids(4, 12), mask=mask(4, 12))
    program = exported(net, dict(x=ids(3, 7), mask=mask(3, 7)), DIMS, strict=True)
    torch.testing.assert_close(program(inputs), net(**inputs))


@pytest.mark.parametrize('kernel', others_slow(('elu', 'favor', 'delta'), 'elu'))
def test_chunks_of_linear_attention_are_as_many_as_it_takes(kernel):
    torch.set_default_dtype(torch.float64)
    own = dict(attn_kernel='dpfp', attn_kernel_update='delta') if kernel == 'delta' else dict(attn_kernel=kernel)
    net = on_tokens(stack=dict(**own, attn_kernel_chunk=4)).eval()
    program = exported(net, dict(x=ids(3, 7)), DIMS)
    for sizes in ((2, 1), (1, 8), (3, 24)):
        inputs = dict(x=ids(*sizes))
        assert_close(program(inputs), net(**inputs), sizes)


# one step of decoding


def read_on(net, step, program, sizes):
    """What a program gives for three tokens, one by one, behind those that a prompt left."""
    for b, n in sizes:
        tokens, found = ids(b, n + 3), []
        _, past = step(tokens[:, :n])
        for at in range(n, n + 3):
            logits, past = program(tokens[:, at : at + 1], past)
            found.append(logits)
        assert_close(torch.cat(found, dim=1), net(tokens)[:, n:], (b, n))


STEPS = dict(
    plain={},
    today=LLAMA,
    window=dict(attn_max_attend_past=4, rotary_xpos=True),
    biases=dict(alibi_pos_bias=True, shift_tokens=1),
    latents=dict(attn_use_latent_kv=True, attn_dim_latent_kv=4),
)


@pytest.mark.parametrize('name', others_slow(STEPS, 'today'))
def test_decoding_with_a_cache(name):
    torch.set_default_dtype(torch.float64)
    net = on_tokens(stack=STEPS[name], num_memory_tokens=0 if name == 'today' else 2).eval()
    step = CachedStep(net)
    _, past = step(ids(3, 7))
    program = export(step, (ids(3, 1), past), dynamic_shapes=step.dynamic_shapes, strict=False).module()
    read_on(net, step, program, ((4, 11), (1, 2), (2, 21)))


def check_step(case):
    """Three calls give what one gives."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    x, others = inputs.pop('x'), inputs
    step = CachedStep(net)
    first, past = step(x[:, :4], **others)
    second, past = step(x[:, 4:5], past, **others)
    third, _ = step(x[:, 5:], past, **others)
    found = torch.cat([as_one(net, out) for out in (first, second, third)], dim=1)
    assert_close(found, run(net, dict(x=x, **others)), case.name)


def keeps_rows(case):
    """Whether a step can be tried: other inputs than a context are those of all tokens, and cut by `test_laws`."""
    net = None if refused(case) else model_of(case)
    known = net is not None and net.attn_layers.causal and net.can_cache_kv
    return known and not inputs_for(net, case).keys() - {'x', 'context', 'context_mask'}


# what is remembered is no row for each token, or nothing
OF_NO_ROW = (
    'attn_aft', 'attn_cluster_blocks', 'attn_dpfp_nu', 'attn_kernel', 'attn_rff_sigma', 'attn_sinkhorn', 'conv_module',
    'conv_kernel_size', 'conv_norm', 'free of attention, near', 'linear, ', 'looped', 'max_looped_steps', 'only_cross',
    'recurrent_module', 'sinkhorn, key heads', 'slots of a context', 'ut_transition',
)  # fmt: skip


@pytest.mark.nightly
@torch.no_grad()
def test_steps_of_every_flag():
    tried = [case for case in CASES if keeps_rows(case)]
    assert len(tried) > 300
    for case in tried:
        refusal = case.name.startswith(OF_NO_ROW) and case.name != 'attn_aft=full'  # which keeps all keys
        with naming(case), pytest.raises(ValueError) if refusal else nullcontext():
            check_step(case)


@pytest.mark.slow
@torch.no_grad()
def test_a_program_says_where_tokens_must_be_read_again():
    scaling = dict(kind='longrope', length=9, factor=4.0, short_factor=[1.0] * 4, long_factor=[2.0] * 4)
    net = on_tokens(stack=dict(**ROTARY, rotary_emb_dim=8, rotary_scaling=scaling)).eval()
    step, tokens = CachedStep(net), ids(2, 12)
    _, past = step(tokens[:, :7])
    program = export(step, (tokens[:, 7:8], past), dynamic_shapes=step.dynamic_shapes).module()
    for at in (7, 8):
        logits, past = program(tokens[:, at : at + 1], past)
        torch.testing.assert_close(logits, net(tokens[:, : at + 1])[:, -1:])
    with pytest.raises(RuntimeError, match='read all of them again'):
        program(tokens[:, 9:10], past)
    logits, _ = program(tokens[:, 11:], step(tokens[:, :11])[1])
    torch.testing.assert_close(logits, net(tokens)[:, -1:])


def test_a_step_reads_as_the_model_does():
    torch.set_default_dtype(torch.float64)
    net = on_tokens(stack=dict(**LLAMA, **CROSS, disable_abs_pos_emb=False), num_memory_tokens=2).eval()
    step, context, tokens = CachedStep(net), torch.randn(2, 5, 16), ids(2, 9)
    first, past = step(tokens[:, :4], context=context)
    kept = [t.clone() for t in past]
    then, later = step(tokens[:, 4:7], past, context=context)  # several at a time
    last, _ = step(tokens[:, 7:], later, context=context)
    assert_close(torch.cat((first, then, last), dim=1), net(tokens, context=context))
    assert all(map(torch.equal, past, kept))  # what was read may be continued again
    assert step.names == ['angles', 'positions', *(f'{at}.{name}' for at in range(2) for name in ('keys', 'values'))]


def test_steps_that_are_refused():
    step = CachedStep(on_tokens(stack=ROTARY).eval())
    with pytest.raises(ValueError, match=r'read a prompt first, by `step\(prompt\)`'):
        step.dynamic_shapes  # noqa: B018
    _, past = step(ids(2, 3))
    with pytest.raises(
        ValueError, match=r'`past` got 3 tensors, the model keeps 4: angles, positions, 0\.keys, 0\.values'
    ):
        step(ids(2, 1), past[:-1])
    with pytest.raises(ValueError, match='not known yet'):  # a copy has features of its own
        copy.deepcopy(step)(ids(2, 1), past)
    with pytest.raises(ValueError, match='the running state `key sums` has no row for each token'):
        CachedStep(on_tokens(stack=dict(attn_kernel='elu')))(ids(2, 3))
    with pytest.raises(ValueError, match='no tensor would tell how many tokens there were'):
        CachedStep(on_tokens(stack=dict(**CROSS, only_cross=True)))(ids(2, 3), context=torch.randn(2, 5, 16))
    with pytest.raises(ConfigError, match='`net` is a TransformerWrapper with flags that leave it without a cache'):
        CachedStep(on_tokens(Encoder))
    with pytest.raises(TypeError, match=r'`net` must .*got a Linear'):
        CachedStep(torch.nn.Linear(2, 2))


if __name__ == '__main__':
    sweep(check, CASES)

"""Generation with a compiled step gives the same tokens, and is not compiled again as the sequence grows."""

import copy
import pickle
import shutil

import pytest
import torch
from law_cases import randomise

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

NO_COMPILER = pytest.mark.skipif(shutil.which('g++') is None, reason='generated code needs a C++ compiler')


def wrapper(stack=None, **model):
    torch.manual_seed(0)
    stack = Decoder(**{'dim': 32, 'depth': 1, 'heads': 2, 'attn_dim_head': 16, 'verbose': False, **(stack or {})})
    net = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=stack, **model)
    return AutoregressiveWrapper(randomise(net, scale=0.2))


def ids(batch=2, length=6):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


CONTEXT = dict(context=torch.randn(2, 5, 32))
SAMPLES = dict(num_samples=3, temperature=0.8)
STARTS = dict(prompt_lens=torch.tensor([3, 6]))
LATENT = dict(attn_use_latent_kv=True, attn_dim_latent_kv=8)
# several in one graph, which takes as long to compile as one of them
TOGETHER = [
    (dict(rotary_pos_emb=True, attn_kv_heads=1), {}, STARTS),
    (dict(rel_pos_bias=True, attn_num_mem_kv=2, shift_tokens=1, add_value_residual=True, depth=2), {}, {}),
    (dict(alibi_pos_bias=True, cross_attend=True, **LATENT), dict(num_memory_tokens=2), CONTEXT),
    (dict(attn_data_dependent_alibi=True, attn_sparse_topk=3), {}, SAMPLES),
]
ALONE = [
    ({}, {}, {}),
    (dict(rotary_pos_emb=True, attn_kv_heads=1), {}, {}),
    (dict(alibi_pos_bias=True), {}, {}),
    (dict(rel_pos_bias=True, attn_num_mem_kv=2), {}, {}),
    (dict(shift_tokens=1, add_value_residual=True), {}, {}),
    (LATENT, dict(num_memory_tokens=2), {}),
    (dict(attn_data_dependent_alibi=True, attn_sparse_topk=3), {}, {}),
    (dict(cross_attend=True), {}, CONTEXT),
    (dict(rotary_pos_emb=True), {}, STARTS),
    ({}, {}, SAMPLES),
]


@pytest.mark.parametrize(
    ('stack', 'model', 'options'),
    [
        *(pytest.param(*case, marks=pytest.mark.slow) for case in TOGETHER),
        *(pytest.param({**stack, 'depth': 2}, *more, marks=pytest.mark.nightly) for stack, *more in ALONE),
    ],
    ids=lambda values: ' '.join(values) or 'plain',
)
def test_the_same_tokens(stack, model, options):
    torch._dynamo.reset()
    lm, options = wrapper(stack, **model), {'temperature': 0.0, **options}
    tokens = [
        lm.generate(ids(), 40, compile=compile, generator=torch.Generator().manual_seed(3), **options)
        for compile in (False, 'eager')
    ]
    assert torch.equal(*tokens)


@pytest.mark.slow
def test_no_length_is_compiled_for():
    """Once for the first step and once where memory grows; longer prompts and sequences need nothing new."""
    torch._dynamo.reset()
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    lm = wrapper(dict(rotary_pos_emb=True))
    lm.compiled_net('eager')
    lm.compiled['eager'] = (lm.net, torch.compile(lm.net, dynamic=True, fullgraph=True, backend=counting))
    for length, count in ((6, 30), (7, 40), (20, 40)):
        prompt = ids(2, length)
        plain, compiled = (lm.generate(prompt, count, temperature=0.0, compile=c) for c in (False, 'eager'))
        assert torch.equal(compiled, plain)
    assert len(graphs) <= 4


@pytest.mark.slow
def test_what_was_compiled_is_no_part_of_the_model():
    lm = wrapper()
    names = set(lm.state_dict())
    tokens = lm.generate(ids(), 4, temperature=0.0, compile='eager')
    assert set(lm.state_dict()) == names
    for twin in (copy.deepcopy(lm), pickle.loads(pickle.dumps(lm))):
        assert 'compiled' in vars(lm) and 'compiled' not in vars(twin)
        assert torch.equal(twin.generate(ids(), 4, temperature=0.0), tokens)
    with pytest.raises(ValueError, match='`compile` got 3'):
        lm.generate(ids(), 4, compile=3)


@pytest.mark.slow
@NO_COMPILER
def test_generated_code():
    torch._dynamo.reset()
    lm = wrapper(dict(rotary_pos_emb=True))
    assert torch.equal(lm.generate(ids(), 4, temperature=0.0, compile=True), lm.generate(ids(), 4, temperature=0.0))

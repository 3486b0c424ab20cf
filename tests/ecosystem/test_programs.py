"""Exported programs in other hands: ONNX run by onnxruntime, and the libraries that AOTInductor compiles.

What torch itself makes of them is in test_export.py; a step of decoding in ONNX, in the README.
"""

import shutil

import pytest
import torch
from torch.export import Dim, export

from x_transformers import Decoder, Encoder, TransformerWrapper, ViTransformerWrapper
from x_transformers.generation.cached_step import CachedStep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings('default'),
]
SIZES = dict(dim=32, depth=1, heads=4, attn_dim_head=16)
TODAY = dict(rotary_pos_emb=True, attn_kv_heads=2, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True)
FREE = {0: Dim('batch', max=64), 1: Dim('length', max=64)}


@pytest.fixture
def onnxruntime():
    for name in ('onnx', 'onnxscript'):
        pytest.importorskip(name, reason="pip install -e '.[ecosystem]'")
    return pytest.importorskip('onnxruntime', reason="pip install -e '.[ecosystem]'")


def on_tokens(kind=Decoder, **flags):
    return TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=kind(**SIZES, **flags)).eval()


def ids(b, n):
    return torch.randint(0, 50, (b, n))


def padded(b, n):
    return dict(x=ids(b, n), mask=torch.rand(b, n).argsort(dim=-1) > 0)


def image(b, n):
    return dict(img=torch.randn(b, 3, 16, 16))


MODELS = {
    'encoder': (lambda: on_tokens(Encoder), padded, dict(x=FREE, mask=FREE)),
    'decoder': (lambda: on_tokens(alibi_pos_bias=True), lambda b, n: dict(x=ids(b, n)), dict(x=FREE)),
    'images': (
        lambda: ViTransformerWrapper(image_size=16, patch_size=4, num_classes=3, attn_layers=Encoder(**SIZES)).eval(),
        image,
        dict(img={0: FREE[0]}),
    ),
}


def in_onnx(onnxruntime, program):
    """A function of flat tensors."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = torch.onnx.export(program, dynamo=True, verbose=False).model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(made, options, providers=['CPUExecutionProvider'])
    names = [one.name for one in session.get_inputs()]

    def run(*tensors):
        feed = {name: t.numpy() for name, t in zip(names, tensors, strict=True)}
        return [torch.from_numpy(out) for out in session.run(None, feed)]

    return run


@pytest.mark.parametrize('name', MODELS)
@torch.no_grad()
def test_onnx(onnxruntime, name):
    build, inputs_of, shapes = MODELS[name]
    net, example = build(), inputs_of(2, 8)
    run = in_onnx(onnxruntime, export(net, (), example, dynamic_shapes=shapes))
    for sizes in ((2, 8), (1, 13), (5, 64), (3, 1)):
        inputs = inputs_of(*sizes)
        torch.testing.assert_close(run(*inputs.values())[0], net(**inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(shutil.which('c++') is None and shutil.which('g++') is None, reason='needs a compiler of C++')
@torch.no_grad()
def test_a_step_of_decoding_compiled_ahead(tmp_path):
    inductor = pytest.importorskip('torch._inductor')
    net = on_tokens(**TODAY)
    step = CachedStep(net)
    _, past = step(ids(2, 6))
    program = export(step, (ids(2, 1), past), dynamic_shapes=step.dynamic_shapes)
    path = inductor.aoti_compile_and_package(program, package_path=f'{tmp_path}/step.pt2')
    compiled = inductor.aoti_load_package(path)
    for b, n in ((2, 6), (1, 1), (5, 40)):
        tokens, found = ids(b, n + 3), []
        _, past = step(tokens[:, :n])
        for at in range(n, n + 3):
            logits, past = compiled(tokens[:, at : at + 1].contiguous(), past)
            found.append(logits)
        torch.testing.assert_close(torch.cat(found, dim=1), net(tokens)[:, n:], atol=1e-5, rtol=1e-5)

"""Several devices give what one gives: two processes on the CPU, which run all checks of this file in one go.

`python tests/ecosystem/test_distributed.py FOLDER [SELECTION]` is one of the two, started by the fixture `results`. A
check is a function of `Pair`; what it raises is the failure of the test of its name.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / 'tests'))

from law_cases import BY_NAME, CASES, as_one, inputs_for, model_of  # noqa: E402

from x_transformers.flags import ConfigError  # noqa: E402

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason='needs torch with torch.distributed')

TOKENS = 31
CLOSE = dict(rtol=0, atol=1e-10)
LLAMA = dict(attn_kv_heads=2, ff_glu=True, ff_swish=True, ff_no_bias=True, use_rmsnorm=True, rotary_pos_emb=True)
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'plain': ({}, {}),
    'like Llama': (LLAMA, dict(tie_embedding=True)),
    'one key head': (
        dict(attn_one_kv_head=True, rel_pos_bias=True, ff_glu=True, ff_glu_mult_bias=True, checkpoint_layers=True),
        dict(tie_embedding=True, logits_bias=True),
    ),
}
# flags whose tensors lie with heads, each beside grouped keys
OF_HEADS: dict[str, dict[str, Any]] = {
    'attn_qk_norm': dict(attn_qk_norm_dim_scale=True),
    'attn_qk_rmsnorm': {},
    'attn_qk_head_norm': dict(attn_qk_head_norm='layer', attn_qk_head_norm_bias=True, attn_qk_head_norm_shared=False),
    'attn_value_rmsnorm': {},
    'attn_head_scale': dict(attn_out_bias=True),
    'attn_head_learned_sink': {},
    'attn_num_mem_kv': dict(attn_num_mem_kv=2),
    'attn_gate_values': dict(attn_gate_values_bias=True),
    'attn_gate_value_heads': {},
    'add_value_residual': dict(learned_value_residual_mix=True),
    'attn_qkv_bias': dict(alibi_pos_bias=True, alibi_num_heads=3),
    'dynamic_pos_bias': {},
    'attn_use_latent_kv': dict(attn_dim_latent_kv=6),
}

Check = Callable[['Pair'], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def wrapped(stack: dict[str, Any], model: dict[str, Any], **more: Any) -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    torch.manual_seed(0)
    layers = Decoder(dim=16, depth=2, heads=4, attn_dim_head=8, **stack, **more)
    net = TransformerWrapper(num_tokens=TOKENS, max_seq_len=16, attn_layers=layers, **model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return AutoregressiveWrapper(net)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


class Pair:
    """What a check in one of the two processes knows: which one it is, and meshes of both."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        self.folder, self.rank = folder, torch.distributed.get_rank()
        self.both = init_device_mesh('cpu', (2,))
        self.grid = init_device_mesh('cpu', (1, 2), mesh_dim_names=('data', 'heads'))
        torch.manual_seed(1)
        self.ids = torch.randint(0, TOKENS, (4, 12))

    def laid_out(self, model: Any, how: str) -> Any:
        from torch.distributed.fsdp import fully_shard

        from x_transformers.parallel import parallelize, shard

        if how == 'replicas':
            return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        if how == 'by layer':
            for layer in model.attn_layers.layers:
                fully_shard(layer, mesh=self.both)
            return fully_shard(model, mesh=self.both)
        if how in ('heads', 'sequence', 'both'):
            parallelize(model, self.grid['heads'], sequence=how == 'sequence')
        if how == 'both':
            shard(model, self.grid['data'])
        return shard(model, self.both) if how == 'sharded' else model

    def batch(self, how: str) -> Tensor:
        """The rows of this process: all of them where the two share the work of each."""
        return self.ids[self.rank :: 2] if how == 'sharded' else self.ids


def gradients(model: nn.Module) -> dict[str, Tensor]:
    from x_transformers.parallel import State
    from x_transformers.parallel.states import gather_full as full

    own = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: full(grad) for name, grad in State(model).join_parts(own).items()}


def same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
    for name, value in wanted.items():
        if torch.is_tensor(value):
            torch.testing.assert_close(got[name], value, **CLOSE, msg=lambda words, name=name: f'{name}: {words}')


def trains_as_one(pair: Pair, how: str, names: Any = MODELS) -> None:
    """Logits, loss, gradients, a step of the optimizer, and generation."""
    from x_transformers.parallel import State

    for name in names:
        one = wrapped(*MODELS[name])
        several = pair.laid_out(copy.deepcopy(one), how)
        assert several.net.config == one.net.config
        torch.testing.assert_close(several.net(pair.ids), one.net(pair.ids), **CLOSE)
        optimizers = adam(one), adam(several)
        losses = one(pair.ids), several(pair.batch(how))
        for loss in losses:
            loss.backward()
        if how != 'sharded':
            torch.testing.assert_close(*losses, **CLOSE)
        same(gradients(several), gradients(one))
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (one, several)]
        torch.testing.assert_close(norms[1].full_tensor(), norms[0], **CLOSE)
        for optimizer in optimizers:
            optimizer.step()
        same(State(several).whole()['model'], one.state_dict())
        prompt = pair.ids[:2, :4]
        options = dict(seq_len=5, temperature=0.0)
        assert torch.equal(several.generate(prompt, **options), one.generate(prompt, **options)), name
        assert torch.equal(several.generate(prompt, **options, cache_kv=False), one.generate(prompt, **options)), name
        kept = [m.net(pair.ids, return_intermediates=True)[1] for m in (several, one)]
        torch.testing.assert_close(*(leaves_of(k.layer_hiddens) for k in kept), **CLOSE)
        assert all(kv.shape[-2] == pair.ids.shape[1] for a in kept[0].attn_intermediates for kv in a.cached_kv)


# what the two share


@check
def heads(pair: Pair) -> None:
    trains_as_one(pair, 'heads')


@check
def sequence(pair: Pair) -> None:
    """Eleven tokens, which two devices cannot have equal shares of."""
    from x_transformers.parallel import views

    cut, odd = [], copy.copy(pair)
    odd.ids = pair.ids[:, :11]
    moved = views.Lane.gather
    views.Lane.gather = lambda lane, x, mesh: (cut.append(lane.length), moved(lane, x, mesh))[1]
    try:
        trains_as_one(odd, 'sequence')
    finally:
        views.Lane.gather = moved
    assert 11 in cut


@check
def sharded(pair: Pair) -> None:
    trains_as_one(pair, 'sharded')


@check
def both(pair: Pair) -> None:
    trains_as_one(pair, 'both', ['like Llama'])


@check
def wrong_meshes(pair: Pair) -> None:
    from x_transformers.parallel import parallelize

    model = wrapped({}, {})
    for mesh, error, words in (
        ('cpu', TypeError, '`mesh` must be a DeviceMesh, got .cpu.'),
        (pair.grid, ValueError, '`mesh` must have one axis, got 2, data, heads'),
    ):
        with pytest.raises(error, match=words):
            parallelize(model, mesh)
    pair.laid_out(model, 'heads')
    with pytest.raises(ValueError, match='must not be shared by several devices already'):
        pair.laid_out(model, 'heads')


@check
def flags_of_heads(pair: Pair) -> None:
    for flag, more in OF_HEADS.items():
        one = wrapped({flag: True, 'attn_kv_heads': 2, **more}, {})
        several = pair.laid_out(copy.deepcopy(one), 'heads')
        for model in (one, several):
            model(pair.ids).backward()
        same(gradients(several), gradients(one))
        prompt = pair.ids[:2, :4]
        assert torch.equal(several.generate(prompt, 4, temperature=0.0), one.generate(prompt, 4, temperature=0.0)), flag


@check
def choices_of_generation(pair: Pair) -> None:
    """With equal seeds, both draw the same."""
    one = wrapped(*MODELS['like Llama'])
    several = pair.laid_out(copy.deepcopy(one), 'heads')
    tokens = []
    for model in (one, several):
        torch.manual_seed(3)
        tokens.append((model.generate(pair.ids[:2, :4], 6), model.beam_search(pair.ids[:2, :4], 6, beams=3)))
    assert all(torch.equal(*pairs) for pairs in zip(*tokens, strict=True))


@check
def other_models(pair: Pair) -> None:
    from x_transformers import Encoder, TransformerWrapper, ViTransformerWrapper, XTransformer

    torch.manual_seed(2)
    sizes = dict(dim=16, depth=1, heads=2, attn_dim_head=8)
    mask = torch.arange(8) < torch.tensor([[8], [5]])
    ids, images = pair.ids[:2, :8], torch.randn(2, 3, 8, 8)
    encoder = TransformerWrapper(num_tokens=TOKENS, max_seq_len=16, attn_layers=Encoder(**sizes))
    vit = ViTransformerWrapper(image_size=8, patch_size=4, num_classes=5, attn_layers=Encoder(**sizes))
    side = dict(num_tokens=TOKENS, depth=1, heads=2, attn_dim_head=8, max_seq_len=16)
    both_sides = {f'{of}_{name}': value for of in ('enc', 'dec') for name, value in side.items()}
    pairs = XTransformer(dim=16, tie_token_emb=True, **both_sides)
    cases = [(encoder, (ids,), {'mask': mask}), (vit, (images,), {}), (pairs, (ids, pair.ids[:2]), {'mask': mask})]
    for how in ('heads', 'sequence', 'sharded'):
        for one, args, inputs in cases:
            several = pair.laid_out(copy.deepcopy(one), how)
            one.zero_grad()
            outs = [model(*args, **inputs) for model in (one, several)]
            torch.testing.assert_close(outs[1], outs[0], **CLOSE)
            for out in outs:
                out.square().sum().backward()
            same(gradients(several), gradients(one))
    tokens = [m.generate(ids, ids[:, :1], 5, mask=mask, temperature=0.0) for m in (pairs, several)]
    assert torch.equal(*tokens)


# memory and precision


@check
def weights_from_nowhere(pair: Pair) -> None:
    """Built without memory, laid out, and only then filled, each device with its part."""
    from x_transformers.parallel import State

    for name in ('one key head', 'like Llama'):
        one = wrapped(*MODELS[name])
        whole = State(one).whole()
        for how in ('sharded', 'heads'):
            with torch.device('meta'):
                several = wrapped(*MODELS[name])
            pair.laid_out(several, how)
            assert all(p.is_meta for p in several.parameters())
            State(several.to_empty(device='cpu')).put(whole)
            torch.testing.assert_close(several(pair.ids), one(pair.ids), **CLOSE)


@check
def half_precision(pair: Pair) -> None:
    """What layers compute is what a model in bfloat16 computes; angles stay precise, parameters are in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from x_transformers.parallel import shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    one = wrapped(*MODELS['like Llama']).float()
    several = shard(copy.deepcopy(one), pair.both, mp_policy=policy)
    several(pair.ids).backward()
    assert {p.grad.dtype for p in several.parameters()} == {torch.float32}
    half = copy.deepcopy(one).bfloat16()
    torch.testing.assert_close(several.net(pair.ids), half.net(pair.ids), rtol=0, atol=0)
    assert torch.equal(
        several.generate(pair.ids[:, :4], 4, temperature=0.0), half.generate(pair.ids[:, :4], 4, temperature=0.0)
    )


@check
def data_parallel(pair: Pair) -> None:
    from torch.nn.parallel import DistributedDataParallel

    from x_transformers.parallel import State

    one = wrapped(*MODELS['like Llama'])
    several = DistributedDataParallel(copy.deepcopy(one))
    one(pair.ids).backward()
    several(pair.batch('sharded')).backward()
    same(gradients(several.module), gradients(one))
    assert State(several).state_dict()['model'].keys() == one.state_dict().keys()


# checkpoints


@check
def checkpoints(pair: Pair) -> None:
    """What was saved laid out in one way is read laid out in another, moments included."""
    import torch.distributed.checkpoint as dcp

    from x_transformers.parallel import State

    one = wrapped(*MODELS['like Llama'])
    start, first = copy.deepcopy(one), adam(one)
    one(pair.ids).backward()
    first.step()
    wanted = copy.deepcopy(State(one, first).whole())
    one.zero_grad()
    one(pair.ids).backward()
    first.step()
    later = one.state_dict()
    read_as = {'sharded': ['one', 'heads'], 'heads': ['one', 'sharded'], 'both': ['heads']}
    for how in read_as:
        saved = pair.laid_out(copy.deepcopy(start), how)
        optimizer = adam(saved)
        saved(pair.batch(how)).backward()
        optimizer.step()
        dcp.save({'app': State(saved, optimizer)}, checkpoint_id=pair.folder / how)
        for other in read_as[how]:
            read = pair.laid_out(copy.deepcopy(start), other)
            again = adam(read)
            dcp.load({'app': State(read, again)}, checkpoint_id=pair.folder / how)
            got = State(read, again).whole()
            for level, own in wanted.items():
                same(got[level], own)
            read(pair.batch(other)).backward()
            again.step()
            same(State(read).whole()['model'], later)


@check
def context_parallel(pair: Pair) -> None:
    """Torch's has no kernel for the CPU: when it has one, our documentation should say so."""
    import torch.nn.functional as F
    from torch.distributed.tensor.experimental import context_parallel

    q, k, v = torch.randn(3, 1, 2, 8, 16, dtype=torch.float32).unbind()
    with pytest.raises(NotImplementedError, match='for_cpu'):
        with context_parallel(pair.both, buffers=(q, k, v), buffer_seq_dims=(2, 2, 2)):
            F.scaled_dot_product_attention(q, k, v, is_causal=True)


@check
def recipes_of_the_documentation(pair: Pair) -> None:
    text = (ROOT / 'docs' / 'distributed.md').read_text(encoding='utf-8')
    sources = re.findall(r'^```python torchrun\n(.*?)^```', text, re.MULTILINE | re.DOTALL)
    assert sources
    os.chdir(pair.folder)
    for source in sources:
        exec(compile(source, 'distributed.md', 'exec'), {})


# the training script


def curve(out: Path) -> list[float]:
    from safetensors.torch import load_file

    return load_file(out / 'step_000004' / 'training.safetensors')['losses'].tolist()


@check
def training_script(pair: Pair) -> None:
    """The curve of one process, on two; and resumed on another number of them, in another way."""
    sys.path.append(str(ROOT / 'examples'))
    import train_lm

    text = pair.folder / f'{pair.rank}.txt'
    text.write_text('A run has the numbers of one process. ' * 40)
    sizes = dict(steps=4, interval=2, dim=16, depth=1, heads=2, seq_len=16, val_windows=2, sample_bytes=4)
    options = [f'--{name.replace("_", "-")}={value}' for name, value in sizes.items()]
    options += ['--data', str(text), '--device', 'cpu', '--precision', 'float32']

    def run(out: str, *more: str) -> Path:
        torch.distributed.barrier()
        hidden = () if '--parallel' in more else ('RANK', 'WORLD_SIZE')
        started = {name: os.environ.pop(name) for name in hidden}
        try:
            assert train_lm.main([*options, '--out', str(pair.folder / out), *more]) == 0
        finally:
            os.environ.update(started)
        torch.distributed.barrier()
        return pair.folder / out

    torch.set_default_dtype(torch.float32)
    try:
        one = run(f'one {pair.rank}')
        for how in ('ddp', 'fsdp', 'fsdp+tp'):
            out = run(how, '--parallel', how)
            assert curve(out) == pytest.approx(curve(one), rel=1e-5), how
            assert not (pair.rank and list(out.glob('*.tmp')))
        for start, other, more in ((one, 'from one', ['--parallel', 'fsdp+tp']), (out, f'to one {pair.rank}', [])):
            if pair.rank == 0 or not more:
                shutil.copytree(start / 'step_000002', pair.folder / other / 'step_000002')
            assert curve(run(other, '--resume', *more)) == pytest.approx(curve(one), rel=1e-5), other
        for wrong in (
            ['--parallel', 'ddp', '--batch-size', '3'],
            ['--parallel', 'fsdp+tp', '--tensor-parallel', '4'],
            [],
        ):
            assert train_lm.main([*options, *wrong]) == 2
    finally:
        torch.set_default_dtype(torch.float64)


# every flag


LAYOUTS = ('heads', 'sequence', 'sharded', 'by layer', 'replicas')
# of those, in which the processes have losses of their own, whose mean is learned from
OF_DATA = ('sharded', 'by layer', 'replicas')
# a few for each kind of work that layers do besides: again in the backward pass, beside the stream, for the next layers
SOME_CASES = (
    'reversible', 'reversible_merge', 'checkpoint_layers', 'ff_chunk_checkpoint', 'add_value_residual', 'residual_attn',
    'attn_bias', 'attn_bias, alibi', 'rotary_pos_emb, given', 'self_attn_kv_residuals', 'additional kv, grouped',
    'in_attn_cond', 'deep_embeds_and_ids', 'prepend_embeds', 'condition with layerscale',
)  # fmt: skip


def learning(values: Any) -> Any:
    """The same inputs, all numbers of which get a gradient."""
    return tree_map(lambda t: t.clone().requires_grad_() if torch.is_tensor(t) and t.is_floating_point() else t, values)


def leaves_of(values: Any) -> list[Tensor]:
    return [t for t in tree_leaves(values) if torch.is_tensor(t) and t.requires_grad]


def objective(net: Any, out: Any, losses: Any, number: int = 0) -> Tensor:
    """A loss with a gradient for each output, one for each number, and what features add."""
    out = as_one(net, out)
    return losses.added_to((out * torch.linspace(-1, 2 + number, out.numel()).view_as(out).sin()).sum())


def trains_alike(pair: Pair, net: Any, inputs: dict[str, Any], how: str) -> None:
    """Outputs, losses, and gradients of all parameters and all inputs, in training mode, are those of one device.

    raises   ConfigError where the layout refuses the model
    """
    from x_transformers.training import AuxLosses

    several, one = pair.laid_out(copy.deepcopy(net), how), copy.deepcopy(net)
    given, own = learning(inputs), learning(inputs)
    torch.manual_seed(0)
    with AuxLosses() as added:
        out = one(**given)
    numbers = range(2) if how in OF_DATA else (0,)
    losses = [objective(net, out, added, number) for number in numbers]
    loss = losses[pair.rank if how in OF_DATA else 0]
    wanted = (
        torch.autograd.grad(loss, leaves_of(given), retain_graph=True, allow_unused=True) if leaves_of(given) else ()
    )
    (sum(losses) / len(losses)).backward()
    torch.manual_seed(0)
    with AuxLosses() as found:
        again = several(**own)
    other = objective(net, again, found, pair.rank if how in OF_DATA else 0)
    other.backward()
    close = dict(rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(as_one(net, again), as_one(net, out), **close)
    torch.testing.assert_close(other, loss, **close)
    assert found.by_name.keys() == added.by_name.keys()
    got = gradients(several.module if how == 'replicas' else several)
    for name, grad in gradients(one).items():
        found_grad = got.get(name, torch.zeros_like(grad))
        torch.testing.assert_close(found_grad, grad, **close, msg=lambda words, name=name: f'{name}: {words}')
    for at, (t, grad) in enumerate(zip(leaves_of(own), wanted, strict=True)):
        if grad is not None and t.dtype == torch.float64:
            assert t.grad is not None, f'input {at} of {list(inputs)} has no gradient'
            torch.testing.assert_close(t.grad, grad, **close, msg=lambda words, at=at: f'input {at}: {words}')


def flags_train_alike(pair: Pair, cases: Any) -> dict[str, int]:
    """How many cases each layout takes. Others are refused by name."""
    failed, shared = {}, dict.fromkeys(LAYOUTS, 0)
    for case in cases:
        net, inputs = copy.deepcopy(model_of(case)).train(), inputs_for(model_of(case), case)
        drops = 'dropout' in case.flag and not case.flag.startswith(('layer', 'cross_attn_tokens', 'emb'))
        for how in LAYOUTS:
            if drops and how in ('heads', 'sequence'):
                continue  # each device draws for what it has
            try:
                trains_alike(pair, net, inputs, how)
                shared[how] += 1
            except ConfigError as error:
                assert '`' in str(error)
            except Exception as error:
                scalar = isinstance(error, ValueError) and 'support scalar parameters' in str(error)
                failed |= {} if scalar else {f'{case} {how}': str(error).splitlines()[:3]}
    assert not failed, failed
    return shared


@check
def inputs_of_attention(pair: Pair) -> None:
    """All that a layer alone may be given: whole tensors, of which each device reads what is of its heads."""
    from x_transformers.x_transformers import Attention

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape)

    for flags in ({}, dict(kv_heads=2), dict(one_kv_head=True)):
        torch.manual_seed(3)
        attn = Attention(16, dim_head=8, heads=4, **flags)
        keys, x, seen = attn.kv_heads, drawn(2, 5, 16), drawn(2, 5) > -1
        beside = [
            dict(attn_bias=drawn(4, 5, 5)), dict(attn_bias=drawn(2, 1, 5, 5)), dict(attn_delta=drawn(2, 4, 5, 5)),
            dict(attn_delta=drawn(5, 5)), dict(prev_attn=drawn(2, 4, 5, 5)), dict(kv_input_residual=drawn(2, 5, 16)),
            dict(q_delta=drawn(2, 5, 32), o_delta=drawn(2, 5, 32)), dict(q_delta=drawn(2, 5, 1)),
            dict(k_delta=drawn(2, 5, 8 * keys), v_delta=drawn(1, 5, 8 * keys)), dict(mem=drawn(2, 3, 16)),
            dict(context=drawn(2, 6, 16), value_context=drawn(2, 6, 16)), dict(rotary_pos_emb=(drawn(1, 5, 8), 1.0)),
            dict(polar_pos_emb=(drawn(1, 5, 8), drawn(4, 1, 8))), dict(attn_mask=drawn(2, 4, 5, 5) > -1),
            dict(attn_mask=drawn(4, 5, 5) > -1, mask=seen),
        ]  # fmt: skip
        beside += [dict(additional_key_values=(drawn(2, own, 3, 8), drawn(2, own, 3, 8))) for own in {1, 2, 4, keys}]
        for inputs in beside:
            several, one = pair.laid_out(copy.deepcopy(attn), 'heads'), copy.deepcopy(attn)
            assert several.heads == 2
            given, own = learning({'x': x, **inputs}), learning({'x': x, **inputs})
            outs = one(**given), several(**own)
            torch.testing.assert_close(outs[1], outs[0], **CLOSE, msg=lambda words, on=inputs: f'{[*on]}: {words}')
            for out in outs:
                out.sin().sum().backward()
            same(gradients(several), gradients(one))
            for t, other in zip(leaves_of(own), leaves_of(given), strict=True):
                torch.testing.assert_close(
                    t.grad, other.grad, **CLOSE, msg=lambda words, on=inputs: f'{[*on]}: {words}'
                )


@check
def memories(pair: Pair) -> None:
    """Hidden states of an earlier segment, and what stands with a context, learn as on one device."""
    from x_transformers import Decoder

    torch.manual_seed(3)
    net = Decoder(dim=16, depth=2, heads=4, attn_dim_head=8, cross_attend=True)
    inputs = {'x': torch.randn(2, 6, 16), 'mems': [torch.randn(2, 3, 16) for _ in range(2)]}
    inputs |= {'context': torch.randn(2, 4, 16), 'context_mask': torch.arange(4) < torch.tensor([[2], [4]])}
    for how in LAYOUTS[:2]:
        trains_alike(pair, net, inputs, how)


@check
def maps_of_all_heads(pair: Pair) -> None:
    """Whoever reads maps finds those of all heads, and so do losses that are formed of them."""
    from x_transformers import AutoregressiveWrapper

    for stack in (dict(attn_kv_heads=2), dict(residual_attn=True, attn_kv_heads=2), dict(attn_one_kv_head=True)):
        one = AutoregressiveWrapper(wrapped(stack, dict(attn_z_loss_weight=0.1)).net, add_attn_z_loss=True)
        for how in LAYOUTS[: 1 if 'residual_attn' in stack else 2]:
            several = pair.laid_out(copy.deepcopy(one), how)
            one.zero_grad()
            losses = one(pair.ids), several(pair.ids)
            torch.testing.assert_close(losses[1], losses[0], **CLOSE)
            for loss in losses:
                loss.backward()
            same(gradients(several), gradients(one))
            maps = [model.net(pair.ids, return_attn=True)[1] for model in (one, several)]
            torch.testing.assert_close(maps[1], maps[0], **CLOSE)


@check
def features_of_users(pair: Pair) -> None:
    """Those that say how they are cut, but form a loss of some heads, or of some tokens."""
    from x_transformers import Decoder
    from x_transformers.features import AttentionFeature, StackFeature

    class OfHeads(AttentionFeature):
        tp_shards: dict[str, Any] = {}  # noqa: RUF012

        def layer_output(self, out: Tensor, call: Any) -> Tensor:
            call.add_loss('size', out.square().mean())
            return out

    class OfTokens(StackFeature):
        tp_shards: dict[str, Any] = {}  # noqa: RUF012
        refuses: dict[str, str] = {'documents': ''}  # noqa: RUF012

        def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
            call.add_loss('stream', x.square().mean())
            return x

    sizes = dict(dim=16, depth=2, heads=4, attn_dim_head=8)
    inputs = {'x': torch.randn(2, 6, 16)}
    for feature, layouts, name in ((OfHeads, LAYOUTS[:2], 'size'), (OfTokens, ['sequence'], 'stream')):
        for how in layouts:
            with pytest.raises(ConfigError, match=f'the loss `{name}` cannot be shared by several devices'):
                trains_alike(pair, Decoder(**sizes, features=(feature,)), inputs, how)
    trains_alike(pair, Decoder(**sizes, features=(OfTokens,)), inputs, 'heads')


@check
def models_of_several_stacks(pair: Pair) -> None:
    """What one stack hands to another learns from all heads."""
    from x_transformers.free_transformer import FreeTransformer

    torch.manual_seed(2)
    sizes = dict(dim=16, dec_head_depth=1, dec_tail_depth=1, enc_depth=1, max_seq_len=16, heads=2, attn_dim_head=8)
    one = FreeTransformer(num_tokens=TOKENS, latent_bits=3, **sizes)
    for how in LAYOUTS[:3]:
        several = pair.laid_out(copy.deepcopy(one), how)
        one.zero_grad()
        losses = []
        for model in (one, several):
            torch.manual_seed(5)
            losses.append(model(pair.ids))
            losses[-1].backward()
        torch.testing.assert_close(*losses, **CLOSE)
        same(gradients(several), gradients(one))


@check
def tied_heads_inside_of_others(pair: Pair) -> None:
    """A head that reads the table from inside of another module gives the logits of all tokens."""
    one = wrapped({}, dict(tie_embedding=True)).net
    one.to_logits = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), one.to_logits)
    several = pair.laid_out(copy.deepcopy(one), 'heads')
    outs = one(pair.ids), several(pair.ids)
    torch.testing.assert_close(outs[1], outs[0], **CLOSE)
    for out in outs:
        out.sin().sum().backward()
    same(gradients(several), gradients(one))


@check
def some_flags(pair: Pair) -> None:
    shared = flags_train_alike(pair, [BY_NAME[name] for name in SOME_CASES])
    assert shared['heads'] >= 13 and shared['by layer'] == shared['replicas'] == len(SOME_CASES), shared


def every_flag(pair: Pair) -> None:
    shared = flags_train_alike(pair, CASES)
    assert min(shared.values()) > 300 and shared['replicas'] > 500, shared


# the two processes


def free_port() -> int:
    with socket.socket() as found:
        found.bind(('127.0.0.1', 0))
        return found.getsockname()[1]


def run_both(folder: Path, selection: str, timeout: float) -> dict[str, str]:
    """What went wrong in each check, in either process; '' for nothing."""
    own = {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(free_port()), 'WORLD_SIZE': '2', 'OMP_NUM_THREADS': '1'}
    own['PYTHONPATH'] = os.pathsep.join((str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])))
    command = [sys.executable, '-W', 'ignore', __file__, str(folder), selection]
    started = [subprocess.Popen(command, env={**os.environ, **own, 'RANK': str(rank)}) for rank in range(2)]
    try:
        codes = [process.wait(timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0, 0], codes
    each = [json.loads((folder / f'{rank}.json').read_text(encoding='utf-8')) for rank in range(2)]
    return {name: '\n'.join(filter(None, (one[name] for one in each))) for name in each[0]}


@pytest.fixture(scope='module')
def results(request: Any, tmp_path_factory: Any) -> dict[str, str]:
    """Of those checks that are asked for."""
    asked = (item.callspec.params.get('name') for item in request.session.items if hasattr(item, 'callspec'))
    return run_both(tmp_path_factory.mktemp('pair'), ','.join(name for name in asked if name in CHECKS), 400)


@pytest.mark.slow
@pytest.mark.parametrize('name', CHECKS)
def test_two_devices(results: dict[str, str], name: str) -> None:
    assert not results[name], results[name]


@pytest.mark.nightly
def test_every_flag(tmp_path: Path) -> None:
    assert not any(run_both(tmp_path, 'every_flag', 1200).values())


# refusals, which need no second device

REFUSED = {
    '`attn_talking_heads` .*: it mixes heads': dict(attn_talking_heads=True),
    '`attn_qk_proj_norm` .*: it normalizes all heads': dict(attn_qk_proj_norm=True),
    '`rotate_num_heads` .*must be alike': dict(rotate_num_heads=2, rotary_pos_emb=True),
    '`ff_post_act_ln` .*: it normalizes all inner channels': dict(ff_post_act_ln=True),
    '`ff_moe_experts` .*: experts': dict(ff_moe_experts=2),
    '`polar_pos_emb` .*: its angle shifts': dict(polar_pos_emb=True),
    '`heads` must be more than 1': dict(heads=1, attn_dim_head=16),
    '`attn_output_gate` .*: its gates depend on all': dict(attn_output_gate=True),
    '`attn_differential` .*two query heads': dict(attn_differential=True),
}


@pytest.mark.parametrize('words', REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(words: str) -> None:
    from x_transformers import Decoder, TransformerWrapper
    from x_transformers.parallel import plan

    layers = Decoder(**{**dict(dim=16, depth=1, heads=4, attn_dim_head=8), **REFUSED[words]})
    with pytest.raises(ConfigError, match=words):
        plan(TransformerWrapper(num_tokens=TOKENS, max_seq_len=16, attn_layers=layers))


def test_what_joins_tokens_is_refused_beside_a_cut_sequence() -> None:
    from x_transformers import Decoder
    from x_transformers.parallel import plan

    stack = Decoder(dim=16, depth=1, heads=4, attn_dim_head=8, shift_tokens=1)
    assert plan(stack)
    with pytest.raises(ConfigError, match=r'`shift_tokens` .* with `sequence`, its class must declare'):
        plan(stack, sequence=True)


def test_heads_are_dealt_out_with_their_keys() -> None:
    from x_transformers.parallel.styles import count_groups

    assert [count_groups(8, *sizes) for sizes in ((8, 2), (4, 2), (1, 4), (2, 4))] == [1, 2, 0, 0]
    with pytest.raises(ConfigError, match='multiple of the 4 devices, got heads=6 and kv_heads=3'):
        count_groups(6, 3, 4)


def test_modules_and_features_of_users_are_refused_by_class() -> None:
    from x_transformers.features import AttentionFeature, StackFeature
    from x_transformers.parallel import plan
    from x_transformers.x_transformers import Attention

    class Tanh(AttentionFeature):
        def layer_output(self, out: Tensor, call: Any) -> Tensor:
            return out.tanh()

    class Reader(StackFeature):
        def on_attention(self, layer: Any, intermediates: Any, call: Any) -> None:
            call.ctx(self).values = intermediates.values

    class Own(Attention):
        def forward(self, *args: Any, **inputs: Any) -> Any:
            return super().forward(*args, **inputs)

    class Adapter(nn.Linear):
        pass

    for feature in (Tanh, Reader):
        with pytest.raises(ConfigError, match=f'`{feature.__name__}` cannot be shared by several devices'):
            plan(wrapped({}, {}, features=(feature,)))

    def changed(change: Callable[[Any], None], sequence: bool = False) -> None:
        model = wrapped({}, {})
        change(model.net.attn_layers)
        plan(model, sequence)

    def put_own(stack: Any) -> None:
        stack.layers[0][1].__class__ = Own

    def put_adapter(stack: Any) -> None:
        stack.layers[0][1].to_q = Adapter(16, 32, bias=False)

    def put_softmax(stack: Any) -> None:
        stack.layers[1][1].ff[0][1] = nn.Softmax(dim=-1)

    def put_norm(stack: Any) -> None:
        stack.layers[0][0][0] = nn.BatchNorm1d(12)

    for change, words in ((put_own, 'Own'), (put_adapter, 'Adapter'), (put_softmax, 'Softmax')):
        with pytest.raises(ConfigError, match=f'`{words}` cannot be shared by several devices: its class must declare'):
            changed(change)
    changed(put_norm)
    with pytest.raises(ConfigError, match='`BatchNorm1d` cannot be shared by several devices: with `sequence`'):
        changed(put_norm, sequence=True)
    Own.cuts = {}
    changed(put_own)


def test_single_numbers_cannot_be_sharded() -> None:
    from x_transformers.parallel import shard

    with pytest.raises(ConfigError, match='pre_tanh_scale` is a scalar'):
        shard(wrapped(dict(use_dynamic_tanh=True), {}))


def test_a_parameter_in_two_places_is_refused() -> None:
    from x_transformers.parallel import plan

    model = wrapped({}, {})
    model.net.to_logits.weight = model.net.token_emb.emb.weight
    with pytest.raises(ConfigError, match=r'`net.*` must not be a parameter of several modules.*`tie_embedding`'):
        plan(model)


def test_a_config_names_the_class_that_was_built() -> None:
    """Where parameters are sharded, torch gives a module another class."""
    net = wrapped({}, {}).net
    wanted = net.config
    for module in (net, net.attn_layers):
        module.__class__ = type(f'FSDP{type(module).__name__}', (type(module),), {})
    assert net.config == wanted


@pytest.fixture
def imagined(request: Any) -> Any:
    """A mesh of this process, or of several: of these it is the first, and the others say nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    backend, store = ('gloo', torch.distributed.HashStore()) if request.param == 1 else ('fake', FakeStore())
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=request.param)
    yield init_device_mesh('cpu', (request.param,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize('imagined', [2], indirect=True)
def test_each_device_gets_a_part_of_the_heads(imagined: Any) -> None:
    """In one process: what the others would add is missing."""
    from x_transformers.parallel import parallelize

    model = parallelize(wrapped(*MODELS['like Llama']), imagined)
    attn = model.net.attn_layers.layers[0][1]
    assert (attn.heads, attn.kv_heads, attn.rotate_num_heads) == (2, 1, 2)
    assert attn.to_q.weight.shape == (16, 16)
    loss = model(torch.randint(0, TOKENS, (2, 12)))
    loss.backward()
    assert loss.ndim == 0 and all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize('imagined', [1], indirect=True)
def test_hooks_that_gather_parameters_read_no_maps(imagined: Any) -> None:
    """The same kernels run, to the last bit, and recomputed layers keep the same tensors."""
    from x_transformers.parallel import shard

    one = wrapped(dict(checkpoint_layers=True, **LLAMA), {}).double()
    sharded = shard(copy.deepcopy(one), imagined)
    ids = torch.randint(0, TOKENS, (2, 12))
    assert torch.equal(sharded.net(ids), one.net(ids))
    for model in (one, sharded):
        model(ids).backward()
    same({name: p.grad.to_local() for name, p in sharded.named_parameters()}, gradients(one))


def main(folder: Path, selection: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.distributed.init_process_group('gloo')
    pair, said = Pair(folder), {}
    chosen = {name: CHECKS.get(name, every_flag) for name in selection.split(',')}
    for name, function in chosen.items():
        try:
            function(pair)
            said[name] = ''
        except (Exception, SystemExit):
            said[name] = traceback.format_exc()
    (folder / f'{pair.rank}.json').write_text(json.dumps(said), encoding='utf-8')
    torch.distributed.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]), sys.argv[2])

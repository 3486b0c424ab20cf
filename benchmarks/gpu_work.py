"""What `gpu.py` measures: training, decoding, attention with flags, serving. One function of (column, case) each.

A case is a dictionary of plain values. The function builds the model of a column and returns what is to be timed, as
`measure.py` wants it; what a column cannot do is refused by an exception, in words.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from measure import Settings, Work
from peers import Sizes, build
from score_flags import FLAGS
from torch import Tensor, nn

# near 124M, 350M and 1.3B parameters, like Llama: rotary, RMSNorm, SwiGLU, two queries to a key head
SIZES: dict[str, dict[str, Any]] = {
    '124M': {'dim': 768, 'depth': 12, 'heads': 12, 'inner': 2112},
    '350M': {'dim': 1024, 'depth': 24, 'heads': 16, 'inner': 2752},
    '1.3B': {'dim': 2048, 'depth': 24, 'heads': 16, 'inner': 5504},
    'tiny': {'dim': 64, 'depth': 1, 'heads': 2, 'inner': 128},
}


def sizes_of(name: str, length: int) -> Sizes:
    """The sizes of a model by its name."""
    own = SIZES[name]
    tokens, turned = 64 if name == 'tiny' else 50304, own['dim'] // own['heads']
    return Sizes(tokens=tokens, length=length, like='Llama', turned=turned, **own)


def autocast(settings: Settings) -> AbstractContextManager[Any]:
    dtype = getattr(torch, settings.dtype)
    return torch.autocast(settings.device, dtype=dtype) if dtype != torch.float32 else nullcontext()


def compiled(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """`torch.compile`; on a CPU, where this is a rehearsal, without generated code."""
    return torch.compile(function) if device != 'cpu' else torch.compile(function, backend='aot_eager')


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """What is timed, or for serving what returns its own figures."""
    return {'training': training, 'decoding': decoding, 'features': features, 'serving': serving}[case['stage']](
        column, case, settings
    )


# ---------------------------------------------------------------------------------------------------- training


def training(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """A step: forward and backward by autocast with float32 weights, fused AdamW."""
    name, is_compiled = column.removesuffix(' compiled'), column.endswith('compiled')
    sizes = sizes_of(case['model'], case['seq'])
    peer = build(name, sizes, settings.device)
    # wrappers of packages read all tokens but the last, the others drop the logits of the last
    read = case['seq'] + (name.split()[0] in ('ours', 'original'))
    ids = torch.randint(0, sizes.tokens, (case['batch'], read), device=settings.device)
    loss = compiled(peer.loss, settings.device) if is_compiled else peer.loss
    optimizer = torch.optim.AdamW(peer.module.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with autocast(settings):
            value = loss(ids)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def flops_of_step(case: dict[str, Any]) -> int:
    """The products of a train step, counted on the model by hand on the meta device, attention in full."""
    from torch.utils.flop_counter import FlopCounterMode

    sizes = sizes_of(case['model'], case['seq'])
    peer = build('minimal', sizes, 'meta')
    ids = torch.zeros(case['batch'], case['seq'], dtype=torch.long, device='meta')
    with FlopCounterMode(display=False) as counter:
        peer.loss(ids).backward()
    return counter.get_total_flops()


# ---------------------------------------------------------------------------------------------------- decoding


def decoding(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Greedy generation behind a prompt, in the dtype of the settings."""
    sizes = sizes_of(case['model'], case['prompt'] + case['generate'])
    ids = torch.randint(0, sizes.tokens, (case['batch'], case['prompt']), device=settings.device)
    peer = build(column, sizes, settings.device, settings.dtype)
    peer.module.eval()
    return lambda: peer.generate(ids, case['generate'])


def bytes_of_decoding(case: dict[str, Any], width: int) -> float:
    """What has to be read for all new tokens: weights but for the table of tokens, and the cache as it grows."""
    sizes = sizes_of(case['model'], case['prompt'] + case['generate'])
    module = build('minimal', sizes, 'meta').module
    weights = sum(p.numel() for p in module.parameters()) - module.token.weight.numel()
    length = case['prompt'] + case['generate'] / 2
    cache = 2 * case['batch'] * length * sizes.depth * sizes.kv_heads * sizes.dim_head
    return width * case['generate'] * (weights + cache)


# ---------------------------------------------------------------------------------------------------- features

Flags = dict[str, Any]


def features_of(scale: int) -> dict[str, tuple[Flags, tuple[str, ...], bool]]:
    """Flags of one layer by name: keywords of a decoder, the ways to compute it, whether it is causal.

    Args:
        scale: Divides windows, blocks and buckets, for tiny runs.
    """
    from x_transformers.patterns import BigBird, Sliding

    size = max(1, 64 // scale)
    by_scores = ('ours flex', 'ours blocks')
    scores = ('ALiBi', 'T5 bias', 'soft clamp', 'learned sink', 'forget gates')
    return {
        'plain flash': ({}, ('ours', 'minimal'), True),
        'window 512': ({'attn_max_attend_past': 512 // scale}, by_scores, True),
        'documents of 1024': ({}, by_scores, True),
        **{name: (FLAGS[name], by_scores, True) for name in scores},
        'linear': ({'attn_kernel': 'elu'}, ('ours', 'fla'), True),
        'delta rule': ({'attn_kernel': 'elu', 'attn_kernel_update': 'delta'}, ('ours', 'fla'), True),
        'LSH': ({'attn_cluster': 'lsh', 'attn_cluster_size': size, 'attn_lsh_rounds': 4}, ('ours',), True),
        'routing': (
            {'attn_cluster': 'routing', 'attn_cluster_size': 4 * size, 'attn_num_clusters': 2 if scale > 1 else 64},
            ('ours',),
            True,
        ),
        'local 512': ({'attn_sparse_pattern': Sliding(512 // scale)}, ('ours',), True),
        'BigBird': ({'attn_sparse_pattern': BigBird(block=size)}, ('ours',), False),
    }


def features(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of one layer of attention, batch 1. A kernel that does not run is refused, not replaced."""
    dim, heads, length, device = case['dim'], case['heads'], case['length'], settings.device
    flags, _, causal = features_of(case['scale'])[case['flag']]
    backwards, inputs = device != 'cpu' or column != 'ours flex', {}
    if column in ('minimal', 'fla'):
        net: nn.Module = {'minimal': PlainAttention, 'fla': FlaAttention}[column](dim, heads, case['flag'])
    else:
        from x_transformers import Decoder, Encoder
        from x_transformers.core import rows
        from x_transformers.kernels import flex

        if column in ('ours flex', 'ours blocks'):
            flex.DEVICES, flex.LEARNED = (device,) if column == 'ours flex' else (), True
            rows.LARGE = dict.fromkeys(rows.LARGE, 0)
        kind = Decoder if causal else Encoder
        net = kind(dim=dim, heads=heads, attn_dim_head=dim // heads, custom_layers=('a',), verbose=False, **flags)
        if case['flag'].startswith('documents'):
            size = max(1, 1024 // case['scale'])
            inputs['document_ids'] = torch.arange(length, device=device)[None] // size
    net.to(device)
    x = torch.randn(1, length, dim, device=device, requires_grad=backwards)

    def step() -> None:
        with torch.set_grad_enabled(backwards), autocast(settings):
            out = net(x, **inputs)
        if backwards:
            out.float().sum().backward()
            net.zero_grad()
            x.grad = None

    if column == 'ours flex':
        step()
        if not flex.works or not all(flex.works.values()):
            raise NotImplementedError('FlexAttention does not run')
    return step


class PlainAttention(nn.Module):
    """Causal attention by hand in plain torch: norm, projections and SDPA."""

    def __init__(self, dim: int, heads: int, flag: str) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.LayerNorm(dim, bias=False), nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class FlaAttention(PlainAttention):
    """The same around the kernels of flash-linear-attention, with the feature map 1 + elu."""

    def __init__(self, dim: int, heads: int, flag: str) -> None:
        super().__init__(dim, heads, flag)
        if flag == 'linear':
            from fla.ops.linear_attn import chunk_linear_attn

            self.kernel = lambda q, k, v: chunk_linear_attn(q, k, v, normalize=True)
            self.rate = None
        else:
            from fla.ops.delta_rule import chunk_delta_rule

            self.kernel = chunk_delta_rule
            self.rate = nn.Linear(dim, heads)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        q, k, v = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = (1 + nn.functional.elu(t) for t in (q, k))
        if self.rate is None:
            out, _ = self.kernel(q, k, v)
        else:
            q, k = (t / t.sum(dim=-1, keepdim=True) for t in (q, k))
            out, _ = self.kernel(q, k, v, beta=self.rate(normed).sigmoid())
        return x + self.out(out.flatten(2).to(x.dtype))


# ---------------------------------------------------------------------------------------------------- serving


def requests_of(case: dict[str, Any], tokens: int) -> list[tuple[float, list[int], int]]:
    """(arrival in seconds, prompt, new tokens): Poisson arrivals, lengths uniform in their logarithm."""
    draw, at, made = random.Random(0), 0.0, []
    least, most = case['lengths']

    def length() -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))

    for _ in range(case['requests']):
        at += draw.expovariate(case['rate'])
        made.append((at, [draw.randrange(1, tokens) for _ in range(length())], length()))
    return made


def serving(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Serve requests as they arrive. Returns tokens per second, and the median and 99th percentile of latency.

    Columns: `ours` is the paged engine, `ours static` batches of those that have arrived, which wait for their
    longest, `huggingface` the continuous batching of transformers.
    """
    most = case['lengths'][1]
    sizes = sizes_of(case['model'], 2 * most)
    asked = requests_of(case, sizes.tokens)
    peer = build(column.split()[0], sizes, settings.device, settings.dtype)
    peer.module.eval()
    serve = {'ours': by_engine, 'ours static': by_batches, 'huggingface': by_transformers}[column]

    def run() -> dict[str, float]:
        start = time.perf_counter()
        ended = serve(peer.module, asked, case, settings.device)
        spent = time.perf_counter() - start
        waits = sorted(end - start - arrival for end, (arrival, _, _) in zip(ended, asked, strict=True))
        last = waits[min(len(waits) - 1, math.ceil(0.99 * len(waits)) - 1)]
        return {'value': sum(n for _, _, n in asked) / spent, 'p50': statistics.median(waits), 'p99': last}

    return run


Asked = list[tuple[float, list[int], int]]


def wait_for(moment: float) -> None:
    """Sleep until a moment of `time.perf_counter`."""
    time.sleep(max(0.0, moment - time.perf_counter()))


def by_engine(wrapper: Any, asked: Asked, case: dict[str, Any], device: str) -> list[float]:
    """When each request ended, by `PagedEngine`."""
    from x_transformers import PagedEngine

    block, begun = case['block'], time.perf_counter()
    room = sum(-(-(len(prompt) + n) // block) for _, prompt, n in asked)
    engine, ended, numbers, waiting = PagedEngine(wrapper, room, block, max_batch=case['batch']), {}, {}, 0
    while len(ended) < len(asked):
        while waiting < len(asked) and asked[waiting][0] <= time.perf_counter() - begun:
            _, prompt, n = asked[waiting]
            numbers[engine.add(torch.tensor(prompt, device=device), n, temperature=0.0)] = waiting
            waiting += 1
        if not engine.busy:
            wait_for(begun + asked[waiting][0])
            continue
        engine.step()
        for number in engine.results():
            ended[numbers[number]] = time.perf_counter()
    return [ended[index] for index in range(len(asked))]


def by_batches(wrapper: Any, asked: Asked, case: dict[str, Any], device: str) -> list[float]:
    """When each request ended, if all that have arrived form a batch of `generate`."""
    ended, begun = [], time.perf_counter()
    while len(ended) < len(asked):
        wait_for(begun + asked[len(ended)][0])
        now = time.perf_counter() - begun
        part = [one for one in asked[len(ended) : len(ended) + case['batch']] if one[0] <= now]
        prompts = [torch.tensor(prompt, device=device) for _, prompt, _ in part]
        wrapper.generate(prompts, max(n for _, _, n in part), temperature=0.0).cpu()
        ended += [time.perf_counter()] * len(part)
    return ended


def by_transformers(model: Any, asked: Asked, case: dict[str, Any], device: str) -> list[float]:
    """When each request ended, by the continuous batching of transformers."""
    from transformers import GenerationConfig

    settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=case['lengths'][1])
    manager = model.init_continuous_batching(generation_config=settings)
    manager.start()
    ended, waiting, begun = {}, 0, time.perf_counter()
    try:
        while len(ended) < len(asked):
            while waiting < len(asked) and asked[waiting][0] <= time.perf_counter() - begun:
                _, prompt, n = asked[waiting]
                manager.add_request(prompt, request_id=str(waiting), max_new_tokens=n)
                waiting += 1
            found = manager.get_result(timeout=0.002)
            if found is not None and found.is_finished():
                if found.error:
                    raise RuntimeError(found.error)
                ended[int(found.request_id)] = time.perf_counter()
            elif not manager.is_running():
                raise RuntimeError('continuous batching has stopped')
    finally:
        manager.stop(block=True)
    return [ended[index] for index in range(len(asked))]

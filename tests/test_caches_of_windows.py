"""Layers whose reach into the past is bounded keep the keys that can still be seen, and decode as if they had all."""

import pytest
import torch
from law_cases import randomise
from oracles import assert_close
from test_cache import ids_of

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.cache import Cache
from x_transformers.patterns import BlockLocal, Global, Local1D, Mix, Row, Sliding, Strided

N = 200
WINDOWS = {
    'window': dict(attn_max_attend_past=5),
    'sliding': dict(attn_sparse_pattern=Sliding(6)),
    'dilated': dict(attn_sparse_pattern=Sliding(3, dilation=(1, 3))),
    'blocks': dict(attn_sparse_pattern=BlockLocal(7)),
    'image': dict(attn_sparse_pattern=Local1D(4, 6)),
    'rows': dict(attn_sparse_pattern=Row(9) | Sliding(2)),
    'mix': dict(attn_sparse_pattern=Mix((BlockLocal(4), Sliding(6)))),
    'layers': dict(attn_max_attend_past=(None, 3)),
    'growing': dict(attn_max_attend_past=5, window_growth=3),
    'rotary': dict(attn_max_attend_past=5, rotary_pos_emb=True),
    'xpos': dict(attn_max_attend_past=5, rotary_xpos=True),
    'alibi': dict(attn_max_attend_past=5, alibi_pos_bias=True),
    't5': dict(attn_sparse_pattern=Sliding(6), rel_pos_bias=True),
    'grouped': dict(attn_max_attend_past=5, attn_kv_heads=1, attn_qk_norm=True),
    'in front': dict(attn_max_attend_past=5, attn_num_mem_kv=2),
}
WHOLE = (
    {},
    dict(attn_sparse_pattern=Strided(8)),
    dict(attn_sparse_pattern=Sliding(4) | Global(first=1)),
    dict(attn_max_attend_past=5, attn_data_dependent_alibi=True),  # sums up all tokens
)


def net(memories=0, positions=False, **flags):
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False, **flags)
    model = TransformerWrapper(num_tokens=11, max_seq_len=N * positions, num_memory_tokens=memories, attn_layers=stack)
    return randomise(model.double()).eval()


def held(cache):
    return [layer.buffers[0].tensor.shape[-2] for layer in cache.layers]


def read(model, ids, steps, cache=None, seen=0, **inputs):
    """Logits of ids, so many at a time, and the cache behind them."""
    found = []
    for count in steps:
        past = {} if cache is None else dict(cache=cache)
        logits, left = model(ids[:, : seen + count], return_intermediates=True, **past, **inputs)
        found.append(logits[:, -count:])
        cache, seen = left.cache, seen + count
    return torch.cat(found, dim=1), cache


@torch.no_grad()
@pytest.mark.parametrize('name', WINDOWS)
def test_tokens_are_read_as_all_at_once(name):
    """Behind prompts of any length, some at a time, with padding on the left, memory tokens and positions."""
    more = dict(positions=name in ('window', 'blocks'), memories=2 * (name in ('window', 'rotary', 'layers')))
    model, ids = net(**more, **WINDOWS[name]), ids_of(2, N)
    for inputs in ({}, dict(seq_start_pos=torch.tensor([0, 9]))):
        wanted = model(ids, **inputs)
        for steps in ((12, 1, 79, 3, *[1] * 25, 70, 10), (150, *[7] * 7, 1), (14, 186)):
            found, _ = read(model, ids, steps, **inputs)
            real = torch.arange(N) >= inputs.get('seq_start_pos', torch.zeros(2))[:, None]
            assert_close(found[real], wanted[real], f'{steps}', tolerance=1e-10)


@torch.no_grad()
@pytest.mark.parametrize('name', WINDOWS)
def test_memory_does_not_grow(name):
    model = net(**WINDOWS[name])
    _, short = read(model, ids_of(1, 120), (120,))
    _, long = read(model, ids_of(1, N), (120, *[1] * 30, 45, 5))
    limited = [layer for layer in range(2) if not (name == 'layers' and layer == 0)]
    assert short.seen == 120 and long.seen == long.length == N
    for layer in limited:
        assert held(long)[layer] <= 64 + 2 * 12 + 1 and held(short)[layer] <= 64 + 2 * 12 + 1
        storages = [buffer.storage.tensor.shape[-2] for buffer in long.layers[layer].buffers]
        assert max(storages) < 4 * 120
    if name == 'layers':
        assert held(long)[0] == N


@torch.no_grad()
def test_others_keep_all():
    for flags in WHOLE:
        assert held(read(net(**flags), ids_of(1, N), (N - 1, 1))[1]) == [N, N]


@torch.no_grad()
@pytest.mark.parametrize('name', ('window', 'blocks', 'image', 'layers', 'rotary'))
def test_operations(name, tmp_path):
    """What is taken back, ordered, repeated, kept in a file goes on as it would have."""
    model, ids = net(**WINDOWS[name]), ids_of(2, N)
    _, cache = read(model, ids, (150,))
    rows = torch.tensor([1, 1, 0])
    cache.save(tmp_path / 'cache')
    variants = {
        'crop': (cache.crop(120), ids, 120),
        'nothing is taken back': (cache.crop(150), ids, 150),
        'reorder': (cache.reorder(rows), ids[rows], 150),
        'expand': (cache.expand(2), ids.repeat_interleave(2, dim=0), 150),
        'file': (Cache.load(tmp_path / 'cache'), ids, 150),
        'file, crop': (Cache.load(tmp_path / 'cache').crop(130), ids, 130),
        'detach': (cache.detach(), ids, 150),
    }
    for words, (own, own_ids, seen) in variants.items():
        wanted = model(own_ids)[:, seen:]
        assert own.length == seen, words
        for steps in ((N - seen,), (1, 20, N - seen - 21)):
            found, _ = read(model, own_ids, steps, own, seen)
            assert_close(found, wanted, f'{words}, {steps}', tolerance=1e-10)
    flag = 'max_attend_past' if 'attn_max_attend_past' in WINDOWS[name] else 'sparse_pattern'
    with pytest.raises(ValueError, match=rf'`crop`.*`{flag}`|`{flag}` has left the last'):
        cache.crop(20)
    assert cache.crop(0).length == 0
    found, _ = read(model, ids, (N - 0,), cache.crop(0), 0)
    assert_close(found, model(ids), tolerance=1e-10)


@pytest.mark.costly
@torch.no_grad()
@pytest.mark.parametrize('name', ('window', 'blocks', 'layers', 'rotary', 'alibi', 'mix'))
def test_generation(name):
    """Long enough for keys to leave: by steps, by guesses, and from a prompt that was read before."""
    model = net(**WINDOWS[name])
    wrapper, prompt = AutoregressiveWrapper(model), ids_of(2, 90)
    wanted = prompt
    for _ in range(25):
        wanted = torch.cat((wanted, model(wanted)[:, -1:].argmax(dim=-1)), dim=1)
    wanted = wanted[:, 90:]
    greedy = dict(temperature=0.0)
    assert wrapper.generate(prompt, 25, **greedy).equal(wanted)
    assert wrapper.speculative(prompt, 25, **greedy).equal(wanted)
    read_before = wrapper.read_prompt(prompt[:1])
    assert wrapper.generate(None, 25, prompt_cache=read_before, **greedy).equal(wanted[:1])
    lens = torch.tensor([90, 71])
    unequal = [wrapper.generate(row[None, :n], 12, **greedy)[0] for row, n in zip(prompt, lens.tolist(), strict=True)]
    assert torch.stack(unequal).equal(wrapper.generate(prompt, 12, prompt_lens=lens, **greedy))

"""A prompt that was read once: continuations are those of the whole prompt, and a file is believed only if it fits."""

import errno
import functools
import importlib
import itertools
import json
import os
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from toy_nets import MODELS, ROTARY, ids_of, language_model, vectors_of

from x_transformers import PromptCache, cache
from x_transformers.cache import Buffer, Cache, KeysValues
from x_transformers.core import files
from x_transformers.core.files import write_content
from x_transformers.core.state import RecurrentValue
from x_transformers.generation import prompt_cache
from x_transformers.generation.prompt_cache import checksum, fingerprint
from x_transformers.generation.step import Step

models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)
GREEDY = dict(temperature=0.0)


def reading(model, monkeypatch):
    """Counts the tokens that the net reads."""
    fed, forward, step = [], type(model.net).forward, Step.__call__

    @functools.wraps(forward)  # so that it counts as the one of ours
    def counting(self, x, *args, **kwargs):
        fed.append(tuple(x.shape))
        return forward(self, x, *args, **kwargs)

    def counting_step(self, x, cache):
        fed.append(tuple(x.shape))
        return step(self, x, cache)

    monkeypatch.setattr(type(model.net), 'forward', counting)
    monkeypatch.setattr(Step, '__call__', counting_step)
    return fed


@models
def test_continuations_are_those_of_the_whole_prompt(keywords):
    model, prompts = language_model(**keywords), ids_of(3, 6, vocab=11)
    cache = model.read_prompt(prompts)
    expected = model.generate(prompts, 5, **GREEDY)
    longer = torch.cat((prompts, ids_of(3, 3, vocab=11, seed=5)), dim=1)
    further = model.generate(longer, 5, **GREEDY)
    for _ in range(2):  # the first continuation changes nothing
        assert torch.equal(model.generate(None, 5, prompt_cache=cache, **GREEDY), expected)
        assert torch.equal(model.generate(prompts, 5, prompt_cache=cache, **GREEDY), expected)
        assert torch.equal(model.generate(longer, 5, prompt_cache=cache, **GREEDY), further)
    assert torch.equal(torch.stack(list(model.stream(None, 5, prompt_cache=cache, **GREEDY)), dim=-1), expected)


@models
def test_one_prompt_serves_many_rows(keywords):
    model, prompt = language_model(**keywords), ids_of(6, vocab=11)
    cache = model.read_prompt(prompt)
    assert torch.equal(model.generate(None, 5, prompt_cache=cache, **GREEDY), model.generate(prompt, 5, **GREEDY))
    many = torch.cat((prompt.expand(4, -1), ids_of(4, 2, vocab=11, seed=3)), dim=1)
    expected = model.generate(many, 5, **GREEDY)
    assert torch.equal(model.generate(many, 5, prompt_cache=cache, **GREEDY), expected)
    samples = model.generate(None, 5, prompt_cache=cache, num_samples=3, generator=torch.Generator().manual_seed(0))
    plain = model.generate(prompt, 5, num_samples=3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(samples, plain)


def test_the_prompt_is_not_read_again(monkeypatch):
    model, prompt = language_model(**ROTARY), ids_of(6, vocab=11)
    fed = reading(model, monkeypatch)
    cache = model.read_prompt(prompt)
    model.generate(None, 3, prompt_cache=cache)
    model.generate(torch.cat((prompt, ids_of(2, vocab=11)))[None].expand(2, -1), 2, prompt_cache=cache)
    model.generate(None, 2, prompt_cache=cache, num_samples=4)
    assert fed == [(1, 6), (1, 1), (1, 1), (2, 2), (2, 1), (4, 1)]


def test_unequal_prompts():
    model, prompts = language_model(), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    cache, expected = model.read_prompt(prompts), model.generate(prompts, 8, **GREEDY)
    assert torch.equal(model.generate(None, 8, prompt_cache=cache, **GREEDY), expected)
    longer = [torch.cat((prompt, ids_of(2, vocab=11))) for prompt in prompts]
    further = model.generate(longer, 8, prompt_cache=cache, **GREEDY)
    assert torch.equal(further, model.generate(longer, 8, **GREEDY))


def test_keywords_go_with_the_prompt(tmp_path):
    model, prompts = language_model(**ROTARY, cross_attend=True), ids_of(2, 4, vocab=11)
    mask = torch.tensor([[True, False, True, True], [True] * 4])
    given = dict(context=vectors_of(2, 5, 16), prepend_embeds=vectors_of(2, 3, 16, seed=1), mask=mask)
    cache, expected = model.read_prompt(prompts, **given), model.generate(prompts, 6, **given, **GREEDY)
    assert torch.equal(model.generate(None, 6, prompt_cache=cache, **GREEDY), expected)
    for name in ('prompt', 'prompt.safetensors'):
        cache.save(tmp_path / name)
        again = PromptCache.load(tmp_path / name)
        assert torch.equal(model.generate(None, 6, prompt_cache=again, **GREEDY), expected)
    one = model.read_prompt(prompts[:1], **{name: value[:1] for name, value in given.items()})
    assert torch.equal(model.generate(prompts[:1].expand(3, -1), 6, prompt_cache=one, **GREEDY)[2], expected[0])


@models
@pytest.mark.parametrize('name', ['prompt', 'prompt.safetensors'])
def test_a_file_holds_all_of_it(keywords, tmp_path, name):
    model, prompts = language_model(**keywords), ids_of(2, 6, vocab=11)
    expected = model.generate(prompts, 8, **GREEDY)
    model.read_prompt(prompts).save(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    cache = PromptCache.load(tmp_path / name)
    assert torch.equal(cache.ids, prompts)
    assert torch.equal(model.generate(None, 8, prompt_cache=cache, **GREEDY), expected)
    # into another process: a model of the same config and weights
    other = language_model(**keywords)
    assert torch.equal(other.generate(None, 8, prompt_cache=cache, **GREEDY), expected)


def test_past_the_window():
    model, prompts = language_model(**ROTARY, limit=8, depth=1), ids_of(2, 6, vocab=11)
    cache = model.read_prompt(prompts)
    expected = model.generate(prompts, 12, **GREEDY)
    assert torch.equal(model.generate(None, 12, prompt_cache=cache, **GREEDY), expected)
    long = ids_of(2, 12, vocab=11)
    cache = model.read_prompt(long)
    with pytest.raises(ValueError, match=r'`prompt_cache` holds 12 tokens, more than `max_seq_len` 8'):
        model.generate(None, 2, prompt_cache=cache)
    options = dict(restrict_to_max_seq_len=False, **GREEDY)
    assert torch.equal(model.generate(None, 5, prompt_cache=cache, **options), model.generate(long, 5, **options))


# what is refused


def test_files_of_other_kinds_are_refused(tmp_path):
    model, path = language_model(**ROTARY), tmp_path / 'prompt'
    cache = model.read_prompt(ids_of(1, 5, vocab=11))
    cache.save(path)
    whole = path.read_bytes()
    for content in (*(whole[:size] for size in (0, 10, len(whole) // 2, len(whole) - 30)), b'a letter', whole + b'.'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match='cannot be read as a prompt cache: the file is damaged'):
            PromptCache.load(path)
    torch.save({'format': 'x-transformers prompt 1', 'ids': cache.ids}, path)  # as the first version wrote them
    with pytest.raises(ValueError, match='or without a checksum'):
        PromptCache.load(path)
    cache.cache.save(path)
    with pytest.raises(ValueError, match="is not a prompt cache of this version: 'x-transformers cache 4'"):
        PromptCache.load(path)
    with pytest.raises(FileNotFoundError):
        PromptCache.load(tmp_path / 'nothing')
    with pytest.raises(ValueError, match='`hook` got function, which cannot be saved'):
        PromptCache(cache.ids, None, (1,), cache.logits, cache.cache, {'hook': lambda: 0}, '').save(path)


def test_files_of_safetensors(tmp_path, monkeypatch):
    """Their header is JSON that others can read; what is cut short, of another kind or damaged is refused."""
    model, path = language_model(**ROTARY), tmp_path / 'prompt.safetensors'
    cache = model.read_prompt(ids_of(1, 5, vocab=11), 0 * torch.tensor([5]) + 5)
    cache.save(path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], 'little')
    header = json.loads(whole[8 : 8 + size])
    assert header['__metadata__']['format'] == prompt_cache.FORMAT
    assert header['ids'] == {'dtype': 'I64', 'shape': [1, 5], 'data_offsets': header['ids']['data_offsets']}
    assert 'cache.layers.0.0' in header and json.loads(header['__metadata__']['content'])['dict']['ids']
    loaded = PromptCache.load(path)
    assert loaded.logits.dtype == torch.float64 and torch.equal(loaded.logits, cache.logits)
    for content in (whole[:0], whole[:10], whole[: len(whole) // 2], whole[:-30], b'a letter', whole + b'.'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match='cannot be read as a prompt cache'):
            PromptCache.load(path)
    path.write_bytes(whole.replace(b'leading', b'loading'))
    with pytest.raises(ValueError, match='its header is damaged'):
        PromptCache.load(path)
    cache.cache.save(path)
    with pytest.raises(ValueError, match="it is 'x-transformers cache 4', not 'x-transformers prompt 4'"):
        PromptCache.load(path)
    with pytest.raises(FileNotFoundError):
        PromptCache.load(tmp_path / 'nothing.safetensors')
    with pytest.raises(ValueError, match=r'`inputs.hook` got function|`hook` got function, which cannot be saved'):
        PromptCache(cache.ids, None, (1,), cache.logits, cache.cache, {'hook': lambda: 0}, '').save(path)
    away = SimpleNamespace(import_module=lambda name: importlib.import_module(f'no_{name}'))
    monkeypatch.setattr(files, 'importlib', away)
    with pytest.raises(ImportError, match=r"needs `safetensors.torch`: pip install 'x-transformers\[pretrained\]'"):
        cache.save(path)


def test_no_number_of_a_mapped_file_is_lost(tmp_path):
    """Tensors that share memory, are parts of others, or are empty; containers in containers, and plain values."""
    t = torch.arange(12.0).view(3, 4)
    content = {'a': t, 'b': [t[1:], (t[:, 2], 3, None)], 'c': {'d': t.mT, 'e': 0.1, 'f': 'x', 'g': True}, 'h': t[:0]}
    content['i'] = t.bfloat16()
    write_content(content, tmp_path / 'x.safetensors', 'some kind')
    found = files.read_mapped(tmp_path / 'x.safetensors', None, 'some kind', 'thing')
    theirs, ours = (torch.utils._pytree.tree_flatten(one) for one in (content, found))
    assert ours[1] == theirs[1]
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype if torch.is_tensor(other) else one == other
    with pytest.raises(ValueError, match='has keys that are no texts'):
        write_content({'a': {1: 2}}, tmp_path / 'x.safetensors', 'some kind')
    assert files.read_mapped(tmp_path / 'x.safetensors', None, 'some kind', 'thing')['c']['e'] == 0.1


def test_every_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / 'prompt'
    language_model(**ROTARY, dim=8, depth=1).read_prompt(ids_of(1, 5, vocab=11)).save(path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 23):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match='prompt cache'):
            PromptCache.load(path)


WRONG = {
    'ids': torch.zeros(2, 5),
    'pads': [0, 0],
    'leading': [3],
    'logits': torch.zeros(3, 11),
    'inputs': [],
    'fingerprint': 7,
    'cache': None,
    'seen': -1,
    'kinds': ['a', 'x'],
    'layers': [None],
    'remembered': [{'a': 1}, {}],
    'states': {'a': torch.zeros(4, 5)},
    'model_states': {'a': {'kind': 'ring', 'rows': torch.zeros(2, 4, 5), 'width': 0, 'length': 4}},
    'more': 1,
}


CASES = [(field, missing) for field in WRONG for missing in (False, True) if field != 'more' or not missing]


@pytest.mark.parametrize('field, missing', CASES)
def test_a_field_that_cannot_be_is_named(tmp_path, field, missing):
    cache, path = language_model(**ROTARY).read_prompt(ids_of(2, 5, vocab=11)), tmp_path / 'prompt'
    content = dict(fingerprint='', ids=cache.ids, pads=None, inputs={}, leading=[2], logits=cache.logits)
    content['cache'] = cache.cache.content()
    write_content(content, path, prompt_cache.FORMAT)
    PromptCache.load(path)  # whole, it is one
    target = content if field in (*content, 'more') else content['cache']
    target[field] = WRONG[field]
    if missing:
        del target[field]
    write_content(content, path, prompt_cache.FORMAT)
    with pytest.raises(ValueError, match=rf'`.*` cannot be read as a prompt cache: .*{field}'):
        PromptCache.load(path)


def test_rows_of_several_batches_are_refused(tmp_path):
    content = language_model(**ROTARY).read_prompt(ids_of(2, 5, vocab=11)).cache.content()
    content['states']['a'] = Buffer(torch.zeros(4, 5, 1)).content()
    write_content(content, tmp_path / 'cache', cache.FORMAT)
    with pytest.raises(ValueError, match=r'the cache holds rows of several batches: \[2, 4\]'):
        cache.Cache.load(tmp_path / 'cache')


@pytest.mark.parametrize('ending', ['', '.safetensors'])
def test_files_of_earlier_versions_are_refused_with_the_way_to_make_them_again(tmp_path, ending):
    for of, name, remedy in (
        (PromptCache, 'prompt', 'Read the prompt again with `read_prompt`, and save its cache'),
        (Cache, 'cache', 'Run the model on the tokens again with `return_intermediates=True`, and save that cache'),
    ):
        path = tmp_path / f'{name}{ending}'
        for version in (2, 3):
            write_content({}, path, f'x-transformers {name} {version}')
            with pytest.raises(ValueError, match=rf"'x-transformers {name} {version}', not .* 4'\. {remedy}"):
                of.load(path)
        write_content({}, path, 'x-transformers other 4')
        with pytest.raises(ValueError, match=rf"'x-transformers other 4', not 'x-transformers {name} 4'$"):
            of.load(path)


def test_a_fingerprint_does_not_depend_on_the_order_of_weights():
    net = language_model().net
    known = fingerprint(net)
    net._modules['token_emb'] = net._modules.pop('token_emb')
    assert list(net.state_dict())[-1] == 'token_emb.emb.weight' and fingerprint(net) == known


class FullDisk:
    """A file that takes no more than so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize('room', [0, 100, 5000])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, room):
    cache, path = language_model(**ROTARY).read_prompt(ids_of(1, 5, vocab=11)), tmp_path / 'prompt'
    cache.save(path)
    before = path.read_bytes()
    assert len(before) > 5000 and path.stat().st_mode & 0o777 == 0o666 & ~umask()
    replacing = files.replace_file

    @contextmanager
    def full(path):
        with replacing(path) as file:
            yield FullDisk(file, room)

    monkeypatch.setattr(files, 'replace_file', full)
    with pytest.raises(OSError, match='No space left'):
        cache.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def umask():
    old = os.umask(0)
    os.umask(old)
    return old


def test_the_fingerprint_sees_every_number():
    net = language_model(**ROTARY).net
    known = prompt_cache.fingerprint(net)
    assert known == prompt_cache.fingerprint(language_model(**ROTARY).net)
    for parameter in net.parameters():
        flat = parameter.data.view(-1)
        for place in (0, len(flat) // 3, len(flat) - 1):
            old = flat[place].item()
            flat[place] = old + 1e-3
            assert prompt_cache.fingerprint(net) != known
            flat[place] = old
        flat[:2] = flat[:2].flip(0)
        if flat[0] != flat[1]:
            assert prompt_cache.fingerprint(net) != known
        flat[:2] = flat[:2].flip(0)
    assert prompt_cache.fingerprint(net) == known


def test_caches_of_other_models_and_prompts_are_refused():
    model, prompts = language_model(**ROTARY), ids_of(2, 5, vocab=11)
    cache = model.read_prompt(prompts)

    def refused(words, made=cache, who=model, prompts=None, **options):
        with pytest.raises(ValueError, match=words):
            who.generate(prompts, 3, prompt_cache=made, **options)

    for other in (language_model(), language_model(**ROTARY, dim=8), language_model(**ROTARY, attn_qk_norm=True)):
        refused('`prompt_cache` is of another model', who=other)
    trained = language_model(**ROTARY)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.001)
    refused('`prompt_cache` is of another model, or its weights have changed', who=trained)

    wrong = prompts.clone()
    wrong[1, 2] = (wrong[1, 2] + 1) % 11
    refused('`prompts` must begin with the 5 tokens of `prompt_cache`', prompts=wrong)
    refused('`prompts` must begin with the 5 tokens', prompts=prompts[:, :4])
    refused('`prompts` must begin with the 5 tokens', prompts=[prompts[0], prompts[1, :3]])
    refused('`prompt_cache` holds 2 prompts, there are 3', prompts=prompts[:1].expand(3, -1))
    refused('`mask` cannot be combined with `prompt_cache`', mask=torch.ones(2, 5, dtype=torch.bool))
    refused('`prompt_cache` cannot be combined with `cache_kv=False`', cache_kv=False)


def test_a_change_of_any_tensor_is_seen():
    """Of its first number, one in the middle, or its last."""
    model = language_model(**ROTARY, depth=1)
    cache = model.read_prompt(ids_of(1, 3, vocab=11))
    for name, tensor in model.net.state_dict().items():
        flat = tensor.flatten()
        for place in (0, flat.numel() // 2, -1):
            before = flat[place].clone()
            tensor.view(-1)[place] += 1e-3
            with pytest.raises(ValueError, match='its weights have changed'):
                model.generate(None, 1, prompt_cache=cache)
            tensor.view(-1)[place] = before
            assert name and torch.equal(tensor.view(-1)[place], before)
    model.generate(None, 1, prompt_cache=cache)


# caches of keys and values by hand


def cache_by_hand(length=4, num_seen_tokens=4, num_prefix_tokens=0, **states):
    k, v = vectors_of(2, 1, length, 3), vectors_of(2, 1, length, 3, seed=1)
    return Cache([KeysValues.of((k, v))], ['a'], states, num_seen_tokens, num_prefix_tokens)


def test_a_crop_takes_back_tokens_that_were_seen():
    """Also where older ones were cut away by hand: the next token stands behind those seen."""
    cropped = cache_by_hand(length=4, num_seen_tokens=9).crop(3)
    assert (cropped.length, cropped.num_seen_tokens) == (3, 8)
    assert torch.equal(cropped.layers[0].pair[0], cache_by_hand().layers[0].pair[0][..., :3, :])


def test_a_window_may_begin_within_what_stands_in_front():
    for count, leading in ((4, 3), (2, 1), (1, 0)):
        kept = cache_by_hand(num_prefix_tokens=3).keep_last(count)
        assert (kept.length, kept.num_seen_tokens, kept.num_prefix_tokens) == (count, count, leading)


def test_gradients_reach_the_past_through_what_is_appended():
    past, new = vectors_of(1, 1, 2, 3).requires_grad_(), vectors_of(1, 1, 1, 3, seed=1).requires_grad_()
    for own, other in ((past, new), (past, new.detach()), (past.detach(), new)):
        buffer = Buffer(own * 2).append(other * 3).tensor
        wanted = [t for t in (own, other) if t.requires_grad]
        grads = torch.autograd.grad(buffer.sum(), wanted)
        assert all((g == (2 if t is own else 3)).all() for g, t in zip(grads, wanted, strict=True))


def test_files_hold_the_states_of_recurrent_modules(tmp_path):
    cache = cache_by_hand()
    cache.layers[0].states['gru'] = RecurrentValue((vectors_of(1, 2, 3), [vectors_of(1, 2, 4)]), 4, batch_first=False)
    cache.save(tmp_path / 'cache')
    (one, (two,)), (again, (too,)) = (c.layers[0].states['gru'].value for c in (cache, Cache.load(tmp_path / 'cache')))
    assert torch.equal(one, again) and torch.equal(two, too)


def test_recurrent_states_lose_their_graph():
    cache = cache_by_hand()
    cache.layers[0].states['gru'] = RecurrentValue(
        vectors_of(1, 2, 3).requires_grad_() * 2, 4, (vectors_of(1, 2, 3), 3)
    )
    assert not cache.detach().layers[0].states['gru'].value.requires_grad


def test_a_net_that_cannot_cache_is_refused():
    model = language_model(**ROTARY)
    model.net.attn_layers.can_cache_kv = False
    with pytest.raises(ValueError, match='`read_prompt` needs a model that can cache'):
        model.read_prompt(ids_of(1, 3, vocab=11))


def test_a_checksum_sees_where_numbers_stand():
    t = torch.arange(20.0, dtype=torch.float64)
    for i, j in itertools.combinations(range(20), 2):
        swapped = t.clone()
        swapped[[i, j]] = t[[j, i]]
        assert [int(one) for one in checksum(swapped)] != [int(one) for one in checksum(t)], (i, j)


def test_tokens_that_look_like_padding_are_none():
    model = language_model()
    cache = model.read_prompt([torch.tensor([5]), torch.tensor([3, 4])])
    assert cache.ids.tolist() == [[0, 5], [3, 4]]
    with pytest.raises(ValueError, match='`prompts` must begin with the 2 tokens of `prompt_cache`'):
        model.generate(torch.tensor([[0, 5], [3, 4]]), 2, prompt_cache=cache)


def test_a_fingerprint_sees_every_exchange_of_two_numbers():
    net = nn.Linear(4, 3, bias=False).double()
    numbers = torch.arange(12.0).double()
    net.weight.data.copy_(numbers.view(3, 4))
    before = fingerprint(net)
    for i, j in itertools.combinations(range(12), 2):
        swapped = numbers.clone()
        swapped[[i, j]] = numbers[[j, i]]
        net.weight.data.copy_(swapped.view(3, 4))
        assert fingerprint(net) != before, (i, j)

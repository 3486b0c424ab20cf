"""A prompt that was read once: continuations are those of the whole prompt, and a file is believed only if it fits."""

import pytest
import torch
from toy_nets import MODELS, ROTARY, ids_of, language_model, vectors_of

from x_transformers.plain_step import PlainStep
from x_transformers.prompt_cache import PromptCache

models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)
GREEDY = dict(temperature=0.0)


def reading(model, monkeypatch):
    """Counts the tokens that the net reads."""
    fed, forward, plain = [], type(model.net).forward, PlainStep.__call__

    def counting(self, x, *args, **kwargs):
        fed.append(tuple(x.shape))
        return forward(self, x, *args, **kwargs)

    def counting_plain(self, x, cache):
        fed.append(tuple(x.shape))
        return plain(self, x, cache)

    monkeypatch.setattr(type(model.net), 'forward', counting)
    monkeypatch.setattr(PlainStep, '__call__', counting_plain)
    return fed


@models
def test_continuations_are_those_of_the_whole_prompt(keywords):
    model, prompts = language_model(**keywords), ids_of(3, 6, vocab=11)
    cache = model.read_prompt(prompts)
    expected = model.generate(prompts, 8, **GREEDY)
    longer = torch.cat((prompts, ids_of(3, 3, vocab=11, seed=5)), dim=1)
    further = model.generate(longer, 8, **GREEDY)
    for _ in range(2):  # the first continuation changes nothing
        assert torch.equal(model.generate(None, 8, prompt_cache=cache, **GREEDY), expected)
        assert torch.equal(model.generate(prompts, 8, prompt_cache=cache, **GREEDY), expected)
        assert torch.equal(model.generate(longer, 8, prompt_cache=cache, **GREEDY), further)
    assert torch.equal(torch.stack(list(model.stream(None, 8, prompt_cache=cache, **GREEDY)), dim=-1), expected)


@models
def test_one_prompt_serves_many_rows(keywords):
    model, prompt = language_model(**keywords), ids_of(6, vocab=11)
    cache = model.read_prompt(prompt)
    assert torch.equal(model.generate(None, 8, prompt_cache=cache, **GREEDY), model.generate(prompt, 8, **GREEDY))
    many = torch.cat((prompt.expand(4, -1), ids_of(4, 2, vocab=11, seed=3)), dim=1)
    expected = model.generate(many, 8, **GREEDY)
    assert torch.equal(model.generate(many, 8, prompt_cache=cache, **GREEDY), expected)
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
    cache.save(tmp_path / 'prompt')
    again = PromptCache.load(tmp_path / 'prompt')
    assert torch.equal(model.generate(None, 6, prompt_cache=again, **GREEDY), expected)
    one = model.read_prompt(prompts[:1], **{name: value[:1] for name, value in given.items()})
    assert torch.equal(model.generate(prompts[:1].expand(3, -1), 6, prompt_cache=one, **GREEDY)[2], expected[0])


@models
def test_a_file_holds_all_of_it(keywords, tmp_path):
    model, prompts = language_model(**keywords), ids_of(2, 6, vocab=11)
    expected = model.generate(prompts, 8, **GREEDY)
    model.read_prompt(prompts).save(tmp_path / 'prompt')
    assert [path.name for path in tmp_path.iterdir()] == ['prompt']
    cache = PromptCache.load(tmp_path / 'prompt')
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
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match='cannot be read as a prompt cache, the file is damaged'):
            PromptCache.load(path)
    path.write_text('a letter')
    with pytest.raises(ValueError, match='cannot be read as a prompt cache'):
        PromptCache.load(path)
    cache.cache.save(path)
    with pytest.raises(ValueError, match='is not a prompt cache of this library'):
        PromptCache.load(path)
    torch.save({'format': 'x-transformers prompt 1', 'ids': cache.ids}, path)
    with pytest.raises(ValueError, match='a part is missing'):
        PromptCache.load(path)
    with pytest.raises(FileNotFoundError):
        PromptCache.load(tmp_path / 'nothing')
    with pytest.raises(ValueError, match='`hook` got function, which cannot be saved'):
        PromptCache(cache.ids, None, (1,), cache.logits, cache.cache, {'hook': lambda: 0}, '').save(path)


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
    refused('`mask` does not go with `prompt_cache`', mask=torch.ones(2, 5, dtype=torch.bool))
    refused('`prompt_cache` does not go with `cache_kv=False`', cache_kv=False)


def test_a_net_that_cannot_cache_is_refused():
    model = language_model(**ROTARY)
    model.net.attn_layers.can_cache_kv = False
    with pytest.raises(ValueError, match='`read_prompt` needs a net that can cache'):
        model.read_prompt(ids_of(1, 3, vocab=11))

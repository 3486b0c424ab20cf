"""Laws of every way to choose tokens: rows without a choice, ids without a logit, padding, the size of the batch."""

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from building import models
from oracles import randomised
from torch import nn

from x_transformers import (
    DALLE,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    DecisionTransformer,
    Decoder,
    EarlyExitWrapper,
    Encoder,
    MultiInputAutoregressiveWrapper,
    MultiInputTransformerWrapper,
    Muse,
    NonAutoregressiveWrapper,
    Paged,
    PagedEngine,
    Parti,
    PermutationLMWrapper,
    VisionLanguageWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.discover_wrapper import DiscoverDecoder
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import FullBandwidth
from x_transformers.generation.choice import GenerationHistory
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.sampling import TotalLength, gumbel_sample, sample
from x_transformers.gpt_vae import GPTVAE
from x_transformers.modalities.decision import Episode
from x_transformers.pretrained.generation import generation_keywords
from x_transformers.recirculation import Recirculation
from x_transformers.up_wrapper import SyntheticDataGenerator
from x_transformers.xm_latent_decoder import XMLatentDecoder

SMALL = dict(dim=16, depth=2, heads=2, attn_dim_head=8)
V = 11
IDS = torch.tensor([[1, 2, 3, 1], [4, 5, 6, 4]])


net = models(V, 24, **SMALL)


def language(stack=None, **around):
    return randomised(AutoregressiveWrapper(net(stack=dict(rotary_pos_emb=True, **(stack or {})), **around)), 3)


def of_streams():
    inner = MultiInputTransformerWrapper(num_tokens=dict(a=5, b=7), max_seq_len=24, attn_layers=Decoder(**SMALL))
    return MultiInputAutoregressiveWrapper(inner)


def of_numbers():
    inner = XValTransformerWrapper(num_tokens=V, max_seq_len=24, numerical_token_id=0, attn_layers=Decoder(**SMALL))
    return XValAutoregressiveWrapper(inner)


def fed_back():
    flags = dict(tie_embedding=True, post_emb_norm=True)
    return FullBandwidth(net(stack=dict(depth_scale_residual=True, rotary_pos_emb=True), **flags))


def masked(**around):
    return NonAutoregressiveWrapper(net(Encoder, max_seq_len=6, **around), mask_id=V - 1, steps=3)


def of_images():
    sizes = dict(num_text_tokens=7, text_seq_len=3, num_image_tokens=5, image_grid=2)
    return DALLE(16, 1, heads=2, **sizes)


def of_texts(**options):
    return Parti(16, 1, 1, text_tokens=V, text_len=4, image_tokens=5, grid=2, enc_heads=2, dec_heads=2, **options)


def translating():
    sides = {f'{p}{n}': v for p in ('enc_', 'dec_') for n, v in dict(num_tokens=V, max_seq_len=8, depth=1).items()}
    return XTransformer(dim=16, **sides)


def discovered():
    return DiscoverDecoder(decoder=net(), num_fillers=9, bos_id=9, pad_id=10, max_seq_len=6)


def acted(model, **options):
    return model.act(Episode().observe(torch.ones(2, 3)), 1.0, **options)


def streamed(model, **options):
    return next(model.stream(IDS, 3, **options))


def in_blocks(model, **options):
    return model.generate(IDS, 3, kv_storage=Paged(9, 4), **options)


def drafted(model, **options):
    draft = copy.deepcopy(model)
    for module in draft.modules():
        module._forward_hooks.clear()
    return model.speculative(IDS, 5, draft, **options)


COLD = dict(temperature=0.0)
WARM = dict(temperature=1.0)
T = dict(start_temperature=0.0), dict(start_temperature=1.0)
TEXT = torch.ones(2, 3, 16)
# a model, its head, and ways to ask it for tokens of two rows
WAYS = {
    'generate': (language, 'net.to_logits', lambda m, **o: m.generate(IDS, 3, **o)),
    'without a cache': (language, 'net.to_logits', lambda m, **o: m.generate(IDS, 3, cache_kv=False, **o)),
    'with an end': (language, 'net.to_logits', lambda m, **o: m.generate(IDS, 3, eos_token=2, **o)),
    'prompts of two lengths': (language, 'net.to_logits', lambda m, **o: m.generate([IDS[0], IDS[1, :2]], 3, **o)),
    'stream': (language, 'net.to_logits', streamed),
    'look-up': (language, 'net.to_logits', lambda m, **o: m.speculative(IDS, 5, **o)),
    'a draft': (language, 'net.to_logits', drafted),
    'blocks': (language, 'net.to_logits', in_blocks),
    'beams': (language, 'net.to_logits', lambda m, **o: m.beam_search(IDS, 3, 2, **o)),
    'drawn beams': (language, 'net.to_logits', lambda m, **o: m.beam_search(IDS, 3, 2, stochastic=True, **o)),
    'segments': (lambda: XLAutoregressiveWrapper(net(max_mem_len=4)), 'net.to_logits',
                 lambda m, **o: m.generate(IDS, 3, **o)),
    'streams': (of_streams, 'net.to_logits.a', lambda m, **o: m.generate(dict(a=IDS % 5, b=IDS), 3, **o)),
    'numbers': (of_numbers, 'net.to_logits', lambda m, **o: m.generate(IDS, IDS.float(), 3, **o)),
    'beliefs': (lambda: BeliefStateWrapper(net()), 'text_head',
                lambda m, **o: m.generate_with_suffix_cond(IDS, 3, **o)),
    'latents': (lambda: FreeTransformer(num_tokens=V, dim=16, dec_head_depth=1, dec_tail_depth=1, latent_bits=2,
                                        heads=2, attn_dim_head=8), 'token_unembed',
                lambda m, **o: m.generate(IDS, 7, **o)),
    'recirculation': (lambda: AutoregressiveWrapper(Recirculation(net(), 1, 0)), 'net.net.to_logits',
                      lambda m, **o: m.generate(IDS, 3, **o)),
    'feedback': (fed_back, 'net.to_logits', lambda m, **o: m.generate(IDS, 3, **o)),
    'early exits': (lambda: EarlyExitWrapper(net()), 'net.to_logits', lambda m, **o: m.generate(IDS, 3, **o)),
    'a latent': (lambda: GPTVAE(num_tokens=V, depth=1, enc_depth=1, max_seq_len=12, dim=16, heads=2, attn_dim_head=8),
                 'decoder.to_logits', lambda m, **o: m.generate(IDS, 3, **o)),
    'a source': (translating, 'decoder.net.to_logits', lambda m, **o: m.generate(IDS, IDS[:, :1], 3, **o)),
    'masked': (masked, 'net.to_logits', lambda m, **o: m.generate(2, **o)),
    'any order': (lambda: PermutationLMWrapper(net(Encoder, dict(two_stream=True))), 'net.to_logits',
                  lambda m, **o: m.infill(IDS, torch.arange(4) > torch.tensor([[2], [1]]), **o)),
    'one stream': (of_images, 'to_logits', lambda m, **o: m.generate(IDS[:, :2], **o)),
    'two stacks': (of_texts, 'decoder.net.to_logits', lambda m, **o: m.generate(IDS[:, :2], **o)),
    'noise': (lambda: SyntheticDataGenerator(16, V), 'to_logits', lambda m, **o: m.generate(3, IDS, **o)),
    'decisions': (lambda: DecisionTransformer(3, 4, Decoder(**SMALL), discrete=True), 'to_action', acted),
}  # fmt: skip
MUSE = lambda: Muse(NonAutoregressiveWrapper(net(Encoder, dict(cross_attend=True), max_seq_len=4), mask_id=0))  # noqa: E731
WAYS['texts'] = (MUSE, 'base.net.to_logits', lambda m, **o: m.generate(TEXT, **o))


def broken(name, value):
    """A model that gives a value for all logits of its second row, or hypotheses of it."""
    build, head, call = WAYS[name]
    model = build().eval()

    def spoiled(module, args, out):
        return torch.cat((out[: len(out) // 2], torch.full_like(out[len(out) // 2 :], value)))

    if name == 'blocks':  # whose requests may be read apart

        def spoiled(module, args, out):
            return torch.full_like(out, value) if (args[0].shape[0] == 1) else torch.cat((out[:1], out[1:] + value))

    model.get_submodule(head).register_forward_hook(spoiled)
    return model, call


@pytest.mark.parametrize(('value', 'words'), [(math.nan, 'NaN'), (-math.inf, 'nothing left'), (math.inf, 'infinite')])
@pytest.mark.parametrize('name', WAYS)
def test_a_row_without_a_choice_is_named(name, value, words):
    options = T if name in ('masked', 'texts') else (COLD, WARM)
    for own in options:
        model, call = broken(name, value)
        with pytest.raises(ValueError, match='row [01]' if name == 'blocks' else 'row 1') as caught:
            call(model, **own)
        assert words in str(caught.value)
        build, _, call = WAYS[name]
        call(build().eval(), **own)  # which is no fault of the call


def nothing(ids, logits):
    return torch.full_like(logits, -math.inf)


def test_rows_that_have_ended_need_no_choice():
    """A grammar may allow nothing behind the end of a row, in a batch, a speculation, blocks and a search."""
    model = language()

    def grammar(ids, logits):  # counts up to 7, then ends by 8
        last = ids[:, -1:]
        allowed = torch.full_like(logits, -math.inf).scatter(1, (last + 1).clamp(max=V - 1), 0.0)
        return allowed.masked_fill(last >= 8, -math.inf)

    prompts, options = torch.tensor([[1, 6], [1, 3]]), dict(eos_token=8, logits_processor=grammar)
    wanted = torch.tensor([[7, 8, 0, 0, 0], [4, 5, 6, 7, 8]])
    for own in (COLD, WARM):
        assert torch.equal(model.generate(prompts, 5, **own, **options), wanted)
        assert torch.equal(model.speculative(prompts, 5, **own, **options), wanted)
        assert torch.equal(model.generate(prompts, 5, kv_storage=Paged(9, 4), **own, **options), wanted)
    assert torch.equal(model.beam_search(prompts, 5, 3, **options), wanted)
    with pytest.raises(ValueError, match=r'row 0 has nothing left'):
        model.generate(prompts, 5, **COLD, **{**options, 'eos_token': 9})


def test_the_row_is_named_in_the_axes_of_the_prompts():
    model, one = language(), torch.tensor([4, 5, 6, 4])

    def picky(ids, logits):
        return torch.where((ids[:, :4] == one).all(dim=-1, keepdim=True), -math.inf, logits)

    for prompts, own, row in (
        (IDS.view(2, 1, 4), {}, r'row \(1, 0\)'), (IDS, dict(num_samples=3), r'row \(1, 0\)'), (one, {}, 'row 0')
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f'{row} has nothing left'):
            model.generate(prompts, 2, logits_processor=picky, **own)


def test_a_request_without_a_choice_ends_and_others_go_on():
    model = language()
    for own in (COLD, WARM):
        engine = PagedEngine(model, 20, 4)
        numbers = [engine.add(row, 3, logits_processor=p, **own) for row, p in zip(IDS, (None, nothing), strict=True)]
        found = engine.run()
        assert found[numbers[0]].finish_reason == 'length' and len(found[numbers[0]].tokens) == 3
        error = found[numbers[1]].error
        assert found[numbers[1]].finish_reason == 'error' and isinstance(error, ValueError)
        assert 'request 1 has nothing left' in str(error) and engine.pool.used == 0


class Looks(torch.overrides.TorchFunctionMode):
    """Counts looks at values, for which a device would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        names = ('item', 'tolist', '__bool__', '__int__', '__float__', 'nonzero', 'cpu')
        self.count += getattr(func, '__name__', '') in names
        return func(*args, **(kwargs or {}))


@pytest.mark.costly
def test_checks_wait_for_no_device(monkeypatch):
    """Where values cannot be looked at for free, a generation looks once more at its end, and not at each step."""
    monkeypatch.setattr('x_transformers.generation.failures.can_read_values', lambda t: False)
    monkeypatch.setattr('x_transformers.core.checks.can_read_values', lambda t: False)
    model, counts = language(), []
    for steps in (3, 9):
        for options in (COLD, WARM, dict(eos_token=10, **COLD)):
            with Looks() as looks:
                model.generate(IDS, steps, **options)
            counts.append(looks.count)
    cold, warm, ends, cold_9, warm_9, ends_9 = counts
    assert cold == cold_9 and warm == warm_9 and ends_9 - ends <= 6  # with an end, one look a step as ever
    bad = language()
    bad.net.to_logits.weight.data[3] = math.nan
    for options in (COLD, WARM, dict(eos_token=10)):
        with pytest.raises(ValueError, match='logits of row 0 are NaN'):
            bad.generate(IDS, 3, **options)
    for search in (partial(bad.beam_search, beams=2), bad.speculative, partial(bad.beam_search, eos_token=10)):
        with pytest.raises(ValueError, match='logits of row 0 are NaN'):
            search(IDS, 3)


def test_failed_rows():
    rows = FailedRows((2, 2))
    rows.add(torch.tensor([0.0, 1.0, 2.0, -9.0]))
    rows.add(torch.tensor([0.0, math.nan, 2.0, 3.0]), ignored=torch.tensor([False, True, False, False]))
    rows.raise_first()
    with pytest.raises(ValueError, match=r'row \(1, 1\) has nothing left'):
        rows.add(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, -math.inf]]))
    for draw in (sample, gumbel_sample):
        for temperature in (0.0, 1.0):
            with pytest.raises(ValueError, match='row 1 are NaN'):
                draw(torch.tensor([[1.0, 2.0], [math.nan, 0.0]]), temperature)
    assert sample(torch.tensor([[-math.inf, 2.0]]), 1.0).tolist() == [1]


def test_draws_are_those_of_torch():
    logits, seeded = torch.randn(50, 7), lambda: torch.Generator().manual_seed(1)
    wanted = torch.multinomial((logits / 0.7).softmax(dim=-1), 1, generator=seeded())[:, 0]
    assert torch.equal(sample(logits, 0.7, seeded()), wanted)


@pytest.mark.parametrize(
    'options',
    [
        dict(logit_bias={3: math.nan}), dict(logit_bias={3: math.inf}), dict(repetition_penalty=math.inf),
        dict(repetition_penalty=math.nan), dict(presence_penalty=math.nan), dict(frequency_penalty=-math.inf),
        dict(temperature=math.inf), dict(temperature=math.nan),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_are_none_are_refused_before_computing(options, monkeypatch):
    model, (name,) = language(), options
    engine = PagedEngine(model, 9)
    monkeypatch.setattr(type(model.net), 'forward', lambda *a, **k: pytest.fail('it computed'))
    for call in (model.generate, model.stream, model.speculative, model.beam_search):
        with pytest.raises(ValueError, match=f'`{name}` must .*got'):
            call(IDS, 3, **options)
    with pytest.raises(ValueError, match=f'`{name}` must .*got'):
        engine.add(IDS[0], 3, **options)


# ids without a logit


OPTIONS = {
    'repetition': dict(repetition_penalty=1.7),
    'presence': dict(presence_penalty=0.8),
    'frequency': dict(frequency_penalty=0.5),
    'bias': dict(logit_bias={2: 1.0, 9: 5.0}),
    'banned': dict(banned_tokens=[1, 9]),
    'allowed': dict(allowed_tokens=[0, 3, 4, 9]),
    'processors': dict(logits_processor=generation_keywords(
        dict(no_repeat_ngram_size=2, bad_words_ids=[[9], [3, 4], [9, 9]], begin_suppress_tokens=[1, 9])
    )['logits_processor']),
}  # fmt: skip


@pytest.mark.parametrize('name', OPTIONS)
def test_ids_that_cannot_be_said_count_for_nothing(name):
    """A model of 11 tokens that says the first 5 of them: in all ways it does what it would do if it had 11 logits, of
    which the others are never the largest."""
    model, whole = language(logits_dim=5), language()
    whole.net.load_state_dict({**whole.net.state_dict(), **{n: t for n, t in model.net.state_dict().items()
                                                           if 'to_logits' not in n}})  # fmt: skip
    with torch.no_grad():
        whole.net.to_logits.weight[:5] = model.net.to_logits.weight
    whole.net.to_logits.register_forward_hook(lambda m, a, out: out.masked_fill(torch.arange(V) >= 5, -1e4))
    prompts, own = torch.tensor([[9, 3, 9, 9, 3], [7, 10, 1, 9, 10]]), {**COLD, **OPTIONS[name]}
    wanted = whole.generate(prompts, 6, **own)
    assert torch.equal(model.generate(prompts, 6, **own), wanted)
    assert torch.equal(model.generate(prompts, 6, cache_kv=False, **own), wanted)
    assert torch.equal(torch.stack(list(model.stream(prompts, 6, **own)), dim=1), wanted)
    assert torch.equal(model.speculative(prompts, 6, **own), wanted)
    assert torch.equal(model.generate(prompts, 6, kv_storage=Paged(20, 4), **own), wanted)
    assert torch.equal(model.beam_search(prompts, 6, 1, **own), wanted)
    drawn = model.speculative(prompts, 6, **{**own, 'temperature': 1.0})
    assert drawn.max() < 5


def test_bans_that_leave_nothing_to_say_are_refused_before_computing(monkeypatch):
    model = language(logits_dim=5)
    monkeypatch.setattr(type(model.net), 'forward', lambda *a, **k: pytest.fail('it computed'))
    for options in (dict(banned_tokens=range(5)), dict(allowed_tokens=[7])):
        with pytest.raises(ValueError, match='must leave a token'):
            model.generate(IDS, 2, **options)


@pytest.mark.parametrize('name', ['repetition', 'presence', 'frequency'])
@pytest.mark.parametrize('kind', ['one stream', 'two stacks'])
def test_words_count_for_no_token_of_an_image(kind, name):
    """Penalties by hand: of the tokens of the image so far, whatever the words of the text are."""
    build, head, _ = WAYS[kind]
    model, text = randomised(build().eval(), 2), torch.tensor([[6, 1]])
    given = {'repetition': 1.0, 'presence': 0.0, 'frequency': 0.0}
    rep, pres, freq = (OPTIONS[name].get(f'{n}_penalty', off) for n, off in given.items())
    said = []
    for _ in range(4):
        rows = []
        handle = model.get_submodule(head).register_forward_hook(lambda m, a, out, rows=rows: rows.append(out[0, -1]))
        prime = torch.tensor([said], dtype=torch.long)
        model.generate(text, prime=prime, **COLD)
        handle.remove()
        logits = rows[0][-5:].tolist()  # the first reading, of the text and the beginning
        for token in range(5):
            z = logits[token]
            if token in said:
                z = z / rep if z > 0 else z * rep
            logits[token] = z - pres * (token in said) - freq * said.count(token)
        said.append(max(range(5), key=lambda token: logits[token]))
    assert model.generate(text, **COLD, **OPTIONS[name]).tolist() == [said]


# what is padding or not known yet is no answer


@pytest.mark.costly
def test_padding_is_never_an_answer():
    free = FreeTransformer(num_tokens=5, dim=16, dec_head_depth=1, dec_tail_depth=1, latent_bits=2, heads=2,
                           attn_dim_head=8, pad_id=4)  # fmt: skip
    vae = GPTVAE(num_tokens=5, depth=1, enc_depth=1, max_seq_len=20, dim=16, heads=2, attn_dim_head=8, pad_id=4)
    order = PermutationLMWrapper(net(Encoder, dict(two_stream=True), num_tokens=5), pad_token_id=4)
    segments = XLAutoregressiveWrapper(net(num_tokens=5, max_mem_len=4), ignore_index=4)
    one, prompts, all_missing = AutoregressiveWrapper(net(num_tokens=5), ignore_index=4), IDS % 4, IDS > 0
    for own in (COLD, WARM):
        for found in (
            free.generate(prompts, 16, **own), vae.generate(prompts, 12, **own), segments.generate(prompts, 12, **own),
            one.generate(prompts, 12, **own), one.speculative(prompts, 12, **own), one.beam_search(prompts, 12),
            one.generate(prompts, 12, kv_storage=Paged(20, 4), **own), order.infill(prompts, all_missing, **own),
        ):  # fmt: skip
            assert not (found == 4).any()
    around = dict(num_tokens=5, logits_bias=True, tie_embedding=True, post_emb_norm=True)
    likely = net(stack=dict(depth_scale_residual=True), **around)
    likely.to_logits.bias.data[4] = 50.0
    latents, passes = XMLatentDecoder(likely, ignore_index=4), FullBandwidth(likely, ignore_index=4)
    images = ViTransformerWrapper(image_size=4, patch_size=2, attn_layers=Encoder(**SMALL))
    seen = VisionLanguageWrapper(images, AutoregressiveWrapper(likely), image_token_id=4, feature_layer=-1)
    image, text = torch.randn(1, 3, 4, 4), torch.tensor([[4, 1, 2]])
    for found in (
        latents.generate(prompts, 5, **COLD),
        passes.generate(prompts, 5, **COLD),
        seen.generate(text, 5, image, **COLD),
        seen.generate(text, 5, image, **COLD, banned_tokens=[0]),
    ):
        assert not (found == 4).any()
    assert not (found == 0).any()
    made = randomised(discovered().double(), 1)
    made.decoder.to_logits.weight.data[10] *= 50
    assert not (made.decode(torch.randn(8, 16).double(), torch.full((8,), 6)) == 10).any()


# rules and padding


SAID = {
    'groups of one': dict(no_repeat_ngram_size=1),
    'groups of two': dict(no_repeat_ngram_size=2),
    'words': dict(bad_words_ids=[[3], [5, 1], [5, 5, 2], [2, 4]]),
    'repetition': dict(repetition_penalty=1.8),
    'first': dict(forced_bos_token_id=7, begin_suppress_tokens=[0, 2, 4, 6, 8]),
    'begin': dict(begin_suppress_tokens=[0, 2, 4, 6, 8, 10]),
    'end': dict(forced_eos_token_id=9, eos_token_id=9, min_new_tokens=4),
    'least': dict(eos_token_id=[1, 2, 3, 4, 5, 6], min_length=8),
}


def test_tokens_that_may_not_be_the_first():
    """Of rows of any length: what each would say first is not said first, and may be said later."""
    model, prompts = language(), [torch.tensor(ids) for ids in ([1, 5], [2], [5, 2, 4, 5, 1, 3, 3])]
    first = model.generate(prompts, 1, **COLD).flatten().tolist()
    found = model.generate(prompts, 9, **generation_keywords(dict(begin_suppress_tokens=first, do_sample=False)))
    assert not {*found[:, 0].tolist()} & {*first} and {*found[:, 1:].flatten().tolist()} & {*first}


@pytest.mark.parametrize('name', SAID)
def test_rules_know_which_tokens_are_real(name):
    """Beside a longer prompt, padded by lengths, a list, or masks on either side and between, as alone."""
    model, said = language(), generation_keywords(SAID[name])
    model.pad_value = 5
    short, one, long = torch.tensor([1, 5]), torch.tensor([2]), torch.tensor([5, 2, 4, 5, 1, 3, 3])
    alone = [model.generate(p, 6, **said) for p in (short, one, long)]

    def check(found):
        for row, wanted in zip(found, alone, strict=True):
            assert row[: len(wanted)].tolist() == wanted.tolist() and (row[len(wanted) :] == 5).all()

    prompts = [short, one, long]
    padded, lens = torch.tensor([[1, 5, *[5] * 5], [2, *[5] * 6], long.tolist()]), [2, 1, 7]
    ways = {
        'list': lambda **o: model.generate(prompts, 6, **o),
        'lengths': lambda **o: model.generate(padded, 6, prompt_lens=lens, **o),
        'no cache': lambda **o: model.generate(prompts, 6, cache_kv=False, **o),
        'stream': lambda **o: torch.stack(list(model.stream(prompts, 6, **o)), dim=1),
        'look-up': lambda **o: model.speculative(prompts, 6, **o),
        'blocks': lambda **o: model.generate(prompts, 6, kv_storage=Paged(40, 4), **o),
        'beams': lambda **o: model.beam_search(prompts, 6, 1, **{n: v for n, v in o.items() if n != 'temperature'}),
    }
    for way in ways.values():
        check(way(**said))
    samples = model.generate(prompts, 6, num_samples=2, **said)
    check(samples[:, 0]), check(samples[:, 1])


@pytest.mark.parametrize('name', SAID)
@pytest.mark.parametrize('seen', [(0, 0, 1, 1, 1), (1, 1, 1, 0, 0), (0, 1, 0, 1, 1)], ids=['left', 'right', 'between'])
def test_rules_skip_what_a_mask_hides(name, seen):
    """What a mask hides may be any token, and `history` shows the rest as one text."""
    said, mask = generation_keywords(SAID[name]), torch.tensor([seen], dtype=torch.bool)
    prompt = torch.tensor([[5, 2, 4, 5, 1]])
    ids = torch.cat((prompt, torch.tensor([[3, 5]])), dim=1)
    for hidden in (5, 2, 0):
        given = ids.clone()
        given[:, :5] = given[:, :5].masked_fill(~mask, hidden)
        real = given[:, torch.cat((mask, torch.ones(1, 2, dtype=torch.bool)), dim=1)[0]]
        own, logits = GenerationHistory(given, 5, mask=mask, max_new_tokens=3), torch.linspace(-1, 1, V)[None]
        bare = GenerationHistory(real, 3, max_new_tokens=3)
        for rule in said.get('logits_processor', ()):
            assert torch.equal(rule(given, logits, history=own), rule(real, logits, history=bare))
    model = language()
    outs = [model.generate(prompt.masked_fill(~mask, hidden), 6, mask=mask, **said) for hidden in (5, 2, 0)]
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def test_processors_of_users_may_ask_for_the_history():
    model, seen = language(), []

    def rule(ids, logits, history):
        seen.append((history.token_mask.clone(), history.num_generated, history.max_new_tokens))
        assert torch.equal(history.ids, ids) and (history.generated_mask.sum(dim=-1) == history.num_generated).all()
        return logits

    class Module(nn.Module):
        def forward(self, ids, logits, *, history=None):
            return rule(ids, logits, history)

    for processor in (rule, Module(), partial(rule)):
        seen.clear()
        model.generate([IDS[0], IDS[1, :2]], 3, logits_processor=processor, **COLD)
        assert [(made, most) for _, made, most in seen] == [(0, 3), (1, 3), (2, 3)]
        assert [mask.sum(-1).tolist() for mask, *_ in seen] == [[4, 2], [5, 3], [6, 4]]
        assert not seen[0][0][1, :2].any()
    model.generate(IDS, 2, logits_processor=[lambda ids, logits, other=3: logits + other])


# lengths


@pytest.mark.costly
def test_a_total_length_counts_the_prompt():
    length = TotalLength(9)
    assert length == 8 and length.total == 9
    for twin in (pickle.loads(pickle.dumps(length)), copy.deepcopy(length)):
        assert twin.total == 9 and twin == 8
    model = language()
    for ids in (IDS[:, :1], IDS):
        n = 9 - ids.shape[1]
        wanted = model.generate(ids, n, **COLD)
        assert torch.equal(model.generate(ids, length, **COLD), wanted)
        assert torch.equal(torch.stack(list(model.stream(ids, length, **COLD)), dim=1), wanted)
        assert torch.equal(model.speculative(ids, length, **COLD), wanted)
        assert torch.equal(model.generate(ids, length, kv_storage=Paged(20, 4), **COLD), wanted)
        assert model.beam_search(ids, length).shape == wanted.shape
        engine = PagedEngine(model, 20)
        number = engine.add(ids[0], length, **COLD)
        assert torch.equal(engine.run()[number].tokens, wanted[0])
    with pytest.raises(ValueError, match=r'must leave a token to generate, got 4 tokens in all .* prompts of 4'):
        model.generate(IDS, TotalLength(4))


# the batch


def looped(**flags):
    made = net(stack=dict(pre_and_post_norm=True, rotary_pos_emb=True), looped=True, max_looped_steps=3, **flags)
    return randomised(AutoregressiveWrapper(made.double()), 5)


@pytest.mark.costly
def test_a_looped_net_says_the_same_alone():
    """Tokens and log probabilities depend neither on other rows nor on the cache, in any way to generate."""
    model, prompts = looped(), torch.cat((IDS, IDS.flip(1), IDS % 3))
    options = dict(return_log_probs=True, **COLD)
    whole = model.generate(prompts, 6, **options)
    plain = model.generate(prompts, 6, cache_kv=False, **options)
    assert torch.equal(whole.tokens, plain.tokens) and torch.allclose(whole.log_probs, plain.log_probs)
    beams = model.beam_search(prompts, 6, 3)
    for row, prompt in enumerate(prompts):
        for cache_kv in (True, False):
            made = model.generate(prompt, 6, cache_kv=cache_kv, **options)
            assert torch.equal(made.tokens, whole.tokens[row])
            assert torch.allclose(made.log_probs, whole.log_probs[row])
        assert torch.equal(model.speculative(prompt, 6, **COLD), whole.tokens[row])
        with pytest.raises(ValueError, match='a net whose past cannot stand in blocks'):
            model.generate(prompt, 6, kv_storage=Paged(20, 4), **COLD)
        assert torch.equal(model.beam_search(prompt, 6, 3), beams[row])


def test_exits_of_a_looped_net_are_asked_for():
    model, one = looped(), IDS[:1]
    deep, steps = dict(looped_inference=True, looped_exit_prob_threshold=0.0), []
    handle = model.net.attn_layers.register_forward_hook(lambda *_: steps.append(1))
    model.generate(one, 4, **COLD)
    assert len(steps) == 12
    steps.clear()
    model.generate(one, 4, **COLD, **deep)
    assert len(steps) == 3 + 3  # the prompt runs all passes, later tokens one
    handle.remove()
    for call, words in (
        (lambda: model.generate(IDS, 4, looped_inference=True), '`looped_inference` must be False for 2 rows'),
        (lambda: model.generate(one, 4, num_samples=3, looped_inference=True), 'must be False for 3 rows'),
        (lambda: model.generate(one, 4, cache_kv=False, looped_inference=True), '`looped_inference` needs the cache'),
        (lambda: model.beam_search(one, 4, 2, looped_inference=True), 'must be False for 2 rows'),
        (lambda: model.speculative(IDS, 4, looped_inference=True), 'must be False for 2 rows'),
        (lambda: model.generate(one, 4, looped_exit_prob_threshold=0.5), 'needs `looped_inference=True`'),
    ):
        with pytest.raises(ValueError, match=words):
            call()

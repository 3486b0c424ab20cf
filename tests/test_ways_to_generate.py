"""Laws of generation: every option of choosing a token and of ending a row, in every way to generate, against a plain
loop; prompts as Python has them; padding is not text; scores of given texts."""

from functools import lru_cache, partial

import numpy as np
import pytest
import torch
from torch import tensor

from x_transformers import (
    DALLE,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    Decoder,
    Encoder,
    EncoderDecoder,
    MultiInputAutoregressiveWrapper,
    MultiInputTransformerWrapper,
    NonAutoregressiveWrapper,
    Paged,
    Parti,
    TransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.autoregressive_wrapper import top_k, top_p
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import FullBandwidth
from x_transformers.gpt_vae import GPTVAE
from x_transformers.up_wrapper import SyntheticDataGenerator
from x_transformers.xm_latent_decoder import XMLatentDecoder

V, STEPS = 17, 5
SIZES = dict(dim=16, depth=1, heads=2, attn_dim_head=8)


def sharp(model, seed=0):
    """Weights large enough that options decide, and no two logits are equal."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model.double().eval()


def net(stack=Decoder, around=None, **flags):
    return TransformerWrapper(num_tokens=V, max_seq_len=32, attn_layers=stack(**SIZES | flags), **(around or {}))


def language(**flags):
    return sharp(AutoregressiveWrapper(net(**flags)))


def translator():
    torch.manual_seed(0)
    sizes = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in SIZES.items() if name != 'dim'}
    sizes |= {
        f'{side}_{name}': value for side in ('enc', 'dec') for name, value in (('num_tokens', V), ('max_seq_len', 32))
    }
    return sharp(XTransformer(dim=16, **sizes))


def listener():
    model = sharp(EncoderDecoder(net(Encoder), AutoregressiveWrapper(net(cross_attend=True))))
    return model, tensor([[1, 2, 3]])


def numbers():
    sizes = dict(num_tokens=V, numerical_token_id=V - 1, max_seq_len=32, attn_layers=Decoder(**SIZES))
    return sharp(XValAutoregressiveWrapper(XValTransformerWrapper(**sizes)))


def streams():
    sizes = dict(num_tokens=dict(a=V), max_seq_len=32, attn_layers=Decoder(**SIZES))
    return sharp(MultiInputAutoregressiveWrapper(MultiInputTransformerWrapper(**sizes)))


# ways to generate: from a prompt (n), a number of tokens and options to new tokens (s)


def in_stream(model, prompt, steps, **options):
    made = list(model.stream(prompt, steps, **options))
    return torch.stack(made, dim=-1) if made else tensor([])


def from_cache(model, prompt, steps, **options):
    return model.generate(prompt, steps, prompt_cache=model.read_prompt(prompt), **options)


def with_source(method, model, source, prompt, steps, *more, **options):
    return getattr(model, method)(source, prompt[None], steps, *more, **options)[0]


@lru_cache
def ways():
    """Return name -> (call, whether it chooses by temperature)."""
    model, paged = language(), dict(kv_storage=Paged(16, 4))
    fast = language(rotary_pos_emb=True)
    t5, (whisper, sound) = translator(), listener()
    source = tensor([[3, 1, 4]])
    sizes = dict(num_tokens=V, dim=16, max_seq_len=32, heads=2, attn_dim_head=8, verbose=False)
    vae = sharp(GPTVAE(**sizes, depth=1, enc_depth=1, dim_latent=4))
    free = sharp(FreeTransformer(**sizes, dec_head_depth=1, dec_tail_depth=1, latent_bits=2))
    belief = sharp(BeliefStateWrapper(net(), net()))
    fed = net(
        around=dict(tie_embedding=True, post_emb_norm=True), depth_scale_residual=True, depth=4, rotary_pos_emb=True
    )
    fed = sharp(FullBandwidth(fed))
    latent = sharp(XMLatentDecoder(net(), num_latents=2))
    xl = sharp(XLAutoregressiveWrapper(net()))
    up = sharp(SyntheticDataGenerator(dim=8, num_tokens=V, max_seq_len=64))
    xval, multi = numbers(), streams()
    return {
        'generate': model.generate,
        'without a cache': partial(fast.generate, cache_kv=False),
        'stream': partial(in_stream, model),
        'blocks': partial(fast.generate, **paged),
        'stream of blocks': partial(in_stream, fast, **paged),
        'speculative': fast.speculative,
        'beams': lambda p, s, temperature=0.0, **o: fast.beam_search(p, s, 1, **o),
        'prompt cache': partial(from_cache, model),
        'translation': partial(with_source, 'generate', t5, source),
        'beams of a translation': lambda p, s, temperature=0.0, **o: with_source(
            'beam_search', t5, source, p, s, 1, **o
        ),
        'sound': partial(with_source, 'generate', whisper, sound),
        'latent': vae.generate,
        'candidates': partial(latent.generate, latents=torch.ones(2, 16).double()),
        'free': lambda p, s, **o: free.generate(p, len(p) + s, **o)[len(p) :],
        'belief': belief.generate_with_suffix_cond,
        'fed back': partial(fed.generate, temporal_parallel_passes=1),
        'segments': xl.generate,
        'recurrent': lambda p, s, **o: up.generate(s, p[None], **o)[0, len(p) :],
        'numbers': lambda p, s, **o: xval.generate(p, torch.ones(len(p)).double(), s, **o).sampled_token_ids,
        'streams': lambda p, s, **o: multi.generate({'a': p}, s, **o)['a'],
    }


# a plain loop


def logits_of(call, row):
    """Return what a way to generate says after a row, read as a prompt."""
    seen = []
    call(tensor(row), 1, temperature=0.0, logits_processor=lambda ids, logits: seen.append(logits) or logits)
    return seen[0][0].clone()


def by_hand(
    call, prompt, steps=STEPS, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias=(),
    banned_tokens=(), allowed_tokens=range(V), no_repeat_ngram_size=0, min_new_tokens=0, eos_token=(),
    stop_sequences=(), logits_processor=None,
):  # fmt: skip
    row, made = list(prompt), []
    ends = (eos_token,) if isinstance(eos_token, int) else eos_token
    while len(made) < steps:
        z = logits_of(call, row)
        for v in range(V):
            if v in row:
                z[v] = z[v] / repetition_penalty if z[v] > 0 else z[v] * repetition_penalty
            z[v] -= presence_penalty * (v in made) + frequency_penalty * made.count(v) - dict(logit_bias).get(v, 0.0)
            twice = no_repeat_ngram_size and len(row) >= no_repeat_ngram_size - 1
            if twice:
                n = no_repeat_ngram_size
                groups = [row[at : at + n] for at in range(len(row) - n + 1)]
                twice = [*row[len(row) - n + 1 :], v] in groups
            early = v in ends and len(made) < min_new_tokens
            if v in banned_tokens or v not in allowed_tokens or twice or early:
                z[v] = -torch.inf
        z = z if logits_processor is None else logits_processor(tensor([row]), z[None])[0]
        made.append(int(z.argmax()))
        row.append(made[-1])
        stopped = any(made[-len(one) :] == list(one) for one in stop_sequences) and len(made) >= min_new_tokens
        if made[-1] in ends or stopped:
            break
    return made


@lru_cache
def plain_tokens(way):
    return by_hand(ways()[way], PROMPT)


def options_for(free):
    """Return options that change what is generated without any, `free`."""
    return {
        'repetition_penalty': dict(repetition_penalty=3.0),
        'presence_penalty': dict(presence_penalty=4.0),
        'frequency_penalty': dict(frequency_penalty=3.0),
        'logit_bias': dict(logit_bias={(free[0] + 1) % V: 50.0}),
        'banned_tokens': dict(banned_tokens=[free[0]]),
        'allowed_tokens': dict(allowed_tokens=[(free[0] + 1) % V, (free[0] + 2) % V]),
        'no_repeat_ngram_size': dict(no_repeat_ngram_size=1),
        'no pair twice': dict(no_repeat_ngram_size=2, allowed_tokens=[1, 2, 4, 5]),
        'eos_token': dict(eos_token=[free[1], free[3]]),
        'min_new_tokens': dict(eos_token=free[0], min_new_tokens=3),
        'stop_sequences': dict(stop_sequences=[free[2:4], [free[-1]]]),
        'no early stop': dict(stop_sequences=[[free[0]], free[2:4]], min_new_tokens=2),
        'logits_processor': dict(logits_processor=lambda ids, logits: -logits),
    }


WAYS = (
    'generate', 'without a cache', 'stream', 'blocks', 'stream of blocks', 'speculative', 'beams', 'prompt cache',
    'translation', 'beams of a translation', 'sound', 'latent', 'candidates', 'free', 'belief', 'fed back', 'segments',
    'recurrent', 'numbers', 'streams',
)  # fmt: skip
PROMPT = [1, 2, 3, 1, 2]
OPTIONS = list(options_for(list(range(STEPS))))


@pytest.mark.parametrize('option', OPTIONS)
@pytest.mark.parametrize('way', WAYS)
def test_every_option_has_its_effect_in_every_way(way, option):
    call = ways()[way]
    given = options_for(plain_tokens(way))[option]
    made = call(tensor(PROMPT), STEPS, temperature=0.0, **given).tolist()
    assert made == by_hand(call, PROMPT, **given)


def test_all_ways_are_tried():
    assert tuple(ways()) == WAYS


@pytest.mark.parametrize('way', WAYS)
def test_several_filters_and_a_generator_in_every_way(way):
    """Filters act in order. A generator alone decides what is drawn, and leaves that of torch as it is."""
    call, state = ways()[way], torch.get_rng_state()
    heat = {} if 'beams' in way else dict(temperature=2.0)
    both = dict(filter_logits_fn=['top_k', top_p], filter_kwargs=[dict(k=3), dict(thres=0.9)], **heat)

    def draw(seed, **options):
        return call(tensor(PROMPT), STEPS, generator=torch.Generator().manual_seed(seed), **options)

    made = draw(1, **both)
    torch.rand(1)
    assert torch.equal(made, draw(1, **both)) and torch.equal(
        made, draw(1, filter_logits_fn=lambda logits: top_p(top_k(logits, k=3), 0.9), **heat)
    )
    assert 'beams' in way or len({tuple(draw(seed, **both).tolist()) for seed in range(8)}) > 1
    torch.set_rng_state(state)
    draw(2, **both)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_draws_latents_too():
    model, sizes = sharp(XMLatentDecoder(net(), num_latents=2)), dict(dim=16, heads=2, attn_dim_head=8, dim_latent=4)
    vae = sharp(GPTVAE(num_tokens=V, max_seq_len=32, depth=1, enc_depth=1, verbose=False, **sizes))
    for call in (
        model.generate,
        model.generate_with_candidate_latents,
        partial(model.generate, latents=[None, torch.ones(16)]),
        partial(vae.generate, seq_for_latents=[PROMPT]),
    ):
        made = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            made.append(call(tensor([PROMPT]), STEPS, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(*made)


def test_filters_of_each_stream():
    sizes = dict(num_tokens=dict(a=V, b=5), max_seq_len=32, attn_layers=Decoder(**SIZES))
    model, prompts = MultiInputAutoregressiveWrapper(MultiInputTransformerWrapper(**sizes)), dict(a=[1, 2], b=[1, 2])
    model, greedy = sharp(model), dict(filter_logits_fn='top_k', filter_kwargs=dict(k=1))
    wanted = model.generate(prompts, STEPS, **greedy)
    options = dict(filter_logits_fn=dict(a='top_k', b='top_p'), filter_kwargs=dict(a=dict(k=1), b=dict(thres=0.0)))
    made = model.generate(prompts, STEPS, **options)
    assert torch.equal(made['a'], wanted['a']) and torch.equal(made['b'], wanted['b'])


def test_ends_of_images_are_refused_by_name():
    dalle = DALLE(16, 1, heads=2, num_text_tokens=V, text_seq_len=3, num_image_tokens=5, image_grid=2)
    parti = Parti(16, 1, 1, text_tokens=V, text_len=4, image_tokens=5, grid=2, enc_heads=2, dec_heads=2)
    for model in (dalle, parti):
        for name, value in dict(eos_token=0, stop_sequences=[[1]], min_new_tokens=1).items():
            with pytest.raises(ValueError, match=f'`{name}` cannot be given'):
                model.generate(tensor([[1, 2]]), **{name: value})


def test_unknown_options_are_refused_by_name():
    for way, call in ways().items():
        with pytest.raises((TypeError, ValueError), match='`no_such_option`'):
            call(tensor(PROMPT), 2, temperature=0.0, no_such_option=1)
            pytest.fail(way)
    masked = NonAutoregressiveWrapper(net(Encoder), mask_id=V - 1, steps=2)
    with pytest.raises(TypeError, match='`repetition_penalty`'):
        masked.generate(1, repetition_penalty=2.0, seq_len=4)
    only = masked.generate(3, seq_len=4, allowed_tokens=[2, 5], logit_bias={5: -99.0})
    assert (only == 2).all()


# prompts as Python has them


@pytest.mark.parametrize('way', WAYS)
def test_a_list_and_an_array_are_prompts(way):
    if way in ('translation', 'beams of a translation', 'sound', 'free', 'recurrent', 'numbers'):
        pytest.skip('reshapes its prompt here')
    call = ways()[way]
    expected = call(tensor(PROMPT), 4, temperature=0.0)
    heat = {} if 'beams' in way else dict(temperature=tensor(0.0))
    assert torch.equal(call(PROMPT, 4, **heat), expected)
    assert torch.equal(
        call(np.array(PROMPT), np.int64(4), **({} if not heat else dict(temperature=np.float32(0)))), expected
    )


def test_lists_of_unequal_length_are_rows():
    model, short, long = language(), [4, 2], [1, 2, 3, 1, 2]
    greedy = dict(temperature=0.0)
    for name in ('generate', 'speculative', 'beam_search'):
        made = getattr(model, name)([short, long], STEPS, **greedy)
        alone = [getattr(model, name)([row], STEPS, **greedy)[0] for row in (short, long)]
        assert torch.equal(made, torch.stack(alone))
    xval = numbers()
    made = xval.generate([short, long], [[1.0, 2.0], [1.0] * 5], 3, temperature=0.0).sampled_token_ids
    assert torch.equal(made[0], xval.generate(short, [1.0, 2.0], 3, temperature=0.0).sampled_token_ids)
    assert torch.equal(streams().generate({'a': [short, long]}, 3, temperature=0.0)['a'][0],
                       streams().generate({'a': short}, 3, temperature=0.0)['a'])  # fmt: skip
    for call in (
        sharp(XLAutoregressiveWrapper(net())).generate,
        sharp(BeliefStateWrapper(net(), net())).generate_with_suffix_cond,
    ):
        with pytest.raises(ValueError, match='must be of one length'):
            call([short, long], 2)
    for model in (translator(), listener()[0]):
        both = model.generate([[3, 1, 4], [5]], [[1], [1]], 4, temperature=0.0)
        alone = [model.generate(tensor([row]), tensor([[1]]), 4, temperature=0.0)[0] for row in ([3, 1, 4], [5])]
        assert torch.equal(both, torch.stack(alone))
        # A row alone has no axis of rows.
        assert torch.equal(model.generate([3, 1, 4], [1], 4, temperature=0.0), alone[0])
        assert torch.equal(model.beam_search([5], [1], 4, 1), alone[1])
        assert model.score([5], [1, 2, 3]).shape == (2,) and len(list(model.stream([5], [1], 4))) == 4


# padding


@pytest.mark.parametrize(
    'option', [{}, dict(no_repeat_ngram_size=1), dict(eos_token=2, min_new_tokens=3), dict(repetition_penalty=2.0)]
)
@pytest.mark.parametrize('name', ['generate', 'speculative', 'beam_search', 'stream', 'blocks'])
def test_a_padded_row_is_the_row_alone(name, option):
    model, ids = language(), tensor([[7, 7, 1, 2], [3, 4, 5, 1]])
    real = tensor([[False, False, True, True], [True] * 4])

    def run(prompts, **more):
        more |= dict(temperature=0.0, **option)
        if name == 'stream':
            return torch.stack(list(model.stream(prompts, STEPS, **more)), dim=-1)
        if name == 'blocks':
            return model.generate(prompts, STEPS, kv_storage=Paged(16, 4), **more)
        return getattr(model, name)(prompts, STEPS, **more)

    def cut(row):
        row = row.tolist()
        return row[: row.index(2) + 1] if 'eos_token' in option and 2 in row else row

    made = run(ids, mask=real)
    assert cut(made[0]) == cut(run(ids[:1, 2:])[0]) and cut(made[1]) == cut(run(ids[1:])[0])
    cache = model.read_prompt(ids, mask=real)
    if name == 'generate':
        assert torch.equal(model.generate(ids, STEPS, prompt_cache=cache, temperature=0.0, **option), made)


@pytest.mark.parametrize('rotary', [False, True])
def test_positions_are_counted_on(rotary):
    """With a cache and without, as in a loop over full passes; in rows of padding, as alone."""
    model, ids = language(rotary_pos_emb=rotary), tensor(2 * [PROMPT])
    pos, real = tensor([[7, 9, 12, 13, 20], [0, 1, 2, 3, 4]]), torch.arange(5) < tensor([[3], [5]])
    row, at = ids, pos
    for _ in range(STEPS):
        row = torch.cat((row, model.net(row, pos=at)[:, -1:].argmax(dim=-1)), dim=1)
        at = torch.cat((at, at[:, -1:] + 1), dim=1)
    assert not row[0].equal(row[1])
    greedy = dict(temperature=0.0, pos=pos)
    for made in (
        model.generate(ids, STEPS, **greedy),
        model.generate(ids, STEPS, cache_kv=False, **greedy),
        model.speculative(ids, STEPS, **greedy),
        model.beam_search(ids, STEPS, 1, pos=pos),
        torch.stack(list(model.stream(ids, STEPS, **greedy)), dim=-1),
        model.generate(ids, STEPS, num_samples=2, **greedy)[:, 1],
        model.generate(ids, STEPS, prompt_cache=model.read_prompt(ids, pos=pos), temperature=0.0),
    ):
        assert made.equal(row[:, 5:])
    assert model.generate(ids[:1], STEPS, temperature=0.0, pos=pos[0]).equal(row[:1, 5:])
    if rotary:
        alone = model.generate(ids[:1, :3], STEPS, temperature=0.0, pos=pos[:1, :3])
        for padded in (dict(mask=real), dict(prompt_lens=[3, 5])):
            assert model.generate(ids, STEPS, **greedy, **padded)[:1].equal(alone)
        turned = dict(temperature=0.0, pos=pos.roll(2, dims=1), mask=real.flip(1))
        assert model.generate(ids.roll(2, dims=1), STEPS, **turned)[:1].equal(alone)
    else:
        with pytest.raises(ValueError, match='`pos` cannot be combined with padding here'):
            model.generate(ids, STEPS, mask=real, **greedy)
    for wrong in (pos.double(), pos[:, :3], [1, 2], pos > 3):
        with pytest.raises(ValueError, match=r'`pos` of prompts must be whole numbers, \(5,\) or \(2, 5\), got'):
            model.generate(ids, STEPS, pos=wrong)


@pytest.mark.parametrize('beams', [1, 3])
def test_beams_of_a_padded_source(beams):
    model = translator()
    source, real = tensor([[3, 1, 4, 8], [5, 6, 7, 1]]), tensor([[True, True, True, False], [True] * 4])
    both = model.beam_search(source, tensor([[1], [1]]), 5, beams, mask=real)
    assert torch.equal(both[:1], model.beam_search(source[:1, :3], tensor([[1]]), 5, beams))
    assert torch.equal(both[1:], model.beam_search(source[1:], tensor([[1]]), 5, beams))
    made = torch.stack(list(model.stream(source, tensor([[1], [1]]), 5, mask=real, temperature=0.0)), dim=-1)
    assert torch.equal(made, model.generate(source, tensor([[1], [1]]), 5, mask=real, temperature=0.0))


def test_one_beam_takes_other_readings_and_prompt_caches():
    model, ids, greedy = language(), tensor([[1, 2, 3], [4, 5, 6]]), dict(temperature=0.0)
    for more in (
        dict(cond_scale=3.0, negative_prompts=tensor([[8, 8, 8], [7, 7, 7]])),
        dict(amateur_model=sharp(AutoregressiveWrapper(net()), seed=1)),
        dict(prompt_cache=model.read_prompt(ids)),
    ):
        assert torch.equal(model.beam_search(ids, STEPS, 1, **more), model.generate(ids, STEPS, **greedy, **more))
    for name, value in dict(num_samples=2, callback=print, kv_storage=Paged(8)).items():
        with pytest.raises(ValueError, match=f'`{name}` cannot be combined with beam search'):
            model.beam_search(ids, 2, **{name: value})


def test_streams_end_together():
    torch.manual_seed(0)
    sizes = dict(num_tokens=dict(a=V, b=5), max_seq_len=32, attn_layers=Decoder(**SIZES))
    model = sharp(MultiInputAutoregressiveWrapper(MultiInputTransformerWrapper(**sizes), pad_value=0))
    prompts = dict(a=tensor([[1, 2], [3, 4]]), b=tensor([[1, 2], [3, 4]]))
    free = model.generate(prompts, STEPS, temperature=0.0)
    end = int(free['b'][0, 2])
    made = model.generate(prompts, STEPS, temperature=0.0, eos_token=dict(b=end))
    for row in range(2):
        stop = [*free['b'][row].tolist(), end].index(end) + 1
        for name in 'ab':
            width = made[name].shape[1]
            assert made[name][row].tolist() == (free[name][row, :stop].tolist() + [0] * STEPS)[:width]
    with pytest.raises(ValueError, match='the streams are'):
        model.generate(prompts, 1, eos_token=dict(c=1))


# scores


def test_scores_are_those_of_the_net():
    model, ids = language(), tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with torch.no_grad():
        expected = model.net(ids).log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    assert torch.allclose(model.score(ids), expected, rtol=1e-12)
    short = model.score(ids, lens=[2, 4])
    assert torch.allclose(short[0, :1], expected[0, :1]) and (short[0, 1:] == 0).all()
    assert torch.allclose(short[1], expected[1])
    listed = model.score([[1, 2], [5, 6, 7, 8]])
    assert torch.equal(listed, short)
    assert torch.allclose(model.score([1, 2, 3, 4]), expected[0])
    padded = model.score(tensor([[8, 8, 1, 2], [5, 6, 7, 8]]), mask=tensor([[False, False, True, True], [True] * 4]))
    assert torch.allclose(padded[0, 2:], expected[0, :1]) and (padded[0, :2] == 0).all()
    made = model.generate(ids, 3, return_log_probs=True)
    assert torch.allclose(model.score(torch.cat((ids, made.tokens), dim=1))[:, 3:], made.log_probs)
    t5 = translator()
    assert torch.allclose(-t5.score(ids, ids).mean(), t5(ids, ids))
    assert model.score([[1], [2]]).shape == (2, 0)  # nothing stands before a first token
    with pytest.raises(ValueError, match='`lens` cannot be given with lists'):
        model.score([[1, 2], [3, 4, 5]], lens=[2, 3])
    with pytest.raises(ValueError, match='`lens`'):
        model.score(ids, lens=[2, 9])

"""Spectrograms of speech: filters by hand, transformers' extractor, tones; an encoder, and tones spelled as tokens."""

import copy
import math
import pickle

import pytest
import torch
from oracles import assert_close, randn, randomised
from toy_tasks import taught

from x_transformers import (
    AutoregressiveWrapper,
    ConformerEncoder,
    Decoder,
    Encoder,
    EncoderDecoder,
    LogMelSpectrogram,
    SpeechEncoder,
    TransformerWrapper,
)
from x_transformers.flags import ConfigError
from x_transformers.speech import mel_filters, to_hertz, to_mels


def test_the_scale_of_pitch():
    """66 2/3 Hz a mel up to 1 kHz, then 27 mels to 6.4 kHz; there and back."""
    hertz = torch.tensor([0.0, 200.0, 1000.0, 6400.0]).double()
    assert_close(to_mels(hertz), torch.tensor([0.0, 3.0, 15.0, 42.0]).double(), tolerance=1e-12)
    several = torch.linspace(0, 8000, 99).double()
    assert_close(to_hertz(to_mels(several)), several, tolerance=1e-9)


@pytest.mark.parametrize('n_mels', [40, 80, 128])
def test_filters_by_hand(n_mels):
    """Each is a triangle from its left neighbour's centre to that of the right one, of area 1."""
    found, top = mel_filters(16000, 400, n_mels), 15 + 27 * math.log(8) / math.log(6.4)
    edges = [float(to_hertz(torch.tensor(top * at / (n_mels + 1), dtype=torch.float64))) for at in range(n_mels + 2)]
    for m in (0, 3, n_mels // 2, n_mels - 1):
        left, centre, right = edges[m : m + 3]
        for k in range(201):
            f = 40.0 * k
            height = max(min((f - left) / (centre - left), (right - f) / (right - centre)), 0.0)
            assert abs(found[m, k] - height * 2 / (right - left)) < 1e-12
    assert (found.sum(dim=-1) > 0).all()


@pytest.mark.parametrize('n_mels', [80, 128])
def test_transformers_extractor(n_mels):
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    theirs = transformers.WhisperFeatureExtractor(feature_size=n_mels)
    tone = torch.sin(torch.arange(70_000) * 2 * math.pi * 1000 / 16_000)
    rows = [0.1 * torch.randn(50_000, generator=torch.Generator().manual_seed(0)), tone, torch.zeros(400)]
    wanted = theirs([row.numpy() for row in rows], sampling_rate=16_000, return_tensors='pt').input_features
    made = LogMelSpectrogram(n_mels=n_mels)
    for row, one in zip(rows, wanted, strict=True):
        found = made(row)
        assert found.shape == (1, 3000, n_mels)
        assert (found[0] - one.mT).abs().max() < 1e-4


def test_by_the_discrete_fourier_transform():
    """Frames, window and power written out, on a short sound of another rate, without padding to a length."""
    made = LogMelSpectrogram(8000, 64, 16, 10, seconds=None).double()
    wave = randn(2, 300)
    padded = torch.nn.functional.pad(wave[:, None], (32, 32), mode='reflect')[:, 0]
    k, t = torch.arange(33).double()[:, None], torch.arange(64).double()
    turns = torch.polar(torch.ones(33, 64).double(), -2 * math.pi * k * t / 64)
    hann = 0.5 - 0.5 * (2 * math.pi * t / 64).cos()
    frames = torch.stack([padded[:, 16 * at : 16 * at + 64] for at in range(300 // 16)], dim=1)
    power = ((frames * hann).to(turns.dtype) @ turns.T).abs() ** 2
    m = (power @ mel_filters(8000, 64, 10).T).clamp(min=1e-10).log10()
    wanted = (torch.maximum(m, m.amax(dim=(1, 2), keepdim=True) - 8) + 4) / 4
    assert_close(made(wave), wanted, tolerance=1e-9)
    assert_close(made(wave[0])[0], made(wave)[0])


def test_a_tone_is_at_its_pitch():
    made = LogMelSpectrogram(seconds=1.0)
    for hertz in (320, 1000, 3000, 6000):
        tone = torch.sin(torch.arange(16_000) * 2 * math.pi * hertz / 16_000)
        loudest = made(tone)[0, 50].argmax()
        assert loudest == mel_filters(16_000, 400, 80)[:, hertz // 40].argmax()


@pytest.mark.parametrize('seconds', [None, 1.0])
def test_no_sound_has_frames_of_none(seconds):
    front, none = LogMelSpectrogram(seconds=seconds), torch.zeros(0, 800, requires_grad=True)
    assert front(none).shape[1:] == front(torch.zeros(1, 800)).shape[1:] and len(front(none)) == 0
    assert front(none).requires_grad


def test_thirty_seconds_are_1500_vectors():
    front, encoder = LogMelSpectrogram(), SpeechEncoder(16, 1, 2)
    assert encoder(front(torch.zeros(480_000))).shape == (1, 1500, 16)
    assert front.chunks(torch.zeros(480_001)).shape == (2, 480_000)
    wave = torch.randn(1_000_000)
    assert torch.equal(front.chunks(wave).flatten()[: len(wave)], wave)
    assert not dict(front.state_dict())


def test_the_encoder_by_its_parts():
    """Convolutions, sinusoids with their last frequency at 1 / 10000, and the stack; flags of a stack of one's own."""
    made, x = randomised(SpeechEncoder(16, 2, 2, n_mels=5, max_positions=9)), randn(2, 14, 5)
    h = x.mT
    for conv in (m for m in made.conv_stem.modules() if isinstance(m, torch.nn.Conv1d)):
        h = torch.nn.functional.gelu(conv(h))
    angles = torch.arange(7).double()[:, None] * 10000 ** (-torch.arange(8).double() / 7)
    h = h.mT + torch.cat((angles.sin(), angles.cos()), dim=-1)
    assert_close(made(x), made.attn_layers(h), tolerance=1e-10)
    own = SpeechEncoder(n_mels=5, max_positions=9, attn_layers=Encoder(dim=16, depth=1, heads=2, ff_glu=True))
    assert own(x.float()).shape == (2, 7, 16) and own.config['attn_layers']['ff_glu']
    assert SpeechEncoder.from_config(made.config).config == made.config


def test_a_spectrogram_is_made_of_its_sizes_alone(tmp_path):
    """Where it is saved and loaded, copied, cast, and built without memory."""
    made, wave = LogMelSpectrogram(8000, 64, 16, 10, seconds=0.1), torch.randn(2, 700)
    made.save_pretrained(tmp_path)
    with torch.device('meta'):
        bare = LogMelSpectrogram(**{name: value for name, value in made.config.items() if name != 'class'})
    loaded, others = (
        LogMelSpectrogram.from_pretrained(tmp_path),
        [copy.deepcopy(made), pickle.loads(pickle.dumps(made))],
    )
    others += [loaded, bare.to_empty(device='cpu'), copy.deepcopy(made).double(), copy.deepcopy(made).half()]
    for other in others:
        assert torch.equal(other(wave), made(wave))
    assert not list(made.buffers()) and made.window.dtype == made.filters.dtype == torch.float32
    assert made(wave.to('meta')).shape == made(wave).shape and made(wave.double()).dtype == torch.float64


@pytest.mark.slow
def test_a_spectrogram_compiles():
    made, wave = LogMelSpectrogram(8000, 64, 16, 10, seconds=0.1), torch.randn(2, 700)
    assert torch.equal(torch.compile(made, backend='eager', fullgraph=True)(wave), made(wave))


def test_no_more_frames_than_positions():
    made, x = randomised(SpeechEncoder(16, 1, 2, n_mels=8, max_positions=20)), randn(2, 41, 8)
    assert made(x[:, :40]).shape == (2, 20, 16)
    with pytest.raises(ValueError, match='`x` got 41 frames, which are 21 vectors, more than `max_positions=20`'):
        made(x)


def test_padding_of_sound_stands_behind():
    """There a row is as alone; anywhere else it is refused, by each encoder, with and without convolutions in front."""
    x, lengths = randn(3, 40, 8), (40, 25, 31)
    mask = torch.arange(40) < torch.tensor(lengths)[:, None]
    sizes = dict(dim=16, depth=1, heads=2, attn_dim_head=8, conv_kernel_size=3, input_dim=8)
    for made in (SpeechEncoder(16, 1, 2, n_mels=8), ConformerEncoder(**sizes), ConformerEncoder(**sizes, subsample=1)):
        found = randomised(made)(x.masked_fill(~mask.unsqueeze(-1), float('nan')), mask=mask)
        for row, own, length in zip(found, x, lengths, strict=True):
            alone = made(own[None, :length])[0]
            assert_close(row[: len(alone)], alone, tolerance=1e-10)
        for other in (mask.flip(1), mask & (torch.arange(40) != 12)):
            with pytest.raises(ValueError, match='`mask` hides entries in front of real ones'):
                made(x, mask=other)


@pytest.mark.nightly
def test_it_spells_tones():
    """One to three tones of four pitches, as tokens of their order."""
    torch.manual_seed(0)
    front = LogMelSpectrogram(seconds=0.6, n_mels=20)
    text = Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, cross_attend=True)
    net = TransformerWrapper(num_tokens=6, max_seq_len=6, attn_layers=text)
    model = EncoderDecoder(SpeechEncoder(32, 1, 2, n_mels=20, max_positions=30), AutoregressiveWrapper(net))

    def drawn(b):
        pitches, counts = torch.randint(0, 4, (b, 3)), torch.randint(1, 4, (b,))
        hertz = 400.0 * 2.0**pitches
        times = torch.arange(3200) / 16_000
        waves = (torch.sin(2 * math.pi * hertz[..., None] * times) * 0.5).masked_fill(
            (torch.arange(3) >= counts[:, None])[..., None], 0.0
        )
        waves = waves.flatten(1) + 0.01 * torch.randn(b, 9600)
        tokens = torch.where(torch.arange(3) < counts[:, None], 2 + pitches, 1)
        return front(waves), torch.cat((torch.zeros(b, 1).long(), tokens, torch.ones(b, 1).long()), dim=1)

    taught(model, lambda: model(*drawn(32)), 250)
    frames, tokens = drawn(200)
    found = model.generate(frames, tokens[:, :1], 4, temperature=0.0)
    assert (found == tokens[:, 1:]).double().mean() >= 0.95


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: LogMelSpectrogram()(torch.zeros(5), sample_rate=8000), '`sample_rate` must be 16000, got 8000'),
        (lambda: LogMelSpectrogram()(torch.zeros(480_001)), '`waves` got 30.0 seconds, more than 30.0: see `chunks`'),
        (lambda: LogMelSpectrogram()(torch.zeros(5, dtype=torch.int16)), r'`waves` must .*got torch.int16'),
        (lambda: LogMelSpectrogram()(torch.zeros(2, 3, 4)), r'`waves` must .*got shape \(2, 3, 4\)'),
        (lambda: LogMelSpectrogram()(torch.zeros(0)), r'`waves` must .*got shape'),
        (lambda: LogMelSpectrogram(n_fft=401), '`n_fft` must be even, got 401'),
        (lambda: LogMelSpectrogram(n_mels=300), '`n_mels` got 300, so many that pitch'),
        (lambda: LogMelSpectrogram(seconds=None).chunks(torch.zeros(5)), '`chunks` needs `seconds`'),
        (lambda: LogMelSpectrogram().chunks(torch.zeros(2, 5)), r'`wave` must .*got shape \(2, 5\)'),
        (lambda: SpeechEncoder(16, 1), '`heads` is missing'),
        (lambda: SpeechEncoder(16, attn_layers=Encoder(dim=16, depth=1, heads=2)), '`dim` cannot be combined with'),
        (lambda: SpeechEncoder(attn_layers=Decoder(dim=16, depth=1, heads=2)), '`conv_stem` needs a stack in which'),
        (lambda: SpeechEncoder(16, 1, 2)(torch.zeros(1, 30, 5)), '`x` must '),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()

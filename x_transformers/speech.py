"""Speech: from sound to spectrograms as Whisper reads them, and an encoder of these."""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from x_transformers.continuous import ContinuousTransformerWrapper
from x_transformers.core.checks import check_tensor
from x_transformers.core.modes import at_least_float, is_transformed
from x_transformers.core.nets import check_sizes_or_stack
from x_transformers.features.frequencies import get_numbers
from x_transformers.flags import ConfigError, Configurable, instance_of, none, positive, size
from x_transformers.keywords import SpeechEncoderKeywords, Unpack
from x_transformers.x_transformers import AttentionLayers, Encoder

__all__ = ['LogMelSpectrogram', 'SpeechEncoder', 'mel_filters']

# pitch in mels: linear up to 1 kHz, logarithmic above
BREAK, PER_MEL, STEP = 1000.0, 200 / 3, math.log(6.4) / 27


def to_mels(hertz: Tensor) -> Tensor:
    above = BREAK / PER_MEL + (hertz.clamp(min=BREAK) / BREAK).log() / STEP
    return torch.where(hertz < BREAK, hertz / PER_MEL, above)


def to_hertz(mels: Tensor) -> Tensor:
    above = BREAK * ((mels - BREAK / PER_MEL) * STEP).exp()
    return torch.where(mels < BREAK / PER_MEL, mels * PER_MEL, above)


def mel_filters(sample_rate: int, n_fft: int, n_mels: int) -> Tensor:
    """Return triangles between neighbors in mels, of area 1 in hertz (Slaney's), (n_mels, n_fft / 2 + 1), float64, on
    the CPU."""
    numbers: Any = dict(dtype=torch.float64, device='cpu')
    frequencies = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, **numbers)
    half = sample_rate / 2
    top = half / PER_MEL if half < BREAK else BREAK / PER_MEL + math.log(half / BREAK) / STEP
    edges = to_hertz(torch.linspace(0, top, n_mels + 2, **numbers))
    left, centre, right = (edges[at : at + n_mels].unsqueeze(-1) for at in range(3))
    rising, falling = (frequencies - left) / (centre - left), (right - frequencies) / (right - centre)
    return torch.minimum(rising, falling).clamp(min=0) * 2 / (right - left)


def made_tables(sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return filters and the window of a spectrogram, made on the CPU, where there is float64."""
    window = torch.hann_window(sizes[1], dtype=torch.float64, device='cpu')
    return mel_filters(*sizes).to(dtype).to(device), window.to(dtype).to(device)


@functools.lru_cache(maxsize=32)
def kept_tables(sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), _disable_current_modes():
        return made_tables(sizes, device, dtype)


class LogMelSpectrogram(Configurable):
    """Log-mel spectrogram of audio, scaled as for Whisper:  ([b], t) -> (b, frames, n_mels)

        power of windows of n_fft samples (Hann), every `hop`;  m = log10(max(filters power, 1e-10))
        (max(m, largest m of the sample - 8) + 4) / 4

    Audio is padded with silence up to `seconds`: 30 seconds at 16 kHz are 3,000 frames.

    Radford et al. 2022, arXiv:2212.04356
    """

    def __init__(
        self,
        sample_rate: Annotated[int, 'sample rate, in Hz', size] = 16000,
        n_fft: Annotated[int, 'window length of the Fourier transform, in samples', size] = 400,
        hop: Annotated[int, 'hop between windows, in samples', size] = 160,
        n_mels: Annotated[int, 'number of mel bands', size] = 80,
        seconds: Annotated[float | None, 'seconds to which audio is padded; None: no padding', positive | none] = 30.0,
    ) -> None:
        super().__init__()
        if n_fft % 2:
            raise ConfigError(f'`n_fft` must be even, got {n_fft}')
        self.sample_rate, self.n_fft, self.hop, self.n_mels, self.seconds = sample_rate, n_fft, hop, n_mels, seconds
        self.samples = None if seconds is None else round(seconds * sample_rate)
        empty = get_numbers(lambda: mel_filters(*self.sizes).sum(dim=-1))
        if 0.0 in empty:
            raise ConfigError(f'`n_mels` got {n_mels}, so many that pitch {empty.index(0.0)} has no own frequency')

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.sample_rate, self.n_fft, self.n_mels

    @property
    def filters(self) -> Tensor:
        return self.tables(torch.device('cpu'), torch.float32)[0]

    @property
    def window(self) -> Tensor:
        return self.tables(torch.device('cpu'), torch.float32)[1]

    def tables(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return filters and the window. They are not buffers, which a module on the meta device could not compute."""
        if torch.compiler.is_compiling() or is_transformed() or torch._C._len_torch_dispatch_stack():
            return made_tables(self.sizes, device, dtype)
        return kept_tables(self.sizes, device, dtype)

    def forward(self, waves: Tensor, sample_rate: int | None = None) -> Tensor:
        """waves         [b] t   samples, about from -1 to 1
        sample_rate           their sample rate; an error if it differs
        returns       b f m   f frames of m mel bands, at least float32
        raises                ValueError or TypeError for another rate, shape or kind, or more than `seconds`
        """
        if sample_rate is not None and sample_rate != self.sample_rate:
            raise ValueError(f'`sample_rate` must be {self.sample_rate}, got {sample_rate}: resample first')
        if not check_tensor(waves, 'waves').is_floating_point():
            raise TypeError(f'`waves` must be floating point, got {waves.dtype}')
        waves = waves.unsqueeze(0) if waves.ndim == 1 else waves
        if waves.ndim != 2 or waves.shape[1] == 0:
            raise ValueError(f'`waves` must be samples, (t) or (b, t), got shape {tuple(waves.shape)}')
        if self.samples is not None and waves.shape[1] > self.samples:
            raise ValueError(
                f'`waves` got {waves.shape[1] / self.sample_rate:.1f} seconds, more than {self.seconds}: see `chunks`'
            )
        waves = waves.to(at_least_float(waves.dtype))
        length = max(waves.shape[1] if self.samples is None else self.samples, self.n_fft // 2 + 1)
        waves = F.pad(waves, (0, length - waves.shape[1]))
        filters, window = self.tables(waves.device, waves.dtype)
        if not len(waves):  # which `torch.stft` refuses
            return waves.sum() + waves.new_zeros(0, length // self.hop, self.n_mels)
        bins = torch.stft(waves, self.n_fft, self.hop, window=window, return_complex=True)[..., :-1]
        m = (filters @ bins.abs().square()).clamp(min=1e-10).log10()
        m = torch.maximum(m, m.amax(dim=(1, 2), keepdim=True) - 8.0)
        return ((m + 4.0) / 4.0).mT

    def chunks(self, wave: Tensor) -> Tensor:
        """Split a long sound (t,) into chunks of `seconds`, the last one padded with silence:  k samples"""
        if self.samples is None:
            raise ValueError('`chunks` needs `seconds`: without it rows have any length')
        if check_tensor(wave, 'wave').ndim != 1:
            raise ValueError(f'`wave` must be samples (t), got shape {tuple(wave.shape)}')
        return F.pad(wave, (0, -wave.shape[0] % self.samples)).view(-1, self.samples)


class SpeechEncoder(ContinuousTransformerWrapper):
    """The encoder of Whisper:  frames (b, n, n_mels) -> (b, n / 2, dim)

    Two convolutions of kernel size 3 with GELU, the second with stride 2, sinusoidal positions, and a pre-norm stack:
    `attn_layers`, an Encoder, or if it is None one with biases and norms as in the paper.

    Radford et al. 2022, arXiv:2212.04356
    """

    def __init__(
        self,
        dim: Annotated[int | None, 'width of the stack; that of `attn_layers` if it is passed', size | none] = None,
        depth: Annotated[int | None, 'number of blocks', size | none] = None,
        heads: Annotated[int | None, 'number of attention heads', size | none] = None,
        n_mels: Annotated[int, 'number of mel bands per frame', size] = 80,
        max_positions: Annotated[int, 'maximum number of output vectors, half the number of frames', size] = 1500,
        attn_layers: Annotated[AttentionLayers | None, 'custom Encoder', instance_of(AttentionLayers) | none] = None,
        **flags: Unpack[SpeechEncoderKeywords],
    ) -> None:
        check_sizes_or_stack(attn_layers, dict(dim=dim, depth=depth, heads=heads))
        if attn_layers is None:
            sizes: dict[str, Any] = dict(dim=dim, depth=depth, heads=heads)
            attn_layers = Encoder(
                **sizes, attn_dim_head=max(sizes['dim'] // sizes['heads'], 1), norm_bias=True,
                norm_eps=1e-5, attn_qkv_bias='qv', attn_out_bias=True, verbose=False,
            )  # fmt: skip
        width = attn_layers.dim
        super().__init__(
            dim_in=n_mels, conv_stem=((width, 3, 1, 1), (width, 3, 2, 1)), max_seq_len=max_positions,
            attn_layers=attn_layers, sinu_pos_emb=True, sinu_denominator='half_minus_1', **flags,
        )  # fmt: skip

    @classmethod
    def settled(cls) -> dict[str, Any]:
        places = {'sinu_pos_emb': True, 'sinu_denominator': 'half_minus_1', 'max_seq_len': '`max_positions`'}
        return {**places, 'dim_in': '`n_mels`', 'conv_stem': 'two convolutions, the second with a stride of 2'}

    def through_stem(self, x: Tensor, *args: Any) -> tuple[Tensor, Tensor | None]:
        frames = x.shape[1]
        x, mask = super().through_stem(x, *args)
        if x.shape[1] > self.max_seq_len > 0:
            raise ValueError(
                f'`x` got {frames} frames, which are {x.shape[1]} vectors, more than `max_positions={self.max_seq_len}`'
            )
        return x, mask

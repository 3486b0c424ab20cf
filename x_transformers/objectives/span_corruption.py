"""Span corruption: spans are removed from a text, and an encoder-decoder predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, check_lengths, checked, mask_from_lengths
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    count,
    instance_of,
    integer,
    is_number,
    none,
    size,
)
from x_transformers.training.items import share_of_items
from x_transformers.training.masking import IGNORED

__all__ = ['Denoiser', 'SpanCorruption', 'T5PretrainWrapper', 'UL2Mixture']


part = Check('a number between 0 and 1', lambda value: is_number(value) and 0 < value < 1)
length = Check('a number of at least 1', lambda value: is_number(value) and value >= 1)


class Denoiser(NamedTuple):
    """Task of a mixture: the token of its mode, and the spans that are removed; one at the end if None."""

    mode_id: int
    mean_span: float | None
    noise_density: float


def spans_of(lens: Tensor, density: Tensor, mean_span: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many tokens of each sequence are removed, and in how many spans. A `mean_span` of 0 means one span."""
    noise = torch.minimum((lens * density).round().long().clamp(min=1), lens - 1)
    spans = (noise / mean_span.clamp(min=1)).round().long().clamp(min=1)
    spans = torch.minimum(torch.minimum(spans, noise), lens - noise)
    return noise, torch.where(mean_span == 0, 1, spans)


def composition(total: Tensor, parts: Tensor, generator: Generator | None) -> Tensor:
    """Return uniformly random compositions of the sums (b,) into `parts` (b,) sizes of at least 1, as (b, p); 0
    beyond.
    """
    width = int(total.max())
    place = torch.arange(width, device=total.device)
    drawn = torch.rand(len(total), width, dtype=torch.float32, device=total.device, generator=generator)
    # of the total - 1 places between two units, parts - 1 are cut
    rank = drawn.masked_fill(place >= total.unsqueeze(-1) - 1, 2.0).argsort(dim=-1).argsort(dim=-1)
    cut = (rank < parts.unsqueeze(-1) - 1).long()
    of_unit = torch.nn.functional.pad(cut.cumsum(dim=-1)[:, :-1], (1, 0))
    sizes = torch.zeros(len(total), int(parts.max()), dtype=torch.long, device=total.device)
    return sizes.scatter_add(1, of_unit, mask_from_lengths(total, width).long())


def noise_spans(lens: Tensor, noise: Tensor, spans: Tensor, width: int, generator: Generator | None) -> Tensor:
    """Return the span (b, n) of each token, counted from 1, or 0 if it is kept. Sequences begin with a kept token."""
    kept = composition(lens - noise, spans, generator)
    taken = composition(noise, spans, generator)
    ends = torch.stack((kept, taken), dim=-1).flatten(1).cumsum(dim=-1)
    place = torch.arange(width, device=lens.device).expand(len(lens), -1).contiguous()
    part = torch.searchsorted(ends, place, right=True)
    return torch.where((part % 2 == 1) & mask_from_lengths(lens, width), part // 2 + 1, 0)


def place_spans(rows: int, lens: Tensor, fill: int, *values: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return sequences padded to the longest, with values (b, n) from a mask (b, n) at the given positions (b, n)."""
    width = int(lens.max())
    out = torch.full((rows, width + 1), fill, dtype=torch.long, device=lens.device)
    for value, token_mask, place in values:
        out.scatter_(1, place.masked_fill(~token_mask, width), value.expand(place.shape))
    return out[:, :width]


class Corruption(Configurable):
    """Base class of ways to remove spans. They have no parameters.

    sentinel_start   id of the first sentinel; the next one has one less, and so on
    eos_id           at the end of inputs and targets
    pad_id           fills up inputs; targets are filled up with -100, which is no target
    num_sentinels    how many there are
    """

    sentinel_start: int
    eos_id: int
    final_sentinel: bool
    pad_id: int
    num_sentinels: int

    def keep(self, sentinel_start: int, eos_id: int, final_sentinel: bool, pad_id: int, num_sentinels: int) -> None:
        if num_sentinels > sentinel_start + 1:
            raise ConfigError(
                f'`num_sentinels` got {num_sentinels}, from `sentinel_start`, {sentinel_start}, down there are less'
            )
        for name, value in (('eos_id', eos_id), ('pad_id', pad_id)):
            if sentinel_start - num_sentinels < value <= sentinel_start:
                raise ConfigError(f'`{name}` got {value}, which is a sentinel')
        self.sentinel_start, self.eos_id, self.final_sentinel = sentinel_start, eos_id, bool(final_sentinel)
        self.pad_id, self.num_sentinels = pad_id, num_sentinels

    def lengths(self, noise: Tensor, spans: Tensor, lens: Tensor, modes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the lengths of inputs and targets."""
        return lens - noise + spans + 1 + (modes is not None), noise + spans + 1 + self.final_sentinel

    def with_lengths(
        self, tokens: Tensor, lens: Tensor | None = None, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, their numbers of real tokens (b,), and targets of sequences (b, n)."""
        tokens = check_ids(tokens, 'tokens', 2)
        b, n = tokens.shape
        density, mean_span, modes = self.tasks(b, generator)
        if lens is None:
            lens = torch.full((b,), n, device=tokens.device)
        check_lengths(lens, 'lens', b, n)
        if b == 0:  # one place, as if for the end
            return tokens.new_zeros(0, 1), lens, tokens.new_full((0, 1), IGNORED)
        if bool((lens < 2).any()):
            raise ValueError(f'`lens` must have at least 2, got a row of {int(lens.min())} tokens')
        noise, spans = spans_of(lens, density.to(lens.device), mean_span.to(lens.device))
        self.check(tokens, lens, spans)
        span = noise_spans(lens, noise, spans, n, generator)
        taken, token_mask = span > 0, mask_from_lengths(lens, n)
        first = taken & (span != torch.nn.functional.pad(span[:, :-1], (1, 0)))
        sentinel = self.sentinel_start + 1 - span
        in_lens, out_lens = self.lengths(noise, spans, lens, modes)

        read = token_mask & (~taken | first)
        at = read.long().cumsum(dim=-1) - 1 + (modes is not None)
        start = torch.zeros_like(lens).unsqueeze(-1)
        one, eos = torch.ones_like(start, dtype=torch.bool), torch.full_like(start, self.eos_id)
        values = [(torch.where(first, sentinel, tokens), read, at), (eos, one, in_lens.unsqueeze(-1) - 1)]
        if modes is not None:
            values.append((modes.to(lens.device).unsqueeze(-1), one, start))
        inputs = place_spans(b, in_lens, self.pad_id, *values)

        at = taken.long().cumsum(dim=-1) - 1 + span
        said = [(tokens, taken, at), (sentinel, first, at - 1), (eos, one, out_lens.unsqueeze(-1) - 1)]
        if self.final_sentinel:
            last = self.sentinel_start - spans.unsqueeze(-1)
            said.append((last, one, out_lens.unsqueeze(-1) - 2))
        return inputs, in_lens, place_spans(b, out_lens, IGNORED, *said)

    def check(self, tokens: Tensor, lens: Tensor, spans: Tensor) -> None:
        used = spans + self.final_sentinel
        if int(used.max()) > self.num_sentinels:
            raise ValueError(
                f'`tokens` got a row for {int(used.max())} sentinels, there are {self.num_sentinels}: take shorter '
                'rows, longer spans, or more sentinels'
            )
        highest = tokens.masked_fill(~mask_from_lengths(lens, tokens.shape[1]), 0).amax(dim=-1)
        if bool((highest > self.sentinel_start - used).any()):
            raise ValueError(
                f'`tokens` must be at most '
                f'{self.sentinel_start - int(used.max())}, got ids up to {int(highest.max())}: sentinels follow'
            )

    def tasks(self, rows: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the share of removed tokens, the mean length of spans, and the mode token of each sequence."""
        raise NotImplementedError

    @checked
    def forward(
        self, tokens: Tensor, lens: Tensor | None = None, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and targets.

        tokens      b n   ids, n of at least 2
        lens        b     number of tokens of each sequence, without padding, at least 2; all if None
        generator         random number generator, on the device of `tokens`
        returns           inputs (b i), filled up with `pad_id`, and targets (b t), filled up with -100
        raises            ValueError for rows that are too short, need more sentinels than there are, or hold some
        """
        inputs, _, targets = self.with_lengths(tokens, lens, generator)
        return inputs, targets


class SpanCorruption(Corruption):
    """Span corruption (T5): replace random spans by sentinels.  ids (b, n) -> inputs (b, i), targets (b, t)

        noise = clip(round(n noise_density), 1, n - 1),  spans = max(1, round(noise / mean_span))
        text      kept_1 noise_1 kept_2 noise_2 ...
        inputs    kept_1 s_1 kept_2 s_2 ... eos               i = n - noise + spans + 1
        targets   s_1 noise_1 s_2 noise_2 ... [s_last] eos    t = noise + spans + 1, one more with `final_sentinel`

    The lengths of the spans and of the gaps between them are random, at least 1 each. Raffel et al. 2019,
    arXiv:1910.10683
    """

    def __init__(
        self,
        sentinel_start: Annotated[int, 'id of the first sentinel; the others have descending ids', count],
        eos_id: Annotated[int, 'id at the end of inputs and targets', count],
        noise_density: Annotated[float, 'fraction of the tokens that are removed', part] = 0.15,
        mean_span: Annotated[float, 'mean length of the removed spans, in tokens', length] = 3.0,
        final_sentinel: Annotated[bool, 'add a final sentinel to the targets, before `eos_id`', boolean] = False,
        pad_id: Annotated[int, 'id of the padding token', count] = 0,
        num_sentinels: Annotated[int, 'number of sentinels', size] = 100,
    ) -> None:
        super().__init__()
        self.keep(sentinel_start, eos_id, final_sentinel, pad_id, num_sentinels)
        self.noise_density, self.mean_span = noise_density, mean_span

    def tasks(self, rows: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor | None]:
        numbers = torch.tensor([[self.noise_density], [self.mean_span]], dtype=torch.float64, device='cpu')
        density, span = numbers.expand(2, rows)
        return density, span, None


a_mixture = Check(
    'a tuple of (mode id, mean span or None, noise density)',
    lambda value: isinstance(value, (tuple, list)) and len(value) > 0 and all(map(is_denoiser, value)),
)
three_ids = Check(
    'three token ids',
    lambda value: isinstance(value, (tuple, list)) and len(value) == 3 and all(map(count.test, value)),
)
shares = Check(
    'a tuple of positive numbers',
    lambda value: isinstance(value, (tuple, list)) and all(is_number(one) and one > 0 for one in value),
)


def is_denoiser(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        return False
    mode, mean_span, density = value
    return count.test(mode) and (mean_span is None or length.test(mean_span)) and part.test(density)


class UL2Mixture(Corruption):
    """UL2: a random denoising task per sequence, given by its first input token: short spans, long or many, or the end.

        R    (3, .15)                           as T5
        X    (32, .15), (32, .5), (3, .5)       mean length of spans, fraction of the tokens
        S    the last quarter, as one span      a prefix language model

    `mode_ids` are the tokens of R, X and S; `denoisers` sets other tasks. Tay et al. 2022, arXiv:2205.05131
    """

    def __init__(
        self,
        sentinel_start: Annotated[int, 'id of the first sentinel; the others have descending ids', count],
        eos_id: Annotated[int, 'id at the end of inputs and targets', count],
        mode_ids: Annotated[
            Sequence[int] | None, 'ids of the mode tokens R, X and S',
            three_ids | none,
        ] = None,
        denoisers: Annotated[Sequence[Denoiser] | None, 'custom denoising tasks', a_mixture | none] = None,
        weights: Annotated[
            Sequence[float] | None, 'sampling weights of the tasks; None for equal weights', shares | none
        ] = None,
        final_sentinel: Annotated[bool, 'add a final sentinel to the targets, before `eos_id`', boolean] = False,
        pad_id: Annotated[int, 'id of the padding token', count] = 0,
        num_sentinels: Annotated[int, 'number of sentinels', size] = 100,
    ) -> None:  # fmt: skip
        super().__init__()
        if (mode_ids is None) == (denoisers is None):
            raise ConfigError('`mode_ids` and `denoisers` both say the tasks, set one of them')
        tasks: Any = denoisers
        if mode_ids is not None:
            r, x, s = mode_ids
            tasks = ((r, 3.0, 0.15), (x, 32.0, 0.15), (x, 32.0, 0.5), (x, 3.0, 0.5), (s, None, 0.25))
        self.denoisers = tuple(Denoiser(*one) for one in tasks)
        if weights is not None and len(weights) != len(self.denoisers):
            raise ConfigError(f'`weights` got {len(weights)} numbers for {len(self.denoisers)} tasks')
        self.keep(sentinel_start, eos_id, final_sentinel, pad_id, num_sentinels)
        self.weights = None if weights is None else tuple(weights)

    def tasks(self, rows: int, generator: Generator | None) -> tuple[Tensor, Tensor, Tensor | None]:
        weights = torch.tensor(self.weights or [1.0] * len(self.denoisers), dtype=torch.float32, device='cpu')
        device = 'cpu' if generator is None else generator.device
        drawn = weights.to(device).multinomial(max(rows, 1), replacement=True, generator=generator)[:rows].cpu()
        modes = torch.tensor([one.mode_id for one in self.denoisers], device='cpu')
        numbers = torch.tensor(
            [(one.noise_density, one.mean_span or 0.0) for one in self.denoisers], dtype=torch.float64, device='cpu'
        )
        return numbers[drawn, 0], numbers[drawn, 1], modes[drawn]


class T5PretrainWrapper(Configurable):
    """An encoder-decoder that is trained to predict the spans that were removed from a text:  ids (b, n) -> loss.

    The decoder starts with `start_id` and predicts the targets of `corruption`. Raffel et al. 2019, arXiv:1910.10683
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'encoder-decoder, such as XTransformer', instance_of(nn.Module)],
        corruption: Annotated[Corruption, 'SpanCorruption or UL2Mixture', instance_of(Corruption)],
        start_id: Annotated[int, 'id of the start token of the decoder', integer] = 0,
    ) -> None:
        super().__init__()
        sides = getattr(net, 'encoder', None), getattr(getattr(net, 'decoder', None), 'net', None)
        ids: Any = [getattr(side, 'num_tokens', None) for side in sides]
        if None in ids:
            raise ConfigError(f'`net` must be an encoder-decoder of tokens, got {type(net).__name__}: XTransformer')
        modes = [one.mode_id for one in getattr(corruption, 'denoisers', ())]
        for name, value in (('sentinel_start', corruption.sentinel_start), ('eos_id', corruption.eos_id)):
            if value >= min(ids):
                raise ConfigError(f'`{name}` must be less than the number of tokens, {min(ids)}, got {value}')
        if any(mode >= ids[0] for mode in modes):
            raise ConfigError(f'`denoisers` must be less than `enc_num_tokens`, {ids[0]}, got mode {max(modes)}')
        if not 0 <= start_id < ids[1]:
            raise ConfigError(f'`start_id` must be from 0 to {ids[1] - 1}, got {start_id}')
        self.net, self.corruption, self.start_id = net, corruption, start_id

    @checked
    def forward(
        self,
        tokens: Tensor,
        lens: Tensor | None = None,
        generator: Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the loss of the removed spans.

        tokens      b n   ids
        lens        b     number of tokens of each sequence, without padding
        generator         random number generator, on the device of `tokens`
        num_items_in_batch   divide the sum of the losses by this number, so that batches add up
        raises            as the corruption
        """
        inputs, token_mask, targets = self.corruption.with_lengths(tokens, lens, generator)
        ignored: Any = self.net.decoder.ignore_index
        targets = torch.nn.functional.pad(targets.masked_fill(targets == IGNORED, ignored), (1, 0), value=self.start_id)
        with AuxLosses() as aux:
            given = {} if num_items_in_batch is None else {'num_items_in_batch': num_items_in_batch}
            loss = self.net(inputs, targets, mask=mask_from_lengths(token_mask, inputs.shape[1]), **given)
        return aux.added_to(loss, share_of_items(targets[:, 1:] != ignored, num_items_in_batch))

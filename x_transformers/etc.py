"""Extended transformer construction: a long stream with a window, beside a short global one that reads everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import (
    as_mask,
    check_device,
    check_range,
    check_vectors,
    checked,
    match_precision,
    zero_masked,
)
from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.features.norms import LayerNorm
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    count,
    did_you_mean,
    format_value,
    mapping,
    none,
    number,
    one_of,
    positive,
    probability,
    size,
)
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import differentiable_sdpa
from x_transformers.training.optim import get_weights
from x_transformers.x_transformers import Encoder, FeedForward

__all__ = ['CPCLoss', 'ETCAttention', 'ETCEncoder', 'ETCInputs', 'make_etc_inputs']

STREAMS = ('long', 'global')
# the streams of queries and keys of each piece of attention
PIECES = {'g2g': ('global', 'global'), 'g2l': ('global', 'long'), 'l2g': ('long', 'global'), 'l2l': ('long', 'long')}
SMALLEST_CHUNK = 32  # below, more time goes into calls than into products

Labels = dict[str, Tensor | None]


def distance_ids(offsets: Tensor, most: int) -> Tensor:
    """Return labels of distances, key minus query:  0, 1 .. k to the right, k + 1 .. 2 k to the left, clipped."""
    offsets = offsets.clamp(-most, most)
    return torch.where(offsets < 0, most - offsets, offsets)


def extend_keys(t: Tensor, before: int, behind: int, fill: Any) -> Tensor:
    """Pad axis 1 with `fill`. (`F.pad` of torch 2.9 refuses empty axes after it.)"""
    front, back = (t.new_full((len(t), count, *t.shape[2:]), fill) for count in (before, behind))
    return torch.cat((front, t, back), dim=1)


def slant_scores(t: Tensor, fill: Any) -> Tensor:
    """Reorder keys by distance to keys by index in three chunks:  ... c (2 c + 1) -> ... c (3 c)"""
    c = t.shape[-2]
    return F.pad(t, (0, c), value=fill).flatten(-2)[..., : 3 * c * c].unflatten(-1, (c, 3 * c))


class EtcChunks(NamedTuple):
    """How n tokens are cut so that a window of `radius` on both sides lies in a chunk and its neighbours."""

    n: int
    radius: int
    size: int
    count: int

    @classmethod
    def of(cls, n: int, radius: int) -> EtcChunks:
        radius = min(radius, max(n - 1, 0))
        size = max(radius, min(n, SMALLEST_CHUNK), 1)
        return cls(n, radius, size, -(-n // size))

    def cut(self, t: Tensor, fill: Any = 0) -> Tensor:
        """Split into chunks:  b n ... -> b chunks size ..."""
        return extend_keys(t, 0, self.count * self.size - self.n, fill).unflatten(1, (self.count, self.size))

    def around(self, t: Tensor, fill: Any = 0) -> list[Tensor]:
        """Return the chunks before, at and after each chunk:  b n ... -> three of b chunks size ..."""
        behind = (self.count + 1) * self.size - self.n
        t = extend_keys(t, self.size, behind, fill).unflatten(1, (-1, self.size))
        return [t[:, at : at + self.count] for at in range(3)]

    def by_distance(self, t: Tensor, own: int, fill: Any) -> Tensor:
        """Pad values per distance of a window, b n (2 own + 1), to those of a chunk, ... (2 size + 1)"""
        t = t[..., own - self.radius : own + self.radius + 1]
        more = self.size - self.radius
        return self.cut(F.pad(t, (more, more), value=fill), fill)

    def window(self, device: torch.device) -> Tensor:
        """Return which of the keys around see each other and exist:  chunks size (3 size)"""
        places = torch.arange(self.count * self.size, device=device).unflatten(0, (-1, self.size))
        first = places[:, :1] - self.size
        keys = (first + torch.arange(3 * self.size, device=device)).unsqueeze(1)
        return ((keys - places.unsqueeze(2)).abs() <= self.radius) & (keys >= 0) & (keys < self.n)


class EtcMask(NamedTuple):
    """What the queries of a pass see, and with which labels; the same in all layers.

    of_global, of_long   b 1 i j and (b chunks) 1 size j, True may be attended; None for all
    labels               by piece, b i j; of l2l b chunks size (2 size + 1), or (2 size + 1); None for none
    """

    chunks: EtcChunks
    of_global: Maybe[Tensor]
    of_long: Tensor
    labels: Labels
    may_have_fully_masked: bool


class ETCAttention(nn.Module):
    """Attention of two streams, each with one softmax over both:

        e_ij = s q_i (k_j + P_label(i, j)),   j over all global tokens, and all long ones or those of a window

    long, glob   b n dim and b g dim; gives the same
    """

    def __init__(self, dim: int, heads: int, dim_head: int, share_qkv: str, num_ids: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.share_qkv, self.dropout, self.scale = heads, share_qkv, dropout, dim_head**-0.5
        inner = heads * dim_head
        for stream in STREAMS:
            self.linear(f'to_q{self.of_stream(stream)}', dim, inner)
            self.linear(f'to_out{self.of_stream(stream)}', inner, dim)
        for piece in PIECES:
            for name in ('to_k', 'to_v'):
                self.linear(name + self.of_piece(piece), dim, inner)
        self.rel_k = nn.Parameter(torch.randn(num_ids, dim_head) * 0.02) if num_ids else None

    def linear(self, name: str, *sizes: int) -> None:
        if not hasattr(self, name):
            self.add_module(name, nn.Linear(*sizes, bias=False))

    def of_stream(self, stream: str) -> str:
        return '' if self.share_qkv == 'all' else f'_{stream}'

    def of_piece(self, piece: str) -> str:
        """Return the projection of a piece: shared by all pieces, by those with one source, or by none."""
        return f'_{piece}' if self.share_qkv == 'none' else self.of_stream(PIECES[piece][1])

    def muon_parameters(self, queries_and_keys: bool = False) -> list[nn.Parameter]:
        """Return the matrices of values and outputs, and those of queries and keys if asked for."""
        wanted = ('to_v', 'to_out', *(('to_q', 'to_k') if queries_and_keys else ()))
        return get_weights([module for name, module in self.named_children() if name.startswith(wanted)])

    def forward(self, long: Tensor, glob: Tensor, sight: EtcMask) -> tuple[Tensor, Tensor]:
        streams = {'long': long, 'global': glob}
        made: dict[str, Tensor] = {}

        def heads_of(name: str, stream: str) -> Tensor:
            """Project and split heads, b n h e, once."""
            if f'{name} {stream}' not in made:
                made[f'{name} {stream}'] = getattr(self, name)(streams[stream]).unflatten(-1, (self.heads, -1))
            return made[f'{name} {stream}']

        q = {stream: heads_of(f'to_q{self.of_stream(stream)}', stream) for stream in STREAMS}
        kv = {
            piece: [heads_of(name + self.of_piece(piece), source) for name in ('to_k', 'to_v')]
            for piece, (_, source) in PIECES.items()
        }
        outs = {'long': self.of_long(q['long'], kv, sight), 'global': self.of_global(q['global'], kv, sight)}
        return tuple(getattr(self, f'to_out{self.of_stream(s)}')(outs[s].flatten(2)) for s in STREAMS)  # type: ignore

    def of_global(self, q: Tensor, kv: dict[str, list[Tensor]], sight: EtcMask) -> Tensor:
        """Return the output of global queries, which attend to all tokens:  b g h e"""
        k, v = (torch.cat(pair, dim=1).transpose(1, 2) for pair in zip(kv['g2g'], kv['g2l'], strict=True))
        q, labels = q.transpose(1, 2), sight.labels
        bias = self.bias(q, (labels['g2g'], kv['g2g'][0].shape[1]), (labels['g2l'], kv['g2l'][0].shape[1]))
        return self.attend(q, k, v, sight.of_global, bias, sight.may_have_fully_masked).transpose(1, 2)

    def of_long(self, q: Tensor, kv: dict[str, list[Tensor]], sight: EtcMask) -> Tensor:
        """Return the output of long queries, which attend to global tokens and to a window:  b n h e"""
        chunks, cut = sight.chunks, lambda t: rearrange(t, 'b c n h e -> (b c) h n e')
        front = [t.unsqueeze(1).expand(-1, chunks.count, -1, -1, -1) for t in kv['l2g']]
        k, v = (cut(torch.cat((f, *chunks.around(t)), dim=2)) for f, t in zip(front, kv['l2l'], strict=True))
        batch, q = q.shape[0], cut(chunks.cut(q))
        of_global, of_long = sight.labels['l2g'], sight.labels['l2l']
        if of_global is not None:
            of_global = chunks.cut(of_global.expand(batch, -1, -1)).flatten(0, 1)
        bias = self.bias(q, (of_global, front[0].shape[2]), (of_long, 3 * chunks.size), slants=True)
        out = self.attend(q, k, v, sight.of_long, bias, sight.may_have_fully_masked)
        return out.transpose(1, 2).unflatten(0, (batch, chunks.count)).flatten(1, 2)[:, : chunks.n]

    def bias(self, q: Tensor, *pieces: tuple[Tensor | None, int], slants: bool = False) -> Tensor | None:
        """Return the scores of labels, s q_i P_label:  b h i j.   pieces: labels (b i j), key counts"""
        if self.rel_k is None or all(ids is None for ids, _ in pieces):
            return None
        # a label of -1 reads the last column, which adds nothing
        of_ids = F.pad((q * self.scale) @ self.rel_k.to(q.dtype).mT, (0, 1))
        found = []
        for at, (ids, keys) in enumerate(pieces):
            if ids is None:
                found.append(of_ids.new_zeros(()).expand(*of_ids.shape[:-1], keys))
            elif ids.ndim == 1:
                found.append(of_ids.index_select(-1, ids))
            else:
                ids = ids.unsqueeze(1).expand(*of_ids.shape[:-1], -1)
                found.append(of_ids.gather(-1, ids))
            if slants and at == 1 and ids is not None:
                found[-1] = slant_scores(found[-1], 0.0)
        return torch.cat(found, dim=-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None, may_be_blind: bool
    ) -> Tensor:
        """Attend with one softmax, b h i e; a fully masked query gives zeros."""
        sighted = None
        if seen is not None and may_be_blind:
            sighted = seen.any(dim=-1, keepdim=True)
            seen = seen | ~sighted
        if bias is not None and seen is not None:
            bias = bias.masked_fill(~seen, -torch.inf)
        mask, dropout = seen if bias is None else bias, self.dropout if self.training else 0.0
        out = differentiable_sdpa(q, k, v, attn_mask=mask, dropout_p=dropout, scale=self.scale)
        return out if sighted is None else out.masked_fill(~sighted, 0.0)


class ETCLayer(nn.Module):
    """Attention and feedforward, each behind a norm and added to its stream."""

    def __init__(self, dim: int, attn: ETCAttention, share_ff: bool, ff_kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.attn, self.share_ff = attn, share_ff
        for end in ('',) if share_ff else ('_long', '_global'):
            self.add_module(f'attn_norm{end}', LayerNorm(dim, unit_offset=True))
            self.add_module(f'ff_norm{end}', LayerNorm(dim, unit_offset=True))
            self.add_module(f'ff{end}', FeedForward(dim, **ff_kwargs))

    def of(self, name: str, stream: str) -> nn.Module:
        return getattr(self, name if self.share_ff else f'{name}_{stream}')

    def forward(self, long: Tensor, glob: Tensor, sight: EtcMask, real: dict[str, Tensor | None]) -> list[Tensor]:
        xs = {'long': long, 'global': glob}
        outs = self.attn(*(self.of('attn_norm', stream)(x) for stream, x in xs.items()), sight)
        for stream, out in zip(STREAMS, outs, strict=True):
            mask = real[stream]
            xs[stream] = xs[stream] + (out if mask is None else out.masked_fill(~mask.unsqueeze(-1), 0.0))
            xs[stream] = xs[stream] + self.of('ff', stream)(self.of('ff_norm', stream)(xs[stream]))
        return list(xs.values())


class ETCEncoder(Configurable):
    """Extended transformer construction (ETC): local attention of a long sequence, plus a few global tokens.

        global   softmax over all global and all long tokens
        long     softmax over all global tokens, and long ones at most `local_radius` away

    of s q_i (k_j + P_label(i, j)), where labels are clipped distances between tokens of a stream (0 itself, 1 .. k to
    the right, k + 1 .. 2 k to the left), or the values of `rel_ids`. `share_qkv` is 'all', one projection each for
    queries, keys and values; 'kv', one per stream of queries, and one per stream of keys; or 'none', separate keys and
    values in each of the parts g2g, g2l, l2g, l2l. Time and memory grow as n (g + radius) + g^2.

    Ainslie et al. 2020, arXiv:2004.08483
    """

    removed = {'causal': 'global tokens read all of the sequence: it encodes'}  # noqa: RUF012

    def __init__(
        self,
        dim: Annotated[int, 'width of both streams', size],
        depth: Annotated[int, 'number of blocks', size],
        heads: Annotated[int, 'number of attention heads', size] = 8,
        local_radius: Annotated[int, 'window of the long tokens, in tokens on each side', count] = 84,
        rel_max_distance: Annotated[int, 'maximum distance with a separate relative position label', count] = 12,
        share_qkv: Annotated[str, 'sharing of the projections', one_of('all', 'kv', 'none')] = 'all',
        share_ff: Annotated[bool, 'share norms and feedforwards between both streams', boolean] = True,
        num_rel_ids: Annotated[
            int | None, 'number of relative labels; None: those of distances, two for segments; 0: none', count | none
        ] = None,
        *,
        dim_head: Annotated[int, 'width of each attention head', size] = 64,
        attn_dropout: Annotated[float, 'dropout probability of the attention weights', probability] = 0.0,
        ff_kwargs: Annotated[Mapping[str, Any] | None, 'keyword arguments of the feedforwards', mapping | none] = None,
    ) -> None:
        super().__init__()
        distances = 2 * rel_max_distance + 1
        self.num_rel_ids = distances + 2 if num_rel_ids is None else num_rel_ids
        if 0 < self.num_rel_ids < distances:
            raise ConfigError(
                f'`num_rel_ids` got {num_rel_ids}, distances up to {rel_max_distance} alone are {distances} labels'
            )
        self.dim, self.local_radius, self.rel_max_distance = dim, local_radius, rel_max_distance
        self.share_qkv, self.share_ff = share_qkv, bool(share_ff)
        sizes, ff = (dim, heads, dim_head, share_qkv, self.num_rel_ids, attn_dropout), dict(ff_kwargs or {})
        layers = (ETCLayer(dim, ETCAttention(*sizes), self.share_ff, ff) for _ in range(depth))
        self.layers: Any = nn.ModuleList(layers)
        for end in ('',) if share_ff else ('_long', '_global'):
            self.add_module(f'final_norm{end}', LayerNorm(dim, unit_offset=True))

    @classmethod
    def from_encoder(cls, encoder: Encoder, **options: Any) -> ETCEncoder:
        """Build the encoder with the weights of an Encoder for both streams, and labels that add nothing.

        options   those of the ETCEncoder beside its sizes
        raises    ValueError if the encoder has flags, layers or norms that this one does not have
        """
        if not isinstance(encoder, Encoder):
            raise TypeError(f'`encoder` must be an Encoder, got {format_value(encoder)}')
        depth, layers = encoder.depth, encoder.layers
        attention = layers[0][1]
        same = ('dim', 'depth', 'heads', 'attn_dim_head', 'attn_dropout', 'ff_mult', 'ff_dropout', 'verbose')
        others = [name for name in encoder.config if name not in (*same, 'class')]
        if others:
            raise ValueError(f'`encoder` has `{others[0]}`, which an ETCEncoder does not have')
        ff = {name: encoder.config[f'ff_{name}'] for name in ('mult', 'dropout') if f'ff_{name}' in encoder.config}
        sizes = dict(dim=encoder.dim, depth=depth, heads=attention.heads, dim_head=attention.shape.dim_head)
        new = cls(**{**sizes, 'attn_dropout': attention.dropout, 'ff_kwargs': ff or None, **options})
        new.to(attention.to_q.weight)
        found = {'final_norm': encoder.final_norm}
        for at, layer in enumerate(new.layers):
            (norm, _, _), attn, _ = layers[2 * at]
            (ff_norm, _, _), ff, _ = layers[2 * at + 1]
            found |= {f'layers.{at}.{name}': one for name, one in dict(attn_norm=norm, ff_norm=ff_norm, ff=ff).items()}
            found |= {f'layers.{at}.attn.{name}': getattr(attn, name) for name in ('to_q', 'to_k', 'to_v', 'to_out')}
            if layer.attn.rel_k is not None:
                nn.init.zeros_(layer.attn.rel_k)
        for name, module in new.named_modules():
            stem, _, end = name.rpartition('_')
            plain = stem if end in (*STREAMS, *PIECES) else name
            if plain in found:
                module.load_state_dict(found[plain].state_dict())
        return new

    def muon_parameters(self, queries_and_keys: bool = False) -> list[nn.Parameter]:
        asked = [m for m in self.modules() if isinstance(m, (ETCAttention, FeedForward))]
        return list(dict.fromkeys(p for m in asked for p in m.muon_parameters(queries_and_keys=queries_and_keys)))

    def describe(self) -> dict[str, str]:
        return {
            'global': f'(b g {self.dim}) attends to all tokens',
            'long': f'(b n {self.dim}) attends to global tokens, and to {self.local_radius} long ones on each side',
            'labels': f'{self.num_rel_ids}, distances up to {self.rel_max_distance}',
        }

    @checked
    def forward(
        self,
        x_long: Tensor,
        x_global: Tensor,
        mask_long: Tensor | None = None,
        mask_global: Tensor | None = None,
        *,
        g2g: Tensor | None = None,
        g2l: Tensor | None = None,
        l2g: Tensor | None = None,
        l2l: Tensor | None = None,
        rel_ids: Mapping[str, Tensor | None] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Encode x_long (b, n, dim) and x_global (b, g, dim) to the same shapes.

        mask_long, mask_global   b n and b g, True for real tokens
        g2g, g2l, l2g, l2l       who sees whom, b queries keys, True may be attended; of l2l b n (2 radius + 1), by
                                 distance; a token that sees nothing gets nothing
        rel_ids                  labels by piece, as these masks, -1 for none; None in place of a tensor: no labels
                                 there; left out: distances for g2g and l2l, none for others

        raises                   TypeError or ValueError for inputs of other kinds or sizes
        """
        check_vectors(x_long, 'x_long', 'b', 'n', self.dim)
        check_vectors(x_global, 'x_global', x_long.shape[0], 'g', self.dim, like=x_long)
        if x_global.shape[1] == 0:
            raise ValueError('`x_global` got no tokens, there must be at least one: an Encoder is without them')
        xs = {'long': match_precision(x_long, self, 'x_long'), 'global': match_precision(x_global, self, 'x_global')}
        masks = {'long': mask_long, 'global': mask_global}
        token_mask = {s: as_mask(mask, f'mask_{s}', *xs[s].shape[:2], like=x_long) for s, mask in masks.items()}
        sight = self.sight(xs, token_mask, dict(g2g=g2g, g2l=g2l, l2g=l2g, l2l=l2l), rel_ids or {})
        long, glob = (zero_masked(xs[stream], token_mask[stream]) for stream in STREAMS)
        for layer in self.layers:
            long, glob = layer(long, glob, sight, token_mask)
        ends = [''] * 2 if self.share_ff else ['_long', '_global']
        long, glob = (getattr(self, f'final_norm{end}')(x) for end, x in zip(ends, (long, glob), strict=True))
        return long, glob

    def sight(
        self, xs: dict[str, Tensor], real: dict[str, Tensor | None], masks: Labels, ids: Mapping[str, Tensor | None]
    ) -> EtcMask:
        """Return masks and labels of all pieces from the inputs."""
        n, g, device = xs['long'].shape[1], xs['global'].shape[1], xs['long'].device
        chunks = EtcChunks.of(n, self.local_radius)
        sizes = {piece: (xs[q].shape[1], xs[k].shape[1]) for piece, (q, k) in PIECES.items()}
        sizes['l2l'] = n, 2 * self.local_radius + 1
        batch = xs['long'].shape[0]
        masks = {piece: as_mask(mask, piece, batch, *sizes[piece], like=xs['long']) for piece, mask in masks.items()}
        blind = any(mask is not None for mask in (*masks.values(), *real.values()))
        of_keys = {stream: None if mask is None else mask.unsqueeze(1) for stream, mask in real.items()}
        parts = [map_streams(masks['g2g'], of_keys['global']), map_streams(masks['g2l'], of_keys['long'])]
        of_global = concat_streams(parts, (batch, g), (g, n))
        front = map_streams(masks['l2g'], of_keys['global'])
        if front is not None:
            front = chunks.cut(front.expand(-1, n, -1), False).flatten(0, 1)
        window = chunks.window(device)
        if masks['l2l'] is not None:
            window = window & slant_scores(chunks.by_distance(masks['l2l'], self.local_radius, False), False)
        if real['long'] is not None:
            window = window & torch.cat(chunks.around(real['long'], False), dim=-1).unsqueeze(2)
        window = window.expand(batch, -1, -1, -1).flatten(0, 1)
        of_long = concat_streams([front, window], window.shape[:2], (g, 3 * chunks.size))
        assert of_long is not None
        labels = self.labels(chunks, g, sizes, batch, ids, xs['long'])
        return EtcMask(chunks, None if of_global is None else of_global[:, None], of_long[:, None], labels, blind)

    def labels(
        self, chunks: EtcChunks, g: int, sizes: dict[str, tuple[int, int]], batch: int,
        ids: Mapping[str, Tensor | None], like: Tensor,
    ) -> Labels:  # fmt: skip
        """Return labels of all pieces, in the form in which they are looked up."""
        for name in ids:
            if name not in PIECES:
                raise ValueError(
                    f'`rel_ids` must have some of '
                    f'{", ".join(PIECES)}{did_you_mean(name, PIECES)}, got {format_value(name)}'
                )
        if not self.num_rel_ids:
            if any(t is not None for t in ids.values()):
                raise ValueError('`rel_ids` cannot be combined with `num_rel_ids=0`: there are no labels')
            return dict.fromkeys(PIECES)
        found: Labels = {}
        for piece in PIECES:
            t = ids.get(piece)
            if t is not None:
                # a label of -1 reads the column behind the last one
                labels: Any = check_labels(t, piece, (batch, *sizes[piece]), self.num_rel_ids, like)
                labels = labels % (self.num_rel_ids + 1)
                if piece == 'l2l':
                    labels = chunks.by_distance(labels, self.local_radius, self.num_rel_ids).flatten(0, 1)
                found[piece] = labels
            elif piece in ids or PIECES[piece][0] != PIECES[piece][1]:
                found[piece] = None
            elif piece == 'l2l':
                offsets = torch.arange(-chunks.size, chunks.size + 1, device=like.device)
                found[piece] = distance_ids(offsets, self.rel_max_distance)
            else:
                at = torch.arange(g, device=like.device)
                found[piece] = distance_ids(at - at[:, None], self.rel_max_distance).unsqueeze(0)
        return found


def map_streams(mask: Tensor | None, of_keys: Tensor | None) -> Tensor | None:
    return mask if of_keys is None else of_keys if mask is None else mask & of_keys


def concat_streams(parts: list[Tensor | None], rows: tuple[int, ...], keys: tuple[int, ...]) -> Tensor | None:
    """Concatenate masks of keys, (..., j); None for a stream without a mask."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    full = torch.ones((), dtype=torch.bool, device=known.device)
    found = [(full if part is None else part).expand(*rows, count) for part, count in zip(parts, keys, strict=True)]
    return torch.cat(found, dim=-1)


def check_labels(t: Any, piece: str, sizes: tuple[int, ...], count: int, like: Tensor) -> Tensor:
    name = f'rel_ids[{piece!r}]'
    if not torch.is_tensor(t) or t.is_floating_point() or t.is_complex() or t.dtype == torch.bool:
        raise TypeError(f'`{name}` must be an integer tensor, got {t.dtype if torch.is_tensor(t) else format_value(t)}')
    if tuple(t.shape) != sizes:
        raise ValueError(f'`{name}` must have shape {sizes}, got {tuple(t.shape)}')
    check_device(t, name, like)
    check_range(t, name, -1, count - 1, 'labels')
    return t.long()


# segments


class ETCInputs(NamedTuple):
    """What an ETCEncoder reads of segments.

    global_ids   b g, which kind of token each is: 0 for CLS, 1 for that of a segment
    options      masks and labels: encoder(embed(tokens), embed_global(global_ids), **options)
    """

    global_ids: Tensor
    options: dict[str, Any]


@checked
def make_etc_inputs(
    tokens: Tensor,
    segment_ids: Tensor,
    *,
    num_segments: int | None = None,
    rel_max_distance: int = 12,
    cls: bool = False,
    own_segment: bool = False,
    alone: bool = False,
    local_radius: int | None = None,
    one_sided: bool = False,
) -> ETCInputs:
    """Make one global token per segment, and labels that mark the tokens in its segment.

    tokens             b n, or with further axes
    segment_ids        b n, 0 .. num_segments - 1, -1 for padding; not every row must have all
    num_segments       how many there are, the largest of these and 1 if None
    rel_max_distance   that of the encoder: the labels stand behind those of distances
    cls                one more global token in front, which is of no segment
    own_segment        a segment's global token reads its own segment alone
    alone              a segment and its global token see nothing else: what each would be if the others were not there;
                       needs the `local_radius` of the encoder
    one_sided          a third label tells the segments behind from those before; the encoder needs one more,
                       `num_rel_ids` of 2 rel_max_distance + 4

    raises             TypeError or ValueError for inputs of other kinds or sizes
    """
    if not torch.is_tensor(tokens):
        raise TypeError(f'`tokens` must be a tensor, got {format_value(tokens)}')
    segment_ids = check_segments(segment_ids, num_segments)
    count.require('rel_max_distance', rel_max_distance)
    (count | none).require('local_radius', local_radius)
    if tuple(tokens.shape[:2]) != tuple(segment_ids.shape):
        raise ValueError(f'`tokens` must begin with {tuple(segment_ids.shape)}, got shape {tuple(tokens.shape)}')
    if num_segments is None:
        num_segments = int(segment_ids.max()) + 1 if segment_ids.numel() else 0
    if alone and local_radius is None:
        raise ValueError('`alone` needs the `local_radius` of the encoder')
    mask_long = segment_ids >= 0
    own = segment_ids.unsqueeze(1) == torch.arange(num_segments, device=tokens.device).unsqueeze(-1)  # b s n
    mask_global = own.any(dim=-1)
    first, second = 2 * rel_max_distance + 1, 2 * rel_max_distance + 2
    reads = own
    if cls:
        own, reads = (extend_keys(own, 1, 0, value) for value in (False, not alone))
        mask_global = F.pad(mask_global, (1, 0), value=True)
    g2l = l2g = torch.where(own, first, second)
    if one_sided:
        place = torch.arange(-int(cls), num_segments, device=tokens.device).unsqueeze(-1)  # -1: before all of them
        ids = segment_ids.unsqueeze(1)
        g2l = torch.where(own, first, second + (ids > place).long())  # which side the key is on
        l2g = torch.where(own, first, second + (place > ids).long())
    options: dict[str, Any] = dict(mask_long=mask_long, mask_global=mask_global)
    options['rel_ids'] = dict(g2l=g2l, l2g=l2g.mT)
    if own_segment or alone:
        options['g2l'] = reads
    if alone:
        places = torch.arange(own.shape[1], device=tokens.device)
        options['g2g'] = (places == places[:, None]).expand(own.shape[0], -1, -1)
        options['l2g'] = own.mT
        # one more, so that there is a window without tokens too
        radius: Any = local_radius
        around = F.pad(segment_ids, (radius, radius + 1), value=-1).unfold(1, 2 * radius + 1, 1)
        options['l2l'] = around[:, :-1] == segment_ids.unsqueeze(-1)
    kinds = torch.ones_like(mask_global, dtype=torch.long)
    if cls:
        kinds[:, 0] = 0
    return ETCInputs(kinds, options)


def check_segments(ids: Tensor, num_segments: int | None) -> Tensor:
    if ids.ndim != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f'`segment_ids` must be integers (b, n), got {ids.dtype} of shape {tuple(ids.shape)}')
    (size | none).require('num_segments', num_segments)
    check_range(ids, 'segment_ids', -1, None if num_segments is None else num_segments - 1, 'segments')
    return ids


class CPCLoss(nn.Module):
    """Contrastive prediction of segments: of one that is hidden, the global token foretells what it would be if read.

        loss = -weight log( exp(u t+ / temperature) / sum_t exp(u t / temperature) )

    u is the global output of a segment all of whose long tokens are hidden, t+ that of a second pass, which sees this
    segment alone; t those of all hidden segments of the batch, without gradient.

        made, alone = make_etc_inputs(tokens, segments), make_etc_inputs(tokens, segments, alone=True, local_radius=r)
        loss = cpc(encoder(hidden, glob, **made.options)[1], encoder(embeds, glob, **alone.options)[1], chosen)

    Ainslie et al. 2020, arXiv:2004.08483
    """

    def __init__(self, temperature: float = 1.0, weight: float = 0.2) -> None:
        super().__init__()
        positive.require('temperature', temperature, ConfigError)
        number.require('weight', weight, ConfigError)
        self.temperature, self.weight = temperature, weight

    @checked
    def forward(self, predicted: Tensor, target: Tensor, chosen: Tensor | None = None) -> Tensor:
        """predicted, target (b g d), or (n d), and which segments were hidden, (b g) or (n), all if None -> the loss"""
        if predicted.shape != target.shape or predicted.ndim not in (2, 3):
            raise ValueError(
                f'`target` got shape {tuple(target.shape)}, `predicted` {tuple(predicted.shape)}: they must have the '
                'same, (b, g, d) or (n, d)'
            )
        chosen = as_mask(chosen, 'chosen', *predicted.shape[:-1], like=predicted)
        chosen = torch.ones_like(predicted[..., 0], dtype=torch.bool) if chosen is None else chosen
        u, t = (x.masked_fill(~chosen.unsqueeze(-1), 0.0).flatten(0, -2) for x in (predicted, target.detach()))
        u, t = to_float(u), to_float(t)
        with disable_autocast(u):
            logits = u @ t.to(u.dtype).mT / self.temperature
        chosen = chosen.flatten()
        logits = logits.masked_fill(~chosen, torch.finfo(logits.dtype).min)
        found = logits.log_softmax(dim=-1).diagonal().masked_fill(~chosen, 0.0)
        return -self.weight * found.sum() / chosen.sum().clamp(min=1)

"""Video encoders: attention within each frame, then along time."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.checks import checked, match_precision
from x_transformers.core.modes import maps_apart
from x_transformers.features.hybrid import fold_axis, unfold_axis
from x_transformers.flags import Check, ConfigError, Configurable, mapping, none, size
from x_transformers.flags.checks import Maybe
from x_transformers.modalities.vit import an_image_size
from x_transformers.x_transformers import Decoder, Encoder

__all__ = ['FactorizedVideoEncoder', 'VideoCache']

three_sizes = Check(
    '(frames, height, width), integers of at least 1',
    lambda v: isinstance(v, (tuple, list)) and len(v) == 3 and all(map(size.test, v)),
)


class VideoCache(NamedTuple):
    """Cache of the temporal stack: keys and values, and the number of token frames."""

    temporal: LayerIntermediates
    frames: int


class FactorizedVideoEncoder(Configurable):
    """Factorized video encoder (C-ViViT):  (b, c, T, H, W) -> (b, t, h w, dim)

        t = 1 + (T - 1) / p                 for patches (p, H / h, W / w)
        x = separate projections of patches of the first frame, and of each next p frames, + spatial position
        x = spatial(x)      within each token frame, bidirectional
        x = temporal(x + time position)     at each spatial position, causal

    An image (b, c, H, W) is a video of one frame. No token depends on later frames, so that videos can be streamed.

    Villegas et al. 2022, arXiv:2210.02399 (C-ViViT)
    """

    def __init__(
        self,
        spatial_depth: Annotated[int, 'number of blocks of the spatial stack, within frames', size],
        temporal_depth: Annotated[int, 'number of blocks of the temporal stack, across frames', size],
        dim: Annotated[int, 'width of both stacks', size],
        patch: Annotated[tuple[int, int, int], 'number of frames, rows and columns per patch', three_sizes] = (2, 8, 8),
        channels: Annotated[int, 'number of channels per pixel', size] = 3,
        *,
        image_size: Annotated[
            Any, 'number of rows and columns of a frame, or one number for both', an_image_size
        ] = 128,
        max_frames: Annotated[int, 'maximum number of token frames', size] = 64,
        heads: Annotated[int, 'number of attention heads of both stacks', size] = 8,
        spatial_kwargs: Annotated[dict | None, 'additional arguments of the spatial Encoder', mapping | none] = None,
        temporal_kwargs: Annotated[dict | None, 'additional arguments of the temporal Decoder', mapping | none] = None,
    ) -> None:
        super().__init__()
        image_size = (image_size, image_size) if size.test(image_size) else tuple(image_size)
        frames, *within = patch
        for name, whole, part in zip(('height', 'width'), image_size, within, strict=True):
            if whole % part:
                raise ConfigError(f'`patch` must divide that of images, {whole}, got {part} for the {name}')
        self.patch, self.channels, self.image_size, self.max_frames = tuple(patch), channels, image_size, max_frames
        self.grid = tuple(whole // part for whole, part in zip(image_size, within, strict=True))
        self.dim, pixels, places = dim, channels * within[0] * within[1], self.grid[0] * self.grid[1]
        self.to_patch_first, self.to_patch = nn.Linear(pixels, dim), nn.Linear(frames * pixels, dim)
        self.spatial_pos = nn.Parameter(torch.randn(places, dim) * 0.02)
        self.temporal_pos = nn.Parameter(torch.randn(max_frames, dim) * 0.02)
        sizes: dict[str, Any] = dict(dim=dim, heads=heads, attn_dim_head=max(dim // heads, 1))
        spatial: dict[str, Any] = {**sizes, 'depth': spatial_depth, **(spatial_kwargs or {})}
        temporal: dict[str, Any] = {**sizes, 'depth': temporal_depth, **(temporal_kwargs or {})}
        self.spatial, self.temporal = Encoder(**spatial), Decoder(**temporal)

    @property
    def places(self) -> int:
        """Number of tokens of a frame."""
        return self.grid[0] * self.grid[1]

    def check(self, video: Tensor, cache: Maybe[VideoCache]) -> Tensor:
        """Check a video (b, c, T, H, W), whose frames must fill patches."""
        video = video.unsqueeze(2) if video.ndim == 4 else video
        if video.ndim != 5 or video.shape[1] != self.channels or video.shape[3:] != self.image_size:
            wanted = ', '.join(map(str, ('b', self.channels, 'T', *self.image_size)))
            raise ValueError(f'`video` must have shape ({wanted}), got {tuple(video.shape)}')
        p, first = self.patch[0], cache is None
        if video.shape[2] == 0 or (video.shape[2] - first) % p:
            rest = f'one, and a multiple of {p} behind it' if first else f'a multiple of {p}'
            raise ValueError(f'`video` must have {rest} frames, got {video.shape[2]}')
        count = first + (video.shape[2] - first) // p + (0 if first else cache.frames)
        if count > self.max_frames:
            raise ValueError(f'`video` makes {count} token frames, more than `max_frames`, {self.max_frames}')
        return match_precision(video, self, 'video')

    def patches(self, video: Tensor, first: bool) -> Tensor:
        """Return vectors of patches (b, t, h w, d), the first frame separately, if it is given."""
        p, h, w = self.patch
        axes = 'b c (t p) (h y) (w x) -> b t (h w) (c p y x)'
        parts = []
        if first:
            parts.append(self.to_patch_first(rearrange(video[:, :, :1], axes, p=1, y=h, x=w)))
        if video.shape[2] > first:
            parts.append(self.to_patch(rearrange(video[:, :, int(first) :], axes, p=p, y=h, x=w)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @checked
    def forward(self, video: Tensor, cache: VideoCache | None = None, return_cache: bool = False) -> Any:
        """Return the vectors of a video.

        video         b c T H W   frames: one, then a multiple of `patch[0]`; b c H W is an image
        cache                     cache of the previous frames; then T is a multiple of `patch[0]`
        return_cache              also return a `VideoCache`
        returns       b t (h w) d
        raises                    ValueError for other sizes, or more than `max_frames` token frames
        """
        video = self.check(video, cache)
        x = self.patches(video, cache is None) + self.spatial_pos
        b, t, places, _ = x.shape
        seen = 0 if cache is None else cache.frames
        x = self.spatial(x.flatten(0, 1)).unflatten(0, (b, t))
        x = (x + self.temporal_pos[seen : seen + t].unsqueeze(1)).flatten(1, 2)
        given: dict[str, Any] = {} if cache is None else dict(cache=cache.temporal, input_not_include_cache=True)
        with maps_apart(not return_cache):
            out, left = self.temporal(fold_axis(x, places), return_hiddens=True, **given)
        out = unfold_axis(out, places, t * places).unflatten(1, (t, places))
        return (out, VideoCache(left, seen + t)) if return_cache else out

"""Vision transformers: patches of images as tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import checked, match_precision
from x_transformers.core.modes import to_float
from x_transformers.core.nets import check_reads_front
from x_transformers.core.own_modules import a_stack, known_stack, run_stack
from x_transformers.features.embeddings import hands_on_positions
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm
from x_transformers.features.patterns import has_patterns
from x_transformers.features.pooling import PooledHead
from x_transformers.features.untied import begins_with_cls
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    count,
    mapping,
    none,
    one_of,
    positive,
    probability,
    size,
    warn_once,
)
from x_transformers.keywords import ViTransformerWrapperCall
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward

an_image_size = Check(
    'an integer of at least 1, or (height, width)',
    lambda v: size.test(v) or (isinstance(v, (tuple, list)) and len(v) == 2 and all(map(size.test, v))),
)
POOLS = ('mean', 'first', 'first_mean', 'prefix', 'attention')
RESAMPLED = {'bicubic': False, 'bicubic_antialias': True}  # whether it is smoothed where it shrinks


Place = Annotated[
    str, "registers stand at the 'end', behind the patches, or in 'front' of them", one_of('end', 'front')
]
Resampling = Annotated[str | None, 'resample positions for images of other sizes', one_of(*RESAMPLED) | none]
Pooling = Annotated[
    str | None,
    "what the head reads: the 'mean' of patches; the 'first' prefix token; 'first_mean', both side by side; 'prefix', "
    "each prefix token by a head of its own; what 'attention' of a learned query finds; None for all tokens",
    one_of(*POOLS) | none,
]
Options = Annotated[
    dict | None, "keywords of `pool='attention'`: `attn_` of its attention, `ff_` of its feedforward", mapping | none
]


def sides(length: Any) -> tuple[int, int]:
    """Return height and width, of a number for both or a pair."""
    return (length, length) if size.test(length) else tuple(length)


def scale_by(lengths: tuple[int, int], always: bool = False) -> str:
    """Return a height and a width as text, once if they are equal."""
    return f'{lengths[0]} x {lengths[1]}' if always or lengths[0] != lengths[1] else str(lengths[0])


def count_patches(image_size: Any, patch_size: Any, crop: bool) -> tuple[int, int]:
    """Return the number of rows and columns of patches of an image; `crop` allows pixels that fill no patch."""
    image, patch = sides(image_size), sides(patch_size)
    grid = (image[0] // patch[0], image[1] // patch[1])
    rest = image[0] % patch[0] or image[1] % patch[1]
    if not all(grid) or (rest and not crop):
        raise ConfigError(f'`patch_size` must divide `image_size`, {image_size}, got {patch_size}')
    return grid


def build_norm(dim: int, normalizes: bool, bias: bool, eps: float | None) -> nn.Module:
    """Build the layer norm of `post_emb_norm`, or an identity without it."""
    if not normalizes and (bias or eps is not None):
        warn_once('`post_emb_norm_bias` and `post_emb_norm_eps` have no effect unless `post_emb_norm` is set')
    kind = BiasedLayerNorm if bias else LayerNorm
    return kind(dim, eps=eps) if normalizes else nn.Identity()


def grid_sinusoids(rows: int, columns: int, dim: int, theta: float, like: Tensor) -> Tensor:
    """Return fixed position vectors of a grid of patches, row by row, (rows * columns, dim).

        [sin(c w), cos(c w), sin(r w), cos(r w)]    w_k = theta^(-k / (q - 1)),  k = 0 ... q - 1,  q = dim / 4

    of the patch in row r and column c, both counted from 0. Beyer et al. 2022, arXiv:2205.01580
    """
    wide = to_float(like.new_empty(0)).dtype
    powers = torch.arange(dim // 4, dtype=wide, device=like.device) / (dim // 4 - 1)
    down, across = (
        torch.arange(n, dtype=wide, device=like.device).unsqueeze(-1) * theta**-powers for n in (rows, columns)
    )  # (rows, q), (columns, q)
    down = torch.cat((down.sin(), down.cos()), dim=-1).repeat_interleave(columns, dim=0)  # (rows * columns, dim / 2)
    across = torch.cat((across.sin(), across.cos()), dim=-1).repeat(rows, 1)
    return torch.cat((across, down), dim=-1).to(like.dtype)


class ViTransformerWrapper(Configurable):
    """Vision Transformer (ViT): images to classes or embeddings.  (b, c, height, width) -> (b, classes)

    The sequence is learned prefix tokens, the patches, row by row, and register tokens, after the patches unless
    `register_place='front'`. Prefix tokens and patches have learned position embeddings, which are added, or passed
    to a stack that uses them separately, such as `tupe_pos`. Registers have no positions, and are excluded from pooling
    and from the output. With `sincos_pos_emb`, positions are fixed sinusoids of row and column, of patches only.

    Dosovitskiy et al. 2020, arXiv:2010.11929; mean pooling and sinusoids: arXiv:2205.01580; registers:
    arXiv:2309.16588
    """

    def __init__(
        self,
        *,
        image_size: Annotated[Any, 'height and width of an image, in pixels, or one number for both', an_image_size],
        patch_size: Annotated[Any, 'height and width of a patch, in pixels, or one number for both', an_image_size],
        attn_layers: Annotated[
            AttentionLayers | nn.Module,
            'stack of attention and feedforward layers, such as `Decoder` or `Encoder`',
            a_stack,
        ],
        channels: Annotated[int, 'number of channels of an image', size] = 3,
        num_classes: Annotated[
            int | None, 'number of classes; None to return the pooled embedding', size | none
        ] = None,
        post_emb_norm: Annotated[bool, 'use a layer norm after the positions are added', boolean] = False,
        num_register_tokens: Annotated[
            int, 'number of learned register tokens after the patches, without positions', count
        ] = 0,
        emb_dropout: Annotated[float, 'dropout probability of the embeddings', probability] = 0.0,
        patch_norm: Annotated[bool, 'use norms before and after the linear projection of the patches', boolean] = True,
        patch_bias: Annotated[bool, 'use a bias in the linear projection of the patches', boolean] = True,
        prefix_tokens: Annotated[int, 'number of learned prefix tokens before the patches, with positions', count] = 0,
        register_place: Place = 'end',
        post_emb_norm_bias: Annotated[bool, 'use a bias in `post_emb_norm`', boolean] = False,
        post_emb_norm_eps: Annotated[float | None, 'eps of `post_emb_norm`, 1e-5 if None', positive | none] = None,
        interpolate_pos_emb: Resampling = None,
        crop_to_patches: Annotated[
            bool, 'crop pixels on the right and at the bottom that do not fill a patch', boolean
        ] = False,
        mask_token: Annotated[bool, 'use a learned mask token for the `hidden_patches` of a call', boolean] = False,
        pool: Pooling = 'mean',
        pool_kwargs: Options = None,
        post_pool_norm: Annotated[
            bool, 'normalize the pooled embedding, with the kind of norm of the stack', boolean
        ] = False,
        pooler: Annotated[
            dict | None, 'dict that describes a layer after pooling: `dim`, `activation`, `bias`', mapping | none
        ] = None,
        sincos_pos_emb: Annotated[
            bool, 'use fixed sinusoids of row and column instead of learned positions', boolean
        ] = False,
        sincos_theta: Annotated[float, 'base of the frequencies of `sincos_pos_emb`', positive] = 10000.0,
    ) -> None:
        super().__init__()
        self.patch, self.grid = sides(patch_size), count_patches(image_size, patch_size, crop_to_patches)
        if begins_with_cls(known_stack(attn_layers)) and not prefix_tokens:
            raise ConfigError('`tupe_cls_first` needs `prefix_tokens`: patches alone have no class token')
        dim, dim_patch = known_stack(attn_layers).dim, channels * math.prod(self.patch)
        self.patch_size, self.channels, self.image_size = patch_size, channels, image_size
        self.num_prefix, self.registers_first = prefix_tokens, register_place == 'front'
        self.interpolate_pos_emb, self.pool, self.crop_to_patches = interpolate_pos_emb, pool, bool(crop_to_patches)
        self._add_positions(dim, sincos_pos_emb, sincos_theta, num_register_tokens)
        norms = (LayerNorm(dim_patch), LayerNorm(dim)) if patch_norm else (nn.Identity(), nn.Identity())
        self.patch_to_embedding = nn.Sequential(norms[0], nn.Linear(dim_patch, dim, bias=bool(patch_bias)), norms[1])
        self.prefix_tokens = nn.Parameter(torch.randn(prefix_tokens, dim) * 0.02) if prefix_tokens else None
        self.mask_token: Any = nn.Parameter(torch.randn(dim) * 0.02) if mask_token else None
        self.post_emb_norm = build_norm(dim, post_emb_norm, post_emb_norm_bias, post_emb_norm_eps)
        self.dropout = nn.Dropout(emb_dropout)
        self.attn_layers = attn_layers
        self._add_pooling(pool_kwargs or {}, post_pool_norm, pooler, num_classes)

    def _add_positions(self, dim: int, sincos: bool, theta: float, num_register_tokens: int) -> None:
        """Add the positions of prefix tokens and patches, and the register tokens, which have none."""
        self.sincos_pos_emb, self.sincos_theta = bool(sincos), float(theta)
        self._check_sincos(dim)
        shape = (1, self.num_prefix + math.prod(self.grid), dim)
        self.pos_embedding: Any = None if sincos else nn.Parameter(torch.randn(shape))
        self.register_tokens = nn.Parameter(torch.randn(num_register_tokens, dim)) if num_register_tokens else None
        self.has_register_tokens = num_register_tokens > 0

    def _add_pooling(
        self, pool_kwargs: dict, post_pool_norm: bool, pooler: dict | None, num_classes: int | None
    ) -> None:
        """Add the modules after the stack: pooling, the norm and the layer after it, and the output head."""
        self._check_pool(pool_kwargs, post_pool_norm)
        stack = known_stack(self.attn_layers)
        self.attn_pool = TokenPool(stack, pool_kwargs) if self.pool == 'attention' else None
        self.post_pool_norm = stack.new_norm() if post_pool_norm else nn.Identity()
        width: Any = stack.dim * (2 if self.pool == 'first_mean' else 1)
        self.pooler: Any = nn.Identity() if pooler is None else PooledHead(width, pooler)
        width = width if pooler is None else self.pooler[0].out_features
        self.mlp_head = self._build_head(width, num_classes) if num_classes else nn.Identity()

    def _check_sincos(self, dim: int) -> None:
        if not self.sincos_pos_emb:
            if self.sincos_theta != 10000.0:
                warn_once('`sincos_theta` has no effect unless `sincos_pos_emb` is set')
            return
        if dim % 4 or dim < 8:
            raise ConfigError(f'`sincos_pos_emb` needs a `dim` of at least 8 that is a multiple of 4, got dim={dim}')
        if self.interpolate_pos_emb is not None:
            raise ConfigError(
                '`sincos_pos_emb` cannot be combined with `interpolate_pos_emb`: its formula has positions for images '
                'of every size'
            )

    def _check_pool(self, pool_kwargs: dict | None, post_pool_norm: bool) -> None:
        if self.pool in ('first', 'first_mean', 'prefix') and not self.num_prefix:
            raise ConfigError(f'`pool={self.pool!r}` needs `prefix_tokens`: patches alone have no first token')
        if self.pool in ('first', 'first_mean', 'prefix'):
            check_reads_front(self.attn_layers, f'`pool={self.pool!r}`', "take 'mean', 'attention', or an Encoder")
        if post_pool_norm and self.pool in (None, 'first_mean'):
            raise ConfigError(f'`post_pool_norm` cannot be combined with `pool={self.pool!r}`: it norms one token')
        if pool_kwargs and self.pool != 'attention':
            warn_once("`pool_kwargs` has no effect unless `pool='attention'`")
        if self.registers_first and self.register_tokens is None:
            warn_once('`register_place` has no effect unless `num_register_tokens` is set')

    def _build_head(self, width: int, num_classes: int) -> nn.Module:
        if self.pool == 'prefix':
            return HeadPerToken(nn.Linear(width, num_classes) for _ in range(self.num_prefix))
        return nn.Linear(width, num_classes)

    if TYPE_CHECKING:
        __call__: ViTransformerWrapperCall

    @checked
    def forward(
        self,
        img: Tensor,
        return_embeddings: bool = False,
        return_logits_and_embeddings: bool = False,
        *,
        hidden_patches: Tensor | None = None,
        return_hiddens: bool = False,
    ) -> Any:
        """Return logits, or embeddings of prefix tokens and patches, (b, n, d), or both.

        hidden_patches   b n | b h w    True for patches that are replaced by the mask token
        return_hiddens                  instead return the input of the stack and the hidden states after each block,
                                        the last one normalized: a list of (b, n, d), of prefix tokens and patches
        """
        if return_hiddens and (return_embeddings or return_logits_and_embeddings):
            raise ValueError('`return_hiddens` gives embeddings too, from its last entry: ask for nothing else')
        if return_embeddings and return_logits_and_embeddings:
            raise ValueError('`return_embeddings` and `return_logits_and_embeddings` were both given, set only one')
        self._check_images(img)
        img = self._crop(match_precision(img, self, 'img'))
        x = self._embed_patches(img, hidden_patches)
        apart = self._stack_inputs(img, x.shape[1])
        if return_hiddens:
            _, trace = run_stack(self.attn_layers, x, 'all', apart)
            if trace.block_hiddens is None:
                kind = type(self.attn_layers).__name__
                raise ValueError(f'`return_hiddens` needs a stack that keeps `block_hiddens`, which {kind} does not')
            return [self._without_registers(one) for one in (x, *trace.block_hiddens)]
        x, _ = run_stack(self.attn_layers, x, None, apart)
        embeddings = self._without_registers(x)
        if return_embeddings:
            return embeddings
        logits = self.mlp_head(self.pooler(self.post_pool_norm(self._pool(embeddings))))
        return (logits, embeddings) if return_logits_and_embeddings else logits

    def _check_images(self, img: Tensor) -> None:
        if not img.is_floating_point():
            raise TypeError(f'`img` must be floating point, got {img.dtype}')
        (down, across), (rows, columns) = self.patch, self.grid
        height, width = img.shape[-2:] if img.ndim == 4 else (1, 1)
        whole = height % down == width % across == 0
        fits = (height >= down and width >= across) if self.crop_to_patches else whole
        if img.ndim != 4 or img.shape[1] != self.channels or not fits:
            how = 'of at least' if self.crop_to_patches else 'in multiples of'
            raise ValueError(
                f'`img` got shape {tuple(img.shape)}, '
                f'it must be (b, {self.channels}, height, width) {how} {scale_by(self.patch)} pixels'
            )
        learned = self.interpolate_pos_emb is None and not self.sincos_pos_emb
        if learned and (height // down > rows or width // across > columns):
            most = scale_by(sides(self.image_size), always=True)
            raise ValueError(f'`img` got {height} x {width} pixels, at most {most} have positions')

    def _crop(self, img: Tensor) -> Tensor:
        """Return images without the pixels on the right and at the bottom that do not fill a patch."""
        if not self.crop_to_patches:
            return img
        height, width = (length - length % part for length, part in zip(img.shape[-2:], self.patch, strict=True))
        return img[..., :height, :width]

    def _grid_of(self, img: Tensor) -> tuple[int, int]:
        return img.shape[-2] // self.patch[0], img.shape[-1] // self.patch[1]

    def _embed_patches(self, img: Tensor, hidden_patches: Tensor | None) -> Tensor:
        """Return the patch embeddings of images:  (b, c, height, width) -> (b, n, d)."""
        down, across = self.patch
        x = self.patch_to_embedding(rearrange(img, 'b c (h p1) (w p2) -> b (h w) (p1 p2 c)', p1=down, p2=across))
        if hidden_patches is not None:
            x = torch.where(
                self._is_hidden(hidden_patches, x, self._grid_of(img)).unsqueeze(-1), self.mask_token.to(x.dtype), x
            )
        if self.prefix_tokens is not None:
            x = torch.cat((self.prefix_tokens.expand(x.shape[0], -1, -1), x), dim=1)
        if not hands_on_positions(self):
            x = x + self._positions_of(*self._grid_of(img))
        x = self.dropout(self.post_emb_norm(x))
        return x if self.register_tokens is None else self._with_registers(x, self.register_tokens)

    def _with_registers(self, x: Tensor, registers: Tensor) -> Tensor:
        """Return prefix tokens and patches, (b, n, d), with registers, (r, d), inserted at their place."""
        at = self.num_prefix if self.registers_first else x.shape[1]
        return torch.cat((x[:, :at], registers.expand(x.shape[0], -1, -1), x[:, at:]), dim=1)

    def _stack_inputs(self, img: Tensor, n: int) -> dict[str, Any]:
        """Return what a stack is given beside n tokens: positions that it reads apart, and which tokens are no
        patches, if its layers have patterns."""
        prefix, registers = self.num_prefix, 0 if self.register_tokens is None else len(self.register_tokens)
        if not (prefix or registers) or not has_patterns(self.attn_layers):
            return self._positions_apart(img)
        outside: int | Tensor = prefix + registers
        if registers and not self.registers_first:
            at = torch.arange(n, device=img.device)
            outside = torch.cat((at[:prefix], at[n - registers :]))
        return {**self._positions_apart(img), 'outside_pattern': outside}

    def _positions_apart(self, img: Tensor) -> dict[str, Tensor]:
        """Return the inputs of a stack that gets positions apart from the tokens."""
        if not hands_on_positions(self):
            return {}
        vectors = self._positions_of(*self._grid_of(img))
        known = torch.ones(1, vectors.shape[1], 1, dtype=torch.bool, device=vectors.device)
        if self.sincos_pos_emb:
            known[:, : self.num_prefix] = False
        if begins_with_cls(known_stack(self.attn_layers)):
            known[:, 0] = False
        if self.register_tokens is not None:
            vectors = self._with_registers(vectors, torch.zeros_like(self.register_tokens))
            known = self._with_registers(known, known.new_zeros(len(self.register_tokens), 1))
        return dict(pos_vectors=vectors, pos_known=known[..., 0])

    def _is_hidden(self, given: Tensor, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return a mask (b, n) of hidden patches (b, n, d); `given` as that, or (b, h, w) in the grid."""
        if self.mask_token is None:
            raise ValueError('`hidden_patches` was given, but the model has no `mask_token` to stand in for them')
        flat = given.flatten(1) if given.ndim == 3 else given
        turned = given.ndim == 3 and given.shape[1:] != grid
        if flat.shape != patches.shape[:2] or turned or flat.dtype != torch.bool:
            wanted = f'True or False for each of {tuple(patches.shape[:2])} patches, in {grid[0]} rows of {grid[1]}'
            raise ValueError(f'`hidden_patches` must be {wanted}, got {given.dtype} of shape {tuple(given.shape)}')
        return flat

    def _positions_of(self, rows: int, columns: int) -> Tensor:
        """Positions of prefix tokens and a grid of patches,  1 n d: the upper left part of the table, or all of it
        resampled; of prefix tokens zeros with `sincos_pos_emb`."""
        if self.sincos_pos_emb:
            like: Any = self.patch_to_embedding[1].weight
            found = grid_sinusoids(rows, columns, len(like), self.sincos_theta, like)
            return F.pad(found, (0, 0, self.num_prefix, 0)).unsqueeze(0)
        table, prefix, (height, width) = self.pos_embedding, self.num_prefix, self.grid
        if self.interpolate_pos_emb is None:  # no question of sizes: programs read images of all
            down, across = (torch.arange(count, device=table.device) for count in (rows, columns))
            part = table[:, (prefix + width * down.unsqueeze(-1) + across).flatten()]
            return torch.cat((table[:, :prefix], part), dim=1) if prefix else part
        if (rows, columns) == (height, width):
            return table
        grid = rearrange(to_float(table[:, prefix:]), '1 (h w) d -> 1 d h w', h=height)
        smooth = RESAMPLED[self.interpolate_pos_emb]
        grid = F.interpolate(grid, (rows, columns), mode='bicubic', align_corners=False, antialias=smooth)
        return torch.cat((table[:, :prefix], rearrange(grid.to(table.dtype), '1 d h w -> 1 (h w) d')), dim=1)

    def _without_registers(self, x: Tensor) -> Tensor:
        if self.register_tokens is None:
            return x
        count = len(self.register_tokens)
        at = self.num_prefix if self.registers_first else x.shape[1] - count
        return torch.cat((x[:, :at], x[:, at + count :]), dim=1) if self.registers_first else x[:, :at]

    def _pool(self, x: Tensor) -> Tensor:
        """Return the input of the head, (b, d), of prefix tokens and patches (b, n, d).

        It is (b, 2 d) for 'first_mean', (b, p, d) for 'prefix', and (b, n, d) for None.
        """
        if self.pool is None or self.pool == 'prefix':
            return x if self.pool is None else x[:, : self.num_prefix]
        if self.attn_pool is not None:
            return self.attn_pool(x)
        parts = [x[:, 0]] if self.pool.startswith('first') else []
        parts += [x[:, self.num_prefix :].mean(dim=1)] if self.pool.endswith('mean') else []
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class TokenPool(nn.Module):
    """Pooling of all tokens by one learned query:  (b, n, d) -> (b, d).

        p = attention(query, x),  p + ff(norm(p))

    `options` are keywords of the attention and of the feedforward, with their prefixes; the norm is as in the stack.

    Zhai et al. 2021, arXiv:2106.04560; as in SigLIP, arXiv:2303.15343
    """

    def __init__(self, stack: AttentionLayers, options: Mapping[str, Any]) -> None:
        super().__init__()
        of: dict[str, dict[str, Any]] = {'attn_': {'heads': stack.attn_heads}, 'ff_': {}}
        for name, value in options.items():
            prefix = next((prefix for prefix in of if str(name).startswith(prefix)), None)
            if prefix is None:
                raise ConfigError(f'`pool_kwargs` got {name!r}, its keywords start with `attn_` or `ff_`')
            of[prefix][name.removeprefix(prefix)] = value
        of['attn_'].setdefault('dim_head', stack.attn_dim_head)
        self.query = nn.Parameter(torch.randn(1, stack.dim) * stack.dim**-0.5)
        self.attn, self.norm = Attention(stack.dim, **of['attn_']), stack.new_norm()
        self.ff = FeedForward(stack.dim, **of['ff_'])

    def forward(self, x: Tensor) -> Tensor:
        p = self.attn(self.query.expand(x.shape[0], -1, -1), context=x).squeeze(1)
        return p + self.ff(self.norm(p))


class HeadPerToken(nn.ModuleList):
    """Mean of the logits of one head per token:  (b, p, d) -> (b, classes)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x[:, at]) for at, head in enumerate(self)]).mean(dim=0)

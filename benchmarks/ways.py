"""Ways of attention below the square of the length, each by our keywords, and the layers of other packages beside them.

A way names the flags of `Attention` at a length, as they stand behind `attn_` in a stack. A package does not always do
the same: what differs stands beside its name. All have 8 heads, and projections of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Flags = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """Of one layer; `scale` divides windows, buckets and numbers of features, for tiny runs."""

    dim: int = 256
    heads: int = 8
    scale: int = 1
    wide: int | None = None  # of a head, if not `dim / heads`

    def of(self, number: int) -> int:
        return max(1, number // self.scale)

    @property
    def head(self) -> int:
        return self.wide or self.dim // self.heads


@dataclass(frozen=True)
class Way:
    """One way of attention.

    flags      of `Attention`, at a length; `build` makes the layer where it is no attention
    peer       the package beside it, of PEERS, which must be slower by `goal`
    linear     its time grows with the length, so that longer ones are measured, too
    depth      a whole stack of so many layers is measured, beside the same stack without the way
    wide       the width of heads that the package has of itself, for both
    inputs     what a call gets beside the tokens
    decoder    flags of a stack that decodes, where `build` makes the layer
    """

    flags: Callable[[int, Sizes], dict[str, Any]] | None = None
    causal: bool = True
    peer: str = ''
    goal: float | None = None
    linear: bool = False
    depth: int = 0
    decodes: bool = False
    build: Callable[[int, Sizes], nn.Module] | None = None
    wide: int | None = None
    inputs: Callable[[int], dict[str, Any]] = field(default=lambda n: {})
    decoder: dict[str, Any] = field(default_factory=dict)


def root(n: int) -> int:
    """The power of two next to the root."""
    return 2 ** round(torch.tensor(float(n)).log2().item() / 2)


def clusters(n: int, sizes: Sizes) -> int:
    return max(2, n // sizes.of(256))


def pattern(make: Callable[[Any, int, Sizes], Any]) -> Callable[[int, Sizes], dict[str, Any]]:
    """The flag of a pattern, given the module with all patterns."""

    def flags(n: int, sizes: Sizes) -> dict[str, Any]:
        from x_transformers import patterns

        return {'sparse_pattern': make(patterns, n, sizes)}

    return flags


def strided(p: Any, n: int, sizes: Sizes, how: str = 'heads') -> Any:
    return p.Mix((p.Sliding(root(n)), p.Strided(root(n))), how=how)


def fixed(p: Any, n: int, sizes: Sizes) -> Any:
    return p.Mix((p.BlockLocal(root(n)), p.Summary(root(n), c=max(1, root(n) // 16))), how='heads')


def lsh(n: int, s: Sizes) -> dict[str, Any]:
    return {'cluster': 'lsh', 'cluster_size': s.of(64), 'lsh_rounds': 4, 'lsh_buckets': max(2, n // s.of(64) // 2 * 2)}


def routing(n: int, s: Sizes) -> dict[str, Any]:
    return {'cluster': 'routing', 'num_clusters': clusters(n, s), 'cluster_size': s.of(256)}


def sinkhorn(n: int, s: Sizes) -> dict[str, Any]:
    return {'cluster': 'sinkhorn', 'cluster_size': s.of(128)}


def features(kernel: str, **flags: Any) -> Callable[[int, Sizes], dict[str, Any]]:
    return lambda n, s: {'kernel': kernel, **flags}


def aft(kind: str) -> Callable[[int, Sizes], dict[str, Any]]:
    return lambda n, s: {'aft': kind, **({'aft_max_len': n} if kind in ('full', 'local') else {})}


def first_global(n: int) -> dict[str, Tensor]:
    return {'global_mask': torch.arange(n)[None] < 1}


class TwoStreams(nn.Module):
    """A layer with a global token for every 64 tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x[:, ::64])


def etc(n: int, s: Sizes) -> nn.Module:
    from x_transformers.etc import ETCEncoder

    return TwoStreams(ETCEncoder(dim=s.dim, depth=1, heads=s.heads, local_radius=s.of(84)))


def recurrent(name: str) -> Callable[[int, Sizes], nn.Module]:
    def build(n: int, s: Sizes) -> nn.Module:
        from x_transformers import recurrent

        return getattr(recurrent, name)(s.dim)

    return build


def layers(name: str) -> dict[str, Any]:
    return {'custom_layers': ('r', 'f'), 'recurrent_module': name}


def stack(**flags: Any) -> dict[str, Any]:
    return {'flags': lambda n, s: flags, 'causal': False, 'depth': 8}


LINEAR: dict[str, Any] = {'linear': True, 'decodes': True}
WAYS: dict[str, Way] = {
    # patterns
    'window 256, causal': Way(lambda n, s: {'max_attend_past': s.of(256)}, peer='local-attention', goal=2, **LINEAR),
    'sliding 256, causal': Way(pattern(lambda p, n, s: p.Sliding(s.of(256))), peer='local-attention', goal=2, **LINEAR),
    'sliding 256': Way(pattern(lambda p, n, s: p.Sliding(s.of(256))), False, peer='local-attention', linear=True),
    'image, local 1D': Way(
        pattern(lambda p, n, s: p.Local1D(s.of(256), s.of(256))), peer='local-attention', decodes=True
    ),
    'image, local 2D': Way(
        pattern(lambda p, n, s: p.Local2D((root(n), n // root(n)), (s.of(8), s.of(16)), (s.of(8), s.of(16)))),
        peer='local-attention',
    ),
    'axial 2D': Way(
        pattern(lambda p, n, s: p.BlockLocal(root(n)) | p.Strided(root(n))),
        False,
        peer='axial-attention',
        goal=1.2,
    ),
    'Sparse Transformer, strided': Way(pattern(strided), decodes=True),
    'Sparse Transformer, merged': Way(pattern(lambda p, n, s: strided(p, n, s, 'merge')), decodes=True),
    'Sparse Transformer, fixed': Way(pattern(fixed), decodes=True),
    'Blockwise': Way(lambda n, s: {'sparse_pattern': 'blockwise'}, False),
    'ETC, depth 1': Way(build=etc, causal=False, depth=1),
    'Longformer': Way(
        lambda n, s: {'sparse_pattern': 'longformer'}, False, peer='local-attention', inputs=first_global
    ),
    'BigBird': Way(pattern(lambda p, n, s: p.BigBird(block=s.of(64))), False, peer='local-attention'),
    # clusters
    'LSH, causal': Way(lsh, peer='reformer-pytorch', goal=2, decodes=True),
    'LSH': Way(lsh, False, peer='reformer-pytorch', goal=2),
    'routing, causal': Way(routing, peer='routing-transformer', goal=1.5, decodes=True),
    'routing': Way(routing, False, peer='routing-transformer', goal=1.5),
    'Sinkhorn, causal': Way(sinkhorn, peer='sinkhorn-transformer', goal=1.3, decodes=True),
    'Sinkhorn': Way(sinkhorn, False, peer='sinkhorn-transformer', goal=1.3),
    # chosen keys
    'MoBA, causal': Way(lambda n, s: {'moba_block': s.of(256), 'moba_topk': 4}, decodes=True),
    'sparse indexer, causal': Way(
        lambda n, s: {'indexer': True, 'indexer_heads': 4, 'indexer_dim': s.of(32), 'indexer_topk': s.of(512)},
        decodes=True,
    ),
    # stacks
    'reversible, depth 8': Way(**stack(reversible=True)),
    'feedforward in 8 chunks, depth 8': Way(**stack(ff_chunks=8, ff_chunk_checkpoint=True)),
    # low rank and feature maps
    'Linformer, k 256': Way(
        # matrices that heads share, as in the package
        lambda n, s: {'linformer_k': s.of(256), 'linformer_max_len': n, 'linformer_share': 'headwise'},
        False,
        peer='linformer',
        goal=1.3,
        linear=True,
    ),
    'RFA, causal': Way(features('rff'), **LINEAR),
    'RFA with gates, causal': Way(features('rff', kernel_update='gate'), **LINEAR),
    'Performer, causal': Way(features('favor'), peer='performer-pytorch', goal=10, **LINEAR),
    'Performer': Way(features('favor'), False, peer='performer-pytorch', goal=1.3, linear=True),
    'Performer, causal, heads of 64': Way(features('favor'), peer='performer-pytorch', goal=10, linear=True, wide=64),
    'Performer, heads of 64': Way(features('favor'), False, peer='performer-pytorch', goal=1.3, linear=True, wide=64),
    'linear, causal': Way(features('elu'), peer='linear-attention-transformer', goal=10, **LINEAR),
    'linear': Way(features('elu'), False, peer='linear-attention-transformer', linear=True),
    'delta rule, causal': Way(features('elu', kernel_update='delta'), **LINEAR),
    'delta rule, DPFP, causal': Way(features('dpfp', kernel_update='delta'), **LINEAR),
    'AFT full': Way(aft('full'), False, peer='aft-pytorch full', goal=1.5),
    'AFT local': Way(aft('local'), False, peer='aft-pytorch local', linear=True),
    'AFT local, causal': Way(aft('local'), **LINEAR),
    'AFT simple': Way(aft('simple'), False, peer='aft-pytorch simple', linear=True),
    'AFT simple, causal': Way(aft('simple'), **LINEAR),
    'AFT conv': Way(aft('conv'), False, linear=True),
    'AFT conv, causal': Way(aft('conv'), **LINEAR),
    'RWKV, causal': Way(build=recurrent('RWKVTimeMix'), decoder=layers('rwkv'), **LINEAR),
    'diagonal SSM, causal': Way(build=recurrent('DiagonalSSM'), decoder=layers('ssm'), **LINEAR),
    'Mamba, causal': Way(build=recurrent('Mamba'), decoder=layers('mamba'), peer='mambapy', **LINEAR),
}


# layers of other packages, imported from their folder


def local_attention(n: int, s: Sizes, causal: bool) -> nn.Module:
    from local_attention import LocalMHA

    # a query sees 256 to 511 tokens back
    return LocalMHA(
        dim=s.dim, window_size=s.of(256), heads=s.heads, dim_head=s.head, causal=causal, use_rotary_pos_emb=False
    )


def reformer(n: int, s: Sizes, causal: bool) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(s.dim, heads=s.heads, bucket_size=s.of(64), n_hashes=4, causal=causal)


def routing_transformer(n: int, s: Sizes, causal: bool) -> nn.Module:
    from routing_transformer.routing_transformer import SelfAttention

    return SelfAttention(s.dim, 1, n, s.heads, s.heads // 2, s.of(256), causal=causal, rel_pos_emb=False)


def sinkhorn_transformer(n: int, s: Sizes, causal: bool) -> nn.Module:
    from sinkhorn_transformer import SinkhornSelfAttention

    return SinkhornSelfAttention(s.dim, s.of(128), n, heads=s.heads, causal=causal)


def linformer(n: int, s: Sizes, causal: bool) -> nn.Module:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(s.dim, n, k=s.of(256), heads=s.heads)


def performer(n: int, s: Sizes, causal: bool) -> nn.Module:
    from performer_pytorch import SelfAttention

    return SelfAttention(s.dim, causal=causal, heads=s.heads, dim_head=s.head)


def linear_attention(n: int, s: Sizes, causal: bool) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    return SelfAttention(s.dim, s.heads, causal=causal)


class Square(nn.Module):
    """A layer over images, on rows of them."""

    def __init__(self, layer: nn.Module, n: int) -> None:
        super().__init__()
        self.layer, self.shape = layer, (root(n), n // root(n))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unflatten(1, self.shape))


def axial_attention(n: int, s: Sizes, causal: bool) -> nn.Module:
    from axial_attention import AxialAttention

    # rows and columns have projections of their own
    return Square(AxialAttention(s.dim, num_dimensions=2, heads=s.heads, dim_index=-1), n)


def aft_pytorch(kind: str) -> Callable[[int, Sizes, bool], nn.Module]:
    def build(n: int, s: Sizes, causal: bool) -> nn.Module:
        import aft_pytorch

        more = {'s': s.of(32)} if kind == 'Local' else {}
        return getattr(aft_pytorch, f'AFT{kind}')(n, s.dim, s.dim, **more)

    return build


def mambapy(n: int, s: Sizes, causal: bool) -> nn.Module:
    from mambapy.mamba import MambaBlock, MambaConfig

    return MambaBlock(MambaConfig(d_model=s.dim, n_layers=1))


PEERS: dict[str, Callable[[int, Sizes, bool], nn.Module]] = {
    'local-attention': local_attention,
    'reformer-pytorch': reformer,
    'routing-transformer': routing_transformer,
    'sinkhorn-transformer': sinkhorn_transformer,
    'linformer': linformer,
    'performer-pytorch': performer,
    'linear-attention-transformer': linear_attention,
    'axial-attention': axial_attention,
    'aft-pytorch full': aft_pytorch('Full'),
    'aft-pytorch local': aft_pytorch('Local'),
    'aft-pytorch simple': aft_pytorch('Simple'),
    'mambapy': mambapy,
}

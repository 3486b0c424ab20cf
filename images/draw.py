"""Pictures of what the library does, each drawn from its own modules.

    python images/draw.py                     all of them, to the folder of this file
    python images/draw.py rotary stages       some
    python images/draw.py --list              their names
    python images/draw.py --to elsewhere rotary

A layout is what the layers of a stack are; a map is what a module gives (`visible`, a table), or, where a module forms
no map, which inputs an output depends on; a curve is a module asked for many values.

Exit codes: 0 done, 2 there is no such picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]

import style  # noqa: E402

from x_transformers import Decoder, Encoder, TransformerWrapper, XTransformer, patterns  # noqa: E402
from x_transformers.autoregressive_wrapper import hidden_keys  # noqa: E402
from x_transformers.features.biases import (  # noqa: E402
    AlibiPositionalBias,
    DynamicPositionBias,
    RelativePositionBias,
)
from x_transformers.features.levels import (  # noqa: E402
    AttentionFeature,
    FeedForwardFeature,
    ModelFeature,
    StackFeature,
)
from x_transformers.features.rotary import RotaryEmbedding, apply_rotary_pos_emb  # noqa: E402
from x_transformers.flags.resolved import did_you_mean  # noqa: E402

N, DIM = 48, 32  # tokens and width of what is drawn
NOTHING, ONE, OTHER, BOTH, AHEAD = range(5)
COLORS = ('#ffffff', style.BLUE, style.YELLOW, style.INK, '#d5dbe1')
NAMES = ('hidden', 'visible', 'to a second head', 'to both heads', 'the future')
STAGES = {
    'ring': ('blue', 'ring: changes the value'),
    'term': ('green', 'term: adds to the value'),
    'choice': ('orange', 'choice: replaces a step'),
    'build': ('grey', 'build: when the model is built'),
}
KINDS = {'a': 'blue', 'c': 'green', 'f': 'orange', 'norm': 'yellow', 'end': 'grey'}


# kinds of pictures


@dataclass
class Maps:
    """Tables of numbers as colors, four in a row. Whole numbers are the colors of `COLORS`."""

    title: str
    maps: list[tuple[str, Tensor]]

    def draw(self, figure: Any) -> None:
        down = -(-len(self.maps) // 4)
        lines = max(name.count('\n') for name, _ in self.maps)
        whole = not self.maps[0][1].is_floating_point()
        style.set_height(figure, (104 + 12 * lines) * down + 44 + 26 * whole)
        panels = list(figure.subplots(down, 4).flat)
        for axes, (name, table) in zip(panels, self.maps, strict=True):
            if whole:
                from matplotlib.colors import ListedColormap

                look = dict(cmap=ListedColormap(COLORS), vmin=-0.5, vmax=len(COLORS) - 0.5)
            else:
                look = dict(cmap=style.SHADES)
            axes.imshow(table.numpy(), interpolation='nearest', aspect='auto', **look)
            axes.set_title(name, fontsize=style.SMALL, pad=3)
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            for spine in axes.spines.values():
                spine.set_visible(True)
        if whole:
            keys = [
                panels[0].bar(0, 0, color=color, edgecolor=style.MUTED, linewidth=0.6, label=name)
                for color, name in zip(COLORS, NAMES, strict=True)
            ]
            look = dict(handlelength=0.9, handletextpad=0.4, columnspacing=1.0)
            figure.legend(handles=keys, loc='outside lower left', ncols=len(keys), **look)


@dataclass
class Curves:
    """Numbers over numbers, each curve with its name."""

    title: str
    x: str
    y: str
    curves: list[tuple[str, Tensor, Tensor]]
    log: bool = False

    def draw(self, figure: Any) -> None:
        style.set_height(figure, 220)
        axes = figure.subplots()
        for name, x, y in self.curves:
            axes.plot(x.numpy(), y.numpy(), label=name, marker='o' if len(x) < 16 else '')
        axes.set(xlabel=self.x, ylabel=self.y)
        if self.log:
            from matplotlib.ticker import FuncFormatter

            axes.set(xscale='log', yscale='log')
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:,g}'))
            axes.minorticks_off()
            if len(self.curves[0][1]) < 8:
                axes.set_xticks(self.curves[0][1].tolist())
        figure.legend(loc='outside lower center', ncols=len(self.curves), handlelength=1.4)


@dataclass
class Rows:
    """Layers in order, from left to right: a attention, f feedforward."""

    title: str
    rows: list[tuple[str, tuple[str, ...]]]

    def draw(self, figure: Any) -> None:
        style.set_height(figure, 19 * len(self.rows) + 62)
        axes = figure.subplots()
        for down, (_, kinds) in enumerate(self.rows):
            for at, kind in enumerate(kinds):
                color = style.TINTS[KINDS[kind]]
                axes.barh(down, 0.88, left=at, height=0.8, color=color, edgecolor=style.MUTED, linewidth=0.7)
                axes.text(at + 0.44, down, kind, ha='center', va='center')
        axes.set_yticks(range(len(self.rows)), [name for name, _ in self.rows])
        axes.set_xlabel('a: attention, f: feedforward; the first layer is at the left', fontsize=style.SMALL)
        axes.set(xticks=[], xlim=(0, max(len(kinds) for _, kinds in self.rows)), ylim=(len(self.rows) - 0.5, -0.5))
        style.plain(axes)


@dataclass
class Layouts:
    """Parts of models from top to bottom. A branch is a list: the stream goes around it and is joined at its end."""

    title: str
    across: int
    columns: list[tuple[str, list[Any]]]
    reads: dict[str, str]  # what the branch of a column reads from another column

    def draw(self, figure: Any) -> None:
        down = -(-len(self.columns) // self.across)
        rows = [self.columns[at : at + self.across] for at in range(0, len(self.columns), self.across)]
        heights = [max(map(self.height, parts)) for parts in rows]
        style.set_height(figure, sum(heights) + 38)
        panels = figure.subplots(down, self.across, squeeze=False, height_ratios=heights)
        wide, ends = (style.WIDTH - 2 * style.MARGIN) / self.across - 6, {}
        for line, parts, height in zip(panels, rows, heights, strict=True):
            for axes, (name, items) in zip(line, parts, strict=True):
                axes.set_title(name, pad=4)
                axes.set(xlim=(0, wide), ylim=(height - 18, 0), xticks=[], yticks=[])
                style.plain(axes)
                ends[name] = (axes, self.column(axes, items, wide))
        for name, source in self.reads.items():
            self.arrow(figure, *ends[source], *ends[name], wide)

    @staticmethod
    def height(column: tuple[str, list[Any]]) -> float:
        return 24 + sum(18 * len(item) + 2 if isinstance(item, list) else 20 for item in column[1])

    @staticmethod
    def column(axes: Any, items: list[Any], wide: float) -> dict[str, float]:
        """Draw boxes, and return the heights at which cross-attention and the end are."""
        y, middle, left, found = 2.0, wide / 2 + 8, 12.0, {}
        line = dict(color=style.MUTED, linewidth=1.1, solid_capstyle='round', zorder=0)

        def box(kind: str, words: str) -> None:
            nonlocal y
            style.rounded(axes, 24, y, wide - 32, 14, style.TINTS[KINDS[kind]])
            axes.text(middle, y + 7, words, ha='center', va='center_baseline', fontsize=style.SMALL)
            found[kind] = y + 7
            y += 18

        for item in items:
            if not isinstance(item, list):
                box(*item)
                y += 2
                continue
            join, start = item[-1], y - 1.5
            for part in item[:-1]:
                box(*part)
            axes.plot([middle, left, left, middle], [start, start, y + 6, y + 6], **line)
            axes.text(
                middle, y + 6, join, ha='center', va='center_baseline', fontsize=style.SMALL,
                bbox=dict(boxstyle='round,pad=0.12', facecolor='#ffffff', edgecolor=style.MUTED, linewidth=0.8),
            )  # fmt: skip
            y += 20
        axes.plot([middle, middle], [3, y - 4], **line)
        return found

    @staticmethod
    def arrow(figure: Any, one: Any, out: dict[str, float], other: Any, into: dict[str, float], wide: float) -> None:
        """From the last norm of a column to the cross-attention of the next."""
        from matplotlib.patches import ConnectionPatch

        look = dict(arrowstyle='-|>', color=style.GREEN, linewidth=1.4, connectionstyle='arc3,rad=-0.08')
        places = dict(xyA=(wide - 8, out['norm']), xyB=(24, into['c']), coordsA='data', coordsB='data')
        figure.add_artist(ConnectionPatch(**places, axesA=one, axesB=other, **look))


@dataclass
class Stages:
    """The stages of each level in running order, from top to bottom; the color is the kind."""

    title: str
    parts: list[tuple[str, list[tuple[str, str]]]]

    def draw(self, figure: Any) -> None:
        most = max(len(stages) for _, stages in self.parts)
        style.set_height(figure, 13.5 * most + 88)
        for axes, (level, stages) in zip(figure.subplots(1, len(self.parts)), self.parts, strict=True):
            for y, (stage, kind) in enumerate(stages):
                axes.barh(y, 1, height=0.88, color=style.TINTS[STAGES[kind][0]])
                axes.text(0.5, y, stage, ha='center', va='center_baseline', fontsize=style.SMALL)
            axes.set(xlim=(0, 1), ylim=(most - 0.5, -0.5))
            axes.set_title(level, weight='bold', pad=4)
            axes.set_axis_off()
        keys = [figure.axes[0].barh(-9, 0, color=style.TINTS[tint], label=words) for tint, words in STAGES.values()]
        figure.legend(handles=keys, loc='outside lower center', ncols=2, handlelength=1.2)


Picture = Maps | Curves | Rows | Layouts | Stages


def summary(found: Picture) -> str:
    """What a picture shows, in few numbers, which are written into its file too."""
    tables = [table for _, table in getattr(found, 'maps', [])] + [y for _, _, y in getattr(found, 'curves', [])]
    numbers = [[*table.shape, table.float().mean().item(), table.float().std().item()] for table in tables]
    told_of = [found.title, *(getattr(found, name, None) for name in ('rows', 'columns', 'parts'))]
    return json.dumps([told_of, numbers])


PICTURES: dict[str, Callable[[], Picture]] = {}


def picture(name: str) -> Callable[[Callable[[], Picture]], Callable[[], Picture]]:
    """Give a picture its name. Its weights are those of seed 0."""

    def named(make: Callable[[], Picture]) -> Callable[[], Picture]:
        def seeded() -> Picture:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(0)
                return make()

        PICTURES[name] = seeded
        return seeded

    return named


# layouts


WORDS = {'a': 'self-attention', 'c': 'cross-attention', 'f': 'feedforward', 'Residual': '+', 'GRUGating': 'gate'}


def norm_of(module: nn.Module | None) -> list[tuple[str, str]]:
    return [] if module is None or isinstance(module, nn.Identity) else [('norm', type(module).__name__)]


def layers_of(stack: nn.Module) -> list[Any]:
    """The layers of a stack as items of `Layouts`: its norms, branches and residual connections."""
    items: list[Any] = []
    for kind, ((before, behind_branch, behind), branch, residual) in zip(stack.layer_types, stack.layers, strict=True):
        half = '½ ' if type(branch).__name__ == 'Scale' else ''
        words = half + ('causal attention' if kind == 'a' and stack.causal else WORDS[kind])
        join = WORDS[type(residual).__name__]
        items += [[*norm_of(before), (kind, words), *norm_of(behind_branch), join], *norm_of(behind)]
    return items + norm_of(stack.final_norm)


def model_of(net: nn.Module) -> list[Any]:
    """A model as items of `Layouts`: its embeddings, its stack, and its logits."""
    ends = [('end', 'token embedding')]
    if net.pos_emb is not None:
        ends.append(('end', '+ position'))
    to_logits = getattr(net, 'to_logits', None)
    return ends + layers_of(net.attn_layers) + ([('end', 'logits')] if to_logits is not None else [])


@picture('layouts')
def _() -> Picture:
    stack = dict(dim=DIM, depth=1, heads=4, attn_dim_head=8, verbose=False)
    plain = TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=Decoder(**stack))
    sizes = dict(num_tokens=256, max_seq_len=64, depth=1, heads=4, attn_dim_head=8)
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    both = XTransformer(dim=DIM, **flags)
    columns = [
        ('Decoder', model_of(plain)),
        ('XTransformer.encoder', model_of(both.encoder)),
        ('XTransformer.decoder', model_of(both.decoder.net)),
    ]
    reads = {'XTransformer.decoder': 'XTransformer.encoder'}
    return Layouts('A decoder, and an encoder with its decoder, of depth 1', 3, columns, reads)


@picture('blocks')
def _() -> Picture:
    kinds: dict[str, dict[str, Any]] = {
        'default': {},
        'pre_norm=False': dict(pre_norm=False),
        'gate_residual=True': dict(gate_residual=True),
        'sandwich_norm=True': dict(sandwich_norm=True),
        'pre_and_post_norm=True': dict(pre_and_post_norm=True),
        'macaron=True': dict(macaron=True),
    }
    sizes = dict(dim=DIM, depth=1, heads=4, attn_dim_head=8, verbose=False)
    columns = [(name, layers_of(Encoder(**sizes, **flags))) for name, flags in kinds.items()]
    return Layouts('Norms and residual connections of an encoder of depth 1', 3, columns, {})


@picture('orders')
def _() -> Picture:
    kinds = {
        'default': {},
        'macaron=True': dict(macaron=True),
        'sandwich_coef=2': dict(sandwich_coef=2),
        'sandwich_coef=4': dict(sandwich_coef=4),
        'par_ratio=3': dict(par_ratio=3),
        'par_ratio=5': dict(par_ratio=5),
    }
    rows = [(name, Encoder(dim=DIM, depth=6, heads=1, **flags).layer_types) for name, flags in kinds.items()]
    return Rows('Orders of layers, depth=6', rows)


@picture('stages')
def _() -> Picture:
    levels = {
        'model': ModelFeature,
        'stack': StackFeature,
        'attention': AttentionFeature,
        'feedforward': FeedForwardFeature,
    }
    return Stages(
        'Stages at which features plug in', [(name, [*level.stages.items()]) for name, level in levels.items()]
    )


# which keys a query attends to


@dataclass
class Shown:
    """A pattern, of as many heads as differ."""

    title: str
    pattern: patterns.Pattern
    causal: bool = False
    heads: int = 1

    def pixels(self) -> Tensor:
        """Return colors (n, n): visible to one head, to the other, to both, and the future."""
        seen = self.pattern.draw(N, causal=self.causal, heads=self.heads, marks=marks)
        drawn = torch.tensor(
            [[[sign == '#' for sign in line] for line in head.splitlines()] for head in seen.split('\n\n')]
        )
        found = sum(drawn[head].long() * (head + 1) for head in range(self.heads))
        return with_future(found) if self.causal else found


def with_future(seen: Tensor) -> Tensor:
    """Return the colors (n, n) with those of later keys."""
    return torch.where(torch.ones_like(seen).triu(1).bool() & (seen == NOTHING), AHEAD, seen)


def marks(position: Any) -> Any:
    """Positions that `global_mask` marks."""
    return (position == 0) | (position == 21)


P = patterns
GALLERY = {
    'sliding': Shown('Sliding', P.Sliding(6), True),
    'dilated': Shown('Sliding, dilated', P.Sliding(4, dilation=(1, 3)), True, 2),
    'block-local': Shown('BlockLocal', P.BlockLocal(8)),
    'blockwise': Shown('Blockwise', P.Mix((P.BlockPermutation(3, 0), P.BlockPermutation(3, 1)), heads=(1, 1)), heads=2),
    'strided': Shown('Sparse, strided', P.Mix((P.Sliding(7), P.Strided(7))), True, 2),
    'fixed': Shown('Sparse, fixed', P.Mix((P.BlockLocal(8), P.Summary(8, 2))), True, 2),
    'longformer': Shown('Longformer', P.Sliding(4) | P.Global('mask')),
    'bigbird': Shown('BigBird', P.BigBird(block=3), heads=2),
    'local-1d': Shown('Local1D', P.Local1D(8, 8), True),
    'local-2d': Shown('Local2D', P.Local2D((6, 8), (2, 4), (2, 2)), True),
    'axial': Shown('Row and Column', P.Mix((P.Row(8), P.Column(8))), True, 2),
    'conv-2d': Shown('Conv2D', P.Conv2D((6, 8), kernel=3), True),
}


def influence(layers: nn.Module, n: int = N) -> Tensor:
    """Return which inputs each output of a stack depends on (n, n), as colors."""
    with torch.enable_grad():
        x = torch.randn(1, n, DIM, requires_grad=True)
        out = layers.eval()(x)
        rows = [torch.autograd.grad(out[0, at].sin().sum(), x, retain_graph=True)[0] for at in range(n)]
    return (torch.stack(rows)[:, 0].abs().amax(dim=-1) > 1e-9).long()


@picture('patterns')
def _() -> Picture:
    maps = [(shown.title, shown.pixels()) for shown in GALLERY.values()]
    sizes = dict(dim=DIM, depth=1, heads=1, attn_dim_head=16, verbose=False)
    lsh = dict(attn_cluster='lsh', attn_cluster_size=8, attn_lsh_rounds=1, attn_lsh_buckets=6)
    maps += [
        ('LSH', influence(Encoder(**sizes, **lsh))),
        ('Routing', influence(Encoder(**sizes, attn_cluster='routing', attn_num_clusters=6))),
        ('Top 4 scores', with_future(influence(Decoder(**sizes, attn_sparse_topk=4)))),
        ('FCM', with_future(hidden_keys(torch.zeros(1, N, dtype=torch.long), 0.3).long().expand(N, N).tril())),
    ]
    return Maps('Sparse attention: rows are queries, columns are keys', maps)


# positions


def turned(base: float, distances: Tensor, dim: int = 64) -> Tensor:
    """Return the dot product of two equal vectors at these distances, rotated by their positions."""
    x = torch.ones(1, 1, len(distances), dim) / dim**0.5
    angles, scale = RotaryEmbedding(dim, base=base)(distances)
    away = apply_rotary_pos_emb(x, angles, scale)
    return torch.einsum('b h i d, b h d -> i', away, away[:, :, 0])


@picture('rotary')
def _() -> Picture:
    far = torch.arange(256)
    curves = [(f'base {base:,}', far, turned(base, far)) for base in (100, 10_000, 1_000_000)]
    return Curves(
        'Rotary positions: dot product of equal vectors by base',
        'distance in tokens',
        'dot product',
        curves,
    )


@picture('position-biases')
def _() -> Picture:
    at = torch.arange(N)
    buckets, network = RelativePositionBias(scale=1.0, causal=True, heads=1), DynamicPositionBias(DIM, heads=1, depth=2)
    waves = (at[:, None, None] - at[:, None]).float() * 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    maps = [
        ('alibi_pos_bias', AlibiPositionalBias(heads=4, total_heads=4)(N, N)[1]),
        ('rel_pos_bias', buckets(N, N)[0]),
    ]
    maps += [('dynamic_pos_bias', network(N, N)[0]), ('rotary_pos_emb', waves.cos().mean(dim=-1))]
    return Maps('Scores by distance alone, before training: rows are queries, columns are keys, dark is more', maps)


# residual streams, memories and scores


def reads(layers: nn.Module, noise: float = 0.3) -> Tensor:
    """What each branch and the output (rows) get from the input and earlier branches (columns), by the stream alone.

    Shares of a row are lengths of gradients, in which no other branch lies on the way. What learns how to join is
    moved away from where it begins.
    """
    branches = [layer[1] for layer in layers.layers]
    inside = {id(weight) for branch in branches for weight in branch.parameters()}
    for weight in layers.parameters():
        if id(weight) not in inside:
            weight.add_(noise * torch.randn_like(weight))
    x = torch.randn(1, 8, DIM, requires_grad=True)
    given, taken = [x], []

    def cut(module: nn.Module, inputs: Any, out: Any) -> Any:
        given.append((out[0] if isinstance(out, tuple) else out).detach().requires_grad_())
        return (given[-1], *out[1:]) if isinstance(out, tuple) else given[-1]

    for branch in branches:
        branch.register_forward_pre_hook(lambda module, inputs: taken.append(inputs[0]))
        branch.register_forward_hook(cut)
    with torch.enable_grad():
        taken.append(layers.eval()(x))
        rows = [
            torch.autograd.grad((row * torch.randn_like(row)).sum(), given, retain_graph=True, allow_unused=True)
            for row in taken
        ]
    table = torch.tensor([[0.0 if grad is None else grad.norm().item() for grad in row] for row in rows])
    return table / table.amax(dim=-1, keepdim=True)


@picture('residuals')
def _() -> Picture:
    kinds: dict[str, dict[str, Any]] = {
        'default': {},
        'pre_norm=False': dict(pre_norm=False),
        'resi_dual': dict(resi_dual=True, pre_norm=False),
        'gate_residual': dict(gate_residual=True),
        'parallel_block': dict(parallel_block=True),
        'reversible': dict(reversible=True),
        'unet_skips': dict(unet_skips=True),
        'reinject_input': dict(reinject_input=True),
        'integrate_\nlayers': dict(integrate_layers=True),
        'attn_aggregated_\nresiduals': dict(attn_aggregated_residuals=True),
        'num_residual_\nstreams=4': dict(num_residual_streams=4),
        'gated_multi_\nresidual': dict(gated_multi_residual=True, residual_fn_kwargs=dict(read_gate_rank=8)),
    }
    maps = []
    for name, flags in kinds.items():
        torch.manual_seed(0)
        maps.append((name, reads(Encoder(dim=DIM, depth=4, heads=2, attn_dim_head=16, verbose=False, **flags))))
    title = 'What each branch, and the output in the last row, gets from the input and from earlier branches (columns)'
    return Maps(title, maps)


@picture('recurrence')
def _() -> Picture:
    """How much the last segment depends on earlier ones."""
    length, count, curves = 8, 6, []
    for shift in (0, 1):
        torch.manual_seed(0)
        layers = Decoder(dim=DIM, depth=3, heads=2, attn_dim_head=16, verbose=False, rotary_pos_emb=True)
        net = TransformerWrapper(
            num_tokens=50, max_seq_len=length, max_mem_len=length, shift_mem_down=shift, attn_layers=layers
        ).eval()
        with torch.enable_grad():
            ids, mems = torch.randint(0, 50, (count, 1, length)), None
            embeds = [torch.zeros(1, length, DIM, requires_grad=True) for _ in range(count)]
            for row, embed in zip(ids, embeds, strict=True):
                out, mems = net(row, mems=mems, return_mems=True, detach_mems=False, sum_embeds=embed)
            grads = torch.autograd.grad(out.sin().sum(), embeds, allow_unused=True)
        reach = torch.tensor([0.0 if grad is None else grad.norm().item() for grad in reversed(grads)])
        curves.append((f'shift_mem_down={shift}', torch.arange(count), reach))
    title = 'Memories of three layers: influence of earlier segments on the last one'
    return Curves(title, 'segments back', 'norm of the gradient', curves)


@picture('qk-norm')
def _() -> Picture:
    sizes, x, curves = torch.logspace(-1, 2, 16), torch.randn(1, 16, DIM), []
    for on in (False, True):
        torch.manual_seed(0)
        stack = Encoder(dim=DIM, depth=1, heads=2, attn_dim_head=16, verbose=False, attn_qk_norm=on)
        attn = stack.layers[0][1]
        start, largest = attn.to_q.weight.clone(), []
        for size in sizes:
            attn.to_q.weight.copy_(start * size)
            maps = stack(x, return_hiddens=True)[1].attn_intermediates[0].pre_softmax_attn
            largest.append(maps.abs().max())
        curves.append((f'attn_qk_norm={on}', sizes, torch.stack(largest)))
    title = 'The largest score as the weights of the queries grow'
    return Curves(title, 'factor of the query weights', 'largest score', curves, log=True)


def kept_bytes(n: int, flash: bool) -> int:
    """Return the bytes that one attention layer saves for its backward pass."""
    stack, sizes = Decoder(dim=DIM, depth=1, heads=2, attn_dim_head=16, verbose=False, attn_flash=flash), {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(torch.randn(1, n, DIM))
    return sum(sizes.values())


@picture('flash-attention')
def _() -> Picture:
    lengths = torch.tensor([256, 512, 1024, 2048, 4096])
    curves = []
    for flash in (False, True):
        kept = torch.tensor([kept_bytes(n, flash) / 2**20 for n in lengths.tolist()])
        curves.append((f'attn_flash={flash}', lengths, kept))
    return Curves('Memory of one layer for its backward pass', 'tokens', 'MiB', curves, log=True)


# the program


def made(name: str) -> Picture:
    """Return what a picture shows.  Raises ValueError for an unknown name."""
    if name not in PICTURES:
        raise ValueError(f'there is no picture {name!r}{did_you_mean(name, list(PICTURES))}')
    return PICTURES[name]()


def written(names: list[str], folder: Path) -> Iterator[Path]:
    """Write pictures: the same bytes for the same numbers."""
    for name in names:
        found, path = made(name), folder / f'{name}.png'
        style.write(style.figure_of(found.title, found.draw), path, summary(found))
        yield path


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', help='of pictures (all)')
    parser.add_argument('--list', action='store_true', help='say their names')
    parser.add_argument('--to', type=Path, default=HERE, help='folder for them (this one)')
    args = parser.parse_args(argv)
    if args.list:
        print(*PICTURES, sep='\n')
        return 0
    if unknown := [name for name in args.names if name not in PICTURES]:
        print(f'draw.py: there is no picture {unknown[0]!r}{did_you_mean(unknown[0], list(PICTURES))}', file=sys.stderr)
        return 2
    for path in written(args.names or list(PICTURES), args.to):
        print(path)
    return 0


if __name__ == '__main__':
    sys.exit(main())

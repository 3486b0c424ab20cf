"""Pictures of what the library does, each drawn from its own modules.

    python images/draw.py                     all of them, to the folder of this file
    python images/draw.py rotary alibi        some
    python images/draw.py --list              their names
    python images/draw.py --to elsewhere rotary

A block diagram is what `model.explain()` says; a map is what a module gives (`return_attn`, `visible`, a table), or,
where a module forms no map, which inputs an output depends on; a curve is a module asked for many values.

Exit codes: 0 done, 2 there is no such picture.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).resolve().parents[1]))

from x_transformers import Decoder, Encoder, TransformerWrapper, XTransformer, XValTransformerWrapper, patterns
from x_transformers.autoregressive_wrapper import hidden_keys
from x_transformers.features.biases import AlibiPositionalBias, DynamicPositionBias, RelativePositionBias
from x_transformers.features.levels import AttentionFeature, FeedForwardFeature, ModelFeature, StackFeature
from x_transformers.features.norms import LayerNorm, RMSNorm, ScaleNorm
from x_transformers.features.rotary import RotaryEmbedding, apply_rotary_pos_emb
from x_transformers.flags.resolved import did_you_mean

N, DIM = 48, 32  # tokens and width of what is drawn
NOTHING, ONE, OTHER, BOTH, AHEAD = range(5)
COLOURS = ('#f5f5f5', '#26468c', '#d98032', '#7d4a58', '#d5d5d5')
STAGES = {
    'ring': ('#9db8e8', 'ring: gets the value, and gives it back changed'),
    'term': ('#a8d8b0', 'term: gives something to be added'),
    'choice': ('#f2c48d', 'choice: one feature does it in its own way'),
    'build': ('#dddddd', 'build: when the model is made'),
}
KINDS = {'a': '#9db8e8', 'f': '#f2c48d', 'c': '#a8d8b0'}


# kinds of pictures


@dataclass
class Maps:
    """Tables of numbers in colour, side by side; whole numbers are the colours of `COLOURS`."""

    title: str
    maps: list[tuple[str, Tensor]]
    across: int = 4

    def draw(self, figure: Any) -> None:
        across = min(self.across, len(self.maps))
        down = -(-len(self.maps) // across)
        figure.set_size_inches(max(2.75 * across, 4.6), 2.95 * down + 0.3)
        panels = figure.subplots(down, across, squeeze=False).flat
        for axes, (title, table) in zip(panels, self.maps, strict=False):
            if table.is_floating_point():
                axes.imshow(table.numpy(), cmap='Blues', interpolation='nearest', aspect='auto')
            else:
                from matplotlib.colors import ListedColormap

                top = len(COLOURS) - 0.5
                axes.imshow(table.numpy(), cmap=ListedColormap(COLOURS), vmin=-0.5, vmax=top, interpolation='nearest')
            axes.set_title(title, fontsize=8)
        for axes in figure.axes:
            axes.set_axis_off()


@dataclass
class Curves:
    title: str
    x: str
    y: str
    curves: list[tuple[str, Tensor, Tensor]]
    log: bool = False

    def draw(self, figure: Any) -> None:
        figure.set_size_inches(5.2, 3.2)
        axes = figure.subplots()
        for name, x, y in self.curves:
            axes.plot(x.numpy(), y.numpy(), label=name, marker='o' if len(x) < 16 else '')
        axes.set(xlabel=self.x, ylabel=self.y, **(dict(xscale='log', yscale='log') if self.log else {}))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


@dataclass
class Rows:
    """Layers in order, from left to right: a attention, c cross-attention, f feedforward."""

    title: str
    rows: list[tuple[str, tuple[str, ...]]]

    def draw(self, figure: Any) -> None:
        figure.set_size_inches(6.5, 0.38 * len(self.rows) + 0.7)
        axes = figure.subplots()
        for down, (name, kinds) in enumerate(self.rows):
            axes.text(-0.4, down, name, ha='right', va='center', fontsize=8)
            for at, kind in enumerate(kinds):
                axes.barh(down, 0.9, left=at, height=0.8, color=KINDS[kind])
                axes.text(at + 0.45, down, kind, ha='center', va='center', fontsize=8)
        axes.set(xlim=(-3, max(len(kinds) for _, kinds in self.rows)), ylim=(len(self.rows) - 0.4, -0.6))
        axes.set_axis_off()


@dataclass
class Blocks:
    """Parts of a model from top to bottom, the stages of each inside; what flags bring in is coloured."""

    title: str
    parts: list[tuple[str, list[tuple[str, str, bool]]]]

    def draw(self, figure: Any) -> None:
        lines = sum(1 + len(stages) for _, stages in self.parts)
        figure.set_size_inches(7, 0.3 * lines + 0.5)
        axes = figure.subplots()
        y = 0.0
        for heading, stages in self.parts:
            box = dict(boxstyle='square,pad=0.3', edgecolor='#555555')
            axes.text(0.01, y, heading, va='center', fontsize=8, weight='bold', bbox={**box, 'facecolor': '#dddddd'})
            for stage, text, by_flag in stages:
                y += 1
                colour = COLOURS[OTHER] if by_flag else '#ffffff'
                axes.text(0.06, y, stage, va='center', fontsize=8, bbox={**box, 'facecolor': colour})
                axes.text(0.24, y, text, va='center', fontsize=7)
            y += 1.2
        axes.set(xlim=(0, 1), ylim=(y - 0.5, -0.7))
        axes.set_axis_off()


@dataclass
class Stages:
    """The stages of each level in running order, from top to bottom; the colour is the kind."""

    title: str
    parts: list[tuple[str, list[tuple[str, str]]]]

    def draw(self, figure: Any) -> None:
        most = max(len(stages) for _, stages in self.parts)
        figure.set_size_inches(2.4 * len(self.parts), 0.27 * most + 1.2)
        for axes, (level, stages) in zip(figure.subplots(1, len(self.parts)), self.parts, strict=True):
            for y, (stage, kind) in enumerate(stages):
                axes.barh(y, 1, height=0.84, color=STAGES[kind][0])
                axes.text(0.5, y, stage, ha='center', va='center', fontsize=9)
            axes.set(xlim=(0, 1), ylim=(most - 0.4, -0.6))
            axes.set_title(level, fontsize=10)
            axes.set_axis_off()
        keys = [figure.axes[0].barh(-9, 0, color=colour, label=words) for colour, words in STAGES.values()]
        figure.legend(handles=keys, loc='outside lower center', ncols=2, fontsize=9, frameon=False)


Picture = Maps | Curves | Rows | Blocks | Stages


def summary(found: Picture) -> str:
    """What a picture shows, in few numbers, which are written into its file too."""
    tables = [table for _, table in getattr(found, 'maps', [])] + [y for _, _, y in getattr(found, 'curves', [])]
    numbers = [[*table.shape, table.float().mean().item(), table.float().std().item()] for table in tables]
    told_of = [found.title, getattr(found, 'rows', None), getattr(found, 'parts', None)]
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


# block diagrams


def told(model: nn.Module) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """What `explain` says of a model: its parts, and of each (stage, what it does, whether a flag asked for it)."""
    parts: list[tuple[str, list[tuple[str, str, bool]]]] = []
    for line in model.explain().splitlines():
        words = line.strip().split(maxsplit=1)
        within = parts and len(words) == 2 and line.startswith(' ') and '  ' in line.strip() and words[0][-1] != ':'
        if not within:
            parts.append((line.strip().replace(', verbose=False', ''), []))
        elif words[0] not in ('inputs', 'measured'):
            text = words[1].strip()
            first = text if len(text) <= 100 else text[:97].rsplit(' ', 1)[0] + ' ...'
            parts[-1][1].append((words[0], first, '=' in text.split(':')[0] and '(' in text.split(':')[0]))
    return [(heading, stages) for heading, stages in parts if stages]


def diagram(name: str, title: str, kind: type = Decoder, **flags: Any) -> None:
    """A picture of a stack with these flags."""
    sizes = dict(dim=DIM, depth=2, heads=4, attn_dim_head=8, verbose=False)
    picture(name)(lambda: Blocks(title, told(kind(**sizes, **flags))))


diagram('encoder', 'An encoder', Encoder)
diagram('decoder', 'A decoder that reads a context', cross_attend=True)
diagram('ffglu', 'Gated feedforwards, arXiv:2002.05202', ff_glu=True, ff_swish=True)
diagram('talking-heads', 'Talking heads, arXiv:2003.02436', attn_pre_talking_heads=True, attn_post_talking_heads=True)
diagram('attention-on-attention', 'Attention on attention, arXiv:1908.06954', attn_on_attn=True)
diagram('gate_values', 'Gates on aggregated values', attn_gate_values=True)
diagram('macaron-2', 'A macaron, arXiv:1906.02762', macaron=True)
diagram('pia', 'Positions infused into queries and keys, arXiv:2012.15832', position_infused_attn=True)
diagram('residual_attn', 'Scores of the layer before are added, arXiv:2012.11747', residual_attn=True)
diagram('gating', 'Gates in place of sums, arXiv:1910.06764', gate_residual=True)
diagram('sandwich_norm', 'A norm behind each branch too, arXiv:2105.13290', sandwich_norm=True)
diagram('resi_dual', 'Two streams, one normed and one not, arXiv:2304.14802', resi_dual=True)
diagram('normformer', 'NormFormer, arXiv:2110.09456', attn_head_scale=True, ff_post_act_ln=True)
diagram('cosine-sim-attention', 'Queries and keys of length one, arXiv:2010.04245', attn_qk_norm=True)


@picture('encoder-decoder')
def _() -> Picture:
    sizes = dict(num_tokens=256, max_seq_len=64, depth=1, heads=4, attn_dim_head=8)
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    return Blocks('An encoder and a decoder, arXiv:1706.03762', told(XTransformer(dim=DIM, **flags)))


@picture('stages')
def _() -> Picture:
    levels = {
        'model': ModelFeature,
        'stack': StackFeature,
        'attention': AttentionFeature,
        'feedforward': FeedForwardFeature,
    }
    return Stages('Where features plug in', [(name, [*level.stages.items()]) for name, level in levels.items()])


# maps of attention


def attention(n: int = N, stack: dict[str, Any] | None = None, layer: int = 0, **flags: Any) -> Tensor:
    """The map (i j) of one head of a decoder with these flags, of a text of chance."""
    layers = Decoder(dim=DIM, depth=1, heads=2, attn_dim_head=16, verbose=False, **(stack or {}))
    net = TransformerWrapper(num_tokens=50, max_seq_len=n, attn_layers=layers, **flags).eval()
    return net(torch.randint(0, 50, (1, n)), return_attn=True)[1][layer][0, 0]


def influence(layers: nn.Module, n: int = N) -> Tensor:
    """Which inputs each output of a stack depends on (n n), as colours."""
    with torch.enable_grad():
        x = torch.randn(1, n, DIM, requires_grad=True)
        out = layers.eval()(x)
        rows = [torch.autograd.grad(out[0, at].sin().sum(), x, retain_graph=True)[0] for at in range(n)]
    return (torch.stack(rows)[:, 0].abs().amax(dim=-1) > 1e-9).long()


@picture('all-attention')
def _() -> Picture:
    maps = [(f'attn_num_mem_kv={count}', attention(24, dict(attn_num_mem_kv=count))) for count in (0, 4, 16)]
    return Maps('Keys and values that are learned stand in front, arXiv:1907.01470', maps)


@picture('memory-transformer')
def _() -> Picture:
    maps = [(f'num_memory_tokens={count}', attention(24, num_memory_tokens=count)) for count in (0, 4, 16)]
    return Maps('Tokens that are learned stand in front, arXiv:2006.11527', maps)


@picture('topk-attention')
def _() -> Picture:
    maps = [('dense', attention(24))]
    for count in (8, 2):
        torch.manual_seed(0)
        maps.append((f'attn_sparse_topk={count}', attention(24, dict(attn_sparse_topk=count))))
    return Maps('The largest scores alone, arXiv:1912.11637', maps)


@picture('fcm')
def _() -> Picture:
    causal = torch.ones(24, 24, dtype=torch.bool).tril()
    maps = []
    for prob in (0.0, 0.15, 0.5):
        kept = hidden_keys(torch.zeros(1, 24, dtype=torch.long), prob)
        maps.append((f'mask_prob={prob}', torch.where(causal, (causal & kept).long(), AHEAD)))
    return Maps('Forgetful causal masks, arXiv:2210.13432', maps)


@picture('lsh')
def _() -> Picture:
    options = dict(attn_cluster='lsh', attn_cluster_size=8, attn_lsh_rounds=1, attn_lsh_buckets=6)
    stack = Encoder(dim=DIM, depth=1, heads=1, attn_dim_head=16, verbose=False, ff_mult=1, **options)
    return Maps('Hashing: whom a token depends on, arXiv:2001.04451', [('1 round', influence(stack))])


@picture('routing')
def _() -> Picture:
    options = dict(attn_cluster='routing', attn_num_clusters=6)
    stack = Encoder(dim=DIM, depth=1, heads=1, attn_dim_head=16, verbose=False, **options)
    return Maps('Routing: whom a token depends on, arXiv:2003.05997', [('6 clusters', influence(stack))])


@picture('enhanced-recurrence')
def _() -> Picture:
    """How much the last segment depends on those before it."""
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
    return Curves('Memories of the layer below, arXiv:2012.15688', 'segments back', 'influence', curves)


# who sees whom


@dataclass
class Shown:
    """A pattern, of as many heads as differ."""

    title: str
    pattern: patterns.Pattern
    causal: bool = False
    heads: int = 1

    def pixels(self) -> Tensor:
        """Colours (n n): what one head sees, the other, both, and what is ahead."""
        at = torch.arange(N)
        seen = self.pattern.draw(N, causal=self.causal, heads=self.heads, marks=marks)
        drawn = torch.tensor(
            [[[sign == '#' for sign in line] for line in head.splitlines()] for head in seen.split('\n\n')]
        )
        found = sum(drawn[head].long() * (head + 1) for head in range(self.heads))
        ahead = (at.unsqueeze(0) > at.unsqueeze(1)) & self.causal
        return torch.where(ahead & (found == NOTHING), AHEAD, found)


def marks(position: Any) -> Any:
    """What `global_mask` marks."""
    return (position == 0) | (position == 21)


P = patterns
GALLERY = {
    'sliding': Shown('Sliding(6)', P.Sliding(6)),
    'sliding-causal': Shown('Sliding(6), causal', P.Sliding(6), True),
    'dilated': Shown('Sliding(4, dilation=(1, 3)), causal', P.Sliding(4, dilation=(1, 3)), True, 2),
    'block-local': Shown('BlockLocal(8)', P.BlockLocal(8)),
    'local-1d': Shown('Local1D(8, 8), causal', P.Local1D(8, 8), True),
    'local-2d': Shown('Local2D, tiles of 2 x 4 of 6 x 8 pixels, causal', P.Local2D((6, 8), (2, 4), (2, 2)), True),
    'axial': Shown('Row(8), Column(8)', P.Mix((P.Row(8), P.Column(8))), True, 2),
    'conv-2d': Shown('Conv2D((6, 8), kernel=3), causal', P.Conv2D((6, 8), kernel=3), True),
    'strided': Shown('Sparse Transformer, strided', P.Mix((P.Sliding(7), P.Strided(7))), True, 2),
    'fixed': Shown('Sparse Transformer, fixed', P.Mix((P.BlockLocal(8), P.Summary(8, 2))), True, 2),
    'both-axes': Shown('BlockLocal(8) | Strided(8), axial', P.BlockLocal(8) | P.Strided(8)),
    'blockwise': Shown(
        'Blockwise: BlockPermutation(3, 0), (3, 1)',
        P.Mix((P.BlockPermutation(3, 0), P.BlockPermutation(3, 1)), heads=(1, 1)),
        heads=2,
    ),
    'longformer': Shown("Longformer: Sliding(4) | Global('mask')", P.Sliding(4) | P.Global('mask')),
    'etc': Shown('Sliding(4) | Global(first=3), as ETC', P.Sliding(4) | P.Global(first=3)),
    'bigbird': Shown('BigBird(block=3), two heads', P.BigBird(block=3), heads=2),
    'dilated-window': Shown('Sliding(12) & Strided(4), causal', P.Sliding(12) & P.Strided(4), True),
}
for _name, _shown in GALLERY.items():
    picture(_name)(lambda shown=_shown: Maps('Who sees whom', [(shown.title, shown.pixels())]))


@picture('patterns')
def _() -> Picture:
    maps = [(shown.title, shown.pixels()) for shown in GALLERY.values()]
    return Maps('Who sees whom: rows are queries, columns keys; two heads that differ have two colours', maps)


# positions


@picture('sinusoids')
def _() -> Picture:
    layers = Decoder(dim=64, depth=1, heads=1, verbose=False)
    net = TransformerWrapper(num_tokens=2, max_seq_len=N, attn_layers=layers, sinu_pos_emb=True)
    nn.init.zeros_(net.token_emb.emb.weight)
    table = net(torch.zeros(1, N, dtype=torch.long), return_intermediates=True)[1].initial_embeds[0]
    return Maps('Sinusoids: a row for each position', [('sinu_pos_emb=True', table)])


def turned(base: float, distances: Tensor, dim: int = 64) -> Tensor:
    """The product of two equal vectors that stand so far apart."""
    x = torch.ones(1, 1, len(distances), dim) / dim**0.5
    angles, scale = RotaryEmbedding(dim, base=base)(distances)
    away = apply_rotary_pos_emb(x, angles, scale)
    return torch.einsum('b h i d, b h d -> i', away, away[:, :, 0])


@picture('rotary')
def _() -> Picture:
    far = torch.arange(256)
    curves = [(f'rotary_emb_base={base:,}', far, turned(base, far)) for base in (100, 10_000, 1_000_000)]
    return Curves('Rotary positions: of equal vectors, arXiv:2104.09864', 'distance', 'q k', curves)


def biases(module: nn.Module, distances: Tensor) -> Tensor:
    """Of the first head, for keys that are so far back."""
    return module.of_distance(-distances)[..., 0]


@picture('dynamic-pos-bias')
def _() -> Picture:
    module = DynamicPositionBias(DIM, heads=4, depth=2)
    table = module(N, N)
    return Maps(
        'A network says the bias of each distance, arXiv:2108.00154', [(f'head {h}', table[h]) for h in range(4)]
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
    maps += [('dynamic_pos_bias', network(N, N)[0]), ('rotary_pos_emb: equal vectors', waves.cos().mean(dim=-1))]
    return Maps('What scores owe to distance alone, before training: rows are queries, columns keys', maps)


for _name, _log in (('dynamic-pos-bias-linear', False), ('dynamic-pos-bias-log', True)):

    @picture(_name)
    def _(log: bool = _log) -> Picture:
        far = torch.arange(512)
        curves = []
        for seed in range(4):
            torch.manual_seed(seed)
            module = DynamicPositionBias(DIM, heads=1, depth=2, log_distance=log)
            curves.append((f'seed {seed}', far, biases(module, far)))
        title = f'dynamic_pos_bias_log_distance={log}: before training'
        return Curves(title, 'distance', 'bias', curves)


@picture('dynamic-pos-bias-sinusoidal')
def _() -> Picture:
    layers = Decoder(dim=64, depth=1, heads=1, verbose=False)
    net = TransformerWrapper(num_tokens=2, max_seq_len=512, attn_layers=layers, sinu_pos_emb=True)
    nn.init.zeros_(net.token_emb.emb.weight)
    table = net(torch.zeros(1, 512, dtype=torch.long), return_intermediates=True)[1].initial_embeds[0]
    return Curves(
        'Sinusoids: how alike positions are',
        'distance',
        'product',
        [('sinu_pos_emb', torch.arange(512), table @ table[0])],
    )


@picture('alibi')
def _() -> Picture:
    table = AlibiPositionalBias(8)(N, N)
    causal = torch.ones(N, N).triu(1).bool()
    maps = [(f'head {head}', table[head].masked_fill(causal, table.min().item())) for head in (0, 3, 7)]
    return Maps('A slope for each head, arXiv:2108.12409', maps)


# orders, norms and numbers


@picture('sandwich')
def _() -> Picture:
    orders = [
        (f'sandwich_coef={k}', Encoder(dim=DIM, depth=6, heads=1, sandwich_coef=k).layer_types) for k in range(1, 6)
    ]
    plain = ('plain', Encoder(dim=DIM, depth=6, heads=1).layer_types)
    return Rows('Attention below, feedforwards above, arXiv:1911.03864', [plain, *orders])


@picture('sandwich-2')
def _() -> Picture:
    curves = []
    for coef in (0, 2, 5):
        flags = dict(sandwich_coef=coef) if coef else {}
        kinds = Encoder(dim=DIM, depth=6, heads=1, **flags).layer_types
        share = torch.tensor([kind == 'a' for kind in kinds]).cumsum(dim=0)
        curves.append((f'sandwich_coef={coef}', torch.arange(1, len(kinds) + 1), share))
    return Curves('How many layers are attention', 'of the first', 'layers', curves)


@picture('macaron-1')
def _() -> Picture:
    rows = [(f'macaron={on}', Encoder(dim=DIM, depth=4, heads=1, macaron=on).layer_types) for on in (False, True)]
    return Rows('Half a feedforward on both sides, arXiv:1906.02762', rows)


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
        'plain': {},
        'pre_norm=False': dict(pre_norm=False),
        'resi_dual=True': dict(resi_dual=True, pre_norm=False),
        'gate_residual=True': dict(gate_residual=True),
        'parallel_block=True': dict(parallel_block=True),
        'reversible=True': dict(reversible=True),
        'unet_skips=True': dict(unet_skips=True),
        'reinject_input=True': dict(reinject_input=True),
        'integrate_layers=True': dict(integrate_layers=True),
        'attn_aggregated_residuals=True': dict(attn_aggregated_residuals=True),
        'num_residual_streams=4': dict(num_residual_streams=4),
        'gated_multi_residual=True': dict(gated_multi_residual=True, residual_fn_kwargs=dict(read_gate_rank=8)),
    }
    maps = []
    for name, flags in kinds.items():
        torch.manual_seed(0)
        maps.append((name, reads(Encoder(dim=DIM, depth=4, heads=2, attn_dim_head=16, verbose=False, **flags))))
    title = 'What each branch and the output (rows) read of the input and of earlier branches (columns)'
    return Maps(title, maps)


@picture('scalenorm')
def _() -> Picture:
    x = torch.randn(64)
    sizes = torch.logspace(-2, 2, 20)
    curves = []
    for name, norm in (('LayerNorm', LayerNorm(64)), ('RMSNorm', RMSNorm(64)), ('ScaleNorm', ScaleNorm(64))):
        curves.append((name, sizes, torch.stack([norm(size * x / x.norm()).norm() for size in sizes])))
    return Curves('Lengths behind a norm, arXiv:1910.05895', 'length before', 'length behind', curves, log=True)


@picture('rezero')
def _() -> Picture:
    depths, curves, x = torch.tensor([1, 2, 4, 8, 16]), [], torch.randn(1, 16, DIM)
    for name, flags in (('plain', {}), ('use_rezero=True', dict(use_rezero=True))):
        moved = []
        for depth in depths.tolist():
            stack = Encoder(dim=DIM, depth=depth, heads=2, verbose=False, pre_norm_has_final_norm=False, **flags)
            moved.append((stack(x) - x).norm() / x.norm())
        curves.append((name, depths, torch.stack(moved)))
    return Curves('How far a new stack moves its input, arXiv:2003.04887', 'depth', 'share of its length', curves)


@picture('qknorm-analysis')
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
    return Curves(
        'The largest score, as weights grow, arXiv:2302.05442', 'weights of q, times', 'score', curves, log=True
    )


@picture('xval')
def _() -> Picture:
    layers = Decoder(dim=DIM, depth=1, heads=1, verbose=False)
    net = XValTransformerWrapper(num_tokens=8, numerical_token_id=3, max_seq_len=8, attn_layers=layers)
    numbers = torch.linspace(-5, 5, 41)
    ids = torch.full((41, 1), 3)
    lengths = net(ids, numbers[:, None], return_intermediates=True)[1].initial_embeds[:, 0].norm(dim=-1)
    return Curves('A number scales its embedding, arXiv:2310.02989', 'number', 'length', [('xVal', numbers, lengths)])


def kept_bytes(n: int, flash: bool) -> int:
    """Of one attention layer, for its backward pass."""
    stack, sizes = Decoder(dim=DIM, depth=1, heads=2, attn_dim_head=16, verbose=False, attn_flash=flash), {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(torch.randn(1, n, DIM))
    return sum(sizes.values())


@picture('flash-attention')
def _() -> Picture:
    lengths = torch.tensor([128, 256, 512, 1024])
    curves = []
    for flash in (False, True):
        kept = torch.tensor([kept_bytes(n, flash) / 2**20 for n in lengths.tolist()])
        curves.append((f'attn_flash={flash}', lengths, kept))
    return Curves('Kept for the backward pass, arXiv:2205.14135', 'tokens', 'MiB', curves, log=True)


# the program


def made(name: str) -> Picture:
    """What a picture shows.  Raises ValueError for a name that is none."""
    if name not in PICTURES:
        raise ValueError(f'there is no picture {name!r}{did_you_mean(name, list(PICTURES))}')
    return PICTURES[name]()


def written(names: list[str], folder: Path) -> Iterator[Path]:
    """Files of pictures, the same bytes for the same numbers."""
    from matplotlib.figure import Figure
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        found, figure = made(name), Figure(layout='constrained')
        found.draw(figure)
        figure.suptitle(found.title, fontsize=9)
        figure.savefig(buffer := io.BytesIO(), dpi=80)
        said, path = PngInfo(), folder / f'{name}.png'
        said.add_text('Comment', summary(found))
        # a quarter of the size
        Image.open(buffer).convert('RGB').quantize(64).save(path, pnginfo=said, optimize=True)
        yield path


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('names', nargs='*', help='of pictures (all)')
    parser.add_argument('--list', action='store_true', help='say their names')
    parser.add_argument('--to', type=Path, default=Path(__file__).resolve().parent, help='folder for them (this one)')
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

"""Which branch stands where, and in which order the layers run. No tensors here.

'a' is self-attention, 'c' cross-attention, 'f' feedforward.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import Scale
from x_transformers.flags import Check, ConfigError, at_least, count, each, flag, is_int, none, shown

KINDS = ('a', 'c', 'f')


class Macaron(StackFeature):
    """A second feedforward in front of each block; all feedforwards count half."""

    paper = 'Macaron Net, arXiv:1906.02762'
    macaron = flag(False, 'feedforward before and after attention, each at half weight')

    def block(self, block: list[str]) -> list[str]:
        return ['f', *block]

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        return Scale(0.5, branch) if kind == 'f' else branch


class CustomLayers(StackFeature):
    """The kinds of all layers, spelt out."""

    needs_no_depth = True
    custom_layers = flag(
        None,
        "kinds of all layers, such as ('a', 'f', 'a', 'f')",
        each(Check("'a', 'c' or 'f'", lambda kind: kind in KINDS)) | none,
        example=('a', 'f', 'a', 'f'),
    )

    keeps_blocks = False

    def layout(self, block: list[str], depth: int | None) -> list[str]:
        return list(self.custom_layers)


class ParRatio(StackFeature):
    """Attention early, feedforwards late, after the search of the PAR Transformer."""

    paper = 'PAR Transformer, arXiv:2009.04534'
    par_ratio = flag(None, 'one attention to so many layers', at_least(2) | none, example=3)

    keeps_blocks = False

    def layout(self, block: list[str], depth: int) -> list[str]:
        total = depth * len(block)
        if self.par_ratio > total:
            raise ConfigError(f'`par_ratio` got {self.par_ratio}, it must be at most the number of layers, {total}')
        attention = [kind for kind in block if kind != 'f']
        groups, cut = total // self.par_ratio, total * 2 // 3
        width = (cut + cut // groups) // groups
        if len(attention) > width:
            raise ConfigError(f'`par_ratio` got {self.par_ratio}, which leaves no room for feedforwards')
        head = [*attention, *['f'] * (width - len(attention))] * groups
        return head + ['f'] * (total - len(head))


class SandwichCoef(StackFeature):
    """Attention first, feedforwards last, ordinary blocks between."""

    paper = 'Sandwich Transformers, arXiv:1911.03864'
    sandwich_coef = flag(
        None, 'how many attention layers come first, and feedforwards last', at_least(1) | none, example=1
    )

    keeps_blocks = False

    def layout(self, block: list[str], depth: int) -> list[str]:
        coef = self.sandwich_coef
        if coef > depth:
            raise ConfigError(f'`sandwich_coef` got {coef}, it must be at most `depth`, {depth}')
        return ['a'] * coef + block * (depth - coef) + ['f'] * coef


class WeightTying(StackFeature):
    """One block of layers, run `depth` times."""

    paper = 'ALBERT, arXiv:1909.11942'
    weight_tie_layers = flag(False, 'share one block between all depths')

    def layout(self, block: list[str], depth: int) -> list[str]:
        return block

    def order(self, layers: int, depth: int) -> tuple[int, ...]:
        return tuple(range(layers)) * depth


class ExecuteOrder(StackFeature):
    """The order in which layers run; they may repeat."""

    layers_execute_order = flag(
        None, 'indices of layers, in the order in which they run', each(count) | none, example=(0, 1, 0, 1)
    )

    def order(self, layers: int, depth: int) -> tuple[int, ...]:
        return checked_order(self.layers_execute_order, layers)


def checked_order(order: Any, layers: int) -> tuple[int, ...]:
    """An execution order as a tuple.  Raises ConfigError for an index without a layer."""
    if not all(isinstance(index, int) and 0 <= index < layers for index in order):
        raise ConfigError(f'`layers_execute_order` got {tuple(order)!r}, its indices must be from 0 to {layers - 1}')
    return tuple(order)


def repeated(spec: Any, blocks: int, length: int) -> tuple[int, ...]:
    """The execution order of `blocks` blocks of `length` layers, some of which run several times.

    A spec is (block, times) or ((first, last), times), in numbers of blocks; or a tuple of such specs. Blocks without
    one run once; a group runs as a whole.
    """
    specs = (spec,) if isinstance(spec, (tuple, list)) and len(spec) == 2 and is_int(spec[1]) else spec
    groups: dict[int, tuple[int, int]] = {}
    for one in specs if isinstance(specs, (tuple, list)) else (specs,):
        at = one[0] if isinstance(one, (tuple, list)) and len(one) == 2 else None
        first, last = (at, at) if is_int(at) else at if isinstance(at, (tuple, list)) and len(at) == 2 else (-1, -1)
        if not (is_int(first) and is_int(last) and 0 <= first <= last < blocks and is_int(one[1]) and one[1] >= 0):
            raise ConfigError(
                f'`repeat_blocks` got {shown(one)}, it must be (block, times) or ((first, last), times), '
                f'of blocks from 0 to {blocks - 1}'
            )
        if any(first <= f + k and f <= last for f, (k, _) in groups.items()):
            raise ConfigError(f'`repeat_blocks` got block {first} to {last} twice, groups must not overlap')
        groups[first] = (last - first, one[1])
    order, block = [], 0
    while block < blocks:
        more, times = groups.get(block, (0, 1))
        order += list(range(block, block + more + 1)) * times
        block += more + 1
    return tuple(block * length + at for block in order for at in range(length))


def transformed(functions: Any, block: int, x: Tensor) -> Tensor:
    """The input of a block, changed by a function of the user's: {block: f(x)}, or f(block, x). Blocks count from 1."""
    if functions is None:
        return x
    if callable(functions):
        return functions(block, x)
    return functions[block](x) if block in functions else x

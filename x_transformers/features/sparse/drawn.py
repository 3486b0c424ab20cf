"""Patterns that differ between the layers of a stack: random blocks, and patterns that alternate."""

from __future__ import annotations

from typing import Any

from torch import nn

from x_transformers.features.levels import StackFeature
from x_transformers.features.sparse.held import HoldsPattern
from x_transformers.flags import warn_once
from x_transformers.patterns import Mix


class DrawnInStack(StackFeature):
    """Draw different random blocks in each layer; check that there are enough layers for alternating patterns."""

    serves = ('sparse_pattern', 'local_pattern')

    def wrap(self, branch: nn.Module, kind: Any, index: int) -> nn.Module:
        for module in branch.modules():
            found = getattr(module, 'features', None)
            feature = None if found is None else found.find(HoldsPattern)
            if feature is not None:
                feature.draw(module.layer_number)
                self.check_turns(feature.pattern)
        return branch

    def check_turns(self, pattern: Any) -> None:
        layers = self.host.layer_types.count('a')
        if isinstance(pattern, Mix) and pattern.how == 'interleave' and layers < len(pattern.patterns):
            warn_once(
                f"a pattern has {len(pattern.patterns)} patterns by how='interleave', for {layers} layers "
                'of self-attention: the last ones are never used'
            )

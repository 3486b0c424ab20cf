"""What patterns draw, for each layer of a stack."""

from __future__ import annotations

from typing import Any

from torch import nn

from x_transformers.features.levels import StackFeature
from x_transformers.features.sparse.pattern import SparsePattern


class DrawnInStack(StackFeature):
    """Blocks at random are others in each layer."""

    serves = ('sparse_pattern',)

    def wrap(self, branch: nn.Module, kind: Any, index: int) -> nn.Module:
        for module in branch.modules():
            found = getattr(module, 'features', None)
            feature = None if found is None else found.find(SparsePattern)
            if feature is not None:
                feature.draw(module.layer_number)
        return branch

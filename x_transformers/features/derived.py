"""Attributes of a stack that code of others reads and assigns: what flags come to, under the names of the original.

A feature that holds a thing keeps it under the same name; where it is off there is `None`, or a module that does
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from x_transformers.features.norms import Identity
from x_transformers.features.residuals import LayerDropout, ResidualScale
from x_transformers.flags import ConfigError, is_number, shown

# modules for each layer, and the flag without which nothing runs them
FOR_EACH_LAYER = {'skip_combines': 'unet_skips', 'layer_integrators': 'integrate_layers'}


class DerivedAttributes:
    """What a stack keeps for classes that derive from it and for code that edits it. All but sizes may be assigned.

    need_condition, norm_need_condition, post_branch_fn_needs_condition   whether its norms, or what stands behind its
                     branches, read a `condition`
    dim_condition    width of this condition
    adaptive_mlp     what it goes through first
    residual_scale   constant factor of all branches; None for 1
    layer_dropouts   how likely each layer is left out in training
    skip_combines, layer_integrators   one module or None for each layer
    """

    features: Any
    layer_types: Sequence[str]

    def keep_derived(self) -> None:
        """Settle these attributes, once the features of the stack are set up."""
        norms = ('use_adaptive_layernorm', 'use_adaptive_rmsnorm')
        behind = ('use_adaptive_layerscale', 'use_adaln_zero')
        self.norm_need_condition, self.post_branch_fn_needs_condition = map(self.is_any_set, (norms, behind))
        self.need_condition = self.norm_need_condition or self.post_branch_fn_needs_condition
        self.dim_condition = getattr(self, 'dim_condition', None) or self.dim
        if getattr(self, 'adaptive_mlp', None) is None:
            self.adaptive_mlp = Identity()
        scales = self.features.find(ResidualScale)
        self.residual_scale = None if scales is None or scales.factor == 1 else scales.factor
        if self.residual_scale is None and self.is_any_set(['attn_aggregated_residuals']):
            self.residual_scale = 1.0
        self.depth_scale_residual = getattr(self, 'depth_scale_residual', False) is True
        for name in FOR_EACH_LAYER:
            if getattr(self, name, None) is None:
                setattr(self, name, nn.ModuleList([None] * len(self.layer_types)))

    def is_any_set(self, names: Sequence[str]) -> bool:
        return any(getattr(self, name, False) for name in names)

    def check_assigned(self) -> None:
        """Refuse modules for layers that no feature of the stack would run."""
        for name, flag in FOR_EACH_LAYER.items():
            runs = any(name in feature.stored_as.values() for feature in self.features.active)
            if not runs and any(module is not None for module in getattr(self, name)):
                raise ConfigError(f'`{name}` got modules, which nothing runs: the stack was built without `{flag}`')

    @property
    def layer_dropouts(self) -> tuple[float, ...]:
        """The probability of leaving out each layer in training. A sequence that is assigned holds from then on."""
        return vars(self).get('rates_of_layers') or (0.0,) * len(self.layer_types)

    @layer_dropouts.setter
    def layer_dropouts(self, rates: Any) -> None:
        if not (isinstance(rates, Sequence) and all(is_number(rate) and 0 <= rate <= 1 for rate in rates)):
            raise ConfigError(f'`layer_dropouts` got {shown(rates)}, it must be a number from 0 to 1 for each layer')
        vars(self)['rates_of_layers'] = tuple(rates)
        if any(rates) and self.features.find(LayerDropout) is None:
            self.features = self.features.joined_by(LayerDropout(self, {'layer_dropout': 0.0}))
            self.can_cache_kv_in_training = False

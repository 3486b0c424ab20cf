"""Computations of early releases, for weights that were trained with them: biases, and rotated values.

See `x_transformers.checkpoint.upgrade`. Not recommended for new models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, flag


class OutputBias(AttentionFeature):
    """A bias of the output projection of attention, as in releases before 0.26."""

    paper = 'Attention Is All You Need, arXiv:1706.03762'
    out_bias = flag(False, 'bias of the output projection (for weights of releases before 0.26)')
    cuts = {}

    def initialise(self) -> None:
        """Give the projection a bias, under the name that the bias of such a projection has."""
        projections = [module for module in self.host.to_out.modules() if isinstance(module, nn.Linear)]
        if not projections:
            raise ConfigError('`out_bias` needs a projection out, set `project_out=True`')
        for module in projections:
            module.bias = nn.Parameter(module.weight.new_zeros(module.out_features))


class GateValuesBias(AttentionFeature):
    """A bias of the gate of `gate_values`, as in releases before 2.26:  sigmoid(x W + b),  b initialized with 10."""

    gate_values_bias = flag(
        False, 'bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26)'
    )
    needs = {'gate_values': 'it is the bias of that gate'}
    cuts = {}  # as `gate_values` says

    def setup(self, host: Any) -> None:
        if not hasattr(host, 'to_v_gate'):  # `output_gate` alone
            raise ConfigError(f'`gate_values_bias` needs `gate_values`: {self.needs["gate_values"]}')
        if not isinstance(host.to_v_gate, nn.Linear):
            raise ConfigError('`gate_values_bias` does not go with `gate_values_rank`: the early gate was of full rank')
        host.to_v_gate.bias = nn.Parameter(torch.full((host.to_v_gate.out_features,), 10.0))


class RotateValues(AttentionFeature):
    """Also rotate the values by their rotary positions, as in releases 0.15 to 1.19:  v_j -> R(p_j) v_j.

    The output then depends on absolute positions, not only on distances.
    """

    paper = 'RoFormer, arXiv:2104.09864'
    rotate_values = flag(False, 'also rotate the values by their positions (for weights of releases 0.15 to 1.19)')
    keeps_plain_keys = True
    cuts = {}

    def enter(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        own = call.inputs.get('rotary_pos_emb') if call.context is None else call.inputs.get('context_rotary_pos_emb')
        if own is None:
            return qkv
        q, k, v = qkv
        added = v.shape[-2] - call.keys
        turned = self.host._rotate(v[..., added:, :], own[0], 1.0)
        return q, k, torch.cat((v[..., :added, :], turned), dim=-2)

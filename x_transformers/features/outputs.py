"""Gates and scales on what attention gives, and the projection out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import flag


class HeadScale(AttentionFeature):
    """A learned scale on the output of each head."""

    paper = 'NormFormer, arXiv:2110.09456'
    head_scale = flag(False, 'learned scale per head')
    stored_as = {'scale': 'head_scale_params'}

    def setup(self, host: Any) -> None:
        self.scale = nn.Parameter(torch.ones(1, host.shape.heads, 1, 1))

    def attended(self, out: Tensor, call: Any) -> Tensor:
        return out * self.scale


class GateValueHeads(AttentionFeature):
    """A sigmoid gate on each head's output, from the input; open at first."""

    paper = 'Quantizable Transformers, arXiv:2306.12929'
    gate_value_heads = flag(False, 'gate every head from the input')
    stored_as = {'to_gate': 'to_v_head_gate'}

    def setup(self, host: Any) -> None:
        self.to_gate = nn.Linear(host.dim, host.shape.heads)
        nn.init.zeros_(self.to_gate.weight)
        nn.init.constant_(self.to_gate.bias, 10.0)

    def attended(self, out: Tensor, call: Any) -> Tensor:
        return out * self.to_gate(call.x).sigmoid().transpose(1, 2).unsqueeze(-1)


class GateValues(AttentionFeature):
    """A gate on every feature of the aggregated values, from the input."""

    paper = 'AlphaFold 2, doi:10.1038/s41586-021-03819-2'
    gate_values = flag(False, 'gate the aggregated values from the input')
    swiglu_values = flag(False, 'by SiLU instead of a sigmoid')
    stored_as = {'to_gate': 'to_v_gate'}

    def setup(self, host: Any) -> None:
        self.to_gate = nn.Linear(host.dim, host.shape.dim_inner, bias=False)
        nn.init.zeros_(self.to_gate.weight)

    def output(self, out: Tensor, call: Any) -> Tensor:
        gate = self.to_gate(call.x)
        return out * (F.silu(gate) if self.swiglu_values else gate.sigmoid())


class AttentionOnAttention(AttentionFeature):
    """A gated linear unit as the projection out."""

    paper = 'Attention on Attention, arXiv:1908.06954'
    on_attn = flag(False, 'gated projection of the output')

    def project_out(self) -> nn.Module:
        shape = self.host.shape
        return nn.Sequential(nn.Linear(self.host.dim_merged, 2 * shape.dim_out, bias=False), nn.GLU())


class ZeroInitOutput(AttentionFeature):
    """The projection out starts at zero, so that the branch starts silent."""

    zero_init_output = flag(False, 'zero weights of the output projection at first')

    def initialise(self) -> None:
        for module in self.host.to_out.modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)

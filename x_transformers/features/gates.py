"""Gated residual connections: a learned gate combines the residual stream and the branch output.

Parisotto et al. 2019, Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from x_transformers.features.levels import StackFeature
from x_transformers.features.residuals import Residual, drop_scales
from x_transformers.flags import Check, ConfigError, did_you_mean, flag, format_value, none, number


class Gating(Residual):
    """Base class of gates, from the residual x and the branch y, (b, n, d) each; `pre_relu` applies ReLU to y."""

    def __init__(
        self, dim: int, scale_residual: bool | float = False, *, pre_relu: bool = False, **options: Any
    ) -> None:
        super().__init__(dim, scale_residual, **options)
        self.pre_relu = pre_relu

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, residual: Tensor, **_: Any) -> Tensor:
        return self.combine(self.scaled(residual), x.relu() if self.pre_relu else x)


class GRUGating(Gating):
    """A GRU cell per token: the branch output is its input, the residual its state.

    gate_bias   added to the bias of the update gate, which keeps the residual
    """

    def __init__(
        self, dim: int, scale_residual: bool | float = False, *, gate_bias: float | None = None, **options: Any
    ) -> None:
        super().__init__(dim, scale_residual, **options)
        self.gru = nn.GRUCell(dim, dim)
        with torch.no_grad():
            self.gru.bias_ih[dim : 2 * dim].add_(gate_bias or 0.0)

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        return self.gru(y.flatten(0, -2), x.flatten(0, -2)).view_as(x)


class Gate(Gating):
    """A gate of matrices without biases, except `gate_bias` (d), which is initialized with 2 to keep the residual.

    In the formulas sigma is the logistic function.
    """

    matrices: ClassVar[dict[str, int]] = {'w_g': 1}  # name -> outputs, in widths
    w_g: nn.Linear
    has_bias = True

    def __init__(
        self, dim: int, scale_residual: bool | float = False, *, gate_bias: float | None = None, **options: Any
    ) -> None:
        super().__init__(dim, scale_residual, **options)
        for name, outputs in self.matrices.items():
            linear = nn.Linear(dim, outputs * dim, bias=False)
            for part in linear.weight.data.split(dim):
                nn.init.xavier_uniform_(part)
            self.add_module(name, linear)
        if self.has_bias:
            self.gate_bias = nn.Parameter(torch.full((dim,), 2.0 if gate_bias is None else float(gate_bias)))


class GTrXLGate(Gate):
    """z = sigma(W_z y + U_z x - b),  r = sigma(W_r y + U_r x),  (1 - z) x + z tanh(W_g y + U_g (r x)).

    `GRUGating` lets r act after its matrix, and its update gate keeps what z here replaces.
    """

    matrices: ClassVar = {'w_y': 3, 'w_x': 2, 'u_g': 1}
    w_y: nn.Linear
    w_x: nn.Linear
    u_g: nn.Linear

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        (reset, update, new), (reset_x, update_x) = self.w_y(y).chunk(3, dim=-1), self.w_x(x).chunk(2, dim=-1)
        new = torch.tanh(new + self.u_g((reset + reset_x).sigmoid() * x))
        return x + (update + update_x - self.gate_bias).sigmoid() * (new - x)


class InputGate(Gate):
    """sigma(W_g x) x + y"""

    has_bias = False

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        return self.w_g(x).sigmoid() * x + y


class OutputGate(Gate):
    """x + sigma(W_g x - b) y"""

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (self.w_g(x) - self.gate_bias).sigmoid() * y


class HighwayGate(Gate):
    """c x + (1 - c) y,  c = sigma(W_g x + b)"""

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        return y + (self.w_g(x) + self.gate_bias).sigmoid() * (x - y)


class SigTanhGate(Gate):
    """x + sigma(W_g y - b) tanh(U_g y)"""

    matrices: ClassVar = {'w_g': 1, 'u_g': 1}
    u_g: nn.Linear

    def combine(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (self.w_g(y) - self.gate_bias).sigmoid() * self.u_g(y).tanh()


GATES: dict[str, type[Residual]] = {
    'grucell': GRUGating,
    'gtrxl': GTrXLGate,
    'input': InputGate,
    'output': OutputGate,
    'highway': HighwayGate,
    'sigtanh': SigTanhGate,
}
# options of `residual_fn_kwargs`
OPTIONS = {
    'gate': Check(f'one of {", ".join(GATES)}', lambda value: isinstance(value, str) and value in GATES),
    'gate_bias': number | none,
    'pre_relu': Check('True or False', lambda value: isinstance(value, bool)),
}


class GateResidual(StackFeature):
    """Gated residual connections instead of sums: a GRU cell, or another `gate` given in `residual_fn_kwargs`."""

    paper = 'Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764'
    gate_residual = flag(False, "gate residuals: by a GRU cell, or as in `residual_fn_kwargs=dict(gate='gtrxl', ...)`")
    tp_shards = {}

    def residual(self, *args: Any, gate: Any = 'grucell', **options: Any) -> nn.Module:
        build = self.get_gate(gate, options)
        return build(*args, **drop_scales('gate_residual', options, 'scale_residual_constant'))

    def get_gate(self, gate: Any, options: dict[str, Any]) -> type[Residual]:
        """Return the class of a gate.  Raises ConfigError for options that it does not have."""
        for name, value in self.owner.residual_fn_kwargs.items():
            if name not in OPTIONS and not name.startswith('scale_residual'):
                hint = did_you_mean(name, OPTIONS)
                raise ConfigError(f'`residual_fn_kwargs` got {name!r}, which the gate {gate!r} does not have{hint}')
            if name in OPTIONS and not OPTIONS[name].test(value):
                wanted = f'must be {OPTIONS[name].words}, got {format_value(value)}'
                raise ConfigError(f'`{name}` of `residual_fn_kwargs` {wanted}')
        if gate == 'input' and options.pop('gate_bias', None) is not None:
            raise ConfigError(
                "`gate_bias` of `residual_fn_kwargs` cannot be combined with the gate 'input': it has no bias"
            )
        if gate == 'gtrxl' and not self.owner.norm_before:
            name = 'branch_post_norm' if self.owner.pre_norm else 'pre_norm=False'
            raise ConfigError(
                f"`{name}` cannot be combined with the gate 'gtrxl' of `residual_fn_kwargs`: its stream has no norm"
            )
        return GATES[gate]

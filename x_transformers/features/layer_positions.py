"""Absolute position embeddings in every layer, with a separate table for each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import check_range, is_above, make_positions
from x_transformers.core.own_modules import known_stack
from x_transformers.features.embeddings import check_rows
from x_transformers.features.levels import ModelFeature, StackFeature
from x_transformers.flags import ConfigError, Input, flag, none, size
from x_transformers.flags.checks import get_tensor


class LayerPositions(StackFeature):
    """Add learned position embeddings to the tokens before each layer, instead of only once before the first layer.

        x <- x + P_l[pos],   l = 1 ... depth             P: (depth, positions, dim)

    A layer is a block of attention and feedforward, or a single branch if `custom_layers` do not form blocks. If layers
    run several times, each run has a separate table. Prepended tokens have no position.
    """

    paper = 'Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444'
    per_layer_abs_pos_emb = flag(None, 'number of positions in the table of each layer', size | none, example=40)
    call_inputs = {
        'token_pos': Input(
            'n | b n, positions of the new tokens, negative for tokens without a position',
            get_tensor('n | b n', floats=False),
        ),
    }
    stored_as = {'tables': 'per_layer_pos'}
    gives_positions = True
    refuses = {'some tokens': 'it changes every token before each layer'}
    clashes = {'reversible': 'it changes the residual stream between layers, which the backward pass cannot invert'}

    def setup(self, owner: Any) -> None:
        runs = self.runs = len(owner.layers_execute_order) // owner.len_default_block
        self.tables = nn.Parameter(torch.randn(runs, self.per_layer_abs_pos_emb, owner.dim) * 0.02)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if call.memories:
            raise ValueError(
                '`per_layer_abs_pos_emb` cannot be combined with `mems`, which have no position in a table'
            )
        return x

    def layer_input(self, x: Tensor, layer: Any, call: Any) -> Tensor:
        run = self.run_of(call)
        if run is None:
            return x
        own = call.ctx(self)
        if not hasattr(own, 'pos'):  # settled at the first layer, when other features have said where documents begin
            own.pos = self.positions(x, call)
        vectors = F.embedding(own.pos.clamp(min=0), self.tables[run])
        vectors = vectors.masked_fill((own.pos < 0).unsqueeze(-1), 0.0).to(x.dtype)
        if vectors.ndim == 3 and len(vectors) not in (1, len(x)):  # streams stand in the batch of x
            vectors = vectors.repeat_interleave(len(x) // len(vectors), dim=0)
        return x + vectors

    def run_of(self, call: Any) -> int | None:
        """Return which table joins before the step, if a block begins with it: that of its run, or of its layer."""
        block, index, order = self.owner.len_default_block, call.order[call.step], self.owner.layers_execute_order
        if tuple(call.order) == tuple(order):
            return None if call.step % block else call.step // block
        if len(set(order)) < len(order):
            raise ValueError(
                '`per_layer_abs_pos_emb` has a table for each run of a layer that runs several times: a call cannot '
                'say by `layers_execute_order` or `repeat_blocks` how often it runs'
            )
        return None if index % block else order.index(index) // block

    def positions(self, x: Tensor, call: Any) -> Tensor:
        """Return the positions of the new tokens, n or b n; below 0 for tokens without one, such as left padding."""
        pos, name = call.inputs.get('token_pos'), 'token_pos'
        if pos is not None and (pos.shape[-1] != call.new_len or pos.shape[:-1] not in ((), (1,), (call.batch,))):
            raise ValueError(
                f'`token_pos` must have shape ({call.new_len},) or (b, {call.new_len}), got {tuple(pos.shape)}'
            )
        if pos is None:
            if call.shared['a'].get('pos') is None:
                check_length(call.past_len + call.new_len, self.per_layer_abs_pos_emb)
            pos, name = call.key_positions(x)[..., -call.new_len :], 'pos'
        if pos.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers, got {pos.dtype}: `per_layer_abs_pos_emb` has a table')
        check_range(pos.clamp(min=0), name, 0, self.per_layer_abs_pos_emb - 1, 'positions')
        return pos


def check_length(length: int | Tensor, most: int) -> None:
    if is_above(length, most):
        raise ValueError(f'the sequence has {int(length)} tokens, more than `per_layer_abs_pos_emb={most}`')


class LayerPositionsInModel(ModelFeature):
    """Pass the positions of the tokens to a stack with `per_layer_abs_pos_emb`, without the prepended tokens."""

    enabled_by = ('per_layer_abs_pos_emb',)

    def active_stages(self) -> tuple[str, ...]:
        return self.runs_at() if known_stack(self.owner.attn_layers).features.find(LayerPositions) is not None else ()

    def setup(self, owner: Any) -> None:
        tables = known_stack(owner.attn_layers).features.find(LayerPositions)
        self.most: int = 0 if tables is None else tables.per_layer_abs_pos_emb
        self.counts_from = None if tables is None else 'segment'
        if tables is not None and getattr(owner, 'max_mem_len', 0):
            raise ConfigError(
                '`per_layer_abs_pos_emb` cannot be combined with `max_mem_len`: memories have no positions'
            )

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        given, start = call.inputs.get('pos'), call.inputs.get('seq_start_pos')
        tokens = call.like_tokens
        pos = make_positions(call.offset, call.new_len, tokens.device)
        if given is None:
            check_length(call.offset + call.new_len, self.most)
        elif given.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers, got {given.dtype}: `per_layer_abs_pos_emb` has a table')
        else:
            check_rows(given, len(tokens))
            pos = call.select_new(given, 'pos').long()
            if start is None:
                check_range(pos, 'pos', 0, self.most - 1, 'positions')
        if not (call.num_prefix_tokens or call.spread or (given is not None and start is not None)):
            return inputs  # the stack counts as the model does
        pos = pos.expand(len(tokens), -1)
        pos = pos if start is None else pos - start.unsqueeze(-1)
        if not call.continues:
            pos = call.move_after_padding(F.pad(pos, (call.num_prefix_tokens, 0), value=-1))
        return {**inputs, 'token_pos': pos if call.spread is None else call.spread(pos, -1)}

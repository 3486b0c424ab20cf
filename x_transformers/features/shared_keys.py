"""Layers of self-attention that attend to the keys and values of an earlier layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.rotary import RotaryLayers
from x_transformers.flags import ConfigError, Input, count, flag, none
from x_transformers.flags.checks import Check

Heads = tuple[Tensor, Tensor, Tensor]

OTHER_KEYS = 'its keys and values are those of another layer'
# Norms of keys and values, which these have been through in the layer that they come from.
NORMS = ('k_norm', 'k_proj_norm', 'k_rmsnorm', 'value_rmsnorm', 'value_norm')


class NoProjection(nn.Module):
    """Keys or values without any heads:  b n d -> b n 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :0]


class SharedKeys(AttentionFeature):
    """Attend to the keys and values of an earlier layer of self-attention, with queries of one's own.

        out = softmax(q k_s^T * scale + bias) v_s        q of this layer, k_s and v_s of layer s, normed and rotated

    The layer has no projections of keys and values, and nothing of it is cached. A stack says for each layer of
    self-attention from which it reads, by its index among them, None for itself: `(None, None, 0, 1)`. Windows, masks
    and biases are those of the layer that reads. Both layers must rotate alike.
    """

    paper = 'Cross-Layer Attention, arXiv:2405.12981; Gemma 3n'
    kv_from = flag(
        None,
        'index of the earlier layer of self-attention whose keys and values are used; None: own ones',
        count | none,
        example=0,
    )
    call_inputs = {
        'shared_kv': Input(
            'keys and values of the other layer, (b k j d) each, and whether the keys have been rotated',
            Check('keys, values and a switch', lambda value: isinstance(value, tuple) and len(value) == 3),
        )
    }
    clashes = dict.fromkeys(
        (
            *('use_latent_kv', 'knn_mem', 'shared_qk', 'cluster', 'collab_heads', 'differential', 'kernel', 'aft'),
            *('linformer_k', 'head_dims', 'qk_norm', 'hybrid_module', 'learned_value_residual_mix', 'disentangled'),
            *('orthog_projected_values', 'orthog_projected_values_per_head', 'global_separate_qkv'),
        ),
        OTHER_KEYS,
    )
    refuses = {
        'cross-attention': 'it reads the keys of another layer of self-attention',
        'several devices': OTHER_KEYS,
        **dict.fromkeys(('add_value_residual', 'reversible', 'knn_mem_layers', 'two_stream'), OTHER_KEYS),
        'layer_dropout': 'the layer with the keys may be left out',
    }
    always = True
    allows_eviction = True

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['kv_from'] is not None

    def initialize(self) -> None:
        owner = self.owner
        if self.norms_after(owner):
            raise ConfigError(
                "`kv_from` cannot be combined with `qk_head_norm_at='after'`: the other layer norms its keys"
            )
        for name in ('to_k', 'to_v'):
            setattr(owner, name, NoProjection())
        for name in NORMS:
            if getattr(owner, name, None) is not None:
                setattr(owner, name, nn.Identity())

    @staticmethod
    def norms_after(owner: Any) -> bool:
        return any(getattr(feature, 'qk_head_norm_at', '') == 'after' for feature in owner.features.active)

    def update_cache(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        given = call.inputs.get('shared_kv')
        if call.context is not None or given is None:
            raise ValueError(f'`kv_from` needs a stack, whose layer of self-attention {self.kv_from} ran before')
        if call.memories:
            raise ValueError('`mems` cannot be combined with `kv_from`: they belong to the layer that has the keys')
        rotated = call.inputs.get('kept_angles') is not None
        k, _ = call.append_past(k, v)  # no numbers, but the length of what is cached
        keys, values, given_rotated = given
        if given_rotated != rotated:
            raise ValueError('`kv_from` needs a layer that rotates its keys as this one does')
        first = keys.shape[-2] - k.shape[-2]
        return keys[..., first:, :], values[..., first:, :]


class SharedKeysInStack(StackFeature):
    """Pass keys and values of layers to those that share them."""

    enabled_by = ('kv_from',)

    def setup(self, owner: Any) -> None:
        self.branches: list[Any] = []
        self.sources: set[int] = set()

    def wrap(self, branch: Any, kind: str, index: int) -> nn.Module:
        """Check a layer of self-attention against the one whose keys it uses."""
        if kind != 'a':
            return branch
        feature, number = branch.features.find(SharedKeys), len(self.branches)
        self.branches.append(branch)
        if feature is None:
            return branch
        source = self.branches[feature.kv_from] if feature.kv_from < number else None
        if source is None or source.features.find(SharedKeys) is not None:
            raise ConfigError(
                f'`attn_kv_from` of layer {number} must be the index of an earlier layer of self-attention with keys '
                f'of its own, got {feature.kv_from}'
            )
        sizes = [(one.kv_heads, one.dim_key, one.shape.dim_value) for one in (source, branch)]
        if sizes[0] != sizes[1] or 'update_cache' in source.features.by_stage or SharedKeys.norms_after(source):
            raise ConfigError(
                f'`attn_kv_from` of layer {number} needs a layer with plain keys of the same heads and widths, which '
                f'layer {feature.kv_from} has not'
            )
        rotary = self.owner.features.find(RotaryLayers)
        if rotary is not None and rotary.numbers[feature.kv_from] != rotary.numbers[number]:
            raise ConfigError(
                f'`attn_kv_from` of layer {number} cannot be combined with these `rotary_layers`: layer '
                f'{feature.kv_from} rotates its keys otherwise'
            )
        self.sources.add(feature.kv_from)
        return branch

    def on_attention(self, layer: Any, intermediates: Any, call: Any) -> None:
        number = getattr(layer[1], 'layer_number', None)
        if layer.kind == 'a' and number in self.sources:
            past = intermediates.past
            own = call.ctx(self)
            own.kv = {**getattr(own, 'kv', {}), number: (*past.pair, past.changed_by is not None)}

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        features = getattr(layer[1], 'features', None) if layer.kind == 'a' else None
        feature = None if features is None else features.find(SharedKeys)
        given = None if feature is None else getattr(call.ctx(self), 'kv', {}).get(feature.kv_from)
        return inputs if given is None else {**inputs, 'shared_kv': given}

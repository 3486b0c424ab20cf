"""Windows of attention: how far back queries attend where a feature limits it, and which keys no later query needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from x_transformers.core.modes import is_exporting
from x_transformers.flags.declared import PerToken

# Stages at which a feature may use keys of the cache.
SEES_KEYS = {
    'update_cache', 'extra_keys', 'rotate', 'mask', 'bias', 'prepend_kv', 'pre_attention', 'pre_kernel', 'attend',
    'scores', 'logits', 'score_mask',
    'masked_scores', 'normalizer', 'wrap_normalizer', 'weights', 'mixed_weights', 'weighted_values',
}  # fmt: skip


class AttentionWindow(NamedTuple):
    """Window of the last `size` cached keys, beyond which no query attends.

    Keys may be left out by multiples of `step`, so that blocks stay where they are. `name` is the flag that sets the
    window. Of `size`, the first `step - 1` may be counted as padding, and as many may be more than whole steps.
    """

    size: int
    step: int
    name: str

    @property
    def kept(self) -> int:
        """Return the number of keys that a cache keeps, so that tokens can be taken back."""
        return self.size + max(64, self.size // 2)

    def num_evictable(self, tokens: int) -> int:
        """Return how many of `tokens` earlier tokens need not be read."""
        return max(tokens - self.size + self.step - 1, 0) // self.step * self.step


class WindowLimits(NamedTuple):
    """Features of a layer that limit how far back it attends. `all_for` are inputs of features that need all keys."""

    features: tuple[Any, ...]
    all_for: tuple[str, ...]

    @classmethod
    def from_features(cls, active: tuple[Any, ...]) -> WindowLimits | None:
        """Return the limits of a layer with these features, None if one of them needs all keys or none limits them."""
        limits = tuple([one for one in active if one.limits_window])
        others = [one for one in active if not one.allows_eviction and needs_all_keys(one)]
        if not limits or not all(one.waits for one in others):
            return None
        return cls(limits, tuple([name for one in others for name in one.call_inputs]))

    def window(self, call: Any) -> AttentionWindow | None:
        """Return the window of a call, None if all keys are needed."""
        if not call.causal or call.context is not None or call.memories or is_exporting():
            return None
        if any(call.inputs.get(name) is not None for name in self.all_for):
            return None
        known = [(one.reach_and_step(call), one.display_name) for one in self.features]
        known = [(limit, title) for limit, title in known if limit is not None]
        if not known:
            return None
        (reach, _), title = min(known, key=lambda one: one[0][0])
        step = math.lcm(*[limit[1] for limit, _ in known])
        return AttentionWindow(reach + 2 * (step - 1), step, title)


def needs_all_keys(feature: Any) -> bool:
    """Return True if a feature may use earlier keys, or has a state for each."""
    per_token = any(isinstance(kind, PerToken) and not kind.derived for kind in feature.states.values())
    return per_token or not SEES_KEYS.isdisjoint(feature.runs_at())


def select_window(call: Any, whole: Any, past: Any) -> tuple[Tensor | None, ...]:
    """Return the keys and values that the queries of a call may attend to, and cut the inputs that count keys."""
    num_evictable = 0 if call.window is None else call.window.num_evictable(past.length)
    if past.num_evicted > num_evictable:
        name = past.buffers[0].window.name
        raise ValueError(
            f'`cache` holds keys and values of the last {past.length - past.num_evicted} of {past.length} tokens, as '
            f'`{name}` has left them: here earlier ones are needed too'
        )
    if num_evictable == 0:
        return whole.pair
    call.summed = num_evictable
    for name in ('pos', 'index', 'attn_bias'):
        given = call.inputs.get(name)
        if given is not None and given.shape[-1] == whole.length:
            call.inputs = {**call.inputs, name: given[..., num_evictable:]}
    return tuple(None if t is None else t[..., num_evictable - past.num_evicted :, :] for t in whole.pair)

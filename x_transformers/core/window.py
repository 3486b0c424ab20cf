"""Windows of attention: how far back queries attend where a feature limits it, and which keys no later query needs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from x_transformers.core.modes import is_exporting
from x_transformers.flags.declared import PerToken

# stages at which a feature may look at keys of the cache
SEES_KEYS = {
    'past', 'stored_keys', 'place', 'mask', 'bias', 'keys', 'enter', 'meet', 'attend', 'scores', 'logits', 'sight',
    'rows', 'normaliser', 'normalising', 'weights', 'mix', 'gathered',
}  # fmt: skip


class AttentionWindow(NamedTuple):
    """Window of the last `rows` cached keys, beyond which no query attends.

    Keys may be left out by multiples of `step`, so that blocks stay where they are. `name` is the flag that sets the
    window. Of `rows`, the first `step - 1` may be counted as padding, and as many may be more than whole steps.
    """

    rows: int
    step: int
    name: str

    @property
    def kept(self) -> int:
        """Return the number of keys that a cache keeps, so that tokens can be taken back."""
        return self.rows + max(64, self.rows // 2)

    def unseen(self, tokens: int) -> int:
        """Return how many of `tokens` earlier tokens need not be read."""
        return max(tokens - self.rows + self.step - 1, 0) // self.step * self.step


class WindowLimits(NamedTuple):
    """Features of a layer that limit how far back it attends. `all_for` are inputs of features that need all keys."""

    features: tuple[Any, ...]
    all_for: tuple[str, ...]

    @classmethod
    def of(cls, active: tuple[Any, ...]) -> WindowLimits | None:
        """Return the limits of a layer with these features, None if one of them needs all keys or none limits them."""
        limits = tuple([one for one in active if one.limits_sight])
        others = [one for one in active if not one.keys_may_leave and needs_all(one)]
        if not limits or not all(one.waits for one in others):
            return None
        return cls(limits, tuple([name for one in others for name in one.takes]))

    def sight(self, call: Any) -> AttentionWindow | None:
        """Return the window of a call, None if all keys are needed."""
        if not call.causal or call.context is not None or call.memories or is_exporting():
            return None
        if any(call.inputs.get(name) is not None for name in self.all_for):
            return None
        known = [(one.reach_and_step(call), one.title) for one in self.features]
        known = [(limit, title) for limit, title in known if limit is not None]
        if not known:
            return None
        (reach, _), title = min(known, key=lambda one: one[0][0])
        step = math.lcm(*[limit[1] for limit, _ in known])
        return AttentionWindow(reach + 2 * (step - 1), step, title)


def needs_all(feature: Any) -> bool:
    """Return True if a feature may look at earlier keys, or keeps a row for each."""
    rows = [kind for kind in feature.remembers.values() if isinstance(kind, PerToken) and not kind.derived]
    return bool(rows) or not SEES_KEYS.isdisjoint(feature.runs_at())


def in_sight(call: Any, whole: Any, past: Any) -> tuple[Tensor | None, ...]:
    """Return the keys and values that the queries of a call may attend to, and cut the inputs that count keys."""
    unseen = 0 if call.sight is None else call.sight.unseen(past.length)
    if past.gone > unseen:
        name = past.buffers[0].sight.name
        raise ValueError(
            f'`cache` holds keys and values of the last {past.length - past.gone} of {past.length} tokens, as '
            f'`{name}` has left them: here earlier ones are needed too'
        )
    if unseen == 0:
        return whole.pair
    call.summed = unseen
    for name in ('pos', 'index', 'attn_bias'):
        given = call.inputs.get(name)
        if given is not None and given.shape[-1] == whole.length:
            call.inputs = {**call.inputs, name: given[..., unseen:]}
    return tuple(None if t is None else t[..., unseen - past.gone :, :] for t in whole.pair)

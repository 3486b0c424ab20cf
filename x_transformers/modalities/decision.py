"""Decision Transformer: a causal model of returns, states and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import (
    as_mask,
    check_ids,
    check_range,
    check_tensor,
    checked,
    match_precision,
    values_of,
)
from x_transformers.core.modes import HALF, at_least_float, clamp_to_dtype, dtype_of_products, to_float
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    format_value,
    instance_of,
    none,
    positive,
    size,
)
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.sampling import check_in_range, sample
from x_transformers.training.items import mean_of_items, share_of_items
from x_transformers.training.losses import mean_or_zero
from x_transformers.x_transformers import AttentionLayers

__all__ = ['DecisionTransformer', 'Episode', 'returns_to_go']

an_observation = Check(
    'an integer of at least 1, or (channels, height, width)',
    lambda v: size.test(v) or (isinstance(v, (tuple, list)) and len(v) == 3 and all(map(size.test, v))),
)


def returns_to_go(rewards: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the sum of the rewards from each real step on (..., t), in float32 at least."""
    rewards = to_float(rewards)
    rewards = rewards if mask is None else rewards.masked_fill(~mask, 0.0)
    return rewards.flip(-1).cumsum(dim=-1).flip(-1)


class Episode:
    """Episode so far, in b parallel environments: `observe` a state, `act`, `receive` its reward.

    states    list of (b s), or (b c h w) for images
    actions   list of (b) or (b a), which `DecisionTransformer.act` chose
    rewards   list of (b); a number is received as the reward of each row
    """

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.actions: list[Tensor] = []
        self.rewards: list[Tensor] = []
        self.cache: LayerIntermediates | None = None
        self.precision: tuple[torch.device, torch.dtype] | None = None  # that the cache was computed in

    def observe(self, state: Tensor) -> Episode:
        if len(self.states) != len(self.actions):
            raise ValueError(f'`observe` got state {len(self.states) + 1}, an action for the one before is missing')
        if check_tensor(state, 'state').ndim < 2:
            raise ValueError(f'`state` must have the axes (b s) or (b c h w), got shape {tuple(state.shape)}')
        if self.states and state.shape != self.states[0].shape:
            first = tuple(self.states[0].shape)
            raise ValueError(f'`state` must have the shape of those before, {first}, got {tuple(state.shape)}')
        self.states.append(state)
        return self

    def receive(self, reward: Tensor | Sequence[float]) -> Episode:
        if len(self.rewards) + 1 != len(self.actions):
            raise ValueError(f'`receive` got reward {len(self.rewards) + 1}, there are {len(self.actions)} actions')
        reward, b = values_of(reward, 'reward'), len(self.states[-1])
        if reward.shape not in ((), (b,)):
            raise ValueError(f'`reward` must be one number, or one for each of {b} rows, got {tuple(reward.shape)}')
        self.rewards.append(reward.to(torch.float32).expand(b))
        return self


class Steps(NamedTuple):
    """Steps as the model reads them. Padding steps hold zeros.

    states, actions   b k ..., as they were given
    rtg               b k 1
    timesteps         b k, or k
    start             b, how many steps of each row are padding on the left; None without any
    """

    states: Tensor
    actions: Tensor
    rtg: Tensor
    timesteps: Tensor
    start: Tensor | None


class DecisionTransformer(Configurable):
    """Decision Transformer: a causal model of (return to go, state, action), which predicts the action of each state.

        tokens   R_0 s_0 a_0 R_1 s_1 a_1 ...        R_t = r_t + r_(t+1) + ...
        x        norm(projection of the token + table[t])
        a_t      W out(s_t) + w                     tanh of it, or logits of discrete actions

    It is trained on trajectories of any quality; to act, it is conditioned on the desired return. The stack has no
    position embeddings: `table` embeds time steps, the same for the three tokens of a step.

    Chen et al. 2021, arXiv:2106.01345
    """

    def __init__(
        self,
        state_dim: Annotated[
            Any, 'number of channels of a state, or (channels, height, width) of images', an_observation
        ],
        act_dim: Annotated[int, 'number of channels of an action, or number of discrete actions', size],
        attn_layers: Annotated[AttentionLayers, 'custom Decoder', instance_of(AttentionLayers)],
        *,
        discrete: Annotated[bool, 'use discrete actions, given as integers', boolean] = False,
        context_len: Annotated[int, 'maximum number of steps in the context', size] = 20,
        max_ep_len: Annotated[int, 'number of time steps with a learned embedding', size] = 4096,
        action_tanh: Annotated[
            bool | None,
            'bound actions to [-1, 1] by tanh; None: yes, unless actions are discrete',
            boolean | none,  # pyright: ignore[reportOperatorIssue]  the check, not the method
        ] = None,
        return_scale: Annotated[float, 'divisor of the returns', positive] = 1.0,
    ) -> None:
        super().__init__()
        if not attn_layers.causal or attn_layers.cross_attend:
            raise ConfigError(f'`attn_layers` must be a Decoder without a context, got {type(attn_layers).__name__}')
        if discrete and action_tanh:
            raise ConfigError('`action_tanh` cannot be combined with `discrete`: logits have no bounds')
        self.attn_layers, self.discrete = attn_layers, bool(discrete)
        self.state_dim, self.act_dim, self.context_len, self.max_ep_len = state_dim, act_dim, context_len, max_ep_len
        self.action_tanh, self.return_scale = not discrete if action_tanh is None else action_tanh, float(return_scale)
        dim = attn_layers.dim
        self.embed_return = nn.Linear(1, dim)
        self.embed_state = nn.Linear(state_dim, dim) if size.test(state_dim) else embed_images(tuple(state_dim), dim)
        self.embed_action = nn.Embedding(act_dim, dim) if discrete else nn.Linear(act_dim, dim)
        self.embed_timestep = nn.Embedding(max_ep_len, dim)
        self.embed_norm = nn.LayerNorm(dim)
        self.to_action = nn.Linear(dim, act_dim)
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and not name.startswith('attn_layers'):
                nn.init.normal_(module.weight, std=0.02)
                bias: Any = getattr(module, 'bias', None)
                if bias is not None:
                    nn.init.zeros_(bias)

    # what it reads

    def check(self, states: Tensor, actions: Tensor, rtg: Tensor, timesteps: Tensor, mask: Tensor | None) -> Steps:
        """Return the steps as they are read, with zeros in place of padding.

        Raises:
            ValueError or TypeError for inputs of another shape or kind.
        """
        of_state = (self.state_dim,) if size.test(self.state_dim) else tuple(self.state_dim)
        if states.ndim != 2 + len(of_state) or states.shape[2:] != of_state:
            wanted = ', '.join(('b', 'k', *map(str, of_state)))
            raise ValueError(f'`states` must have shape ({wanted}), got {tuple(states.shape)}')
        b, k = states.shape[:2]
        if k > self.context_len:
            raise ValueError(f'`states` got {k} steps, more than `context_len`, {self.context_len}')
        of_action = (b, k) if self.discrete else (b, k, self.act_dim)
        if actions.shape != of_action:
            raise ValueError(f'`actions` must have shape {of_action}, got {tuple(actions.shape)}')
        rtg = rtg.unsqueeze(-1) if rtg.ndim == 2 else rtg
        if rtg.shape != (b, k, 1):
            raise ValueError(f'`rtg` must have shape {(b, k)}, got {tuple(rtg.shape)}')
        if timesteps.shape not in ((k,), (b, k)) or timesteps.is_floating_point():
            got = f'{timesteps.dtype} of shape {tuple(timesteps.shape)}'
            raise ValueError(f'`timesteps` must be whole numbers {(b, k)}, got {got}')
        mask, start = as_mask(mask, 'mask', b, k, like=states), None
        if mask is not None:
            start = k - mask.sum(dim=-1)
            if not torch.equal(mask, torch.arange(k, device=mask.device) >= start.unsqueeze(-1)):
                raise ValueError('`mask` got holes, or padding on the right: steps are padded on the left')
            states, actions, rtg, timesteps = (
                t.masked_fill(~mask.view(b, k, *[1] * (t.ndim - 2)), 0)
                for t in (states, actions, rtg, timesteps.expand(b, k))
            )
        check_range(timesteps, 'timesteps', 0, self.max_ep_len - 1, 'times')
        actions = check_ids(actions, 'actions', 0, self.act_dim) if self.discrete else match_precision(actions, self)
        return Steps(match_precision(states, self), actions, self.scaled(rtg), timesteps, start)

    def scaled(self, rtg: Tensor) -> Tensor:
        """Return returns divided by `return_scale`, before they lose precision or range in half precision."""
        weight = self.embed_return.weight
        rtg = to_float(rtg) if weight.dtype in HALF else match_precision(rtg, self)
        return clamp_to_dtype(rtg / self.return_scale, dtype_of_products(weight)).to(weight.dtype)

    def tokens(self, steps: Steps) -> Tensor:
        """Return three tokens for each step:  (b, 3 k, d)"""
        time = self.embed_timestep(steps.timesteps)
        given = self.embed_return(steps.rtg), self.embed_state_of(steps.states), self.embed_action(steps.actions)
        return self.embed_norm(torch.stack([one + time for one in given], dim=2).flatten(1, 2))

    def embed_state_of(self, states: Tensor) -> Tensor:
        if size.test(self.state_dim):
            return self.embed_state(states)
        return self.embed_state(states.flatten(0, 1)).unflatten(0, states.shape[:2])

    def predicted(self, x: Tensor) -> Tensor:
        out = self.to_action(x)
        return out.tanh() if self.action_tanh else out

    # what it is called with

    @checked
    def forward(
        self, states: Tensor, actions: Tensor, rtg: Tensor, timesteps: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the action of each step, or logits of discrete actions, given everything before it:  (b, k, a)

        states      b k s | b k c h w
        actions     b k a | b k         integers if discrete. The action of a step is input of later steps only
        rtg         b k                 return to go from this step on, its reward included
        timesteps   k | b k             time steps since the beginning of the episode
        mask        b k                 True except for padding, which must be on the left
        raises      ValueError for other shapes, more than `context_len` steps, or time steps of at least `max_ep_len`
        """
        steps = self.check(states, actions, rtg, timesteps, mask)
        options: dict[str, Any] = {} if steps.start is None else {'seq_start_pos': 3 * steps.start}
        out = self.attn_layers(self.tokens(steps), **options)
        return self.predicted(out[:, 1::3])

    def loss(self, batch: Mapping[str, Tensor], num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the loss of the actions of all real steps: cross entropy of discrete ones, else the mean square.

        batch   `states`, `actions`, `timesteps`, perhaps `mask`, and `rtg`; or `rewards` (b k) of whole episodes
        num_items_in_batch   divide the sum of the losses of steps by this number, so that batches add up
        """
        missing = [name for name in ('states', 'actions', 'timesteps') if name not in batch]
        if missing or ('rtg' in batch) == ('rewards' in batch):
            what = ', '.join(f'`{name}`' for name in missing) or 'either `rtg` or `rewards`'
            raise ValueError(f'`batch` got {", ".join(sorted(batch))}: it must have {what}')
        mask = as_mask(batch.get('mask'), 'mask', *batch['states'].shape[:2], like=batch['states'])
        if 'rtg' in batch:
            rtg = batch['rtg']
        else:
            rtg = returns_to_go(batch['rewards'], mask).to(at_least_float(self.embed_norm.weight.dtype))
        with AuxLosses() as aux:
            found = self(batch['states'], batch['actions'], rtg, batch['timesteps'], mask)
        found, target = to_float(found), batch['actions']
        if mask is not None:
            # Padding may hold anything: it is left out before it is squared.
            found = found.masked_fill(~mask.unsqueeze(-1), 0.0)
            target = target.masked_fill(~mask if self.discrete else ~mask.unsqueeze(-1), 0)
        if self.discrete:
            each = F.cross_entropy(found.flatten(0, 1), target.flatten().long(), reduction='none').view(target.shape)
        else:
            each = (found - target).square().mean(dim=-1)
        if mask is None:
            share = share_of_items(torch.ones_like(each, dtype=torch.bool), num_items_in_batch)
            return aux.added_to(mean_or_zero(each) * share, share)
        loss = mean_of_items(each, mask, num_items_in_batch)
        return aux.added_to(loss, share_of_items(mask, num_items_in_batch))

    @torch.no_grad()
    def act(self, history: Episode, target_return: Tensor | float, temperature: float = 0.0) -> Tensor:
        """Return the action for the last state of an episode, and record it:  (b, a), or (b,) of discrete ones

        target_return   what the whole episode should return, one number or (b); rewards so far are taken off it
        temperature     of discrete actions: 0 for the most probable one

        Within `context_len` steps keys and values of earlier tokens are kept; beyond, the last steps are read again.
        """
        steps = len(history.states)
        if steps == 0 or len(history.actions) != steps - 1 or len(history.rewards) != steps - 1:
            counts = f'{steps} states, {len(history.actions)} actions and {len(history.rewards)} rewards'
            raise ValueError(f'`history` got {counts}: one state more than actions and rewards is to be acted on')
        if not check_in_range(temperature, 0.0) or (temperature and not self.discrete):
            raise ValueError(f'`temperature` must be 0, or above for discrete actions, got {format_value(temperature)}')
        with eval_modules(list(self.modules())):
            out = self.predicted(self.of_last(history, target_return))
        action = sample(out, temperature) if self.discrete else out
        history.actions.append(action)
        return action

    def of_last(self, history: Episode, target_return: Tensor | float) -> Tensor:
        """Return the output for the last state (b, d)."""
        place = self.embed_norm.weight
        steps, first = len(history.states), max(len(history.states) - self.context_len, 0)
        b = history.states[-1].shape[0]
        target = values_of(target_return, 'target_return').to(place.device, at_least_float(place.dtype))
        if target.shape not in ((), (b,)):
            got = tuple(target.shape)
            raise ValueError(f'`target_return` must be one number, or one for each of {b} rows, got {got}')
        target = target.expand(b)
        rewards = [reward.to(place.device) for reward in history.rewards]
        got = torch.stack([torch.zeros_like(target), *rewards], dim=1).cumsum(dim=1)
        precision = place.device, place.dtype
        # A model that was cast or moved reads earlier steps again.
        current = first == 0 and self.attn_layers.can_cache_kv and history.precision == precision
        kept, history.precision = history.cache if current else None, precision
        first = steps - 2 if kept is not None else first  # the action before, and this step
        # Steps from before a cast follow the last state, which is checked.
        seen = history.states[first:]
        states = torch.stack([state.to(place.device, seen[-1].dtype) for state in seen], dim=1)
        given = [*history.actions[first:], self.none(b)]
        actions = torch.stack([action.to(place.device, given[-1].dtype) for action in given], dim=1)
        times = torch.arange(first, steps, device=place.device)
        rtg = (target.unsqueeze(1) - got)[:, first:]
        tokens = self.tokens(self.check(states, actions, rtg, times, None))[:, 2 if kept is not None else 0 : -1]
        options = {} if kept is None else {'cache': kept, 'input_not_include_cache': True}
        out, history.cache = self.attn_layers(tokens, return_hiddens=True, **options)
        return out[:, -1]

    def none(self, b: int) -> Tensor:
        """Return a placeholder action that nothing reads."""
        like = self.embed_norm.weight
        if self.discrete:
            return torch.zeros(b, dtype=torch.long, device=like.device)
        return torch.zeros(b, self.act_dim, dtype=like.dtype, device=like.device)


def embed_images(shape: tuple[int, int, int], dim: int) -> nn.Sequential:
    """Return an encoder of images: two convolutions that halve the size, and a projection."""
    channels, height, width = shape
    left = -(-height // 4) * -(-width // 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * left, dim),
    )

"""Masked models of tokens: the loss of hidden tokens, and generation that fills in all places over a few steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_number, can_read_values, check_ids, checked
from x_transformers.core.modes import draw_number, promote_dtypes
from x_transformers.core.nets import check_every_place, check_sees_both_sides, refuse_own
from x_transformers.core.own_modules import known_stack
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    count,
    instance_of,
    is_int,
    is_number,
    none,
    number,
    size,
    warn_once,
)
from x_transformers.flags.checks import Maybe
from x_transformers.generation.choice import GenerationHistory, TokenSampler
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.guidance import is_unlearned
from x_transformers.generation.sampling import (
    check_in_range,
    guide_logits,
    gumbel_noise as gumbel_noise,
    mask_token,
    require,
    to_float,
    top_k as keep_largest,
)
from x_transformers.training.items import count_items, share_of_items
from x_transformers.training.losses import mean_or_zero, real_tokens
from x_transformers.training.masking import random_rank
from x_transformers.training.token_loss import Terms, read_logits_later, weighted_token_loss

__all__ = ['Losses', 'NonAutoregressiveWrapper', 'SelfCritic']


class NonAutoregressiveLosses(NamedTuple):
    """The loss to minimise, and its parts; those that were not computed are None."""

    loss: Tensor
    generator_loss: Maybe[Tensor]
    critic_loss: Maybe[Tensor]


Losses = NonAutoregressiveLosses  # The name in the original.


# schedules: the part of the tokens that is hidden at time t, from all at 0 to none at 1


def linear_schedule(t: Tensor) -> Tensor:
    return 1 - t


def cosine_schedule(t: Tensor) -> Tensor:
    """Chang et al. 2022, arXiv:2202.04200"""
    return torch.cos(t * (math.pi / 2))


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {'linear': linear_schedule, 'cosine': cosine_schedule}

a_schedule = Check(
    f'one of {", ".join(map(repr, SCHEDULES))} or a function of time', lambda v: callable(v) or v in tuple(SCHEDULES)
)
ratio = Check('a probability from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1)


def hidden_part(share: Tensor, real: Tensor | None, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draw which tokens to hide, (b n): a `share` (b) of the real ones of each row, one at least."""
    if real is None:
        rank, count = torch.rand(shape, dtype=torch.float32, device=device).argsort(dim=-1), share * shape[1]
    else:
        rank, count = random_rank(real), share * real.sum(dim=-1)
    hidden = rank < count.clamp(min=1.0).unsqueeze(-1)
    return hidden if real is None else hidden & real


def get_mask_subset_prob(mask: Tensor, prob: float | Tensor, min_mask: int = 0) -> Tensor:
    """Draw a share of the tokens that `mask` (b n) names, rounded up, and `min_mask` at least."""
    return (random_rank(mask) < (mask.sum(dim=-1, keepdim=True) * prob).clamp(min=min_mask)) & mask


class SelfCritic(nn.Module):
    """The model itself as its critic, with a head of its own:  ids b n -> b n 1"""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.to_logits = nn.Linear(net.dim, 1)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.to_logits(self.net(x, return_embeddings=True, **kwargs))


MASKED_OPTIONS = 'logit_bias', 'banned_tokens', 'allowed_tokens'  # those of `TokenSampler` that need no order of tokens


class NonAutoregressiveWrapper(Configurable):
    """Masked generative model (MaskGIT): predict masked tokens; generate by remasking the least certain ones.

        forward    ids (b, n) -> the mean cross entropy of the masked tokens

        t ~ U(0, 1), a fraction gamma(t) of each sequence is masked
        loss = mean over masked tokens of  w(t) cross entropy          w = |gamma'(t)| / gamma(t), or 1

    The weight is that of masked diffusion; it is at most n |gamma'|, since at least one of n tokens is masked. A critic
    is trained to detect wrong tokens, and decides in generation which ones are masked again.

    Mask-Predict, arXiv:1904.09324; MaskGIT, arXiv:2202.04200; weights, arXiv:2406.07524; self-conditioning,
    arXiv:2208.04202; critics, arXiv:2209.04439
    """

    num_tokens: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'model of tokens, as TransformerWrapper around an Encoder', instance_of(nn.Module)],
        *,
        mask_id: Annotated[int, 'id of the mask token, in the vocabulary', count],
        steps: Annotated[int, 'number of generation steps', size] = 18,
        self_cond: Annotated[bool, 'self-conditioning: add embeddings of the last step to the input', boolean] = False,
        self_cond_train_prob: Annotated[float, 'probability of a self-conditioning step in training', ratio] = 0.75,
        no_replace_prob: Annotated[float, 'fraction of masked tokens that stay unchanged in the input', ratio] = 0.15,
        random_token_prob: Annotated[float, 'fraction of masked tokens that are random in the input', ratio] = 0.1,
        schedule: Annotated[
            str | Callable[[Tensor], Tensor], 'masking schedule, from time to fraction of masked tokens', a_schedule
        ] = 'linear',
        can_mask_prev_unmasked: Annotated[bool, 'allow unmasked tokens to be masked again', boolean] = False,
        token_critic: Annotated[
            nn.Module | None, 'critic: ids (b, n) to scores (b, n, 1), larger if wrong', instance_of(nn.Module) | none
        ] = None,
        self_token_critic: Annotated[bool, 'use an additional head of the model as the critic', boolean] = False,
        critic_loss_weight: Annotated[float, 'weight of the loss of the critic', number] = 1.0,
        use_simple_mdlm_loss_weight: Annotated[bool, "loss weights |gamma'| / gamma: masked diffusion", boolean] = True,
        cond_drop_prob: Annotated[float, 'probability of dropping the `context` in training (guidance)', ratio] = 0.0,
        ceil_counts: Annotated[bool, 'round the number of masked tokens up, as in MaskGIT', boolean] = False,
    ) -> None:
        super().__init__()
        check_masked_net(net, mask_id)
        check_critic(token_critic, self_token_critic, critic_loss_weight)
        if not self_cond and self_cond_train_prob != 0.75:
            warn_once('`self_cond_train_prob` has no effect unless `self_cond` is set')
        self.net, self.mask_id, self.steps = net, mask_id, steps
        self.dim, self.num_tokens, self.max_seq_len = net.emb_dim, net.num_tokens, net.max_seq_len
        self.schedule = schedule
        self.schedule_fn: Any = SCHEDULES.get(schedule, schedule) if isinstance(schedule, str) else schedule
        self.no_replace_prob, self.random_token_prob = no_replace_prob, random_token_prob
        self.can_mask_prev_unmasked = bool(can_mask_prev_unmasked)
        self.self_cond, self.self_cond_train_prob = bool(self_cond), self_cond_train_prob
        if self_cond:  # A vector replaces the embeddings of the previous step at the first one.
            model: Any = net
            self.null_embed = nn.Parameter(torch.randn(model.dim))
            self.to_self_cond = nn.Linear(model.dim, model.emb_dim, bias=False)
        self.token_critic: Any = SelfCritic(net) if self_token_critic else token_critic
        self.critic_loss_weight = critic_loss_weight
        self.use_simple_mdlm_loss_weight = bool(use_simple_mdlm_loss_weight)
        self.cond_drop_prob, self.ceil_counts = cond_drop_prob, bool(ceil_counts)
        if cond_drop_prob > 0:  # A vector replaces a dropped context.
            stack = known_stack(net.attn_layers)
            if not stack.cross_attend:
                raise ConfigError('`cond_drop_prob` needs a net that reads a context: set `cross_attend`')
            self.null_text = nn.Parameter(torch.randn(1, stack.dim_context) * 0.02)

    def resize_own_tokens(self, old: int, new: int) -> None:
        self.num_tokens = new

    # training

    @checked
    def forward(
        self,
        x: Tensor,
        only_train_generator: bool = False,
        only_train_critic: bool = False,
        generator_sample_temperature: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> NonAutoregressiveLosses:
        """Return the losses of predicting masked tokens, and of detecting wrong predictions.

        x                             b n   ids other than `mask_id`, n being `max_seq_len`, if the net has one
        only_train_generator                train only the model, without the critic
        only_train_critic                   train only the critic, without gradient for the model
        generator_sample_temperature        temperature of the samples for the critic; sampled from U(0, 1) if None
        num_items_in_batch                  divide the sum of the losses of masked tokens by this number, so that
                                            batches add up; the mean over tokens of the critic counts by their share
        **kwargs                            passed to the model and to a critic on the model: `context`, ..., and `mask`
                                            (b n), True except for padding, which is neither masked nor a target
        returns                             `NonAutoregressiveLosses(loss, generator_loss, critic_loss)`
        raises                              ValueError or TypeError for inputs of another shape or kind
        """
        x = check_ids(x, num_tokens=self.num_tokens)
        if self.max_seq_len and x.shape[1] != self.max_seq_len:
            raise ValueError(f'`x` must have {self.max_seq_len} tokens, the `max_seq_len`, got {x.shape[1]}')
        if only_train_generator and only_train_critic:
            raise ValueError('`only_train_generator` and `only_train_critic` were both given, set only one')
        if only_train_critic and self.token_critic is None:
            raise ValueError('`only_train_critic` needs a critic: set `token_critic` or `self_token_critic`')
        refuse_own(kwargs, 'the loss', SET_BY_WRAPPER)
        token_mask = real_tokens(x, kwargs.get('mask'), start=kwargs.get('seq_start_pos'))
        self.check_data(x, token_mask)
        time = torch.rand(x.shape[0], dtype=torch.float32, device=x.device)
        hidden = hidden_part(self.schedule_fn(time), token_mask, tuple(x.shape), x.device)
        if self.training and self.cond_drop_prob > 0 and kwargs.get('context') is not None:
            gone = torch.rand(x.shape[0], dtype=torch.float32, device=x.device) < self.cond_drop_prob
            kwargs = self.without_context(kwargs, gone)
        shown, inputs = self.corrupted(x, hidden), dict(kwargs)
        if self.self_cond:
            inputs['sum_embeds'] = self.to_self_cond(self.first_guess(shown, kwargs))
        alone = self.token_critic is None or only_train_generator
        with torch.set_grad_enabled(torch.is_grad_enabled() and not only_train_critic), AuxLosses() as aux:
            logits = self.net(shown, **inputs, **(read_logits_later(self.net) if alone else {}))
        count, share = count_items(hidden, num_items_in_batch), share_of_items(hidden, num_items_in_batch)
        loss = weighted_token_loss(logits, x, self.loss_weights(time, hidden), Terms()) / count
        if alone:
            return NonAutoregressiveLosses(aux.added_to(loss, share), loss, None)

        temperature = draw_number() if generator_sample_temperature is None else generator_sample_temperature
        guessed = gumbel_sample(self.without_mask(logits.detach()), temperature)
        with AuxLosses() as of_critic:
            critic_loss = self.critic_loss(torch.where(hidden, guessed, x), x, token_mask, kwargs) * share
        if only_train_critic:
            return NonAutoregressiveLosses(of_critic.added_to(critic_loss, share), None, critic_loss)
        aux.take(of_critic)
        total = aux.added_to(loss + self.critic_loss_weight * critic_loss, share)
        return NonAutoregressiveLosses(total, loss, critic_loss)

    def check_data(self, x: Tensor, real: Tensor | None) -> None:
        """Raise if data has `mask_id` among its real tokens: the model would learn to predict it."""
        if not can_read_values(x):
            return
        found = (x == self.mask_id) if real is None else (x == self.mask_id) & real
        if bool(found.any()):
            row = int(found.any(dim=-1).nonzero()[0])
            raise ValueError(
                f'`x` must not hold `mask_id`, {self.mask_id}, except where `mask` is False, got it in row {row}: what '
                'is hidden is drawn'
            )

    def without_mask(self, logits: Tensor) -> Tensor:
        """Return logits (b, n, l) with -inf for `mask_id`, which is never an answer."""
        return mask_token(logits, self.mask_id)

    def corrupted(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Replace most of the hidden tokens of `x` by `mask_id`, and some at times by themselves or others."""
        masked, left = hidden, 1.0
        if self.no_replace_prob > 0 and draw_number() < 0.5:
            masked = masked & ~get_mask_subset_prob(hidden, self.no_replace_prob)
            left -= self.no_replace_prob
        if self.random_token_prob > 0 and draw_number() < 0.5:
            wrong = get_mask_subset_prob(masked, self.random_token_prob * left)
            drawn = torch.randint(0, max(self.num_tokens - 1, 1), x.shape, device=x.device)
            # any id but that of hidden tokens
            x, masked = torch.where(wrong, drawn + (drawn >= self.mask_id), x), masked & ~wrong
        return x.masked_fill(masked, self.mask_id)

    def first_guess(self, shown: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Return the embeddings that the net is conditioned on: its own, or at times none."""
        if draw_number() >= self.self_cond_train_prob:
            return self.null_embed.expand(*shown.shape, -1)
        with torch.no_grad():
            return self.net(shown, return_embeddings=True, **kwargs)

    def loss_weights(self, time: Tensor, hidden: Tensor) -> Tensor:
        """Return the loss weight of each token, from the times (b) and the hidden tokens (b, n)."""
        of_rows = self.loss_weight(time, hidden.shape[1]) if self.use_simple_mdlm_loss_weight else torch.ones_like(time)
        return of_rows.unsqueeze(-1) * hidden

    def loss_weight(self, time: Tensor, n: int) -> Tensor:
        """Return |gamma'| / gamma, positive, since gamma falls; at least one token of n is hidden."""
        with torch.enable_grad():
            time = time.detach().requires_grad_()
            gamma = self.schedule_fn(time)
            (slope,) = torch.autograd.grad(gamma.sum(), time)
        return slope.abs() / gamma.detach().clamp(min=1 / n)

    def critic_loss(self, filled: Tensor, x: Tensor, real: Tensor | None, kwargs: dict[str, Any]) -> Tensor:
        """Return how badly the critic tells which tokens are not those of the data."""
        wrong = filled != x
        filled = filled if real is None else filled.masked_fill(~real, self.mask_id)
        scores = to_float(self.criticised(filled, kwargs))
        losses = F.binary_cross_entropy_with_logits(scores, wrong.to(scores.dtype), reduction='none')
        return mean_or_zero(losses, real)

    def criticised(self, ids: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Return the critic's score (b n) of each token."""
        is_net = isinstance(self.token_critic, SelfCritic)
        return self.token_critic(ids, **(kwargs if is_net else {}))[..., 0]

    # generation

    @checked
    def generate(
        self,
        batch_size: int | None = None,
        start_temperature: float = 1.0,
        filter_thres: float | None = 0.7,
        noise_level_scale: float = 1.0,
        *,
        seq_len: int | None = None,
        generator: Generator | None = None,
        given: Tensor | None = None,
        order: str = 'confidence',
        anneal_temperature: bool = True,
        confidence_noise: float = 0.0,
        cond_scale: float = 1.0,
        cond_scale_grows: bool = False,
        negative_context: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Generate sequences over `steps` steps. Without gradients, in eval mode.

        batch_size               number of sequences; None for one sequence without a batch axis
        start_temperature 0 ..   temperature of the first step, which falls to 0
        filter_thres      [0, 1) fraction of the vocabulary that is excluded, the least probable; None for none
        noise_level_scale        noise on the scores of the critic, which falls to 0
        seq_len                  length; by default `max_seq_len` of the model
        generator                random number generator, on the device of the model
        given             b n    ids that are kept, `mask_id` where one is to be generated; all masked if None
        order                    'confidence': mask the least probable tokens again; 'random': mask random tokens, which
                                 samples exactly from the model if each step fills in one token at temperature 1
        anneal_temperature       decrease the temperature; otherwise all steps have that of the first
        confidence_noise  0 ..   log p + noise (1 - t) Gumbel instead of p, the confidence of MaskGIT
        cond_scale        0 ..   guidance: logits u + scale (c - u), u those without `context`; 1 for no guidance
        cond_scale_grows         increase scale - 1 from 0 at the first step to its full value at the last
        negative_context  b m d  compute u with this context instead of none
        **kwargs                 `logit_bias`, `banned_tokens` and `allowed_tokens`, as in
                                 `AutoregressiveWrapper.generate`; others are passed to the model: `context`, ...
        returns           [b] n  ids
        raises                   ValueError or TypeError for arguments out of range
        """
        start_temperature, cond_scale = as_number(start_temperature), as_number(cond_scale)
        filter_thres, confidence_noise = as_number(filter_thres), as_number(confidence_noise)
        own = {name: kwargs.pop(name) for name in MASKED_OPTIONS if name in kwargs}
        choice = TokenSampler(**own, vocabulary=self.num_tokens) if own else None
        check_draws(batch_size, start_temperature, filter_thres, noise_level_scale)
        refuse_own(kwargs, 'generate', SET_BY_WRAPPER)
        require(order in ORDERS, 'order', order, f'one of {", ".join(map(repr, ORDERS))}')
        require(check_in_range(confidence_noise, 0.0), 'confidence_noise', confidence_noise, 'a number of at least 0')
        require(check_in_range(cond_scale, 0.0), 'cond_scale', cond_scale, 'a number of at least 0')
        against = self.against(kwargs, cond_scale, negative_context)
        seq = self.opening(batch_size, seq_len, given)
        hidden = wanted = seq == self.mask_id
        failed = FailedRows()
        last, counts = None, self.hidden_counts(wanted.sum(dim=-1))
        with eval_modules(list(self.modules())):
            for step, to_hide in enumerate(counts, start=1):
                left = (self.steps - step) / self.steps
                scale = 1 + (cond_scale - 1) * ((1 - left) if cond_scale_grows else 1.0)
                logits, last = self.guess_guided(seq, last, kwargs, against, scale)
                logits = self.without_mask(logits)
                if choice is not None:
                    logits = choice.process_logits(logits, GenerationHistory(seq, 0))
                logits = logits if filter_thres is None else top_k(logits, filter_thres)
                heat = start_temperature * (left if anneal_temperature else 1.0)
                guessed, largest = gumbel_draw(logits, max(heat, 1e-3), generator=generator)
                failed.add(largest.mT, ignored=~hidden.mT)
                seq = torch.where(hidden, guessed, seq)
                if order == 'random':
                    scores = torch.rand(seq.shape, dtype=torch.float32, device=seq.device, generator=generator)
                elif self.token_critic is not None:
                    scores = to_float(self.criticised(seq, kwargs))
                    scores = scores + noise_level_scale * left * gumbel_noise(scores, generator)
                else:
                    scores = self.doubts(logits, guessed, confidence_noise * left, generator)
                may_change = wanted if self.can_mask_prev_unmasked else hidden
                hidden = select_highest(scores, may_change, to_hide)
                seq = seq.masked_fill(hidden, self.mask_id)
        failed.raise_first()
        return seq[0] if batch_size is None and given is None else seq

    def opening(self, batch_size: int | None, seq_len: int | None, given: Tensor | None) -> Tensor:
        """Return the tokens that generation starts from: hidden ones, and the given ones."""
        device = next(self.net.parameters()).device
        if given is not None:
            if batch_size is not None or seq_len is not None:
                raise ValueError('`batch_size` and `seq_len` cannot be combined with `given`, which has its own')
            seq = check_ids(given, 'given', least=1, num_tokens=self.num_tokens).to(device)
            n: Any = seq.shape[1]
            require(not self.max_seq_len or n <= self.max_seq_len, 'given', n, f'at most {self.max_seq_len} tokens')
            return seq
        n = self.max_seq_len if seq_len is None else seq_len
        most: Any = self.max_seq_len
        fits = is_int(n) and n >= 1 and not (most and n > most)
        allowed = f'an integer from 1 to {self.max_seq_len}' if self.max_seq_len else 'an integer of at least 1'
        require(fits, 'seq_len', seq_len, allowed)
        return torch.full((batch_size or 1, n), self.mask_id, device=device)

    def against(self, kwargs: dict[str, Any], scale: float, negative: Tensor | None) -> dict[str, Any] | None:
        """Return the keywords that guidance leads away from, or None without guidance."""
        context = kwargs.get('context')
        if scale == 1:
            if negative is not None:
                warn_once('`negative_context` has no effect with a `cond_scale` of 1')
            return None
        if context is None:
            raise ValueError(f'`cond_scale` got {scale}, which needs a `context` to be guided by')
        if negative is not None:
            return {**{name: value for name, value in kwargs.items() if name != 'context_mask'}, 'context': negative}
        if self.cond_drop_prob == 0:
            raise ValueError(is_unlearned(scale, 'context'))
        return self.without_context(kwargs, torch.ones(context.shape[0], dtype=torch.bool, device=context.device))

    def without_context(self, kwargs: dict[str, Any], gone: Tensor) -> dict[str, Any]:
        """Return the keywords with a null context for some sequences (b)."""
        context, mask = kwargs['context'], kwargs.get('context_mask')
        rows = gone.view(-1, 1, 1)
        new = {**kwargs, 'context': torch.where(rows, self.null_text.to(context.dtype), context)}
        return new if mask is None else {**new, 'context_mask': mask | gone.unsqueeze(-1)}

    @staticmethod
    def doubts(logits: Tensor, guessed: Tensor, noise: float, generator: Generator | None) -> Tensor:
        """Return how improbable the guessed tokens (b n) are; with noise, by the logarithm."""
        if noise == 0:
            return 1 - to_float(logits).softmax(dim=-1).gather(-1, guessed.unsqueeze(-1)).squeeze(-1)
        known = to_float(logits).log_softmax(dim=-1).gather(-1, guessed.unsqueeze(-1)).squeeze(-1)
        return -(known + noise * gumbel_noise(known, generator))

    def guess(self, seq: Tensor, last: Tensor | None, kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return logits and embeddings of a step, given the embeddings of the previous one."""
        inputs = dict(kwargs)
        if self.self_cond:
            last = self.null_embed.expand(*seq.shape, -1) if last is None else last
            inputs['sum_embeds'] = self.to_self_cond(last)
        return self.net(seq, return_logits_and_embeddings=True, **inputs)

    def guess_guided(
        self, seq: Tensor, last: Tensor | None, kwargs: dict[str, Any], against: dict[str, Any] | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of a step, guided away from those of `against`, and the unguided embeddings."""
        logits, embeds = self.guess(seq, last, kwargs)
        if against is not None:
            logits = guide_logits(logits, self.guess(seq, last, against)[0], scale)
        return logits, embeds

    def hidden_counts(self, n: Tensor) -> Tensor:
        """Return how many of the tokens of each row (b) are still hidden after each step, (steps, b); 0 at the end."""
        wide = promote_dtypes(n.device) if self.ceil_counts else torch.float32
        time = torch.linspace(0, 1, self.steps + 1, dtype=wide, device=n.device)[1:]
        counts = self.schedule_fn(time).unsqueeze(-1) * n
        counts = torch.minimum((counts.ceil() if self.ceil_counts else counts).long().clamp(min=0), n)
        counts[-1] = 0
        return counts


def select_highest(scores: Tensor, allowed: Tensor, count: Tensor) -> Tensor:
    """Return True for the `count` (b) highest scores (b, n) of each sequence, `allowed` (b, n) entries first."""
    scores = scores.masked_fill(~allowed, -torch.finfo(scores.dtype).max)
    rank = scores.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    return rank < count.unsqueeze(-1)


def top_k(logits: Tensor, thres: float = 0.9) -> Tensor:
    """Keep the largest logits, all but a part `thres` of them; the others become -inf."""
    return keep_largest(logits, 1 - thres)


def gumbel_sample(t: Tensor, temperature: float = 1.0, dim: int = -1, generator: Generator | None = None) -> Tensor:
    """Sample from `softmax(t / temperature)` along an axis; return the most probable entry at temperature 0."""
    return gumbel_draw(t, temperature, dim, generator)[0]


def gumbel_draw(
    t: Tensor, temperature: float = 1.0, dim: int = -1, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw as `gumbel_sample` does, and return with the entries what is finite unless the logits allow none."""
    logits = to_float(t)
    largest, entries = (logits / max(temperature, 1e-10) + gumbel_noise(logits, generator)).max(dim=dim)
    return entries, largest


ORDERS = ('confidence', 'random')
SET_BY_WRAPPER = {
    'sum_embeds': ': self-conditioning goes there',
    'prepend_embeds': ': the loss is that of all tokens',
    'cache': ': all tokens change in every step',
    'input_not_include_cache': ': all tokens change in every step',
}


def check_masked_net(net: Any, mask_id: int) -> None:
    """Raise if a model does not predict a token at every position, or `mask_id` is none, or its only one."""
    for name in ('num_tokens', 'emb_dim', 'dim', 'max_seq_len'):
        if not hasattr(net, name):
            raise ValueError(f'`net` got {type(net).__name__}, which has no `{name}`: it must be as TransformerWrapper')
    check_every_place(net)
    check_sees_both_sides(net)
    if mask_id >= net.num_tokens:
        raise ConfigError(f'`mask_id` must be less than `num_tokens`, {net.num_tokens}, got {mask_id}')
    if net.num_tokens < 2:
        raise ConfigError('`net` must have another token than `mask_id`, which is never an answer: it has one token')


def check_critic(token_critic: nn.Module | None, self_token_critic: bool, critic_loss_weight: float) -> None:
    """Raise if there are two critics, and warn about the weight of a critic that is not set."""
    if token_critic is not None and self_token_critic:
        raise ConfigError('`token_critic` and `self_token_critic` both make the critic, set only one')
    if token_critic is None and not self_token_critic and critic_loss_weight != 1.0:
        warn_once('`critic_loss_weight` has no effect unless `token_critic` or `self_token_critic` is set')


def check_draws(batch_size: Any, start_temperature: Any, filter_thres: Any, noise_level_scale: Any) -> None:
    """Raise if an argument of `generate` that says how tokens are drawn is out of range."""
    require(batch_size is None or (is_int(batch_size) and batch_size >= 1), 'batch_size', batch_size, 'at least 1')
    require(check_in_range(start_temperature, 0.0), 'start_temperature', start_temperature, 'a number of at least 0')
    kept = filter_thres is None or (check_in_range(filter_thres, 0.0, 1.0) and filter_thres < 1)
    require(kept, 'filter_thres', filter_thres, 'at least 0 and less than 1, or None')
    require(is_number(noise_level_scale), 'noise_level_scale', noise_level_scale, 'a number')

"""A language model with random latents in front, of which it learns from the best: several futures from one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
from einops import rearrange, repeat
from torch import Generator, Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper as AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, check_range, checked, mask_from_lengths, values_of
from x_transformers.core.modes import draw_index, draw_number
from x_transformers.core.nets import SET_BY_LOSS, check_net, refuse_own
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    a_callable,
    boolean,
    each,
    format_value,
    instance_of,
    integer,
    is_int,
    is_number,
    none,
    not_negative,
    size,
)
from x_transformers.generation.engine import eval_modules, get_rows
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import given_ids, padded_prompts, padded_rows, require, to_float
from x_transformers.training.items import count_items, share_of_items
from x_transformers.training.losses import (
    mask_before_padding,
    predictable,
    read_of,
    readable,
    real_tokens,
    tell_padding,
)
from x_transformers.training.token_loss import Readout, Terms, read_logits_later, single_losses

__all__ = ['XMLatentDecoder', 'lowest_loss_winner_fn']

chance = Check('a probability from 0 to 1', lambda value: is_number(value) and 0 <= value <= 1)

SET_HERE = {'prepend_embeds': ': the latents stand there', 'excise_prepend_embeds': ': the latents stand there'}


def lowest_loss_winner_fn(losses: Tensor, intermediates: Any = None) -> Tensor:
    """Return the candidate with the lowest loss:  b k -> b."""
    return losses.argmin(dim=-1)


def as_candidate(out: Tensor | Readout) -> Tensor | Readout:
    """Return logits without latents as those of one candidate:  b n l -> b 1 n l"""
    one = rearrange(out.hidden if isinstance(out, Readout) else out, 'b n d -> b 1 n d')
    return out.of(one) if isinstance(out, Readout) else one


def select_winners(t: Tensor, winners: Tensor) -> Tensor:
    """Select the entries of the best candidate of each sequence:  b k ..., b -> b ..."""
    return t[torch.arange(t.shape[0], device=t.device), winners]


def repulsion(logits: Any, valid: Tensor) -> Tensor:
    """Return how far candidates (b k n l) disagree: mean KL of each to their mean, in nats, at valid places (b n)."""
    log_probs = to_float(logits).log_softmax(dim=-1)
    probs = log_probs.exp()
    mean = probs.mean(dim=1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny).log()
    apart = (probs * (log_probs - mean)).sum(dim=-1).mean(dim=1)
    return (apart * valid).sum() / valid.sum().clamp(min=1)


class XMLatentDecoder(Configurable):
    """Prepend random latents, and train on the best of several samples of one of them:  ids (b, n) -> loss.

        loss = mean_b min_k CE(tokens | latents_k) - weight mean KL(p_k || mean_k p_k)

    The candidates of a sequence differ only in the active latent. `winner_fn` replaces the choice of the lowest loss.
    arXiv:2607.27372; arXiv:2401.00036
    """

    dim: Any
    latent_dim: Any
    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        num_latents: Annotated[int, 'number of latents prepended to the tokens', size] = 4,
        dim: Annotated[int | None, 'width of the embeddings of `net`', size | none] = None,
        latent_dim: Annotated[int | None, 'width of each latent, that of the embeddings if None', size | none] = None,
        candidates: Annotated[int, 'number of candidates sampled per sequence', size] = 2,
        max_batch_size: Annotated[int | None, 'maximum number of candidates per forward pass', size | none] = None,
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        latent_drop_prob: Annotated[float, 'fraction of batches trained without latents', chance] = 0.0,
        always_latent_proj: Annotated[bool, 'project latents even if they have the right width', boolean] = False,
        repulsive_loss_weight: Annotated[float, 'weight of the repulsive loss between candidates', not_negative] = 0.0,
        winner_fn: Annotated[
            Callable | Sequence[Callable],
            'function from (losses (b, k), intermediates) to the winners (b,); intermediates are a list if '
            'candidates run in several parts',
            a_callable | each(a_callable),
        ] = lowest_loss_winner_fn,
        winner_fns: Annotated[Sequence[Callable] | None, 'one for each latent', each(a_callable) | none] = None,
    ) -> None:
        super().__init__()
        check_net(net)
        if dim not in (None, net.emb_dim):
            raise ConfigError(f'`dim` got {dim}, the embeddings of `net` have width {net.emb_dim}')
        self.net, self.dim, self.latent_dim = net, net.emb_dim, latent_dim or net.emb_dim
        self.num_latents, self.candidates, self.max_batch_size = num_latents, candidates, max_batch_size
        self.ignore_index, self.latent_drop_prob = ignore_index, latent_drop_prob
        self.repulsive_loss_weight = repulsive_loss_weight
        self.winner_fns = self.one_each(winner_fn if winner_fns is None else winner_fns)
        project = always_latent_proj or self.latent_dim != self.dim
        self.latent_proj = nn.Linear(self.latent_dim, self.dim) if project else nn.Identity()

    @property
    def max_seq_len(self) -> int:
        return self.net.max_seq_len

    def one_each(self, rule: Callable | Sequence[Callable]) -> tuple[Callable, ...]:
        """Return a rule for each latent."""
        rules = (rule,) * self.num_latents if callable(rule) else tuple(rule)
        if not all(map(callable, rules)):
            raise TypeError(f'`winner_fn` must be a callable, or one for each latent, got {format_value(rules)}')
        if len(rules) != self.num_latents:
            raise ValueError(f'`winner_fns` must be {self.num_latents}, one per latent, got {len(rules)} functions')
        return rules

    # latents

    def init_latents(
        self,
        latents: Tensor | Sequence[Tensor | None] | None,
        batch: int,
        device: torch.device | None = None,
        generator: Generator | None = None,
    ) -> Tensor:
        """Return latents (b, m, d), those not given from a standard normal; (b, k, m, d) are kept.

        latents     (b m d), (m d), (b k m d), or a list of m of (b d), (d,) or None
        generator   random number generator, on the device of the model
        """
        like = next(self.net.parameters())
        wanted: Any = (batch, self.num_latents, self.latent_dim)
        new = torch.empty(wanted, device=device or like.device, dtype=like.dtype)
        if not torch.is_tensor(latents):
            new.normal_(generator=generator)
        if latents is None:
            return new
        if not torch.is_tensor(latents):
            listed = isinstance(latents, (list, tuple))
            if not listed or not all(one is None or torch.is_tensor(one) for one in latents):
                raise TypeError(f'`latents` must be a tensor or list of tensors and None, got {format_value(latents)}')
            if len(latents) != self.num_latents:
                raise ValueError(f'`latents` must have {self.num_latents} entries, or None each, got {len(latents)}')
            shapes = [(rows, self.latent_dim) for rows in (1, batch)] + [(self.latent_dim,)]
            for one in latents:
                if one is not None and tuple(one.shape) not in shapes:
                    raise ValueError(f'`latents` got a tensor of shape {tuple(one.shape)} in a list, each must be '
                                     f'{shapes[1]}, {shapes[2]} or None')  # fmt: skip
            parts = [new[:, at] if one is None else one.to(new).expand(new[:, at].shape)
                     for at, one in enumerate(latents)]  # fmt: skip
            return torch.stack(parts, dim=1)
        shape = tuple(latents.shape)
        if len(shape) == 4 and (shape[0], *shape[2:]) == wanted and shape[1] > 0:
            return latents.to(new)
        if shape not in (wanted, wanted[1:]):
            raise ValueError(
                f'`latents` must be {wanted}, {wanted[1:]}, or candidates '
                f'({batch}, k, {self.num_latents}, {self.latent_dim}), got shape {shape}'
            )
        return latents.to(new).expand(wanted)

    def slot(self, active: int | None, generator: Generator | None = None) -> int:
        """Return the index of the active latent, a random one if None."""
        if active is None:
            return draw_index(self.num_latents, generator)
        allowed = is_int(active) and 0 <= active < self.num_latents
        require(allowed, 'active_latent_index', active, f'an integer from 0 to {self.num_latents - 1}')
        return active

    def candidate_latents(
        self, latents: Any, batch: int, candidates: int | None, slot: int, generator: Generator | None = None
    ) -> Tensor:
        """Return candidates (b, k, m, d), which differ in the active latent."""
        count = self.candidates if candidates is None else candidates
        require(is_int(count) and count >= 1, 'candidates', count, 'an integer of at least 1')
        latents = self.init_latents(latents, batch, generator=generator)
        if latents.ndim == 4:
            return latents
        latents = repeat(latents, 'b m d -> b k m d', k=count).clone()
        latents[:, :, slot].normal_(generator=generator)
        return latents

    def read(
        self, ids: Tensor, latents: Tensor, most: int | None, keeps: bool, inputs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Return the logits (b, k, n, l) of all candidates, and the intermediates if `keeps`."""
        (b, k), rows = latents.shape[:2], torch.arange(ids.shape[0], device=ids.device)
        prefix = self.latent_proj(rearrange(latents, 'b k m d -> (b k) m d'))
        rows = rows.repeat_interleave(k)
        parts, aux = [], AuxLosses()
        for at in torch.arange(b * k, device=ids.device).split(most or max(b * k, 1)):
            own = get_rows(inputs, rows[at], b)
            options = dict(prepend_embeds=prefix[at], excise_prepend_embeds=True, return_intermediates=keeps)
            with AuxLosses() as of_part:
                parts.append(self.net(ids[rows[at]], **options, **own))
            aux.take(of_part, at.shape[0] / max(b * k, 1))
        aux.hand_on()
        traces = [trace for _, trace in parts] if keeps else [None]
        found = [out for out, _ in parts] if keeps else parts
        if isinstance(found[0], Readout):
            hidden = torch.cat([readout.hidden for readout in found])
            logits = found[0].of(rearrange(hidden, '(b k) n d -> b k n d', k=k))
        else:
            logits = rearrange(torch.cat(found), '(b k) n l -> b k n l', k=k)
        return logits, traces[0] if len(traces) == 1 else traces

    # the loss

    @checked
    def forward(
        self,
        seq: Tensor,
        latents: Tensor | Sequence[Tensor | None] | None = None,
        candidates: int | None = None,
        max_batch_size: int | None = None,
        latent_drop_prob: float | None = None,
        return_loss: bool = True,
        repulsive_loss_weight: float | None = None,
        mask: Tensor | None = None,
        winner_fn: Callable | Sequence[Callable] | None = None,
        winner_fns: Sequence[Callable] | None = None,
        active_latent_index: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of the best candidate of each row, or logits.

        seq                  b n   ids, n of at least 2 for a loss; `ignore_index` where there is no target
        latents                    see `init_latents`; the active one is drawn anew, but for candidates (b k m d)
        active_latent_index        which latent differs between candidates; any if None
        mask                 b n   True for real tokens; others are no targets, and nothing is predicted from them
        num_items_in_batch         divide the sum of the losses of targets by this number, so that batches add up; rows
                                   count by their targets then
        return_loss                False: `(logits (b k n l), latents (b k m d))`, of a dropped batch `(b 1 n l, None)`
        **kwargs                   passed to the model: `context`, ...; others override arguments of the constructor
        """
        seq = check_ids(seq, 'seq', 2 if return_loss else 1)
        refuse_own(kwargs, 'the loss', SET_BY_LOSS | SET_HERE)
        token_mask = real_tokens(seq, mask, start=kwargs.get('seq_start_pos'))
        seq = seq if token_mask is None else seq.masked_fill(~token_mask, self.ignore_index)
        chosen = winner_fn if winner_fns is None else winner_fns
        rules = self.winner_fns if chosen is None else self.one_each(chosen)
        inputs = seq[:, :-1] if return_loss else seq
        ids = readable(inputs, self.ignore_index)
        if mask is not None:
            kwargs['mask'] = read_of(mask) if return_loss else mask
        begun = lambda: mask_before_padding(seq, self.ignore_index)  # noqa: E731
        tell_padding(self.net, kwargs, lambda: read_of(begun()) if return_loss else begun())
        (size | none).require('max_batch_size', max_batch_size)
        (not_negative | none).require('repulsive_loss_weight', repulsive_loss_weight)
        (chance | none).require('latent_drop_prob', latent_drop_prob)
        weight = self.repulsive_loss_weight if repulsive_loss_weight is None else repulsive_loss_weight
        drop_prob = self.latent_drop_prob if latent_drop_prob is None else latent_drop_prob
        dropped = self.training and draw_number() < drop_prob
        slot = self.slot(active_latent_index)
        keeps = return_loss and rules[slot] is not lowest_loss_winner_fn and not dropped
        if return_loss and not keeps and (dropped or weight == 0):
            kwargs.update(read_logits_later(self.net))
        with AuxLosses(joins=not return_loss) as aux:
            if dropped:
                logits, latents, trace = as_candidate(self.net(ids, **kwargs)), None, None
            else:
                latents = self.candidate_latents(latents, seq.shape[0], candidates, slot)
                logits, trace = self.read(ids, latents, max_batch_size or self.max_batch_size, keeps, kwargs)
        if not return_loss:
            return logits, latents
        losses, valid = self.losses(logits, seq[:, 1:], None if token_mask is None else predictable(token_mask))
        winners = torch.zeros_like(losses[:, 0]).long() if dropped else self.winners(rules[slot], losses, trace)
        # a mean over rows that have targets; without candidates over targets, as everywhere
        of_rows = valid.any(dim=-1) if num_items_in_batch is None and not dropped else valid.sum(dim=-1)
        share = share_of_items(valid, num_items_in_batch)
        loss = (select_winners(losses, winners) * of_rows).sum() / count_items(of_rows, num_items_in_batch)
        if weight > 0 and not dropped:
            loss = loss - weight * repulsion(logits, valid) * share
        return aux.added_to(loss, share)

    def losses(self, logits: Any, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the mean cross entropy of each candidate (b k), and which targets count (b n)."""
        valid = targets != self.ignore_index
        valid = valid if mask is None else valid & mask
        terms = Terms(self.ignore_index, is_log_prob=bool(getattr(self.net, 'output_is_log_prob', False)))
        wanted = repeat(targets.masked_fill(~valid, self.ignore_index), 'b n -> b k n', k=logits.shape[1])
        return single_losses(logits, wanted, terms).sum(dim=-1) / valid.sum(dim=-1, keepdim=True).clamp(min=1), valid

    @staticmethod
    def winners(rule: Callable, *told: Any) -> Tensor:
        """Return the index of the best candidate of each sequence (b), by a rule."""
        batch, count = told[0].shape[:2]
        winners = rule(*told)
        if not torch.is_tensor(winners) or winners.shape != (batch,) or winners.is_floating_point():
            raise ValueError(f'`winner_fn` must give ({batch},) candidates below {count}, got {format_value(winners)}')
        check_range(winners, 'winner_fn', 0, count - 1, 'candidates')
        return winners.long()

    # generation

    @checked
    def generate(
        self,
        start_tokens: Prompts,
        seq_len: int,
        latents: Tensor | Sequence[Tensor | None] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue the prompts ([b] n) by `seq_len` tokens, given latents, of which those that are not given are drawn.

        Keywords are those of `AutoregressiveWrapper.generate`.
        """
        net, prompts = self.read_latents(start_tokens, latents, kwargs)
        return net.generate(prompts, seq_len, **kwargs)

    @checked
    def stream(self, start_tokens: Prompts, seq_len: int, latents: Any = None, **kwargs: Any) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same arguments, one step at a time."""
        net, prompts = self.read_latents(start_tokens, latents, kwargs)
        return net.stream(prompts, seq_len, **kwargs)

    @checked
    def beam_search(
        self, start_tokens: Prompts, seq_len: int, beams: int = 4, latents: Any = None, **kwargs: Any
    ) -> Any:
        """Continue the prompts with beam search, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        net, prompts = self.read_latents(start_tokens, latents, kwargs)
        return net.beam_search(prompts, seq_len, beams, **kwargs)

    def read_latents(self, prompts: Any, latents: Any, kwargs: dict[str, Any]) -> tuple[AutoregressiveWrapper, Any]:
        """Return what generates, and the prompts as a tensor or a list of tensors. The latents join `kwargs`."""
        prompts = given_ids(prompts, 'start_tokens', next(self.net.parameters()).device)
        rows = prompts if isinstance(prompts, list) else [torch.atleast_2d(prompts)]
        for ids in rows:
            check_ids(torch.atleast_2d(ids), 'start_tokens', 1)
        refuse_own(kwargs, 'generate', SET_HERE)
        batch = len(prompts) if isinstance(prompts, list) else prompts.shape[:-1].numel()
        with eval_modules(list(self.modules())):
            latents = self.init_latents(latents, batch, generator=kwargs.get('generator'))
            if latents.ndim != 3:
                raise ValueError('`latents` got candidates, see `generate_with_candidate_latents`')
            kwargs |= dict(prepend_embeds=self.latent_proj(latents), excise_prepend_embeds=True)
        return AutoregressiveWrapper(self.net, ignore_index=self.ignore_index), prompts

    @checked
    def generate_with_candidate_latents(
        self,
        start_tokens: Prompts,
        seq_len: int,
        winner_fn: Callable | Sequence[Callable] | None = None,
        winner_fns: Sequence[Callable] | None = None,
        candidates: int | None = None,
        latents: Tensor | Sequence[Tensor | None] | None = None,
        active_latent_index: int | None = None,
        return_best_latents: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Continue the prompts (b n), each given the best of its candidates for the active latent.

        winner_fn             logits of the prompts (b k n l) -> the winners b, one for all latents or one for each;
                              if None, the constructor's rule chooses by the loss of the prompts
        return_best_latents   return `(tokens, (candidates (b k m d), winners (b)))`
        """
        start_tokens, token_mask = padded_rows(start_tokens, 'start_tokens', 0, next(self.net.parameters()).device)
        kwargs |= {} if token_mask is None else {'prompt_lens': token_mask.sum(dim=-1)}
        start_tokens = check_ids(start_tokens, 'start_tokens', 1)
        generator = kwargs.get('generator')
        chosen, slot = winner_fn if winner_fns is None else winner_fns, self.slot(active_latent_index, generator)
        rules = self.winner_fns if chosen is None else self.one_each(chosen)
        with eval_modules(list(self.modules())):
            latents = self.candidate_latents(latents, start_tokens.shape[0], candidates, slot, generator)
            mask, lens = kwargs.get('mask'), kwargs.get('prompt_lens')
            if lens is not None:
                padded_prompts(start_tokens, lens, 0)
                lens = values_of(lens, 'prompt_lens').to(start_tokens.device).flatten()
                mask = mask_from_lengths(lens, start_tokens.shape[1])
            inputs = {} if mask is None else {'mask': mask}
            inputs |= {name: kwargs[name] for name in ('context', 'context_mask') if name in kwargs}
            logits, trace = self.read(start_tokens, latents, self.max_batch_size, chosen is None, inputs)
            told = (logits,)
            if chosen is None:
                real = None if mask is None else mask[:, 1:]
                told = self.losses(logits[:, :, :-1], start_tokens[:, 1:].long(), real)[0], trace
            winners = self.winners(rules[slot], *told)
        tokens = self.generate(start_tokens, seq_len, latents=select_winners(latents, winners), **kwargs)
        return (tokens, (latents, winners)) if return_best_latents else tokens

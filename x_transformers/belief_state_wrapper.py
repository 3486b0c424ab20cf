"""Models that read a text from both of its ends, and learn to continue it from either one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from einops.layers.torch import Rearrange
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_number, check_ids, check_lengths, checked, mask_from_lengths
from x_transformers.core.modes import draw_number, to_float
from x_transformers.core.nets import HEADLESS
from x_transformers.core.own_modules import known_stack
from x_transformers.core.recompute import identity
from x_transformers.features.resizing import replace_values
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    boolean,
    instance_of,
    is_int,
    is_number,
    none,
    number,
    probability,
    size,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import Decoding, IncrementalModel, eval_modules
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import even_prompts, get_ids, min_p as min_p, require
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import mean_or_zero, tell_padding
from x_transformers.training.token_loss import (
    Linear,
    Readout,
    Terms,
    cross_entropies,
    reads_whole,
    share_weight,
    split_head,
    sum_by_chunks,
)
from x_transformers.x_transformers import TransformerWrapper as TransformerWrapper

__all__ = ['BeliefStateWrapper']

a_part = Check('a number above 0, at most 1', lambda value: is_number(value) and 0 < value <= 1)


def check_decoder(net: TransformerWrapper, name: str) -> None:
    """Raise if a decoder is not causal, or does not return an embedding per token."""
    if not known_stack(net.attn_layers).causal:
        raise ConfigError(f'`{name}` must be causal: its stack is {type(net.attn_layers).__name__}, use Decoder')
    switched_on = {next(iter(feature.flags)) for feature in net.features.active if feature.flags}
    for flag, reason in HEADLESS.items():
        if flag in switched_on:
            raise ConfigError(f'`{name}` must give an embedding for every place, but {reason} (`{flag}` is set)')


def flip(x: Tensor, dim: int = 1, lens: Tensor | None = None) -> Tensor:
    """Reverse an axis; with `lens`, only the first `lens` entries of each sequence."""
    if lens is None:
        return x.flip(dim)
    t = x.movedim(dim, 1)
    place, last = torch.arange(t.shape[1], device=t.device), rearrange(lens - 1, 'b -> b 1')
    source = torch.where(place <= last, last - place, place)
    rows = rearrange(torch.arange(t.shape[0], device=t.device), 'b -> b 1')
    return t[rows, source].movedim(1, dim)


class BeliefStateWrapper(Configurable):
    """Predict the token after a prefix and the token before a suffix, for all pairs of both:  ids (b, n) -> loss.

        head([F_f ; B_k]) -> next token of the prefix 0..f, and token before the suffix k..n        0 <= f <= k - 2

    F are embeddings of the tokens read forwards, B of the tokens read backwards after a learned start token. Both
    directions use the same decoder, unless another one is passed.  Hu et al. 2024, arXiv:2410.23506
    """

    def __init__(
        self,
        forward_decoder: Annotated[TransformerWrapper, 'causal model of the prefix', instance_of(TransformerWrapper)],
        backward_decoder: Annotated[
            TransformerWrapper | None,
            'causal model of the suffix, read backwards; the same model if None',
            instance_of(TransformerWrapper) | none
        ] = None,
        train_frac_forward_backward_pairs: Annotated[float, 'fraction of prefix/suffix pairs to sample', a_part] = 1.0,
        text_head: Annotated[
            nn.Module | None, 'head from both embeddings (..., 2 d) to the logits of both directions (..., 2 l)',
            instance_of(nn.Module) | none,
        ] = None,
        backward_ar_loss_weight: Annotated[float, 'weight of the loss of the backward direction', number] = 1.0,
        pred_distance: Annotated[bool, 'also predict the distance to the suffix', boolean] = False,
        pred_distance_loss_weight: Annotated[float, 'weight of the loss of this prediction', number] = 1.0,
        cond_on_distance: Annotated[bool, 'at random, condition the head on this distance', boolean] = False,
        cond_on_distance_prob: Annotated[float, 'probability of this conditioning in training', probability] = 0.5,
        max_pred_distance: Annotated[
            int | None, 'maximum distance, to which larger ones are clamped; `max_seq_len` if None', size | none
        ] = None,
    ) -> None:  # fmt: skip
        super().__init__()
        backward_decoder = forward_decoder if backward_decoder is None else backward_decoder
        check_decoder(forward_decoder, 'forward_decoder')
        check_decoder(backward_decoder, 'backward_decoder')
        for name in ('num_tokens', 'dim'):
            one, other = getattr(forward_decoder, name), getattr(backward_decoder, name)
            if one != other:
                raise ConfigError(f'`backward_decoder` has `{name}` {other}, that of `forward_decoder` is {one}')
        dim, self.num_tokens = forward_decoder.dim, forward_decoder.num_tokens
        self.suffix_token = nn.Parameter(torch.randn(backward_decoder.emb_dim) * 0.02)
        self.register_buffer('loss_weights', torch.tensor([1.0, backward_ar_loss_weight], dtype=torch.float32))
        self.text_head = self.head(dim, 2 * self.num_tokens) if text_head is None else text_head
        self.max_pred_distance = max_pred_distance or forward_decoder.max_seq_len
        if pred_distance and not self.max_pred_distance:
            raise ConfigError('`max_pred_distance` is missing: the decoder has no `max_seq_len`')
        self.pred_distance_loss_weight, self.cond_on_distance_prob = pred_distance_loss_weight, cond_on_distance_prob
        self.to_distance_logits = self.head(dim, self.max_pred_distance) if pred_distance else None
        self.to_distance_cond: Any = (
            nn.Sequential(Rearrange('... -> ... 1'), nn.Linear(1, dim), nn.LeakyReLU(), nn.Linear(dim, 2 * dim))
            if cond_on_distance
            else None
        )
        self.train_frac_forward_backward_pairs = train_frac_forward_backward_pairs
        self.forward_decoder, self.backward_decoder = forward_decoder, backward_decoder
        self.max_seq_len = forward_decoder.max_seq_len

    def resize_own_tokens(self, old: int, new: int) -> None:
        """Resize the halves of the head, one for each direction."""
        last: Any = self.text_head[-1] if isinstance(self.text_head, nn.Sequential) else self.text_head
        if self.num_tokens == new:  # one of two decoders was first
            return
        if type(last) is not nn.Linear or last.out_features != 2 * old:
            raise ConfigError('`resize_token_embeddings` needs a `text_head` that ends in nn.Linear of both directions')
        fresh, kept = nn.Linear(last.in_features, 2 * new, bias=last.bias is not None), min(old, new)
        for (name, ours), values in zip(last.named_parameters(), fresh.parameters(), strict=True):
            halves = values.detach().to(ours.data).view(2, new, *ours.shape[1:]).clone()
            halves[:, :kept] = ours.data.view(2, old, *ours.shape[1:])[:, :kept]
            replace_values(last, name, halves.flatten(0, 1))
        last.out_features, self.num_tokens = 2 * new, new

    @staticmethod
    def head(dim: int, dim_out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(2 * dim, dim), nn.LeakyReLU(), nn.Linear(dim, dim_out))

    # training

    @checked
    def forward(
        self,
        seq: Tensor,
        lens: Tensor | None = None,
        loss_weight_by_fb_indices: Callable[[Tensor], Tensor] | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the mean loss over rows, pairs of prefix and suffix, and both directions, in nats.

        seq                        b n   ids, n of at least 2
        lens                       b     number of tokens of each sequence; later ones are padding
        loss_weight_by_fb_indices        from pairs (p, 2) to weights (p,) or, of both directions, (p, 2)
        num_items_in_batch               divide the sum of the losses of pairs by this number, so that batches add up
        returns                          scalar; 0 if no row has a pair
        """
        beyond = self.beyond(seq, lens)
        seq = seq.masked_fill(beyond, 0)
        seq = check_ids(seq, 'seq', num_tokens=self.num_tokens)
        b, n = seq.shape
        if n < 2:
            raise ValueError(f'`seq` must have shape (b, n) with n of at least 2, got {tuple(seq.shape)}')
        with AuxLosses() as aux:
            forwards = self.read_forwards(seq, ~beyond)
            backwards = self.read_backwards(flip(seq, lens=lens), real=~beyond)
        backwards = flip(backwards, lens=None if lens is None else lens + 1)
        pairs = self.pairs(n, seq.device)
        front, behind = pairs.unbind(dim=-1)
        token_mask = None if lens is None else behind <= lens.unsqueeze(-1)
        belief = torch.cat((forwards[:, front], backwards[:, behind]), dim=-1)
        distance = behind - front
        told = self.to_distance_cond is not None and self.training and draw_number() < self.cond_on_distance_prob
        if told:
            gate: Any = self.to_distance_cond
            belief = belief * gate(distance.to(belief.dtype)).sigmoid()

        targets = torch.stack((seq[:, front + 1], seq[:, behind - 1]), dim=-1)
        weights = self.loss_weights
        if loss_weight_by_fb_indices is not None:
            weights = weights * self.pair_weights(loss_weight_by_fb_indices, pairs)
        share: Any = 1
        if num_items_in_batch is not None:
            share = share_of_items(targets[..., 0] >= 0 if token_mask is None else token_mask, num_items_in_batch)
        loss = aux.added_to(self.text_loss(belief, targets, weights.expand(pairs.shape[0], 2), token_mask)) * share
        if self.to_distance_logits is None or told:
            return loss
        distance = distance.clamp(max=self.max_pred_distance - 1).expand(b, -1)
        far = self.losses(self.to_distance_logits(belief), distance)
        return loss + self.pred_distance_loss_weight * mean_or_zero(far, token_mask) * share

    @staticmethod
    def beyond(seq: Any, lens: Tensor | None) -> Tensor:
        """Return which places (b n) are behind the end of their row."""
        if not torch.is_tensor(seq) or seq.ndim != 2:
            raise ValueError(f'`seq` must be token ids (b, n), got {seq!r}')
        if lens is None:
            return seq.new_zeros((), dtype=torch.bool)
        check_lengths(lens, 'lens', *seq.shape)
        return ~mask_from_lengths(lens, seq.shape[1])

    def read_forwards(self, seq: Tensor, real: Tensor | None = None) -> Tensor:
        return self.forward_decoder(seq, return_embeddings=True, **self.told(self.forward_decoder, real))

    def read_backwards(self, seq: Tensor | None, batch: int = 0, real: Tensor | None = None) -> Tensor:
        """Return embeddings (b, n + 1, d) of the suffix token and of `seq`, which is in reverse order."""
        first = self.suffix_token.expand(batch if seq is None else seq.shape[0], 1, -1)
        told = self.told(self.backward_decoder, real)
        return self.backward_decoder(seq, prepend_embeds=first, return_embeddings=True, **told)

    @staticmethod
    def told(decoder: nn.Module, real: Tensor | None) -> dict[str, Any]:
        """Return the mask that a decoder needs of which tokens are real, (b, n), if any."""
        inputs: dict[str, Any] = {}
        if real is not None and real.ndim:
            tell_padding(decoder, inputs, lambda: real)
        return inputs

    def pairs(self, n: int, device: torch.device) -> Tensor:
        """Return the last token of each prefix, and the first of each suffix (n if it is empty), (p, 2)."""
        pairs = torch.cartesian_prod(torch.arange(n, device=device), torch.arange(1, n + 1, device=device))
        pairs = pairs[pairs[:, 1] - pairs[:, 0] >= 2]
        if self.train_frac_forward_backward_pairs >= 1:
            return pairs
        kept = max(int(pairs.shape[0] * self.train_frac_forward_backward_pairs), 1)
        return pairs[torch.randperm(pairs.shape[0], device=device)[:kept]]

    def text_loss(self, belief: Tensor, targets: Tensor, weights: Tensor, real: Tensor | None) -> Tensor:
        """Return the mean over pairs and directions, from beliefs (b p 2d), targets (b p 2) and weights (p 2)."""
        count = max(targets[..., 0].numel(), 1) if real is None else real.sum().clamp(min=1)
        weights = weights.expand(targets.shape) if real is None else weights * rearrange(real, 'b p -> b p 1')
        split = split_head(self.text_head)
        if split is not None and len(split.linears) == 1:
            for module in split.before:
                belief = module(belief)
            (linear,) = split.linears
            parts = [(None, None) if t is None else t.chunk(2) for t in linear[:2]]
            halves = [Linear(*part, scale=linear.scale) for part in zip(*parts, strict=True)]
            losses = [Readout.linear(belief, (half,)).loss(targets[..., at], weights[..., at], Terms())
                      for at, half in enumerate(halves)]  # fmt: skip
            mean: Any = sum(losses) / (2 * count)
            return mean

        def of(now: Any, belief: Tensor, targets: Tensor) -> tuple[Tensor]:
            logits = rearrange(now(self.text_head)(belief[None]), '1 p (two l) -> 1 p two l', two=2)
            return (cross_entropies(logits, targets[None], Terms())[0],)

        flat = rearrange(belief, 'b p d -> (b p) d'), rearrange(targets, 'b p two -> (b p) two')
        if reads_whole(self.text_head):
            (losses,) = of(identity, *flat)
        else:
            (losses,) = sum_by_chunks(of, flat, 2 * self.num_tokens, (self.text_head,))
        return share_weight(losses.view(targets.shape), weights) / (2 * count)

    @staticmethod
    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        flat = rearrange(logits, 'b p l -> (b p) l'), rearrange(targets, 'b p -> (b p)')
        return to_float(F.cross_entropy(*flat, reduction='none').view(targets.shape))

    @staticmethod
    def pair_weights(function: Callable[[Tensor], Tensor], pairs: Tensor) -> Tensor:
        weights = function(pairs)
        count = pairs.shape[0]
        if not torch.is_tensor(weights) or weights.shape not in ((count,), (count, 2)):
            got = tuple(weights.shape) if torch.is_tensor(weights) else weights
            raise ValueError(f'`loss_weight_by_fb_indices` gave {got}, it must be a tensor ({count},) or ({count}, 2)')
        return weights if weights.ndim == 2 else rearrange(weights, 'p -> p 1')

    # generation

    @checked
    def generate_with_suffix_cond(
        self,
        prompts: Prompts,
        seq_len: int,
        temperature: float = 1.25,
        cache_kv: bool = True,
        suffix: Prompts = None,
        filter_logits_fn: Any = min_p,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        decode_backwards: bool = False,
        *,
        prefix: Prompts = None,
        eos_token: int | Sequence[int] | None = None,
        generator: Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """Continue the prompts towards a suffix, or backwards from a prefix. Without gradients, in eval mode.

        prompts           ... n   ids with any leading axes; of the end of the text, if decoding backwards
        seq_len                   number of tokens to generate; fewer if all sequences end before
        temperature       0 ..    0 selects the most probable token
        cache_kv                  use the cache, if the decoder can
        suffix            [b] m   ids of how the text ends, the same for all rows or for each; none if None
        filter_logits_fn          filter of `generation/sampling.py` by name, a callable, or several
        filter_kwargs             its keywords, or a dict for each of several; `min_p=0.1` by default
        decode_backwards          the tokens before the prompts, the last one first
        prefix            [b] m   ids of how the text begins, if decoding backwards; one drawn token if None
        eos_token                 id that ends a row, or several: it is kept, zeros follow
        generator                 random number generator, on the device of the model
        options                   the other options of `AutoregressiveWrapper.generate` that choose a token or end a
                                  row; sequences of tokens are in the order in which they are generated
        returns           ... s   the new tokens only
        """
        seq_len = as_number(seq_len)
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        if decode_backwards and suffix is not None:
            raise ValueError(
                '`suffix` cannot be combined with `decode_backwards`: the prompts end the text, give `prefix`'
            )
        if prefix is not None and not decode_backwards:
            raise ValueError('`prefix` needs `decode_backwards`: else the prompts begin the text')
        device = next(self.parameters()).device
        ids, leading = even_prompts(prompts, 'prompts', 0, device)
        ends: Any = get_ids(suffix, 'suffix', device)
        begins: Any = get_ids(prefix, 'prefix', device)
        own: Any = dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        own |= dict(generator=generator, eos_token=eos_token, **options)
        choice = TokenSampler.from_all(own, '`generate_with_suffix_cond`', vocabulary=self.num_tokens)
        modules = list(self.modules())
        with eval_modules(modules):
            goal = self.beginning(begins, ids, generator) if decode_backwards else self.ending(ends, ids)
            reader = Believer(self, goal, decode_backwards, cache_kv)
            ids = ids.flip(1) if decode_backwards else ids
            decoding = Decoding.from_prompts(reader, choice, modules, ids, leading, seq_len)
            decoding.finish()
        return decoding.generated(decoding.ids[:, decoding.start :])

    def ending(self, suffix: Tensor | None, ids: Tensor) -> Tensor:
        """Return the belief (b, d) about how the text ends."""
        suffix = None if suffix is None else rows_of_ids(suffix, 'suffix', ids.shape[0], self.num_tokens).flip(1)
        return self.read_backwards(suffix, ids.shape[0])[:, -1]

    def beginning(self, prefix: Tensor | None, ids: Tensor, generator: Generator | None) -> Tensor:
        """Return the belief (b, d) about how the text begins."""
        if prefix is None:
            prefix = torch.randint(self.num_tokens, (ids.shape[0], 1), generator=generator, device=ids.device)
        return self.read_forwards(rows_of_ids(prefix, 'prefix', ids.shape[0], self.num_tokens))[:, -1]


def rows_of_ids(ids: Any, name: str, batch: int, num_tokens: int) -> Tensor:
    """Expand ids (m,), (1, m) or (b, m) to the batch size."""
    ids = ids[None] if torch.is_tensor(ids) and ids.ndim == 1 else ids
    ids = check_ids(ids, name, num_tokens=num_tokens)
    if ids.shape[0] not in (1, batch):
        raise ValueError(f'`{name}` must have {batch} rows, or be the same for all, got {ids.shape[0]}')
    return ids.expand(batch, -1)


@dataclass
class Believer:
    """Reads a growing text in one direction, given a belief (b d) about its other end."""

    wrapper: BeliefStateWrapper
    goal: Tensor
    backwards: bool
    cache_kv: bool

    def __post_init__(self) -> None:
        inputs: dict[str, Any] = dict(return_embeddings=True)
        if self.backwards:
            inputs['prepend_embeds'] = self.wrapper.suffix_token.expand(self.goal.shape[0], 1, -1)
        net = self.wrapper.backward_decoder if self.backwards else self.wrapper.forward_decoder
        self.reader = IncrementalModel(net, inputs, cache_kv=self.cache_kv)
        self.inputs: dict[str, Any] = {}  # No input says which tokens of the prompts are real.

    def read(self, sequence: Tensor, pads: None = None) -> Tensor:
        """Return the logits (b l) of the token that follows, or comes before."""
        both = (self.reader.read(sequence), self.goal)
        belief = torch.cat(both[::-1] if self.backwards else both, dim=-1)
        ahead, before = self.wrapper.text_head(belief).chunk(2, dim=-1)
        return before if self.backwards else ahead

"""A language model that decides what to write before it writes: binary latents in the middle of the stack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_number, check_ids, check_range, checked, values_of
from x_transformers.core.modes import to_float
from x_transformers.features.resizing import grow
from x_transformers.flags import (
    Check,
    Configurable,
    boolean,
    count,
    format_value,
    integer,
    is_int,
    mapping,
    none,
    number,
    probability,
    size,
    warn_once,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import Decoding, eval_modules
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import even_prompts, filter_with, require, top_p as top_p
from x_transformers.keywords import FreeTransformerKeywords, Unpack
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import mean_or_zero, read_of
from x_transformers.training.token_loss import Readout, next_token_loss
from x_transformers.x_transformers import AttentionLayers, Decoder as Decoder, Encoder as Encoder

__all__ = ['BinaryMapper', 'FreeTransformer']

few_bits = Check('an integer from 1 to 24', lambda value: is_int(value) and 1 <= value <= 24)


class BinaryMapper(Configurable):
    """Sample a binary code, as a one-hot vector with a gradient:  logits (..., bits) -> (..., 2^bits).

        code = sum_j bit_j 2^j,  bit_j = 1 with probability s(logit_j)
        gradient of the vector: that of the probabilities of all codes
        loss = mean relu(bits ln 2 - entropy - threshold)        in nats; information up to the threshold is free

    Fleuret 2025, arXiv:2510.17558
    """

    def __init__(
        self,
        bits: Annotated[int, 'number of bits per code', few_bits] = 1,
        kl_loss_threshold: Annotated[float, 'KL divergence per code, in nats, without penalty', number] = math.log(2),
    ) -> None:
        super().__init__()
        self.bits, self.num_codes, self.kl_loss_threshold = bits, 2**bits, kl_loss_threshold

    @checked
    def forward(
        self,
        logits: Tensor,
        temperature: float = 1.0,
        straight_through: bool | None = None,
        calc_aux_loss: bool | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sampled codes and their loss; gradients and the loss by default in training only.

        mask   ...   True for the codes whose loss counts
        """
        if logits.shape[-1] != self.bits:
            raise ValueError(f'`logits` got shape {tuple(logits.shape)}, the last axis must be {self.bits} bits')
        chances = (logits / temperature).sigmoid()
        drawn = (torch.rand_like(logits) <= chances).long()
        powers = 2 ** torch.arange(self.bits, device=logits.device)
        one_hot = F.one_hot((drawn * powers).sum(dim=-1), self.num_codes).to(logits.dtype)
        wanted = self.training if calc_aux_loss is None else calc_aux_loss
        loss = self.loss(logits, mask) if wanted else to_float(logits).new_zeros(())
        if not (self.training if straight_through is None else straight_through):
            return one_hot, loss
        # log p(code) = sum_j log s(-logit_j) + sum of logit_j over the bits that are set
        codes = torch.arange(self.num_codes, device=logits.device) // rearrange(powers, 'bits -> bits 1') % 2
        exact = to_float(logits)
        log_probs = F.logsigmoid(-exact).sum(dim=-1, keepdim=True) + exact @ codes.to(exact.dtype)
        soft = log_probs.exp().to(logits.dtype)
        return one_hot + (soft - soft.detach()), loss

    def loss(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = to_float(logits)
        entropy = F.softplus(logits) - logits * logits.sigmoid()
        told = (self.bits * math.log(2) - entropy.sum(dim=-1) - self.kl_loss_threshold).relu()
        return mean_or_zero(told, mask)


class FreeTransformer(Configurable):
    """A decoder whose upper half is conditioned on latents that are sampled by an encoder:  ids (b, n) -> loss.

        h = head(tokens);  z = draw(encoder(query, h));  logits = tail(h, keys and values of its first layer + W z)

    The encoder attends to the whole text, with one query per position or one learned query for all; a loss bounds the
    information in its codes. A code has `latent_bits` bits, and its one-hot vector 2^bits entries: 65536 for 16 bits.
    arXiv:2510.17558
    """

    def __init__(
        self,
        *,
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        dim: Annotated[int, 'width of all stacks', size],
        dec_head_depth: Annotated[int, 'number of decoder blocks before the latents, possibly 0', count],
        dec_tail_depth: Annotated[int, 'number of decoder blocks after the latents', size],
        max_seq_len: Annotated[int | None, 'accepted without effect: positions are rotary', integer | none] = None,
        enc_depth: Annotated[int, 'number of blocks of the encoder', size] = 1,
        dim_latent: Annotated[int | None, 'accepted without effect: codes are one-hot', size | none] = None,
        attn_dim_head: Annotated[int, 'width of each attention head', size] = 64,
        heads: Annotated[int, 'number of attention heads of all stacks', size] = 8,
        latent_bits: Annotated[int, 'number of bits per code', few_bits] = 16,
        per_token_latents: Annotated[bool, 'use one code per token, otherwise one per sequence', boolean] = True,
        kl_loss_threshold: Annotated[float, 'KL divergence per code, in nats, without penalty', number] = math.log(2),
        binary_mapper_kwargs: Annotated[dict | None, 'additional arguments of `BinaryMapper`', mapping | none] = None,
        enc_kwargs: Annotated[dict | None, 'additional arguments of the encoder', mapping | none] = None,
        dec_kwargs: Annotated[dict | None, 'additional arguments of the decoders', mapping | none] = None,
        kl_loss_weight: Annotated[float, 'weight of the KL loss of the codes', number] = 1.0,
        latent_dropout_prob: Annotated[float, 'dropout probability of the codes', probability] = 0.0,
        pad_id: Annotated[int, 'id of the padding token, which is ignored by the loss', integer] = -1,
        **kwargs: Unpack[FreeTransformerKeywords],
    ) -> None:
        super().__init__()
        if dim_latent is not None:
            warn_once('`dim_latent` has no effect: codes are one-hot vectors of 2 ** `latent_bits` entries')
        shared = dict(dim=dim, attn_dim_head=attn_dim_head, heads=heads, use_rmsnorm=True, rotary_pos_emb=True)
        enc_kwargs, dec_kwargs = shared | kwargs | (enc_kwargs or {}), shared | kwargs | (dec_kwargs or {})
        self.num_tokens, self.pad_id, self.per_token_latents = num_tokens, pad_id, per_token_latents
        self.query_token_for_latents = nn.Parameter(torch.randn(dim) * 0.01)
        self.token_emb = nn.Embedding(num_tokens, dim)
        self.token_unembed = nn.Linear(dim, num_tokens, bias=False)
        self.encoder = Encoder(depth=enc_depth, cross_attend=True, only_cross=True, **enc_kwargs)
        self.to_latent_bit_logits = nn.Linear(dim, latent_bits, bias=False)
        self.binary_mapper = BinaryMapper(latent_bits, kl_loss_threshold, **(binary_mapper_kwargs or {}))
        self.from_latent_to_condition = nn.Linear(self.binary_mapper.num_codes, dim, bias=False)
        self.latent_dropout = nn.Dropout(latent_dropout_prob)
        head: dict[str, Any] = dict(depth=dec_head_depth, pre_norm_has_final_norm=False)
        self.decoder_head = Decoder(**{**head, **dec_kwargs}) if dec_head_depth else None
        self.decoder_tail = Decoder(depth=dec_tail_depth, **dec_kwargs)
        self.kl_loss_weight = kl_loss_weight

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        return {**AttentionLayers.accepted(), **cls.arguments()}

    @property
    def device(self) -> torch.device:
        return self.token_emb.weight.device

    def by_tokens(self) -> Iterator[tuple[str, nn.Module]]:
        yield from (('token_emb', self.token_emb), ('token_unembed', self.token_unembed))

    def resize_tokens(self, num_tokens: int) -> None:
        dim = self.token_emb.embedding_dim
        grow(self.token_emb, nn.Embedding(num_tokens, dim))
        grow(self.token_unembed, nn.Linear(dim, num_tokens, bias=False))
        self.num_tokens = num_tokens

    def embed(self, seq: Tensor, name: str = 'seq') -> Tensor:
        ids = seq.long().masked_fill(seq == self.pad_id, 0)
        check_range(ids, name, 0, self.num_tokens - 1, 'token ids')
        return self.token_emb(ids)

    def encode_to_latents(
        self,
        decoder_head_embeds: Tensor,
        mask: Tensor | None = None,
        return_kl_loss: bool = False,
        per_token_latents: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return codes (b, n, c), or (b, 1, c) if not per token, from the head's output (b, n, d); and their loss."""
        b, n, _ = decoder_head_embeds.shape
        per_token = self.per_token_latents if per_token_latents is None else per_token_latents
        queries = self.query_token_for_latents.expand(b, n if per_token else 1, -1)
        places = torch.arange(n, device=decoder_head_embeds.device)
        positions: dict[str, Any] = dict(pos=places, context_pos=places) if per_token else {}
        pooled = self.encoder(queries, context=decoder_head_embeds, context_mask=mask, **positions)
        logits = self.to_latent_bit_logits(pooled)
        counts = mask if mask is None or per_token else mask.any(dim=-1, keepdim=True)
        latents, loss = self.binary_mapper(logits, calc_aux_loss=return_kl_loss, mask=counts)
        return (latents, loss) if return_kl_loss else latents

    @checked
    def forward(
        self,
        seq: Tensor,
        seq_for_latents: Tensor | None = None,
        return_all_losses: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the next-token loss, and that of the codes.

        seq                b n   ids, n of at least 2; `pad_id` marks what is no target
        seq_for_latents    b m   the text from which one code is drawn, in place of `seq`
        return_all_losses        also return `(next-token loss, loss of codes)`, before their weights
        num_items_in_batch       divide the sum of the losses of tokens by this number, so that batches add up; the loss
                                 of codes counts by the share of the targets
        """
        seq = check_ids(seq, 'seq', 2)
        inputs = seq[:, :-1]
        # Behind padding in front of it, nothing predicts the first token, as where the row has no padding.
        targets = seq[:, 1:].masked_fill(inputs == self.pad_id, self.pad_id)
        with AuxLosses() as aux:
            mask = read_of(seq != self.pad_id)
            hidden, read = self.read_head(inputs, mask), mask
            told, per_token = hidden, self.per_token_latents
            if seq_for_latents is not None:
                seq_for_latents = check_ids(seq_for_latents, 'seq_for_latents', 1)
                if seq_for_latents.shape[0] != seq.shape[0]:
                    raise ValueError(f'`seq_for_latents` got {seq_for_latents.shape[0]} rows, `seq` has {seq.shape[0]}')
                mask, per_token = seq_for_latents != self.pad_id, False
                told = self.read_head(seq_for_latents, mask, 'seq_for_latents')
            latents, kl_loss = self.encode_to_latents(told, mask, return_kl_loss=True, per_token_latents=per_token)
            condition = self.from_latent_to_condition(self.latent_dropout(latents))
            tail = self.decoder_tail(hidden, mask=read, self_attn_kv_residuals=condition)
            readout = Readout.through(tail, self.token_unembed)
        loss = next_token_loss(readout, targets, ignore_index=self.pad_id, num_items=num_items_in_batch)
        share = share_of_items(targets != self.pad_id, num_items_in_batch)
        kl_loss = kl_loss * share
        total = aux.added_to(loss + self.kl_loss_weight * kl_loss, share)
        return (total, (loss, kl_loss)) if return_all_losses else total

    def read_head(self, seq: Tensor, mask: Tensor | None = None, name: str = 'seq') -> Tensor:
        embeds = self.embed(seq, name)
        return embeds if self.decoder_head is None else self.decoder_head(embeds, mask=mask)

    # generation

    @checked
    def generate(
        self,
        prompts: Prompts,
        seq_len: int,
        latents: Any = None,
        filter_logits_fn: Any = top_p,
        logit_filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        use_kv_cache: bool = True,
        *,
        temperature: float = 1.0,
        generator: Generator | None = None,
        **options: Any,
    ) -> Tensor:
        """Continue the prompts up to `seq_len` tokens in all. Without gradients, in eval mode.

        prompts           ... n   ids with any leading axes
        seq_len                   length of the prompts with what is generated
        latents                   one code for the whole text: its number, or one of each row (b,) or (b, 1), or
                                  weights of all codes (c,), (b, c) or (b, 1, c); no condition if None
        filter_logits_fn          filter of `generation/sampling.py` by name, a callable, or several
        logit_filter_kwargs       its keywords, or a dict for each of several; `thres=0.9` by default
        temperature       0 ..    0 selects the most probable token
        options                   the other options of `AutoregressiveWrapper.generate` that choose a token or end a
                                  row, behind whose end `pad_id` follows, or 0 if that is no token
        returns           ... s   the prompts with the new tokens; fewer if all rows end before
        """
        seq_len = as_number(seq_len)
        ids, leading = even_prompts(prompts, 'prompts', 0, self.device)
        words = f'an integer of at least {ids.shape[1]}, the length of the prompts, which is part of it'
        require(is_int(seq_len) and seq_len >= ids.shape[1], 'seq_len', seq_len, words)
        filter_with(filter_logits_fn, logit_filter_kwargs, 'logit_filter_kwargs')
        never = (self.pad_id,) if 0 <= self.pad_id < self.num_tokens else ()
        own: Any = dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=logit_filter_kwargs)
        own |= dict(generator=generator, **options)
        choice = TokenSampler.from_all(own, '`generate`', never_chosen=never, vocabulary=self.num_tokens)
        pad_value = self.pad_id if never else 0
        modules = list(self.modules())
        with eval_modules(modules):
            condition = None if latents is None else self.condition_of(latents, ids.shape[0])
            reader = FreeReader(self, condition, use_kv_cache)
            count = seq_len - ids.shape[1]
            decoding = Decoding.from_prompts(reader, choice, modules, ids, leading, count, pad_value)
            decoding.finish()
        return decoding.ids[:, : decoding.length].reshape(*leading, decoding.length)

    def condition_of(self, latents: Any, batch: int) -> Tensor:
        """Return the vector (b, 1, d) that is added to keys and values."""
        codes = self.binary_mapper.num_codes
        latents = values_of(latents, 'latents').to(self.device)
        numbers = not latents.is_floating_point()
        if latents.ndim == (2 if numbers else 3) and latents.shape[1] == 1:
            latents = latents[:, 0]  # one code for all tokens of a row
        if numbers and latents.ndim <= 1:
            check_range(latents, 'latents', 0, codes - 1, 'code numbers')
            latents = F.one_hot(latents.long(), codes)
        latents = latents.to(self.from_latent_to_condition.weight.dtype)
        latents = rearrange(latents, 'c -> 1 c') if latents.ndim == 1 else latents
        if latents.ndim != 2 or latents.shape[0] not in (1, batch) or latents.shape[1] != codes:
            raise ValueError(
                f'`latents` must be code numbers, one or {batch}, or weights of '
                f'all {codes}, got {format_value(latents)}'
            )
        return rearrange(self.from_latent_to_condition(latents).expand(batch, -1), 'b d -> b 1 d')


class FreeReader:
    """Reads a growing text with both decoders and their caches."""

    def __init__(self, model: FreeTransformer, condition: Tensor | None, cache_kv: bool) -> None:
        self.model = model
        self.stacks = [stack for stack in (model.decoder_head, model.decoder_tail) if stack is not None]
        self.inputs = {} if condition is None else dict(self_attn_kv_residuals=condition)
        self.caching = cache_kv and all(stack.can_cache_kv for stack in self.stacks)
        self.caches: list[Any] = [None] * len(self.stacks)
        self.seen = 0

    def read(self, sequence: Tensor, pads: None = None) -> Tensor:
        """Return the logits (b l) after the last token of `sequence` (b n)."""
        x = self.model.embed(sequence[:, self.seen if self.caching else 0 :], 'prompts')
        for at, stack in enumerate(self.stacks):
            inputs: dict[str, Any] = self.inputs if stack is self.model.decoder_tail else {}
            if not self.caching:
                x = stack(x, **inputs)
                continue
            x, trace = stack(x, cache=self.caches[at], input_not_include_cache=True, return_hiddens=True, **inputs)
            self.caches[at] = trace.cache
        self.seen = sequence.shape[1]
        return self.model.token_unembed(x[:, -1])

"""A language model with a latent: a variational autoencoder of texts, whose decoder sees it as one token in front."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from einops.layers.torch import Rearrange
from torch import Generator, Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper as AutoregressiveWrapper
from x_transformers.continuous_autoencoder import gaussian_divergence
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, checked, values_of
from x_transformers.flags import (
    Configurable,
    format_value,
    instance_of,
    integer,
    mapping,
    none,
    number,
    probability,
    size,
)
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import given_ids, padded_rows
from x_transformers.keywords import GPTVAEKeywords, Unpack
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import mean_of_rows
from x_transformers.x_transformers import (
    AttentionLayers,
    Decoder as Decoder,
    Encoder as Encoder,
    TransformerWrapper as TransformerWrapper,
)

__all__ = ['GPTVAE']


class GPTVAE(Configurable):
    """Variational autoencoder of texts: encode a text into a latent, and decode it from there:  ids (b, n) -> loss.

        z = mean + sd * noise;  loss = next token given [W z ; tokens] + weight * mean_b KL(N(mean, sd) || N(0, 1))

    In training, some sequences are decoded without their latent.  Like the style variable of ACT, arXiv:2304.13705
    """

    def __init__(
        self,
        *,
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        dim: Annotated[int, 'width of both stacks', size],
        depth: Annotated[int, 'number of blocks of the decoder', size],
        enc_depth: Annotated[int, 'number of blocks of the encoder', size],
        max_seq_len: Annotated[int, 'maximum length of a sequence', size],
        dim_latent: Annotated[int | None, 'width of the latent, `dim` if None', size | none] = None,
        attn_dim_head: Annotated[int, 'width of each attention head', size] = 64,
        heads: Annotated[int, 'number of attention heads of both stacks', size] = 8,
        enc_kwargs: Annotated[dict | None, 'additional arguments of the encoder', mapping | none] = None,
        dec_kwargs: Annotated[dict | None, 'additional arguments of the decoder', mapping | none] = None,
        vae_kl_loss_weight: Annotated[float, 'weight of the KL divergence', number] = 1.0,
        vae_kl_div_floor: Annotated[float, 'KL divergence per channel, in nats, that is not penalized', number] = 0.0,
        latents_dropout_prob: Annotated[float, 'fraction of sequences trained without latent', probability] = 0.5,
        pad_id: Annotated[int, 'id of the padding token, which is ignored by the loss', integer] = -1,
        encoder: Annotated[nn.Module | None, 'encoder: (ids, mask) to (b, dim)', instance_of(nn.Module) | none] = None,
        **kwargs: Unpack[GPTVAEKeywords],
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {'dim': dim, 'attn_dim_head': attn_dim_head, 'heads': heads, **kwargs}
        latent = dim_latent or dim
        self.pad_id, self.dim_latent, self.own_encoder = pad_id, latent, encoder is not None
        if encoder is None:
            stack = Encoder(depth=enc_depth, **{**shared, **(enc_kwargs or {})})
            pool: dict[str, Any] = dict(return_only_embed=True, average_pool_embed=True)
            encoder = TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len + 1, attn_layers=stack, **pool)
        self.encoder = encoder
        self.to_latent_mean_log_variance = nn.Sequential(
            nn.Linear(dim, 2 * latent), Rearrange('b (two d) -> two b d', two=2)
        )
        self.from_latent_to_prepend_token = nn.Sequential(nn.Linear(latent, dim), Rearrange('b d -> b 1 d'))
        decoder = Decoder(depth=depth, **{**shared, **(dec_kwargs or {})})
        self.decoder = TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=decoder)
        self.ar_wrapped_decoder = AutoregressiveWrapper(self.decoder, ignore_index=pad_id)
        self.vae_kl_loss_weight, self.vae_kl_div_floor = vae_kl_loss_weight, vae_kl_div_floor
        self.latents_dropout_prob = latents_dropout_prob

    def given_now(self) -> dict[str, Any]:
        return {**self._given, 'num_tokens': self.ar_wrapped_decoder.net.num_tokens}

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        return {**AttentionLayers.accepted(), **cls.arguments()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @staticmethod
    def padding_in_front(mask: Tensor) -> Tensor:
        """Return how many tokens of padding stand in front of each row, (b,); none in a row of padding alone."""
        return (~mask).long().cumprod(dim=-1).sum(dim=-1) * mask.any(dim=-1)

    @checked
    def encode_to_latents(
        self, seq: Tensor, return_mean_log_var: bool = False, generator: Generator | None = None
    ) -> Any:
        """Sample a latent (b, d) per text; also return `(mean, log variance)`. Padding alone has a zero mean."""
        mask = seq != self.pad_id
        given: dict[str, Any] = {} if self.own_encoder else {'seq_start_pos': self.padding_in_front(mask)}
        pooled = self.encoder(seq.masked_fill(~mask, 0), mask=mask, **given)
        mean, log_var = self.to_latent_mean_log_variance(pooled)
        latents = mean + (0.5 * log_var).exp() * torch.empty_like(mean).normal_(generator=generator)
        return (latents, (mean, log_var)) if return_mean_log_var else latents

    @checked
    def forward(
        self,
        seq: Tensor,
        seq_for_latents: Tensor | None = None,
        return_all_losses: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the next-token loss given the latent, and the divergence of the latent.

        seq                b n   ids, n of at least 2; `pad_id` marks what is no target
        seq_for_latents    b m   the text to encode, in place of `seq`
        return_all_losses        also return `(next-token loss, divergence)`, before their weights
        num_items_in_batch       divide the sum of the losses of tokens by this number, so that batches add up; the
                                 divergence counts by the share of the targets
        """
        seq = check_ids(seq, 'seq', 2)
        told = seq if seq_for_latents is None else check_ids(seq_for_latents, 'seq_for_latents', 1)
        if told.shape[0] != seq.shape[0]:
            raise ValueError(f'`seq_for_latents` got {told.shape[0]} rows, `seq` has {seq.shape[0]}')
        with AuxLosses() as aux:
            latents, (mean, log_var) = self.encode_to_latents(told, return_mean_log_var=True)
        dropped = self.latents_dropout_prob if self.training else 0.0
        kept = torch.rand(seq.shape[0], 1, dtype=torch.float32, device=seq.device) >= dropped
        mask = seq != self.pad_id
        token = self.from_latent_to_prepend_token(latents)
        inputs = dict(prepend_embeds=token, prepend_mask=kept, mask=mask, seq_start_pos=self.padding_in_front(mask))
        loss = self.ar_wrapped_decoder(seq, **inputs, num_items_in_batch=num_items_in_batch)
        share = share_of_items(mask[:, 1:] & mask[:, :-1], num_items_in_batch)
        divergence = mean_of_rows(gaussian_divergence(mean, log_var, self.vae_kl_div_floor), told != self.pad_id)
        divergence = divergence * share
        total = aux.added_to(loss + self.vae_kl_loss_weight * divergence, share)
        return (total, (loss, divergence)) if return_all_losses else total

    @checked
    def generate(
        self, prompts: Prompts, seq_len: int, latents: Any = None, seq_for_latents: Any = None, **generate_kwargs: Any
    ) -> Any:
        """Continue prompts by `seq_len` tokens, given a latent. Without gradients, in eval mode.

        latents            a latent (d,) for all rows, or (b, d)
        seq_for_latents    [b] n   texts whose latents to take; no latent if neither is given
        **generate_kwargs  to `AutoregressiveWrapper.generate`
        """
        prompts = self.read_latents(prompts, latents, seq_for_latents, generate_kwargs)
        return self.ar_wrapped_decoder.generate(prompts, seq_len, **generate_kwargs)

    @checked
    def stream(
        self, prompts: Prompts, seq_len: int, latents: Any = None, seq_for_latents: Any = None, **options: Any
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same arguments, one step at a time."""
        prompts = self.read_latents(prompts, latents, seq_for_latents, options)
        return self.ar_wrapped_decoder.stream(prompts, seq_len, **options)

    @checked
    def beam_search(
        self,
        prompts: Prompts,
        seq_len: int,
        beams: int = 4,
        latents: Any = None,
        seq_for_latents: Any = None,
        **options: Any,
    ) -> Any:
        """Continue prompts with beam search, given a latent, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        prompts = self.read_latents(prompts, latents, seq_for_latents, options)
        return self.ar_wrapped_decoder.beam_search(prompts, seq_len, beams, **options)

    def read_latents(self, prompts: Any, latents: Any, seq_for_latents: Any, options: dict[str, Any]) -> Any:
        """Return the prompts as a tensor or a list of tensors. The token of the latent joins `options`."""
        if latents is not None and seq_for_latents is not None:
            raise ValueError('`latents` and `seq_for_latents` were both given, give only one')
        prompts = given_ids(prompts, 'prompts', self.device)
        batch = len(prompts) if isinstance(prompts, list) else prompts.shape[:-1].numel()
        with eval_modules(list(self.modules())):
            if seq_for_latents is not None:
                texts, _ = padded_rows(seq_for_latents, 'seq_for_latents', self.pad_id, self.device)
                texts = texts[None] if texts.ndim == 1 else texts
                texts = check_ids(texts, 'seq_for_latents', 1)
                latents = self.encode_to_latents(texts, generator=options.get('generator'))
            if latents is not None:
                latents = values_of(latents, 'latents').to(self.device, next(self.parameters()).dtype)
                latents = latents[None] if latents.ndim == 1 else latents
                if latents.ndim != 2 or latents.shape[0] not in (1, batch) or latents.shape[1] != self.dim_latent:
                    raise ValueError(
                        f'`latents` must be ({self.dim_latent},) or '
                        f'({batch}, {self.dim_latent}), got {format_value(latents)}'
                    )
                token = self.from_latent_to_prepend_token(latents).expand(batch, -1, -1)
                options['prepend_embeds'] = token
        return prompts

"""An autoencoder of sequences of vectors through a single latent."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from einops import rearrange, reduce
from einops.layers.torch import Rearrange
from torch import Tensor, nn

from x_transformers.continuous import ContinuousTransformerWrapper as ContinuousTransformerWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_lengths, check_vectors, checked, mask_from_lengths
from x_transformers.core.modes import to_float
from x_transformers.flags import Configurable, instance_of, is_int, mapping, none, one_of, probability, size
from x_transformers.generation.engine import IncrementalModel, eval_modules
from x_transformers.generation.sampling import require
from x_transformers.keywords import ContinuousTransformerAutoencoderKeywords, Unpack
from x_transformers.training.items import mean_of_items, share_of_items
from x_transformers.training.losses import mean_or_zero
from x_transformers.x_transformers import AttentionLayers, Decoder as Decoder, Encoder as Encoder

__all__ = ['ContinuousTransformerAutoencoder', 'DeterministicLatentBottleneck', 'VariationalLatentBottleneck']


def gaussian_divergence(mean: Tensor, log_var: Tensor, floor: float = 0.0) -> Tensor:
    """Return sum_d relu(KL(N(mean, var) || N(0, 1)) - floor), in nats:  ... d -> ..."""
    mean, log_var = to_float(mean), to_float(log_var)
    each = 0.5 * (log_var.exp() + mean.square() - log_var - 1)
    return (each - floor).relu().sum(dim=-1)


def only_real(t: Tensor, real: Tensor) -> Tensor:
    """Zero the vectors (b, n, d) that a mask (b, n) excludes."""
    return t.masked_fill(~rearrange(real, 'b n -> b n 1'), 0.0)


# bottlenecks: from (b d) to latents (b l), and a loss, a scalar or of every row, or None


class DeterministicLatentBottleneck(nn.Module):
    """z = activation(W x + bias)"""

    def __init__(self, dim: int, dim_latent: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim_latent)
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x: Tensor, return_unreduced_loss: bool = False) -> tuple[Tensor, None]:
        return self.activation(self.proj(x)), None


class VariationalLatentBottleneck(nn.Module):
    """z = mean + sd * noise, and the divergence of that from a standard normal distribution."""

    def __init__(self, dim: int, dim_latent: int, kl_div_floor: float = 0.0) -> None:
        super().__init__()
        self.kl_div_floor = kl_div_floor
        self.to_mean_log_var = nn.Sequential(nn.Linear(dim, 2 * dim_latent), Rearrange('b (two d) -> two b d', two=2))

    def forward(self, x: Tensor, return_unreduced_loss: bool = False) -> tuple[Tensor, Tensor]:
        mean, log_var = self.to_mean_log_var(x)
        loss = gaussian_divergence(mean, log_var, self.kl_div_floor)
        latents = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return latents, loss if return_unreduced_loss else mean_or_zero(loss)


# the autoencoder


class ContinuousTransformerAutoencoder(Configurable):
    """Autoencoder of sequences of vectors, through one latent per sequence:  (b, n, d) -> loss.

        z = bottleneck(mean of the encoder's embeddings);  x_i from [W z ; x_0 .. x_{i-1}]

    In training, some sequences are decoded without their latent.
    """

    def __init__(
        self,
        *,
        dim: Annotated[int, 'width of both stacks', size],
        enc_depth: Annotated[int, 'number of blocks of the encoder', size],
        dec_depth: Annotated[int, 'number of blocks of the decoder', size],
        max_seq_len: Annotated[int | None, 'maximum length of a sequence; None: no absolute positions', size | none],
        dim_input: Annotated[int | None, 'width of the input vectors, `dim` if None', size | none] = None,
        dim_latent: Annotated[int | None, 'width of the latent, `dim` if None', size | none] = None,
        bottleneck: Annotated[
            nn.Module | None, 'custom bottleneck, from (x, return_unreduced_loss) to (latents, loss or None)',
            instance_of(nn.Module) | none,
        ] = None,
        bottleneck_type: Annotated[
            str, 'a linear bottleneck, or a variational one that samples', one_of('deterministic', 'variational')
        ] = 'deterministic',
        deterministic_bottleneck_kwargs: Annotated[dict | None, 'its keywords if deterministic', mapping | none] = None,
        variational_bottleneck_kwargs: Annotated[dict | None, 'its keywords if variational', mapping | none] = None,
        loss_type: Annotated[str, 'reconstruction loss: squared or absolute error', one_of('l2', 'l1')] = 'l2',
        attn_dim_head: Annotated[int, 'width of each attention head', size] = 64,
        heads: Annotated[int, 'number of attention heads of both stacks', size] = 8,
        enc_kwargs: Annotated[dict | None, 'additional arguments of the encoder', mapping | none] = None,
        dec_kwargs: Annotated[dict | None, 'additional arguments of the decoder', mapping | none] = None,
        latents_dropout_prob: Annotated[float, 'fraction of sequences trained without latent', probability] = 0.5,
        **kwargs: Unpack[ContinuousTransformerAutoencoderKeywords],
    ) -> None:  # fmt: skip
        super().__init__()
        shared: dict[str, Any] = {'dim': dim, 'attn_dim_head': attn_dim_head, 'heads': heads, **kwargs}
        latent = dim_latent or dim
        self.dim_input, self.dim_latent, self.max_seq_len = dim_input or dim, latent, max_seq_len
        both: dict[str, Any] = dict(dim_in=dim_input, max_seq_len=max_seq_len)
        encoder = Encoder(depth=enc_depth, **{**shared, **(enc_kwargs or {})})
        self.encoder = ContinuousTransformerWrapper(**both, attn_layers=encoder)
        if bottleneck is None and bottleneck_type == 'variational':
            bottleneck = VariationalLatentBottleneck(dim, latent, **(variational_bottleneck_kwargs or {}))
        if bottleneck is None:
            bottleneck = DeterministicLatentBottleneck(dim, latent, **(deterministic_bottleneck_kwargs or {}))
        self.bottleneck = bottleneck
        self.from_latent_to_prepend_token = nn.Sequential(nn.Linear(latent, dim), Rearrange('b d -> b 1 d'))
        decoder = Decoder(depth=dec_depth, **{**shared, **(dec_kwargs or {})})
        self.decoder = ContinuousTransformerWrapper(**both, dim_out=dim_input, attn_layers=decoder)
        self.loss_type, self.latents_dropout_prob = loss_type, latents_dropout_prob

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        return {**AttentionLayers.accepted(), **cls.arguments()}

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def real(self, seq: Tensor, lens: Tensor | None) -> Tensor:
        """Return which vectors (b n) are real."""
        check_vectors(seq, 'seq', 'b', 'n', self.dim_input)
        if seq.shape[1] == 0:
            raise ValueError('`seq` holds no vectors')
        if lens is None:
            return torch.ones(seq.shape[:2], dtype=torch.bool, device=seq.device)
        check_lengths(lens, 'lens', *seq.shape[:2])
        return mask_from_lengths(lens, seq.shape[1])

    @checked
    def encode(
        self,
        seq: Tensor,
        lens: Tensor | None = None,
        return_aux_loss: bool = False,
        return_unreduced_loss: bool = False,
    ) -> Any:
        """Return latents (b, l) of sequences (b n d) with `lens` (b) real vectors; and the loss of the bottleneck."""
        token_mask = self.real(seq, lens)
        embeds = self.encoder(only_real(seq, token_mask), mask=None if lens is None else token_mask)
        total = reduce(to_float(only_real(embeds, token_mask)), 'b n d -> b d', 'sum')
        pooled = (total / token_mask.sum(dim=1, keepdim=True).clamp(min=1)).to(embeds.dtype)
        latents, loss = self.bottleneck(pooled, return_unreduced_loss=return_unreduced_loss or lens is not None)
        if loss is not None and loss.ndim:  # of each row: one without a real vector has none
            there = token_mask.any(dim=-1)
            loss = loss.masked_fill(~there, 0.0) if return_unreduced_loss else mean_or_zero(loss, there)
        return (latents, loss) if return_aux_loss else latents

    @checked
    def forward(
        self,
        seq: Tensor,
        lens: Tensor | None = None,
        return_all_losses: bool = False,
        return_unreduced_loss: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return how badly sequences are decoded from their latents and the vectors before each.

        seq                    b n d   vectors
        lens                   b       number of real vectors of each row
        return_all_losses              also return `(reconstruction, loss of the bottleneck or None)`
        return_unreduced_loss          losses of rows (b,), each a mean over its vectors
        num_items_in_batch             divide the sum of the losses of vectors by this number, so that batches add up;
                                       the loss of the bottleneck counts by their share
        """
        if return_unreduced_loss and num_items_in_batch is not None:
            raise ValueError('`num_items_in_batch` cannot be combined with `return_unreduced_loss`, the losses of rows')
        token_mask = self.real(seq, lens)
        with AuxLosses() as added:
            latents, aux = self.encode(seq, lens, return_aux_loss=True, return_unreduced_loss=return_unreduced_loss)
        seq = only_real(seq, token_mask)
        dropped = self.latents_dropout_prob if self.training else 0.0
        kept = torch.rand(seq.shape[0], 1, dtype=torch.float32, device=seq.device) >= dropped
        token = self.from_latent_to_prepend_token(latents)
        # a latent that is not seen must not stand in the stream of its own place either
        token = only_real(token, kept)
        with AuxLosses() as of_decoder:
            out = self.decoder(seq[:, :-1], prepend_embeds=token, prepend_mask=kept)
        added.take(of_decoder)
        apart = only_real(to_float(out) - to_float(seq), token_mask)
        differences = apart.square() if self.loss_type == 'l2' else apart.abs()
        each = differences.mean(dim=-1)
        if return_unreduced_loss:
            loss = each.sum(dim=1) / token_mask.sum(dim=1).clamp(min=1)
        else:
            loss = mean_of_items(each, token_mask, num_items_in_batch)
        share = share_of_items(token_mask, num_items_in_batch)
        total = added.added_to(loss if aux is None else loss + aux * share, share)
        return (total, (loss, aux)) if return_all_losses else total

    @checked
    def decode(self, latents: Tensor, seq_len: int, cache_kv: bool = True) -> Tensor:
        """Generate sequences (b, s, d) from latents (b, l) alone, vector by vector. Without gradients, in eval mode."""
        check_vectors(latents, 'latents', 'b', self.dim_latent)
        longest = self.max_seq_len
        require(is_int(seq_len) and 0 <= seq_len and (longest is None or seq_len <= longest), 'seq_len', seq_len,
                'an integer of at least 0' if longest is None else f'an integer from 0 to {longest}')  # fmt: skip
        with eval_modules(list(self.modules())):
            token = self.from_latent_to_prepend_token(latents)
            reader = IncrementalModel(self.decoder, dict(prepend_embeds=token), cache_kv=cache_kv, restrict=False)
            sequence = latents.new_zeros(latents.shape[0], seq_len, self.dim_input)
            for place in range(seq_len):
                sequence[:, place] = reader.read(sequence[:, :place])
        return sequence

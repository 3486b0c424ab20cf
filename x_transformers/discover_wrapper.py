"""Tensor product representations: fit them to hidden states of a language model, and operate on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper as AutoregressiveWrapper
from x_transformers.core.checks import as_mask, check_ids, checked, mask_from_lengths
from x_transformers.core.modes import to_float
from x_transformers.core.nets import check_net
from x_transformers.flags import (
    ConfigError,
    Configurable,
    count,
    instance_of,
    integer,
    is_int,
    is_number,
    none,
    one_of,
    size,
)
from x_transformers.generation.sampling import require
from x_transformers.training.losses import not_last, tell_padding

__all__ = ['ROLE_SCHEMES', 'DiscoverDecoder', 'TPREncoder', 'num_roles_for_scheme', 'role_ids_for_tokens']

ROLE_SCHEMES = ('bidirectional', 'right_to_left', 'left_to_right', 'wickel', 'bag_of_words')


def check_scheme(scheme: str) -> None:
    require(scheme in ROLE_SCHEMES, 'scheme', scheme, 'one of ' + ', '.join(map(repr, ROLE_SCHEMES)))


def num_roles_for_scheme(scheme: str, *, max_seq_len: int, num_fillers: int) -> int:
    """Return how many roles a scheme has, see `role_ids_for_tokens`."""
    check_scheme(scheme)
    return {
        'bidirectional': max_seq_len * (max_seq_len + 1) // 2,
        'right_to_left': max_seq_len,
        'left_to_right': max_seq_len,
        'wickel': (num_fillers + 1) ** 2,
        'bag_of_words': 1,
    }[scheme]


def role_ids_for_tokens(tokens: Tensor, lengths: Tensor, scheme: str, *, max_seq_len: int, num_fillers: int) -> Tensor:
    """Return the role of each token (b, n), 0 for those after the first `lengths` (b).

    left_to_right   i                                    i: its place from the left
    right_to_left   j = length - 1 - i                   j: from the right
    bidirectional   (i + j) (i + j + 1) / 2 + i          both
    wickel          left (f + 1) + right                 its neighbours, f = `num_fillers` beyond the ends
    bag_of_words    0
    """
    check_scheme(scheme)
    tokens = check_ids(tokens, 'tokens', 1)
    n = tokens.shape[1]
    if lengths.shape != (len(tokens),):
        raise ValueError(f'`lengths` must have shape ({len(tokens)},), got {tuple(lengths.shape)}')
    if n > max_seq_len:
        raise ValueError(f'`tokens` must have at most {max_seq_len} tokens (`max_seq_len`), got {n}')
    lengths = rearrange(lengths, 'b -> b 1')
    place = torch.arange(n, device=tokens.device).expand(tokens.shape)
    token_mask = place < lengths
    if scheme == 'left_to_right':
        roles = place
    elif scheme == 'right_to_left':
        roles = lengths - 1 - place
    elif scheme == 'bidirectional':
        roles = (lengths - 1) * lengths // 2 + place
    elif scheme == 'wickel':
        fillers = tokens.masked_fill(~token_mask, num_fillers)
        edge = F.pad(fillers, (1, 1), value=num_fillers)
        roles = edge[:, :-2] * (num_fillers + 1) + edge[:, 2:]
    else:
        roles = torch.zeros_like(place)
    return roles.masked_fill(~token_mask, 0)


class TPREncoder(Configurable):
    """Tensor product representation: a sum of bound fillers and roles.  tokens (b, n), roles (b, n) -> (b, d)

        h_o = sum_n B_ofg filler(token_n)_f role(role_n)_g + bias_o       optionally followed by an MLP

    arXiv:2608.29530; Smolensky 1990
    """

    def __init__(
        self,
        *,
        dim: Annotated[int, 'width of the encoding', size],
        num_fillers: Annotated[int, 'number of fillers (token ids)', size],
        num_roles: Annotated[int, 'number of roles', size],
        filler_dim: Annotated[int, 'width of each filler', size] = 24,
        role_dim: Annotated[int, 'width of each role', size] = 24,
        mlp_dim: Annotated[int | None, 'inner width of an MLP on top; None for no MLP', size | none] = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.filler_emb, self.role_emb = nn.Embedding(num_fillers, filler_dim), nn.Embedding(num_roles, role_dim)
        nn.init.normal_(self.filler_emb.weight, std=0.05)
        nn.init.normal_(self.role_emb.weight, std=0.05)
        self.binding = nn.Parameter(torch.zeros(dim, filler_dim, role_dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        layers = () if mlp_dim is None else (nn.Linear(dim, mlp_dim), nn.SiLU(), nn.Linear(mlp_dim, dim))
        self.mlp = nn.Sequential(*layers) if layers else None

    @checked
    def state(self, tokens: Tensor, role_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the sum (b, d) of the tokens where `mask` (b n) is True; others may have any id."""
        tokens, role_ids = check_ids(tokens, 'tokens', 1), check_ids(role_ids, 'role_ids', 1)
        if role_ids.shape != tokens.shape:
            raise ValueError(f'`role_ids` must have shape {tuple(tokens.shape)}, got {tuple(role_ids.shape)}')
        mask = as_mask(mask, 'mask', *tokens.shape, like=tokens)
        if mask is not None:
            tokens, role_ids = tokens.masked_fill(~mask, 0), role_ids.masked_fill(~mask, 0)
        for name, t, table in (('tokens', tokens, self.filler_emb), ('role_ids', role_ids, self.role_emb)):
            check_ids(t, name, 1, table.num_embeddings)
        fillers, roles = self.filler_emb(tokens), self.role_emb(role_ids)
        fillers = fillers if mask is None else fillers * rearrange(mask, 'b n -> b n 1')
        bound = torch.einsum('b n f, b n g -> b f g', fillers, roles)
        return torch.einsum('o f g, b f g -> b o', self.binding, bound) + self.bias

    def readout(self, state: Tensor) -> Tensor:
        return state if self.mlp is None else self.mlp(state)

    @checked
    def forward(self, tokens: Tensor, role_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.readout(self.state(tokens, role_ids, mask))

    @checked
    def fit(
        self,
        tokens: Tensor,
        role_ids: Tensor,
        target_encodings: Tensor,
        *,
        mask: Tensor | None = None,
        steps: int = 2000,
        batch_size: int = 1024,
        lr: float = 0.003,
        ema_decay: float = 0.9,
        optim: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    ) -> float:
        """Learn encodings (b d) of sequences by mean squared error. Gives the running mean of the loss."""
        for name, value in (('steps', steps), ('batch_size', batch_size)):
            require(is_int(value) and value >= 1, name, value, 'an integer of at least 1')
        for name, value in (('lr', lr), ('ema_decay', ema_decay)):
            require(is_number(value) and value >= 0, name, value, 'a number of at least 0')
        tokens, role_ids = check_ids(tokens, 'tokens', 1), check_ids(role_ids, 'role_ids', 1)
        if role_ids.shape != tokens.shape:
            raise ValueError(f'`role_ids` must have shape {tuple(tokens.shape)}, got {tuple(role_ids.shape)}')
        mask = as_mask(mask, 'mask', *tokens.shape, like=tokens)
        optimizer, targets, running = optim(self.parameters(), lr=lr), target_encodings.detach(), None
        if targets.shape != (len(tokens), self.dim):
            raise ValueError(f'`target_encodings` must be ({len(tokens)}, {self.dim}), got {tuple(targets.shape)}')
        with torch.enable_grad():
            for _ in range(steps):
                rows = torch.randint(len(tokens), (min(batch_size, len(tokens)),), device=tokens.device)
                found = self(tokens[rows], role_ids[rows], None if mask is None else mask[rows])
                loss = F.mse_loss(to_float(found), to_float(targets[rows]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss = loss.detach()
                running: Any = loss if running is None else running.lerp(loss, 1 - ema_decay)
        return running.item()


class DiscoverDecoder(Configurable):
    """One model as encoder and decoder: encode a sequence into one hidden state, and decode it.  ids (b, n) -> (b, d).

    Encodes a sequence into the hidden state of one token, and decodes it with that vector prepended to `bos_id`. How
    well a `TPREncoder` fits the vector shows its structure, which `surgery` verifies. arXiv:2608.29530
    """

    def __init__(
        self,
        *,
        decoder: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        num_fillers: Annotated[int, 'number of content tokens: ids below this', size],
        bos_id: Annotated[int, 'id of the begin-of-sequence token for decoding', integer],
        pad_id: Annotated[int, 'id of the padding token', integer],
        max_seq_len: Annotated[int, 'maximum length of a sequence', size],
        enc_pos: Annotated[
            int | str,
            'index of the token whose hidden state is the encoding; the last token before padding if None',
            count | one_of('last'),
        ] = 'last',
    ) -> None:
        super().__init__()
        check_net(decoder)
        if decoder.emb_dim != decoder.attn_layers.dim:
            raise ConfigError(
                f'`decoder` has `emb_dim` {decoder.emb_dim} and hidden states of width {decoder.attn_layers.dim}: '
                f'they must be equal, an encoding is put in front'
            )
        self.decoder: Any = decoder
        classes = self.decoder.num_tokens
        for name, token in (('bos_id', bos_id), ('pad_id', pad_id)):
            if not 0 <= token < classes:
                raise ConfigError(f'`{name}` must be from 0 to {classes - 1}, as the tokens of `decoder`, got {token}')
        if pad_id < num_fillers:
            raise ConfigError(f'`pad_id` must not be content, below `num_fillers={num_fillers}`, got {pad_id}')
        place: Any = enc_pos
        if is_int(place) and place >= max_seq_len:
            raise ConfigError(f'`enc_pos` must be less than `max_seq_len`, {max_seq_len}, got {enc_pos}')
        self.num_fillers, self.bos_id, self.pad_id = num_fillers, bos_id, pad_id
        self.max_seq_len = max_seq_len
        self.enc_pos: Any = enc_pos  # a place, or 'last'

    @property
    def dim(self) -> int:
        return self.decoder.attn_layers.dim

    def check(self, tokens: Tensor, name: str) -> Tensor:
        tokens = check_ids(tokens, name, 1)
        if tokens.shape[1] > self.max_seq_len:
            raise ValueError(
                f'`{name}` must have at most {self.max_seq_len} tokens (`max_seq_len`), got {tokens.shape[1]}'
            )
        return tokens

    @checked
    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the hidden state (b d) at the last real token, or at `enc_pos`.

        tokens   b n   ids
        mask     b n   True for real tokens; those that are not `pad_id` if None
        """
        tokens = self.check(tokens, 'tokens')
        token_mask: Any = tokens != self.pad_id if mask is None else as_mask(mask, 'mask', *tokens.shape, like=tokens)
        hidden = self.decoder(tokens, mask=token_mask, return_embeddings=True)
        if self.enc_pos != 'last':
            if self.enc_pos >= tokens.shape[1]:
                raise ValueError(f'`tokens` got {tokens.shape[1]} tokens, there is none at `enc_pos`, {self.enc_pos}')
            return hidden[:, self.enc_pos]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        last = (place * token_mask).amax(dim=-1)
        return hidden[torch.arange(len(tokens), device=tokens.device), last]

    @checked
    def decode(
        self, encodings: Tensor, lengths: Tensor | None = None, *, eos_id: int | None = None, max_len: int | None = None
    ) -> Tensor:
        """Return the most probable tokens given encodings (b d), one after another, without gradients.

        lengths   b       how many tokens each row has; `pad_id` follows
        eos_id            or the id that ends a row, after which `pad_id` follows
        max_len           at most so many tokens with `eos_id`; `max_seq_len` if None
        """
        if encodings.ndim != 2 or encodings.shape[1] != self.dim:
            raise ValueError(f'`encodings` must have shape (b, {self.dim}), got {tuple(encodings.shape)}')
        if (lengths is None) == (eos_id is None):
            raise ValueError('`lengths` and `eos_id` both say where rows end, give one of them')
        require(max_len is None or (is_int(max_len) and max_len >= 1), 'max_len', max_len, 'an integer of at least 1')
        b, most = len(encodings), max_len or self.max_seq_len
        if lengths is not None:
            if lengths.shape != (b,) or lengths.is_floating_point():
                raise ValueError(f'`lengths` must be ({b},), got {lengths.dtype} of shape {tuple(lengths.shape)}')
            most = int(lengths.max()) if b else 0
        if most > self.max_seq_len:
            name = 'max_len' if lengths is None else 'lengths'
            raise ValueError(f'`{name}` must be at most `max_seq_len`, {self.max_seq_len}, got {most}')
        model = AutoregressiveWrapper(self.decoder, pad_value=self.pad_id)
        start = torch.full((b, 1), self.bos_id, device=encodings.device)
        latent = rearrange(encodings, 'b d -> b 1 d')
        never = None if eos_id == self.pad_id else [self.pad_id]
        ids = model.generate(start, most, temperature=0.0, eos_token=eos_id, banned_tokens=never, prepend_embeds=latent)
        return ids if lengths is None else ids.masked_fill(~mask_from_lengths(lengths, ids.shape[1]), self.pad_id)

    @checked
    def surgery(
        self, tokens: Tensor, edited_tokens: Tensor, role_ids_old: Tensor, role_ids_new: Tensor, tpr: TPREncoder
    ) -> Tensor:
        """Decode the encoding of `tokens`, changed as `tpr` says that `edited_tokens` (b m) differ from them (b n).

        Padding is `pad_id`; each row has as many tokens as the edited one.
        """
        old, new = self.check(tokens, 'tokens'), self.check(edited_tokens, 'edited_tokens')
        if len(old) != len(new):
            raise ValueError(f'`edited_tokens` got {len(new)} rows, `tokens` has {len(old)}')
        with torch.no_grad():
            change = tpr(new, role_ids_new, new != self.pad_id) - tpr(old, role_ids_old, old != self.pad_id)
            return self.decode(self.encode(old) + change, (new != self.pad_id).sum(dim=-1))

    @checked
    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Any:
        """Return encodings (b, d) of `tokens` (b, n), or logits (b, m, l) of the `targets` (b, m) given them."""
        encodings = self.encode(tokens)
        if targets is None:
            return encodings
        targets = self.check(targets, 'targets')
        if len(targets) != len(tokens):
            raise ValueError(f'`targets` got {len(targets)} rows, `tokens` has {len(tokens)}')
        inputs = F.pad(targets[:, :-1], (1, 0), value=self.bos_id)
        latent, told = rearrange(encodings, 'b d -> b 1 d'), {}
        token_mask = targets != self.pad_id
        tell_padding(self.decoder, told, lambda: F.pad(not_last(token_mask) & token_mask, (1, 0), value=True)[:, :-1])
        return self.decoder(inputs, prepend_embeds=latent, excise_prepend_embeds=True, **told)

"""Nets for tests of generation: `History`, one exact formula in float64, and small real models.

What a cache, a window or a padding gets wrong shows in the tokens of `History`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

VOCAB = 5


@dataclass
class Past:
    """A cache of `History`: the vectors themselves."""

    vectors: torch.Tensor
    num_seen_tokens: int
    num_prefix_tokens: int = 0

    @property
    def length(self):
        return self.vectors.shape[1]

    def keep_last(self, count):
        assert 0 <= count <= self.length and self.num_prefix_tokens == 0
        return Past(self.vectors[:, self.length - count :], self.num_seen_tokens)

    def reorder(self, rows):
        return Past(self.vectors[rows], self.num_seen_tokens, self.num_prefix_tokens)


@dataclass
class Seen:
    """The intermediates of `History`."""

    cache: Past
    attn_z_loss: torch.Tensor = None


class History(nn.Module):
    """Logits from a sum over the visible past, older tokens weighing less: one layer, one exact formula."""

    def __init__(self, vocab=VOCAB, dim=6, max_seq_len=0, can_cache=True, absolute=False, heads=1, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.max_seq_len, self.can_cache_kv, self.can_cache_kv_outside_max_seq_len = (
            max_seq_len,
            can_cache,
            not absolute,
        )
        self.table = nn.Parameter(torch.randn(vocab, dim, generator=generator, dtype=torch.float64))
        self.places = nn.Parameter(absolute * torch.randn(64, dim, generator=generator, dtype=torch.float64))
        self.heads = nn.Parameter(2 * torch.randn(heads, dim, vocab, generator=generator, dtype=torch.float64))
        self.dropout = nn.Dropout(0.5)
        self.fed = []

    def forward(
        self,
        ids,
        mask=None,
        context=None,
        prepend_embeds=None,
        seq_start_pos=None,
        self_attn_kv_mask=None,
        cache=None,
        input_not_include_cache=False,
        return_intermediates=False,
        return_attn_z_loss=False,
    ):
        self.fed.append(tuple(ids.shape))
        b, new = ids.shape
        before = 0 if cache is None else cache.num_seen_tokens
        start = torch.zeros(b, dtype=torch.long) if seq_start_pos is None else seq_start_pos
        place = (torch.arange(before, before + new) - start[:, None]).clamp(min=0)
        vectors, p = self.table[ids] + self.places[place], 0
        if prepend_embeds is not None and cache is None:
            vectors, p = torch.cat((prepend_embeds, vectors), dim=1), prepend_embeds.shape[1]
        if cache is not None:
            assert input_not_include_cache
            vectors, p = torch.cat((cache.vectors, vectors), dim=1), cache.num_prefix_tokens

        n = vectors.shape[1]
        # places count from the prefix on, and padding takes none
        index = torch.arange(n).expand(b, n)
        padding = (index >= p) & (index < p + start[:, None])
        real = ~padding
        for kept in (mask, self_attn_kv_mask):
            real = real if kept is None else real & F.pad(kept, (n - kept.shape[1], 0), value=True)
        place = torch.where(index < p, index, index - start[:, None])
        age = place[:, :, None] - place[:, None]
        weight = torch.where(age >= 0, 0.8**age, 0.0) * real[:, None] * (index[:, :, None] >= index[:, None])
        state = self.dropout(weight.double() @ vectors)[:, n - new - (p if cache is None else 0) :]
        if context is not None:
            state = state + context.mean(dim=1, keepdim=True)
        out = tuple((3 * state).sin() @ head for head in self.heads)
        out = out if len(out) > 1 else out[0]
        if not return_intermediates:
            return out
        return out, Seen(Past(vectors, before + new, p), self.table.square().mean() if return_attn_z_loss else None)


def brute_force(net, prompts, steps, window=None, choose=None, **inputs):
    """The whole sequence, cut to the window, through the net for each new token."""
    choose = choose or (lambda logits: logits.argmax(-1))
    out = prompts
    net.eval()
    for _ in range(steps):
        read = out if not window else out[:, -window:]
        out = torch.cat((out, choose(net(read, **inputs)[:, -1])[:, None]), dim=1)
    return out[:, prompts.shape[1] :]


def ids_of(*shape, seed=0, vocab=VOCAB):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def wrapped(**keywords):
    return AutoregressiveWrapper(History(**keywords))


def diverse(tokens):
    """Guard against an oracle that only ever says one thing."""
    return len(set(tokens.flatten().tolist())) > 2


class Fixed(nn.Module):
    """The same distribution for every token."""

    max_seq_len = 0

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, ids, return_intermediates=False, **_):
        out = self.logits.expand(*ids.shape, -1)
        return (out, None) if return_intermediates else out


def language_model(wrapper=None, *, depth=2, tokens=11, limit=32, dim=16, around=None, **stack):
    torch.manual_seed(6)
    attn_layers = Decoder(dim=dim, depth=depth, heads=2, attn_dim_head=8, **stack)
    net = TransformerWrapper(num_tokens=tokens, max_seq_len=limit, attn_layers=attn_layers, **(around or {}))
    model = AutoregressiveWrapper(net, **(wrapper or {})).double().eval()
    with torch.no_grad():
        # a fresh model says little: louder weights make its choices depend on all it sees
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.ndim > 1 else 1.0)
    return model


MODELS = {
    'absolute': {},
    'sinusoid': dict(around=dict(scaled_sinu_pos_emb=True)),
    'rotary': dict(rotary_pos_emb=True),
    'xpos': dict(rotary_pos_emb=True, rotary_xpos=True),
    't5': dict(rel_pos_bias=True),
    'alibi': dict(alibi_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'one key head': dict(rotary_pos_emb=True, attn_one_kv_head=True),
    'memory tokens': dict(rotary_pos_emb=True, around=dict(num_memory_tokens=2)),
    'memory keys': dict(rotary_pos_emb=True, attn_num_mem_kv=2),
    'shifted tokens': dict(rotary_pos_emb=True, shift_tokens=1),
    'emb_dim': dict(around=dict(emb_dim=12)),
    'no limit': dict(limit=0),
}


ROTARY = MODELS['rotary']


def vectors_of(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loss_by_hand(logits, targets, ignored=()):
    """Mean of -log softmax over the targets that count; logits (b n l) for targets (b n)."""
    terms = []
    for row, wanted in zip(logits.tolist(), targets.tolist(), strict=True):
        for scores, target in zip(row, wanted, strict=True):
            if target not in ignored:
                terms.append(math.log(sum(math.exp(s) for s in scores)) - scores[target])
    return sum(terms) / len(terms)

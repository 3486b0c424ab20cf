"""The models that are compared, all of the same sizes and the same work: pre-norm GPTs.

`build(name, sizes)` gives an object with

    logits(ids)              b n -> b n tokens, a forward
    loss(ids)                b n -> scalar, of the next tokens
    generate(ids, tokens)    b n -> b tokens, greedy, with a cache
    module                   for parameters and modes

| name | is |
|---|---|
| ours, ours compiled | this package, without further keywords; `generate(compile=True)` |
| original, original flash | the original package, without further keywords, or with `attn_flash=True` |
| minimal | below: what one writes by hand in plain torch, SDPA and a cache that is allocated once; GPT or like Llama |
| minimal compiled | the same; its decoding step is compiled, and captured in a CUDA graph on a GPU |
| minimal chunked | the same, with the loss of some rows at a time, whose gradient is formed at once |
| packed | the same with weights laid out for few rows |
| huggingface | GPT-2, GPT-NeoX for rotary positions, or like `LIKE`; a growing cache |
| huggingface static, huggingface compiled | the same with a static cache, run eagerly or by its compiled step |
| floor | the matrix products of the minimal model alone |

Heads have 64 features, the default of both packages and the size of GPT-2, so dim / 64 heads unless `head` says else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    tokens: int = 8192
    length: int = 2048  # the longest sequence
    dim: int = 256
    depth: int = 4
    heads: int = 4
    rotary: bool = False
    head: int = 0  # features of a head, 0 for dim / heads
    inner: int = 0  # width of the feedforwards, 0 for 4 dim
    turned: int = 0  # channels of a head that rotary positions rotate, 0 for the default of both packages
    bias: str = ''  # of positions, a name in BIASES
    like: str = ''  # a model of the field, a name in LIKE
    masked: bool = False  # a forward is told that all tokens are real

    @property
    def dim_head(self) -> int:
        return self.head or self.dim // self.heads

    @property
    def dim_inner(self) -> int:
        return self.inner or 4 * self.dim

    @property
    def kv_heads(self) -> int:
        return self.heads // 2 if self.like in GROUPED else self.heads

    @property
    def rotated(self) -> int:
        """How many features of a head rotary positions turn: the default of both packages."""
        return min(max(self.dim_head // 2, 32), self.dim_head)


BIASES = {'T5': 'rel_pos_bias', 'dynamic': 'dynamic_pos_bias', 'ALiBi': 'alibi_pos_bias'}  # flags of both packages
LLAMA: dict[str, Any] = dict(rotary_pos_emb=True, use_rmsnorm=True, ff_swish=True, ff_glu=True, ff_no_bias=True)
LIKE = {
    'Llama': LLAMA,
    'Qwen3': {**LLAMA, 'attn_qk_rmsnorm': True},
    'value residuals': {'add_value_residual': True},
}
GROUPED = ('Llama', 'Qwen3')  # two query heads share a key head


def build(name: str, sizes: Sizes, device: str = 'cpu', dtype: str = 'float32') -> Any:
    """The peer of a column."""
    kind, _, variant = name.partition(' ')
    peer = {
        'ours': Package,
        'original': Package,
        'minimal': Minimal,
        'packed': Packed,
        'huggingface': HuggingFace,
        'floor': Floor,
    }[kind](sizes, variant)
    peer.module.to(device, getattr(torch, dtype))
    peer.ready()
    return peer


class Peer:
    """What peers share."""

    by_hand = True
    likes: tuple[str, ...] = ()  # models of `LIKE` that are written by hand

    def __init__(self, sizes: Sizes, variant: str = '') -> None:
        if self.by_hand and (sizes.like not in ('', *self.likes) or sizes.masked):
            raise NotImplementedError(f'no {sizes.like or "masked"} model by hand')
        self.sizes, self.variant = sizes, variant
        self.module = self.make(sizes)

    def ready(self) -> None:
        """Called when the weights are on their device."""

    def loss(self, ids: Tensor) -> Tensor:
        logits = self.logits(ids)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def logits(self, ids: Tensor) -> Tensor:
        return self.module(ids)

    def masks(self, ids: Tensor, name: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """A mask of real tokens, if the case has one. It hides one: a mask of ones may be dropped."""
        if not self.sizes.masked:
            return {}
        mask = torch.ones_like(ids, dtype=dtype)
        mask[:, -1] = 0
        return {name: mask}

    def step(
        self, ids: Tensor, optimizer: torch.optim.Optimizer, loss: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """A train step, of another loss than its own if there is one."""
        (loss or self.loss)(ids).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------------------------------------------- packages


class Package(Peer):
    """Ours and the original: the same names, from different folders."""

    by_hand = False

    def make(self, sizes: Sizes) -> nn.Module:
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        flags = {'attn_flash': True} if self.variant == 'flash' else {}
        if sizes.bias:
            flags[BIASES[sizes.bias]] = True
        if sizes.rotary:
            flags['rotary_pos_emb'] = True
        if sizes.like in GROUPED:
            flags['attn_kv_heads'] = sizes.kv_heads
        if sizes.turned:
            flags['rotary_emb_dim'] = sizes.turned
        if sizes.inner:
            flags['ff_mult'] = sizes.inner / sizes.dim
        flags |= LIKE.get(sizes.like, {})
        stack = Decoder(dim=sizes.dim, depth=sizes.depth, heads=sizes.heads, attn_dim_head=sizes.dim_head, **flags)
        return AutoregressiveWrapper(
            TransformerWrapper(num_tokens=sizes.tokens, max_seq_len=sizes.length, attn_layers=stack)
        )

    def logits(self, ids: Tensor) -> Tensor:
        return self.module.net(ids, **self.masks(ids, 'mask', dtype=torch.bool))

    def loss(self, ids: Tensor) -> Tensor:
        return self.module(ids)

    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        more = {'compile': True} if self.variant == 'compiled' else {}
        return self.module.generate(ids, tokens, temperature=0.0, **more)


class HuggingFace(Peer):
    """GPT-2 or, for rotary positions, GPT-NeoX with blocks in sequence; Llama or Qwen3. Random weights."""

    by_hand = False

    def make(self, sizes: Sizes) -> nn.Module:
        import transformers

        transformers.logging.set_verbosity_error()
        shared = {
            'vocab_size': sizes.tokens,
            'attn_implementation': 'sdpa',
            'tie_word_embeddings': False,
            'bos_token_id': None,
            'eos_token_id': None,
            'pad_token_id': 0,
        }
        if sizes.bias or sizes.like not in ('', *GROUPED):
            raise NotImplementedError(f'no model with {sizes.bias or sizes.like}')
        if sizes.like:
            made = {'Llama': ('LlamaConfig', 'LlamaForCausalLM'), 'Qwen3': ('Qwen3Config', 'Qwen3ForCausalLM')}
            config, model = (getattr(transformers, name) for name in made[sizes.like])
            return model(config(
                max_position_embeddings=sizes.length, hidden_size=sizes.dim, num_hidden_layers=sizes.depth,
                num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads, head_dim=sizes.dim_head,
                intermediate_size=sizes.dim_inner, **shared))  # fmt: skip
        if sizes.rotary:
            config = transformers.GPTNeoXConfig(
                max_position_embeddings=sizes.length,
                hidden_size=sizes.dim,
                num_hidden_layers=sizes.depth,
                num_attention_heads=sizes.heads,
                intermediate_size=sizes.dim_inner,
                rotary_pct=sizes.rotated / sizes.dim_head,
                use_parallel_residual=False,
                attention_bias=False,
                hidden_act='gelu',
                **shared,
            )
            return transformers.GPTNeoXForCausalLM(config)
        config = transformers.GPT2Config(
            n_positions=sizes.length,
            n_embd=sizes.dim,
            n_layer=sizes.depth,
            n_head=sizes.heads,
            activation_function='gelu',  # the exact one, like all others here
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **shared,
        )
        return transformers.GPT2LMHeadModel(config)

    def logits(self, ids: Tensor) -> Tensor:
        return self.module(ids, use_cache=False, **self.masks(ids, 'attention_mask', torch.long)).logits

    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        static = {}
        if self.variant in ('static', 'compiled'):  # a static cache is compiled unless that is disabled
            static = {'cache_implementation': 'static', 'disable_compile': self.variant == 'static'}
        mask = torch.ones_like(ids)
        out = self.module.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **static)
        return out[:, ids.shape[1] :]


# ---------------------------------------------------------------------------------------------------- by hand


class Block(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm1 = nn.LayerNorm(sizes.dim, bias=False)
        self.qkv = nn.Linear(sizes.dim, 3 * sizes.heads * sizes.dim_head, bias=False)
        self.out = nn.Linear(sizes.heads * sizes.dim_head, sizes.dim, bias=False)
        self.norm2 = nn.LayerNorm(sizes.dim, bias=False)
        self.widen = nn.Linear(sizes.dim, sizes.dim_inner)
        self.narrow = nn.Linear(sizes.dim_inner, sizes.dim)

    def forward(
        self,
        x: Tensor,
        turn: Tensor | None = None,
        bias: Tensor | None = None,
        cache: tuple[Tensor, Tensor] | None = None,
        start: int = 0,
    ) -> Tensor:
        batch, n, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, n, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        if cache is not None:
            end = start + n
            cache[0][:, :, start:end], cache[1][:, :, start:end] = k, v
            k, v = cache[0][:, :, :end], cache[1][:, :, :end]
        attended = F.scaled_dot_product_attention(q, k, v, bias, is_causal=bias is None and n > 1)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, n, -1))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


def rotate(t: Tensor, turn: Tensor) -> Tensor:
    """Pairs of features as complex numbers, times e^(i position angle)."""
    pairs = torch.view_as_complex(t.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).type_as(t)


class Bias(nn.Module):
    """What is added to the scores, (heads, length, length): a function of the distance, -inf for the future."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.kind, heads = sizes.bias, sizes.heads
        width = sizes.dim // 4
        self.scale = sizes.dim_head**0.5  # of T5's values, as in both packages
        self.of: nn.Module | None = None
        if self.kind == 'T5':
            self.of = nn.Embedding(32, heads)
        elif self.kind == 'dynamic':
            layers = (nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, heads))
            self.of = nn.Sequential(*layers)
        self.slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))

    def forward(self, n: int, like: Tensor) -> Tensor:
        far = torch.arange(n, device=like.device)
        if self.kind == 'T5':  # 16 buckets of one distance each, the rest in logarithmic steps up to 128
            steps = 16 + (far.clamp(min=1) / 16).log().div(math.log(128 / 16)).mul(16).long()
            values = self.scale * self.of(torch.where(far < 16, far, steps.clamp(max=31)))
        elif self.kind == 'dynamic':
            values = self.of(far[:, None].to(like.dtype))
        else:
            values = -far[:, None] * self.slopes.to(like.device)
        gap = far[:, None] - far
        return values.to(like.dtype).t()[:, gap.clamp(min=0)].masked_fill(gap < 0, float('-inf'))


class GPT(nn.Module):
    """A decoder of language, by hand. Without a cache it reads whole sequences, with one what follows `start`."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.token = nn.Embedding(sizes.tokens, sizes.dim)
        self.sizes = sizes
        self.bias = Bias(sizes) if sizes.bias else None
        self.place = None if sizes.rotary or sizes.bias == 'T5' else nn.Embedding(sizes.length, sizes.dim)
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes.depth)])
        self.norm = nn.LayerNorm(sizes.dim, bias=False)
        self.logits = nn.Linear(sizes.dim, sizes.tokens, bias=False)
        angles = 10000.0 ** -(torch.arange(0, sizes.rotated, 2) / sizes.rotated)
        angles = F.pad(angles, (0, (sizes.dim_head - sizes.rotated) // 2))  # the other features turn by nothing
        angles = torch.outer(torch.arange(sizes.length), angles)
        # plain float32 tensors: a cast of the model to bfloat16 would lose positions
        self.turns = torch.view_as_real(torch.polar(torch.ones_like(angles), angles)) if sizes.rotary else None
        nn.init.normal_(self.token.weight, std=0.02)

    def features(self, ids: Tensor, cache: list[Any] | None = None, start: int = 0) -> Tensor:
        n = ids.shape[1]
        x, turn = self.token(ids), None
        bias = self.bias(start + n, x)[:, start:] if self.bias is not None else None
        if self.place is not None:
            x = x + self.place.weight[start : start + n]
        if self.turns is not None:
            self.turns = self.turns.to(ids.device)
            turn = torch.view_as_complex(self.turns[start : start + n])
        for index, block in enumerate(self.blocks):
            x = block(x, turn, bias, cache[index] if cache else None, start)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.features(ids))

    @torch.inference_mode()
    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        batch, n = ids.shape
        shape = (batch, self.sizes.heads, n + tokens, self.sizes.dim_head)
        cache = [[self.token.weight.new_empty(shape) for _ in 'kv'] for _ in self.blocks]
        out, start = [], 0
        for _ in range(tokens):
            logits = self.logits(self.features(ids, cache, start)[:, -1:])
            start += ids.shape[1]
            ids = logits.argmax(dim=-1)
            out.append(ids)
        return torch.cat(out, dim=1)


class LlamaBlock(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x)), with rotary positions and grouped key heads.

    With a cache, keys and values are written at the positions `at`, and the queries attend to all positions that
    `visible` (n, length) allows: every step has the same shapes, so one compiled graph serves all of them.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.kv_heads = sizes.heads, sizes.kv_heads
        wide = sizes.dim_head * (sizes.heads + 2 * sizes.kv_heads)
        self.norm1 = nn.RMSNorm(sizes.dim, eps=1e-6)
        self.qkv = nn.Linear(sizes.dim, wide, bias=False)
        self.out = nn.Linear(sizes.heads * sizes.dim_head, sizes.dim, bias=False)
        self.norm2 = nn.RMSNorm(sizes.dim, eps=1e-6)
        self.widen = nn.Linear(sizes.dim, 2 * sizes.dim_inner, bias=False)
        self.narrow = nn.Linear(sizes.dim_inner, sizes.dim, bias=False)

    def forward(
        self,
        x: Tensor,
        turn: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor] | None = None,
        at: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        batch, n, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, n, self.heads + 2 * self.kv_heads, -1).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = rotate_half(q, turn), rotate_half(k, turn)
        if cache is not None and at is not None:
            for buffer, t in zip(cache, (k, v), strict=True):
                buffer.index_copy_(2, at, t)
            k, v = cache
        attended = F.scaled_dot_product_attention(
            q, k, v, visible, is_causal=visible is None, enable_gqa=self.heads != self.kv_heads
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, n, -1))
        gate, value = self.widen(self.norm2(x)).chunk(2, dim=-1)
        return x + self.narrow(F.silu(gate) * value)


def rotate_half(t: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Channels i and i + d / 2 as a pair, rotated by (cos, sin), each (n, d / 2)."""
    cos, sin = (part.to(t.dtype) for part in turn)
    a, b = t.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Llama(nn.Module):
    """A decoder like Llama, by hand, whose decoding step can be captured in a CUDA graph."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.token = nn.Embedding(sizes.tokens, sizes.dim)
        self.blocks = nn.ModuleList([LlamaBlock(sizes) for _ in range(sizes.depth)])
        self.norm = nn.RMSNorm(sizes.dim, eps=1e-6)
        self.logits = nn.Linear(sizes.dim, sizes.tokens, bias=False)
        angles = 10000.0 ** -(torch.arange(0, sizes.dim_head, 2) / sizes.dim_head)
        angles = torch.outer(torch.arange(sizes.length), angles)
        # plain float32 tensors: a cast of the model to bfloat16 would lose positions
        self.turns = (angles.cos(), angles.sin())
        self.buffers: list[tuple[Tensor, Tensor]] | None = None
        nn.init.normal_(self.token.weight, std=0.02)

    def features(self, ids: Tensor) -> Tensor:
        x, turn = self.token(ids), tuple(t[: ids.shape[1]] for t in self.turns)
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.features(ids))

    def step(self, ids: Tensor, cache: list[tuple[Tensor, Tensor]], at: Tensor) -> Tensor:
        """The most likely next token, (b, 1), behind `ids` (b, n) at the positions `at` (n,)."""
        x, turn = self.token(ids), tuple(t[at] for t in self.turns)
        visible = torch.arange(cache[0][0].shape[2], device=ids.device) <= at[:, None]
        for block, own in zip(self.blocks, cache, strict=True):
            x = block(x, turn, own, at, visible)
        return self.logits(self.norm(x)[:, -1:]).argmax(dim=-1)

    def cache(self, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
        """Buffers of keys and values, kept for the next call: a captured graph writes to fixed addresses."""
        shape = (batch, self.sizes.kv_heads, length, self.sizes.dim_head)
        if self.buffers is None or self.buffers[0][0].shape != shape:
            self.buffers = [tuple(self.token.weight.new_zeros(shape) for _ in 'kv') for _ in self.blocks]
            for pair in self.buffers:
                for t in pair:
                    torch._dynamo.mark_static_address(t)
        return self.buffers

    @torch.no_grad()
    def generate(self, ids: Tensor, tokens: int, step: Callable[..., Tensor] | None = None) -> Tensor:
        """Greedy tokens; the prompt is read eagerly, every further token by `step`."""
        (batch, n), step = ids.shape, step or self.step
        cache = self.cache(batch, n + tokens)
        at = torch.arange(n, device=ids.device)
        token = self.step(ids, cache, at)
        out, at = [token], at[-1:] + 1
        for _ in range(tokens - 1):
            token = step(token, cache, at).clone()  # a captured graph writes over its output
            out.append(token)
            at = at + 1
        return torch.cat(out, dim=1)


class ChunkedLoss(torch.autograd.Function):
    """Mean cross entropy of  x W', some rows at a time; the gradients are formed with it."""

    rows = 128

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        dx, dw, total = torch.empty_like(x), torch.zeros_like(weight), x.new_zeros(())
        for part, into, wanted in zip(*(t.split(ChunkedLoss.rows) for t in (x, dx, targets)), strict=True):
            logits = part @ weight.t()
            top = logits.logsumexp(dim=-1, keepdim=True)
            total += (top - logits.gather(1, wanted[:, None])).sum()
            error = logits.sub_(top).exp_()
            error.scatter_add_(1, wanted[:, None], -torch.ones_like(top))
            torch.mm(error, weight, out=into)
            dw.addmm_(error.t(), part)
        ctx.save_for_backward(dx, dw)
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor, Tensor, None]:
        dx, dw = ctx.saved_tensors
        by = by / len(dx)
        return dx.mul_(by), dw.mul_(by), None


class Minimal(Peer):
    """`GPT`, or `Llama`."""

    likes = ('Llama',)

    def loss(self, ids: Tensor) -> Tensor:
        if self.variant != 'chunked':
            return super().loss(ids)
        x = self.module.features(ids)[:, :-1].flatten(0, 1)
        return ChunkedLoss.apply(x, self.module.logits.weight, ids[:, 1:].flatten())

    def make(self, sizes: Sizes) -> nn.Module:
        return Llama(sizes) if sizes.like else GPT(sizes)

    def ready(self) -> None:
        if self.sizes.like:
            self.module.turns = tuple(t.to(self.module.token.weight.device) for t in self.module.turns)
        self.step_of = None

    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        if self.variant != 'compiled':
            return self.module.generate(ids, tokens)
        if not self.sizes.like:
            raise NotImplementedError('its generation is not compiled')
        if self.step_of is None:  # on a CPU there are no graphs to capture
            how = {'mode': 'reduce-overhead'} if ids.is_cuda else {'backend': 'aot_eager'}
            self.step_of = torch.compile(self.module.step, fullgraph=True, **how)
        return self.module.generate(ids, tokens, self.step_of)


class PackedLinear(nn.Module):
    """A linear map whose weight is stored as (in, out): few rows take half the time so, on a CPU. For inference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return (
            x @ self.weight
            if self.bias is None
            else torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)
        )


class Packed(Minimal):
    """`GPT` whose linear maps are packed."""

    likes = ()

    def make(self, sizes: Sizes) -> nn.Module:
        model = GPT(sizes)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, PackedLinear(child))
        return model


# ---------------------------------------------------------------------------------------------------- the floor


class Floor(Peer):
    """The matrix products of the minimal model, into buffers that are there already, and nothing else.

    - Linear maps: y = x W' forward; dx = dy W and dW = dy' x backward. Biases, norms, activations, softmax, residuals,
      embeddings and the loss cost nothing. In training one fused AdamW steps all parameters.
    - Attention: q k' and w v forward, and four of that size backward; as causal as blocks of `rows` queries allow, each
      against the keys up to its end (about half of the square).
    """

    rows = 128

    def make(self, sizes: Sizes) -> nn.Module:
        return GPT(sizes)

    def ready(self) -> None:
        blocks = self.module.blocks
        self.weights = [w.weight for b in blocks for w in (b.qkv, b.out, b.widen, b.narrow)]
        self.weights.append(self.module.logits.weight)
        self.packed = None
        self.buffers: dict[Any, Tensor] = {}

    def buffer(self, *shape: int, use: str = '') -> Tensor:
        key = (use, shape)
        if key not in self.buffers:
            weight = self.weights[0]
            self.buffers[key] = torch.randn(shape, device=weight.device).mul_(0.01).to(weight.dtype)
        return self.buffers[key]

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        rows = ids.numel()
        for weight in self.weights:
            out, into = weight.shape
            torch.mm(self.buffer(rows, into), weight.t(), out=self.buffer(rows, out, use='y'))
        for _ in self.module.blocks:
            self.attend(*ids.shape)
        return self.buffer(rows, self.sizes.tokens, use='y').view(*ids.shape, -1)

    def attend(self, batch: int, length: int, backward: bool = False) -> None:
        heads, width = batch * self.sizes.heads, self.sizes.dim_head
        q, k, v, o, dk, dv = (self.buffer(heads, length, width, use=use) for use in ('q', 'k', 'v', 'o', 'dk', 'dv'))
        for start in range(0, length, self.rows):
            end = min(start + self.rows, length)
            scores = self.buffer(heads, end - start, end, use='s')
            part, keys, values, result = q[:, start:end], k[:, :end], v[:, :end], o[:, start:end]
            torch.bmm(part, keys.mT, out=scores)  # forward: the scores; backward: the gradient of the weights
            torch.bmm(scores, values, out=result)  # forward: the output; backward: the gradient of the queries
            if backward:
                for into, by in ((dk[:, :end], result), (dv[:, :end], part)):  # sums over the blocks
                    torch.baddbmm(into, scores.mT, by, out=into)

    @torch.no_grad()
    def step(self, ids: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Forward, backward and AdamW."""
        rows = ids.numel()
        self.logits(ids)
        for weight in self.weights:
            out, into = weight.shape
            x, y = self.buffer(rows, into), self.buffer(rows, out, use='y')
            torch.mm(y, weight, out=self.buffer(rows, into, use='dx'))
            torch.mm(y.t(), x, out=self.gradient(weight))
        for use in ('dk', 'dv'):  # sums into them would grow from step to step
            self.buffer(ids.shape[0] * self.sizes.heads, ids.shape[1], self.sizes.dim_head, use=use).zero_()
        for _ in self.module.blocks:
            self.attend(*ids.shape, backward=True)
        for weight in self.module.parameters():
            self.gradient(weight)
        optimizer.step()

    @staticmethod
    def gradient(weight: nn.Parameter) -> Tensor:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        return weight.grad

    @torch.no_grad()
    def generate(self, ids: Tensor, tokens: int) -> Tensor:
        """The products of the prompt, then of one token after the other, with packed weights."""
        batch, length = ids.shape
        if self.packed is None:
            self.packed = [weight.t().contiguous() for weight in self.weights]
        heads, width = batch * self.sizes.heads, self.sizes.dim_head
        k, v = (self.buffer(heads, length + tokens, width, use=f'cached {use}') for use in 'kv')
        q, o = (self.buffer(heads, 1, width, use=use) for use in 'qo')
        for position in range(length, length + tokens):
            rows = batch if position > length else batch * length
            for weight in self.packed[:-1]:
                into, out = weight.shape
                torch.mm(self.buffer(rows, into), weight, out=self.buffer(rows, out, use='y'))
            torch.mm(self.buffer(batch, self.sizes.dim), self.packed[-1], out=self.buffer(batch, self.sizes.tokens))
            for _ in self.module.blocks:
                if position == length:
                    self.attend(batch, length)
                    continue
                scores = self.buffer(heads, 1, position, use='s')
                torch.bmm(q, k[:, :position].mT, out=scores)
                torch.bmm(scores, v[:, :position], out=o)
        return ids.new_zeros(batch, tokens)

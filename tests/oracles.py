"""The formulas behind the library, written plainly: what every kernel, cache and short-cut has to reproduce.

Each function takes a dict of weights (named as in the state dict) and tensors, and follows its paper with loops where a
loop is clearer. Nothing here is fast, nothing here knows the library. Axes: b batch, h heads, i queries, j keys,
n tokens, d features. Masks: True may be attended.

To add a paper: its formula as a function, its keywords with their defaults in `ATTENTION`, `FEEDFORWARD` or `STACK`,
one line where it runs.
"""

import math
from collections.abc import Callable
from itertools import product, repeat
from typing import Any

import torch
from torch import Tensor

Weights = dict[str, Tensor]

TOLERANCE = 1e-9


# comparing


def randomised(module: torch.nn.Module, seed: int = 0, scale: float = 0.5) -> torch.nn.Module:
    """In float64 and in evaluation mode, every parameter drawn anew: zeros, ones and identities hide mistakes."""
    module = module.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * scale)
    return module


def randn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def bools(*shape: int, seed: int = 0, keep: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(2000 + seed)
    return torch.rand(shape, generator=generator) < keep


def assert_close(ours: Tensor, theirs: Tensor, what: str = 'output', tolerance: float | None = None) -> None:
    assert ours.shape == theirs.shape, f'{what}: shape {tuple(ours.shape)}, expected {tuple(theirs.shape)}'
    assert torch.isfinite(ours).all(), f'{what} is not finite'
    error = (ours - theirs).abs().max().item() if ours.numel() else 0.0
    bound = (TOLERANCE if tolerance is None else tolerance) * (1 + theirs.abs().max().item() if theirs.numel() else 1)
    assert error <= bound, f'{what} is off by {error:.3g}'


def assert_same(
    module: torch.nn.Module, call: Callable, oracle: Callable, *inputs: Tensor, tolerance: float | None = None
) -> None:
    """`call(*inputs)` equals `oracle(weights, *inputs)`, and so do the gradients of all inputs and parameters."""
    weights = {name: t.detach().clone() for name, t in module.state_dict().items()}
    names = [name for name, _ in module.named_parameters()]
    theirs_in = [weights[name].requires_grad_() for name in names]
    theirs_in += [t.clone().requires_grad_() for t in inputs]
    ours_in = [p for _, p in module.named_parameters()] + [t.clone().requires_grad_() for t in inputs]

    ours, theirs = call(*ours_in[len(names) :]), oracle(weights, *theirs_in[len(names) :])
    assert_close(ours, theirs, tolerance=tolerance)

    cotangent = randn(*theirs.shape, seed=77)
    grads = [
        torch.autograd.grad(out, leaves, cotangent, allow_unused=True)
        for out, leaves in ((ours, ours_in), (theirs, theirs_in))
    ]
    names += [f'input {index}' for index in range(len(inputs))]
    for name, leaf, mine, wanted in zip(names, ours_in, *grads, strict=True):
        mine, wanted = (torch.zeros_like(leaf) if t is None else t for t in (mine, wanted))
        assert_close(mine, wanted, f'gradient of {name}', tolerance)


# small parts


def sub(weights: Weights, prefix: str) -> Weights:
    """The weights below `prefix`, named from there."""
    return {name[len(prefix) :]: t for name, t in weights.items() if name.startswith(prefix)}


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    out = x @ weights[f'{name}.weight'].T
    return out + weights[f'{name}.bias'] if f'{name}.bias' in weights else out


def unit(t: Tensor, groups: int = 1) -> Tensor:
    """Every group of consecutive features divided by its 2-norm, no less than 1e-12."""
    parts = t.chunk(groups, dim=-1)
    return torch.cat([part / part.norm(dim=-1, keepdim=True).clamp(min=1e-12) for part in parts], dim=-1)


def soft_clamp(t: Tensor, bound: float) -> Tensor:
    return bound * torch.tanh(t / bound)


def split_heads(t: Tensor, heads: int) -> Tensor:
    """b n (h d) -> b h n d"""
    return torch.stack(t.chunk(heads, dim=-1), dim=1)


def merge_heads(t: Tensor) -> Tensor:
    """b h n d -> b n (h d)"""
    return torch.cat(t.unbind(dim=1), dim=-1)


def mix_heads(matrix: Tensor, t: Tensor) -> Tensor:
    """Talking heads, 2003.02436: new head o = sum over h of matrix[o, h] times head h."""
    return torch.einsum('oh,bhij->boij', matrix[:, :, 0, 0], t)


# norms


def layer_norm(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """1607.06450, without bias: biased variance, 1e-5 under the root."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + 1e-5) * gain


def rms_norm(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    """1910.07467 (and ScaleNorm, 1910.05895, when the gain is one number)."""
    return unit(x) * math.sqrt(x.shape[-1]) * gain


def per_token(condition: Tensor) -> Tensor:
    return condition[:, None] if condition.ndim == 2 else condition


def norm(weights: Weights, x: Tensor, kind: str, offset: bool, condition: Tensor | None = None) -> Tensor:
    """`kind`: layer, rms, scale, simple, adaptive_layer, adaptive_rms. `offset`: gains are stored minus one."""
    base = layer_norm if kind in ('layer', 'adaptive_layer') else rms_norm
    if kind.startswith('adaptive'):
        return base(x, 1 + linear(weights, 'to_gamma', per_token(condition)))
    if kind == 'simple':
        return base(x)
    return base(x, weights['gamma' if kind == 'layer' else 'g'] + (1 if offset else 0))


# positions


def learned_positions(weights: Weights, pos: Tensor) -> Tensor:
    table = weights['emb.weight']
    return table[pos] / math.sqrt(table.shape[-1])


def sinusoid(weights: Weights, pos: Tensor, dim: int, theta: float = 10000, less: int = 0) -> Tensor:
    """1706.03762, sines first, then cosines, times a learned scale; exponents k / (d / 2 - 1) if 1 less."""
    half = dim // 2
    angles = [pos.double() * theta ** (-k / (half - less)) for k in range(half)]
    return torch.stack([a.sin() for a in angles] + [a.cos() for a in angles], dim=-1) * weights['scale']


def rotary_frequencies(dim: int, base: float = 10000, rescale: float = 1.0) -> Tensor:
    """2104.09864; `rescale` moves the base so that the longest wave is stretched by that factor."""
    if rescale != 1:
        base = base * rescale ** (dim / max(dim - 2, 1))
    return torch.tensor([base ** (-2 * k / dim) for k in range((dim + 1) // 2)], dtype=torch.float64)


def rotary_angles(pos: Tensor, frequencies: Tensor, interpolation: float = 1.0) -> Tensor:
    """(n,) or b n -> 1 or b, n, features; each angle stands at two neighbouring features; 2306.15595 interpolates."""
    pos = pos.double()[None] if pos.ndim == 1 else pos.double()
    angles = pos[..., None] / interpolation * frequencies.double()
    return torch.stack((angles, angles), dim=-1).flatten(-2)


def xpos_decays(dim: int) -> Tensor:
    """2212.10554: per pair of features, what a query and a key lose for every `scale_base` places between them."""
    return torch.tensor([(2 * k + 0.4 * dim) / (1.4 * dim) for k in range((dim + 1) // 2)], dtype=torch.float64)


def xpos_scale(pos: Tensor, decays: Tensor, scale_base: float = 512, centre: int | None = None) -> Tensor:
    """What queries are multiplied with and keys divided by; counted from the middle of the sequence by default."""
    pos = pos.double()[None] if pos.ndim == 1 else pos.double()
    centre = (int(pos.max()) + 1) // 2 if centre is None else centre
    scale = decays.double() ** ((pos[..., None] - centre) / scale_base)
    return torch.stack((scale, scale), dim=-1).flatten(-2)


def rotate(t: Tensor, angles: Tensor, scale: Tensor | float = 1.0) -> Tensor:
    """Turn each pair of neighbouring features (2k, 2k+1) of t (b h n d) by its angle; further features stay."""
    width, length = angles.shape[-1], t.shape[-2]
    angles = angles[:, None, -length:]
    if isinstance(scale, Tensor):
        scale = scale[:, None, -length:, 0::2]
    cos, sin = angles[..., 0::2].cos(), angles[..., 0::2].sin()
    even, odd = t[..., 0:width:2], t[..., 1:width:2]
    pairs = ((even * cos - odd * sin) * scale, (odd * cos + even * sin) * scale)
    return torch.cat((torch.stack(pairs, dim=-1).flatten(-2), t[..., width:]), dim=-1)


def distances(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Query minus key: (i,), (j,) -> i j, or b i, b j -> b i j."""
    return q_pos[..., :, None] - k_pos[..., None, :]


def alibi_slopes(heads: int) -> list[float]:
    """2108.12409; between powers of two, every other slope of the next power is appended."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * k / power) for k in range(1, power + 1)]
    finer = [2 ** (-8 * k / (2 * power)) for k in range(1, 2 * power + 1)]
    return (slopes + finer[0::2])[:heads]


def alibi_bias(q_pos: Tensor, k_pos: Tensor, slopes: list[float], total_heads: int) -> Tensor:
    """(i,), (j,) -> h i j, or b i, b j -> b h i j; heads without a slope get zeros."""
    slopes = [*slopes, *([0.0] * (total_heads - len(slopes)))]
    return torch.stack([-slope * distances(q_pos, k_pos).abs().double() for slope in slopes], dim=-3)


def t5_bucket(distance: int, causal: bool, num_buckets: int = 32, max_distance: int = 128) -> int:
    """1910.10683, `distance` = query minus key: exact when near, logarithmic when far; in exact integers."""
    offset = 0
    if causal:
        distance = max(distance, 0)
    else:
        num_buckets //= 2
        offset = num_buckets if distance < 0 else 0
        distance = abs(distance)
    exact = num_buckets // 2
    if distance < exact:
        return offset + distance
    # the largest t with (distance / exact) ** far >= (max_distance / exact) ** t
    far = num_buckets - exact
    t = 0
    while exact + t < num_buckets - 1 and distance**far * exact ** (t + 1) >= max_distance ** (t + 1) * exact**far:
        t += 1
    return offset + exact + t


def t5_bias(weights: Weights, q_pos: Tensor, k_pos: Tensor, scale: float, **bucket: Any) -> Tensor:
    """(i,), (j,) -> h i j, or b i, b j -> b h i j"""
    away = distances(q_pos, k_pos)
    buckets = torch.tensor([t5_bucket(distance, **bucket) for distance in away.flatten().tolist()]).view(away.shape)
    return weights['relative_attention_bias.weight'][buckets].movedim(-1, -3) * scale


def dynamic_bias(weights: Weights, q_pos: Tensor, k_pos: Tensor, log_distance: bool = False) -> Tensor:
    """2108.00154 (2111.09883 with the logarithm): a small network of the signed distance; shapes as for T5."""
    t = distances(q_pos, k_pos)[..., None].double()
    if log_distance:
        t = t.sign() * (t.abs() + 1).log()
    layer = 0
    while f'mlp.{layer}.0.weight' in weights:
        t = linear(weights, f'mlp.{layer}.0', t)
        if f'mlp.{layer}.1.gamma' in weights:
            t = layer_norm(t, weights[f'mlp.{layer}.1.gamma'])
        elif f'mlp.{layer}.1.weight' in weights:
            t = layer_norm(t, weights[f'mlp.{layer}.1.weight']) + weights[f'mlp.{layer}.1.bias']
        t = t * torch.sigmoid(t)
        layer += 1
    return linear(weights, f'mlp.{layer}', t).movedim(-1, -3)


# attention

ATTENTION: dict[str, Any] = {
    # constructor
    **dict(heads=8, dim_head=64, kv_heads=None, one_kv_head=False, value_dim_head=None, causal=False),
    **dict(pre_talking_heads=False, post_talking_heads=False, pre_scale_post_talking_heads=False, head_scale=False),
    **dict(sparse_topk=None, sparse_topk_straight_through=False, sigmoid=False, custom_attn_fn=None, num_mem_kv=0),
    **dict(on_attn=False, gate_values=False, gate_value_heads=False, swiglu_values=False, max_attend_past=None),
    **dict(qk_norm=False, qk_norm_groups=1, qk_norm_scale=10.0, qk_norm_dim_scale=False, qk_rmsnorm=False),
    **dict(softclamp_logits=False, logit_softclamp_value=50.0, add_zero_kv=False, learned_value_residual_mix=False),
    # already in the weights, or without effect on values
    **dict(flash=None, dim_context=None, dropout=0.0, zero_init_output=False),
    # call
    **dict(mask=None, context_mask=None, attn_mask=None, attn_bias=None, prev_attn=None, value_residual=None),
    **dict(rotary_pos_emb=None, context_rotary_pos_emb=None, mem=None, mem_mask=None),
}


def options(defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    assert not given.keys() - defaults.keys(), f'the oracle does not know {given.keys() - defaults.keys()}'
    return {**defaults, **given}


def attention(weights: Weights, x: Tensor, context: Tensor | None = None, **given: Any) -> Tensor:
    """1706.03762 and its variations: what `Attention(...)(x, context, ...)` returns."""
    return attention_and_maps(weights, x, context, **given)[0]


def attention_and_maps(weights: Weights, x: Tensor, context: Tensor | None = None, **given: Any) -> tuple[Tensor, dict]:
    """The output, and `similarities`, `logits` (before the mask), `seen`, `weights`, `values`."""
    o = options(ATTENTION, given)
    heads, width = o['heads'], o['dim_head']

    q, k, v, values = project(weights, x, context, o)
    if o['rotary_pos_emb'] is not None:
        angles, scale = o['rotary_pos_emb']
        k_angles, k_scale = o['rotary_pos_emb'] if context is None else o['context_rotary_pos_emb']
        q, k = rotate(q, angles, scale), rotate(k, k_angles, 1 / k_scale)

    seen, bias = visible(x, context, k.shape[-2], o), o['attn_bias']
    k, v, extra = with_extra_keys(weights, k, v, o)
    seen = torch.nn.functional.pad(seen, (extra, 0), value=True)
    if bias is not None:
        bias = torch.nn.functional.pad(bias, (extra, 0))

    # query head h reads key/value head h mod the number of those
    k, v = (torch.stack([t[:, h % t.shape[1]] for h in range(heads)], dim=1) for t in (k, v))

    fixed_scale = o['qk_norm'] and not o['qk_norm_dim_scale']
    similarities = q @ k.transpose(-1, -2) * (o['qk_norm_scale'] if fixed_scale else width**-0.5)
    if o['prev_attn'] is not None:  # 2012.11747
        similarities = similarities + o['prev_attn']
    logits = similarities
    if o['pre_talking_heads']:
        logits = logits + mix_heads(weights['attend.pre_softmax_talking_heads.weight'], logits)
    if bias is not None:
        logits = logits + bias
    if o['softclamp_logits']:  # 2408.00118
        logits = soft_clamp(logits, o['logit_softclamp_value'])

    attn = mixed = attention_weights(logits, seen, o)
    if o['post_talking_heads']:
        mixed = mix_heads(weights['attend.post_softmax_talking_heads.weight'], mixed)
    if o['pre_scale_post_talking_heads']:
        mixed = mixed * mix_heads(weights['attend.pre_scale_post_talking_heads.weight'], similarities)
    out = (mixed @ v).masked_fill(~seen.any(dim=-1, keepdim=True), 0)

    out = read_out(weights, x, out, o)
    if o['mask'] is not None:
        out = out.masked_fill(~o['mask'][..., None], 0)
    return out, dict(similarities=similarities, logits=logits, seen=seen, weights=attn, values=values)


def project(
    weights: Weights, x: Tensor, context: Tensor | None, o: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values with their norms, and the values as projected."""
    source = x if context is None else context
    if o['mem'] is not None:  # 1901.02860
        source = torch.cat((o['mem'], source), dim=1)
    kv_heads = 1 if o['one_kv_head'] else o['kv_heads'] or o['heads']
    q = split_heads(linear(weights, 'to_q', x), o['heads'])
    k, v = (split_heads(linear(weights, name, source), kv_heads) for name in ('to_k', 'to_v'))

    values = v
    if o['value_residual'] is not None:  # 2410.17897
        mix = 0.5
        if o['learned_value_residual_mix']:
            mix = torch.sigmoid(linear(weights, 'to_value_residual_mix.0', x)).transpose(1, 2)[..., None]
        v = o['value_residual'] + mix * (v - o['value_residual'])
    if o['qk_norm']:  # 2010.04245
        q, k = unit(q, o['qk_norm_groups']), unit(k, o['qk_norm_groups'])
        if o['qk_norm_dim_scale']:  # 2302.05442
            q, k = q * weights['qk_norm_q_scale'], k * weights['qk_norm_k_scale']
    if o['qk_rmsnorm']:
        q = rms_norm(q, weights['q_rmsnorm.gamma'] + 1)
        k = rms_norm(k, weights['k_rmsnorm.gamma'] + 1)
    return q, k, v, values


def with_extra_keys(weights: Weights, k: Tensor, v: Tensor, o: dict[str, Any]) -> tuple[Tensor, Tensor, int]:
    """Learned memories (1907.01470), then one zero key with a zero value, in front; and how many they are."""
    length = k.shape[-2]
    if o['num_mem_kv']:
        mem_k, mem_v = weights['mem_k'], weights['mem_v']
        if o['qk_norm']:
            mem_k = unit(mem_k, o['qk_norm_groups'])
            if o['qk_norm_dim_scale']:
                mem_k = mem_k * weights['qk_norm_k_scale']
        k, v = (torch.cat((m.expand(len(t), -1, -1, -1), t), dim=2) for m, t in ((mem_k, k), (mem_v, v)))
    if o['add_zero_kv']:
        k, v = (torch.nn.functional.pad(t, (0, 0, 1, 0)) for t in (k, v))
    return k, v, k.shape[-2] - length


def visible(x: Tensor, context: Tensor | None, j: int, o: dict[str, Any]) -> Tensor:
    """b h i j: the keys (XL memory included) each query may read. The last query stands at the last key."""
    b, i = x.shape[:2]
    keys = o['context_mask']
    if keys is None and context is None:
        keys = o['mask']
        if keys is None and o['mem_mask'] is not None:
            keys = torch.ones(b, i, dtype=torch.bool)
    if keys is not None and keys.shape[1] < j:
        past = o['mem_mask']
        past = torch.ones(b, j - keys.shape[1], dtype=torch.bool) if past is None else past
        keys = torch.cat((past, keys), dim=1)

    seen = torch.ones(b, o['heads'], i, j, dtype=torch.bool)
    for row, query, key in product(range(b), range(i), range(j)):
        distance = query + j - i - key
        hidden = keys is not None and not keys[row, key]
        hidden |= bool(o['causal']) and distance < 0
        hidden |= o['max_attend_past'] is not None and distance > o['max_attend_past']
        seen[row, :, query, key] = not hidden
    return seen if o['attn_mask'] is None else seen & o['attn_mask']


def attention_weights(logits: Tensor, seen: Tensor, o: dict[str, Any]) -> Tensor:
    """The weight of each key; hidden keys weigh nothing, and a query that sees no key gives every key nothing."""
    if o['custom_attn_fn'] is not None:
        attn = o['custom_attn_fn'](logits.masked_fill(~seen, torch.finfo(logits.dtype).min))
        return attn.masked_fill(~seen.any(dim=-1, keepdim=True), 0)
    if o['sigmoid']:  # 2409.04431
        return torch.sigmoid(logits) * seen
    if o['sparse_topk'] is None:
        return softmax(logits, seen)
    sparse = softmax(logits, seen & among_largest(logits, seen, o['sparse_topk']))
    if not o['sparse_topk_straight_through']:
        return sparse
    dense = softmax(logits, seen)  # 2505.22074: the gradient is that of the dense weights
    return dense + (sparse - dense).detach()


def softmax(logits: Tensor, seen: Tensor) -> Tensor:
    top = logits.masked_fill(~seen, -math.inf).amax(dim=-1, keepdim=True).detach()
    top = top.masked_fill(top.isinf(), 0)
    exp = torch.exp((logits - top).masked_fill(~seen, -math.inf))
    total = exp.sum(dim=-1, keepdim=True)
    return exp / total.masked_fill(total == 0, 1)


def among_largest(logits: Tensor, seen: Tensor, count: int) -> Tensor:
    """1912.11637: the `count` largest visible logits of each row, and whatever ties with the last of them."""
    keep = torch.zeros_like(seen)
    for at in product(*(range(size) for size in logits.shape[:-1])):
        row = logits[at].tolist()
        ranked = sorted((value for value, shown in zip(row, seen[at], strict=True) if shown), reverse=True)
        if ranked:
            least = ranked[min(count, len(ranked)) - 1]
            keep[at] = torch.tensor([value >= least for value in row])
    return keep


def read_out(weights: Weights, x: Tensor, out: Tensor, o: dict[str, Any]) -> Tensor:
    """Scales and gates of the heads' results, and the projection that joins the heads."""
    if o['head_scale']:  # 2110.09456
        out = out * weights['head_scale_params']
    if o['gate_value_heads']:  # 2306.12929
        out = out * torch.sigmoid(linear(weights, 'to_v_head_gate', x)).transpose(1, 2)[..., None]
    out = merge_heads(out)
    if o['gate_values']:
        gate = linear(weights, 'to_v_gate', x)
        out = out * torch.sigmoid(gate) * (gate if o['swiglu_values'] else 1)
    if o['on_attn']:  # 1908.06954
        value, gate = linear(weights, 'to_out.0', out).chunk(2, dim=-1)
        return value * torch.sigmoid(gate)
    return linear(weights, 'to_out', out) if 'to_out.weight' in weights else out


# feed-forward

FEEDFORWARD: dict[str, Any] = {
    **dict(glu=False, glu_mult_bias=False, swish=False, relu_squared=False, custom_activation=None, post_act_ln=False),
    # already in the weights, or without effect on values
    **dict(mult=4, dim_out=None, no_bias=False, dropout=0.0, zero_init_output=False),
}


def gelu(t: Tensor) -> Tensor:
    return t * 0.5 * (1 + torch.erf(t / math.sqrt(2)))


def feedforward(weights: Weights, x: Tensor, **given: Any) -> Tensor:
    o = options(FEEDFORWARD, given)
    activation: Callable = gelu
    if o['swish']:  # 1710.05941
        activation = lambda t: t * torch.sigmoid(t)  # noqa: E731
    if o['relu_squared']:  # 2109.08668
        activation = lambda t: t * t * (t > 0)  # noqa: E731
    if o['custom_activation'] is not None:
        activation = o['custom_activation']

    if o['glu']:  # 2002.05202
        value, gate = linear(weights, 'ff.0.proj', x).chunk(2, dim=-1)
        hidden = value * activation(gate)
        if o['glu_mult_bias']:
            hidden = hidden * weights['ff.0.mult_bias']
    else:
        hidden = activation(linear(weights, 'ff.0.0', x))
    if o['post_act_ln']:  # 2110.09456
        hidden = layer_norm(hidden, weights['ff.1.gamma'])
    return linear(weights, 'ff.3' if o['post_act_ln'] else 'ff.2', hidden)


# the order of layers


def layer_types(
    depth: int | None = None,
    cross_attend: bool = False,
    only_cross: bool = False,
    macaron: bool = False,
    custom_layers: tuple[str, ...] | None = None,
    sandwich_coef: int | None = None,
    par_ratio: int | None = None,
) -> str:
    """'a' self-attention, 'c' cross-attention, 'f' feed-forward."""
    block = ('c' if only_cross else 'ac') if cross_attend else 'a'
    block = ('f' if macaron else '') + block + 'f'
    if custom_layers is not None:
        return ''.join(custom_layers)
    assert depth is not None
    if sandwich_coef is not None:  # 1911.03864: attention first, feed-forward last
        return 'a' * sandwich_coef + block * (depth - sandwich_coef) + 'f' * sandwich_coef
    if par_ratio is not None:  # 2009.04534: attention spread over the first two thirds
        total = depth * len(block)
        attend = block.replace('f', '')
        repeats, cut = total // par_ratio, total * 2 // 3
        width = (cut + cut // repeats) // repeats
        return (attend.ljust(width, 'f') * repeats).ljust(total, 'f')
    return block * depth


# the stack

STACK: dict[str, Any] = {
    # constructor
    **dict(dim=None, depth=None, heads=8, causal=False, cross_attend=False, only_cross=False, macaron=False),
    **dict(custom_layers=None, sandwich_coef=None, par_ratio=None, layers_execute_order=None, weight_tie_layers=False),
    **dict(pre_norm=True, sandwich_norm=False, norm_add_unit_offset=True, use_scalenorm=False, use_rmsnorm=False),
    **dict(use_simple_rmsnorm=False, use_adaptive_layernorm=False, use_adaptive_rmsnorm=False),
    **dict(use_adaptive_layerscale=False, adaptive_condition_mlp=False, use_layerscale=False),
    **dict(gate_residual=False, scale_residual=False, scale_residual_constant=1.0, shift_tokens=0),
    **dict(residual_attn=False, cross_residual_attn=False, add_value_residual=False, learned_value_residual_mix=True),
    **dict(rotary_pos_emb=False, rotary_xpos=False, rotary_interpolation_factor=1.0, rotary_xpos_scale_base=512),
    **dict(alibi_pos_bias=False, alibi_num_heads=None, rel_pos_bias=False, rel_pos_num_buckets=32),
    **dict(rel_pos_max_distance=128, dynamic_pos_bias=False, dynamic_pos_bias_log_distance=False),
    # already in the weights, or without effect on values
    **dict(dim_condition=None, layerscale_init_value=0.0, zero_init_branch_output=False, layer_dropout=0.0),
    **dict(adaptive_condition_mlp_expansion=4, dynamic_pos_bias_mlp_depth=2, dynamic_pos_bias_norm=False),
    **dict(rotary_emb_dim=None, rotary_base_rescale_factor=1.0, verbose=True, norm=None),
    # call
    **dict(mask=None, context_mask=None, attn_mask=None, self_attn_kv_mask=None, attn_bias=None, condition=None),
    **dict(pos=None, context_pos=None, seq_start_pos=None, mems=None, mem_masks=None),
}


def by_prefix(given: dict[str, Any]) -> tuple[dict, dict, dict, dict]:
    """Keywords of the stack, of self-attention, of cross-attention (which starts from those), of feed-forwards."""
    parts: dict[str, dict] = {'cross_attn_': {}, 'attn_': {}, 'ff_': {}, '': {}}
    for name, value in given.items():
        prefix = '' if name in STACK else next(prefix for prefix in parts if name.startswith(prefix))
        parts[prefix][name[len(prefix) :]] = value
    return options(STACK, parts['']), parts['attn_'], {**parts['attn_'], **parts['cross_attn_']}, parts['ff_']


def gru(weights: Weights, out: Tensor, residual: Tensor) -> Tensor:
    """1910.06764: one step of a GRU, the branch as its input, the residual as its state."""
    from_out = out @ weights['weight_ih'].T + weights['bias_ih']
    from_state = residual @ weights['weight_hh'].T + weights['bias_hh']
    (r_o, z_o, n_o), (r_s, z_s, n_s) = from_out.chunk(3, dim=-1), from_state.chunk(3, dim=-1)
    reset, update = torch.sigmoid(r_o + r_s), torch.sigmoid(z_o + z_s)
    return (1 - update) * torch.tanh(n_o + reset * n_s) + update * residual


def token_shift(x: Tensor, amount: int, causal: bool, mask: Tensor | None) -> Tensor:
    """Equal groups of features move 0 .. amount places on (or -amount .. amount); what is left over stays.

    What moves away from a hidden token is zeroed.
    """
    shifts = range(0 if causal else -amount, amount + 1)
    width, length = x.shape[-1] // len(shifts), x.shape[1]
    parts = []
    for index, shift in enumerate(shifts):
        part = x[..., index * width : (index + 1) * width]
        if mask is not None and shift:
            part = part * mask[..., None]
        moved = [part[:, t - shift] if 0 <= t - shift < length else torch.zeros_like(part[:, t]) for t in range(length)]
        parts.append(torch.stack(moved, dim=1))
    return torch.cat((*parts, x[..., len(shifts) * width :]), dim=-1)


def position_bias(weights: Weights, i: int, j: int, attn: dict, o: dict[str, Any]) -> Tensor | None:
    """What is added to the logits of every self-attention: that of the user, and that of the positions."""
    q_pos, k_pos = (torch.arange(j)[-i:], torch.arange(j)) if o['pos'] is None else (o['pos'], o['pos'])
    terms = [] if o['attn_bias'] is None else [o['attn_bias']]
    if o['alibi_pos_bias']:
        slopes = alibi_slopes(o['heads'] if o['alibi_num_heads'] is None else o['alibi_num_heads'])
        terms.append(alibi_bias(q_pos, k_pos, slopes, o['heads']))
    weights = sub(weights, 'rel_pos.')
    if o['rel_pos_bias']:
        buckets = dict(num_buckets=o['rel_pos_num_buckets'], max_distance=o['rel_pos_max_distance'])
        terms.append(t5_bias(weights, q_pos, k_pos, attn.get('dim_head', 64) ** 0.5, causal=o['causal'], **buckets))
    if o['dynamic_pos_bias']:
        terms.append(dynamic_bias(weights, q_pos, k_pos, o['dynamic_pos_bias_log_distance']))
    return sum(terms) if terms else None


def rotary(weights: Weights, n: int, past: int, o: dict[str, Any]) -> dict[str, Any]:
    """The angles of the sequence and of the context, as keywords of cross-attention."""
    if not (o['rotary_pos_emb'] or o['rotary_xpos']):
        return {}
    frequencies = weights['rotary_pos_emb.inv_freq']
    tables = {}
    positions = torch.arange(-past, n) if o['pos'] is None else o['pos']
    if o['seq_start_pos'] is not None and o['pos'] is None:  # learned keys stand still: a row must not see its padding
        positions = positions - o['seq_start_pos'][:, None]
    for name, pos in (('rotary_pos_emb', positions), ('context_rotary_pos_emb', o['context_pos'])):
        if pos is not None:
            scale: Tensor | float = 1.0
            if o['rotary_xpos']:
                scale = xpos_scale(pos, weights['rotary_pos_emb.scale'], o['rotary_xpos_scale_base'], centre=0)
            tables[name] = (rotary_angles(pos, frequencies, o['rotary_interpolation_factor']), scale)
    return tables


def norm_kind(o: dict[str, Any]) -> str:
    kinds = {
        f'use_{name}': kind
        for name, kind in (
            ('scalenorm', 'scale'),
            ('rmsnorm', 'rms'),
            ('simple_rmsnorm', 'simple'),
            ('adaptive_layernorm', 'adaptive_layer'),
            ('adaptive_rmsnorm', 'adaptive_rms'),
        )
    }
    return next((kind for flag, kind in kinds.items() if o[flag]), 'layer')


def stack(weights: Weights, x: Tensor, context: Tensor | None = None, **given: Any) -> Tensor:
    """What a stack with these keywords returns, given its weights and the arguments of its forward call."""
    return Stack(weights, context, **given)(x)


class Stack:
    def __init__(self, weights: Weights, context: Tensor | None = None, **given: Any) -> None:
        self.o, self.attn, self.cross, self.ff = by_prefix(given)
        o = self.o
        self.weights, self.context, self.kind = weights, context, norm_kind(o)
        names = ('depth', 'cross_attend', 'only_cross', 'macaron', 'custom_layers', 'sandwich_coef', 'par_ratio')
        self.types = layer_types(**{name: o[name] for name in names})
        self.order = o['layers_execute_order'] or range(len(self.types))
        if o['weight_tie_layers']:  # 1909.11942
            block = len(self.types) // o['depth']
            self.order = [*range(block)] * o['depth']
        self.condition = o['condition'] if o['condition'] is None else per_token(o['condition'])
        if o['adaptive_condition_mlp']:
            hidden = linear(weights, 'adaptive_mlp.0', self.condition)
            self.condition = hidden * torch.sigmoid(hidden)
        self.mems, self.mem_masks = (iter(o[name] or repeat(None)) for name in ('mems', 'mem_masks'))
        # by kind of attention: the logits of the last one, the values of the first one
        self.logits: dict[str, Tensor] = {}
        self.values: dict[str, Tensor] = {}

    def __call__(self, x: Tensor) -> Tensor:
        for index in self.order:
            x = self.layer(index, x)
        return self.norm('final_norm', x) if self.o['pre_norm'] else x

    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(sub(self.weights, f'{name}.'), x, self.kind, self.o['norm_add_unit_offset'], self.condition)

    def layer(self, index: int, x: Tensor) -> Tensor:
        """Norm, branch, norm of the branch (2105.13290), residual, norm after it (post-norm stacks)."""
        o, name = self.o, f'layers.{index}'
        out = self.branch(index, self.norm(f'{name}.0.0', x) if o['pre_norm'] else x)
        if o['sandwich_norm']:
            out = self.norm(f'{name}.0.1', out)
        residual = x * self.weights[f'{name}.2.residual_scale'] if o['scale_residual'] else x
        if o['gate_residual']:
            x = gru(sub(self.weights, f'{name}.2.gru.'), out, residual)
        else:
            x = out + residual * o['scale_residual_constant']
        return x if o['pre_norm'] else self.norm(f'{name}.0.2', x)

    def branch(self, index: int, x: Tensor) -> Tensor:
        """The attention or feed-forward of a layer, inside its wrappers: each adds `fn.` to the names further in."""
        o, weights, scale = self.o, sub(self.weights, f'layers.{index}.1.'), 1.0
        if isinstance(o['scale_residual'], float):
            weights, scale = sub(weights, 'fn.'), o['scale_residual']
        if o['use_layerscale']:  # 2103.17239
            weights, scale = sub(weights, 'fn.'), scale * (weights['gamma'] + o['norm_add_unit_offset'])
        if o['use_adaptive_layerscale']:
            weights, scale = sub(weights, 'fn.'), scale * torch.sigmoid(linear(weights, 'to_gamma', self.condition))
        shift = o['shift_tokens'] if isinstance(o['shift_tokens'], int) else o['shift_tokens'][index]
        if shift:
            real = o['mask']
            if o['seq_start_pos'] is not None:
                started = torch.arange(x.shape[1]) >= o['seq_start_pos'][:, None]
                real = started if real is None else real & started
            weights, x = sub(weights, 'fn.'), token_shift(x, shift, o['causal'], real)
        if self.types[index] != 'f':
            return self.attend(index, weights, x) * scale
        if o['macaron']:  # 1906.02762
            weights, scale = sub(weights, 'fn.'), scale * 0.5
        return feedforward(weights, x, **self.ff) * scale

    def attend(self, index: int, weights: Weights, x: Tensor) -> Tensor:
        o, kind = self.o, self.types[index]
        call: dict[str, Any] = dict(heads=o['heads'], mask=o['mask'])
        if kind == 'a':
            call |= self.attn | self.self_attention(index, x)
        else:
            call |= self.cross | dict(context=self.context, context_mask=o['context_mask'])
            if o['context_pos'] is not None:
                call |= rotary(self.weights, x.shape[1], 0, o)
        if o['residual_attn' if kind == 'a' else 'cross_residual_attn']:
            call['prev_attn'] = self.logits.get(kind)
        if o['add_value_residual'] and kind in self.values:
            learned = 'to_value_residual_mix.0.weight' in weights
            call |= dict(value_residual=self.values[kind], learned_value_residual_mix=learned)
        out, maps = attention_and_maps(weights, x, **call)
        self.logits[kind] = maps['logits']
        self.values.setdefault(kind, maps['values'])
        return out

    def self_attention(self, index: int, x: Tensor) -> dict[str, Any]:
        """What only self-attention receives: causality, masks, positions, memories."""
        o, n, mem, mem_mask = self.o, x.shape[1], next(self.mems), next(self.mem_masks)
        past = 0 if mem is None else mem.shape[1]
        if mem is not None and o['pre_norm']:
            mem = self.norm(f'layers.{index}.0.0', mem)
        keys = o['self_attn_kv_mask']
        if o['seq_start_pos'] is not None:
            keys = o['mask'] if keys is None else keys
            started = torch.arange(n) >= o['seq_start_pos'][:, None]
            keys = started if keys is None else keys & started
        bias = position_bias(self.weights, n, n + past, self.attn, o)
        angles = rotary(self.weights, n, past, o).get('rotary_pos_emb')
        call = dict(causal=o['causal'], context_mask=keys, attn_mask=o['attn_mask'], mem=mem, mem_mask=mem_mask)
        return call | dict(attn_bias=bias, rotary_pos_emb=angles)


# two streams


def etc_attention(
    weights: Weights, streams: dict[str, Tensor], heads: int, share: str,
    sees: Callable[[str, int, int, int], Any], label: Callable[[str, int, int, int], int], penalty: float | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """2004.08483:  e_ij = s q_i (k_j + P_label(i, j)), one softmax over the tokens of both streams.

    sees, label    of a piece (whose queries, '2', whose keys), row, query and key; a label of -1 adds nothing
    penalty        of hidden keys, as the paper has it; None: they have no weight
    """
    ends = {'all': dict.fromkeys(streams, ''), 'kv': {name: f'_{name}' for name in streams}}
    ends['none'] = ends['kv']

    def of(name: str, stream: str, piece: str) -> Tensor:
        end = f'_{piece}' if share == 'none' else ends[share][stream]
        return split_heads(linear(weights, name + end, streams[stream]), heads)

    outs = {}
    for stream, x in streams.items():
        q = split_heads(linear(weights, f'to_q{ends[share][stream]}', x), heads)
        gathered = torch.zeros_like(q)
        for row, head, i in product(*(range(size) for size in q.shape[:3])):
            logits, values = [], []
            for source, keys in streams.items():
                piece = f'{stream[0]}2{source[0]}'
                k, v = of('to_k', source, piece), of('to_v', source, piece)
                for j in range(keys.shape[1]):
                    seen, at = sees(piece, row, i, j), label(piece, row, i, j)
                    if penalty is None and not seen:
                        continue
                    key = k[row, head, j] if at < 0 else k[row, head, j] + weights['rel_k'][at]
                    logit = (q[row, head, i] * key).sum() * q.shape[-1] ** -0.5
                    logits.append(logit if seen else logit - penalty)
                    values.append(v[row, head, j])
            if logits:
                gathered[row, head, i] = torch.stack(logits).softmax(dim=0) @ torch.stack(values)
        outs[stream] = linear(weights, f'to_out{ends[share][stream]}', merge_heads(gathered))
    return outs


def etc_encoder(
    weights: Weights, long: Tensor, glob: Tensor, real: dict[str, Tensor] | None = None, **given: Any
) -> tuple[Tensor, Tensor]:
    """Blocks of attention and feedforward, with norms before each and at the end, of their own or for both streams."""
    streams = {'long': long, 'global': glob}
    own = 'final_norm_long.gamma' in weights
    end = {stream: f'_{stream}' if own else '' for stream in streams}
    for depth in range(1 + max(int(name.split('.')[1]) for name in weights if name[:7] == 'layers.')):
        w = sub(weights, f'layers.{depth}.')
        normed = {s: layer_norm(x, 1 + w[f'attn_norm{end[s]}.gamma']) for s, x in streams.items()}
        for s, out in etc_attention(sub(w, 'attn.'), normed, **given).items():
            x = streams[s] + (out if real is None or s not in real else out * real[s][..., None])
            ff = feedforward(sub(w, f'ff{end[s]}.'), layer_norm(x, 1 + w[f'ff_norm{end[s]}.gamma']))
            streams[s] = x + ff
    found = [layer_norm(x, 1 + weights[f'final_norm{end[s]}.gamma']) for s, x in streams.items()]
    return found[0], found[1]


def aft(attn, x, kind, causal, window, mask=None):
    """AFT: for each channel a softmax over keys of their own numbers, and of weights by place."""
    q, k, v = attn.to_q(x), attn.to_k(x), attn.to_v(x)
    b, n, d = k.shape
    first = [0] * b if mask is None else mask.long().argmax(dim=-1).tolist()
    outs = []
    for row, t, c in product(range(b), range(n), range(d)):
        keys = [s for s in range(n) if (s <= t or not causal) and (mask is None or mask[row, s])]
        if not keys:
            outs.append(x.new_zeros(()))
            continue
        scores = []
        for s in keys:
            w, near = x.new_zeros(()), abs(t - s) < window
            if kind == 'full' or (kind == 'local' and near):
                w = attn.aft_u[max(t - first[row], 0)] @ attn.aft_v[max(s - first[row], 0)]
            if kind == 'conv' and near:
                w = attn.aft_w[c // (d // attn.heads), t - s if causal else t - s + window - 1]
            scores.append(k[row, s, c] + w)
        weights = torch.stack(scores).softmax(dim=0)
        outs.append(q[row, t, c].sigmoid() * (weights @ v[row, keys, c]))
    out = attn.to_out(torch.stack(outs).view(b, n, d))
    return out if mask is None else out.masked_fill(~mask[..., None], 0.0)


def linformer(attn, x, proj, k, most, mask=None):
    """Linformer: slots of keys and values, places being counted from the first real token, and by means and maxima
    shared out up to the last one."""
    b, n, _ = x.shape
    heads, kv_heads, stride = attn.heads, attn.kv_heads, -(-most // k)
    mask = torch.ones(b, n, dtype=torch.bool) if mask is None else mask
    q, keys, values = (to(x).unflatten(-1, (-1, 3)) for to in (attn.to_q, attn.to_k, attn.to_v))  # b n h d

    def slots(row, head, rows, weights):
        found = []
        places = [(s - mask[row].long().argmax().item(), s) for s in range(n) if mask[row, s]]
        for slot in range(k):
            own = [(p, s) for p, s in places if proj == 'linear' or p // stride == slot]
            if proj in ('mean', 'max'):
                length = max(p for p, _ in places) + 1
                own = [(p, s) for p, s in places if slot * length // k <= p < -(-(slot + 1) * length // k)]
            if not own:
                continue
            some = torch.stack([rows[row, s, head] for _, s in own])
            if proj == 'mean':
                found.append(some.mean(dim=0))
            elif proj == 'max':
                found.append(some.amax(dim=0))
            elif proj == 'linear':
                found.append(
                    sum(weights[head % len(weights), p, slot] * t for (p, _), t in zip(own, some, strict=True))
                )
            else:
                weight = weights.weight.squeeze(1).unflatten(0, (-1, 3))
                weight = weight[head % len(weight)]
                found.append(sum(weight[:, p % stride] * t for (p, _), t in zip(own, some, strict=True)))
        return torch.stack(found)

    of_keys = getattr(attn, 'lin_k', None)
    of_values = getattr(attn, 'lin_v', of_keys)
    outs = []
    for row, head in product(range(b), range(heads)):
        read = head % kv_heads
        sim = q[row, :, head] @ slots(row, read, keys, of_keys).T * 3**-0.5
        outs.append(sim.softmax(dim=-1) @ slots(row, read, values, of_values))
    out = torch.stack(outs).unflatten(0, (b, heads)).transpose(1, 2).flatten(2)
    return attn.to_out(out).masked_fill(~mask[..., None], 0.0)


# clusters


def seen_by_rank(ids: list[int], width: int, causal: bool) -> list[set[int]]:
    """Whom each token sees: of its cluster, those of its chunk of `width`, counted from the first, and of the one
    before. Tokens of cluster -1 neither see nor are seen."""
    rank = [ids[:i].count(ids[i]) // width for i in range(len(ids))]
    return [
        {j for j in range(i + 1 if causal else len(ids)) if ids[j] == ids[i] >= 0 and 0 <= rank[i] - rank[j] <= 1}
        for i in range(len(ids))
    ]


def seen_by_chunk(ids: list[int], width: int, across: bool, documents: list[int]) -> list[set[int]]:
    """The same where all tokens of a document, sorted by cluster, are cut into chunks: those around its own."""
    chunk = {}
    for document in set(documents):
        own = [i for i in range(len(ids)) if documents[i] == document and ids[i] >= 0]
        chunk |= {i: place // width for place, i in enumerate(sorted(own, key=lambda i: (ids[i], i)))}
    return [
        {
            j
            for j in chunk
            if i in chunk
            and documents[i] == documents[j]
            and abs(chunk[i] - chunk[j]) <= 1
            and (across or ids[i] == ids[j])
        }
        for i in range(len(ids))
    ]


def in_rounds(q: Tensor, k: Tensor, v: Tensor, rounds: list[list[set[int]]], penalty: float = 0.0) -> Tensor:
    """A softmax for each round, of scores less the logarithm of in how many rounds a key is seen, and a softmax of
    their log-sums over rounds:  n e -> n e"""
    out = torch.zeros(len(q), v.shape[-1], dtype=v.dtype)
    for i in range(len(q)):
        outs, lse = [], []
        for seen in rounds:
            keys = sorted(seen[i])
            if not keys:
                continue
            times = torch.tensor([sum(j in other[i] for other in rounds) for j in keys], dtype=q.dtype)
            own = torch.tensor([float(j == i) for j in keys], dtype=q.dtype)
            logits = k[keys] @ q[i] - times.log() + penalty * own
            outs.append(logits.softmax(dim=0) @ v[keys])
            lse.append(logits.logsumexp(dim=0))
        if outs:
            out[i] = torch.stack(lse).softmax(dim=0) @ torch.stack(outs)
    return out


def routed_in_balance(
    q: Tensor, k: Tensor, v: Tensor, centroids: Tensor, width: int, real: Tensor, pairs: Tensor | None = None
) -> Tensor:
    """Each centroid takes the `width` best queries and keys that are real; a token gets the mean of what it finds where
    it sees any key, of all `pairs` n n:  n e -> n e"""
    total, count = torch.zeros(len(q), v.shape[-1], dtype=v.dtype), torch.zeros(len(q))
    for centroid in centroids:
        best = [(t @ centroid).masked_fill(~real, -math.inf).argsort(descending=True)[:width] for t in (q, k)]
        queries, keys = ([i for i in own.tolist() if real[i]] for own in best)
        for i in queries:
            seen = [j for j in keys if pairs is None or pairs[i, j]]
            if seen:
                total[i] = total[i] + (k[seen] @ q[i] * q.shape[-1] ** -0.5).softmax(dim=0) @ v[seen]
                count[i] += 1
    return total / count.clamp(min=1)[:, None]


def sinkhorn(logits, rounds, causal, rows=None, columns=None):
    """S of the scores of one head (r N): columns, then rows divided by their sums, some of which may be left out."""
    r, n = logits.shape
    pairs = [(i, j) for i, j in product(range(r), range(n)) if j < i or not causal]
    pairs = [(i, j) for i, j in pairs if (rows is None or rows[i]) and (columns is None or columns[j])]
    s = {pair: logits[pair].exp() for pair in pairs}
    for _ in range(rounds):
        s = {(i, j): e / sum(s[a, b] for a, b in s if b == j and (a <= i or not causal)) for (i, j), e in s.items()}
        s = {(i, j): e / sum(s[a, b] for a, b in s if a == i) for (i, j), e in s.items()}
    full = torch.zeros_like(logits)
    for pair, value in s.items():
        full = full.index_put((torch.tensor(pair[0]), torch.tensor(pair[1])), value)
    return full


def sinkhorn_attention(attn, x, width, rounds, temp, causal, sortcut=0, real=None):
    """One row of tokens (n d), of which some are padding; the first one is real."""
    n = len(x)
    real = [True] * n if real is None else real
    heads, blocks = attn.heads, -(-n // width)
    q, k, v = (
        project(x).unflatten(-1, (-1, e)).transpose(0, 1)
        for project, e in (
            (attn.to_q, attn.shape.dim_head),
            (attn.to_k, attn.shape.dim_head),
            (attn.to_v, attn.shape.dim_value),
        )
    )
    tokens = [[t for t in range(i * width, min((i + 1) * width, n)) if real[t]] for i in range(blocks)]
    asks = [[t for t in range(i * width + 1) if real[t]] for i in range(blocks)] if causal else tokens
    outs = x.new_zeros(n, heads, attn.shape.dim_value)
    for h in range(heads):
        keys, values = k[h % len(k)], v[h % len(v)]
        if hasattr(attn.sinkhorn_sort, 'weight') or isinstance(attn.sinkhorn_sort, torch.nn.Module):
            up, _, down = attn.sinkhorn_sort
            scores = [down(up(x[of].sum(0)).relu()).view(heads, -1)[h, :blocks] for of in asks]
        else:
            means = [keys[of].mean(0) if of else keys[0] * 0 for of in tokens]
            scores = [
                torch.stack([q[h][of].mean(0) @ m * attn.scale if of else m.sum() * 0 for m in means]) for of in asks
            ]
        filled = [bool(of) for of in tokens]
        s = sinkhorn(torch.stack(scores) / temp, rounds, causal, None if causal else filled, filled)
        mixes = {}
        for i in range(blocks):
            for slot in range(width):
                held = [t for t in (j * width + slot for j in range(blocks)) if t < n and real[t]]
                held = [t for t in held if t // width < i or not causal]
                if held and (causal or filled[i]):
                    mixes[i, slot] = [sum(s[i, t // width] * of[t] for t in held) for of in (keys, values)]
        for t in range(n):
            i = t // width
            own = [(keys[u], values[u]) for u in tokens[i] if u <= t or not causal]
            seen = [pair for (block, _), pair in mixes.items() if (block < sortcut if sortcut else block == i)]
            seen = seen if sortcut else seen + own
            if seen:
                weights = torch.stack([q[h, t] @ key * attn.scale for key, _ in seen]).softmax(0)
                outs[t, h] = sum(w * value for w, (_, value) in zip(weights, seen, strict=True))
    return attn.to_out(outs.flatten(1))


def token_shift_mixed(weights: Weights, x: Tensor, letter: str) -> list[Tensor]:
    """Of each token a share, and the rest of the one before, through the matrix of a letter."""
    share, before = weights[f'mix_{letter}'], [torch.zeros_like(x[:, 0]), *x[:, :-1].unbind(1)]
    return [
        linear(weights, f'to_{letter}', share * now + (1 - share) * last)
        for now, last in zip(x.unbind(1), before, strict=True)
    ]


def rwkv_time_mix(weights: Weights, x: Tensor) -> Tensor:
    """RWKV: for each channel a softmax over the tokens so far, by keys that fade, the newest one with a bonus."""
    r, k, v = (token_shift_mixed(weights, x, letter) for letter in 'rkv')
    fall, outs = weights['time_decay'].exp(), []
    for t in range(x.shape[1]):
        scores = [k[i] - (t - 1 - i) * fall for i in range(t)] + [k[t] + weights['time_first']]
        found = (torch.stack(scores).softmax(dim=0) * torch.stack(v[: t + 1])).sum(dim=0)
        outs.append(linear(weights, 'to_out', r[t].sigmoid() * found))
    return torch.stack(outs, dim=1)


def rwkv_channel_mix(weights: Weights, x: Tensor) -> Tensor:
    """RWKV: a feedforward of squares, with a gate, of a token and the one before."""
    r, k = (token_shift_mixed(weights, x, letter) for letter in 'rk')
    outs = [a.sigmoid() * linear(weights, 'to_v', b.clamp(min=0) ** 2) for a, b in zip(r, k, strict=True)]
    return torch.stack(outs, dim=1)


def causal_convolution(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Each channel by itself, of the tokens so far, the last weight times the newest one:  b n c."""
    weight, bias = weights[f'{name}.weight'][:, 0], weights.get(f'{name}.bias', 0.0)
    outs = []
    for t in range(x.shape[1]):
        taps = range(min(weight.shape[1], t + 1))
        outs.append(sum((weight[:, -1 - i] * x[:, t - i] for i in taps), torch.zeros_like(x[:, t])) + bias)
    return torch.stack(outs, dim=1)


def matrix_recurrence(
    q: Tensor, k: Tensor, v: Tensor, decay: Any = None, erase: Any = None, write: Any = None, state: Any = None
) -> tuple[Tensor, Tensor]:
    """Token by token:  S <- diag(exp(decay)) S,  S <- S - write (erase^T S)^T + k v^T,  out = S^T q.

    q and k (b g n d), v (b h n e), the others (b h n d) or narrower. Returns outputs and the last S, (b h d e).
    """
    heads, n = v.shape[1:3]
    q, k = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (q, k))
    found = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    outs = []
    for t in range(n):
        if decay is not None:
            found = found * decay[:, :, t].exp().unsqueeze(-1)
        if erase is not None:
            error = torch.einsum('bhd,bhde->bhe', erase[:, :, t], found)
            found = found - torch.einsum('bhd,bhe->bhde', (k if write is None else write)[:, :, t], error)
        found = found + torch.einsum('bhd,bhe->bhde', k[:, :, t], v[:, :, t])
        outs.append(torch.einsum('bhd,bhde->bhe', q[:, :, t], found))
    return torch.stack(outs, dim=2), found


def rms_scaled(x: Tensor, weight: Tensor | float, eps: float) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def in_heads(t: Tensor, heads: int) -> Tensor:
    return t.unflatten(-1, (heads, -1)).transpose(1, 2)


def silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def softplus(x: Tensor) -> Tensor:
    return (1 + x.exp()).log()


def gated_delta(
    weights: Weights, x: Tensor, heads: int, width: int, *, keys: int | None = None, gate: Any = silu,
    most: float = 1.0, low: float | None = None, unit: bool = True, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """Gated DeltaNet and Kimi delta attention, token by token; the shapes of the weights say which."""
    keys = heads if keys is None else keys

    def through(name: str) -> Tensor:
        return linear(weights, name, x) if f'{name}.weight' in weights else low_rank(weights, name, x)

    mixed = silu(causal_convolution(weights, 'conv', linear(weights, 'to_qkv', x)))
    rest = mixed.shape[-1] - 2 * keys * width
    q, k, v = mixed.split((keys * width, keys * width, rest), dim=-1)
    q, k = (in_heads(t, keys).repeat_interleave(heads // keys, dim=1) for t in (q, k))
    if unit:
        q, k = (t / (t.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    decay = None
    if 'A_log' in weights:
        a, rate = in_heads(through('to_decay') + weights['dt_bias'], heads), weights['A_log'].exp()[:, None, None]
        decay = -rate * softplus(a) if low is None else low * (rate * a).sigmoid()
    beta = most * in_heads(linear(weights, 'to_beta', x), heads).sigmoid()
    out, _ = matrix_recurrence(q * width**-0.5, beta * k, in_heads(v, heads), decay, k)
    out = rms_scaled(out.transpose(1, 2), weights['norm_weight'], eps).flatten(2)
    return linear(weights, 'to_out', out if gate is None else out * gate(through('to_gate')))


def low_rank(weights: Weights, name: str, x: Tensor) -> Tensor:
    return linear(weights, f'{name}.1', linear(weights, f'{name}.0', x))


def gated_linear_attention(weights: Weights, x: Tensor, heads: int, width: int, tau: float = 16.0) -> Tensor:
    """GLA, token by token."""
    mixed, inner = linear(weights, 'to_qkvr', x), weights['to_out.weight'].shape[1]
    q, k, v, r = mixed.split((heads * width, heads * width, inner, inner), dim=-1)
    decay = -softplus(-in_heads(low_rank(weights, 'to_decay', x), heads)) / tau
    out, _ = matrix_recurrence(*(in_heads(t, heads) for t in (q * width**-0.5, k, v)), decay)
    out = rms_scaled(out.transpose(1, 2), weights['norm_weight'], 1e-5).flatten(2)
    return linear(weights, 'to_out', out * silu(r))


def lightning_attention(weights: Weights, x: Tensor, heads: int, layer: int = 0, layers: int = 1) -> Tensor:
    """Lightning attention, token by token."""
    q, k, v = (in_heads(t, heads) for t in silu(linear(weights, 'to_qkv', x)).chunk(3, dim=-1))
    slopes = [2 ** (-8 * (i + 1) / heads) * (1 - layer / (layers - 1 + 1e-5) + 1e-5) for i in range(heads)]
    decay = -torch.tensor(slopes, dtype=x.dtype)[:, None, None].expand(1, -1, x.shape[1], 1)
    out, _ = matrix_recurrence(q, k, v, decay)
    out = rms_scaled(out.transpose(1, 2).flatten(2), weights['norm_weight'], 1e-6)
    return linear(weights, 'to_out', linear(weights, 'to_gate', x).sigmoid() * out)


def mamba2(
    weights: Weights, x: Tensor, heads: int, width: int, state: int, groups: int = 1, *,
    norm: str | None = 'gate_first', limits: Any = (0.0, math.inf), scale: Any = (1.0,) * 5,
) -> Tensor:  # fmt: skip
    """Mamba-2, token by token."""
    inner, shared = heads * width, groups * state
    parts = linear(weights, 'in_proj', x).split((inner, inner, shared, shared, heads), dim=-1)
    z, u, b, c, dt = (part * factor for part, factor in zip(parts, scale, strict=True))
    mixed = silu(causal_convolution(weights, 'conv', torch.cat((u, b, c), dim=-1)))
    u, b, c = mixed.split((inner, shared, shared), dim=-1)
    dt = softplus(dt + weights['dt_bias']).clamp(*limits)
    u, dt = in_heads(u, heads), in_heads(dt, heads)
    decay = -dt * weights['A_log'].exp()[:, None, None]
    out, _ = matrix_recurrence(in_heads(c, groups), in_heads(b, groups), dt * u, decay)
    out = (out + weights['D'][:, None, None] * u).transpose(1, 2).flatten(2)
    out = out * silu(z) if norm != 'norm_first' else out
    if norm is not None:
        gain = weights['norm_weight'].unflatten(0, (groups, -1))
        out = rms_scaled(out.unflatten(-1, (groups, -1)), gain, 1e-5).flatten(2)
    return linear(weights, 'out_proj', out * silu(z) if norm == 'norm_first' else out)


def gated_convolution(weights: Weights, x: Tensor) -> Tensor:
    """LFM2: a convolution of products, times a gate."""
    before, after, u = linear(weights, 'in_proj', x).chunk(3, dim=-1)
    return linear(weights, 'out_proj', after * causal_convolution(weights, 'conv', before * u))


def silu(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def mamba(weights: Weights, x: Tensor) -> Tensor:
    """Token by token, each entry of each state by itself: the sizes are those of the weights."""
    (inner, size), rank = weights['A_log'].shape, weights['dt_proj.weight'].shape[1]
    u, z = linear(weights, 'in_proj', x).chunk(2, dim=-1)
    u = silu(causal_convolution(weights, 'conv', u))
    parts = linear(weights, 'x_proj', u).split((rank, size, size), dim=-1)
    if 'norms.0.weight' in weights:
        parts = tuple(
            t / (t.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt() * weights[f'norms.{at}.weight']
            for at, t in enumerate(parts)
        )
    dt = (1 + linear(weights, 'dt_proj', parts[0]).exp()).log()
    held, outs = x.new_zeros(x.shape[0], inner, size), []
    for t in range(x.shape[1]):
        held = torch.exp(dt[:, t, :, None] * -weights['A_log'].exp()) * held
        held = held + (dt[:, t] * u[:, t])[..., None] * parts[1][:, t, None]
        y = (held * parts[2][:, t, None]).sum(dim=-1) + weights['D'] * u[:, t]
        outs.append(linear(weights, 'out_proj', y * silu(z[:, t])))
    return torch.stack(outs, dim=1)


def matrix_lstm(weights: Weights, x: Tensor, heads: int) -> Tensor:
    """Token by token, in the stabilized form of the paper."""
    q, k, v, i, f = (in_heads(linear(weights, f'to_{n}', x), heads) for n in ('q', 'k', 'v', 'input', 'forget'))
    i, f, q = 15 * (i / 15).tanh(), -softplus(-15 * (f / 15).tanh()), q * q.shape[-1] ** -0.5  # b h n 1
    cell, total, level = 0 * k[:, :, 0, :, None] * v[:, :, 0, None], 0 * k[:, :, 0], 0 * i[:, :, 0]
    outs = []
    for t in range(x.shape[1]):
        new = torch.maximum(f[:, :, t] + level, i[:, :, t])
        kept, entered = (f[:, :, t] + level - new).exp(), (i[:, :, t] - new).exp()
        cell = kept[..., None] * cell + (entered * k[:, :, t])[..., None] * v[:, :, t, None]
        total, level = kept * total + entered * k[:, :, t], new
        weight = torch.maximum((total * q[:, :, t]).sum(dim=-1, keepdim=True).abs(), (-new).exp()) + 1e-6
        o = (cell * q[:, :, t, :, None]).sum(dim=-2) / weight
        o = o - o.mean(dim=-1, keepdim=True)
        outs.append((o / (o.pow(2).mean(dim=-1, keepdim=True) + 1e-6).sqrt()).flatten(1))
    out = torch.stack(outs, dim=1) * weights['norm_weight']
    return linear(weights, 'to_out', out * linear(weights, 'to_gate', x).sigmoid())


def griffin_block(weights: Weights, x: Tensor) -> Tensor:
    """Token by token, and each block of the gates by itself."""
    gate = torch.nn.functional.gelu(linear(weights, 'linear_y', x), approximate='tanh')
    u, rate = causal_convolution(weights, 'conv', linear(weights, 'linear_x', x)), weights['recurrent_param'].exp()
    blocks, outs, held = weights['input_gate_bias'].shape, [], torch.zeros_like(u[:, 0])
    for t in range(x.shape[1]):
        parts = u[:, t].unflatten(-1, blocks).unbind(1)
        r, i = (
            torch.cat([
                (p @ weights[f'{name}_gate_weight'][h] + weights[f'{name}_gate_bias'][h]).sigmoid()
                for h, p in enumerate(parts)
            ], dim=-1)
            for name in ('recurrent', 'input')
        )  # fmt: skip
        a = (1 + rate) ** (-8 * r)
        held = a * held + (1 - a**2).sqrt() ** (t > 0) * i * u[:, t]
        outs.append(linear(weights, 'linear_out', held * gate[:, t]))
    return torch.stack(outs, dim=1)


def ssm_parts(weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """A', B' and C of a diagonal state-space model, held from token to token:  d s, complex."""
    a = torch.complex(-weights['log_a_real'].exp(), weights['a_imag'])
    b, c = (torch.complex(*weights[name].unbind(-1)) for name in 'bc')
    kept = (weights['log_dt'].exp()[:, None] * a).exp()
    return kept, (kept - 1) / a * b, c


def diagonal_ssm(weights: Weights, x: Tensor) -> Tensor:
    """Token by token:  x_t = A' x_{t-1} + B' u_t,  y_t = Re(C x_t) + D u_t."""
    a, b, c = ssm_parts(weights)
    state, outs = x.new_zeros(x.shape[0], *a.shape, dtype=a.dtype), []
    for u in x.unbind(1):
        state = a * state + b * u.unsqueeze(-1)
        outs.append((c * state).sum(dim=-1).real + weights['d'] * u)
    return torch.stack(outs, dim=1)


def ssm_by_fft(weights: Weights, x: Tensor) -> Tensor:
    """The same as a convolution with the kernel  Re(C A'^l B'), l = 0 .. n - 1."""
    (a, b, c), n = ssm_parts(weights), x.shape[1]
    kernel = (c * b * a ** torch.arange(n).view(-1, 1, 1)).sum(dim=-1).real  # n d
    spectra = torch.fft.rfft(x, 2 * n, dim=1) * torch.fft.rfft(kernel, 2 * n, dim=0)
    return torch.fft.irfft(spectra, 2 * n, dim=1)[:, :n] + weights['d'] * x


# feature maps and states (F2-F5)


def map_features(x: Tensor, kernel: str, w: Tensor | None = None, sigma: Any = 1.0, nu: int = 3) -> Tensor:
    """Features of one vector (e) -> (m);  w: its random vectors (m e)."""
    if kernel == 'elu':
        return torch.stack([one + 1 if one > 0 else one.exp() for one in x])
    if kernel == 'favor':
        return (w @ x - x @ x / 2).exp() / len(w) ** 0.5
    if kernel == 'relu':
        return (w @ x).clamp(min=0) / len(w) ** 0.5 + 1e-3
    if kernel == 'arccos':
        return (w @ x).clamp(min=0) / len(w) ** 0.5
    if kernel == 'rff':
        angles = [(one / sigma) @ x for one in w]
        return torch.stack([a.sin() for a in angles] + [a.cos() for a in angles]) / len(w) ** 0.5
    if kernel == 'dpfp':
        r = [*x.clamp(min=0), *(-x).clamp(min=0)]
        return torch.stack([r[i] * r[i - back] for back in range(1, nu + 1) for i in range(len(r))])
    return x


def state_recurrence(
    q: Tensor, k: Tensor, v: Tensor, update: str, gates: Tensor | None = None, real: Any = None, ids: Any = None
) -> tuple[Tensor, Tensor]:
    """One head, token by token, of features (n m), (n m) and values (n d): what is read, and the sums of weights.

    sum: S + k v;  gate: g S + (1 - g) k v;  delta: S + g k (v - k S).  Each document has a state of its own.
    """
    states: dict[int, tuple[Tensor, Tensor]] = {}
    outs, sums = [], []
    for t in range(len(q)):
        at = 0 if ids is None else int(ids[t])
        state, total = states.get(at, (torch.zeros(k.shape[1], v.shape[1]).to(v), torch.zeros(k.shape[1]).to(v)))
        if real is None or real[t]:
            g = None if gates is None else gates[t]
            if update == 'sum':
                state, total = state + torch.outer(k[t], v[t]), total + k[t]
            elif update == 'gate':
                state, total = g * state + (1 - g) * torch.outer(k[t], v[t]), g * total + (1 - g) * k[t]
            else:
                state = state + g * torch.outer(k[t], v[t] - k[t] @ state)
        states[at] = state, total
        outs.append(q[t] @ state)
        sums.append(q[t] @ total)
    return torch.stack(outs), torch.stack(sums)

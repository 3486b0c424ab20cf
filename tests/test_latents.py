"""Latent attention that attends to the latents themselves: its formula, its costs, and when it is used."""

import math

import pytest
import torch
from law_cases import FLAG_CASES, inputs_for, model_of
from oracles import assert_close, assert_same, randn, randomised
from pretrained_cases import lifted
from test_heads import halves_to_pairs, turned
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from x_transformers import Attention, AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.features.latents import LatentKeysValues
from x_transformers.flags import ConfigError

DIM, HEADS, WIDTH, ROPE, LATENT, TOKENS = 10, 4, 6, 4, 7, 9
SIZES = dict(dim=DIM, heads=HEADS, dim_head=WIDTH, use_latent_kv=True, dim_latent_kv=LATENT, value_dim_head=3)


def build(seed=0, **flags):
    return randomised(Attention(causal=True, **{**SIZES, **flags}), seed)


def by_loops(w, x, kv_heads=HEADS, rope=ROPE):
    """Each token and head by itself, through keys and values of its own."""
    rows = []
    for row in x:
        tokens = []
        for i in range(len(row)):
            parts = []
            for h in range(HEADS):
                q = turned((w['to_q.weight'] @ row[i])[h * WIDTH :][:WIDTH], i, rope) * WIDTH**-0.5
                scores, values, at = [], [], h % kv_heads
                for j in range(i + 1):
                    latent = w['to_latent_kv.weight'] @ row[j]
                    k = (w['to_k.weight'] @ latent)[at * (WIDTH - rope) :][: WIDTH - rope]
                    if rope:
                        k = torch.cat((turned(w['to_rotated_k.weight'] @ row[j], j, rope), k))
                    scores.append(q @ k)
                    values.append((w['to_v.weight'] @ latent)[at * 3 :][:3])
                parts.append(torch.stack(scores).softmax(dim=0) @ torch.stack(values))
            tokens.append(w['to_out.weight'] @ torch.cat(parts))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


def inputs(rope=ROPE, tokens=TOKENS):
    frequencies = 10000.0 ** -(torch.arange(0, rope, 2).double() / max(rope, 1))
    turns = (torch.arange(tokens).double()[:, None] * frequencies).repeat_interleave(2, dim=-1)
    return dict(rotary_pos_emb=(turns, 1.0)) if rope else {}


@pytest.mark.parametrize('kv_heads', [4, 2])
@pytest.mark.parametrize('rope', [ROPE, 0])
def test_both_forms_are_the_formula(kv_heads, rope):
    """With the gradients of both."""
    x = randn(2, TOKENS, DIM)
    for absorb in (True, False):
        flags = dict(kv_heads=kv_heads, latent_absorb=absorb, dim_latent_rope=rope or None)
        layer = build(**flags)
        call = lambda x, own=layer: own(x, **inputs(rope))  # noqa: E731
        assert_same(layer, call, lambda w, x: by_loops(w, x, kv_heads, rope), x, tolerance=1e-11)


def spied(monkeypatch):
    said, own = [], LatentKeysValues.absorbs
    monkeypatch.setattr(LatentKeysValues, 'absorbs', lambda *a: said.append(own(*a)) or said[-1])
    return said


def stack_of(absorb, latent=LATENT):
    sizes = dict(dim=DIM, depth=2, heads=HEADS, attn_dim_head=WIDTH, verbose=False)
    own = {f'attn_{name}': value for name, value in SIZES.items() if name not in ('dim', 'heads', 'dim_head')}
    own |= dict(attn_dim_latent_kv=latent, attn_dim_latent_rope=ROPE, attn_latent_norm=True, rotary_pos_emb=True)
    return randomised(Decoder(**sizes, **own, attn_latent_absorb=absorb))


def test_a_cache_goes_on_in_pieces_of_any_length(monkeypatch):
    """Where few queries meet many latents they are absorbed, else keys are built: by the count of products."""
    said, x = spied(monkeypatch), randn(2, 60, DIM)
    nets = {absorb: stack_of(absorb, 40) for absorb in ('auto', True, False)}
    wanted = nets[False](x)
    for absorb, net in nets.items():
        cache, outs, forms = None, [], []
        for first, last in ((0, 3), (3, 50), (50, 51), (51, 53), (53, 60)):
            said.clear()
            out, cache = net(x[:, first:last], cache=cache, input_not_include_cache=True, return_hiddens='past')
            outs.append(out)
            assert said[0] == said[1]
            forms.append(said[0])
        assert forms == ([absorb] * 5 if absorb != 'auto' else [False, False, True, True, False])
        assert_close(torch.cat(outs, dim=1), wanted, tolerance=1e-11)
        widths = [tuple(t.shape[-1] for t in layer.past.pair) for layer in cache.attn_intermediates]
        assert widths == [(40, ROPE)] * 2


class Costs(TorchDispatchMode):
    """The most numbers that one result has, and all products. (`FlopCounterMode` hooks modules.)"""

    def __init__(self):
        super().__init__()
        self.most = self.products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        self.products += count(*args, **(kwargs or {}), out_val=out) // 2 if count else 0
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if torch.is_tensor(t) and t.is_contiguous():  # views of keys that are expanded are not
                self.most = max(self.most, t.numel())
        return out


@pytest.mark.parametrize('kernel', [True, False])
def test_what_a_step_costs(kernel):
    """Memory and products for each cached token: those of one key for all heads, of the width of the latent."""
    heads, width, rope, latent, value, count = 16, 24, 8, 12, 20, 256
    flags = dict(heads=heads, dim_head=width + rope, dim_latent_kv=latent, value_dim_head=value, dim_latent_rope=rope)
    x, products, memory = randn(1, count + 1, DIM), {}, {}
    for absorb in (True, False):
        layer = build(**flags, latent_absorb=absorb, flash=kernel)
        with torch.no_grad():
            _, past = layer(x[:, :count], **inputs(rope, count), return_intermediates='past')
            given = dict(cache=past, **inputs(rope, count + 1), return_intermediates='past')
            with Costs() as costs:
                layer(x[:, count:], **given)
        products[absorb], memory[absorb] = costs.products, costs.most
        stored = sum(t[..., :count, :].numel() * t.element_size() for t in past.past.pair)
        assert stored == count * (latent + rope) * 8
    of_token = heads * (2 * latent + rope)
    # projections of the new token besides
    assert products[True] <= (count + 1) * of_token + 4 * heads * (width + rope + value) * (latent + DIM)
    assert products[False] >= count * (latent * heads * (width + value) + heads * (width + rope + value))
    if kernel:
        assert memory[True] <= (count + 1) * max(heads, 2 * (latent + rope)) < memory[False]


@pytest.mark.costly
def test_beside_all_other_flags_of_attention():
    """Absorbed where they allow it, with the same outputs."""
    absorbed = set()
    for case in FLAG_CASES[::7]:
        if not case.flag.startswith('attn_') or case.flag == 'attn_latent_absorb':
            continue
        outs = []
        for absorb in (False, True):
            own = dict(attn_use_latent_kv=True, attn_dim_latent_kv=6, attn_latent_absorb=absorb, rotary_pos_emb=True)
            own |= {} if 'latent' in case.flag else dict(attn_dim_latent_rope=4)
            try:
                net = model_of(case.with_keywords(**own))
                torch.manual_seed(0)
                outs.append(net(**inputs_for(net, case)))
            except (ConfigError, ValueError):
                break
        if len(outs) == 2:
            assert_close(outs[1], outs[0], case.name, tolerance=1e-11)
            absorbed.add(case.name)
    assert len(absorbed) > 10


def test_what_is_not_absorbed(monkeypatch):
    """Keys that rotate as a whole, biases, replaced or hooked projections, and readers of values."""
    said, x = spied(monkeypatch), randn(1, TOKENS, DIM)

    def absorbs(layer, **more):
        said.clear()
        layer(x, **{**inputs(), **more})
        return said[0]

    roped = dict(dim_latent_rope=ROPE, latent_absorb=True)
    assert absorbs(build(**roped))
    assert not absorbs(build(latent_absorb=True)) and not absorbs(build(**roped, qkv_bias='k'))
    for flags in (dict(orthog_projected_values=True), dict(qk_head_norm='rms'), dict(num_mem_kv=2), dict(laser=True)):
        assert not absorbs(build(**roped, **flags)), flags
    assert not absorbs(build(**roped), return_intermediates=True)
    layer = build(**roped)
    wanted, seen = layer(x, **inputs()), []
    layer.to_k.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    assert not absorbs(layer)
    assert_close(layer(x, **inputs()), wanted, tolerance=1e-12)
    assert seen == [(1, TOKENS, HEADS * (WIDTH - ROPE))] * 2


@pytest.mark.slow
@pytest.mark.parametrize('absorb', [True, 'auto'])
def test_a_compiled_step(absorb):
    net, x = stack_of(absorb), randn(2, 10, DIM)
    wanted = net(x)
    with torch.inference_mode():
        compiled = torch.compile(net, fullgraph=True, backend='eager', dynamic=True)
        _, cache = net(x[:, :5], return_hiddens='past')
        for at in range(5, 10):
            with torch.compiler.set_stance('fail_on_recompile' if at > 6 else 'default'):
                step = dict(cache=cache, input_not_include_cache=True, return_hiddens='past')
                out, cache = compiled(x[:, at : at + 1], **step)
            assert_close(out[:, 0], wanted[:, at], tolerance=1e-11)


def test_generation_is_greedy_with_both_forms():
    outs = []
    for absorb in ('auto', False):
        net = TransformerWrapper(num_tokens=20, max_seq_len=40, attn_layers=stack_of(absorb))
        model = AutoregressiveWrapper(randomised(net)).eval()
        outs.append(model.generate(torch.arange(6).view(2, 3), 20, temperature=0.0))
    assert (outs[0] == outs[1]).all()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_deepseek_v3():
    """Steps that absorb against the full pass of transformers."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    sizes = dict(q_lora_rank=8, kv_lora_rank=LATENT, qk_nope_head_dim=2, qk_rope_head_dim=ROPE, v_head_dim=3)
    heads = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=HEADS, rope_interleave=False)
    config = transformers.DeepseekV3Config(**heads, **sizes)
    config._attn_implementation = 'sdpa'
    theirs = randomised(DeepseekV3Attention(config, 0))
    w, x = dict(theirs.named_parameters()), randn(2, TOKENS, DIM)
    ours = build(dim_latent_rope=ROPE, use_latent_q=True, dim_latent_q=8, latent_norm=True)
    q, kv = w['q_b_proj.weight'].unflatten(0, (HEADS, -1)), w['kv_b_proj.weight'].unflatten(0, (HEADS, -1))
    q = halves_to_pairs(torch.cat((q[:, 2:], q[:, :2]), dim=1).flatten(0, 1), HEADS, ROPE)
    latent, rotated = w['kv_a_proj_with_mqa.weight'].split((LATENT, ROPE))
    ours.load_state_dict(
        {
            'to_latent_q.weight': w['q_a_proj.weight'],
            'q_latent_norm.gamma': w['q_a_layernorm.weight'],
            'to_q.weight': q,
            'to_latent_kv.weight': latent,
            'kv_latent_norm.gamma': w['kv_a_layernorm.weight'],
            'to_rotated_k.weight': halves_to_pairs(rotated, 1, ROPE),
            'to_k.weight': kv[:, :2].flatten(0, 1),
            'to_v.weight': kv[:, 2:].flatten(0, 1),
            'to_out.weight': w['o_proj.weight'],
        }
    )
    turns = inputs()['rotary_pos_emb'][0][:, ::2].repeat(1, 2)[None]
    with torch.no_grad(), lifted():
        wanted = theirs(x, position_embeddings=(turns.cos(), turns.sin()), attention_mask=None)[0]
    assert math.isclose(ours.scale, theirs.scaling)
    assert_close(ours(x, **inputs()), wanted, tolerance=1e-10)
    past = None
    for at in range(TOKENS):
        step = dict(cache=past, **inputs(tokens=at + 1), return_intermediates='past')
        out, past = ours(x[:, at : at + 1], **step)
        assert_close(out[:, 0], wanted[:, at], tolerance=1e-10)

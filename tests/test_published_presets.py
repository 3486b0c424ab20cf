"""Presets of published models: their sizes, the configs that they come from, and that they learn."""

import inspect
import json

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from torch import nn
from toy_tasks import taught
from training_laws import ids_of

from x_transformers import presets, pretrained
from x_transformers.flags import ConfigError

# of weights, each counted once
COUNTS = {
    'bert_base': 109_482_240,  # with the pooler
    'roberta_base': 124_645_632 - 2 * 768,  # without two rows that are never read
    'gpt1': 116_534_784,
    'gpt2': 124_439_808,
    'gpt3': 96 * (12 * 12288**2 + 13 * 12288) + (50257 + 2048 + 2) * 12288,
    't5_base': 222_903_552,
    'llama_7b': 6_738_415_616,
    'vit_b16': 86_389_248,  # with the pooler
    'vit_simple_s16': 21_974_632,
    'whisper_tiny': 37_760_640,
    'xlnet_base': 116_718_336 + 32_000,  # with the bias of its logits
}
# of models in several sizes: those of a table of published shapes, as far as they are exact
SIZES = {
    'albert_base': {'': 11_683_584},
    'longformer_base': {'': 148_659_456 - 2 * 768},  # without two rows that are never read
    'bigbird_base': {'': 127_468_800},
    'transformer_xl': {'wt103_base': 150_838_570, 'enwik8_base': 41_055_232, 'enwik8_large': 277_231_616},
    'perceiver': {'imagenet': 44_869_728},
    'vit': {'b16': 86_389_248, 'l16': 304_351_232, 'l14': 304_228_352, 'h14': 632_404_480},
    'vicuna_13b': {'1.1': 13_015_864_320, '1.5': 13_015_864_320},
    'llama': {
        '1-7b': 6_738_415_616,
        '1-13b': 13_015_864_320,
        '1-33b': 32_528_943_616,
        '1-65b': 65_285_660_672,
        '2-70b': 68_976_648_192,
        '3-8b': 8_030_261_248,
        '3-70b': 70_553_706_496,
        '3-405b': 405_853_388_800,
    },
    'llama3': {'8b': 8_030_261_248},
    'qwen3': {
        '0.6b': 596_049_920,
        '1.7b': 1_720_574_976,
        '4b': 4_022_468_096,
        '8b': 8_190_735_360,
        '14b': 14_768_307_200,
        '32b': 32_762_123_264,
        '30b-a3b': 30_532_122_624,
        '235b-a22b': 235_093_634_560,
    },
    'qwen3_next': {'': 79_674_391_296},
    'mamba2': {'130m': 128_989_632},
    'lfm2': {'350m': 354_483_968, '700m': 742_489_344, '1.2b': 1_170_340_608},
    'gemma3': {'1b': 999_885_952, '4b': 3_880_263_168, '12b': 11_766_034_176, '27b': 27_009_346_304},
    'gpt_oss': {'20b': 20_914_757_184, '120b': 116_829_156_672},
    'deepseek_v3': {'': 671_026_404_352},
}
# what papers and reports say, in millions, with the digits that they have
ROUGHLY = {
    'palm': {'8b': 8632, '62b': 62495, '540b': 540354},
    'gopher': {'44m': 43.6, '117m': 116.6, '417m': 417.2, '1.4b': 1374, '7.1b': 7110, '280b': 279700},
    'chinchilla': {'70b': 70060},
    'gpt3': {
        '125m': 125.2,
        '350m': 355.9,
        '760m': 760.3,
        '1.3b': 1316,
        '2.7b': 2650,
        '6.7b': 6660,
        '13b': 12850,
        '175b': 174600,
    },
    'transformer_xl': {'wt103_base': 151, 'enwik8_base': 41, 'enwik8_large': 277},
    'perceiver': {'imagenet': 44.9},
}
# of the repositories of these models
CONFIGS = {
    'bert_base': dict(model_type='bert', architectures=['BertModel']),
    'roberta_base': dict(
        model_type='roberta',
        architectures=['RobertaModel'],
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    ),
    'gpt2': dict(model_type='gpt2'),
    't5_base': dict(model_type='t5', d_model=768, d_ff=3072, num_heads=12, num_layers=12),
    'llama_7b': dict(model_type='llama'),
    'vit_b16': dict(model_type='vit', architectures=['ViTModel']),
    'whisper_tiny': dict(model_type='whisper', vocab_size=51865),
}
TINY = dict(dim=32, depth=2, heads=2)


def weights(keywords):
    with torch.device('meta'):
        model = presets.build(keywords)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize('name', COUNTS)
def test_how_many_weights(name):
    assert weights(getattr(presets, name)()) == COUNTS[name]


@pytest.mark.parametrize(('name', 'size'), [(name, size) for name, sizes in SIZES.items() for size in sizes])
def test_how_many_weights_of_a_size(name, size):
    assert weights(getattr(presets, name)(*[size] * bool(size))) == SIZES[name][size]


@pytest.mark.parametrize(('name', 'size'), [(name, size) for name, sizes in ROUGHLY.items() for size in sizes])
def test_about_how_many_weights(name, size):
    assert abs(weights(getattr(presets, name)(size)) / 1e6 / ROUGHLY[name][size] - 1) < 1.5e-3


@pytest.mark.parametrize(
    ('name', 'size', 'scale', 'sizes', 'count'),
    [
        ('llama3', '8b', 0.25, dict(dim=1024, heads=8, attn_kv_heads=2, ff_dim_inner=3584), 698_942_464),
        ('qwen3', '30b-a3b', 0.25, dict(dim=512, heads=8, attn_kv_heads=1, ff_moe_experts=32), None),
        ('gemma3', '4b', 0.5, dict(dim=1280, heads=4, attn_kv_heads=2, ff_dim_inner=5120), None),
        ('gpt_oss', '20b', 0.5, dict(dim=1440, heads=32, attn_kv_heads=4, ff_moe_experts=16), None),
        ('lfm2', '350m', 0.25, dict(dim=256, heads=4, attn_kv_heads=2, ff_dim_inner=1152), None),
        ('deepseek_v3', '', 1 / 8, dict(dim=896, heads=16, attn_dim_latent_kv=64, attn_dim_latent_q=192), None),
    ],
)
def test_scaled(name, size, scale, sizes, count):
    """Widths, heads and experts are multiplied; heads keep their width."""
    make = getattr(presets, name)
    whole, scaled = (make(*[size] * bool(size), **own)['attn_layers'] for own in ({}, dict(scale=scale)))
    assert {key: scaled[key] for key in sizes} == sizes
    for key in ('depth', 'attn_dim_head', 'rotary_emb_dim', 'ff_moe_top_k', 'attn_value_dim_head'):
        assert scaled.get(key) == whole.get(key)
    for key, value in sizes.items():
        assert value == whole[key] * scale
    assert count is None or weights(make(size, scale=scale)) == count
    with pytest.raises(ConfigError, match=r'`scale` must give whole sizes, got 0\.3'):
        make(scale=0.3)
    with pytest.raises(ConfigError, match='`scale` must be a positive number'):
        make(scale=0)


def test_layers_of_hybrids():
    stack = presets.qwen3_next(depth=4, scale=0.5)['attn_layers']
    assert stack['custom_layers'] == list('rfrfrfaf') and stack['heads'] == 8 and stack['ff_moe_experts'] == 256
    assert stack['recurrent_kwargs'] == dict(heads=16, key_heads=8, dim_head=128) and stack['ff_moe_top_k'] == 10
    stack = presets.lfm2(depth=4)['attn_layers']
    assert stack['custom_layers'] == list('rfrfafrf') and stack['recurrent_module'] == 'short_conv'


INPUTS = {
    **dict.fromkeys(('albert_base', 'longformer_base', 'bigbird_base'), lambda: ids_of(1, 130)),
    'conformer': lambda: randn(1, 30, 80).float(),
    'perceiver': lambda: randn(1, 6, 5, 3).float(),
    'vit': lambda: randn(1, 3, 224, 224).float(),
}


@pytest.mark.parametrize('name', [*SIZES, 'palm', 'gopher', 'chinchilla', 'gpt3', 'reformer', 'performer', 'conformer'])
def test_they_run_in_small(name):
    torch.manual_seed(0)
    model = presets.build(getattr(presets, name)(**TINY))
    out = model(INPUTS.get(name, lambda: ids_of(1, 130))())
    out = out[0] if isinstance(out, tuple) else out
    out.square().mean().backward()
    unused = [key for key, one in model.named_parameters() if one.grad is None or not one.grad.isfinite().all()]
    assert out.isfinite().all() and not [key for key in unused if 'pooler' not in key and '_global' not in key]


@pytest.mark.parametrize('name', ['llama', 'llama3', 'qwen3', 'gemma3', 'gpt_oss', 'lfm2', 'gpt3', 'vit', 'palm',
    'gopher', 'chinchilla', 'transformer_xl', 'reformer', 'performer', 'conformer', 'perceiver'])  # fmt: skip
def test_sizes_that_are_none(name):
    with pytest.raises(ConfigError, match=r'`size` must be (one of )?.*, got .9k.'):
        getattr(presets, name)('9k')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'size', 'kind', 'config'),
    [
        ('albert_base', '', 'Albert', dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072)),
        ('longformer_base', '', 'Longformer', dict(vocab_size=50265, max_position_embeddings=4098, type_vocab_size=1)),
        ('bigbird_base', '', 'BigBird', {}),
        ('llama3', '70b', 'LlamaForCausalLM', dict(vocab_size=128256, hidden_size=8192, intermediate_size=28672,
            num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8)),
        ('qwen3', '0.6b', 'Qwen3ForCausalLM', dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
            num_attention_heads=16, num_key_value_heads=8, tie_word_embeddings=True)),
        ('qwen3', '30b-a3b', 'Qwen3MoeForCausalLM', dict(num_hidden_layers=48, head_dim=128)),
        ('gemma3', '27b', 'Gemma3ForCausalLM', dict(hidden_size=5376, intermediate_size=21504, num_hidden_layers=62,
            num_attention_heads=32, num_key_value_heads=16, head_dim=128)),
        ('gpt_oss', '120b', 'GptOssForCausalLM', {}),
        ('qwen3_next', '', 'Qwen3NextForCausalLM', {}),
        ('mamba2', '130m', 'Mamba2ForCausalLM', dict(hidden_size=768, num_hidden_layers=24, num_heads=24, n_groups=1,
            vocab_size=50288, tie_word_embeddings=True)),
        ('lfm2', '1.2b', 'Lfm2ForCausalLM', dict(vocab_size=65536, hidden_size=2048, num_hidden_layers=16,
            layer_types=['full_attention' if at in (2, 5, 8, 10, 12, 14) else 'conv' for at in range(16)])),
        ('deepseek_v3', '', 'DeepseekV3ForCausalLM', {}),
    ],
)  # fmt: skip
def test_their_classes_in_transformers_have_as_many_weights(name, size, kind, config):
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    kind = kind if 'For' in kind else f'{kind}Model'
    title = kind.removesuffix('ForCausalLM').removesuffix('Model')
    config = getattr(transformers, f'{title}TextConfig' if title == 'Gemma3' else f'{title}Config')(**config)
    with torch.device('meta'):
        theirs = getattr(transformers, kind)(config)
    count = sum(one.numel() for one in theirs.parameters()) - (2 * 768 if kind == 'LongformerModel' else 0)
    assert weights(getattr(presets, name)(*[size] * bool(size))) == count


@pytest.mark.parametrize(
    ('name', 'sizes', 'count'),
    [
        ('gpt2', dict(dim=1600, depth=48, heads=25), 1_557_611_200),
        ('bert_base', dict(dim=1024, depth=24, heads=16), 335_141_888),
        ('vit_b16', dict(dim=1024, depth=24, heads=16), 304_351_232),
        ('t5_base', dict(dim=512, depth=6, heads=8), 60_506_624),
        ('t5_base', dict(version='1.1'), 247_577_856),
        ('llama_7b', dict(dim=5120, depth=40, heads=40, ff_dim_inner=13824), 13_015_864_320),
    ],
)
def test_their_larger_and_smaller_sisters(name, sizes, count):
    """GPT-2 XL, BERT large, ViT-L/16, T5 small and 1.1, Llama 13B."""
    assert weights(getattr(presets, name)(**sizes)) == count


@pytest.mark.parametrize('name', CONFIGS)
def test_they_are_what_a_config_says(name):
    assert getattr(presets, name)() == pretrained.keywords(CONFIGS[name])


@pytest.mark.parametrize('name', presets.__all__)
def test_they_go_through_json(name):
    if name in ('build', 'initialise_'):
        return
    sizes = TINY if 'vaswani' not in name else dict(dim=32, enc_depth=1, dec_depth=1)
    keywords = getattr(presets, name)(**sizes)
    model = presets.build(keywords)
    again = json.loads(json.dumps(model.config))
    assert presets.build(again).config == model.config and presets.build(json.loads(json.dumps(keywords))) is not model
    assert inspect.getdoc(getattr(presets, name)).count('arXiv') == ('gpt1' != name != 'gpt2')


def test_sizes_follow():
    keywords = presets.bert_base(dim=64, heads=4, depth=3, num_tokens=100, attn_dropout=0.0)
    stack = keywords['attn_layers']
    assert (stack['dim'], stack['depth'], stack['heads'], stack['attn_dim_head'], stack['ff_dim_inner']) == (
        64,
        3,
        4,
        16,
        256,
    )
    assert keywords['pooler']['dim'] == 64 and keywords['num_tokens'] == 100 and stack['attn_dropout'] == 0
    assert presets.gpt2(ff_dim_inner=100, dim=64, heads=2)['attn_layers']['ff_dim_inner'] == 100
    assert presets.t5_base(dim=64, heads=2)['enc_attn_dim_head'] == 32
    assert presets.llama_7b(dim=64, heads=4)['attn_layers']['ff_dim_inner'] == 11008 * 64 // 4096
    assert presets.gpt3()['attn_layers']['dim'] == 12288 and presets.gpt3(max_seq_len=5)['max_seq_len'] == 5
    assert presets.transformer_xl(dim=82, heads=2)['attn_layers']['ff_dim_inner'] == 420
    assert presets.vit_b16(num_classes=7)['num_classes'] == 7
    assert 'logits_bias' in presets.bert_base('BertForMaskedLM')


def test_first_values_of_simple_vit():
    """A head of zeros, patches by LeCun's rule, the others by Xavier's, biases of zero."""
    net = presets.build(presets.vit_simple_s16(depth=1))
    assert not net.mlp_head.weight.any() and not any(p.any() for n, p in net.named_parameters() if n.endswith('bias'))
    patches, query = net.patch_to_embedding[1].weight, net.attn_layers.layers[0][1].to_q.weight
    assert patches.shape == (384, 768) and abs(patches.std() * 768**0.5 - 1) < 0.02
    assert patches.abs().max() > 3 * patches.std() and abs(query.abs().max() / (6 / 768) ** 0.5 - 1) < 0.01
    assert net(torch.randn(1, 3, 32, 48)).shape == (1, 1000)
    with pytest.raises(ValueError, match='`zeros` must be one of'):
        presets.initialise_(net, zeros=('mlp_had',))


def test_first_values():
    """What joins the stream of GPT-2 starts smaller; an agent starts from the values of its gates."""
    torch.manual_seed(0)
    net = presets.build(presets.gpt2(dim=128, depth=8, heads=2, num_tokens=300, max_seq_len=10))
    ends = [w for a in net.attn_layers.layers for w in ([a[1].to_out] if a.kind == 'a' else [a[1].output_layer])]
    for end in ends:
        assert abs(end.weight.std() / (0.02 * 16**-0.5) - 1) < 0.06
    assert abs(net.token_emb.emb.weight.std() / 0.02 - 1) < 0.06
    agent = presets.build(presets.gtrxl(dim_in=5, dim_out=3, depth=2, max_mem_len=7))
    assert all((layer[2].gate_bias == 2.0).all() for layer in agent.attn_layers.layers)
    x = torch.randn(1, 4, 5)
    out, mems = agent(x, return_mems=True)
    assert out.shape == (1, 4, 3) and mems[0].shape == (1, 4, 256)


def test_gpt1_is_the_model_of_transformers():
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    config = transformers.OpenAIGPTConfig(vocab_size=50, n_positions=12, n_embd=32, n_layer=2, n_head=2)
    theirs = transformers.OpenAIGPTLMHeadModel(config).double().eval()
    net = presets.build(presets.gpt1(**TINY, num_tokens=50, max_seq_len=12)).double().eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.normal_(std=0.3)
        net.token_emb.emb.weight.copy_(theirs.transformer.tokens_embed.weight)
        net.pos_emb.emb.weight.copy_(theirs.transformer.positions_embed.weight)
        for own, block in zip(net.attn_layers.layers, [b for b in theirs.transformer.h for _ in range(2)], strict=True):
            is_attention, branch = own.kind == 'a', own[1]
            norm = block.ln_1 if is_attention else block.ln_2
            after = own[0][2]
            after.gamma.copy_(norm.weight - after.unit_offset), after.beta.copy_(norm.bias)
            if is_attention:
                parts = zip(
                    (branch.to_q, branch.to_k, branch.to_v),
                    block.attn.c_attn.weight.chunk(3, 1),
                    block.attn.c_attn.bias.chunk(3),
                    strict=True,
                )
                parts = [*parts, (branch.to_out, block.attn.c_proj.weight, block.attn.c_proj.bias)]
            else:
                parts = [(branch.ff[0][0], block.mlp.c_fc.weight, block.mlp.c_fc.bias)]
                parts += [(branch.output_layer, block.mlp.c_proj.weight, block.mlp.c_proj.bias)]
            for linear, weight, bias in parts:
                linear.weight.copy_(weight.T), linear.bias.copy_(bias)
    ids = torch.randint(0, 50, (2, 12))
    with torch.no_grad():
        assert_close(net(ids), theirs(ids).logits, tolerance=1e-10)


# what a logit is, of what the stack gives: the table of tokens, by the factor that the paper has, and a bias

TIED = {'gpt1': 1.0, 'gpt2': 1.0, 'gpt3': 1.0, 'xlnet_base': 1.0, 'vaswani_base': 1.0, 'vaswani_big': 1.0}
TIED |= {'t5_base': 48**-0.5, 'whisper_tiny': 1.0}
BIASED = ('xlnet_base',)


@pytest.mark.parametrize('name', TIED)
@torch.no_grad()
def test_logits_are_products_with_the_table_of_tokens(name):
    sides = dict(enc_num_tokens=30, dec_num_tokens=30) if name[:2] in ('va', 't5') else dict(num_tokens=30)
    sizes = dict(dim=48, enc_depth=1, dec_depth=1) if name[:2] == 'va' else dict(dim=48, depth=1, heads=2)
    model = randomised(presets.build(getattr(presets, name)(**sizes, **sides)), scale=0.3)
    net, inputs = getattr(getattr(model, 'decoder', model), 'net', model), {}
    if net is not model:
        inputs = dict(context=randn(2, 4, 48))
    hidden, logits = (net(IDS[:2] % 30, return_embeddings=wanted, **inputs) for wanted in (True, False))
    products = TIED[name] * hidden @ net.token_emb.emb.weight.mT
    if name in BIASED:
        assert net.to_logits.bias.abs().min() > 0
        products = products + net.to_logits.bias
    assert_close(logits, products)


@torch.no_grad()
def test_an_agent_written_out():
    """arXiv:1910.06764, section 3, with the relative positions of arXiv:1901.02860: norms in front of branches, ReLU
    behind them, gates in place of sums, and nothing behind the last one."""
    dim, heads, width, n, held = 12, 2, 64, 5, 3
    net = randomised(presets.build(presets.gtrxl(dim_in=4, dim_out=3, dim=dim, heads=heads, depth=2)), scale=0.4)
    x, mems = randn(1, n, 4), [randn(1, held, dim, seed=1), randn(1, held, dim, seed=2)]
    stack, stream = net.attn_layers, net.project_in(x)[0]
    distances = torch.arange(n + held).flip(0).double()[:, None] * 10000 ** (-torch.arange(0, dim, 2).double() / dim)
    waves = torch.cat((distances.sin(), distances.cos()), dim=-1)  # of keys, for the last query

    def normed(norm, t):
        t = (t - t.mean(-1, keepdim=True)) / (t.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return t * (norm.gamma + norm.unit_offset) + norm.beta

    def gated(gate, y, t):
        y = y.relu()
        wr, wz, wg = gate.w_y.weight.chunk(3)
        ur, uz = gate.w_x.weight.chunk(2)
        r, z = (y @ wr.T + t @ ur.T).sigmoid(), (y @ wz.T + t @ uz.T - gate.gate_bias).sigmoid()
        return (1 - z) * t + z * (y @ wg.T + (r * t) @ gate.u_g.weight.T).tanh()

    for at in range(2):
        (norms, attn, gate), (ff_norms, ff, ff_gate) = stack.layers[2 * at], stack.layers[2 * at + 1]
        everything = normed(norms[0], torch.cat((mems[at][0], stream)))
        q = attn.to_q(everything[held:]).view(n, heads, width)
        k, v = (to(everything).view(-1, heads, width) for to in (attn.to_k, attn.to_v))
        far = (waves @ attn.xl_r if hasattr(attn, 'xl_r') else waves).view(-1, heads, width)
        rows = []
        for i in range(n):
            keys = held + i + 1
            u, w = stack.xl_u, stack.xl_v
            sim = torch.einsum('hd,jhd->hj', q[i] + u, k[:keys]) + torch.einsum('hd,jhd->hj', q[i] + w, far[-keys:])
            rows.append(torch.einsum('hj,jhd->hd', (sim * width**-0.5).softmax(-1), v[:keys]).flatten())
        stream = gated(gate, attn.to_out(torch.stack(rows)), stream)
        first, last = ff.ff[0][0], ff.output_layer
        inner = (normed(ff_norms[0], stream) @ first.weight.T + first.bias).relu()
        stream = gated(ff_gate, inner @ last.weight.T + last.bias, stream)
    assert_close(net(x, mems=mems)[0], net.project_out(stream))


# what they learn: 32 things by heart, in at most 200 steps


IDS = torch.randint(0, 40, (32, 8), generator=torch.Generator().manual_seed(0))
NO_DROPOUT = dict(emb_dropout=0.0, attn_dropout=0.0, attn_sublayer_dropout=0.0, ff_sublayer_dropout=0.0)


def next_tokens(net):
    return lambda: F.cross_entropy(net(IDS[:, :-1]).mT, IDS[:, 1:])


def hidden_tokens(net):
    hidden = torch.rand(IDS.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    return lambda: F.cross_entropy(net(IDS.masked_fill(hidden, 40))[hidden], IDS[hidden])


def translations(net):
    return lambda: net(IDS.flip(1), IDS)


def classes(net):
    images = torch.randn(32, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return lambda: F.cross_entropy(net(images), IDS[:, 0])


def speech(net):
    return lambda: net(randn(32, 20, 80).float(), IDS)


def actions(net):
    x = randn(32, 8, 5).float()
    return lambda: F.cross_entropy(net(x).mT, IDS % 3)


LEARNERS = {
    'bert_base': (hidden_tokens, dict(architecture='BertForMaskedLM', num_tokens=41, max_seq_len=8, **NO_DROPOUT)),
    'roberta_base': (
        hidden_tokens,
        dict(architecture='RobertaForMaskedLM', num_tokens=41, max_seq_len=8, **NO_DROPOUT),
    ),
    'gpt1': (next_tokens, dict(num_tokens=40, max_seq_len=8, **NO_DROPOUT)),
    'gpt2': (next_tokens, dict(num_tokens=40, max_seq_len=8, **NO_DROPOUT)),
    'gpt3': (next_tokens, dict(num_tokens=40, max_seq_len=8, **NO_DROPOUT)),
    't5_base': (translations, dict(enc_num_tokens=40, dec_num_tokens=40)),
    'llama_7b': (next_tokens, dict(num_tokens=40)),
    'vit_b16': (classes, dict(num_classes=40, image_size=16, patch_size=8)),
    'vit_simple_s16': (classes, dict(num_classes=40, image_size=16, patch_size=8)),
    'whisper_tiny': (speech, dict(num_tokens=40)),
    'gtrxl': (actions, dict(dim_in=5, dim_out=3)),
}


@pytest.mark.nightly
@pytest.mark.parametrize('name', LEARNERS)
def test_they_learn_by_heart(name):
    torch.manual_seed(0)
    loss, flags = LEARNERS[name]
    net = presets.build(getattr(presets, name)(**{**TINY, 'dim': 64}, **flags))
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    loss = loss(net)
    before = loss().item()
    taught(net, loss, 200, lr=4e-3)
    assert loss().item() < 0.35 * before, (before, loss().item())


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: presets.gpt4, '`presets` has no .gpt4., did you mean `gpt'),
        (lambda: presets.gpt2(dpth=3), 'unknown keyword `dpth` of TransformerWrapper, did you mean `depth`'),
        (lambda: presets.bert_base(n_tokens=3), 'unknown keyword `n_tokens` of TransformerWrapper, did you mean'),
        (lambda: presets.whisper_tiny(emb_dim=3), 'unknown keyword `emb_dim` of EncoderDecoder'),
        (lambda: presets.gpt2(dim=0), '`dim` must be an integer of at least 1 or None, got 0'),
        (lambda: presets.gpt2(depth=1.5), '`depth` must be an integer of at least 1 or None, got 1.5'),
        (lambda: presets.bert_base(dim=70), '`dim` must be a multiple of `heads`, got dim=70 and heads=12'),
        (lambda: presets.t5_base('2.0'), "`version` must be one of '1.0', '1.1', got '2.0'"),
        (lambda: presets.bert_base('BertForChess'), 'BertForChess'),
    ],
)
def test_refused(call, words):
    with pytest.raises((ConfigError, AttributeError), match=words):
        call()

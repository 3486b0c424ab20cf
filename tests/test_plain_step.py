"""The decode step of a plain model gives what the stages give, and stands back wherever anything else acts."""

from dataclasses import replace

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.fast.plain_step import PlainStep
from x_transformers.features.catalogue import STACK
from x_transformers.features.levels import StackFeature
from x_transformers.flags import flag
from x_transformers.generation.engine import Reader


def model(double=True, wrapper=None, **flags):
    torch.manual_seed(0)
    stack = Decoder(**{'dim': 16, 'depth': 2, 'heads': 4, 'attn_dim_head': 8, 'verbose': False, **flags})
    net = TransformerWrapper(**{'num_tokens': 11, 'max_seq_len': 32, 'attn_layers': stack, **(wrapper or {})})
    return randomised(net.double() if double else net).eval()


def ids(*shape):
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(1))


def heads(out):
    return out if isinstance(out, tuple) else (out,)


YARN = dict(kind='yarn', factor=4.0, length=8)
PLAIN = {
    'default': {},
    'rotary': dict(rotary_pos_emb=True),
    'layers turn otherwise': dict(rotary_pos_emb=True, depth=3, rotary_layers=(dict(scaling=YARN), False, True)),
    'some features turn': dict(rotary_pos_emb=True, rotary_emb_dim=4, rotary_interpolation_factor=2.0),
    'some heads turn': dict(rotary_pos_emb=True, rotate_num_heads=2),
    'kv heads': dict(attn_kv_heads=2, rotary_pos_emb=True),
    'one kv head': dict(attn_one_kv_head=True),
    'rmsnorm, gated': dict(use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True),
    'qk norm': dict(attn_qk_norm=True, rotary_pos_emb=True),
    'rms norm of heads': dict(attn_qk_rmsnorm=True, attn_kv_heads=2, rotary_pos_emb=True, attn_value_rmsnorm=True),
    'biases': dict(attn_qkv_bias=True, attn_out_bias=True, attn_softmax_scale=0.4),
    'some biases': dict(attn_qkv_bias='qv', attn_kv_heads=2, rotary_pos_emb=True),
    'head norms': dict(attn_qk_head_norm='rms', attn_kv_heads=2, rotary_pos_emb=True, norm_add_unit_offset=False),
    'head norms, each': dict(attn_qk_head_norm='rms', attn_qk_head_norm_shared=False, attn_kv_heads=2),
    'head norms, some turn': dict(attn_qk_head_norm='rms', rotary_pos_emb=True, rotate_num_heads=2),
    'head norms with means': dict(attn_qk_head_norm='layer', attn_qk_head_norm_bias=True, rotary_pos_emb=True),
    'dynamic': dict(dynamic_pos_bias=True),
    'norms behind': dict(pre_norm=False),
    'sandwich': dict(sandwich_norm=True),
    'eps': dict(norm_eps=0.1, use_rmsnorm=True, sandwich_norm=True),
    'eps without offset': dict(norm_eps=0.1, use_rmsnorm=True, norm_add_unit_offset=False),
    'norms of branches': dict(branch_post_norm=True, use_rmsnorm=True, norm_eps=0.1),
    'no first norm': dict(first_attn_norm=False),
    'side by side': dict(parallel_block=True, rotary_pos_emb=True),
    'other layers': dict(custom_layers=('a', 'a', 'f', 'a', 'f')),
    'repeated': dict(weight_tie_layers=True),
    'no projection': dict(heads=1, attn_dim_head=16),
    'activation': dict(ff_relu_squared=True, ff_post_act_ln=True),
    'rotary, scaled': dict(rotary_pos_emb=True, rotary_theta=50.0, rotary_scaling=YARN),
    'value heads': dict(attn_value_dim_head=4, rotary_pos_emb=True),
    'qk norm, learned': dict(attn_qk_norm=True, attn_qk_norm_groups=2, attn_qk_norm_dim_scale=True),
    'alibi': dict(alibi_pos_bias=True, attn_kv_heads=2),
    't5': dict(rel_pos_bias=True),
    'no final norm': dict(pre_norm_has_final_norm=False),
    'dropout': dict(attn_dropout=0.3, ff_dropout=0.3, layer_dropout=0.0),
    'formula': dict(attn_flash=False),
    'biases of norms': dict(norm_bias=True, norm_eps=1e-3, ff_activation='gelu_tanh'),
    'no gains': dict(norm_affine=False, norm_eps=1e-3),
    'gated without bias': dict(ff_glu=True, ff_glu_bias=False, ff_no_bias=True, ff_dim_inner=20, ff_activation='silu'),
    'side by side, one norm': dict(parallel_block='shared', norm_bias=True, weight_tie_layers=True),
    'embeddings': dict(wrapper=dict(emb_dim=8)),
    'tied': dict(wrapper=dict(tie_embedding=True, l2norm_embed=True)),
    'scaled': dict(wrapper=dict(emb_scale=2.5, abs_pos_emb_scale=0.3, logits_scale=0.5, logits_bias=True)),
    'scaled, tied': dict(wrapper=dict(emb_scale=2.5, l2norm_embed=True, tie_embedding=True, logits_softclamp=2.0)),
    'embedding norm': dict(wrapper=dict(post_emb_norm=True, post_emb_norm_bias=True, emb_dim=8)),
    'stream norm': dict(wrapper=dict(post_emb_norm=True, post_emb_norm_at='stream', emb_dim=8, project_emb_bias=False)),
    'head transform': dict(wrapper=dict(head_transform=dict(dim=12), pooler=dict(token='last'))),
    'scaled heads': dict(wrapper=dict(num_output_heads=2, logits_softclamp=2.0, logits_bias=True)),
    'sinusoids': dict(wrapper=dict(scaled_sinu_pos_emb=True)),
    'no positions': dict(wrapper=dict(use_abs_pos_emb=False)),
    'heads': dict(wrapper=dict(num_output_heads=2)),
}


@pytest.mark.parametrize('flags', PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize('double', [True, False], ids=['double', 'packed'])
def test_the_plain_step_is_the_step(flags, double):
    net, x = model(double, **flags), ids(3, 12)
    tolerance = 1e-9 if double else 2e-5
    with torch.no_grad():
        step = PlainStep.of(net, {}, packs=99)
        assert step is not None
        cache = net(x[:, :5], return_intermediates=True)[1].cache
        wanted, trace = net(x, return_intermediates=True)
        for place in range(5, 12):
            assert step.takes(x[:, place : place + 1], cache)
            out, cache = step(x[:, place : place + 1], cache)
            for own, one in zip(heads(out), heads(wanted), strict=True):
                assert_close(own, one[:, place : place + 1], tolerance=tolerance)
        # the cache goes on in the ordinary way, and holds the same
        assert cache.length == cache.seen == 12
        for own, other in zip(cache.plain().layers, trace.cache.plain().layers, strict=True):
            for t, wanted in zip(own.pair, other.pair, strict=True):
                assert_close(t, wanted, tolerance=tolerance)
        longer = torch.cat((x, x[:, :2]), dim=1)
        out, wanted = heads(net(longer, cache=cache))[0], heads(net(longer))[0]
        assert_close(out[:, -2:], wanted[:, -2:], tolerance=tolerance)


@pytest.mark.parametrize('change', ['in place', 'replaced', 'another precision'])
def test_the_plain_step_follows_the_weights(change):
    """What was laid out or summed for the step is made again when the weights change between two tokens."""
    net, x = model(False, rotary_pos_emb=True), ids(1, 8)
    step = PlainStep.of(net, {}, packs=99)
    with torch.no_grad():
        cache = net(x[:, :5], return_intermediates=True)[1].cache
        _, cache = step(x[:, 5:6], cache)
        if change == 'in place':
            for p in net.parameters():
                p.mul_(1.3)
        elif change == 'replaced':
            for module in net.modules():
                for name, p in module._parameters.items():
                    setattr(module, name, None if p is None else nn.Parameter(p * 1.3))
        else:
            net.double()
            cache = net(x[:, :6], return_intermediates=True)[1].cache
        out, _ = step(x[:, 6:7], cache)
        assert_close(out, net(x[:, :7], cache=cache), tolerance=2e-5)


class Louder(StackFeature):
    louder = flag(False, 'twice the stream before a branch')

    def read(self, x, layer, call):
        return 2 * x


ACTING = {
    'xpos': dict(rotary_xpos=True),
    'memory keys': dict(attn_num_mem_kv=1),
    'top-k': dict(attn_sparse_topk=2),
    'gate': dict(attn_gate_values=True),
    'window': dict(attn_max_attend_past=4),
    'shift': dict(shift_tokens=1),
    'reinject': dict(reinject_input=True),
    'residual scale': dict(scale_residual=True),
    'constant scale': dict(scale_residual_constant=0.5),
    'gru': dict(gate_residual=True),
    'streams': dict(num_residual_streams=2),
    'own feature': dict(features=(*STACK, Louder), louder=True),
}
OTHERS = ACTING | {
    'value residual': dict(add_value_residual=True),
    'memory tokens': dict(wrapper=dict(num_memory_tokens=2)),
    'mixture': dict(wrapper=dict(mixture_of_softmax=True)),
    'angles by length': dict(rotary_pos_emb=True, rotary_scaling=dict(kind='dynamic', factor=2.0, length=4)),
}


@pytest.mark.parametrize('flags', OTHERS.values(), ids=OTHERS)
def test_other_models_take_the_ordinary_way(flags):
    net = model(**flags)
    assert PlainStep.of(net, {}, packs=99) is None
    wrapper = AutoregressiveWrapper(net)
    cached, whole = (wrapper.generate(ids(2, 4), 8, temperature=0.0, cache_kv=kv) for kv in (True, False))
    assert torch.equal(cached, whole)


def test_subclasses_and_replaced_modules_take_the_ordinary_way():
    class Own(TransformerWrapper):
        pass

    net = Own(num_tokens=11, max_seq_len=32, attn_layers=Decoder(dim=16, depth=1))
    assert PlainStep.of(net, {}, packs=99) is None
    net = model()
    net.attn_layers.layers[0][1] = nn.Sequential(net.attn_layers.layers[0][1])
    assert PlainStep.of(net, {}, packs=99) is None
    net = model()
    net.attn_layers.layers[1][1].forward = lambda x, **_: x
    assert PlainStep.of(net, {}, packs=99) is None


@pytest.fixture
def steps(monkeypatch):
    """Counts the plain steps."""
    taken, run = [], PlainStep.__call__
    monkeypatch.setattr(PlainStep, '__call__', lambda self, *args: taken.append(1) or run(self, *args))
    return taken


def test_a_hook_of_the_net_hears_the_plain_step(steps):
    """Ids, logits and intermediates, those that it reads at once and those that it keeps."""
    net, heard, kept = model(rotary_pos_emb=True), [], []

    def listen(module, args, out):
        assert module is net and len(args) == 1
        logits, inter = out
        logits.mul_(1.0)  # a tensor like any other
        heard.append((args[0], logits, inter.hiddens if len(heard) % 2 else None))
        kept.append(inter if len(heard) == 3 else None)

    wrapper = AutoregressiveWrapper(net)
    alone = wrapper.generate(ids(2, 4), 8, temperature=0.0)
    count, handle = len(steps), net.register_forward_hook(listen)
    assert torch.equal(wrapper.generate(ids(2, 4), 8, temperature=0.0), alone)
    handle.remove()
    assert len(steps) == 2 * count > 0 and len(heard) == count + 1
    assert 'hiddens' in vars(kept[2])  # of the net as it was
    whole = torch.cat((ids(2, 4), alone), dim=1)
    wanted, trace = net(whole[:, :-1], return_intermediates=True)
    for at, (new, logits, hiddens) in enumerate(heard[1:], start=4):
        assert torch.equal(new, whole[:, at : at + 1])
        assert_close(logits, wanted[:, at : at + 1], tolerance=2e-5)
        for own, one in zip(hiddens or [], trace.hiddens, strict=bool(hiddens)):
            assert_close(own[:, -1:], one[:, at : at + 1], tolerance=2e-5)
    assert kept[2].cache.length == kept[2].cache_length == 6


@pytest.mark.parametrize('change', ['logits', 'intermediates', 'weights'])
def test_what_a_hook_of_the_net_changes_counts(change, steps):
    def others(module, args, out):
        if change == 'logits':
            return torch.full_like(out[0], -1.0).index_fill_(-1, torch.tensor(3), 1.0), out[1]
        if change == 'weights':  # such as nobody can see
            module.to_logits.weight.data.neg_()
            return None
        out[1].attn_intermediates[0].cached_kv[0].zero_()
        return out

    found = []
    for way in (None, lambda *_: None):  # the second listens inside, so that the ordinary way is taken
        net = model()
        net.register_forward_hook(others)
        if way is not None:
            net.to_logits.register_forward_hook(way)
        found.append(AutoregressiveWrapper(net).generate(ids(2, 4), 8, temperature=0.0))
        assert bool(steps) == (way is None)
        steps.clear()
    assert torch.equal(*found)


@pytest.mark.parametrize('kind', ['pre', 'kwargs', 'always'])
def test_other_hooks_of_the_net_take_the_ordinary_way(kind, steps):
    net, seen = model(), []
    if kind == 'pre':
        net.register_forward_pre_hook(lambda *_: seen.append(1))
    else:
        net.register_forward_hook(lambda *_: seen.append(1), with_kwargs=kind == 'kwargs', always_call=kind == 'always')
    AutoregressiveWrapper(net).generate(ids(2, 4), 5)
    assert len(seen) == 5 and not steps


def test_hooks_and_further_inputs_take_the_ordinary_way(monkeypatch):
    """Hooks see every step, also those that are registered between two tokens."""
    net, seen, plain = model(), [], []
    run = PlainStep.__call__
    monkeypatch.setattr(PlainStep, '__call__', lambda self, *args: plain.append(1) or run(self, *args))
    wrapper = AutoregressiveWrapper(net)
    stream = wrapper.stream(ids(1, 4), 9)
    for _ in range(3):
        next(stream)
    assert len(plain) == 2
    hook = net.attn_layers.layers[0][1].to_q.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(3):
        next(stream)
    assert len(plain) == 2 and len(seen) == 3
    hook.remove()
    for _ in range(3):
        next(stream)
    assert len(plain) == 5 and len(seen) == 3
    wrapper.generate(ids(2, 4), 4, mask=torch.tensor([[False, True, True, True], [True] * 4]))
    wrapper.generate(ids(2, 4), 4, prompt_lens=torch.tensor([2, 4]))
    wrapper.generate(ids(2, 4), 4, return_intermediates=True)
    assert len(plain) == 5


@torch.no_grad()
def test_what_a_step_cannot_go_on_from():
    net, x = model(rotary_pos_emb=True), ids(2, 6)
    step = PlainStep.of(net, {}, packs=99)
    cache = net(x[:, :5], return_intermediates=True)[1].cache
    behind = net(x[:, :5], prepend_embeds=torch.zeros(2, 3, 16).double(), return_intermediates=True)[1].cache
    unturned = replace(cache, layers=cache.plain().layers)
    assert step.takes(x[:, 5:], cache)
    assert not step.takes(x[:, 5:], behind) and not step.takes(x[:, 5:], unturned)
    assert not step.takes(x[:, 4:], cache) and not step.takes(x[:0, 5:], cache)
    net.train()
    assert not step.takes(x[:, 5:], cache)


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True)], ids=str)
def test_beams_and_samples_through_the_plain_step(flags, monkeypatch):
    net, plain = model(**flags), []
    run = PlainStep.__call__
    monkeypatch.setattr(PlainStep, '__call__', lambda self, *args: plain.append(1) or run(self, *args))
    wrapper = AutoregressiveWrapper(net)
    found = wrapper.beam_search(ids(2, 4), 6, beams=3)
    assert plain
    monkeypatch.setattr(Reader, 'takes_plain_step', lambda *_: False)
    assert torch.equal(found, wrapper.beam_search(ids(2, 4), 6, beams=3))


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(use_rmsnorm=True, ff_glu=True)], ids=str)
def test_what_a_stream_leaves_behind_can_be_trained_with(flags):
    """Steps run in inference mode: none of its tensors may get out, nor stay in the model."""
    net, plain = model(**flags), []
    wrapper = AutoregressiveWrapper(net)

    def louder(ids, logits):
        plain.append(logits.is_inference())
        return logits.mul_(2)  # in place

    out = wrapper.generate(ids(2, 4), 6, temperature=0.0, logits_processor=louder)
    assert not out.is_inference() and len(plain) == 6 and not any(plain)
    wrapper.train()
    wrapper(torch.cat((ids(2, 4), out), dim=1)).backward()
    assert all(p.grad is not None and not p.grad.is_inference() for p in net.parameters())
    assert not any(b.is_inference() for b in net.buffers())


def test_a_token_past_the_table_is_refused_by_name():
    """As without a cache; the tokens before it are those of the table."""
    net = model(wrapper=dict(max_seq_len=8))
    lm = net if hasattr(net, 'generate') else AutoregressiveWrapper(net)
    options = dict(temperature=0.0, restrict_to_max_seq_len=False)
    assert lm.generate(ids(2, 4), 5, **options).shape == (2, 5)
    for cache_kv in (True, False):
        with pytest.raises(ValueError, match='the sequence has 9 tokens, more than the table of absolute positions'):
            lm.generate(ids(2, 4), 6, cache_kv=cache_kv, **options)

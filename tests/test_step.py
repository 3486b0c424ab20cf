"""The decode step that is written out gives what the ordinary way gives, and is taken where nothing else acts."""

import copy
import pickle
import threading
from dataclasses import replace

import pytest
import torch
from building import ids_below
from oracles import assert_close, randomised
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.attend import Intermediates
from x_transformers.features import ATTENTION, STACK, AttentionFeature, StackFeature
from x_transformers.flags import flag
from x_transformers.generation.engine import IncrementalModel
from x_transformers.generation.step import Step


def model(double=True, wrapper=None, **flags):
    torch.manual_seed(0)
    stack = Decoder(**{'dim': 16, 'depth': 2, 'heads': 4, 'attn_dim_head': 8, 'verbose': False, **flags})
    net = TransformerWrapper(**{'num_tokens': 11, 'max_seq_len': 32, 'attn_layers': stack, **(wrapper or {})})
    return randomised(net.double() if double else net).eval()


ids = ids_below(11, seed=1)


def heads(out):
    return out if isinstance(out, tuple) else (out,)


@pytest.fixture
def steps(monkeypatch):
    """Collect the steps that are taken."""
    taken, run = [], Step.__call__
    monkeypatch.setattr(Step, '__call__', lambda self, *args: taken.append(1) or run(self, *args))
    return taken


YARN = dict(kind='yarn', factor=4.0, length=8)
WRITTEN_OUT = {
    'default': {},
    'rotary': dict(rotary_pos_emb=True),
    'layers turn otherwise': dict(rotary_pos_emb=True, depth=3, rotary_layers=(dict(scaling=YARN), False, True)),
    'some features turn': dict(rotary_pos_emb=True, rotary_emb_dim=4, rotary_interpolation_factor=2.0),
    'some heads turn': dict(rotary_pos_emb=True, rotate_num_heads=2),
    'kv heads': dict(attn_kv_heads=2, rotary_pos_emb=True),
    'one kv head': dict(attn_one_kv_head=True),
    'rmsnorm, gated': dict(use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_glu_mult_bias=True, ff_no_bias=True),
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


@pytest.mark.parametrize('flags', WRITTEN_OUT.values(), ids=WRITTEN_OUT)
@pytest.mark.parametrize('double', [True, False], ids=['double', 'single'])
def test_the_step_gives_what_the_ordinary_way_gives(flags, double):
    net, x = model(double, **flags), ids(3, 12)
    tolerance = 1e-9 if double else 2e-5
    with torch.no_grad():
        step = Step.of(net, {})
        assert step is not None
        cache = net(x[:, :5], return_intermediates=True)[1].cache
        wanted, trace = net(x, return_intermediates=True)
        for place in range(5, 12):
            assert step.takes(x[:, place : place + 1], cache)
            out, cache = step(x[:, place : place + 1], cache)
            for own, one in zip(heads(out), heads(wanted), strict=True):
                assert_close(own, one[:, place : place + 1], tolerance=tolerance)
        # the cache goes on in the ordinary way, and holds the same
        assert cache.length == cache.num_seen_tokens == 12
        for own, other in zip(cache.plain().layers, trace.cache.plain().layers, strict=True):
            for t, wanted in zip(own.pair, other.pair, strict=True):
                assert_close(t, wanted, tolerance=tolerance)
        longer = torch.cat((x, x[:, :2]), dim=1)
        out, wanted = heads(net(longer, cache=cache))[0], heads(net(longer))[0]
        assert_close(out[:, -2:], wanted[:, -2:], tolerance=tolerance)


@pytest.mark.parametrize('flags', WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_greedy_tokens_are_those_of_the_ordinary_way(flags, steps):
    wrapper = AutoregressiveWrapper(model(**flags))
    found = [wrapper.generate(ids(2, 4), 9, temperature=0.0) for _ in range(2)]
    assert len(steps) == 2 * 8
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], wrapper.generate(ids(2, 4), 9, temperature=0.0, return_intermediates=True)[0])
    assert len(steps) == 2 * 8
    assert torch.equal(found[0], wrapper.generate(ids(2, 4), 9, temperature=0.0, cache_kv=False))


class Louder(StackFeature):
    louder = flag(False, 'twice the stream before a branch')

    def branch_input(self, x, layer, call):
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
    assert Step.of(net, {}) is None
    wrapper = AutoregressiveWrapper(net)
    cached, whole = (wrapper.generate(ids(2, 4), 8, temperature=0.0, cache_kv=kv) for kv in (True, False))
    assert torch.equal(cached, whole)


def replaced(net):
    net.attn_layers.layers[0][1] = nn.Sequential(net.attn_layers.layers[0][1])


def shadowed(net):
    net.attn_layers.layers[1][1].forward = lambda x, **_: x


def shadowed_inside(net):
    net.attn_layers.layers[0][1].open_call = net.attn_layers.layers[0][1].open_call


def as_plain_tensor(net):
    linear = net.attn_layers.layers[0][1].to_q
    weight = linear.weight.detach()
    del linear.weight
    linear.weight = weight


class Louder2(torch.Tensor):
    pass


def as_tensor_subclass(net):
    linear = net.attn_layers.layers[0][1].to_q
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Louder2))


def other_class(net):
    class Own(type(net.attn_layers)):
        pass

    net.attn_layers.__class__ = Own


CHANGES = {
    'a replaced branch': replaced,
    'a forward of an instance': shadowed,
    'a method of an instance': shadowed_inside,
    'a plain tensor': as_plain_tensor,
    'a tensor of another class': as_tensor_subclass,
    'a subclass': other_class,
    'a scaled residual': lambda net: setattr(net.attn_layers.layers[0][2], 'scale_residual_constant', 0.5),
    'dropout at work': lambda net: net.attn_layers.layers[1][1].ff[1].train(),
    'training': lambda net: net.train(),
    'weights of attention': lambda net: setattr(net.attn_layers.layers[0][1].attend, 'attn_fn', torch.sigmoid),
    'a compiled module': lambda net: setattr(net.to_logits, '_compiled_call_impl', net.to_logits.forward),
    'a forward hook': lambda net: net.to_logits.register_forward_hook(lambda *_: None),
    'a hook before the call': lambda net: net.token_emb.register_forward_pre_hook(lambda *_: None),
    'a hook of gradients': lambda net: net.register_full_backward_hook(lambda *_: None),
    'a hook of the net': lambda net: net.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
def test_changed_models_take_the_ordinary_way(change):
    net = model(False)
    assert Step.of(net, {}) is not None
    change(net)
    assert Step.of(net, {}) is None


def test_models_in_a_mode_take_the_ordinary_way(monkeypatch):
    class Own(TransformerWrapper):
        pass

    net = model(False)
    assert Step.of(Own(num_tokens=11, max_seq_len=32, attn_layers=net.attn_layers).eval(), {}) is None
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert Step.of(net, {}) is None
    with Shapes('mm'):
        assert Step.of(net, {}) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, 'is_compiling', lambda: True)
        assert Step.of(net, {}) is None
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert Step.of(net, {}) is None
    handle.remove()
    assert Step.of(net, {'mask': torch.ones(2, 4, dtype=torch.bool)}) is None
    assert Step.of(net, {'mask': None}) is not None


class Shapes(TorchDispatchMode):
    """Records the shapes of what some operations give."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.seen = names, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.name().split('::')[1].split('.')[0] in self.names:
            self.seen.append(tuple(out.shape))
        return out


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(attn_qk_norm=True)], ids=str)
@pytest.mark.parametrize('change', ['in place', 'replaced', 'another tensor'])
def test_weights_that_change_between_two_tokens_count(change, flags):
    """Parameters are read at each token."""
    net, x = model(**flags), ids(1, 8)
    step = Step.of(net, {})
    with torch.no_grad():
        cache = net(x[:, :5], return_intermediates=True)[1].cache
        _, cache = step(x[:, 5:6], cache)
        for module in net.modules():
            for name, p in module._parameters.items():
                if p is not None and change == 'in place':
                    p.mul_(1.3)
                elif p is not None and change == 'replaced':
                    setattr(module, name, nn.Parameter(p * 1.3))
                elif p is not None:
                    p.data = p.data * 1.3
        out, _ = step(x[:, 6:7], cache)
        assert_close(out, net(x[:, :7], cache=cache))


def test_a_hook_of_the_net_gets_logits_and_the_cache(steps):
    """What it changes counts."""
    net, heard = model(rotary_pos_emb=True), []
    wrapper = AutoregressiveWrapper(net)
    alone = wrapper.generate(ids(2, 4), 8, temperature=0.0)
    steps.clear()
    handle = net.register_forward_hook(lambda module, args, out: heard.append((args[0], *out)))
    assert torch.equal(wrapper.generate(ids(2, 4), 8, temperature=0.0), alone)
    handle.remove()
    assert len(heard) == 8 and not steps
    wanted = net(torch.cat((ids(2, 4), alone), dim=1)[:, :-1])
    for at, (new, logits, left) in enumerate(heard[1:], start=4):
        assert new.shape == (2, 1) and left.cache.length == at + 1
        assert_close(logits, wanted[:, at : at + 1])

    def third(module, args, out):
        return torch.full_like(out[0], -1.0).index_fill_(-1, torch.tensor(3), 1.0), out[1]

    net.register_forward_hook(third)
    assert torch.equal(wrapper.generate(ids(2, 4), 3, temperature=0.0), torch.full((2, 3), 3))


def test_what_changes_between_two_tokens_counts_in_the_next_generation(steps):
    net, seen = model(), []
    wrapper = AutoregressiveWrapper(net)
    stream = wrapper.stream(ids(1, 4), 9)
    next(stream)
    next(stream)
    assert len(steps) == 1
    hook = net.attn_layers.layers[0][1].to_q.register_forward_hook(lambda *_: seen.append(1))
    assert len(list(stream)) == 7 and not seen
    steps.clear()
    wrapper.generate(ids(1, 4), 5)
    assert len(seen) == 5 and not steps
    hook.remove()
    wrapper.generate(ids(1, 4), 5)
    assert len(seen) == 5 and len(steps) == 4


def test_further_inputs_take_the_ordinary_way(steps):
    wrapper = AutoregressiveWrapper(model())
    wrapper.generate(ids(2, 4), 4, mask=torch.tensor([[False, True, True, True], [True] * 4]))
    wrapper.generate(ids(2, 4), 4, prompt_lens=torch.tensor([2, 4]))
    wrapper.generate(ids(2, 4), 4, return_intermediates=True)
    wrapper.generate(ids(2, 4), 4, cache_kv=False)
    assert not steps


@torch.no_grad()
def test_what_a_step_cannot_continue():
    net, x = model(rotary_pos_emb=True), ids(2, 6)
    step = Step.of(net, {})
    cache = net(x[:, :5], return_intermediates=True)[1].cache
    behind = net(x[:, :5], prepend_embeds=torch.zeros(2, 3, 16).double(), return_intermediates=True)[1].cache
    unturned = replace(cache, layers=cache.plain().layers)
    assert step.takes(x[:, 5:], cache)
    assert not step.takes(x[:, 5:], behind) and not step.takes(x[:, 5:], unturned)
    assert not step.takes(x[:, 4:], cache) and not step.takes(x[:0, 5:], cache)


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True)], ids=str)
def test_other_ways_to_generate_take_the_step(flags, steps, monkeypatch):
    wrapper, draft = AutoregressiveWrapper(model(**flags)), model(**flags, depth=1)
    ways = (
        lambda: wrapper.beam_search(ids(2, 4), 6, beams=3),
        lambda: wrapper.generate(ids(2, 4), 6, temperature=0.0, num_samples=2),
        lambda: wrapper.generate(ids(2, 4), 6, temperature=0.0, amateur_model=draft),
        lambda: wrapper.speculative(ids(1, 4), 6, draft, temperature=0.0),
    )
    found = []
    for way in ways:
        steps.clear()
        found.append(way())
        assert steps
    monkeypatch.setattr(IncrementalModel, 'takes_step', lambda *_: False)
    for way, tokens in zip(ways, found, strict=True):
        assert torch.equal(tokens, way())


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
        with pytest.raises(ValueError, match='sequences must have at most `max_seq_len=8` tokens, got 9'):
            lm.generate(ids(2, 4), 6, cache_kv=cache_kv, **options)


# what a pass of a generation leaves behind besides the cache


class Sees(AttentionFeature):
    """Keeps what attention leaves behind."""

    def __init__(self, owner, values):
        super().__init__(owner, values)
        self.left = []

    def head_outputs(self, out, call):
        self.left.append(call.intermediates)
        return out


def hooked(net, left):
    def look(module, args, out):
        left.append(out[1] if isinstance(out[1], Intermediates) else out[1].attn_intermediates[0])

    return look


WATCHERS = {
    'hook of attention': lambda net, look: net.attn_layers.layers[0][1].register_forward_hook(look),
    'hook of the operator': lambda net, look: net.attn_layers.layers[0][1].attend.register_forward_hook(look),
    'hook of the stack': lambda net, look: net.attn_layers.register_forward_hook(look),
    'forward of the stack': lambda net, look: with_forward(net.attn_layers, look),
    'forward of the class': lambda net, look: subclassed(net.attn_layers.layers[0][1], look),
}


def with_forward(module, look):
    own = module.forward

    def forward(*args, **kwargs):
        out = own(*args, **kwargs)
        look(module, args, out)
        return out

    module.forward = forward


def subclassed(module, look):
    class Own(type(module)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            look(self, args, out)
            return out

    module.__class__ = Own


def maps_are_those_of_the_call(net, left, step):
    """Of a decode step: one query, the weights of which sum to one; read late, they are what they were."""
    left.clear()
    step(0)
    early = [one.post_softmax_attn.clone() for one in left]
    left.clear()
    step(0)
    with torch.no_grad():
        for p in net.parameters():
            p.data = p * 2 + 0.5
    late = [one.post_softmax_attn for one in left]
    assert late and len(late) == len(early)
    for one, other in zip(early, late, strict=True):
        assert one.shape[-2] == 1 and torch.equal(one, other)


def stepper(net, reader):
    """Reads the token behind a prompt, again and again."""
    reader.read(ids(2, 4))
    cache = reader.cache

    def step(_):
        reader.cache, reader.seen = cache, 4
        return reader.read(ids(2, 5))

    return step


@pytest.mark.parametrize('watcher', WATCHERS)
def test_who_watches_a_decode_step_gets_maps(watcher):
    net, left = model(attn_pre_talking_heads=True), []
    WATCHERS[watcher](net, hooked(net, left))
    with torch.no_grad():
        maps_are_those_of_the_call(net, left, stepper(net, IncrementalModel(net, {})))


def test_a_feature_of_a_user_gets_maps_of_a_decode_step():
    net = model(attn_pre_talking_heads=True, features=(*ATTENTION, Sees))
    left = net.attn_layers.layers[0][1].features.find(Sees).left
    with torch.no_grad():
        maps_are_those_of_the_call(net, left, stepper(net, IncrementalModel(net, {})))


@pytest.mark.parametrize('keeps', ['past', 'all'])
def test_a_prompt_leaves_what_its_cache_needs(keeps):
    net, x = model(), torch.arange(7).remainder(5)[None]
    with torch.no_grad():
        reader = IncrementalModel(net, {}, keeps=keeps)
        reader.read(x)
        left = reader.intermediates
        whole = net(x, return_intermediates=True)[1]
    assert left.cache.length == 7 and whole.hiddens and whole.layer_hiddens
    for name in ('hiddens', 'layer_hiddens', 'block_hiddens'):
        assert len(getattr(left, name)) == (0 if keeps == 'past' else len(getattr(whole, name))), name


@pytest.mark.parametrize('flag', ['attn_pre_talking_heads', 'residual_attn', 'attn_gate_values'])
def test_nobody_else_pays_for_maps(flag):
    """What nobody can read is not kept; who asks for intermediates has them."""
    net = model(**{flag: True, 'depth': 2})
    with torch.no_grad():
        step = stepper(net, reader := IncrementalModel(net, {}))
        brief = step(0)
        left = reader.intermediates.attn_intermediates
        assert all(one.compute_maps is None for one in left)
        step = stepper(net, reader := IncrementalModel(net, {}, keeps='all'))
        assert torch.equal(step(0), brief)
        assert all(one.post_softmax_attn is not None for one in reader.intermediates.attn_intermediates)


@torch.no_grad()
def test_the_past_alone_can_be_asked_for():
    net, longer = model(attn_pre_talking_heads=True), ids(2, 6)
    x = longer[:, :5]
    logits, left = net(x, return_intermediates='past')
    assert left.cache.length == 5 and not left.hiddens and left.attn_intermediates[0].compute_maps is None
    assert_close(logits, net(x))
    assert_close(net(longer, cache=left), net(longer)[:, -1:])
    _, left = net(x, return_intermediates='past', return_mems=True)
    assert len(left.hiddens) == 2
    with pytest.raises(TypeError, match="must be True, False or 'past'"):
        net(x, return_intermediates='pasts')


# what is kept of angles


@pytest.mark.parametrize('inference', [False, True])
def test_angles_of_the_caller_may_be_edited(inference):
    """What layers turned by is not kept beside a tensor that outlives the pass."""
    stack = model(rotary_pos_emb=True).attn_layers
    x, angles = torch.randn(1, 5, 16, dtype=torch.double), torch.randn(1, 5, 4)
    with torch.inference_mode(inference), torch.no_grad():
        angles = angles.clone()
        before = stack(x, rotary_pos_emb=(angles, 1.0))
        angles.data.mul_(2)
        after = stack(x, rotary_pos_emb=(angles, 1.0))
        assert_close(after, stack(x, rotary_pos_emb=(angles.clone(), 1.0)))
        assert not torch.allclose(after, before)


@pytest.mark.parametrize('flags', [{}, dict(attn_qk_norm=True)], ids=str)
def test_generation_changes_nothing_that_others_use(flags):
    """While a step runs, modules are what they were."""
    net, seen = model(False, **flags), []
    wrapper = AutoregressiveWrapper(net).eval()
    wrapper.generate(ids(5, 4), 3)
    held = [dict(vars(module)) for module in wrapper.modules()]
    net.to_logits.register_forward_hook(lambda *_: seen.append([dict(vars(m)) for m in wrapper.modules()]))
    wrapper.generate(ids(5, 4), 3)
    assert seen == [held] * 3


def test_gradients_while_another_thread_generates():
    net = model(False, attn_qk_norm=True)
    wrapper, stop, x = AutoregressiveWrapper(net).eval(), threading.Event(), ids(4, 8)

    def generating():
        while not stop.is_set():
            wrapper.generate(ids(5, 4), 8)

    learned = [p for p in net.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(wrapper(x), learned)
    other = threading.Thread(target=generating)
    other.start()
    try:
        for _ in range(10):
            found = torch.autograd.grad(wrapper(x), learned, allow_unused=True)
            assert all(one is not None and torch.equal(one, g) for one, g in zip(found, wanted, strict=True))
    finally:
        stop.set()
        other.join()


def test_a_chosen_kernel_counts():
    """Also where another ran before."""
    net = model(depth=1)
    with torch.no_grad(), Shapes('_softmax') as shapes:
        before, layer = net(ids(2, 5)), net.attn_layers.layers[0][1]
        assert not shapes.seen
        layer.flash = False
        layer.choose_kernel()
        assert_close(net(ids(2, 5)), before)
    assert shapes.seen


# keys are rotated once


KINDS = [{}, dict(rotate_num_heads=1), dict(attn_kv_heads=1), dict(attn_qk_norm=True)]


@pytest.mark.parametrize('flags', KINDS, ids=str)
def test_cached_keys_are_rotated_once(flags):
    """A step turns the new query and key alone, and the cache that is read is that of keys not yet turned."""
    net = model(rotary_pos_emb=True, **flags)
    x = ids(2, 9)
    plain, whole = net(x, return_intermediates=True)
    _, inter = net(x[:, :8], return_intermediates=True)
    with Shapes('view_as_complex') as shapes:
        out, inter = net(x, cache=inter, return_intermediates=True)
    assert shapes.seen and {shape[-2] for shape in shapes.seen} == {1}
    assert_close(out[:, -1], plain[:, -1])
    for own, other in zip(inter.attn_intermediates, whole.attn_intermediates, strict=True):
        for t, wanted in zip(own.cached_kv, other.cached_kv, strict=True):
            assert_close(t, wanted)
    # what was read may be edited, and the next step sees it
    same = net(ids(2, 10), cache=inter)
    with torch.no_grad():
        inter.attn_intermediates[0].cached_kv[0][:, :, 2] = 0.5
    assert not torch.allclose(net(ids(2, 10), cache=inter), same)


def test_keys_as_projected_are_the_reading_of_the_layer():
    net = model(rotary_pos_emb=True)
    seen = []
    layer = net.attn_layers.layers[0][1]
    layer.to_k.register_forward_hook(lambda module, args, out: seen.append(out))
    _, inter = net(ids(2, 7), return_intermediates=True)
    assert_close(inter.attn_intermediates[0].cached_kv[0].transpose(1, 2).flatten(2), seen[0])


def test_caches_of_rotated_keys_travel(tmp_path):
    """Copied, pickled, saved and moved caches continue like the first."""
    net = model(rotary_pos_emb=True)
    x = ids(2, 9)
    expected = net(x)[:, -1]
    with torch.no_grad():
        cache = net(x[:, :8], return_intermediates=True)[1].cache
    cache.save(tmp_path / 'cache')
    others = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), cache.load(tmp_path / 'cache'), cache.to('cpu')]
    for other in (*others, cache, cache.plain(), cache.crop(5), cache.reorder(torch.tensor([0, 1]))):
        assert_close(net(x, cache=other)[:, -1], expected)


def test_a_cache_continues_with_angles_of_the_caller():
    net = model(rotary_pos_emb=True).attn_layers
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    angles = net.rotary_pos_emb(torch.arange(9))
    _, inter = net(x[:, :8], return_hiddens=True)
    assert_close(net(x, cache=inter, rotary_pos_emb=angles)[:, -1], net(x)[:, -1])


@pytest.mark.parametrize('flags', [{}, dict(attn_num_mem_kv=1)], ids=str)
def test_an_offset_moves_cached_keys_too(flags):
    """Positions of all keys count from the offset; beside keys at no position that shows."""
    net = randomised(Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, **flags).double()).eval()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    _, inter = net(x[:, :8], return_hiddens=True)
    angles = net.rotary_pos_emb(torch.arange(20 - 8, 20 + 1))
    out = net(x, cache=inter, seq_pos_offset=20)
    _, inter = net(x[:, :8], return_hiddens=True)
    assert_close(out, net(x, cache=inter, rotary_pos_emb=angles))
    assert torch.allclose(out, net(x)[:, -1:]) == (not flags)  # without such keys only distances count


# logits of the last places


def test_logits_to_keep():
    net = model(wrapper=dict(num_memory_tokens=1))
    x, front = ids(2, 9), torch.randn(2, 3, 16, dtype=torch.float64)
    for inputs in ({}, dict(prepend_embeds=front), dict(mask=torch.arange(9).expand(2, -1) > 2)):
        logits = net(x, **inputs)
        for keep in (1, 4, 50):
            assert_close(net(x, logits_to_keep=keep, **inputs), logits[:, -keep:])
    both, embeds = net(x, logits_to_keep=2, return_logits_and_embeddings=True)
    assert both.shape == (2, 2, 11) and embeds.shape == (2, 9, 16)


@pytest.mark.parametrize('keep', [0, -1, 1.5, True])
def test_bad_logits_to_keep(keep):
    with pytest.raises(ValueError, match='`logits_to_keep` must be an integer of at least 1, got'):
        model()(ids(1, 3), logits_to_keep=keep)


def test_logits_to_keep_of_a_model_that_pools():
    net = TransformerWrapper(num_tokens=11, max_seq_len=8, attn_layers=Encoder(dim=16, depth=1), use_cls_token=True)
    with pytest.raises(ValueError, match='`logits_to_keep` cannot be combined with a model that pools'):
        net(ids(1, 3), logits_to_keep=1)


@pytest.mark.parametrize('cache_kv', [True, False])
def test_a_prompt_is_read_without_its_logits(cache_kv):
    wrapper, widths = AutoregressiveWrapper(model()), []
    wrapper.net.to_logits.register_forward_hook(lambda module, args, out: widths.append(out.shape[1]))
    wrapper.generate(ids(2, 9), 4, cache_kv=cache_kv)
    assert widths == [1] * 4

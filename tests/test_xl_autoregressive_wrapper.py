"""Segments with memories, and models that learn while they read, against loops over segments and rows.

The inner loop's oracle has no parameters per row: it copies the model once per row, and changes the copy.
"""

import copy
import threading
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import training_laws
from oracles import assert_close, randn, randomised
from training_laws import DIM, fit, ids_of

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.xl_autoregressive_wrapper import (
    EpisodicMemories,
    EpisodicMemoryWrapper,
    LowRankLinear,
    TTTMetaLearningTargetKLLoss,
    TTTModuleWrapper,
    TTTNextLatentPredictionLoss,
    XLAutoregressiveWrapper,
    newtonschulz5,
)

SIZE = 4
FIRST, SECOND = 'attn_layers.layers.1.1.ff.2', 'attn_layers.layers.3.1.ff.2'
STRONG = dict(ttt_lr=0.5, ttt_wd=0.1)


net_of = partial(training_laws.net_of, max_seq_len=SIZE, max_mem_len=6)


def wrapped(net=None, model=None, **wrapper):
    return randomised(XLAutoregressiveWrapper(net or net_of(**(model or {})), **wrapper), scale=0.4)


def learner(paths=(FIRST,), **wrapper):
    return wrapped(tbptt_steps=3, ttt_module_paths=paths, **{**STRONG, **wrapper})


def segments_of(ids):
    """Inputs and targets of every segment, for ids (b, n + 1)."""
    n = ids.shape[1] - 1
    return [
        (ids[:, start : min(start + SIZE, n)], ids[:, start + 1 : min(start + SIZE, n) + 1])
        for start in range(0, n, SIZE)
    ]


def losses_of(logits, target):
    return F.cross_entropy(logits.transpose(1, 2), target, reduction='none')


def by_hand(net, ids, mems=None, detach_every=None, see=True):
    """The mean loss of segments that hand on memories, those cut from the graph after every few segments."""
    total = 0.0
    for number, (segment, target) in enumerate(segments_of(ids), start=1):
        logits, new = net(segment, mems=mems if see else None, return_mems=True, detach_mems=False)
        total = total + losses_of(logits, target).sum()
        mems = [m.detach() for m in new] if detach_every and number % detach_every == 0 else new
    return total / ids[:, 1:].numel()


# segments


@pytest.mark.parametrize('length', [2, SIZE + 1, SIZE + 2, 3 * SIZE + 1, 3 * SIZE])
@pytest.mark.parametrize('max_mem_len', [0, 3, 6, 100])
def test_the_loss_is_that_of_segments_with_memories(length, max_mem_len):
    model, ids = wrapped(model=dict(max_mem_len=max_mem_len)), ids_of(2, length)
    assert_close(model(ids), by_hand(model.net, ids))


def test_one_segment_is_the_ordinary_loss():
    model, ids = wrapped(), ids_of(3, SIZE + 1)
    assert_close(model(ids), AutoregressiveWrapper(model.net)(ids))


def test_a_memory_from_before_is_seen():
    model, ids = wrapped(), ids_of(2, 2 * SIZE + 1)
    mems = [randn(2, 5, DIM, seed=layer) for layer in range(2)]
    assert_close(model(ids, mems=mems), by_hand(model.net, ids, mems=mems))
    assert_close(model(ids, mems=tuple(mems)), model(ids, mems=mems))
    assert (model(ids, mems=mems) - model(ids)).abs() > 1e-3


def test_dropped_memories_are_not_seen():
    model, ids = wrapped(), ids_of(2, 3 * SIZE + 1)
    mems = [randn(2, 5, DIM, seed=layer) for layer in range(2)]
    assert_close(model(ids, mems=mems, dropout_mems=True), by_hand(model.net, ids, see=False))


def test_memories_go_down():
    model, ids = wrapped(model=dict(shift_mem_down=1)), ids_of(2, 3 * SIZE + 1)
    assert_close(model(ids), by_hand(model.net, ids))


@pytest.mark.parametrize('steps', [1, 2, 5])
def test_gradients_flow_back_over_so_many_segments(steps):
    model, ids = wrapped(tbptt_steps=steps), ids_of(2, 4 * SIZE + 1)
    parameters = list(model.net.parameters())
    ours = torch.autograd.grad(model(ids), parameters)
    theirs = torch.autograd.grad(by_hand(model.net, ids, detach_every=steps), parameters)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, 'gradient')


def test_x3_what_is_no_target_may_stand_in_the_input():
    """The same as any token there, with no loss of its own."""
    model, ids = wrapped(pad_value=3), ids_of(2, 2 * SIZE + 1)
    marked = ids.clone()
    marked[0, 2] = marked[1, -3:] = -100
    padded = marked.masked_fill(marked == -100, 3)
    total, mems = 0.0, None
    for (segment, target), (_, wanted) in zip(segments_of(padded), segments_of(marked), strict=True):
        logits, mems = model.net(segment, mems=mems, return_mems=True)
        total += losses_of(logits, target)[wanted != -100].sum()
    assert_close(model(marked), total / (marked[:, 1:] != -100).sum())


def test_x5_every_target_counts_alike():
    """A row with one target weighs as much as one target."""
    model, ids = wrapped(), ids_of(2, SIZE + 1)
    short = ids.clone()
    short[1, 2:] = -100
    each = losses_of(model.net(ids[:, :-1]), ids[:, 1:])
    assert_close(model(short), (each[0].sum() + each[1, 0]) / (SIZE + 1))


def test_no_target_no_loss():
    ids = torch.full((2, SIZE + 3), -100)
    model = wrapped()
    loss = model(ids)
    loss.backward()
    assert loss.item() == 0


@pytest.mark.parametrize('inputs', [dict(), dict(tbptt_steps=3, ttt_module_paths=(FIRST,), **STRONG)], ids=['', 'ttt'])
def test_rows_do_not_meet(inputs):
    model, ids = wrapped(**inputs), ids_of(3, 3 * SIZE)
    assert_close(model(ids), torch.stack([model(row[None]) for row in ids]).mean())


def test_inputs_reach_every_segment():
    net = net_of(stack=dict(cross_attend=True))
    model, ids, context = wrapped(net), ids_of(2, 2 * SIZE + 2), randn(2, 3, DIM)
    mems, total = None, 0.0
    for segment, target in segments_of(ids):
        logits, mems = model.net(segment, mems=mems, return_mems=True, context=context)
        total += losses_of(logits, target).sum()
    assert_close(model(ids, context=context), total / ids[:, 1:].numel())
    out = model.generate(ids[:, :3], 6, temperature=0.0, context=context)
    assert torch.equal(out, greedy(model, ids[:, :3], 6, context=context))


# generation


def greedy(model, ids, steps, mems=None, **inputs):
    """Tokens chosen one by one, everything read again each time: complete segments, then the present one."""
    first = mems
    for _ in range(steps):
        mems, start = first, (ids.shape[1] - 1) // SIZE * SIZE
        with torch.no_grad():
            for begin in range(0, start, SIZE):
                _, mems = model.net(ids[:, begin : begin + SIZE], mems=mems, return_mems=True, **inputs)
            logits = model.net(ids[:, start:], mems=mems, **inputs)
        ids = torch.cat((ids, logits[:, -1:].argmax(dim=-1)), dim=1)
    return ids[:, ids.shape[1] - steps :]


@pytest.mark.parametrize('prompt', range(1, 2 * SIZE + 2))
def test_x1_the_memory_of_a_segment_has_none_of_its_tokens(prompt):
    model, ids = wrapped(), ids_of(2, prompt)
    expected = greedy(model, ids, 2 * SIZE + 1)
    for cache_kv in (True, False):
        assert torch.equal(model.generate(ids, 2 * SIZE + 1, temperature=0.0, cache_kv=cache_kv), expected)


@pytest.mark.parametrize('prompt', [1, 3, SIZE, SIZE + 1, 2 * SIZE + 3])
def test_x1_no_token_is_read_twice(prompt, monkeypatch):
    model, fed, seen = wrapped(), [], []
    forward = model.net.forward

    def spy(x, mems=None, **inputs):
        fed.extend(x[0].tolist())
        seen.append(0 if mems is None else mems[0].shape[1])
        return forward(x, mems=mems, **inputs)

    monkeypatch.setattr(model.net, 'forward', spy)
    ids, steps = ids_of(1, prompt), 3 * SIZE
    out = model.generate(ids, steps, temperature=0.0)
    assert fed == torch.cat((ids, out), dim=1)[0, :-1].tolist()
    assert set(seen) <= {0, SIZE, 6}, 'memories are those of whole segments, cut to the longest memory'


@pytest.mark.parametrize('model', [dict(shift_mem_down=1), dict(num_memory_tokens=2), dict(max_mem_len=0)], ids=str)
def test_generation_with_other_memories(model):
    model, ids = wrapped(model=model), ids_of(2, SIZE + 2)
    assert torch.equal(model.generate(ids, 7, temperature=0.0), greedy(model, ids, 7))


def test_generation_goes_on_from_memories():
    model, ids = wrapped(), ids_of(2, SIZE + 2)
    mems = [randn(2, 5, DIM, seed=layer) for layer in range(2)]
    out = model.generate(ids, 7, temperature=0.0, mems=mems)
    assert torch.equal(out, greedy(model, ids, 7, mems=mems))


def test_x2_padding_follows_the_end():
    """And the prompt may hold the token that ends."""
    model, ids = wrapped(pad_value=10), ids_of(3, 5)
    plain = model.generate(ids, 9, temperature=0.0)
    eos = plain[0, 2].item()
    ids[:, 0] = eos
    plain = model.generate(ids, 9, temperature=0.0)
    ended = model.generate(ids, 9, temperature=0.0, eos_token=eos)
    for row, all_of_it in zip(ended.tolist(), plain.tolist(), strict=True):
        stop = all_of_it.index(eos) + 1 if eos in all_of_it else len(all_of_it)
        assert row == (all_of_it[:stop] + [10] * 9)[: len(row)]


def test_generation_stops_when_all_rows_have_ended():
    model, ids = wrapped(), ids_of(1, 5)
    first = model.generate(ids, 1, temperature=0.0).item()
    assert model.generate(ids, 9, temperature=0.0, eos_token=first).tolist() == [[first]]


def test_prompts_of_any_axes_and_filters_by_name():
    model, ids = wrapped(), ids_of(4, 5)
    flat = model.generate(ids, 6, temperature=0.0)
    assert torch.equal(model.generate(ids.reshape(2, 2, 5), 6, temperature=0.0), flat.reshape(2, 2, 6))
    assert torch.equal(model.generate(ids[0], 6, temperature=0.0), flat[0])
    for name in ('top_k', 'min_p'):
        one, two = (
            model.generate(ids, 6, filter_logits_fn=name, generator=torch.Generator().manual_seed(1)) for _ in range(2)
        )
        assert torch.equal(one, two)
    assert torch.equal(model.generate(ids, 6, filter_logits_fn='top_k', filter_kwargs=dict(k=1)), flat)
    assert model.generate(ids, 0).shape == (4, 0)


def test_generation_leaves_the_mode_alone():
    model = wrapped(model=dict(emb_dropout=0.5)).train()
    model.net.attn_layers.eval()
    out = [model.generate(ids_of(2, 5), 6, temperature=0.0) for _ in range(2)]
    assert torch.equal(*out)
    assert model.training
    assert model.net.training
    assert not model.net.attn_layers.training


# test-time training


def plain_module(net, path):
    wrapper = net.get_submodule(path)
    return wrapper.module if isinstance(wrapper, TTTModuleWrapper) else wrapper


def change(target, grads, lr, wd):
    with torch.no_grad():
        for parameter, grad in zip(target.parameters(), grads, strict=True):
            parameter.copy_(parameter - lr * grad - lr * wd * parameter)


def learned_by_hand(model, ids, paths=((FIRST, FIRST),), lr=0.5, wd=0.1, readings=1):
    """Row by row on copies of the net: the loss, and the logits of the last segment."""
    total, logits_of_rows = 0.0, []
    for row in ids:
        net, mems = copy.deepcopy(model.net), None
        modules = [(plain_module(net, source), plain_module(net, target)) for source, target in paths]
        parts = segments_of(row[None])
        for number, (segment, target) in enumerate(parts):
            for reading in range(readings):
                logits, new = net(segment, mems=mems, return_mems=True)
                loss = losses_of(logits, target)
                if (number, reading) != (len(parts) - 1, readings - 1):
                    grads = [torch.autograd.grad(loss.mean(), [*s.parameters()], retain_graph=True) for s, _ in modules]
                    for (_, target_module), grad in zip(modules, grads, strict=True):
                        change(target_module, grad, lr, wd)
            mems = new
            total = total + loss.detach().sum()
        logits_of_rows.append(logits.detach())
    return total / ids[:, 1:].numel(), torch.cat(logits_of_rows)


@pytest.mark.parametrize(
    'paths',
    [
        (FIRST,),
        (FIRST, SECOND),
        ((FIRST, SECOND),),
        ('attn_layers.layers.1.1',),
        ('attn_layers.layers.0.1.to_v', 'to_logits'),
        ('attn_layers.layers.2.0.0',),
        ('token_emb',),
    ],
    ids=str,
)
def test_every_row_learns_for_itself(paths):
    model, ids = learner(paths), ids_of(2, 3 * SIZE)
    expected, _ = learned_by_hand(model, ids, [p if isinstance(p, tuple) else (p, p) for p in paths])
    assert (expected - by_hand(model.net, ids)).abs() > 1e-4
    for mode in ('train', 'eval', 'no_grad'):
        model.train(mode == 'train')
        with torch.set_grad_enabled(mode != 'no_grad'):
            loss = model(ids)
        assert_close(loss, expected, mode)
        assert loss.requires_grad == (mode != 'no_grad'), mode


@pytest.mark.parametrize('readings', [2, 3])
def test_every_reading_teaches_and_the_last_counts(readings):
    model, ids = learner(), ids_of(2, 2 * SIZE + 2)
    expected, _ = learned_by_hand(model, ids, readings=readings)
    assert_close(model(ids, ttt_recurrent_steps=readings), expected)


def test_rows_learn_from_their_own_targets():
    """The inner loss is the mean over the targets of the row."""
    model, ids = learner(), ids_of(2, 2 * SIZE + 1)
    short = ids.clone()
    short[1, -2:] = -100
    one, other = model(short[:1]), model(short[1:])
    assert_close(model(short), (one * 2 * SIZE + other * (2 * SIZE - 2)) / (4 * SIZE - 2))


def test_the_outer_gradient_sees_the_inner_step():
    """Against finite differences: in training, the step itself is part of the graph."""
    model, ids = learner(), ids_of(2, 3 * SIZE)
    parameter = plain_module(model.net, FIRST).weight
    model.train()
    (grad,) = torch.autograd.grad(model(ids), [parameter])
    direction = randn(*parameter.shape)
    with torch.no_grad():
        sides = []
        for sign in (1, -1):
            parameter += sign * 1e-5 * direction
            sides.append(model(ids))
            parameter -= sign * 1e-5 * direction
    slope = (sides[0] - sides[1]) / 2e-5
    assert slope.item() == pytest.approx((grad * direction).sum().item(), rel=1e-6)
    model.eval()
    (first_order,) = torch.autograd.grad(model(ids), [parameter])
    assert (first_order - grad).abs().max() > 1e-6


def test_every_row_draws_a_dropout_of_its_own():
    learner = TTTModuleWrapper(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(32, 32))).train()
    learner.init(2)
    one, other = learner(torch.ones(2, 32))
    assert (one - other).abs().max() > 1e-3


@pytest.mark.parametrize('most', [1, 2, 3, 5, 9])
def test_memories_hold_those_of_earlier_segments(most):
    """The hidden states of all tokens so far, the last ones of each layer."""
    net, ids = randomised(net_of(max_mem_len=most)), ids_of(2, 6)
    mems, known = None, None
    for segment in ids.split(2, dim=1):
        _, trace = net(segment, mems=mems, return_mems=True, return_intermediates=True)
        mems = trace.mems
        known = [torch.cat(pair, dim=1) for pair in zip(known, trace.hiddens, strict=True)] if known else trace.hiddens
        for mem, all_states in zip(mems, known, strict=True):
            assert_close(mem, all_states[:, -most:])


def test_what_was_learned_is_forgotten():
    model, ids = learner(), ids_of(2, 3 * SIZE)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    plain = model.net(ids[:, :SIZE])
    model(ids).backward()
    model.generate(ids, SIZE)
    with pytest.raises(ValueError, match='mems'):
        model(ids, mems=[randn(5, 2, DIM), randn(5, 2, DIM)])
    assert torch.equal(model.net(ids[:, :SIZE]), plain)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    wrapper = model.net.get_submodule(FIRST)
    wrapper.init(2)
    TTTModuleWrapper.reset_all(model)
    assert wrapper.batch_params == {}


def test_threads_learn_one_after_another():
    model, ids, others, found = learner(), ids_of(2, 3 * SIZE), ids_of(2, 3 * SIZE, seed=1), []
    wanted = model(ids), model(others)
    thread = threading.Thread(target=lambda: found.append(model(others)))

    def in_the_middle(*_):
        handle.remove()
        thread.start()
        thread.join(0.1)  # time enough to get in the way

    handle = model.net.register_forward_hook(in_the_middle)
    found.append(model(ids))
    thread.join()
    assert_close(torch.stack(sorted(found)), torch.stack(sorted(wanted)))


@pytest.mark.parametrize('prompt', [2, SIZE, SIZE + 1, SIZE + 2, 2 * SIZE + 1])
def test_x4_generation_learns_from_complete_segments_alone(prompt):
    model, ids = learner(), ids_of(2, prompt)
    outs = [model.generate(ids, SIZE + 2, temperature=0.0, cache_kv=cache_kv) for cache_kv in (True, False)]
    for _ in range(SIZE + 2):
        _, logits = learned_by_hand(model, F.pad(ids, (0, 1)))
        ids = torch.cat((ids, logits[:, -1:].argmax(dim=-1)), dim=1)
    for out in outs:
        assert torch.equal(out, ids[:, prompt:])


def test_muon_makes_singular_values_equal():
    for shape in ((5, 3), (3, 5), (4, 4)):
        t = randn(2, *shape)
        out, _ = newtonschulz5(t, 5)
        values = torch.linalg.svdvals(out)
        assert 0.6 < values.min()
        assert values.max() < 1.3
        u, _, v = torch.linalg.svd(t, full_matrices=False)
        back = u.mT @ out @ v.mT
        assert_close(back, torch.diag_embed(back.diagonal(dim1=-2, dim2=-1)), tolerance=1e-8)
    assert newtonschulz5(torch.zeros(2, 3, 3))[0].abs().max() == 0


def test_the_muon_step():
    """Matrices go along the orthogonalised gradient, the rest along their own."""
    model, ids = learner(ttt_use_muon=True, ttt_muon_lr=0.3), ids_of(1, SIZE + 2)
    net = copy.deepcopy(model.net)
    module = plain_module(net, FIRST)
    (segment, target), (rest, last) = segments_of(ids)
    logits, mems = net(segment, return_mems=True)
    first = losses_of(logits, target)
    weight, bias = torch.autograd.grad(first.mean(), [module.weight, module.bias])
    x = weight / weight.norm()
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * (x @ x.T) @ x + 2.0315 * (x @ x.T) @ (x @ x.T) @ x
    with torch.no_grad():
        module.weight -= 0.3 * x + 0.3 * 0.1 * module.weight
        module.bias -= 0.5 * bias + 0.5 * 0.1 * module.bias
    second = losses_of(net(rest, mems=mems), last)
    assert_close(model(ids), (first.sum() + second.sum()) / (SIZE + 1))


def test_a_low_rank():
    linear = torch.nn.Linear(6, 8).double()
    low, x = LowRankLinear(linear, 3), randn(2, 6)
    assert [tuple(p.shape) for p in low.parameters()] == [(8, 3), (3, 6), (8,)]
    assert torch.equal(low(x), linear.bias.expand(2, -1)), 'at first, only the bias is left'
    torch.nn.init.normal_(low.weight_b)
    assert_close(low(x), x @ low.weight_b.T @ low.weight_a.T + linear.bias)
    assert LowRankLinear(torch.nn.Linear(6, 8, bias=False), 3).bias is None
    model, ids = wrapped(tbptt_steps=2, ttt_low_rank_paths=((FIRST, 2),), **STRONG), ids_of(2, 3 * SIZE)
    names = [name for name in model.state_dict() if FIRST in name]
    assert names == [f'net.{FIRST}.module.{name}' for name in ('weight_a', 'weight_b', 'bias')]
    assert_close(model(ids), learned_by_hand(model, ids)[0])


def test_the_next_latent_loss():
    loss = randomised(TTTNextLatentPredictionLoss(dim=5, hidden_dim=7, loss_type='mse'))
    hidden, mask = randn(2, 4, 5), torch.tensor([[True] * 4, [True, True, True, False]])

    class Trace:
        last_layer_hiddens = hidden

    out = loss(Trace, mask)
    for row in range(2):
        for i in range(4):
            j = (i + 1) % 4
            expected = (loss.predictor(hidden[row, i]) - hidden[row, j]).square().mean() * mask[row, j]
            assert_close(out[row, i], expected)
    assert [tuple(p.shape) for p in loss.parameters()][2::2] == [(7, 5), (7, 7), (5, 7)]


def test_the_meta_loss():
    loss = randomised(TTTMetaLearningTargetKLLoss(dim=5, num_classes=3, heads=2, dim_head=4))
    hidden, mask = randn(2, 4, 5), torch.tensor([[True] * 4, [True, True, True, False]])

    class Trace:
        last_layer_hiddens = hidden

    own = loss.to_prediction(hidden).softmax(dim=-1)
    target = loss.to_meta_prediction(loss.encoder(hidden, mask=mask)).softmax(dim=-1)
    assert_close(loss(Trace, mask), (own * (own / target).log()).sum(dim=-1))


@pytest.mark.costly
@pytest.mark.parametrize('per_token', [True, False])
def test_an_inner_loss_of_ones_own(per_token):
    class Loss(torch.nn.Module):
        def forward(self, intermediates, mask):
            each = intermediates.last_layer_hiddens.square().mean(dim=-1)
            return each if per_token else each.masked_fill(~mask, 0.0).sum(dim=-1) / mask.sum(dim=-1)

    model, ids = learner(ttt_custom_loss_module=Loss()), ids_of(2, SIZE + 3)
    ids[1, 4] = -100
    total, count = 0.0, (ids[:, 1:] != -100).sum()
    for row in ids:
        net = copy.deepcopy(model.net)
        (segment, target), (rest, last) = segments_of(row[None])
        logits, trace = net(segment, return_mems=True, return_intermediates=True)
        real = target != -100
        inner = trace.last_layer_hiddens.square().mean(dim=-1)[real].mean()
        total += F.cross_entropy(logits[real], target[real], reduction='sum')
        module = plain_module(net, FIRST)
        change(module, torch.autograd.grad(inner, [*module.parameters()]), 0.5, 0.1)
        rest = rest.clamp(min=0)
        total += losses_of(net(rest, mems=trace.mems), last).sum()
    assert_close(model(ids), total / count)


def test_the_built_in_inner_loss_is_part_of_the_model():
    model, ids = learner(ttt_next_latent_loss=True), ids_of(2, 3 * SIZE)
    model.train()
    model(ids).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert model.ttt_custom_loss_module.predictor[1].weight.grad.abs().max() > 0


# episodic memories


def test_episodic_memories_are_keys_and_values_of_every_layer():
    model, ids = wrapped(episodic_mem_len=3), ids_of(2, 2 * SIZE)
    memories = model.net.episodic_mems.mem_kv
    assert memories.shape == (2, 2, 2, 3, 8)
    pairs = [tuple(pair.expand(2, -1, -1, -1) for pair in layer) for layer in memories.transpose(0, 1)]
    mems, total = None, 0.0
    for segment, target in segments_of(ids):
        logits, mems = model.net.net(segment, mems=mems, return_mems=True, self_attn_additional_kv=pairs)
        total += losses_of(logits, target).sum()
    assert_close(model(ids), total / ids[:, 1:].numel())
    out = model.generate(ids, 6, temperature=0.0)
    assert torch.equal(out, greedy(model, ids, 6))


def test_episodic_memories_may_learn():
    model, ids = learner(('episodic_mems', FIRST), episodic_mem_len=3), ids_of(2, 3 * SIZE)
    assert 'net.episodic_mems.module.mem_kv' in model.state_dict()
    assert f'net.net.{FIRST}.module.weight' in model.state_dict()
    paths = [('episodic_mems', 'episodic_mems'), (f'net.{FIRST}', f'net.{FIRST}')]
    assert_close(model(ids), learned_by_hand(model, ids, paths)[0])
    assert (model(ids) - by_hand(model.net, ids)).abs() > 1e-4


def test_episodic_memories_start_small_and_follow_the_layers():
    assert EpisodicMemories(3, 2, 50, 8).mem_kv.std().item() == pytest.approx(0.02, rel=0.1)
    net = EpisodicMemoryWrapper(net_of(stack=dict(attn_kv_heads=1)), 3)
    assert net.episodic_mems().shape == (2, 2, 1, 3, 8)
    assert [tuple(t.shape) for pair in net.get_additional_kv(5) for t in pair] == [(5, 1, 3, 8)] * 4
    assert net.max_seq_len == SIZE
    assert not hasattr(net, 'nothing_of_the_kind')


# construction


def build(**wrapper):
    return XLAutoregressiveWrapper(net_of(), **wrapper)


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: build(ttt_module_paths=(FIRST,)), 'tbptt_steps'),
        (lambda: build(tbptt_steps=0), 'tbptt_steps'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=FIRST), 'ttt_module_paths'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=('attn_layers.nothing',)), 'no such module'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=('attn_layers.layers.0.1',)), 'to_v'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=('emb_dropout',)), 'without parameters'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=((FIRST, 'to_logits'),)), 'parameters differ'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=(FIRST, (SECOND, FIRST))), 'two gradients'),
        (lambda: build(tbptt_steps=2, ttt_module_paths=('attn_layers.layers.1.1', FIRST)), 'part of'),
        (lambda: build(tbptt_steps=2, ttt_low_rank_paths=((FIRST, 16),)), 'low_rank_dim'),
        (lambda: build(tbptt_steps=2, ttt_low_rank_paths=(('token_emb', 2),)), 'linear'),
        (lambda: build(ttt_next_latent_loss=True, ttt_custom_loss_module=torch.nn.Linear(1, 1)), 'inner loss'),
        (lambda: build(tbptt_stepz=2), 'tbptt_steps'),
        (lambda: XLAutoregressiveWrapper(
            TransformerWrapper(num_tokens=5, max_seq_len=4, attn_layers=Encoder(dim=8, depth=1))), 'causal'),
        (lambda: XLAutoregressiveWrapper(
            TransformerWrapper(num_tokens=5, max_seq_len=0, attn_layers=Decoder(dim=8, depth=1))), 'max_seq_len'),
        (lambda: XLAutoregressiveWrapper(net_of(stack=dict(attn_value_dim_head=4)), episodic_mem_len=2), 'width'),
    ],
)  # fmt: skip
def test_refused_settings(make, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        make()


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda m: m(ids_of(2, 1)), '`x`'),
        (lambda m: m(randn(2, 5)), '`x`'),
        (lambda m: m(ids_of(2, 5), mask=torch.ones(2, 4).bool()), '`mask`'),
        (lambda m: m(ids_of(2, 5), prepend_embeds=randn(2, 1, DIM)), '`prepend_embeds`'),
        (lambda m: m(ids_of(2, 5), cache=None, mems=randn(2, 3, DIM)), '`mems`'),
        (lambda m: m(ids_of(2, 5), return_attn=True), '`return_attn`'),
        (lambda m: m(ids_of(2, 5), ttt_recurrent_steps=2), '`ttt_recurrent_steps`'),
        (lambda m: m(ids_of(2, 5), ttt_recurrent_steps=0), '`ttt_recurrent_steps`'),
        (lambda m: m.generate(ids_of(2, 5), -1), '`seq_len`'),
        (lambda m: m.generate(ids_of(2, 5), 3, temperature=-1.0), '`temperature`'),
        (lambda m: m.generate(ids_of(2, 5), 3, filter_logits_fn='top'), '`filter_logits_fn`'),
        (lambda m: m.generate(ids_of(2, 5), 3, mask=torch.ones(2, 5).bool()), '`mask`'),
    ],
)
def test_refused_inputs(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(wrapped())


def test_an_inner_loss_of_another_shape_is_refused():
    class Scalar(torch.nn.Module):
        def forward(self, intermediates, mask):
            return intermediates.last_layer_hiddens.mean()

    with pytest.raises(ValueError, match='inner loss'):
        learner(ttt_custom_loss_module=Scalar())(ids_of(2, 2 * SIZE))


def test_what_the_inner_loss_does_not_reach_is_refused():
    class Hidden(torch.nn.Module):
        def forward(self, intermediates, mask):
            return intermediates.last_layer_hiddens.mean(dim=-1)

    with pytest.raises(ValueError, match='to_logits'):
        learner(('to_logits', FIRST), ttt_custom_loss_module=Hidden())(ids_of(2, 2 * SIZE))


# learning


@pytest.mark.slow
def test_it_learns_to_repeat_what_only_a_memory_holds():
    """The second segment repeats the first, which it does not see."""

    def rows(b):
        half = torch.randint(0, 8, (b, 8))
        return torch.cat((half, half), dim=1)

    stack = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, verbose=False)
    net = TransformerWrapper(num_tokens=8, max_seq_len=8, max_mem_len=8, attn_layers=stack)
    model = XLAutoregressiveWrapper(net, tbptt_steps=2)
    fit(model, lambda: model(rows(32)), 400)
    ids = rows(64)
    out = model.generate(ids[:, :9], 7, temperature=0.0)
    assert (out == ids[:, 9:]).float().mean() > 0.95


@pytest.mark.slow
def test_it_learns_to_learn_what_no_memory_holds():
    """0 c 0 c | 0 c 0 c: without memories, only what was learned from the first segment tells c after the first 0."""

    def rows(b):
        c = torch.randint(1, 8, (b, 1))
        return torch.cat((torch.zeros_like(c), c), dim=1).repeat(1, 4)

    stack = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, verbose=False)
    net = TransformerWrapper(num_tokens=8, max_seq_len=4, max_mem_len=0, attn_layers=stack)
    model = XLAutoregressiveWrapper(net, tbptt_steps=2, ttt_module_paths=(SECOND,), ttt_lr=1.0)
    fit(model, lambda: model(rows(32)), 200)
    ids = rows(64)
    out = model.generate(ids[:, :5], 3, temperature=0.0)
    assert (out == ids[:, 5:]).float().mean() > 0.95

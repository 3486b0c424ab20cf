"""Losses of layers between and of tokens further on, against models that end earlier and losses summed by hand."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from torch import nn
from toy_nets import loss_by_hand
from toy_tasks import SEEDS, markov
from training_laws import DIM, VOCAB, fit, ids_of, net_of

from x_transformers import AutoregressiveWrapper, ContinuousAutoregressiveWrapper
from x_transformers.flags import ConfigError
from x_transformers.training.layer_losses import layer_weights

IGNORED = -100


def model_of(net=None, heads=1, stack=None, **wrapper):
    net = net or net_of(stack=stack, num_output_heads=heads)
    return randomised(AutoregressiveWrapper(net, **wrapper), scale=0.4).train()


def ends_at(net, block, ids, **inputs):
    """The logits of a model without the later blocks."""
    stack = net.attn_layers
    return net(ids, layers_execute_order=stack.layers_execute_order[: block * stack.len_default_block], **inputs)


def mean_loss(logits, x, ahead=1, lead=0):
    """Of the targets so many places ahead that there are, on average."""
    targets = x[:, ahead:]
    return F.cross_entropy(logits[:, lead : lead + targets.shape[1]].transpose(1, 2), targets, ignore_index=IGNORED)


def test_it_is_summed_by_hand():
    """Two layers, three targets, three words, from probabilities that are written out."""
    net = net_of(num_tokens=3, num_output_heads=2)
    model = model_of(net, intermediate_layer_loss='linear', future_target_weights=(0.5,))
    x = torch.tensor([[0, 2, 1, 1], [1, 0, 2, 0]])
    expected = 0.0
    for block, weight in ((1, 1 - 4 * 0.1), (2, 1.0)):
        now, after = ends_at(net, block, x)
        expected += weight * (loss_by_hand(now[:, :3], x[:, 1:]) + 0.5 * loss_by_hand(after[:, :2], x[:, 2:]))
    assert abs(model(x, progress=0.1).item() - expected) < 1e-12


def test_which_layers_learn_when():
    """The lowest ends first, all at half of the training; the last one always does."""
    assert layer_weights('step', 0.2, 4) == [0, 1, 1]
    assert [sum(layer_weights('step', at / 16, 4)) for at in range(9)] == [3, 3, 2, 2, 1, 1, 0, 0, 0]
    for at in (0.0, 0.1, 0.3, 0.5, 1.0):
        expected = [max(0.0, 1 - at / (layer / 8)) for layer in (1, 2, 3)]
        assert torch.tensor(layer_weights('linear', at, 4)).allclose(torch.tensor(expected))


@pytest.mark.parametrize('schedule', ['step', 'linear'])
@pytest.mark.parametrize(
    'stack',
    [
        dict(depth=4),
        dict(depth=4, pre_norm=False),
        dict(depth=3, num_residual_streams=2),
        dict(depth=3, checkpoint_layers=True),
        dict(depth=3, weight_tie_layers=True),
        dict(depth=3, use_adaptive_layernorm=True),
    ],
    ids=str,
)
def test_each_block_predicts_as_the_end_of_a_model(schedule, stack):
    condition = dict(condition=randn(2, DIM)) if 'use_adaptive_layernorm' in stack else {}
    model, x, progress = model_of(stack=stack, intermediate_layer_loss=schedule), ids_of(2, 7), 0.2
    weights = [*layer_weights(schedule, progress, stack['depth']), 1.0]

    def expected():
        """The last block by all of them."""
        parts = [ends_at(model.net, block, x, **condition) for block in range(1, len(weights) + 1)]
        return sum(weight * mean_loss(logits, x) for weight, logits in zip(weights, parts, strict=True))

    wanted, loss = expected(), model(x, progress=progress, **condition)
    assert_close(loss, wanted)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(model(x, progress=progress, **condition), parameters)
    for one, other in zip(ours, torch.autograd.grad(expected(), parameters), strict=True):
        assert_close(one, other, 'gradient')


@pytest.mark.parametrize(
    'around', [dict(num_memory_tokens=2), dict(num_memory_tokens=2, memory_tokens_interspersed_every=3)]
)
def test_tokens_in_front_predict_nothing(around):
    model, x, prefix = model_of(net_of(**around), intermediate_layer_loss='step'), ids_of(2, 7), randn(2, 3, DIM)
    expected = sum(mean_loss(ends_at(model.net, b, x, prepend_embeds=prefix), x, lead=3) for b in (1, 2))
    assert_close(model(x, prepend_embeds=prefix, progress=0.0), expected)
    loss, (logits, inside) = model(x, prepend_embeds=prefix, progress=0.0, return_outputs=True)
    assert_close(loss, expected)
    assert logits.shape == (2, 6, VOCAB)
    alone = model.net(x, prepend_embeds=prefix, return_intermediates=True)[1]
    assert torch.equal(inside.memory_tokens, alone.memory_tokens)


def test_late_in_training_it_is_the_plain_loss():
    model, plain, x = model_of(intermediate_layer_loss='linear'), model_of(), ids_of(2, 7)
    losses = [model(x, progress=0.5), plain(x)]
    assert torch.equal(*losses)
    grads = [torch.autograd.grad(loss, list(m.parameters())) for loss, m in zip(losses, (model, plain), strict=True)]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_evaluation_is_the_plain_loss():
    model = model_of(
        heads=3, intermediate_layer_loss='step', future_target_weights=(0.5, 2.0), last_position_only=True
    ).eval()
    x = ids_of(2, 7)
    assert_close(model(x), mean_loss(model.net(x)[0], x))
    assert model.generate(x, 3, temperature=0.0)[:, 0].equal(model.net(x)[0][:, -1].argmax(dim=-1))


def test_training_loops_tell_the_progress():
    model, x = model_of(stack=dict(depth=4), intermediate_layer_loss='step'), ids_of(2, 7)
    with pytest.raises(ValueError, match=r'`intermediate_layer_loss` follows the training: call `on_step_end'):
        model(x)
    for progress in (0.0, 0.2, 0.4, 0.9):
        model.on_step_end(progress)
        assert_close(model(x), model(x, progress=progress))
    assert_close(model(x, progress=0.0), model(x, progress=1 / 17))
    assert model(x, progress=0.0) > model(x) + 0.1, 'what is said in the call wins'
    around = nn.ModuleList([model])
    copy.deepcopy(around)[0].on_step_end(0.1)
    assert model.auxiliary.active == ()


# targets


def targets_by_loops(x, ahead, documents=None, last_only=False):
    """Row by row, place by place."""
    found = torch.full_like(x, IGNORED)
    for b in range(len(x)):
        known = []
        for t in range(x.shape[1] - ahead):
            whole = documents is None or len({*documents[b, t : t + ahead + 1].tolist()}) == 1
            if whole and x[b, t + ahead] != IGNORED:
                known.append(t)
        for t in known[-1:] if last_only else known:
            found[b, t] = x[b, t + ahead]
    return found


@pytest.mark.parametrize('last_only', [False, True])
@pytest.mark.parametrize('inputs', ['', 'lens', 'documents', 'holes'])
def test_every_head_has_targets_of_its_own(last_only, inputs):
    weights = (0.5, 0.25)
    model = model_of(heads=3, future_target_weights=weights, last_position_only=last_only, label_smoothing=0.1)
    x, given, documents = ids_of(2, 8), {}, None
    wanted = x.clone()
    if inputs == 'lens':
        given = dict(lens=torch.tensor([8, 5]))
        wanted[1, 5:] = IGNORED
    elif inputs == 'documents':
        documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [5, 5, 7, 7, 7, 2, 2, 2]])
        given = dict(document_ids=documents)
    elif inputs == 'holes':
        x[0, 3] = x[1, 6:] = IGNORED
        wanted = x
    logits = model.net(wanted.masked_fill(wanted == IGNORED, 0), **({} if inputs == 'lens' else given))
    expected = 0.0
    for head, weight in enumerate((1.0, *weights)):
        targets = targets_by_loops(wanted, 1 + head, documents, last_only)
        each = F.cross_entropy(logits[head].transpose(1, 2), targets, ignore_index=IGNORED, label_smoothing=0.1)
        expected = expected + weight * each
    assert_close(model(x, **given), expected)


def test_without_weights_all_heads_learn_the_next_token():
    model, x = model_of(heads=2, last_position_only=True), ids_of(2, 7)
    expected = sum(F.cross_entropy(logits[:, 5], x[:, 6]) for logits in model.net(x)) / 2
    assert_close(model(x), expected)


def test_heads_that_are_more_than_linear_maps():
    model, x = model_of(net_of(num_output_heads=2, logits_softclamp=2.0), future_target_weights=(0.5,)), ids_of(2, 7)
    now, after = model.net(x)
    assert_close(model(x), mean_loss(now, x) + 0.5 * mean_loss(after, x, ahead=2))


def test_labels_are_what_is_predicted():
    model, x, labels = model_of(heads=2, future_target_weights=(0.5,)), ids_of(2, 7), ids_of(2, 7, seed=4)
    now, after = model.net(x)
    assert_close(model(x, labels=labels), mean_loss(now, labels) + 0.5 * mean_loss(after, labels, ahead=2))


# heads of other kinds, and what happens around


class Curved(nn.Linear):
    """A head of a user's own."""

    def forward(self, x):
        return super().forward(x).tanh() * 3


@pytest.mark.parametrize('kind', ['own head', 'hook', 'softclamp', 'mixture', 'next embedding', 'z-loss', 'memories'])
def test_heads_of_all_kinds_read_the_layers_between(kind):
    around = {
        'own head': dict(to_logits=Curved(DIM, VOCAB)),
        'softclamp': dict(logits_softclamp=2.0),
        'mixture': dict(mixture_of_softmax=True),
        'next embedding': dict(add_continuous_pred_head=True),
        'memories': dict(max_mem_len=4),
    }.get(kind, {})
    net, calls = net_of(**around), []
    if kind == 'hook':
        net.to_logits.register_forward_hook(lambda *_: calls.append(1))
    wrapper = dict(add_attn_z_loss=True) if kind == 'z-loss' else {}
    model, x = model_of(net, intermediate_layer_loss='step', **wrapper), ids_of(2, 7)
    inputs = dict(mems=[randn(2, 4, DIM, seed=layer) for layer in range(2)]) if kind == 'memories' else {}
    first = ends_at(net, 1, x, **{**inputs, **({'mems': inputs['mems'][:1]} if inputs else {})})
    own = F.nll_loss(first[:, :-1].transpose(1, 2), x[:, 1:]) if kind == 'mixture' else mean_loss(first, x)
    model.auxiliary.update_schedules(1.0)
    assert_close(model(x, progress=0.0, **inputs), own + model(x, **inputs))
    assert bool(calls) == (kind == 'hook')


def test_it_is_kept_by_copies_and_configs():
    model = model_of(heads=2, intermediate_layer_loss='linear', future_target_weights=(0.5,))
    again = AutoregressiveWrapper.from_config(json.loads(json.dumps(model.config))).double().train()
    again.load_state_dict(model.state_dict())
    x = ids_of(2, 7)
    assert_close(again(x, progress=0.1), model(x, progress=0.1))
    assert model.state_dict().keys() == {f'net.{name}' for name in model.net.state_dict()}
    half = copy.deepcopy(model).float()
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert_close(half(x, progress=0.1).double(), model(x, progress=0.1), tolerance=0.02)


@pytest.mark.slow
@pytest.mark.costly
def test_a_graph_for_each_set_of_layers():
    torch._dynamo.reset()
    model, x, graphs = model_of(intermediate_layer_loss='linear'), ids_of(2, 7), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for progress in (0.0, 0.1, 0.2, 0.3, 0.7):
        model.on_step_end(progress)
        assert_close(compiled(x), model(x))
    assert len(graphs) == 2


# refusals


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (
            lambda: model_of(intermediate_layer_loss='cos'),
            "`intermediate_layer_loss` must be one of .*got 'cos'",
        ),
        (
            lambda: model_of(future_target_weights=(0.5,)),
            'has 1 entries, it needs `num_output_heads=2` of the net, which has 1',
        ),
        (
            lambda: model_of(heads=2, future_target_weights=(-0.5,)),
            r'`future_target_weights` must be .*numbers of at least 0.*, got',
        ),
        (
            lambda: model_of(net_of(tie_embedding=True), future_target_weights=(1.0,)),
            '`future_target_weights` cannot be combined with `tie_embedding`',
        ),
        (
            lambda: model_of(net_of(mixture_of_softmax=True), future_target_weights=(1.0,)),
            '`future_target_weights` cannot be combined with `mixture_of_softmax`',
        ),
        (
            lambda: model_of(stack=dict(resi_dual=True), intermediate_layer_loss='step'),
            '`intermediate_layer_loss` cannot be combined with `resi_dual`: its blocks give no outputs',
        ),
        (
            lambda: model_of(stack=dict(reversible=True), intermediate_layer_loss='step'),
            '`intermediate_layer_loss` cannot be combined with `reversible`',
        ),
        (
            lambda: ContinuousAutoregressiveWrapper(net_of(), last_position_only=True),
            'unexpected keyword argument|unknown keyword',
        ),
    ],
)
def test_refused_at_construction(make, words):
    with pytest.raises((ConfigError, TypeError), match=words):
        make()


def test_refused_in_a_call():
    model = model_of(heads=3, future_target_weights=(0.5, 0.5))
    model(ids_of(2, 4))
    with pytest.raises(ValueError, match='has 2 entries, so that heads look 3 tokens ahead: `x` must have'):
        model(ids_of(2, 3))
    with pytest.raises(ValueError, match='`progress` needs `intermediate_layer_loss`'):
        model(ids_of(2, 5), progress=0.1)
    with pytest.raises(ValueError, match=r'`progress` must be a number from 0 to 1, got 1\.5'):
        model_of(intermediate_layer_loss='step')(ids_of(2, 5), progress=1.5)


@pytest.mark.slow
@SEEDS
def test_layers_between_learn_to_predict(seed):
    """On words of a chain of order two, the second of six layers knows more than how often each comes, if it learns."""
    task, found = markov(n=32), {}
    for schedule in ('step', False):
        torch.manual_seed(seed)
        net = net_of(stack=dict(depth=6, dim=32, pre_norm=False), num_tokens=task.tokens, max_seq_len=32)
        model = AutoregressiveWrapper(net, intermediate_layer_loss=schedule)
        model.on_step_end(0.0)
        fit(model, lambda model=model: model(task.draw(32)[0]), 150)
        x = task.draw(200)[0]
        with torch.no_grad():
            found[schedule] = [mean_loss(ends_at(net.eval(), block, x), x).item() for block in (2, 6)]
    (second, last), (second_alone, last_alone) = found.values()
    assert second < second_alone - 0.15 and last < last_alone + 0.05, found

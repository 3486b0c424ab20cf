"""Loops of one's own: batches in parts, groups of parameters, and going on from a file as if nothing had happened."""

import io
from functools import partial

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn

from x_transformers import (
    AutoregressiveWrapper,
    BertPretrainWrapper,
    Decoder,
    Encoder,
    EncoderDecoder,
    TransformerWrapper,
    ViTransformerWrapper,
    param_groups,
)
from x_transformers.features.experts import Router

VOCAB, N = 11, 9
LENS = torch.tensor([4, 9, 2, 7])
IDS = torch.arange(4 * N).mul(7).remainder(VOCAB).view(4, N)


def net_of(stack=Decoder, flags=None, **model):
    layers = stack(dim=8, depth=2, heads=2, attn_dim_head=4, rotary_pos_emb=True, **(flags or {}))
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=12, attn_layers=layers, **model)


OPTIONS = {
    'plain': {},
    'smoothed': dict(label_smoothing=0.2),
    'z-loss': dict(z_loss_weight=0.1),
    'further heads': dict(future_target_weights=(0.5,), net=dict(num_output_heads=2)),
    'modules': dict(net=dict(mtp_depth=2)),
    'last tokens': dict(last_position_only=True),
    'layers between': dict(intermediate_layer_loss='step'),
    'several heads': dict(net=dict(num_output_heads=2)),
    'next embeddings': dict(net=dict(add_continuous_pred_head=True)),
    'several passes': dict(net=dict(looped=True, max_looped_steps=2, flags=dict(pre_and_post_norm=True))),
    'mixture of softmaxes': dict(net=dict(mixture_of_softmax=True)),
}
# of these, the losses of several heads or passes have other numbers of targets
ONE_NUMBER = {*OPTIONS} - {'further heads', 'last tokens', 'modules'}


def told(way, rows):
    """Inputs that say which tokens count, of some rows."""
    ids, lens = IDS[rows], LENS[rows]
    real = torch.arange(N) < lens[:, None]
    if way == 'lens':
        return dict(x=ids, lens=lens)
    if way == 'mask':
        return dict(x=ids, mask=real)
    if way == 'ignored':
        return dict(x=ids.masked_fill(~real, -100))
    return dict(x=ids, labels=ids.masked_fill(~real, -100))


@pytest.mark.parametrize('way', ['lens', 'mask', 'ignored', 'labels'])
@pytest.mark.parametrize('name', OPTIONS)
def test_parts_of_a_batch_add_up(name, way):
    """So do their gradients. Given its own number of targets, a batch has the loss that it has without."""
    options = dict(OPTIONS[name])
    model = randomised(AutoregressiveWrapper(net_of(**options.pop('net', {})), **options))
    model.on_step_end(0.1)
    targets, parameters = int((LENS - 1).sum()), list(model.parameters())
    run = partial(model, num_items_in_batch=targets)
    whole = run(**told(way, slice(None)))
    parts = [run(**told(way, rows)) for rows in (slice(1), slice(1, 3), slice(3, 4))]
    assert_close(sum(parts), whole)
    grads = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (whole, sum(parts))]
    for one, other in zip(*grads, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(other, one)
    if name in ONE_NUMBER:
        assert_close(model(**told(way, slice(None))), whole)
    assert_close(model(**told(way, slice(None)), num_items_in_batch=torch.tensor([2 * targets])) * 2, whole)


def test_rows_may_be_cut_to_their_length():
    model = randomised(AutoregressiveWrapper(net_of()))
    parts = [model(IDS[at : at + 1, :length], num_items_in_batch=18) for at, length in enumerate(LENS)]
    assert_close(sum(parts), model(IDS, lens=LENS))
    assert model(IDS[:1], labels=torch.full((1, N), -100), num_items_in_batch=torch.tensor(0)) == 0


def test_other_losses_are_the_mean_of_those_of_the_parts():
    """Those of features, z-losses of attention and of pairs of sentences, by their numbers of targets."""
    flags = dict(ff_moe_experts=2, ff_moe_balance_loss=1.0)
    model = randomised(AutoregressiveWrapper(net_of(flags=flags), add_attn_z_loss=True)).train()
    rows = [slice(1), slice(1, 4)]
    counts = [int((LENS[at] - 1).sum()) for at in rows]
    alone = [model(**told('lens', at)) for at in rows]
    parts = [model(**told('lens', at), num_items_in_batch=sum(counts)) for at in rows]
    wanted = sum(count * loss for count, loss in zip(counts, alone, strict=True)) / sum(counts)
    assert_close(sum(parts), wanted, tolerance=1e-6)  # averages of experts are in float32
    mlm = dict(mask_token_id=1, pad_token_id=0, mask_prob=0.5)
    pairs = randomised(BertPretrainWrapper(net_of(Encoder), mlm))

    def loss(**more):
        torch.manual_seed(0)
        return pairs(IDS + 1 - IDS // 10, torch.tensor([0, 1, 1, 0]), return_outputs=bool(not more), **more)

    mean, (_, _, hidden) = loss()
    count = int((hidden.labels != -100).sum())
    assert_close(loss(num_items_in_batch=2 * count) * 2, mean)


# groups of parameters


class Around(nn.Module):
    """A module of a user's around one of ours."""

    def __init__(self, model):
        super().__init__()
        self.model, self.scale = model, nn.Parameter(torch.ones(8))
        self.memory = nn.Parameter(torch.ones(3, 8))
        self.conv, self.norm, self.table = nn.Conv1d(8, 8, 3), nn.LayerNorm([3, 8]), nn.EmbeddingBag(5, 8)
        self.rnn, self.attend = nn.LSTM(8, 8), nn.MultiheadAttention(8, 2)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.twin = self.conv
        self.tied = nn.Linear(8, VOCAB, bias=False)
        self.tied.weight = model.net.token_emb.emb.weight


def test_weights_of_layers_decay_and_nothing_else():
    flags = dict(ff_moe_experts=2, attn_num_mem_kv=2, attn_qk_norm=True, attn_qk_norm_dim_scale=True, ff_glu=True)
    model = Around(AutoregressiveWrapper(net_of(flags=flags, num_memory_tokens=2, logits_bias=True)))
    decayed, others = param_groups(model, weight_decay=0.3)
    assert (decayed['weight_decay'], others['weight_decay']) == (0.3, 0.0)
    assert (decayed['name'], others['name']) == ('decay', 'no_decay')
    names = dict(model.named_parameters())
    both = {
        name: p for group in (decayed, others) for name, p in zip(group['param_names'], group['params'], strict=True)
    }
    assert both.keys() == {name for name, p in names.items() if p.requires_grad}
    assert all(names[name] is p for name, p in both.items())
    kinds = (nn.Linear, nn.Conv1d, Router)
    wanted = {id(m.weight) for m in model.modules() if isinstance(m, kinds) or getattr(m, 'matrices', False)}
    wanted |= {id(p) for name, p in names.items() if name.startswith(('rnn.weight', 'attend.in_proj_weight'))}
    wanted -= {id(model.tied.weight), id(model.frozen.weight)}
    assert {id(p) for p in decayed['params']} == wanted
    optimizer = torch.optim.AdamW(param_groups(model, 0.3), lr=0.1)
    before = {name: p.detach().clone() for name, p in names.items()}
    for p in names.values():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    shrunk = {name for name, p in names.items() if not torch.equal(p, before[name])}
    assert shrunk == {name for name in decayed['param_names'] if before[name].any()}
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize(
    'build',
    [
        lambda: net_of(tie_embedding=True),
        lambda: ViTransformerWrapper(image_size=8, patch_size=4, num_classes=3, attn_layers=Encoder(dim=8, depth=1)),
        lambda: EncoderDecoder(net_of(Encoder), AutoregressiveWrapper(net_of(flags=dict(cross_attend=True)))),
    ],
)
def test_every_parameter_is_in_one_group(build):
    model = build()
    groups = param_groups(model)
    found = [id(p) for group in groups for p in group['params']]
    assert len(found) == len(set(found)) and set(found) == {id(p) for p in model.parameters()}
    assert all(p.ndim >= 2 for p in groups[0]['params'])
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    assert {id(p) for p in tables} <= {id(p) for p in groups[1]['params']}


def test_groups_that_cannot_be_made():
    with pytest.raises(ValueError, match='no parameter that learns'):
        param_groups(nn.Linear(2, 2).requires_grad_(False))
    assert [group['name'] for group in param_groups(nn.Linear(2, 2, bias=False))] == ['decay']
    for wrong, error in ((-0.1, ValueError), ('0.1', TypeError)):
        with pytest.raises(error, match='`weight_decay` must '):
            param_groups(nn.Linear(2, 2), wrong)
    with pytest.raises(TypeError, match='`model` must '):
        param_groups([nn.Parameter(torch.ones(2))])


# a loop that stops and goes on


class Loop:
    """As docs/training-loops.md has it, with what depends on chance, on the step and on averages."""

    def __init__(self):
        torch.manual_seed(0)
        flags = dict(ff_dropout=0.2, layer_dropout=0.2, ff_moe_experts=2, ff_moe_balance_loss=0.1)
        self.model = AutoregressiveWrapper(net_of(flags=flags), mask_prob=0.2)
        self.optimizer = torch.optim.AdamW(param_groups(self.model, 0.1), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 12)
        self.step, self.losses = 0, []

    def batches(self, epoch):
        order = torch.randperm(len(IDS), generator=torch.Generator().manual_seed(epoch))
        return IDS[order].split(1)

    def run(self, steps):
        while self.step < steps:
            epoch, at = divmod(self.step, 2)  # two micro-batches of a row each
            rows = self.batches(epoch)[2 * at : 2 * at + 2]
            for row in rows:
                loss = self.model(row, num_items_in_batch=2 * (N - 1))
                loss.backward()
                self.losses.append(loss.item())
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.step += 1
            self.model.on_step_end(self.step / 12)
        return self

    def state(self):
        parts = {name: getattr(self, name).state_dict() for name in ('model', 'optimizer', 'schedule')}
        return parts | {'step': self.step, 'random': torch.get_rng_state()}

    def resume(self, state):
        for name in ('model', 'optimizer', 'schedule'):
            getattr(self, name).load_state_dict(state[name])
        self.step = state['step']
        torch.set_rng_state(state['random'])
        return self


def test_a_loop_goes_on_as_if_it_had_never_stopped():
    straight = Loop().run(9)
    file = io.BytesIO()
    first = Loop().run(5)
    torch.save(first.state(), file)
    file.seek(0)
    torch.manual_seed(5)
    second = Loop().resume(torch.load(file, weights_only=True)).run(9)
    assert first.losses + second.losses == straight.losses
    for one, other in zip(straight.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert len(set(straight.losses)) == len(straight.losses)

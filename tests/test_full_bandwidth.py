"""Passes that are given the latents of the one before, against loops over tokens and blocks."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import (
    DIM,
    VOCAB,
    fit,
    holes,
    ids_of,
    net_of,
)

from x_transformers import AutoregressiveWrapper, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.full_bandwidth import (
    RECIRC_SHORTCUTS,
    TRANSITIONS,
    FullBandwidth,
    LossBreakdown,
    dynamic_rollout_loss_weights,
    fuse_last_latent,
    get_block_latent,
    resolve_recirc_pairs,
    shift_and_fuse_latents,
)

DEPTH = 3


def deep_net(kind=Decoder, model=None, **stack):
    stack = {'depth': DEPTH, 'depth_scale_residual': True, 'rotary_pos_emb': False, **stack}
    return net_of(kind, stack, **{'max_seq_len': 16, 'tie_embedding': True, 'post_emb_norm': True, **(model or {})})


def build(net=None, **options):
    return FullBandwidth(deep_net(**(net or {})), **options)


def model_of(net=None, **options):
    return randomised(build(net, **options), scale=0.4)


def stepped(model, ids, latents):
    """A pass: logits and the outputs of all blocks, given those of an earlier pass, by block; None for the first."""
    net, stack = model.net, model.net.attn_layers

    def fed(x, into):
        if latents is None:
            return x
        for out, to in model.recirc_pairs:
            if to == into:
                z, step = latents[out - 1], model.transitions[f'{out}->{to}']
                x = torch.stack([x[:, 0], *(step(z[:, at - 1], x[:, at]) for at in range(1, x.shape[1]))], dim=1)
        return x

    x = fed(net.token_emb(ids), 1)
    x = net.post_emb_norm(x + net.pos_emb.emb.weight[: ids.shape[1]] * DIM**-0.5)
    found = []
    for block in range(DEPTH):
        x = x if block == 0 else fed(x, block + 1)
        for (norm, *_), branch, _ in stack.layers[2 * block : 2 * block + 2]:
            x = x + branch(norm(x))
        found.append(x)
    found[-1] = stack.final_norm(x)
    return net.to_logits(found[-1]), found


def by_hand(model, x, passes):
    ids, latents, losses = x[:, :-1].clamp(min=0), None, []
    for at in range(passes):
        logits, latents = stepped(model, ids, latents)
        first = 1 if at else 0
        targets = x[:, 1 + first :]
        losses.append(F.cross_entropy(logits[:, first:].flatten(0, 1), targets.flatten(), ignore_index=-100))
    return losses


@pytest.mark.parametrize('make', [ids_of, holes], ids=['full', 'holes'])
@pytest.mark.parametrize('pairs, kind', list(zip(RECIRC_SHORTCUTS, [*TRANSITIONS, 'glu', 'gru'], strict=True)))
def test_the_losses_of_three_passes(make, pairs, kind):
    model, ids = model_of(temporal_parallel_passes=3, recirc_pairs=pairs, transition=kind), make(2, 6)
    found, parts = model(ids, return_loss_breakdown=True)
    losses = by_hand(model, ids, 3)
    assert isinstance(parts, LossBreakdown)
    assert_close(torch.stack(parts.all_pass_losses), torch.stack(losses))
    assert_close(parts.first_pass_loss, losses[0])
    assert_close(torch.stack(parts.feedback_pass_losses), torch.stack(losses[1:]))
    assert_close(found, losses[0] + (losses[1] + losses[2]) / 2)


def test_weights_of_passes():
    options = dict(feedback_pass_weight=0.3, dynamic_rollout_loss_weight=True)
    model, ids = model_of(temporal_parallel_passes=4, **options), ids_of(2, 6)
    first, *later = by_hand(model, ids, 4)
    weights, faded = [], 0.0
    for loss in later:
        weights.append(torch.tensor(-0.5 * faded).exp())
        faded += max(loss.item() - 1.0, 0.0)
    mean = sum(w * loss for w, loss in zip(weights, later, strict=True)) / sum(weights)
    assert_close(model(ids), first + 0.3 * mean, tolerance=1e-7)
    assert_close(model(ids, dynamic_rollout_loss_weight=False), first + 0.1 * sum(later))
    weights = dynamic_rollout_loss_weights(torch.tensor([1.0, 2.0, 3.0]), 0.5, 1.0)
    assert_close(weights, torch.tensor([0.0, 0.0, -0.5]).exp())


def test_what_comes_back():
    model, ids = model_of(), ids_of(2, 6)
    logits = model(ids, return_loss=False)
    assert logits.shape == (2, 6, VOCAB)
    out = model(ids, return_loss=False, return_all_pass_logits=True, return_loss_breakdown=True)
    assert out._fields == ('logits', 'loss_breakdown', 'all_pass_logits') and out.loss_breakdown is None
    assert_close(out.all_pass_logits[-1], logits)
    assert_close(out.all_pass_logits[0], model.net(ids))
    out = model(ids, return_all_pass_logits=True, temporal_parallel_passes=1)
    assert out._fields == ('loss', 'all_pass_logits') and out.all_pass_logits[0].shape == (2, 5, VOCAB)
    assert_close(out.loss, AutoregressiveWrapper(model.net)(ids))


def test_latents_go_one_token_on():
    z, s = randn(2, 5, 3), randn(2, 5, 3)
    found = shift_and_fuse_latents(z, s, lambda z, s: s + 2 * z)
    assert_close(found[:, 0], s[:, 0])
    assert_close(found[:, 1:], s[:, 1:] + 2 * z[:, :-1])
    found = fuse_last_latent(z, s, lambda z, s: s + 2 * z)
    assert_close(found[:, :-1], s[:, :-1])
    assert_close(found[:, -1], s[:, -1] + 2 * z[:, -1])
    front = randn(2, 2, 3)
    # what stands in front of the tokens is left alone
    longer = shift_and_fuse_latents(torch.cat((front, z), 1), torch.cat((front, s), 1)[:, 2:], lambda z, s: s + 2 * z)
    assert_close(longer[:, 1:], s[:, 1:] + 2 * z[:, :-1])


@pytest.mark.parametrize('kind', TRANSITIONS)
def test_transitions(kind):
    step, z, s = randomised(TRANSITIONS[kind](DIM)), randn(3, DIM), randn(3, DIM)

    def norm(x, of):
        return x / x.norm(dim=-1, keepdim=True) * DIM**0.5 * of.g

    def glu(of):
        return norm(norm(z, of.latent_norm) @ of.to_state.weight.T
                    * (norm(s, of.stream_norm) @ of.to_gate.weight.T).sigmoid(), of.norm)  # fmt: skip

    if kind == 'glu':
        wanted = glu(step)
    elif kind == 'residual_glu':
        wanted = norm(s + step.scale * glu(step.glu), step.norm)
    elif kind == 'residual':
        wanted = norm(s + step.scale * norm(z, step.latent_norm) @ step.proj.weight.T, step.norm)
    elif kind == 'linear':
        terms = norm(z, step.latent_norm) @ step.to_state.weight.T, norm(s, step.stream_norm) @ step.to_stream.weight.T
        wanted = norm(sum(terms), step.norm)
    else:
        both = torch.cat((norm(z, step.latent_norm), norm(s, step.stream_norm)), dim=-1)
        gate = (both @ step.gate.weight.T + step.gate.bias).sigmoid()
        wanted = norm((1 - gate) * s + gate * (both @ step.to_candidate.weight.T).tanh(), step.norm)
        assert (TRANSITIONS['gru'](DIM).gate.bias == -1).all()
    assert_close(step(z, s), wanted)


def test_pairs():
    assert resolve_recirc_pairs(3, None) == ((3, 1),)
    assert resolve_recirc_pairs(3, 'prev') == ((2, 1), (3, 2))
    assert resolve_recirc_pairs(3, 'top_and_prev') == ((3, 1), (2, 1), (3, 2))
    assert resolve_recirc_pairs(2, 'top_and_prev') == ((2, 1),)
    assert resolve_recirc_pairs(2, 'dense') == ((1, 1), (1, 2), (2, 1), (2, 2))
    model = build(recirc_pairs=((3, 1), (2, 2)), transitions={'3->1': 'linear', (2, 2): 'gru'})
    assert [type(model.transitions[name]) for name in ('3->1', '2->2')] == [TRANSITIONS['linear'], TRANSITIONS['gru']]


def test_noise_in_training_only():
    model, ids = model_of(jitter_noise_delta=0.5), ids_of(2, 6)
    assert torch.equal(model(ids), model(ids))
    trace = model.net(ids, return_intermediates=True)[1]
    found = []
    model.make_transforms(trace, True, lambda z, s: found.append(z) or s)[1](randn(2, 6, DIM))
    noise = found[0] - get_block_latent(trace, 3)[:, :-1]
    assert 0.3 < noise.abs().max() <= 0.5 and abs(noise.mean()) < 0.1
    model.train()
    assert not torch.equal(model(ids), model(ids))


@pytest.mark.parametrize('stack', [{}, dict(rotary_pos_emb=True), dict(model=dict(num_memory_tokens=2))], ids=str)
def test_no_look_into_the_future(stack):
    model, ids = model_of(stack, recirc_pairs='dense', temporal_parallel_passes=3), ids_of(2, 7)
    changed = ids.clone()
    changed[:, 4] = (ids[:, 4] + 1) % VOCAB
    one, other = (model(x, return_loss=False) for x in (ids, changed))
    assert_close(one[:, -7:-3], other[:, -7:-3])
    assert (one - other).abs()[:, -3:].max() > 1e-4


@pytest.mark.parametrize('name', ['mask', 'seq_start_pos'])
def test_what_padding_holds_never_matters(name):
    model, ids = model_of(dict(rotary_pos_emb=True), temporal_parallel_passes=3), ids_of(2, 7)
    pads = torch.tensor([0, 3])
    real = torch.arange(7) >= pads[:, None]
    given = {name: real if name == 'mask' else pads}
    one, other = (model(x, return_loss=False, **given) for x in (ids, ids.masked_fill(~real, 3)))
    assert_close(one[real], other[real])
    assert_close(one[1, 3:], model(ids[1:, 3:], return_loss=False)[0])


STACKS = {'absolute': {}, 'rotary': dict(rotary_pos_emb=True), 'memory tokens': dict(model=dict(num_memory_tokens=2))}


def greedy(model, prompt, count, passes=2, whole=True, fuses=lambda step: True):
    """Token by token without a cache: every place keeps the streams that it was given when it was new."""
    net, kept, trace = model.net, {}, None
    feeds = {}

    def prompt_fed(block, x):
        kept[block] = feeds[block](x) if block in feeds else x
        return kept[block]

    for _ in range(passes if whole else 1):
        feeds = {} if trace is None else model.make_transforms(trace)
        out, trace = net(prompt, return_intermediates=True, transform_block_inputs=prompt_fed)
    ids, latents = torch.cat((prompt, out[:, -1:].argmax(-1)), dim=1), {}

    def fed(block, x):
        new = x[:, -1:]
        if latents:
            for out in model.routes_by_in_depth.get(block, ()):
                new = model.transitions[f'{out}->{block}'](latents[out], new)
        kept[block] = torch.cat((kept[block], new), dim=1)
        return kept[block]

    for step in range(count - 1):
        fed_back = model.recirc_pairs if passes > 1 and fuses(step) else ()
        latents = {out: get_block_latent(trace, out)[:, -1:] for out, _ in fed_back}
        out, trace = net(ids, return_intermediates=True, transform_block_inputs=fed)
        ids = torch.cat((ids, out[:, -1:].argmax(-1)), dim=1)
    return ids[:, prompt.shape[1] :]


@pytest.mark.parametrize('kind', STACKS)
@pytest.mark.parametrize('passes', [1, 2, 3])
def test_it_continues_with_latents_of_the_token_before(kind, passes):
    model, prompts = model_of(STACKS[kind], recirc_pairs='top_and_prev', temporal_parallel_passes=passes), ids_of(2, 3)
    for options, plain in (
        ({}, {}),
        (dict(process_prompt=False), dict(whole=False)),
        (dict(should_fuse_latent=lambda step: step % 2 == 0), dict(fuses=lambda step: step % 2 == 0)),
    ):
        found = model.generate(prompts, 6, temperature=0.0, **options)
        assert torch.equal(found, greedy(model, prompts, 6, passes, **plain)), options
    if passes == 1:
        assert torch.equal(found, AutoregressiveWrapper(model.net).generate(prompts, 6, temperature=0.0))


def test_unequal_prompts_are_continued_as_alone():
    model, prompts = model_of(dict(rotary_pos_emb=True), temporal_parallel_passes=3), ids_of(2, 5)
    found = model.generate([prompts[0], prompts[1, :2]], 6, temperature=0.0)
    for row, prompt in enumerate((prompts[0], prompts[1, :2])):
        assert torch.equal(found[row], model.generate(prompt, 6, temperature=0.0))
    several = model.generate(prompts, 6, temperature=0.0, num_samples=2)
    assert torch.equal(several[:, 0], several[:, 1]) and several.shape == (2, 2, 6)
    end = int(found[0, 2])
    stopped = model.generate(prompts[0], 6, temperature=0.0, eos_token=end)
    stop = found[0].tolist().index(end) + 1
    assert stopped.tolist()[:stop] == found[0].tolist()[:stop]


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(dict(kind=Encoder)), 'causal'),
        (lambda: build(dict(depth_scale_residual=False)), '`depth_scale_residual`'),
        (lambda: build(dict(model=dict(tie_embedding=False))), '`tie_embedding`'),
        (lambda: build(dict(model=dict(post_emb_norm=False))), '`post_emb_norm`'),
        (lambda: build(recirc_pairs=((4, 1),)), '`recirc_pairs` must '),
        (lambda: build(recirc_pairs=((3, 1), (3, 1))), 'each once'),
        (lambda: build(recirc_pairs='all'), '`recirc_pairs` must be one of'),
        (lambda: build(transition='add'), '`transition` must be'),
        (lambda: build(transition=lambda dim: None), '`transition` must give a module'),
        (lambda: build(transitions={(2, 1): 'glu'}), r'`transitions` must .*got \(2, 1\)'),
        (lambda: build()(ids_of(2, 2)), '`token_ids`'),
        (lambda: build()(ids_of(2, 5), temporal_parallel_passes=0), '`temporal_parallel_passes`'),
        (lambda: build()(ids_of(2, 5), transform_block_inputs={}), '`transform_block_inputs`'),
        (lambda: build().generate(ids_of(2, 5), 13), '`seq_len` got 13'),
        (lambda: build(dict(rotary_pos_emb=True)).generate(ids_of(2, 5), 13, slide_cache=False), '`seq_len` got 13'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_names():
    model = build(recirc_pairs=((3, 1), (2, 2)), transitions={'2->2': 'gru'})
    assert {'transitions.3->1.to_gate.weight', 'transitions.2->2.gate.bias'} <= set(model.state_dict())


@pytest.mark.slow
def test_it_learns_to_count_in_every_pass():
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(1, 4, (b, 1))
        return (start + step * torch.arange(8)) % VOCAB

    model = build(dict(rotary_pos_emb=True, dim=32), transition='residual_glu')
    fit(model, lambda: model(rows(32)), 700)
    ids = rows(64)
    out = model.eval().generate(ids[:, :3], 5, temperature=0.0)
    assert (out == ids[:, 3:]).float().mean() > 0.95

"""Early exits against loops over tokens and blocks: losses, rules, generation, and what calibration promises."""

import copy
import functools
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
from law_cases import randomise
from oracles import assert_close
from training_laws import DIM, VOCAB, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Decoder, EarlyExitWrapper, Encoder, EncoderDecoder, TransformerWrapper
from x_transformers.early_exit import (
    calibrate_exit,
    exit_oracle,
    exit_p_value,
    grid_search_exit,
    learn_then_test,
    stick_breaking,
    token_f1_distance,
)
from x_transformers.flags import ConfigError
from x_transformers.generation.exits import ByDepth, decay_threshold, get_gap

N, BLOCKS = 7, 3
IDS = ids_of(2, N)
DEPTHS = torch.tensor([[1, 3, 2, 1, 3, 2, 1], [2, 1, 1, 3, 1, 1, 2]])


def built(stack=None, net=None, **options):
    plain = net_of(stack={'depth': BLOCKS, **(stack or {})}, max_seq_len=24, **(net or {}))
    return randomise(EarlyExitWrapper(plain, **options).double())


# the definition: all tokens through each layer, and those that have left put back


def by_hand(model, ids, leaves, context=None):
    """Logits (b n l) and depths (b n), where `leaves(block, state, stream, before, row, place)` says who leaves."""
    net, stack = model.net, model.net.attn_layers
    x = net.token_emb(ids)
    b, n = ids.shape
    depth = torch.full((b, n), BLOCKS)
    turns = stack.rotary_pos_emb(torch.arange(n)) if stack.rotary_pos_emb is not None else None
    for block in range(1, BLOCKS + 1):
        before = x
        for layer in stack.layers[(block - 1) * stack.len_default_block : block * stack.len_default_block]:
            (norm, _, _), branch, _ = layer
            own = {'a': dict(rotary_pos_emb=turns), 'c': dict(context=context), 'f': {}}[layer.kind]
            new = x + branch(norm(x), **own)
            x = torch.where((depth >= block).unsqueeze(-1), new, x)
        for row, place in itertools.product(range(b), range(n)):
            if block < BLOCKS and depth[row, place] == BLOCKS:
                args = (stack.final_norm(x[row, place]), x[row, place], before[row, place], row, place)
                if leaves(block, *args):
                    depth[row, place] = block
    state = stack.final_norm(x)
    logits = net.to_logits(state)
    for block in range(1, BLOCKS) if model.exit_heads is not None else ():
        logits = torch.where((depth == block).unsqueeze(-1), model.exit_heads[block - 1](state), logits)
    return logits, depth


def given(block, state, stream, before, row, place):
    return DEPTHS[row, place] <= block


def states_by_hand(model, ids):
    """What a head reads behind each block, of a net with the first blocks alone."""
    size = model.net.attn_layers.len_default_block
    return [model.net(ids, return_embeddings=True, layers_execute_order=range(size * n)) for n in range(1, BLOCKS + 1)]


# reading


@pytest.mark.parametrize('heads', ['shared', 'per_layer'])
def test_those_that_leave_keep_their_state(heads):
    model = built(exit_heads=heads)
    rule = ByDepth(DEPTHS)
    rule.heads = model.exit_heads
    wanted, depth = by_hand(model, IDS, given)
    assert torch.equal(depth, DEPTHS)
    assert_close(model.net(IDS, exits=rule), wanted)
    rule.depths = torch.full_like(DEPTHS, 2)  # all leave together: a net of two blocks
    head = model.net.to_logits if model.exit_heads is None else model.exit_heads[1]
    assert_close(model.net(IDS, exits=rule), head(states_by_hand(model, IDS)[1]))


def test_all_blocks_are_the_plain_net():
    model = built()
    plain = AutoregressiveWrapper(model.net)
    for options in (dict(temperature=0.0), dict(filter_kwargs=dict(thres=0.5), generator=torch.Generator())):
        again = [
            copy.deepcopy(options) | extra
            for extra in ({}, dict(exit=BLOCKS), dict(exit='confidence', exit_threshold=1.0))
        ]
        outs = [model.generate(IDS, 6, return_log_probs=True, **one) for one in again]
        outs.append(plain.generate(IDS, 6, return_log_probs=True, **options))
        for out in outs[:2]:
            assert torch.equal(out.tokens, outs[-1].tokens) and torch.equal(out.log_probs, outs[-1].log_probs)
        assert torch.equal(outs[2].tokens, outs[-1].tokens)
    assert torch.equal(model.net(IDS, exits=ByDepth(torch.full_like(DEPTHS, BLOCKS))), model.net(IDS))


# losses


def test_aligned_loss():
    for weights, shares in (
        ('uniform', [1, 1, 1]),
        ('linear', [1, 2, 3]),
        ((0, 0.5, 1), [0, 0.5, 1]),
        ((0, 0, 2), [0, 0, 1]),
    ):
        model = built(layer_loss_weights=weights)
        losses = [
            F.cross_entropy(model.net.to_logits(state)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
            for state in states_by_hand(model, IDS)
        ]
        wanted = sum(w * loss for w, loss in zip(shares, losses, strict=True)) / sum(shares)
        assert_close(model(IDS), wanted)
    assert_close(model(IDS), AutoregressiveWrapper(model.net)(IDS))  # of the last block alone
    loss, (logits, trace) = model(IDS, return_outputs=True)
    assert_close(logits, model.net(IDS)[:, :-1])
    assert_close(loss, wanted) and trace is not None


def test_heads_of_their_own_learn_each():
    model = built(exit_heads='per_layer')
    heads = [*model.exit_heads, model.net.to_logits]
    losses = [
        F.cross_entropy(head(state)[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
        for head, state in zip(heads, states_by_hand(model, IDS), strict=True)
    ]
    assert_close(model(IDS), sum(losses) / 3)
    assert [name for name, _ in model.named_parameters() if 'exit' in name] == [
        'exit_heads.0.weight',
        'exit_heads.1.weight',
    ]


@pytest.mark.parametrize('heads', ['shared', 'per_layer'])
def test_mixed_loss(heads):
    """The mean over samples, each with its own blocks; gradients too."""
    model = built(exit_train='mixed', mixed_samples=2, exit_heads=heads).train()
    torch.manual_seed(3)
    loss = model(IDS)
    grads = torch.autograd.grad(loss, [*model.parameters()])
    torch.manual_seed(3)
    total = 0.0
    for _ in range(2):
        drawn = torch.randint(1, BLOCKS + 1, IDS.shape)
        logits, _ = by_hand(model, IDS, lambda block, *_, drawn=drawn: drawn[_[-2], _[-1]] <= block)
        total = total + F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    assert_close(loss, total / 2)
    for one, other in zip(grads, torch.autograd.grad(total / 2, [*model.parameters()]), strict=True):
        assert_close(one, other, 'gradient')


def log_q_by_hand(model, states, context):
    """log q (b n N) by loops."""
    layer = model.exit_classifier
    if model.kind == 'sequence':
        return layer(context.mean(dim=1)).log_softmax(-1)[:, None].expand(-1, N, -1)
    if model.kind == 'multinomial':
        return layer(states[0]).log_softmax(-1)
    found = torch.zeros(2, N, BLOCKS, dtype=torch.float64)
    for b, t in itertools.product(range(2), range(N)):
        stay = 1.0
        for n in range(BLOCKS):
            leave = (
                float((states[n][b, t] @ layer.weight[n].detach() + layer.bias[n].detach()).sigmoid())
                if n < BLOCKS - 1
                else 1.0
            )
            found[b, t, n], stay = math.log(stay * leave), stay * (1 - leave)
    return found


@pytest.mark.parametrize('oracle', ['likelihood', 'correctness'])
@pytest.mark.parametrize('kind', ['sequence', 'multinomial', 'geometric'])
def test_the_loss_of_classifiers(kind, oracle):
    stack, inputs = {}, {}
    if kind == 'sequence':
        stack, inputs = dict(cross_attend=True, rotary_pos_emb=False), dict(context=torch.randn(2, 4, DIM).double())
    options = dict(exit_oracle=oracle, exit_penalty=0.1, exit_rbf_sigma=None if kind == 'sequence' else 2.0)
    model = built(stack, exit_classifier=kind, exit_loss_weight=0.5, **options)
    size = model.net.attn_layers.len_default_block
    states = [
        model.net(IDS, return_embeddings=True, layers_execute_order=range(size * n), **inputs) for n in range(1, 4)
    ]
    logits = [model.net.to_logits(state).detach() for state in states]
    log_q = log_q_by_hand(model, [s.detach() for s in states], inputs.get('context')).detach()
    total, decoder, count = 0.0, 0.0, 2 * (N - 1)
    for b in range(2):
        score = torch.zeros(N - 1, BLOCKS, dtype=torch.float64)
        for t, n in itertools.product(range(N - 1), range(BLOCKS)):
            row = logits[n][b, t].log_softmax(-1)
            decoder -= row[IDS[b, t + 1]] / BLOCKS
            score[t, n] = row[IDS[b, t + 1]] if oracle == 'likelihood' else float(row.argmax() == IDS[b, t + 1])
        cost = 0.1 * torch.arange(1, BLOCKS + 1)
        if kind == 'sequence':
            best = int((score.sum(0) - cost).argmax())
            total -= log_q[b, 0, best]
            continue
        for t in range(N - 1):
            near = sum(math.exp(-((t - s) ** 2) / 2.0) * score[s] for s in range(N - 1))
            total -= log_q[b, t, int((near - cost).argmax())]
    assert_close(model(IDS, **inputs), (decoder + 0.5 * total) / count)


def test_what_the_classifier_teaches_the_net():
    for detach in (False, True):
        model = built(exit_classifier='geometric', exit_detach=detach, exit_loss_weight=1.0)
        states, _ = model.states_of(IDS, {})
        targets = F.pad(IDS[:, 1:], (0, 1), value=-100)
        loss = model.classifier_loss(states, targets, {})
        grads = torch.autograd.grad(loss, [*model.net.attn_layers.parameters()], allow_unused=True)
        assert all(grad is None for grad in grads) == detach
        again = model.classifier_loss(states, targets, {})
        assert torch.autograd.grad(again, model.exit_classifier.weight)[0].any()


def test_where_classifiers_begin():
    for kind, shape in (('multinomial', (3, DIM)), ('geometric', (2, DIM))):
        layer = EarlyExitWrapper(net_of(stack=dict(depth=3)), exit_classifier=kind).exit_classifier
        assert layer.weight.shape == shape and not layer.weight.any()
        assert (
            torch.allclose(layer.bias.sigmoid(), torch.full((2,), 1 / 3))
            if kind == 'geometric'
            else not layer.bias.any()
        )


def test_names():
    options = dict(exit_heads='per_layer', exit_classifier='geometric', exit_confidence='classifier')
    own = {name: tuple(t.shape) for name, t in built(**options).state_dict().items() if not name.startswith('net.')}
    assert own == {
        'exit_heads.0.weight': (VOCAB, DIM),
        'exit_heads.1.weight': (VOCAB, DIM),
        'exit_classifier.weight': (BLOCKS - 1, DIM),
        'exit_classifier.bias': (BLOCKS - 1,),
        'exit_confidence.weight': (1, DIM),
        'exit_confidence.bias': (1,),
    }
    plain = EarlyExitWrapper(net_of(), exit_confidence='classifier')
    assert not any(p.any() for p in plain.exit_confidence.parameters())


def test_stick_breaking():
    q = stick_breaking(torch.randn(4, 5, 6, dtype=torch.float64) * 4).exp()
    assert_close(q.sum(-1), torch.ones(4, 5, dtype=torch.float64))
    z = torch.tensor([0.3, -1.2], dtype=torch.float64)
    a, b = z.sigmoid().tolist()
    assert_close(stick_breaking(z).exp(), torch.tensor([a, (1 - a) * b, (1 - a) * (1 - b)], dtype=torch.float64))
    assert stick_breaking(torch.full((3,), 200.0)).isfinite().all()


def test_the_oracle():
    scores = torch.tensor([[[0.0, 1.0, 1.0], [2.0, 1.0, 2.5], [0.0, 0.0, 9.0]]])
    assert exit_oracle(scores).tolist() == [[2, 3, 3]]  # the lowest of equals
    assert exit_oracle(scores, penalty=0.3).tolist() == [[2, 1, 3]]
    assert exit_oracle(scores, penalty=1e6).tolist() == [[1, 1, 1]]
    assert torch.equal(exit_oracle(scores, sigma=1e-6), exit_oracle(scores))
    assert exit_oracle(scores, penalty=0.6, sequence=True).tolist() == [3]
    real = torch.tensor([[True, True, False]])
    assert exit_oracle(scores, real, penalty=0.6, sequence=True).tolist() == [3]
    assert exit_oracle(scores, real, penalty=0.8, sequence=True).tolist() == [1]
    assert exit_oracle(scores, sigma=1e9).tolist() == [[3, 3, 3]]  # all are neighbours
    scores, sigma = torch.randn(1, 6, 4, dtype=torch.float64), 3.0
    ids, found = [0, 0, 1, 1, 1, 0], torch.zeros(2, 6, dtype=torch.long)
    for own, t in itertools.product((0, 1), range(6)):
        near = [s for s in range(6) if not own or ids[s] == ids[t]]
        sums = sum(math.exp(-((t - s) ** 2) / sigma) * scores[0, s] for s in near)
        found[own, t] = (sums - 0.2 * torch.arange(1, 5)).argmax() + 1
    options = dict(sigma=sigma, penalty=0.2)
    assert torch.equal(exit_oracle(scores, **options)[0], found[0])
    assert torch.equal(exit_oracle(scores, document_ids=torch.tensor([ids]), **options)[0], found[1])


def test_documents_and_padding_in_the_loss():
    """Packed documents cost what they cost apart; tokens that are no targets do not count."""
    options = dict(exit_classifier='geometric', exit_rbf_sigma=2.0, exit_penalty=0.01)
    model = built(**options)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    parts = [model(IDS[:1, :3]) * 2, model(IDS[:1, 3:]) * 3]
    assert_close(model(IDS[:1], document_ids=documents) * 5, sum(parts))
    short = F.pad(IDS[:, :4], (0, 3), value=-100)
    assert_close(model(short), model(IDS[:, :4]))
    assert_close(model(IDS, lens=torch.tensor([4, 4])), model(IDS[:, :4]))


def test_the_confidence_classifier():
    """It learns whether a block says what the last one says, both answers alike; the net learns nothing."""
    model = built(exit_confidence='classifier')
    states = states_by_hand(model, IDS)
    said = [model.net.to_logits(state).argmax(-1) for state in states]
    losses = []
    for n in range(BLOCKS - 1):
        each = {True: [], False: []}
        for b, t in itertools.product(range(2), range(N)):
            same = bool(said[n][b, t] == said[-1][b, t])
            c = model.exit_confidence(states[n][b, t]).sigmoid().squeeze()
            each[same].append(-(c if same else 1 - c).log())
        losses.append(torch.stack([torch.stack(v).mean() for v in each.values() if v]).mean())
    loss = model.confidence_loss(IDS)
    assert_close(model.confidence_loss(F.pad(IDS, (0, 3), value=-100)), loss)
    assert_close(loss, torch.stack(losses).mean())
    loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        'exit_confidence.weight',
        'exit_confidence.bias',
    }


# generation


def rule_by_hand(model, exit, threshold, start=None, most=None, tau=None):
    def leaves(block, state, stream, before, row, place):
        head = model.net.to_logits if model.exit_heads is None else model.exit_heads[block - 1]
        if exit == 'classifier' and model.kind == 'multinomial':
            memory.setdefault((row, place), int(model.exit_classifier(state).argmax()) + 1)
            return memory[row, place] <= block
        if exit == 'classifier':
            layer = model.exit_classifier
            return (layer.weight[block - 1] @ state + layer.bias[block - 1]).sigmoid() > threshold
        p = head(state).softmax(-1).sort(descending=True).values
        at = threshold
        if tau is not None:
            at = min(max(0.9 * threshold + 0.1 * math.exp(-tau * max(place - start, 0) / most), 0), 1)
        if model.confidence == 'softmax':
            return p[0] - p[1] >= at
        if model.confidence == 'max_prob':
            return p[0] >= at
        if model.confidence == 'state':
            return (0 if block == 1 else F.cosine_similarity(stream, before, dim=0)) >= at
        return model.exit_confidence(state).sigmoid() >= at

    memory = {}
    return leaves


RULES = {
    'softmax': ({}, dict(exit='confidence', exit_threshold=0.25)),
    'falling': ({}, dict(exit='confidence', exit_threshold=0.25, exit_decay_tau=4.0)),
    'heads': (dict(exit_heads='per_layer'), dict(exit='confidence', exit_threshold=0.3)),
    'max_prob': (dict(exit_confidence='max_prob'), dict(exit='confidence', exit_threshold=0.4)),
    'state': (dict(exit_confidence='state'), dict(exit='confidence', exit_threshold=0.6)),
    'learned': (dict(exit_confidence='classifier'), dict(exit='confidence', exit_threshold=0.5)),
    'multinomial': (dict(exit_classifier='multinomial'), dict(exit='classifier')),
    'geometric': (
        dict(exit_classifier='geometric', exit_heads='per_layer'),
        dict(exit='classifier', exit_threshold=0.5),
    ),
}


@pytest.mark.parametrize('name', RULES)
def test_generation_by_hand(name):
    """Greedy tokens and depths, of a loop that reads all again each time; with a cache, padding, beside others."""
    options, exits = RULES[name]
    model = built(**options)
    prompts = [IDS[0], IDS[1, :3], ids_of(1, 5, seed=4)[0]]
    made, stats = model.generate(prompts, 6, temperature=0.0, return_stats=True, **exits)
    for row, prompt in enumerate(prompts):
        text, depths = prompt[None], []
        for _ in range(6):
            rule = rule_by_hand(
                model, exits['exit'], exits.get('exit_threshold', 0.9), len(prompt) - 1, 6, exits.get('exit_decay_tau')
            )
            logits, depth = by_hand(model, text, rule)
            depths.append(int(depth[0, -1]))
            text = torch.cat((text, logits[:, -1:].argmax(-1)), dim=1)
        assert made[row].tolist() == text[0, len(prompt) :].tolist() and stats.depths[row].tolist() == depths, name
    again = model.generate(prompts, 6, temperature=0.0, cache_kv=False, return_stats=True, **exits)
    assert torch.equal(again[0], made) and torch.equal(again[1].depths, stats.depths)
    assert stats.mean_depth == pytest.approx(stats.depths.double().mean()) and stats.blocks == BLOCKS
    assert len(stats.depths.unique()) > 1, 'the rule decides nothing'


def test_thresholds():
    model = built()
    first = model.generate(IDS, 6, temperature=0.0, exit=1, return_stats=True)
    lowest = model.generate(IDS, 6, temperature=0.0, exit='confidence', exit_threshold=0.0, return_stats=True)
    assert (
        torch.equal(first[0], lowest[0]) and first[1].mean_depth == lowest[1].mean_depth == 1 and lowest[1].saving == 3
    )
    for threshold in (1.0, 1, (1, 1)):
        out, stats = model.generate(
            IDS, 6, temperature=0.0, exit='confidence', exit_threshold=threshold, return_stats=True
        )
        assert torch.equal(out, model.generate(IDS, 6, temperature=0.0)) and stats.mean_depth == 3
    _, stats = model.generate(IDS, 6, temperature=0.0, exit='confidence', exit_threshold=[1.0, 0.0], return_stats=True)
    assert stats.mean_depth == 2  # one threshold for each block but the last
    model.net.to_logits.weight.data.mul_(1e4)
    for threshold, depth in ((1.0, 3), (0.99, 1)):  # at 1 none leaves, however sure
        _, stats = model.generate(IDS, 6, exit='confidence', exit_threshold=threshold, return_stats=True)
        assert stats.mean_depth == depth


def test_the_threshold_falls():
    t = torch.arange(11)
    found = decay_threshold(0.8, t, 10, 4.0)
    assert found[0] == pytest.approx(0.9 * 0.8 + 0.1) and found[-1] == pytest.approx(0.72 + 0.1 * math.exp(-4))
    assert (found.diff() < 0).all() and decay_threshold(0.8, torch.tensor([-3]), 10, 4.0) == found[0]
    assert decay_threshold(0.5, t, 10, 0.0).tolist() == pytest.approx([0.55] * 11)
    assert_close(
        get_gap(torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64).log()), torch.tensor([0.2], dtype=torch.float64)
    )


def test_depths_are_counted_in_layers():
    """The mean depth is what was computed: tokens that went through a feedforward, of rows that go on alone."""
    model, seen = built(), []
    hooks = [
        layer[1].register_forward_hook(lambda module, args, out: seen.append(args[0].shape[0] * args[0].shape[1]))
        for layer in model.net.attn_layers.layers
        if layer.kind == 'f'
    ]
    made, stats = model.generate(
        ids_of(5, 1), 8, temperature=0.0, exit='confidence', exit_threshold=0.25, return_stats=True
    )
    for hook in hooks:
        hook.remove()
    assert sum(seen) == stats.depths.sum() < made.numel() * BLOCKS
    queries = []
    hooks = [
        layer[1].to_out.register_forward_hook(
            lambda module, args, out: queries.append(args[0].shape[0] * args[0].shape[1])
        )
        for layer in model.net.attn_layers.layers
        if layer.kind == 'a'
    ]
    model.generate(ids_of(5, 1), 8, temperature=0.0, exit='confidence', exit_threshold=0.25)
    assert sum(queries) == stats.depths.sum()


def test_depths_end_where_rows_end():
    model = built()
    made, stats = model.generate(IDS, 8, temperature=0.0, exit=2, return_stats=True)
    stop = int(made[0, 2])
    ended, stats = model.generate(
        IDS, 8, temperature=0.0, exit=2, eos_token=stop, return_stats=True, return_finish_reasons=True
    )
    for row, depths in zip(ended.tokens.tolist(), stats.depths.tolist(), strict=True):
        length = row.index(stop) + 1 if stop in row else len(row)
        assert depths == [2] * length + [0] * (len(row) - length)
    assert stats.mean_depth == 2
    several, stats = model.generate(IDS, 4, num_samples=3, exit='confidence', exit_threshold=0.25, return_stats=True)
    assert several.shape == stats.depths.shape == (2, 3, 4)


def test_every_way_to_generate():
    model = built()
    exits = dict(exit='confidence', exit_threshold=0.25)
    wanted = model.generate(IDS, 6, temperature=0.0, **exits)
    assert torch.equal(torch.stack([*model.stream(IDS, 6, temperature=0.0, **exits)], dim=1), wanted)
    prompt = model.read_prompt(IDS[:, :4], **exits)
    assert torch.equal(model.generate(IDS, 6, temperature=0.0, prompt_cache=prompt, **exits), wanted)
    depths = model.generate(IDS, 6, temperature=0.0, return_stats=True, **exits)[1].depths
    for prompts, cache in ((IDS, prompt), (None, model.read_prompt(IDS, **exits))):
        stats = model.generate(prompts, 6, temperature=0.0, prompt_cache=cache, return_stats=True, **exits)[1]
        assert torch.equal(stats.depths, depths)
    plain = model.read_prompt(IDS)
    with pytest.raises(ValueError, match='`prompt_cache` was read with another `exit`'):
        model.generate(IDS, 6, prompt_cache=plain, **exits)
    assert torch.equal(model.beam_search(IDS, 6, beams=1, **exits), wanted)
    assert torch.equal(
        model.beam_search(IDS, 6, beams=3, cache_kv=False, **exits), model.beam_search(IDS, 6, beams=3, **exits)
    )
    longer = model.generate(IDS, 30, temperature=0.0, **exits)  # past the longest sequence
    assert longer.shape == (2, 30) and torch.equal(longer[:, :6], wanted)


@pytest.mark.costly
def test_a_net_drafts_for_itself():
    """Greedy tokens are those of all blocks, whatever guesses; a deep draft is right more often."""
    model = built()
    prompts = [IDS[0], IDS[1, :3]]
    wanted = model.generate(prompts, 10, temperature=0.0)
    accepted = []
    for draft, extra in (
        (1, {}),
        (2, {}),
        ('exit', dict(exit_threshold=0.2)),
        ('exit', dict(exit=2)),
        ('exit', dict(exit_threshold=1.0)),
    ):
        out, stats = model.speculative(prompts, 10, draft, temperature=0.0, return_stats=True, **extra)
        assert torch.equal(out, wanted), draft
        accepted.append(stats.accepted / stats.guessed)
    assert accepted[-1] == 1 and accepted[1] == accepted[3] < 1
    plain = AutoregressiveWrapper(model.net)
    assert torch.equal(plain.speculative(prompts, 10, 2, temperature=0.0), wanted)
    counts = torch.zeros(VOCAB)
    probs = model.net(IDS[:1])[0, -1].softmax(-1)
    for token in plain.speculative(
        IDS[:1].expand(4000, -1), 2, 1, filter_logits_fn='top_k', filter_kwargs=dict(k=VOCAB)
    )[:, 0]:
        counts[token] += 1
    assert ((counts - 4000 * probs).square() / (4000 * probs)).sum() < 29.6  # 99.9 % of 10 degrees


def test_a_row_of_a_depth():
    """A classifier of rows: all tokens of a row leave where what they attend to says."""
    model = built(dict(cross_attend=True, rotary_pos_emb=False), exit_classifier='sequence')
    context, mask = torch.randn(2, 4, DIM).double(), torch.tensor([[True] * 4, [True, False, True, False]])
    options = dict(temperature=0.0, exit='classifier', return_stats=True, context=context, context_mask=mask)
    made, stats = model.generate(IDS, 5, **options)
    for row in range(2):
        depth = int(model.exit_classifier(context[row, mask[row]].mean(0)).argmax()) + 1
        alone = model.generate(IDS[row : row + 1], 5, temperature=0.0, exit=depth, context=context[row : row + 1],
                               context_mask=mask[row : row + 1])  # fmt: skip
        assert stats.depths[row].tolist() == [depth] * 5 and torch.equal(made[row : row + 1], alone)
    assert torch.equal(model.generate(IDS, 5, cache_kv=False, **options)[0], made)


def test_a_decoder_of_an_encoder():
    source = net_of(Encoder, dict(rotary_pos_emb=False), return_only_embed=True)
    text = EarlyExitWrapper(net_of(stack=dict(cross_attend=True, depth=BLOCKS)), exit_classifier='sequence')
    model = randomise(EncoderDecoder(source, text).double())
    model(IDS, IDS[:, :4]).backward()
    assert text.exit_classifier.weight.grad.any()
    options = dict(temperature=0.0, return_stats=True, exit='classifier')
    made, stats = model.generate(IDS, IDS[:, :1], 4, **options)
    again, _ = text.generate(IDS[:, :1], 4, context=source(IDS), **options)
    assert torch.equal(made, again) and stats.depths.shape == (2, 4)


# laws


def test_a_configuration_and_copies():
    model = built(exit_heads='per_layer', exit_classifier='geometric', exit_rbf_sigma=2.0, layer_loss_weights=(1, 2, 3))
    again = EarlyExitWrapper.from_config(model.config).double().eval()
    again.load_state_dict(model.state_dict())
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IDS), model(IDS))
        exits = dict(temperature=0.0, exit='classifier', exit_threshold=0.4)
        assert torch.equal(other.generate(IDS, 4, **exits), model.generate(IDS, 4, **exits))


@pytest.mark.slow
def test_one_graph():
    """Training, also where blocks are drawn, and a fixed exit."""
    for options in (dict(exit_classifier='geometric'), dict(exit_train='mixed', exit_heads='per_layer')):
        model = built(**options)
        torch._dynamo.reset()
        compiled, first = torch.compile(lambda x, model=model: model(x), fullgraph=True, backend='aot_eager'), None
        for run in (compiled, model):
            torch.manual_seed(1)
            loss = run(IDS)
            model.zero_grad()
            loss.backward()
            found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            first = (loss, found) if run is compiled else first
        assert_close(*(first[0], loss))
        for one, other in zip(first[1], found, strict=True):
            assert_close(one, other)
    torch._dynamo.reset()
    order = model.exit_inputs(2)
    compiled = torch.compile(lambda x: model.net(x, **order), fullgraph=True, backend='aot_eager')
    assert_close(compiled(IDS), model.net(IDS, **order))


def test_bfloat16():
    model = built(exit_classifier='geometric').to(torch.bfloat16)
    loss = model(IDS)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in model.parameters())
    assert model.generate(IDS, 3, exit='confidence', exit_threshold=0.2).shape == (2, 3)
    for stack in ({}, dict(pre_norm=False)):
        model = built(stack, exit_train='mixed', exit_classifier='multinomial', exit_heads='per_layer').float()
        with torch.autocast('cpu', torch.bfloat16):
            model(IDS).backward()
            assert model.generate(ids_of(6, 3), 5, exit='confidence', exit_threshold=0.25).shape == (6, 5)
        assert all(p.grad.isfinite().all() for p in model.parameters())


# thresholds


def test_p_values():
    for n, delta in ((30, 0.1), (100, 0.05), (500, 0.2)):
        for risk in (0.0, 0.01, delta / 2, delta, 0.9):
            plain = math.exp(-2 * n * max(0, delta - risk) ** 2)
            assert exit_p_value(risk, n, delta) == pytest.approx(plain)
            below = sum(math.comb(n, k) * delta**k * (1 - delta) ** (n - k) for k in range(math.ceil(n * risk) + 1))
            a, b = min(risk, delta), delta
            kl = (a * math.log(a / b) if a else 0) + (1 - a) * math.log((1 - a) / (1 - b))
            tight = min(math.exp(-n * kl), math.e * below, 1)
            assert exit_p_value(risk, n, delta, 'hoeffding_bentkus') == pytest.approx(tight)
            assert tight <= plain + 1e-12


def test_tests_stop_at_the_first_failure():
    risks, asked = [0.0, 0.01, 0.5, 0.0, 0.0], []
    found = learn_then_test((asked.append(r) or r for r in risks), 500, delta=0.1, eps=0.05)
    assert found == 1 and asked == [0.0, 0.01, 0.5]  # those behind are not even tried
    assert learn_then_test([0.5], 500, delta=0.1, eps=0.05) is None
    assert learn_then_test([0.0] * 3, 500, delta=0.1, eps=0.05) == 2
    assert learn_then_test([0.0], 100, delta=0.1, eps=0.05) is None  # e^-2 > 0.05: too few examples for so small a risk


@pytest.mark.parametrize('bound', ['hoeffding', 'hoeffding_bentkus'])
def test_the_risk_is_bounded(bound):
    """In 1,000 calibrations the true risk of the answer exceeds delta about as often as was allowed, or less.

    The risks are those of coins, the worst case of losses in 0 .. 1; that of one threshold lies just above delta.
    """
    delta, eps, n = 0.1, 0.1, 300
    truth = torch.tensor([0.0, 0.01, 0.03, 0.06, 0.1001, 0.14, 0.05, 0.2])  # not monotone
    torch.manual_seed(0)
    wrong, found = 0, []
    for _ in range(1000):
        risks = torch.bernoulli(truth.expand(n, -1)).mean(0).tolist()
        at = learn_then_test(risks, n, delta=delta, eps=eps, bound=bound)
        found.append(-1 if at is None else at)
        wrong += at is not None and bool(truth[at] > delta)
    assert wrong / 1000 <= eps + 3 * math.sqrt(eps * (1 - eps) / 1000)
    assert max(found) >= 3 and sum(found) / 1000 > 1.5  # and is of use
    if bound == 'hoeffding_bentkus':
        assert wrong > 0  # the bound is close


def test_distances():
    t = torch.tensor
    assert token_f1_distance(t([1, 2, 3]), t([3, 2, 1])) == 0 and token_f1_distance(t([1, 1]), t([2])) == 1
    assert token_f1_distance(t([1, 1, 2]), t([1, 3])) == pytest.approx(1 - 2 / 5)
    assert token_f1_distance(t([]), t([])) == 0


@pytest.mark.costly
def test_calibration():
    """The answer is the last threshold of which the tests, done by hand, are sure."""
    model = built()
    prompts, lambdas = ids_of(40, 4, seed=3), [1.0, 0.6, 0.4, 0.2, 0.0]
    options = dict(delta=0.35, eps=0.1, lambdas=lambdas)
    full = model.generate(prompts, 5, temperature=0.0)
    risks = []
    for threshold in lambdas:
        early = model.generate(prompts, 5, temperature=0.0, exit='confidence', exit_threshold=threshold)
        risks.append(sum(token_f1_distance(a, b) for a, b in zip(early, full, strict=True)) / 40)
    sure = [exit_p_value(risk, 40, 0.35) <= 0.1 for risk in risks]
    assert sure[0] and not all(sure) and risks[0] == 0
    found = calibrate_exit(model, prompts, 5, **options)
    assert found == lambdas[sure.index(False) - 1]
    # losses of a reference: texts of all blocks are it, so that the excess is the distance to them
    assert calibrate_exit(model, [*prompts], 5, consistency='risk', references=[*full], **options) == found
    assert calibrate_exit(model, prompts, 5, distance_fn=lambda a, b: 1.0, **options) == 1.0
    assert calibrate_exit(model, prompts, 5, distance_fn=lambda a, b: 0.0, **options) == 0.0
    # of others: what is further from them than the texts of all blocks are; what is nearer makes up for nothing
    others, excess = ids_of(40, 5, seed=8), []
    for threshold in lambdas:
        early = model.generate(prompts, 5, temperature=0.0, exit='confidence', exit_threshold=threshold)
        pairs = ([token_f1_distance(row, other) for row, other in zip(t, others, strict=True)] for t in (early, full))
        excess.append(sum(max(0, a - b) for a, b in zip(*pairs, strict=True)) / 40)
    for delta in (0.22, 0.25, 0.3):
        sure = [exit_p_value(risk, 40, delta) <= 0.1 for risk in excess]
        wanted = lambdas[(sure.index(False) if False in sure else len(sure)) - 1] if sure[0] else 1.0
        answer = calibrate_exit(
            model, prompts, 5, consistency='risk', references=[*others], **{**options, 'delta': delta}
        )
        assert answer == wanted
    eos = int(full[0, 1])
    seen = []
    calibrate_exit(model, prompts, 5, eos_token=eos, distance_fn=lambda a, b: seen.append((a, b)) or 1.0, **options)
    assert all(eos not in text[:-1].tolist() for pair in seen for text in pair)


def test_few_prompts_are_warned_of(logged):
    assert calibrate_exit(built(), IDS, 2) == 1.0  # two examples show nothing
    assert any('`prompts` got 2: with fewer than 30' in message for message in logged)


def test_a_grid_search():
    model = built()
    loader = [IDS, dict(x=ids_of(3, N, seed=5), lens=torch.tensor([7, 4, 6]))]
    grid = [0.0, 0.2, 0.4, 0.7, 0.9]
    scores = {}
    for threshold in (*grid, 1.0):
        right = depths = count = 0
        for x, lens in ((IDS, [7, 7]), (loader[1]['x'], [7, 4, 6])):
            logits, depth = by_hand(model, x, rule_by_hand(model, 'confidence', threshold))
            for row, length in enumerate(lens):
                right += int((logits[row, : length - 1].argmax(-1) == x[row, 1:length]).sum())
                depths, count = depths + int(depth[row, : length - 1].sum()), count + length - 1
        scores[threshold] = (right / count, depths / count)
    for tolerance in (0.0, 0.05, 1.0):
        good = [t for t in grid if scores[t][0] >= scores[1.0][0] - tolerance - 1e-9]
        wanted = min(good, key=lambda t: (scores[t][1], -t)) if good else 1.0
        assert grid_search_exit(model, loader, grid, tolerance=tolerance) == wanted


# what it learns


@functools.cache
def taught_to_leave(seed):
    """T-hard with one look-up or two: prompts, answers and how many look-ups, of a model that has learned."""
    torch.manual_seed(seed)
    task = toy_tasks.hard(most=2, values=5)
    stack = Decoder(dim=48, depth=BLOCKS, heads=4, attn_dim_head=12, ff_mult=2)
    net = TransformerWrapper(num_tokens=task.tokens, max_seq_len=task.n + 1, attn_layers=stack)
    options = dict(exit_classifier='geometric', exit_penalty=0.03, layer_loss_weights='linear')
    model = EarlyExitWrapper(net, **options)

    def drawn(b):
        x, y = task.draw(b)
        return x, 2 + y[:, -1], x[:, 0]

    def loss():
        x, answer, _ = drawn(128)
        row = torch.cat((x, answer[:, None]), dim=1)
        return model(row, labels=row.index_fill(1, torch.arange(row.shape[1] - 1), -100))

    return toy_tasks.taught(model, loss, 500), drawn


@pytest.mark.slow
@toy_tasks.SEEDS
def test_easy_tokens_leave_early(seed):
    model, drawn = taught_to_leave(seed)
    prompts, answers, often = drawn(2000)
    full = model.generate(prompts, 1, temperature=0.0)[:, 0]
    options = dict(temperature=0.0, exit='classifier', exit_threshold=0.5, return_stats=True)
    made, stats = model.generate(prompts, 1, **options)
    easy, deep = (stats.depths[often == k].double().mean() for k in (0, 1))
    right = [(tokens == answers).double().mean() for tokens in (made[:, 0], full)]
    assert easy + 0.5 < deep and right[0] > right[1] - 0.01 and right[1] > 0.85, (easy, deep, right)


@pytest.mark.slow
@toy_tasks.SEEDS
def test_a_calibrated_threshold_saves_layers(seed):
    model, drawn = taught_to_leave(seed)
    prompts, _, _ = drawn(1500)
    threshold = calibrate_exit(model, prompts, 1, delta=0.05, eps=0.05)
    fresh, _, _ = drawn(4000)
    made, stats = model.generate(
        fresh, 1, temperature=0.0, exit='confidence', exit_threshold=threshold, return_stats=True
    )
    risk = (made != model.generate(fresh, 1, temperature=0.0)).double().mean()
    assert stats.saving >= 1.3 and risk <= 0.05 and threshold < 1, (threshold, stats.mean_depth, risk)


# refusals


@pytest.mark.parametrize(
    ('stack', 'net', 'options', 'words'),
    [
        (dict(depth=1), {}, {}, '`net` must have at least 2 blocks.*got 1'),
        (dict(unet_skips=True, depth=4), {}, {}, 'early exits cannot be combined with `unet_skips`: it changes'),
        (dict(num_residual_streams=2), {}, {}, 'early exits cannot be combined with `num_residual_streams`'),
        (dict(shift_tokens=1), {}, {}, 'early exits cannot be combined with `shift_tokens`: each branch'),
        (dict(checkpoint_layers=True), {}, {}, 'early exits cannot be combined with `checkpoint_layers`: both say'),
        (dict(attn_selective=True), {}, {}, 'early exits cannot be combined with `attn_selective`'),
        (dict(custom_layers=('a', 'f', 'a')), {}, {}, '`net` must have a stack of equal blocks'),
        ({}, dict(recycling=True), {}, '`net` runs its stack several times'),
        ({}, dict(num_output_heads=2), {}, 'early exits cannot be combined with `num_output_heads`'),
        ({}, dict(mixture_of_softmax=True), dict(exit_heads='per_layer'), 'combined with `mixture_of_softmax`'),
        ({}, dict(num_memory_tokens=2, memory_tokens_interspersed_every=2), {}, 'memory_tokens_interspersed_every'),
        ({}, {}, dict(exit_classifier='sequence'), "`exit_classifier='sequence'` needs `cross_attend`"),
        ({}, {}, dict(layer_loss_weights=(1, 2)), 'must have 3 numbers, one per block, got 2'),
        ({}, {}, dict(layer_loss_weights=(1, -1, 1)), '`layer_loss_weights` must be'),
        ({}, {}, dict(exit_heads='own'), '`exit_heads` must be'),
        ({}, {}, dict(exit_rbf_sigma=0.0), '`exit_rbf_sigma` must be'),
    ],
)  # fmt: skip
def test_refused_at_construction(stack, net, options, words):
    with pytest.raises(ConfigError, match=words):
        built(stack, net, **options)


def test_documents_are_read_apart():
    model, documents = built(), torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]])
    out = model.net(IDS, exits=ByDepth(DEPTHS), document_ids=documents)
    for row, start, stop in ((0, 0, 3), (0, 3, 7), (1, 0, 5), (1, 5, 7)):
        part = (slice(row, row + 1), slice(start, stop))
        assert_close(out[part], model.net(IDS[part], exits=ByDepth(DEPTHS[part])))


def test_values_of_the_first_layer_are_allowed():
    model = built(dict(add_value_residual=True))
    assert_close(model.net(IDS, exits=ByDepth(torch.full_like(DEPTHS, 2))), model.net(IDS, **model.exit_inputs(2)))


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda m: m.generate(IDS, 2, exit=4), r"`exit` must be None, 'classifier', 'confidence', or .*got 4"),
        (lambda m: m.generate(IDS, 2, exit=0), r'`exit` must .*got 0'),
        (lambda m: m.generate(IDS, 2, exit='early'), r"`exit` must .*got 'early'"),
        (lambda m: m.generate(IDS, 2, exit=True), r'`exit` must .*got True'),
        (lambda m: m.generate(IDS, 2, exit='classifier'), "`exit='classifier'` needs an `exit_classifier`"),
        (lambda m: m.generate(IDS, 2, exit='confidence', exit_threshold=1.2), r'`exit_threshold` must be.*got 1.2'),
        (lambda m: m.generate(IDS, 2, exit='confidence', exit_threshold=[0.5]), '`exit_threshold` must '),
        (lambda m: m.generate(IDS, 2, exit=2, exit_decay_tau=4.0), "`exit_decay_tau` needs `exit='confidence'`"),
        (lambda m: m.generate(IDS, 2, exit='confidence', exit_decay_tau=-1), r'`exit_decay_tau` must .*got -1'),
        (lambda m: m.generate(IDS, 20, exit='confidence', exit_decay_tau=4), '`exit_decay_tau` counts tokens'),
        (lambda m: m.generate(IDS, 2, exit='confidence', compile=True), '`compile` cannot be combined with'),
        (lambda m: m.generate(IDS, 2, exit=2, amateur_model=m.net), '`amateur_model` cannot be combined with `exit`'),
        (lambda m: m.speculative(IDS, 2, 3), r'`draft` must be .* from 1 to 2, got 3'),
        (lambda m: m.speculative(IDS, 2, 'small'), r"`draft` must .*got 'small'"),
        (lambda m: m.speculative(IDS, 2, 2, exit=1), "`exit` needs `draft='exit'`"),
        (lambda m: m(IDS, exits=ByDepth(DEPTHS)), '`exits` cannot be given to the loss'),
        (lambda m: m(IDS, mems=[IDS]), '`mems` cannot be given to the loss'),
        (lambda m: m.confidence_loss(IDS), "`confidence_loss` needs `exit_confidence='classifier'`"),
        (lambda m: calibrate_exit(m, IDS, 2, lambdas=[0.5, 0.5]), '`lambdas` must '),
        (lambda m: calibrate_exit(m, IDS, 2, lambdas=[2.0, 0.5]), '`lambdas` must '),
        (lambda m: calibrate_exit(m, IDS, 2, delta=0.0), r'`delta` must .*got 0.0'),
        (lambda m: calibrate_exit(m, IDS, 2, consistency='risk'), '`references` are for'),
        (lambda m: calibrate_exit(m, IDS, 2, references=[IDS]), '`references` are for'),
        (lambda m: calibrate_exit(m, IDS, 2, distance_fn=lambda a, b: 1.5), r'`distance_fn` must .*got 1.5'),
        (lambda m: calibrate_exit(m, IDS, 2, bound='exact'), r"`bound` must .*got 'exact'"),
        (lambda m: grid_search_exit(m, [IDS], [1.5]), '`thresholds` must '),
        (lambda m: grid_search_exit(m, [IDS], []), '`thresholds` must '),
        (lambda m: grid_search_exit(m, [], [0.5]), '`loader` gave no targets'),
        (lambda m: m.net(IDS, exits=ByDepth(DEPTHS), mems=[torch.zeros(2, 2, DIM).double()] * 3), 'with `mems`'),
        (lambda m: m.net(IDS, exits=ByDepth(DEPTHS), layers_execute_order=(0, 1, 2)), 'ends inside of a block'),
    ],
)  # fmt: skip
def test_refused_in_a_call(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(built())

"""Where a reference implementation of losses and generation goes wrong: one case per number, showing what is right.

G next tokens, N masked tokens, X segments, D preferences, B the newer models. Where an oddity is kept, so that
checkpoints and numbers agree with it, the case says why.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from defects import IDS, LONGEST, TOKENS, Known, loss_of, model, refused, without
from oracles import assert_close, randn, randomised
from torch import nn

from x_transformers import (
    AutoregressiveWrapper,
    Encoder,
    NonAutoregressiveWrapper,
    XLAutoregressiveWrapper,
)

known = Known()
PREFIX = randn(2, 3, 16)
ROTARY = dict(stack=dict(rotary_pos_emb=True))


def greedy(net, prompts, steps, **inputs):
    return AutoregressiveWrapper(net).generate(prompts, steps, temperature=0.0, **inputs)


def by_hand(net, prompts, steps, **inputs):
    """The most probable tokens, the last `LONGEST` read anew for each."""
    tokens = prompts
    for _ in range(steps):
        tokens = torch.cat((tokens, net(tokens[:, -LONGEST:], **inputs)[:, -1:].argmax(dim=-1)), dim=1)
    return tokens[:, prompts.shape[1] :]


# 7.2 loss and generation


@known('G1')
def an_end_in_the_prompt_ends_nothing():
    net = model(scale=1.0)
    with torch.no_grad():  # never the most probable token
        net.to_logits.weight[10] = net.to_logits.weight[9] / 2
    prompts = IDS.clone()
    prompts[0, 2] = 10
    out = greedy(net, prompts, 5, eos_token=10)
    assert out.shape == (2, 5) and 10 not in out
    assert torch.equal(out, by_hand(net, prompts, 5))


@known('G2')
def nothing_can_be_asked_for():
    assert greedy(model(), IDS, 0, eos_token=1).shape == (2, 0)


@known('G3')
def a_model_without_a_cache_slides_its_window():
    for flags in (dict(num_memory_tokens=2), dict(recycling=True, train_max_recycle_steps=2)):
        net = model(scale=1.0, **flags)
        inputs = dict(recycle_steps=2) if net.recycling else {}
        assert torch.equal(greedy(net, IDS, 8, **inputs), by_hand(net, IDS, 8, **inputs))


@known('G4')
def padding_leaves_the_window_first():
    net, lens = model(scale=1.0, max_seq_len=6, **ROTARY), torch.tensor([2, 4])
    out = greedy(net, IDS[:, :4], 6, prompt_lens=lens, cache_kv=False)
    for row, length, found in zip(IDS, lens, out, strict=True):
        assert torch.equal(found, greedy(net, row[:length], 6, cache_kv=False))


@known('G5')
def prompts_of_unequal_length_see_what_is_prepended():
    for places in ({}, ROTARY):
        net, lens = model(scale=1.0, **places), torch.tensor([2, 4])
        out = greedy(net, IDS[:, :4], 6, prompt_lens=lens, prepend_embeds=PREFIX)
        for row, (length, found) in enumerate(zip(lens, out, strict=True)):
            alone = by_hand(net, IDS[row : row + 1, :length], 6, prepend_embeds=PREFIX[row : row + 1])
            assert torch.equal(found, alone[0])


@known('G6')
def a_model_without_a_longest_sequence_forgets_nothing():
    net = model(scale=1.0, max_seq_len=0)
    assert torch.equal(greedy(net, IDS, 5), by_hand(net, IDS, 5))


@known('G7')
def what_is_prepended_stays_in_the_window():
    net = model(scale=1.0, max_seq_len=4, stack=dict(rotary_pos_emb=True, depth=1))
    cached, read_anew = (greedy(net, IDS, 6, prepend_embeds=PREFIX, cache_kv=cache) for cache in (True, False))
    assert torch.equal(cached, read_anew)


@known('G8')
def forgetting_leaves_what_stands_in_front():
    front = (({}, dict(prepend_embeds=PREFIX)), (dict(num_memory_tokens=2), {}), ({}, dict(mems=[randn(2, 3, 16)] * 2)))
    for flags, inputs in front:
        net = model(**flags)
        plain = AutoregressiveWrapper(net)(IDS, **inputs)
        # of 7 tokens, 0.1 is none and 0.9 is all but the first
        assert_close(AutoregressiveWrapper(net, mask_prob=0.1)(IDS, **inputs), plain)
        seen = torch.arange(7).expand(2, -1) == 0
        hidden = loss_of(net(IDS, self_attn_kv_mask=seen, **inputs)[:, -7:], IDS)
        assert_close(AutoregressiveWrapper(net, mask_prob=0.9)(IDS, **inputs), hidden)


@known('G11')
def several_heads_learn_alike():
    net = model(num_output_heads=2)
    assert_close(AutoregressiveWrapper(net)(IDS), sum(loss_of(logits, IDS) for logits in net(IDS)) / 2)


@known('G12')
def beams_keep_what_belongs_to_their_row():
    net = model(scale=1.0, stack=dict(cross_attend=True))
    context, prompts = randn(2, 5, 16, seed=3), IDS[:, :3]
    for inputs in (dict(context=context), dict(context=context, prepend_embeds=PREFIX)):
        found = AutoregressiveWrapper(net).beam_search(prompts, 5, beams=3, **inputs)
        for row in range(2):
            own = {name: t[row : row + 1] for name, t in inputs.items()}
            alone = AutoregressiveWrapper(net).beam_search(prompts[row : row + 1], 5, beams=3, **own)
            assert torch.equal(found[row], alone[0])


@known('G13')
def beams_of_one_prompt_have_no_batch():
    wrapper = AutoregressiveWrapper(model())
    tokens, scores = wrapper.beam_search(IDS[0], 4, beams=3, return_beams_and_scores=True)
    batched = wrapper.beam_search(IDS[:1], 4, beams=3, return_beams_and_scores=True)
    assert tokens.shape == (3, 4) and torch.equal(tokens, batched[0][:, 0])
    assert_close(scores, batched[1][:, 0])


@known('G15')
def every_module_keeps_its_training_flag():
    wrapper, amateur = AutoregressiveWrapper(model()).train(), AutoregressiveWrapper(model()).train()
    wrapper.net.token_emb.eval()

    def check():
        assert wrapper.training and wrapper.net.training and amateur.net.training
        assert not wrapper.net.token_emb.training

    wrapper.generate(IDS, 2, amateur_model=amateur)
    check()

    def fails(logits):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        wrapper.generate(IDS, 2, filter_logits_fn=fails)
    check()


@known('G16')
def amateurs_share_a_contrast():
    wrapper, amateurs = AutoregressiveWrapper(model(scale=1.0)), (model(scale=0.1), model(max_seq_len=0))
    out = wrapper.generate(IDS, 5, temperature=0.0, amateur_model=amateurs)
    each = (dict(alpha=0.1, beta=0.5),) * 2
    options = dict(amateur_model=amateurs, contrastive_decode_kwargs=each)
    assert torch.equal(out, wrapper.generate(IDS, 5, temperature=0.0, **options))


@known('G17')
def a_loss_needs_a_causal_model_with_a_head():
    refused(lambda: AutoregressiveWrapper(model(Encoder)), 'causal')
    for flag in ('return_only_embed', 'average_pool_embed', 'use_cls_token'):
        refused(lambda flag=flag: AutoregressiveWrapper(model(**{flag: True})), flag)


@known('G18')
def a_model_that_recycles_does_so_without_being_asked():
    net = model(scale=1.0, recycling=True, train_max_recycle_steps=3)
    wrapper = AutoregressiveWrapper(net)
    assert_close(wrapper(IDS), wrapper(IDS, recycle_steps=3))
    assert torch.equal(greedy(net, IDS, 4), by_hand(net, IDS, 4, recycle_steps=3))


# 7.3 masked tokens


@known('N1')
def the_weight_of_the_loss_is_positive():
    net, times = model(Encoder, max_seq_len=7), []
    with torch.no_grad():
        net.to_logits.weight.zero_()  # every guess costs the same

    def linear(t):
        times.append(t)
        return 1 - t

    for _ in range(5):
        times.clear()
        loss = NonAutoregressiveWrapper(net, mask_id=0, schedule=linear)(IDS[:1]).loss
        hidden = 1 - times[0].double().item()
        assert_close(loss, torch.tensor(math.log(TOKENS) / max(hidden, 1 / 7)).double(), tolerance=1e-5)


class Shown(nn.Module):
    """A function of ids as a model of masked tokens, which keeps what it is shown."""

    def __init__(self, function, num_tokens, longest):
        super().__init__()
        self.function, self.shown = function, []
        self.num_tokens, self.max_seq_len, self.emb_dim, self.dim = num_tokens, longest, 1, 1
        self.output_is_log_prob = False
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, ids, return_logits_and_embeddings=False, **_):
        self.shown.append(ids)
        out = self.function(ids) * self.weight
        return (out, ids[..., None].float()) if return_logits_and_embeddings else out


@known('N2')
def a_critic_learns_about_what_it_sees():
    critic = Shown(lambda ids: torch.where(ids == 3, -20.0, 20.0)[..., None].double(), TOKENS, 7)
    wrapper = NonAutoregressiveWrapper(model(Encoder, max_seq_len=7), mask_id=0, token_critic=critic)
    assert wrapper(torch.full((4, 7), 3)).critic_loss < 1e-6
    assert (critic.shown[0] != 3).any()


@known('N3')
def embeddings_of_another_width_can_be_fed_back():
    wrapper = randomised(NonAutoregressiveWrapper(model(Encoder, emb_dim=10), mask_id=0, steps=3, self_cond=True))
    assert wrapper.generate(2).shape == (2, LONGEST)
    assert wrapper(torch.ones(2, LONGEST, dtype=torch.long)).loss.isfinite()


@known('N4')
def no_other_token_is_that_of_hidden_ones():
    net = Shown(lambda ids: torch.zeros(*ids.shape, 2), 2, 8)
    always = dict(no_replace_prob=0.0, random_token_prob=1.0, schedule=lambda t: 1 - 0 * t)
    wrapper = NonAutoregressiveWrapper(net, mask_id=1, use_simple_mdlm_loss_weight=False, **always)
    for _ in range(30):
        wrapper(torch.zeros(1, 8, dtype=torch.long))
    # of two tokens one is left, so that all are hidden, or none
    assert {ids.sum().item() for ids in net.shown} == {0, 8}


@known('N5')
def the_confidence_is_that_of_the_model():
    # kept: the order of filling in does not depend on the temperature, at which all might be equally certain
    certain = torch.tensor([4.0, 1.0, 3.0, 2.0])
    net = Shown(lambda ids: F.pad(certain[:, None], (0, 4)).expand(len(ids), -1, -1), 5, 4)
    for temperature in (0.0, 1e-2):
        net.shown.clear()
        NonAutoregressiveWrapper(net, mask_id=4, steps=2).generate(1, temperature, filter_thres=None)
        assert (net.shown[1] == 4).tolist() == [[False, True, False, True]]


# 7.4 segments

SEGMENTS = dict(max_seq_len=4, max_mem_len=8, scale=1.0)


def by_segments(net, tokens, steps):
    """The most probable tokens; memories hold the segments before the one that is read."""
    known = tokens.shape[1]
    for _ in range(steps):
        mems, *segments, last = None, *tokens.split(4, dim=1)
        for segment in segments:
            _, mems = net(segment, mems=mems, return_mems=True)
        tokens = torch.cat((tokens, net(last, mems=mems)[:, -1:].argmax(dim=-1)), dim=1)
    return tokens[:, known:]


@known('X1')
def a_segment_does_not_remember_itself():
    net = model(**SEGMENTS)
    for count in (1, 3, 4, 6):
        found = XLAutoregressiveWrapper(net).generate(IDS[:, :count], 8, temperature=0.0)
        assert torch.equal(found, by_segments(net, IDS[:, :count], 8))


@known('X2')
def padding_follows_the_end():
    net = model(scale=1.0)
    wrapper, whole = XLAutoregressiveWrapper(net, pad_value=5), by_hand(net, IDS[:, :3], 8)
    for end in set(whole.flatten().tolist()):
        found = wrapper.generate(IDS[:, :3], 8, eos_token=end, temperature=0.0)
        ended = (whole == end).cumsum(dim=-1) - (whole == end).int() > 0
        assert torch.equal(F.pad(found, (0, 8 - found.shape[1]), value=5), whole.masked_fill(ended, 5))


@known('X3')
def what_is_no_target_may_stand_in_the_input():
    net, x = model(), without(IDS, 2, 3)
    assert_close(XLAutoregressiveWrapper(net, pad_value=5)(x), loss_of(net(x.masked_fill(x == -100, 5)), x))


@known('X4')
def what_is_learned_from_is_not_remembered_too():
    learning = dict(tbptt_steps=2, ttt_module_paths=('to_logits',), ttt_lr=1e-12, ttt_wd=0.0)  # hardly at all
    for count in (3, 6):
        found = XLAutoregressiveWrapper(model(**SEGMENTS), **learning).generate(IDS[:, :count], 6, temperature=0.0)
        assert torch.equal(found, by_segments(model(**SEGMENTS), IDS[:, :count], 6))


@known('X5')
def every_target_counts_alike():
    net, x = model(), without(IDS, 6)
    assert_close(XLAutoregressiveWrapper(net)(x), loss_of(net(x.clamp(min=0)), x))


# 7.6 preferences

# 7.7 the newer models


@pytest.mark.parametrize('number', known)
def test_known_defect_of_training(number):
    known[number]()


# Held by laws (`law_cases.py` has their rows) and by tests of the feature.
ELSEWHERE = 'B1 B2 B3 B4 B5 B6 B7 B8 B9 B10 B11 B12 B13 B14 D1 D2 D3 G9 G10 G14'.split()


def test_no_number_is_missing():
    last = {'G': 18, 'N': 5, 'X': 5, 'D': 3, 'B': 14}
    assert {*known, *ELSEWHERE} == {
        f'{letter}{number}' for letter, count in last.items() for number in range(1, count + 1)
    }

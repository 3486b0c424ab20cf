"""Where a reference implementation of losses and generation goes wrong: one case per number, showing what is right.

G next tokens, N masked tokens, X segments, D preferences, B the newer models. Where an oddity is kept, so that
checkpoints and numbers agree with it, the case says why.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from defects import IDS, LONGEST, TOKENS, Known, loss_of, model, refused, twin, without
from oracles import assert_close, randn, randomised
from torch import nn

from x_transformers import (
    DPO,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    Encoder,
    EntropyBasedTokenizer,
    NextLatentWrapper,
    NonAutoregressiveWrapper,
    XLAutoregressiveWrapper,
)
from x_transformers.autoregressive_wrapper import top_k

known = Known()
PREFIX = randn(2, 3, 16)
LOOP = dict(stack=dict(pre_and_post_norm=True), looped=True)
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


@known('G9')
def embeddings_are_foretold_behind_a_prefix_and_in_their_width():
    for width in (16, 10):
        for inputs in ({}, dict(prepend_embeds=randn(2, 3, width))):
            net, x = model(add_continuous_pred_head=True, emb_dim=width), without(IDS, 5, 6)
            logits, (foretold, embeds) = net(x.clamp(min=0), return_next_embed_pred=True, **inputs)
            missed = (foretold[:, -7:-1] - embeds[:, -6:]).abs()[x[:, 1:] != -100].mean()
            wanted = loss_of(logits[:, -7:], x) + 0.1 * missed
            assert_close(AutoregressiveWrapper(net)(x, **inputs), wanted)


@known('G10')
def a_looped_model_learns_behind_a_prefix():
    net = model(max_looped_steps=1, **LOOP)
    wanted = loss_of(net(IDS, prepend_embeds=PREFIX)[:, 3:], IDS)
    assert_close(AutoregressiveWrapper(net)(IDS, prepend_embeds=PREFIX), wanted)
    assert AutoregressiveWrapper(model(max_looped_steps=3, **LOOP))(IDS, prepend_embeds=PREFIX).isfinite()


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


@known('G14')
def without_a_target_the_loss_is_zero():
    net = model()
    loss = AutoregressiveWrapper(net)(torch.full((2, 7), -100))
    loss.backward()
    assert loss == 0 and not any(p.grad is not None and p.grad.any() for p in net.parameters())


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

REAL = torch.arange(7) < torch.tensor([[5], [7]])
PROMPT = (torch.arange(7) < 3).expand(2, -1)
OTHER = torch.where(PROMPT, IDS, (IDS + 4) % TOKENS)


def preferring(**options):
    """A model that has left its copy."""
    trained = DPO(model(), **options).double().eval()
    with torch.no_grad():
        for number, p in enumerate(trained.policy_model.parameters()):
            p += randn(*p.shape, seed=number) / 5
    return trained


def preference(trained, pool):
    """The loss, answer by answer, each without its padding."""
    losses = []
    for row, length in enumerate((5, 7)):
        gain = 0.0
        for ids, sign in ((IDS, 1), (OTHER, -1)):
            ids = ids[row : row + 1, :length]
            for net, side in ((trained.policy_model, 1), (trained.ref_model, -1)):
                log_probs = net(ids)[0, 2:-1].log_softmax(dim=-1)
                gain += sign * side * pool(log_probs.gather(-1, ids[0, 3:, None]))
        losses.append(-F.logsigmoid(0.1 * gain))
    return sum(losses) / 2


MASKS = dict(prompt_mask=PROMPT, preferred_seq_mask=REAL, unpreferred_seq_mask=REAL)


@known('D1')
def the_whole_answer_counts_and_nothing_else():
    trained = preferring()
    assert_close(trained(IDS, OTHER, **MASKS), preference(trained, torch.mean))


@known('D2')
def answers_may_be_summed():
    # kept: the mean over an answer is the default, which long answers do not outweigh
    trained = preferring(sum_log_probs=True)
    assert_close(trained(IDS, OTHER, **MASKS), preference(trained, torch.sum))


@known('D3')
def what_is_trained_is_the_model():
    trained = DPO(model())
    for given in ({}, dict(recurse=True)):
        assert [*map(id, trained.parameters(**given))] == [*map(id, trained.policy_model.parameters())]
    assert not list(trained.parameters(recurse=False))
    # kept: the copy is stored, since training could not go on without it
    assert {name.split('.')[0] for name in trained.state_dict()} == {'policy_model', 'ref_model'}


# 7.7 the newer models


def belief(**options):
    return randomised(BeliefStateWrapper(model(), **options))


@known('B1')
def weights_of_pairs_are_applied():
    net = belief()
    assert net(IDS, loss_weight_by_fb_indices=lambda pairs: torch.zeros(len(pairs))) == 0
    assert_close(net(IDS, loss_weight_by_fb_indices=lambda pairs: torch.full((len(pairs),), 2.0)), 2 * net(IDS))


@known('B2')
def the_distance_that_is_told_reaches_the_head():
    net = belief(cond_on_distance=True, cond_on_distance_prob=1 - 1e-9).float().train()
    net(IDS).backward()
    assert all(p.grad is not None and p.grad.any() for p in net.to_distance_cond.parameters())


@known('B3')
def the_first_token_backwards_is_flipped_too():
    net = belief()
    assert_close(net(IDS, lens=torch.tensor([7, 7])), net(IDS))
    short = net(IDS, lens=torch.tensor([4, 4]))
    assert_close(short, net(IDS[:, :4]))


@known('B4')
def latents_can_be_made_normal():
    net = randomised(NextLatentWrapper(model(), dim=16, sigreg_loss_weight=0.5))
    loss, parts = net(IDS, return_loss_breakdown=True)
    assert parts.sigreg > 0
    assert_close(loss, parts.ce + parts.next_latent + parts.kl + parts.sigreg / 2)


@known('B5')
def latents_go_with_tied_embeddings():
    net = randomised(NextLatentWrapper(model(tie_embedding=True), dim=16))
    plain = twin(net, NextLatentWrapper(model(), dim=16).double())
    with torch.no_grad():
        plain.net.to_logits.weight.copy_(net.net.token_emb.emb.weight / 4)
    for ours, theirs in zip(*(m(IDS, return_loss_breakdown=True)[1] for m in (net, plain)), strict=True):
        assert_close(ours, theirs)

    from x_transformers.gpt_lejepa import LatentAutoregressive

    assert LatentAutoregressive(model(tie_embedding=True), dim=16).double()(IDS).isfinite()


NARROW = dict(num_tokens=TOKENS, dim=16, max_seq_len=LONGEST, heads=2, attn_dim_head=8)


def free(**options):
    from x_transformers.free_transformer import FreeTransformer

    options = {'dec_head_depth': 1, 'dec_tail_depth': 1, 'latent_bits': 2, **options}
    return randomised(FreeTransformer(**NARROW, **options))


def variational(**options):
    from x_transformers.gpt_vae import GPTVAE

    return randomised(GPTVAE(**NARROW, depth=1, enc_depth=1, **options))


@known('B6')
def padding_is_no_token():
    little, much = (F.pad(IDS[:, :5], (0, count), value=-1) for count in (1, 4))
    for net, name in ((free(), 'from_latent_to_condition'), (variational(), 'from_latent_to_prepend_token.0')):
        net.float()
        with torch.no_grad():
            net.get_submodule(name).weight.zero_()  # what is drawn does not matter
        assert_close(net(little), net(much), tolerance=1e-5)


def autoencoder(**options):
    from x_transformers.continuous_autoencoder import ContinuousTransformerAutoencoder

    sizes = {**NARROW, 'enc_depth': 1, 'dec_depth': 1, 'dim_input': 3, **options}
    return randomised(ContinuousTransformerAutoencoder(**{n: v for n, v in sizes.items() if n != 'num_tokens'}))


@known('B7')
def what_is_decoded_is_not_seen():
    net, x = autoencoder(), randn(2, 6, 3)
    with torch.no_grad():
        net.from_latent_to_prepend_token[0].weight.zero_()  # the latent would tell
    grown = [torch.cat((x[:, :-1], count * x[:, -1:]), dim=1) for count in range(4)]
    zeroth, first, second, third = (net(one, return_unreduced_loss=True) for one in grown)
    # squared errors of a constant guess are a parabola
    assert_close(third - 3 * second + 3 * first, zeroth)


@known('B8')
def a_dropped_latent_is_not_seen():
    net, x = autoencoder(latents_dropout_prob=1 - 1e-9).train(), randn(2, 6, 3)
    before = net(x)
    with torch.no_grad():
        net.from_latent_to_prepend_token[0].bias += randn(16)
    assert_close(net(x), before)


@known('B9')
def tokens_stay_where_they_are_without_a_latent():
    net = variational(latents_dropout_prob=1 - 1e-9).train()
    loss = net(IDS, return_all_losses=True)[1][0]
    assert_close(loss, AutoregressiveWrapper(net.decoder)(IDS))


def pretrainer(**options):
    from x_transformers.up_wrapper import SyntheticDataGenerator, UniversalPretrainWrapper

    made = SyntheticDataGenerator(8, TOKENS, max_seq_len=LONGEST)
    sizes = dict(buffer_size=8, num_reset=2, batch_size=4, seq_len=LONGEST, seed_length=2, data_generator=made)
    return UniversalPretrainWrapper(model().float(), **{**sizes, **options})


@known('B10')
def what_was_made_is_kept():
    net = pretrainer()
    before = net.synth_data_buffer.clone()
    net()
    changed = (net.synth_data_buffer != before).any(dim=-1).sum()
    assert 0 < changed <= 4 + 2


@known('B11')
def a_random_network_has_a_width_and_scales_of_its_own():
    from x_transformers.up_wrapper import SyntheticDataGenerator

    assert SyntheticDataGenerator(8, TOKENS, hidden_size=12).generate(5, seed=IDS).shape == (2, 12)
    drawn = []
    for _ in range(20):
        weight = SyntheticDataGenerator(16, TOKENS).net.weight_hh_l0
        drawn.append(weight.std().item() / (3**-0.5 / 4))  # 1, if it were left as it was
    assert min(drawn) < 0.5 and 0.8 < max(drawn) < 1.2


@known('B12')
def candidates_run_in_parts_and_without_a_rule_and_behind_masks():
    from x_transformers.xm_latent_decoder import XMLatentDecoder

    net, latents = model().float(), randn(2, 3, 2, 16).float()  # three candidates of two latents

    def decoder(**options):
        return XMLatentDecoder(net, num_latents=2, candidates=3, **options).eval()

    # a rule of one's own, in parts
    rule = dict(winner_fn=lambda losses, *_: losses.argmax(dim=-1))
    whole, parts = (decoder(**rule, **options)(IDS, latents=latents) for options in ({}, dict(max_batch_size=2)))
    assert_close(parts, whole, tolerance=1e-5)
    assert whole > decoder()(IDS, latents=latents)
    # no rule
    tokens, (found, winners) = decoder().generate_with_candidate_latents(
        IDS, 3, latents=latents, temperature=0.0, return_best_latents=True
    )
    losses = [
        decoder()(IDS[row : row + 1], latents=found[row : row + 1, k : k + 1]) for row in (0, 1) for k in range(3)
    ]
    assert torch.equal(winners, torch.stack(losses).view(2, 3).argmin(dim=-1))
    wanted = decoder().generate(IDS, 3, latents=found[torch.arange(2), winners], temperature=0.0)
    assert torch.equal(tokens, wanted)
    # a mask without latents
    mask = torch.arange(7) < torch.tensor([[4], [7]])
    dropped = decoder(latent_drop_prob=1.0).train()(IDS, mask=mask)
    assert_close(dropped, loss_of(net(IDS), IDS.masked_fill(~mask, -100)), tolerance=1e-5)
    # what is no target
    x = without(IDS, 2, 3)
    prefix = dict(prepend_embeds=latents[:, 0], excise_prepend_embeds=True)
    logits = net(x.clamp(min=0), **prefix)
    rows = sum(loss_of(logits[row : row + 1], x[row : row + 1]) for row in (0, 1)) / 2
    assert_close(decoder()(x, latents=latents[:, :1]), rows, tolerance=1e-5)


@known('B13')
def generation_drops_nothing_and_gives_the_whole_text():
    # kept: the length is that of the text, the prompt included; by default a code has 16 bits, and 65536 numbers
    net = free(ff_dropout=0.5, attn_dropout=0.5)
    certain = dict(filter_logits_fn=top_k, logit_filter_kwargs=dict(k=1))
    wanted = net.generate(IDS[:, :3], 9, **certain)
    assert wanted.shape == (2, 9) and torch.equal(wanted[:, :3], IDS[:, :3])
    for _ in range(3):
        assert torch.equal(net.train().generate(IDS[:, :3], 9, **certain), wanted)
    assert net.training


@known('B14')
def what_is_used_keeps_its_training_flag_and_every_token_counts():
    net = model().train()
    EntropyBasedTokenizer(net, entropy_threshold=1.0)(IDS)
    assert net.training

    from x_transformers.recirculation import Recirculation

    net = Recirculation(model().float(), source_layer=1, destination_layer=0, use_learned=True)
    before = [p.detach().clone() for p in net.learned_mixers.parameters()]
    net.learn_parameters(torch.zeros(4, 6).long(), steps=1)
    moved = [(p - old).abs().max() for p, old in zip(net.learned_mixers.parameters(), before, strict=True)]
    assert all(1e-4 < step < 1e-2 for step in moved)


@pytest.mark.parametrize('number', known)
def test_known_defect_of_training(number):
    known[number]()


def test_no_number_is_missing():
    last = {'G': 18, 'N': 5, 'X': 5, 'D': 3, 'B': 14}
    assert set(known) == {f'{letter}{number}' for letter, count in last.items() for number in range(1, count + 1)}

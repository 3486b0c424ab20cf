"""What every wrapper keeps: it comes back from its configuration and copies, computes in half precision and in one
graph, every parameter learns, rows do not meet, and padding changes nothing. What differs is in a table, with reasons.
"""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from training_laws import (
    DIM,
    VOCAB,
    check_copies,
    check_gradients,
    check_half_precision,
    check_one_graph,
    ids_of,
    net_of,
    seeded,
    shared,
)

from x_transformers import (
    DALLE,
    DPO,
    Attention,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    BertPretrainWrapper,
    ChunkedCrossAttention,
    Classifier,
    ConformerEncoder,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    DecisionTransformer,
    Decoder,
    DMOLHead,
    EarlyExitWrapper,
    Encoder,
    EncoderDecoder,
    FactorizedVideoEncoder,
    FeedForward,
    JointAttention,
    MLMWrapper,
    MultiInputAutoregressiveWrapper,
    MultiInputTransformerWrapper,
    Muse,
    NeoMLP,
    NextLatentWrapper,
    NonAutoregressiveWrapper,
    Parti,
    Perceiver,
    PerceiverIO,
    PermutationLMWrapper,
    PrefixDecoder,
    SimPO,
    SpanCorruption,
    SpeechEncoder,
    T5PretrainWrapper,
    TwoTowers,
    VectorQuantizer,
    VisionLanguageWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
    __path__ as PATH,
    modalities,
    objectives,
)
from x_transformers.continuous_autoencoder import ContinuousTransformerAutoencoder
from x_transformers.discover_wrapper import DiscoverDecoder, TPREncoder
from x_transformers.entropy_based_tokenizer import EntropyBasedTokenizer
from x_transformers.etc import ETCAttention, ETCEncoder, make_etc_inputs
from x_transformers.etc_pretraining import ETCPretrainWrapper
from x_transformers.finetuning import FineTuned
from x_transformers.flags import Configurable
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import TRANSITIONS, FullBandwidth
from x_transformers.gpt_lejepa import LatentAutoregressive
from x_transformers.gpt_vae import GPTVAE
from x_transformers.recirculation import Recirculation
from x_transformers.up_wrapper import UniversalPretrainWrapper
from x_transformers.xm_latent_decoder import XMLatentDecoder

Inputs = dict[str, Any]
N, MORE, WIDTH, LATENT = 6, 3, 5, 4
SIZES = dict(heads=2, attn_dim_head=8, max_seq_len=12, verbose=False)
INNER = tuple(f'attn_layers.layers.{at}.1.ff.2' for at in (1, 3))


class Subject(NamedTuple):
    """A wrapper with inputs of two rows. It gives a loss, their mean, or something for every row."""

    build: Callable[[], nn.Module]
    inputs: Inputs
    call: Callable[..., Tensor] = lambda model, **inputs: model(**inputs)
    generate: Callable[..., Any] | None = None
    # what padding at the end holds, by input; `by` names the input that tells how long rows are
    fills: Mapping[str, Any] | None = None
    by: str | None = None


def ids(length: int = N, seed: int = 0) -> Tensor:
    return ids_of(2, length, seed=seed)


def greedy(model: nn.Module, **inputs: Tensor) -> Tensor:
    return model.generate(*inputs.values(), 4, temperature=0.0)


def of_text(build: Callable[[], nn.Module], name: str = 'x', length: int = N, generate: Any = greedy) -> Subject:
    """A loss of ids, of which -100 are no targets."""
    return Subject(build, {name: ids(length)}, generate=generate, fills={name: -100})


def by_net(model: nn.Module, x: Tensor) -> Tensor:
    return greedy(AutoregressiveWrapper(model.net), x=x)


def segments(**options: Any) -> Callable[[], nn.Module]:
    return lambda: XLAutoregressiveWrapper(net_of(max_seq_len=4, max_mem_len=6), **options)


def learning(**options: Any) -> Callable[[], nn.Module]:
    return segments(tbptt_steps=3, ttt_lr=0.5, ttt_wd=0.1, **options)


def beliefs(**options: Any) -> BeliefStateWrapper:
    return BeliefStateWrapper(*(net_of(return_only_embed=True) for _ in range(2)), pred_distance=True, **options)


def deep_net(**options: Any) -> nn.Module:
    stack = dict(depth=3, depth_scale_residual=True, rotary_pos_emb=False)
    return net_of(stack=stack, max_seq_len=16, **options)


def passes(kind: str) -> Callable[[], nn.Module]:
    options = dict(recirc_pairs=((3, 1), (2, 2)), transitions={'2->2': 'gru'}, transition=kind)
    return lambda: FullBandwidth(
        deep_net(tie_embedding=True, post_emb_norm=True), temporal_parallel_passes=3, **options
    )


def hidden_tokens() -> nn.Module:
    net = net_of(Encoder, dict(rotary_pos_emb=False))
    options = dict(mask_id=VOCAB - 1, steps=5, self_cond=True, self_cond_train_prob=0.5, self_token_critic=True)
    return NonAutoregressiveWrapper(net, schedule='cosine', **options)


def guided(n: int) -> nn.Module:
    stack = dict(rotary_pos_emb=False, cross_attend=True, cross_attn_dim_context=DIM)
    options = dict(mask_id=VOCAB - 1, steps=3, schedule='cosine', cond_drop_prob=0.6, ceil_counts=True)
    return NonAutoregressiveWrapper(net_of(Encoder, stack, max_seq_len=n), **options)


def masked(**options: Any) -> Callable[[], nn.Module]:
    sizes = dict(mask_token_id=VOCAB - 1, pad_token_id=0, mask_prob=0.4)
    return lambda: MLMWrapper(net_of(Encoder, dict(rotary_pos_emb=False)), **sizes, **options)


def in_any_order(**options: Any) -> Callable[[], nn.Module]:
    stack = dict(rotary_pos_emb=False, xl_rel_pos=True, two_stream=True)
    return lambda: PermutationLMWrapper(net_of(Encoder, stack), 0.5, pad_token_id=0, **options)


def sentences(**options: Any) -> Callable[[], nn.Module]:
    mlm = dict(mask_token_id=VOCAB - 1, pad_token_id=0, mask_prob=0.4)
    return lambda: BertPretrainWrapper(net_of(Encoder, dict(rotary_pos_emb=False), **options), mlm)


def streams() -> nn.Module:
    layers = Decoder(dim=DIM, depth=2, heads=2, attn_dim_head=8)
    sizes = dict(num_tokens=dict(note=7, length=5), max_seq_len=12, emb_dim=6, num_memory_tokens=2)
    return MultiInputAutoregressiveWrapper(MultiInputTransformerWrapper(attn_layers=layers, **sizes))


def numbers() -> nn.Module:
    layers = Decoder(dim=DIM, depth=2, heads=2, attn_dim_head=8)
    sizes = dict(num_tokens=VOCAB, max_seq_len=12, numerical_token_id=3, emb_dim=6, num_memory_tokens=2)
    return XValAutoregressiveWrapper(XValTransformerWrapper(attn_layers=layers, **sizes))


def vectors(**options: Any) -> Callable[[], nn.Module]:
    layers = dict(dim=DIM, depth=2, heads=2, attn_dim_head=8)
    sizes = dict(dim_in=WIDTH, dim_out=WIDTH, max_seq_len=12)
    return lambda: ContinuousAutoregressiveWrapper(
        ContinuousTransformerWrapper(attn_layers=Decoder(**layers), **sizes), **options
    )


def autoencoder(**options: Any) -> Callable[[], nn.Module]:
    sizes = dict(dim=DIM, enc_depth=1, dec_depth=2, dim_input=WIDTH, dim_latent=LATENT, latents_dropout_prob=0.0)
    return lambda: ContinuousTransformerAutoencoder(**SIZES, **sizes, **options)


def encoded() -> nn.Module:
    sizes = dict(num_tokens=VOCAB, max_seq_len=12, depth=1, heads=2, attn_dim_head=8)
    return XTransformer(dim=DIM, **{f'{side}_{name}': size for side in ('enc', 'dec') for name, size in sizes.items()})


def classes(**options: Any) -> Callable[[], nn.Module]:
    return lambda: Classifier(
        net_of(Encoder, dict(rotary_pos_emb=False), return_only_embed=True), num_classes=5, **options
    )


def heard() -> nn.Module:
    """A text of sounds."""
    sizes = dict(depth=1, heads=2, attn_dim_head=8)
    stem = ((6, 3, 1, 1), (DIM, 3, 2, 1))
    sounds = ContinuousTransformerWrapper(
        dim_in=WIDTH, max_seq_len=9, conv_stem=stem, attn_layers=Encoder(dim=DIM, **sizes)
    )
    text = net_of(stack=dict(cross_attend=True))
    return EncoderDecoder(sounds, AutoregressiveWrapper(text))


def images() -> nn.Module:
    layers = Encoder(dim=DIM, depth=2, heads=2, attn_dim_head=8)
    sizes = dict(image_size=8, patch_size=4, channels=2, num_classes=5, num_register_tokens=2)
    return ViTransformerWrapper(attn_layers=layers, post_emb_norm=True, **sizes)


def images_by_formula() -> nn.Module:
    """Positions by a formula, for an image larger than the one that was said."""
    layers = Encoder(dim=DIM, depth=1, heads=2, attn_dim_head=8)
    sizes = dict(image_size=4, patch_size=4, channels=2, num_classes=5, num_register_tokens=2, prefix_tokens=1)
    return ViTransformerWrapper(attn_layers=layers, sincos_pos_emb=True, **sizes)


def frames() -> nn.Module:
    layers = Encoder(dim=DIM, depth=1, heads=2, attn_dim_head=8)
    stem = ((6, 3, 1, 1), (DIM, 3, 2, 1))
    return ContinuousTransformerWrapper(dim_in=WIDTH, dim_out=4, max_seq_len=9, conv_stem=stem, attn_layers=layers)


def images_and_their_head() -> nn.Module:
    """Positions of another size, what stands in front of patches, and a head with parameters of its own."""
    layers = Encoder(dim=DIM, depth=1, heads=2, attn_dim_head=8, pre_norm_has_final_norm=False)
    sizes = dict(image_size=12, patch_size=4, channels=2, num_classes=5, num_register_tokens=2, prefix_tokens=1)
    options = dict(patch_norm=False, register_place='front', interpolate_pos_emb='bicubic', mask_token=True)
    options |= dict(crop_to_patches=True)
    return ViTransformerWrapper(attn_layers=layers, pool='attention', post_pool_norm=True, **options, **sizes)


def among_words() -> nn.Module:
    layers = Encoder(dim=8, depth=2, heads=2, attn_dim_head=4)
    eyes = ViTransformerWrapper(image_size=8, patch_size=4, channels=2, attn_layers=layers)
    return VisionLanguageWrapper(eyes, AutoregressiveWrapper(net_of(max_seq_len=20)), VOCAB - 1, freeze=())


PERCEIVER = dict(
    input_channels=2, input_axis=2, num_latents=3, dim=DIM, depth=2, heads=2, dim_head=8, cross_dim_head=8,
    num_freq_bands=2, cross_heads=2,
)  # fmt: skip


def towers() -> nn.Module:
    text = net_of(Encoder, dict(rotary_pos_emb=False), max_seq_len=12, return_only_embed=True)
    return TwoTowers(images(), text, text_pool='last', dim_shared=6, dim_image=5, loss='sigmoid', logit_bias=-1.0)


def pretraining() -> nn.Module:
    return UniversalPretrainWrapper(net_of(), buffer_size=20, num_reset=4, batch_size=3, seq_len=8, seed_length=5)


def segments_of_two(model: nn.Module, x_long: Tensor, x_global: Tensor, **inputs: Tensor) -> Tensor:
    """What global tokens, one for each segment of two tokens, and the first long ones become."""
    segments = (torch.arange(x_long.shape[1]) // 2).clamp(max=2).expand(x_long.shape[0], -1)
    made = make_etc_inputs(x_long, segments, num_segments=3, rel_max_distance=2)
    return torch.cat([z[:, :N] for z in model(x_long, x_global, **made.options | inputs)], dim=1)


X, NOTES = ids(9), dict(note=ids_of(2, 9, vocab=7), length=ids_of(2, 9, vocab=5))
FREE = dict(num_tokens=VOCAB, dim=DIM, dec_head_depth=1, dec_tail_depth=2, latent_bits=3, kl_loss_threshold=0.01)
VARIATIONAL = dict(num_tokens=VOCAB, dim=DIM, depth=2, enc_depth=1, dim_latent=LATENT, latents_dropout_prob=0.0)
OF_VECTORS = dict(by='lens', fills=dict(x=9.0))


def decisions(**options: Any) -> nn.Module:
    stack = Decoder(dim=DIM, depth=1, heads=2, attn_dim_head=8)
    return DecisionTransformer(WIDTH, 3, stack, context_len=6, max_ep_len=9, **options)


def loss_of_walks(model: nn.Module, num_items_in_batch: Any = None, **walks: Tensor) -> Tensor:
    return model.loss(walks, num_items_in_batch)


WALKS = dict(states=randn(2, N, WIDTH), rtg=randn(2, N), timesteps=torch.arange(N).expand(2, -1))

SUBJECTS = {
    'decisions': Subject(
        decisions, dict(WALKS, actions=randn(2, N, 3)), loss_of_walks),
    'decisions, discrete': Subject(
        lambda: decisions(discrete=True), dict(WALKS, actions=ids() % 3), loss_of_walks),
    'language': of_text(lambda: AutoregressiveWrapper(net_of(), label_smoothing=0.1)),
    'language, entmax': of_text(lambda: AutoregressiveWrapper(net_of(), entmax_loss_alpha=1.5)),
    'prefixes': Subject(
        lambda: AutoregressiveWrapper(net_of(PrefixDecoder)), dict(x=ids(), prefix_attn_len=torch.tensor([3, 3])),
        generate=lambda m, x, prefix_attn_len: m.generate(x, 4, temperature=0.0, prefix_attn_len=prefix_attn_len),
        fills=dict(x=-100)),
    'early exits': of_text(lambda: EarlyExitWrapper(
        net_of(), exit_heads='per_layer', exit_classifier='geometric', exit_rbf_sigma=2.0),
        generate=lambda m, x: m.generate(x, 4, temperature=0.0, exit='classifier', exit_threshold=0.5)),
    'early exits, drawn': of_text(lambda: EarlyExitWrapper(
        net_of(num_memory_tokens=2), exit_train='mixed', exit_classifier='multinomial'),
        generate=lambda m, x: m.generate(x, 4, temperature=0.0, exit='confidence', exit_threshold=0.2)),
    'segments': of_text(segments(), length=13),
    'segments, learning': of_text(learning(ttt_module_paths=INNER[:1]), length=13),
    'segments, learning by muon': of_text(learning(ttt_module_paths=(INNER,), ttt_use_muon=True), length=13),
    'segments, episodic': of_text(learning(ttt_module_paths=INNER[:1], episodic_mem_len=3), length=13),
    'hidden tokens': Subject(
        hidden_tokens, dict(x=ids(12)), lambda m, x, **more: m(x % (VOCAB - 1), **more).loss,
        lambda m, x: m.generate(2)),
    **{f'fine-tuned, {head}': Subject(
        lambda head=head: FineTuned(
            net_of(Encoder, dict(rotary_pos_emb=False), return_only_embed=True), head, 2, 'mean'),
        dict(x=ids(), labels=labels), by='mask', fills=dict(x=0, **({'labels': -100} if head == 'tokens' else {})))
        for head, labels in dict(
            tokens=ids() % 2, **{'class': torch.tensor([0, 1])}, span=torch.tensor([[0, 2], [1, 4]])).items()},
    'among words': Subject(
        among_words, dict(ids=torch.tensor([[1, VOCAB - 1, 3, 2], [2, VOCAB - 1, 4, 0]]), images=randn(2, 2, 8, 8)),
        generate=lambda m, ids, images: m.generate(ids, 3, images, temperature=0.0)),
    'two kinds': Subject(
        lambda: JointAttention(DIM, 2, 8), dict(a=randn(2, N, DIM), b=randn(2, 3, DIM)),
        lambda m, a, b: torch.cat(m(a, b), dim=1)),
    'conformer': Subject(
        lambda: ConformerEncoder(DIM, 1, input_dim=9, heads=2, attn_dim_head=8, conv_kernel_size=3, conv_norm='layer'),
        dict(x=randn(2, 15, 9))),
    'speech': Subject(
        lambda: SpeechEncoder(DIM, 1, 2, n_mels=WIDTH, max_positions=9), dict(x=randn(2, N, WIDTH))),
    'arrays': Subject(lambda: Perceiver(**PERCEIVER, num_classes=3), dict(x=randn(2, N, 3, 2))),
    'arrays, asked': Subject(
        lambda: PerceiverIO(**PERCEIVER, queries_dim=WIDTH, logits_dim=3, weight_tie_layers=True),
        dict(x=randn(2, N, 3, 2), queries=randn(2, 4, WIDTH))),
    'two resolutions': Subject(
        lambda: Muse(guided(5), guided(8)),
        dict(small=ids(5) % (VOCAB - 1), text=randn(2, 3, DIM), large=ids(8) % (VOCAB - 1)),
        lambda m, **images: m(**images).loss,
        lambda m, text, **_: m.generate(text, cond_scale=2.0)),
    'videos': Subject(
        lambda: FactorizedVideoEncoder(1, 1, DIM, (2, 4, 4), 2, image_size=8, max_frames=4, heads=2),
        dict(video=randn(2, 2, 5, 8, 8))),
    'text and image': Subject(
        lambda: DALLE(DIM, 2, heads=2, num_text_tokens=VOCAB, text_seq_len=4, num_image_tokens=6, image_grid=3,
                      attn='dalle', cond_drop_prob=0.2),
        dict(text=ids(3), image=ids_of(2, 9, vocab=6)), lambda m, **inputs: m(**inputs).loss,
        lambda m, text, image: m.generate(text, cond_scale=2.0, temperature=0.0)),
    'text to image': Subject(
        lambda: Parti(DIM, 1, 1, VOCAB, 4, 6, 3, cond_drop_prob=0.5, enc_heads=2, dec_heads=2),
        dict(text=ids(3), image=ids_of(2, 9, vocab=6)),
        generate=lambda m, text, image: m.generate(text, cond_scale=2.0, temperature=0.0)),
    'masked': Subject(masked(), dict(x=1 + ids(12) % (VOCAB - 2))),
    'masked spans': Subject(masked(max_span=3), dict(x=1 + ids(12) % (VOCAB - 2))),
    'in any order': Subject(
        in_any_order(), dict(x=1 + ids(12) % (VOCAB - 2)),
        generate=lambda m, x: m.infill(x, x > 4, temperature=0.0)),
    'in any order, by pieces': Subject(in_any_order(perm_len=5), dict(x=1 + ids(12) % (VOCAB - 2))),
    'sentences': Subject(sentences(), dict(x=1 + ids(12) % (VOCAB - 2), labels=torch.tensor([0, 1]))),
    'sentences, pooled': Subject(
        sentences(pooler=dict(token='first', dim=7, activation='tanh')),
        dict(x=1 + ids(12) % (VOCAB - 2), labels=torch.tensor([0, 1]))),
    'spans': Subject(
        lambda: T5PretrainWrapper(encoded(), SpanCorruption(VOCAB - 1, 1, 0.3, 2.0, num_sentinels=4)),
        dict(tokens=ids(12) % 6)),
    'vectors': Subject(vectors(), dict(x=randn(2, N, WIDTH)), generate=lambda m, x: m.generate(x, 3), **OF_VECTORS),
    'vectors, rolled out': Subject(vectors(), dict(x=randn(2, N, WIDTH)), lambda m, x, **inputs: m(x, 2, **inputs),
                                   **OF_VECTORS),
    'autoencoder, variational': Subject(
        autoencoder(bottleneck_type='variational'), dict(seq=randn(2, N, WIDTH)), by='lens', fills=dict(seq=9.0)),
    'autoencoder': Subject(autoencoder(), dict(seq=randn(2, N, WIDTH)),
                           generate=lambda m, seq: m.decode(m.encode(seq), 4), by='lens', fills=dict(seq=9.0)),
    'numbers': Subject(
        numbers, dict(x=X, x_num=randn(2, 9).masked_fill(X != 3, float('nan'))),
        generate=lambda m, x, x_num: m.generate(x, x_num, 3).sampled_token_ids, fills=dict(x=-100, x_num=50.0)),
    'streams': Subject(streams, dict(x=NOTES), generate=lambda m, x: m.generate(x, 3)['note'], fills=dict(x=-100)),
    'beliefs': Subject(
        beliefs, dict(seq=ids()), generate=lambda m, seq: m.generate_with_suffix_cond(seq, 4, temperature=0.0),
        by='lens', fills=dict(seq=0)),
    'next latent, normal': of_text(
        lambda: NextLatentWrapper(net_of(tie_embedding=True), dim=DIM, num_rollouts=2, sigreg_loss_weight=0.1),
        generate=by_net),
    'next latent': of_text(
        lambda: NextLatentWrapper(net_of(), dim=DIM, num_rollouts=2, rollout_weights=(1.0, 0.5)), generate=by_net),
    'latents': of_text(
        lambda: LatentAutoregressive(net_of(), dim=DIM, num_rollouts=2, predict_next_embed_no_action=True),
        generate=by_net),
    'latents, tied': of_text(
        lambda: LatentAutoregressive(net_of(tie_embedding=True), dim=DIM, sigreg_loss_weight=0.0), generate=by_net),
    'preferences': Subject(
        lambda: DPO(net_of()),
        dict(one=ids(9), other=ids(9, 1), prompt_mask=torch.arange(9).expand(2, -1) < 3, mask=torch.ones(2, 9) > 0),
        lambda m, one, other, prompt_mask, mask, **items: m(
            one, other, prompt_mask=prompt_mask, preferred_seq_mask=mask, unpreferred_seq_mask=mask, **items),
        fills=dict(one=0, other=0, prompt_mask=False, mask=False)),
    'preferences, by a margin': Subject(
        lambda: SimPO(net_of()),
        dict(one=ids(9), other=ids(9, 1), prompt_mask=torch.arange(9).expand(2, -1) < 3, mask=torch.ones(2, 9) > 0),
        lambda m, one, other, prompt_mask, mask, **items: m(
            one, other, prompt_mask=prompt_mask, preferred_seq_mask=mask, unpreferred_seq_mask=mask, **items),
        fills=dict(one=0, other=0, prompt_mask=False, mask=False)),
    'encoded': Subject(
        encoded, dict(src=ids(5), tgt=ids(N)), generate=lambda m, src, tgt: m.generate(src, tgt[:, :1], 3),
        fills=dict(tgt=-100)),
    'classes': Subject(classes(token='mean', head_transform=dict(dim=7)), dict(x=ids()), by='mask', fills=dict(x=0)),
    'classes, with their loss': Subject(
        classes(token='all'), dict(x=ids(), labels=ids() % 5), by='mask', fills=dict(x=0, labels=-100)),
    'heard': Subject(
        heard, dict(source=randn(2, N, WIDTH), tgt=ids(N)), by='mask',
        generate=lambda m, source, tgt: m.generate(source, tgt[:, :1], 3), fills=dict(source=9.0)),
    'free': Subject(lambda: FreeTransformer(**SIZES, **FREE), dict(seq=ids()), fills=dict(seq=-1),
                    generate=lambda m, seq: m.generate(seq, 9, latents=ids_of(2, vocab=8), temperature=0.0)),
    'variational': Subject(lambda: GPTVAE(**SIZES, **VARIATIONAL), dict(seq=ids()), generate=greedy,
                           fills=dict(seq=-1)),
    **{f'passes, {kind}': of_text(passes(kind), 'token_ids') for kind in TRANSITIONS},
    'candidates': Subject(
        lambda: XMLatentDecoder(net_of(max_seq_len=16), latent_dim=LATENT),
        dict(seq=ids(), latents=randn(2, 2, 4, LATENT)),
        lambda m, seq, latents, **more: m(seq, latents=latents, repulsive_loss_weight=0.1, **more),
        lambda m, seq, latents: greedy(m, seq=seq), fills=dict(seq=-100)),
    'second readings, learned': of_text(
        lambda: AutoregressiveWrapper(Recirculation(deep_net(), 2, 0, use_learned=True, learned_hidden=5))),
    'second readings': of_text(lambda: AutoregressiveWrapper(Recirculation(deep_net(), 2, 0))),
    'pretraining': Subject(pretraining, {}),
    'encodings': Subject(
        lambda: DiscoverDecoder(decoder=net_of(max_seq_len=16), num_fillers=6, bos_id=7, pad_id=8, max_seq_len=8),
        dict(tokens=ids_of(2, 4, vocab=6), targets=ids_of(2, 5, vocab=6)), fills=dict(tokens=8)),
    'bindings': Subject(
        lambda: TPREncoder(dim=DIM, num_fillers=6, num_roles=4, mlp_dim=5),
        dict(tokens=ids_of(2, 4, vocab=6), role_ids=ids_of(2, 4, vocab=4)), by='mask',
        fills=dict(tokens=5, role_ids=3)),
    'entropies': Subject(
        lambda: EntropyBasedTokenizer(net_of(max_seq_len=40), 1.2, accumulate_entropy=True, max_token_size=5),
        dict(seq=ids(36)), lambda m, **inputs: m(**inputs).double(), by='lens', fills=dict(seq=1)),
    'points': Subject(lambda: NeoMLP(dim_in=3, dim_hidden=4, dim_out=2, dim_model=16, depth=1,
                              encoder_kwargs=dict(heads=2, attn_dim_head=8, ff_glu=True)), dict(x=randn(2, 3))),
    'codes': Subject(
        lambda: VectorQuantizer(DIM, 7, norm=True), dict(z=randn(2, N, DIM)),
        lambda m, z, **inputs: m(z, **inputs).loss, by='mask', fills=dict(z=9.0)),
    'texts of chunks': Subject(
        lambda: ChunkedCrossAttention(DIM, heads=2, dim_head=8, chunk=3),
        dict(x=randn(2, N, DIM), neighbours=randn(2, 2, 2, 4, DIM))),
    'pixels': Subject(
        lambda: DMOLHead(DIM, components=2), dict(x=randn(2, N, DIM), pixels=ids() .unsqueeze(-1) + torch.arange(3)),
        lambda m, x, pixels: m.log_prob(m(x), pixels), generate=lambda m, x, pixels: m.sample(m(x))),
    'two streams': Subject(
        lambda: ETCEncoder(dim=DIM, depth=2, heads=2, dim_head=8, local_radius=2, rel_max_distance=2, share_qkv='none'),
        dict(x_long=randn(2, N, DIM), x_global=randn(2, 3, DIM)), segments_of_two, by='mask_long',
        fills=dict(x_long=9.0)),
    'foretold segments': Subject(
        lambda: ETCPretrainWrapper(
            ETCEncoder(dim=DIM, depth=1, heads=2, dim_head=8, local_radius=2, rel_max_distance=2), VOCAB + 1, VOCAB,
            cpc_prob=0.4),
        dict(tokens=ids(), segment_ids=torch.arange(N).expand(2, -1) // 3)),
    'frames': Subject(
        frames, dict(x=randn(2, N, WIDTH)), lambda m, x, **inputs: m(x, **inputs)[:, : (N + 1) // 2], **OF_VECTORS),
    'images': Subject(images, dict(img=randn(2, 2, 8, 8))),
    'images, by formula': Subject(images_by_formula, dict(img=randn(2, 2, 8, 8))),
    'images, with a head': Subject(
        images_and_their_head, dict(img=randn(2, 2, 8, 8), hidden_patches=torch.arange(8).view(2, 4) % 3 == 0)),
    'towers': Subject(towers, dict(texts=ids(), images=randn(2, 2, 8, 8)), by='mask', fills=dict(texts=0)),
}  # fmt: skip

# what differs, and why

HIDDEN, LATENTS = 'what is hidden is drawn for the whole batch', 'latents are drawn for the whole batch'
NORMAL = 'SIGReg looks at all states of a batch together'
ROWS_MEET = {
    'early exits, drawn': 'blocks are drawn for the whole batch',
    'hidden tokens': HIDDEN,
    'foretold segments': HIDDEN,
    'two resolutions': HIDDEN,
    'masked': HIDDEN,
    'spans': HIDDEN,
    'in any order': HIDDEN,
    'in any order, by pieces': HIDDEN,
    'sentences': HIDDEN,
    'sentences, pooled': HIDDEN,
    'masked spans': HIDDEN,
    'vectors, rolled out': 'one start is drawn for all rows',
    'autoencoder, variational': LATENTS,
    'free': LATENTS,
    'variational': LATENTS,
    'next latent, normal': NORMAL,
    'latents': NORMAL,
    'towers': 'the others of a batch are what a pair is not',
}
NO_PADDING = {
    'speech': 'silence is padded in the sound',
    'videos': 'all frames are read',
    **dict.fromkeys(('text and image', 'text to image'), 'a mask of the text alone: see test_text_to_image'),
    'among words': 'images take places: see test_vision_language',
    'two kinds': 'each has a mask: see test_diffusion',
    'conformer': 'vectors are fewer than frames: see test_conformer',
    **dict.fromkeys(('arrays', 'arrays, asked'), 'places are parts of the whole: see test_perceiver'),
    'in any order': 'draws follow the length: see test_permutation',
    'in any order, by pieces': 'draws follow the length: see test_permutation',
    **dict.fromkeys(('decisions', 'decisions, discrete'), 'it stands on the left: test_decision.py'),
    'hidden tokens': HIDDEN,
    'foretold segments': HIDDEN,
    'two resolutions': HIDDEN,
    'masked': HIDDEN,
    'spans': HIDDEN,
    'sentences': HIDDEN,
    'sentences, pooled': HIDDEN,
    'masked spans': HIDDEN,
    'pretraining': 'it writes its own texts',
    'points': 'the inputs have no order',
    'pixels': 'a head reads each token alone',
    'texts of chunks': 'a mask is that of the neighbours: see test_retro',
    'images, by formula': 'an image is whole: every patch is read',
    'images': 'an image is whole: every patch is read',
    'images, with a head': 'an image is whole: every patch is read',
}
NOT_ALL_LEARN = {
    'among words': 'the last block of the image model is not read, nor its head',
    'latents, tied': 'what foretells reads a lower block, and targets are constants; without SIGReg no other loss',
    'pretraining': 'the generator of texts never learns',
    'entropies': 'lengths have no gradient',
}
INNER_STEP = 'an inner step takes gradients, behind a lock'
NO_GRAPH = {
    'foretold segments': 'how many segments there are is read from the data',
    'two resolutions': 'whether tokens are replaced is drawn, and read as a number',
    'among words': 'images are put among words before the graph',
    'spans': 'how long inputs and targets are is drawn from the data',
    'hidden tokens': 'whether tokens are replaced is drawn, and read as a number',
    'candidates': 'which latent is active is drawn, and read as a number',
    'pretraining': 'it writes its own texts',
    'entropies': 'how many pieces there are is read from the data',
    'segments, learning': INNER_STEP,
    'second readings': 'one token after another: a graph for every length, minutes to make',
    'second readings, learned': 'as for fixed weights',
    'segments, learning by muon': INNER_STEP,
    'segments, episodic': INNER_STEP,
}
NO_ITEMS = {
    'towers': 'its loss compares each pair with the others of the batch',
    **dict.fromkeys(
        ('two kinds', 'conformer', 'speech', 'arrays', 'arrays, asked', 'videos', 'classes', 'encodings',
         'bindings', 'entropies', 'points', 'pixels', 'two streams', 'frames', 'images', 'images, by formula',
         'images, with a head'),
        'it gives no loss'),
    'foretold segments': 'its loss compares each hidden segment with the others of the batch',
    'codes': 'its loss is a mean over vectors, none of which is a target',
    'texts of chunks': 'it gives no loss',
}  # fmt: skip
NO_TABLE = 'has none'
NO_MORE_TOKENS = {
    **dict.fromkeys(
        ('decisions', 'decisions, discrete', 'two kinds', 'conformer', 'speech', 'arrays', 'arrays, asked', 'videos',
         'vectors', 'vectors, rolled out', 'autoencoder', 'autoencoder, variational', 'bindings', 'points', 'pixels',
         'codes', 'texts of chunks', 'two streams', 'frames', 'images', 'images, by formula', 'images, with a head'),
        NO_TABLE),
    'text and image': 'in two tables',
    'foretold segments': 'its head and its masks',
    'text to image': 'begins images',
    'pretraining': 'its generator of texts',
}  # fmt: skip
# modules of what wrappers are made of
PARTS = {'attend', 'x_transformers', 'parallel', 'pretrained'}


def is_real(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point()


def made(name: str) -> tuple[nn.Module, Callable[[nn.Module, Inputs], Tensor]]:
    """A model with random weights, and how it is called, with numbers as the weights are."""
    subject = SUBJECTS[name]

    def call(model: nn.Module, inputs: Inputs = subject.inputs, of: Callable[..., Tensor] = subject.call) -> Tensor:
        kind = next(model.parameters()).dtype
        return of(model, **tree_map(lambda t: t.to(kind) if is_real(t) else t, inputs))

    return randomised(subject.build(), scale=0.3), call


every = pytest.mark.parametrize('name', SUBJECTS)


FOLDERS = {'': PATH, 'modalities.': modalities.__path__, 'objectives.': objectives.__path__}
# Inputs without weights, and losses of test-time training, which are no wrappers.
WITH_OWN_TESTS = {'Corruption', 'LogMelSpectrogram', 'SpanCorruption', 'TTTMetaLearningTargetKLLoss',
                  'TTTNextLatentPredictionLoss', 'UL2Mixture'}  # fmt: skip


@pytest.mark.costly
def test_every_wrapper_is_a_subject():
    parts = [part for prefix, path in FOLDERS.items() for part in pkgutil.iter_modules(path, prefix)]
    modules = [importlib.import_module(f'x_transformers.{part.name}') for part in parts if part.name not in PARTS]
    wrappers = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Configurable) and cls.__module__ == module.__name__
    }
    tried = {type(module) for subject in SUBJECTS.values() for module in subject.build().modules()}
    assert {cls.__name__ for cls in wrappers - tried} <= WITH_OWN_TESTS


@every
def test_matrices_for_muon(name):
    model = SUBJECTS[name].build()
    branches = [module for module in model.modules() if isinstance(module, (Attention, ETCAttention, FeedForward))]
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = model.muon_parameters()
    assert len(set(found)) == len(found) and set(found) <= {p for branch in branches for p in branch.parameters()}
    for matrix in found:
        assert matrix.ndim == 2 and re.search(r'\.(to_v|to_out|ff)(_\w+)?\.', names[matrix]), names[matrix]
    wanted = [weight for branch in branches for weight in branch.muon_parameters()]
    assert set(found) == set(wanted) and bool(found) == bool(branches)
    more = {names[p] for p in model.muon_parameters(queries_and_keys=True)} - {names[p] for p in found}
    assert bool(more) == bool(branches) and all(re.search(r'\.to_[qk](_\w+)?\.', name) for name in more)


@every
def test_copies_configs_and_pickles(name):
    model, call = made(name)
    others = check_copies(model, call)
    if SUBJECTS[name].generate:
        made_of = lambda m: call(m, of=SUBJECTS[name].generate)  # noqa: E731
        expected = seeded(made_of, model)
        for other in others:
            assert torch.equal(seeded(made_of, other), expected)


STEPS = """
import torch
from test_wrapper_laws import SUBJECTS, tree_leaves
torch.set_num_threads(1)
for name, subject in SUBJECTS.items():
    torch.manual_seed(0)
    model = subject.build().double().train()
    found = [subject.call(model, **subject.inputs) for _ in range(2)] if name != 'entropies' else []
    loss = sum(one.double().sum() for one in tree_leaves(found))
    loss.backward() if found else None
    print(name, float(loss), *(float(p.grad.double().sum()) for p in model.parameters() if p.grad is not None))
"""


@pytest.mark.slow
def test_training_depends_on_nothing_but_the_seed_of_torch():
    """In any process: the order of sets and of modules in memory is another in each."""
    path = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    runs = [
        subprocess.Popen(
            [sys.executable, '-c', f'{pause}{STEPS}'],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': path},
        )
        for seed, pause in (('1', ''), ('2', 'import random\nrandom.seed(3)'))
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert len(first.splitlines()) == len(SUBJECTS) and first == second


@every
def test_half_precision(name):
    model, call = made(name)
    check_half_precision(model, call)
    if SUBJECTS[name].generate:
        shapes = [call(m, of=SUBJECTS[name].generate).shape for m in (model, model.bfloat16())]
        assert shapes[0] == shapes[1]


@every
def test_every_parameter_learns(name):
    """In the sum of two losses: which half of self-conditioning is used is drawn."""
    model, call = made(name)
    with pytest.raises((AssertionError, RuntimeError)) if name in NOT_ALL_LEARN else nullcontext():
        of_seed = lambda m, seed: seeded(lambda m: call(m, with_holes(name)).sum(), m, seed)  # noqa: E731
        check_gradients(model.train(), lambda m: of_seed(m, 0) + of_seed(m, 1))


def with_holes(name: str) -> Inputs:
    """The inputs, some ids of which are no targets."""
    inputs, fills = dict(SUBJECTS[name].inputs), SUBJECTS[name].fills or {}
    for key in (key for key, fill in fills.items() if fill == -100):
        inputs[key] = tree_map(torch.clone, inputs[key])
        for t in tree_leaves(inputs[key]):
            t[0, -2:] = t[1, 3] = -100
    return inputs


def wide(t: Tensor, width: int) -> Tensor:
    return F.pad(t, (0, width - t.shape[-1]))


@every
def test_a_row_is_as_alone_and_padding_changes_nothing(name):
    model, call = made(name)
    subject = SUBJECTS[name]
    if subject.inputs:
        rows = [tree_map(lambda t, at=at: t[at : at + 1], subject.inputs) for at in range(2)]
        whole, *alone = [seeded(lambda m, inputs=inputs: call(m, inputs), model) for inputs in (subject.inputs, *rows)]
        found = torch.stack(alone).mean() if whole.ndim == 0 else torch.cat([wide(t, whole.shape[-1]) for t in alone])
        assert torch.allclose(found, whole, rtol=1e-9, atol=1e-9) == (name not in ROWS_MEET)
    if name in NO_PADDING:
        assert subject.fills is None
        return
    longer, real = dict(rows[0]), tree_leaves(rows[0])[0].shape[1]
    for key, fill in subject.fills.items():
        longer[key] = tree_map(
            lambda t, fill=fill: F.pad(t, (0, 0) * (t.ndim - 2) + (0, MORE), value=fill), rows[0][key]
        )
    if subject.by == 'lens':
        longer['lens'] = torch.tensor([real])
    elif subject.by is not None:
        longer[subject.by] = torch.arange(real + MORE)[None] < real
    found = seeded(lambda m: call(m, longer), model)
    found = found if found.ndim == 0 else wide(found, alone[0].shape[-1])
    assert torch.allclose(found, alone[0], rtol=1e-9, atol=1e-9)


@every
def test_losses_over_a_number_of_items_add_up(name):
    """Given the number of targets of the whole, the losses of its rows are parts of that of the whole."""
    model, call = made(name)
    inputs = SUBJECTS[name].inputs

    def over(items: Any, inputs: Inputs = inputs) -> Tensor:
        return seeded(lambda m: call(m, {**inputs, 'num_items_in_batch': items}), model)

    if name in NO_ITEMS:
        with pytest.raises((TypeError, ValueError), match='num_items_in_batch'):
            over(1)
        return
    whole = over(1)
    if not inputs:
        return
    count = whole / seeded(lambda m: call(m, inputs), model)  # of targets
    if name != 'two resolutions':  # where two models have different numbers
        assert_close(count, count.round(), tolerance=1e-9)
    assert count >= 2
    with pytest.raises(TypeError, match=r'`num_items_in_batch` must be.*got 0'):
        over(0)
    if name not in ROWS_MEET:
        given = with_holes(name)
        rows = [tree_map(lambda t, at=at: t[at : at + 1], given) for at in range(2)]
        assert_close(over(torch.tensor(4), rows[0]) + over(4, rows[1]), over(4, given))


@every
def test_more_tokens(name):
    """Rows that there were stay, and so does what is shared; the config builds what the weights fit."""
    model, call = made(name)
    before, parts = {key: t.clone() for key, t in model.state_dict().items()}, shared(model)
    wanted = dict(note=9) if name == 'streams' else VOCAB + 4
    if (reason := NO_MORE_TOKENS.get(name)) is not None:
        with pytest.raises(ValueError, match=f'`resize_token_embeddings` .*{reason}'):
            model.resize_token_embeddings(wanted)
        assert all(map(torch.equal, model.state_dict().values(), before.values()))
        return
    assert model.resize_token_embeddings(wanted) is model
    after, changed = model.state_dict(), 0
    for key, t in before.items():
        changed += t.shape != after[key].shape
        if key.startswith('text_head.2'):  # of two directions
            halves = zip(t.chunk(2), after[key].chunk(2), strict=True)
            assert all(torch.equal(new[:VOCAB], old) for old, new in halves)
        else:
            assert torch.equal(after[key][: len(t)] if t.ndim else after[key], t), key
    assert changed >= 1 and shared(model) == parts
    again = type(model).from_config(json.loads(json.dumps(model.config))).double().train(model.training)
    again.load_state_dict(after)
    found = [seeded(lambda m: call(m, SUBJECTS[name].inputs), one) for one in (model, again)]
    assert_close(*found)


CAUSAL = [
    'language',
    'early exits',
    'next latent',
    'latents',
    f'passes, {next(iter(TRANSITIONS))}',
    'candidates',
    'streams',
]


@pytest.mark.parametrize('name', CAUSAL)
def test_nothing_is_predicted_from_padding(name):
    """What a net reads in the place of a hole learns nothing."""
    model, _ = made(name)
    x, *_ = SUBJECTS[name].inputs.values()
    read = []
    table = model.net.embeds['note_embed'] if name == 'streams' else model.net.token_emb
    table.register_forward_hook(lambda *given: read.append(given[-1]))
    mask = torch.arange(tree_leaves(x)[0].shape[1]).expand(2, -1) != 2
    loss = seeded(lambda m: m(x, mask=mask), model)
    grads = [grad for grad in torch.autograd.grad(loss, read, allow_unused=True) if grad is not None]
    assert grads and all((grad[:, 2] == 0).all() and (grad[:, [1, 3]] != 0).any() for grad in grads)


# of every wrapper the first that can
COMPILED = {name.split(',')[0]: name for name in reversed([*SUBJECTS]) if name not in NO_GRAPH}.values()


# whose loss and gradients `test_token_loss.py` compiles
ELSEWHERE = ('language', 'free')


@pytest.mark.parametrize(
    'name, backend',
    [
        *(pytest.param(name, 'eager', marks=pytest.mark.slow) for name in COMPILED if name not in ELSEWHERE),
        *(pytest.param(name, 'aot_eager', marks=pytest.mark.nightly) for name in COMPILED),
    ],
)
def test_the_loss_compiles_to_one_graph(name, backend):
    model, call = made(name)
    check_one_graph(model, lambda m: call(m, with_holes(name)), backend)

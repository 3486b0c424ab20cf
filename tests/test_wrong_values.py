"""Every argument of every public call, with values of every wrong kind: it runs, or a check of ours refuses it by name.

Nothing fails inside torch or einops. What a user's own function or module raises is that function's.
"""

import inspect
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import x_transformers
from x_transformers import (
    DPO,
    Attention,
    AttentionPool,
    AutoregressiveWrapper,
    BeliefStateWrapper,
    BertPretrainWrapper,
    ChunkedCrossAttention,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    DMOLHead,
    EarlyExitWrapper,
    Encoder,
    EntropyBasedTokenizer,
    FeedForward,
    MLMWrapper,
    MultiInputAutoregressiveWrapper,
    MultiInputTransformerWrapper,
    NeoMLP,
    NextLatentWrapper,
    NonAutoregressiveWrapper,
    PrefixDecoder,
    SimPO,
    SpanCorruption,
    T5PretrainWrapper,
    TransformerWrapper,
    VectorQuantizer,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.continuous_autoencoder import ContinuousTransformerAutoencoder
from x_transformers.core.checks import kind_of
from x_transformers.discover_wrapper import DiscoverDecoder, TPREncoder
from x_transformers.etc import CPCLoss, ETCEncoder
from x_transformers.flags import ConfigError
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import FullBandwidth
from x_transformers.gpt_lejepa import LatentAutoregressive
from x_transformers.gpt_vae import GPTVAE
from x_transformers.recirculation import Recirculation
from x_transformers.recurrent import DiagonalSSM, Mamba, RWKVChannelMix, RWKVTimeMix
from x_transformers.up_wrapper import SyntheticDataGenerator
from x_transformers.xl_autoregressive_wrapper import EpisodicMemoryWrapper
from x_transformers.xm_latent_decoder import XMLatentDecoder

ROOT = str(Path(x_transformers.__file__).parent)
torch.manual_seed(0)
D = dict(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
ids = torch.randint(0, 10, (2, 6))
x = torch.randn(2, 6, 16)


def lm(kind=Decoder, stack=None, **f):
    return TransformerWrapper(**{**dict(num_tokens=10, max_seq_len=8, attn_layers=kind(**{**D, **(stack or {})})), **f})


mask = torch.ones(2, 6, dtype=torch.bool)
CASES = {}


def case(name, obj, method, **valid):
    CASES[name] = (obj, method, valid)


dec = Decoder(**D, cross_attend=True)
ctx = torch.randn(2, 4, 16)
case('Attention', Attention(16, heads=2, dim_head=8), 'forward', x=x)
case('Attention+ctx', Attention(16, heads=2, dim_head=8, dim_context=16), 'forward', x=x, context=ctx)
case('FeedForward', FeedForward(16), 'forward', x=x)
case('Decoder', Decoder(**D), 'forward', x=x)
case('Decoder rot', Decoder(**D, rotary_pos_emb=True), 'forward', x=x)
case('Decoder alibi', Decoder(**D, alibi_pos_bias=True), 'forward', x=x)
case('Decoder cross', dec, 'forward', x=x, context=ctx)
case('Encoder', Encoder(**D), 'forward', x=x)
case('Encoder cond', Encoder(**D, use_adaptive_rmsnorm=True), 'forward', x=x, condition=torch.randn(2, 16))
case('Prefix', PrefixDecoder(**D), 'forward', x=x)
case('CrossAttender', CrossAttender(**D), 'forward', x=x, context=ctx)
net = lm()
case('TransformerWrapper', net, 'forward', x=ids)
case(
    'TransformerWrapper rich',
    lm(stack=dict(rotary_pos_emb=True, cross_attend=True), num_memory_tokens=2, max_mem_len=4, recycling=True),
    'forward',
    x=ids,
    context=ctx,
)
case('TW looped', lm(stack=dict(pre_and_post_norm=True), looped=True), 'forward', x=ids)
case('TW embeds', lm(embed_num_tokens=dict(a=3)), 'forward', x=ids, embed_ids=dict(a=ids % 3))
case('TW encoder', lm(Encoder), 'forward', x=ids)
case(
    'ViT',
    ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(**D), num_classes=3),
    'forward',
    img=torch.randn(2, 3, 8, 8),
)
ar = AutoregressiveWrapper(lm())
case('AR', ar, 'forward', x=ids)
case('AR.generate', ar, 'generate', prompts=ids[:, :3], seq_len=2)
for n in ('beam_search', 'speculative', 'stream'):
    case('AR.' + n, ar, n, prompts=ids[:, :3], seq_len=2)
case('XL', XLAutoregressiveWrapper(lm(max_mem_len=4)), 'forward', x=ids)
case('XL.generate', XLAutoregressiveWrapper(lm(max_mem_len=4)), 'generate', start_tokens=ids[:, :3], seq_len=2)
nar = NonAutoregressiveWrapper(lm(Encoder, max_seq_len=6), mask_id=0, steps=2)
case('NAR', nar, 'forward', x=ids)
case('NAR.generate', nar, 'generate', batch_size=2)
sop = BertPretrainWrapper(lm(Encoder), dict(mask_token_id=9, pad_token_id=0))
case('BERT', sop, 'forward', x=ids, labels=ids[:, 0] % 2)
case('MLM', MLMWrapper(lm(Encoder), 9, 0), 'forward', x=ids)
co = ContinuousTransformerWrapper(dim_in=3, dim_out=3, max_seq_len=8, attn_layers=Decoder(**D))
v3 = torch.randn(2, 6, 3)
case('Continuous', co, 'forward', x=v3)
ca = ContinuousAutoregressiveWrapper(co)
case('CAR', ca, 'forward', x=v3)
case('CAR.generate', ca, 'generate', start_tokens=v3[:, :3], seq_len=2)
xn = XValTransformerWrapper(num_tokens=10, max_seq_len=8, numerical_token_id=3, attn_layers=Decoder(**D))
case('XVal', xn, 'forward', x=ids, x_num=torch.randn(2, 6))
xa = XValAutoregressiveWrapper(xn)
case('XValAR', xa, 'forward', x=ids, x_num=torch.randn(2, 6))
case('XValAR.generate', xa, 'generate', start_tokens=ids[:, :3], start_numbers=torch.randn(2, 3), seq_len=2)
mi = MultiInputTransformerWrapper(num_tokens=dict(a=10, b=10), max_seq_len=8, attn_layers=Decoder(**D))
case('Multi', mi, 'forward', x=dict(a=ids, b=ids))
ma = MultiInputAutoregressiveWrapper(mi)
case('MultiAR', ma, 'forward', x=dict(a=ids, b=ids))
case('MultiAR.generate', ma, 'generate', prompts=dict(a=ids[:, :3], b=ids[:, :3]), seq_len=2)
sides = dict(num_tokens=10, depth=1, heads=2, max_seq_len=8)
xt = XTransformer(dim=16, **{f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sides.items()})
spans = SpanCorruption(9, 1, num_sentinels=3)
case('Spans', spans, 'forward', tokens=ids % 6)
case('T5', T5PretrainWrapper(xt, spans), 'forward', tokens=ids % 6)
case('XT', xt, 'forward', src=ids, tgt=ids)
case('XT.generate', xt, 'generate', seq_in=ids, seq_out_start=ids[:, :2], seq_len=2)
case(
    'DPO',
    DPO(lm()),
    'forward',
    preferred_seq=ids,
    unpreferred_seq=ids.flip(1),
    prompt_mask=mask & (torch.arange(6) < 3),
)
case(
    'SimPO',
    SimPO(lm()),
    'forward',
    preferred_seq=ids,
    unpreferred_seq=ids.flip(1),
    prompt_mask=mask & (torch.arange(6) < 3),
)
bs = BeliefStateWrapper(lm(max_seq_len=9))
case('Belief', bs, 'forward', seq=ids)
case('Belief.gen', bs, 'generate_with_suffix_cond', prompts=ids[:, :3], seq_len=2)
early = EarlyExitWrapper(lm(stack=dict(depth=2)))
case('EarlyExit', early, 'forward', x=ids)
case('EarlyExit.generate', early, 'generate', prompts=ids[:, :3], seq_len=2)
case('NextLatent', NextLatentWrapper(lm(), dim=16), 'forward', x=ids)
case('LeJEPA', LatentAutoregressive(lm(), dim=16), 'forward', x=ids)
vae = GPTVAE(num_tokens=10, dim=16, depth=1, enc_depth=1, max_seq_len=8, heads=2, attn_dim_head=8)
case('VAE', vae, 'forward', seq=ids)
case('VAE.generate', vae, 'generate', prompts=ids[:, :3], seq_len=2)
free = FreeTransformer(
    num_tokens=10, dim=16, dec_head_depth=1, dec_tail_depth=1, heads=2, attn_dim_head=32, latent_bits=3, pad_id=0
)
case('Free', free, 'forward', seq=ids)
case('Free.generate', free, 'generate', prompts=ids[:, :3], seq_len=5)
fb = FullBandwidth(lm(stack=dict(depth_scale_residual=True), tie_embedding=True, post_emb_norm=True))
case('FB', fb, 'forward', token_ids=ids)
case('FB.generate', fb, 'generate', prompts=ids[:, :3], seq_len=2)
xm = XMLatentDecoder(lm(), num_latents=2)
case('XM', xm, 'forward', seq=ids)
case('XM.generate', xm, 'generate', start_tokens=ids[:, :3], seq_len=2)
case('XM.gen2', xm, 'generate_with_candidate_latents', start_tokens=ids[:, :3], seq_len=2)
recirculation = Recirculation(lm(stack=dict(depth=2)), 1, 0)
case('Recirc', recirculation, 'forward', x=ids)
ae = ContinuousTransformerAutoencoder(dim=16, enc_depth=1, dec_depth=1, max_seq_len=8, heads=2, attn_dim_head=8)
case('AE', ae, 'forward', seq=x)
case('AE.encode', ae, 'encode', seq=x)
case('AE.decode', ae, 'decode', latents=torch.randn(2, 16), seq_len=3)
di = DiscoverDecoder(decoder=lm(), num_fillers=8, bos_id=8, pad_id=9, max_seq_len=6)
tp = TPREncoder(dim=16, num_fillers=10, num_roles=6)
dt = ids % 8
case('Discover', di, 'forward', tokens=dt, targets=dt)
case('Discover.encode', di, 'encode', tokens=dt)
case('Discover.decode', di, 'decode', encodings=torch.randn(2, 16), lengths=torch.tensor([2, 3]))
case(
    'Discover.surgery',
    di,
    'surgery',
    tokens=dt,
    edited_tokens=dt,
    role_ids_old=torch.arange(6).expand(2, -1),
    role_ids_new=torch.arange(6).expand(2, -1),
    tpr=tp,
)
case('TPR', tp, 'forward', tokens=dt, role_ids=torch.arange(6).expand(2, -1))
case(
    'TPR.fit',
    tp,
    'fit',
    tokens=dt,
    role_ids=torch.arange(6).expand(2, -1),
    target_encodings=torch.randn(2, 16),
    steps=1,
)
case(
    'NeoMLP',
    NeoMLP(dim_in=3, dim_hidden=2, dim_out=2, dim_model=16, depth=1, encoder_kwargs=dict(heads=2, attn_dim_head=8)),
    'forward',
    x=torch.randn(2, 3),
)
streams = dict(x_long=x, x_global=x[:, :2])
case('ETC', ETCEncoder(dim=16, depth=1, heads=2, dim_head=8), 'forward', **streams)
head = DMOLHead(16)
case('DMOL', head, 'forward', x=x)
case('DMOL.log_prob', head, 'log_prob', params=torch.zeros(2, 6, 100), pixels=ids.unsqueeze(-1).expand(-1, -1, 3))
case('DMOL.sample', head, 'sample', params=torch.zeros(2, 6, 100))
case('CCA', ChunkedCrossAttention(16, 2, 8, 2), 'forward', x=x, neighbours=torch.randn(2, 1, 2, 3, 16))
case('Codes', VectorQuantizer(16, 5), 'forward', z=x)
case('CPC', CPCLoss(), 'forward', predicted=x, target=x)
for made in (RWKVTimeMix(16), RWKVChannelMix(16), DiagonalSSM(16, state=2), Mamba(16)):
    case(type(made).__name__, made, 'forward', x=x)
case('AttentionPool', AttentionPool(16, heads=2, dim_head=8), 'forward', context=x)
case('EBT', EntropyBasedTokenizer(lm(), 1.0), 'forward', seq=ids)
gen = SyntheticDataGenerator(dim=8, num_tokens=10)
case('Synth', gen, 'forward', input=ids)
case('Synth.generate', gen, 'generate', length=3, seed=ids)
case('Episodic', EpisodicMemoryWrapper(lm(), 2), 'forward', x=ids)

WRONG = {
    'str': 'x',
    'list': [[1]],
    'biglist': [[True] * 6] * 2,
    'int': 3,
    'neg': -1,
    'big': 99,
    'float': 2.5,
    'nan': float('nan'),
    'bool': True,
    'object': object(),
    'dict': {'a': 1},
    'func': (lambda *a: None),
    'tuple': (1, 2),
    't0': torch.tensor(1),
    't0f': torch.tensor(1.5),
    't1': torch.zeros(3),
    't1i': torch.tensor([0, 99]),
    't1n': torch.tensor([-1, 2]),
    't1f': torch.tensor([2.5, 1.0]),
    't1b': torch.tensor([True, False]),
    't2': torch.zeros(2, 3),
    't2i': torch.zeros(2, 6, dtype=torch.long) + 99,
    't2b': torch.ones(3, 6, dtype=torch.bool),
    't2bok': torch.ones(2, 6, dtype=torch.bool),
    't2f': torch.ones(2, 6),
    't3': torch.zeros(2, 6, 5),
    't3i': torch.zeros(2, 6, 16, dtype=torch.long),
    't3ok': torch.zeros(2, 6, 16),
    't3d': torch.zeros(2, 6, 16, dtype=torch.float64),
    't4': torch.zeros(2, 3, 4, 5),
    't5': torch.zeros(1, 1, 1, 1, 1),
    'tc': torch.zeros(2, 6, dtype=torch.complex64),
    'empty': torch.zeros(0),
    'lot': [torch.zeros(2, 3, 16)],
    'lon': ['x'],
}

# what the user's own function, module or optimiser is called with, it refuses itself
OWN = {
    **{(name, 'func'): 'the function of the user fails' for name in (
        'transform_token_embeds', 'transform_block_inputs', 'transform_attn_inputs', 'transition',
        'filter_logits_fn')},
    **{(name, 'dict'): 'an embedding or head of the user may take any keyword' for name in (
        'token_emb_kwargs', 'to_logits_kwargs')},
}  # fmt: skip
OPAQUE = ('hiddens', 'tpr', 'callback', 'optim', 'length_penalty')
BESIDE = ('mask context context_mask attn_mask self_attn_kv_mask mems mem_masks seq_start_pos pos attn_bias cache '
          'prepend_embeds prepend_mask sum_embeds document_ids')  # fmt: skip


def arguments_of(obj, method, valid):
    """The arguments of a call, those that features read included."""
    declared = inspect.signature(getattr(obj, method)).parameters.values()
    names = [p.name for p in declared if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.kind is p.VAR_KEYWORD for p in declared):
        held = [module.features for module in obj.modules() if hasattr(module, 'features')]
        names += [*BESIDE.split(), *sorted({name for features in held for name in features.call_inputs})]
    return [name for name in dict.fromkeys((*names, *valid)) if name not in OPAQUE]


def fault(obj, method, given):
    """How a call fails other than by a check of ours, or None."""
    torch.default_generator.manual_seed(0)
    try:
        out = getattr(obj, method)(**given)
        if inspect.isgenerator(out):
            list(out)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = last.filename.startswith(ROOT) and type(error) in (TypeError, ValueError, ConfigError)
        return (
            None if ours and '`' in str(error) else f'{type(error).__name__}: {error} ({last.filename}:{last.lineno})'
        )
    return None


def faults(case, kinds):
    obj, method, valid = CASES[case]
    obj.eval()
    assert fault(obj, method, dict(valid)) is None
    found = {}
    for name in arguments_of(obj, method, valid):
        for kind in kinds:
            if (name, kind) not in OWN:
                words = fault(obj, method, {**valid, name: WRONG[kind]})
                if words is not None:
                    found[name, kind] = words
    return found


@pytest.mark.parametrize('case', CASES)
def test_values_of_a_wrong_kind_are_refused_by_name(case):
    assert faults(case, ('str',)) == {}


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_wrong_values_are_refused_by_name(case):
    """Every third value, from another one on for each case."""
    assert faults(case, [*WRONG][[*CASES].index(case) % 3 :: 3]) == {}


@pytest.mark.nightly
@pytest.mark.parametrize('case', CASES)
def test_every_wrong_value_is_refused_by_name(case):
    assert faults(case, WRONG) == {}


CALLS = [
    (lambda: ar_of(8)(ids, lens=torch.tensor([99, 2])), '`lens` must be from 0 to 6, got numbers from 2 to 99'),
    (lambda: ar_of(8)(ids, lens=torch.tensor([-1, 2])), '`lens` must be from 0 to 6, got numbers from -1 to 2'),
    (lambda: ar_of(8)(ids, lens=torch.tensor([2.5, 2.0])), '`lens` must be whole numbers, got torch.float32'),
    (lambda: ca(v3, lens=torch.tensor([99, 2])), '`lens` must be from 0 to 6, got numbers from 2 to 99'),
    (lambda: ca(v3, lens=torch.tensor([2.5, 2.0])), '`lens` must be whole numbers, got torch.float32'),
    (lambda: net(ids, seq_start_pos=torch.tensor([0, 99])),
     '`seq_start_pos` must be from 0 to 6, got numbers from 0 to 99'),
    (lambda: net(ids, mask=[[True] * 6] * 2), '`mask` must be a tensor, got [[True, True, True, True, True, True], '
     '[True, True, True, True, True, True]]'),
    (lambda: net(ids, pos='1'), "`pos` must be a tensor of whole numbers (n) or (b, n) or a floating point tensor "
     "(n, e) or (b, n, e) or a tensor (b, h, n), got '1'"),
    (lambda: net(ids, pos=torch.zeros(2, 6)),
     '`pos` must be vectors of width 16, or whole numbers, got torch.float32 of shape (2, 6)'),
    (lambda: net(ids.bool()), '`x` must hold integer token ids, got torch.bool'),
    (lambda: CASES['ViT'][0](None), '`img` must be a tensor, got None'),
    (lambda: CASES['ViT'][0](torch.zeros(2, 3, 8, 8).long()), '`img` must be floating point, got torch.int64'),
    (lambda: FeedForward(8)(None), '`x` must be a tensor, got None'),
    (lambda: ar.generate(ids[:, :3], 2, generator=42), '`generator` must be a torch.Generator, got 42'),
    (lambda: net(ids, return_mems='yes'), "`return_mems` must be True or False, got 'yes'"),
]  # fmt: skip


def ar_of(length):
    return AutoregressiveWrapper(lm(max_seq_len=length))


@pytest.mark.parametrize(('call', 'words'), CALLS)
def test_the_words(call, words):
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    assert str(refused.value) == words


def test_a_backend_that_there_is_not():
    with pytest.raises(ValueError, match=r"`compile` must be True, False, or a backend of torch.co.*got 'nonexistent'"):
        ar.generate(ids[:, :3], 2, compile='nonexistent')


def test_what_always_worked_still_works():
    import numpy as np

    plain = ar.eval().generate(ids[:, :3], 2, temperature=0.0)
    assert torch.equal(ar.generate(ids[:, :3], np.int64(2), temperature=0.0), plain)
    out = net.eval()(ids)
    for yes in (True, 1, np.bool_(True), torch.tensor(True)):
        torch.testing.assert_close(net(ids, return_intermediates=yes)[0], out)
    for no in (False, 0, None, np.bool_(False)):
        assert torch.equal(net(ids, return_intermediates=no), out)
    assert torch.equal(net(ids, seq_start_pos=torch.tensor([0, 0], dtype=torch.int32)), out)


@pytest.mark.parametrize(
    ('annotation', 'right', 'wrong'),
    [
        (bool, (True, 0, 1, None, torch.tensor(False)), (2, -1, 0.5, 'yes', torch.tensor(1), torch.ones(2).bool())),
        (Sequence[int], ([], (1, 2)), ('12', b'12', 3, None)),
        (Sequence[int] | None, ([1], None), ('12', 3)),
        (Tensor | Sequence[int], (torch.ones(2), [1]), ('12', None)),
        (Mapping[str, int], ({},), ([], 'a')),
    ],
    ids=str,
)
def test_what_an_annotation_allows(annotation, right, wrong):
    kind = kind_of(annotation)
    assert all(map(kind.test, right)) and not any(map(kind.test, wrong))

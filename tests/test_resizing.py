"""More or fewer tokens, in place: what was there stays, by any head, and everything that knows the number follows."""

import copy
import json

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn

from x_transformers import (
    AutoregressiveWrapper,
    BeliefStateWrapper,
    Decoder,
    Encoder,
    MLMWrapper,
    NonAutoregressiveWrapper,
    TransformerWrapper,
    XTransformer,
)
from x_transformers.flags import ConfigError

OLD, NEW, DIM = 11, 15, 8
IDS = torch.arange(18).view(2, 9) % OLD


def net_of(stack=Decoder, **model):
    layers = stack(dim=DIM, depth=1, heads=2, attn_dim_head=4, rotary_pos_emb=True)
    return TransformerWrapper(**{'num_tokens': OLD, 'max_seq_len': 12, 'attn_layers': layers, **model})


HEADS = {
    'linear': {},
    'bias': dict(logits_bias=True),
    'tied': dict(tie_embedding=True),
    'tied, normed, with a bias': dict(tie_embedding=True, l2norm_embed=True, logits_bias=True),
    'several': dict(num_output_heads=2),
    'transformed': dict(head_transform=dict(dim=6, activation='gelu')),
    'scaled and capped': dict(logits_scale=0.5, logits_softclamp=3.0),
    'other width': dict(emb_dim=6),
    'width that is said': dict(logits_dim=OLD),
    'width of something else': dict(logits_dim=5),
    'by layer': dict(ff_deep_embed=True),
    "a user's table": dict(token_emb=nn.Embedding(OLD, DIM)),
    "a user's head": dict(to_logits=nn.Linear(DIM, OLD)),
}


def heads_of(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.whole
@pytest.mark.parametrize('name', HEADS)
@pytest.mark.parametrize('new', [NEW, 7])
def test_logits_of_old_tokens_stay(name, new):
    net = randomised(net_of(**copy.deepcopy(HEADS[name])))
    kept, ids = min(new, OLD), IDS % min(new, OLD)
    wanted = heads_of(net(ids))
    AutoregressiveWrapper(net).resize_token_embeddings(new)
    width = 5 if 'else' in name else new
    for found, before in zip(heads_of(net(ids)), wanted, strict=True):
        assert found.shape[-1] == width
        assert_close(found[..., : min(kept, width)], before[..., : min(kept, width)])
    assert net.num_tokens == new and net(torch.full((1, 2), new - 1)) is not None
    with pytest.raises((ValueError, IndexError), match=f'from {new} to {new}|out of range'):
        net(torch.full((1, 2), new))
    if 'user' not in name:
        again = TransformerWrapper.from_config(json.loads(json.dumps(net.config))).double()
        again.load_state_dict(net.state_dict())
        assert torch.equal(heads_of(again.eval()(ids))[0], heads_of(net.eval()(ids))[0])
    if width != new:
        return
    # it learns, and generates
    AutoregressiveWrapper(net)(ids).backward()
    assert net.token_emb(ids).shape[-1] == net.emb_dim and any(p.grad is not None for p in net.token_emb.parameters())
    AutoregressiveWrapper(net).generate(ids, 3)


@pytest.mark.parametrize('flags', [{}, dict(l2norm_embed=True), dict(logits_bias=True)])
def test_new_rows_are_drawn_as_at_the_beginning(flags):
    torch.manual_seed(0)
    net, many = net_of(**flags), net_of(num_tokens=OLD + 4000, **flags)
    net.resize_token_embeddings(OLD + 4000)
    for (name, ours), (_, theirs) in zip(net.named_parameters(), many.named_parameters(), strict=True):
        if len(ours) > OLD + 100:
            assert abs(ours[OLD:].std() - theirs[OLD:].std()) <= 0.03 * theirs.std(), name
            assert ours[OLD:].abs().max() <= 1.3 * theirs.abs().max(), name


def test_what_a_user_ties_stays_tied():
    net = net_of()
    net.to_logits.weight = net.token_emb.emb.weight
    net.token_emb.emb.weight.requires_grad_(False)
    net.token_emb.emb.weight.no_decay = True
    net.resize_token_embeddings(NEW)
    weight = net.token_emb.emb.weight
    assert net.to_logits.weight is weight and not weight.requires_grad and weight.no_decay and len(weight) == NEW


def test_a_folder_keeps_the_new_size(tmp_path):
    model = AutoregressiveWrapper(net_of(tie_embedding=True)).eval()
    model.resize_token_embeddings(NEW)
    pytest.importorskip('safetensors')
    model.save_pretrained(tmp_path)
    again = AutoregressiveWrapper.from_pretrained(tmp_path).eval()
    assert again.net.num_tokens == NEW and torch.equal(again.net(IDS), model.net(IDS))
    assert again.net.to_logits.shared[0] is again.net.token_emb


def sides(**more):
    sizes = dict(max_seq_len=12, depth=1, heads=2, attn_dim_head=4)
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    return XTransformer(dim=DIM, **{'enc_num_tokens': OLD, 'dec_num_tokens': OLD, **flags, **more})


def test_both_sides_of_an_encoder_decoder():
    tied = sides(tie_token_emb=True, dec_tie_embedding=True)
    tied.resize_token_embeddings(NEW)
    assert tied.encoder.token_emb is tied.decoder.net.token_emb is tied.decoder.net.to_logits.shared[0]
    assert tied.config['enc_num_tokens'] == tied.config['dec_num_tokens'] == NEW
    with pytest.raises(ValueError, match='for models with one table: give one number'):
        tied.resize_token_embeddings({'encoder': 20})
    model = sides(dec_num_tokens=13)
    with pytest.raises(ValueError, match=r"by name, such as \{'encoder': 11, 'decoder.net': 13\}"):
        model.resize_token_embeddings(NEW)
    with pytest.raises(ValueError, match="`num_tokens` must name one of the models, got 'enc'"):
        model.resize_token_embeddings({'enc': NEW})
    model.resize_token_embeddings({'decoder': NEW})
    assert (model.encoder.num_tokens, model.decoder.net.num_tokens) == (OLD, NEW)
    model.encoder.resize_token_embeddings(12)  # of a part alone; the config of the whole follows
    assert (model.config['enc_num_tokens'], model.config['dec_num_tokens']) == (12, NEW)
    XTransformer.from_config(model.config).load_state_dict(model.state_dict())
    model(IDS, torch.full((2, 4), NEW - 1))


def test_wrappers_know_the_new_tokens():
    masked = MLMWrapper(net_of(Encoder), mask_token_id=1, pad_token_id=0, mask_prob=0.9, random_token_prob=0.2)
    masked.resize_token_embeddings(NEW)
    x = torch.full((4, 12), NEW - 1)
    masked(x)
    drawn = {int(one) for _ in range(40) for one in masked.hide(x)[0].ids.flatten()}
    assert drawn & set(range(OLD, NEW - 1))
    filled = NonAutoregressiveWrapper(net_of(Encoder), mask_id=1, schedule='cosine')
    filled.resize_token_embeddings(NEW)
    filled(x)
    both = randomised(BeliefStateWrapper(net_of(), net_of()))
    belief = torch.randn(3, 2 * DIM, dtype=torch.float64)
    before = both.text_head(belief)
    both.resize_token_embeddings(NEW)
    after = both.text_head(belief)
    assert_close(torch.cat([half[:, :OLD] for half in after.chunk(2, dim=-1)], dim=-1), before)
    both(x)


class Adapter(nn.Linear):
    """As libraries of adapters put one in the place of a layer."""


@pytest.mark.parametrize(
    ('build', 'wanted', 'error', 'words'),
    [
        (net_of, 0, ValueError, r'`num_tokens` must .*got 0'),
        (net_of, 2.5, TypeError, r'`num_tokens` must .*got 2.5'),
        (net_of, '20', TypeError, r"`num_tokens` must .*got '20'"),
        (lambda: Decoder(dim=8, depth=1, heads=1), 20, ValueError, 'Decoder has none'),
        (lambda: net_of(to_logits=Adapter(DIM, OLD)), 20, ConfigError, '`to_logits` is a .*Adapter: it must be'),
        (lambda: net_of(token_emb=nn.Sequential(nn.Embedding(OLD, DIM))), 20, ConfigError, '`token_emb` is a torch'),
        (lambda: NonAutoregressiveWrapper(net_of(Encoder), mask_id=9), 9, ValueError, 'above the `mask_id` of'),
        (lambda: MLMWrapper(net_of(Encoder), 9, None), 9, ValueError, 'above the `mask_token_id` of MLMWrapper, 9'),
    ],
)  # fmt: skip
def test_what_cannot_be_resized(build, wanted, error, words):
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words):
        model.resize_token_embeddings(wanted)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))


@pytest.mark.slow
@pytest.mark.filterwarnings('default')
@pytest.mark.parametrize('kind', ['Llama', 'T5'])
def test_folders_of_transformers_follow(kind, tmp_path):
    """A model read from one is written with its new size, and read there with the same logits."""
    transformers = pytest.importorskip('transformers')
    from x_transformers import pretrained

    if kind == 'Llama':
        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=OLD, **sizes))
    else:
        sizes = dict(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
        theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=OLD, **sizes))
    theirs.save_pretrained(tmp_path / 'theirs')
    model = pretrained.load(tmp_path / 'theirs').eval().resize_token_embeddings(NEW)
    model.save_pretrained(tmp_path / 'ours', format='hf')
    again = type(theirs).from_pretrained(tmp_path / 'ours').eval()
    ids = torch.arange(NEW).unsqueeze(0)
    with torch.no_grad():
        if kind == 'Llama':
            found, wanted = model(ids), again(ids).logits
        else:
            context = model.encoder(ids)
            found = model.decoder.net(ids, context=context)
            wanted = again(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)

"""Adapters of PEFT: they train alone, generation runs with them, and merging them changes no number."""

import copy

import pytest
import torch

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.integrations.trainer import CausalLM

# what other libraries warn of is theirs
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])
LLAMA = dict(rotary_pos_emb=True, ff_glu=True, ff_swish=True, ff_no_bias=True, use_rmsnorm=True, attn_kv_heads=1)


@pytest.fixture(scope='module')
def peft():
    return pytest.importorskip('peft', reason="pip install -e '.[ecosystem]'")


def language_model(kind=CausalLM, stack=LLAMA, **flags):
    torch.manual_seed(0)
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **stack)
    return kind(TransformerWrapper(num_tokens=10, max_seq_len=32, attn_layers=layers, **flags))


def changed(model):
    """The model with weights of its adapters that do something, in evaluation."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def continued(model):
    """Greedy tokens, read from the cache and without one."""
    cached, plain = (model.generate(IDS, 8, temperature=0.0, cache_kv=cache) for cache in (True, False))
    assert torch.equal(cached, plain)
    # one row alone takes copies of weights, and compares as well
    assert torch.equal(cached[:1], model.generate(IDS[:1], 8, temperature=0.0))
    return cached


def configurations(peft, of_tables):
    if of_tables:
        yield from tables(peft)
        return
    yield 'by name', peft.LoraConfig(r=4, target_modules=['to_q', 'to_v'])
    yield 'all linear', peft.LoraConfig(r=4, target_modules='all-linear')
    yield 'weights apart from their lengths', peft.LoraConfig(r=4, target_modules='all-linear', use_dora=True)
    yield 'gains', peft.IA3Config(target_modules=r'.*(to_k|to_v|ff\.2)', feedforward_modules=r'.*ff\.2')


def tables(peft):
    yield 'tables too', peft.LoraConfig(r=4, target_modules=['to_q', 'emb'])
    yield 'a table of its own', peft.LoraConfig(r=4, target_modules=['to_out'], modules_to_save=['token_emb'])
    yield (
        'some tokens',
        peft.LoraConfig(r=4, target_modules=['to_v'], trainable_token_indices={'token_emb.emb': [1, 2]}),
    )


@pytest.mark.parametrize('of_tables, tied', [(False, False), (True, False), (True, True)])
def test_adapters_train_alone_generate_and_merge(peft, of_tables, tied):
    for name, config in configurations(peft, of_tables):
        base = language_model(AutoregressiveWrapper, tie_embedding=tied)
        before = {key: value.clone() for key, value in base.state_dict().items()}
        model = peft.get_peft_model(base, config)
        learned = {key: p for key, p in model.named_parameters() if p.requires_grad}
        assert learned and len(learned) < len([*model.parameters()]), name
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        losses = []
        for _ in range(3):
            losses.append(model(IDS))
            losses[-1].backward()
            optimizer.step()
            assert all(p.requires_grad or p.grad is None for p in model.parameters())
            optimizer.zero_grad()
        assert losses[-1] < losses[0], name
        tokens, logits = continued(changed(model)), base.net(IDS)
        assert (logits - language_model(tie_embedding=tied).eval().net(IDS)).abs().max() > 1e-2, name
        with model.disable_adapter():
            plain = language_model(AutoregressiveWrapper, tie_embedding=tied).eval()
            assert torch.allclose(base.net(IDS), plain.net(IDS), atol=1e-6), name
            assert torch.equal(continued(model), continued(plain)), name
        merged = model.merge_and_unload()
        assert torch.allclose(merged.net(IDS), logits, atol=1e-5) and torch.equal(continued(merged), tokens), name
        again = language_model(AutoregressiveWrapper, tie_embedding=tied).eval()
        again.load_state_dict(merged.state_dict())
        assert torch.allclose(again.net(IDS), logits, atol=1e-5), name
        assert before.keys() == again.state_dict().keys()


def test_merging_in_place_counts_from_the_next_token_on(peft):
    model = peft.get_peft_model(language_model(), peft.LoraConfig(r=4, target_modules=['to_q', 'to_out', 'proj']))
    changed(model)
    apart = continued(model)
    model.merge_adapter()
    assert torch.equal(continued(model), apart)
    model.unmerge_adapter()
    assert torch.equal(continued(model), apart)
    with model.disable_adapter():
        assert not torch.equal(continued(model), apart)


def test_a_task_type(peft, tmp_path):
    """The call of a causal language model of `transformers`, which `CausalLM` answers."""
    config = peft.LoraConfig(task_type='CAUSAL_LM', r=4, target_modules='all-linear')
    base = language_model()
    other = copy.deepcopy(base).eval()
    model = changed(peft.get_peft_model(base, config))
    assert type(model).__name__ == 'PeftModelForCausalLM' and model.config.model_type == 'x-transformers'
    output = model(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS)
    assert torch.allclose(output.loss, AutoregressiveWrapper(base.net)(IDS))
    tokens = continued(model)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(other, tmp_path)
    assert torch.equal(again(input_ids=IDS).logits, output.logits) and torch.equal(continued(again), tokens)
    merged = again.merge_and_unload()
    assert type(merged) is CausalLM and torch.allclose(merged(IDS).logits, output.logits, atol=1e-5)


def test_any_model_takes_adapters(peft):
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    model = ViTransformerWrapper(image_size=8, patch_size=4, num_classes=3, attn_layers=layers).eval()
    images = torch.randn(2, 3, 8, 8)
    adapted = changed(peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules='all-linear')))
    found = adapted(images)
    assert torch.allclose(adapted.merge_and_unload()(images), found, atol=1e-5)

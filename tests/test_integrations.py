"""A language model as trainers of other libraries call it. The libraries themselves run in tests/ecosystem."""

import json

import pytest
import torch
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.integrations.trainer import CausalLM

IDS = torch.tensor([[3, 1, 4, 1, 5, 2], [2, 6, 5, 3, 5, 1]])


@pytest.fixture(scope='module')
def model():
    stack = Decoder(dim=8, depth=1, heads=2, attn_dim_head=4, rotary_pos_emb=True)
    return CausalLM(TransformerWrapper(num_tokens=7, max_seq_len=9, attn_layers=stack)).double().eval()


def test_loss_and_logits_by_name(model):
    plain = AutoregressiveWrapper(model.net).eval()
    output = model(IDS, labels=IDS)
    assert list(output) == ['loss', 'logits'] and output[0] is output.loss is output['loss']
    assert torch.allclose(output.loss, plain(IDS)) and torch.allclose(output.logits, model.net(IDS))
    assert list(model(input_ids=IDS)) == ['logits']
    assert torch.allclose(model(IDS, return_dict=False)[0], output.logits)
    assert isinstance(model(IDS, labels=IDS, return_dict=False), tuple)
    with pytest.raises(AttributeError, match="the output has no 'hidden_states', it has 'loss', 'logits'"):
        _ = output.hidden_states
    assert torch.equal(model.generate(IDS, 3, temperature=0.0), plain.generate(IDS, 3, temperature=0.0))


def test_in_training_there_is_the_loss_alone(model):
    try:
        output = model.train()(IDS, labels=IDS)
    finally:
        model.eval()
    assert list(output) == ['loss'] and torch.allclose(output.loss, model(IDS, labels=IDS).loss)


def test_padding_is_neither_read_nor_a_target(model):
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    labels = IDS.masked_fill(mask == 0, -100)
    labels[0, 2] = -100  # predicted from padding
    wanted = AutoregressiveWrapper(model.net)(IDS, labels=labels, mask=mask.bool())
    for ids in (IDS, IDS.masked_fill(mask == 0, 0)):
        assert torch.allclose(model(ids, attention_mask=mask, labels=IDS).loss, wanted)
    assert torch.equal(model(IDS, attention_mask=mask.bool()).logits, model(IDS, attention_mask=mask).logits)
    with pytest.raises(ValueError, match=r'`attention_mask` got shape \(2, 5\), it must be that of'):
        model(IDS, attention_mask=mask[:, 1:])
    with pytest.raises(ValueError, match=r'`labels` got shape \(2, 5\), it must be that of `input_ids`'):
        model(IDS, labels=IDS[:, 1:])


def test_several_batches_share_a_number_of_targets(model):
    labels = IDS.clone()
    labels[0, 2:] = -100
    wanted = model(IDS, labels=labels).loss
    assert model(IDS, labels=labels, num_items_in_batch=1).loss == wanted  # a score is a mean
    try:
        model.train()
        rows = [model(IDS[row, None], labels=labels[row, None], num_items_in_batch=6).loss for row in range(2)]
    finally:
        model.eval()
    assert torch.allclose(sum(rows), wanted)


def test_what_callers_say_as_a_matter_of_course(model):
    said = dict(output_attentions=None, output_hidden_states=False, inputs_embeds=None, use_cache=True)
    assert torch.equal(model(IDS, **said).logits, model(IDS).logits)
    with pytest.raises(ValueError, match='`output_attentions` got True: this model takes `input_ids` and gives logits'):
        model(IDS, output_attentions=True)
    assert model.prepare_inputs_for_generation(IDS, past=1) == {'input_ids': IDS, 'past': 1}


def test_its_configuration_tells_what_it_is(model):
    config = model.config
    assert config.model_type == 'x-transformers' and 'model_type' not in config.to_dict()
    assert CausalLM.from_config(json.loads(json.dumps(config))).config == config
    own = nn.Embedding(7, 8)  # which JSON cannot hold
    own = TransformerWrapper(num_tokens=7, max_seq_len=9, token_emb=own, attn_layers=model.net.attn_layers)
    assert CausalLM(own).config == {'class': 'CausalLM'}
    assert list(model.state_dict()) == list(AutoregressiveWrapper(model.net).state_dict())


def test_labels_that_a_trainer_takes_out_are_not_lost_in_silence(model, logged):
    """Its label smoothing compares logits with the tokens that they have read."""
    try:
        model.train()(IDS)
        assert not logged
        model(IDS, num_items_in_batch=12)
    finally:
        model.eval()
    assert 'give `CausalLM(..., label_smoothing=...)`' in logged[0] and len(logged) == 1

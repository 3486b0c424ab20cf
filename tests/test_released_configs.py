"""Configs as releases of `transformers` have written them: with fields that newer ones no longer have, or not yet."""

import json
from pathlib import Path

from x_transformers import pretrained

CONFIGS = json.loads((Path(__file__).parent / 'data' / 'released_configs.json').read_text(encoding='utf-8'))


def refusal(config):
    try:
        return pretrained.keywords(config)['class'] not in (
            'TransformerWrapper',
            'XTransformer',
            'EncoderDecoder',
            'Classifier',
        )
    except ValueError as error:
        return str(error)


def test_every_field_of_theirs_is_known():
    assert not {name: reason for name, config in CONFIGS.items() if (reason := refusal(config))}


def test_what_they_say():
    """Some of it under older names, or by default."""
    calls = {name: pretrained.keywords(config) for name, config in CONFIGS.items()}
    assert calls['flan']['enc_ff_glu'] and calls['flan']['enc_ff_activation'] == 'gelu_tanh'
    assert calls['old t5']['enc_ff_activation'] == 'relu'
    assert calls['opus']['enc_emb_scale'] == 512**0.5 and calls['opus']['pad_value'] == 58100
    assert calls['bart-mnli']['num_classes'] == 3 and calls['bart-mnli']['start_id'] == 2
    assert calls['roberta-ft']['net']['max_seq_len'] == 512 and calls['sst2']['head_transform']['activation'] == 'relu'
    assert calls['whisper']['encoder']['max_seq_len'] == 1500 and calls['whisper']['decoder']['pad_value'] == 50257
    assert calls['llama-rm']['pad_id'] == 5 and calls['llama-rm']['num_classes'] == 1
    assert calls['pythia']['attn_layers']['rotary_emb_dim'] == 16
    assert calls['gemma3']['attn_layers']['rotary_layers'][5]['theta'] == 1e6
    assert calls['llama32']['attn_layers']['rotary_scaling']['kind'] == 'llama3'
    assert calls['mistral']['attn_layers']['attn_max_attend_past'] == 4095

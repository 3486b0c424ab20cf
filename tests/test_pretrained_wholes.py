"""The text part of checkpoints of pictures and text: the logits of the whole, given text alone."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any

import pytest
import torch
from pretrained_cases import lifted, noisy

from x_transformers import pretrained
from x_transformers.flags import ConfigError

if os.environ.get('CI'):
    import transformers
else:
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

TEXT = dict(
    vocab_size=96, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
VISION = dict(
    hidden_size=32, intermediate_size=56, num_hidden_layers=1, num_attention_heads=4, image_size=16, patch_size=4
)
CLIP, SIGLIP = ({**VISION, 'model_type': kind} for kind in ('clip_vision_model', 'siglip_vision_model'))
ROPE = dict(rope_parameters=dict(rope_type='default', rope_theta=1e4, mrope_section=[1, 1, 2]))
SAM = {**VISION, 'output_channels': 16, 'mlp_dim': 40, 'global_attn_indexes': [0], 'window_size': 2}
SOUND = dict(
    d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=56, num_mel_bins=10,
    max_source_positions=12,
)  # fmt: skip
VOXTRAL = dict(
    model_type='voxtral_encoder', hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=56
)
QWEN = dict(depth=1, hidden_size=32, num_heads=4, out_hidden_size=32)


def of(kind: str, **more: Any) -> dict[str, Any]:
    return {**TEXT, 'model_type': kind, **more}


WHOLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'gemma3': ({**TEXT, 'head_dim': 8, 'sliding_window': 8}, VISION),
    'llava': (of('llama'), CLIP),
    'llava_next': (of('mistral', sliding_window=8), CLIP),
    'llava_onevision': (of('qwen2'), SIGLIP),
    'vipllava': (of('llama'), CLIP),
    'mistral3': (of('mistral', head_dim=12), {**VISION, 'model_type': 'pixtral'}),
    'aya_vision': (of('cohere2'), SIGLIP),
    'idefics3': (of('llama'), VISION),
    'smolvlm': (of('llama'), VISION),
    'internvl': (of('qwen2'), {**VISION, 'image_size': [16, 16], 'patch_size': [4, 4]}),
    'llava_next_video': (of('llama'), CLIP),
    'video_llava': (of('llama'), CLIP),
    'got_ocr2': (of('qwen2'), SAM),
    'qwen2_audio': (of('qwen2'), {**SOUND, 'model_type': 'qwen2_audio_encoder'}),
    'voxtral': (of('llama'), {**SOUND, **VOXTRAL}),
    'qwen2_vl': ({**TEXT, **ROPE}, dict(depth=1, embed_dim=32, hidden_size=32, num_heads=4)),
    'qwen2_5_vl': ({**TEXT, **ROPE}, QWEN),
    'qwen3_vl': ({**TEXT, **ROPE, 'head_dim': 8}, {**QWEN, 'deepstack_visual_indexes': [0]}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('kind', WHOLES)
def test_text_of_a_whole(kind, tmp_path):
    text, vision = WHOLES[kind]
    torch.manual_seed(0)
    other = 'audio_config' if 'encoder' in vision.get('model_type', '') else 'vision_config'
    config = transformers.AutoConfig.for_model(kind, text_config=text, **{other: vision})
    theirs = transformers.AutoModelForMultimodalLM.from_config(config, attn_implementation='eager').eval()
    noisy(theirs)
    theirs.save_pretrained(tmp_path / 'whole')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        ours, info = pretrained.load(tmp_path / 'whole', return_info=True)
    assert info.left and not info.new and not any('embed_tokens' in name for name in info.left)
    ids = torch.randint(3, 90, (2, 20))
    real = torch.arange(20) < torch.tensor([[20], [13]])
    for mask in (real, real.flip(-1)):
        with torch.no_grad(), lifted():
            wanted = copy.deepcopy(theirs).double()(input_ids=ids, attention_mask=mask.long()).logits
        with torch.no_grad():
            found = copy.deepcopy(ours).double()(ids, mask=mask)
        assert (found - wanted)[mask].abs().max() < 1e-10
    # written as a model of text, which is read there and here
    pretrained.save(ours, tmp_path / 'text')
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'text', attn_implementation='eager')
    assert (again(ids).logits - ours(ids)).abs().max() < 1e-4
    assert torch.equal(pretrained.load(tmp_path / 'text')(ids), ours(ids))


def test_keywords_of_a_whole():
    config = dict(model_type='llava', text_config=of('mistral', sliding_window=None), vision_config=CLIP)
    alone = pretrained.keywords(of('mistral', sliding_window=None))
    assert pretrained.keywords(config) == alone


@pytest.mark.parametrize('config, words', [
    (dict(model_type='mllama', text_config=TEXT), 'mllama'),
    (dict(model_type='llava', text_config=of('rwkv')), 'rwkv'),
])  # fmt: skip
def test_refusals_of_wholes(config, words):
    with pytest.raises(ConfigError, match=words):
        pretrained.keywords(config)

"""Models of images, and of images and texts, as they lie on disk: equal outputs, and the way back."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from pretrained_cases import (
    CASES,
    HEAD_CASES,
    IMAGE_CASES,
    SEQ2SEQ_CASES,
    TEXT,
    TOWER_CASES,
    VISION,
    check_same_tensors,
    checkpoint,
    config_of,
    lifted,
    noisy,
)
from torch import Tensor
from toy_nets import vectors_of as drawn

from x_transformers import TwoTowers, ViTransformerWrapper, pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.__main__ import compare_outputs, main

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
ALL = [*IMAGE_CASES, *TOWER_CASES]
OF = {str(case): case for case in ALL}
BOTH = [case for case in ALL if case.type in ('clip', 'siglip')]


def pixels(case, height: int | None = None, width: int | None = None) -> Tensor:
    config = config_of(case)
    config = getattr(config, 'vision_config', config)
    sides = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
    return drawn(3, config.num_channels, height or sides[0], width or sides[1])


def texts() -> tuple[Tensor, Tensor]:
    """Of unequal lengths, each with an end, and where they are real."""
    real = torch.arange(14) < torch.tensor([14, 9, 3])[:, None]
    ids = torch.randint(3, 90, (3, 14), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(3), real.sum(dim=1) - 1] = 95
    return ids.masked_fill(~real, 0), real


def of_images(ours, theirs, images: Tensor, **options) -> tuple[list[Tensor], list[Tensor]]:
    """What both say of images: classes or what is pooled, and hidden states."""
    images = images.to(next(theirs.parameters()).dtype)
    with torch.no_grad(), lifted():
        out = theirs(pixel_values=images, output_hidden_states=True, **options)
    found = ours(images, return_logits_and_embeddings=True)
    wanted = next(out[name] for name in ('logits', 'image_embeds', 'pooler_output', 'last_hidden_state')
                  if out.get(name) is not None)  # fmt: skip
    if 'last_hidden_state' not in out:
        return [found[0]], [wanted]
    hidden = out.last_hidden_state
    registers = 0 if getattr(ours, 'register_tokens', None) is None else len(ours.register_tokens)
    return list(found), [wanted, torch.cat((hidden[:, :1], hidden[:, 1 + registers :]), dim=1)]


def of_texts(ours, theirs) -> tuple[list[Tensor], list[Tensor]]:
    ids, real = texts()
    real = None if theirs.config.model_type == 'siglip_text_model' else real  # which reads padding as a token
    with torch.no_grad(), lifted():
        out = theirs(input_ids=ids, attention_mask=None if real is None else real.long())
    hidden, pooled = ours(ids, mask=real, return_pooled=True)
    wanted = next(out[name] for name in ('text_embeds', 'pooler_output') if name in out)
    keep = slice(None) if real is None else real
    return [pooled, hidden[keep]], [wanted, out.last_hidden_state[keep]]


def of_both(ours, theirs, images: Tensor, **options) -> tuple[list[Tensor], list[Tensor]]:
    ids, _ = texts()
    images = images.to(next(theirs.parameters()).dtype)[:2]
    with torch.no_grad(), lifted():
        out = theirs(input_ids=ids, pixel_values=images, **options)
    found = ours(images, ids, return_logits=True)
    return [found, found.T], [out.logits_per_image, out.logits_per_text]


def worst(case, ours, theirs) -> float:
    """The largest difference of outputs."""
    with torch.no_grad():
        if case in BOTH:
            found, wanted = of_both(ours, theirs, pixels(case))
        elif 'text' in case.type:
            found, wanted = of_texts(ours, theirs)
        else:
            found, wanted = of_images(ours, theirs, pixels(case))
    assert all(a.shape == b.shape for a, b in zip(found, wanted, strict=True))
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))


def again(folder, theirs):
    """A folder in the eyes of the other library, which must find all that it needs and no more."""
    model, info = type(theirs).from_pretrained(folder, output_loading_info=True, attn_implementation='eager')
    assert not any(info.values()), info
    return model.double().eval()


@pytest.mark.parametrize('case', ALL, ids=str)
def test_outputs_and_the_way_back(case, tmp_path):
    theirs, folder = checkpoint(case)
    ours, info = pretrained.load(folder, return_info=True)
    assert info.type == case.type and not ours.training and not info.ignored
    assert type(ours).from_config(ours.config.to_json_string()).config == ours.config
    pretrained.save(ours, tmp_path, format='hf')
    check_same_tensors(folder, tmp_path)
    assert worst(case, ours, theirs) < 1e-4
    assert worst(case, ours.double(), copy.deepcopy(theirs).double()) < 1e-10
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * drawn(*parameter.shape)
    pretrained.save(ours, tmp_path, format='hf')
    assert worst(case, ours, again(tmp_path, theirs)) < 1e-10


@pytest.mark.parametrize('name', [
    'vit-0', 'vit-3', 'deit-2', 'dinov2-3', 'dinov2_with_registers-2', 'siglip_vision_model-1', 'clip_vision_model-2',
    'siglip_text_model-1', 'clip_text_model-1', 'clip_text_model-3', 'clip-1', 'siglip-1',
])  # fmt: skip
def test_models_that_were_never_loaded(name, tmp_path):
    """Their config is found from their keywords: what is written is what theirs would be."""
    theirs, folder = checkpoint(OF[name])
    ours = pretrained.load(folder)
    del ours.pretrained
    pretrained.save(ours, tmp_path, hf_type=OF[name].type)
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['architectures'] == [OF[name].kind] and not any(key.startswith('has_') for key in config)
    check_same_tensors(folder, tmp_path)
    assert worst(OF[name], ours.double(), again(tmp_path, theirs)) < 1e-10


SIZES = (25, 24), (8, 20), (32, 16)  # of images; the last has as many patches as were trained


@pytest.mark.parametrize('name', [
    'vit-0', 'deit-1', 'dinov2-0', 'dinov2_with_registers-1', 'siglip_vision_model-0', 'clip_vision_model-2', 'clip-0',
    'siglip-0',
])  # fmt: skip
def test_images_of_other_sizes(name):
    """Their positions are resampled, as theirs are, by DINOv2 always, by others if they are asked to."""
    case = OF[name]
    theirs, folder = checkpoint(case)
    theirs, ours = copy.deepcopy(theirs).double(), pretrained.load(folder).double()
    options = {} if 'dino' in name else dict(interpolate_pos_encoding=True)
    for size in SIZES:
        both = of_both if case in BOTH else of_images
        for found, wanted in zip(*both(ours, theirs, pixels(case, *size), **options), strict=True):
            assert (found - wanted).abs().max() < 1e-10


def test_hidden_patches(tmp_path):
    """A mask token, which a config of ViT does not speak of, and no pooler: the tensors of the file tell."""
    config = transformers.ViTConfig(**VISION)
    theirs = transformers.ViTModel(config, add_pooling_layer=False, use_mask_token=True).eval()
    noisy(theirs)
    theirs.save_pretrained(tmp_path)
    hidden, images = torch.rand(3, 16, generator=torch.Generator().manual_seed(2)) < 0.4, pixels(OF['vit-0'])
    dino, folder = checkpoint(OF['dinov2-2'])
    for model, place in ((theirs, tmp_path), (dino, folder)):
        ours, model = pretrained.load(place).double(), copy.deepcopy(model).double()
        with torch.no_grad():
            wanted = model(images, bool_masked_pos=hidden).last_hidden_state
            found = ours(images, return_embeddings=True, hidden_patches=hidden)
        assert (wanted - found).abs().max() < 1e-10
    ours, info = pretrained.load(tmp_path, return_info=True)
    assert info.found == {'has_pooler': False, 'has_mask_token': True}
    pretrained.save(ours, tmp_path / 'again', max_shard_size='30KB')
    options = dict(add_pooling_layer=False, use_mask_token=True, output_loading_info=True)
    again, loading = transformers.ViTModel.from_pretrained(tmp_path / 'again', **options)
    assert len(list((tmp_path / 'again').glob('*.safetensors'))) > 3 and not any(loading.values())
    for name, t in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], t)


@pytest.mark.parametrize('name', ['deit-1', 'dinov2-0', 'dinov2_with_registers-0'])
def test_no_head_and_a_new_one(name, tmp_path):
    theirs, folder = checkpoint(OF[name])
    images = pixels(OF[name])
    ours, info = pretrained.load(folder, head='embed', return_info=True)
    assert not info.new and info.ignored and all('classifier' in name for name in info.ignored)
    pretrained.save(ours, tmp_path)
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['architectures'] == [type(theirs).__name__.partition('For')[0] + 'Model']
    with torch.no_grad(), lifted():
        wanted = copy.deepcopy(theirs).double().base_model(images).last_hidden_state
        found = ours.double()(images, return_embeddings=True)
        assert (found[:, 0] - wanted[:, 0]).abs().max() < 1e-10
        if 'dino' in info.type:  # others would be missing their pooler
            bare = again(tmp_path, getattr(transformers, config['architectures'][0])(theirs.config))
            assert (bare(images).last_hidden_state - wanted).abs().max() < 1e-10
    for source in (folder, tmp_path):
        ours, info = pretrained.load(source, num_classes=3, return_info=True)
        assert info.new and all(name.startswith('mlp_head.') for name in info.new)
        assert info.config['architectures'][0].endswith(('ForImageClassification', 'WithTeacher'))
        logits, hidden = ours.double()(images, return_logits_and_embeddings=True)
        assert logits.shape == (3, 3) and (hidden[:, 0] - wanted[:, 0]).abs().max() < 1e-10
        ours.float()
        pretrained.save(ours, tmp_path / 'new')
        model = getattr(transformers, info.config['architectures'][0]).from_pretrained(tmp_path / 'new')
        with torch.no_grad():
            assert (model(images.float()).logits - ours(images.float())).abs().max() < 1e-4


def rewritten(folder, target, rename=lambda name: name, **fields):
    """A checkpoint with other names, and other fields."""
    from safetensors.torch import load_file, save_file

    target.mkdir(exist_ok=True)
    tensors = load_file(folder / 'model.safetensors')
    save_file({rename(name): t for name, t in tensors.items()}, target / 'model.safetensors', {'format': 'pt'})
    config = json.loads((folder / 'config.json').read_text())
    (target / 'config.json').write_text(json.dumps({**config, **fields}))
    return target


@pytest.mark.parametrize('name, rename', [
    ('vit-0', lambda name: name.removeprefix('vit.')),
    ('vit-2', lambda name: f'vit.{name}'),
    ('clip_text_model-0', lambda name: f'text_model.{name}'),
    ('siglip_vision_model-0', lambda name: f'vision_model.{name}'),
])  # fmt: skip
def test_names_with_and_without_a_prefix(name, rename, tmp_path):
    _, folder = checkpoint(OF[name])
    found = pretrained.load(rewritten(folder, tmp_path, rename)).state_dict()
    for name, t in pretrained.load(folder).state_dict().items():
        assert torch.equal(found[name], t)


@pytest.mark.parametrize('name', ['vit-0', 'deit-1', 'dinov2-0', 'dinov2_with_registers-2'])
def test_names_in_memory(name, tmp_path):
    """A running model has other names than the files it writes."""
    from safetensors.torch import save_file

    theirs, folder = checkpoint(OF[name])
    (tmp_path / 'config.json').write_text((folder / 'config.json').read_text())
    state = theirs.state_dict()
    assert state.keys() != pretrained.files.Weights(folder).files.keys()
    save_file(state, tmp_path / 'model.safetensors')
    assert worst(OF[name], pretrained.load(tmp_path), theirs) < 1e-4


MATTER = {
    'vit-2': dict(hidden_act='relu', layer_norm_eps=0.1, pooler_act='relu', num_attention_heads=8),
    'deit-1': dict(hidden_act='quick_gelu', layer_norm_eps=0.1, num_attention_heads=8),
    'dinov2-1': dict(layer_norm_eps=0.1, num_attention_heads=8),
    'dinov2_with_registers-2': dict(hidden_act='relu', layer_norm_eps=0.1, num_attention_heads=6),
    'siglip_vision_model-0': dict(hidden_act='relu', layer_norm_eps=0.1, num_attention_heads=8),
    'clip_vision_model-0': dict(hidden_act='relu', layer_norm_eps=0.1, num_attention_heads=8),
    'siglip_text_model-0': dict(hidden_act='relu', layer_norm_eps=0.1, num_attention_heads=8),
    'clip_text_model-0': dict(hidden_act='relu', layer_norm_eps=0.1, num_attention_heads=8,
                              eos_token_id=int(texts()[0][0, 5])),
    'clip-0': dict(text_config={**TEXT, 'hidden_act': 'relu'}, vision_config={**VISION, 'layer_norm_eps': 0.1},
                   text_config_dict={**TEXT, 'num_attention_heads': 8}),
    'siglip-0': dict(text_config={**TEXT, 'hidden_act': 'relu'}, vision_config={**VISION, 'layer_norm_eps': 0.1}),
}  # fmt: skip


@pytest.mark.parametrize('name', MATTER)
def test_fields_matter(name, tmp_path):
    """Each alone moves theirs, and ours by as much."""
    case = OF[name]
    theirs, folder = checkpoint(case)
    before = copy.deepcopy(theirs).double()
    for field, value in MATTER[name].items():
        rewritten(folder, tmp_path, **{field: value})
        ours = pretrained.load(tmp_path).double()
        assert worst(case, ours, again(tmp_path, theirs)) < 1e-10, field
        assert worst(case, ours, before) > 1e-5, field


@pytest.mark.parametrize('name', ['vit-0', 'deit-1', 'dinov2-1', 'dinov2_with_registers-0', 'clip-0', 'siglip-0'])
def test_gradients(name, tmp_path):
    """Written as if they were weights, they are those of theirs."""
    case = OF[name]
    theirs, folder = checkpoint(case)
    theirs, ours = copy.deepcopy(theirs).double(), pretrained.load(folder).double()
    images, (ids, _) = pixels(case), texts()
    with lifted():
        if case in BOTH:
            wanted = theirs(input_ids=ids, pixel_values=images).logits_per_image
        else:
            wanted = theirs(images).logits
    found = ours(images, ids, return_logits=True) if case in BOTH else ours(images)
    weight = drawn(*found.shape)
    (wanted * weight).sum().backward()
    (found * weight).sum().backward()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(0 if parameter.grad is None else parameter.grad)
    pretrained.save(ours, tmp_path)
    found = dict(again(tmp_path, theirs).named_parameters())
    for name, parameter in theirs.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert (found[name] - grad).abs().max() < 1e-8, name


@pytest.mark.parametrize('name', ['vit-1', 'dinov2_with_registers-1', 'siglip_vision_model-0'])
def test_half_precision(name):
    """No further from what the same weights give in float64 than theirs."""
    theirs, folder = checkpoint(OF[name])
    theirs, ours = copy.deepcopy(theirs).bfloat16(), pretrained.load(folder, dtype=torch.bfloat16)
    images = drawn(32, 3, 16, 16).bfloat16()
    wide = copy.deepcopy(ours).double()(images.double(), return_embeddings=True)
    found = ours(images, return_embeddings=True)
    out = theirs.base_model(images).last_hidden_state
    wanted = out if 'register' not in name else torch.cat((out[:, :1], out[:, 4:]), dim=1)
    assert (found - wide).norm() < 1.2 * (wanted - wide).norm()


def test_defaults_are_theirs():
    """Of every field that a row reads."""
    for kind in sorted({case.type for case in ALL}):
        config, row = transformers.AutoConfig.for_model(kind).to_dict(), pretrained.specs.SPECS[kind]
        own = {name for name in row.defaults if name.startswith('has_') or name.endswith(('_config', '_config_dict'))}
        for name in row.defaults.keys() - own:
            assert row.defaults[name] == config[name] or (row.defaults[name] is None and config[name] == 768), name
        assert pretrained.keywords({'model_type': kind}) == pretrained.keywords({**config, 'architectures': None})


@pytest.mark.parametrize('name, fields, words', [
    ('vit-0', dict(image_size=[16, 24]), 'position_embeddings'),
    ('vit-0', dict(image_size=24), 'position_embeddings'),
    ('vit-0', dict(patch_size=[4, 2]), 'projection.weight'),
    ('vit-0', dict(num_channels=1), 'projection.weight'),
    ('vit-0', dict(hidden_act='sharkfin'), 'hidden_act'),
    ('vit-0', dict(qkv_bias=False), 'key.bias'),
    ('vit-0', dict(register_tokens=2), 'register_tokens'),
    ('vit-0', dict(quantization_config={'bits': 4}), 'quantization_config'),
    ('vit-0', dict(architectures=['ViTForMaskedImageModeling']), 'ViTForMaskedImageModeling'),
    ('dinov2-0', dict(use_swiglu_ffn=True), 'weights_in'),
    ('dinov2_with_registers-0', dict(num_register_tokens=4), 'register_tokens'),
    ('siglip_vision_model-0', dict(vision_use_head=False), 'head'),
    ('clip-0', dict(projection_dim=16), 'projection'),
    ('clip-0', dict(text_config={**TEXT, 'vocab_size': 97}), 'token_embedding'),
    ('clip-0', dict(vision_config={**VISION, 'depth': 3}), '`depth` of this clip_vision_model'),
])  # fmt: skip
def test_refusals(name, fields, words, tmp_path):
    _, folder = checkpoint(OF[name])
    with pytest.raises(ConfigError, match=words):
        pretrained.load(rewritten(folder, tmp_path, **fields))


# what configs of older releases hold in each of their dicts, beside the fields of today
OLD = dict(
    add_cross_attention=False, architectures=None, bad_words_ids=None, bos_token_id=0, chunk_size_feed_forward=0,
    cross_attention_hidden_size=None, decoder_start_token_id=None, diversity_penalty=0.0, do_sample=False, dropout=0.0,
    early_stopping=False, encoder_no_repeat_ngram_size=0, eos_token_id=2, exponential_decay_length_penalty=None,
    finetuning_task=None, forced_bos_token_id=None, forced_eos_token_id=None, id2label={'0': 'LABEL_0'},
    is_decoder=False, is_encoder_decoder=False, label2id={'LABEL_0': 0}, length_penalty=1.0, max_length=20,
    min_length=0, no_repeat_ngram_size=0, num_beam_groups=1, num_beams=1, num_return_sequences=1, output_scores=False,
    pad_token_id=1, prefix=None, pruned_heads={}, remove_invalid_values=False, repetition_penalty=1.0,
    return_dict_in_generate=False, sep_token_id=None, suppress_tokens=None, begin_suppress_tokens=None,
    task_specific_params=None, temperature=1.0, tf_legacy_loss=False, tie_encoder_decoder=False,
    tie_word_embeddings=True, tokenizer_class=None, top_k=50, top_p=1.0, torch_dtype=None, torchscript=False,
    typical_p=1.0, use_bfloat16=False,
)  # fmt: skip


def test_configs_of_older_releases(tmp_path):
    case = OF['clip-1']
    theirs, folder = checkpoint(case)
    config = json.loads((folder / 'config.json').read_text())
    dicts = {name: {**config[name], **OLD} for name in ('text_config', 'vision_config')}
    rewritten(folder, tmp_path, **dicts, text_config_dict=None, vision_config_dict=config['vision_config'])
    ours = pretrained.load(tmp_path).double()
    assert ours.eos_id is None and worst(case, ours, again(tmp_path, theirs)) < 1e-10


@pytest.mark.parametrize('name', [
    'vit-0', 'vit-2', 'dinov2_with_registers-1', 'siglip_vision_model-1', 'clip_vision_model-2', 'siglip_text_model-0',
    'clip_text_model-3', 'clip-0', 'siglip-0', 'llama-0', 'bert-0', 't5-0', 'whisper-0',
    'BartForSequenceClassification', 'BertModel',
])  # fmt: skip
def test_the_command_that_compares(name, capsys, monkeypatch):
    every = {**{case.kind: case for case in HEAD_CASES}, **{str(case): case for case in (*ALL, *CASES, *SEQ2SEQ_CASES)}}
    theirs, folder = checkpoint(every[name])
    assert main(['check', str(folder)]) == 0
    assert capsys.readouterr().out.startswith(every[name].type)
    found = (float('nan'),) * 2 if name == 'llama-0' else (0.1, 1.0)
    monkeypatch.setattr('x_transformers.pretrained.__main__.compare_outputs', lambda *models: found)
    assert main(['check', str(folder)]) == 1
    ours = pretrained.load(folder)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.01 * drawn(*parameter.shape))
    assert compare_outputs(ours, theirs)[0] > 1e-3


def test_options_of_loading():
    _, folder = checkpoint(OF['siglip-0'])
    towers = TwoTowers.from_pretrained(folder, dropout=0.25, trainable='head')
    image = json.loads(towers.config.to_json_string())['image']
    assert image['pool_kwargs']['attn_dropout'] == image['attn_layers']['attn_dropout'] == 0.25
    assert {name for name, p in towers.named_parameters() if p.requires_grad} == {'to_text.weight', 'to_text.bias'}
    with pytest.raises(TypeError, match='TwoTowers'):
        ViTransformerWrapper.from_pretrained(folder)
    tower = ViTransformerWrapper.from_pretrained(checkpoint(OF['clip_vision_model-0'])[1], ff_dropout=0.5)
    assert tower.attn_layers.layers[1][1].ff[1].p == 0.5 and not tower.training


def test_square_sides_as_a_list(tmp_path):
    theirs, folder = checkpoint(OF['vit-0'])
    rewritten(folder, tmp_path, image_size=[16, 16], patch_size=[4, 4])
    assert worst(OF['vit-0'], pretrained.load(tmp_path), theirs) < 1e-4

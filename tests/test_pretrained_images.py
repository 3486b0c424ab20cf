"""Models of images, and of images and texts, as they lie on disk: equal outputs, and the way back."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from pretrained_cases import IMAGE_CASES, TOWER_CASES, checkpoint, config_of, lifted
from torch import Tensor

from x_transformers import pretrained

if os.environ.get('CI'):
    import transformers
else:
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
ALL = [*IMAGE_CASES, *TOWER_CASES]
BOTH = [case for case in ALL if case.type in ('clip', 'siglip')]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pixels(case, height: int | None = None, width: int | None = None) -> Tensor:
    config = config_of(case)
    config = getattr(config, 'vision_config', config)
    return drawn(3, config.num_channels, height or config.image_size, width or config.image_size)


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
    before, after = (pretrained.files.Weights(path) for path in (folder, tmp_path))
    assert before.files.keys() == after.files.keys()
    for name in before.files:
        assert torch.equal(before.load(name), after.load(name)), name
    assert worst(case, ours, theirs) < 1e-4
    assert worst(case, ours.double(), copy.deepcopy(theirs).double()) < 1e-10
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.1 * drawn(*parameter.shape)
    pretrained.save(ours, tmp_path, format='hf')
    assert worst(case, ours, again(tmp_path, theirs)) < 1e-10

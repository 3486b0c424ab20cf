"""Videos: frames and places in loops, patches as a convolution, nothing of later frames, and frame by frame."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from torch import nn
from toy_tasks import taught

from x_transformers import FactorizedVideoEncoder
from x_transformers.flags import ConfigError


def made(**options):
    sizes = dict(patch=(2, 4, 2), channels=2, image_size=(8, 6), max_frames=5, heads=2)
    return randomised(FactorizedVideoEncoder(1, 2, 16, **{**sizes, **options}))


VIDEO = randn(2, 2, 7, 8, 6)


def test_patches_are_a_convolution():
    model = made()
    first = F.conv3d(
        VIDEO[:, :, :1], model.to_patch_first.weight.view(16, 2, 1, 4, 2), model.to_patch_first.bias, (1, 4, 2)
    )
    others = F.conv3d(VIDEO[:, :, 1:], model.to_patch.weight.view(16, 2, 2, 4, 2), model.to_patch.bias, (2, 4, 2))
    wanted = torch.cat((first, others), dim=2).flatten(3).movedim(1, -1)
    assert wanted.shape == (2, 4, 6, 16)
    assert_close(model.patches(VIDEO, True), wanted)
    assert_close(model.patches(VIDEO[:, :, 1:], False), wanted[:, 1:])


def test_frames_and_places_in_loops():
    model = made()
    x = model.patches(VIDEO, True)
    frames = [model.spatial(x[:, t] + model.spatial_pos) + model.temporal_pos[t] for t in range(4)]
    x = torch.stack(frames, dim=1)
    wanted = torch.stack([model.temporal(x[:, :, place]) for place in range(6)], dim=2)
    assert_close(model(VIDEO), wanted, tolerance=1e-12)


@pytest.mark.parametrize('frames, count', [(1, 1), (3, 2), (7, 4), (9, 5)])
def test_how_many_frames(frames, count):
    model = made()
    assert model(randn(1, 2, frames, 8, 6)).shape == (1, count, 6, 16)


def test_nothing_of_later_frames():
    model, video = made(), VIDEO.clone().requires_grad_()
    out = model(video)
    for t in range(4):
        (seen,) = torch.autograd.grad(out[:, t].sum(), video, retain_graph=True)
        assert (seen[:, :, 2 * t + 1 :] == 0).all() and (seen[:, :, 2 * t] != 0).any()
        assert t == 0 or (seen[:, :, 0] != 0).any()
    assert_close(model(VIDEO[:, :, 0]), out[:, :1])  # an image is its first frame


@torch.no_grad()
def test_frame_by_frame():
    model = made()
    wanted = model(VIDEO)
    for steps in ((1, 2, 2, 2), (3, 4), (1, 6)):
        cache, parts, start = None, [], 0
        for frames in steps:
            out, cache = model(VIDEO[:, :, start : start + frames], cache, return_cache=True)
            parts.append(out)
            start += frames
        assert_close(torch.cat(parts, dim=1), wanted)
        assert cache.frames == 4


def test_flags_and_configs():
    model = made(
        temporal_kwargs=dict(zero_init_branch_output=True, pre_norm_has_final_norm=False), spatial_kwargs=dict(depth=2)
    )
    assert FactorizedVideoEncoder.from_config(model.config).config == model.config
    assert len(model.spatial.layers) == 4
    fresh = FactorizedVideoEncoder(**{k: v for k, v in model.config.items() if k != 'class'}).double()
    x = fresh.patches(VIDEO, True) + fresh.spatial_pos
    x = fresh.spatial(x.flatten(0, 1)).view(2, 4, 6, 16) + fresh.temporal_pos[:4].unsqueeze(1)
    assert_close(fresh(VIDEO), x)  # time does nothing at first


def dots(b):
    """A dot that moves in one of four directions, around the edges:  b 1 5 8 8, b"""
    where, which = torch.randint(0, 8, (b, 2)), torch.randint(0, 4, (b,))
    steps = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])[which]
    at = (where.unsqueeze(1) + torch.arange(5).view(-1, 1) * steps.unsqueeze(1)) % 8
    video = torch.zeros(b, 5, 8, 8)
    video[torch.arange(b).unsqueeze(1), torch.arange(5), at[..., 0], at[..., 1]] = 1.0
    return video.unsqueeze(1), which


@pytest.mark.slow
def test_where_a_dot_moves():
    """Every frame alone says nothing of it."""
    torch.manual_seed(0)
    encoder = FactorizedVideoEncoder(1, 1, 32, (1, 2, 2), 1, image_size=8, max_frames=5, heads=4)
    model = nn.ModuleDict(dict(encoder=encoder, head=nn.Linear(32, 4)))

    def answers(video):
        return model['head'](model['encoder'](video)[:, -1].amax(dim=1))

    def loss():
        video, which = dots(64)
        return F.cross_entropy(answers(video), which)

    taught(model, loss, steps=300)
    video, which = dots(400)
    with torch.no_grad():
        assert (answers(video).argmax(dim=-1) == which).float().mean() >= 0.95


def test_what_is_refused():
    model = made()
    cache = model(VIDEO, return_cache=True)[1]
    for make, words in (
        (lambda: made(patch=(2, 3, 2)), '`patch` must divide that of images, 8, got 3 for the height'),
        (lambda: made(patch=(2, 4)), '`patch` must be'),
        (lambda: made(image_size=(8, 6, 2)), '`image_size` must be'),
        (lambda: model(VIDEO[:, :, :6]), '`video` must have one, and a multiple of 2 behind it'),
        (lambda: model(VIDEO[:, :, :0]), '`video` must '),
        (lambda: model(VIDEO[:, :, :1], cache), '`video` must have a multiple of 2'),
        (lambda: model(VIDEO[:, :, :4], cache), 'makes 6 token frames, more than `max_frames`, 5'),
        (lambda: model(VIDEO[:, :1]), r'`video` must '),
        (lambda: model([1]), r'`video` must be a tensor, got \[1\]'),
    ):
        with pytest.raises((ConfigError, ValueError, TypeError), match=words):
            make()

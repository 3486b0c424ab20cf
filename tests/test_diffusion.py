"""What diffusion models are made of: branches that a condition shifts, scales and gates, and two kinds of tokens."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised

from x_transformers import Decoder, Encoder, JointAttention
from x_transformers.flags import ConfigError

SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8)
ZERO = dict(use_adaln_zero=True, dim_condition=6)


def test_blocks_change_nothing_at_first():
    """Of random weights but for the modulation, where adaptive norms and gates do."""
    x, condition = randn(2, 5, 16), randn(2, 6, seed=1)
    torch.manual_seed(0)
    made = Encoder(**SIZES, **ZERO, pre_norm_has_final_norm=False).double()
    assert torch.equal(made(x, condition=condition), x)
    flags = dict(use_adaptive_layernorm=True, use_adaptive_layerscale=True, pre_norm_has_final_norm=False)
    others = Encoder(**SIZES, **flags, dim_condition=6).double()
    assert (others(x, condition=condition) - x).abs().max() > 0.05
    made(x, condition=condition).square().sum().backward()
    assert all(layer[1].adaln.weight.grad.abs().sum() > 0 for layer in made.layers)


@pytest.mark.parametrize('per_token', [False, True])
def test_the_formula(per_token):
    """Two branches written out: their norm, shift and scale of what they read, a gate of what they give."""
    made = randomised(Encoder(**SIZES, **ZERO, pre_norm_has_final_norm=False))
    x = randn(2, 5, 16)
    condition = randn(2, 5, 6, seed=1) if per_token else randn(2, 6, seed=1)
    wanted = x
    for (before, *_), branch, _ in made.layers:
        own = F.silu(condition if per_token else condition[:, None]) @ branch.adaln.weight.T + branch.adaln.bias
        shift, scale, gate = own[..., :16], own[..., 16:32], own[..., 32:]
        wanted = wanted + gate * branch.fn(before(wanted) * (1 + scale) + shift)
    assert_close(made(x, condition=condition), wanted, tolerance=1e-12)


def test_memories_are_read_as_tokens_are():
    """In one layer a segment with the memory of the one before is the end of both together."""
    made = randomised(Decoder(**{**SIZES, 'depth': 1}, **ZERO))
    x, condition = randn(2, 7, 16), randn(2, 6, seed=1)
    whole = made(x, condition=condition)
    assert_close(made(x[:, 4:], mems=[x[:, :4]], condition=condition), whole[:, 4:], tolerance=1e-12)


def test_joint_attention_with_equal_weights_is_attention():
    """The same weights for both are attention of the sequence of both; different ones are not."""
    made, a, b = randomised(JointAttention(16, 2, 8)), randn(2, 5, 16), randn(2, 3, 16, seed=1)
    before = made(a, b)
    made.to_qkv_b.load_state_dict(made.to_qkv_a.state_dict()), made.to_out_b.load_state_dict(made.to_out_a.state_dict())
    both = torch.cat((a, b), dim=1)
    q, k, v = (t.view(2, 8, 2, 8).transpose(1, 2) for t in (both @ made.to_qkv_a.weight.T).chunk(3, dim=-1))
    out = ((q @ k.mT * 8**-0.5).softmax(dim=-1) @ v).transpose(1, 2).flatten(2) @ made.to_out_a.weight.T
    found = made(a, b)
    assert_close(found[0], out[:, :5]), assert_close(found[1], out[:, 5:])
    assert not torch.allclose(before[0], found[0])


def test_joint_masks():
    """Tokens of padding are seen by none, and give nothing; either mask may be missing."""
    made, a, b = randomised(JointAttention(16, 2, 8)), randn(2, 5, 16), randn(2, 3, 16, seed=1)
    mask = torch.tensor([[True, False, True], [True, True, False]])
    other = b.masked_fill(~mask.unsqueeze(-1), float('nan'))
    found, wanted = made(a, other, mask_b=mask), made(a, b, mask_b=mask)
    assert_close(found[0], wanted[0]), assert_close(found[1], wanted[1])
    assert (found[1][~mask] == 0).all() and not torch.allclose(found[0], made(a, b)[0])
    row = made(a[:1], b[:1, mask[0]])
    assert_close(found[0][:1], row[0]), assert_close(found[1][:1][mask[:1]], row[1][0])
    swapped = made(a, b, mask_a=torch.ones(2, 5, dtype=torch.bool))
    assert_close(swapped[0], made(a, b)[0])


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: Encoder(**SIZES, use_adaln_zero=True), '`use_adaln_zero` needs `dim_condition`'),
        (lambda: Encoder(**SIZES, **ZERO, use_adaptive_layernorm=True), 'both scale the branch input'),
        (lambda: Encoder(**SIZES, **ZERO, use_adaptive_layerscale=True), 'both scale the branch'),
        (lambda: Encoder(**SIZES, **ZERO, pre_norm=False), '`use_adaln_zero` needs `pre_norm`'),
        (lambda: Encoder(**SIZES, **ZERO)(randn(2, 5, 16).float()), '`condition` is missing'),
        (lambda: JointAttention(16)(torch.zeros(2, 5, 16), torch.zeros(1, 3, 16)), '`b` got 1 rows, `a` has 2'),
        (lambda: JointAttention(16)(torch.zeros(2, 5, 16), torch.zeros(2, 3, 8)), '`b` must '),
        (lambda: JointAttention(16)(*[torch.zeros(2, 5, 16)] * 2, torch.ones(2, 3) > 0), '`mask_a` must '),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()

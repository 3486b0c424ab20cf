"""Names that other people's code imports, what they compute, and configurations as trainers read them."""

import importlib
import json

import pytest
import torch
import torch.nn.functional as F

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers import x_transformers as core
from x_transformers.attend import Attend

NAMES = {
    'x_transformers': """Identity LinearNoBias rotate_half cast_tuple divisible_by max_neg_value first is_empty maybe
        groupby_prefix_and_trim init_zero_ shift HyperConnection CoPE DynamicTanh Derf SoLU masked_mean calc_entropy
        calc_z_loss GatedMultiResidual AttentionResidual DynamicLIMe LoRALinear MVSplitResidualUpdate sinkhorn
        OrthogonalResidualUpdate orthog_project layer_schedule log_prob_from_hard_attend default_device identity log
        lens_to_mask cross_entropy or_reduce pick_and_pop string_begins_with group_dict_by_key pack_one unpack_one""",
    'autoregressive_wrapper': """gumbel_sample pad_at_dim masked_mean lens_to_mask cross_entropy modify_cached_kv log
        cast_tuple exists default identity join align_right""",
    'attend': 'Attend Intermediates log_prob_from_hard_attend default_device pack_one unpack_one',
}


@pytest.mark.parametrize('module', NAMES)
def test_names_are_there(module):
    found = importlib.import_module(f'x_transformers.{module}')
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


def test_what_small_functions_compute():
    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 3.0, 1.0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert core.rotate_half(torch.arange(8).view(2, 4)).tolist() == [[-1, 0, -3, 2], [-5, 4, -7, 6]]
    assert core.masked_mean(x, mask) == 0 and core.masked_mean(x, mask, dim=-1).tolist() == [0, 0]
    torch.testing.assert_close(core.masked_mean(x, torch.tensor([True, False])), torch.tensor(2 / 3))
    assert core.lens_to_mask(torch.tensor([1, 3])).tolist() == [[True, False, False], [True, True, True]]
    torch.testing.assert_close(core.calc_entropy(x), torch.distributions.Categorical(logits=x).entropy())
    torch.testing.assert_close(core.calc_entropy(x.softmax(-1), is_prob=True), core.calc_entropy(x))
    assert core.calc_entropy(torch.tensor([0.0, 1.0]), is_prob=True) == 0
    torch.testing.assert_close(core.log(torch.tensor([0.0, 2.0])).exp(), torch.tensor([1e-20, 2.0]))
    target = torch.tensor([1, 2])
    torch.testing.assert_close(core.cross_entropy(x.t(), target, class_dim=0), F.cross_entropy(x, target))
    assert core.groupby_prefix_and_trim('a_', {'a_b': 1, 'c': 2}) == ({'b': 1}, {'c': 2})
    assert core.maybe(lambda t: t + 1)(None) is None and core.maybe(lambda t: t + 1)(1) == 2 and core.maybe()(4) == 4
    assert core.first([3, 4]) == 3 and core.first([]) is None and core.is_empty([]) and core.divisible_by(6, 3)
    assert core.max_neg_value(x) == torch.finfo(torch.float32).min
    assert core.Identity()(x, 1, k=2) is x and core.LinearNoBias(2, 3).bias is None
    linear = torch.nn.Linear(2, 2)
    core.init_zero_(linear)
    assert not linear.weight.any() and not linear.bias.any()


def test_cope_is_what_is_added_to_logits():
    """Linear between the vectors of the counted positions."""
    torch.manual_seed(0)
    cope = core.CoPE(4, 2, 3).double()
    torch.nn.init.normal_(cope.pos_emb)
    q, sim = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 2, 3, 3).double()
    added = cope(q, sim)
    for head in range(2):
        for i in range(3):
            for j in range(3):
                place = sim[0, head, i, j:].sigmoid().sum().clamp(max=2)
                low, high = cope.pos_emb[int(place)], cope.pos_emb[min(int(place) + 1, 2)]
                wanted = q[0, head, i] @ torch.lerp(low, high, place - int(place))
                torch.testing.assert_close(added[0, head, i, j], wanted)
    k = v = torch.randn(1, 2, 3, 4).double()
    logits = q @ k.mT / 2
    torch.testing.assert_close(Attend(cope=cope)(q, k, v)[0], (logits + cope(q, logits)).softmax(dim=-1) @ v)


def test_cached_keys_and_values_can_be_modified():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2)).eval()
    _, left = net(torch.arange(5)[None], return_intermediates=True)
    from x_transformers.autoregressive_wrapper import modify_cached_kv

    modify_cached_kv(left, lambda t: t[..., :3, :])
    assert [t.shape[-2] for t in left.attn_intermediates[0].cached_kv] == [3, 3]


def test_none_for_an_input_that_is_off_is_no_input():
    x, ids = torch.randn(1, 4, 16), torch.arange(4)[None]
    for kind in (Encoder, Decoder):
        stack = kind(dim=16, depth=1, heads=2).eval()
        names = {name for feature in stack.features.catalogue for name in feature.takes}
        assert {'condition', 'deep_embeds', 'in_attn_cond'} & names
        for name in names:
            torch.testing.assert_close(stack(x, **{name: None}), stack(x))
        net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack).eval()
        for name in names | {name for feature in net.features.catalogue for name in feature.takes}:
            torch.testing.assert_close(net(ids, **{name: None}), net(ids))
        with pytest.raises(TypeError, match='conditoin'):
            stack(x, conditoin=None)


def test_token_ids_may_be_whole_floating_point_numbers():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2)).eval()
    ids = torch.arange(5)[None]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8):
        torch.testing.assert_close(net(ids.to(dtype)), net(ids))
    with pytest.raises(ValueError, match='it must be token ids'):
        net(ids + 0.5)


def test_a_configuration_has_attributes():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2))
    config = net.config
    assert config.num_tokens == config['num_tokens'] == 9 and config.to_dict() == dict(config)
    assert json.loads(config.to_json_string()) == json.loads(json.dumps(config))
    assert getattr(config, 'model_type', None) is None
    again = AutoregressiveWrapper.from_config(AutoregressiveWrapper(net).config.to_json_string())
    assert again.net.config == config
    assert net.muon_parameters() == net.attn_layers.muon_parameters() != []

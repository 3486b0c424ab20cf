"""Weights of older releases: rewritten, they load strictly and give the outputs that those releases gave."""

import copy
import functools
import pathlib
import re

import pytest
import torch
from golden import Golden, build, run
from packaging.version import Version

from x_transformers.checkpoint import reorder_optimizer, upgrade

GOLDEN = Golden(pathlib.Path(__file__).parent / 'data' / 'old_releases.npz')
KEPT = dict(norm_bias=True, out_bias=True, gate_values_bias=True, logits_bias=True, rotate_values=True)

# case: (before, words of the refusal)
REFUSED = {
    'alibi_learned': ('1.18.1', 'slopes'),
    'continuous': ('1.27', 'project_in.bias'),
    'data_dependent_alibi': ('1.41.1', 'data-dependent'),
    'dynamic': ('1.6.4', 'dynamic positions'),
    'dynamic_norm': ('1.27', 'dynamic positions|beta'),
    'post_emb_norm': ('1.27', 'beta'),
    'post_norm_rmsnorm': ('1.15', 'final norm'),
    'post_norm_scalenorm': ('1.15', 'final norm'),
    'rmsnorm': ('1.15', 'final norm'),
    'rotary_rmsnorm_qk_norm': ('1.15', 'final norm|learned'),
    'qk_norm': ('0.31', 'learned'),
    'scalenorm': ('1.15', 'final norm'),
    'stack_post_norm': ('1.15', 'bare stack'),
    'residual_streams': ('2.14', 'streams'),
    'vit': ('1.8', 'image models'),
    'xpos': ('1.20', 'xPos'),
}

# case: before this release it computed otherwise, and the weights do not show it
OTHERWISE = {
    'laser': '1.42.23',
    'mem_kv_qk_norm_groups': '2.25.5',
    'mems': '1.27.5',
    'mems_rotary': '1.27.5',
    'resi_dual': '1.15.2',
    'residual_streams': '9',
    'softclamp': '1.31.14',
    'sparse_topk': '1.37.10',
    'value_residual': '1.42.3',
}


def arguments(make: str) -> dict:
    """What `upgrade` has to be told about a case."""
    heads = re.search(r'\b(?:enc_)?heads=(\d+)', make)
    return {
        'heads': int(heads[1]) if heads else None,
        'pre_norm': 'pre_norm=False' not in make,
        'qk_norm_scale': 5 if 'qk_norm_scale=5' in make else 10,
    }


def today(make: str, version: str, state: dict) -> str:
    """The text of the model that computes today what a release made of `make`."""
    old, names = Version(version), ' '.join(state) + ' '
    wanted = {
        'norm_bias=True': '.beta ' in names,
        'attn_out_bias=True': 'to_out.bias ' in names or 'to_out.0.bias ' in names,
        'attn_gate_values_bias=True': 'to_v_gate.bias ' in names,
        'attn_rotate_values=True': Version('0.15') <= old < Version('1.20') and 'rotary_pos_emb' in names,
        'pre_norm_has_final_norm=False': 'final_norm.' not in names and make.startswith(('Dec', 'Enc', 'Cross')),
        'attn_project_out=True': 'heads=1,' in make and old < Version('2.17'),
    }
    flags = [flag for flag, wish in wanted.items() if wish and flag not in make]
    angles = [t for name, t in state.items() if name.endswith('rotary_pos_emb.inv_freq')]
    if angles and 'rotary_emb_dim' not in make:
        flags.append(f'rotary_emb_dim={2 * len(angles[0])}')
    if old < Version('1.21.4'):
        make = make.replace(', weight_tie_layers=True', '')
    scale = 1 if old < Version('1.0.4') else 10
    if Version('2.17.1') <= old < Version('2.25.5') and 'dim_scale' not in make:
        scale = 125 if 'qk_norm_scale=5' in make else 1000
        make = make.replace(', attn_qk_norm_scale=5', '')
    if scale != 10 and 'qk_norm=True' in make and 'qk_norm_scale' not in make:
        make = make.replace('qk_norm=True', f'qk_norm=True, attn_qk_norm_scale={scale}')
    if old < Version('2.30.5'):
        make = make.replace('tie_embedding=True', 'tie_embedding=True, tie_embedding_scale=1.')
    if old < Version('1.42.28') and 'to_value_residual_mix' not in names:
        make = make.replace('add_value_residual=True', 'add_value_residual=True, learned_value_residual_mix=False')
    head = 'nn.Linear(16, 12)' if 'to_logits.bias ' in names and 'XVal' not in make else ''
    if make.startswith('XTransformer'):
        both = [f'{part}{flag}' for flag in flags for part in ('enc_', 'dec_')]
        return make[:-1] + ''.join(f', {flag}' for flag in [*both, *([f'dec_to_logits={head}'] if head else [])]) + ')'
    make = re.sub(r'(Decoder|Encoder|CrossAttender)\(', lambda found: found[0] + ''.join(f'{f}, ' for f in flags), make)
    return make.replace('TransformerWrapper(', f'TransformerWrapper(to_logits={head}, ') if head else make


def before(version: str, border: str | None) -> bool:
    return border is not None and Version(version) < Version(border)


class Weights(dict):
    """A state dict that is equal to another one if all entries are, in the same order."""

    def __hash__(self) -> int:
        return hash(tuple((entry, t.shape, t.sum().item()) for entry, t in self.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and same(self, other)


@functools.cache
def outputs_of(make: str, state: Weights, call: str) -> list:
    """What a model with these weights gives: most releases computed the same."""
    model = build(make)
    model.load_state_dict(state, strict=True)
    return run(model, call)


FEW = ('0.12.1', '0.25.9', '1.14.0', '1.19.1', '1.26.6', '1.30.0', '2.25.4', '2.31.10')
RELEASES = [v if v in FEW else pytest.param(v, marks=pytest.mark.slow) for v in GOLDEN.releases]


@pytest.mark.costly
@pytest.mark.parametrize('version', RELEASES)
def test_a_release(version):
    """Every recorded case is loaded and gives the recorded outputs, or is refused with its reason."""
    wrong = []
    for name, case in GOLDEN.releases[version].items():
        state, make = GOLDEN.state(version, name), case['make']
        if before(version, REFUSED.get(name, (None,))[0]):
            with pytest.raises(ValueError, match=REFUSED[name][1]):
                upgrade(state, version, **arguments(make), **KEPT)
            continue
        if before(version, OTHERWISE.get(name)):
            continue
        try:
            new = upgrade(state, version, **arguments(make), **KEPT)
            found = outputs_of(today(make, version, new), Weights(new), case['call'])
            error = GOLDEN.error(version, name, found)
        except Exception as problem:
            wrong.append(f'{name}: {type(problem).__name__} {" ".join(str(problem).split())[:200]}')
            continue
        if not error < 1e-4:
            wrong.append(f'{name}: {error:.1e}')
    assert not wrong, '\n'.join(wrong)


def test_every_refusal_and_difference_was_recorded():
    """No entry of the two tables is idle."""
    for name, border in {**{n: b for n, (b, _) in REFUSED.items()}, **OTHERWISE}.items():
        assert any(name in found and before(version, border) for version, found in GOLDEN.releases.items()), name


def old_state(version: str, name: str) -> dict[str, torch.Tensor]:
    return GOLDEN.state(version, name)


def same(one: dict, other: dict) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    'name', ['plain', 'rotary', 'qk_norm_dim_scale', 'gate_values', 'layerscale', 'enc_dec', 'vit']
)
def test_the_newest_release_stays_as_it_is(name):
    state = old_state('2.31.10', name)
    assert same(upgrade(state, '2.31.10'), state)


@pytest.mark.parametrize('version', ['0.12.1', '1.19.1', '1.31.1', '2.25.4'])
def test_the_input_is_left_as_it_is(version):
    for name in ('plain', 'rotary_full', 'scale_norm', 'cross'):
        if name in GOLDEN.releases[version]:
            state = old_state(version, name)
            kept = {entry: t.clone() for entry, t in state.items()}
            upgrade(state, version, heads=2, **KEPT)
            assert same(state, kept)


@pytest.mark.parametrize('prefix', ['module.', 'net.', 'module.net.', 'model.decoder.'])
@pytest.mark.parametrize('version', ['0.12.1', '1.17.3', '1.26.6', '1.30.0'])
def test_names_are_found_behind_any_prefix(version, prefix):
    for name in ('plain', 'rotary_full', 'post_norm', 'emb_dim', 'mem_kv', 'cross'):
        state, tell = old_state(version, name), arguments(GOLDEN.releases[version][name]['make']) | KEPT
        want = {prefix + entry: t for entry, t in upgrade(state, version, **tell).items()}
        assert same(upgrade({prefix + entry: t for entry, t in state.items()}, version, **tell), want)


def test_a_bare_stack_and_one_inside_a_model_have_the_same_entries():
    inside = upgrade(old_state('1.26.6', 'plain'), '1.26.6', **KEPT)
    state = {n.removeprefix('attn_layers.'): t for n, t in old_state('1.26.6', 'plain').items() if 'attn_layers.' in n}
    bare = upgrade(state, '1.26.6', **KEPT)
    assert {f'attn_layers.{entry}' for entry in bare} == {entry for entry in inside if entry.startswith('attn_layers.')}


@pytest.mark.parametrize('version', ['1.16', '1.29.2', '1.30.0'])
def test_rotary_rows_are_reordered_per_head(version):
    """Feature k of a head goes to 2 k, feature k + r / 2 to 2 k + 1, those that do not turn stay."""
    rows = torch.arange(2 * 6.0).view(12, 1)
    state = {f'layers.0.1.to_{which}.weight': rows.clone() for which in 'qkv'} | {
        'rotary_pos_emb.inv_freq': torch.ones(2)
    }
    new = upgrade(state, version, heads=2, rotate_values=True)
    order = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]
    assert new['layers.0.1.to_q.weight'].flatten().tolist() == order
    assert new['layers.0.1.to_k.weight'].flatten().tolist() == order
    assert new['layers.0.1.to_v.weight'].flatten().tolist() == (order if version == '1.16' else list(range(12)))
    del state['rotary_pos_emb.inv_freq']
    told = upgrade(state, version, dim_head=6, rotary_dim=4, rotate_values=True)
    assert told['layers.0.1.to_q.weight'].flatten().tolist() == order


@pytest.mark.parametrize(
    ('name', 'told'), [('rotary_qk_norm_dim_scale', True), ('rotary_mem_kv', True), ('rotary_full', False)]
)
def test_heads_are_derived_where_the_weights_tell(name, told):
    state = old_state('1.30.0', name)
    if not told:
        with pytest.raises(ValueError, match=r'`heads` is missing.*to_q.weight.*`dim_head`'):
            upgrade(state, '1.30.0')
        return
    assert same(upgrade(state, '1.30.0'), upgrade(state, '1.30.0', heads=2))


def test_gains_without_rotary_need_no_heads():
    state = {'layers.0.0.0.weight': torch.full((4,), 1.5), 'layers.0.0.0.bias': torch.zeros(4)}
    new = upgrade(state, '1.26.6')
    assert list(new) == ['layers.0.0.0.gamma'] and new['layers.0.0.0.gamma'].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ('entry', 'version', 'keyword'),
    [
        ('attn_layers.layers.0.0.0.bias', '1.26.6', 'norm_bias'),
        ('attn_layers.final_norm.bias', '1.26.6', 'norm_bias'),
        ('to_logits.bias', '1.26.6', 'logits_bias'),
        ('attn_layers.layers.0.1.to_out.bias', '0.25.9', 'out_bias'),
        ('attn_layers.layers.0.1.to_v_gate.bias', '2.25.4', 'gate_values_bias'),
    ],
)
def test_a_bias_is_dropped_if_zero_refused_if_not_and_kept_if_wanted(entry, version, keyword):
    name = 'gate_values' if keyword == 'gate_values_bias' else 'plain'
    state = old_state(version, name)
    biases = [n for n in state if n.endswith('bias')]
    zero = {n: t * 0 if n in biases else t for n, t in state.items()}
    assert not [n for n in upgrade(zero, version, heads=2) if n.endswith(('beta', 'to_out.bias', 'to_v_gate.bias'))]
    with pytest.raises(ValueError, match=f'not zero.*`{keyword}=True`'):
        upgrade(zero | {entry: state[entry]}, version, heads=2)
    kept = upgrade(zero | {entry: state[entry]}, version, heads=2, **{keyword: True})
    assert any(torch.equal(t, state[entry]) for n, t in kept.items() if n.endswith(('bias', 'beta')))


def test_the_bias_behind_an_activation_goes_into_the_projection():
    weight, bias, shift = torch.randn(3, 5), torch.randn(3), torch.randn(5)
    ff = 'layers.1.1.ff.'
    state = {f'{ff}1.weight': torch.ones(5), f'{ff}1.bias': shift, f'{ff}3.weight': weight, f'{ff}3.bias': bias}
    new = upgrade(state, '1.20.0')
    assert list(new) == [f'{ff}1.gamma', f'{ff}3.weight', f'{ff}3.bias']
    torch.testing.assert_close(new[f'{ff}3.bias'], bias + weight @ shift)


@pytest.mark.parametrize('version', ['2.32.0', '0.11.0', 'new', '', None, 1.3])
def test_unknown_releases_are_refused(version):
    with pytest.raises(ValueError, match='`version` must '):
        upgrade({}, version)


@pytest.mark.parametrize('version', ['0.20.0', '0.21.0', '0.29.1', '1.16.3', '1.31.2', '1.40.4'])
def test_broken_releases_are_refused(version):
    with pytest.raises(ValueError, match=f"`version` got '{version}'.*release"):
        upgrade({}, version)


@pytest.mark.parametrize('state', [None, [], torch.zeros(2), 'old.pt', torch.nn.Linear(2, 2)])
def test_what_is_no_state_dict_is_refused(state):
    with pytest.raises(TypeError, match='`state_dict` must '):
        upgrade(state, '1.30.0')


def test_a_file_with_more_than_weights_is_refused():
    with pytest.raises(TypeError, match=r"`state_dict` must .*got .* at 'optimizer'.*part of the file"):
        upgrade({'model': torch.zeros(1), 'optimizer': {}}, '1.30.0')


@pytest.mark.parametrize(
    ('told', 'words'),
    [
        ({'heads': 0}, r'`heads` must .*got 0'),
        ({'heads': 2.0}, r'`heads` must .*got 2.0'),
        ({'dim_head': -1}, r'`dim_head` must .*got -1'),
        ({'heads': 5}, '`heads` got 5, which does not fit the 64 rows'),
        ({'dim_head': 7}, '`dim_head` got 7, which does not fit the 64 rows'),
        ({'heads': 2, 'rotary_dim': 3}, '`rotary_dim` must be even, got 3'),
        ({'heads': 8}, r'`rotary_dim` must be at most.*got 32'),
    ],
)
def test_wrong_sizes_are_refused_by_name(told, words):
    with pytest.raises(ValueError, match=words):
        upgrade(old_state('1.30.0', 'rotary_full'), '1.30.0', **told)


def test_rotated_values_are_refused_unless_the_model_turns_them():
    state = old_state('1.19.1', 'rotary_full')
    with pytest.raises(ValueError, match=r'turned the values.*`rotate_values=True`'):
        upgrade(state, '1.19.1', heads=2, norm_bias=True, logits_bias=True)


def test_learned_slopes_are_named():
    """What to give to a model instead stands in the refusal, and gives the recorded output."""
    state = old_state('1.0.3', 'alibi_learned')
    with pytest.raises(ValueError, match=r'rel_pos_kwargs=dict\(slopes=\[') as refused:
        upgrade(state, '1.0.3', **KEPT)
    slopes = re.search(r'dict\(slopes=\[.*?\]\)', str(refused.value))[0]
    state = {entry: t for entry, t in state.items() if 'slopes' not in entry}
    case = GOLDEN.releases['1.0.3']['alibi_learned']
    new = upgrade(state, '1.0.3', **KEPT)
    make = today(case['make'], '1.0.3', new).replace('alibi_learned=True', f'rel_pos_kwargs={slopes}')
    model = build(make)
    model.load_state_dict(new)
    assert GOLDEN.error('1.0.3', 'alibi_learned', run(model, case['call'])) < 1e-4


# an optimiser goes on


class Shuffled(torch.nn.Module):
    """Parameters in an order of their own; `tied` is another name of `a`."""

    def __init__(self, order):
        super().__init__()
        one = torch.nn.Parameter(torch.ones(2, 2))
        for name in order:
            self.register_parameter(name, one if name in ('a', 'tied') else torch.nn.Parameter(torch.ones(2, 2)))

    def forward(self, x):
        return x @ self.a * 3 + x @ self.b * 5 + self.tied.sum()


def step_of(model, optimizer):
    optimizer.zero_grad()
    model(torch.tensor([[0.3, -0.7]])).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize('order', [('a', 'unused', 'b', 'tied'), ('b', 'tied', 'unused', 'a')], ids=str)
def test_an_optimizer_goes_on_with_parameters_in_another_order(order):
    """All have one shape: by number it would take the moments of another without a word."""
    before, after = Shuffled(('tied', 'b', 'a', 'unused')), Shuffled(order)
    first, second = (torch.optim.Adam(model.parameters(), lr=0.1) for model in (before, after))
    for _ in range(3):
        step_of(before, first)
    after.load_state_dict(before.state_dict())
    second.load_state_dict(copy.deepcopy(reorder_optimizer(first.state_dict(), before.state_dict(), after)))
    for model, optimizer in ((before, first), (after, second)):
        step_of(model, optimizer)
    for name, p in before.named_parameters():
        assert torch.equal(after.get_parameter(name), p), name


def test_an_optimizer_of_another_model_is_refused():
    model = Shuffled(('a', 'b', 'unused', 'tied'))
    optimizer, weights = torch.optim.SGD(model.parameters(), lr=0.1), model.state_dict()
    groups = torch.optim.SGD([{'params': [p]} for p in model.parameters()], lr=0.1)
    for state, saved, words in (
        (groups.state_dict(), weights, 'one group of parameters, .* got 3'),
        (torch.optim.SGD([model.a], lr=0.1).state_dict(), weights, 'must have 3 parameters.*got 1'),
        (optimizer.state_dict(), {n: t for n, t in weights.items() if n != 'b'}, 'no `b`'),
        (optimizer.state_dict(), {**weights, 'b': torch.ones(3)}, r'`b` of shape \(3,\)'),
    ):
        with pytest.raises(ValueError, match=words):
            reorder_optimizer(state, saved, model)

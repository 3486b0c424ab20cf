"""What stages of a user's own features must give: a refusal names the feature and the stage."""

import re
from typing import ClassVar

import pytest
import torch

from x_transformers import Attention, Decoder, FeedForward, TransformerWrapper, flags
from x_transformers.cache import Cache
from x_transformers.features import ATTENTION, AttentionFeature, FeedForwardFeature, ModelFeature, StackFeature
from x_transformers.flags import Check, RecurrentState, flag
from x_transformers.flags.renamed import OLD_DECLARATIONS, RENAMED


def own(level, stage, method):
    """A feature of the user's that does one thing."""
    return type('Mine', (level,), {'mine': flag(False, 'does it'), stage: method})


def run(level, stage, method):
    feature, on = own(level, stage, method), {'mine': True}
    if level is FeedForwardFeature:
        return FeedForward(16, features=[feature], **on)(torch.randn(2, 5, 16))
    sizes = dict(dim=16, depth=1, heads=2, attn_dim_head=8)
    if level is ModelFeature:
        net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**sizes), features=[feature], **on)
        return net(torch.arange(5)[None])
    prefix = 'attn_' if level is AttentionFeature else ''
    return Decoder(**sizes, features=[feature], **{f'{prefix}mine': True})(torch.randn(2, 5, 16))


WRONG = {
    'qkv_heads': [
        (lambda self, qkv, call: None, TypeError, 'must return its input.*got None'),
        (lambda self, qkv, call: qkv[0], TypeError, 'a tuple of 3, got a tensor of shape'),
        (lambda self, qkv, call: qkv[:2], TypeError, 'a tuple of 3, got a tuple of 2'),
        (lambda self, qkv, call: (*qkv[:2], 3), TypeError, 'must return a tensor, got int'),
        (
            lambda self, qkv, call: [t.transpose(1, 2) for t in qkv],
            ValueError,
            r'length of b and n .*got \(2, 5, 2, 8\)',
        ),
        (lambda self, qkv, call: [qkv[0], qkv[1][:1], qkv[2]], ValueError, r'length of b of .*got \(1, 2, 5, 8\)'),
    ],
    'scores': [
        (lambda self, s, call: s.sum(dim=-1), ValueError, r'\(2, 2, 5, 5\), got \(2, 2, 5\)'),
        (lambda self, s, call: s[:, :, 1:], ValueError, 'length of b and i'),
    ],
    'weights': [(lambda self, w, call: w[0], ValueError, r'got \(2, 5, 5\)')],
    'layer_output': [(lambda self, x, call: x[:, :2], ValueError, r'got \(2, 2, 16\)')],
    'mask': [
        (lambda self, call: torch.ones(5, 5), TypeError, 'must return bool, .*got torch.float32'),
        (lambda self, call: torch.ones(3, 3) > 0, ValueError, 'of `Mine` must have 5 keys on its last axis'),
    ],
    'bias': [
        (lambda self, call: 3, TypeError, 'must return a tensor, float, .*got int'),
        (lambda self, call: torch.ones(5, 5) > 0, TypeError, 'got torch.bool'),
    ],
    'prepend_kv': [(lambda self, call: torch.ones(2, 2, 1, 8), TypeError, r'must return \(k, v\)')],
    'update_cache': [(lambda self, k, v, call: k, TypeError, r'must return \(k, v\)')],
    'select_inputs': [(lambda self, x: x, TypeError, 'x_q, x_k, x_v')],
    'score_mask': [(lambda self, call: 3, TypeError, 'got int')],
    'weighted_values': [(lambda self, out, weights, call: None, TypeError, 'got None')],
}
WRONG_IN_STACKS = {
    'layer_input': (lambda self, x, layer, call: None, 'got None'),
    'inputs': (lambda self, keywords, layer, call: None, 'got None'),
    'execute_layers': (lambda self, run, x, call: None, 'must return a tensor'),
    'finish': (lambda self, x, call: None, 'must return a tensor'),
    'norm': (lambda self: None, 'must return a module'),
}


@pytest.mark.parametrize(
    ('stage', 'method', 'error', 'words'), [(stage, *case) for stage, cases in WRONG.items() for case in cases]
)
def test_attention(stage, method, error, words):
    with pytest.raises(error, match=f'`{stage}` (of Mine|of `Mine`) .*{words}|`{stage}` {words}'):
        run(AttentionFeature, stage, method)


@pytest.mark.parametrize('stage', WRONG_IN_STACKS)
def test_stack(stage):
    method, words = WRONG_IN_STACKS[stage]
    with pytest.raises(TypeError, match=f'`{stage}` of Mine .*{words}'):
        run(StackFeature, stage, method)


REMOVED = [
    (level, stage) for level in (AttentionFeature, FeedForwardFeature, StackFeature) for stage in level.removed_stages
]


@pytest.mark.parametrize(('level', 'stage'), REMOVED, ids=str)
def test_stages_of_earlier_releases(level, stage):
    """A method of their names would never run: the refusal names the stage, or what of the owner, to use instead."""
    with pytest.raises(TypeError, match=f'Mine has `{stage}`, which is no stage any more: use ') as refusal:
        own(level, stage, lambda self, value: value)
    instead = re.search(r'`(\w+)', str(refusal.value).partition('any more')[2])[1]
    assert instead in level.stages or instead in ('setup', 'output_layers')


def test_feedforward_and_model():
    with pytest.raises(ValueError, match='`layer_output` of Mine must keep the length'):
        run(FeedForwardFeature, 'layer_output', lambda self, x, call: x[:, 1:])
    with pytest.raises(TypeError, match=r'`run` of Mine must return .*got None'):
        run(FeedForwardFeature, 'run', lambda self, x, call: None)
    with pytest.raises(TypeError, match=r'`embed` of Mine must return .*got int'):
        run(ModelFeature, 'embed', lambda self, call: 1)


ALLOWED = {
    'qkv_heads': lambda self, qkv, call: [*qkv],
    'qkv_inputs': lambda self, views, call: tuple(t * 2 for t in views),
    'scores': lambda self, s, call: s * 0,
    'mask': lambda self, call: None,
    'bias': lambda self, call: torch.zeros(1, 1, 1, 5),
    'prepend_kv': lambda self, call: (torch.zeros(2, 1, 3, 8),) * 2,
}


@pytest.mark.parametrize('stage', ALLOWED)
def test_what_is_allowed_runs(stage):
    assert run(AttentionFeature, stage, ALLOWED[stage]).shape == (2, 5, 16)


def test_features_of_the_library_are_not_asked():
    """They pay nothing: a subclass of one does, outside of it."""
    assert (
        not any(feature.is_user_defined for feature in ATTENTION) and type('Mine', (ATTENTION[0],), {}).is_user_defined
    )


def test_what_queries_see_is_known_where_scores_are():
    """Earlier, masks have not been put together: nothing may pass for them."""
    for stage, method in (
        ('heads', lambda self, qkv, call: (call.visible(), qkv)[1]),
        ('enter', lambda self, qkv, call: (call.visible(), qkv)[1]),
    ):
        mask = type(
            'Hides', (AttentionFeature,), {'mask': lambda self, call: torch.ones(5, 5) > 0, 'hides': flag(False, '')}
        )
        net = Decoder(
            dim=16, depth=1, heads=2, features=[own(AttentionFeature, stage, method), mask], mine=True, hides=True
        )
        with pytest.raises(ValueError, match='`visible` is known from'):
            net(torch.randn(2, 5, 16))
    seen = []
    run(AttentionFeature, 'scores', lambda self, s, call: (seen.append(call.visible()), s)[1])
    assert torch.equal(seen[0], torch.ones(5, 5).tril()[None, None] > 0)


def check_of(words):
    return Check(words, torch.is_tensor)


def test_declarations_of_earlier_releases(logged):
    """They are translated, with one warning that spells out the new ones."""

    class Earlier(AttentionFeature):
        earlier = flag(False, 'does it')
        call_inputs = {'tilt': 'b n d', 'turn': 'b n'}  # noqa: RUF012
        must_be = {'tilt': check_of('a tilt')}  # noqa: RUF012
        waits = True
        not_across, joins_tokens, needs_all = 'one sequence', '', 'all of them'
        looks_ahead, looks_ahead_by = 'it sees later ones', 'earlier'
        can_cache, can_cache_in_training, can_pad_left = False, True, False
        not_in_stack = {'alibi_pos_bias': 'one of them'}  # noqa: RUF012
        uncut, falls_back = 'all heads are one', True
        idle_beside = {'second': 'third'}  # noqa: RUF012

    assert [(own.axes, own.check and own.check.words) for own in Earlier.call_inputs.values()] == [
        ('b n d', 'a tilt'),
        ('b n', None),
    ]
    assert Earlier.always is False and not vars(Earlier).keys() & OLD_DECLARATIONS
    assert Earlier.refuses == {
        'cross-attention': 'one sequence',
        'documents': '',
        'some tokens': 'all of them',
        'causal': ('it sees later ones', 'earlier'),
        'cache': 'it cannot be cached',
        'cache in training': '',
        'left padding': 'its sequences cannot be padded on the left',
        'alibi_pos_bias': 'one of them',
        'several devices': 'all heads are one',
    }
    assert Earlier.runs_fused is None and Earlier.requires_flag == {'second': 'not third'}
    (line,) = logged
    assert 'Earlier declares ' in line and "`refuses = {'cache': reason}`" in line and 'Input(axes' in line


def test_declarations_of_earlier_releases_in_setup(logged):
    class Forgets(AttentionFeature):
        forgets = flag(False, 'does it')

        def setup(self, owner):
            self.can_cache = False
            self.falls_back = True

    net = Decoder(dim=16, depth=1, heads=2, features=[Forgets], attn_forgets=True)
    assert not net.can_cache_kv and any('Forgets sets `can_cache`' in line for line in logged)
    assert any('`falls_back`, which is now `runs_fused = None`' in line for line in logged)
    with pytest.raises(TypeError, match='Waits sets `waits` in `setup`: declare'):

        class Waits(Forgets):
            def setup(self, owner):
                self.waits = True

        Decoder(dim=16, depth=1, heads=2, features=[Waits], attn_forgets=True)
    for name, words in (('joins_tokens', 'call `self.refuse`'), ('waits', 'a property `always`')):
        with pytest.raises(TypeError, match=f'Mine has a property `{name}`, which is now .*{words}'):
            type('Mine', (Forgets,), {name: property(lambda self: 'reason')})


def test_attributes_of_earlier_releases(logged):
    """Calls, handles of states and features are read by the names that they had; what never was is missing."""
    from x_transformers.features import Running
    from x_transformers.flags import shown
    from x_transformers.kernels.merging import merged

    assert shown is flags.format_value and merged.__name__ == 'merge_outputs'
    found = {}

    class Reads(AttentionFeature):
        reads = flag(False, 'reads the call')
        states: ClassVar = {'sums': Running()}

        def stepped(self, progress):
            found.update(progress=progress, host=self.host)

        def layer_output(self, out, call):
            found.update(rows=call.rows, real=call.real, own=call.own(self), sight=call.sight)
            found['state'] = call.state('sums')
            with pytest.raises(AttributeError, match='no attribute'):
                _ = call.never
            return out

    layer = Attention(dim=16, heads=2, features=[Reads], reads=True)
    layer(torch.randn(2, 5, 16), mask=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    layer.stepped(0.5)
    assert found['progress'] == 0.5 and found['host'] is layer and Running is RecurrentState
    cache = Cache(num_seen_tokens=5, num_prefix_tokens=2)
    assert (cache.seen, cache.leading, cache.made_by) == (5, 2, None)
    assert found['rows'] == 5 and found['real'].sum() == 8 and found['sight'] is None
    assert layer.features.at is layer.features.by_stage
    assert any('`rows` of a Call is now `q_len`' in line for line in logged)


def test_names_of_earlier_releases(logged, monkeypatch):
    """A stage or a declaration that has another name today is found by the one that it had."""
    monkeypatch.setattr(AttentionFeature, 'renamed_stages', {'final': 'layer_output'})
    monkeypatch.setitem(RENAMED, 'unneeded', 'row_wise')

    class Renamed(AttentionFeature):
        renamed = flag(False, 'does it')
        unneeded = True

        def setup(self, owner):
            self.unneeded = 3

        def final(self, out, call):
            return 2 * out

    assert Renamed.runs_at() == ('layer_output',) and Renamed.row_wise is True and not hasattr(Renamed, 'final')
    net = Decoder(dim=16, depth=1, heads=2, features=[Renamed], attn_renamed=True)
    found = net.layers[0][1].features.find(Renamed)
    assert found.row_wise == found.unneeded == 3
    assert any(
        'Renamed has `final`, which is now `layer_output`, `unneeded`, which is now `row_wise`' in t for t in logged
    )

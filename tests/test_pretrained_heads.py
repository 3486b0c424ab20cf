"""Padding, heads, classifiers and models without a head, as they lie on disk: equal numbers, and the way back."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from pretrained_cases import (
    BARS,
    CASES,
    HEAD_CASES,
    IMAGE_CASES,
    SEQ2SEQ_CASES,
    Case,
    check_same_tensors,
    checkpoint,
    config_of,
    ids_of,
    lifted,
    of_theirs,
    texts,
)
from torch import Tensor, nn

from x_transformers import Classifier, XTransformer, finetune, pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.heads import NOT_THERE
from x_transformers.pretrained.specs import SPECS

if os.environ.get('CI'):
    import transformers
else:
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
BASES = [case for case in CASES if case.number == 0]


@pytest.mark.parametrize('case', BASES, ids=str)
def test_padding(case):
    """Rows of unequal lengths, and in encoders padding inside of them, but where it moves positions."""
    theirs, folder = checkpoint(case)
    ours, ids = pretrained.load(folder).double(), ids_of(case)
    real = torch.arange(ids.shape[1]) < torch.tensor([ids.shape[1], 13])[:, None]
    if case.kind == 'MaskedLM' and 'cut' not in SPECS[case.type.replace('-', '_')].sizes:
        real[:, 5:7] = False
    ids = ids.masked_fill(~real, theirs.config.pad_token_id or 0)
    with torch.no_grad(), lifted():
        wanted = copy.deepcopy(theirs).double()(ids, attention_mask=real.long()).logits[real]
    with torch.no_grad():
        found = ours(ids, mask=real)[real]
    assert (found - wanted).abs().max() < BARS.get(case.type, 1e-10)


def of_ours(case: Case, model: nn.Module, pad: int | None) -> list[Tensor]:
    ids, real = texts(case, pad)
    with torch.no_grad():
        out = model(ids, mask=real)
        pooled = model(ids, mask=real, return_pooled=True)[1:] if getattr(model, 'pooler', None) is not None else ()
    return [out[real] if out.shape[:2] == real.shape else out, *pooled]


def check_equal(found: list[Tensor], wanted: list[Tensor], bar: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and (a - b).abs().max() < bar


def check_read_by_theirs(case: Case, kind: str, ours: nn.Module, folder) -> None:
    """A model that was written loads in the other library, without names that are missing or unknown."""
    pretrained.save(ours, folder, format='hf')
    cls = getattr(transformers, kind)
    theirs, said = cls.from_pretrained(folder, attn_implementation='eager', output_loading_info=True)
    assert not said['missing_keys'] and not said['unexpected_keys']
    wanted = of_theirs(case, theirs.double().eval())
    check_equal(of_ours(case, copy.deepcopy(ours).double(), theirs.config.pad_token_id), wanted, 1e-6)


@pytest.mark.parametrize('case', HEAD_CASES, ids=lambda case: case.kind)
def test_heads(case, tmp_path):
    theirs, folder = checkpoint(case)
    ours, info = pretrained.load(folder, return_info=True)
    assert not info.new and not info.ignored
    assert type(ours).from_config(ours.config.to_json_string()).config == ours.config
    pretrained.save(ours, tmp_path, format='hf')
    check_same_tensors(folder, tmp_path)
    assert pretrained.files.read_json(folder / 'config.json') == pretrained.files.read_json(tmp_path / 'config.json')
    pad = theirs.config.pad_token_id
    check_equal(of_ours(case, ours, pad), of_theirs(case, theirs), 1e-4)
    wanted = of_theirs(case, copy.deepcopy(theirs).double())
    check_equal(of_ours(case, ours.double(), pad), wanted, BARS.get(case.type, 1e-10))


TRAINED = [case for case in HEAD_CASES if case.kind.endswith(('Classification', 'QuestionAnswering'))]


def labels_of(case: Case, real: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Labels in the form of ours and of theirs; some do not count."""
    if case.kind.endswith('QuestionAnswering'):
        labels = torch.tensor([[3, 40], [0, 11]])  # an end outside of the row
        return labels, dict(start_positions=labels[:, 0].clone(), end_positions=labels[:, 1].clone())
    labels = torch.tensor([4, 1])
    if case.kind.endswith('TokenClassification'):
        labels = (torch.arange(40).view(2, 20) % 5).masked_fill(~real, -100)
        labels[:, 3] = -100
    return labels, dict(labels=labels.clone())


@pytest.mark.parametrize('case', TRAINED, ids=lambda case: case.kind)
def test_gradients(case, tmp_path):
    """Of one step, written as weights are: those of theirs."""
    theirs, folder = checkpoint(case)
    theirs, ours = copy.deepcopy(theirs).double(), pretrained.load(folder, dtype=torch.float64)
    ids, real = texts(case, theirs.config.pad_token_id)
    labels, given = labels_of(case, real)
    with lifted():
        out = theirs(ids, attention_mask=real.long(), **given)
    wanted = out.loss
    if 'start_logits' in out:  # theirs also learns that no span begins in padding
        both = (out.start_logits, out.end_logits)
        sides = ((side.masked_fill(~real, -1e30), labels[:, i]) for i, side in enumerate(both))
        wanted = sum(nn.functional.cross_entropy(side, at.masked_fill(at >= 20, -100)) for side, at in sides) / 2
        with lifted():
            alone = theirs(ids[:1], start_positions=labels[:1, 0], end_positions=labels[:1, 0]).loss
        assert (ours(ids[:1], labels[:1, [0, 0]]) - alone).abs() < BARS.get(case.type, 1e-10)
    found = ours(ids, labels, mask=real)
    bar = BARS.get(case.type, 1e-10)
    assert (found - wanted).abs() < bar
    found.backward()
    wanted.backward()
    with torch.no_grad():
        for p in ours.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        for p in theirs.parameters():
            p.copy_(torch.full_like(p, torch.nan) if p.grad is None else p.grad)
    pretrained.save(ours, tmp_path / 'ours', format='hf')
    theirs.save_pretrained(tmp_path / 'theirs')
    written, expected = (pretrained.files.Weights(tmp_path / side) for side in ('ours', 'theirs'))
    compared = 0
    for name in expected.files:  # some names in files are not those of modules
        gradient = expected.load(name)
        if not gradient.isnan().all() and 'position' not in name:  # positions have rows that are no places
            assert (written.load(name) - gradient).abs().max() < 100 * bar, name
            compared += 1
    assert compared > 5


OWN = 'BertForSequenceClassification BertModel ElectraForPreTraining BartForSequenceClassification T5EncoderModel'
KEPT = [*(case for case in HEAD_CASES if case.kind in OWN.split()), *SEQ2SEQ_CASES]


@pytest.mark.parametrize('case', KEPT, ids=lambda case: case.kind if case in HEAD_CASES else str(case))
def test_the_format_of_this_library(case, tmp_path):
    ours = pretrained.load(checkpoint(case)[1])
    pretrained.save(ours, tmp_path, format='own')
    again = type(ours).from_pretrained(tmp_path)
    assert again.config == ours.config
    ids = texts(case, 0)[0] if case.type != 'whisper' else torch.randn(2, 24, 10)
    inputs = (ids, ids_of(case)[:, :9].clamp(max=80)) if hasattr(ours, 'decoder') else (ids,)
    with torch.no_grad():
        assert torch.equal(again(*inputs), ours(*inputs))


def base_of(type: str, kind: str = '') -> Case:
    cases = [*HEAD_CASES, *CASES] if kind else [*CASES, *SEQ2SEQ_CASES, *IMAGE_CASES]
    return next(case for case in cases if case.type == type and kind in case.kind)


@pytest.mark.parametrize('type, kind', [
    ('bert', 'BertForSequenceClassification'), ('roberta', 'RobertaForSequenceClassification'),
    ('electra', 'ElectraForSequenceClassification'), ('modernbert', 'ModernBertForSequenceClassification'),
    ('llama', 'LlamaForSequenceClassification'), ('phi', 'PhiForSequenceClassification'),
])  # fmt: skip
def test_new_classes_on_a_model_of_language(type, kind, tmp_path):
    """What the file does not have is drawn, its own head is left out, and it learns."""
    case = base_of(type)
    _, folder = checkpoint(case)
    torch.manual_seed(0)
    ours, info = pretrained.load(folder, num_classes=4, return_info=True)
    assert isinstance(ours, Classifier) and ours.num_classes == 4
    owned = dict(ours.named_parameters())
    drawn = {name for name in owned if not name.startswith('net.')}
    if type == 'modernbert':  # both heads have the same layer
        drawn = {name for name in drawn if name.startswith('to_classes.')}
    assert set(info.new) == drawn and info.ignored
    weight = owned['to_classes.weight']
    only = Classifier.from_pretrained(folder, num_classes=4, trainable='head', num_tokens=100)
    assert {n for n, p in only.named_parameters() if p.requires_grad} == {n for n in owned if not n.startswith('net.')}
    assert only.net.num_tokens == 100
    assert 0.01 < weight.std() < 0.04 and ('to_classes.bias' not in owned or not owned['to_classes.bias'].any())
    ids, real = texts(case, info.config.get('pad_token_id'))
    loss = ours.train()(ids, torch.tensor([3, 1]), mask=real)
    loss.backward()
    assert all(p.grad is not None for p in ours.parameters())
    with torch.no_grad():
        for p in ours.parameters():
            p -= 0.1 * p.grad
    check_read_by_theirs(case, kind, ours.eval(), tmp_path)


@pytest.mark.parametrize('type', ['bert', 'albert', 'ernie', 'megatron-bert'])
def test_models_of_two_tasks(type, tmp_path):
    """What only the other task reads is written as it was, unless another head takes its place."""
    case = base_of(type)
    stem = checkpoint(case)[0].__class__.__name__.removesuffix('ForMaskedLM')
    cls = getattr(transformers, f'{stem}ForPreTraining')
    torch.manual_seed(0)
    theirs = cls(config_of(case)).eval()
    theirs.save_pretrained(tmp_path / 'theirs')
    ours = pretrained.load(tmp_path / 'theirs')
    ids = ids_of(case)
    with torch.no_grad():
        assert (ours(ids) - theirs(ids).prediction_logits).abs().max() < 1e-5
    pretrained.save(ours, tmp_path / 'ours')
    check_same_tensors(tmp_path / 'theirs', tmp_path / 'ours')
    configs = (pretrained.files.read_json(tmp_path / name / 'config.json') for name in ('theirs', 'ours'))
    assert next(configs) == next(configs)
    pretrained.save(pretrained.load(tmp_path / 'theirs', head='mlm'), tmp_path / 'masked')
    _, said = getattr(transformers, f'{stem}ForMaskedLM').from_pretrained(tmp_path / 'masked', output_loading_info=True)
    assert not said['missing_keys'] and not said['unexpected_keys']
    tuned, _ = finetune(pretrained.load(tmp_path / 'theirs'), 'tokens', 4)
    pretrained.save(tuned, tmp_path / 'tokens')
    assert not {name for name in pretrained.files.Weights(tmp_path / 'tokens').files if 'pooler' in name}


def test_one_class_of_a_problem_of_classes(tmp_path):
    """It is read, as theirs is, but has nothing to learn."""
    case = base_of('bert', 'BertForSequenceClassification')
    config = config_of(case)
    config.problem_type, config.num_labels = 'single_label_classification', 1
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, ids = pretrained.load(tmp_path), ids_of(case)
    assert (ours(ids) - theirs(ids).logits).abs().max() < 1e-5
    with pytest.raises(ConfigError, match='`num_classes` of at least 2, got 1'):
        ours(ids, torch.zeros(2, dtype=torch.long))


def test_other_heads_of_the_same_file(tmp_path):
    classes, masked = base_of('bert', 'BertForSequenceClassification'), base_of('bert')
    theirs, folder = checkpoint(classes)
    ours, info = pretrained.load(folder, head='embed', return_info=True)
    assert info.ignored == ['classifier.bias', 'classifier.weight'] and not info.new
    wanted = of_theirs(classes, theirs.bert)
    check_equal(of_ours(classes, ours, 0), wanted, 1e-4)
    check_read_by_theirs(classes, 'BertModel', ours, tmp_path / 'bare')
    ours, info = pretrained.load(folder, head='mlm', return_info=True)
    assert set(info.new) == {'to_logits.bias', *(f'head_transform.dense.{end}' for end in ('weight', 'bias')),
                             *(f'head_transform.norm.{end}' for end in ('gamma', 'beta'))}  # fmt: skip
    check_read_by_theirs(classes, 'BertForMaskedLM', ours, tmp_path / 'masked')
    _, folder = checkpoint(masked)
    again, info = pretrained.load(folder, head='mlm', return_info=True)
    assert torch.equal(again(ids_of(masked)), pretrained.load(folder)(ids_of(masked))) and not info.new
    ours, info = pretrained.load(checkpoint(classes)[1], num_classes=5, return_info=True)
    assert set(info.new) == {'to_classes.weight', 'to_classes.bias'}


def test_backbones_and_heads_of_the_caller(tmp_path):
    case = base_of('llama')
    theirs, folder = checkpoint(case)
    ids = ids_of(case)
    embed = pretrained.load(folder, head='embed')
    with torch.no_grad():
        states = theirs(ids, output_hidden_states=True).hidden_states
        found, trace = pretrained.load(folder)(ids, return_embeddings_and_intermediates=True)
    assert (embed(ids) - states[-1]).abs().max() < 1e-4 and torch.equal(found, embed(ids))
    for i, wanted in enumerate(states[:-1]):
        assert (trace.layer_hiddens[2 * i] - wanted).abs().max() < 1e-4
    head = nn.Linear(32, 3)
    ours, info = pretrained.load(folder, head=head, return_info=True)
    assert ours.to_logits is head and torch.equal(ours(ids), head(embed(ids))) and not info.new
    check_read_by_theirs(case, 'LlamaModel', embed, tmp_path)
    encoder = pretrained.load(checkpoint(base_of('t5', 'T5EncoderModel'))[1])
    assert not isinstance(encoder, XTransformer) and not encoder.attn_layers.causal


def test_heads_of_images(tmp_path):
    """New classes on a model with some, and on one without; and no head."""
    with_classes, bare = (next(case for case in IMAGE_CASES if case.kind == kind) for kind in (
        'ViTForImageClassification', 'ViTModel'))  # fmt: skip
    image = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for case in (with_classes, bare):
        ours, info = pretrained.load(checkpoint(case)[1], num_classes=3, return_info=True)
        assert info.new == ['mlp_head.weight', 'mlp_head.bias'] and ours(image).shape == (2, 3)
        pretrained.save(ours, tmp_path / case.kind, format='hf')
        cls = transformers.ViTForImageClassification
        again, said = cls.from_pretrained(tmp_path / case.kind, output_loading_info=True)
        assert not said['missing_keys'] and not said['unexpected_keys']
        assert (again(image).logits - ours(image)).abs().max() < 1e-4
    theirs, folder = checkpoint(with_classes)
    ours, info = pretrained.load(folder, head='embed', return_info=True)
    assert info.ignored == ['classifier.bias', 'classifier.weight'] and not info.new
    wanted = theirs.vit(image).last_hidden_state
    assert (ours(image, return_embeddings=True) - wanted).abs().max() < 1e-4


@pytest.mark.parametrize('type, options, words', [
    ('bert', dict(head='lm'), "'mlm'|mlm"),
    ('llama', dict(head='tokens_'), 'tokens'), ('bert', dict(head='span', num_classes=3), 'num_classes'),
    ('bert', dict(head='embed', num_classes=3), 'num_classes'),
    ('bert', dict(num_classes=0), 'num_classes'),
    ('cohere', dict(head='classify_'), 'classify_'), ('whisper', dict(num_classes=3), 'num_classes'),
    ('t5', dict(head=nn.Identity(), num_classes=3), 'num_classes'), ('vit', dict(head='lm'), 'embed'),
    ('vit', dict(head=nn.Identity()), 'Identity'), ('marian', dict(head='classify'), 'marian'),
    ('clip_vision_model', dict(num_classes=3), 'num_classes'),
])  # fmt: skip
def test_refusals_of_heads(type, options, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        pretrained.load(checkpoint(base_of(type))[1], **options)


def test_classes_of_a_task_that_is_not_read_are_refused(tmp_path):
    torch.manual_seed(0)
    config = copy.deepcopy(checkpoint(base_of('bert'))[0].config)
    transformers.BertForMultipleChoice(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match='BertForMultipleChoice'):
        pretrained.load(tmp_path)
    assert pretrained.load(tmp_path, head='embed', return_info=True)[1].ignored == [
        'classifier.bias', 'classifier.weight',
    ]  # fmt: skip


@pytest.mark.parametrize('type, head, kind', [
    ('bert', 'span', 'BertForQuestionAnswering'), ('bert', 'tokens', 'BertForTokenClassification'),
    ('llama', 'span', 'LlamaForQuestionAnswering'), ('gpt2', 'tokens', 'GPT2ForTokenClassification'),
    ('mistral', 'span', 'MistralForQuestionAnswering'),
])  # fmt: skip
def test_new_heads_for_tokens_and_spans(type, head, kind, tmp_path):
    """On a model of language; and back to one, though files of some types have another prefix."""
    case = base_of(type)
    _, folder = checkpoint(case)
    ours, info = pretrained.load(folder, head=head, num_classes=None if head == 'span' else 4, return_info=True)
    assert set(info.new) == {'to_classes.weight', 'to_classes.bias'}
    check_read_by_theirs(case, kind, ours, tmp_path)
    ids = ids_of(case)
    embed = pretrained.load(folder, head='embed')
    with torch.no_grad():
        assert torch.equal(pretrained.load(tmp_path, head='embed')(ids), embed(ids))


def test_heads_that_the_other_library_has_no_class_for(tmp_path):
    """They are read and trained here, and written in the format of this library alone."""
    for row in SPECS.values():
        for kind in NOT_THERE.keys() & row.heads.keys():
            absent = not hasattr(transformers, row.heads[kind].of(row, kind).architectures[0])
            assert absent == (row.type in NOT_THERE[kind]), (row.type, kind)
    ours = pretrained.load(checkpoint(base_of('gemma'))[1], head='span')
    with pytest.raises(ConfigError, match="no GemmaForQuestionAnswering: `format='own'`"):
        pretrained.save(ours, tmp_path)
    pretrained.save(ours, tmp_path, format='own')
    ids = ids_of(base_of('gemma'))
    assert torch.equal(pretrained.load(tmp_path)(ids), ours(ids))


@pytest.mark.parametrize('problem, count, labels', [
    ('regression', 1, torch.tensor([0.3, -2.0])), ('regression', 3, torch.randn(2, 3)),
    ('single_label_classification', 3, torch.tensor([2, 0])),
    ('multi_label_classification', 3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])),
    (None, 1, torch.tensor([0.3, -2.0])), (None, 3, torch.tensor([2, 0])),
    (None, 3, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])),
])  # fmt: skip
@pytest.mark.parametrize('kind', ['BertForSequenceClassification', 'LlamaForSequenceClassification'])
def test_problem_type_decides_the_loss(kind, problem, count, labels, tmp_path):
    case = next(case for case in HEAD_CASES if case.kind == kind)
    config = config_of(case)
    config.problem_type, config.num_labels = problem, count
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(config).double().eval()
    theirs.save_pretrained(tmp_path)
    ours = pretrained.load(tmp_path)
    ids, real = texts(case, config.pad_token_id)
    given = labels.double() if labels.is_floating_point() else labels
    with lifted():
        wanted = theirs(ids, attention_mask=real.long(), labels=given)
    assert (ours(ids, labels, mask=real) - wanted.loss).abs() < (1e-6 if labels.is_floating_point() else 1e-10)
    assert ours.problem_type == problem
    del ours.pretrained
    pretrained.save(ours, tmp_path / 'again', hf_type=case.type)
    assert pretrained.files.read_json(tmp_path / 'again' / 'config.json').get('problem_type') == problem

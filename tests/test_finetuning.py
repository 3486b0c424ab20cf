"""Frozen bodies, new heads, rates by layer, tasks as texts: which names learn, what stays, and that it pays."""

import pytest
import torch
import torch.nn.functional as F
from building import nets
from oracles import assert_close, randomised
from torch import nn
from toy_tasks import markov, taught

from x_transformers import (
    Classifier,
    Decoder,
    Encoder,
    MLMWrapper,
    Perceiver,
    TextToText,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    finetune,
    freeze_pretrained_,
)
from x_transformers.flags import ConfigError
from x_transformers.tokenizers import ByteTokenizer

V, N = 11, 8
SIZES = dict(dim=16, depth=3, heads=2, attn_dim_head=8)


net = nets(V, N, Encoder, **SIZES)


def ids(b=4, n=N, seed=0):
    return torch.randint(0, V, (b, n), generator=torch.Generator().manual_seed(seed))


# frozen


def test_exactly_these_names_learn():
    made = net(norm_bias=True, attn_qk_norm=True, attn_qk_norm_dim_scale=True, rel_pos_bias=True)
    norms = {f'attn_layers.layers.{at}.0.0.{name}' for at in range(6) for name in ('gamma', 'beta')}
    norms |= {f'attn_layers.final_norm.{name}' for name in ('gamma', 'beta')}
    others = {'token_emb.emb.weight', 'to_logits.weight', 'attn_layers.rel_pos.relative_attention_bias.weight'}
    found = freeze_pretrained_(made)
    assert set(found) == norms | others == {n for n, p in made.named_parameters() if p.requires_grad}
    assert set(freeze_pretrained_(made, ('output',))) == {'to_logits.weight'}
    assert set(freeze_pretrained_(net(), ('pos', 'input'))) == {'pos_emb.emb.weight', 'token_emb.emb.weight'}
    images = ViTransformerWrapper(image_size=8, patch_size=4, num_classes=3, attn_layers=Encoder(**SIZES))
    names = freeze_pretrained_(images)
    assert {'pos_embedding', 'mlp_head.weight'} <= set(names) and not any('to_q' in name for name in names)


def test_frozen_tensors_stay_as_they_are():
    made = net(norm_bias=True)
    learning = set(freeze_pretrained_(made))
    before = {n: p.clone() for n, p in made.named_parameters()}
    optimiser = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=0.1)
    for seed in range(5):
        optimiser.zero_grad()
        F.cross_entropy(made(ids(seed=seed)).mT, ids(seed=seed)).backward()
        optimiser.step()
    for name, p in made.named_parameters():
        assert torch.equal(p, before[name]) == (name not in learning), name
    share = sum(p.numel() for n, p in made.named_parameters() if n in learning) / sum(
        p.numel() for p in made.parameters()
    )
    assert share < 0.2


def test_new_inputs_and_outputs():
    torch.manual_seed(0)
    made = net(around=dict(num_tokens=500, logits_bias=True))
    with torch.no_grad():
        made.to_logits.bias += 1
    before = made.pos_emb.emb.weight.clone()
    freeze_pretrained_(made, renew=('input', 'output'))
    for weight in (made.token_emb.emb.weight, made.to_logits.weight):
        assert abs(weight.std() / 0.02 - 1) < 0.05
    assert (made.to_logits.bias == 0).all() and torch.equal(made.pos_emb.emb.weight, before)
    arrays = Perceiver(2, 1, 3, 16, 1, heads=2, dim_head=8, num_freq_bands=2, num_classes=300)
    gain = arrays.to_logits[0].gamma.clone()
    freeze_pretrained_(arrays, renew=('output',))
    assert torch.equal(arrays.to_logits[0].gamma, gain) and abs(arrays.to_logits[1].weight.std() / 0.02 - 1) < 0.05


# heads


@pytest.mark.parametrize('decay', [1.0, 0.5])
def test_groups_hold_every_parameter_once(decay):
    made = net(around=dict(tie_embedding=True), norm_bias=True)
    model, groups = finetune(made, 'tokens', 5, layer_lr_decay=decay, lr=0.1)
    held = [id(p) for group in groups for p in group['params']]
    assert len(held) == len(set(held)) == len(list(model.parameters()))
    rates = {id(p): group['lr'] for group in groups for p in group['params']}
    of = lambda name: rates[id(model.get_parameter(name))]  # noqa: E731
    assert (
        of('head.weight') == of('net.attn_layers.final_norm.gamma') == of('net.attn_layers.layers.5.1.ff.2.bias') == 0.1
    )
    for block in range(3):
        for layer in (2 * block, 2 * block + 1):
            assert of(f'net.attn_layers.layers.{layer}.0.0.gamma') == pytest.approx(0.1 * decay ** (2 - block))
    assert of('net.token_emb.emb.weight') == of('net.pos_emb.emb.weight') == pytest.approx(0.1 * decay**3)
    torch.optim.AdamW(groups)


def test_what_is_frozen_stays_and_is_in_no_group():
    made = net()
    model, groups = finetune(made, freeze=('token_emb', 'attn_layers.layers.0'))
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        n for n, _ in model.named_parameters() if n.startswith(('net.token_emb', 'net.attn_layers.layers.0.'))
    }
    before = {n: p.clone() for n, p in model.named_parameters()}
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    model(ids(), torch.tensor([0, 1, 0, 1])).backward()
    optimiser.step()
    assert {n for n, p in model.named_parameters() if torch.equal(p, before[n])} >= frozen
    assert not torch.equal(model.head.weight, before['head.weight'])


def test_heads_by_hand():
    """The body as it was; each head on its states, with padding on either side, and the losses."""
    made, x = net(), ids()
    mask = torch.arange(N).expand(4, -1) >= torch.tensor([0, 2, 0, 1])[:, None]
    for read in ('first', 'mean'):
        model = randomised(finetune(made, 'class', 3, read=read)[0])
        hidden = made(x, mask=mask, return_embeddings=True)
        first = hidden[torch.arange(4), torch.tensor([0, 2, 0, 1])]
        mean = torch.stack([row[real].mean(dim=0) for row, real in zip(hidden, mask, strict=True)])
        logits, states = model(x, mask=mask), first if read == 'first' else mean
        assert_close(logits, states @ model.head.weight.T + model.head.bias)
        labels = torch.tensor([0, 2, -100, 1])
        assert_close(model(x, labels, mask=mask), F.cross_entropy(logits, labels))
    tokens = randomised(finetune(made, 'tokens', 4)[0])
    labels = (x % 4).masked_fill(~mask, -100)
    assert_close(tokens(x, labels, mask=mask), F.cross_entropy(tokens(x, mask=mask).mT, labels))
    spans = randomised(finetune(made, 'span')[0])
    places = torch.tensor([[1, 3], [2, 2], [0, 7], [-100, -100]])
    begins, ends = spans(x, mask=mask).unbind(-1)
    wanted = torch.cat((begins.log_softmax(-1)[range(3), places[:3, 0]], ends.log_softmax(-1)[range(3), places[:3, 1]]))
    assert_close(spans(x, places, mask=mask), -wanted.mean())
    assert (begins.softmax(-1)[~mask] == 0).all()


def test_the_body_is_as_it_was_before_the_first_step():
    made, x = randomised(net()), ids()
    before = made(x)
    model, _ = finetune(made, 'class', 3)
    assert torch.equal(made(x), before) and set(model.state_dict()) >= {
        'head.weight',
        'head.bias',
        'net.to_logits.weight',
    }
    assert model.head.weight.std() < 0.04 and (model.head.bias == 0).all()
    assert type(model).from_config(model.config).config == model.config


@pytest.mark.nightly
def test_it_pays_to_have_learned_before():
    """Which of two chains a row is of, from 64 labelled rows: a body that has filled in both, and one that has not."""
    tasks = [markov(n=24, which=at) for at in range(2)]

    def rows(b):
        which = torch.randint(0, 2, (b,))
        both = torch.stack([task.draw(b)[0] for task in tasks], dim=1)
        return both[torch.arange(b), which], which

    def body():
        stack = Encoder(dim=32, depth=2, heads=2, attn_dim_head=16)
        return TransformerWrapper(num_tokens=9, max_seq_len=24, attn_layers=stack)

    right = []
    for learned in (True, False):
        torch.manual_seed(0)
        made = body()
        if learned:
            mlm = MLMWrapper(made, mask_token_id=8, pad_token_id=None, mask_prob=0.3, num_tokens=8)
            taught(mlm, lambda mlm=mlm: mlm(rows(64)[0]), 2500)
        torch.manual_seed(1)
        x, y = rows(64)
        model, groups = finetune(made, 'class', lr=3e-3, read='mean', layer_lr_decay=0.7)
        optimiser = torch.optim.AdamW(groups)
        for _ in range(40):
            optimiser.zero_grad()
            model(x, y).backward()
            optimiser.step()
        x, y = rows(1000)
        right.append((model.eval()(x).argmax(dim=-1) == y).double().mean().item())
    assert right[0] >= right[1] + 0.15, right


# texts


def texts_of():
    return TextToText(ByteTokenizer(), {'copy': 'c:', 'reverse': 'r:'})


def test_batches_of_tasks():
    batch = texts_of().batch([('copy', 'ab', 'ab'), ('reverse', 'abc', 'cba')])
    assert batch.inputs.tolist() == [[*b'c:ab', 258, 256], [*b'r:abc', 258]]
    assert batch.mask.tolist() == [[True] * 5 + [False], [True] * 6]
    assert batch.targets.tolist() == [[257, *b'ab', 258, -100], [257, *b'cba', 258]]


@pytest.mark.nightly
def test_the_word_in_front_decides():
    torch.manual_seed(0)
    sizes = dict(num_tokens=259, max_seq_len=12, depth=2, heads=4, attn_dim_head=16)
    model = XTransformer(dim=64, **{f'{side}_{name}': size for side in ('enc', 'dec') for name, size in sizes.items()})
    tasks = texts_of()

    def examples(b):
        texts = [''.join(chr(97 + i) for i in torch.randint(0, 4, (4,)).tolist()) for _ in range(b)]
        return [('copy', t, t) if at % 2 else ('reverse', t, t[::-1]) for at, t in enumerate(texts)]

    def loss():
        batch = tasks.batch(examples(48))
        return model(batch.inputs, batch.targets, mask=batch.mask)

    taught(model, loss, 400)
    asked = [t for _, t, _ in examples(40)]
    for task, wanted in (('copy', asked), ('reverse', [t[::-1] for t in asked])):
        found = tasks.answer(model, task, asked, 6)
        assert sum(a == b for a, b in zip(found, wanted, strict=True)) >= 38


# labels

REAL = torch.arange(N).expand(4, -1) < torch.tensor([8, 3, 5, 0])[:, None]  # the last row is padding alone
PROBLEMS = ('regression', 'single_label_classification', 'multi_label_classification')


def by_problem(problem, logits, labels):
    """As the models of `transformers` compute it, in one line each."""
    if problem == 'regression':
        return F.mse_loss(logits.squeeze(-1) if labels.ndim < logits.ndim else logits, labels)
    if problem == 'single_label_classification':
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
    return F.binary_cross_entropy_with_logits(logits, labels)


@pytest.mark.parametrize('kind', ['finetune', 'Classifier'])
@pytest.mark.parametrize('count', [1, 3])
@pytest.mark.parametrize('head', ['class', 'tokens'])
def test_numbers_classes_and_several_labels(kind, count, head):
    """Told by `problem_type`, else by the labels; rows and tokens of padding do not count, whatever they hold."""

    def build(problem=None):
        if kind == 'finetune':
            return randomised(finetune(net(), head, count, problem_type=problem)[0])
        token = 'all' if head == 'tokens' else None
        return randomised(Classifier(net(), num_classes=count, token=token, problem_type=problem))

    real = REAL if head == 'tokens' else REAL.any(dim=-1)
    shape, x, model = tuple(real.shape), ids(), build()
    numbers = torch.rand(*shape, count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    classes = (torch.arange(real.numel()) % count).view(shape)
    logits = model(x, mask=REAL)
    # labels, and whether they tell the problem by themselves
    cases = [('regression', numbers, count == 1), ('multi_label_classification', numbers, count > 1)]
    if count == 1:
        cases += [('regression', numbers.squeeze(-1), True), ('regression', classes, True)]
        cases += [('multi_label_classification', numbers.squeeze(-1).round().bool(), False)]
    else:
        cases += [('single_label_classification', classes, True), ('single_label_classification', classes.int(), True)]
        cases += [('multi_label_classification', numbers.round().bool(), True)]
        cases += [('multi_label_classification', numbers.round().long(), True)]
    for problem, labels, told in cases:
        single = problem == 'single_label_classification'
        right = labels.long() if single else labels.double().view(*shape, count)
        wanted = by_problem(problem, logits[real], right[real])
        given = labels.clone()
        given[~real] = float('nan') if given.is_floating_point() else 0
        for model.problem_type in (problem, None) if told else (problem,):
            assert_close(model(x, given, mask=REAL), wanted)
        items = 2 * labels[real].numel()
        assert_close(model(x, given, mask=REAL, num_items_in_batch=items) * 2, wanted)
    assert type(model).from_config(build('regression').config).problem_type == 'regression'


@pytest.mark.parametrize('kind', ['finetune', 'Classifier'])
@pytest.mark.parametrize('head', ['class', 'tokens'])
def test_weights_and_smoothing_of_classes(kind, head):
    """As in `cross_entropy`; parts of a batch over the number of its labels add up."""
    weights, shape, x = (0.5, 2.0, 0.0), (4,) if head == 'class' else (4, N), ids()
    labels = (torch.arange(4 if head == 'class' else 4 * N) % 3).view(shape)
    labels[1] = -100
    for options in (
        dict(label_smoothing=0.1),
        dict(class_weights=weights),
        dict(label_smoothing=0.2, class_weights=list(weights)),
    ):
        if kind == 'finetune':
            model = randomised(finetune(net(), head, 3, **options)[0])
        else:
            token = 'all' if head == 'tokens' else None
            model = randomised(Classifier(net(), num_classes=3, token=token, **options))
        table = torch.tensor(weights, dtype=torch.float64) if 'class_weights' in options else None
        terms = dict(weight=table, label_smoothing=options.get('label_smoothing', 0.0))
        rows = model(x).flatten(0, -2), labels.flatten()
        assert_close(model(x, labels), F.cross_entropy(*rows, **terms))
        total, items = F.cross_entropy(*rows, **terms, reduction='sum'), int((labels != -100).sum())
        parts = [model(x[at : at + 1], labels[at : at + 1], num_items_in_batch=items) for at in range(4)]
        assert_close(sum(parts), total / items)
        assert model(x, torch.full(shape, -100)) == 0
        assert type(model).from_config(model.config).terms.class_weights == (weights if table is not None else None)
        with pytest.raises(ValueError, match='is for classes, of which there is one'):
            model(x, torch.rand(*shape, 3))


def test_labels_without_a_number_do_not_count():
    model, x = randomised(finetune(net(), 'class', 3)[0]), ids()
    labels = torch.tensor([[1.0, 0.0, -100.0], [-100.0] * 3, [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    known = labels != -100
    logits = model(x)
    assert_close(model(x, labels), F.binary_cross_entropy_with_logits(logits[known], labels[known].double()))
    assert model(x, torch.full((4, 3), -100.0)) == 0


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: finetune(net(), 'class', 3)[0](ids(), torch.rand(4)), 'must be whole numbers, as there are several'),
        (lambda: finetune(net(), 'class', 3)[0](ids(), torch.rand(4, 2)), r'they must be \(4, 3\)'),
        (lambda: finetune(net(), 'class', 3)[0](ids(), 2 + torch.rand(4, 3)), '`labels` must be from 0 to 1 or -100'),
        (lambda: finetune(net(), 'class', 1)[0](ids(), torch.rand(4, 2)), r'they must be \(4, 1\) or \(4,\)'),
        (lambda: finetune(net(), 'class', 1, problem_type=PROBLEMS[1]), '`num_labels` of at least 2'),
        (lambda: finetune(net(), 'span', problem_type='regression'), "cannot be combined with `head='span'`"),
        (lambda: finetune(net(), problem_type='regresion'), "`problem_type` must be one of 'regression'"),
        (lambda: Classifier(net(), num_classes=1, problem_type=PROBLEMS[1])(ids(), torch.zeros(4).long()),
         '`num_classes` of at least 2'),
        (lambda: finetune(net(), 'class', 1, label_smoothing=0.1), '`label_smoothing` got 0.1, it is for classes'),
        (lambda: finetune(net(), 'span', class_weights=(1, 2)), r'`class_weights` got \(1, 2\), it is for classes'),
        (lambda: Classifier(net(), num_classes=3, class_weights=[1, 2]), r'`class_weights` must .*got 2'),
        (lambda: finetune(net(), class_weights=[1, -2]), r'`class_weights` must be a list or tuple'),
        (lambda: finetune(net(), 'class', 3, weight=[1, 2, 3]), r'here it is `class_weights`'),
        (lambda: finetune(net())[0](ids(), num_items_in_batch=3), '`num_items_in_batch` needs `labels`'),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize('read', [None, 'last'])
def test_a_class_is_read_from_the_last_real_token(read):
    """With padding on either side, and in between; what it holds does not matter."""
    model = randomised(finetune(net(Decoder), 'class', 3, read=read)[0])
    assert model.read == 'last'
    real = torch.ones(4, N, dtype=torch.bool)
    real[0, 5:] = real[1, :3] = real[2, 2:4] = real[2, 7:] = False
    x = ids()
    hidden = model.net(x, mask=real, return_embeddings=True)
    last = hidden[torch.arange(4), torch.tensor([4, 7, 6, 7])]
    wanted = last @ model.head.weight.T + model.head.bias
    assert_close(model(x, mask=real), wanted)
    assert_close(model(x.masked_fill(~real, 3), mask=real), wanted)
    assert_close(model(x[:1, :5]), wanted[:1])
    assert finetune(net(), read='last')[0].read == 'last' and finetune(net())[0].read == 'first'


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: freeze_pretrained_(net(), ('norms',)), "`train` must "),
        (lambda: freeze_pretrained_(net(), 'norm'), r"`train` must be kinds.*got 'norm'"),
        (lambda: freeze_pretrained_(net(), renew=('x',)), r"`renew` must .*got 'x'"),
        (lambda: freeze_pretrained_(nn.Linear(3, 3)), 'which selects no parameters'),
        (lambda: finetune(net(), 'word'), "`head` must be one of 'tokens', 'class', 'span', got 'word'"),
        (lambda: finetune(net(), 'span', 3), "`num_labels` must be 2"),
        (lambda: finetune(net(), freeze=('token_emb.emb.weigt',)), "no name, did you mean `token_emb.emb.weight`"),
        (lambda: finetune(net(), layer_lr_decay=0), r'`layer_lr_decay` must .*got 0'),
        (lambda: finetune(net(), lr=0), r'`lr` must .*got 0'),
        (lambda: finetune(nn.Linear(3, 3)), r'`net` must .*got Linear|has no attribute'),
        (lambda: finetune(net())[0](ids(), torch.tensor([0, 1, 2, 1])), r'`labels` must .*got labels from 0 to 2'),
        (lambda: finetune(net())[0](ids(), torch.tensor([0, 1])), r'`labels` got torch.int64 of shape \(2,\)'),
        (lambda: finetune(net(), 'span')[0](ids(), torch.full((4, 2), 8)), r'`labels` must .*got labels from 8 to 8'),
        (lambda: TextToText(3, {'a': 'b'}), '`tokenizer` got int, which has no `encode`'),
        (lambda: TextToText(ByteTokenizer(), {}), '`tasks` must '),
        (lambda: TextToText(ByteTokenizer(), {'a': 'x', 'b': 'x'}), 'two with the same text in front'),
        (lambda: texts_of().batch([]), '`examples` got none'),
        (lambda: texts_of().batch([('cpy', 'a', 'a')]), "`task` got 'cpy', .* did you mean `copy`"),
        (lambda: texts_of().answer(None, 'copy', ['a'], 0), r'`seq_len` must .*got 0'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError, AttributeError), match=words):
        call()

"""The evaluation harness `lm-eval`: what it reports of a tiny task is what loops over tokens give."""

import json
import math

import pytest
import torch

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
QUESTIONS = [
    dict(question='two and two', choices=[' make four', ' fish', ' is'], answer=0),
    dict(question='', choices=['a', 'ab', 'abc'], answer=2),
    dict(question='the cat sat on the ', choices=['mat', 'dog and the mat'], answer=0),
]
TEXTS = ['the cat sat on the mat and the dog sat on the cat', 'Ünïcödé', 'a']


@pytest.fixture(scope='module')
def lm_eval():
    return pytest.importorskip('lm_eval', reason="pip install -e '.[ecosystem]'")


def language_model(num_tokens, max_seq_len=24, **flags):
    torch.manual_seed(0)
    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, **flags)
    net = TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=layers)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return AutoregressiveWrapper(net.double())


def trained_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    options = dict(special_tokens=['<end>'], initial_alphabet=letters, show_progress=False)
    trainer = trainers.BpeTrainer(vocab_size=300, **options)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


@pytest.fixture(scope='module', params=['bytes', 'pieces'])
def subject(request, lm_eval):
    """The adapter, how it encodes a text, and what stands in front of one."""
    from x_transformers.integrations.lm_eval import LM

    if request.param == 'bytes':
        model = language_model(256, rotary_pos_emb=True)
        return LM(model, batch_size=3), lambda text: list(text.encode()), 10
    tokenizer = trained_tokenizer()
    model = language_model(tokenizer.get_vocab_size())
    return LM(model, tokenizer, end=0, batch_size=3), lambda text: tokenizer.encode(text).ids, 0


def likelihood(net, context, more):
    """The log probability of ids after others, a token at a time, and whether each is the likeliest."""
    total, likeliest = 0.0, True
    for token in more:
        logits = net(torch.tensor([context[-net.max_seq_len :]]))[0, -1].tolist()
        total += logits[token] - math.log(sum(map(math.exp, logits)))
        likeliest &= logits[token] == max(logits)
        context = [*context, token]
    return total, likeliest


def request(kind, *args):
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=args, idx=0)


@torch.no_grad()
def test_continuations(subject):
    lm, encode, start = subject
    lm.model.eval()
    pairs = [(one['question'], choice) for one in QUESTIONS for choice in one['choices']]
    lm.model.train()
    found = lm.loglikelihood([request('loglikelihood', *pair) for pair in pairs], disable_tqdm=True)
    assert lm.model.training
    lm.model.eval()
    for (context, more), (score, likeliest) in zip(pairs, found, strict=True):
        space = context[len(context.rstrip()) :]  # belongs to what follows
        whole = encode(context.rstrip() + space + more)
        cut = len(encode(context.rstrip()))
        ids = (whole[:cut] or [start])[-(lm.max_length + 1 - len(whole) + cut) :]
        wanted, wanted_likeliest = likelihood(lm.net, ids, whole[cut:])
        assert score == pytest.approx(wanted, rel=1e-9) and likeliest == wanted_likeliest
    # the likeliest continuation is known as such
    best = lm.model.generate(torch.tensor([encode('the cat')]), 1, temperature=0.0)[0].tolist()
    ((_, likeliest),) = lm._loglikelihood_tokens([(None, encode('the cat'), best)], disable_tqdm=True)
    assert likeliest


@torch.no_grad()
def test_whole_texts(subject):
    """Longer ones in windows: each token is predicted once, the first of a window after the last of the one before."""
    lm, encode, start = subject
    lm.model.eval()
    found = lm.loglikelihood_rolling([request('loglikelihood_rolling', text) for text in TEXTS], True)
    for text, score in zip(TEXTS, found, strict=True):
        ids, total, done = [start, *encode(text)], 0.0, 1
        while done < len(ids):
            more = ids[done : done + lm.max_length]
            before = max(1, lm.max_length + 1 - len(more))
            total += likelihood(lm.net, ids[max(0, done - before) : done], more)[0]
            done += len(more)
        assert score == pytest.approx(total, rel=1e-9)


@torch.no_grad()
def test_generated_texts(subject):
    lm, encode, start = subject
    contexts, length = ['the cat sat', 'a', '', 'the dog and the cat and the dog'], 10
    ids = [(encode(text) or [start])[-(lm.max_length - length) :] for text in contexts]
    wanted = []
    for row in ids:
        tokens = lm.model.generate(torch.tensor(row), length, temperature=0.0).tolist()
        wanted.append(lm.tokenizer.decode(tokens[: tokens.index(lm.end)] if lm.end in tokens else tokens))
    stops = [wanted[0][3:5], wanted[1][1]]
    requests, cuts = [], []
    for until in ([], stops, stops[0]):
        wishes = {'until': until, 'max_gen_toks': length}
        requests += [request('generate_until', text, wishes) for text in contexts]
        cuts += [
            min((text.split(stop)[0] for stop in ([until] if isinstance(until, str) else until)), key=len, default=text)
            for text in wanted
        ]
    assert lm.generate_until(requests, disable_tqdm=True) == cuts  # with several wishes among them
    tokens = lm.model.generate(torch.tensor(ids[0]), length, temperature=0.0).tolist()
    ending = type(lm)(lm.model, lm.tokenizer, end=tokens[4])
    wanted = lm.tokenizer.decode(tokens[: tokens.index(tokens[4])])
    assert ending.generate_until([request('generate_until', contexts[0], wishes | {'until': []})]) == [wanted]
    options = dict(do_sample=True, temperature=0.5, top_p=0.9, top_k=3, max_gen_toks=4)
    torch.manual_seed(0)
    assert len(lm.generate_until([request('generate_until', 'a', options)], disable_tqdm=True)) == 1
    assert lm.options({**options, 'top_k': 0})[2]['filter_logits_fn'] == ['top_p']  # 0 keeps all
    with pytest.raises(ValueError, match='`num_beams` got 4: generation has no such option here'):
        lm.generate_until([request('generate_until', 'a', {'num_beams': 4})], disable_tqdm=True)
    with pytest.raises(ValueError, match='24 tokens cannot be generated after one: the model reads 24'):
        lm.generate_until([request('generate_until', 'a', {'max_gen_toks': 24})], disable_tqdm=True)


@torch.no_grad()
def test_a_task(subject, tmp_path):
    """Three kinds of questions about a local file, as the harness reports them."""
    lm, encode, start = subject
    lm.model.eval()
    (tmp_path / 'questions.json').write_text(json.dumps([{**one, 'text': TEXTS[0]} for one in QUESTIONS]))
    read = {'data_files': {'test': str(tmp_path / 'questions.json')}, 'cache_dir': str(tmp_path / 'cache')}
    common = dict(test_split='test', num_fewshot=0, dataset_path='json', dataset_kwargs=read)
    tasks = [
        dict(task='choices', output_type='multiple_choice', doc_to_text='{{question}}', doc_to_choice='{{choices}}',
             doc_to_target='answer', target_delimiter='', metric_list=[dict(metric='acc')], **common),
        dict(task='texts', output_type='loglikelihood_rolling', doc_to_text='', doc_to_target='{{text}}',
             metric_list=[dict(metric='bits_per_byte')], **common),
        dict(task='answers', output_type='generate_until', doc_to_text='{{text}}', doc_to_target='never said',
             generation_kwargs=dict(until=['\n'], max_gen_toks=4), metric_list=[dict(metric='exact_match')], **common),
    ]  # fmt: skip
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    own = TaskManager(include_defaults=False)  # to read the others takes half a minute
    found = simple_evaluate(model=lm, tasks=tasks, task_manager=own, bootstrap_iters=0)['results']
    hits = 0
    for one in QUESTIONS:
        space = one['question'][len(one['question'].rstrip()) :]
        before = encode(one['question'].rstrip())
        scores = [
            likelihood(lm.net, before or [start], encode(one['question'].rstrip() + space + choice)[len(before) :])[0]
            for choice in one['choices']
        ]
        hits += scores.index(max(scores)) == one['answer']
    assert found['choices']['acc,none'] == pytest.approx(hits / len(QUESTIONS))
    (whole,) = lm.loglikelihood_rolling([request('loglikelihood_rolling', TEXTS[0])], True)
    wanted = -whole / math.log(2) / len(TEXTS[0].encode())
    assert found['texts']['bits_per_byte,none'] == pytest.approx(wanted)
    assert found['answers']['exact_match,none'] == 0.0

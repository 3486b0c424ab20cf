"""Keywords of other libraries: every one is answered, and whatever an answer names is taken where it says."""

import copy
import inspect
import re
import sys
from functools import partial

import pytest
import torch
from building import models
from test_wrapper_laws import SUBJECTS
from torch import nn

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    Classifier,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    FeedForward,
    MLMWrapper,
    PagedEngine,
    RMSNorm,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    finetune,
    param_groups,
    presets,
    pretrained,
    schedules,
)
from x_transformers.flags import ConfigError, advice
from x_transformers.flags.config import KINDS
from x_transformers.flags.foreign import BUILDERS, Callee, find_callee_words, format_call, get_keywords, rows_for
from x_transformers.flags.foreign_words import BUILD, CALL, GENERATE, LOAD, SAVE, WORDS
from x_transformers.tokenizers import ByteTokenizer, train_bpe, train_wordpiece

SMALL = dict(dim=16, depth=2, heads=2, attn_dim_head=8)
IDS = torch.arange(18).view(2, 9)
REAL = torch.ones(2, 9)
HERE = re.compile(r': here it is ((?:`\w+`(?: and )?)+)(?:,|;|$)')
THERE = re.compile(r'`(\w+)\((?:net, )?([^`()]*)\)`')
KEYWORD = re.compile(r'(?:^|, )(\w+)=')


net = models(20, 32, finish=nn.Module.eval, **SMALL)


def wrapper():
    return AutoregressiveWrapper(net())


def both(**options):
    sizes = dict(num_tokens=20, max_seq_len=32, depth=1, heads=2)
    return XTransformer(dim=16, **{f'{side}_{n}': v for side in ('enc', 'dec') for n, v in sizes.items()}, **options)


def image(**options):
    return ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(**SMALL), **options)


def continuous(**options):
    return ContinuousTransformerWrapper(dim_in=4, max_seq_len=32, attn_layers=Decoder(**SMALL), **options)


CASES = [
    (lambda: net()(IDS, attention_mask=REAL), 'TransformerWrapper got an unexpected input `attention_mask`: here it is '
     '`mask`; boolean, True for tokens and False for padding: `mask=attention_mask.bool()`'),
    (lambda: wrapper().generate(IDS, max_new_tokens=4), 'AutoregressiveWrapper.generate got an unexpected input '
     '`max_new_tokens`: here it is `seq_len`'),
    (lambda: Decoder(**SMALL, num_heads=4), 'unknown keyword `num_heads` of Decoder: here it is `heads`'),
    (lambda: Decoder(hidden_size=16, num_layers=2), '`hidden_size` of Decoder: here it is `dim`'),
    (lambda: net(num_heads=4), '`num_heads` of TransformerWrapper: here it is `heads` of the stack, `Decoder(heads='),
    (lambda: image(embed_dim=4), 'here it is `dim` of the stack, `Encoder(dim=4)`'),
    (lambda: TransformerWrapper(vocab_size=9), '`vocab_size` of TransformerWrapper: here it is `num_tokens`'),
    (lambda: Decoder(**SMALL, vocab_size=9), 'here it is `num_tokens` of TransformerWrapper'),
    (lambda: Attention(16, num_key_value_heads=2), 'here it is `kv_heads`;'),
    (lambda: Decoder(**SMALL, num_key_value_heads=2), 'here it is `attn_kv_heads`;'),
    (lambda: Attention(16, bias=False), ': leave it out, projections have no bias by default'),
    (lambda: FeedForward(16, bias=False), 'here it is `no_bias`, write `no_bias=True`'),
    (lambda: Decoder(**SMALL, bias=True), 'write `attn_qkv_bias=True, attn_out_bias=True`'),
    (lambda: FeedForward(16, hidden_dim=64), 'here it is `dim_inner`'),
    (lambda: Decoder(**SMALL, attn_implementation='eager'), 'here it is `attn_flash`, write `attn_flash=False`'),
    (lambda: Decoder(**SMALL, hidden_act='gelu_new'), "write `ff_activation='gelu_tanh'`"),
    (lambda: Decoder(**SMALL, norm_layer=nn.LayerNorm), ': leave it out, it is the default'),
    (lambda: Decoder(**SMALL, sliding_window=8), 'write `attn_max_attend_past=7`'),
    (lambda: Decoder(**SMALL, query_pre_attn_scalar=64), 'write `attn_softmax_scale=64 ** -0.5`'),
    (lambda: both(vocab_size=9), 'here it is `enc_num_tokens` and `dec_num_tokens`'),
    (lambda: both(encoder_attention_heads=2), 'here it is `enc_heads`'),
    (lambda: both(num_decoder_layers=2), 'here it is `dec_depth`'),
    (lambda: image(img_size=8), 'here it is `image_size`'),
    (lambda: presets.gpt2(n_layer=2), 'here it is `depth`'),
    (lambda: AutoregressiveWrapper(net(), pad_token_id=0), 'here it is `pad_value`'),
    (lambda: AutoregressiveWrapper(net(), temperature=0.7), 'keyword of `generate`, `generate(..., temperature=0.7)`'),
    (lambda: Classifier(net(return_only_embed=True), num_labels=2), 'here it is `num_classes`'),
    (lambda: finetune(net(return_only_embed=True), num_classes=2), 'finetune got an unexpected input `num_classes`: '
     'here it is `num_labels`'),
    (lambda: net()(input_ids=IDS), 'here it is `x`'),
    (lambda: net()(IDS, labels=IDS), '`AutoregressiveWrapper(net)(ids, labels=...)`'),
    (lambda: net()(IDS, temperature=0.5), '`AutoregressiveWrapper(net).generate(prompts, temperature=0.5)`'),
    (lambda: net()(IDS, src_key_padding_mask=REAL), 'write `mask=~src_key_padding_mask.bool()`'),
    (lambda: net()(IDS, token_type_ids=IDS), "`TransformerWrapper(..., embed_num_tokens={'token_type': 2})`"),
    (lambda: net()(IDS, output_attentions=False), ': leave it out, they are not returned by default'),
    (lambda: net().attn_layers(torch.zeros(1, 2, 16), key_padding_mask=REAL), 'Decoder got an unexpected input'),
    (lambda: Attention(16)(query=torch.zeros(1, 2, 16)), 'Attention got an unexpected input `query`: here it is `x`'),
    (lambda: both()(IDS, IDS, attention_mask=REAL), 'XTransformer got an unexpected input `attention_mask`: here it'),
    (lambda: both().generate(input_ids=IDS, seq_len=2), 'XTransformer.generate got an unexpected input `input_ids`: '
     'here it is `seq_in`'),
    (lambda: both().generate(IDS, IDS, 2, encoder_hidden_states=1), 'here it is called `context`, which is not taken'),
    (lambda: image()(pixel_values=torch.zeros(1, 3, 8, 8)), 'here it is `img`'),
    (lambda: wrapper().generate(IDS, 2, do_sample=False), 'here it is `temperature`, write `temperature=0.0`'),
    (lambda: wrapper().generate(IDS, 2, do_sample=True), ': leave it out, tokens are sampled unless `temperature=0.0`'),
    (lambda: wrapper().generate(IDS, 2, num_beams=4), '`beams` of `beam_search`, `beam_search(..., beams=4)`'),
    (lambda: wrapper().beam_search(IDS, 2, num_beams=4), 'here it is `beams`, write `beams=4`'),
    (lambda: next(wrapper().stream(IDS, 2, eos_token_id=4)), 'AutoregressiveWrapper.stream got an unexpected input '
     '`eos_token_id`: here it is `eos_token`;'),
    (lambda: wrapper().speculative(IDS, 2, num_assistant_tokens=3), 'here it is `num_draft_tokens`'),
    (lambda: wrapper().generate(IDS, 2, top_k=50), "write `filter_logits_fn='top_k', filter_kwargs={'k': 50}`"),
    (lambda: wrapper().generate(IDS, 2, max_length=50), '`seq_len`; it counts new tokens alone, not the prompt'),
    (lambda: wrapper().generate(IDS, 2, return_dict_in_generate=False), ': leave it out, tokens alone are returned'),
    (lambda: wrapper().generate(IDS, 2, temprature=1.0), 'generate got an unexpected input `temprature`, did you mean '
     '`temperature`?'),
    (lambda: PagedEngine(wrapper(), num_blocks=8).add([1, 2], max_tokens=4), 'here it is `seq_len`'),
    (lambda: pretrained.save(net(), save_directory='m'), 'an unexpected input `save_directory`: here it is `path`'),
    (lambda: net().save_pretrained('m', safe_serialization=True), ': leave it out, safetensors are written'),
    (lambda: net()(IDS, attenton_mask=REAL), ', did you mean `attention_mask`: here it is `mask`; boolean'),
    (lambda: Decoder(**SMALL, numHeads=2), ', did you mean `num_heads`: here it is `heads`'),
    (lambda: Decoder(**SMALL, hidden_act='mish'), "here it is `ff_activation`, which must be one of 'gelu'"),
    (lambda: Decoder(**SMALL, hidden_act=nn.SiLU()), "write `ff_activation='silu'`"),
    (lambda: net(norm_layer=partial(nn.LayerNorm, eps=1e-6)), ': leave it out, it is the default'),
    (lambda: Decoder(**SMALL, attention_type='sparse'), 'here it is `attn_flash`, which must be True or False or None'),
    (lambda: Decoder(**SMALL, window_size=(7, 0)), 'write `attn_max_attend_past=7`'),
    (lambda: Decoder(**SMALL, softcap=None), '`softcap` of Decoder: leave it out'),
    (lambda: net(position_embedding_type='alibi'), '`Decoder(alibi_pos_bias=True, disable_abs_pos_emb=True)`'),
    (lambda: net(num_labels=3), 'here it is `num_classes` of Classifier, `Classifier(net, num_classes=3)`'),
    (lambda: net(embedding_size=8), 'here it is `emb_dim`'),
    (lambda: image(global_pool='avg'), "here it is `pool`, write `pool='mean'`"),
    (lambda: image(class_token=False), ': leave it out, there is none by default'),
    (lambda: net()(IDS, memory_is_causal=False), ': leave it out, every query attends to the whole context'),
    (lambda: net()(IDS, features_only=True), 'here it is `return_embeddings`'),
    (lambda: net()(IDS, max_seqlen=9), ': leave it out, `document_ids` say where documents end'),
    (lambda: net()(pixel_values=torch.zeros(1, 3, 8, 8)), 'it is `img` of the call of ViTransformerWrapper'),
    (lambda: Attention(16)(hidden_states=torch.zeros(1, 2, 16)), 'here it is `x`'),
    (lambda: continuous()(inputs_embeds=torch.zeros(1, 2, 4)), 'here it is `x`'),
    (lambda: wrapper()(IDS, inputs_embeds=REAL), 'write `transform_token_embeds=lambda _: inputs_embeds`'),
    (lambda: both()(IDS, IDS, tgt_key_padding_mask=REAL), ': padding of the target is marked by `ignore_index`'),
    (lambda: both()(IDS, IDS, memory_key_padding_mask=REAL), ': leave it out, `mask` of the source hides its padding'),
    (lambda: both()(IDS, labels=IDS), 'here it is `tgt`'),
    (lambda: wrapper().generate(IDS, 2, seed=None), ': leave it out'),
    (lambda: wrapper().generate(IDS, 2, position_ids=IDS), ': leave it out, positions are counted from the first'),
    (lambda: wrapper().generate(IDS, 2, use_cache=False), 'here it is `cache_kv`'),
    (lambda: wrapper().generate(IDS, 2, bad_words_ids=[[1]]), '`banned_tokens=[one for (one,) in bad_words_ids]`'),
    (lambda: PagedEngine(wrapper(), num_blocks=8, max_num_seqs=4),
     'PagedEngine got an unexpected input `max_num_seqs`: '
     'here it is `max_batch`'),
    (lambda: RMSNorm(16, normalized_shape=16), 'RMSNorm got an unexpected input `normalized_shape`: here it is `dim`'),
    (lambda: param_groups(net(), wd=0.1), 'param_groups got an unexpected input `wd`: here it is `weight_decay`'),
    (lambda: schedules.warmup(None, 10, num_warmup_steps=2), 'here it is `warmup`'),
    (lambda: train_bpe(['a'], vocab_size=300), 'train_bpe got an unexpected input `vocab_size`: here it is'),
    (lambda: ByteTokenizer().encode('a', add_special_tokens=True), 'write `bos=True, eos=True`'),
    (lambda: TransformerWrapper.from_pretrained(pretrained_model_name_or_path='m'), 'here it is `source`'),
]  # fmt: skip


@pytest.mark.parametrize(('call', 'words'), CASES)
def test_words_of_other_libraries(call, words):
    with pytest.raises((ConfigError, TypeError)) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        (dict(torch_dtype=torch.bfloat16), 'here it is `dtype`'),
        (dict(low_cpu_mem_usage=True), ': has no effect here: leave it out'),
        (dict(attn_implementation='sdpa'), 'here it is `attn_flash`, write `attn_flash=True`'),
        (dict(vocab_size=30), 'here it is `num_tokens`'),
        (dict(max_new_tokens=3), 'here it is `seq_len` of `generate`'),
        (dict(dropuot=0.1), 'did you mean `dropout`'),
    ],
)
def test_words_of_from_pretrained(given, words, tmp_path):
    net().save_pretrained(tmp_path / 'm')
    with pytest.raises(ConfigError) as error:
        pretrained.load(tmp_path / 'm', **given)
    assert words in str(error.value)


def test_own_keywords_are_never_caught():
    """A word of the table that a callee takes itself is what it is there."""
    FeedForward(16, activation='relu', dropout=0.1)
    Attention(16, dropout=0.1, causal=True)
    MLMWrapper(net(Encoder), mask_token_id=3, pad_token_id=0)
    both()(IDS, IDS, src_mask=REAL.bool())
    assert wrapper().beam_search(IDS, 2, length_penalty=1.0).shape == (2, 2)


def test_the_table_is_read_for_errors_alone(monkeypatch):
    for name in ('foreign', 'foreign_words', 'foreign_flags'):
        monkeypatch.setitem(sys.modules, f'x_transformers.flags.{name}', None)  # its import raises
    model = wrapper()
    model(IDS).backward()
    model.generate(IDS, 2)
    assert len(list(model.stream(IDS, 2))) == 2


def test_what_is_advised_computes_what_was_meant():
    """Padding and masks of PyTorch, boolean or added to the scores, as its own attention has them."""
    torch.manual_seed(0)
    stack = Encoder(**SMALL).double().eval()
    x, padding = torch.randn(2, 9, 16, dtype=torch.double), torch.arange(9) > torch.tensor([[8], [5]])
    added = nn.Transformer.generate_square_subsequent_mask(9)
    theirs = {'src_key_padding_mask': padding, 'src_mask': added, 'tgt_mask': added < 0}
    for word, given in (*theirs.items(), ('key_padding_mask', torch.zeros(2, 9).masked_fill(padding, -torch.inf))):
        text = advice(word, get_keywords(stack, 'forward'), given, Encoder, 'forward', stack, KINDS)
        code = re.search(r'write `([^`]*)`', text)[1]
        out = stack(x, **eval(f'dict({code})', {word: given}))
        wanted = stack(x, mask=~padding) if 'padding' in word else stack(x, causal=True)
        assert torch.equal(out, wanted), word


def test_lengths_of_flash_attention_are_documents():
    torch.manual_seed(0)
    stack, x, ends = Decoder(**SMALL).double().eval(), torch.randn(1, 9, 16).double(), torch.tensor([0, 4, 9])
    text = advice('cu_seqlens', get_keywords(stack, 'forward'), ends, Decoder, 'forward', stack, KINDS)
    code = re.search(r'write `([^`]*)`', text)[1]
    out = stack(x, **eval(f'dict({code})', {'cu_seqlens': ends, 'torch': torch}))
    assert torch.allclose(out, torch.cat((stack(x[:, :4]), stack(x[:, 4:])), dim=1), atol=1e-12)


def test_embeddings_of_ones_own():
    model = net()
    vectors = model.token_emb(IDS.flip(1))
    assert 'write `transform_token_embeds=lambda _: inputs_embeds`' in answer_of(
        lambda: model(IDS, inputs_embeds=vectors)
    )
    assert torch.equal(model(IDS, transform_token_embeds=lambda _: vectors), model(IDS.flip(1)))


def answer_of(call):
    with pytest.raises((ConfigError, TypeError)) as error:
        call()
    return str(error.value)


def test_words_of_subclasses_are_theirs():
    class Mine(TransformerWrapper):
        def forward(self, x, attention_mask=None, **kwargs):
            return super().forward(x, mask=attention_mask, **kwargs)

    model = Mine(num_tokens=20, max_seq_len=32, attn_layers=Encoder(**SMALL)).eval()
    real = torch.arange(9) < torch.tensor([[9], [4]])
    theirs = TransformerWrapper(num_tokens=20, max_seq_len=32, attn_layers=Encoder(**SMALL)).eval()
    theirs.load_state_dict(model.state_dict())
    assert torch.equal(model(IDS, attention_mask=real), theirs(IDS, mask=real))
    assert 'here it is `x`' in answer_of(lambda: model(IDS, input_ids=IDS))


# laws

CLASSES = [
    cls for cls in KINDS.values() if cls.__module__.startswith('x_transformers.') and cls.__name__ != 'FlagRouting'
]


FUNCTIONS = (PagedEngine, schedules.warmup, param_groups, train_bpe, train_wordpiece, ByteTokenizer.encode)


def taken_somewhere(kind):
    """The keywords of all functions of a kind."""
    if kind == BUILD:
        finetuned = inspect.signature(finetune).parameters
        named = {name for function in FUNCTIONS for name in inspect.signature(function).parameters}
        return {name for cls in CLASSES for name in cls.accepted()} | {*finetuned} | named
    if kind in (LOAD, SAVE):
        return set(inspect.signature(pretrained.load if kind == LOAD else pretrained.save).parameters) | {'attn_flash'}
    named = {name for cls in CLASSES for method in METHODS for name in get_keywords(cls, method)}
    inputs = {name for cls in CLASSES for feature in cls.catalogue for name in feature.call_inputs}
    return named | inputs | {'pos', 'attn_bias', 'cache_kv', 'prompt_cache', 'prompt_lens', 'prompt'}


METHODS = ('forward', 'generate', 'stream', 'beam_search', 'speculative', 'infill', 'read_prompt')


def codes(row):
    for ours in (row.ours, *row.values.values()):
        for one in ours.split(' | '):
            text = re.sub(r'^(@\w+ |!)', '', one.strip())
            if not text.startswith(':'):
                yield KEYWORD.findall(format_call(text, 'word', 1))


@pytest.mark.parametrize('kind', [BUILD, CALL, GENERATE, LOAD, SAVE])
def test_every_keyword_of_the_table_exists(kind):
    """A keyword that is renamed takes its row along. Options that may come are listed beside a sentence."""
    known = taken_somewhere(kind) | {'min_new_tokens', 'no_repeat_ngram_size'}
    for row in WORDS:
        found = [keywords for keywords in codes(row)] if row.kind == kind else []
        for keywords in found:
            bare = [re.sub(r'^(cross_attn|attn|ff)_', '', keyword) for keyword in keywords]
            assert any(known.issuperset(one) for one in (keywords, bare)), (row.theirs, keywords)


def test_rows_are_of_one_kind_each():
    """Of the rows of a word, one per kind is read."""
    for row in WORDS:
        for word in row.theirs.split():
            assert word.isidentifier()
            first = next(one for one in rows_for(word, row.kind)[0] if one.kind == row.kind)
            assert first is row or word in TWICE, word


TWICE = {'input_channels', 'causal', 'tokens'}


def check_answer(text, names):
    """Whatever an answer names is a keyword of the class it names, or of the one that was built."""
    if found := HERE.match(text):
        assert set(re.findall(r'`(\w+)`', found[1])) <= set(names), text
    for cls, code in THERE.findall(text):
        if cls in KINDS and '...' not in code.split(',')[0]:
            assert set(KEYWORD.findall(code)) <= set(KINDS[cls].accepted()), text


@pytest.mark.parametrize('cls', [*BUILDERS, 'Decoder', 'Encoder', 'XLAutoregressiveWrapper', 'EncoderDecoder', 'DALLE'])
def test_what_constructors_are_answered(cls):
    """A fifth of the words, others for each class."""
    kind, words = KINDS[cls], sorted({word for row in WORDS if row.kind == BUILD for word in row.theirs.split()})
    names, start = kind.accepted(), sum(map(ord, cls)) % 25
    for word in words[start::25]:
        if word not in names:
            text = advice(word, names, 1, kind)
            assert text, word
            check_answer(text, names)


@pytest.mark.parametrize('cls', ['Decoder', 'ViTransformerWrapper', 'Classifier', 'TransformerWrapper', 'Attention'])
def test_values_that_are_advised_are_allowed(cls):
    """Whatever stands for a value in the table is a value that the keyword takes."""
    flags = KINDS[cls].accepted()
    for row in WORDS:
        for value, ours in [*row.values.items(), *[(value, row.ours) for value in (1, 0.5, True, 'gelu')]]:
            for one in ours.split(' | ') if row.kind == BUILD else ():
                text = find_callee_words(
                    row, one.strip(), 'word', value, '', Callee(KINDS[cls], '', flags, None, KINDS)
                )
                if (found := re.search(r'write `([^`]*)`', text)) and '...' not in text:
                    given = eval(f'dict({found[1]})')
                    if '{value}' not in one or '{{' not in one:
                        assert not [flags[name].refusal(v) for name, v in given.items() if flags[name].refusal(v)], text


@pytest.mark.slow
@pytest.mark.parametrize('cls', sorted(cls.__name__ for cls in CLASSES))
@pytest.mark.parametrize('value', [1, True, False, None, 'gelu', 'rope'], ids=repr)
def test_what_every_constructor_is_answered(cls, value):
    names = KINDS[cls].accepted()
    for word in sorted({word for row in WORDS for word in row.theirs.split()}):
        if word not in names:
            check_answer(advice(word, names, value, KINDS[cls]), names)


OF_TORCH = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Transformer, nn.MultiheadAttention)


@pytest.mark.parametrize('theirs', OF_TORCH)
def test_words_of_torch_are_answered(theirs):
    """No argument of a transformer of PyTorch is left without an answer."""
    model, layer = net(), Attention(16)
    callees = [(Decoder, model.attn_layers), (TransformerWrapper, model), (Attention, layer)]
    for cls, module in callees:
        for function, method in ((theirs.__init__, ''), (theirs.forward, 'forward')):
            names = get_keywords(module, method) if method else cls.accepted()
            for word in [*inspect.signature(function).parameters][1:]:
                if word not in names:
                    text = advice(word, names, 1, cls, method, module if method else None, KINDS)
                    assert text.startswith(': ') or word == 'qkv_bias', (cls, method, word, text)


@pytest.mark.slow
def test_words_of_transformers_are_answered():
    """All fields of a GenerationConfig, and all arguments of `forward` and `from_pretrained`."""
    transformers = pytest.importorskip('transformers')
    model = wrapper()
    fields = [name for name in vars(transformers.GenerationConfig()) if not name.startswith('_')]
    for method in ('generate', 'stream', 'beam_search', 'speculative'):
        names = get_keywords(model, method)
        for word in set(fields) - names - {'transformers_version'}:
            text = advice(word, names, 1, AutoregressiveWrapper, method, model, KINDS)
            assert text.startswith(': '), (method, word, text)
    names = get_keywords(model.net, 'forward')
    for kind in ('LlamaForCausalLM', 'BertForMaskedLM', 'T5ForConditionalGeneration', 'BertForQuestionAnswering'):
        inputs = list(inspect.signature(getattr(transformers, kind).forward).parameters)[1:]
        for word in set(inputs) - names - {'kwargs'}:
            text = advice(word, names, 1, TransformerWrapper, 'forward', model.net, KINDS)
            assert text.startswith(': '), (kind, word, text)
    names = {*inspect.signature(pretrained.load).parameters} - {'keywords'}
    inputs = inspect.signature(transformers.PreTrainedModel.from_pretrained).parameters
    for word in set(inputs) - names - {'model_args', 'kwargs'}:
        assert advice(word, names, 1, TransformerWrapper, 'load').startswith(': '), word


def refused_keywords(name, method):
    """The keywords that answers name for a method of a wrapper, and that it does not take then."""
    subject = SUBJECTS[name]
    model = subject.build()
    function = inspect.signature(getattr(type(model), method)).parameters
    names = get_keywords(model, method)
    must = [p for p in list(function.values())[1:] if p.default is p.empty]
    required = [p.name for p in must if p.kind is p.POSITIONAL_OR_KEYWORD]
    inputs = iter(copy.copy(subject.inputs).values())
    given = {one: 2 if one == 'seq_len' else next(inputs, IDS) for one in required}
    rows = [row for row in WORDS if any(names.issuperset(keywords) for keywords in codes(row))]
    words = sorted({row.theirs.split()[0] for row in rows} - names)
    answers = (HERE.match(advice(word, names, 1, type(model), method, model, KINDS)) for word in words)
    named = {one for found in answers if found for one in re.findall(r'`(\w+)`', found[1])}
    for keyword in sorted(named - set(given) - {'compile'}):  # which imports the compiler
        try:
            made = getattr(model, method)(**given, **{keyword: object()})
            next(made) if hasattr(made, '__next__') else None
        except Exception as error:  # any but one that says that it is not taken
            if re.search(rf'unexpected .*[`\']{keyword}|`{keyword}` cannot be given', str(error)):
                yield keyword, str(error)


QUICK = (('language', 'generate'), ('encoded', 'generate'))


@pytest.mark.parametrize(
    ('name', 'method'),
    [
        pytest.param(name, method, marks=() if (name, method) in QUICK else pytest.mark.slow)
        for name in ('language', *(one for one in SUBJECTS if one != 'language'))
        for method in METHODS
        if name == 'language' or method in ('forward', 'generate', 'infill')
    ],
)
def test_what_calls_are_answered_is_taken(name, method):
    if not hasattr(type(SUBJECTS[name].build()), method):
        pytest.skip(f'no method `{method}`')
    assert list(refused_keywords(name, method)) == []

"""What is written to a folder: whole or not at all, and what is written is read again, with the same outputs."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from x_transformers import Decoder, TransformerWrapper, XTransformer, pretrained
from x_transformers.core import files
from x_transformers.flags import ConfigError

pytest.importorskip('safetensors')

IDS = torch.randint(1, 30, (2, 9), generator=torch.Generator().manual_seed(0))
LLAMA = dict(
    rotary_pos_emb=True, rotary_emb_dim=8, use_rmsnorm=True, norm_eps=1e-6, norm_add_unit_offset=False, ff_glu=True,
    ff_swish=True, ff_no_bias=True, ff_glu_bias=False,
)  # fmt: skip


def net(seed=0, dim=16, depth=2, model=None, **flags):
    torch.manual_seed(seed)
    layers = Decoder(dim=dim, depth=depth, heads=2, attn_dim_head=8, **flags)
    return TransformerWrapper(num_tokens=30, max_seq_len=32, attn_layers=layers, **(model or {})).eval()


# whole or not at all


class Disk:
    """Calls that change a disk, each of which `before` is told."""

    CALLS = ('replace', 'rename', 'unlink', 'rmdir', 'mkdir', 'fsync')

    def __init__(self, patch, calls, before):
        import safetensors.torch

        self.count, self.before, self.told = 0, before, False
        for owner, names in ((os, calls), (safetensors.torch, ['save_file'])):
            for name in names:
                patch.setattr(owner, name, functools.partial(self.call, getattr(owner, name)))

    def call(self, function, *args, **kwargs):
        if not self.told:
            self.count, self.told = self.count + 1, True
            try:
                self.before(self.count)
            finally:
                self.told = False
        return function(*args, **kwargs)


def which(folder, models):
    """Which of the models a folder holds."""
    state = pretrained.load(folder).state_dict()
    (found,) = (n for n, model in models.items() if same_weights(state, model.state_dict()))
    return found


def same_weights(state, other):
    return state.keys() == other.keys() and all(torch.equal(t, other[name]) for name, t in state.items())


def saves(model, folder, how):
    kind = dict(hf_type='llama') if 'hf' in how else {}
    most = '20KB' if 'shards' in how else '5GB'
    pretrained.save(model, folder, format=how.split()[0], max_shard_size=most, **kind)


SLOW = pytest.mark.slow


@pytest.mark.costly
@pytest.mark.parametrize(
    ('first', 'then'),
    [('own', 'own shards'), pytest.param('hf shards', 'hf', marks=SLOW), pytest.param('hf shards', 'own', marks=SLOW)],
)
def test_killed_at_any_point_the_old_or_the_new_model_is_there(tmp_path, monkeypatch, first, then):
    """Copies of the folder before each call that changes it: each is a model, and may be written over."""
    models, steps = {'old': net(0, **LLAMA, model=dict(use_abs_pos_emb=False))}, []
    models['new'] = net(1, depth=3, **LLAMA, model=dict(use_abs_pos_emb=False))
    models['next'] = net(2, depth=1)
    saves(models['old'], tmp_path / 'm', first)
    (tmp_path / 'm' / 'notes.txt').write_text('mine')
    with monkeypatch.context() as patch:
        Disk(patch, Disk.CALLS[:4], lambda count: steps.append(shutil.copytree(tmp_path / 'm', tmp_path / str(count))))
        saves(models['new'], tmp_path / 'm', then)
    found = [which(step, models) for step in steps]
    assert len(steps) > 8 and sorted(found, key=['old', 'new'].index) == found and {*found} == {'old', 'new'}
    assert which(tmp_path / 'm', models) == 'new' and (tmp_path / 'm' / 'notes.txt').read_text() == 'mine'
    assert not [file for file in (tmp_path / 'm').iterdir() if file.name.startswith('.')]
    for step in steps[::4]:
        monkeypatch.setattr(files, 'is_running', lambda process: False)
        saves(models['next'], step, 'own')
        assert which(step, models) == 'next'
        assert sorted(file.name for file in step.iterdir()) == ['config.json', 'model.safetensors', 'notes.txt']


@SLOW
def test_an_error_at_any_point_names_the_folder_and_leaves_a_model(tmp_path, monkeypatch):
    models = {'old': net(0), 'new': net(1, depth=3)}
    saves(models['old'], tmp_path / 'm', 'own')

    def fails(at, count):
        if count == at:
            raise OSError(28, 'No space left on device')

    for at in range(1, 40):
        folder = shutil.copytree(tmp_path / 'm', tmp_path / str(at))
        with monkeypatch.context() as patch:
            disk = Disk(patch, Disk.CALLS, functools.partial(fails, at))
            try:
                saves(models['new'], folder, 'own shards')
            except OSError as error:
                assert str(folder) in str(error) and error.errno == 28
        found = which(folder, models)
        kept = (folder / 'config.json').read_bytes() == (tmp_path / 'm' / 'config.json').read_bytes()
        assert found == ('old' if kept and not (folder / files.NEW).exists() else 'new')
        assert not list(folder.glob('**/*.tmp'))
        if disk.count < at:
            break
    assert 8 < at < 39 and found == 'new'


@pytest.mark.skipif(os.name != 'posix', reason='limits of files are those of POSIX')
def test_a_file_that_is_too_large_leaves_the_old_model(tmp_path):
    import resource

    small, large = net(0), net(1, dim=96)
    small.save_pretrained(tmp_path / 'm')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**17, before[1]))
    try:
        for folder in (tmp_path / 'm', tmp_path / 'other'):
            with pytest.raises(OSError, match=f'`{folder}` cannot be written'):
                large.save_pretrained(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert which(tmp_path / 'm', {'small': small}) == 'small' and not (tmp_path / 'other').exists()
    assert sorted(file.name for file in (tmp_path / 'm').iterdir()) == ['config.json', 'model.safetensors']


def test_files_have_the_usual_permissions(tmp_path):
    net().save_pretrained(tmp_path / 'm')
    (tmp_path / 'any').touch()
    assert {file.stat().st_mode for file in (tmp_path / 'm').iterdir()} == {(tmp_path / 'any').stat().st_mode}


def test_several_processes_may_write_one_set(tmp_path, monkeypatch):
    """Another set becomes whole just before: it moves to its places first."""
    models = {'one': net(0), 'other': net(1)}
    saves(models['other'], tmp_path / 'm', 'own')
    rename, late = os.rename, []

    def keep(source, target):
        shutil.copytree(source, tmp_path / 'whole')
        rename(source, target)

    def later(source, target):
        late or late.append(shutil.copytree(tmp_path / 'whole', target))
        rename(source, target)

    for model, how in (('other', keep), ('one', later)):
        with monkeypatch.context() as patch:
            patch.setattr(os, 'rename', how)
            saves(models[model], tmp_path / 'm', 'own')
    assert which(tmp_path / 'm', models) == 'one'


def test_what_a_running_process_is_writing_is_left_alone(tmp_path):
    unfinished = tmp_path / f'{files.NEW}.{os.getpid()}-99999999.tmp'
    unfinished.mkdir()
    net(depth=1).save_pretrained(tmp_path)
    assert unfinished.is_dir() and same_weights(pretrained.load(tmp_path).state_dict(), net(depth=1).state_dict())


def test_a_single_file_names_its_path(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    path.write_text('old')
    with pytest.raises(OSError, match=str(path)):
        with files.replace_file(path) as file:
            file.write(b'new')
            raise OSError(28, 'No space left on device')
    assert path.read_text() == 'old' and [*tmp_path.iterdir()] == [path]


# what is written is read


def tie_head(model):
    model.to_logits.weight = model.token_emb.emb.weight


def share_branch(model):
    model.attn_layers.layers[2][1] = model.attn_layers.layers[0][1]


def share_layer(model):
    model.attn_layers.layers[3] = model.attn_layers.layers[1]


def share_keys(model):
    attn = model.attn_layers.layers[0][1]
    attn.to_k.weight = attn.to_q.weight


def share_norms(model):
    norms = [layer[0][0] for layer in model.attn_layers.layers]
    for norm in norms:
        norm.g = norms[0].g


def share_memory(model):
    """Two parameters, one storage."""
    attn = model.attn_layers.layers[0][1]
    both = torch.randn(2, *attn.to_q.weight.shape)
    attn.to_q.weight, attn.to_k.weight = nn.Parameter(both[0]), nn.Parameter(both[1])
    attn.to_v.weight = nn.Parameter(both[0])
    whole, further = torch.randn_like(both[0]), model.attn_layers.layers[2][1]
    further.to_q.weight, further.to_k.weight = nn.Parameter(whole), nn.Parameter(whole)


def transpose(model):
    for p in model.parameters():
        if p.ndim == 2:
            p.data = p.data.t().contiguous().t()


def expand(model):
    head = model.to_logits
    head.weight = nn.Parameter(head.weight.detach()[:1].expand(30, -1))


def halve(model):
    model.bfloat16()


def freeze(model):
    model.requires_grad_(False)
    model.attn_layers.layers[0][1].register_forward_hook(lambda *_: None)


TAKEN = {
    'head': (tie_head, {}), 'branch': (share_branch, {}), 'layer': (share_layer, {}), 'keys': (share_keys, {}),
    'norms': (share_norms, dict(use_rmsnorm=True)), 'memory': (share_memory, {}),
    'transposed': (transpose, {}), 'expanded': (expand, {}), 'half': (halve, {}), 'frozen': (freeze, {}),
}  # fmt: skip


@pytest.mark.parametrize('name', TAKEN)
def test_what_was_tied_or_laid_out_by_hand_is_read_again(tmp_path, name):
    change, flags = TAKEN[name]
    model = net(**flags)
    change(model)
    drawn = torch.get_rng_state()
    model.save_pretrained(tmp_path)
    assert torch.equal(torch.get_rng_state(), drawn)
    again = TransformerWrapper.from_pretrained(tmp_path)
    assert torch.equal(again(IDS), model(IDS))
    assert len([*again.parameters()]) == len([*model.parameters()])  # and learns as one
    if name == 'head':
        again.save_pretrained(tmp_path)
        assert torch.equal(TransformerWrapper.from_pretrained(tmp_path)(IDS), model(IDS))


def two_stacks(**flags):
    torch.manual_seed(0)
    side = dict(num_tokens=30, depth=1, heads=2, attn_dim_head=8, max_seq_len=16)
    sides = {f'{of}_{name}': value for of in ('enc', 'dec') for name, value in side.items()}
    return XTransformer(dim=16, **sides, **flags).eval()


def test_tables_of_two_stacks_that_were_tied_by_hand(tmp_path):
    model = two_stacks()
    model.decoder.net.token_emb = model.encoder.token_emb
    model.save_pretrained(tmp_path)
    again = XTransformer.from_pretrained(tmp_path)
    assert torch.equal(again(IDS, IDS), model(IDS, IDS))
    assert again.decoder.net.token_emb.emb.weight is again.encoder.token_emb.emb.weight


def test_tables_that_a_config_ties(tmp_path):
    """As a checkpoint with both names leaves them, two equal tensors, they may be written; others not."""
    model = two_stacks(tie_token_emb=True)
    model.decoder.net.token_emb = copy.deepcopy(model.encoder.token_emb)
    model.save_pretrained(tmp_path)
    assert torch.equal(XTransformer.from_pretrained(tmp_path)(IDS, IDS), model(IDS, IDS))
    nn.init.normal_(model.decoder.net.token_emb.emb.weight)
    with pytest.raises(ConfigError, match='of the model differ, in one of its config they are one tensor'):
        model.save_pretrained(tmp_path)


@pytest.mark.parametrize('change', [tie_head, share_branch, share_keys])
def test_so_is_it_in_the_format_of_transformers(tmp_path, change):
    model = net(**LLAMA, model=dict(use_abs_pos_emb=False))
    change(model)
    pretrained.save(model, tmp_path, format='hf', hf_type='llama')
    assert torch.equal(pretrained.load(tmp_path)(IDS), model(IDS))


def test_frequencies_that_were_changed_by_hand(tmp_path):
    model = net(**LLAMA, model=dict(use_abs_pos_emb=False))
    model.attn_layers.rotary_pos_emb.inv_freq *= 1.005
    with pytest.raises(ConfigError, match=r'`attn_layers.rotary_pos_emb.inv_freq` of the model must be that of'):
        pretrained.save(model, tmp_path, format='hf', hf_type='llama')
    model.save_pretrained(tmp_path)
    assert torch.equal(TransformerWrapper.from_pretrained(tmp_path)(IDS), model(IDS))


def test_ties_that_are_none(tmp_path):
    model = net()
    tie_head(model)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['tied'] == {'to_logits.weight': 'token_emb.emb.weight'}
    for wrong in ('head', {'to_logits.weight': 'nowhere'}):
        (tmp_path / 'config.json').write_text(json.dumps({**config, 'tied': wrong}))
        with pytest.raises(ConfigError, match='`tied` of this x_transformers checkpoint must be'):
            pretrained.load(tmp_path)


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.down = base, nn.Linear(16, 2)

    def forward(self, x, *args, **kwargs):
        return self.base(x, *args, **kwargs)


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def linear(model):
    return model.attn_layers.layers[0][1].to_q


def put(path, module):
    """Replace a module by another, or by what a function makes of it."""

    def change(model):
        owner, _, name = path.rpartition('.')
        old = model.get_submodule(path)
        setattr(model.get_submodule(owner), name, module(old) if not isinstance(module, nn.Module) else module)

    return change


def append(model):
    model.attn_layers.layers[1][1].ff.append(nn.Tanh())


def add_norm(model):
    model.post_emb_norm = nn.Tanh()


def sparse(model):
    model.to_logits.weight = nn.Parameter(model.to_logits.weight.detach().to_sparse())


def subclassed(model):
    class Marked(torch.Tensor):
        pass

    model.to_logits.weight = nn.Parameter(model.to_logits.weight.detach().as_subclass(Marked))


def coarser(model):
    model.attn_layers.layers[1][1].ff[0][1] = nn.GELU(approximate='tanh')


def other_table(model):
    model.token_emb.emb = nn.Embedding(40, 16)


Q = 'attn_layers.layers.0.1.to_q'
REFUSED = {
    'adapter': (put('attn_layers.layers.0.1', Adapter), '`attn_layers.layers.0.1` of the model is a Adapter'),
    'adapter of a map': (put(Q, Adapter), f'`{Q}` of the model is a Adapter'),
    'subclass': (put(Q, Louder(16, 16, bias=False)), f'`{Q}` of the model is a Louder, .* a Linear'),
    'without parameters': (put('emb_dropout', Doubled()), '`emb_dropout` of the model is a Doubled'),
    'activation': (put('attn_layers.layers.1.1.ff.0.1', nn.ReLU()), 'is a ReLU, .* a GELU'),
    'settings': (coarser, r'`attn_layers.layers.1.1.ff.0.1` of the model'),
    'head': (put('to_logits', nn.Identity()), '`to_logits` of the model is a Identity'),
    'appended': (append, 'is a Tanh, in a model of its config it is nothing'),
    'slot': (add_norm, '`post_emb_norm` of the model is a Tanh'),
    'pruned': (lambda m: prune.l1_unstructured(linear(m), 'weight', 0.5), 'weight'),
    'weight norm': (lambda m: parametrizations.weight_norm(linear(m)), 'Parametrized'),
    'spectral norm': (lambda m: parametrizations.spectral_norm(linear(m)), 'Parametrized'),
    'parametrised': (lambda m: parametrize.register_parametrization(linear(m), 'weight', Doubled()), 'Parametrized'),
    'more': (lambda m: m.register_parameter('more', nn.Parameter(torch.ones(2))), '`more` of the model has shape'),
    'buffer': (lambda m: m.register_buffer('seen', torch.ones(2)), '`seen` of the model has shape'),
    'table': (other_table, r'`token_emb.emb.weight` of the model has shape \(40, 16\)'),
    'meta': (lambda m: m.to_empty(device='meta'), 'got a tensor on the meta device'),
    'sparse': (sparse, '`to_logits.weight` of the model must be dense to be saved, got torch.sparse_coo'),
    'kind': (subclassed, '`to_logits.weight` of the model must be a plain tensor to be saved, got a Marked'),
}  # fmt: skip


@pytest.mark.parametrize('name', REFUSED)
def test_what_cannot_be_read_again_is_refused_when_it_is_saved(tmp_path, name):
    change, words = REFUSED[name]
    model = net(model=dict(post_emb_norm=False))
    change(model)
    with pytest.raises(ConfigError, match=words):
        model.save_pretrained(tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.filterwarnings('ignore')
@SLOW
def test_quantised_and_compiled_models(tmp_path):
    model = net()
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, torch.qint8)
    with pytest.raises(ConfigError, match=r'of the model (is|must)'):
        quantised.save_pretrained(tmp_path / 'm')
    out = model(IDS)
    model.attn_layers.compile()
    torch.compile(model).save_pretrained(tmp_path / 'm')
    assert torch.equal(TransformerWrapper.from_pretrained(tmp_path / 'm')(IDS), out)
    model.attn_layers = torch.compile(copy.deepcopy(model.attn_layers))
    with pytest.raises((ConfigError, ValueError), match='attn_layers'):
        model.save_pretrained(tmp_path / 'm')


def test_what_computes_nothing_may_be_beside(tmp_path):
    model = net()
    model.metric = nn.CrossEntropyLoss()
    model.save_pretrained(tmp_path)
    assert torch.equal(TransformerWrapper.from_pretrained(tmp_path)(IDS), model(IDS))


def test_several_dtypes_are_written_and_read_in_the_widest(tmp_path):
    model = net(**LLAMA, model=dict(use_abs_pos_emb=False))
    model.to_logits.half()
    pretrained.save(model, tmp_path / 'hf', format='hf', hf_type='llama')
    again = pretrained.load(tmp_path / 'hf')
    assert {p.dtype for p in again.parameters()} == {torch.float32}
    assert torch.equal(again.to_logits.weight, model.to_logits.weight.float())
    model.save_pretrained(tmp_path)
    assert TransformerWrapper.from_pretrained(tmp_path).to_logits.weight.dtype == torch.float16


def test_a_config_is_loaded_by_torch_as_by_default(tmp_path):
    """In a file of the user's own: as a dict, without code that is trusted."""
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2))
    torch.save({'config': net.config, 'weights': net.state_dict()}, tmp_path / 'mine.pt')
    found = torch.load(tmp_path / 'mine.pt', weights_only=True)
    again = TransformerWrapper.from_config(found['config'])
    again.load_state_dict(found['weights'])
    assert again.config == net.config
    for copied in (copy.copy(net.config), copy.deepcopy(net.config)):
        assert copied == net.config and copied.attn_layers == net.config.attn_layers

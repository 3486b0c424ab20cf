"""Tensors that a file may have twice, and fields of configs, read by the rules of the other library."""

from __future__ import annotations

import json

import pytest
import torch
from pretrained_cases import CASES, HEAD_CASES, SEQ2SEQ_CASES, check_same_tensors, checkpoint

from x_transformers import pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.comparing import compared
from x_transformers.pretrained.heads import row_for

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()
safetensors = pytest.importorskip('safetensors.torch')

pytestmark = pytest.mark.filterwarnings('ignore')  # those of the other library
slow = pytest.mark.slow
TWICE = [
    case
    for case in (*CASES, *SEQ2SEQ_CASES, *HEAD_CASES)
    if case.number == 0 or (case in HEAD_CASES and case.kind in ('T5EncoderModel', 'BertModel'))
]


def options_of(theirs):
    experts = {'experts_implementation': 'eager'} if 'experts' in str(theirs.config) else {}
    return {'attn_implementation': theirs.config._attn_implementation, **experts}


def folder_of(path, case, tensors, **fields):
    """A folder with these tensors, and the config of a case with other fields."""
    config = json.loads((checkpoint(case)[1] / 'config.json').read_text())
    path.mkdir()
    (path / 'config.json').write_text(json.dumps({**config, **fields}))
    safetensors.save_file(
        {name: t.clone() for name, t in tensors.items()}, path / 'model.safetensors', {'format': 'pt'}
    )
    return path


def check_alike(folder, theirs) -> None:
    """Equal outputs, and the same file again."""
    again, said = type(theirs).from_pretrained(folder, output_loading_info=True, **options_of(theirs))
    ours = pretrained.load(folder)
    worst, size = compared(ours, again.eval())
    assert worst < 1e-4 * max(size, 1.0) or said['missing_keys']  # which theirs draws anew
    pretrained.save(ours, folder.parent / f'{folder.name} again')
    back = type(theirs).from_pretrained(folder.parent / f'{folder.name} again', **options_of(theirs))
    assert compared(ours, back.eval())[0] < 1e-4 * max(size, 1.0) or said['missing_keys']


def check_kept(folder, again) -> None:
    """That every tensor is written again. Where only one side has a table of its own, that of the other is too."""
    before, after = (safetensors.load_file(path / 'model.safetensors') for path in (folder, again))
    more = sorted(after.keys() - before.keys())
    assert all(torch.equal(after[name], t) for name, t in before.items())
    assert not more or (
        len(more) < 3 and all(name.endswith(('embed_tokens.weight', 'lm_head.weight')) for name in more)
    )


@slow
@pytest.mark.parametrize('case', TWICE, ids=lambda case: f'{case.type}-{case.kind}')
def test_tensors_that_may_be_copies(case, tmp_path):
    """Of equal values they change nothing. Of other values they count, or are refused by name."""
    theirs, folder = checkpoint(case)
    tensors = safetensors.load_file(folder / 'model.safetensors')
    row = row_for(json.loads((folder / 'config.json').read_text()))
    head = {} if row.tied is None else {row.tied[0]: row.tied[1]}
    sources = {copy: source for copy, source in {**row.copies, **head}.items() if source in tensors}
    for n, (copy, source) in enumerate(sources.items()):
        if copy in tensors:  # an own head
            continue
        equal = folder_of(tmp_path / f'equal {n}', case, {**tensors, copy: tensors[source]})
        assert pretrained.load(equal, return_info=True)[1].ignored == [copy]
        check_alike(equal, theirs)
        if copy not in head:
            check_same_tensors(equal, tmp_path / f'equal {n} again')
        other = tensors[source] + 0.3 * torch.randn(tensors[source].shape)
        for tie in (True, False):
            folder = folder_of(tmp_path / f'other {n} {tie}', case, {**tensors, copy: other}, tie_word_embeddings=tie)
            try:
                pretrained.load(folder)
            except ConfigError as error:
                assert f'`{copy}`' in str(error) or f'`{row.tied[0]}`' in str(error), error
                continue
            check_alike(folder, theirs)
            check_kept(folder, tmp_path / f'other {n} {tie} again')
    untied = {copy: tensors.get(copy, tensors[source] + 0.3 * torch.randn(tensors[source].shape))
              for copy, source in sources.items()}  # fmt: skip
    folder = folder_of(tmp_path / 'untied', case, {**tensors, **untied}, tie_word_embeddings=False)
    check_alike(folder, theirs)
    check_same_tensors(folder, tmp_path / 'untied again')
    for source in set(sources.values()):  # the other name alone
        copies = [copy for copy in sources if sources[copy] == source and copy not in tensors]
        if not copies:
            continue
        rest = {name: t for name, t in tensors.items() if name != source}
        named = folder_of(tmp_path / f'named {source}', case, {**rest, **dict.fromkeys(copies, tensors[source])})
        check_alike(named, theirs)

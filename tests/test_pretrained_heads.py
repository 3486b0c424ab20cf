"""Padding, heads, classifiers and models without a head, as they lie on disk: equal numbers, and the way back."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from pretrained_cases import BARS, CASES, checkpoint, ids_of, lifted

from x_transformers import pretrained

if os.environ.get('CI'):
    import transformers
else:
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
BASES = [case for case in CASES if case.number == 0]


@pytest.mark.parametrize('case', BASES, ids=str)
def test_padding(case):
    """Rows of unequal lengths, and in encoders padding inside of them, but in RoBERTa, where it moves positions."""
    theirs, folder = checkpoint(case)
    ours, ids = pretrained.load(folder).double(), ids_of(case)
    real = torch.arange(ids.shape[1]) < torch.tensor([ids.shape[1], 13])[:, None]
    if case.kind == 'MaskedLM' and case.type != 'roberta':
        real[:, 5:7] = False
    ids = ids.masked_fill(~real, theirs.config.pad_token_id or 0)
    with torch.no_grad(), lifted():
        wanted = copy.deepcopy(theirs).double()(ids, attention_mask=real.long()).logits[real]
    with torch.no_grad():
        found = ours(ids, mask=real)[real]
    assert (found - wanted).abs().max() < BARS.get(case.type, 1e-10)

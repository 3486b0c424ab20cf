"""Files of caches that earlier releases wrote: what they held, brought into the form of today."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from x_transformers.core.buffers import Buffer
from x_transformers.core.files import all_are, check_fields, is_count
from x_transformers.core.state import Note, Sum, is_rows

OF_2: dict[str, Callable[[Any], bool]] = {
    'seen': is_count,
    'leading': is_count,
    'kinds': lambda value: isinstance(value, list),
    'layers': lambda value: isinstance(value, list),
    'remembered': all_are(all_are(is_rows)),
    'states': all_are(is_rows),
    'recurrent': lambda value: isinstance(value, list),
    'exits': lambda value: value is None or isinstance(value, Tensor),
    'made_by': lambda value: value is None or isinstance(value, list),
}


def of_format_2(content: Any) -> dict[str, Any]:
    """Recurrent modules and looped models had fields of their own; states of model and stack stood together."""
    content = dict(check_fields(content, OF_2, 'cache'))
    recurrent, exits, states = content.pop('recurrent'), content.pop('exits'), content['states']
    if len(content['remembered']) != len(content['layers']) or len(recurrent) not in (0, len(content['layers'])):
        raise ValueError('`remembered` and `recurrent` of the cache must have one entry for each of `layers`')
    remembered = [{name: Buffer(t).content() for name, t in own.items()} for own in content['remembered']]
    for own, hidden, pair in zip(remembered, recurrent, content['layers'], strict=False):
        if hidden is not None:
            length = pair[0].shape[-2] if pair else content['seen']
            own['hybrid_hidden'] = Sum(hidden, length, batch_first=False).content()
    of_model = {} if exits is None else {'exits': Note(exits).content()}
    if 'real' in states:
        of_model['real'] = Buffer(states['real']).content()
    # of looped models the last pass stood there once more; turned keys were written as they were before
    of_passes = any(name.startswith('pass ') for name in states)
    lasting = {
        name: Buffer(t).content()
        for name, t in states.items()
        if name != 'real' and not re.search(r'(^|: )(positions|angles)$', name)
        if not of_passes or name.startswith('pass ')
    }
    return of_format_3({**content, 'remembered': remembered, 'states': lasting, 'model_states': of_model})


def of_format_3(content: Any) -> dict[str, Any]:
    """All layers held all tokens."""
    layers = content.get('layers') if isinstance(content, dict) else None
    return {**content, 'tails': [None] * len(layers)} if isinstance(layers, list) else content

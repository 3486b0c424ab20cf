"""Load and save pretrained models in the format of `transformers`, as models of this library.

    from x_transformers import pretrained

    model = pretrained.load('path/to/llama')                  # same logits as in transformers
    pretrained.save(model, 'path/to/new', format='hf')        # and back
    classifier = pretrained.load('path/to/bert', num_classes=5)    # with a new head to train

`specs.py` defines the entries of the table of model types, `fields.py` converts fields of a config to keywords and
back, and `mappings.py` maps and transforms weights. The table itself is `llama.py`, `classic.py`, `encoders.py`,
`seq2seq.py` and `images.py`. `engine.py` applies it in both directions, and `files.py` reads and writes folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from x_transformers.pretrained import classic, encoders, images, llama, seq2seq  # noqa: F401  (they fill the table)
from x_transformers.pretrained.checkpoints import extract_text_config, is_composite
from x_transformers.pretrained.engine import make_plan as plan_of
from x_transformers.pretrained.heads import find_spec
from x_transformers.pretrained.loading import Info, load
from x_transformers.pretrained.mappings import link, links
from x_transformers.pretrained.saving import save
from x_transformers.pretrained.specs import (
    OWN,
    Const,
    Fields,
    ModelSpec,
    drop_unknown,
    read_own_call,
    register,
    supported,
)

Row = ModelSpec  # the public name of older releases


def keywords(config: Mapping[str, Any], unknown: Any = 'error') -> dict[str, Any]:
    """Return the keywords that build the model of a config, in the form of `model.config`, without building it.

    Args:
        config: Content of a config.json.
        unknown: As in `load`.

    Raises:
        ConfigError: The config has a field, or a value, that is not supported.
    """
    if config.get('model_type') == OWN:
        return read_own_call(config)
    config = extract_text_config(config) if is_composite(config) else config
    spec = find_spec(config)
    return Fields(spec, drop_unknown(spec, config, unknown)[0]).keywords()


def plan(config: Mapping[str, Any]) -> list[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """Return the mapping of weight names, with the transform of each weight, without loading weights."""
    return [(step.theirs, step.ours, step.change.name) for step in plan_of(config, find_spec(config))]


def __getattr__(name: str) -> Any:
    if name == 'HubMixin':  # It needs a package that may be absent.
        from x_transformers.pretrained.hub import HubMixin

        return HubMixin
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


__all__ = [
    'Const', 'Fields', 'Info', 'ModelSpec', 'Row', 'keywords', 'link', 'links', 'load', 'plan', 'register', 'save',
    'supported',
]  # fmt: skip

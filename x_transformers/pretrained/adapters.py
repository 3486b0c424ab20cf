"""Adapters of PEFT: LoRA products are added to the weights of the base, as `merge_and_unload` does."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.files import StampedFile
from x_transformers.core.modes import at_least_float
from x_transformers.flags import ConfigError, format_value
from x_transformers.pretrained.engine import canonical_name
from x_transformers.pretrained.files import Weights
from x_transformers.pretrained.folders import ADAPTER, ModelLocation, locate, read_json, resolve
from x_transformers.pretrained.foreign import NoModelError
from x_transformers.pretrained.specs import ModelSpec

PRODUCT = re.compile(
    r'(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)'
    r'(?:\.default)?(?:\.weight)?'
)
WHOLE = re.compile(r'\.(?:modules_to_save(?:\.default)?|base_layer)(?=\.)')
FILES = ('adapter_model.safetensors', 'adapter_model.bin')
MERGE = '`AutoPeftModel.from_pretrained(folder).merge_and_unload().save_pretrained(new)` of PEFT writes a merged model'
# Settings that only with these values add a product of two matrices.
ADDITIVE: dict[str, tuple[Any, ...]] = {
    'init_lora_weights': (True, False, None, 'gaussian', 'eva', 'orthogonal'),
    'layer_replication': (None, []), 'target_parameters': (None, []), 'trainable_token_indices': (None, [], {}),
    'lora_bias': (False, None), 'alora_invocation_tokens': (None, []), 'use_qalora': (False, None),
    'use_bdlora': (None,), 'arrow_config': (None,), 'velora_config': (None,), 'monteclora_config': (None,),
}  # fmt: skip
TASKS = {'SEQ_CLS': 'classify', 'TOKEN_CLS': 'tokens', 'QUESTION_ANS': 'span', 'FEATURE_EXTRACTION': 'embed'}
CLASSES = {
    'ForSequenceClassification': 'classify', 'ForTokenClassification': 'tokens', 'ForQuestionAnswering': 'span',
    'ForImageClassification': 'classify',
}  # fmt: skip
CONV1D = ('gpt2', 'openai_gpt', 'imagegpt')  # Their weights are (in, out), except that of the head.


@dataclass
class Adapter:
    """Adapter of PEFT: its folder, its adapter_config.json, and its tensors by the names of the base model.

    Attributes:
        products: Modules -> the matrices that are multiplied, by their names in PEFT.
        whole: Tensors that replace those of the base.
    """

    folder: Path
    config: dict[str, Any]
    products: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    whole: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_location(cls, location: ModelLocation, allow_pickle: bool) -> Adapter:
        """Load an adapter.  Raises NoModelError for kinds other than LoRA."""
        at = StampedFile(location.folder)
        config = read_json(at / ADAPTER)
        if 'peft_type' not in config:
            raise NoModelError(f'`{at / ADAPTER}` has no `peft_type`: it is not that of an adapter of PEFT')
        kind = str(config['peft_type']).upper()
        if kind != 'LORA':
            raise NoModelError(f'`peft_type` of the adapter `{location.folder}` must be LORA, got {kind}: {MERGE}')
        for name, allowed in ADDITIVE.items():
            if name in config and config[name] not in allowed:
                must = f'must be {" or ".join(map(str, allowed))}, got {format_value(config[name])}'
                raise NoModelError(f'`{name}` of the adapter `{location.folder}` {must}: {MERGE}')
        file = location.file or next((name for name in FILES if (at / name).is_file()), None)
        if file is None:
            raise NoModelError(
                f'`{location.folder}` has an {ADAPTER} but no {FILES[0]}: `save_pretrained` of PEFT writes it'
            )
        made = cls(location.folder, config)
        with Weights(location.folder, allow_pickle, file) as weights:
            for name in weights.files:
                made.add(name, weights.load(name))
        return made

    def add(self, name: str, t: Tensor) -> None:
        """Store one tensor of the file."""
        found = PRODUCT.fullmatch(name.removeprefix('base_model.model.'))
        if found is not None:
            self.products.setdefault(found['module'], {})[found['kind'].replace('embedding_', '')] = t
            if 'embedding' in found['kind']:
                self.products[found['module']]['is_embedding'] = torch.ones(())
        elif '.original_module.' in name:  # It is a copy of the base.
            return
        elif '.lora_' in name:
            raise NoModelError(f'`{name}` of the adapter is not read: {MERGE}')
        else:
            self.whole[WHOLE.sub('', name.removeprefix('base_model.model.'))] = t

    def find_base(self, base: Any, hub: Mapping[str, Any]) -> ModelLocation:
        """Return the location of the given base, or of the one that the adapter names."""
        said = self.config.get('base_model_name_or_path')
        name = base if base is not None else said
        start = f'`{self.folder}` is an adapter of PEFT, and the library needs its base'
        if not name:
            raise NoModelError(f'{start}, which its {ADAPTER} does not name: give `base=`, the folder of that model')
        inside = self.folder / str(name)
        try:
            path = inside if base is None and not Path(name).exists() and inside.is_dir() else resolve(name, **hub)
            found = locate(path)
        except (NoModelError, ImportError) as error:
            raise NoModelError(f'{start}, {name!r}: {error}. `base=` gives the folder of the base') from error
        if found.is_adapter:
            raise NoModelError(f'{start}, but {str(name)!r} is an adapter too: {MERGE}')
        return found

    def get_head(self) -> tuple[str, int | None]:
        """Return the head that the adapter was trained with, and its number of classes."""
        kind = TASKS.get(str(self.config.get('task_type')))
        if kind is None:
            name = str((self.config.get('auto_mapping') or {}).get('base_model_class'))
            ends = (own for end, own in CLASSES.items() if name.endswith(end))
            kind = next(ends, 'embed' if re.fullmatch(r'\w+(?<!LMHead)(?<!MT)Model', name) else 'auto')
        sizes = [len(t) for t in self.whole.values() if t.ndim == 2]
        return kind, sizes[-1] if sizes and kind in ('classify', 'tokens') else None

    def apply(self, weights: Weights, spec: ModelSpec | None, config: dict[str, Any]) -> dict[str, Any]:
        """Apply the adapter to the weights. Returns the config, with the number of tokens if the table has grown."""
        self.untie(weights, spec)
        for name, t in self.whole.items():
            place = find_name(spec, weights, name) or name
            if spec is not None and spec.tied is not None and canonical_name(spec, place).endswith(spec.tied[1]):
                config = {**config, **{str(spec.model['num_tokens']): len(t)}}
            weights.add(place, t)
        for module, parts in self.products.items():
            found = find_name(spec, weights, f'{module}.weight')
            if found is None or not {'lora_A', 'lora_B'} <= parts.keys():
                missing = 'the base has no such tensor' if found is None else 'one of its two matrices is absent'
                raise ConfigError(f'the adapter `{self.folder}` changes `{module}.weight`, but {missing}')
            is_head = spec is not None and canonical_name(spec, found) == (spec.tied or ('',))[0]
            transposed = spec is not None and spec.type in CONV1D and not is_head
            weights.changes[found] = self.make_change(module, parts, weights.shape(found), transposed)
        return config

    def untie(self, weights: Weights, spec: ModelSpec | None) -> None:
        """Give a tied head its own tensor, if the adapter changes only the table or only the head."""
        if spec is None or spec.tied is None:
            return
        head, table = (find_name(spec, weights, name) for name in spec.tied)
        changed = [*self.whole, *(f'{module}.weight' for module in self.products)]
        own = {canonical_name(spec, name).removeprefix(spec.base) for name in changed}
        if head is None and table is not None and own & {name.removeprefix(spec.base) for name in spec.tied}:
            weights.add(spec.tied[0], weights.load(table))

    def get_scale(self, module: str, rank: int) -> float:
        """Return the factor of the product of a module."""
        patterns = self.config.get('alpha_pattern') or {}
        fits = (value for key, value in patterns.items() if re.fullmatch(rf'(.*\.)?({key})', module))
        alpha = next(fits, self.config.get('lora_alpha', 8))
        return alpha / (math.sqrt(rank) if self.config.get('use_rslora') else rank)

    def make_change(self, module: str, parts: Mapping[str, Tensor], shape: tuple[int, ...], transposed: bool) -> Any:
        """Return the function from a weight of the base, which may be (in, out), to that with the adapter."""
        a, b, magnitude = parts['lora_A'], parts['lora_B'], parts.get('lora_magnitude_vector')
        scale, is_embedding = self.get_scale(module, a.shape[0]), 'is_embedding' in parts
        a, b = a.flatten(1), b.flatten(1)  # Weights of convolutions have more than two dimensions.
        inner = (b.shape[0], a.shape[1])  # (out, in)
        transposed = transposed or is_embedding
        outer = inner[::-1] if transposed else inner
        if math.prod(outer) != math.prod(shape) or a.shape[0] != b.shape[1] or shape[0] != outer[0]:
            raise ConfigError(
                f'the adapter `{self.folder}` has a product of shape {inner} for `{module}.weight`, which has shape '
                f'{shape} in its base: is it the base that it was trained on?'
            )
        if magnitude is not None and (is_embedding or len(shape) != 2):
            raise NoModelError(f'DoRA of `{module}` of the adapter is not read: {MERGE}')

        def change(t: Tensor) -> Tensor:
            dtype = at_least_float(t.dtype)
            product = (b.to(dtype) @ a.to(dtype)) * scale  # (out, in)
            own = t.to(dtype) + (product.mT if transposed else product).reshape(shape)
            if magnitude is not None:  # In DoRA (arXiv:2402.09353) the norm of each output is a parameter.
                axis = 0 if transposed else 1
                norms = torch.linalg.vector_norm(own, dim=axis, keepdim=True)
                own = own * magnitude.to(dtype).reshape(norms.shape) / norms
            return own.to(t.dtype)

        return change


def find_name(spec: ModelSpec | None, weights: Weights, name: str) -> str | None:
    """Return the name in a file for a name of the adapter, which follows the modules, or None."""
    bases = ('',) if spec is None else ('', spec.base)
    tried = [base + name for base in bases] + [name.removeprefix(base) for base in bases]
    found = next((one for one in tried if one in weights.files), None)
    if found is None and spec is not None:
        by_name = {canonical_name(spec, one): one for one in weights.files}
        found = next((by_name[new] for new in (canonical_name(spec, one) for one in tried) if new in by_name), None)
    return found

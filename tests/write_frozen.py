"""Writes tests/data/frozen: for each type a tiny model of `transformers`, inputs, and what it says of them.

    pip install -e '.[test-pretrained]' && python tests/write_frozen.py [TYPE ...]

`test_pretrained_frozen.py` reads them without that library, so that what was right once stays so. Written once for a
type; written again only where a file no longer stands for what checkpoints look like.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pretrained_cases import CASES, IMAGE_CASES, SEQ2SEQ_CASES, TOWER_CASES, Case, theirs
from safetensors.torch import load_file, save_file

from x_transformers import pretrained
from x_transformers.pretrained.__main__ import compare_outputs

FOLDER = Path(__file__).parent / 'data' / 'frozen'
LARGEST = 60_000  # bytes
SMALLER = {
    'vocab_size': 32, 'intermediate_size': 16, 'n_inner': 16, 'd_ff': 16, 'dim': 32,
    'encoder_ffn_dim': 8, 'decoder_ffn_dim': 8,
    'hidden_dim': 16, 'moe_intermediate_size': 6, 'num_hidden_layers': 2, 'n_layer': 2, 'n_layers': 2,
    'num_layers': 1, 'num_decoder_layers': 1, 'encoder_layers': 1, 'decoder_layers': 1, 'max_position_embeddings': 20,
    'n_positions': 20, 'max_seq_len': 20, 'q_lora_rank': 8, 'kv_lora_rank': 8, 'n_routed_experts': 4, 'num_experts': 3,
    'num_local_experts': 3, 'n_group': 2, 'head_dim': 8, 'num_labels': 3, 'max_target_positions': 20,
}  # fmt: skip
TWO = ['sliding_attention', 'full_attention']
# types with few layers, of which some slide
NARROW, NARROWER = {'hidden_size': 24}, {'hidden_size': 16}
OTHER: dict[str, dict[str, Any]] = {
    'gemma3_text': {'layer_types': TWO}, 'exaone4': {'layer_types': TWO}, 'cohere2': {'layer_types': TWO},
    'gpt_oss': {'layer_types': TWO, 'intermediate_size': 4}, 'smollm3': {'no_rope_layers': [1, 0]},
    'modernbert': {'layer_types': TWO[::-1], 'intermediate_size': 12}, 'mixtral': {'intermediate_size': 6},
    'gpt_neox': {'intermediate_size': 12}, 'deepseek_v3': {'intermediate_size': 12}, 'falcon': NARROWER,
    'bloom': NARROWER, 'mpt': {'d_model': 16}, 'bert': NARROW, 'roberta': NARROW, 'distilbert': {'dim': 24},
    'electra': NARROW, 'deberta-v2': NARROW, 't5': {'d_model': 24}, 'mt5': {'d_model': 24}, 'bart': {'d_model': 24},
    'marian': {'d_model': 24}, 'whisper': {'d_model': 16, 'num_mel_bins': 6}, 'vit': NARROW, 'deit': NARROW,
    'dinov2': NARROWER, 'dinov2_with_registers': NARROWER, 'siglip_vision_model': NARROWER,
    'clip_vision_model': NARROW, **dict.fromkeys((
        'xlm-roberta', 'camembert', 'data2vec-text', 'ernie', 'roberta-prelayernorm', 'xlm-roberta-xl', 'megatron-bert',
        'mpnet',
    ), NARROW),
    **{kind: {'layer_types': TWO} for kind in ('ministral', 'cwm', 'olmo3', 'vaultgemma')},
    'siglip_text_model': {**NARROW, 'eos_token_id': 31},
    'clip_text_model': {**NARROW, 'eos_token_id': 31},
    'clip': {**NARROWER, 'eos_token_id': 31}, 'siglip': {**NARROWER, 'eos_token_id': 31, 'intermediate_size': 12},
}  # fmt: skip


def smaller(config: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A config of fewer and narrower layers; that of a tower within it too."""
    towers = {name: smaller(value, own) for name, value in config.items() if name in ('text_config', 'vision_config')}
    fields = {name: SMALLER.get(name, value) if value is not None else None for name, value in config.items()}
    return {**fields, **towers} if towers else {**fields, **own}


class Recorder:
    """A model that keeps what it was given, and what it said."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config
        self.kept: dict[str, torch.Tensor] = {}

    def __call__(self, **inputs: torch.Tensor) -> Any:
        out = self.model(**inputs)
        for name, value in out.items():
            if torch.is_tensor(value) and value.numel() < 2_000:
                self.kept[f'output:{name}'] = value
        self.kept |= {f'input:{name}': value for name, value in inputs.items()}
        return out


def write(case: Case) -> None:
    case = replace(case, config=smaller(case.config, OTHER.get(case.type, {})))
    model = theirs(case)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads(Path(folder, 'config.json').read_text())
        weights = load_file(Path(folder, 'model.safetensors'))
        recorder = Recorder(model)
        worst, size = compare_outputs(pretrained.load(folder), recorder)
    assert worst < 1e-4 * max(size, 1.0), (case.type, worst)
    held = {f'weight:{name}': t for name, t in weights.items()} | recorder.kept
    path = FOLDER / f'{case.type}.safetensors'
    save_file({name: t.detach().clone().contiguous() for name, t in held.items()}, path, {'config': json.dumps(config)})
    assert path.stat().st_size < LARGEST, (case.type, path.stat().st_size)
    print(f'{case.type:24}{path.stat().st_size:7,} bytes, {worst:.1e} apart')


def main() -> None:
    every = [*CASES, *SEQ2SEQ_CASES, *IMAGE_CASES, *TOWER_CASES]
    wanted = sys.argv[1:] or [case.type for case in every]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case in every:
        if case.number == 0 and case.type in wanted:
            write(case)


if __name__ == '__main__':
    main()

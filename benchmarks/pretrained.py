"""Models of `transformers` on the same weights: training, reading a prompt, decoding and memory, over `transformers`.

    pip install transformers safetensors
    python benchmarks/pretrained.py [--huggingface FOLDER] [--models GPT-2,ViT]

Random weights of the shapes of GPT-2 small, of a Llama of that size with grouped key heads, of BERT base and ViT base
are written once as a folder; `transformers` runs them by its sdpa attention, with a growing and with a static cache,
this library as `pretrained.load` gives them. Both give the same logits: that is checked before anything is measured.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import Row, Settings, Sides, Work, chosen, columns_of, parser_of, run, table

NAMES = ('huggingface', 'huggingface static', 'ours')
HEADS = {'H': 'huggingface', 'H static': 'huggingface static', 'ours': 'ours'}
TEXT = dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12)
MODELS: dict[str, dict[str, Any]] = {
    'GPT-2': dict(
        model_type='gpt2', architectures=['GPT2LMHeadModel'], n_embd=768, n_layer=12, n_head=12, n_positions=1024,
        vocab_size=50257,
    ),
    'Llama': dict(
        model_type='llama', architectures=['LlamaForCausalLM'], **TEXT, num_key_value_heads=4, intermediate_size=2048,
        vocab_size=32000, max_position_embeddings=2048, tie_word_embeddings=True,
    ),
    'BERT': dict(
        model_type='bert', architectures=['BertForMaskedLM'], **TEXT, intermediate_size=3072, vocab_size=30522,
    ),
    'ViT': dict(
        model_type='vit', architectures=['ViTForImageClassification'], **TEXT, intermediate_size=3072, image_size=224,
        patch_size=16, id2label={str(i): str(i) for i in range(1000)},
    ),
}  # fmt: skip
TINY = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=56, n_embd=32, n_layer=2,
            n_head=4, image_size=32, num_key_value_heads=2)  # fmt: skip
# model, what, batch, tokens, new tokens, columns
CASES = [
    *[(name, what, *sizes, 0, ('huggingface', 'ours')) for name in ('GPT-2', 'Llama', 'BERT', 'ViT')
      for what, sizes in (('training', (2, 256)), ('reading', (1, 512)))],
    *[(name, 'decoding', batch, 64, 64, NAMES) for name in ('GPT-2', 'Llama') for batch in (1, 8)],
]  # fmt: skip


def loaded(column: str, folder: str, dtype: str) -> Any:
    """The model of a folder, by this library or by `transformers`."""
    kind = getattr(torch, dtype)
    if column == 'ours':
        from x_transformers import pretrained

        return pretrained.load(folder, dtype=kind, dropout=0.0)
    import transformers

    transformers.logging.set_verbosity_error()
    architecture = json.loads(Path(folder, 'config.json').read_text())['architectures'][0]
    return getattr(transformers, architecture).from_pretrained(folder, dtype=kind, attn_implementation='sdpa').eval()


def logits_of(column: str, model: Any, batch: torch.Tensor) -> torch.Tensor:
    out = model(batch)
    return out if column == 'ours' else out.logits


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """One step, one reading, or one call of `generate`."""
    model = loaded(column, case['folder'], settings.dtype).to(settings.device)
    given = drawn(case).to(settings.device)
    given = given.to(getattr(torch, settings.dtype)) if given.is_floating_point() else given
    what = {'training': training, 'reading': reading, 'decoding': decoding, 'size': size}[case['what']]
    return what(column, model, given, case)


def drawn(case: dict[str, Any]) -> torch.Tensor:
    """Token ids, or images."""
    if 'image' in case:
        return torch.randn(case['batch'], 3, case['image'], case['image'])
    return torch.randint(0, case['vocabulary'], (case['batch'], case['tokens']))


def training(column: str, model: Any, given: torch.Tensor, case: dict[str, Any]) -> Work:
    """Forward, the loss, backward, AdamW."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for name in ('attn_pdrop', 'resid_pdrop', 'embd_pdrop', 'attention_probs_dropout_prob', 'hidden_dropout_prob'):
        if column != 'ours' and hasattr(model.config, name):
            setattr(model.config, name, 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loss_of = functools.partial(loss_of_tokens if case['causal'] else loss_of_logits, column, model, given)

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss_of_tokens(column: str, model: Any, given: torch.Tensor) -> torch.Tensor:
    """Of the next token, as each library has it."""
    if column != 'ours':
        return model(given, labels=given).loss
    from x_transformers import AutoregressiveWrapper

    return AutoregressiveWrapper(model)(given)


def loss_of_logits(column: str, model: Any, given: torch.Tensor) -> torch.Tensor:
    out = logits_of(column, model, given)
    classes = torch.zeros(out.shape[:-1], dtype=torch.long, device=out.device)
    return F.cross_entropy(out.flatten(0, -2), classes.flatten())


def reading(column: str, model: Any, given: torch.Tensor, case: dict[str, Any]) -> Work:
    """Logits of all tokens."""

    @torch.no_grad()
    def read() -> None:
        logits_of(column, model, given)

    return read


def decoding(column: str, model: Any, given: torch.Tensor, case: dict[str, Any]) -> Work:
    """Greedy, with a cache."""
    length = case['new']
    if column == 'ours':
        from x_transformers import AutoregressiveWrapper

        net = AutoregressiveWrapper(model)
        return functools.partial(net.generate, given, length, temperature=0.0)
    static = {'cache_implementation': 'static', 'disable_compile': True} if column.endswith('static') else {}
    options = dict(max_new_tokens=length, min_new_tokens=length, do_sample=False, pad_token_id=0, **static)
    return functools.partial(model.generate, given, attention_mask=torch.ones_like(given), **options)


def written(config: dict[str, Any], target: Path) -> str:
    """A folder with random weights."""
    from x_transformers import pretrained
    from x_transformers.pretrained.engine import build

    torch.manual_seed(0)
    model = build(pretrained.keywords(config), 'cpu')
    pretrained.save(model, target, hf_type=config['model_type'])
    (target / 'config.json').write_text(json.dumps({**config, 'dtype': 'float32'}))
    return str(target)


def size(column: str, model: Any, given: torch.Tensor, case: dict[str, Any]) -> Callable[[], float]:
    """A number that tells one model from another."""

    @torch.no_grad()
    def number() -> float:
        out = logits_of(column, model, given).double()
        return float((out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum())

    return number


def check(row: Row) -> None:
    """Refuse to measure models that differ."""
    found = [values[0] for values in row.values.values()]
    if max(found) - min(found) > 1e-3 * max(map(abs, found)):
        raise SystemExit(f'{row.work}: the columns compute different logits, {row.values}')


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument('--models', help=f'only these, with commas, of {", ".join(MODELS)}')
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    wanted = chosen('--models', options.models, MODELS)
    filled = []
    with tempfile.TemporaryDirectory() as root, Sides(__file__, columns_of(options, NAMES), options) as sides:
        for name in wanted:
            config = {k: TINY.get(k, v) if options.tiny else v for k, v in MODELS[name].items()}
            folder = written(config, Path(root, name))
            kind = {'image': config['image_size']} if name == 'ViT' else {'vocabulary': config['vocab_size']}
            kind['causal'] = config['architectures'][0].endswith(('CausalLM', 'LMHeadModel'))
            for model, what, batch, tokens, new, among in CASES:
                if model != name:
                    continue
                if what == 'training':
                    small = dict(folder=folder, what='size', batch=1, tokens=8, new=0, **kind)
                    check(sides.numbers(f'{name}, logits', small, 'sum', among=among))
                tokens, new = (8, min(new, 3)) if options.tiny else (tokens, new)
                case = dict(folder=folder, what=what, batch=batch, tokens=tokens, new=new)
                case |= kind
                title = f'{name}, {what}, ' + (f'{batch} images' if name == 'ViT' else f'{batch} x {tokens} tokens')
                title += f' and {new} more' if new else ''
                filled.append(sides.seconds(title, case, among=among, base='huggingface', faster=True, goal='>= 1.1'))
                if what != 'reading':
                    filled.append(sides.memory(f'{title}: memory', case, among=among, base='huggingface', goal='<= 1'))
    return filled


def show(rows: Sequence[Row]) -> str:
    return table(rows, HEADS, 'speed over H, and memory over that of H')


if __name__ == '__main__':
    run(parser(), work, rows, show)

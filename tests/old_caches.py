"""Models whose caches earlier releases have saved, `tests/data/cache_2.*`: this file wrote them, at those releases."""

from pathlib import Path

import torch
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

DATA = Path(__file__).parent / 'data'
MODELS = {
    'turned': dict(stack=dict(rotary_pos_emb=True, shift_tokens=1, attn_data_dependent_alibi=True)),
    'recurrent': dict(stack=dict(attn_hybrid_module=nn.GRU(4, 4, batch_first=True))),
    'looped': dict(stack=dict(rotary_pos_emb=True, shift_tokens=1, pre_and_post_norm=True), looped=True,
                   max_looped_steps=2),
    'masked': dict(stack={}),
}  # fmt: skip
IDS = torch.tensor([[3, 1, 4, 0, 5, 2]])


def place(name):
    return 0 if name.startswith('attn_layers.rotary_pos_emb') else 1 if name.startswith('attn_layers') else 2


def model_of(name):
    """A small model, whose weights are the same wherever they are made."""
    flags = dict(MODELS[name])
    stack = Decoder(dim=4, depth=1, heads=1, attn_dim_head=4, ff_mult=1, verbose=False, **flags.pop('stack'))
    net = TransformerWrapper(num_tokens=6, max_seq_len=0, attn_layers=stack, **flags).double().eval()
    with torch.no_grad():
        # in the order that weights had then
        for at, (_, parameter) in enumerate(sorted(net.state_dict().items(), key=lambda item: place(item[0]))):
            numbers = torch.arange(parameter.numel()) * 7 + at * 3
            parameter.copy_(((numbers % 11 - 5).double() / 8).view_as(parameter))
    return net


def inputs_of(name, length):
    """Of the first `length` tokens. A mask of the first ones holds for what follows."""
    mask = torch.tensor([[True, False, True, True, True, True]])
    return dict(mask=mask[:, :length]) if name == 'masked' else {}


def record():
    for name in MODELS:
        net = model_of(name)
        with torch.no_grad():
            cache = net(IDS[:, :4], return_intermediates=True, **inputs_of(name, 4))[1].cache
        cache.save(DATA / f'cache_2.{name}')
    AutoregressiveWrapper(model_of('recurrent')).read_prompt(IDS[:, :4]).save(DATA / 'prompt_2.recurrent')


if __name__ == '__main__':
    record()

"""Typical mistakes, one to a line: type checkers find an error at each, and none elsewhere."""

import torch

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    Decoder,
    Encoder,
    FeedForward,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

ids = torch.randint(0, 256, (1, 16))
stack = Decoder(dim=64, depth=1)
model = TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=stack)
language_model = AutoregressiveWrapper(model)

Decoder(dim=64, depth=2, rotary_pos_embed=True)  # mistake: a typo
Decoder(dim=64, depth=2, rotary_pos_emb='yes')  # mistake: a string for a switch
Decoder(dim=64, depth=2, num_memory_tokens=4)  # mistake: a keyword of the wrapper
Decoder(dim=64, depth=2, attn_dropout='8')  # mistake: a string for a number
Decoder(dim=64, depth=2, attn_dropout=[0.1, 0.2])  # mistake: a list for one value per layer
Decoder(dim=64, depth=2, alibi_bidirectional='both')  # mistake: none of the choices
Decoder(dim=64, depth=2, kv_heads=2)  # mistake: without the prefix of the branch
Encoder(depth=2)  # mistake: no width
Encoder(dim=64, depth=2, causal=True)  # mistake: settled by the class
Attention(64, flas=True)  # mistake: a typo
FeedForward(64, glu='swish')  # mistake: a string for a switch
TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=stack, heads=8)  # mistake: a keyword of the stack
TransformerWrapper(num_tokens='256', max_seq_len=64, attn_layers=stack)  # mistake: a string for a number
model(ids, msk=ids)  # mistake: a typo in a call
model(ids, mask='all')  # mistake: a string for a tensor
model('text')  # mistake: text for ids
AutoregressiveWrapper(model, ignore_idx=3)  # mistake: a typo
language_model(ids, return_output=True)  # mistake: a typo in a call
language_model.generate(ids, 8, temprature=0.5)  # mistake: a typo in a generation
language_model.generate(ids, '8')  # mistake: a string for a number
language_model.generate(ids, 8, cache_kv='yes')  # mistake: a string for a switch
XTransformer(dim=64, enc_depth=2, dec_depth='2')  # mistake: a string for a number
ViTransformerWrapper(image_size=32, patch_size=8, num_class=10, attn_layers=stack)  # mistake: a typo
loss: int = language_model(ids)  # mistake: a tensor for a number

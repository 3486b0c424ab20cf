"""Right code of users: type checkers find nothing in strict mode, and it runs."""

from typing import Any

import torch
from torch import Tensor

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    pretrained,
)
from x_transformers.flags import PerLayer
from x_transformers.keywords import DecoderKeywords, Unpack

ids = torch.randint(0, 256, (2, 16))
vectors = torch.randn(2, 16, 64)

stack = Decoder(
    dim=64,
    depth=2,
    heads=4,
    rotary_pos_emb=True,
    attn_flash=True,
    attn_kv_heads=2,
    attn_dropout=(0.1, 0.0),
    ff_glu=True,
    ff_mult=PerLayer(2, 4),
)
model = TransformerWrapper(num_tokens=256, max_seq_len=128, emb_dropout=0.1, num_memory_tokens=4, attn_layers=stack)
logits: Tensor = model(ids)
logits, trace = model(ids, return_intermediates=True)
hiddens = trace.hiddens
embeds: Tensor = model(ids, return_embeddings=True, mask=torch.ones(2, 16, dtype=torch.bool))
logits, maps = model(ids, return_attn=True)
first: Tensor = maps[0]

language_model = AutoregressiveWrapper(model)
loss: Tensor = language_model(ids)
loss, (logits, trace) = language_model(ids, return_outputs=True)
tokens: Tensor = language_model.generate(ids, 4, temperature=0.0)
tokens = language_model.generate(
    [ids[0], ids[1, :7]], 4, eos_token=3, filter_logits_fn='top_p', filter_kwargs={'thres': 0.9}
)
found = language_model.generate(ids, 4, return_log_probs=True)
log_probs: Tensor | None = found.log_probs
tokens = torch.stack([step for step in language_model.stream(ids, 4, temperature=0.7)])

out: Tensor = Attention(64, heads=4, causal=True)(vectors)
out, one = Attention(64, heads=4)(vectors, return_intermediates=True)
out = FeedForward(64, glu=True, swish=True)(vectors)
out = Encoder(dim=64, depth=1)(vectors, mask=torch.ones(2, 16, dtype=torch.bool))
out, memory = Encoder(dim=64, depth=1)(vectors, return_hiddens=True)
out = CrossAttender(dim=64, depth=1)(vectors, context=vectors)
series = ContinuousTransformerWrapper(dim_in=3, dim_out=5, max_seq_len=16, attn_layers=Encoder(dim=64, depth=1))
out = series(torch.randn(2, 16, 3))

vit = ViTransformerWrapper(image_size=32, patch_size=8, num_classes=10, attn_layers=Encoder(dim=64, depth=1))
scores: Tensor = vit(torch.randn(1, 3, 32, 32))

translator = XTransformer(
    dim=64,
    enc_num_tokens=256,
    enc_depth=2,
    enc_max_seq_len=32,
    dec_num_tokens=256,
    dec_depth=2,
    dec_max_seq_len=32,
    dec_attn_flash=True,
    tie_token_emb=True,
)
loss = translator(ids, ids)
tokens = translator.generate(ids, ids[:, :1], 4)


def load(folder: str) -> Tensor:
    """Typed by the class that is asked for."""
    loaded: TransformerWrapper = TransformerWrapper.from_pretrained(folder)
    again, info = pretrained.load(folder, cls=TransformerWrapper, return_info=True)
    names: list[str] = info.new
    return loaded(ids) + again(ids) + len(names)


class MyKeywords(DecoderKeywords, total=False):
    """Keywords of a decoder, and one of this program."""

    tokens: int


def build(**keywords: Unpack[MyKeywords]) -> TransformerWrapper:
    """A model from the keywords of its decoder."""
    given: dict[str, Any] = {**keywords}
    tokens = given.pop('tokens', 256)
    return TransformerWrapper(num_tokens=tokens, max_seq_len=32, attn_layers=Decoder(**given))


logits = build(dim=32, depth=1, heads=2, tokens=256, alibi_pos_bias=True)(ids)

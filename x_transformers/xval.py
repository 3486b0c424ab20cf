"""Numbers beside tokens: one token stands for every number, and its embedding is scaled by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from einops.layers.torch import Rearrange
from torch import Generator, Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import (
    as_mask,
    as_number,
    check_device,
    check_ids,
    check_tensor,
    checked,
    mask_from_lengths,
    values_of,
)
from x_transformers.core.model_calls import ModelCall, OutputRequest, open_model
from x_transformers.core.modes import at_least_float, clamp_to_dtype, to_float
from x_transformers.core.nets import SET_BY_GENERATION, SET_BY_LOSS, check_net, refuse_own
from x_transformers.core.own_modules import a_stack, gets_whole_input, known_stack
from x_transformers.features.derived import MEMBERS_OF_MODEL, sort_members
from x_transformers.features.embeddings import (
    AbsolutePositions,
    EmbDropout,
    MemoryTokens,
    PrependInputs,
    Sinusoids,
    SumEmbeds,
    TokenEmbedding as TokenEmbedding,
)
from x_transformers.features.layer_positions import LayerPositionsInModel
from x_transformers.features.patterns import PatternsInModel
from x_transformers.features.readouts import TieEmbedding
from x_transformers.features.untied import UntiedPositionsInModel
from x_transformers.features.windows import MemSameLength
from x_transformers.flags import (
    ConfigError,
    Configurable,
    Feature,
    count,
    instance_of,
    integer,
    is_int,
    none,
    number,
    size,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import Decoding, IncrementalModel
from x_transformers.generation.exits import is_unfinished
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import (
    align_right,
    padded_prompts,
    padded_rows,
    require,
    take_padding,
    top_k as top_k,
)
from x_transformers.keywords import Unpack, XValTransformerWrapperKeywords
from x_transformers.training.items import count_items, share_of_items
from x_transformers.training.losses import mask_before_padding, predictable, read_of, real_tokens, tell_padding
from x_transformers.training.token_loss import (
    Terms,
    get_readout,
    may_read_later,
    read_logits_later,
    single_losses,
    weighted_token_loss,
)
from x_transformers.x_transformers import AttentionLayers as AttentionLayers, Wrapper

__all__ = ['XValAutoregressiveWrapper', 'XValTransformerWrapper']

XVAL: tuple[type[Feature], ...] = (
    MemSameLength,
    LayerPositionsInModel,
    PatternsInModel,
    UntiedPositionsInModel,
    AbsolutePositions,
    Sinusoids,
    SumEmbeds,
    MemoryTokens,
    PrependInputs,
    EmbDropout,
    TieEmbedding,
)


class XValLosses(NamedTuple):
    """The two losses of every next token, (b n-1)."""

    cross_entropy_loss: Tensor
    numerical_mse_loss: Tensor


LossBreakdown = XValLosses  # The name in the original.


class GenerateReturn(NamedTuple):
    """What was generated, each ([b] s). Numbers are NaN where the token stands for none."""

    sampled_token_ids: Tensor
    sampled_numbers: Tensor
    is_number_mask: Tensor


class XValTransformerWrapper(Wrapper):
    """xVal: a model of tokens and numbers around a stack:  (b, n), (b, n) -> logits (b, n, l), numbers (b, n)

        e_i = T[x_i] * (x_num_i if x_i is the numerical token else 1)

    The token table is initialized from N(0, 1), so that numbers of size 1 weigh as much as positions. Numbers at other
    tokens are ignored, and may be NaN.

    Golkar et al. 2023, arXiv:2310.02989
    """

    catalogue = XVAL

    def __init__(
        self,
        *,
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        max_seq_len: Annotated[int | None, 'maximum length; 0, -1 or None: no absolute positions', integer | none],
        numerical_token_id: Annotated[int, 'id of the number placeholder', count],
        attn_layers: Annotated[AttentionLayers | nn.Module, 'stack of layers, such as `Decoder` or `Encoder`', a_stack],
        emb_dim: Annotated[int | None, 'width of the embeddings, that of the stack if None', size | none] = None,
        logits_dim: Annotated[int | None, 'width of the logits, `num_tokens` if None', size | none] = None,
        max_mem_len: Annotated[int, 'number of hidden states returned as memories (Transformer-XL)', count] = 0,
        features: Sequence[type[Feature]] | None = None,
        **flags: Unpack[XValTransformerWrapperKeywords],
    ) -> None:
        super().__init__()
        if numerical_token_id >= num_tokens:
            raise ConfigError(f'`numerical_token_id` must be from 0 to {num_tokens - 1}, got {numerical_token_id}')
        self.num_tokens, self.max_seq_len = num_tokens, max(max_seq_len or 0, 0)
        self.numerical_token_id, self.logits_dim = numerical_token_id, logits_dim
        self.dim, self.emb_dim = known_stack(attn_layers).dim, emb_dim or known_stack(attn_layers).dim
        self.l2norm_embed, self.max_mem_len = False, max_mem_len
        self.attn_layers = attn_layers
        self.token_emb = TokenEmbedding(self.emb_dim, num_tokens)
        self.features = self._compose(features, flags).setup()
        self.project_emb = nn.Linear(self.emb_dim, self.dim) if self.emb_dim != self.dim else nn.Identity()
        self.to_logits = self.features.select('readout', self._new_head)()
        self.to_numerical_output = nn.Sequential(nn.Linear(self.dim, 1), Rearrange('... 1 -> ...'))
        sort_members(self, MEMBERS_OF_MODEL)

    def _new_head(self) -> nn.Module:
        return nn.Linear(self.dim, self.logits_dim or self.num_tokens)

    @checked
    def forward(
        self,
        x: Tensor,
        x_num: Tensor,
        return_embeddings: bool = False,
        return_intermediates: bool = False,
        return_mems: bool = False,
        mask: Tensor | None = None,
        return_attn: bool = False,
        mems: Sequence[Tensor | None] | None = None,
        *,
        detach_mems: bool = True,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool = False,
        return_readout: bool = False,
        **kwargs: Any,
    ) -> Any:
        x = check_ids(x, num_tokens=self.num_tokens)
        x_num = check_numbers(x_num, 'x_num', x)
        request = OutputRequest(return_intermediates, return_mems, return_attn, detach_mems)
        call: Any = open_model(self, x, mask, cache, input_not_include_cache, kwargs)
        h = call.embed_tokens(self, (x, x_num), lambda given: self.embed_all(*given, call=call))
        call.maps_apart = request.mems_alone
        h = self.run_stack(h, call, mask, mems, request.keeps, kwargs)
        h = call.features.apply('pool', h, call)
        out = h
        if not return_embeddings:
            logits = (get_readout if return_readout else type(self).read_out)(self, h, call, {})
            out = logits, self.to_numerical_output(h)
            call.intermediates.logits = None if return_readout else logits
        return self.returned(out, request, call, mems, None, h)

    def read_out(self, h: Tensor, call: ModelCall, to_logits_kwargs: dict[str, Any]) -> Tensor:
        return call.features.apply('logits', self.to_logits(h, **to_logits_kwargs), call)

    @property
    def can_return_readout(self) -> bool:
        return may_read_later(self, XValTransformerWrapper)

    def embed_all(self, x: Tensor, x_num: Tensor, call: ModelCall) -> Tensor:
        """Embed tokens and numbers, add positions and further inputs, and bring them to the width of the stack."""
        numbers = call.zero_hidden_tokens(x_num.unsqueeze(-1)).squeeze(-1)
        call.like_tokens = self._embed(x, numbers)
        h = call.zero_hidden_tokens(sum(call.features.collect('embed', call), call.like_tokens))
        call.intermediates.initial_embeds = h = self.project_emb(call.features.apply('embedded', h, call))
        return h

    def _embed(self, x: Tensor, x_num: Tensor) -> Tensor:
        scale = torch.where(x == self.numerical_token_id, x_num, 1.0)
        embedded = self.token_emb(x)
        exact = to_float(embedded)  # numbers may be beyond the range of float16
        return clamp_to_dtype(exact * rearrange(scale.to(exact.dtype), 'b n -> b n 1'), embedded.dtype)

    def describe(self) -> dict[str, str]:
        return {
            'embed': f'ids and numbers, each (b n) -> (b n {self.emb_dim})',
            'readout': f'(b n {self.dim}) -> logits, {type(self.to_logits).__name__}, and numbers (b n)',
        }


def check_numbers(x_num: Any, name: str, x: Tensor) -> Tensor:
    """Return one floating point number per token; integers are cast to the default precision."""
    if not torch.is_tensor(x_num) or x_num.is_complex() or x_num.dtype == torch.bool:
        got = x_num.dtype if torch.is_tensor(x_num) else type(x_num).__name__
        raise TypeError(f'`{name}` must be a tensor of real numbers, got {got}')
    if x_num.shape != x.shape:
        raise ValueError(f'`{name}` must have shape {tuple(x.shape)}, one number per token, got {tuple(x_num.shape)}')
    check_device(x_num, name, x)
    return x_num if x_num.is_floating_point() else x_num.to(at_least_float(torch.get_default_dtype()))


# training and generation

SET_BY_NUMBERS = {**SET_BY_LOSS, 'prepend_embeds': ': the loss is that of all tokens'}


class Growing:
    """A model of tokens and numbers as one of tokens, for `IncrementalModel`: the numbers so far are held here.

    b n -> b n (l + 1), the last entry being the number
    """

    def __init__(self, net: nn.Module, numbers: Tensor) -> None:
        self.net, self.numbers = net, numbers
        self.max_seq_len, self.can_cache_kv = net.max_seq_len, net.can_cache_kv
        self.can_cache_kv_outside_max_seq_len = net.can_cache_kv_outside_max_seq_len
        self.reads_whole = gets_whole_input(net)

    def __call__(self, x: Tensor, return_intermediates: bool = False, **kwargs: Any) -> Any:
        numbers = self.numbers[:, self.numbers.shape[1] - x.shape[1] :]
        out = self.net(x, numbers, return_intermediates=return_intermediates, **kwargs)
        (logits, number), intermediates = out if return_intermediates else (out, None)
        joined = torch.cat((logits, number.to(logits.dtype).unsqueeze(-1)), dim=-1)
        return (joined, intermediates) if return_intermediates else joined


class NumberReader(IncrementalModel):
    """Reads tokens and the `numbers` (b, t) so far, and notes the number that is predicted next."""

    numbers: Tensor

    def read(self, sequence: Tensor, pads: Tensor | None = None, count: int | None = None) -> Tensor:
        """Return the logits (b, l) after the last token of `sequence` (b, n)."""
        length = sequence.shape[1]
        self.net.numbers = self.numbers[:, :length]
        out = super().read(sequence, pads, count)
        self.numbers[:, length] = out[..., -1]
        return out[..., :-1]


class XValAutoregressiveWrapper(Configurable):
    """A causal model of tokens and numbers with its next-token loss, and generation.

        loss = mean over targets of   cross entropy + weight * (number - x_num)^2 at number tokens

    The wrapper has no parameters; those of the model are stored under `net.`.
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal XValTransformerWrapper', instance_of(XValTransformerWrapper)],
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'padding id, input for `ignore_index` and before shorter prompts', integer] = 0,
        numerical_loss_weight: Annotated[float, 'weight of the squared error of numbers', number] = 1.0,
    ) -> None:
        super().__init__()
        check_net(net)
        self.net, self.max_seq_len = net, net.max_seq_len
        self.ignore_index, self.pad_value = ignore_index, pad_value
        self.numerical_loss_weight = numerical_loss_weight

    @checked
    def forward(
        self,
        x: Tensor,
        x_num: Tensor,
        return_loss_breakdown: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the mean loss of predicting each token and number from those before it.

        x                       b n   ids, n of at least 2; `ignore_index` where there is no target
        x_num                   b n   numbers, read where the token stands for one
        return_loss_breakdown         also return `XValLosses`, the losses of each place
        num_items_in_batch            divide the sum of the losses by this number, so that batches add up
        **kwargs                      passed to the model: `context`, ..., and a `mask` (b n), True except for padding,
                                      which is neither a target nor used for predictions. A mask (b n-1) is that of
                                      the input, and used for both
        returns                       scalar; 0 if there is no target
        raises                        ValueError or TypeError for inputs of another shape or kind
        """
        x = check_ids(x, num_tokens=self.net.num_tokens, besides=self.ignore_index)
        x_num = check_numbers(x_num, 'x_num', x)
        b, n = x.shape
        if n < 2:
            raise ValueError(f'`x` got shape {(b, n)}, n must be at least 2')
        refuse_own(kwargs, 'the loss', SET_BY_NUMBERS)
        ignored = x == self.ignore_index
        targets, target_numbers = x[:, 1:], x_num[:, 1:]
        counts, unread = ~ignored[:, 1:], ignored[:, :-1]
        if kwargs.get('mask') is not None:
            mask = check_tensor(kwargs['mask'], 'mask')
            mask = as_mask(mask, 'mask', b, n - (mask.ndim == 2 and mask.shape[-1] == n - 1), like=x)
            kwargs['mask'] = mask if mask.shape[1] < n else read_of(mask)
            counts, unread = counts & mask[:, : n - 1] & mask[:, 1 - n :], unread | ~mask[:, : n - 1]
        if kwargs.get('seq_start_pos') is not None:
            token_mask: Any = real_tokens(x, start=kwargs['seq_start_pos'])
            counts, unread = counts & predictable(token_mask), unread | ~token_mask[:, :-1]
        tell_padding(self.net, kwargs, lambda: read_of(mask_before_padding(x, self.ignore_index)))

        ids, numbers = x[:, :-1].masked_fill(unread, self.pad_value), x_num[:, :-1].masked_fill(unread, 1.0)
        with AuxLosses() as aux:
            logits, predicted = self.net(ids, numbers, **kwargs, **read_logits_later(self.net))
        # What is no number, or hidden, may be NaN: it is left out before it is squared.
        without = ~counts | (targets != self.net.numerical_token_id)
        squares = to_float(predicted).masked_fill(without, 0.0) - to_float(target_numbers).masked_fill(without, 0.0)
        squares = squares.square()
        entropies, terms = None, Terms(self.ignore_index)
        if return_loss_breakdown:
            entropies: Any = single_losses(logits, targets, terms)
            total = entropies.masked_fill(~counts, 0.0).sum()
        else:
            total = weighted_token_loss(logits, targets, counts, terms)
        total = total + self.numerical_loss_weight * squares.sum(dtype=total.dtype)
        share = share_of_items(counts, num_items_in_batch)
        loss = aux.added_to(total / count_items(counts, num_items_in_batch), share)
        return (loss, XValLosses(entropies, squares)) if return_loss_breakdown else loss

    @checked
    def generate(
        self,
        start_tokens: Prompts,
        start_numbers: Any,
        seq_len: int,
        filter_logits_fn: Any = top_k,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        temperature: float = 1.0,
        *,
        prompt_lens: Tensor | Sequence[int] | None = None,
        cache_kv: bool = True,
        slide_cache: bool = True,
        generator: Generator | None = None,
        **kwargs: Any,
    ) -> GenerateReturn:
        """Continue tokens and numbers by `seq_len`. Without gradients, in eval mode.

            start_tokens      [b] n   ids, n of at least 1
            start_numbers     [b] n   numbers, read where the token stands for one
            seq_len                   number of tokens to generate
            filter_logits_fn          filter of `generation/sampling.py` by name, a callable, or several
            filter_kwargs             its keywords, or a dict for each of several
            temperature       0 ..    0 selects the most probable token, without a filter; numbers are never drawn
            prompt_lens       [b]     number of tokens of each prompt, if it is padded on the right
            cache_kv                  use the KV cache, if the model supports it
            slide_cache               past `max_seq_len`, keep the cache of the last tokens, as if attention had a
                                      window of so many; else read them again each time
            generator                 random number generator, on the device of the model
            **kwargs                  the other options of `AutoregressiveWrapper.generate` that choose a token or end a
                                      row, `eos_token` among them; further ones are passed to every call of the model:
                                      `context`, ..., and a `mask` of the prompts
            returns                   `GenerateReturn` of the new tokens only
            raises                    ValueError or TypeError for arguments out of range

        Past `max_seq_len` only the last `max_seq_len` tokens are read.
        """
        seq_len = as_number(seq_len)
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        own: Any = dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        kwargs |= own | dict(generator=generator)
        choice = TokenSampler.for_wrapper(self, kwargs)
        refuse_own(kwargs, 'generate', SET_BY_GENERATION)
        weight = next(self.net.parameters())
        tokens, token_mask = padded_rows(start_tokens, 'start_tokens', self.pad_value, weight.device)
        if token_mask is not None:
            require(prompt_lens is None, 'prompt_lens', prompt_lens, 'None for lists, which have their own lengths')
            prompt_lens = token_mask.sum(dim=-1)
        if not torch.is_tensor(start_numbers):
            start_numbers = padded_numbers(start_numbers, 'start_numbers').to(weight)
        prompt_lens, left_pad = take_padding(tokens, prompt_lens, kwargs)
        ids, pads, leading = padded_prompts(tokens, prompt_lens, self.pad_value)
        start_numbers = check_numbers(start_numbers, 'start_numbers', tokens)
        start, numbers = ids.shape[1], start_numbers.reshape(ids.shape[0], start_numbers.shape[-1])[:, : ids.shape[1]]
        numbers = numbers if pads is None else align_right(numbers, start - pads, 1.0)
        if left_pad is not None:
            pads, numbers = left_pad, numbers.masked_fill(mask_from_lengths(left_pad, start), 1.0)
        reader = NumberReader(Growing(self.net, numbers), kwargs, cache_kv=cache_kv, slides=slide_cache)
        reader.numbers = F.pad(numbers, (0, seq_len))
        room, modules = F.pad(ids, (0, seq_len), value=self.pad_value), list(self.modules())
        decoding = Decoding(reader, choice, modules, room, pads, start, leading, self.pad_value)
        decoding.finish()
        new = decoding.ids[:, start : decoding.length]
        numeric = decoding.generated((new == self.net.numerical_token_id) & is_unfinished(new, decoding.endings))
        numbers = decoding.generated(reader.numbers[:, start:]).masked_fill(~numeric, torch.nan)
        return GenerateReturn(decoding.generated(new), numbers, numeric)


def padded_numbers(value: Any, name: str) -> Tensor:
    """Return numbers as a tensor, rows of unequal length (b, n) padded with 1."""
    if isinstance(value, (list, tuple)) and len({len(row) for row in value if hasattr(row, '__len__')}) > 1:
        return pad_sequence([values_of(row, name).float() for row in value], batch_first=True, padding_value=1.0)
    return values_of(value, name)

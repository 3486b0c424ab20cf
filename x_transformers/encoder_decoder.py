"""An encoder and a decoder that reads it: the model of the first transformers, and one whose source is no text."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, check_ids, checked
from x_transformers.core.own_modules import is_of_others
from x_transformers.core.routing import flags_of_strangers, hidden_targets, model_flags, renamed_mask, split_model_flags
from x_transformers.flags import ConfigError, Configurable, advice, boolean, instance_of, probability, size
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.methods import Prompts, first_device
from x_transformers.generation.sampling import padded_rows
from x_transformers.keywords import Unpack, XTransformerKeywords
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import dropout_seq
from x_transformers.x_transformers import Decoder, Encoder, TransformerWrapper


def check_source(encoder: Any, ids: Any, name: str) -> Any:
    """Return ids of the source (b n), checked, unless a user's module stands for the encoder or embeds them."""
    own = not hasattr(encoder, 'num_tokens') or is_of_others(getattr(encoder, 'token_emb', None))
    return ids if own else check_ids(ids, name, num_tokens=encoder.num_tokens)


def source_rows(source: Any, mask: Any, name: str, decoder: AutoregressiveWrapper) -> tuple[Any, Any]:
    """Return a source and its mask from what Python has: lists of ids of unequal length, or those of one row."""
    source, token_mask = padded_rows(source, name, decoder.pad_value, first_device(decoder))
    alone = source.ndim == 1 and not source.is_floating_point()
    mask = token_mask if mask is None else mask
    return (source.unsqueeze(0), None if mask is None else mask.reshape(1, -1)) if alone else (source, mask)


def ignored_by(decoder: nn.Module) -> int:
    return getattr(decoder, 'ignore_index', -100)


def check_target(decoder: nn.Module, ids: Any) -> Tensor:
    """Return ids of the target (b m), checked as far as the decoder says how many there are."""
    known = getattr(getattr(decoder, 'net', None), 'num_tokens', None)
    return check_ids(ids, 'tgt', 0, known, besides=ignored_by(decoder))


def loss_of_target(decoder: nn.Module, tgt: Tensor, aux: AuxLosses, num_items: Any, **inputs: Any) -> Tensor:
    """Return the next-token loss of a target (b m) with the losses of features of the encoder."""
    inputs |= {} if num_items is None else {'num_items_in_batch': num_items}
    return aux.added_to(decoder(tgt, **inputs), share_of_items(tgt[:, 1:] != ignored_by(decoder), num_items))


class XTransformer(Configurable):
    """Encoder-decoder of tokens:  ids (b, n), ids (b, m) -> loss.  Vaswani et al. 2017, arXiv:1706.03762

    Keywords with `enc_` and `dec_` go to the two models, each a TransformerWrapper around its stack.
    """

    def __init__(
        self,
        *,
        dim: Annotated[int, 'width of both stacks', size],
        tie_token_emb: Annotated[bool, 'share the token embedding of encoder and decoder', boolean] = False,
        ignore_index: Annotated[int, 'target id that is ignored by the loss'] = -100,
        pad_value: Annotated[int, 'id of the padding token'] = 0,
        cross_attn_tokens_dropout: Annotated[float, 'share of encoder tokens dropped in training', probability] = 0.0,
        label_smoothing: Annotated[
            float, 'label smoothing: 1 - e for the target, e spread over all tokens, arXiv:1512.00567', probability
        ] = 0.0,
        **kwargs: Unpack[XTransformerKeywords],
    ) -> None:
        super().__init__()
        encoder, decoder = self._split_flags(kwargs)
        self.cross_attn_tokens_dropout = cross_attn_tokens_dropout
        enc_wrapper, enc_stack = split_model_flags(encoder, TransformerWrapper)
        dec_wrapper, dec_stack = split_model_flags(decoder, TransformerWrapper)
        if tie_token_emb and encoder['num_tokens'] != decoder['num_tokens']:
            raise ConfigError('`tie_token_emb` needs equal `enc_num_tokens` and `dec_num_tokens`: there is one table')
        stack = Encoder(dim=dim, **enc_stack)
        self.encoder = TransformerWrapper(**enc_wrapper, return_only_embed=True, attn_layers=stack)
        if tie_token_emb:
            dec_wrapper['token_emb'] = self.encoder.token_emb
        net = TransformerWrapper(**dec_wrapper, attn_layers=Decoder(dim=dim, cross_attend=True, **dec_stack))
        loss: dict[str, Any] = dict(ignore_index=ignore_index, pad_value=pad_value, label_smoothing=label_smoothing)
        self.decoder = AutoregressiveWrapper(net, **loss)

    def given_now(self) -> dict[str, Any]:
        return {**self._given, 'enc_num_tokens': self.encoder.num_tokens, 'dec_num_tokens': self.decoder.net.num_tokens}

    @classmethod
    def accepted(cls) -> dict[str, Any]:
        sides = {'enc_': model_flags(Encoder, TransformerWrapper), 'dec_': model_flags(Decoder, TransformerWrapper)}
        return {**cls.arguments(), **{p + name: flag for p, flags in sides.items() for name, flag in flags.items()}}

    def _split_flags(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the keywords of the encoder and of the decoder, without their prefix."""
        accepted, strangers = self.accepted(), set()
        for p in ('enc_', 'dec_'):
            strangers |= {p + name for name in ('features', *flags_of_strangers(kwargs.get(f'{p}features')))}
        for name, value in kwargs.items():
            if name not in accepted and name not in strangers:
                hint = advice(name, accepted, value, type(self))
                raise ConfigError(f'unknown keyword `{name}` of XTransformer{hint}')
        for name in ('enc_num_tokens', 'enc_max_seq_len', 'dec_num_tokens', 'dec_max_seq_len'):
            if name not in kwargs:
                raise ConfigError(f'`{name}` is missing')
        enc, dec = ({n.removeprefix(p): v for n, v in kwargs.items() if n.startswith(p)} for p in ('enc_', 'dec_'))
        return enc, dec

    def encode(
        self, src: Tensor, mask: Tensor | None = None, attn_mask: Tensor | None = None, prefix: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the context for the decoder, and its mask."""
        given: dict[str, Any] = {} if attn_mask is None else {'attn_mask': attn_mask}
        context = self.encoder(src, mask=mask, prepend_embeds=prefix, **given)
        if prefix is not None and mask is not None:
            mask = F.pad(mask, (prefix.shape[1], 0), value=True)
        return context, mask

    @checked
    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        src_prepend_embeds: Tensor | None = None,
        *,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Return the next-token loss of the target.

        num_items_in_batch   divide the sum of the losses of targets by this number, so that batches add up
        """
        src = check_source(self.encoder, src, 'src')
        tgt, hidden = hidden_targets(check_target(self.decoder, tgt), tgt_mask, ignored_by(self.decoder))
        with AuxLosses() as aux:
            context, mask = self.encode(src, renamed_mask(mask, src_mask), attn_mask, src_prepend_embeds)
        if self.training and self.cross_attn_tokens_dropout > 0:
            context, mask = dropout_seq(context, mask, self.cross_attn_tokens_dropout)
        return loss_of_target(self.decoder, tgt, aux, num_items_in_batch, context=context, context_mask=mask, **hidden)

    @checked
    def generate(
        self,
        seq_in: Prompts,
        seq_out_start: Prompts,
        seq_len: int,
        mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue `seq_out_start` by up to `seq_len` tokens, given the source.

        Args:
            seq_in: Ids of the source, (b, n) or (n,), or lists of ids of unequal length.
            seq_out_start: Prompts of the decoder, as `AutoregressiveWrapper.generate` takes them.
            seq_len: Number of tokens to generate.
            mask: True for real tokens of the source, (b, n); also given as `src_mask`.
            attn_mask: Which tokens of the source attend to each other.
            **kwargs: `src_prepend_embeds`, and those of `AutoregressiveWrapper.generate`.
        """
        given = self.read_source(seq_in, mask, attn_mask, kwargs)
        return self.decoder.generate(seq_out_start, seq_len, **given, **kwargs)

    @checked
    def stream(
        self,
        seq_in: Prompts,
        seq_out_start: Prompts,
        seq_len: int,
        mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same arguments, one step at a time."""
        given = self.read_source(seq_in, mask, attn_mask, kwargs)
        return self.decoder.stream(seq_out_start, seq_len, **given, **kwargs)

    @checked
    def beam_search(
        self,
        seq_in: Prompts,
        seq_out_start: Prompts,
        seq_len: int,
        beams: int = 4,
        mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue `seq_out_start` with beam search, given the source, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        given = self.read_source(seq_in, mask, attn_mask, kwargs)
        return self.decoder.beam_search(seq_out_start, seq_len, beams, **given, **kwargs)

    @checked
    def score(self, src: Prompts, tgt: Prompts, lens: Any = None, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Return the log probabilities of the target tokens given the source: `AutoregressiveWrapper.score`."""
        given = self.read_source(src, mask, kwargs.pop('attn_mask', None), kwargs)
        return self.decoder.score(tgt, lens, **given, **kwargs)

    def read_source(self, src: Any, mask: Any, attn_mask: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the context of the decoder and its mask, and take what concerns the source out of `kwargs`."""
        refuse_context(kwargs)
        prefix, mask = kwargs.pop('src_prepend_embeds', None), renamed_mask(mask, kwargs.pop('src_mask', None))
        src, mask = source_rows(src, mask, 'seq_in', self.decoder)
        src = check_source(self.encoder, src, 'seq_in')
        with eval_modules(list(self.modules())):
            context, mask = self.encode(src, mask, attn_mask, prefix)
        return dict(context=context, context_mask=mask)


class EncoderDecoder(Configurable):
    """An encoder of any source, such as audio or images, with a decoder of text:  source, ids (b, m) -> loss.

    The decoder attends to the hidden states of the encoder, which is called with `return_embeddings`.

    Radford et al. 2022, arXiv:2212.04356 (Whisper)
    """

    def __init__(
        self,
        encoder: Annotated[nn.Module, 'model of the source, as ContinuousTransformerWrapper', instance_of(nn.Module)],
        decoder: Annotated[
            AutoregressiveWrapper, 'wrapper of a token model with `cross_attend`', instance_of(AutoregressiveWrapper)
        ],
    ) -> None:
        super().__init__()
        if not getattr(getattr(decoder.net, 'attn_layers', None), 'cross_attend', False):
            raise ConfigError('`decoder` must read the encoder: its stack needs `cross_attend=True`')
        self.encoder, self.decoder = encoder, decoder

    def encode(self, source: Tensor, mask: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Return the context for the decoder, and its mask."""
        if mask is not None:
            inputs['mask'] = mask = as_mask(mask, 'mask', *source.shape[:2], like=source)
        context = self.encoder(source, return_embeddings=True, **inputs)
        stem = getattr(self.encoder, 'conv_stem', None)
        return context, mask if mask is None or stem is None else stem.real(mask)

    @checked
    def forward(
        self,
        source: Tensor,
        tgt: Tensor,
        mask: Tensor | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Return the next-token loss of the target.

        source, mask, inputs   inputs of the encoder; `mask` (b n) is True except for padding
        tgt                    b m, ids; `ignore_index` where there is no loss
        num_items_in_batch     divide the sum of the losses of targets by this number, so that batches add up
        """
        tgt = check_target(self.decoder, tgt)
        with AuxLosses() as aux:
            context, mask = self.encode(source, mask, **inputs)
        return loss_of_target(self.decoder, tgt, aux, num_items_in_batch, context=context, context_mask=mask)

    @checked
    def generate(
        self,
        source: Prompts,
        start: Prompts,
        seq_len: int,
        mask: Tensor | None = None,
        *,
        encoder_inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue `start` (b m) by up to `seq_len` tokens, given the source, which may be lists of ids; the keywords
        of `AutoregressiveWrapper.generate`."""
        given = self.read_source(source, mask, encoder_inputs, kwargs)
        return self.decoder.generate(start, seq_len, **given, **kwargs)

    @checked
    def stream(
        self,
        source: Prompts,
        start: Prompts,
        seq_len: int,
        mask: Tensor | None = None,
        *,
        encoder_inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same arguments, one step at a time."""
        given = self.read_source(source, mask, encoder_inputs, kwargs)
        return self.decoder.stream(start, seq_len, **given, **kwargs)

    @checked
    def beam_search(
        self,
        source: Prompts,
        start: Prompts,
        seq_len: int,
        beams: int = 4,
        mask: Tensor | None = None,
        *,
        encoder_inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue `start` (b m) with beam search, given the source, with the arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        given = self.read_source(source, mask, encoder_inputs, kwargs)
        return self.decoder.beam_search(start, seq_len, beams, **given, **kwargs)

    @checked
    def score(
        self, source: Prompts, tgt: Prompts, lens: Any = None, mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Return the log probabilities of the target tokens given the source: `AutoregressiveWrapper.score`."""
        given = self.read_source(source, mask, kwargs.pop('encoder_inputs', None), kwargs)
        return self.decoder.score(tgt, lens, **given, **kwargs)

    def read_source(self, source: Any, mask: Any, inputs: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the context of the decoder and its mask."""
        refuse_context(kwargs)
        source, mask = source_rows(source, mask, 'source', self.decoder)
        with eval_modules(list(self.modules())):
            context, mask = self.encode(source, mask, **(inputs or {}))
        return dict(context=context, context_mask=mask)


def refuse_context(given: dict[str, Any]) -> None:
    """Take out what generation may not be given."""
    for name in ('context', 'context_mask'):
        if given.pop(name, None) is not None:
            raise ValueError(f'`{name}` cannot be given to generate: it comes from the source')

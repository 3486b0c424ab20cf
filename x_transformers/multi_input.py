"""Several streams of tokens side by side, such as note, duration and loudness: one model, a head for each."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates as LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_number, check_ids, checked
from x_transformers.core.model_calls import ModelCall, OutputRequest, open_model
from x_transformers.core.nets import SET_BY_GENERATION, SET_BY_LOSS, check_net, refuse_own
from x_transformers.core.own_modules import a_stack, gets_whole_input, known_stack
from x_transformers.features.derived import MEMBERS_OF_MODEL, sort_members
from x_transformers.features.embeddings import (
    AbsolutePositions,
    EmbFracGradient,
    MemoryTokens,
    PostEmbNorm,
    PrependEmbeds,
    Sinusoids,
    SumEmbeds,
    sizes,
)
from x_transformers.features.layer_positions import LayerPositionsInModel
from x_transformers.features.patterns import PatternsInModel
from x_transformers.features.resizing import grow
from x_transformers.features.untied import UntiedPositionsInModel
from x_transformers.features.windows import MemSameLength
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    Feature,
    boolean,
    count,
    format_value,
    instance_of,
    integer,
    is_int,
    is_number,
    none,
    number,
    probability,
    size,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import IncrementalModel, eval_modules
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.rules import GenerationHistory
from x_transformers.generation.sampling import padded_prompts, padded_rows, require, take_padding, top_k
from x_transformers.keywords import MultiInputTransformerWrapperKeywords, Unpack
from x_transformers.training.items import share_of_items
from x_transformers.training.layer_losses import Targets
from x_transformers.training.losses import mask_before_padding, readable, real_tokens, tell_padding
from x_transformers.training.token_loss import Readout, Terms, mean_token_loss, overheard, read_logits_later
from x_transformers.x_transformers import AttentionLayers as AttentionLayers, Wrapper

__all__ = ['MultiInputAutoregressiveWrapper', 'MultiInputTransformerWrapper']

MULTI_INPUT: tuple[type[Feature], ...] = (
    MemSameLength,
    LayerPositionsInModel,
    PatternsInModel,
    UntiedPositionsInModel,
    AbsolutePositions,
    Sinusoids,
    SumEmbeds,
    PostEmbNorm,
    PrependEmbeds,
    EmbFracGradient,
    MemoryTokens,
)

weights = Check(
    'a dict from names of streams to numbers of at least 0',
    lambda value: isinstance(value, Mapping) and all(is_number(v) and v >= 0 for v in value.values()),
)


def map_by_name(modules: Mapping[str, nn.Module]) -> nn.ModuleDict:
    try:
        return nn.ModuleDict(modules)
    except KeyError as error:
        raise ConfigError(f'`num_tokens` got a name that no stream can have: {error.args[0]}') from None


class MultiInputTransformerWrapper(Wrapper):
    """A model of several token streams around a stack:  name -> ids (b, n)  to  name -> logits (b, n, l).

    The embeddings of all streams are summed. Unlike in TransformerWrapper, the tables are initialized from N(0, 1).
    """

    catalogue = MULTI_INPUT

    def __init__(
        self,
        *,
        num_tokens: Annotated[Mapping[str, int], 'name -> vocabulary size of each stream', sizes],
        max_seq_len: Annotated[int | None, 'maximum length; 0, -1 or None: no absolute positions', integer | none],
        attn_layers: Annotated[AttentionLayers | nn.Module, 'stack of layers, such as `Decoder` or `Encoder`', a_stack],
        emb_dim: Annotated[int | None, 'width of the embeddings, that of the stack if None', size | none] = None,
        emb_dropout: Annotated[float, 'dropout probability of the embeddings', probability] = 0.0,
        return_only_embed: Annotated[bool, 'return embeddings, without output heads', boolean] = False,
        max_mem_len: Annotated[int, 'number of hidden states returned as memories (Transformer-XL)', count] = 0,
        shift_mem_down: Annotated[int, 'number n of layers: layer i gets the memories of layer i + n', count] = 0,
        attn_z_loss_weight: Annotated[float, 'weight of the z-loss of the attention logits', number] = 1e-4,
        features: Sequence[type[Feature]] | None = None,
        **flags: Unpack[MultiInputTransformerWrapperKeywords],
    ) -> None:
        super().__init__()
        if not num_tokens:
            raise ConfigError('`num_tokens` got no streams, there must be one at least')
        self.num_tokens, self.max_seq_len = dict(num_tokens), max(max_seq_len or 0, 0)
        self.dim, self.emb_dim = known_stack(attn_layers).dim, emb_dim or known_stack(attn_layers).dim
        self.l2norm_embed, self.return_only_embed = False, bool(return_only_embed)
        self.max_mem_len, self.shift_mem_down, self.attn_z_loss_weight = max_mem_len, shift_mem_down, attn_z_loss_weight
        self.attn_layers = attn_layers
        self.embeds = map_by_name({f'{name}_embed': nn.Embedding(v, self.emb_dim) for name, v in num_tokens.items()})
        self.features = self._compose(features, flags).setup()
        self.emb_dropout = nn.Dropout(emb_dropout)
        self.project_emb = nn.Linear(self.emb_dim, self.dim) if self.emb_dim != self.dim else nn.Identity()
        heads = {name: nn.Linear(self.dim, v, bias=False) for name, v in self.num_tokens.items()}
        self.to_logits: Any = None if return_only_embed else map_by_name(heads)
        sort_members(self, MEMBERS_OF_MODEL)

    def by_tokens(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules with a row for each token of a stream."""
        for name in self.num_tokens:
            yield f'embeds.{name}_embed', self.embeds[f'{name}_embed']
            if self.to_logits is not None:
                yield f'to_logits.{name}', self.to_logits[name]

    def resize_tokens(self, num_tokens: dict[str, int]) -> None:
        for name, new in num_tokens.items():
            grow(self.embeds[f'{name}_embed'], nn.Embedding(new, self.emb_dim))
            if self.to_logits is not None:
                grow(self.to_logits[name], nn.Linear(self.dim, new, bias=False))
        self.num_tokens = dict(num_tokens)

    @checked
    def forward(
        self,
        x: Mapping[str, Tensor],
        return_embeddings: bool = False,
        return_logits_and_embeddings: bool = False,
        return_intermediates: bool = False,
        mask: Tensor | None = None,
        return_mems: bool = False,
        return_attn: bool = False,
        mems: Sequence[Tensor | None] | None = None,
        *,
        detach_mems: bool = True,
        return_attn_z_loss: bool = False,
        attn_z_loss_weight: float | None = None,
        return_logit_entropies: bool = False,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool = False,
        return_readout: bool = False,
        **kwargs: Any,
    ) -> Any:
        check_streams(x, self.num_tokens)
        wants_logits = return_logits_and_embeddings or return_logit_entropies
        if wants_logits and self.to_logits is None:
            raise ValueError('logits were asked for, but the model was built with `return_only_embed=True`')
        asked = (return_logit_entropies, return_attn_z_loss, attn_z_loss_weight)
        request = OutputRequest(return_intermediates, return_mems, return_attn, detach_mems, *asked)
        if return_embeddings and return_logits_and_embeddings:
            raise ValueError('`return_embeddings` and `return_logits_and_embeddings` were both given, set only one')
        call = open_model(self, next(iter(x.values())), mask, cache, input_not_include_cache, kwargs)
        h = call.embed_tokens(self, dict(x), lambda given: self._embed(given, call))
        mems = self.shifted(mems)
        call.maps_apart = request.mems_alone
        h = call.features.apply('pool', self.run_stack(h, call, mask, mems, request.keeps, kwargs), call)
        logits = None
        if wants_logits or not (return_embeddings or self.return_only_embed):
            read = functools.partial(Readout.through, h) if return_readout else lambda head: head(h)
            logits = {name: read(head) for name, head in self.to_logits.items()}
            call.intermediates.logits = None if return_readout else logits
        only_embed = return_embeddings or self.return_only_embed
        out = (logits, h) if return_logits_and_embeddings else h if only_embed else logits
        return self.returned(out, request, call, mems, logits, h)

    @property
    def can_return_readout(self) -> bool:
        """Return True if a loss may read the hidden states itself, with `return_readout`: the output has no hooks."""
        own = type(self).forward is MultiInputTransformerWrapper.forward
        own = own and all(feature.by_token for feature in self.features.by_stage.get('model_output', ()))
        return own and self.to_logits is not None and not overheard(self)

    def _embed(self, x: dict[str, Tensor], call: ModelCall) -> Tensor:
        """Sum the embeddings of the streams, positions and further inputs, and bring them to the width of the stack."""
        call.like_tokens = next(iter(x.values()))
        streams = sum(self.embeds[f'{name}_embed'](x[name].long()) for name in self.num_tokens)
        total: Any = sum(call.features.collect('embed', call), streams)
        embeds = call.zero_hidden_tokens(total)
        h = call.features.apply('embedded', embeds, call)
        call.intermediates.initial_embeds = h
        return self.project_emb(self.emb_dropout(h))

    def describe(self) -> dict[str, str]:
        names = ', '.join(self.num_tokens)
        heads = 'embeddings' if self.to_logits is None else f'logits of {names}'
        return {
            'embed': f'ids of {names}, each (b n) -> (b n {self.emb_dim})',
            'readout': f'(b n {self.dim}) -> {heads}',
        }


def check_names(x: Any, name: str, known: Mapping[str, int]) -> None:
    if not isinstance(x, Mapping):
        raise TypeError(f'`{name}` must be a dict from names of streams to ids, got {format_value(x)}')
    if set(x) != set(known):
        raise ValueError(f'`{name}` must have {sorted(known)}, got streams {sorted(x)}')


def check_streams(x: Any, known: Mapping[str, int], name: str = 'x', ignored: int | None = None) -> tuple[int, int]:
    """Return the size of the streams. Raise if they are not batches of ids of equal size."""
    check_names(x, name, known)
    for stream, ids in x.items():
        check_ids(ids, f'{name}[{stream!r}]', 0, known[stream], besides=ignored)
    shapes = {stream: tuple(ids.shape) for stream, ids in x.items()}
    first = next(iter(shapes.values()))
    if any(shape != first for shape in shapes.values()):
        raise ValueError(f'`{name}` got streams of different sizes: {shapes}')
    return first


# training and generation


class Outputs(NamedTuple):
    """What `return_outputs` gives beside the loss: the loss of each stream, its logits (b n-1 l), and intermediates."""

    losses: dict[str, Tensor]
    logits: dict[str, Tensor]
    intermediates: LayerIntermediates


class Side:
    """A model of streams as one of stacked ids, for `IncrementalModel`:  b n s -> b n (l1 + l2 + ...)"""

    def __init__(self, net: Any) -> None:
        self.net, self.names = net, tuple(net.num_tokens)
        self.max_seq_len, self.can_cache_kv = net.max_seq_len, net.can_cache_kv
        self.can_cache_kv_outside_max_seq_len = net.can_cache_kv_outside_max_seq_len
        self.reads_whole = gets_whole_input(net)
        self.can_pad_left = net.can_pad_left

    def __call__(self, ids: Tensor, return_intermediates: bool = False, **kwargs: Any) -> Any:
        x = dict(zip(self.names, ids.unbind(dim=-1), strict=True))
        out = self.net(x, return_intermediates=return_intermediates, **kwargs)
        logits, intermediates = out if return_intermediates else (out, None)
        joined = torch.cat([logits[name] for name in self.names], dim=-1)
        return (joined, intermediates) if return_intermediates else joined


class MultiInputAutoregressiveWrapper(Configurable):
    """A causal model of several token streams with its next-token loss, and generation.

        loss = sum over streams of weight * mean cross entropy of each token given all streams before it

    With weights of 1 this is the negative log-likelihood of a step, with independently sampled streams. The
    wrapper has no parameters; those of the model are stored under `net.`.
    """

    net: Any

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal MultiInputTransformerWrapper', instance_of(MultiInputTransformerWrapper)],
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'padding id, input for `ignore_index` and before shorter prompts', integer] = 0,
        loss_weights: Annotated[Mapping[str, float] | None, 'name -> loss weight, 1 by default', weights | none] = None,
        add_attn_z_loss: Annotated[bool, 'add the z-loss of the attention logits to the loss', boolean] = False,
    ) -> None:
        super().__init__()
        check_net(net)
        self.net, self.max_seq_len = net, net.max_seq_len
        self.ignore_index, self.pad_value, self.add_attn_z_loss = ignore_index, pad_value, bool(add_attn_z_loss)
        streams: Any = net.num_tokens
        unknown = set(loss_weights or {}) - set(streams)
        if unknown:
            raise ConfigError(f'`loss_weights` got the streams {sorted(unknown)}, the net has {sorted(streams)}')
        self.loss_weights = {**dict.fromkeys(streams, 1.0), **(loss_weights or {})}

    @checked
    def forward(
        self,
        x: Mapping[str, Tensor],
        return_outputs: bool = False,
        prepend_embeds: Tensor | None = None,
        lens: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of predicting each step of `x` from those before it, in nats.

        x               name -> b n   ids, n of at least 2; `ignore_index` where there is no target
        return_outputs                also return `Outputs(losses, logits, intermediates)`
        prepend_embeds  b p e         vectors that are prepended to the tokens, without targets
        lens            b             number of steps of each sequence; later ones are padding
        num_items_in_batch            divide the sum of the losses of each stream by this number, that of the steps
                                      of several batches, so that their losses add up
        **kwargs                      passed to the model: `context`, ..., and `mask` (b n), True except for
                                      padding, which is neither a target nor used for predictions
        returns                       scalar; a stream without targets adds 0
        raises                        ValueError or TypeError for inputs of another shape or kind
        """
        b, n = check_streams(x, self.net.num_tokens, ignored=self.ignore_index)
        if n < 2:
            raise ValueError(f'`x` got streams of the shape {(b, n)}, n must be at least 2')
        refuse_own(kwargs, 'the loss', SET_BY_LOSS)
        x = {name: x[name].long() for name in self.net.num_tokens}
        token_mask = real_tokens(next(iter(x.values())), kwargs.get('mask'), lens, kwargs.get('seq_start_pos'))
        if token_mask is not None:
            x = {name: ids.masked_fill(~token_mask, self.ignore_index) for name, ids in x.items()}
        if lens is not None and kwargs.get('mask') is not None:
            kwargs['mask'] = token_mask
        if prepend_embeds is not None:
            kwargs['prepend_embeds'] = prepend_embeds
        wanted = return_outputs or self.add_attn_z_loss
        begun = functools.partial(mask_before_padding, ignore_index=self.ignore_index)
        some = lambda: functools.reduce(torch.logical_or, map(begun, x.values()))  # noqa: E731
        tell_padding(self.net, kwargs, some, self.add_attn_z_loss)
        ids = {name: readable(t, self.ignore_index, self.pad_value) for name, t in x.items()}
        asked = dict(return_intermediates=wanted, return_attn_z_loss=self.add_attn_z_loss)
        with AuxLosses() as aux:
            out = self.net(ids, **asked, **kwargs, **({} if return_outputs else read_logits_later(self.net)))
        intermediates: Any = None
        if wanted:
            out, intermediates = out
        logits = {name: t[:, t.shape[1] - n : -1] for name, t in out.items()}  # or readouts
        targets = {name: Targets(x[name], self.ignore_index, token_mask).of()[:, :-1] for name in logits}
        terms = Terms(self.ignore_index, num_items=num_items_in_batch)
        losses = {name: mean_token_loss(t, targets[name], terms) for name, t in logits.items()}
        loss: Any = sum(self.loss_weights[name] * one for name, one in losses.items())
        share: Any = 1
        if num_items_in_batch is not None:
            steps = functools.reduce(torch.logical_or, [t != self.ignore_index for t in targets.values()])
            share = share_of_items(steps, num_items_in_batch)
        if self.add_attn_z_loss:
            loss = loss + intermediates.attn_z_loss * share
        loss = aux.added_to(loss, share)
        return (loss, Outputs(losses, logits, intermediates)) if return_outputs else loss

    @checked
    def generate(
        self,
        prompts: Mapping[str, Any],
        seq_len: int,
        temperature: float = 1.0,
        prompt_lens: Tensor | Sequence[int] | None = None,
        filter_logits_fn: Any = top_k,
        restrict_to_max_seq_len: bool = True,
        filter_kwargs: Any = None,
        cache_kv: bool = True,
        generator: Generator | None = None,
        slide_cache: bool = True,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Continue all streams by `seq_len` steps. Without gradients, in eval mode.

        prompts           name -> [b] n   ids, n of at least 1
        seq_len                           number of steps to generate
        temperature       0 ..            0 selects the most probable token of each stream, without a filter
        prompt_lens       b               number of steps of each prompt, if it is padded on the right
        filter_logits_fn                  filter of `generation/sampling.py` by name, a callable, or several
        filter_kwargs                     its keywords, or a dict for each of several
        restrict_to_max_seq_len           use only the last `max_seq_len` steps
        cache_kv                          use the KV cache, if the model supports it
        slide_cache                       past `max_seq_len`, keep the cache of the last steps, as if attention had a
                                          window of so many; else read them again each time
        generator                         random number generator, on the device of the model
        **kwargs                          the other options of `AutoregressiveWrapper.generate` that choose a token or
                                          end a row, for all streams or as a dict by name of the stream; a row ends
                                          when a stream does. Further ones are passed to every call of the model:
                                          `context`, ..., and a `mask` of the prompts
        returns           name -> [b] s   the new tokens only; `pad_value` behind the end of a row
        raises                            ValueError or TypeError for arguments out of range
        """
        seq_len = as_number(seq_len)
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        own: Any = dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        own |= {name: kwargs.pop(name) for name in list(kwargs) if name in TokenSampler.own_names()}
        refuse_own(kwargs, 'generate', SET_BY_GENERATION)
        names = tuple(self.net.num_tokens)
        check_names(prompts, 'prompts', self.net.num_tokens)
        choices = [self.choice_of(name, own | dict(generator=generator)) for name in names]
        rows, prompt_lens = self.rows_of(prompts, prompt_lens)
        alone = all(ids.ndim == 1 for ids in rows.values())
        rows = {name: ids.unsqueeze(0) if alone else ids for name, ids in rows.items()}
        _, n = check_streams(rows, self.net.num_tokens, 'prompts')
        require(n >= 1, 'prompts', f'{n} steps', 'one step at least')
        prompt_lens, left_pad = take_padding(rows[names[0]], prompt_lens, kwargs)
        padded = [padded_prompts(rows[name], prompt_lens, self.pad_value) for name in names]
        sequence, pads = torch.stack([ids for ids, _, _ in padded], dim=-1), padded[0][1]
        pads = pads if left_pad is None else left_pad
        start = sequence.shape[1]
        sequence = F.pad(sequence, (0, 0, 0, seq_len), value=self.pad_value)
        failed = {name: FailedRows(name=f'stream {name!r}, row') for name in names}
        widths = [self.net.num_tokens[name] for name in names]
        options: Any = dict(cache_kv=cache_kv, restrict=restrict_to_max_seq_len, slides=slide_cache)
        reader = IncrementalModel(Side(self.net), kwargs, **options)
        endings = [choice.endings.to(sequence.device) for choice in choices]
        ends, ended, place = any(endings), torch.zeros(len(sequence), dtype=torch.bool, device=sequence.device), start
        with eval_modules(list(self.modules())):
            while place < start + seq_len and not (ends and failed[names[0]].read(ended.all())):
                logits = reader.read(sequence[:, :place], pads).split(widths, dim=-1)
                before = ended
                for at, (name, one, choice) in enumerate(zip(names, logits, choices, strict=True)):
                    history = GenerationHistory(sequence[:, :place, at], start, pads, kwargs.get('mask'), seq_len)
                    tokens, largest = choice.draw(choice.process_logits(one, history))
                    failed[name].add(largest, before if ends else None)
                    sequence[:, place, at] = tokens.masked_fill(before, self.pad_value) if ends else tokens
                place += 1
                for at, one in enumerate(endings) if ends else ():
                    tail = sequence[:, max(start, place - one.width) : place, at]
                    ended = ended | (one.reasons(tail, place - start) > 0)
        for rows in failed.values():
            rows.raise_first()
        new = dict(zip(names, sequence[:, start:place].unbind(dim=-1), strict=True))
        return {name: ids.squeeze(0) if alone else ids for name, ids in new.items()}

    def choice_of(self, stream: str, options: dict[str, Any]) -> TokenSampler:
        """Return how the tokens of a stream are chosen, from options for all streams or by name of a stream."""
        own = {}
        for name, value in options.items():
            named = isinstance(value, Mapping) and len(value) > 0 and all(isinstance(one, str) for one in value)
            if named and set(value) <= set(self.net.num_tokens):
                if stream in value:
                    own[name] = value[stream]
            elif named and name != 'filter_kwargs':
                raise ValueError(f'`{name}` got {list(value)}, the streams are {list(self.net.num_tokens)}')
            else:
                own[name] = value
        never = (self.ignore_index,) if self.ignore_index >= 0 else ()
        size = self.net.num_tokens[stream]
        return TokenSampler(**own, never_chosen=never, vocabulary=size, num_logits=size)

    def rows_of(self, prompts: Mapping[str, Any], prompt_lens: Any) -> tuple[dict[str, Tensor], Any]:
        """Return ids by stream, padded on the right if they are lists of unequal length, and their lengths (b)."""
        device = next(self.net.parameters()).device
        padded = {name: padded_rows(prompts[name], name, self.pad_value, device) for name in self.net.num_tokens}
        rows = {name: ids for name, (ids, _) in padded.items()}
        masks = [token_mask for _, token_mask in padded.values() if token_mask is not None]
        if not masks:
            return rows, prompt_lens
        if prompt_lens is not None:
            raise ValueError('`prompt_lens` cannot be given with lists of prompts, which have their own lengths')
        if len(masks) < len(rows) or not all(torch.equal(masks[0], token_mask) for token_mask in masks):
            raise ValueError('`prompts` got lists of other lengths in some streams, each row needs one length')
        return rows, masks[0].sum(dim=-1)

"""`GeneratesText`, the methods of `AutoregressiveWrapper` that generate text, and that score given texts."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, cast, overload

import numpy as np
import torch
from einops import rearrange
from torch import Generator, Tensor, nn

from x_transformers.compat.helpers import cast_tuple, identity
from x_transformers.core.checks import Method, as_mask, as_number, check_ids, checked, values_of
from x_transformers.core.modes import maps_apart
from x_transformers.core.nets import SET_BY_GENERATION, SET_BY_LOSS, check_net, refuse_own
from x_transformers.flags import format_value, is_int, is_number, warn_once
from x_transformers.flags.unexpected import answering_steps
from x_transformers.generation.batching import Paged, Requests
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import AuxiliaryLogits, Beams, Decoding, Generated, IncrementalModel, eval_modules
from x_transformers.generation.exits import blocks_of_draft, check_looped_exits
from x_transformers.generation.guidance import Guidance
from x_transformers.generation.prompt_cache import PromptCache
from x_transformers.generation.sampling import (
    contrastive_decode_fn,
    new_tokens_of,
    padded_rows,
    read_prompts,
    require,
    to_float,
    top_k,
)
from x_transformers.generation.speculative import speculation
from x_transformers.keywords import BeamSearchInputs, GenerateInputs, StreamInputs, Unpack
from x_transformers.training.layer_losses import Targets

# Ids of any leading axes as a tensor, an array or lists of them; prompts may be of unequal length.
Prompts = Tensor | np.ndarray | Sequence[Any] | None


def _with_old_spellings(fn: Method) -> Method:
    """Accept `start_tokens` for `prompts` and `filter_thres` for `filter_kwargs`, with a warning."""

    @functools.wraps(fn)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        if 'start_tokens' in kwargs:
            warn_once('`start_tokens` is now `prompts`, the old name will be removed')
            kwargs['prompts'] = kwargs.pop('start_tokens')
        if 'filter_thres' in kwargs:
            warn_once('`filter_thres` is now `filter_kwargs = dict(thres = ...)`, the old name will be removed')
            kwargs['filter_kwargs'] = {'thres': kwargs.pop('filter_thres'), **(kwargs.get('filter_kwargs') or {})}
        return fn(self, *args, **kwargs)

    return cast(Method, inner)


def _amateurs_with(models: Any, contrasts: Any) -> list[tuple[nn.Module, dict[str, float]]]:
    """Each amateur's net with its keywords for the contrast."""
    models = () if models is None else cast_tuple(tuple(models) if isinstance(models, list) else models)
    contrasts = cast_tuple({} if contrasts is None else contrasts, len(models))
    if len(contrasts) != len(models):
        counts = f'`contrastive_decode_kwargs` holds {len(contrasts)} dicts for {len(models)} amateurs'
        raise ValueError(f'{counts}, give one for all or one for each')
    nets = [model.net if isinstance(model, GeneratesText) else model for model in models]
    for net in nets:
        check_net(net)
    return list(zip(nets, contrasts, strict=True))


def refuse_entmax(wrapper: Any, choice: TokenSampler) -> None:
    """Raise ValueError for contrastive decoding of a distribution other than the softmax."""
    used = choice.places_of_entmax or None
    for name, value in (('entmax_loss_alpha', getattr(wrapper, 'entmax_loss_alpha', None)), ("'entmax'", used)):
        if value is not None:
            raise ValueError(f'`amateur_model` cannot be combined with `{name}`: the contrast is one of softmaxes')


def first_device(net: nn.Module) -> torch.device | None:
    """Return the device of the first parameter, to which ids go that are on none; None if there is no parameter."""
    return next((parameter.device for parameter in net.parameters()), None)


class GeneratesText:
    """Generation from prompts, for a wrapper with a `net` that predicts the next token of ids (b, n)."""

    net: Any
    pad_value: int
    ignore_index: int
    modules: Callable[[], Iterator[nn.Module]]
    _split: Callable[..., tuple[Tensor, Tensor, Tensor | None]]

    @overload
    def generate(
        self,
        prompts: Prompts,
        seq_len: int,
        eos_token: int | Sequence[int] | None = ...,
        temperature: float = ...,
        *,
        return_intermediates: Literal[False] = ...,
        return_log_probs: Literal[False] = ...,
        return_finish_reasons: Literal[False] = ...,
        **options: Unpack[GenerateInputs],
    ) -> Tensor: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        seq_len: int,
        eos_token: int | Sequence[int] | None = ...,
        temperature: float = ...,
        *,
        return_intermediates: Literal[True],
        **options: Unpack[GenerateInputs],
    ) -> tuple[Tensor, Any]: ...
    @overload
    def generate(
        self,
        prompts: Prompts,
        seq_len: int,
        eos_token: int | Sequence[int] | None = ...,
        temperature: float = ...,
        *,
        return_intermediates: bool = ...,
        return_log_probs: bool = ...,
        return_finish_reasons: bool = ...,
        **options: Unpack[GenerateInputs],
    ) -> Generated: ...

    @_with_old_spellings
    @checked
    def generate(
        self,
        prompts: Prompts, seq_len: int,
        eos_token: int | Sequence[int] | None = None, temperature: float = 1.0,
        prompt_lens: Tensor | Sequence[int] | None = None, filter_logits_fn: Any = top_k,
        restrict_to_max_seq_len: bool = True, amateur_model: nn.Module | tuple[nn.Module, ...] | None = None,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        contrastive_decode_kwargs: dict[str, float] | tuple[dict[str, float], ...] | None = None,
        cache_kv: bool = True, return_intermediates: bool = False, generator: Generator | None = None, *,
        return_log_probs: bool = False, return_finish_reasons: bool = False, kv_storage: Paged | None = None,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Continue the prompts by `seq_len` tokens. Without gradients, in eval mode.

            prompts           ... n   ids with any leading axes, or a list of 1-D tensors of unequal length
            seq_len                   number of tokens to generate; fewer if all sequences end before
            eos_token                 id that ends a sequence, or several ids. It is kept and followed by `pad_value`.
                                      It has no effect in the prompt
            stop_sequences            sequences of ids; a text ends when it has generated one, which is kept
            temperature       0 ..    0 selects the most probable token, without a filter
            prompt_lens       ...     number of tokens of each prompt, if it is padded on the right
            filter_logits_fn          a filter of `sampling.py` by name, a callable, or several; not used with amateurs
            filter_kwargs             its keyword arguments, or a dict for each of several
            repetition_penalty, presence_penalty, frequency_penalty, logit_bias, banned_tokens, allowed_tokens,
            logits_processor          change the logits before the filter, in this order: see `TokenSampler` in
                                      `choice.py`
            num_samples       1 ..    number of continuations per prompt; the tokens get an axis before the last
            restrict_to_max_seq_len   use only the last `max_seq_len` tokens
            amateur_model             weaker models for contrastive decoding, arXiv:2309.09117
            contrastive_decode_kwargs `alpha` and `beta`, the same for all amateurs, or a dict for each
            cond_scale        0 ..    classifier-free guidance: logits u + scale (c - u), where u are the logits with
                                      `negative_prompts` (... n, of the same lengths) instead of the prompts,
                                      `negative_context` (b m d) instead of the context, or both; 1 for no guidance,
                                      arXiv:2207.12598
            cache_kv                  use the KV cache, if the model supports it
            slide_cache               past `max_seq_len`, keep the cache of the last tokens, or recompute them: below
            prompt_cache              result of `read_prompt`; the prompts begin with its tokens, or are None
            callback                  called with the tokens of each step
            looped_inference          for looped models and a batch of 1: generated tokens may exit early, as decided by
                                      the gate; otherwise all tokens run all passes
            compile                   True, or a backend of `torch.compile`: compile the steps with a cache, for any
                                      length; the first call compiles and is slow
            generator                 random number generator, on the device of the model
            kv_storage                `Paged(num_blocks)`: store the cache in blocks of one pool, and share blocks of
                                      equal prefixes, such as those of `num_samples`; each sequence samples separately
            return_intermediates      also return the last intermediates of the model; None without a cache
            return_log_probs          return `Generated`, with the log probabilities of the tokens, in nats, under the
                                      model, before its logits are changed
            return_finish_reasons     return `Generated`, with the reason why each text ended: 'eos', 'stop', 'length'
            **kwargs                  passed to every call of the model: `context`, ..., and a `mask` of the prompts,
                                      which is extended with True, or `pos`, their positions, which are counted on
            returns           ... s   the new tokens only
            raises                    ValueError or TypeError for arguments out of range

        Past `max_seq_len` the oldest tokens are evicted from the cache. Keys of deeper layers still depend on them, so
        that the result is that of attention with a window, `attn_max_attend_past=max_seq_len - 1`. Without a cache, or
        with `slide_cache=False`, the last `max_seq_len` tokens are recomputed at each step, and only they matter.
        """
        own: Any = dict(
            eos_token=eos_token, prompt_lens=prompt_lens, cache_kv=cache_kv,
            restrict_to_max_seq_len=restrict_to_max_seq_len, amateur_model=amateur_model,
            contrastive_decode_kwargs=contrastive_decode_kwargs, temperature=temperature,
            filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs, generator=generator, **kwargs,
        )  # fmt: skip
        if kv_storage is not None:
            own |= dict(return_intermediates=return_intermediates, return_log_probs=return_log_probs)
            made = Requests(self, kv_storage, prompts, seq_len, own).finish()
            return made if return_finish_reasons else made.tokens
        decoding = self.decoding(prompts, seq_len, **own)
        decoding.wants_log_probs = return_log_probs
        decoding.expert.keeps = 'all' if return_intermediates else 'past'
        decoding.finish()
        made = decoding.result(return_finish_reasons, return_intermediates)
        if return_log_probs or return_finish_reasons:
            return made
        return (made.tokens, made.intermediates) if return_intermediates else made.tokens

    @_with_old_spellings
    @checked
    def stream(
        self,
        prompts: Prompts,
        seq_len: int,
        eos_token: int | Sequence[int] | None = None,
        temperature: float = 1.0,
        *,
        kv_storage: Paged | None = None,
        **options: Unpack[StreamInputs],
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same keyword arguments, one step at a time.

        Each step yields tokens `(b,)`, or with the leading axes of the prompts. Between the steps, the model is in its
        previous mode (training or evaluation).
        """
        own: Any = {'eos_token': eos_token, 'temperature': temperature, **options}
        if kv_storage is not None:
            refuse_own(own, 'generate', SET_BY_GENERATION)
            return Requests(self, kv_storage, prompts, seq_len, own).stream()
        state = self.decoding(prompts, seq_len, **own)
        return answering_steps(state.run(), self, GeneratesText.stream, options)

    def decoding(
        self,
        prompts: Prompts,
        seq_len: int,
        *,
        prompt_lens: Tensor | Sequence[int] | None = None,
        num_samples: int | None = None,
        restrict_to_max_seq_len: bool = True,
        amateur_model: nn.Module | tuple[nn.Module, ...] | None = None,
        contrastive_decode_kwargs: dict[str, float] | tuple[dict[str, float], ...] | None = None,
        cache_kv: bool = True,
        slide_cache: bool = True,
        prompt_cache: PromptCache | None = None,
        callback: Callable[[Tensor], Any] | None = None,
        compile: bool | str = False,
        **options: Any,
    ) -> Decoding:
        """The state of a generation before its first step. The keywords are those of `generate`."""
        inputs, seq_len, num_samples = dict(options), as_number(seq_len), as_number(num_samples)
        choice = TokenSampler.for_wrapper(self, inputs)
        guidance = Guidance.taken_from(inputs)
        refuse_own(inputs, 'generate', SET_BY_GENERATION)
        several = num_samples is None or (is_int(num_samples) and num_samples >= 1)
        require(several, 'num_samples', num_samples, 'an integer of at least 1, or None')
        require(callback is None or callable(callback), 'callback', callback, 'a callable, or None')
        ids, pads, leading = self.opening(prompts, prompt_lens, seq_len, inputs, prompt_cache)
        seq_len = new_tokens_of(seq_len, ids.shape[1])
        if pads is not None and inputs.get('pos') is not None and getattr(self.net, 'has_absolute_positions', False):
            raise ValueError(
                '`pos` cannot be combined with padding here: absolute positions count from the first real token'
            )
        if prompt_cache is not None:
            inputs = prompt_cache.inputs_for(self, ids, pads, inputs, cache_kv)
        check_looped_exits(self.net, inputs, len(ids) * (num_samples or 1), cache_kv)
        reading = dict(cache_kv=cache_kv, restrict=restrict_to_max_seq_len, slides=slide_cache)
        reader = functools.partial(IncrementalModel, inputs=inputs, **reading)
        expert = reader(self.net, step=self.compiled_net(compile) if compile else None)
        if prompt_cache is not None:
            prompt_cache.resume(expert, len(ids))

        amateurs = _amateurs_with(amateur_model, contrastive_decode_kwargs)
        if amateurs:  # which leave tokens out themselves
            refuse_entmax(self, choice)
            choice.keep = None
        beside = [
            AuxiliaryLogits(reader(net), functools.partial(contrastive_decode_fn, **own)) for net, own in amateurs
        ]
        if guidance.is_on:
            against, opening = guidance.against(inputs, ids, pads, leading, prompt_lens)
            beside.insert(0, AuxiliaryLogits(reader(self.net, inputs=against), guidance.guided, opening))
        models = (self, *(amateur for amateur, _ in amateurs))
        modules = [module for model in models for module in model.modules()]
        leading = leading if num_samples is None else torch.Size((*leading, num_samples))
        return Decoding.from_prompts(
            expert, choice, modules, ids, leading, seq_len, self.pad_value, pads,
            beside=beside, samples=num_samples or 1, callback=callback,
        )  # fmt: skip

    @classmethod
    def option_names(cls, method: str) -> set[str]:
        """Return the keywords that a way to generate takes, besides its parameters and the inputs of the net."""
        shared = {'eos_token', 'stop_sequences', 'prompt_lens', 'cache_kv', 'restrict_to_max_seq_len', 'slide_cache'}
        if method == 'speculative':
            return TokenSampler.own_names() | shared
        if method not in ('generate', 'stream'):
            return TokenSampler.own_names() if method == 'beam_search' else set()
        decoding = {p.name for p in inspect.signature(cls.decoding).parameters.values() if p.kind is p.KEYWORD_ONLY}
        return TokenSampler.own_names() | {field.name for field in fields(Guidance)} | decoding

    def compiled_net(self, backend: Any) -> Callable[..., Any]:
        """The net, compiled for any length by a backend of torch; the default one if True. Compiled once."""
        backend = 'inductor' if backend is True else backend
        known = torch.compiler.list_backends(None)
        words = f'True, False, or a backend of torch.compile: {", ".join(known)}'
        require(isinstance(backend, str) and backend in known, 'compile', backend, words)
        net, compiled = self.__dict__.setdefault('compiled', {}).get(backend, (None, None))
        if net is not self.net:
            compiled = torch.compile(self.net, dynamic=True, backend=backend)
            self.__dict__['compiled'][backend] = (self.net, compiled)
        return compiled

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: without what was compiled."""
        return {name: value for name, value in self.__dict__.items() if name != 'compiled'}

    def opening(
        self,
        prompts: Any,
        prompt_lens: Any,
        seq_len: Any,
        inputs: dict[str, Any],
        prompt_cache: PromptCache | None = None,
    ) -> tuple[Tensor, Tensor | None, torch.Size]:
        """Return the prompts as ids (b, t) padded on the left, their paddings (b) if any, and leading axes, checked.

        A `mask` that hides padding at one side of the prompts is taken out of `inputs`.
        """
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        known = prompt_cache is None or isinstance(prompt_cache, PromptCache)
        require(known, 'prompt_cache', prompt_cache, 'what `read_prompt` gave')
        if prompt_cache is None:
            return read_prompts(prompts, prompt_lens, self.pad_value, inputs, first_device(self.net))
        if prompts is None:
            return prompt_cache.ids, prompt_cache.pads, torch.Size(prompt_cache.leading)
        ids, pads, leading = read_prompts(prompts, prompt_lens, self.pad_value, {}, first_device(self.net))
        return ids, prompt_cache.pads_of(ids) if pads is None else pads, leading

    @checked
    def read_prompt(
        self,
        prompts: Prompts,
        prompt_lens: Tensor | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> PromptCache:
        """Prefill prompts once, for several continuations:  `generate(prompts, ..., prompt_cache=...)`.

        prompts           ... n   as in `generate`, like `prompt_lens`
        **kwargs                  passed to the model, here and in every continuation
        returns                   a `PromptCache`, which can be saved to a file
        raises                    ValueError if the model cannot cache, or the prompts exceed its `max_seq_len`
        """
        return PromptCache.of(self, prompts, prompt_lens, kwargs)

    @_with_old_spellings
    @checked
    def speculative(
        self,
        prompts: Prompts,
        seq_len: int,
        draft: nn.Module | int | str | None = None,
        num_draft_tokens: int = 4,
        *,
        max_ngram: int = 3,
        draft_kwargs: dict[str, Any] | None = None,
        return_stats: bool = False,
        **options: Any,
    ) -> Any:
        """Generate by speculative decoding: verify several drafted tokens in one forward pass. See `speculative.py`.

        prompts           ... n   as in `generate`, like the keywords that are not named here
        draft                     draft model with the same vocabulary; or a number of blocks of the model itself, which
                                  draft; or 'mtp' for its modules of multi-token prediction, see `mtp_depth`; or None
                                  for prompt lookup: the tokens that followed the last ones earlier in the sequence
        num_draft_tokens  1 ..    number of drafted tokens per step
        max_ngram         1 ..    without a draft model: maximum number of last tokens that are looked up
        draft_kwargs              keyword arguments of the draft model; those of the model if None
        return_stats              return `(tokens, SpeculativeStats)`
        returns           ... s   at temperature 0 the tokens of `generate`, else tokens with the same distribution
        raises                    ValueError or TypeError for arguments out of range
        """
        exits = None
        if draft is not None and draft != 'mtp' and not isinstance(draft, nn.Module):
            draft, exits = self.net, self.exits_of_draft(draft, options)
        state = speculation(self, prompts, seq_len, draft, num_draft_tokens, max_ngram, draft_kwargs, options, exits)
        with eval_modules(state.modules):
            tokens = state.run()
        return (tokens, state.stats) if return_stats else tokens

    def exits_of_draft(self, draft: Any, options: dict[str, Any]) -> dict[str, Any]:
        """The keywords by which the net drafts for itself, from the `options` of `speculative`."""
        return blocks_of_draft(self.net, draft)

    @checked
    def score(self, ids: Prompts, lens: Any = None, **kwargs: Any) -> Tensor:
        """Return the log probability of each token of given texts after the tokens before it. Without gradients, in
        eval mode.

        Args:
            ids: Ids with any leading axes, (... n), or lists of ids of unequal length.
            lens: Number of tokens of each text, if it is padded on the right.
            **kwargs: Inputs of the model: `context`, ..., and a `mask` (b, n), True except for padding.

        Returns:
            Log probabilities in nats, (... n - 1), of the tokens from the second on; 0 for padding, for `ignore_index`,
            and behind padding.

        Raises:
            ValueError or TypeError: For inputs of another shape or kind.
        """
        given, token_mask = padded_rows(ids, 'ids', self.pad_value, first_device(self.net))
        if given.ndim == 0:
            raise ValueError(f'`ids` must have one axis or more, got {format_value(given)}')
        if token_mask is not None and lens is not None:
            raise ValueError('`lens` cannot be given with lists of ids, which have their own lengths')
        x = check_ids(given.reshape(given.shape[:-1].numel(), given.shape[-1]), 'ids', 1)
        lens = token_mask.sum(dim=-1) if token_mask is not None else lens
        lens = None if lens is None else values_of(lens, 'lens').to(x.device).flatten()
        refuse_own({name: value for name, value in kwargs.items() if name != 'document_ids'}, '`score`', SET_BY_LOSS)
        if kwargs.get('mask') is not None:
            first = as_mask(kwargs['mask'], 'mask', *x.shape, like=x).byte().argmax(dim=-1)
            if bool(first.any()):  # Positions count from the first real token.
                kwargs['seq_start_pos'] = first
        with eval_modules(list(self.modules())), maps_apart():
            read, tokens, token_mask = self._split(x, x, lens, kwargs)
            out = self.net(read, **kwargs)
            out = out[0] if isinstance(out, tuple) else out  # The first of several heads predicts the next token.
            targets = Targets(tokens, self.ignore_index, token_mask).of()[:, :-1]
            log_probs = to_float(out[:, out.shape[1] - x.shape[1] : -1]).log_softmax(dim=-1)
            size = log_probs.shape[-1]
            found = log_probs.gather(-1, targets.clamp(0, size - 1).unsqueeze(-1)).squeeze(-1)
            found = found.masked_fill(targets >= size, -torch.inf)  # These ids have no logit.
            found = found.masked_fill(targets == self.ignore_index, 0.0)
        return found.reshape(*given.shape[:-1], x.shape[1] - 1)

    @_with_old_spellings
    @checked
    def beam_search(
        self,
        prompts: Prompts, seq_len: int,
        beams: int = 4, return_beams_and_scores: bool = False,
        eos_token: int | Sequence[int] | None = None, temperature: float = 1.0,
        stochastic: bool = False, prompt_lens: Tensor | Sequence[int] | None = None,
        filter_logits_fn: Any = identity, restrict_to_max_seq_len: bool = True,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        cache_kv: bool = True, generator: Generator | None = None, *,
        slide_cache: bool = True, length_penalty: float = 0.0, **kwargs: Unpack[BeamSearchInputs],
    ) -> Any:  # fmt: skip
        """Continue the prompts by `seq_len` tokens with beam search.

        Each hypothesis is continued by its most probable tokens; the `beams` continuations with the largest sum of log
        probabilities are kept. Hypotheses that end with `eos_token` are collected separately, the `beams` best of them;
        the search stops when no other can become better. Fewer are returned if there are fewer.

            prompts           ... n   as in `generate`, like the keywords that are not named here
            beams             1 ..    number of hypotheses per prompt
            return_beams_and_scores   return `(tokens (h ... s), scores (h ...))` of all hypotheses, best first
            eos_token                 id that ends a hypothesis, or several: it is kept, `pad_value` follows
            length_penalty            score = log probability / length ** length_penalty, of the generated tokens, the
                                      end included. 0 is the sum, 1 the mean; larger values favor longer texts
            **kwargs                  those of `generate`, but for `num_samples`, `callback`, `kv_storage` and what it
                                      returns; logits are changed before scores are computed. One beam is greedy
                                      generation
            stochastic                sample the candidates of a hypothesis without replacement from its distribution
                                      after filter and temperature (Gumbel top-k, arXiv:1903.06059); scores are those
                                      of the model. Without it, filter and temperature have no effect
            returns           ... s   the new tokens of the best hypothesis
            raises                    ValueError or TypeError for arguments out of range
        """
        beams, length_penalty = as_number(beams), as_number(length_penalty)
        require(is_int(beams) and beams >= 1, 'beams', beams, 'an integer of at least 1')
        finite = is_number(length_penalty) and math.isfinite(length_penalty)
        require(finite, 'length_penalty', length_penalty, 'a number, not NaN or infinite')
        refuse_own(cast(dict[str, Any], kwargs), 'beam_search', SET_BY_GENERATION)
        refused = {name: kwargs.pop(name, None) for name in ('num_samples', 'callback', 'kv_storage')}
        for name in [name for name, value in refused.items() if value is not None]:
            raise ValueError(f'`{name}` cannot be combined with beam search, give it to `generate`')
        state = self.decoding(
            prompts, seq_len, eos_token=eos_token, prompt_lens=prompt_lens, cache_kv=cache_kv, slide_cache=slide_cache,
            restrict_to_max_seq_len=restrict_to_max_seq_len, temperature=temperature, generator=generator,
            filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs, **kwargs,
        )  # fmt: skip
        leading, choice = state.leading, state.choice
        check_looped_exits(self.net, state.expert.inputs, len(state.ids) * beams, cache_kv)
        draws = stochastic and choice.temperature != 0
        search = Beams(state, beams, length_penalty, choice.perturbed if draws else None)
        with eval_modules(state.modules):
            tokens, scores = search.run(state.max_new_tokens)
        tokens, scores = rearrange(tokens, 'b h s -> h b s'), rearrange(scores, 'b h -> h b')
        if not return_beams_and_scores:
            return tokens[0].reshape(*leading, tokens.shape[-1])
        return tokens.reshape(len(tokens), *leading, tokens.shape[-1]), scores.reshape(len(scores), *leading)

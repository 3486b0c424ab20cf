"""A decoder whose shallow blocks read what its deep blocks made of the token before: latents flow on, as tokens do."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.cache import LayerIntermediates as LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, check_ids, checked
from x_transformers.core.modes import maps_apart
from x_transformers.core.nets import SET_BY_LOSS, check_net, refuse_own
from x_transformers.features.norms import RMSNorm as RMSNorm
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    a_callable,
    boolean,
    each,
    format_value,
    instance_of,
    integer,
    is_int,
    mapping,
    none,
    not_negative,
    number,
    one_of,
    size,
)
from x_transformers.generation.engine import IncrementalModel
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import require, top_k as top_k
from x_transformers.training.items import scale_of_fewer, share_of_items
from x_transformers.training.layer_losses import Targets
from x_transformers.training.losses import mask_before_padding, read_of, readable, real_tokens, tell_padding
from x_transformers.training.token_loss import Terms, mean_token_loss, read_logits_later

__all__ = [
    'RECIRC_SHORTCUTS',
    'TRANSITIONS',
    'FullBandwidth',
    'GLUCrossTransition',
    'GRUGatingTransition',
    'LinearTransition',
    'LossBreakdown',
    'ResidualGLUTransition',
    'ResidualTransition',
    'dynamic_rollout_loss_weights',
    'fuse_last_latent',
    'get_block_latent',
    'resolve_recirc_pairs',
    'resolve_transition',
    'shift_and_fuse_latents',
]

Transition = Callable[[Tensor, Tensor], Tensor]


class LossBreakdown(NamedTuple):
    """Return the losses of all passes."""

    first_pass_loss: Tensor
    feedback_pass_losses: list[Tensor]
    all_pass_losses: list[Tensor]


# transitions: latents z and stream s, both ... d, to the new stream ... d


class GLUCrossTransition(nn.Module):
    """norm(W_z norm(z) * sigmoid(W_s norm(s)))"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.to_state = nn.Linear(dim, dim, bias=False)
        self.to_gate = nn.Linear(dim, dim, bias=False)
        self.latent_norm, self.stream_norm, self.norm = RMSNorm(dim), RMSNorm(dim), RMSNorm(dim)

    def forward(self, latents: Tensor, stream: Tensor) -> Tensor:
        return self.norm(self.to_state(self.latent_norm(latents)) * self.to_gate(self.stream_norm(stream)).sigmoid())


class ResidualTransition(nn.Module):
    """norm(s + scale W norm(z))"""

    def __init__(self, dim: int, scale_init: float = 0.1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale_init))
        self.proj = nn.Linear(dim, dim, bias=False)
        self.latent_norm, self.norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, latents: Tensor, stream: Tensor) -> Tensor:
        return self.norm(stream + self.scale * self.proj(self.latent_norm(latents)))


class GRUGatingTransition(nn.Module):
    """norm((1 - g) s + g tanh(W_c [z ; s])),  g = sigmoid(W_g [z ; s] + b),  z and s normed inside, b = -1 at first"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.latent_norm, self.stream_norm, self.norm = RMSNorm(dim), RMSNorm(dim), RMSNorm(dim)
        self.gate = nn.Linear(2 * dim, dim)
        nn.init.constant_(self.gate.bias, -1.0)
        self.to_candidate = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, latents: Tensor, stream: Tensor) -> Tensor:
        both = torch.cat((self.latent_norm(latents), self.stream_norm(stream)), dim=-1)
        gate, candidate = self.gate(both).sigmoid(), self.to_candidate(both).tanh()
        return self.norm(stream + gate * (candidate - stream))


class LinearTransition(nn.Module):
    """norm(W_z norm(z) + W_s norm(s))"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.to_state = nn.Linear(dim, dim, bias=False)
        self.to_stream = nn.Linear(dim, dim, bias=False)
        self.latent_norm, self.stream_norm, self.norm = RMSNorm(dim), RMSNorm(dim), RMSNorm(dim)

    def forward(self, latents: Tensor, stream: Tensor) -> Tensor:
        return self.norm(self.to_state(self.latent_norm(latents)) + self.to_stream(self.stream_norm(stream)))


class ResidualGLUTransition(nn.Module):
    """norm(s + scale GLU(z, s))"""

    def __init__(self, dim: int, scale_init: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale_init))
        self.glu = GLUCrossTransition(dim)
        self.norm = RMSNorm(dim)

    def forward(self, latents: Tensor, stream: Tensor) -> Tensor:
        return self.norm(stream + self.scale * self.glu(latents, stream))


TRANSITIONS: dict[str, type[nn.Module]] = {
    'glu': GLUCrossTransition,
    'residual': ResidualTransition,
    'gru': GRUGatingTransition,
    'linear': LinearTransition,
    'residual_glu': ResidualGLUTransition,
}


def resolve_transition(spec: Any, dim: int) -> nn.Module:
    """Return a transition from its name, a module, or a function of the width."""
    if isinstance(spec, nn.Module):
        return spec
    if isinstance(spec, str):
        if spec not in TRANSITIONS:
            raise ConfigError(f'`transition` must be one of {", ".join(map(repr, TRANSITIONS))}, got {spec!r}')
        return TRANSITIONS[spec](dim)
    built = spec(dim)
    if not isinstance(built, nn.Module):
        raise ConfigError(f'`transition` must give a module, {format_value(spec)} gave {format_value(built)}')
    return built


# pairs (out, in): the output of a block, counted from 1, goes to the input of another one token later

Pairs = tuple[tuple[int, int], ...]

RECIRC_SHORTCUTS: dict[str, Callable[[int], Pairs]] = {
    'paper': lambda depth: ((depth, 1),),
    'prev': lambda depth: tuple((at, at - 1) for at in range(2, depth + 1)),
    'top_and_prev': lambda depth: tuple(dict.fromkeys(((depth, 1), *((at, at - 1) for at in range(2, depth + 1))))),
    'prev_with_self': lambda depth: ((1, 1), *((at, at - 1) for at in range(2, depth + 1))),
    'self': lambda depth: tuple((at, at) for at in range(1, depth + 1)),
    'full': lambda depth: tuple((at, 1) for at in range(1, depth + 1)),
    'dense': lambda depth: tuple((out, into) for out in range(1, depth + 1) for into in range(1, depth + 1)),
}


def resolve_recirc_pairs(depth: int, recirc_pairs: Any) -> Pairs:
    """Return the pairs of a name or of a sequence of pairs."""
    if recirc_pairs is None or isinstance(recirc_pairs, str):
        name = recirc_pairs or 'paper'
        if name not in RECIRC_SHORTCUTS:
            raise ConfigError(f'`recirc_pairs` must be pairs or one of {list(RECIRC_SHORTCUTS)}, got {name!r}')
        return RECIRC_SHORTCUTS[name](depth)
    pairs: Any = tuple(tuple(pair) if isinstance(pair, (list, tuple)) else (pair,) for pair in recirc_pairs)
    for pair in pairs:
        if len(pair) != 2 or not all(is_int(block) and 1 <= block <= depth for block in pair):
            raise ConfigError(
                f'`recirc_pairs` must be pairs (out, in) of blocks from 1 to {depth}, got {format_value(recirc_pairs)}'
            )
    if len(set(pairs)) != len(pairs) or not pairs:
        raise ConfigError(f'`recirc_pairs` must be at least one pair, each once, got {format_value(recirc_pairs)}')
    return pairs


def get_block_latent(intermediates: LayerIntermediates, depth: int) -> Tensor:
    """Return the output of a block, counted from 1; the last one is normed."""
    return intermediates.block_hiddens[depth - 1]


def shift_and_fuse_latents(
    latents: Tensor, stream: Tensor, transition: Transition, real: Tensor | None = None
) -> Tensor:
    """Let every token but the first see the latent of the one before it:  b n d, b [m +] n d -> b [m +] n d.

    `real` (b n) marks tokens whose latents exist; without one, the stream stays. Further m tokens may stand in front.
    """
    n = min(latents.shape[1], stream.shape[1])
    kept, stream = stream[:, : stream.shape[1] - n + 1], stream[:, stream.shape[1] - n + 1 :]
    latents = latents[:, latents.shape[1] - n :]
    fused = transition(latents[:, :-1], stream)
    if real is not None:
        fused = torch.where(rearrange(real[:, -n:-1], 'b n -> b n 1'), fused, stream)
    return torch.cat((kept, fused.to(kept.dtype)), dim=1)


def fuse_last_latent(latents: Tensor, stream: Tensor, transition: Transition, real: Tensor | None = None) -> Tensor:
    """Let the last token of the stream see the last latent:  b m d, b n d -> b n d."""
    fused = transition(latents[:, -1:], stream[:, -1:])
    if real is not None:
        fused = torch.where(rearrange(real[:, -1:], 'b n -> b n 1'), fused, stream[:, -1:])
    return torch.cat((stream[:, :-1], fused.to(stream.dtype)), dim=1)


def dynamic_rollout_loss_weights(step_losses: Tensor, decay: float = 1.0, threshold: float = 1.0) -> Tensor:
    """Return exp(-decay sum_{s<r} relu(loss_s - threshold)) along the last axis: less after large losses."""
    excess = (step_losses.detach() - threshold).relu()
    return (-decay * (excess.cumsum(dim=-1) - excess)).exp()


# the wrapper


class FullBandwidth(Configurable):
    """Train a decoder in several passes, where each gets the latents of the previous one:  ids (b, n) -> loss.

        pass 1    unchanged
        pass r    the input s_t of block `in` becomes transition(z_{t-1}, s_t), z being the output of block `out` in
                  pass r - 1; tokens but the first
        loss = loss_1 + weight mean_r loss_r                              loss_r from the second target on

    In generation, each token costs one pass, which gets the latents of the token before it. arXiv:2608.08888
    """

    def __init__(
        self,
        net: Annotated[
            nn.Module, 'TransformerWrapper with `tie_embedding=True` and `post_emb_norm=True` around a Decoder with '
            '`depth_scale_residual`', instance_of(nn.Module),
        ],
        temporal_parallel_passes: Annotated[int, 'number of passes', size] = 2,
        recirc_pairs: Annotated[
            str | Sequence[Sequence[int]] | None,
            'pairs (out, in) of blocks, counted from 1, or a name: `paper` (default: from the last to the '
            'first), `prev`, `top_and_prev`, `prev_with_self`, `self`, `full`, `dense`',
            one_of(*RECIRC_SHORTCUTS) | each(Check('a pair of blocks', lambda value: isinstance(value, (list, tuple))))
            | none,
        ] = None,
        transition: Annotated[
            nn.Module | str | Callable | None,
            '`glu` (the default), `residual`, `gru`, `linear`, `residual_glu`, a module, or a function of the width '
            'that builds one', one_of(*TRANSITIONS) | instance_of(nn.Module) | a_callable | none,
        ] = None,
        transitions: Annotated[dict | None, 'separate transitions, a dict from pairs (out, in)', mapping | none] = None,
        feedback_pass_weight: Annotated[float, 'weight of the loss of the later passes', not_negative] = 1.0,
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        jitter_noise_delta: Annotated[float, 'maximum of uniform noise on latents in training', not_negative] = 0.02,
        dynamic_rollout_loss_weight: Annotated[bool, 'weight later passes less after large losses', boolean] = False,
        dynamic_loss_decay: Annotated[float, 'strength of this reduction', number] = 0.5,
        dynamic_loss_threshold: Annotated[float, 'loss, in nats, above which weights are reduced', number] = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        check_net(net)
        self.check_parts(net)
        stack: Any = net.attn_layers
        self.net, self.depth = net, len(stack.layers_execute_order) // stack.len_default_block
        self.recirc_pairs = resolve_recirc_pairs(self.depth, recirc_pairs)
        dim: Any = net.attn_layers.dim
        own = self.own_transitions(transitions or {})
        self.transitions = nn.ModuleDict()
        for pair in self.recirc_pairs:
            self.transitions[self.name_of(*pair)] = resolve_transition(own.get(pair, transition) or 'glu', dim)
        self.routes_by_in_depth: dict[int, list[int]] = {}
        for out, into in self.recirc_pairs:
            self.routes_by_in_depth.setdefault(into, []).append(out)
        self.temporal_parallel_passes, self.feedback_pass_weight = temporal_parallel_passes, feedback_pass_weight
        self.ignore_index, self.jitter_noise_delta = ignore_index, jitter_noise_delta
        self.dynamic_rollout_loss_weight = dynamic_rollout_loss_weight
        self.dynamic_loss_decay, self.dynamic_loss_threshold = dynamic_loss_decay, dynamic_loss_threshold

    @staticmethod
    def name_of(out: int, into: int) -> str:
        return f'{out}->{into}'

    @staticmethod
    def check_parts(net: Any) -> None:
        """Raise if a net lacks flags that keep the feedback stable, or has other blocks."""
        set_on = {name for holder in (net, net.attn_layers) for feature in holder.features.active
                  for name in feature.flags if getattr(feature, name, None) not in (None, False)}  # fmt: skip
        for name in ('depth_scale_residual', 'tie_embedding', 'post_emb_norm'):
            if name not in set_on:
                raise ConfigError(f'`net` must have `{name}`, or what is fed back would grow')
        for name in ('looped', 'recycling'):
            if getattr(net, name, False):
                raise ConfigError(f'`net` has `{name}`: there a block has several outputs')
        if getattr(net, 'output_is_log_prob', False):
            raise ConfigError('`net` has `mixture_of_softmax`, which cannot be combined with a tied head')
        if net.attn_layers.has_custom_layer_types:
            raise ConfigError('`net` must have plain blocks, its stack has another order of layers')

    def own_transitions(self, specs: Mapping[Any, Any]) -> dict[tuple[int, int], Any]:
        """Return the transition of each pair, from keys that are pairs or their names, as '3->1'."""
        names = {self.name_of(*pair): pair for pair in self.recirc_pairs}
        own: dict[Any, Any] = {names.get(key, key): spec for key, spec in specs.items()}
        for key in own:
            if key not in self.recirc_pairs:
                raise ConfigError(f'`transitions` must have keys from {", ".join(map(repr, names))}, got {key!r}')
        return own

    def latents_of(self, intermediates: LayerIntermediates) -> dict[int, Tensor]:
        """Return the outputs of the blocks that are fed back."""
        return {out: get_block_latent(intermediates, out) for out, _ in self.recirc_pairs}

    def make_transforms(
        self,
        intermediates: LayerIntermediates | Mapping[int, Tensor],
        training: bool = False,
        override_transition: Transition | None = None,
        generate: bool = False,
        real: Tensor | None = None,
    ) -> dict[int, Callable[[Tensor], Tensor]]:
        """Return the transform of the input of each block that is fed, given the results of an earlier pass.

        training   add noise to the latents
        generate   the input is that of the next token only
        real       b n, True for tokens whose latents count
        """
        found = intermediates if isinstance(intermediates, Mapping) else self.latents_of(intermediates)
        if training and self.jitter_noise_delta > 0:
            delta = self.jitter_noise_delta
            found = {out: z + torch.empty_like(z).uniform_(-delta, delta) for out, z in found.items()}
        fuse = fuse_last_latent if generate else shift_and_fuse_latents

        def transform(into: int) -> Callable[[Tensor], Tensor]:
            def fed(stream: Tensor) -> Tensor:
                for out in self.routes_by_in_depth[into]:
                    step = override_transition or self.transitions[self.name_of(out, into)]
                    stream = fuse(found[out], stream, step, real)
                return stream

            return fed

        return {into: transform(into) for into in self.routes_by_in_depth}

    def passes(
        self, ids: Tensor, count: int, override: Transition | None, inputs: dict[str, Any]
    ) -> list[tuple[Tensor, LayerIntermediates]]:
        """Return the logits (b, n, l) and the intermediates of each pass."""
        token_mask = real_tokens(ids, inputs.get('mask'), start=inputs.get('seq_start_pos'))
        done = [self.net(ids, return_intermediates=True, **inputs)]
        for _ in range(count - 1):
            feed = index_by_block(self.make_transforms(done[-1][1], self.training, override, real=token_mask))
            done.append(self.net(ids, transform_block_inputs=feed, return_intermediates=True, **inputs))
        return done

    def count_of(self, passes: int | None) -> int:
        count = self.temporal_parallel_passes if passes is None else passes
        require(is_int(count) and count >= 1, 'temporal_parallel_passes', count, 'an integer of at least 1')
        return count

    @checked
    def forward(
        self,
        token_ids: Tensor,
        return_loss: bool = True,
        temporal_parallel_passes: int | None = None,
        return_loss_breakdown: bool = False,
        return_all_pass_logits: bool = False,
        transition: Transition | None = None,
        dynamic_rollout_loss_weight: bool | None = None,
        dynamic_loss_decay: float | None = None,
        dynamic_loss_threshold: float | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loss of all passes, or the logits of the last.

        token_ids                b n   ids, n of at least 3 for a loss; `ignore_index` where there is no target
        transition                     `(latents, stream) -> stream`, in place of all transitions
        return_loss_breakdown          also return a `LossBreakdown`, None without a loss
        return_all_pass_logits         also return the logits of each pass
        num_items_in_batch             divide the sums of the losses by this number, so that batches add up
        **kwargs                       passed to the model: `context`, ..., and `mask` (b n), True except for
                                       padding, which is neither a target nor used for predictions; other arguments
                                       override those of the constructor
        """
        count = self.count_of(temporal_parallel_passes)
        seq = check_ids(token_ids, 'token_ids', (3 if count > 1 else 2) if return_loss else 1)
        refuse_own(kwargs, 'the loss', SET_BY_LOSS | OWN)
        inputs = seq[:, :-1] if return_loss else seq
        mask = as_mask(kwargs.get('mask'), 'mask', seq.shape[0], None, like=seq)
        if mask is not None and mask.shape[1] not in {seq.shape[1], inputs.shape[1]}:
            raise ValueError(f'`mask` must have shape {tuple(seq.shape)}, got {tuple(mask.shape)}')
        if mask is not None:  # one of the input says nothing of the last target
            mask = F.pad(mask, (0, max(seq.shape[1] - mask.shape[1], 0)), value=True)
            kwargs['mask'] = read_of(mask) if return_loss else mask
        token_mask = real_tokens(seq, mask, start=kwargs.get('seq_start_pos'))
        if token_mask is not None:
            seq = seq.masked_fill(~token_mask, self.ignore_index)
            inputs = seq[:, : inputs.shape[1]]
        begun = lambda: mask_before_padding(seq, self.ignore_index)  # noqa: E731
        tell_padding(self.net, kwargs, lambda: read_of(begun()) if return_loss else begun())
        if return_loss and not return_all_pass_logits:
            kwargs.update(read_logits_later(self.net))
        with AuxLosses(joins=not return_loss):
            with maps_apart():
                done = self.passes(readable(inputs, self.ignore_index), count, transition, kwargs)
        # what stands in front of the tokens is no target
        logits = [out[:, out.shape[1] - inputs.shape[1] :] for out, _ in done]
        name, value, breakdown = 'logits', logits[-1], None
        if return_loss:
            targets = Targets(seq, self.ignore_index, token_mask).of()[:, :-1]
            again = targets[:, 1:]  # A token without one before it has no latent to read.
            if token_mask is not None:
                again = again.masked_fill(~token_mask[:, : again.shape[1]], self.ignore_index)
            terms = Terms(self.ignore_index, num_items=num_items_in_batch)
            share = share_of_items(targets != self.ignore_index, num_items_in_batch)
            losses = [mean_token_loss(out[:, at > 0 :], again if at else targets, terms)
                      for at, out in enumerate(logits)]  # fmt: skip
            if num_items_in_batch is not None:  # later passes have no first token
                fewer = scale_of_fewer(targets.shape[1], 1) if len(losses) > 1 else 1.0
                losses = [losses[0], *(loss * fewer for loss in losses[1:])]
            breakdown = LossBreakdown(losses[0], losses[1:], losses)
            options = dynamic_rollout_loss_weight, dynamic_loss_decay, dynamic_loss_threshold
            name, value = 'loss', self.total(losses, [trace.aux_losses for _, trace in done], *options, share)
        beside = {'loss_breakdown': breakdown} if return_loss_breakdown else {}
        beside |= {'all_pass_logits': logits} if return_all_pass_logits else {}
        return namedtuple('Output', [name, *beside])(value, *beside.values()) if beside else value

    def total(
        self,
        losses: list[Tensor],
        added: list[dict[str, Tensor]],
        dynamic: bool | None,
        decay: float | None,
        threshold: float | None,
        share_of_batch: Any = 1,
    ) -> Tensor:
        """Return the loss of the first pass plus the weighted mean of the others, with those of features."""
        each = torch.stack(losses)
        shares, later = torch.ones_like(each), each[1:]
        if torch.is_tensor(share_of_batch):  # the weights are those of means
            later = later / share_of_batch.clamp(min=1e-9)
        if len(losses) > 1:
            weights = torch.ones_like(later)
            if self.dynamic_rollout_loss_weight if dynamic is None else dynamic:
                decay = self.dynamic_loss_decay if decay is None else decay
                threshold = self.dynamic_loss_threshold if threshold is None else threshold
                weights = dynamic_rollout_loss_weights(later, decay, threshold)
            shares = torch.cat((shares[:1], self.feedback_pass_weight * weights / weights.sum()))
        aux = AuxLosses()
        for share, by_name in zip(shares, added, strict=True):
            for name, value in by_name.items():
                aux.add(name, value * share)
        return aux.added_to((shares * each).sum(), share_of_batch)

    @checked
    def generate(
        self,
        prompts: Prompts,
        seq_len: int,
        temperature: float = 1.0,
        filter_logits_fn: Any = top_k,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        should_fuse_latent: Callable[[int], bool] | None = None,
        transition: Transition | None = None,
        temporal_parallel_passes: int | None = None,
        process_prompt: bool = True,
        eos_token: int | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Continue the prompts by `seq_len` tokens, each given the latents of the one before.

        should_fuse_latent         number of the generated token -> whether it is fed; all are if None
        transition                 as in `forward`
        temporal_parallel_passes   1 feeds nothing back
        process_prompt             run all passes over the prompts too, else one
        **kwargs                   as in `AutoregressiveWrapper.generate`, which says what the others are
        """
        fed = should_fuse_latent, transition, temporal_parallel_passes, process_prompt
        kwargs |= dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        return self.generator(*fed, kwargs).generate(prompts, seq_len, eos_token=eos_token, **kwargs)

    @checked
    def stream(
        self,
        prompts: Prompts,
        seq_len: int,
        *,
        should_fuse_latent: Callable[[int], bool] | None = None,
        transition: Transition | None = None,
        temporal_parallel_passes: int | None = None,
        process_prompt: bool = True,
        **kwargs: Any,
    ) -> Iterator[Tensor]:
        """Yield the tokens of `generate`, which has the same keyword arguments, one step at a time."""
        fed = should_fuse_latent, transition, temporal_parallel_passes, process_prompt
        return self.generator(*fed, kwargs).stream(prompts, seq_len, **kwargs)

    @checked
    def beam_search(
        self,
        prompts: Prompts,
        seq_len: int,
        beams: int = 4,
        *,
        should_fuse_latent: Callable[[int], bool] | None = None,
        transition: Transition | None = None,
        temporal_parallel_passes: int | None = None,
        process_prompt: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Continue the prompts with beam search, with the keyword arguments of `generate` and of
        `AutoregressiveWrapper.beam_search`."""
        fed = should_fuse_latent, transition, temporal_parallel_passes, process_prompt
        return self.generator(*fed, kwargs).beam_search(prompts, seq_len, beams, **kwargs)

    def generator(
        self, fuses: Any, transition: Any, passes: int | None, whole: bool, kwargs: dict[str, Any]
    ) -> AutoregressiveWrapper:
        """Return a wrapper of the model whose generation feeds latents back."""
        count = self.count_of(passes)
        if not self.net.can_cache_kv:
            raise ValueError('`net` cannot be cached, which the latents of generated tokens need')
        refuse_own(kwargs, 'generate', OWN)
        if kwargs.pop('kv_storage', None) is not None:
            raise ValueError('`kv_storage` cannot be given: the latents of generated tokens are not stored in blocks')
        model = AutoregressiveWrapper(self.net, ignore_index=self.ignore_index)
        plain: Any = model.decoding

        def decoding(prompts: Any, seq_len: Any, **options: Any) -> Any:
            state = plain(prompts, seq_len, **options)
            self.check_room(state.start, state.max_new_tokens, options)
            reader = FeedbackReader(self, state.expert, count, fuses, transition, whole)
            state.expert, state.modules = reader, [*state.modules, *self.modules()]
            return state

        model.decoding = decoding
        return model

    def check_room(self, prompt: int, seq_len: int, kwargs: dict[str, Any]) -> None:
        """Raise a ValueError if the latents of so many tokens cannot be kept."""
        limit: Any = self.net.max_seq_len
        slides = kwargs.get('slide_cache', True) or not kwargs.get('restrict_to_max_seq_len', True)
        bounded = limit and not (slides and self.net.can_cache_kv_outside_max_seq_len)
        if bounded and prompt + seq_len > limit + 1:
            raise ValueError(
                f'`seq_len` got {seq_len}: prompts of {prompt} tokens and {seq_len} more exceed '
                f'`max_seq_len`, {limit}, beyond which latents cannot be kept'
            )


def index_by_block(transforms: Mapping[int, Callable[[Tensor], Tensor]]) -> Callable[[int, Tensor], Tensor]:
    """Return the transforms as one function of the block, which compiles."""
    return lambda block, x: transforms[block](x) if block in transforms else x


OWN = {'transform_block_inputs': ': what is fed back comes in there'}


class FeedbackReader(IncrementalModel):
    """Reads a growing sequence, and gives each new token the latents of the one before it."""

    window: Any

    def __init__(
        self,
        model: FullBandwidth,
        like: IncrementalModel,
        passes: int,
        fuses: Callable[[int], bool] | None,
        transition: Transition | None,
        whole: bool,
    ) -> None:
        super().__init__(model.net, like.inputs, restrict=like.window is not None, slides=like.slides)
        self.model, self.count, self.fuses, self.transition = model, passes, fuses, transition
        self.first = passes if whole else 1
        self.latents: dict[int, Tensor] = {}
        self.step = 0

    def read(self, sequence: Tensor, pads: Tensor | None = None, count: int | None = None) -> Tensor:
        length = sequence.shape[1]
        if self.pending is not None and self.pending[0] == length:
            return self.pending[1]
        self.pending = None
        start = 0 if self.window is None else max(length - self.window, 0)
        inputs = self.inputs_at(length, start, pads)
        cache = self.remembered(length, start)
        if cache is None:
            out, trace = self.model.passes(sequence[:, start:], self.first, self.transition, inputs)[-1]
        else:
            token_mask = None if inputs.get('mask') is None else inputs['mask'][:, -2:-1].bool()
            if self.count > 1 and (self.fuses is None or self.fuses(self.step)):
                inputs['transform_block_inputs'] = self.model.make_transforms(
                    self.latents, override_transition=self.transition, generate=True, real=token_mask
                )
            self.step += 1
            inputs |= dict(cache=cache, input_not_include_cache=True, return_intermediates=True)
            out, trace = self.net(sequence[:, self.seen :], **inputs)
        self.latents = {depth: z[:, -1:] for depth, z in self.model.latents_of(trace).items()}
        self.intermediates, self.cache, self.seen = trace, trace.cache, length
        return self.last(out, count)

    def select(self, rows: Tensor, b: int) -> None:
        self.latents = {depth: z[rows] for depth, z in self.latents.items()}
        super().select(rows, b)

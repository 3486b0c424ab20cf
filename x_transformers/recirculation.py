"""Reading every token twice: what deep layers made of it leaks into shallow ones, and stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates as LayerIntermediates, cache_of
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import check_ids, check_lengths, checked
from x_transformers.core.modes import to_float
from x_transformers.core.nets import check_net, refuse_own
from x_transformers.flags import (
    ConfigError,
    Configurable,
    boolean,
    count,
    each,
    format_value,
    instance_of,
    is_int,
    none,
    number,
    size,
)
from x_transformers.generation.engine import run_in_eval_mode
from x_transformers.generation.sampling import require
from x_transformers.training.items import share_of_items
from x_transformers.training.token_loss import Readout, Terms, mean_token_loss, overheard, read_logits_later

__all__ = ['Recirculation', 'RecirculationMixer', 'norm_matched']

PER_TOKEN = ': tokens are read one at a time'
NOT_HERE = dict.fromkeys(
    ('prepend_embeds', 'prepend_mask', 'pos', 'embed_ids', 'sum_embeds', 'attn_mask', 'attn_bias', 'self_attn_kv_mask'),
    PER_TOKEN,
) | {
    'mems': ': the cache is the memory',
    'mem_masks': ': the cache is the memory',
    'transform_attn_inputs': ': what is read again comes in there',
}


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def norm_matched(z_source: Tensor, z_dest: Tensor, eps: float = 1e-8) -> Tensor:
    """Scale `z_source` (..., d) to the norm of `z_dest`."""
    source, dest = to_float(z_source), to_float(z_dest)
    longer = dest.norm(dim=-1, keepdim=True) / source.norm(dim=-1, keepdim=True).clamp(min=eps)
    return (source * longer).to(z_source.dtype)


class RecirculationMixer(nn.Module):
    """Learned weights of source and destination, for each feature:  ... d, ... d -> ... d, ... d, both from 0 to 1."""

    def __init__(self, dim: int, hidden: int | None = None, init_alpha: float = 0.1, init_beta: float = 0.9) -> None:
        super().__init__()
        hidden = hidden or dim
        self.input_norm = nn.LayerNorm(2 * dim)
        self.mlp: Any = nn.Sequential(
            nn.Linear(2 * dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 2 * dim)
        )
        nn.init.normal_(self.mlp[-1].weight, std=0.02)
        with torch.no_grad():
            self.mlp[-1].bias[:dim] = logit(init_alpha)
            self.mlp[-1].bias[dim:] = logit(init_beta)

    def forward(self, z_source: Tensor, z_dest: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat((z_source, z_dest), dim=-1)
        return self.mlp(self.input_norm(both)).sigmoid().chunk(2, dim=-1)


class Recirculation(Configurable):
    """Recirculation: a second pass per token, with deep hidden states fed back:  ids (b, n) -> logits (b, n, l).

        first pass      logits of the token, and the inputs z of each self-attention layer
        second pass     z_dst <- a_t z_src |z_dst| / |z_src| + b z_dst,   a_t = alpha min(t / ramp_steps, 1)

    Keys and values of the second pass are cached, so that later tokens attend to them. The mixture is the input of the
    destination's attention; its residual is not changed. Layers are self-attention layers, counted from 0. Pass it as
    `net` to an `AutoregressiveWrapper`. It takes two passes per token, one token after another.
    Mozer et al. 2026, arXiv:2608.17981
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        source_layer: Annotated[int | Sequence[int], 'index of the (deep) source, or several', count | each(count)],
        destination_layer: Annotated[int | Sequence[int], 'shallow layer, one per source', count | each(count)],
        alpha: Annotated[float | Sequence[float], 'source weight, or one per source', number | each(number)] = 0.15,
        beta: Annotated[
            float | Sequence[float] | None, 'weight of the destination, 1 - a_t if None', number | each(number) | none
        ] = None,
        ramp_steps: Annotated[int, 'number of tokens over which the weight of the source grows', count] = 10,
        use_learned: Annotated[bool, 'compute weights by a small network per pair, without a ramp', boolean] = False,
        learned_hidden: Annotated[int | None, 'inner width, that of the residual stream if None', size | none] = None,
    ) -> None:
        super().__init__()
        check_net(net)
        stack: Any = net.attn_layers
        for name in ('looped', 'recycling'):
            if getattr(net, name, False):
                raise ConfigError(f'`net` has `{name}`, which passes through a layer several times')
        if not net.can_cache_kv:
            raise ConfigError('`net` must be able to cache keys, which the second pass needs')
        order: Any = stack.layers_execute_order
        if len(set(order)) != len(order) or len({id(stack.layers[at][1]) for at in order}) != len(order):
            raise ConfigError('`net` must run each layer once: a repeated layer has several residuals')
        self.attn_layer_indices = [index for index in order if stack.layer_types[index] == 'a']
        self.source_layers, self.destination_layers = to_tuples(source_layer), to_tuples(destination_layer)
        self.check_routes(len(self.attn_layer_indices))
        self.alphas, self.betas = self.weights('alpha', alpha), self.weights('beta', beta)
        self.net: Any = net
        self.ramp_steps = 0 if use_learned else ramp_steps
        mixers = [RecirculationMixer(stack.dim, learned_hidden) for _ in self.source_layers if use_learned]
        self.learned_mixers = nn.ModuleList(mixers) if use_learned else None
        self.attn_layers = stack

    def check_routes(self, layers: int) -> None:
        sources, destinations = self.source_layers, self.destination_layers
        if len(sources) != len(destinations):
            raise ConfigError(
                f'`destination_layer` must have one layer per `source_layer`, {len(sources)}, got {len(destinations)}'
            )
        if len(set(destinations)) != len(destinations):
            raise ConfigError(f'`destination_layer` got {destinations}, each layer may stand there once')
        for source, destination in zip(sources, destinations, strict=True):
            if source >= layers:
                raise ConfigError(f'`source_layer` got {source}, `net` has {layers} self-attention layers, from 0')
            if destination >= source:
                raise ConfigError(f'`destination_layer` must be below its `source_layer`, {source}, got {destination}')

    def weights(self, name: str, value: Any) -> tuple[float | None, ...]:
        """Return a weight for each pair of layers."""
        routes = len(self.source_layers)
        weights = tuple(value) if isinstance(value, (list, tuple)) else (value,) * routes
        if len(weights) != routes:
            raise ConfigError(f'`{name}` must be one number, or {routes}, got {format_value(value)}')
        return weights

    # what an AutoregressiveWrapper asks for

    num_tokens: Any = property(attrgetter('net.num_tokens'))
    max_seq_len: Any = property(attrgetter('net.max_seq_len'))
    can_cache_kv: Any = property(attrgetter('net.can_cache_kv'))
    can_cache_kv_outside_max_seq_len: Any = property(attrgetter('net.can_cache_kv_outside_max_seq_len'))
    output_is_log_prob: Any = property(attrgetter('net.output_is_log_prob'))
    looped = False
    add_continuous_pred_head = False

    @property
    def can_return_readout(self) -> bool:
        return bool(read_logits_later(self.net)) and type(self).forward is Recirculation.forward and not overheard(self)

    # mixing

    def mix_coefficients(self, route: int, z_source: Tensor, z_dest: Tensor, step: Any) -> tuple[Any, Any]:
        """Return the weights of source and destination for a pair of layers, at a step: numbers or tensors (b)."""
        if self.learned_mixers is not None:
            return self.learned_mixers[route](z_source, z_dest)
        if torch.is_tensor(step) and step.ndim:
            step = step.to(z_dest.dtype).repeat_interleave(z_dest.shape[0] // step.shape[0])
            step = step.view(-1, *(1,) * (z_dest.ndim - 1))
        ramp = 1.0 if self.ramp_steps == 0 else step / self.ramp_steps
        ramp = ramp.clamp(max=1) if torch.is_tensor(ramp) else min(ramp, 1.0)
        alpha, beta = self.alphas[route] * ramp, self.betas[route]
        return alpha, 1 - alpha if beta is None else beta

    def mix(self, hiddens: Sequence[Tensor] | Mapping[int, Tensor], step: Any = 0) -> dict[int, Tensor]:
        """Return the new residual of each destination, from the inputs (b, n, d) of all self-attention layers."""
        mixed = {}
        for route, (source, destination) in enumerate(zip(self.source_layers, self.destination_layers, strict=True)):
            z_source, z_dest = hiddens[source], hiddens[destination]
            alpha, beta = self.mix_coefficients(route, z_source, z_dest, step)
            mixed[destination] = (alpha * norm_matched(z_source, z_dest) + beta * z_dest).to(z_dest.dtype)
        return mixed

    # reading

    def recirculate(
        self, x: Tensor, cache: Cache | LayerIntermediates | None, step: Any = 0, **inputs: Any
    ) -> tuple[Any, LayerIntermediates]:
        """Read one token (b 1) twice: the logits of the first reading, and what the second leaves behind."""
        inputs |= dict(cache=cache, input_not_include_cache=True, return_intermediates=True)
        no_logits = read_logits_later(self.net)
        residuals: dict[int, Tensor] = {}
        logits, first = self.net(x, transform_attn_inputs=lambda at, z: residuals.setdefault(at, z), **inputs)
        take_back_tokens(cache_of(cache), first.cache)
        mixed = self.mix(residuals, step)
        _, trace = self.net(x, transform_attn_inputs=mixed.get, **(inputs | no_logits))
        trace.logits = None if isinstance(logits, Readout) else logits
        return logits, trace

    @checked
    def forward(
        self,
        x: Tensor,
        cache: LayerIntermediates | Cache | None = None,
        return_intermediates: bool = False,
        seq_start_pos: Tensor | None = None,
        *,
        input_not_include_cache: bool = False,
        mask: Tensor | None = None,
        return_readout: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return the logits of all new tokens, which are processed one after another.

        x                 b n   ids, those of the cache included, unless there are too few, or
                                `input_not_include_cache`
        cache                   what an earlier call left behind
        seq_start_pos     b     padding on the left; the weight of the source grows from there on
        mask              b n   True for real tokens, those of the cache included
        **kwargs                passed to the model: `context`, ...
        returns                 logits, or with `return_intermediates` also what the last token left behind
        """
        x = check_ids(x, 'x', 1)
        refuse_own(kwargs, 'Recirculation', NOT_HERE)
        cache = cache_of(cache)
        held = 0 if cache is None else cache.length - cache.num_prefix_tokens
        seen = 0 if cache is None else cache.num_seen_tokens - cache.num_prefix_tokens
        if held and not input_not_include_cache and x.shape[1] > held:
            x = x[:, held:]
        if mask is not None and mask.shape != (x.shape[0], held + x.shape[1]):
            raise ValueError(f'`mask` must have shape ({x.shape[0]}, {held + x.shape[1]}), got {tuple(mask.shape)}')
        if seq_start_pos is not None:
            check_lengths(seq_start_pos, 'seq_start_pos', x.shape[0], held + x.shape[1])
        if seq_start_pos is not None and getattr(self.net, 'num_memory_tokens', 0):
            raise ValueError(
                '`seq_start_pos` cannot be combined with `num_memory_tokens`: they stand '
                'behind the whole padding, which must be read at once'
            )
        inputs = kwargs if seq_start_pos is None else kwargs | {'seq_start_pos': seq_start_pos}
        inputs |= {'return_readout': True} if return_readout else {}
        logits, aux = [], AuxLosses()
        trace: Any = None
        for at, token in enumerate(x.split(1, dim=1)):
            step = seen + at if seq_start_pos is None else (seen + at - seq_start_pos).clamp(min=0)
            if mask is not None:
                inputs['mask'] = mask[:, : held + at + 1]
            with AuxLosses() as of_token:
                out, trace = self.recirculate(token, cache, step, **inputs)
            aux.take(of_token, 1 / x.shape[1])
            cache = trace.cache
            logits.append(out)
        aux.hand_on()
        trace.aux_losses = aux.by_name
        if return_readout:
            out = logits[0].of(torch.cat([readout.hidden for readout in logits], dim=1))
            return (out, trace) if return_intermediates else out
        heads = [torch.cat(one, dim=1) for one in zip(*logits, strict=True)] if isinstance(logits[0], tuple) else None
        trace.logits = out = torch.cat(logits, dim=1) if heads is None else tuple(heads)
        return (out, trace) if return_intermediates else out

    @checked
    def learn_parameters(
        self,
        x: Tensor,
        steps: int = 100,
        optimizer_cls: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        optimizer_kwargs: dict[str, Any] | None = None,
        batch_size: int = 32,
    ) -> float:
        """Train the mixers, and nothing else, on the next-token loss of rows of `x` (b n). Gives the last loss.

        optimizer_kwargs   `lr=3e-4, weight_decay=1e-4` if None
        """
        x = check_ids(x, 'x', 2)
        require(is_int(steps) and steps >= 1, 'steps', steps, 'an integer of at least 1')
        require(is_int(batch_size) and batch_size >= 1, 'batch_size', batch_size, 'an integer of at least 1')
        if self.learned_mixers is None:
            raise ValueError('`learn_parameters` needs `use_learned=True`: there is nothing to learn')
        parameters = list(self.learned_mixers.parameters())
        options = dict(lr=3e-4, weight_decay=1e-4) if optimizer_kwargs is None else optimizer_kwargs
        optimizer = optimizer_cls(parameters, **options)
        with run_in_eval_mode(list(self.modules())), torch.enable_grad():
            for _ in range(steps):
                loss = self.loss(x[torch.randint(len(x), (batch_size,), device=x.device)])
                grads = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, grad in zip(parameters, grads, strict=True):
                    parameter.grad = grad
                optimizer.step()
                optimizer.zero_grad()
        return loss.item()

    def loss(self, x: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the next-token loss, every id being a target; or the sum of all over `num_items_in_batch`."""
        with AuxLosses() as aux:
            logits = self(x[:, :-1], **read_logits_later(self))
        terms = Terms(is_log_prob=self.output_is_log_prob, num_items=num_items_in_batch)
        return aux.added_to(mean_token_loss(logits, x[:, 1:], terms), share_of_items(x[:, 1:] >= 0, num_items_in_batch))


def to_tuples(value: Any) -> tuple:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def take_back_tokens(kept: Cache | None, read: Cache) -> None:
    """Free the storage that `read` has added to `kept`."""
    taken = {id(buffer.storage) for buffer in read.buffers()}
    for buffer in () if kept is None else kept.buffers():
        if id(buffer.storage) in taken:
            buffer.storage.filled = buffer.start + buffer.length

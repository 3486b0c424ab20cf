"""Vectors in, vectors out: the model for real-valued sequences, and its next-step training and roll-out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange, reduce, repeat
from torch import Generator, Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import (
    as_mask,
    check_lengths,
    check_tensor,
    check_vectors,
    checked,
    mask_from_lengths,
    match_precision,
)
from x_transformers.core.model_calls import ModelCall, OutputRequest, open_model
from x_transformers.core.modes import clamp_to_dtype, to_float
from x_transformers.core.nets import SET_BY_GENERATION, SET_BY_LOSS, check_net, refuse_own
from x_transformers.core.own_modules import a_stack, known_stack
from x_transformers.features.derived import MEMBERS_OF_MODEL, sort_members
from x_transformers.features.documents import DocumentsInModel
from x_transformers.features.embeddings import (
    AbsolutePositions,
    AveragePool,
    EmbDropout,
    MemoryTokens,
    PostEmbNorm,
    PrependInputs,
    Sinusoids,
    SumEmbeds,
)
from x_transformers.features.layer_positions import LayerPositionsInModel
from x_transformers.features.memory.compressive import CompressiveMemory
from x_transformers.features.memory.knn import KNNMemoryOfModel
from x_transformers.features.patterns import PatternsInModel
from x_transformers.features.untied import UntiedPositionsInModel
from x_transformers.features.windows import MemSameLength
from x_transformers.flags import (
    ConfigError,
    Configurable,
    Feature,
    a_callable,
    boolean,
    count,
    instance_of,
    is_int,
    none,
    size,
    warn_once,
)
from x_transformers.generation.engine import IncrementalModel, eval_modules
from x_transformers.generation.sampling import (
    align_right as align_right,
    check_temperature,
    lens_of_real,
    require,
    shift_right,
)
from x_transformers.keywords import ContinuousTransformerWrapperCall, ContinuousTransformerWrapperKeywords, Unpack
from x_transformers.modalities.conv_stem import ConvStem, convolutions
from x_transformers.training.items import share_of_items
from x_transformers.training.losses import mean_or_zero, predictable, read_of, real_tokens
from x_transformers.x_transformers import AttentionLayers as AttentionLayers, Wrapper

__all__ = ['ContinuousAutoregressiveWrapper', 'ContinuousTransformerWrapper']

CONTINUOUS: tuple[type[Feature], ...] = (
    DocumentsInModel,
    MemSameLength,
    LayerPositionsInModel,
    PatternsInModel,
    UntiedPositionsInModel,
    AbsolutePositions,
    Sinusoids,
    SumEmbeds,
    PostEmbNorm,
    MemoryTokens,
    PrependInputs,
    EmbDropout,
    CompressiveMemory,
    KNNMemoryOfModel,
    AveragePool,
)


class ContinuousTransformerWrapper(Wrapper):
    """A model of vectors around a stack:  (b, n, dim_in) -> (b, n, dim_out).

    With `probabilistic` the output is a mean and a variance, (2, b, n, dim_out). With `conv_stem` n vectors become
    fewer tokens; `max_seq_len` and all inputs except `mask` and `lens` refer to these tokens.
    """

    catalogue = CONTINUOUS

    def __init__(
        self,
        *,
        attn_layers: Annotated[AttentionLayers | nn.Module, 'stack of layers, such as `Decoder` or `Encoder`', a_stack],
        max_seq_len: Annotated[int | None, 'maximum length; 0, -1 or None: no absolute positions'] = None,
        dim_in: Annotated[int | None, 'width of the input, that of the stack if None', size | none] = None,
        dim_out: Annotated[int | None, 'width of the output, that of the stack if None', size | none] = None,
        project_in: Annotated[nn.Module | None, 'custom input projection'] = None,
        project_out: Annotated[nn.Module | None, 'custom output projection'] = None,
        max_mem_len: Annotated[int, 'number of hidden states returned as memories (Transformer-XL)', count] = 0,
        probabilistic: Annotated[bool, 'predict a mean and a variance', boolean] = False,
        use_identity_if_same_dim: Annotated[bool, 'use no projection between equal widths', boolean] = False,
        conv_stem: Annotated[
            Sequence[Sequence[int]] | None,
            '(channels, kernel, stride, padding) of convolutions instead of the input projection, with a '
            'GELU after each',
            convolutions | none,
        ] = None,
        features: Sequence[type[Feature]] | None = None,
        **flags: Unpack[ContinuousTransformerWrapperKeywords],
    ) -> None:
        super().__init__()
        for name, module, width in (('in', project_in, dim_in), ('out', project_out, dim_out)):
            if module is not None and width is not None:
                raise ConfigError(f'`project_{name}` and `dim_{name}` both set the projection, set only one')
        self.dim = self.emb_dim = known_stack(attn_layers).dim
        self.max_seq_len, self.max_mem_len = max(max_seq_len or 0, 0), max_mem_len
        self.l2norm_embed, self.probabilistic = False, bool(probabilistic)
        self.attn_layers = attn_layers
        self.conv_stem: Any = None if conv_stem is None else self._build_stem(dim_in or self.dim, conv_stem, project_in)
        self.features = self._compose(features, flags).setup()

        def projection(width_in: int, width_out: int) -> nn.Module:
            same = use_identity_if_same_dim and width_in == width_out
            return nn.Identity() if same else nn.Linear(width_in, width_out, bias=False)

        dim_in = None if conv_stem else dim_in
        self.project_in = project_in or (projection(dim_in, self.dim) if dim_in else nn.Identity())
        width_out = (dim_out or 0) * (2 if probabilistic else 1)
        self.project_out = project_out or (projection(self.dim, width_out) if dim_out else nn.Identity())
        sort_members(self, MEMBERS_OF_MODEL)

    def _build_stem(self, dim_in: int, convs: Sequence[Sequence[int]], project_in: nn.Module | None) -> ConvStem:
        if project_in is not None:
            raise ConfigError('`project_in` and `conv_stem` both bring the input to the stack, set only one')
        if convs[-1][0] != self.dim:
            raise ConfigError(f'`conv_stem` ends with {convs[-1][0]} channels, the stack has a width of {self.dim}')
        if not known_stack(self.attn_layers).sees_future:
            raise ConfigError('`conv_stem` needs a stack in which tokens see later ones: so do its convolutions')
        return ConvStem(dim_in, convs)

    if TYPE_CHECKING:
        __call__: ContinuousTransformerWrapperCall

    @checked
    def forward(
        self,
        x: Tensor,
        return_embeddings: bool = False,
        return_intermediates: bool = False,
        return_mems: bool = False,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        return_attn: bool = False,
        mems: Sequence[Tensor | None] | None = None,
        *,
        detach_mems: bool = True,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Return output vectors, or the outputs that are requested by `return_` arguments, as in `TransformerWrapper`.

        x        b n d    vectors
        mask     b n      True except for padding; or `lens` (b), the number of vectors of each sequence
        mems              memories of the previous segment, (b, m, d) per self-attention layer
        cache             intermediates or cache of an earlier call. x has all vectors, or with
                          `input_not_include_cache` the new ones
        **kwargs          inputs of the stack and of features, such as `context`; `explain(inputs=True)` lists them
        returns  b n d    with `return_embeddings` hidden states, before the output projection
        """
        x = match_precision(check_vectors(x, 'x', 'b', 'n', self.width_in), self)
        if lens is not None:
            if mask is not None:
                raise ValueError('`mask` and `lens` both say which tokens are real, give only one')
            check_lengths(lens, 'lens', *x.shape[:2])
            mask = mask_from_lengths(lens, x.shape[1])
        if self.conv_stem is not None:
            x, mask = self.through_stem(x, mask, cache, kwargs)
        request = OutputRequest(return_intermediates, return_mems, return_attn, detach_mems)
        call = open_model(self, x, mask, cache, input_not_include_cache, kwargs)
        x = call.embed_tokens(self, x, lambda x: self._embed(x, call))
        call.maps_apart = request.mems_alone
        x = call.features.apply('pool', self.run_stack(x, call, mask, mems, request.keeps, kwargs), call)
        out = x if return_embeddings else self._read_output(x)
        return self.returned(out, request, call, mems, None, x)

    def _embed(self, x: Tensor, call: ModelCall) -> Tensor:
        """Bring vectors to the width of the stack, and add positions and further inputs."""
        call.like_tokens = self.project_in(call.zero_hidden_tokens(x))
        x = call.zero_hidden_tokens(sum(call.features.collect('embed', call), call.like_tokens))
        return call.features.apply('embedded', x, call)

    @property
    def width_in(self) -> int | str:
        """Return how wide the input must be; a letter where a module of the user's settles it."""
        if self.conv_stem is not None:
            return self.conv_stem.dim_in
        return getattr(self.project_in, 'in_features', self.dim if isinstance(self.project_in, nn.Identity) else 'd')

    def through_stem(
        self, x: Tensor, mask: Tensor | None, cache: Any, inputs: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Map vectors (b, n, dim_in) to tokens (b, m, d), and their mask. All other inputs count tokens."""
        for name, given, words in (
            ('cache', cache, 'its tokens see later ones'),
            ('seq_start_pos', inputs.get('seq_start_pos'), 'give `mask`, one entry per vector of `x`'),
            ('document_ids', inputs.get('document_ids'), 'convolutions mix documents'),
        ):
            if given is not None:
                raise ValueError(f'`{name}` cannot be combined with `conv_stem`: {words}')
        mask = None if mask is None else as_mask(mask, 'mask', *x.shape[:2], like=x)
        return self.conv_stem(x, mask)

    def _read_output(self, x: Tensor) -> Tensor:
        """Return the output; with `probabilistic` even channels are means, odd ones log variances."""
        out = self.project_out(x)
        if not self.probabilistic:
            return out
        mean, log_var = rearrange(out, '... (d two) -> two ... d', two=2).unbind()
        return torch.stack((mean, clamp_to_dtype(to_float(log_var).exp(), log_var.dtype)))


# training and roll-out


class GaussianNLL(nn.Module):
    """The negative log-likelihood of `target` under means and variances `pred` (2 ...), in nats and up to a constant.

    (log v + (mean - target)^2 / v) / 2        v at least 1e-6
    """

    def forward(self, pred: Tensor, target: Tensor) -> Tensor:
        mean, variance = pred
        variance = variance.clamp(min=1e-6)
        return 0.5 * (variance.log() + (mean - target).square() / variance)


def check_sequence(x: Any, name: str, least: int, ndims: tuple[int, ...]) -> None:
    shape = ' or '.join('(n, d)' if ndim == 2 else '(b, n, d)' for ndim in ndims)
    if not torch.is_tensor(x) or not x.is_floating_point():
        raise TypeError(f'`{name}` must be a floating point tensor, got {getattr(x, "dtype", type(x).__name__)}')
    if x.ndim not in ndims or x.shape[-2] < least:
        raise ValueError(f'`{name}` must have shape {shape} with n of at least {least}, got {tuple(x.shape)}')


class ContinuousAutoregressiveWrapper(Configurable):
    """A causal model of vectors with its next-vector loss, and generation.

        forward   vectors (b, n, d) -> the mean loss of each vector given the vectors before it

    The wrapper has no parameters; those of the model are stored under `net.`.
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of vectors, as ContinuousTransformerWrapper', instance_of(nn.Module)],
        loss_fn: Annotated[
            Callable[[Tensor, Tensor], Tensor] | None,
            'function from (prediction, target) to one loss per entry; default: Gaussian likelihood, L1 or '
            'squared error',
            none | a_callable,
        ] = None,
        use_l1_loss: Annotated[bool, 'use absolute instead of squared errors', boolean] = False,
        equal_loss_weight_batch: Annotated[
            bool, 'weight all sequences equally in the loss, whatever their length', boolean
        ] = False,
    ) -> None:
        super().__init__()
        check_net(net)
        self.net = net
        self.max_seq_len = net.max_seq_len
        self.probabilistic = bool(getattr(net, 'probabilistic', False))
        self.equal_loss_weight_batch = equal_loss_weight_batch
        if use_l1_loss and (loss_fn is not None or self.probabilistic):
            other = 'a `loss_fn`' if loss_fn is not None else 'a `probabilistic` net'
            warn_once(f'`use_l1_loss` has no effect with {other}')
        if loss_fn is None:
            squares = nn.L1Loss if use_l1_loss else nn.MSELoss
            loss_fn = GaussianNLL() if self.probabilistic else squares(reduction='none')
        self.loss_fn = loss_fn

    @checked
    def forward(
        self,
        x: Tensor,
        rollout_steps: int = 1,
        *,
        lens: Tensor | None = None,
        mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the mean loss of predicting each vector of `x` from the vectors before it.

        x              b n d   vectors, n of at least 2
        rollout_steps          with s > 1, the loss of s consecutive vectors, for which the model gets its own
                               predictions as input (the means, if it is probabilistic). They start at a random index
                               of each sequence, after at least one vector; shorter sequences are ignored
        lens           b       number of vectors of each sequence, or
        mask           b n     True except for padding, which is neither a target nor used for predictions
        num_items_in_batch     divide the sum of the losses of predicted vectors by this number, so that batches add up
        **kwargs               passed to the model: `context`, `condition`, ...
        returns                scalar; 0 if there is no target
        raises                 ValueError or TypeError for inputs of another shape or kind
        """
        check_sequence(x, 'x', 2, (3,))
        size.require('rollout_steps', rollout_steps)
        refuse_own(kwargs, 'the loss', SET_BY_VECTORS)
        if num_items_in_batch is not None and self.equal_loss_weight_batch:
            raise ValueError('`num_items_in_batch` cannot be combined with `equal_loss_weight_batch`, a mean over rows')
        if lens is not None and mask is not None:
            raise ValueError('`lens` and `mask` cannot both be given: they say the same')
        token_mask: Any = real_tokens(x, mask, lens, kwargs.get('seq_start_pos'))
        x = x if token_mask is None else x.masked_fill(~token_mask.unsqueeze(-1), 0.0)
        if rollout_steps > 1:
            if mask is not None:
                raise ValueError('`mask` cannot be given with `rollout_steps`, give `lens`')
            return self._roll_out(x, rollout_steps, lens, num_items_in_batch, kwargs)

        shown: Any = token_mask
        inputs = kwargs if mask is None and lens is None else kwargs | {'mask': read_of(shown)}
        with AuxLosses() as aux:
            prediction = self.net(x[:, :-1], **inputs)
        counts = None if token_mask is None else predictable(token_mask)
        return self._added_loss_of(prediction, x[:, 1:], counts, aux, num_items_in_batch)

    def forward_rollout(self, x: Tensor, rollout_steps: int = 2, **inputs: Any) -> Tensor:
        """Return the loss of the call with these `rollout_steps`."""
        return self(x, rollout_steps=rollout_steps, **inputs)

    def _roll_out(self, x: Tensor, steps: int, lens: Tensor | None, num_items: Any, inputs: dict[str, Any]) -> Tensor:
        """Return the loss of `steps` consecutive predictions, after the true vectors each from its own."""
        b, n, _ = x.shape
        if n <= steps:
            raise ValueError(f'`x` holds {n} vectors, `rollout_steps` of {steps} needs {steps + 1}')
        refuse_own(inputs, 'a roll-out', {'seq_start_pos': ', give `lens`'})
        room = (x.new_full((b,), n, dtype=torch.long) if lens is None else lens.to(x.device)) - steps
        # rows that are too short start anywhere, and are left out of the mean
        known = (1 + (torch.rand(b, dtype=torch.float32, device=x.device) * room).long()).clamp(max=room).clamp(min=1)

        # the known vectors end at the same place in all rows
        pads = n - steps - known
        sequence = shift_right(x[:, : n - steps], pads)
        caches = not self.net.training or getattr(self.net, 'can_cache_kv_in_training', True)
        reader, predictions = IncrementalModel(self.net, inputs, restrict=False, cache_kv=caches), []
        aux = AuxLosses()
        for _ in range(steps):
            with AuxLosses() as of_step:
                predictions.append(reader.read(sequence, pads))
            aux.take(of_step, 1 / steps)
            new = predictions[-1][0] if self.probabilistic else predictions[-1]
            check_width(new, x)
            sequence = torch.cat((sequence, rearrange(new, 'b d -> b 1 d')), dim=1)
        places = rearrange(known, 'b -> b 1') + torch.arange(steps, device=x.device)
        target = x[torch.arange(b, device=x.device).unsqueeze(-1), places]
        counts = None if lens is None else repeat(room > 0, 'b -> b s', s=steps)
        return self._added_loss_of(torch.stack(predictions, dim=-2), target, counts, aux, num_items)

    def _added_loss_of(
        self, prediction: Tensor, target: Tensor, mask: Tensor | None, aux: AuxLosses, num_items: Any
    ) -> Tensor:
        """Return the mean loss with the losses of features, or their share in `num_items`."""
        loss, share = self._loss_of(prediction, target, mask), 1
        if num_items is not None:
            all_count = target.new_ones(target.shape[:2], dtype=torch.bool)
            share = share_of_items(all_count if mask is None else mask, num_items)
        return aux.added_to(loss * share, share)

    def _loss_of(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean of the loss over tokens and features, of those of `mask` (b n), if given; 0 of none."""
        if mask is not None:
            # What does not count is left out before and after the loss: its gradient is 0, and not 0 times NaN.
            hidden = ~rearrange(mask, 'b n -> b n 1')
            target = target.masked_fill(hidden, 0.0)
            if torch.is_tensor(prediction) and prediction.shape[-3:-1] == mask.shape:
                prediction = prediction.masked_fill(hidden, 0.0)
        losses = self.loss_fn(to_float(prediction), to_float(target))
        if mask is None:
            return mean_or_zero(losses)
        if losses.shape[:2] != mask.shape:
            got = f'got a loss of shape {tuple(losses.shape)} for targets of shape {tuple(target.shape)}'
            raise ValueError(f'`loss_fn` must not reduce where `lens` or `mask` is given: {got}')
        losses = reduce(losses, 'b n ... -> b n', 'mean') if losses.ndim > 2 else losses
        losses, counts = losses.masked_fill(~mask, 0.0), mask.sum(dim=-1)
        if not self.equal_loss_weight_batch:
            return losses.sum() / counts.sum().clamp(min=1)
        return (losses.sum(dim=-1) / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)

    @checked
    def generate(
        self,
        start_tokens: Tensor,
        seq_len: int,
        temperature: float = 1.0,
        cache_kv: bool = True,
        generator: Generator | None = None,
        *,
        seq_start_pos: Tensor | None = None,
        slide_cache: bool = True,
        **kwargs: Any,
    ) -> Tensor:
        """Continue sequences of vectors by `seq_len`. Without gradients, in eval mode.

            start_tokens  [b] n d   vectors to start from, n of at least 1
            seq_len                 number of vectors to generate
            temperature   0 ..      factor of the standard deviation, if the model is probabilistic; 0 for the mean
            cache_kv                use the KV cache, if the model supports it
            slide_cache             past `max_seq_len`, keep the cache of the last vectors, or recompute them
            generator               random number generator, on the device of the model
            seq_start_pos [b]       number of padding vectors before each start
            **kwargs                passed to every call of the model: `context`, ..., and a `mask` (b n) of the start
            returns       [b] s d   the new vectors only
            raises                  ValueError or TypeError for arguments out of range

        Past `max_seq_len` the oldest vectors are evicted from the cache. Keys of deeper layers still depend on them, so
        that the result is that of attention with a window, `attn_max_attend_past=max_seq_len - 1`. Without a cache, or
        with `slide_cache=False`, the last `max_seq_len` vectors are recomputed at each step, and only they matter.
        """
        check_sequence(start_tokens, 'start_tokens', 1, (2, 3))
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        check_temperature(temperature)
        refuse_own(kwargs, 'generate', SET_BY_GENERATION)
        *leading, n, d = start_tokens.shape
        batch = math.prod(leading)
        start = start_tokens.reshape(-1, n, d)
        token_mask = as_mask(kwargs.get('mask'), 'mask', batch, n, like=start)
        if seq_start_pos is not None:
            check_lengths(check_tensor(seq_start_pos, 'seq_start_pos').reshape(-1), 'seq_start_pos', batch, n)
        elif (lens := lens_of_real(token_mask)) is not None:
            start, seq_start_pos = align_right(start, lens, 0.0), n - lens
            del kwargs['mask']
        sequence = F.pad(start, (0, 0, 0, seq_len))
        reader = IncrementalModel(self.net, kwargs, cache_kv=cache_kv, slides=slide_cache)
        with eval_modules(list(self.modules())):
            for place in range(n, n + seq_len):
                new = self._draw(reader.read(sequence[:, :place], seq_start_pos), temperature, generator)
                check_width(new, start_tokens)
                sequence[:, place] = new
        return sequence[:, n:].reshape(*leading, seq_len, d)

    def _draw(self, prediction: Tensor, temperature: float, generator: Generator | None) -> Tensor:
        """Draw a vector from the predicted distribution (2 b d), or the prediction (b d) itself."""
        if not self.probabilistic:
            return prediction
        mean, variance = prediction
        if temperature == 0:
            return mean
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        return mean + (to_float(variance).clamp(min=1e-5).sqrt() * temperature * noise).to(mean.dtype)


def check_width(new: Tensor, x: Tensor) -> None:
    if new.shape[-1] != x.shape[-1]:
        raise ValueError(
            f'the net gives vectors of {new.shape[-1]} features for vectors of {x.shape[-1]}: to continue from its own '
            'predictions, its `dim_out` must be its `dim_in`'
        )


SET_BY_VECTORS = {**SET_BY_LOSS, 'prepend_embeds': ': the loss is that of all vectors'}

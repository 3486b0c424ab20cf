"""Vectors in, vectors out: the model for real-valued sequences, and its next-step training and roll-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates, cache_of
from x_transformers.calls import model_call
from x_transformers.continuous_wrapper_part import ContinuousAutoregressiveWrapper
from x_transformers.features.catalogue import catalogue_for
from x_transformers.features.embeddings import (
    AbsolutePositions,
    AveragePool,
    EmbDropout,
    MemoryTokens,
    PostEmbNorm,
    PrependInputs,
    SumEmbeds,
)
from x_transformers.flags import (
    ConfigError,
    Feature,
    Features,
    an_instance,
    boolean,
    count,
    none,
    resolve,
    size,
)
from x_transformers.x_transformers import AttentionLayers, Wrapper, returned

__all__ = ['ContinuousAutoregressiveWrapper', 'ContinuousTransformerWrapper']

CONTINUOUS: tuple[type[Feature], ...] = (
    AbsolutePositions,
    SumEmbeds,
    PostEmbNorm,
    MemoryTokens,
    PrependInputs,
    EmbDropout,
    AveragePool,
)


class ContinuousTransformerWrapper(Wrapper):
    """Vectors in, vectors out:  b n dim_in -> b n dim_out, around any stack.

    With `probabilistic` the output is a mean and a variance, (2 b n dim_out).
    """

    catalogue = CONTINUOUS

    def __init__(
        self,
        *,
        attn_layers: Annotated[AttentionLayers, 'the stack', an_instance(AttentionLayers)],
        max_seq_len: Annotated[
            int | None, 'longest sequence with absolute positions; 0, -1 or None for none of them'
        ] = None,
        dim_in: Annotated[int | None, 'width of the input, that of the stack if None', size | none] = None,
        dim_out: Annotated[int | None, 'width of the output, that of the stack if None', size | none] = None,
        project_in: Annotated[nn.Module | None, 'an input projection of your own'] = None,
        project_out: Annotated[nn.Module | None, 'an output projection of your own'] = None,
        max_mem_len: Annotated[int, 'hidden states kept as memories', count] = 0,
        probabilistic: Annotated[bool, 'give a mean and a variance', boolean] = False,
        use_identity_if_same_dim: Annotated[bool, 'no projection between equal widths', boolean] = False,
        features: Sequence[type[Feature]] | None = None,
        **flags: Any,
    ) -> None:
        super().__init__()
        for name, module, width in (('in', project_in, dim_in), ('out', project_out, dim_out)):
            if module is not None and width is not None:
                raise ConfigError(f'`project_{name}` and `dim_{name}` both set the projection, set only one')
        self.dim = self.emb_dim = attn_layers.dim
        self.max_seq_len, self.max_mem_len = max(max_seq_len or 0, 0), max_mem_len
        self.l2norm_embed, self.probabilistic = False, bool(probabilistic)
        self.attn_layers = attn_layers
        catalogue = catalogue_for(CONTINUOUS, features)
        self.features = Features(self, catalogue, resolve(catalogue, flags, 'ContinuousTransformerWrapper')).setup()
        self.num_memory_tokens = next(
            (f.num_memory_tokens for f in self.features.active if 'num_memory_tokens' in f.flags), 0
        )

        def projection(width_in: int, width_out: int) -> nn.Module:
            same = use_identity_if_same_dim and width_in == width_out
            return nn.Identity() if same else nn.Linear(width_in, width_out, bias=False)

        self.project_in = project_in or (projection(dim_in, self.dim) if dim_in else nn.Identity())
        width_out = (dim_out or 0) * (2 if probabilistic else 1)
        self.project_out = project_out or (projection(self.dim, width_out) if dim_out else nn.Identity())

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
        detach_mems: bool = True,
        cache: LayerIntermediates | Cache | None = None,
        input_not_include_cache: bool = False,
        **kwargs: Any,
    ) -> Any:
        if x.ndim != 3 or not x.is_floating_point():
            raise ValueError(f'`x` got {x.dtype} of shape {tuple(x.shape)}, it must be vectors (b, n, d)')
        if lens is not None:
            if mask is not None:
                raise ValueError('`mask` and `lens` both say which tokens are real, give only one')
            mask = torch.arange(x.shape[1], device=x.device) < lens.unsqueeze(-1)
        read = {name for feature in self.features.active for name in feature.takes}
        inputs = {name: kwargs.pop(name) for name in list(kwargs) if name in read}
        inputs['seq_start_pos'] = kwargs.get('seq_start_pos')
        call = model_call(inputs, x.shape[1], cache_of(cache), input_not_include_cache)
        call.like_tokens = x = x[:, x.shape[1] - call.new :]
        x = sum(self.features.gather('embed', call), self.project_in(x))
        x = self.features.down('embedded', x, call)
        x = self.features.down('pool', self.run_stack(x, call, mask, mems, kwargs), call)
        out = x if return_embeddings else self.read(x)
        if return_mems:
            call.trace.mems = self.new_mems(call.trace, mems, detach_mems)
        return returned(out, call.trace, return_intermediates, return_mems, return_attn)

    def read(self, x: Tensor) -> Tensor:
        """The output; with `probabilistic` its even channels are means, and the odd ones logarithms of variances."""
        out = self.project_out(x)
        if not self.probabilistic:
            return out
        mean, log_var = out.unflatten(-1, (-1, 2)).unbind(dim=-1)
        return torch.stack((mean, log_var.exp()))

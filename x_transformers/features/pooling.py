"""Pooling of a sequence to one or a few vectors: attention of learned queries, and a layer after pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_vectors, checked
from x_transformers.features.feedforward import ACTIVATIONS
from x_transformers.flags import ConfigError, Configurable, boolean, count, mapping, none, one_of, size


class PooledHead(nn.Sequential):
    """A linear layer and an activation after pooling:  (..., width) -> (..., dim).  BERT, arXiv:1810.04805

    options   `dim` (default: that of the input), `activation` by name ('tanh') or None, and `bias` (True)
    """

    def __init__(self, width: int, options: Mapping[str, Any]) -> None:
        values = {'dim': width, 'activation': 'tanh', 'bias': True, **options}
        checks = {'dim': size, 'activation': one_of(*ACTIVATIONS) | none, 'bias': boolean}
        for name, value in values.items():
            if name not in checks:
                raise ConfigError(f'`pooler` got {name!r}, its keys are `dim`, `activation` and `bias`')
            if not checks[name].test(value):
                raise ConfigError(f'`{name}` of `pooler` must be {checks[name].words}, got {value!r}')
        linear = nn.Linear(width, values['dim'], bias=bool(values['bias']))
        name = values['activation']
        super().__init__(linear, nn.Identity() if name is None else ACTIVATIONS[name]())


class Pool(Configurable):
    """Attention pooling by learned queries:  (b, n, dim_context) -> (b, num_pooled_tokens, dim).

    With one layer this is a single attention layer without norms and residual, otherwise a cross-attention stack.
    """

    attention: ClassVar[type[nn.Module]]
    blocks: ClassVar[type[nn.Module]]

    def __init__(
        self,
        dim: Annotated[int, 'width of the queries and of the output', size],
        num_pooled_tokens: Annotated[int, 'number of queries; 0 if every call passes its own', count] = 1,
        dim_context: Annotated[int | None, 'width of the sequence, `dim` if None', size | none] = None,
        add_residual: Annotated[bool, 'add the queries to the output', boolean] = False,
        depth: Annotated[int, 'number of blocks', size] = 1,
        heads: Annotated[int, 'number of heads', size] = 8,
        dim_head: Annotated[int, 'width of each attention head', size] = 64,
        use_transformer_blocks: Annotated[
            bool | None, 'blocks with norms, residuals and feedforwards; None: if `depth` is above 1', boolean | none
        ] = None,
        squeeze_output: Annotated[bool | None, 'drop the axis of a single query', boolean | none] = None,
        attn_kwargs: Annotated[dict | None, 'further keywords of the attention', mapping | none] = None,
    ) -> None:
        super().__init__()
        blocks = depth > 1 if use_transformer_blocks is None else bool(use_transformer_blocks)
        if squeeze_output and num_pooled_tokens != 1:
            raise ConfigError(f'`squeeze_output` needs `num_pooled_tokens` of 1, it is {num_pooled_tokens}')
        if depth > 1 and not blocks:
            raise ConfigError(f'`depth` must be 1 without `use_transformer_blocks`, got {depth}')
        if add_residual and blocks:
            raise ConfigError('`add_residual` cannot be combined with `use_transformer_blocks`: blocks have residuals')
        self.dim, self.dim_context, self.squeeze_output = dim, dim_context or dim, bool(squeeze_output)
        self.add_residual = bool(add_residual)
        self.queries = nn.Parameter(torch.randn(num_pooled_tokens, dim) * 1e-2) if num_pooled_tokens else None
        options = attn_kwargs or {}
        if blocks:
            prefixed = {f'attn_{name}': value for name, value in options.items()}
            widths = dict(attn_dim_head=dim_head, cross_attn_dim_context=dim_context)
            self.pooler = self.blocks(dim=dim, depth=depth, heads=heads, **widths, **prefixed)
        else:
            self.pooler = self.attention(dim=dim, dim_context=dim_context, heads=heads, dim_head=dim_head, **options)

    @checked
    def forward(
        self, context: Tensor, mask: Tensor | None = None, queries: Tensor | None = None, **inputs: Any
    ) -> Tensor:
        """Pool `context` (b n dim_context), with `queries` (b k dim) or (k dim) of the caller or the learned ones."""
        check_vectors(context, 'context', 'b', 'n', self.dim_context)
        mask = as_mask(mask, 'mask', *context.shape[:2], like=context)
        if inputs.pop('context_mask', None) is not None:
            raise ValueError('`context_mask` cannot be given to AttentionPool: it is its `mask`')
        if queries is None:
            queries = self.queries
        if queries is None:
            raise ValueError('`queries` is missing: the pool has none of its own, `num_pooled_tokens` is 0')
        width: Any = self.pooler.dim if isinstance(self.pooler, self.attention) else 'd'
        check_vectors(queries, 'queries', *((context.shape[0],) if queries.ndim == 3 and queries.shape[0] > 1 else ()),
                      *((1,) if queries.ndim == 3 and queries.shape[0] == 1 else ()), 'k', width)  # fmt: skip
        queries = queries.expand(context.shape[0], -1, -1)
        pooled = self.pooler(queries, context=context, context_mask=mask, **inputs)
        pooled = pooled + queries if self.add_residual else pooled
        return pooled.squeeze(1) if self.squeeze_output else pooled

"""Permutation language modeling: tokens are predicted in random order, each from the earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_mask, check_ids, check_range, check_tensor, checked
from x_transformers.core.nets import check_every_place, refuse_own
from x_transformers.flags import ConfigError, Configurable, count, instance_of, none, size
from x_transformers.generation.choice import GenerationHistory, TokenSampler
from x_transformers.generation.engine import eval_modules
from x_transformers.generation.failures import FailedRows
from x_transformers.generation.sampling import mask_token
from x_transformers.objectives.masked import loss_of_labels, share
from x_transformers.training.items import share_of_items
from x_transformers.training.masking import IGNORED, chosen_tokens, get_share, random_rank, rank_tokens
from x_transformers.training.token_loss import read_logits_later

__all__ = ['PermutationLMWrapper', 'PredictionOrder']

SET_BY_WRAPPER = {
    'prepend_embeds': ': places are those of tokens',
    'cache': ': tokens are told in any order',
    'input_not_include_cache': ': tokens are told in any order',
    'seq_start_pos': ': pad rows on the right, by `mask`',
    'attn_mask': ': the order says which token sees which',
    'stream_ranks': ', give `ranks`',
    'stream_at': ', give `ranks`',
    'logits_to_keep': ': logits are those of predicted tokens',
}
PER_TOKEN = ('pos', 'self_attn_kv_mask')  # inputs of the net with a value for each token


class PredictionOrder(NamedTuple):
    """Order in which the tokens of each sequence are predicted.

    ranks    b n   the place of each token in the order; -1 for those that are known from the start
    places   b k   which tokens are predicted, in the order of their rows; k is as many as there may be, others follow
    labels   b k   what they are, -100 for those that follow
    """

    ranks: Tensor
    places: Tensor
    labels: Tensor


class PermutationLMWrapper(Configurable):
    """Permutation language model (XLNet): predict some tokens of a sequence autoregressively, in a random order.

        z      a random order of the tokens, of which the last ceil(predict_frac n) are predicted
        loss = mean over these of  -ln p(x_t | tokens that are not predicted, tokens before t in z, position of t)

    `net` is a `TransformerWrapper` around an `Encoder(two_stream=True)`. Tokens that are not
    predicted attend to each other. With `perm_len`, tokens are permuted within pieces of that length, and a fraction of
    each piece is predicted. All tokens attend to `mems`, the memories of an earlier segment.

    Yang et al. 2019, arXiv:1906.08237
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'model of tokens around an Encoder(two_stream=True)', instance_of(nn.Module)],
        predict_frac: Annotated[float, 'fraction of the tokens of a sequence that are predicted', share] = 1 / 6,
        perm_len: Annotated[
            int | None,
            'length of the pieces within which tokens are permuted; None for the whole sequence',
            size | none,
        ] = None,
        pad_token_id: Annotated[
            int | None,
            'id of the padding token, which is masked and not predicted',
            count | none,  # pyright: ignore[reportOperatorIssue]  the check, not the method
        ] = None,
    ) -> None:
        super().__init__()
        check_every_place(net)
        if not getattr(getattr(net, 'attn_layers', None), 'two_stream', False):
            raise ConfigError('`net` has no stream of queries: its stack must be an Encoder(two_stream=True)')
        if not getattr(net, 'can_keep_logits', False):
            raise ConfigError(f'`net` must give logits of its last tokens alone, got {type(net).__name__}')
        self.net, self.predict_frac, self.perm_len, self.pad_token_id = net, predict_frac, perm_len, pad_token_id

    @checked
    def forward(
        self,
        x: Tensor,
        return_outputs: bool = False,
        mask: Tensor | None = None,
        ranks: Tensor | None = None,
        mems: Sequence[Tensor] | None = None,
        return_mems: bool = False,
        generator: Generator | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the mean loss of predicted tokens, in nats.

        x               b n   ids
        return_outputs        also return `(logits, order)`: logits (b k l) at `places` of the `PredictionOrder`
        mask            b n   True for real tokens; `pad_token_id` is none in any case
        ranks           b n   the order, -1 for tokens that are known from the start; drawn if None
        mems                  of the segment before, as `return_mems` gave them
        return_mems           also return what the next segment may read: needs `max_mem_len` of the net
        generator             random number generator, on the device of `x`
        num_items_in_batch    divide the sum of the losses of predicted tokens by this number, so that batches add up
        **kwargs              passed to the model: `segment_ids`, `embed_ids`, `pos`, ...
        returns               scalar, 0 if nothing is predicted; or a tuple `(loss, [(logits, order)], [mems])`
        raises                ValueError or TypeError for inputs of another shape or kind
        """
        x = check_ids(x, least=1, num_tokens=getattr(self.net, 'num_tokens', None))
        refuse_own(kwargs, 'the loss', SET_BY_WRAPPER)
        token_mask = self.real(x, mask)
        order = self.order(x, token_mask, ranks, generator)
        options = {} if return_outputs else read_logits_later(self.net)
        if return_mems and not getattr(self.net, 'max_mem_len', 0):
            raise ValueError('`return_mems` needs `max_mem_len` of the net')
        with AuxLosses() as aux:
            out = self.predict(x, order, token_mask, mems=mems, return_mems=return_mems, **options, **kwargs)
        logits, new = out if return_mems else (out, None)
        share = share_of_items(order.labels != IGNORED, num_items_in_batch)
        loss = aux.added_to(loss_of_labels(self.net, logits, order.labels, num_items_in_batch), share)
        found = [loss, *([(logits, order)] if return_outputs else ()), *([new] if return_mems else ())]
        return loss if len(found) == 1 else tuple(found)

    def real(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        token_mask = as_mask(mask, 'mask', *x.shape, like=x)
        if self.pad_token_id is None:
            return token_mask
        return x != self.pad_token_id if token_mask is None else token_mask & (x != self.pad_token_id)

    def order(
        self, x: Tensor, real: Tensor | None = None, ranks: Tensor | None = None, generator: Generator | None = None
    ) -> PredictionOrder:
        """Return the order in which tokens of `x` (b, n) are predicted, drawn unless `ranks` gives it."""
        real = torch.ones_like(x, dtype=torch.bool) if real is None else real
        if ranks is None:
            ranks = self.drawn(real, generator)
            count = self.count(x.shape[1])
        else:
            if check_tensor(ranks, 'ranks').shape != x.shape or ranks.is_floating_point():
                got = f'{ranks.dtype} of shape {tuple(ranks.shape)}'
                raise ValueError(f'`ranks` must be whole numbers {tuple(x.shape)}, got {got}')
            check_range(ranks, 'ranks', -1, None, 'ranks')
            ranks = ranks.long().masked_fill(~real, -1)
            count = max(int((ranks >= 0).sum(dim=-1).max()), 1)
        known = ranks < 0
        places = known.byte().argsort(dim=-1, stable=True)[:, :count]
        return PredictionOrder(ranks, places, x.gather(1, places).masked_fill(known.gather(1, places), IGNORED))

    def pieces(self, n: int) -> list[int]:
        size = n if self.perm_len is None else self.perm_len
        return [min(size, n - start) for start in range(0, n, size)]

    def count(self, n: int) -> int:
        """Return the number of predicted tokens of a sequence of n without padding."""
        total: Any = sum(get_share(piece, self.predict_frac) for piece in self.pieces(n))
        return total

    def drawn(self, real: Tensor, generator: Generator | None) -> Tensor:
        """Return a random rank for each token (b, n), -1 for those that are not predicted."""
        b, n = real.shape
        size = self.pieces(n)[0]
        whole = n + -n % size
        pieces = F.pad(real, (0, whole - n)).reshape(-1, size)
        chosen = chosen_tokens(pieces, self.predict_frac, generator)
        inside = random_rank(chosen, generator).view(b, whole)
        place = torch.arange(whole, device=real.device)
        return (inside + place - place % size).masked_fill(~chosen.view(b, whole), -1)[:, :n]

    def predict(self, x: Tensor, order: PredictionOrder, real: Tensor | None = None, **inputs: Any) -> Any:
        """Return the predictions of the net for the tokens at `places`, (b, k, l)."""
        places = order.places
        ids = F.pad(x, (0, places.shape[1]))  # what is asked for is not shown
        for name in PER_TOKEN:
            given = inputs.get(name)
            if given is not None:
                inputs[name] = concat_both(given, name, places)
        if inputs.get('embed_ids') is not None:
            inputs['embed_ids'] = {n: concat_both(t, f'embed_ids[{n}]', places) for n, t in inputs['embed_ids'].items()}
        mask = {} if real is None else {'mask': concat_both(real, 'mask', places)}
        mems = inputs.pop('mems', None)
        mems = {} if mems is None else {'mems': mems}
        of_streams = dict(stream_ranks=order.ranks, stream_at=places, logits_to_keep=places.shape[1])
        return self.net(ids, **mask, **mems, **of_streams, **inputs)

    @torch.no_grad()
    @checked
    def infill(
        self,
        x: Tensor,
        missing: Tensor,
        temperature: float = 1.0,
        filter_logits_fn: Any = 'top_k',
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        *,
        ranks: Tensor | None = None,
        mask: Tensor | None = None,
        generator: Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return `x` with its missing tokens filled in one after another, each given all tokens known so far.

        x                  b n   ids; those of missing tokens are not read
        missing            b n   True for tokens to fill in
        temperature  0 ..        0 for the most likely token
        filter_logits_fn         which tokens may be drawn, and its arguments, as in `AutoregressiveWrapper.generate`
        ranks              b n   in which order they are filled in; from left to right if None
        **kwargs                 `logit_bias`, `banned_tokens`, `allowed_tokens` and `repetition_penalty`, as in
                                 `AutoregressiveWrapper.generate`; others are passed to every call of the model
        returns            b n
        raises                   ValueError or TypeError for inputs of another shape or kind
        """
        kwargs |= dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        choice = TokenSampler.taken_from(
            {name: kwargs.pop(name) for name in CHOOSING if name in kwargs}, generator=generator
        )
        x = check_ids(x, least=1, num_tokens=getattr(self.net, 'num_tokens', None))
        refuse_own(kwargs, '`infill`', SET_BY_WRAPPER)
        never, failed = -1 if self.pad_token_id is None else self.pad_token_id, FailedRows()
        token_mask = self.real(x, mask)
        missing = as_mask(missing, 'missing', *x.shape, like=x)
        missing = missing if token_mask is None else missing & token_mask
        if ranks is not None and ranks.shape != x.shape:
            raise ValueError(f'`ranks` must have shape {tuple(x.shape)}, got {tuple(ranks.shape)}')
        place = torch.arange(x.shape[1], device=x.device).expand_as(x)
        behind = torch.iinfo(torch.int64).max
        order = rank_tokens((place if ranks is None else ranks.long()).masked_fill(~missing, behind))
        x, known = x.masked_fill(missing, 0), order.masked_fill(~missing, -1)
        with eval_modules(list(self.modules())):
            for step in range(int(missing.sum(dim=-1).max()) if len(x) else 0):
                at = (order == step).byte().argmax(dim=-1, keepdim=True)
                logits = self.predict(x, PredictionOrder(known, at, at), token_mask, **kwargs)[:, -1]
                history = GenerationHistory(
                    x, x.shape[1], mask=known < step if token_mask is None else (known < step) & token_mask
                )
                tokens, largest = choice.draw(choice.process_logits(mask_token(logits, never), history))
                here = (order == step) & missing
                failed.add(largest, ignored=~here.any(dim=-1))
                x = torch.where(here, tokens.view(-1, 1), x)
        failed.raise_first()
        return x


# options of `TokenSampler` that do not depend on the order of tokens
CHOOSING = (
    'temperature', 'filter_logits_fn', 'filter_kwargs', 'logit_bias', 'banned_tokens', 'allowed_tokens',
    'repetition_penalty',
)  # fmt: skip


def concat_both(t: Tensor, name: str, places: Tensor) -> Tensor:
    """Return values of tokens, (n, ...) or (b, n, ...), with a copy for the query stream appended."""
    t = check_tensor(t, name)
    t = t.expand(places.shape[0], *t.shape[-1:]) if t.ndim == 1 else t
    index = places.view(*places.shape, *[1] * (t.ndim - 2)).expand(*places.shape, *t.shape[2:])
    return torch.cat((t, t.gather(1, index)), dim=1)

"""Language models over segments, each of which remembers those before it: as memories, or as what it learned.

What belongs here: `XLAutoregressiveWrapper` with truncated backpropagation, the reader of its generation, and episodic
memories. How modules learn at test time is in `objectives/test_time_training.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Generator, Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import as_number, check_ids, checked
from x_transformers.core.modes import maps_apart
from x_transformers.core.nets import check_net, counts_tokens, refuse_own
from x_transformers.core.own_modules import known_stack
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    Features,
    boolean,
    count,
    instance_of,
    integer,
    is_int,
    none,
    number,
    positive,
    size,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import Decoding, eval_modules
from x_transformers.generation.methods import Prompts
from x_transformers.generation.sampling import even_prompts, require, top_k as top_k
from x_transformers.objectives.test_time_training import (
    InnerStep,
    LowRankLinear,
    TestTimeTraining,
    TTTMetaLearningTargetKLLoss,
    TTTModuleWrapper,
    TTTNextLatentPredictionLoss,
    newtonschulz5,
    row_means,
)
from x_transformers.training.items import count_items
from x_transformers.training.losses import mask_before_padding, read_of, readable
from x_transformers.training.token_loss import Terms, read_logits_later, token_losses, weighted_token_loss
from x_transformers.x_transformers import Attention

__all__ = [
    'EpisodicMemories',
    'EpisodicMemoryWrapper',
    'LowRankLinear',
    'TTTMetaLearningTargetKLLoss',
    'TTTModuleWrapper',
    'TTTNextLatentPredictionLoss',
    'XLAutoregressiveWrapper',
    'newtonschulz5',
]

a_sequence = Check('a tuple', lambda value: isinstance(value, (tuple, list)))

OF_ALL_TOKENS = {
    name: ': it would have to be cut into segments'
    for name in ('mask', 'pos', 'attn_mask', 'self_attn_kv_mask', 'seq_start_pos', 'embed_ids', 'sum_embeds')
} | {name: ': a segment begins with its first token' for name in ('prepend_embeds', 'prepend_mask')}
SET_BY_SEGMENTS = OF_ALL_TOKENS | {
    'cache': ': segments hand on memories',
    'input_not_include_cache': ': segments hand on memories',
    'detach_mems': ', give `tbptt_steps` to the wrapper',
    'mem_masks': ': every memory is real',
}


# episodic memories


class EpisodicMemories(nn.Module):
    """Learned keys and values for every self-attention:  () -> 2 l k m d, for keys and values, layers and heads."""

    def __init__(self, depth: int, heads: int, seq_len: int, dim_head: int) -> None:
        super().__init__()
        self.mem_kv = nn.Parameter(torch.randn(2, depth, heads, seq_len, dim_head) * 0.02)

    def forward(self) -> Tensor:
        return self.mem_kv


class EpisodicMemoryWrapper(Configurable):
    """A model whose self-attention layers have learned keys and values, which can be trained at test time."""

    def __init__(
        self,
        net: Annotated[nn.Module, 'model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        episodic_mem_len: Annotated[int, 'number of learned key/value pairs per self-attention layer', size],
    ) -> None:
        super().__init__()
        self.net = net
        stack = known_stack(net.attn_layers)
        layers = [stack.layers[index] for index in stack.layers_execute_order if stack.layer_types[index] == 'a']
        attentions = [next(m for m in layer[1].modules() if isinstance(m, Attention)) for layer in layers]
        sizes = {(a.shape.kv_heads, a.shape.dim_head, a.shape.dim_value) for a in attentions}
        if len(sizes) != 1 or len({size for _, *widths in sizes for size in widths}) != 1:
            raise ConfigError(
                '`episodic_mem_len` needs self-attentions with equally many key heads, and keys and values of one '
                f'width: they have (heads, width of keys, of values) {sorted(sizes)}'
            )
        heads, dim_head, _ = next(iter(sizes))
        self.episodic_mems = EpisodicMemories(len(attentions), heads, episodic_mem_len, dim_head)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == 'net' or name.startswith('__'):
                raise
            return getattr(self.net, name)

    def get_additional_kv(self, batch_size: int) -> list[tuple[Tensor, Tensor]]:
        """Return the memories as pairs (b, k, m, d) of keys and values, one for each self-attention."""
        memories = self.episodic_mems()
        if memories.ndim == 5:
            memories = repeat(memories, '... -> b ...', b=batch_size)
        return [tuple(pair) for pair in rearrange(memories, 'b two l ... -> l two b ...')]

    @checked
    def forward(self, x: Tensor, **kwargs: Any) -> Any:
        x = check_ids(x, 'x', 1)
        if kwargs.get('self_attn_additional_kv') is not None:
            raise ValueError('`self_attn_additional_kv` cannot be given beside `episodic_mem_len`, which uses it')
        return self.net(x, self_attn_additional_kv=self.get_additional_kv(x.shape[0]), **kwargs)


# the wrapper


class XLAutoregressiveWrapper(Configurable):
    """Transformer-XL training over segments of `max_seq_len` tokens:  ids (b, n + 1) -> the mean next-token loss.

    Each segment attends to the last `max_mem_len` hidden states of earlier segments; gradients flow back through
    `tbptt_steps` segments.  Dai et al. 2019, arXiv:1901.02860. With test-time training, the named modules
    are updated after each segment, separately for each sequence.  Tandon et al. 2025, arXiv:2512.23675

    The parameters of the model are stored under `net.`.
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'causal model of tokens with `max_mem_len`', instance_of(nn.Module)],
        ignore_index: Annotated[int, 'target id that is ignored by the loss', integer] = -100,
        pad_value: Annotated[int, 'padding id, input for `ignore_index` and after the end of a sequence', integer] = 0,
        tbptt_steps: Annotated[int, 'number of segments through which gradients flow back', size] = 1,
        ttt_module_paths: Annotated[
            Sequence[Any],
            'dotted paths of modules that are trained at test time; in a pair of paths, the second is '
            'trained with the gradient of the first',
            a_sequence,
        ] = (),
        ttt_lr: Annotated[float, 'learning rate of the inner loop', positive] = 1e-3,
        ttt_wd: Annotated[float, 'decoupled weight decay of the inner loop', number] = 0.01,
        ttt_use_muon: Annotated[bool, 'orthogonalize the gradients of matrices (Muon)', boolean] = False,
        ttt_muon_steps: Annotated[int, 'number of Newton-Schulz iterations of Muon', size] = 5,
        ttt_muon_lr: Annotated[float, 'learning rate of matrices with Muon', positive] = 1e-2,
        ttt_low_rank_paths: Annotated[
            Sequence[tuple[str, int]], '(path, rank) of linear layers to replace by trainable low-rank ones', a_sequence
        ] = (),
        ttt_custom_loss_module: Annotated[
            nn.Module | None,
            'inner loss, from (intermediates, mask (b, n)) to (b, n) or (b,); the next-token loss if None',
            instance_of(nn.Module) | none,
        ] = None,
        ttt_next_latent_loss: Annotated[bool, 'predict the next hidden state in the inner loss', boolean] = False,
        episodic_mem_len: Annotated[int, 'number of learned key/value pairs per self-attention layer', count] = 0,
    ) -> None:
        super().__init__()
        check_net(net)
        model: Any = net
        if not model.max_seq_len or model.max_seq_len < 1:
            raise ConfigError('`net` needs a `max_seq_len`: it is the length of a segment')
        if ttt_next_latent_loss and ttt_custom_loss_module is not None:
            raise ConfigError('`ttt_next_latent_loss` and `ttt_custom_loss_module` both set the inner loss')
        learns = len(ttt_module_paths) + len(ttt_low_rank_paths) > 0
        if learns and tbptt_steps < 2:
            raise ConfigError(f'`tbptt_steps` must be at least 2 with test-time training, got {tbptt_steps}')
        if episodic_mem_len and not isinstance(net, EpisodicMemoryWrapper):
            net = EpisodicMemoryWrapper(net, episodic_mem_len)
        roots = [net.net, net] if isinstance(net, EpisodicMemoryWrapper) else [net]
        self.net = net
        self.max_seq_len, self.ignore_index, self.pad_value = net.max_seq_len, ignore_index, pad_value
        self.tbptt_steps = tbptt_steps
        step = InnerStep(ttt_lr, ttt_wd, ttt_muon_steps if ttt_use_muon else 0, ttt_muon_lr)
        self.ttt: Any = TestTimeTraining(roots, ttt_module_paths, ttt_low_rank_paths, step) if learns else None
        if ttt_next_latent_loss:
            ttt_custom_loss_module = TTTNextLatentPredictionLoss(dim=known_stack(net.attn_layers).dim)
        self.ttt_custom_loss_module = ttt_custom_loss_module

    @property
    def has_ttt(self) -> bool:
        """Return True if modules learn at test time."""
        return self.ttt is not None

    # training

    @checked
    def forward(
        self,
        x: Tensor,
        mems: Sequence[Tensor | None] | None = None,
        dropout_mems: bool = False,
        ttt_recurrent_steps: int = 1,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the mean loss of predicting each token of `x` from those before it, in nats.

        x                    b n+1   ids, n of at least 1; `ignore_index` where there is no target
        mems                         memories of earlier segments, b m d for each self-attention layer
        dropout_mems                 train all segments without memories
        ttt_recurrent_steps          number of passes over each segment, with an update after each; the last pass counts
        num_items_in_batch           divide the sum of the losses by this number, so that batches add up
        **kwargs                     passed to the model, the same for all segments: `context`, ...
        returns                      scalar; 0 if there is no target
        raises                       ValueError or TypeError for inputs of another shape or kind
        """
        x = self.check(x, mems, kwargs)
        size.require('ttt_recurrent_steps', ttt_recurrent_steps)
        if ttt_recurrent_steps > 1 and not self.has_ttt:
            raise ValueError('`ttt_recurrent_steps` needs `ttt_module_paths`: nothing learns between the readings')
        ids, targets = readable(x[:, :-1], self.ignore_index, self.pad_value), x[:, 1:]
        segments = list(zip(ids.split(self.max_seq_len, dim=1), targets.split(self.max_seq_len, dim=1), strict=True))
        masks: Sequence[Tensor] = ()
        if counts_tokens(self.net):
            masks = read_of(mask_before_padding(x, self.ignore_index)).split(self.max_seq_len, dim=1)
        total, aux, inputs = 0.0, AuxLosses(), kwargs
        with self.rows(x.shape[0]):
            for number, (segment, target) in enumerate(segments, start=1):
                last = number == len(segments)
                for reading in range(1, ttt_recurrent_steps + 1):
                    learns = self.has_ttt and not (last and reading == ttt_recurrent_steps)
                    seen = None if dropout_mems else mems
                    detach = number % self.tbptt_steps == 0
                    given = {**inputs, 'mask': masks[number - 1]} if masks else inputs
                    loss, added, new_mems, carried = self.read(segment, target, seen, given, learns, detach)
                total, mems, inputs = total + loss, new_mems, kwargs if dropout_mems else kwargs | carried
                aux.take(added, (target != self.ignore_index).sum())
                if self.has_ttt and number % self.tbptt_steps == 0:
                    self.ttt.detach()
        count = count_items(targets != self.ignore_index, num_items_in_batch)
        return aux.added_to(total / count, 1 / count)

    def check(self, x: Any, mems: Any, kwargs: dict[str, Any]) -> Tensor:
        """Return the ids as integers, after checking all inputs."""
        x = check_ids(x, 'x', 2)
        refuse_own(kwargs, 'segments', SET_BY_SEGMENTS)
        if mems is not None and not isinstance(mems, (list, tuple)):
            raise TypeError(f'`mems` must be a list with one entry per self-attention, got {type(mems).__name__}')
        return x

    def rows(self, batch: int) -> AbstractContextManager:
        """Train each sequence of a batch separately, within this context."""
        return self.ttt.rows(batch) if self.has_ttt else nullcontext()

    def read(
        self,
        segment: Tensor,
        target: Tensor,
        mems: Sequence[Tensor | None] | None,
        inputs: dict[str, Any],
        learns: bool,
        detach: bool,
    ) -> tuple[Tensor, AuxLosses, list[Tensor], dict[str, Any]]:
        """Return the summed loss of a segment, the losses of features, its memories, and further inputs of the next
        segment."""
        outer = torch.is_grad_enabled()
        second_order = learns and outer and self.training
        counts, aux = target != self.ignore_index, AuxLosses()
        with torch.set_grad_enabled(outer or learns):
            with aux, maps_apart(self.ttt_custom_loss_module is None):
                asked: Any = dict(return_mems=True, return_intermediates=True, detach_mems=detach or not outer)
                asked |= {} if self.has_ttt else read_logits_later(self.net)  # Where rows learn, heads may be theirs.
                logits, inter = self.net(segment, mems=mems, **asked, **inputs)
            if not learns:
                total = weighted_token_loss(logits, target, counts, self.terms)
                return total, aux, inter.mems, carried_by(self.net, inter)
            losses = self.losses(logits, target)
            inner = self.inner_loss(losses, target, inter)
        self.ttt.update(inner, create_graph=second_order, keep=outer)
        total = losses.sum()
        return total if outer else total.detach(), aux, inter.mems, carried_by(self.net, inter)

    @property
    def terms(self) -> Terms:
        return Terms(self.ignore_index, is_log_prob=bool(getattr(self.net, 'output_is_log_prob', False)))

    def losses(self, logits: Tensor | tuple[Tensor, ...], target: Tensor) -> Tensor:
        """Return the loss of every target (b, n), in nats; 0 where ignored, the mean over several heads."""
        each = token_losses(logits, target, self.terms)
        total: Any = sum(each)
        return total / len(each)

    def inner_loss(self, losses: Tensor, target: Tensor, inter: LayerIntermediates) -> Tensor:
        """Return the inner loss, summed over sequences, which are trained separately."""
        mask = target != self.ignore_index
        if self.ttt_custom_loss_module is not None:
            losses = self.ttt_custom_loss_module(inter, mask)
        return row_means(losses, mask).sum()

    # generation

    @checked
    def generate(
        self,
        start_tokens: Prompts,
        seq_len: int,
        eos_token: int | Sequence[int] | None = None,
        temperature: float = 1.0,
        filter_logits_fn: Any = top_k,
        filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        mems: Sequence[Tensor | None] | None = None,
        cache_kv: bool = True,
        generator: Generator | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Continue the prompts by `seq_len` tokens. Without gradients, in eval mode.

            start_tokens      ... n   ids with any leading axes
            seq_len                   number of tokens to generate; fewer if all sequences end before
            eos_token                 id that ends a sequence, or several: it is kept, `pad_value` follows. No effect in
                                      the prompt
            temperature       0 ..    0 selects the most probable token
            filter_logits_fn          filter of `generation/sampling.py` by name, a callable, or several
            filter_kwargs             its keywords, or a dict for each of several
            mems                      memories of the segments before the prompts
            cache_kv                  use the cache within a segment, if the net can
            generator                 random number generator, on the device of the model
            **kwargs                  the other options of `AutoregressiveWrapper.generate` that choose a token or end a
                                      row; further ones are passed to every call of the model: `context`, ...
            returns           ... s   the new tokens only
            raises                    ValueError or TypeError for arguments out of range

        A segment is complete when a token follows it. Then it becomes a memory, and modules with test-time training are
        updated, as in training; no token is in a segment and in its memory.
        """
        seq_len = as_number(seq_len)
        require(is_int(seq_len) and seq_len >= 0, 'seq_len', seq_len, 'an integer of at least 0')
        ids, leading = even_prompts(start_tokens, 'start_tokens', self.pad_value, next(self.net.parameters()).device)
        own: Any = dict(temperature=temperature, filter_logits_fn=filter_logits_fn, filter_kwargs=filter_kwargs)
        kwargs |= own | dict(generator=generator, eos_token=eos_token)
        choice = TokenSampler.for_wrapper(self, kwargs)
        self.check(F.pad(ids, (0, 1)), mems, kwargs)
        reader, modules = SegmentReader(self, kwargs, mems, cache_kv=cache_kv), list(self.modules())
        decoding = Decoding.from_prompts(reader, choice, modules, ids, leading, seq_len, self.pad_value)
        with eval_modules(decoding.modules), self.rows(ids.shape[0]):
            decoding.finish()
        return decoding.generated(decoding.ids[:, decoding.start :])


def carried_by(net: Any, trace: LayerIntermediates) -> dict[str, Any]:
    """Return inputs of the net for the next segment, besides `mems`."""
    features = getattr(net, 'features', None)
    found = features.collect('next_segment_inputs', trace) if isinstance(features, Features) else ()
    return {name: value for own in found for name, value in own.items()}


class SegmentReader:
    """A net that reads a growing sequence segment by segment, and remembers the complete ones.

    mems      memories from before the present segment
    start     first token of the present segment
    seen      tokens read
    hiddens   what will be the memory of the present segment, one list per reading
    last      what the last one left behind
    carried   what the calls of the present segment are given beside memories
    """

    net: Any

    def __init__(
        self,
        wrapper: XLAutoregressiveWrapper,
        inputs: dict[str, Any],
        mems: Sequence[Tensor | None] | None,
        *,
        cache_kv: bool = True,
    ) -> None:
        self.wrapper, self.net, self.inputs, self.mems = wrapper, wrapper.net, inputs, mems
        self.caching = cache_kv and bool(getattr(self.net, 'can_cache_kv', False))
        self.start = self.seen = 0
        self.cache: Any = None
        self.hiddens: list[list[Tensor]] = []
        self.last: Any = None
        self.carried: dict[str, Any] = {}

    def read(self, sequence: Tensor, pads: None = None) -> Tensor:
        """Return the logits (b l) after the last token of `sequence` (b n)."""
        size: Any = self.wrapper.max_seq_len
        while sequence.shape[1] > self.start + size:
            self.complete(sequence[:, : self.start + size + 1])
        return self.advance(sequence)

    def advance(self, sequence: Tensor) -> Tensor:
        """Read what is new in the present segment."""
        start = self.seen if self.caching else self.start
        inputs = {**self.inputs, **self.carried, 'mems': self.mems}
        if self.cache is not None:
            inputs |= dict(cache=self.cache, input_not_include_cache=True)
        logits, inter = self.net(sequence[:, start:], return_intermediates=True, **inputs)
        if self.caching:
            self.cache = inter.cache
        self.hiddens, self.last = [*(self.hiddens if self.caching else ()), inter.hiddens], inter
        self.seen = sequence.shape[1]
        return (logits[0] if isinstance(logits, tuple) else logits)[:, -1]

    def complete(self, sequence: Tensor) -> None:
        """Make memories of the present segment, or train on it; `sequence` ends with the token after it."""
        end = sequence.shape[1] - 1
        if self.wrapper.has_ttt:
            segment, target = sequence[:, self.start : end], sequence[:, self.start + 1 :]
            read = self.wrapper.read(segment, target, self.mems, self.inputs | self.carried, learns=True, detach=True)
            *_, self.mems, self.carried = read
        else:
            if self.seen < end:
                self.advance(sequence[:, :end])
            self.mems, self.carried = self.remembered(), carried_by(self.net, self.last)
        self.start = self.seen = end
        self.cache, self.last, self.hiddens = None, None, []

    def remembered(self) -> list[Tensor]:
        """Return the memories of the next segment, from those of the present one and its hidden states."""
        hiddens = [torch.cat(layer, dim=1) for layer in zip(*self.hiddens, strict=True)]
        trace = LayerIntermediates(hiddens=hiddens, model_states=self.last.model_states)
        return self.net.new_mems(trace, self.net.shifted(self.mems), True)

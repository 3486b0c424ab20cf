"""Sequence modules, such as a recurrent network, in parallel with attention (hybrid) or as layers of kind 'r'."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from x_transformers.core.branches import KINDS, Kind
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.norms import MultiheadRMSNorm
from x_transformers.flags import (
    Check,
    ConfigError,
    PerToken,
    RecurrentState,
    each,
    flag,
    format_value,
    instance_of,
    mapping,
    none,
    number,
    one_of,
    size,
    warn_once,
)
from x_transformers.recurrent import MODULES, build_module


def fold_axis(t: Tensor, count: int, consecutive: bool = False) -> Tensor:
    """Make a sequence of every `count`-th token, zeros behind the last:  b n ... -> (b count) m ...

    If they are `consecutive`, of each `count` tokens that follow one another:  b n ... -> (b m) count ...
    """
    folds = (t.shape[1] + count - 1) // count
    t = F.pad(t, (*(0, 0) * (t.ndim - 2), 0, folds * count - t.shape[1]))
    axes = 'b (m count) ... -> (b m) count ...' if consecutive else 'b (m count) ... -> (b count) m ...'
    return rearrange(t, axes, count=count)


def unfold_axis(t: Tensor, count: int, length: int, consecutive: bool = False) -> Tensor:
    """Undo `fold_axis`, to sequences of `length` tokens."""
    rows = -(-length // count) if consecutive else count
    axes = '(b rows) m ... -> b (rows m) ...' if consecutive else '(b rows) m ... -> b (m rows) ...'
    return rearrange(t, axes, rows=rows)[:, :length]


def times(t: Tensor, factor: float | None) -> Tensor:
    return t if factor is None else factor * t


class FoldAxially(nn.Module):
    """Let `fn` run along every `axial_dim`-th token:  (b, n, d) -> (b a, n / a, d) -> fn -> (b, n, d'), or, if
    `consecutive`, along each `axial_dim` tokens that follow one another:  (b, n, d) -> (b n / a, a, d) -> ...

    Of the tokens (t h w) of a video, every h w-th are time at one place, as many consecutive ones a frame. Only the
    first output is unfolded; 1 changes nothing, unless they are consecutive.
    """

    def __init__(self, axial_dim: int, fn: nn.Module, consecutive: bool = False) -> None:
        super().__init__()
        self.fn, self.axial_dim, self.consecutive = fn, axial_dim, consecutive

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        count, length = self.axial_dim, x.shape[1]
        if count == 1 and not self.consecutive:
            return self.fn(x, *args, **kwargs)
        out = self.fn(fold_axis(x, count, self.consecutive), *args, **kwargs)
        out, *rest = out if isinstance(out, (tuple, list)) else (out,)
        out = unfold_axis(out, count, length, self.consecutive)
        return (out, *rest) if rest else out


def reorder_tokens(t: Tensor, order: Tensor) -> Tensor:
    """Put the tokens of each row of t (b n d) in an order of its own (b n)."""
    return t.gather(1, order.unsqueeze(-1).expand(-1, -1, t.shape[-1]))


a_module = one_of(*MODULES) | instance_of(nn.Module)
four_factors = Check(
    'four numbers, None for 1',
    lambda v: isinstance(v, (tuple, list)) and len(v) == 4 and all(map((number | none).test, v)),
    'Sequence[float | None]',
)


class Hybrid(AttentionFeature):
    """A module runs on the same tokens as attention. Both outputs are normalized per head and mixed, or summed:

        'mean'   W_o (a + h) / 2,  or  W_o (a + m (h - a))  with  m = sigmoid(W x)  per token and head
        'sum'    c_1 W_o a(c_0 x) + c_3 h(c_2 x)  with `hybrid_factors` c

    The module maps (b, n, dim) to (b, n, h d), in a sum to the width of the layer, or to a pair of this and its state,
    which the cache stores and passes back as a second argument. An attribute `state_batch_first = True` of the module
    allows to reorder its state by batch entries. Modules without a state, and with padding those that take no mask,
    run on all tokens again. Padding is moved to the end and set to zero, unless the module takes a mask. The module
    does not receive `mems`; with a cache its state is kept.

    A module with `cuts_documents = True`, as of `x_transformers.recurrent`, also gets `mask` and `document_ids`, both
    (b, n), where there are any, and must pass over padding: then its state is kept beside padding, too.
    """

    paper = 'Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448'
    refuses = {
        'several devices': 'a custom module may combine all heads',
        'some tokens': 'it processes the tokens in order',
        'documents': 'its module runs across documents',
        'cross-attention': 'it runs along one sequence, in parallel with self-attention',
    }
    hybrid_module = flag(
        None,
        'module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head)',
        a_module | none,
        example=nn.ZeroPad1d((0, 16)),
    )
    hybrid_kwargs = flag(
        None, 'keywords of the class of the module, a dict, if it has a name', mapping | none, example=dict(state=4)
    )
    hybrid_merge = flag(
        'mean',
        "'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer",
        one_of('mean', 'sum'),
        example='sum',
    )
    hybrid_factors = flag(
        None,
        'factors of a sum: of the input of attention, of its output, of the input of the module, of its output',
        four_factors | none,
        example=(0.5, 2.0, None, 0.7),
    )
    hybrid_mask_kwarg = flag(
        None,
        'keyword argument of the module for the mask, in non-causal attention',
        Check('a string', lambda v: isinstance(v, str), 'str') | none,
        example='mask',
    )
    hybrid_fold_axial_dim = flag(
        None, 'a: run the module along every a-th token, such as the frames of a video', size | none, example=2
    )
    hybrid_learned_mix = flag(False, 'compute the mix per token and head from the input, instead of one half')
    stored_as = {'module': 'hybrid_module', 'norms': 'hybrid_norms', 'to_mix': 'hybrid_mix'}
    states = {'hybrid_hidden': RecurrentState(batch_first=False), 'hybrid inputs': PerToken()}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['hybrid_module'] is not None

    def setup(self, owner: Any) -> None:
        shape, fold = owner.shape, self.hybrid_fold_axial_dim or 1
        self.check_combination()
        module = self.build_or_copy(owner)
        self.module = FoldAxially(fold, module)
        if getattr(module, 'state_batch_first', False):
            self.states = {**self.states, 'hybrid_hidden': RecurrentState()}
        self.takes_mask = fold == 1 and getattr(module, 'cuts_documents', False)  # of padding and documents
        if self.takes_mask:
            self.refuse({'documents': ''})
            self.states = {'hybrid_hidden': self.states['hybrid_hidden']}
        self.__dict__['hybrid_module'] = type(module).__name__  # the user's own is not kept
        if self.hybrid_merge == 'mean':
            self.norms = nn.ModuleList(MultiheadRMSNorm(shape.dim_value, shape.heads) for _ in range(2))
        if self.hybrid_learned_mix:
            self.to_mix = nn.Linear(owner.dim, shape.heads, bias=False)
        self.is_cached = fold == 1
        if fold != 1:
            self.refuse({'cache': 'the state of a folded module is not that of the last token'})

    def check_combination(self) -> None:
        """Raise ConfigError if the flags do not go together."""
        if self.hybrid_merge == 'sum' and self.hybrid_learned_mix:
            raise ConfigError("`hybrid_learned_mix` cannot be combined with `hybrid_merge='sum'`, which mixes nothing")
        if self.hybrid_merge == 'mean' and self.hybrid_factors is not None:
            raise ConfigError("`hybrid_factors` cannot be combined with `hybrid_merge='mean'`: they are those of a sum")
        named = isinstance(self.hybrid_module, str)
        if self.hybrid_kwargs and not named:
            raise ConfigError('`hybrid_kwargs` cannot be combined with a custom `hybrid_module`: it is built already')
        if self.hybrid_mask_kwarg and named:
            raise ConfigError('`hybrid_mask_kwarg` cannot be combined with a named `hybrid_module`: it gets the mask')

    def build_or_copy(self, owner: Any) -> nn.Module:
        """Build the module, or copy that of the user."""
        if not isinstance(self.hybrid_module, str):
            return copy.deepcopy(self.hybrid_module)
        width = owner.shape.dim_out if self.hybrid_merge == 'sum' else owner.shape.dim_inner
        return build_module('hybrid_kwargs', self.hybrid_module, owner.dim, self.hybrid_kwargs or {}, dim_out=width)

    @property
    def factors(self) -> Sequence[float | None]:
        return self.hybrid_factors or (None,) * 4

    def active_stages(self) -> tuple[str, ...]:
        if self.hybrid_merge == 'mean':
            return ('head_outputs',)
        return ('layer_output',) if self.factors[0] is None else ('qkv_inputs', 'layer_output')

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (times(t, self.factors[0]) for t in qkv)
        return q, k, v

    def layer_output(self, out: Tensor, call: Any) -> Tensor:
        beside = self.run_module(call)
        if beside.shape != out.shape:
            raise ValueError(f'`hybrid_module` gave shape {tuple(beside.shape)}, it must be {tuple(out.shape)}')
        return times(out, self.factors[1]) + times(beside, self.factors[3])

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        attended, beside = self.norms[0](out), self.norms[1](self.heads_of(self.run_module(call), out))
        if not self.hybrid_learned_mix:
            return (attended + beside) / 2
        mix = rearrange(self.to_mix(call.x).sigmoid(), 'b n h -> b h n 1')
        return attended + mix * (beside - attended)

    def heads_of(self, t: Tensor, like: Tensor) -> Tensor:
        """Split the output of the module, b n (h d) or b h n d, into heads."""
        merged = t.ndim == 3 and t.shape[-1] == like.shape[1] * like.shape[3]
        heads = rearrange(t, 'b n (h d) -> b h n d', h=like.shape[1]) if merged else t
        if heads.shape != like.shape:
            wanted = (like.shape[0], like.shape[2], like.shape[1] * like.shape[3])
            raise ValueError(f'`hybrid_module` gave shape {tuple(t.shape)}, it must be {wanted} or {tuple(like.shape)}')
        return heads

    def run_module(self, call: Any) -> Tensor:
        """Return the output of the module for the new tokens."""
        if call.context is not None:
            raise ValueError(f'`hybrid_module` cannot be combined with a context: {self.reason("cross-attention")}')
        call.check_no_token_idx('hybrid_module', 'it processes the tokens in order')
        return self.run_masked(call) if self.takes_mask else self.run_on_new(call)

    def run_masked(self, call: Any) -> Tensor:
        """Run a module that passes over padding and keeps documents apart, from its state."""
        real, hidden = call.all_key_mask, call.state('hybrid_hidden')
        given = {
            'mask': None if real is None else real[:, -call.q_len :],
            'document_ids': call.inputs.get('document_ids'),
        }
        given = {name: t for name, t in given.items() if t is not None}
        made = self.module(times(call.x, self.factors[2]), hidden.value, **given)
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise ValueError(
                f'`hybrid_module` gave {type(made).__name__}, it must be a pair of output and state, as it has '
                '`cuts_documents = True`'
            )
        hidden.keep(made[1])
        return made[0]

    def run_on_new(self, call: Any) -> Tensor:
        """Run a module that knows only tokens, on all of them again if there is padding."""
        real = None if call.all_key_mask is None else call.all_key_mask[:, call.memories :]
        if real is None and call.state('hybrid inputs').past is None:
            hidden = call.state('hybrid_hidden')
            out, state = self.run(call.x, call, hidden.value)
            if state is not None:
                hidden.keep(state)
            elif self.is_cached:
                self.all_tokens(call)
            return out
        tokens = self.all_tokens(call) if self.is_cached else call.x
        if real is None or (self.hybrid_mask_kwarg and not call.causal):
            return self.run(tokens, call, None, real)[0][..., -call.q_len :, :]
        order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)  # real tokens first
        tokens = reorder_tokens(tokens.masked_fill(~rearrange(real, 'b n -> b n 1'), 0.0), order)
        out = self.run(tokens, call, None)[0]
        if out.ndim == 4:
            out = rearrange(out, 'b h n d -> b n (h d)')
        return reorder_tokens(out, order.argsort(dim=-1))[:, -call.q_len :]

    def all_tokens(self, call: Any) -> Tensor:
        """Return the inputs of cached and new tokens."""
        front = F.pad(call.x, (0, 0, call.memories, 0))
        return call.state('hybrid inputs').append(front)[:, call.memories :]

    def run(self, x: Tensor, call: Any, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the module's output, and its state if it gives one."""
        if mask is not None and self.module.axial_dim > 1:
            mask = fold_axis(mask, self.module.axial_dim)
        x = times(x, self.factors[2])
        further = {} if call.causal or not self.hybrid_mask_kwarg else {self.hybrid_mask_kwarg: mask}
        made = self.module(x, *(() if state is None else (state,)), **further)
        if torch.is_tensor(made):
            return made, None
        if not isinstance(made, (tuple, list)) or not torch.is_tensor(made[0]):
            made = tree_leaves(made)
        return made[0], made[1] if len(made) > 1 else None


some_modules = Check('a tuple of these', each(a_module).test, f'Sequence[{a_module.type}]')


class RecurrentModule(StackFeature):
    """Recurrent layers, of kind 'r' in `custom_layers`: the output of a token depends on it and a state of fixed size.

    A custom module maps x, (b, n, dim), and a state, None at first, to a pair of its output and the new state, a tree
    of tensors with the batch axis first. If there is padding, it also gets `mask`, (b, n), True for tokens that are not
    padding.
    """

    paper = 'RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`'
    recurrent_module = flag(
        None,
        "module of the layers of kind 'r': a name, or a custom module, of which each layer gets a copy; or a tuple "
        'with one for each of these layers',
        a_module | some_modules | none,
        example='rwkv',
    )
    recurrent_kwargs = flag(
        None,
        'keywords of the class of the module, a dict; a tuple has one for each of these layers',
        mapping | each(mapping | none) | none,
        example=dict(state=4),
    )

    def setup(self, owner: Any) -> None:
        layers = owner.layer_types.count('r')
        if not layers:
            warn_once("`recurrent_module` has no effect without layers of kind 'r' in `custom_layers`")
            return
        for name in ('recurrent_module', 'recurrent_kwargs'):
            value = getattr(self, name)
            if isinstance(value, (tuple, list)) and len(value) != layers:
                raise ConfigError(
                    f"`{name}` must have an entry for each of the {layers} layers of kind 'r', got {len(value)}"
                )

    def of_layer(self, name: str, index: int) -> Any:
        """Return the value of a flag for one of the layers of kind 'r'."""
        value = getattr(self, name)
        return value[index] if isinstance(value, (tuple, list)) else value


class RecurrentLayer(nn.Module):
    """A recurrent module as the branch of a layer."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, x: Tensor, held: Any = None, mask: Tensor | None = None, document_ids: Tensor | None = None
    ) -> Tensor:
        """Run the module with the state of the layer that the call keeps; None if nothing is to be kept."""
        further = {name: t for name, t in (('mask', mask), ('document_ids', document_ids)) if t is not None}
        if document_ids is not None and not getattr(self.module, 'cuts_documents', False):
            raise ValueError(
                '`document_ids` cannot be combined with `recurrent_module`: a module of your own says by '
                '`cuts_documents = True` that it takes them'
            )
        given = self.module(x, None if held is None else held.value, **further)
        pair = isinstance(given, (tuple, list)) and len(given) == 2  # a tensor of two rows has two parts, too
        if not pair or not torch.is_tensor(given[0]) or given[0].shape != x.shape:
            first = given[0] if pair else given
            found = f'shape {tuple(first.shape)}' if torch.is_tensor(first) else format_value(first)
            raise ValueError(
                f'`recurrent_module` gave {found}{"" if pair else " and no state"}, it must be a pair of '
                f'{tuple(x.shape)} and what it knows of these tokens'
            )
        if held is not None:
            held.keep(given[1])
        return given[0]


def build(stack: Any, index: int) -> RecurrentLayer:
    own, kinds = stack.features.find(RecurrentModule), stack.layer_types
    number = kinds[:index].count('r')
    chosen = None if own is None else own.of_layer('recurrent_module', number)
    if own is None or chosen is None:
        raise ConfigError("`custom_layers` has recurrent layers ('r'), which need `recurrent_module`")
    if not stack.causal:
        raise ConfigError('`recurrent_module` needs a causal stack: its state depends on earlier tokens')
    keywords = own.of_layer('recurrent_kwargs', number)
    if isinstance(chosen, str):
        mixers = [at for at, kind in enumerate(kinds) if kind in ('a', 'r')]
        place = (mixers.index(index), len(mixers))
        return RecurrentLayer(build_module('recurrent_kwargs', chosen, stack.dim, keywords or {}, place=place))
    if keywords:
        raise ConfigError('`recurrent_kwargs` cannot be combined with a custom `recurrent_module`: it is built already')
    return RecurrentLayer(copy.deepcopy(chosen))


def inputs(call: Any) -> dict[str, Any]:
    real = call.token_mask
    mask = None if real is None else real[:, real.shape[1] - call.new_len :]
    given = {'mask': mask, 'document_ids': call.inputs.get('document_ids')}
    if call.keeps or call.cache is not None:
        given['held'] = call.state('recurrent', call.step)
    return given


KINDS['r'] = Kind(build, inputs=inputs, remembers={'recurrent': RecurrentState()}, cuts_documents=True)

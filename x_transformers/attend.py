"""`Attend`, the attention operator as a module, and the choice between its kernels.

What belongs here: what stands between an attention layer and the `kernels`. A layer hands its `Attend` a `Call`, whose
masks and biases may never be formed. Whoever takes the place of that module, changes its `forward`, or hooks what it is
called with, sees the plain arguments instead: q, k, v, one mask, one bias.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from x_transformers.compat.helpers import (
    create_causal_mask as create_causal_mask,
    default_device as default_device,
    pack_one as pack_one,
    unpack_one as unpack_one,
)
from x_transformers.core.calls import Call, is_large
from x_transformers.core.checks import as_mask, boolean_mask, check_tensor
from x_transformers.core.intermediates import (
    Intermediates as Intermediates,
    log_prob_from_hard_attend as log_prob_from_hard_attend,
)
from x_transformers.core.modes import HALF, OF_ALL, is_plainly, is_transformed
from x_transformers.core.rows import BlockwiseTerm, to_4d
from x_transformers.core.stack_calls import StackCall
from x_transformers.features.catalogue import ATTEND
from x_transformers.features.contextual import UseCoPE
from x_transformers.features.derived import keep_none
from x_transformers.features.operands import ALL_BACKENDS
from x_transformers.features.scores import AttentionDropout, SoftclampLogits
from x_transformers.flags import (
    ConfigError,
    Configurable,
    Feature,
    Features,
    boolean,
    format_value,
    is_number,
    mapping,
    none,
    number,
    size,
)
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import (
    EAGER_STAGES,
    SdpaMask,
    carries_gradients,
    make_lazy_maps,
    make_sdpa_mask,
    run_eager,
    run_fused,
    softmax,
    tile_heads,
    wants_maps,
)
from x_transformers.kernels.operators import FUSED, OPERATORS, Operator, attend_by, list_score_stages
from x_transformers.kernels.visibility import Masks, combine_terms, prepend_kv, settle_given
from x_transformers.keywords import AttendKeywords, Unpack


class ChoosesKernel:
    """Mixin that selects the attention kernel from `features` and `flash`."""

    attend: Any
    features: Features
    flash: bool | None

    def choose_kernel(self) -> None:
        """Set the operators that may run, in order of preference, and the reasons against the others."""
        features, formula = self.features, self.flash is False
        reasons = {operator: operator.unsupported(None, features) for operator in OPERATORS}
        if self.flash and reasons[FUSED] is not None:
            raise ConfigError(f'`flash=True` cannot be combined with {reasons[FUSED]}')
        if formula:
            reasons |= dict.fromkeys([o for o in OPERATORS if not o.by_formula], '`flash=False`: the formula is wanted')
        self.against = {operator.name: reason for operator, reason in reasons.items() if reason is not None}
        always = any(f.flags or not f.call_inputs for f in features.by_stage.get('attend', ()))
        self.operators: tuple[Operator, ...] = tuple([o for o in OPERATORS if reasons[o] is None])[
            : 1 if always else None
        ]
        self.eager_inputs = {
            name: f.runs_fused is None
            for f in list_score_stages(features)
            if not f.runs_fused and not f.flags
            for name in f.call_inputs
        }
        self.kernel = run_eager if reasons[FUSED] is not None else run_fused

    @property
    def kernel_words(self) -> str:
        """Return which operators are asked, in which order, and what stands against the fused one, for `explain()`."""
        names, reason = ', '.join([operator.name for operator in self.operators]), self.against.get(FUSED.name)
        return names if reason is None else f'{names}; not {FUSED.name} ({reason})'

    def refuse_unfused(self, inputs: Mapping[str, Any]) -> None:
        """Refuse inputs that need scores where the fused kernel is demanded."""
        refused = [name for name, falls_back in self.eager_inputs.items() if not falls_back and self.flash]
        for name in refused:
            if inputs.get(name) is not None:
                raise ValueError(f'`{name}` cannot be combined with `flash=True`: the fused kernel forms no scores')

    @property
    def dropout(self) -> float:
        """The probability of dropping an attention weight in training, that of `attend.attn_dropout`."""
        found = [module for module in self.attend.modules() if isinstance(module, Attend)]
        return found[0].dropout if found else 0.0

    @dropout.setter
    def dropout(self, rate: float) -> None:
        for module in self.attend.modules():
            if isinstance(module, Attend):
                module.dropout = rate


# what queries see


def resolve_terms(
    features: Features, call: Call, qkv: tuple[Tensor, ...], given: Masks, stack_call: StackCall | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Resolve the masks and biases of all queries, and prepend the keys that features add.

    What the stack has resolved for all of its layers is taken over, if this one was given the same masks: of the
    tokens, of a context, and `attn_mask`.
    """
    q, k, v = qkv
    call.keys = call.total_keys = k.shape[-2]
    shared = None if stack_call is None else stack_call.visibility
    if shared is not None and shared.fits(call, features, q, given):
        shared.apply_to(call)
        return q, k, v
    if not call.unmasked or features.settles or call.token_idx is not None or 'mem_mask' in call.inputs:
        return settle_given(features, call, (q, k, v), given)
    call.may_have_fully_masked = call.keys < call.q_len and call.needs_causal_mask
    return q, k, v


# the module


@dataclass
class TensorCall:
    """A call that goes to `Attend` by way of plain arguments: whoever stands between may change them."""

    call: Call
    features: Features
    arguments: dict[str, Any]
    sizes: tuple[Any, ...]


# what `Attend` is called with by other code, beside queries, keys and values
ARGUMENTS = ('mask', 'attn_bias', 'prev_attn', 'attn_delta', 'row_mask', 'flash_pack_seq_kwargs', 'causal')
handed: ContextVar[TensorCall | None] = ContextVar('handed', default=None)


@dataclass(frozen=True)
class HeadCount:
    """Number of heads, for features with parameters per head."""

    given: int | None

    @property
    def heads(self) -> int:
        if self.given is None:
            raise ConfigError('`heads` is missing: a flag has parameters for every head')
        return self.given


@dataclass(frozen=True)
class LayerWithOperator:
    """An attention layer as its features see it, with another `attend`."""

    layer: Any
    attend: nn.Module

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or 'layer' not in self.__dict__:  # while it is copied
            raise AttributeError(name)
        return getattr(self.layer, name)


# attributes of an operator, and what its layer calls them; None where the layer has none
OF_LAYER = {'scale': 'logit_scale', **{name: name for name in (
    'causal', 'flash', 'add_zero_kv', 'cog_signed', 'head_learned_sink', 'inverted_attention', 'l2_distance',
    'logit_softclamp_value', 'selective', 'softclamp_logits', 'flash_pack_seq', 'cope',
    'pre_softmax_talking_heads', 'post_softmax_talking_heads', 'pre_scale_post_talking_heads',
)}}  # fmt: skip


def clamp_logits(owner: Any, name: str, value: Any) -> None:
    """Change a flag of the clamp of logits, or switch it on, in an operator or a layer that is built."""
    if name == 'logit_softclamp_value' and not (is_number(value) and value > 0):
        raise ConfigError(f'`{name}` must be positive, got {format_value(value)}')
    values = {flag: getattr(owner, flag) for flag in SoftclampLogits.flags} | {name: value}
    for flag, one in values.items():
        vars(owner)[flag] = one
    feature = owner.features.find(SoftclampLogits)
    if feature is not None:
        vars(feature).update(values)
    elif value is True:
        owner.features = owner.features.add_feature(SoftclampLogits(owner, values))
        owner.choose_kernel()


class Attend(Configurable, ChoosesKernel):
    """Scaled dot-product attention, without projections:  softmax(q k^T scale + bias) v.  arXiv:1706.03762

    q             (b, h, i, d)
    k, v          (b, k, j, d), where k divides h: query head h uses key head h mod k; or (b, j, d) for one head
    returns       a pair of (b, h, i, d) and `Intermediates`

    Every attention layer has one as `attend`, which holds the parameters of features that act on scores.
    """

    catalogue = ATTEND
    stores = ('', 'attend.')
    layer: Any = None  # the attention layer that it is a part of

    def __init__(
        self,
        *,
        heads: Annotated[
            int | None, 'number of query heads; needed by features with parameters per head', size | none
        ] = None,
        causal: Annotated[bool, 'causal mask, aligned at the last query and key', boolean] = False,
        flash: Annotated[
            bool | None,
            'attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both',
            boolean | none,
        ] = None,
        scale: Annotated[float | None, 'factor of the dot products; d ** -0.5 if None', number | none] = None,
        qk_norm: Annotated[
            bool, 'accepted without effect: the softmax is exact for normalized queries and keys as well', boolean
        ] = False,
        sdp_kwargs: Annotated[dict, 'allowed backends of the fused kernel', mapping] = ALL_BACKENDS,
        features: Sequence[type[Feature]] | None = None,
        **flags: Unpack[AttendKeywords],
    ) -> None:
        super().__init__()
        self.attn_dropout = nn.Dropout(0.0)
        self.shape, self.causal, self.flash, self.scale = HeadCount(heads), bool(causal), flash, scale
        self.logit_scale, self.sdp_backends = scale, None
        backends = {} if sdp_kwargs == ALL_BACKENDS else {'attend_sdp_kwargs': sdp_kwargs}
        self.features = self._compose(features, backends | flags).setup()
        keep_none(self, ['head_attn_sink'])
        self.choose_kernel()

    @classmethod
    def of(cls, layer: nn.Module) -> Attend:
        """Make the operator of an attention layer, with the features of that layer."""
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new.attn_dropout = nn.Dropout(0.0)
        new.__dict__['layer'] = layer
        return new

    def __getattr__(self, name: str) -> Any:
        """Read an attribute that the operator does not have from its layer."""
        layer = self.__dict__.get('layer')
        if layer is None or name not in OF_LAYER:
            return super().__getattr__(name)
        own = self._modules.get(name, self._parameters.get(name))
        return getattr(layer, OF_LAYER[name], None) if own is None else own

    def __setattr__(self, name: str, value: Any) -> None:
        """Set attributes that a layer reads at each call there.  Raises for those that are fixed at construction."""
        layer = self.__dict__.get('layer')
        if name == 'attn_fn':  # a function takes the place of a module, and the other way around
            self._modules.pop(name, None)
            self.__dict__.pop('own_attn_fn', None)
        if name in SoftclampLogits.flags and 'features' in vars(layer or self):
            return clamp_logits(layer or self, name, value)
        if layer is None or name not in OF_LAYER or isinstance(value, (nn.Module, nn.Parameter)):
            return super().__setattr__(name, value)
        if name not in ('causal', 'flash', 'scale'):
            raise AttributeError(f'`attend.{name}` cannot be assigned, it is a flag that its layer is built with')
        setattr(layer, OF_LAYER[name], value)
        if name == 'flash':
            layer.choose_kernel()

    create_causal_mask = staticmethod(create_causal_mask)

    @property
    def dropout(self) -> float:
        """The probability of dropping a weight in training: that of the module `attn_dropout`."""
        return getattr(self._modules.get('attn_dropout'), 'p', 0.0)

    @dropout.setter
    def dropout(self, rate: float) -> None:
        if isinstance(self._modules.get('attn_dropout'), nn.Dropout):
            self.attn_dropout.p = rate
        else:
            self.attn_dropout = nn.Dropout(rate).train(self.training)

    @property
    def attn_fn(self) -> Callable[[Tensor], Tensor]:
        """Function from logits to weights over the last axis. An assigned one replaces it, except in the fused
        kernel that `flash=True` demands."""
        given = self.assigned_attn_fn
        features = (self.layer or self).features
        return functools.partial(features.select('normalizer', softmax), call=None) if given is None else given

    @attn_fn.setter
    def attn_fn(self, function: Callable[[Tensor], Tensor]) -> None:
        if not callable(function):
            raise TypeError(f'`attn_fn` must be a function of the logits, got {format_value(function)}')
        self.__dict__['own_attn_fn'] = function

    @property
    def assigned_attn_fn(self) -> Callable[[Tensor], Tensor] | None:
        return self.__dict__.get('own_attn_fn') or self._modules.get('attn_fn')

    @property
    def is_as_built(self) -> bool:
        """Return True if nobody has replaced `attn_dropout` or assigned `attn_fn`."""
        return type(self._modules.get('attn_dropout')) is nn.Dropout and self.assigned_attn_fn is None

    @property
    def sdp_context_manager(self) -> Callable[[], Any]:
        """Makes a context in which torch's fused kernel chooses among the backends of this operator."""
        owner = self.layer or self
        if not owner.flash:
            raise AttributeError('`sdp_context_manager` is there with `flash=True` alone')
        names = owner.sdp_backends or ('FLASH_ATTENTION', 'MATH', 'EFFICIENT_ATTENTION')
        return functools.partial(sdpa_kernel, [getattr(SDPBackend, name) for name in names])

    def flash_attn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        flash_pack_seq_kwargs: Mapping[str, Any] | None = None,
        causal: bool | None = None,
    ) -> tuple[Tensor, Intermediates]:
        """Return the output of `forward`, with empty intermediates."""
        given: dict[str, Any] = dict(
            mask=mask, attn_bias=attn_bias, flash_pack_seq_kwargs=flash_pack_seq_kwargs, causal=causal
        )
        return WRITTEN(self, q, k, v, **given)[0], Intermediates()

    @property
    def query_heads(self) -> int:
        return self.shape.heads

    @property
    def attend(self) -> Attend:
        """Features keep what acts on scores in `attend` of their owner."""
        return self

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        prev_attn: Tensor | None = None,
        attn_delta: Tensor | None = None,
        row_mask: Tensor | None = None,
        flash_pack_seq_kwargs: Mapping[str, Any] | None = None,
        causal: bool | None = None,
        *,
        call: Maybe[Call] = None,
        features: Maybe[Features] = None,
    ) -> tuple[Tensor, Intermediates | None]:
        """Attend.

        `mask` is (b, j), or broadcasts to (b, h, i, j), True may be attended; `row_mask` is the mask of the queries,
        (b, i). `call` and `features` come from the layer around, which gets None as intermediates if nobody reads them.
        """
        plain = call is None
        patched = plain and self.is_patched()
        if call is None:
            given = (mask, attn_bias, prev_attn, attn_delta, row_mask, flash_pack_seq_kwargs, causal)
            q, k, v, call, features = self.open_call(q, k, v, dict(zip(ARGUMENTS, given, strict=True)))
        if call.bare_keys:
            k, v = prepend_kv(call.bare_keys, k, v)
        for transform in features.pre_kernel:
            q, k = transform((q, k), call)
        owner, by_formula = self.__dict__.get('layer') or self, False
        module = self._modules.get('attn_dropout')
        if type(module) is not nn.Dropout or (module.p and module.training) or self.is_changed(module):
            features, by_formula = self.drops(call, features, owner)
        seen = call.keeps or self._forward_hooks or self._backward_hooks or self._backward_pre_hooks or any(OF_ALL)
        if (patched or seen) and wants_maps(self, call, patched):
            by_formula = by_formula or (not owner.flash and carries_gradients(q, k, call, features))
            if not by_formula:
                call.intermediates.compute_maps = make_lazy_maps(q, k, call, features)
        if by_formula:
            call.inputs = {**call.inputs, 'keep_maps': True}
        run = attend_in_full_precision if call.full_precision else attend_by
        return run(owner, q, k, v, call, features), call.intermediates if seen or plain else None

    def is_changed(self, module: nn.Module) -> bool:
        """Return True if somebody looks at the dropout of weights, or has put something in the place of softmax."""
        looks = module._forward_hooks or module._forward_pre_hooks or 'forward' in module.__dict__ or any(OF_ALL)
        return bool(looks) or 'own_attn_fn' in self.__dict__ or 'attn_fn' in self._modules

    def is_patched(self) -> bool:
        """Return True if the code of others gets what `forward` returns, and may read the maps."""
        return (
            self.__class__.forward is not WRITTEN
            or 'forward' in self.__dict__
            or (self.layer is not None and self.layer.attend is not self)
        )

    def drops(self, call: Call, features: Features, owner: Any) -> tuple[Features, bool]:
        """Set the dropout of a call, and the function that users have assigned in place of softmax.

        Returns:
            The features, dropout among them if anything is dropped, and whether the formula must run, since the module
            `attn_dropout` is hooked or replaced, or `attn_fn` assigned.
        """
        module, assigned = self._modules.get('attn_dropout'), self.assigned_attn_fn
        call.dropout = module.p if isinstance(module, nn.Dropout) and module.training else 0.0
        replaced = module is not None and not is_plainly(module, nn.Dropout) and not is_plainly(module, nn.Identity)
        by_formula = (replaced or assigned is not None) and not owner.flash
        if by_formula and 'attend' in features.by_stage:
            if assigned is not None or not isinstance(module, nn.Dropout):
                title, name = (
                    features.by_stage['attend'][0].display_name,
                    'attn_dropout' if assigned is None else 'attn_fn',
                )
                raise ValueError(f'`{name}` was assigned, but `{title}` attends in its own way')
            by_formula = False
        if by_formula:
            call.drop, call.attn_fn = module if replaced else None, assigned
        if (by_formula or call.dropout) and features.find(AttentionDropout) is None:
            features = features.add_feature(AttentionDropout(owner, {'dropout': 0.0}))
        return features, by_formula

    def open_call(self, q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Return the call for plain tensors: that of the layer, with the tensors that were changed, or a new one."""
        known = handed.get()
        if known is None or self.layer is None or known.sizes != sizes_of(q, k, v):
            q, k, v, call, features = self.make_call(q, k, v, arguments)
            return q, k, v, call, self.own_features(features)
        changed = [name for name, value in arguments.items() if value is not known.arguments[name]]
        call = known.call
        if changed:
            call = copy.copy(call)
            apply_arguments(call, k, arguments)
        return q, k, v, call, self.own_features(known.features)

    def own_features(self, features: Features) -> Features:
        """Return the features of the layer, bound to the parameters here if this operator is inside its replacement."""
        inside = self.layer is not None and self.layer.attend is not self
        return features.rebind(LayerWithOperator(self.layer, self)) if inside else features

    def make_call(self, q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Make a call for an operator without a layer."""
        owner = self.layer or self
        k, v = (t.unsqueeze(1) if check_tensor(t, name).ndim == 3 else t for t, name in ((k, 'k'), (v, 'v')))
        check_operands(q, k, v)
        inputs = {name: arguments[name] for name in ('attn_bias', 'prev_attn', 'attn_delta', 'flash_pack_seq_kwargs')}
        inputs = {name: value for name, value in inputs.items() if value is not None}
        features = attend_scores(owner.features.active_for(inputs))
        unread = inputs.keys() - features.call_inputs
        if unread:
            raise ValueError(
                f'`{min(unread)}` was given, but nothing reads it: see the keywords of {type(self).__name__}'
            )
        owner.refuse_unfused(inputs)
        causal = owner.causal if arguments['causal'] is None else bool(arguments['causal'])
        scale = q.shape[-1] ** -0.5 if owner.logit_scale is None else owner.logit_scale
        token_mask = as_mask(arguments['row_mask'], 'row_mask', q.shape[0], q.shape[-2], like=q)
        call = Call(q[:, 0], q.shape[1], None, token_mask, causal, scale, inputs, keeps='all')
        call.backends, call.keys, call.batch, call.q_len = owner.sdp_backends, k.shape[-2], q.shape[0], q.shape[2]
        masks = [] if arguments['mask'] is None else [key_mask(arguments['mask'])]
        q, k, v = combine_terms(features, call, (q, k, v), masks)
        return q, k, v, call, features


def attend_scores(features: Features) -> Features:
    """Return the features of a layer that act in its operator."""
    new = copy.copy(features)
    own, stages = (*ATTEND, UseCoPE), {*EAGER_STAGES, 'attend'}
    new.active = tuple(f for f in features.active if isinstance(f, own) or stages & set(f.runs_at()))
    new.arrange()
    return new


def key_mask(mask: Tensor) -> Tensor:
    """Return a mask of keys, (b, j), or of scores, with the axes of scores."""
    mask = boolean_mask(mask, 'mask')
    if not 2 <= mask.ndim <= 4:
        raise ValueError(f'`mask` must have shape (b, j), (h, i, j) or (b, h, i, j), got {tuple(mask.shape)}')
    return mask[:, None, None] if mask.ndim == 2 else to_4d(mask)


def check_operands(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not go together."""
    for t, name in ((q, 'q'), (k, 'k'), (v, 'v')):
        if check_tensor(t, name).ndim != 4 or not t.is_floating_point() or t.shape[0] != q.shape[0]:
            raise ValueError(f'`{name}` must be floating point, (b, h, n, d), got {t.dtype} of shape {tuple(t.shape)}')
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f'`k` must have heads of width {q.shape[-1]}, as `q`, got {k.shape[-1]}')
    if k.shape[1:3] != v.shape[1:3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f'`k` and `v` must have as many heads and keys as each other, and their heads must divide the {q.shape[1]} '
            f'of `q`, got shapes {tuple(k.shape)} and {tuple(v.shape)}'
        )


def attend_in_full_precision(owner: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Run `attend_by` outside of autocast."""
    with call.precision():
        return attend_by(owner, q, k, v, call, features)


# a layer and its operator


def sizes_of(q: Tensor, k: Tensor, v: Tensor) -> tuple[Any, ...]:
    return q.shape[:-1], k.shape[:-1], v.shape[:-1]


def attend_with(layer: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Run the attention operator of a layer on queries, keys and values. Intermediates go to the call."""
    attend = layer._modules['attend']
    own = getattr(attend, '__dict__', {})
    if isinstance(attend, Attend) and own.get('layer') is not None and own['layer'] is not layer:
        own['layer'] = layer  # a replica of the layer has replicas of its modules
    takes_calls = type(attend).forward is WRITTEN and 'forward' not in own and own.get('layer') is not None
    if takes_calls and not (attend._forward_pre_hooks_with_kwargs or attend._forward_hooks_with_kwargs):
        answer = attend(q, k, v, call=call, features=features)
        return answer[0] if type(answer) is tuple and answer[1] is None else output_of(answer, call)
    return attend_with_tensors(attend, q, k, v, call, features)


def attend_with_tensors(attend: Any, q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Run an operator of a user's, or one with hooks, on plain tensors."""
    arguments = tensor_arguments(call)
    token = handed.set(TensorCall(call, features, arguments, sizes_of(q, k, v)))
    try:
        return output_of(attend(q, k, v, **arguments), call)
    finally:
        handed.reset(token)


def output_of(answer: Any, call: Call) -> Tensor:
    """Return the output of what an operator returned, and give the call the maps that it left."""
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise TypeError(f'`attend` gave {type(answer).__name__}, it must give a pair: the output and Intermediates')
    out, left = answer
    if left is not None and left is not call.intermediates:
        take_maps(call.intermediates, left)
    return out


def tensor_arguments(call: Call) -> dict[str, Any]:
    """Return masks and biases as tensors, without the keys that `Attend` adds itself."""
    bare = sum(k.shape[-2] for k, _ in call.bare_keys)
    added = call.total_keys - call.keys - bare
    call.combine()
    # behind keys that every query sees, a triangle of few keys is no longer one
    needs_dense_causal_mask = call.needs_causal_mask and added > 0 and call.keys < call.q_len
    mask, inputs = call.visible() if needs_dense_causal_mask else call.mask, call.inputs
    mask, bias = (t if t is None or t.shape[-1] == 1 else t[..., bare:] for t in (mask, call.bias))
    delta = inputs.get('attn_delta')
    if delta is not None and added and delta.shape[-1] == call.keys:
        delta = nn.functional.pad(delta, (added, 0))
    return dict(
        mask=mask,
        attn_bias=bias,
        prev_attn=inputs.get('prev_attn'),
        attn_delta=delta,
        row_mask=call.query_mask,
        flash_pack_seq_kwargs=inputs.get('flash_pack_seq_kwargs'),
        causal=call.causal and call.token_idx is None and not needs_dense_causal_mask,
    )


def apply_arguments(call: Call, k: Tensor, arguments: dict[str, Any]) -> None:
    """Let a call be as plain arguments say."""
    call.inputs = {**call.inputs, **{name: arguments[name] for name in ('prev_attn', 'attn_delta')}}
    call.token_mask = arguments['row_mask']
    call.causal = bool(arguments['causal'])
    call.keys, call.total_keys = k.shape[-2], k.shape[-2] + sum(k.shape[-2] for k, _ in call.bare_keys)
    call.positions = {}
    mask, bias = arguments['mask'], arguments['attn_bias']
    call.masks = [] if mask is None else [call.term(key_mask(mask), 'mask')]
    call.biases = [] if bias is None else [call.term(bias, 'attn_bias')]
    call.may_have_fully_masked = not call.bare_keys and (
        mask is not None or (call.needs_causal_mask and call.keys < call.q_len)
    )


def take_maps(intermediates: Intermediates, left: Any) -> None:
    """Take over the maps that another operator than ours has left behind."""
    if isinstance(left, Intermediates):
        intermediates.maps, intermediates.compute_maps, intermediates.assigned = (
            left.maps,
            left.compute_maps,
            left.assigned,
        )
    elif left is not None:
        intermediates.maps = [
            getattr(left, name, None) for name in ('qk_similarities', 'pre_softmax_attn', 'post_softmax_attn')
        ]


WRITTEN = Attend.forward

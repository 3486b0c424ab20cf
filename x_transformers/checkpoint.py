"""Weights of older releases of x-transformers, rewritten for this library.

`upgrade` brings them to the form that this library and release 2.31.10 load:

    state = upgrade(torch.load('old.pt', weights_only=True), '1.29.2', heads=8)
    model.load_state_dict(state)

Weights cannot say everything. Some old models are built with other flags today:

    before 1.15              a bare stack has no final norm       pre_norm_has_final_norm=False
    before 1.21.4            `weight_tie_layers` tied no norms    without that flag
    0.31 to 1.0.3            `attn_qk_norm_scale` was 1           attn_qk_norm_scale=1
    2.17.1 to 2.25.4         it acted three times                 attn_qk_norm_scale=1000, where it was 10
    before 1.42.28           value residuals had no learned mix   learned_value_residual_mix=False
    before 2.17              one head had a projection out        attn_project_out=True
    before 2.30.5            tied logits had no scale             tie_embedding_scale=1.
    to 2.31.10               with `l2norm_embed`, tied logits     tie_embedding_normed=False
                             came from a table without norm
    rotary, early            the default width was another        rotary_emb_dim=2 * len(inv_freq)

And some have computed otherwise, which neither shows nor can be had again: memories of earlier segments had no norm
before 1.27.5, and these were other formulas: `attn_sparse_topk` before 1.37.10, `softclamp_output` before 1.31.14,
`add_value_residual` before 1.42.3, `attn_laser` before 1.42.23, `resi_dual` before 1.15.2, and `attn_qk_norm_groups`
beside `attn_num_mem_kv` before 2.25.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from packaging.version import InvalidVersion, Version
from torch import Tensor, nn

from x_transformers.flags import none, one_of, size

NEWEST = Version('2.31.10')
OLDEST = Version('0.12.1')

State = dict[str, Any]


def check_state(state_dict: Any) -> None:
    """Raise if the state is no dict from names to tensors."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f'`state_dict` must be a dict from names to tensors, got {type(state_dict).__name__}')
    for name, t in state_dict.items():
        if not isinstance(name, str) or not torch.is_tensor(t):
            raise TypeError(
                f'`state_dict` must be a dict from names to tensors, got {type(t).__name__} at {name!r}; '
                f'give the part of the file that holds the weights'
            )


def upgrade(
    state_dict: Mapping[str, Any],
    version: str,
    *,
    heads: int | None = None,
    dim_head: int | None = None,
    rotary_dim: int | None = None,
    pre_norm: bool = True,
    qk_norm_scale: float = 10.0,
    rotate_values: bool = False,
    norm_bias: bool = False,
    out_bias: bool = False,
    gate_values_bias: bool = False,
    logits_bias: bool = False,
    hyper_conn_residual_mix: str | None = None,
) -> State:
    """Convert the state dict of an old model to the form that this library loads with `strict=True`.

        version           the release that wrote the weights, such as '1.29.2'
        heads, dim_head   of the attention layers, one of them, where the weights do not tell
        rotary_dim        how many features of a head turn, where the weights do not tell
        pre_norm          before 0.21: whether the norms stood before the branches
        qk_norm_scale     before 2.25.5, with `attn_qk_norm_dim_scale`: the flag of the old model

    Some old models computed what this library computes only if it is asked to, by a flag of the same name. Say so here
    as well, and these weights are kept; otherwise they are refused unless they are zero:

        rotate_values     `attn_rotate_values=True`, from 0.15 to 1.19 rotary positions turned values too
        norm_bias         `norm_bias=True`, before 1.27 layer norms had a bias
        out_bias          `attn_out_bias=True`, before 0.26 attention had a bias on its output
        gate_values_bias  `attn_gate_values_bias=True`, before 2.26 the gate on values had a bias
        logits_bias       `logits_bias=True`, before 1.27 the head had a bias

    From 2.14 on, all releases mixed residual streams by a matrix of ones. Such weights are refused unless
    `hyper_conn_residual_mix` says which flag of that name the model is built with: 'ones' computes what they computed,
    'sinkhorn' goes on from them with a mix that learns.

    Names are found behind any prefix, such as 'module.' or 'net.'. The input is left as it is.
    Raises TypeError or ValueError, which name the argument or the entry.
    """
    check_state(state_dict)
    known = read_version(version)
    for name, value in (('heads', heads), ('dim_head', dim_head), ('rotary_dim', rotary_dim)):
        (size | none).require(name, value)
    keeps = dict(rotate_values=rotate_values, norm_bias=norm_bias, out_bias=out_bias, logits_bias=logits_bias)
    one_of(None, 'ones', 'sinkhorn').require('hyper_conn_residual_mix', hyper_conn_residual_mix)
    keeps |= dict(gate_values_bias=gate_values_bias, hyper_conn_residual_mix=hyper_conn_residual_mix is not None)
    old = Old(dict(state_dict), known, heads, dim_head, rotary_dim, pre_norm, float(qk_norm_scale), keeps)
    for since, before, step in STEPS:
        if Version(since) <= known < Version(before):
            step(old)
    return old.state


def reorder_optimizer(
    optimizer_state: Mapping[str, Any], state_dict: Mapping[str, Any], model: nn.Module
) -> dict[str, Any]:
    """Reorder the state of an optimizer that another library or release has saved, for `optimizer.load_state_dict`.

        optimizer_state   of an optimiser of all parameters in one group, such as `Adam(model.parameters())`
        state_dict        the weights that were saved with it, by the names of `model`
        model             the model whose optimiser goes on

    torch numbers the parameters of an optimiser in the order in which a model holds them, which is that of its state
    dict. Models of the same names may hold them in another order, x-transformers 2.31 in many cases: moments would be
    those of other parameters. The input is left as it is.
    Raises ValueError for several groups, and where parameters, their number or their shapes differ.
    """
    groups = optimizer_state['param_groups']
    if len(groups) != 1:
        raise ValueError(f'`optimizer_state` must have one group of parameters, which have no names, got {len(groups)}')
    # tied parameters have several names, and one number
    names = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    if missing := names.keys() - state_dict.keys():
        raise ValueError(f'`state_dict` must be the weights of this model, got no `{min(missing)}`')
    for name, parameter in model.named_parameters():
        if (shape := tuple(state_dict[name].shape)) != tuple(parameter.shape):
            raise ValueError(f'`state_dict` got `{name}` of shape {shape}, the model has {tuple(parameter.shape)}')
    saved = list(dict.fromkeys(names[name] for name in state_dict if name in names))
    numbers = groups[0]['params']
    if len(numbers) != len(saved):
        raise ValueError(f'`optimizer_state` must have {len(saved)} parameters as the model, got {len(numbers)}')
    number_of, held = dict(zip(saved, numbers, strict=True)), optimizer_state['state']
    order = [number_of[id(parameter)] for parameter in model.parameters()]
    state = {new: held[old] for new, old in enumerate(order) if old in held}  # others never had a gradient
    return {**optimizer_state, 'state': state, 'param_groups': [{**groups[0], 'params': list(range(len(saved)))}]}


def read_version(version: str) -> Version:
    try:
        known = Version(version)
    except (InvalidVersion, TypeError):
        raise ValueError(f"`version` must be the release of the weights, as '1.29.2', got {version!r}") from None
    if not OLDEST <= known <= NEWEST:
        raise ValueError(f'`version` must be a release from {OLDEST} to {NEWEST}, got {version!r}')
    for first, last, reason in BROKEN:
        if Version(first) <= known <= Version(last):
            raise ValueError(f'`version` got {version!r}: {reason}. What such a model computed cannot be loaded')
    return known


# releases that computed what no other did, until the next one repaired it
BROKEN = (
    ('0.20.0', '0.20.0', 'that release could not build a model'),
    ('0.21.0', '0.21.0', 'that release left out the norms before the branches'),
    ('0.29.0', '0.29.1', 'these releases doubled the keys and left out half of the feedforward'),
    ('1.16.1', '1.16.4', 'these releases computed attention as no other did'),
    ('1.31.2', '1.31.2', 'that release could hardly build a model'),
    ('1.40.4', '1.40.4', 'that release had a projection of its input that no other has'),
)


@dataclass
class Old:
    """A state dict on its way from one release to the next, and what the user said about the model."""

    state: State
    version: Version
    heads: int | None
    dim_head: int | None
    rotary_dim: int | None
    pre_norm: bool
    qk_norm_scale: float
    keeps: dict[str, bool]
    turns_values: bool = False

    def names(self, pattern: str) -> list[str]:
        """Return the names that end in a pattern, preceded by nothing or a dot."""
        found = re.compile(rf'(^|.*\.)({pattern})')
        return [name for name in self.state if found.fullmatch(name)]

    def rename(self, pattern: str, new: str, only: Callable[[str], bool] = lambda name: True) -> None:
        """Give names that end in a pattern another ending. Groups of the pattern have names."""
        found = re.compile(rf'(?P<before>^|.*\.)(?:{pattern})')
        self.state = {
            match.expand(rf'\g<before>{new}') if (match := found.fullmatch(name)) and only(name) else name: t
            for name, t in self.state.items()
        }

    def change(self, pattern: str, function: Callable[[Tensor], Tensor]) -> None:
        for name in self.names(pattern):
            self.state[name] = function(self.state[name])

    def settle(self, name: str, keyword: str, flag: str) -> None:
        """Keep a bias if the user says that the model has it. Else drop it if it is zero, and refuse it if not."""
        if keyword and self.keeps[keyword]:
            return
        if torch.count_nonzero(self.state[name]):
            way = f': build the model with {flag} and give `{keyword}=True`' if keyword else ', and it cannot be loaded'
            raise ValueError(f'`{name}` is not zero, but models have no such bias any more{way}')
        del self.state[name]

    def fold(self, bias: str, weight: str | None, into: str) -> None:
        """Let a later bias take over an earlier one, through the weight between them."""
        if into not in self.state:
            return self.settle(bias, '', '')
        shift = self.state.pop(bias)
        shift = shift if weight is None else self.state[weight] @ shift
        self.state[into] = self.state[into] + shift
        return None

    def stacks(self) -> list[str]:
        """Return the prefix of `layers.0...` in the names of each stack."""
        found = (re.match(r'(|.*?\.)layers\.\d+\.', name) for name in self.state)
        return list(dict.fromkeys(match[1] for match in found if match))

    def attentions(self, stack: str = '') -> list[str]:
        """Return the prefixes of all attention layers of a stack, or of all stacks."""
        return [n.removesuffix('to_q.weight') for n in self.names(r'to_q\.weight') if n.startswith(f'{stack}')]

    def width(self, attention: str) -> int:
        """Return the width of the heads of an attention layer."""
        inner = self.state[f'{attention}to_q.weight'].shape[0]
        heads = self.heads or self.told_heads(attention)
        if self.dim_head is None and heads is None:
            raise ValueError(
                f'`heads` is missing: the weights do not tell how many heads the {inner} rows of '
                f'`{attention}to_q.weight` make. Give `heads` or `dim_head`'
            )
        width = self.dim_head or inner // heads
        if inner % width or (heads and width * heads != inner):
            name, value = ('heads', self.heads) if self.heads else ('dim_head', self.dim_head)
            raise ValueError(f'`{name}` got {value}, which does not fit the {inner} rows of `{attention}to_q.weight`')
        return width

    def rotary(self, stack: str) -> int | None:
        """Return how many features of a head turn, None if there are no rotary positions."""
        table = self.state.get(f'{stack}rotary_pos_emb.inv_freq')
        return self.rotary_dim or (None if table is None else 2 * len(table))

    def told_heads(self, attention: str) -> int | None:
        """Return how many heads there are, where a parameter has one entry for each."""
        stack = re.match(r'(|.*?\.)layers\.', attention)
        tables = ((f'{stack[1]}rel_pos.relative_attention_bias.weight', 1),) if stack else ()
        own = (('qk_norm_q_scale', 0), ('head_scale_params', 1), ('to_v_head_gate.weight', 0))
        for name, axis in (*((attention + name, axis) for name, axis in own), *tables):
            t = self.state.get(name)
            if t is not None and t.ndim > 1:
                return t.shape[axis]
        memory = self.state.get(f'{attention}mem_k')
        return None if memory is None else self.state[f'{attention}to_q.weight'].shape[0] // memory.shape[-1]


# the steps, oldest first. Each says what the releases since then do


def slots_of_norms(old: Old) -> None:
    """Put the norm of a layer into one of its three slots."""
    slot = 0 if old.pre_norm else 2
    old.rename(r'(?P<layer>layers\.\d+\.0)\.(?P<last>weight|bias|g)', rf'\g<layer>.{slot}.\g<last>')


REFUSED = (
    ('0.28', r'mlp_head\.net\..*', 'image models read a class token'),
    ('0.31', r'layers\.\d+\.1\.(fn\.)*scale', 'the scale of normed queries and keys was learned'),
    ('1.6.4', r'rel_pos\.mlp\..*', 'dynamic positions were computed otherwise'),
    ('1.8', r'patch_to_embedding\.weight', 'image models did not norm the patches'),
    ('1.20', r'rotary_pos_emb\.scale', 'xPos scaled the values, too'),
    ('2.14', r'layers\.\d+\.2\.static_alpha', 'residual streams were mixed otherwise'),
    ('1.41.1', r'data_dependent_alibi\..*', 'data-dependent ALiBi was computed otherwise'),
)


def refuse(old: Old) -> None:
    """Raise for weights of computations that have changed in a way that no weights make up for."""
    for before, pattern, what in REFUSED:
        if old.version < Version(before):
            for name in old.names(pattern):
                raise ValueError(f'`{name}`: before {before} {what}, which cannot be loaded')


def refuse_learned_slopes(old: Old) -> None:
    """Raise for learned slopes of ALiBi, which are fixed now."""
    for name in old.names(r'rel_pos\.learned_logslopes'):
        slopes = [round(slope, 6) for slope in old.state[name].exp().flatten().tolist()]
        raise ValueError(
            f'`{name}`: slopes are not learned any more. Leave this entry out, and build the model with '
            f'`rel_pos_kwargs=dict(slopes={slopes})`'
        )


def final_norms(old: Old) -> None:
    """Move the final norm into the stack; without pre-norm, into the last layer."""
    for stack in old.stacks():
        outside = stack.removesuffix('attn_layers.')
        layers = re.escape(stack) + r'layers\.\d+\.0'
        after = not old.pre_norm or bool(old.names(rf'{layers}\.2\.(weight|g)'))
        if after and outside == stack:
            raise ValueError(f'`{stack}layers`: before 1.15 a bare stack without pre-norm did not norm its output')
        if f'{outside}norm.weight' in old.state and old.names(rf'{layers}\.\d\.g'):
            raise ValueError(f'`{outside}norm.weight`: before 1.15 the final norm was a layer norm, unlike others')
        last = max(int(index) for index in re.findall(re.escape(stack) + r'layers\.(\d+)\.', ' '.join(old.state)))
        place = f'{stack}layers.{last}.0.2' if after else f'{stack}final_norm'
        for entry in ('weight', 'bias'):
            if outside != stack and f'{outside}norm.{entry}' in old.state:
                old.state[f'{place}.{entry}'] = old.state.pop(f'{outside}norm.{entry}')


def feedforward_indices(old: Old) -> None:
    """Move the output projection of a feedforward to entry 2, if no norm follows the activation."""
    normed = {name.rpartition('1.')[0] for name in old.names(r'ff\.1\.(weight|gamma)')}
    old.rename(
        r'(?P<ff>layers\.\d+\.1\.(fn\.)*ff\.)3\.(?P<last>weight|bias)',
        r'\g<ff>2.\g<last>',
        only=lambda name: name.rpartition('3.')[0] not in normed,
    )


def talking_heads(old: Old) -> None:
    """Convert both mixes of heads to matrices, as they were before 0.23."""
    for when in ('pre', 'post'):
        for name in old.names(rf'{when}_softmax_talking_heads\.weight'):
            old.state[name] = old.state[name][:, :, 0, 0].T.contiguous()
        old.rename(rf'{when}_softmax_talking_heads\.weight', f'{when}_softmax_proj')
        old.rename(rf'attend\.{when}_softmax_proj', f'{when}_softmax_proj')


def scales_per_head(old: Old) -> None:
    """Repeat learned scales of normed queries and keys for each head."""
    for attention in old.attentions():
        for which in 'qk':
            name = f'{attention}qk_norm_{which}_scale'
            if name in old.state and old.state[name].ndim == 1:
                rows = old.state[f'{attention}to_{which}.weight'].shape[0]
                scale = old.state[name]
                old.state[name] = scale.expand(rows // len(scale), 1, -1).clone()


def still_values(old: Old) -> None:
    """Raise if rotary positions changed the values, unless `rotate_values` is set."""
    old.turns_values = any(old.rotary(stack) for stack in old.stacks())
    if old.turns_values and not old.keeps['rotate_values']:
        raise ValueError(
            'from 0.15 to 1.19 rotary positions turned the values, too, and models no longer do: no change of weights '
            'makes up for it. Build the model with `attn_rotate_values=True` and give `rotate_values=True`'
        )


NORMS = r'layers\.\d+\.0\.\d|final_norm'
OTHER_NORMS = r'post_emb_norm|layers\.\d+\.1\.(?:fn\.)*ff\.1|rel_pos\.mlp\.0\.1|patch_to_embedding\.[02]'


def norm_names(old: Old) -> None:
    """Rename the entries of layer norms from those of torch to those of the library."""
    for last, new in (('weight', 'gamma'), ('bias', 'beta')):
        old.rename(rf'(?P<norm>{NORMS}|{OTHER_NORMS})\.{last}', rf'\g<norm>.{new}')


def norm_biases(old: Old) -> None:
    """Remove biases of layer norms, or fold them into a later bias."""
    for name in old.names(rf'({NORMS})\.beta'):
        old.settle(name, 'norm_bias', '`norm_bias=True`')
    for name in old.names(r'ff\.1\.beta'):
        ff = name.removesuffix('1.beta')
        old.fold(name, f'{ff}3.weight', f'{ff}3.bias')
    for name in old.names(r'patch_to_embedding\.0\.beta'):
        old.fold(name, name.replace('0.beta', '1.weight'), name.replace('0.beta', '1.bias'))
    for name in old.names(r'patch_to_embedding\.2\.beta'):
        old.fold(name, None, name.replace('patch_to_embedding.2.beta', 'pos_embedding'))
    for name in old.names(rf'({OTHER_NORMS})\.beta'):
        old.settle(name, '', '')


def logits_biases(old: Old) -> None:
    """Settle the bias of the head, except for models that read numbers."""
    for name in old.names(r'to_logits(\.\d+)?\.bias'):
        if f'{name.partition("to_logits")[0]}to_numerical_output.weight' in old.state:
            continue
        old.settle(name, 'logits_bias', '`logits_bias=True`')


def scale_norms(old: Old) -> None:
    """Divide the weight of ScaleNorm by the root of the width, by which it multiplies now."""
    for stack in old.stacks():
        for name in old.names(rf'({NORMS})\.g'):
            if name.startswith(stack) and old.state[name].numel() == 1:
                dim = old.state[f'{old.attentions(stack)[0]}to_q.weight'].shape[1]
                old.state[name] = old.state[name] * dim**-0.5


def interleave_channels(old: Old) -> None:
    """Interleave rotary pairs: channel k was paired with k + rotary_dim / 2, now 2 k is with 2 k + 1."""
    for stack in old.stacks():
        rotary_dim: Any = old.rotary(stack)
        for attention in old.attentions(stack) if rotary_dim else ():
            width = old.width(attention)
            if rotary_dim % 2:
                raise ValueError(f'`rotary_dim` must be even, got {rotary_dim}: features turn in pairs')
            if rotary_dim > width:
                raise ValueError(f'`rotary_dim` must be at most the width of a head, {width}, got {rotary_dim}')
            pairs = rearrange(torch.arange(rotary_dim), '(half k) -> (k half)', half=2)
            order = torch.cat((pairs, torch.arange(rotary_dim, width)))
            axes = {name: 0 for name in ('to_q.weight', 'to_k.weight')}
            axes |= {name: -1 for name in ('mem_k', 'qk_norm_q_scale', 'qk_norm_k_scale')}
            if old.turns_values:
                axes |= {'to_v.weight': 0, 'mem_v': -1, 'to_out.weight': 1, 'to_out.0.weight': 1}
                axes |= {'to_v_gate.weight': 0, 'to_v_gate.bias': 0}
            for name, axis in axes.items():
                t = old.state.get(attention + name)
                if t is not None:
                    old.state[attention + name] = reorder_channels(t, order, axis)


def reorder_channels(t: Tensor, order: Tensor, axis: int) -> Tensor:
    """Reorder an axis in blocks of the length of `order`: the heads that it holds."""
    blocks = rearrange(torch.arange(0, t.shape[axis], len(order)), 'heads -> heads 1')
    return t.index_select(axis, rearrange(blocks + order, 'heads d -> (heads d)').to(t.device))


def encoder_heads(old: Old) -> None:
    """Remove the head of the encoder of an encoder-decoder."""
    for name in old.names(r'encoder\.to_logits\.(weight|bias)'):
        if old.names(r'decoder\.net\.to_logits\..*'):
            del old.state[name]


def learned_logit_scales(old: Old) -> None:
    """Adapt learned scales of normed queries: logits are multiplied by dim_head ** -0.5, not a constant."""
    old.change(r'qk_norm_q_scale', lambda t: t * (old.qk_norm_scale * t.shape[-1] ** 0.5))


def ignored_logit_scales(old: Old) -> None:
    """Reset learned scales, which these releases ignored; they used the third power of the constant."""
    for which in 'qk':
        old.change(rf'qk_norm_{which}_scale', torch.ones_like)
    old.change(r'qk_norm_q_scale', lambda t: t * (old.qk_norm_scale**3 * t.shape[-1] ** 0.5))


def streams_of_ones(old: Old) -> None:
    """Raise for residual streams mixed by ones, unless `hyper_conn_residual_mix` is given."""
    for name in old.names(r'layers\.\d+\.2\.dynamic_alpha_fn'):
        if not old.keeps['hyper_conn_residual_mix']:
            raise ValueError(
                f'`{name}` is of residual streams that were mixed by a matrix of ones: build the model with '
                f"`hyper_conn_residual_mix='ones'` and give it here as well, to have what they computed"
            )


Step = Callable[[Old], None]


def rename(pattern: str, new: str) -> Step:
    """Return the step that renames all entries that match."""
    return lambda old: old.rename(pattern, new)


def change(pattern: str, function: Callable[[Tensor], Tensor]) -> Step:
    """Return the step that replaces the tensors of all entries that match."""
    return lambda old: old.change(pattern, function)


def settle(pattern: str, keep: str, flag: str) -> Step:
    """Return the step that keeps, drops or refuses the biases that match, which models no longer have."""

    def step(old: Old) -> None:
        for name in old.names(pattern):
            old.settle(name, keep, flag)

    return step


SCALE_POSITIONS = change(r'pos_emb\.emb\.weight', lambda t: t * t.shape[-1] ** 0.5)

# since, before, step: for weights of releases in this range
STEPS: tuple[tuple[str, str, Step], ...] = (
    ('0', '2.31.10', refuse),
    # Learned positions were scaled by dim ** -0.5.
    ('0', '0.17.11', SCALE_POSITIONS),
    ('0', '0.21', slots_of_norms),
    ('0.24.0', '0.24.1', SCALE_POSITIONS),
    # The table of tokens became a module inside its embedding.
    ('0', '0.24', rename(r'token_emb\.weight', 'token_emb.emb.weight')),
    ('0', '0.26', settle(r'to_out(\.0)?\.bias', 'out_bias', '`attn_out_bias=True`')),
    ('0', '0.33', rename(r'(?P<layer>layers\.\d+\.1\.(fn\.)*)net\.(?P<last>.+)', r'\g<layer>ff.\g<last>')),
    ('0', '1.15', final_norms),
    # Class tokens had a position.
    ('0', '1.16', change('pos_embedding', lambda t: t[:, :-1])),
    ('0', '1.18', feedforward_indices),
    ('0', '1.18.1', refuse_learned_slopes),
    ('0', '1.19.1', scales_per_head),
    ('0.15', '1.20', still_values),
    ('0', '1.31', norm_names),
    ('0', '1.27.1', norm_biases),
    ('0', '1.39', talking_heads),
    ('0', '1.35.2', encoder_heads),
    ('0', '1.27', logits_biases),
    ('0', '1.27.3', settle(r'project_(in|out)\.bias', '', '')),
    ('0.33.1', '1.27.20', scale_norms),
    ('0', '1.30.1', interleave_channels),
    # Weights of norms and of layer scale are stored as their difference from one.
    ('0', '1.31.2', change(rf'({NORMS})\.(gamma|g)', lambda t: t - 1)),
    ('0', '1.31.8', change(r'layers\.\d+\.1\.(fn\.)*gamma', lambda t: t - 1)),
    # There may be several class tokens.
    ('0', '1.40.11', change('cls_token', lambda t: t.unsqueeze(0) if t.ndim == 1 else t)),
    ('0', '2.26', settle(r'to_v_gate\.bias', 'gate_values_bias', '`attn_gate_values_bias=True`')),
    ('0', '2.17.1', learned_logit_scales),
    ('2.17.1', '2.25.5', ignored_logit_scales),
    ('2.14', '2.32', streams_of_ones),
)

"""Multi-token prediction: modules behind the stack that each predict one more token, for training and for drafts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.model_calls import make_model_call
from x_transformers.core.own_modules import known_stack, refuse_own_stack
from x_transformers.core.routing import PREFIXES, per_layer
from x_transformers.features.levels import ModelFeature
from x_transformers.features.norms import RMSNorm
from x_transformers.flags import ConfigError, Input, count, flag, mapping, none, not_negative, one_of
from x_transformers.training.token_loss import Readout, read_out_later

# Flags of a stack that describe each of its blocks: these, and those of norms and positions. Others relate layers.
OF_BLOCK = ('heads', 'cross_attend', 'only_cross', 'pre_norm', 'norm_add_unit_offset', 'rel_pos_kwargs', 'features')
OF_BLOCK_IN = tuple(f'{__package__}.{name}' for name in ('norms', 'rotary', 'biases', 'relative', 'polar', 'untied'))
INPUTS = ('context', 'context_mask', 'attn_mask', 'self_attn_kv_mask', 'seq_start_pos', 'pos', 'attn_bias')


class PredictionModule(nn.Module):
    """One module of multi-token prediction:  block(W [rms(e); rms(h)]), for embeddings e and hidden states h (b, n, d).

    `norm` comes before the output head of the model; the next module gets the stream without it.
    """

    block: Any
    norm: Any

    def __init__(self, block: nn.Module, dim: int, eps: float | None) -> None:
        super().__init__()
        self.embed_norm, self.hidden_norm = RMSNorm(dim, eps=eps), RMSNorm(dim, eps=eps)
        self.merge = nn.Linear(2 * dim, dim, bias=False)
        self.block, self.norm = block, RMSNorm(dim, eps=eps)

    def forward(self, embeds: Tensor, hidden: Tensor, **inputs: Any) -> Any:
        return self.block(self.merge(torch.cat((self.embed_norm(embeds), self.hidden_norm(hidden)), dim=-1)), **inputs)


class MultiTokenPrediction(ModelFeature):
    """Multi-token prediction: modules k = 1, 2, ... with a block of their own predict the token k + 1 places ahead.

        h^k_i = block_k(W_k [rms(E[x_{i+k}]); rms(h^{k-1}_i)])        logits of x_{i+k+1} = head(rms(h^k_i))

    E and the output head are those of the model, h^0 are the hidden states of its stack. In training,
    `AutoregressiveWrapper` adds the mean of the losses of all modules, times `mtp_loss_weight`. A target counts if all
    tokens from i to i + k + 1 are real and of one document. Besides that, `speculative(..., draft='mtp')` uses the
    modules, and nothing else does.

    A block is like the last one of the stack, with the keywords of `mtp_block` instead of its own. Flags of the stack
    that relate several layers do not apply to it, and `custom_layers` neither.
    """

    paper = 'DeepSeek-V3, arXiv:2412.19437, section 2.2'
    mtp_depth = flag(0, 'number of modules that each predict one more token', count, example=2)
    mtp_block = flag(
        None, 'keywords of the block of each module that differ from those of the last block of the stack',
        mapping | none, example=dict(ff_mult=1),
    )  # fmt: skip
    mtp_hidden = flag(
        'stream', "hidden states that the first module gets: before ('stream') or after ('normed') the final norm",
        one_of('stream', 'normed'), example='normed',
    )  # fmt: skip
    mtp_loss_weight = flag(0.3, 'weight of the loss of all modules', not_negative, example=0.1)
    call_inputs = {
        'return_mtp': Input(
            "store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, "
            'the hidden states for the first module',
            one_of(False, True, 'hidden'),
        )
    }
    clashes = {
        **dict.fromkeys(('looped', 'recycling'), 'each pass has other hidden states'),
        'memory_tokens_interspersed_every': 'its tokens have no next one',
    }
    stored_as = {'steps': 'mtp'}
    steps: Any
    always = False
    by_token = True

    def setup(self, owner: Any) -> None:
        refuse_own_stack(owner.attn_layers, 'mtp_depth', 'its blocks are not known')
        stack = known_stack(owner.attn_layers)
        if not stack.causal:
            raise ConfigError(
                f'`mtp_depth` needs a causal stack: got a {type(stack).__name__}, which sees later tokens'
            )
        if owner.return_only_embed:
            raise ConfigError('`mtp_depth` cannot be combined with `return_only_embed`: there is no output head')
        flags = {**flags_of_last_block(stack), **(self.mtp_block or {})}
        try:
            blocks = [type(stack)(**copy.deepcopy(flags)) for _ in range(self.mtp_depth)]
        except (ConfigError, TypeError) as error:
            raise ConfigError(
                f'`mtp_block` must give other keywords, since a block cannot have these: {error}'
            ) from None
        eps = stack.given_now().get('norm_eps')
        self.steps = nn.ModuleList(PredictionModule(block, stack.dim, eps) for block in blocks)

    def embed_ids(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """Return the embeddings (b, n, d) of ids (b, n), zeros for padding."""
        embeds = self.owner.project_emb(self.owner.token_emb(ids))
        return embeds if token_mask is None else embeds.masked_fill(~token_mask.bool().unsqueeze(-1), 0.0)

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        if not call.inputs.get('return_mtp'):
            return inputs
        call.ctx(self).inputs = inputs
        return {**inputs, 'return_stream': True}

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        wanted, intermediates = call.inputs.get('return_mtp'), call.intermediates
        if not wanted:
            return out
        hidden = intermediates.stream if self.mtp_hidden == 'stream' else intermediates.last_hidden
        if hidden is None:
            raise ValueError('`return_mtp` needs `return_intermediates`, in which its results are stored')
        # Tokens are at the end, also where a prefix comes after left padding.
        intermediates.mtp_hidden = hidden = hidden[:, hidden.shape[1] - call.new_len :]
        if wanted != 'hidden':
            intermediates.mtp_readouts = self.run_modules(hidden, call)
        return out

    def run_modules(self, hidden: Tensor, call: Any) -> list[Readout]:
        """Return the readouts of all modules for the hidden states (b, n, d) of the tokens of a call."""
        if call.cache is not None:
            raise ValueError("`return_mtp` must be 'hidden' with a cache: modules get the next tokens")
        embeds, token_mask, found = self.embed_ids(call.like_tokens, call.token_mask), call.token_mask, []
        inputs = {'mask': token_mask, **self.inputs_of_block(call.ctx(self).inputs, call)}
        for module in self.steps:
            embeds = F.pad(embeds[:, 1:], (0, 0, 0, 1))
            with call.losses:
                hidden = module(embeds, hidden, **inputs)
            found.append(read_out_later(self.owner, module.norm(hidden), call))
        return found

    def inputs_of_block(self, inputs: Mapping[str, Any], call: Any) -> dict[str, Any]:
        """Return those inputs of the stack that a block takes, for the tokens without the prefix of a call."""
        known = {*INPUTS, *self.steps[0].block.features.call_inputs}
        own = {name: value for name, value in inputs.items() if name in known and value is not None}
        if not call.num_prefix_tokens:
            return own
        for name in ('attn_mask', 'attn_bias'):
            if name in own:
                raise ValueError(f'`{name}` cannot be combined with `mtp_depth` and tokens before the sequence')
        if 'pos' in own:
            own['pos'] = call.inputs['pos']
        if 'self_attn_kv_mask' in own:
            own['self_attn_kv_mask'] = own['self_attn_kv_mask'][:, -call.new_len :]
        return own

    # drafts

    def step(self, k: int, ids: Tensor, hidden: Tensor, token_mask: Tensor | None, inputs: dict[str, Any]) -> Any:
        """Return the stream (b, n, d) of module k, from 0 on, and its intermediates with a cache, given the next tokens
        (b, n), of which those of `token_mask` (b, n) are real, the hidden states (b, n, d) before, and more inputs."""
        known = {*INPUTS, 'mask', 'cache', *self.steps[k].block.features.call_inputs}
        own = {name: value for name, value in inputs.items() if name in known}
        embeds = self.embed_ids(ids, token_mask)
        return self.steps[k](embeds, hidden, input_not_include_cache=True, return_hiddens='past', **own)

    def logits_of(self, k: int, x: Tensor) -> Any:
        """Return the logits (b, l) of module k for its stream (b, d)."""
        call = make_model_call(self.owner, {}, 1, None, False)
        logits = self.owner.read_out(self.steps[k].norm(x).unsqueeze(1), call, {})
        return (logits[0] if isinstance(logits, tuple) else logits)[:, -1]


def flags_of_last_block(stack: Any) -> dict[str, Any]:
    """Return the keywords of a stack of one block like the last one: of values per layer, the last of each kind."""
    declared = {name: (flag, getattr(flag, 'feature', None)) for name, flag in type(stack).accepted().items()}
    flags = {'dim': stack.dim, 'depth': 1, 'pre_norm_has_final_norm': False, 'verbose': False}
    for name, value in stack.given_now().items():
        flag, feature = declared.get(name, (None, None))
        if next((True for prefix in PREFIXES if name.startswith(prefix)), False):
            shares = per_layer(value, flag)
            flags[name] = value if shares is None else shares[-1]
        elif name == 'rotary_layers' and isinstance(value, tuple):
            flags[name] = value[-1:]
        elif name in OF_BLOCK or (feature is not None and feature.__module__ in OF_BLOCK_IN):
            flags[name] = value
    return flags

"""Order of the parameters and submodules of a module: optimizers, `parameters_to_vector` and EMA go by it."""

from __future__ import annotations

from typing import Any

from torch import nn

# Names in the order of the original, whatever order they are made in: parameters, then submodules.
ATTENTION = (
    'qk_norm_q_scale', 'qk_norm_k_scale', 'head_scale_params', 'mem_k', 'mem_v',
    'to_latent_q', 'to_latent_kv', 'to_rotateable_k', 'to_q', 'to_k', 'to_v', 'to_v_gate', 'to_output_gate',
    'to_v_head_gate', 'q_rmsnorm', 'k_rmsnorm', 'value_rmsnorm', 'data_dependent_alibi', 'rel_proj_pos_bias', 'attend',
    'to_value_residual_mix', 'hybrid_module', 'hybrid_norms', 'hybrid_mix', 'to_out',
)  # fmt: skip
ATTEND = ('pre_softmax_talking_heads', 'post_softmax_talking_heads', 'pre_scale_post_talking_heads')
STACK = (
    'layers', 'layer_integrators', 'rotary_pos_emb', 'polar_pos_emb', 'rel_pos', 'adaptive_mlp', 'final_norm',
    'skip_combines', 'reinject_input_proj', 'learned_reinject_input_gate',
)  # fmt: skip
MODEL = (
    'ff_deep_embed', 'cls_token', 'memory_tokens',
    'token_emb', 'pos_emb', 'embeds', 'post_emb_norm', 'emb_dropout', 'project_emb', 'attn_layers', 'project_in',
    'project_out', 'attn_pool', 'recycled_proj', 'to_mixture', 'combine_mixture', 'exit_gate', 'to_logits',
    'to_next_embed_pred', 'to_numerical_output',
)  # fmt: skip


def sort_members(module: nn.Module, names: tuple[str, ...]) -> None:
    """Sort the parameters, buffers and submodules of a module by `names`. Others follow in the order they were set."""
    tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, module._modules)
    for held in tables:
        known = [name for name in names if name in held]
        if known != list(held)[: len(known)]:
            sorted_first: dict[str, Any] = {name: held.pop(name) for name in known}
            others: dict[str, Any] = dict(held)
            held.clear()
            held.update(sorted_first)
            held.update(others)

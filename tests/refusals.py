"""Which refusals of combinations are known: declared by a feature, or named here with a reason.

Any other error where flags are combined is a fault, whatever its class and however politely it is worded.
"""

import re

import pytest
from law_cases import LEVELS, gradients, inputs_for, model_of, refused

FEATURES = {prefix + name: cls for level, prefix in LEVELS for cls in level for name in cls.flags}

# what no declaration says, as the words have it, and why
KNOWN = {
    r'`attn_flash=True` cannot be combined with `\w+`: the fused kernel forms no (scores|logits)': 'by stages',
    r'`attn_flash=True` cannot be combined with `\w+`: it attends in its own way': 'the same',
    r'`attn_flash=True` cannot be combined with `attn_adaptive_span`: .*': 'of an argument',
    r'`\w+` cannot be combined with `attn_flash=True`: the fused kernel forms no logits': 'the same, said by the stack',
    r'`\w+` must have (one, or )?one per layer, \d+, got \d+ values': 'a tuple is for a number of layers',
    r'`\w+` must have one value, or one for each of \d+ layers, got \d+': 'the same',
    r'`only_attn` cannot be combined with `custom_layers` that have feedforwards .*': 'an argument of the other',
    r'`par_ratio` (must be at most the number of layers|got \d+, which leaves no room).*': 'layers are few',
    r'`sandwich_coef` must be at most `depth`, \d+, got \d+': 'layers are few',
    r'`attn_(kernel|cluster|aft|linformer_k)` needs a stack that is causal or bidirectional: .*': 'masks of pairs',
    r'`recurrent_module` needs a causal stack: .*': 'order',
    r'`(knn_mem_layers|mtp_depth)` needs a causal stack: .*': 'order',
    r'`mtp_depth` cannot be combined with `return_only_embed`: .*': 'of an argument',
    r'`knn_mem_layers` must be different numbers below the \d+ layers of self-attention, got .*': 'layers are few',
    r"`cmem_fn='most_used'` cannot be combined with `(layer_dropout|attn_\w+)(=True)?`: .*": 'one value, and the stack',
    r'`attn_linformer_k` cannot be combined with `causal`: .*': 'order',
    r'`(cross_)?attn_kernel_update=.* needs `causal`: .*': 'order',
    r'`attn_kernel_l2norm` cannot be combined with `attn_qk_norm`, .*': 'one value, and what is on with some maps',
    r'`attn_kernel` got .*, which has no scale: it cannot be combined with `attn_softmax_scale`': 'of some maps',
    r'`attn_aft` cannot be combined with `(\w*kv_heads|attn_value_dim_head)`: .*': 'sizes',
    r'`\w+` needs a causal stack': 'memory tokens stand between tokens',
    r'`(attn_inverted_attention|attn_orthog_projected_values_over_sequence)` cannot be combined with .*causal.*: .*': 'order',
    r'`attn_sortcut` cannot be combined with `causal`: .*': 'order',
    r"`attn_sinkhorn_sort='net'` needs `attn_cluster_blocks`: .*": 'sizes',
    r'`orthog_residual_over_sequence` cannot be combined with a causal stack: .*': 'order',
    r'`conv_module` cannot be combined with a causal stack: .*': 'order',
    r"`conv_norm='batch'` cannot be combined with `(checkpoint_layers|reversible)`: .*": 'of one norm',
    r'`two_stream` cannot be combined with (a causal stack|`cross_attend`): .*': 'order',
    r'`(alibi|rel)_pos_bias` cannot be combined with `attn_data_dependent_alibi`: one position bias at a time': 'two levels',
    r'`position_infused_attn` cannot be combined with `attn_use_latent_kv`: values share .*': 'two levels',
    r'`sinu_pos_emb` cannot be combined with `(scaled_sinu_pos_emb|abs_pos_emb_scale)`: its scale is 1': 'one scale',
    r"`alibi_bidirectional='split'` cannot be combined with `causal`: .*": 'order',
    r"`alibi_bidirectional='split'` needs an even number of heads with a slope, got \d+": 'sizes',
    r'`(per_layer_abs_pos_emb|tupe_pos)` cannot be combined with `max_mem_len`: .*': 'of an argument',
    r'`tupe_pos` needs absolute positions: .*': 'of the model',
    r'`tupe_pos` needs positions as wide as the stack, .*': 'sizes',
    r'`attn_tupe_pos` cannot be combined with `attn_kv_heads`: .*': 'sizes',
    r'`attn_flash_pack_seq` (needs `rotary_pos_emb`|cannot be combined with `shift_tokens`): .*': 'two levels',
    r'`(cross_)?attn_\w+`( with `\w+=None`)? cannot be combined with a causal stack: .*': 'order',
    r"`attn_lsh_chunks='sorted'` cannot be combined with `causal`: .*": 'order',
    r'`(attn_)?(cluster|shared_qk)` cannot be combined with `(cross_)?(attn_)?kv_heads`: .*': 'keys are made of queries',
    r'`attn_(latent_rope_subheads|collab_heads)` cannot be combined with `(\w*kv_heads|rotate_num_heads)`: .*': 'sizes',
    r'`rotate_num_heads` cannot be combined with `attn_kv_heads`: .*': 'sizes',
    r'`(rotate_num_heads|alibi_num_heads|attn_latent_rope_subheads)` must be at most `heads`, \d+, got \d+': 'sizes',
    r'`attn_max_attend_future` cannot be combined with .causal`: .*': 'of an argument',
    r'`attn_(latent_norm|latent_bias)` needs `attn_use_latent_q` or `attn_use_latent_kv`: .*': 'either of two',
    r'`attn_\w+` and `attn_\w+` both settle `logit_scale`, set only one': 'one scale',
    r'`rotary_emb_dim` must be `attn_dim_latent_rope`, \d+, got \d+': 'sizes',
    r'`attn_dim_latent_rope` must be even and less than the head width, \d+, got \d+': 'sizes',
    r'`attn_kv_heads` must divide the number of heads, \d+, got \d+': 'sizes',
    r'`attn_(gate_values|output_gate)_rank` cannot be combined with `attn_(gate_values|output_gate)_headwise`: .*': 'a gate',
    r'`attn_gate_values_bias` (cannot be combined with `attn_gate_values_rank`|needs `attn_gate_values`): .*': 'two gates',
    r'`ff_glu_softclamp` needs GELU or `ff_swish`, .*': 'of other activations there is no linear factor',
    r'`ff_moe_top_k` must be at most `ff_moe_experts`, \d+, got \d+': 'sizes',
    r'`ff_moe_top_k` got \d+, the best \d+ of `ff_moe_groups` .*\d+': 'sizes',
    r'`ff_moe_groups` must divide `ff_moe_experts`, \d+, got \d+': 'sizes',
    r'`ff_moe_(groups|score_bias)` needs `ff_moe_kind=.*': 'groups and biases are of sigmoids',
    r'`gated_multi_residual` needs `residual_fn_kwargs` with `read_gate_rank`, .*': 'an argument of the residual',
    r'`rel_pos_kwargs` got .*': 'arguments of another bias',
    r'`slopes` of `rel_pos_kwargs` must have .*': 'sizes',
    r'`(pre_and_post_norm|sandwich_norm|use_dynamic_tanh)` needs `pre_norm`: .*': 'of an argument',
    r'`(block_norm|use_adaln_zero)` needs `pre_norm`: .*': 'of an argument',
    r'`(branch_post_norm|parallel_block|first_attn_norm=False)` needs `pre_norm`: .*': 'of an argument',
    r"`(branch_post_norm|pre_norm=False)` cannot be combined with the gate 'gtrxl' of `residual_fn_kwargs`: .*": 'of one gate',
    r'`parallel_block=.shared.` cannot be combined with `(branch_post_norm|first_attn_norm)`: .*': 'there is no norm to share',
    r'`parallel_block` cannot be combined with this `layers_execute_order`: .*': 'blocks are whole',
    r'`first_attn_norm=False` cannot be combined with this `layers_execute_order`: .*': 'it runs again',
    r'`ff_activation` cannot be combined with `ff_\w+`: both choose the activation': 'one is an argument',
    r'`ff_swiglu_limit` cannot be combined with `ff_\w+`: .*': 'it has an activation and bounds of its own',
    r'`ff_moe_bias` cannot be combined with `ff_glu_bias=False`: .*': 'one value, and another',
    r'`act_halting` cannot be combined with `\w+`: .*': 'said by `refuses` of the other',
    r'`act_halting` cannot be combined with layers of kind .*': 'said by `joins_tokens` of the kind',
    r'`reversible` needs (`pre_norm`|attention and feedforwards): .*': 'of an argument',
    r'`reversible_merge=.concat_norm.` needs `pre_norm_has_final_norm`': 'of an argument',
    r'`reversible` cannot be combined with `scale_residual(_constant)?`, got .*': 'an argument of the residual',
    r'`tie_embedding` needs embeddings as wide as the stack: .*': 'sizes',
    r'`tie_embedding` needs a TokenEmbedding, .*': 'of an argument',
    r'`logits_dim` got \d+, with `tie_embedding` it is `num_tokens`, \d+': 'sizes',
    r'`mixture_of_softmax` cannot be combined with `logits_dim` of 1: .*': 'sizes',
    r'`(to_logits|logits_dim)` and `\w+` both make the head, set only one': 'of an argument',
    r'`attn_one_kv_head` and `\w+_kv_heads` both set the number of key heads, set only one': 'of arguments',
    r'`attn_flash_pack_seq` cannot be combined with `attn_flash=False`: .*': 'of an argument',
    r'(`cmem_len` with )?`cmem_(loss|fn)=.*` (needs|cannot be combined with) .*': 'by content, or by what was seen',
    r"`attn_kernel(_update)?='\w+'` cannot be combined with `attn_laser`: .*": 'one value, and the other',
    r'`cross_attn_tokens_dropout` cannot be combined with `\w+`: .* belong to other tokens': 'one of the stack',
    r'`attn_knn_mem` cannot be combined with \d+ query heads of \d+ heads, .*': 'it has numbers for each head',
    r'`token_emb` must have width \d+, got vectors of width \d+': 'sizes',
}
# what a call refuses
COUNTED = 'inputs of the user are those of the tokens, without what a model puts in front'
IN_CALLS = {
    r'`cluster` cannot be combined with `(polar_pos_emb|kv_input_residual|mems|attn_bias)`: .*': 'as it says',
    r'`cluster` cannot be combined with (keys that other flags put in front|`\w+`, which has no form.*)': 'it has clusters',
    r'`(moba_block|indexer)` cannot be combined with `mems`: its? .*': 'segments are not whole',
    r'`sparse_pattern` cannot be combined with `\w+`, which has no form for one query and one key': 'nor has it all pairs',
    r'`kernel` cannot be combined with `((rotary|polar)_pos_emb|attn_bias)`: .*': 'it has no scores, and no turned keys',
    r'`linformer_k` cannot be combined with `((rotary|polar)_pos_emb|attn_bias)`: .*': 'the same',
    r'`linformer_k` cannot be combined with keys that other flags put in front': 'its keys are the tokens',
    r'`aft` cannot be combined with `((rotary|polar)_pos_emb|attn_bias)`: .*': 'the same',
    r'`aft` cannot be combined with keys that other flags put in front': 'its keys are the tokens',
    r'`\w+` cannot be combined with (`of_tokens`|queries that `views` puts elsewhere): .*': 'it needs all tokens',
    r'`\w+` cannot be combined with `memory_tokens_interspersed_every`': 'it counts the tokens between',
    r'`in_attn_cond` cannot be combined with `reinject_input`: .*': 'both join the input of branches',
    r'`prev_attn` got logits for \d+ keys, the layer has \d+: .*': 'keys that features add differ',
    r'`use_cope` got queries of width \d+, its positions have \d+: .*': 'polar positions double it',
    r'`differential` cannot be combined with `polar_pos_emb`: .*': 'two levels',
    r'`disentangled` got queries of width \d+, its vectors have \d+: .*': 'polar positions double it',
    r'`(cluster|kernel|linformer_k|aft)` cannot be combined with `\w+`: it hides no keys .*': 'those of a query are its own',
    r'`\w+` cannot be combined with `\w+`: it forms no scores to add to': 'it has none',
    r'`xl_rel_pos` got queries of width \d+, its vectors have \d+.*': 'other features widen heads',
    r'`shaw_rel_pos` got queries of width \d+, its vectors have \d+: .*': 'polar positions double it',
    r'`collab_heads` cannot be combined with this `\w+`: .*': 'there is one shared key',
    r'`(deep_embeds_and_ids|in_attn_cond|self_attn_kv_residuals)` must have \d+, .*, got \d+ tokens': COUNTED,
    r'`attn_bias` must have \d+ keys on its last axis, got shape .*': COUNTED,
    r'`hybrid_module` gave shape .*': 'sizes',
    r'`(rotary|polar)_pos_emb` got angles for \d+ positions, there are \d+ keys .*': COUNTED,
}


def names_a_flag(words, flags):
    """Whether a refusal names one of the flags, with or without the prefix of a branch."""
    bare = [name.removeprefix('cross_').removeprefix('attn_').removeprefix('ff_') for name in flags]
    through = [f'attn_{name.removesuffix("_layers")}' for name in flags]  # of a stack, for its layers
    return any(f'`{name}' in words for name in (*flags, *bare, *through))


def kinds_of(one):
    """A feature, and the kinds that it may be."""
    kinds = getattr(one, 'kinds', None)
    return (one, *(kinds.values() if isinstance(kinds, dict) else ()))


def is_declared(words):
    """Whether a declaration says so: a clash or a need with its reason, or two choices of the same stage."""
    if match := re.fullmatch(r'`(\w+)` and `(\w+)` both choose the (\w+), set only one', words):
        *names, stage = match.groups()
        both = [FEATURES[name.removeprefix('cross_')] for name in names]
        return all(cls.stages[stage] == 'choice' and stage in cls.runs_at() for cls in both) and both[0] is not both[1]
    match = re.fullmatch(r'`(\w+)` (cannot be combined with|needs) `(\w+)`: (.*)', words)
    if match is None or (title := match[1].removeprefix('cross_')) not in FEATURES:
        return False
    one, other, reason = FEATURES[title], match[3], match[4]
    if other in ('cross_attend', 'causal') and any(reason.startswith(words) for words in not_across(one)):
        return True
    if found := re.fullmatch(r'it takes the place of (\w+), at `(\w+)`', reason):
        gone, stage = found.groups()
        return gone in one.replaces[stage] and stage in one.runs_at() and gone in FEATURES[other].runs_at()
    kinds = kinds_of(one)
    said = [{**kind.clashes, **kind.refuses} if match[2] == 'cannot be combined with' else kind.needs for kind in kinds]
    bare = (other, other.removeprefix('cross_').removeprefix('attn_'), other.removeprefix('ff_'))
    told = (reason, reason.replace('`attn_', '`'))  # a reason names flags of its level without their prefix
    return any(table.get(name) in told for table in said for name in bare) or (
        other == 'causal' and match[1] in NEED_ORDER
    )


def not_across(one):
    """Why a feature, or a kind of it, is not for cross-attention; some say so by what they are built with."""
    kinds = kinds_of(one)
    return [NEARBY, *(words for kind in kinds if (words := kind.refuses.get('cross-attention')))]


NEARBY = 'its local heads see nearby tokens, `local_heads=0` has none'

NEED_ORDER = ('rotary_xpos', 'attn_data_dependent_alibi', 'attn_data_dependent_alibi_per_row')


def is_known(words, flags, in_call=False):
    """Whether a refusal of a combination of flags is a known one, and names what the user wrote."""
    table = KNOWN | IN_CALLS if in_call else KNOWN
    return names_a_flag(words, flags) and (is_declared(words) or any(re.fullmatch(known, words) for known in table))


def unless_refused(case):
    """Skip a case whose construction is refused; decided when it runs, since to build them all takes seconds."""
    if words := refused(case):
        assert is_known(words, case.keywords), words
        pytest.skip(words)


def refusal(case):
    """The words with which a combination is refused, at construction or when it is called, or None."""
    words, in_call = refused(case), False
    if words is None:
        net = model_of(case)
        try:
            gradients(net, inputs_for(net, case))
        except ValueError as error:
            words, in_call = str(error), True
    assert words is None or is_known(words, case.keywords, in_call), words
    return words

"""Names that modules of the original show and that live elsewhere here, for code that imports them from there.

They are looked up when they are asked for (PEP 562), so that no module imports anything for their sake. What belongs
here: the tables. The small functions themselves stand in `helpers.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

HELPERS = 'x_transformers.compat.helpers'

# names that mean the same in every module, by where they come from; those of `helpers` are not listed
SAME = {
    '__future__': 'annotations',
    'collections': 'namedtuple',
    'contextlib': 'nullcontext',
    'copy': 'copy deepcopy',
    'dataclasses': 'dataclass replace',
    'einops': 'pack rearrange reduce repeat unpack',
    'einops.layers.torch': 'Rearrange Reduce',
    'functools': 'partial wraps',
    'itertools': 'chain zip_longest',
    'loguru': 'logger',
    'math': 'ceil pi',
    'random': 'random randrange uniform',
    'torch': 'arange autocast cartesian_prod cat einsum is_tensor randperm stack tensor',
    'torch.autograd': 'Function',
    'torch.distributions': 'Normal',
    'torch.func': 'functional_call grad_and_value vmap',
    'torch.nn': 'Embedding GELU GRU LSTM Linear Module ModuleDict ModuleList Parameter SiLU',
    'torch.nn.utils.rnn': 'pad_sequence',
    'torch.optim': 'AdamW',
    'torch.utils._pytree': 'tree_flatten tree_map tree_unflatten',
    'typing': 'Dict Literal Tuple',
    'x_transformers.generation.sampling': 'align_right top_k top_p',
    'x_transformers.training.losses': 'calc_z_loss',
    'x_transformers.features.norms': 'LayerNorm',
    'x_transformers.features.positions': 'AbsolutePositionalEmbedding ScaledSinusoidalEmbedding',
    'x_transformers.x_transformers': 'Attention Decoder TransformerWrapper',
}
MODULES = {'F': 'torch.nn.functional', 'einx': 'einx', 'math': 'math', 'version': 'packaging.version'}

# what a module of the original shows beside what stands in ours
NAMES = {
    'attend': """
        Module Parameter Tuple at_most_one_of cat compact create_causal_mask dataclass default einsum exists l1norm
        namedtuple once one_hot_straight_through pack partial print_once qk_l2_dist_squared rearrange repeat
        selective_attn sparse_topk_attn unpack version wraps
    """,
    'autoregressive_wrapper': """
        Module Tuple ceil math pad_sequence repeat stack tensor
    """,
    'belief_state_wrapper': """
        Decoder DetachMultiple Function Module ModuleList arange cartesian_prod cat cross_entropy default
        detach_multiple einx exists pack random rearrange repeat stack tensor unpack
    """,
    'continuous': """
        AbsolutePositionalEmbedding Attention LayerNorm Module Normal ScaledSinusoidalEmbedding align_right always
        arange batch_masked_mean cat einx exists masked_mean pack pad_at_dim rearrange reduce repeat
        sample_from_mean_variance slice_right_at_dim stack unpack
    """,
    'continuous_autoencoder': """
        F Literal Module default exists lens_to_mask masked_mean
    """,
    'discover_wrapper': """
        Embedding Linear Module Parameter SiLU TransformerWrapper batched_index_select einsum exists lens_to_mask
        rearrange
    """,
    'dpo': """
        Module TransformerWrapper deepcopy einx exists freeze_all_layers_ log_prob_from_model_and_seq maybe_and_mask
        rearrange
    """,
    'entropy_based_tokenizer': """
        Module default einx exists log math pack pad_sequence rearrange repeat tensor unpack zip_longest
    """,
    'free_transformer': """
        Module ModuleList NAT Rearrange Reduce TransformerWrapper arange binary_entropy cross_entropy default exists
        is_tensor log pack pack_with_inverse rearrange reduce repeat tensor top_k unpack
    """,
    'full_bandwidth': """
        Decoder F Identity LinearNoBias Module ModuleDict TransformerWrapper cast_tensor cross_entropy default
        exclusive_cumsum exists first maybe_return pack_with_inverse rearrange temp_eval uniform_like
    """,
    'gpt_lejepa': """
        Decoder Module Sequential TransformerWrapper cross_entropy default einx exists lens_to_mask pad_right_at_dim
        rearrange stack
    """,
    'gpt_vae': """
        F Module ModuleList default exists is_tensor rearrange reduce repeat tensor
    """,
    'multi_input': """
        AbsolutePositionalEmbedding Decoder Dict LayerNorm Module ModuleDict ScaledSinusoidalEmbedding always
        calc_z_loss exists is_empty math pack pad_at_dim rearrange repeat slice_right_at_dim unpack
    """,
    'neo_mlp': """
        F Module ModuleList default exists is_tensor namedtuple pack pi rearrange repeat tensor unpack
    """,
    'next_latent_wrapper': """
        MLP Module cat cross_entropy deepcopy default dynamic_rollout_loss_weights einx exclusive_cumsum exists
        namedtuple pack_with_inverse pad_right_at_dim rearrange reduce stack tensor
    """,
    'nonautoregressive_wrapper': """
        Module TransformerWrapper coin_flip cross_entropy default einx exists grad_and_value namedtuple nullcontext pack
        pi random rearrange repeat sample_prob unpack vmap
    """,
    'recirculation': """
        AdamW F GELU Linear Module ModuleList cast_tuple cross_entropy default exists rearrange
    """,
    'up_wrapper': """
        GRU LSTM Module TransformerWrapper cat default divisible_by exists partial randperm randrange tensor uniform
    """,
    'x_transformers': """
        DEFAULT_ATTN_RESIDUAL_LORA_RANK DEFAULT_DIM_HEAD Lambda LayerRange Module ModuleDict Rearrange
        RepeatBlockSpec RepeatBlocks Sequential annotations arange at_most_one_of autocast cat chain copy deepcopy
        detach_all disable_autocast einsum einx get_cached_kvs is_tensor logger math namedtuple nullcontext pack
        partial random randrange reduce replace safe_cat slice_right_at_dim softclamp_gelu softclamp_silu stack
        tensor tree_flatten tree_flatten_with_inverse tree_map tree_map_tensor tree_unflatten unpack version wraps
    """,
    'xl_autoregressive_wrapper': """
        Module cast_tuple cat ceil cross_entropy default divisible_by exists first functional_call
        get_module_by_path is_empty mask_after masked_mean maybe module_device pack pack_one_with_inverse
        repeat_batch set_module_by_path top_p transpose tree_map_tensor unpack vmap
    """,
    'xm_latent_decoder': """
        F Module and_masks batched_index_select cat cross_entropy exists masked_mean math random randrange reduce
        repeat temp_eval
    """,
    'xval': """
        AbsolutePositionalEmbedding ScaledSinusoidalEmbedding always cross_entropy exists namedtuple pack pad_at_dim
        rearrange repeat slice_right_at_dim top_p unpack
    """,
}

# names with a meaning of their own in one module: where they come from, and their name there if it differs
OTHERS = {
    'attend': {
        'onnx_create_causal_mask': 'helpers:create_causal_mask',
        'softclamp': 'x_transformers.features.scores',
    },
    'belief_state_wrapper': {
        'eval_decorator': 'x_transformers.autoregressive_wrapper',
    },
    'continuous': {
        'default': 'helpers:default_called',
    },
    'discover_wrapper': {
        'Sequential': 'torch.nn',
        'default': 'helpers:first_existing_called',
    },
    'dpo': {
        'masked_mean': 'helpers:mean_of_rows',
    },
    'entropy_based_tokenizer': {
        'calc_entropy_from_logits': 'x_transformers.training.losses:entropy',
    },
    'free_transformer': {
        'einsum': 'einops',
        'gumbel_sample': 'x_transformers.generation.sampling',
    },
    'full_bandwidth': {
        'FILTER_LOGITS_FN': 'x_transformers.generation.sampling',
    },
    'gpt_lejepa': {
        'AutoregressiveWrapper': 'x_transformers.autoregressive_wrapper',
        'l2norm': 'helpers:unit_norm_above',
    },
    'multi_input': {
        'default': 'helpers:default_called',
    },
    'neo_mlp': {
        'einsum': 'einops',
    },
    'next_latent_wrapper': {
        'l2norm': 'helpers:unit_norm',
    },
    'nonautoregressive_wrapper': {
        'log': 'helpers:log_of_gumbel',
    },
    'recirculation': {
        'LayerNorm': 'torch.nn',
        'Sequential': 'torch.nn',
    },
    'x_transformers': {
        'ViTransformerWrapper': 'x_transformers.modalities.vit',
        'XTransformer': 'x_transformers.encoder_decoder',
        'apply_polar_pos_emb': 'x_transformers.features.polar',
        'default': 'helpers:first_existing_called',
        'init_depth_scaled_': 'x_transformers.features.feedforward:depth_scaled_',
        'resolve_repeat_blocks_to_layer_execute_order': 'x_transformers.features.layouts:repeated',
    },
    'xl_autoregressive_wrapper': {
        'eval_decorator': 'x_transformers.autoregressive_wrapper',
        'reduce': 'functools',
    },
    'xm_latent_decoder': {
        'cast_tuple': 'helpers:cast_sequence',
        'default': 'helpers:first_existing',
    },
    'xval': {
        'default': 'helpers:default_called',
    },
}


def places(module: str) -> dict[str, tuple[str, str | None]]:
    """Where each of a module's names comes from: a module, and a name in it, or None for the module itself."""
    same: dict[str, tuple[str, str | None]] = {
        name: (place, name) for place, names in SAME.items() for name in names.split()
    }
    same |= {name: (place, None) for name, place in MODULES.items()}
    found: dict[str, tuple[str, str | None]] = {
        name: same.get(name, (HELPERS, name)) for name in NAMES.get(module, '').split()
    }
    for name, target in OTHERS.get(module, {}).items():
        place, _, there = target.partition(':')
        found[name] = (HELPERS if place == 'helpers' else place, there or name)
    return found


def also(qualified: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module, for what it shows beside its own names."""
    module = sys.modules[qualified]
    found = places(qualified.removeprefix('x_transformers.'))

    def __getattr__(name: str) -> Any:
        if name == '__all__':  # of `import *`, which would pass over what is looked up
            return [name for name in __dir__() if not name.startswith('_')]
        if name not in found:
            raise AttributeError(f'module {qualified!r} has no attribute {name!r}', name=name, obj=module)
        place, there = found[name]
        origin = import_module(place)
        return origin if there is None else getattr(origin, there)

    def __dir__() -> list[str]:
        return sorted({*vars(module), *found})

    return __getattr__, __dir__

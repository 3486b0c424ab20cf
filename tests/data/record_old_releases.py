"""Record what older releases of x-transformers compute, as golden data for `tests/test_checkpoint.py`.

    pip install --no-deps --target FOLDER x-transformers==VERSION        # and einops, einx, entmax, loguru, packaging
    python record_old_releases.py FOLDER old_releases.npz                # adds that release to the file, or replaces it

A case is the text of a model and of a call. Its weights are drawn from their names, so that the file holds only names,
shapes, buffers and outputs. Cases that a release cannot build are left out.
"""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from golden import Golden


def lm(
    stack: str = '', wrapper: str = '', kind: str = 'Decoder', sizes: str = 'depth=2, heads=2, attn_dim_head=8'
) -> str:
    """The text of a token model."""
    return (
        f'TransformerWrapper(num_tokens=12, max_seq_len=12, {wrapper + ", " if wrapper else ""}'
        f'attn_layers={kind}(dim=16, {sizes}{", " + stack if stack else ""}))'
    )


WIDE = 'depth=2, heads=2, attn_dim_head={}'.format
IDS = 'model(ids)'
MASKED = 'model(ids, mask=mask)[mask]'

# name: (model, call)
CASES = {
    'plain': (lm(), IDS),
    'encoder': (lm(kind='Encoder'), MASKED),
    'rmsnorm': (lm('use_rmsnorm=True'), IDS),
    'scalenorm': (lm('use_scalenorm=True'), IDS),
    'simple_rmsnorm': (lm('use_simple_rmsnorm=True'), IDS),
    'glu': (lm('ff_glu=True'), IDS),
    'glu_swish': (lm('ff_glu=True, ff_swish=True'), IDS),
    'glu_mult_bias': (lm('ff_glu=True, ff_glu_mult_bias=True'), IDS),
    'relu_squared': (lm('ff_relu_squared=True'), IDS),
    'post_act_ln': (lm('ff_post_act_ln=True'), IDS),
    'no_bias': (lm('ff_no_bias=True'), IDS),
    'rotary': (lm('rotary_pos_emb=True', sizes=WIDE(64)), IDS),
    'rotary_full': (lm('rotary_pos_emb=True, rotary_emb_dim=32', sizes=WIDE(32)), IDS),
    'rotary_part': (lm('rotary_pos_emb=True, rotary_emb_dim=32', sizes=WIDE(48)), IDS),
    'rotary_encoder': (lm('rotary_pos_emb=True, rotary_emb_dim=32', kind='Encoder', sizes=WIDE(40)), MASKED),
    'rotary_kv_heads': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32, attn_kv_heads=2', sizes='depth=1, heads=4, attn_dim_head=40'),
        IDS,
    ),
    'rotary_one_kv_head': (lm('rotary_pos_emb=True, rotary_emb_dim=32, attn_one_kv_head=True', sizes=WIDE(40)), IDS),
    'rotary_cross': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32, cross_attend=True', sizes=WIDE(40)),
        'model(ids, context=context)',
    ),
    'rotary_rmsnorm_qk_norm': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32, use_rmsnorm=True, attn_qk_norm=True', sizes=WIDE(40)),
        IDS,
    ),
    'rotary_qk_norm_dim_scale': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32, attn_qk_norm=True, attn_qk_norm_dim_scale=True', sizes=WIDE(40)),
        IDS,
    ),
    'rotary_mem_kv': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32, attn_num_mem_kv=2', sizes=WIDE(40)),
        IDS,
    ),
    'xpos': (lm('rotary_xpos=True, rotary_emb_dim=32', sizes=WIDE(40)), IDS),
    'alibi': (lm('alibi_pos_bias=True'), IDS),
    'alibi_num_heads': (
        lm('alibi_pos_bias=True, alibi_num_heads=2', sizes='depth=1, heads=4, attn_dim_head=8'),
        IDS,
    ),
    'alibi_learned': (lm('alibi_pos_bias=True, alibi_learned=True'), IDS),
    't5': (lm('rel_pos_bias=True'), IDS),
    't5_encoder': (lm('rel_pos_bias=True', kind='Encoder'), MASKED),
    'dynamic': (lm('dynamic_pos_bias=True'), IDS),
    'dynamic_norm': (lm('dynamic_pos_bias=True, dynamic_pos_bias_norm=True'), IDS),
    'no_positions': (lm(wrapper='use_abs_pos_emb=False'), IDS),
    'scaled_sinusoidal': (lm(wrapper='scaled_sinu_pos_emb=True'), IDS),
    'one_kv_head': (lm('attn_one_kv_head=True'), IDS),
    'kv_heads': (lm('attn_kv_heads=2', sizes='depth=2, heads=4, attn_dim_head=8'), IDS),
    'value_dim_head': (lm('attn_value_dim_head=6'), IDS),
    'qk_norm': (lm('attn_qk_norm=True'), IDS),
    'qk_norm_groups': (lm('attn_qk_norm=True, attn_qk_norm_groups=2'), IDS),
    'qk_norm_scale': (lm('attn_qk_norm=True, attn_qk_norm_scale=5'), IDS),
    'qk_norm_dim_scale': (lm('attn_qk_norm=True, attn_qk_norm_dim_scale=True'), IDS),
    'qk_norm_dim_scale_kv_heads': (
        lm(
            'attn_qk_norm=True, attn_qk_norm_dim_scale=True, attn_kv_heads=2',
            sizes='depth=2, heads=4, attn_dim_head=8',
        ),
        IDS,
    ),
    'qk_norm_dim_scale_10': (
        lm('attn_qk_norm=True, attn_qk_norm_dim_scale=True, attn_qk_norm_scale=5'),
        IDS,
    ),
    'memory_tokens': (lm(wrapper='num_memory_tokens=3', kind='Encoder'), MASKED),
    'mem_kv': (lm('attn_num_mem_kv=3'), IDS),
    'mem_kv_one_head': (lm('attn_num_mem_kv=3, attn_one_kv_head=True'), IDS),
    'mem_kv_qk_norm_groups': (lm('attn_num_mem_kv=3, attn_qk_norm=True, attn_qk_norm_groups=2'), IDS),
    'zero_kv': (lm('attn_add_zero_kv=True'), IDS),
    'cross': (lm('cross_attend=True'), 'model(ids, context=context, context_mask=context_mask)'),
    'cross_context_width': (
        lm('cross_attend=True, cross_attn_dim_context=10'),
        'model(ids, context=context[..., :10])',
    ),
    'only_cross': (lm('cross_attend=True, only_cross=True', kind='Encoder'), 'model(ids, context=context)'),
    'cross_attender': ('CrossAttender(dim=16, depth=2, heads=2, attn_dim_head=8)', 'model(x, context=context)'),
    'tied': (lm(wrapper='tie_embedding=True'), IDS),
    'sandwich_norm': (lm('sandwich_norm=True'), IDS),
    'post_norm': (lm('pre_norm=False'), IDS),
    'post_norm_rmsnorm': (lm('pre_norm=False, use_rmsnorm=True', kind='Encoder'), MASKED),
    'post_norm_scalenorm': (lm('pre_norm=False, use_scalenorm=True', kind='Encoder'), MASKED),
    'macaron': (lm('macaron=True'), IDS),
    'gate_residual': (lm('gate_residual=True'), IDS),
    'scale_residual': (lm('scale_residual=True'), IDS),
    'residual_attn': (lm('residual_attn=True'), IDS),
    'residual_attn_post_norm': (lm('residual_attn=True, pre_norm=False', kind='Encoder'), MASKED),
    'cross_residual_attn': (lm('cross_attend=True, cross_residual_attn=True'), 'model(ids, context=context)'),
    'gate_values': (lm('attn_gate_values=True'), IDS),
    'gate_value_heads': (lm('attn_gate_value_heads=True'), IDS),
    'swiglu_values': (lm('attn_gate_values=True, attn_swiglu_values=True'), IDS),
    'on_attn': (lm('attn_on_attn=True'), IDS),
    'head_scale': (lm('attn_head_scale=True'), IDS),
    'talking_heads': (lm('attn_talking_heads=True'), IDS),
    'pre_talking_heads': (lm('attn_pre_talking_heads=True'), IDS),
    'post_talking_heads': (lm('attn_post_talking_heads=True'), IDS),
    'sparse_topk': (lm('attn_sparse_topk=3'), IDS),
    'max_attend_past': (lm('attn_max_attend_past=3'), IDS),
    'l2norm_embed': (lm(wrapper='l2norm_embed=True'), IDS),
    'emb_dim': (lm(wrapper='emb_dim=10'), IDS),
    'emb_dim_tied': (lm(wrapper='emb_dim=16, tie_embedding=True'), IDS),
    'post_emb_norm': (lm(wrapper='post_emb_norm=True'), IDS),
    'heads_1': (lm(sizes='depth=2, heads=1, attn_dim_head=16'), IDS),
    'heads_1_wide': (lm(sizes='depth=2, heads=1, attn_dim_head=32'), IDS),
    'heads_1_scaled_inside': (lm('sandwich_norm=True', sizes='depth=2, heads=1, attn_dim_head=16'), IDS),
    'shift_tokens': (lm('shift_tokens=1'), IDS),
    'weight_tied': (lm('weight_tie_layers=True'), IDS),
    'layerscale': (lm('use_layerscale=True'), IDS),
    'adaptive_layernorm': (
        'Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, use_adaptive_layernorm=True, dim_condition=10)',
        'model(x, condition=context[:, 0, :10])',
    ),
    'adaptive_rmsnorm_layerscale': (
        'Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, use_adaptive_rmsnorm=True, use_adaptive_layerscale=True, '
        'dim_condition=10)',
        'model(x, condition=context[:, 0, :10])',
    ),
    'value_residual': (lm('add_value_residual=True', sizes='depth=3, heads=2, attn_dim_head=8'), IDS),
    'value_residual_learned': (
        lm('add_value_residual=True, learned_value_residual_mix=True', sizes='depth=3, heads=2, attn_dim_head=8'),
        IDS,
    ),
    'unet_skips': (lm('unet_skips=True', sizes='depth=4, heads=2, attn_dim_head=8'), IDS),
    'softclamp': (lm('softclamp_output=True, attn_softclamp_logits=True'), IDS),
    'selective': (lm('attn_selective=True'), IDS),
    'cope': (lm('attn_use_cope=True, attn_cope_max_pos=4'), IDS),
    'data_dependent_alibi': (lm('attn_data_dependent_alibi=True'), IDS),
    'latent': (
        lm('attn_use_latent_q=True, attn_dim_latent_q=6, attn_use_latent_kv=True, attn_dim_latent_kv=6'),
        IDS,
    ),
    'laser': (lm('attn_laser=True'), IDS),
    'reinject_input': (lm('reinject_input=True'), IDS),
    'integrate_layers': (lm('integrate_layers=True'), IDS),
    'residual_streams': (lm('num_residual_streams=2'), IDS),
    'resi_dual': (lm('resi_dual=True'), IDS),
    'cls_token': (lm(wrapper='use_cls_token=True, logits_dim=7', kind='Encoder'), 'model(ids, mask=mask)'),
    'output_heads': (lm(wrapper='num_output_heads=2'), IDS),
    'mixture_of_softmax': (lm(wrapper='mixture_of_softmax=True, mixture_of_softmax_k=2'), IDS),
    'recycling': (lm(wrapper='recycling=True'), 'model(ids, recycle_steps=2)'),
    'embed_ids': (lm(wrapper='embed_num_tokens=dict(aa=12)'), 'model(ids, embed_ids=dict(aa=ids))'),
    'stack': ('Decoder(dim=16, depth=2, heads=2, attn_dim_head=8)', 'model(x)'),
    'stack_post_norm': ('Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, pre_norm=False)', 'model(x)'),
    'lm_wrapper': (f'AutoregressiveWrapper({lm()})', IDS),
    'mems': (
        lm('rel_pos_bias=True', wrapper='max_mem_len=12'),
        'model(ids, mems=model(other, return_mems=True)[1])',
    ),
    'mems_rotary': (
        lm('rotary_pos_emb=True, rotary_emb_dim=32', wrapper='max_mem_len=12', sizes=WIDE(40)),
        'model(ids, mems=model(other, return_mems=True)[1])',
    ),
    'enc_dec': (
        'XTransformer(dim=16, enc_num_tokens=12, enc_depth=2, enc_heads=2, enc_attn_dim_head=8, enc_max_seq_len=12, '
        'dec_num_tokens=12, dec_depth=2, dec_heads=2, dec_attn_dim_head=8, dec_max_seq_len=12, tie_token_emb=True)',
        'model(ids, other)',
    ),
    'continuous': (
        'ContinuousTransformerWrapper(dim_in=6, dim_out=5, max_seq_len=12, '
        'attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8))',
        'model(x[..., :6], mask=mask)[mask]',
    ),
    'continuous_bare': (
        'ContinuousTransformerWrapper(max_seq_len=12, attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8))',
        'model(x)',
    ),
    'vit': (
        'ViTransformerWrapper(image_size=8, patch_size=4, num_classes=5, '
        'attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8))',
        'model(image)',
    ),
    'multi_input': (
        'MultiInputTransformerWrapper(num_tokens=dict(a=12, b=12), max_seq_len=12, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8))',
        'model(dict(a=ids, b=other))',
    ),
    'xval': (
        'XValTransformerWrapper(num_tokens=12, numerical_token_id=3, max_seq_len=12, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8))',
        'tuple(model(ids, x[..., 0]))',
    ),
}


def ignored(make: str) -> list[str]:
    """Keywords of a stack that a release does not know: early ones accepted them all the same, and did nothing."""
    from x_transformers.x_transformers import AttentionLayers

    known = {'depth', 'heads', *inspect.signature(AttentionLayers.__init__).parameters}
    stacks = ('Decoder', 'Encoder', 'CrossAttender')
    calls = [node for node in ast.walk(ast.parse(make)) if isinstance(node, ast.Call) and node.func.id in stacks]
    given = [keyword.arg for call in calls for keyword in call.keywords]
    return [name for name in given if name not in known and not name.startswith(('attn_', 'ff_', 'cross_attn_'))]


def main(folder: str, file: str) -> None:
    sys.path.insert(0, folder)
    warnings.simplefilter('ignore')
    version = next(
        d.version
        for d in importlib.metadata.distributions(path=[folder])
        if d.name.replace('_', '-') == 'x-transformers'
    )
    golden = Golden(file)
    golden.releases[version] = {}
    for name, (make, call) in CASES.items():
        try:
            if ignored(make):
                raise ValueError(f'{ignored(make)[0]} would be ignored')
            golden.record(version, name, make, call)
        except Exception as error:
            print(f'{version} {name}: left out, {type(error).__name__}: {str(error)[:80]}')
    golden.save()
    print(f'{version}: {len(golden.releases[version])} cases')


if __name__ == '__main__':
    main(*sys.argv[1:])

"""Bugs on purpose in kernels; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'kernels/dense.py': ('test_attention.py test_kernels.py', [
        ('a bias is lower than what hides', 'return -torch.inf if dtype == torch.float16 else torch.finfo(dtype).min / 2', 'return torch.finfo(dtype).min / 2', 'test_half_precision.py'),
        ('a hidden key of float16 weighs something', 'if dtype_of_products(q) != torch.float16 else (torch.finfo(torch.float16).max,) * 2', 'if dtype_of_products(q) != torch.float16 else (3e4, 1.0)', 'test_half_precision.py'),
        ('a mask that all layers share hides what it shows', 'masked_fill_(~self.mask, -torch.inf)', 'masked_fill_(self.mask, -torch.inf)', 'test_shared_visibility.py'),
        ('a bias passes the range of float16', 'return clamp_to_dtype(call.bias, dtype_of_products(q)).to(q.dtype)', 'return call.bias.to(q.dtype)', 'test_half_precision.py'),
        ('the softmax stays in half precision', 'dtype=torch.float32 if sim.dtype in HALF else sim.dtype', 'dtype=sim.dtype', 'test_scores.py -khalf_precision'),
        ('key heads are repeated side by side', 'torch.cat((t,) * (heads // t.shape[1]), dim=1)', 't.repeat_interleave(heads // t.shape[1], dim=1)'),
        ('a blind row of the formula keeps its weights', 'attn = attn.masked_fill(call.fully_masked(), 0.0)', 'attn = attn + 0.0', 'test_laws.py::test_rows_that_see_nothing_give_zeros'),
        ('mixed heads give a blind row weights', "if call.may_have_fully_masked and features.by_stage.get('mixed_weights'):", 'if False:', 'test_kernels.py test_scores.py test_known_defects.py'),
        ('a hidden key in one piece weighs something', 'masked_fill(~visible.mT, -most)', 'masked_fill(~visible.mT, -5.0)', 'test_kernels.py'),
        ('the choice of backends is ignored', 'if call.backends is None:\n        return differentiable_sdpa(q, k, v', 'if True:\n        return differentiable_sdpa(q, k, v', 'test_scores.py test_sources.py test_attention.py'),
        ('no gradient reaches maps', 'return holds_maps(call.batch * call.heads * call.q_len * call.total_keys)', 'return False', 'test_clients.py'),
        ('maps that nobody reads are in the graph', "if call.inputs.get('keep_maps') is False or torch.compiler.is_compiling()", 'if torch.compiler.is_compiling()', 'test_clients.py'),
        ('an assigned function is no softmax', 'return call.attn_fn(sim)', 'return softmax(sim)', 'test_clients.py'),
        ('the slope of a softmax lacks its mean', 'ds = weights * (dp - (weights * dp).sum(dim=-1, keepdim=True))', 'ds = weights * dp', 'test_derivatives.py'),
        ('a causal formula sees all keys', 'if is_causal:', 'if False:', 'test_derivatives.py'),
        ('many rows are read where they stand', 'qkv[0].shape[-2] >= SIDE_BY_SIDE', 'False', 'test_derivatives.py'),
        ('dropped weights have the derivative of all', 'if node._saved_dropout_p:', 'if False:', 'test_derivatives.py'),
        ('a mask learns nothing', 'None if mask is None else ds.to(mask.dtype).sum_to_size(mask.shape)', 'None', 'test_derivatives.py'),
        ('the factor of the call is left out', '    scale = q.shape[-1] ** -0.5 if scale is None else scale\n    dv', '    scale = q.shape[-1] ** -0.5\n    dv', 'test_derivatives.py'),
        ('a node behind a slice is not found', "elif name[:5] == 'Slice':", 'elif False:', 'test_derivatives.py'),
        ('what is saved once is read twice', 'if torch.is_grad_enabled():  # The formula reads it again.', 'if False:', 'test_derivatives.py'),
        ('a row that sees nothing has no slope', 'scores.masked_fill(~seen & has_visible_key, -torch.inf)', 'scores.masked_fill(~seen, -torch.inf)', 'test_derivatives.py'),
    ]),
    'kernels/blocks.py': ('test_kernels.py', [
        ('a block forgets what earlier ones hand on', 'block.carried = dict(zip(carries, carried, strict=False))', 'block.carried = {}', 'test_kernels.py test_scores.py'),
    ]),
    'kernels/operators.py': ('test_operators.py', [
        ('operators that were chosen again are the old ones', 'if known is None or known[0] is not owner.operators:', 'if known is None:', 'test_step.py -kchosen_kernel'),
        ('what an operator cannot take runs', "acting[0].display_name}`, which needs the scores' if acting else feature.unsupported(call)", "acting[0].display_name}`, which needs the scores' if acting else None"),
        ('what acts on scores is ignored', 'acting = stages_of_scores(call, features)\n        reason', 'acting = []\n        reason'),
        ('few key heads stay few', "if 'groups' not in feature.handles:", 'if False:'),
        ('a window sees one key less', 'return (i - j <= past) & (j - i <= ahead)', 'return (i - j < past) & (j - i <= ahead)', 'test_patterns.py -kwindows'),
        ('other masks are forgotten', '[mask for mask in call.masks if not mask.band]', '[]', 'test_patterns.py -kwindows'),
    ]),
    'kernels/entmax.py': ('test_entmax.py', [
        ('a sparsemax keeps one entry too many', 'inside = 1 + count * ranked > ranked.cumsum(dim=-1)', 'inside = 1 + (count + 1) * ranked > ranked.cumsum(dim=-1)'),
        ('the gradient is that of the softmax', 'safe.pow(2 - alpha)).where(inside, 0.0)', 'safe).where(inside, 0.0)'),
        ('the slope of alpha forgets the entropy', 'curve = curve + (entropy', 'curve = curve + 0 * (entropy'),
        ('a threshold has no derivative', 'threshold = threshold + step', 'threshold = threshold + step.detach()'),
    ]),
    'kernels/recurrences.py': ('test_recurrent.py test_aft.py', [
        ('chunks know nothing of those before', 'return (inside + kept * before)', 'return (inside + 0 * before)'),
        ('a graph lets what is new fade', 'later = (at.unsqueeze(-1) > at)', 'later = (at.unsqueeze(-1) >= at)'),
    ]),
    'kernels/flex.py': ('test_flex.py', [
        ('heads that share a key come out in the order they went in', 'out = swap_arguments(out, key_heads)', 'out = out + 0.0'),
        ('masks are kept of tensors that have changed', 'return part.data_ptr(), part._version, part.dtype', 'return part.data_ptr(), part.dtype'),
        ('all heads have the first pattern', 'seen = torch.where(of_head[h] == at, one_of(at, b, i, j), seen)', 'pass', 'test_flex.py -kpattern'),
        ('queries behind a cache stand at the start', 'i = i + behind\n', 'pass\n', 'test_flex.py -kpattern'),
        ('padding on the left is not left out', 'kinds[at].visible(i - start[b], j - start[b], known)', 'kinds[at].visible(i, j, known)', 'test_flex.py -kpattern'),
        ('a dilation is computed in whole blocks', 'layout.stride == 1 if', 'True if', 'test_flex.py -kpattern'),
    ]),
}

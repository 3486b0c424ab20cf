"""Bugs on purpose in parallel; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'parallel/plans.py': ('ecosystem/test_distributed.py', [
        ('a parameter in two places becomes two', 'if owners[id(parameter)] > 1:', 'if False:'),
        ('what joins tokens may stand where the sequence is cut', '    if not sequence:  # It acts', '    if True:  # It acts'),
        ('features without flags are not asked', 'if not (on or feature.is_user_defined) and (feature.flags or', 'if not on and (True or', 'ecosystem/test_distributed.py -kfeatures_of_users'),
        ('modules of users are taken for ours', "return kind.__module__.partition('.')[0] == PACKAGE or bool(", "return True or bool(", 'ecosystem/test_distributed.py -kfeatures_of_users'),
        ('what a feature says against it is not heard', "reason = feature.reason('several devices') or (", "reason = '' or ("),
        ('tables that are read elsewhere are not', "if id(getattr(module.shared[0], 'emb', None)) in sharded}", 'if False}', 'ecosystem/test_distributed.py -mslow -ktied_heads_inside_of_others'),
        ('some of the heads turn', 'if attn.rotate_num_heads != attn.heads:', 'if False:'),
        ('projections of users are cut', 'check_modules([attn.to_q, attn.to_k, attn.to_v], (nn.Linear, nn.Identity), UNKNOWN)', 'pass'),
        ('activations that join numbers are cut', '    check_modules(ff.ff.modules(), BY_NUMBER, UNKNOWN)\n', ''),
    ]),
    'parallel/styles.py': ('ecosystem/test_distributed.py -mslow', [
        ('value and gate are cut as one', 'parts=2 if gated else 1', 'parts=1'),
        ('query heads are cut without their keys', 'parts=groups or 1)', 'parts=1)'),
        ('other devices look up the tokens that they do not have', '(own < 0) | (own >= len(weight))', '(own < 0) & (own >= len(weight))'),
        ('few keys are dealt out', 'if kv_heads % devices == 0:', 'if True:', 'ecosystem/test_distributed.py'),
        ('what layers read beside learns of some heads', 't = use_replicated(t, self.mesh) if t.requires_grad and torch.is_grad_enabled() else t', 't = t', 'ecosystem/test_distributed.py -mslow -ksome_flags'),
        ('a bias of heads is cut without their keys', "list_heads(self.mesh.get_local_rank(), letter)", "list_heads(0, letter)", 'ecosystem/test_distributed.py -mslow -ksome_flags'),
        ('who reads maps finds those of some heads', '            shard.gather_maps', '            id', 'ecosystem/test_distributed.py -mslow -kmaps_of_all'),
        ('losses of some heads are added', "            check_losses(losses, 'some of the heads')\n", '', 'ecosystem/test_distributed.py -mslow -kfeatures_of_users'),
        ('what counts tokens is cut with the stream', 'return any(value is not None and name not in of_attention for name, value in call.inputs.items())', 'return False', 'ecosystem/test_distributed.py -mslow -ksome_flags'),
        ('a cache holds some of the tokens', 'if call.keeps or call.cache is not None or call.mems or call.norm_inputs:', 'if call.mems or call.norm_inputs:', 'ecosystem/test_distributed.py -mslow -ksequence'),
        ('maps of all heads are in the order of devices', 'return [None if t is None else t.index_select(1, back.to(t.device)) for t in joins]', 'return [*joins]', 'ecosystem/test_distributed.py -mslow -kmaps_of_all'),
        ('masks of heads are given whole', "axes = {'attn_mask': '... h i j'}", 'axes = {}', 'ecosystem/test_distributed.py -mslow -kinputs_of_attention'),
    ]),
    'parallel/views.py': ('ecosystem/test_distributed.py -mslow', [
        ('gradients of what devices share are not summed', 'Replicate(), Replicate(), grads=Partial())', 'Replicate(), Replicate(), grads=Replicate())'),
        ('each device adds the whole bias', 'return t / self.mesh.size() if self.divided else t', 'return t'),
        ('norms of some of the tokens learn from those alone', 'if self.partial or (self.lane is not None and self.lane.length is not None):', 'if self.partial:'),
    ]),
    'parallel/states.py': ('ecosystem/test_distributed.py -mslow', [
        ('all parts begin at the same place', 'begin[self.axis] += number * part.shape[self.axis]', 'begin[self.axis] += 0'),
        ('parts count one another\'s steps', 'value.clone() if counts else value', 'value'),
        ('parts are joined in any order', 'own[n] for n in sorted(own)', 'own[n] for n in sorted(own, reverse=True)'),
    ]),
}

"""Bugs on purpose in pretrained; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'pretrained/heads.py': ('test_pretrained_heads.py -mslow -kheads', [
        ('models without a head keep the prefix', "bare=(name,) if self.bare else ()", 'bare=()'),
        ('new classes have biases', "values = torch.zeros(shape) if name.endswith(('bias', 'beta')) else torch.ones(shape)", 'values = torch.ones(shape)', 'test_pretrained_heads.py -mslow -knew_classes'),
        ('a new head for other classes keeps the old one', 'again = num_classes is not None and', 'again = False and', 'test_pretrained_heads.py -mslow -kother_heads'),
        ('classes of decoders are read from the first token', "around=classifier('last', pad_id", "around=classifier('first', pad_id"),
        ('a pooler is left out', "if c.has_pooler else None", 'if False else None'),
        ('heads of other tasks are read as those of language', "if not fits and spec.heads and re.search", 'if False and re.search', 'test_pretrained_heads.py -mslow -kis_not_read'),
    ]),
    'pretrained/encoders.py': ('test_pretrained_heads.py -mslow -kheads', [
        ('the mean of ModernBERT is its first token', "{'cls': 'first', 'mean': 'mean'}", "{'cls': 'first', 'mean': 'first'}"),
        ('the layer before classes of DistilBERT has another activation', "'relu', 'pre_classifier',", "'tanh', 'pre_classifier',"),
        ('rows of padding are positions', 'max_seq_len=lambda c: c.max_position_embeddings - c.pad_token_id - 1,', 'max_seq_len=lambda c: c.max_position_embeddings,', 'test_pretrained.py -mslow -kroberta'),
    ]),
    'pretrained/seq2seq.py': ('test_pretrained_seq2seq.py -mslow -kway_back', [
        ('keys of Whisper have a bias', "attn_qkv_bias=Const('qv')", 'attn_qkv_bias=True'),
        ('tied logits of T5 are not scaled', 'return c.d_model**-0.5 if scales else 1.0', 'return 1.0'),
        ('what fills up rows is 0', 'lambda c: 0 if c.pad_token_id is None else c.pad_token_id', 'lambda c: 0', 'test_pretrained_seq2seq.py -mslow -khave_ended'),
        ('the name of the feedforward alone counts', "name = c.dense_act_fn or (", 'name = None or (', 'test_pretrained_seq2seq.py -mslow -kfields'),
        ('two tables are one', "return bool(c.values.get('share_encoder_decoder_embeddings', True)) and not c.values.get('own_tables')", 'return True'),
    ]),
    'pretrained/images.py': ('test_pretrained_images.py -mslow -kway_back', [
        ('a teacher has no classes of its own', "'prefix' if c.architecture.endswith('WithTeacher') else 'first'", "'first'"),
        ('a gated feedforward is as wide as a plain one', 'return (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner', 'return inner'),
        ('positions of models with registers are not smoothed', "Const('bicubic_antialias')", "Const('bicubic')", 'test_pretrained_images.py -mslow -kother_sizes'),
        ('a pooler is there whatever the file has', 'if not is_bare(c) or not c.has_pooler:', 'if not is_bare(c):', 'test_pretrained_images.py -mslow -khidden'),
        ('the id 2 is the end of texts', 'return None if c.eos_token_id == 2 else c.eos_token_id', 'return c.eos_token_id', 'test_pretrained_images.py -mslow -kolder'),
    ]),
    'pretrained/__main__.py': ('test_pretrained_images.py -mslow -kcompares', [
        ('what differs is equal', 'return int(not worst <= BAR * max(size, 1.0))', 'return 0'),
        ('what is pooled is not compared', 'ours(ids, return_pooled=True)[1] if pooled else ours(ids)', 'ours(ids)'),
    ]),
    'pretrained/classic.py': ('test_pretrained.py -mslow -kgpt2-0', [
        ('a square matrix of GPT-2 is not turned', "f'{A}.1.to_out.weight', T),", "f'{A}.1.to_out.weight'),"),
    ]),
    'pretrained/described.py': ('test_pretrained_folders.py', [
        ('the first of several types is taken', 'if len(found) == 1:', 'if found:'),
        ('models have the head of their row', 'specs = [spec, *(head.of(spec, kind) for kind, head in spec.heads.items())]', 'specs = [spec]'),
        ('the first of several heads is taken', 'if len(whole) > 1:', 'if False:'),
        ('sides have no words of their own', "SIDES = ('', 'enc_', 'dec_')", "SIDES = ('',)"),
        ("classifiers of one's own wrappers are of no type", "return {**call, **inner, 'class': kind}", "return {**call, 'class': kind}"),
        ('padding may be no token', 'if pad is not None and not 0 <= pad', 'if False and not 0 <= pad'),
        ('names of fields are those of the table', 'found = rename_fields(spec, config)', 'found = dict(config)'),
    ]),
    'pretrained/engine.py': ('test_pretrained_folders.py', [
        ('a prefix that a file leaves out is missing', '(spec.base + new, new.removeprefix(spec.base))', '(new.removeprefix(spec.base),)'),
    ]),
    'pretrained/fields.py': ('test_pretrained.py -mslow -kmistral', [
        ('the newer place of a scaling counts', '{**(c.rope_scaling or get_rope_parameters(c))}', '{**(get_rope_parameters(c) or c.rope_scaling or {})}', 'test_pretrained_folders.py -krules'),
        ('windows that are listed count where none is used', "if c.values.get('lists_if_used'):", 'if False:', 'test_pretrained_folders.py -krules'),
        ('fields of models within models are not found', 'return invert_keywords(value.keywords, add_defaults(now))', 'return {}', 'test_pretrained_folders.py'),
        ('a window holds one token more', 'return c.sliding_window - 1 if all(slides)', 'return c.sliding_window if all(slides)'),
        ('experts have a window that they do not use', "c.sliding_window is not None and c.values.get('use_sliding_window', True)", 'c.sliding_window is not None', 'test_pretrained_oracle.py -mslow -kdefaults'),
    ]),
    'pretrained/adapters.py': ('test_pretrained_sources.py -kadapter', [
        ('products are not scaled by their rank', 'return alpha / (math.sqrt(rank)', 'return alpha / (math.sqrt(1)'),
        ('a tied head changes with the table', 'weights.add(spec.tied[0], weights.load(table))', 'pass'),
    ]),
    'pretrained/files.py': ('test_pretrained_sources.py test_pretrained_writing.py', [
        ('pickles come before safetensors', 'SETS = (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX)', 'SETS = (PICKLED, PICKLED_INDEX, WEIGHTS, INDEX)'),
        ('of two tensors of a name the first counts', 'if name not in found or where.get(name) == one:', 'if name not in found:', 'test_pretrained_sources.py -kindex'),
        ('models within others are not found', "found.update((f'{name}.{inner}', one)", "found.update((f'{name}.{inner}', one) if False else ('', {})", 'test_pretrained_sources.py -kwithin'),
        ('tensors lie one upon the other', '                end += t.nbytes\n', ''),
    ]),
    'pretrained/folders.py': ('test_pretrained_sources.py', [
        ('a file that is named stands for its folder', '    return ModelLocation(folder, name)\n\n\ndef', '    return ModelLocation(folder)\n\n\ndef'),
        ('a set on its way is not seen', 'path = StampedFile(folder) / CONFIG', 'path = folder / CONFIG', 'test_saving.py'),
    ]),
    'pretrained/foreign.py': ('test_pretrained_sources.py', [
        ('a file that is cut off is read', 'if size < wanted:', 'if False:'),
        ('a file may be longer than its header says', 'if size > wanted:', 'if False:'),
    ]),
    'pretrained/generation.py': ('test_pretrained_folders.py', [
        ('filters come before the temperature', 'return logits / self.temperature', 'return logits'),
        ('a forced end counts from the beginning', 'history.num_generated == history.max_new_tokens - 1)', 'history.ids.shape[1] == history.max_new_tokens - 1)', 'test_choosing.py test_pretrained_folders.py'),
        ('the first token is that of the row', 'history.num_generated == begin)', 'history.ids.shape[1] == begin + 1)', 'test_choosing.py -kmay_not_be_the_first'),
        ('greedy files sample', "found['temperature'] = 0.0", "found['temperature'] = 1.0"),
    ]),
    'pretrained/hub.py': ('test_pretrained_folders.py', [
        ('folders of the hub are those of another library', "{'format': 'own', **vars(self)", "{'format': 'hf', **vars(self)"),
    ]),
    'pretrained/llama.py': ('test_pretrained.py -mslow -kgemma-0', [
        ('gains of Gemma are whole', 'layers=dict(norm_add_unit_offset=True, ff_no_bias=True', 'layers=dict(norm_add_unit_offset=False, ff_no_bias=True'),
        ('a norm of VaultGemma is read from elsewhere', "f'{B}.pre_feedforward_layernorm'),", "f'{B}.post_attention_layernorm'),", 'test_pretrained.py -mslow -kvaultgemma'),
        ('neighbors are no pairs in GLM', 'links(PAIRS, FUSED_GATED, LLAMA_NORMS, LLAMA_ENDS)', 'links(LLAMA_ATTENTION, FUSED_GATED, LLAMA_NORMS, LLAMA_ENDS)', 'test_pretrained.py -mslow -kglm'),
    ]),
    'pretrained/loading.py': ('test_pretrained_folders.py', [
        ('a copy that is none is passed over', 'names[source], names[copy] = names[copy], names[source]', 'pass', 'test_pretrained_folders.py -kcopies'),
        ('what nothing reads is not written again', 'info.kept[source] = compact(weights.load(names[source]))\n                names[source]', 'names[source]', 'test_pretrained_folders.py -kcopies'),
        ('what is loaded is in training', '    model.eval()\n', '    model.train()\n'),
        ('keywords add parameters without a word', 'if new and wanted.strict:', 'if False:'),
        ('any class of model is read by any wrapper', 'if not issubclass(self.cls, kind):', 'if False:'),
        ('what was one tensor is two', '        tie(model, other, first)\n', '        pass\n', 'test_saving.py'),
    ]),
    'pretrained/options.py': ('test_pretrained_folders.py', [
        ('new tokens begin as the first', 'mean = t.float().mean(dim=0, keepdim=True).to(t.dtype)', 'mean = t[:1]'),
        ('a vocabulary may shrink', 'if num_tokens < (least := max(held)):', 'if num_tokens < (least := 0):'),
        ('prefixes that fit nothing are ignored', 'if not found:', 'if False:'),
        ('padding learns', 'module.padding_idx = pad', 'pass'),
    ]),
    'pretrained/saving.py': ('test_pretrained_folders.py', [
        ('what is one tensor by hand is not noted', '            ties[name] = here\n', '            pass\n', 'test_saving.py'),
        ('what differs is written as one tensor', 'if here == name != there and not', 'if False and not', 'test_saving.py'),
        ('modules of users are taken for ours', 'return kind is wanted and (free', 'return (free', 'test_saving.py'),
        ('settings of modules may differ', '(free or module.extra_repr() == other.extra_repr())', 'True', 'test_saving.py'),
        ('what is not plain is written', 'kind not in (Tensor, nn.Parameter)', 'False', 'test_saving.py'),
        ('how to generate is not written', '    if generation:\n', '    if False:\n'),
        ('frequencies that were changed are written', '    check_frequencies(model, fields.spec.type)\n', '', 'test_saving.py'),
        ('weights without values are written', 'if t.is_meta:', 'if False:', 'test_saving.py'),
        ('a config has the first of several dtypes', 'functools.reduce(torch.promote_types, dtypes)', 'sorted(dtypes, key=str)[0]'),
        ('ties are found and not written', '    if ties:\n', '    if False:\n', 'test_saving.py'),
        ('models within a model keep their number of tokens', 'found[field] = {**held, **inner}', 'pass', 'test_pretrained_writing.py -klarger'),
    ]),
    'pretrained/mappings.py': ('test_pretrained.py -mslow -kllama-0', [
        ('queries of a key stay side by side', "rearrange(rows, 'k g e -> (g k e)')", 'rows.flatten()'),
        ('features turn with their neighbours in both', "'(two i) -> (i two)', two=2", "'(i two) -> (i two)', two=2"),
        ('queries of a key stand as their keys', '*((Q, R) if rotate else (Q,))', '*((R,) if rotate else ())'),
    ]),
    'pretrained/specs.py': ('test_pretrained_images.py -mslow -kway_back', [
        ('words that a class does not know are read', 'said = {name: value for name, value in config.items() if name not in renamed}', 'said = dict(config)', 'test_pretrained_folders.py -krules'),
        ('any field may be passed over', "if unknown == 'ignore' or name in names]", 'if True]', 'test_pretrained_folders.py -ksay_nothing'),
        ('the second dict of a part is passed over', 'given = second if second is not None else getattr(self, field) or {}', 'given = getattr(self, field) or {}', 'test_pretrained_images.py -mslow -kmatter'),
        ('a single head has no projection out', "if call.get(name) == 1]", 'if False]'),
    ]),
    'pretrained/checkpoints.py': ('test_pretrained_sources.py -kbeginnings', [
        ('names of another type are none of its own', '2 * len(other) <= len(names)', 'True', 'test_pretrained_sources.py -kother_tools'),
        ('only wrappers of torch are removed', 'prefix = prefixes[fits.index(max(fits))]', "prefix = ''"),
        ('the head of a text of its own is used', "'logit_scale': 1.0", "'logit_scale': 0.5", 'test_pretrained_wholes.py -mslow'),
    ]),
}

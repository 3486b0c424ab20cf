"""Bugs on purpose in flags and compat; `mutants/__init__.py` has the form of a row."""

# fmt: off
BUGS = {
    'flags/__main__.py': ('test_flags.py', [
        ('a prefix hides a flag', '[row for row in rows if row[1] in (wanted, bare)] or', ''),
        ('what gives way is told as refused', 'return is_on and switch(other) not in cls.overridden_by and switch(cls) not in other.overridden_by', 'return True'),
    ]),
    'flags/renamed.py': ('test_contracts.py', [
        ('properties are translated as texts', 'if isinstance(value, property):\n        spelling', 'if False:\n        spelling'),
        ('checks are lost', 'checks.get(name, own.check)', 'own.check'),
        ('a feature that waited acts always', 'cls.always = not waits', 'cls.always = True'),
        ('what could be cached is refused', "'' if value else reason", 'reason'),
    ]),
    'flags/checks.py': ('test_flags.py test_bad_input.py', [
        ('True is a number of heads', 'return isinstance(value, numbers.Integral) and not isinstance(value, bool)', 'return isinstance(value, numbers.Integral)', 'test_flags.py test_bad_input.py test_wrong_values.py'),
        ('the least allowed size is refused', 'is_int(value) and value >= least, ', 'is_int(value) and value > least, '),
        ('refusals name keywords without their prefix', 'raise ConfigError(rename(str(error))) from None', 'raise', 'test_flags.py test_bad_input.py'),
        ('an input of another dtype passes', 'return floats is None or', 'return True or', 'test_wrong_values.py test_bad_input.py'),
        ('an input of any shape passes', 'value.ndim not in ranks or value.is_complex()', 'value.is_complex()', 'test_wrong_values.py test_bad_input.py'),
    ]),
    'flags/config.py': ('test_flags.py', [
        ('a dict with the key class is taken for a module', "return {'class': 'dict', 'items': items} if 'class' in items else items", 'return items'),
        ('what overrides an inherited value is left out', "or 'cross_attn_' in k or", 'or'),
    ]),
    'flags/explain.py': ('test_flags.py test_coverage.py', [
        ('flags at their default are told', 'if not is_same_value(own[n], f.default)]', 'if True]'),
        ('effects of other values are told', 'if one.others is None or not is_same_value(value, one.value):', 'if one.others is None:'),
        ('effects beside other keywords are told', 'all(is_same_value(now[n], v) for n, v in one.others.items())', 'True'),
        ('defaults are no keywords that hold', '{other: known[other].default for other in one.others} | given', '{**given}'),
        ('effects of other classes are told', 'if one.flag == flag and one.owner in owners', 'if one.flag == flag', 'test_flags.py'),
        ('explain lists inputs unasked', "if inputs and (names := ', '.join(_input_names(module))):", "if names := ', '.join(_input_names(module)):", 'test_flags.py'),
        ('explain lists measured effects unasked', 'if measured:', 'if True:', 'test_flags.py'),
        ('explain lists every one of equal layers', 'if len(paths) <= 4:', 'if True:', 'test_flags.py'),
        ('the worst comes first', 'key=lambda one: one.bits)', 'key=lambda one: -one.bits)', 'test_flags.py'),
        ('sizes are one', 'found[one.models, one.baseline].append(one)', 'next(iter(found.values())).append(one)', 'test_flags.py'),
    ]),
    '../docs/keyword_types.py': ('test_types.py', [
        ('flags of branches take one value', "text += f' | tuple[{text}, ...] | PerLayer'", "text += ''"),
        ('required keywords may be left out', "f'Required[{kind}]' if is_required else kind", 'kind'),
        ('flags have no default', "words.append(f'Default: {declared.default!r}.')", 'pass'),
    ]),
    'compat/helpers.py': ('test_compat.py', [
        ('padding goes to the last axis', 'axes_after = t.ndim - 1 - (dim % t.ndim)', 'axes_after = 0'),
        ('a mean of what is masked divides by all', 'mask.to(exact.dtype).sum(dim=axes, keepdim=keepdim)', 'torch.ones_like(t).sum(dim=axes, keepdim=keepdim)', 'test_names.py test_compat.py'),
        ('the logarithm of nothing is infinite', 'to_float(t).clamp(min=eps).log()', 'to_float(t).log()', 'test_names.py'),
    ]),
    'flags/contracts.py': ('test_contracts.py', [
        ('rows may change', "if axis == 'b' or (axis in KEPT_AXES and at == 0)]", "if axis == 'b']"),
        ('batches may change', "if axis == 'b' or (axis in KEPT_AXES and at == 0)]", 'if axis in KEPT_AXES and at == 0]'),
        ('None passes for a value', 'if after is None and before is not None:', 'if False:'),
        ('a term that is absent is refused', "if value is None and (optional or feature.stages[stage] == 'term'):", 'if value is None and optional:'),
        ('masks may be numbers', "(value.dtype == torch.bool) != wanted.startswith('bool')", 'False'),
        ('the tuple of a ring counts as several', "re.sub(r'\\(.*?\\)', 'a tuple', signature.partition(' -> ')[0][1:-1])", "signature.partition(' -> ')[0][1:-1]", 'test_own_features.py'),
    ]),
    'flags/configurable.py': ('test_flags.py', [
        ('a module under the name of a method is lost', 'self._check_module_name(name)', 'pass', 'test_clients.py'),
        ('layers with 4 and with 4.0 are alike', '(name, type(value), value) for', '(name, value) for', 'test_flags.py'),
        ('only the first feature hears of steps', 'for feature in features.active if isinstance(features, Features) else ():', 'for feature in features.active[:1] if isinstance(features, Features) else ():', 'test_own_features.py'),
        ('matrices for Muon of inner wrappers are left out', 'functools.partial(muon_parameters_inside, *module.children())', '(lambda **_: [])', 'test_wrapper_laws.py -kmuon'),
        ('replicas read the parameters of the first', "replica.__dict__['features'] = self.features.rebind(replica)", 'pass', 'test_flags.py -kreplica'),
    ]),
    'flags/declared.py': ('test_flags.py', [
        ('rings on the way out run in running order', 'features[::-1] if stage in features[0].reversed_stages else features', 'features', 'test_flags.py test_shared_visibility.py'),
        ('a copy runs the features of the first', '        vars(self).update(state)\n        self.bind()', '        vars(self).update(state)', 'test_contract.py -kcopies'),
        ('layers share the features of the first like them', 'tuple([own[feature] for feature in features])', 'features', 'test_flags.py'),
        ('a feature that waits acts in every call', 'lambda feature: not feature.waits or not feature.call_inputs.keys().isdisjoint(names)', 'lambda feature: True'),
        ('features that wait act always', 'not feature.waits or not feature.call_inputs.keys().isdisjoint(names))', 'True)', 'test_own_features.py test_laws.py::test_off_is_free'),
        ('a value that is the default switches on', 'values[name] and values[name] != cls.flags[name].default for', 'bool(values[name]) for', 'test_flags.py test_original_readme.py'),
        ('any method fits its stage', 'if not takes_arguments(method, number_of_arguments(signature)):', 'if False:', 'test_own_features.py'),
        ('rings run outwards in the same order', 'in_order = features[::-1] if stage in features[0].reversed_stages else features', 'in_order = features', 'test_flags.py test_scores.py test_attention.py'),
        ('a ring of no width passes', 'if not is_int(self.width) or self.width < 1:', 'if False:', 'test_states.py'),
    ]),
    'flags/foreign.py': ('test_foreign_words.py', [
        ('a keyword that the callee lacks is named', 'all(keyword in taken for keyword in keywords)', 'any(keyword in taken or True for keyword in keywords)'),
        ('what a wrapper refuses is named', 'if not callee.method else set(callee.names) - refused_by(callee)', ''),
        ('all values mean the same', 'return [part.strip() for part in (row.values[key] if known else row.ours)', 'return [part.strip() for part in row.ours'),
        ('rows of another kind come first', 'key=lambda row: ORDERS[kind].index(row.kind)', 'key=lambda row: -ORDERS[kind].index(row.kind)'),
        ('a value that is refused is advised', 'if flags[one].refusal(value)]', 'if False]'),
        ('misspelt words are unknown', 'return plain[close[0]] if close and', 'return plain[close[0]] if False and'),
        ('one keyword is written twice', 'len({*keywords}) == len(keywords) and all(', 'all('),
        ('a pair of sides is one number', 'isinstance(value, tuple) and len(value) == 2', 'False'),
        ('the side of an encoder-decoder is forgotten', "sides = (side,) if side else ('enc_', 'dec_')", "sides = ('enc_', 'dec_')"),
    ]),
    'flags/unexpected.py': ('test_foreign_words.py', [
        ('a class answers like a function', "built = args[0] if function.__name__ == '__init__' else None", 'built = None'),
        ('the model inside answers for the method', 'if module is None or name not in kwargs or', 'if True or'),
        ('a missing argument hides the keyword', 'if not str(error).startswith(', 'if str(error).startswith('),
        ('steps that are asked for later do not know their method', 'if better := is_of_outer_call(error, module, method, kwargs):', 'if better := None:'),
    ]),
    'flags/foreign_flags.py': ('test_foreign_words.py', [
        ('a keyword is misspelt in the table', "'tie_embedding'),", "'tied_embedding'),"),
    ]),
    'flags/foreign_words.py': ('test_foreign_words.py', [
        ('padding is taken for tokens', "'mask=~{name}.bool()', CALL", "'mask={name}.bool()', CALL"),
    ]),
    'flags/resolved.py': ('test_flags.py', [
        ('two choices of one stage pass', 'if stage in chosen:', 'if False:'),
        ('two features settle one attribute', 'if settled.setdefault(attribute, name) != name:', 'if False:', 'test_own_features.py'),
        ('what a choice replaces passes beside it', 'if stages:', 'if False:', 'test_operators.py'),
        ('a need that is off passes', 'if need in known and not is_set(known, values, need):', 'if False:'),
    ]),
}

"""Single wrong lines, by file: which tests should notice, then (what goes wrong, what stands there, what is put there).

A fourth entry names other tests than those of the file. `mutate.py` runs them; `test_mutants.py` sees to it that each
still applies to the source as it is.
"""

# fmt: off
BUGS = {
    'again.py': ('test_again.py', [
        ('a change of a tensor in place is not seen', 'return (version(t), t.dtype, t.device) != self.versions[name]', 'return False'),
    ]),
    'arguments.py': ('test_wrong_values.py test_bad_input.py', [
        ('an argument of the wrong kind passes', 'if name in kinds and not kinds[name].test(value):', 'if False:'),
        ('None is no argument', 'lambda value: (optional and value is None) or allowed.test(value)', 'lambda value: allowed.test(value)', 'test_names.py test_compat.py test_stack.py test_generate.py'),
    ]),
    'attend.py': ('test_attention.py test_kernels.py', [
        ('the softmax stays in half precision', 'dtype=torch.float32 if half else sim.dtype', 'dtype=sim.dtype if half else sim.dtype'),
        ('key heads are repeated side by side', 't.repeat(1, heads // t.shape[1], 1, 1)', 't.repeat_interleave(heads // t.shape[1], dim=1)'),
        ('a blind row of the formula keeps its weights', 'attn = attn.masked_fill(call.blind(), 0.0)', 'attn = attn + 0.0', 'test_laws.py::test_rows_that_see_nothing_give_zeros'),
        ('mixed heads give a blind row weights', "if call.may_be_blind and on.at.get('mix'):", 'if False:', 'test_kernels.py test_scores.py test_known_defects.py'),
        ('a hidden key in one piece weighs something', 'max(lowest(k) / 2, -1e30)', '-5.0', 'test_kernels.py'),
        ('the choice of backends is ignored', 'if call.backends is None:', 'if True:', 'test_scores.py test_sources.py test_attention.py'),
        ('an edited pair keeps states of another length', 'if state.length == self.past.length', 'if True', 'test_regressions.py test_sources.py test_known_defects.py'),
        ('log probabilities of the first key, not of the chosen', 'intermediates.post_softmax_attn.argmax(dim=-1, keepdim=True)', 'intermediates.post_softmax_attn.argmin(dim=-1, keepdim=True)', 'test_scores.py test_stack.py test_known_defects.py'),
    ]),
    'attending.py': ('test_attend.py', [
        ('what stands between layer and operator is not heard', 'changed = [name for name, value in arguments.items() if value is not known.arguments[name]]', 'changed = []'),
    ]),
    'attention_pool.py': ('test_model_features.py test_known_defects_of_wrappers.py', [
        ('the residual of the pool is left out', 'pooled + queries if self.add_residual else pooled', 'pooled'),
        ('the pool reads padding', 'context_mask=mask, **inputs)', 'context_mask=None, **inputs)'),
    ]),
    'autoregressive_wrapper.py': ('test_next_token_loss.py test_generate.py', [
        ('the first key may be hidden', 'chance[:, 0] = -torch.finfo(chance.dtype).max', 'chance[:, 0] = 0.0'),
        ('the gate learns from padding', '(exits * valid).sum()', 'exits.sum()', 'test_model_features.py test_next_token_loss.py'),
        ('the gate learns with a slope of one', '(slope * (losses[1:] - losses[:-1] + threshold))', '(losses[1:] - losses[:-1] + threshold)', 'test_model_features.py'),
        ('the next embedding learns from its target', 'embeds[:, 1:].detach()', 'embeds[:, 1:]', 'test_model_features.py'),
        ('the z-loss of attention is not added', 'loss = loss + intermediates.attn_z_loss', 'loss = loss + 0.0', 'test_next_token_loss.py test_model_features.py'),
        ('a document says how the next one begins', 'x = x.masked_fill(first, self.ignore_index)', 'x = x + 0', 'test_documents.py'),
        ('forgetful masks of all documents but the first hide its first token', 'kept = kept if first is None else kept | first', 'kept = kept + 0 > 0', 'test_documents.py'),
        ('a compiled net stays in a pickle', "if name != 'compiled'}", '}', 'test_compiled_generation.py -mslow -kpart_of_the_model'),
        ('candidates of a beam search are drawn without temperature', 'accurate(keep(logits)) / temperature + gumbel_noise', 'accurate(keep(logits)) + gumbel_noise', 'test_beam_search.py'),
    ]),
    'aux_losses.py': ('test_aux_losses.py', [
        ('a loss counts in evaluation', 'if self.training and not in_backward():', 'if not in_backward():'),
        ('a loss counts again where layers run again', 'if self.training and not in_backward():', 'if self.training:'),
        ('the second loss of a name takes the place of the first', 'self.by_name[name] + value if name in self.by_name else value', 'value'),
    ]),
    'belief_state_wrapper.py': ('test_belief_state_wrapper.py', [
        ('pairs overlap', 'pairs[pairs[:, 1] - pairs[:, 0] >= 2]', 'pairs[pairs[:, 1] - pairs[:, 0] >= 1]'),
        ('the distance is told in evaluation', 'self.to_distance_cond is not None and self.training and', 'self.to_distance_cond is not None and'),
        ('rows are reversed with their padding', 'torch.where(place < lens[:, None], lens[:, None] - 1 - place, place)', 't.shape[1] - 1 - place + 0 * lens[:, None]'),
        ('far distances count as they are', 'distance.clamp(max=self.max_pred_distance - 1)', 'distance % self.max_pred_distance'),
    ]),
    'blocks.py': ('test_kernels.py', [
        ('the noise of the backward pass is another', 'torch.set_rng_state(state[0])', 'torch.rand(())'),
        ('a window cuts off one key too many', 'behind + start - min(reaches)', 'behind + start - min(reaches) + 1'),
        ('a causal block lacks its last key', 'min(max(behind + stop, 1), call.keys)', 'min(max(behind + stop - 1, 1), call.keys)'),
        ('a table of distances is off by one', 'first = keys.start - rows.stop + self.rows', 'first = keys.start - rows.stop + self.rows - 1'),
        ('a block forgets what earlier ones hand on', 'block.carried = dict(zip(known, carried, strict=True))', 'block.carried = {}', 'test_kernels.py test_scores.py'),
    ]),
    'cache.py': ('test_sources.py test_laws.py::test_cache_cropped_and_continued_twice test_prompt_cache.py test_regressions.py', [
        ('after a crop, as much is seen as is held', 'cropped.seen = self.seen - (held - length)', 'cropped.seen = length', 'test_sources.py test_prompt_cache.py test_regressions.py test_generate.py'),
        ('the graph of the past is lost', 'Buffer(torch.cat((self.tensor, new), dim=-2))', 'Buffer(torch.cat((self.tensor.detach(), new), dim=-2))', 'test_sources.py test_prompt_cache.py test_regressions.py test_generate.py'),
        ('recurrent states are not saved', "'recurrent': self.recurrent,", "'recurrent': [],", 'test_sources.py test_prompt_cache.py test_regressions.py test_generate.py'),
        ('keep_last forgets tokens in front', 'kept.seen, kept.leading = count, max(self.leading - drop, 0)', 'kept.seen, kept.leading = count, 0', 'test_sources.py test_prompt_cache.py test_regressions.py test_generate.py'),
        ('a second continuation writes over the first', 'free = self.filled == start and', 'free =', 'test_laws.py::test_cache_cropped_and_continued_twice'),
        ('memory is claimed after it is written', '        if free:\n            self.filled = end\n', '', 'test_cache.py'),
        ('expanding puts the rows one behind the other', 't.repeat_interleave(beams, dim=0)', 't.repeat(beams, *(1,) * (t.ndim - 1))', 'test_laws.py::test_cache_reordered_and_expanded'),
        ('a cut pass gets the recurrent states of the first', 'recurrent = self.recurrent[own]', 'recurrent = self.recurrent[: per_pass]', 'test_model_features.py test_sources.py'),
        ('a copy of a cache loses its exits', 'return replace(self, layers=layers, kinds=list(self.kinds), states=states, recurrent', 'return replace(self, exits=None, layers=layers, kinds=list(self.kinds), states=states, recurrent', 'test_model_features.py'),
        ('recurrent states keep their graph', 'detached.recurrent = [tree_map_only(Tensor, Tensor.detach, hidden) for hidden in self.recurrent]', 'detached.recurrent = list(self.recurrent)', 'test_sources.py test_regressions.py'),
    ]),
    'calls.py': ('test_stack.py test_layouts.py test_model_features.py', [
        ('a feedforward left out counts as attention', "self.attended += layer.kind != 'f'", 'self.attended += 1', 'test_stack.py test_layouts.py'),
        ('memories stand at positions from 0 on', 'torch.arange(self.seen - self.held - self.memories, self.seen + self.new, device=x.device)', 'torch.arange(self.memories + self.seen + self.new, device=x.device)', 'test_laws.py::test_memories_of_an_earlier_segment'),
        ('a mask of all tokens hides the memories', 'own = dict(mask=mask, context_mask=kv_mask, attn_mask=self.over_keys(attn_mask, True))', 'own = dict(mask=mask, context_mask=kv_mask, attn_mask=self.over_keys(attn_mask, False))', 'test_stack.py test_layouts.py test_regressions.py test_known_defects.py test_known_defects_of_layers.py'),
        ('left padding does not hide its keys', 'kv_mask = self.real if kv_mask is None else begun & kv_mask', 'kv_mask = kv_mask', 'test_laws.py::test_left_padding'),
        ('tokens in front stay in front of the padding', 'moved = torch.where(place < start, place + self.leading, place - start)', 'moved = place + 0 * start', 'test_laws.py::test_left_padding test_model_features.py'),
        ('the mask of cached tokens is forgotten', 'return torch.cat((known, new), dim=1)', 'return torch.cat((torch.ones_like(known), new), dim=1)', 'test_laws.py::test_cache_with_padding'),
        ('a fork shares its notes', 'notes={name: own_copy(note) for name, note in self.notes.items()}', 'notes=self.notes', 'test_recompute.py'),
        ('masked memories are seen', 'front = keep.new_ones(self.batch, self.memories) if mem_mask is None else mem_mask', 'front = keep.new_ones(self.batch, self.memories)', 'test_laws.py::test_masked_memories'),
    ]),
    'checkpoint.py': ('test_checkpoint.py', [
        ('heads are not transposed', 'old.state[name][:, :, 0, 0].T.contiguous()', 'old.state[name][:, :, 0, 0].contiguous()'),
        ('one step of gains too few', "('0', '1.31.2', offsets_of_gains),", "('0', '1.30', offsets_of_gains),"),
        ('values that turned are not reordered', 'if old.turns_values:', 'if False:'),
        ('the constant of queries counts once', 'old.qk_norm_scale**3 * t.shape[-1] ** 0.5', 'old.qk_norm_scale * t.shape[-1] ** 0.5'),
    ]),
    'checks.py': ('test_bad_input.py test_stack.py test_attention.py test_flags.py test_regressions.py test_known_defects.py test_known_defects_of_wrappers.py', [
        ('an id of the size of the vocabulary passes', "check_range(x, name, 0, num_tokens - 1, 'token ids')", "check_range(x, name, 0, num_tokens, 'token ids')"),
        ('a mask of numbers is taken for booleans', 'if mask.is_floating_point() or mask.is_complex():', 'if mask.is_complex():'),
        ('memories of several lengths pass', 'any(length != lengths[0] for', 'any(length < 0 for'),
    ]),
    'choice.py': ('test_generation_options.py', [
        ('a stop sequence wins over the end token', 'found.masked_fill(self.is_eos(tail[:, -1]), 1)', 'found.masked_fill(self.is_eos(tail[:, -1]) & (found == 0), 1)'),
        ('the prompt counts for the presence of tokens', 'return (place >= start).expand(ids.shape)', 'return (place >= 0).expand(ids.shape)'),
        ('padding counts as repeated', 'counts(ids, past.real(ids), logits.shape[-1]) > 0', 'counts(ids, None, logits.shape[-1]) > 0'),
        ('biases of one token do not add up with bans', 'made[token] += value', 'made[token] = -value'),
        ('a stop sequence may begin in the prompt', '(self.width - tail.shape[1], 0), value=NO_TOKEN)', '(self.width - tail.shape[1], 0), value=0)'),
    ]),
    'continuous.py': ('test_continuous_wrapper.py', [
        ('a mean of rows counts empty ones', '(counts > 0).sum().clamp(min=1)', 'torch.tensor(float(len(counts)))'),
        ('a variance is not bounded', 'variance = variance.clamp(min=1e-6)', 'variance = variance + 0.0'),
        ('a roll-out starts at the first vector of all rows', 'known = (1 + (torch.rand(b, device=x.device) * room).long())', 'known = (1 + 0 * room)'),
        ('even and odd channels change places', 'mean, log_var = out.unflatten(-1, (-1, 2)).unbind(dim=-1)', 'log_var, mean = out.unflatten(-1, (-1, 2)).unbind(dim=-1)'),
    ]),
    'continuous_autoencoder.py': ('test_continuous_autoencoder.py', [
        ('latents are dropped in evaluation', '(self.latents_dropout_prob if self.training else 0.0)', 'self.latents_dropout_prob'),
        ('the mean of a text counts padding', 'pooled = total / real.sum(dim=1, keepdim=True).clamp(min=1)', 'pooled = total / real.shape[1]'),
        ('a latent that is not seen stands in its own place', 'token = token.masked_fill(~kept[..., None], 0.0)', 'token = token + 0.0'),
    ]),
    'derivatives.py': ('test_derivatives.py', [
        ('the slope of a softmax lacks its mean', 'ds = weights * (dp - (weights * dp).sum(dim=-1, keepdim=True))', 'ds = weights * dp'),
        ('a causal formula sees all keys', 'if is_causal:', 'if False:'),
    ]),
    'discover_wrapper.py': ('test_discover_wrapper.py', [
        ('the last token is padding', 'last = (place * mask).amax(dim=-1)', 'last = place.expand(mask.shape).amax(dim=-1)'),
        ('targets see themselves', 'inputs = F.pad(targets[:, :-1], (1, 0), value=self.bos_id)', 'inputs = targets'),
        ('masked fillers are bound', 'fillers = fillers if mask is None else fillers * mask.unsqueeze(-1)', 'fillers = fillers + 0.0'),
    ]),
    'dpo.py': ('test_dpo.py', [
        ('the frozen copy trains', 'self.ref_model.eval()\n        return self', 'return self'),
        ('the prompt counts', 'answer = ~torch.cat((prompt, prompt)) if mask is None else', 'answer = torch.ones_like(torch.cat((prompt, prompt))) if mask is None else'),
        ('answers count by their sum', 'return total if self.sum_log_probs else total /', 'return total if not self.sum_log_probs else total /'),
    ]),
    'entropy_based_tokenizer.py': ('test_entropy_based_tokenizer.py', [
        ('a threshold that is met does not end a token', 'return entropies >= self.entropy_threshold', 'return entropies > self.entropy_threshold'),
        ('a token is cut one too late', '(place - start_of(ends) + 1) % self.max_token_size == 0', '(place - start_of(ends)) % self.max_token_size == 0'),
        ('small entropies count', 'entropies.masked_fill(entropies < self.ignore_entropy_below, 0.0)', 'entropies + 0.0'),
    ]),
    'features/contextual.py': ('test_scores.py', [
        ('contextual positions count hidden keys', '.sigmoid().masked_fill(hidden, 0.0)', '.sigmoid()'),
        ('a token hides itself', 'allowed = place != call.of_queries(place).unsqueeze(-1)', 'allowed = place >= 0 * call.of_queries(place).unsqueeze(-1)', 'test_scores.py'),
        ('padding hides others', 'allowed = allowed & real.unsqueeze(-1)', 'allowed = allowed & (real.unsqueeze(-1) | True)', 'test_scores.py test_documents.py'),
    ]),
    'features/data_positions.py': ('test_data_positions.py', [
        ('gates of padding close the way', 'gates = gates.masked_fill(~real[:, None, :, None], 0.0)', 'gates = gates + 0.0', 'test_data_positions.py test_laws.py::test_content_of_padding_never_matters'),
        ('later keys get the gates of the past', 'return torch.where(behind if behind.ndim == 2 else behind.unsqueeze(1), past, -future[0])', 'return past', 'test_data_positions.py'),
        ('curves reach one too far', 'known = (distance >= 0) & (distance < reach)', 'known = (distance >= 0) & (distance <= reach)'),
        ('a query has a say in its own gate', 'counts = place[keys] < own[..., rows, None]', 'counts = place[keys] <= own[..., rows, None]'),
    ]),
    'features/documents.py': ('test_documents.py', [
        ('positions run on across documents', "        call.shared['a'].setdefault('pos', positions_within(ids))\n", ''),
        ('a new run of an earlier id goes on counting', 'place - torch.where(begins(ids), place, 0).cummax(dim=-1).values', 'place - torch.where(begins(ids), place, 0).amax(dim=-1, keepdim=True).minimum(place)'),
        ('a flag given to the stack may join documents', 'refuse_joined({**joined_by(self.host.features.active, call.inputs), **self.joined})', 'refuse_joined(joined_by(self.host.features.active, call.inputs))'),
    ]),
    'features/early.py': ('test_checkpoint.py test_laws.py', [
        ('the gate starts closed', 'torch.full((host.to_v_gate.out_features,), 10.0)', 'torch.full((host.to_v_gate.out_features,), -10.0)', 'test_attention.py'),
        ('keys in front turn too', 'added = v.shape[-2] - call.keys', 'added = 0', 'test_attention.py'),
    ]),
    'features/embeddings.py': ('test_model_features.py test_stack.py', [
        ('interspersed tokens leave a gap', "call.notes['length'] = x.shape[1]", "call.notes['length'] = x.shape[1] - x.shape[1] % self.every", 'test_model_features.py'),
        ('the whole gradient reaches the embeddings', 'x * self.emb_frac_gradient + x.detach() * (1 - self.emb_frac_gradient)', 'x', 'test_laws.py::test_on_matters -kemb_frac'),
        ('padding counts in the mean', 'x.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp(min=1)', 'x.masked_fill(~real, 0.0).mean(dim=1)', 'test_model_features.py'),
        ('class tokens are not taken off', "call.notes['cls'], x = call.take_off(x, self.num_cls_tokens, call.notes['behind cls'])", "call.notes['cls'], _ = call.take_off(x, self.num_cls_tokens, call.notes['behind cls'])", 'test_model_features.py'),
        ('tokens without an id take that of the last', 'ids = F.pad(call.like_tokens, (0 if call.continues else call.leading, 0), value=no_id)', 'ids = F.pad(call.like_tokens, (0 if call.continues else call.leading, 0), value=no_id - 1)', 'test_model_features.py'),
    ]),
    'features/feedforward.py': ('test_feedforward.py', [
        ('the gate and the value change places', 'out = value * self.act(gate)', 'out = gate * self.act(value)'),
        ('the tanh of GELU is taken for exact', "if activation.approximate == 'tanh':", 'if False:'),
        ('biases of a silent branch stay', 'if output.bias is not None:', 'if False:'),
    ]),
    'features/heads.py': ('test_attention.py test_known_defects.py', [
        ('groups of a head are normed as one', 'q = l2norm(q, self.qk_norm_groups)', 'q = l2norm(q)'),
        ('keys are not scaled', 'return k * self.k_scale if self.qk_norm_dim_scale else k', 'return k'),
    ]),
    'features/hybrid.py': ('test_sources.py', [
        ('padding is not moved behind the real tokens', '(~real).to(torch.uint8).argsort', '(0 * real).to(torch.uint8).argsort'),
        ('the learned mix is turned round', 'attended + mix * (beside - attended)', 'beside + mix * (attended - beside)'),
        ('folding forgets the tail', '0, folds * count - t.shape[1]))', '0, 0))'),
    ]),
    'features/integrators.py': ('test_streams.py', [
        ('all layers weigh alike', 'weights.softmax(dim=-1) if self.use_softmax else weights.relu()', 'weights.softmax(dim=-1)'),
        ('a layer left out is not among the inputs', "call.notes['branch inputs'].append(layer[2].prepare(x)[0])", 'pass'),
        ('the query is not the latest', 'latest = stacked[-1]', 'latest = stacked[0]'),
    ]),
    'features/latents.py': ('test_attention.py test_sources.py', [
        ('the cache does not rebuild values', 'call.rebuilds_values = True', 'call.rebuilds_values = False', 'test_laws.py::test_cache_token_by_token -klatent'),
    ]),
    'features/layouts.py': ('test_layouts.py', [
        ('a block of a U-net reads another mirror', 'return self.combines[layer.index](x, skips[mirrored])', 'return self.combines[layer.index](x, skips[min(skips)])'),
        ('a gate of what is injected is open', 'injected = injected * self.gate(x).sigmoid()', 'injected = injected * 1.0'),
        ('feedforwards of a macaron count fully', 'return Scale(0.5, branch)', 'return Scale(1.0, branch)', 'test_stack.py -kmacaron'),
        ('a repeated group runs once', 'order += list(range(block, block + more + 1)) * times', 'order += list(range(block, block + more + 1)) * min(times, 1)'),
    ]),
    'features/norms.py': ('test_stack.py test_streams.py', [
        ('an adaptive gain starts at zero', '(self.to_gamma(per_token(condition)) + 1.0)', 'self.to_gamma(per_token(condition))'),
        ('a bound loses the offset of its factor', 'self.pre_tanh_scale_offset = float(init_alpha) if unit_offset else 0.0', 'self.pre_tanh_scale_offset = 0.0 * init_alpha'),
        ('a scaled branch scales its intermediates', 'return (function(value[0]), *value[1:])', 'return (value[0], *value[1:])'),
    ]),
    'features/operands.py': ('test_scores.py test_attention.py', [
        ('positions run on across packed documents', 'torch.arange(call.new, device=x.device) - starts)', 'torch.arange(call.new, device=x.device))', 'test_documents.py test_known_defects_of_layers.py test_attention.py'),
        ('a query that sees no token gets the logarithm of nothing', 'return out if sighted is None else out.masked_fill(~sighted, 0.0)', 'return out'),
        ('distances lose the keys', 'k_norm), dim=-1)', 'torch.zeros_like(k_norm)), dim=-1)'),
    ]),
    'features/outputs.py': ('test_attention.py test_feedforward.py', [
        ('what is dropped in training is dropped always', 'F.dropout(out, self.sublayer_dropout, self.host.training)', 'F.dropout(out, self.sublayer_dropout, True)', 'test_attention.py test_laws.py::test_only_dropouts_make_a_difference_in_training -ksublayer'),
        ('all heads as one are each alone', 'parts.append(self.without(out, own))', 'parts.append(self.without(out.unflatten(-1, (heads, -1)), own.unflatten(-1, (heads, -1))).flatten(-2))', 'test_sources.py test_known_defects.py'),
    ]),
    'features/passes.py': ('test_model_features.py', [
        ('the gate of the last pass alone decides', 'spent += (left + F.logsigmoid', 'spent = (left + F.logsigmoid'),
        ('a pass that was left out has nothing in its cache', 'cache.caught_up(own[-1], call.new)', 'cache'),
        ('every pass of recycling has a gradient', 'with torch.no_grad(), AuxLosses() as losses:', 'with torch.enable_grad(), AuxLosses() as losses:'),
    ]),
    'features/polar.py': ('test_positions.py', [
        ('the shift is not bounded', 'return angles, self.learned_bias.clamp(-2 * math.pi, 0)', 'return angles, self.learned_bias', 'test_data_positions.py'),
        ('infused positions of memories follow the tokens', 'torch.cat((embedded[:, : call.memories], new), dim=1)', 'torch.cat((new[:, : call.memories], new), dim=1)', 'test_positions.py test_laws.py::test_memories_of_an_earlier_segment -kinfused'),
    ]),
    'features/positions.py': ('test_positions.py test_kernels.py', [
        ('turned keys stay although an offset moves all', 'continues = continues and (call.held == 0 or call.seen == call.cache.seen)', 'continues = bool(continues)'),
        ('angles lose digits in half precision', 'if buffer is not None and buffer.dtype in (torch.float16, torch.bfloat16):', 'if False:'),
        ('far distances share the last bucket but one', '.clamp(max=buckets - 1)', '.clamp(max=buckets - 2)'),
        ('slopes between powers of two are those of the power', 'between[: heads - below]', 'slopes[: heads - below]'),
        ('a window sees one key less', 'own, most = call.of_queries(index), self.max_attend_past', 'own, most = call.of_queries(index), self.max_attend_past - 1'),
        ('xPos scales keys as queries', '1.0 if scale is None else scale**-1', '1.0 if scale is None else scale'),
        ('positions are not interpolated', '* self.inv_freq / self.interpolation_factor', '* self.inv_freq'),
        ('turned heads are the first ones', 'return torch.cat((t[:, :still], core.apply_rotary_pos_emb(t[:, still:], angles, scale)), dim=1)', 'return torch.cat((core.apply_rotary_pos_emb(t[:, :-still], angles, scale), t[:, -still:]), dim=1)'),
    ]),
    'features/readouts.py': ('test_model_features.py test_token_loss.py', [
        ('a mixture is taken in half precision', 'mixed = mixture + logits.to(mixture.dtype).log_softmax(dim=-1)', 'mixed = mixture + logits.log_softmax(dim=-1)', 'test_model_features.py'),
        ('tied logits are not scaled', 'F.linear(x * self.scale, self.shared[0].table)', 'F.linear(x, self.shared[0].table)'),
    ]),
    'features/recompute.py': ('test_recompute.py', [
        ('layers run again in evaluation', 'if not (self.host.training and torch.is_grad_enabled()) or transformed():', 'if not torch.is_grad_enabled() or transformed():'),
        ('what segments leave behind is lost', '        call.adopt(own)\n', ''),
    ]),
    'features/residuals.py': ('test_stack.py test_streams.py test_known_defects_of_layers.py', [
        ('a shift takes masked tokens', 't = t.masked_fill(~mask.unsqueeze(-1), 0.0)', 't = t + 0.0'),
        ('a mean counts padding', 'sums = torch.cat((t.masked_fill(~real.bool(), 0.0), real.to(t.dtype)), dim=-1)', 'sums = torch.cat((t.masked_fill(~real.bool(), 0.0), torch.ones_like(real).to(t.dtype)), dim=-1)'),
        ('running means forget the cache', 'sums = sums if past is None else sums + past.tensor[:, -1:]', 'sums = sums + 0.0', 'test_laws.py::test_cache_token_by_token -kmv_split'),
        ('the second stream is not scaled', "call.notes['dual'] + out * self.resi_dual_scale", "call.notes['dual'] + out"),
        ('shifted tokens come in from another document', 'moved = [part.masked_fill(other, 0.0) for part, other in zip(moved, others, strict=True)]', 'others = list(others)', 'test_documents.py'),
    ]),
    'features/scores.py': ('test_scores.py', [
        ('a sink is the last column', 'return torch.cat((sink, sim), dim=-1)', 'return torch.cat((sim, sink), dim=-1)'),
        ('noise divides hidden logits into infinity', 'attn = softmax(noisy.masked_fill(sim <= lowest(sim), lowest(sim)))', 'attn = softmax(noisy)', 'test_laws.py::test_rows_that_see_nothing_give_zeros -kgumbel'),
        ('signs of a sink are lost', 'torch.cat((added.abs(), rest), dim=-1)', 'torch.cat((added, rest), dim=-1)'),
        ('a hidden logit is handed on', 'logits.masked_fill(logits <= lowest(logits), 0.0)', 'logits + 0.0', 'test_scores.py test_known_defects.py test_laws.py::test_combinations_that_failed_once'),
        ('padded queries compete', 'sim = sim.masked_fill(~real[:, None, :, None], lowest(sim))', 'sim = sim + 0.0'),
        ('hard attention has no gradient', 'return chosen + (attn - attn.detach())', 'return chosen'),
    ]),
    'features/sources.py': ('test_sources.py test_attention.py', [
        ('the mix of values is turned round', 'residual + mix * (v - residual)', 'v + mix * (residual - v)'),
        ('further keys go to the first layers', 'pairs = [None] * (layers - len(pairs)) + pairs[max(len(pairs) - layers, 0) :]', 'pairs = pairs[:layers]'),
        ('residuals of keys are those of the first layer', 'residual = call.only_new(each[at], name)', 'residual = call.only_new(each[0], name)'),
        ('a mask of further keys covers the learned ones', 'behind = call.keys + (0 if memory is None else memory.num_mem_kv)', 'behind = call.keys'),
        ('a gradient flows into further keys', 'pairs = [(k.detach(), v.detach()) for k, v in pairs]', 'pairs = [(k, v) for k, v in pairs]'),
    ]),
    'features/streams.py': ('test_streams.py', [
        ('a branch is written once, not twice', "{'beta': 2 * beta.sigmoid()}", "{'beta': beta.sigmoid()}"),
        ('the output is the mean of the streams', '.unflatten(0, (-1, self.num_residual_streams)).sum(dim=1)', '.unflatten(0, (-1, self.num_residual_streams)).mean(dim=1)'),
        ('streams are mixed the other way', "torch.einsum('bnst,bnsd->bntd', sinkhorn", "torch.einsum('bnst,bntd->bnsd', sinkhorn"),
    ]),
    'files.py': ('test_prompt_cache.py', [
        ('a file that failed is left behind', 'temporary.unlink(missing_ok=True)', 'pass'),
        ('what was written is not compared', 'if known is None or digest.hexdigest().encode() != known[2]:', 'if known is None:'),
        ('a file of another kind passes', 'if known is not None and known[1] != kind.encode():', 'if False:'),
    ]),
    'flags/__init__.py': ('test_flags.py', [
        ('two choices of one stage pass', 'if stage in chosen:', 'if False:'),
        ('a need that is off passes', 'if need in known and not is_set(known, values, need):', 'if False:'),
        ('replicas read the parameters of the first', "replica.__dict__['features'] = self.features.rebound(replica)", 'pass', 'test_flags.py test_compat.py test_regressions.py'),
        ('a feature that waits acts in every call', 'if not f.waits or not f.takes.keys().isdisjoint(names)', 'if True'),
    ]),
    'flags/__main__.py': ('test_flags.py', [
        ('a prefix hides a flag', '[row for row in rows if row[1] in (wanted, bare)] or', ''),
    ]),
    'flags/config.py': ('test_flags.py', [
        ('a dict with the key class is taken for a module', "return {'class': 'dict', 'items': items} if 'class' in items else items", 'return items'),
        ('what overrides an inherited value is left out', "or 'cross_attn_' in k or", 'or'),
    ]),
    'flags/explain.py': ('test_flags.py test_coverage.py', [
        ('flags at their default are told', 'if not same(own[n], f.default)]', 'if True]'),
    ]),
    'flags/inputs.py': ('test_wrong_values.py test_bad_input.py', [
        ('an input of another dtype passes', 'return floats is None or', 'return True or'),
        ('an input of any shape passes', 'value.ndim not in ranks or value.is_complex()', 'value.is_complex()'),
    ]),
    'flex.py': ('test_flex.py', [
        ('keys in front are late', 'return lambda b, h, i, j: (j <= i + behind) | (j < added)', 'return lambda b, h, i, j: j <= i + behind'),
        ('heads that share a key come out in the order they went in', 'out = swapped(out, key_heads)', 'out = out + 0.0'),
        ('masks are kept of tensors that have changed', 'return part.data_ptr(), part._version, part.dtype', 'return part.data_ptr(), part.dtype'),
    ]),
    'free_transformer.py': ('test_free_transformer.py', [
        ('padding is a target', 'ignore_index=self.pad_id)\n        total', 'ignore_index=-100)\n        total'),
        ('the head sees the latents', 'inputs = self.inputs if stack is self.model.decoder_tail else {}', 'inputs = self.inputs'),
    ]),
    'full_bandwidth.py': ('test_full_bandwidth.py', [
        ('noise is added in evaluation', 'self.make_transforms(done[-1][1], self.training, override, real=real)', 'self.make_transforms(done[-1][1], True, override, real=real)'),
        ('latents of padding are fed', 'fused = torch.where(real[:, -n:-1, None], fused, stream)', 'fused = fused + 0.0'),
        ('later passes learn the first target', 'next_token_loss(out[:, at > 0 :], seq[:, 1 + (at > 0) :]', 'next_token_loss(out, seq[:, 1:]'),
        ('a step after large losses counts in full', '(excess.cumsum(dim=-1) - excess)', '(0 * excess)'),
    ]),
    'generation.py': ('test_generate.py test_beam_search.py', [
        ('unfinished beams count as ended', 'live = self.scores if made == seq_len else torch.full_like(self.scores, -torch.inf)', 'live = self.scores', 'test_beam_search.py'),
        ('a slid window keeps one token too many', 'kept = None if start == 0 else self.window - (length - self.seen)', 'kept = None if start == 0 else self.window - (length - self.seen) + 1'),
        ('log probabilities after the end are kept', 'new.masked_fill(self.ends > 0, 0.0)', 'new', 'test_generation_options.py'),
        ('an ended row goes on', 'tokens = tokens.masked_fill(self.ends > 0, self.pad_value)', 'tokens = tokens + 0'),
        ('a length penalty counts the prompt', 'self.score(totals, self.length + 1 - self.start)', 'self.score(totals, self.length + 1)', 'test_beam_search.py'),
        ('a search stops at the first end', 'if self.done_scores.shape[1] < self.beams:\n', 'if False:\n', 'test_beam_search.py'),
        ('a masked prompt is not masked beyond the window', 'value=True)[:, start:]', 'value=True)[:, : length - start]', 'test_generate.py test_generation_options.py'),
    ]),
    'gpt_lejepa.py': ('test_gpt_lejepa.py', [
        ('the target learns', 'target = hidden.detach() if self.detach_target else hidden', 'target = hidden'),
        ('tokens teach the model in full', 'hidden = scale_grad(hidden[:, :-1], self.frac_gradient)', 'hidden = hidden[:, :-1]'),
        ('a state sees the token before the next', 'torch.cat((state, actions[:, step:]), dim=-1)', 'torch.cat((state, actions[:, :-step]), dim=-1)'),
    ]),
    'gpt_vae.py': ('test_gpt_vae.py', [
        ('a latent has no noise', '(0.5 * log_var).exp() * torch.randn_like(mean)', '0.0 * log_var'),
        ('latents are dropped in evaluation', '(self.latents_dropout_prob if self.training else 0.0)', 'self.latents_dropout_prob'),
    ]),
    'helpers.py': ('test_compat.py', [
        ('padding goes to the last axis', 'axes_behind = t.ndim - 1 - (dim % t.ndim)', 'axes_behind = 0'),
    ]),
    'hooks.py': ('test_attend.py test_plain.py', [
        ('hooks of all modules are not asked', 'module._backward_pre_hooks or any(OF_ALL))', 'module._backward_pre_hooks)'),
    ]),
    'losses.py': ('test_layouts.py test_model_features.py', [
        ('the z-loss divides by all queries', 'return loss.sum() / counts.sum().clamp(min=1) * weight', 'return loss.mean() * weight', 'test_layouts.py test_model_features.py'),
        ('the z-loss is not weighted', 'return loss.sum() / counts.sum().clamp(min=1) * weight', 'return loss.sum() / counts.sum().clamp(min=1)', 'test_layouts.py test_model_features.py'),
        ('padding is kept first', 'scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)', 'scores = scores + 0.0', 'test_layouts.py test_known_defects_of_wrappers.py'),
        ('the share of real tokens is rounded down', '.ceil()\n', '.floor()\n', 'test_layouts.py test_known_defects_of_wrappers.py'),
    ]),
    'multi_input.py': ('test_multi_input.py', [
        ('streams are weighed alike', 'loss = sum(self.loss_weights[name] * one for name, one in losses.items())', 'loss = sum(losses.values())'),
        ('memories stay at their layer', 'mems = [*mems[self.shift_mem_down :], *mems[: self.shift_mem_down]]', 'mems = list(mems)'),
    ]),
    'neo_mlp.py': ('test_neo_mlp.py', [
        ('random features learn', 'nn.Linear(1, dim).requires_grad_(False)', 'nn.Linear(1, dim)'),
        ('output nodes are the hidden ones', '(parts[-1] * self.to_output_weights)', '(embeds[:, -self.dim_out - 1 : -1] * self.to_output_weights)'),
    ]),
    'next_latent_wrapper.py': ('test_next_latent_wrapper.py', [
        ('targets learn', 'torch.stack([F.pad(hidden.detach()[:, step:]', 'torch.stack([F.pad(hidden[:, step:]'),
        ('tokens learn', 'tokens = self.token_emb(ids).detach()', 'tokens = self.token_emb(ids)'),
        ('the head learns from the divergence', 'Kept(head, detached=True)', 'Kept(head, detached=False)'),
        ('weights fade with the loss of their own step', 'before = distances.cumsum(dim=0) - distances', 'before = distances.cumsum(dim=0)'),
    ]),
    'nonautoregressive_wrapper.py': ('test_nonautoregressive_wrapper.py', [
        ('a wrong token may be the mask', 'drawn + (drawn >= self.mask_id)', 'drawn'),
        ('shown tokens may be hidden again', 'if not self.can_mask_prev_unmasked:', 'if False:'),
        ('padding is hidden', '.clamp(min=1.0)[:, None]) & real', '.clamp(min=1.0)[:, None])'),
        ('a critic learns from padding', 'losses.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)', 'losses.mean()'),
        ('the weight of a rare mask is not bounded', 'gamma.detach().clamp(min=1 / n)', 'gamma.detach().clamp(min=1e-9)'),
    ]),
    'optim.py': ('test_attention.py test_sources.py', [
        ('a shared key head is shrunk', 'shared = shape.kv_heads < shape.heads', 'shared = False'),
        ('a layer that ran twice counts its last logits', 'torch.stack(largest).amax(dim=0)', 'largest[-1]'),
    ]),
    'packing.py': ('test_packing.py', [
        ('a changed weight is not copied again', "own['weight'] is not weight or weight._version != version or", "own['weight'] is not weight or", 'test_packing.py test_plain_step.py'),
        ('half precision is packed', 'weight.dtype == torch.float32 and not', 'not'),
    ]),
    'plain.py': ('test_plain.py', [
        ('dropout does not step aside', 'return not (self.drops or self.seen.is_hooked())', 'return not self.seen.is_hooked()'),
        ('hooks do not step aside', 'return not (self.drops or self.seen.is_hooked())', 'return not self.drops'),
        ('a final norm inside a layer is left out', 'return x if self.outside is None else self.outside(x)', 'return x'),
    ]),
    'plain_step.py': ('test_plain_step.py', [
        ('the position of the next token is that of the last', "positions = cache.states['positions'].tensor[:, -1:, 0] + 1", "positions = cache.states['positions'].tensor[:, -1:, 0]"),
        ('a token past the table passes', 'F.embedding is not LOOK_UP or at >= net.max_seq_len > 0:', 'F.embedding is not LOOK_UP:'),
    ]),
    'prompt_cache.py': ('test_prompt_cache.py', [
        ('the fingerprint reads one sum of each tensor', 'sums = [one for _, t in named for one in checksum(t)]', 'sums = [checksum(t)[0] for _, t in named]'),
        ('a prompt with other padding passes', 'if not same or ids.shape[1] < self.length', 'if ids.shape[1] < self.length'),
        ('one row is not repeated for all', 'known = self.inputs if rows == b else rows_of(self.inputs, torch.zeros(b, dtype=torch.long), rows)', 'known = self.inputs'),
    ]),
    'recirculation.py': ('test_recirculation.py', [
        ('the room that the first reading took is not given back', '        take_back(cache, first.cache)\n', ''),
        ('the weight of the destination has no ramp', 'return alpha, 1 - alpha if beta is None else beta', 'return alpha, 1 - self.alphas[route] if beta is None else beta'),
        ('lengths are those of the source', 'z_source * (z_dest.norm(dim=-1, keepdim=True) / z_source.norm', 'z_source * (z_source.norm(dim=-1, keepdim=True) / z_source.norm'),
    ]),
    'routing.py': ('test_flags.py test_layouts.py', [
        ('cross-attention does not inherit', 'if per_layer(v, declared.get(n)) is None}, **flags}', 'if False}, **flags}'),
        ('a tuple of another length is one value', 'if shares is not None and len(shares) != layers:', 'if shares is not None and len(shares) < layers:'),
    ]),
    'sampling.py': ('test_sampling.py', [
        ('a penalty divides negative logits', 'torch.where(logits > 0, logits / penalty, logits * penalty)', 'logits / penalty', 'test_sampling.py test_generation_options.py'),
        ('the token that crosses the threshold is left out', 'before = F.pad(probabilities(ordered).cumsum(dim=-1).clamp(max=1.0), (1, -1))', 'before = probabilities(ordered).cumsum(dim=-1).clamp(max=1.0)'),
        ('a cold draw overflows', 'logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature', 'logits = logits / temperature'),
        ('a contrast without the expert', '(1 + beta) * expert_logits - beta * amateur_logits', 'expert_logits - beta * amateur_logits'),
        ('the part to keep is rounded down', 'k = math.ceil(frac_num_tokens * logits.shape[-1])', 'k = max(int(frac_num_tokens * logits.shape[-1]), 1)'),
        ('a small power leaves out all', 'limit = torch.minimum(min_p_ratio * largest**min_p_pow, largest)', 'limit = min_p_ratio * largest**min_p_pow'),
    ]),
    'speculative.py': ('test_speculative.py', [
        ('guesses run over the end of what is known', 'real = torch.where(start >= 0, (t - start).clamp(max=count), 0)', 'real = torch.where(start >= 0, count, 0)'),
        ('a rejected token is drawn from the whole', 'rest = (own - q[rows, accepted]).clamp(min=0)', 'rest = own'),
        ('a row that ended goes on', 'self.done = self.done | ended', 'self.done = self.done | (ended & False)'),
        ('the earliest place counts', 'after = torch.where(found, place[: t - size] + size, -1).amax(dim=-1)', 'after = torch.where(found, place[: t - size] + size, t + 9).amin(dim=-1)\n        after = torch.where(after < t + 9, after, -1)'),
    ]),
    'test_time_training.py': ('test_xl_autoregressive_wrapper.py', [
        ('rows share their dropout', "randomness='different'", "randomness='same'"),
        ('weights do not decay', 'param - lr * grad - lr * self.wd * param', 'param - lr * grad'),
        ('a source remembers earlier segments', 'self.wrappers[source].take({name: p.view_as(p) for name, p in sources[source].items()})', 'pass'),
        ('masked states are foretold', 'loss.masked_fill(~mask.roll(-1, dims=1), 0.0)', 'loss.masked_fill(~mask, 0.0)'),
    ]),
    'token_loss.py': ('test_token_loss.py', [
        ('smoothing leaves out the target', '(1 - terms.label_smoothing) * total)', 'total)'),
        ('the z-loss has half its slope', 'z.mul_(1 + 2 * terms.z_loss_weight * lse)', 'z.mul_(1 + terms.z_loss_weight * lse)'),
        ('what has no share may be NaN', '(losses * shares).masked_fill(shares == 0, 0.0).sum()', '(losses * shares).sum()'),
        ('a target out of range passes', 'if wrong.any():', 'if False:'),
        ('hooks of a head are not asked', 'if overheard(head):\n', 'if False:\n'),
    ]),
    'untouched.py': ('test_plain.py test_plain_step.py', [
        ('code that was replaced is taken for the same', 'return all(name in now and name in then and now[name] is then[name] for name in names)', 'return True'),
    ]),
    'up_wrapper.py': ('test_up_wrapper.py', [
        ('all reset rows are random', 'self.random_sequences_fn(half, half, device', 'self.random_sequences_fn(2 * half, 0, device'),
        ('every row of the buffer is made anew', 'buffer[rows] = made.to(buffer)', 'buffer[: len(rows)] = made.to(buffer)'),
        ('conditions are seeds', 'condition=buffer[rows].to(self.device)', 'condition=buffer[: len(rows)].to(self.device)'),
        ('weights are scaled up to two', 'MOST_SCALE = 1.1', 'MOST_SCALE = 2.0'),
    ]),
    'x_transformers.py': ('test_stack.py test_model_features.py', [
        ('memories of memories are lost', 'new if old is None else torch.cat((old, new), dim=1) for old, new in pairs', 'new for old, new in pairs', 'test_xl_autoregressive_wrapper.py test_model_features.py'),
        ('the prefix of the encoder is hidden', 'mask = F.pad(mask, (prefix.shape[1], 0), value=True)', 'mask = F.pad(mask, (prefix.shape[1], 0), value=False)', 'test_known_defects_of_wrappers.py test_original_readme.py'),
        ('the context is dropped in evaluation', 'if self.training and self.cross_attn_tokens_dropout > 0:', 'if self.cross_attn_tokens_dropout > 0:', 'test_known_defects_of_wrappers.py test_original_readme.py'),
        ('a prefix of two tokens lets all tokens see one another', 'seen = seen | (place < prefix_attn_len)', 'seen = seen | (place < prefix_attn_len + 1)', 'test_layouts.py test_stack.py test_known_defects.py test_original_readme.py test_known_defects_of_layers.py'),
        ('memories of a segment are the first ones', 'kept = [t[:, max(t.shape[1] - self.max_mem_len, 0) :] for t in longer]', 'kept = [t[:, : self.max_mem_len] for t in longer]', 'test_xl_autoregressive_wrapper.py'),
        ('memories keep their graph', 'return [t.detach() for t in kept] if detach else kept', 'return kept', 'test_xl_autoregressive_wrapper.py test_model_features.py test_regressions.py'),
        ('masked queries give an output', 'out = out.masked_fill(~call.query_mask[:, -call.rows :, None], 0.0)', 'out = out + 0.0', 'test_attention.py test_known_defects.py'),
        ('registers of an image model are patches', 'embeddings = self.attn_layers(x)[:, :count]', 'embeddings = self.attn_layers(x)', 'test_known_defects_of_wrappers.py test_original_readme.py test_compat.py'),
        ('the image model has no positions', 'x + self.pos_embedding[:, : x.shape[1]]', 'x', 'test_known_defects_of_wrappers.py test_original_readme.py test_compat.py test_checkpoint.py'),
        ('the prefix is not excised', 'x = x[:, prefix:] if excise_prepend_embeds and pooled is x else pooled', 'x = pooled'),
        ('the mask of the source is lost', 'context, mask = self.encode(src, renamed_mask(mask, src_mask), attn_mask, src_prepend_embeds)\n        if', 'context, _ = self.encode(src, renamed_mask(mask, src_mask), attn_mask, src_prepend_embeds)\n        mask = None\n        if', 'test_known_defects_of_wrappers.py test_compat.py test_original_readme.py'),
        ('a dropout of embeddings before their projection is left out', 'return self.project_emb(self.emb_dropout(x))', 'return self.project_emb(x)', 'test_laws.py::test_only_dropouts_make_a_difference_in_training -kemb_dropout'),
    ]),
    'xl_autoregressive_wrapper.py': ('test_xl_autoregressive_wrapper.py', [
        ('memories are seen although dropped', 'seen = None if dropout_mems else mems', 'seen = mems'),
        ('gradients never end', 'detach_mems=detach or not outer', 'detach_mems=False'),
        ('a segment is complete one token early', 'while sequence.shape[1] > self.start + size:', 'while sequence.shape[1] >= self.start + size:'),
        ('all segments count alike', 'return total / (targets != self.ignore_index).sum().clamp(min=1)', 'return total / targets.numel()'),
    ]),
    'xm_latent_decoder.py': ('test_xm_latent_decoder.py', [
        ('latents are dropped in evaluation', 'dropped = self.training and random.random() < drop_prob', 'dropped = random.random() < drop_prob'),
        ('latents are dropped without a share', 'loss - weight * repulsion(logits, valid)', 'loss + weight * repulsion(logits, valid)'),
        ('the active latent is that of the row', 'latents[:, :, slot] = torch.randn_like(latents[:, :, slot])', 'latents = latents + 0.0'),
        ('rows without targets count', 'share = valid.sum(dim=-1) if dropped else valid.any(dim=-1)', 'share = torch.ones_like(valid[:, 0]) + 0'),
    ]),
    'xval.py': ('test_xval.py', [
        ('numbers are not aligned with their tokens', 'numbers = numbers if pads is None else align_right(numbers, start - pads, 1.0)', 'numbers = numbers + 0.0'),
        ('numbers that are not numbers are learned', '.square().masked_fill(~numeric, 0.0)', '.square()'),
        ('other tokens are scaled', 'scale = torch.where(x == self.numerical_token_id, x_num, 1.0)', 'scale = x_num'),
        ('weight of numbers is one', 'total + self.numerical_loss_weight * squares', 'total + squares'),
    ]),
}
# fmt: on

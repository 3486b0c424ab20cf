"""Keywords of other libraries and their counterparts here: one table, `WORDS`.

A row holds words of one meaning, the libraries that have them, and alternatives `ours`, separated by ` | `. The first
alternative whose keywords the called function takes is named; if there is none, another function is looked for that
takes them. An alternative is one of

    heads                     a keyword with the same value
    temperature=0.0           code; `{value}` is the value that was given, `{name}` the word itself, `{less}` the value
                              minus one, `{root}` its inverse square root
    !causal                   only if the called function takes it
    @Classifier dropout       of one class or function alone
    : leave it out            a sentence; `@Attention : ...` for one class alone

Keywords are written as for `Decoder`: `attn_`, `ff_` and `cross_attn_` are dropped for a single layer, and `enc_` and
`dec_` put in front for an encoder-decoder. `values` gives other alternatives for some values, `note` is a remark.

The table is imported when an error is raised, and by the documentation.
"""

from __future__ import annotations

from x_transformers.flags.foreign_flags import (
    BUILD as BUILD,
    CALL as CALL,
    ENCODER_OR_DECODER,
    FAIRSEQ,
    FLAG_WORDS,
    FLASH,
    GENERATE as GENERATE,
    GPT,
    HF,
    JAX,
    LOAD as LOAD,
    MEGATRON,
    OF_VECTORS,
    SAVE as SAVE,
    TIMM,
    TORCH,
    VLLM,
    Word as Word,
)

FIRST_INPUTS = (
    'x | prompts | prompt | seq | src | source | seq_in | start_tokens | tokens | token_ids | texts | ids | text | img'
    ' | images | states | video'
)
TOKEN_TYPES = (
    "embed_ids={{'token_type': {name}}} | : build the model with `TransformerWrapper(..., embed_num_tokens="
    "{{'token_type': 2}})`, then pass `embed_ids={{'token_type': {name}}}`"
)
OF_IDS = f'{OF_VECTORS} | source | : a model of tokens takes ids, a ContinuousTransformerWrapper takes vectors'
EMBEDDED = (
    f'{OF_VECTORS} | : a stack takes vectors, `net.attn_layers(x)`; a model replaces the vectors of its ids by others'
    ' if you write `transform_token_embeds=lambda _: {name}`, and `prepend_embeds={name}` puts them in front'
)
OF_TARGET = ': padding of the target is marked by `ignore_index`, -100'
OF_MEMORY = ': leave it out, `mask` of the source hides its padding'
AT_PROMPTS = ': leave it out, positions are counted from the first token that `mask` or `prompt_lens` leave'
AT_DRAWS = ': leave it out, tokens are sampled unless `temperature=0.0`'
SAMPLERS = {
    **dict.fromkeys(('greedy', 'greedy_search', 'argmax'), 'temperature=0.0'),
    **dict.fromkeys((None, 'sample', 'random', 'multinomial'), AT_DRAWS),
}
NO_DICT = ': leave it out, a call returns tensors; `return_intermediates=True` returns more'
NOTHING_TO_LOAD = ' has no effect here: leave it out'

WORDS: tuple[Word, ...] = (
    *FLAG_WORDS,
    # calls
    Word('query inputs_q', f'{TORCH}, {JAX}', 'x', CALL),
    Word('hidden_states hidden_state hidden residual_stream residual', HF, EMBEDDED, CALL),
    Word('key value inputs_kv inputs_k inputs_v '
         'key_value_states', f'{TORCH}, {JAX}', 'context', CALL, note='keys and values are projected from one tensor'),
    Word('input_ids idx inputs input tokens token_ids ids src input_tokens x text_ids seq prompt prompts '
         'inputs_ids prompt_token_ids token_idx prev_output_tokens src_tokens input_seq encoder_input_tokens '
         'input_token_ids sequence context_tokens x_in batch sequences text texts',
         f'{HF}, {TORCH}, {GPT}, {FAIRSEQ}', FIRST_INPUTS, CALL),
    Word('pixel_values image images imgs img pictures',
         f'{HF}, {TIMM}',
         '@TransformerWrapper : it is `img` of the call of ViTransformerWrapper | img | images | image | source | video'
         ' | x', CALL),
    Word('input_features input_values features audio_values waveform mel', HF, OF_IDS, CALL),
    Word('decoder_input_ids tgt targets_in decoder_input_tokens decoder_inputs tgt_ids',
         f'{HF}, {TORCH}, {JAX}', 'tgt | seq_out_start | start | x | prompts | seq', CALL),
    Word('inputs_embeds input_embeds inputs_embeddings decoder_inputs_embeds token_embeddings embeds input_embeddings',
         HF, EMBEDDED, CALL),
    Word('attention_mask attn_masks input_mask',
         HF, 'mask', CALL, note='boolean, True for tokens and False for padding: `mask={name}.bool()`'),
    Word('pixel_attention_mask feature_attention_mask', HF, 'mask', CALL),
    Word('decoder_attention_mask', HF, ': padding of the target is marked by `ignore_index`, -100', CALL),
    Word('padding_mask key_padding_mask src_key_padding_mask pad_mask '
         'self_attn_padding_mask src_padding_mask',
         f'{TORCH}, {FAIRSEQ}', 'mask=~{name}.bool()', CALL, note='True is a token here, and padding there'),
    Word('encoder_padding_mask',
         FAIRSEQ, '@Encoder mask=~{name}.bool() | context_mask=~{name}.bool()', CALL,
         note='True is a token here, and padding there'),
    Word('valid_mask key_mask token_mask tokens_mask nonpad_mask input_paddings_mask '
         'masks', 'other libraries', 'mask', CALL,
         note='boolean, True for tokens and False for padding'),
    Word('tgt_key_padding_mask tgt_padding_mask',
         TORCH, f'@XTransformer {OF_TARGET} | @EncoderDecoder {OF_TARGET} | mask=~{{name}}.bool()', CALL,
         note='True is a token here, and padding there'),
    Word('memory_key_padding_mask memory_padding_mask enc_padding_mask',
         TORCH, f'@XTransformer {OF_MEMORY} | @EncoderDecoder {OF_MEMORY} | context_mask=~{{name}}.bool()', CALL,
         note='True is a token here, and padding there'),
    Word('encoder_attention_mask cross_attention_mask encoder_mask context_attention_mask source_mask',
         HF, f'@XTransformer {OF_MEMORY} | @EncoderDecoder {OF_MEMORY} | context_mask', CALL,
         note='boolean, True for tokens: `context_mask={name}.bool()`'),
    Word('src_mask', TORCH, 'attn_mask=~{name}.bool()', CALL, note='True where a query sees a key, and hidden there'),
    Word('tgt_mask',
         TORCH, 'attn_mask=~{name}.bool()', CALL,
         note='a Decoder is causal without it; True is visible here, and hidden there'),
    Word('memory_mask', TORCH, ': it has no counterpart, `context_mask` hides tokens of the context', CALL),
    Word('attention_bias bias attn_biases position_bias relative_position_bias additive_mask alibi_slopes',
         FLASH, 'attn_bias', CALL, note='it is added to the scores'),
    Word('lengths seq_lens input_lengths src_lengths x_lens lens sequence_lengths num_tokens_per_row seqlens '
         'prompt_lengths input_lens',
         'other libraries', 'lens | prompt_lens', CALL),
    Word('memory encoder_hidden_states encoder_outputs encoder_out enc_output cross_states encoder_states '
         'cross_attention_states encoder_output enc_out encoder_hidden_state',
         f'{HF}, {TORCH}, {FAIRSEQ}', 'context', CALL, note='the hidden states of the encoder, one tensor'),
    Word('position_ids positions input_pos positions_ids decoder_position_ids pos_ids position',
         f'{HF}, LitGPT, {JAX}', 'pos', CALL),
    Word('cache_position start_pos cache_index seqlen_offset '
         'decode_index', HF, ': the cache holds how many tokens were read', CALL),
    Word('token_type_ids segment_ids token_types', HF, TOKEN_TYPES, CALL),
    Word('labels lm_labels label',
         HF, '@XTransformer tgt | @EncoderDecoder tgt | labels', CALL,
         note='the loss is made by the wrapper, which takes its targets from the ids if there are no labels'),
    Word('targets target y target_ids',
         GPT, 'labels', CALL, note='targets are made from the ids, shifted by one: pass the whole sequence once'),
    Word('return_logits',
         'other libraries', '@TransformerWrapper : leave it out, a call returns logits | return_outputs',
         CALL),
    Word('loss_mask loss_weights sample_weight', f'{MEGATRON}, Keras',
         ': tokens are left out of the loss by `labels`, in which they are `ignore_index`, -100', CALL),
    Word('shift_labels', HF, ': leave it out, labels are shifted by the wrapper', CALL),
    Word('image_embeds image_features vision_embeds', HF, ': `VisionLanguageWrapper` takes images', CALL),
    Word('freqs_cis freqs_cos freqs_sin cos '
         'sin', 'Llama', ': leave it out, `rotary_pos_emb=True` of the stack makes them', CALL),
    Word('block_mask score_mod return_lse mixer_subset mutable alignment_layer alignment_heads full_context_alignment '
         'skip_layers stop_at_layer adapter',
         f'{FLASH}, {FAIRSEQ}', ': it has no counterpart', CALL),
    Word('start_positions end_positions',
         HF, ': give both as `labels` (b, 2) to a model with a head for spans', CALL),
    Word('next_sentence_label sentence_order_label',
         HF, '!labels | : it is `labels` of the call of BertPretrainWrapper', CALL),
    Word('past_key_values past_key_value layer_past past kv_cache past_kv cache_params incremental_state '
         'past_states past_kvs inference_params past_kv_cache',
         f'{HF}, {FLASH}, {FAIRSEQ}', 'cache | prompt_cache', CALL,
         note='what an earlier call with `return_intermediates=True` gave; `generate` keeps its own'),
    Word('use_cache',
         HF, 'return_intermediates', CALL, note='which gives the cache of the call',
         values={False: ': leave it out, a call returns no cache by default'}),
    Word('use_cache use_kv_cache use_past_kv_cache', HF, 'cache_kv', GENERATE),
    Word('output_attentions need_weights return_attention return_attentions return_weights output_attn_weights '
         'return_attn_probs return_attention_scores return_attn_weights need_head_weights '
         'average_attn_weights output_attention',
         f'{HF}, {TORCH}, ' f'{FLASH}', 'return_attn=True | return_intermediates=True | return_hiddens=True', CALL,
         values={False: ': leave it out, they are not returned by default'}),
    Word('features_only return_features return_embeds output_embeddings return_last_hidden_state',
         FAIRSEQ, 'return_embeddings | return_hiddens', CALL),
    Word('output_hidden_states output_hidden return_hidden_states return_all_hiddens output_all_encoded_layers '
         'return_intermediate',
         f'{HF}, {FAIRSEQ}', 'return_intermediates=True | return_hiddens=True | return_embeddings=True', CALL,
         note='`layer_hiddens` of the intermediates',
         values={False: ': leave it out, they are not returned by default'}),
    Word('return_dict output_router_logits return_tuple', HF, NO_DICT, CALL),
    Word('is_causal src_is_causal tgt_is_causal causal use_causal_mask',
         f'{TORCH}, {FLASH}', f'!causal | {ENCODER_OR_DECODER}', CALL),
    Word('causal_mask', 'other libraries', f'{ENCODER_OR_DECODER}: leave it out', CALL),
    Word('memory_is_causal', TORCH, ': it has no counterpart, every query attends to the whole context', CALL,
         values={False: ': leave it out, every query attends to the whole context'}),
    Word('num_logits_to_keep last_token_only only_last', HF, 'logits_to_keep', CALL),
    Word('perm_mask target_mapping', HF, ': `PermutationLMWrapper` draws orders, and its `infill` takes them', CALL),
    Word('use_mems', HF, 'return_mems', CALL),
    Word('return_loss', HF, ': a wrapper such as AutoregressiveWrapper returns the loss', CALL),
    Word('vision_feature_layer vision_feature_select_strategy mm_encoder_outputs',
         HF, ': it is chosen when the model is built, see VisionLanguageWrapper', CALL),
    Word('block_table cache_seqlens num_splits rotary_cos rotary_sin block_tables',
         FLASH, ': it has no counterpart here, see `kv_storage` of `generate`', CALL),
    Word('head_mask decoder_head_mask cross_attn_head_mask layer_head_mask', HF, ': it has no counterpart', CALL),
    Word('cu_seqlens cu_seqlens_q cu_seqlens_k cu_seq_lens_q cu_seq_lens_k',
         FLASH, 'document_ids=torch.repeat_interleave(torch.arange(len({name}) - 1), {name}.diff().cpu())[None]', CALL),
    Word('max_seqlen max_length_q max_length_k max_seqlen_q max_seqlen_k',
         FLASH, ': leave it out, `document_ids` say where documents end', CALL),
    Word('seq_idx document_id doc_ids doc_id sequence_ids',
         f'{FLASH}, {HF}', 'document_ids', CALL, note='the number of the document of each token, (b, n)'),
    Word('bool_masked_pos',
         HF, 'hidden_patches | : it is `hidden_patches` of the call of ViTransformerWrapper', CALL),
    Word('interpolate_pos_encoding', HF, "@ViTransformerWrapper interpolate_pos_emb='bicubic'"),
    Word('num_items_in_batch',
         HF, '@TwoTowers : leave it out, its loss compares the pairs of a batch, so that parts do not add up | '
             'num_items_in_batch', CALL),
    Word('deterministic train training is_training enable_dropout inference',
         JAX, ': the mode is of the module: `model.train()` or `model.eval()`', CALL),
    Word('dropout_rng rngs dropout_key', JAX, ': seed the generator of torch, `torch.manual_seed`', CALL),
    # generation
    Word('max_new_tokens max_tokens max_gen_len new_tokens max_completion_tokens max_gen_toks gen_len n_new_tokens '
         'max_generated_tokens num_new_tokens max_output_tokens n_predict max_generate_tokens max_decode_len '
         'max_output_len seq_length sequence_length output_length num_predict max_gen_length steps num_tokens '
         'max_new_token gen_length num_tokens_to_generate max_decode_length generate_len length gen_tokens',
         f'{HF}, {GPT}, {VLLM}', 'seq_len', GENERATE),
    Word('max_length max_len max_seq_len total_length max_returned_tokens max_sequence_length',
         f'{HF}, {FAIRSEQ}', 'seq_len', GENERATE, note='it counts new tokens alone, not the prompt'),
    Word('max_len_b', FAIRSEQ, 'seq_len', GENERATE),
    Word('max_len_a match_source_len unkpen normalize_scores retain_dropout search_strategy net_input return_metrics',
         FAIRSEQ, ': it has no counterpart here', GENERATE),
    Word('min_length min_tokens min_new_tokens min_len',
         f'{HF}, {VLLM}', 'min_new_tokens | : a `logits_processor` can keep the end of a text from being chosen',
         GENERATE),
    Word('no_repeat_ngram_size encoder_no_repeat_ngram_size ngram_size no_repeat_ngram',
         HF, 'no_repeat_ngram_size | : a `logits_processor` can do it', GENERATE),
    Word('do_sample sample sampling use_sampling do_sampling random_sampling multinomial',
         HF, 'temperature', GENERATE, values={False: 'temperature=0.0', True: AT_DRAWS}),
    Word('sampler strategy decoding_strategy sampling_method decode_strategy',
         f'Keras, {JAX}', 'temperature', GENERATE, note='see also `filter_logits_fn`, and the method `beam_search`',
         values=SAMPLERS | dict.fromkeys(('beam', 'beam_search'), ': call `beam_search`')),
    Word('greedy greedy_decoding use_greedy',
         'other libraries', 'temperature', GENERATE, values={True: 'temperature=0.0', False: AT_DRAWS}),
    Word('temp temperatures sampling_temperature', 'other libraries', 'temperature', GENERATE),
    Word('top_k topk sampling_topk top_k_logits k',
         f'{HF}, {GPT}, {VLLM}', "filter_logits_fn='top_k', filter_kwargs={{'k': {value}}}", GENERATE,
         values=dict.fromkeys((0, -1, None), "filter_logits_fn='top_p', filter_kwargs={{'thres': 1.0}}")),
    Word('top_p topp nucleus_p nucleus sampling_topp p',
         f'{HF}, {VLLM}', "filter_logits_fn='top_p', filter_kwargs={{'thres': {value}}}", GENERATE),
    Word('min_p', f'{HF}, {VLLM}', "filter_logits_fn='min_p', filter_kwargs={{'min_p': {value}}}", GENERATE),
    Word('typical_p typical typ_p', HF, "filter_logits_fn='typical', filter_kwargs={{'mass': {value}}}", GENERATE),
    Word('epsilon_cutoff', HF, "filter_logits_fn='epsilon', filter_kwargs={{'thres': {value}}}", GENERATE),
    Word('top_a', 'KoboldAI', "filter_logits_fn='top_a', filter_kwargs={{'min_p_ratio': {value}}}", GENERATE),
    Word('eta_cutoff top_h tfs tfs_z mirostat mirostat_tau dry_multiplier xtc_probability smoothing_factor '
         'dynatemp_range grammar structured_outputs thinking_budget',
         HF, ': it has no counterpart, `filter_logits_fn` takes a function of logits', GENERATE),
    Word('eos_token_id eos_id eos stop_token stop_token_id stop_token_ids end_token end_id eot_id eos_idx '
         'end_token_id stop_id eos_token_ids stop_at_token',
         f'{HF}, LitGPT, {VLLM}', 'eos_token', GENERATE, note='an id, or several'),
    Word('forced_eos_token_id', HF, ': it has no counterpart here', GENERATE),
    Word('stop_at_eos', 'TransformerLens', ': give `eos_token`', GENERATE, values={False: ': leave `eos_token` out'}),
    Word('ignore_eos', VLLM, ': leave `eos_token` out', GENERATE),
    Word('stop stop_strings stop_words stop_sequence stop_words_ids stop_tokens stop_token_strings stop_seqs',
         f'{HF}, {VLLM}', 'stop_sequences', GENERATE, note='sequences of ids, not texts'),
    Word('stopping_criteria max_time', HF, ': `stream` yields tokens until the loop is left', GENERATE),
    Word('bos_token_id decoder_start_token_id bos_id bos start_id start_token bos_token forced_bos_token_id sos_id '
         'prepend_bos',
         HF, ': prompts begin with it: put it in front of the ids', GENERATE),
    Word('prefix_tokens prompt_tokens start prefix '
         'start_ids', f'{FAIRSEQ}, {GPT}', 'prompts | seq | start_tokens | prompt', GENERATE),
    Word('position_ids cache_position input_pos',
         HF, f'@AutoregressiveWrapper {AT_PROMPTS} | {AT_PROMPTS}', GENERATE),
    Word('num_beams num_decodes beam_size beam_width n_beams num_beam beam',
         f'{HF}, {FAIRSEQ}', 'beams', GENERATE, values={1: ': leave it out, `beam_search` is another method'}),
    Word('use_beam_search', VLLM, ': call `beam_search` for several beams', GENERATE),
    Word('num_beam_groups diversity_penalty constraints force_words_ids constrained diverse_beam_groups',
         HF, ': it has no counterpart here', GENERATE),
    Word('early_stopping', HF, ': leave it out, `beam_search` stops when no other text can become better', GENERATE),
    Word('lenpen len_penalty length_normalization', FAIRSEQ, 'length_penalty', GENERATE),
    Word('num_return_sequences n num_sequences n_samples nbest num_return samples_per_prompt best_of '
         'num_generations',
         f'{HF}, {VLLM}', 'num_samples | return_beams_and_scores=True', GENERATE),
    Word('freq_penalty', 'TransformerLens', 'frequency_penalty', GENERATE),
    Word('repeat_penalty rep_penalty repetition_penalty_alpha encoder_repetition_penalty',
         'llama.cpp', 'repetition_penalty', GENERATE),
    Word('bad_words_ids',
         HF, 'banned_tokens=[one for (one,) in {name}]', GENERATE, note='single tokens only'),
    Word('suppress_tokens begin_suppress_tokens bad_words banned_token_ids suppress_ids tokens_to_suppress',
         HF, 'banned_tokens', GENERATE, note='ids of single tokens'),
    Word('allowed_token_ids allowed_ids', VLLM, 'allowed_tokens', GENERATE),
    Word('sequence_bias logits_bias', HF, 'logit_bias', GENERATE, note='from ids of single tokens to numbers'),
    Word('prefix_allowed_tokens_fn logits_processors logits_warper logits_processor_list',
         f'{HF}, {VLLM}', 'logits_processor', GENERATE, note='a function (ids, logits) -> logits'),
    Word('renormalize_logits remove_invalid_values', HF, ': leave it out, it has no effect here', GENERATE),
    Word('streamer stream streaming', HF, ': call `stream`, which yields the tokens step by step', GENERATE),
    Word('assistant_model draft_model speculative_model assistant', f'{HF}, {VLLM}', 'draft', GENERATE),
    Word('num_assistant_tokens num_speculative_tokens prompt_lookup_num_tokens speculate_k num_draft gamma '
         'speculative_tokens num_spec_tokens lookahead',
         f'{HF}, {VLLM}', 'num_draft_tokens', GENERATE),
    Word('max_matching_ngram_size prompt_lookup_max', f'{HF}, {VLLM}', 'max_ngram', GENERATE),
    Word('use_mtp', VLLM, "draft='mtp'", GENERATE, values={False: ': leave it out'}),
    Word('speculative_config num_assistant_tokens_schedule assistant_confidence_threshold assistant_early_exit '
         'assistant_tokenizer target_lookbehind assistant_lookbehind is_assistant '
         'assistant_ensemble_weight speculation_type',
         HF, ': it has no counterpart, see the method `speculative`', GENERATE),
    Word('guidance_scale cfg_scale cfg guidance unconditional_guidance_scale w',
         f'{HF}, diffusers', 'cond_scale', GENERATE),
    Word('negative_prompt_ids negative_prompt uncond_ids negative_ids', HF, 'negative_prompts', GENERATE),
    Word('negative_prompt_attention_mask', HF, ': `negative_prompts` are as long as the prompts', GENERATE),
    Word('output_scores output_logits logprobs prompt_logprobs return_logprobs top_logprobs return_logits '
         'return_scores return_dict_in_generate log_probs',
         f'{HF}, {VLLM}', 'return_log_probs=True | return_beams_and_scores=True', GENERATE,
         values={**dict.fromkeys((False, None), ': leave it out, tokens alone are returned')}),
    Word('cache_implementation',
         HF, 'compile=True', GENERATE, note='which compiles the steps',
         values={'dynamic': ': leave it out, the cache grows with the text'}),
    Word('disable_compile', HF, ': leave it out, steps are compiled with `compile=True` alone', GENERATE),
    Word('cache_config max_cache_len prefill_chunk_size low_memory compile_config synced_gpus max_batch_size '
         'continuous_batching_config token_healing watermarking_config dola_layers penalty_alpha custom_generate '
         'exponential_decay_length_penalty lora_request use_tqdm priority request_id',
         HF, ': it has no counterpart here', GENERATE),
    Word('seed random_seed manual_seed prng_key decode_rng random_state rng',
         f'{VLLM}, {JAX}', 'generator=torch.Generator().manual_seed({value})', GENERATE,
         note='on the device of the model'),
    Word('generation_config sampling_params gen_config',
         f'{HF}, {VLLM}', ': keywords are given one by one; `**net.generation_defaults` are those of a loaded model',
         GENERATE),
    Word('tokenizer skip_special_tokens detokenize echo include_stop_str_in_output return_full_text '
         'clean_up_tokenization_spaces truncate_prompt_tokens spaces_between_special_tokens messages '
         'include_prompt strip_prompt return_with_prompt response_format user chat_template '
         'output_kind extra_args guided_decoding guided_json',
         f'{HF}, {VLLM}', ': ids go in, and ids of new tokens come out', GENERATE),
    # loading
    Word('torch_dtype params_dtype precision', HF, 'dtype', LOAD),
    Word('device map_location', HF, 'device_map', LOAD),
    Word('pretrained_model_name_or_path model_name_or_path model_id repo_id model_name path name '
         'folder filename checkpoint_path',
         HF, 'source', LOAD),
    Word('use_auth_token hf_token access_token', HF, 'token', LOAD),
    Word('hidden_dropout_prob attention_probs_dropout_prob dropout_rate resid_pdrop attn_pdrop embd_pdrop',
         HF, 'dropout', LOAD),
    Word('num_labels n_classes', HF, 'num_classes', LOAD),
    Word('vocab_size', HF, 'num_tokens', LOAD),
    Word('output_loading_info', HF, 'return_info', LOAD),
    Word('weights_only',
         HF, 'allow_pickle=True', LOAD, note='for `.bin` files, which are read with `weights_only=True`',
         values={False: ': pickles are read with `weights_only=True` alone, see `allow_pickle`'}),
    Word('use_safetensors',
         HF, 'allow_pickle', LOAD, note='which also reads `.bin` files',
         values={True: ': leave it out, safetensors are read unless `allow_pickle=True`', False: 'allow_pickle=True'}),
    Word('ignore_mismatched_sizes',
         HF, 'strict=False', LOAD, note='for keywords that add parameters; a new head is `head` with `num_classes`'),
    Word('mmap assign low_cpu_mem_usage _fast_init use_fast disable_mmap offload_state_dict '
         'offload_buffers weights_mmap',
         HF, f':{NOTHING_TO_LOAD}, weights are mapped and read one by one', LOAD),
    Word('trust_remote_code code_revision adapter_kwargs _commit_hash commit_hash',
         HF, f':{NOTHING_TO_LOAD}, no code of a repository is run', LOAD),
    Word('load_in_8bit load_in_4bit quantization_config bnb_config',
         HF,
         ': weights are not quantized while they are read: load in `dtype=torch.bfloat16`, quantize the model then',
         LOAD),
    Word('tp_plan device_mesh tp_size distributed_config',
         HF, ': load on one device, and split the model with `x_transformers.parallel`', LOAD),
    Word('subfolder', HF, ': name the folder itself as `source`', LOAD),
    Word('variant', HF, ': name the file itself as `source`', LOAD),
    Word('gguf_file', HF, ': convert it to safetensors with transformers first', LOAD),
    Word('force_download resume_download proxies mirror local_dir etag_timeout',
         HF, ': fetch the folder with `huggingface_hub.snapshot_download`, and name it as `source`', LOAD),
    Word('from_tf from_flax', HF, ': save the model with transformers in the format of PyTorch first', LOAD),
    Word('state_dict', HF, ': `load_state_dict` of the loaded model takes other weights', LOAD),
    Word('config', HF, ': config.json of the folder is read; keywords of the model change it', LOAD),
    Word('max_memory offload_folder', HF, 'device_map', LOAD, note='a device, or a dict from modules to devices'),
    Word('key_mapping fusion_config generation_config kernel_config torchscript use_kernels adapter_name '
         'feature_extractor hparams_file full_finetuning',
         HF, ': it has no counterpart', LOAD),
    Word('return_dict output_attentions output_hidden_states use_cache',
         HF, ': it is chosen in each call, see `return_intermediates`', LOAD),
    # saving
    Word('save_directory output_dir folder directory out_dir file filename', HF, 'path', SAVE),
    Word('dtype torch_dtype', HF, ': convert the model before, `model.to(torch.bfloat16)`', SAVE),
    Word('config metadata', HF, ': it has no counterpart, config.json follows from the model', SAVE),
    Word('overwrite create_pr weights_only', HF, ': it has no counterpart', SAVE),
    Word('save_format', 'Keras', 'format', SAVE),
    Word('safe_serialization',
         HF, ': leave it out, safetensors are written', SAVE,
         values={False: ': safetensors are written alone; `torch.save(model.state_dict(), path)` pickles'}),
    Word('tokenizer processor', HF, 'tokenizer_from', SAVE, note='the folder from which its files are copied'),
    Word('generation_config', HF, 'generation', SAVE, note='a dict'),
    Word('model_type', HF, 'hf_type', SAVE),
    Word('push_to_hub repo_id commit_message token private',
         HF, ': write a folder, and upload it with `huggingface_hub`; ' '`pretrained.hub` has a mixin', SAVE),
    Word('state_dict save_function is_main_process variant save_peft_format save_original_format '
         'distributed_checkpoint',
         HF, ': it has no counterpart, the weights of the model are written', SAVE),
)  # fmt: skip

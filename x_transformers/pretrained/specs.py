"""Specifications of model types: `ModelSpec`, the values of its keywords, and `Fields` of a config."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from x_transformers.flags import ConfigError, did_you_mean, format_value
from x_transformers.flags.config import KINDS
from x_transformers.pretrained.mappings import ModelSizes, WeightMapping

# Fields of a config that do not affect the outputs.
WITHOUT_EFFECT = re.compile(
    '_name_or_path|architectures|chunk_size_feed_forward|dtype|torch_dtype|id2label|label2id|is_encoder_decoder|'
    'model_type|output_attentions|output_hidden_states|problem_type|return_dict|transformers_version|use_cache|'
    r'initializer_range|initializer_factor|init_std|initializer_cutoff_factor|\w+_token_id|\w+_dropout|\w+_pdrop|'
    r'dropout|\w+_dropout_prob|dropout_rate|\w+_layerdrop|'
    r'summary_\w+|encoder_stride|stage_names|out_features|out_indices|apply_layernorm|reshape_hidden_states|auto_map|'
    'attn_implementation|_attn_implementation|torchscript|use_bfloat16|sparse_prediction|sparse_pred_ignore_index|'
    'deterministic_flash_attn|reference_compile|task_specific_params|prefix|finetuning_task|gradient_checkpointing|'
    'tokenizer_class|pruned_heads|_?num_labels|return_dict_in_generate|'
    # generation, in older configs
    'bad_words_ids|cross_attention_hidden_size|diversity_penalty|do_sample|early_stopping|length_penalty|max_length|'
    r'min_length|no_repeat_ngram_size|encoder_no_repeat_ngram_size|num_beam_groups|num_beams|num_return_sequences|'
    r'output_scores|remove_invalid_values|repetition_penalty|temperature|tie_encoder_decoder|top_k|top_p|typical_p|'
    'suppress_tokens|begin_suppress_tokens|exponential_decay_length_penalty|tf_legacy_loss|'
    'forced_decoder_ids|max_new_tokens|cache_implementation|'
    # fields that nothing reads any longer
    r'output_past|n_special|predict_special_tokens|directionality|pooler_fc_size|pooler_num_\w+|pooler_size_per_head|'
    'pooler_type|model_max_length|tokenizer_name|attention_softmax_in_fp32|scale_attention_softmax_in_fp32|'
    'xla_device|eos_token_ids|lang_ids|max_sequence_length|img_processor|output_router_logits|tie_weights_|'
    # how something is computed, or by which process
    r'pretraining_tp|slow_but_exact|_?attn_implementation_\w+|_?experts_implementation\w*|base_model_\w+_plan|'
    'save_step|seq_length|cache_dir|logits_to_keep|_commit_hash|_output_attentions|use_return_dict|use_flash_attn|use_flash_attention|use_flash_attention_2|'
    '_flash_attn_2_enabled|flash_attn|fp16|bf16|fp32|model_parallel|device_map|use_reentrant|kv_cache_dtype|loss_type|'
    # generation, in later configs
    'penalty_alpha|guidance_scale|low_memory|renormalize_logits|constraints|force_words_ids|sequence_bias|max_time|'
    'min_new_tokens|output_logits|encoder_repetition_penalty|epsilon_cutoff|eta_cutoff|min_p|token_healing|'
    r'prompt_lookup_num_tokens|stop_strings|watermarking_config|dola_layers|num_assistant_tokens\w*|assistant_\w+|'
    # fields of other tools
    r'_?unsloth_\w+|transformers\.js_config|sentence_transformers|sbert_ce_default_activation_function|neuron|'
    'nm_version|_diffusers_version|name_or_path|model_name|language|license|tags|pipeline_tag|custom_pipelines|'
    r'(bos|eos|pad|unk|sep|cls|mask)_token|padding_side|tokenizer_\w+|vocab_file|trust_remote_code'
)
# Fields that a type does not read, with the values that do not affect its outputs.
IDLE: dict[str, tuple[Any, ...]] = {
    'is_decoder': (False,), 'add_cross_attention': (False,), 'lm_head_bias': (False,), 'mlp_bias': (False,),
    'attention_bias': (False, True), 'bias': (False,), 'qkv_bias': (False,), 'attn_bias': (False,),
    'use_qk_norm': (False,), 'mup_attn': (False,), 'use_dynamic_ntk': (False,),
    'full_attn_mod': (1,), 'interpolate_factor': (1,), 'rotary_scaling_factor': (1,), 'is_causal': (True,),
    'layer_switch': (4,), 'order_of_interleaved_layers': ('local_attn_first',), 'rotary_pct': (1,),
    'position_embedding_type': ('rope_gptj',), 'use_embedding_sharing': (True,), 'use_gated_activation': (True,),
    'use_parallel_block': (True,), 'use_parallel_embedding': (False,), 'fc_type': ('torch',),
    'ffn_config': ({'ffn_type': 'mptmlp'},), 'num_mtp_layers': (0, 1),
}  # fmt: skip
QUANTIZED = ('quantization_config', 'quantization', 'compression_config', 'sparsity_config')  # MLX writes the second.
# Keywords whose default cannot replace a missing field.
NUMBERS = (
    'dim', 'depth', 'heads', 'num_tokens', 'ff_dim_inner', 'norm_eps', 'ff_moe_experts', 'ff_moe_top_k',
    'ff_moe_dim_inner',
)  # fmt: skip


@dataclass(frozen=True)
class Const:
    """A constant string as the value of a keyword. Other strings name fields."""

    value: Any


@dataclass(frozen=True)
class ModuleSpec:
    """A module as the value of a keyword: its class and its keywords."""

    kind: str
    keywords: Mapping[str, Value]


# Value of a keyword: the name of a field, a function of the fields, or a constant.
Value = str | Const | ModuleSpec | Callable[['Fields'], Any] | int | float | bool | None


@dataclass(frozen=True)
class ModelSpec:
    """Specification of one `model_type` of transformers: how its models are loaded and saved.

    Attributes:
        type: The `model_type`; `spelled` is its form in transformers, if that differs.
        architectures: Classes of transformers that can be loaded, the one with a language head first.
        wrapper, stack: Classes of this library. Without a stack all keywords are those of the wrapper.
        defaults: Fields that are read, with the values that stand for absent ones.
        rules: Properties of the type that functions of the table read, and no config has.
        names: Names of fields that this type uses for those in `defaults`, and that alone its classes know.
        aliases: Further names of fields, older ones among them -> the field.
        fixed: Fields -> their supported values.
        free: Further fields that do not affect the outputs.
        model, layers: Keywords of the wrapper and of the stack.
        sizes: Sizes that the transforms of weights need.
        links: The mappings of weights.
        renames: (pattern, replacement) from names in other files to those of `links`.
        ignored: Patterns of names that need not be kept: buffers, and parts of other models.
        spare: Patterns of names of weights that the model does not have, and that are saved as they were loaded.
        copies: Names that files may also have -> the names that they equal. A copy that differs takes precedence.
        differs: Fields that are True if any of these names of `copies` is another tensor.
        settled: Names that follow from the config -> the function that computes them.
        left: Function of (fields, name), True for tensors that are left out with a warning.
        outside: Prefix, after `renames`, of tensors of other models in the file. They are listed in `info.left`.
        base: Prefix that older files lack.
        bare: Architectures whose files always lack the prefix.
        tied: (head, table) by names of transformers. The head is tied to the table if the file has none.
        always_ties: True if an absent head is tied even if the config says that it is not.
        presence: Fields that are True if the file has a tensor of that name.
        parts: Keyword of a model within this one -> (field with its config, type, architecture).
        heads: Other heads of this type by their purpose, see `heads.py`.
        head, around: The head of this spec, and the keywords of a `Classifier` around the model.
    """

    type: str
    architectures: tuple[str, ...] = ()
    wrapper: str = 'TransformerWrapper'
    stack: str | None = 'Decoder'
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    model: Mapping[str, Value] = field(default_factory=dict)
    layers: Mapping[str, Value] = field(default_factory=dict)
    sizes: Mapping[str, Value] = field(default_factory=dict)
    links: tuple[WeightMapping, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    differs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settled: Mapping[str, Callable[[Fields], Tensor]] = field(default_factory=dict)
    left: Callable[[Fields, str], bool] | None = None
    outside: str = ''
    base: str = ''
    bare: tuple[str, ...] = ()
    tied: tuple[str, str] | None = ('lm_head.weight', 'model.embed_tokens.weight')
    always_ties: Callable[[Mapping[str, Any]], bool] = lambda config: False
    presence: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    heads: Mapping[str, Any] = field(default_factory=dict)
    head: str = ''
    around: Mapping[str, Value] | None = None
    spelled: str = ''
    merges = ('defaults', 'rules', 'names', 'aliases', 'fixed', 'model', 'layers', 'sizes', 'heads')

    def like(self, type: str, *architectures: str, without: Sequence[str] = (), **changes: Any) -> ModelSpec:
        """Return a spec that differs from this one. Mappings are merged, except the names in `without`."""
        for name in self.merges:
            merged = {**getattr(self, name), **changes.get(name, {})}
            changes[name] = {k: v for k, v in merged.items() if k not in without}
        return replace(self, type=type, architectures=architectures, **changes)

    def error(self, field: str, condition: str, value: Any) -> ConfigError:
        """Return the error for a value of a field that is not supported."""
        return ConfigError(f'`{field}` of this {self.type} checkpoint {condition}, got {format_value(value)}')


def rename_fields(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config by the names that the class of its type reads."""
    theirs = {field: name for name, field in spec.names.items()}
    return {theirs.get(name, name): value for name, value in config.items()}


class Fields:
    """Fields of a config by the names of its spec, with the defaults of the spec.

    Attributes:
        values: All fields. `tied` is True if the head is the embedding table: by the weights, else by the config.
        architecture: The class that wrote the config, or the first one of the spec if the config names none of them.
        sources: Fields that each keyword was computed from.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: Mapping[str, Any],
        tied: bool | None = None,
        found: Mapping[str, bool] | None = None,
    ) -> None:
        self.spec, self.config = spec, config
        self.sources: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.check()
        self.architecture = self.find_architecture()
        renamed = set(spec.names.values())  # Its class does not read these names.
        said = {name: value for name, value in config.items() if name not in renamed}
        read = {spec.aliases.get(name, name): value for name, value in reversed(list(said.items()))}
        read.update({name: said[name] for name in spec.defaults if name in said})
        read.update({field: config[name] for name, field in spec.names.items() if name in config})
        # Its class tests such a field for truth, and null is false.
        read = {n: False if v is None and isinstance(spec.defaults.get(n), bool) else v for n, v in read.items()}
        self.values = {**spec.defaults, **spec.rules, **read}
        self.values['tied'] = self.values.get('tie_word_embeddings', False) if tied is None else tied
        self.values.update(found or {})
        self.parts = {name: self.make_part(*of) for name, of in spec.parts.items()}

    def make_part(self, field: str, type: str, architecture: str) -> Fields:
        """Return the fields of a model within this one. The second dict of older configs takes precedence."""
        second = self.values.get(f'{field}_dict')
        given = second if second is not None else getattr(self, field) or {}
        return Fields(SPECS[type], {**given, 'model_type': type, 'architectures': [architecture]})

    def __getattr__(self, name: str) -> Any:
        try:
            found = self.__dict__['values'][name]
            self.asked.append(name)
            return found
        except KeyError:
            raise AttributeError(f'the table entry of {self.spec.type} has no field `{name}`') from None

    def find_architecture(self) -> str:
        """Return the class that wrote the config, else the first. An unknown one is refused if the spec has several."""
        known, listed = self.spec.architectures, tuple(self.config.get('architectures') or ())
        if self.spec.bare and listed and listed[0] not in known:
            raise self.spec.error('architectures', f'must be one of {", ".join(known)}', listed[0])
        return next((name for name in listed if name in known), next(iter(known), ''))

    def check(self) -> None:
        """Raise ConfigError for fields, or values of fields, that are not supported."""
        spec = self.spec
        few_bits = next((name for name in QUANTIZED if self.config.get(name)), None)
        if few_bits is not None:
            raise ConfigError(
                f'`{few_bits}` of this {spec.type} checkpoint is set: quantized weights are not supported, save '
                f'them in bfloat16 first, by `AutoModel.from_pretrained(path, dtype="bfloat16").dequantize()`, or '
                f'take the model before it was quantized'
            )
        unknown = find_unknown_fields(spec, self.config)
        if unknown:
            raise ConfigError(
                f'`{unknown[0]}` of this {spec.type} checkpoint is {format_value(self.config[unknown[0]])}, which is '
                f'no known field{did_you_mean(unknown[0], list_known_fields(spec))}; `unknown={unknown}` ignores it '
                f"if it does not affect the outputs, and `unknown='ignore'` ignores all such fields"
            )
        for name, value in self.config.items():
            allowed = spec.fixed.get(name)
            if allowed is not None and value not in allowed:
                raise spec.error(name, f'must be {" or ".join(map(format_value, allowed))}', value)

    def value(self, value: Value) -> Any:
        if isinstance(value, Const):
            return value.value
        if isinstance(value, ModuleSpec):
            return {'class': value.kind, **add_projections(self.all(value.keywords))}
        if isinstance(value, str):
            return getattr(self, value)
        return value(self) if callable(value) else value

    def all(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the values of keywords without those that are None. A `Const(None)` from a function is kept."""
        found = {name: self.compute_keyword(name, value) for name, value in values.items()}
        constants = {name: value.value for name, value in found.items() if isinstance(value, Const)}
        return {**{name: value for name, value in found.items() if value is not None}, **constants}

    def compute_keyword(self, name: str, value: Value) -> Any:
        self.asked = []
        try:
            found = self.value(value)
            if found is None and isinstance(value, str) and re.sub('^(enc|dec)_', '', name) in NUMBERS:
                raise self.spec.error(value, 'must be a number', None)
            self.sources[name] = [asked for asked in dict.fromkeys(self.asked) if asked in self.spec.defaults]
            return found
        except ConfigError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(
                f'`{name}` cannot be found from the config of this {self.spec.type} checkpoint: '
                f'{type(error).__name__}: {error}'
            ) from error

    def describe_sources(self, message: str) -> str:
        """Return a sentence that names the fields from which the keywords in a message were computed."""
        theirs = {field: name for name, field in self.spec.names.items()}
        found = (
            field
            for keyword, fields in self.sources.items()
            if re.search(f'`(enc_|dec_)?{keyword.removeprefix("enc_").removeprefix("dec_")}`', message)
            for field in fields
        )
        said = [f'`{theirs.get(field, field)}`' for field in dict.fromkeys(found) if f'`{field}`' not in message]
        return f'. This {self.spec.type} config says so by {", ".join(said)}' if said else ''

    def keywords(self) -> dict[str, Any]:
        """Return the call that builds the model, in the form of `model.config`."""
        spec = self.spec
        parts = {name: part.keywords() for name, part in self.parts.items()}
        call = {'class': spec.wrapper, **parts, **add_projections(self.all(spec.model))}
        if spec.stack is not None:
            call['attn_layers'] = {'class': spec.stack, **add_projections(self.all(spec.layers))}
        return call if spec.around is None else {'class': 'Classifier', 'net': call, **self.all(spec.around)}

    def sizes(self) -> ModelSizes:
        return ModelSizes(**self.all(self.spec.sizes))


def list_known_fields(spec: ModelSpec) -> set[str]:
    """Return the fields that a spec uses, or lists as free."""
    return {*spec.defaults, *spec.names, *spec.aliases, *spec.fixed, *spec.free, *QUANTIZED, 'tie_word_embeddings'}


def find_unknown_fields(spec: ModelSpec, config: Mapping[str, Any]) -> list[str]:
    """Return the unknown fields of a config that may affect the outputs."""
    known = list_known_fields(spec)

    def is_idle(name: str, value: Any) -> bool:
        if WITHOUT_EFFECT.fullmatch(name) or value in (None, '', [], {}):
            return True
        if name == 'layer_types' and isinstance(value, list):
            return all(kind == 'full_attention' for kind in value)
        of_other = (name == 'is_decoder' and spec.stack == 'Decoder') or (
            name == 'vocab_size' and spec.wrapper == 'ViTransformerWrapper'
        )
        return of_other or value in IDLE.get(name, ())

    return [name for name, value in config.items() if name not in known and not is_idle(name, value)]


def drop_unknown(spec: ModelSpec, config: Mapping[str, Any], unknown: Any) -> tuple[dict[str, Any], list[str]]:
    """Return a config without its ignored unknown fields, and their names, including those of inner models.

    `unknown` is 'error' to ignore none, 'ignore' to ignore all, or names of fields.
    """
    names = () if unknown == 'error' else (unknown,) if isinstance(unknown, str) else unknown
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`unknown` must be 'error', 'ignore', or names of fields, got {format_value(unknown)}")
    wrong = next((name for name in names if name in list_known_fields(spec)), None)
    if wrong is not None:
        raise ConfigError(f'`unknown` cannot ignore `{wrong}`, which a {spec.type} needs')
    found = [name for name in find_unknown_fields(spec, config) if unknown == 'ignore' or name in names]
    changed = {name: value for name, value in config.items() if name not in found}
    for part, kind, _ in spec.parts.values():
        for name in (part, f'{part}_dict'):
            if isinstance(config.get(name), Mapping):
                changed[name], inner = drop_unknown(SPECS[kind], config[name], unknown)
                found += [f'{name}.{one}' for one in inner]
    return changed, found


def add_projections(call: dict[str, Any]) -> dict[str, Any]:
    """Return keywords of stacks, with an output projection for a single head as wide as the stack."""
    sides = [name.removesuffix('heads') for name in ('heads', 'enc_heads', 'dec_heads') if call.get(name) == 1]
    return {**call, **{f'{side}attn_project_out': True for side in sides}}


# The table.

OWN = 'x_transformers'  # `model_type` of the format of this library
SPECS: dict[str, ModelSpec] = {}


def register(row: ModelSpec) -> ModelSpec:
    """Register a model type, or replace one."""
    if not isinstance(row, ModelSpec):
        raise TypeError(f'`row` must be a Row, got {format_value(row)}')
    SPECS[row.type.replace('-', '_')] = row
    return row


def get_spec(config: Mapping[str, Any]) -> ModelSpec:
    kind = str(config.get('model_type')).replace('-', '_')
    if kind not in SPECS:
        close = f', did you mean `{kind.lower()}`?' if kind.lower() in SPECS else did_you_mean(kind, SPECS)
        raise ConfigError(f'`model_type` must be a supported type, got {kind!r}{close}')
    return SPECS[kind]


def read_own_call(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call stored in a config in the format of this library."""
    call: Any = config.get('config')
    kind = call.get('class') if isinstance(call, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(
            f'`config` of this {OWN} checkpoint must be a dict whose `class` is a class of models, got '
            f'{format_value(call)}{did_you_mean(str(kind), KINDS)}'
        )
    return dict(call)


def supported() -> tuple[ModelSpec, ...]:
    """Return the model types that can be loaded and saved."""
    return tuple(SPECS.values())

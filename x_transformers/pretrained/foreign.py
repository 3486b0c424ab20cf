"""Files and folders that are not models of `transformers`: what they are, and which tool converts them.

`describe_file` looks at the first bytes of a file, `describe_folder` at the names in a folder. Neither reads weights.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from x_transformers.flags import ConfigError

NEEDS = 'the library needs a config.json of `transformers` and its weights in safetensors'
NEEDS_WEIGHTS = 'the library needs weights in safetensors beside the config.json'
WRITE = '`save_pretrained` of transformers writes them'
AGAIN = 'download it again'
EXPORTED = 'weights cannot be read back from it: take the model that it was exported from'
CUT_OFF = f'as an interrupted download leaves it: {AGAIN}'
SUFFIXES = ('.safetensors', '.bin', '.pt', '.pth', '.ckpt')  # Suffixes of files of weights.


class NoModelError(ConfigError, FileNotFoundError):
    """A file or a folder that is not a model that can be loaded."""


@dataclass(frozen=True)
class Foreign:
    """Description of a tool: patterns of its files, their content, and a way to convert them."""

    patterns: tuple[str, ...]
    what: str
    way: str

    @property
    def description(self) -> str:
        """Return the verb and the content."""
        return f'{"is" if self.what.split()[0] in ("a", "an", "the", "part") else "holds"} {self.what}'


def is_saved_by_transformers(call: str, version: str = '') -> str:
    return f'`{call}` of transformers{version} reads it, and `save_pretrained` writes what is needed'


# The first that fits is named. A pattern that ends with a slash is a folder.
FOREIGN = (
    Foreign(('pytorch_lora_weights*', 'diffusion_pytorch_model*'), 'part of a diffusers pipeline',
            'diffusers reads it'),
    Foreign(('model_index.json',), 'the list of parts of a diffusers pipeline',
            'each part is a model in a folder of its own, such as `text_encoder`: name that folder'),
    Foreign(('*.gguf', '*.ggml', 'ggml-model*'), 'a GGUF file of llama.cpp',
            is_saved_by_transformers('AutoModelForCausalLM.from_pretrained(folder, gguf_file=name)')),
    Foreign(('*.incomplete', '*.part', '*.crdownload', '*.aria2', '*.download'), 'an interrupted download', AGAIN),
    Foreign(('consolidated*.pth', 'consolidated*.pt'), "weights in Meta's own format",
            '`convert_llama_weights_to_hf.py` of transformers converts them'),
    Foreign(('consolidated*.safetensors', 'params.json', 'tekken.json'), "part of a model in Mistral's own format",
            '`convert_mistral_weights_to_hf.py` of transformers converts it'),
    Foreign(('global_step*/', 'zero_to_fp32.py', '*_optim_states.pt', '*_model_states.pt', 'zero_pp_rank_*'),
            'part of a checkpoint of DeepSpeed', '`python zero_to_fp32.py FOLDER OUTPUT --safe_serialization` of '
            'DeepSpeed gathers the weights'),
    Foreign(('*.distcp', '.metadata', 'pytorch_model_fsdp_*/', 'optimizer_*/', 'pytorch_model_fsdp*.bin'),
            'part of a sharded checkpoint of FSDP', '`accelerate merge-weights FOLDER OUTPUT` gathers the weights, or '
            '`dcp_to_torch_save` of torch.distributed.checkpoint.format_utils'),
    Foreign(('model_world_size_*_rank_*.pt',), 'part of a sharded checkpoint of verl',
            '`python -m verl.model_merger merge --backend fsdp --local_dir FOLDER --target_dir OUTPUT` gathers '
            'the weights'),
    Foreign(('lit_model.pth', 'lit_config.json', 'model_config.yaml'), 'part of a model of LitGPT',
            '`litgpt convert_from_litgpt FOLDER OUTPUT` converts it'),
    Foreign(('*.nemo', 'mp_rank_*/', 'iter_*/', 'latest_checkpointed_iteration.txt', 'model_optim_rng.pt'),
            'part of a checkpoint of Megatron or NeMo', 'Megatron Bridge, `AutoBridge.export_ckpt`, converts it'),
    Foreign(('hf_model_*.pt', 'meta_model_*.pt', 'torchtune_model_*.pt'), 'weights of torchtune',
            'its `FullModelHFCheckpointer(..., safe_serialization=True)` writes safetensors beside a config.json'),
    Foreign(('quantize_config.json', 'quant_config.json'), 'the settings of a quantized model (GPTQ or AWQ)',
            'take the model before it was quantized'),
    Foreign(('openvino_model*.xml', 'openvino_model*.bin', '*.xml'), 'a graph of OpenVINO', EXPORTED),
    Foreign(('*.onnx', '*.onnx_data', 'onnx/'), 'a graph of ONNX', EXPORTED),
    Foreign(('tf_model*.h5', '*.h5', '*.keras', '*.hdf5'), 'weights of TensorFlow or Keras',
            is_saved_by_transformers('AutoModel.from_pretrained(folder, from_tf=True)', ' 4')),
    Foreign(('*.ckpt.index', '*.ckpt.meta', '*.ckpt.data-*', '*.ckpt-*', 'checkpoint', 'saved_model.pb', '*.pb',
             'variables/'), 'part of a checkpoint of TensorFlow',
            'the `convert_..._original_tf_checkpoint_to_pytorch.py` script of the model in transformers 4 converts it'),
    Foreign(('flax_model*.msgpack', '*.msgpack', 'orbax*', '_CHECKPOINT_METADATA', 'ocdbt.process_*/',
             'manifest.ocdbt'), 'weights of Flax or JAX',
            is_saved_by_transformers('AutoModel.from_pretrained(folder, from_flax=True)', ' 4')),
    Foreign(('*.mlpackage/', '*.mlmodel', '*.mlmodelc/', 'coreml/'), 'a model of Core ML', EXPORTED),
    Foreign(('*.engine', '*.plan', '*.trt'), 'an engine of TensorRT', 'take the model that it was built from'),
    Foreign(('*.tflite', '*.pte', '*.pt2', '*.mnn', '*.task', '*.litertlm'), 'an exported program',
            'take the model that it was exported from'),
    Foreign(('rust_model.ot', '*.ot'), 'weights of rust-bert', 'take the PyTorch weights of the same model'),
    Foreign(('*.pdparams',), 'weights of Paddle', 'take the PyTorch weights of the same model'),
    Foreign(('mindspore_model*',), 'weights of MindSpore', 'take the PyTorch weights of the same model'),
    Foreign(('*.npz', '*.npy'), 'weights of MLX or NumPy', 'take the PyTorch weights of the same model'),
    Foreign(('open_clip_config.json', 'open_clip_*'), 'part of a model of OpenCLIP',
            '`convert_clip_original_pytorch_to_hf.py` of transformers converts it'),
    Foreign(('*.mar', 'handler.py'), 'an archive of TorchServe', 'unpack it'),
    Foreign(('dict.txt', 'model.pt.dict'), 'part of a model of fairseq',
            'the `convert_..._original_pytorch_checkpoint_to_pytorch.py` script of the model in transformers 4 '
            'converts it'),
    Foreign(('model.bin',), 'weights of CTranslate2', 'take the model that they were converted from'),
    Foreign(('meta.json', 'config.cfg'), 'part of a pipeline of spaCy', 'name its folder of the transformer'),
    Foreign(('ckpt.pt', 'ckpt_*.pt'), 'a checkpoint of a training loop such as nanoGPT',
            'write its weights under the names of GPT-2 of transformers, beside a config.json'),
    Foreign(('*.ckpt',), 'a checkpoint of Lightning', 'put the config.json of the model beside it, and load it by its '
            'name with `allow_pickle=True`'),
    Foreign(('*.zip', '*.tar', '*.tar.gz', '*.tgz', '*.tar.bz2', '*.tar.xz', '*.7z', '*.zst', '*.rar', '*.gz'),
            'an archive', 'unpack it, and name the folder'),
    Foreign(('.git/', '.gitattributes'), 'part of a git repository without its large files',
            '`git lfs install` and `git lfs pull` fetch them'),
    Foreign(('modules.json', 'sentence_bert_config.json', 'config_sentence_transformers.json', '1_Pooling/'),
            'part of a model of sentence-transformers', '`SentenceTransformer(folder)[0].auto_model.save_pretrained'
            '(new)` writes what is needed'),
    Foreign(('optimizer.pt', 'optimizer.bin', 'optimizer*.safetensors', 'scheduler.pt', 'scheduler.bin',
             'trainer_state.json', 'rng_state*.pth', 'random_states_*.pkl', 'scaler.pt', 'training_args.bin'),
            'the state of a training, not a model', '`trainer.save_model(folder)` writes the model'),
    Foreign(('*.lock',), 'a lock of a download that did not finish', AGAIN),
    Foreign(('tokenizer*', 'vocab*', 'merges.txt', 'spiece.model', 'special_tokens_map.json', '*.spm', '*.tiktoken'),
            'part of a tokenizer, not a model', WRITE),
    Foreign(('preprocessor_config.json', 'processor_config.json', 'chat_template*'), 'part of a processor, not a model',
            WRITE),
    Foreign(('generation_config.json',), 'defaults of generation, not a model', WRITE),
)  # fmt: skip
IGNORED = ('README*', 'LICENSE*', '*.md', '.gitignore', '.DS_Store', '.cache/', 'USE_POLICY*')


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, with a slash at the end of folders."""
    return sorted(f'{path.name}/' if path.is_dir() else path.name for path in folder.iterdir())


def find_foreign(names: Iterable[str]) -> tuple[str, Foreign] | None:
    """Return the first name that matches a tool, with the description of the tool."""
    names = list(names)
    for foreign in FOREIGN:
        for name in names:
            if any(fnmatch(name, pattern) for pattern in foreign.patterns):
                return name, foreign
    return None


def describe_folder(folder: Path, *known: str) -> str:
    """Return a sentence on the content of a folder without a model, except known files, and on its conversion."""
    ignored = (*IGNORED, *known)
    names = [name for name in names_in(folder) if not any(fnmatch(name, pattern) for pattern in ignored)]
    # `huggingface_hub` leaves its cache in folders that it downloads to.
    cached = folder / '.cache' / 'huggingface' / 'download'
    downloads = [path.name for path in cached.rglob('*.incomplete')] if cached.is_dir() else []
    found, needs = find_foreign(downloads + names), NEEDS_WEIGHTS if known else NEEDS
    if found is not None:
        return f'`{found[0].rstrip("/")}` {found[1].description}; {needs}: {found[1].way}'
    weights = [name for name in names if name.endswith(SUFFIXES)]
    if weights and not known:
        return f'it holds weights alone, {list_names(weights)}; {NEEDS}: put the config.json of the model beside them'
    said = f'it holds {list_names(names)}' if names else f'it holds no more than {known[0]}' if known else 'it is empty'
    return f'{said}; {needs}'


def list_names(names: list[str], most: int = 4) -> str:
    """Return the first names of a list, and how many more there are."""
    said = ', '.join(f'`{name}`' for name in names[:most])
    return said if len(names) <= most else f'{said} and {len(names) - most} more'


# the first bytes of a file


ARCHIVE = next(one for one in FOREIGN if '*.zip' in one.patterns)
MAGIC = {
    **dict.fromkeys((b'GGUF', b'lmgg', b'ggjt', b'tjgg'), next(one for one in FOREIGN if '*.gguf' in one.patterns)),
    b'\x89HDF': next(one for one in FOREIGN if 'tf_model*.h5' in one.patterns),
    b'\x93NUMPY': next(one for one in FOREIGN if '*.npz' in one.patterns),
    **dict.fromkeys((b'\x1f\x8b', b'BZh', b'\xfd7zXZ', b'7z\xbc\xaf', b'(\xb5/\xfd', b'Rar!'),
                    ARCHIVE),
}  # fmt: skip
TEXTS = {
    b'version https://git-lfs': (
        'a pointer of git-lfs, not the file itself', '`git lfs install` and `git lfs pull` fetch the file'
    ),
    b'<': ('a web page, not the file itself', 'download the file itself, at huggingface.co by its `resolve` link'),
    b'# xet version': ('a pointer of git-xet, not the file itself', 'download it again with `huggingface_hub`'),
    b'{"error"': ('an error of a server, not the file itself', AGAIN),
    b'Entry not found': ('an error of a server, not the file itself', AGAIN),
    b'Repository not found': ('an error of a server, not the file itself', AGAIN),
    b'Invalid username': ('an error of a server, not the file itself', 'download it again, with a token'),
    b'Access to model': ('an error of a server, not the file itself', 'download it again, with a token'),
}  # fmt: skip


def first_bytes(path: Path) -> bytes:
    """Return the first 512 bytes of a file.  Raises NoModelError if it is absent, OSError if it cannot be opened."""
    if path.is_symlink() and not path.exists():
        raise NoModelError(f'`{path}` is a link to a file that is absent, {CUT_OFF}')
    try:
        with open(path, 'rb') as file:
            return file.read(512)
    except PermissionError as error:
        raise close_sentence(path) from error


def close_sentence(path: Path) -> PermissionError:
    return PermissionError(f'`{path}` cannot be read: this process has no permission to open it')


def text_of_other(start: bytes) -> tuple[str, str] | None:
    """Return the description of a text in place of a file, and a way to get the file."""
    plain = start.lstrip(b'\xef\xbb\xbf \r\n\t')
    return next((said for begin, said in TEXTS.items() if plain.startswith(begin)), None)


def get_format(path: Path) -> str:
    """Return the format of a file of weights by its content: 'safetensors' or 'pickle'.

    Raises:
        NoModelError: The file is neither, or cut off; the error describes it.
    """
    start, size = first_bytes(path), path.stat().st_size
    if not start:
        raise NoModelError(f'`{path}` cannot be read: it is empty, {CUT_OFF}')
    said = text_of_other(start)
    if said is not None:
        raise NoModelError(f'`{path}` cannot be read: it is {said[0]}: {said[1]}')
    if start[8:9] == b'{':
        check_safetensors(path, struct.unpack('<Q', start[:8])[0], size)
        return 'safetensors'
    if start.startswith(b'PK'):
        return check_zip(path)
    if start[:1] == b'\x80' and start[1:2] in (b'\x02', b'\x03', b'\x04', b'\x05'):
        return 'pickle'
    foreign = next((one for magic, one in MAGIC.items() if start.startswith(magic)), None)
    if foreign is None and start[257:262] == b'ustar':
        foreign = ARCHIVE
    if foreign in (None, ARCHIVE):  # The name may identify it.
        foreign = (find_foreign([path.name]) or ('', foreign))[1]
    if foreign is not None:
        raise NoModelError(f'`{path}` cannot be read: it {foreign.description}; {NEEDS}: {foreign.way}')
    if start.startswith(b'x-transformers '):
        kind = start.split(b' sha256')[0].decode(errors='replace')
        raise NoModelError(f'`{path}` cannot be read: it is a file of {kind!r}, which holds no model')
    raise NoModelError(f'`{path}` cannot be read: it holds neither safetensors nor a pickle of PyTorch, or is damaged')


def check_safetensors(path: Path, header: int, size: int) -> None:
    """Raise NoModelError if a file of safetensors has another size than in its header."""
    with open(path, 'rb') as file:
        file.seek(8)
        text = file.read(min(header, size))
    try:
        ends = [entry['data_offsets'][1] for name, entry in json.loads(text).items() if name != '__metadata__']
        wanted = 8 + header + max(ends, default=0)
    except (ValueError, TypeError, KeyError, AttributeError):
        wanted = 8 + header if len(text) < header else 0
        if not wanted:
            raise NoModelError(f'`{path}` cannot be read: the header of this safetensors file is damaged') from None
    if size < wanted:
        raise NoModelError(f'`{path}` cannot be read: it has {size:,} of {wanted:,} bytes, {CUT_OFF}')
    if size > wanted:
        raise NoModelError(f'`{path}` cannot be read: it has {size:,} bytes, its header lists {wanted:,}: {AGAIN}')


def check_zip(path: Path) -> str:
    """Return 'pickle' for a zip archive of `torch.save`.  Raises NoModelError for others."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        raise NoModelError(f'`{path}` cannot be read: it is cut off, {CUT_OFF}') from None
    ends = {name.rpartition('/')[2] for name in names}
    if 'constants.pkl' in ends:
        raise NoModelError(
            f'`{path}` cannot be read: it is a program of TorchScript; save `torch.jit.load(path).state_dict()` with '
            f'`torch.save`, and name that file'
        )
    if 'data.pkl' in ends:
        return 'pickle'
    is_npz = all(name.endswith('.npy') for name in names)
    kind = '*.npz' if is_npz else 'tf_model*.h5' if 'model.weights.h5' in ends else ''
    found = next((one for one in FOREIGN if kind in one.patterns), ARCHIVE)
    foreign = found if kind else (find_foreign([path.name]) or ('', found))[1]
    raise NoModelError(f'`{path}` cannot be read: it {foreign.description}; {NEEDS}: {foreign.way}')


# configs of other libraries

CONFIGS = {
    ('pretrained_cfg', 'architecture'): ('timm', '`timm.create_model("hf-hub:NAME")` reads it'),
    ('model_cfg',): ('OpenCLIP', '`convert_clip_original_pytorch_to_hf.py` of transformers converts the model'),
    ('_class_name', '_diffusers_version'): ('diffusers', 'it is not a model of the library'),
    ('builder_config', 'pretrained_config'): ('TensorRT-LLM', 'take the model that the engine was built from'),
    ('registered_name', 'module'): ('Keras', '`keras_hub.models` reads it'),
    ('word_embedding_dimension', 'pooling_mode_mean_tokens'): (
        'a layer of sentence-transformers', 'name the folder above it'
    ),
    ('peft_type',): ('PEFT', 'call it adapter_config.json'),
    ('dim', 'n_layers'): ("Meta's or Mistral's own format", 'the scripts of transformers convert the model'),
    ('n_layer', 'n_embd', 'block_size'): ('LitGPT', '`litgpt convert_from_litgpt FOLDER OUTPUT` converts the model'),
}  # fmt: skip


def describe_config(config: dict[str, object]) -> str:
    """Return a sentence that names the library of a config without `model_type`, and what to do."""
    for names, (what, way) in CONFIGS.items():
        if all(name in config for name in names):
            return f'it is a config of {what}: {way}'
    return 'add the type, such as "model_type": "bert", if it is a config of `transformers`'


# names of tensors that other tools give

TENSORS = (
    (r'\.lora_(A|B|embedding_A)\b|\.base_layer\.', 'layers of LoRA that are not merged',
     '`merge_and_unload()` of PEFT merges them, or save the adapter alone by its `save_pretrained`'),
    (r'\.(qweight|qzeros|g_idx|SCB|absmax|quant_map|quant_state\.\S+|weight_packed|weight_scale|weight_scale_inv|'
     r'weight_scale_2|input_scale|weight_format|biases|scales|codebooks|W_q|weight\._(data|scale|shift))$|'
     r'_(blocks|scales)$', 'quantized weights',
     'take the model before it was quantized, or `dequantize()` it with transformers'),
    (r'^(pretrained_model|v_head)\.', 'a model of TRL with a value head',
     '`model.pretrained_model.save_pretrained(folder)` writes the model alone'),
    (r'(^|\.)_?flat_param', 'flat parameters of FSDP', 'save a full state dict, or `accelerate merge-weights`'),
    (r'(^|\.)layers\.\d+\.attention\.w[qkvo]\.weight$', "the names of Meta's and Mistral's own format",
     'the `convert_..._weights_to_hf.py` scripts of transformers convert it'),
    (r'\.parametrizations\.|\.(weight|bias)_(g|v|u|orig|mask)$', 'parametrized or pruned weights',
     '`remove_parametrizations`, `remove_weight_norm` or `prune.remove` of `torch.nn.utils` makes plain ones of them'),
    (r'\.kernel$|/', 'the names of JAX or TensorFlow', 'take the PyTorch weights of the same model'),
    (r'(^|\.)self_attention\.linear_(qkv|proj)\.', 'the names of Megatron', 'Megatron Bridge converts it'),
    (r'(^|\.)layers\.\d+\.(sa|attn)\.q_proj\.|^tok_embeddings\.', 'the names of torchtune',
     'its `FullModelHFCheckpointer` writes those of transformers'),
    (r'^transformer\.h\.\d+\.(norm_1|attn\.qkv|attn\.attn)\.', 'the names of LitGPT',
     '`litgpt convert_from_litgpt FOLDER OUTPUT` converts it'),
    (r'^(visual|trunk|module\.visual)\.|^transformer\.resblocks\.', 'the names of OpenCLIP',
     '`convert_clip_original_pytorch_to_hf.py` of transformers converts it'),
    (r'^(blocks\.\d+\.attn\.qkv|patch_embed\.proj)\.', 'the names of timm',
     'take the model of the same weights in the format of transformers'),
)  # fmt: skip


def describe_tensors(names: Iterable[str]) -> str | None:
    """Return a sentence that names the tool with such names of tensors, or None for names of transformers."""
    names = list(names)
    for pattern, what, way in TENSORS:
        found = next((name for name in names if re.search(pattern, name)), None)
        if found is not None:
            return f'`{found}` shows {what}: {way}'
    return None

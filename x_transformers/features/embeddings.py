"""Token and position embeddings of a model, and tokens that it prepends to the sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import (
    check_ids,
    check_range,
    check_tensor,
    check_vectors,
    find_weights,
    first_tensor,
    is_above,
    zero_masked,
)
from x_transformers.core.modes import to_float
from x_transformers.core.nets import check_reads_front
from x_transformers.core.own_modules import inputs_taken_by, is_of_others, known_stack
from x_transformers.features.layouts import transform_layer
from x_transformers.features.levels import ModelFeature
from x_transformers.features.norms import BiasedLayerNorm, Identity, LayerNorm, l2norm
from x_transformers.features.positions import (
    DENOMINATORS,
    AbsolutePositionalEmbedding,
    ScaledSinusoidalEmbedding,
    no_positions,
    positions_of,
)
from x_transformers.features.rotary import a_base
from x_transformers.flags import (
    Check,
    ConfigError,
    Input,
    a_callable,
    count,
    flag,
    format_value,
    is_number,
    mapping,
    none,
    number,
    one_of,
    positive,
    probability,
    size,
    warn_once,
)
from x_transformers.flags.checks import get_tensor


def dict_of(check: Check, words: str) -> Check:
    """Return a check of dicts from names to integers that pass `check`."""

    def test(value: Any) -> bool:
        return isinstance(value, Mapping) and all(map(check.test, value.values()))

    return Check(f'a dict from names to {words}', test, 'Mapping[str, int]')


sizes, counts = dict_of(size, 'integers of at least 1'), dict_of(count, 'ids, integers of at least 0')
lengths = Check(
    'a tuple of two or more integers of at least 1',
    lambda value: isinstance(value, (tuple, list)) and len(value) > 1 and all(map(size.test, value)),
    'Sequence[int]',
)


class TokenEmbedding(nn.Module):
    """Token embedding, L2-normalized with `l2norm_embed`:  ids (b, n) -> (b, n, d)"""

    def __init__(self, dim: int, num_tokens: int, l2norm_embed: bool = False) -> None:
        super().__init__()
        self.l2norm_embed = l2norm_embed
        self.emb = nn.Embedding(num_tokens, dim)

    def init_(self) -> None:
        """Draw initial values: variance 2 / dim, or almost zero before the normalization to unit length."""
        if self.l2norm_embed:
            nn.init.normal_(self.emb.weight, std=1e-5)
        else:
            nn.init.kaiming_normal_(self.emb.weight)

    def rows(self, device: torch.device | None = None) -> Tensor:
        """Return the vectors of all tokens, for a device.

        A module in place of the table, such as one with an adapter, computes them, and so does one whose weights live
        elsewhere until it is called.
        """
        weight = self.emb.weight
        device = weight.device if device is None else device
        if isinstance(self.emb, nn.Embedding) and (not weight.is_meta or device.type == 'meta'):
            return weight
        return self.emb(torch.arange(len(weight), device=device))

    def table(self, device: torch.device | None = None) -> Tensor:
        """Return the embedding table, L2-normalized if `l2norm_embed` is set."""
        return l2norm(self.rows(device)) if self.l2norm_embed else self.rows(device)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.emb(x.long())
        return l2norm(embedded) if self.l2norm_embed else embedded


def build_token_embedding(model: Any, given: nn.Module | None) -> nn.Module:
    """Return the token embedding of a model: the given one with its weights untouched, or a new one."""
    if given is None:
        new = TokenEmbedding(model.emb_dim, model.num_tokens, model.l2norm_embed)
        new.init_()
        return new
    width = getattr(getattr(given, 'emb', given), 'embedding_dim', model.emb_dim)
    if width != model.emb_dim:
        raise ConfigError(f'`token_emb` must have width {model.emb_dim}, got vectors of width {width}')
    if model.l2norm_embed and not getattr(given, 'l2norm_embed', False):
        warn_once('`l2norm_embed` has no effect on a custom `token_emb`')
    return given


class EmbScale(ModelFeature):
    """Multiply the token embeddings by a constant before positions are added.

    With tied embeddings the output head uses the unscaled table.
    """

    paper = 'Attention Is All You Need, arXiv:1706.03762, section 3.4'
    emb_scale = flag(1.0, 'factor of the token embeddings, rounded to the dtype of their table', number, example=2.0)

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['emb_scale'] != 1

    def setup(self, owner: Any) -> None:
        kinds = (torch.float32, torch.float16, torch.bfloat16)
        self.factors: Any = {kind: torch.tensor(self.emb_scale, dtype=kind, device='cpu').item() for kind in kinds}

    def token_embeds(self, x: Tensor, call: Any) -> Tensor:
        return x * self.factors.get(x.dtype, self.emb_scale)


def check_rows(pos: Tensor | None, rows: int) -> None:
    if pos is not None and (pos.ndim > 2 or (pos.ndim == 2 and pos.shape[0] not in (1, rows))):
        raise ValueError(f'`pos` must have shape (n,) or ({rows}, n), got {tuple(pos.shape)}')


def adds_positions(owner: Any) -> bool:
    """Return True if a model adds absolute positions to its tokens."""
    disabled = known_stack(owner.attn_layers).disable_abs_pos_emb
    return bool(owner.use_abs_pos_emb and owner.max_seq_len > 0 and not disabled)


def hands_on_positions(owner: Any) -> bool:
    """Return True if the stack of a model reads the vectors of positions apart from the tokens."""
    return any(feature.gives_positions is None for feature in known_stack(owner.attn_layers).features.active)


class AbsolutePositions(ModelFeature):
    """Absolute position embeddings: one vector per position, learned or sinusoidal, added to the token embeddings.

    Off if the stack has a position scheme that replaces them (such as rotary or T5), or if `max_seq_len` is 0.
    """

    paper = 'Convolutional Sequence to Sequence Learning, arXiv:1705.03122'
    use_abs_pos_emb = flag(True, 'add absolute position embeddings, unless the stack has another position scheme')
    abs_pos_emb_scale = flag(
        None, 'factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids',
        number | none, example=1.0,
    )  # fmt: skip
    call_inputs = {
        'pos': Input(
            'n | b n, positions; or a float tensor to add',
            get_tensor('n | b n', floats=False) | get_tensor('n e | b n e', floats=True) | get_tensor('b h n'),
        ),
    }
    stored_as = {'module': 'pos_emb'}
    requires_flag = {'abs_pos_emb_scale': 'use_abs_pos_emb'}
    sets_on_module = ('pos_emb',)

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, owner: Any) -> None:
        owner.pos_emb = no_positions
        if not adds_positions(owner) or getattr(owner, 'axial_abs_pos_emb', None):
            return
        owner.pos_emb = None
        if any(getattr(owner, name, None) for name in Sinusoids.switches):
            return  # which stores its own there
        sizes = owner.emb_dim, owner.max_seq_len, owner.l2norm_embed
        self.module = AbsolutePositionalEmbedding(*sizes, self.abs_pos_emb_scale)
        if owner.l2norm_embed:
            nn.init.normal_(self.module.emb.weight, std=1e-5)

    def embed(self, call: Any) -> Tensor | None:
        return None if hands_on_positions(self.owner) else self.vectors(call)

    def vectors(self, call: Any) -> Tensor | None:
        """Return the position embeddings of the new tokens, (n, e) or (b, n, e)."""
        pos, module, width = call.inputs.get('pos'), self.owner.pos_emb, self.owner.emb_dim
        others = type(module) not in (AbsolutePositionalEmbedding, ScaledSinusoidalEmbedding) and is_of_others(module)
        if torch.is_tensor(pos) and pos.is_floating_point() and not (others and pos.shape[-1] != width):
            return self.select_given_vectors(call, pos)
        inputs = dict(seq_start_pos=call.inputs.get('seq_start_pos'), offset=call.offset)
        if others:  # a user's module, which may count in another way
            tokens = call.like_tokens if call.ids is None else call.ids
            return module(tokens, **inputs_taken_by(module, {'pos': pos, **inputs}, idle=(None, 0)))
        if module is None or module is no_positions:
            return None
        if pos is not None:
            check_rows(pos, call.like_tokens.shape[0])
            pos = call.select_new(pos, 'pos').long()
        return module(call.like_tokens, pos=pos, **inputs)

    def select_given_vectors(self, call: Any, pos: Tensor) -> Tensor:
        """Return the vectors that were given as `pos`, for the new tokens."""
        if pos.shape[-1] != self.owner.emb_dim:
            wanted = f'vectors of width {self.owner.emb_dim}, or whole numbers'
            raise ValueError(f'`pos` must be {wanted}, got {pos.dtype} of shape {tuple(pos.shape)}')
        return call.select_new(pos, 'pos')


class Sinusoids(ModelFeature):
    """Sinusoidal position embeddings, added to the tokens instead of a learned table. The length is unlimited.

        [sin p w | cos p w]     w: d / 2 frequencies        (b, n) -> (b, n, d)

    The paper interleaves sines and cosines, which is a permutation of these channels.
    """

    paper = 'Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356'
    sinu_pos_emb = flag(False, 'sinusoidal position embeddings instead of a learned table')
    scaled_sinu_pos_emb = flag(False, 'sinusoidal position embeddings times a learned scale')
    sinu_theta = flag(10000.0, 'frequency base: wavelengths are from 2 pi to 2 pi theta tokens', a_base, example=100.0)
    sinu_denominator = flag(
        'd',
        "'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper",
        one_of(*DENOMINATORS),
        example='half_minus_1',
    )
    switches = ('sinu_pos_emb', 'scaled_sinu_pos_emb')
    requires_flag = dict.fromkeys(switches, 'use_abs_pos_emb')
    stored_as = {'module': 'pos_emb'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return bool(values['sinu_pos_emb'] or values['scaled_sinu_pos_emb'])

    def setup(self, owner: Any) -> None:
        scale = owner.abs_pos_emb_scale
        if self.sinu_pos_emb:
            for name, given in (('scaled_sinu_pos_emb', self.scaled_sinu_pos_emb), ('abs_pos_emb_scale', scale)):
                if given not in (None, False):
                    raise ConfigError(f'`sinu_pos_emb` cannot be combined with `{name}`: its scale is 1')
            scale = 1.0
        if adds_positions(owner):
            self.module = ScaledSinusoidalEmbedding(owner.emb_dim, self.sinu_theta, scale, self.sinu_denominator)


class Axes(nn.ParameterList):
    """A table of vectors for each axis."""

    def extra_repr(self) -> str:
        return ', '.join(' x '.join(map(str, table.shape)) for table in self)


class AxialPositions(ModelFeature):
    """Axial position embeddings for flattened data: one learned table per axis, summed, instead of one table.

    With axes (n1, n2), rows and columns, token p gets vector p // n2 of the first and p mod n2 of the second table.
    More axes work likewise, the last one varying fastest, such as the channels of pixels.
    """

    paper = 'Sparse Transformer, arXiv:1904.10509, section 5.2'
    axial_abs_pos_emb = flag(
        None, 'lengths of the axes of the flattened data, which get one table of learned vectors each',
        lengths | none, example=(4, 7),
    )  # fmt: skip
    call_inputs = {'pos': AbsolutePositions.call_inputs['pos']}
    clashes = {
        'sinu_pos_emb': 'both are position embeddings of the tokens',
        'scaled_sinu_pos_emb': 'both are position embeddings of the tokens',
        'abs_pos_emb_scale': 'axial positions have no such table to scale',
    }
    stored_as = {'tables': 'axial_pos'}
    counts_from = 'segment'

    def setup(self, owner: Any) -> None:
        self.lengths = tuple(map(int, self.axial_abs_pos_emb))
        if owner.max_seq_len > math.prod(self.lengths):
            raise ConfigError(
                f'`axial_abs_pos_emb` got {self.lengths}, which are {math.prod(self.lengths)} places, fewer than '
                f'`max_seq_len`, {owner.max_seq_len}'
            )
        self.tables = Axes(torch.randn(length, owner.emb_dim) * 0.02 for length in self.lengths)

    def embed(self, call: Any) -> Tensor | None:
        return None if hands_on_positions(self.owner) else self.vectors(call)

    def vectors(self, call: Any) -> Tensor | None:
        """Return the position embeddings of the new tokens, (n, e) or (b, n, e)."""
        pos, total = call.inputs.get('pos'), math.prod(self.lengths)
        if pos is not None and pos.is_floating_point():
            return None  # those vectors are added
        ids, start = call.like_tokens, call.inputs.get('seq_start_pos')
        if pos is None and is_above(call.offset + ids.shape[1], total):
            raise ValueError(
                f'the sequence has {int(call.offset + ids.shape[1])} tokens, '
                f'`axial_abs_pos_emb={self.lengths}` has places for {total}'
            )
        if pos is not None:
            check_rows(pos, ids.shape[0])
            pos = call.select_new(pos, 'pos').long()
            if start is None:
                check_range(pos, 'pos', 0, total - 1, 'positions')
        pos = positions_of(ids.shape[1], pos, start, call.offset, ids.device)
        found: Tensor | None = None
        for table, length in zip(reversed(self.tables), reversed(self.lengths), strict=True):
            vectors = F.embedding(pos % length, table)
            found, pos = vectors if found is None else found + vectors, pos // length
        return found


class ExtraIds(ModelFeature):
    """Additional ids per token, each with a separate embedding table; all embeddings are summed."""

    embed_num_tokens = flag({}, 'name -> vocabulary size of each additional kind of ids', sizes, example={'extra': 5})
    embed_default_ids = flag(
        {}, 'name -> id used for every token if a call does not pass these ids', counts, example={'extra': 1}
    )
    call_inputs = {'embed_ids': Input('name -> ids b n')}
    stored_as = {'tables': 'embeds'}

    def setup(self, owner: Any) -> None:
        tables = {f'{name}_embed': nn.Embedding(n, owner.emb_dim) for name, n in self.embed_num_tokens.items()}
        self.tables = nn.ModuleDict(tables)
        for name, default in self.embed_default_ids.items():
            if default >= self.embed_num_tokens.get(name, 0):
                known = ', '.join(f'{own!r} below {tokens}' for own, tokens in self.embed_num_tokens.items())
                raise ConfigError(f'`embed_default_ids` must be ids of {known}, got {name!r}: {default}')

    def embed(self, call: Any) -> Tensor:
        ids = call.inputs.get('embed_ids')
        ids = {} if ids is None else ids
        if not isinstance(ids, Mapping):
            raise TypeError(f'`embed_ids` must be a dict from names to ids, got {format_value(ids)}')
        left_out = set(self.embed_num_tokens) - set(ids)
        if not set(self.embed_num_tokens) >= set(ids) or not left_out <= set(self.embed_default_ids):
            raise ValueError(f'`embed_ids` must have {sorted(self.embed_num_tokens)}, got names {sorted(ids)}')
        ids = {name: check_ids(t, f'embed_ids[{name!r}]', 0, self.embed_num_tokens[name]) for name, t in ids.items()}
        ids = {name: call.select_new(t, f'embed_ids[{name!r}]') for name, t in ids.items()}
        for name in left_out:
            ids[name] = torch.full((1, 1), self.embed_default_ids[name], device=call.like_tokens.device)
        found: Any = sum(self.tables[f'{name}_embed'](ids[name]) for name in self.embed_num_tokens)
        return found


class SumEmbeds(ModelFeature):
    """Vectors passed by the caller, added to the token embeddings."""

    call_inputs = {'sum_embeds': Input('b n e')}

    def embed(self, call: Any) -> Tensor | None:
        given = call.inputs.get('sum_embeds')
        if given is None:
            return None
        if is_number(given) or (torch.is_tensor(given) and given.ndim == 0):  # the same for all
            like = first_tensor(find_weights(self.owner))
            given = torch.as_tensor(given, dtype=like.dtype, device=like.device).expand(1, 1, self.owner.emb_dim)
        if 0 < check_tensor(given, 'sum_embeds').ndim < 3:  # the same for all rows, or for all tokens
            given = given[(None,) * (3 - given.ndim)]
        check_vectors(given, 'sum_embeds', 'b', 'n', self.owner.emb_dim)
        return call.select_new(given, 'sum_embeds')


class PostEmbNorm(ModelFeature):
    """Layer norm of the summed embeddings, before or after they are projected to the width of the stack."""

    paper = 'BERT, arXiv:1810.04805'
    post_emb_norm = flag(False, 'layer norm of the summed embeddings')
    post_emb_norm_bias = flag(False, 'learn a bias in this layer norm')
    post_emb_norm_eps = flag(None, 'eps of this layer norm, 1e-5 if None', positive | none, example=0.1)
    stored_as = {'norm': 'post_emb_norm'}
    requires_flag = dict.fromkeys(('post_emb_norm_bias', 'post_emb_norm_eps'), 'post_emb_norm')

    @property
    def late(self) -> bool:
        return getattr(self.owner, 'post_emb_norm_at', 'embedding') == 'stream'

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True  # others may put a norm there

    def setup(self, owner: Any) -> None:
        kind = BiasedLayerNorm if self.post_emb_norm_bias else LayerNorm
        width = owner.dim if self.late else owner.emb_dim
        self.norm = kind(width, eps=self.post_emb_norm_eps) if self.post_emb_norm else Identity()

    def active_stages(self) -> tuple[str, ...]:
        return ('prepend_prefix',) if self.late else ('embedded',)

    def embedded(self, x: Tensor, call: Any) -> Tensor:
        return self.owner.post_emb_norm(x)

    def prepend_prefix(self, x: Tensor, call: Any) -> Tensor:
        front, new = x.tensor_split([x.shape[1] - call.new_len], dim=1)
        return torch.cat((front, self.norm(new)), dim=1) if call.prefix_parts else self.norm(new)


def get_projection(owner: Any, wanted: bool | None, bias: bool) -> nn.Module:
    """Build the projection from the width of embeddings to that of the stack; None where they are equal is none."""
    differ, late = owner.emb_dim != owner.dim, owner.post_emb_norm_at != 'embedding'
    if differ and wanted is not None and not wanted:
        raise ConfigError(
            f'`project_emb=False` needs embeddings as wide as the stack: '
            f'`emb_dim` is {owner.emb_dim}, the stack has {owner.dim}'
        )
    if late and not getattr(owner.features.find(PostEmbNorm), 'post_emb_norm', False):
        warn_once('`post_emb_norm_at` has no effect unless `post_emb_norm` is set')
        late = False
    if differ or wanted:
        return nn.Linear(owner.emb_dim, owner.dim, bias=bias)
    for name, given in (('project_emb_bias', not bias), ('post_emb_norm_at', late)):
        if given:
            warn_once(f'`{name}` has no effect unless `project_emb` is set, or `emb_dim` differs')
    return nn.Identity()


class PrependEmbeds(ModelFeature):
    """Vectors passed by the caller and prepended to the tokens: a prefix, an image, a condition."""

    refuses = {'documents': 'they are prepended to the first document only'}
    call_inputs = {
        'prepend_embeds': Input('b p e', get_tensor('b p e', floats=True)),
        'prepend_mask': Input('b p', get_tensor('b p')),
    }

    def embedded(self, x: Tensor, call: Any) -> Tensor:
        prefix, mask = call.inputs.get('prepend_embeds'), call.inputs.get('prepend_mask')
        if prefix is None:
            if mask is not None:
                raise ValueError('`prepend_mask` got a mask, but there are no `prepend_embeds`')
            return x
        if prefix.ndim != 3 or prefix.shape[-1] != x.shape[-1] or prefix.shape[0] != x.shape[0]:
            raise ValueError(
                f'`prepend_embeds` must have shape ({x.shape[0]}, p, {x.shape[-1]}), got {tuple(prefix.shape)}'
            )
        known = torch.is_tensor(mask) and mask.shape == prefix.shape[:2]
        return call.prepend_tokens(zero_masked(prefix, mask) if known else prefix, x, mask)


class PrependInputs(PrependEmbeds):
    """Vectors passed by the caller and prepended to the whole sequence, memory tokens included."""

    embedded: Any = None
    prepend_prefix = PrependEmbeds.embedded


class EmbFracGradient(ModelFeature):
    """Scale down the gradient of the embeddings; the forward pass is unchanged."""

    paper = 'GLM-130B, arXiv:2210.02414'
    emb_frac_gradient = flag(
        1.0,
        'factor of the gradient of the embeddings, in (0, 1]',
        Check('a number in (0, 1]', lambda v: is_number(v) and 0 < v <= 1, 'float'),
        example=0.5,
    )

    def embedded(self, x: Tensor, call: Any) -> Tensor:
        return x * self.emb_frac_gradient + x.detach() * (1 - self.emb_frac_gradient)


class ClassTokens(ModelFeature):
    """Learned class tokens, prepended to the sequence. The model output is taken from them."""

    paper = 'BERT, arXiv:1810.04805'
    refuses = {
        'documents': 'they are prepended to the first document only',
        'cache': 'class tokens are read behind the last token',
    }
    use_cls_token = flag(False, 'prepend learned class tokens and take the output from them')
    num_cls_tokens = flag(1, 'number of class tokens', size, example=2)
    stored_as = {'tokens': 'cls_token'}

    def setup(self, owner: Any) -> None:
        advice = 'take `average_pool_embed`, or an Encoder'
        check_reads_front(owner.attn_layers, '`use_cls_token`', advice, refuses=False)
        self.tokens = nn.Parameter(torch.randn(self.num_cls_tokens, owner.dim) * 0.02)

    def prepend_prefix(self, x: Tensor, call: Any) -> Tensor:
        call.ctx(self).behind = call.num_prefix_tokens
        return call.prepend_tokens(self.tokens, x)

    def strip_prefix(self, x: Tensor, call: Any) -> Tensor:
        own = call.ctx(self)
        own.tokens, x = call.remove_prefix(x, self.num_cls_tokens, own.behind)
        return x

    def pool(self, x: Tensor, call: Any) -> Tensor:
        cls = call.ctx(self).tokens
        return cls.squeeze(1) if self.num_cls_tokens == 1 else cls


class MemoryTokens(ModelFeature):
    """Learned memory tokens (registers), prepended to the sequence or to every chunk, and removed from the output."""

    paper = 'Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588'
    refuses = {'documents': 'they are prepended to the first document only'}
    num_memory_tokens = flag(None, 'number of memory tokens', count | none, example=2)
    memory_tokens_interspersed_every = flag(
        None, 'chunk length: insert the memory tokens before every chunk of this many tokens', size | none, example=3
    )
    stored_as = {'tokens': 'memory_tokens'}

    def setup(self, owner: Any) -> None:
        self.tokens = nn.Parameter(torch.randn(self.num_memory_tokens, owner.dim))
        self.every = self.memory_tokens_interspersed_every
        if self.every:
            self.refuse(dict.fromkeys(('cache', 'left padding'), 'memory tokens are inserted at multiples of a length'))
            if not known_stack(owner.attn_layers).causal:
                raise ConfigError('`memory_tokens_interspersed_every` needs a causal stack')

    def prepend_prefix(self, x: Tensor, call: Any) -> Tensor:
        if not self.every:
            call.ctx(self).behind = call.num_prefix_tokens
            return call.prepend_tokens(self.tokens, x)
        if call.inputs.get('seq_start_pos') is not None:
            raise ValueError('`seq_start_pos` cannot be combined with `memory_tokens_interspersed_every`')
        call.ctx(self).length = x.shape[1]
        call.spread = self.interleave_memories
        chunks = self.split_chunks(x)
        memories = self.tokens.expand(*chunks.shape[:2], -1, -1)
        return rearrange(torch.cat((memories, chunks), dim=2), 'b c k d -> b (c k) d')

    def split_chunks(self, t: Tensor) -> Tensor:
        """Split (b n ...) into chunks, the last one filled up with zeros:  b c k ..."""
        missing = (t.shape[1] + self.every - 1) // self.every * self.every - t.shape[1]
        filled = F.pad(t, (0, 0) * (t.ndim - 2) + (0, missing))
        return rearrange(filled, 'b (c k) ... -> b c k ...', k=self.every)

    def interleave_memories(self, t: Tensor, value: Any = True) -> Tensor:
        """Extend values of tokens (b n), such as a mask, to the sequence with memories, which get `value`."""
        return rearrange(F.pad(self.split_chunks(t), (self.num_memory_tokens, 0), value=value), 'b c k -> b (c k)')

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        if not self.every:
            return inputs
        for name in ('pos', 'attn_mask', 'attn_bias', 'rotary_pos_emb'):
            if inputs.get(name) is not None:
                raise ValueError(f'`{name}` cannot be combined with `memory_tokens_interspersed_every`')
        kv_mask = inputs.get('self_attn_kv_mask')
        return inputs if kv_mask is None else {**inputs, 'self_attn_kv_mask': self.interleave_memories(kv_mask)}

    def strip_prefix(self, x: Tensor, call: Any) -> Tensor:
        if self.every:
            chunks = rearrange(x, 'b (c k) d -> b c k d', k=self.num_memory_tokens + self.every)
            memories, tokens = chunks.tensor_split([self.num_memory_tokens], dim=2)
            call.intermediates.memory_tokens = rearrange(memories, 'b c m d -> (b c) m d')
            return rearrange(tokens, 'b c k d -> b (c k) d')[:, : call.ctx(self).length]
        if call.continues:
            return x
        call.intermediates.memory_tokens, x = call.remove_prefix(x, self.num_memory_tokens, call.ctx(self).behind)
        return x


class TransformTokens(ModelFeature):
    """Functions passed by the caller and applied to the token embeddings."""

    call_inputs = {
        'transform_token_embeds': Input('function of the token embeddings b n e', a_callable),
        'transform_block_inputs': Input(
            '{block: f(x)} or f(block, x); block 1 gets the token embeddings', a_callable | mapping
        ),
    }

    def token_embeds(self, x: Tensor, call: Any) -> Tensor:
        own = call.inputs.get('transform_token_embeds')
        if own is not None:
            return own(x)
        return transform_layer(call.inputs.get('transform_block_inputs'), 1, x)

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        given = call.inputs.get('transform_block_inputs')
        return inputs if given is None else {**inputs, 'transform_block_inputs': given}


class DeepEmbeds(ModelFeature):
    """Multiply the output of each feedforward by a learned vector that is looked up by token id."""

    paper = 'RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM'
    ff_deep_embed = flag(False, 'scale the output of each feedforward by a learned vector per token id')
    stored_as = {'table': 'ff_deep_embed'}

    def setup(self, owner: Any) -> None:
        # one per block, as stored on disk; where a block has several feedforwards, the last ones go without
        stack = known_stack(owner.attn_layers)
        blocks = 1 if stack.weight_tie_layers else stack.depth
        self.table = nn.Parameter(torch.ones(owner.num_tokens, blocks, stack.dim))

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        """Pass the table and the ids; tokens without an id, such as prepended ones, get ones."""
        no_id = self.owner.num_tokens
        table = torch.cat((self.table, torch.ones_like(self.table[:1])))
        ids = F.pad(call.like_tokens, (0 if call.continues else call.num_prefix_tokens, 0), value=no_id)
        if call.spread is not None:
            ids = call.spread(ids, no_id)
        ids = ids if call.continues else call.move_after_padding(ids)
        return {**inputs, 'deep_embeds_and_ids': (table, ids)}


class EmbDropout(ModelFeature):
    """Dropout on the input of the stack, prepended tokens included."""

    emb_dropout = flag(0.0, 'dropout probability of the embeddings', probability, example=0.2)
    stored_as = {'module': 'emb_dropout'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, owner: Any) -> None:
        self.module = nn.Dropout(self.emb_dropout)

    def prepend_prefix(self, x: Tensor, call: Any) -> Tensor:
        return self.module(x)


def mean_of_real(x: Tensor, token_mask: Tensor | None) -> Tensor:
    """Return the mean of tokens (b n d), of the real ones (b n), None for all; 0 if there are none."""
    if token_mask is None:
        return x.mean(dim=1) if x.shape[1] else x.sum(dim=1)
    token_mask = token_mask.unsqueeze(-1)
    return (to_float(x.masked_fill(~token_mask, 0.0)).sum(dim=1) / token_mask.sum(dim=1).clamp(min=1)).to(x.dtype)


class AveragePool(ModelFeature):
    """Average the outputs of all tokens except padding, before the output head."""

    refuses = {
        'documents': 'it averages over all documents at once',
        'cache': 'its mean is over all tokens of a call',
    }
    average_pool_embed = flag(False, 'average the tokens before the output head')
    clashes = {'use_cls_token': 'both determine how the output is pooled'}

    def pool(self, x: Tensor, call: Any) -> Tensor:
        return mean_of_real(x, call.make_token_mask(x))

"""Pretraining on nothing: sequences that random recurrent networks made of noise, arXiv:2506.20057."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper as AutoregressiveWrapper
from x_transformers.compat.helpers import identity
from x_transformers.core.checks import as_number, check_ids, checked
from x_transformers.core.modes import disable_autocast
from x_transformers.flags import (
    Check,
    ConfigError,
    Configurable,
    a_callable,
    boolean,
    count,
    instance_of,
    is_int,
    none,
    size,
)
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.engine import Decoding
from x_transformers.generation.sampling import get_ids, require

__all__ = ['SyntheticDataGenerator', 'UniversalPretrainWrapper', 'random_sequences']

MOST_SCALE = 1.1

even = Check('an even integer of at least 2', lambda value: is_int(value) and value >= 2 and value % 2 == 0)


def random_sequences(
    num_tokens: int,
    seq_len: int,
    num_samples_random: int,
    num_samples_constant: int,
    shuffle: bool = True,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return sequences of random ids, and sequences that repeat one id, (r + c, n)."""
    noise = torch.randint(0, num_tokens, (num_samples_random, seq_len), device=device)
    same = torch.randint(0, num_tokens, (1, 1), device=device).expand(num_samples_constant, seq_len)
    rows = torch.cat((noise, same))
    return rows[torch.randperm(rows.shape[0], device=device)] if shuffle else rows


class SyntheticDataGenerator(Configurable):
    """A random recurrent network that continues sequences:  ids (b, n) -> logits (b, n, l), hidden state.

    Every weight matrix is multiplied by a number sampled from U(0, 1.1), so that networks range from regular to
    chaotic behavior.
    """

    def __init__(
        self,
        dim: Annotated[int, 'width of the embeddings', size],
        num_tokens: Annotated[int, 'size of the vocabulary', size],
        max_seq_len: Annotated[int, 'maximum length of the returned sequences', size] = 512,
        hidden_size: Annotated[int | None, 'hidden size of the recurrent network, `dim` if None', size | none] = None,
        use_gru: Annotated[bool, 'use a GRU, otherwise an LSTM', boolean] = False,
        network_klass: Annotated[
            Callable | None,
            'custom network: (dim, hidden_size) -> module from vectors (b, n, d) and a state to new vectors and state',
            a_callable | none,
        ] = None,
    ) -> None:
        super().__init__()
        if network_klass is not None and use_gru:
            raise ConfigError('`use_gru` cannot be combined with `network_klass`: both say which network runs')
        build = network_klass or functools.partial(nn.GRU if use_gru else nn.LSTM, batch_first=True)
        hidden_size = hidden_size or dim
        self.num_tokens, self.max_seq_len = num_tokens, max_seq_len
        self.embed = nn.Embedding(num_tokens, dim)
        self.net = build(dim, hidden_size)
        self.to_logits = nn.Linear(hidden_size, num_tokens, bias=False)
        self.apply(self.init_)

    def reset_(self) -> None:
        """Draw another network, in place."""
        modules: Any = self.modules()
        for module in modules:
            if hasattr(module, 'reset_parameters'):
                module.reset_parameters()
        self.apply(self.init_)

    @torch.no_grad()
    def init_(self, m: nn.Module) -> None:
        """Scale the weight matrices of a linear layer or a recurrent network."""
        if isinstance(m, (nn.Linear, nn.RNNBase, nn.RNNCellBase)):
            for name, parameter in m.named_parameters(recurse=False):
                if name.startswith('weight'):
                    parameter.mul_(torch.rand((), dtype=torch.float32, device=parameter.device) * MOST_SCALE)

    @checked
    def forward(self, input: Tensor, hiddens: Any = None) -> tuple[Tensor, Any]:
        input = check_ids(input, 'input', 1, self.num_tokens)
        embeds = self.embed(input)
        with disable_autocast(embeds):  # The LSTM of torch does not run under autocast on every CPU.
            hidden, state = self.net(embeds, hiddens)
            return self.to_logits(hidden), state

    @checked
    @torch.no_grad()
    def generate(
        self, length: int, seed: Any = None, condition: Any = None, temperature: float = 1e-4, **options: Any
    ) -> Tensor:
        """Continue seed and condition by `length` tokens.

        seed       b s    ids in front
        condition  b c    ids behind them; at least one of the two
        options           the other options of `AutoregressiveWrapper.generate` that choose a token or end a row, behind
                          whose end zeros follow; there is no filter by default
        returns    b n    the last `max_seq_len` tokens of all
        """
        length = as_number(length)
        require(is_int(length) and length >= 0, 'length', length, 'an integer of at least 0')
        if seed is None and condition is None:
            raise ValueError('`seed` is missing: give it, or a `condition`')
        fronts = (('seed', seed), ('condition', condition))
        device = next(self.parameters()).device
        given = ((name, get_ids(ids, name, device)) for name, ids in fronts if ids is not None)
        parts = [check_ids(ids, name, 1) for name, ids in given]
        if len({ids.shape[0] for ids in parts}) > 1:
            raise ValueError(f'`condition` must have {parts[0].shape[0]} rows, as `seed`, got {parts[1].shape[0]}')
        own: Any = {'temperature': temperature, 'filter_logits_fn': identity, **options}
        ids = torch.cat(parts, dim=1)
        choice = TokenSampler.from_all(own, '`generate`', vocabulary=self.num_tokens)
        decoding = Decoding.from_prompts(StateReader(self), choice, [], ids, ids.shape[:1], length)
        decoding.finish()
        return decoding.ids[:, : decoding.length][:, -self.max_seq_len :]


class StateReader:
    """Reads a growing sequence with a recurrent network and its state."""

    def __init__(self, net: SyntheticDataGenerator) -> None:
        self.net, self.state, self.seen = net, None, 0
        self.inputs: dict[str, Any] = {}

    def read(self, sequence: Tensor, pads: None = None) -> Tensor:
        """Return the logits (b, l) after the last token of `sequence` (b, n)."""
        logits, self.state = self.net(sequence[:, self.seen :], self.state)
        self.seen = sequence.shape[1]
        return logits[:, -1]


class UniversalPretrainWrapper(Configurable):
    """Pretrain a language model on synthetic sequences, generated by random networks:  () -> loss.

    A buffer starts with random and constant sequences. Each step replaces some sequences by continuations of the seeds
    of others, computed by the generator, resets some to random or constant ids, and returns the next-token loss of a
    batch. Bloem 2025, arXiv:2506.20057
    """

    def __init__(
        self,
        model: Annotated[nn.Module, 'causal model of tokens, such as TransformerWrapper', instance_of(nn.Module)],
        data_generator: Annotated[
            nn.Module | None,
            'module with `generate(length, condition=, seed=)`; a `SyntheticDataGenerator` if None',
            instance_of(nn.Module) | none,
        ] = None,
        buffer_size: Annotated[int | None, 'number of sequences in the buffer, 20 batches if None', size | none] = None,
        num_reset: Annotated[int, 'sequences reset in each step, half to random and half to constant ids', even] = 20,
        batch_size: Annotated[int, 'batch size', size] = 32,
        seq_len: Annotated[int, 'length of the sequences', size] = 512,
        seed_length: Annotated[int, 'number of tokens of a seed', size] = 8,
        reset_turing_machine_every: Annotated[int, 'steps after which the generator is redrawn; 0: never', count] = 0,
        keep_buffer_on_cpu: Annotated[bool, 'keep the buffer on the CPU when the module is moved', boolean] = False,
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.ar_wrapped = AutoregressiveWrapper(model)
        vocabulary, buffer_size = self.model.num_tokens, buffer_size or 20 * batch_size
        for name, value in (('num_reset', num_reset), ('batch_size', batch_size)):
            if value > buffer_size:
                raise ConfigError(f'`{name}` got {value}, the buffer has {buffer_size} rows (`buffer_size`)')
        if self.model.max_seq_len and seq_len > self.model.max_seq_len:
            raise ConfigError(f'`seq_len` must be at most `max_seq_len`, {self.model.max_seq_len}, got {seq_len}')
        if data_generator is None:
            data_generator = SyntheticDataGenerator(self.model.attn_layers.dim, vocabulary, max_seq_len=seq_len)
        if reset_turing_machine_every and not hasattr(data_generator, 'reset_'):
            raise ConfigError('`reset_turing_machine_every` needs a `data_generator` with a method `reset_`')
        self.data_generator: Any = data_generator
        self.reset_turing_machine_every, self.keep_buffer_on_cpu = reset_turing_machine_every, keep_buffer_on_cpu
        self.seq_len, self.seed_length, self.batch_size = seq_len, seed_length, batch_size
        self.num_reset, self.buffer_size = num_reset, buffer_size
        self.random_sequences_fn = functools.partial(random_sequences, vocabulary, seq_len)
        half = buffer_size // 2
        self.register_buffer('synth_data_buffer', self.random_sequences_fn(half, buffer_size - half))
        self.register_buffer('step', torch.tensor(0))

    keeps_tokens = 'its generator of texts has as many'

    @property
    def device(self) -> torch.device:
        step: Any = self.step
        return step.device

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> UniversalPretrainWrapper:
        kept = self.synth_data_buffer
        super()._apply(fn, recurse)
        if self.keep_buffer_on_cpu and kept.device.type == 'cpu':
            self.synth_data_buffer = kept
        return self

    def random_rows(self, size: int) -> Tensor:
        """Sample different indices of the buffer."""
        return torch.randperm(self.buffer_size, device=self.synth_data_buffer.device)[:size]

    def get_rand_sequences_from_buffer(self, size: int | None = None) -> Tensor:
        """Return a copy of `count` different sequences, `batch_size` if None, on the device of the model."""
        return self.synth_data_buffer[self.random_rows(size or self.batch_size)].to(self.device)

    @checked
    def forward(self, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Renew the buffer, and return the next-token loss of a batch from it, or the sum over `num_items_in_batch`."""
        self.renew()
        items: dict[str, Any] = {} if num_items_in_batch is None else {'num_items_in_batch': num_items_in_batch}
        return self.ar_wrapped(self.get_rand_sequences_from_buffer(), **items)

    @torch.no_grad()
    def renew(self) -> None:
        buffer, rows = self.synth_data_buffer, self.random_rows(self.batch_size)
        seeds = self.get_rand_sequences_from_buffer()[:, : self.seed_length]
        made = self.data_generator.generate(self.seq_len, condition=buffer[rows].to(self.device), seed=seeds)
        if made.shape != (self.batch_size, self.seq_len):
            raise ValueError(
                f'`data_generator` gave ids of shape {tuple(made.shape)}, they must be '
                f'({self.batch_size}, {self.seq_len}): see its `max_seq_len`'
            )
        buffer[rows] = made.to(buffer)
        self.step += 1
        if self.reset_turing_machine_every and int(self.step) % self.reset_turing_machine_every == 0:
            self.data_generator.reset_()
        half = self.num_reset // 2
        buffer[self.random_rows(self.num_reset)] = self.random_sequences_fn(half, half, device=buffer.device)

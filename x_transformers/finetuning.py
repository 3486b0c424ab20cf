"""From a model that has learned to one that learns something else: what is frozen, new heads, rates, tasks as texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.checks import checked
from x_transformers.core.own_modules import known_stack
from x_transformers.features.embeddings import mean_of_real
from x_transformers.features.readouts import get_place, get_token
from x_transformers.flags import (
    ConfigError,
    Configurable,
    did_you_mean,
    format_value,
    instance_of,
    is_number,
    none,
    one_of,
    positive,
    probability,
    size,
)
from x_transformers.flags.unexpected import answering
from x_transformers.training.label_losses import (
    PROBLEMS,
    SINGLE,
    OfClasses,
    a_weight_each,
    check_items_of_labels,
    check_one_class,
    check_terms,
    label_loss,
    loss_with_share,
)
from x_transformers.training.losses import real_tokens
from x_transformers.training.masking import IGNORED
from x_transformers.training.optim import is_norm

__all__ = ['FineTuned', 'TextBatch', 'TextToText', 'finetune', 'freeze_pretrained_']

# parts of the names of parameters
INPUT = ('token_emb', 'embeds', 'project_emb', 'project_in', 'conv_stem', 'patch_to_embedding', 'to_token_emb')
OUTPUT = ('to_logits', 'project_out', 'mlp_head', 'to_classes', 'head')


def is_in_norm(net: nn.Module) -> set[str]:
    return {
        f'{name}.{own}' if name else own
        for name, module in net.named_modules()
        if is_norm(module)
        for own, _ in module.named_parameters(recurse=False)
    }


KINDS: dict[str, Callable[[nn.Module], set[str]]] = {
    'norm': is_in_norm,
    'input': lambda net: names_with(net, lambda part: part in INPUT),
    'output': lambda net: names_with(net, lambda part: part in OUTPUT),
    'pos': lambda net: names_with(net, lambda part: 'pos' in part.split('_') or part.endswith('pos_emb')),
}


def names_with(net: nn.Module, test: Callable[[str], bool]) -> set[str]:
    return {name for name, _ in net.named_parameters() if any(map(test, name.split('.')))}


@answering
@torch.no_grad()
def freeze_pretrained_(
    net: nn.Module, train: Sequence[str] = ('norm', 'input', 'output', 'pos'), renew: Sequence[str] = ()
) -> list[str]:
    """Freeze a model except for some kinds of parameters: norms, input, output, positions.

    train     kinds that go on learning
    renew     kinds that are drawn anew from N(0, .02), biases zero: for inputs and outputs of another kind
    returns   the names of the parameters that learn
    raises    ValueError for an unknown kind, or if nothing would learn

    Lu et al. 2021, arXiv:2103.05247
    """
    for name, given in (('train', train), ('renew', renew)):
        if isinstance(given, str) or not isinstance(given, (list, tuple, set, frozenset)):
            raise TypeError(f'`{name}` must be kinds of parameters, got {format_value(given)}: {", ".join(KINDS)}')
        for kind in given:
            if kind not in KINDS:
                raise ValueError(
                    f'`{name}` must be some of '
                    f'{", ".join(KINDS)}{did_you_mean(str(kind), KINDS)}, got {format_value(kind)}'
                )
    learning = set().union(*(KINDS[kind](net) for kind in train))
    if not learning:
        raise ValueError(f'`train` got {format_value(tuple(train))}, which selects no parameters: nothing would learn')
    new = set().union(*(KINDS[kind](net) for kind in renew)) - is_in_norm(net)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in learning)
        if name in new:
            nn.init.zeros_(parameter) if name.endswith('bias') else nn.init.normal_(parameter, std=0.02)
    return [name for name, _ in net.named_parameters() if name in learning]


# heads


class FineTuned(Configurable):
    """A model with a new linear head on its hidden states.

    tokens   logits of each token, (b, n, l)
    class    logits of the first or last token, or of the mean of all tokens except padding, (b, l)
    span     logits of the start and the end of a span, (b, n, 2)

    The loss of `tokens` and `class` is that of `Classifier`: cross entropy of classes, the mean square of numbers (one
    label, or `problem_type='regression'`), or the binary cross entropy of several labels each.
    """

    def __init__(
        self,
        net: Annotated[nn.Module, 'model with hidden states, such as TransformerWrapper', instance_of(nn.Module)],
        head: Annotated[str, 'type of the head', one_of('tokens', 'class', 'span')] = 'class',
        num_labels: Annotated[int, 'number of labels', size] = 2,
        read: Annotated[
            str | None, "token of the class; None: 'first', or 'last' if causal", one_of('first', 'last', 'mean') | none
        ] = None,
        problem_type: Annotated[
            str | None,
            "loss of the labels; None: 'regression' for one label, else by the labels: whole numbers are classes, "
            'others say of each label how far it holds',
            one_of(*PROBLEMS) | none,
        ] = None,
        label_smoothing: Annotated[float, 'label smoothing: 1 - e for the label, e spread over all', probability] = 0.0,
        class_weights: Annotated[
            Sequence[float] | None, 'weight of each class, as in cross_entropy', a_weight_each | none
        ] = None,
    ) -> None:
        super().__init__()
        self.terms = OfClasses(label_smoothing, class_weights)
        check_one_class(problem_type, num_labels, 'num_labels')
        check_terms(problem_type, num_labels, self.terms, head)
        stack = getattr(net, 'attn_layers', None)
        if stack is None:
            raise ConfigError(f'`net` must be a model around a stack, as TransformerWrapper, got {type(net).__name__}')
        if head == 'span' and num_labels != 2:
            raise ConfigError(f"`num_labels` must be 2 with `head='span'` (start and end), got {num_labels}")
        if head == 'span' and problem_type is not None:
            raise ConfigError(f"`problem_type` got {problem_type!r}, which cannot be combined with `head='span'`")
        self.net, self.kind, self.num_labels, self.problem_type = net, head, num_labels, problem_type
        self.read: Any = get_token(read, stack, "`read='first'`")[0] if head == 'class' else read
        self.head = nn.Linear(stack.dim, num_labels)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    @checked
    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        num_items_in_batch: Tensor | int | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Return logits, or with labels their loss.

        labels    b n, of tokens | b, of classes | b 2, where spans begin and end; -100 where there is no loss; with an
                  axis of labels behind for a number of each
        mask      b n   True for real tokens; a span begins and ends at one of these
        num_items_in_batch   divide the sum of the losses of labels by this number, so that batches add up
        raises          ValueError or TypeError for labels of another shape or kind, or out of range
        """
        check_items_of_labels(labels, num_items_in_batch)
        mask = real_tokens(x, mask, start=inputs.get('seq_start_pos'))
        with AuxLosses() as aux:
            hidden = self.net(x, return_embeddings=True, **({} if mask is None else {'mask': mask}), **inputs)
        if self.kind == 'class':
            hidden = self.pooled(hidden, mask)
        logits = self.head(hidden)
        if self.kind == 'span' and mask is not None:
            logits = logits.masked_fill(~mask.unsqueeze(-1), torch.finfo(logits.dtype).min)
        if labels is None:
            return logits
        return aux.added_to(*loss_with_share(self.loss, logits, labels, mask, num_items_in_batch))

    def pooled(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return the states that classes are read from, (b, d)."""
        if self.read == 'mean':
            return mean_of_real(hidden, mask)
        return hidden[torch.arange(len(hidden), device=hidden.device), get_place(self.read, hidden, mask, None)]

    def loss(
        self, logits: Tensor, labels: Tensor, mask: Tensor | None = None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the mean loss of labels. Those of padding, and of rows of padding alone, do not count."""
        token_mask = mask if mask is None or self.kind == 'tokens' else mask.any(dim=-1)
        if self.kind == 'span':  # each end is one of the places
            logits, token_mask = logits.mT, None if token_mask is None else token_mask.unsqueeze(-1)
        problem = SINGLE if self.kind == 'span' else self.problem_type
        return label_loss(logits, labels, token_mask, problem, num_items_in_batch, terms=self.terms)


@answering
def finetune(
    net: nn.Module,
    head: str = 'class',
    num_labels: int = 2,
    freeze: Iterable[str] = (),
    layer_lr_decay: float = 1.0,
    *,
    lr: float = 1e-4,
    read: str | None = None,
    problem_type: str | None = None,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> tuple[FineTuned, list[dict[str, Any]]]:
    """Add a new head to a model, and return parameter groups for an optimizer of PyTorch.

        lr_l = lr layer_lr_decay^(L - l)         embeddings l = 0, blocks 1 ... L, head L

    head, num_labels, read, problem_type, label_smoothing, class_weights
                             as in `FineTuned`
    freeze                   prefixes of the names of parameters of `net` that are frozen
    returns                  the module, and groups with `params`, `lr` and `name`; each parameter is in one group
    raises                   ValueError for a prefix without parameters, or a decay out of range

    Howard & Ruder 2018, arXiv:1801.06146 (rates of layers)
    """
    if not is_number(layer_lr_decay) or not 0 < layer_lr_decay <= 1:
        raise ValueError(f'`layer_lr_decay` must be above 0 and at most 1, got {format_value(layer_lr_decay)}')
    positive.require('lr', lr)
    names = [name for name, _ in net.named_parameters()]
    prefixes = (freeze,) if isinstance(freeze, str) else tuple(freeze)
    for prefix in prefixes:
        if not any(begins(name, prefix) for name in names):
            raise ValueError(
                f'`freeze` got {format_value(prefix)}, which begins no name{did_you_mean(str(prefix), names)}'
            )
    model = FineTuned(net, head, num_labels, read, problem_type, label_smoothing, class_weights)
    for name, parameter in net.named_parameters():
        if any(begins(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(False)
    depths = get_depths(net)
    last = max(depths.values(), default=0)
    groups: dict[int, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(depths.get(name.removeprefix('net.'), last), []).append(parameter)
    return model, [
        {'params': groups[at], 'lr': lr * layer_lr_decay ** (last - at), 'name': 'embeddings' if at == 0 else f'{at}'}
        for at in sorted(groups)
    ]


def begins(name: str, prefix: Any) -> bool:
    return isinstance(prefix, str) and (name == prefix or name.startswith(f'{prefix}.'))


def get_depths(net: Any) -> dict[str, int]:
    """Return the block of each parameter, counted from 1: 0 before the first, the last one after them."""
    stack = known_stack(net.attn_layers)
    last = -(-len(stack.layers) // max(stack.len_default_block, 1))
    found = {}
    for name, _ in net.named_parameters():
        if name.startswith('attn_layers.layers.'):
            found[name] = int(name.split('.')[2]) // max(stack.len_default_block, 1) + 1
        elif name.startswith('attn_layers.final_norm') or any(part in OUTPUT for part in name.split('.')):
            found[name] = last
        else:
            found[name] = 0
    return found


# tasks as texts


class TextBatch(NamedTuple):
    """What an encoder-decoder reads and says, `model(inputs, targets, mask=mask)`.

    inputs, mask   b n   ids, and which are real
    targets        b m   ids, -100 behind the end
    """

    inputs: Tensor
    mask: Tensor
    targets: Tensor


class TextToText:
    """Every task is a text that is answered by a text; a word in front says which.

        tasks = TextToText(tokenizer, {'reverse': 'reverse: ', 'copy': 'copy: '})
        batch = tasks.batch([('reverse', 'abc', 'cba'), ('copy', 'abc', 'abc')])
        model(batch.inputs, batch.targets, mask=batch.mask)

    tokenizer   one of `x_transformers.tokenizers`, or anything with `encode`, `decode`, `pad_batch`, `bos_id`, `eos_id`
    tasks       name -> what stands in front of its texts, no two alike

    Raffel et al. 2019, arXiv:1910.10683
    """

    def __init__(self, tokenizer: Any, tasks: Mapping[str, str]) -> None:
        for name in ('encode', 'decode', 'pad_batch', 'bos_id', 'eos_id'):
            if not hasattr(tokenizer, name):
                raise TypeError(f'`tokenizer` got {type(tokenizer).__name__}, which has no `{name}`')
        if not isinstance(tasks, Mapping) or not tasks or not all(isinstance(one, str) for one in tasks.values()):
            raise ValueError(f'`tasks` must be a dict from names to texts, one at least, got {format_value(tasks)}')
        if len(set(tasks.values())) < len(tasks):
            raise ValueError('`tasks` got two with the same text in front: nothing would tell them apart')
        self.tokenizer, self.tasks = tokenizer, dict(tasks)

    def source(self, task: str, text: str) -> str:
        if task not in self.tasks:
            raise ValueError(f'`task` got {format_value(task)}, which is unknown{did_you_mean(str(task), self.tasks)}')
        return self.tasks[task] + text

    def batch(self, examples: Sequence[tuple[str, str, str]]) -> TextBatch:
        """Make a batch of examples (task, text, answer).  Raises ValueError for an unknown task or no examples."""
        if not examples:
            raise ValueError('`examples` got none, there must be one at least')
        inputs, mask = self.tokenizer.pad_batch([self.source(task, text) for task, text, _ in examples], eos=True)
        targets, token_mask = self.tokenizer.pad_batch([answer for *_, answer in examples], bos=True, eos=True)
        return TextBatch(inputs, mask, targets.masked_fill(~token_mask, IGNORED))

    def answer(self, model: Any, task: str, texts: Sequence[str], seq_len: int, **options: Any) -> list[str]:
        """Generate the answer of a model, of at most `seq_len` tokens; options are those of `generate`."""
        size.require('seq_len', seq_len)
        inputs, mask = self.tokenizer.pad_batch([self.source(task, text) for text in texts], eos=True)
        device = next(model.parameters()).device
        start = torch.full((len(texts), 1), self.tokenizer.bos_id, device=device)
        options = {'temperature': 0.0, **options}
        found = model.generate(
            inputs.to(device), start, seq_len, mask=mask.to(device), eos_token=self.tokenizer.eos_id, **options
        )
        return [self.tokenizer.decode(cut_text(row, self.tokenizer.eos_id)) for row in found.tolist()]


def cut_text(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids

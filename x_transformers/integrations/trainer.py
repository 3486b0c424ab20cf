"""Language models with the call of `transformers.Trainer` and PEFT: keyword batches in, named outputs out.

Neither package is imported here.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.core.checks import check_ids, checked
from x_transformers.core.modes import maps_apart
from x_transformers.flags import format_value, warn_once
from x_transformers.flags.configurable import Config, DerivedConfig

# what such callers say as a matter of course, and what of it asks for nothing
SAID = {'inputs_embeds': (None,), 'past_key_values': (None,), 'use_cache': (None, True, False)}
SAID |= {f'output_{what}': (None, False) for what in ('attentions', 'hidden_states', 'router_logits')}
LABELS_TAKEN = (
    '`labels` were taken out of the batch: `label_smoothing_factor` of a Trainer does so, and compares each label with '
    'the logits of its own place, which have read it; give `CausalLM(..., label_smoothing=...)`. (A loss of your own '
    'shifts them itself.)'
)


class Output(dict):
    """Dict whose entries are also attributes, and available by number:  `output.loss`, `output['loss']`,
    `output[0]`.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f'the output has no {name!r}, it has {", ".join(map(repr, self))}') from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)


class NamedConfig(Config):
    """Configuration with the type of its model, which is not one of its entries."""

    model_type = 'x-transformers'


class DerivedNamedConfig(DerivedConfig):
    """`NamedConfig` of a model; with modules of the user's, which JSON cannot hold, only what class it is."""

    def __get__(self, instance: Any, cls: type) -> Any:
        if instance is None:
            return self
        try:
            return NamedConfig(super().__get__(instance, cls))
        except ValueError:  # callers ask without a wish to build the model again
            return NamedConfig({'class': cls.__name__})


class CausalLM(AutoregressiveWrapper):
    """`AutoregressiveWrapper` with the call of a causal language model of `transformers`. The weights keep their names.

        model = CausalLM(TransformerWrapper(...))
        Trainer(model, ..., train_dataset=[{'input_ids': ..., 'labels': ...}, ...]).train()

    Generation is that of `AutoregressiveWrapper`, and so is `label_smoothing`: a `Trainer` would not shift the labels.
    """

    config = DerivedNamedConfig()
    main_input_name, generation_config = 'input_ids', None  # which such callers look for
    loss_type = 'ForCausalLM'  # a `Trainer` counts targets from the second on: the first one is predicted from nothing

    @checked
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return logits, and the mean loss of predicting each label from the tokens before it, in nats.

        input_ids           b n     token ids
        attention_mask      b n     1 for what is read, 0 for padding, which neither is a target nor has one
        labels              b n     the same ids, `ignore_index` for what is no target; without labels there is no loss
        num_items_in_batch          in training, divide the sum of the losses by this number of several such batches
        return_dict                 False for a tuple
        **kwargs                    to the net
        returns                     an `Output`: `loss` if there are labels, and `logits` (b, n, l), but in training
                                    with labels, where they are never held
        raises                      ValueError or TypeError for inputs of another shape or kind
        """
        for name, nothing in SAID.items():
            if not any(kwargs.get(name) is value for value in nothing):
                raise ValueError(
                    f'`{name}` got {format_value(kwargs[name])}: this model takes `input_ids` and gives logits'
                )
            kwargs.pop(name, None)
        for name, given in (('attention_mask', attention_mask), ('labels', labels)):
            if given is not None and given.shape != input_ids.shape:
                shapes = f'shape {tuple(given.shape)}, it must be that of `input_ids`, {tuple(input_ids.shape)}'
                raise ValueError(f'`{name}` got {shapes}')
        mask = None if attention_mask is None else attention_mask.bool()
        kwargs |= {} if mask is None else {'mask': mask}
        if labels is None:
            if self.training and num_items_in_batch is not None:
                warn_once(LABELS_TAKEN)
            output = Output(logits=self.net(check_ids(input_ids, 'input_ids'), **kwargs))
        else:
            labels = labels if mask is None else labels.masked_fill(~mask | ~F.pad(mask, (1, -1)), self.ignore_index)
            kwargs |= {'num_items_in_batch': num_items_in_batch} if self.training else {}
            with maps_apart():  # only the logits are used, so the fused kernel runs
                found = super().forward(input_ids, labels=labels, return_outputs=not self.training, **kwargs)
            loss, (_, trace) = (found, (None, None)) if self.training else found
            output = Output(loss=loss) if trace is None else Output(loss=loss, logits=trace.logits)
        return tuple(output.values()) if return_dict is False else output

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Return the inputs of a call. PEFT requires this method; generation does not use it."""
        return {'input_ids': input_ids, **kwargs}

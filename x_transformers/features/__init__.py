"""The rooms: one class per paper, in the file of what it touches, in the order in which features run.

levels        the stages of each level, and what a feature may do there
positions     where tokens are: vectors added to the input, windows
rotary        rotations of queries and keys by their positions
frequencies   how fast these turn, and how that is stretched for longer contexts
biases        biases of scores by their positions: ALiBi, T5, dynamic
tables        what positions are made of: tables that keep their digits
sources       what becomes queries, keys and values: memories, extra keys, value residuals
heads         per-head transforms of queries and keys
operands      what the kernel multiplies, and which kernel: distances, exponentials, packed documents
contextual    what a query sees or counts by content: positions in context, selection
scores        from logits to weights
outputs       gates and scales on what attention gives
norms         norms and scales of a branch
residuals     how a branch joins the stream
streams       several streams, and how layers read and write them
integrators   what a branch reads besides its stream
feedforward   activations and gated units
experts       feedforwards of which each token goes through a few
reversible    layers that are computed back in the backward pass
halting       how long a token is computed
layouts       which branch runs when
embeddings    tokens, extra ids, memory and cls tokens
readouts      from hidden states to logits
"""

from x_transformers.core.kinds import KINDS, Kind
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.levels import AttentionFeature, FeedForwardFeature, ModelFeature, StackFeature
from x_transformers.flags import PerLayer, PerToken, Ring, Running, extend, flag

__all__ = [
    'ATTENTION',
    'FEEDFORWARD',
    'KINDS',
    'MODEL',
    'STACK',
    'AttentionFeature',
    'FeedForwardFeature',
    'Kind',
    'ModelFeature',
    'PerLayer',
    'PerToken',
    'Ring',
    'Running',
    'StackFeature',
    'extend',
    'flag',
]

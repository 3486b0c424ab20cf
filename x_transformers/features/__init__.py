"""The rooms: one class per paper, in the file of what it touches, in the order in which features run.

levels          the stages of each level, and what a feature may do there
catalogue       all features, in the order in which they run
positions       where tokens are: vectors added to the input, windows
layer_positions   absolute positions in every layer
rotary          rotations of queries and keys by their positions
frequencies     how fast these turn, and how that is stretched for longer contexts
polar           positions as angles of a complex number per feature
biases          biases of scores by their positions: ALiBi, T5, dynamic
data_positions  biases of scores by their positions and by what tokens say
relative        vectors for distances, which queries see and values get
xl              what queries look for at a distance
two_streams     tokens asked for in an order, and whether two are of one segment
untied          scores of positions apart from those of contents
rescaled        scores times a function of the distance
disentangled    relative positions with queries and keys of their own
tables          what positions are made of: tables that keep their digits
spans           how far back each head looks, learned
segments        how far back queries see in segments with memories
sources         what becomes queries, keys and values: memories, extra keys, value residuals
projections     their projections: biases, bounds, norms, and the scale of their products
latents         queries, keys and values from narrow latents
converting      built models with another pattern, or with fewer heads of keys
heads           per-head transforms of queries and keys
head_dims       heads of different widths
operands        what the kernel multiplies, and which kernel: distances, exponentials, packed documents
documents       several documents in one row, which know nothing of one another
chunks          feedforwards in slices of the tokens
contextual      what a query sees or counts by content: positions in context, selection
scores          from logits to weights
differential    two maps of a head, one taken off the other
linear          products of features in place of scores; attention-free transformers
patterns        some keys of each query, by their places
clusters        queries that meet the keys of their cluster alone
linformer       a few learned sums in place of the keys
recurrent       modules with a state in place of attention
hybrid          a sequence module beside attention
memory          what is kept of earlier segments: compressed memories, keys to look up
outputs         gates and scales on what attention gives
block_outputs   what a model would give after each block
early           what early releases computed: biases, rotated values
norms           norms and scales of a branch
residuals       how a branch joins the stream
gates           gates in place of residual sums
streams         several streams, and how layers read and write them
integrators     what a branch reads besides its stream
feedforward     activations and gated units
exits           tokens that leave a stack after one of its blocks
experts         feedforwards of which each token goes through a few
recompute       what is computed again in the backward pass
resizing        more or fewer tokens, in place
reversible      layers that are computed back in the backward pass
halting         how long a token is computed
convolutions    along the sequence, behind attention
universal       signals of place and run, and convolutions between attentions
passes          how often a model runs its stack
layouts         which branch runs when
embeddings      tokens, extra ids, memory and cls tokens
abilities       what a model around a stack says of itself: whether it can be cached, and how far
derived         attributes that code of others reads and assigns, under the names of the original
pooling         from a sequence to one vector or a few
readouts        from hidden states to logits
"""

from x_transformers.core.branches import KINDS, Kind
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.levels import AttentionFeature, FeedForwardFeature, ModelFeature, StackFeature
from x_transformers.flags import Input, PerLayer, PerToken, Ring, Running, extend, flag
from x_transformers.flags.contracts import BareKeys

__all__ = [
    'ATTENTION',
    'FEEDFORWARD',
    'KINDS',
    'MODEL',
    'STACK',
    'AttentionFeature',
    'BareKeys',
    'FeedForwardFeature',
    'Input',
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

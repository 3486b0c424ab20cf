"""Features: one class per paper, in the file of the part that it changes, in the order in which features run.

levels          the stages of each level, and what a feature may do there
catalogue       all features, in the order in which they run
positions       vectors of positions that are added to the input; tables and angles of any kind of position
windows         how many keys before and after itself a query attends to
relative        vectors per distance, scores rescaled by the distance, positions of Transformer-XL
untied          scores of positions apart from those of contents
disentangled    relative positions with queries and keys of their own
layer_positions   absolute positions in every layer
rotary          rotations of queries and keys by their positions
frequencies     how fast these turn, and how that is stretched for longer contexts
polar           positions as angles of a complex number per feature
biases          biases of scores by their positions: ALiBi, T5, dynamic
window_biases   biases of pairs of pixels in a window, from their distance on a log scale
data_positions  biases of scores by their positions and by what tokens say
two_streams     tokens asked for in an order, and whether two are of one segment
spans           how far back each head looks, learned
sources         what becomes queries, keys and values: memories, extra keys, value residuals
latents         queries, keys and values from narrow latents
shared_keys     keys and values of an earlier layer
converting      built models with another pattern, or with fewer heads of keys
heads           projections of queries, keys and values, and norms of their heads
head_dims       heads of different widths
operands        what the kernel multiplies, and which kernel: distances, exponentials, packed documents
documents       several documents in one row, which know nothing of one another
contextual      what a query sees or counts by content: positions in context, selection
scores          from logits to weights; differential attention
temperature     queries scaled by their position
linear          products of features in place of scores; attention-free transformers
patterns        some keys of each query, by their places
clusters        queries that meet the keys of their cluster alone
selected        keys that each query chooses: blocks by their means, tokens by a small scorer
linformer       a few learned sums in place of the keys
hybrid          sequence modules beside attention or in its place
memory          what is kept of earlier segments: compressed memories, keys to look up
outputs         gates and scales of the attention output; computations of early releases
norms           norms and scales of a branch
residuals       how a branch joins the stream
gates           gates in place of residual sums
streams         several streams, and how layers read and write them
per_layer_embeddings   embeddings of tokens for each block
integrators     what a branch reads besides its stream
feedforward     activations, gated units, chunks of tokens
exits           tokens that leave a stack after one of its blocks; outputs of each block
experts         feedforwards of which each token goes through a few
recompute       checkpointed and reversible layers, which are recomputed in the backward pass
resizing        more or fewer tokens, in place
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
mtp             modules that predict the tokens after the next one
"""

from x_transformers.core.branches import KINDS, Kind
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.levels import AttentionFeature, FeedForwardFeature, ModelFeature, StackFeature
from x_transformers.flags import Input, PerLayer, PerToken, RecurrentState, Ring, extend, flag
from x_transformers.flags.contracts import BareKeys
from x_transformers.flags.renamed import old_functions

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
    'RecurrentState',
    'Ring',
    'StackFeature',
    'extend',
    'flag',
]

# A name of earlier versions, which features of users may import for one minor version.
__getattr__ = old_functions(__name__, {'Running': 'RecurrentState'})

"""The engine of sparse patterns: a few keys for each query, never all of them.

    layouts    which queries and keys of a layout meet, as indices
    formula    attention of what is gathered by them, for everything
    pieces     the same without gathering where neighbours are read: views of queries and keys
    flash      these by torch's fused kernel on a CPU, with a gradient of its own
    flexed     these by torch's FlexAttention on a GPU, where whole blocks are seen
    engine     the way of a call through them
    bands      windows of masks, which need no pattern

Positions count the tokens from the first one, of memories and cache too. Keys in front of them, which other features
put there, are one more branch. What the branches find is merged by their log-sums.
"""

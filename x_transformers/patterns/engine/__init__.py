"""Engine of sparse patterns: attention to a few keys of each query, without the scores of all.

    attention  a call with patterns: which heads, which positions, which branches
    placement  which tokens of a call a pattern counts, and from where
    layouts    which queries and keys of a layout meet, as indices
    formula    attention to keys that are gathered by these indices; for every device and derivative
    pieces     the same without gathering where neighbours are read: views of queries and keys
    flash      these by torch's fused kernel on a CPU, with a gradient of its own

Positions count the tokens from the first one, memories and cache included. Keys that features prepend are one more
branch. The results of the branches are merged by their log-sums. FlexAttention for patterns is in `kernels/flex.py`,
windows of masks are in `kernels/operators.py`.
"""

"""Engine of sparse patterns: attention of queries to few keys each, without the scores of all keys.

    attention  a call with patterns: its heads, positions and branches
    placement  the tokens of a call that have positions in a pattern
    layouts    queries and keys of a layout, as indices
    formula    attention to keys that are gathered by these indices; for every device and derivative
    pieces     the same without gathering where neighbours are read: views of queries and keys
    flash      these by torch's fused kernel on a CPU, with a gradient of its own

Positions count the tokens from the first one, memories and cache included. Keys that features prepend are one more
branch. The results of the branches are merged by their log-sums. FlexAttention for patterns is in `kernels/flex.py`,
windows of masks are in `kernels/operators.py`.
"""

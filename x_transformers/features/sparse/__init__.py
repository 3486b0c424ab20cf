"""Sparse attention by positions, with the patterns of `x_transformers.patterns`.

    pattern    `attn_sparse_pattern`, on the engine of `kernels/patterns`
    held       what all that hold a pattern read of it
    drawn      what is drawn for each layer
    converting `sparsify_`, which gives a built model a pattern

What belongs here: features of group D, which choose who sees whom by places, and what comes with that.
"""

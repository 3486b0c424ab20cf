"""Ways to compute attention: by its formula, by fused kernels of torch, in blocks of queries, by FlexAttention.

A kernel that one paper alone uses is beside it, in `features`.
"""

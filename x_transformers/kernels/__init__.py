"""Kernels that compute attention: the formula, fused kernels of torch, blocks of queries, FlexAttention.

Kernels of a single paper are in `features`.
"""

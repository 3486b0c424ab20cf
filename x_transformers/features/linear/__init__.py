"""Attention without a softmax over keys, so that the past is a state of fixed size.

attention    `attn_kernel`: dot products of feature maps
kernel       its sums, for any feature maps
delta        states that what is written there depends on: the delta rule
aft          attention-free transformers; their sums are in `aft_sums`
gates        how strongly a token is written, and what it leaves of the past
maps         what makes features of queries and keys
"""

"""Linear attention: dot products of feature maps instead of a softmax, so that the past is a state of fixed size.

    attention    `attn_kernel`, on the engine of `kernels/linear`
    gates        how strongly a token is written, and what it leaves of the past
    maps         what makes features of queries and keys

What belongs here: features of group F whose past is one state, and their feature maps.
"""

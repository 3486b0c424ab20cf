"""Ways to compute attention: by its formula, by fused kernels of torch, in blocks of rows, by FlexAttention;
sparse patterns;
and products of tokens with the weights of their experts."""

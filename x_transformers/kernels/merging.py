"""`merge_outputs`, which kernels of users put disjoint keys together by."""

from x_transformers.core.merging import merge_outputs

__all__ = ['merge_outputs']

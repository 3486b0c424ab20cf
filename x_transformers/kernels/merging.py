"""`merged`, which kernels of users put disjoint keys together by."""

from x_transformers.core.merging import merged

__all__ = ['merged']

"""`merge_outputs` for kernels of users: merge attention to disjoint sets of keys."""

from x_transformers.core.merging import merge_outputs
from x_transformers.flags.renamed import old_functions

__all__ = ['merge_outputs']

# The name of earlier versions, which kernels of users may import for one minor version.
__getattr__ = old_functions(__name__, {'merged': 'merge_outputs'})

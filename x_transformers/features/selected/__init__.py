"""Trainable sparse attention: each query chooses the keys that it attends to by their content.

`kernel.py` attends to chosen blocks, `chosen.py` has the base class. Each technique is a module.
"""

from x_transformers.features.selected.indexer import SparseIndexer
from x_transformers.features.selected.moba import MoBA

__all__ = ['MoBA', 'SparseIndexer']

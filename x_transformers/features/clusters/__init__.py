"""Attention within clusters of tokens, which depend on their content: `cluster='lsh'`, `'routing'`, `'sinkhorn'`.

Each clustering method is a module with a class derived from `Clusters` (in `clusters.py`, which declares all keywords).
Sorting, chunks and sums are in `kernel.py`.
"""

from x_transformers.features.clusters.clusters import Clusters
from x_transformers.features.clusters.lsh import LSH, SharedQK
from x_transformers.features.clusters.routing import Routing
from x_transformers.features.clusters.sinkhorn import Sinkhorn

__all__ = ['LSH', 'Clusters', 'Routing', 'SharedQK', 'Sinkhorn']

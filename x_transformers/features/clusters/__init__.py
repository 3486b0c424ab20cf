"""Attention inside of clusters, which are formed by what tokens say: `cluster='lsh'`, `'routing'`, `'sinkhorn'`.

What belongs here: a module for each way to form clusters, a class in it derived from `Clusters` (of `clusters.py`,
where the keywords of all of them are declared). Sorting, chunks and sums are in `kernels/clusters.py`, mixes
of blocks in `kernels/sinkhorn.py`.
"""

from x_transformers.features.clusters.clusters import Clusters
from x_transformers.features.clusters.lsh import LSH, SharedQK
from x_transformers.features.clusters.routing import Routing
from x_transformers.features.clusters.sinkhorn import Sinkhorn

__all__ = ['LSH', 'Clusters', 'Routing', 'SharedQK', 'Sinkhorn']

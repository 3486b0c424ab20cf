"""Datastores of keys and tokens on the disk, their search, and models that retrieve from them.

`python -m x_transformers.memory build CHECKPOINT STORE --text FILE` builds one.
"""

from x_transformers.memory.datastore import KNNDatastore
from x_transformers.memory.knn_lm import KNNLMWrapper
from x_transformers.memory.search import Neighbours
from x_transformers.memory.spalm import SPALMWrapper

__all__ = ['KNNDatastore', 'KNNLMWrapper', 'Neighbours', 'SPALMWrapper']

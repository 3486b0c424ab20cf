"""Losses, and what optimisers ask of a model."""

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.training.token_loss import linear_cross_entropy

__all__ = ['AuxLosses', 'linear_cross_entropy']

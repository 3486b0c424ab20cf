"""Losses, schedules and optimizer helpers."""

from x_transformers.core.aux_losses import AuxLosses, NamedLosses
from x_transformers.training.entmax import entmax_loss, entmax_measures, entmax_weights
from x_transformers.training.token_loss import linear_cross_entropy

__all__ = ['AuxLosses', 'NamedLosses', 'entmax_loss', 'entmax_measures', 'entmax_weights', 'linear_cross_entropy']

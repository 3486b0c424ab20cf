"""Losses, schedules and optimizer helpers."""

from x_transformers.core.aux_losses import AuxLosses, NamedLosses
from x_transformers.training.token_loss import linear_cross_entropy

__all__ = ['AuxLosses', 'NamedLosses', 'linear_cross_entropy']

"""Learning rates over the steps of a training: see `x_transformers.training.schedules`, whose names stand here."""

from x_transformers.training.schedules import noam, warmup

__all__ = ['noam', 'warmup']

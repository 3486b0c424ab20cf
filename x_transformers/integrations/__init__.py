"""Adapters between models and other programs: trainers, fine-tuning, evaluation.

One module each, imported by its name, with the package that it adapts to: `from x_transformers.integrations.trainer
import CausalLM`.
"""

"""Adapters between a model and programs around it: trainers, fine-tuning, evaluation.

One module each, imported by its name, with the package that it adapts to: `from x_transformers.integrations.trainer
import CausalLM`.
"""

"""Ways to train, one module each."""

"""Training objectives, one module each."""

"""What the examples share: options and refusals, texts and their tokens, folders of runs."""

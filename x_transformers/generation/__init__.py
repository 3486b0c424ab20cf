"""Generation of text: incremental forward passes, sampling, speculative decoding, paged batches and saved prompts."""

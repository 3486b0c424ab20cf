"""From logits to text: readers, the choice of tokens, sampling, speculative decoding, prompts on disk."""

"""State of a forward pass (calls, caches, intermediates), checks of its inputs, routing of keywords, and files."""

"""What a model keeps of earlier segments beside their last hidden states: compressed ones, keys and values to look up.

What belongs here: memories that outlive a segment. What joins tokens within one has rooms of its own.
"""

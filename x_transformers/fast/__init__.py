"""Short cuts for plain stacks, written out: layers, the decode step, packed weights. Opted into by exact type."""

"""What a pass carries: calls, buffers, traces, checks of what comes in, the routing of keywords."""

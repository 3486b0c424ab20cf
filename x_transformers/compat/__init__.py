"""Old names, and functions that other code imports."""

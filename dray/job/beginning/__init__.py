"""A job begins, or goes on: which one it is, and whether it is still the same."""

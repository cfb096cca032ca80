"""The way of a model to a node: which chunk is fetched from where, and verified."""

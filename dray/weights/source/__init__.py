"""A model where it comes from: what it consists of, and whether that can be a model."""

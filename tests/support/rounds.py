"""How long chaos goes on."""

MANY_ROUNDS = 5
"""``--chaos-rounds`` from which on long tests run too."""

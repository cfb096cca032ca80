"""One shard on one replica: a place for it, rows fed and committed, and what follows an early end."""

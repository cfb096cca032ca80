"""A job ends: its files, its report, its bill, and what later runs may learn of it."""

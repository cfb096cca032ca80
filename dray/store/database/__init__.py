"""The databases below the store: how they are opened, locked and retried, and the tables."""

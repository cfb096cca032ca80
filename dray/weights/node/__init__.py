"""A model on a node: the folder it fills, what is ready of it, and the agent that serves it to peers."""

"""Engines and the replica around them. vLLM is imported only inside a replica's process."""

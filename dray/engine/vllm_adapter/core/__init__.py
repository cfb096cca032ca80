"""vLLM's engine core, its processes and its scheduler."""

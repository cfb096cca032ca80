"""Each kind of request by vLLM's own serving classes."""

"""Images, sounds and videos on their way into vLLM."""

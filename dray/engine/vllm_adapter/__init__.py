"""vLLM as an engine: its own OpenAI classes, driven by a step loop."""

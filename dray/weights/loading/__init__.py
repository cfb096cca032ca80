"""Weights inside an engine's process: beside ``dray/engine``, the only code that imports PyTorch and vLLM."""

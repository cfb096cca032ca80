"""Models that read an image, or a video, of a prompt in one step of the engine: the step has to hold it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LARGEST = 4096
"""Tokens: an image of PaliGemma's largest size. A video of Gemma 4 has up to 2,496 (32 frames of 78)."""
_FAMILIES = ("bagel", "gemma3", "molmo2", "moondream3", "paligemma")


def least_tokens(config: Mapping[str, Any]) -> int:
    """The tokens that a step of the model of a ``config.json`` has to hold; 1 where any number will do.

    vLLM (``is_mm_prefix_lm``) cuts no image whose tokens all see each other. It does not start with a
    ``max_num_batched_tokens`` below the largest one, whatever the rows hold.
    """
    text = config.get("text_config")
    sees = text.get("use_bidirectional_attention") == "vision" if isinstance(text, Mapping) else False
    return _LARGEST if sees or config.get("model_type") in _FAMILIES else 1

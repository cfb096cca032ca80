"""How long a request may be: what vLLM 0.32 makes of a model's positions (``vllm/config/model.py``)."""

from __future__ import annotations

from collections.abc import Mapping

from dray.planner.models.fields import Fields

_LONG = ("longrope", "su")
_COUNTED = (*_LONG, "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""With these, ``max_position_embeddings`` has the factor in it already."""
_MOST = 10_000  # no factor comes near it; a float holds the product


def lengths_of(fields: Fields, kind: str) -> tuple[int, int]:
    """Tokens of a request that vLLM takes by itself, and those that ``max_model_len`` may name."""
    most = fields.optional_count("model_max_length", 0) or fields.count("max_position_embeddings")
    rope = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return most, most
    name, factor = rope.get("rope_type") or rope.get("type"), rope.get("factor")
    if name in _LONG:
        return min(most, fields.optional_count("original_max_position_embeddings", most) or most), most
    if (
        name not in _COUNTED
        and isinstance(factor, int | float)
        and 0 < factor < _MOST
        and "gemma3" not in kind
    ):
        most = int(most * factor)
    return most, most

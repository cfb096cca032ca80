"""Which layers see a window of the tokens alone."""

from __future__ import annotations

from dray.planner.models.families import Family
from dray.planner.models.fields import Fields

WINDOWS = ("sliding_window", "attention_chunk_size")
"""The fields with the size of a window. A layer with chunks sees its own one: at most as much."""


def windowed_layers(fields: Fields, family: Family, layers: int) -> int:
    """How many of the layers have a window; 0 where there is none."""
    if all(fields.get(name) is None for name in WINDOWS) or fields.get("use_sliding_window") is False:
        return 0
    kinds = fields.strings("layer_types")
    if kinds:
        return sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds[:layers])
    if fields.get("use_sliding_window"):
        return max(0, layers - fields.optional_count("max_window_layers", layers))
    period = fields.optional_count("sliding_window_pattern", family.window_period) or 1
    return layers if period == 1 else layers - layers // period

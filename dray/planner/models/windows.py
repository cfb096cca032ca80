"""Which layers see a window of the tokens alone."""

from __future__ import annotations

from dray.planner.models.families import Family
from dray.planner.models.fields import Fields


def windowed_layers(fields: Fields, family: Family, layers: int) -> int:
    """How many of the layers have the window of ``sliding_window``; 0 where there is none."""
    if fields.get("sliding_window") is None or fields.get("use_sliding_window") is False:
        return 0
    kinds = fields.strings("layer_types")
    if kinds:
        return sum(kind == "sliding_attention" for kind in kinds[:layers])
    if fields.get("use_sliding_window"):
        return max(0, layers - fields.optional_count("max_window_layers", layers))
    period = fields.optional_count("sliding_window_pattern", family.window_period) or 1
    return layers if period == 1 else layers - layers // period

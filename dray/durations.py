"""Stretches of time as users write them."""

from __future__ import annotations

import re

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float | None:
    """``45s``, ``90m``, ``1.5h`` or ``7d`` in seconds; None where it is not written so."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    return float(found[1]) * _UNITS[found[2]] if found else None

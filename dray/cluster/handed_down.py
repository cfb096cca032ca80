"""Environment variables of the driver that processes on other nodes get too."""

from __future__ import annotations

import os

_NAMES = (
    "DRAY_TRACE_DIR",
    "DRAY_MODEL_CACHE",
    "DRAY_BUNDLE_CACHE",
    "DRAY_HUGE_PAGES",
    "VLLM_",
    "HF_",
)  # or how they begin


def handed_down() -> dict[str, str]:
    """Those that are set here, by name."""
    return {name: value for name, value in os.environ.items() if name.startswith(_NAMES)}

"""Environment variables of the driver that processes on other nodes get too.

Never a secret: Ray writes them into its log files. Nodes have their own, or a block gives them.
"""

from __future__ import annotations

import os

_NAMES = (
    "DRAY_TRACE_DIR",
    "DRAY_TRIGGER",
    "DRAY_HISTORY_DIR",
    "DRAY_NO_WAIT",
    "DRAY_MODEL_CACHE",
    "DRAY_BUNDLE_CACHE",
    "DRAY_HUGE_PAGES",
    "VLLM_",
    "HF_",
)  # or how they begin
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")  # in a name: HF_TOKEN, HF_TOKEN_PATH, VLLM_API_KEY


def handed_down() -> dict[str, str]:
    """Those that are set here, by name."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_NAMES) and not any(word in name for word in _SECRET)
    }

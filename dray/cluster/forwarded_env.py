"""Environment variables of the driver that processes on other nodes get too.

Never a secret: Ray writes them into its log files. Nodes have their own, or a block gives them.
"""

from __future__ import annotations

import os
import re

from dray.storage.addresses import without_secret

_NAMES = (
    "DRAY_TRACE_DIR",
    "DRAY_TRIGGER",
    "DRAY_HISTORY_DIR",
    "DRAY_NO_WAIT",
    "DRAY_MODEL_CACHE",
    "DRAY_HUGE_PAGES",
    "VLLM_",
    "HF_",
)  # or how they begin
# Addresses of one machine: vLLM would listen at the driver's on every node, or tell others to connect there.
_OF_ONE_NODE = frozenset({"VLLM_HOST_IP", "VLLM_HOST_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"})
# As hubs and clouds give them, and any pair of a secret's name and a value.
_TOKEN = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b|\bey[A-Za-z0-9_-]{10,}\.ey|\bBearer\s"
    r"|(token|secret|password|passwd|api_?key)\W{0,3}[=:]",
    re.IGNORECASE,
)
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD")  # in a name: HF_TOKEN, HF_TOKEN_PATH, VLLM_API_KEY


def handed_down() -> dict[str, str]:
    """The variables that are set here, by name.

    Left out are addresses of this machine, names like a secret's, and values that hold one.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_NAMES)
        and name not in _OF_ONE_NODE
        and not any(word in name for word in _SECRET)
        and not _holds_secret(value)
    }


def _holds_secret(value: str) -> bool:
    """Whether it is an address with a user, a password or a signature, or looks like a token."""
    return without_secret(value) != value or _TOKEN.search(value) is not None

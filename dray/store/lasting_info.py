"""Keys of a job's ``info`` that stay when the job gets other content: they say what lies in its folders.

All others say something of the content itself: its rows, its weights, its engines, what its runs decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

IDENTITY = "identity"
"""What tells the job from others of its name; markers in output folders have it."""

OUTPUTS = "outputs"
"""All output folders that its runs have taken."""

OF_OTHERS = "of_others"
"""The output folder that was another's, until the job publishes there."""

UPLOADS = "uploads"
"""The uploads that a driver has begun: its ``epoch``, and ``ids`` by URI. None once all are over."""

LASTING = (IDENTITY, OUTPUTS, OF_OTHERS, UPLOADS)


def uploads_of(info: Mapping[str, Any]) -> dict[str, str]:
    """The uploads of a job's ``info`` that may not be over: their ids by URI."""
    noted = info.get(UPLOADS) or {}
    return dict(noted.get("ids", {}))

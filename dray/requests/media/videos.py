"""Videos in the messages of a chat: what a row may say of them."""

from __future__ import annotations

from dray.requests.media.medium import VIDEOS
from dray.requests.media.parts import PartForm

VIDEO = PartForm(
    medium=VIDEOS,
    type="video_url",
    plain="video",
    names=("url", "video", "path", "video_url"),
    most=256,
)
"""vLLM's form of a video, and the others that rows may give."""

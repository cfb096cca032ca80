"""What of a source makes a job another one: how its rows become requests."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

from dray.kinds import Kind
from dray.requests.row_shape import OPEN_SHAPE, RowShape
from dray.requests.sources import JsonlBatch, Rows, Source

_LATER = (
    {"messages_column"},
    {"reorder_fields"},
    {"fields"},
    {"image_column", "image_root"},
    {"document_column"},
    {"audio_column", "audio_root"},
    {"video_column", "video_root"},
    {"keep_columns"},
)
"""Fields that came with later versions of dray, oldest first, in the order of :class:`RowShape`.

A shape is described without the newest of them that it does not set, as versions before them described it.
"""


def template_digest(source: Source) -> str:
    """A digest of how rows become requests, for the job's fingerprint; equal for equal shapes."""
    if isinstance(source, JsonlBatch) and replace(source.shape, kind=Kind.CHAT) == OPEN_SHAPE:
        return "openai-batch"
    described = _described(source.shape)
    if isinstance(source, Rows) and source.delimiter is not None:
        described += f", delimiter={source.delimiter!r}"
    if isinstance(source, Rows) and source.quoting == "none":  # csv makes the rows that are made without it
        described += ", quoting='none'"
    return hashlib.sha256(described.encode()).hexdigest()


def _described(shape: RowShape) -> str:
    unset = set()
    for names in reversed(_LATER):
        if any(getattr(shape, name) != getattr(OPEN_SHAPE, name) for name in names):
            break
        unset |= names
    told = [f"{one.name}={getattr(shape, one.name)!r}" for one in fields(shape) if one.name not in unset]
    return f"RowShape({', '.join(told)})"

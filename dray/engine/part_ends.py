"""A note of which node an engine on several nodes died on: by its replica, for the driver, in Ray's store.

The replica's process ends at once, and Ray itself says only where that process was.
"""

from __future__ import annotations

from contextlib import suppress

_KEY = "dray/part-end/"


def note_end(replica: str, node: str) -> None:
    """The engine of this replica died with its part on this node. Does what it can."""
    from ray.experimental.internal_kv import _internal_kv_put

    with suppress(Exception):  # Ray's head is away: the replica's own node is held to be the place
        _internal_kv_put(f"{_KEY}{replica}".encode(), node.encode())


def take_end(replica: str) -> str | None:
    """The node that was noted, and the note is gone; None for none."""
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get

    key, found = f"{_KEY}{replica}".encode(), None
    with suppress(Exception):
        found = _internal_kv_get(key)
        if found:
            _internal_kv_del(key)
    return found.decode() if found else None

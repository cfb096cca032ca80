"""The memory over which the ranks of an engine talk: none of it stays after engines that were killed.

vLLM makes it with Python's ``SharedMemory``, 25 to 168 MB at a time, and a helper process of Python's removes
it. Ray and dray end that helper together with an engine. So its name says which process made it, and the next
engine of this user on the node removes that of processes that are gone.
"""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from dray.owner import is_gone, owner_name

PREFIX = "dray-ranks~"
_FOLDER = Path("/dev/shm")  # noqa: S108  where Linux has shared memory by its name
_SLASH = "~"  # in an owner's name, for a name of shared memory has none


def name_after_owner() -> None:
    """Name shared memory after this process, from now on, where the process makes it without a name."""
    library: Any = shared_memory
    library._make_filename = _named  # there is no public way, and vLLM gives no name


def _named() -> str:
    return f"/{PREFIX}{owner_name().replace('/', _SLASH)}"


def remove_unowned() -> None:
    """Remove what processes made that are gone. Processes that still have it open keep it until they end."""
    for path in _FOLDER.glob(f"{PREFIX}*"):
        if is_gone(path.name.removeprefix(PREFIX).replace(_SLASH, "/")):
            with suppress(OSError):  # another engine was faster, or it is another user's
                path.unlink()

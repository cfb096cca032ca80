"""Files by URI: on local disks and in object stores, behind the same few functions."""

from __future__ import annotations

from dray.storage.objects import ObjectStoreOptions
from dray.storage.writable import check_writable

__all__ = ["ObjectStoreOptions", "check_writable"]

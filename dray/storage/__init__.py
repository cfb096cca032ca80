"""Files by URI: on local disks and in object stores, behind the same few functions."""

from __future__ import annotations

from dray.storage.files import check_writable
from dray.storage.objects import ObjectStoreOptions

__all__ = ["ObjectStoreOptions", "check_writable"]

"""An object as a file that can be read from any place, as Parquet's reader does."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from dray.storage.objects import BLOCK_BYTES, ObjectInfo, ObjectStoreOptions, head, store_of, translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def open_seekable(uri: str, options: ObjectStoreOptions | None = None) -> io.BufferedReader:
    """A readable, seekable file over an object, for formats that are read from their end (Parquet)."""
    store, path = store_of(uri, options)
    return io.BufferedReader(_ObjectFile(store, path, head(uri, options)), BLOCK_BYTES)


class _ObjectFile(io.RawIOBase):
    """One object as a file; a read is a range. (obstore's own reader lacks what pyarrow asks of a file.)"""

    def __init__(self, store: ObjectStore, path: str, info: ObjectInfo) -> None:
        self._store = store
        self._path = path
        self._info = info
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._info.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._info.size)
        count = max(0, end - self._position)
        if count:
            with translated(self._info.uri):
                buffer[:count] = self._store.get_range(self._path, start=self._position, end=end)
            self._position = end
        return count

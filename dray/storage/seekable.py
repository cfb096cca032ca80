"""An object as a file that can be read from any place, as Parquet's reader does."""

from __future__ import annotations

import io
import os
from typing import Any

from dray.storage.objects import (
    BLOCK_BYTES,
    PART_BYTES,
    ObjectInfo,
    ObjectStoreOptions,
    head,
    read_range,
)


def open_seekable(uri: str, options: ObjectStoreOptions | None = None) -> io.BufferedReader:
    """A readable, seekable file over an object, for formats that are read from their end (Parquet)."""
    return io.BufferedReader(_ObjectFile(head(uri, options), options), BLOCK_BYTES)


class _ObjectFile(io.RawIOBase):
    """One object as a file; a read is a range of the state it had when it was opened.

    A read gives a part at most, since one request may live 30 seconds; the buffer around it asks on.
    (obstore's own reader lacks what pyarrow asks of a file.)
    """

    def __init__(self, info: ObjectInfo, options: ObjectStoreOptions | None) -> None:
        self._info = info
        self._options = options
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
        end = min(self._position + min(len(buffer), PART_BYTES), self._info.size)
        count = max(0, end - self._position)
        if count:
            etag = self._info.etag or ""
            buffer[:count] = read_range(self._info.uri, self._position, end, etag=etag, options=self._options)
            self._position = end
        return count

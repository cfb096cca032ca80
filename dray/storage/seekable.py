"""An object as a file that can be read from any place, as Parquet's reader does."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from dray.storage.datasets import DatasetFile, is_dataset
from dray.storage.objects import BLOCK_BYTES, PART_BYTES, ObjectStoreOptions, head, read_range
from dray.storage.retries import PATIENCE, with_retries


def open_seekable(uri: str, options: ObjectStoreOptions | None = None) -> io.BufferedReader:
    """A readable, seekable file over one elsewhere, for formats that are read from their end (Parquet)."""
    if is_dataset(uri):
        file = DatasetFile(uri)
        return io.BufferedReader(_RangedFile(file.info.size, file.read), BLOCK_BYTES)
    info = with_retries(lambda: head(uri, options), PATIENCE)

    def read(start: int, end: int) -> bytes:
        return with_retries(
            lambda: read_range(info.uri, start, end, etag=info.etag or "", options=options), PATIENCE
        )

    return io.BufferedReader(_RangedFile(info.size, read), BLOCK_BYTES)


class _RangedFile(io.RawIOBase):
    """Ranges of the state that an object had when it was opened, as a file of ``size`` bytes.

    A read gives a part at most, since one request may live 30 seconds; the buffer around it asks on.
    (obstore's own reader lacks what pyarrow asks of a file.)
    """

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read = read
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + min(len(buffer), PART_BYTES), self._size)
        count = max(0, end - self._position)
        if count:
            buffer[:count] = self._read(self._position, end)
            self._position = end
        return count

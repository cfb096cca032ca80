"""Bytes into lines: compression and line ends, in bounded memory.

Written for speed on a million short lines, and safe on one line of a gigabyte: a line over the limit
is given as None, and never sits whole in memory.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, cast

BLOCK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_OTHER_BOMS = {  # the longer ones first: that of UTF-32 begins as that of UTF-16
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_START_BYTES = 4


class CompressionError(ValueError):
    """A compressed stream is truncated, damaged, or not what its name says."""


class EncodingError(ValueError):
    """The text is not UTF-8."""


class BlockReader(io.RawIOBase):
    """An iterator of blocks as a file that is read from start to end."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` from the current block, or from the next."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def decompressed(raw: io.BufferedIOBase, name: str) -> IO[bytes]:
    """``raw`` as plain bytes: gzip and zstd, of one or many members, known by name or by content."""
    start = _peek(raw)
    if start.startswith(_GZIP_MAGIC):
        return _checked(gzip.GzipFile(fileobj=cast("IO[bytes]", raw), mode="rb"), raw)
    if start.startswith(_ZSTD_MAGIC) or _is_skippable(start):
        import pyarrow

        return _checked(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd"), raw)
    for suffix, label in ((".gz", "gzip"), (".zst", "zstd")):
        if name.lower().endswith(suffix):
            raise CompressionError(f"the name ends in {suffix}, but the content is not {label}")
    return cast("IO[bytes]", raw)


def lines(
    read: Callable[[int], bytes],
    *,
    limit: int,
    block_bytes: int = BLOCK_BYTES,
    dropped: Callable[[bytes], None] = lambda piece: None,
) -> Iterator[tuple[int, bytes | None]]:
    """(line number from 1, line without its end) for each line; None for one over ``limit`` bytes.

    ``dropped`` gets the pieces of a line over the limit, before that line is given.

    LF and CRLF end a line, a byte-order mark is dropped, and the last line needs no end. Raises
    EncodingError for UTF-16 and UTF-32, CompressionError as the stream does.
    """
    number, rest, dropping = 0, b"", False
    block = _without_bom(read(block_bytes), read)
    while block:
        parts = block.split(b"\n")
        if len(parts) > 1:
            parts[0] = rest + parts[0]
            rest = parts.pop()
            if dropping:
                dropped(parts[0])
                number, dropping = number + 1, False
                yield number, None
                del parts[0]
            for part in parts:
                number += 1
                line = part[:-1] if part[-1:] == b"\r" else part
                if len(line) > limit:
                    dropped(line)
                yield number, (line if len(line) <= limit else None)
        elif dropping:
            dropped(block)
        else:
            rest += block
        if len(rest) > limit + 1:  # one more for the CR of a line of exactly the limit
            dropped(rest)
            rest, dropping = b"", True
        block = read(block_bytes)
    if rest or dropping:
        rest = rest.removesuffix(b"\r")
        if len(rest) > limit:
            dropped(rest)
        yield number + 1, (None if dropping or len(rest) > limit else rest)


def _without_bom(block: bytes, read: Callable[[int], bytes]) -> bytes:
    while 0 < len(block) < _START_BYTES:
        more = read(BLOCK_BYTES)
        if not more:
            break
        block += more
    encoding = other_encoding(block)
    if encoding is not None:
        raise EncodingError(
            f"the file is {encoding}; convert it to UTF-8, for example with iconv -f {encoding} -t UTF-8"
        )
    return block.removeprefix(_BOM) or read(BLOCK_BYTES)


def other_encoding(start: bytes) -> str | None:
    """What a text that begins so is written in, where that is UTF-16 or UTF-32.

    Without a byte-order mark: each of two ASCII characters has a NUL beside it, on the same side.
    """
    for mark, name in _OTHER_BOMS.items():
        if start.startswith(mark):
            return name
    zeros = bytes(byte == 0 for byte in start[:_START_BYTES])
    return {b"\0\1\0\1": "UTF-16LE", b"\1\0\1\0": "UTF-16BE"}.get(zeros)


def _is_skippable(start: bytes) -> bool:
    """Whether a frame that holds no data begins here (RFC 8878, 3.1.2), as in what pzstd writes."""
    return len(start) == _START_BYTES and start[1:] == b"\x2a\x4d\x18" and 0x50 <= start[0] <= 0x5F


def _peek(raw: io.BufferedIOBase) -> bytes:
    peek = getattr(raw, "peek", None)
    assert peek is not None, "sources are buffered readers"
    return bytes(peek(4)[:4])


def _checked(inner: Any, raw: io.BufferedIOBase) -> IO[bytes]:
    return cast("IO[bytes]", _Checked(inner, raw))


class _Checked(io.RawIOBase):
    """A decompressor whose errors are CompressionError, and which closes the file under it."""

    def __init__(self, inner: Any, raw: io.BufferedIOBase) -> None:
        self._inner = inner
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return cast("bytes", self._inner.read(size) if size >= 0 else self._inner.read())
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise CompressionError(f"the gzip stream is damaged or cut off ({error})") from error
        except OSError as error:
            if error.errno is not None:  # of the file below; pyarrow's own carry no number
                raise
            if "too much memory" in str(error):
                raise CompressionError(
                    "the zstd stream wants more than 128 MiB to be read (zstd --long=28 and more)"
                ) from error
            raise CompressionError(f"the zstd stream is damaged or cut off ({error})") from error

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()

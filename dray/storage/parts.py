"""A file elsewhere, part after part: the next part is under way while this one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


def one_ahead(read: Callable[[int, int], bytes], start: int, end: int, part_bytes: int) -> Iterator[bytes]:
    """The bytes [``start``, ``end``), of which ``read`` gives ranges, in parts of ``part_bytes``."""
    if start >= end:
        return

    def part(offset: int) -> bytes:
        return read(offset, min(offset + part_bytes, end))

    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(part, start)
        for offset in range(start + part_bytes, end, part_bytes):
            done, ahead = ahead, pool.submit(part, offset)
            yield done.result()
        yield ahead.result()

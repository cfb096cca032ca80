"""A file elsewhere, part after part: the next part is under way while this one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread

Read = Callable[[int, int], bytes]


def one_ahead(read: Read, start: int, end: int, part_bytes: int) -> Iterator[bytes]:
    """The bytes [``start``, ``end``), of which ``read`` gives ranges, in parts of ``part_bytes``."""
    if start >= end:
        return
    ahead = _begun(read, start, min(start + part_bytes, end))
    for offset in range(start + part_bytes, end, part_bytes):
        done, ahead = ahead, _begun(read, offset, min(offset + part_bytes, end))
        yield done.result()
    yield ahead.result()


def _begun(read: Read, start: int, end: int) -> Future[bytes]:
    """One read in a thread, which ends with the process: it may wait for a server for minutes."""
    future: Future[bytes] = Future()

    def work() -> None:
        try:
            future.set_result(read(start, end))
        except BaseException as error:  # noqa: BLE001  thread edge: raised where the result is awaited
            future.set_exception(error)

    Thread(target=work, name="dray-read-ahead", daemon=True).start()
    return future

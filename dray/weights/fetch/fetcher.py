"""A process that fetches chunks for ``transfer.py``, which starts it, writes its stdin and reads its stdout.

It stands alone (the standard library and blake3), so that it starts in a blink. Each line of stdin is an
order (JSON); each gets one line on stdout. A chunk is received into private memory, judged, and only then
written to its file: what is in a file was verified, whatever is killed or arrives late. Of several answers
for one chunk, the process writes the first alone: engines read a chunk as soon as it is there.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import mmap
import os
import queue
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from blake3 import blake3

PIECE = 1 << 20  # bytes received at most at once: the digest reads them while they are in the core's cache
STALL_SECONDS = 10.0  # between two pieces
SLOW_SECONDS = 5.0  # from when on a chunk must have come at its floor rate on average

_REDIRECTS = {301, 302, 303, 307, 308}
_BUSY = {429, 500, 502, 503, 504}
_EXPIRED = ("ExpiredToken", "RequestTimeTooSkewed", "TokenRefreshRequired")


class ChunkError(Exception):
    """An attempt failed; ``kind`` is what the schedule goes by, ``after`` seconds a server may say."""

    def __init__(self, kind: str, detail: str, after: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.after = after


class _Place:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.digest: str | None = None  # of the bytes that were written there


class Written:
    """The files, in which each chunk is written once. All threads of the process share it."""

    def __init__(self, files: list[int]) -> None:
        self._files = files
        self._places: dict[tuple[int, int], _Place] = {}

    def once(self, file: int, start: int, view: memoryview, digest: str) -> str:
        """Write a chunk, unless an earlier answer has; returns the digest of what is in the file."""
        place = self._places.setdefault((file, start), _Place())
        with place.lock:
            if place.digest is None:
                _write(self._files[file], view, start)
                place.digest = digest
            return place.digest


class Fetcher(threading.Thread):
    """Takes orders until the process ends, with connections of its own."""

    def __init__(self, orders: queue.SimpleQueue[dict[str, Any]], written: Written, size: int) -> None:
        super().__init__(daemon=True)
        self._orders = orders
        self._written = written
        self._buffer = memoryview(_buffer(size))
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def run(self) -> None:
        """Answer one order after the other."""
        while True:
            order = self._orders.get()
            began = time.monotonic()
            try:
                answer: dict[str, Any] = {"digest": self._fetch(order)}
            except ChunkError as refused:
                answer = {"error": refused.kind, "detail": str(refused), "after": refused.after}
            except Exception as error:  # noqa: BLE001  thread edge: every order is answered, or it hangs
                answer = {"error": "answer", "detail": type(error).__name__}
            answer |= {"order": order["order"], "seconds": time.monotonic() - began}
            _say(answer)

    def _fetch(self, order: dict[str, Any]) -> str:
        view = self._buffer[: order["end"] - order["start"]]
        place = urlsplit(order["url"])
        key = (place.scheme, place.netloc)
        try:
            digest, said = self._receive(order, place, view, fresh=key not in self._connections)
        except ChunkError as refused:
            self._drop(key)
            if refused.kind != "stale":
                raise
            digest, said = self._receive(order, place, view, fresh=True)
        except BaseException:
            self._drop(key)
            raise
        if digest != (order["digest"] or said or digest):
            raise ChunkError("corrupt", "its checksum is wrong")
        return self._written.once(order["file"], order["start"], view, digest)

    def _receive(
        self, order: dict[str, Any], place: Any, view: memoryview, *, fresh: bool
    ) -> tuple[str, str | None]:
        """The digest of what came, and the one that a peer said it has."""
        try:
            response = self._ask(order, place)
            _judge(response, order)
            said = response.headers.get("Dray-Digest") if order["peer"] else None
            return _read(response, view, order["floor"]), said
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
            # The server may have closed a kept connection meanwhile: that is no fault.
            raise ChunkError("network" if fresh else "stale", type(error).__name__) from None
        except TimeoutError:
            raise ChunkError("stalled", f"nothing came for {STALL_SECONDS:.0f} s") from None
        except http.client.HTTPException as error:
            raise ChunkError("network", type(error).__name__) from None
        except OSError as error:
            if type(error).__name__ == "SSLCertVerificationError":  # ssl is imported where it is used alone
                raise ChunkError("untrusted", str(error)) from None
            raise ChunkError("network", error.strerror or type(error).__name__) from None

    def _ask(self, order: dict[str, Any], place: Any) -> http.client.HTTPResponse:
        key = (place.scheme, place.netloc)
        if key not in self._connections:
            self._connections[key] = _connection(*key)
        connection = self._connections[key]
        target = f"{place.path or '/'}?{place.query}" if place.query else place.path or "/"
        span = {"Range": f"bytes={order['start']}-{order['end'] - 1}", "Accept-Encoding": "identity"}
        connection.request("GET", target, headers=order["headers"] | span)
        return connection.getresponse()

    def _drop(self, key: tuple[str, str]) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None:
            connection.close()


def _buffer(size: int) -> mmap.mmap:
    """Private memory, on huge pages where there are any: a fault each 2 MiB instead of each 4 KiB."""
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


def _connection(scheme: str, netloc: str) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(netloc, timeout=STALL_SECONDS)
    import ssl

    context = ssl.create_default_context()
    if bundle := os.environ.get("AWS_CA_BUNDLE"):  # the clients that list trust it too
        context.load_verify_locations(bundle)
    proxy = _proxy(netloc)
    connection = http.client.HTTPSConnection(proxy or netloc, timeout=STALL_SECONDS, context=context)
    if proxy:
        connection.set_tunnel(netloc)
    return connection


def _proxy(netloc: str) -> str | None:
    """The proxy for HTTPS that the environment names for this host; the client that lists goes by it too."""
    if not any(name.lower() in ("https_proxy", "all_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get("https") or proxies.get("all")
    if not found or proxy_bypass(netloc) or _in_network(netloc, proxies.get("no", "")):
        return None
    found = found if "://" in found else f"http://{found}"  # curl and the client that lists take it so
    return urlsplit(found).netloc.rpartition("@")[2]


def _in_network(netloc: str, exceptions: str) -> bool:
    """Whether ``NO_PROXY`` names a network of this address (10.0.0.0/8), which urllib does not know."""
    import ipaddress

    host = urlsplit(f"//{netloc}").hostname or ""
    for entry in filter(lambda entry: "/" in entry, exceptions.split(",")):
        with contextlib.suppress(ValueError):  # no address, or no network
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False


def _judge(response: http.client.HTTPResponse, order: dict[str, Any]) -> None:
    """The answer must be exactly the range that was asked for, of the state that was asked for."""
    status, etag = response.status, order["etag"]
    if status not in (200, 206):
        raise _refusal(status, response.read(4096), response.headers.get("Retry-After", ""))
    said = response.headers.get("ETag")
    if etag is not None and said is not None and said != etag:
        raise ChunkError("replaced", "another ETag")
    whole = order["end"] - order["start"] == order["size"]
    if status == 200 and not whole:
        raise ChunkError("answer", "the whole file came instead of a range")
    if status == 206:
        wanted = f"bytes {order['start']}-{order['end'] - 1}/"
        found = response.headers.get("Content-Range", "")
        if not found.startswith(wanted) or found.removeprefix(wanted) not in ("*", str(order["size"])):
            raise ChunkError("answer", f"another range came: {found[:60]!r}")
    length = response.headers.get("Content-Length")
    if length is not None and length != str(order["end"] - order["start"]):
        raise ChunkError("answer", f"{length[:20]} bytes were offered")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ChunkError("answer", "it came encoded")


def _refusal(status: int, body: bytes, after: str) -> ChunkError:
    text = body.decode("latin-1")
    if status in _BUSY:
        return ChunkError("busy", f"HTTP {status}", float(after) if after.isdigit() else None)
    if status in (401, 403) or (status == 400 and any(code in text for code in _EXPIRED)):
        return ChunkError("denied", f"HTTP {status}")
    if status in _REDIRECTS:
        return ChunkError("moved", f"HTTP {status}")
    if status == 404:
        return ChunkError("missing", "HTTP 404")
    if status in (412, 416):
        return ChunkError("replaced", f"HTTP {status}")
    return ChunkError("answer", f"HTTP {status}")


def _read(response: http.client.HTTPResponse, view: memoryview, floor: float) -> str:
    """Fill ``view`` from the body; returns its digest."""
    digest, at, judged, began = blake3(), 0, 0, time.monotonic()
    while at < len(view):
        count = _receive(response, view[at : at + PIECE])
        if not count:
            raise ChunkError("network", f"the body ended after {at:,} of {len(view):,} bytes")
        at += count
        if at - judged >= PIECE or at == len(view):
            digest.update(view[judged:at])
            judged = at
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS and at < seconds * floor:
            raise ChunkError("slow", f"{at / seconds / 1e3:.0f} kB/s")
    if response.readinto(bytearray(1)):
        raise ChunkError("answer", "more came than was asked for")
    return digest.hexdigest()


def _receive(response: http.client.HTTPResponse, piece: memoryview) -> int:
    """What one receive brings; ``readinto`` would wait until the piece is full, however slowly it comes."""
    if response.chunked or response.length is None:
        found = response.read1(len(piece))
        piece[: len(found)] = found
        return len(found)
    count = response.fp.readinto1(piece)
    response.length -= count
    return count


def _write(descriptor: int, view: memoryview, start: int) -> None:
    try:
        while view:
            written = os.pwrite(descriptor, view, start)
            view, start = view[written:], start + written
    except OSError as error:
        kind = "room" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "disk"
        raise ChunkError(kind, error.strerror or "") from None


_mouth = threading.Lock()


def _say(answer: dict[str, Any]) -> None:
    line = json.dumps(answer).encode() + b"\n"
    with _mouth:
        try:
            os.write(1, line)
        except BrokenPipeError:  # the transfer reads no more answers
            os._exit(0)


def main() -> None:
    """Arguments: bytes of the largest chunk, then the files to write to. Ends when stdin does."""
    size, paths = int(sys.argv[1]), sys.argv[2:]
    written = Written([os.open(path, os.O_WRONLY) for path in paths])
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threads: list[Fetcher] = []
    for line in sys.stdin.buffer:
        order = json.loads(line)
        while len(threads) < order["threads"]:
            threads.append(Fetcher(orders, written, size))
            threads[-1].start()
        orders.put(order)
    os._exit(0)  # at once, whatever is under way: the transfer reads no more answers


if __name__ == "__main__":
    main()

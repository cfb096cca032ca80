"""Read a model's files from an object store into a folder, and go on where an earlier try stopped."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dray.errors import WeightsError
from dray.requests.objects import ObjectStoreOptions, ReplacedError, read_range
from dray.weights.manifest import Manifest, ModelFile

RANGE_BYTES = 8 << 20
"""Bytes of one request: AWS recommends ranges of 8 or 16 MB."""

CONNECTIONS = 16
TRIES = 6  # of one range, beside the client's own; waits of up to 1, 2, 4, 8 and 16 s between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The bytes [``start``, ``end``) of a file; ``number`` counts all ranges of a model."""

    number: int
    file: ModelFile
    start: int
    end: int


def ranges_of(manifest: Manifest, size: int) -> list[Range]:
    """All bytes of the model, each in exactly one range of at most ``size`` bytes."""
    spans = [
        (file, start, min(start + size, file.size))
        for file in manifest.files
        for start in range(0, file.size, size)
    ]
    return [
        Range(number=number, file=file, start=start, end=end)
        for number, (file, start, end) in enumerate(spans)
    ]


def fetch(manifest: Manifest, folder: Path, options: ObjectStoreOptions | None = None) -> int:
    """Bring the model into ``folder``; returns how many bytes were read.

    Every request carries the file's ETag: a model that changes meanwhile is refused, never mixed. Ranges that
    an earlier try finished, also one that was killed, are not read again.

    Raises:
        WeightsError: it cannot be read, it changed, or there is no room for it; says which file and range.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ranges = ranges_of(manifest, RANGE_BYTES)
    with ExitStack() as stack:
        files = {file.name: _allocated(folder, file, manifest, stack) for file in manifest.files}
        done = os.open(folder / _marks(), os.O_RDWR | os.O_CREAT, 0o644)
        stack.callback(os.close, done)
        known = os.pread(done, len(ranges), 0).ljust(len(ranges), b"\0")
        left = [part for part in ranges if not known[part.number]]
        pool = stack.enter_context(ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="weights"))
        try:
            for finished in as_completed(
                pool.submit(_range, manifest, part, files[part.file.name], options) for part in left
            ):
                os.pwrite(done, b"\1", finished.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        for descriptor in files.values():
            os.fsync(descriptor)  # the folder is published next: it must be whole after a power cut too
    for marks in folder.glob("ranges-*"):
        marks.unlink()
    return sum(part.end - part.start for part in left)


def _marks() -> str:
    """The file with a byte for each range, 1 once its bytes are in their file.

    It counts until the machine starts again: before that, marks may reach the disk ahead of their data.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"ranges-{RANGE_BYTES}-{boot.read_text().strip() if boot.is_file() else os.getpid()}"


def _allocated(folder: Path, file: ModelFile, manifest: Manifest, stack: ExitStack) -> int:
    """The file's descriptor, with its room taken: a full disk shows now, not in the middle."""
    descriptor = os.open(folder / file.name, os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, descriptor)
    try:
        if file.size:
            os.posix_fallocate(descriptor, 0, file.size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise WeightsError(f"{folder / file.name}: {error.strerror}") from None
        free = shutil.disk_usage(folder).free
        raise WeightsError(
            f"no room for model {manifest.uri} ({manifest.size / 1e9:.2f} GB) in {folder.parent}: "
            f"{free / 1e9:.2f} GB are free; set DRAY_MODEL_CACHE to a folder on a larger disk"
        ) from None
    return descriptor


def _range(manifest: Manifest, part: Range, descriptor: int, options: ObjectStoreOptions | None) -> int:
    place = f"{manifest.uri}/{part.file.name}"
    for wait in _waits():
        try:
            body = read_range(place, part.start, part.end, etag=part.file.etag, options=options)
        except ReplacedError:
            raise WeightsError(
                f"{place} was replaced since the job was opened; start the job again"
            ) from None
        except (FileNotFoundError, PermissionError) as error:
            raise WeightsError(str(error)) from None
        except OSError as error:
            if wait is None:
                span = f"bytes {part.start:,} to {part.end:,}"
                raise WeightsError(f"{place}: {span} could not be read in {TRIES} tries: {error}") from None
            time.sleep(wait)
        else:
            _write(descriptor, body, part.start)
            return part.number
    raise AssertionError  # the last wait is None


def _waits() -> Iterator[float | None]:
    """Seconds between tries, with full jitter, and None at the end.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    for attempt in range(TRIES - 1):
        yield random.uniform(0, 2.0**attempt)  # noqa: S311  spreads load, guards nothing
    yield None


def _write(descriptor: int, body: bytes, start: int) -> None:
    view = memoryview(body)
    while view:
        written = os.pwrite(descriptor, view, start)
        view, start = view[written:], start + written

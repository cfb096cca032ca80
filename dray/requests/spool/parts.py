"""The files of a spool: one, or numbered parts where one would be larger than a bound.

The first part has the name that one file has, ``requests.jsonl``; further ones are ``requests-00001.jsonl``
and so on. A full part gets its name in a thread, while rows go on to the next one: by a rename, or by an
upload to an object store. Rows wait as long as the part before is under way, so at most two lie in
``TMPDIR``. Parts get their names in order, and are removed from the last to the first.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType

from dray.requests.pulse import ReadingPulse
from dray.requests.spool.marks import Mark, SpoolPart
from dray.requests.spool.spool import SpoolWriter, lines_of
from dray.storage.files import FileInfo, remove, write_atomic
from dray.storage.objects import ObjectStoreOptions
from dray.triggers import Point, reach


def part_uri(spool_uri: str, number: int) -> str:
    """Where a part lies, by its number from 0."""
    if number == 0:
        return spool_uri
    folder, slash, name = spool_uri.rpartition("/")
    stem, dot, ending = name.partition(".")
    return f"{folder}{slash}{stem}-{number:05d}{dot}{ending}"


class SpoolParts:
    """A spool on its way to its names. A context manager: an error in its block leaves no file of it.

    Lines go to ``writer``. ``part_bytes`` bounds each part; None is for one file.
    """

    def __init__(
        self,
        uri: str,
        part_bytes: int | None = None,
        *,
        options: ObjectStoreOptions | None = None,
        pulse: ReadingPulse | None = None,
    ) -> None:
        self._uri = uri
        self._part_bytes = part_bytes or sys.maxsize
        self._options = options
        self._pulse = pulse or ReadingPulse()
        self.grouped = False  # whether it may be cut between groups of rows only
        self._named = 0  # parts that may have a name by now
        self._naming: _Part | None = None
        self._start()

    def __enter__(self) -> SpoolParts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._drop(error)

    @property
    def sha256(self) -> str:
        """The digest of the one file in hex; of several, the digest of theirs in a row."""
        digests = [info.sha256 for info in self._infos]
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def finish(self) -> tuple[SpoolPart, ...]:
        """All parts, when all have their names. Nothing more can be written.

        Raises:
            JobFailedError: the place takes no more.
        """
        self._name_part()
        self._wait()
        return self._parts()

    def lines(self) -> Iterator[bytes]:
        """All lines that were written so far, with their line ends or without."""
        self._wait()
        for part in self._parts():
            yield from lines_of(part, self._options)
        if self._part is not None:
            yield from self._part.lines()

    @contextmanager
    def rewriting(self) -> Iterator[Iterator[bytes]]:
        """Start over with some of the lines, in their order. The block gets all of them, without line ends.

        A new part replaces the old one of its number, which was read to its end by then: a part holds all
        lines that were in the old one and are kept, and some more.
        """
        old = self.finish()
        self._start()
        yield (line for part in old for line in lines_of(part, self._options))
        self._remove(range(len(self._infos) + 1, len(old)))

    @contextmanager
    def thinning(self) -> Iterator[tuple[Iterator[bytes], Callable[[bytes | None], None]]]:
        """Start over without some of the lines, as :meth:`rewriting`. Groups of rows stay groups.

        The block gets all lines, and a function that it calls for each in turn: with the line, or with None
        where it goes.
        """
        marks = iter(self.writer.marks) if self.grouped else None
        mark = next(marks, None) if marks is not None else None
        position, border, family = 0, True, 0

        def keep(line: bytes | None) -> None:
            nonlocal mark, position, border, family
            if marks is not None and mark is not None and mark.position == position:
                border, family, mark = True, mark.family, next(marks, None)
            position += 1
            if line is not None:
                self.writer.add(line + b"\n", border=border, family=family)
                border = marks is None

        with self.rewriting() as lines:
            yield lines, keep

    def _start(self) -> None:
        self._infos: list[FileInfo] = []
        self._part: _Part | None = None
        self.writer = SpoolWriter(self._open(), part_bytes=self._part_bytes, next_part=self._next)

    def _next(self) -> Callable[[bytes], object]:
        reach(Point.INGEST_PART_FULL)
        self._name_part()
        return self._open()

    def _open(self) -> Callable[[bytes], object]:
        self._part = _Part(part_uri(self._uri, len(self._infos)), self._options)
        return self._part.file.write

    def _name_part(self) -> None:
        """Have the present part get its name, as soon as the one before has its own."""
        self._wait()
        part, self._part = self._part, None
        if part is not None:
            self._infos.append(part.file.info())
            self._named = max(self._named, len(self._infos))
            self._naming = part
            part.start()

    def _wait(self) -> None:
        part, self._naming = self._naming, None
        if part is not None:
            with self._pulse.paused():
                part.wait()

    def _parts(self) -> tuple[SpoolPart, ...]:
        starts: Sequence[Mark] = self.writer.starts
        return tuple(
            SpoolPart(info.uri, info.size, start) for info, start in zip(self._infos, starts, strict=False)
        )

    def _drop(self, error: BaseException) -> None:
        if self._part is not None:
            self._part.discard(error)
        with suppress(Exception):  # why it could not be written is not why the spool goes
            self._wait()
        self._remove(range(self._named))

    def _remove(self, numbers: range) -> None:
        for number in reversed(numbers):
            with suppress(OSError):  # it is not there, or may not be removed: no shard task reads it
                remove(part_uri(self._uri, number), options=self._options)


class _Part(threading.Thread):
    """A file that is written by one thread, and gets its name in this one.

    A daemon: a process that ends does not wait for an upload.
    """

    def __init__(self, uri: str, options: ObjectStoreOptions | None) -> None:
        super().__init__(name="dray-spool-part", daemon=True)
        self._open = ExitStack()
        self._error: BaseException | None = None
        self.file = self._open.enter_context(write_atomic(uri, hashed=True, options=options))

    def run(self) -> None:
        """Publish it."""
        try:
            self._open.close()
            reach(Point.INGEST_PART_NAMED)
        except BaseException as error:  # noqa: BLE001  thread edge: wait() raises it
            self._error = error

    def wait(self) -> None:
        """Until it has its name; raises what kept it from that."""
        self.join()
        if self._error is not None:
            raise self._error

    def lines(self) -> Iterator[bytes]:
        """What was written so far, before this was started."""
        with self.file.reread() as file:
            yield from file

    def discard(self, error: BaseException) -> None:
        """Leave nothing of it, for an error that came before its name."""
        self._open.__exit__(type(error), error, error.__traceback__)

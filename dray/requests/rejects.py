"""Rows that cannot become requests: on their way to a refusal, or to error rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, cast

import orjson

from dray.codes import ErrorCode, JobCode
from dray.errors import InputError, Problem
from dray.requests.model import Outcome
from dray.requests.validate import BadRow
from dray.storage.files import open_lines
from dray.storage.objects import ObjectStoreOptions

SKIP_ADVICE = "--skip-invalid makes error rows of such rows, and runs the others"
"""What a refusal of rows offers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """One bad row: its index, its custom_id where usable, where it stands, and what is wrong."""

    index: int
    custom_id: str | None
    file_no: int
    line_no: int
    code: ErrorCode | JobCode
    message: str
    field: str | None

    @classmethod
    def of(cls, bad: BadRow, *, index: int, file_no: int, line_no: int) -> Reject:
        """The verdict on one row, with its place."""
        return cls(
            index=index,
            custom_id=bad.custom_id,
            file_no=file_no,
            line_no=line_no,
            code=bad.code,
            message=bad.message,
            field=bad.field,
        )

    def problem(self, names: Sequence[str]) -> Problem:
        """This row for a refusal that lists problems; ``names`` are the job's files."""
        return Problem(self.code, self.message, names[self.file_no], self.line_no, self.field)

    def outcome(self, names: Sequence[str]) -> Outcome:
        """This row as an error row, with its place in the message."""
        message = str(self.problem(names))
        code = cast("ErrorCode", self.code)  # what stands against the job ends it, and never comes here
        return Outcome(self.index, self.custom_id, error_code=code, error_message=message)

    def anonymous(self) -> Reject:
        """The same row without its custom_id, for one that another row has taken."""
        return replace(self, custom_id=None)

    def encode(self) -> bytes:
        """One line of a rejects file, line end included. It starts with ``[index,``."""
        row = [self.index, self.custom_id, self.file_no, self.line_no, self.code, self.message, self.field]
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def decode(cls, line: bytes) -> Reject:
        """The opposite of ``encode``."""
        index, custom_id, file_no, line_no, code, message, field = orjson.loads(line)
        return cls(
            index=index,
            custom_id=custom_id,
            file_no=file_no,
            line_no=line_no,
            code=code,
            message=message,
            field=field,
        )


class RejectLog:
    """Rejects in index order, in a temporary file: there may be as many as rows."""

    def __init__(self) -> None:
        self.count = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="dray-rejects-")  # noqa: SIM115  see __exit__

    def __enter__(self) -> RejectLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def add(self, reject: Reject) -> None:
        """Append one."""
        self._file.write(reject.encode())
        self.count += 1

    def lines(self) -> Iterator[bytes]:
        """All of them, encoded. No ``add`` after this."""
        self._file.seek(0)
        yield from self._file

    def __iter__(self) -> Iterator[Reject]:
        return map(Reject.decode, self.lines())


def empty_input(uri: str) -> InputError:
    """The refusal of an input without any row, of whatever format: there is nothing to run."""
    return InputError([Problem("empty_input", "the input holds no row, so there is nothing to run", uri)])


def read_rejects(
    uri: str | None, names: Sequence[str], *, batch: int, options: ObjectStoreOptions | None
) -> Iterator[list[Outcome]]:
    """The error rows of a published rejects file, ``batch`` at a time, in input order."""
    if uri is None:
        return
    page: list[Outcome] = []
    for _, line in open_lines(uri, options=options):
        assert line is not None, "rejects are short lines"
        page.append(Reject.decode(line).outcome(names))
        if len(page) >= batch:
            yield page
            page = []
    if page:
        yield page

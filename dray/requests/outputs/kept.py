"""Columns of the input that stand beside the answers: noted at ingest, joined when files are written.

They lie in a file beside the spool, in the order of the input: no replica and no row of the store carries
them. A line is ``[index, value, …]``, and a row that dray could not read has none. Outcomes leave the store
in the same order, so the join reads both once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from math import isfinite, isinf, isnan
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import orjson

from dray.errors import InputError, JobFailedError, Problem
from dray.requests.columns.template import plain_decimal, value_of
from dray.requests.outputs.lines import Page
from dray.requests.precision import EXACT
from dray.requests.validate import BadRow, check_text
from dray.storage.files import AtomicFile, open_lines, write_atomic
from dray.storage.objects import ObjectStoreOptions

KEPT = ".kept"
"""What the name of the file ends in, after the spool's name."""

KEPT_COLUMNS = "kept"
"""Where a job's ``info`` has them, as :meth:`Kept.as_dict` writes them."""

ColumnType = Literal["boolean", "integer", "number", "text", "json"]
"""What all values of a column are, but for nulls; ``json`` where they are of several types, or nested."""

_PIECE_BYTES = 16 << 20  # of JSON: what writes them holds several copies of it
_LONGEST = 2**63
_Type = ColumnType | Literal["long"]  # an integer that a float may not hold
_BOTH: dict[frozenset[_Type], _Type] = {
    frozenset(("integer", "number")): "number",
    frozenset(("integer", "long")): "long",
}
_Values = tuple[Any, ...]

ABSENT: Final = object()
"""In place of a value: the row, a line of JSON, lacks the column. It is kept as null."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptColumn:
    """A column, by the name that the input has for it."""

    name: str
    type: ColumnType


class _Infinite(str):
    """An infinite number, as text: JSON has none. Its column stays one of numbers."""

    __slots__ = ()


class KeptRow(NamedTuple):
    """The values of one row, in the order of the columns, and their bytes as JSON."""

    values: _Values
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where a job's kept columns lie, and what they are."""

    uri: str
    columns: tuple[KeptColumn, ...]
    options: ObjectStoreOptions | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The form that the store keeps."""
        return {"uri": self.uri, "columns": [[one.name, one.type] for one in self.columns]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], options: ObjectStoreOptions | None = None) -> Self:
        """What :meth:`as_dict` gave."""
        columns = tuple(KeptColumn(name=name, type=type_) for name, type_ in found["columns"])
        return cls(uri=found["uri"], columns=columns, options=options)

    def beside(self) -> Callable[[Page], Iterator[tuple[Page, list[KeptRow]]]]:
        """A function that gives the kept row of each outcome of the next page; pages come in index order.

        It gives pieces of the page, of about ``_PIECE_BYTES`` of kept values: answers alone bound a page. The
        caller takes all pieces of a page before the next one. JobFailedError is raised where the file is
        gone, or cannot be read.
        """
        rows = self._rows()
        none = KeptRow((None,) * len(self.columns), 0)
        index, row = -1, none

        def of(page: Page) -> Iterator[tuple[Page, list[KeptRow]]]:
            nonlocal index, row
            begin, size = 0, 0
            found: list[KeptRow] = []
            for place, outcome in enumerate(page):
                while index < outcome.index:
                    index, row = next(rows, (_LONGEST, none))
                found.append(row if index == outcome.index else none)
                size += found[-1].size
                if size >= _PIECE_BYTES:
                    yield page[begin : place + 1], found
                    begin, size, found = place + 1, 0, []
            if found:
                yield page[begin:], found

        return of

    def _rows(self) -> Iterator[tuple[int, KeptRow]]:
        try:
            for _, line in open_lines(self.uri, limit=_LONGEST, options=self.options):
                assert line is not None, "a line without a limit"
                index, *values = orjson.loads(line)
                yield index, KeptRow(tuple(values), len(line))
        except InputError as error:  # not of the job's input, which its user could mend
            why = error.problems[0]
            told = "are gone" if why.code == "missing_input" else f"cannot be read: {why.message}"
            raise JobFailedError(
                f"{self.uri}: the columns that were kept to stand beside the answers {told}. The answers are "
                "in the store: `dray export JOB --output FOLDER --without-kept` writes them alone, and "
                "to_dataframe(JOB, kept=False) of the store reads them"
            ) from error


def cell(column: KeptColumn, value: Any) -> Any:
    """A value as tables have it: JSON in a text where a column has no type of its own."""
    if value is None or column.type not in ("json", "number"):
        return value
    return orjson.dumps(value).decode() if column.type == "json" else float(value)


def reader(columns: Sequence[str]) -> Callable[[Mapping[str, Any]], _Values]:
    """A function that gives the values of a row to keep, ``ABSENT`` in place of some, or raises BadRow."""

    def value(row: Mapping[str, Any], column: str) -> Any:
        return _plain(value_of(row, column, "missing_column"), column) if column in row else ABSENT

    return lambda row: tuple(value(row, column) for column in columns)


class KeptLog:
    """Takes note of kept values at ingest, in a file at ``uri``; ``name`` is the input's. A context manager.

    The file gets its name when the block ends, unless it ends by an error, or no column is to be kept.
    """

    def __init__(
        self, columns: Sequence[str], name: str, uri: str, options: ObjectStoreOptions | None
    ) -> None:
        self._columns = columns
        self._name = name
        self._uri = uri
        self._options = options
        self._absent = set(columns)
        self._types: list[_Type | None] = [None] * len(columns)
        self._open = ExitStack()
        self._file: AtomicFile | None = None

    def __enter__(self) -> Self:
        if self._columns:
            writing = write_atomic(self._uri, hashed=False, options=self._options)
            self._file = self._open.enter_context(writing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def add(self, index: int, values: _Values) -> None:
        """The values of the next row. Indices grow."""
        for place, value in enumerate(values):
            if value is ABSENT:
                values = (*values[:place], None, *values[place + 1 :])
                continue
            self._absent.discard(self._columns[place])
            if value is not None:
                self._types[place] = _wider(self._types[place], value)
        assert self._file is not None, "there are columns to keep"
        self._file.write(orjson.dumps((index, *values), option=orjson.OPT_APPEND_NEWLINE))

    def check(self) -> None:
        """Raise InputError where no row had a column."""
        if self._absent:
            raise InputError([self._problem(name) for name in self._columns if name in self._absent])

    def found(self) -> Kept | None:
        """The columns that were noted; None where no column is to be kept."""
        if not self._columns:
            return None
        columns = (
            KeptColumn(name=name, type="integer" if found == "long" else found or "text")
            for name, found in zip(self._columns, self._types, strict=True)
        )
        return Kept(uri=self._uri, columns=tuple(columns), options=self._options)

    def _problem(self, column: str) -> Problem:
        told = f"no row has the column {column!r}, which is to stand beside the answers (--keep-columns)"
        return Problem("missing_column", told, self._name, None, column)


def _wider(known: _Type | None, value: Any) -> _Type:
    """The type of a column of the type ``known`` that holds ``value``, too."""
    found = _type_of(value)
    if known is None or known == found:
        return found
    return _BOTH.get(frozenset((known, found)), "json")


def _type_of(value: Any) -> _Type:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if abs(value) <= EXACT:
            return "integer"
        return "long" if -_LONGEST <= value < _LONGEST else "json"
    if isinstance(value, float | _Infinite):
        return "number"
    return "text" if isinstance(value, str) else "json"


def _plain(value: Any, column: str) -> Any:
    """A value as JSON has it; BadRow for one that JSON cannot hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return check_text(value, column)
    if isinstance(value, int):
        return value if -_LONGEST <= value < 2 * _LONGEST else str(value)
    if isinstance(value, float):
        return value if isfinite(value) else None if isnan(value) else _Infinite(value)
    if isinstance(value, Decimal):
        return plain_decimal(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, list | tuple | dict):
        return _nested(value, column)
    if isinstance(value, bytes | bytearray | memoryview):
        raise _unkept(column)
    return check_text(str(value), column)


def _nested(value: Any, column: str) -> Any:
    """The value as JSON, if it can also be written two levels deeper: in a row, and that in an object."""
    try:
        written = orjson.dumps([[value]], default=_part)
        if b"null" in written:  # perhaps of infinity
            written = orjson.dumps([[_finite(value)]], default=_part)
        return orjson.loads(written)[0][0]
    except (TypeError, ValueError):
        raise _unkept(column) from None


def _finite(value: Any) -> Any:
    """Infinite numbers as text, as outside of lists and objects."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and isinf(value) else value


def _unkept(column: str) -> BadRow:
    told = "what JSON cannot hold (bytes, names that are no text, over 250 levels); do not keep it"
    return BadRow("invalid_value", f"the column {column!r} holds {told}", column)


def _part(value: Any) -> Any:
    if isinstance(value, date | time):  # such as pandas has them; Python's own need no help
        return value.isoformat()
    if isinstance(value, Decimal):
        return plain_decimal(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return str(value)

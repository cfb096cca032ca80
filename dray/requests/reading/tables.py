"""Rows of columns from JSON lines, CSV and Parquet, one at a time; :mod:`.queries` has those of SQL."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal

from dray.errors import InputError, Problem, first_line
from dray.requests.columns.row_builder import columns_of
from dray.requests.columns.template import Unreadable, missing_column
from dray.requests.media.medium import columns_of_files
from dray.requests.precision import (
    ROUNDED,
    holds_rounded,
    in_own_precision,
    with_short_halves,
    writes_long,
)
from dray.requests.reading.csv_record import EndlessRecordError, Record, RecordTooLongError
from dray.requests.reading.json_lines import json_lines
from dray.requests.reading.partitions import partition_of
from dray.requests.row_shape import RowShape
from dray.requests.sources import Rows
from dray.requests.validate import BadRow, BadText, parse_object, too_long
from dray.storage.files import open_lines, open_seekable
from dray.storage.objects import BLOCK_BYTES, PART_BYTES, ObjectStoreOptions
from dray.storage.remote import is_remote

if TYPE_CHECKING:
    from _csv import Reader

    import pyarrow
    from pyarrow import parquet

    from dray.requests.reading.csv_record import ReaderOf

TableRow = tuple[int, "dict[str, Any] | BadRow"]
"""(line number from 1, the row or what is wrong with it); Parquet and SQL count rows instead of lines."""

BATCH_ROWS = 1024
"""The most rows that are read at a time."""

BATCH_BYTES = 64 << 20
"""About the most bytes of them."""

_REPEATED_ROWS = 32  # of a Parquet file whose texts may repeat: 0.5 us more each than 1,024 at a time
_PLAIN = frozenset(("PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"))  # each value is there itself
_DELIMITERS = (";", "\t", "|", ",")
_SEP = re.compile('sep=([^"\0])', re.IGNORECASE)  # the first line of files for Excel
_TOO_LARGE = Unreadable("a number of more than 64 bits", "number_too_large", "; write it as text")
_SPANS_LINES = (
    "a quote begins a value that goes on in the next line, and files with tabs may mean it or not: say "
    "--quoting none where quotes are plain characters, as databases write them, and --quoting csv where they "
    "hold values of several lines"
)
_BLANKS = " \t\r\n"  # but the delimiter: a line of these is blank, as for pandas
_MEND_QUOTES = (
    'end what a quote begins, and write "" for a quote inside of a text; where quotes are plain characters, '
    "as databases write them, say --quoting none"
)
_TOO_LONG = "\0over the limit\0"  # stands for a line


def file_rows(
    uri: str, source: Rows, line_limit: int, options: ObjectStoreOptions | None
) -> Iterator[TableRow]:
    """The rows of one file. InputError where it cannot be read or lacks a column."""
    if source.format == "jsonl":
        return _json_rows(uri, source.shape, line_limit, options)
    if source.format == "parquet":
        return _parquet_rows(uri, source.shape, line_limit, options)
    return _csv_rows(uri, source, line_limit, options)


def _json_rows(
    uri: str, shape: RowShape, limit: int, options: ObjectStoreOptions | None
) -> Iterator[TableRow]:
    columns, kept = tuple(columns_of(shape)), frozenset(shape.keep_columns)
    nested = kept if shape.fields is None else kept | shape.fields.names
    folders = partition_of(uri, columns)
    for number, line in json_lines(uri, limit=limit, options=options):
        if line is None:
            yield number, too_long(limit)
            continue
        try:
            row = parse_object(line)
        except BadText as bad:  # perhaps in a column that is not read
            row = bad.row
            for column, told in bad.unfit.items():
                row[column] = Unreadable(told, "invalid_text", "; remove it")
        except BadRow as bad:
            if line.strip():
                yield number, bad
            continue
        large = [name for name in columns if type(one := row.get(name)) is float and abs(one) >= ROUNDED]
        large += [name for name in row.keys() & nested if holds_rounded(row[name])]
        for name in large:
            if writes_long(line, name):
                row[name] = _TOO_LARGE
        yield number, folders | row if folders else row


def _csv_rows(uri: str, source: Rows, limit: int, options: ObjectStoreOptions | None) -> Iterator[TableRow]:
    shape, delimiter = source.shape, source.delimiter or ("\t" if source.format == "tsv" else ",")
    csv.field_size_limit(max(csv.field_size_limit(), limit))  # the one setting is the process's
    quoted = source.quoting != "none"
    texts = _csv_lines(uri, limit, options, quoted=quoted)
    blank, first = 0, next(texts, "")
    if (told := _SEP.fullmatch(first.strip("\r\n"))) is not None:
        if source.delimiter not in (None, told[1]):
            raise InputError([_two_delimiters(uri, told[1], delimiter)])
        delimiter = told[1]
        blank, first = 1, next(texts, "")
    blanks = _BLANKS.replace(delimiter, "")
    while first and not first.strip(blanks):  # the header is the first line that is not blank
        blank, first = blank + 1, next(texts, "")
    hint = _other_delimiter(first, delimiter)
    record = Record(chain(repeat("\n", blank), [first], texts), limit)  # all lines: an error names one
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader_of = partial(csv.reader, delimiter=delimiter, quoting=quoting, strict=True)
    doubtful = source.quoting is None and delimiter == "\t"
    records = _csv_records(uri, reader_of, record, hint, doubtful=doubtful)
    number, header = next((one for one in records if record.last.strip(blanks)), (0, []))
    if header == [_TOO_LONG]:
        raise InputError([Problem("line_too_long", too_long(limit).message, uri, number)])
    folders = partition_of(uri, columns_of(shape).keys() - set(header))
    if header:  # else the file has blank lines alone
        check_columns(shape, (*header, *folders), uri, hint, csv=True)
    for number, values in records:
        if record.last.strip(blanks):  # a blank line is no row; the last line of a quoted value has a quote
            yield number, _csv_row(header, values, folders, limit)


def _csv_lines(uri: str, limit: int, options: ObjectStoreOptions | None, *, quoted: bool) -> Iterator[str]:
    """The lines of the file, a sign in place of each that is too long.

    Bytes that are not UTF-8 become lone surrogates, and are found where a prompt is built.

    Raises:
        InputError: a line that is too long begins or ends a quote, so no record after it can be told.
    """
    quotes = 0

    def count(piece: bytes) -> None:
        nonlocal quotes
        quotes += piece.count(b'"')

    for number, line in open_lines(uri, limit=limit, options=options, dropped=count):
        if line is not None:
            yield line.decode("utf-8", "surrogateescape") + "\n"
            continue
        if quoted and quotes % 2:
            told = f"{too_long(limit).message}; it begins or ends a quote, so no row after it can be told"
            raise InputError([Problem("line_too_long", told, uri, number)])
        quotes = 0
        yield f"{_TOO_LONG}\n"


def _csv_records(
    uri: str, reader_of: ReaderOf, record: Record, hint: str, *, doubtful: bool
) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, values) of each record; a sign alone for one over the limit.

    An error ends the file. Past a quote that is not closed, or closed too soon, no parser can tell where the
    next record begins. What looks like one may be the inside of a text. Where it is ``doubtful`` that quotes
    are CSV's, a value of several lines ends the file, too: it may be several rows.
    """
    header, reader = True, reader_of(record)
    while True:
        number = record.number + 1
        try:
            values = _csv_values(reader, record, None if doubtful else reader_of)
        except csv.Error as error:
            advice = hint if hint and header else _csv_advice(error)
            raise InputError([Problem("invalid_csv", advice, uri, number)]) from None
        except EndlessRecordError as endless:
            told = f"the row that begins here has {endless}, and no row after it can be told; {_MEND_QUOTES}"
            raise InputError([Problem("invalid_csv", told, uri, number)]) from None
        record.end()
        if values is None:
            return
        if doubtful and record.number > number:
            raise InputError([Problem("invalid_csv", _SPANS_LINES, uri, number)])
        header = header and not values
        yield number, values


def _csv_values(reader: Reader, record: Record, reader_of: ReaderOf | None) -> list[str] | None:
    """The next record's values; a sign alone for one over the limit, passed over with ``reader_of``."""
    try:
        return next(reader, None)
    except RecordTooLongError:
        if reader_of is not None:
            record.pass_over(reader_of)
        return [_TOO_LONG]


def _csv_advice(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return (
            "a CR stands where no line ends; let lines end in LF or CRLF, and put texts with a CR in quotes"
        )
    return f"the row that begins here is not CSV ({error}), and no row after it can be told; {_MEND_QUOTES}"


def _csv_row(
    header: list[str], values: list[str], folders: dict[str, str | None], limit: int
) -> dict[str, Any] | BadRow:
    if any(_TOO_LONG in value for value in values):  # alone, or within a quote of several lines
        return too_long(limit)
    if len(values) != len(header):
        return BadRow("invalid_csv", f"the row has {len(values)} values, the header {len(header)}")
    return dict(zip(header, values, strict=True), **folders)


@contextmanager
def open_parquet(uri: str, options: ObjectStoreOptions | None) -> Iterator[parquet.ParquetFile]:
    """A Parquet file; what is wrong with it leaves the block as an InputError.

    Without a buffer's size pyarrow reads a column's whole chunk of a row group at once: gigabytes of images.
    """
    import pyarrow
    from pyarrow import parquet

    with open_seekable(uri, options=options) as file:
        try:
            buffer = PART_BYTES if is_remote(uri) else BLOCK_BYTES
            yield parquet.ParquetFile(file, pre_buffer=False, buffer_size=buffer)
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            reason = first_line(error, 200, type(error).__name__)
            if uri.lower().endswith((".gz", ".zst")):
                reason += "; its name says that it is compressed as a whole: unpack it (gzip -d, zstd -d)"
            raise InputError(
                [Problem("invalid_parquet", f"not readable as Parquet: {reason}", uri)]
            ) from error


def _parquet_rows(
    uri: str, shape: RowShape, limit: int, options: ObjectStoreOptions | None
) -> Iterator[TableRow]:
    with open_parquet(uri, options) as file:
        names = file.schema_arrow.names
        read = columns_of(shape)
        folders = partition_of(uri, read.keys() - set(names))
        check_columns(shape, (*names, *folders), uri)
        fields = shape.fields.names if shape.fields else frozenset()
        wanted = [
            *(name for name in read if name not in folders),
            *(name for name in names if name in fields and names.count(name) == 1),
        ]
        number = 0
        for batch in file.iter_batches(_rows_at_a_time(file.metadata, wanted), columns=wanted):
            columns = [parquet_values(column) for column in batch.columns]
            long = _long_rows(batch, columns, limit, but=columns_of_files(shape).values())
            rows = zip(*columns, strict=True) if columns else repeat((), batch.num_rows)  # folders have all
            for place, row in enumerate(rows):
                number += 1
                found = dict(zip(batch.schema.names, row, strict=True), **folders)
                yield number, too_long(limit) if place in long else found


def _rows_at_a_time(metadata: parquet.FileMetaData, columns: Collection[str]) -> int:
    """Fewer rows where these columns are large, as images are: a batch is in memory twice, once as Python's.

    A text that repeats is in the file once, so that the file's size says little of the rows'. One of these
    texts is no larger than all bytes of its column.
    """
    paths = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    read = [
        place
        for place, path in enumerate(paths)
        if path in columns or any(path.startswith(f"{name}.") for name in columns)
    ]
    rows = BATCH_ROWS
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = 0
        for column in map(group.column, read):
            size += column.total_uncompressed_size
            if column.physical_type == "BYTE_ARRAY" and not _PLAIN.issuperset(column.encodings):
                rows = min(rows, max(_REPEATED_ROWS, BATCH_BYTES // max(1, column.total_uncompressed_size)))
        rows = min(rows, BATCH_BYTES // max(1, size // max(1, group.num_rows)))
    return max(1, rows)


def _long_rows(
    batch: pyarrow.RecordBatch, columns: list[list[Any]], limit: int, *, but: Collection[str]
) -> set[int]:
    """The rows with a value of more than ``limit`` bytes; files, in columns ``but``, have their own limit."""
    import pyarrow

    long: set[int] = set()
    for name, column, values in zip(batch.schema.names, batch.columns, columns, strict=True):
        if name in but:
            continue
        if pyarrow.types.is_nested(column.type) and column.nbytes > limit:
            long.update(row for row in range(len(column)) if column.slice(row, 1).nbytes > limit)
        long.update(row for row, value in enumerate(values) if type(value) is str and is_long(value, limit))
    return long


def is_long(text: str, limit: int) -> bool:
    """Whether a text has more than ``limit`` bytes."""
    return len(text) * 4 > limit and len(text.encode("utf-8", "surrogateescape")) > limit


def parquet_values(column: pyarrow.Array[Any]) -> list[Any]:
    """The values of a column; maps are objects, where all their keys are texts."""
    import pyarrow

    if column.type == pyarrow.time64("ns"):  # Python's times end at microseconds
        return [
            time if text is None or text.endswith("000") else text
            for time, text in zip(column.to_pylist(), column.cast(pyarrow.string()).to_pylist(), strict=True)
        ]
    column = in_own_precision(column)
    maps: Literal["strict"] | None = "strict" if _keys_are_texts(column.type) else None
    try:
        found: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    except (ValueError, OverflowError, KeyError):  # no writer or reader checks that texts are UTF-8
        found = [_parquet_value(value, maps) for value in column]
    return with_short_halves(found, column.type)


def _keys_are_texts(kind: Any) -> bool:
    """Whether the keys of all maps in a type can be names of objects."""
    from pyarrow import types

    if types.is_map(kind) and not (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
        return False
    return all(_keys_are_texts(kind.field(at).type) for at in range(kind.num_fields))


def _parquet_value(value: pyarrow.Scalar[Any], maps: Literal["strict"] | None) -> Any:
    """The value, as CSV gives it: bytes that are not UTF-8 become lone surrogates, refused in prompts."""
    import pyarrow

    try:
        return value.as_py(maps_as_pydicts=maps)
    except UnicodeDecodeError:
        if not isinstance(value, pyarrow.StringScalar):
            return ["\udcff"]  # nested: no text, and no messages
        return value.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
    except (ValueError, OverflowError) as error:
        if "duplicate field names" in str(error):
            return Unreadable(f"a value of the type {value.type}, which has a field twice")
        return Unreadable(f"a value of the type {value.type} outside the years 1 to 9999")
    except KeyError as error:
        if type(error) is KeyError:  # those of time zones are classes of their own
            return Unreadable("a map with a key of it twice", advice="; write each key once")
        return Unreadable(f"a value of the type {value.type}, whose time zone is not known here")


def _two_delimiters(uri: str, told: str, given: str) -> Problem:
    message = (
        f"the first line, which is for Excel, says that {told!r} delimits values, and --delimiter says "
        f"{given!r}; leave --delimiter out, or remove that line where it is wrong"
    )
    return Problem("invalid_csv", message, uri, 1)


def _other_delimiter(first: str, delimiter: str) -> str:
    """What to say of a first line without the delimiter, but with another."""
    found = next((sign for sign in _DELIMITERS if delimiter not in first and sign in first), None)
    if found is None:
        return ""
    sign, option = ("a tab", "tab") if found == "\t" else (f"{found!r}", f"'{found}'")
    return f"the values of the first line seem to be delimited by {sign}: say --delimiter {option}"


def check_columns(
    shape: RowShape, columns: tuple[str, ...], name: str, hint: str = "", *, csv: bool = False
) -> None:
    """InputError where a column that the shape reads is not among those of the input ``name``."""
    problems = []
    for column, code in columns_of(shape).items():
        if column not in columns:
            bad = missing_column(column, columns, code, csv=csv)
            message = f"there is no column {column!r}; {hint}" if hint else bad.message
            problems.append(Problem(bad.code, message, name, None, column))
        elif columns.count(column) > 1:
            problems.append(
                Problem("duplicate_column", "the column is there more than once", name, None, column)
            )
    if problems:
        raise InputError(problems)

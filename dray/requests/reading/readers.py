"""Sources into rows: one flat stream of ``RawRow`` whatever the format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dray.requests.columns.row_builder import columns_of, row_builder
from dray.requests.media.medium import roots_of
from dray.requests.media.placing import media_placer
from dray.requests.outputs.kept import reader
from dray.requests.pulse import ReadingPulse
from dray.requests.reading import queries, tables
from dray.requests.reading.inputs import FileRef, digest, expand
from dray.requests.reading.json_lines import json_lines
from dray.requests.reading.partitions import with_partitions
from dray.requests.reading.settling import needs_kind
from dray.requests.row_shape import RowShape
from dray.requests.sources import JsonlBatch, RowDefaults, Source, SqlQuery
from dray.requests.validate import BadRow, Envelope, filler, read_envelope, too_long
from dray.storage.files import LINE_LIMIT_BYTES
from dray.storage.objects import ObjectStoreOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadLimits:
    """``line_bytes``: the longest row accepted. ``problems``: how many are collected before giving up."""

    line_bytes: int = LINE_LIMIT_BYTES
    problems: int = 20


class RawRow(NamedTuple):
    """One row of the input: what it asks (``envelope``), or what is wrong with it (``bad``).

    ``kept`` are its values of the columns that stand beside the answers, where dray could read the row.
    """

    file_no: int
    line_no: int
    envelope: Envelope | None
    bad: BadRow | None
    kept: tuple[Any, ...] | None = None


def files_of(source: Source, *, options: ObjectStoreOptions | None = None) -> list[FileRef]:
    """The files that a source names; none for a query."""
    return [] if isinstance(source, SqlQuery) else expand(source.inputs, options=options)


def source_digest(source: Source, *, options: ObjectStoreOptions | None = None) -> str:
    """What the input is, in one hex digest: of the files, or of a query and where it is asked.

    The kind that the user gives is part of it for a batch file whose rows do not say theirs.

    A query's rows are read once, into the spool: a resumed job goes on with those, whatever the database
    says by then. Whether one that is over is the job of its rows by now is for the job layer (query_jobs).
    """
    if isinstance(source, SqlQuery):
        return queries.query_digest(source)
    files = files_of(source, options=options)
    found = with_partitions(
        digest(files, options=options), [ref.uri for ref in files], columns_of(source.shape)
    )
    if isinstance(source, JsonlBatch) and needs_kind(source, options):
        return hashlib.sha256(f"{found}\n{source.shape.kind}".encode()).hexdigest()
    return found


def read_rows(
    source: Source,
    files: Sequence[FileRef],
    defaults: RowDefaults,
    limits: ReadLimits,
    options: ObjectStoreOptions | None = None,
    pulse: ReadingPulse | None = None,
) -> Iterator[RawRow]:
    """Every row of the source in order; blank lines are no rows. InputError for an unreadable file.

    A query is cancelled when ``pulse`` is stopped.
    """
    if isinstance(source, JsonlBatch):
        return _batch_rows(source, files, defaults, limits, options)
    if isinstance(source, SqlQuery):
        return _table_rows([queries.query_rows(source, limits.line_bytes, pulse)], source.shape, defaults)
    opened = (tables.file_rows(ref.uri, source, limits.line_bytes, options) for ref in files)
    return _table_rows(opened, source.shape, defaults)


def _batch_rows(
    source: JsonlBatch,
    files: Sequence[FileRef],
    defaults: RowDefaults,
    limits: ReadLimits,
    options: ObjectStoreOptions | None,
) -> Iterator[RawRow]:
    place = media_placer(roots_of(source.shape))
    fill = filler(defaults.sampling) if defaults.sampling else None
    for file_no, ref in enumerate(files):
        for line_no, line in json_lines(ref.uri, limit=limits.line_bytes, options=options):
            try:
                if line is None:
                    raise too_long(limits.line_bytes)
                envelope = read_envelope(line, source.shape.kind)
                _place_media(envelope, place)
            except BadRow as bad:
                if line is None or line.strip():  # a blank line is no row
                    yield RawRow(file_no, line_no, None, bad)
                continue
            if fill is not None:
                fill(envelope.url, envelope.body)
            yield RawRow(file_no, line_no, envelope, None)


def _place_media(envelope: Envelope, place: Callable[[str, dict[str, Any]], None]) -> None:
    try:
        place(envelope.url, envelope.body)
    except BadRow as bad:
        bad.custom_id = envelope.custom_id
        raise


def _table_rows(
    opened: Iterable[Iterator[tables.TableRow]], shape: RowShape, defaults: RowDefaults
) -> Iterator[RawRow]:
    build = row_builder(shape)
    keep = reader(shape.keep_columns)
    fill = filler(defaults.sampling)
    index = 0
    for file_no, rows in enumerate(opened):
        for line_no, row in rows:
            envelope, bad, kept = _read(index, row, build, keep)
            if envelope is not None:
                fill(envelope.url, envelope.body)
            yield RawRow(file_no, line_no, envelope, bad, kept)
            index += 1


def _read(
    index: int,
    row: dict[str, Any] | BadRow,
    build: Callable[[int, Mapping[str, Any]], Envelope],
    keep: Callable[[Mapping[str, Any]], tuple[Any, ...]],
) -> tuple[Envelope | None, BadRow | None, tuple[Any, ...] | None]:
    """The request of a row, or what is wrong with it, and its kept values.

    A row whose values cannot be kept has its id all the same, and one that is no request its values.
    """
    if isinstance(row, BadRow):
        return None, row, None
    kept, unkept = None, None
    try:
        kept = keep(row)
    except BadRow as bad:
        unkept = bad
    try:
        envelope = build(index, row)
    except BadRow as bad:
        return None, bad, kept
    if unkept is None:
        return envelope, None, kept
    unkept.custom_id = envelope.custom_id
    return None, unkept, None

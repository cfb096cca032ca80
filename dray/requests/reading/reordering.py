"""A template whose lines may change places: look at the first rows, and settle their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dray.errors import InputError
from dray.requests.columns.template import Template, names_columns
from dray.requests.pulse import ReadingPulse
from dray.requests.reading import queries, tables
from dray.requests.reading.inputs import FileRef
from dray.requests.sources import JsonlBatch, Rows, Source, SqlQuery
from dray.requests.validate import BadRow
from dray.storage.files import LINE_LIMIT_BYTES
from dray.storage.objects import ObjectStoreOptions


def reordered(
    source: Source,
    files: Sequence[FileRef],
    *,
    line_bytes: int = LINE_LIMIT_BYTES,
    options: ObjectStoreOptions | None = None,
    pulse: ReadingPulse | None = None,
) -> tuple[Source, str | None]:
    """``source`` with the best order of its template's lines, and what to say of it.

    A source that does not ask for it is returned as it is. Equal rows give equal orders, so a spool that is
    lost is written again as it was. The rows of a query are asked for twice.

    Raises:
        ConfigError: no two neighbouring lines of the template name columns.
    """
    if isinstance(source, JsonlBatch) or not source.shape.reorder_fields or source.shape.template is None:
        return source, None
    from dray.requests.columns.field_order import ordered_lines  # and NumPy, for jobs that ask for it

    lines = source.shape.template.split("\n")
    found = ordered_lines(lines, _rows(source, files, line_bytes, options, pulse or ReadingPulse()))
    shape = replace(source.shape, template="\n".join(found.lines), reorder_fields=False)
    moved = "stay in their order" if found.lines == lines else f"change places ({_names(found.lines)})"
    told = f"the template's lines {moved}: rows share {found.shared:.0%} of their text with the row before"
    if found.lines != lines:
        told += f", {found.given:.0%} in the order that was given"
    return replace(source, shape=shape), told


def _rows(
    source: Rows | SqlQuery,
    files: Sequence[FileRef],
    line_bytes: int,
    options: ObjectStoreOptions | None,
    pulse: ReadingPulse,
) -> Iterable[dict[str, Any]]:
    """Rows up to the first that cannot be read: ingest comes to it as well, and reports it."""
    if isinstance(source, SqlQuery):
        opened = iter([queries.query_rows(source, line_bytes, pulse)])
    else:
        opened = (tables.file_rows(ref.uri, source, line_bytes, options) for ref in files)
    with suppress(InputError):
        for rows in opened:
            for _, row in rows:
                pulse.row()
                if not isinstance(row, BadRow):
                    yield row


def _names(lines: Sequence[str]) -> str:
    return ", ".join(name for line in lines if names_columns(line) for name in Template.parse(line).columns)

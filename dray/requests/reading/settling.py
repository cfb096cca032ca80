"""What a job's rows are where its options do not say: a batch file, or a column of chat messages.

JSON lines and Parquet tell by themselves: the one by its first rows, the other by its columns' types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from dray.errors import ConfigError, InputError
from dray.kinds import KINDS, Kind, of_conversations
from dray.requests.columns.bodies import ALWAYS, ASIDE, BESIDE_OTHERS, SYSTEM, fields_among
from dray.requests.columns.template import named
from dray.requests.media.medium import MEDIA
from dray.requests.reading.inputs import expand
from dray.requests.reading.json_lines import json_lines
from dray.requests.reading.tables import open_parquet, parquet_values
from dray.requests.rejects import empty_input
from dray.requests.row_shape import OPEN_SHAPE, RowShape
from dray.requests.sources import JsonlBatch, Rows, Source, SqlQuery
from dray.requests.validate import POST
from dray.storage.files import LINE_LIMIT_BYTES
from dray.storage.objects import ObjectStoreOptions

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

COLUMNS = ("messages", "prompt", "conversations")
"""Where chat messages are looked for, the likeliest first."""

_ID = "custom_id"
_ROWS_SEEN = 20
_PAIRS = (frozenset(("role", "content")), frozenset(("from", "value")))


def settled(source: Source, *, options: ObjectStoreOptions | None = None) -> tuple[Source, str | None]:
    """``source`` with its columns named, and what to say of it where they were found and not given.

    Raises:
        ConfigError: nothing says what becomes the prompt; names the columns that are there.
        InputError: an input is missing.
    """
    if isinstance(source, SqlQuery) or not source.shape.is_open:
        return source, None
    if isinstance(source, JsonlBatch):
        return _settled_lines(source, options)
    return _settled_parquet(source, options)


def _settled_lines(source: JsonlBatch, options: ObjectStoreOptions | None) -> tuple[Source, str | None]:
    shape = source.shape
    rows, uri = _first_rows(source, options)
    batch = not any(rows) or any(map(_has_envelope, rows))
    column = None if batch else next((name for name in COLUMNS if _holds_messages(rows, name)), None)
    if column is not None:
        if shape.kind.conversation is None:
            raise ConfigError(
                f"{uri}: the column {column!r} holds chat messages, which go with {of_conversations()} only, "
                f"not with {shape.kind}; name a column of texts with --prompt-column"
            )
        ids = _ID if shape.id_column is None and all(_ID in row for row in rows) else shape.id_column
        names = dict.fromkeys(name for row in rows for name in row)
        fields = fields_among(rows, generates=shape.kind.engine.generates, nulls=True)
        found = replace(shape, messages_column=column, id_column=ids, fields=fields)
        return Rows(inputs=source.inputs, format="jsonl", shape=found), _told(found, names)
    if not batch and not any(_ID in row for row in rows):
        raise _unsaid(uri, next(row for row in rows if row))
    files = (medium.column for medium in MEDIA)
    for name in ("system_prompt", "id_column", *files, "document_column", "keep_columns"):
        if getattr(shape, name) not in (None, ()):
            raise ConfigError(
                f"{name.replace('_', ' ')} goes with a prompt column, a template or a column of messages; "
                "rows in the OpenAI batch format say it themselves"
            )
    _refuse_other_kind(shape.kind, rows, uri)
    return source, None


def needs_kind(source: JsonlBatch, options: ObjectStoreOptions | None) -> bool:
    """Whether the kind that the user gives is that of rows: those of Together and Mistral name no URL."""
    if source.shape.kind == OPEN_SHAPE.kind:
        return False
    rows, _ = _first_rows(source, options)
    return any(_ID in row and isinstance(row.get("body"), dict) and row.get("url") is None for row in rows)


def _has_envelope(row: dict[str, Any]) -> bool:
    """Whether a row is of a batch file. Data sets have columns of these names, too: a page's url, a body."""
    url = row.get("url")
    if isinstance(row.get("body"), dict):
        return True
    return isinstance(url, str) and (url in KINDS or (row.get("method") in POST and url.startswith("/")))


def _refuse_other_kind(kind: Kind, rows: list[dict[str, Any]], uri: str) -> None:
    """Refuse a kind that the user has named, for a batch file of another. The default may be unsaid."""
    asked = (row.get("url") for row in rows)
    url = next((url for url in asked if isinstance(url, str) and url in KINDS), None)
    if url is not None and kind != OPEN_SHAPE.kind and KINDS[url] != kind:
        raise ConfigError(
            f"{uri}: rows in the OpenAI batch format say their kind themselves: these ask {url}, and --kind "
            f"is {kind}; leave --kind out, or change the url of the rows"
        )


def _settled_parquet(source: Rows, options: ObjectStoreOptions | None) -> tuple[Source, str | None]:
    for ref in expand(source.inputs, options=options):
        found_here = _schema(ref.uri, options)
        if found_here is None:
            continue
        schema, column = found_here
        if column is None:
            raise _unsaid(ref.uri, dict.fromkeys(schema.names))
        generates = source.shape.kind.engine.generates
        fields = fields_among([schema.names], generates=generates, nulls=False)
        found = replace(source.shape, messages_column=column, fields=fields)
        return replace(source, shape=found), _told(found, schema.names)
    raise empty_input(source.inputs[0])


def _first_rows(source: JsonlBatch, options: ObjectStoreOptions | None) -> tuple[list[dict[str, Any]], str]:
    """The first JSON objects of the first file that has any, and that file."""
    uri = source.inputs[0]
    for ref in expand(source.inputs, options=options):
        uri = ref.uri
        try:
            lines = json_lines(uri, limit=LINE_LIMIT_BYTES, options=options)
            rows = [row for row in islice(_parsed(lines), _ROWS_SEEN) if isinstance(row, dict)]
        except InputError:
            return [], uri  # ingest reports it, after what comes before
        if rows:
            return rows, uri
    return [], uri


def _parsed(lines: Iterator[tuple[int, bytes | None]]) -> Iterator[Any]:
    for _, line in lines:
        if line is None or line.strip():
            try:
                yield orjson.loads(line or b"")
            except orjson.JSONDecodeError:
                yield None


def _holds_messages(rows: list[dict[str, Any]], column: str) -> bool:
    values = [row[column] for row in rows if row.get(column)]
    return bool(values) and all(isinstance(value, list) and _is_message(value[0]) for value in values)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and any(pair <= value.keys() for pair in _PAIRS)


def _schema(uri: str, options: ObjectStoreOptions | None) -> tuple[pyarrow.Schema, str | None] | None:
    """A file's columns, and the one of messages; None without rows, whose columns may have any type."""
    with open_parquet(uri, options) as file:
        if not file.metadata.num_rows:
            return None
        return file.schema_arrow, next((name for name in COLUMNS if _is_messages(file, name)), None)


def _is_messages(file: parquet.ParquetFile, column: str) -> bool:
    from pyarrow import types

    schema = file.schema_arrow
    if schema.names.count(column) != 1:
        return False
    kind: Any = schema.field(column).type
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    part = kind.value_type
    if types.is_map(part):  # the type does not name the keys
        first = next(file.iter_batches(_ROWS_SEEN, columns=[column])).column(0)
        return _holds_messages([{column: value} for value in parquet_values(first)], column)
    return types.is_struct(part) and any(pair <= {field.name for field in part} for pair in _PAIRS)


def _told(shape: RowShape, columns: Iterable[str]) -> str:
    said = shape.fields.said if shape.fields else frozenset()
    fields = [name for name in columns if name in said & ALWAYS]
    beside = [name for name in columns if name in said & BESIDE_OTHERS]
    aside = [name for name in columns if name in ASIDE and name not in said]
    told = f"messages come from the column {shape.messages_column!r}"
    if shape.id_column:
        told += f", ids from the column {shape.id_column!r}"
    if SYSTEM in said:
        told += f", system messages from the column {SYSTEM!r}"
    if fields:
        told += f"; {', '.join(fields)} of each row {'goes' if len(fields) == 1 else 'go'} into its request"
    if beside:
        told += f", and {', '.join(beside)} where it has one of these"
    if aside:
        told += f"; left aside: {', '.join(aside)}"
    if not said:
        return f"{told} (--messages-column names another)"
    return f"{told} (--messages-column {shape.messages_column} takes the messages alone)"


def _unsaid(uri: str, columns: Mapping[str, object]) -> ConfigError:
    return ConfigError(
        f"{uri}: say what becomes the prompt: --prompt-column NAME for a column of texts, --template, or "
        f"--messages-column NAME for chat messages; {named(list(columns))}"
    )

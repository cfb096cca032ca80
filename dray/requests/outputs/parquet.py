"""Outcomes as Parquet: answers with the fields people query for as columns, and error rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import orjson
import pyarrow
from pyarrow import parquet

from dray.kinds import OutputColumn, finish_reason, output_columns
from dray.requests.outputs.kept import KeptColumn, KeptRow, cell
from dray.requests.outputs.lines import Finished, Page
from dray.requests.outputs.series import Series
from dray.storage.draft import Draft

# Row groups are cut by what the rows hold, never by how they were paged: same rows, same bytes.
_GROUP_ROWS = 16_384
_GROUP_BYTES = 32 << 20
_GROUPS_OF_A_PART = 4  # at least: so groups of small parts are smaller

_ARROW: dict[str, pyarrow.DataType] = {
    "text": pyarrow.string(),
    "number": pyarrow.float64(),
    "numbers": pyarrow.list_(pyarrow.float32()),
    "boolean": pyarrow.bool_(),
    "integer": pyarrow.int64(),
    "json": pyarrow.string(),
}
_ERRORS_FIELDS: list[pyarrow.Field[Any]] = [
    pyarrow.field("index", pyarrow.int64(), nullable=False),
    pyarrow.field("custom_id", pyarrow.string()),
    pyarrow.field("code", pyarrow.string(), nullable=False),
    pyarrow.field("message", pyarrow.string()),
]
ERRORS_SCHEMA = pyarrow.schema(_ERRORS_FIELDS)
"""Columns of ``errors.parquet``."""


def output_schema(columns: Iterable[OutputColumn]) -> pyarrow.Schema:
    """Columns of ``output.parquet``: those of the kinds, and ``finish_reason``, are of the first choice;
    ``response`` is the whole OpenAI response body as JSON.
    """
    fields: list[pyarrow.Field[Any]] = [
        pyarrow.field("index", pyarrow.int64(), nullable=False),
        pyarrow.field("custom_id", pyarrow.string()),
        *(pyarrow.field(column.name, _ARROW[column.type]) for column in columns),
        pyarrow.field("finish_reason", pyarrow.string()),
        pyarrow.field("prompt_tokens", pyarrow.int64()),
        pyarrow.field("completion_tokens", pyarrow.int64()),
        pyarrow.field("response", pyarrow.string(), nullable=False),
    ]
    return pyarrow.schema(fields)


def names_beside(columns: Iterable[str]) -> list[str]:
    """The names that kept columns have in the files: ``row_`` is before one that dray's own have."""
    own = {*output_schema(output_columns()).names, *ERRORS_SCHEMA.names}
    return [f"row_{column}" if column in own else column for column in columns]


class ParquetWriter:
    """Writes both sorts of rows a row group at a time. Every part is a whole Parquet file."""

    def __init__(self, output: Series, errors: Series, kept: Sequence[KeptColumn] = ()) -> None:
        self._columns = output_columns()
        self._kept = kept
        self._names = names_beside([column.name for column in kept])
        self._answers = _Table(output, self._with_kept(output_schema(self._columns)))
        self._failures = _Table(errors, self._with_kept(ERRORS_SCHEMA))

    def add(self, page: Page, kept: Sequence[KeptRow] | None = None) -> None:
        """Take the next page."""
        for place, row in enumerate(page):
            beside, more = ({}, 0) if kept is None else (self._beside(kept[place]), kept[place].size)
            if row.response is not None:
                values = _answer(row, row.response, self._columns)
                self._answers.add(values | beside, len(row.response) + more)
            else:
                values = {"index": row.index, "custom_id": row.custom_id}
                values |= {"code": row.error_code, "message": row.error_message}
                self._failures.add(values | beside, len(row.error_message or "") + more)

    def close(self) -> None:
        """Write what is left, the footers, and the manifests of what came to several files."""
        self._answers.close()
        self._failures.close()

    def _with_kept(self, schema: pyarrow.Schema) -> pyarrow.Schema:
        for name, column in zip(self._names, self._kept, strict=True):
            schema = schema.append(pyarrow.field(name, _ARROW[column.type]))
        return schema

    def _beside(self, row: KeptRow) -> dict[str, Any]:
        """The kept values of a row by the names of their columns."""
        return {
            name: cell(column, value)
            for name, column, value in zip(self._names, self._kept, row.values, strict=True)
        }


class _Table:
    def __init__(self, series: Series, schema: pyarrow.Schema) -> None:
        self._series = series
        self._schema = schema
        self._writer = self._open()
        self._group_bytes = min(_GROUP_BYTES, series.most // _GROUPS_OF_A_PART)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, row: dict[str, Any], size: int) -> None:
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= self._group_bytes:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._series.close()

    def _open(self) -> parquet.ParquetWriter:
        names = self._schema.names
        # Texts hardly ever repeat: dictionaries and statistics over them only cost time and space.
        return parquet.ParquetWriter(
            cast("Any", _Sink(self._series.draft)),
            self._schema,
            compression="zstd",
            use_dictionary=cast("Any", [name for name in ("finish_reason", "code") if name in names]),
            write_statistics=["index", "custom_id"],
        )

    def _flush(self) -> None:
        if not self._rows:
            return
        # What a group comes to is known once it is compressed; the answers in it are seldom less than that.
        if self._series.draft.rows and not self._series.fits(self._bytes):
            self._writer.close()
            self._series.next()
            self._writer = self._open()
        columns = [
            pyarrow.array([row[field.name] for row in self._rows], type=field.type) for field in self._schema
        ]
        batch = pyarrow.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(batch, row_group_size=_GROUP_ROWS)
        self._series.note(rows=len(self._rows), first=self._rows[0]["index"], last=self._rows[-1]["index"])
        self._rows, self._bytes = [], 0


class _Sink:
    """What pyarrow needs of a file to write to, over a draft."""

    closed = False

    def __init__(self, file: Draft) -> None:
        self._file = file
        self._broken = False

    def write(self, data: Any) -> int:
        piece = bytes(data)
        # pyarrow writes a table's end also when the table is thrown away after an error: to nowhere.
        if not self._broken and not self._file.closed:
            self._broken = True
            self._file.write(piece)
            self._broken = False
        return len(piece)

    def tell(self) -> int:
        return self._file.size

    def flush(self) -> None:
        """Nothing is held back here."""

    def close(self) -> None:
        """Leaves the file open: the caller that opened the draft closes it."""


def _answer(row: Finished, response: bytes, columns: Iterable[OutputColumn]) -> dict[str, Any]:
    """The values of one row, by the names of their columns."""
    body = orjson.loads(response)
    return {
        "index": row.index,
        "custom_id": row.custom_id,
        **{column.name: column.read(body) for column in columns},
        "finish_reason": finish_reason(body),
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "response": response.decode(),
    }

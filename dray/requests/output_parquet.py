"""Outcomes as Parquet: answers with the fields people query for as columns, and error rows."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pyarrow
from pyarrow import parquet

from dray.requests.lines import Page
from dray.storage.draft import Draft

# Row groups are cut by what the rows hold, never by how they were paged: same rows, same bytes.
_GROUP_ROWS = 16_384
_GROUP_BYTES = 32 << 20

_OUTPUT_FIELDS: list[pyarrow.Field[Any]] = [
    pyarrow.field("index", pyarrow.int64(), nullable=False),
    pyarrow.field("custom_id", pyarrow.string()),
    pyarrow.field("text", pyarrow.string()),
    pyarrow.field("embedding", pyarrow.list_(pyarrow.float32())),
    pyarrow.field("finish_reason", pyarrow.string()),
    pyarrow.field("prompt_tokens", pyarrow.int64()),
    pyarrow.field("completion_tokens", pyarrow.int64()),
    pyarrow.field("response", pyarrow.string(), nullable=False),
]
OUTPUT_SCHEMA = pyarrow.schema(_OUTPUT_FIELDS)
"""Columns of ``output.parquet``. ``text``, ``embedding`` and ``finish_reason`` are those of the first choice;
``response`` is the whole OpenAI response body as JSON."""

_ERRORS_FIELDS: list[pyarrow.Field[Any]] = [
    pyarrow.field("index", pyarrow.int64(), nullable=False),
    pyarrow.field("custom_id", pyarrow.string()),
    pyarrow.field("code", pyarrow.string(), nullable=False),
    pyarrow.field("message", pyarrow.string()),
]
ERRORS_SCHEMA = pyarrow.schema(_ERRORS_FIELDS)
"""Columns of ``errors.parquet``."""


class ParquetWriter:
    """Writes both files a row group at a time."""

    def __init__(self, output: Draft, errors: Draft) -> None:
        self._answers = _Table(output, OUTPUT_SCHEMA)
        self._failures = _Table(errors, ERRORS_SCHEMA)

    def add(self, page: Page) -> None:
        """Take the next page."""
        for row in page:
            if row[3] is None:
                self._answers.add(_answer_row(row), len(row[2]))
            else:
                self._failures.add((row[0], row[1], row[3], row[4]), 0)

    def close(self) -> None:
        """Write what is left, and the footers."""
        self._answers.close()
        self._failures.close()


class _Table:
    def __init__(self, file: Draft, schema: pyarrow.Schema) -> None:
        self._file = file
        self._schema = schema
        # Texts hardly ever repeat: dictionaries and statistics over them only cost time and space.
        self._writer = parquet.ParquetWriter(
            cast("Any", _Sink(file)),
            schema,
            compression="zstd",
            use_dictionary=cast("Any", [name for name in ("finish_reason", "code") if name in schema.names]),
            write_statistics=["index", "custom_id"],
        )
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def add(self, row: tuple[Any, ...], size: int) -> None:
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = [
            pyarrow.array(values, type=field.type)
            for values, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        batch = pyarrow.Table.from_arrays(columns, schema=self._schema)
        self._writer.write_table(batch, row_group_size=_GROUP_ROWS)
        self._file.rows += len(self._rows)
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


def _answer_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    response = cast("bytes", row[2])
    text, embedding, finish_reason = _first_choice(orjson.loads(response))
    return (row[0], row[1], text, embedding, finish_reason, row[5], row[7], response.decode())


def _first_choice(body: dict[str, Any]) -> tuple[str | None, list[float] | None, str | None]:
    choices = body.get("choices")
    if choices:
        choice = choices[0]
        message = choice.get("message")
        text = choice.get("text") if message is None else message.get("content")
        return text, None, choice.get("finish_reason")
    data = body.get("data")
    embedding = data[0].get("embedding") if data else None
    # A base64 embedding stays in the response alone.
    return None, embedding if isinstance(embedding, list) else None, None

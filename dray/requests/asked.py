"""What the rows of an input ask, in one digest: a query's text says nothing of the rows that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import orjson

from dray.requests.reading.readers import RawRow
from dray.requests.sources import Source, SqlQuery

_MODULUS = 1 << 256


class RowsDigest:
    """The digest of a pass over a query's rows. Their order does not count: few queries say one.

    It does count for rows without an id column: each is known by its place, and so is its answer.
    Files are told by their bytes: of their rows no note is taken.
    """

    def __init__(self, source: Source) -> None:
        self._wanted = isinstance(source, SqlQuery)
        self._rows = 0
        self._sum = 0

    def over(self, rows: Iterator[RawRow]) -> Iterator[RawRow]:
        """The same rows, taken note of."""
        return self._noted(rows) if self._wanted else rows

    def _noted(self, rows: Iterator[RawRow]) -> Iterator[RawRow]:
        for row in rows:
            self._rows += 1
            if row.envelope is not None:
                asked = row.envelope._asdict() | ({"kept": row.kept} if row.kept else {})
                found = sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).digest()
                self._sum = (self._sum + int.from_bytes(found)) % _MODULUS
            yield row

    @property
    def found(self) -> str | None:
        """How many there were, and what they ask, in hex; None for files."""
        return f"{self._rows}:{self._sum:064x}" if self._wanted else None

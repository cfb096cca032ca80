"""Columns in the names of folders, such as ``day=2024-01-31/part-0.parquet``.

Hive and Spark, pandas, Polars and DuckDB write data sets so, and leave these columns out of the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from urllib.parse import unquote

_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_of(uri: str, columns: Collection[str]) -> dict[str, str | None]:
    """The values of those of ``columns`` that the folders above a file name."""
    folders = (part.partition("=") for part in uri.split("/")[:-1])
    named = {unquote(name): value for name, sign, value in folders if sign and name}
    return {
        name: None if value == _NULL else unquote(value) for name, value in named.items() if name in columns
    }


def with_partitions(digest: str, uris: Iterable[str], columns: Collection[str]) -> str:
    """The digest of files, and of what their folders say: that is content, too, where it is read."""
    named = [sorted(partition_of(uri, columns).items()) for uri in uris]
    return hashlib.sha256(f"{digest}\n{named}".encode()).hexdigest() if any(named) else digest

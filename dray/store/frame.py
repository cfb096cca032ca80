"""A job's outcomes as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import orjson

from dray.kinds import output_columns
from dray.requests.outputs.kept import Kept, cell
from dray.store.records import StoredOutcome

if TYPE_CHECKING:
    import pandas as pd

_TEXT = next(column for column in output_columns() if column.name == "text")
_TYPES = {"boolean": "boolean", "integer": "Int64", "number": "float64"}
"""Types of pandas that hold the values of a kept column, and a null among them. Texts have pandas' own."""


def frame_of(pages: Iterable[list[StoredOutcome]], kept: Kept | None) -> pd.DataFrame:
    """The columns of :class:`StoredOutcome`, then ``text``, then those that stand beside the answers."""
    import pandas as pd

    fields = list(StoredOutcome._fields)
    frames = [pd.DataFrame(columns=fields)]
    beside = None if kept is None else kept.beside()
    rows: list[tuple[Any, ...]] = []
    for page in pages:
        frames.append(pd.DataFrame(page, columns=fields))
        if beside is not None:
            rows += (row.values for _, piece in beside(page) for row in piece)
    frame = pd.concat(frames[1:], ignore_index=True) if len(frames) > 1 else frames[0]
    texts = frame["response"].map(_text_of, na_action="ignore")
    frame = frame.assign(response=frame["response"].map(bytes.decode, na_action="ignore"), text=texts)
    return frame if kept is None else frame.join(_kept_frame(kept, rows, set(frame.columns)))


def _kept_frame(kept: Kept, rows: list[tuple[Any, ...]], own: set[str]) -> pd.DataFrame:
    """Named as in Parquet; with ``row_`` before what is the name of a column already."""
    import pandas as pd

    from dray.requests.outputs.parquet import names_beside

    taken, columns = set(own), {}
    beside = names_beside([column.name for column in kept.columns])
    for place, column in enumerate(kept.columns):
        name = beside[place]
        while name in taken or name in beside[place + 1 :]:
            name = f"row_{name}"
        taken.add(name)
        columns[name] = pd.Series([cell(column, row[place]) for row in rows], dtype=_TYPES.get(column.type))
    return pd.DataFrame(columns)


def _text_of(response: bytes) -> str | None:
    found: str | None = _TEXT.read(orjson.loads(response))
    return found

"""A pandas DataFrame as an input: a Parquet file of its columns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from dray.errors import ConfigError
from dray.requests.columns.bodies import ALWAYS, BESIDE_OTHERS, OBJECTS, SYSTEM
from dray.requests.columns.row_builder import columns_of
from dray.requests.reading.settling import COLUMNS
from dray.requests.row_shape import RowShape, check_fields, checked
from dray.requests.sources import Rows
from dray.storage.files import write_atomic

if TYPE_CHECKING:
    import pandas
    import pyarrow

_FRAME = "frame.parquet"


def frame_to_source(
    frame: pandas.DataFrame,
    directory: Path,
    shape: RowShape,
    *,
    before_writing: Callable[[], None] = lambda: None,
) -> Rows:
    """A DataFrame as a source: a Parquet file below ``directory``, in a folder that its bytes name.

    Equal frames give equal bytes, and no other frame's file is touched. ``before_writing`` is called before
    there is a new one, and may raise. Columns that no row is made of may hold what Parquet does not.

    Raises:
        ConfigError: it is no DataFrame of pandas, the options do not go together, or a column cannot be
            stored; names it.
    """
    _refuse_others(frame)
    check_fields(shape)
    names = [str(name) for name in frame.columns]
    if not (shape.is_open and shape.kind.conversation is not None and not set(COLUMNS).isdisjoint(names)):
        checked(shape, "a DataFrame")
    _refuse_index(frame, names, shape)
    path = _kept(_stored(frame, shape), directory, before_writing)
    return Rows(inputs=(str(path),), format="parquet", shape=shape)


def _refuse_others(frame: object) -> None:
    import pandas

    if isinstance(frame, pandas.DataFrame):
        return
    kind = type(frame)
    advice = "give one"
    if hasattr(frame, "to_pandas"):  # of polars or Arrow
        advice = "give frame.to_pandas()"
    elif isinstance(frame, pandas.Series):
        advice = "give frame.to_frame()"
    raise ConfigError(f"the frame is a {kind.__module__}.{kind.__qualname__}, no pandas.DataFrame; {advice}")


def _refuse_index(frame: pandas.DataFrame, names: Collection[str], shape: RowShape) -> None:
    for column in columns_of(shape):
        if column not in names and column in frame.index.names:
            raise ConfigError(
                f"the frame has no column {column!r}, but an index of this name; give frame.reset_index()"
            )


def _stored(frame: pandas.DataFrame, shape: RowShape) -> bytes:
    """All columns, as Parquet; those alone that rows are made of, where others cannot be stored."""
    import pandas
    import pyarrow

    wanted = {*columns_of(shape), *((*COLUMNS, SYSTEM, *ALWAYS, *BESIDE_OTHERS) if shape.is_open else ())}
    read = [(place, name) for place, name in enumerate(map(str, frame.columns)) if name in wanted]
    odd = [place for place, _ in read if isinstance(frame.dtypes.iloc[place], pandas.PeriodDtype)]
    if not odd:  # Parquet would keep their number: months or days since 1970
        with suppress(*_unstorable()):
            return _parquet(pyarrow.Table.from_pandas(frame, preserve_index=False))
    columns: dict[str, pyarrow.Array[Any]] = {}
    for place, name in read:
        if name in columns:
            raise ConfigError(f"the frame has two columns of the name {name!r}; rename one")
        series = frame.iloc[:, place]
        columns[name] = _array(series.astype("string") if place in odd else series, name, shape)
    return _parquet(pyarrow.table(columns))


def _parquet(table: pyarrow.Table) -> bytes:
    import pyarrow
    from pyarrow import parquet

    written = pyarrow.BufferOutputStream()
    plain = table.replace_schema_metadata(None)
    parquet.write_table(plain, written, compression="zstd", row_group_size=16_384)
    return written.getvalue().to_pybytes()


def _unstorable() -> tuple[type[Exception], ...]:
    """What values raise that Arrow or Parquet does not take. Nothing here is written to a disk."""
    import pyarrow

    return pyarrow.ArrowException, ValueError, TypeError, OverflowError, OSError


def _array(series: pandas.Series[Any], name: str, shape: RowShape) -> pyarrow.Array[Any]:
    """A column that Parquet takes, as JSON where it takes no other.

    Texts beside lists of parts are of one type then, and an object may be empty.
    """
    import pyarrow
    from pyarrow import parquet

    array: pyarrow.Array[Any] | None = None
    try:
        array = pyarrow.array(series, from_pandas=True)
        parquet.write_table(pyarrow.table({name: array}), pyarrow.MockOutputStream(), compression="none")
    except _unstorable() as error:
        if _is_read_as_json(name, shape) or (array is not None and _is_kept_alone(name, shape)):
            return pyarrow.array([_json(value, name) for value in series], pyarrow.string())
        advice = (
            f"name it as the column of messages (messages_column={name!r})"
            if shape.is_open and name in COLUMNS
            else f"make them one, such as with frame[{name!r}].astype(str), or leave the column out"
        )
        raise ConfigError(
            f"the frame's column {name!r} cannot be stored: Parquet does not take its values, or they are of "
            f"several types; {advice}"
        ) from error
    return array


def _is_read_as_json(name: str, shape: RowShape) -> bool:
    return name == shape.messages_column or (shape.is_open and name in OBJECTS)


def _is_kept_alone(name: str, shape: RowShape) -> bool:
    return name in shape.keep_columns and name not in columns_of(replace(shape, keep_columns=()))


def _json(value: object, name: str) -> str | None:
    if value is None or isinstance(value, str | float):  # NaN stands for none
        return value if isinstance(value, str) else None
    try:
        return orjson.dumps(value, default=_as_list).decode()
    except TypeError:
        raise ConfigError(
            f"the frame's column {name!r} holds values that JSON has not; give texts, numbers, lists and "
            "dicts"
        ) from None


def _as_list(value: Any) -> Any:
    """An array of numpy, as data frames have them that were read from Parquet."""
    if not hasattr(value, "tolist"):
        raise TypeError(type(value).__name__)
    return value.tolist()


def _kept(content: bytes, directory: Path, before_writing: Callable[[], None]) -> Path:
    """The file of a frame with these bytes. Job ids begin with its name, so its folder has the digest."""
    earlier = directory / _FRAME  # where earlier versions of dray put it, whatever it holds
    if _held_by(earlier) == content:
        return earlier
    path = directory / hashlib.sha256(content).hexdigest()[:16] / _FRAME
    if _held_by(path) != content:
        before_writing()
        with write_atomic(str(path), hashed=False) as file:
            file.write(content)
    return path


def _held_by(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:  # writing reports what does not go away
        return None

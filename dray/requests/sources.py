"""What the user names as input: a plain description, before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dray.errors import ConfigError, InputError, Problem
from dray.requests.media.medium import roots_of
from dray.requests.reading.dataset_hints import told_of_hub
from dray.requests.reading.formats import FORMATS, Format, format_of, told_of_pattern
from dray.requests.reading.inputs import local_pattern, refuse_odd
from dray.requests.row_shape import OPEN_SHAPE, RowShape, check_fields, checked
from dray.storage.addresses import HUB, refuse_secret
from dray.storage.files import local_path

Quoting = Literal["csv", "none"]
"""What quotes are in CSV and TSV: around values, which may then hold anything, or plain characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonlBatch:
    """Files in the OpenAI batch format, one request a line.

    ``shape`` is open: it says what is to be done with rows of messages, should the files hold those.
    """

    inputs: tuple[str, ...]
    shape: RowShape = OPEN_SHAPE


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Files of rows with columns; ``shape`` says what becomes the prompt.

    ``delimiter`` stands between the values of CSV and TSV where it is not their own. ``quoting`` says whether
    quotes hold values in them, or are plain characters; None where the user does not say.
    """

    inputs: tuple[str, ...]
    format: Format
    shape: RowShape
    delimiter: str | None = None
    quoting: Quoting | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SqlQuery:
    """The rows that one SQL query gives, over an SQLAlchemy URL."""

    url: str = field(repr=False)  # may hold a password
    query: str
    shape: RowShape


Source = JsonlBatch | Rows | SqlQuery


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDefaults:
    """What the job sets for every row.

    ``sampling`` holds OpenAI body fields (``max_tokens``, ``temperature``...); a row's own value wins.
    With ``model_name`` rows that name another model are left to the engine, which refuses them one by one.
    ``adapters`` are names of LoRA adapters, which rows may have beside that of the model.
    """

    model_name: str | None = None
    adapters: frozenset[str] = frozenset()
    sampling: Mapping[str, Any] = field(default_factory=dict)


def source_of(
    inputs: Sequence[str] | str,
    shape: RowShape = OPEN_SHAPE,
    *,
    query: str | None = None,
    delimiter: str | None = None,
    quoting: Quoting | None = None,
) -> Source:
    """The source of rows of this shape; the extensions of ``inputs`` say its format.

    With ``query``, the one input is a database URL. Raises ConfigError for options that do not go
    together, InputError for files of several formats.
    """
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    check_fields(shape)
    if query is not None:
        return _query(names, query, shape, delimiter or quoting)
    for name in (*names, *roots_of(shape).values()):
        refuse_secret(name)
    found = _common_format(names)
    if delimiter is not None and found not in ("csv", "tsv"):
        raise ConfigError(f"a delimiter goes with CSV files; this is {found} input")
    if quoting is not None and found not in ("csv", "tsv"):
        raise ConfigError(f"quoting goes with CSV files; this is {found} input")
    if found == "jsonl" and shape.is_open:
        return JsonlBatch(inputs=names, shape=shape)
    if not (found == "parquet" and shape.is_open and shape.kind.conversation is not None):
        shape = checked(shape, f"{found} input")
    return Rows(inputs=names, format=found, shape=shape, delimiter=_delimiter(delimiter), quoting=quoting)


def _query(names: Sequence[str], query: str, shape: RowShape, of_csv: str | None) -> SqlQuery:
    if of_csv is not None:
        raise ConfigError("a delimiter and quoting go with CSV files, not with a query")
    if len(names) != 1:
        raise ConfigError("a query reads one database: name one database URL as the input")
    return SqlQuery(url=names[0], query=query, shape=checked(shape, "a query"))


def _common_format(names: Sequence[str]) -> Format:
    formats = {name: format_of(name) for name in names}
    refuse_odd([name for name, found in formats.items() if found is None])
    problems = [
        Problem(
            "unknown_format",
            _told_of(name),
            name,
        )
        for name, found in formats.items()
        if found is None
    ]
    if problems:
        raise InputError(problems[:20], total=len(problems))
    kinds = [found for found in formats.values() if found is not None]
    if not kinds:
        raise InputError([Problem("missing_input", "no input was named")])
    if len(set(kinds)) > 1:
        odd = next(name for name, found in formats.items() if found != kinds[0])
        raise InputError(
            [
                Problem(
                    "mixed_formats", f"one job reads one format: {names[0]} is {kinds[0]}, this is not", odd
                )
            ]
        )
    return kinds[0]


def _told_of(name: str) -> str:
    """Why the format of an input is not known."""
    if name.startswith(HUB):
        return told_of_hub(name)
    if "://" not in name and any(sign in name for sign in "*?[") and not Path(name).exists():
        return told_of_pattern(local_pattern(local_path(name)))
    if name.lower().endswith((".xlsx", ".xls")):
        return "this is an Excel workbook: save its sheet as CSV, and give that file"
    return (
        "cannot tell the format from the name; give the file, or a link to it, one that ends in "
        f"{', '.join(FORMATS)} (and .gz or .zst)"
    )


def _delimiter(given: str | None) -> str | None:
    """One character; ``tab`` and ``\\t`` name the one that is hard to type."""
    if given is None:
        return None
    found = "\t" if given in ("tab", "\\t") else given
    if len(found) != 1 or found in '"\r\n\0' or (not found.isprintable() and found != "\t"):
        raise ConfigError(f"delimiter {given!r}: give one character, such as ';', '|' or tab")
    return found

"""Prompts out of columns.

A template holds plain column names in braces, ``{{`` and ``}}`` for braces themselves, and nothing else: no
attribute, index, conversion or format, so that no template can reach into the process.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dray.codes import ErrorCode
from dray.errors import ConfigError
from dray.requests.validate import BadRow, check_text

_NAMES_SHOWN = 20
_NO_TEXT = (dict, list, tuple, set, frozenset, bytes, bytearray, memoryview)  # whatever a driver gives
# What surely is a name. The first line of a CSV file without a header holds prompts.
_PLAIN_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A parsed template: literal texts, each but the last followed by a column."""

    texts: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, source: str) -> Template:
        """ConfigError for anything but plain column names."""
        texts: list[str] = []
        columns: list[str] = []
        pending = ""
        for literal, name in _parts(source):
            pending += literal
            if name is None:
                continue
            texts.append(pending)
            columns.append(name)
            pending = ""
        if not columns:
            raise ConfigError("the template names no column: every prompt would be the same")
        return cls(texts=(*texts, pending), columns=tuple(columns))

    def render(self, row: Mapping[str, Any]) -> str:
        """The prompt for one row; BadRow where a column is absent or null."""
        parts: list[str] = []
        for text, column in zip(self.texts, self.columns, strict=False):
            parts += (text, text_of(row, column, "unknown_template_column"))
        return check_text("".join((*parts, self.texts[-1])), "template")


def runs_of(lines: Sequence[str]) -> list[list[int]]:
    """The numbers of a template's lines that name columns, those next to each other together.

    Raises:
        ConfigError: each of them is alone, so none can change places with another.
    """
    runs: list[list[int]] = []
    for number, line in enumerate(lines):
        if not names_columns(line):
            continue
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if not any(len(run) > 1 for run in runs):
        raise ConfigError(
            "reorder_fields: no two neighbouring lines of the template name columns, so none can change "
            "places; write one line for each column, such as 'Brand: {brand}\\nReview: {review}\\nSentiment:'"
        )
    return runs


def names_columns(line: str) -> bool:
    """Whether a line of a template names a column; ConfigError where it is broken."""
    return any(name is not None for _, name in _parts(line))


def _parts(source: str) -> list[tuple[str, str | None]]:
    """Literal texts, each with the column after it."""
    try:
        parts = list(string.Formatter().parse(source))
    except ValueError as error:
        raise ConfigError(f"the template is broken ({error}); write {{{{ and }}}} for braces") from None
    for _, name, spec, conversion in parts:
        if name is not None and (not name or spec or conversion or any(sign in name for sign in ".[]{}")):
            raise ConfigError(
                f"the template's {{{name}}} is not a plain column name; write {{{{ and }}}} for braces"
            )
    return [(literal, name) for literal, name, _, _ in parts]


def missing_column(column: str, available: Mapping[str, Any] | tuple[str, ...], code: ErrorCode) -> BadRow:
    """The verdict on a row or file without a column; it names those that are there, where they are names."""
    place = "the template names" if code == "unknown_template_column" else "there is no"
    return BadRow(code, f"{place} column {column!r}; {named(list(available))}", column)


def named(columns: list[str]) -> str:
    """Which columns there are, where they are names."""
    if all(_PLAIN_NAME.fullmatch(name) for name in columns):
        return f"the columns are: {', '.join(columns[:_NAMES_SHOWN]) or 'none'}"
    return f"there are {len(columns)}, and not all of them look like names: does the first line hold names?"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that is there, and that Python cannot hold; ``why`` says it."""

    why: str


def value_of(row: Mapping[str, Any], column: str, code: ErrorCode) -> Any:
    """What a column holds; BadRow with ``code`` where the row lacks it, and where dray cannot read it."""
    value = row.get(column)
    if type(value) is Unreadable:
        raise BadRow("invalid_value", f"the column {column!r} holds {value.why} in this row", column)
    if value is None and column not in row:
        raise missing_column(column, row, code)
    return value


def text_of(row: Mapping[str, Any], column: str, code: ErrorCode) -> str:
    """The same as text; BadRow where it is none."""
    value = value_of(row, column, code)
    if type(value) is str:
        return value
    if value is None or _is_nan(value):
        raise BadRow("missing_value", f"the column {column!r} is empty (null) in this row", column)
    if isinstance(value, _NO_TEXT):
        raise BadRow("invalid_value", f"the column {column!r} holds no text in this row", column)
    return str(value)


def _is_nan(value: Any) -> bool:
    """Whether it is the number that stands for none: a data frame's empty cell."""
    return (isinstance(value, float) and value != value) or (isinstance(value, Decimal) and value.is_nan())


def documents_of(row: Mapping[str, Any], column: str) -> str | list[str]:
    """A text, or a list of texts; BadRow where the column holds neither."""
    value = value_of(row, column, "missing_column")
    if not isinstance(value, list):
        return check_text(text_of(row, column, "missing_column"), column)
    if not value:
        raise BadRow("invalid_value", f"the column {column!r} holds an empty list in this row", column)
    if not all(type(one) is str for one in value):
        raise BadRow(
            "invalid_value", f"the column {column!r} holds a list with more than texts in this row", column
        )
    return [check_text(one, column) for one in value]

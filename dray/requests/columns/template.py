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
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from dray.codes import ErrorCode
from dray.errors import ConfigError
from dray.requests.validate import NOT_UTF8, BadRow, check_text, is_utf8

_NAMES_SHOWN = 20
_NO_TEXT: dict[type, str] = {  # whatever a driver gives
    **dict.fromkeys((bytes, bytearray, memoryview), "bytes; decode them"),
    **dict.fromkeys((list, tuple, set, frozenset), "a list; write it as text"),
    dict: "an object; write it as text, such as JSON",
}
_NAME_SHOWN = 64  # characters
# What looks like a name: up to three words. The first line of a CSV file without a header holds prompts.
# pandas writes its index under no name, and later under "Unnamed: 0".
_CSV_NAME = re.compile(r"(?=.{1,64}\Z)[^\W\d][\w.()%/-]*(?: [\w.()%/-]+){0,2}|Unnamed: \d+|")


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


def missing_column(
    column: str, available: Mapping[str, Any] | Sequence[str], code: ErrorCode, *, csv: bool = False
) -> BadRow:
    """The verdict on a row or file without a column; it names those that are there.

    In ``csv`` the first line may be a row, whose values no message shows.
    """
    place = "the template names" if code == "unknown_template_column" else "there is no"
    names = list(available)
    if csv and not all(map(is_utf8, names)):
        return BadRow(code, f"{place} column {column!r}; the first line {NOT_UTF8}", column)
    if csv and not all(_CSV_NAME.fullmatch(name.strip()) for name in names):
        told = f"there are {len(names)}, and not all of them look like names: does the first line hold names?"
        return BadRow(code, f"{place} column {column!r}; {told}", column)
    return BadRow(code, f"{place} column {column!r}; {_meant(column, tuple(names))}{named(names)}", column)


@lru_cache(maxsize=64)  # to compare names takes longer than all else of a row, and rows have the same ones
def _meant(column: str, names: tuple[str, ...]) -> str:
    near = {_bare(name): name for name in names}
    found = get_close_matches(_bare(column), near, n=1)
    if set(column.split(",")) <= set(names):
        return "give the option once for each column; "
    return f"did you mean {_shown(near[found[0]])}? " if found else ""


def empty_cell(column: str, advice: str = "", *, null: bool = True) -> BadRow:
    """The verdict on a row with a null, or with no text, where dray needs a value."""
    empty = "empty (null)" if null else "empty"
    return BadRow("missing_value", f"the column {column!r} is {empty} in this row{advice}", column)


def named(columns: Sequence[str]) -> str:
    """Which columns there are."""
    more = ", …" if len(columns) > _NAMES_SHOWN else ""
    return f"the columns are: {', '.join(map(_shown, columns[:_NAMES_SHOWN])) or 'none'}{more}"


def _shown(name: str) -> str:
    return repr(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")


def _bare(name: str) -> str:
    """A name without what is easily mistaken: case, blanks and signs between words."""
    return re.sub(r"[\W_]+", "", name).casefold()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that is there, and that Python cannot hold; ``why`` says it."""

    why: str
    code: ErrorCode = "invalid_value"
    advice: str = ""


def value_of(row: Mapping[str, Any], column: str, code: ErrorCode) -> Any:
    """What a column holds; BadRow with ``code`` where the row lacks it, and where dray cannot read it."""
    value = row.get(column)
    if type(value) is Unreadable:
        told = f"the column {column!r} holds {value.why} in this row{value.advice}"
        raise BadRow(value.code, told, column)
    if value is None and column not in row:
        raise missing_column(column, row, code)
    return value


def text_of(row: Mapping[str, Any], column: str, code: ErrorCode) -> str:
    """The same as text; BadRow where it is none."""
    value = value_of(row, column, code)
    if type(value) is str:
        return value
    if value is None or _is_nan(value):
        raise empty_cell(column)
    told = next((told for kind, told in _NO_TEXT.items() if isinstance(value, kind)), None)
    if told is not None:
        raise BadRow("invalid_value", f"the column {column!r} holds no text in this row, but {told}", column)
    return plain_decimal(value) if isinstance(value, Decimal) else str(value)


def plain_decimal(value: Decimal) -> str:
    """The number's digits, as the table has them: ``str`` would write small ones as ``1E-10``."""
    return format(value, "f") if value.is_finite() else str(value)


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

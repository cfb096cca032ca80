"""Requests out of columns: prompts, templates, messages, and the bodies around them.

A template holds plain column names in braces, ``{{`` and ``}}`` for braces themselves, and nothing else: no
attribute, index, conversion or format, so that no template can reach into the process.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dray.codes import ErrorCode
from dray.errors import ConfigError
from dray.requests.messages import messages_of
from dray.requests.sources import RowShape
from dray.requests.validate import BadRow, Envelope, check_custom_id, check_text

_NAMES_SHOWN = 20
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
        try:
            parts = list(string.Formatter().parse(source))
        except ValueError as error:
            raise ConfigError(f"the template is broken ({error}); write {{{{ and }}}} for braces") from None
        texts: list[str] = []
        columns: list[str] = []
        pending = ""
        for literal, name, spec, conversion in parts:
            pending += literal
            if name is None:
                continue
            if not name or spec or conversion or any(sign in name for sign in ".[]{}"):
                raise ConfigError(
                    f"the template's {{{name}}} is not a plain column name; write {{{{ and }}}} for braces"
                )
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
            parts += (text, _text(row, column, "unknown_template_column"))
        return check_text("".join((*parts, self.texts[-1])), "template")


def columns_of(shape: RowShape) -> dict[str, ErrorCode]:
    """The columns that a shape reads, each with the problem code for its absence."""
    found: dict[str, ErrorCode] = {}
    if shape.template is not None:
        found |= dict.fromkeys(Template.parse(shape.template).columns, "unknown_template_column")
    for column in (shape.prompt_column, shape.messages_column, shape.id_column):
        if column is not None:
            found[column] = "missing_column"
    return found


def row_builder(shape: RowShape) -> Callable[[int, Mapping[str, Any]], Envelope]:
    """A function ``(index, row)`` that gives the request for a row, or raises BadRow."""
    body = _body_reader(shape)
    url = shape.kind.url
    id_column = shape.id_column

    def build(index: int, row: Mapping[str, Any]) -> Envelope:
        custom_id = f"row-{index}" if id_column is None else _row_id(row, id_column)
        try:
            return Envelope(custom_id, url, body(row))
        except BadRow as bad:
            bad.custom_id = custom_id
            raise

    return build


def missing_column(column: str, available: Mapping[str, Any] | tuple[str, ...], code: ErrorCode) -> BadRow:
    """The verdict on a row or file without a column; it names those that are there, where they are names."""
    place = "the template names" if code == "unknown_template_column" else "there is no"
    return BadRow(code, f"{place} column {column!r}; {named(list(available))}", column)


def named(columns: list[str]) -> str:
    """Which columns there are, where they are names."""
    if all(_PLAIN_NAME.fullmatch(name) for name in columns):
        return f"the columns are: {', '.join(columns[:_NAMES_SHOWN]) or 'none'}"
    return f"there are {len(columns)}, and not all of them look like names: does the first line hold names?"


def _body_reader(shape: RowShape) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    system = shape.system_prompt
    messages = shape.messages_column
    if messages is not None:
        return lambda row: {
            "messages": messages_of(_value(row, messages, "missing_column"), messages, system)
        }
    prompt = _prompt_reader(shape)
    body = shape.kind.body
    return lambda row: body(prompt(row), system)


def _prompt_reader(shape: RowShape) -> Callable[[Mapping[str, Any]], str]:
    if shape.template is not None:
        return Template.parse(shape.template).render
    column = shape.prompt_column
    assert column is not None, "a shape has a template or a prompt column"
    return lambda row: check_text(_text(row, column, "missing_column"), column)


def _value(row: Mapping[str, Any], column: str, code: ErrorCode) -> Any:
    value = row.get(column)
    if value is None and column not in row:
        raise missing_column(column, row, code)
    return value


def _text(row: Mapping[str, Any], column: str, code: ErrorCode) -> str:
    value = _value(row, column, code)
    if type(value) is str:
        return value
    if value is None:
        raise BadRow("missing_value", f"the column {column!r} is empty (null) in this row", column)
    if isinstance(value, (dict, list, bytes)):
        raise BadRow("invalid_value", f"the column {column!r} holds no text in this row", column)
    return str(value)


def _row_id(row: Mapping[str, Any], column: str) -> str:
    value = _value(row, column, "missing_column")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return check_text(check_custom_id(value), column)

"""Requests out of columns: prompts or messages, ids, and the bodies around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

from dray.codes import ErrorCode
from dray.requests.columns.bodies import system_of, with_fields
from dray.requests.columns.media_cells import sound_reader
from dray.requests.columns.messages import messages_of
from dray.requests.columns.part_cells import parts_reader, with_parts
from dray.requests.columns.template import Template, documents_of, plain_decimal, text_of, value_of
from dray.requests.media.medium import columns_of_files, roots_of
from dray.requests.media.placing import FORMS, parts_placer
from dray.requests.precision import whole
from dray.requests.row_shape import BodyFields, RowShape
from dray.requests.validate import BadRow, Envelope, check_custom_id, check_text

_SPELLED = (int, UUID, Decimal, date, time)
"""Ids of these types have one spelling. Numbers with a fraction have several."""


def columns_of(shape: RowShape) -> dict[str, ErrorCode]:
    """The columns that a shape reads, each with the problem code for its absence."""
    found: dict[str, ErrorCode] = {}
    if shape.template is not None:
        found |= dict.fromkeys(Template.parse(shape.template).columns, "unknown_template_column")
    prompts = (shape.prompt_column, shape.messages_column)
    others = (*columns_of_files(shape).values(), shape.document_column, shape.id_column)
    for column in (*prompts, *others):
        if column is not None:
            found[column] = "missing_column"
    for column in shape.keep_columns:
        found.setdefault(column, "missing_column")
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


def _body_reader(shape: RowShape) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    read = _text_reader(shape)
    roots, columns = roots_of(shape), columns_of_files(shape)
    # Each goes before what is there: images come first, then sounds, then videos, then the prompt.
    readers = [
        (form, columns[form.medium], parts_reader(form, columns[form.medium], roots.get(form.medium.root)))
        for form in reversed(FORMS)
        if form.medium in columns and shape.kind.sound is None
    ]
    if not readers and shape.messages_column is None:
        return read
    place = parts_placer(roots)

    def body(row: Mapping[str, Any]) -> dict[str, Any]:
        found = read(row)
        for form, column, parts in readers:
            found["messages"] = with_parts(form, found["messages"], parts(row), column)
        place(found)
        return found

    return body


def _text_reader(shape: RowShape) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    system = shape.system_prompt
    messages = shape.messages_column
    if messages is not None:
        return _messages_reader(messages, shape)
    if shape.audio_column is not None and shape.kind.sound is not None:
        return _sound_reader(shape, shape.audio_column, shape.kind.sound)
    prompt = _prompt_reader(shape)
    body, conversation = shape.kind.body, shape.kind.conversation
    if conversation is not None and (system is not None or columns_of_files(shape)):
        return lambda row: conversation(prompt(row), system)
    column, name = shape.document_column, shape.kind.documents
    if column is None or name is None:
        return lambda row: body(prompt(row))
    return lambda row: {**body(prompt(row)), name: documents_of(row, column)}


def _messages_reader(column: str, shape: RowShape) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The messages of a row, its system message before the job's, and its own fields."""
    fields = shape.fields or BodyFields(names=frozenset(), nulls=True)

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        system = system_of(row, fields) or shape.system_prompt
        messages = messages_of(value_of(row, column, "missing_column"), column, system)
        return with_fields({"messages": messages}, row, fields)

    return read


def _sound_reader(shape: RowShape, column: str, name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The sound, and the prompt where the shape has one."""
    sound, body = sound_reader(column, shape.audio_root), shape.kind.body
    if shape.prompt_column is None and shape.template is None:
        return lambda row: {name: sound(row)}
    prompt = _prompt_reader(shape)
    return lambda row: {name: sound(row), **body(prompt(row))}


def _prompt_reader(shape: RowShape) -> Callable[[Mapping[str, Any]], str]:
    if shape.template is not None:
        return Template.parse(shape.template).render
    column = shape.prompt_column
    assert column is not None, "a shape has a template or a prompt column"
    return lambda row: check_text(text_of(row, column, "missing_column"), column)


def _row_id(row: Mapping[str, Any], column: str) -> str:
    value = value_of(row, column, "missing_column")
    if isinstance(value, float):  # pandas makes floats of whole numbers where one is missing
        value = None if isnan(value) else whole(value)
    if isinstance(value, _SPELLED) and not isinstance(value, bool):
        return plain_decimal(value) if isinstance(value, Decimal) else str(value)
    return check_text(check_custom_id(value, column), column)

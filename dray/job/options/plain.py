"""Values that a user gives in Python, as JSON has them: a store keeps them, and a resumed job gets them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isfinite
from typing import Any

import orjson
from pydantic import BaseModel


def path_as_text(value: Any) -> Any:
    """The text of a path, also in a list; other values stay as they are.

    Raises:
        ValueError: the value is a DataFrame, which no field of a form takes.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [path_as_text(one) for one in value]
    if type(value).__name__ == "DataFrame":
        raise ValueError("a DataFrame's rows run with flows.dataframe.batch_inference_frame")
    return value


def plain(value: Any) -> Any:
    """A value with numbers and arrays of numpy as plain ones, and paths as texts.

    orjson writes ``null`` for a number that is not finite. PostgreSQL keeps no NUL in its JSON.

    Raises:
        ValueError: a store cannot keep the value as a part of the job, or would keep it as something else.
    """
    try:
        found = _plain(value, "")
        orjson.dumps(found)
    except (TypeError, RecursionError) as error:  # its words quote no value
        advice = "give texts in UTF-8, numbers of 64 bits at most, and fewer levels"
        raise ValueError(f"it cannot be written as JSON ({error}); {advice}") from None
    return found


def _plain(value: Any, place: str) -> Any:
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    elif isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, Mapping):
        parts = {name: _plain(one, f"{place}.{name}" if place else str(name)) for name, one in value.items()}
        _plain(list(parts), place)  # names are texts like others
        return parts
    if isinstance(value, list | tuple):
        return [_plain(one, place) for one in value]
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a text has a NUL character, which PostgreSQL does not keep; remove it")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("a number is not finite, and JSON has no such number; give another one")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"{place or 'it'} {_told(value)}")


def _told(value: Any) -> str:
    """What a value is that JSON has not, and what to give instead."""
    if isinstance(value, type):
        name = value.__name__
        if not issubclass(value, BaseModel):
            return f"is the class {name}, which JSON has not; give texts, numbers, lists and dicts"
        schema = f'{{"name": "{name}", "schema": {name}.model_json_schema()}}'
        return f'is the class {name}; give {{"type": "json_schema", "json_schema": {schema}}}'
    if isinstance(value, BaseModel):
        return f"is a {type(value).__name__}; give its model_dump()"
    return f"is of the type {type(value).__name__}, which JSON has not; give texts, numbers, lists and dicts"

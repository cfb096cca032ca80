"""The fields of one JSON object of a model's folder; errors name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dray.errors import ConfigError

_LARGEST = 10**12
"""No size in a config comes near it; it keeps products inside what floats can hold."""


@dataclass(frozen=True, slots=True)
class Fields:
    """``values`` as read from ``file``; ``defaults`` stand for what the file leaves out."""

    values: Mapping[str, Any]
    file: str
    defaults: Mapping[str, Any]

    def get(self, name: str) -> Any:
        """The value, or its default where the file leaves it out; None for neither, and for ``null``."""
        return self.values[name] if name in self.values else self.defaults.get(name)

    def count(self, *names: str) -> int:
        """A whole number above zero, under the first of these names that is there, in the file if in any.

        Raises:
            ConfigError: no name is there, or the value is no such number.
        """
        for name in sorted(names, key=lambda name: name not in self.values):
            value = self.get(name)
            if value is not None:
                return self._whole(name, value, least=1)
        raise self.error(f"the field {names[0]!r} is missing")

    def optional_count(self, name: str, default: int) -> int:
        """A whole number, zero included; ``default`` where the field is not there."""
        value = self.get(name)
        return default if value is None else self._whole(name, value, least=0)

    def flag(self, name: str) -> bool:
        """True or false; false where the field is not there."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"the field {name!r} is {str(value)[:40]!r}, but true or false is expected")
        return bool(value)

    def inner(self, name: str) -> Fields | None:
        """The object under this name; None where it is not there."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"the field {name!r} is not an object")
        return Fields(value, self.file, {})

    def strings(self, name: str) -> tuple[str, ...]:
        """The list of strings under this name; empty where it is not there."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f"the field {name!r} is not a list of strings")
        return tuple(value)

    def numbers(self, name: str) -> tuple[int, ...]:
        """The list of whole numbers under this name; empty where it is not there."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.error(f"the field {name!r} is not a list of whole numbers")
        return tuple(value)

    def error(self, what: str) -> ConfigError:
        """An error that names the file."""
        return ConfigError(f"{self.file}: {what}")

    def _whole(self, name: str, value: Any, *, least: int) -> int:
        if type(value) is not int or not least <= value <= _LARGEST:
            kind = "a whole number above zero" if least else "a whole number"
            raise self.error(f"the field {name!r} is {str(value)[:40]!r}, but {kind} is expected")
        return value

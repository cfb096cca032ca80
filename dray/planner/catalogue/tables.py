"""Reads the catalogue's tables: every figure is ``[value, source]``, and is checked as it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from math import isfinite
from typing import Any, NoReturn

from dray.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sources:
    """Dates of sources by the keys that figures name."""

    days: Mapping[str, date]
    unproven: frozenset[str] = frozenset({"unchecked", "placeholder"})


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file. ``place`` is how errors call it."""

    values: Mapping[str, Any]
    place: str
    sources: Sources

    def figure(self, name: str, *, least: float = 0.0, most: float = float("inf")) -> float:
        """A number in (``least``, ``most``].

        Raises:
            ConfigError: it is missing, out of bounds, or its source is not listed; names table and field.
        """
        return self._number(name, self._sourced(name, self._value(name))[0], least, most)

    def pair(self, name: str, *, most: float = float("inf")) -> tuple[float, float]:
        """Two numbers above zero with one source."""
        low, high = self._list(name, self._sourced(name, self._value(name))[0], 2)
        return self._number(name, low, 0.0, most), self._number(name, high, 0.0, most)

    def triple(self, name: str) -> tuple[float, float, float]:
        """Three numbers above zero with one source, ascending."""
        low, mid, high = (
            self._number(name, one, 0.0, float("inf"))
            for one in self._list(name, self._sourced(name, self._value(name))[0], 3)
        )
        if not low <= mid <= high:
            self.refuse(name, "is not in ascending order")
        return low, mid, high

    def each(self, name: str, read: Callable[[Table, str], Any]) -> dict[str, Any]:
        """An inner table, each of its fields read by ``read``."""
        table = self.inner(name)
        return {key: read(table, key) for key in table.values}

    def inner(self, name: str) -> Table:
        """A table in this one."""
        inner = self._value(name)
        if not isinstance(inner, Mapping) or not inner:
            self.refuse(name, "is not a table with figures")
        return Table(inner, f"{self.place}.{name}", self.sources)

    def source(self, name: str) -> tuple[str, date]:
        """Key and day of a figure's source."""
        key = self._sourced(name, self._value(name))[1]
        return key, self.sources.days[key]

    def dated(self, name: str) -> list[tuple[float, str, date]]:
        """A list of figures, each with its source and day, oldest first."""
        found = self._value(name)
        if not isinstance(found, list) or not found:
            self.refuse(name, "is not a list of [value, source]")
        read = [self._sourced(name, one) for one in found]
        rows = [(self._number(name, v, 0.0, float("inf")), key, self.sources.days[key]) for v, key in read]
        return sorted(rows, key=lambda row: row[2])

    def whole(self, name: str) -> int:
        """A whole number above zero, without a source."""
        found = self._value(name)
        if type(found) is not int or found < 1:
            self.refuse(name, "is not a whole number above zero")
        return int(found)

    def doubts(self) -> tuple[str, ...]:
        """Fields with a figure that no source backs."""
        return tuple(name for name, value in self.values.items() if self._unproven(value))

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise an error that names the table and the field."""
        raise ConfigError(f"{self.place}: the field {name!r} {what}")

    def _unproven(self, value: Any) -> bool:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return value in self.sources.unproven if isinstance(value, str) else any(map(self._unproven, inner))

    def _value(self, name: str) -> Any:
        if name not in self.values:
            self.refuse(name, "is missing")
        return self.values[name]

    def _sourced(self, name: str, value: Any) -> tuple[Any, str]:
        if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
            self.refuse(name, "is not [value, source]")
        if value[1] not in self.sources.days:
            self.refuse(name, f"names the source {value[1]!r}, which is not listed")
        return value[0], value[1]

    def _list(self, name: str, value: Any, length: int) -> list[Any]:
        if not isinstance(value, list) or len(value) != length:
            self.refuse(name, f"is not a list of {length} numbers")
        return value

    def _number(self, name: str, value: Any, least: float, most: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            self.refuse(name, "is not a number")
        if not least < value <= most:
            bound = f"above {least:g}" if most == float("inf") else f"above {least:g} and at most {most:g}"
            self.refuse(name, f"is {value:g}, but must be {bound}")
        return float(value)

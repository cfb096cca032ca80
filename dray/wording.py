"""Numbers and names as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime

NONE = "–"  # noqa: RUF001  the dash of tables
"""Stands where there is no figure."""


def count(value: float) -> str:
    """A whole number: 1,234,567."""
    return f"{round(value):,}"


def compact(value: float) -> str:
    """Three figures and a suffix: 12.3k, 4.56M; small numbers keep what matters of their fraction."""
    size = abs(value)
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit * 0.9995:
            return f"{_three_figures(value / limit)}{suffix}"
    return _three_figures(value)


def rate(value: float | None) -> str:
    """A figure per second, without the unit: 295, 21,400, 3.2."""
    if value is None:
        return NONE
    return count(value) if abs(value) >= 1000 else _three_figures(value)


def duration(seconds: float) -> str:
    """A length of time: 0.4 ms, 320 ms, 4.3 s, 42 min 10 s, 3 h 12 min, 5 d 2 h."""
    if seconds < 0.9995:
        return f"{_three_figures(seconds * 1000)} ms" if seconds > 0 else "0 s"
    if seconds < 59.95:
        return f"{_drop_zero(f'{seconds:.1f}')} s"
    whole = round(seconds)
    if whole < 3600:
        return _pair(whole // 60, "min", whole % 60, "s")
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return _pair(minutes // 60, "h", minutes % 60, "min")
    hours = round(seconds / 3600)
    return _pair(hours // 24, "d", hours % 24, "h")


def share(part: float, whole: float) -> str:
    """A percentage; never rounds something to nothing, nor not quite all to all."""
    if whole <= 0:
        return NONE
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.9 < percent < 100:
        return ">99.9%"
    return f"{_drop_zero(f'{percent:.1f}')}%"


def size(octets: float) -> str:
    """A file size in decimal units: 812 B, 12.3 MB."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if octets >= limit * 0.9995:
            return f"{_three_figures(octets / limit)} {unit}"
    return f"{round(octets)} B"


def money(dollars: float) -> str:
    """Dollars with cents, and small amounts with two digits that count."""
    return f"${dollars:,.2f}" if dollars >= 1 or not dollars else f"${dollars:.2g}"


def moment(epoch: float) -> str:
    """A date and time in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def stretch(began: float, ended: float) -> str:
    """The begin and the end in UTC; the date once where it is the same."""
    first, last = moment(began).removesuffix(" UTC"), moment(ended)
    same = first[:10] == last[:10]
    return f"{first} to {last[11:] if same else last}"


def clip(text: str, length: int = 40) -> str:
    """``text``, its end replaced by an ellipsis where it is longer than ``length``."""
    return text if len(text) <= length else text[: length - 1] + "…"


def plain(name: str) -> str:
    """A field name as words: engine_start becomes "engine start"."""
    return name.replace("_", " ")


def setting(value: object) -> str:
    """The value of a setting: what is not set is a dash, and a switch is on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return NONE if value is None or str(value) in ("{}", "[]", "") else str(value)


def plural(number: int, noun: str) -> str:
    """ "1 row", "2 rows"."""
    return f"{count(number)} {noun if number == 1 else noun + 's'}"


def _three_figures(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _drop_zero(text: str) -> str:
    return text.removesuffix(".0")


def _pair(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big} {big_unit} {small} {small_unit}" if small else f"{big} {big_unit}"

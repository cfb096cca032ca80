"""The names of the files in an output folder: one file for each sort of rows, or numbered parts of it.

Answers that fit into one part are ``output.jsonl``. More than that are ``output-00000.jsonl``,
``output-00001.jsonl`` and so on, with ``output.jsonl.manifest.json``, which lists them all. Error rows
(``errors``) and Parquet go the same way. Parts get their names in order, the manifest after all of them, and
they are removed from the last to the first: so those in a folder have the numbers from 0 on, without a gap.
"""

from __future__ import annotations

import re
from itertools import count, takewhile

from dray.storage.files import exists, join
from dray.storage.objects import ObjectStoreOptions

PART_BYTES = 64 << 30
"""Bytes of a file of rows, unless the user says otherwise; from there on there are several: 73 for 5 TB."""

MOST_PARTS = 100_000
"""Parts that five digits can number."""

REPORT = "report.html"
"""The report of a job, beside its files of rows."""

_NAME = re.compile(
    r"(?P<stem>output|errors)"
    r"(?:(?P<number>-\d{5})?\.(?P<format>jsonl|parquet)|\.(?P<listed>jsonl|parquet)\.manifest\.json)"
)

Family = tuple[str, str]
"""A sort of rows and a format, such as ``("output", "jsonl")``: all files of one family say the same."""


def whole_name(stem: str, form: str) -> str:
    """The one file of a family."""
    return f"{stem}.{form}"


def part_name(stem: str, number: int, form: str) -> str:
    """A part of it, by its number from 0."""
    return f"{stem}-{number:05d}.{form}"


def manifest_name(stem: str, form: str) -> str:
    """The list of the parts."""
    return f"{stem}.{form}.manifest.json"


def pattern_name(stem: str, form: str) -> str:
    """What names all parts, for readers that take patterns."""
    return f"{stem}-*.{form}"


def published_names() -> list[str]:
    """What a job writes where it writes no parts."""
    return [*whole_names(), REPORT]


def whole_names() -> list[str]:
    """The one file of each family there is."""
    return [whole_name(stem, form) for stem in ("output", "errors") for form in ("jsonl", "parquet")]


def family_of(name: str) -> Family | None:
    """The family of a file; None for other files, such as the report."""
    found = _NAME.fullmatch(name)
    return (found["stem"], found["format"] or found["listed"]) if found else None


def is_part(name: str) -> bool:
    """Whether it is one of several."""
    found = _NAME.fullmatch(name)
    return found is not None and found["number"] is not None


def is_published(name: str) -> bool:
    """Whether jobs and exports publish files of this name."""
    return name == REPORT or _NAME.fullmatch(name) is not None


def found_in(directory: str, family: Family, options: ObjectStoreOptions | None = None) -> list[str]:
    """The files of a family that lie in a folder, in order.

    It asks for each by name: an account that writes to a bucket need not be allowed to list it.
    """
    stem, form = family
    parts = takewhile(
        lambda name: exists(join(directory, name), options=options),
        (part_name(stem, number, form) for number in count()),
    )
    others = (whole_name(stem, form), manifest_name(stem, form))
    return [*(name for name in others if exists(join(directory, name), options=options)), *parts]

"""The formats of input files, known by the ends of their names."""

from __future__ import annotations

import glob
import shlex
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Literal

Format = Literal["jsonl", "csv", "tsv", "parquet"]

FORMATS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSIONS = (".gz", ".zst")
_ENTRIES_SEEN = 10_000  # of a folder, for a hint


def format_of(name: str) -> Format | None:
    """The format that a file of this name, or a glob, should have."""
    ending = known_ending(name.rstrip("*?"))  # part-*.jsonl* says enough
    return FORMATS["." + ending.split(".")[1]] if ending else None


def told_of_folder(folder: Path) -> str:
    """What a folder holds that could be read, and how to name it."""
    try:
        found, place = _endings(folder.iterdir()), "*"
        if not found:
            found, place = _endings(folder.rglob("*")), "**/*"
    except PermissionError:
        return "a folder that this account may not read; name its files, with an account that may"
    if not found:
        return f"a folder, with no file that dray reads ({', '.join(FORMATS)}); name the files"
    counts = ", ".join(f"{count:,} {ending}" for ending, count in found)
    below = " below it" if place != "*" else ""
    pattern = shlex.quote(f"{glob.escape(str(folder))}/{place}{found[0][0]}")
    return f"a folder, with {counts}{below}; name its files: {pattern}"


def told_of_pattern(pattern: str) -> str:
    """What a pattern without a format in its name matches, and how to name it."""
    found = _endings(map(Path, glob.iglob(pattern, recursive=True)))  # noqa: PTH207  takes absolute patterns
    if not found:
        return f"the pattern matches no file that dray reads ({', '.join(FORMATS)})"
    counts = ", ".join(f"{count:,} {ending}" for ending, count in found)
    narrower = f": {shlex.quote(pattern + found[0][0])}" if pattern.endswith("*") else ""
    return f"the pattern matches {counts}, and a job reads one format; end it with that{narrower}"


def _endings(paths: Iterable[Path]) -> list[tuple[str, int]]:
    known = (known_ending(path.name) for path in islice(paths, _ENTRIES_SEEN) if path.is_file())
    return Counter(ending for ending in known if ending).most_common()


def known_ending(name: str) -> str:
    """``.jsonl.gz`` of a name that ends so; nothing of one whose ending is not known."""
    path = name.lower()
    plain = next((path.removesuffix(suffix) for suffix in _COMPRESSIONS if path.endswith(suffix)), path)
    ending = next((suffix for suffix in FORMATS if plain.endswith(suffix)), None)
    return ending + path[len(plain) :] if ending else ""

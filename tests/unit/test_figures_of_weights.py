"""The figures of weights in docs/performance.md are those of the recorded section of RESULTS.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
ROWS = {
    "into shared memory": (
        "dray, whole: checksums of the published manifest",
        "Run:ai streamer, tensors dropped",
        "obstore, ranges into one buffer",
        "boto3 to disk, then load_file (maps the files)",
    ),
    "into an engine's parameters": (
        "dray and its loader, into parameters",
        "Run:ai streamer as vLLM uses it, into parameters",
        None,
        "boto3 to disk and load_file, into parameters",
    ),
}
"""A row of the page's table, and for each of its cells the row of the section."""


def _rows(text: str) -> dict[str, list[str]]:
    """The cells of each row of Markdown's tables, by the first one; the first row of a name counts."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            first, *others = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(first, others)
    return found


@pytest.mark.parametrize("row", ROWS)
def test_weights_are_as_recorded(row: str) -> None:
    results = (ROOT / "tests/benchmarks/RESULTS.md").read_text()
    section = re.search("<!-- begin weights -->(.*?)<!-- end weights -->", results, re.DOTALL)
    assert section is not None
    recorded = _rows(section[1])
    shown = _rows((ROOT / "docs/performance.md").read_text())[row]
    assert shown == [recorded[name][0].split()[0] if name else "" for name in ROWS[row]]

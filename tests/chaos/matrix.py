"""The fault matrix as measured: for each chaos test what its faults cost, kept between runs of the tests.

``pytest ... --record`` writes what each test came to into ``matrix.json``, and makes the table of RESULTS.md
of all that stands there: a test that did not run keeps the figures of the run that it was in last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from tests.benchmarks.results import Table, record
from tests.support.history import Figures

RESULTS = Path(__file__).with_name("RESULTS.md")
KEPT = Path(__file__).with_name("matrix.json")


@dataclass(kw_only=True)
class Row:
    """What the runs of one test came to. ``resumed`` in seconds, one for each interrupted attempt."""

    file: str
    fault: str
    date: str
    runs: int = 0
    rows: int = 0
    lost: int = 0
    duplicated: int = 0
    recomputed: int = 0
    resumed: list[float] = field(default_factory=list)

    def add(self, figures: Figures) -> None:
        """One more job, checked."""
        self.runs += 1
        self.rows += figures.rows
        self.lost += figures.lost
        self.duplicated += figures.duplicated
        self.recomputed += figures.recomputed
        self.resumed += [round(seconds, 2) for seconds in figures.resumed]

    def cells(self) -> list[str]:
        """Its line of the table; a test that ends without outputs has no figures, only its own checks."""
        if not self.runs:
            return [self.fault, self.file, "by its own checks", *[""] * 5, self.date]
        share = f"{self.recomputed / self.rows:.2%}" if self.rows else ""
        times = f"{median(self.resumed):.1f} (at most {max(self.resumed):.1f})" if self.resumed else "-"
        counts = [f"{n:,}" for n in (self.runs, self.rows, self.lost, self.duplicated)]
        return [self.fault, self.file, *counts, share, times, self.date]


def keep(rows: Sequence[Row], failed: Sequence[Row]) -> None:
    """Put ``rows`` in the place of older ones of the same tests, drop ``failed``, make the table again."""
    known = {(row.file, row.fault): row for row in _kept()}
    for row in failed:
        known.pop((row.file, row.fault), None)
    known.update({(row.file, row.fault): row for row in rows})
    ordered = sorted(known.values(), key=lambda row: (row.file, row.fault))
    KEPT.write_text(json.dumps([asdict(row) for row in ordered], indent=1) + "\n")
    RESULTS.touch()
    record("matrix", table(ordered).markdown(), RESULTS)


def _kept() -> list[Row]:
    """The rows of earlier runs, but for tests that are gone or have another name now."""
    rows = [Row(**values) for values in json.loads(KEPT.read_text())] if KEPT.exists() else []
    return [row for row in rows if _is_there(row)]


def _is_there(row: Row) -> bool:
    file = Path(__file__).with_name(f"test_{row.file}.py")
    return file.exists() and f"def test_{row.fault.replace(' ', '_')}(" in file.read_text()


def table(rows: Sequence[Row]) -> Table:
    """As RESULTS.md shows it."""
    header = ("fault", "test", "jobs", "rows", "lost", "doubled", "computed again", "s to resume", "date")
    return Table(title="Fault matrix", header=header, rows=[row.cells() for row in rows])

"""What the runs of the soak came to, and how that reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.results import Table, median, number
from tests.chaos.soak_checks import Cost
from tests.chaos.soak_plan import Kind
from tests.chaos.soak_run import Run


@dataclass(kw_only=True)
class Totals:
    """What all runs came to so far."""

    runs: int = 0
    rows: int = 0
    seconds: list[float] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    stores: Counter[str] = field(default_factory=Counter)
    poisoned: int = 0
    unsure: int = 0
    held: Counter[str] = field(default_factory=Counter)
    again: int = 0
    given_up: int = 0
    shares: list[float] = field(default_factory=list)
    resumed: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    spent: float = 0.0

    def broken(self, invariant: str) -> int:
        """Runs that failed by it."""
        return sum(f"{invariant}:" in text for text in self.failures)

    def unseen(self) -> list[str]:
        """What never came about, kinds of faults and else: with many runs the soak is not what it says."""
        kinds = [str(kind) for kind in Kind if not any(name.startswith(str(kind)) for name in self.faults)]
        return kinds if self.held else [*kinds, "a loss that had to be charged"]

    def take(self, run: Run, cost: Cost) -> None:
        """A run that passed."""
        self.unsure += cost.charged.unsure
        self.held += cost.charged.held
        self.shares.append(cost.figures.recomputed / cost.figures.rows)
        for kind, seconds in cost.resumed.items():
            self.resumed.setdefault(kind, []).extend(seconds)

    def count(self, run: Run) -> None:
        """Any run."""
        self.runs += 1
        self.rows += run.rows
        self.seconds.append(run.seconds)
        self.faults.update(f"{fault.kind}{': its engine core' * fault.core}" for fault in run.faults)
        self.skipped += run.skipped
        self.given_up += len(run.given_up)
        self.stores["PostgreSQL" if run.plan.postgres else "SQLite"] += 1
        self.poisoned += bool(run.plan.poison)

    def add(self, other: Totals) -> None:
        """What another lane's runs came to."""
        for name in ("runs", "rows", "skipped", "poisoned", "unsure", "again", "given_up", "spent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds += other.seconds
        self.faults += other.faults
        self.held += other.held
        self.stores += other.stores
        self.shares += other.shares
        self.failures += other.failures
        for kind, seconds in other.resumed.items():
            self.resumed.setdefault(kind, []).extend(seconds)

    def line(self) -> str:
        """How far it is."""
        return (
            f"{self.runs} runs, {len(self.failures)} failed; {self.faults.total()} faults; "
            f"{number(median(self.seconds))} s a run; {self.spent:.0f} s in all"
        )

    def tables(self) -> list[Table]:
        """The figures."""
        rows = [
            ("runs", f"{self.runs:,}"),
            ("rows", f"{self.rows:,}"),
            ("failed runs", f"{len(self.failures):,}"),
            ("runs with rows lost (I1)", f"{self.broken('I1'):,}"),
            ("runs with rows duplicated (I2)", f"{self.broken('I2'):,}"),
            ("runs whose files are not the store's (I4)", f"{self.broken('I4'):,}"),
            ("runs whose files differ from an undisturbed run's (I8)", f"{self.broken('I8'):,}"),
            ("rows computed more than once, of all rows of the run", _shares(self.shares)),
            ("seconds from a driver's death to the next commit", _times(self.resumed.get(Kind.DRIVER, []))),
            (
                "seconds from a replica's death to the next commit of its shards",
                _times(self.resumed.get(Kind.REPLICA, [])),
            ),
            (
                "seconds from a node's death to the next commit of its shards",
                _times(self.resumed.get(Kind.NODE, [])),
            ),
            ("seconds of a run", _times(self.seconds)),
            ("stores", _counts(self.stores)),
            ("runs with rows that kill engines", f"{self.poisoned:,}"),
            ("losses that had to be charged, and were", _counts(self.held) or "0"),
            ("charges for a replica lost of unknown cause", f"{self.unsure:,}"),
            ("nodes that no fault killed, given up by Ray after 2 s", f"{self.given_up:,}"),
            ("runs begun again: a node of the test's cluster did not start", f"{self.again:,}"),
            ("minutes, of all clusters together", f"{self.spent / 60:.1f}"),
        ]
        faults = [(kind, f"{count:,}") for kind, count in sorted(self.faults.items())]
        faults.append(("all", f"{self.faults.total():,}"))
        faults.append(("drawn when there was nothing to break", f"{self.skipped:,}"))
        return [
            Table(title="Soak", header=("what", "measured"), rows=rows),
            Table(title="Faults", header=("what", "how often"), rows=faults),
        ]


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(values.items()))


def _shares(values: Sequence[float]) -> str:
    return f"median {median(values):.2%}, at most {max(values, default=0.0):.2%}"


def _times(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"median {median(values):.2f}, at most {max(values):.1f} ({len(values):,} measured)"

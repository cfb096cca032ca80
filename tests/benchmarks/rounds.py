"""Interleaved rounds of runs, and the figures that runs of dray, its replica and its peers share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread

Run = TypeVar("Run")
Result = TypeVar("Result")


def rounds(
    runs: Sequence[tuple[str, Run]],
    repeats: int,
    report: Report,
    measure: Callable[[Run], Result],
    told: Callable[[Result], str],
) -> list[Result]:
    """The figures of all runs, each once a round. ``report`` notes a run that fails; the others go on."""
    found = []
    for repeat in range(repeats):
        for name, run in runs:
            label = f"round {repeat + 1}: {name}"
            try:
                result = measure(run)
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED: {str(error)[-2000:]}")
                continue
            found.append(result)
            say(f"{label}: {told(result)}")
    return found


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run. ``steady`` and ``whole`` are seconds; None where the thing has no such figure."""

    name: str
    rows: int
    steady: float | None
    whole: float | None

    @property
    def told(self) -> str:
        """For people."""
        parts = [] if self.steady is None else [f"{self.rows / self.steady:.1f} rows/s"]
        parts += [] if self.whole is None else [f"whole job {self.whole:.1f} s"]
        return ", ".join(parts)


def rates(measures: Sequence[Measure], title: str) -> Table:
    """Rates and whole jobs, a row for each name."""
    cells = []
    for name in dict.fromkeys(one.name for one in measures):
        runs = [one for one in measures if one.name == name]
        steady = [one.rows / one.steady for one in runs if one.steady]
        whole = [one.whole for one in runs if one.whole]
        cells.append([name, spread(steady), spread(whole), str(len(runs))])
    return Table(
        title=title,
        header=("what", "from its first request to its last answer, rows/s", "whole job, s", "runs"),
        rows=cells,
    )


def beside(measures: Sequence[Measure], names: Sequence[str], limit: str, runner: str) -> list[Target]:
    """The rates of ``names`` over that of ``limit``, and their whole jobs over that of ``runner``."""

    def middle(name: str, figure: str) -> float | None:
        values = [value for one in measures if one.name == name and (value := getattr(one, figure))]
        return median(values) if values else None

    found = []
    limit_steady, runner_whole = middle(limit, "steady"), middle(runner, "whole")
    for name in names:
        steady, whole = middle(name, "steady"), middle(name, "whole")
        if limit_steady and steady:
            found.append(Target(name=f"{name}: rate / {limit}", value=limit_steady / steady, bound=0.95))
        if runner_whole and whole:
            found.append(
                Target(
                    name=f"{name}: whole job / {runner}",
                    value=whole / runner_whole,
                    bound=0.8,
                    at_least=False,
                )
            )
    return found

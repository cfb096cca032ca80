"""What jobs on clusters that keep losing nodes came to: figures, tables and targets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.interruptions_cluster import ADD_AFTER, Kill
from tests.benchmarks.results import Table, Target, median, spread

TOKENS = 64
BATCH_SIZE = 32  # Ray Data LLM's default
DRAY = "dray"
NAMES = ("ray-data", "ray-data-tuned", DRAY)
"""All contestants, in the order of a round."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What every contestant gets."""

    input: Path
    rows: int
    engines: int
    max_num_seqs: int
    seconds_per_token: float
    start_seconds: float

    @property
    def ideal(self) -> float:
        """Seconds that the engines need for all rows, without any start."""
        waves = self.rows / (self.max_num_seqs * self.engines)
        return waves * TOKENS * self.seconds_per_token


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One job.

    ``seconds`` from its first start to its last end, ``working`` from the first row in an engine to that end,
    ``computing`` from there until the row that entered one last was done.
    ``again`` are admissions of rows beyond the first, ``shares`` those of each engine's process.
    """

    name: str
    disturbed: bool
    round: int
    seconds: float
    working: float
    computing: float
    finished: bool
    runs: int
    hung: int
    lost: int
    doubled: int
    error_rows: int
    again: int
    rows_again: int
    shares: dict[str, int] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # last words of runs that failed

    @property
    def hits(self) -> int:
        """Kills that took an engine with them."""
        return sum(bool(kill.rows) for kill in self.kills)


def tables(measures: Sequence[Measure], arguments: argparse.Namespace) -> list[Table]:
    tables = []
    for disturbed in (False, True):
        cells = [
            _cells(found)
            for name in _names(measures)
            if (found := [m for m in measures if (m.name, m.disturbed) == (name, disturbed)])
        ]
        header = (
            "",
            "whole job, s",
            "from the first row on, s",
            "rows in engines, s",
            "lost",
            "doubled",
            "error rows",
            "computed again",
        )
        header += ("ended by itself", "runs of the command", "hung", "kills", "of an engine", "jobs")  # type: ignore[assignment]
        what = f"a node killed every {arguments.kill_every:g} s" if disturbed else "undisturbed"
        if cells:
            tables.append(Table(title=f"{arguments.rows:,} rows, {what}", header=header, rows=cells))
    comparison = _comparison(measures)
    if comparison:
        header = ("", *_names(measures), "better")  # type: ignore[assignment]
        tables.append(Table(title="Side by side", header=header, rows=comparison))
    return tables


def _names(measures: Sequence[Measure]) -> list[str]:
    present = {measure.name for measure in measures}
    return [name for name in NAMES if name in present]


def _cells(found: Sequence[Measure]) -> list[str]:
    alone = sum(m.finished and m.runs == 1 for m in found)
    return [
        found[0].name,
        spread([m.seconds for m in found]),
        spread([m.working for m in found]),
        spread([m.computing for m in found]),
        *(_whole([getattr(m, name) for m in found]) for name in ("lost", "doubled", "error_rows", "again")),
        f"{alone} of {len(found)}",
        _whole([m.runs for m in found]),
        str(sum(m.hung for m in found)),
        _whole([len(m.kills) for m in found]),
        _whole([m.hits for m in found]),
        str(len(found)),
    ]


def _whole(values: Sequence[int]) -> str:
    """Median and min..max of counts."""
    middle = f"{median([float(value) for value in values]):,.0f}"
    return middle if min(values) == max(values) else f"{middle} ({min(values):,}..{max(values):,})"


_FIGURES: dict[str, tuple[bool, Callable[[Measure], float]]] = {
    "whole job undisturbed, s": (False, lambda m: m.seconds),
    "whole job with kills, s": (True, lambda m: m.seconds),
    "from the first row on undisturbed, s": (False, lambda m: m.working),
    "from the first row on with kills, s": (True, lambda m: m.working),
    "rows computed again": (True, lambda m: m.again),
    "rows computed again a kill of an engine": (True, lambda m: m.again / max(m.hits, 1)),
    "runs of the command": (True, lambda m: m.runs),
    "lost rows": (True, lambda m: m.lost),
    "doubled rows": (True, lambda m: m.doubled),
    "error rows": (True, lambda m: m.error_rows),
}  # less is better


def _comparison(measures: Sequence[Measure]) -> list[list[str]]:
    """Every figure of every contestant, and who has the least: only where the ranges are apart."""
    names = _names(measures)
    if len(names) < 2:
        return []
    measures = [m for m in measures if m.finished]  # one that was given up took as long as it was let
    rows = []
    for what, (disturbed, figure) in _FIGURES.items():
        values = {
            name: [figure(m) for m in measures if (m.name, m.disturbed) == (name, disturbed)]
            for name in names
        }
        if all(values.values()):
            texts = [spread(values[name]) if any(values[name]) else "0" for name in names]
            rows.append([what, *texts, _better(values)])
    cost = {
        name: [
            killed.working - calm.working
            for killed in measures
            for calm in measures
            if killed.disturbed and not calm.disturbed and killed.round == calm.round
            if killed.name == calm.name == name
        ]
        for name in names
    }
    if all(cost.values()):
        rows.append(["seconds that the kills cost", *map(spread, cost.values()), _better(cost)])
    return rows


def _better(values: dict[str, list[float]]) -> str:
    first, *others = sorted(values, key=lambda name: median(values[name]))
    if min(map(len, values.values())) < 2:
        return "one round"
    if all(max(values[first]) < min(values[name]) for name in others):
        return first
    if len({tuple(sorted(set(found))) for found in values.values()}) == 1:
        return "equal"
    return "ranges overlap"


def _working(measures: Sequence[Measure], name: str, disturbed: bool) -> float | None:
    found = [m.working for m in measures if (m.name, m.disturbed) == (name, disturbed) and m.finished]
    return median(found) if found else None


def targets(measures: Sequence[Measure]) -> list[Target]:
    found = []
    mine = [m for m in measures if m.name == DRAY and m.disturbed]
    if mine:
        for name in ("lost", "doubled", "error_rows"):
            value = max(getattr(m, name) for m in mine)
            label = f"dray with kills: {name.replace('_', ' ')}, the worst job"
            found.append(Target(name=label, value=value, bound=0, at_least=False))
        share = sum(m.finished and m.runs == 1 for m in mine) / len(mine)
        found.append(Target(name="dray with kills: jobs that ended by themselves", value=share, bound=1))
    peers = [name for name in _names(measures) if name != DRAY]
    for disturbed in (False, True):
        seconds = _working(measures, DRAY, disturbed)
        theirs = min((s for name in peers if (s := _working(measures, name, disturbed))), default=None)
        if seconds and theirs:
            how = "with kills" if disturbed else "undisturbed"
            label = f"from the first row on, {how}: dray / the better Ray Data"
            found.append(Target(name=label, value=seconds / theirs))
    return found


def goodput(measures: Sequence[Measure]) -> list[Target]:
    """Of each round: the undisturbed seconds of computing by those with kills; the same rows."""
    finished = [m for m in measures if m.finished]
    calm = {m.round: m.computing for m in finished if not m.disturbed}
    ratios = [calm[m.round] / m.computing for m in finished if m.disturbed and m.round in calm]
    if not ratios:
        return []
    return [
        Target(name=f"goodput, median of {len(ratios)} rounds", value=median(ratios), bound=0.9),
        Target(name="goodput, the worst round", value=min(ratios)),
        *(t for t in targets(measures) if t.bound is not None),
    ]


def notes(arguments: argparse.Namespace, load: Load) -> list[str]:
    return [
        "Medians with min..max of interleaved rounds, each job on a fresh cluster; less is better in all "
        "figures. `better` names one only where all its rounds are better than all rounds of all others.",
        f"Work: {load.rows:,} rows of {TOKENS * load.seconds_per_token:.1f} s each, {load.engines} engines "
        f"that run {load.max_num_seqs} at once and start in {load.start_seconds:g} s: {load.ideal:.0f} s "
        "from the first row on if all engines worked to the end. The whole job runs from the command's first "
        "start to its last end, with dray's Prefect server and report in it; the cluster is there before.",
        f"Kills: seeds {arguments.seed} to {arguments.seed + arguments.repeats - 1}, every "
        f"{arguments.kill_every:g} s from the first row in an engine on, SIGKILL to the raylet of one of "
        f"{load.engines} nodes, a new node {ADD_AFTER:g} s later; the head stays. A job that takes longer "
        "meets more of them. `of an engine`: the node had an engine that had been given rows. `rows in "
        "engines`: from the first row's start to the last one's end, without what comes after it.",
        "Computed again: admissions of a row to an engine beyond its first, as the engines' processes wrote "
        "them down. Lost: neither among the answers nor among the error rows; of a job that was given up, "
        "what it had not done. Doubled: beyond an id's first.",
        *_PEER_NOTES[: not arguments.goodput],
    ]


_PEER_NOTES = (
    "`ray-data` has Ray Data LLM's defaults; `ray-data-tuned` sends an engine at most twice max_num_seqs "
    f"rows (in batches of {BATCH_SIZE}). Both read files of one batch each, have all engines from the "
    "start, and a checkpoint on a shared folder. What else differs stands in the module's docstring.",
)

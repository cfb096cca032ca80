"""A cluster of unequal nodes: what share of the ideal rate of three replicas a whole ``dray run`` reaches.

::

    python -m tests.benchmarks.unequal_nodes
    python -m tests.benchmarks.unequal_nodes --quick

One Ray cluster on this machine: a head with two CPUs that is marked ``dray_stable: 1``, and three nodes with
one CPU each. Three replicas of the simulated engine answer 8 rows at a time, each row in 0.8 s. The command
is the real one, with its flow; a round is a run with shards of 16 rows and one with shards of 100.

The ideal is the engine's own time: rows x 0.8 s / 8 rows at a time / 3 replicas. It is not taken from one
replica that was measured: what dray, Ray and the engine's loop cost is in that rate, and is asked for here.
A simulated row costs no processor, so three replicas fit on few cores. The processes of dray and Ray share
these, and a machine that does other work gives lower figures.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dray.places import lane_of
from dray.store import open_store
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.command import write_requests
from tests.support.raylets import Raylets, Shape

REPLICAS = 3
SEQS = 8
SECONDS_PER_TOKEN = 0.1
TOKENS = 8
IDEAL = REPLICAS * SEQS / (SECONDS_PER_TOKEN * TOKENS)
"""Rows a second that the engines can answer, and no more."""
SHARDS = (16, 100)
ASKED = 0.8
_SHAPE = Shape(head_cpus=2, cpus=1, stable=1)
_SPANS = ("from the first commit to the last", "the whole serving span")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run. Shares of the ideal rate, and the rows that each replica answered, by its name."""

    name: str
    rows: int
    seconds: float
    shares: dict[str, float]
    by_replica: dict[str, int]
    left: int


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="unequal_nodes")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(workload.workspace(arguments.folder))
        environment = workload.isolated(folder / "prefect")
        cluster = Raylets(
            folder / "cluster",
            1 + REPLICAS,
            {**environment, "RAY_worker_niceness": "0"},  # at its 15 replicas wait for whatever else runs
            _SHAPE,
            log=folder / "cluster.log",
        )
        stack.callback(cluster.stop)
        measures = _rounds(arguments, folder, cluster, {**environment, **cluster.environment}, report)
    report.raw = [asdict(measure) for measure in measures]
    groups: dict[str, list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.name].append(measure)
    report.tables = [_shares(groups), _rows(groups)]
    report.targets = [] if arguments.quick else _targets(groups)
    report.notes = [
        f"The ideal is {IDEAL:.0f} rows/s: {REPLICAS} replicas, {SEQS} rows at a time, "
        f"{SECONDS_PER_TOKEN * TOKENS:g} s a row. The head has 2 CPUs and is marked `dray_stable: 1`; "
        "3 nodes have one.",
        f"`{_SPANS[0]}`: the rows after the first commit, in that time; the other replicas' first rows, "
        f"{(REPLICAS - 1) * SEQS}, are among them. `{_SPANS[1]}`: all rows, from the first replica's "
        "readiness to the last commit; the starts of the others are in it.",
        f"{arguments.rows:,} rows a run; every run ended with all of them answered.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, default=None, help="of a run (900)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one run may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.rows = arguments.rows or (36 if arguments.smoke else 300 if arguments.quick else 900)
    arguments.shards = SHARDS[:1] if arguments.smoke else SHARDS
    return arguments


def _rounds(
    arguments: argparse.Namespace,
    folder: Path,
    cluster: Raylets,
    environment: dict[str, str],
    report: Report,
) -> list[Measure]:
    """All runs; one that fails is noted, and the others go on."""
    inputs = write_requests(folder / "in.jsonl", arguments.rows, max_tokens=TOKENS)
    assert cluster.settings.address is not None
    measures = []
    for repeat in range(arguments.repeats):
        for shard_rows in arguments.shards:
            label = f"round {repeat + 1}: shards of {shard_rows}"
            command = _command(inputs, folder, cluster.settings.address, shard_rows)
            try:
                measure = _measure(command, folder, shard_rows, arguments, environment)
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            measures.append(measure)
            told = ", ".join(f"{share:.2f} {span}" for span, share in measure.shares.items())
            say(f"{label}: {told}; {measure.by_replica}")
    return measures


def _command(inputs: Path, folder: Path, address: str, shard_rows: int) -> list[str | Path]:
    return workload.dray_run(
        inputs, "--model", "simulated", "--engine", "simulated", "--cluster", address,
        "--replicas", str(REPLICAS), "--shard-rows", str(shard_rows), "--job-id", "job",
        "--engine-arg", f"max_num_seqs={SEQS}", "--engine-arg", f"seconds_per_token={SECONDS_PER_TOKEN}",
        "--output", folder / "out", "--store", f"sqlite:///{folder / 'out' / 'jobs.db'}",
    )  # fmt: skip


def _measure(
    command: Sequence[str | Path],
    folder: Path,
    shard_rows: int,
    arguments: argparse.Namespace,
    environment: dict[str, str],
) -> Measure:
    output = folder / "out"
    try:
        done = processes.run(command, timeout=arguments.timeout, environment=environment)
        result: dict[str, Any] = done.result()
        if result["counts"]["done"] != arguments.rows:
            raise RunError(f"not all of {arguments.rows} rows are done: {result['counts']}")
        commits, by_replica = _stored(output / "jobs.db")
    finally:
        shutil.rmtree(output, ignore_errors=True)
    return Measure(
        name=f"shards of {shard_rows}",
        rows=arguments.rows,
        seconds=done.seconds,
        shares={
            _SPANS[0]: _between(commits) / IDEAL,
            _SPANS[1]: arguments.rows / result["seconds"]["inference"] / IDEAL,
        },
        by_replica=by_replica,
        left=done.left,
    )


def _stored(path: Path) -> tuple[Counter[float], dict[str, int]]:
    """Rows by the time of their commit, and by the replica that answered them."""
    commits: Counter[float] = Counter()
    rows: Counter[str] = Counter()
    with open_store(str(path), create=False) as store:
        for page in store.outcomes("job"):
            commits.update(outcome.committed_at for outcome in page)
        for attempt in store.attempts("job"):
            rows[lane_of(attempt.replica or "none")] += attempt.done
    return commits, dict(sorted(rows.items()))


def _between(commits: Counter[float]) -> float:
    """Rows a second from the first commit to the last: the first one's own rows came before."""
    first, last = min(commits), max(commits)
    if first == last:
        raise RunError("all rows were committed at once: too few for a rate")
    return (commits.total() - commits[first]) / (last - first)


def _shares(groups: dict[str, list[Measure]]) -> Table:
    rows = [
        [name, *[spread([m.shares[span] for m in found]) for span in _SPANS],
         spread([m.seconds for m in found]), str(max(m.left for m in found))]
        for name, found in groups.items()
    ]  # fmt: skip
    header = ("", *_SPANS, "whole command, s", "processes left behind")
    return Table(title="Share of the ideal rate", header=header, rows=rows)


def _rows(groups: dict[str, list[Measure]]) -> Table:
    names = sorted({name for found in groups.values() for m in found for name in m.by_replica})
    rows = [
        [name, *[spread([float(m.by_replica.get(replica, 0)) for m in found]) for replica in names]]
        for name, found in groups.items()
    ]
    return Table(title="Rows by replica", header=("", *names), rows=rows)


def _targets(groups: dict[str, list[Measure]]) -> list[Target]:
    return [
        Target(name=f"{name}, {span}", value=median([m.shares[span] for m in found]), bound=ASKED)
        for name, found in groups.items()
        for span in _SPANS
    ]


if __name__ == "__main__":
    sys.exit(main())

"""A million rows through ``dray run`` with the simulated engine: speed, memory, flatness.

::

    python -m tests.benchmarks.scale            10,000, 100,000 and 1,000,000 rows, SQLite and PostgreSQL
    python -m tests.benchmarks.scale --quick    1,000 and 5,000 rows, once
    python -m tests.benchmarks.scale --stores sqlite --rows 10000 1000000

Rows are chat requests of about 1 KB with random ids; answers are about 1 KB. Each run is a process of
its own on a new store. Needs about 5 GB of disk for a million rows.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.postgres import PostgresServer

STORES = ("sqlite", "postgresql")
ROW_BYTES = 1024
RESPONSE_BYTES = 1000
_MB = 1_000_000
_PHASES = ("ingest", "inference", "finalise")  # the phases whose time grows with the rows


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run. Seconds, and bytes of memory: ``driver`` is the ``dray run`` process itself."""

    store: str
    rows: int
    seconds: float
    phases: dict[str, float]
    driver: int
    others: dict[str, int]
    left: int

    @property
    def rate(self) -> float:
        """Rows a second from process start to exit."""
        return self.rows / self.seconds

    def microseconds(self, phase: str) -> float:
        """Time per row in a phase."""
        return self.phases[phase] / self.rows * 1e6

    @property
    def per_row(self) -> float:
        """Microseconds per row over the phases that grow with the rows; start and end are left out."""
        return sum(self.microseconds(phase) for phase in _PHASES)


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="scale")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(workload.workspace(arguments.folder))
        server = (
            stack.enter_context(PostgresServer(on_disk=True)) if "postgresql" in arguments.stores else None
        )
        measures = _rounds(arguments, folder, server, report)
    report.raw = [asdict(measure) for measure in measures]
    groups = _grouped(measures)
    report.tables = [_speed(groups), _phases(groups), _memory(groups)]
    report.targets = _targets(groups, quick=arguments.quick)
    report.notes = [
        "Wall clock is from process start to exit, with Prefect's server, Ray and the replica started and "
        "stopped in it; the phases' times per row leave that out.",
        f"Lines of {ROW_BYTES} bytes with random ids, answers of about {RESPONSE_BYTES} bytes, one simulated "
        "replica, every commit fully synced. The rows of every output were counted.",
        "Memory is VmHWM, the peak resident size as the kernel counts it, seen every half second. PostgreSQL "
        "runs beside with its default settings (fsync on), on the same cores.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=None, help="(10000 100000 1000000)")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one run may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    if arguments.smoke:
        arguments.rows, arguments.stores = [100], ["sqlite"]
    arguments.rows = sorted(
        arguments.rows or ([1000, 5000] if arguments.quick else [10_000, 100_000, 1_000_000])
    )
    return arguments


def _rounds(
    arguments: argparse.Namespace, folder: Path, server: PostgresServer | None, report: Report
) -> list[Measure]:
    """All runs; one that fails is noted, and the others go on."""
    environment = workload.isolated(folder / "prefect")
    for rows in arguments.rows:
        say(f"writing {rows:,} requests")
        workload.write_large(folder / f"in-{rows}.jsonl", rows, size=ROW_BYTES)
    measures = []
    for repeat in range(arguments.repeats):
        for rows in arguments.rows:
            for store in arguments.stores:
                label = f"round {repeat + 1}: {store}, {rows:,} rows"
                try:
                    measure = _measure(store, rows, folder, server, environment, arguments.timeout)
                except RunError as error:
                    report.failures.append(f"{label}: {error}")
                    say(f"{label}: FAILED")
                    continue
                measures.append(measure)
                say(f"{label}: {measure.rate:,.0f} rows/s, driver {measure.driver / _MB:.0f} MB")
    return measures


def _measure(
    store: str,
    rows: int,
    folder: Path,
    server: PostgresServer | None,
    environment: dict[str, str],
    timeout: float,
) -> Measure:
    output = folder / "out"
    command = workload.dray_run(
        folder / f"in-{rows}.jsonl", "--model", "simulated", "--engine", "simulated",
        "--engine-arg", f"response_bytes={RESPONSE_BYTES}", "--output", output,
    )  # fmt: skip
    if store == "postgresql":
        assert server is not None
        database = server.create_database()
        command += ["--store", server.url(database)]
    try:
        done = processes.run(command, timeout=timeout, environment=environment)
        result: dict[str, Any] = done.result()
        if result["counts"]["done"] != rows or workload.count_lines(output / "output.jsonl") != rows:
            raise RunError(f"not all of {rows} rows are done: {result['counts']}")
    finally:
        shutil.rmtree(output, ignore_errors=True)
        if store == "postgresql" and server is not None:
            with server.connect() as connection:
                connection.execute(f"DROP DATABASE {database} WITH (FORCE)")
    return Measure(
        store=store,
        rows=rows,
        seconds=done.seconds,
        phases=dict(result["seconds"]),
        driver=done.peak,
        others=done.others,
        left=done.left,
    )


Groups = dict[tuple[str, int], list[Measure]]


def _grouped(measures: Sequence[Measure]) -> Groups:
    groups: dict[tuple[str, int], list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.store, measure.rows].append(measure)
    return dict(sorted(groups.items(), key=lambda item: (STORES.index(item[0][0]), item[0][1])))


def _speed(groups: Groups) -> Table:
    rows = [
        [store, f"{count:,}", spread([run.rate for run in runs]), spread([run.seconds for run in runs]),
         str(len(runs)), str(max(run.left for run in runs) or "")]
        for (store, count), runs in groups.items()
    ]  # fmt: skip
    header = ("store", "rows", "rows/s, whole path", "wall clock, s", "runs", "processes left")
    return Table(title="The whole path", header=header, rows=rows)


def _phases(groups: Groups) -> Table:
    rows = [
        [store, f"{count:,}", *[spread([run.microseconds(phase) for run in runs]) for phase in _PHASES],
         spread([run.per_row for run in runs]),
         spread([run.seconds - sum(run.phases[phase] for phase in _PHASES) for run in runs])]
        for (store, count), runs in groups.items()
    ]  # fmt: skip
    header = ("store", "rows", *[f"{phase}, us/row" for phase in _PHASES], "sum, us/row", "the rest, s")
    return Table(title="Where the time goes", header=header, rows=rows)


def _memory(groups: Groups) -> Table:
    rows = []
    for (store, count), runs in groups.items():
        largest: dict[str, int] = {}
        for run in runs:
            for name, size in run.others.items():
                largest[name] = max(largest.get(name, 0), size)
        others = sorted(largest.items(), key=lambda item: -item[1])[:3]
        told = ", ".join(f"{name} {size / _MB:.0f}" for name, size in others)
        rows.append([store, f"{count:,}", spread([run.driver / _MB for run in runs]), told])
    header = ("store", "rows", "`dray run`, MB", "largest of the others, MB")
    return Table(title="Peak memory", header=header, rows=rows)


def _targets(groups: Groups, *, quick: bool) -> list[Target]:
    found = []
    for store in dict.fromkeys(store for store, _ in groups):
        sizes = [count for name, count in groups if name == store]
        smallest, largest = sizes[0], sizes[-1]
        runs = groups[store, largest]
        speed = median([run.rate for run in runs])
        found.append(
            Target(name=f"{store}: rows/s at {largest:,}", value=speed, bound=None if quick else 5000)
        )
        if len(sizes) < 2:
            continue
        growth = median([run.driver for run in runs]) - median([r.driver for r in groups[store, smallest]])
        found.append(
            Target(
                name=f"{store}: driver memory at {largest:,} over {smallest:,} rows, MB",
                value=growth / _MB,
                bound=300,
                at_least=False,
            )
        )
        before = sizes[-2]  # the smallest runs are too short to tell a time per row
        flat = median([run.per_row for run in runs]) / median([r.per_row for r in groups[store, before]])
        found.append(
            Target(
                name=f"{store}: time per row at {largest:,} / at {before:,}",
                value=flat,
                bound=None if quick else 1.2,
                at_least=False,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(main())

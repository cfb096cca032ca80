"""The store alone, over rounds: fully synced commits of 256 answers of 1 KB, on SQLite and PostgreSQL.

::

    python -m tests.benchmarks.store
    python -m tests.benchmarks.store --quick

``tests.benchmarks.store_commit`` is one such measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread

_ASKED = {"sqlite": 30_000, "postgresql": 20_000}  # rows/s


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="store")
    found = _rounds(arguments, report)
    report.raw = [{"name": name, **run} for name, runs in found.items() for run in runs]
    report.tables = [_table(found, arguments.rows)]
    report.targets = [
        Target(
            name=f"{name}, rows/s",
            value=median([run["store"]["rows_per_second"] for run in found[name]]),
            bound=bound,
        )
        for name, bound in _ASKED.items()
        if found[name]
    ]
    report.notes = [
        "`flat` compares the time per row of the last tenth of the rows with that of the first tenth."
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, default=None, help="(100000)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.rows = arguments.rows or (1000 if arguments.smoke else 10_000 if arguments.quick else 100_000)
    return arguments


def _rounds(arguments: argparse.Namespace, report: Report) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _ASKED}
    with workload.workspace(arguments.folder) as folder:
        environment = workload.isolated(folder / "prefect")
        for repeat in range(arguments.repeats):
            for name, runs in found.items():
                command = [
                    sys.executable,
                    "-m",
                    "tests.benchmarks.store_commit",
                    "--rows",
                    str(arguments.rows),
                ]
                command += ["--folder", str(folder)]
                command += ["--postgres", "--no-limit"] if name == "postgresql" else []
                label = f"round {repeat + 1}: {name}"
                try:
                    done = processes.run(command, timeout=arguments.timeout, environment=environment)
                    runs.append(done.result())
                except RunError as error:
                    report.failures.append(f"{label}: {error}")
                    say(f"{label}: FAILED")
                    continue
                say(f"{label}: {runs[-1]['store']['rows_per_second']:,} rows/s")
    return found


def _table(found: dict[str, list[dict[str, Any]]], rows: int) -> Table:
    cells = []
    for name, runs in found.items():
        if name == "sqlite":
            cells.append(_cells("plain sqlite3: the limit", [run["plain_sqlite3"] for run in runs], []))
        reads = [run["read_rows_per_second"] for run in runs]
        cells.append(_cells(name, [run["store"] for run in runs], reads))
    header = (
        "store",
        "commits, rows/s",
        "processor, us/row",
        "flat",
        "slowest commit, ms",
        "reading, rows/s",
    )
    return Table(title=f"{rows:,} rows", header=header, rows=cells)


def _cells(name: str, figures: list[dict[str, float]], reads: list[float]) -> list[str]:
    keys = ("rows_per_second", "cpu_us_per_row", "flat", "slowest_commit_ms")
    return [name, *[spread([figure[key] for figure in figures]) for key in keys], spread(reads)]


if __name__ == "__main__":
    sys.exit(main())

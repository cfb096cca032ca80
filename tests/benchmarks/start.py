"""From the command to the first answer: ``dray run`` of ten rows with the simulated engine, part by part.

::

    python -m tests.benchmarks.start
    python -m tests.benchmarks.start --quick
    python -m tests.benchmarks.start --cold      also with no file of the environment in the page cache

Each round runs dray without Prefect (as from the wheel), with a Prefect server of its own, and the first time
on a machine, where Prefect makes its database. The parts are the lines that the run says. What each process
took of the processor says more than seconds on a machine that has other work.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import Finished, RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread

ROWS = 10
_LOOK_SECONDS = 0.1  # between looks at the processes: what one takes after its last look is not counted
# The driver without the project's flows, as the wheel has it.
_PLAIN = "import sys; sys.modules['flows'] = None; from dray.cli import main; main()"
PLAIN, PREFECT, FIRST = "plain", "with Prefect", "with Prefect, first on a machine"
_COLD = ", cold"
_ASKED = {PLAIN: 5.0, PREFECT: 7.0}  # seconds
_MOMENTS = {  # by the line that a run says then
    "first line": r" through ",
    "input checked; Ray asked for": r"s  starting Ray",
    "job is open": r"s  job \S+: new",
    "cluster is joined": r"s  cluster: ",
    "replica and shard tasks asked for": r"s  starting \d+ replica",
    "replica is ready": r"s  replica-0 ready",
    "all rows are committed": rf"s  {ROWS} of {ROWS} rows",
}
_PROCESSES = {  # by what stands in the command line
    "Ray's head": ("dray.cluster.head",),
    "Ray's services": ("gcs_server", "raylet/raylet"),
    "Ray's agents": ("waiting_agent", "/agent.py", "agent/main.py", "Agent"),
    "Prefect's server": ("dray.cli.server",),
    "replica": ("Replica", "/replica-"),
    "shard task": ("ray::shard", "ray::infer-shard", "ray::imports"),
    "other workers": ("ray::IDLE", "default_worker"),
}
_DRIVER = "driver"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: seconds from its start to each moment, and processor seconds of each kind of process."""

    name: str
    seconds: float
    moments: dict[str, float]
    processor: dict[str, float]
    left: int


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="start")
    with workload.workspace(arguments.folder) as folder:
        measures = _rounds(arguments, folder, report)
    report.raw = [asdict(measure) for measure in measures]
    groups: dict[str, list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.name].append(measure)
    report.tables = [_moments(groups), _processor(groups)]
    report.targets = [
        Target(
            name=f"{name}, s", value=median([m.seconds for m in groups[name]]), bound=bound, at_least=False
        )
        for name, bound in _ASKED.items()
        if name in groups
    ]
    report.notes = [
        "Moments are seconds since the command. Ray's head and Prefect's server begin to import with the "
        "command; Ray starts once the input is checked.",
        f"Processor seconds are those of a process at its last look, every {_LOOK_SECONDS} s.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--cold", action="store_true", help="also with the page cache emptied of packages")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that one run may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    return arguments


def _rounds(arguments: argparse.Namespace, folder: Path, report: Report) -> list[Measure]:
    workload.write_large(folder / "in.jsonl", ROWS)
    measures = []
    for repeat in range(arguments.repeats):
        for name, measure in _round(folder, repeat, arguments):
            label = f"round {repeat + 1}: {name}"
            try:
                measures.append(measure())
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            processor = sum(measures[-1].processor.values())
            say(f"{label}: {measures[-1].seconds:.1f} s, {processor:.1f} s of processors")
    return measures


def _round(
    folder: Path, repeat: int, arguments: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], Measure]]]:
    """What one round measures, in order: the first run with Prefect makes the database of the second."""
    home = folder / f"prefect-{repeat}"
    environment = workload.isolated(home)
    for name in (FIRST, PREFECT, PLAIN):
        yield name, lambda name=name: _run(name, folder, environment, arguments.timeout)  # type: ignore[misc]
    for name in (PREFECT, PLAIN) if arguments.cold else ():
        yield name + _COLD, lambda name=name: _cold(name, folder, environment, arguments)  # type: ignore[misc]
    shutil.rmtree(home, ignore_errors=True)


def _cold(name: str, folder: Path, environment: Mapping[str, str], arguments: argparse.Namespace) -> Measure:
    for root in site.getsitepackages():
        for path in Path(root).rglob("*"):
            if path.is_file():
                _forget(path)
    return _run(name, folder, environment, arguments.timeout, suffix=_COLD)


def _forget(path: Path) -> None:
    """Drop a file from the page cache; pages that a process has mapped stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _run(
    name: str, folder: Path, environment: Mapping[str, str], timeout: float, suffix: str = ""
) -> Measure:
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    command = workload.dray_run(
        folder / "in.jsonl", "--model", "simulated", "--engine", "simulated", "--output", output
    )
    if name == PLAIN:
        command = [sys.executable, "-c", _PLAIN, *command[1:]]
    done = processes.run(command, timeout=timeout, environment=environment, look_every=_LOOK_SECONDS)
    result: dict[str, Any] = done.result()
    if result["counts"]["done"] != ROWS:
        raise RunError(f"not all rows are done: {result['counts']}")
    return Measure(
        name=name + suffix,
        seconds=done.seconds,
        moments=_told(done),
        processor=_by_kind(done.processor),
        left=done.left,
    )


def _told(done: Finished) -> dict[str, float]:
    """When each line of the run came, its result among them."""
    found = {}
    for name, pattern in _MOMENTS.items():
        moment = next((line.seconds for line in done.err if re.search(pattern, line.text)), None)
        if moment is None:
            raise RunError(f"its log has no line of the moment {name!r}")
        found[name] = moment
    return {**found, "result is printed": done.out[-1].seconds, "command has ended": done.seconds}


def _by_kind(processor: Sequence[tuple[str, float]]) -> dict[str, float]:
    found = dict.fromkeys([_DRIVER, *_PROCESSES], 0.0)
    for called, seconds in processor:
        kind = next((k for k, marks in _PROCESSES.items() if any(m in called for m in marks)), _DRIVER)
        found[kind] += seconds
    return found


def _moments(groups: Mapping[str, list[Measure]]) -> Table:
    names = [*_MOMENTS, "result is printed", "command has ended"]
    rows: list[Sequence[str]] = [
        [moment, *[spread([m.moments[moment] for m in group]) for group in groups.values()]]
        for moment in names
    ]
    rows.append(["processes left behind", *[str(max(m.left for m in group)) for group in groups.values()]])
    return Table(title=f"`dray run`, {ROWS} rows, seconds", header=("", *groups), rows=rows)


def _processor(groups: Mapping[str, list[Measure]]) -> Table:
    rows = [
        [kind, *[spread([m.processor[kind] for m in group]) for group in groups.values()]]
        for kind in (_DRIVER, *_PROCESSES)
    ]
    sums = [spread([sum(m.processor.values()) for m in group]) for group in groups.values()]
    return Table(title="Processor seconds", header=("", *groups), rows=[*rows, ["all", *sums]])


if __name__ == "__main__":
    sys.exit(main())

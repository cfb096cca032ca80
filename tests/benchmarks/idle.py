"""How long an idle flow takes: ``dray run`` with ten rows and the simulated engine, and where the time goes.

::

    python -m tests.benchmarks.idle
    python -m tests.benchmarks.idle --quick

Three runs a round: the first on a machine (Prefect makes its database), the usual one, and one
against a Prefect server that runs already. Beside them, the parts on their own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import Finished, RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread

ROWS = 10
_LIMIT = 25.0  # seconds: what is asked of an idle flow
_TIMED = """import json, time
began = time.perf_counter()
{work}
seconds = time.perf_counter() - began
{after}
print(json.dumps({{"seconds": seconds}}))
"""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run or part: ``seconds`` of the process, and of what was timed inside it, by name."""

    name: str
    seconds: float
    inside: dict[str, float]
    left: int


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="idle")
    with workload.workspace(arguments.folder) as folder:
        measures = _rounds(arguments, folder, report)
    report.raw = [asdict(measure) for measure in measures]
    groups: dict[str, list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.name].append(measure)
    report.tables = [_runs(groups), _parts(groups)]
    report.targets = [
        Target(
            name=f"{name}, s", value=median([m.seconds for m in groups[name]]), bound=_LIMIT, at_least=False
        )
        for name in RUNS
        if name in groups
    ]
    report.notes = [
        "`before the flow`: from process start to the flow's first line: Python, imports, Prefect's server, "
        "the flow run's creation. `closing`: from the flow's end until the result is printed; the server is "
        "stopped in it.",
        "`cluster` (Ray) starts before and beside other parts, so the parts may add up to more than "
        "the flow.",
        "The parts in the second table are each timed in a process of its own, one at a time; inside a run "
        "the server, Ray and the imports overlap.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--timeout", type=float, default=180, help="seconds that one process may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    return arguments


_FIRST = re.compile(r"s  job \S+: new")
_SMOKE = ("usual run", "python")
RUNS = ("first run on a machine", "usual run", "run with a Prefect server that is up")


def _rounds(arguments: argparse.Namespace, folder: Path, report: Report) -> list[Measure]:
    workload.write_large(folder / "in.jsonl", ROWS)
    measures = []
    for repeat in range(arguments.repeats):
        for name, measure in _round(folder, repeat, arguments.timeout):
            if arguments.smoke and name not in _SMOKE:
                continue
            label = f"round {repeat + 1}: {name}"
            try:
                measures.append(measure())
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            say(f"{label}: {measures[-1].seconds:.1f} s")
    return measures


def _round(folder: Path, repeat: int, timeout: float) -> Iterator[tuple[str, Callable[[], Measure]]]:
    """What one round measures, in order."""
    home = folder / f"prefect-{repeat}"
    environment = workload.isolated(home)
    for name in RUNS[:2]:
        yield name, lambda name=name: _run(name, folder, environment, timeout)  # type: ignore[misc]
    yield RUNS[2], lambda: _run_beside_server(folder, environment, timeout)
    for name, work, after in PARTS:
        code = _TIMED.format(work=work, after=after)
        yield name, lambda name=name, code=code: _part(name, code, environment, timeout)  # type: ignore[misc]
    shutil.rmtree(home, ignore_errors=True)


def _run(name: str, folder: Path, environment: dict[str, str], timeout: float) -> Measure:
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    command = workload.dray_run(
        folder / "in.jsonl", "--model", "simulated", "--engine", "simulated", "--output", output
    )
    done = processes.run(command, timeout=timeout, environment=environment)
    result: dict[str, Any] = done.result()
    if result["counts"]["done"] != ROWS:
        raise RunError(f"not all rows are done: {result['counts']}")
    return Measure(name=name, seconds=done.seconds, inside=_inside(done, result), left=done.left)


def _inside(done: Finished, result: dict[str, Any]) -> dict[str, float]:
    """The flow's own figures, and the time before its first line and after its result."""
    told = dict(result["seconds"])
    printed = done.out[-1].seconds
    first = next((line.seconds for line in done.err if _FIRST.search(line.text)), None)
    if first is None:
        raise RunError("its log has no line of the job, from which the flow's start is told")
    total = told.pop("total")
    return {
        "before the flow": first,
        "the flow": total,
        **told,
        "closing": max(printed - first - total, 0.0),
        "after the result": done.seconds - printed,
    }


def _run_beside_server(folder: Path, environment: dict[str, str], timeout: float) -> Measure:
    """With dray's own temporary server started beforehand, as a user's standing one would be."""
    with _server(environment) as url:
        return _run(RUNS[2], folder, {**environment, "PREFECT_API_URL": url}, timeout)


@contextlib.contextmanager
def _server(environment: dict[str, str]) -> Iterator[str]:
    from dray.cli.server import PrefectServer
    from dray.errors import ClusterError

    before = dict(os.environ)
    os.environ.update(environment)
    server = PrefectServer()
    try:
        server.start()
        server.wait()
        yield server.url
    except ClusterError as error:
        raise RunError(str(error)) from None
    finally:
        server.stop()
        os.environ.clear()
        os.environ.update(before)


_SERVER = "from dray.cli.server import PrefectServer\nserver = PrefectServer(); server.start(); server.wait()"
_RAY = (
    "from dray.cluster import ClusterSettings, open_cluster\n"
    "import ray; began = time.perf_counter()\n"
    "cluster = open_cluster(ClusterSettings()); cluster.start(); cluster.wait()"
)
_RELEASE = _RAY + "\nbegan = time.perf_counter(); cluster.release()"
# name, code that is timed, code after it
PARTS = (
    ("python", "pass", ""),
    ("import dray.cli.app", "import dray.cli.app", ""),
    ("import prefect", "import prefect", ""),
    ("import ray", "import ray", ""),
    ("import flows.batch_inference", "import flows.batch_inference", ""),
    ("Prefect's server: start until it answers", _SERVER, "server.stop()"),
    ("Ray: start", _RAY, "cluster.release()"),
    ("Ray: stop", _RELEASE, ""),
)


def _part(name: str, code: str, environment: dict[str, str], timeout: float) -> Measure:
    done = processes.run([sys.executable, "-c", code], timeout=timeout, environment=environment)
    inside: Any = done.result()["seconds"]
    return Measure(name=name, seconds=done.seconds, inside={"timed": float(inside)}, left=done.left)


def _runs(groups: dict[str, list[Measure]]) -> Table:
    present = [name for name in RUNS if name in groups]
    names = list(dict.fromkeys(part for name in present for m in groups[name] for part in m.inside))
    rows: list[Sequence[str]] = [
        ["wall clock", *[spread([m.seconds for m in groups[name]]) for name in present]]
    ]
    for part in names:
        label = part if part in _OUTER else f"  in it: {part}"
        rows.append([label, *[spread([m.inside.get(part, 0.0) for m in groups[name]]) for name in present]])
    left = [str(max(m.left for m in groups[name])) for name in present]
    return Table(title=f"`dray run`, {ROWS} rows, seconds", header=("", *present),
                 rows=[*rows, ["processes left behind", *left]])  # fmt: skip


_OUTER = ("before the flow", "the flow", "closing", "after the result")


def _parts(groups: dict[str, list[Measure]]) -> Table:
    rows = [
        [name, spread([m.inside["timed"] for m in groups[name]]), spread([m.seconds for m in groups[name]])]
        for name, _, _ in PARTS
        if name in groups
    ]
    return Table(
        title="The parts on their own, seconds", header=("part", "itself", "whole process"), rows=rows
    )


if __name__ == "__main__":
    sys.exit(main())

"""A thousand replicas and a hundred million rows: does the driver keep up, and what does it ask of the store?

::

    python -m tests.benchmarks.fleet            100 and 1,000 replicas: 40 minutes
    python -m tests.benchmarks.fleet --quick    10 and 50 replicas, a minute
    python -m tests.benchmarks.fleet --sizes 300:30000000

The driver, its scheduling and PostgreSQL are real. Replicas and shard tasks are pretended
(`pretended_fleet.py`): no row is computed, and none is stored, so the rows' own cost is not in these figures
(`store` and `scale` have it). Each size runs in a process of its own; a driver's figures are cut into tenths
of its job.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.benchmarks import processes, results, workload
from tests.benchmarks.pretended_fleet import MEAN_LATER, Pace, PretendedFleet, PretendedTasks
from tests.benchmarks.pretended_pace import Idle
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say
from tests.support.postgres import PostgresServer

SIZES = ((100, 10_000_000), (1000, 100_000_000))  # replicas, rows
ROWS_PER_SECOND = 100.0  # of a replica
SEQUENCES = 256
_START_SECONDS = 5.0
_COMMIT_SECONDS = 40.0
_SAMPLE_SECONDS = 1.0
_MB = 1_000_000
_LINE_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A moment of a run. Counters are totals since its begin; seconds of the processor, bytes of memory."""

    at: float
    memory: int
    processor: float
    store_processor: float
    transactions: int
    busy: float
    """Shard tasks that run, of all that have a place."""


@dataclass(kw_only=True)
class Run:
    """What one size came to. ``steps`` are (end, seconds) of the driver's steps, times since the begin."""

    replicas: int
    rows: int
    shards: int
    seconds: float = 0.0
    steps: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    idle: Idle | None = None

    @property
    def share(self) -> float:
        """Of the replicas' rate, from their starts on."""
        start = _START_SECONDS * (1 + MEAN_LATER)
        return self.rows / self.replicas / ROWS_PER_SECOND / (self.seconds - start)

    def tenth(self, number: int) -> tuple[list[float], list[Sample]]:
        """The steps' seconds and the samples of one tenth of the run."""
        low, high = number * self.seconds / 10, (number + 1) * self.seconds / 10
        steps = [seconds for at, seconds in self.steps if low <= at < high]
        return steps, [sample for sample in self.samples if low <= sample.at < high]


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if arguments.one:
        print(json.dumps(asdict(_one(*_size(arguments.one), arguments.folder))), flush=True)
        return 0
    report = Report(name="fleet")
    runs = []
    with workload.workspace(arguments.folder) as folder:
        for size in arguments.sizes:
            try:
                runs.append(_apart(size, folder, arguments.timeout))
            except RunError as error:
                report.failures.append(f"{size}: {error}")
                say(f"{size}: FAILED: {error}")
    tenths = [_tenths(run) for run in runs]
    report.raw = [{"name": f"{run.replicas} replicas", **asdict(run)} for run in runs]
    report.tables = [_overview(runs), _idle(runs), *[table for table in tenths if table.rows]]
    report.targets = [] if arguments.quick else _targets(runs)
    report.notes = [
        f"Pretended: replicas ({ROWS_PER_SECOND:g} rows/s each, which the shards at work on it share, two at "
        f"a time) and shard tasks, which count their rows into the store every {_COMMIT_SECONDS:g} s. Real: "
        "driver, scheduling, PostgreSQL.",
        "A step of the driver is one look at everything; between two it waits for a task to end, at most "
        "0.2 s, which is not counted. `busy`: shard tasks that run, of two for each replica.",
        f"Replicas start within {_START_SECONDS:g} to {2 * _START_SECONDS:g} s. The share is that of the "
        "time from the mean start on.",
        "Ray's own calls (a status a second and replica) and Prefect's are not in these figures.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--sizes", nargs="+", default=None, metavar="REPLICAS:ROWS")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that one size may take")
    parser.add_argument("--one", default=None, metavar="REPLICAS:ROWS", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    small = [(4, 2_000)] if arguments.smoke else [(10, 100_000), (50, 500_000)]
    sizes = small if arguments.quick else SIZES
    arguments.sizes = arguments.sizes or [f"{replicas}:{rows}" for replicas, rows in sizes]
    return arguments


def _size(text: str) -> tuple[int, int]:
    replicas, _, rows = text.partition(":")
    return int(replicas), int(rows)


def _apart(size: str, folder: Path, timeout: float) -> Run:
    """One size in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.fleet", "--one", size, "--folder", str(folder)]
    result: dict[str, Any] = processes.run(command, timeout=timeout).result()
    result["samples"] = [Sample(**one) for one in result["samples"]]
    result["idle"] = result["idle"] and Idle(**result["idle"])
    run = Run(**result)
    steps = [seconds for _, seconds in run.steps]
    say(f"{size}: {run.seconds:.0f} s, a step {median(steps) * 1e3:.1f} ms, at most {max(steps):.2f} s")
    return run


# -- one size, in its process -------------------------------------------------------------------------


def _one(replicas: int, rows: int, folder: Path) -> Run:
    with PostgresServer(settings={"max_connections": "4000"}, on_disk=True) as server:
        url = server.url(server.create_database())
        job, shards = _job(folder, url, replicas, rows)
        run = Run(replicas=replicas, rows=rows, shards=len(shards))
        seconds = _COMMIT_SECONDS if rows >= SIZES[0][1] else 1.0
        tasks = PretendedTasks(url, Pace(rows_per_second=ROWS_PER_SECOND, commit_seconds=seconds))
        began = time.monotonic()
        with _Sampler(run, server, url, tasks, began):
            _drive(job, shards, tasks, run, began)
            run.seconds = time.monotonic() - began
        run.idle = tasks.idle
    return run


def _drive(job: Any, shards: Any, tasks: PretendedTasks, run: Run, began: float) -> None:
    from dray.driver.run import Driver

    class Timed(Driver):
        """Notes how long its steps take, without their wait for a task to end."""

        def _step(self) -> None:
            waited = tasks.waited
            start = time.monotonic()
            super()._step()
            end = time.monotonic()
            run.steps.append((end - began, end - start - (tasks.waited - waited)))

    fleet = PretendedFleet(run.replicas, start_seconds=_START_SECONDS, sequences=SEQUENCES)
    spec = job.settings.engine_spec(_chat(), "m")
    with Timed(job, fleet, tasks, [], spec=spec, shards=shards, replicas=run.replicas) as driver:
        driver.until_ready()
        driver.run()


def _job(folder: Path, url: str, replicas: int, rows: int) -> tuple[Any, Any]:
    """A job whose shards are cut as a real one's, over requests that are not there."""
    from dray.cluster.placing import USUAL_SEQS
    from dray.job.beginning.opening import open_job
    from dray.job.options.settings import JobSettings
    from dray.job.rows.shard_sizes import ROWS, ShardSizes
    from dray.requests.sources import RowDefaults, source_of
    from dray.requests.spool.marks import steps
    from dray.store import ShardSpec, open_store

    source = workload.write_batch(folder / f"in-{replicas}.jsonl", "chat", 1, 1)
    settings = JobSettings(
        source=source_of([str(source)]),
        defaults=RowDefaults(),
        model="m",
        output=str(folder / f"out-{replicas}"),
        store_url=url,
        engine="simulated",
        replicas=replicas,
    )
    job = open_job(settings)
    sizes = ShardSizes(replicas=replicas, batch=USUAL_SEQS)
    assert sizes.taper is not None
    count = min(max(-(-rows // ROWS), sizes.least(rows)), sizes.most)
    cuts = [*(int(rows * step) for step in steps(rows, count, sizes.taper)), rows]
    specs = [
        ShardSpec(number=number, uri=job.spool(1), offset=low * _LINE_BYTES,
                  length=(high - low) * _LINE_BYTES, rows=high - low, first_position=low)
        for number, (low, high) in enumerate(itertools.pairwise(cuts))
    ]  # fmt: skip
    with open_store(url, create=False) as store:
        store.add_shards(job.lease, specs, total_rows=rows)
        return job, store.shards(job.job_id)


def _chat() -> Any:
    from dray.kinds import Kind

    return Kind.CHAT


class _Sampler(threading.Thread):
    """Looks at the driver's process and the database now and then, and says how far the job is."""

    def __init__(
        self, run: Run, server: PostgresServer, url: str, tasks: PretendedTasks, began: float
    ) -> None:
        super().__init__(daemon=True)
        self._run, self._tasks, self._began = run, tasks, began
        self._server = psutil.Process(server.pid)
        self._url = url
        self._over = threading.Event()

    def __enter__(self) -> _Sampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        own = psutil.Process()
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._over.wait(_SAMPLE_SECONDS):
                times = own.cpu_times()
                [[transactions]] = connection.execute(
                    "select xact_commit from pg_stat_database where datname = current_database()"
                ).fetchall()
                self._run.samples.append(
                    Sample(
                        at=time.monotonic() - self._began,
                        memory=own.memory_info().rss,
                        processor=times.user + times.system,
                        store_processor=_processor(self._server),
                        transactions=transactions,
                        busy=self._tasks.running / (2 * self._run.replicas),
                    )
                )


def _processor(server: psutil.Process) -> float:
    """Processor seconds of a database server's processes that live."""
    found = 0.0
    for process in [server, *server.children()]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


# -- what it came to ------------------------------------------------------------------------------------


def _overview(runs: Sequence[Run]) -> Table:
    rows = []
    for run in runs:
        steps = sorted(seconds for _, seconds in run.steps)
        last = run.samples[-1]
        rows.append([
            f"{run.replicas:,}", f"{run.rows:,}", f"{run.shards:,}", f"{run.seconds:.0f}",
            f"{run.share:.2f}",
            f"{median(steps) * 1e3:.1f}", f"{steps[int(len(steps) * 0.99)] * 1e3:.0f}", f"{steps[-1]:.2f}",
            f"{last.memory / _MB:.0f}", f"{last.processor / run.seconds:.2f}",
            f"{last.transactions / run.seconds:.0f}", f"{last.store_processor / run.seconds:.2f}",
        ])  # fmt: skip
    header = ("replicas", "rows", "shards", "seconds", "share of the replicas' rate", "step, ms",
              "step, 99%, ms", "longest step, s", "driver, MB", "driver, cores", "transactions/s",
              "PostgreSQL, cores")  # fmt: skip
    return Table(title="A driver and its store", header=header, rows=rows)


def _idle(runs: Sequence[Run]) -> Table:
    """Where the replicas' time went that they did not work."""
    rows = [
        [
            f"{run.replicas:,}",
            f"{idle.before:.1f}",
            f"{idle.between:.1f}",
            f"{idle.after:.1f}",
            f"{idle.late:.2f}",
        ]
        for run in runs
        if (idle := run.idle) is not None
    ]
    header = ("replicas", "before the first, s", "between two, s", "after the last, s", "tasks late, 99%, s")
    return Table(title="A replica without a shard, on average", header=header, rows=rows)


def _tenths(run: Run) -> Table:
    rows = []
    for number in range(10):
        steps, samples = run.tenth(number)
        if not steps or len(samples) < 2:
            continue
        first, last = samples[0], samples[-1]
        seconds = last.at - first.at
        rows.append([
            str(number + 1), f"{median(steps) * 1e3:.1f}", f"{max(steps):.2f}", f"{last.memory / _MB:.0f}",
            f"{(last.processor - first.processor) / seconds:.2f}",
            f"{(last.transactions - first.transactions) / seconds:.0f}",
            f"{sum(sample.busy for sample in samples) / len(samples):.2f}",
        ])  # fmt: skip
    header = ("tenth", "step, ms", "longest step, s", "driver, MB", "driver, cores", "transactions/s", "busy")
    title = f"{run.replicas:,} replicas, {run.rows:,} rows, by tenths of the time"
    return Table(title=title, header=header, rows=rows)


def _targets(runs: Sequence[Run]) -> list[Target]:
    found = []
    for run in runs:
        of = f"{run.replicas:,} replicas"
        early, late = run.tenth(2), run.tenth(7)
        steps = sorted(seconds for _, seconds in run.steps)
        found += [
            Target(name=f"{of}: share of the replicas' rate", value=run.share, bound=0.9),
            Target(name=f"{of}: a step, 99%, s", value=steps[int(len(steps) * 0.99)], bound=1.0,
                   at_least=False),
            Target(name=f"{of}: driver memory, 8th tenth over 3rd, MB",
                   value=(late[1][-1].memory - early[1][-1].memory) / _MB, bound=50.0, at_least=False),
        ]  # fmt: skip
    return found


if __name__ == "__main__":
    sys.exit(main())

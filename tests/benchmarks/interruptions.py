"""dray and Ray Data LLM on a cluster that keeps losing nodes: the same work, the same kills.

::

    python -m tests.benchmarks.interruptions            2,000 rows, 3 nodes, a kill every 20 s: three rounds
    python -m tests.benchmarks.interruptions --quick    600 rows, one round
    python -m tests.benchmarks.interruptions --only dray --kill-every 10 --repeats 1 --no-calm
    python -m tests.benchmarks.interruptions --goodput  dray alone, 4 nodes, 20 ms a token, a kill every 60 s

Every job has a Ray cluster of its own on this machine: a head that is never killed, and ``--nodes`` more with
four (logical) CPUs and one (pretended) GPU each. From the moment the first row enters an engine, one of
these is lost every ``--kill-every`` seconds (SIGKILL to its raylet, upon which what ran there ends), and two
seconds later a new one is started, until the job is done. A command that fails is given again, as it is, up
to 20 runs in all. Rounds are interleaved, and in each of them every contestant also runs undisturbed.

The same on both sides:

- the rows (OpenAI's batch format, ids ``r0``, ``r1``, ...), local disk for all folders, one machine for all;
- the engine's arithmetic: ``max_num_seqs`` rows at once, ``tokens x seconds_per_token`` for each row, answers
  of the same length, ``start_seconds`` until it is ready, as many engines as nodes;
- the kills: the n-th one comes at the same second and takes the same place in the list of live nodes. Whoever
  takes longer meets more of them;
- Ray, with its defaults for finding out that a node is dead (about 15 s after it died, in these runs);
- the counting: each engine's process writes down every row that it admits, at once and outside of what either
  system knows. What was answered is read from the outputs, by id.

Not the same:

- Ray Data LLM is its own ``Processor`` with the options of its vLLM stage (batches of 32, 8 of them in an
  engine and 16 sent to it, actors restarted and calls tried again without end: its defaults), from
  ``read_json`` to ``write_parquet``, with ``CheckpointConfig``. Three things are set in its favour: files of
  one batch each with the same lines (one file is one task for one engine, or is cut into pieces that a
  resumed run cuts again, down to single rows), all engines from the start (its default begins with one), and
  a second contestant, ``ray-data-tuned``, which sends an engine twice what it runs, so that less waits in a
  dead one.
- dray is ``dray run --engine simulated --replicas NODES``: Prefect's server, flow and report are in its whole
  job, as they are in a user's. From the first row in an engine on there is a column of its own.
- dray's driver, shard tasks and SQLite are on the head. Ray Data's driver is too, but its read, map and write
  tasks run where the engines do, and blocks lie there: what a dead node held is computed again.
- Ray Data publishes Parquet files batch by batch, dray a transaction per micro-batch and files at the end.
- An admission is counted where each admits: Ray Data LLM lets 1.1 x max_num_seqs rows into an engine, dray
  1.2 x. So about 6 rows a kill are dray's for this alone.
- Engines of both take a whole node here, Ray Data's by its GPU, dray's by its CPUs.

Rows sleep, all for the same time, so this says what an interruption costs, and nothing of rates on real
engines. Real rows differ in length, which is worse for whoever waits for whole batches.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from tests.benchmarks import processes, results, workload
from tests.benchmarks.interruptions_cluster import (
    Killer,
    SpotCluster,
    last_admission,
    shares,
    traced_rows,
)
from tests.benchmarks.interruptions_ray_data import Work
from tests.benchmarks.interruptions_report import (
    BATCH_SIZE,
    DRAY,
    NAMES,
    TOKENS,
    Load,
    Measure,
    goodput,
    notes,
    tables,
    targets,
)
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, say

MAX_RUNS = 20  # of one job


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Somebody to run: the command line of a job in a folder, and the ids of its answers and error rows."""

    name: str
    command: Callable[[Load, SpotCluster, Path], list[str | Path]]
    answered: Callable[[Path], list[str]]
    errors: Callable[[Path], list[str]]


def contestants() -> list[Contestant]:
    """Everybody, in the order of a round."""
    return [
        Contestant(name="ray-data", command=_ray_data, answered=_parquet_ids, errors=_parquet_errors),
        Contestant(
            name="ray-data-tuned", command=_ray_data_tuned, answered=_parquet_ids, errors=_parquet_errors
        ),
        Contestant(name=DRAY, command=_dray, answered=_jsonl_ids, errors=_jsonl_errors),
    ]


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="goodput" if arguments.goodput else "interruptions")
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, arguments, report)
        measures = bench.rounds()
    report.raw = [asdict(measure) for measure in measures]
    report.tables = tables(measures, arguments)
    report.targets = goodput(measures) if arguments.goodput else targets(measures)
    report.notes = notes(arguments, bench.load)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--goodput", action="store_true", help="dray alone: what is left of its rate")
    parser.add_argument("--rows", type=int, default=None, help="rows of the job (2000)")
    parser.add_argument("--nodes", type=int, default=3, help="nodes that may die, one engine each (3)")
    parser.add_argument("--kill-every", type=float, default=20, help="seconds from kill to kill (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each round adds one (1)")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="rows an engine runs at once (64)")
    parser.add_argument("--seconds-per-token", type=float, default=0.08, help=f"x {TOKENS} = a row (0.08)")
    parser.add_argument("--start-seconds", type=float, default=5, help="of an engine's start (5)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=None)
    parser.add_argument("--no-calm", action="store_true", help="leave the undisturbed runs out")
    parser.add_argument("--no-kills", action="store_true", help="leave the disturbed runs out")
    parser.add_argument("--timeout", type=float, default=600, help="seconds a run may take; then it has hung")
    parser.add_argument("--limit", type=float, default=1200, help="seconds a job may take, all runs together")
    parser.add_argument("--keep", type=Path, default=None, help="where logs and traces of the runs are kept")
    parser.set_defaults(**_GOODPUT) if "--goodput" in (sys.argv if argv is None else argv) else None
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    if arguments.smoke:
        arguments.only, arguments.nodes, arguments.no_kills, arguments.rows = [DRAY], 1, True, 64
        arguments.seconds_per_token, arguments.start_seconds = 0.001, 0.1
    arguments.rows = arguments.rows or (600 if arguments.quick else 2000)
    return arguments


_GOODPUT = {"only": [DRAY], "nodes": 4, "kill_every": 60.0, "seconds_per_token": 0.02, "rows": 36_000}
"""Three minutes of undisturbed work, so three kills or four."""


class _Bench:
    """The folder, the input and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        names = arguments.only
        self._chosen = [c for c in contestants() if names is None or c.name in names]
        self.load = Load(
            input=workload.write_batch(folder / "in.jsonl", "chat", arguments.rows, TOKENS),
            rows=arguments.rows,
            engines=arguments.nodes,
            max_num_seqs=arguments.max_num_seqs,
            seconds_per_token=arguments.seconds_per_token,
            start_seconds=arguments.start_seconds,
        )

    def rounds(self) -> list[Measure]:
        """All jobs; one that the harness could not run is noted, and the others go on."""
        arguments = self._arguments
        self._first_runs()
        kinds = [kind for kind, out in ((False, arguments.no_calm), (True, arguments.no_kills)) if not out]
        measures = []
        for number in range(arguments.repeats):
            for disturbed in kinds:
                for contestant in self._chosen:
                    label = (
                        f"round {number + 1}: {contestant.name}, {'kills' if disturbed else 'undisturbed'}"
                    )
                    try:
                        measure = self._measure(contestant, self.load, number, disturbed)
                    except (OSError, RuntimeError, ValueError, RunError) as error:
                        self._report.failures.append(f"{label}: {type(error).__name__}: {error}")
                        say(f"{label}: FAILED")
                        continue
                    if not measure.finished:
                        self._report.failures.append(f"{label}: not done after {measure.runs} runs")
                    measures.append(measure)
                    say(f"{label}: {_told(measure)}")
        return measures

    def _first_runs(self) -> None:
        """Not measured: Prefect's database is there afterwards, and everybody's files are in memory."""
        if self._arguments.smoke:
            return
        say("an unmeasured small job of each")
        small = workload.write_batch(self._folder / "small.jsonl", "chat", 64, 4)
        for contestant in self._chosen:
            self._measure(contestant, replace(self.load, input=small, rows=64), -1, disturbed=False)

    def _measure(self, contestant: Contestant, load: Load, number: int, disturbed: bool) -> Measure:
        folder = self._folder / f"{number}-{contestant.name}-{'kills' if disturbed else 'calm'}"
        (folder / "trace").mkdir(parents=True)
        seed = self._arguments.seed + number
        trace = {"DRAY_TRACE_DIR": str(folder / "trace")}
        cluster = SpotCluster(folder, self.load.engines, self._environment)
        every = self._arguments.kill_every if disturbed else None
        killer = Killer(cluster, folder / "trace", every=every, seed=seed)
        try:
            command = contestant.command(load, cluster, folder)
            environment = {**self._environment, **cluster.environment, **trace}
            killer.start()
            began = time.monotonic()
            said, hung, ended = self._until_done(command, environment, began, folder)
            killer.end()
        finally:
            killer.stop()
            cluster.stop()
            if self._arguments.keep is not None:
                shutil.copytree(folder / "trace", self._arguments.keep / folder.name, dirs_exist_ok=True)
                shutil.copy(folder / "cluster.log", self._arguments.keep / folder.name)
        admitted = Counter(traced_rows(folder / "trace"))
        errors = contestant.errors(folder)
        told = Counter([*contestant.answered(folder), *errors])
        wanted = {f"r{row}" for row in range(load.rows)}
        if strange := told.keys() - wanted:
            raise RunError(f"the output has ids that the input has not: {sorted(strange)[:5]}")
        finished = ended is not None
        until = ended or time.monotonic()
        computed = last_admission(folder / "trace") + TOKENS * load.seconds_per_token
        return Measure(
            name=contestant.name,
            disturbed=disturbed,
            round=number,
            seconds=until - began,
            working=until - (killer.first or until),
            computing=computed - (killer.first or computed),
            finished=finished,
            runs=len(said) + finished,
            hung=hung,
            lost=len(wanted - told.keys()),
            doubled=told.total() - len(told),
            error_rows=len(errors),
            again=sum(admitted.values()) - len(admitted),
            rows_again=sum(times > 1 for times in admitted.values()),
            shares=shares(folder / "trace"),
            kills=killer.kills,
            said=said,
        )

    def _until_done(
        self, command: Sequence[str | Path], environment: dict[str, str], began: float, folder: Path
    ) -> tuple[list[str], int, float | None]:
        """Run it, and again while it fails: what failed runs said, how many hung, when the job was done."""
        said: list[str] = []
        hung = 0
        while len(said) < MAX_RUNS and (left := began + self._arguments.limit - time.monotonic()) > 0:
            timeout = min(self._arguments.timeout, left)
            started = time.monotonic()
            try:
                run = processes.run(command, timeout=timeout, environment=environment)
            except RunError as error:
                hung += 1
                said.append(str(error))
                continue
            self._keep(folder, len(said), run)
            if run.code == 0:
                return said, hung, started + run.seconds
            last = [line.text for line in run.err if line.text.strip()][-1:]
            said.append(f"exit code {run.code} after {run.seconds:.0f} s: {' '.join(last)[:300]}")
        return said, hung, None

    def _keep(self, folder: Path, number: int, run: processes.Finished) -> None:
        if self._arguments.keep is not None:
            path = self._arguments.keep / f"{folder.name}-{number}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(f"{line.seconds:7.1f} {line.text}" for line in [*run.err, *run.out]))


def _ray_data(load: Load, cluster: SpotCluster, folder: Path, batches: int | None = None) -> list[str | Path]:
    work = Work(
        address=cluster.address,
        input=str(_parts(load)),
        output=str(folder / "out"),
        checkpoint=str(folder / "checkpoint"),
        trace=str(folder / "trace"),
        engines=load.engines,
        max_num_seqs=load.max_num_seqs,
        seconds_per_token=load.seconds_per_token,
        start_seconds=load.start_seconds,
        batch_size=BATCH_SIZE,
        concurrent_batches=batches,
    )
    path = work.save(folder / "work.json")
    return [sys.executable, "-m", "tests.benchmarks.interruptions_ray_data", path]


def _parts(load: Load) -> Path:
    """The input as files of one batch each, made once."""
    folder = load.input.with_suffix(".parts")
    if not folder.is_dir():
        folder.mkdir()
        lines = load.input.read_bytes().splitlines(keepends=True)
        for start in range(0, len(lines), BATCH_SIZE):
            (folder / f"{start:09}.jsonl").write_bytes(b"".join(lines[start : start + BATCH_SIZE]))
    return folder


def _ray_data_tuned(load: Load, cluster: SpotCluster, folder: Path) -> list[str | Path]:
    return _ray_data(load, cluster, folder, max(2, -(-2 * load.max_num_seqs // BATCH_SIZE)))


def _dray(load: Load, cluster: SpotCluster, folder: Path) -> list[str | Path]:
    command = workload.dray_run(load.input, "--model", "simulated", "--output", folder / "out")
    command += ["--job-id", "interrupted", "--engine", "simulated", "--replicas", str(load.engines)]
    for name in ("max_num_seqs", "seconds_per_token", "start_seconds"):
        command += ["--engine-arg", f"{name}={getattr(load, name)}"]
    return [*command, "--cluster", cluster.address]


def _parquet_ids(folder: Path) -> list[str]:
    return [row["custom_id"] for row in _parquet_rows(folder) if not row.get("__inference_error__")]


def _parquet_errors(folder: Path) -> list[str]:
    return [row["custom_id"] for row in _parquet_rows(folder) if row.get("__inference_error__")]


def _parquet_rows(folder: Path) -> Iterator[dict[str, str]]:
    """Ids and errors: a row that failed keeps its column for that, others lose it in the last step."""
    from pyarrow.parquet import ParquetFile

    for path in sorted((folder / "out").rglob("*.parquet")):
        file = ParquetFile(path)
        columns = [n for n in ("custom_id", "__inference_error__") if n in file.schema_arrow.names]
        yield from file.read(columns).to_pylist()


def _jsonl_ids(folder: Path) -> list[str]:
    return _ids(folder / "out/output.jsonl")


def _jsonl_errors(folder: Path) -> list[str]:
    return _ids(folder / "out/errors.jsonl")


def _ids(path: Path) -> list[str]:
    return [orjson.loads(line)["custom_id"] for line in path.open("rb")] if path.is_file() else []


def _told(measure: Measure) -> str:
    parts = [f"{measure.seconds:.0f} s, {measure.working:.0f} from the first row on"]
    parts += [f"{measure.lost} lost", f"{measure.doubled} doubled"]
    parts += [f"{measure.again:,} computed again", f"{measure.runs} run{'s' * (measure.runs != 1)}"]
    if measure.disturbed:
        parts.append(f"{len(measure.kills)} kills, {measure.hits} of an engine")
    if measure.error_rows:
        parts.append(f"{measure.error_rows} error rows")
    return ", ".join(parts + measure.said[:1])


if __name__ == "__main__":
    sys.exit(main())

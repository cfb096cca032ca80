"""dray beside vLLM in process, Ray Data LLM and vLLM's batch runner: same model, same prompts.

::

    python -m tests.benchmarks.throughput            2,000 and 10,000 prompts, three rounds: an hour or more
    python -m tests.benchmarks.throughput --quick    200 prompts, one round
    python -m tests.benchmarks.throughput --only limit dray --kinds chat --rows 2000

Every measured thing runs in a process of its own, one after the other, and the rounds are
interleaved (A B C A B C ...), so that a machine that slows down slows everybody.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks import processes, results, workload
from tests.benchmarks.contestants import Work
from tests.benchmarks.processes import Finished, RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.benchmarks.rounds import rounds

TOKENS = 64
MAX_MODEL_LEN = 512
BATCH_SIZES = (64, 256)  # of Ray Data LLM: 256 was its best with many prompts, 64 is in its own example
_MODULE = "tests.benchmarks.contestants"
_SMALL_MODEL = Path(__file__).parents[2] / "examples/tickets/model"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run. ``steady`` and ``whole`` are seconds; None where the thing has no such figure.

    ``pace`` is in requests/s, between the first answers and the last: without the ramp at the start.
    """

    name: str
    kind: str
    rows: int
    steady: float | None
    whole: float | None
    pace: float | None
    left: int
    parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """Something to measure: how it is started, and how its outcome is read."""

    name: str
    kinds: Sequence[str]
    command: Callable[[Work, Path], list[str | Path]]
    read: Callable[[Finished, Work], dict[str, Any]]
    batch_size: int = 64
    whole: bool = True


def contestants() -> list[Contestant]:
    """Everybody, in the order of a round."""
    both, completion, chat = ("completion", "chat"), ("completion",), ("chat",)
    found = [
        Contestant(name="limit", kinds=both, command=_module("limit"), read=_printed, whole=False),
        Contestant(
            name="limit-with-stats",
            kinds=both,
            command=_module("limit-with-stats"),
            read=_printed,
            whole=False,
        ),
        Contestant(name="replica", kinds=both, command=_module("replica"), read=_printed, whole=False),
        Contestant(name="dray", kinds=both, command=_dray, read=_dray_figures),
        Contestant(name="run-batch", kinds=chat, command=run_batch, read=run_batch_figures),
    ]
    found += [
        Contestant(
            name=f"ray-data-{size}",
            kinds=completion,
            command=_module("ray-data"),
            read=_printed,
            batch_size=size,
        )
        for size in BATCH_SIZES
    ]
    return found


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="throughput")
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, arguments, report)
        bench.prepare()
        measures = bench.rounds()
    report.raw = [asdict(measure) for measure in measures]
    report.tables = _tables(measures, arguments.rows)
    report.targets = _targets(measures, arguments.rows)
    report.notes = _notes(arguments)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=None, help="numbers of prompts (2000 10000)")
    parser.add_argument("--kinds", nargs="+", choices=list(workload.URLS), default=list(workload.URLS))
    parser.add_argument("--only", nargs="+", choices=[c.name for c in contestants()], default=None)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    parser.add_argument("--ray-cpus", type=int, default=None, help="logical CPUs of Ray Data's cluster (all)")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    if arguments.smoke:
        arguments.rows, arguments.kinds, arguments.only = [8], ["chat"], ["dray"]
    arguments.rows = arguments.rows or ([200] if arguments.quick else [2000, 10_000])
    return arguments


class _Bench:
    """The folder, the files and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        self._model = _SMALL_MODEL if arguments.smoke else folder / workload.MODEL_NAME
        self._engine_arguments: dict[str, Any] = {}
        self._runs = 0
        names = arguments.only
        self._chosen = [c for c in contestants() if names is None or c.name in names]

    def prepare(self) -> None:
        """The model, the request files, dray's engine arguments, and Prefect's database."""
        say("preparing the model and the requests")
        if not self._arguments.smoke:
            self._write_model()
        for kind in self._arguments.kinds:
            for rows in self._arguments.rows:
                workload.write_batch(self._folder / f"{kind}-{rows}.jsonl", kind, rows, TOKENS)
        work = self._work("completion", self._arguments.rows[0], 64).save(self._folder / "arguments.json")
        asked = processes.run(
            _module("engine-arguments")(Work.load(work), work), timeout=300, environment=self._environment
        )
        self._engine_arguments = dict(asked.result()["arguments"])  # type: ignore[call-overload]
        if any(contestant.name == "dray" for contestant in self._chosen) and not self._arguments.smoke:
            self._first_run()

    def _write_model(self) -> None:
        written = processes.run(
            [sys.executable, "-m", "tests.support.tiny_model", self._model], timeout=300,
            environment=self._environment,
        )  # fmt: skip
        if written.code != 0:
            written.result()

    def _first_run(self) -> None:
        """Not measured: it makes Prefect's database, and brings files into memory."""
        say("one unmeasured run, after which Prefect's database is there and files are in memory")
        small = workload.write_batch(self._folder / "small.jsonl", "chat", 4, 4)
        command = workload.dray_run(small, "--model", self._model, "--output", self._folder / "small")
        processes.run(
            [*command, "--engine", "simulated"], timeout=300, environment=self._environment
        ).result()

    def rounds(self) -> list[Measure]:
        """All runs."""
        runs = [
            (f"{contestant.name}, {kind}, {rows:,} prompts", (contestant, kind, rows))
            for rows in self._arguments.rows
            for contestant in self._chosen
            for kind in contestant.kinds
            if kind in self._arguments.kinds
        ]
        return rounds(runs, self._arguments.repeats, self._report, lambda run: self._measure(*run), _told)

    def _measure(self, contestant: Contestant, kind: str, rows: int) -> Measure:
        work = self._work(kind, rows, contestant.batch_size)
        path = work.save(self._folder / f"work-{self._runs}.json")
        done = processes.run(
            contestant.command(work, path), timeout=self._arguments.timeout, environment=self._environment
        )
        figures = contestant.read(done, work)
        if (figures["rows"], figures["tokens"]) != (rows, rows * TOKENS):
            raise RunError(
                f"gave {figures['rows']} rows and {figures['tokens']} tokens, not {rows} of {TOKENS}"
            )
        return Measure(
            name=contestant.name,
            kind=kind,
            rows=rows,
            steady=figures.get("seconds"),
            whole=done.seconds if contestant.whole else None,
            pace=figures.get("pace"),
            left=done.left,
            parts=figures.get("parts", {}),
        )

    def _work(self, kind: str, rows: int, batch_size: int) -> Work:
        self._runs += 1
        return Work(
            model=str(self._model),
            engine="simulated" if self._arguments.smoke else "vllm",
            kind=kind,
            rows=rows,
            tokens=TOKENS,
            max_model_len=MAX_MODEL_LEN,
            input=str(self._folder / f"{kind}-{rows}.jsonl"),
            output=str(self._folder / f"out-{self._runs}"),
            arguments=self._engine_arguments,
            batch_size=batch_size,
            ray_cpus=self._arguments.ray_cpus,
            ray_folder=str(self._folder / "ray"),
        )


def _module(name: str) -> Callable[[Work, Path], list[str | Path]]:
    return lambda _work, path: [sys.executable, "-m", _MODULE, name, path]


def _dray(work: Work, _path: Path) -> list[str | Path]:
    return workload.dray_run(
        work.input, "--model", work.model, "--output", work.output,
        *(("--engine", work.engine) if work.engine == "simulated" else
          ("--engine-arg", f"max_model_len={work.max_model_len}")),
    )  # fmt: skip


def run_batch(work: Work, _path: Path) -> list[str | Path]:
    """vLLM's batch runner with dray's engine arguments, without log statistics, which it has no use for."""
    command: list[str | Path] = [
        sys.executable, "-m", "vllm.entrypoints.openai.run_batch", "-i", work.input, "-o", work.output,
        "--served-model-name", workload.MODEL_NAME, "--disable-log-stats",
    ]  # fmt: skip
    for name, value in work.arguments.items():
        option = f"--{name.replace('_', '-')}"
        if value is True and name != "disable_log_stats":
            command.append(option)
        elif not isinstance(value, bool):
            command += [option, orjson.dumps(value).decode() if isinstance(value, dict) else str(value)]
    return command


def _printed(done: Finished, _work: Work) -> dict[str, Any]:
    return done.result()


def _dray_figures(done: Finished, work: Work) -> dict[str, Any]:
    result: dict[str, Any] = done.result()
    parts = dict(result["seconds"])
    return {
        "seconds": parts["inference"],
        "pace": _pace_of_commits(Path(work.output) / "dray.db"),
        "rows": result["counts"]["done"],
        "tokens": result["tokens"]["completion"],
        "parts": {**parts, "around the flow": done.seconds - parts["total"]},
    }


def _pace_of_commits(database: Path) -> float | None:
    """Rows committed after the first micro-batch, over the seconds from its commit to the last one."""
    with closing(sqlite3.connect(database)) as connection:
        times = [at for (at,) in connection.execute("select committed_at from results order by 1")]
    later = sum(at > times[0] for at in times)
    return later / (times[-1] - times[0]) if later else None


def run_batch_figures(done: Finished, work: Work) -> dict[str, Any]:
    """Rows and tokens that vLLM's batch runner wrote.

    Raises:
        RunError: it wrote nothing.
    """
    if done.code != 0 or not Path(work.output).is_file():
        done.result()  # raises, with its last words
        raise RunError("it wrote no output")
    with Path(work.output).open("rb") as file:
        answers = [orjson.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in file]
    return {"rows": len(answers), "tokens": sum(answers)}


def _told(measure: Measure) -> str:
    parts = [] if measure.steady is None else [f"{measure.rows / measure.steady:.0f} requests/s"]
    parts += [] if measure.whole is None else [f"whole job {measure.whole:.1f} s"]
    parts += [f"{measure.left} processes left behind"] if measure.left else []
    return ", ".join(parts)


def _grouped(measures: Sequence[Measure]) -> dict[tuple[int, str, str], list[Measure]]:
    groups: dict[tuple[int, str, str], list[Measure]] = defaultdict(list)
    for measure in measures:
        groups[measure.rows, measure.kind, measure.name].append(measure)
    return groups


def _tables(measures: Sequence[Measure], sizes: Sequence[int]) -> list[Table]:
    tables = []
    groups = _grouped(measures)
    for rows in sizes:
        cells = []
        for (size, kind, name), runs in groups.items():
            if size == rows:
                steady = [rows / run.steady for run in runs if run.steady]
                whole = [run.whole for run in runs if run.whole]
                pace = [run.pace for run in runs if run.pace]
                left = str(max(run.left for run in runs) or "")
                cells.append([name, kind, spread(steady), spread(pace), spread(whole), str(len(runs)), left])
        header = (
            *("what", "kind", "from its first request to its last answer, requests/s"),
            *("between its first answers and its last, requests/s", "whole job, s", "runs", "processes left"),
        )
        tables.append(Table(title=f"{rows:,} prompts, {TOKENS} tokens out each", header=header, rows=cells))
    dray = [(key, runs) for key, runs in groups.items() if key[2] == "dray"]
    if dray:
        names = list(dict.fromkeys(name for _, runs in dray for run in runs for name in run.parts))
        cells = [
            [
                f"{kind}, {rows:,} prompts",
                *[spread([run.parts.get(name, 0.0) for run in runs]) for name in names],
            ]
            for (rows, kind, _), runs in dray
        ]
        tables.append(
            Table(title="Where a `dray run` spends its seconds", header=("run", *names), rows=cells)
        )
    return tables


def _targets(measures: Sequence[Measure], sizes: Sequence[int]) -> list[Target]:
    groups = _grouped(measures)
    found: list[Target] = []

    def middle(rows: int, kind: str, name: str, figure: str) -> float | None:
        values = [getattr(run, figure) for run in groups.get((rows, kind, name), ())]
        return median(values) if values else None

    def ratio(
        name: str, above: float | None, below: float | None, bound: float | None, *, least: bool
    ) -> None:
        if above and below:
            found.append(Target(name=name, value=above / below, bound=bound, at_least=least))

    for rows in sizes:
        of = f"{rows:,} prompts"
        ray = [f"ray-data-{size}" for size in BATCH_SIZES]
        ray_steady = min((s for n in ray if (s := middle(rows, "completion", n, "steady"))), default=None)
        ray_whole = min((s for n in ray if (s := middle(rows, "completion", n, "whole"))), default=None)
        for kind in ("completion", "chat"):
            mine = middle(rows, kind, "dray", "steady")
            pace = middle(rows, kind, "dray", "pace")
            for peer in ("limit", "limit-with-stats"):
                seconds = middle(rows, kind, peer, "steady")
                ratio(f"{of}, {kind}: dray's rate / {peer}", seconds, mine, 0.95, least=True)
                ratio(f"{of}, {kind}: dray's rate after its first answers / {peer}", pace,
                      rows / seconds if seconds else None, 0.95, least=True)  # fmt: skip
        ratio(f"{of}: dray's rate / Ray Data LLM", ray_steady, middle(rows, "completion", "dray", "steady"),
              1.5, least=True)  # fmt: skip
        # The whole job is asked about at 2,000 rows; larger ones are shown.
        asked = rows <= 2000
        ratio(f"{of}: whole job, dray / Ray Data LLM", middle(rows, "completion", "dray", "whole"), ray_whole,
              0.5 if asked else None, least=False)  # fmt: skip
        ratio(f"{of}: whole job, dray / run_batch", middle(rows, "chat", "dray", "whole"),
              middle(rows, "chat", "run-batch", "whole"), 0.8 if asked else None, least=False)  # fmt: skip
    return found


def _notes(arguments: argparse.Namespace) -> list[str]:
    cpus = arguments.ray_cpus or "all"
    sizes = " and ".join(map(str, BATCH_SIZES))
    return [
        "Figures are medians, with min..max over the rounds; rounds are interleaved, each run is a process "
        "of its own, and ratios are of medians. Every answer was counted: all rows, all tokens.",
        "`limit` is `LLM.generate` (`LLM.chat`) with the engine in process, dray's engine arguments and no "
        "log statistics, after a warm-up; `limit-with-stats` has dray's engine arguments to the letter; "
        "`replica` is dray's replica without Ray; `dray` is `seconds.inference` of `dray run --json`, which "
        "has the first requests' warm-up and every commit in it.",
        "Between its first answers and its last: from the first commit to the last one for dray, from the "
        "256th answer to the last one for Ray Data LLM; `LLM.generate` gives all answers at the end.",
        "Ray Data LLM: engine arguments as dray's, accelerator_type None, one CPU bundle, the template, "
        f"tokenize and detokenize stages off, engine metrics off, {cpus} logical CPUs, batch sizes {sizes}; "
        "the better one counts. Its steady state runs from the first request that reaches its engine to the "
        "last row out of it. Its whole job reads JSONL and writes JSONL.",
        "run_batch: dray's engine arguments, no log statistics.",
        "Whole jobs are wall clock from process start to exit, with files in memory and, for dray, a Prefect "
        "database that exists.",
    ]


if __name__ == "__main__":
    sys.exit(main())

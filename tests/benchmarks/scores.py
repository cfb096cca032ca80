"""Scores of pairs: dray beside ``LLM.score`` and vLLM's batch runner, on a small cross-encoder.

::

    python -m tests.benchmarks.scores            4,000 pairs, three rounds: 8 minutes
    python -m tests.benchmarks.scores --quick    400 pairs, one round

The model computes little, so that most of what is measured is the host's: reading pairs, tokenizing, answers.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks import processes, results, workload
from tests.benchmarks.contestants import Work, engine_arguments
from tests.benchmarks.processes import Finished, RunError
from tests.benchmarks.results import Report, say
from tests.benchmarks.rounds import Measure, beside, rates, rounds
from tests.benchmarks.throughput import run_batch
from tests.support.judging_models import write_cross_encoder
from tests.support.tiny_model import sentence

MAX_MODEL_LEN = 512
_MODULE = "tests.benchmarks.scores"
_WARM_UP = 64


def bodies(count: int) -> list[dict[str, Any]]:
    """Queries of 8 words, each with a passage of 30 to 90 words."""
    rng = random.Random(count)
    return [
        {"queries": sentence(rng, 8), "documents": sentence(rng, rng.randint(30, 90))} for _ in range(count)
    ]


def score(work: Work) -> dict[str, Any]:
    """``LLM.score`` with the engine in process, the same engine arguments and no log statistics."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    llm = LLM(**work.arguments | {"disable_log_stats": True})
    pairs = bodies(work.rows)
    queries, documents = [one["queries"] for one in pairs], [one["documents"] for one in pairs]
    llm.score(queries[:_WARM_UP], documents[:_WARM_UP], use_tqdm=False)
    began = time.perf_counter()
    outputs = llm.score(queries, documents, use_tqdm=False)
    return {"seconds": time.perf_counter() - began, "rows": len(outputs)}


def replica(work: Work) -> dict[str, Any]:
    """dray's replica without Ray around it."""
    from dray.engine.protocol import EngineSpec
    from dray.kinds import Kind
    from tests.support.engines import Runner

    settings = {"max_model_len": work.max_model_len}
    runner = Runner.started(EngineSpec(name="vllm", model=work.model, kind=Kind.SCORE, arguments=settings))
    rows = bodies(work.rows)
    runner.run(rows[:_WARM_UP], Kind.SCORE)
    began = time.perf_counter()
    outcomes = runner.run(rows, Kind.SCORE)
    seconds = time.perf_counter() - began
    runner.replica.stop()
    return {"seconds": seconds, "rows": sum(not one.failed for one in outcomes)}


INSIDE: dict[str, Callable[[Work], dict[str, Any]]] = {
    "LLM.score": score,
    "replica": replica,
    "arguments": engine_arguments,
}
"""What runs in a process of this module, by name."""

NAMES = ("LLM.score", "replica", "dray", "run-batch")


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if arguments.inside:
        print(orjson.dumps(INSIDE[arguments.inside](Work.load(arguments.work))).decode())
        return 0
    report = Report(name="scores")
    with workload.workspace(arguments.folder) as folder:
        measures = _Bench(folder, arguments, report).rounds()
    report.raw = [asdict(measure) for measure in measures]
    report.tables = [rates(measures, f"{arguments.rows:,} pairs of 40 to 100 words")]
    report.targets = beside(measures, NAMES[1:-1], "LLM.score", "run-batch")
    report.notes = _notes()
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--rows", type=int, default=None, help="pairs (4,000)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=None)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    parser.add_argument("--inside", choices=list(INSIDE), default=None, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.only = arguments.only or (["replica"] if arguments.smoke else list(NAMES))
    arguments.rows = arguments.rows or (100 if arguments.smoke else 400 if arguments.quick else 4_000)
    return arguments


class _Bench:
    """The model, the request file, and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._runs = 0
        self._environment = workload.isolated(folder / "prefect") | {"OMP_NUM_THREADS": "1"}
        say("preparing the model and the pairs")
        self._model = write_cross_encoder(folder / workload.MODEL_NAME)
        with (folder / "requests.jsonl").open("wb") as file:
            for number, body in enumerate(bodies(arguments.rows)):
                line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/score"}
                file.write(orjson.dumps(line | {"body": {"model": workload.MODEL_NAME, **body}}) + b"\n")

        asked = self._inside("arguments", self._work({})).result()
        self._engine_arguments: dict[str, Any] = dict(asked["arguments"])  # type: ignore[call-overload]

    def rounds(self) -> list[Measure]:
        """All runs."""
        runs = [(name, name) for name in self._arguments.only]
        return rounds(runs, self._arguments.repeats, self._report, self._measure, lambda one: one.told)

    def _measure(self, name: str) -> Measure:
        work = self._work(self._engine_arguments)
        steady: float | None = None
        whole: float | None = None
        if name in INSIDE:
            found = self._inside(name, work).result()
            rows, steady = int(str(found["rows"])), float(str(found["seconds"]))
        elif name == "run-batch":
            done = self._run(run_batch(work, self._folder))
            rows, whole = _answers(done, Path(work.output)), done.seconds
        else:
            done = self._run(self._dray(work))
            result: dict[str, Any] = done.result()
            rows, steady, whole = result["counts"]["done"], result["seconds"]["inference"], done.seconds
        if rows != self._arguments.rows:
            raise RunError(f"gave {rows} rows, not {self._arguments.rows}")
        return Measure(name=name, rows=rows, steady=steady, whole=whole)

    def _dray(self, work: Work) -> list[str | Path]:
        return workload.dray_run(
            work.input, "--model", work.model, "--output", work.output,
            "--engine-arg", f"max_model_len={MAX_MODEL_LEN}",
        )  # fmt: skip

    def _inside(self, name: str, work: Work) -> Finished:
        path = work.save(self._folder / f"work-{self._runs}.json")
        return self._run([sys.executable, "-m", _MODULE, "--inside", name, "--work", path])

    def _run(self, command: Sequence[str | Path]) -> Finished:
        return processes.run(command, timeout=self._arguments.timeout, environment=self._environment)

    def _work(self, arguments: dict[str, Any]) -> Work:
        self._runs += 1
        return Work(
            model=str(self._model),
            kind="score",
            rows=self._arguments.rows,
            tokens=0,
            max_model_len=MAX_MODEL_LEN,
            input=str(self._folder / "requests.jsonl"),
            output=str(self._folder / f"out-{self._runs}"),
            arguments=arguments,
        )


def _answers(done: Finished, output: Path) -> int:
    """Rows with a score that vLLM's batch runner wrote."""
    if done.code != 0 or not output.is_file():
        done.result()  # raises, with its last words
        raise RunError("it wrote no output")
    with output.open("rb") as file:
        return sum(bool(orjson.loads(line)["response"]["body"]["data"]) for line in file)


def _notes() -> list[str]:
    return [
        "Figures are medians, with min..max over the rounds; rounds are interleaved, each run is a process "
        "of its own. Every answer was counted.",
        "`LLM.score` has the engine in process, dray's engine arguments and no log statistics; `replica` "
        "is dray's without Ray; `dray` is `seconds.inference` of `dray run --json`, every commit in it; "
        "`run-batch` is vLLM's own.",
        "A BERT cross-encoder of two layers with random weights, in float32, as dray's engine arguments have "
        "it. One thread of OpenMP.",
    ]


if __name__ == "__main__":
    sys.exit(main())

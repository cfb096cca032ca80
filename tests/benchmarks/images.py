"""Rows with photographs: dray beside ``LLM.chat`` and vLLM's batch runner, on a small model that sees.

::

    python -m tests.benchmarks.images            300 photographs of 1024 x 768, three rounds: 15 minutes
    python -m tests.benchmarks.images --quick    40 photographs, one round

The model computes little, so that what is measured is the way of an image: reading, decoding, making pixels
of it. dray reads the photographs as files by their names, or out of the rows, as the others do.
"""

from __future__ import annotations

import argparse
import os
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
from tests.benchmarks.throughput import run_batch, run_batch_figures
from tests.support.seeing_model import as_url, asking, photograph, write_seeing_model

TOKENS = 16
MAX_MODEL_LEN = 512
_MODULE = "tests.benchmarks.images"
_WARM_UP = 4


def _bodies(work: Work, folder: Path) -> list[dict[str, Any]]:
    return [body(as_url(file.read_bytes(), "jpeg")) for file in sorted(folder.iterdir())[: work.rows]]


def body(url: str) -> dict[str, Any]:
    """A request about one photograph: greedy, and always to the last token."""
    asked = asking(f"url:{url}", "what is on it?", max_tokens=TOKENS, ignore_eos=True)
    return asked | {"model": workload.MODEL_NAME}


def chat(work: Work, folder: Path) -> dict[str, Any]:
    """``LLM.chat`` with the engine in process, dray's engine arguments and no log statistics."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(**work.arguments | {"disable_log_stats": True})
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
    talks: list[Any] = [one["messages"] for one in _bodies(work, folder)]
    llm.chat(talks[:_WARM_UP], sampling, use_tqdm=False)
    began = time.perf_counter()
    outputs = llm.chat(talks, sampling, use_tqdm=False)
    return {"seconds": time.perf_counter() - began, "rows": len(outputs)}


def replica(work: Work, folder: Path) -> dict[str, Any]:
    """dray's replica without Ray around it, fed with the photographs in the rows."""
    from dray.engine.protocol import EngineSpec
    from dray.kinds import Kind
    from tests.support.engines import Runner

    settings = {"max_model_len": work.max_model_len} | work.given
    runner = Runner.started(EngineSpec(name="vllm", model=work.model, kind=Kind.CHAT, arguments=settings))
    bodies = _bodies(work, folder)
    runner.run(bodies[:_WARM_UP])
    began = time.perf_counter()
    outcomes = runner.run(bodies)
    seconds = time.perf_counter() - began
    runner.replica.stop()
    return {"seconds": seconds, "rows": sum(not one.failed for one in outcomes)}


INSIDE: dict[str, Callable[[Work, Path], dict[str, Any]]] = {
    "LLM.chat": chat,
    "replica": replica,
    "arguments": lambda work, folder: engine_arguments(work),
}
"""What runs in a process of this module, by name."""

NAMES = ("LLM.chat", "replica", "dray, by name", "dray, in the rows", "run-batch")


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if arguments.inside:
        work = Work.load(arguments.work)
        print(orjson.dumps(INSIDE[arguments.inside](work, arguments.work.parent / "photographs")).decode())
        return 0
    report = Report(name="images")
    with workload.workspace(arguments.folder) as folder:
        measures = _Bench(folder, arguments, report).rounds()
    report.raw = [asdict(measure) for measure in measures]
    report.tables = [
        rates(measures, f"{arguments.rows:,} photographs of 1024 x 768, {TOKENS} tokens out each")
    ]
    report.targets = beside(measures, NAMES[1:-1], "LLM.chat", "run-batch")
    report.notes = _notes()
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--rows", type=int, default=None, help="photographs (300)")
    parser.add_argument("--image-threads", type=int, default=None, help="dray's engine argument (its own)")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=None)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that one process may take")
    parser.add_argument("--inside", choices=list(INSIDE), default=None, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.only = arguments.only or (["replica"] if arguments.smoke else list(NAMES))
    arguments.rows = arguments.rows or (8 if arguments.smoke else 40 if arguments.quick else 300)
    return arguments


class _Bench:
    """The model, the photographs, the request files, and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._runs = 0
        self._environment = workload.isolated(folder / "prefect") | {"OMP_NUM_THREADS": "1"}
        say("preparing the model and the photographs")
        self._model = write_seeing_model(folder / workload.MODEL_NAME)
        self._write_requests()
        asked = self._run(self._inside("arguments", self._work({}))).result()
        self._engine_arguments: dict[str, Any] = dict(asked["arguments"])  # type: ignore[call-overload]

    def _write_requests(self) -> None:
        photographs = self._folder / "photographs"
        photographs.mkdir()
        names = [f"{number:06d}.jpg" for number in range(self._arguments.rows)]
        with (
            (self._folder / "named.jsonl").open("wb") as named,
            (self._folder / "held.jsonl").open("wb") as held,
        ):
            for number, name in enumerate(names):
                content = photograph(number)
                (photographs / name).write_bytes(content)
                line = {"custom_id": name, "method": "POST", "url": workload.URLS["chat"]}
                named.write(orjson.dumps(line | {"body": body(name)}) + b"\n")
                held.write(orjson.dumps(line | {"body": body(as_url(content, "jpeg"))}) + b"\n")

    def rounds(self) -> list[Measure]:
        """All runs."""
        runs = [(name, name) for name in self._arguments.only]
        return rounds(runs, self._arguments.repeats, self._report, self._measure, lambda one: one.told)

    def _measure(self, name: str) -> Measure:
        rows, work = self._arguments.rows, self._work(self._engine_arguments)
        if name in INSIDE:
            found = self._run(self._inside(name, work)).result()
            seconds, whole = float(str(found["seconds"])), None
        elif name == "run-batch":
            done = self._run(run_batch(work, self._folder))
            found, seconds, whole = run_batch_figures(done, work), None, done.seconds
        else:
            done = self._run(self._dray(name, work))
            result: dict[str, Any] = done.result()
            found, seconds, whole = (
                {"rows": result["counts"]["done"]},
                result["seconds"]["inference"],
                done.seconds,
            )
        if found["rows"] != rows:
            raise RunError(f"gave {found['rows']} rows, not {rows}")
        return Measure(name=name, rows=rows, steady=seconds, whole=whole)

    def _dray(self, name: str, work: Work) -> list[str | Path]:
        named = name == "dray, by name"
        root: list[str | Path] = ["--image-root", self._folder / "photographs"] if named else []
        return workload.dray_run(
            self._folder / ("named.jsonl" if named else "held.jsonl"), *root, "--model", work.model,
            "--output", work.output, "--engine-arg", f"max_model_len={MAX_MODEL_LEN}",
            *(part for name, value in work.given.items() for part in ("--engine-arg", f"{name}={value}")),
        )  # fmt: skip

    def _inside(self, name: str, work: Work) -> list[str | Path]:
        path = work.save(self._folder / f"work-{self._runs}.json")
        return [sys.executable, "-m", _MODULE, "--inside", name, "--work", path]

    def _run(self, command: Sequence[str | Path]) -> Finished:
        return processes.run(command, timeout=self._arguments.timeout, environment=self._environment)

    def _work(self, arguments: dict[str, Any]) -> Work:
        self._runs += 1
        threads = self._arguments.image_threads
        return Work(
            model=str(self._model),
            kind="chat",
            rows=self._arguments.rows,
            tokens=TOKENS,
            max_model_len=MAX_MODEL_LEN,
            input=str(self._folder / "held.jsonl"),
            output=str(self._folder / f"out-{self._runs}"),
            arguments=arguments,
            given={} if threads is None else {"image_threads": threads},
        )


def _notes() -> list[str]:
    return [
        "Figures are medians, with min..max over the rounds; rounds are interleaved, each run is a process "
        "of its own. Every answer was counted.",
        "`LLM.chat` gets the photographs as `data:` URLs in messages, with the engine in process, dray's "
        "engine arguments and no log statistics; `replica` is dray's without Ray, fed with the same; `dray` "
        "is `seconds.inference` of `dray run --json`, every commit in it; `run-batch` is vLLM's own.",
        "The model has 0.2 million parameters, and makes 28 to 44 tokens of an image: nearly all of the time "
        "goes into decoding JPEG and making pixels. One thread of OpenMP.",
    ]


if __name__ == "__main__":
    sys.exit(main())

"""What dray leaves of a GPU: its replica and whole runs beside ``LLM.generate``, with dummy weights.

::

    python -m tests.benchmarks.gpu                     two model shapes, with a GPU: a quarter of an hour
    python -m tests.benchmarks.gpu --shapes 8b --only limit replica

The models have the shapes of Llama 3.2 1B and Llama 3.1 8B, a tokenizer of 131,072 tokens and dummy weights
(``load_format=dummy``): the GPU computes what it would for the real ones. Two workloads: `plain`, prompts
that share nothing, and `shared`, prompts that share 80% of their tokens. All engines of a shape start
together and share the GPU's memory; then one works at a time, in interleaved rounds. `limit` is
``LLM.generate`` with its engine core in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks import processes, results, workload
from tests.benchmarks.gpu_engines import GpuWork, Prompts
from tests.benchmarks.gpu_turns import TurnTaker
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.shaped_model import SHAPES

TOKENS = 64
WORDS = 200  # of a prompt, each one token
SHARED = {"plain": 0, "shared": 160}  # words with which all prompts of a workload begin
SEQUENCES = 1024  # vLLM's default on large GPUs
ROWS = {"tiny": 20, "1b": 8_000, "8b": 2_000}
_NAMES = ("limit", "replica", "replica-inside", "limit-inside", "dray")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One timed run."""

    shape: str
    name: str
    workload: str
    rate: float


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if not (arguments.quick or _gpu_bytes()):
        say("no GPU here (nvidia-smi says nothing): nothing to measure; --quick tries it out on CPU")
        return 0
    report = Report(name="gpu")
    report.machine["gpu"] = _asked_gpu("name,memory.total,driver_version") or "none"
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, arguments, report)
        bench.rounds()
    report.raw = [asdict(measure) for measure in bench.measures]
    report.tables = [_rates(bench.measures), _starts(bench.starts)]
    report.targets = [] if arguments.smoke else _targets(bench.measures)
    report.notes = _notes(arguments)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=list(_NAMES))
    parser.add_argument("--shapes", nargs="+", choices=list(ROWS), default=["1b", "8b"])
    parser.add_argument("--rows", type=int, default=None, help="of a run, instead of the shape's own number")
    parser.add_argument("--logs", type=Path, help="keep what the engines said on stderr in this folder")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one process may take")
    parser.add_argument(
        "--engine-arg", action="append", default=[], metavar="NAME=VALUE", help="of all engines; JSON"
    )
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    if arguments.quick:
        arguments.shapes = ["tiny"]
        arguments.engine_arg += ["enforce_eager=true"]
    if arguments.smoke:
        arguments.only = ["replica"]
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    return arguments


class _Bench:
    """The folder, the models and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        self.measures: list[Measure] = []
        self.starts: list[tuple[str, str, dict[str, float]]] = []

    def rounds(self) -> None:
        """Each shape: its engines in turns, then whole runs. What fails is noted, and the rest goes on."""
        for shape in self._arguments.shapes:
            model = self._model(shape)
            self._in_turns(shape, model, [name for name in self._arguments.only if name != "dray"])
            if "dray" in self._arguments.only:
                self._whole_runs(shape, model)

    def _model(self, shape: str) -> Path:
        folder = self._folder / shape
        command: list[str | Path] = [sys.executable, "-m", "tests.support.shaped_model", folder, shape]
        processes.run(command, timeout=300, environment=self._environment)
        return folder

    def _workloads(self, shape: str) -> list[Prompts]:
        rows = self._arguments.rows or ROWS[shape]
        return [Prompts(name=name, rows=rows, words=WORDS, shared=shared) for name, shared in SHARED.items()]

    def _engine(self, shape: str, name: str, model: Path, engines: int) -> TurnTaker:
        work = GpuWork(
            model=str(model),
            apart=not name.endswith("-inside"),
            tokens=TOKENS,
            workloads=self._workloads(shape),
            given=self._given(shape, engines),
        )
        stem = (self._arguments.logs or self._folder) / f"{shape}-{name}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        return TurnTaker(name.removesuffix("-inside"), work, stem, self._environment)

    def _in_turns(self, shape: str, model: Path, names: Sequence[str]) -> None:
        """Rounds of all engines, the first of which waits for their starts."""
        engines: dict[str, TurnTaker] = {}
        try:
            for name in names:
                engines[name] = self._engine(shape, name, model, len(names))
            for name in names:
                self._start(shape, name, engines)
            for repeat in range(self._arguments.repeats):
                for asked in self._workloads(shape):
                    for name in _turned(list(engines), repeat):
                        self._turn(shape, name, engines, asked.name, repeat)
        finally:
            for engine in engines.values():
                engine.end()

    def _start(self, shape: str, name: str, engines: dict[str, TurnTaker]) -> None:
        with self._noting(f"{shape}, {name}", name, engines):
            self.starts.append((shape, name, engines[name].started(self._arguments.timeout)))

    def _turn(self, shape: str, name: str, engines: dict[str, TurnTaker], asked: str, repeat: int) -> None:
        with self._noting(f"{shape}, {name}", name, engines):
            rate = engines[name].rate(asked, repeat, self._arguments.timeout)
            self._note(Measure(shape=shape, name=name, workload=asked, rate=rate))

    def _whole_runs(self, shape: str, model: Path) -> None:
        """One job for each workload."""
        options = [
            f"--engine-arg={key}={orjson.dumps(value).decode()}"
            for key, value in self._given(shape, 1).items()
        ]
        for asked in self._workloads(shape):
            lines = self._folder / f"{shape}-{asked.name}.jsonl"
            workload.write_prompts(lines, asked.draw(asked.rows, seed=0), "completion", TOKENS)
            output = self._folder / f"{shape}-{asked.name}"
            with self._noting(f"{shape}, dray, {asked.name}"):
                self._whole_run(
                    shape, asked, workload.dray_run(lines, "--model", model, "--output", output, *options)
                )

    def _whole_run(self, shape: str, asked: Prompts, command: Sequence[str | Path]) -> None:
        done = processes.run(command, timeout=self._arguments.timeout, environment=self._environment)
        result: dict[str, Any] = done.result()
        if result["counts"]["done"] != asked.rows:
            raise RunError(f"{result['counts']}")
        rate = asked.rows / result["seconds"]["inference"]
        self._note(Measure(shape=shape, name="dray", workload=asked.name, rate=rate))
        self.starts.append((shape, f"dray, {asked.name}", result["seconds"]))

    def _note(self, measure: Measure) -> None:
        self.measures.append(measure)
        say(f"{measure.shape}, {measure.name}, {measure.workload}: {measure.rate:.1f} rows/s")

    @contextmanager
    def _noting(
        self, label: str, name: str = "", engines: dict[str, TurnTaker] | None = None
    ) -> Iterator[None]:
        """Note what fails in the block, and end the engine that failed."""
        try:
            yield
        except RunError as error:
            self._report.failures.append(f"{label}: {str(error)[-3000:]}")
            say(f"{label}: FAILED: {str(error)[-3000:]}")
            if engines is not None:
                engines.pop(name).end()

    def _given(self, shape: str, engines: int) -> dict[str, Any]:
        """Engine arguments: those of the GPU's memory, since several engines share it, and the user's."""
        given: dict[str, Any] = {"load_format": "dummy", "max_model_len": 1024}
        given["kv_cache_memory_bytes"] = _cache_bytes(shape, engines)
        given["gpu_memory_utilization"] = 0.1  # only looked at when it starts
        for argument in self._arguments.engine_arg:
            key, _, value = argument.partition("=")
            given[key] = orjson.loads(value)
        return given


def _turned(names: list[str], by: int) -> list[str]:
    by %= max(len(names), 1)
    return names[by:] + names[:by]


def _cache_bytes(shape: str, engines: int) -> int:
    """What 1,024 sequences fill, or an engine's share of the GPU without its weights and 5 GB beside."""
    model = SHAPES[shape]
    wanted = SEQUENCES * (WORDS + TOKENS + 16) * 2 * 2 * model.layers * model.kv_heads * model.head_size
    total = _gpu_bytes()
    if total is None:
        return 256 << 20
    return int(min(wanted, 0.95 * total / engines - 2 * model.parameters - 5e9))


def _gpu_bytes() -> int | None:
    said = _asked_gpu("memory.total", "nounits")
    return int(said.splitlines()[0]) << 20 if said else None


def _asked_gpu(fields: str, *form: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={fields}", f"--format={','.join(('csv', 'noheader', *form))}"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _groups(measures: Sequence[Measure]) -> dict[tuple[str, str, str], list[float]]:
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for measure in measures:
        groups[measure.shape, measure.workload, measure.name].append(measure.rate)
    return groups


def _rates(measures: Sequence[Measure]) -> Table:
    groups = _groups(measures)
    cells = []
    for (shape, asked, name), rates in sorted(groups.items(), key=lambda item: item[0][:2]):
        of_limit = groups.get((shape, asked, "limit"))
        share = f"{median(rates) / median(of_limit):.2f}" if of_limit else ""
        tokens = median(rates) * (WORDS + TOKENS)
        cells.append([shape, asked, name, spread(rates), f"{tokens:,.0f}", share, str(len(rates))])
    header = ("model", "prompts", "what", "rows/s", "tokens/s, in and out", "of the limit", "runs")
    return Table(title="Rows a second on one GPU", header=header, rows=cells)


def _starts(starts: Sequence[tuple[str, str, dict[str, float]]]) -> Table:
    cells = [
        [shape, name, ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())]
        for shape, name, parts in starts
    ]
    return Table(title="Seconds of a start, by part", header=("model", "what", "parts"), rows=cells)


def _targets(measures: Sequence[Measure]) -> list[Target]:
    groups = _groups(measures)
    found = []
    for (shape, asked, name), rates in groups.items():
        of_limit = groups.get((shape, asked, "limit"))
        if of_limit and name in ("replica", "dray"):
            label = f"{shape}, {asked}: {name} / LLM.generate, core apart"
            found.append(Target(name=label, value=median(rates) / median(of_limit), bound=0.95))
    return found


def _notes(arguments: argparse.Namespace) -> list[str]:
    rows = ", ".join(f"{shape}: {arguments.rows or ROWS[shape]:,}" for shape in arguments.shapes)
    return [
        f"Rows of a run: {rows}; {WORDS} words (as many tokens) in, {TOKENS} tokens out, greedy. `shared`: "
        f"all rows of a run begin with the same {SHARED['shared']} words.",
        "Engine arguments: vLLM's own for offline work, load_format=dummy, max_model_len=1024, cache's size"
        + "".join(f", {one}" for one in arguments.engine_arg) + ".",
        "`replica`: dray's replica without Ray. `dray`: `seconds.inference` of `dray run --json`, with every "
        "commit in it. `-inside`: the engine's core in the same process.",
        "Engines of a shape are up together, and one works at a time; `dray` is one job for each workload.",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

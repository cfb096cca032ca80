"""What dray leaves of a GPU: its replica and whole runs beside ``LLM.generate``, with dummy weights.

::

    python -m tests.benchmarks.gpu                     two model shapes, with a GPU: a quarter of an hour
    python -m tests.benchmarks.gpu --shapes 8b --only limit replica
    python -m tests.benchmarks.gpu --together --rows 1b=3000 8b=1200 --only limit replica 8b:replica-inside

The models have the shapes of Llama 3.2 1B and Llama 3.1 8B, a tokenizer of 131,072 tokens and dummy weights
(``load_format=dummy``): the GPU computes what it would for the real ones. Two workloads: `plain`, prompts
that share nothing, and `shared`, prompts that share 80% of their tokens. All engines of a shape (with
``--together``: of all shapes) start together and share the GPU's memory; then one works at a time, in
interleaved rounds. `limit` is ``LLM.generate`` with its engine core in a process of its own. Whole jobs
follow, one after the other.
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

from tests.benchmarks import gpu_runs, processes, results, workload
from tests.benchmarks.gpu_engines import GpuWork, Prompts
from tests.benchmarks.gpu_runs import Job, WholeRun
from tests.benchmarks.gpu_turns import TurnTaker
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.shaped_model import SHAPES

TOKENS = 64
WORDS = 200  # of a prompt, each one token
SHARED = {"plain": 0, "shared": 160}  # words with which all prompts of a workload begin
SEQUENCES = 1024  # vLLM's default on large GPUs
ROWS = {"tiny": 20, "1b": 8_000, "8b": 2_000}
_ENGINES = ("limit", "replica", "replica-inside", "limit-inside")
_BESIDE = 4e9  # bytes that an engine takes beside weights and cache: CUDA's own, activations, graphs


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One timed run. ``seconds``: of a whole job, from its command to its end."""

    shape: str
    name: str
    workload: str
    rate: float | None
    seconds: float | None = None


@dataclass(frozen=True)
class Asked:
    """One engine, or one kind of whole job, on a model's shape."""

    shape: str
    name: str

    def __str__(self) -> str:
        return f"{self.shape}, {self.name}"


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
        try:
            bench.rounds()
        except KeyboardInterrupt:  # an hour of a GPU ends: what has been measured counts
            report.failures.append("interrupted before its end")
    report.raw = [asdict(measure) for measure in bench.measures]
    tables = (_rates(bench.measures), _whole_jobs(bench.measures), _starts(bench.starts))
    report.tables = [table for table in tables if table.rows]
    report.targets = [] if arguments.smoke else _targets(bench.measures)
    report.notes = _notes(arguments)
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    names = [*_ENGINES, *gpu_runs.NAMES]
    choices = names + [f"{shape}:{name}" for shape in ROWS for name in names]
    parser.add_argument(
        "--only", nargs="+", choices=choices, default=names, metavar="[SHAPE:]NAME",
        help=f"of {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--shapes", nargs="+", choices=list(ROWS), default=["1b", "8b"])
    parser.add_argument("--together", action="store_true", help="start the engines of all shapes at once")
    parser.add_argument(
        "--rows", nargs="+", type=_rows, default=[], metavar="[SHAPE=]ROWS", help="instead of the shape's own"
    )
    parser.add_argument(
        "--whole", nargs="+", choices=list(SHARED), default=list(SHARED), help="the prompts of whole jobs"
    )
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
    given = dict(arguments.rows)
    arguments.rows = {shape: given.get(shape, given.get("", ROWS[shape])) for shape in arguments.shapes}
    return arguments


def _rows(said: str) -> tuple[str, int]:
    """``1b=3000``, or a number for all other shapes, whose name is then empty."""
    shape, _, number = said.rpartition("=")
    if shape not in ("", *ROWS) or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{said!r} is neither a number nor one of {', '.join(ROWS)}=NUMBER")
    return shape, int(number)


class _Bench:
    """The folder, the models and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        self._models: dict[str, Path] = {}
        self.measures: list[Measure] = []
        self.starts: list[tuple[Asked, dict[str, float]]] = []

    def rounds(self) -> None:
        """Engines in turns, then whole jobs. What fails is noted, and the rest goes on."""
        shapes: list[str] = self._arguments.shapes
        self._models = {shape: self._model(shape) for shape in shapes}
        for group in [shapes] if self._arguments.together else [[shape] for shape in shapes]:
            self._in_turns(self._asked(group, _ENGINES))
            for asked in self._asked(group, gpu_runs.NAMES):
                for prompts in self._workloads(asked.shape):
                    if prompts.name in self._arguments.whole:
                        self._whole_job(asked, prompts)

    def _asked(self, shapes: Sequence[str], names: Sequence[str]) -> list[Asked]:
        only = self._arguments.only
        every = [Asked(shape, name) for shape in shapes for name in names]
        return [one for one in every if one.name in only or f"{one.shape}:{one.name}" in only]

    def _model(self, shape: str) -> Path:
        folder = self._folder / shape
        command: list[str | Path] = [sys.executable, "-m", "tests.support.shaped_model", folder, shape]
        processes.run(command, timeout=300, environment=self._environment)
        return folder

    def _workloads(self, shape: str) -> list[Prompts]:
        rows = self._arguments.rows[shape]
        return [Prompts(name=name, rows=rows, words=WORDS, shared=shared) for name, shared in SHARED.items()]

    def _in_turns(self, asked: Sequence[Asked]) -> None:
        """Rounds of all engines, the first of which waits for their starts."""
        caches = cache_bytes([one.shape for one in asked])
        engines: dict[Asked, TurnTaker] = {}
        try:
            for one in asked:
                engines[one] = self._engine(one, caches[one.shape])
            for one in asked:
                with self._noting(str(one), one, engines):
                    self.starts.append((one, engines[one].started(self._arguments.timeout)))
            for repeat in range(self._arguments.repeats):
                for shape in dict.fromkeys(one.shape for one in asked):
                    self._round(shape, engines, repeat)
        finally:
            for engine in engines.values():
                engine.end()

    def _engine(self, asked: Asked, cache: int) -> TurnTaker:
        work = GpuWork(
            model=str(self._models[asked.shape]),
            apart=not asked.name.endswith("-inside"),
            tokens=TOKENS,
            workloads=self._workloads(asked.shape),
            given=self._given(cache),
        )
        stem = (self._arguments.logs or self._folder) / f"{asked.shape}-{asked.name}"
        stem.parent.mkdir(parents=True, exist_ok=True)
        return TurnTaker(asked.name.removesuffix("-inside"), work, stem, self._environment)

    def _round(self, shape: str, engines: dict[Asked, TurnTaker], repeat: int) -> None:
        for prompts in self._workloads(shape):
            for one in _turned([one for one in engines if one.shape == shape], repeat):
                with self._noting(str(one), one, engines):
                    rate = engines[one].rate(prompts.name, repeat, self._arguments.timeout)
                    self._note(Measure(shape=shape, name=one.name, workload=prompts.name, rate=rate))

    def _whole_job(self, asked: Asked, prompts: Prompts) -> None:
        given = self._given(cache_bytes([asked.shape])[asked.shape])
        job = Job(
            name=asked.name, model=self._models[asked.shape], prompts=prompts, tokens=TOKENS, given=given
        )
        folder = self._folder / f"{asked.shape}-{asked.name}-{prompts.name}"
        with self._noting(f"{asked}, {prompts.name}"):
            done = job.run(folder, timeout=self._arguments.timeout, environment=self._environment)
            self._note_job(asked, prompts, done)

    def _note_job(self, asked: Asked, prompts: Prompts, done: WholeRun) -> None:
        rate = prompts.rows / done.inference if done.inference else None
        measure = Measure(
            shape=asked.shape, name=asked.name, workload=prompts.name, rate=rate, seconds=done.seconds
        )
        self._note(measure)
        if done.parts:
            self.starts.append((Asked(asked.shape, f"{asked.name}, {prompts.name}"), dict(done.parts)))

    def _note(self, measure: Measure) -> None:
        self.measures.append(measure)
        rate = f" {measure.rate:.1f} rows/s" if measure.rate else ""
        whole = f" {measure.seconds:.1f} s in all" if measure.seconds else ""
        say(f"{measure.shape}, {measure.name}, {measure.workload}:{rate}{whole}")

    @contextmanager
    def _noting(
        self, label: str, asked: Asked | None = None, engines: dict[Asked, TurnTaker] | None = None
    ) -> Iterator[None]:
        """Note what fails in the block, and end the engine that failed."""
        try:
            yield
        except RunError as error:
            self._report.failures.append(f"{label}: {str(error)[-3000:]}")
            say(f"{label}: FAILED: {str(error)[-3000:]}")
            if asked is not None and engines is not None:
                engines.pop(asked).end()

    def _given(self, cache: int) -> dict[str, Any]:
        """Engine arguments: those of the GPU's memory, since several engines share it, and the user's."""
        given: dict[str, Any] = {"load_format": "dummy", "max_model_len": 1024}
        given["kv_cache_memory_bytes"] = cache
        given["gpu_memory_utilization"] = 0.1  # only looked at when it starts
        for argument in self._arguments.engine_arg:
            key, _, value = argument.partition("=")
            given[key] = orjson.loads(value)
        return given


def _turned(asked: list[Asked], by: int) -> list[Asked]:
    by %= max(len(asked), 1)
    return asked[by:] + asked[:by]


def cache_bytes(shapes: Sequence[str], total: int | None = None) -> dict[str, int]:
    """Bytes of the KV cache of an engine, by shape; ``shapes`` has one for each engine that is up.

    Each has what 1,024 sequences fill, or all have less in proportion: what they share is the GPU without
    their weights and 4 GB beside. ``total``: bytes of the GPU; asked of nvidia-smi where left out.
    """
    wanted = {shape: _wanted_cache(shape) for shape in shapes}
    total = total or _gpu_bytes()
    if total is None:
        return dict.fromkeys(shapes, 256 << 20)
    room = 0.95 * total - sum(2 * SHAPES[shape].parameters + _BESIDE for shape in shapes)
    share = min(1.0, room / max(sum(wanted[shape] for shape in shapes), 1))
    return {shape: int(share * size) for shape, size in wanted.items()}


def _wanted_cache(shape: str) -> int:
    model = SHAPES[shape]
    return SEQUENCES * (WORDS + TOKENS + 16) * 2 * 2 * model.layers * model.kv_heads * model.head_size


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
        if measure.rate:
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


def _whole_jobs(measures: Sequence[Measure]) -> Table:
    cells = [
        [one.shape, one.workload, one.name, f"{one.seconds:.1f}"]
        for one in measures
        if one.seconds is not None
    ]
    header = ("model", "prompts", "what", "seconds")
    return Table(title="Whole jobs, from the command to its end", header=header, rows=cells)


def _starts(starts: Sequence[tuple[Asked, dict[str, float]]]) -> Table:
    cells = [
        [asked.shape, asked.name, ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())]
        for asked, parts in starts
    ]
    header = ("model", "what", "parts")
    return Table(title="Seconds of a start, or of a whole job, by part", header=header, rows=cells)


def _targets(measures: Sequence[Measure]) -> list[Target]:
    groups = _groups(measures)
    found = []
    for (shape, asked, name), rates in groups.items():
        of_limit = groups.get((shape, asked, "limit"))
        if of_limit and name in ("replica", "dray", "dray-halves"):
            label = f"{shape}, {asked}: {name} / LLM.generate, core apart"
            found.append(Target(name=label, value=median(rates) / median(of_limit), bound=0.95))
    return found


def _notes(arguments: argparse.Namespace) -> list[str]:
    rows = ", ".join(f"{shape}: {number:,}" for shape, number in arguments.rows.items())
    return [
        f"Rows of a run: {rows}; {WORDS} words (as many tokens) in, {TOKENS} tokens out, greedy. `shared`: "
        f"all rows of a run begin with the same {SHARED['shared']} words.",
        "Engine arguments: vLLM's own for offline work, load_format=dummy, max_model_len=1024, cache's size"
        + "".join(f", {one}" for one in arguments.engine_arg) + ".",
        "`replica`: dray's replica without Ray. `-inside`: the engine's core in the same process. Engines "
        f"{'of all shapes ' if arguments.together else ''}are up together, and one works at a time.",
        "Whole jobs have the same prompts as chats: `dray` (`rows/s`: by `seconds.inference` of `dray run "
        "--json`, with every commit in it), `dray-halves` with `--replica-gpus 0.5`, and vLLM's `run-batch`.",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

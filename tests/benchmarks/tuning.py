"""What ``dray run --auto`` finds, beside an exhaustive sweep of 24 settings on the same rows.

::

    python -m tests.benchmarks.tuning            both cases; the sweep once, then three rounds
    python -m tests.benchmarks.tuning --quick    a sweep of four settings, one round

``tickets``: the example's model and rows. ``prefixes``: prefixes of 600 tokens, 40 rows each, in a cache for
a quarter of them. The sweep starts an engine for each of six ``max_num_seqs`` and four
``max_num_batched_tokens``, and runs a part of the rows. Then the sweep's fastest setting and what ``--auto``
found run all rows in turns. A sweep costs its engines' starts and rows, ``--auto`` the time until its choice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from examples.tickets import generate
from tests.benchmarks import order, processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread

_MODEL = Path(__file__).parents[2] / "examples/tickets/model"
SEQS = (8, 16, 32, 64, 128, 256)
TOKENS = (512, 1024, 2048, 4096)
_SWEPT_ROWS, _ROWS = 700, 4000
_PREFIXES = 100


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows as lines of the batch format, the model, and engine arguments that no setting changes."""

    name: str
    lines: Sequence[bytes] = field(repr=False)
    model: Path
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: ``name`` is the case, ``setting`` what it ran with; rows a second of the inference phase.

    ``cost`` are the seconds that finding out takes: engine start and rows, or those until ``--auto`` chose.
    """

    name: str
    part: str
    setting: str
    rate: float
    cost: float
    tuned: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="tuning")
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, arguments, report)
        measures = [one for case in bench.cases() for one in bench.measure(case)]
    report.raw = [asdict(one) for one in measures]
    report.tables = [_table(measures)]
    report.targets = [target for name in arguments.cases for target in _targets(name, measures)]
    report.notes = [
        "Rows a second of the inference phase of `dray run`. The sweep ran each setting once; the last two "
        "settings of each case ran in turns.",
        f"Sweep: max_num_seqs of {', '.join(map(str, SEQS))}; max_num_batched_tokens of "
        f"{', '.join(map(str, TOKENS))}; {_SWEPT_ROWS} rows each. All other runs: {_ROWS:,} rows.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--cases", nargs="+", choices=["tickets", "prefixes"], default=None)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.cases = arguments.cases or (["tickets"] if arguments.smoke else ["tickets", "prefixes"])
    return arguments


class _Bench:
    """The folder and the runs."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._arguments = arguments
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        self._runs = 0

    def cases(self) -> list[Case]:
        """The cases that were asked for."""
        found = []
        if "tickets" in self._arguments.cases:
            tickets = generate.held_out_tickets(300 if self._arguments.smoke else _ROWS)
            lines = generate.request_lines(tickets).encode().splitlines(keepends=True)
            arguments = {"max_num_seqs": 16} if self._arguments.smoke else {}
            found.append(Case(name="tickets", lines=lines, model=_MODEL, arguments=arguments))
        if "prefixes" in self._arguments.cases:
            found.append(self._prefixes())
        return found

    def _prefixes(self) -> Case:
        model = self._folder / workload.MODEL_NAME
        command: list[str | Path] = [sys.executable, "-m", "tests.support.tiny_model", model]
        written = processes.run(command, timeout=300, environment=self._environment)
        if written.code != 0:
            written.result()
        bodies = order.shared_prefixes(_PREFIXES, rows=_ROWS // _PREFIXES)
        arguments = {"max_model_len": 1024, "num_gpu_blocks_override": 512, "block_size": 32}
        lines = [order.line_of(index, body) for index, body in enumerate(bodies)]
        return Case(name="prefixes", lines=lines, model=model, arguments=arguments)

    def measure(self, case: Case) -> list[Measure]:
        """The sweep, ``--auto``, and both choices in turns."""
        quick, smoke = self._arguments.quick, self._arguments.smoke
        seqs, tokens = (SEQS[-2:], TOKENS[-2:]) if quick else (SEQS, TOKENS)
        settings = [{"max_num_seqs": s, "max_num_batched_tokens": t} for s in seqs for t in tokens]
        found = [
            one
            for setting in ([] if smoke else settings)
            for one in self._tried(case, "sweep", setting, case.lines[:_SWEPT_ROWS])
        ]
        auto = self._tried(case, "auto", None, case.lines)
        found += auto
        if smoke or not auto or len(found) == 1:
            return found
        best = max((one for one in found if one.part == "sweep"), key=lambda one: one.rate)
        chosen = {name: auto[0].tuned[name] for name in ("max_num_active_seqs", "max_num_scheduled_tokens")}
        for _ in range(self._arguments.repeats):
            found += self._tried(case, "the sweep's best", orjson.loads(best.setting), case.lines)
            found += self._tried(case, "found by --auto", chosen, case.lines)
        return found

    def _tried(
        self, case: Case, part: str, setting: dict[str, int] | None, lines: Sequence[bytes]
    ) -> list[Measure]:
        label = f"{case.name}, {part}, {setting or '--auto'}"
        try:
            one = self._run(case, part, setting, lines)
        except RunError as error:
            self._report.failures.append(f"{label}: {error}")
            say(f"{label}: FAILED")
            return []
        say(f"{label}: {one.rate:.1f} rows/s {one.tuned or ''}")
        return [one]

    def _run(self, case: Case, part: str, setting: dict[str, int] | None, lines: Sequence[bytes]) -> Measure:
        self._runs += 1
        rows = self._folder / f"{case.name}-{len(lines)}.jsonl"
        if not rows.exists():
            rows.write_bytes(b"".join(lines))
        options = ["--auto"] if setting is None else []
        for name, value in {**case.arguments, **(setting or {})}.items():
            options += ["--engine-arg", f"{name}={value}"]
        output = self._folder / f"out-{self._runs}"
        command = workload.dray_run(rows, "--model", case.model, "--output", output, *options)
        found: dict[str, Any] = processes.run(command, timeout=900, environment=self._environment).result()
        if found["counts"]["done"] != len(lines):
            raise RunError(f"answered {found['counts']['done']} of {len(lines)} rows")
        tuned: dict[str, Any] = next(iter(found["tuned"].values()), {})
        if setting is None and not tuned:
            raise RunError("--auto chose nothing: the rows ended before")
        seconds = found["seconds"]
        return Measure(
            name=case.name,
            part=part,
            setting=orjson.dumps(setting).decode(),
            rate=len(lines) / seconds["inference"],
            cost=tuned["seconds"] if tuned else seconds["engine_start"] + seconds["inference"],
            tuned=tuned,
        )


def _rates(name: str, part: str, measures: Sequence[Measure]) -> list[float]:
    return [one.rate for one in measures if one.name == name and one.part == part]


def _targets(name: str, measures: Sequence[Measure]) -> list[Target]:
    auto, best = (_rates(name, part, measures) for part in ("found by --auto", "the sweep's best"))
    if not auto or not best:
        return []
    swept = sum(one.cost for one in measures if one.name == name and one.part == "sweep")
    cost = sum(one.cost for one in measures if one.name == name and one.part == "auto")
    worth = Target(name=f"{name}: found over the sweep's best", value=median(auto) / median(best), bound=0.95)
    told = f"{name}: seconds of --auto over the sweep's"
    return [worth, Target(name=told, value=cost / swept, bound=0.2, at_least=False)]


def _table(measures: Sequence[Measure]) -> Table:
    rows = []
    parts: dict[tuple[str, str], list[Measure]] = {}
    for one in measures:
        parts.setdefault((one.name, one.part), []).append(one)
    for (name, part), found in parts.items():
        settings = sorted({one.setting for one in found})
        told = settings[0] if len(settings) == 1 else f"{len(settings)} settings"
        if found[0].tuned:
            told = orjson.dumps(found[0].tuned).decode()
        rates = [one.rate for one in found]
        rate = f"{number(min(rates))} to {number(max(rates))}" if part == "sweep" else spread(rates)
        cost = number(sum(one.cost for one in found)) if part in ("sweep", "auto") else ""
        rows.append([name, part, told.replace('"', ""), rate, cost])
    header = ("rows", "", "setting", "rows/s", "seconds to find out")
    return Table(title="--auto beside a sweep", header=header, rows=rows)


if __name__ == "__main__":
    sys.exit(main())

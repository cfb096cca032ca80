"""How long it takes to plan a job, by its rows: read, counted, ordered and priced; and tokenized beside that.

::

    python -m tests.benchmarks.planning
    python -m tests.benchmarks.planning --quick

Rows are chat requests of 1 KB in a file of JSON lines. Ten share a prefix of 600 characters in the mean, and
they come shuffled. "planned" is all that a plan does but tokenizing: rows are counted by their bytes.
"tokenized" counts each of 10,000 rows with the tokenizer of examples/tickets in processes. Each size is
measured in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import orjson

from dray.planner.catalogue import load_catalogue
from dray.planner.cost import plans
from dray.planner.models import read_model
from dray.planner.workload import Counting, InputLines, TokenizerAt, estimate, gather
from dray.requests.sources import source_of
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.tiny_model import WORDS

MODEL = Path(__file__).parents[2] / "examples/tickets/model"
_SIZE, _PREFIX, _ROWS_A_PREFIX = 1024, 600, 10
_LEAST = 20_000  # rows/s, asked of everything but tokenizing
_TOKENIZED_ROWS = 10_000
_FLAT = 1.25  # times the figure of the fewest rows


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if arguments.alone:
        measured = tokenized if arguments.tokenize else planned
        print(json.dumps(measured(arguments.alone)))
        return 0
    report = Report(name="planning")
    with workload.workspace(arguments.folder) as place:
        found = _rounds(arguments, place, report)
    report.raw = [{"name": name, **run} for name, runs in found.items() for run in runs]
    report.tables = [_table(found)]
    report.targets = _targets(found)
    report.notes = [
        "Memory is the peak of resident memory (VmHWM) over what was resident before, mapped files included.",
        "Seconds of processes that tokenize begin with their import of transformers: 2 s of a core each.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", help="(10000 100000 1000000)")
    parser.add_argument("--alone", help="plan this file in this process, and print the figures")
    parser.add_argument("--tokenize", action="store_true", help="with --alone: tokenize its rows")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    few, all_ = [10_000], [10_000, 100_000, 1_000_000]
    arguments.rows = arguments.rows or (few if arguments.quick else all_)
    return arguments


def planned(path: str) -> dict[str, float]:
    """Plan a file of rows without a tokenizer: rows/s, bytes a row, the part that rows share."""
    model, catalogue = read_model(MODEL), load_catalogue()
    before = processes.resident("VmRSS")
    processes.forget_peak()
    began = time.perf_counter()
    load, _ = estimate(InputLines(source_of(path)), Counting(tokenizer=None, max_length=model.max_length * 4))
    counted = time.perf_counter()
    plans(load.demand(), model, catalogue, today=date(2026, 11, 1))
    ended = time.perf_counter()
    return {
        "rows_per_second": round(load.rows / (ended - began)),
        "bytes_per_row": round((processes.resident("VmHWM") - before) / load.rows, 1),
        "shared_share": round(load.shared, 3),
        "pricing_seconds": round(ended - counted, 3),
    }


def tokenized(path: str) -> dict[str, float]:
    """Tokenize every row of a file: rows/s from the start of the first process, and of one core at work."""
    began = time.perf_counter()
    found = gather(InputLines(source_of(path)), TokenizerAt(folder=str(MODEL)))
    seconds = time.perf_counter() - began
    return {
        "rows_per_second": round(len(found) / seconds),
        "rows_per_core_second": round(len(found) / found.seconds),
        "tokens_per_row": round(float(found.facts.prompt_tokens.mean()), 1),
    }


def write_rows(path: Path, rows: int) -> Path:
    """Rows of 1 KB, shuffled by their prefixes."""
    rng = random.Random(1)
    pool = " ".join(rng.choice(WORDS) for _ in range(50_000))
    starts = range(len(pool) - _SIZE)
    prefixes = max(1, rows // _ROWS_A_PREFIX)
    with path.open("wb", buffering=1 << 20) as file:
        for index in range(rows):
            number = rng.randrange(prefixes)
            start = number * 7919 % len(starts)
            own = rng.choice(starts)
            rest = pool[own : own + _SIZE - _PREFIX - 190]
            text = f"{number} {pool[start : start + _PREFIX]} {index} {rest}"
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 64, "temperature": 0}
            line = {"custom_id": f"row-{index}", "method": "POST", "url": workload.URLS["chat"], "body": body}
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return path


def _rounds(arguments: argparse.Namespace, place: Path, report: Report) -> dict[str, list[dict[str, Any]]]:
    files = {rows: write_rows(place / f"{rows}.jsonl", rows) for rows in arguments.rows}
    runs: dict[str, list[str]] = {f"{rows} rows": [str(file)] for rows, file in files.items()}
    few = files.get(_TOKENIZED_ROWS) or write_rows(place / "few.jsonl", _TOKENIZED_ROWS)
    runs["tokenized"] = [str(few), "--tokenize"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for repeat in range(arguments.repeats):
        for name, given in runs.items():
            command = [sys.executable, "-m", "tests.benchmarks.planning", "--alone", *given]
            label = f"round {repeat + 1}: {name}"
            try:
                found[name].append(processes.run(command, timeout=1200).result())
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            say(f"{label}: {found[name][-1]['rows_per_second']:,} rows/s")
    return found


def _table(found: dict[str, list[dict[str, Any]]]) -> Table:
    keys = ("rows_per_second", "bytes_per_row", "shared_share", "pricing_seconds")
    rows, names = [], {"tokenized": "10,000, every row tokenized"}
    for name, runs in found.items():
        cells = [spread([run[key] for run in runs]) if key in (runs or [{}])[0] else "" for key in keys]
        rows.append([names.get(name, name.removesuffix(" rows")), *cells])
    return Table(
        title="Planning rows of 1 KB",
        header=("rows", "rows/s", "bytes/row", "shared prompt tokens", "pricing, s"),
        rows=rows,
    )


def _targets(found: dict[str, list[dict[str, Any]]]) -> list[Target]:
    planned_runs = {name: runs for name, runs in found.items() if name != "tokenized" and runs}
    targets = [
        Target(name=f"{name}, rows/s", value=median([run["rows_per_second"] for run in runs]), bound=_LEAST)
        for name, runs in planned_runs.items()
    ]
    if len(planned_runs) > 1:
        first, *_, last = planned_runs.values()
        for key, at_least in (("rows_per_second", True), ("bytes_per_row", False)):
            times = median([run[key] for run in last]) / median([run[key] for run in first])
            bound = 1 / _FLAT if at_least else _FLAT
            name = f"{key.replace('_', ' ')}, most rows over fewest"
            targets.append(Target(name=name, value=times, bound=bound, at_least=at_least))
    return targets


if __name__ == "__main__":
    sys.exit(main())

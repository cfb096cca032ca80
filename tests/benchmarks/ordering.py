"""How long it takes to order rows by their prefixes: ``order_rows`` over tables of growing size.

::

    python -m tests.benchmarks.ordering
    python -m tests.benchmarks.ordering --quick

Every tenth of the rows has a prefix of its own, of 37 blocks of 16 tokens; rows come shuffled, ten for each
prefix in the mean. Each size is measured in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from dray.planner.order import order_rows
from dray.planner.rows import RowFacts
from tests.benchmarks import processes, results
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread

_BLOCKS, _BLOCK_TOKENS, _ROWS_A_PREFIX = 37, 16, 10
_LEAST = 20_000  # rows/s, asked of everything but tokenizing


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    if arguments.alone:
        print(json.dumps(measure(arguments.alone)))
        return 0
    report = Report(name="ordering")
    found = _rounds(arguments, report)
    report.raw = [{"name": f"{rows} rows", **run} for rows, runs in found.items() for run in runs]
    report.tables = [_table(found)]
    report.targets = [
        Target(
            name=f"{rows:,} rows, rows/s",
            value=median([run["rows_per_second"] for run in runs]),
            bound=_LEAST,
        )
        for rows, runs in found.items()
        if runs
    ]
    report.notes = [
        "Memory is the peak of resident memory (VmHWM) during the ordering over what was resident before, so "
        "without the hashes: 304 bytes a row."
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--rows", type=int, nargs="+", help="(10000 100000 1000000)")
    parser.add_argument("--alone", type=int, help="order so many rows in this process, and print the figures")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    few, all_ = [10_000], [10_000, 100_000, 1_000_000]
    arguments.rows = arguments.rows or (few if arguments.quick else all_)
    return arguments


def measure(rows: int) -> dict[str, float]:
    """Order so many rows: rows/s, bytes a row, the part of the prompt tokens that need not be computed."""
    table = facts(rows)
    before = processes.resident("VmRSS")
    processes.forget_peak()
    began = time.perf_counter()
    found = order_rows(table)
    seconds = time.perf_counter() - began
    return {
        "rows_per_second": round(rows / seconds),
        "bytes_per_row": round((processes.resident("VmHWM") - before) / rows, 1),
        "shared_share": round(found.shared_tokens / found.prompt_tokens, 3),
    }


def facts(rows: int) -> RowFacts:
    """The table: prefixes of equal length, a last block of each row's own, lognormal outputs."""
    rng = np.random.default_rng(1)
    chain = np.empty((rows, _BLOCKS + 1), np.uint64)
    chain[:, :-1] = rng.integers(0, max(rows // _ROWS_A_PREFIX, 1), rows, np.uint64)[:, None]
    chain[:, :-1] *= np.uint64(_BLOCKS)
    chain[:, :-1] += np.arange(1, _BLOCKS + 1, dtype=np.uint64)
    chain[:, -1] = np.arange(2**40, 2**40 + rows, dtype=np.uint64)
    chain *= np.uint64(0x9E3779B97F4A7C15)  # odd, so different numbers stay different
    return RowFacts(
        prompt_tokens=np.full(rows, (_BLOCKS + 1) * _BLOCK_TOKENS + 8, np.uint32),
        output_tokens=rng.lognormal(4, 0.8, rows).astype(np.float32),
        block_tokens=_BLOCK_TOKENS,
        chain=chain.reshape(-1),
        chain_starts=np.arange(rows + 1, dtype=np.uint64) * np.uint64(_BLOCKS + 1),
    )


def _rounds(arguments: argparse.Namespace, report: Report) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {rows: [] for rows in arguments.rows}
    for repeat in range(arguments.repeats):
        for rows, runs in found.items():
            command = [sys.executable, "-m", "tests.benchmarks.ordering", "--alone", str(rows)]
            label = f"round {repeat + 1}: {rows:,} rows"
            try:
                runs.append(processes.run(command, timeout=600).result())
            except RunError as error:
                report.failures.append(f"{label}: {error}")
                say(f"{label}: FAILED")
                continue
            say(f"{label}: {runs[-1]['rows_per_second']:,} rows/s")
    return found


def _table(found: dict[int, list[dict[str, Any]]]) -> Table:
    keys = ("rows_per_second", "bytes_per_row", "shared_share")
    return Table(
        title="Rows by their prefixes",
        header=("rows", "rows/s", "bytes/row", "shared prompt tokens"),
        rows=[
            [f"{rows:,}", *(spread([run[key] for run in runs]) for key in keys)]
            for rows, runs in found.items()
        ],
    )


if __name__ == "__main__":
    sys.exit(main())

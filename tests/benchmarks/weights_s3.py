"""Weights from a store that behaves as S3 does: how near to its bandwidth, and what faults do.

::

    python -m tests.benchmarks.weights_s3                  fetches of 2 GB, and 100 runs with faults
    python -m tests.benchmarks.weights_s3 --engine         an engine's start on that model, too
    python -m tests.benchmarks.weights_s3 --quick

The emulator takes 30 ms to the first byte, gives 90 MB/s to a connection and 1 GB/s to the node, and, where
said, answers 0.1 % with 503 and 1 % at 1 MB/s. With faults (``--runs``): answers that are cut off, shorter
than said, wrong in a bit, of another range, stalled, or refused as busy.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dray.errors import ConfigError, WeightsError
from dray.weights import LocalModel, read_manifest
from dray.weights.node.places import CACHE_VARIABLE
from dray.weights.source.manifest import Manifest
from tests.benchmarks import results, workload
from tests.benchmarks.results import Report, Table, Target, median, number, say, spread
from tests.benchmarks.weights import SMOKE_GIGABYTES, Bench, Contestant, Measure, clear, engine, rounds
from tests.benchmarks.weights_contestants import NODE_RATE, S3, URI
from tests.support.s3_emulator import EmulatorProcess

TAIL = {"busy_share": 0.001, "slow_share": 0.01, "slow_rate": 1e6}
FAULTS = {
    "slow_share": 0.01,
    "slow_rate": 1e6,
    "cut_share": 0.01,
    "short_share": 0.01,
    "corrupt_share": 0.01,
    "stall_share": 0.005,
    "whole_share": 0.005,
    "elsewhere_share": 0.005,
}
BUSY = (0.01, 0.02, 0.03, 0.04, 0.05)  # in turn
SLACK_SECONDS = 2.0  # beyond the slower of fetch and engine, that an engine may take to be ready


@dataclass(frozen=True, kw_only=True)
class Run:
    """One fetch among faults. ``wrong`` counts bytes that differ from the origin's, ``served`` those sent."""

    seconds: float
    failure: str | None
    wrong: int
    served: int
    size: int
    faults: dict[str, int]
    hedges: int


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="weights-s3")
    with workload.workspace(arguments.folder) as folder:
        with Bench(folder, arguments.gigabytes, arguments.files, arguments.timeout) as bench:
            chosen = _contestants(engines=arguments.engine)
            if arguments.smoke:
                chosen = [one for one in chosen if one.name == "clean"]
            measures = rounds(bench, chosen, arguments.repeats, report)
        with Bench(folder, arguments.small, 2, arguments.timeout) as bench:
            runs = _runs(bench, arguments.runs)
    report.raw = [*map(asdict, measures), *map(asdict, runs)]
    report.failures += [f"run {number}: {run.failure}" for number, run in enumerate(runs, 1) if run.failure]
    report.tables = [*_fetches(measures), *_starts(measures), *_faults(runs)]
    report.targets = [*_engine_targets(measures), *_fault_targets(runs)]
    report.notes = _NOTES
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )  # the examples keep their lines
    results.add_options(parser)
    parser.add_argument("--gigabytes", type=float, default=None, help="of the model that is fetched (2)")
    parser.add_argument("--files", type=int, default=4, help="that it is in")
    parser.add_argument("--engine", action="store_true", help="measure an engine's start as well")
    parser.add_argument("--runs", type=int, default=None, help="fetches with faults (100)")
    parser.add_argument("--small", type=float, default=0.2, help="gigabytes of the model of those")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one process may take")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    quick = arguments.quick
    arguments.repeats = arguments.repeats or (1 if quick else 3)
    if arguments.smoke:
        arguments.gigabytes, arguments.small, arguments.runs = SMOKE_GIGABYTES, SMOKE_GIGABYTES, 1
    arguments.gigabytes = arguments.gigabytes or (0.25 if quick else 2.0)
    arguments.runs = (5 if quick else 100) if arguments.runs is None else arguments.runs
    return arguments


def _contestants(*, engines: bool) -> list[Contestant]:
    """The sink is the emulator's own limit on this machine: the same answers, without a look at them."""
    sink = {"processes": 2, "threads": 16}
    found = [
        Contestant(name="sink", family="sink", function="ranged", settings=sink, behaviour=S3),
        Contestant(name="clean", family="clean", function="dray", behaviour=S3),
        Contestant(name="tail", family="tail", function="dray", behaviour=S3 | TAIL),
    ]
    if engines:
        found += [engine("vllm-dray", behaviour=S3 | TAIL), engine("vllm-local")]
    return found


# -- fetches with faults ---------------------------------------------------------------------------


def _runs(bench: Bench, count: int) -> list[Run]:
    """In this process, as each leaves nothing behind but what is removed at once."""
    os.environ[CACHE_VARIABLE] = str(bench.memory)
    server, found = bench.server(), []
    for run in range(count):
        server.behave(**S3)
        manifest = read_manifest(URI, server.options)
        server.behave(**S3 | FAULTS | {"busy_share": BUSY[run % len(BUSY)]})
        found.append(_run(bench, server, manifest))
        clear(bench.memory)
        one = found[-1]
        say(f"run {run + 1}: {one.seconds:.1f} s, {one.failure or dict(one.faults)}")
    return found


def _run(bench: Bench, server: EmulatorProcess, manifest: Manifest) -> Run:
    failure, wrong, outcome = None, 0, None
    began = time.monotonic()
    try:
        with LocalModel(manifest, server.options) as model:
            folder = model.wait_whole()
            seconds = time.monotonic() - began
            outcome = model.outcome
            wrong = sum(_differing(bench.origin / file.name, folder / file.name) for file in manifest.files)
    except (WeightsError, ConfigError) as error:
        seconds, failure = time.monotonic() - began, str(error)
    return Run(
        seconds=seconds,
        failure=failure,
        wrong=wrong,
        served=sum(server.served().values()),
        size=manifest.size,
        faults=outcome.faults if outcome else {},
        hedges=outcome.hedges if outcome else 0,
    )


def _differing(first: Path, second: Path) -> int:
    import numpy as np

    one, other = np.fromfile(first, np.uint8), np.fromfile(second, np.uint8)
    if len(one) != len(other):
        return max(len(one), len(other))
    return int(np.count_nonzero(one != other))


# -- what is said of it ----------------------------------------------------------------------------

_WHAT = {
    "sink": "ranged sink, 32 connections, no checks: the emulator's own limit here",
    "clean": "dray",
    "tail": "dray, with 503s and the slow tail",
    "vllm-dray": "an engine with dray, with 503s and the slow tail",
    "vllm-local": "the same engine on a local folder in memory",
}


def _of(measures: Sequence[Measure], name: str) -> list[Measure]:
    return [one for one in measures if one.name == name]


def _fetches(measures: Sequence[Measure]) -> list[Table]:
    rows = []
    for name in ("sink", "clean", "tail"):
        if not (found := _of(measures, name)):
            continue
        floor = found[0].bytes / NODE_RATE
        rows.append(
            [
                _WHAT[name],
                spread([one.seconds for one in found]),
                number(median([one.seconds for one in found]) / floor),
                number(max(one.served / one.bytes for one in found)),
                _counted([one.parts.get("faults", {}) for one in found]),
                str(sum(one.parts.get("hedges", 0) for one in found)),
            ]
        )
    if not rows:
        return []
    size = measures[0].bytes
    title = f"A fetch of {size / 1e9:.2f} GB, for which 1 GB/s takes {size / NODE_RATE:.2f} s"
    header = ("what", "seconds", "of bytes / bandwidth", "sent / model", "faults", "asked twice")
    return [Table(title=title, header=header, rows=rows)]


def _starts(measures: Sequence[Measure]) -> list[Table]:
    names = [name for name in ("vllm-dray", "vllm-local") if _of(measures, name)]
    if not names:
        return []
    parts = list(dict.fromkeys(part for name in names for one in _of(measures, name) for part in _parts(one)))
    rows = [
        [
            _WHAT[name],
            spread([one.seconds for one in _of(measures, name)]),
            *[spread([_parts(one).get(part, 0.0) for one in _of(measures, name)]) for part in parts],
        ]
        for name in names
    ]
    header = ("what", "from process start to ready, s", *parts)
    return [Table(title="An engine's start", header=header, rows=rows)]


def _parts(measure: Measure) -> dict[str, float]:
    return dict(measure.parts["parts"])


def _engine_targets(measures: Sequence[Measure]) -> list[Target]:
    ready, local = _of(measures, "vllm-dray"), _of(measures, "vllm-local")
    if not (ready and local):
        return []
    floor = max(ready[0].bytes / NODE_RATE, median([one.seconds for one in local]))
    late = median([one.seconds for one in ready]) - floor
    name = "engine ready after max(bytes / bandwidth, start on a local model), s"
    return [Target(name=name, value=late, bound=SLACK_SECONDS, at_least=False)]


def _faults(runs: Sequence[Run]) -> list[Table]:
    if not runs:
        return []
    ratios = [run.served / run.size for run in runs]
    row = [
        str(len(runs)),
        str(sum(run.failure is not None for run in runs)),
        str(sum(run.wrong for run in runs)),
        spread(ratios),
        spread([run.seconds for run in runs]),
        _counted([run.faults for run in runs]),
        str(sum(run.hedges for run in runs)),
    ]
    header = ("runs", "failed", "wrong bytes", "sent / model", "seconds", "faults", "asked twice")
    size = runs[0].size
    title = f"{size / 1e9:.2f} GB with faults; without any, 1 GB/s takes {size / NODE_RATE:.2f} s"
    return [Table(title=title, header=header, rows=[row])]


def _fault_targets(runs: Sequence[Run]) -> list[Target]:
    if not runs:
        return []
    failed, wrong = sum(run.failure is not None for run in runs), sum(run.wrong for run in runs)
    return [
        Target(name=f"failed of {len(runs)} fetches with faults", value=failed, bound=0, at_least=False),
        Target(name="wrong bytes in them", value=wrong, bound=0, at_least=False),
    ]


def _counted(faults: Sequence[dict[str, Any]]) -> str:
    total: Counter[str] = sum((Counter(one) for one in faults), Counter())
    return ", ".join(f"{count} {kind}" for kind, count in total.most_common()) or "-"


def _percent(shares: dict[str, float]) -> str:
    named = {name: share for name, share in shares.items() if name.endswith("_share")}
    return ", ".join(f"{share:.1%} {name.removesuffix('_share')}" for name, share in named.items())


_NOTES = [
    "The emulator: 30 ms to the first byte, 90 MB/s a connection, 1 GB/s in all; where said, "
    f"{_percent(TAIL)} (at 1 MB/s). It and the fetch share this machine's cores.",
    "Seconds are medians with min..max; of fetches, from `LocalModel` on until the model is whole.",
    f"With faults, of all answers: {_percent(FAULTS)}, and 1 to 5 % busy, from run to run. The manifest is "
    "read without them. Each file was compared with the origin's, byte by byte.",
]


if __name__ == "__main__":
    sys.exit(main())

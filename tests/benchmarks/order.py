"""What the order of rows is worth: ``--order input`` beside ``--order auto``, in the same ``dray run``.

::

    python -m tests.benchmarks.order            all cases, three rounds
    python -m tests.benchmarks.order --quick    one round
    python -m tests.benchmarks.order --cases tail

``prefixes``: 100 prefixes of 600 tokens, ten rows each, shuffled, in a cache for a quarter of them; on one
replica and on two. ``plain``: rows that share nothing. ``tail``: answers of lognormal lengths, 20 rows for
each place in the engine's batch, on a device that takes its time for a step (``pretended_device.py``).
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dray.job.rows.spooling import DIGEST
from dray.planner.order.arranging import RowOrder
from dray.planner.workload import InputLines, TokenizerAt, gather
from dray.requests.sources import source_of
from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.prefix_cache import cached_blocks
from tests.support.slot_simulator import makespan
from tests.support.tiny_model import sentence

_DEVICE = "tests.benchmarks.pretended_device.PretendedDevice"
BLOCK, CACHE_BLOCKS, SEQS = 32, 512, 32
_PREFIX_WORDS, _OWN_WORDS, _ROWS_A_PREFIX = 600, 12, 10
_SLOTS, _ROWS_A_SLOT, _STEP_MS = 16, 20, 20.0
_ORDERS = ("input", "auto")
_SMALL_MODEL = Path(__file__).parents[2] / "examples/tickets/model"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Rows, and the engine that runs them. ``arguments`` are the engine's."""

    name: str
    bodies: Sequence[dict[str, Any]] = field(repr=False)
    arguments: dict[str, Any]
    replicas: int = 1
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: its inference phase in seconds, prompt tokens by row, and the digest of the rows in order."""

    case: str
    order: str
    seconds: float
    prompt: int
    cached: Sequence[int] = field(repr=False)
    spool: str

    @property
    def name(self) -> str:
        """As tables and tests call it."""
        return f"{self.case}, {self.order}"

    @property
    def hits(self) -> float:
        """The part of the prompt tokens that came out of the cache."""
        return sum(self.cached) / self.prompt


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="order")
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, arguments, report)
        measures = bench.rounds()
        report.raw = [_raw(one) for one in measures]
        report.tables = [_table(measures)]
        report.targets = bench.targets(measures)
    report.notes = [
        "Seconds are the inference phase of `dray run`. Rounds are interleaved.",
        f"Prefix cases: num_gpu_blocks_override={CACHE_BLOCKS}, block_size={BLOCK}, max_num_seqs={SEQS}, 8 "
        "tokens out, tiny model on CPU. Cached tokens are compared, prefix by prefix, with what the exact "
        "model of a cache says of the order that the rows had.",
        f"Tail: {_ROWS_A_SLOT} rows for each of {_SLOTS} places, steps of {_STEP_MS:.0f} ms whatever is in "
        "them; ideal is all tokens over all places.",
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    names = ["prefixes", "two replicas", "plain", "tail"]
    parser.add_argument("--cases", nargs="+", choices=names, default=None)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.cases = arguments.cases or (["prefixes"] if arguments.smoke else names)
    return arguments


def shared_prefixes(prefixes: int, *, rows: int = _ROWS_A_PREFIX, seed: int = 1) -> list[dict[str, Any]]:
    """Bodies in a shuffled order, ``rows`` for each prefix."""
    rng = random.Random(seed)
    begins = [sentence(rng, _PREFIX_WORDS) for _ in range(prefixes)]
    prompts = [f"{begin} {sentence(rng, _OWN_WORDS)}" for begin in begins for _ in range(rows)]
    rng.shuffle(prompts)
    return [workload.body(prompt, "completion", 8) for prompt in prompts]


def long_and_short(slots: int, *, seed: int = 3) -> list[dict[str, Any]]:
    """Rows that share nothing, whose answers have lognormal lengths (sigma 0.8, 32 tokens in the middle)."""
    rng = random.Random(seed)
    lengths = [min(max(round(32 * rng.lognormvariate(0, 0.8)), 1), 400) for _ in range(slots * _ROWS_A_SLOT)]
    prompts = workload.prompts(len(lengths), words=12)
    return [
        workload.body(prompt, "completion", tokens) for prompt, tokens in zip(prompts, lengths, strict=True)
    ]


def cases(names: Sequence[str], *, smoke: bool) -> list[Case]:
    """The cases of these names."""
    cache = {"num_gpu_blocks_override": CACHE_BLOCKS, "block_size": BLOCK, "max_num_seqs": SEQS}
    sharing = {"max_model_len": 1024, **cache}
    if smoke:
        bodies = shared_prefixes(26)
        return [Case(name="prefixes", bodies=bodies, arguments={"max_num_seqs": SEQS})]
    rows = shared_prefixes(100)
    plain = [workload.body(prompt, "completion", 8) for prompt in workload.prompts(1000, words=_PREFIX_WORDS)]
    pretended = {
        "max_model_len": 512,
        "max_num_seqs": _SLOTS,
        "distributed_executor_backend": _DEVICE,
    }
    known = [
        Case(name="prefixes", bodies=rows, arguments=sharing),
        Case(name="two replicas", bodies=rows, arguments=sharing, replicas=2),
        Case(name="plain", bodies=plain, arguments=sharing),
        Case(
            name="tail",
            bodies=long_and_short(_SLOTS),
            arguments=pretended,
            environment={"PRETENDED_STEP_MS": str(_STEP_MS), "PRETENDED_PREFILL_US": "0"},
        ),
    ]
    return [one for one in known if one.name in names]


class _Bench:
    """The folder, the files and the rounds."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, report: Report) -> None:
        self._folder = folder
        self._smoke: bool = arguments.smoke
        self._repeats: int = arguments.repeats
        self._report = report
        self._environment = workload.isolated(folder / "prefect")
        self._model = _SMALL_MODEL if self._smoke else folder / workload.MODEL_NAME
        self._cases = {one.name: one for one in cases(arguments.cases, smoke=self._smoke)}
        self._runs = 0

    def rounds(self) -> list[Measure]:
        """All runs; one that fails is noted, and the others go on."""
        say("preparing the model and the requests")
        if not self._smoke:
            command: list[str | Path] = [sys.executable, "-m", "tests.support.tiny_model", self._model]
            written = processes.run(command, timeout=300, environment=self._environment)
            if written.code != 0:
                written.result()
        for case in self._cases.values():
            self._input(case).write_bytes(b"".join(map(line_of, range(len(case.bodies)), case.bodies)))
        found = []
        for repeat in range(self._repeats):
            for case in self._cases.values():
                for order in _ORDERS if repeat % 2 == 0 else reversed(_ORDERS):
                    label = f"round {repeat + 1}: {case.name}, {order}"
                    try:
                        found.append(self._measure(case, order))
                    except RunError as error:
                        self._report.failures.append(f"{label}: {error}")
                        say(f"{label}: FAILED")
                        continue
                    say(f"{label}: {found[-1].seconds:.2f} s, {found[-1].hits:.0%} from the cache")
        return found

    def _input(self, case: Case) -> Path:
        return self._folder / f"{case.name.replace(' ', '-')}.jsonl"

    def _measure(self, case: Case, order: str) -> Measure:
        self._runs += 1
        output = self._folder / f"out-{self._runs}"
        options: list[str] = ["--order", order, "--replicas", str(case.replicas)]
        for name, value in case.arguments.items():
            options += ["--engine-arg", f"{name}={value}"]
        options += ["--engine", "simulated"] if self._smoke else []
        command = workload.dray_run(self._input(case), "--model", self._model, "--output", output, *options)
        done = processes.run(command, timeout=600, environment={**self._environment, **case.environment})
        found: dict[str, Any] = done.result()
        if found["counts"]["done"] != len(case.bodies):
            raise RunError(f"answered {found['counts']['done']} of {len(case.bodies)} rows")
        return Measure(
            case=case.name,
            order=order,
            seconds=found["seconds"]["inference"],
            prompt=found["tokens"]["prompt"],
            cached=_cached(output / "dray.db"),
            spool=_digest(output / "dray.db"),
        )

    def targets(self, measures: Sequence[Measure]) -> list[Target]:
        """What is asked of the figures."""
        seconds: dict[str, list[float]] = defaultdict(list)
        hits: dict[str, list[float]] = defaultdict(list)
        for one in measures:
            seconds[one.name].append(one.seconds)
            hits[one.name].append(one.hits)
        times = {name: median(values) for name, values in seconds.items()}
        shares = {name: median(values) for name, values in hits.items()}
        found = []

        def ratio(name: str, above: str, below: str, of: dict[str, float], bound: float) -> None:
            if of.get(above) and of.get(below):
                found.append(Target(name=name, value=of[above] / of[below], bound=bound))

        ratio("prefixes: times as fast as in input order", "prefixes, input", "prefixes, auto", times, 2.3)
        ratio("plain: times as fast as in input order", "plain, input", "plain, auto", times, 0.98)
        ratio("hits on two replicas, of those on one", "two replicas, auto", "prefixes, auto", shares, 0.95)
        orders = {one.spool for one in measures if one.case == "plain"}
        if orders:
            name = "plain: orders of the rows, whatever --order says"
            found.append(Target(name=name, value=len(orders), bound=1, at_least=False))
        if not self._smoke and "prefixes, auto" in times:
            found += self._against_the_tree(self._cases["prefixes"], measures)
        if "tail" in self._cases:
            found += _tail(self._cases["tail"], times)
        return found

    def _against_the_tree(self, case: Case, measures: Sequence[Measure]) -> list[Target]:
        """Cached tokens of each row beside those that the exact model of a cache gives."""
        lines = list(InputLines(source_of([str(self._input(case))])))
        arranged = RowOrder(always=False, cached=True, pieces=4)(lines)
        assert arranged is not None
        known = gather(lines, TokenizerAt(folder=str(self._model)), block_tokens=BLOCK)
        # The requests that run hold blocks of their own; prefixes have what is left.
        wanted = np.zeros(len(lines), np.int64)
        wanted[arranged.rows] = cached_blocks(known.facts, arranged.rows.tolist(), CACHE_BLOCKS) * BLOCK
        known.close()
        # By groups: which of the rows that come together is the first one, the engine may see otherwise.
        sizes = np.diff(np.append(arranged.starts, len(lines)))
        apart = [
            np.add.reduceat((np.array(one.cached) - wanted)[arranged.rows], arranged.starts) / sizes
            for one in measures
            if one.name == "prefixes, auto"
        ]
        return [
            Target(
                name="prefixes: most tokens a row between a prefix's cached ones and the tree's",
                value=float(max(np.abs(one).max() for one in apart)),
                bound=BLOCK,
                at_least=False,
            ),
            Target(name="prefixes: cached tokens that the tree says", value=float(wanted.sum())),
        ]


def line_of(index: int, body: dict[str, Any]) -> bytes:
    """A line of the batch format."""
    url = workload.URLS["completion"]
    return orjson.dumps({"custom_id": f"r{index}", "method": "POST", "url": url, "body": body}) + b"\n"


def _cached(database: Path) -> list[int]:
    """Cached tokens by index."""
    with closing(sqlite3.connect(database)) as connection:
        return [value for (value,) in connection.execute("select cached_tokens from results order by idx")]


def _digest(database: Path) -> str:
    """Of the rows in their order."""
    with closing(sqlite3.connect(database)) as connection:
        [(info,)] = connection.execute("select info from jobs")
    return str(orjson.loads(info)[DIGEST])


def _tail(case: Case, times: dict[str, float]) -> list[Target]:
    """Makespans over the ideal, and the real run over what the simulator of slots says."""
    steps = [int(body["max_tokens"]) for body in case.bodies]
    ideal = sum(steps) / _SLOTS
    forecast = {"input": makespan(steps, _SLOTS), "auto": makespan(sorted(steps, reverse=True), _SLOTS)}
    found = []
    for order, bound in (("input", None), ("auto", 1.1)):
        took = times.get(f"tail, {order}", 0.0) / (_STEP_MS / 1e3)
        name = f"tail, {order}: seconds over the ideal"
        found.append(Target(name=name, value=took / ideal, bound=bound, at_least=False))
        away = abs(took / forecast[order] - 1)
        name = f"tail, {order}: away from the simulator of slots"
        found.append(Target(name=name, value=away, bound=0.1, at_least=False))
    return found


def _table(measures: Sequence[Measure]) -> Table:
    runs: dict[tuple[str, str], list[Measure]] = defaultdict(list)
    for one in measures:
        runs[one.case, one.order].append(one)
    return Table(
        title="The same rows in two orders",
        header=("rows", "--order", "inference, s", "of the prompt tokens from the cache"),
        rows=[
            [case, order, spread([one.seconds for one in found]), spread([one.hits for one in found])]
            for (case, order), found in runs.items()
        ],
    )


def _raw(one: Measure) -> dict[str, Any]:
    return {**asdict(one), "name": one.name, "cached": sum(one.cached)}


if __name__ == "__main__":
    sys.exit(main())

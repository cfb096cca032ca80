"""What `--reorder-fields` is worth: the same table and template, with lines as given and moved.

::

    python -m tests.benchmarks.fields            three rounds
    python -m tests.benchmarks.fields --quick    one round

1,000 reviews of 100 products: a review of 60 words is a row's own, title, brand and a description of 300
words are its product's. The template names the review first, as people write it. The cache holds a tenth of
the descriptions. The table is made up: real tables repeat more, or less.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks import processes, results, workload
from tests.benchmarks.processes import RunError
from tests.benchmarks.results import Report, Table, Target, median, say, spread
from tests.support.tiny_model import sentence

_TEMPLATE = "Review: {review}\nTitle: {title}\nBrand: {brand}\nDescription: {description}\nSentiment:"
_COLUMNS = ("review", "title", "brand", "description")
_ARGUMENTS = {"max_model_len": 1024, "num_gpu_blocks_override": 256, "block_size": 32, "max_num_seqs": 16}
_ORDERS = ("given", "moved")
_SMALL_MODEL = Path(__file__).parents[2] / "examples/tickets/model"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One run: lines as given or moved, seconds of its inference phase, and prompt tokens from the cache."""

    order: str
    seconds: float
    hits: float


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="fields")
    with workload.workspace(arguments.folder) as folder:
        bench = _Bench(folder, smoke=arguments.smoke)
        measures: list[Measure] = []
        for repeat in range(arguments.repeats):
            orders = _ORDERS if repeat % 2 == 0 else _ORDERS[::-1]
            for order in orders[-1:] if arguments.smoke else orders:
                try:
                    measures.append(bench.measure(order))
                except RunError as error:
                    report.failures.append(f"round {repeat + 1}, {order}: {error}")
                    continue
                say(f"round {repeat + 1}, {order}: {measures[-1].seconds:.2f} s, {measures[-1].hits:.0%}")
    report.raw = [{**asdict(one), "name": one.order} for one in measures]
    report.tables, report.targets = _told(measures)
    report.notes = [
        "Seconds are the inference phase of `dray run`; rows are sorted by their prefixes in both orders.",
        f"{_ARGUMENTS}, 8 tokens out, tiny model on CPU.",
    ]
    return results.publish(report, arguments)


def reviews(rows: int, products: int, *, seed: int = 5) -> list[dict[str, str]]:
    """A table in a shuffled order, ``rows`` reviews of ``products``."""
    rng = random.Random(seed)
    known = [
        {"title": sentence(rng, 6), "brand": f"brand {number % 8}", "description": sentence(rng, 300)}
        for number in range(products)
    ]
    found = [{"review": sentence(rng, 60), **known[row % products]} for row in range(rows)]
    rng.shuffle(found)
    return found


class _Bench:
    """The folder, the table and the model."""

    def __init__(self, folder: Path, *, smoke: bool) -> None:
        self._folder, self._smoke = folder, smoke
        self._environment = workload.isolated(folder / "prefect")
        self._model = _SMALL_MODEL if smoke else folder / workload.MODEL_NAME
        if not smoke:
            command: list[str | Path] = [sys.executable, "-m", "tests.support.tiny_model", self._model]
            written = processes.run(command, timeout=300, environment=self._environment)
            if written.code != 0:
                written.result()
        self._table, self._rows, self._runs = folder / "reviews.csv", 260 if smoke else 1000, 0
        with self._table.open("w", newline="") as file:
            writer = csv.DictWriter(file, _COLUMNS)
            writer.writeheader()
            writer.writerows(reviews(self._rows, self._rows // 10))

    def measure(self, order: str) -> Measure:
        """One `dray run`."""
        self._runs += 1
        options = ["--kind", "completion", "--template", _TEMPLATE, "--max-tokens", "8"]
        options += ["--reorder-fields"] if order == "moved" else []
        for name, value in _ARGUMENTS.items():
            options += [] if self._smoke else ["--engine-arg", f"{name}={value}"]
        options += ["--engine", "simulated"] if self._smoke else []
        output = self._folder / f"out-{self._runs}"
        command = workload.dray_run(self._table, "--model", self._model, "--output", output, *options)
        found: dict[str, Any] = processes.run(command, timeout=600, environment=self._environment).result()
        if found["counts"]["done"] != self._rows:
            raise RunError(f"answered {found['counts']['done']} of {self._rows} rows")
        tokens = found["tokens"]
        return Measure(
            order=order,
            seconds=found["seconds"]["inference"],
            hits=tokens.get("cached", 0) / tokens["prompt"],
        )


def _told(measures: Sequence[Measure]) -> tuple[list[Table], list[Target]]:
    runs: dict[str, list[Measure]] = defaultdict(list)
    for one in measures:
        runs[one.order].append(one)
    table = Table(
        title="The same table and template",
        header=("lines", "inference, s", "of the prompt tokens from the cache"),
        rows=[
            [order, spread([one.seconds for one in found]), spread([one.hits for one in found])]
            for order, found in runs.items()
        ],
    )
    if len(runs) < len(_ORDERS):
        return [table], []
    given, moved = (median([one.seconds for one in runs[order]]) for order in _ORDERS)
    hits = median([one.hits for one in runs["moved"]])
    return [table], [
        Target(name="times as fast as with lines as given", value=given / moved, bound=1.5),
        Target(name="of the prompt tokens from the cache, lines moved", value=hits, bound=0.6),
    ]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    return arguments


if __name__ == "__main__":
    sys.exit(main())

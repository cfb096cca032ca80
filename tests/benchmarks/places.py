"""Claims of places on many replicas: how long one takes, and how long it holds what all shard tasks share.

::

    python -m tests.benchmarks.places            100 and 1,000 replicas, three rounds: some minutes
    python -m tests.benchmarks.places --quick    20 replicas, once

PostgreSQL is real. One connection does all of it: 16 shards for each replica, two at a time. Claims of many
shard tasks go one after the other, too: each locks the job's row. ``fleet`` has a driver and its job.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks import results
from tests.benchmarks.results import Report, Table, median, say, spread
from tests.support.postgres import PostgresServer
from tests.support.stores import FINGERPRINT, specs

SIZES = (100, 1000)  # replicas
_SHARDS = 16  # of a replica
_SLOTS = 2
_WAITING = 50  # shards that ask where all places are taken
_LEASE_SECONDS = 3600.0
FIGURES = {
    "put_ms": "the driver tells of all, ms",
    "claim_ms": "a claim, ms",
    "claims_per_second": "claims/s",
    "wait_ms": "asked again, all taken, ms",
    "look_ms": "the driver reads the open shards, ms",
}


def main() -> int:
    """Measure as the arguments say."""
    arguments = parse()
    report = Report(name="places")
    with PostgresServer(on_disk=True) as server:
        for repeat in range(arguments.repeats):
            for replicas in arguments.sizes:
                found = _measured(server.url(server.create_database()), replicas)
                say(f"round {repeat + 1}, {replicas:,} replicas: a claim {found['claim_ms']:.1f} ms")
                report.raw.append({"name": f"{replicas} replicas", "replicas": replicas, **found})
    report.tables = [_table(arguments.sizes, report.raw)]
    report.notes = [
        f"{_SHARDS} shards for each replica, {_SLOTS} at a time; one connection, one after the other."
    ]
    return results.publish(report, arguments)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results.add_options(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=None, metavar="REPLICAS")
    arguments = parser.parse_args(argv)
    arguments.quick |= arguments.smoke
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    arguments.sizes = arguments.sizes or ([20] if arguments.quick else SIZES)
    return arguments


def _measured(url: str, replicas: int) -> dict[str, float]:
    """The figures of one size, in a database of its own."""
    from dray.store import ReplicaRow, ReplicaState, open_store

    with open_store(url) as store:
        store.create_job("job", fingerprint=FINGERPRINT, settings={})
        job = store.claim_job("job", "driver")
        store.add_shards(job, specs(_SHARDS * replicas, 1), total_rows=_SHARDS * replicas)
        ready = ReplicaState.READY
        rows = [
            ReplicaRow(
                name=f"job/1/replica-{lane}", lane=lane, state=ready, slots=_SLOTS, node=f"n{lane // 8}"
            )
            for lane in range(replicas)
        ]
        store.put_replicas(job, rows)
        put = _milliseconds(lambda _: store.put_replicas(job, rows), range(5))
        places = range(_SLOTS * replicas)

        def claim(number: int, *, again: bool = False) -> None:
            found = store.place_shard(job, number, owner=f"w{number}", ttl=_LEASE_SECONDS, again=again)
            assert found.waiting is again, f"shard {number}: {found}"

        began = time.monotonic()
        claims = _milliseconds(claim, places)
        seconds = time.monotonic() - began
        more = range(len(places), len(places) + _WAITING)
        waits = _milliseconds(lambda number: claim(number, again=True), more)
        looks = _milliseconds(lambda _: store.shards("job", open_only=True), range(5))
    return {
        "put_ms": median(put),
        "claim_ms": median(claims),
        "claims_per_second": len(places) / seconds,
        "wait_ms": median(waits),
        "look_ms": median(looks),
    }


def _milliseconds(call: Callable[[int], Any], numbers: Sequence[int]) -> list[float]:
    """How long each call took."""
    found = []
    for number in numbers:
        began = time.monotonic()
        call(number)
        found.append((time.monotonic() - began) * 1e3)
    return found


def _table(sizes: Sequence[int], raw: Sequence[dict[str, Any]]) -> Table:
    rows = [
        [f"{size:,}", *(spread([run[key] for run in raw if run["replicas"] == size]) for key in FIGURES)]
        for size in sizes
    ]
    return Table(title="Claims of places", header=("replicas", *FIGURES.values()), rows=rows)


if __name__ == "__main__":
    sys.exit(main())

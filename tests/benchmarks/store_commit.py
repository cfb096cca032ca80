"""How fast the store commits: fully synced micro-batches, beside plain sqlite3 as the limit.

::

    python -m tests.benchmarks.store_commit --rows 100000 --batch 256
    python -m tests.benchmarks.store_commit --postgres --rows 100000

Prints rows/s for each, and one JSON line at the end. ``flat`` compares the time per row of the
last tenth of the rows with that of the first tenth.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dray.requests.model import Outcome
from dray.store import Fingerprint, ShardSpec, Store, open_store

_FINGERPRINT = Fingerprint(input="bench", model="m", sampling="s", template="t", format="1")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is committed: ``rows`` answers of ``size`` bytes, over ``shards`` shards taken in turn."""

    rows: int
    batch: int
    size: int
    shards: int
    ids: str

    def batches(self) -> Iterator[tuple[int, list[Outcome]]]:
        """(shard number, outcomes), as a job with several shards in flight commits them."""
        rng = random.Random(7)
        per_shard = self.rows // self.shards
        body = json.dumps({"choices": [{"text": "x" * (self.size - 60)}], "usage": {"n": 1}}).encode()
        template = Outcome(0, None, body, prompt_tokens=100, completion_tokens=64, total_seconds=1.5)
        for start in range(0, per_shard, self.batch):
            stop = min(start + self.batch, per_shard)
            for shard in range(self.shards):
                first = shard * per_shard
                rows = [
                    template._replace(index=index, custom_id=self._custom_id(rng, index))
                    for index in range(first + start, first + stop)
                ]
                yield shard, rows

    def _custom_id(self, rng: random.Random, index: int) -> str:
        return f"{rng.getrandbits(96):024x}-{index}" if self.ids == "random" else f"request-{index}"

    def specs(self) -> list[ShardSpec]:
        """The shards."""
        per_shard = self.rows // self.shards
        return [
            ShardSpec(
                number=number,
                uri="spool.jsonl",
                offset=number,
                length=1,
                rows=per_shard,
                first_position=number * per_shard,
            )
            for number in range(self.shards)
        ]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one commit took: seconds by the clock, and of this process's processor time."""

    seconds: float
    cpu: float


class Meter:
    """Collects the cost of commits; preparing the rows is not counted."""

    def __init__(self) -> None:
        self.costs: list[Cost] = []

    @contextlib.contextmanager
    def commit(self) -> Iterator[None]:
        """Measures its block."""
        seconds, cpu = time.perf_counter(), time.process_time()
        yield
        self.costs.append(Cost(seconds=time.perf_counter() - seconds, cpu=time.process_time() - cpu))

    def figures(self, rows: int) -> dict[str, float]:
        """Rows per second over all, and how the last tenth compares with the first."""
        seconds = [cost.seconds for cost in self.costs]
        cpu = [cost.cpu for cost in self.costs]
        tenth = max(len(seconds) // 10, 1)
        return {
            "rows_per_second": round(rows / sum(seconds)),
            "cpu_us_per_row": round(sum(cpu) / rows * 1e6, 1),
            "flat": round(sum(seconds[-tenth:]) / sum(seconds[:tenth]), 3),
            "flat_cpu": round(sum(cpu[-tenth:]) / sum(cpu[:tenth]), 3),
            "slowest_commit_ms": round(max(seconds) * 1000, 1),
        }


def commit_all(store: Store, load: Load) -> Meter:
    """Commits the load."""
    store.create_job("bench", fingerprint=_FINGERPRINT, settings={})
    job = store.claim_job("bench", "bench", ttl=3600)
    store.add_shards(job, load.specs(), total_rows=load.rows)
    leases = [store.claim_shard(job, number, owner="bench", ttl=3600) for number in range(load.shards)]
    meter = Meter()
    for shard, outcomes in load.batches():
        lease = leases[shard]
        assert lease is not None
        with meter.commit():
            store.commit(lease, outcomes)
    return meter


def read_all(store: Store) -> float:
    """Seconds to read every outcome back in order."""
    started = time.perf_counter()
    for _page in store.outcomes("bench"):
        pass
    return time.perf_counter() - started


def plain_sqlite(path: Path, load: Load) -> Meter:
    """The limit: sqlite3 alone, one table of index and answer, same batches, same syncing."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE r (i INTEGER PRIMARY KEY, body TEXT)")
    meter = Meter()
    for _shard, outcomes in load.batches():
        rows = [(outcome.index, (outcome.response or b"").decode()) for outcome in outcomes]
        with meter.commit():
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO r VALUES (?, ?)", rows)
            connection.execute("COMMIT")
    connection.close()
    return meter


def main() -> None:
    """Runs the benchmark as the arguments say."""
    arguments = parse()
    load = Load(
        rows=arguments.rows,
        batch=arguments.batch,
        size=arguments.size,
        shards=arguments.shards,
        ids=arguments.ids,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="dray-bench-", dir=arguments.folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = arguments.url or str(folder / "store.db")
        if arguments.postgres:
            from tests.support.postgres import PostgresServer

            server = stack.enter_context(PostgresServer(on_disk=True))
            url = server.url(server.create_database())
        results: dict[str, object] = {"rows": load.rows, "batch": load.batch, "ids": load.ids}
        if not arguments.no_limit:
            results["plain_sqlite3"] = plain_sqlite(folder / "plain.db", load).figures(load.rows)
            (folder / "plain.db").unlink()
        store = stack.enter_context(open_store(url))
        results["store"] = commit_all(store, load).figures(load.rows)
        results["read_rows_per_second"] = round(load.rows / read_all(store))
    for name, value in results.items():
        print(f"{name:24} {value}")
    print(json.dumps(results))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a store of yours; a new SQLite file when not given")
    parser.add_argument("--postgres", action="store_true", help="start a private PostgreSQL server")
    parser.add_argument("--folder", help="where temporary databases go")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=1024, help="bytes per answer")
    parser.add_argument("--shards", type=int, default=4, help="shards committed to in turn")
    parser.add_argument("--ids", choices=["sequential", "random"], default="random")
    parser.add_argument("--no-limit", action="store_true", help="leave plain sqlite3 out")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()

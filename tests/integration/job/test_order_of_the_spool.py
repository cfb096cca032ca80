"""A job whose spool has another order than its input comes to the same files, whatever happens to it."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dray.errors import DrayError
from dray.job.beginning.opening import open_job
from dray.job.ending.expiring import expire
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows import ingesting
from dray.job.rows.ingesting import ingest_job
from dray.requests.ingest import Ingested, ingest
from dray.requests.model import Outcome
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.spool import SpoolWriter
from dray.store import JobState, ShardState, open_store
from tests.support.history import check_history, keeping_history
from tests.support.lanes import MARK, Lanes
from tests.support.stores import indexes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.usefixtures("eager")]

ROWS = 240
INVALID = frozenset({0, 17, 150, 239})
"""Rows without a body: error rows of ingest, which stand nowhere in the spool."""
BAD = frozenset({151})
"""Rows that end each engine which has them."""
NODES = ("node-a", "node-b")


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "shuffled.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def _shuffled(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Where a planner will stand: what ingest has written gets another order before it is cut into shards."""

    def planned(*arguments: Any, spool_uri: str, **options: Any) -> Ingested:
        ingested = ingest(*arguments, spool_uri=spool_uri, **options)
        lines = Path(spool_uri).read_bytes().splitlines(keepends=True)
        rng.shuffle(lines)
        with Path(spool_uri).open("wb") as file:
            writer = SpoolWriter(file.write)
            for line in lines:
                writer.add(line)
        return replace(ingested, marks=tuple(writer.marks))

    monkeypatch.setattr(ingesting, "ingest", planned)


@dataclass
class Job:
    """A job of ``ROWS`` rows in a folder of its own; the input is that of all."""

    folder: Path
    store_url: str

    def settings(self) -> JobSettings:
        path = self.folder / "in.jsonl"
        if not path.exists():
            _write_input(path)
        name = "shuffled" if vars(ingesting)["ingest"] is not ingest else "plain"
        return JobSettings(
            source=source_of([str(path)]),
            defaults=RowDefaults(sampling={"temperature": 0}),
            model="simulated",
            output=str(self.folder / name),
            store_url=self.store_url,
            engine="simulated",
            engine_arguments={"max_num_seqs": 16, "seconds_per_token": 0.005},
            job_id="job",
            skip_invalid=True,
            shard_rows=80,
        )

    def run(self, **changes: Any) -> Lanes:
        lanes = Lanes(self.settings(), NODES, **changes)
        counts = lanes.run()
        assert lanes.failure is None
        assert (counts.done, counts.failed) == (ROWS - len(BAD | INVALID), len(BAD | INVALID))
        return lanes

    def finalised(self, state: JobState = JobState.COMPLETED) -> tuple[bytes, bytes]:
        """Its files."""
        job = open_job(self.settings(), resume=True)
        finalise_job(job, Timeline(), state=state)
        with open_store(self.store_url, create=False) as store:
            store.release_job(job.lease)
        output = Path(job.settings.output)
        return (output / "output.jsonl").read_bytes(), (output / "errors.jsonl").read_bytes()

    def terminal(self) -> frozenset[int]:
        """Rows that have an outcome, and entered a shard."""
        with open_store(self.store_url, create=False) as store:
            return frozenset(store.done_indexes("job", range(ROWS))) - INVALID

    def shards(self) -> list[list[int]]:
        """The rows of each shard that was not split."""
        with open_store(self.store_url, create=False) as store:
            return [indexes_of(one) for one in store.shards("job") if one.state is not ShardState.SPLIT]


def _write_input(path: Path) -> None:
    with path.open("w") as file:
        for number in range(ROWS):
            text = f"prompt {number}" + (f" {MARK}" if number in BAD else "")
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps(line | ({} if number in INVALID else {"body": body})) + "\n")


@pytest.fixture
def plain(tmp_path: Path, store_url: str) -> Iterator[Callable[[Callable[[Job], tuple[bytes, bytes]]], Any]]:
    """Does something to a job in the order of its input, and gives its files."""

    def do(work: Callable[[Job], tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ingesting, "ingest", ingest)
            return work(Job(tmp_path, str(tmp_path / "plain.db")))

    yield do


@pytest.mark.heavy
def test_engines_that_die_and_a_resume_in_the_middle(
    tmp_path: Path,
    store_url: str,
    plain: Callable[..., tuple[bytes, bytes]],
    _shuffled: None,
) -> None:
    def in_peace(job: Job) -> tuple[bytes, bytes]:
        job.run()
        return job.finalised()

    wanted = plain(in_peace)
    job = Job(tmp_path, store_url)
    with keeping_history(tmp_path / "history"):
        _stop_in_the_middle(job)
        assert 0 < len(job.terminal()) < ROWS - len(INVALID)
        lanes = job.run()
    assert lanes.errors().keys() == BAD | INVALID
    assert {lanes.errors()[index] for index in BAD} == {"poison"}
    rows = job.shards()
    assert sorted(index for one in rows for index in one) == sorted(set(range(ROWS)) - INVALID)
    assert any(one != sorted(one) for one in rows)  # or the order was the input's
    with open_store(store_url, create=False) as store:
        assert any(one.state is ShardState.SPLIT for one in store.shards("job"))
    assert job.finalised() == wanted
    check_history(tmp_path / "history", store_url, "job", tmp_path / "shuffled")


def _stop_in_the_middle(job: Job) -> None:
    lanes = Lanes(job.settings(), NODES)

    def stop() -> None:
        while not _some(job) and lanes.failure is None:
            time.sleep(0.02)
        lanes.stop("stopped by the test")

    thread = threading.Thread(target=stop)
    thread.start()
    lanes.run()
    thread.join()


def _some(job: Job) -> bool:
    try:
        return len(job.terminal()) > ROWS / 4
    except DrayError:  # there is no store yet, or no job
        return False


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("answered", [frozenset(), frozenset(range(1, ROWS, 3))], ids=["none", "a third"])
def test_a_job_whose_time_is_over(
    answered: Collection[int],
    tmp_path: Path,
    store_url: str,
    plain: Callable[..., tuple[bytes, bytes]],
    _shuffled: None,
) -> None:
    def expired(job: Job) -> tuple[bytes, bytes]:
        opened = open_job(job.settings())
        with open_store(job.store_url, create=False) as store:
            for shard in ingest_job(opened, replicas=1):
                lease = store.claim_shard(opened.lease, shard.number, owner="worker")
                assert lease is not None
                rows = [index for index in indexes_of(shard) if index in answered]
                store.commit(lease, [Outcome(index, f"row-{index}", b'{"n":%d}' % index) for index in rows])
            expire(store, opened)
            counts = store.verify_counts("job")
            store.release_job(opened.lease)
        assert counts.pending == 0
        assert counts.done == len(set(answered) - INVALID)
        return job.finalised(JobState.EXPIRED)

    assert expired(Job(tmp_path, store_url)) == plain(expired)

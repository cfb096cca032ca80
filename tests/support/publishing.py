"""Two drivers of one job that publish its files, each stopped where a test wants it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from dray.errors import DrayError
from dray.job.beginning import opening
from dray.job.beginning.opening import open_job
from dray.job.ending import finalising
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job, open_shards
from dray.requests.model import Outcome
from dray.requests.spool.spool import decode, read_shard
from dray.storage import drafts
from dray.storage.layout import is_part
from dray.store import JobState, open_store
from dray.triggers import Point

STEPS = (
    (Point.FINALISE_BEFORE, 1),
    (Point.FINALISE_WRITTEN, 1),
    (Point.FINALISE_RECORDED, 1),
    (Point.FINALISE_RENAMED, 1),
    (Point.FINALISE_RENAMED, 2),
    (Point.FINALISE_RENAMED, 3),
)
"""Every place at which a driver that publishes may stand still, in the order it comes to them."""


def answer(job: OpenJob, shards: int | None = None) -> None:
    """Give rows their answers: those of so many shards, all when None."""
    with open_store(job.settings.store_url, create=False) as store:
        for shard in open_shards(ingest_job(job, replicas=1))[:shards]:
            lease = store.claim_shard(job.lease, shard.number, owner="test")
            assert lease is not None
            lines = read_shard(shard.uri, shard.offset, shard.length, options=job.settings.objects)
            for chunk in lines:
                rows = [decode(line) for line in chunk]
                store.commit(
                    lease, [Outcome(r.index, r.custom_id, b'{"a":1}', completion_tokens=1) for r in rows]
                )
            store.finish_shard(lease)


def finish(settings: JobSettings) -> None:
    """Run a job from its beginning to its end, and give its lease back."""
    job = open_job(settings)
    answer(job)
    finalise_job(job, Timeline())
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)


class Driver(threading.Thread):
    """A driver that publishes in a thread; it stands still at each step that it is told of."""

    def __init__(self, job: OpenJob, stops: list[tuple[Point, int]], state: JobState) -> None:
        super().__init__(name=f"driver-{job.lease.epoch}", daemon=True)
        self.error: BaseException | None = None
        self._job = job
        self._state = state
        self._stops = stops
        self._reached: dict[Point, int] = {}
        self._at = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def run(self) -> None:
        try:
            finalise_job(self._job, Timeline(), state=self._state)
        except DrayError as error:
            self.error = error
        finally:
            self._at.release()

    def reach(self, point: Point) -> None:
        """In the place of :func:`dray.triggers.reach`."""
        self._reached[point] = self._reached.get(point, 0) + 1
        if (point, self._reached[point]) in self._stops:
            self._at.release()
            assert self._go.acquire(timeout=60)

    def wait(self) -> None:
        """Until it stands still, or ended."""
        assert self._at.acquire(timeout=60)

    def go_on(self) -> None:
        """Let it go on to its end."""
        self._go.release()
        self.join(60)
        assert not self.is_alive()


@contextmanager
def stoppable(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Points are reached by the drivers' threads; a lease can be taken at once."""

    def reach(point: Point) -> None:
        thread = threading.current_thread()
        if isinstance(thread, Driver):
            thread.reach(point)

    with patch.context() as changed:
        changed.setattr(drafts, "reach", reach)
        changed.setattr(finalising, "reach", reach)
        changed.setattr(opening, "is_gone", lambda _owner: True)  # stands for the 60 s of a lease
        yield


@dataclass(frozen=True, kw_only=True)
class Race:
    """How a driver of old and its successor ended."""

    old: BaseException | None
    new: BaseException | None


def race(
    settings: JobSettings,
    old_stop: tuple[Point, int],
    new_stop: tuple[Point, int] | None,
    *,
    successor: JobSettings | None = None,
) -> Race:
    """An old driver with half of the rows stands still; a new one has all, and stands still in its turn.

    The old one then goes on to its end, and the new one after it; None lets the new one end first. (A driver
    with half of the rows publishes none in earnest: ``expired`` is what keeps dray from counting them.) The
    new one may have settings of its own.
    """
    first = open_job(settings)
    answer(first, 1)
    old = Driver(first, [old_stop], JobState.EXPIRED)
    old.start()
    old.wait()
    second = open_job(successor or settings)
    answer(second)
    new = Driver(second, [] if new_stop is None else [new_stop], JobState.COMPLETED)
    new.start()
    new.wait()
    old.go_on()
    if new_stop is not None:
        new.go_on()
    return Race(old=old.error, new=new.error)


def assert_published(settings: JobSettings, job_id: str, read: Callable[[str], bytes]) -> None:
    """The files are those that the store recorded, and hold its rows."""
    with open_store(settings.store_url, create=False) as store:
        job = store.get_job(job_id)
        total = store.verify_counts(job_id).total
    assert job.state is JobState.COMPLETED
    files = job.info["published"]["files"]
    for name, recorded in files.items():
        content = read(name)
        assert (len(content), hashlib.sha256(content).hexdigest()) == (recorded["size"], recorded["sha256"])
    names = sorted(name for name in files if name == "output.jsonl" or is_part(name))
    assert b"".join(map(read, names)).count(b"\n") == total
    for name in ("output.jsonl", "output-00000.jsonl", "output.jsonl.manifest.json"):
        if name not in files:  # no file of another layout is beside them
            with pytest.raises(FileNotFoundError):
                read(name)
    assert job.info["published"]["epoch"] == job.epoch

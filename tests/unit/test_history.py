"""The history that processes keep, and the checker: each invariant broken once, to see it say so."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dray import history
from dray.errors import StoreFatalError
from dray.history import Event
from dray.requests.outputs.files import write_outputs
from dray.store import JobLease, ShardLease, Store, open_store
from tests.support.history import check_history, read_history
from tests.support.stores import claimed, failure, outcome, outcomes, ready_job

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process keeps its history."""
    kept = tmp_path / "history"
    kept.mkdir()
    monkeypatch.setattr(history, "_folder", str(kept))
    monkeypatch.setattr(history, "_file", None)
    return kept


class Job:
    """A job of 2 shards with 4 rows each, done as dray does it, whose parts a test can do otherwise."""

    def __init__(self, tmp_path: Path) -> None:
        self.url = str(tmp_path / "store.db")
        self.outputs = tmp_path / "out"
        self.folder = tmp_path / "history"
        self.store: Store = open_store(self.url)
        self.driver: JobLease = ready_job(self.store)

    def claim(self, number: int, owner: str = "worker") -> ShardLease:
        return claimed(self.store, self.driver, number, owner)

    def admit(self, lease: ShardLease, indexes: Iterable[int]) -> None:
        history.admitted(f"job/{lease.number}/{lease.epoch}", outcomes(list(indexes)))

    def commit(self, lease: ShardLease, indexes: Iterable[int], *, acknowledged: bool = True) -> None:
        batch = [outcome(i, '{"a": 1}') if i % 3 else failure(i) for i in indexes]
        history.intent(lease, batch)
        self.store.commit(lease, batch)
        if acknowledged:
            history.ack(lease, batch)

    def run(self, number: int) -> None:
        lease = self.claim(number)
        rows = range(number * 4, number * 4 + 4)
        self.admit(lease, rows)
        self.commit(lease, rows)
        self.store.finish_shard(lease)

    def write(self) -> None:
        self.outputs.mkdir()
        written = write_outputs(self.store.outcomes("job"), directory=str(self.outputs))
        files = [
            {"name": name, "size": info.size, "sha256": info.sha256} for name, info in written.files.items()
        ]
        self.store.set_job_summary(self.driver, {"report": json.dumps({"files": files})})

    def whole(self) -> None:
        self.run(0)
        self.run(1)
        self.write()

    def check(self, **options: bool) -> object:
        outputs = self.outputs if self.outputs.exists() else None
        return check_history(self.folder, self.url, "job", outputs, **options)

    def sql(self, statement: str) -> None:
        with sqlite3.connect(self.url) as connection:
            connection.execute(statement)


@pytest.fixture
def job(tmp_path: Path) -> Iterable[Job]:
    made = Job(tmp_path)
    yield made
    made.store.close()


def test_a_good_history_passes(job: Job) -> None:
    job.whole()
    figures = check_history(job.folder, job.url, "job", job.outputs)
    assert (figures.rows, figures.acknowledged) == (8, 8)
    assert (figures.lost, figures.duplicated, figures.recomputed, figures.after_ack) == (0, 0, 0, 0)
    assert (figures.late, figures.unfinished) == (0, 0)


def test_what_was_in_flight_may_be_computed_again(job: Job) -> None:
    lost = job.claim(0, "one")
    job.admit(lost, range(4))
    job.commit(lost, [0, 1])
    job.store.release_shard(lost, cause="NODE_LOSS")
    heir = job.claim(0, "two")
    job.admit(heir, [2, 3])
    job.commit(heir, [2, 3])
    job.store.finish_shard(heir)
    job.run(1)
    job.write()
    assert check_history(job.folder, job.url, "job", job.outputs).recomputed == 2


def test_i1_an_acknowledged_row_that_is_not_there(job: Job) -> None:
    job.whole()
    job.sql("DELETE FROM results WHERE idx = 5")
    job.sql("UPDATE shards SET done = done - 1 WHERE number = 1")
    with pytest.raises(AssertionError, match=r"I1.*: 5 \(1\)"):
        job.check()


def test_i1_a_finished_attempt_whose_commit_nobody_noted(job: Job) -> None:
    """An empty history breaks nothing else."""
    lease = job.claim(0)
    job.admit(lease, range(4))
    job.commit(lease, range(4), acknowledged=False)
    job.check(finished=False)  # it may have been killed before it could
    job.store.finish_shard(lease)
    with pytest.raises(AssertionError, match=r"I1: rows of finished attempts .* noted: 0, 1, 2, 3 \(4\)"):
        job.check(finished=False)


def test_i5_answers_that_no_engine_noted(job: Job) -> None:
    lease = job.claim(0)
    job.admit(lease, range(2))
    job.commit(lease, range(4))
    with pytest.raises(AssertionError, match=r"I5: answered rows that no engine noted: 2 \(1\)"):
        job.check(finished=False)


def test_i2_a_row_that_the_input_has_not(job: Job) -> None:
    job.whole()
    job.sql("UPDATE results SET idx = 9 WHERE idx = 5")
    job.sql("UPDATE jobs SET total = 8")
    for file in job.folder.iterdir():
        file.write_text(file.read_text().replace("5, 6", "9, 6"))
    with pytest.raises(AssertionError, match=r"I2: the store has rows that the input has not: 9"):
        job.check()


def test_i2_a_row_that_stands_twice_in_the_store(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one without a primary key would give it."""
    job.whole()
    real = Store.outcomes
    monkeypatch.setattr(Store, "outcomes", lambda *given: [page + page[:1] for page in real(*given)])
    with pytest.raises(AssertionError, match=r"I2: rows stand twice in the store: 0 \(1\)"):
        job.check()


def test_i2_an_id_that_stands_twice(job: Job) -> None:
    job.whole()
    job.sql("UPDATE results SET custom_id = 'id-1' WHERE idx = 2")
    with pytest.raises(StoreFatalError, match="custom_id"):
        job.check()


def test_i2_a_row_that_stands_twice_in_the_files(job: Job) -> None:
    job.whole()
    file = job.outputs / "output.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines, lines[0]]))
    with pytest.raises(AssertionError, match="I2: rows stand twice in the files: 1"):
        job.check()


def test_i2_a_row_that_stands_in_both_files(job: Job) -> None:
    job.whole()
    line = (job.outputs / "output.jsonl").read_bytes().splitlines(keepends=True)[1]
    with (job.outputs / "errors.jsonl").open("ab") as file:
        file.write(line)
    with pytest.raises(AssertionError, match="I2: rows stand twice in the files: 2"):
        job.check()


def test_i3_a_row_that_nobody_meant_to_commit(job: Job) -> None:
    job.whole()
    lease = job.store.shards("job")[1]
    for file in job.folder.iterdir():
        kept = [line for line in file.read_text().splitlines(keepends=True) if not _is_intent(line, 1)]
        file.write_text("".join(kept))
    assert lease.epoch == 1
    with pytest.raises(AssertionError, match="I3: row 4 of shard 1, epoch 1: nobody of that epoch"):
        job.check()


def _is_intent(line: str, shard: int) -> bool:
    event: dict[str, object] = json.loads(line)
    return event["event"] == "intent" and event["shard"] == shard


def test_i3_a_row_that_a_fenced_holder_committed(job: Job) -> None:
    """As a store without its fence would let it through."""
    zombie = job.claim(0, "zombie")
    job.admit(zombie, range(4))
    history.intent(zombie, outcomes(range(4)))
    job.store.release_shard(zombie, cause="SPOT")
    heir = job.claim(0, "heir")
    job.admit(heir, range(4))
    job.commit(heir, range(4))
    job.store.finish_shard(heir)
    job.run(1)
    job.write()
    job.check()
    job.sql("UPDATE results SET epoch = 1, committed_at = committed_at + 1 WHERE idx = 2")
    with pytest.raises(AssertionError, match="I3: row 2 of shard 0, epoch 1: committed after its epoch"):
        job.check()


def test_i3_an_epoch_that_never_was(job: Job) -> None:
    job.whole()
    history.note(Event.INTENT, "job", 1, 7, [4])
    job.sql("UPDATE results SET epoch = 7 WHERE idx = 4")
    with pytest.raises(AssertionError, match="I3: row 4 of shard 1, epoch 7: the shard never had"):
        job.check()


def test_i3_an_attempt_that_the_store_forgot(job: Job) -> None:
    job.whole()
    job.sql("DELETE FROM attempts WHERE shard = 1")
    with pytest.raises(AssertionError, match="I3: row 4 of shard 1, epoch 1: the store knows of no"):
        job.check()


def test_i4_rows_that_the_counts_know_of_and_nobody_reads(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As paging that leaves one out would give them."""
    lease = job.claim(0)
    job.admit(lease, range(4))
    job.commit(lease, range(4), acknowledged=False)
    real = Store.outcomes
    monkeypatch.setattr(Store, "outcomes", lambda *given: [page[1:] for page in real(*given)])
    with pytest.raises(AssertionError, match="I4: rows and counts differ"):
        job.check(finished=False)


def test_i4_counters_that_say_otherwise(job: Job) -> None:
    job.whole()
    job.sql("UPDATE shards SET done = done + 1 WHERE number = 0")
    with pytest.raises(StoreFatalError, match="counters"):
        job.check()


def test_i4_rows_without_an_outcome(job: Job) -> None:
    job.run(0)
    job.check(finished=False)
    with pytest.raises(AssertionError, match="I4: 4 rows have no outcome"):
        job.check()


def _cut(data: bytes) -> bytes:
    return data[:-9]


def _without_a_line(data: bytes) -> bytes:
    return data[data.index(b"\n") + 1 :]


def _with_one_more(data: bytes) -> bytes:
    return data + data.splitlines(keepends=True)[0].replace(
        b"batch_req_000000000001", b"batch_req_000000000042"
    )


def _of_another_answer(data: bytes) -> bytes:
    return data.replace(b'{"a": 1}', b'{"a": 2}', 1)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_cut, "is cut short"),
        (_without_a_line, "rows of the store are not in the files: 1 "),
        (_with_one_more, "the files have rows that the store has not: 42 "),
        (_of_another_answer, "differs from what the store holds"),
    ],
)
def test_i4_files_that_are_not_the_store(job: Job, harm: Callable[[bytes], bytes], said: str) -> None:
    job.whole()
    file = job.outputs / "output.jsonl"
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(AssertionError, match=f"I4: .*{said}"):
        job.check()


def test_i4_a_recorded_digest_that_is_another(job: Job) -> None:
    job.whole()
    files = [{"name": "errors.jsonl", "size": 1, "sha256": "0"}]
    job.store.set_job_summary(job.driver, {"report": json.dumps({"files": files})})
    with pytest.raises(AssertionError, match=r"I4: errors.jsonl is not the file whose digest"):
        job.check()


def test_i4_parquet_is_read_too(job: Job) -> None:
    job.run(0)
    job.run(1)
    job.outputs.mkdir()
    write_outputs(job.store.outcomes("job"), directory=str(job.outputs), format="parquet")
    job.check()
    job.sql("UPDATE results SET response = '{\"b\": 1}' WHERE idx = 1")
    with pytest.raises(AssertionError, match=r"I4: output.parquet differs"):
        job.check()


@pytest.mark.parametrize("acknowledged", [True, False])
def test_i5_a_committed_row_that_is_computed_again(job: Job, acknowledged: bool) -> None:
    """Also when its commit was not acknowledged: the next holder finds it in the store."""
    first = job.claim(0, "one")
    job.admit(first, range(4))
    job.commit(first, [0, 1], acknowledged=acknowledged)
    job.store.release_shard(first, cause="SPOT")
    heir = job.claim(0, "two")
    job.admit(heir, [1, 2, 3])
    job.commit(heir, [1, 2, 3])
    with pytest.raises(AssertionError, match=r"I5: .*: 1 \(1\)"):
        job.check(finished=False)


def test_i5_the_same_holder_again(job: Job) -> None:
    lease = job.claim(0)
    job.admit(lease, [0, 0])  # tried twice by its engine, before any commit
    job.commit(lease, [0])
    assert check_history(job.folder, job.url, "job", finished=False).recomputed == 1
    job.admit(lease, [0])
    with pytest.raises(AssertionError, match="I5"):
        job.check(finished=False)


def test_a_fenced_holders_late_work_is_waste_and_no_fault(job: Job) -> None:
    zombie = job.claim(0, "zombie")
    job.store.release_shard(zombie, cause="SPOT")
    heir = job.claim(0, "heir")
    job.admit(heir, [0])
    job.commit(heir, [0])
    job.admit(zombie, [0])
    figures = check_history(job.folder, job.url, "job", finished=False)
    assert (figures.late, figures.recomputed, figures.after_ack) == (1, 1, 0)


def test_rows_in_flight_at_the_end_are_told(job: Job) -> None:
    lease = job.claim(0)
    job.admit(lease, range(3))
    job.commit(lease, [0])
    assert check_history(job.folder, job.url, "job", finished=False).unfinished == 2


def test_other_jobs_do_not_count(job: Job) -> None:
    job.whole()
    history.note(Event.ACK, "other", 0, 1, [77])
    job.check()


def test_a_line_cut_short_by_a_kill_is_no_event(job: Job) -> None:
    job.whole()
    (job.folder / "1-torn.history").write_text('{"event": "ack", "job": "job", "indexes": [77')
    job.check()
    (job.folder / "2-bad.history").write_text('{"event": "ack", "job": {"event"\n')
    with pytest.raises(AssertionError, match="cannot be read"):
        job.check()


CHILD = """
import os, signal, sys
from dray.history import Event, note
note(Event.INTENT, "job", 0, 1, [1, 2])
if os.fork() == 0:
    note(Event.INTENT, "job", 0, 2, [7])
    os._exit(0)
os.wait()
note(Event.ACK, "job", 0, 1, [1, 2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_noted_outlives_the_process(folder: Path) -> None:
    environment = {**os.environ, "DRAY_HISTORY_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", CHILD], env=environment, timeout=60)
    lines = read_history(folder, "job")
    assert [(line.event, line.session, line.indexes) for line in lines] == [
        (Event.INTENT, (0, 1), (1, 2)),
        (Event.INTENT, (0, 2), (7,)),
        (Event.ACK, (0, 1), (1, 2)),
    ] * 2
    assert len({line.pid for line in lines}) == len(list(folder.iterdir())) == 4


def test_nothing_is_written_unless_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_folder", None)
    history.note(Event.ACK, "job", 0, 1, [1])
    history.admitted("not even read", [])
    assert list(folder.iterdir()) == []


def test_each_line_is_on_the_disk_when_the_call_returns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    for number in range(3):
        history.note(Event.ACK, "job", 0, 1, [number])
        (file,) = folder.iterdir()
        assert synced[-1] == file.stat().st_size
    assert len(synced) == 3

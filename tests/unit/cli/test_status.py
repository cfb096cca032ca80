"""``dray status`` and ``dray jobs``: how far jobs are, from the store alone, once or until the end."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dray.cli import status
from dray.cli.app import run_app
from dray.cli.facts import facts_of
from dray.cli.wording import status_lines
from dray.errors import CancelledError, StoreError
from dray.job.pace import pace_of
from dray.job.spent_budget import SPENT
from dray.report.progress import Meter
from dray.store import JobLease, JobState, ReplicaRow, ReplicaState, Store, open_store
from tests.support.stores import claimed, failure, outcomes, ready_job

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


WAITS = "asks for 2 CPUs, the largest free node has 1 CPU"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


def _under_way(store: Store) -> JobLease:
    """A job of three shards: one done, one running, one waiting; one row is an error row."""
    lease = ready_job(store, "tickets", shards=3, rows=4)
    first = claimed(store, lease, 0)
    store.commit(first, [*outcomes([0, 1, 2]), failure(3)])
    store.finish_shard(first)
    claimed(store, lease, 1)
    rows = [
        ReplicaRow(name="t/1/replica-0", lane=0, state=ReplicaState.READY, slots=2, node="n1", host="node-a"),
        ReplicaRow(name="t/1/replica-1", lane=1, state=ReplicaState.READY, slots=2, node="n1", host="node-a"),
        ReplicaRow(name="t/1/replica-2", lane=2, state=ReplicaState.STARTING, slots=2, note=WAITS),
        ReplicaRow(name="t/1/replica-3", lane=3, state=ReplicaState.GONE, slots=2, node="n2", host="node-b"),
    ]
    store.put_replicas(lease, rows)
    return lease


def _keep_pace(store: Store, lease: JobLease, *, at: float) -> None:
    meter = Meter()
    meter.pulse(0.0, finished=0, failed=0, total=12, tokens=0)
    pulse = meter.pulse(8.0, finished=4, failed=1, total=12, tokens=2400)
    store.merge_job_info(lease, pace_of(pulse, at=at))


def test_an_expired_job_says_how_its_rows_are_run_again(store: Store) -> None:
    told = _next_of_expired(store, {"total": 12, "done": 3, "failed": 9, "pending": 0}, "out")
    assert "`dray export tickets --failed-requests FILE.jsonl --store out`" in told
    told = _next_of_expired(store, {"total": 12, "done": 3, "failed": 9, "pending": 0}, "my answers")
    assert "FILE.jsonl --store 'my answers'`" in told


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (
            {"total": 12, "done": 3, "failed": 1, "pending": 8},
            "`dray resume tickets --store out` writes error rows",
        ),
        ({"total": 0, "done": 0, "failed": 0, "pending": 0}, "with a longer --completion-window, or none"),
    ],
)
def test_an_expired_job_without_its_error_rows_says_how_it_gets_further(
    store: Store, counts: dict[str, int], expected: str
) -> None:
    """Its driver died before it had written them, or before it had read the input."""
    told = _next_of_expired(store, counts, "out")
    assert expected in told
    assert "--failed-requests" not in told


def _next_of_expired(store: Store, counts: dict[str, int], named: str) -> str:
    job = store.find_job("tickets") or store.get_job(_under_way(store).job_id)
    facts = facts_of(store, job) | {"state": "expired", "no_driver": None, "counts": counts}
    return status_lines(facts, now=time.time(), store=named)[-1]


def test_a_job_under_way_in_words(store: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = _under_way(store)
    _keep_pace(store, lease, at=store.now())
    assert run_app(["status", "--store", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "job       tickets  in progress"
    assert lines[1].startswith("since     20")
    assert lines[2:] == [
        "rows      3 done, 1 error, 8 left of 12 (33.3%)",
        "rate      0.5 rows/s, 300 tokens/s over the last minute; 16 s left",
        "tokens    6 prompt (3 cached), 6 completion",
        "shards    1 done, 1 running, 1 waiting",
        "replicas  node-a: replica-0 ready, replica-1 ready",
        "          no node yet: replica-2 starting",
        f"          replica-2: {WAITS}",
        f"next      `dray status tickets --watch --store {url}` follows it; "
        f"`dray cancel tickets --store {url}` stops it",
    ]


def test_the_same_as_one_object(store: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = _under_way(store)
    _keep_pace(store, lease, at=store.now())
    assert run_app(["status", "tickets", "--store", url, "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found["counts"] == {"total": 12, "done": 3, "failed": 1, "pending": 8}
    assert found["shards"] == {"done": 1, "leased": 1, "pending": 1}
    assert (found["rows_per_second"], found["tokens_per_second"], found["seconds_left"]) == (0.5, 300, 16)
    assert [one["node"] for one in found["replicas"]] == ["node-a", "node-a", None]
    assert [one["note"] for one in found["replicas"]] == [None, None, WAITS]


def test_a_rate_that_its_driver_wrote_long_ago_is_none(store: Store) -> None:
    lease = _under_way(store)
    _keep_pace(store, lease, at=store.now() - 600)
    facts = facts_of(store, store.get_job("tickets"))
    assert facts["rows_per_second"] is facts["seconds_left"] is None
    assert not [line for line in status_lines(facts, now=store.now()) if line.startswith("rate")]


def test_a_job_at_rest_says_why_and_what_to_do(store: Store) -> None:
    lease = _under_way(store)
    _keep_pace(store, lease, at=store.now())
    store.release_shard(claimed(store, lease, 2), cause="SPOT", detail="taken back")
    store.set_job_state(lease, JobState.PAUSED, reason="the disk is full")
    lines = status_lines(facts_of(store, store.get_job("tickets")), now=store.now(), store="out")
    assert lines[0] == "job       tickets  paused"
    assert "reason    the disk is full" in lines
    assert "retries   1 after SPOT" in lines
    assert lines[-1] == "next      `dray resume tickets --store out` goes on; finished rows are kept"
    assert not [line for line in lines if line.startswith(("rate", "replicas"))]
    spaced = status_lines(facts_of(store, store.get_job("tickets")), now=store.now(), store="my out")
    assert "`dray resume tickets --store 'my out'` goes on" in spaced[-1]


def test_a_spent_budget_is_raised_by_the_next_command(store: Store) -> None:
    """The same command without a higher budget pauses again at once."""
    lease = ready_job(store, "tickets", settings={"recipe": {"budget": 2.0}})
    store.merge_job_info(lease, {SPENT: 2.0})
    store.set_job_state(lease, JobState.PAUSED, reason="the budget of $2.00 is spent")
    lines = status_lines(_facts(store), now=store.now(), store="out")
    resume = "`dray resume tickets --budget DOLLARS --store out` with a higher budget goes on"
    assert lines[-1] == f"next      {resume}; finished rows are kept"


def test_a_budget_that_was_raised_since_is_not_spent(store: Store) -> None:
    lease = ready_job(store, "tickets", settings={"recipe": {"budget": 3.0}})
    store.merge_job_info(lease, {SPENT: 2.0})
    store.set_job_state(lease, JobState.PAUSED, reason="the head is gone")
    lines = status_lines(_facts(store), now=store.now(), store="out")
    assert lines[-1] == "next      `dray resume tickets --store out` goes on; finished rows are kept"


@pytest.mark.parametrize("reference", ["postgresql://me:hidden@host/db", "postgresql://h/db?password=hidden"])
def test_a_password_is_not_said_again(store: Store, reference: str) -> None:
    _under_way(store)
    facts = facts_of(store, store.get_job("tickets"))
    assert "hidden" not in "".join(status_lines(facts, now=store.now(), store=reference))


def test_a_job_without_a_driver_has_no_rate_and_no_replicas(store: Store) -> None:
    """What its driver wrote last is not so any more."""
    lease = _under_way(store)
    _keep_pace(store, lease, at=store.now())
    store.release_job(lease)
    facts = facts_of(store, store.get_job("tickets"))
    assert facts["rows_per_second"] is facts["seconds_left"] is None
    lines = status_lines(facts, now=store.now())
    assert "driver    no driver: its lease was given back" in lines
    assert not [line for line in lines if line.startswith(("rate", "replicas"))]


def test_what_a_cancel_comes_to(store: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = _under_way(store)
    follows = f"`dray status tickets --watch --store {url}` follows it"
    assert run_app(["cancel", "tickets", "--store", url]) == 0
    told = f"job tickets: its driver was asked to cancel it, and stops; {follows}\n"
    assert capsys.readouterr().err == told
    store.release_job(lease)
    assert run_app(["cancel", "tickets", "--store", url]) == 0
    assert capsys.readouterr().err == "job tickets: cancelled; finished rows are kept\n"
    failed = ready_job(store, "failed")
    store.set_job_state(failed, JobState.FAILED)
    store.release_job(failed)
    assert run_app(["cancel", "failed", "--store", url]) == 0
    only = f"goes on only with `dray resume failed --store {url}` now"
    assert capsys.readouterr().err == f"job failed is failed, and {only}\n"
    with pytest.raises(CancelledError, match="was cancelled at"):
        store.claim_job("failed", "a supervisor")
    done = ready_job(store, "other")
    store.set_job_state(done, JobState.COMPLETED)
    assert run_app(["cancel", "other", "--store", url]) == 0
    assert capsys.readouterr().err == "job other is completed: there is nothing to cancel\n"


def test_a_node_with_many_replicas_is_summed_up(store: Store) -> None:
    lease = ready_job(store)
    store.put_replicas(
        lease,
        [
            ReplicaRow(
                name=f"r-{n}", lane=n, state=ReplicaState.READY, slots=2, node="n", host=f"node-{n // 20}"
            )
            for n in range(30 * 20)
        ],
    )
    lines = status_lines(facts_of(store, store.get_job("job")), now=store.now())
    assert "replicas  node-0: 20 ready" in lines
    assert "          200 more replicas on 10 more nodes" in lines


def test_a_watch_ends_when_nothing_reads_its_lines(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `dray status --watch 2>&1 | head -1` does."""

    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    _under_way(store)
    monkeypatch.setattr(status, "_looks", lambda *_: itertools.repeat((_facts(store), ""), 2))
    monkeypatch.setattr(status, "LINE_SECONDS", -1.0)
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setattr(sys, "stdout", told := io.StringIO())
    assert run_app(["status", "tickets", "--watch", "--json", "--store", url]) == 0
    assert told.getvalue() == ""  # it did not follow the job to its end


def _facts(store: Store) -> dict[str, Any]:
    return facts_of(store, store.get_job("tickets"))


def test_the_database_counts_the_shards_of_a_job(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 jobs of 16,384 shards each took 12 s."""
    _under_way(store)
    monkeypatch.setattr(Store, "shards", lambda *_: pytest.fail("it reads them all"))
    facts = facts_of(store, store.get_job("tickets"))
    assert facts["shards"] == {"done": 1, "leased": 1, "pending": 1}


def test_a_job_that_is_deleted_meanwhile_is_left_out(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        store.release_job(ready_job(store, name))
    listed = store.list_jobs()
    store.remove_job(store.bury_job("one"))
    monkeypatch.setattr(Store, "list_jobs", lambda *_: listed)
    assert run_app(["jobs", "--store", url, "--json"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == ["two"]


def test_jobs_are_a_table(store: Store, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _under_way(store)
    ready_job(store, "other")
    assert run_app(["jobs", "--store", url]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["CREATED", "STATE", "ROWS", "DONE", "OF", "SHARE", "ERRORS", "JOB"]
    assert [row.split()[-1] for row in rows] == ["other", "tickets"]
    assert rows[1].split()[2:] == ["in", "progress", "3", "12", "33.3%", "1", "tickets"]
    assert {row.index(row.split()[-1]) for row in rows} == {head.index("JOB")}


@pytest.mark.heavy(one_of=3)
def test_a_reader_that_has_read_enough_is_no_error(store: Store, url: str) -> None:
    """As with ``dray status | head -1``."""
    _under_way(store)
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dray.cli", "status", "--store", url],
            stdout=theirs, stderr=subprocess.PIPE, cwd=ROOT, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


def _watching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(status, "LINE_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("state", "code"), [(JobState.COMPLETED, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 130)]
)
def test_watch_ends_with_the_job_and_as_it_did(
    store: Store, url: str, state: JobState, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _watching(monkeypatch)
    lease = _under_way(store)
    found: list[int] = []
    watcher = threading.Thread(target=lambda: found.append(run_app(["status", "--watch", "--store", url])))
    watcher.start()
    _until(lambda: "4 of 12 rows" in _err(capsys))
    store.set_job_state(lease, state)
    watcher.join(20)
    assert found == [code]
    assert f"job       tickets  {state}" in capsys.readouterr().out


def test_watch_goes_on_when_the_store_comes_back(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _watching(monkeypatch)
    lease = _under_way(store)
    found: list[int] = []
    watcher = threading.Thread(
        target=lambda: found.append(run_app(["status", "tickets", "--watch", "--store", url, "--json"]))
    )
    watcher.start()
    _until(lambda: "4 of 12 rows" in _err(capsys))

    def away(*_: object, **__: object) -> Any:
        raise StoreError("away for the test")

    with monkeypatch.context() as broken:
        broken.setattr(status, "facts_of", away)
        broken.setattr(status, "store_at", away)
        _until(lambda: "the store has not answered" in _err(capsys))
    store.set_job_state(lease, JobState.COMPLETED)
    watcher.join(20)
    assert found == [0]
    assert json.loads(capsys.readouterr().out)["state"] == "completed"


def test_watch_goes_on_with_a_driver_that_is_started_again(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lease that is live is believed, and one that ended is waited for a little."""
    _watching(monkeypatch)
    monkeypatch.setattr(status, "UNDRIVEN_SECONDS", 2.0)
    lease = replace(_under_way(store), ttl=0.01)
    store.renew_job(lease)
    found: list[int] = []
    watcher = threading.Thread(target=lambda: found.append(run_app(["status", "--watch", "--store", url])))
    watcher.start()
    _until(lambda: "4 of 12 rows" in _err(capsys))
    again = store.claim_job("tickets", "another driver")
    assert again.epoch > lease.epoch
    watcher.join(2.5)
    assert found == []
    store.set_job_state(again, JobState.COMPLETED)
    watcher.join(20)
    assert found == [0]


def test_watch_of_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert run_app(["status", "--watch", "--store", str(tmp_path / "none")]) == 2


def _err(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""The small pure parts: records, the public list, turns."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path

import pytest

import dray.store
from dray.requests.model import Outcome
from dray.store import Counts, JobState, ShardLease, StoredOutcome
from dray.store.database.schema import FIELD_OF
from dray.store.database.turn import Turn
from tests.support.clocks import replace_here
from tests.support.stores import FINGERPRINT

pytestmark = pytest.mark.unit


def test_every_public_name_exists() -> None:
    assert sorted(dray.store.__all__) == sorted({*dray.store.__all__})
    assert all(hasattr(dray.store, name) for name in dray.store.__all__)


def test_the_fields_of_outcomes_are_the_columns_of_results() -> None:
    """By name, in any order: a new column is a field of both, a column and a migration."""
    stored = set(StoredOutcome._fields)
    assert stored == {*Outcome._fields, "shard", "epoch", "committed_at"}
    assert stored | {"job_key"} == set(FIELD_OF.values())


def test_fingerprints_name_what_differs() -> None:
    other = type(FINGERPRINT)(input="i", model="M", sampling="s", template="T", format="1")
    assert FINGERPRINT.differences(other) == ["model", "template"]
    assert FINGERPRINT.differences(FINGERPRINT) == []


def test_leases_travel_to_workers() -> None:
    lease = ShardLease(job_id="j", key=1, number=2, epoch=3, owner="w", ttl=90.0)
    assert pickle.loads(pickle.dumps(lease)) == lease


def test_pending_is_the_rest() -> None:
    assert Counts(total=10, done=6, failed=1).pending == 3


def test_states_at_rest() -> None:
    assert {state.value for state in JobState if state.at_rest} == {
        "completed",
        "failed",
        "cancelled",
        "expired",
        "paused",
    }


def test_turns_exclude_each_other(tmp_path: Path) -> None:
    one, two = (Turn(tmp_path / "store.db", patience=10) for _ in range(2))
    order: list[str] = []

    def second() -> None:
        with two.take():
            order.append("two")

    with one.take():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("one")
    thread.join()
    assert order == ["one", "two"]
    one.remove()
    two.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_turn_that_cannot_be_had_is_skipped(tmp_path: Path) -> None:
    holder, late = Turn(tmp_path / "store.db", patience=1), Turn(tmp_path / "store.db", patience=0.05)
    with holder.take(), late.take():
        pass
    with Turn(tmp_path / "missing" / "store.db", patience=1).take():
        pass


def test_a_holder_of_the_turn_that_stands_still_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver was stopped in its turn, and its successor waited 30 s in each of its transactions."""
    holder, late = Turn(tmp_path / "store.db"), Turn(tmp_path / "store.db", patience=0.05)
    waits: list[float] = []
    sleep = time.sleep

    def noted(seconds: float) -> None:
        waits.append(seconds)
        sleep(seconds)

    replace_here(monkeypatch, time, "sleep", noted)
    with holder.take():
        with late.take():
            assert waits
        waits.clear()
        for _ in range(3):
            with late.take():
                pass
        assert not waits
    with late.take(), Turn(tmp_path / "store.db", patience=0.05).take():
        assert waits  # it has its turns again, and others wait for it

"""The watcher's own promises, with sources that do as a test says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.notices import Notice, NoticeKind, Source, SourceError, Watcher
from dray.notices.watcher import LONGEST_PAUSE, retry_pause

pytestmark = [pytest.mark.unit, pytest.mark.timeout(60)]


def notice(id_: str, **changes: object) -> Notice:
    values: dict[str, object] = {"deadline": None, "seen_at": 1.0, "id": id_} | changes
    return Notice(source="test", kind=NoticeKind.TAINT, action="test", **values)  # type: ignore[arg-type]


class Script:
    """A source that answers as written, the last line for ever."""

    name = "script"
    pause = 0.0

    def __init__(self, *answers: list[Notice] | Exception) -> None:
        self.looks = 0
        self._answers = answers

    def poll(self) -> list[Notice]:
        answer = self._answers[min(self.looks, len(self._answers) - 1)]
        self.looks += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def until(enough: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not enough():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def run(source: Source, enough: Callable[[list[str]], bool]) -> list[str]:
    told: list[str] = []
    with Watcher([source], lambda new: told.append(new.id), rng=random.Random(0)):
        until(lambda: enough(told))
    return told


def test_what_comes_again_after_it_was_withdrawn_is_news() -> None:
    source = Script([], [notice("a")], [notice("a"), notice("b")], [notice("b")], [], [notice("a")])
    assert run(source, lambda told: len(told) >= 3) == ["a", "b", "a"]


def test_a_fault_takes_nothing_back() -> None:
    source = Script([notice("a")], SourceError("away"), ValueError("a bug"), [notice("a")], [notice("b")])
    assert run(source, lambda told: "b" in told) == ["a", "b"]
    assert source.looks >= 5


def test_a_notice_is_handed_on_as_it_was_first_seen() -> None:
    source = Script([notice("a", deadline=30.0)], [notice("a", deadline=31.0, seen_at=2.0)])
    found: list[Notice] = []
    with Watcher([source], found.append):
        until(lambda: source.looks > 3)
    assert [(one.deadline, one.seen_at) for one in found] == [(30.0, 1.0)]


def test_one_id_twice_in_one_answer_is_one_notice() -> None:
    source = Script([notice("a"), notice("a")], [notice("b")])
    assert run(source, lambda told: "b" in told) == ["a", "b"]


def test_a_callback_may_stop_the_watch() -> None:
    found: list[str] = []

    def callback(new: Notice) -> None:
        found.append(new.id)
        watcher.stop()

    watcher = Watcher([Script([notice("a"), notice("b")])], callback)
    watcher.start()
    until(lambda: bool(found))
    time.sleep(0.1)
    assert found == ["a"]  # stopped: b is not handed on


def test_callbacks_run_one_at_a_time() -> None:
    running, most, ended = 0, 0, 0

    def callback(new: Notice) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        time.sleep(0.02)
        running -= 1
        ended += 1

    sources = [Script([notice(f"{name}")]) for name in range(5)]
    with Watcher(sources, callback):
        until(lambda: ended == 5)
    assert most == 1


def test_a_watcher_without_sources_does_nothing() -> None:
    with Watcher([], lambda new: pytest.fail(str(new))):
        time.sleep(0.05)


def test_a_watcher_that_never_started_can_be_stopped() -> None:
    Watcher([Script([])], print).stop()


@given(st.floats(0.01, 5), st.integers(1, 10_000), st.integers())
def test_retries_wait_longer_but_never_long(pause: float, failures: int, seed: int) -> None:
    seconds = retry_pause(pause, failures, random.Random(seed))
    assert 0.25 <= seconds <= LONGEST_PAUSE

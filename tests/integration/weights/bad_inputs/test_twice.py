"""A chunk that is asked for twice has two answers; the file keeps the first: an engine may have read it."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dray.weights.fetch import transfer
from dray.weights.fetch.schedule import FetchRequest, Schedule
from dray.weights.node.local import LocalModel
from dray.weights.source.manifest import Manifest
from tests.integration.weights.bad_inputs.support import (
    CHUNK,
    Limiter,
    Wanted,
    Web,
    Webs,
    comes_from,
    is_refused,
    sound,
)

pytestmark = pytest.mark.integration

LATE = CHUNK  # where the chunk with two answers starts
SECONDS = 20.0


class Twice:
    """Answers that hold one chunk back until it is asked for again, and the last one until both came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, damaged_first: bool) -> None:
        self.answers = 0
        self._damaged_first = damaged_first
        self._requests: Counter[int] = Counter()
        self._asked_again, self._first_taken, self._both_taken = (threading.Event() for _ in range(3))
        self._guard = threading.Lock()
        done = Schedule.done

        def counted(schedule: Schedule, ask: FetchRequest, now: float, size: int) -> bool:
            first = done(schedule, ask, now, size)
            if ask.chunk == 2:  # after config.json, and the first one of the weights
                self.answers += 1
                (self._first_taken if first else self._both_taken).set()
            return first

        monkeypatch.setattr(Schedule, "done", counted)

    def say(self, wanted: Wanted) -> None:
        """Answer a request for the weights."""
        with self._guard:
            self._requests[wanted.start] += 1
            number = self._requests[wanted.start]
        if wanted.end == len(wanted.content):
            self._both_taken.wait(SECONDS)
        if wanted.start != LATE:
            sound(wanted)
            return
        if number == 1:
            self._asked_again.wait(SECONDS)
        else:
            self._asked_again.set()
            self._first_taken.wait(SECONDS)
        damaged = self._damaged_first == (number == 1)
        wanted.say(206, bytes(len(wanted.data)) if damaged else wanted.data)


def _of_a_hub(web: Web) -> Manifest:
    """No digests of chunks, and the hub's SHA-256 of each file."""
    files = (
        replace(file, sha256=hashlib.sha256(web.files[file.name]).hexdigest()) for file in web.manifest.files
    )
    return replace(web.manifest, files=tuple(files))


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch, limited: Limiter) -> None:
    """Several, of which the least busy one would be asked for the second answer."""
    monkeypatch.setattr(transfer, "_BYTES_A_PROCESS", CHUNK)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    limited(hedge_after=0.3)


def test_a_sound_answer_does_not_hide_the_damaged_one_that_an_engine_has(
    monkeypatch: pytest.MonkeyPatch, web: Webs, cache: Path
) -> None:
    twice = Twice(monkeypatch, damaged_first=True)
    is_refused(_of_a_hub(web(twice.say)), None, cache, "SHA-256")
    assert twice.answers == 2


def test_a_damaged_answer_that_comes_second_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, web: Webs
) -> None:
    twice = Twice(monkeypatch, damaged_first=False)
    model: LocalModel = comes_from(web(twice.say))
    assert twice.answers == 2
    assert model.outcome is not None
    assert model.outcome.hedges >= 1

"""The progress artifact of a run, where Prefect's API is away for a while."""

from __future__ import annotations

import logging
import threading
from uuid import uuid4

import pytest

from tasks import progress_artifact
from tasks.progress_artifact import ProgressArtifact

pytestmark = pytest.mark.unit


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    shares: list[float] = []
    monkeypatch.setattr(progress_artifact, "get_run_logger", logging.getLogger)
    monkeypatch.setattr(progress_artifact, "WRITE_EVERY", 0.0)
    monkeypatch.setattr(progress_artifact, "_TICK", 0.01)
    monkeypatch.setattr(progress_artifact, "_LAST_WORD_SECONDS", 0.1)
    monkeypatch.setattr(progress_artifact, "create_progress_artifact", lambda **_: uuid4())
    monkeypatch.setattr(
        progress_artifact, "update_progress_artifact", lambda _, progress: shares.append(progress)
    )
    return shares


@pytest.mark.parametrize(("back", "last"), [(True, [100.0]), (False, [])])
def test_the_last_share_is_written_beside_a_call_that_still_sleeps(
    back: bool, last: list[float], written: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began while the API was away, and waits for its next try when the run ends."""
    asleep, awake = threading.Event(), threading.Event()

    def sleepy(artifact: object, progress: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            asleep.set()
            awake.wait(10)
            return
        written.append(progress)

    monkeypatch.setattr(progress_artifact, "update_progress_artifact", sleepy)
    monkeypatch.setattr(progress_artifact, "api_answers", lambda: back)
    with ProgressArtifact("job") as shown:
        shown.show(0.0)
        while shown._artifact is None:
            pass
        shown.show(50.0)
        assert asleep.wait(10)
        shown.show(100.0)
    assert written == last
    awake.set()
    shown._thread.join(10)  # it writes once more, and not into the next test's list

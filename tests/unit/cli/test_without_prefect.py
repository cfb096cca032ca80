"""A run of the command line without Prefect, where it ends by what the driver does not say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dray.cli.without_prefect import run_plain
from dray.driver import whole_job
from dray.errors import DrayError, JobPausedError
from dray.job import current_job
from dray.job.beginning.opening import open_job
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.store import JobState, open_store
from tests.support.no_cluster import NoCluster

pytestmark = pytest.mark.unit


class LostCluster(NoCluster):
    """A cluster whose head is gone."""

    def check(self) -> None:
        if current_job.latest() is not None:
            raise JobPausedError("the head of the Ray cluster is gone")


@pytest.fixture
def request_of(job_input: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRequest:
    monkeypatch.setattr(current_job, "_driven", [])
    given: dict[str, Any] = {"input": str(job_input), "model": "simulated", "output": str(tmp_path / "out")}
    return JobRequest.of(**given, job_id="job", engine={"name": "simulated"}, cluster="10.0.0.5:6379")


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Set at the end of the test: until then whatever waits for it hangs."""
    event = threading.Event()
    yield event
    event.set()


def _opens(then: Callable[[], object]) -> Callable[..., NoReturn]:
    def run(settings: JobSettings, *_: object, **__: object) -> NoReturn:
        open_job(settings)
        then()
        raise AssertionError("it was to fail")

    return run


def test_a_job_whose_driver_hangs_in_a_lost_cluster_is_put_to_rest(
    request_of: JobRequest, never: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.cluster.open_cluster", lambda _: LostCluster())
    monkeypatch.setattr(whole_job, "run_job", _opens(lambda: never.wait(60)))
    with pytest.raises(JobPausedError, match="the head"):
        run_plain(request_of)
    with open_store(str(Path(request_of.output) / "dray.db"), create=False) as store:
        job = store.get_job("job")
    assert (job.state, job.driver) == (JobState.PAUSED, None)


def test_an_error_that_is_not_drays_is_told_without_its_text(
    request_of: JobRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KeyError("confidential-words")

    monkeypatch.setattr("dray.cluster.open_cluster", lambda _: NoCluster())
    monkeypatch.setattr(whole_job, "run_job", _opens(fail))
    with pytest.raises(DrayError, match=r"the run failed: KeyError at .*test_without_prefect\.py:\d+$"):
        run_plain(request_of)
    assert "confidential-words" not in capsys.readouterr().err

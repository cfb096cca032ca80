"""``dray resume``: the settings of the start, but for the limits that a resume may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.cli import running
from dray.cli.app import run_app
from dray.job.request import JobRequest
from dray.store import Fingerprint, open_store

pytestmark = pytest.mark.unit


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[JobRequest]:
    """The requests that commands come to; the job was started with a budget, and replicas of its own."""
    request = JobRequest.of(
        "in.jsonl", "m", str(tmp_path), budget=10.0, replicas="1:2", engine={"name": "simulated"}
    )
    fingerprint = Fingerprint(input="i", model="m", sampling="s", template="t", format="1")
    with open_store(f"sqlite:///{tmp_path / 'dray.db'}") as store:
        store.create_job("job", fingerprint=fingerprint, settings={"recipe": request.recipe()})
    found: list[JobRequest] = []

    def run_job(asked: JobRequest, *, json: bool) -> int:
        found.append(asked)
        return 0

    monkeypatch.setattr(running, "run_job", run_job)
    return found


def resume(folder: Path, *options: str) -> int:
    return run_app(["resume", "job", "--store", str(folder), *options])


def test_without_limits_all_is_as_it_was(resumed: list[JobRequest], tmp_path: Path) -> None:
    assert resume(tmp_path) == 0
    [request] = resumed
    assert (request.budget, request.deadline, request.engine.replicas) == (10.0, None, "1:2")
    assert request.resume


def test_limits_take_the_place_of_those_of_the_start(resumed: list[JobRequest], tmp_path: Path) -> None:
    assert resume(tmp_path, "--budget", "40", "--deadline", "6h", "--replicas", "1:8", "--price", "1.2") == 0
    [request] = resumed
    assert request.price == 1.2
    assert (request.budget, request.deadline, request.engine.replicas) == (40.0, "6h", "1:8")
    assert request.engine.name == "simulated"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--budget", "0", "--budget 0.0: "),
        ("--deadline", "soon", "deadline: 'soon'"),
        ("--replicas", "3:1", "--replicas: the fewest (3)"),
    ],
)
def test_a_limit_that_is_none_is_refused(
    resumed: list[JobRequest],
    tmp_path: Path,
    option: str,
    value: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert resume(tmp_path, option, value) == 2
    assert told in capsys.readouterr().err
    assert resumed == []

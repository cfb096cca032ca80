"""``dray resume``: the settings of the start, but for the limits that a resume may change."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from dray.cli import running
from dray.cli.app import run_app
from dray.cli.preflight import preflight
from dray.cluster import listening
from dray.cluster.head_jobs import driver_command
from dray.errors import ConfigError, UnknownJobError
from dray.job import current_job
from dray.job.beginning.opening import open_job
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job.options.settings import JobSettings
from dray.requests.model import Outcome
from dray.store import Fingerprint, JobState, open_store
from tests.support.command import write_requests
from tests.support.publishing import answer
from tests.support.stores import ready_job

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


def test_another_cluster_takes_the_place_of_that_of_the_last_run(
    resumed: list[JobRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dray cluster submit FILE -- resume JOB` took that of the last run: local, or a file the head lacks."""
    monkeypatch.chdir(tmp_path)
    for given in ("auto", "gpus.toml"):
        assert resume(tmp_path, "--cluster", given) == 0
    assert [one.cluster for one in resumed] == ["auto", str(tmp_path / "gpus.toml")]
    words = shlex.split(driver_command(["resume", "job", "--store", str(tmp_path)]))
    assert run_app(words[3:]) == 0
    assert resumed[-1].cluster == "auto"


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--budget", "0", "--budget 0.0: "),
        ("--deadline", "soon", "deadline: 'soon'"),
        ("--replicas", "3:1", "--replicas: MIN (3)"),
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


@pytest.mark.parametrize("by", ["folder", "url"])
def test_a_job_whose_folder_was_moved_goes_on_there(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows were paid for again, in a new store at the old place."""
    out, kept = tmp_path / "out", tmp_path / "kept"
    inputs = write_requests(tmp_path / "in.jsonl", 9)
    request = JobRequest.of(str(inputs), "m", str(out), job_id="job", engine={"name": "simulated"})
    job = open_job(job_settings(request, NoBlocks()))
    answer(job)
    with open_store(job.settings.store_url) as store:
        store.release_job(job.lease)
    out.rename(kept)
    opened = []

    def run_job(asked: JobRequest, *, json: bool) -> int:
        opened.append(open_job(job_settings(asked, NoBlocks()), resume=asked.resume))
        return 0

    monkeypatch.setattr(running, "run_job", run_job)
    reference = str(kept) if by == "folder" else f"sqlite:///{kept / 'dray.db'}"
    assert run_app(["resume", "job", "--store", reference]) == 0
    [again] = opened
    assert (again.skipped, again.settings.output) == (9, str(kept))
    assert not out.exists()


@pytest.fixture
def without_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRequest]:
    """A request for a job whose cluster is gone, to be gone on with."""
    monkeypatch.setattr(listening, "_START_SECONDS", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield JobRequest.of(
            str(write_requests(tmp_path / "in.jsonl", 1)),
            "m",
            str(tmp_path / "out"),
            cluster="127.0.0.1:{1}".format(*unused.getsockname()),
            engine={"name": "simulated"},
            job_id="job",
            store=f"sqlite:///{tmp_path / 'dray.db'}",
        ).model_copy(update={"resume": True})


def _silent() -> AbstractContextManager[object]:
    return pytest.raises(ConfigError, match="nothing listens there")


@pytest.mark.parametrize(
    ("state", "left", "expired"),
    [
        (JobState.COMPLETED, 0, False),
        (JobState.FINALIZING, 0, False),  # its driver was killed while it wrote the files
        (JobState.PAUSED, 0, False),  # the disk was full then
        (JobState.EXPIRED, 2, False),
        (JobState.PAUSED, 2, True),
        (JobState.PAUSED, 2, False),
    ],
)
def test_a_job_without_rows_for_an_engine_needs_no_cluster(
    state: JobState, left: int, expired: bool, without_cluster: JobRequest
) -> None:
    """Its answers are in the store, and its cluster is often gone by then."""
    assert without_cluster.store is not None
    with open_store(without_cluster.store) as store:
        lease = ready_job(store)
        for number in range(left, 2):
            shard = store.claim_shard(lease, number, owner="test")
            assert shard is not None
            store.commit(shard, [Outcome(n, None, b"{}") for n in range(4 * number, 4 * number + 4)])
            store.finish_shard(shard)
        if expired:
            store.set_expiry(lease, -1.0)
        store.set_job_state(lease, state)
    goes_on = left and not expired and state is JobState.PAUSED
    with _silent() if goes_on else nullcontext():
        preflight(without_cluster)
    with _silent():
        preflight(without_cluster.model_copy(update={"job_id": "another"}))
    with _silent():
        preflight(without_cluster.model_copy(update={"resume": False}))


def test_a_store_is_made_by_a_run_that_would_go_on(
    without_cluster: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dray run --resume`, as a supervisor says it each time, begins the job at first."""
    assert without_cluster.store is not None
    with _silent():
        preflight(without_cluster)
    monkeypatch.setattr("dray.cli.preflight.refuse_silent", lambda address: None)
    monkeypatch.setattr("dray.cli.preflight.nodes_joined", lambda address: ())
    preflight(without_cluster)
    assert Path(without_cluster.store.removeprefix("sqlite:///")).exists()


def test_a_job_that_is_to_go_on_is_not_begun_anew(make_settings: Callable[..., JobSettings]) -> None:
    settings = make_settings(job_id="job")
    with current_job.begun_before("job"), pytest.raises(UnknownJobError, match="nothing to go on with"):
        open_job(settings, resume=True)
    assert not open_job(settings, resume=True).resumed  # as `dray run --resume` does

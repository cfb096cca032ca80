"""Files of a job belong to its latest driver, and a folder to its job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.cli.jobs import export_job
from dray.errors import ConfigError, FencedError, JobFailedError
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.requests.sources import source_of
from dray.storage.folders import Owner, owner_of
from dray.store import JobState, Store, open_store
from dray.triggers import Point
from tests.support.command import write_requests
from tests.support.publishing import STEPS, answer, assert_published, finish, race, stoppable

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]
FILES = ("errors.jsonl", "output.jsonl", "report.html")


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("old_stop", STEPS, ids=str)
def test_a_driver_that_stood_still_replaces_no_file_of_its_successor(
    make_settings: MakeSettings, old_stop: tuple[Point, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the old one stands still, and wherever its successor is when it goes on."""
    for number, new_stop in enumerate((*STEPS, None)):
        folder = tmp_path / str(number)
        settings = make_settings(
            output=str(folder), store_url=f"sqlite:///{folder / 'dray.db'}", job_id="job", shard_rows=25
        )
        with stoppable(monkeypatch):
            ended = race(settings, old_stop, new_stop)
        assert isinstance(ended.old, FencedError), (new_stop, ended)
        assert ended.new is None, (new_stop, ended)
        assert_published(settings, "job", _reader(folder))
        assert list(folder.rglob("*.part")) == []


def _reader(folder: Path) -> Callable[[str], bytes]:
    return lambda name: (folder / name).read_bytes()


def test_a_rename_that_comes_too_late_fails(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stopped process does it: between its last look and the rename there is nothing of dray's."""
    settings = make_settings(job_id="job", shard_rows=25)
    at, go = threading.Event(), threading.Event()
    real = Path.replace

    def replace(path: Path, target: Any) -> Any:
        if threading.current_thread().name == "old" and Path(target).name in FILES and not go.is_set():
            at.set()
            go.wait(60)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    ended: list[object] = []

    def old() -> None:
        try:
            ended.append(finalise_job(first, Timeline(), state=JobState.EXPIRED))
        except FencedError as error:
            ended.append(error)

    with stoppable(monkeypatch):
        first = open_job(settings)
        answer(first, 1)
        thread = threading.Thread(target=old, name="old")
        thread.start()
        assert at.wait(60)
        second = open_job(settings)
        answer(second)
        finalise_job(second, Timeline())
    go.set()
    thread.join(60)
    assert isinstance(ended[0], FencedError)
    assert_published(settings, "job", lambda name: (Path(settings.output) / name).read_bytes())


def test_a_cancelled_job_has_no_files(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(job_id="job", shard_rows=25)
    job = open_job(settings)
    answer(job, 1)
    result = finalise_job(job, Timeline(), state=JobState.CANCELLED)
    assert (result.output, result.errors, result.report) == (None, None, None)
    assert [name for name in FILES if (Path(settings.output) / name).exists()] == []
    export_job("job", str(tmp_path / "partial"), "jsonl", settings.output, json=False)
    assert (tmp_path / "partial" / "output.jsonl").read_bytes().count(b"\n") == 25


# ---- whose a folder is ----


def test_an_export_into_the_folder_of_its_job_is_refused(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings(job_id="job", shard_rows=25)
    job = open_job(settings)
    answer(job, 1)
    with pytest.raises(ConfigError, match=r"the folder belongs to job job.*--output.*--overwrite"):
        export_job("job", settings.output, "jsonl", settings.output, json=False)
    assert not (Path(settings.output) / "output.jsonl").exists()
    for rows in (25, 50):  # an export may be made again, as the job goes on
        export_job("job", str(tmp_path / "partial"), "jsonl", settings.output, json=False)
        assert (tmp_path / "partial" / "output.jsonl").read_bytes().count(b"\n") == rows
        answer(job)
    assert list((tmp_path / "partial").rglob("*.part")) == []


def test_an_export_that_was_given_a_jobs_folder_keeps_it(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export begun while the job runs ends after it: the shorter file does not replace the whole one."""
    settings = make_settings(job_id="job", shard_rows=25)
    job = open_job(settings)
    answer(job, 1)
    seen, go = threading.Event(), threading.Event()
    real = Store.outcomes

    def outcomes(store: Store, *given: Any, **more: Any) -> Any:
        yield from real(store, *given, **more)
        if threading.current_thread().name == "export":
            seen.set()
            go.wait(60)

    monkeypatch.setattr(Store, "outcomes", outcomes)
    ended: list[object] = []

    def export() -> None:
        ended.append(export_job("job", settings.output, "jsonl", settings.output, overwrite=True, json=False))

    thread = threading.Thread(target=export, name="export")
    thread.start()
    assert seen.wait(60)
    answer(job)
    with pytest.raises(JobFailedError, match=r"belongs to an export of job job by now.*dray export job"):
        finalise_job(job, Timeline())
    go.set()
    thread.join(60)
    assert ended == [0]
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    again = open_job(make_settings(job_id="job", shard_rows=25, overwrite=True))
    finalise_job(again, Timeline())
    assert_published(settings, "job", lambda name: (Path(settings.output) / name).read_bytes())


def _other(make_settings: MakeSettings, tmp_path: Path, **changes: Any) -> JobSettings:
    requests = write_requests(tmp_path / "other.jsonl", 7)
    return make_settings(source=source_of([str(requests)]), job_id="other", **changes)


@pytest.mark.parametrize("store", ["the same", "another"])
def test_a_folder_belongs_to_one_job(make_settings: MakeSettings, tmp_path: Path, store: str) -> None:
    settings = make_settings(job_id="job")
    finish(settings)
    before = (tmp_path / "out" / "output.jsonl").read_bytes()
    where = {} if store == "the same" else {"store_url": f"sqlite:///{tmp_path / 'other.db'}"}
    other = _other(make_settings, tmp_path, **where)
    with pytest.raises(ConfigError, match=r"out: the folder belongs to job job\b.*--overwrite") as refused:
        open_job(other)
    changed = "this command is another job: its input changed. `dray resume job --store "
    assert (changed in str(refused.value)) == (store == "the same")
    assert refused.value.exit_code == 2
    with open_store(other.store_url) as opened:
        assert opened.find_job("other") is None  # nothing had begun
    assert (tmp_path / "out" / "output.jsonl").read_bytes() == before
    finish(settings)  # the same command again

    finish(_other(make_settings, tmp_path, overwrite=True, **where))
    assert (tmp_path / "out" / "output.jsonl").read_bytes().count(b"\n") == 7
    with pytest.raises(ConfigError, match="belongs to job other"):
        open_job(settings)


def test_a_job_of_the_same_name_in_another_store_is_another_job(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """As a store that was restored from before the job began: its name alone would say nothing."""
    finish(make_settings(job_id="job"))
    fresh = make_settings(job_id="job", store_url=f"sqlite:///{tmp_path / 'other.db'}")
    told = r"belongs to job job of another store .*--store.* before it was restored .*--output.*--overwrite"
    with pytest.raises(ConfigError, match=told):
        open_job(fresh)
    open_job(make_settings(job_id="job", store_url=fresh.store_url, output=str(tmp_path / "elsewhere")))
    with pytest.raises(ConfigError, match=told):  # now that store has one of this name, too
        open_job(fresh)
    with pytest.raises(ConfigError, match=told):
        export_job("job", str(tmp_path / "out"), "jsonl", str(tmp_path / "other.db"), json=False)


def test_a_job_whose_folder_was_taken_away_publishes_nothing(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    job = open_job(make_settings(job_id="job"))
    answer(job)
    finish(_other(make_settings, tmp_path, overwrite=True))
    with pytest.raises(JobFailedError, match="belongs to job other by now"):
        finalise_job(job, Timeline())
    assert (tmp_path / "out" / "output.jsonl").read_bytes().count(b"\n") == 7
    assert list((tmp_path / "out").rglob("*.part")) == []


@pytest.mark.parametrize("name", ["output.jsonl", "errors.jsonl", "report.html"])
def test_files_that_dray_has_not_written_are_not_replaced(
    make_settings: MakeSettings, tmp_path: Path, name: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"holds {name}, which this job has not written"):
        open_job(make_settings(job_id="job"))
    assert (tmp_path / "out" / name).read_text() == "mine"
    finish(make_settings(job_id="job", overwrite=True))
    assert (tmp_path / "out" / name).read_text() != "mine"


def test_a_job_of_an_earlier_version_goes_on_in_its_folder(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """It has no identity, and its folder no marker."""
    settings = make_settings(job_id="job")
    finish(settings)
    (tmp_path / "out" / ".dray" / "owner.json").unlink()
    with open_store(settings.store_url) as store:
        lease = store.claim_job("job", "old version")
        store.merge_job_info(lease, {"identity": ""})
        store.release_job(lease)
    with pytest.raises(ConfigError, match=r"holds output\.jsonl and errors\.jsonl and report\.html"):
        open_job(_other(make_settings, tmp_path))
    finish(settings)
    found = owner_of(settings.output)
    assert found is not None
    assert found.job_id == "job"


def test_two_jobs_that_start_at_once_do_not_share_a_folder(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    """Both see an empty folder: the marker itself decides."""
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    made = [
        make_settings(job_id="job", store_url=store),
        _other(make_settings, tmp_path, store_url=store),
    ]
    ended: list[object] = []
    barrier = threading.Barrier(2)

    def start(settings: JobSettings) -> None:
        barrier.wait(60)
        try:
            job = open_job(settings)
            ingest_job(job, replicas=1)
            ended.append(job.job_id)
        except ConfigError as error:
            ended.append(error)

    threads = [threading.Thread(target=start, args=(settings,)) for settings in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    won = [end for end in ended if isinstance(end, str)]
    assert len(won) == 1, ended
    found = owner_of(str(tmp_path / "out"))
    assert isinstance(found, Owner)
    assert found.job_id == won[0]


def test_a_marker_that_cannot_be_read_is_named(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "out" / ".dray").mkdir(parents=True)
    (tmp_path / "out" / ".dray" / "owner.json").write_text("{")
    with pytest.raises(ConfigError, match=r"owner\.json: cannot be read \(JSONDecodeError\).*--output"):
        open_job(make_settings())

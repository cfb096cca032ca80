"""A job's files in parts: they are its latest driver's, and no file of another layout stays beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from dray.cli.jobs import export_job
from dray.driver.whole_job import run_job
from dray.errors import ConfigError, FencedError
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.report import ReportData
from dray.shard.backoff import NO_WAIT_VARIABLE
from dray.storage import retiring
from dray.store import JobState, open_store
from dray.triggers import Point
from tests.support.lanes import parts_on
from tests.support.publishing import STEPS, answer, assert_published, finish, race, stoppable
from tests.support.thread_fleet import ThreadFleet

pytestmark = pytest.mark.unit

MakeSettings = Callable[..., JobSettings]
SMALL = JobRequest(input=[], model="", output="", part_bytes=1024)
"""Seven answers of the test jobs come to a part: eight parts of 50 rows, four of 25."""
WHOLE = JobRequest(input=[], model="", output="")
MANIFEST = "output.jsonl.manifest.json"


def names_in(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir() if path.is_file())


def reader(folder: Path) -> Callable[[str], bytes]:
    return lambda name: (folder / name).read_bytes()


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("before", "after"), [(WHOLE, SMALL), (SMALL, WHOLE), (SMALL, SMALL)])
@pytest.mark.parametrize("old_stop", [*STEPS, (Point.FINALISE_RENAMED, 7)], ids=str)
def test_a_driver_that_stood_still_changes_nothing_of_its_successor(
    make_settings: MakeSettings,
    old_stop: tuple[Point, int],
    before: JobRequest,
    after: JobRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it stands still while it publishes, and whatever the two layouts are."""
    if before is WHOLE and old_stop[1] > 3:
        return  # it has three files
    for number, new_stop in enumerate(((Point.FINALISE_RECORDED, 1), (Point.FINALISE_RENAMED, 3), None)):
        folder = tmp_path / str(number)
        where: dict[str, Any] = {"output": str(folder), "store_url": f"sqlite:///{folder}/dray.db"}
        old = make_settings(job_id="job", shard_rows=25, request=before, **where)
        new = make_settings(job_id="job", shard_rows=25, request=after, **where)
        with stoppable(monkeypatch):
            ended = race(old, old_stop, new_stop, successor=new)
        assert isinstance(ended.old, FencedError), (new_stop, ended)
        assert ended.new is None, (new_stop, ended)
        assert_published(new, "job", reader(folder))
        assert [path for path in folder.rglob("*") if path.suffix == ".part" or "retired" in path.name] == []


@pytest.mark.parametrize(("before", "after"), [(WHOLE, SMALL), (SMALL, WHOLE)])
def test_a_removal_that_comes_too_late_fails(
    make_settings: MakeSettings, before: JobRequest, after: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stopped process does it: between its last look and the removal there is nothing of dray's."""
    settings = make_settings(job_id="job", shard_rows=25, request=after)
    finish(settings)
    at, go = threading.Event(), threading.Event()
    real = Path.rename

    def rename(path: Path, target: Any) -> Any:
        if threading.current_thread().name == "old" and not go.is_set():
            at.set()
            assert go.wait(60)
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    ended: list[object] = []

    def old() -> None:
        try:
            ended.append(finalise_job(first, Timeline()))
        except FencedError as error:
            ended.append(error)

    with stoppable(monkeypatch):
        first = open_job(make_settings(job_id="job", shard_rows=25, request=before))
        thread = threading.Thread(target=old, name="old")
        thread.start()
        assert at.wait(60)
        second = open_job(settings)
        finalise_job(second, Timeline())
    go.set()
    thread.join(60)
    assert isinstance(ended[0], FencedError)
    assert_published(settings, "job", lambda name: (Path(settings.output) / name).read_bytes())


def test_a_driver_that_was_killed_amid_a_removal_is_followed_by_one_that_ends_it(
    make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(job_id="job", shard_rows=25, request=WHOLE)
    finish(make_settings(job_id="job", shard_rows=25, request=SMALL))
    moved: list[str] = []

    class KilledError(BaseException):
        """Stands for SIGKILL: nothing catches it."""

    def move(_: object, uri: str, aside: Path) -> None:
        if len(moved) == 3:
            raise KilledError
        moved.append(Path(uri).name)
        Path(uri).rename(aside / Path(uri).name)

    job = open_job(settings)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(retiring.Retiring, "_move", move)
        patch.setattr(retiring.Retiring, "close", lambda _: None)
        finalise_job(job, Timeline())
    assert moved == ["output-00007.jsonl", "output-00006.jsonl", "output-00005.jsonl"]  # from the last on
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    finish(settings)
    assert_published(settings, "job", lambda name: (Path(settings.output) / name).read_bytes())
    assert names_in(settings.output) == ["dray.db", "errors.jsonl", "output.jsonl", "report.html"]
    assert list(Path(settings.output).rglob("retired-*")) == []


def test_the_same_job_comes_to_the_same_parts(make_settings: MakeSettings) -> None:
    settings = make_settings(job_id="job", shard_rows=25, request=SMALL)
    finish(settings)
    before = {name: (Path(settings.output) / name).read_bytes() for name in names_in(settings.output)}
    for name in before:
        if name.startswith("output"):
            (Path(settings.output) / name).unlink()
    finish(settings)
    after = {name: (Path(settings.output) / name).read_bytes() for name in names_in(settings.output)}
    assert {name for name in after if after[name] != before.get(name)} <= {"dray.db"}


@pytest.mark.parametrize("name", ["output-00000.jsonl", MANIFEST, "errors-00000.jsonl"])
def test_parts_that_dray_has_not_written_are_not_replaced(
    make_settings: MakeSettings, tmp_path: Path, name: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(ConfigError, match=rf"holds {name}, which this job has not written"):
        open_job(make_settings(job_id="job"))
    finish(make_settings(job_id="job", overwrite=True))
    assert names_in(tmp_path / "out") == ["dray.db", "errors.jsonl", "output.jsonl", "report.html"]


@pytest.mark.parametrize("stopped", [False, True])
def test_files_of_another_format_leave_a_folder_that_changes_hands(
    make_settings: MakeSettings, tmp_path: Path, stopped: bool
) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    finish(make_settings(job_id="theirs", shard_rows=25, request=SMALL, store_url=store))
    place = tmp_path / "out"
    assert {"output-00000.jsonl", MANIFEST} < set(names_in(place))
    mine = make_settings(job_id="mine", overwrite=True, format="parquet", store_url=store)
    if stopped:  # another run of the job finishes it
        with open_store(store) as opened:
            opened.release_job(open_job(mine).lease)
        assert "output-00000.jsonl" in names_in(place)
        mine = replace(mine, overwrite=False)
    finish(mine)
    assert names_in(place) == ["errors.parquet", "output.parquet", "report.html"]
    finish(replace(mine, format="jsonl"))
    assert "output.parquet" in names_in(place), "the job's own files of another format stay"


def test_files_of_another_format_are_others_too(make_settings: MakeSettings, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "output.parquet").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds output\.parquet, which this job has not written"):
        open_job(make_settings(job_id="job"))
    finish(make_settings(job_id="job", overwrite=True))
    assert names_in(tmp_path / "out") == ["dray.db", "errors.jsonl", "output.jsonl", "report.html"]


def test_an_export_that_takes_a_folder_takes_it_whole(make_settings: MakeSettings, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    finish(make_settings(job_id="job", shard_rows=25, store_url=store))
    place = tmp_path / "partial"
    place.mkdir()
    (place / "output.parquet").write_text("theirs")
    with pytest.raises(ConfigError, match=r"output\.parquet"):
        export_job("job", str(place), "jsonl", store, json=False)
    export_job("job", str(place), "jsonl", store, overwrite=True, json=False)
    assert names_in(place) == ["errors.jsonl", "output.jsonl"]
    export_job("job", str(place), "parquet", store, overwrite=True, json=False)
    assert names_in(place) == ["errors.jsonl", "errors.parquet", "output.jsonl", "output.parquet"]


def test_an_export_goes_from_one_file_to_several_and_back(
    make_settings: MakeSettings, tmp_path: Path
) -> None:
    settings = make_settings(job_id="job", shard_rows=25)
    job = open_job(settings)
    answer(job, 1)
    place = tmp_path / "partial"
    for part_bytes, parts in ((1 << 20, 0), (1024, 4), (2048, 2), (1 << 20, 0)):
        export_job("job", str(place), "jsonl", settings.output, part_bytes=part_bytes, json=False)
        several = [*(f"output-{number:05d}.jsonl" for number in range(parts)), MANIFEST]
        assert names_in(place) == ["errors.jsonl", *(several if parts else ["output.jsonl"])]
    assert list(place.rglob("retired-*")) == []


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_whole_job_with_small_parts(
    make_settings: MakeSettings, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its input to its last file, on the simulated engine."""
    monkeypatch.setenv(NO_WAIT_VARIABLE, "1")
    settings = make_settings(shard_rows=10, replicas=2, job_id="job", format=form, request=SMALL)
    fleet = ThreadFleet(["node-0", "node-1"])
    result = run_job(settings, parts_on(fleet))
    assert (result.state, result.counts["done"]) == (JobState.COMPLETED, 50)
    assert result.output == f"{settings.output}/output-*.{form}"
    assert result.errors == f"{settings.output}/errors.{form}"
    listed = orjson.loads((Path(settings.output) / f"output.{form}.manifest.json").read_bytes())
    assert listed["rows"] == 50
    assert len(listed["parts"]) > 3
    with open_store(settings.store_url, create=False) as store:
        told = ReportData.from_json(store.get_job("job").summary["report"]).files
    assert [file.name for file in told] == [
        f"output-*.{form}, {len(listed['parts'])} files",
        f"errors.{form}",
    ]
    assert (told[0].rows, told[0].size) == (50, listed["bytes"])

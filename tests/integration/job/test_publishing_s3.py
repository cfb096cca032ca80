"""Files of a job in an object store: the emulator's S3, which holds to conditions as the real one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from botocore.exceptions import ClientError

from dray.cli.app import run_app
from dray.errors import ConfigError, FencedError, JobFailedError, JobPausedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job, finish_deletions
from dray.job.ending import publishing
from dray.job.ending.finalising import finalise_job
from dray.job.ending.publishing import job_drafts
from dray.job.ending.timeline import Timeline
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.report import ReportData
from dray.requests.row_shape import RowShape
from dray.requests.sources import RowDefaults, source_of
from dray.storage import drafts, retiring, s3_uploads
from dray.storage.draft import DraftGoneError, Stage
from dray.storage.drafts import Drafts
from dray.storage.objects import forget_credentials, s3_client
from dray.storage.s3_uploads import part_bytes
from dray.store import JobState, open_store
from dray.store.lasting_info import uploads_of
from dray.triggers import TRIGGER_VARIABLE, Point, reach
from tests.support.clocks import replace_here
from tests.support.command import ROOT, write_requests
from tests.support.publishing import STEPS, Driver, answer, assert_published, finish, race, stoppable
from tests.support.s3_emulator import EmulatorProcess
from tests.support.s3_writes import uploads

pytestmark = pytest.mark.integration

MakeSettings = Callable[..., JobSettings]


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatorProcess]:
    root = tmp_path_factory.mktemp("s3")
    (root / "bucket").mkdir()
    process = EmulatorProcess(root)
    yield process
    process.stop()


@pytest.fixture(autouse=True)
def behaves(emulator: EmulatorProcess) -> Iterator[None]:
    emulator.behave()
    yield
    assert uploads(emulator.root) == [], "an upload is left behind"


@pytest.fixture
def make_settings(emulator: EmulatorProcess, tmp_path: Path) -> MakeSettings:
    def make(name: str = "out", **changes: Any) -> JobSettings:
        requests = tmp_path / "in.jsonl"
        if not requests.exists():
            write_requests(requests, 50)
        values: dict[str, Any] = {
            "source": source_of([str(requests)]),
            "defaults": RowDefaults(),
            "model": "simulated",
            "engine": "simulated",
            "job_id": "job",
            "shard_rows": 25,
            "output": f"s3://bucket/{tmp_path.name}/{name}",
            "store_url": f"sqlite:///{tmp_path / f'{name}.db'}",
            "objects": emulator.options,
        }
        return JobSettings(**{**values, **changes})

    return make


def _reader(emulator: EmulatorProcess, settings: JobSettings) -> Callable[[str], bytes]:
    folder = emulator.root / settings.output.removeprefix("s3://")
    return lambda name: (folder / name).read_bytes()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("way", "old_stops", "new_stop"),
    [
        ("conditions", STEPS, STEPS[2]),
        ("conditions", STEPS[1:], None),
        ("no conditions", STEPS[2:3], None),  # 501 is tried again for 6 s
        ("copies", STEPS, STEPS[2]),
        ("copies", STEPS[2:], None),
    ],
    ids=str,
)
def test_a_driver_that_stood_still_replaces_no_object_of_its_successor(
    make_settings: MakeSettings,
    emulator: EmulatorProcess,
    way: str,
    old_stops: tuple[tuple[Point, int], ...],
    new_stop: tuple[Point, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the store knows no conditions: the successor has aborted the uploads."""
    emulator.behave(no_conditions=way == "no conditions")
    if way == "copies":
        monkeypatch.setattr(drafts, "is_s3", lambda _uri: False)  # as on stores that are not S3
    for number, old_stop in enumerate(old_stops):
        settings = make_settings(f"out-{number}")
        with stoppable(monkeypatch):
            ended = race(settings, old_stop, new_stop)
        assert isinstance(ended.old, FencedError), (old_stop, ended)
        assert ended.new is None, (old_stop, ended)
        assert_published(settings, "job", _reader(emulator, settings))
        folder = emulator.root / settings.output.removeprefix("s3://")
        assert list(folder.rglob("*.part")) == []


def test_a_condition_alone_keeps_an_older_file_out(
    emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store's job, whose uploads nobody here can abort."""
    where: dict[str, Any] = {"directory": f"s3://bucket/{tmp_path.name}", "options": emulator.options}
    for before in (False, True):  # If-None-Match: * at first, then If-Match
        with Drafts(**where) as slow, Drafts(**where) as quick:
            slow.open("output.jsonl").write(b"slow")
            quick.open("output.jsonl").write(b"quick %d" % before)
            quick.publish()
            with pytest.raises(DraftGoneError, match=r"output\.jsonl: another run writes this file too"):
                slow.publish()
        assert (
            emulator.root / "bucket" / tmp_path.name / "output.jsonl"
        ).read_bytes() == b"quick %d" % before


def test_conflicts_that_pass_are_tried_again(
    emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.behave(conflict_share=0.5)
    monkeypatch.setattr(s3_uploads, "_CONFLICTS", 60)
    replace_here(monkeypatch, time, "sleep", lambda _seconds: None)
    for number in range(5):
        with Drafts(f"s3://bucket/{tmp_path.name}", options=emulator.options) as found:
            found.open("output.jsonl").write(b"%d" % number)
            found.publish()
        assert (emulator.root / "bucket" / tmp_path.name / "output.jsonl").read_bytes() == b"%d" % number


def test_a_completion_whose_answer_was_lost_is_done(
    emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Drafts(f"s3://bucket/{tmp_path.name}", options=emulator.options) as found:
        draft: Any = found.open("output.jsonl")
        draft.write(b"whole")
        real = draft._try
        draft._try = lambda arguments: (real(arguments), real(arguments))[1]  # as a client tries again
        found.publish()
    assert (emulator.root / "bucket" / tmp_path.name / "output.jsonl").read_bytes() == b"whole"


@pytest.mark.parametrize("most", [0, 45_000 << 20])
def test_big_files_go_up_as_they_are_written(
    emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """In parts of one size, as R2 asks for; nothing lies in the folder for temporary files."""
    emulator.behave(equal_parts=True)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(s3_uploads, "LEAST_PART_BYTES", 5 << 20)
    monkeypatch.setattr(s3_uploads, "_PLANNED_PARTS", 6000)  # of 45,000 MiB each has 8
    block = os.urandom(1 << 20)
    with Drafts(f"s3://bucket/{tmp_path.name}", options=emulator.options) as found:
        draft = found.open("output.jsonl", most=most)
        for _ in range(42):
            draft.write(block)
        assert list(temporary.iterdir()) == []
        found.publish()
    place = emulator.root / "bucket" / tmp_path.name / "output.jsonl"
    assert place.read_bytes() == block * 42
    about = orjson.loads((emulator.root / ".about" / "bucket" / tmp_path.name / "output.jsonl").read_bytes())
    assert about["etag"].endswith('-6"' if most else '-9"')


def test_a_store_that_wants_equal_parts_refuses_others(emulator: EmulatorProcess) -> None:
    """What the emulator takes R2 for; and a last part may be smaller, but not larger."""
    emulator.behave(equal_parts=True)
    client: Any = s3_client(emulator.options)
    which = {"Bucket": "bucket", "Key": "unequal"}
    for sizes, taken in (((5, 5, 3), True), ((5, 6, 3), False), ((5, 5, 6), False), ((7,), True)):
        upload = which | {"UploadId": _begin(emulator, "s3://bucket/unequal")}
        parts = []
        for number, size in enumerate(sizes, 1):
            sent = client.upload_part(PartNumber=number, Body=bytes(size << 20), **upload)
            parts.append({"PartNumber": number, "ETag": sent["ETag"]})
        done = upload | {"MultipartUpload": {"Parts": parts}}
        if taken:
            client.complete_multipart_upload(**done)
            continue
        with pytest.raises(ClientError, match="InvalidPart"):
            client.complete_multipart_upload(**done)
        client.abort_multipart_upload(**upload)


@pytest.mark.parametrize("most", [0, 1, 64 << 30, 1 << 40, 5 << 40])
def test_parts_hold_files_of_their_size_and_some_more(most: int) -> None:
    assert part_bytes(most) * 10_000 > most * 1.1
    assert part_bytes(most) % (1 << 20) == 0
    assert part_bytes(most) == 16 << 20 or most > 140 << 30


def test_no_part_grows_with_a_limit_that_no_object_reaches() -> None:
    assert part_bytes(1 << 60) == part_bytes(5 << 40) < 600 << 20


def test_an_upload_is_known_before_its_first_byte(emulator: EmulatorProcess, tmp_path: Path) -> None:
    told: list[str] = []
    stage = Stage(folder="unused", tag="1", note=lambda uri, _upload: told.append(uri))
    where = f"s3://bucket/{tmp_path.name}"
    with Drafts(where, stage=stage, options=emulator.options) as found:
        found.open("output.jsonl")
        assert told == [f"{where}/output.jsonl"]


def test_a_folder_of_objects_belongs_to_one_job(
    make_settings: MakeSettings, emulator: EmulatorProcess, tmp_path: Path
) -> None:
    settings = make_settings()
    job = open_job(settings)
    answer(job)
    other = make_settings(job_id="other", store_url=f"sqlite:///{tmp_path / 'other.db'}")
    with pytest.raises(ConfigError, match=r"belongs to job job; .*--overwrite"):
        open_job(other)
    taken = open_job(make_settings(job_id="other", store_url=other.store_url, overwrite=True))
    answer(taken)
    with pytest.raises(JobFailedError, match="belongs to job other by now"):
        finalise_job(job, Timeline())
    finalise_job(taken, Timeline())
    assert_published(other, "other", _reader(emulator, other))


def test_a_driver_of_a_deleted_job_leaves_the_uploads_of_a_newer_one_of_its_name_alone(
    make_settings: MakeSettings, emulator: EmulatorProcess
) -> None:
    """Both are at the same epoch."""
    settings = make_settings()
    job = open_job(settings)
    answer(job)
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)  # stands for the 60 s of a lease
        store.remove_job(store.bury_job("job"))
        newer = open_job(make_settings(overwrite=True))
        assert newer.lease.epoch == job.lease.epoch
        answer(newer)
        with job_drafts(store, newer) as found:
            found.open("output.jsonl").write(b"whole")
            with pytest.raises(FencedError), job_drafts(store, job):
                pass
            found.publish()
    assert _reader(emulator, settings)("output.jsonl") == b"whole"


def _begin(emulator: EmulatorProcess, uri: str) -> str:
    """An upload as a writer leaves it that is killed before anybody knows of it; its id."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return s3_client(emulator.options).create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]


def _left(emulator: EmulatorProcess) -> list[str]:
    """The names of the uploads that are not over."""
    return sorted(orjson.loads(about.read_bytes())["name"] for about in uploads(emulator.root))


def _reach_by_environment(emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line reaches object stores."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    forget_credentials()


def test_the_next_driver_ends_uploads_that_the_store_never_knew(
    make_settings: MakeSettings, emulator: EmulatorProcess
) -> None:
    """Those under the names of its files alone, and what killed ones left of their requests."""
    settings = make_settings()
    job = open_job(settings)
    ours = ["output.jsonl", "errors.jsonl", "report.html"]
    for name in ours:
        _begin(emulator, f"{settings.output}/{name}")
    _begin(emulator, job.spool(1))
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    others = {f"{settings.output}/{name}" for name in ("output.jsonl.gz", "deeper/output.jsonl", "mine.txt")}
    kept = {uri: _begin(emulator, uri) for uri in others}
    job = open_job(settings)
    answer(job)
    finalise_job(job, Timeline())
    assert_published(settings, "job", _reader(emulator, settings))
    assert _left(emulator) == sorted(uri.removeprefix("s3://") for uri in others)
    for uri, upload in kept.items():
        s3_uploads.abort(uri, upload, emulator.options)


@pytest.mark.parametrize("begun", ["before the look", "after the look"])
def test_a_driver_that_stood_still_ends_no_upload_of_its_successor(
    make_settings: MakeSettings, emulator: EmulatorProcess, begun: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings()
    old = open_job(settings)
    answer(old)
    look = s3_uploads.unfinished_outputs
    with open_store(settings.store_url, create=False) as store, ExitStack() as stack:
        successor: list[Drafts] = []

        def take_over() -> None:
            monkeypatch.setattr(publishing, "unfinished_outputs", look)
            store.release_job(old.lease)  # stands for the 60 s of a lease
            successor.append(stack.enter_context(job_drafts(store, open_job(settings))))
            successor[0].open("output.jsonl").write(b"whole")

        def looking(*arguments: Any) -> Any:
            if begun == "before the look":
                take_over()
            found = look(*arguments)
            if begun == "after the look":
                take_over()
            return found

        monkeypatch.setattr(publishing, "unfinished_outputs", looking)
        with pytest.raises(FencedError), job_drafts(store, old):
            pass
        successor[0].publish()
    assert _reader(emulator, settings)("output.jsonl") == b"whole"


@pytest.mark.heavy(one_of=3)
def test_the_next_export_ends_uploads_of_one_that_was_killed(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reach_by_environment(emulator, monkeypatch)
    settings = make_settings()
    job = open_job(settings)
    answer(job)
    place = f"{settings.output}-exported"
    command = ["export", "job", "--output", place, "--store", settings.store_url]
    ended = subprocess.run(
        [sys.executable, "-m", "dray.cli", *command],
        env={**os.environ, TRIGGER_VARIABLE: Point.FINALISE_WRITTEN.value, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL
    folder = place.removeprefix("s3://")
    assert _left(emulator) == [f"{folder}/errors.jsonl", f"{folder}/output.jsonl"]
    assert run_app(command) == 0
    assert (emulator.root / folder / "output.jsonl").read_bytes().count(b"\n") == 50


def test_of_two_exports_at_once_one_is_published(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that began last, where that has seen the other's uploads."""
    _reach_by_environment(emulator, monkeypatch)
    settings = make_settings()
    answer(open_job(settings))
    command = ["export", "job", "--output", f"{settings.output}-exported", "--store", settings.store_url]
    codes: list[int] = []

    def export_meanwhile(point: Point) -> None:
        if point is Point.FINALISE_WRITTEN:
            monkeypatch.setattr(drafts, "reach", reach)
            codes.append(run_app(command))

    monkeypatch.setattr(drafts, "reach", export_meanwhile)
    codes.append(run_app(command))
    assert codes == [0, 1]
    place = emulator.root / f"{settings.output.removeprefix('s3://')}-exported" / "output.jsonl"
    assert place.read_bytes().count(b"\n") == 50


def test_a_deletion_ends_the_uploads_of_its_job(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the store knows, and others under the names of its files."""
    _reach_by_environment(emulator, monkeypatch)
    settings = make_settings()
    job = open_job(settings)
    answer(job)
    with open_store(settings.store_url, create=False) as store:
        killed = job_drafts(store, job)
        killed.__enter__().open("output.jsonl").write(b"half")
        _begin(emulator, f"{settings.output}/report.html")
        _begin(emulator, job.spool(1))
        other = f"{settings.output}/mine.txt"
        kept = _begin(emulator, other)
        store.release_job(job.lease)
        assert delete_job(store, "job").left is None
        assert _left(emulator) == [other.removeprefix("s3://")]
        s3_uploads.abort(other, kept, emulator.options)


def test_a_deletion_leaves_the_uploads_of_a_newer_job_alone(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same name, in the same folder, at the same epoch."""
    _reach_by_environment(emulator, monkeypatch)
    settings = make_settings()
    answer(job := open_job(settings))
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
        store.bury_job("job")
        answer(newer := open_job(make_settings(overwrite=True)))
        with job_drafts(store, newer) as found:
            found.open("output.jsonl").write(b"whole")
            assert [done.left for done in finish_deletions(store)] == [None]
            found.publish()
        assert _reader(emulator, settings)("output.jsonl") == b"whole"
        assert store.shards("job")[0].uri.startswith(newer.work)
        finalise_job(newer, Timeline())
    assert_published(settings, "job", _reader(emulator, settings))


def test_uploads_that_s3_does_not_list_are_left(
    emulator: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"s3://bucket/{tmp_path.name}"
    upload = _begin(emulator, f"{where}/output.jsonl")
    assert s3_uploads.unfinished_outputs(where, emulator.options) == [(f"{where}/output.jsonl", upload)]
    emulator.behave(access_key="another")
    assert s3_uploads.unfinished_outputs(where, emulator.options) == []
    emulator.behave()
    s3_uploads.end_unfinished([(f"{where}/output.jsonl", upload)], emulator.options)
    s3_uploads.end_unfinished([(f"{where}/output.jsonl", upload)], emulator.options)


def test_a_job_that_cannot_finish_leaves_no_upload(
    make_settings: MakeSettings, emulator: EmulatorProcess
) -> None:
    """The next driver ends those of one that was killed; this one ends its own."""
    job = open_job(make_settings())
    answer(job)
    with open_store(job.settings.store_url, create=False) as store:
        store.release_job(job.lease)
        store.claim_job("job", "another")
    with pytest.raises(FencedError):
        finalise_job(job, Timeline())


def test_keys_that_end_before_the_files_are_written_pause_the_job(
    make_settings: MakeSettings, emulator: EmulatorProcess
) -> None:
    """A user gives new ones, and the same command goes on."""
    job = open_job(make_settings())
    answer(job)
    emulator.behave(expires_after=0)
    file = f"{job.settings.output}/output.jsonl"
    with pytest.raises(
        JobPausedError, match=f"{file} cannot be written: not allowed.*credentials.*`dray resume JOB`"
    ):
        finalise_job(job, Timeline())
    emulator.behave()
    finalise_job(job, Timeline())
    assert_published(job.settings, "job", _reader(emulator, job.settings))


# ---- an output that moves away ----


def _closed(emulator: EmulatorProcess) -> None:
    """The bucket refuses our keys (403), as one of an account that we have left."""
    emulator.behave(access_key="another")
    forget_credentials()


def _noted(settings: JobSettings) -> dict[str, str]:
    """The uploads that the store takes for open."""
    with open_store(settings.store_url, create=False) as store:
        return uploads_of(store.get_job("job").info)


def test_files_are_written_elsewhere_once_their_bucket_is_closed(
    make_settings: MakeSettings, emulator: EmulatorProcess, tmp_path: Path
) -> None:
    settings = make_settings()
    finish(settings)
    assert _noted(settings) == {}
    _closed(emulator)
    moved = make_settings(output=str(tmp_path / "local"))
    finish(moved)
    assert_published(moved, "job", lambda name: (tmp_path / "local" / name).read_bytes())


def test_uploads_that_cannot_be_ended_hold_up_the_output_that_they_are_in_alone(
    make_settings: MakeSettings,
    emulator: EmulatorProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A driver that stands still may complete them: not under the files of its successor."""
    settings = make_settings()
    answer(job := open_job(settings))
    with open_store(settings.store_url, create=False) as store:
        killed = job_drafts(store, job)
        begun = killed.__enter__()
        for name in ("output.jsonl", "errors.jsonl"):
            begun.open(name).write(b"half")
        store.release_job(job.lease)
        left = _noted(settings)
        assert len(left) == 2
        job = open_job(settings)
        _closed(emulator)
        with pytest.raises(JobPausedError, match=r"output\.jsonl cannot be written: not allowed"):
            finalise_job(job, Timeline())
        store.release_job(job.lease)
    moved = make_settings(output=str(tmp_path / "local"))
    finish(moved)
    assert_published(moved, "job", lambda name: (tmp_path / "local" / name).read_bytes())
    [told] = [one.getMessage() for one in caplog.records if "cannot be ended" in one.getMessage()]
    assert settings.output in told
    assert "not allowed" in told
    assert "lifecycle rule" in told
    assert _noted(settings) == {}
    emulator.behave()
    s3_uploads.end_unfinished(left.items(), emulator.options)


def test_requests_in_a_bucket_that_is_closed_are_taken_in_again_where_the_output_is(
    make_settings: MakeSettings, emulator: EmulatorProcess, tmp_path: Path
) -> None:
    settings = make_settings()
    answer(job := open_job(settings), shards=1)
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
        job = open_job(settings)
        _closed(emulator)
        with pytest.raises(PermissionError, match="check the credentials"):  # its own place: not by itself
            answer(job)
        store.release_job(job.lease)
    moved = make_settings(output=str(tmp_path / "local"))
    finish(moved)
    assert_published(moved, "job", lambda name: (tmp_path / "local" / name).read_bytes())


def test_kept_columns_in_a_bucket_that_is_closed_are_taken_in_again(
    make_settings: MakeSettings, emulator: EmulatorProcess, tmp_path: Path
) -> None:
    """Every row has its answer, so the requests themselves are not needed."""
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"".join(b'{"text": "hi", "note": "n%d"}\n' % number for number in range(50)))
    source = source_of([str(rows)], RowShape(prompt_column="text", keep_columns=("note",)))
    finish(make_settings(source=source))
    _closed(emulator)
    finish(make_settings(source=source, output=str(tmp_path / "local")))
    lines = (tmp_path / "local" / "output.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["row"] for line in lines] == [{"note": f"n{number}"} for number in range(50)]


# ---- answers in parts ----

SMALL = JobRequest(input=[], model="", output="", part_bytes=1024)
WHOLE = JobRequest(input=[], model="", output="")


def _names(emulator: EmulatorProcess, settings: JobSettings) -> list[str]:
    folder = emulator.root / settings.output.removeprefix("s3://")
    return sorted(path.name for path in folder.iterdir() if path.is_file())


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("way", ["conditions", "no conditions", "copies"])
def test_a_job_goes_from_one_object_to_several_and_back(
    make_settings: MakeSettings, emulator: EmulatorProcess, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload has its name from its beginning: the answers are read again where there are several parts."""
    emulator.behave(no_conditions=way == "no conditions")
    monkeypatch.setattr(s3_uploads, "_CONFLICTS", 1)
    if way == "copies":
        monkeypatch.setattr(drafts, "is_s3", lambda _uri: False)
        monkeypatch.setattr(retiring, "_knows_conditions", lambda _uri: False)
    parts = [f"output-{number:05d}.jsonl" for number in range(8)]
    rounds = [(WHOLE, ["output.jsonl"]), (SMALL, [*parts, "output.jsonl.manifest.json"])]
    for request, names in [*rounds, *rounds]:
        settings = make_settings(request=request)
        finish(settings)
        assert_published(settings, "job", _reader(emulator, settings))
        assert _names(emulator, settings) == ["errors.jsonl", *names, "report.html"]
        with open_store(settings.store_url, create=False) as store:
            told = ReportData.from_json(store.get_job("job").summary["report"])
        assert told.measures.rows == 50  # what was read again is counted once


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("old_request", "new_request", "way"),
    [
        (WHOLE, SMALL, "conditions"),
        (SMALL, WHOLE, "conditions"),
        (SMALL, SMALL, "conditions"),
        (WHOLE, SMALL, "copies"),
    ],
)
def test_a_driver_that_stood_still_replaces_no_part_of_its_successor(
    make_settings: MakeSettings,
    emulator: EmulatorProcess,
    old_request: JobRequest,
    new_request: JobRequest,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "copies":
        monkeypatch.setattr(drafts, "is_s3", lambda _uri: False)
        monkeypatch.setattr(retiring, "_knows_conditions", lambda _uri: False)
    for number, old_stop in enumerate(STEPS[1:]):
        old = make_settings(f"out-{number}", request=old_request)
        new = make_settings(f"out-{number}", request=new_request)
        with stoppable(monkeypatch):
            ended = race(old, old_stop, None, successor=new)
        assert isinstance(ended.old, FencedError), (old_stop, ended)
        assert ended.new is None, (old_stop, ended)
        assert_published(new, "job", _reader(emulator, new))


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(("before", "after"), [(WHOLE, SMALL), (SMALL, WHOLE)])
def test_a_driver_that_stood_still_removes_no_part_of_its_successor(
    make_settings: MakeSettings,
    emulator: EmulatorProcess,
    before: JobRequest,
    after: JobRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where its successor's bytes are those that it saw: ETags are the same then."""
    settings = make_settings(request=after)
    finish(settings)
    first = open_job(make_settings(request=before))
    old = Driver(first, [(Point.FINALISE_RECORDED, 1)], JobState.COMPLETED)
    with stoppable(monkeypatch):
        old.start()
        old.wait()
        finalise_job(open_job(settings), Timeline())
        old.go_on()
    assert isinstance(old.error, FencedError)
    assert_published(settings, "job", _reader(emulator, settings))


def test_an_object_that_was_replaced_meanwhile_is_not_removed(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user puts a file of their own where the driver saw one of the former layout."""
    settings = make_settings(request=WHOLE)
    finish(make_settings(request=SMALL))
    job = open_job(settings)
    theirs = f"{settings.output.removeprefix('s3://bucket/')}/output-00003.jsonl"

    def put(point: Point) -> None:
        if point is Point.FINALISE_RECORDED:
            s3_client(emulator.options).put_object(Bucket="bucket", Key=theirs, Body=b"mine")

    monkeypatch.setattr(drafts, "reach", put)
    with pytest.raises(DraftGoneError, match=r"output-00003\.jsonl"):
        finalise_job(job, Timeline())
    assert _reader(emulator, settings)("output-00003.jsonl") == b"mine"


def test_the_next_driver_ends_uploads_of_parts(
    make_settings: MakeSettings, emulator: EmulatorProcess
) -> None:
    settings = make_settings(request=SMALL)
    job = open_job(settings)
    for name in ("output-00007.jsonl", "errors-00001.parquet", "output.jsonl.manifest.json"):
        _begin(emulator, f"{settings.output}/{name}")
    other = f"{settings.output}/output-7.jsonl"
    kept = _begin(emulator, other)
    answer(job)
    finalise_job(job, Timeline())
    assert _left(emulator) == [other.removeprefix("s3://")]
    s3_uploads.abort(other, kept, emulator.options)


@pytest.mark.heavy(one_of=3)
def test_an_export_in_parts(
    make_settings: MakeSettings, emulator: EmulatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reach_by_environment(emulator, monkeypatch)
    settings = make_settings()
    answer(open_job(settings))
    place = make_settings("exported")
    command = ["export", "job", "--output", place.output, "--store", settings.store_url]
    for more, count in (([], 1), (["--part-bytes", "2048"], 5), ([], 1)):
        assert run_app([*command, *more]) == 0
        names = [name for name in _names(emulator, place) if name.startswith("output")]
        assert len(names) == count  # four parts and their manifest
        lines = [_reader(emulator, place)(name) for name in names if name.endswith(".jsonl")]
        assert b"".join(lines).count(b"\n") == 50

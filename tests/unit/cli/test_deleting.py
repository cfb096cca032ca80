"""``dray jobs delete``, as a user gives it."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from dray.cli import deleting
from dray.cli.app import run_app
from dray.cli.jobs import recipe_of
from dray.errors import FencedError
from dray.job.beginning.opening import open_job
from dray.job.deleting import finish_deletions
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.storage import ObjectStoreOptions, folders
from dray.storage.folders import owner_of
from dray.store import StoredOutcome, open_store, reading
from dray.store.database.connection import Tx
from tests.support.command import write_requests
from tests.support.publishing import answer

pytestmark = pytest.mark.unit

MakeJob = Callable[..., OpenJob]


@pytest.fixture
def make_job(tmp_path: Path) -> MakeJob:
    def make(name: str, *, output: str | None = None, done: bool = True, overwrite: bool = False) -> OpenJob:
        requests = write_requests(tmp_path / f"{name}.jsonl", 9)
        settings = JobSettings(
            source=source_of([str(requests)]),
            defaults=RowDefaults(),
            model="simulated",
            engine="simulated",
            job_id=name,
            output=str(tmp_path / (output or name)),
            store_url=f"sqlite:///{tmp_path / 'jobs.db'}",
            overwrite=overwrite,
        )
        job = open_job(settings)
        answer(job)
        if done:
            finalise_job(job, Timeline())
            with open_store(settings.store_url, create=False) as store:
                store.release_job(job.lease)
        return job

    return make


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_deleted_job_leaves_the_users_files(
    make_job: MakeJob, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job("one")
    make_job("two")
    before = (tmp_path / "one" / "output.jsonl").read_bytes()
    [found] = (tmp_path / "one" / ".dray").rglob("requests-1.jsonl")
    spool = found.stat().st_size
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["deleted"] == [
        {"job_id": "one", "rows": 9, "spool_bytes": spool, "output": str(tmp_path / "one"), "left": None}
    ]
    assert f"job one: deleted 9 rows and 0.0 MB of requests; files in {tmp_path / 'one'} stay" in said.err
    assert left(tmp_path / "one") == ["errors.jsonl", "output.jsonl", "report.html"]
    assert (tmp_path / "one" / "output.jsonl").read_bytes() == before
    assert run_app(["jobs", "--store", store, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [job["job_id"] for job in listed["jobs"]] == ["two"]
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 2
    assert "no job 'one'" in capsys.readouterr().err


def test_nothing_is_deleted_that_nobody_has_agreed_to(
    make_job: MakeJob, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job("one")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run_app(["jobs", "delete", "one", "--store", store]) == 2
    assert "would delete 1 job (one) with all rows in the store; say --yes" in capsys.readouterr().err
    assert run_app(["jobs", "delete", "--store", store]) == 2
    assert "name a job, or say --older-than" in capsys.readouterr().err
    assert run_app(["jobs", "delete", "--older-than", "soon", "--yes", "--store", store]) == 2
    assert "--older-than soon: write a time such as 30d" in capsys.readouterr().err

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer_, code in (("n\n", 2), ("\n", 2), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer_))
        assert run_app(["jobs", "delete", "one", "--store", store]) == code, answer_
    assert "Delete 1 job (one) with all rows in the store? [y/N]" in capsys.readouterr().err


def test_a_job_that_runs_is_refused(
    make_job: MakeJob, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job("one", done=False)
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 2
    assert "job 'one' is being run by" in capsys.readouterr().err


def test_old_jobs_alone(
    make_job: MakeJob, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_job("one")
    make_job("two", done=False)
    for age, expected in (("1h", []), ("0s", ["one"])):
        assert run_app(["jobs", "delete", "--older-than", age, "--yes", "--store", store, "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])["deleted"]
        assert [one["job_id"] for one in found] == expected
    assert run_app(["jobs", "delete", "--older-than", "0s", "--yes", "--store", store]) == 0
    assert "no job ended that long ago" in capsys.readouterr().err


def test_a_folder_that_went_to_another_job_is_left_alone(
    make_job: MakeJob, store: str, tmp_path: Path
) -> None:
    """But for what the deleted job has kept there."""
    one = make_job("one", output="out")
    two = make_job("two", output="out", overwrite=True)
    before = [name for name in left(tmp_path / "out") if Path(one.work).name not in name]
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 0
    assert left(tmp_path / "out") == before
    assert owner_of(str(tmp_path / "out")) == two.owner


def test_a_run_with_other_options_leaves_its_own_and_its_folder_to_the_deletion(
    tmp_path: Path, store: str
) -> None:
    """The store kept those of the first run, and the second one's folder stayed with a job that was gone."""
    inputs = write_requests(tmp_path / "in.jsonl", 9)

    def run(output: str, form: str) -> OpenJob:
        given = {"job_id": "job", "store": store, "format": form, "engine": {"name": "simulated"}}
        request = JobRequest.of(str(inputs), "m", str(tmp_path / output), **given)
        job = open_job(job_settings(request, NoBlocks()))
        with open_store(store, create=False) as opened:
            opened.release_job(job.lease)
        return job

    run("a", "jsonl")
    job = run("b", "parquet")
    recipe = recipe_of("job", store)
    assert (recipe["output"], recipe["format"]) == (str(tmp_path / "b"), "parquet")
    with open_store(store, create=False) as opened:
        found = opened.get_job("job")
        assert (found.settings["output"], found.settings["format"]) == (str(tmp_path / "b"), "parquet")
    assert [owner_of(str(tmp_path / name)) for name in "ab"] == [job.owner, job.owner]
    assert run_app(["jobs", "delete", "job", "--yes", "--store", store]) == 0
    assert [owner_of(str(tmp_path / name)) for name in "ab"] == [None, None]


def test_a_run_that_lost_the_job_leaves_the_settings_alone(make_job: MakeJob, store: str) -> None:
    job = make_job("one", done=False)
    with open_store(store, create=False) as opened:
        opened.release_job(job.lease)
        opened.claim_job("one", "another")
        with pytest.raises(FencedError):
            opened.set_job_settings(job.lease, {})
        assert opened.get_job("one").settings


def test_what_could_not_be_removed_is_tried_again(
    make_job: MakeJob, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The rows went, and with them all that told where the requests were."""
    make_job("one")
    work = tmp_path / "one" / ".dray"

    def refuse(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr("dray.job.deleting._remove_file", refuse)
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store, "--json"]) == 1
    said = capsys.readouterr()
    [told] = json.loads(said.out.splitlines()[-1])["deleted"]
    assert (told["rows"], told["spool_bytes"]) == (9, 0)
    assert "(PermissionError)" in told["left"]
    assert "; the next `dray jobs delete` tries again" in said.err
    assert list(work.rglob("requests-1.jsonl"))
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 1
    monkeypatch.undo()
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 0
    assert not work.exists()
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 2


def test_a_deletion_reaches_buckets_by_a_block(
    make_job: MakeJob, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ObjectStoreOptions(endpoint="http://127.0.0.1:9")
    given = []

    class Blocks(NoBlocks):
        def objects(self, name: str) -> ObjectStoreOptions:
            assert name == "keys"
            return options

    def listed(prefix: str, options: ObjectStoreOptions | None = None) -> list[tuple[str, str]]:
        given.append(options)
        return []

    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", lambda: nullcontext(Blocks()))
    monkeypatch.setattr("dray.job.deleting.unfinished", listed)
    monkeypatch.setattr("dray.job.deleting.unfinished_outputs", listed)
    make_job("one")
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store, "--objects", "block:keys"]) == 0
    assert given == [options, options]


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_newer_job_of_the_same_name_that_takes_the_folder_keeps_it(
    make_job: MakeJob, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """At whatever moment of the deletion: here, right after it has seen whose the folder is."""
    make_job("one", output="out")
    calls, newer = itertools.count(1), list[OpenJob]()

    def seen(directory: str, options: ObjectStoreOptions | None = None) -> folders.Owner | None:
        found = owner_of(directory, options)
        if not newer and next(calls) == call:
            newer.append(make_job("one", output="out", overwrite=True))
        return found

    with open_store(store, create=False) as opened:
        buried = opened.bury_job("one")
        monkeypatch.setattr(folders, "owner_of", seen)
        assert [(done.job_id, done.rows, done.left) for done in finish_deletions(opened)] == [
            ("one", 9, None)
        ]
        monkeypatch.undo()
        kept = newer[0] if newer else make_job("one", output="out", overwrite=True)
        assert owner_of(str(tmp_path / "out")) == kept.owner
        spools = {Path(shard.uri) for shard in opened.shards("one")}
        assert list((tmp_path / "out" / ".dray").rglob("requests-*")) == list(spools)
        assert opened.verify_counts("one").done == 9
        assert opened.remove_job(buried) == 0
        assert [done.rows for done in finish_deletions(opened)] == []
        assert owner_of(str(tmp_path / "out")) == kept.owner


@pytest.mark.parametrize("marked", [True, False])
def test_the_folder_of_an_earlier_version_of_dray_goes_too(
    make_job: MakeJob, store: str, tmp_path: Path, marked: bool
) -> None:
    """It was named after the job alone, and had no marker at first."""
    job = make_job("one")
    work = tmp_path / "one" / ".dray" / "one"
    Path(job.work).rename(work)
    (work / "output-1.jsonl.part").write_bytes(b"draft")
    with open_store(store, create=False) as opened:
        lease = opened.claim_job("one", "earlier")
        [spool] = {shard.uri for shard in opened.shards("one")}
        opened.move_shards(lease, {spool: str(work / "requests-1.jsonl")})
        opened.release_job(lease)
    if not marked:
        (work.parent / "owner.json").unlink()
    assert run_app(["jobs", "delete", "one", "--yes", "--store", store]) == 0
    draft = [] if marked else [".dray", ".dray/one", ".dray/one/output-1.jsonl.part"]
    assert left(tmp_path / "one") == [*draft, "errors.jsonl", "output.jsonl", "report.html"]


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("when", ["the first page", "the end"])
def test_an_export_beside_a_deletion_says_so_and_publishes_nothing(
    make_job: MakeJob,
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    when: str,
) -> None:
    make_job("one")
    real, calls = reading.page, itertools.count()

    def page(tx: Tx, job_key: int, after: int, limit: int) -> list[StoredOutcome]:
        if next(calls) == (0 if when == "the first page" else 1):
            delete_in_another_process("one", store)
        return real(tx, job_key, after, limit)

    def delete_in_another_process(name: str, url: str) -> None:
        command = [sys.executable, "-m", "dray.cli", "jobs", "delete", name, "--yes", "--store", url]
        subprocess.run(command, check=True, timeout=60)

    monkeypatch.setattr(reading, "page", page)
    folder = tmp_path / "exported"
    assert run_app(["export", "one", "--output", str(folder), "--store", store]) == 2
    assert "job 'one' was deleted while its rows were read" in capsys.readouterr().err
    assert [path for path in folder.rglob("*") if path.is_file() and path.name != "owner.json"] == []


@pytest.mark.parametrize(("given", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("1.5m", 90), ("2s", 2)])
def test_times(given: str, seconds: float) -> None:
    assert deleting._seconds(given) == seconds

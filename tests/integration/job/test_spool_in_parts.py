"""Drivers killed while they write the requests of a job in parts, on a disk and on an object store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dray.errors import InputError
from dray.job.beginning.opening import open_job
from dray.job.deleting import delete_job
from dray.job.open_job import OpenJob
from dray.job.options.settings import JobSettings
from dray.job.rows import spooling
from dray.job.rows.ingesting import ingest_job
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.spool import decode, read_shard
from dray.storage import faults, objects
from dray.storage.files import exists, remove
from dray.storage.listings import list_under
from dray.storage.objects import ObjectStoreOptions, forget_credentials
from dray.storage.s3_uploads import unfinished
from dray.store import Shard, Store, open_store
from dray.triggers import TRIGGER_VARIABLE, Point
from tests.support.command import ROOT
from tests.support.s3 import S3Server

pytestmark = pytest.mark.integration

ROWS = 60
BAD = 17
PART_BYTES = 2000
PARTS = 5

DRIVER = """
import json, sys
from dray.errors import InputError
from dray.job.rows import spooling
from dray.job.rows.ingesting import ingest_job
from dray.job.beginning.opening import open_job
from tests.integration.job.test_spool_in_parts import settings_of
given = json.loads(sys.argv[1])
spooling.PART_BYTES = given["part_bytes"]
ingest_job(open_job(settings_of(given)), replicas=1)
"""

# An upload in parts, which takes its time after the first: the process is killed when the store knows of it.
UPLOADING = """
import os, signal, threading, time
from dray.storage import objects, s3_uploads

class Slow:
    def __init__(self, file):
        self._file, self._read = file, 0
    def read(self, size=-1):
        if self._read >= 6 << 20:
            time.sleep(60)  # it is killed long before
        piece = self._file.read(size)
        self._read += len(piece)
        return piece
    def seekable(self):
        return True
    def __getattr__(self, name):
        return getattr(self._file, name)

def slowly(path, uri, options=None):
    store, key = objects.store_of(uri, options)
    with path.open("rb") as file:
        store.put(key, Slow(file), chunk_size=5 << 20, max_concurrency=1, use_multipart=True)

def watch():
    while not s3_uploads.unfinished(OUTPUT + "/.dray/"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

objects.upload = slowly
threading.Thread(target=watch, daemon=True).start()
"""


def settings_of(given: dict[str, Any]) -> JobSettings:
    """The job that a driver is told of."""
    return JobSettings(
        source=source_of([given["input"]]),
        defaults=RowDefaults(),
        model="simulated",
        engine="simulated",
        output=given["output"],
        store_url=given["store_url"],
        job_id="job",
        skip_invalid=True,
        shard_rows=7,
    )


@dataclass
class Place:
    """A job, and where its files lie."""

    given: dict[str, Any]
    options: ObjectStoreOptions | None

    @property
    def settings(self) -> JobSettings:
        return settings_of(self.given)

    @property
    def store(self) -> Store:
        return open_store(self.given["store_url"], create=False)

    def killed(self, trigger: str, code: str = "") -> None:
        """Run a driver until it is killed, which it must be."""
        environment = {**os.environ, TRIGGER_VARIABLE: trigger, "PYTHONPATH": str(ROOT)}
        code = code.replace("OUTPUT", repr(self.given["output"])) + DRIVER
        command = [sys.executable, "-c", code, json.dumps(self.given)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr

    def names(self) -> list[str]:
        """Files in the job's own folder, whether they have their names or not."""
        output = self.given["output"]
        if self.options is not None:
            found = [info.uri for info in list_under(f"{output}/.dray/")]
        else:
            found = [str(path) for path in (Path(output) / ".dray").rglob("*") if path.is_file()]
        names = [uri.rpartition("/")[2] for uri in found]
        return sorted(name for name in names if name != "owner.json")

    def uploads(self) -> list[str]:
        return [uri for uri, _ in unfinished(f"{self.given['output']}/")] if self.options is not None else []


def names_of(epoch: int, count: int = PARTS) -> list[str]:
    further = [f"requests-{epoch}-{number:05d}.jsonl" for number in range(1, count)]
    return sorted([*further, f"requests-{epoch}.jsonl", f"requests-{epoch}.jsonl.rejects"])


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        running.bucket("bucket")
        yield running


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return _place(request.param, request, tmp_path, monkeypatch)


@pytest.fixture
def s3_place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return _place("s3", request, tmp_path, monkeypatch)


def _place(
    where: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(spooling, "PART_BYTES", PART_BYTES)
    given = {"input": str(_input(tmp_path)), "output": str(tmp_path / "out"), "part_bytes": PART_BYTES}
    given["store_url"] = f"sqlite:///{tmp_path / 'jobs.db'}"
    if where == "disk":
        return Place(given, None)
    server: S3Server = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    forget_credentials()  # or clients of another file's server would serve this one
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    return Place({**given, "output": f"s3://bucket/{tmp_path.name}/out"}, server.options)


def _input(folder: Path, prompt: str = "prompt {}", rows: int = ROWS) -> Path:
    path = folder / "in.jsonl"
    with path.open("w") as file:
        for number in range(rows):
            body = {"messages": [{"role": "user", "content": prompt.format(number)}], "max_tokens": 4}
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            file.write("this is no JSON\n" if number == BAD else json.dumps(line) + "\n")
    return path


def rows_in(shards: list[Shard]) -> list[int]:
    lines = [
        line for one in shards for chunk in read_shard(one.uri, one.offset, one.length) for line in chunk
    ]
    return [decode(line).index for line in lines]


EXPECTED = [number for number in range(ROWS) if number != BAD]


def taken_in(place: Place) -> tuple[OpenJob, list[Shard]]:
    job = open_job(place.settings)
    return job, ingest_job(job, replicas=1)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("point", "named"),
    [
        (f"{Point.INGEST_ARRANGED}", 0),  # all rows are in a window without a name
        (f"{Point.INGEST_PART_FULL}:1", 0),  # the first part is full
        (f"{Point.INGEST_PART_NAMED}:1", 1),  # between the first and the second
        (f"{Point.INGEST_PART_FULL}:3", 2),  # the one before has its name, or gets it
        (f"{Point.INGEST_PART_NAMED}:{PARTS}", PARTS),  # all of them; the rejects are not written
        (f"{Point.INGEST_SPOOLED}", PARTS + 1),  # before shards are recorded
        (f"{Point.INGEST_PUBLISHED}", PARTS + 1),
    ],
)
def test_the_next_driver_of_one_that_was_killed_leaves_its_own_parts_alone(
    place: Place, point: str, named: int
) -> None:
    place.killed(point)
    there = [name for name in place.names() if not name.startswith(".")]
    assert named - 1 <= len(there) <= named
    job, shards = taken_in(place)
    assert job.lease.epoch == 2
    assert rows_in(shards) == EXPECTED
    assert place.names() == names_of(1 if point == Point.INGEST_PUBLISHED else 2)
    assert len({one.uri for one in shards}) == PARTS
    with place.store as store:
        store.release_job(job.lease)
        assert delete_job(store, "job").left is None
    assert place.names() == []


@pytest.mark.heavy
def test_a_kill_while_a_part_is_uploaded(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload that it leaves unfinished is ended, too: it would cost room, and no listing shows it."""
    _input(tmp_path, prompt="{} " + "x" * 200_000)
    s3_place.given["part_bytes"] = 8 << 20
    s3_place.killed("", UPLOADING)
    found = s3_place.uploads()
    assert len(found) == 1, (found, s3_place.names())
    left = found[0]
    assert left.endswith("/requests-1.jsonl")
    monkeypatch.setattr(spooling, "PART_BYTES", 8 << 20)
    _, shards = taken_in(s3_place)
    assert s3_place.uploads() == []
    assert s3_place.names() == names_of(2, 2)
    assert rows_in(shards) == EXPECTED


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("number", [0, PARTS - 1])
def test_a_part_that_is_lost_is_written_again(
    place: Place, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, before = taken_in(place)
    lost = list(dict.fromkeys(one.uri for one in before))[number]
    remove(lost)
    monkeypatch.setattr(spooling, "PART_BYTES", 1 << 20)  # a newer version of dray
    with place.store as store:
        store.release_job(job.lease)
    _, after = taken_in(place)
    assert [(one.offset, one.length) for one in after] == [(one.offset, one.length) for one in before]
    assert rows_in(after) == EXPECTED
    assert place.names() == names_of(2)


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("point", [f"{Point.INGEST_PART_NAMED}:2", f"{Point.INGEST_SPOOLED}"])
def test_a_kill_while_a_lost_part_is_written_again(place: Place, point: str) -> None:
    job, before = taken_in(place)
    remove(before[0].uri)
    with place.store as store:
        store.release_job(job.lease)
    place.killed(point)
    _, after = taken_in(place)
    assert rows_in(after) == EXPECTED
    assert place.names() == names_of(3)


def test_two_parts_lie_in_the_temporary_folder_at_most(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is uploaded, and one that is written."""
    upload, most = objects.upload, list[int]()

    def lying() -> int:
        return len(list((tmp_path / "tmp").rglob("*.part")))

    def counted(path: Path, uri: str, options: ObjectStoreOptions | None = None) -> None:
        deadline = time.monotonic() + 1
        while lying() < 2 and time.monotonic() < deadline:  # rows go on meanwhile, as far as they may
            time.sleep(0.01)
        time.sleep(0.1)
        most.append(lying())
        upload(path, uri, options)

    monkeypatch.setattr(objects, "upload", counted)
    _, shards = taken_in(s3_place)
    assert rows_in(shards) == EXPECTED
    assert len(most) == PARTS + 1  # and the rejects
    assert max(most) == 2
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("listed", [True, False])
def test_an_account_that_may_not_list_leaves_no_part_either(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    s3_place.killed(f"{Point.INGEST_PART_NAMED}:3")

    def refused(prefix: str, options: ObjectStoreOptions | None = None) -> Iterator[Any]:
        raise faults.not_allowed(prefix)

    def forbidden(uri: str, *, options: ObjectStoreOptions | None = None) -> bool:
        """As S3 answers an account that may not list, where there is no such object."""
        if not exists(uri, options=options):
            raise faults.not_allowed(uri)
        return True

    if not listed:
        monkeypatch.setattr(spooling, "list_under", refused)
        monkeypatch.setattr(spooling, "exists", forbidden)
    taken_in(s3_place)
    assert s3_place.names() == names_of(2)


def test_repeated_ids_over_parts(place: Place, tmp_path: Path) -> None:
    """They are dropped where parts lie under their names already."""
    lines = (tmp_path / "in.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "in.jsonl").write_text("".join([*lines, *lines[:30]]))
    _, shards = taken_in(place)
    assert rows_in(shards) == EXPECTED
    assert place.names() == names_of(1)
    with place.store as store:
        assert store.counts("job").failed == 2 + 29


@pytest.mark.heavy(one_of=3)
def test_an_input_that_is_refused_leaves_nothing(place: Place, tmp_path: Path) -> None:
    lines = (tmp_path / "in.jsonl").read_text().splitlines(keepends=True)
    row = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    body = {"messages": [{"role": "user", "content": "x"}]}
    models = [json.dumps({**row, "custom_id": m, "body": {**body, "model": m}}) + "\n" for m in ("m1", "m2")]
    (tmp_path / "in.jsonl").write_text("".join([*lines, *models]))
    with pytest.raises(InputError):
        taken_in(place)
    assert place.names() == []
    assert place.uploads() == []

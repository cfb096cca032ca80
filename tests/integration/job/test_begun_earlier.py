"""A job that commit 3c5ef00 began, and whose driver was killed, is finished by the present code.

``begun_at_3c5ef00/make.py`` says what it did, and makes the files again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from dray.history import Event
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import finalise_job
from dray.job.ending.timeline import Timeline
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.store import REJECTED, ShardState, StoredOutcome, open_store
from tests.support.history import keeping_history, read_history
from tests.support.lanes import Lanes
from tests.support.postgres import PostgresServer
from tests.support.stores import indexes_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.usefixtures("eager")]

MADE = Path(__file__).parent / "begun_at_3c5ef00"
FOLDER = "@FOLDER@"
ROWS = 48
REJECTS = {5, 30}
BOMB = 29
ANSWERED = {*range(12), 13, 14, 17, 18, 23, 25, 31, 32, 35} - REJECTS


@pytest.fixture(params=["sqlite", "postgresql"])
def begun(request: pytest.FixtureRequest, tmp_path: Path) -> JobSettings:
    """The job as it was left, in a folder of this test."""
    folder = tmp_path / "begun"
    work = folder / "out/.dray/job"
    work.mkdir(parents=True)
    (folder / "in.jsonl").write_bytes((MADE / "in.jsonl").read_bytes())
    for file in MADE.glob("requests-1.jsonl*"):
        (work / file.name).write_bytes(file.read_bytes())
    script = (MADE / f"{request.param}.sql").read_text().replace(FOLDER, str(folder))
    over = "UPDATE jobs SET driver_until = 0;"  # its lease, by whatever clock this machine has
    if request.param == "sqlite":
        url = str(folder / "store.db")
        with sqlite3.connect(url) as database:
            database.executescript(script + over)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create_database())
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script.encode())
            connection.execute(b"SET search_path = public;" + over.encode())
    return _settings(folder, url)


def _settings(folder: Path, store_url: str) -> JobSettings:
    return JobSettings(
        source=source_of([str(folder / "in.jsonl")]),
        defaults=RowDefaults(sampling={"temperature": 0}),
        model="simulated",
        output=str(folder / "out"),
        store_url=store_url,
        engine="simulated",
        engine_arguments={"max_num_seqs": 4},
        job_id="job",
        skip_invalid=True,
        shard_rows=12,
    )


@pytest.fixture
def anew(tmp_path: Path) -> JobSettings:
    """The same job, begun here."""
    folder = tmp_path / "begun anew"
    folder.mkdir()
    (folder / "in.jsonl").write_bytes((MADE / "in.jsonl").read_bytes())
    return _settings(folder, str(folder / "store.db"))


def test_its_shards_know_their_positions(begun: JobSettings) -> None:
    """The parts hold what the whole held, and all of them the spool once."""
    with open_store(begun.store_url) as store:
        shards = store.shards("job")
    lines = (Path(begun.output) / ".dray/job/requests-1.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == ROWS - len(REJECTS)
    for shard in shards:
        held = b"".join(lines[shard.first_position : shard.last_position])
        assert (shard.offset, shard.length) == (len(b"".join(lines[: shard.first_position])), len(held))
    whole = [indexes_of(shard) for shard in shards if shard.state is not ShardState.SPLIT]
    assert sorted(index for rows in whole for index in rows) == sorted(set(range(ROWS)) - REJECTS)


@pytest.mark.heavy
def test_it_is_resumed_and_finished(begun: JobSettings, anew: JobSettings, tmp_path: Path) -> None:
    before = _rows(begun)
    assert {row.index for row in before} == ANSWERED | REJECTS
    with keeping_history(tmp_path / "history"):
        lanes = Lanes(begun, ("node-a", "node-b"))
        counts = lanes.run()
    assert lanes.failure is None
    assert (counts.done, counts.failed, counts.pending) == (ROWS - len(REJECTS) - 1, len(REJECTS) + 1, 0)
    after = _rows(begun)
    assert [row.index for row in after] == list(range(ROWS))
    assert [row for row in after if row.index in ANSWERED | REJECTS] == before, "finished rows were changed"
    assert not _admitted(tmp_path / "history") & ANSWERED, "finished rows were computed again"
    assert {row.index for row in after if row.shard == REJECTED} == REJECTS
    assert after[BOMB].error_code == "poison"
    files = [_files(settings, run=run) for settings, run in ((begun, _nothing), (anew, _run))]
    assert files[0] == files[1]


def _rows(settings: JobSettings) -> list[StoredOutcome]:
    with open_store(settings.store_url) as store:
        return [row for page in store.outcomes("job") for row in page]


def _admitted(folder: Path) -> set[int]:
    """Rows that entered an engine."""
    lines = [line for line in read_history(folder, "job") if line.event is Event.ADMITTED]
    assert lines
    return {index for line in lines for index in line.indexes}


def _nothing(settings: JobSettings) -> None:
    """It has run."""


def _run(settings: JobSettings) -> None:
    assert Lanes(settings, ("node-a", "node-b")).run().pending == 0


def _files(settings: JobSettings, *, run: Callable[[JobSettings], None]) -> list[str]:
    """The job's files, without the folder that they are in."""
    run(settings)
    job = open_job(settings)
    finalise_job(job, Timeline())
    with open_store(settings.store_url, create=False) as store:
        store.release_job(job.lease)
    folder = Path(settings.output)
    texts = [(folder / f"{name}.jsonl").read_text() for name in ("output", "errors")]
    return [text.replace(str(folder.parent), FOLDER) for text in texts]

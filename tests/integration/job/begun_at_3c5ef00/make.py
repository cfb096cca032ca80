"""Begin a job with the code of commit 3c5ef00, and leave it as a killed driver does.

What is left is in this folder, and ``test_begun_earlier.py`` resumes it with the present code. To make the
files again, from the root of the repository::

    git worktree add --detach ../dray-3c5ef00 3c5ef00
    PYTHONPATH=../dray-3c5ef00 python tests/integration/job/begun_at_3c5ef00/make.py
    git worktree remove ../dray-3c5ef00

It needs the packages of ``constraints.txt`` and PostgreSQL's programs. Times differ from run to run.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from dray.job.ingesting import ingest_job  # type: ignore[import-not-found]  # of 3c5ef00: moved since
from dray.job.opening import OpenJob, open_job  # type: ignore[import-not-found]  # of 3c5ef00: moved since
from dray.job.settings import JobSettings  # type: ignore[import-not-found]  # of 3c5ef00: moved since
from dray.job.splitting import parts_of  # type: ignore[import-not-found]  # of 3c5ef00: it has moved since

from dray.engine.protocol import EngineSpec
from dray.engine.replica import Replica
from dray.job import opening
from dray.requests.model import Kind, Outcome  # type: ignore[attr-defined]  # of 3c5ef00: Kind has moved
from dray.requests.sources import RowDefaults, source_of
from dray.requests.spool.spool import index_of, read_shard
from dray.store import Shard, Store, open_store
from tests.support.postgres import PostgresServer

HERE = Path(__file__).parent
FOLDER = "@FOLDER@"
"""What stands in the files for the folder that holds the input, the output and the store."""

ROWS = 48
REJECTED = {5, 30}
"""Rows without a body: error rows of ingest, so that indexes and positions differ."""
BOMB = 29
"""The row that ends every engine which has it, once the job is resumed."""
SHARD_ROWS = 12


def write_input(path: Path) -> Path:
    """Chat requests, of which one is marked and two are none."""
    with path.open("w") as file:
        for number in range(ROWS):
            text = f"prompt {number}" + (" BOMB" if number == BOMB else "")
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps(line | ({} if number in REJECTED else {"body": body})) + "\n")
    return path


def begin(folder: Path, store_url: str) -> None:
    """Four shards: one done, one half done and held, one split with rows in both parts, one not begun."""
    settings = JobSettings(
        source=source_of([str(write_input(folder / "in.jsonl"))]),
        defaults=RowDefaults(sampling={"temperature": 0}),
        model="simulated",
        output=str(folder / "out"),
        store_url=store_url,
        engine="simulated",
        engine_arguments={"max_num_seqs": 4},
        job_id="job",
        skip_invalid=True,
        shard_rows=SHARD_ROWS,
    )
    opening.driver_name = lambda: "gone/1/1/driver"  # of 3c5ef00
    job = open_job(settings)
    spec = EngineSpec(name="simulated", model="simulated", kind=Kind.CHAT, arguments={"max_num_seqs": 4})
    replica = Replica("job/replica-0", spec, exit_when_dead=False)
    replica.ready()
    with open_store(store_url) as store:
        first, second, third, _ = ingest_job(job, replicas=1)
        _run(store, job, first, replica, range(ROWS))
        _run(store, job, second, replica, [23, 13, 18, 14, 17])
        _split(store, job, third, replica)
    replica.stop()


def _run(store: Store, job: OpenJob, shard: Shard, replica: Replica, wanted: list[int] | range) -> None:
    """Answer those of a shard's rows that are wanted, and end it where these are all."""
    lease = store.claim_shard(job.lease, shard.number, owner="gone/1/1/worker", replica=replica.name)
    assert lease is not None
    lines = {index_of(line): line for line in _lines(shard)}
    rows = [index for index in wanted if index in lines]
    store.commit(lease, _answers(replica, [lines[index] for index in rows]))
    if len(rows) == len(lines):
        store.finish_shard(lease)


def _split(store: Store, job: OpenJob, shard: Shard, replica: Replica) -> None:
    """An engine died under it when 9 of its rows were fed; then one part was begun."""
    lease = store.claim_shard(job.lease, shard.number, owner="gone/1/1/worker", replica=replica.name)
    assert lease is not None
    indexes = [index_of(line) for line in _lines(shard)]
    lines = dict(zip(indexes, _lines(shard), strict=True))
    done = {indexes[1], indexes[7], indexes[10]}
    store.commit(lease, _answers(replica, [lines[index] for index in sorted(done)]))
    parts = parts_of(shard, frozenset(done), indexes[8])
    children = store.split_shard(lease, parts, cause="ENGINE_CRASH", detail="the engine died")
    _run(store, job, children[1], replica, [indexes[6]])


def _lines(shard: Shard) -> list[bytes]:
    chunks = read_shard(shard.uri, shard.offset, shard.length)
    return [line for lines in chunks for line in lines]


def _answers(replica: Replica, lines: list[bytes]) -> list[Outcome]:
    session = f"session-{index_of(lines[0])}"
    replica.feed(session, lines, last=True)
    return [outcome for batch in replica.results(session, 64, 0.01) for outcome in batch]


def _without(folder: Path, text: str) -> str:
    """The dump of a database, without the folder that it was made in, and without psql's own commands."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("\\", "--"))]
    return "\n".join(lines).replace(str(folder), FOLDER) + "\n"


def make_sqlite(folder: Path) -> str:
    path = folder / "store.db"
    begin(folder, str(path))
    with sqlite3.connect(path) as database:
        return "\n".join(database.iterdump())


def make_postgresql(folder: Path) -> str:
    with PostgresServer() as server:
        url = server.url(server.create_database())
        begin(folder, url)
        command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", url]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for name, make in (("sqlite", make_sqlite), ("postgresql", make_postgresql)):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (HERE / f"{name}.sql").write_text(_without(folder, make(folder)))
            for file in (folder / "out/.dray/job").glob("requests-*"):
                shutil.copy(file, HERE / file.name)
            shutil.copy(folder / "in.jsonl", HERE / "in.jsonl")


if __name__ == "__main__":
    main()

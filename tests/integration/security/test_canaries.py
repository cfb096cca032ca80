"""Invariant I9, *prompts and secrets in logs and events*: one real job, and then a look everywhere.

A job on PostgreSQL and S3 with a prompt and secrets that no other text holds: rows of every bad sort, a
replica that dies, Ctrl-C, and the same command again to its end.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from dray.errors import DrayError
from dray.store import open_store
from tests.support.command import Command, Ended, run_arguments
from tests.support.postgres import PostgresServer
from tests.support.prefect_server import PrefectServer
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(600)]

# Letters and digits alone: no escaping changes them, and nothing shortened to a few words splits them.
PROMPT = "kanari9b1eprompt"
KEY = "kanari51c8secretkey"
TOKEN = "kanari77afhubtoken"
JOB = "canary-job"
BUCKET = "results"
GOOD = 40
CHAT = "/v1/chat/completions"
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class SecretS3(S3Server):
    """With a secret key that can be searched for."""

    secret_access_key = KEY


@dataclass(kw_only=True)
class Traces:
    """Everything that the job left behind, by where: texts that people or programs may read."""

    runs: list[Ended]
    password: str
    objects: dict[str, str]  # of the bucket, by key
    store: dict[str, str]  # rows as text, by table
    prefect: dict[str, str]  # the same of Prefect's server, and its log
    ray: dict[str, str]  # log files of all Ray sessions
    files: dict[str, str]  # what is left in the folders of the runs
    titles: set[str]  # command lines of all processes but the commands themselves
    environments: dict[str, str]  # of Ray's processes, by command line

    def places(self) -> Iterator[tuple[str, str]]:
        """Each place with its text, but for the objects."""
        for number, run in enumerate(self.runs):
            yield f"stdout of run {number}", run.stdout
            yield f"stderr of run {number}", run.stderr
        for kind in ("store", "prefect", "ray", "files"):
            for name, text in getattr(self, kind).items():
                yield f"{kind}: {name}", text

    def with_word(self, word: str) -> list[str]:
        """The places that hold ``word``, with some of what stands around it."""
        return [f"{place}: {_around(text, word)}" for place, text in self.places() if word in text]


def _around(text: str, word: str) -> str:
    start = text.index(word)
    return text[max(0, start - 300) : start + 200]


def _row(name: object, content: object, **more: Any) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}
    return json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": body})


def _write_rows(path: Path) -> None:
    rows = [_row(f"good-{number}", f"{PROMPT} number {number}") for number in range(GOOD)]
    rows += [
        _row("refused", f"{PROMPT} please-refuse"),
        _row("stream", PROMPT, stream=True),
        _row("messages", PROMPT).replace(f'[{{"role": "user", "content": "{PROMPT}"}}]', f'"{PROMPT}"'),
        _row("fields", PROMPT, **{PROMPT: 1, "stop": PROMPT}),
        # Those that ingest turns into error rows.
        '{"custom_id": "broken", "body": "' + PROMPT,
        PROMPT,
        json.dumps([PROMPT]),
        json.dumps({"custom_id": "body", "method": "POST", "url": CHAT, "body": PROMPT}),
        json.dumps({"custom_id": "outside", "method": "POST", "url": CHAT, "messages": [PROMPT]}),
        json.dumps({"custom_id": "url", "method": "POST", "url": f"/v1/{PROMPT}", "body": {}}),
        json.dumps({"custom_id": "method", "method": PROMPT, "url": CHAT, "body": {"prompt": PROMPT}}),
        _row("good-1", PROMPT),
        _row(17, PROMPT),
        _row(None, PROMPT),
        _row("nul", f"{PROMPT}\0"),
        _row("surrogate", PROMPT).replace(PROMPT, PROMPT + "\\ud800"),
        _row(PROMPT * 40, PROMPT),
        _row("crash", f"{PROMPT} crash-here"),
    ]
    path.write_text("\n".join(rows) + "\n")


@contextmanager
def _witness(folder: Path, seen: Callable[[], list[int]]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Beside the runs: a second name for each log file of Ray's, and what is known of all processes.

    The session's folder goes with the session; what has another name stays, and goes on growing.
    """
    kept, over = Path(tempfile.mkdtemp(prefix="kept-", dir=folder)), threading.Event()
    known, processes, failures = set[Path](), dict[str, str](), list[Exception]()

    def look() -> None:
        try:
            while not over.wait(0.05):
                _keep(folder, kept, known)
                for pid in seen():
                    with suppress(OSError):
                        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                        processes[title] = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        except Exception as error:  # noqa: BLE001  thread edge: a witness that saw half proves nothing
            failures.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield kept, processes
    finally:
        over.set()
        thread.join()
    assert failures == []


def _keep(folder: Path, kept: Path, known: set[Path]) -> None:
    """Give each new file of Ray's sessions a second name; ``os.walk`` does not mind what goes meanwhile."""
    for session in folder.glob("dray-ray-*"):
        for place, _, names in os.walk(session):
            for file in {Path(place, name) for name in names} - known:
                with suppress(OSError):
                    if stat.S_ISREG(file.lstat().st_mode):
                        os.link(file, kept / f"{len(known)}-{file.name}")
                known.add(file)


def _texts(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes().decode(errors="replace") for path in files}


def _dump_sqlite(path: Path) -> dict[str, str]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {name: repr(connection.execute(f'SELECT * FROM "{name}"').fetchall()) for name in tables}


def _dump_postgres(server: PostgresServer, database: str) -> dict[str, str]:
    with server.connect(database) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: "\n".join(
                row for (row,) in connection.execute(f'SELECT t::text FROM "{name}" t').fetchall()
            )
            for (name,) in tables
        }


def _dump_bucket(s3: S3Server) -> dict[str, str]:
    client = s3.client()
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode() for key in keys}


def _interrupted(store: str) -> bool:
    """Whether an attempt at a shard has ended without finishing it."""
    try:
        with open_store(store, create=False) as opened:
            return any(attempt.cause not in (None, "done", "DONE") for attempt in opened.attempts(JOB))
    except DrayError:
        return False


@dataclass
class _Runs:
    """The commands of this test, in one folder, with one environment."""

    folder: Path
    environment: dict[str, str]
    commands: list[Command] = field(default_factory=list)

    def start(self, arguments: list[str]) -> Command:
        folder = self.folder / f"run-{len(self.commands)}"
        command = Command(
            arguments=arguments, folder=folder, environment=self.environment, own_server=True
        )  # its own start is skipped: the environment names a server
        self.commands.append(command)
        return command

    def others(self) -> list[int]:
        """Processes that the commands have started."""
        return [
            pid for command in self.commands for pid in command.note_processes() if pid != command.process.pid
        ]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    folder = tmp_path_factory.mktemp("canaries")
    _write_rows(folder / "in.jsonl")
    (home := folder / "prefect").mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="c-") as temporary,  # short: Ray's sockets lie in it
        PostgresServer() as postgres,
        SecretS3() as s3,
        PrefectServer(home) as prefect,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in QUIET:
            patch.delenv(name, raising=False)  # tests set it for themselves
        s3.bucket(BUCKET)
        database = postgres.create_database()
        store = postgres.url(database)
        (client := folder / "client").mkdir()
        runs = _Runs(
            folder,
            {
                **s3.environment,
                "HF_TOKEN": TOKEN,
                "TMPDIR": temporary,
                "PREFECT_HOME": str(client),
                "PREFECT_API_URL": f"{prefect.url}/api",
                "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "true",  # no result of ours may be kept even so
                "PREFECT_LOCAL_STORAGE_PATH": str(client / "storage"),
            },
        )
        arguments = run_arguments(
            folder / "in.jsonl",
            Path(),
            "--skip-invalid",
            job_id=JOB,
            settings=("error_on=please-refuse", "seconds_per_token=0.01", "max_num_seqs=8"),
            store=store,
        )
        arguments[arguments.index("--output") + 1] = f"s3://{BUCKET}/out"
        with _witness(Path(temporary), runs.others) as (kept, processes):
            crashing = runs.start([*arguments, "--engine-arg", "crash_on=crash-here"])
            deadline = time.monotonic() + 180
            while crashing.process.poll() is None and not _interrupted(store):
                assert time.monotonic() < deadline, crashing.stderr()
                time.sleep(0.1)
            if crashing.process.poll() is None:
                crashing.interrupt()
            ended = [crashing.wait(), runs.start(arguments).wait()]
        until = time.monotonic() + 20  # events arrive after the run has ended
        while time.monotonic() < until and JOB not in _dump_sqlite(home / "prefect.db")["events"]:
            time.sleep(0.5)
        prefect.close()
        password = make_url(store).password
        assert password is not None
        yield Traces(
            runs=ended,
            password=password,
            objects=_dump_bucket(s3),
            store=_dump_postgres(postgres, database),
            prefect=_dump_sqlite(home / "prefect.db") | {"its log": prefect.log("server")},
            ray=_texts(kept),
            files=_texts(client) | {n: t for n, t in _texts(Path(temporary)).items() if "kept-" not in n},
            titles=set(processes),
            environments={
                title: text
                for title, text in processes.items()
                if "raylet/raylet" in title or "gcs_server" in title
            },
        )


def test_the_job_went_through_all_that_it_should(traces: Traces) -> None:
    """There is something to look through: every place tells of this job, its faults and its bad rows."""
    _, last = traces.runs
    assert last.code == 0, last.stderr
    assert last.json["counts"]["done"] >= GOOD
    assert last.json["counts"]["failed"] >= 14
    codes = {
        line.split('"code":"')[1].split('"')[0] for line in traces.objects["out/errors.jsonl"].splitlines()
    }
    assert codes >= {
        "simulated_error",
        "stream_unsupported",
        "invalid_request",
        "invalid_json",
        "invalid_text",
    }
    assert codes >= {"not_an_object", "missing_body", "unknown_url", "invalid_method", "duplicate_custom_id"}
    assert any(cause in traces.store["attempts"] for cause in ("NODE_LOSS", "ENGINE_CRASH"))
    for table in ("flow_run", "log", "events", "artifact", "task_run"):
        assert JOB in traces.prefect[table] or "shard 0" in traces.prefect[table], table
    assert " done, " in traces.prefect["flow_run_state"]
    for table in ("jobs", "shards", "results", "attempts"):
        assert traces.store[table], table
    for name in ("raylet.out", "gcs_server.out", "python-core-worker", "worker-"):
        assert sum(name in file and bool(text) for file, text in traces.ray.items()) >= 2, name  # of each run
    assert any("raylet" in title for title in traces.titles)


def test_prompts_in_logs_and_events(traces: Traces) -> None:
    """No prompt in what is printed, logged, sent to Prefect, or kept in the store."""
    assert traces.with_word(PROMPT) == []


def test_prompts_lie_in_the_spool_alone(traces: Traces) -> None:
    """Of all that the job wrote; answers of the simulated engine repeat no prompt."""
    with_prompt = [key for key, text in traces.objects.items() if PROMPT in text]
    [spool] = with_prompt
    assert re.fullmatch(rf"out/\.dray/{JOB}-[0-9a-f]{{12}}/requests-1\.jsonl", spool)


@pytest.mark.parametrize("secret", ["password", "key", "token"])
def test_secrets_in_ray_and_prefect(secret: str, traces: Traces) -> None:
    """No password, key or token anywhere, Ray's log files and the command lines of its processes included."""
    word = {"password": traces.password, "key": KEY, "token": TOKEN}[secret]
    assert traces.with_word(word) == []
    assert [key for key, text in traces.objects.items() if word in text] == []
    # Without the command's own, which the user typed, and which its children have until they exec.
    assert [title for title in traces.titles if word in title and "-m dray.cli " not in title] == []


@pytest.mark.parametrize("variable", QUIET)
def test_telemetry(variable: str, traces: Traces) -> None:
    """Nothing reports to anybody: Ray's processes, and so all workers, inherit that from the command."""
    assert len(traces.environments) >= 4, "a raylet and a head of each run"
    said = {f"{variable}={QUIET[variable]}" in text.split("\0") for text in traces.environments.values()}
    assert said == {True}


def test_pickle_elsewhere(traces: Traces) -> None:
    """Prefect keeps no result (it would be a pickle), not even where its setting asks for all of them."""
    assert [name for name in traces.files if "storage" in Path(name).parts] == []

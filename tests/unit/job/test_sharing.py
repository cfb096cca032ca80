"""Whole jobs that compute less: repeats, answers of earlier jobs, and rows made to fit; on threads."""

from __future__ import annotations

import errno
import json
import shlex
import sqlite3
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.cli.app import run_app
from dray.cli.jobs import export_failed
from dray.driver.events import Event
from dray.engine import simulated
from dray.engine.prompt_day import VARIABLE
from dray.errors import ConfigError, JobFailedError
from dray.job.beginning import opening
from dray.job.deleting import delete_job
from dray.job.ending import failed_requests
from dray.job.ending.failed_requests import FailedRequests, write_failed
from dray.job.options.resolving import NoBlocks
from dray.job.rows import reusing
from dray.requests.ingest import ingest
from dray.requests.model import FOLLOWED, REUSED, Request
from dray.requests.overflow import mark_of
from dray.requests.pulse import ReadingPulse
from dray.requests.sources import source_of
from dray.requests.spool.spool import decode
from dray.storage import ObjectStoreOptions
from dray.storage.files import exists
from dray.store import JobState, Store, open_store, reading
from tests.chaos import thread_job
from tests.support.lanes import parts_on

pytestmark = pytest.mark.unit

ROWS = 60
REPEATED = [number for number in range(ROWS) if number % 10 >= 7]


class Jobs:
    """Jobs of one store, each run to its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'jobs.db'}"
        self.store: Store = open_store(self.url)

    def run(self, name: str, texts: list[str], **options: Any) -> dict[str, Any]:
        fields = options.pop("fields", {"max_tokens": 4})
        url = options.pop("url", "/v1/chat/completions")
        path = self.folder / f"{name}.jsonl"
        with path.open("w") as file:
            for number, text in enumerate(texts):
                chat = {"messages": [{"role": "user", "content": text}]}
                body = (chat if "chat" in url else {"prompt": text}) | {"metadata": {"row": number}} | fields
                line = {"custom_id": f"{name}-{number}", "url": url, "body": body}
                file.write(f"{json.dumps(line)}\n")
        given = {"input": str(path), "output": str(self.folder / name), "store_url": self.url, "lost": []}
        thread_job.run(given | {"job": name} | options)
        result: dict[str, Any] = self.store.get_job(name).summary["result"]
        return result

    def shared(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.store.get_job(name).info["shared"]
        return found

    def places(self, name: str) -> dict[int, int]:
        return {row.index: row.shard for page in self.store.outcomes(name) for row in page}

    def files(self, name: str) -> list[str]:
        return [
            (self.folder / name / file).read_text().replace(f"{name}-", "")
            for file in ("output.jsonl", "errors.jsonl")
        ]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    for module, names in (
        ("dray.shard.pump", ["MICRO_BATCH_ROWS"]),
        ("dray.job.rows.spooling", ["PART_BYTES"]),
        ("dray.shard.placing", ["_ASK_EVERY"]),
        ("dray.shard.verdicts", ["_ASK_EVERY"]),
    ):
        for name in names:  # thread_job sets these; they are put back
            target = __import__(module, fromlist=[name])
            monkeypatch.setattr(target, name, getattr(target, name))
    monkeypatch.setenv("DRAY_NO_WAIT", "")
    return Jobs(tmp_path)


def texts() -> list[str]:
    return [f"prompt {number - 7 if number in REPEATED else number}" for number in range(ROWS)]


def test_repeated_rows_are_computed_once_and_the_files_are_the_same(jobs: Jobs) -> None:
    alone = jobs.run("alone", texts())
    once = jobs.run("once", texts(), dedupe=True)
    assert jobs.files("once") == jobs.files("alone")
    assert [n for n, place in jobs.places("once").items() if place == FOLLOWED] == REPEATED
    assert once["counts"] == alone["counts"]
    assert (once["saved"]["repeated"], once["saved"]["completion"]) == (len(REPEATED), 4 * len(REPEATED))
    assert once["tokens"]["completion"] == alone["tokens"]["completion"] - once["saved"]["completion"]
    assert alone["saved"] == {"repeated": 0, "reused": 0, "prompt": 0, "completion": 0}
    frame = jobs.store.to_dataframe("once")
    assert list(frame["custom_id"]) == [f"once-{n}" for n in range(ROWS)]
    assert set(frame["completion_tokens"]) == {4}


@pytest.mark.heavy(one_of=3)
def test_error_rows_are_shared_too(jobs: Jobs) -> None:
    found = [thread_job.REFUSED, "a", thread_job.POISON, "a", thread_job.REFUSED, thread_job.POISON]
    result = jobs.run("once", found, dedupe=True)
    jobs.run("alone", found)
    assert result["counts"]["failed"] == 4
    assert jobs.files("once") == jobs.files("alone")


def test_the_requests_of_error_rows_can_be_written_for_another_job(jobs: Jobs, tmp_path: Path) -> None:
    """Also of rows that repeat another one, which have no request of their own."""
    jobs.run("once", [thread_job.REFUSED, "a", thread_job.POISON, "a", thread_job.REFUSED], dedupe=True)
    file, job = tmp_path / "again.jsonl", jobs.store.get_job("once")
    assert write_failed(jobs.store, job, str(file)) == FailedRequests(rows=3, others=0, unread=0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    texts = {line["custom_id"]: line["body"]["messages"][0]["content"] for line in lines}
    assert texts == {
        "once-0": thread_job.REFUSED, "once-4": thread_job.REFUSED, "once-2": thread_job.POISON,
    }  # fmt: skip
    assert {line["body"]["max_tokens"] for line in lines} == {4}

    poison = tmp_path / "poison.jsonl"
    found = write_failed(jobs.store, job, str(poison), codes=["poison"])
    assert found == FailedRequests(rows=1, others=2, unread=0)
    assert '"once-2"' in poison.read_text()
    assert ingest(source_of([str(file)]), spool_uri=str(tmp_path / "spool")).requests == 3


def test_the_command_for_them_can_be_given_as_it_is_printed(
    jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.run("once", [thread_job.REFUSED, "a"])
    file = str(tmp_path / "error rows.jsonl")
    recipe = json.dumps({"rows": {"image_root": "/my photos"}})
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database, database:
        database.execute("update jobs set settings = json_set(settings, '$.recipe', json(?))", (recipe,))
    assert export_failed("once", file, jobs.url, codes=[], overwrite=False, json=False) == 0
    said = capsys.readouterr()
    assert said.out == f"{file}: 1 request\n"
    _, command, _ = said.err.split("`")
    assert shlex.split(command) == [
        "dray", "run", file, "--model", "MODEL", "--output", "ANOTHER_FOLDER", "--image-root", "/my photos",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "hint"), [("poisn", r"do you mean poison\?$"), ("429", "docs/error-rows.md has all codes$")]
)
def test_a_code_that_no_error_row_has_is_refused(jobs: Jobs, tmp_path: Path, code: str, hint: str) -> None:
    jobs.run("once", [thread_job.REFUSED, "a"])
    file = tmp_path / "again.jsonl"
    with pytest.raises(ConfigError, match=f"--code {code}: this version of dray has no such code .*; {hint}"):
        write_failed(jobs.store, jobs.store.get_job("once"), str(file), codes=["poison", code])
    assert not file.exists()


def test_requests_of_error_rows_replace_no_file_and_may_be_gone(jobs: Jobs, tmp_path: Path) -> None:
    jobs.run("once", [thread_job.REFUSED, "a"])
    job, file = jobs.store.get_job("once"), tmp_path / "again.jsonl"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="--overwrite"):
        write_failed(jobs.store, job, str(file))
    for spool in (jobs.folder / "once" / ".dray").rglob("requests-*"):
        spool.unlink()
    with pytest.raises(JobFailedError, match="requests that job once kept are gone"):
        write_failed(jobs.store, job, str(file), overwrite=True)
    assert file.read_text() == "mine"


def test_requests_that_may_not_be_read_are_told(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.run("once", [thread_job.REFUSED, "a"])

    def refuse(uri: str, **_: object) -> bool:
        if uri.endswith(".jsonl") and ".dray" in uri:
            raise PermissionError(errno.EACCES, "Permission denied")
        return exists(uri)

    monkeypatch.setattr(failed_requests, "exists", refuse)
    told = r"requests-1\.jsonl: the requests that the job kept cannot be read: Permission denied"
    with pytest.raises(JobFailedError, match=told):
        write_failed(jobs.store, jobs.store.get_job("once"), str(tmp_path / "again.jsonl"))


def test_requests_of_error_rows_are_read_by_the_keys_of_a_block(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a job whose bucket only a block opens were looked for with the environment's keys."""
    jobs.run("once", [thread_job.REFUSED, "a", thread_job.REFUSED], dedupe=True)
    options, seen = ObjectStoreOptions(endpoint="http://127.0.0.1:9"), []

    class Blocks(NoBlocks):
        def objects(self, name: str) -> ObjectStoreOptions:
            assert name == "keys"
            return options

    def recorded(name: str) -> None:
        real = getattr(failed_requests, name)

        def call(*places: Any, options: Any, **more: Any) -> Any:
            seen.append((name, options))
            return real(*places, options=options, **more)

        monkeypatch.setattr(failed_requests, name, call)

    for name in ("exists", "read_shard", "write_atomic"):
        recorded(name)
    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", lambda: nullcontext(Blocks()))
    file = str(tmp_path / "again.jsonl")
    command = ["export", "once", "--failed-requests", file, "--store", jobs.url, "--objects", "block:keys"]
    assert run_app(command) == 0
    assert {name for name, _ in seen} == {"exists", "read_shard", "write_atomic"}
    assert {given for _, given in seen} == {options}


def test_answers_of_earlier_jobs_are_taken_and_errors_are_not(jobs: Jobs) -> None:
    first = ["a", "b", thread_job.REFUSED, "c"]
    jobs.run("first", first)
    second = ["b", "x", thread_job.REFUSED, "c", "b"]
    jobs.run("alone", second)
    delete_job(jobs.store, "alone")
    result = jobs.run("second", second, reuse=True, dedupe=True)
    assert jobs.places("second")[0] == jobs.places("second")[3] == jobs.places("second")[4] == REUSED
    assert (jobs.places("second")[1] >= 0, jobs.places("second")[2] >= 0) == (True, True)
    assert (result["saved"]["reused"], result["counts"]["done"], result["counts"]["failed"]) == (3, 4, 1)
    jobs.run("again", second)
    assert jobs.files("second") == jobs.files("again")


def test_a_job_that_took_its_answers_hands_them_on(jobs: Jobs) -> None:
    jobs.run("first", ["a", "b"])
    jobs.run("second", ["a", "b", "c"], reuse=True)
    delete_job(jobs.store, "first")
    result = jobs.run("third", ["a", "b", "c"], reuse=True)
    assert (result["saved"]["reused"], result["counts"]["done"]) == (3, 3)
    assert jobs.store.get_job("third").state is JobState.COMPLETED


@pytest.mark.heavy(one_of=3)
def test_so_does_a_job_that_took_all_of_them(jobs: Jobs) -> None:
    """It had no engine, and no shard that says where its spool was; a second driver wrote its files again."""
    jobs.run("first", ["a", "b"])
    for _ in range(2):
        jobs.run("second", ["a", "b"], reuse=True)
    assert jobs.store.get_job("second").epoch == 2
    (kept,) = (jobs.folder / "second" / ".dray").rglob("*.reused")
    assert b"choices" not in kept.read_bytes()
    delete_job(jobs.store, "first")
    result = jobs.run("third", ["a", "b"], reuse=True)
    assert (result["saved"]["reused"], result["counts"]["done"]) == (2, 2)


def test_only_answered_requests_are_read_of_earlier_jobs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.run("refused", [thread_job.REFUSED] * 3)
    for spool in (jobs.folder / "refused" / ".dray").rglob("requests-*.jsonl"):
        spool.unlink()  # it is not missed: no row of its shard has an answer
    jobs.run("first", ["a", thread_job.REFUSED, "b", thread_job.REFUSED])
    decoded: list[Request] = []
    signs: list[int] = []
    heard: list[Event] = []
    real = ReadingPulse.row
    observers = [SimpleNamespace(hear=heard.append)]
    monkeypatch.setattr(thread_job, "parts_on", partial(parts_on, observers=observers))
    monkeypatch.setattr(reusing, "_ASKED_ROWS", 1)

    def noted(line: bytes) -> Request:
        decoded.append(decode(line))
        return decoded[-1]

    def sign(pulse: ReadingPulse) -> None:
        signs.append(len(decoded))
        real(pulse)

    monkeypatch.setattr(reusing, "decode", noted)
    monkeypatch.setattr(ReadingPulse, "row", sign)
    result = jobs.run("second", ["b"], reuse=True)
    assert (result["saved"]["reused"], jobs.shared("second")["notes"]) == (1, [])
    assert [row.index for row in decoded] == [0, 2]
    assert "ingest: reading the requests of 2 earlier jobs (7 rows) for --reuse" in [e.text for e in heard]
    assert signs.count(1) == 3  # also for the refused row after the first one, and behind an answer


def test_large_answers_of_two_jobs_are_taken_one_at_a_time(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.run("first", ["a", "b"])
    jobs.run("second", ["c", "d"])
    for module in (reading, reusing):
        monkeypatch.setattr(module, "_PAGE_BYTES", 1)
    real, sizes = reusing.EarlierAnswers.answers, []

    def noted(*given: Any) -> Any:
        found = real(*given)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(reusing.EarlierAnswers, "answers", noted)
    result = jobs.run("third", ["d", "a", "x", "b", "c", "a"], reuse=True)
    assert (result["saved"]["reused"], result["counts"]["done"]) == (5, 6)
    assert sizes == [1] * 5


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("differs", ["version", "arguments", "policy", "nothing before"])
def test_answers_that_might_be_others_are_not_taken_and_the_reason_is_told(
    jobs: Jobs, differs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if differs != "nothing before":
        jobs.run("first", ["a", "b"], **({"overflow": "cut-head"} if differs == "policy" else {}))
    if differs == "version":
        monkeypatch.setattr(simulated, "__version__", "99")
        monkeypatch.setattr(reusing, "version_here", lambda engine: "99")
    elif differs == "arguments":
        monkeypatch.setattr(thread_job, "REFUSED", "is refused otherwise")
    result = jobs.run("second", ["a", "b"], reuse=True)
    assert result["saved"]["reused"] == 0
    (note,) = jobs.shared("second")["notes"]
    said = {
        "version": "1 other job left out: another version of simulated (",
        "arguments": "1 other job left out: another model, engine, or arguments",
        "policy": "1 other job left out: another model, engine, or arguments",
        "nothing before": "the store has no other job",
    }
    assert note.startswith(said[differs])


@pytest.mark.parametrize(
    ("holds", "url", "day", "taken"),
    [
        (True, "/v1/chat/completions", "2001-02-03", 2),
        (True, "/v1/chat/completions", "2001-02-04", 0),
        (False, "/v1/chat/completions", "2001-02-04", 2),
        (True, "/v1/completions", "2001-02-04", 2),
    ],
    ids=["same day", "another day", "no day in prompts", "no template"],
)
def test_answers_to_prompts_of_another_day_are_not_taken(
    jobs: Jobs, holds: bool, url: str, day: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To "What is due this week?" a job got the answer of last month."""
    monkeypatch.setattr(reusing, "may_hold_day", lambda job: holds)
    monkeypatch.setenv(VARIABLE, "2001-02-03")
    jobs.run("first", ["a", "b"], url=url)
    monkeypatch.setenv(VARIABLE, day)
    assert jobs.run("second", ["a", "b"], url=url, reuse=True)["saved"]["reused"] == taken
    said = (
        f"1 other job left out: its prompts have 2001-02-03 as today, not {day}; {VARIABLE}=2001-02-03 "
        "begins a job with that day"
    )
    assert jobs.shared("second")["notes"] == ([] if taken else [said])


def test_answers_to_prompts_of_an_unknown_day_are_not_taken(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that an earlier version of dray began: its replicas looked at their clocks."""
    monkeypatch.setattr(reusing, "may_hold_day", lambda job: True)
    monkeypatch.setenv(VARIABLE, "2001-02-03")
    with monkeypatch.context() as patch:
        patch.setattr(opening, "DAY", "noted elsewhere")
        jobs.run("first", ["a", "b"])
    assert jobs.run("second", ["a", "b"], reuse=True)["saved"]["reused"] == 0
    (note,) = jobs.shared("second")["notes"]
    assert note.endswith("may have another day as today than 2001-02-03; dray noted none yet")


def test_answers_of_a_job_whose_requests_are_gone_are_not_taken(jobs: Jobs) -> None:
    jobs.run("first", ["a", "b"])
    for spool in (jobs.folder / "first" / ".dray").rglob("requests-*.jsonl"):
        spool.unlink()
    result = jobs.run("second", ["a", "b"], reuse=True)
    assert result["saved"]["reused"] == 0
    assert "job first: its requests cannot be read" in jobs.shared("second")["notes"][0]


def test_sampled_rows_are_computed_each_and_counted(jobs: Jobs) -> None:
    jobs.run("once", ["a", "a", "a"], dedupe=True, fields={"temperature": 1})
    assert (jobs.shared("once")["followers"], jobs.shared("once")["doubts"]) == (0, {"sampled": 3})


@pytest.mark.parametrize(
    ("policy", "wanted", "done"),
    [
        ("shorten", 30, {"shortened": 1}),
        ("cut-head", 30, {"cut-head": 2}),
        ("cut-tail", 30, {"cut-tail": 2}),
    ],
)
def test_rows_that_do_not_fit_are_made_to_and_marked(
    jobs: Jobs, policy: str, wanted: int, done: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_job, "MAX_MODEL_LEN", 50)
    rows = ["short", "s" * 100 + "e" * 60, "s" * 200 + "e" * 200]
    result = jobs.run("job", rows, overflow=policy, fields={"max_tokens": wanted})
    assert result["overflow"] == done
    answers = {row.index: row for page in jobs.store.outcomes("job") for row in page}
    assert mark_of(answers[0].response) is None
    assert mark_of(answers[1].response) == next(iter(done))
    body = json.loads(answers[1].response or b"")
    if policy == "shorten":
        assert (body["dray"], answers[1].completion_tokens) == (
            {"overflow": "shortened", "max_tokens": 10},
            10,
        )
        assert answers[2].error_code == "context_length_exceeded"
    else:
        assert body["dray"] == {"overflow": policy, "dropped_tokens": 20}
        assert (answers[2].prompt_tokens, answers[2].completion_tokens) == (20, 30)

"""The commands as users type them, one job after the other in one folder."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dray.errors import JobBusyError
from dray.owner import is_gone, owner_name
from dray.store import open_store
from tests.support.command import CANARY, Command, Ended, committed, dray, run_arguments, write_requests

pytestmark = pytest.mark.acceptance

ROWS = 300
KEYS: dict[str, type | set[str]] = {
    "job_id": str,
    "state": str,
    "counts": {"total", "done", "failed", "skipped"},
    "tokens": {"prompt", "cached", "completion"},
    "seconds": {"total", "ingest", "cluster", "weights", "engine_start", "inference", "finalise", "other"},
    "interruptions": int,
    "retries": dict,
    "output": str,
    "errors": str,
    "report": str,
}
# 8 tokens at 0.1 s, 32 at a time: about 8 s of inference, a batch of answers every 0.8 s.
SLOW = ("seconds_per_token=0.1", "max_num_seqs=32")


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_requests(tmp_path_factory.mktemp("requests") / "in.jsonl", ROWS)


@pytest.fixture(scope="module")
def undisturbed(requests: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A run from start to end, with a Prefect server of its own, as on a machine where none is configured.

    The proxies in its environment, of which nothing answers, are not for the connections of this machine.
    """
    folder = tmp_path_factory.mktemp("undisturbed")
    names = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
    command = Command(
        arguments=run_arguments(requests, folder / "out"),
        folder=folder / "log",
        own_server=True,
        environment={**dict.fromkeys(names, "http://127.0.0.1:9"), "NO_PROXY": "example.org", "no_proxy": ""},
    )
    ended = command.wait()
    command.assert_nothing_left()
    return folder / "out", ended


def test_a_run_says_what_it_did(undisturbed: tuple[Path, Ended]) -> None:
    output, ended = undisturbed
    assert ended.code == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    for key, expected in KEYS.items():
        found = ended.json[key]
        assert set(found) >= expected if isinstance(expected, set) else isinstance(found, expected), key
    assert ended.json["counts"] == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": 0}
    assert Path(ended.json["output"]).read_bytes().count(b"\n") == ROWS
    assert Path(ended.json["errors"]).read_bytes() == b""
    assert Path(ended.json["report"]).is_file()
    assert ended.json["output"] == str(output / "output.jsonl")
    assert "ingest" in ended.stderr  # the run's log


def test_prompts_are_in_the_spool_and_nowhere_else(undisturbed: tuple[Path, Ended]) -> None:
    output, ended = undisturbed
    assert CANARY not in ended.stdout + ended.stderr
    with_canary = [path.name for path in _files(output) if CANARY.encode() in path.read_bytes()]
    assert with_canary == ["requests-1.jsonl"]
    prefect = Path(os.environ["PREFECT_HOME"])
    assert (prefect / "prefect.db").is_file()
    assert not [path.name for path in _files(prefect) if CANARY.encode() in path.read_bytes()]


@pytest.mark.heavy(one_of=3)
def test_the_same_again_skips_everything_and_writes_the_same(
    undisturbed: tuple[Path, Ended], requests: Path, tmp_path: Path
) -> None:
    output, first = undisturbed
    before = (output / "output.jsonl").read_bytes()
    (output / "output.jsonl").unlink()
    again = dray(tmp_path, *run_arguments(requests, output))
    assert again.code == 0, again.stderr
    assert again.json["counts"] == {"total": ROWS, "done": ROWS, "failed": 0, "skipped": ROWS}
    assert again.json["seconds"]["engine_start"] == 0
    assert (output / "output.jsonl").read_bytes() == before
    assert first.json["job_id"] == again.json["job_id"]


@pytest.mark.heavy(one_of=3)
def test_what_reads_the_store(undisturbed: tuple[Path, Ended], tmp_path: Path) -> None:
    output, _ = undisturbed
    store = ("--store", str(output), "--json")
    status = dray(tmp_path, "status", *store)
    assert (status.code, status.json["job_id"], status.json["state"]) == (0, "job", "completed")
    assert status.json["counts"] == {"total": ROWS, "done": ROWS, "failed": 0, "pending": 0}
    jobs = dray(tmp_path, "jobs", *store)
    assert [job["job_id"] for job in jobs.json["jobs"]] == ["job"]
    exported = dray(tmp_path, "export", "job", "--output", str(tmp_path / "exported"), *store)
    assert exported.code == 0
    assert (tmp_path / "exported/output.jsonl").read_bytes() == (output / "output.jsonl").read_bytes()
    parquet = dray(tmp_path, "export", "job", "--output", str(tmp_path / "pq"), "--format", "parquet", *store)
    assert parquet.code == 0
    assert (tmp_path / "pq/output.parquet").is_file()
    report = dray(tmp_path, "report", "job", "--output", str(tmp_path / "again.html"), *store)
    assert report.code == 0
    assert (tmp_path / "again.html").read_bytes() == (output / "report.html").read_bytes()
    for command in (("status", "other"), ("resume", "other"), ("cancel", "other"), ("report", "other")):
        unknown = dray(tmp_path, *command, *store)
        assert unknown.code == 2, command
        assert unknown.json["error"]["type"] == "UnknownJobError"
        assert "'other'" in unknown.stderr


def test_people_get_what_they_asked_for_on_stdout(undisturbed: tuple[Path, Ended], tmp_path: Path) -> None:
    output, _ = undisturbed
    status = dray(tmp_path, "status", "--store", str(output))
    assert (status.code, status.stderr) == (0, "")
    assert f"{ROWS} done, 0 errors, 0 left of {ROWS} (100%)" in status.stdout


def test_doctor_looks_at_this_machine(undisturbed: tuple[Path, Ended], tmp_path: Path) -> None:
    output, _ = undisturbed
    good = dray(tmp_path, "doctor", "--store", str(output), "--json")
    checks = {check["name"]: check for check in good.json["checks"]}
    assert checks["python"]["ok"]
    assert checks["ray"]["ok"]
    assert checks["store"]["detail"] == "reachable, 1 jobs"
    bad = dray(tmp_path, "doctor", "--model", str(tmp_path), "--json")
    assert bad.code == 1
    assert not {check["name"]: check for check in bad.json["checks"]}["model"]["ok"]


def test_bad_lines_are_all_named_before_any_engine_starts(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "bad.jsonl", 3)
    with requests.open("a") as file:
        file.write('{"custom_id": "row-0"}\n[]\n')
    command = Command(arguments=run_arguments(requests, tmp_path / "out"), folder=tmp_path / "log")
    ended = command.wait()
    assert ended.code == 2, ended.stderr
    assert "the input cannot be used: 3 problems" in ended.stderr
    assert f"{requests}:4" in ended.stderr
    assert f"{requests}:5" in ended.stderr
    assert "replica" not in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.json["error"]["type"] == "InputError"
    assert "starting Ray" not in ended.stderr
    assert not (tmp_path / "out").exists()  # nor is there a job that would have failed
    command.assert_nothing_left()


@pytest.mark.heavy
def test_a_run_that_fails_leaves_no_exceptions_in_prefects_storage(tmp_path: Path) -> None:
    """Nor in that of a home: ``PREFECT_HOME`` moves all but this folder."""
    requests = write_requests(tmp_path / "bad.jsonl", 20_000)  # more than is looked at before the run
    with requests.open("a") as file:
        file.write("[]\n")
    environment = {"HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
    (tmp_path / "prefect").mkdir()
    arguments = run_arguments(requests, tmp_path / "out")
    ended = dray(tmp_path, *arguments, environment=environment, own_server=True)
    assert (ended.code, ended.json["error"]["type"]) == (2, "InputError"), ended.stderr
    assert "job: new" in ended.stderr or "job job: new" in ended.stderr
    assert (tmp_path / "prefect/prefect.db").is_file()
    assert not list(tmp_path.rglob("storage"))


@pytest.mark.heavy
def test_cancel_from_elsewhere_then_resume(
    undisturbed: tuple[Path, Ended], requests: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    command = Command(arguments=run_arguments(requests, output, settings=SLOW), folder=tmp_path / "log")
    command.until(lambda: committed(output) > 0, what="the first commit")
    with (
        open_store(f"sqlite:///{output / 'dray.db'}", create=False) as store,
        pytest.raises(JobBusyError, match=f"process {command.process.pid} on "),
    ):
        store.claim_job("job", owner_name(), takeover=is_gone)  # as a second `dray run` would
    cancelled = dray(tmp_path, "cancel", "job", "--store", str(output), "--json")
    assert cancelled.code == 0
    ended = command.wait()
    _check_cancelled(ended, command, output)
    assert dray(tmp_path, "status", "--store", str(output), "--json").json["state"] == "cancelled"
    again = dray(tmp_path, *run_arguments(requests, output, settings=SLOW))  # as a restart policy does
    assert again.code == 130
    assert f"`dray resume job --store {output}`" in again.stderr
    resumed = dray(tmp_path, "resume", "job", "--store", str(output), "--json")
    _check_resumed(resumed, ended, output, undisturbed[0])


@pytest.mark.heavy
def test_ctrl_c_once_ends_cleanly(undisturbed: tuple[Path, Ended], requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = run_arguments(requests, output, settings=SLOW)
    command = Command(arguments=arguments, folder=tmp_path / "log")
    command.until(lambda: committed(output) > 0, what="the first commit")
    command.interrupt()
    ended = command.wait()
    assert "Ctrl-C again" in ended.stderr
    _check_cancelled(ended, command, output)
    _check_resumed(dray(tmp_path, *arguments), ended, output, undisturbed[0])


@pytest.mark.heavy
def test_ctrl_c_twice_stops_at_once(undisturbed: tuple[Path, Ended], requests: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = run_arguments(requests, output, settings=SLOW)
    command = Command(arguments=arguments, folder=tmp_path / "log")
    command.until(lambda: committed(output) > 0, what="the first commit")
    command.interrupt()
    command.until(lambda: "Ctrl-C again" in command.stderr(), what="the first Ctrl-C is answered")
    command.interrupt()
    began = time.monotonic()
    ended = command.wait(60)
    assert time.monotonic() - began < 5
    assert ended.code == 130
    assert "stopped at once" in ended.stderr
    command.assert_nothing_left()
    before = committed(output)
    resumed = dray(tmp_path, *arguments)
    assert resumed.code == 0, resumed.stderr
    assert resumed.json["counts"]["skipped"] >= before > 0
    assert (output / "output.jsonl").read_bytes() == (undisturbed[0] / "output.jsonl").read_bytes()


@pytest.mark.heavy
def test_sigterm_ends_it_as_ctrl_c_does(
    undisturbed: tuple[Path, Ended], requests: Path, tmp_path: Path
) -> None:
    """As a container's or a service's stop sends it: to the command alone."""
    output = tmp_path / "out"
    arguments = run_arguments(requests, output, settings=SLOW)
    command = Command(arguments=arguments, folder=tmp_path / "log")
    command.until(lambda: committed(output) > 0, what="the first commit")
    command.process.terminate()
    ended = command.wait(60)
    assert "finished rows are kept" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "*** SIGTERM" not in ended.stderr  # Ray's words for it, with a stack
    _check_cancelled(ended, command, output)
    _check_resumed(dray(tmp_path, *arguments), ended, output, undisturbed[0])


def test_ctrl_c_before_there_is_a_job_stops_at_once(requests: Path, tmp_path: Path) -> None:
    command = Command(arguments=run_arguments(requests, tmp_path / "out"), folder=tmp_path / "log")
    command.until(lambda: len(command.note_processes()) > 1, what="the first process of Ray")
    command.interrupt()
    ended = command.wait(60)
    assert ended.code == 130, ended.stderr
    command.assert_nothing_left()


def _check_cancelled(ended: Ended, command: Command, output: Path) -> None:
    assert ended.code == 130, ended.stderr
    assert ended.json["state"] == "cancelled"
    finished = ended.json["counts"]["done"]
    assert 0 < finished < ROWS
    assert finished == committed(output)
    assert not (output / "output.jsonl").exists()  # it would look like that of a job that is done
    assert f"`dray export job --output FOLDER --store {output}`" in ended.stderr
    assert CANARY not in ended.stderr
    command.assert_nothing_left()


def _check_resumed(resumed: Ended, cancelled: Ended, output: Path, undisturbed: Path) -> None:
    assert resumed.code == 0, resumed.stderr
    assert resumed.json["counts"]["skipped"] == cancelled.json["counts"]["done"]
    assert resumed.json["counts"]["done"] == ROWS
    assert (output / "output.jsonl").read_bytes() == (undisturbed / "output.jsonl").read_bytes()


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]

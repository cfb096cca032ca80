"""What of a command reaches Prefect, which keeps the parameters of every run; and what if Prefect fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dray.cli import output, running, stopping, terminal, with_prefect
from dray.cli.output import explain
from dray.cli.results import stored_result, summarise
from dray.cli.running import _without_logins, run_job
from dray.cli.stopping import signals_stop
from dray.cli.with_prefect import _despite, _the_flow
from dray.errors import ConfigError, DrayError, FencedError, JobPausedError, StoreFatalError
from dray.job import current_job
from dray.job.beginning.opening import open_job
from dray.job.ending.finalising import cancelled_message
from dray.job.ending.result import JobResult
from dray.job.open_job import OpenJob
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.requests.sources import RowDefaults, source_of
from dray.store import JobState, open_store, store_option

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:hidden-word@host/dray", "postgresql://host/dray?user=me&password=hidden-word"],
)
@pytest.mark.parametrize("name", ["store", "input"])
def test_a_url_with_a_password_goes_by_the_environment(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"DRAY_{name.upper()}_URL"
    monkeypatch.setenv(variable, "")
    given: dict[str, Any] = {"input": ["in.jsonl"], "model": "m", "output": "out", name: url}
    request = _without_logins(JobRequest.of(**given))
    assert getattr(request, name) == f"env:{variable}"
    assert os.environ[variable] == url
    assert "hidden-word" not in str(request)


def test_so_does_the_one_database_of_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_INPUT_URL", "")
    rows = {"query": "select text from t", "prompt_column": "text"}
    request = _without_logins(JobRequest.of(["postgresql://me:hidden-word@host/db"], "m", "out", rows=rows))
    assert request.input == "env:DRAY_INPUT_URL"
    assert os.environ["DRAY_INPUT_URL"] == "postgresql://me:hidden-word@host/db"


def test_anything_else_stays() -> None:
    request = JobRequest.of(["s3://bucket/in.jsonl"], "m", "out", store="sqlite:////data/dray.db")
    assert _without_logins(request) == request


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenJob:
    """One that this process drives."""
    monkeypatch.setattr(current_job, "_driven", [])
    inputs = tmp_path / "in.jsonl"
    inputs.write_text('{"custom_id": "1", "body": {"messages": [{"role": "user", "content": "x"}]}}\n')
    settings = JobSettings(
        source=source_of(str(inputs)),
        defaults=RowDefaults(),
        model="simulated",
        engine="simulated",
        output=str(tmp_path / "out"),
        store_url=f"sqlite:///{tmp_path / 'jobs.db'}",
    )
    return open_job(settings)


def test_a_job_that_is_done_is_so_though_prefect_fails(
    job: OpenJob, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(job.settings.store_url, create=False) as store:
        store.set_job_summary(job.lease, {"result": {"job_id": job.job_id, "state": "completed"}})
        store.set_job_state(job.lease, JobState.COMPLETED)
    assert _despite(OSError("away")) == {"job_id": job.job_id, "state": "completed"}
    assert "the job is done; Prefect was not told so (OSError)" in capsys.readouterr().err


def test_a_job_that_is_not_done_says_how_to_go_on(job: OpenJob) -> None:
    with pytest.raises(
        DrayError, match=rf"Prefect failed: OSError: away; `dray resume {job.job_id} --store .*` goes on"
    ):
        _despite(OSError("away"))


@pytest.mark.parametrize("error", [JobPausedError("the head is gone"), StoreFatalError("the disk is full")])
def test_a_pause_ends_with_the_command_that_goes_on(
    job: OpenJob, capsys: pytest.CaptureFixture[str], error: DrayError
) -> None:
    with pytest.raises(type(error)) as raised, running._pauses_noted():
        raise error
    explain(raised.value)
    where = f"--store {Path(job.settings.store_url.removeprefix('sqlite:///'))}"
    assert capsys.readouterr().err.splitlines() == [
        f"dray: {error}",
        f"  `dray resume {job.job_id} {where}` goes on; finished rows are kept",
    ]


@pytest.mark.parametrize(
    "told",
    [
        "out/report.html cannot be written: No space left; free space there, then `dray resume JOB` "
        "or the same command goes on",
        "store x: the disk is full: free space, then resume the job (SQLITE_FULL)",
    ],
)
def test_a_command_that_runs_no_job_has_none_to_resume(
    told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.job.current_job.latest", lambda: None)
    explain(DrayError(told))
    said = capsys.readouterr().err
    assert "then give the same command again" in said
    assert "resume" not in said


def test_one_that_names_it_does_not_say_it_twice(job: OpenJob) -> None:
    resume = f"`dray resume {job.job_id}{store_option(job.settings.store_url)}` goes on"
    with pytest.raises(JobPausedError) as paused, running._pauses_noted():
        raise JobPausedError("free space there, then `dray resume JOB` goes on")
    assert str(paused.value) == f"free space there, then {resume}"
    assert not hasattr(paused.value, "__notes__")
    raised_budget = f"`dray resume {job.job_id} --budget DOLLARS --store out` with a higher budget goes on"
    for error in (
        JobPausedError(f"suspended; {resume}"),
        JobPausedError(f"the budget is spent: {raised_budget}"),
        FencedError("another driver has it"),
    ):
        with pytest.raises(DrayError) as raised, running._pauses_noted():
            raise error
        assert not hasattr(raised.value, "__notes__")


def test_without_a_job_there_is_nothing_to_go_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_job, "_driven", [])
    with pytest.raises(DrayError, match=r"Prefect failed: OSError: away$"):
        _despite(OSError("away"))


def test_what_is_refused_before_there_is_a_run_is_no_failure_of_prefects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(**_: Any) -> None:
        raise ConfigError("Prefect's server takes at most 524,288 bytes")

    monkeypatch.setattr(with_prefect, "_the_flow", lambda: (refused, lambda: None, None))
    with pytest.raises(ConfigError, match=r"^Prefect's server takes at most"):
        with_prefect._run_flow({}, None)


def test_a_run_cancelled_before_there_is_a_result_says_what_is_kept(
    job: OpenJob, capsys: pytest.CaptureFixture[str]
) -> None:
    result = stored_result()
    assert result.keys() == {one.name for one in fields(JobResult)}
    assert result["counts"] == {"total": 0, "done": 0, "failed": 0, "skipped": 0}
    summarise(result)
    assert capsys.readouterr().err.splitlines() == [
        "",
        f"job       {job.job_id}  cancelled",
        "rows      0 done, 0 failed of 0",
        "tokens    0 prompt (0 cached), 0 completion",
    ]


def test_a_run_cancelled_before_there_is_a_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(current_job, "_driven", [])
    summarise(stored_result())
    assert "job       none yet  cancelled" in capsys.readouterr().err


class Over(Exception):  # noqa: N818  the end of the process, which a test outlives
    pass


@pytest.fixture
def in_a_terminal() -> Iterator[None]:
    """Its closing ends a process; these tests may run under nohup themselves."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the process would have ended at once."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Over

    monkeypatch.setattr(stopping, "kill_descendants", lambda: None)
    monkeypatch.setattr(os, "_exit", leave)
    return codes


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job_and_a_second_one_ends_all(
    first: signal.Signals, second: signal.Signals, job: OpenJob, killed: list[int]
) -> None:
    with signals_stop():
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("Prefect had it"))  # as the flow begins
        current_job.note(job)
        signal.raise_signal(first)
        with open_store(job.settings.store_url, create=False) as store:
            deadline = time.monotonic() + 10
            while not store.get_job(job.job_id).cancel_requested:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert killed == []
        with pytest.raises(Over):
            signal.raise_signal(second)
        assert killed == [130]


@pytest.mark.usefixtures("in_a_terminal")
def test_a_terminal_that_closes_cancels_the_job(job: OpenJob, killed: list[int]) -> None:
    """A rented cluster ran on until it expired. The shell sends the signal again, and means no more by it."""
    with signals_stop():
        current_job.note(job)
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        wait_for_the_order(job)
        assert killed == []
        with pytest.raises(Over):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.usefixtures("in_a_terminal")
def test_a_run_that_is_to_outlive_its_terminal_does() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with signals_stop():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


class Gone:
    """A stream whose reader has died, as `tee` does by the same Ctrl-C."""

    def write(self, _text: str) -> None:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise OSError

    def isatty(self) -> bool:
        return False


def wait_for_the_order(job: OpenJob) -> None:
    with open_store(job.settings.store_url, create=False) as store:
        deadline = time.monotonic() + 10
        while not store.get_job(job.job_id).cancel_requested:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_signals_stop_the_job_though_stderr_is_gone(
    job: OpenJob, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word of it failed, and the store was never asked to cancel."""
    with signals_stop():
        current_job.note(job)
        monkeypatch.setattr(sys, "stderr", Gone())
        signal.raise_signal(signal.SIGINT)
        wait_for_the_order(job)
        with pytest.raises(Over):
            signal.raise_signal(signal.SIGINT)
        assert killed == [130]


def test_a_signal_is_heeded_whatever_becomes_of_the_word_of_it(
    job: OpenJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(_text: str) -> None:
        raise RuntimeError("reentrant call")  # the signal came while the main thread was writing

    monkeypatch.setattr("dray.cli.output.say", say)
    with signals_stop():
        current_job.note(job)
        with pytest.raises(RuntimeError):
            signal.raise_signal(signal.SIGINT)
        wait_for_the_order(job)


@pytest.mark.parametrize(
    ("state", "code"), [("completed", 0), ("failed", 1), ("expired", 1), ("cancelled", 130)]
)
def test_the_exit_code_of_a_run_counts_though_its_readers_are_gone(
    state: str, code: int, job: OpenJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {**stored_result(), "state": state}
    monkeypatch.setattr(running, "preflight", lambda _: None)
    monkeypatch.setattr(running, "quieten", lambda: None)
    monkeypatch.setattr(running, "has_flows", lambda: False)
    monkeypatch.setattr(running, "run_plain", lambda _: result)
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(sys, "stderr", Gone())
    request = JobRequest.of("in.jsonl", "m", "out")
    assert [run_job(request, json=json) for json in (False, True)] == [code, code]


@pytest.mark.parametrize(("json", "lines"), [(False, 0), (False, 1), (True, 1)])
def test_the_exit_code_of_a_run_counts_though_its_terminal_has_closed(
    json: bool, lines: int, job: OpenJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where SIGHUP is ignored: the bar could not be taken off, nor the result told, and the run failed."""
    ours, its = os.openpty()
    monkeypatch.setattr(running, "preflight", lambda _: None)
    monkeypatch.setattr(running, "quieten", lambda: None)
    monkeypatch.setattr(running, "has_flows", lambda: False)
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def run(_request: JobRequest) -> dict[str, Any]:
        assert terminal.is_live() is not json
        os.close(ours)
        for _ in range(lines):
            output.stage("a line")
        return {**stored_result(), "state": "completed"}

    monkeypatch.setattr(running, "run_plain", run)
    with os.fdopen(its, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        monkeypatch.setattr(sys, "stderr", closed)
        assert run_job(JobRequest.of("in.jsonl", "m", "out"), json=json) == 0


def test_a_run_says_which_server_of_prefect_it_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a profile, too: the line said that Prefect starts."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    profiles = 'active = "a"\n[profiles.a]\nPREFECT_API_URL = "http://prefect.host:4200/api"\n'
    (tmp_path / "profiles.toml").write_text(profiles)
    monkeypatch.setattr(running, "preflight", lambda request: None)
    monkeypatch.setattr(running, "quieten", lambda: None)
    monkeypatch.setattr(running, "run_flow", lambda request: {"state": "completed"})
    monkeypatch.setattr(running, "has_flows", lambda: True)
    assert run_job(JobRequest.of("in.jsonl", "m", "out"), json=True) == 0
    assert "Prefect is at http://prefect.host:4200/api" in capsys.readouterr().err


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_refused_run_says_so_by_its_exit_code_to_no_reader(options: list[str], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    output = str(tmp_path / "out")
    arguments = ["run", str(tmp_path / "none.jsonl"), "--model", "m", "--output", output, *options]
    command = [sys.executable, "-m", "dray.cli", *arguments]
    try:
        done = subprocess.run(command, stdout=writer, stderr=writer, timeout=120, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 2


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_without_a_job_a_signal_ends_all(
    number: signal.Signals, killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_job, "_driven", [])
    before = signal.getsignal(number)
    with signals_stop(), pytest.raises(Over):
        signal.raise_signal(number)
    assert killed == [130]
    assert signal.getsignal(number) is before


def test_rays_alarm_after_a_sigterm_is_called_off(job: OpenJob, killed: list[int]) -> None:
    with signals_stop():
        signal.alarm(100)
        signal.raise_signal(signal.SIGTERM)
        assert signal.alarm(0) == 0


def test_a_prefect_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "flows.batch_inference", None
    )  # as where something that it needs is missing
    with pytest.raises(ConfigError, match=r"Prefect's flow cannot be imported .*make install"):
        _the_flow()


def test_a_stopped_run_with_finished_rows_names_the_store_of_its_export(
    job: OpenJob, capsys: pytest.CaptureFixture[str]
) -> None:
    result = stored_result()
    summarise({**result, "counts": {**result["counts"], "total": 2, "done": 1}})
    file = job.settings.store_url.removeprefix("sqlite:///")
    told = f"output    none; `dray export {job.job_id} --output FOLDER --store {file}` writes what is done"
    assert capsys.readouterr().err.splitlines()[-1] == told
    assert cancelled_message(job).endswith(f"--output FOLDER --store {file}` writes them to files")


@pytest.mark.parametrize(
    ("failed", "codes", "told"),
    [
        (40, {"context_length_exceeded": 40}, "warning   all 40 rows failed: context_length_exceeded"),
        (40, {"poison": 2, "expired": 38}, "warning   all 40 rows failed: expired (38 of them)"),
        (39, {"expired": 39}, None),
        (40, {}, None),  # the result of an earlier version
    ],
)
def test_a_job_of_which_every_row_failed_says_so_last(
    failed: int, codes: dict[str, int], told: str | None, job: OpenJob, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"total": 40, "done": 40 - failed, "failed": failed, "skipped": 0}
    files = {"output": "o", "errors": "e", "report": "r"}
    summarise({**stored_result(), **files, "counts": counts, "error_codes": codes})
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == told if told else not last.startswith("warning")


def test_what_one_row_saved_is_said_in_the_singular(job: OpenJob, capsys: pytest.CaptureFixture[str]) -> None:
    saved = {"repeated": 1, "reused": 2, "prompt": 5, "completion": 4}
    summarise({**stored_result(), "saved": saved})
    assert "saved     1 repeated row, 2 answers of earlier jobs: " in capsys.readouterr().err


def test_a_repeat_that_had_nothing_to_do_says_no_parts_of_its_seconds(
    job: OpenJob, capsys: pytest.CaptureFixture[str]
) -> None:
    summarise({**stored_result(), "seconds": {"total": 0.5, "ingest": 0.01}})
    assert "seconds   0.5" in capsys.readouterr().err.splitlines()

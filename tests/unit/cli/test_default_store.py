"""``$DRAY_STORE``: `dray run` writes to the store that `dray status` then reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dray.cli import running
from dray.cli.app import run_app
from dray.job.options.request import JobRequest

pytestmark = pytest.mark.unit

Run = Callable[..., JobRequest | None]


@pytest.fixture
def run(tmp_path: Path, job_input: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The request that `dray run` comes to; None where it is refused before."""
    monkeypatch.chdir(tmp_path)
    found: list[JobRequest] = []

    def run_job(asked: JobRequest, *, json: bool) -> int:
        found.append(asked)
        return 0

    monkeypatch.setattr(running, "run_job", run_job)

    def asked(*options: str) -> JobRequest | None:
        command = ["run", str(job_input), "--model", "simulated", "--engine", "simulated", "--output", "out"]
        found.clear()
        return found[0] if run_app([*command, *options]) == 0 else None

    return asked


def test_without_the_variable_the_output_folder_has_the_store(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (None, ""):
        monkeypatch.delenv("DRAY_STORE", raising=False)
        if value is not None:
            monkeypatch.setenv("DRAY_STORE", value)
        request = run()
        assert request is not None
        assert request.store is None
    assert "DRAY_STORE" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "store"),
    [
        ("postgresql://me:hidden-word@host/dray", "env:DRAY_STORE"),
        ("postgresql:///dray", "env:DRAY_STORE"),
        ("sqlite:///jobs.db", "sqlite:///{}/jobs.db"),
        ("jobs.db", "{}/jobs.db"),
        ("env:URL_OF_STORE", "env:URL_OF_STORE"),
        ("block:results", "block:results"),
    ],
)
def test_a_run_without_a_store_takes_that_of_the_variable_and_says_so(
    value: str,
    store: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It took the output folder's, and `dray status` looked into the variable's, where the job was not."""
    monkeypatch.setenv("DRAY_STORE", value)
    request = run()
    assert request is not None
    assert request.store == store.format(tmp_path)
    said = capsys.readouterr().err
    assert "its store is that of $DRAY_STORE" in said
    assert "hidden-word" not in said
    assert "hidden-word" not in str(request.recipe())


def test_a_store_that_is_named_goes_before_the_variable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAY_STORE", "postgresql:///dray")
    request = run("--store", "mine.db")
    assert request is not None
    assert request.store == f"{tmp_path}/mine.db"
    assert "DRAY_STORE" not in capsys.readouterr().err


def test_a_folder_with_a_store_of_its_own_is_not_begun_anew(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All rows would be computed, and paid for, again."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "dray.db").touch()
    for value in ("postgresql:///dray", "other.db", "block:results"):
        monkeypatch.setenv("DRAY_STORE", value)
        assert run() is None
        told = capsys.readouterr().err
        assert f"give --store {tmp_path / 'out'} to go on with the folder's own" in told
        assert run("--store", "out") is not None
    for value in ("out", "out/dray.db", f"sqlite:///{tmp_path}/out/dray.db"):
        monkeypatch.setenv("DRAY_STORE", value)
        assert run() is not None

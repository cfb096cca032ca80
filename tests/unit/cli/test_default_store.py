"""``$DRAY_STORE``: `dray run` writes to the store that `dray status` then reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dray.cli import running
from dray.cli.app import run_app
from dray.cli.default_store import with_default_store
from dray.cli.preflight import preflight
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.store import open_store

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
        ("out", "{}/out/dray.db"),
        ("other/runs", "{}/other/runs/dray.db"),
        ("there.sql", "{}/there.sql/dray.db"),
        ("file", "{}/file"),
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
    (tmp_path / "there.sql").mkdir()
    (tmp_path / "file").touch()
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


@pytest.mark.parametrize("named", ["me:S3cret@db.example/dray", "host=db user=me password=S3cret"])
def test_a_login_without_its_scheme_becomes_no_folder(
    named: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_STORE", named)
    request = run()
    assert request is not None
    assert request.store is not None
    assert not request.store.endswith(".db")  # so that the preflight refuses it
    assert list(tmp_path.glob("*S3cret*")) == []


def test_the_first_run_makes_the_folder_of_the_variable(
    tmp_path: Path, job_input: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before: its store "does not end in .db"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAY_STORE", "stores/mine")
    given = {"input": str(job_input), "model": "simulated", "output": "out", "engine": {"name": "simulated"}}
    request = with_default_store(JobRequest.of(**given))
    preflight(request)
    open_store(job_settings(request, NoBlocks()).store_url).close()
    assert (tmp_path / "stores" / "mine" / "dray.db").exists()
    assert run_app(["jobs"]) == 0
    assert "this store holds no job yet" in capsys.readouterr().err

"""How a command finds its store, and the recipe of a job in it."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import dray
from dray.cli import block_url, output
from dray.cli.app import run_app
from dray.cli.deleting import delete
from dray.cli.jobs import cancel_job, export_job, recipe_of, rewrite_report, store_at
from dray.cli.status import show_jobs, show_status
from dray.errors import ConfigError, StoreFatalError, StoreUnreachableError, UnknownJobError
from dray.job.beginning.opening import owner_of_job
from dray.job.options.resolving import NoBlocks
from dray.report import ReportData
from dray.storage import folders
from dray.store import open_store
from dray.store.database.schema import REVISION
from tests.support.older import made_by_older, revision_of
from tests.support.stores import FINGERPRINT

pytestmark = pytest.mark.unit


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of a run, with two jobs in its store."""
    monkeypatch.delenv("DRAY_STORE", raising=False)
    with open_store(f"sqlite:///{tmp_path / 'dray.db'}") as store:
        recipe = {"input": ["in.jsonl"], "store": None}
        store.create_job("with", fingerprint=FINGERPRINT, settings={"recipe": recipe})
        store.create_job("without", fingerprint=FINGERPRINT, settings={})
    return tmp_path


def _jobs(reference: str | None) -> int:
    with store_at(reference) as store:
        return len(store.list_jobs())


def test_by_folder_url_file_and_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{folder / 'dray.db'}"
    monkeypatch.setenv("URL_OF_STORE", url)
    for reference in (str(folder), url, str(folder / "dray.db"), "env:URL_OF_STORE"):
        assert _jobs(reference) == 2, reference


def test_by_default_from_the_environment_then_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert _jobs(None) == 2
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("DRAY_STORE", str(folder))
    assert _jobs(None) == 2


def test_what_is_not_there_is_said(folder: Path, tmp_path: Path) -> None:
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no dray\.db in .*the output folder of a run"):
        store_at(str(empty))
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE is not set"):
        store_at("env:NOT_SET_ANYWHERE")
    for missing in ("none.db", "none", "none/dray.db"):
        with pytest.raises(ConfigError, match=rf"no store at .*{missing}: no such file or folder"):
            store_at(str(tmp_path / missing))
    assert list(tmp_path.glob("none*")) == []


@pytest.mark.parametrize("name", ["n" * 300, "~no-user-of-this-name/out"])
def test_a_name_that_the_system_refuses_is_no_store(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was a traceback, and no object for programs."""
    assert run_app(["status", "--store", name, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["error"]
    assert told["type"] == "ConfigError"
    assert told["message"].startswith(f"no store at {name}: ")


def test_an_error_of_the_system_is_a_line_and_an_object(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/kept/file")

    monkeypatch.setattr("dray.cli.status.show_status", refuse)
    assert run_app(["status", "--json"]) == 1
    said = capsys.readouterr()
    assert said.err == "dray: /kept/file: Permission denied\n"
    error = {"type": "PermissionError", "message": "/kept/file: Permission denied"}
    assert json.loads(said.out) == {"error": error}


@pytest.mark.parametrize(("command", "code"), [("status", 0), ("resume", 1)])
def test_a_broken_pipe_is_fine_for_commands_that_read(
    command: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("dray.cli.status.show_status", refuse)
    monkeypatch.setattr("dray.cli.jobs.recipe_of", refuse)
    monkeypatch.setattr("dray.cli.terminal.discard", lambda _: None)
    assert run_app([command, "with", "--store", str(folder)]) == code


def test_programs_open_a_store_by_its_folder_and_create_none(folder: Path, tmp_path: Path) -> None:
    with dray.open_store(str(folder)) as store:
        assert len(store.list_jobs()) == 2
    with pytest.raises(ConfigError, match=r"no store at .*wrong/dray\.db"):
        dray.open_store(str(tmp_path / "wrong" / "dray.db"))
    with pytest.raises(StoreUnreachableError, match="no such file"):
        dray.open_store(f"sqlite:///{tmp_path / 'wrong' / 'dray.db'}")
    assert not (tmp_path / "wrong").exists()


def _reported(folder: Path, job_id: str) -> None:
    """A job that has ended, with a report, in its own output folder."""
    output = folder / job_id
    with open_store(f"sqlite:///{folder / 'dray.db'}") as store:
        store.create_job(job_id, fingerprint=FINGERPRINT, settings={"output": str(output)})
        lease = store.claim_job(job_id, "driver")
        report = ReportData(job_id=job_id, state="completed", generated_at=0.0).to_json()
        store.set_job_summary(lease, {"report": report})
        folders.take(str(output), owner_of_job(store.get_job(job_id)))


def test_a_report_comes_to_the_folder_of_its_job_and_to_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job_id in ("one", "two"):
        _reported(folder, job_id)
    monkeypatch.chdir(folder / "two")
    assert run_app(["report", "one", "--store", str(folder)]) == 0
    assert (folder / "one" / "report.html").is_file()
    assert capsys.readouterr().out.splitlines()[0] == str(folder / "one" / "report.html")
    assert run_app(["report", "one", "--store", str(folder), "--output", "report.html"]) == 2
    assert not (folder / "two" / "report.html").exists()
    monkeypatch.chdir(folder)
    shutil.rmtree(folder / "one")
    assert run_app(["report", "one", "--store", str(folder)]) == 0
    assert (folder / "one.report.html").is_file()


def test_the_recipe_names_its_job(folder: Path) -> None:
    url = f"sqlite:///{folder / 'dray.db'}"
    assert recipe_of("with", str(folder)) == {"input": ["in.jsonl"], "store": url, "job_id": "with"}
    with pytest.raises(ConfigError, match="was not started by the flow"):
        recipe_of("without", str(folder))
    with pytest.raises(UnknownJobError):
        recipe_of("other", str(folder))


def test_a_recipe_names_the_store_that_was_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the job was begun in may have been moved, and another job may be in its place."""
    url = f"sqlite:///{folder / 'dray.db'}"
    monkeypatch.setenv("A_FOLDER", str(folder))
    monkeypatch.setenv("A_URL", url)
    monkeypatch.chdir(folder)
    named = {None: url, ".": url, "dray.db": url, "env:A_FOLDER": url, "env:A_URL": "env:A_URL"}
    assert {name: recipe_of("with", name)["store"] for name in named} == named


def test_a_store_named_by_url_is_the_one_that_goes_on(folder: Path) -> None:
    url = f"sqlite:///{folder / 'dray.db'}"
    assert recipe_of("with", url)["store"] == url


def test_the_address_of_a_store_that_does_not_answer_is_told_to_its_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = StoreUnreachableError("store results (PostgreSQL): the connection failed or was lost")
    error.address = "postgresql+psycopg://me:***@host/results"
    output.explain(error)
    assert capsys.readouterr().err.splitlines() == [
        "dray: store results (PostgreSQL): the connection failed or was lost",
        "  the store's address: postgresql+psycopg://me:***@host/results",
    ]


@pytest.mark.parametrize(
    "reads",
    [
        lambda store, _folder: show_jobs(store, 20, json=True),
        lambda store, _folder: show_status("job", store, json=True),
        lambda store, folder: export_job("job", str(folder / "export"), "jsonl", store, json=True),
        lambda store, folder: rewrite_report("job", str(folder / "report.html"), store, json=True),
    ],
    ids=["jobs", "status", "export", "report"],
)
def test_a_command_that_reads_leaves_the_store_of_an_older_dray_as_it_is(
    tmp_path: Path, reads: Callable[[str, Path], int]
) -> None:
    """An upgrade would pause the jobs of the older one that run there."""
    made_by_older(str(tmp_path / "old.db"), "0009")
    with pytest.raises(StoreFatalError, match="of an older dray"):
        reads(str(tmp_path / "old.db"), tmp_path)
    assert revision_of(str(tmp_path / "old.db")) == "0009"


@pytest.mark.parametrize(
    "writes",
    [
        lambda store: cancel_job("job", store, json=True),
        lambda store: delete("job", yes=True, store=store),
        lambda store: recipe_of("job", store),
    ],
    ids=["cancel", "delete", "resume"],
)
def test_a_command_that_writes_upgrades_the_store_of_an_older_dray(
    tmp_path: Path, writes: Callable[[str], object]
) -> None:
    made_by_older(str(tmp_path / "old.db"), "0009")
    with pytest.raises(UnknownJobError):
        writes(str(tmp_path / "old.db"))
    assert revision_of(str(tmp_path / "old.db")) == REVISION


@pytest.fixture
def block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A block with the folder's store in it; the names that Prefect was asked for."""
    asked: list[str] = []

    def told(name: str) -> dict[str, str]:
        asked.append(name)
        return {"url": f"sqlite:///{folder / 'dray.db'}"} if name == "results" else {"error": "no such block"}

    monkeypatch.setattr(block_url, "_asked", told)
    block_url.url_of_block.cache_clear()
    yield asked
    block_url.url_of_block.cache_clear()


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_store_in_a_block_is_found_by_every_command(
    by: str, block: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dray run` took one, and the others said that there is no such file."""
    _reported(folder, "one")
    monkeypatch.chdir(folder)
    where = ["--store", "block:results"] if by == "option" else []
    monkeypatch.setenv("DRAY_STORE", "block:results" if by == "variable" else "")
    for command in (["status", "one"], ["jobs"], ["cancel", "with"], ["report", "one"]):
        assert run_app([*command, *where]) == 0, command
    assert run_app(["export", "one", "--output", str(folder / "all"), *where]) == 0
    assert recipe_of("with", where[1] if where else None)["store"] == "block:results"
    assert block == ["results"]  # once: it may take a server of Prefect's
    with pytest.raises(ConfigError, match=r"^no such block$"):
        store_at("block:other")


def test_the_process_that_asks_prefect_says_what_a_block_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["block_url", "mine"])
    held = SimpleNamespace(store_url=lambda name: f"postgresql://u:p@h/{name}")
    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", lambda: nullcontext(held))
    block_url.main()
    assert json.loads(capsys.readouterr().out) == {"url": "postgresql://u:p@h/mine"}
    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", lambda: nullcontext(NoBlocks()))
    block_url.main()
    told = json.loads(capsys.readouterr().out)["error"]
    assert told.startswith("store: block:mine is kept in Prefect")
    assert "--store env:NAME" in told


@pytest.mark.parametrize("program", ["", "print('not JSON')", "import time; time.sleep(60)"])
def test_a_prefect_that_does_not_say_it_is_told(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(block_url, "_SECONDS", 2.0)
    monkeypatch.setattr("subprocess.run", lambda command, **more: run([command[0], "-c", program], **more))
    block_url.url_of_block.cache_clear()
    with pytest.raises(ConfigError, match="Prefect does not say what block:mine holds"):
        store_at("block:mine")

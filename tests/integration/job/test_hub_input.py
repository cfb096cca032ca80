"""Jobs whose input is a dataset of a hub: whole runs, a branch that moves, and what is refused at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dray.cli.app import run_app
from dray.cli.server import PrefectServer
from dray.driver.whole_job import run_job
from dray.errors import InputError
from dray.job.beginning.identity import fingerprint_of
from dray.job.options.request import JobRequest
from dray.job.options.resolving import NoBlocks, job_settings
from dray.job.options.settings import JobSettings
from dray.requests.sources import Rows
from tests.support.command import ROOT as CHECKOUT
from tests.support.command import dray
from tests.support.lanes import parts_on
from tests.support.s3_emulator import EmulatorProcess
from tests.support.thread_fleet import ThreadFleet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOKEN = "kanari41d7hubtoken"
ROOT = "hf://datasets/org/chats"
TABLES = f"{ROOT}/data/train-*.parquet"
ROWS = 30
SIMULATED = ("--engine", "simulated", "--model", "none")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    """A hub that wants a token, with a dataset of chats in three Parquet files."""
    for shard in range(3):
        write_shard(tmp_path / f"hub/hub/datasets/org/chats/data/train-{shard}.parquet", shard)
    found = EmulatorProcess(tmp_path / "hub")
    found.behave(access_key=TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", found.url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    found.stop()


def write_shard(path: Path, shard: int, rows: int = ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    chats = [[{"role": "user", "content": f"chat {shard}.{row}"}] for row in range(rows)]
    parquet.write_table(pyarrow.table({"messages": chats}), path)


def settings_of(folder: Path, tables: str = TABLES) -> JobSettings:
    engine = {"name": "simulated", "replicas": 1}
    request = JobRequest.of(input=tables, model="none", output=str(folder / "out"), engine=engine)
    return job_settings(request, NoBlocks())


def commit_of(settings: JobSettings) -> str:
    assert isinstance(settings.source, Rows)
    return settings.source.inputs[0].removeprefix(f"{ROOT}@").partition("/")[0]


def ids_of(output: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in (output / "output.jsonl").read_text().splitlines()]


@pytest.mark.heavy
def test_a_whole_run(hub: EmulatorProcess, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hub.behave(access_key=TOKEN)
    ended = dray(tmp_path, "run", TABLES, *SIMULATED, "--output", str(out), "--json")
    assert ended.code == 0, ended.stderr
    assert ids_of(out) == [f"row-{number}" for number in range(3 * ROWS)]
    assert ended.json["counts"]["done"] == 3 * ROWS
    again = dray(tmp_path, "run", TABLES, *SIMULATED, "--output", str(out), "--json")
    assert again.json["job_id"] == ended.json["job_id"]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "ingest: dataset org/chats at commit " in ended.stderr
    for secret in (TOKEN, "Signature="):
        assert secret.encode() not in written
        assert secret not in f"{ended.stdout}{ended.stderr}{again.stderr}"


def test_a_job_reads_the_commit_of_its_start(hub: EmulatorProcess, tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    main = tmp_path / "hub/hub/datasets/org/chats"
    shutil.copytree(main, main.with_name("chats@before"))  # the hub keeps the commit
    write_shard(main / "data/train-1.parquet", 1, rows=2)
    write_shard(main / "data/train-9.parquet", 9)
    result = run_job(settings, parts_on(ThreadFleet(["node-0"])))
    assert result.counts["done"] == 3 * ROWS
    assert fingerprint_of(settings_of(tmp_path)).input != fingerprint_of(settings).input
    old, now = commit_of(settings), commit_of(settings_of(tmp_path))
    assert old != now
    named = settings_of(tmp_path, f"{ROOT}@{old}/data/train-*.parquet")  # as a user finishes such a job
    assert fingerprint_of(named) == fingerprint_of(settings)


def test_a_commit_that_goes_away_is_told(hub: EmulatorProcess, tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    write_shard(tmp_path / "hub/hub/datasets/org/chats/data/train-1.parquet", 1, rows=2)
    with pytest.raises(InputError, match="has no revision"):
        run_job(settings, parts_on(ThreadFleet(["node-0"])))


def test_files_that_are_others_at_the_same_commit_are_refused(hub: EmulatorProcess, tmp_path: Path) -> None:
    """A hub that breaks its word while the rows are read: after the last one the driver looks again."""
    settings = settings_of(tmp_path)
    hub.behave(access_key=TOKEN, changes_after=1)
    with pytest.raises(InputError, match="it changed, came or went while dray read the input"):
        run_job(settings, parts_on(ThreadFleet(["node-0"])))
    assert not (tmp_path / "out/output.jsonl").exists()


@pytest.mark.heavy(one_of=3)
def test_a_plan_counts_the_rows(hub: EmulatorProcess, capfd: pytest.CaptureFixture[str]) -> None:
    model = str(CHECKOUT / "examples/tickets/model")
    assert run_app(["plan", TABLES, "--model", model, "--hardware", "l40s", "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out.splitlines()[-1])["workload"]["rows"] == 3 * ROWS


@pytest.mark.heavy(one_of=3)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((ROOT, *SIMULATED), f"for example '{ROOT}/data/*.parquet' (3 files)"),
        (("hf://org/chats", *SIMULATED), "hf://org/chats is no dataset"),
        ((TABLES, "--model", ROOT), "this names a dataset"),
        ((TABLES, "--engine", "simulated", "--model", ROOT), "this names a dataset"),
        ((f"{ROOT}@v2/data/*.parquet", *SIMULATED), "has no revision 'v2'"),
        ((TABLES, *SIMULATED, "--image-root", ROOT), "reads no images from a hub"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    hub: EmulatorProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    def started(*_: object) -> None:
        pytest.fail("something was started for a job that must be refused")

    monkeypatch.setattr(PrefectServer, "start", started)
    monkeypatch.setattr("dray.cluster.prestart_cluster", started)
    assert run_app(["run", *arguments, "--output", str(tmp_path / "out")]) == 2
    assert says in capfd.readouterr().err


def test_without_a_token_the_hub_shows_nothing(
    hub: EmulatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "other")
    with pytest.raises(InputError, match="HF_TOKEN holds a token that may read it"):
        settings_of(tmp_path)

"""What the command line refuses for safety's sake, before Prefect or Ray start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.cli.app import run_app
from dray.cli.server import PrefectServer
from dray.errors import InputError
from dray.requests.ingest import ingest
from tests.support.command import ROOT, write_requests
from tests.support.lora import write_adapter
from tests.support.postgres import PostgresServer
from tests.support.sources import source_of

pytestmark = pytest.mark.integration

SECRET = "hidden-word"
MODEL = ROOT / "examples/tickets/model"  # a sound one: nothing else is wrong with these jobs


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return write_requests(tmp_path / "in.jsonl", 3)


@pytest.fixture
def refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    def started(*_: object) -> None:
        pytest.fail("something was started for a job that must be refused")

    monkeypatch.setattr(PrefectServer, "start", started)
    monkeypatch.setattr("dray.cluster.prestart_cluster", started)

    def run(*arguments: str | Path) -> str:
        given = [str(argument) for argument in arguments]
        given += [] if "--output" in given else ["--output", str(tmp_path / "out")]
        assert run_app(["run", *given, "--json"]) == 2
        captured = capfd.readouterr()
        assert json.loads(captured.out.splitlines()[-1])["error"]["message"]
        said: str = captured.err
        assert SECRET not in said + captured.out
        return said

    return run


def test_trust_remote_code(refused: Callable[..., str], requests: Path) -> None:
    said = refused(requests, "--model", MODEL, "--engine-arg", "trust_remote_code=true")
    assert "dray does not offer it" in said
    said = refused(requests, "--model", MODEL, "--engine-arg", "trust-remote-code=true")
    assert "dray does not offer it" in said


def test_pickle_weights(refused: Callable[..., str], requests: Path) -> None:
    """A load format that reads pickles, on a model that has safetensors as well."""
    said = refused(requests, "--model", MODEL, "--engine-arg", "load_format=pt")
    assert "load_format 'pt'" in said


def test_pickled_adapters(refused: Callable[..., str], requests: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "support", MODEL)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    given = f'lora_modules={{"support": "{folder}"}}'
    said = refused(requests, "--model", MODEL, "--engine-arg", given)
    assert "adapter 'support' in" in said
    assert "a pickle file (adapter_model.bin), which can run code when loaded" in said


def test_secrets_in_engine_arguments(refused: Callable[..., str], requests: Path) -> None:
    said = refused(requests, "--model", MODEL, "--engine-arg", f"hf_token={SECRET}")
    assert "HF_TOKEN" in said


def test_secrets_in_addresses(refused: Callable[..., str], requests: Path) -> None:
    """Prefect keeps the parameters of every run, and errors name addresses."""
    signed = f"https://127.0.0.1:9/a.jsonl?X-Amz-Signature={SECRET}"
    simulated = ("--model", "simulated", "--engine", "simulated")
    assert "https://127.0.0.1:9/a.jsonl: the address holds" in refused(signed, *simulated)
    assert "the address holds" in refused(f"https://me:{SECRET}@127.0.0.1:9/a.jsonl", *simulated)
    assert "the address holds" in refused(requests, "--model", f"https://me:{SECRET}@127.0.0.1:9/model")
    output = ("--output", f"s3://key:{SECRET}@bucket/out")
    assert "the address holds" in refused(requests, *simulated, *output)


def test_ssrf_by_input_and_model_uris(refused: Callable[..., str], requests: Path) -> None:
    place = "http://169.254.169.254/latest/meta-data"
    said = refused(f"{place}/x.jsonl", "--model", "simulated", "--engine", "simulated")
    assert "metadata service" in said
    assert "metadata service" in refused(requests, "--model", place)


def test_prompts_in_errors_of_a_query(tmp_path: Path) -> None:
    """PostgreSQL quotes the value of a row that it cannot convert; its words about the query itself stay."""
    prompt = "please cancel the order of Jane Doe"
    with PostgresServer() as server:
        name = server.create_database()
        with server.connect(name) as connection:
            connection.execute("create table t as select %s::text as body", [prompt])
        for query, told in (
            ("select body::int as body from t", "SQLSTATE 22P02"),
            ("select body::json as body from t", "SQLSTATE 22P02"),
            ("select nope from t", 'column "nope" does not exist'),
        ):
            source = source_of(server.url(name), query=query, prompt_column="body")
            with pytest.raises(InputError, match=told) as refusal:
                ingest(source, spool_uri=str(tmp_path / "spool"))
            assert "Jane" not in str(refusal.value)
            assert server.url(name).split(":")[2].split("@")[0] not in str(refusal.value)

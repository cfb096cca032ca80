"""What comes in from outside, against the rows of SECURITY.md that need no service to be tested."""

from __future__ import annotations

import ast
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from dray.engine.argument_policy import refuse_unsafe
from dray.engine.vllm_adapter.arguments import ENVIRONMENT
from dray.errors import ConfigError, InputError
from dray.job.options.settings import JobSettings
from dray.requests.ingest import cut, ingest
from dray.requests.model import Outcome
from dray.requests.outputs.files import write_outputs
from dray.requests.sources import RowDefaults
from dray.requests.spool.spool import decode, read_shard
from dray.storage.addresses import refuse_metadata, without_secret
from dray.storage.objects import head
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PROMPT = "please cancel the order of Jane Doe"
HOSTILE_IDS = ["../../outside", "/etc/passwd", "..", "a/b", "a\\b", "=cmd()", "'; DROP TABLE results; --"]


@pytest.mark.parametrize(
    "form", ["pt", "npcache", "hf", "auto", "AUTO", "tensorizer", "ipc_cache", "modelexpress", 1]
)
def test_pickle_weights_by_a_load_format(form: object) -> None:
    with pytest.raises(ConfigError, match="load_format"):
        refuse_unsafe({"load_format": form})


@pytest.mark.parametrize("form", ["safetensors", "dray", "dummy", "runai_streamer", "fastsafetensors"])
def test_safetensors_by_any_loader(form: str) -> None:
    refuse_unsafe({"load_format": form, "max_model_len": 10})


@pytest.mark.parametrize("value", [True, 1, "true", "false"])
def test_trust_remote_code(value: object) -> None:
    with pytest.raises(ConfigError, match="trust_remote_code"):
        refuse_unsafe({"trust_remote_code": value})
    refuse_unsafe({"trust_remote_code": False})


@pytest.mark.parametrize("name", ["reasoning_parser_plugin", "tool_parser_plugin"])
def test_parsers_from_a_python_file(name: str) -> None:
    """vLLM would run the file; in the core also where it stands in a configuration."""
    for arguments in ({name: "/files/own.py"}, {"structured_outputs_config": {name: "/files/own.py"}}):
        with pytest.raises(ConfigError, match=f"^{name} runs a Python file; dray does not offer it") as said:
            refuse_unsafe(arguments)
        assert "plugin package" in str(said.value)
    refuse_unsafe({name: ""})
    refuse_unsafe({"structured_outputs_config": {"backend": "xgrammar"}})


def test_secrets_as_an_engine_argument() -> None:
    with pytest.raises(ConfigError, match="HF_TOKEN") as refusal:
        refuse_unsafe({"hf_token": "hidden-word"})
    assert "hidden-word" not in str(refusal.value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:hidden-word@host/a.jsonl", "https://host/a.jsonl"),
        ("https://host/a.jsonl?X-Amz-Signature=hidden-word", "https://host/a.jsonl"),
        ("https://host?token=hidden-word", "https://host"),
        ("s3://key:hidden-word@bucket/a.jsonl", "s3://bucket/a.jsonl"),
        ("HTTPS://me:hidden-word@host/a@b.jsonl", "HTTPS://host/a@b.jsonl"),
    ],
)
def test_secrets_in_addresses(address: str, shown: str) -> None:
    """An input, a model or an output with a password in it is refused, and not quoted."""
    assert without_secret(address) == shown
    with pytest.raises(ConfigError) as refusal:
        source_of([address])
    assert shown in str(refusal.value)
    for name in ("model", "output"):
        values: dict[str, Any] = {"model": "m", "output": "o", name: address}
        with pytest.raises(ConfigError) as refused:
            JobSettings(source=source_of("in.jsonl"), defaults=RowDefaults(), store_url="", **values)
        assert "hidden-word" not in str(refusal.value) + str(refused.value)


@pytest.mark.parametrize(
    "address", ["s3://bucket/a?b@c.jsonl", "/data/a@b?.jsonl", "file:///a?b", "https://host/a@b"]
)
def test_names_that_only_look_like_secrets(address: str) -> None:
    assert without_secret(address) == address


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[fd00:ec2::254]",
        "168.63.129.16",
    ],
)
def test_ssrf_by_input_uris(host: str) -> None:
    """The addresses where clouds tell machines their credentials, in every spelling."""
    with pytest.raises(OSError, match="metadata service"):
        head(f"http://{host}/latest/meta-data/iam/security-credentials/")


def test_ssrf_by_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    with pytest.raises(OSError, match="metadata service"):
        refuse_metadata("https://innocent.example")


def test_ordinary_addresses_may_be_read() -> None:
    for address in (
        "http://127.0.0.1:80",
        "http://10.0.0.5",
        "https://[2001:db8::1]",
        "http://no-such.invalid",
    ):
        refuse_metadata(address)


def test_redirects_of_media_urls_and_many_answers() -> None:
    """The second line behind the refusal of media, and the bound on `n`."""
    assert ENVIRONMENT["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert int(ENVIRONMENT["VLLM_MAX_N_SEQUENCES"]) <= 128


@pytest.mark.parametrize(
    "name", ["../x", "..", ".hidden", "a/b", "/etc/x", "a\0b", "a b", "", "x" * 129, "a\n"]
)
def test_path_traversal_by_a_job_id(name: str) -> None:
    with pytest.raises(ConfigError, match="job_id must be"):
        JobSettings(
            source=source_of("in.jsonl"),
            defaults=RowDefaults(),
            model="m",
            output="o",
            store_url="",
            job_id=name,
        )


def test_path_traversal_by_custom_ids(tmp_path: Path) -> None:
    """Ids of rows are data: they come back as they went in, and name no file."""
    (tmp_path / "in.jsonl").write_text("".join(_line(name) for name in HOSTILE_IDS))
    (folder := tmp_path / "out").mkdir()
    ingested = ingest(source_of(str(tmp_path / "in.jsonl")), spool_uri=str(folder / "spool.jsonl"))
    [part] = cut(ingested, target_rows=100)
    rows = [decode(line) for chunk in read_shard(part.uri, part.offset, part.length) for line in chunk]
    assert [row.custom_id for row in rows] == HOSTILE_IDS
    outcomes = [Outcome(row.index, row.custom_id, b"{}") for row in rows]
    write_outputs([outcomes], directory=str(folder))
    written = [json.loads(line)["custom_id"] for line in (folder / "output.jsonl").read_text().splitlines()]
    assert written == HOSTILE_IDS
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"in.jsonl", "spool.jsonl", "output.jsonl", "errors.jsonl"}


@pytest.mark.parametrize("column", ["text", "row-1"])
def test_prompts_in_errors_a_csv_without_a_header(column: str, tmp_path: Path) -> None:
    """Its first line holds prompts, which an error that lists the columns would quote."""
    (tmp_path / "in.csv").write_text(f"row-0,{PROMPT}\nrow-1,{PROMPT}\n")
    with pytest.raises(InputError, match="2, and not all of them look like names") as refusal:
        ingest(source_of(str(tmp_path / "in.csv"), prompt_column=column), spool_uri=str(tmp_path / "spool"))
    assert "Jane" not in str(refusal.value)


def test_columns_that_are_names_are_listed(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,größe_2\n1,x\n")
    with pytest.raises(InputError, match="the columns are: 'id', 'größe_2'"):
        ingest(source_of(str(tmp_path / "in.csv"), prompt_column="text"), spool_uri=str(tmp_path / "spool"))


@pytest.mark.parametrize("depth", [10, 240, 500, 1000])
def test_resource_abuse_by_nesting(depth: int, tmp_path: Path) -> None:
    """A row nested as deeply as can be read, with a NUL inside, is a bad row like any other."""
    nested = "[" * depth + '"\\u0000"' + "]" * depth
    line = _line("deep").replace('"messages": []', f'"messages": {nested}')
    (tmp_path / "in.jsonl").write_text(line + _line("good"))
    source = source_of(str(tmp_path / "in.jsonl"))
    ingested = ingest(source, spool_uri=str(tmp_path / "spool"), skip_invalid=True)
    [[bad]] = list(ingested.rejects())
    assert (bad.index, bad.error_code) == (0, "invalid_text")
    assert ingested.requests == 1


@pytest.mark.heavy(one_of=3)
def test_pickle_elsewhere_nothing_is_unpickled() -> None:
    """What dray reads from stores, buckets and inputs is JSON, Parquet and safetensors."""
    banned = {"pickle", "cloudpickle", "_pickle", "dill", "joblib", "shelve", "marshal"}
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for folder in ("dray", "tasks", "flows", "blocks")
        for file in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.expr | ast.stmt) and (banned & _imported(node) or _loads_torch(node))
    ]
    assert found == []


def _imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]} | {alias.name for alias in node.names}
    return set()


def _loads_torch(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "numpy.load", "np.load")


def _line(custom_id: str) -> str:
    body = {"model": "m", "messages": []}
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(row) + os.linesep

"""What is refused: exit 2, saying what, where and what to do, before any engine or cluster starts."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.cli.app import run_app
from dray.cli.preflight import preflight
from dray.cli.server import PrefectServer
from dray.cluster import listening
from dray.errors import ConfigError, InputError, JobBusyError, JobChangedError
from dray.job.beginning.opening import open_job
from dray.job.options.request import JobRequest
from dray.job.options.settings import JobSettings
from dray.job.rows.ingesting import ingest_job
from dray.requests.reading.readers import ReadLimits
from dray.requests.sources import RowDefaults
from dray.storage.folders import Owner, take
from dray.store import open_store
from tests.support.command import CANARY, write_requests
from tests.support.sources import source_of

pytestmark = pytest.mark.integration

SIMULATED = ("--model", "simulated", "--engine", "simulated")


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return write_requests(tmp_path / "in.jsonl", 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Runs ``dray run``, which must refuse it before Prefect's server or Ray start; returns what it said."""

    def started(*_: object) -> None:
        pytest.fail("something was started for a job that must be refused")

    monkeypatch.setattr(PrefectServer, "start", started)
    monkeypatch.setattr("dray.cluster.prestart_cluster", started)

    def run(*arguments: str | Path, output: Path | None = None) -> str:
        began = time.monotonic()
        out = output or tmp_path / "out"
        code = run_app(["run", *map(str, arguments), "--output", str(out), "--json"])
        seconds = time.monotonic() - began
        captured = capfd.readouterr()
        assert code == 2, captured.err
        assert seconds < 20
        error = json.loads(captured.out.splitlines()[-1])["error"]
        assert error["message"].splitlines()[0] in captured.err
        assert CANARY not in captured.err + captured.out
        said: str = captured.err
        return said

    return run


def test_no_such_input(refused: Callable[..., str], tmp_path: Path) -> None:
    said = refused(tmp_path / "none.jsonl", tmp_path / "no-*.jsonl", *SIMULATED)
    assert "2 problems" in said
    assert "none.jsonl" in said
    assert "no-*.jsonl" in said


def test_a_pattern_that_matches_the_jobs_own_answers(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run would have read them as rows, and not have gone on with the job."""
    (tmp_path / "data").mkdir()
    write_requests(tmp_path / "data" / "in.jsonl", 2)
    monkeypatch.chdir(tmp_path)
    for pattern in ("data/*.jsonl", "**/out*.jsonl", str(tmp_path / "*" / "[e-o]*.jsonl")):
        said = refused(pattern, "--format", "jsonl", *SIMULATED, output=Path("data"))
        assert "output.jsonl, which this job writes" in said or "errors.jsonl" in said
        assert "another output folder, or a narrower pattern" in said


@pytest.mark.parametrize(
    ("pattern", "output", "form"),
    [
        ("data/in*.jsonl", "data", "jsonl"),  # a narrower pattern
        ("data/*.jsonl", "data", "parquet"),  # other names
        ("data/*.jsonl", "data/out", "jsonl"),
        ("data/**/*.jsonl", "data/.out", "jsonl"),  # which patterns pass by
    ],
)
def test_a_pattern_that_matches_none_of_them_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, output: str, form: str
) -> None:
    (tmp_path / "data").mkdir()
    write_requests(tmp_path / "data" / "in.jsonl", 2)
    monkeypatch.chdir(tmp_path)
    given = {"input": pattern, "model": "simulated", "output": output, "format": form}
    preflight(JobRequest.of(**given, engine={"name": "simulated"}))


def test_a_job_that_was_begun_with_such_a_pattern_goes_on_until_its_answers_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(tmp_path / "in.jsonl", 2)
    monkeypatch.chdir(tmp_path)
    request = JobRequest.of(input="*.jsonl", model="simulated", output=".", engine={"name": "simulated"})
    take(".", Owner(job_id="mine", identity="a"))
    preflight(request)
    (tmp_path / "errors.jsonl").touch()
    with pytest.raises(ConfigError, match=r"errors\.jsonl, which this job writes"):
        preflight(request)


def test_a_cluster_where_nothing_listens(
    refused: Callable[..., str], requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole input was read before, and Ray tried for five minutes."""
    monkeypatch.setattr(listening, "_START_SECONDS", 0.0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*unused.getsockname())
        said = refused(requests, *SIMULATED, "--cluster", address)
    assert f"--cluster {address}: nothing listens there; is the head up, and is the port" in said


def test_a_cluster_elsewhere_without_its_token(
    refused: Callable[..., str], requests: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    told = refused(requests, *SIMULATED, "--cluster", "192.0.2.7:6379")
    assert "this process has no token for the Ray cluster at 192.0.2.7:6379: set RAY_AUTH_MODE=token" in told


def test_a_cluster_file_that_cannot_be_used(
    refused: Callable[..., str], requests: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    assert f"{file}: cannot be read: No such file" in refused(requests, *SIMULATED, "--cluster", file)
    file.write_text('kind = "kuberay"\nnamespaces = "a"\n')
    assert "has no field 'namespaces'" in refused(requests, *SIMULATED, "--cluster", file)


def test_an_input_of_no_known_format(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "in.xml").write_text("<a/>")
    assert "cannot tell the format" in refused(tmp_path / "in.xml", *SIMULATED)
    (tmp_path / "in.xlsx").write_bytes(b"PK")
    assert "this is an Excel workbook: save its sheet as CSV" in refused(tmp_path / "in.xlsx", *SIMULATED)


def test_a_time_without_a_unit(refused: Callable[..., str], requests: Path) -> None:
    said = refused(requests, *SIMULATED, "--completion-window", "6")
    assert "--completion-window: '6' is not a time such as 90m" in said


def test_rows_with_columns_and_no_prompt(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a\nb\n")
    assert "--prompt-column" in refused(tmp_path / "in.csv", *SIMULATED)
    both = ("--prompt-column", "a", "--template", "{a}")
    assert "exclude each other" in refused(tmp_path / "in.csv", *SIMULATED, *both)
    system = ("--kind", "completion", "--prompt-column", "a", "--system-prompt", "s")
    assert "goes with chat or classification only" in refused(tmp_path / "in.csv", *SIMULATED, *system)


def test_a_model_that_is_none(refused: Callable[..., str], requests: Path, tmp_path: Path) -> None:
    assert "no such directory" in refused(requests, "--model", tmp_path / "none")
    assert "no config.json" in refused(requests, "--model", tmp_path)


def test_weights_only_as_pickle(refused: Callable[..., str], requests: Path, model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"")
    said = refused(requests, "--model", model)
    assert "pytorch_model.bin" in said
    assert "convert them to safetensors" in said


def test_an_output_that_cannot_be_written(
    refused: Callable[..., str], requests: Path, tmp_path: Path
) -> None:
    (file := tmp_path / "file").write_text("")
    assert "the output is a file" in refused(requests, *SIMULATED, output=file)
    assert "cannot be written" in refused(requests, *SIMULATED, output=file / "below")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_without_permission(refused: Callable[..., str], requests: Path, tmp_path: Path) -> None:
    (closed := tmp_path / "closed").mkdir(mode=0o500)
    assert "cannot be written" in refused(requests, *SIMULATED, output=closed / "out")


def test_a_store_that_is_not_there(refused: Callable[..., str], requests: Path) -> None:
    url = "postgresql://me:hidden-word@127.0.0.1:9/dray"
    said = refused(requests, *SIMULATED, "--store", url)
    assert "is the server up" in said
    assert "hidden-word" not in said
    assert "no store of kind 'mysql'" in refused(requests, *SIMULATED, "--store", "mysql://h/d")
    assert "NOT_SET_ANYWHERE is not set" in refused(requests, *SIMULATED, "--store", "env:NOT_SET_ANYWHERE")


def test_an_engine_argument_that_is_none(refused: Callable[..., str], requests: Path) -> None:
    said = refused(requests, *SIMULATED, "--engine-arg", "max_seqs=3")
    assert "unknown engine argument 'max_seqs'" in said
    assert "max_num_seqs" in said
    assert "must be a int" in refused(requests, *SIMULATED, "--engine-arg", "max_num_seqs=many")
    assert "KEY=VALUE" in refused(requests, *SIMULATED, "--engine-arg", "max_num_seqs")


def test_usage(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run"], ["run", "x", "--model", "m"], ["nonsense"], ["run", "x", "--engine", "other"]):
        assert run_app(arguments) == 2, arguments
        captured = capfd.readouterr()
        assert captured.err + captured.out


# What only reading the rows can tell: the flow does this in its first two tasks.


@pytest.fixture
def make(requests: Path, tmp_path: Path) -> Callable[..., JobSettings]:
    def make(**changes: Any) -> JobSettings:
        values: dict[str, Any] = {
            "source": source_of([str(requests)]),
            "defaults": RowDefaults(),
            "model": "simulated",
            "output": str(tmp_path / "out"),
            "store_url": f"sqlite:///{tmp_path / 'jobs.db'}",
            "engine": "simulated",
            "job_id": "job",
        }
        return JobSettings(**{**values, **changes})

    return make


GOOD = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}\n'
BAD_LINES = {
    "not JSON": (b"{nonsense\n", None),
    "not an object": (b"[1]\n", None),
    "no custom_id": (GOOD.replace(b'"custom_id":"a",', b""), "custom_id"),
    "a custom_id twice": (GOOD, "custom_id"),
    "unknown url": (GOOD.replace(b'"a"', b'"b"').replace(b"chat/completions", b"images"), "url"),
    "a NUL byte": (GOOD.replace(b'"a"', b'"b\\u0000"'), "custom_id"),
    "a lone surrogate": (
        GOOD.replace(b'"a"', b'"b"').replace(b'"messages":[]', b'"messages":["\\ud800"]'),
        "body",
    ),
    "a line over the limit": (GOOD.replace(b'"a"', b'"' + b"b" * 2000 + b'"'), None),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named(name: str, make: Callable[..., JobSettings], tmp_path: Path) -> None:
    line, field = BAD_LINES[name]
    file = tmp_path / "bad.jsonl"
    file.write_bytes(GOOD + line + GOOD.replace(b'"a"', b'"c"'))
    job = open_job(make(source=source_of([str(file)]), limits=ReadLimits(line_bytes=1000)))
    with pytest.raises(InputError) as refusal:
        ingest_job(job, replicas=1)
    [problem] = refusal.value.problems
    assert (problem.file, problem.line) == (str(file), 2)
    assert problem.field == field or (field is not None and str(problem.field).startswith(field)), problem
    assert str(problem).startswith(f"{file}:2")
    if name == "a custom_id twice":
        assert f"{file}:1 has the same custom_id, '" in problem.message
    with open_store(job.settings.store_url, create=False) as store:
        assert store.shards("job") == []
        assert store.get_job("job").total is None
    assert not Path(job.spool(1)).exists()


def test_twenty_problems_and_how_many_more(make: Callable[..., JobSettings], tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"[]\n" * 50)
    job = open_job(make(source=source_of([str(file)])))
    with pytest.raises(InputError) as refusal:
        ingest_job(job, replicas=1)
    assert [problem.line for problem in refusal.value.problems] == list(range(1, 21))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", b"", "no row"),
        ("blank.jsonl", b"\n\r\n\n", "no row"),
        ("broken.jsonl.gz", b"not gzip at all", "gz"),
        ("cut.jsonl.gz", gzip.compress(GOOD * 1000)[:-20], "gz"),
    ],
)
def test_files_that_hold_no_rows(
    name: str, content: bytes, said: str, make: Callable[..., JobSettings], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    job = open_job(make(source=source_of([str(file)])))
    with pytest.raises(InputError, match=said) as refusal:
        ingest_job(job, replicas=1)
    assert name in str(refusal.value)


def test_a_column_that_is_not_there(make: Callable[..., JobSettings], tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("text,id\nhello,1\n")
    shapes: dict[str, dict[str, Any]] = {
        "prompt": {"prompt_column": "prompt"},
        "who": {"template": "{text} {who}"},
    }
    for column, shape in shapes.items():
        job = open_job(
            make(source=source_of([str(file)], **shape), job_id=column, output=str(tmp_path / column))
        )
        with pytest.raises(InputError, match=column) as refusal:
            ingest_job(job, replicas=1)
        assert "in.csv" in str(refusal.value)


def test_what_is_fine(make: Callable[..., JobSettings], tmp_path: Path) -> None:
    file = tmp_path / "fine.jsonl"
    lines = [GOOD.rstrip().replace(b'"a"', b'"%d"' % number) for number in range(3)]
    file.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\r\n" + lines[1] + b"\n\n" + lines[2])
    job = open_job(make(source=source_of([str(file)])))
    assert sum(shard.rows for shard in ingest_job(job, replicas=1)) == 3


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "another"}, r"model or engine \(--model, .*\)"),
        ({"defaults": RowDefaults(sampling={"temperature": 1})}, r"request fields \(.*--temperature.*\)"),
        ({"engine_arguments": {"seed": 7}}, r"model or engine \(.*--engine-arg.*\)"),
    ],
)
def test_a_changed_job_under_an_old_id_names_the_change(
    changes: dict[str, Any], named: str, make: Callable[..., JobSettings]
) -> None:
    open_job(make())
    with pytest.raises(JobChangedError, match=rf"job.*its {named} changed.*another --job-id"):
        open_job(make(**changes))


def test_a_changed_input_too(make: Callable[..., JobSettings], requests: Path) -> None:
    open_job(make())
    requests.write_bytes(requests.read_bytes() + GOOD)
    with pytest.raises(JobChangedError, match="its input changed"):
        open_job(make())


def test_corrected_input_is_taken_under_the_id_that_was_refused(
    make: Callable[..., JobSettings], requests: Path
) -> None:
    requests.write_bytes(b"not json\n")
    refused = open_job(make())
    with pytest.raises(InputError):
        ingest_job(refused, replicas=1)
    with open_store(refused.settings.store_url) as store:
        store.release_job(refused.lease)  # as the flow does
    requests.write_bytes(GOOD)
    corrected = open_job(make())
    assert (corrected.job_id, corrected.resumed) == (refused.job_id, False)
    assert sum(shard.rows for shard in ingest_job(corrected, replicas=1)) == 1


def test_a_job_that_a_live_process_drives_is_busy(make: Callable[..., JobSettings]) -> None:
    open_job(make())
    with pytest.raises(JobBusyError, match=f"by process {os.getpid()} on "):
        open_job(make())

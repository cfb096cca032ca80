"""What is wrong with a command is said before anything starts: exit code 2, and an object with ``--json``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dray.cli import output, preflight, running
from dray.cli.app import run_app
from dray.cli.server import PrefectServer
from dray.errors import ConfigError
from dray.job.options.request import JobRequest
from dray.storage import file_system
from dray.store import open_store
from tests.support.stores import ready_job

pytestmark = pytest.mark.unit

Refused = Callable[..., dict[str, Any]]


def test_the_default_store_in_an_output_on_a_network_is_refused(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"31 1 0:31 / {tmp_path / 'out'} rw - nfs4 server:/out rw\n")
    monkeypatch.setattr(file_system, "_MOUNTS", mounts)
    requests = tmp_path / "in.jsonl"
    requests.write_text(
        '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
    )
    told = refused(
        "run", str(requests), "--engine", "simulated", "--model", "m", "--output", str(tmp_path / "out")
    )
    assert "network's file system (nfs4)" in told["message"]
    assert "--store /var/tmp/dray.db" in told["message"]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a command, which must be refused before Prefect's server or Ray start; returns the error."""

    def started(*_: object) -> None:
        pytest.fail("something was started")

    monkeypatch.setattr(PrefectServer, "start", started)
    monkeypatch.setattr("dray.cluster.prestart_cluster", started)

    def run(*arguments: str) -> dict[str, Any]:
        assert run_app([*arguments, "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.err
        found: dict[str, Any] = json.loads(captured.out.splitlines()[-1])["error"]
        return found

    return run


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "--failed-requests FILE.jsonl"),
        (["--output", "out", "--failed-requests", "f.jsonl"], "give --output FOLDER"),
        (["--output", "out", "--code", "poison"], "--code goes with --failed-requests"),
        (["--failed-requests", "f.csv"], "ends in .jsonl"),
        (["--failed-requests", "f.jsonl", "--format", "parquet"], "--format parquet goes with --output"),
        (["--failed-requests", "f.jsonl", "--without-kept"], "--without-kept goes with --output"),
        (["--failed-requests", "f.jsonl", "--part-bytes", "4096"], "--part-bytes goes with --output"),
    ],
)
def test_an_export_is_of_rows_or_of_requests(refused: Refused, given: list[str], told: str) -> None:
    assert told in refused("export", "job", *given)["message"]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    body = {"messages": [{"role": "user", "content": "x"}]}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    return [
        "run", str(tmp_path / "in.jsonl"), "--engine", "simulated", "--model", "simulated",
        "--output", str(tmp_path / "out"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--max-tokens", "0", "--max-tokens 0: "),
        ("--temperature", "-1", "--temperature -1.0: "),
        ("--top-p", "2", "--top-p 2.0: "),
        ("--replicas", "0", "--replicas 0: "),
        ("--shard-rows", "0", "--shard-rows 0: "),
        ("--stall-seconds", "0", "--stall-seconds 0"),
        ("--completion-window", "soon", "--completion-window: 'soon'"),
        ("--completion-window", "0h", "--completion-window: '0h'"),
        ("--job-id", "a/b", "job_id must be"),
    ],
)
def test_a_value_that_cannot_be(
    refused: Refused, command: list[str], option: str, value: str, told: str
) -> None:
    error = refused(*command, option, value)
    assert error["type"] == "ConfigError"
    assert error["message"].startswith(told)


def test_a_query_of_a_file_that_is_not_there(refused: Refused, command: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'dta.db'}"
    options = ["--query", "select 1 as text", "--prompt-column", "text"]
    assert "no such file" in refused("run", url, *command[2:], *options)["message"]
    assert not (tmp_path / "dta.db").exists()


def test_a_field_that_no_request_has_is_refused_for_the_simulated_engine_too(
    refused: Refused, command: list[str]
) -> None:
    assert "did you mean max_tokens?" in refused(*command, "--param", "max_tokns=3")["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "in.jsonl", "--no-such-option"], "--no-such-option"),
        (["run", "in.jsonl", "--model", "m"], "--output"),
        (["status", "--bogus"], "--bogus"),
        (["jobs", "--limit", "0"], "--limit"),
        (["run", "in.jsonl", "--model", "m", "--output", "o", "--max-tokens", "1.5"], "not a whole number"),
        (["run", "in.jsonl", "--model", "m", "--output", "o", "--replicas", "1.5"], "--replicas: "),
        (
            ["plan", "in.jsonl", "--model", "m", "--sample", "1.5"],
            "not a whole number",
        ),
        (["doctor", "--price", "2"], "--price goes with --calibrate"),
        (["run", "in.jsonl", "--model", "m", "--output", "o", "--max-tokens", "many"], "--max-tokens"),
    ],
)
def test_usage_is_explained_in_json_too(refused: Refused, arguments: list[str], told: str) -> None:
    assert told in refused(*arguments)["message"]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "in.jsonl:3: not JSON"),
        ('{"custom_id": "2", "method": "POST", "url": "/v1/chat/completions"}', "body"),
    ],
)
def test_rows_that_cannot_be_requests(
    refused: Refused, command: list[str], tmp_path: Path, line: str, told: str, small: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As ingest would say it, minutes earlier on a cluster; all the first ones, not one a run."""
    monkeypatch.setattr(preflight, "_SMALL_BYTES", 1 << 20 if small else 0)
    good = (tmp_path / "in.jsonl").read_text()
    (tmp_path / "in.jsonl").write_text(good + "\n" + f"{line}\n" * 30)
    error = refused(*command)
    assert error["type"] == "InputError"
    assert sum(said.startswith(str(tmp_path)) for said in error["message"].splitlines()) == 20
    assert told in error["message"].splitlines()[0]


def test_a_small_input_is_judged_as_a_whole(refused: Refused, command: list[str], tmp_path: Path) -> None:
    """Ids that come twice are found by ingest alone."""
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write((tmp_path / "in.jsonl").read_text() + "[]\n")
    said = refused(*command)["message"]
    assert "in.jsonl:2" in said
    assert "in.jsonl:3" in said


def test_an_engine_argument_that_vllm_does_not_have(
    refused: Refused, command: list[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    options = ["--model", str(model), "--output", str(tmp_path / "out"), "--engine-arg", "max_modle_len=9"]
    assert "did you mean max_model_len?" in refused(*command[:2], *options)["message"]


def test_a_model_that_is_a_typo_though_nobody_reads_it(refused: Refused, command: list[str]) -> None:
    command[command.index("--model") + 1] = "modles/llama"
    assert "no such directory" in refused(*command)["message"]


def test_a_word_for_the_model_goes_on_from_another_folder(command: list[str], tmp_path: Path) -> None:
    """``--model none`` was made /folder/none, which is a path to nowhere from everywhere else."""
    request = JobRequest.of(
        [str(tmp_path / "in.jsonl")], "/folder/none", str(tmp_path / "out"), engine={"name": "simulated"}
    )
    preflight.preflight(request.model_copy(update={"resume": True}))
    with pytest.raises(ConfigError, match="no such directory"):
        preflight.preflight(request)


@pytest.mark.parametrize(
    ("given", "compared"),
    [("s3://bucket/in.jsonl", False), ("in.jsonl", True)],
)
def test_a_plan_for_objects_of_a_block_is_compared_by_the_flow(
    given: str, compared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment has no keys for them: the run was refused before the block was read."""
    row = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.chdir(tmp_path)
    plans: list[str | None] = []

    def as_planned(request: JobRequest, _: object) -> JobRequest:
        plans.append(request.plan)
        return request

    monkeypatch.setattr(preflight, "as_planned", as_planned)
    preflight.preflight(
        JobRequest.of(given, "simulated", "out", plan="p", objects="block:b", engine={"name": "simulated"})
    )
    assert plans == (["p"] if compared else [])


def test_a_home_folder_of_no_user(refused: Refused, command: list[str]) -> None:
    told = refused("run", "~no-user-of-this-name/in.jsonl", *command[2:])
    assert told["message"].startswith("~no-user-of-this-name/in.jsonl: there is no such user")


def test_a_path_that_is_not_utf8(refused: Refused, command: list[str], tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/in-\xff.jsonl")
    Path(path).write_bytes((tmp_path / "in.jsonl").read_bytes())
    error = refused("run", path, *command[2:])
    assert error["type"] == "ConfigError"
    assert "in-\\udcff.jsonl" in error["message"]
    assert "\\udcff" in refused("status", "--store", os.fsdecode(b"/none-\xff"))["message"]


def test_json_escapes_what_is_not_utf8_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": ["b\udcff", {"c\udcfe": ("ü", 1, None)}]})
    assert json.loads(capsys.readouterr().out) == {"a": ["b\\udcff", {"c\\udcfe": ["ü", 1, None]}]}


def test_a_budget_on_this_machine_needs_a_price(refused: Refused, command: list[str]) -> None:
    assert "give --price" in refused(*command, "--budget", "3")["message"]


def test_a_model_that_is_not_kept_is_not_removed(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_MODEL_CACHE", str(tmp_path / "models"))
    told = refused("models", "remove", "abc")
    assert told["message"].startswith("no model is kept whose key begins with abc, and none was removed")
    assert run_app(["models", "remove"]) == 0


def test_an_export_that_is_refused_makes_no_folder(refused: Refused, tmp_path: Path) -> None:
    with open_store(str(tmp_path / "dray.db")) as store:
        ready_job(store)
    folder = tmp_path / "none"
    refused("export", "other", "--output", str(folder), "--store", str(tmp_path))
    refused("export", "job", "--output", str(folder), "--store", str(tmp_path / "elsewhere"))
    assert not folder.exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[JobRequest]:
    """The requests that commands come to."""
    found: list[JobRequest] = []

    def run(request: JobRequest, *, json: bool) -> int:
        found.append(request)
        return int(json)

    monkeypatch.setattr(running, "run_job", run)
    return found


@pytest.mark.parametrize(
    ("given", "dedupe"),
    [
        (["--dedupe", "in.jsonl"], True),
        (["--dedupe", "always", "in.jsonl"], "always"),
        (["--dedupe", "false", "in.jsonl"], False),
        (["in.jsonl", "--dedupe"], True),
        (["--dedupe", "--reuse", "in.jsonl"], True),
        (["in.jsonl"], False),
    ],
)
def test_dedupe_takes_no_input_for_its_value(
    given: list[str], dedupe: bool | str, asked: list[JobRequest]
) -> None:
    assert run_app(["run", "--model", "m", "--output", "o", *given]) == 0
    [request] = asked
    assert (request.dedupe, [Path(one).name for one in request.input]) == (dedupe, ["in.jsonl"])


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--query", "-- nightly\nselect 1"),
        ("--template", "- {text}"),
        ("--template", "--"),
        ("--system-prompt", "--- Answer in JSON."),
        ("--prompt-column", "-"),
        ("--id-column", "-id"),
        ("--delimiter", "-"),
    ],
)
def test_a_text_may_begin_with_a_dash(option: str, text: str, asked: list[JobRequest]) -> None:
    assert run_app(["run", option, text, "in.csv", "--model", "m", "--output", "o"]) == 0
    [request] = asked
    assert getattr(request.rows, option.removeprefix("--").replace("-", "_")) == text
    assert (
        run_app(
            ["run", "in.csv", "--keep-columns", "-a", "--keep-columns", "b", "--model", "m", "--output", "o"]
        )
        == 0
    )
    assert asked[-1].rows.keep_columns == ["-a", "b"]


@pytest.mark.parametrize("following", ["--model", "--model=m", "--modle", "--json"])
def test_an_option_is_no_text(following: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that was forgotten, and not a query of that name."""
    assert run_app(["run", "in.csv", "--output", "o", "--query", following, "m"]) == 2
    assert "--query requires an argument" in " ".join(capsys.readouterr().err.split())

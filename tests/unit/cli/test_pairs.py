"""KEY=VALUE options, and paths as seen from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.cli.options import given_by, options_of, pairs
from dray.errors import ConfigError
from dray.job.options.request import JobRequest
from dray.job_plan import PlanRequest
from dray.storage.absolute_paths import absolute

pytestmark = pytest.mark.unit

KEYS = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True)
VALUES = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=10) | st.lists(st.booleans())
)


@given(st.dictionaries(KEYS, VALUES))
def test_json_values_come_back(values: dict[str, Any]) -> None:
    assert pairs([f"{key}={orjson.dumps(value).decode()}" for key, value in values.items()], "--x") == values


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("dtype=bfloat16", {"dtype": "bfloat16"}),
        ("max-num-seqs=32", {"max_num_seqs": 32}),
        ("stop=a=b", {"stop": "a=b"}),
        ("empty=", {"empty": ""}),
        ("chat_template={{ messages[0].content }}", {"chat_template": "{{ messages[0].content }}"}),
        ("stop=\"[INST]\"", {"stop": "[INST]"}),
        ("limit_mm={\"image\": 0}", {"limit_mm": {"image": 0}}),
    ],
)  # fmt: skip
def test_what_is_not_json_is_text(given_: str, expected: dict[str, Any]) -> None:
    assert pairs([given_], "--engine-arg") == expected


@pytest.mark.parametrize("given_", ["novalue", "=3", ""])
def test_anything_else_is_refused_and_says_how(given_: str) -> None:
    with pytest.raises(ConfigError, match=r"--engine-arg .*KEY=VALUE"):
        pairs([given_], "--engine-arg")


def test_nothing_gives_nothing() -> None:
    assert pairs(None, "--param") == {}


def test_local_paths_are_made_absolute_and_uris_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("in.jsonl") == str(tmp_path / "in.jsonl")
    assert absolute("s3://bucket/in.jsonl") == "s3://bucket/in.jsonl"
    assert absolute("~/in.jsonl") == str(Path.home() / "in.jsonl")
    assert absolute("s3://bucket/a/../in.jsonl") == "s3://bucket/a/../in.jsonl"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("../in.jsonl", "in.jsonl"),
        ("../yy/./../in.jsonl", "in.jsonl"),
        ("gone/../../in.jsonl", "in.jsonl"),
        ("../link/in.jsonl", "link/in.jsonl"),  # as the user spells it
        ("../link/sub/../in.jsonl", "link/in.jsonl"),
        ("../link/../in.jsonl", "deep/in.jsonl"),  # in the folder above what the link leads to
        ("../link/../../link/in.jsonl", "link/in.jsonl"),
        ("../loop/../in.jsonl", "in.jsonl"),
        ("../*/../in.jsonl", "*/../in.jsonl"),  # a pattern may match a link
        ("../*/../../in.jsonl", "*/../../in.jsonl"),
    ],
)
def test_a_path_leads_to_the_same_file_when_the_folder_of_the_command_is_gone(
    given: str, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Jobs keep their paths, and other nodes read them, which have no such folder."""
    for folder in ("yy", "deep/target/sub"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "target")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "yy")
    assert absolute(given) == f"{tmp_path}/{named}"
    assert absolute(given, as_given=True) == f"{tmp_path}/yy/{given.replace('/./', '/')}"


def test_a_job_keeps_no_path_through_the_folder_of_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "yy").mkdir()
    monkeypatch.chdir(tmp_path / "yy")
    asked = JobRequest.of(
        ["../in.jsonl"], "../model", "../out", store="../jobs.db", cluster="../c.toml", plan="../plan.json"
    )
    found = asked.anchored()
    assert (found.input, found.output) == ([f"{tmp_path}/in.jsonl"], f"{tmp_path}/out")
    assert (found.model, found.store) == (f"{tmp_path}/model", f"{tmp_path}/jobs.db")
    assert (found.cluster, found.plan) == (f"{tmp_path}/c.toml", f"{tmp_path}/plan.json")


def test_what_makes_a_job_another_one_stays_as_earlier_versions_spelled_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a path is part of the fingerprint: a job that was begun with it goes on."""
    (tmp_path / "yy").mkdir()
    (tmp_path / "lora").mkdir()
    monkeypatch.chdir(tmp_path / "yy")
    asked = JobRequest.of(
        "sqlite:///../rows.db",
        "../model",
        "../out",
        engine={"name": "simulated", "arguments": {"lora_modules": {"a": "../lora", "b": "../nodes"}}},
        rows={"query": "select 1", "image_root": "../images"},
    )
    found = asked.anchored()
    given = f"{tmp_path}/yy/.."
    assert (found.input, found.model) == (f"sqlite:///{given}/rows.db", f"{given}/model")
    assert found.rows.image_root == f"{given}/images"
    folders = {"a": f"{tmp_path}/lora", "b": f"{given}/nodes"}  # of one that is here, what it holds counts
    assert found.engine.arguments["lora_modules"] == folders


@pytest.mark.parametrize(
    ("store", "expected"),
    [
        (None, None),
        ("env:URL", "env:URL"),
        ("block:main", "block:main"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("sqlite:////data/jobs.db", "sqlite:////data/jobs.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("/data/jobs.db", "/data/jobs.db"),
    ],
)
def test_stores_that_are_the_same_everywhere(store: str | None, expected: str | None) -> None:
    assert anchored(store) == expected


@pytest.mark.parametrize("prefix", ["", "sqlite:///"])
def test_a_store_beside_the_user(prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert anchored(f"{prefix}jobs.db") == f"{prefix}{tmp_path / 'jobs.db'}"
    assert anchored("sqlite:///jobs") == f"sqlite:///{tmp_path / 'jobs'}"  # a URL needs no suffix


def anchored(store: str | None) -> str | None:
    return JobRequest.of("in.jsonl", "m", "out", store=store).anchored().store


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (['lora_modules={"a": "/x", "a": "/y"}'], "--x lora_modules: 'a' stands in it twice"),
        (['c={"d": {"e": 1, "e": 1}}'], "--x c: 'e' stands in it twice"),
        (
            ['lora_modules={"a": "/x"}', 'lora-modules={"b": "/y"}'],
            "--x lora_modules: given twice",
        ),
        (["n=3", "n=4"], "--x n: given twice"),
        (["response_format={bad"], "--x response_format: begins as JSON and is not"),
        (["stop=[INST]"], "--x stop: begins as JSON and is not"),
    ],
)
def test_no_part_of_a_value_is_lost(given_: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        pairs(given_, "--x")
    assert told in str(refused.value)


def test_names_of_instances_keep_their_dashes() -> None:
    options = tuple(options_of(PlanRequest))
    given = {"price": ["p6-b200.48xlarge:spot=40"], "engine_arg": ["max-num-seqs=8"], "model": "m"}
    found = given_by(["in.jsonl"], given, options)
    assert found["prices"] == {"p6-b200.48xlarge:spot": 40}
    assert found["arguments"] == {"max_num_seqs": 8}

"""The shipped prefect.yaml. Prefect drops keys that it does not know without a word: this file does not."""

from __future__ import annotations

import csv
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.cli.deploy._models import (
    DeploymentConfig,
    PrefectYamlModel,
    RawScheduleConfig,
    WorkPoolConfig,
)
from prefect.deployments.steps import pull
from pydantic import BaseModel

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deployments" / "prefect.yaml"
CONTENT: dict[str, Any] = yaml.safe_load(FILE.read_text())
DEPLOYMENTS: list[dict[str, Any]] = CONTENT["deployments"]

each_deployment = pytest.mark.parametrize(
    "deployment", DEPLOYMENTS, ids=lambda deployment: deployment["name"]
)


def unknown_keys(content: dict[str, Any], model: type[BaseModel]) -> set[str]:
    known = {field.alias or name for name, field in model.model_fields.items()}
    return set(content) - known


def flow_of(deployment: dict[str, Any]) -> Flow[..., Any]:
    module, _, name = deployment["entrypoint"].rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, Flow)
    return found


def test_prefect_knows_every_key_of_the_file() -> None:
    assert unknown_keys(CONTENT, PrefectYamlModel) == set()


@each_deployment
def test_prefect_knows_every_key_of_a_deployment(deployment: dict[str, Any]) -> None:
    unknown = unknown_keys(deployment, DeploymentConfig)
    unknown |= unknown_keys(deployment["work_pool"], WorkPoolConfig)
    assert "concurrency_limit" not in deployment  # its slot crashes a run while the server is away
    for schedule in deployment["schedules"]:
        unknown |= unknown_keys(schedule, RawScheduleConfig)
    assert unknown == set()


def test_a_misspelled_key_is_found() -> None:
    assert unknown_keys({"name": "x", "entry_point": "y"}, DeploymentConfig) == {"entry_point"}


@each_deployment
def test_prefect_can_read_it(deployment: dict[str, Any]) -> None:
    PrefectYamlModel.model_validate(CONTENT)
    assert all(isinstance(item, RawScheduleConfig) for item in DeploymentConfig(**deployment).schedules or [])


@each_deployment
def test_the_entrypoint_is_a_module_and_its_parameters_fit_the_flow(deployment: dict[str, Any]) -> None:
    assert ":" not in deployment["entrypoint"]  # Prefect runs a file under another name, beside the module
    flow = flow_of(deployment)
    assert deployment["enforce_parameter_schema"]
    flow.validate_parameters(deployment["parameters"])
    for schedule in deployment["schedules"]:
        flow.validate_parameters(deployment["parameters"] | schedule.get("parameters", {}))


@each_deployment
def test_its_schedules_wait_to_be_turned_on(deployment: dict[str, Any]) -> None:
    assert deployment["schedules"]
    for schedule in deployment["schedules"]:
        assert schedule["active"] is False  # deploying must not start to spend
        assert schedule["timezone"]
        assert schedule["slug"]


def test_one_schedule_can_be_turned_on_without_the_other() -> None:
    """Turned on in the file, since each deploy sets what stands there: Prefect's switch does not last."""
    places = [id(deployment["schedules"]) for deployment in DEPLOYMENTS]
    assert len(set(places)) == len(DEPLOYMENTS)  # an anchor would be one list


@pytest.mark.parametrize("name", ["prefect.yaml", "README.md"])
def test_its_readers_learn_that_a_deploy_undoes_the_switch_in_the_ui(name: str) -> None:
    text = (ROOT / "deployments" / name).read_text()
    assert "Turn it on in the UI" not in text
    assert "`active: true`" in text
    assert "ach `prefect deploy`" in text


@each_deployment
def test_its_inputs_are_in_the_repository(deployment: dict[str, Any]) -> None:
    for name in ("input", "model"):
        assert (ROOT / deployment["parameters"][name]).exists()


def test_the_csv_file_holds_tickets_of_the_batch_file() -> None:
    folder = ROOT / "examples" / "tickets"
    with (folder / "tickets.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = (folder / "requests.jsonl").read_text().splitlines()[: len(rows)]
    requests = [json.loads(line) for line in lines]
    assert len(rows) == 200
    assert [row["id"] for row in rows] == [one["custom_id"] for one in requests]
    assert [row["text"] for row in rows] == [one["body"]["messages"][0]["content"] for one in requests]


def test_pull_steps_are_prefects_and_take_what_they_are_given() -> None:
    for step in CONTENT["pull"]:
        ((name, inputs),) = step.items()
        function = getattr(pull, name.rpartition(".")[2])
        inspect.signature(function).bind(**inputs)


def test_no_path_of_a_machine_is_written_down() -> None:
    assert not re.findall(
        r"(?<![\w:/.{$=])/(?:home|root|Users|srv|work|tmp|opt|mnt)/\S*", yaml.safe_dump(CONTENT)
    )
    assert "{{ $PWD }}" in yaml.safe_dump(CONTENT["pull"])

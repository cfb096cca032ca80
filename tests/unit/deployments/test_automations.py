"""The shipped automations, and the events that docs/prefect.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore

from dray.store import JobState

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "deployments" / "automations").glob("*.yaml"))
DOCUMENTED = set(
    re.findall(r"^\| `(dray\.[a-z.-]+)` ", (ROOT / "docs" / "prefect.md").read_text(), re.MULTILINE)
)


def test_there_are_two() -> None:
    assert [file.name for file in FILES] == ["notify.yaml", "resume.yaml"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_prefect_takes_it_and_its_events_are_documented(file: Path) -> None:
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    automation = AutomationCore.model_validate(content)
    assert automation.enabled
    trigger = content["trigger"]
    assert {*trigger["expect"], *trigger.get("after", [])} <= DOCUMENTED


def test_every_end_of_a_job_is_documented() -> None:
    ends = {f"dray.job.{state}" for state in JobState if state.at_rest}
    assert ends <= DOCUMENTED

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


def test_the_readme_names_each() -> None:
    readme = (ROOT / "deployments" / "README.md").read_text()
    assert [file.name for file in FILES] == sorted(set(re.findall(r"automations/(\w+\.yaml)", readme)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_prefect_takes_it_and_its_events_are_documented(file: Path) -> None:
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    automation = AutomationCore.model_validate(content)
    assert automation.enabled
    trigger = content["trigger"]
    events = {*trigger["expect"], *trigger.get("after", [])}
    assert {event for event in events if not event.startswith("prefect.")} <= DOCUMENTED


def test_every_end_of_a_job_is_documented() -> None:
    ends = {f"dray.job.{state}" for state in JobState if state.at_rest}
    assert ends <= DOCUMENTED

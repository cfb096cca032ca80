"""CI's own limits let the tests say what failed before they cut a run off."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
INSTALL_MINUTES = 10


@pytest.mark.parametrize(("workflow", "job"), [("ci", "all"), ("chaos", "chaos")])
def test_tests_end_before_the_job_that_runs_them(workflow: str, job: str) -> None:
    default = re.search(r"TEST_MINUTES:-(\d+)\}m", (ROOT / ".ci" / "run").read_text())
    assert default is not None
    told = yaml.safe_load((ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text())["jobs"][job]
    (step,) = [one for one in told["steps"] if one.get("run") == "bash .ci/run"]
    minutes = int(step.get("env", {}).get("TEST_MINUTES", default[1]))
    assert minutes + INSTALL_MINUTES <= told["timeout-minutes"]

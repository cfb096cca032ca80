"""CI's own limits let the tests say what failed before they cut a run off."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
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


ONCE = """
from pathlib import Path

def test_once():
    seen = Path(__file__).with_suffix(".seen")
    first = not seen.exists()
    seen.touch()
    assert not first, {message!r}
"""


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not done after 60 s", 0),
        ("I7: actors or tasks are left after 20 s: {}", 0),
        ("I1: acknowledged rows vanished: [3]", 1),
        ("I9: a prompt is told", 1),
        ("['run 3 (all): AssertionError: I2: rows stand twice in the store']", 1),
    ],
)
def test_a_broken_invariant_is_not_made_good_by_a_second_try(message: str, code: int, tmp_path: Path) -> None:
    said = re.search(r"--reruns.*?(?= -ra)", (ROOT / ".ci" / "run").read_text())
    assert said is not None
    options = [one for one in shlex.split(said[0]) if one not in ("--reruns-delay", "5")]
    (tmp_path / "test_it.py").write_text(ONCE.format(message=message))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout

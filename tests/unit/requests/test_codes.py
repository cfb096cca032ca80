"""The codes of error rows are those that the documents name. That nothing makes another, mypy sees to."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from dray.codes import STATUS, ErrorCode, JobCode
from dray.failures.effects import OnShard
from dray.failures.rules import RULES
from dray.requests.outputs.lines import error_line
from dray.shard.ending import VERDICTS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "error-rows.md").read_text()
INPUT = (ROOT / "docs" / "input.md").read_text()


def test_the_page_names_every_code_once_with_its_status_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == len(dict(rows))
    assert {code: int(status) for code, status in rows} == STATUS


def test_the_page_of_inputs_names_codes_that_there_are() -> None:
    listed = re.findall(r"error\s+rows?\s+\(([^)]*)\)", INPUT)
    named = {code for part in listed for code in re.findall(r"`([^`]+)`", part)}
    assert {"model_mismatch", "unknown_field"} <= named, "the sentences have changed: look at the pattern"
    assert named <= STATUS.keys()
    assert "error-rows.md" in INPUT


def test_every_code_is_somewhere_in_the_code() -> None:
    assert set(get_args(ErrorCode)) == STATUS.keys()
    written = {
        node.value
        for path in (ROOT / "dray").rglob("*.py")
        if path.name != "codes.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert STATUS.keys() | set(get_args(JobCode)) <= written


@pytest.mark.parametrize("code", [*STATUS, "of_another_version"])
def test_each_can_be_written(code: str) -> None:
    assert error_line(0, "a", code, "why").count(f'"{code}"'.encode()) == 2


def test_rows_that_end_engines_failed_by_no_fault_of_their_form() -> None:
    found = {rule.effect.code for rule in RULES if rule.effect.shard is OnShard.REFUSE}
    assert found == VERDICTS.keys()
    assert {STATUS[code] for code in VERDICTS} == {500}

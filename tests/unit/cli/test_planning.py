"""What ``dray plan`` says before it has looked at anything."""

from __future__ import annotations

from typing import Any

import pytest

from dray.cli.plan import plan
from dray.errors import InputError
from dray.job_plan import job_plan

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("postgresql://me:hidden-word@host:1/db", "postgresql://host:1/db"),
        ("postgresql://host/db?user=me&password=hidden-word", "postgresql://host/db"),
        ("https://u:hidden-word@h/x.jsonl", "https://h/x.jsonl"),
        ("https://h/x.jsonl?X-Amz-Signature=hidden-word", "https://h/x.jsonl"),
        ("folder/rows.jsonl", "folder/rows.jsonl"),
    ],
)
def test_its_first_line_shows_no_password(
    given: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_plan(*_: Any, **__: Any) -> None:
        raise InputError([])

    monkeypatch.setattr(job_plan, "plan_job", no_plan)
    with pytest.raises(InputError):
        plan([given, "second.jsonl"], model="m")
    said = capsys.readouterr().err
    assert said.endswith(f"s  reading {told}, second.jsonl\n")
    assert "hidden-word" not in said

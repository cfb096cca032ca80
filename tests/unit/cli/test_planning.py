"""What ``dray plan`` says before it has looked at anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dray.cli.plan import plan
from dray.errors import InputError
from dray.job.options.resolving import Blocks, NoBlocks
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


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_store_in_a_block_is_read_from_prefect(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable's was refused, as if this installation had no Prefect."""
    known, seen = NoBlocks(), list[Blocks | None]()

    @contextmanager
    def prefect_blocks() -> Iterator[Blocks]:
        yield known

    def no_plan(_: Any, blocks: Blocks | None, **__: Any) -> None:
        seen.append(blocks)
        raise InputError([])

    monkeypatch.setattr("dray.cli.with_prefect.prefect_blocks", prefect_blocks)
    monkeypatch.setattr(job_plan, "plan_job", no_plan)
    monkeypatch.setenv("DRAY_STORE", "block:results" if by == "variable" else "")
    with pytest.raises(InputError):
        plan(["in.jsonl"], model="m", store="block:results" if by == "option" else None)
    with pytest.raises(InputError):
        plan(["in.jsonl"], model="m", store="jobs.db")
    assert seen == [known, None]

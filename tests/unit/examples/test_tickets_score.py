"""The score of a job's output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.tickets.score import LABELS, as_text, score

pytestmark = pytest.mark.unit


def _labels() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LABELS.read_text(encoding="utf-8").splitlines()]


def _output_line(custom_id: str, content: str | None) -> str:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
    return json.dumps({"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None})


def _answer(label: dict[str, Any], **changes: Any) -> str:
    return json.dumps({key: value for key, value in (label | changes).items() if key != "custom_id"})


def _write(folder: Path, lines: list[str]) -> Path:
    path = folder / "output.jsonl"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_right_answers_score_in_full_in_any_order(tmp_path: Path) -> None:
    lines = [_output_line(label["custom_id"], _answer(label)) for label in reversed(_labels())]
    result = score(_write(tmp_path, lines))
    assert (result.requests, result.all_right, result.accuracy, result.misses) == (2000, 2000, 1.0, ())
    assert result.right == {"category": 2000, "urgency": 2000, "order": 2000}


def test_each_wrong_field_is_counted_and_named(tmp_path: Path) -> None:
    labels = _labels()
    changes: list[dict[str, Any]] = [{"category": "x"}, {"urgency": "x"}, {"order": "x"}, {"order": 7}]
    answers = [_answer(label, **change) for label, change in zip(labels, changes, strict=False)]
    answers += [_answer(label) for label in labels[len(changes) :]]
    lines = [_output_line(label["custom_id"], a) for label, a in zip(labels, answers, strict=True)]
    result = score(_write(tmp_path, lines))
    assert result.right == {"category": 1999, "urgency": 1999, "order": 1998}
    assert result.all_right == 1996
    assert [(miss.custom_id, miss.field, miss.got) for miss in result.misses] == [
        ("ticket-0001", "category", '"x"'),
        ("ticket-0002", "urgency", '"x"'),
        ("ticket-0003", "order", '"x"'),
        ("ticket-0004", "order", "7"),
    ]
    assert "ticket-0003  order" in as_text(result)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", '{"category": "refund"}', "nan"])
def test_an_answer_that_cannot_be_read_is_wrong_in_every_field(tmp_path: Path, content: str | None) -> None:
    labels = _labels()
    lines = [_output_line(labels[0]["custom_id"], content)]
    lines += [_output_line(label["custom_id"], _answer(label)) for label in labels[1:]]
    result = score(_write(tmp_path, lines))
    assert result.all_right == 1999
    assert [miss.got for miss in result.misses] == [None, None, None]


def test_a_missing_row_and_an_error_row_are_wrong(tmp_path: Path) -> None:
    labels = _labels()
    lines = [json.dumps({"custom_id": labels[0]["custom_id"], "response": None, "error": {"code": "x"}})]
    lines += [_output_line(label["custom_id"], _answer(label)) for label in labels[2:]]
    assert score(_write(tmp_path, lines)).all_right == 1998


def test_extra_keys_are_wrong(tmp_path: Path) -> None:
    labels = _labels()
    lines = [_output_line(labels[0]["custom_id"], _answer(labels[0], more=1))]
    lines += [_output_line(label["custom_id"], _answer(label)) for label in labels[1:]]
    assert score(_write(tmp_path, lines)).all_right == 1999


def test_a_broken_output_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, [_output_line("ticket-0001", "{}"), "not json"])
    with pytest.raises(ValueError, match=r"output\.jsonl, line 2: not JSON"):
        score(path)


@pytest.mark.parametrize(("right", "status"), [(1900, 0), (1899, 1)])
def test_the_command_asks_for_95_percent(tmp_path: Path, right: int, status: int) -> None:
    labels = _labels()
    lines = [_output_line(label["custom_id"], _answer(label)) for label in labels[:right]]
    _write(tmp_path, lines)
    run = subprocess.run(
        [sys.executable, "-m", "examples.tickets.score", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=LABELS.parents[2],
    )
    assert run.returncode == status
    assert f"{right} of 2000" in run.stdout


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "examples.tickets.score", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=LABELS.parents[2],
    )
    assert run.returncode == 1
    assert "cannot score" in run.stderr
    assert "output.jsonl" in run.stderr

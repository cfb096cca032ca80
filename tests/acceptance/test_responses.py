"""Rows for /v1/responses through ``dray run`` on Ray, with the simulated engine and with vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.support.command import ROOT, dray, run_arguments
from tests.support.openai_reader import as_openai_reads, response_class

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

TICKETS = ROOT / "examples/tickets"
ROWS = 40


def _texts() -> list[str]:
    lines = (TICKETS / "requests.jsonl").read_text().splitlines()[:ROWS]
    return [json.loads(line)["body"]["messages"][-1]["content"] for line in lines]


def _written(path: Path, bodies: list[dict[str, Any]], url: str = "/v1/responses") -> Path:
    rows = [
        {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}
        for number, body in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _answers(out: Path) -> list[dict[str, Any]]:
    rows = as_openai_reads(out / "output.jsonl")
    return [row["response"]["body"] for row in rows]


@pytest.mark.heavy
def test_a_batch_goes_through_with_equal_rows_computed_once(tmp_path: Path) -> None:
    """The job's length is every row's; metadata, which an answer repeats, is its own row's."""
    bodies = [
        {"input": f"help {number % 10}", "instructions": "Be short.", "metadata": {"of": str(number % 20)}}
        for number in range(ROWS)
    ]
    given = _written(tmp_path / "requests.jsonl", bodies)
    options = ("--max-tokens", "5", "--temperature", "0")
    for name, more in (("plain", ()), ("shared", ("--dedupe",))):
        (folder := tmp_path / name).mkdir()
        ended = dray(folder, *run_arguments(given, folder / "out", *options, *more), timeout=120)
        assert ended.code == 0, ended.stderr
        assert ended.json["counts"]["done"] == ROWS
    assert ended.json["saved"]["repeated"] == ROWS - 20
    plain, shared = (_answers(tmp_path / name / "out") for name in ("plain", "shared"))
    assert plain == shared
    assert [len(one["output"][0]["content"][0]["text"]) for one in plain] == [20] * ROWS


@pytest.mark.heavy
def test_answers_are_those_of_chats_in_every_form_of_output(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    texts = _texts()
    bad = {"input": "a", "previous_response_id": "resp_1"}
    asked = _written(tmp_path / "responses.jsonl", [{"input": text} for text in texts] + [bad])
    chats = [{"messages": [{"role": "user", "content": text}]} for text in texts]
    as_chats = _written(tmp_path / "chats.jsonl", chats, "/v1/chat/completions")
    options = ("--max-tokens", "48", "--temperature", "0", "--model-name", "tickets")
    for given, name, more in ((asked, "responses", ()), (as_chats, "chats", ("--format", "parquet"))):
        (folder := tmp_path / name).mkdir()
        arguments = run_arguments(
            given, folder / "out", *options, *more, engine="vllm", model=str(TICKETS / "model")
        )
        ended = dray(folder, *arguments, timeout=400)
        assert ended.code == 0, ended.stderr
        assert ended.json["counts"]["done"] == ROWS
    table = parquet.read_table(tmp_path / "chats" / "out" / "output.parquet")
    found = [response_class().model_validate(one) for one in _answers(tmp_path / "responses" / "out")]
    assert [one.output_text for one in found] == table["text"].to_pylist()
    assert [one.id for one in found] == [f"resp_{number}" for number in range(ROWS)]
    [error] = as_openai_reads(tmp_path / "responses" / "out" / "errors.jsonl")
    assert error["error"]["code"] == "unsupported_field"

    store = str(tmp_path / "responses" / "out")
    exported = tmp_path / "exported"
    ended = dray(
        tmp_path, "export", "job", "--store", store, "--output", str(exported), "--format", "parquet"
    )
    assert ended.code == 0, ended.stderr
    again = parquet.read_table(exported / "output.parquet")
    for column in ("text", "finish_reason", "prompt_tokens", "completion_tokens"):
        assert again[column].to_pylist() == table[column].to_pylist()

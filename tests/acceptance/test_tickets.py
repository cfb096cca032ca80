"""The main job on real parts: tickets through ``dray run`` with vLLM, beside plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pyarrow
import pytest
from pyarrow import parquet

from examples.tickets.generate import held_out_tickets
from tests.support.command import ROOT, dray, run_arguments
from tests.support.openai_reader import as_openai_reads, chat_class

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

REQUESTS = ROOT / "examples/tickets/requests.jsonl"
MODEL = ROOT / "examples/tickets/model"
ROWS = 120  # of the 2,000: what the rest would show, it shows too, in minutes of a core more

TEXT = pyarrow.string()
CALLS = pyarrow.list_(pyarrow.struct([("id", TEXT)]))
MESSAGES = pyarrow.list_(pyarrow.struct([("role", TEXT), ("content", TEXT), ("tool_calls", CALLS)]))
AS_THE_ROWS_SAY = ("--max-tokens", "48", "--temperature", "0", "--model-name", "tickets")


def _run(folder: Path, requests: Path, *options: str) -> bytes:
    options = ("--shard-rows", "40", *options)
    arguments = run_arguments(requests, folder / "out", *options, engine="vllm", model=str(MODEL))
    ended = dray(folder, *arguments, timeout=400)
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == ROWS
    return (folder / "out" / "output.jsonl").read_bytes()


def test_all_answers_equal_greedy_transformers_in_order(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    import torch

    from examples.tickets.reference import greedy_answers, load

    torch.set_num_threads(1)  # more would spin while they wait for a core: 40 s where other tests run
    asked = _asked()
    rows = [orjson.loads(line) for line in _run_tickets(tmp_path, asked).splitlines()]
    assert [row["custom_id"] for row in rows] == [row["custom_id"] for row in asked]
    answers = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows]
    assert answers == greedy_answers(*load(), [ticket.text for ticket in held_out_tickets()[:ROWS]])


@pytest.mark.heavy
def test_a_column_gives_the_same_bytes(tmp_path: Path) -> None:
    """The same requests as a Parquet column of messages, with a struct's nulls."""
    pytest.importorskip("vllm")
    asked = _asked()
    columns = {
        "ticket": pyarrow.array([row["custom_id"] for row in asked]),
        "messages": pyarrow.array([row["body"]["messages"] for row in asked], MESSAGES),
    }
    table = tmp_path / "tickets.parquet"
    parquet.write_table(pyarrow.table(columns), table)
    again = _run(tmp_path / "again", table, "--id-column", "ticket", *AS_THE_ROWS_SAY)
    assert again == _run_tickets(tmp_path, asked)


def _asked() -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in REQUESTS.read_bytes().splitlines()[:ROWS]]


def _run_tickets(folder: Path, asked: list[dict[str, Any]]) -> bytes:
    requests = folder / "tickets.jsonl"
    requests.write_bytes(b"\n".join(map(orjson.dumps, asked)))
    return _run(folder / "first", requests)


@pytest.mark.heavy
def test_json_lines_of_messages_end_in_files_that_openais_client_reads(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    texts = [orjson.loads(line)["body"]["messages"] for line in REQUESTS.read_bytes().splitlines()[:20]]
    parts = [{"type": "text", "text": part} for part in (texts[0][0]["content"][:40], "and\u2028more")]
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    rows: list[dict[str, Any]] = [
        {"custom_id": f"t\u2028{n}", "messages": text} for n, text in enumerate(texts)
    ]
    rows += [
        {"custom_id": "parts", "messages": [{"role": "user", "content": parts, "name": None}]},
        {"custom_id": "image\u0085", "messages": [{"role": "user", "content": image}]},
        {"custom_id": "none\u2029", "messages": []},
    ]
    requests = tmp_path / "rows.jsonl"
    requests.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    options = (*AS_THE_ROWS_SAY, "--skip-invalid", "--param", "logprobs=true")
    arguments = run_arguments(requests, tmp_path / "out", *options, engine="vllm", model=str(MODEL))
    ended = dray(tmp_path, *arguments, timeout=400)
    assert ended.code == 0, ended.stderr
    assert "messages come from the column 'messages', ids from the column 'custom_id'" in ended.stderr
    answers = as_openai_reads(tmp_path / "out" / "output.jsonl")
    assert [row["custom_id"] for row in answers] == [row["custom_id"] for row in rows[:21]]
    for row in answers:
        completion = chat_class().model_validate(row["response"]["body"], strict=True)
        assert completion.choices[0].message.content
        assert completion.choices[0].logprobs is not None
        assert (row["response"]["status_code"], row["error"]) == (200, None)
    errors = as_openai_reads(tmp_path / "out" / "errors.jsonl")
    found = [(row["custom_id"], row["response"]["status_code"], row["error"]["code"]) for row in errors]
    assert found == [("image\u0085", 400, "unsupported_content"), ("none\u2029", 400, "invalid_messages")]

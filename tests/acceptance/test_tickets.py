"""The main job on real parts: 2,000 tickets through ``dray run`` with vLLM, beside plain transformers."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from examples.tickets.generate import held_out_tickets
from tests.support.command import ROOT, dray, run_arguments

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

REQUESTS = ROOT / "examples/tickets/requests.jsonl"
MODEL = ROOT / "examples/tickets/model"


def _run(folder: Path) -> bytes:
    arguments = run_arguments(REQUESTS, folder / "out", engine="vllm", model=str(MODEL))
    ended = dray(folder, *arguments, timeout=400)
    assert ended.code == 0, ended.stderr
    assert ended.json["counts"]["done"] == 2000
    return (folder / "out" / "output.jsonl").read_bytes()


def test_all_answers_equal_greedy_transformers_in_order_and_again(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from examples.tickets.reference import greedy_answers, load

    output = _run(tmp_path / "first")
    rows = [orjson.loads(line) for line in output.splitlines()]
    asked = [orjson.loads(line)["custom_id"] for line in REQUESTS.read_bytes().splitlines()]
    assert [row["custom_id"] for row in rows] == asked
    answers = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows]
    assert answers == greedy_answers(*load(), [ticket.text for ticket in held_out_tickets()])
    assert _run(tmp_path / "again") == output

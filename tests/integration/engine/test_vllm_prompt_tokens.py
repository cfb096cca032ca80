"""The planner counts the prompt tokens that vLLM itself reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dray.kinds import Kind
from dray.planner.workload import TokenizerAt, gather
from dray.requests.spool.spool import encode_line
from tests.support.engines import NAME, Runner

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]

TOOL = {
    "type": "function",
    "function": {"name": "refund", "description": "Give money back", "parameters": {"type": "object"}},
}
USER = {"role": "user", "content": "Where is my order?"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "refund", "arguments": '{"x": 1}'}}],
}
CHATS: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "It is late."}, USER]},
    {"messages": [USER, PARTS]},
    {"messages": [{"role": "developer", "content": "Be kind."}, USER]},
    {"messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER]},
    {"messages": [USER, CALL, {"role": "tool", "tool_call_id": "1", "content": "done"}]},
    {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER], "add_special_tokens": True},
    {"messages": [USER], "n": 2},
    {"messages": [{"role": "user", "content": "\u00e4\u6f22\U0001f600 <|end|> x" * 9}]},
]
COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "Where is my order?"},
    {"prompt": "Where is my order?", "add_special_tokens": False},
    {"prompt": ["one", "two of them"]},
    {"prompt": [5, 6, 7]},
    {"prompt": [[5, 6, 7], [8]]},
    {"prompt": "a b c d e f g h", "truncate_prompt_tokens": 3},
]


@pytest.mark.parametrize(
    ("kind", "bodies"), [(Kind.CHAT, CHATS), (Kind.COMPLETION, COMPLETIONS)], ids=["chat", "completion"]
)
def test_counts_are_those_of_vllm(
    generation: Runner, lively_model: Path, kind: Kind, bodies: list[dict[str, Any]]
) -> None:
    asked = [body | {"model": NAME, "max_tokens": 1} for body in bodies]
    outcomes = generation.run(asked, kind)
    lines = [encode_line(n, f"r{n}", kind.url, body, 0, n + 1) for n, body in enumerate(asked)]
    counted = gather(lines, TokenizerAt(folder=str(lively_model)), processes=1).facts.prompt_tokens
    wrong = {n: outcome.error_message for n, outcome in enumerate(outcomes) if outcome.error_code}
    assert wrong == {}
    assert counted.tolist() == [outcome.prompt_tokens for outcome in outcomes]

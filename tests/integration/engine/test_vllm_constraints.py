"""Structured output and tools."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from typing import Any

import jsonschema
import pytest

from dray.requests.model import Outcome
from tests.support.engines import Runner, lines

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "refund",
        "description": "Pay an order back.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"urgent": {"type": "boolean"}, "reason": {"enum": ["late", "broken"]}},
            "required": ["urgent", "reason"],
            "additionalProperties": False,
        },
    },
}


def chat(content: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 120, "temperature": 0} | fields


def message(outcome: Outcome) -> dict[str, Any]:
    assert outcome.response is not None, (outcome.error_code, outcome.error_message)
    found: dict[str, Any] = json.loads(outcome.response)["choices"][0]["message"]
    return found


def schema_of(rng: random.Random) -> dict[str, Any]:
    """A bounded schema: whatever a random model says, the object ends."""
    fields: dict[str, Any] = {
        "category": {"enum": ["billing", "delivery", "other"]},
        "urgent": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 0, "maximum": rng.choice([9, 99])},
        "order": {"anyOf": [{"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    }
    names = rng.sample(sorted(fields), rng.randint(1, 5))
    return {
        "type": "object",
        "properties": {name: fields[name] for name in names},
        "required": names,
        "additionalProperties": False,
    }


@pytest.mark.heavy
def test_200_rows_with_a_schema_all_validate(generation: Runner) -> None:
    rng = random.Random(3)
    schemas = [schema_of(rng) for _ in range(20)]
    bodies = [
        chat(
            f"order {number}",
            temperature=1.0 if number % 2 else 0,
            seed=number,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "ticket", "schema": schemas[number % 20], "strict": True},
            },
        )
        for number in range(200)
    ]
    outcomes = generation.run(bodies)
    for number, outcome in enumerate(outcomes):
        jsonschema.validate(json.loads(message(outcome)["content"]), schemas[number % 20])
    assert len({outcome.response for outcome in outcomes}) > 20


def test_regex_choice_grammar_and_json_object(generation: Runner) -> None:
    regex, choice, grammar, anything = generation.run(
        [
            chat("hi", structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"}),
            chat("hi", structured_outputs={"choice": ["spam", "ham"]}),
            chat("hi", structured_outputs={"grammar": 'root ::= "yes" | "no"'}),
            chat("hi", response_format={"type": "json_object"}, max_tokens=60),
        ]
    )
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", message(regex)["content"])
    assert message(choice)["content"] in {"spam", "ham"}
    assert message(grammar)["content"] in {"yes", "no"}
    assert message(anything)["content"].startswith("{")


def test_tools(generation: Runner) -> None:
    free, none, required, named = generation.run(
        [
            chat("hi", tools=[TOOL], max_tokens=8),
            chat("hi", tools=[TOOL], tool_choice="none", max_tokens=8),
            chat("hi", tools=[TOOL], tool_choice="required", parallel_tool_calls=False),
            chat("hi", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "refund"}}),
        ]
    )
    assert message(free)["content"]
    assert "tool_calls" not in message(none) or not message(none)["tool_calls"]
    for index, outcome in ((2, required), (3, named)):
        call = message(outcome)["tool_calls"][0]
        assert call["function"]["name"] == "refund"
        assert call["id"] == f"call_{index}_0_0"
        jsonschema.validate(json.loads(call["function"]["arguments"]), TOOL["function"]["parameters"])


def test_a_null_choice_of_tools_is_one_that_is_left_out(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pandas writes it where a row has none. vLLM would take the call out of the text, and drop it."""
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    read = Hermes2ProToolParser.extract_tool_calls

    def extract(self: Any, text: str, request: Any) -> Any:
        call = {"name": "refund", "arguments": {"text": text}}
        return read(self, f"<tool_call>{json.dumps(call)}</tool_call>", request)

    monkeypatch.setattr(Hermes2ProToolParser, "extract_tool_calls", extract)
    bodies = [chat("hi", max_tokens=8, tools=[TOOL], **choice) for choice in ({}, {"tool_choice": None})]
    messages = [message(generation.one(body)) for body in bodies]
    assert messages[0] == messages[1]
    assert messages[0]["tool_calls"][0]["function"]["name"] == "refund"
    bare = [
        message(generation.one(chat("hi", max_tokens=8, **choice))) for choice in ({}, {"tool_choice": None})
    ]
    assert bare[0] == bare[1]
    assert bare[0]["content"]


def test_a_bound_may_be_any_float(generation: Runner) -> None:
    """As generators of schemas write them for numbers without one."""
    number = {"type": "number", "minimum": -sys.float_info.max, "maximum": 1e20}
    shape = {
        "type": "object",
        "properties": {"urgent": {"type": "boolean"}, "sum": number},
        "required": ["urgent"],
        "additionalProperties": False,
    }
    tool = {**TOOL, "function": {**TOOL["function"], "parameters": shape}}
    bounded = {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}}
    for outcome in generation.run(
        [
            chat("hi", tools=[tool], max_tokens=8),
            chat("hi", tools=[tool], tool_choice="required", max_tokens=8),
            chat("hi", response_format=bounded, max_tokens=8),
        ]
    ):
        assert outcome.error_code is None, outcome.error_message


def test_the_library_for_schemas_does_not_depend_on_what_came_first(generation: Runner) -> None:
    """vLLM's "auto" would compile this with whatever came first, and ignore ``multipleOf``."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}
    body = chat("hi", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    refused = generation.one(body)
    assert refused.error_code == "invalid_json_schema"
    assert "guidance" in (refused.error_message or "")


def _json(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _bombs() -> list[dict[str, Any]]:
    """Schemas of 800 KB and 30 KB that keep xgrammar busy for minutes."""
    return [
        _json({"enum": [f"value-{number}-{number * 7919}" for number in range(40_000)]}),
        _json({"properties": {str(number): {} for number in range(3000)}}),
    ]


@pytest.mark.heavy
def test_a_grammar_that_takes_too_long_costs_its_row_only(generation: Runner) -> None:
    """And no thread, core or memory of the engine's: other rows with grammars are answered meanwhile."""
    pattern = {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"}
    good = {"type": "object", "properties": {"order": pattern}, "required": ["order"]}
    bodies = [chat(f"row {number}", **fields) for number, fields in enumerate([*_bombs(), *_bombs()])]
    bodies += [chat("hi", **_json(good)), chat("hi", max_tokens=4)]
    bodies += [chat("hi", tools=[TOOL], tool_choice="required", parallel_tool_calls=False)]
    outcomes = generation.run(bodies)
    assert {outcome.error_code for outcome in outcomes[:4]} == {"invalid_json_schema"}
    for outcome in outcomes[:4]:
        assert "took longer than 2 s of processor time" in (outcome.error_message or "")
    jsonschema.validate(json.loads(message(outcomes[4])["content"]), good)
    assert all(outcome.response for outcome in outcomes[4:])
    again = generation.one(chat("again", **_bombs()[0]))  # the verdict is kept
    assert again.error_message == outcomes[0].error_message
    assert not generation.engine._flights._parked


def test_rows_that_wait_for_a_verdict_can_be_aborted(generation: Runner) -> None:
    replica, session = generation.replica, generation.session()
    slow = _json({"enum": [f"other-{number}-{number * 7919}" for number in range(40_000)]})
    replica.feed(session, lines([chat("hi", **slow)]), last=True)
    while not generation.engine._flights._parked:
        time.sleep(0.01)
    replica.abort(session)
    assert list(replica.results(session, 9, 0.01)) == []
    while replica.status().running:
        time.sleep(0.01)
    assert not generation.engine._flights._by_key

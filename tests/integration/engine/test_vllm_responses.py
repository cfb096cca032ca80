"""Rows for /v1/responses: what vLLM's own server answers, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.kinds import Kind
from dray.planner.workload.encoders import TokenizerAt
from dray.planner.workload.prompts import asked
from dray.ports import lasting_port
from dray.requests.model import Outcome
from dray.requests.spool.spool import encode
from tests.support.engines import CONTEXT, NAME, Runner, answer_of, generation_spec, request, running
from tests.support.openai_reader import response_class

pytestmark = [pytest.mark.integration, pytest.mark.heavy(one_of=3)]

MODEL = Path(__file__).parents[3] / "examples/tickets/model"
TICKET = "My order H8737701 never came. Please send me my money back, I am very angry about this."
STYLE = {"backend": "xgrammar", "disable_any_whitespace": True}
TEMPLATE = """
{%- if reasoning_effort is defined -%}{{- '<|system|>' + (reasoning_effort or '') + '<|end|>' -}}{%- endif -%}
{%- for tool in tools or [] -%}{{- '<|system|>' + tool | tojson + '<|end|>' -}}{%- endfor -%}
{%- for message in messages -%}
{{- '<|' + ('system' if message.role in ('tool', 'developer') else message.role) + '|>' -}}
{{- (message.reasoning or '') + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}{{- call.function | tojson -}}{%- endfor -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""
"""That of the model, for roles and fields that it does not know."""
ARGUMENTS = {"structured_outputs_config": STYLE, "tool_call_parser": "hermes", "chat_template": TEMPLATE}
ASK = {
    "type": "function",
    "name": "ask",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"urgent": {"type": "boolean"}, "answer": {"enum": ["yes", "no"]}},
        "required": ["urgent", "answer"],
        "additionalProperties": False,
    },
}
CHOICE = {"type": "object", "properties": {"end": {"enum": ["x"]}}, "required": ["end"]}
DONE = ASK | {"name": "done", "parameters": CHOICE | {"additionalProperties": False}}
LABEL = {
    "type": "object",
    "properties": {"label": {"enum": ["delivery", "return"]}},
    "required": ["label"],
    "additionalProperties": False,
}
SCHEMA = {"format": {"type": "json_schema", "name": "label", "schema": LABEL}, "verbosity": "low"}


def says(text: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


TALK = [
    says("You label tickets.", "developer"),
    says([{"type": "input_text", "text": TICKET}], type="message"),
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "It is late."}]},
    {"type": "function_call", "call_id": "c1", "name": "ask", "arguments": '{"urgent": true}'},
    {"type": "function_call_output", "call_id": "c1", "output": "yes"},
    says([{"type": "output_text", "text": "Noted."}], "assistant", type="message"),
    says("And now?"),
]
BODIES: dict[str, dict[str, Any]] = {
    "text": {"input": TICKET},
    "messages": {"input": [says("Be short.", "system"), says(TICKET)]},
    "instructions": {"input": TICKET, "instructions": "You label tickets."},
    "turns": {"input": TALK, "instructions": "Be exact.", "tools": [ASK], "tool_choice": "none"},
    "continued": {"input": [says(TICKET), says('{"category": "', "assistant", status="incomplete")]},
    "length": {"input": TICKET, "max_output_tokens": 3},
    "sampled": {"input": TICKET, "temperature": 1.5, "top_p": 0.9, "top_k": 20, "seed": 7},
    "schema": {"input": TICKET, "text": SCHEMA},
    "object": {"input": TICKET, "text": {"format": {"type": "json_object"}}},
    "regex": {"input": TICKET, "structured_outputs": {"regex": "yes|no"}},
    "tools": {"input": TICKET, "tools": [ASK]},
    "required": {"input": TICKET, "tools": [ASK], "tool_choice": "required"},
    "called": {
        "input": TICKET,
        "tools": [DONE],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 120,
    },
    "named": {"input": TICKET, "tools": [ASK], "tool_choice": {"type": "function", "name": "ask"}},
    "custom": {
        "input": TICKET,
        "tools": [{"type": "custom", "name": "note"}],
        "tool_choice": {"type": "custom", "name": "note"},
    },
    "logprobs": {
        "input": TICKET,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 5,
    },
    "effort": {"input": TICKET, "reasoning": {"effort": "low", "summary": "auto"}},
    "idle": {
        "input": TICKET,
        "store": True,
        "metadata": {"batch": "7"},
        "service_tier": "flex",
        "user": "u",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "max_tool_calls": 3,
    },
    "raw": {"input": TICKET, "enable_response_messages": True, "max_output_tokens": 5},
    "stop": {"input": TICKET, "stop": ["urgency"], "frequency_penalty": 0.5, "logit_bias": {"30": 5}},
}


def body_of(name: str) -> dict[str, Any]:
    return {"model": NAME, "max_output_tokens": 40, "temperature": 0} | BODIES[name]


@pytest.fixture(scope="module")
def tickets(quiet_vllm: None) -> Iterator[Runner]:
    with running(generation_spec(MODEL, **ARGUMENTS)) as runner:
        yield runner


@pytest.fixture(scope="module")
def server(quiet_vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM's own server on the same model."""
    port, template = lasting_port(), tmp_path_factory.mktemp("server") / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = [*("--model", str(MODEL), "--served-model-name", NAME, "--port", str(port))]
    arguments += ["--max-model-len", "512", "--kv-cache-memory-bytes", str(128 << 20), "--enforce-eager"]
    arguments += ["--tool-call-parser", "hermes", "--enable-auto-tool-choice"]
    arguments += ["--dtype", "float32", "--chat-template", str(template)]
    arguments += ["--structured-outputs-config", json.dumps(STYLE)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 240
    try:
        while not _is_up(url):
            assert process.poll() is None, "vLLM's server ended"
            assert time.monotonic() < until, "vLLM's server did not start"
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _ask(server: str, body: dict[str, Any]) -> dict[str, Any]:
    asked = urllib.request.Request(
        f"{server}/v1/responses", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as got:
        found: dict[str, Any] = json.load(got)
    return found


def test_answers_are_whole_and_the_same_bytes_every_time(tickets: Runner) -> None:
    bodies = [body_of(name) for name in BODIES]
    together = tickets.run(bodies, Kind.RESPONSE)
    assert [one.response for one in together] == [one.response for one in tickets.run(bodies, Kind.RESPONSE)]
    answers = {name: answer_of(outcome) for name, outcome in zip(BODIES, together, strict=True)}
    for number, (name, outcome) in enumerate(zip(BODIES, together, strict=True)):
        found = answers[name]
        assert response_class().model_validate(found, strict=True).id == found["id"] == f"resp_{number}"
        assert (found["created_at"], found["model"], found["object"]) == (0, NAME, "response")
        ids = [item["id"].split("_")[1:] for item in found["output"]]
        assert ids == [[str(number), str(place)] for place in range(len(ids))]
        usage = found["usage"]
        assert outcome.prompt_tokens == usage["input_tokens"] > 5
        assert outcome.completion_tokens == usage["output_tokens"] > 0
        assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert any(one.cached_tokens for one in together), "else the zero above shows nothing"
    assert json.loads(text_of(answers["schema"])).keys() == {"label"}
    assert answers["schema"]["text"]["format"]["schema"] == LABEL
    assert answers["length"]["status"] == "incomplete"
    assert answers["text"]["status"] == "completed"
    assert answers["idle"]["metadata"] == {"batch": "7"}
    [call] = answers["called"]["output"]
    number = list(BODIES).index("called")
    assert call["type"] == "function_call"
    assert (call["name"], call["arguments"], call["call_id"]) == ("done", '{"end": "x"}', f"call_{number}_0")
    [logprobs] = [part["logprobs"] for part in answers["logprobs"]["output"][0]["content"]]
    assert [len(one["top_logprobs"]) for one in logprobs] == [2] * 5
    assert answer_of(tickets.one(body_of("text") | {"request_id": "mine"}, Kind.RESPONSE))["id"] == "mine"


def text_of(found: dict[str, Any]) -> str:
    text: str = response_class().model_validate(found).output_text
    assert text == Kind.RESPONSE.columns[0].read(found)
    return text


def test_a_response_says_what_a_chat_says(tickets: Runner) -> None:
    """In one batch: the same prompt in both forms."""
    talk = [says("Be short.", "system"), says(TICKET)]
    both = [
        request(0, {"messages": talk, "max_tokens": 40, "temperature": 0}),
        request(1, {"input": TICKET, "instructions": "Be short.", "max_output_tokens": 40}, Kind.RESPONSE),
    ]
    both[1].body["temperature"] = 0
    session = tickets.session()
    tickets.replica.feed(session, list(map(encode, both)), last=True)
    found = [one for batch in tickets.replica.results(session, 64, 0.05) for one in batch]
    chat, response = sorted(found, key=lambda outcome: outcome.index)
    assert text_of(answer_of(response)) == answer_of(chat)["choices"][0]["message"]["content"]
    assert response.prompt_tokens == chat.prompt_tokens


def test_a_null_is_as_if_the_field_were_not_there(tickets: Runner) -> None:
    """As pandas writes one wherever a row has no value."""
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    nulls = dict.fromkeys(name for name in ResponsesRequest.model_fields if name not in ("input", "model"))
    plain = {"input": TICKET, "max_output_tokens": 4, "temperature": 0}
    first, second = tickets.run([plain, nulls | plain | {"conversation": None}], Kind.RESPONSE)
    assert _comparable(answer_of(second)) == _comparable(answer_of(first))


def test_a_plan_counts_the_tokens_that_vllm_counts(tickets: Runner) -> None:
    encoder = TokenizerAt(folder=str(MODEL), chat_template=TEMPLATE).encoder()
    outcomes = tickets.run([body_of(name) for name in BODIES], Kind.RESPONSE)
    for name, outcome in zip(BODIES, outcomes, strict=True):
        wanted = asked(Kind.RESPONSE.url, body_of(name), encoder.render)
        assert [len(one) for one in encoder.encode(wanted.prompts)] == [outcome.prompt_tokens], name
        assert wanted.most_output == body_of(name)["max_output_tokens"]


def test_what_is_too_long_is_made_to_fit_as_the_job_says(
    tickets: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitter = tickets.engine._serve._fitters[Kind.RESPONSE.url]
    long, wanted = "order " * 600, 40
    called: list[dict[str, Any]] = [item for item in TALK if item.get("type", "").startswith("function")]
    turns = {"input": [says("Be short.", "system"), says(long), *called, says(TICKET)]}
    alone = {"input": [says("Be short.", "system"), says(TICKET)]}

    def under(policy: str, **fields: Any) -> tuple[Outcome, dict[str, Any]]:
        monkeypatch.setattr(fitter, "_policy", policy)
        outcome = tickets.one(body_of("text") | fields, Kind.RESPONSE)
        return outcome, answer_of(outcome) if outcome.response else {}

    assert under("error", **turns)[0].error_code == "context_length_exceeded"
    assert under("shorten", **turns)[0].error_code == "context_length_exceeded"
    shortened, found = under("shorten", max_output_tokens=600)
    assert found["dray"] == {"overflow": "shortened", "max_tokens": CONTEXT - shortened.prompt_tokens}
    _, found = under("cut-head", **turns)
    assert (found["dray"]["overflow"], found["dray"]["dropped_messages"]) == ("cut-head", 3)
    assert found["output"] == under("error", **alone)[1]["output"]
    for policy in ("cut-head", "cut-tail"):
        kept = {"input": f"{long}{TICKET}", "instructions": "Be short.", "temperature": None, "seed": 1}
        outcome, found = under(policy, **kept)
        assert found["dray"]["overflow"] == policy
        assert found["instructions"] == "Be short."
        assert CONTEXT - 9 < outcome.prompt_tokens + wanted <= CONTEXT
        unknown = under(policy, **kept, messages=[says("a")], temprature=None)
        assert unknown[0].error_code == "unknown_field"


IMAGE = {"type": "input_image", "image_url": "http://127.0.0.1:9/x.png"}
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"background": True}, "unsupported_field"),
    ({"stream": True}, "stream_unsupported"),
    ({"stream_options": {"include_obfuscation": False}}, "unsupported_field"),
    ({"previous_response_id": "resp_1"}, "unsupported_field"),
    ({"conversation": "conv_1"}, "unsupported_field"),
    ({"context_management": [{"type": "compaction"}]}, "unsupported_field"),
    ({"prompt": {"id": "pmpt_1"}}, "unsupported_field"),
    ({"previous_input_messages": [{"role": "user", "content": "a"}]}, "unsupported_field"),
    ({"truncation": "auto"}, "unsupported_field"),
    ({"reasoning": {"summary": "detailed"}}, "unsupported_field"),
    ({"include": ["reasoning.encrypted_content"]}, "unsupported_field"),
    ({"priority": 3}, "unsupported_field"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_field"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}, "unsupported_field"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "unsupported_field"),
    ({"tools": [ASK, {"type": "mcp", "server_label": "a", "server_url": "http://a"}]}, "unsupported_field"),
    ({"tools": [ASK], "tool_choice": {"type": "web_search"}}, "unsupported_field"),
    ({"tools": [ASK], "tool_choice": {"type": "allowed_tools"}}, "unsupported_field"),
    ({"tools": [ASK], "tool_choice": {"type": "function", "name": "other"}}, "invalid_request"),
    ({"tools": [{"type": "function"}]}, "invalid_request"),
    ({"tools": 5}, "invalid_request"),
    ({"tool_choice": "required"}, "invalid_request"),
    ({"top_logprobs": 2}, "invalid_request"),
    ({"input": [says([IMAGE])]}, "unsupported_content"),
    ({"input": [says([{"type": "input_file", "file_id": "f"}])]}, "unsupported_content"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [IMAGE]}]}, "unsupported_content"),
    ({"input": [says([{"image_url": "http://127.0.0.1:9/x.png"}])]}, "unsupported_content"),
    ({"input": [says([IMAGE], type="reasoning", summary=[])]}, "unsupported_content"),
    ({"input": [{"type": "item_reference", "id": "a"}]}, "unsupported_content"),
    ({"input": [says([{"type": "output_text", "text": "a"}] * 2, "assistant")]}, "unsupported_content"),
    ({"input": None}, "invalid_request"),
    ({"input": []}, "invalid_request"),
    ({"input": 5}, "invalid_request"),
    ({"input": [5]}, "invalid_request"),
    ({"input": [{}]}, "invalid_request"),
    ({"input": [says("a", "stranger")]}, "invalid_request"),
    ({"input": TICKET * 60}, "context_length_exceeded"),
    ({"input": [says("a")] * 17_000}, "request_too_large"),
    ({"input": [says("a", "stranger")] * 5000}, "invalid_request"),  # of each 230 faults could be told
    ({"input": [says([{"type": "input_text"}] * 5000)]}, "invalid_request"),
    ({"tools": [{"type": "function"}] * 5000}, "invalid_request"),
    ({"input": [says("a", queries=[1] * 65)]}, "request_too_large"),
    ({"instructions": ["a"]}, "invalid_request"),
    ({"max_output_tokens": 9_999}, "context_length_exceeded"),
    ({"max_output_tokens": 0}, "invalid_request"),
    ({"max_output_tokens": "a"}, "invalid_request"),
    ({"temperature": -1}, "invalid_request"),
    ({"service_tier": "gold"}, "invalid_request"),
    ({"metadata": {"a": 1}}, "invalid_request"),
    ({"model": "another"}, "model_mismatch"),
    (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "odd"}}}},
        "invalid_json_schema",
    ),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "invalid_json_schema"),
    ({"text": {"length": 1}}, "unknown_field"),
    ({"text": {"format": {"type": "text", "length": 1}}}, "unknown_field"),
    ({"reasoning": {"length": 1}}, "unknown_field"),
    ({"max_tokens": 5}, "unknown_field"),
    ({"messages": [says("a")]}, "unknown_field"),
    ({"n": 2}, "unknown_field"),
    ({"temprature": None}, "unknown_field"),
]


def test_what_cannot_be_honoured_is_refused_with_its_code(tickets: Runner) -> None:
    bodies = [body_of("text") | fields for fields, _ in REFUSALS]
    began = time.monotonic()
    outcomes = tickets.run([*bodies, body_of("text")], Kind.RESPONSE)
    assert time.monotonic() - began < 30
    assert outcomes.pop().response is not None
    wrong = [
        (str(fields)[:120], code, outcome.error_code, outcome.error_message, outcome.response)
        for (fields, code), outcome in zip(REFUSALS, outcomes, strict=True)
        if outcome.error_code != code
    ]
    assert not wrong, wrong
    assert not any("H8737701" in (outcome.error_message or "") for outcome in outcomes)


def test_engines_that_cannot_honour_a_row_refuse_it(tickets: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    responses = tickets.engine._serve._served[Kind.RESPONSE.url].read.__self__
    forced = [body_of(name) for name in ("tools", "named", "required")]
    for option, value, named in (
        ("enable_auto_tools", False, "enable_auto_tool_choice=false"),  # vLLM has no parser then
        ("tool_parser", None, "tool_call_parser"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(responses, "_tools", {**responses._tools, option: value})
            outcomes = tickets.run([*forced, body_of("turns")], Kind.RESPONSE)
            assert [one.error_code for one in outcomes] == [*["invalid_request"] * 3, None]
            assert all(named in (one.error_message or "") for one in outcomes[:3])
    monkeypatch.setattr(responses, "_is_harmony", True)
    assert tickets.one(body_of("text"), Kind.RESPONSE).error_code == "unsupported"


@pytest.mark.heavy
def test_answers_are_those_of_vllms_own_server(tickets: Runner, server: str) -> None:
    ours = tickets.run([body_of(name) for name in BODIES], Kind.RESPONSE)
    theirs = [_ask(server, body_of(name)) for name in BODIES]
    for name, outcome, other in zip(BODIES, ours, theirs, strict=True):
        assert _comparable(answer_of(outcome)) == _comparable(other), name


def _comparable(body: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is drawn or measured: its ids, the time, and what was in a cache."""
    assert body.pop("id").startswith("resp_")
    body.pop("created_at")
    for item in body["output"]:
        item.pop("id")
        item.pop("call_id", None)
        for part in item.get("content") or ():
            for one in part.get("logprobs") or ():
                for token in (one, *one["top_logprobs"]):
                    token["logprob"] = round(token["logprob"], 3)
    body["usage"]["input_tokens_details"].update(cached_tokens=0, cache_write_tokens=0)
    return body

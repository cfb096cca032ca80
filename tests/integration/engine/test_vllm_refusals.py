"""A row that cannot be honoured gets its error, says nothing of the prompt, and harms no other row."""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray.engine.protocol import EngineSpec
from dray.engine.simulated import SimulatedEngine
from dray.errors import RequestRefused
from dray.kinds import Kind
from dray.requests.model import Request
from tests.support.engines import CONTEXT, Runner

pytestmark = pytest.mark.integration

CANARY = "kanarienvogel-4711"
NEST: list[Any] = []
for _ in range(240):  # a spool's lines hold 254 levels
    NEST = [NEST]


def chat(**fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"please help {CANARY}"}],
        "max_tokens": 4,
        "temperature": 0,
    } | fields


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": f"please help {CANARY}", "max_tokens": 4, "temperature": 0} | fields


def says(content: Any, role: Any = "user", **more: Any) -> dict[str, Any]:
    return chat(messages=[{"role": role, "content": content, **more}])


def schema(value: Any) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": value}})


IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}}

REFUSALS: list[tuple[dict[str, Any], str]] = [
    (chat(temperature=-1), "invalid_request"),
    (completion(top_p=2), "invalid_request"),
    (chat(n=0), "invalid_request"),
    (chat(n=2), "invalid_request"),  # several greedy answers
    (chat(n=129, temperature=1), "invalid_request"),  # more than OpenAI's limit, each with a cache of its own
    (completion(max_tokens=0), "invalid_request"),
    (completion(max_tokens=-5), "invalid_request"),
    (chat(max_completion_tokens=0), "invalid_request"),
    (chat(max_tokens="many"), "invalid_request"),
    (chat(seed=2.0**70), "invalid_request"),
    (chat(stop=["a"] * 9), "invalid_request"),
    (completion(stop=""), "invalid_request"),
    (completion(stop_token_ids=[2.0**70]), "number_too_large"),
    (completion(min_tokens=99), "invalid_request"),
    (completion(logit_bias={"99999": 1}), "invalid_request"),
    (completion(allowed_token_ids=[]), "invalid_request"),
    (completion(bad_words=[""]), "invalid_request"),
    (completion(repetition_penalty=0), "invalid_request"),
    (completion(logprobs=999), "invalid_request"),
    (chat(top_logprobs=2), "invalid_request"),
    (completion(best_of=2), "unknown_field"),
    (completion(best_of=True), "unknown_field"),
    (chat(best_of=5), "unknown_field"),
    (chat(modalities=["text", "audio"]), "unknown_field"),
    (chat(modalities=["audio"], audio={"voice": "alloy", "format": "wav"}), "unknown_field"),
    (chat(web_search_options={}), "unknown_field"),
    (chat(temprature=None), "unknown_field"),
    (chat(temprature=0.5), "unknown_field"),
    (chat(functions=[{}]), "unknown_field"),
    (chat(response_format={"type": "text", "extra": 1}), "unknown_field"),
    (chat(structured_outputs={"regex": "a", "_backend": "outlines"}), "unknown_field"),
    (chat(structured_outputs={"regex": "a", "whitespace_pattern": ""}), "unsupported_field"),
    (chat(structured_outputs={"regex": "a", "disable_additional_properties": True}), "unsupported_field"),
    (chat(structured_outputs={"regex": "a", "disable_any_whitespace": False}), "unsupported_field"),
    (chat(model="another"), "model_mismatch"),
    (chat(model=5), "model_mismatch"),
    (chat(stream=True), "stream_unsupported"),
    (chat(use_beam_search=True), "unsupported_field"),
    (chat(priority=3), "unsupported_field"),
    (chat(length_penalty=2.0), "unsupported_field"),
    (chat(watermarking=True), "unsupported_field"),
    (chat(kv_transfer_params={"prompt_token_ids": [1]}), "unsupported_field"),
    (chat(vllm_xargs={"kv_transfer_params": "x"}), "unsupported_field"),
    (completion(vllm_xargs={"a": 1, "ec_transfer_params": ["x"]}), "unsupported_field"),
    (completion(prompt_embeds="AAAA"), "unsupported_field"),
    (chat(mm_processor_kwargs={"a": 1}), "unsupported_field"),
    (completion(suffix="x"), "invalid_request"),
    (completion(prompt="order help " * 400), "context_length_exceeded"),
    (completion(prompt=[5] * CONTEXT), "context_length_exceeded"),
    (completion(prompt=[5] * (CONTEXT + 9)), "context_length_exceeded"),
    (says("order help " * 4000), "context_length_exceeded"),
    (completion(prompt=""), "invalid_request"),
    (completion(prompt=[]), "invalid_request"),
    (completion(prompt=[[]]), "invalid_request"),
    (completion(prompt=[99999]), "invalid_request"),
    (completion(prompt=[-1]), "invalid_request"),
    (completion(prompt={"a": 1}), "invalid_request"),
    (completion(prompt=["a", 5]), "invalid_request"),
    (completion(prompt=NEST), "invalid_request"),
    (chat(messages=[]), "invalid_request"),
    (chat(messages=None), "invalid_request"),
    (chat(messages=NEST), "invalid_request"),
    (chat(messages=[{}]), "invalid_request"),
    (says(5), "invalid_request"),
    (says("a", role=5), "invalid_request"),
    (says("a", tool_calls=5), "invalid_request"),
    (says([IMAGE]), "unsupported_content"),
    (says([{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}]), "unsupported_content"),
    (chat(chat_template="{{ messages }}"), "unsupported_field"),
    (chat(chat_template_kwargs={"chat_template": "x"}), "unsupported_field"),
    (chat(tools=[]), "invalid_request"),
    (chat(tool_choice="auto"), "invalid_request"),
    (schema({"type": "strange"}), "invalid_json_schema"),
    (schema({"$ref": "#/nowhere"}), "invalid_json_schema"),
    (schema({"type": "string", "pattern": "(["}), "invalid_json_schema"),
    (schema(NEST), "invalid_json_schema"),
    (chat(response_format={"type": "json_schema"}), "invalid_json_schema"),
    (chat(response_format={"type": "xml"}), "invalid_json_schema"),
    (chat(structured_outputs={}), "invalid_json_schema"),
    (chat(structured_outputs=5), "invalid_json_schema"),
    (chat(structured_outputs={"regex": "(" * 20000 + ")" * 20000}), "invalid_json_schema"),
    (chat(structured_outputs={"grammar": "root ::= 'a'"}), "invalid_json_schema"),
]


class Records(logging.Handler):
    """What vLLM and dray log, tracebacks included."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.text: list[str] = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    loggers = [logging.getLogger(name) for name in ("vllm", "dray")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


def test_each_refusal_has_its_code_and_the_other_rows_go_on(generation: Runner, records: Records) -> None:
    good = completion()
    bodies = [body for refused, _ in REFUSALS for body in (refused, good)]
    outcomes = generation.run(bodies)
    found = [outcome.error_code for outcome in outcomes[::2]]
    wrong = [
        (str(body)[:120], outcome.error_code, outcome.error_message, code)
        for (body, code), outcome in zip(REFUSALS, outcomes[::2], strict=True)
        if outcome.error_code != code
    ]
    assert not wrong, wrong
    assert all(found)
    assert len({(outcome.response or b"").partition(b'"object"')[2] for outcome in outcomes[1::2]}) == 1
    for outcome in outcomes[::2]:
        assert outcome.error_message
        assert outcome.response is None
        assert len(outcome.error_message) <= 600
        assert CANARY not in outcome.error_message
    assert CANARY not in "\n".join(records.text)


def test_refusals_are_the_same_text_every_time(generation: Runner) -> None:
    bodies = [body for body, _ in REFUSALS]
    first = [(outcome.error_code, outcome.error_message) for outcome in generation.run(bodies)]
    assert first == [(outcome.error_code, outcome.error_message) for outcome in generation.run(bodies)]


def test_priority_zero_and_empty_options_are_fine(generation: Runner) -> None:
    fields: list[dict[str, Any]] = [
        {"priority": 0},
        {"stream": False},
        {"length_penalty": 1.0},
        {"user": "u"},
        # as the engine of these tests has it
        {"structured_outputs": {"json": {"type": "boolean"}, "disable_any_whitespace": True}},
        {"structured_outputs": {"json": {"type": "boolean"}, "disable_additional_properties": False}},
    ]
    assert all(outcome.response for outcome in generation.run([chat(**extra) for extra in fields]))


IDLE: dict[str, Any] = {
    "store": True,
    "metadata": {"batch": "7"},
    "service_tier": "flex",
    "modalities": ["text"],
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "safety_identifier": "s",
    "user": "u",
    "best_of": 1,
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
}
NULLS = [*IDLE, "audio", "functions", "function_call", "web_search_options", "moderation", "suffix"]


def test_fields_that_change_nothing_are_taken_as_the_engines_own_server_takes_them(
    generation: Runner, embedding: Runner
) -> None:
    nulls = dict.fromkeys(NULLS)
    plain = generation.run([chat(), chat(**IDLE), chat(**nulls)])
    plain += generation.run([completion(), completion(**IDLE), completion(**nulls)])
    assert [outcome.error_message for outcome in plain] == [None] * 6
    texts = [json.loads(one.response or b"")["choices"] for one in plain]
    assert texts[0] == texts[1] == texts[2]
    assert texts[3] == texts[4] == texts[5]
    vectors = embedding.run([{"input": "help"}, {"input": "help", **IDLE}, {"input": "help", **nulls}])
    assert len({json.dumps(json.loads(one.response or b"")["data"]) for one in vectors}) == 1


def test_nothing_is_ever_fetched(generation: Runner, embedding: Runner) -> None:
    """A server that counts visitors sees none, whatever form the address comes in."""
    visits: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.png"
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                try:
                    visitor, address = server.accept()
                except TimeoutError:
                    continue
                visits.append(address)
                visitor.close()

        listener = threading.Thread(target=listen)
        listener.start()
        parts: list[Any] = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "video_url", "video_url": {"url": url}},
            {"type": "audio_url", "audio_url": {"url": url}},
            {"image_url": url},
            {"type": "text", "text": "a", "image_url": {"url": url}},
        ]
        conversations = [[{"role": "user", "content": [part]}] for part in parts]
        outcomes = generation.run([chat(messages=messages) for messages in conversations])
        for wrapped in (conversations, [[messages] for messages in conversations]):
            outcomes += embedding.run([{"input": messages} for messages in wrapped], Kind.EMBEDDING)
            outcomes += embedding.run([{"messages": messages} for messages in wrapped], Kind.EMBEDDING)
        over.set()
        listener.join()
    assert {outcome.error_code for outcome in outcomes} == {"unsupported_content"}
    assert not visits


FIELDS = [
    *("temperature", "top_p", "top_k", "min_p", "n", "max_tokens", "min_tokens", "seed", "stop", "logprobs"),
    *("stop_token_ids", "logit_bias", "bad_words", "allowed_token_ids", "presence_penalty", "echo", "prompt"),
    *(
        "frequency_penalty",
        "repetition_penalty",
        "response_format",
        "structured_outputs",
        "messages",
        "tools",
    ),
    *("tool_choice", "top_logprobs", "prompt_logprobs", "truncate_prompt_tokens", "ignore_eos", "vllm_xargs"),
    *("chat_template_kwargs", "repetition_detection", "logprob_token_ids", "cache_salt", "return_token_ids"),
    *(
        "skip_special_tokens",
        "continue_final_message",
        "add_generation_prompt",
        "reasoning_effort",
        "documents",
    ),
    *("thinking_token_budget", "session_id", "request_id", "model", "made_up", "max_completion_tokens"),
]
NUMBERS = st.sampled_from(
    [-1, 0, 1, 2, 5, 4095, 4096, 2**31, 2**40, 2**63 - 1, -0.5, 0.5, 1.5, 1e-300, 1e300]
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "json", "regex", "choice", "grammar", "role", "content", "5", "max_pattern_size"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    mutations=st.lists(
        st.tuples(st.booleans(), st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3)),
        min_size=4,
        max_size=8,
    )
)
def test_no_body_ends_the_engine(generation: Runner, mutations: list[tuple[bool, dict[str, Any]]]) -> None:
    """600 bodies, several in the engine at a time: one outcome each, and good rows are answered."""
    bodies = [(chat if as_chat else completion)(**fields) for as_chat, fields in mutations]
    for body in bodies:
        limit = body.get("max_tokens")
        if limit is None or (isinstance(limit, float | int) and limit > 16):
            body["max_tokens"] = 16
        if isinstance(body.get("n"), int) and body["n"] > 4:
            body["n"] = 4
    kinds = [Kind.CHAT if as_chat else Kind.COMPLETION for as_chat, _ in mutations]
    for kind in Kind.CHAT, Kind.COMPLETION:
        mine = [body for body, its in zip(bodies, kinds, strict=True) if its is kind]
        outcomes = generation.run([*mine, completion() if kind is Kind.COMPLETION else chat()], kind)
        assert outcomes[-1].response is not None
        for outcome in outcomes:
            assert (outcome.response is None) != (outcome.error_code is None)
            assert CANARY not in (outcome.error_message or "")


def test_messages_name_the_field_and_not_pydantics_types() -> None:
    from pydantic import TypeAdapter, ValidationError
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from dray.engine.vllm_adapter.errors import refusal_of

    cases: dict[str, dict[str, Any]] = {
        "messages.0.content": {"messages": [{"role": "user", "content": 5}]},
        "temperature": {"messages": [], "temperature": "hot"},
        "tools.0.function.name": {"messages": [], "tools": [{"type": "function", "function": {}}]},
        "stop": {"messages": [], "stop": 5},
    }
    for field, body in cases.items():
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(ChatCompletionRequest).validate_python(json.loads(json.dumps(body)))
        refusal = refusal_of(caught.value, body)
        assert refusal.message.startswith(f"{field}: "), refusal.message
        assert refusal.param == field.split(".")[0]
    for length in (3, 3.0, 3.5):  # the simulated engine takes the same
        plain = SimulatedEngine(EngineSpec(name="simulated", model="m", kind=Kind.CHAT, arguments={}))
        request = Request(index=0, custom_id="a", url=Kind.CHAT.url, body=chat(max_tokens=length))
        if length == 3:
            assert ChatCompletionRequest.model_validate(request.body).max_tokens == 3
            plain.submit(0, request)
            assert plain.step()[0][1].completion_tokens == 3
            continue
        with pytest.raises(ValidationError, match="max_tokens"):
            ChatCompletionRequest.model_validate(request.body)
        with pytest.raises(RequestRefused, match="max_tokens"):
            plain.submit(0, request)


def call_with(arguments: Any) -> dict[str, Any]:
    function = {"name": "g", "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": "c", "function": function}],
    }


USER = {"role": "user", "content": "x"}
SPOKEN = {"role": "user", "content": [{"type": "text", "text": "x"}]}
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER, {"content": "x"}]}, "messages.1.role: Field required"),
    ({"stop": ["a"] * 5}, "stop: List should have at most 4 items after validation, not 5"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name: Field required",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}}},
        "response_format.json_schema.schema: Input should be a valid dictionary",
    ),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type: Input should be 'text', 'json_object' or 'json_schema'",
    ),
    (
        {"messages": [SPOKEN, {"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
        "messages.1.content.0.type: Input should be 'text'",
    ),
    (
        {"messages": [SPOKEN, {"role": "user", "content": [{"text": "x"}]}]},
        "messages.1.content.0.type: Field required",
    ),
    (
        {"messages": [SPOKEN, {"role": "user", "content": [{"type": "text", "text": None}]}]},
        "messages.1.content.0.text: Input should be a valid string",
    ),
    (
        {"messages": [SPOKEN, {"role": "user", "content": ["x"]}]},
        "messages.1.content.0: Input should be a valid dictionary",
    ),
    (
        {"messages": [call_with("{}"), call_with({"a": 1})]},
        "messages.1.tool_calls.0.function.arguments: Input should be JSON text (a string)",
    ),
]


def test_messages_name_the_fault_and_the_message_that_has_it(generation: Runner) -> None:
    """Also of parts and tool calls, which vLLM reads late and by their own numbers."""
    outcomes = generation.run([chat(**fields) for fields, _ in FAULTS])
    assert [outcome.error_message for outcome in outcomes] == [told for _, told in FAULTS]


def test_what_python_says_of_a_broken_body_is_not_passed_on() -> None:
    from dray.engine.vllm_adapter.errors import refusal_of

    for error in (TypeError("'kanarienvogel' is not iterable"), KeyError("kanarienvogel"), RecursionError()):
        refusal = refusal_of(error, {})
        assert refusal.code == "invalid_request"
        assert type(error).__name__ in refusal.message
        assert "kanarienvogel" not in refusal.message


def test_a_grammar_that_fails_inside_the_engine_costs_its_row_only(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    compiled = XgrammarBackend.compile_grammar

    def fail(self: Any, kind: Any, grammar: str, **options: Any) -> Any:
        if "poison" in grammar:
            raise RuntimeError("out of memory in the grammar compiler")
        return compiled(self, kind, grammar, **options)

    monkeypatch.setattr(XgrammarBackend, "compile_grammar", fail)
    poison, healthy = (chat(structured_outputs={"choice": [word]}) for word in ("poison", "health"))
    outcomes = generation.run([poison, healthy, completion(), poison])
    assert [outcome.error_code for outcome in outcomes] == [
        "invalid_json_schema",
        None,
        None,
        "invalid_json_schema",
    ]
    assert not generation.engine._client._timings._waiting, "a row that ends without a token is followed on"


def test_an_answer_that_json_cannot_hold_refuses_its_row(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a surrogate pair in a tool's arguments, in vLLM's own objects: the engine goes on."""
    from vllm.entrypoints.generate.base.protocol import FunctionCall, ToolCall
    from vllm.entrypoints.openai.chat_completion import protocol
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    said = json.loads('{"arguments": {"x": "\\ud83d"}}')  # the hermes parser does this to the model's text
    call = FunctionCall(name="f", arguments=json.dumps(said["arguments"], ensure_ascii=False))
    message = protocol.ChatMessage(role="assistant", tool_calls=[ToolCall(function=call)])
    choice = protocol.ChatCompletionResponseChoice(index=0, message=message, finish_reason="tool_calls")
    answer = protocol.ChatCompletionResponse(model="m", choices=[choice], usage=UsageInfo())
    served = generation.engine._serve._served
    real = served[Kind.CHAT.url]

    async def answered(body: Any) -> Any:
        await real.create(body)  # a ticket of the engine's is open, as for every answer
        return answer

    with monkeypatch.context() as patch:
        patch.setitem(served, Kind.CHAT.url, real._replace(create=answered))
        outcomes = generation.run([chat(), chat()], Kind.CHAT)
    assert [outcome.error_code for outcome in outcomes] == ["invalid_response"] * 2
    assert "PydanticSerializationError" in (outcomes[0].error_message or "")
    assert generation.one(chat()).response
    assert not generation.engine._flights._by_key


def test_a_panic_of_the_tokenizer_costs_its_row_only(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its expressions give up on megabytes of spaces, and pyo3's class for a panic is no ``Exception``."""
    from tokenizers import Regex, pre_tokenizers

    serve = generation.engine._serve
    splits = pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+"), behavior="isolated")
    real = serve._served[Kind.CHAT.url]

    async def give_up(*_: Any) -> Any:
        splits.pre_tokenize_str(" " * 12_000_000 + "a")

    with monkeypatch.context() as patch:
        patch.setattr(serve._fitter, "_fit", give_up)
        assert generation.one(chat()).response, "what measures a row says nothing of it"
        patch.setitem(serve._served, Kind.CHAT.url, real._replace(create=give_up))
        refused, answered = generation.run([chat(), completion()])
    assert refused.error_code == "request_too_large"
    assert answered.response


def test_chats_of_gpt_oss_hold_no_long_run(generation: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer would hold the replica for minutes. Completions go through another one."""
    long = f"{' ' * 20_001}help"
    monkeypatch.setattr(generation.engine._serve, "_is_harmony", True)
    chats = generation.run([says(long), chat()])
    assert [row.error_code for row in chats] == ["request_too_large", None]
    assert generation.one(completion(prompt=long)).error_code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "unread", "idle"),
    [
        ("chat_template_kwargs", {"reasoning_effort": "low"}, {}),
        ("continue_final_message", True, False),
        ("add_generation_prompt", False, True),
        ("documents", [{"title": "a", "text": "b"}], None),
        ("truncate_prompt_tokens", 2, None),
        ("echo", True, False),
        ("return_prompt_text", True, None),
        ("add_special_tokens", True, False),
    ],
)
def test_chats_of_gpt_oss_ask_nothing_that_vllm_would_not_read(
    generation: Runner, monkeypatch: pytest.MonkeyPatch, field: str, unread: Any, idle: Any
) -> None:
    monkeypatch.setattr(generation.engine._serve, "_is_harmony", True)
    refused, answered = generation.run([chat(**{field: unread}), chat(**{field: idle})])
    assert (refused.error_code, answered.error_code) == ("unsupported_field", None)
    assert f"`{field}` cannot be honoured: vLLM writes the prompts of gpt-oss" in (
        refused.error_message or ""
    )


def test_chats_whose_calls_no_parser_reads_are_refused(
    generation: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some models would be shown the tools, and their calls would be lost."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    monkeypatch.setitem(generation.engine._serve._tools, "tool_parser", None)
    refused, shown, plain = generation.run(
        [chat(tools=[tool]), chat(tools=[tool], tool_choice="none"), chat()]
    )
    assert (refused.error_code, shown.error_code, plain.error_code) == ("invalid_request", None, None)
    assert "give the engine argument tool_call_parser" in (refused.error_message or "")


def test_no_row_is_blamed_for_the_engines_end() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    from dray.engine.vllm_adapter.errors import is_the_engines

    full, broken = OSError(errno.EMFILE, "files"), OSError(errno.ENOENT, "none")
    for error in (EngineDeadError(), MemoryError(), full, RuntimeError("can't start new thread")):
        assert is_the_engines(error)
    for error in (broken, RuntimeError("shape"), ValueError("top_p"), TypeError(), KeyError("a")):
        assert not is_the_engines(error)
    assert is_the_engines(SystemExit())


def test_other_errors_of_generation_have_their_own_code() -> None:
    from vllm.exceptions import GenerationError

    from dray.engine.vllm_adapter.errors import refusal_of

    bodies: list[dict[str, Any]] = [{"prompt": "a"}, {"messages": [], "tools": [{}]}]
    for body in bodies:  # tools alone are no grammar
        assert refusal_of(GenerationError(), body).code == "generation_failed"
    assert refusal_of(GenerationError(), {}, has_grammar=True).code == "invalid_json_schema"

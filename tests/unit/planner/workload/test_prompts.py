"""Bodies into prompts: what vLLM would compute of them, and the most that it would generate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.planner.workload.conversations import conversation_of, plain_text, template_arguments, tools_of
from dray.planner.workload.prompts import Asked, Text, Unreadable, asked

pytestmark = pytest.mark.unit

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]


def ask(url: str, **body: Any) -> Asked:
    return asked(url, body, lambda body, answered: f"{plain_text(body)}{answered}")


def test_a_chat_is_one_rendered_text_to_be_answered() -> None:
    assert ask(CHAT, messages=HELLO, max_tokens=7) == Asked([Text("user\nhello\nTrue", special=False)], 7)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", [Text("a", special=True)]),
        (["a", "b"], [Text("a", special=True), Text("b", special=True)]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_a_completion_asks_for_each_of_its_prompts(prompt: Any, prompts: list[Any]) -> None:
    found = ask(COMPLETION, prompt=prompt, max_tokens=5, n=3)
    assert found.prompts == prompts
    assert found.most_output == 5 * 3 * len(prompts)


def test_an_embedding_generates_nothing() -> None:
    assert ask(EMBEDDING, input="a") == Asked([Text("a", special=True)], 0, exact=True)
    two = ask(EMBEDDING, messages=[HELLO, HELLO])
    assert two.prompts == [Text("user\nhello\nFalse", special=False)] * 2


@pytest.mark.parametrize("url", ["/v1/score", "/score", "/v1/rerank", "/v2/rerank"])
def test_a_score_reads_each_pair(url: str) -> None:
    name = "query" if "rerank" in url else "queries"
    found = ask(url, **{name: "why", "documents": ["a", "b"]})
    assert found == Asked([Text("why\na", special=True), Text("why\nb", special=True)], 0, exact=True)
    with pytest.raises(Unreadable):
        ask(url, **{name: "why", "documents": [{"content": []}]})
    with pytest.raises(Unreadable):
        ask(url, **{name: "why"})
    for documents, query in ((["a"] * 2049, "why"), (["a"] * 2048, "why" * 10_000)):
        with pytest.raises(Unreadable, match="longer ones"):
            ask(url, **{name: query, "documents": documents})


def test_a_response_is_the_chat_that_it_stands_for() -> None:
    found = ask("/v1/responses", input="hello", instructions="Be short.", max_output_tokens=7)
    assert found == Asked([Text("system\nBe short.\nuser\nhello\nTrue", special=False)], 7)
    assert ask("/v1/responses", input=HELLO).prompts == [Text("user\nhello\nTrue", special=False)]
    for value in (None, [], [5], 5, [{"type": "item_reference"}]):
        with pytest.raises(Unreadable):
            ask("/v1/responses", input=value)


def test_scores_of_pairs_and_classes_of_conversations() -> None:
    two = ask("/v1/score", text_1=["a", "b"], text_2=["c", "d"])
    assert two.prompts == [Text("a\nc", special=True), Text("b\nd", special=True)]
    assert ask("/classify", input=["a", "b"]).prompts == [Text("a", special=True), Text("b", special=True)]
    assert ask("/v1/classify", messages=HELLO).prompts == [Text("user\nhello\nFalse", special=False)]


@pytest.mark.parametrize(
    ("fields", "most", "exact"),
    [
        ({}, None, False),
        ({"max_tokens": 9}, 9, False),
        ({"max_completion_tokens": 4, "max_tokens": 9}, 4, False),
        ({"max_tokens": 9, "ignore_eos": True}, 9, True),
        ({"max_tokens": 9, "min_tokens": 9}, 9, True),
        ({"max_tokens": 9, "min_tokens": 2}, 9, False),
    ],
)
def test_what_bounds_an_answer(fields: dict[str, Any], most: int | None, exact: bool) -> None:
    found = ask(CHAT, messages=HELLO, **fields)
    assert (found.most_output, found.exact) == (most, exact)


def test_whole_numbers_may_be_floats_as_pandas_writes_them_where_one_is_missing() -> None:
    floats = ask(CHAT, messages=HELLO, max_tokens=64.0, n=2.0, truncate_prompt_tokens=8.0)
    assert floats == ask(CHAT, messages=HELLO, max_tokens=64, n=2, truncate_prompt_tokens=8)
    with pytest.raises(Unreadable):
        ask(CHAT, messages=HELLO, max_tokens=64.5)


@pytest.mark.parametrize(
    ("fields", "most"), [({}, 16), ({"n": 2}, 32), ({"max_tokens": 9}, 9), ({"max_tokens": None}, None)]
)
def test_a_completion_ends_after_16_tokens_where_it_says_nothing(
    fields: dict[str, Any], most: int | None
) -> None:
    assert ask("/v1/completions", prompt="a", **fields).most_output == most


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, {}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": "hello"}),
        (CHAT, {"messages": [{"content": "hello"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}),
        (CHAT, {"messages": HELLO, "max_tokens": "9"}),
        (CHAT, {"messages": HELLO, "n": 1000}),
        (CHAT, {"messages": HELLO, "tools": [{"type": "function"}]}),
        (COMPLETION, {}),
        (COMPLETION, {"prompt": []}),
        (COMPLETION, {"prompt": [1, "a"]}),
        (COMPLETION, {"prompt": [-1]}),
        (EMBEDDING, {"input": None}),
    ],
)
def test_what_the_engine_will_refuse_is_told_from_what_it_computes(url: str, body: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        ask(url, **body)


def test_messages_are_handed_to_templates_as_vllm_does() -> None:
    body = {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "c", "name": "Ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "content": [{"type": "text", "text": "d"}], "tool_call_id": "1"},
        ]
    }
    call = {"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}
    assert conversation_of(body, parts=False) == [
        {"role": "system", "content": "a\nb"},
        {"role": "user", "content": "c", "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "d", "tool_call_id": "1"},
    ]
    assert conversation_of(body, parts=True)[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_tools_have_the_fields_that_templates_see() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}, "unknown": 1}}
    assert tools_of({"tools": [tool]}) == [
        {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}
    ]


def test_a_body_may_not_bring_a_template() -> None:
    for fields in ({"chat_template": "x"}, {"chat_template_kwargs": {"tokenize": True}}):
        with pytest.raises(Unreadable):
            template_arguments({"messages": HELLO, **fields}, answered=True)


def test_thinking_follows_from_effort() -> None:
    found = template_arguments({"messages": HELLO, "reasoning_effort": "none"}, answered=True)
    assert found["enable_thinking"] is False


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "input", "role", "content", "tools", "n", "max_tokens", "tool_calls", "function"]
)


ANY = st.dictionaries(FIELDS, VALUES | st.lists(st.dictionaries(FIELDS, VALUES), max_size=2), max_size=4)
TEXTS = st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=2)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.text(max_size=5), "content": TEXTS}), max_size=2)
PROMPTS = st.fixed_dictionaries({"messages": MESSAGES | st.none(), "prompt": TEXTS, "input": TEXTS})


@given(
    url=st.sampled_from([CHAT, COMPLETION, EMBEDDING]),
    body=ANY | st.builds(dict.__or__, ANY, PROMPTS),  # of the former, hardly one asks for anything
)
def test_no_body_breaks_the_count(url: str, body: dict[str, Any]) -> None:
    try:
        found = asked(url, body, lambda body, answered: plain_text(body))
    except Unreadable:
        return
    assert found.prompts

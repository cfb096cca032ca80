"""When two requests are the same, and which of them get one answer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.kinds import Kind
from dray.requests.row_ids import with_index
from dray.requests.sameness import DEFAULTS, WITHOUT_EFFECT, doubt_of, key_of, told_doubts

pytestmark = pytest.mark.unit

CHAT, TEXT, VECTOR = Kind.CHAT.url, Kind.COMPLETION.url, Kind.EMBEDDING.url
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, 2.0]) | st.text(max_size=3)
bodies = st.dictionaries(
    st.sampled_from(["temperature", "seed", "max_tokens", "stop", "n", "top_p", "user", "metadata", "other"]),
    scalars,
)


@given(bodies, st.randoms(use_true_random=False))
def test_the_order_of_fields_and_what_has_no_effect_make_no_difference(
    body: dict[str, Any], rng: random.Random
) -> None:
    full = HELLO | body
    names = list(full)
    rng.shuffle(names)
    shuffled = {name: full[name] for name in names} | {"metadata": {"run": rng.random()}, "store": True}
    shuffled["messages"] = [{"content": "Hello", "role": "user"}]
    assert key_of(CHAT, shuffled) == key_of(CHAT, full)


@given(bodies, bodies)
def test_bodies_that_differ_in_anything_else_have_keys_of_their_own(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    def said(body: dict[str, Any]) -> str:
        """As a table would have it: only whole floats, defaults, and fields without effect fall together."""
        kept = {}
        for name, value in body.items():
            number = int(value) if isinstance(value, float) and value == int(value) else value
            is_default = any(type(one) is type(number) and one == number for one in DEFAULTS.get(name, ()))
            is_idle = name == "metadata" or (name == "user" and (value is None or isinstance(value, str)))
            if not (is_default or is_idle):
                kept[name] = number
        return json.dumps(kept, sort_keys=True)

    assert (key_of(CHAT, one) == key_of(CHAT, other)) == (said(one) == said(other))


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.5},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
        {"messages": [{"role": "system", "content": "Hello"}]},
        {"max_tokens": 5},
        {"stop": ["Hello"]},
        {"top_p": 1},  # a model's own generation_config.json may say otherwise
        {"presence_penalty": 0},  # likewise
        {"frequency_penalty": 0},
        {"user": 7},  # vLLM refuses it
        {"model": "other"},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_what_may_change_an_answer_changes_the_key(other: dict[str, Any]) -> None:
    assert key_of(CHAT, HELLO | other) != key_of(CHAT, HELLO)


def test_the_order_of_names_in_a_schema_is_the_order_of_names_in_the_answer() -> None:
    schemas: list[dict[str, Any]] = [{"a": {}, "b": {}}, {"b": {}, "a": {}}]
    keys = {key_of(CHAT, {"response_format": {"schema": {"properties": one}}}) for one in schemas}
    assert len(keys) == 2


def test_the_endpoint_counts_and_so_does_the_name_of_the_model_in_the_answer() -> None:
    body = {"prompt": "x"}
    assert key_of(CHAT, body) != key_of(TEXT, body)
    assert key_of(TEXT, body, "llama") == key_of(TEXT, body | {"model": "llama"}, "other")
    assert key_of(TEXT, body, "llama") != key_of(TEXT, body, "other")
    assert key_of("/score", body) == key_of("/v1/score", body) != key_of("/v1/rerank", body)


@pytest.mark.parametrize("name", ["metadata", "user", "service_tier"])
def test_what_a_response_repeats_of_its_request_counts(name: str) -> None:
    """Two rows would get one answer otherwise, and one of them the other's metadata."""
    url, body = Kind.RESPONSE.url, {"input": "x"}
    assert key_of(url, body | {name: "a"}) != key_of(url, body | {name: "b"})
    assert key_of(url, body | {name: None}) == key_of(url, body)
    assert key_of(url, body | {"store": True, "prompt_cache_key": "a"}) == key_of(url, body)
    assert key_of(CHAT, body | {name: "a"}) == key_of(CHAT, body | {name: "b"})


@pytest.mark.parametrize(
    ("url", "body", "doubt"),
    [
        (CHAT, {"temperature": 0}, None),
        (CHAT, {"temperature": 0.0}, None),
        (CHAT, {"temperature": 0.7, "seed": 3}, None),
        (CHAT, {"temperature": 0.7, "seed": 7.0}, None),
        (VECTOR, {"input": "x"}, None),
        (CHAT, {}, "sampled"),
        (CHAT, {"temperature": 0.7}, "sampled"),
        (CHAT, {"temperature": False}, "sampled"),
        (CHAT, {"temperature": 1, "seed": None}, "sampled"),
        (CHAT, {"temperature": 1, "seed": -1}, "sampled"),  # which is no seed to vLLM
        (CHAT, {"temperature": 1, "seed": -1.0}, "sampled"),
        (CHAT, {"temperature": 0, "request_id": "mine"}, "own_id"),
    ],
)
def test_only_sure_answers_are_shared(url: str, body: dict[str, Any], doubt: str | None) -> None:
    assert doubt_of(url, body) == doubt


def test_doubts_are_told_with_their_counts() -> None:
    assert told_doubts([("sampled", 1200), ("own_id", 0)]) == [
        "1,200 rows are sampled without a seed (no temperature 0)"
    ]


def test_fields_without_effect_are_none_of_the_defaults() -> None:
    assert not WITHOUT_EFFECT & DEFAULTS.keys()


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.text(),
    st.sampled_from(["chatcmpl", "cmpl", "embd", "sim"]),
)
def test_an_answer_takes_the_ids_of_another_row_and_keeps_every_other_byte(
    old: int, new: int, text: str, prefix: str
) -> None:
    def answer(index: int) -> bytes:
        said = f'{text} "id":"call_{old}_0" chatcmpl-{old}'
        call = {"id": f"call_{index}_0_1", "function": {"arguments": said}}
        body = {"id": f"{prefix}-{index}", "choices": [{"message": {"content": said, "tool_calls": [call]}}]}
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    assert with_index(answer(old), old, new) == answer(new)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.text())
def test_a_response_takes_other_ids_in_its_output_and_nowhere_else(old: int, new: int, text: str) -> None:
    def answer(index: int) -> bytes:
        said = f'{text} "id":"msg_{old}_0" ],"parallel_tool_calls":'
        content = [{"text": said, "annotations": []}]
        body = {
            "id": f"resp_{index}",
            "metadata": {"id": f"msg_{old}_0"},
            "object": "response",
            "output": [
                {"id": f"rs_{index}_0", "content": content},
                {"id": f"msg_{index}_1", "content": content},
                {"arguments": said, "call_id": f"call_{index}_2", "id": f"fc_{index}_2"},
            ],
            "parallel_tool_calls": True,
            "tools": [{"parameters": {"default": {"id": f"msg_{old}_0", "call_id": f"call_{old}_2"}}}],
        }
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")

    assert with_index(answer(old), old, new) == answer(new)

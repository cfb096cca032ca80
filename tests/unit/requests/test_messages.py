"""Chat messages out of columns: whatever a row holds, it is a request or a bad row that says why."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.requests.columns.messages import messages_of
from dray.requests.columns.row_builder import row_builder
from dray.requests.row_shape import RowShape
from dray.requests.validate import BadRow

pytestmark = pytest.mark.unit

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([USER], [USER]),
        (orjson.dumps([SYSTEM, USER]).decode(), [SYSTEM, USER]),
        ([USER | {"tool_calls": None, "name": None}], [USER]),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": None}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        ),
        (
            [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
            [USER, {"role": "assistant", "tool_calls": [CALL]}],
        ),
        (
            [{"from": "system", "value": "be"}, {"from": "human", "value": "hi", "weight": None}],
            [SYSTEM, USER],
        ),
        ([{"from": "gpt", "value": "yes"}], [{"role": "assistant", "content": "yes"}]),
        (  # WildChat has a time in each message
            [USER | {"timestamp": datetime(2024, 1, 1, tzinfo=UTC), "of": {"day": date(2024, 1, 2)}}],
            [USER | {"timestamp": "2024-01-01T00:00:00+00:00", "of": {"day": "2024-01-02"}}],
        ),
        (
            [USER | {"cost": Decimal("0E-10"), "took": timedelta(seconds=1), "map": [("a", 1)]}],
            [USER | {"cost": "0.0000000000", "took": "0:00:01", "map": [["a", 1]]}],
        ),
    ],
)
def test_what_hubs_and_trainers_write_is_taken(value: object, expected: list[dict[str, Any]]) -> None:
    assert messages_of(value, "messages") == expected


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (USER, [SYSTEM, USER]),
        ({"role": "system", "content": "own"}, [{"role": "system", "content": "own"}]),
        ({"role": "developer", "content": "own"}, [{"role": "developer", "content": "own"}]),
    ],
)
def test_the_jobs_system_prompt_yields_to_the_rows_own(first: dict[str, str], expected: list[Any]) -> None:
    assert messages_of([first], "m", "be") == expected


@pytest.mark.parametrize(
    ("value", "code", "field"),
    [
        (None, "missing_value", "m"),
        ("hello", "invalid_json", "m"),
        ("[{'role': 'user'}]", "invalid_json", "m"),
        ("a\0", "invalid_text", "m"),
        ("\udcff", "invalid_text", "m"),
        (["\udcff"], "invalid_text", "m[0]"),  # what stands for bytes that are not UTF-8
        ({"role": "user"}, "invalid_messages", "m"),
        (7, "invalid_messages", "m"),
        ("7", "invalid_messages", "m"),
        ([], "invalid_messages", "m"),
        ([USER, None], "invalid_messages", "m[1]"),
        ([USER, "hi"], "invalid_messages", "m[1]"),
        ([{"content": "x"}], "invalid_messages", "m[0].role"),
        ([{"role": 7, "content": "x"}], "invalid_messages", "m[0].role"),
        ([{"role": "user"}], "invalid_messages", "m[0].content"),
        ([{"role": "user", "content": None}], "invalid_messages", "m[0].content"),
        ([{"role": "user", "content": {"text": "x"}}], "invalid_messages", "m[0].content"),
        ([{"from": "observation", "value": "x"}], "invalid_messages", "m[0].from"),
        ([{"from": "human", "value": None}], "invalid_messages", "m[0].content"),
        ([{"role": "user", "content": "\0"}], "invalid_text", "m[0]"),
        ([USER | {"x\0": 1}], "invalid_text", "m[0]"),
        ([USER | {"of": [{"raw": b"x"}]}], "invalid_value", "m[0].of[0].raw"),
        ([USER | {"n": 2**64}], "invalid_value", "m[0].n"),
        ("[" * 900 + "]" * 900, "invalid_value", "m[0]"),
    ],
)
def test_each_refusal_has_its_code_and_the_message_it_stands_in(value: object, code: str, field: str) -> None:
    with pytest.raises(BadRow) as caught:
        messages_of(value, "m")
    assert (caught.value.code, caught.value.field) == (code, field)


def test_a_row_becomes_a_chat_request_with_its_id() -> None:
    build = row_builder(RowShape(messages_column="m", id_column="id", system_prompt="be"))
    envelope = build(3, {"m": [USER], "id": "a"})
    assert envelope == ("a", "/v1/chat/completions", {"messages": [SYSTEM, USER]})
    with pytest.raises(BadRow) as caught:
        build(3, {"m": [], "id": "a"})
    assert caught.value.custom_id == "a"
    with pytest.raises(BadRow, match="there is no column 'm'"):
        build(3, {"id": "a"})


SECRET = "s3cret-prompt"
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=3)
    | st.dates()
    | st.just(SECRET)
)
keys = st.sampled_from(["role", "content", "from", "value", "type", "text", "tool_calls"]) | st.text(
    max_size=3
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
likely = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", ""]) | leaves, "content": st.text() | values},
        optional={"tool_calls": values, "name": leaves},
    ),
    max_size=4,
)


@given(likely | values, st.none() | st.just("be"))
def test_whatever_the_value_it_is_a_request_that_can_be_stored_or_a_bad_row(
    value: object, system: str | None
) -> None:
    try:
        messages = messages_of(value, "m", system)
    except BadRow as bad:
        assert bad.code
        assert bad.field is not None
        assert bad.field.startswith("m")
        assert SECRET not in bad.message + bad.field
        return
    stored = orjson.loads(orjson.dumps({"messages": messages}))["messages"]
    assert [message["role"] for message in stored] == [message["role"] for message in messages]
    assert all(message.get("content") is not None or message["tool_calls"] for message in stored)
    assert isinstance(value, list | str)
    own = value if isinstance(value, list) else orjson.loads(value)
    assert len(messages) - len(own) in (0, 1)


@given(st.text())
def test_any_text_is_messages_or_a_bad_row(text: str) -> None:
    with pytest.raises(BadRow) as caught:  # no text that Hypothesis thinks of is a list of messages
        messages_of(text, "m")
    assert caught.value.field is not None

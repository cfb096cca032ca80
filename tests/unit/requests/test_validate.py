"""The envelope of a row, and the defaults."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.kinds import KINDS
from dray.requests.validate import CUSTOM_ID_LIMIT, BadRow, check_text, filler, read_envelope

pytestmark = pytest.mark.unit

CHAT = "/v1/chat/completions"


def line(**changes: Any) -> bytes:
    row = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": []}} | changes
    return json.dumps({key: value for key, value in row.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("number", "taken"),
    [
        ("123456789012345678901234567890", False),
        (str(2**64), False),
        (str(-(2**63) - 1), False),
        (str(2**64 - 1), True),
        (str(-(2**63)), True),
        ("1e20", True),
        ("1.7976931348623157e308", True),
        ("-100000000000000000000.0", True),
    ],
)
def test_whole_numbers_beyond_64_bits_in_a_schema_are_refused(number: str, taken: bool) -> None:
    """The parser has rounded them, so the schema would mean another number. Floats are what they say."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["NUMBER"]}}}
    message = {"role": "user", "content": "hi", "seen": "NUMBER"}
    text = line(body={"messages": [message], "response_format": schema}).replace(b'"NUMBER"', number.encode())
    if taken:
        enum = read_envelope(text).body["response_format"]["json_schema"]["schema"]["enum"]
        assert enum == [json.loads(number)]
        return
    with pytest.raises(BadRow, match=r"`response_format` holds a whole number of more than 64 bits") as bad:
        read_envelope(text)
    assert (bad.value.code, bad.value.field, bad.value.custom_id) == ("number_too_large", "body", "a")


def test_a_good_row_is_taken_as_it_is() -> None:
    assert read_envelope(line()) == ("a", CHAT, {"messages": []})
    assert read_envelope(line(method=...)).custom_id == "a"


CASES: list[tuple[bytes, str, str | None]] = [
    (b"hello", "invalid_json", None),
    (b'{"custom_id": "a",', "invalid_json", None),
    (b'{"custom_id": NaN}', "invalid_json", None),
    (b"[" * 5000, "invalid_json", None),
    (b"[1]", "not_an_object", None),
    (b'"text"', "not_an_object", None),
    (b"null", "not_an_object", None),
    (line(custom_id=...), "missing_custom_id", "custom_id"),
    (line(custom_id=""), "missing_custom_id", "custom_id"),
    (line(custom_id=None), "missing_custom_id", "custom_id"),
    (line(custom_id=7), "invalid_custom_id", "custom_id"),
    (line(custom_id="x" * (CUSTOM_ID_LIMIT + 1)), "invalid_custom_id", "custom_id"),
    (line(url="/v1/audio"), "unknown_url", "url"),
    (line(url=..., body={"prompt": "p"}), "unknown_url", "url"),
    (line(url=..., method="GET"), "invalid_method", "method"),
    (line(url=["x"]), "unknown_url", "url"),
    (line(method="GET"), "invalid_method", "method"),
    (line(body=...), "missing_body", "body"),
    (line(body=[1]), "missing_body", "body"),
    (line(body=..., messages=[]), "unknown_field", "messages"),
    (line(body=..., url=..., prompt="p"), "unknown_field", "prompt"),
    (b'{"custom_id": "a\x00"}', "invalid_text", None),
    (line(custom_id="a\0"), "invalid_text", "custom_id"),
    (line(body={"messages": [{"content": "\0"}]}), "invalid_text", "body"),
    (line(body={"messages": "\ud800"}), "invalid_text", "body"),
    (line(**{"x\ud800": 1}), "invalid_text", None),
    (b'{"custom_id": "\xed\xa0\x80"}', "invalid_text", None),
    (b'{"custom_id": "\xff"}', "invalid_text", None),
]


@pytest.mark.parametrize(("raw", "code", "field"), CASES)
def test_each_refusal_has_its_code_and_field(raw: bytes, code: str, field: str | None) -> None:
    with pytest.raises(BadRow) as caught:
        read_envelope(raw)
    assert (caught.value.code, caught.value.field) == (code, field)


def test_an_escaped_backslash_before_u0000_is_no_nul() -> None:
    raw = line(body={"messages": "\\u0000"})
    assert b"\\\\u0000" in raw
    assert read_envelope(raw).body == {"messages": "\\u0000"}


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"score": NaN}', "not JSON: NaN stands for a number; write null"),
        (b'{"a": [-Infinity, NaN]}', "not JSON: -Infinity stands for a number; write null"),
        (b'{"a": "caf\xe9"}', "iconv -f WINDOWS-1252 -t UTF-8 (byte 11)"),
        (b'{"a": NaN', "not JSON: "),
    ],
)
def test_what_other_programs_write_is_told_with_what_to_do(raw: bytes, told: str) -> None:
    with pytest.raises(BadRow) as caught:
        read_envelope(raw)
    assert told in caught.value.message
    assert ("write null" in told) == ("write null" in caught.value.message)


@pytest.mark.parametrize(("text", "told"), [("a\ud83d", "lone surrogate"), ("a\udce9", "is not UTF-8")])
def test_bytes_and_surrogates_are_told_apart(text: str, told: str) -> None:
    with pytest.raises(BadRow, match=told):
        check_text(text, "text")


def test_a_bad_row_keeps_its_usable_id() -> None:
    with pytest.raises(BadRow) as caught:
        read_envelope(line(url="/nope"))
    assert caught.value.custom_id == "a"


@pytest.mark.parametrize("bad", ["\0", "\ud800"])
@pytest.mark.parametrize(
    ("custom_id", "kept"),
    [("doc-17", "doc-17"), ("", None), (7, None), ("x" * (CUSTOM_ID_LIMIT + 1), None), ("x{}", None)],
)
def test_a_row_with_a_bad_text_keeps_its_usable_id(bad: str, custom_id: Any, kept: str | None) -> None:
    own = custom_id.format(bad) if isinstance(custom_id, str) else custom_id
    with pytest.raises(BadRow) as caught:
        read_envelope(line(custom_id=own, body={"messages": [{"role": "user", "content": f"a{bad}b"}]}))
    assert (caught.value.code, caught.value.custom_id) == ("invalid_text", kept)


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_a_row_with_a_bad_text_and_a_bad_number_is_not_json(number: str) -> None:
    with pytest.raises(BadRow) as caught:
        read_envelope(b'{"custom_id": "a", "x": "\\ud800", "n": ' + number.encode() + b"}")
    assert caught.value.code == "invalid_json"


SECRET = "s3cret-prompt"
FIELDS = st.sampled_from(["custom_id", "url", "body", "method", "x"])
BAD_TEXTS = [f"{SECRET}\0", f"{SECRET}\ud800", SECRET * CUSTOM_ID_LIMIT]
secretive = st.dictionaries(
    FIELDS | st.sampled_from(["messages", "prompt"]),
    st.sampled_from([..., 7, SECRET, [SECRET], {SECRET: SECRET}, *BAD_TEXTS]),
    max_size=3,
).map(lambda changes: line(**changes))
broken = (st.binary(max_size=60) | st.sampled_from([raw for raw, _, _ in CASES])).map(
    lambda raw: raw + SECRET.encode()
)


@given(broken | secretive)
def test_messages_never_hold_the_row(raw: bytes) -> None:
    try:
        read_envelope(raw)
    except BadRow as bad:
        assert SECRET not in bad.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


good = st.fixed_dictionaries(
    {
        "custom_id": st.text(min_size=1),
        "url": st.sampled_from(sorted(KINDS)),
        "body": st.dictionaries(st.text(), json_values),
    }
)
changes = st.dictionaries(FIELDS, json_values, max_size=2)


@given(changes | st.builds(dict.__or__, good, changes))  # of the former, hardly one is a request
def test_any_json_object_is_a_request_or_a_bad_row(row: dict[str, Any]) -> None:
    try:
        envelope = read_envelope(orjson.dumps(row))
    except BadRow:
        return
    assert envelope.body == row["body"]
    assert 0 < len(envelope.custom_id) <= CUSTOM_ID_LIMIT


@pytest.mark.parametrize(
    ("url", "body", "expected"),
    [
        (CHAT, {}, {"max_tokens": 5, "temperature": 0}),
        (CHAT, {"temperature": 1}, {"temperature": 1, "max_tokens": 5}),
        (CHAT, {"temperature": None, "max_tokens": None}, {"temperature": 0, "max_tokens": 5}),
        (
            CHAT,
            {"max_tokens": None, "max_completion_tokens": 9},
            {"max_tokens": None, "max_completion_tokens": 9, "temperature": 0},
        ),
        (CHAT, {"max_tokens": 9}, {"max_tokens": 9, "temperature": 0}),
        (CHAT, {"max_completion_tokens": 9}, {"max_completion_tokens": 9, "temperature": 0}),
        ("/v1/completions", {"prompt": "p"}, {"prompt": "p", "max_tokens": 5, "temperature": 0}),
        ("/v1/embeddings", {"input": "p"}, {"input": "p"}),
        ("/v1/responses", {"input": "p"}, {"input": "p", "max_output_tokens": 5, "temperature": 0}),
        ("/v1/responses", {"max_output_tokens": 9}, {"max_output_tokens": 9, "temperature": 0}),
        ("/v1/responses", {"max_output_tokens": None}, {"max_output_tokens": 5, "temperature": 0}),
    ],
)
def test_defaults_yield_to_the_row(url: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    filler({"max_tokens": 5, "temperature": 0})(url, body)
    assert body == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/v1/score", {"use_activation": False, "max_tokens_per_doc": 9}),
        ("/v2/rerank", {"use_activation": False, "max_tokens_per_doc": 9}),
        ("/classify", {"use_activation": False}),
        ("/v1/embeddings", {"use_activation": False}),
    ],
)
@pytest.mark.parametrize("body", [{}, {"use_activation": None}])
def test_engines_that_do_not_generate_take_defaults_of_their_own(
    url: str, expected: dict[str, Any], body: dict[str, Any]
) -> None:
    fill = filler({"temperature": 0, "use_activation": False, "max_tokens_per_doc": 9})
    fill(url, asked := dict(body))
    assert asked == expected
    own = {"use_activation": True}
    fill("/classify", own)
    assert own == {"use_activation": True}

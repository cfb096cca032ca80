"""Prompts out of columns."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.columns.row_builder import row_builder
from dray.requests.columns.template import Template, missing_column, text_of
from dray.requests.row_shape import RowShape
from dray.requests.validate import BadRow

pytestmark = pytest.mark.unit


def test_columns_fill_the_template() -> None:
    template = Template.parse('{{"id": {id}}} {text}!')
    assert template.columns == ("id", "text")
    assert template.render({"id": 7, "text": "hi {x}"}) == '{"id": 7} hi {x}!'


@pytest.mark.parametrize(
    "source", ["{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{}", "{", "}", "none", "{a.__class__}", ""]
)
def test_anything_but_plain_columns_is_refused(source: str) -> None:
    with pytest.raises(ConfigError):
        Template.parse(source)


PIECES = st.sampled_from(["{a}", "{b c}", "{{", "}}", "\0", "{"])
SOURCES = st.lists(PIECES | st.text(max_size=3)).map("".join)  # hardly a text alone names a column
VALUES = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(SOURCES, VALUES | st.text(alphabet="{a} \n", min_size=1))
def test_parsing_never_fails_otherwise_and_values_pass_untouched(source: str, value: str) -> None:
    try:
        template = Template.parse(source)
    except ConfigError:
        return
    row = dict.fromkeys(template.columns, value)
    try:
        assert template.render(row).count(value) >= 1
    except BadRow as bad:
        assert bad.code == "invalid_text"  # the template itself holds NUL


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (RowShape(prompt_column="p"), {"messages": [{"role": "user", "content": "hi"}]}),
        (
            RowShape(template="<{p}>", system_prompt="be"),
            {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "<hi>"}]},
        ),
        (RowShape(prompt_column="p", kind=Kind.COMPLETION), {"prompt": "hi"}),
        (RowShape(prompt_column="p", kind=Kind.EMBEDDING), {"input": "hi"}),
        (RowShape(prompt_column="p", kind=Kind.CLASSIFICATION), {"input": "hi"}),
        (
            RowShape(prompt_column="p", kind=Kind.CLASSIFICATION, system_prompt="be"),
            {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]},
        ),
        (
            RowShape(template="<{p}>", document_column="d", kind=Kind.SCORE),
            {"queries": "<hi>", "documents": "one"},
        ),
        (
            RowShape(prompt_column="p", document_column="several", kind=Kind.RERANK),
            {"query": "hi", "documents": ["one", "two"]},
        ),
    ],
)
def test_bodies_follow_the_kind(shape: RowShape, body: dict[str, object]) -> None:
    envelope = row_builder(shape)(3, {"p": "hi", "d": "one", "several": ["one", "two"]})
    assert envelope == ("row-3", shape.kind.url, body)


@pytest.mark.parametrize(
    ("row", "code", "field"),
    [
        ({"q": "x"}, "missing_column", "p"),
        ({"p": None}, "missing_value", "p"),
        ({"p": ["x"]}, "invalid_value", "p"),
        ({"p": "a\0"}, "invalid_text", "p"),
        ({"p": "\ud800"}, "invalid_text", "p"),
        ({"p": "x", "id": ""}, "missing_custom_id", "id"),
        ({"p": "x", "id": float("nan")}, "missing_custom_id", "id"),
        ({"p": "x", "id": 1.5}, "invalid_custom_id", "id"),
        ({"p": "x", "id": 2.0**60}, "invalid_custom_id", "id"),
    ],
)
def test_bad_values_name_the_column(row: dict[str, object], code: str, field: str) -> None:
    shape = RowShape(prompt_column="p", id_column="id" if "id" in row else None)
    with pytest.raises(BadRow) as caught:
        row_builder(shape)(0, row)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert "custom_id" not in caught.value.message


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({}, "missing_column"),
        ({"d": None}, "missing_value"),
        ({"d": []}, "invalid_value"),
        ({"d": ["a", 5]}, "invalid_value"),
        ({"d": {"text": "a"}}, "invalid_value"),
        ({"d": ["a", "b\0"]}, "invalid_text"),
        ({"d": ["\udcff"]}, "invalid_text"),
    ],
)
def test_documents_are_texts(row: dict[str, object], code: str) -> None:
    build = row_builder(RowShape(prompt_column="p", document_column="d", kind=Kind.SCORE))
    with pytest.raises(BadRow) as caught:
        build(0, {"p": "hi", **row})
    assert (caught.value.code, caught.value.field) == (code, "d")
    assert build(0, {"p": "hi", "d": 7}).body["documents"] == "7"  # as numbers become prompts


def test_columns_in_one_option_are_to_be_given_apart() -> None:
    bad = missing_column("topic,date", ["topic", "date", "text"], "missing_column")
    assert "give the option once for each column" in bad.message
    assert "once for each" not in missing_column("topic,day", ["topic", "date"], "missing_column").message


def test_an_unknown_template_column_names_those_that_are_there() -> None:
    with pytest.raises(BadRow, match=r"'b'.*: 'a', 'c'") as caught:
        row_builder(RowShape(template="{b}"))(0, {"a": 1, "c": 2})
    assert caught.value.code == "unknown_template_column"


def test_whole_numbers_serve_as_ids() -> None:
    assert row_builder(RowShape(prompt_column="p", id_column="id"))(0, {"p": "x", "id": 12}).custom_id == "12"


@pytest.mark.parametrize(
    ("told", "value"),
    [
        *(("bytes; decode", value) for value in (b"a", bytearray(b"a"), memoryview(b"a"))),
        *(("a list; write it as text", value) for value in (("a",), {"a"}, ["a"])),
        ("an object; write it as text", {"a": 1}),
    ],
)
def test_what_a_driver_gives_for_bytes_and_arrays_is_no_text(told: str, value: object) -> None:
    with pytest.raises(BadRow, match=f"holds no text in this row, but {told}"):
        text_of({"c": value}, "c", "missing_column")


@pytest.mark.parametrize("value", [None, float("nan"), Decimal("NaN")])
def test_what_stands_for_no_value_is_missing(value: object) -> None:
    with pytest.raises(BadRow, match=r"is empty \(null\)"):
        text_of({"c": value}, "c", "missing_column")


def test_names_like_a_missing_one_are_looked_for_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """That took 16 times as long as all else of a row."""
    asked: list[str] = []

    def close(word: str, *_others: object, **_options: object) -> list[str]:
        asked.append(word)
        return ["texts"]

    monkeypatch.setattr("dray.requests.columns.template.get_close_matches", close)
    for number in range(5):
        with pytest.raises(BadRow, match="there is no column 'text to ask'; did you mean 'texts'"):
            text_of({"texts": number, "label": 1}, "text to ask", "missing_column")
    assert asked == ["texttoask"]

"""Images in rows: every form that people write becomes one, and none lies outside of the root."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.requests.columns.row_builder import row_builder
from dray.requests.media.medium import IMAGES, NAMED, MediaRoot, data_url
from dray.requests.media.placing import parts_placer
from dray.requests.reading.readers import RawRow, ReadLimits, files_of, read_rows
from dray.requests.row_shape import RowShape
from dray.requests.shape_digest import template_digest
from dray.requests.sources import JsonlBatch, RowDefaults
from dray.requests.spool.spool import encode_line
from dray.requests.validate import BadRow
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

PNG = b"\x89PNG and so on"
URL = data_url(PNG)
TEXT = {"type": "text", "text": "what is it?"}


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def body(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def placed(*parts: Any, root: str | None = None) -> list[Any]:
    found = body(*parts)
    parts_placer({} if root is None else {"image_root": root})(found)
    content: list[Any] = found["messages"][0]["content"]
    return content


@pytest.mark.parametrize(
    ("given_part", "expected"),
    [
        (part(URL), part(URL)),
        ({"type": "image_url", "image_url": URL}, part(URL)),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "high"}}, part(URL)),
        ({"type": "image", "image": URL, "url": None}, part(URL)),
        (part("cats/1.jpg"), part("/data/cats/1.jpg")),
        (part("/data/cats/1.jpg"), part("/data/cats/1.jpg")),
        (part("file:///data/1.jpg"), part("/data/1.jpg")),
        ({"type": "image", "path": "1.jpg"}, part("/data/1.jpg")),
        ({"type": "image", "url": "a b#?.png"}, part("/data/a b#?.png")),
        (TEXT, TEXT),
        ({"type": "file", "file": {}}, {"type": "file", "file": {}}),
        ("a text", "a text"),
    ],
)
def test_each_form_becomes_openais_with_a_whole_place(given_part: Any, expected: Any) -> None:
    assert placed(given_part, root="/data/") == [expected]


@pytest.mark.parametrize(
    ("given_part", "message"),
    [
        (part("http://192.0.2.1/1.jpg"), "no name of a file below"),
        (part("s3://other/1.jpg"), "no name of a file below"),
        (part("/etc/passwd"), "not below the job's image_root"),
        (part("file:///etc/passwd"), "not below the job's image_root"),
        (part("/database/1.jpg"), "not below the job's image_root"),
        (part("../1.jpg"), "no name of a file below"),
        (part("cats/../../1.jpg"), "no name of a file below"),
        (part("cats//1.jpg"), "no name of a file below"),
        (part("1.jpg\n"), "no name of a file below"),
        (part("x" * 1100), "no name of a file below"),
        (part(""), "has no URL"),
        (part("a\0b"), "NUL"),
        (part("data:image/png,%89PNG"), "holds no base64"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, "detail cannot be honoured"),
        ({"type": "image_url", "image_url": {"url": URL, "size": 3}}, "unknown fields: size"),
        ({"type": "image_url", "image_url": {"url": URL}, "uuid": "x"}, "also has uuid"),
        ({"type": "image_url", "image_url": 3}, "has no URL"),
        ({"type": "image_url"}, "no image of the form"),
        ({"type": "image"}, "no image of the form"),
        ({"type": "image", "url": URL, "path": "1.jpg"}, "no image of the form"),
    ],
)
def test_what_is_no_image_is_said_with_its_place(given_part: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message) as caught:
        placed(TEXT, given_part, root="/data")
    assert caught.value.field is not None
    assert caught.value.field.startswith("messages[0].content[1]")


def test_embeddings_may_ask_for_several_conversations() -> None:
    found = {"messages": [body(part("1.png"))["messages"], body(TEXT, part("2.png"))["messages"]]}
    parts_placer({"image_root": "/data"})(found)
    assert [one[0]["content"][-1]["image_url"]["url"] for one in found["messages"]] == [
        "/data/1.png",
        "/data/2.png",
    ]
    found["messages"][1][0]["content"].append(part("../3.png"))
    with pytest.raises(BadRow) as caught:
        parts_placer({"image_root": "/data"})(found)
    assert caught.value.field == "messages[1][0].content[2]"


def test_no_depth_of_lists_ends_the_reading() -> None:
    deep: Any = "x"
    for _ in range(1500):
        deep = [deep]
    parts_placer({"image_root": "/data"})({"messages": deep})


def test_without_a_root_a_row_names_no_files() -> None:
    with pytest.raises(BadRow, match="give --image-root"):
        placed(part("cats/1.jpg"))
    assert placed(part(URL)) == [part(URL)]


@pytest.mark.parametrize(
    ("root", "url", "expected"),
    [
        ("s3://bucket/images/", "cats/1.jpg", "s3://bucket/images/cats/1.jpg"),
        ("s3://bucket/images", "s3://bucket/images/1.jpg", "s3://bucket/images/1.jpg"),
        ("s3://bucket", "1.jpg", "s3://bucket/1.jpg"),
        ("https://host/x", "1.jpg", "https://host/x/1.jpg"),
        ("s3://bucket/images", "s3://bucket/images2/1.jpg", None),
        ("s3://bucket/images", "s3://bucket/images/../1.jpg", None),
        ("s3://bucket/images", "https://bucket/images/1.jpg", None),
        ("https://host/x", "https://host.invalid/x/1.jpg", None),
        ("https://host/x", "%2e%2e/1.jpg", None),
        ("https://host/x", "1.jpg?size=9", None),
        ("https://host/x", "..;/1.jpg", None),
        ("https://host/x", "cats/..;v=1/1.jpg", None),
        ("https://host/x", "..\\..\\1.jpg", None),
        ("https://host/x", "cats;big..;/1.jpg", "https://host/x/cats;big..;/1.jpg"),
        ("s3://bucket/images", "..;\\1.jpg", "s3://bucket/images/..;\\1.jpg"),
    ],
)
def test_roots_in_object_stores(root: str, url: str, expected: str | None) -> None:
    if expected is not None:
        assert MediaRoot(IMAGES, root).place(url, "f") == expected
        return
    with pytest.raises(BadRow):
        MediaRoot(IMAGES, root).place(url, "f")


def test_a_root_is_a_place() -> None:
    with pytest.raises(ConfigError, match="image_root is empty"):
        MediaRoot(IMAGES, " ")
    assert MediaRoot(IMAGES, "/").place("a/1.jpg", "f") == "/a/1.jpg"
    assert MediaRoot(IMAGES, "pics").place("1.jpg", "f") == f"{Path.cwd()}/pics/1.jpg"


@given(st.text(alphabet=st.sampled_from("./a:~\\%\n"), max_size=12) | st.text(max_size=20))
def test_no_name_leads_out_of_the_root(name: str) -> None:
    try:
        found = MediaRoot(IMAGES, "/data/images").place(name, "f")
    except BadRow:
        return
    assert os.path.normpath(found).startswith("/data/images/")


@given(st.text(max_size=80), st.text(max_size=20))
def test_only_images_look_like_images_in_a_line_of_the_spool(text: str, name: str) -> None:
    said = body(
        {"type": "text", "text": f'{text}"image_url":{{"url":"{name}"}}'}, part("/data/" + name), part(URL)
    )
    line = encode_line(0, "a", "/v1/chat/completions", said, 0, 1)
    assert [json.loads(found) for found in NAMED.findall(line)] == ["/data/" + name]


# -- rows of columns ----------------------------------------------------------------------------


def built(row: dict[str, Any], **shape: Any) -> list[Any]:
    messages: list[Any] = row_builder(RowShape(**shape))(0, row).body["messages"]
    return messages


@pytest.mark.parametrize(
    ("cell", "urls"),
    [
        (PNG, [URL]),
        (bytearray(PNG), [URL]),
        ({"bytes": PNG, "path": "1.png"}, [URL]),
        ({"bytes": None, "path": "1.png"}, ["/data/1.png"]),
        ("1.png", ["/data/1.png"]),
        (URL, [URL]),
        (["1.png", PNG], ["/data/1.png", URL]),
        ([], []),
    ],
)
def test_a_cell_of_images_comes_before_the_prompt(cell: Any, urls: list[str]) -> None:
    found = built(
        {"q": "what is it?", "i": cell},
        prompt_column="q",
        image_column="i",
        image_root="/data",
        system_prompt="be",
    )
    content = [*map(part, urls), TEXT] if urls else "what is it?"
    assert found == [{"role": "system", "content": "be"}, {"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        (None, "missing_value"),
        (3, "invalid_image"),
        (b"", "invalid_image"),
        ("", "missing_value"),
        ({}, "invalid_image"),
    ],
)
def test_a_cell_that_is_no_image_is_a_bad_row(cell: Any, code: str) -> None:
    with pytest.raises(BadRow) as caught:
        built({"q": "x", "i": cell}, prompt_column="q", image_column="i", image_root="/data")
    assert (caught.value.code, caught.value.field) == (code, "i")


def test_messages_say_where_their_images_go() -> None:
    turns = [
        {"role": "user", "content": [{"type": "image"}, TEXT, {"type": "image", "text": None}]},
        {"role": "assistant", "content": "a cat"},
    ]
    row = {"m": turns, "i": [PNG, "1.png"]}
    found = built(row, messages_column="m", image_column="i", image_root="/data")
    assert found[0]["content"] == [part(URL), TEXT, part("/data/1.png")]
    with pytest.raises(BadRow, match="places for 2 images, and the column 'i' holds 1"):
        built({"m": turns, "i": PNG}, messages_column="m", image_column="i")


def test_messages_name_images_of_their_own() -> None:
    row = {"m": [{"role": "user", "content": [{"type": "image", "url": "1.png"}, TEXT]}]}
    assert built(row, messages_column="m", image_root="/data")[0]["content"] == [part("/data/1.png"), TEXT]


def test_only_conversations_have_images() -> None:
    with pytest.raises(ConfigError, match="an image column goes with"):
        source_of("a.csv", kind=_completion(), prompt_column="q", image_column="i")


def _completion() -> Any:
    from dray.kinds import Kind

    return Kind.COMPLETION


# -- batch files ----------------------------------------------------------------------------------


def read(path: Path, root: str | None) -> list[RawRow]:
    source = source_of(str(path), image_root=root)
    return list(read_rows(source, files_of(source), RowDefaults(), ReadLimits()))


def test_a_batch_file_names_the_row_whose_image_is_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    rows = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body(part(url), TEXT)}
        for name, url in (("a", "1.png"), ("b", "/etc/passwd"))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    good, bad = read(file, str(tmp_path))
    assert good.envelope is not None
    assert good.envelope.body == body(part(f"{tmp_path}/1.png"), TEXT)
    assert bad.bad is not None
    assert (bad.line_no, bad.bad.custom_id, bad.bad.code) == (2, "b", "invalid_image")


def test_an_escaped_spelling_is_an_image_too(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    said = r'{"type":"\u0069mage_url","\u0069mage_url":{"url":"/etc/passwd"}}'
    file.write_text(
        '{"custom_id":"a","method":"POST","url":"/v1/chat/completions",'
        f'"body":{{"messages":[{{"role":"user","content":[{said}]}}]}}}}\n'
    )
    [row] = read(file, str(tmp_path))
    assert row.bad is not None
    assert row.bad.code == "invalid_image"


def test_an_empty_cell_of_a_csv_file_says_where_a_row_may_have_no_image(tmp_path: Path) -> None:
    """It was told that a str can be a name, which it was."""
    file = tmp_path / "in.csv"
    file.write_text("q,i\nx,\ny,1.png\n")
    source = source_of(str(file), prompt_column="q", image_column="i", image_root="/data")
    none, one = read_rows(source, files_of(source), RowDefaults(), ReadLimits())
    assert one.envelope is not None
    assert none.bad is not None
    assert none.bad.code == "missing_value"
    assert none.bad.message == (
        "the column 'i' is empty in this row; for no image, give an empty list, which JSON lines and Parquet "
        "can hold"
    )


@pytest.mark.parametrize("cell", [["1.png", ""], {"bytes": None, "path": ""}, [{"bytes": None}], [None]])
def test_an_empty_name_in_a_cell_is_no_image(cell: object) -> None:
    with pytest.raises(BadRow, match="the column holds no image: no bytes, and an empty name"):
        built({"q": "x", "i": cell}, prompt_column="q", image_column="i", image_root="/data")


def test_a_root_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        source_of("a.csv", prompt_column="q", image_column="i", image_root="https://me:secret@host/images")
    assert "secret" not in str(caught.value)


def test_a_row_holds_only_so_many_images() -> None:
    with pytest.raises(BadRow, match="the row holds 257 images"):
        placed(*[part(URL)] * 257)
    with pytest.raises(BadRow, match="the row has 257 images"):
        built({"q": "x", "i": [PNG] * 257}, prompt_column="q", image_column="i")


def test_the_root_is_part_of_the_job_and_its_absence_changes_none() -> None:
    plain = JsonlBatch(inputs=("a.jsonl",))
    assert template_digest(plain) == "openai-batch"
    assert template_digest(JsonlBatch(inputs=("a.jsonl",), shape=RowShape(image_root="/a"))) != "openai-batch"
    told = {template_digest(source_of("a.csv", prompt_column="q", **more)) for more in _SHAPES}
    assert len(told) == len(_SHAPES)


_SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"image_column": "i"},
    {"image_column": "i", "image_root": "/a"},
    {"image_column": "i", "image_root": "/b"},
)

"""Sounds in chats: every form that people write becomes one, and none lies outside of the root."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.columns.row_builder import row_builder
from dray.requests.media.medium import IMAGES, NAMED, SOUNDS, data_url
from dray.requests.media.placing import media_in, media_placer, parts_placer
from dray.requests.reading.readers import RawRow, ReadLimits, files_of, read_rows
from dray.requests.reading.settling import settled
from dray.requests.row_shape import RowShape
from dray.requests.shape_digest import template_digest
from dray.requests.sources import JsonlBatch, RowDefaults, Rows
from dray.requests.spool.spool import encode_line
from dray.requests.validate import BadRow
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

WAV = b"RIFF\0\0\0\0WAVEfmt and so on"
PNG = b"\x89PNG and so on"
URL = data_url(WAV)
DATA = b64encode(WAV).decode()
TEXT = {"type": "text", "text": "who is it?"}
CHAT = Kind.CHAT.url


def part(url: str) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": url}}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def held(**fields: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"} | fields}


def body(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def placed(*parts: Any, root: str | None = None) -> list[Any]:
    found = body(*parts)
    parts_placer({} if root is None else {"audio_root": root})(found)
    content: list[Any] = found["messages"][0]["content"]
    return content


@pytest.mark.parametrize(
    ("given_part", "expected"),
    [
        (part(URL), part(URL)),
        (held(), part(URL)),
        (held(format="mp3"), part(f"data:audio/mp3;base64,{DATA}")),
        (held(format=None), part(URL)),
        ({**held(), "text": None}, part(URL)),
        ({"type": "audio_url", "audio_url": URL}, part(URL)),
        ({"type": "audio", "audio_url": URL}, part(URL)),
        ({"type": "audio", "audio": URL, "url": None}, part(URL)),
        (part("calls/1.wav"), part("/data/calls/1.wav")),
        (part("/data/calls/1.wav"), part("/data/calls/1.wav")),
        (part("file:///data/1.wav"), part("/data/1.wav")),
        ({"type": "audio", "path": "1.wav"}, part("/data/1.wav")),
        (TEXT, TEXT),
        ({"type": "file", "file": {}}, {"type": "file", "file": {}}),
    ],
)
def test_each_form_becomes_vllms_with_a_whole_place(given_part: Any, expected: Any) -> None:
    assert placed(given_part, root="/data/") == [expected]


@pytest.mark.parametrize(
    ("given_part", "message"),
    [
        (part("http://192.0.2.1/1.wav"), "no name of a file below"),
        (part("s3://other/1.wav"), "no name of a file below"),
        (part("/etc/passwd"), "not below the job's audio_root"),
        (part("file:///etc/passwd"), "not below the job's audio_root"),
        (part("/database/1.wav"), "not below the job's audio_root"),
        (part("calls/../../1.wav"), "no name of a file below"),
        (part("a\0b"), "NUL"),
        (part(""), "has no URL"),
        (part("data:audio/wav,RIFF"), "holds no base64"),
        ({"type": "audio_url", "audio_url": {"url": URL, "seconds": 3}}, "unknown fields: seconds"),
        ({"type": "audio_url", "audio_url": {"url": URL, "detail": "high"}}, "unknown fields: detail"),
        ({"type": "audio_url", "audio_url": {"url": URL}, "uuid": "x"}, "also has uuid"),
        ({"type": "audio_url", "audio_url": 3}, "has no URL"),
        ({"type": "audio_url"}, "no sound of the form"),
        ({"type": "audio", "url": URL, "path": "1.wav"}, "no sound of the form"),
        ({"type": "input_audio"}, "no sound of the form"),
        ({"type": "input_audio", "input_audio": URL}, "no sound of the form"),
        ({**held(), "uuid": "x"}, "no sound of the form"),
        (held(data=""), "has no data"),
        (held(data=3), "has no data"),
        (held(data=URL), "the data is a URL"),
        (held(format="wav;base64,AAAA"), "the format is no name"),
        (held(format=3), "the format is no name"),
        (held(seconds=3), "unknown fields: seconds"),
    ],
)
def test_what_is_no_sound_is_said_with_its_place(given_part: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message) as caught:
        placed(TEXT, given_part, root="/data")
    assert caught.value.field is not None
    assert caught.value.field.startswith("messages[0].content[1]")
    assert caught.value.code in ("invalid_audio", "invalid_text")


def test_sounds_lie_below_their_own_root() -> None:
    with pytest.raises(BadRow, match="give --audio-root"):
        placed(part("1.wav"))
    place = parts_placer({"image_root": "/pictures", "audio_root": "/sounds"})
    found = body(part("1.wav"), image("1.png"), TEXT)
    place(found)
    assert found == body(part("/sounds/1.wav"), image("/pictures/1.png"), TEXT)
    with pytest.raises(BadRow) as caught:
        place(body(part("/pictures/1.png")))
    assert caught.value.code == "invalid_audio"


def test_a_row_holds_only_so_many_sounds() -> None:
    with pytest.raises(BadRow, match="the row holds 257 sounds"):
        placed(*[held()] * 257)
    assert len(placed(*[held()] * 256)) == 256


def test_a_shard_task_finds_images_and_sounds() -> None:
    found = body(held(), image("/pictures/1.png"), part("/sounds/1.wav"), TEXT)
    media_placer({"image_root": "/pictures", "audio_root": "/sounds"})(CHAT, found)
    held_there = [(one.medium, one.holder[one.name]) for one in media_in(CHAT, found)]
    assert held_there == [(SOUNDS, URL), (IMAGES, "/pictures/1.png"), (SOUNDS, "/sounds/1.wav")]


@given(st.text(max_size=80), st.text(max_size=20))
def test_only_sounds_look_like_sounds_in_a_line_of_the_spool(text: str, name: str) -> None:
    said = body(
        {"type": "text", "text": f'{text}"audio_url":{{"url":"{name}"}}'}, part("/data/" + name), part(URL)
    )
    line = encode_line(0, "a", CHAT, said, 0, 1)
    assert [json.loads(found) for found in NAMED.findall(line)] == ["/data/" + name]


# -- rows of columns ----------------------------------------------------------------------------


def built(row: dict[str, Any], **shape: Any) -> list[Any]:
    given: dict[str, Any] = {"audio_column": "s", "audio_root": "/data"} | shape
    messages: list[Any] = row_builder(RowShape(**given))(0, row).body["messages"]
    return messages


@pytest.mark.parametrize(
    ("cell", "urls"),
    [
        (WAV, [URL]),
        ({"bytes": WAV, "path": "1.wav"}, [URL]),
        ({"bytes": None, "path": "1.wav"}, ["/data/1.wav"]),
        ("1.wav", ["/data/1.wav"]),
        (["1.wav", WAV], ["/data/1.wav", URL]),
        ([], []),
    ],
)
def test_a_cell_of_sounds_comes_before_the_prompt(cell: Any, urls: list[str]) -> None:
    found = built({"q": "who is it?", "s": cell}, prompt_column="q", system_prompt="be")
    content = [*map(part, urls), TEXT] if urls else "who is it?"
    assert found == [{"role": "system", "content": "be"}, {"role": "user", "content": content}]


def test_images_and_sounds_of_one_row_come_before_the_template() -> None:
    row = {"n": "he", "s": ["1.wav", WAV], "i": PNG}
    found = built(row, template="who is {n}?", image_column="i")
    content = [image(data_url(PNG)), part("/data/1.wav"), part(URL), {"type": "text", "text": "who is he?"}]
    assert found == [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("cell", "code"),
    [(None, "missing_value"), (3, "invalid_audio"), (b"", "invalid_audio"), ("../1.wav", "invalid_audio")],
)
def test_a_cell_that_is_no_sound_is_a_bad_row(cell: Any, code: str) -> None:
    with pytest.raises(BadRow) as caught:
        built({"q": "x", "s": cell}, prompt_column="q")
    assert (caught.value.code, caught.value.field) == (code, "s")


def test_messages_say_where_their_sounds_go() -> None:
    turns = [{"role": "user", "content": [{"type": "audio"}, TEXT, {"type": "audio", "text": None}]}]
    found = built({"m": turns, "s": [WAV, "1.wav"]}, messages_column="m")
    assert found[0]["content"] == [part(URL), TEXT, part("/data/1.wav")]
    with pytest.raises(BadRow, match="places for 2 sounds, and the column 's' holds 1"):
        built({"m": [{"role": "user", "content": [{"type": "audio"}] * 2}], "s": WAV}, messages_column="m")


def test_messages_name_sounds_of_their_own() -> None:
    row = {"m": [{"role": "user", "content": [{"type": "audio", "url": "1.wav"}, held(), TEXT]}]}
    found = built(row, messages_column="m", audio_column=None)
    assert found[0]["content"] == [part("/data/1.wav"), part(URL), TEXT]


def test_a_chat_needs_a_prompt_beside_its_sound() -> None:
    with pytest.raises(ConfigError, match="needs a prompt column"):
        source_of("a.csv", audio_column="s")
    with pytest.raises(ConfigError, match="an audio column goes with"):
        source_of("a.csv", kind=Kind.COMPLETION, prompt_column="q", audio_column="s")
    assert isinstance(source_of("a.csv", prompt_column="q", audio_column="s"), Rows)


def test_messages_are_found_beside_a_column_of_sounds(tmp_path: Path) -> None:
    lines, table = tmp_path / "in.jsonl", tmp_path / "in.parquet"
    row = {"messages": [{"role": "user", "content": "who is it?"}], "s": "1.wav"}
    lines.write_text(json.dumps(row) + "\n")
    parquet.write_table(pyarrow.Table.from_pylist([row]), table)
    for file in (lines, table):
        source, said = settled(source_of(str(file), audio_column="s", audio_root="/data"))
        assert said is not None
        [found] = read_rows(source, files_of(source), RowDefaults(), ReadLimits())
        assert found.envelope is not None, found.bad
        assert found.envelope.body == body(part("/data/1.wav"), TEXT)


# -- batch files ----------------------------------------------------------------------------------


def read(path: Path, **options: Any) -> list[RawRow]:
    source = source_of(str(path), **options)
    assert isinstance(source, JsonlBatch)
    return list(read_rows(source, files_of(source), RowDefaults(), ReadLimits()))


def test_a_batch_file_names_the_row_whose_sound_is_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    said = r'{"type":"\u0061udio_url","\u0061udio_url":{"url":"/etc/passwd"}}'
    bodies = [json.dumps(body(one, TEXT)) for one in (part("1.wav"), held())]
    bodies.append(f'{{"messages":[{{"role":"user","content":[{said}]}}]}}')
    file.write_text(
        "".join(
            f'{{"custom_id":"r{number}","method":"POST","url":"{CHAT}","body":{one}}}\n'
            for number, one in enumerate(bodies)
        )
    )
    named, whole, bad = read(file, audio_root=str(tmp_path))
    assert named.envelope is not None and named.envelope.body == body(part(f"{tmp_path}/1.wav"), TEXT)
    assert whole.envelope is not None and whole.envelope.body == body(part(URL), TEXT)
    assert bad.bad is not None
    assert (bad.line_no, bad.bad.custom_id, bad.bad.code) == (3, "r2", "invalid_audio")


def test_a_batch_file_takes_no_column_of_sounds(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body(TEXT)}) + "\n")
    with pytest.raises(ConfigError, match="audio column goes with a prompt column"):
        settled(source_of(str(file), audio_column="s"))


def test_columns_and_roots_of_sound_are_part_of_the_job() -> None:
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"audio_column": "s"},
        {"audio_column": "s", "audio_root": "/a"},
        {"audio_column": "s", "audio_root": "/b"},
        {"image_column": "s"},
    )
    told = {template_digest(source_of("a.csv", prompt_column="q", **more)) for more in shapes}
    assert len(told) == len(shapes)

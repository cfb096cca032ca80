"""Sounds in rows: what names them becomes whole places, and none lies outside of the root."""

from __future__ import annotations

import json
import os
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
from dray.requests.media.medium import NAMED, SOUNDS, MediaRoot, data_url
from dray.requests.media.placing import media_in, media_placer
from dray.requests.reading.readers import RawRow, ReadLimits, files_of, read_rows
from dray.requests.row_shape import RowShape
from dray.requests.sameness import doubt_of, key_of
from dray.requests.shape_digest import template_digest
from dray.requests.sources import JsonlBatch, RowDefaults, Rows
from dray.requests.spool.spool import encode_line
from dray.requests.validate import BadRow
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

WAV = b"RIFF\0\0\0\0WAVEfmt and so on"
URL = data_url(WAV)
TRANSCRIPTIONS = Kind.TRANSCRIPTION.url


def placed(root: str | None = None, **body: Any) -> dict[str, Any]:
    media_placer({} if root is None else {"audio_root": root})(TRANSCRIPTIONS, body)
    return body


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (URL, URL),
        ("calls/1.wav", "/data/calls/1.wav"),
        ("/data/calls/1.wav", "/data/calls/1.wav"),
        ("file:///data/1.wav", "/data/1.wav"),
        ("a b#?.wav", "/data/a b#?.wav"),
    ],
)
def test_a_sound_gets_a_whole_place(url: str, expected: str) -> None:
    assert placed("/data/", file_url=url, language="en") == {"file_url": expected, "language": "en"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://192.0.2.1/1.wav", "no name of a file below"),
        ("s3://other/1.wav", "no name of a file below"),
        ("/etc/passwd", "not below the job's audio_root"),
        ("/database/1.wav", "not below the job's audio_root"),
        ("../1.wav", "no name of a file below"),
        ("calls//1.wav", "no name of a file below"),
        ("1.wav\n", "no name of a file below"),
        ("a\0b", "NUL"),
        ("", "has no URL"),
        (3, "has no URL"),
        ({"url": "1.wav"}, "has no URL"),
        (None, "has no URL"),
        ("data:audio/wav,RIFF", "holds no base64"),
    ],
)
def test_what_is_no_sound_is_said_with_its_field(url: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message) as caught:
        placed("/data", file_url=url)
    assert caught.value.field == "file_url"
    assert caught.value.code in ("invalid_audio", "invalid_text")


def test_without_a_root_a_row_names_no_files() -> None:
    with pytest.raises(BadRow, match="give --audio-root"):
        placed(file_url="1.wav")
    with pytest.raises(BadRow, match="give --audio-root"):
        media_placer({"image_root": "/data"})(TRANSCRIPTIONS, {"file_url": "1.wav"})
    assert placed(file_url=URL) == {"file_url": URL}
    assert placed(file="a.wav") == {"file": "a.wav"}, "the engine says what is missing"


@given(st.text(alphabet=st.sampled_from("./a:~\\%\n"), max_size=12) | st.text(max_size=20))
def test_no_name_leads_out_of_the_root(name: str) -> None:
    try:
        found = MediaRoot(SOUNDS, "/data/calls").place(name, "f")
    except BadRow:
        return
    assert os.path.normpath(found).startswith("/data/calls/")


@given(st.text(max_size=80), st.text(max_size=20))
def test_only_sounds_look_like_sounds_in_a_line_of_the_spool(text: str, name: str) -> None:
    said = {"file_url": "/data/" + name, "prompt": f'{text}"file_url":"{name}"', "language": "en"}
    line = encode_line(0, "a", TRANSCRIPTIONS, said, 0, 1)
    assert [json.loads(found) for found in NAMED.findall(line)] == ["/data/" + name]
    held = encode_line(0, "a", TRANSCRIPTIONS, said | {"file_url": URL}, 0, 1)
    assert NAMED.findall(held) == []


def test_a_field_of_that_name_is_no_sound_in_a_chat() -> None:
    body = {"messages": [], "metadata": {"file_url": "/etc/hostname"}, "file_url": "/etc/hostname"}
    media_placer({"audio_root": "/data"})(Kind.CHAT.url, body)
    assert body["file_url"] == "/etc/hostname"
    assert list(media_in(Kind.CHAT.url, body)) == []


# -- rows of columns ----------------------------------------------------------------------------


def built(row: dict[str, Any], **shape: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"audio_column": "s", "audio_root": "/data", "kind": Kind.TRANSCRIPTION} | shape
    return row_builder(RowShape(**given))(0, row).body


@pytest.mark.parametrize(
    ("cell", "url"),
    [
        (WAV, URL),
        (memoryview(WAV), URL),
        ({"bytes": WAV, "path": "1.wav"}, URL),
        ({"bytes": None, "path": "1.wav"}, "/data/1.wav"),
        ("1.wav", "/data/1.wav"),
        (URL, URL),
    ],
)
def test_a_cell_is_a_sound_and_needs_no_prompt(cell: Any, url: str) -> None:
    assert built({"s": cell}) == {"file_url": url}
    assert built({"s": cell, "p": "so"}, prompt_column="p") == {"file_url": url, "prompt": "so"}
    assert built({"s": cell, "p": "so"}, template="As {p}")["prompt"] == "As so"


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        (None, "missing_value"),
        (3, "invalid_audio"),
        (b"", "invalid_audio"),
        ("", "missing_value"),
        ({}, "invalid_audio"),
        (["1.wav"], "invalid_audio"),
        ("../1.wav", "invalid_audio"),
    ],
)
def test_a_cell_that_is_no_sound_is_a_bad_row(cell: Any, code: str) -> None:
    with pytest.raises(BadRow) as caught:
        built({"s": cell})
    assert (caught.value.code, caught.value.field) == (code, "s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kind": Kind.EMBEDDING, "prompt_column": "q", "audio_column": "s"},
            "goes with chat or transcription or translation",
        ),
        ({"kind": Kind.TRANSCRIPTION}, r"name the column that holds it \(--audio-column\)"),
        ({"kind": Kind.TRANSCRIPTION, "prompt_column": "q"}, "--audio-column"),
        (
            {"kind": Kind.TRANSLATION, "audio_column": "s", "messages_column": "m"},
            "messages column goes with",
        ),
        ({"kind": Kind.TRANSLATION, "audio_column": "s", "image_column": "i"}, "image column goes with"),
        ({"kind": Kind.TRANSLATION, "audio_column": "s", "system_prompt": "x"}, "system prompt goes with"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        source_of("a.csv", **options)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_column_of_sounds_is_enough(name: str) -> None:
    source = source_of(name, kind=Kind.TRANSCRIPTION, audio_column="s")
    assert isinstance(source, Rows)
    assert template_digest(source) != template_digest(
        source_of(name, kind=Kind.TRANSLATION, audio_column="s")
    )


@pytest.mark.parametrize("nested", [False, True])
def test_a_sound_in_parquet_may_be_longer_than_a_text(tmp_path: Path, nested: bool) -> None:
    """As ``datasets`` writes them, in a struct, or plain: sounds have a limit of their own."""
    file, sound = tmp_path / "in.parquet", b"RIFF" + bytes(4) + b"WAVE" + bytes(5000)
    cells = [{"bytes": sound, "path": "1.wav"}] if nested else [sound]
    parquet.write_table(pyarrow.table({"s": cells, "note": ["x"]}), file)
    source = source_of(str(file), kind=Kind.TRANSCRIPTION, audio_column="s")
    [row] = read_rows(source, files_of(source), RowDefaults(), ReadLimits(line_bytes=1000))
    assert row.envelope is not None, row.bad


# -- batch files ----------------------------------------------------------------------------------


def read(path: Path, **sampling: Any) -> list[RawRow]:
    source = source_of(str(path), audio_root="/data")
    assert isinstance(source, JsonlBatch)
    return list(read_rows(source, files_of(source), RowDefaults(sampling=sampling), ReadLimits()))


def test_a_batch_file_names_the_row_whose_sound_is_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    urls = ["1.wav", "../2.wav", URL]
    rows = [
        {"custom_id": url, "method": "POST", "url": TRANSCRIPTIONS, "body": {"file_url": url}} for url in urls
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second, third = read(file, max_tokens=8, language="en")
    assert first.envelope is not None
    assert first.envelope.body == {"file_url": "/data/1.wav", "max_completion_tokens": 8, "language": "en"}
    assert second.bad is not None
    assert (second.line_no, second.bad.code, second.bad.field) == (2, "invalid_audio", "file_url")
    assert second.bad.custom_id == "../2.wav"
    assert third.envelope is not None
    assert third.envelope.body["file_url"] == URL


def test_repeated_sounds_are_told_by_what_rows_ask() -> None:
    same = key_of(TRANSCRIPTIONS, {"file_url": "/data/1.wav"})
    assert same != key_of(TRANSCRIPTIONS, {"file_url": "/data/2.wav"})
    assert same != key_of(Kind.TRANSLATION.url, {"file_url": "/data/1.wav"})
    assert doubt_of(TRANSCRIPTIONS, {"file_url": "/data/1.wav"}) is None, "vLLM does not sample by itself"
    assert doubt_of(TRANSCRIPTIONS, {"file_url": "/data/1.wav", "temperature": 0.5}) == "sampled"
    assert doubt_of(TRANSCRIPTIONS, {"file_url": "/data/1.wav", "temperature": 0.5, "seed": 1}) is None

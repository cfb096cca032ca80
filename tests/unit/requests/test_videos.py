"""Videos in chats: every form that people write becomes one, and none lies outside of the root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dray.errors import ConfigError
from dray.kinds import Kind
from dray.requests.columns.row_builder import row_builder
from dray.requests.media.medium import IMAGES, NAMED, SOUNDS, VIDEOS, data_url
from dray.requests.media.placing import media_in, media_placer, parts_placer
from dray.requests.reading.readers import RawRow, ReadLimits, files_of, read_rows
from dray.requests.reading.settling import settled
from dray.requests.row_shape import RowShape
from dray.requests.shape_digest import template_digest
from dray.requests.sources import RowDefaults
from dray.requests.spool.spool import encode_line
from dray.requests.validate import BadRow
from tests.support.sources import source_of

pytestmark = pytest.mark.unit

MP4 = b"\0\0\0\x1cftypisom and so on"
WAV = b"RIFF\0\0\0\0WAVEfmt and so on"
PNG = b"\x89PNG and so on"
URL = data_url(MP4)
FRAMES = "data:video/jpeg;base64,AAAA,BBBB"
TEXT = {"type": "text", "text": "what is it?"}
CHAT = Kind.CHAT.url
ROOTS = {"image_root": "/pictures", "audio_root": "/sounds", "video_root": "/data"}


def part(url: str, kind: str = "video_url") -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def body(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def placed(*parts: Any) -> list[Any]:
    found = body(*parts)
    parts_placer(ROOTS)(found)
    content: list[Any] = found["messages"][0]["content"]
    return content


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (part(URL), part(URL)),
        (part(FRAMES), part(FRAMES)),
        ({"type": "video_url", "video_url": URL}, part(URL)),
        ({"type": "video", "video": URL, "url": None}, part(URL)),
        ({"type": "video", "path": "1.mp4"}, part("/data/1.mp4")),
        (part("clips/1.mp4"), part("/data/clips/1.mp4")),
        (part("file:///data/1.mp4"), part("/data/1.mp4")),
    ],
)
def test_each_form_becomes_vllms_with_a_whole_place(given: Any, expected: Any) -> None:
    assert placed(given) == [expected]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (part("http://192.0.2.1/1.mp4"), "no name of a file below"),
        (part("/etc/passwd"), "not below the job's video_root"),
        (part("/pictures/1.mp4"), "not below the job's video_root"),
        (part("a/../../1.mp4"), "no name of a file below"),
        (part("data:video/mp4,AAAA"), "holds no base64"),
        (part(""), "has no URL"),
        ({"type": "video_url", "video_url": {"url": URL, "fps": 1}}, "unknown fields: fps"),
        ({"type": "video", "video": URL, "fps": 1}, "also has fps"),
        ({"type": "video_url", "video_url": {"url": URL}, "uuid": "x"}, "also has uuid"),
        ({"type": "video", "video": ["1.jpg", "2.jpg"]}, "has no URL of a video"),
    ],
)
def test_what_is_no_video_is_said_with_its_place(given: Any, message: str) -> None:
    with pytest.raises(BadRow, match=message) as caught:
        placed(TEXT, given)
    assert caught.value.code == "invalid_video"
    assert str(caught.value.field).startswith("messages[0].content[1]")


def test_a_name_needs_a_root() -> None:
    with pytest.raises(BadRow, match="give --video-root"):
        parts_placer({})(body(part("1.mp4")))


def test_a_shard_task_finds_the_files_of_all_media() -> None:
    found = body(part("1.mp4"), part("1.png", "image_url"), part("1.wav", "audio_url"), part(URL), TEXT)
    media_placer(ROOTS)(CHAT, found)
    held = [(one.medium, one.holder[one.name]) for one in media_in(CHAT, found)]
    named = [(VIDEOS, "/data/1.mp4"), (IMAGES, "/pictures/1.png"), (SOUNDS, "/sounds/1.wav")]
    assert held == [*named, (VIDEOS, URL)]
    line = encode_line(0, "a", CHAT, found, 0, 1)
    assert [json.loads(name) for name in NAMED.findall(line)] == [name for _, name in named]


# -- rows of columns ----------------------------------------------------------------------------


def built(row: dict[str, Any], **shape: Any) -> list[Any]:
    given: dict[str, Any] = {"video_column": "v", "video_root": "/data"} | shape
    messages: list[Any] = row_builder(RowShape(**given))(0, row).body["messages"]
    return messages


@pytest.mark.parametrize(
    ("cell", "urls"),
    [
        (MP4, [URL]),
        ({"bytes": MP4, "path": "1.mp4"}, [URL]),
        ({"bytes": None, "path": "1.mp4"}, ["/data/1.mp4"]),
        ("1.mp4", ["/data/1.mp4"]),
        (["1.mp4", MP4], ["/data/1.mp4", URL]),
    ],
)
def test_a_cell_of_videos_comes_before_the_prompt(cell: Any, urls: list[str]) -> None:
    found = built({"q": "what is it?", "v": cell}, prompt_column="q")
    assert found == [{"role": "user", "content": [*map(part, urls), TEXT]}]


def test_images_and_sounds_come_before_videos() -> None:
    row = {"q": "what is it?", "v": MP4, "i": PNG, "s": WAV}
    found = built(row, prompt_column="q", image_column="i", audio_column="s")
    files = [part(data_url(PNG), "image_url"), part(data_url(WAV), "audio_url"), part(URL)]
    assert found == [{"role": "user", "content": [*files, TEXT]}]


def test_messages_say_where_their_videos_go() -> None:
    turns = [{"role": "user", "content": [TEXT, {"type": "video"}]}]
    assert built({"m": turns, "v": MP4}, messages_column="m")[0]["content"] == [TEXT, part(URL)]


@pytest.mark.parametrize(("cell", "code"), [(None, "missing_value"), (3, "invalid_video")])
def test_a_cell_that_is_no_video_is_a_bad_row(cell: Any, code: str) -> None:
    with pytest.raises(BadRow) as caught:
        built({"q": "x", "v": cell}, prompt_column="q")
    assert (caught.value.code, caught.value.field) == (code, "v")


def test_a_video_may_be_larger_than_an_image() -> None:
    large = bytes(IMAGES.most_bytes + 1)
    assert built({"q": "x", "v": large}, prompt_column="q")
    with pytest.raises(BadRow, match=r"the video has .* bytes; from 1 to 67,108,864 are taken"):
        built({"q": "x", "v": bytes(VIDEOS.most_bytes + 1)}, prompt_column="q")


def read(path: Path, **options: Any) -> list[RawRow]:
    source, _ = settled(source_of(str(path), **options))
    return list(read_rows(source, files_of(source), RowDefaults(), ReadLimits(line_bytes=1000)))


def test_a_column_of_videos_has_the_limit_of_videos(tmp_path: Path) -> None:
    """Not that of texts."""
    table = tmp_path / "in.parquet"
    cell = {"bytes": MP4 * 1000, "path": None}
    parquet.write_table(pyarrow.Table.from_pylist([{"q": "what is it?", "v": cell}]), table)
    [row] = read(table, prompt_column="q", video_column="v")
    assert row.envelope is not None, row.bad
    assert row.envelope.body == body(part(data_url(MP4 * 1000)), TEXT)


def test_a_batch_file_names_the_row_whose_video_is_none(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    bodies = (body(part("1.mp4"), TEXT), body(part("/etc/passwd"), TEXT))
    rows = [
        {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": one}
        for number, one in enumerate(bodies)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    good, bad = read(file, video_root=str(tmp_path))
    assert good.envelope is not None and good.envelope.body == body(part(f"{tmp_path}/1.mp4"), TEXT)
    assert bad.bad is not None
    assert (bad.line_no, bad.bad.custom_id, bad.bad.code) == (2, "r1", "invalid_video")
    with pytest.raises(ConfigError, match="video column goes with a prompt column"):
        read(file, video_column="v")


@pytest.mark.parametrize("kind", [Kind.COMPLETION, Kind.EMBEDDING, Kind.TRANSCRIPTION])
def test_other_kinds_take_no_column_of_videos(kind: Kind) -> None:
    with pytest.raises(ConfigError, match=f"a video column goes with chat only, not with {kind}"):
        source_of("a.csv", kind=kind, prompt_column="q", video_column="v")


def test_columns_and_roots_of_video_are_part_of_the_job() -> None:
    shapes: tuple[dict[str, Any], ...] = (
        {},
        {"video_column": "v"},
        {"video_column": "v", "video_root": "/a"},
        {"video_column": "v", "video_root": "/b"},
        {"audio_column": "v"},
        {"audio_column": "v", "video_root": "/a"},
    )
    told = {template_digest(source_of("a.csv", prompt_column="q", **more)) for more in shapes}
    assert len(told) == len(shapes)

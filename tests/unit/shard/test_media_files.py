"""Files on their way to a replica: each row gets its own, and one that is missing costs one row."""

from __future__ import annotations

import os
import random
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dray.errors import CancelledError
from dray.requests.media.medium import IMAGES, VIDEOS, data_url
from dray.requests.spool.spool import decode, encode_line
from dray.shard import media_files, media_rows
from dray.shard.media_rows import with_media_files
from dray.shard.open_rows import OpenLines

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _knows_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_files, "_known", {})
    monkeypatch.setattr(media_files, "_AGAIN", (0.01, 0.01))


URL = "/v1/chat/completions"
BUCKET = {"image_root": "s3://bucket"}


def line(index: int, *urls: str) -> bytes:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [*images, {"type": "text", "text": f'say "{index}"'}]
    return encode_line(
        index, f"row-{index}", URL, {"messages": [{"role": "user", "content": content}]}, 0, index
    )


def chunks(lines: list[bytes], size: int) -> Iterator[OpenLines]:
    """Every second row was finished before, so that positions are not those of lines."""
    for begin in range(0, len(lines), size):
        numbers = range(begin, min(begin + size, len(lines)))
        yield OpenLines([lines[number] for number in numbers], [number * 2 + 1 for number in numbers])


def filled(lines: list[bytes], root: str, *, size: int = 7, **more: Any) -> list[OpenLines]:
    return list(with_media_files(chunks(lines, size), {"image_root": root}, **more))


def urls_of(line: bytes) -> list[str]:
    content = decode(line).body["messages"][0]["content"]
    return [part["image_url"]["url"] for part in content if part["type"] == "image_url"]


@pytest.mark.parametrize("size", [1, 7, 500])
def test_rows_keep_their_order_and_get_their_images(tmp_path: Path, size: int) -> None:
    rng = random.Random(3)
    files = {f"{tmp_path}/{number}.jpg": rng.randbytes(rng.randint(1, 3000)) for number in range(40)}
    for name, content in files.items():
        Path(name).write_bytes(content)
    asked = [rng.choices([*files, data_url(b"own")], k=rng.randint(0, 3)) for _ in range(300)]
    lines = [line(number, *urls) for number, urls in enumerate(asked)]
    pieces = filled(lines, str(tmp_path), size=size)
    assert [place for piece in pieces for place in piece.ends] == [number * 2 + 1 for number in range(300)]
    assert all(len(piece.lines) == len(piece.ends) for piece in pieces)
    found = [one for piece in pieces for one in piece.lines]
    assert [urls_of(one) for one in found] == [
        [data_url(files[url]) if url in files else url for url in urls] for urls in asked
    ]
    assert [one for one, urls in zip(found, asked, strict=True) if not urls] == [
        one for one, urls in zip(lines, asked, strict=True) if not urls
    ]


def test_a_row_without_its_image_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "fine.png").write_bytes(b"\x89PNG")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(IMAGES.most_bytes + 1)
    names = ["fine.png", "gone.png", "folder", "large.png", "fine.png/x", "x" * 300, "fine.png"]
    [piece] = filled([line(number, f"{tmp_path}/{name}") for number, name in enumerate(names)], str(tmp_path))
    assert [decode(one).index for one in piece.lines] == [0, 6]
    assert [(one.index, one.error_code) for one in piece.refused] == [
        (1, "image_not_found"),
        (2, "image_not_found"),
        (3, "invalid_image"),
        (4, "image_not_found"),
        (5, "image_not_found"),
    ]
    assert len(piece.ends) == 7
    assert not any(str(tmp_path) in str(one.error_message) for one in piece.refused), "rows are not quoted"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    [piece] = filled([line(0, f"{tmp_path}/pipe")], str(tmp_path))
    assert [one.error_code for one in piece.refused] == ["invalid_image"]


def test_a_folder_that_this_node_lacks_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not on this node"):
        filled([line(0, f"{tmp_path}/gone/1.png")], f"{tmp_path}/gone")
    (tmp_path / "unmounted").mkdir()
    with pytest.raises(OSError, match="is gone from this node, or empty"):
        filled([line(0, f"{tmp_path}/unmounted/1.png")], f"{tmp_path}/unmounted")


def test_a_folder_that_is_unmounted_on_the_way_is_no_fault_of_the_rows(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "1.png").write_bytes(b"\x89PNG")
    found = with_media_files(
        chunks([line(number, f"{folder}/1.png") for number in range(200)], 7), {"image_root": str(folder)}
    )
    assert len(next(found).lines) == 32
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is gone from this node, or empty"):
        list(found)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"json_schema": {"schema": {"const": {"image_url": {"url": "/etc/hostname"}}}}}},
        {"tools": [{"function": {"parameters": {"default": {"image_url": {"url": "/etc/hostname"}}}}}]},
        {"chat_template_kwargs": {"a": {"type": "image_url", "image_url": {"url": "/etc/hostname"}}}},
        {"messages": [{"role": "user", "content": [{"image_url": {"url": "/etc/hostname"}}]}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "image_url": {"url": "/etc/hostname"}}]}
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/hostname"}}]}
            ]
        },
    ],
)
def test_nothing_else_in_a_row_is_read(tmp_path: Path, body: dict[str, Any]) -> None:
    """Neither what is no image of a message, nor what is not below the root, however it came there."""
    given = encode_line(0, "a", URL, body, 0, 1)
    [piece] = filled([given], str(tmp_path))
    assert (list(piece.lines), list(piece.refused)) == ([given], [])


def test_a_row_has_only_so_many_bytes_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(bytes(1000))
    monkeypatch.setattr(media_rows, "ROW_LIMIT_BYTES", 50_000)
    urls = [f"{tmp_path}/a.png"] * 51
    [piece] = filled([line(0, *urls), line(1, *urls[:50])], str(tmp_path))
    assert [(one.index, one.error_code) for one in piece.refused] == [(0, "request_too_large")]
    assert [len(urls_of(one)) for one in piece.lines] == [50]


class _Store:
    """An object store that answers as ``answers`` says; anything else is an image of its name."""

    def __init__(self, patch: pytest.MonkeyPatch, answers: dict[str, Exception]) -> None:
        self.answers = answers
        self.asked: Counter[str] = Counter()
        patch.setattr(media_files, "_of_store", self.read)

    def read(self, uri: str, most: int, options: object) -> bytes:
        name = uri.rpartition("/")[2]
        self.asked[name] += 1
        if name in self.answers:
            raise self.answers[name]
        return name.encode()


def names(*found: str) -> list[bytes]:
    return [line(number, f"s3://bucket/{name}") for number, name in enumerate(found)]


def test_a_store_that_is_away_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names of its own: a thread that still reads one would count in the next test.
    _Store(monkeypatch, {"x": ConnectionError("away"), "y": ConnectionError("away")})
    with pytest.raises(ConnectionError) as caught:
        filled(names("x", "y"), "s3://bucket")
    assert caught.value.filename2 == "s3://bucket"


def test_one_image_that_cannot_be_read_is_tried_again_and_costs_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = _Store(monkeypatch, {"b": ConnectionError("410")})
    [piece] = filled(names("a", "b", "c"), "s3://bucket")
    assert [(one.index, one.error_code) for one in piece.refused] == [(1, "image_not_found")]
    assert store.asked["b"] == 3


def test_a_store_that_hangs_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard task is told to stop, or has waited for too long."""
    held = threading.Event()
    monkeypatch.setattr(media_files, "_of_store", lambda uri, most, options: held.wait(20))
    monkeypatch.setattr(media_files, "_LOOK_SECONDS", 0.02)
    with pytest.raises(CancelledError):
        list(with_media_files(chunks(names("a"), 7), BUCKET, check=_cancelled))
    monkeypatch.setattr(media_files, "PATIENCE", 0.1)
    with pytest.raises(TimeoutError) as caught:
        filled(names("a"), "s3://bucket")
    assert caught.value.filename2 == "s3://bucket"
    held.set()


def _cancelled() -> None:
    raise CancelledError("the job was cancelled")


@pytest.mark.parametrize("order", ["abc", "bac", "bca"])
def test_one_object_that_may_not_be_read_is_its_rows_fault(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """S3 answers 403 for names that are not there, to those who may not list the bucket."""
    _Store(monkeypatch, {"b": PermissionError("403")})
    [piece] = filled(names(*order), "s3://bucket")
    assert [one.error_code for one in piece.refused] == ["image_not_found"]
    assert [b64decode(urls_of(one)[0].partition(",")[2]).decode() for one in piece.lines] == sorted(
        set(order) - {"b"}, key=order.index
    )


def test_a_lone_row_is_judged_by_other_images_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a resume only the rows may be left whose images no one may read."""
    store = _Store(monkeypatch, {"b": PermissionError("403"), "x": PermissionError("403")})
    others = ["s3://bucket/x", "s3://bucket/b", "s3://bucket/c"]
    rows = with_media_files(chunks(names("b"), 7), BUCKET, others=lambda: others)
    assert [one.error_code for piece in rows for one in piece.refused] == ["image_not_found"]
    assert store.asked["c"] == 1


def test_the_first_rows_of_the_spool_name_others(tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    lines = [line(0, "/i/1.png", data_url(b"x")), line(1), line(2, "/i/1.png"), line(3, '/i/a "b".png')]
    spool.write_bytes(b"".join(lines))
    assert media_rows.files_named_in(str(spool)) == ["/i/1.png", '/i/a "b".png']


def test_one_trouble_that_passes_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that ran out while images were on their way, and are new by the next try."""
    store = _Store(monkeypatch, dict.fromkeys("abc", PermissionError("expired")))
    threading.Timer(0.005, store.answers.clear).start()
    monkeypatch.setattr(media_files, "_AGAIN", (0.05, 0.05))
    [piece] = filled(names(*"abc"), "s3://bucket")
    assert (len(piece.lines), list(piece.refused)) == (3, [])


def test_keys_that_expired_are_no_fault_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _Store(monkeypatch, {})
    found = with_media_files(chunks(names(*"abcd" * 30), 7), BUCKET)
    assert len(next(found).lines) == 32
    store.answers |= dict.fromkeys("abcd", PermissionError("expired"))
    with pytest.raises(PermissionError):
        list(found)


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_files, "_of_store", lambda uri, most, options: bytes(5 << 20))
    sizes = [sum(map(len, piece.lines)) for piece in filled(names(*"a" * 20), "s3://bucket", size=500)]
    assert sum(sizes) > 20 * (5 << 20)
    assert max(sizes) < 24 << 20


def test_rows_without_a_root_are_left_alone() -> None:
    given = list(chunks(names("a"), 7))
    assert list(with_media_files(iter(given), {})) == given


# -- sounds ---------------------------------------------------------------------------------------


def spoken(index: int, url: str, kind: str = "/v1/audio/transcriptions") -> bytes:
    return encode_line(index, f"row-{index}", kind, {"file_url": url, "language": "en"}, 0, index)


def test_sounds_are_read_as_images_are(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.wav").write_bytes(name.encode() * 100)
    urls = [f"{tmp_path}/a.wav", f"{tmp_path}/gone.wav", data_url(b"own"), f"{tmp_path}/b.wav"]
    rows = [spoken(number, url) for number, url in enumerate(urls)]
    [piece] = with_media_files(chunks(rows, 7), {"audio_root": str(tmp_path)})
    assert [decode(one).body["file_url"] for one in piece.lines] == [
        data_url(b"a" * 100),
        data_url(b"own"),
        data_url(b"b" * 100),
    ]
    assert [decode(one).body["language"] for one in piece.lines] == ["en"] * 3
    assert [(one.index, one.error_code, one.error_message) for one in piece.refused] == [
        (1, "audio_not_found", "a sound that the row names is not below audio_root")
    ]


def test_each_medium_has_its_own_root(tmp_path: Path) -> None:
    """A sound below the root of images is not read, nor is a field of that name in a chat."""
    for name in ("images", "sounds"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(name.encode())
    chat = encode_line(3, "a", URL, {"messages": [], "file_url": f"{tmp_path}/sounds/1"}, 0, 3)
    rows = [
        spoken(0, f"{tmp_path}/images/1"),
        spoken(1, f"{tmp_path}/sounds/1"),
        line(2, f"{tmp_path}/images/1", f"{tmp_path}/sounds/1"),
        chat,
    ]
    roots = {"image_root": f"{tmp_path}/images", "audio_root": f"{tmp_path}/sounds"}
    [piece] = with_media_files(chunks(rows, 7), roots)
    outside, heard, seen, left = piece.lines
    assert (outside, left) == (rows[0], chat)
    assert decode(heard).body["file_url"] == data_url(b"sounds")
    assert urls_of(seen) == [data_url(b"images"), f"{tmp_path}/sounds/1"]


def test_a_chat_gets_its_images_and_sounds(tmp_path: Path) -> None:
    for name in ("images", "sounds"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").write_bytes(name.encode())

    def chat(index: int, sound: str) -> bytes:
        content = [
            {"type": "audio_url", "audio_url": {"url": sound}},
            {"type": "image_url", "image_url": {"url": f"{tmp_path}/images/1"}},
            {"type": "text", "text": f'"audio_url":{{"url":"{tmp_path}/sounds/1"}}'},
        ]
        body = {"messages": [{"role": "user", "content": content}]}
        return encode_line(index, f"row-{index}", URL, body, 0, index)

    places = ("sounds/1", "images/1", "sounds/2")
    rows = [chat(number, f"{tmp_path}/{name}") for number, name in enumerate(places)]
    roots = {"image_root": f"{tmp_path}/images", "audio_root": f"{tmp_path}/sounds"}
    [piece] = with_media_files(chunks(rows, 7), roots)
    parts = [decode(one).body["messages"][0]["content"] for one in piece.lines]
    assert [one[0]["audio_url"]["url"] for one in parts] == [data_url(b"sounds"), f"{tmp_path}/images/1"]
    assert [one[1]["image_url"]["url"] for one in parts] == [data_url(b"images")] * 2
    assert parts[0][2] == decode(rows[0]).body["messages"][0]["content"][2]
    assert [(one.index, one.error_code) for one in piece.refused] == [(2, "audio_not_found")]


def test_images_and_sounds_of_a_row_have_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_rows, "ROW_LIMIT_BYTES", 150)
    (tmp_path / "1").write_bytes(bytes(100))
    url = {"url": f"{tmp_path}/1"}
    content = [{"type": "image_url", "image_url": url}, {"type": "audio_url", "audio_url": dict(url)}]
    both = encode_line(0, "a", URL, {"messages": [{"role": "user", "content": content}]}, 0, 1)
    roots = {"image_root": str(tmp_path), "audio_root": str(tmp_path)}
    [piece] = with_media_files(chunks([both], 7), roots)
    assert [(one.error_code, one.error_message) for one in piece.refused] == [
        ("request_too_large", "the row's images and sounds have over 150 bytes")
    ]


def test_videos_have_a_root_and_a_limit_of_their_own(tmp_path: Path) -> None:
    for name, size in (("large", IMAGES.most_bytes + 1), ("too large", VIDEOS.most_bytes + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    places = [f"{tmp_path}/large", f"{tmp_path}/too large", f"{tmp_path}/gone", "/etc/hostname"]
    parts = [{"type": "video_url", "video_url": {"url": place}} for place in places]
    bodies = [{"messages": [{"role": "user", "content": [part]}]} for part in parts]
    rows = [encode_line(number, f"row-{number}", URL, body, 0, number) for number, body in enumerate(bodies)]
    roots = {"image_root": "/etc", "video_root": str(tmp_path)}
    pieces = list(with_media_files(chunks(rows, 7), roots))
    found = [decode(one).body["messages"][0]["content"] for piece in pieces for one in piece.lines]
    large, elsewhere = found
    assert len(large[0]["video_url"]["url"]) > IMAGES.most_bytes
    assert elsewhere == [parts[3]], "below the root of images alone"
    refused = [one for piece in pieces for one in piece.refused]
    assert [(one.index, one.error_code, one.error_message) for one in refused] == [
        (1, "invalid_video", "a video has more than 67,108,864 bytes, or is no file"),
        (2, "video_not_found", "a video that the row names is not below video_root"),
    ]


def test_a_witness_is_below_the_root_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a name in the spool may stand anywhere in a row."""
    store = _Store(monkeypatch, {"b": PermissionError("403")})
    others = ["s3://elsewhere/c", "/etc/hostname"]
    with pytest.raises(PermissionError):
        list(with_media_files(chunks(names("b"), 7), BUCKET, others=lambda: others))
    assert store.asked.keys() == {"b"}

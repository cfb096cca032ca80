"""Bytes into lines, whatever the bytes."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import InputError
from dray.storage import files, streams

pytestmark = pytest.mark.unit

LIMIT = 50
texts = st.lists(
    st.sampled_from([b"a", b"bcd", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\x00", b"z" * 60])
).map(b"".join)


def reference(data: bytes, limit: int) -> list[tuple[int, bytes | None]]:
    """What lines should give, in the plainest words."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    parts = data.split(b"\n")
    if parts[-1] == b"":
        parts.pop()
    plain = [part.removesuffix(b"\r") for part in parts]
    return [(number, line if len(line) <= limit else None) for number, line in enumerate(plain, start=1)]


def read_all(data: bytes, block: int, limit: int = LIMIT) -> list[tuple[int, bytes | None]]:
    return list(streams.lines(io.BytesIO(data).read, limit=limit, block_bytes=block))


@given(st.one_of(texts, st.binary()), st.integers(1, 80))
def test_lines_are_the_same_for_every_block_size(data: bytes, block: int) -> None:
    if streams.other_encoding(data) is None:
        assert read_all(data, block) == reference(data, LIMIT)


@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_limit_counts_the_line_without_its_end(size: int, end: bytes) -> None:
    for block in (1, 7, 1000):
        expected = b"x" * size if size <= LIMIT else None
        assert read_all(b"x" * size + end, block) == [(1, expected)]


def test_a_giant_line_never_sits_whole_in_memory() -> None:
    held = []

    def read(size: int) -> bytes:
        held.append(size)
        return b"x" * size if len(held) < 1000 else b""

    assert list(streams.lines(read, limit=100, block_bytes=64)) == [(1, None)]


def test_utf16_is_refused_by_name() -> None:
    with pytest.raises(streams.EncodingError, match="UTF-16"):
        read_all('{"a":1}'.encode("utf-16"), 100)


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


def contents(path: Path) -> bytes:
    with files.open_stream(str(path)) as stream:
        return stream.read()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.sampled_from([gzip.compress, zstd]))
def test_members_follow_one_another(pieces: list[bytes], compress: object) -> None:
    assert callable(compress)
    data = b"".join(compress(piece) for piece in pieces)
    stream = streams.decompressed(io.BufferedReader(io.BytesIO(data)), "x")
    assert stream.read() == b"".join(pieces)


@pytest.mark.parametrize(("compress", "suffix"), [(gzip.compress, ".gz"), (zstd, ".zst")])
def test_compression_is_known_by_content_as_by_name(tmp_path: Path, compress: object, suffix: str) -> None:
    assert callable(compress)
    for name in ("a.jsonl", f"a.jsonl{suffix}"):
        (tmp_path / name).write_bytes(compress(b"line\n" * 1000))
        assert contents(tmp_path / name) == b"line\n" * 1000


@pytest.mark.parametrize(("compress", "suffix"), [(gzip.compress, ".gz"), (zstd, ".zst")])
@pytest.mark.parametrize("damage", ["cut", "flipped", "plain", "empty"])
def test_damage_is_refused_naming_the_file(
    tmp_path: Path, compress: object, suffix: str, damage: str
) -> None:
    assert callable(compress)
    good = compress(bytes(range(256)) * 4000)
    middle = len(good) // 2
    bad = {
        "cut": good[:middle],
        "flipped": good[:6] + bytes(byte ^ 0xFF for byte in good[6:]),
        "plain": b'{"custom_id":"a"}\n',
        "empty": b"",
    }[damage]
    path = tmp_path / f"in.jsonl{suffix}"
    path.write_bytes(bad)
    with pytest.raises(InputError) as caught:
        list(files.open_lines(str(path)))
    [problem] = caught.value.problems
    assert (problem.code, problem.file) == ("unreadable_compression", str(path))


@given(texts, st.integers(1, 80))
def test_what_is_dropped_is_the_line_that_is_not_given(data: bytes, block: int) -> None:
    pieces: list[bytes] = []
    data = b"ascii\n" + data
    read = io.BytesIO(data).read
    for number, line in streams.lines(read, limit=LIMIT, block_bytes=block, dropped=pieces.append):
        if line is None:
            whole = data.split(b"\n")[number - 1]
            assert b"".join(pieces).rstrip(b"\r") == whole.rstrip(b"\r")
            pieces.clear()
    assert pieces == []


def test_zstd_that_begins_with_a_frame_without_data() -> None:
    skipped = (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"abcd"
    data = skipped + pyarrow.compress(b"one\ntwo\n", "zstd", asbytes=True)
    stream = streams.decompressed(io.BufferedReader(io.BytesIO(data)), "x.jsonl.zst")
    assert stream.read() == b"one\ntwo\n"


def test_zstd_with_a_window_that_is_too_large_is_not_called_damaged() -> None:
    window_of_1_gib, one_raw_block = b"\x00\xa0", (4 << 3 | 1).to_bytes(3, "little") + b"one\n"
    data = b"\x28\xb5\x2f\xfd" + window_of_1_gib + one_raw_block
    stream = streams.decompressed(io.BufferedReader(io.BytesIO(data)), "x.jsonl.zst")
    with pytest.raises(streams.CompressionError, match="wants more than 128 MiB"):
        stream.read()

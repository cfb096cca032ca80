"""The map of what is there: written by one process, seen by all, and never more than is true."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dray.errors import WeightsError
from dray.weights.node import ready
from dray.weights.node.ready import ChunkMap, boot_id

pytestmark = pytest.mark.unit

CHUNKS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "map"


@pytest.fixture
def filler(path: Path) -> Iterator[ChunkMap]:
    """As the process that fills sees it."""
    made = ChunkMap.made(path, CHUNKS)
    made.begin()
    yield made
    made.close()


@pytest.fixture
def reader(filler: ChunkMap, path: Path) -> Iterator[ChunkMap]:
    """As all others see it."""
    opened = ChunkMap(path, writable=False)
    yield opened
    opened.close()


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


def test_a_new_map_says_that_nothing_is_there(reader: ChunkMap) -> None:
    assert reader.chunks == CHUNKS
    assert reader.marks == bytes(CHUNKS)
    assert reader.failure is None
    assert reader.boot == boot_id()


def test_each_mark_is_seen_with_its_digest(filler: ChunkMap, reader: ChunkMap, rng: random.Random) -> None:
    numbers = rng.sample(range(CHUNKS), CHUNKS)
    for done, number in enumerate(numbers, 1):
        assert not reader.ready([number])
        filler.mark(number, digest(number))
        assert reader.ready(numbers[:done])
        assert reader.marks.count(1) == done
    assert all(reader.digest(number) == digest(number) for number in range(CHUNKS))


def test_marks_of_another_boot_are_believed_once_somebody_has_begun_in_this_one(
    filler: ChunkMap, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.mark(3, digest(3))
    monkeypatch.setattr(ready, "boot_id", lambda: "another")
    reader, published = ChunkMap(path, writable=False), ChunkMap(path, writable=False, published=True)
    assert not reader.ready([3])
    assert not reader.ready([])
    assert reader.marks == bytes(CHUNKS)
    assert reader.noted.index(1) == 3
    assert published.ready([3])
    with pytest.raises(WeightsError, match="nothing arrived"):
        reader.wait(range(3, 4), what="w", stall=0.05)
    again = ChunkMap.made(path, CHUNKS)
    again.begin()
    assert reader.ready([3])
    assert reader.boot == "another"
    for one in (reader, published, again):
        one.close()


def test_a_boot_that_cannot_be_read_is_another_one(filler: ChunkMap, path: Path) -> None:
    filler.mark(3, digest(3))
    with path.open("r+b") as file:
        file.seek(24)
        file.write(b"\xff" * 36)
    reader = ChunkMap(path, writable=False)
    assert not reader.ready([3])
    reader.close()


def test_a_new_map_is_believed_once_it_is_begun(path: Path) -> None:
    made = ChunkMap.made(path, CHUNKS)
    made.mark(3, digest(3))
    assert not made.ready([3])
    made.begin()
    assert made.ready([3])
    made.close()


def test_chunks_are_ready_when_all_of_them_are(filler: ChunkMap, reader: ChunkMap) -> None:
    for number in (3, 4, 6):
        filler.mark(number, digest(number))
    assert reader.ready(range(3, 5))
    assert not reader.ready(range(3, 7))
    assert reader.ready(range(0))
    filler.unmark(4)
    assert not reader.ready(range(3, 5))


def test_another_process_sees_it(filler: ChunkMap, path: Path) -> None:
    filler.mark(7, digest(7))
    code = (
        "import sys; from pathlib import Path; from dray.weights.node.ready import ChunkMap\n"
        "found = ChunkMap(Path(sys.argv[1]), writable=False)\n"
        "print(found.marks.index(1), found.digest(7)[-1])"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert said.stdout.split() == ["7", "7"], said.stderr


def _failure(there: ChunkMap) -> str | None:
    """As it is now: mypy takes a value that a test has seen for the value for ever."""
    return there.failure


def test_who_goes_on_finds_the_marks_and_not_the_failure(filler: ChunkMap, path: Path) -> None:
    filler.mark(5, digest(5))
    filler.fail("the store was away")
    again = ChunkMap.made(path, CHUNKS)
    assert _failure(again) == "the store was away"
    again.begin()
    assert _failure(again) is None
    assert (again.marks.index(1), again.digest(5)) == (5, digest(5))
    again.close()


def test_a_map_of_another_number_of_chunks_is_made_anew(filler: ChunkMap, path: Path) -> None:
    filler.mark(0, digest(0))
    other = ChunkMap.made(path, CHUNKS + 1)
    assert (other.chunks, other.marks.count(1)) == (CHUNKS + 1, 0)
    other.close()


@pytest.mark.parametrize(
    "content", [b"", b"dray-rdy", bytes(4096 + 33 * CHUNKS), b"dray-rdy" + bytes(4096 + 33 * CHUNKS)]
)
def test_what_is_no_map_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(WeightsError, match="map: not a map of ready chunks; remove"):
        ChunkMap(path, writable=False)


def test_a_reader_cannot_write(reader: ChunkMap) -> None:
    with pytest.raises(TypeError):
        reader.mark(0, digest(0))


@pytest.mark.parametrize("text", ["", "s3://bucket/m: truncated", "é" * 5000, "x" + "名" * 5000])
def test_a_reason_is_told_as_far_as_it_fits(filler: ChunkMap, reader: ChunkMap, text: str) -> None:
    filler.fail("an earlier one, which was rather long")
    filler.fail(text)
    assert reader.failure is not None
    assert text.startswith(reader.failure)
    assert len(reader.failure.encode()) > min(len(text.encode()), 2040) - 1


def test_the_span_is_from_the_begin_to_the_latest_mark(filler: ChunkMap, reader: ChunkMap) -> None:
    before = reader.span[0]
    time.sleep(0.02)
    filler.mark(0, digest(0))
    began, moved = reader.span
    assert began == before <= moved - 0.02
    assert moved <= time.time()


# -- waiting ----------------------------------------------------------------------------------


def test_what_is_there_is_not_waited_for(filler: ChunkMap, reader: ChunkMap) -> None:
    filler.mark(3, digest(3))
    assert reader.wait(range(3, 4), what="w", stall=0) == 0.0
    assert reader.wait(range(0), what="w", stall=0) == 0.0


def test_a_wait_ends_with_the_last_of_its_chunks(filler: ChunkMap, reader: ChunkMap) -> None:
    def fill() -> None:
        for number in range(5):
            time.sleep(0.02)
            filler.mark(number, digest(number))

    thread = threading.Thread(target=fill)
    thread.start()
    waited = reader.wait(range(2, 5), what="w", stall=5)
    assert reader.ready(range(2, 5))
    thread.join()
    assert 0.02 < waited < 2


def test_a_wait_ends_with_a_failure(filler: ChunkMap, reader: ChunkMap) -> None:
    timer = threading.Timer(0.05, filler.fail, ["s3://bucket/m/f was replaced"])
    timer.start()
    with pytest.raises(WeightsError, match="s3://bucket/m/f was replaced"):
        reader.wait(range(1), what="w", stall=5)


def test_what_is_there_can_be_used_after_a_failure(filler: ChunkMap, reader: ChunkMap) -> None:
    filler.mark(0, digest(0))
    filler.fail("no more comes")
    assert reader.wait(range(1), what="w") == 0.0


def test_a_wait_ends_where_nothing_comes_and_says_what_for(filler: ChunkMap, reader: ChunkMap) -> None:
    filler.mark(0, digest(0))
    with pytest.raises(WeightsError, match=r"tensor 't': nothing arrived for 0 s \(1 of 40 chunks are there"):
        reader.wait(range(1, 2), what="tensor 't'", stall=0.05)


def test_whatever_comes_prolongs_the_wait(filler: ChunkMap, reader: ChunkMap) -> None:
    def fill() -> None:
        for number in range(CHUNKS - 1, -1, -1):
            time.sleep(0.02)
            filler.mark(number, digest(number))

    thread = threading.Thread(target=fill)
    thread.start()
    assert reader.wait(range(1), what="w", stall=0.3) > 0.3
    thread.join()


def test_who_waits_can_be_told_to_stop(reader: ChunkMap) -> None:
    calls = []

    def alive() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader.wait(range(1), what="w", alive=alive)


# -- on a full disk ---------------------------------------------------------------------------

FULL = """
import os, sys
from pathlib import Path
from dray.weights.node.ready import ChunkMap
folder, chunks = Path(sys.argv[1]), 10_000
made = ChunkMap.made(folder / "map", chunks)
made.begin()
with (folder / "other").open("wb", buffering=0) as other:  # somebody takes all that is left
    try:
        while other.write(bytes(4096)):
            pass
    except OSError:
        pass
assert not os.statvfs(folder).f_bavail
for number in range(chunks):
    made.mark(number, bytes(32))
made.fail("no room")
print(made.marks.count(1))
"""


def test_marking_never_meets_a_full_disk(small_disk: Path) -> None:
    """A store to a mapped hole of a full file system would kill the process (SIGBUS)."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(small_disk)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "10000"), done.stderr


def test_a_map_that_has_no_room_is_an_error(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        ChunkMap.made(small_disk / "map", 100_000)
    assert not (small_disk / "map").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "dray-test", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("left", [b"", bytes(4096 + 33 * CHUNKS), b"x" * (4096 + 33 * CHUNKS)])
def test_what_a_power_cut_left_in_place_of_a_map_is_none(path: Path, left: bytes) -> None:
    path.write_bytes(left)
    made = ChunkMap.made(path, CHUNKS)
    assert made.noted == bytes(CHUNKS)
    made.close()

"""Files of rows in numbered parts: the same rows as in one file, in order, each part of bounded size."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dray.errors import JobFailedError
from dray.requests.model import Outcome
from dray.requests.outputs import parquet as output_parquet
from dray.requests.outputs import series
from dray.requests.outputs.files import Written, write_outputs
from dray.storage.draft import Stage
from dray.storage.layout import is_part
from tests.support.command import ROOT
from tests.unit.requests.test_output import jobs, paged

pytestmark = pytest.mark.unit


def rows_of(count: int, start: int = 0) -> list[Outcome]:
    return [Outcome(start + number, f"row-{start + number}", b'{"a":1}') for number in range(count)]


def written_to(folder: str, rows: list[Outcome], size: int, **options: Any) -> Written:
    return write_outputs(paged(rows, size), directory=folder, **options)


def staged(folder: Path, tag: str = "x1f") -> Stage:
    """As an export has it."""
    return Stage(folder=str(folder / ".dray" / "job"), tag=tag)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".dray" / "job").iterdir())


def content(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def check_manifest(folder: Path, stem: str, form: str, rows: list[Outcome]) -> list[str]:
    """The parts that it lists are what lies there; their names."""
    listed = orjson.loads((folder / f"{stem}.{form}.manifest.json").read_bytes())
    names = [part["name"] for part in listed["parts"]]
    assert names == [f"{stem}-{number:05d}.{form}" for number in range(len(names))]
    assert names == sorted(path.name for path in folder.iterdir() if is_part(path.name) and stem in path.name)
    indexes = iter(row.index for row in rows)
    for part in listed["parts"]:
        whole = (folder / part["name"]).read_bytes()
        assert (len(whole), hashlib.sha256(whole).hexdigest()) == (part["bytes"], part["sha256"])
        own = [next(indexes) for _ in range(part["rows"])]
        assert (part["first_index"], part["last_index"]) == (own[0], own[-1])
    assert next(indexes, None) is None
    assert listed["rows"] == len(rows)
    assert listed["bytes"] == sum(part["bytes"] for part in listed["parts"])
    assert listed["format"] == form
    return names


@given(jobs, st.integers(1, 50), st.integers(1, 50), st.integers(1, 6000))
def test_parts_hold_the_lines_of_the_one_file(rows: list[Outcome], size: int, other: int, most: int) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as several:
        whole = written_to(one, rows, size)
        split = written_to(several, rows, size, part_bytes=most)
        with tempfile.TemporaryDirectory() as again:
            written_to(again, rows, other, part_bytes=most)
            assert content(again) == content(several)  # however they were paged
        for stem in ("output", "errors"):
            lines = (Path(one) / f"{stem}.jsonl").read_bytes()
            assert split.whole(stem).rows == whole.whole(stem).rows
            assert split.whole(stem).size == len(lines)
            own = [row for row in rows if (row.response is not None) == (stem == "output")]
            if len(lines) <= most or len(own) < 2:
                assert not split.parts(stem)
                assert (Path(several) / f"{stem}.jsonl").read_bytes() == lines
                continue
            assert not (Path(several) / f"{stem}.jsonl").exists()
            names = check_manifest(Path(several), stem, "jsonl", own)
            assert split.whole(stem).uri == f"{several}/{stem}-*.jsonl"
            parts = [(Path(several) / name).read_bytes() for name in names]
            assert b"".join(parts) == lines
            for part, following in zip(parts, [*parts[1:], b""], strict=True):
                assert part.endswith(b"\n")
                assert len(part) <= most or part.count(b"\n") == 1
                first = following[: following.find(b"\n") + 1]
                assert not following or len(part) + len(first) > most  # none is shorter than it need be


@settings(max_examples=15)
@given(jobs, st.integers(1, 50), st.integers(1, 50), st.integers(200, 20_000))
def test_parts_of_parquet_are_whole_files(rows: list[Outcome], size: int, other: int, most: int) -> None:
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as several,
        tempfile.TemporaryDirectory() as again,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(output_parquet, "_GROUP_ROWS", 7)
        written_to(one, rows, size, format="parquet")
        split = written_to(several, rows, size, format="parquet", part_bytes=most)
        written_to(again, rows, other, format="parquet", part_bytes=most)
        assert content(again) == content(several)
        for stem in ("output", "errors"):
            whole = parquet.read_table(f"{one}/{stem}.parquet").to_pylist()
            if not split.parts(stem):
                assert parquet.read_table(f"{several}/{stem}.parquet").to_pylist() == whole
                continue
            own = [row for row in rows if (row.response is not None) == (stem == "output")]
            names = check_manifest(Path(several), stem, "parquet", own)
            found = [row for name in names for row in parquet.read_table(f"{several}/{name}").to_pylist()]
            assert found == whole


@pytest.mark.heavy(one_of=3)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(100, 5000)), min_size=1, max_size=5))
@settings(max_examples=30)
def test_no_file_of_another_layout_stays(runs: list[tuple[int, int]]) -> None:
    """Whatever was written before, the folder is as if only the last run had written to it."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as fresh:
        (Path(folder) / "mine.jsonl").write_bytes(b"mine")
        written_to(folder, rows_of(9), 3, format="parquet")
        parts_of_another_format = content(folder)
        for count, most in runs:
            written_to(folder, rows_of(count), 7, part_bytes=most)
        written_to(fresh, rows_of(runs[-1][0]), 7, part_bytes=runs[-1][1])
        assert content(folder) == {**parts_of_another_format, **content(fresh)}


def test_too_many_parts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_PARTS", 3)
    written_to(str(tmp_path), rows_of(3), 2, part_bytes=1)
    with pytest.raises(JobFailedError, match=r"more than 3 files of 1 bytes; give a larger --part-bytes"):
        written_to(str(tmp_path), rows_of(4), 2, part_bytes=1)
    assert len(content(tmp_path)) == 5  # as it was: three parts, their manifest, and errors.jsonl


def test_nothing_of_the_parts_is_published_when_the_rows_end_badly(tmp_path: Path) -> None:
    def pages() -> Iterator[list[Outcome]]:
        yield rows_of(30)
        raise JobFailedError("the store went away")

    with pytest.raises(JobFailedError):
        write_outputs(pages(), directory=str(tmp_path), part_bytes=1024)
    assert content(tmp_path) == {}


def test_an_export_of_many_parts_keeps_few_files_open(tmp_path: Path) -> None:
    opened: list[int] = []

    def count(files: object = None) -> None:
        opened.append(len(list(Path("/proc/self/fd").iterdir())))

    count()
    where: dict[str, Any] = {"part_bytes": 64, "stage": staged(tmp_path), "confirm": count}
    written = written_to(str(tmp_path), rows_of(300), 10, **where)
    before, at_the_end = opened
    assert len(written.files) > 100
    assert at_the_end - before < 8
    assert left_in(tmp_path) == []


_EXPORT = """
import os, signal, sys
from pathlib import Path
from tests.unit.requests.test_parts import rows_of, staged, written_to

def stop(files):
    print("complete", flush=True)
    sys.stdin.read()

folder = Path(sys.argv[1])
written_to(str(folder), rows_of(9), 3, part_bytes=64, stage=staged(folder, sys.argv[2]), confirm=stop)
"""


def begun_export(folder: Path, tag: str) -> subprocess.Popen[str]:
    """An export that has all of its drafts, and waits before it names them."""
    found = subprocess.Popen(
        [sys.executable, "-c", _EXPORT, str(folder), tag],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert found.stdout is not None
    assert found.stdout.readline() == "complete\n"
    return found


@pytest.mark.heavy(one_of=3)
def test_an_export_leaves_the_drafts_of_one_that_lives_and_clears_those_of_a_killed_one(
    tmp_path: Path,
) -> None:
    with begun_export(tmp_path, "xa1") as alive, begun_export(tmp_path, "xb2") as killed:
        old = tmp_path / ".dray" / "job" / "output-00007-xc3.jsonl.part"  # of an earlier version of dray
        old.touch()
        killed.kill()
        killed.wait()
        assert "export-xb2.lock" in left_in(tmp_path)
        written_to(str(tmp_path), rows_of(9), 3, part_bytes=64, stage=staged(tmp_path))
        files = [path for path in tmp_path.iterdir() if path.is_file()]
        left = left_in(tmp_path)
        assert all("-xa1." in name for name in left)
        assert sum(name.endswith(".part") for name in left) == len(files) > 3
        alive.communicate(timeout=60)
        assert alive.returncode == 0
    assert left_in(tmp_path) == []

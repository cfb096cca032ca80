"""What a pattern names on a disk: every match is taken, or refused by its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dray.errors import InputError, Problem
from dray.requests.reading.inputs import expand, pattern_for
from tests.support.sources import source_of

pytestmark = pytest.mark.unit


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


def found(pattern: str) -> list[str]:
    return [ref.uri for ref in expand([pattern])]


def problems(pattern: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        expand([pattern])
    return list(caught.value.problems)


def test_a_link_that_leads_nowhere_is_missing(tmp_path: Path) -> None:
    """As in a cache of a hub that has lost a blob: the job ran without these rows."""
    put(tmp_path, "part-0.jsonl")
    (tmp_path / "part-1.jsonl").symlink_to(tmp_path / "gone")
    [problem] = problems(f"{tmp_path}/*.jsonl")
    assert (problem.code, problem.file) == ("missing_input", f"{tmp_path}/part-1.jsonl")
    assert problem.message == "no such file"


@pytest.mark.parametrize("beside", [(), ("spark/a.parquet",)])
def test_folders_with_the_names_of_files_are_refused_with_what_they_hold(
    tmp_path: Path, beside: tuple[str, ...]
) -> None:
    days = [f"{tmp_path}/spark/day-{number}.parquet" for number in (1, 2)]
    put(tmp_path, *beside, *(f"{day}/part-0.parquet" for day in days))
    told = problems(f"{tmp_path}/spark/*.parquet")
    assert [(one.code, one.file) for one in told] == [("missing_input", day) for day in days]
    assert told[0].message == f"a folder, with 1 .parquet; name its files: '{days[0]}/*.parquet'"


def test_a_pattern_that_names_the_files_below_such_a_folder_has_them(tmp_path: Path) -> None:
    put(tmp_path, "spark/day-1.parquet/part-0.parquet", "spark/other/part-0.parquet")
    names = ["day-1.parquet/part-0.parquet", "other/part-0.parquet"]
    assert found(f"{tmp_path}/spark/**/*.parquet") == [f"{tmp_path}/spark/{name}" for name in names]


def test_folders_of_other_names_are_none_of_the_matches(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", "a.old/b.jsonl")
    assert found(f"{tmp_path}/a*") == [f"{tmp_path}/a.jsonl"]


@pytest.mark.parametrize("pattern", ["[exp]/**/*.jsonl", "[exp]/*/a.jsonl", "[exp]/sub/*.jsonl"])
@pytest.mark.parametrize("whole", [True, False])
def test_the_folders_that_are_there_stand_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, whole: bool
) -> None:
    """As a pattern, ``[exp]`` is another folder: ``e``."""
    put(tmp_path, "[exp]/sub/a.jsonl", "e/sub/a.jsonl")
    monkeypatch.chdir(tmp_path)
    start = f"{tmp_path}/" if whole else ""
    assert found(start + pattern) == [f"{start}[exp]/sub/a.jsonl"]
    assert pattern_for(f"{start}[exp]/sub/out.jsonl", [start + pattern.replace("/a.", "/o*.")]) is not None
    assert pattern_for(f"{start}e/sub/out.jsonl", [start + pattern.replace("/a.", "/o*.")]) is None


def test_a_pattern_without_a_format_names_what_lies_below_such_a_folder(tmp_path: Path) -> None:
    put(tmp_path, "[exp]/sub/a.csv", "[exp]/sub/b.csv", "[exp]/sub/c.jsonl", "e/sub/d.csv")
    with pytest.raises(InputError, match=r"the pattern matches 2 \.csv, 1 \.jsonl"):
        source_of(f"{tmp_path}/[exp]/*/*", prompt_column="q")


class _Stale(AbstractContextManager["_Stale"], Iterator[os.DirEntry[str]]):
    """As a network's disk that went away: the folder opens, and its entries cannot be read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __next__(self) -> os.DirEntry[str]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._path)

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(params=["closed", "stale"])
def unread(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``data`` with three folders, and the second of them, which cannot be read."""
    put(tmp_path / "data", "a/1.jsonl", "b/2.jsonl", "c/d/3.jsonl", ".e/4.jsonl")
    folder, scan, lstat = tmp_path / "data" / "b", os.scandir, Path.lstat

    def scandir(path: str = ".") -> Iterator[os.DirEntry[str]]:
        if Path(path).absolute() == folder:
            if request.param == "stale":
                return _Stale(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    def lstat_closed(path: Path) -> os.stat_result:
        if path.absolute().parent == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return lstat(path)

    monkeypatch.setattr(os, "scandir", scandir)  # the test's user may read all folders
    monkeypatch.setattr(Path, "lstat", lstat_closed)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "pattern", ["data/**/*.jsonl", "data/*/*.jsonl", "data/*/2.jsonl", "**/2.jsonl", "data/**/[0-9].jsonl"]
)
def test_a_folder_that_cannot_be_read_is_told(unread: Path, pattern: str, whole: bool) -> None:
    """The job was completed without its rows."""
    start = f"{unread.parents[1]}/" if whole else ""
    [problem] = problems(start + pattern)
    assert (problem.code, problem.file) == ("unreadable_input", f"{start}data/b")
    assert "the pattern looks into this folder, which cannot be read (" in problem.message
    assert problem.message.endswith("or name the other folders")


@pytest.mark.parametrize("pattern", ["data/a/*.jsonl", "data/c/**/*.jsonl", "data/[ac]/**/*.jsonl"])
def test_one_that_the_pattern_does_not_look_into_is_none_of_its_business(unread: Path, pattern: str) -> None:
    assert found(f"{unread.parents[1]}/{pattern}")


def test_nor_is_one_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the top of a disk there is one that no user may read."""
    put(tmp_path, "lost+found/1.jsonl", "a/1.jsonl")
    scan = os.scandir

    def scandir(path: str = ".") -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert found(f"{tmp_path}/**/*.jsonl") == [f"{tmp_path}/a/1.jsonl"]


def test_links_in_a_ring_are_no_folder_that_cannot_be_read(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jsonl")
    (tmp_path / "a" / "ring").symlink_to("ring")
    (tmp_path / "a" / "gone").symlink_to("nothing")
    assert found(f"{tmp_path}/**/*.jsonl") == [f"{tmp_path}/a/1.jsonl"]

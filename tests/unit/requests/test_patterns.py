"""What a pattern names on a disk: every match is taken, or refused by its name."""

from __future__ import annotations

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

"""Columns that stand in the names of folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import csv, parquet

from dray.requests.reading.partitions import partition_of
from dray.requests.reading.readers import source_digest
from tests.support.sources import source_of
from tests.unit.requests.taking import problems, prompts

pytestmark = pytest.mark.unit

FORMS = ["parquet", "csv", "jsonl"]


def put(folder: Path, form: str, columns: dict[str, list[Any]]) -> None:
    folder.mkdir(parents=True)
    table = pyarrow.table(columns)
    if form == "parquet":
        parquet.write_table(table, folder / "part.parquet")
    elif form == "csv":
        csv.write_csv(table, folder / "part.csv")
    else:
        rows = map(json.dumps, table.to_pylist())
        (folder / "part.jsonl").write_text("\n".join(rows))


@pytest.mark.parametrize("form", FORMS)
def test_folders_say_what_the_files_leave_out(tmp_path: Path, form: str) -> None:
    put(tmp_path / "lang=de" / "day=2024-01-31", form, {"text": ["eins", "zwei"]})
    put(tmp_path / "lang=pt%2FBR" / "day=2024-02-01", form, {"text": ["um"]})
    found = prompts(tmp_path, f"{tmp_path}/**/*.{form}", template="{lang} {day}: {text}")
    assert [prompt for _, prompt in found] == [
        "de 2024-01-31: eins",
        "de 2024-01-31: zwei",
        "pt/BR 2024-02-01: um",
    ]


@pytest.mark.parametrize("form", FORMS)
def test_rows_may_be_made_of_folders_alone(tmp_path: Path, form: str) -> None:
    put(tmp_path / "day=2024-01-31", form, {"text": ["eins", "zwei"]})
    found = prompts(tmp_path, f"{tmp_path}/**/*.{form}", prompt_column="day")
    assert found == [("row-0", "2024-01-31"), ("row-1", "2024-01-31")]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_file_says_itself_counts(tmp_path: Path, form: str) -> None:
    put(tmp_path / "text=folder", form, {"text": ["file"]})
    found = prompts(tmp_path, f"{tmp_path}/*/*.{form}", prompt_column="text")
    assert found == [("row-0", "file")]


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_without_a_value_is_a_row_without_one(tmp_path: Path, form: str) -> None:
    put(tmp_path / "lang=__HIVE_DEFAULT_PARTITION__", form, {"text": ["a"]})
    [problem] = problems(tmp_path, f"{tmp_path}/*/*.{form}", template="{lang} {text}")
    assert (problem.code, problem.field) == ("missing_value", "lang")


def test_another_folder_is_another_input_where_it_is_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / f"lang={name}", "parquet", {"text": ["same"]})

    def digests(template: str) -> set[str]:
        files = [f"{tmp_path}/lang={name}/part.parquet" for name in ("a", "b")]
        return {source_digest(source_of(file, template=template)) for file in files}

    assert len(digests("{lang}: {text}")) == 2
    assert len(digests("{text}")) == 1  # as the names of files


def test_which_folders_are_columns() -> None:
    assert partition_of("s3://bucket/a=1/b%20c=x=y/=z/d=4.csv", ["a", "b c", "", "d"]) == {
        "a": "1",
        "b c": "x=y",
    }

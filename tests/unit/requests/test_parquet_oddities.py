"""What pyarrow cannot give is told by what it is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dray.kinds import Kind
from tests.support.sources import source_of
from tests.unit.requests.taking import problems, take

pytestmark = pytest.mark.unit


def test_a_field_that_is_there_twice_is_no_time(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    twice = pyarrow.StructArray.from_arrays([pyarrow.array([1, 1]), pyarrow.array([2, 2])], names=["x", "x"])
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "kept": twice}), path)
    found = problems(tmp_path, str(path), prompt_column="text", keep_columns=["kept"])
    assert {one.code for one in found} == {"invalid_value"}
    assert "struct<x: int64, x: int64>, which has a field twice in this row" in found[0].message
    assert take(tmp_path, source_of(str(path), kind=Kind.COMPLETION, prompt_column="text")).rows == 2


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_parquet_file_that_was_compressed_as_a_whole_is_to_be_unpacked(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "in.parquet"
    parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    packed = tmp_path / f"in.parquet{ending}"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    [found] = problems(tmp_path, str(packed), prompt_column="text")
    assert found.code == "invalid_parquet"
    assert found.message.endswith("compressed as a whole: unpack it (gzip -d, zstd -d)")
    packed.write_bytes(path.read_bytes())  # only named so, as some name a file with gzip inside
    assert take(tmp_path, source_of(str(packed), kind=Kind.COMPLETION, prompt_column="text")).rows == 1

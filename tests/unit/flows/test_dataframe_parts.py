"""The answers of a DataFrame's job are read back from one file, and from several."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.requests.model import Outcome
from dray.requests.output import write_outputs
from flows.dataframe import _read

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("part_bytes", "several"), [(1024, True), (1 << 20, False)])
def test_rows_of_all_parts_are_read_in_order(tmp_path: Path, part_bytes: int, several: bool) -> None:
    rows = [Outcome(number, f"row-{number}", b'{"text": "%d"}' % number) for number in range(400)]
    place = tmp_path / "a folder [1]"
    written = write_outputs([rows], directory=str(place), format="parquet", part_bytes=part_bytes)
    assert bool(written.parts("output")) is several
    assert list(_read(written.output.uri)["index"]) == list(range(400))
    assert _read(written.errors.uri).empty

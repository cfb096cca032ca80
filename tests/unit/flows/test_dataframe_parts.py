"""The answers of a DataFrame's job are read back from one file, and from several."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from dray.errors import ConfigError
from dray.kinds import output_columns
from dray.requests.model import Outcome
from dray.requests.outputs.files import write_outputs
from dray.requests.outputs.kept import Kept, KeptColumn
from dray.requests.outputs.parquet import ERRORS_SCHEMA, output_schema
from flows.dataframe import _in_order, _read, _remove_others, batch_inference_frame
from flows.parameters import RowOptions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("part_bytes", "several"), [(1024, True), (1 << 20, False)])
def test_rows_of_all_parts_are_read_in_order(tmp_path: Path, part_bytes: int, several: bool) -> None:
    rows = [Outcome(number, f"row-{number}", b'{"text": "%d"}' % number) for number in range(400)]
    place = tmp_path / "a folder [1]"
    written = write_outputs([rows], directory=str(place), format="parquet", part_bytes=part_bytes)
    assert bool(written.parts("output")) is several
    assert list(_read(written.output.uri, output_schema(output_columns()))["index"]) == list(range(400))
    assert _read(written.errors.uri, ERRORS_SCHEMA).empty


def test_kept_columns_stand_beside_those_of_dray_whatever_they_are_called(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text('[0,"mine",1]\n[1,"yours",2]\n')
    columns = [KeptColumn(name="error_code", type="text"), KeptColumn(name="n", type="integer")]
    rows = [Outcome(0, "a", b"{}"), Outcome(1, "b", error_code="poison", error_message="m")]
    kept = Kept(uri=str(tmp_path / "kept"), columns=tuple(columns))
    written = write_outputs([rows], directory=str(tmp_path / "out"), format="parquet", kept=kept)
    result: Any = SimpleNamespace(output=written.output.uri, errors=written.errors.uri)
    frame = _in_order(pandas.DataFrame({"text": ["x", "y"]}, index=[7, 9]), result)
    assert list(frame.columns)[-4:] == ["row_error_code", "n", "error_code", "error_message"]
    assert frame["row_error_code"].to_dict() == {7: "mine", 9: "yours"}
    assert frame["n"].to_dict() == {7: 1, 9: 2}
    assert frame["error_code"].dropna().to_dict() == {9: "poison"}


@pytest.mark.parametrize("second", [Outcome(1, "b", b"{}"), Outcome(1, "b", error_code="poison")])
def test_kept_ids_and_flags_with_a_null_among_them_are_what_they_were(
    tmp_path: Path, second: Outcome
) -> None:
    """As floats, ids of 64 bits are others."""
    big = 1234567890123456789
    (tmp_path / "kept").write_text(f"[0,{big},true]\n[1,null,null]\n[2,{big + 1},false]\n")
    columns = [KeptColumn(name="tweet", type="integer"), KeptColumn(name="seen", type="boolean")]
    rows = [Outcome(0, "a", b"{}"), second, Outcome(2, "c", b"{}")]
    kept = Kept(uri=str(tmp_path / "kept"), columns=tuple(columns))
    written = write_outputs([rows], directory=str(tmp_path / "day=1"), format="parquet", kept=kept)
    result: Any = SimpleNamespace(output=written.output.uri, errors=written.errors.uri)
    frame = _in_order(pandas.DataFrame({"x": [1, 2, 3]}), result)
    assert [str(kind) for kind in frame[["tweet", "seen"]].dtypes] == ["Int64", "boolean"]
    assert frame["tweet"].dropna().to_dict() == {0: big, 2: big + 1}
    assert frame["seen"].dropna().to_dict() == {0: True, 2: False}
    assert frame["score"].dtype == "float64"
    assert "day" not in frame


@pytest.mark.parametrize("there", [".dray/owner.json", "output.parquet"])
def test_a_folder_of_others_is_refused_before_a_frame_is_written_to_it(tmp_path: Path, there: str) -> None:
    place = tmp_path / "out"
    file = place / there
    file.parent.mkdir(parents=True)
    file.write_text('{"job_id": "theirs", "identity": "0123456789abcdef"}')
    frame, rows = pandas.DataFrame({"text": ["a"]}), RowOptions(prompt_column="text")
    with pytest.raises(ConfigError, match="--overwrite"):
        batch_inference_frame(frame, model="any", output=str(place), rows=rows)
    assert [path for path in place.rglob("*") if path.is_file()] == [file]


def test_frames_of_jobs_that_lost_the_folder_leave_it(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / "frame" / name).mkdir(parents=True)
        (tmp_path / "frame" / name / "frame.parquet").touch()
    _remove_others(tmp_path / "frame" / "mine")
    assert [path.name for path in (tmp_path / "frame").iterdir()] == ["mine"]
    _remove_others(tmp_path / "frame")  # as the file of an earlier version lies
    assert (tmp_path / "frame" / "mine" / "frame.parquet").is_file()

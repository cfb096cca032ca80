"""The answers of a DataFrame's job are read back from one file, and from several."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pandas
import pytest
from prefect.context import FlowRunContext

import flows.dataframe
from dray.errors import ConfigError, InputError, Problem
from dray.requests.model import Outcome
from dray.requests.outputs.files import write_outputs
from dray.requests.outputs.kept import Kept, KeptColumn
from flows.dataframe import _in_order, _read, _remove_others, batch_inference_frame
from flows.parameters import JobRequest, RowOptions

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("part_bytes", "several"), [(1024, True), (1 << 20, False)])
def test_rows_of_all_parts_are_read_in_order(tmp_path: Path, part_bytes: int, several: bool) -> None:
    rows = [Outcome(number, f"row-{number}", b'{"text": "%d"}' % number) for number in range(400)]
    place = tmp_path / "a folder [1]"
    written = write_outputs([rows], directory=str(place), format="parquet", part_bytes=part_bytes)
    assert bool(written.parts("output")) is several
    assert list(_read(written.output.uri)["index"]) == list(range(400))
    assert _read(written.errors.uri).empty


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


@pytest.mark.parametrize(
    "outcomes",
    [
        [Outcome(0, "a", b"{}", prompt_tokens=5, completion_tokens=7)],
        [Outcome(0, "a", b"{}", prompt_tokens=5, completion_tokens=7), Outcome(1, "b", error_code="poison")],
        [Outcome(0, "a", error_code="poison")],
    ],
)
def test_tokens_are_whole_numbers_whatever_became_of_the_rows(
    tmp_path: Path, outcomes: list[Outcome]
) -> None:
    written = write_outputs([outcomes], directory=str(tmp_path), format="parquet")
    result: Any = SimpleNamespace(output=written.output.uri, errors=written.errors.uri)
    frame = _in_order(pandas.DataFrame({"x": outcomes}), result)
    tokens = frame[["prompt_tokens", "completion_tokens"]]
    assert [str(kind) for kind in tokens.dtypes] == ["Int64", "Int64"]
    assert tokens.dropna().values.tolist() == [[5, 7]] * (outcomes[0].error_code is None)


class OfPolars:
    """A frame of another library."""

    def to_pandas(self) -> pandas.DataFrame:
        raise AssertionError


FRAME = pandas.DataFrame({"text": ["a", "a"], "error_code": ["b", "b"], "row_error_code": ["c", "c"]})
KEPT: dict[str, Any] = {"prompt_column": "text", "keep_columns": ["error_code", "row_error_code"]}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"frame": OfPolars()}, r"the frame is a .*\.OfPolars, .*; give frame\.to_pandas\(\)$"),
        ({"frame": FRAME["text"]}, r"the frame is a pandas\.Series, .*; give frame\.to_frame\(\)$"),
        ({"frame": [{"text": "a"}]}, r"the frame is a builtins\.list, no pandas\.DataFrame; give one$"),
        ({"output": None}, "output: Input should be a valid string"),
        ({"output": ""}, "output is empty"),
        ({"output": "s3:/bucket/out"}, "did you mean s3://bucket/out"),
        ({"output": "s3://bucket/out"}, "a DataFrame's job needs a local folder"),
        ({"model": 5}, "model 5: Input should be a valid string"),
        ({"rows": {"prompt_colum": "text"}}, r"rows\.prompt_colum: Extra inputs"),
        ({"rows": 5}, "rows 5: Input should be a valid dictionary"),
        ({"sampling": {"extra": {"a": {1}}}}, r"sampling\.extra: a is of the type set"),
        ({"engine": {"name": "other"}}, r"engine\.name: Input should be 'vllm'"),
        ({"rows": RowOptions(**KEPT)}, "'error_code' would be 'row_error_code' in the result, and so would"),
        ({"rows": KEPT | {"keep_columns": ["row_error_message", "error_message"]}}, "'row_error_message'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows.dataframe, "batch_inference", lambda **_: pytest.fail("it runs"))
    given: dict[str, Any] = {"frame": FRAME, "model": "m", "output": "out", "rows": {"prompt_column": "text"}}
    with pytest.raises(ConfigError, match=told):
        batch_inference_frame(**given | wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_late_run_has_the_folder_store_and_id_of_the_day_for_which_it_was_scheduled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry after midnight began the job anew, in the next day's folder."""
    given: list[dict[str, Any]] = []

    def flow(**parameters: Any) -> None:
        given.append(parameters)
        raise InputError([], total=0)

    run = SimpleNamespace(
        id=uuid4(),
        parent_task_run_id=None,
        deployment_id=uuid4(),
        expected_start_time=datetime(2026, 3, 31, 23, 30, tzinfo=UTC),
    )
    monkeypatch.setattr(FlowRunContext, "get", lambda: SimpleNamespace(flow_run=run))
    monkeypatch.setattr(flows.dataframe, "batch_inference", flow)
    with pytest.raises(InputError):
        batch_inference_frame(
            pandas.DataFrame({"text": ["a"]}),
            model="m",
            output=str(tmp_path / "{date}"),
            store=str(tmp_path / "{date}.db"),
            job_id="of-{yesterday}",
            rows=RowOptions(prompt_column="text"),
        )
    (found,) = given
    day = tmp_path / "2026-03-31"
    assert (found["output"], found["store"], found["job_id"]) == (str(day), f"{day}.db", "of-2026-03-30")
    assert day in Path(found["input"]).parents


def refusing(**given: Any) -> None:
    """The flow, whose job finds a problem in each of two rows, and one elsewhere."""
    file = JobRequest.of(**given).anchored().input
    assert isinstance(file, str)
    assert Path(file).is_file()
    told = f"{file}:1 has the same id"
    raise InputError(
        [
            Problem("missing_value", "it is empty", file, 2, "text"),
            Problem("duplicate_custom_id", told, file, 2, "custom_id"),
            Problem("empty_input", "the input holds no row", file),
            Problem("image_missing", "no such file", "/images/a.png", 2),
        ]
    )


@pytest.mark.parametrize("output", ["out", Path("out"), "/{tmp}/out"])
def test_problems_name_rows_of_the_frame_wherever_its_file_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flows.dataframe, "batch_inference", refusing)
    model: Any = tmp_path / "m"
    place: Any = output if isinstance(output, Path) else output.replace("/{tmp}", str(tmp_path))
    rows: Any = {"prompt_column": "text"}
    frame = FRAME.set_axis(["k1", "k2"], axis="index")
    with pytest.raises(InputError) as refused:
        batch_inference_frame(frame, model=model, output=place, rows=rows)
    assert str(refused.value).splitlines() == [
        "row 2 of the frame (index k2) [text]: it is empty",
        "row 2 of the frame (index k2) [custom_id]: row 1 of the frame (index k1) has the same id",
        "the frame: the input holds no row",
        "/images/a.png:2: no such file",
    ]


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

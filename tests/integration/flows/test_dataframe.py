"""A DataFrame in, a DataFrame out."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dray.errors import ConfigError, InputError
from flows.dataframe import batch_inference_frame
from flows.parameters import EngineOptions, RowOptions

pytestmark = pytest.mark.integration

ENGINE = EngineOptions(name="simulated", arguments={"error_on": "REFUSE"})


def test_answers_come_back_in_the_order_of_the_frame(tmp_path: Path) -> None:
    texts = [f"ticket number {n}" for n in range(40)]
    texts[7] = "REFUSE this one"
    ids = [f"t{n}" for n in range(40)]
    ids[9] = "t3"
    frame = pd.DataFrame({"id": ids, "text": texts}, index=range(1000, 960, -1))
    rows = RowOptions(template="Sort this: {text}", id_column="id", skip_invalid=True)

    result = batch_inference_frame(frame, model="any", output=str(tmp_path), rows=rows, engine=ENGINE)

    assert list(result.index) == list(frame.index)
    assert list(result["custom_id"].dropna()) == list(frame["id"].drop(index=991))
    assert result.loc[991, "error_message"] == (
        "row 10 of the frame (index 991) [custom_id]: row 4 of the frame (index 997) has the same custom_id, "
        "'t3'; give each row one of its own"
    )
    assert result.loc[993, "error_code"] == "simulated_error"
    assert result["text"].isna().loc[993]
    answered = result.drop(index=[993, 991])
    assert answered["text"].notna().all()
    assert answered["error_code"].isna().all()
    assert answered["text"].nunique() == 38  # each its own answer, none shifted onto a neighbour
    assert not frame.columns.difference(["id", "text"]).size  # the frame itself is as it was


def test_problems_name_the_rows_of_the_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame({"text": ["a", None, "c"]}, index=[10, 20, 30])
    rows = RowOptions(prompt_column="text")
    with pytest.raises(InputError, match=r"row 2 of the frame \(index 20\) \[text\]: .*empty") as refused:
        batch_inference_frame(frame, model="any", output="out", rows=rows, engine=ENGINE)
    assert "parquet" not in str(refused.value)


@pytest.mark.parametrize(
    ("output", "rows", "problem"),
    [
        ("s3://bucket/out", RowOptions(prompt_column="text"), "local folder"),
        ("out", RowOptions(), "prompt column"),
        ("out", RowOptions(prompt_column="text", template="{text}"), "exclude each other"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, output: str, rows: RowOptions, problem: str) -> None:
    place = output if "://" in output else str(tmp_path / output)
    with pytest.raises(ConfigError, match=problem):
        batch_inference_frame(pd.DataFrame({"text": ["a"]}), model="any", output=place, rows=rows)

"""What Python and notebooks give as options: the store keeps it as JSON, or its field is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from prefect.exceptions import ParameterTypeError
from pydantic import BaseModel, ValidationError

from dray.errors import ConfigError
from flows.batch_inference import batch_inference
from flows.parameters import JobRequest, RowOptions, SamplingOptions

pytestmark = pytest.mark.unit


class Ticket(BaseModel):
    title: str


LOOP: list[Any] = []
LOOP.append(LOOP)


def asked(**options: Any) -> JobRequest:
    return JobRequest.of(**{"input": "in.csv", "model": "m", "output": "out"} | options)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.int64(5), 5),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([1, 2]), [1, 2]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (Path("/data/x"), "/data/x"),
        ({"a": [np.int64(1), (np.array([[0.5]]), Path("x"))]}, {"a": [1, [[[0.5]], "x"]]}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("field", ["sampling.extra", "engine.arguments"])
def test_numbers_of_numpy_and_paths_are_kept_as_plain_values(field: str, given: Any, kept: Any) -> None:
    group, name = field.split(".")
    found = asked(**{group: {name: {"top_k": given}}}).recipe()[group][name]
    assert json.dumps(found) == json.dumps({"top_k": kept})  # json, as the store writes it, has no numpy
    assert type(found["top_k"]) is type(kept)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            Ticket,
            'response_format is the class Ticket; give {"type": "json_schema", '
            '"json_schema": {"name": "Ticket", "schema": Ticket.model_json_schema()}}',
        ),
        (Ticket(title="hidden-word"), "response_format is a Ticket; give its model_dump()"),
        ({"schema": [Ticket]}, "response_format.schema is the class Ticket; give {"),
        (np.int64, "response_format is the class int64, which JSON has not"),
        ({"hidden-word"}, "response_format is of the type set, which JSON has not; give texts, numbers,"),
        (b"hidden-word", "response_format is of the type bytes, "),
        (np.datetime64("2024-01-01"), "response_format is of the type date, "),
        (np.array([1, np.nan]), "a number is not finite"),
        (np.float32("inf"), "a number is not finite"),
        (LOOP, "it cannot be written as JSON (maximum recursion depth"),
    ],
    ids=str,
)
def test_what_json_has_not_is_refused_by_its_field_and_its_type(given: Any, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(sampling={"extra": {"response_format": given}})
    assert str(refused.value).startswith(f"sampling.extra: {told}")
    assert "hidden-word" not in str(refused.value)
    with pytest.raises(ValidationError):
        SamplingOptions(extra={"response_format": given})


def test_paths_are_texts_for_the_request_and_for_prefect() -> None:
    given = {
        "input": [Path("in.csv"), "b.csv"],
        "model": Path("m"),
        "output": Path("out"),
        "store": Path("s.db"),
    }
    texts = {"input": ["in.csv", "b.csv"], "model": "m", "output": "out", "store": "s.db"}
    rows = {"image_root": Path("images")}
    parameters = batch_inference.validate_parameters(given | {"rows": rows})
    assert parameters["rows"] == RowOptions(image_root="images")
    assert {name: parameters[name] for name in texts} == texts
    assert asked(**given, rows=rows) == asked(**texts, rows={"image_root": "images"})
    assert asked(input=Path("in.csv")).input == "in.csv"
    with pytest.raises(ConfigError, match="did you mean s3://bucket/in"):
        asked(input=Path("s3://bucket/in.csv")).anchored()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"input": 5}, "input 5: Input should be a valid string, or: Input should be a valid list"),
        ({"input": [5, 6]}, "input: Input should be a valid string"),
        (
            {"dedupe": "hidden-word"},
            "dedupe: Input should be a valid boolean, .*, or: Input should be 'always'",
        ),
        ({"rows": {"keep_columns": [1, 2]}}, "rows.keep_columns 1: Input should be a valid string"),
    ],
)
def test_all_that_a_field_may_be_is_said_once(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{told}$") as refused:
        asked(**options)
    assert "hidden-word" not in str(refused.value)


def test_a_frame_as_the_input_is_refused_with_the_flow_that_takes_it() -> None:
    """pydantic takes its columns for a list of texts."""
    frame = pandas.DataFrame({"a": [1]})
    for given in (frame, [frame]):
        with pytest.raises(ConfigError, match=r"^input: .*flows\.dataframe\.batch_inference_frame$"):
            asked(input=given)
    with pytest.raises(ParameterTypeError, match=r"input: .*flows\.dataframe\.batch_inference_frame$"):
        batch_inference.validate_parameters({"input": frame, "model": "m", "output": "out"})

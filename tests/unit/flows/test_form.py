"""The form that Prefect's UI makes of the flow's parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema, parameters_to_args_kwargs
from pydantic import BaseModel

from dray.errors import ConfigError
from flows import batch_inference as flow_module
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions, JobRequest, RowOptions, SamplingOptions

pytestmark = pytest.mark.unit

SCHEMA: dict[str, Any] = parameter_schema(batch_inference).model_dump()
FORMS = (RowOptions, SamplingOptions, EngineOptions)


def test_only_what_a_job_cannot_do_without_is_required() -> None:
    assert SCHEMA["required"] == ["input", "model", "output"]


def test_the_required_and_the_usual_fields_come_first_and_groups_are_closed() -> None:
    fields = sorted(SCHEMA["properties"], key=lambda name: SCHEMA["properties"][name]["position"])
    usual = ["prompt_column", "system_prompt", "max_tokens", "temperature", "replicas"]
    assert fields[:8] == [*SCHEMA["required"], *usual]
    for group in ("rows", "sampling", "engine"):
        field = SCHEMA["properties"][group]
        assert "default" not in field or field["default"] is None  # the UI opens what has values
        assert {"type": "null"} in field["anyOf"]


def test_a_usual_field_goes_into_its_group() -> None:
    request = asked(rows=RowOptions(id_column="id"), prompt_column="text", system_prompt=None)
    assert request.rows == RowOptions(id_column="id", prompt_column="text")
    assert asked(engine={"replicas": 2}, replicas=2).engine.replicas == 2
    assert asked(rows=None, sampling=None, engine=None) == asked()


def test_a_field_that_is_given_twice_with_two_values_is_refused_and_not_quoted() -> None:
    with pytest.raises(
        ConfigError, match=r"^system_prompt is given twice, with two values: by itself, and in rows$"
    ):
        asked(rows=RowOptions(system_prompt="secret"), system_prompt="other")


def test_a_field_that_is_given_again_among_the_other_fields_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^sampling.extra: sets max_tokens, .* keep one of the two values$"
    ):
        asked(max_tokens=6, sampling={"extra": {"max_tokens": 5, "stop": ["\n"]}})
    assert asked(max_tokens=6, sampling={"extra": {"max_tokens": 6}}).sampling.fields() == {"max_tokens": 6}


def test_a_usual_field_is_checked_as_in_its_group() -> None:
    with pytest.raises(ConfigError, match=r"^temperature -1: .*greater than or equal to 0"):
        asked(temperature=-1)


def test_a_text_that_cannot_be_is_not_quoted() -> None:
    with pytest.raises(ConfigError, match=r"^max_tokens: .*integer") as refused:
        asked(max_tokens="hidden-word")
    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize("given", [("", "m", "out"), (["in.csv", ""], "m", "out"), ("in.csv", "m", "")])
def test_an_empty_place_is_not_taken_for_the_working_directory(given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"^(input|output) is empty: name a path"):
        JobRequest.of(*given)


@pytest.mark.parametrize("name", ["store", "cluster", "objects", "plan", "rows.image_root", "rows.query"])
def test_a_variable_that_is_not_set_is_not_taken_for_a_value(name: str) -> None:
    """Rows could read below an image_root that is the working directory."""
    group, _, field = name.rpartition(".")
    with pytest.raises(ConfigError, match=rf"^{name}: it is empty: leave it out"):
        asked(**({group: {field: ""}} if group else {field: ""}))


def test_the_flow_takes_the_fields_of_the_request_by_position_or_by_name() -> None:
    """Prefect passes those without a default by position, and the others by name."""
    names = list(JobRequest.model_fields)
    assert list(inspect.signature(batch_inference).parameters) == names
    bound = inspect.signature(batch_inference).bind("in.csv", "m", "out", "text")
    assert bound.arguments == {"input": "in.csv", "model": "m", "output": "out", "prompt_column": "text"}
    parameters = batch_inference.validate_parameters(bound.arguments | {"rows": {"id_column": "id"}})
    values, options = parameters_to_args_kwargs(batch_inference.fn, parameters)
    assert JobRequest.of(*values, **options).rows == RowOptions(prompt_column="text", id_column="id")


def test_python_runs_the_flow_from_its_own_file() -> None:
    """Prefect finds the flow by the file that defines it, and takes its hash as the flow's version."""
    assert inspect.getsourcefile(batch_inference.fn) == flow_module.__file__


def test_every_parameter_says_what_it_is() -> None:
    fields = dict(SCHEMA["properties"])
    for form in FORMS:
        fields |= {f"{form.__name__}.{name}": field for name, field in properties(form).items()}
    assert [name for name, field in fields.items() if not field.get("description")] == []


@pytest.mark.parametrize("form", FORMS)
def test_fields_carry_their_own_names_in_the_order_of_the_code(form: type[BaseModel]) -> None:
    fields = properties(form)
    assert list(fields) == list(form.model_fields)
    assert [field["title"] for field in fields.values()] == list(fields)
    assert [field["position"] for field in fields.values()] == list(range(len(fields)))


@pytest.mark.parametrize("form", FORMS)
def test_a_misspelled_field_is_refused(form: type[BaseModel]) -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        form(no_such_field=1)


def test_a_choice_is_a_list_to_choose_from() -> None:
    assert properties(EngineOptions)["name"]["enum"] == ["vllm", "simulated"]
    assert SCHEMA["properties"]["format"]["enum"] == ["jsonl", "parquet"]


def asked(**options: Any) -> JobRequest:
    return JobRequest.of("in.csv", "m", "out", **options)


def properties(form: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["definitions"][form.__name__]["properties"]
    return found

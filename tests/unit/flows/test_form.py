"""The form that Prefect's UI makes of the flow's parameters."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema

from dray.errors import ConfigError
from flows.batch_inference import batch_inference
from flows.parameters import EngineOptions, RowOptions, SamplingOptions, filled

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
    rows = filled(RowOptions(id_column="id"), prompt_column="text", system_prompt=None)
    assert rows == RowOptions(id_column="id", prompt_column="text")
    assert filled(EngineOptions(replicas=2), replicas=2).replicas == 2


def test_a_field_that_is_given_twice_with_two_values_is_refused_and_not_quoted() -> None:
    with pytest.raises(
        ConfigError, match=r"^system_prompt is given twice, with two values: by itself, and in rows$"
    ):
        filled(RowOptions(system_prompt="secret"), system_prompt="other")


def test_a_usual_field_is_checked_as_in_its_group() -> None:
    with pytest.raises(ConfigError, match=r"^temperature: .*greater than or equal to 0"):
        filled(SamplingOptions(), temperature=-1)


def test_every_parameter_says_what_it_is() -> None:
    fields = dict(SCHEMA["properties"])
    for form in FORMS:
        fields |= {f"{form.__name__}.{name}": field for name, field in properties(form).items()}
    assert [name for name, field in fields.items() if not field.get("description")] == []


@pytest.mark.parametrize("form", FORMS)
def test_fields_carry_their_own_names_in_the_order_of_the_code(form: type) -> None:
    fields = properties(form)
    assert list(fields) == list(form.model_fields)
    assert [field["title"] for field in fields.values()] == list(fields)
    assert [field["position"] for field in fields.values()] == list(range(len(fields)))


@pytest.mark.parametrize("form", FORMS)
def test_a_misspelled_field_is_refused(form: type) -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        form(no_such_field=1)


def test_a_choice_is_a_list_to_choose_from() -> None:
    assert properties(EngineOptions)["name"]["enum"] == ["vllm", "simulated"]
    assert SCHEMA["properties"]["format"]["enum"] == ["jsonl", "parquet"]


def properties(form: type) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["definitions"][form.__name__]["properties"]
    return found

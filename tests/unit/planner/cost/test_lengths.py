"""The context that an engine starts with, where its GPUs do not hold a request of the model's length."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dray.planner.catalogue import load_catalogue
from dray.planner.cost import Demand, ModelledReplica, PlanLimits, Plans, Setting, plans
from dray.planner.cost.memory import kv_capacity, length_that_fits, missing_bytes
from dray.planner.models import model_facts
from tests.support.model_configs import LLAMA_8B
from tests.support.planning import demands, replicas

pytestmark = pytest.mark.unit

TODAY = date(2026, 11, 24)
JOB = Demand(rows=10_000, input_tokens=2000, output_tokens=100)


def planned(demand: Demand = JOB, **limits: Any) -> Plans:
    return plans(demand, model_facts(LLAMA_8B), load_catalogue(), PlanLimits(**limits), today=TODAY)


def test_an_l4_starts_with_less_than_llamas_context() -> None:
    """24 GB less 16.1 of weights hold some 26,000 tokens of 128 KiB; vLLM wants room for 131,072."""
    found = planned(hardware=("g6.xlarge",)).plans
    (length,) = {plan.setting.max_model_len for plan in found}
    assert length is not None and 12_000 < length < 20_000
    for plan in found:
        assert plan.setting.arguments["max_model_len"] == length
        assert f"max_model_len={length}" in " ".join(plan.notes)
    for plan in planned(hardware=("l40s", "h100")).plans:
        assert "max_model_len" not in plan.setting.arguments


def test_it_leaves_room_for_rows_that_are_longer_than_was_guessed() -> None:
    (length,) = {
        plan.setting.max_model_len
        for plan in planned(replace(JOB, longest_tokens=14_000), hardware=("g6.xlarge",)).plans
    }
    assert length is not None and 21_000 <= length < 23_000


def test_what_the_user_names_must_fit() -> None:
    kept = planned(hardware=("g6.xlarge",), max_model_len=8192).plans
    assert {plan.setting.max_model_len for plan in kept} == {8192}
    assert not any("max_model_len" in note for plan in kept for note in plan.notes)
    found = planned(hardware=("g6.xlarge",), max_model_len=65_536, max_machines=1)
    assert found.plans == ()
    assert "One L4 lacks" in found.why


@pytest.mark.parametrize(("layers", "held"), [(32, 32), (33, 36), (35, 36), (36, 36)])
def test_the_largest_stage_of_a_pipeline_bounds_the_cache(layers: int, held: int) -> None:
    """33 layers on four stages are 9, 8, 8 and 8: each GPU must hold what that with 9 does."""
    model = model_facts(LLAMA_8B | {"num_hidden_layers": layers})
    device = load_catalogue().devices()["L4"]
    setting = Setting(pipeline_parallel=4)
    per_device = (kv_capacity(model, device, setting, JOB) + model.weight_bytes) * held / layers / 4
    even = model_facts(LLAMA_8B | {"num_hidden_layers": 32})
    assert per_device == pytest.approx((kv_capacity(even, device, setting, JOB) + even.weight_bytes) / 4)


@given(replicas(), demands(), st.integers(1, 10**7))
def test_the_length_that_fits_is_the_longest(replica: ModelledReplica, demand: Demand, most: int) -> None:
    model = replace(replica.model, max_length=most)

    def missing(length: float) -> float:
        request = replace(demand, longest_tokens=length)
        return missing_bytes(model, replica.device, replica.setting, request)

    assume(demand.mean_total <= most)
    found = length_that_fits(model, replica.device, replica.setting, demand)
    assert 0 <= found <= most
    if found >= demand.mean_total:
        assert missing(found) <= 0
    if found < most:
        assert missing(found + 1) > 0

"""Plans of a job: order, limits, refusals, and the sentence why."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.planner.catalogue import Measured, calibrated, load_catalogue
from dray.planner.cost import Demand, Phi, PlanLimits, Plans, best_of_each, plans
from dray.planner.models import model_facts
from tests.support.model_configs import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, LLAMA_405B, QWEN3_235B_A22B
from tests.support.planning import demands, models

pytestmark = pytest.mark.unit

TODAY = date(2026, 11, 24)
CATALOGUE = load_catalogue()
FP8_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8_COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        }
    },
}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
JOB = Demand(rows=1_000_000, input_tokens=2000, output_tokens=100, hit_share=0.8)


def _experts_of(width: int, quantization: dict[str, Any]) -> dict[str, Any]:
    """Qwen3 235B with experts of this width."""
    return QWEN3_235B_A22B | {"moe_intermediate_size": width, "quantization_config": quantization}


def planned(config: dict[str, Any] = LLAMA_8B, demand: Demand = JOB, **limits: Any) -> Plans:
    return plans(demand, model_facts(config), CATALOGUE, PlanLimits(**limits), today=TODAY)


def test_the_cheapest_is_first_and_is_explained() -> None:
    found = planned(hardware=("g6e.*", "p5.4xlarge"), spot=False)
    dollars = [plan.dollars.likely for plan in found.plans]
    assert dollars == sorted(dollars)
    assert found.why.startswith(f"1 x {found.plans[0].instance.name} on demand is cheapest: $")
    assert found.why.count(".") >= 1


def test_of_equal_plans_the_smallest_batch_is_first() -> None:
    """22 sequences fit, so all of these are as fast: places that are never taken cost memory."""
    found = planned(
        demand=Demand(rows=100_000, input_tokens=1024, output_tokens=128), hardware=("g6.xlarge",)
    )
    first = [plan for plan in found.plans if plan.dollars == found.plans[0].dollars]
    sizes = [(plan.setting.max_num_seqs, plan.setting.max_num_batched_tokens) for plan in first]
    assert sizes == [(64, 2048), (64, 8192), (256, 2048), (256, 8192), (1024, 2048), (1024, 8192)]


def test_a_checkpoint_of_fp32_runs_as_bf16_on_gpus_and_as_it_is_on_processors() -> None:
    """vLLM's dtype auto makes bf16 of it on CUDA, on a GPU at hand as well; dray keeps fp32 on processors."""
    full = LLAMA_8B | {"torch_dtype": "float32"}
    found, half = planned(full, hardware=("g6e.xlarge",)), planned(hardware=("g6e.xlarge",))
    assert [plan.dollars for plan in found.plans] == [plan.dollars for plan in half.plans]
    assert {(plan.setting.weights, plan.setting.kv) for plan in found.plans} == {("bf16", "bf16")}
    for gpu, kept in ((False, "fp32"), (True, "bf16")):
        own = calibrated(
            Measured(
                name="own", gemm={"bf16": 1e12, "fp32": 1e12}, bandwidth=1e11, memory=256e9, step=0.1,
                prompt=1e-5, day=TODAY, gpu=gpu,
            )
        )  # fmt: skip
        catalogue = CATALOGUE.with_instance(own)
        found = plans(JOB, model_facts(full), catalogue, PlanLimits(hardware=("own",)), today=TODAY)
        assert {(plan.setting.weights, plan.setting.kv) for plan in found.plans} == {(kept, kept)}


@pytest.mark.parametrize(
    ("config", "splits", "reason"),
    [
        (
            LLAMA_8B | {"intermediate_size": 2560, "quantization_config": FP8_BLOCKS},
            {1, 2, 4},
            "MLPs of 2,560",
        ),
        (_experts_of(2560, FP8_COMPRESSED), {1, 2, 4}, "Experts of 2,560 in blocks of 128"),
        (_experts_of(2560, FP8_BLOCKS), {1, 2, 4, 8}, None),
        (_experts_of(1408, FP8_BLOCKS), {1, 2, 4}, "Experts of 1,408 in blocks of 32"),
        (_experts_of(768, GPTQ), {1, 2, 4, 8}, None),
        (_experts_of(768, GPTQ | {"quant_method": "awq"}), {1, 2, 4, 8}, None),
        (_experts_of(768, GPTQ | {"group_size": 16}), {1, 2, 4, 8}, None),
        (_experts_of(1536, FP8_BLOCKS | {"weight_block_size": [128, 64]}), {1, 2, 4}, "blocks of 128"),
        (LLAMA_8B | {"num_key_value_heads": 6, "num_attention_heads": 24, "head_dim": 128}, {1, 2}, "6 key"),
        (LLAMA_8B, {1, 2, 4, 8}, None),
    ],
)
def test_splits_that_vllm_refuses_are_not_named(
    config: dict[str, Any], splits: set[int], reason: str | None
) -> None:
    found = planned(config, hardware=("p5en.48xlarge",))
    refused = {one.setting.tensor_parallel for one in found.refusals if one.setting and "split" in one.reason}
    assert {1, 2, 4, 8} - refused == splits
    assert reason is None or any(reason in one.reason for one in found.refusals)


def test_a_split_that_cannot_be_is_refused_for_what_the_model_is() -> None:
    """And not for the devices of an instance that has too few of them for it."""
    found = planned(_experts_of(2560, FP8_COMPRESSED), tensor_parallel=8)
    assert found.why == (
        "No configuration can run. Experts of 2,560 in blocks of 128 cannot be split over 8 devices."
    )


def test_eight_answers_cost_what_eight_requests_with_one_prefix_do() -> None:
    """In dollars and seconds; figures for each request are those of the rows."""
    hardware: Any = {"hardware": ("g6e.xlarge",)}
    rows = Demand(
        rows=10_000, input_tokens=1600, output_tokens=800, sequences=8, answers=8,
        longest_output=100, longest_tokens=1700,
    )  # fmt: skip
    alone = Demand(
        rows=80_000, input_tokens=1600, output_tokens=100, hit_share=7 / 8,
        longest_output=100, longest_tokens=1700,
    )  # fmt: skip
    [of_rows, *_], [of_all, *_] = (
        planned(demand=rows, **hardware).plans,
        planned(demand=alone, **hardware).plans,
    )
    assert (of_rows.dollars, of_rows.seconds) == (of_all.dollars, of_all.seconds)
    assert (of_rows.rows, of_all.rows) == (10_000, 80_000)
    assert of_rows.requests_per_second.likely == pytest.approx(of_all.requests_per_second.likely / 8)
    assert of_rows.tokens == 10_000 * 2400


@pytest.mark.parametrize(("tokens", "seqs"), [(32, {32}), (512, {64, 256, 512}), (8192, {64, 256, 1024})])
def test_no_step_has_more_sequences_than_tokens(tokens: int, seqs: set[int]) -> None:
    found = planned(hardware=("g6e.xlarge",), max_num_batched_tokens=(tokens,)).plans
    assert {plan.setting.max_num_seqs for plan in found} == seqs


def test_the_whole_catalogue_gives_thousands_of_plans() -> None:
    found = planned(weights=("bf16", "fp8"))
    assert len(found.plans) > 1000


def test_a_deadline_is_kept_with_more_machines() -> None:
    slow = planned(hardware=("g6e.xlarge",), spot=False).plans[0]
    deadline = slow.seconds.likely / 5.5
    found = planned(hardware=("g6e.xlarge",), spot=False, deadline=deadline)
    assert all(plan.seconds.likely <= deadline for plan in found.plans)
    assert found.plans[0].machines in (6, 7)
    assert "within" in found.why


def test_an_impossible_deadline_names_the_nearest() -> None:
    found = planned(deadline=60)
    assert found.plans == ()
    fastest, cheapest = found.nearest
    assert fastest.seconds.likely <= cheapest.seconds.likely
    assert cheapest.dollars.likely <= fastest.dollars.likely
    assert "No plan with at most 8 machines takes at most 1 min" in found.why
    assert fastest.instance.name in found.why


def test_an_impossible_budget_names_the_nearest() -> None:
    found = planned(budget=0.01)
    assert found.plans == ()
    assert "costs at most $0.01" in found.why
    assert found.nearest[1].dollars.likely == min(plan.dollars.likely for plan in planned().plans)


def test_a_budget_is_kept() -> None:
    found = planned(budget=20)
    assert found.plans
    assert max(plan.dollars.likely for plan in found.plans) <= 20


def test_a_model_that_fits_nowhere_says_what_the_nearest_lacks() -> None:
    found = planned(LLAMA_405B, hardware=("g6e.12xlarge", "l4"), max_machines=1)
    assert found.plans == found.nearest == ()
    assert "The model fits nowhere. Nearest is g6e.12xlarge: 4 x L40S lack" in found.why
    least = min(one.missing for one in found.refusals)
    assert f"{least / 1e9:,.1f} GB" in found.why


def test_each_split_that_cannot_run_is_refused_once_with_a_reason() -> None:
    found = planned(LLAMA_70B, hardware=("p5.48xlarge",))
    refused = [one.setting for one in found.refusals]
    ran = {(plan.setting.tensor_parallel, plan.setting.pipeline_parallel) for plan in found.plans}
    assert [(one.tensor_parallel, one.pipeline_parallel) for one in refused if one] == [(1, 1)]
    assert not ran & {(1, 1)}
    assert all(one.missing > 0 and one.reason.endswith(".") for one in found.refusals)


def test_a_model_of_experts_gets_plans() -> None:
    found = planned(DEEPSEEK_V3, hardware=("p5en.*", "p6*"))
    assert {plan.setting.devices for plan in found.plans} >= {8}


def test_a_request_longer_than_the_model_takes() -> None:
    found = planned(demand=replace(JOB, longest_tokens=200_000))
    assert "200,000 tokens, the model takes 131,072" in found.why


def test_heads_that_cannot_be_split() -> None:
    found = plans(
        JOB, model_facts({**LLAMA_8B, "num_attention_heads": 34, "num_key_value_heads": 2, "head_dim": 128}),
        CATALOGUE, PlanLimits(hardware=("p5.48xlarge",)), today=TODAY,
    )  # fmt: skip
    assert any("34 attention heads cannot be split over 4 devices" in one.reason for one in found.refusals)


def test_old_prices_are_said_and_widen_the_interval() -> None:
    day = date(2026, 2, 10)
    limits = PlanLimits(hardware=("g6e.xlarge",), spot=False)
    fresh = plans(JOB, model_facts(LLAMA_8B), CATALOGUE, limits, today=day).plans[0]
    old = plans(JOB, model_facts(LLAMA_8B), CATALOGUE, limits, today=TODAY).plans[0]
    assert old.dollars.likely == fresh.dollars.likely
    assert old.dollars.high > fresh.dollars.high
    assert old.dollars.low < fresh.dollars.low
    assert not fresh.notes
    assert any("297 days old" in note for note in old.notes)


def test_prices_of_the_day_hold() -> None:
    found = plans(JOB, model_facts(LLAMA_8B), CATALOGUE, PlanLimits(), today=date(2024, 9, 30))
    assert {plan.instance.name for plan in found.plans} >= {"g6e.xlarge", "p5.48xlarge"}
    assert not any(plan.spot for plan in found.plans)
    assert any(
        one.instance == "g7e.2xlarge" and "give one of your own for g7e.2xlarge" in one.reason
        for one in found.refusals
    )


def test_the_users_price_stands_for_the_catalogues() -> None:
    found = planned(hardware=("g7e.2xlarge",), spot=False, prices={"g7e.2xlarge": 2.10})
    assert {(plan.price.likely, plan.spot) for plan in found.plans} == {(2.10, False)}
    assert not any("days old" in note for plan in found.plans for note in plan.notes)


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ({"g6.xlarge": 0.7}, {(False, 0.7)}),
        ({"g6.xlarge:spot": 0.2}, {(True, 0.2)}),
        ({"g6.xlarge": 0.7, "g6.xlarge:spot": 0.2}, {(False, 0.7), (True, 0.2)}),
    ],
)
def test_a_price_of_the_users_is_that_of_its_market(
    prices: dict[str, float], expected: set[tuple[bool, float]]
) -> None:
    """The other market keeps the catalogue's price; a note on an old one says how to give another."""
    found = planned(hardware=("g6.xlarge",), prices=prices).plans
    assert {plan.spot for plan in found} == {False, True}
    assert {(plan.spot, plan.price.likely) for plan in found if plan.price.source == "user"} == expected
    late = plans(
        JOB, model_facts(LLAMA_8B), CATALOGUE, PlanLimits(hardware=("g6.xlarge",)), today=date(2027, 9, 1)
    )
    told = {plan.spot: note for plan in late.plans for note in plan.notes if "days old" in note}
    assert told[True].endswith("give one of your own: --price g6.xlarge:spot=DOLLARS.")
    assert told[False].endswith("give one of your own: --price g6.xlarge=DOLLARS.")


def test_figures_without_a_source_are_said() -> None:
    l4 = planned(hardware=("g6.xlarge",), spot=False).plans[0]
    assert any(note.startswith("L4: ") for note in l4.notes)
    assert "figures without a source" in l4.phi.reason


def test_a_host_too_small_for_the_weights_is_said() -> None:
    found = planned(LLAMA_70B, hardware=("g7e.2xlarge",), weights=("fp8",))
    assert all(
        any("69 GB of memory: the weights' 73 GB" in note for note in one.notes) for one in found.plans
    )
    assert found.plans


def test_phi_of_a_measured_device_is_used() -> None:
    measured = Phi(likely=0.5, low=0.48, high=0.52, reason="12 runs")

    def phi(device: str, weights: str) -> Phi:
        assert (device, weights) == ("L40S", "bf16")
        return measured

    limits = PlanLimits(hardware=("g6e.xlarge",), spot=False)
    found = plans(JOB, model_facts(LLAMA_8B), CATALOGUE, limits, today=TODAY, phi=phi)
    assert {plan.phi for plan in found.plans} == {measured}
    work = planned(hardware=("g6e.xlarge",), spot=False).plans[0].time.work
    assert found.plans[0].time.work == pytest.approx(work * 0.85 / 0.5)


def test_a_calibrated_machine_is_an_entry_like_any_other() -> None:
    here = Measured(name="here", gemm={"fp32": 5e10}, bandwidth=1e10, step=0.002, memory=8e9, day=TODAY)
    small = {"num_hidden_layers": 4, "hidden_size": 160, "intermediate_size": 448, "vocab_size": 1536}
    heads = {"num_attention_heads": 5, "num_key_value_heads": 5}
    config = {**LLAMA_8B, **small, **heads, "torch_dtype": "float32"}
    catalogue = CATALOGUE.with_instance(calibrated(here))
    job = replace(JOB, rows=1000)
    found = plans(job, model_facts(config), catalogue, PlanLimits(hardware=("here",)), today=TODAY)
    first = found.plans[0]
    assert first.dollars.likely == 0
    assert first.machines == 1
    assert first.time.cold_start < 31
    assert first.rate.step.host >= 0.002


def test_one_row_of_each_hardware_for_a_table() -> None:
    found = planned().plans
    table = best_of_each(found)
    keys = [(plan.instance.name, plan.spot, plan.machines) for plan in table]
    assert len(keys) == len(set(keys))
    assert table[0] == found[0]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"hardware": ("g6e.xlrage",)}, "no hardware 'g6e.xlrage'; the nearest is g6e.xlarge"),
        ({"hardware": ("H1000",)}, "the nearest is H100"),
        ({"prices": {"L40S": 1.0}}, "no hardware 'L40S'"),
        ({"prices": {"g5.xlarge": -1.0}}, "price of g5.xlarge"),
        ({"deadline": 0.0}, "deadline is 0"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"weights": ("fp7",)}, "format 'fp7'; known are"),
        ({"kv": ("int4",)}, "format 'int4'"),
        ({"max_num_seqs": ()}, "max_num_seqs"),
        ({"max_machines": 0}, "max_machines"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
    ],
)
def test_limits_that_cannot_be_used_are_named(limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(**limits)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 0),
        ("input_tokens", 0.0),
        ("output_tokens", float("inf")),
        ("hit_share", 1.1),
        ("output_error", -1.0),
    ],
)
def test_demands_that_cannot_be_are_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"demand: {field} is"):
        replace(JOB, **{field: value})


def test_phi_must_be_an_interval() -> None:
    with pytest.raises(ConfigError, match=r"phi is 0\.9 to 0\.5"):
        Phi(likely=0.8, low=0.9, high=0.5, reason="")


@pytest.mark.heavy(one_of=3)
@settings(max_examples=25)
@given(demands(), models(), st.floats(1, 1e7), st.floats(0.01, 1e5))
def test_no_valid_input_fails(demand: Demand, model: Any, deadline: float, budget: float) -> None:
    limits = PlanLimits(deadline=deadline, budget=budget, max_num_seqs=(256,), max_num_batched_tokens=(8192,))
    found = plans(demand, model, CATALOGUE, limits, today=TODAY)
    assert found.why.endswith(".")
    assert found.plans or found.nearest or found.refusals
    for plan in found.plans:
        assert plan.seconds.likely <= deadline
        assert plan.dollars.likely <= budget
        assert plan.dollars.low <= plan.dollars.likely <= plan.dollars.high

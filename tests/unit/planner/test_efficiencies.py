"""Phi from finished runs: long runs count, short ones hardly; other versions and models widen the bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from math import exp
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.vllm_adapter.described import config_of
from dray.planner.catalogue import known_catalogue, load_catalogue
from dray.planner.cost import PRIOR, Demand, PlanLimits, Setting, plans
from dray.planner.efficiencies import learned, learned_lengths, model_key, start_seconds, with_starts
from dray.planner.measured_run import Setup, expected_seconds, forecast, instance_of, measured_phi, setup_of
from dray.planner.models import model_facts, read_model
from dray.planner.workload import AtLeast, Learned
from dray.store import Efficiency
from tests.support.model_configs import LLAMA_8B, LLAMA_70B

pytestmark = pytest.mark.unit

MODEL = read_model(Path(__file__).parents[3] / "examples/tickets/model")
RUN = Efficiency(
    job="a", epoch=1, model=model_key(MODEL), weights="bf16", device="L40S", engine="vllm", version="0.32.0",
    phi=0.9, seconds=600, rows=10_000, start_seconds=70, measured_at=1,
)  # fmt: skip


def test_without_a_run_there_is_the_prior() -> None:
    phi = learned([RUN], MODEL, version="0.32.0")
    assert phi("H100", "bf16") is PRIOR
    assert phi("L40S", "fp8") is PRIOR


def test_a_long_run_counts_and_a_short_one_hardly() -> None:
    short = replace(RUN, job="b", phi=0.2, seconds=1, rows=30)
    found = learned([short, RUN], MODEL, version="0.32.0")("L40S", "bf16")
    assert found.likely == pytest.approx(0.9, rel=0.05)
    assert not found.assumed
    assert found.low < 0.9 < found.high


def test_more_runs_make_it_surer() -> None:
    one = learned([RUN], MODEL)("L40S", "bf16")
    many = learned([replace(RUN, job=str(n)) for n in range(10)], MODEL)("L40S", "bf16")
    assert many.high - many.low < one.high - one.low
    scattered = [replace(RUN, job=str(n), phi=0.9 * exp(0.3 * (-1) ** n)) for n in range(10)]
    loose = learned(scattered, MODEL)("L40S", "bf16")
    assert loose.high / loose.low > many.high / many.low


def test_another_version_is_used_and_said() -> None:
    same = learned([RUN], MODEL, version="0.32.0")("L40S", "bf16")
    other = learned([RUN], MODEL, version="0.33.0")("L40S", "bf16")
    assert other.likely == same.likely
    assert other.low < same.low
    assert other.high > same.high
    assert "0.32.0, not 0.33.0" in other.reason


def test_another_model_is_used_last() -> None:
    foreign = replace(RUN, model="llama 32x4096 8030000000", phi=0.5)
    alone = learned([foreign], MODEL)("L40S", "bf16")
    assert alone.likely == pytest.approx(0.5)
    assert "other models" in alone.reason
    assert learned([foreign, RUN], MODEL)("L40S", "bf16").likely == pytest.approx(0.9)


def test_answers_that_were_cut_tell_the_least_length_alone() -> None:
    """A pilot with few max_tokens made a later plan as short as itself, and sure of it."""
    cut = replace(RUN, shape="s", output_tokens=16.0, cut=True)
    assert learned_lengths([cut], MODEL, "s") == AtLeast(mean=16.0, jobs=1)
    whole = learned_lengths([cut, replace(RUN, job="b", shape="s", output_tokens=400.0)], MODEL, "s")
    assert isinstance(whole, Learned)
    assert whole.mean == pytest.approx(400)
    assert whole.jobs == 1


positive = st.floats(0.01, 100)


@given(st.lists(st.tuples(positive, st.floats(0.1, 1e6), st.integers(1, 10**7)), min_size=1, max_size=40))
def test_it_lies_among_the_runs(runs: list[tuple[float, float, int]]) -> None:
    known = [
        replace(RUN, job=str(n), phi=phi, seconds=seconds, rows=rows)
        for n, (phi, seconds, rows) in enumerate(runs)
    ]
    found = learned(known, MODEL)("L40S", "bf16")
    seen = [phi for phi, _, _ in runs[:30]]
    assert min(seen) * 0.999 <= found.likely <= max(seen) * 1.001
    assert found.low <= found.likely <= found.high


def test_starts_are_those_of_the_latest_runs() -> None:
    runs = [replace(RUN, start_seconds=seconds) for seconds in (20.0, None, 22.0, 90.0, 21.0, 19.0, 500.0)]
    assert start_seconds(runs, "L40S") == 21.0
    assert start_seconds(runs, "H100") is None
    catalogue = with_starts(load_catalogue(), runs)
    assert catalogue.instances["g6e.xlarge"].start_seconds is None  # a machine that boots has another start


@pytest.mark.parametrize(
    ("driver", "instance"),
    [
        ("NVIDIA L40S", "g6e.xlarge"),
        ("NVIDIA L4", "g6.xlarge"),
        ("NVIDIA H100 80GB HBM3", "p5.4xlarge"),
        ("NVIDIA A100-SXM4-80GB", "p4de.24xlarge"),
        ("NVIDIA A100-SXM4-40GB", "p4d.24xlarge"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "g7e.2xlarge"),
        ("Tesla T4", None),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100 80GB PCIe", "p4de.24xlarge"),
        ("NVIDIA H200", "p5en.48xlarge"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", None),
        ("", None),
    ],
)
def test_gpus_are_known_by_the_names_of_their_driver(driver: str, instance: str | None) -> None:
    found = instance_of(driver, load_catalogue())
    assert (found.name if found else None) == instance


@pytest.mark.parametrize(
    ("split", "hardware"),
    [
        ({"tensor_parallel_size": 4}, "g6e.12xlarge"),
        ({"pipeline_parallel_size": 4}, "g6e.12xlarge"),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "nnodes": 2}, "g6e.12xlarge"),
    ],
)
def test_a_run_over_several_devices_that_is_as_fast_as_the_model_says_has_a_phi_of_1(
    split: dict[str, int], hardware: str
) -> None:
    """The plan counts the time that its devices take to talk to each other, and so does what is learned."""
    catalogue, demand = load_catalogue(), Demand(rows=10_000, input_tokens=500, output_tokens=100)
    config = json.dumps(LLAMA_70B)
    setup = setup_of(config, "NVIDIA L40S", split, seqs=256, tokens=8192, catalogue=catalogue)
    assert setup is not None and setup.instance.link is not None and setup.instance.devices >= 4
    model = model_facts(LLAMA_70B)
    limits = PlanLimits(hardware=(hardware,), nodes=split.get("nnodes"))
    found = plans(demand, model, catalogue, limits, today=date(2026, 11, 24))
    own = setup.setting
    plan = next(
        one for one in found.plans
        if (one.setting.tensor_parallel, one.setting.pipeline_parallel, one.setting.max_num_seqs)
        == (own.tensor_parallel, own.pipeline_parallel, own.max_num_seqs)
        and one.setting.max_num_batched_tokens == own.max_num_batched_tokens and one.machines == own.nodes
    )  # fmt: skip
    took = demand.rows / plan.rate.per_second + plan.rate.tail
    assert measured_phi(setup, demand, {"one": (demand.rows, took)}) == pytest.approx(1.0)


def test_phi_of_a_split_is_that_of_such_runs_and_of_one_device_where_there_are_none() -> None:
    split = replace(RUN, job="split", phi=0.5, weights="bf16 TP4 PP1")
    assert learned([RUN], MODEL)("L40S", "bf16 TP4 PP1").likely == pytest.approx(RUN.phi)
    assert learned([RUN, split], MODEL)("L40S", "bf16 TP4 PP1").likely == pytest.approx(0.5)
    assert learned([RUN, split], MODEL)("L40S", "bf16").likely == pytest.approx(RUN.phi)
    assert not learned([RUN], MODEL)("L40S", "bf16 TP4 PP1").of_split
    assert learned([RUN, split], MODEL)("L40S", "bf16 TP4 PP1").of_split


def test_phi_is_predicted_over_measured_seconds() -> None:
    instance = load_catalogue().instances["g6e.xlarge"]
    setup = Setup(model=MODEL, instance=instance, setting=Setting())
    demand = Demand(rows=10_000, input_tokens=100, output_tokens=50)
    whole = expected_seconds(setup, demand, 5000)
    work = {"one": (5000, whole / 0.8), "two": (5000, whole / 0.8)}
    assert measured_phi(setup, demand, work) == pytest.approx(0.8)
    assert measured_phi(setup, demand, {"one": (10, 1.0)}) is None
    assert measured_phi(setup, demand, {"one": (5000, 0.0)}) is None
    phi = learned([replace(RUN, phi=0.8)], MODEL)("L40S", "bf16")
    found = forecast(setup, demand, phi, replicas=2, start=10)
    assert found.likely == pytest.approx(10 + whole / 0.8)
    assert found.low < found.likely < found.high


def test_a_run_with_a_part_of_the_memory_that_is_as_fast_as_the_model_says_has_a_phi_of_1() -> None:
    """A smaller share of the memory holds fewer sequences at a time: the plan counts that."""
    catalogue, share = load_catalogue(), 0.45
    demand = Demand(rows=10_000, input_tokens=500, output_tokens=100)
    limits = PlanLimits(hardware=("g6e.xlarge",), gpu_memory_utilization=share)
    plan = plans(demand, model_facts(LLAMA_8B), catalogue, limits, today=date(2026, 11, 24)).plans[0]
    setup = setup_of(
        json.dumps(LLAMA_8B), "NVIDIA L40S", {"gpu_memory_utilization": share},
        seqs=plan.setting.max_num_seqs, tokens=plan.setting.max_num_batched_tokens, catalogue=catalogue,
    )  # fmt: skip
    assert setup is not None
    took = demand.rows / plan.rate.per_second + plan.rate.tail
    assert measured_phi(setup, demand, {"one": (demand.rows, took)}) == pytest.approx(1.0)


def test_what_the_cost_model_does_not_know_is_not_learned_from() -> None:
    catalogue = load_catalogue()

    def setup(config: str, device: str) -> Setup | None:
        return setup_of(config, device, {}, seqs=8, tokens=512, catalogue=catalogue)

    config = (Path(__file__).parents[3] / "examples/tickets/model/config.json").read_text()
    assert setup(config, "NVIDIA L40S") is not None
    assert setup(config, "a device of one's own") is None
    assert setup('{"model_type": "unheard-of"}', "NVIDIA L40S") is None
    assert setup("", "NVIDIA L40S") is None
    assert setup("[", "NVIDIA L40S") is None


@pytest.mark.parametrize("method", ["awq", "awq_marlin", "compressed-tensors", "fp8", None])
def test_a_quantized_checkpoint_is_known_whatever_the_engine_calls_its_method(method: str | None) -> None:
    quantized = {"quant_method": "awq", "bits": 4, "group_size": 128}
    config = json.dumps({**LLAMA_8B, "quantization_config": quantized})
    arguments = {} if method in (None, "fp8") else {"quantization": method}
    found = setup_of(config, "NVIDIA L40S", arguments, seqs=8, tokens=512, catalogue=load_catalogue())
    assert found is not None and found.model.format == "int4"
    plain = {"quantization": method}
    found = setup_of(json.dumps(LLAMA_8B), "L40S", plain, seqs=8, tokens=512, catalogue=load_catalogue())
    assert (found and found.model.format) == {"fp8": "fp8", None: "bf16"}.get(method)


def test_a_run_of_a_checkpoint_is_known_by_both_files_of_its_config(tmp_path: Path) -> None:
    """A run of ModelOpt's fp8 was kept as one of bf16, and made every plan of bf16 too fast."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    run = setup_of(config_of(str(tmp_path)), "L40S", {}, seqs=8, tokens=512, catalogue=load_catalogue())
    assert run is not None
    assert (run.model.format, run.setting.measured_as) == ("fp8", "fp8")
    assert run.model.format == read_model(tmp_path).format
    assert config_of(str(tmp_path / "none")) == ""


def test_without_calibrations_the_catalogue_is_as_shipped(tmp_path: Path) -> None:
    assert known_catalogue(tmp_path).instances == load_catalogue().instances

"""A replica over several nodes: when it is planned, what it is given, and what the network costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engine.ranks import refuse_uneven
from dray.planner.catalogue import Measured, Network, calibrated, load_catalogue
from dray.planner.cost import Demand, ModelledReplica, Phi, PlanLimits, Plans, Setting, plans, replica_on
from dray.planner.cost.choices import settings
from dray.planner.cost.step import communication_seconds
from dray.planner.models import model_facts
from tests.support.model_configs import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, LLAMA_405B

pytestmark = pytest.mark.unit

TODAY = date(2026, 11, 24)
CATALOGUE = load_catalogue()
JOB = Demand(rows=100_000, input_tokens=2000, output_tokens=100)
H100 = CATALOGUE.instances["p5.48xlarge"]


def planned(config: dict[str, Any], **limits: Any) -> Plans:
    return plans(JOB, model_facts(config), CATALOGUE, PlanLimits(**limits), today=TODAY)


@pytest.mark.parametrize(
    ("config", "hardware", "fewest"),
    [
        (DEEPSEEK_V3, "p5.48xlarge", 2),  # 671 GB in fp8, and eight H100 have 687
        (LLAMA_405B, "p5.48xlarge", 2),  # 812 GB in bf16
        (LLAMA_405B, "g6e.12xlarge", 6),  # four L40S have 192; of five stages one would have 26 of 126 layers
        (LLAMA_70B, "g6e.xlarge", 4),  # 141 GB in bf16, one L40S has 48
    ],
)
def test_a_model_that_no_node_holds_is_planned_over_as_few_as_hold_it(
    config: dict[str, Any], hardware: str, fewest: int
) -> None:
    found = planned(config, hardware=(hardware,))
    nodes = {plan.setting.nodes for plan in found.plans}
    assert min(nodes) == fewest
    assert max(nodes) <= 2 * fewest
    for plan in found.plans:
        arguments = plan.setting.arguments
        assert arguments["nnodes"] == plan.setting.nodes
        refuse_uneven(arguments)  # a run takes them
        assert plan.setting.on_each == plan.instance.devices
        assert plan.machines % plan.setting.nodes == 0
        assert plan.replicas == plan.machines // plan.setting.nodes
        assert f"Each replica is on {plan.setting.nodes} nodes" in " ".join(plan.notes)
        held = plan.setting.devices * plan.instance.device.memory
        assert held > model_facts(config).weight_bytes


def test_a_model_that_a_node_holds_is_on_one() -> None:
    """Also where another node would not hold it, and where a deadline is missed."""
    found = planned(DEEPSEEK_V3, hardware=("p5*.48xlarge",))
    assert {plan.instance.name for plan in found.plans} == {"p5en.48xlarge"}
    missed = planned(DEEPSEEK_V3, hardware=("p5*.48xlarge",), deadline=60)
    assert {plan.setting.nodes for plan in (*found.plans, *missed.nearest)} == {1}


def test_a_model_that_so_many_nodes_do_not_hold_says_what_they_lack() -> None:
    found = planned(LLAMA_405B, hardware=("g6.xlarge",))
    assert found.plans == ()
    assert "Nearest is g6.xlarge: 8 x L4 on 8 nodes lack" in found.why
    alone = planned(DEEPSEEK_V3, hardware=("p5.48xlarge",), max_machines=1)
    assert "Nearest is p5.48xlarge: 8 x H100 lack" in alone.why


@pytest.mark.parametrize(
    ("limits", "splits"),
    [
        ({"nodes": 2}, {(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)}),
        ({"nodes": 2, "tensor_parallel": 8}, {(8, 2)}),
        ({"nodes": 2, "pipeline_parallel": 2}, {(8, 2)}),
        ({"nodes": 2, "tensor_parallel": 4, "pipeline_parallel": 2}, {(4, 2)}),
        ({"nodes": 3, "tensor_parallel": 4}, {(4, 6)}),
        ({"tensor_parallel": 4, "pipeline_parallel": 1}, {(4, 1)}),
        ({"tensor_parallel": 2}, {(2, 1), (2, 2), (2, 4)}),
        ({"nodes": 2, "tensor_parallel": 3}, set()),
        ({"nodes": 2, "tensor_parallel": 32, "pipeline_parallel": 1}, set()),
    ],
)
def test_what_is_named_is_kept(limits: dict[str, Any], splits: set[tuple[int, int]]) -> None:
    model, asked = model_facts(LLAMA_8B), PlanLimits(**limits)
    found = list(settings(H100, model, asked, asked.nodes or 1))
    assert {(one.tensor_parallel, one.pipeline_parallel) for one in found} == splits
    found = [plan.setting for plan in planned(LLAMA_8B, hardware=("p5.48xlarge",), **limits).plans]
    got = {(one.tensor_parallel, one.pipeline_parallel, one.nodes) for one in found}
    assert got == {(tensor, pipeline, limits.get("nodes", 1)) for tensor, pipeline in splits}


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"nodes": 9}, "A replica over 9 nodes needs as many machines; --max-machines allows 8."),
        (
            {"nodes": 2, "tensor_parallel": 3},
            "TP 3 cannot be shared out evenly over 2 nodes with 8 x H100",
        ),
        ({"tensor_parallel": 3}, "32 attention heads cannot be split over 3 devices."),
        ({"tensor_parallel": 9, "pipeline_parallel": 1, "max_machines": 1}, "over one node with 8 x H100."),
    ],
)
def test_what_cannot_be_is_said(limits: dict[str, Any], said: str) -> None:
    found = planned(LLAMA_8B, hardware=("p5.48xlarge",), **limits)
    assert found.plans == found.nearest == ()
    assert said in found.why


def test_a_machine_at_hand_has_no_network_to_another() -> None:
    own = calibrated(
        Measured(name="own", gemm={"bf16": 1e12}, bandwidth=1e11, memory=64e9, step=0.1, day=TODAY)
    )
    catalogue = CATALOGUE.with_instance(own)
    for limits in (PlanLimits(hardware=("own",), nodes=2), PlanLimits(hardware=("own",))):
        config = LLAMA_8B if limits.nodes else LLAMA_70B
        found = plans(JOB, model_facts(config), catalogue, limits, today=TODAY)
        assert found.plans == ()
        assert ("No network" in found.why) is (limits.nodes == 2)


TEN = Network(bandwidth=10e9, latency=50e-6)
LATENCY, STATE = 8e-6, 1000 * 8192 * 2  # of NVLink; bytes of 1,000 tokens' hidden state


def replica(tensor: int, pipeline: int, nodes: int, network: Network = TEN) -> ModelledReplica:
    setting = Setting(tensor_parallel=tensor, pipeline_parallel=pipeline, nodes=nodes)
    return replica_on(replace(H100, network=network), model_facts(LLAMA_70B), setting)


def test_what_the_network_costs_by_hand() -> None:
    """80 layers with two all-reduces each; NVLink reduces 125e9 bytes/s over 8, a ring of two nodes 10e9."""
    inside = 160 * (LATENCY + STATE / 2 / 125e9)
    stages = communication_seconds(replica(8, 2, 2), 1000.0, 2.0)
    assert stages == pytest.approx(inside + 2 * 50e-6 + STATE / 10e9)
    whole = communication_seconds(replica(16, 1, 2), 1000.0, 1.0)
    between = 160 * (50e-6 + STATE / 10e9)
    assert whole == pytest.approx(160 * (LATENCY + STATE / 125e9) + between)
    four = communication_seconds(replica(32, 1, 4), 1000.0, 1.0)
    assert four - whole == pytest.approx(160 * STATE / 10e9 * 0.5)  # each node sends 2·3/4 of it, not 2·1/2


@given(
    st.sampled_from([(1, 16, 2), (8, 2, 2), (16, 1, 2), (32, 1, 4), (8, 4, 4), (4, 6, 3)]),
    st.floats(1e8, 1e11),
    st.floats(1e-6, 1e-2),
    st.floats(1, 1e5),
)
def test_a_slower_network_is_never_faster(
    split: tuple[int, int, int], bandwidth: float, latency: float, tokens: float
) -> None:
    slow = Network(bandwidth=bandwidth, latency=latency)
    seconds = communication_seconds(replica(*split, slow), tokens, split[1])
    for better in (replace(slow, bandwidth=2 * bandwidth), replace(slow, latency=latency / 2)):
        assert communication_seconds(replica(*split, better), tokens, split[1]) < seconds


def test_the_loss_of_any_of_its_nodes_interrupts_a_replica() -> None:
    limits: dict[str, Any] = {
        "hardware": ("p5.48xlarge",), "tensor_parallel": 8, "max_num_seqs": (256,),
        "max_num_batched_tokens": (8192,), "max_machines": 4,
    }  # fmt: skip
    shares = []
    for nodes in (2, 4):
        first = next(
            plan for plan in planned(LLAMA_405B, nodes=nodes, **limits).plans
            if plan.spot and plan.machines == nodes
        )  # fmt: skip
        shares.append(first.time.interrupted / (first.time.work + first.time.tail))
    assert shares[1] == pytest.approx(2 * shares[0], rel=0.05)


def test_phi_is_wider_over_nodes_unless_such_runs_were_measured() -> None:
    known = {"bf16 TP8 PP2 N2": Phi(likely=0.8, low=0.7, high=0.9, reason="3 runs", of_split=True)}
    guess = Phi(likely=0.8, low=0.7, high=0.9, reason="guess")
    limits = PlanLimits(hardware=("p5.48xlarge",), nodes=2, max_machines=2)

    def phi(_device: str, name: str) -> Phi:
        return known.get(name, guess)

    found = plans(JOB, model_facts(LLAMA_405B), CATALOGUE, limits, today=TODAY, phi=phi)
    bounds = {plan.setting.tensor_parallel: plan.phi.low for plan in found.plans}
    assert bounds[8] == 0.7
    assert bounds[4] == pytest.approx(0.7 / 1.4 / 1.25)

"""The cost model against published throughputs: docs/planning.md has the table."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from statistics import mean
from typing import Any

import pytest

from dray.planner.cost import Setting
from dray.planner.cost.efficiency import PRIOR
from tests.support.model_configs import LLAMA_1B, LLAMA_8B, LLAMA_70B
from tests.support.planning import TENSORRT_LLM
from tests.support.reference_points import PLAIN, SEVERAL, SHARED, SINGLE, Point, predicted, trt_points

pytestmark = pytest.mark.unit


def of(point: Point, **changes: Any) -> float:
    """Requests per second per device of a point with another setting."""
    changed = replace(point, setting=replace(point.setting, **changes))
    return predicted(changed) / changed.setting.devices


@pytest.mark.parametrize("point", SINGLE, ids=lambda point: point.name)
def test_one_gpu_is_within_30_percent(point: Point) -> None:
    assert 1 / 1.3 <= point.ratio <= 1.3


def test_one_gpu_is_within_15_percent_in_the_geometric_mean() -> None:
    assert exp(mean(abs(log(point.ratio)) for point in SINGLE)) <= 1.15


@pytest.mark.parametrize("point", SEVERAL, ids=lambda point: point.name)
def test_tensor_parallelism_is_within_40_percent(point: Point) -> None:
    assert 1 / 1.4 <= point.ratio <= 1.4


def test_a_shared_prefix_gives_what_was_published() -> None:
    """2.0 to 2.3 times; published 2.13 to 2.15."""
    assert 2.0 <= predicted(SHARED) / predicted(PLAIN) <= 2.3


def test_fp8_weights_are_faster_than_bf16() -> None:
    assert predicted(PLAIN) > 1.2 * of(PLAIN, weights="bf16")


def test_fp8_cache_is_faster_where_the_cache_bounds_the_batch() -> None:
    assert predicted(replace(PLAIN, setting=replace(PLAIN.setting, kv="fp8"))) > predicted(PLAIN)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_pipelines_beat_tensor_parallelism_over_pcie(size: int) -> None:
    """TensorRT-LLM v1.0, RTX PRO 6000, 70B fp4 2048/128: a GPU keeps 1.03, 0.96, 0.79 of its rate."""
    (one,) = trt_points("RTX-PRO-6000", "nvfp4", {(2048, 128): 393}, LLAMA_70B, link="pcie5")
    one = replace(one, setting=replace(one.setting, kv="fp8"))
    alone = predicted(one)
    assert of(one, pipeline_parallel=size) > of(one, tensor_parallel=size)
    assert {2: 1.03, 4: 0.96, 8: 0.79}[size] / 1.3 <= of(one, pipeline_parallel=size) / alone <= 1.3


def test_more_stages_beat_more_tensor_parallelism_on_eight_l4() -> None:
    """Substratus, 70B fp8 on 8 x L4, vLLM: PP 4 x TP 2 gave 1.76 requests/s, PP 2 x TP 4 1.50.

    That version of vLLM ran up to 256 sequences for each stage.
    """
    base = replace(PLAIN, model=LLAMA_70B, device="L4", link="pcie4", input_tokens=230, output_tokens=175)

    def rate(pipeline: int, tensor: int) -> float:
        return of(
            replace(base, setting=Setting(weights="fp8", max_num_seqs=256 * pipeline)),
            pipeline_parallel=pipeline,
            tensor_parallel=tensor,
        )

    assert rate(4, 2) > rate(2, 4)


def test_replicas_beat_tensor_parallelism_on_eight_h100() -> None:
    """Lambda, 8B fp8, vLLM 0.5.4: TP 8 gave 1.16 times the rate of one GPU; eight replicas give 8 times."""
    one = replace(PLAIN, model=LLAMA_8B, device="H100", link="nvlink")
    assert of(one) > 2 * of(one, tensor_parallel=8)


def test_four_l40s_lie_between_tensor_and_pipeline_parallelism() -> None:
    """MLPerf v4.1, Llama-2-70B fp8, vLLM on 4 x L40S, about 294 in and out: 1,718 tokens/s. A bracket."""
    base = replace(PLAIN, model=LLAMA_70B, link="pcie4", input_tokens=294, output_tokens=294)
    base = replace(base, setting=Setting(weights="fp8", max_num_seqs=2048))
    measured = 1718 / 294 / 4
    assert of(base, tensor_parallel=4) < measured < of(base, pipeline_parallel=4)


_H200 = replace(
    PLAIN,
    name="H200",
    device="H200",
    setting=Setting(max_num_seqs=1024, max_num_batched_tokens=16384),
    input_tokens=205,
    output_tokens=64,
)


def test_what_an_h200_did_is_in_the_interval_of_a_plan() -> None:
    """`LLM.generate` and the replica, tests/benchmarks/gpu.py; vocabularies of 128k and 131k tokens."""
    runs: list[tuple[dict[str, Any], float, tuple[float, float]]] = [
        (LLAMA_8B, 0.0, (121.1, 126.4)),
        (LLAMA_8B, 0.78, (237.2, 287.0)),
        (LLAMA_1B, 0.0, (368.0, 335.3)),
        (LLAMA_1B, 0.78, (379.6, 407.6)),
    ]
    reached = [
        one / predicted(replace(_H200, model=model, hit_share=shared))
        for model, shared, measured in runs
        for one in measured
    ]
    assert all(PRIOR.low <= one <= PRIOR.high for one in reached)
    assert f"{min(reached):.2f} to {max(reached):.2f} of the prediction on an H200" in PRIOR.reason


def test_a_small_model_waits_for_the_host_with_vllm_alone() -> None:
    small = replace(_H200, model=LLAMA_1B)
    assert predicted(small) == pytest.approx(1 / (64 * 40e-6))
    assert of(small, engine=TENSORRT_LLM) > 1.5 * predicted(small)

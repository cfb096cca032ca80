"""Published throughputs, with the settings that the cost model is asked for.

Sources: TensorRT-LLM v0.12 perf-overview (August 2024; output tokens per second under full load), and the
dollars that Anyscale published for RayLLM-Batch (github.com/anyscale/batch-llm-inference-reproductions, 30
September 2024), as requests per second at the list price of the day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from dray.planner.catalogue import load_catalogue
from dray.planner.cost import Demand, ModelledReplica, Setting, replica_rate
from dray.planner.models import model_facts
from tests.support.model_configs import LLAMA_8B, LLAMA_70B
from tests.support.planning import TENSORRT_LLM

_ANYSCALE: dict[str, Any] = {
    "max_num_seqs": 224,
    "max_num_batched_tokens": 3072,
    "gpu_memory_utilization": 0.95,
}
_TRT: dict[str, Any] = {"engine": TENSORRT_LLM, "max_num_seqs": 2048}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement: requests per second of one replica."""

    name: str
    model: dict[str, Any]
    device: str
    setting: Setting
    input_tokens: float
    output_tokens: float
    measured: float
    hit_share: float = 0.0
    link: str | None = None

    @property
    def predicted(self) -> float:
        """Requests per second by the model, with phi of 1."""
        return predicted(self)

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def predicted(point: Point) -> float:
    """Requests per second of a replica by the model, with phi of 1."""
    catalogue = load_catalogue()
    links = {one.link.name: one.link for one in catalogue.instances.values() if one.link is not None}
    replica = ModelledReplica(
        model=model_facts(point.model).in_format(point.setting.weights),
        device=catalogue.devices()[point.device],
        link=links[point.link] if point.link is not None else None,
        setting=point.setting,
    )
    demand = Demand(
        rows=1_000_000,
        input_tokens=point.input_tokens,
        output_tokens=point.output_tokens,
        hit_share=point.hit_share,
    )
    return replica_rate(replica, demand).per_second


def trt_points(
    device: str, weights: str, measured: dict[tuple[int, int], float], model: dict[str, Any], **more: Any
) -> list[Point]:
    """Rows of TensorRT-LLM's table: output tokens per second by the lengths of input and output."""
    link = more.pop("link", None)
    return [
        Point(
            name=f"{device} x{more.get('tensor_parallel', 1)} {weights} {into}/{out}",
            model=model,
            device=device,
            setting=Setting(weights=weights, kv=weights, **_TRT, **more),
            input_tokens=into,
            output_tokens=out,
            measured=tokens / out,
            link=link,
        )
        for (into, out), tokens in measured.items()
    ]


def _four(*tokens: float) -> dict[tuple[int, int], float]:
    return dict(zip([(128, 128), (128, 2048), (2048, 128), (2048, 2048)], tokens, strict=True))


PLAIN = Point(
    name="RayLLM-Batch 8B, no shared prefix",
    model=LLAMA_8B,
    device="L40S",
    setting=Setting(weights="fp8", **_ANYSCALE),
    input_tokens=2000,
    output_tokens=100,
    measured=6.42,
)
SHARED = replace(PLAIN, name="RayLLM-Batch 8B, 80% shared prefix", hit_share=0.8, measured=13.72)
CLAIM_DAY = date(2024, 9, 30)
CLAIMS = {
    # How many times as much a hosted batch API cost, by the share of the input in one shared prefix.
    (0.0, "GPT-4o mini"): 2.2,
    (0.0, "Bedrock Llama 3.1 8B"): 2.9,
    (0.8, "GPT-4o mini"): 4.78,
    (0.8, "Bedrock Llama 3.1 8B"): 6.1,
    (0.8, "Bedrock Llama 3.1 70B"): 1.8,
}

SINGLE = [
    *trt_points("L40S", "fp8", _four(8746, 5084, 981, 2052), LLAMA_8B),
    *trt_points("A100-80", "bf16", _four(6587, 4882, 782, 2268), LLAMA_8B),
    *trt_points("H100", "bf16", _four(15567, 8817, 1852, 3987), LLAMA_8B),
    PLAIN,
    SHARED,
]
SEVERAL = [
    *trt_points("A100-80", "bf16", {(2048, 128): 279}, LLAMA_70B, tensor_parallel=4, link="nvlink"),
    *trt_points("A100-80", "bf16", {(2048, 128): 544}, LLAMA_70B, tensor_parallel=8, link="nvlink"),
    *trt_points(
        "L40S",
        "fp8",
        {(128, 128): 1364, (2048, 128): 163, (2048, 2048): 895},
        LLAMA_70B,
        tensor_parallel=8,
        link="pcie4",
    ),
]

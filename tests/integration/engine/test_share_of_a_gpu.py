"""What an engine is told of its memory: a replica's part of a GPU, and steps that memory suffices for."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.placing import shrunk
from dray.engine.protocol import EngineSpec
from dray.kinds import Kind

pytestmark = [pytest.mark.integration, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]


def arguments(gpus: float | None, *, cpu: bool = False, **given: Any) -> dict[str, Any]:
    from dray.engine.vllm_adapter.arguments import engine_arguments

    spec = EngineSpec(name="vllm", model="m", kind=Kind.COMPLETION, arguments=given, gpus=gpus)
    return engine_arguments(spec, {"model": "m"}, cpu=cpu)


@pytest.mark.parametrize(("gpus", "share"), [(0.5, 0.5), (0.25, 0.25), (0.1, 0.1)])
def test_a_part_of_a_gpu_is_a_part_of_its_memory(gpus: float, share: float) -> None:
    from vllm.engine.arg_utils import EngineArgs

    whole = EngineArgs.gpu_memory_utilization
    assert arguments(gpus)["gpu_memory_utilization"] == pytest.approx(share * whole, abs=1e-4)


def test_it_is_also_what_a_replica_must_find_free_whose_cache_the_user_sizes() -> None:
    """vLLM looks for its 0.92 at each start: the second replica on a GPU would never find them."""
    given = arguments(0.5, kv_cache_memory_bytes=1 << 30)
    assert given["gpu_memory_utilization"] == 0.46
    assert given["kv_cache_memory_bytes"] == 1 << 30


@pytest.mark.parametrize("gpus", [None, 0.0, 1.0, 2.0])
def test_whole_gpus_are_left_to_vllm(gpus: float | None) -> None:
    assert "gpu_memory_utilization" not in arguments(gpus)


def test_a_step_that_memory_did_not_suffice_for_still_holds_a_video(tmp_path: Path) -> None:
    from dray.engine.vllm_adapter.arguments import engine_arguments

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "paligemma"}))
    spec = EngineSpec(name="vllm", model=str(tmp_path), kind=Kind.COMPLETION)
    given = engine_arguments(shrunk(spec, 2, 64), {"model": str(tmp_path)}, cpu=False)
    assert given["max_num_batched_tokens"] == 4096


def test_what_a_user_says_of_memory_stays() -> None:
    assert arguments(0.5, gpu_memory_utilization=0.3)["gpu_memory_utilization"] == 0.3
    assert "gpu_memory_utilization" not in arguments(0.5, cpu=True)

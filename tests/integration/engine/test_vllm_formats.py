"""The formats that dray names to vLLM by the files of a model's folder, in vLLM's own configuration."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dray.engine.protocol import EngineSpec
from dray.kinds import Kind
from tests.support.checkpoints import llama

pytestmark = [pytest.mark.integration, pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")]


def arguments(model: Path, **given: Any) -> dict[str, Any]:
    from dray.engine.vllm_adapter.arguments import engine_arguments

    spec = EngineSpec(name="vllm", model=str(model), kind=Kind.COMPLETION, arguments=given)
    return engine_arguments(spec, {"model": str(model)}, cpu=True)


def test_second_copies_beside_the_single_file(tmp_path: Path) -> None:
    model = llama(tmp_path / "model")
    assert arguments(model)["load_format"] == "safetensors"
    (model / "model.fp16.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    assert arguments(model)["load_format"] == "dray"
    assert arguments(model, load_format="dummy")["load_format"] == "dummy"

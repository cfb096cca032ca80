"""A part of an engine on another node: it runs batches of the size that the leader's engine has."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from dray.engine import followers
from dray.engine.followers import EnginePart
from dray.engine.protocol import EngineSpec
from dray.engine.tuning import BatchLimits
from dray.engine.vllm_adapter import following
from dray.errors import EngineDeadError
from dray.kinds import Kind

pytestmark = pytest.mark.unit

MODEL = SimpleNamespace(arguments=dict)


def test_its_batches_are_the_leaders_whatever_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes 1,024 sequences on an H100 and 256 on an A100; such a leader overran such a part."""
    started: list[dict[str, Any]] = []

    def start(arguments: dict[str, Any]) -> Any:
        started.append(arguments)
        raise EngineDeadError("a rank's process ended")

    monkeypatch.setattr(followers, "_own_address", lambda: "10.0.0.6")
    monkeypatch.setattr(following, "prepare_environment", lambda spec: None)
    monkeypatch.setattr(following, "EngineModel", lambda spec: nullcontext(MODEL))
    monkeypatch.setattr(following, "import_vllm", lambda modules, eager_on_cpu: True)
    monkeypatch.setattr(following, "engine_arguments", lambda *_, cpu: {"seed": 0, "max_num_seqs": None})
    monkeypatch.setattr(following, "_started", start)
    part = EnginePart()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(part.run, EngineSpec(name="vllm", model="m", kind=Kind.CHAT))
        with pytest.raises(TimeoutError):
            run.result(timeout=0.2)  # it waits for the leader
        part.take_limits(BatchLimits(1024, 16384))
        with pytest.raises(EngineDeadError):
            run.result(timeout=20)
    assert started == [{"seed": 0, "max_num_seqs": 1024, "max_num_batched_tokens": 16384}]

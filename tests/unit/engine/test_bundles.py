"""What decides whether a bundle of compiled code fits an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.engine.bundles import _configuration
from dray.engine.protocol import EngineSpec
from dray.requests.model import Kind

pytestmark = pytest.mark.unit

SPEC = EngineSpec(name="vllm", model="m", kind=Kind.CHAT, arguments={})


@pytest.mark.parametrize(
    ("variable", "decides"), [("VLLM_RPC_BASE_PATH", False), ("VLLM_ENABLE_V1_MULTIPROCESSING", True)]
)
def test_folders_of_one_run_decide_nothing(
    variable: str, decides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's folder has another name each time: no bundle would be found again."""
    monkeypatch.setenv(variable, "first")
    first = _configuration(SPEC, Path("m"))
    monkeypatch.setenv(variable, "second")
    assert (_configuration(SPEC, Path("m")) != first) is decides

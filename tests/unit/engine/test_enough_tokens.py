"""An engine that memory did not suffice for starts with less, but with as much as its model needs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dray.cluster.placing import shrunk
from dray.engine.protocol import EngineSpec
from dray.engine.vllm_adapter.arguments import enough_tokens
from dray.kinds import Kind
from tests.support.hybrid_configs import GEMMA4_31B, GEMMA4_E2B
from tests.support.model_configs import GEMMA3_27B, LLAMA_8B

pytestmark = pytest.mark.unit

SEES: dict[str, Any] = {"text_config": {"use_bidirectional_attention": "vision"}}


@pytest.mark.parametrize(
    ("config", "given", "steps", "tokens"),
    [
        (GEMMA4_31B | SEES, {}, 1, 4096),
        (GEMMA4_31B | SEES, {}, 2, 4096),
        (GEMMA4_31B | SEES, {"max_num_batched_tokens": 32768}, 2, 8192),
        (GEMMA4_31B | SEES, {"max_num_batched_tokens": 3000}, 1, 3000),
        ({"model_type": "paligemma", "text_config": {"model_type": "gemma"}}, {}, 2, 4096),
        (GEMMA3_27B, {}, 3, 4096),
        (GEMMA4_E2B, {}, 2, 2048),
        (LLAMA_8B, {}, 2, 2048),
        ([], {}, 2, 2048),
    ],
)
def test_a_halved_step_still_holds_what_the_model_reads_whole(
    config: Any, given: dict[str, Any], steps: int, tokens: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = EngineSpec(name="vllm", model=str(tmp_path), kind=Kind.CHAT, arguments=given)
    assert enough_tokens(shrunk(spec, steps, 64), str(tmp_path)) == {"max_num_batched_tokens": tokens}


@pytest.mark.parametrize("kind", [Kind.CHAT, Kind.EMBEDDING])
def test_what_the_user_names_stays(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA4_31B | SEES))
    arguments = {"max_num_batched_tokens": 2048}
    spec = EngineSpec(name="vllm", model=str(tmp_path), kind=kind, arguments=arguments)
    assert enough_tokens(spec, str(tmp_path)) == {}
    if kind is Kind.EMBEDDING:
        assert enough_tokens(shrunk(spec, 2, 64), str(tmp_path)) == {}

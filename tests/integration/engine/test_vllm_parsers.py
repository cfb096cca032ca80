"""Parsers of reasoning and tool calls reach all parts of vLLM that need them. No engine starts here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dray.engine.vllm_adapter.arguments import engine_arguments
from tests.support.engines import generation_spec

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def thinker(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lively model's configuration, with a tokenizer that knows where reasoning begins and ends."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(lively_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    return folder


def config_of(folder: Path, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    spec = generation_spec(folder, **arguments)
    return EngineArgs(**engine_arguments(spec, {"model": spec.model}, cpu=True)).create_engine_config()


def test_the_engine_knows_the_parser_of_reasoning(thinker: Path) -> None:
    """Else a grammar applies from the first token, and the model cannot think."""
    config = config_of(thinker, reasoning_parser="deepseek_r1")
    chosen = config.structured_outputs_config
    assert (chosen.reasoning_parser, chosen.disable_any_whitespace) == ("deepseek_r1", True)
    assert chosen.backend == "xgrammar"
    assert config.reasoning_config.enabled  # for thinking_token_budget
    more = config_of(
        thinker, reasoning_parser="deepseek_r1", reasoning_config={"reasoning_end_str": "</think>"}
    )
    assert more.reasoning_config.reasoning_parser == "deepseek_r1"
    assert more.reasoning_config.reasoning_end_str == "</think>"

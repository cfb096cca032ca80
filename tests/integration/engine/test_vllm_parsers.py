"""Parsers of reasoning and tool calls reach all parts of vLLM that need them. No engine starts here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dray.engine.vllm_adapter.arguments import engine_arguments
from dray.engine.vllm_adapter.kinds.serving_options import (
    TemplateOptions,
    parser_options,
    refuse_unread_calls,
)
from dray.errors import ConfigError, RequestRefused
from tests.support.engines import generation_spec

pytestmark = pytest.mark.integration

GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 525,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 1024,
    "layer_types": ["sliding_attention", "full_attention"],
}


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


def test_template_and_parsers_come_from_the_engine_arguments(thinker: Path) -> None:
    """Read from a file; parsers by name."""
    template = thinker / "other.jinja"
    template.write_text("{{ mood }}: {{ messages[0].content }}")
    arguments = {"chat_template": str(template), "reasoning_parser": "deepseek_r1"}
    spec, config = generation_spec(thinker, **arguments), config_of(thinker, **arguments)
    assert TemplateOptions.of(spec) == TemplateOptions(template.read_text(), "auto")
    assert parser_options(spec, config) == {
        "tool_parser": "hermes",
        "reasoning_parser": "deepseek_r1",
        "enable_auto_tools": True,
    }


def test_a_parser_of_tool_calls_is_enough_for_them(lively_model: Path) -> None:
    config = config_of(lively_model)
    for given, enabled in (
        ({}, True),
        ({"enable_auto_tool_choice": False}, False),
        ({"tool_call_parser": None}, False),
    ):
        options = parser_options(generation_spec(lively_model, **given), config)
        assert options["enable_auto_tools"] is enabled


@pytest.fixture
def gpt_oss(lively_model: Path, tmp_path: Path) -> Path:
    """The configuration of a small gpt-oss, without weights."""
    folder = tmp_path / "gpt-oss"
    shutil.copytree(lively_model, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    (folder / "config.json").write_text(json.dumps(GPT_OSS))
    return folder


def test_a_model_that_vllm_knows_has_its_parsers(lively_model: Path, gpt_oss: Path) -> None:
    """gpt-oss answers in Harmony's format: `vllm serve` reads its reasoning without being told.

    It loses calls of tools where it is not told of their parser, for which there is but one.
    """
    from vllm.parser import ParserManager

    config = config_of(gpt_oss, load_format="dummy", tool_call_parser=None)
    options = parser_options(generation_spec(gpt_oss, tool_call_parser=None), config)
    assert options == {
        "tool_parser": "openai",
        "reasoning_parser": "openai_gptoss",
        "enable_auto_tools": True,
    }
    parser = ParserManager.get_parser("openai", "openai_gptoss", enable_auto_tools=True, is_harmony=True)
    assert parser.tool_parser_cls is not None
    off = generation_spec(gpt_oss, tool_call_parser=None, enable_auto_tool_choice=False)
    assert not parser_options(off, config)["enable_auto_tools"]
    plain = parser_options(generation_spec(lively_model, tool_call_parser=None), config_of(lively_model))
    assert plain == {"tool_parser": None, "reasoning_parser": "", "enable_auto_tools": False}


def test_gpt_oss_takes_no_chat_template(gpt_oss: Path) -> None:
    """vLLM would not read it."""
    from dray.engine.vllm_adapter.kinds.serving import GenerationServing

    config = config_of(gpt_oss, load_format="dummy", tool_call_parser=None)
    given = {"chat_template": "{{ messages }}", "tool_call_parser": None}
    with pytest.raises(
        ConfigError, match="engine argument chat_template: vLLM writes the prompts of gpt-oss"
    ):
        GenerationServing.check(generation_spec(gpt_oss, **given), config)


@pytest.mark.parametrize(
    ("tool_parser", "auto", "named"),
    [
        (None, False, "tool_call_parser"),
        (None, True, "tool_call_parser"),
        ("hermes", False, "enable_auto_tool_choice"),
        ("hermes", True, None),
    ],
)
def test_calls_that_no_parser_would_read_refuse_their_row(
    tool_parser: str | None, auto: bool, named: str | None
) -> None:
    """vLLM answers such rows of gpt-oss and of Mistral's tokenizers, and loses their calls."""
    options = {"tool_parser": tool_parser, "enable_auto_tools": auto}
    function = {"type": "function", "function": {"name": "f"}}
    for choice in ({}, {"tool_choice": None}, {"tool_choice": "required"}, {"tool_choice": function}):
        body = {"messages": [], "tools": [function], **choice}
        if named is None:
            refuse_unread_calls(body, options)
            continue
        with pytest.raises(RequestRefused, match=named) as refused:
            refuse_unread_calls(body, options)
        assert (refused.value.code, refused.value.param) == ("invalid_request", "tools")
        refuse_unread_calls({**body, "tool_choice": "none"}, options)  # tools for the template alone
    strange: tuple[Any, ...] = (None, [], 5)
    for tools in strange:  # vLLM's to judge
        refuse_unread_calls({"messages": [], "tools": tools}, options)


@pytest.mark.parametrize(
    ("parsers", "read", "unread"),
    [
        ({}, ["mood", "tools", "add_generation_prompt"], ["thinking", "enable_thinking", "moood"]),
        ({"reasoning_parser_name": "qwen3"}, ["mood", "enable_thinking"], ["thinking"]),
        ({"reasoning_parser_name": "deepseek_v3"}, ["thinking", "enable_thinking"], ["think"]),
        ({"reasoning_parser_name": "nemotron_v3"}, ["force_nonempty_content"], ["thinking"]),
        ({"tool_parser_name": "hermes", "enable_auto_tools": True}, ["mood"], ["thinking"]),
    ],
)
def test_names_that_vllm_would_drop_are_refused_and_no_others(
    thinker: Path, parsers: dict[str, Any], read: list[str], unread: list[str]
) -> None:
    """Neither the template reads them nor a parser, which gets all names of a row."""
    from vllm.parser import ParserManager
    from vllm.renderers.hf import HfRenderer
    from vllm.tokenizers import cached_tokenizer_from_config

    from dray.engine.vllm_adapter.template_names import TemplateNames

    renderer = HfRenderer.__new__(HfRenderer)
    renderer.model_config = config_of(thinker).model_config
    renderer.tokenizer = cached_tokenizer_from_config(renderer.model_config)
    names = TemplateNames(renderer, None, ParserManager.get_parser(**parsers))
    both: tuple[list[Any], ...] = ([], [{"type": "function"}])
    for tools in both:
        for name in read:
            names.refuse_unread({"chat_template_kwargs": {name: False}, "tools": tools})
        for name in unread:
            with pytest.raises(RequestRefused, match=rf"`chat_template_kwargs\.{name}`") as refused:
                names.refuse_unread({"chat_template_kwargs": {"mood": "x", name: False}, "tools": tools})
            assert refused.value.code == "unknown_field"
    other = TemplateNames(renderer, "{{ thinking }}{{ messages }}")
    other.refuse_unread({"chat_template_kwargs": {"thinking": False}})
    for given in (None, {}, 5, {"tokenize": True}):  # vLLM's to judge
        other.refuse_unread({"chat_template_kwargs": given})
    TemplateNames(object(), None).refuse_unread({"chat_template_kwargs": {"any": 1}})  # not of a template

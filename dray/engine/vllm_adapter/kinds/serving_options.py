"""Engine arguments that are options of vLLM's server, as its serving classes take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.engine.chat_template import ARGUMENT, template_text
from dray.engine.protocol import EngineSpec


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The chat template's text (None: the model's own), and how it takes the content of messages."""

    text: str | None
    content_format: Any

    @classmethod
    def of(cls, spec: EngineSpec) -> TemplateOptions:
        """From the engine arguments.

        Raises:
            ConfigError: the template is a path, and no file.
        """
        given = spec.arguments.get(ARGUMENT)
        text = None if given is None else template_text(given)
        return cls(text, spec.arguments.get("chat_template_content_format", "auto"))


def is_harmony(model_config: Any) -> bool:
    """Whether the model speaks OpenAI's Harmony format, which has a tokenizer of its own: gpt-oss does."""
    return bool(model_config.hf_config.model_type == "gpt_oss")


def parser_options(spec: EngineSpec, config: Any) -> dict[str, Any]:
    """Which parsers read tool calls and reasoning out of an answer.

    That of reasoning is in vLLM's configuration: the engine argument, or what vLLM chose for the model (the
    Harmony parser for gpt-oss). A parser of tool calls is enough for them: a row with tools leaves the choice
    to the model by default, which vLLM's server refuses unless a second option allows it.
    """
    tool_parser = spec.arguments.get("tool_call_parser")
    return {
        "tool_parser": tool_parser,
        "reasoning_parser": config.structured_outputs_config.reasoning_parser,
        "enable_auto_tools": bool(spec.arguments.get("enable_auto_tool_choice", tool_parser is not None)),
    }

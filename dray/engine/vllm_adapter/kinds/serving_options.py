"""Engine arguments that are options of vLLM's server, as its serving classes take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dray.engine.chat_template import ARGUMENT, HARMONY, template_text
from dray.engine.protocol import EngineSpec
from dray.errors import RequestRefused

_PARSER = "tool_call_parser"
_AUTO = "enable_auto_tool_choice"
_HARMONY = "openai"  # vLLM's name of the one parser of tool calls that gpt-oss's answers can have


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """The chat template's text (None: the model's own), and how it takes the content of messages."""

    text: str | None
    content_format: Any

    @classmethod
    def of(cls, spec: EngineSpec) -> TemplateOptions:
        """The options that the engine arguments give.

        Raises:
            ConfigError: the template is a path, and no file.
        """
        given = spec.arguments.get(ARGUMENT)
        text = None if given is None else template_text(given)
        return cls(text, spec.arguments.get("chat_template_content_format", "auto"))


def is_harmony(model_config: Any) -> bool:
    """Whether the model speaks OpenAI's Harmony format, which has a tokenizer of its own: gpt-oss does."""
    return bool(model_config.hf_config.model_type == HARMONY)


def parser_options(spec: EngineSpec, config: Any) -> dict[str, Any]:
    """Which parsers read tool calls and reasoning out of an answer.

    That of reasoning is in vLLM's configuration: the engine argument, or what vLLM chose for the model (the
    Harmony parser for gpt-oss). gpt-oss has a parser of tool calls, too: without it vLLM would show the tools
    to the model, and lose its calls. A parser of tool calls is enough for them: a row with tools leaves the
    choice to the model by default, which vLLM's server refuses unless a second option allows it.
    """
    tool_parser = spec.arguments.get(_PARSER)
    if tool_parser is None and is_harmony(config.model_config):
        tool_parser = _HARMONY
    return {
        "tool_parser": tool_parser,
        "reasoning_parser": config.structured_outputs_config.reasoning_parser,
        "enable_auto_tools": bool(spec.arguments.get(_AUTO, tool_parser is not None)),
    }


def refuse_unread_calls(body: dict[str, Any], options: dict[str, Any]) -> None:
    """Refuse a row with tools where vLLM would read no call; ``options`` are those of :func:`parser_options`.

    vLLM refuses them for most models. For some it shows the model the tools, and loses the calls or leaves
    them in the text. A row whose ``tool_choice`` is "none" has its tools in the prompt alone.

    Raises:
        RequestRefused: it is such a row.
    """
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools or body.get("tool_choice") == "none":
        return
    if options["tool_parser"] is None:
        told = f"no parser reads tool calls here: give the engine argument {_PARSER}"
    elif not options["enable_auto_tools"]:  # without it vLLM has no parser at all
        told = f"the engine argument {_AUTO}=false switches tool calls off: leave it out"
    else:
        return
    told += ', or set `tool_choice` to "none" in rows whose tools are for the prompt alone'
    raise RequestRefused("invalid_request", told, param="tools")


def without_null_choice(body: dict[str, Any]) -> dict[str, Any]:
    """Without a ``tool_choice`` of null: to vLLM it is neither "auto" nor "none", and calls are lost."""
    if body.get("tool_choice", "none") is not None:
        return body
    return {name: value for name, value in body.items() if name != "tool_choice"}

"""Conversations as vLLM hands them to a model's chat template (``vllm/renderers/chat_utils.py``, 0.32)."""

from __future__ import annotations

import json
from typing import Any

from dray.kinds import Body
from dray.planner.workload.images import marked
from dray.planner.workload.prompts import Unreadable
from dray.requests.media.placing import FORMS

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text"} | {"refusal": "refusal"}
"""The types of parts that hold text, and the field that it is in."""
_TOOL_FIELDS = ("name", "description", "parameters")


def conversation_of(body: Body, *, parts: bool) -> list[dict[str, Any]]:
    """The messages of a body; ``parts``: the template wants contents as lists of parts, not as texts.

    Raises:
        Unreadable: they are no messages of text, images, sounds and videos.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Unreadable("no messages")
    return [_message(message, parts=parts) for message in messages]


def tools_of(body: Body) -> list[dict[str, Any]] | None:
    """The tools of a body, with the fields that vLLM gives to templates."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return None
    return [_tool(tool) for tool in tools]


def template_arguments(body: Body, *, answered: bool) -> dict[str, Any]:
    """What a body says to the chat template beside messages and tools.

    Raises:
        Unreadable: it says what vLLM does not let it say.
    """
    own = body.get("chat_template_kwargs") or {}
    if not isinstance(own, dict) or {"chat_template", "tokenize"} & own.keys() or body.get("chat_template"):
        raise Unreadable("the body brings a chat template of its own")
    said = {
        "add_generation_prompt": body.get("add_generation_prompt", answered),
        "continue_final_message": body.get("continue_final_message", False),
        "documents": body.get("documents"),
        "reasoning_effort": body.get("reasoning_effort"),
    }
    if said["reasoning_effort"] is not None and "enable_thinking" not in own:
        said["enable_thinking"] = said["reasoning_effort"] != "none"
    return own | {name: value for name, value in said.items() if value is not None}


def plain_text(body: Body) -> str:
    """A conversation without a template: about as many bytes, and the same prefixes, as with one."""
    messages = conversation_of(body, parts=False)
    tools = tools_of(body)
    before = json.dumps(tools) if tools else ""
    lines = (f"{one['role']}\n{one.get('content') or ''}{_calls(one)}\n" for one in messages)
    return before + "".join(lines)


def _calls(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    return json.dumps(calls) if calls else ""


def _message(message: Any, *, parts: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Unreadable("a message has no role")
    role = message["role"]
    content = _content(message.get("content"), parts=parts and role != "tool")
    found: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        if message.get("tool_calls"):
            found["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            found["reasoning"] = found["reasoning_content"] = message["reasoning"]
    elif role == "tool" and "tool_call_id" in message:
        found["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        found["tools"] = message.get("tools")
    if isinstance(message.get("name"), str):
        found["name"] = message["name"]
    return found


def _content(content: Any, *, parts: bool) -> str | list[dict[str, Any]]:
    if content is None:
        texts = []
    elif isinstance(content, str):
        texts = [content]
    elif isinstance(content, list):
        texts = [_text(part) for part in content]
    else:
        raise Unreadable("a content is neither a text nor a list of parts")
    if parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(filter(None, texts))


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        name = _TEXTS.get(str(part.get("type", "text")))
        text = part.get(name) if name is not None else None
        if isinstance(text, str):
            return text
        for form in FORMS:
            if form.has(part) and isinstance(url := part[form.type].get("url"), str):
                return marked(url)
    raise Unreadable("a content holds more than text, images, sounds and videos")


def _call(call: Any) -> dict[str, Any]:
    """A call with its arguments as an object, which is what templates expect."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unreadable("a tool call is no function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unreadable("a tool is no function")
    described = {name: function.get(name) for name in _TOOL_FIELDS}
    if function.get("strict") is not None:
        described["strict"] = function["strict"]
    return {"type": "function", "function": described}

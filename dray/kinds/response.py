"""Responses: OpenAI's newer form of a chat, with ``input`` in place of messages."""

from __future__ import annotations

import json
from typing import Any

from dray.kinds.generation import GENERATION, TEXT_COLUMN
from dray.kinds.kind import Body, Kind, input_of

_INPUT = "input"
_PARTIAL = ("in_progress", "incomplete")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_TEXT_OF_A_TOOL = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


def as_chat(body: Body) -> Body:
    """The chat that vLLM makes of a response's body (``responses/utils.py``, 0.32).

    What has the wrong form is left as it is, or left out: the engine refuses such a body.
    """
    given = body.get(_INPUT)
    items = given if isinstance(given, list) else [{"role": "user", "content": given}]
    messages = None if given is None else _messages(items)
    if messages is not None and body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    chat = {name: value for name, value in body.items() if name not in (_INPUT, "instructions", "reasoning")}
    chat["messages"] = messages
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if isinstance(body.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    if items and _is_partial(items[-1]):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    return chat


def _is_partial(item: Any) -> bool:
    """Whether the model is to go on with this message."""
    if not isinstance(item, dict) or item.get("type", "message") not in ("message", "reasoning"):
        return False
    return item.get("status") in _PARTIAL


def _messages(items: list[Any]) -> list[Any]:
    """One message for each item. Calls, reasoning and text of one turn are one message of the assistant."""
    messages: list[Any] = []
    for item in items:
        found = _message(item)
        last: Any = messages[-1] if messages else None
        if not (_is_assistants(found) and _is_assistants(last)):
            messages.append(found)
        elif "tool_calls" in found:
            last["tool_calls"] = [*last.get("tool_calls", ()), *found["tool_calls"]]
        elif last.keys() & found.keys() == {"role"}:
            last |= found
        else:
            messages.append(found)
    return messages


def _is_assistants(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _message(item: Any) -> Any:
    """The message that an item would be by itself."""
    if not isinstance(item, dict):
        return item
    sort = item.get("type")
    if sort in _CALLS:
        said = item.get("arguments")
        if sort == "custom_tool_call":
            said = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
        function = {"name": item.get("name"), "arguments": said}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if sort in _OUTPUTS:
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    if sort == "reasoning":
        return {"role": "assistant", "reasoning": _first_text(item.get("content") or item.get("summary"))}
    if item.get("role") == "assistant":
        return {"role": "assistant", "content": _first_text(item.get("content"))}
    return item


def _first_text(content: Any) -> Any:
    """A text, or that of the first part."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return content[0].get("text")
    return content or ""


def _tool(tool: Any) -> Any:
    """A tool in the form of chats."""
    if not isinstance(tool, dict):
        return tool
    function = {name: value for name, value in tool.items() if name not in ("type", "format")}
    if tool.get("type") == "custom":
        function["parameters"] = _TEXT_OF_A_TOOL
    return {"type": "function", "function": function}


def _prompts(body: Body) -> tuple[str, int]:
    return _INPUT, 1


def _simulated(body: Body, text: str, digest: str) -> Body:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "role": "assistant", "status": "completed", "content": content}
    ended = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"object": "response", "output": [message], "created_at": 0, **ended}


RESPONSE = Kind(
    name="response",
    url="/v1/responses",
    also=("/responses",),
    engine=GENERATION,
    texts=(_INPUT,),
    messages=_INPUT,
    spelled=dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
    echoes=frozenset({"metadata", "service_tier", "user"}),
    body=input_of,
    as_chat=as_chat,
    prompts=_prompts,
    proof={_INPUT: "Say yes.", "max_output_tokens": 4, "temperature": 0},
    simulated=_simulated,
    columns=(TEXT_COLUMN,),
)

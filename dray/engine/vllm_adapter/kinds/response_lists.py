"""The lists of a response's body: what dray takes of them, and how they are read without harm.

An item of ``input`` may be of 60 forms. Pydantic tells some 230 faults of one that fits none of them: 1,000
bad items take 12 s and 1 GB. So a long list is read an element at a time, up to the first that is bad.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError
from vllm.renderers.chat_utils import has_non_text_content

from dray.errors import RequestRefused

_ITEMS = (
    *("message", "reasoning", "function_call", "function_call_output"),
    *("custom_tool_call", "custom_tool_call_output"),
)
_AT_ONCE = 16
_WITHIN = 64  # elements of an item's or tool's own lists, beside its parts


def refuse_items(given: Any) -> None:
    """Refuse items of the input that hold more than vLLM reads of them, or anything but text.

    Raises:
        RequestRefused: there is one.
    """
    for item in given if isinstance(given, list) else ():
        if not isinstance(item, dict):
            continue  # vLLM finds fault with it
        sort = item.get("type", "message")
        if isinstance(sort, str) and sort not in _ITEMS:
            raise _content(f"`input` holds an item of the type {sort[:64]!r}; dray takes messages and calls")
        parts = item.get(_parts_of(item))
        if not isinstance(parts, list):
            continue
        if has_non_text_content([{"content": [part for part in parts if not _is_reasoning(part)]}]):
            raise _content("`input` may hold text only: write a row with images for /v1/chat/completions")
        if len(parts) > 1 and (sort == "reasoning" or item.get("role") == "assistant"):
            raise _content("vLLM reads the first part alone of what the assistant said; join the parts")


def _is_reasoning(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "reasoning_text"


def read_in_turn(read: Callable[[Any], Any], body: dict[str, Any]) -> None:
    """Read long lists of a body an element at a time.

    Raises:
        ValidationError: the first element that is bad.
        RequestRefused: an element has too many elements of its own.
    """
    alone = [item for _, item in _alone(body.get("input"))]
    for name, elements in (("input", alone), ("tools", _listed(body.get("tools")))):
        for number, element in enumerate(elements):
            within = _count_within(element)
            if within > _WITHIN:
                told = f"an element of `{name}` holds lists of {within:,} elements; it may hold {_WITHIN}"
                raise RequestRefused("request_too_large", told, param=name)
            if number >= _AT_ONCE:
                read({"input": "", name: [element]})


def first_bad(read: Callable[[Any], Any], given: Any) -> int | None:
    """The number of the first item that cannot be read by itself."""
    for number, item in _alone(given):
        try:
            read({"input": [item]})
        except ValidationError:
            return number
    return None


def _alone(given: Any) -> Iterator[tuple[int, Any]]:
    """Each item with its number, once for each of its parts and with that part alone."""
    for number, item in enumerate(_listed(given)):
        name = _parts_of(item) if isinstance(item, dict) else ""
        parts = _listed(item.get(name)) if name else []
        if parts:
            yield from ((number, {**item, name: [part]}) for part in parts)
        else:
            yield number, item


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts_of(item: dict[str, Any]) -> str:
    """The field with the parts of an item."""
    return "output" if str(item.get("type")).endswith("_output") else "content"


def _count_within(value: Any) -> int:
    """The elements of all lists in a value, but those of a tool's schema."""
    count, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            count += len(one)
            rest += one
        elif isinstance(one, dict):
            rest += [part for name, part in one.items() if name != "parameters"]
    return count


def _content(told: str) -> RequestRefused:
    return RequestRefused("unsupported_content", told, param="input")

"""When two requests ask one model the same, and whether it would say the same twice.

The key is made of the endpoint and of the body after the job's defaults. It is careful: what might change an
answer stays in it, as the order of names in a JSON schema does, which is the order of names in the answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, Literal

import orjson

from dray.kinds import KINDS
from dray.requests.precision import whole

WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata",
        "prediction",  # makes OpenAI's answers faster, and no other ones
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Fields of OpenAI's that change no answer here: vLLM's server ignores them."""

DEFAULTS: Final[dict[str, tuple[Any, ...]]] = {
    "echo": (False,),
    "encoding_format": ("float",),
    "frequency_penalty": (None,),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": (None,),
    "max_completion_tokens": (None,),
    "max_output_tokens": (None,),
    "max_tokens": (None,),
    "min_tokens": (0,),
    "n": (1,),
    "presence_penalty": (None,),
    "response_format": (None,),
    "seed": (None,),
    "skip_special_tokens": (True,),
    "stop": (None, []),
    "stream": (None, False),
    "temperature": (None,),
    "tool_choice": (None,),
    "tools": (None,),
    "top_p": (None,),
}
"""Values that say no more than a field that is left out. A test compares what vLLM makes of both."""

Doubt = Literal["sampled", "own_id"]
"""Why a repeated request is not known to get the same answer: it is sampled, or names its own id."""

_TEXT_OR_NONE = (str, type(None))
_NO_SEED = -1  # to vLLM
_SPLIT = b"\0"


def key_of(url: str, body: dict[str, Any], model: str | None = None) -> bytes:
    """16 bytes that two requests share if they ask the same, and else with a chance of 2**-128.

    ``model`` is the name that stands in the answer to a row that has none.
    """
    echoes = KINDS[url].echoes
    names = sorted(name for name, value in body.items() if not _says_nothing(name, value, echoes))
    kept = {name: _plain(name, body[name]) for name in names if name != "model"}
    kept["model"] = body.get("model") or model
    return blake2b(KINDS[url].url.encode() + _SPLIT + orjson.dumps(kept), digest_size=16).digest()


def doubt_of(url: str, body: dict[str, Any]) -> Doubt | None:
    """Why asking twice might tell more; None for what is greedy, has a seed, or generates nothing."""
    if body.get("request_id") is not None:
        return "own_id"  # stands in the answer
    engine, temperature = KINDS[url].engine, body.get("temperature")
    if not engine.generates or _is_greedy(temperature) or (engine.greedy and "temperature" not in body):
        return None
    seed = whole(body.get("seed"))
    return None if type(seed) is int and seed != _NO_SEED else "sampled"


def _is_greedy(temperature: object) -> bool:
    return type(temperature) in (int, float) and temperature == 0


def _says_nothing(name: str, value: Any, echoes: frozenset[str]) -> bool:
    """Whether the field could be left out; ``echoes`` stand in the answer."""
    if name in echoes:
        return value is None
    if name == "user":
        return isinstance(value, _TEXT_OR_NONE)  # vLLM refuses others
    if name in WITHOUT_EFFECT:
        return True
    return any(type(one) is type(whole(value)) and one == value for one in DEFAULTS.get(name, ()))


def _plain(name: str, value: Any) -> Any:
    """A value as all writers write it. Only what the engine takes by name may be put in order."""
    if name == "messages" and isinstance(value, list):
        return [_message(one) for one in value]
    return whole(value)


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list):
        message = {**message, "content": [_in_order(part) for part in content]}
    return _in_order(message)


def _in_order(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def told_doubts(doubts: Iterable[tuple[Doubt, int]]) -> list[str]:
    """Lines that say how many rows were left alone, and why."""
    reasons = {
        "sampled": "are sampled without a seed (no temperature 0)",
        "own_id": "name a request_id of their own",
    }
    return [f"{count:,} rows {reasons[doubt]}" for doubt, count in doubts if count]

"""The mark on an answer whose row did not fit into the model's context: ``"dray"``, last in its body.

Readers of OpenAI's format pass over it. What was done is ``overflow``: ``shortened``, ``cut-head`` or
``cut-tail``. ``max_tokens`` is what was left for the answer, ``dropped_tokens`` what the prompt lost, and
``dropped_messages`` how many of its messages went whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import orjson

Done = Literal["shortened", "cut-head", "cut-tail"]

_MARK: Final = re.compile(rb',"dray":\{"overflow":"([a-z-]+)"(?:,"[a-z_]+":\d+)*\}\}$')
_MARK_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """What was done to a row that did not fit."""

    done: Done
    max_tokens: int | None = None
    dropped_tokens: int = 0
    dropped_messages: int = 0

    def on(self, response: bytes) -> bytes:
        """The answer with this mark."""
        said: dict[str, str | int] = {"overflow": self.done}
        if self.max_tokens is not None:
            said["max_tokens"] = self.max_tokens
        if self.dropped_tokens:
            said["dropped_tokens"] = self.dropped_tokens
        if self.dropped_messages:
            said["dropped_messages"] = self.dropped_messages
        return response.rstrip()[:-1] + b',"dray":' + orjson.dumps(said) + b"}"


def mark_of(response: bytes | None) -> str | None:
    """What was done to the row of an answer; None where it fitted."""
    if response is None or not response.endswith(b"}}"):
        return None
    found = _MARK.search(response, max(0, len(response) - _MARK_BYTES))
    return found[1].decode() if found else None

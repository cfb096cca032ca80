"""What requests of one task have in common: all of a body but its texts, and the length that it allows.

Two jobs with one shape ask the same of a model, over other texts: their answers have about the same lengths.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

import orjson

from dray.kinds import KINDS, LENGTH_FIELDS
from dray.requests.sameness import WITHOUT_EFFECT
from dray.requests.spool.spool import decode

LOOKED_AT = 200
"""Rows that are looked at for the shape of a job."""

_SHARE = 0.9  # of them that have one shape, where the job has it
_NO_MATTER = WITHOUT_EFFECT | {*LENGTH_FIELDS, "model", "seed"}
_INSTRUCTIONS = ("system", "developer")  # roles of messages that say what to do with the others


def shape_of(url: str, body: dict[str, Any]) -> str | None:
    """The shape of one request; None where its answer has the length that it allows in any case."""
    kind = KINDS[url]
    if not kind.engine.generates or body.get("ignore_eos"):
        return None
    asked = {name: value for name, value in body.items() if name not in {*kind.texts, *_NO_MATTER}}
    messages = kind.as_chat(body).get("messages")
    told = [one.get("content") for one in messages if _instructs(one)] if isinstance(messages, list) else []
    text = orjson.dumps([url, asked, told], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:16]


def shape_of_rows(lines: Iterable[bytes]) -> str | None:
    """The shape that nearly all of some rows have, given as lines of a spool; None where there is none."""
    requests = [decode(line) for line in lines]
    counted = Counter(shape_of(one.url, one.body) for one in requests)
    found = counted.most_common(1)
    return found[0][0] if found and found[0][1] >= _SHARE * len(requests) else None


def _instructs(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in _INSTRUCTIONS
